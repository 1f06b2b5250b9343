//! A snapshot of the nodes: a plain value, so that decisions based on it can be tested.

use crate::Time;
use std::{collections::BTreeMap, sync::Arc, time::Duration};
use weft_types::{BlockId, BlockState, DiskNumber, Error, Home, NodeId, PlacedBlock, Reaction, StripeRecord};

/// A snapshot of the nodes.
#[derive(Debug, Clone, Default)]
pub struct View {
    /// By number.
    pub nodes: BTreeMap<NodeId, NodeView>,
    /// Blocks that could not be read a moment ago, and until when each is avoided if there is an alternative.
    pub suspect_blocks: Arc<BTreeMap<BlockId, Time>>,
    /// The time of the snapshot.
    pub now: Time,
    /// Whether the coordinator has just started and some nodes that were up before have not registered yet.
    pub coming_back: bool,
}

/// A node in a snapshot.
#[derive(Debug, Clone)]
pub struct NodeView {
    /// Its number.
    pub id: NodeId,
    /// Its name, chosen by the operator.
    pub name: Arc<str>,
    /// Its rack; empty if it has none.
    pub rack: Arc<str>,
    /// Whether it has sent a heartbeat recently.
    pub up: bool,
    /// Whether it was declared lost, and has not come back.
    pub lost: bool,
    /// For how long it is still avoided if there is an alternative, because it failed another node.
    pub suspect_for: Duration,
    /// Its disks.
    pub disks: Vec<DiskView>,
}

impl NodeView {
    /// Whether any of its disks may get new blocks, if it has room.
    pub fn takes_blocks(&self) -> bool {
        self.disks.iter().any(DiskView::takes_blocks)
    }

    /// What its disks together read and write, bytes a second, if it is known of all that work. Disks on one file system are one.
    pub fn disk_bytes_per_s(&self) -> Option<f64> {
        let mut rates: BTreeMap<(u64, DiskNumber), u64> = BTreeMap::new();
        for disk in self.disks.iter().filter(|disk| !disk.failed) {
            let shared = if disk.file_system == 0 { disk.number } else { DiskNumber(0) };
            let rate = rates.entry((disk.file_system, shared)).or_insert(disk.bytes_per_s);
            *rate = disk.bytes_per_s.min(*rate);
        }
        let is_known = !rates.is_empty() && rates.values().all(|rate| *rate > 0);
        is_known.then(|| rates.values().map(|rate| *rate as f64).sum())
    }

    /// How many of its disks work.
    pub fn working_disks(&self) -> u64 {
        self.disks.iter().filter(|disk| !disk.failed).count() as u64
    }

    /// The rate of the slowest of its disks that work, bytes a second, of those that were measured. Disks on one file system share its rate.
    pub fn slowest_disk_bytes_per_s(&self) -> Option<f64> {
        let working = || self.disks.iter().filter(|disk| !disk.failed);
        let sharers = |of: &DiskView| match of.file_system {
            0 => 1,
            shared => working().filter(|disk| disk.file_system == shared).count(),
        };
        let known = working().filter(|disk| disk.bytes_per_s > 0);
        known.map(|disk| disk.bytes_per_s as f64 / sharers(disk) as f64).reduce(f64::min)
    }

    /// Whether it is avoided now.
    pub fn is_suspect(&self) -> bool {
        !self.suspect_for.is_zero()
    }
}

/// A disk in a snapshot.
#[derive(Debug, Clone)]
pub struct DiskView {
    /// Its number.
    pub number: DiskNumber,
    /// The id that its agent reports.
    pub id: Arc<str>,
    /// Its directory.
    pub path: Arc<str>,
    /// Its size, in bytes.
    pub total_bytes: u64,
    /// Free bytes.
    pub free_bytes: u64,
    /// Equal for disks on one file system of one machine; 0: unknown.
    pub file_system: u64,
    /// Whether it failed, or its agent no longer has it.
    pub failed: bool,
    /// Whether it is being drained, or its node is: its blocks can be read, and it gets no new ones.
    pub draining: bool,
    /// The number of its blocks, as far as known.
    pub blocks: u64,
    /// What it reads and writes together, bytes a second; 0: not known.
    pub bytes_per_s: u64,
}

impl DiskView {
    /// Whether it may get new blocks, if it has room.
    pub fn takes_blocks(&self) -> bool {
        // Without an answer from it since its agent started, its size is not known.
        !self.failed && !self.draining && self.total_bytes > 0
    }
}

/// Whether a block can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Standing {
    /// Yes.
    Good,
    /// Possibly.
    Suspect,
    /// No, for this reason.
    Lost(&'static str),
}

impl View {
    /// A node.
    pub fn node(&self, id: NodeId) -> Option<&NodeView> {
        self.nodes.get(&id)
    }

    /// A disk.
    pub fn disk(&self, home: Home) -> Option<&DiskView> {
        self.node(home.node)?.disks.iter().find(|disk| disk.number == home.disk)
    }

    /// The number of nodes that are up.
    pub fn up_count(&self) -> usize {
        self.nodes.values().filter(|node| node.up).count()
    }

    /// The disks of nodes that are up that may get new blocks, each with the number of those on its file system, which share its space.
    pub fn usable_disks(&self) -> Vec<(NodeId, &DiskView, u64)> {
        let up = self.nodes.values().filter(|node| node.up);
        let disks = up.flat_map(|node| node.disks.iter().map(|disk| (node.id, disk))).filter(|(_, disk)| disk.takes_blocks());
        let disks: Vec<(NodeId, &DiskView)> = disks.collect();
        let mut sharers = BTreeMap::new();
        for (_, disk) in &disks {
            *sharers.entry(disk.file_system).or_insert(0u64) += 1;
        }
        let of = |disk: &DiskView| if disk.file_system == 0 { 1 } else { sharers.get(&disk.file_system).copied().unwrap_or(1) };
        disks.into_iter().map(|(node, disk)| (node, disk, of(disk))).collect()
    }

    /// The size and the free space of each node's disks that have not failed, bytes. Disks on one file system share it evenly, so that sums
    /// are right.
    pub fn space(&self) -> BTreeMap<NodeId, (u64, u64)> {
        fn good(node: &NodeView) -> impl Iterator<Item = &DiskView> {
            node.disks.iter().filter(|disk| !disk.failed)
        }
        let mut sharers: BTreeMap<u64, u64> = BTreeMap::new();
        for disk in self.nodes.values().flat_map(good).filter(|disk| disk.file_system != 0) {
            *sharers.entry(disk.file_system).or_default() += 1;
        }
        let share = |disk: &DiskView, bytes: u64| bytes / sharers.get(&disk.file_system).copied().unwrap_or(1);
        let of = |node: &NodeView| {
            good(node)
                .fold((0, 0), |(total, free), disk| (total + share(disk, disk.total_bytes), free + share(disk, disk.free_bytes)))
        };
        self.nodes.values().map(|node| (node.id, of(node))).collect()
    }

    /// The node's name.
    pub fn name(&self, id: NodeId) -> String {
        self.node(id).map_or_else(|| id.to_string(), |node| node.name.to_string())
    }

    /// Subtracts new blocks from their homes' free space.
    pub fn take_space(&mut self, homes: &[Home], bytes_each: u64) {
        for home in homes {
            let disks = self.nodes.get_mut(&home.node).into_iter().flat_map(|node| &mut node.disks);
            for disk in disks.filter(|disk| disk.number == home.disk) {
                disk.free_bytes = disk.free_bytes.saturating_sub(bytes_each);
            }
        }
    }

    /// Whether a block could not be read a moment ago.
    pub fn is_suspect_block(&self, block: BlockId) -> bool {
        self.suspect_blocks.get(&block).is_some_and(|until| *until > self.now)
    }

    /// Adjusts an error about too few nodes: while nodes are still returning, a retry can help.
    pub fn lacking_nodes(&self, error: Error) -> Error {
        if !self.coming_back {
            return error;
        }
        let message = format!("the coordinator has just started and some nodes have not registered yet: {}", error.message);
        Error { reaction: Reaction::Retry, message, ..error }
    }

    /// Whether a block of a stripe can be read now; for a partly corrupt one, whether its good part can.
    pub fn standing(&self, stripe: &StripeRecord, index: u8) -> Standing {
        match stripe.blocks.get(&index) {
            Some(block) => self.standing_of(stripe, index, block),
            None => Standing::Lost("it does not exist"),
        }
    }

    /// The same for any copy of a block.
    pub fn standing_of(&self, stripe: &StripeRecord, index: u8, block: &PlacedBlock) -> Standing {
        match block.state {
            BlockState::Corrupt if !stripe.corrupt_of(index, block.copy).is_empty() => {}
            BlockState::Corrupt => return Standing::Lost("corrupt"),
            BlockState::Missing => return Standing::Lost("missing"),
            BlockState::Ok => {}
        }
        let Some(node) = self.node(block.home.node) else { return Standing::Lost("its node is unknown") };
        match self.disk(block.home) {
            _ if !node.up => Standing::Lost("its node is down"),
            None => Standing::Lost("its disk is unknown"),
            Some(disk) if disk.failed => Standing::Lost("its disk failed"),
            Some(_) if node.is_suspect() => Standing::Suspect,
            Some(_) => Standing::Good,
        }
    }

    /// The stripe with the best copy of each block in its place; blocks in `shunned` are used only if no other copy can
    /// be read. Among equal copies the lowest drawn number decides, which spreads the reads. So readers and rebuilds
    /// need not know about copies.
    pub fn serving(
        &self,
        mut stripe: StripeRecord,
        shunned: impl Fn(BlockId, NodeId) -> bool,
        mut draw: impl FnMut(NodeId) -> u32,
    ) -> StripeRecord {
        if stripe.copies.is_empty() {
            return stripe;
        }
        let mut draws: BTreeMap<BlockId, u32> = BTreeMap::new();
        for (index, placed) in stripe.all() {
            draws.insert(stripe.id_of(index, placed), draw(placed.home.node));
        }
        stripe.put_first(|stripe, index, placed| {
            let (id, standing) = (stripe.id_of(index, placed), self.standing_of(stripe, index, placed));
            let is_lost = matches!(standing, Standing::Lost(_));
            let has_holes = !stripe.corrupt_of(index, placed.copy).is_empty();
            (is_lost, shunned(id, placed.home.node), standing == Standing::Suspect, has_holes, draws.get(&id).copied())
        });
        stripe
    }

    /// A block's state as `stat` shows it.
    pub fn state_text(&self, stripe: &StripeRecord, index: u8, block: &PlacedBlock) -> &'static str {
        match (block.state, self.standing_of(stripe, index, block)) {
            (BlockState::Corrupt, _) => "corrupt",
            (BlockState::Missing, _) if stripe.incomplete => "coming",
            (BlockState::Missing, _) => "missing",
            (BlockState::Ok, Standing::Lost(_)) => "down",
            (BlockState::Ok, _) => "ok",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::view;

    #[test]
    fn the_disks_of_a_node_are_as_fast_as_all_that_work_together() {
        let mut node = view(1, &[]).nodes.remove(&NodeId(1)).unwrap();
        let disk = node.disks[0].clone();
        let mut rates = |disks: &[(u64, u64, bool)]| {
            let disk = |(number, it): (u32, &(u64, u64, bool))| {
                let (bytes_per_s, file_system, failed) = *it;
                DiskView { number: DiskNumber(number), bytes_per_s, file_system, failed, ..disk.clone() }
            };
            node.disks = (0..).zip(disks).map(disk).collect();
            (node.disk_bytes_per_s(), node.slowest_disk_bytes_per_s())
        };
        assert_eq!(rates(&[(100, 0, false), (300, 0, false), (0, 0, true)]), (Some(400.0), Some(100.0)));
        assert_eq!(rates(&[(100, 0, false), (0, 0, false)]), (None, Some(100.0)), "one is not known");
        assert_eq!(rates(&[(100, 7, false), (100, 7, false), (100, 8, false)]), (Some(200.0), Some(50.0)), "two are one disk");
        assert_eq!(rates(&[(100, 7, false), (100, 7, true)]).1, Some(100.0), "a failed one shares nothing");
        assert_eq!(rates(&[(0, 0, true)]), (None, None));
        assert_eq!(node.working_disks(), 0);
    }
}
