//! Lost blocks and the new blocks that replace them: what has arrived, and when they are durable.

use crate::{
    run::{End, Report},
    view::{Standing, View},
};
use weft_types::{BlockId, Home, PlacedBlock, Span, StripeRecord};

/// A block to rebuild.
#[derive(Debug, Clone)]
pub struct Lost {
    /// Its index in the stripe.
    pub index: u8,
    /// The copy's number; it may be a new copy.
    pub copy: u8,
    /// The checksums that it must have, if recorded.
    pub checksums: Option<Vec<u32>>,
}

/// A rebuilt block.
#[derive(Debug, Clone)]
pub struct RebuiltBlock {
    /// The block, in its new generation.
    pub block: BlockId,
    /// Its home.
    pub home: Home,
    /// The CRC32C of each MiB.
    pub checksums: Vec<u32>,
}

/// A new block that is being written.
#[derive(Debug, Clone)]
pub struct Arriving {
    /// The block, in its new generation.
    pub block: BlockId,
    /// Its home.
    pub home: Home,
    /// The checksums that it must have, if recorded.
    pub expected: Option<Vec<u32>>,
    /// The positions that are missing.
    pub missing: Vec<Span>,
    /// Its checksums, once it is durable.
    pub durable: Option<Vec<u32>>,
}

impl Arriving {
    /// Updates it from a report; `whole`: all positions of the block.
    pub(super) fn take(&mut self, report: &Report, whole: Span) {
        if let Some(stored) = report.stored(self.block, self.home.node) {
            // The agent compares the checksums too; this is a second check.
            if self.expected.as_ref().is_none_or(|expected| *expected == stored.checksums) {
                self.durable = Some(stored.checksums.clone());
                self.missing.clear();
            }
            return;
        }
        if let Some(node) = report.nodes.get(&self.home.node).filter(|node| matches!(node.end, Some(End::Failed(_)))) {
            let arrived = node.arrived.get(&self.block).map(Vec::as_slice).unwrap_or_default();
            self.missing = whole.subtract(arrived);
            if self.missing.is_empty() {
                // All positions had arrived, but the block was refused, because its checksums were wrong.
                self.missing = vec![whole];
            }
        }
    }

    /// Whether its node failed or stored other bytes.
    pub(super) fn is_dead(&self, report: &Report) -> bool {
        let end = report.nodes.get(&self.home.node).and_then(|node| node.end.as_ref());
        report.stored(self.block, self.home.node).is_some() || matches!(end, Some(End::Broken(_) | End::GivenUp))
    }

    /// The block, if it is durable.
    pub(super) fn rebuilt(&self) -> Option<RebuiltBlock> {
        Some(RebuiltBlock { block: self.block, home: self.home, checksums: self.durable.clone()? })
    }
}

/// The requested blocks of a stripe or, without a request, those that are lost, wholly or in part; with their expected
/// checksums.
///
/// Of a requested block with copies: the lost copies or, if none is lost, the first copy.
pub fn lost_blocks(stripe: &StripeRecord, view: &View, asked: &[u8]) -> Vec<Lost> {
    let is_lost = |index: u8, placed: &PlacedBlock| is_lost(stripe, view, index, placed);
    let has_lost = |index: u8| stripe.all().any(|(at, placed)| at == index && is_lost(at, placed));
    let is_first = |index: u8, copy: u8| stripe.blocks.get(&index).is_some_and(|placed| placed.copy == copy);
    let lost = stripe.all().filter(|(index, placed)| match asked {
        [] => is_lost(*index, placed),
        asked => asked.contains(index) && (is_lost(*index, placed) || is_first(*index, placed.copy) && !has_lost(*index)),
    });
    lost.map(|(index, placed)| Lost::of(stripe, index, placed.copy)).collect()
}

/// The bytes that have moved at `thousandths` of the work on `bytes`.
pub fn moved_bytes(bytes: u64, thousandths: u64) -> u64 {
    (u128::from(bytes) * u128::from(thousandths) / 1000) as u64
}

/// Whether a block is lost, wholly or in part.
pub(super) fn is_lost(stripe: &StripeRecord, view: &View, index: u8, placed: &PlacedBlock) -> bool {
    matches!(view.standing_of(stripe, index, placed), Standing::Lost(_)) || !stripe.corrupt_of(index, placed.copy).is_empty()
}

impl Lost {
    /// A copy of a block, with its expected checksums.
    pub fn of(stripe: &StripeRecord, index: u8, copy: u8) -> Self {
        Self { index, copy, checksums: stripe.checksums_of(index).map(<[u32]>::to_vec) }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use weft_types::{DiskNumber, NodeId, StripeId};

    /// A block that goes to this node.
    pub(crate) fn arriving_at(node: u32) -> Vec<Arriving> {
        let block = BlockId { stripe: StripeId(1), index: 0, copy: 0, generation: 2 };
        let home = Home { node: NodeId(node), disk: DiskNumber(1) };
        vec![Arriving { block, home, expected: None, missing: Vec::new(), durable: None }]
    }

    #[test]
    fn a_block_is_durable_by_its_own_homes_receipt_with_the_right_checksums() {
        let stored = |checksum| crate::run::Stored { len: 4096, checksums: vec![checksum] };
        let mut new = Arriving { expected: Some(vec![7]), ..arriving_at(9).remove(0) };
        let whole = Span::new(0, 4096);
        let mut report = Report::new([NodeId(2), NodeId(9)].into_iter());
        let mut told = |node: u32, checksum, new: &mut Arriving| {
            report.nodes.get_mut(&NodeId(node)).unwrap().stored.insert(new.block, stored(checksum));
            new.take(&report, whole);
            new.durable.clone()
        };
        assert_eq!(told(2, 7, &mut new), None, "another node reported it");
        assert_eq!(told(9, 8, &mut new), None, "it has other bytes");
        assert_eq!(told(9, 7, &mut new), Some(vec![7]));
        assert_eq!(new.rebuilt().map(|it| it.home.node), Some(NodeId(9)));
    }

    #[test]
    fn arrived_positions_are_not_sent_again_unless_refused() {
        let (mut new, whole) = (arriving_at(9).remove(0), Span::new(0, 8192));
        let mut report = Report::new([NodeId(9)].into_iter());
        let told = report.nodes.get_mut(&NodeId(9)).unwrap();
        (told.end, told.arrived) = (Some(End::Failed(Vec::new())), BTreeMap::from([(new.block, vec![Span::new(0, 4096)])]));
        new.take(&report, whole);
        assert_eq!(new.missing, [Span::new(4096, 8192)]);
        report.nodes.get_mut(&NodeId(9)).unwrap().arrived.insert(new.block, vec![whole]);
        new.take(&report, whole);
        assert_eq!(new.missing, [whole], "all had arrived, but the block was refused");
    }
}
