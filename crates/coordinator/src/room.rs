//! The room that conversions leave on disks. For a while both forms of an object need it, and what was replaced comes free no sooner than
//! agents may remove it: who filled the disks with new blocks up to the users' own reserve would stop every put until then.

use crate::{
    config::CoordinatorConfig,
    copies::nodes_needed,
    shared::Shared,
    view::{DiskView, NodeView, View},
};
use std::collections::BTreeSet;
use weft_codes::SharedCode;
use weft_types::{ByteSize, Error, NodeId, Result, StripeLayout};

/// The nodes to which no block of a conversion's stripe goes; [`Reaction::Retry`](weft_types::Reaction) if it has to wait for space.
pub(crate) fn avoided(shared: &Shared, code: &SharedCode, replicas: u8, stripe: &StripeLayout) -> Result<BTreeSet<NodeId>> {
    let count = nodes_needed(code.k(), code.n(), replicas);
    KeptFree::of(&shared.config).without_room(&shared.members.view(), count, stripe.block_len(0))
}

/// What is left on each disk that takes a block of a conversion.
#[derive(Debug, Clone, Copy)]
struct KeptFree {
    /// What puts leave, too, bytes.
    reserve_bytes: u64,
    /// What is left for puts, percent of the disk.
    percent: u32,
}

impl KeptFree {
    fn of(config: &CoordinatorConfig) -> Self {
        Self { reserve_bytes: config.disk_reserve.0, percent: config.conversion_free_percent }
    }

    /// Whether a node has a disk that can take a block of that length, and leaves what is to be left; `of` says what is free of it. The
    /// block goes to the one that has the most free, as all do.
    fn has_room(self, node: &NodeView, bytes: u64, of: impl Fn(&DiskView) -> u64) -> bool {
        let with_reserve = bytes.saturating_add(self.reserve_bytes);
        let kept = |disk: &DiskView| disk.total_bytes / 100 * u64::from(self.percent);
        node.disks.iter().any(|disk| !disk.failed && of(disk) >= with_reserve.saturating_add(kept(disk)))
    }

    /// Of a stripe of `count` blocks of `bytes` each. Whoever lacks nodes, and not only space on them, does not wait here.
    fn without_room(self, view: &View, count: usize, bytes: u64) -> Result<BTreeSet<NodeId>> {
        let is_usable = |node: &&NodeView| node.up && node.disks.iter().any(|disk| !disk.failed);
        let now = |disk: &DiskView| disk.free_bytes;
        let (roomy, full): (Vec<_>, Vec<_>) =
            view.nodes.values().filter(is_usable).partition(|node| self.has_room(node, bytes, now));
        let usable = roomy.len() + full.len();
        if roomy.len() < count && usable >= count {
            let (block, reserve, percent) = (ByteSize(bytes), ByteSize(self.reserve_bytes), self.percent);
            let could = full.iter().filter(|node| self.has_room(node, bytes, |disk| disk.total_bytes)).count();
            if roomy.len() + could < count {
                return Err(Error::unavailable(format!(
                    "a stripe goes to {count} nodes, and the disks of {} of {usable} are too small for a block of {block} and {reserve} \
                     beside the {percent} % that conversions leave to puts (conversion_free_percent)",
                    full.len() - could
                )));
            }
            return Err(Error::retry(format!(
                "waits for space: {} of {usable} nodes have less than {block} and {reserve} free beside the {percent} % of a disk that \
                 conversions leave to puts (conversion_free_percent), and a stripe goes to {count}; removed blocks come free as \
                 limits.removed_blocks_per_day and limits.removed_percent_per_day of the agents let them",
                full.len()
            )));
        }
        Ok(full.iter().map(|node| node.id).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use weft_meta::DiskNumber;
    use weft_types::Reaction;

    fn node(id: u32, free_bytes: u64) -> (NodeId, NodeView) {
        let (number, path) = (DiskNumber(id), String::new());
        let disk = DiskView { number, id: path.clone(), path, total_bytes: 1000, free_bytes, failed: false, blocks: 0 };
        let (name, rack) = (id.to_string(), "r".to_owned());
        (NodeId(id), NodeView { id: NodeId(id), name, rack, up: true, suspect_for: Duration::ZERO, disks: vec![disk] })
    }

    #[test]
    fn a_conversion_leaves_a_share_of_each_disk_and_waits_where_too_many_have_less() {
        let kept = KeptFree { reserve_bytes: 20, percent: 10 };
        let view = |free: &[u64]| View { nodes: (1..).zip(free).map(|(id, free)| node(id, *free)).collect() };
        let without = |free: &[u64], count, bytes| {
            kept.without_room(&view(free), count, bytes).map(|nodes| nodes.iter().map(|node| node.0).collect::<Vec<_>>())
        };
        assert_eq!(without(&[125, 124, 1000], 2, 5), Ok(vec![2]), "to the byte");
        let waits = without(&[125, 124, 24], 2, 5).unwrap_err();
        assert_eq!(waits.reaction, Reaction::Retry);
        assert!(waits.message.starts_with("waits for space: 2 of 3 nodes have less than 5 and 20 free"), "{waits}");
        assert_eq!(without(&[125, 124], 3, 5), Ok(vec![2]), "it is not for space that there are too few");
        assert_eq!(KeptFree { percent: 0, ..kept }.without_room(&view(&[25, 25]), 2, 5), Ok(BTreeSet::new()));
        // What would not fit on an empty disk is not waited for.
        assert_eq!(without(&[1000, 24], 2, 880).unwrap_err().reaction, Reaction::Retry);
        let never = without(&[1000, 24], 2, 881).unwrap_err();
        assert_eq!(never.reaction, Reaction::Unavailable);
        assert!(never.message.contains("the disks of 2 of 2 are too small"), "{never}");
    }
}
