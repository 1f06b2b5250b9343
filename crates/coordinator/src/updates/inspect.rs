//! Asks the agents of a stripe about its blocks: before it is opened, whether the journals of their disks are ready; and when they contradict the
//! metadata, what newer metadata must have said, of which these are an older copy.

use super::{
    calls::{self, Answer, ask},
    settle::{Demand, found, settle_now},
    state::Phase,
    tell::{encode_block, homes_of, inspected as decode, node_of, recorded},
};
use crate::{compute::compute, shared::Shared};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};
use tonic::{Code, Response, transport::Channel};
use weft_codes::SharedCode;
use weft_control::updates::{Answers, Found, Inspected, Newer, behind, can_rebuild, is_behind, members};
use weft_meta::{AdoptStripe, Adopted, TermRecord};
use weft_proto::{
    rpc,
    v1::{self, agent_client::AgentClient},
};
use weft_types::{BlockId, BlockState, Cause, Error, Party, Reaction, Result, StripeId, StripeRecord};

/// How long an opening waits for journals. A disk creates its own when its first block is opened.
const READY_WITHIN: Duration = Duration::from_secs(5);
/// A block that does not answer for this long is not counted.
const TOLD_WITHIN: Duration = Duration::from_secs(2);

/// The blocks that take part when a stripe is opened, once the journals of their disks are ready, and how many bytes of the object the stripe holds by the
/// longest of them, as far as they tell. Fails if one is not ready for now, for example because
/// its disk has no room: then nothing was recorded, and no block is left out for that. Agents of versions that do not know the question count as
/// ready; blocks whose agents do not answer, and blocks that are lost, do not take part. The stripe's turn must have come.
pub(super) async fn ready(
    shared: &Arc<Shared>,
    (stripe, code): (&StripeRecord, &SharedCode),
    record: Option<&TermRecord>,
) -> Result<(Vec<BlockId>, u64)> {
    let unclosed = record.map(|record| record.term.unaware.clone()).unwrap_or_default();
    let view = shared.members.view();
    let write_min = shared.config.write_min;
    let all = compute(|| members(code, stripe, &view, (&unclosed, write_min)))?;
    let (mut absent, mut not_ready, mut is_old, mut is_silent, mut holds) = (BTreeSet::new(), None, false, false, 0);
    for (block, answer) in inspected(shared, stripe, &all, true).await {
        match answer {
            Answer::Given((told, data_len)) => {
                is_old |= told.is_some_and(|told| is_behind(stripe, recorded(record), &told));
                holds = holds.max(data_len.min(stripe.layout.room_end()));
            }
            Answer::Silent(error) => {
                is_silent = true;
                left_out(block, &error);
                absent.insert(block);
            }
            Answer::Refused(error) => match error.reaction {
                Reaction::NotFound | Reaction::Corrupt => {
                    left_out(block, &error);
                    absent.insert(block);
                }
                // Another coordinator leads.
                Reaction::InvalidInput => return Err(error),
                _ => not_ready = Some(error),
            },
            Answer::Busy(error) => not_ready = Some(error),
        }
    }
    if is_old {
        catch_up(shared, stripe.id, Demand::Request).await?;
        settle_now(shared, stripe.id, Demand::Request).await?;
        return Err(Error::retry("the stripe was updated after this copy of the metadata was made: try again"));
    }
    if let Some(error) = not_ready {
        // What a full disk says names disk and node.
        let party = error.party.filter(|_| error.cause != Some(Cause::NoSpace));
        return Err(Error { reaction: Reaction::Retry, party, ..error });
    }
    let without = || compute(|| members(code, stripe, &view, (&(&unclosed | &absent), write_min)));
    let chosen = match absent.is_empty() {
        true => all,
        // Their nodes are up: they may only be slow.
        false => without().map_err(|error| if is_silent { Error { reaction: Reaction::Retry, ..error } } else { error })?,
    };
    Ok((chosen, holds))
}

fn left_out(block: BlockId, error: &Error) {
    tracing::warn!(%block, %error, "a stripe is opened for updates without a block");
}

/// If blocks of a stripe have terms that these metadata do not know, records what newer metadata must have said, and returns true. Then it is to
/// be settled or closed. Its turn must have come.
pub(super) async fn catch_up(shared: &Shared, id: StripeId, demand: Demand) -> Result<bool> {
    let Some((mut stripe, code)) = found(shared, id).await? else { return Ok(false) };
    let record = shared.meta.stripe_term(id).await.map_err(|error| shared.meta_error(error))?;
    if !stripe.ended || stripe.incomplete {
        return Ok(false);
    }
    let good = stripe.all().filter(|(_, placed)| placed.state == BlockState::Ok);
    let good: Vec<BlockId> = good.map(|(index, placed)| stripe.id_of(index, placed)).collect();
    let (mut told, mut silent, mut untold) = (Answers::new(), None, Vec::new());
    for (block, answer) in inspected(shared, &stripe, &good, false).await {
        match answer {
            Answer::Given((Some(answer), data_len)) => {
                // It may have grown since this copy was made.
                stripe.layout.data_len = stripe.layout.data_len.max(data_len.min(stripe.layout.room_end()));
                told.insert(block, answer);
            }
            Answer::Given((None, _)) => untold.push(block),
            Answer::Silent(error) | Answer::Busy(error) => {
                untold.push(block);
                silent = Some(error);
            }
            Answer::Refused(error) => {
                tracing::debug!(%block, %error, "an agent does not tell of a block");
                // It may be on the disk, at another node.
                let placed = stripe.find(block.index, block.copy);
                let may_follow = placed.is_some_and(|placed| shared.members.moved_to(placed.home).is_some());
                if may_follow || !matches!(error.reaction, Reaction::NotFound | Reaction::Corrupt) {
                    untold.push(block);
                }
            }
        }
    }
    let newer = compute(|| behind(&code, &stripe, recorded(record.as_ref()), &told));
    if matches!(newer, Ok(None)) {
        return Ok(false);
    }
    if let Some(error) = silent.filter(|error| demand == Demand::None && may_answer(shared, error)) {
        return Err(Error::retry(format!("a block does not answer: {error}")));
    }
    let Some(Newer { term, found }) = newer? else { return Ok(false) };
    require_few_untold(shared, (&stripe, &code), untold)?;
    let (state, phase) = match found {
        Found::Opening => (Adopted::Opening, Phase::Open),
        Found::Open => (Adopted::Open, Phase::Open),
        Found::Settled(checksums) => (Adopted::Settled { checksums, now_ms: shared.updates_now_ms() }, Phase::Unclosed),
    };
    tracing::warn!(stripe = %id, term = term.term, members = term.sealed.members.len(), ?phase,
        "these metadata are older than what the blocks of a stripe contain: recorded what these say");
    let (garbage_not_before_ms, homes) = (shared.garbage_not_before_ms(), homes_of(&stripe, &term.sealed.members));
    let (before, data_len) = (record.map(|record| record.term), stripe.layout.data_len);
    let adopt = AdoptStripe { stripe: id, before, term, state, data_len, garbage_not_before_ms };
    // From here on nothing plans for it without settling it.
    shared.updates.opens(id, homes, shared.started.now());
    shared.updates.set(id, phase, shared.started.now());
    shared.meta.adopt_stripe(shared.epoch, adopt).await.map_err(|error| shared.meta_error(error))?;
    Ok(true)
}

/// Fails if the blocks that do not tell what they contain, and may do so later, can rebuild the stripe without the others: they may contain
/// later updates than these.
fn require_few_untold(shared: &Shared, (stripe, code): (&StripeRecord, &SharedCode), mut untold: Vec<BlockId>) -> Result<()> {
    let view = shared.members.view();
    untold.retain(|block| node_of(stripe, block).and_then(|node| view.node(node)).is_some_and(|node| !node.lost));
    if !compute(|| can_rebuild(code, stripe, &untold, &BTreeSet::new())) {
        return Ok(());
    }
    let (number, have, all) = (stripe.number, untold.len(), stripe.all().count());
    Err(Error::retry(format!(
        "stripe {number} was updated in place after this copy of the metadata was made, but {have} of its {all} blocks do not tell what \
         they contain, and may contain later updates than the others: the stripe waits for their nodes"
    )))
}

/// Whether a block that did not answer may do so later.
pub(super) fn may_answer(shared: &Shared, error: &Error) -> bool {
    let view = shared.members.view();
    let node = if let Some(Party::Node(node)) = error.party { view.node(node) } else { None };
    error.reaction == Reaction::Retry && node.is_some_and(|node| !node.lost)
}

/// What an agent says of a block: `None` if it is of a version that does not tell; and how many bytes of the object the stripe holds by the block's
/// sidecar, 0 if it does not tell.
type Said = (Option<Inspected>, u64);

/// What agents say of blocks.
async fn inspected(shared: &Shared, stripe: &StripeRecord, blocks: &[BlockId], ready: bool) -> BTreeMap<BlockId, Answer<Said>> {
    calls::all(blocks.iter().map(|block| async { (*block, inspect(shared, stripe, *block, ready).await) })).await
}

async fn inspect(shared: &Shared, stripe: &StripeRecord, block: BlockId, ready: bool) -> Answer<Said> {
    let (Some(node), Ok(encoded)) = (node_of(stripe, &block), encode_block(&block)) else {
        return Answer::Silent(Error::retry("it is not part of its stripe").block(block));
    };
    let request = v1::InspectBlockRequest { epoch: shared.epoch.0, block: encoded, ready };
    let call = |mut agent: AgentClient<Channel>, left| {
        let request = rpc::with_deadline(request.clone(), left);
        async move {
            match agent.inspect_block(request).await {
                Err(status) if status.code() == Code::Unimplemented => Ok(Response::new(v1::InspectBlockReply::default())),
                answer => answer,
            }
        }
    };
    let within = if ready { READY_WITHIN } else { TOLD_WITHIN };
    ask(shared, (node, block), within, call).await.and_then(|reply| {
        if let Some(placed) = stripe.find(block.index, block.copy) {
            shared.updates.takes(placed.home, reply.update_bytes_max);
        }
        let data_len = reply.data_len;
        Ok((decode(reply), data_len))
    })
}
