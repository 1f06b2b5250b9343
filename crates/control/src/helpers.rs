//! Selects the nodes that help a repair when more could help than are needed (ECPipe, §3.3). Over many stripes the work
//! must be spread evenly.
//!
//! `lru` takes the nodes that have not helped for the longest time. It needs one number for each node. Over the stripes of
//! a whole node, every survivor helps about equally often, as far as the placement allows. A schedule ([`crate::schedule`])
//! knows all stripes and all links, and is better.

use rand::{RngCore, seq::SliceRandom};
use std::collections::BTreeMap;
use weft_types::{HelperSelect, NodeId};

/// When each node was last selected. Kept in memory: after a restart all nodes are equal, and after a few stripes it
/// makes no difference.
#[derive(Debug, Clone, Default)]
pub struct LastUsed {
    /// Counts selections instead of time, so that the same order of repairs selects the same helpers.
    now: u64,
    last: BTreeMap<NodeId, u64>,
}

impl LastUsed {
    /// The nodes in order of preference.
    pub fn order(&self, select: HelperSelect, mut nodes: Vec<NodeId>, rng: &mut dyn RngCore) -> Vec<NodeId> {
        match select {
            HelperSelect::Random | HelperSelect::Schedule => nodes.shuffle(&mut *rng),
            HelperSelect::Index => nodes.sort_unstable(),
            // The others are scheduled, and come here only for what a schedule leaves open.
            HelperSelect::Lru
            | HelperSelect::Boost
            | HelperSelect::Balance
            | HelperSelect::LruStripe
            | HelperSelect::Sequential
            | HelperSelect::Polling => nodes.sort_by_key(|node| (self.last.get(node).copied().unwrap_or(0), *node)),
        }
        nodes
    }

    /// Records that these nodes help. Each gets a time of its own, in the order in which they were due. If all helpers
    /// of a stripe had the same time, ties would go to the lowest numbers, which would then help in every stripe.
    pub fn selected(&mut self, nodes: impl IntoIterator<Item = NodeId>) {
        let mut due: Vec<(u64, NodeId)> =
            nodes.into_iter().map(|node| (self.last.get(&node).copied().unwrap_or(0), node)).collect();
        due.sort_unstable();
        for (_, node) in due {
            self.now += 1;
            self.last.insert(node, self.now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{SeedableRng, rngs::StdRng};

    const K: usize = 4;

    /// How often each of `nodes` helps, over many stripes with `held` remaining blocks on random nodes: the least and
    /// the most.
    fn load(select: HelperSelect, nodes: u32, held: usize) -> (u64, u64) {
        let (mut helpers, mut rng) = (LastUsed::default(), StdRng::seed_from_u64(3));
        let mut load: BTreeMap<NodeId, u64> = (1..=nodes).map(|node| (NodeId(node), 0)).collect();
        for _ in 0..500 {
            let mut homes: Vec<NodeId> = load.keys().copied().collect();
            homes.shuffle(&mut rng);
            homes.truncate(held);
            let chosen = helpers.order(select, homes, &mut rng);
            assert_eq!(chosen.len(), held, "nodes that are not selected come after those that are");
            helpers.selected(chosen[..K].iter().copied());
            chosen[..K].iter().for_each(|node| *load.get_mut(node).unwrap() += 1);
        }
        (load.values().copied().min().unwrap(), load.values().copied().max().unwrap())
    }

    #[test]
    fn the_least_recently_used_share_the_work() {
        // Every node has a block of every stripe, so the work can be even.
        for nodes in [5, 9, 13] {
            let (least, most) = load(HelperSelect::Lru, nodes, nodes as usize);
            assert!(most - least <= 1, "{nodes} nodes: {least} to {most}");
        }
        // Few nodes have a block of each stripe, so the placement matters too.
        let (least, most) = load(HelperSelect::Lru, 12, 6);
        let mean = 500 * K as u64 / 12;
        assert!(most - least <= mean / 5, "{least} to {most} of {mean}");
        let (least_random, most_random) = load(HelperSelect::Random, 12, 6);
        assert!(most_random - least_random > most - least, "random: {least_random} to {most_random}");
    }

    #[test]
    fn by_index_the_same_ones_always_help() {
        let mut helpers = LastUsed::default();
        for _ in 0..2 {
            let chosen = helpers.order(HelperSelect::Index, [2, 9, 1].map(NodeId).to_vec(), &mut StdRng::seed_from_u64(1));
            assert_eq!(chosen, [1, 2, 9].map(NodeId));
            helpers.selected(chosen);
        }
    }

    #[test]
    fn ties_go_to_the_lowest_number_and_clones_are_independent() {
        let helpers = LastUsed::default();
        let order = |helpers: &LastUsed| {
            helpers.order(HelperSelect::Lru, [4, 2, 3, 1].map(NodeId).to_vec(), &mut StdRng::seed_from_u64(1))
        };
        assert_eq!(order(&helpers), [1, 2, 3, 4].map(NodeId));
        let mut clone = helpers.clone();
        clone.selected([NodeId(1), NodeId(2)]);
        assert_eq!(order(&clone), [3, 4, 1, 2].map(NodeId));
        assert_eq!(order(&helpers), [1, 2, 3, 4].map(NodeId), "explaining a repair changes nothing");
    }
}
