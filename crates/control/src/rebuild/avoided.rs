//! Which nodes the plans that follow a failure leave alone.

use super::Arriving;
use crate::run::{Blame, Report};
use std::collections::{BTreeMap, BTreeSet};
use weft_types::{BlockId, BlockState, NodeId, StripeRecord};

/// A node that was in a dispute with its helpers in so many plans gets no block any more.
pub(super) const DISPUTES_MAX: u32 = 2;

/// How often helpers that were blamed are tried again when no other node is left.
const SECOND_CHANCES_MAX: u32 = 2;

/// The nodes that the plans after a failure leave alone, and why.
#[derive(Debug, Default)]
pub(super) struct Avoided {
    /// Nodes that are gone or that failed by themselves.
    pub(super) failed: BTreeSet<NodeId>,
    /// Helpers that another node complained about.
    pub(super) blamed: BTreeSet<NodeId>,
    /// In how many plans the node that was to store a block complained of a helper, or a helper of it.
    pub(super) disputes: BTreeMap<NodeId, u32>,
    /// How often those who were blamed have been tried again.
    pub(super) second_chances: u32,
}

impl Avoided {
    /// Learns from a plan that failed, while these blocks were arriving. `knows_bad_blocks`: all that the node to blame is blamed for is
    /// known of its blocks by now.
    pub(super) fn learn(&mut self, report: &Report, arriving: &[Arriving], knows_bad_blocks: bool) {
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
    pub(super) fn second_chances(&mut self) -> bool {
        self.blamed.clear();
        self.second_chances += 1;
        self.second_chances <= SECOND_CHANCES_MAX
    }

    /// All of them.
    pub(super) fn left_alone(&self) -> BTreeSet<NodeId> {
        self.failed.union(&self.blamed).copied().collect()
    }
}

/// Whether all that a node is blamed for is known of its blocks by now, so that the next plan goes around it.
pub(super) fn knows_bad_blocks(stripe: &StripeRecord, node: NodeId, report: &Report) -> bool {
    let mut bad = report.nodes.get(&node).into_iter().flat_map(|report| report.bad_blocks(node)).peekable();
    bad.peek().is_some() && bad.all(|(block, ..)| is_known_bad(stripe, block))
}

/// Whether it is known that a block of a stripe is bad.
pub(super) fn is_known_bad(stripe: &StripeRecord, block: BlockId) -> bool {
    let placed = stripe.find(block.index, block.copy);
    placed.is_some_and(|placed| placed.generation == block.generation && placed.state != BlockState::Ok)
}

#[cfg(test)]
mod tests {
    use super::{super::arriving::tests::arriving_at, *};
    use weft_types::{Error, Span};

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
}
