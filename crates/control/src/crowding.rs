//! Stripes with more blocks in a rack than their code tolerates to lose: a repair that could not wait put them there, or a put before there
//! were enough racks. Which of their blocks move to other racks, and when.
//!
//! A block moves only if no rack has too many afterwards, and no other stripe is touched. So blocks never go back and forth.

use crate::{Time, retries::Retries, view::View};
use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Bound,
};
use weft_types::{FailureDomain, StripeId, StripeRecord};

/// The most crowded stripes that are remembered. If there are more, the others are found after these were moved.
const CROWDED_MAX: usize = 1 << 20;
/// The most stripes that are looked at for those that are moved next.
const LOOKED_AT_MAX: usize = 4_096;
/// The most stripes that are moved at the same time.
const MOVES_MAX: usize = 16;

/// The number of nodes in each rack that can keep blocks.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Racks(BTreeMap<String, usize>);

impl Racks {
    /// Those of the nodes that are not lost: a node that is only down will keep blocks again.
    pub fn of(view: &View) -> Self {
        let mut racks = BTreeMap::new();
        let keeps = view.nodes.values().filter(|node| !node.lost && node.takes_blocks());
        keeps.for_each(|node| *racks.entry(node.rack.to_string()).or_default() += 1);
        Self(racks)
    }

    /// How many nodes they have.
    pub fn nodes(&self) -> usize {
        self.0.values().sum()
    }

    /// Whether a stripe of so many blocks fits with at most `tolerance` of them in a rack.
    pub fn fit(&self, blocks: usize, tolerance: usize) -> bool {
        self.0.values().map(|nodes| tolerance.min(*nodes)).sum::<usize>() >= blocks
    }
}

/// The most blocks of a stripe in one rack.
pub fn most_in_rack(stripe: &StripeRecord, view: &View) -> usize {
    in_racks(stripe, view).into_values().map(|blocks| blocks.len()).max().unwrap_or(0)
}

/// Whether a stripe with so many blocks in one rack may have too many, and other racks can help: by its own record, if its code is one of
/// these tolerances. What is not is known without a look at its owner.
pub fn may_be_crowded(stripe: &StripeRecord, most: usize, mut tolerances: impl Iterator<Item = usize>, racks: &Racks) -> bool {
    let is_crowded = |tolerance: usize| most > tolerance && racks.fit(stripe.blocks.len(), tolerance);
    stripe.copies.is_empty() && tolerances.any(is_crowded)
}

/// The blocks of a stripe that should be in other racks; none if it is not crowded, or if the racks cannot help. Of copies, only coded blocks
/// count, and a stripe with copies is not crowded: the loss of a rack then loses no data.
pub fn excess(stripe: &StripeRecord, tolerance: usize, domain: FailureDomain, racks: &Racks, view: &View) -> Vec<u8> {
    if domain == FailureDomain::Node || !stripe.copies.is_empty() || !racks.fit(stripe.blocks.len(), tolerance) {
        return Vec::new();
    }
    // The last blocks first: parities are read less.
    in_racks(stripe, view).into_values().flat_map(|blocks| blocks.into_iter().skip(tolerance)).collect()
}

fn in_racks<'a>(stripe: &StripeRecord, view: &'a View) -> BTreeMap<&'a str, Vec<u8>> {
    let mut racks: BTreeMap<&str, Vec<u8>> = BTreeMap::new();
    for (index, placed) in stripe.firsts() {
        if let Some(node) = view.node(placed.home.node) {
            racks.entry(&node.rack).or_default().push(index);
        }
    }
    racks
}

/// The crowded stripes, and which of them are moved next.
#[derive(Debug)]
pub struct Crowded {
    stripes: BTreeSet<StripeId>,
    /// Whether some were forgotten.
    more: bool,
    /// The last one that was looked at.
    after: StripeId,
    /// Those that could not be moved.
    failed: Retries<StripeId>,
}

impl Default for Crowded {
    fn default() -> Self {
        Self { stripes: BTreeSet::new(), more: false, after: StripeId(0), failed: Retries::default() }
    }
}

impl Crowded {
    /// Records whether a stripe is crowded.
    pub fn set(&mut self, stripe: StripeId, is_crowded: bool) {
        if !is_crowded {
            self.stripes.remove(&stripe);
            self.failed.done(&stripe);
        } else if self.stripes.len() < CROWDED_MAX {
            self.stripes.insert(stripe);
        } else {
            self.more |= !self.stripes.contains(&stripe);
        }
    }

    /// How many there are, at least.
    pub fn count(&self) -> u64 {
        self.stripes.len() as u64
    }

    /// Whether all stripes must be looked at again, because those that were remembered are moved and others were forgotten.
    pub fn take_forgotten(&mut self) -> bool {
        self.stripes.is_empty() && std::mem::take(&mut self.more)
    }

    /// The stripes to move next, besides those that are being moved, for a cluster with so many nodes that are up. All have their turn. One that
    /// could not be moved rests, longer and longer, and no other waits for it.
    pub fn next(&mut self, moving: &BTreeSet<StripeId>, nodes: usize, now: Time) -> Vec<StripeId> {
        let behind = self.stripes.range((Bound::Excluded(self.after), Bound::Unbounded));
        let before = self.stripes.range(..=self.after);
        let most = (nodes / 2).clamp(1, MOVES_MAX).saturating_sub(moving.len());
        let (mut next, mut after) = (Vec::new(), self.after);
        for stripe in behind.chain(before).take(LOOKED_AT_MAX) {
            if next.len() == most {
                break;
            }
            after = *stripe;
            if !self.failed.rests(stripe, now) && !moving.contains(stripe) {
                next.push(*stripe);
            }
        }
        self.after = after;
        next
    }

    /// The attempt to move blocks of a stripe has ended.
    pub fn ended(&mut self, stripe: StripeId, is_moved: bool, now: Time) {
        if is_moved {
            self.failed.done(&stripe);
        } else {
            self.failed.failed(stripe, String::new(), now);
        }
    }

    /// Nodes or disks have come or gone.
    pub fn try_again(&mut self) {
        self.failed.retain(|_| false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{home, stripe, view};
    use proptest::prelude::*;
    use std::time::Duration;

    /// Nodes in racks by these numbers.
    fn in_racks_of(racks: &[u32]) -> View {
        let mut view = view(racks.len() as u32, &[]);
        for (node, rack) in view.nodes.values_mut().zip(racks) {
            node.rack = format!("r{rack}").into();
        }
        view
    }

    fn excess_in(view: &View) -> Vec<u8> {
        excess(&stripe(), 2, FailureDomain::Rack, &Racks::of(view), view)
    }

    #[test]
    fn blocks_beyond_the_tolerance_move_if_the_racks_suffice() {
        // The stripe is on nodes 1 to 6 and tolerates two losses.
        assert_eq!(excess_in(&in_racks_of(&[1, 1, 2, 2, 3, 3])), [] as [u8; 0]);
        assert_eq!(excess_in(&in_racks_of(&[1, 1, 1, 1, 2, 2])), [] as [u8; 0], "two racks cannot keep it");
        let crowded = in_racks_of(&[1, 1, 1, 2, 2, 2, 3, 3]);
        assert_eq!((excess_in(&crowded), most_in_rack(&stripe(), &crowded)), (vec![2, 5], 3));
        let mut down = crowded.clone();
        down.nodes.values_mut().skip(6).for_each(|node| node.up = false);
        assert_eq!(excess_in(&down), [2, 5], "nodes that are down come back");
        down.nodes.values_mut().skip(6).for_each(|node| node.lost = true);
        assert_eq!(excess_in(&down), [] as [u8; 0]);
        let racks = Racks::of(&crowded);
        assert!(excess(&stripe(), 2, FailureDomain::Node, &racks, &crowded).is_empty());
        let mut copied = stripe();
        copied.copies.push((0, weft_types::PlacedBlock { copy: 1, home: home(7), ..copied.blocks[&0] }));
        assert!(excess(&copied, 2, FailureDomain::Rack, &racks, &crowded).is_empty());
    }

    #[test]
    fn a_stripe_that_no_rack_can_help_needs_no_look_at_its_owner() {
        let may = |racks: &[u32], tolerances: &[usize]| {
            let view = in_racks_of(racks);
            may_be_crowded(&stripe(), most_in_rack(&stripe(), &view), tolerances.iter().copied(), &Racks::of(&view))
        };
        assert!(may(&[1, 1, 1, 2, 2, 2, 3, 3], &[2]));
        assert!(!may(&[1, 1, 1, 2, 2, 2], &[2]), "two racks cannot keep it");
        assert!(!may(&[1, 1, 1, 2, 2, 2, 3, 3], &[3]) && may(&[1, 1, 1, 2, 2, 2, 3, 3], &[3, 2]));
        assert!(!may(&[1, 1, 2, 2, 3, 3], &[2]) && !may(&[1, 1, 1, 1, 1, 1], &[]));
        let crowded = in_racks_of(&[1, 1, 1, 2, 2, 2, 3, 3]);
        let mut copied = stripe();
        copied.copies.push((0, weft_types::PlacedBlock { copy: 1, home: home(7), ..copied.blocks[&0] }));
        assert!(!may_be_crowded(&copied, 3, [2].into_iter(), &Racks::of(&crowded)));
    }

    #[test]
    fn what_cannot_be_moved_is_tried_less_and_less_and_delays_no_other() {
        let at = |seconds| Time::after(Duration::from_secs(seconds));
        let mut crowded = Crowded::default();
        (1..=5).for_each(|id| crowded.set(StripeId(id), true));
        let ids = |next: Vec<StripeId>| next.into_iter().map(|stripe| stripe.0).collect::<Vec<u64>>();
        let none = BTreeSet::new();
        assert_eq!(ids(crowded.next(&none, 6, at(1))), [1, 2, 3]);
        (1..=3).for_each(|id| crowded.ended(StripeId(id), false, at(1)));
        assert_eq!(ids(crowded.next(&none, 6, at(1))), [4, 5], "these do not wait");
        crowded.ended(StripeId(4), true, at(1));
        crowded.ended(StripeId(5), false, at(1));
        assert_eq!(ids(crowded.next(&none, 2, at(1))), [4], "more of its blocks may have to move");
        let mut tried = 0;
        for second in 2..602 {
            for stripe in crowded.next(&none, 6, at(second)) {
                tried += 1;
                crowded.ended(stripe, false, at(second));
            }
        }
        assert!((5 * 10..5 * 20).contains(&tried), "{tried} times in ten minutes");
        crowded.try_again();
        assert!(!crowded.next(&none, 6, at(602)).is_empty());
        (1..=5).for_each(|id| crowded.set(StripeId(id), false));
        assert!(crowded.next(&none, 6, at(700)).is_empty() && crowded.count() == 0 && !crowded.take_forgotten());
    }

    #[test]
    fn what_is_being_moved_counts_and_is_not_chosen_again() {
        let mut crowded = Crowded::default();
        (1..=5).for_each(|id| crowded.set(StripeId(id), true));
        let mut next = |moving: &[u64]| {
            let moving = moving.iter().copied().map(StripeId).collect();
            crowded.next(&moving, 6, Time::default()).into_iter().map(|stripe| stripe.0).collect::<Vec<u64>>()
        };
        assert_eq!((next(&[]), next(&[1, 2, 3])), (vec![1, 2, 3], vec![]));
        assert_eq!((next(&[1, 3]), next(&[1, 3, 4]), next(&[1])), (vec![4], vec![], vec![5, 2]));
    }

    #[test]
    fn one_look_is_bounded_and_all_have_their_turn() {
        let (mut crowded, now) = (Crowded::default(), Time::default());
        let last = 3 * LOOKED_AT_MAX as u64;
        (1..=last).for_each(|id| crowded.set(StripeId(id), true));
        (1..last).for_each(|id| crowded.ended(StripeId(id), false, now));
        let looks: Vec<usize> = (0..3).map(|_| crowded.next(&BTreeSet::new(), 2, now).len()).collect();
        assert_eq!(looks, [0, 0, 1]);
    }

    proptest! {
        /// As many blocks move as are too many, each from a rack that has too many, and with them elsewhere the stripe is not crowded.
        #[test]
        fn with_its_excess_elsewhere_a_stripe_is_not_crowded(racks in prop::collection::vec(0u32..5, 6..14)) {
            let view = in_racks_of(&racks);
            let moves = excess_in(&view);
            let mut left: BTreeMap<u32, usize> = BTreeMap::new();
            for (index, rack) in (0u8..).zip(&racks[..6]) {
                *left.entry(*rack).or_default() += usize::from(!moves.contains(&index));
            }
            let crowded = most_in_rack(&stripe(), &view) > 2 && Racks::of(&view).fit(6, 2);
            prop_assert_eq!(crowded, !moves.is_empty());
            prop_assert!(!crowded || left.values().all(|blocks| *blocks <= 2));
        }
    }
}
