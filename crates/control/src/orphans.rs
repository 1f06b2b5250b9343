//! When a node's blocks are compared with the metadata: at intervals, soon after a comparison that failed, and at once
//! after the node has registered again.

use crate::Time;
use std::{collections::BTreeMap, time::Duration};
use weft_types::NodeId;

/// A comparison that failed is repeated after this time or, if shorter, the normal interval.
const RETRY_AFTER: Duration = Duration::from_secs(60);

/// When each node is compared next. `R` identifies a registration.
#[derive(Debug)]
pub struct Turns<R> {
    interval: Duration,
    turns: BTreeMap<NodeId, Turn<R>>,
}

#[derive(Debug)]
struct Turn<R> {
    /// The registration that was compared last.
    registration: R,
    due: Time,
}

impl<R: PartialEq> Turns<R> {
    /// Each node is compared once in this interval.
    pub fn new(interval: Duration) -> Self {
        Self { interval, turns: BTreeMap::new() }
    }

    /// Whether a node with this registration must be compared now.
    pub fn is_due(&self, node: NodeId, registration: &R, now: Time) -> bool {
        self.turns.get(&node).is_none_or(|turn| turn.registration != *registration || turn.due <= now)
    }

    /// Records that a node was compared, and whether that succeeded.
    pub fn compared(&mut self, node: NodeId, registration: R, worked: bool, now: Time) {
        let pause = if worked { self.interval } else { self.interval.min(RETRY_AFTER) };
        self.turns.insert(node, Turn { registration, due: now + pause });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_compared_at_intervals_and_when_it_registers_again() {
        let (node, at) = (NodeId(1), |second| Time::after(Duration::from_secs(second)));
        let mut turns = Turns::new(Duration::from_secs(3_600));
        assert!(turns.is_due(node, &7, at(0)));
        turns.compared(node, 7, true, at(10));
        let due = |turns: &Turns<u32>, registration| {
            [10, 69, 70, 3_609, 3_610].map(|second| turns.is_due(node, &registration, at(second)))
        };
        assert_eq!(due(&turns, 7), [false, false, false, false, true]);
        assert_eq!(due(&turns, 8), [true; 5]);
        assert!(turns.is_due(NodeId(2), &7, at(10)));
        turns.compared(node, 7, false, at(10));
        assert_eq!(due(&turns, 7), [false, false, true, true, true]);
        let mut often = Turns::new(Duration::from_secs(5));
        often.compared(node, 7, false, at(10));
        assert_eq!([14, 15].map(|second| often.is_due(node, &7, at(second))), [false, true], "no later than after a success");
    }
}
