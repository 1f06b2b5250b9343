//! When to request the removal of garbage from nodes, and how often the log reports garbage that remains.

use crate::Time;
use std::{collections::BTreeMap, time::Duration};
use weft_types::{BlockId, GarbageReason, NodeId};

/// The pause before the next request to a node whose quota is used up.
const ASK_AGAIN_AFTER: Duration = Duration::from_secs(60);
/// How long the old file of a block waits for a rebuild that may keep what is right of it. Until then, the agent may also hold journal records of it.
const REBUILT_WITHIN_MS: u64 = 15 * 60 * 1000;
/// The shortest time between two log lines about the same kind of garbage of a node.
const TELL_EVERY: Duration = Duration::from_secs(60 * 60);

/// When the next request to each node is due, and when the log reports it next. `R` identifies a registration.
#[derive(Debug)]
pub struct Removals<R> {
    /// By node, and whether the removal is intended: the two have separate quotas. A new registration may bring other limits.
    waiting: BTreeMap<(NodeId, bool), (R, Time)>,
    /// Keyed like `waiting`, so that expected garbage never hides a warning about unexpected garbage.
    told: BTreeMap<(NodeId, bool), Time>,
    /// Where the next list of a node's garbage begins: after this time and block.
    after: BTreeMap<(NodeId, GarbageReason), Key>,
}

/// The order of garbage: when it may be removed, milliseconds since 1970, and the block.
pub type Key = (u64, BlockId);

/// Where the next list of garbage begins when a page that ended with `last` is done, also if its last blocks are still needed: after it, or with
/// the oldest if no `more` followed.
pub fn after_page(last: Option<Key>, more: bool) -> Option<Key> {
    last.filter(|_| more)
}

/// Whether the old file of a block that may be rebuilt from it still waits for that. Times are milliseconds since 1970: when it could be removed
/// first, when its node registered, and now.
pub fn waits_for_rebuild(not_before_ms: u64, registered_ms: u64, now_ms: u64) -> bool {
    now_ms < not_before_ms.max(registered_ms).saturating_add(REBUILT_WITHIN_MS)
}

impl<R> Default for Removals<R> {
    fn default() -> Self {
        Self { waiting: BTreeMap::new(), told: BTreeMap::new(), after: BTreeMap::new() }
    }
}

impl<R: PartialEq> Removals<R> {
    /// Whether to request the removal of a node's intended (`meant`) or unexpected garbage now.
    pub fn is_due(&self, node: NodeId, meant: bool, registration: &R, now: Time) -> bool {
        self.waiting.get(&(node, meant)).is_none_or(|(of, due)| of != registration || *due <= now)
    }

    /// Records that a node keeps some garbage until its quota allows more.
    pub fn waits(&mut self, node: NodeId, meant: bool, registration: R, now: Time) {
        self.waiting.insert((node, meant), (registration, now + ASK_AGAIN_AFTER));
    }

    /// Where the next list of a node's garbage begins; `None`: with the oldest.
    pub fn after(&self, node: NodeId, reason: GarbageReason) -> Option<Key> {
        self.after.get(&(node, reason)).copied()
    }

    /// Records where a list ended, or with `None` that it was the last. So blocks that a node keeps, for example on a failed disk,
    /// do not delay newer ones on its other disks.
    pub fn listed(&mut self, node: NodeId, reason: GarbageReason, last: Option<Key>) {
        match last {
            Some(last) => drop(self.after.insert((node, reason), last)),
            None => drop(self.after.remove(&(node, reason))),
        }
    }

    /// Whether the log must report now that a node keeps garbage. If so, the report counts as made.
    pub fn tells(&mut self, node: NodeId, meant: bool, now: Time) -> bool {
        let is_due = self.told.get(&(node, meant)).is_none_or(|due| *due <= now);
        if is_due {
            self.told.insert((node, meant), now + TELL_EVERY);
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_continue_after_the_last_one_and_begin_again_at_the_end() {
        use weft_types::StripeId;
        let mut removals = Removals::<u8>::default();
        let [node, other] = [1, 2].map(NodeId);
        let key = (7, BlockId { stripe: StripeId(3), index: 1, copy: 0, generation: 2 });
        removals.listed(node, GarbageReason::Removed, Some(key));
        let after = [(node, GarbageReason::Removed), (node, GarbageReason::Repaired), (other, GarbageReason::Removed)];
        assert_eq!(after.map(|(node, reason)| removals.after(node, reason)), [Some(key), None, None]);
        removals.listed(node, GarbageReason::Removed, None);
        assert_eq!(removals.after(node, GarbageReason::Removed), None);
    }

    #[test]
    fn garbage_behind_pages_of_needed_blocks_is_reached() {
        use weft_types::StripeId;
        let (node, reason) = (NodeId(1), GarbageReason::Repaired);
        let key = |stripe| (7, BlockId { stripe: StripeId(stripe), index: 1, copy: 0, generation: 2 });
        let all: Vec<Key> = (1..=10).map(key).collect();
        let mut removals = Removals::<u8>::default();
        let mut begins = Vec::new();
        // Pages of four blocks, of which none is requested.
        for _ in 0..4 {
            let after = removals.after(node, reason);
            let left: Vec<Key> = all.iter().copied().filter(|key| after.is_none_or(|after| *key > after)).collect();
            begins.push(left[0]);
            let last = left.iter().take(4).next_back().copied();
            removals.listed(node, reason, after_page(last, left.len() > 4));
        }
        assert_eq!(begins, [1, 5, 9, 1].map(key));
    }

    #[test]
    fn the_old_file_of_a_block_waits_for_a_rebuild_for_a_quarter_of_an_hour() {
        let minute = 60_000;
        for (not_before, registered, now, waits) in
            [(10, 0, 10, true), (10, 0, 24, true), (10, 0, 25, false), (10, 30, 44, true), (10, 30, 45, false), (0, 0, 25, false)]
        {
            let told = waits_for_rebuild(not_before * minute, registered * minute, now * minute);
            assert_eq!(told, waits, "{not_before}, {registered}, {now}");
        }
    }

    #[test]
    fn a_waiting_node_is_asked_once_a_minute_and_reported_once_an_hour() {
        let (node, at) = (NodeId(1), |second| Time::after(Duration::from_secs(second)));
        let mut removals = Removals::default();
        let mut counts = (0, 0);
        // A sweep every five seconds, for three hours.
        for second in (0..3 * 3_600).step_by(5) {
            if removals.is_due(node, true, &7, at(second)) {
                counts.0 += 1;
                removals.waits(node, true, 7, at(second));
            }
            counts.1 += usize::from(removals.tells(node, true, at(second)));
            // Other nodes, unexpected garbage and a new registration are not delayed.
            let due = |node, meant, registration| removals.is_due(node, meant, &registration, at(second));
            assert!(due(NodeId(2), true, 7) && due(node, false, 7) && due(node, true, 8));
        }
        assert_eq!(counts, (180, 3));
        let last = at(3 * 3_600 - 5);
        assert!(removals.tells(NodeId(2), true, last), "each node has its own hour");
        assert!(removals.tells(node, false, last), "expected garbage hides a warning about unexpected garbage");
    }
}
