//! How much new data fits into the free space.

use crate::{
    reserve::Share,
    view::{DiskView, View},
};
use std::collections::BTreeMap;

/// The bytes of new data that fit with a code of k data blocks and n blocks in total, if each node takes one block of a stripe and racks do
/// not matter. `reserve_bytes` and the share of each disk stay free. Nodes that are down and failed disks do not count. Disks on one file system
/// share its free space.
pub fn fits_bytes(view: &View, k: usize, n: usize, reserve_bytes: u64, kept: Share) -> u64 {
    let free = |disk: &DiskView| disk.free_bytes.saturating_sub(reserve_bytes).saturating_sub(kept.of(disk.total_bytes));
    let mut nodes = BTreeMap::new();
    for (node, disk, sharers) in view.usable_disks() {
        *nodes.entry(node).or_insert(0u128) += u128::from(free(disk) / sharers);
    }
    let free: Vec<u128> = nodes.into_values().collect();
    // If each of the n blocks has this many bytes, no node takes more.
    let fits = |each: u128| free.iter().map(|free| each.min(*free)).sum::<u128>() >= each * n as u128;
    let (mut fit, mut beyond) = (0, free.iter().sum::<u128>() / n.max(1) as u128 + 1);
    while beyond - fit > 1 {
        let middle = fit + (beyond - fit) / 2;
        if fits(middle) { fit = middle } else { beyond = middle }
    }
    u64::try_from(fit * k as u128).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;
    use weft_types::NodeId;

    #[test]
    fn a_nodes_free_space_counts_only_as_far_as_others_can_match_it() {
        let with = |free: &[u64], down: &[u32]| {
            let mut view = fixtures::view(free.len() as u32, down);
            for (node, free) in view.nodes.values_mut().zip(free) {
                node.disks[0].free_bytes = *free;
            }
            view
        };
        assert_eq!(fits_bytes(&with(&[100; 6], &[]), 4, 6, 0, Share::NONE), 400);
        assert_eq!(fits_bytes(&with(&[100; 6], &[]), 4, 6, 10, Share::NONE), 360);
        assert_eq!(fits_bytes(&with(&[100; 12], &[]), 4, 6, 0, Share::NONE), 800);
        assert_eq!(fits_bytes(&with(&[100; 6], &[3]), 4, 6, 0, Share::NONE), 0, "too few nodes");
        assert_eq!(
            fits_bytes(&with(&[50, 50, 50, 9_000], &[]), 2, 3, 0, Share::NONE),
            2 * 75,
            "75 on the large one, 75 on two others each"
        );
        assert_eq!(fits_bytes(&View::default(), 4, 6, 0, Share::NONE), 0);
        let mut failed = with(&[100; 7], &[]);
        failed.nodes.get_mut(&NodeId(7)).unwrap().disks[0].failed = true;
        assert_eq!(fits_bytes(&failed, 4, 6, 0, Share::NONE), 400);
        let mut shared = with(&[90, 90, 90, 40], &[]);
        shared.nodes.values_mut().take(3).for_each(|node| node.disks[0].file_system = 7);
        assert_eq!(fits_bytes(&shared, 2, 3, 0, Share::NONE), 2 * 43, "30 on each of three, and 40 on the last");
        let mut large = with(&[300; 6], &[]);
        large.nodes.values_mut().for_each(|node| node.disks[0].total_bytes = 1_000);
        let kept = crate::reserve::share(weft_types::RebuildReserve::Percent(20), &large, 6);
        assert_eq!(fits_bytes(&large, 4, 6, 30, kept), 4 * 70);
    }
}
