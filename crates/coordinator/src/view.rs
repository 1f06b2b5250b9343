//! What the coordinator knows of the nodes at one moment: a plain value, so that whoever decides by it can be tested.

use std::{collections::BTreeMap, time::Duration};
use weft_meta::{BlockState, DiskNumber, Home, PlacedBlock, StripeRecord};
use weft_types::{BlockId, NodeId};

/// The nodes at one moment.
#[derive(Debug, Clone, Default)]
pub(crate) struct View {
    pub(crate) nodes: BTreeMap<NodeId, NodeView>,
}

/// A node at one moment.
#[derive(Debug, Clone)]
pub(crate) struct NodeView {
    pub(crate) id: NodeId,
    pub(crate) name: String,
    pub(crate) rack: String,
    pub(crate) up: bool,
    /// It failed somebody a moment ago, and is avoided for this long where there is a way around it.
    pub(crate) suspect_for: Duration,
    pub(crate) disks: Vec<DiskView>,
}

impl NodeView {
    pub(crate) fn is_suspect(&self) -> bool {
        !self.suspect_for.is_zero()
    }
}

/// A disk at one moment.
#[derive(Debug, Clone)]
pub(crate) struct DiskView {
    pub(crate) number: DiskNumber,
    pub(crate) id: String,
    pub(crate) path: String,
    pub(crate) total_bytes: u64,
    pub(crate) free_bytes: u64,
    pub(crate) failed: bool,
    /// Blocks on it, as far as is known.
    pub(crate) blocks: u64,
}

/// Whether a block can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Standing {
    /// It can.
    Good,
    /// Perhaps.
    Suspect,
    /// It cannot, and this is why.
    Lost(&'static str),
}

impl View {
    pub(crate) fn node(&self, id: NodeId) -> Option<&NodeView> {
        self.nodes.get(&id)
    }

    pub(crate) fn disk(&self, home: Home) -> Option<&DiskView> {
        self.node(home.node)?.disks.iter().find(|disk| disk.number == home.disk)
    }

    pub(crate) fn up_count(&self) -> usize {
        self.nodes.values().filter(|node| node.up).count()
    }

    /// What becomes of whoever wants to read a block of a stripe now; of one that is corrupt in part, what can still be read of it.
    pub(crate) fn standing(&self, stripe: &StripeRecord, index: u8) -> Standing {
        match stripe.blocks.get(usize::from(index)) {
            Some(block) => self.standing_of(stripe, index, block),
            None => Standing::Lost("it does not exist"),
        }
    }

    /// The same of any copy of a block.
    pub(crate) fn standing_of(&self, stripe: &StripeRecord, index: u8, block: &PlacedBlock) -> Standing {
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
    /// be read. Among equals the least lot decides, so that all of them are read: whoever reads or rebuilds needs to know of no copies.
    pub(crate) fn serving(
        &self,
        mut stripe: StripeRecord,
        shunned: impl Fn(BlockId, NodeId) -> bool,
        mut lot: impl FnMut(NodeId) -> u32,
    ) -> StripeRecord {
        if stripe.copies.is_empty() {
            return stripe;
        }
        let mut lots: BTreeMap<BlockId, u32> = BTreeMap::new();
        for (index, placed) in stripe.all() {
            lots.insert(stripe.id_of(index, placed), lot(placed.home.node));
        }
        stripe.put_first(|stripe, index, placed| {
            let (id, standing) = (stripe.id_of(index, placed), self.standing_of(stripe, index, placed));
            let is_lost = matches!(standing, Standing::Lost(_));
            let has_holes = !stripe.corrupt_of(index, placed.copy).is_empty();
            (is_lost, shunned(id, placed.home.node), standing == Standing::Suspect, has_holes, lots.get(&id).copied())
        });
        stripe
    }

    /// What `stat` shows of a block.
    pub(crate) fn state_text(&self, stripe: &StripeRecord, index: u8, block: &PlacedBlock) -> &'static str {
        match (block.state, self.standing_of(stripe, index, block)) {
            (BlockState::Corrupt, _) => "corrupt",
            (BlockState::Missing, _) if stripe.incomplete => "coming",
            (BlockState::Missing, _) => "missing",
            (BlockState::Ok, Standing::Lost(_)) => "down",
            (BlockState::Ok, _) => "ok",
        }
    }
}
