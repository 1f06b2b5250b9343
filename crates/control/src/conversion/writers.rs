//! Chooses the agent that writes a stripe of a conversion: the one with the most of its data that is not fully busy.

use crate::view::{Standing, View};
use rand::{Rng, RngCore};
use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};
use weft_types::{NodeId, Span, StripeRecord};

/// The number of stripes that each node is writing.
#[derive(Debug)]
pub struct Writers {
    stripes: BTreeMap<NodeId, u32>,
    /// The most that a node writes at the same time.
    each_max: u32,
}

impl Writers {
    /// With at most `each_max` concurrent stripes for a node.
    pub fn new(each_max: u32) -> Self {
        Self { stripes: BTreeMap::new(), each_max }
    }

    /// A node starts to write a stripe.
    pub fn begins(&mut self, node: NodeId) {
        *self.stripes.entry(node).or_default() += 1;
    }

    /// A node has finished a stripe, with any outcome.
    pub fn ends(&mut self, node: NodeId) {
        if let Some(count) = self.stripes.get_mut(&node) {
            *count -= 1;
        }
        self.stripes.retain(|_, count| *count > 0);
    }

    /// The node with the most of a stripe's data and, of equal ones, the least busy. Fully busy nodes and nodes in
    /// `tried` are excluded. A suspect node comes last.
    pub fn choose(
        &self,
        near: &BTreeMap<NodeId, u64>,
        tried: &BTreeSet<NodeId>,
        view: &View,
        rng: &mut dyn RngCore,
    ) -> Option<NodeId> {
        let candidates = view.nodes.values().filter(|node| node.up && !tried.contains(&node.id));
        let loaded = candidates.map(|node| (node, self.stripes.get(&node.id).copied().unwrap_or(0)));
        let ranked = loaded.filter(|(_, stripes)| *stripes < self.each_max).map(|(node, stripes)| {
            let bytes = near.get(&node.id).copied().unwrap_or(0);
            ((node.is_suspect(), Reverse(bytes), stripes, rng.random::<u32>()), node.id)
        });
        ranked.min().map(|(_, node)| node)
    }
}

/// How many of these bytes of an object each node can read locally.
pub fn near(old: &[StripeRecord], data: Span, view: &View) -> BTreeMap<NodeId, u64> {
    let mut near = BTreeMap::new();
    for stripe in old {
        let first = stripe.object_offset();
        let part = data.intersect(Span::new(first, first + stripe.layout.data_len));
        if part.is_empty() {
            continue;
        }
        let within = Span::new(part.start - first, part.end - first);
        for (index, placed) in stripe.all() {
            // With one data block, every block is a copy of it.
            let bytes = match (stripe.layout.k, u32::from(index)) {
                (1, _) => part.len(),
                (k, index) if index < k => stripe.layout.block_range(index, within).len(),
                _ => 0,
            };
            if bytes > 0 && view.standing_of(stripe, index, placed) == Standing::Good {
                *near.entry(placed.home.node).or_default() += bytes;
            }
        }
    }
    near
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{self, home, view};
    use rand::{SeedableRng, rngs::StdRng};
    use std::time::Duration;
    use weft_types::{Layout, PlacedBlock, StripeId, StripeLayout};

    const LEN: u64 = 1 << 20;

    fn stripe(number: u64, k: u32, nodes: &[u32]) -> StripeRecord {
        let layout = Layout { block_len: LEN, cell_len: LEN, alpha: 1 };
        let layout = StripeLayout { layout, k, m: nodes.len() as u32 - k, data_len: LEN * u64::from(k) };
        let any = fixtures::stripe();
        let placed = |node: &u32| PlacedBlock { home: home(*node), ..any.blocks[&0] };
        let blocks = (0..=u8::MAX).zip(nodes.iter().map(placed)).collect();
        StripeRecord { id: StripeId(number + 1), number, layout, blocks, checksums: Vec::new(), ..any }
    }

    #[test]
    fn nodes_with_copies_or_data_are_near_and_nodes_that_are_down_are_not() {
        let view = view(6, &[3]);
        let near = |old: &[StripeRecord], start, end| {
            let near = near(old, Span::new(start, end), &view);
            near.into_iter().map(|(node, bytes)| (node.0, bytes)).collect::<Vec<_>>()
        };
        // With replicas, each block is all of the data.
        let replicas = [stripe(0, 1, &[1, 2, 3]), stripe(1, 1, &[2, 3, 4])];
        assert_eq!(near(&replicas, 0, 2 * LEN), [(1, LEN), (2, 2 * LEN), (4, LEN)]);
        assert_eq!(near(&replicas, LEN + 10, LEN + 30), [(2, 20), (4, 20)]);
        // With coded data, only data blocks can be read directly.
        let coded = [stripe(0, 3, &[4, 3, 2, 5, 6])];
        assert_eq!(near(&coded, 0, 3 * LEN), [(2, LEN), (4, LEN)]);
        assert_eq!(near(&coded, LEN, 2 * LEN + 5), [(2, 5)]);
        // With copies, each copy of a data block counts.
        let mut hot = [stripe(0, 2, &[1, 3, 5])];
        let second = |index: u8, node: u32| (index, PlacedBlock { copy: 1, ..stripe(0, 1, &[node]).blocks[&0] });
        hot[0].copies = vec![second(0, 2), second(1, 4)];
        assert_eq!(near(&hot, 0, 2 * LEN), [(1, LEN), (2, LEN), (4, LEN)]);
    }

    #[test]
    fn the_nearest_node_writes_unless_it_is_fully_busy_or_failed_recently() {
        let (mut writers, mut view, mut rng) = (Writers::new(2), view(4, &[4]), StdRng::seed_from_u64(1));
        let near: BTreeMap<NodeId, u64> = [(2, 50), (3, 40), (4, 90)].map(|(node, bytes)| (NodeId(node), bytes)).into();
        let mut choose = |writers: &Writers, view: &View, tried: &[u32]| {
            let tried = tried.iter().copied().map(NodeId).collect();
            writers.choose(&near, &tried, view, &mut rng).map(|node| node.0)
        };
        assert_eq!(
            [&[][..], &[2], &[2, 3], &[1, 2, 3]].map(|tried| choose(&writers, &view, tried)),
            [Some(2), Some(3), Some(1), None]
        );
        writers.begins(NodeId(2));
        assert_eq!(choose(&writers, &view, &[]), Some(2), "it still has more of the data");
        writers.begins(NodeId(2));
        assert_eq!(choose(&writers, &view, &[]), Some(3), "it is fully busy");
        writers.ends(NodeId(2));
        view.nodes.get_mut(&NodeId(2)).unwrap().suspect_for = Duration::from_secs(9);
        assert_eq!(choose(&writers, &view, &[]), Some(3));
        assert_eq!(choose(&writers, &view, &[1, 3]), Some(2), "no other node is left");
    }

    #[test]
    fn of_equally_near_nodes_the_least_busy_one_writes() {
        let (mut writers, view, mut rng) = (Writers::new(4), view(3, &[]), StdRng::seed_from_u64(1));
        for _ in 0..12 {
            let node = writers.choose(&BTreeMap::new(), &BTreeSet::new(), &view, &mut rng).unwrap();
            writers.begins(node);
            let counts = (1..=3).map(|node| writers.stripes.get(&NodeId(node)).copied().unwrap_or(0));
            let (least, most) = counts.fold((9, 0), |(least, most), count| (count.min(least), count.max(most)));
            assert!(most - least <= 1, "{writers:?}");
        }
        assert_eq!(writers.choose(&BTreeMap::new(), &BTreeSet::new(), &view, &mut rng), None);
    }
}
