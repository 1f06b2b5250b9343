//! Opens the blocks of a stripe at their agents.

use super::{
    calls::{self, Answer, ask},
    tell::{describe, encode_block, node_of},
};
use crate::shared::Shared;
use std::{collections::BTreeSet, time::Duration};
use tonic::transport::Channel;
use weft_meta::TermRecord;
use weft_proto::{
    rpc,
    v1::{self, agent_client::AgentClient},
};
use weft_types::{BlockId, Error, Result, StripeRecord};

/// An agent that does not answer for this long has not opened its block. It waits itself for tasks that use it.
const OPEN_WITHIN: Duration = Duration::from_secs(3);
/// The same for a block that grows first: that is written and synced.
const GROW_WITHIN: Duration = Duration::from_secs(10);

/// What became of the blocks of a stripe that is being opened.
pub(super) enum Opened {
    /// All are open.
    All,
    /// These are not.
    Without(BTreeSet<BlockId>),
    /// These are not. Some of them are busy, one of them for this reason, and have been so for this long.
    Busy(BTreeSet<BlockId>, Duration, Error),
    /// None is, or will be: all agents have refused, the first for this reason.
    None(Error),
}

/// Asks the agents of all blocks of a stripe that is being opened to open them, and to let them grow if it does.
pub(super) async fn open_blocks(shared: &Shared, stripe: &StripeRecord, record: &TermRecord) -> Result<Opened> {
    let sealed = &record.term.sealed;
    let (open, data_len) = (&describe(shared, stripe, sealed)?, record.grows_to.unwrap_or(stripe.layout.data_len));
    let within = if record.grows_to.is_some() { GROW_WITHIN } else { OPEN_WITHIN };
    let call = |block| async move { (block, open_block(shared, (stripe, block), (open, data_len), within).await) };
    let calls = sealed.members.iter().copied().map(call);
    let (mut absent, mut refused, mut busy) = (BTreeSet::new(), Vec::new(), None);
    for (block, answer) in calls::all(calls).await {
        match answer {
            Answer::Given(_) => continue,
            Answer::Busy(error) => busy = Some(error),
            Answer::Refused(error) => {
                tracing::warn!(%block, %error, "an agent does not open a block for updates");
                refused.push(error);
            }
            Answer::Silent(error) => tracing::warn!(%block, %error, "an agent does not open a block for updates"),
        }
        absent.insert(block);
    }
    match (busy, refused.len() == sealed.members.len(), refused.into_iter().next()) {
        (Some(error), ..) => {
            let busy_for = shared.updates.busy_for(stripe.id, shared.started.now());
            Ok(Opened::Busy(absent, busy_for, error))
        }
        (None, true, Some(error)) => Ok(Opened::None(error)),
        _ if absent.is_empty() => Ok(Opened::All),
        _ => Ok(Opened::Without(absent)),
    }
}

async fn open_block(
    shared: &Shared,
    (stripe, block): (&StripeRecord, BlockId),
    (open, data_len): (&v1::OpenStripe, u64),
    within: Duration,
) -> Answer<v1::OpenBlockReply> {
    let Some(node) = node_of(stripe, &block) else {
        return Answer::Silent(Error::retry("it is not part of its stripe").block(block));
    };
    let encoded = match encode_block(&block) {
        Ok(encoded) => encoded,
        Err(error) => return Answer::Busy(error),
    };
    let request = v1::OpenBlockRequest { epoch: shared.epoch.0, block: encoded, stripe: Some(open.clone()), data_len };
    let call = |mut agent: AgentClient<Channel>, left| {
        let request = rpc::with_deadline(request.clone(), left);
        async move { agent.open_block(request).await }
    };
    ask(shared, (node, block), within, call).await
}
