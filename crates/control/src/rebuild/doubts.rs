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
        self.open.extend(helpers.filter(|helper| !self.tried.contains(helper)));
        self.error = Some(error);
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
}

#[cfg(test)]
mod tests {
    use super::*;

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

        let mut doubts = Doubts::default();
        learn(&mut doubts, &[1, 2]);
        assert!(doubts.turn(|_| false) && doubts.left_out.is_empty(), "only another home can help");
        learn(&mut doubts, &[1, 2]);
        assert!(!doubts.turn(|_| false));
    }
}
