//! What is rebuilt of a stripe, and whom the plans that follow a failure leave alone.

use crate::{
    run::{Blame, End, Report},
    view::{Standing, View},
};
use std::collections::{BTreeMap, BTreeSet};
use weft_types::{BlockId, BlockState, Home, NodeId, PlacedBlock, Span, StripeRecord};

/// A node that was in a dispute with its helpers in so many plans gets no block any more.
pub const DISPUTES_MAX: u32 = 2;

/// How often helpers who were blamed are tried again when nobody else is left.
const SECOND_CHANCES_MAX: u32 = 2;

/// A block that is to be rebuilt.
#[derive(Debug, Clone)]
pub struct Lost {
    /// Its index in the stripe.
    pub index: u8,
    /// Which copy of it; it may be one that there was not yet.
    pub copy: u8,
    /// The checksums that it must have, if anybody knows them.
    pub checksums: Option<Vec<u32>>,
}

/// A block that was rebuilt.
#[derive(Debug, Clone)]
pub struct RebuiltBlock {
    /// The block, in its new generation.
    pub block: BlockId,
    /// Where it is.
    pub home: Home,
    /// CRC32C of each MiB.
    pub checksums: Vec<u32>,
}

/// A new block under way.
#[derive(Debug, Clone)]
pub struct Arriving {
    /// The block, in its new generation.
    pub block: BlockId,
    /// Where it goes.
    pub home: Home,
    /// The checksums that it must have, if anybody knows them.
    pub expected: Option<Vec<u32>>,
    /// The positions that have not arrived.
    pub missing: Vec<Span>,
    /// Its checksums, once it is durable.
    pub durable: Option<Vec<u32>>,
}

impl Arriving {
    /// Takes what a report says of it; `whole`: all positions of the block.
    pub fn take(&mut self, report: &Report, whole: Span) {
        if let Some(stored) = report.stored(self.block, self.home.node) {
            // The agent compares too; what is here is a second look.
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
                // All had come and it was not taken: it was not what it should be.
                self.missing = vec![whole];
            }
        }
    }

    /// The block, if it is durable.
    pub fn rebuilt(&self) -> Option<RebuiltBlock> {
        Some(RebuiltBlock { block: self.block, home: self.home, checksums: self.durable.clone()? })
    }
}

/// The nodes that the plans after a failure leave alone, and why.
#[derive(Debug, Default)]
pub struct Avoided {
    /// Nodes that are gone or that failed by themselves.
    pub failed: BTreeSet<NodeId>,
    /// Helpers that another node complained about.
    pub blamed: BTreeSet<NodeId>,
    /// In how many plans the node that was to store a block complained of a helper, or a helper of it.
    pub disputes: BTreeMap<NodeId, u32>,
    /// How often those who were blamed have been tried again.
    pub second_chances: u32,
    /// Blocks, by index and copy, for which there is no node any more, and why.
    pub left: Vec<((u8, u8), String)>,
}

impl Avoided {
    /// Learns from a plan that failed, while these blocks were arriving. `knows_bad_blocks`: all that the node to blame is blamed for is
    /// known of its blocks by now.
    pub fn learn(&mut self, report: &Report, arriving: &[Arriving], knows_bad_blocks: bool) {
        let Some(Blame { node, accuser }) = report.blame else { return };
        let stores = |node: &NodeId| arriving.iter().any(|new| new.durable.is_none() && new.home.node == *node);
        let Some(accuser) = accuser else {
            // It goes on helping with what it can read.
            if !knows_bad_blocks {
                self.failed.insert(node);
            }
            return;
        };
        if report.held_up.is_some() && stores(&node) {
            // If it has said in time what had arrived, it goes on with that, unless it does so again.
            *self.disputes.entry(node).or_default() += 1;
            return;
        }
        for target in [node, accuser].iter().filter(|node| stores(node)) {
            *self.disputes.entry(*target).or_default() += 1;
        }
        // Where two complain of each other, either may be met. One that keeps what has come in is given another helper first.
        let has_some = |new: &Arriving| {
            report.nodes.get(&new.home.node).and_then(|told| told.arrived.get(&new.block)).is_some_and(|spans| !spans.is_empty())
        };
        let keeps = |node: &NodeId| arriving.iter().any(|new| new.home.node == *node && new.durable.is_none() && has_some(new));
        match stores(&node) {
            true if keeps(&node) && !stores(&accuser) => self.blamed.insert(accuser),
            true => self.failed.insert(node),
            false => self.blamed.insert(node),
        };
    }

    /// Nodes that were only blamed are tried again, rather than giving up: the one that is gone may be known for certain by now. Tells
    /// whether there is another try.
    pub fn second_chances(&mut self) -> bool {
        self.blamed.clear();
        self.second_chances += 1;
        self.second_chances <= SECOND_CHANCES_MAX
    }

    /// All of them.
    pub fn left_alone(&self) -> BTreeSet<NodeId> {
        self.failed.union(&self.blamed).copied().collect()
    }
}

/// Whether all that a node is blamed for is known of its blocks by now, so that the next plan goes around it.
pub fn knows_bad_blocks(stripe: &StripeRecord, node: NodeId, report: &Report) -> bool {
    let mut bad = report.nodes.get(&node).into_iter().flat_map(|report| report.bad_blocks(node)).peekable();
    bad.peek().is_some() && bad.all(|(block, ..)| is_known_bad(stripe, block))
}

/// Whether it is known that a block of a stripe is bad.
pub fn is_known_bad(stripe: &StripeRecord, block: BlockId) -> bool {
    let placed = stripe.find(block.index, block.copy);
    placed.is_some_and(|placed| placed.generation == block.generation && placed.state != BlockState::Ok)
}

/// The blocks of a stripe that are asked for, or else those that are lost, wholly or in part; with what they must become.
///
/// Of a block that is asked for and has copies, those that are lost; if none is, the first.
pub fn lost_blocks(stripe: &StripeRecord, view: &View, asked: &[u8]) -> Vec<Lost> {
    let is_lost = |index: u8, placed: &PlacedBlock| {
        matches!(view.standing_of(stripe, index, placed), Standing::Lost(_)) || !stripe.corrupt_of(index, placed.copy).is_empty()
    };
    let has_lost = |index: u8| stripe.all().any(|(at, placed)| at == index && is_lost(at, placed));
    let is_first = |index: u8, copy: u8| stripe.blocks.get(usize::from(index)).is_some_and(|placed| placed.copy == copy);
    let lost = stripe.all().filter(|(index, placed)| match asked {
        [] => is_lost(*index, placed),
        asked => asked.contains(index) && (is_lost(*index, placed) || is_first(*index, placed.copy) && !has_lost(*index)),
    });
    lost.map(|(index, placed)| Lost::of(stripe, index, placed.copy)).collect()
}

impl Lost {
    /// A copy of a block, with what it must become.
    pub fn of(stripe: &StripeRecord, index: u8, copy: u8) -> Self {
        Self { index, copy, checksums: stripe.checksums.get(usize::from(index)).cloned() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_types::{DiskNumber, Error, StripeId};

    fn arriving_at(node: u32) -> Vec<Arriving> {
        let block = BlockId { stripe: StripeId(1), index: 0, copy: 0, generation: 2 };
        let home = Home { node: NodeId(node), disk: DiskNumber(1) };
        vec![Arriving { block, home, expected: None, missing: Vec::new(), durable: None }]
    }

    /// Node 5 has waited for this one.
    fn held_up_by(node: u32) -> Report {
        let blame = Blame { node: NodeId(node), accuser: Some(NodeId(5)) };
        Report { blame: Some(blame), held_up: Some((blame, Error::replan("it holds up everybody"))), ..Report::default() }
    }

    #[test]
    fn who_held_up_a_plan_is_left_alone_next_and_may_help_again_later() {
        let (mut avoided, arriving) = (Avoided::default(), arriving_at(9));
        avoided.learn(&held_up_by(2), &arriving, false);
        assert_eq!(avoided.left_alone(), BTreeSet::from([NodeId(2)]));
        assert!(avoided.second_chances() && avoided.left_alone().is_empty(), "a moment's hiccup uses up a helper");
    }

    #[test]
    fn a_new_home_that_held_up_a_plan_keeps_what_has_arrived_unless_it_does_so_again() {
        let (mut avoided, arriving) = (Avoided::default(), arriving_at(9));
        avoided.learn(&held_up_by(9), &arriving, false);
        assert!(avoided.left_alone().is_empty() && avoided.disputes[&NodeId(9)] < DISPUTES_MAX, "{avoided:?}");
        avoided.learn(&held_up_by(9), &arriving, false);
        assert_eq!(avoided.disputes[&NodeId(9)], DISPUTES_MAX);
    }

    #[test]
    fn of_a_helper_and_a_new_home_that_blame_each_other_the_one_that_keeps_what_has_come_stays() {
        let arriving = arriving_at(9);
        let blamed = |come: &[Span], times: usize| {
            let mut avoided = Avoided::default();
            let mut report = Report::new([NodeId(2), NodeId(9)].into_iter());
            report.blame = Some(Blame { node: NodeId(9), accuser: Some(NodeId(2)) });
            report.nodes.get_mut(&NodeId(9)).unwrap().arrived.insert(arriving[0].block, come.to_vec());
            (0..times).for_each(|_| avoided.learn(&report, &arriving, false));
            avoided
        };
        assert_eq!(blamed(&[Span::new(0, 4096)], 1).left_alone(), BTreeSet::from([NodeId(2)]));
        assert_eq!(blamed(&[], 1).left_alone(), BTreeSet::from([NodeId(9)]), "there is nothing to keep");
        assert_eq!(blamed(&[Span::new(0, 4096)], 2).disputes[&NodeId(9)], DISPUTES_MAX, "it does not stay for ever");
    }

    #[test]
    fn a_block_is_durable_by_its_own_homes_word_and_with_the_checksums_it_must_have() {
        let stored = |checksum| crate::run::Stored { len: 4096, checksums: vec![checksum] };
        let mut new = Arriving { expected: Some(vec![7]), ..arriving_at(9).remove(0) };
        let whole = Span::new(0, 4096);
        let mut report = Report::new([NodeId(2), NodeId(9)].into_iter());
        let mut told = |node: u32, checksum, new: &mut Arriving| {
            report.nodes.get_mut(&NodeId(node)).unwrap().stored.insert(new.block, stored(checksum));
            new.take(&report, whole);
            new.durable.clone()
        };
        assert_eq!(told(2, 7, &mut new), None, "another node says so");
        assert_eq!(told(9, 8, &mut new), None, "it is something else");
        assert_eq!(told(9, 7, &mut new), Some(vec![7]));
        assert_eq!(new.rebuilt().map(|it| it.home.node), Some(NodeId(9)));
    }

    #[test]
    fn what_has_arrived_is_not_sent_again_unless_it_was_refused() {
        let (mut new, whole) = (arriving_at(9).remove(0), Span::new(0, 8192));
        let mut report = Report::new([NodeId(9)].into_iter());
        let told = report.nodes.get_mut(&NodeId(9)).unwrap();
        (told.end, told.arrived) = (Some(End::Failed(Vec::new())), BTreeMap::from([(new.block, vec![Span::new(0, 4096)])]));
        new.take(&report, whole);
        assert_eq!(new.missing, [Span::new(4096, 8192)]);
        report.nodes.get_mut(&NodeId(9)).unwrap().arrived.insert(new.block, vec![whole]);
        new.take(&report, whole);
        assert_eq!(new.missing, [whole], "all had arrived, and it was not taken");
    }
}
