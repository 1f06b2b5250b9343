//! Lost blocks and the new blocks that replace them: what has arrived, and when they are durable.

use crate::{
    run::{End, Report},
    view::{Standing, View},
};
use weft_types::{BlockId, Home, PAGE_LEN, PlacedBlock, Span, StripeRecord};

/// The most ranges of positions that the first plan brings of a block that is kept in part: each is a lane.
const RANGES_MAX: usize = 32;

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

/// What a node has kept of a lost block for a new generation of it.
#[derive(Debug, Clone, Default)]
pub struct Kept {
    /// Positions that are there.
    pub arrived: Vec<Span>,
    /// If all are: the CRC32C of each MiB of the block, which is durable.
    pub checksums: Option<Vec<u32>>,
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
    /// If they are not: those of each MiB that are known.
    pub known: Vec<Option<u32>>,
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
            if self.is_right(&stored.checksums) {
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

    /// Whether these can be its checksums.
    fn is_right(&self, checksums: &[u32]) -> bool {
        let is_known = |(known, unit): (&Option<u32>, &u32)| known.is_none_or(|known| known == *unit);
        let is_as_known = self.known.is_empty() || self.known.len() == checksums.len();
        let is_expected = self.expected.as_ref().is_none_or(|expected| expected == checksums);
        is_expected && is_as_known && self.known.iter().zip(checksums).all(is_known)
    }

    /// Its home has kept this of the lost block. Returns whether that can be; `whole`: all positions of the block.
    pub(super) fn keep(&mut self, kept: &Kept, whole: Span) -> bool {
        let missing = whole.subtract(&kept.arrived);
        match &kept.checksums {
            Some(checksums) if self.is_right(checksums) => (self.missing, self.durable) = (Vec::new(), Some(checksums.clone())),
            // What is there already is received, and not written again.
            None if !missing.is_empty() => self.missing = if is_short(&missing, whole) { missing } else { vec![whole] },
            _ => return false,
        }
        true
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

/// Whether a plan can leave out all but these positions: few ranges, of whole pages.
fn is_short(missing: &[Span], whole: Span) -> bool {
    let is_paged = |at: u64| at.is_multiple_of(PAGE_LEN) || at == whole.end;
    missing.len() <= RANGES_MAX && missing.iter().all(|span| is_paged(span.start) && is_paged(span.end))
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
        vec![Arriving { block, home, expected: None, known: Vec::new(), missing: Vec::new(), durable: None }]
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
    fn a_block_must_have_what_is_known_of_it() {
        let block = || Arriving { known: vec![Some(7), None], ..arriving_at(9).remove(0) };
        let whole = Span::new(0, 2 << 20);
        let kept = |arrived: &[Span], checksums: Option<[u32; 2]>| {
            let mut new = block();
            let kept = Kept { arrived: arrived.to_vec(), checksums: checksums.map(|all| all.to_vec()) };
            new.keep(&kept, whole).then_some((new.missing, new.durable))
        };
        let first = Span::new(0, 1 << 20);
        assert_eq!(kept(&[first], None), Some((vec![Span::new(1 << 20, 2 << 20)], None)));
        assert_eq!(kept(&[], None), Some((vec![whole], None)));
        assert_eq!(kept(&[Span::new(0, 4097)], None), Some((vec![whole], None)), "a part of a page");
        assert_eq!(kept(&[whole], Some([7, 8])), Some((vec![], Some(vec![7, 8]))));
        assert_eq!(kept(&[whole], Some([8, 8])), None, "other bytes");
        assert_eq!(kept(&[whole], None), None, "all is there, and it is not durable");
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
