//! Nodes that complain of each other. A link that does not work has two ends, and either may be at fault: a node that is in a dispute with
//! several others is what those disputes have in common.

use crate::Time;
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};
use weft_types::NodeId;

/// A node in disputes with so many others is suspect.
const PEERS_MIN: usize = 2;
/// Disputes that are remembered; more say nothing of any single node.
const DISPUTES_MAX: usize = 10_000;

/// Disputes of late, and when each was last noted.
#[derive(Debug, Default)]
pub struct Disputes(BTreeMap<(NodeId, NodeId), Time>);

impl Disputes {
    /// Notes that one of these nodes complained of the other, and forgets disputes that are older than `kept`. Tells which of the two are
    /// in disputes with several nodes.
    pub fn note(&mut self, node: NodeId, accuser: NodeId, now: Time, kept: Duration) -> BTreeSet<NodeId> {
        self.0.retain(|_, at| now.since(*at) <= kept);
        let pair = (node.min(accuser), node.max(accuser));
        if self.0.len() < DISPUTES_MAX || self.0.contains_key(&pair) {
            self.0.insert(pair, now);
        }
        let peers = |node: NodeId| self.0.keys().filter(|(one, other)| *one == node || *other == node).count();
        [node, accuser].into_iter().filter(|node| peers(*node) >= PEERS_MIN).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEPT: Duration = Duration::from_secs(30);

    fn at(seconds: u64) -> Time {
        Time::after(Duration::from_secs(seconds))
    }

    #[test]
    fn what_several_disputes_have_in_common_is_suspect() {
        let mut disputes = Disputes::default();
        let mut note = |node: u32, accuser: u32, seconds| {
            disputes.note(NodeId(node), NodeId(accuser), at(seconds), KEPT).into_iter().map(|node| node.0).collect::<Vec<_>>()
        };
        // Node 8 has no link to 2 and 6, which are blamed in turn.
        assert_eq!(note(6, 8, 0), [] as [u32; 0]);
        assert_eq!(note(8, 6, 4), [] as [u32; 0], "the same dispute, seen from the other end");
        assert_eq!(note(2, 8, 8), [8]);
        assert_eq!(note(6, 8, 12), [8], "and not the node that it alone blames");
        assert_eq!(note(3, 2, 13), [2]);
        assert_eq!(note(6, 8, 50), [] as [u32; 0], "what is long ago says nothing");
    }

    #[test]
    fn disputes_are_bounded() {
        let mut disputes = Disputes::default();
        for node in 0..=DISPUTES_MAX as u32 {
            disputes.note(NodeId(node), NodeId(u32::MAX), at(0), KEPT);
        }
        assert_eq!(disputes.0.len(), DISPUTES_MAX);
    }
}
