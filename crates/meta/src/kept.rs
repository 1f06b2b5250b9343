//! What stays known of blocks that were left out of updates in place.
//!
//! Where no member's checksum has changed, the members contain what they did when all checksums were recorded. The blocks that were left out can be
//! recovered from them, by one matrix at all times. So they contain there what they did, too, and their checksums still hold. Those of a data block hold
//! also if no update of this block was numbered since: the members know of all that can be committed.

use std::collections::{BTreeMap, BTreeSet};
use weft_types::StripeRecord;
use weft_update::Vector;

/// The checksums of each MiB by index, where they are known.
pub(crate) type Kept = BTreeMap<u8, Vec<Option<u32>>>;

/// What is known of the blocks without members, once the members contain this, with these numbers of updates of the data blocks; `stripe` has what is
/// recorded of before. All blocks can be recovered from the members.
pub(crate) fn kept(stripe: &StripeRecord, members: &BTreeMap<u8, Vec<u32>>, vector: &Vector) -> Kept {
    let layout = &stripe.layout;
    let number_before = |index: u8| stripe.seq.counts().get(usize::from(index)).copied().unwrap_or(0);
    let is_untouched =
        |index: u8| u32::from(index) < layout.k && vector.get(&index).copied().unwrap_or(0) == number_before(index);
    let mut changed = BTreeSet::new();
    for (index, after) in members {
        let Some(before) = stripe.checksums_of(*index).filter(|before| before.len() == after.len()) else { return Kept::new() };
        let units = (0..).zip(before.iter().zip(after)).filter(|(_, (before, after))| before != after);
        changed.extend(units.map(|(unit, _)| layout.unit_group(unit)));
    }
    let unchanged = |index: u8| {
        let before = stripe.known_units(index);
        let is_whole = before.len() as u64 == layout.checksum_units(index.into());
        let is_known = |unit: u64| is_untouched(index) || !changed.contains(&layout.unit_group(unit));
        let known = |(unit, known): (u64, Option<u32>)| known.filter(|_| is_known(unit));
        let units: Vec<Option<u32>> = (0..).zip(before).map(known).collect();
        (is_whole && units.iter().any(Option::is_some)).then_some((index, units))
    };
    stripe.blocks.keys().copied().filter(|index| !members.contains_key(index)).filter_map(unchanged).collect()
}

/// Whether a block with these checksums contains what is known of it.
pub(crate) fn agrees(kept: &[Option<u32>], checksums: &[u32]) -> bool {
    kept.len() == checksums.len() && kept.iter().zip(checksums).all(|(kept, unit)| kept.is_none_or(|kept| kept == *unit))
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_types::{BlockState, DiskNumber, Home, Layout, NodeId, Owner, PlacedBlock, Seq, StripeId, UploadId};

    const MIB: u64 = 1 << 20;

    /// A stripe of four blocks with these cells, whose blocks have a checksum for each of three MiB.
    fn stripe(cell_len: u64, alpha: u32) -> StripeRecord {
        let place = |node: u32| PlacedBlock {
            generation: 1,
            generation_high_water: 1,
            home: Home { node: NodeId(node), disk: DiskNumber(node) },
            state: BlockState::Ok,
            copy: 0,
        };
        StripeRecord {
            id: StripeId(7),
            owner: Owner::Object(UploadId(3)),
            number: 0,
            ended: true,
            seq: Seq::default(),
            layout: Layout::new(3 * MIB, cell_len, alpha).unwrap().full_stripe(2, 2),
            blocks: (0..4u8).map(|index| (index, place(u32::from(index) + 1))).collect(),
            copies: Vec::new(),
            checksums: (0..4).map(|index| (0..3).map(|unit| 10 * index + unit).collect()).collect(),
            kept: Kept::new(),
            corrupt: BTreeMap::new(),
            incomplete: false,
        }
    }

    /// What is known if the blocks have numbered their updates.
    fn kept(stripe: &StripeRecord, members: &BTreeMap<u8, Vec<u32>>) -> Kept {
        super::kept(stripe, members, &[(0, 1), (1, 1)].into())
    }

    /// The members' checksums, where those of these units of blocks have changed.
    fn members(stripe: &StripeRecord, changed: &[(u8, usize)]) -> BTreeMap<u8, Vec<u32>> {
        let of = |index: u8| (index, stripe.checksums[usize::from(index)].clone());
        let mut members: BTreeMap<u8, Vec<u32>> = (1..4).map(of).collect();
        changed.iter().for_each(|(index, unit)| members.get_mut(index).unwrap()[*unit] += 100);
        members
    }

    #[test]
    fn only_units_that_no_member_has_changed_stay_known() {
        let mut stripe = stripe(3 * MIB, 1);
        assert_eq!(kept(&stripe, &members(&stripe, &[])), [(0, vec![Some(0), Some(1), Some(2)])].into());
        let known = kept(&stripe, &members(&stripe, &[(2, 1), (3, 1)]));
        assert_eq!(known, [(0, vec![Some(0), None, Some(2)])].into());
        assert_eq!(kept(&stripe, &members(&stripe, &[(1, 0), (2, 1), (3, 2)])), Kept::new());
        // The next updates leave less of that.
        stripe.checksums[0].clear();
        assert_eq!(kept(&stripe, &members(&stripe, &[])), Kept::new(), "nothing was known");
        stripe.kept = known;
        assert_eq!(kept(&stripe, &members(&stripe, &[(3, 2)])), [(0, vec![Some(0), None, None])].into());
        // It is not known what a member contained.
        let now = members(&stripe, &[]);
        stripe.checksums[3].clear();
        assert_eq!(kept(&stripe, &now), Kept::new());
    }

    #[test]
    fn a_data_block_without_updates_is_as_before_whatever_others_contain() {
        let mut stripe = stripe(3 * MIB, 1);
        stripe.seq = Seq::new(4, vec![5, 6]);
        let now = members(&stripe, &[(1, 0), (2, 0), (3, 0), (3, 1)]);
        let known = |vector: &Vector| super::kept(&stripe, &now, vector).remove(&0);
        assert_eq!(known(&[(0, 5), (1, 7)].into()), Some(vec![Some(0), Some(1), Some(2)]));
        assert_eq!(known(&[(0, 6), (1, 7)].into()), Some(vec![None, None, Some(2)]));
        // A parity depends on all.
        let mut now = members(&stripe, &[(1, 0), (2, 0)]);
        now.remove(&3);
        now.insert(0, stripe.checksums[0].clone());
        let known = super::kept(&stripe, &now, &[(0, 5), (1, 7)].into()).remove(&3);
        assert_eq!(known, Some(vec![None, Some(31), Some(32)]));
    }

    #[test]
    fn units_that_are_coded_together_change_together() {
        let known = |cell_len, alpha| {
            let stripe = stripe(cell_len, alpha);
            kept(&stripe, &members(&stripe, &[(3, 1)])).remove(&0)
        };
        assert_eq!(known(MIB, 4), Some(vec![Some(0), None, Some(2)]));
        assert_eq!(known(3 * MIB, 2), None, "each MiB may depend on any of the cell");
    }

    #[test]
    fn a_block_agrees_with_what_is_known() {
        let known = [Some(1), None];
        assert!(agrees(&known, &[1, 7]) && agrees(&known, &[1, 8]));
        assert!(!agrees(&known, &[2, 7]) && !agrees(&known, &[1]));
    }
}
