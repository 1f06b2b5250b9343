//! The nodes that plans avoid after a failure.

use super::Arriving;
use crate::run::{Blame, Report};
use std::collections::{BTreeMap, BTreeSet};
use weft_types::{BlockId, BlockState, NodeId, StripeRecord};

/// A node that was in disputes with its helpers in this many plans gets no further block.
pub(super) const DISPUTES_MAX: u32 = 2;

/// How often blamed helpers are tried again when no other node is left.
const SECOND_CHANCES_MAX: u32 = 2;

/// The nodes that plans avoid after a failure, and why.
#[derive(Debug, Default)]
pub(super) struct Avoided {
    /// Nodes that are gone or failed by themselves.
    pub(super) failed: BTreeSet<NodeId>,
    /// Helpers that another node blamed.
    pub(super) blamed: BTreeSet<NodeId>,
    /// In how many plans the node that was to store a block was in a dispute with a helper.
    pub(super) disputes: BTreeMap<NodeId, u32>,
    /// Whether any of these disputes may only have been about full links.
    pub(super) starved: bool,
    /// How often blamed helpers have been tried again.
    pub(super) second_chances: u32,
    /// Whether the disk of a failed node was full.
    pub(super) disk_was_full: bool,
}

impl Avoided {
    /// Learns from a failed plan, during which these blocks were arriving. `knows_bad_blocks`: everything that the
    /// culprit is blamed for is now recorded of its blocks.
    pub(super) fn learn(&mut self, report: &Report, arriving: &[Arriving], knows_bad_blocks: bool) {
        self.disk_was_full |= report.lacks_space();
        let Some(Blame { node, accuser }) = report.blame else { return };
        self.starved |= report.starved;
        let stores = |node: &NodeId| arriving.iter().any(|new| new.durable.is_none() && new.home.node == *node);
        let Some(accuser) = accuser else {
            // The node still helps with its readable blocks.
            if !knows_bad_blocks {
                self.failed.insert(node);
            }
            return;
        };
        if (report.held_up.is_some() || report.starved) && stores(&node) {
            // If the node reported in time what had arrived, it keeps its block, unless this happens again. If links were full, it has done
            // nothing wrong, and another home may be as busy.
            *self.disputes.entry(node).or_default() += 1;
            return;
        }
        for target in [node, accuser].iter().filter(|node| stores(node)) {
            *self.disputes.entry(*target).or_default() += 1;
        }
        // If two nodes blame each other, either may be at fault. A node that holds arrived data first gets another
        // helper.
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

    /// Tries blamed nodes again instead of failing, because the real culprit may be known by now. Returns whether another attempt is
    /// allowed.
    pub(super) fn second_chances(&mut self) -> bool {
        self.blamed.clear();
        self.second_chances += 1;
        self.second_chances <= SECOND_CHANCES_MAX
    }

    /// All nodes to avoid.
    pub(super) fn left_alone(&self) -> BTreeSet<NodeId> {
        self.failed.union(&self.blamed).copied().collect()
    }
}

/// Whether everything that a node is blamed for is now recorded of its blocks, so that the next plan avoids it.
pub(super) fn knows_bad_blocks(stripe: &StripeRecord, node: NodeId, report: &Report) -> bool {
    let mut bad = report.nodes.get(&node).into_iter().flat_map(|report| report.bad_blocks(node)).peekable();
    bad.peek().is_some() && bad.all(|(block, ..)| is_known_bad(stripe, block))
}

/// Whether a block of a stripe is known to be bad.
pub(super) fn is_known_bad(stripe: &StripeRecord, block: BlockId) -> bool {
    let placed = stripe.find(block.index, block.copy);
    placed.is_some_and(|placed| placed.generation == block.generation && placed.state != BlockState::Ok)
}

#[cfg(test)]
mod tests {
    use super::{super::arriving::tests::arriving_at, *};
    use weft_types::{Error, Span};

    /// Node 5 has waited for this node.
    fn held_up_by(node: u32) -> Report {
        let blame = Blame { node: NodeId(node), accuser: Some(NodeId(5)) };
        Report { blame: Some(blame), held_up: Some((blame, Error::replan("it delays all others"))), ..Report::default() }
    }

    #[test]
    fn a_node_that_delayed_a_plan_is_avoided_next_and_may_help_later() {
        let (mut avoided, arriving) = (Avoided::default(), arriving_at(9));
        avoided.learn(&held_up_by(2), &arriving, false);
        assert_eq!(avoided.left_alone(), BTreeSet::from([NodeId(2)]));
        assert!(avoided.second_chances() && avoided.left_alone().is_empty(), "a short delay must not use up a helper");
    }

    #[test]
    fn a_new_home_that_delayed_a_plan_keeps_its_data_unless_it_does_so_again() {
        let (mut avoided, arriving) = (Avoided::default(), arriving_at(9));
        avoided.learn(&held_up_by(9), &arriving, false);
        assert!(avoided.left_alone().is_empty() && avoided.disputes[&NodeId(9)] < DISPUTES_MAX, "{avoided:?}");
        avoided.learn(&held_up_by(9), &arriving, false);
        assert_eq!(avoided.disputes[&NodeId(9)], DISPUTES_MAX);
    }

    #[test]
    fn of_a_helper_and_a_home_in_dispute_the_home_with_arrived_data_stays() {
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
        assert_eq!(blamed(&[], 1).left_alone(), BTreeSet::from([NodeId(9)]), "no data has arrived");
        assert_eq!(blamed(&[Span::new(0, 4096)], 2).disputes[&NodeId(9)], DISPUTES_MAX, "the node is replaced in the end");
    }
}
