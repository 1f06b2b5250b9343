//! Chooses the copies to drop when data has cooled down. One good copy of each block remains, spread over the racks as
//! well as the copies allow.

use crate::view::{Standing, View};
use std::collections::{BTreeMap, BTreeSet};
use weft_codes::SharedCode;
use weft_types::{BlockState, Error, FailureDomain, NodeId, ObjectName, PlacedBlock, Result, StripeRecord};

/// The kept copy of each block of a stripe, by index.
pub type Kept<'a> = Vec<(u8, &'a PlacedBlock)>;

/// The blocks to keep of a stripe of `object`, or why nothing may be dropped, for example while its put
/// `is_still_sent`. The kept blocks, including parity, must be good and on nodes that are up, because without them the
/// stripe could be rebuilt only from its copies.
pub fn keep<'a>(view: &'a View, stripe: &'a StripeRecord, object: &ObjectName, is_still_sent: bool) -> Result<Kept<'a>> {
    let (number, kept) = (stripe.number, spread(view, stripe));
    let kept = kept.map_err(|index| {
        let why = why_not_whole(view, stripe, index);
        Error::unavailable(format!(
            "block {index} of stripe {number} is not complete ({why}): copies are dropped only when all blocks of the stripe are \
             good and on nodes that are up; `weft repair object {object}` rebuilds it"
        ))
    })?;
    match is_still_sent {
        true => Err(Error::unavailable(format!(
            "the put is still sending copies of stripe {number}: no copy of it is dropped until then"
        ))),
        false => Ok(kept),
    }
}

/// A warning for each rack that keeps more blocks than the code tolerates to lose, if the policy separates racks. While
/// there were copies, this did not matter.
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
            "rack {rack} keeps {blocks} blocks of a stripe, but {name} tolerates the loss of {tolerance}: losing the rack loses \
             data. `weft stat {object}` shows where the blocks are, `weft repair object {object} --block N --to NODE` moves one"
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

/// Why a block cannot be kept; `None` if it can. A suspect node is still up.
fn why_not(view: &View, stripe: &StripeRecord, index: u8, placed: &PlacedBlock) -> Option<&'static str> {
    match (placed.state, view.standing_of(stripe, index, placed)) {
        (BlockState::Missing, _) if stripe.incomplete => Some("still coming"),
        (_, Standing::Lost(why)) => Some(why),
        (BlockState::Corrupt, _) => Some("corrupt in part"),
        _ => None,
    }
}

/// One complete copy of each block of a stripe, or the index of a block that has none. Minimises the number of blocks
/// in the fullest rack; of equal choices, prefers trusted nodes, then first copies. A copy that could not be read a
/// moment ago, without a known defect, is kept only if there is no other.
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

/// Assigns blocks to racks, at most `most` to each: a matching, found by augmenting paths.
struct Racks<'a, 'v> {
    /// For each block the copies that may be kept, with their racks.
    options: &'a [Vec<(&'v str, &'v PlacedBlock)>],
    most: usize,
    kept: BTreeMap<&'v str, Vec<(usize, &'v PlacedBlock)>>,
}

impl<'v> Racks<'_, 'v> {
    /// Finds a rack for a block. May move other blocks to other racks, but not to those in `asked`.
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
            // The moved block leaves its place to this one.
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

    /// The nodes whose blocks are kept, or the block that prevents it.
    fn kept(view: &View, stripe: &StripeRecord) -> Result<Vec<u32>, u8> {
        let kept = spread(view, stripe)?;
        assert!(kept.iter().map(|(index, _)| *index).eq(0..3));
        Ok(kept.iter().map(|(_, placed)| placed.home.node.0).collect())
    }

    #[test]
    fn kept_copies_are_spread_over_the_racks() {
        let stripe = stripe();
        assert_eq!(kept(&view(&["a", "b", "c", "b", "c"]), &stripe), Ok(vec![1, 2, 3]), "first copies, if nothing else matters");
        // A greedy choice of racks a and c would put two blocks into one of them later.
        let mut view = view(&["a", "a", "c", "b", "c"]);
        assert_eq!(kept(&view, &stripe), Ok(vec![4, 2, 3]));
        suspect(&mut view, 4);
        assert_eq!(kept(&view, &stripe), Ok(vec![4, 2, 3]), "suspicion is temporary, racks are not");
        view.nodes.get_mut(&NodeId(4)).unwrap().up = false;
        assert_eq!(kept(&view, &stripe), Ok(vec![1, 2, 3]), "two blocks in a rack are the least possible");
    }

    #[test]
    fn copies_on_trusted_nodes_are_kept_if_racks_are_equal() {
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
        assert_eq!(kept(&view, &stripe), Err(0), "a partly corrupt block is not kept");
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
        assert!(error.message.contains("is still sending"), "{error}");
    }

    #[test]
    fn a_rack_with_too_many_blocks_gets_a_warning_if_racks_matter() {
        let (view, stripe) = (view(&["a", "a", "c", "a", "c"]), stripe());
        let object = ObjectName { bucket: "b".into(), key: "k".into() };
        let code = weft_codes::parse("rs(2,1)").unwrap();
        let kept = keep(&view, &stripe, &object, false).unwrap();
        assert_eq!(warnings(&view, &kept, &object, &code, FailureDomain::Node), Vec::<String>::new());
        let warned = warnings(&view, &kept, &object, &code, FailureDomain::Rack);
        assert!(warned.len() == 1 && warned[0].contains("keeps 2 blocks"), "{warned:?}");
    }
}
