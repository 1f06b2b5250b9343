//! Completes stripes that were acknowledged before all their blocks were durable: what did not come by itself is rebuilt, as a repair
//! would do it. Which stripes these are is in the metadata: so the next coordinator goes on with them.

use crate::{
    how::How,
    rebuild::{Destination, Lost, Rebuild},
    shared::Shared,
};
use futures::{StreamExt as _, stream};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::time::Instant;
use weft_meta::{MetaError, Owner, StripeRecord};
use weft_types::{Error, Result, StripeId};

/// Stripes that are completed at the same time.
const CONCURRENCY: usize = 2;
/// Stripes that are looked up together.
const STRIPES_PER_PAGE: u32 = 256;
/// It is looked for stripes whenever one was left incomplete, and no less often than this.
const LOOK_INTERVAL: Duration = Duration::from_secs(10);
const LOOK_PAUSE: Duration = Duration::from_millis(250);
/// The first pause before a stripe that could not be completed is tried again; each next one is twice as long, up to the last. There
/// may be too few nodes for it, for hours.
const PAUSE_FIRST: Duration = Duration::from_secs(1);
const PAUSE_LAST: Duration = Duration::from_secs(60);
/// Stripes of which it is kept why they could not be completed.
const TRIED_MAX: usize = 4096;

/// What is known of stripes that could not be completed yet.
#[derive(Debug, Default)]
pub(crate) struct Completion(Mutex<BTreeMap<StripeId, Tried>>);

/// What came of a stripe so far.
#[derive(Debug, Clone)]
struct Tried {
    times: u32,
    again_at: Instant,
    why: String,
}

impl Completion {
    /// Why a stripe could not be completed when that was last tried; empty: it did not fail yet.
    pub(crate) fn why(&self, stripe: StripeId) -> String {
        self.lock().get(&stripe).map(|tried| tried.why.clone()).unwrap_or_default()
    }

    /// Whether it is a stripe's turn.
    fn is_due(&self, stripe: StripeId) -> bool {
        self.lock().get(&stripe).is_none_or(|tried| tried.again_at <= Instant::now())
    }

    /// When the next of them is tried again.
    fn next(&self) -> Instant {
        let soonest = self.lock().values().map(|tried| tried.again_at).min();
        let latest = Instant::now() + LOOK_INTERVAL;
        soonest.map_or(latest, |soonest| soonest.min(latest))
    }

    /// Notes a failure; how often there has been one, and how long it waits.
    fn failed(&self, stripe: StripeId, why: String) -> (u32, Duration) {
        let mut all = self.lock();
        let times = all.get(&stripe).map_or(0, |tried| tried.times) + 1;
        let pause = PAUSE_FIRST.saturating_mul(1 << (times - 1).min(16)).min(PAUSE_LAST);
        if all.len() < TRIED_MAX || all.contains_key(&stripe) {
            all.insert(stripe, Tried { times, again_at: Instant::now() + pause, why });
        }
        (times, pause)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<StripeId, Tried>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Completes stripes for as long as it runs.
pub(crate) async fn run(shared: Arc<Shared>) {
    let mut changes = shared.puts.behind.changes();
    shared.until_nodes_are_back().await;
    loop {
        changes.mark_unchanged();
        if let Err(error) = look(&shared).await {
            tracing::warn!(%error, "stripes that are incomplete could not be looked up");
        }
        // Several may end at the same time.
        tokio::time::sleep(LOOK_PAUSE).await;
        tokio::select! {
            Ok(()) = changes.changed() => {}
            () = tokio::time::sleep_until(shared.completion.next()) => {}
        }
    }
}

/// Tries once every stripe whose turn it is.
async fn look(shared: &Arc<Shared>) -> Result<()> {
    let (mut after, mut seen) = (None, BTreeSet::new());
    loop {
        let page = shared.meta.incomplete_stripes(None, after, STRIPES_PER_PAGE).await;
        let page = page.map_err(|error| shared.meta_error(error))?;
        after = page.items.last().map(|stripe| stripe.id);
        seen.extend(page.items.iter().map(|stripe| stripe.id));
        let due = page.items.into_iter().filter(|it| !shared.puts.behind.has_stripe(it.id) && shared.completion.is_due(it.id));
        stream::iter(due).for_each_concurrent(CONCURRENCY, |stripe| complete(shared, stripe)).await;
        if !page.more {
            break;
        }
    }
    shared.completion.lock().retain(|stripe, _| seen.contains(stripe));
    Ok(())
}

async fn complete(shared: &Arc<Shared>, stripe: StripeRecord) {
    let (id, number) = (stripe.id, stripe.number);
    match rebuild(shared, stripe).await {
        Ok(()) => drop(shared.completion.lock().remove(&id)),
        Err(error) => {
            let object = error.object.clone().unwrap_or_default();
            let (times, pause) = shared.completion.failed(id, Error { object: None, ..error.clone() }.to_string());
            let again_ms = pause.as_millis();
            if times == 1 {
                tracing::warn!(object, stripe = number, %error, again_ms, "a stripe could not be completed; it is tried again");
            } else {
                tracing::debug!(object, stripe = number, %error, again_ms, times, "a stripe could not be completed again");
            }
        }
    }
}

/// Rebuilds the blocks of a stripe that its put has left.
async fn rebuild(shared: &Arc<Shared>, stripe: StripeRecord) -> Result<()> {
    let (Owner::Object(version), missing) = (stripe.owner, stripe.on_their_way()) else { return Ok(()) };
    if missing.is_empty() {
        return Ok(());
    }
    let object = match shared.meta.object_of(version).await {
        Err(MetaError::NotFound(_)) => return Ok(()),
        object => object.map_err(|error| shared.meta_error(error))?,
    };
    let place = |error: Error| if error.object.is_some() { error } else { error.object(&object.name) };
    let code = shared.code(&object.code).map_err(place)?;
    let (_, policy) = shared.meta.bucket(&object.name.bucket).await.map_err(|error| place(shared.meta_error(error)))?;
    let (number, how) = (stripe.number, How::usual(shared));
    let mut rebuild = Rebuild {
        shared,
        code: &code,
        object: &object.name,
        version,
        lost: missing.iter().map(|(index, copy)| Lost::of(&stripe, *index, *copy)).collect(),
        stripe,
        how: &how,
        helpers: None,
        to: Destination::Anywhere,
        failure_domain: policy.failure_domain,
        upload: None,
        avoid: BTreeSet::new(),
    };
    let rebuilt = rebuild.repair(|_| {}).await.map_err(place)?;
    match rebuilt.left.into_iter().next() {
        Some(((index, _), why)) => Err(place(Error::unavailable(format!("block {index}: {why}")))),
        None => {
            tracing::info!(object = %object.name, stripe = number, blocks = ?missing, "a stripe that was acknowledged early is complete");
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_fails_again_and_again_is_tried_less_and_less_often() {
        let (completion, stripe) = (Completion::default(), StripeId(3));
        assert!(completion.is_due(stripe) && completion.why(stripe).is_empty());
        let pauses: Vec<u64> = (0..8).map(|_| completion.failed(stripe, "too few nodes".into()).1.as_secs()).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
        assert!(!completion.is_due(stripe) && completion.is_due(StripeId(4)));
        assert_eq!(completion.why(stripe), "too few nodes");
        assert_eq!(completion.next(), Instant::now() + LOOK_INTERVAL, "others are looked for meanwhile");
        tokio::time::advance(PAUSE_LAST).await;
        assert!(completion.is_due(stripe));
    }
}
