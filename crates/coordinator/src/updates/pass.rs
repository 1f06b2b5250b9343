//! What is done about open stripes without a request: those that no client asks for are settled, what an earlier coordinator left is finished,
//! blocks are closed, and old records are forgotten.

use super::{
    settle::{Demand, in_turn},
    state::Phase,
    tell::{homes_of, node_of},
};
use crate::{scrub, shared::Shared};
use futures::stream::{self, StreamExt as _};
use std::{sync::Arc, time::Duration};
use tokio::time::MissedTickBehavior;
use weft_control::walk::Walk;
use weft_meta::{TermRecord, TermState};
use weft_types::{Error, Result, StripeId};
use weft_update::OUTCOMES_KEPT_MS;

/// How often to look for stripes about which something must be done.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// Stripes that are settled at the same time.
const CONCURRENCY: usize = 8;
/// Looks between two removals of old records.
const LOOKS_PER_REMOVAL: u32 = 60;
/// Attempts to settle a stripe that wait for all its blocks, if all nodes are up: about a minute. The next one goes on without those that do not answer.
const ATTEMPTS_WAITED: u32 = 6;
/// Attempts to look again at a block.
const KEPT_TIMES: u32 = 8;
/// Records that are looked up together.
const RECORDS_PER_PAGE: u32 = 256;

/// Reads which stripes are open, before anything else is planned.
pub(crate) async fn resume(shared: &Shared) -> Result<()> {
    let mut walk = Walk::new(None, |record: &TermRecord| Some(record.stripe));
    while let Some(after) = walk.next() {
        let page = shared.meta.stripe_terms(after, RECORDS_PER_PAGE).await.map_err(|error| shared.meta_error(error))?;
        walk.came(&page.items, page.more);
        let left: Vec<&TermRecord> = page.items.iter().filter(|record| record.state != TermState::Closed).collect();
        let stripes = left.iter().map(|record| record.stripe).collect();
        let stripes = shared.meta.find_stripes(stripes).await.map_err(|error| shared.meta_error(error))?;
        for stripe in stripes {
            let record = left.iter().find(|record| record.stripe == stripe.id);
            let homes = record.map(|record| homes_of(&stripe, &record.term.sealed.members)).unwrap_or_default();
            shared.updates.opens(stripe.id, homes, shared.started.now());
        }
        for record in page.items {
            let now = shared.started.now();
            match record.state {
                TermState::Open if record.takes_updates() => shared.updates.set(record.stripe, Phase::Open, shared.idle_at()),
                // It was being opened, sealed or settled.
                TermState::Opening | TermState::Open => shared.updates.set(record.stripe, Phase::Open, now),
                TermState::Settled => shared.updates.set(record.stripe, Phase::Unclosed, now),
                TermState::Closed => {}
            }
        }
    }
    Ok(())
}

/// Looks for as long as it runs.
pub(crate) async fn run(shared: Arc<Shared>) {
    shared.until_nodes_are_back().await;
    tokio::join!(settle_all(Arc::clone(&shared)), look_at_kept(shared));
}

/// Looks at the blocks in which something was found while their stripes were open: then it could not be recorded, and may have been overwritten since.
async fn look_at_kept(shared: Arc<Shared>) {
    let mut look = tokio::time::interval(LOOK_INTERVAL);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        look.tick().await;
        let Some((block, times)) = shared.updates.take_kept() else { continue };
        match scrub::stripe::look_again(&shared, block).await {
            Ok(verdict) => {
                tracing::info!(%block, ?verdict, "looked at a block in which something was found while its stripe was open")
            }
            Err(error) if times < KEPT_TIMES => {
                tracing::debug!(%block, %error, "cannot look at a block yet");
                shared.updates.keep_again(block, times + 1);
            }
            Err(error) => tracing::warn!(%block, %error, "a finding in a block is left to the next scrub"),
        }
    }
}

/// Settles and closes what is due.
async fn settle_all(shared: Arc<Shared>) {
    let mut look = tokio::time::interval(LOOK_INTERVAL);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut looks = 0u32;
    loop {
        look.tick().await;
        shared.updates.forget_retries();
        let due = shared.updates.due(shared.started.now());
        stream::iter(due).for_each_concurrent(CONCURRENCY, |stripe| finish(&shared, stripe)).await;
        if looks.is_multiple_of(LOOKS_PER_REMOVAL) {
            let forgotten =
                shared.meta.forget_terms(shared.epoch, shared.updates_now_ms().saturating_sub(OUTCOMES_KEPT_MS)).await;
            if let Err(error) = forgotten.map_err(|error| shared.meta_error(error)) {
                tracing::warn!(%error, "cannot forget old records of updates");
            }
        }
        looks = looks.wrapping_add(1);
    }
}

/// Settles and closes a stripe. No request waits for it, so there is time for a node that is down to come back.
async fn finish(shared: &Arc<Shared>, stripe: StripeId) {
    let finished = async {
        require_all_up(shared, stripe).await?;
        let has_waited = shared.updates.retries().times(&stripe) >= ATTEMPTS_WAITED;
        in_turn(shared, stripe, if has_waited { Demand::Request } else { Demand::None }).await?;
        // Blocks that could not be closed.
        if shared.updates.has(stripe) { Err(Error::retry("some of its blocks are still open")) } else { Ok(()) }
    };
    match finished.await {
        Ok(()) => shared.updates.retries().done(&stripe),
        Err(error) => {
            let (times, pause) = shared.updates.retries().failed(stripe, error.to_string(), shared.started.now());
            tracing::debug!(%stripe, %error, times, ?pause, "cannot settle a stripe yet");
        }
    }
}

/// Fails if a block of an open stripe is on a node that is down and not lost: without a request it would be fenced for nothing.
async fn require_all_up(shared: &Shared, id: StripeId) -> Result<()> {
    let record = shared.meta.stripe_term(id).await.map_err(|error| shared.meta_error(error))?;
    let Some(record) = record.filter(|record| record.state.is_open()) else { return Ok(()) };
    let stripes = shared.meta.find_stripes(vec![id]).await.map_err(|error| shared.meta_error(error))?;
    let view = shared.members.view();
    let is_away = |node| view.node(node).is_some_and(|node| !node.up && !node.lost);
    let mut nodes =
        stripes.iter().flat_map(|stripe| record.term.sealed.members.iter().filter_map(|block| node_of(stripe, block)));
    match nodes.find(|node| is_away(*node)) {
        Some(node) => Err(Error::retry(format!("{} is down", view.name(node)))),
        None => Ok(()),
    }
}
