//! How often clients read stripes with bad blocks.

use crate::Time;
use std::{collections::BTreeMap, time::Duration};
use weft_types::StripeId;

/// The most stripes whose reads are counted: some megabytes.
pub(super) const COUNTED_MAX: usize = 65_536;
/// After this time, a read counts half. This is less than the default grace of a silent node, so when the repair of a node begins, the counts
/// show recent reads; and it is long enough for a popular stripe to be read several times.
const HALF_LIFE: Duration = Duration::from_secs(600);

/// The recent reads of stripes. A stripe that is not in it has none.
#[derive(Debug, Default)]
pub(super) struct Reads {
    counts: BTreeMap<StripeId, u32>,
    halved_at: Time,
}

impl Reads {
    /// The recent reads of a stripe.
    pub(super) fn of(&self, stripe: StripeId) -> u32 {
        self.counts.get(&stripe).copied().unwrap_or(0)
    }

    /// Counts a read. Returns whether all counts have changed.
    ///
    /// If there is no place for another stripe, all counts are halved at once, and those that become zero are forgotten. A halving takes a
    /// bit from every count, and a read adds at most one bit to one count. So there is at most one such halving for every
    /// [`COUNTED_MAX`] reads, and a read costs little however many different stripes are read.
    pub(super) fn count(&mut self, stripe: StripeId, now: Time) -> bool {
        let is_full = |counts: &BTreeMap<_, _>| counts.len() >= COUNTED_MAX && !counts.contains_key(&stripe);
        let due = u32::try_from(now.since(self.halved_at).as_secs() / HALF_LIFE.as_secs()).unwrap_or(u32::MAX);
        self.halved_at = self.halved_at + HALF_LIFE * due;
        let halvings = due.max(u32::from(is_full(&self.counts)));
        if halvings > 0 {
            self.counts.retain(|_, count| {
                *count = count.checked_shr(halvings).unwrap_or(0);
                *count > 0
            });
        }
        if !is_full(&self.counts) {
            let count = self.counts.entry(stripe).or_default();
            *count = count.saturating_add(1);
        }
        halvings > 0
    }

    /// Forgets the reads of a stripe.
    pub(super) fn forget(&mut self, stripe: StripeId) {
        self.counts.remove(&stripe);
    }

    /// How many stripes are counted.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.counts.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(minutes: u64) -> Time {
        Time::after(Duration::from_secs(60 * minutes))
    }

    #[test]
    fn reads_count_less_and_less() {
        let (mut reads, stripe, other) = (Reads::default(), StripeId(1), StripeId(2));
        (0..8).for_each(|_| assert!(!reads.count(stripe, at(9))));
        assert!(reads.count(other, at(10)));
        assert_eq!((reads.of(stripe), reads.of(other)), (4, 1));
        assert!(!reads.count(other, at(19)));
        assert!(reads.count(other, at(39)), "two intervals later");
        assert_eq!((reads.of(stripe), reads.of(other), reads.len()), (1, 1, 2));
        assert!(reads.count(other, at(1_000_000_000)));
        assert_eq!((reads.of(stripe), reads.of(other), reads.len()), (0, 1, 1));
        reads.forget(other);
        assert_eq!((reads.of(other), reads.len()), (0, 0));
    }

    #[test]
    fn however_many_stripes_are_read_the_memory_is_bounded_and_the_most_read_ones_stay() {
        const ALL: u64 = 10 * COUNTED_MAX as u64;
        let (mut reads, mut halvings) = (Reads::default(), 0);
        for cold in 0..ALL {
            halvings += usize::from(reads.count(StripeId(10 + cold), at(0)));
            if cold % 100 == 0 {
                halvings += usize::from(reads.count(StripeId(cold / 100 % 2), at(0)));
            }
            assert!(reads.len() <= COUNTED_MAX);
        }
        assert!(halvings <= 11, "{halvings}");
        assert!(reads.of(StripeId(0)) > 100 && reads.of(StripeId(1)) > 100);

        // Full of stripes with many reads, a new one has a place after a few of its own.
        let mut reads = Reads::default();
        (0..COUNTED_MAX as u64).for_each(|id| (0..100).for_each(|_| assert!(!reads.count(StripeId(id), at(0)))));
        let needed = (1..).find(|_| {
            reads.count(StripeId(u64::MAX), at(0));
            reads.of(StripeId(u64::MAX)) > 0
        });
        assert_eq!(needed, Some(7), "a hundred has seven bits");
    }
}
