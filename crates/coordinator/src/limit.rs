//! The limit on all classes below foreground: the shell around [`weft_control::limit`], which decides.
//!
//! One task tells every node the limits of its lines, at once after a change, and again until the node confirms them. A node that
//! registers gets them with the answer, before it can take a task.

mod shown;
pub(crate) mod state;
mod work;

pub(crate) use shown::{Longest, least_ms, lowest, reply, text};

use crate::{members::Session, shared::Shared};
use futures::{StreamExt as _, stream::FuturesUnordered};
use std::{collections::BTreeSet, sync::Arc, time::Duration};
use tokio::time::Instant;
use weft_control::limit::{Bounds, Refusal};
use weft_proto::{from_status, rpc, v1};
use weft_types::{ByteSize, Error, NodeId, RepairLimit, Result};

/// How often rates are computed, and nodes that have not confirmed theirs are told again.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);
/// How long a node may take to confirm. A change must be in force at all nodes that can be reached within two of these.
const CALL_TIMEOUT: Duration = Duration::from_secs(1);
/// How long the caller of a change waits for the nodes.
const CONFIRMED_WITHIN: Duration = Duration::from_secs(2);
const CONFIRMED_POLL: Duration = Duration::from_millis(50);
/// The farthest deadline.
const DEADLINE_MS_MAX: u64 = 365 * 86_400_000;

/// Tells nodes their limits for as long as it runs.
pub(crate) async fn run(shared: Arc<Shared>) {
    let (mut telling, mut under_way) = (FuturesUnordered::new(), BTreeSet::new());
    let mut look = tokio::time::interval(LOOK_INTERVAL);
    look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            biased;
            _ = look.tick() => work::count(&shared).await,
            () = shared.limit.changed.notified() => {}
            Some(node) = telling.next() => {
                under_way.remove(&node);
                // The next look calls an unreachable node again.
                continue;
            }
        }
        for (node, session, bounds) in due(&shared) {
            if under_way.insert(node) {
                let shared = &shared;
                telling.push(async move {
                    tell(shared, node, session, bounds).await;
                    node
                });
            }
        }
    }
}

/// The nodes that must be told their limits now.
fn due(shared: &Shared) -> Vec<(NodeId, Session, Bounds)> {
    let statuses = shared.members.statuses();
    let up = statuses.iter().filter(|status| status.up);
    let sessions: Vec<Session> = up.filter_map(|status| shared.members.session(status.record.id)).collect();
    let limit = shared.limit.lock().limit;
    let (rates, now_ms) = (shown::rates(shared, limit), shared.now_ms());
    let mut state = shared.limit.lock();
    state.ledger.keep(&statuses.iter().map(|status| status.record.id).collect());
    let nodes = || sessions.iter().map(|session| session.record.id);
    let lowest = nodes().filter_map(|node| state.bounds(now_ms, &rates, node).lowest()).min();
    let slowest = nodes().filter_map(|node| state.bounds_together(now_ms, &rates, node).lowest()).min();
    (state.lowest, state.slowest) = (lowest, slowest);
    let wanted = |session: Session| {
        let node = session.record.id;
        (node, state.bounds(now_ms, &rates, node), session)
    };
    let all: Vec<_> = sessions.into_iter().map(wanted).collect();
    let is_due = |(node, bounds, session): &(NodeId, Bounds, Session)| state.ledger.is_due(*node, &session.link_key.id(), bounds);
    all.into_iter().filter(is_due).map(|(node, bounds, session)| (node, session, bounds)).collect()
}

/// Tells a node its limits.
async fn tell(shared: &Shared, node: NodeId, session: Session, bounds: Bounds) {
    let limit = shared.limit.lock().message(bounds);
    // The timeout here comes first, and says what happened.
    let request = rpc::with_deadline(v1::SetLimitRequest { epoch: shared.epoch.0, limit: Some(limit) }, CALL_TIMEOUT * 2);
    let mut agent = rpc::agent_client(session.channel.clone());
    let answer = match tokio::time::timeout(CALL_TIMEOUT, agent.set_limit(request)).await {
        Ok(Ok(reply)) => Ok(reply.into_inner().lines),
        Ok(Err(status)) if status.code() == tonic::Code::Unimplemented => {
            Err(Refusal { why: "its agent is older and knows no limit: upgrade it".into(), is_final: true })
        }
        Ok(Err(status)) => Err(Refusal { why: from_status(&status).message, is_final: false }),
        Err(_) => Err(Refusal { why: format!("no answer within {CALL_TIMEOUT:?}"), is_final: false }),
    };
    if let Err(Refusal { why, .. }) = &answer {
        tracing::debug!(node = %session.record.name, why, "a node has not confirmed the limit on repair");
    }
    shared.limit.lock().ledger.told(node, session.link_key.id(), bounds, answer);
}

/// The limit in the answer to a registration.
pub(crate) fn of_registration(shared: &Shared, node: NodeId) -> v1::LowerLimit {
    let limit = shared.limit.lock().limit;
    let (rates, now_ms) = (shown::rates(shared, limit), shared.now_ms());
    let mut state = shared.limit.lock();
    let bounds = state.bounds(now_ms, &rates, node);
    let lowest = bounds.lowest().into_iter().chain(state.lowest).min();
    state.message(bounds.among(lowest))
}

/// Changes the limit, and waits for the nodes.
pub(crate) async fn set(shared: &Shared, asked: &v1::RepairLimit) -> Result<v1::RepairLimitReply> {
    let limit = checked(asked, shared.now_ms())?;
    let turn = shared.limit.changing.lock().await;
    let set = shared.meta.set_repair_limit(shared.epoch, limit).await;
    set.map_err(|error| shared.meta_error(error))?;
    shared.limit.lock().limit = limit;
    work::count(shared).await;
    tracing::warn!(%limit, "changed the limit on repair");
    shared.limit.changed.notify_one();
    drop(turn);
    let begin = Instant::now();
    loop {
        let reply = reply(shared);
        if begin.elapsed() >= CONFIRMED_WITHIN || reply.nodes.iter().all(|node| node.state != shown::PENDING) {
            return Ok(reply);
        }
        tokio::time::sleep(CONFIRMED_POLL).await;
    }
}

fn checked(asked: &v1::RepairLimit, now_ms: u64) -> Result<RepairLimit> {
    let limit = match (asked.bytes_per_s, asked.percent, asked.deadline_in_ms) {
        (None, None, None) => RepairLimit::None,
        (Some(rate), None, None) => RepairLimit::Rate(ByteSize(rate)),
        (None, Some(percent), None) => RepairLimit::Percent(percent),
        (None, None, Some(0)) => {
            return Err(Error::invalid("the deadline has passed already: choose one in the future, such as 2h"));
        }
        (None, None, Some(in_ms)) if in_ms > DEADLINE_MS_MAX => {
            return Err(Error::invalid("the deadline is more than a year away: choose an earlier one, or a rate"));
        }
        (None, None, Some(in_ms)) => RepairLimit::Until(now_ms.saturating_add(in_ms)),
        _ => return Err(Error::invalid("a limit is a rate, a share or a deadline: choose one of them")),
    };
    limit.check().map_err(Error::invalid)
}
