//! The locks on ranges of one data block, and the numbers of its stream.
//!
//! A lock is held until the outcome of its update is known, so of two updates that overlap, the later one has the higher number and begins
//! when the earlier one has ended. Disjoint ones run at the same time. Who waits is served in order: a wide range is not overtaken for
//! ever.

use crate::{
    mutation::{Rule, dropped},
    types::{Incarnation, UpdateId},
};
use std::collections::{BTreeMap, VecDeque};
use weft_types::Span;

/// Who needs a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Holder {
    /// The update.
    pub(crate) id: UpdateId,
    /// The stream whose node leads the update.
    pub(crate) lead: u8,
    /// The life of that node.
    pub(crate) incarnation: Incarnation,
    /// The update's number there; 0 for the updates that this node leads.
    pub(crate) lead_number: u64,
    /// The range.
    pub(crate) span: Span,
}

/// The locks of a data block.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(crate) struct Locks {
    given: BTreeMap<UpdateId, (Holder, u64)>,
    waiting: VecDeque<Holder>,
    /// The highest number given.
    last: u64,
}

impl Locks {
    /// Requests a lock. Returns `false` if `waiting_max` others wait already. [`give`](Self::give) says who has got one.
    pub(crate) fn request(&mut self, holder: Holder, waiting_max: usize) -> bool {
        if self.given.contains_key(&holder.id) || self.waiting.iter().any(|other| other.id == holder.id) {
            return true;
        }
        if self.waiting.len() >= waiting_max {
            return false;
        }
        self.waiting.push_back(holder);
        true
    }

    /// Gives locks and numbers to all that need not wait any more.
    pub(crate) fn give(&mut self) -> Vec<(Holder, u64)> {
        let mut given = Vec::new();
        let mut still = VecDeque::new();
        for holder in std::mem::take(&mut self.waiting) {
            let meets = |other: &Holder| !other.span.intersect(holder.span).is_empty() && !dropped(Rule::RangeLocks);
            if self.given.values().any(|(other, _)| meets(other)) || still.iter().any(meets) {
                still.push_back(holder);
                continue;
            }
            self.last += 1;
            self.given.insert(holder.id, (holder, self.last));
            given.push((holder, self.last));
        }
        self.waiting = still;
        given
    }

    /// Locks the range of a record that a restarted node finds undecided.
    pub(crate) fn restore(&mut self, holder: Holder, number: u64) {
        self.given.insert(holder.id, (holder, number));
        self.skip_to(number);
    }

    /// Numbers up to this one are not given any more.
    pub(crate) fn skip_to(&mut self, number: u64) {
        self.last = self.last.max(number);
    }

    /// Releases a lock, or stops waiting for it.
    pub(crate) fn release(&mut self, id: UpdateId) {
        self.given.remove(&id);
        self.waiting.retain(|holder| holder.id != id);
    }

    /// The number of an update that holds its lock.
    pub(crate) fn number(&self, id: UpdateId) -> Option<u64> {
        self.given.get(&id).map(|(_, number)| *number)
    }

    /// The highest number that was given or skipped.
    pub(crate) fn last(&self) -> u64 {
        self.last
    }

    /// Everyone that holds a lock or waits for one.
    pub(crate) fn holders(&self) -> impl Iterator<Item = Holder> + '_ {
        self.given.values().map(|(holder, _)| *holder).chain(self.waiting.iter().copied())
    }

    /// How many numbers lie above the watermark: participants keep a record for each.
    pub(crate) fn lag(&self) -> u64 {
        self.last - self.watermark()
    }

    /// All updates up to this number are decided.
    pub(crate) fn watermark(&self) -> u64 {
        self.given.values().map(|(_, number)| number - 1).min().unwrap_or(self.last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Session;

    fn id(counter: u64) -> UpdateId {
        UpdateId { session: Session { number: 1, ends_at_ms: 1 }, counter, lead: 0 }
    }

    fn holder(counter: u64, start: u64, end: u64) -> Holder {
        Holder { id: id(counter), lead: 0, incarnation: Incarnation::default(), lead_number: 0, span: Span::new(start, end) }
    }

    fn given(locks: &mut Locks) -> Vec<(u64, u64)> {
        locks.give().into_iter().map(|(holder, number)| (holder.id.counter, number)).collect()
    }

    #[test]
    fn overlapping_updates_wait_in_order_and_disjoint_ones_do_not() {
        let mut locks = Locks::default();
        for holder in [holder(1, 0, 10), holder(2, 5, 15), holder(3, 20, 30), holder(4, 12, 20)] {
            assert!(locks.request(holder, 9));
        }
        // The last one meets no lock, but one that has waited for longer.
        assert_eq!(given(&mut locks), [(1, 1), (3, 2)]);
        assert_eq!(locks.watermark(), 0);
        locks.release(id(1));
        assert_eq!(given(&mut locks), [(2, 3)]);
        assert_eq!(locks.watermark(), 1, "the update with number 2 is undecided");
        locks.release(id(3));
        assert_eq!(locks.watermark(), 2);
        locks.release(id(2));
        assert_eq!(given(&mut locks), [(4, 4)]);
    }

    #[test]
    fn a_repeated_request_changes_nothing_and_waiting_is_bounded() {
        let mut locks = Locks::default();
        assert!(locks.request(holder(1, 0, 10), 1));
        assert_eq!(given(&mut locks), [(1, 1)]);
        assert!(locks.request(holder(1, 0, 10), 1) && locks.request(holder(2, 0, 10), 1));
        assert!(locks.request(holder(2, 0, 10), 1) && !locks.request(holder(3, 0, 10), 1));
        assert_eq!(given(&mut locks), []);
    }
}
