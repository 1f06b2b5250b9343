//! What the coordinator knows of the nodes at one moment: a plain value, so that whoever decides by it can be tested.

use std::{collections::BTreeMap, time::Duration};
use weft_types::{BlockId, BlockState, DiskNumber, Home, NodeId, PlacedBlock, StripeRecord};

/// The nodes at one moment.
#[derive(Debug, Clone, Default)]
pub struct View {
    /// By number.
    pub nodes: BTreeMap<NodeId, NodeView>,
}

/// A node at one moment.
#[derive(Debug, Clone)]
pub struct NodeView {
    /// Its number.
    pub id: NodeId,
    /// What its operator calls it.
    pub name: String,
    /// Its rack; empty: it has none.
    pub rack: String,
    /// It was heard of lately.
    pub up: bool,
    /// It failed somebody a moment ago, and is avoided for this long where there is a way around it.
    pub suspect_for: Duration,
    /// Its disks.
    pub disks: Vec<DiskView>,
}

impl NodeView {
    /// Whether it is avoided for now.
    pub fn is_suspect(&self) -> bool {
        !self.suspect_for.is_zero()
    }
}

/// A disk at one moment.
#[derive(Debug, Clone)]
pub struct DiskView {
    /// Its number.
    pub number: DiskNumber,
    /// What its agent calls it.
    pub id: String,
    /// Where it is mounted.
    pub path: String,
    /// Its size.
    pub total_bytes: u64,
    /// What is left of it.
    pub free_bytes: u64,
    /// It failed, or its agent no longer has it.
    pub failed: bool,
    /// Blocks on it, as far as is known.
    pub blocks: u64,
}

/// Whether a block can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Standing {
    /// It can.
    Good,
    /// Perhaps.
    Suspect,
    /// It cannot, and this is why.
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

    /// How many nodes are up.
    pub fn up_count(&self) -> usize {
        self.nodes.values().filter(|node| node.up).count()
    }

    /// What becomes of whoever wants to read a block of a stripe now; of one that is corrupt in part, what can still be read of it.
    pub fn standing(&self, stripe: &StripeRecord, index: u8) -> Standing {
        match stripe.blocks.get(usize::from(index)) {
            Some(block) => self.standing_of(stripe, index, block),
            None => Standing::Lost("it does not exist"),
        }
    }

    /// The same of any copy of a block.
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

    /// The stripe with that copy of each block in its place that stands best; those of `shunned` only where there is no other that can
    /// be read. Among equals the least number drawn decides, so that all of them are read: whoever reads or rebuilds needs to know of no copies.
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

    /// What `stat` shows of a block.
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
