//! When the allocations of a rebuild are renewed. A rebuild that makes progress keeps them, however slow it is; one that makes none loses
//! them at the end of their lease.

use crate::Time;
use std::{collections::BTreeMap, time::Duration};
use weft_types::NodeId;

/// Which part of its lease must be over before an allocation is renewed: each renewal is a durable change.
const RENEWED_AFTER: u32 = 4;

/// How many times as long as links may be silent longer because of the limit on repair, a lease is longer: three quarters of it are left
/// when it is renewed at the latest, and a plan that fails in silence may be followed by one whose first slice takes as long.
const EXTRA_STALLS: u32 = 4;

/// The length of a lease that is `usual` without a limit on repair. `extra_stall`: how much longer links may be silent because of it.
pub fn lease_len(usual: Duration, extra_stall: Duration) -> Duration {
    usual.saturating_add(extra_stall.saturating_mul(EXTRA_STALLS))
}

/// The lease of a rebuild's allocations, while one of its plans runs.
#[derive(Debug)]
pub struct Lease {
    /// `None` if it may end at any time.
    ends_at: Option<Time>,
    /// The last progress.
    moved_at: Option<Time>,
    /// What each node has moved, bytes.
    moved: BTreeMap<NodeId, u64>,
}

impl Lease {
    /// For a plan that starts. `allocated`: when the blocks were allocated, and for how long; `None` if earlier plans may have used up most
    /// of the lease.
    pub fn new(allocated: Option<(Time, Duration)>) -> Self {
        Self { ends_at: allocated.map(|(at, len)| at + len), moved_at: allocated.map(|(at, _)| at), moved: BTreeMap::new() }
    }

    /// A node has moved this many bytes since the plan's start. Returns whether the allocations must be renewed now, for `len`, the length
    /// of a lease as of now. If that has grown, what has moved before suffices.
    pub fn told(&mut self, node: NodeId, moved_bytes: u64, len: Duration, now: Time) -> bool {
        let before = self.moved.insert(node, moved_bytes).unwrap_or(0);
        if moved_bytes > before {
            self.moved_at = Some(now);
        }
        let Some(moved_at) = self.moved_at else { return false };
        let is_due = self.ends_at.is_none_or(|ends_at| (moved_at + len).since(ends_at) >= len / RENEWED_AFTER);
        if is_due {
            self.ends_at = Some(now + len);
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: Duration = Duration::from_secs(40);

    fn at(s: u64) -> Time {
        Time::after(Duration::from_secs(1_000 + s))
    }

    #[test]
    fn progress_of_any_node_renews_and_none_does_not() {
        let (mut lease, one, two) = (Lease::new(None), NodeId(1), NodeId(2));
        assert!(!lease.told(one, 0, LEN, at(0)), "nothing has moved");
        assert!(lease.told(one, 1, LEN, at(0)));
        assert!(!lease.told(one, 2, LEN, at(9)), "a quarter of the lease is not over");
        assert!(!lease.told(two, 0, LEN, at(10)));
        assert!(lease.told(one, 3, LEN, at(10)));
        for s in 11..100 {
            assert!(!lease.told(one, 3, LEN, at(s)), "nothing has moved for {s} s");
        }
        assert!(lease.told(two, 1, LEN, at(100)), "one byte suffices");
        let mut fresh = Lease::new(Some((at(0), LEN)));
        assert!(
            !fresh.told(one, 1, LEN, at(9)) && fresh.told(one, 2, LEN, at(10)),
            "a repair that takes a moment renews nothing"
        );
    }

    #[test]
    fn a_lease_does_not_end_between_two_slices_at_a_low_limit() {
        let (usual, silent, node) = (Duration::from_secs(60), Duration::from_secs(10), NodeId(1));
        let extra = Duration::from_secs(256);
        let mut lease_of = Lease::new(Some((at(0), usual)));
        assert!(!lease_of.told(node, 1, usual, at(5)));
        let mut ends_at = at(0) + usual;
        // The limit is lowered at once, and the next slice comes after as long as its link may be silent.
        let len = lease_len(usual, extra);
        for (slice, slices) in (1..).zip(std::iter::repeat_n(silent + extra, 5)) {
            let from = 5 + (slice - 1) * slices.as_secs();
            for s in from..from + slices.as_secs() {
                if lease_of.told(node, slice, len, at(s)) {
                    ends_at = at(s) + len;
                }
                assert!(at(s) < ends_at, "it ended after {s} s");
            }
        }
        assert_eq!(lease_len(usual, Duration::ZERO), usual);
    }
}
