//! The room that puts leave on every disk, so that the blocks of the largest node can be rebuilt on the others. Repair may use it.
//!
//! If every disk is filled up to the share `1 - s`, a node of capacity `C` holds at most `(1 - s)·C`, and the others have `s·(ΣC - C)` free.
//! So `s = C_max / ΣC` suffices for any node. A node also holds at most one of a stripe's `n` blocks, so at most an `n`th of all that is
//! stored; then `s = 1 / n` suffices too. See docs/adr/0012.

use crate::view::{DiskView, View};
use std::{collections::BTreeMap, fmt};
use weft_types::{NodeId, RebuildReserve};

/// A share of each disk, in millionths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Share(u32);

const WHOLE: u64 = 1_000_000;

impl Share {
    /// Nothing.
    pub const NONE: Self = Self(0);

    /// `part` of `whole`, rounded up.
    fn of_whole(part: u128, whole: u128) -> Self {
        let millionths = (part * u128::from(WHOLE)).div_ceil(whole.max(1));
        Self(u32::try_from(millionths.min(u128::from(WHOLE))).unwrap_or(u32::MAX))
    }

    /// The bytes of a disk of this size.
    pub fn of(self, total_bytes: u64) -> u64 {
        let bytes = u128::from(total_bytes) * u128::from(self.0) / u128::from(WHOLE);
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }

    /// Whether it is nothing.
    pub fn is_none(self) -> bool {
        self == Self::NONE
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1} %", f64::from(self.0) / (WHOLE / 100) as f64)
    }
}

/// The share of each disk that puts with stripes of `n` blocks leave free.
pub fn share(reserve: RebuildReserve, view: &View, n: usize) -> Share {
    match reserve {
        RebuildReserve::Off => Share::NONE,
        RebuildReserve::Percent(percent) => Share::of_whole(percent.into(), 100),
        RebuildReserve::Auto => needed(view, n),
    }
}

/// The bytes of usable disks that a share keeps free.
pub fn kept_bytes(view: &View, share: Share) -> u64 {
    let kept = view.usable_disks().into_iter().map(|(_, disk, sharers)| share.of(disk.total_bytes) / sharers);
    kept.fold(0, u64::saturating_add)
}

fn needed(view: &View, n: usize) -> Share {
    // Until the nodes have registered, it is unknown which of them share a file system.
    if view.coming_back {
        return Share::NONE;
    }
    let Some(capacities) = capacities(view) else { return Share::NONE };
    // Every stripe has a block on every node: nothing can be rebuilt before another node brings its own space.
    if capacities.len() <= n {
        return Share::NONE;
    }
    let largest = capacities.values().copied().max().unwrap_or(0);
    let all = capacities.values().map(|bytes| u128::from(*bytes)).sum();
    Share::of_whole(largest.into(), all).min(Share::of_whole(1, n as u128))
}

/// The capacity of each node with disks; `None` if several nodes are on one file system: then the cluster is a trial on one machine, or its
/// losses are not those of single nodes.
///
/// A node that is only down counts, because its blocks may have to be rebuilt. A lost one counts as long as they are.
fn capacities(view: &View) -> Option<BTreeMap<NodeId, u64>> {
    let blocks = |disks: &[DiskView]| disks.iter().map(|disk| disk.blocks).sum::<u64>();
    let counted = view.nodes.values().filter(|node| !node.lost || blocks(&node.disks) > 0);
    let (mut capacities, mut file_systems) = (BTreeMap::new(), BTreeMap::new());
    for (node, disk) in
        counted.flat_map(|node| node.disks.iter().map(|disk| (node.id, disk))).filter(|(_, disk)| disk.takes_blocks())
    {
        let known = if disk.file_system == 0 { None } else { file_systems.insert(disk.file_system, node) };
        match known {
            // Several directories of a node on one file system are one disk.
            Some(other) if other == node => {}
            Some(_) => return None,
            None => *capacities.entry(node).or_insert(0u64) += disk.total_bytes,
        }
    }
    Some(capacities)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;
    use proptest::prelude::*;

    /// Nodes with a disk of each of these sizes.
    fn view(sizes: &[u64]) -> View {
        let mut view = fixtures::view(sizes.len() as u32, &[]);
        for (node, size) in view.nodes.values_mut().zip(sizes) {
            (node.disks[0].total_bytes, node.disks[0].file_system) = (*size, 100 + u64::from(node.id.0));
        }
        view
    }

    fn millionths(view: &View, n: usize) -> u32 {
        share(RebuildReserve::Auto, view, n).0
    }

    #[test]
    fn the_share_is_that_of_the_largest_node_and_at_most_one_block_of_a_stripe() {
        assert_eq!(millionths(&view(&[1_000; 10]), 6), 100_000);
        assert_eq!(millionths(&view(&[1_000; 7]), 6), 142_858, "rounded up");
        assert_eq!(millionths(&view(&[2_000, 1_000, 1_000, 1_000, 1_000, 1_000, 1_000]), 3), 250_000);
        assert_eq!(
            millionths(&view(&[90_000, 1_000, 1_000, 1_000]), 3),
            333_334,
            "a third of what is stored lies on the large node"
        );
        // Nothing can be rebuilt if every node has a block of every stripe.
        assert_eq!([millionths(&view(&[1_000; 6]), 6), millionths(&view(&[1_000; 5]), 6), millionths(&view(&[]), 6)], [0; 3]);
        let many = view(&vec![1 << 44; 2_000]);
        assert_eq!((millionths(&many, 14), share(RebuildReserve::Auto, &many, 14).of(1 << 44)), (500, 8_796_093_022));
        assert_eq!(kept_bytes(&view(&[1_000; 10]), Share(100_000)), 1_000);
    }

    #[test]
    fn an_operator_can_turn_it_off_or_set_it() {
        let view = view(&[1_000; 3]);
        let of = |reserve| share(reserve, &view, 6);
        assert_eq!((of(RebuildReserve::Off), of(RebuildReserve::Percent(7))), (Share::NONE, Share(70_000)));
        assert_eq!(Share(142_858).to_string(), "14.3 %");
    }

    #[test]
    fn nothing_is_kept_if_nodes_share_a_file_system() {
        let mut one = view(&[1_000; 8]);
        one.nodes.values_mut().for_each(|node| node.disks[0].file_system = 5);
        assert_eq!(millionths(&one, 6), 0);
        one.nodes.values_mut().skip(2).for_each(|node| node.disks[0].file_system = u64::from(node.id.0) + 100);
        assert_eq!(millionths(&one, 6), 0, "two are enough");
        // Two directories of one node are no second disk.
        let mut twice = view(&[1_000; 10]);
        let node = twice.nodes.get_mut(&NodeId(3)).unwrap();
        node.disks.push(node.disks[0].clone());
        assert_eq!(millionths(&twice, 6), 100_000);
        // Nodes of an earlier version do not report file systems.
        let mut unknown = view(&[1_000; 10]);
        unknown.nodes.values_mut().for_each(|node| node.disks[0].file_system = 0);
        assert_eq!(millionths(&unknown, 6), 100_000);
    }

    #[test]
    fn a_node_counts_until_its_blocks_are_elsewhere() {
        let mut view = view(&[1_000; 10]);
        let node = view.nodes.get_mut(&NodeId(1)).unwrap();
        node.up = false;
        assert_eq!(millionths(&view, 6), 100_000, "it may come back, or must be rebuilt");
        let node = view.nodes.get_mut(&NodeId(1)).unwrap();
        (node.lost, node.disks[0].blocks) = (true, 5);
        assert_eq!(millionths(&view, 6), 100_000);
        view.nodes.get_mut(&NodeId(1)).unwrap().disks[0].blocks = 0;
        assert_eq!(millionths(&view, 6), 111_112);
        view.nodes.get_mut(&NodeId(2)).unwrap().disks[0].failed = true;
        assert_eq!(millionths(&view, 6), 125_000);
        view.coming_back = true;
        assert_eq!(millionths(&view, 6), 0);
    }

    proptest! {
        /// Filled by stripes of `n` blocks on different nodes up to the share, any node's blocks fit into what the others have free.
        #[test]
        fn what_is_kept_free_is_enough_for_any_node(
            sizes in prop::collection::vec(1_000u64..30_000, 2..12),
            n in 2usize..8,
            order: u64,
        ) {
            let view = view(&sizes);
            prop_assume!(sizes.len() > n);
            let share = share(RebuildReserve::Auto, &view, n);
            let mut used = vec![0u64; sizes.len()];
            let room = |used: &[u64], at: usize| used[at] + 100 + share.of(sizes[at]) <= sizes[at];
            // Stripes with blocks of 100 bytes, each on the `n` nodes that are filled least, or on any by turns.
            for stripe in 0u64.. {
                let mut open: Vec<usize> = (0..sizes.len()).filter(|at| room(&used, *at)).collect();
                if open.len() < n {
                    break;
                }
                if order.is_multiple_of(2) {
                    open.sort_by_key(|at| used[*at] * 1_000 / sizes[*at]);
                } else {
                    let len = open.len();
                    open.rotate_left((stripe.wrapping_mul(order) % len as u64) as usize);
                }
                open.iter().take(n).for_each(|at| used[*at] += 100);
            }
            for lost in 0..sizes.len() {
                let free: u64 = (0..sizes.len()).filter(|at| *at != lost).map(|at| sizes[at] - used[at]).sum();
                prop_assert!(used[lost] <= free, "node {lost} of {sizes:?} holds {} and {free} is free, {share}", used[lost]);
            }
        }
    }
}
