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
