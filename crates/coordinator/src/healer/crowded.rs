//! Moves blocks out of racks that hold too many of a stripe, while nothing is lost: the shell around [`weft_control::crowding`], which
//! decides. Reads, writes and rebuilds go before it, and the limit on repair holds.

use crate::{
    rebuild::{owner::Of, shares::Shares},
    shared::Shared,
    updates::settle,
};
use futures::{StreamExt as _, stream::FuturesUnordered};
use std::{collections::BTreeSet, sync::Arc, time::Duration};
use tokio::time::MissedTickBehavior;
use weft_control::{
    crowding::{self, Racks},
    healer::Scope,
    health::BadBlocks,
    options::RepairOptions,
    rebuild::{Lost, Needed, Request},
};
use weft_meta::MetaError;
use weft_schemes::{Kind, simplest};
use weft_types::{Owner, Result, StripeId};

/// How often to look whether there is something to move.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Moves for as long as it runs.
pub(crate) async fn run(shared: Arc<Shared>) {
    shared.until_nodes_are_back().await;
    let (shares, mut under_way, mut moving) = (Shares::default(), FuturesUnordered::new(), BTreeSet::new());
    let mut look = tokio::time::interval(LOOK_INTERVAL);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        // What cannot be moved costs little: no other takes its place before the next look.
        let looks = tokio::select! {
            biased;
            Some((stripe, is_moved)) = under_way.next() => {
                moving.remove(&stripe);
                is_moved
            }
            _ = look.tick() => true,
        };
        if looks {
            for stripe in next(&shared, &moving) {
                moving.insert(stripe);
                let (shared, shares) = (&shared, &shares);
                under_way.push(async move { (stripe, moved(shared, stripe, shares).await) });
            }
        }
    }
}

/// The stripes to move next.
fn next(shared: &Shared, moving: &BTreeSet<StripeId>) -> Vec<StripeId> {
    let nodes = shared.members.view().up_count();
    let mut health = shared.health.lock();
    let state = shared.healer.lock();
    let scope = &state.judgement.scope;
    // What is lost comes first, and may change where there is room.
    let rests = matches!(scope, Scope::Lost { .. }) && state.under_way == 0 && state.queue.left(&health.tally, scope) == 0;
    if rests { health.crowded.next(moving, nodes, shared.started.now()) } else { Vec::new() }
}

/// Whether blocks of a stripe were moved.
async fn moved(shared: &Arc<Shared>, id: StripeId, shares: &Shares) -> bool {
    let moved = move_excess(shared, id, shares).await;
    let is_moved = moved.unwrap_or_else(|error| {
        match shared.failures.admit("moves out of crowded racks", &error.message) {
            Some(left_out) => {
                tracing::warn!(stripe = %id, %error, left_out, "cannot move blocks out of a rack that has too many of a stripe yet");
            }
            None => tracing::debug!(stripe = %id, %error, "cannot move blocks out of a rack that has too many of a stripe yet"),
        }
        false
    });
    shared.health.lock().crowded.ended(id, is_moved, shared.started.now());
    is_moved
}

async fn move_excess(shared: &Arc<Shared>, id: StripeId, shares: &Shares) -> Result<bool> {
    let Some(_claim) = shared.claims.try_claim(id) else { return Ok(false) };
    settle::if_open(shared, id).await?;
    let found = async {
        let stripe = shared.meta.stripe(id).await?;
        let of = Of::owner(shared.meta.as_ref(), stripe.owner).await?;
        Ok::<_, MetaError>((stripe, of))
    };
    let (stripe, of) = match found.await {
        Err(MetaError::NotFound(_)) => return Ok(false),
        found => found.map_err(|error| shared.meta_error(error))?,
    };
    let (code, view) = (shared.code(&of.code)?, shared.members.view());
    if !matches!(stripe.owner, Owner::Object(_)) || !BadBlocks::of(&stripe, &view).is_none() {
        return Ok(false);
    }
    let excess = crowding::excess(&stripe, code.tolerance(), of.failure_domain, &Racks::of(&view), &view);
    if excess.is_empty() {
        return Ok(false);
    }
    let scheme = simplest(Kind::Move)?.name();
    let lost = excess.iter().filter_map(|index| Some(Lost::of(&stripe, *index, stripe.blocks.get(index)?.copy))).collect();
    let change = |request: Request| {
        let options = RepairOptions { scheme: scheme.into(), ..request.options };
        Request { options, needed: Needed::ToSpread, ..request }
    };
    let rebuilt = of.rebuild(shared, (stripe, lost), shares, change, |_| {}).await?;
    let blocks = rebuilt.blocks.len();
    if blocks > 0 {
        tracing::info!(object = %of.name, stripe = %id, blocks, "moved blocks out of a rack that had too many");
    }
    Ok(blocks > 0)
}
