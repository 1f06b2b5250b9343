//! Which copies are dropped when the data have cooled down: what is left is what the code needs, whole, and spread over the racks as
//! well as the copies allow it.

use crate::view::{Standing, View};
use std::collections::{BTreeMap, BTreeSet};
use weft_codes::SharedCode;
use weft_types::{BlockState, Error, FailureDomain, NodeId, ObjectName, PlacedBlock, Result, StripeRecord};

/// One copy of each block of a stripe, by index: what is kept of it.
pub type Kept<'a> = Vec<(u8, &'a PlacedBlock)>;

/// What is kept of a stripe of `object`, or why nothing of it may be dropped: also while its put `is_still_sent`. What is kept is good and
/// on nodes that are up, parity too: copies are what a stripe without them could be rebuilt of.
pub fn keep<'a>(view: &'a View, stripe: &'a StripeRecord, object: &ObjectName, is_still_sent: bool) -> Result<Kept<'a>> {
    let (number, kept) = (stripe.number, spread(view, stripe));
    let kept = kept.map_err(|index| {
        let why = why_not_whole(view, stripe, index);
        Error::unavailable(format!(
            "block {index} of stripe {number} is not whole ({why}): nothing of the stripe is dropped before all that its code needs is \
             good and on nodes that are up; `weft repair object {object}` rebuilds it"
        ))
    })?;
    match is_still_sent {
        true => Err(Error::unavailable(format!(
            "copies of stripe {number} are still being sent by its put: nothing of it is dropped meanwhile"
        ))),
        false => Ok(kept),
    }
}

/// A warning for each rack that is left with more blocks than the code tolerates to lose, where the policy asks for racks. With the
/// copies that did not matter.
pub fn warnings(
    view: &View,
    kept: &[(u8, &PlacedBlock)],
    object: &ObjectName,
    code: &SharedCode,
    failure_domain: FailureDomain,
) -> Vec<String> {
    let mut racks: BTreeMap<&str, usize> = BTreeMap::new();
    kept.iter().for_each(|(_, placed)| *racks.entry(rack(view, placed.home.node)).or_default() += 1);
    let (name, tolerance) = (code.spec(), code.tolerance());
    let too_full = |(_, blocks): &(&str, usize)| failure_domain == FailureDomain::Rack && *blocks > tolerance;
    let warning = |(rack, blocks)| {
        format!(
            "rack {rack} is left with {blocks} blocks of a stripe and {name} tolerates the loss of {tolerance}: to lose the rack is to \
             lose data; `weft stat {object}` shows what is where, `weft repair object {object} --block N --to NODE` moves a block"
        )
    };
    racks.into_iter().filter(too_full).map(warning).collect()
}

/// Why none of a block's copies can be kept.
fn why_not_whole(view: &View, stripe: &StripeRecord, index: u8) -> String {
    let copies: Vec<&PlacedBlock> = stripe.all().filter(|(at, _)| *at == index).map(|(_, placed)| placed).collect();
    let copy = |placed: &&PlacedBlock| {
        let (node, why) = (view.name(placed.home.node), why_not(view, stripe, index, placed));
        let which = if copies.len() < 2 { String::new() } else { format!("copy {} ", placed.copy) };
        format!("{which}on {node}: {}", why.unwrap_or_default())
    };
    copies.iter().map(copy).collect::<Vec<_>>().join(", ")
}

/// Why a block cannot be kept, if it cannot. A suspect node is still up.
fn why_not(view: &View, stripe: &StripeRecord, index: u8, placed: &PlacedBlock) -> Option<&'static str> {
    match (placed.state, view.standing_of(stripe, index, placed)) {
        (BlockState::Missing, _) if stripe.incomplete => Some("still coming"),
        (_, Standing::Lost(why)) => Some(why),
        (BlockState::Corrupt, _) => Some("corrupt in part"),
        _ => None,
    }
}

/// Of each block of a stripe one that is whole: so that the fullest rack has as few of them as it can, and otherwise from trusted
/// nodes, the first copy first. Or the block of which there is none. A copy that could not be read a moment ago, though nothing is known
/// to be wrong with it, is kept only where there is no other.
fn spread<'a>(view: &'a View, stripe: &'a StripeRecord) -> Result<Vec<(u8, &'a PlacedBlock)>, u8> {
    let indexes: Vec<u8> = stripe.blocks.keys().copied().collect();
    let mut options: Vec<Vec<(&str, &PlacedBlock)>> = Vec::with_capacity(indexes.len());
    for index in indexes.iter().copied() {
        let copies = stripe.all().filter(|(at, placed)| *at == index && why_not(view, stripe, index, placed).is_none());
        let mut whole: Vec<_> = copies.map(|(_, placed)| (view.is_suspect_block(stripe.id_of(index, placed)), placed)).collect();
        let is_suspect = |placed: &PlacedBlock| view.standing_of(stripe, index, placed) == Standing::Suspect;
        whole.sort_by_key(|(doubted, placed)| (*doubted, is_suspect(placed), placed.copy));
        let all_doubted = whole.first().ok_or(index)?.0;
        whole.retain(|(doubted, _)| *doubted == all_doubted);
        options.push(whole.into_iter().map(|(_, placed)| (rack(view, placed.home.node), placed)).collect());
    }
    let all = 0..options.len();
    let fits = |most| {
        let mut racks = Racks { options: &options, most, kept: BTreeMap::new() };
        all.clone().all(|at| racks.take(at, &mut BTreeSet::new())).then_some(racks.kept)
    };
    let racks = (1..=options.len()).find_map(fits).unwrap_or_default();
    let mut kept: Vec<(u8, &PlacedBlock)> =
        racks.into_values().flatten().filter_map(|(at, placed)| Some((*indexes.get(at)?, placed))).collect();
    kept.sort_unstable_by_key(|(index, _)| *index);
    Ok(kept)
}

fn rack(view: &View, node: NodeId) -> &str {
    view.node(node).map_or("", |node| &node.rack)
}

/// Racks that are filled with blocks, none with more than `most`: a matching, found by augmenting paths.
struct Racks<'a, 'v> {
    /// For each block the copies that may be kept, by their racks.
    options: &'a [Vec<(&'v str, &'v PlacedBlock)>],
    most: usize,
    kept: BTreeMap<&'v str, Vec<(usize, &'v PlacedBlock)>>,
}

impl<'v> Racks<'_, 'v> {
    /// Finds a rack for a block. A block that is there already may have to go to another rack, but to none of those `asked`.
    fn take(&mut self, at: usize, asked: &mut BTreeSet<&'v str>) -> bool {
        for (rack, placed) in &self.options[at] {
            if !asked.insert(rack) {
                continue;
            }
            let here = self.kept.entry(rack).or_default();
            if here.len() < self.most {
                here.push((at, placed));
                return true;
            }
            let others: Vec<usize> = here.iter().map(|(other, _)| *other).collect();
            // The block that goes leaves its place.
            if let Some(place) = others.into_iter().position(|other| self.take(other, asked)) {
                self.kept.entry(rack).or_default()[place] = (at, placed);
                return true;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Time, fixtures};
    use std::{sync::Arc, time::Duration};
    use weft_types::{Span, StripeLayout};

    /// Nodes 1, 2, … in these racks.
    fn view(racks: &[&str]) -> View {
        let mut view = fixtures::view(racks.len() as u32, &[]);
        view.nodes.values_mut().zip(racks).for_each(|(node, rack)| node.rack = (*rack).into());
        view
    }

    /// A stripe of rs(2,1), its blocks on nodes 1 to 3 and second copies of its data on 4 and 5.
    fn stripe() -> StripeRecord {
        let mut stripe = fixtures::stripe();
        stripe.layout = StripeLayout { k: 2, m: 1, data_len: 2 * fixtures::BLOCK_LEN, ..stripe.layout };
        let copies = [3, 4].map(|at: u8| PlacedBlock { copy: 1, ..stripe.blocks[&at] });
        stripe.copies = (0..).zip(copies).collect();
        stripe.blocks.retain(|index, _| *index < 3);
        stripe.checksums.truncate(3);
        stripe
    }

    fn suspect(view: &mut View, node: u32) {
        view.nodes.get_mut(&NodeId(node)).unwrap().suspect_for = Duration::from_secs(9);
    }

    /// The nodes whose blocks are kept, or the block that keeps copies from being dropped.
    fn kept(view: &View, stripe: &StripeRecord) -> Result<Vec<u32>, u8> {
        let kept = spread(view, stripe)?;
        assert!(kept.iter().map(|(index, _)| *index).eq(0..3));
        Ok(kept.iter().map(|(_, placed)| placed.home.node.0).collect())
    }

    #[test]
    fn what_is_kept_is_spread_over_the_racks() {
        let stripe = stripe();
        assert_eq!(
            kept(&view(&["a", "b", "c", "b", "c"]), &stripe),
            Ok(vec![1, 2, 3]),
            "the first copies, where nothing else counts"
        );
        // Who took a and c without a look at what is still to come would have two in one of them.
        let mut view = view(&["a", "a", "c", "b", "c"]);
        assert_eq!(kept(&view, &stripe), Ok(vec![4, 2, 3]));
        suspect(&mut view, 4);
        assert_eq!(kept(&view, &stripe), Ok(vec![4, 2, 3]), "that is for a moment, and racks are for good");
        view.nodes.get_mut(&NodeId(4)).unwrap().up = false;
        assert_eq!(kept(&view, &stripe), Ok(vec![1, 2, 3]), "two in a rack are as few as may be, whichever");
    }

    #[test]
    fn trusted_nodes_are_kept_where_racks_are_equal() {
        let (mut view, stripe) = (view(&["a", "b", "c", "a", "b"]), stripe());
        suspect(&mut view, 1);
        assert_eq!(kept(&view, &stripe), Ok(vec![4, 2, 3]));
        suspect(&mut view, 4);
        suspect(&mut view, 3);
        assert_eq!(kept(&view, &stripe), Ok(vec![1, 2, 3]), "all of them are up");
        let first = stripe.id_of(0, &stripe.blocks[&0]);
        view.suspect_blocks = Arc::new(BTreeMap::from([(first, Time::after(Duration::from_millis(1)))]));
        assert_eq!(kept(&view, &stripe), Ok(vec![4, 2, 3]), "the first copy could not be read");
    }

    #[test]
    fn a_copy_with_holes_is_not_kept_however_good_its_node() {
        let (mut view, mut stripe) = (view(&["a", "b", "c", "a", "b"]), stripe());
        suspect(&mut view, 4);
        stripe.find_mut(0, 0).unwrap().state = BlockState::Corrupt;
        stripe.corrupt.insert((0, 0), vec![Span::new(0, 4096)]);
        assert_eq!(kept(&view, &stripe), Ok(vec![4, 2, 3]));
        stripe.copies[0].1.state = BlockState::Missing;
        assert_eq!(kept(&view, &stripe), Err(0), "half a block is not kept either");
    }

    #[test]
    fn parity_that_cannot_be_read_keeps_all_copies() {
        let mut view = view(&["a", "b", "c", "a", "b"]);
        view.nodes.get_mut(&NodeId(3)).unwrap().disks[0].failed = true;
        assert_eq!(kept(&view, &stripe()), Err(2));
    }

    #[test]
    fn the_error_says_what_is_wrong_with_each_copy() {
        let (mut view, mut stripe) = (view(&["a", "b", "c", "a", "b"]), stripe());
        let object = ObjectName { bucket: "b".into(), key: "k".into() };
        view.nodes.get_mut(&NodeId(1)).unwrap().up = false;
        stripe.copies[0].1.state = BlockState::Missing;
        stripe.incomplete = true;
        let error = keep(&view, &stripe, &object, false).unwrap_err();
        assert!(error.message.contains("(copy 0 on node-1: its node is down, copy 1 on node-4: still coming)"), "{error}");
        view.nodes.get_mut(&NodeId(1)).unwrap().up = true;
        assert_eq!(keep(&view, &stripe, &object, false).unwrap().len(), 3);
        let error = keep(&view, &stripe, &object, true).unwrap_err();
        assert!(error.message.contains("still being sent"), "{error}");
    }

    #[test]
    fn a_rack_with_more_than_may_be_lost_is_told_of_where_racks_count() {
        let (view, stripe) = (view(&["a", "a", "c", "a", "c"]), stripe());
        let object = ObjectName { bucket: "b".into(), key: "k".into() };
        let code = weft_codes::parse("rs(2,1)").unwrap();
        let kept = keep(&view, &stripe, &object, false).unwrap();
        assert_eq!(warnings(&view, &kept, &object, &code, FailureDomain::Node), Vec::<String>::new());
        let warned = warnings(&view, &kept, &object, &code, FailureDomain::Rack);
        assert!(warned.len() == 1 && warned[0].contains("is left with 2 blocks"), "{warned:?}");
    }
}
