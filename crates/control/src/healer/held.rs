//! Stripes that wait together. If several stripes in a row cannot be rebuilt, the others in the same condition probably cannot either: only a
//! few of them are tried, now and then. So what cannot be rebuilt costs something per condition, and not per stripe.

use super::Wait;
use crate::{
    Time,
    health::{Condition, Tally},
    retries::Pause,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Bound,
    sync::Arc,
    time::Duration,
};
use weft_types::StripeId;

/// After so many different stripes in a row that could not be rebuilt, the others in the same condition wait.
pub(super) const HELD_AFTER: usize = 16;
/// How many of them are tried at a time.
const PROBES: usize = 8;
/// The first and the last pause before some are tried.
const PAUSE_FIRST: Duration = Duration::from_secs(1);
const PAUSE_LAST: Duration = Duration::from_secs(10);

/// The conditions in which stripes could not be rebuilt.
#[derive(Debug, Default)]
pub(super) struct Held(BTreeMap<Arc<Condition>, Failing>);

#[derive(Debug)]
struct Failing {
    /// The stripes that failed since one was rebuilt; at most [`HELD_AFTER`].
    in_a_row: BTreeSet<StripeId>,
    wait: Wait,
    why: String,
    pause: Pause,
    probe_at: Time,
    /// How many were tried since they wait.
    probes: u32,
    /// The last one that was tried in order.
    after: StripeId,
}

impl Held {
    /// What all stripes in a condition wait for, and why; `None` if they do not wait together.
    pub(super) fn why(&self, condition: &Condition) -> Option<(Wait, &str)> {
        self.0.get(condition).filter(|it| it.is_held()).map(|it| (it.wait, &*it.why))
    }

    /// Whether all stripes in a condition wait.
    pub(super) fn has(&self, condition: &Condition) -> bool {
        self.why(condition).is_some()
    }

    /// A stripe that was in this condition could not be rebuilt.
    pub(super) fn failed(&mut self, condition: Arc<Condition>, stripe: StripeId, (wait, why): (Wait, &str), now: Time) {
        let failing = self.0.entry(condition).or_insert_with(|| Failing {
            in_a_row: BTreeSet::new(),
            wait,
            why: String::new(),
            pause: Pause::new(PAUSE_FIRST, PAUSE_LAST),
            probe_at: now,
            probes: 0,
            after: StripeId(0),
        });
        (failing.wait, failing.why) = (wait, why.to_owned());
        if !failing.is_held() {
            failing.in_a_row.insert(stripe);
            failing.probe_at = now + PAUSE_FIRST;
        }
    }

    /// A stripe that was in this condition was rebuilt: so others can be.
    pub(super) fn done(&mut self, condition: &Condition) {
        if let Some(failing) = self.0.get_mut(condition) {
            failing.in_a_row.clear();
            failing.pause = Pause::new(PAUSE_FIRST, PAUSE_LAST);
        }
    }

    /// Forgets conditions that no longer occur.
    pub(super) fn tidy(&mut self, tally: &Tally) {
        self.0.retain(|condition, _| tally.stripes_in(condition).is_some());
    }

    /// Nothing waits any more.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// Some of the stripes that wait, which are tried now; at most `limit`.
    pub(super) fn probes(
        &mut self,
        tally: &Tally,
        limit: usize,
        is_due: impl Fn(&Condition) -> bool,
        is_out: impl Fn(StripeId) -> bool,
        now: Time,
    ) -> Vec<StripeId> {
        let mut found = Vec::new();
        let mut due: Vec<_> = self.0.iter_mut().filter(|(it, failing)| failing.is_probed(now) && is_due(it)).collect();
        due.sort_by_key(|(condition, _)| condition.order());
        for (condition, failing) in due {
            let Some(stripes) = tally.stripes_in(condition).filter(|_| found.len() < limit) else { continue };
            failing.probe_at = now + failing.pause.again();
            for _ in 0..PROBES.min(limit - found.len()) {
                let probe = failing.probe(stripes).filter(|stripe| !is_out(*stripe) && !found.contains(stripe));
                found.extend(probe);
            }
        }
        found
    }
}

impl Failing {
    fn is_held(&self) -> bool {
        self.in_a_row.len() >= HELD_AFTER
    }

    /// The next one to try: in turn one of a sequence that soon finds where others can be rebuilt, and one in order, so that each has its
    /// turn.
    fn probe(&mut self, stripes: &BTreeSet<StripeId>) -> Option<StripeId> {
        self.probes = self.probes.wrapping_add(1);
        if self.probes.is_multiple_of(2) {
            return spread(stripes, self.probes / 2);
        }
        let next = stripes.range((Bound::Excluded(self.after), Bound::Unbounded)).next().or_else(|| stripes.first());
        self.after = *next?;
        next.copied()
    }

    fn is_probed(&self, now: Time) -> bool {
        self.is_held() && self.probe_at <= now
    }
}

/// The `nth` of a sequence that covers the stripes evenly: the first, one in the middle, at a quarter, at three quarters, and so on.
fn spread(stripes: &BTreeSet<StripeId>, nth: u32) -> Option<StripeId> {
    let (first, last) = (stripes.first()?.0, stripes.last()?.0);
    let offset = (u128::from(last - first) * u128::from(nth.reverse_bits())) >> 32;
    let from = first.saturating_add(u64::try_from(offset).unwrap_or(u64::MAX));
    stripes.range(StripeId(from)..).next().copied()
}
