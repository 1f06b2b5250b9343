//! What follows a rebuilt block that is not what was lost. All bytes had passed the checksums on their disks, so any helper or the new home
//! may have changed them on the way, and nobody knows which. The next plans use another home and leave out the helpers in turn.

use std::collections::BTreeSet;
use weft_types::{BlockId, Error, NodeId};

/// The nodes of plans with a wrong result.
#[derive(Debug, Default)]
pub(super) struct Doubts {
    /// The wrong blocks that are not replaced by new allocations yet.
    pub(super) wrong: BTreeSet<BlockId>,
    /// The homes of wrong blocks.
    pub(super) homes: BTreeSet<NodeId>,
    /// The helpers that the next plan leaves out.
    pub(super) left_out: BTreeSet<NodeId>,
    /// The helpers that were not left out yet.
    open: BTreeSet<NodeId>,
    /// The helpers that were left out once, or cannot be.
    tried: BTreeSet<NodeId>,
    /// The helpers that some of these plans did without.
    cleared: BTreeSet<NodeId>,
    /// The wrong results: the block's index, and its checksums if it was stored.
    results: BTreeSet<(u8, Option<Vec<u32>>)>,
    /// Why the blocks that are wrong are left out, once no plan is left to try.
    pub(super) given_up: Option<Error>,
    /// The error of the last plan with a wrong result; `None` if there was none.
    pub(super) error: Option<Error>,
    /// How many choices followed.
    pub(super) turns: u32,
}

impl Doubts {
    /// A plan with these helpers had a wrong result at these homes.
    pub(super) fn learn(&mut self, wrong: &[(BlockId, NodeId)], helpers: impl Iterator<Item = NodeId>, error: Error) {
        self.wrong.extend(wrong.iter().map(|(block, _)| *block));
        self.homes.extend(wrong.iter().map(|(_, home)| *home));
        self.cleared.append(&mut self.left_out.clone());
        self.open.extend(helpers.filter(|helper| !self.tried.contains(helper)));
        self.error = Some(error);
    }

    /// A result of such a plan.
    pub(super) fn saw(&mut self, index: u8, checksums: Option<Vec<u32>>) {
        self.results.insert((index, checksums));
    }

    /// The index of the only wrong block if the same bytes came to several homes, and without each of the helpers, too: none of them changes bytes.
    pub(super) fn same_everywhere(&self) -> Option<u8> {
        let mut results = self.results.iter();
        let (Some((index, Some(_))), None) = (results.next(), results.next()) else { return None };
        (self.homes.len() > 1 && !self.cleared.is_empty() && self.are_all_cleared()).then_some(*index)
    }

    /// Chooses the helpers that the next plan leaves out: as many as it can do without, each once. If none can be left out, all help
    /// another home, once. Returns whether there is a plan that was not tried.
    pub(super) fn turn(&mut self, can_do_without: impl Fn(&BTreeSet<NodeId>) -> bool) -> bool {
        self.turns += 1;
        self.left_out.clear();
        for helper in std::mem::take(&mut self.open) {
            self.left_out.insert(helper);
            if can_do_without(&self.left_out) {
                self.tried.insert(helper);
                continue;
            }
            self.left_out.remove(&helper);
            self.open.insert(helper);
        }
        if self.left_out.is_empty() {
            self.tried.append(&mut self.open);
        }
        !self.left_out.is_empty() || self.turns == 1
    }

    /// The home that is the only explanation of all wrong results: they had no other home, and came without each of the helpers, too. If
    /// there is none, the recorded checksums may be wrong.
    pub(super) fn only_home(&self) -> Option<NodeId> {
        let mut homes = self.homes.iter();
        let (Some(home), None) = (homes.next(), homes.next()) else { return None };
        self.are_all_cleared().then_some(*home)
    }

    fn are_all_cleared(&self) -> bool {
        self.open.iter().chain(&self.tried).all(|helper| self.cleared.contains(helper))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_types::StripeId;

    #[test]
    fn each_helper_is_left_out_once_as_many_together_as_possible() {
        let nodes = |nodes: &[u32]| nodes.iter().copied().map(NodeId).collect::<BTreeSet<_>>();
        let learn = |doubts: &mut Doubts, helpers: &[u32]| {
            doubts.learn(&[], nodes(helpers).into_iter(), Error::corrupt("wrong"));
        };
        let mut doubts = Doubts::default();
        learn(&mut doubts, &[1, 2, 3, 4]);
        let two = |out: &BTreeSet<NodeId>| out.len() <= 2;
        assert!(doubts.turn(two) && doubts.left_out == nodes(&[1, 2]));
        learn(&mut doubts, &[3, 4, 5, 6]);
        assert!(doubts.turn(two) && doubts.left_out == nodes(&[3, 4]));
        learn(&mut doubts, &[1, 2, 5, 6]);
        assert!(doubts.turn(two) && doubts.left_out == nodes(&[5, 6]));
        learn(&mut doubts, &[1, 2, 3, 4]);
        assert!(!doubts.turn(two), "all were tried");

        assert_eq!(doubts.only_home(), None, "there was no home");

        let mut doubts = Doubts::default();
        learn(&mut doubts, &[1, 2]);
        assert!(doubts.turn(|_| false) && doubts.left_out.is_empty(), "only another home can help");
        learn(&mut doubts, &[1, 2]);
        assert!(!doubts.turn(|_| false));
    }

    #[test]
    fn a_home_is_suspect_only_if_nothing_else_explains_the_wrong_results() {
        let one = |out: &BTreeSet<NodeId>| out.len() <= 1;
        let played = |homes: [u32; 3]| {
            let (mut doubts, block) = (Doubts::default(), BlockId { stripe: StripeId(1), index: 0, copy: 0, generation: 2 });
            for home in homes {
                doubts.learn(&[(block, NodeId(home))], [1, 2].map(NodeId).into_iter(), Error::corrupt("wrong"));
                assert_eq!(doubts.only_home().filter(|_| doubts.turns < 2), None, "a helper may be at fault");
                doubts.turn(one);
            }
            assert_eq!(doubts.turns, 3);
            doubts.only_home()
        };
        assert_eq!((played([9, 9, 9]), played([9, 8, 8])), (Some(NodeId(9)), None));
    }
}
