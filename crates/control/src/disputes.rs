//! Nodes that blame each other. Either end of a failing link may be at fault. A node that is in disputes with several
//! others, each of which has fewer disputes, is their common cause.

use crate::Time;
use std::{collections::BTreeMap, time::Duration};
use weft_types::NodeId;

/// A node in disputes with at least this many others may be at fault.
const PEERS_MIN: usize = 2;
/// The most disputes that are remembered; more say nothing about any single node.
const DISPUTES_MAX: usize = 1_000;

/// Recent disputes, and when each was last recorded.
#[derive(Debug, Default)]
pub struct Disputes {
    pairs: BTreeMap<(NodeId, NodeId), Time>,
    /// The nodes that appear to be at fault now, and when each was last in a dispute.
    at_fault: BTreeMap<NodeId, Time>,
}

impl Disputes {
    /// Records that one of two nodes blamed the other, and forgets disputes older than `kept`.
    pub fn note(&mut self, one: NodeId, other: NodeId, now: Time, kept: Duration) {
        self.pairs.retain(|_, at| now.since(*at) <= kept);
        let pair = (one.min(other), one.max(other));
        if self.pairs.len() < DISPUTES_MAX || self.pairs.contains_key(&pair) {
            self.pairs.insert(pair, now);
        }
        self.judge();
    }

    /// Forgets the disputes of a node that has restarted.
    pub fn forget(&mut self, node: NodeId) {
        self.pairs.retain(|(one, other), _| *one != node && *other != node);
        self.judge();
    }

    /// When a node at fault was last in a dispute; `None` if it is not at fault.
    pub fn at_fault_since(&self, node: NodeId) -> Option<Time> {
        self.at_fault.get(&node).copied()
    }

    /// The nodes with which a node is in disputes.
    pub fn peers(&self, node: NodeId) -> Vec<NodeId> {
        let other = |(one, other): &(NodeId, NodeId)| match node {
            _ if *one == node => Some(*other),
            _ if *other == node => Some(*one),
            _ => None,
        };
        self.pairs.keys().filter_map(other).collect()
    }

    /// A node is at fault if it is in disputes with several nodes, each of which has fewer. If two nodes fail, all
    /// others come to blame both, and the others are not at fault.
    fn judge(&mut self) {
        let mut peers: BTreeMap<NodeId, BTreeMap<NodeId, Time>> = BTreeMap::new();
        for ((one, other), at) in &self.pairs {
            peers.entry(*one).or_default().insert(*other, *at);
            peers.entry(*other).or_default().insert(*one, *at);
        }
        let count = |node: &NodeId| peers.get(node).map_or(0, BTreeMap::len);
        let is_at_fault = |(node, own): &(&NodeId, &BTreeMap<NodeId, Time>)| {
            own.len() >= PEERS_MIN && own.keys().all(|peer| count(peer) < count(node))
        };
        let last = |(node, own): (&NodeId, &BTreeMap<NodeId, Time>)| Some((*node, own.values().copied().max()?));
        self.at_fault = peers.iter().filter(is_at_fault).filter_map(last).collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEPT: Duration = Duration::from_secs(30);

    fn at(seconds: u64) -> Time {
        Time::after(Duration::from_secs(seconds))
    }

    fn at_fault(disputes: &Disputes) -> Vec<u32> {
        disputes.at_fault.keys().map(|node| node.0).collect()
    }

    #[test]
    fn the_common_node_of_several_disputes_is_at_fault() {
        let mut disputes = Disputes::default();
        let mut note = |one: u32, other: u32, seconds| {
            disputes.note(NodeId(one), NodeId(other), at(seconds), KEPT);
            at_fault(&disputes)
        };
        // Node 8 has no link to nodes 2 and 6, which are blamed in turn.
        assert_eq!(note(6, 8, 0), [] as [u32; 0]);
        assert_eq!(note(8, 6, 4), [] as [u32; 0], "the same dispute from the other end");
        assert_eq!(note(2, 8, 8), [8]);
        assert_eq!(note(6, 8, 12), [8], "not the node that only it blames");
        assert_eq!(note(3, 2, 13), [] as [u32; 0], "2 and 8 have two disputes each");
        assert_eq!(note(6, 8, 50), [] as [u32; 0], "earlier disputes are forgotten");
    }

    #[test]
    fn nodes_that_complain_of_two_that_fail_are_not_at_fault() {
        let mut disputes = Disputes::default();
        for accuser in [1, 2, 3] {
            for failed in [8, 9] {
                disputes.note(NodeId(failed), NodeId(accuser), at(u64::from(accuser)), KEPT);
            }
        }
        assert_eq!(at_fault(&disputes), [8, 9]);
        assert_eq!(disputes.at_fault_since(NodeId(8)), Some(at(3)));
        disputes.forget(NodeId(8));
        assert_eq!(at_fault(&disputes), [9], "8 has restarted");
    }

    #[test]
    fn disputes_are_bounded() {
        let mut disputes = Disputes::default();
        for node in 0..=DISPUTES_MAX as u32 {
            disputes.note(NodeId(node), NodeId(u32::MAX), at(0), KEPT);
        }
        assert_eq!(disputes.pairs.len(), DISPUTES_MAX);
    }
}
