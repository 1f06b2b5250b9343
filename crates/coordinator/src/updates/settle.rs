//! Settles stripes: seals them, waits until all blocks contain what was sealed, records that, and closes the blocks.

use super::{
    calls::{self, Answer, ask},
    inspect::{catch_up, may_answer},
    opening::{Opened, open_blocks},
    state::Phase,
    tell::{describe, encode_block, node_of},
};
use crate::{compute::compute, shared::Shared, tasks};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};
use tonic::transport::Channel;
use weft_codes::SharedCode;
use weft_control::{
    Time,
    updates::{Sealing, SettledBlock, Step, agreed, can_rebuild},
};
use weft_meta::{MetaError, SettleStripe, TermRecord, TermState};
use weft_proto::{
    decode_message, encode_message, rpc,
    v1::{self, agent_client::AgentClient},
};
use weft_types::{BlockId, Cause, Error, NodeId, Owner, Result, Seq, StripeId, StripeRecord};
use weft_update::{Message, StripeTerm};

/// A block that does not answer for this long stays away from the seal.
const SEAL_WITHIN: Duration = Duration::from_secs(2);
/// The same for one that applies its updates, which takes as long as its disk does.
const SETTLE_WITHIN: Duration = Duration::from_secs(20);
/// How long those that demand a settle wait for a block that is being opened and busy all the time: a task may use it, or its disk hang. Then the stripe
/// goes on without it.
const BUSY_WITHIN: Duration = Duration::from_secs(60);
/// How long a reader waits for blocks to be closed. What is left is closed in the background.
const CLOSE_WITHIN: Duration = Duration::from_secs(2);
/// Seals of one attempt: each further one leaves out blocks that failed after the one before.
const SEALS_MAX: usize = 4;

impl Shared {
    /// The time of sessions, milliseconds since 1970, which never falls.
    pub(crate) fn updates_now_ms(&self) -> u64 {
        self.updates.clock().now_ms(self.now_ms(), self.started.now())
    }

    /// An agent that registers has judged sessions by this time of an earlier coordinator.
    pub(crate) fn updates_heard(&self, agent: &str, told_ms: u64) {
        let now_ms = self.now_ms();
        if !self.updates.clock().heard(told_ms, now_ms, self.started.now()) {
            let ahead_hours = told_ms.saturating_sub(now_ms) / 3_600_000;
            tracing::error!(
                agent,
                ahead_hours,
                "ignored a time of sessions that is far ahead of this machine's clock: see docs/operations.md"
            );
        }
    }

    /// When a stripe is settled that no client asks for from now on.
    pub(super) fn idle_at(&self) -> Time {
        self.started.now() + Duration::from_millis(self.config.updates_idle_ms)
    }
}

/// Who waits until a stripe is settled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Demand {
    /// A request. It does not wait for blocks that stay away: the stripe goes on without them, and they are rebuilt.
    Request,
    /// No request, so there is time for all blocks to answer.
    None,
}

/// Settles a stripe if it is open. Returns whether it was: it has another record now.
pub(crate) async fn if_open(shared: &Arc<Shared>, stripe: StripeId) -> Result<bool> {
    let is_open = shared.updates.is_open(stripe);
    if is_open {
        in_turn(shared, stripe, Demand::Request).await?;
    }
    Ok(is_open)
}

/// Fails if a stripe is open.
pub(crate) fn require(shared: &Shared, stripe: StripeId) -> Result<()> {
    match shared.updates.is_open(stripe) {
        true => Err(Error::replan(format!("stripe {stripe} is open for updates")).cause(Cause::OpenForUpdates)),
        false => Ok(()),
    }
}

/// Settles and closes a stripe of which an agent has refused a block, because it is open.
pub(crate) async fn if_refused(shared: &Arc<Shared>, stripe: StripeId) -> Result<()> {
    // It was settled meanwhile, or is not closed yet, or these metadata do not know that it is open.
    shared.updates.doubt(stripe, shared.started.now());
    in_turn(shared, stripe, Demand::Request).await
}

/// All who want a stripe settled at the same time wait for one turn. It is not interrupted when its caller goes away.
pub(super) async fn in_turn(shared: &Arc<Shared>, stripe: StripeId, demand: Demand) -> Result<()> {
    shared.until_nodes_are_back().await;
    let shared = Arc::clone(shared);
    let work = async move {
        let _turn = shared.updates.turns.claim(stripe).await;
        if shared.updates.is_doubtful(stripe) {
            catch_up(&shared, stripe, demand).await?;
        }
        settle_now(&shared, stripe, demand).await
    };
    tasks::to_the_end("a stripe was not settled", work).await
}

/// Settles and closes a stripe whose turn it is.
pub(super) async fn settle_now(shared: &Arc<Shared>, id: StripeId, demand: Demand) -> Result<()> {
    loop {
        let record = shared.meta.stripe_term(id).await.map_err(|error| shared.meta_error(error))?;
        match record {
            // It was removed, or is closed.
            None | Some(TermRecord { state: TermState::Closed, .. }) => {
                shared.updates.forget(id);
                return Ok(());
            }
            Some(record) if record.state == TermState::Settled => return close(shared, record).await,
            Some(record) => {
                let settled = settle_open(shared, record, demand).await;
                settled.inspect_err(
                    |error| tracing::warn!(stripe = %id, %error, "cannot settle a stripe that is open for updates"),
                )?;
            }
        }
    }
}

async fn settle_open(shared: &Arc<Shared>, record: TermRecord, demand: Demand) -> Result<()> {
    let id = record.stripe;
    let Some((mut stripe, code)) = found(shared, id).await? else { return Ok(()) };
    let mut absent = BTreeSet::new();
    // All blocks of a seal that is recorded have answered it, so they are open.
    if record.state == TermState::Opening && record.term.unaware.is_empty() {
        absent = match open_blocks(shared, &stripe, &record).await? {
            Opened::All => BTreeSet::new(),
            Opened::Busy(_, busy_for, error) if demand == Demand::None || busy_for < BUSY_WITHIN => return Err(error),
            Opened::Without(absent) | Opened::Busy(absent, ..) if !catch_up(shared, id, demand).await? => absent,
            Opened::Without(_) | Opened::Busy(..) => return Ok(()),
            Opened::None(error) => {
                if catch_up(shared, id, demand).await? {
                    return Ok(());
                }
                let cancelled = shared.meta.cancel_opening(shared.epoch, id, record.term.term, shared.updates_now_ms()).await;
                cancelled.map_err(|error| shared.meta_error(error))?;
                tracing::warn!(stripe = %id, %error, "a stripe was not opened for updates");
                return Ok(());
            }
        };
    }
    // With the first seal, it has grown.
    stripe.layout.data_len = record.grows_to.unwrap_or(stripe.layout.data_len);
    let mut term = record.term;
    for _ in 0..SEALS_MAX {
        let Some(sealed) = seal(shared, &code, &stripe, (term, &absent), demand).await? else { return Ok(()) };
        term = sealed;
        let unaware = tell_sealed(shared, &stripe, &term).await?;
        if !unaware.is_empty() {
            wait_for(shared, demand, unaware.values().flatten())?;
            absent = unaware.into_keys().collect();
            continue;
        }
        let (answers, away) = settle_blocks(shared, &stripe, &term).await;
        wait_for(shared, demand, &away)?;
        let checksums = match agreed(&stripe, &term.sealed, &answers) {
            Ok(checksums) => checksums,
            Err(without) => {
                tracing::warn!(stripe = %id, blocks = ?without, "blocks do not contain what was sealed");
                absent = without;
                continue;
            }
        };
        let settle = SettleStripe { stripe: id, term: term.term, checksums, now_ms: shared.updates_now_ms() };
        let settled = shared.meta.settle_stripe(shared.epoch, settle).await.map_err(|error| shared.meta_error(error))?;
        shared.updates.set(id, Phase::Unclosed, shared.started.now());
        shared.updates.settles.fetch_add(1, Relaxed);
        tracing::info!(stripe = %id, term = term.term, counts = ?settled.seq.counts(), "settled a stripe");
        return Ok(());
    }
    Err(Error::retry(format!("stripe {id} is open for updates, and its blocks fail one after another")))
}

/// A stripe of an object, and its code; `None` if it was removed.
pub(super) async fn found(shared: &Shared, id: StripeId) -> Result<Option<(StripeRecord, SharedCode)>> {
    let found = async {
        let stripe = shared.meta.stripe(id).await?;
        let Owner::Object(version) = stripe.owner else { return Ok(None) };
        Ok::<_, MetaError>(Some((stripe, shared.meta.object_of(version).await?)))
    };
    match found.await {
        Err(MetaError::NotFound(_)) => Ok(None),
        found => {
            let found = found.map_err(|error| shared.meta_error(error))?;
            found.map(|(stripe, object)| Ok((stripe, shared.code(&object.code)?))).transpose()
        }
    }
}

/// Seals a stripe without these blocks and those that do not answer. Returns the recorded term; `None` if these metadata were an older copy, and
/// the stripe has another term by now.
async fn seal(
    shared: &Arc<Shared>,
    code: &SharedCode,
    stripe: &StripeRecord,
    (term, absent): (StripeTerm, &BTreeSet<BlockId>),
    demand: Demand,
) -> Result<Option<StripeTerm>> {
    let members = term.sealed.members.clone();
    let can = |absent: &BTreeSet<BlockId>| compute(|| can_rebuild(code, stripe, &members, absent));
    let (mut sealing, mut step) = Sealing::begin(term, absent, &can);
    let mut away: Vec<Error> = Vec::new();
    loop {
        step = match step {
            Step::Save { before, term } => {
                let left_out = before.sealed.members.iter().copied().filter(|block| !term.sealed.members.contains(block));
                shared.updates.silent.left_out(shared, stripe, left_out);
                let not_before_ms = shared.garbage_not_before_ms();
                let saved = shared.meta.save_term(shared.epoch, stripe.id, before, term, not_before_ms).await;
                saved.map_err(|error| shared.meta_error(error))?;
                sealing.saved(&can)
            }
            Step::Ask(asked) => {
                let calls =
                    asked.iter().map(|(block, message)| async { (*block, send(shared, stripe, *block, message, None).await) });
                let answers = calls::all(calls).await;
                let is_refused = answers.values().any(|answer| matches!(answer, Answer::Refused(_)));
                if is_refused && catch_up(shared, stripe.id, demand).await? {
                    return Ok(None);
                }
                let answers = answers.into_iter().map(|(block, answer)| match answer.given() {
                    Ok(message) if sealing.counts(&message) => (block, Some(message)),
                    Ok(_) => {
                        tracing::error!(%block, "a block reports to a seal what cannot be: it is left out");
                        (block, None)
                    }
                    Err(error) => {
                        tracing::warn!(%block, %error, "a block stays away from a seal");
                        away.push(error);
                        (block, None)
                    }
                });
                let answers = answers.collect();
                wait_for(shared, demand, &away)?;
                sealing.answered(answers, &can)
            }
            Step::Done(term) => {
                shared.updates.seals.fetch_add(1, Relaxed);
                return Ok(Some(term));
            }
            Step::Stuck => {
                let why = away.first().map(|error| format!(": {error}")).unwrap_or_default();
                let message =
                    format!("stripe {} is open for updates, and too many of its blocks do not answer{why}", stripe.number);
                return Err(Error::unavailable(message));
            }
        };
    }
}

/// Fails if nothing demands that the stripe is settled now, and one of the nodes that gave these errors may answer later: it may be restarting, or
/// its disk be slow. The next attempt seals the stripe again.
fn wait_for<'a>(shared: &Shared, demand: Demand, errors: impl IntoIterator<Item = &'a Error>) -> Result<()> {
    match errors.into_iter().find(|error| demand == Demand::None && may_answer(shared, error)) {
        Some(error) => Err(Error::retry(format!("a block does not answer: {error}"))),
        None => Ok(()),
    }
}

/// Sends a message of a seal to a block.
async fn send(
    shared: &Shared,
    stripe: &StripeRecord,
    block: BlockId,
    message: &Message,
    open: Option<&v1::OpenStripe>,
) -> Answer<Message> {
    let encoded = encode_block(&block).and_then(|block| Ok((block, encode_message(message)?)));
    let (Some(node), Ok((encoded, message))) = (node_of(stripe, &block), encoded) else {
        return Answer::Silent(Error::not_found("it is not part of its stripe").block(block));
    };
    let request = v1::SealBlockRequest { epoch: shared.epoch.0, block: encoded, message, stripe: open.cloned() };
    let call = |mut agent: AgentClient<Channel>, left| {
        let request = rpc::with_deadline(request.clone(), left);
        async move { agent.seal_block(request).await }
    };
    ask(shared, (node, block), SEAL_WITHIN, call).await.and_then(|reply| decode_message(&reply.message))
}

/// Tells all members what the seal decided. Returns those that do not confirm that they know it durably, with the errors of those that do not answer.
async fn tell_sealed(shared: &Shared, stripe: &StripeRecord, term: &StripeTerm) -> Result<BTreeMap<BlockId, Option<Error>>> {
    let (message, open) = (Message::Sealed(term.sealed.clone()), describe(shared, stripe, &term.sealed)?);
    let (message, open) = (&message, Some(&open));
    let calls = term.sealed.members.iter().copied().map(|block| async move {
        let answer = send(shared, stripe, block, message, open).await.given();
        let is_known = matches!(&answer, Ok(Message::SealKnown { term: known }) if *known == term.term);
        if !is_known {
            tracing::warn!(%block, ?answer, "a block does not learn what a seal has decided");
        }
        (block, (!is_known).then(|| answer.err()))
    });
    Ok(calls::all(calls).await.into_iter().filter_map(|(block, unaware)| Some((block, unaware?))).collect())
}

/// What the members contain once all their updates are applied, of those that tell; and why the others do not.
async fn settle_blocks(
    shared: &Shared,
    stripe: &StripeRecord,
    term: &StripeTerm,
) -> (BTreeMap<BlockId, SettledBlock>, Vec<Error>) {
    let calls = term.sealed.members.iter().copied().map(|block| async move {
        let answer = settle_block(shared, stripe, block, term.term).await;
        (block, answer.inspect_err(|error| tracing::warn!(%block, %error, "a block does not settle")))
    });
    let (mut settled, mut away) = (BTreeMap::new(), Vec::new());
    for (block, answer) in calls::all(calls).await {
        match answer {
            Ok(answer) => drop(settled.insert(block, answer)),
            Err(error) => away.push(error),
        }
    }
    (settled, away)
}

async fn settle_block(shared: &Shared, stripe: &StripeRecord, block: BlockId, term: u64) -> Result<SettledBlock> {
    let node = node_of(stripe, &block).ok_or_else(|| Error::not_found("it is not part of its stripe").block(block))?;
    let request = v1::SettleBlockRequest { epoch: shared.epoch.0, block: encode_block(&block)?, term };
    let call = |mut agent: AgentClient<Channel>, left| {
        let request = rpc::with_deadline(request.clone(), left);
        async move { agent.settle_block(request).await }
    };
    let told = ask(shared, (node, block), SETTLE_WITHIN, call).await.given()?;
    let seq = told.seq.unwrap_or_default();
    Ok(SettledBlock { seq: Seq::new(seq.term, seq.counts), checksums: told.checksums })
}

/// Closes the blocks of a settled stripe, as far as they can be reached.
async fn close(shared: &Arc<Shared>, record: TermRecord) -> Result<()> {
    let (id, term) = (record.stripe, record.term.term);
    let stripe = shared.meta.find_stripes(vec![id]).await.map_err(|error| shared.meta_error(error))?.pop();
    let stripe = stripe.as_ref();
    let calls = record.term.unaware.iter().copied().map(|block| async move {
        // A block that was replaced is garbage.
        let Some(node) = stripe.and_then(|stripe| node_of(stripe, &block)) else { return (block, true) };
        let closed = close_block(shared, node, block, term).await;
        (block, closed.inspect_err(|error| tracing::debug!(%block, %error, "cannot close a block yet")).is_ok())
    });
    let closed = calls::all(calls).await.into_iter().filter(|(_, is_closed)| *is_closed).map(|(block, _)| block).collect();
    let is_left = shared.meta.blocks_closed(shared.epoch, id, term, closed).await.map_err(|error| shared.meta_error(error))?;
    match is_left {
        true => shared.updates.set(id, Phase::Unclosed, shared.started.now()),
        false => shared.updates.forget(id),
    }
    Ok(())
}

async fn close_block(shared: &Shared, node: NodeId, block: BlockId, term: u64) -> Result<()> {
    let request = v1::CloseBlockRequest { epoch: shared.epoch.0, block: encode_block(&block)?, term };
    let call = |mut agent: AgentClient<Channel>, left| {
        let request = rpc::with_deadline(request.clone(), left);
        async move { agent.close_block(request).await }
    };
    ask(shared, (node, block), CLOSE_WITHIN, call).await.given().map(drop)
}
