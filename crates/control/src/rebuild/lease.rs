//! When the allocations of a rebuild are renewed. A rebuild that makes progress keeps them, however slow it is; one that makes none loses
//! them at the end of their lease.

use crate::Time;
use std::{collections::BTreeMap, time::Duration};
use weft_types::NodeId;

/// Which part of its lease must be over before an allocation is renewed: each renewal is a durable change.
const RENEWED_AFTER: u32 = 4;

/// The lease of a rebuild's allocations, while one of its plans runs.
#[derive(Debug)]
pub struct Lease {
    len: Duration,
    /// `None` if it is due with the first progress.
    renewed_at: Option<Time>,
    /// What each node has moved, bytes.
    moved: BTreeMap<NodeId, u64>,
    has_moved: bool,
}

impl Lease {
    /// Of this length, for a plan that starts. `allocated_at`: when the blocks were allocated; `None` if earlier plans may have used up
    /// most of the lease.
    pub fn new(len: Duration, allocated_at: Option<Time>) -> Self {
        Self { len, renewed_at: allocated_at, moved: BTreeMap::new(), has_moved: false }
    }

    /// A node has moved this many bytes since the plan's start. Returns whether the allocations must be renewed now.
    pub fn told(&mut self, node: NodeId, moved_bytes: u64, now: Time) -> bool {
        let before = self.moved.insert(node, moved_bytes).unwrap_or(0);
        self.has_moved |= moved_bytes > before;
        let is_due = self.has_moved && self.renewed_at.is_none_or(|at| now.since(at) >= self.len / RENEWED_AFTER);
        if is_due {
            (self.renewed_at, self.has_moved) = (Some(now), false);
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_of_any_node_renews_and_none_does_not() {
        let at = |s: u64| Time::after(Duration::from_secs(1_000 + s));
        let (mut lease, one, two) = (Lease::new(Duration::from_secs(40), None), NodeId(1), NodeId(2));
        assert!(!lease.told(one, 0, at(0)), "nothing has moved");
        assert!(lease.told(one, 1, at(0)));
        assert!(!lease.told(one, 2, at(9)), "a quarter of the lease is not over");
        assert!(!lease.told(two, 0, at(9)));
        assert!(lease.told(two, 0, at(10)), "the first node has moved since");
        for s in 11..100 {
            assert!(!lease.told(one, 2, at(s)), "nothing has moved for {s} s");
        }
        assert!(lease.told(two, 1, at(100)), "one byte suffices");
        let mut fresh = Lease::new(Duration::from_secs(40), Some(at(0)));
        assert!(!fresh.told(one, 1, at(9)) && fresh.told(one, 1, at(10)), "a repair that takes a moment renews nothing");
    }
}
