//! The blobs in the rows of stripes and jobs. Each blob begins with its version, and every version stays readable.

use crate::{MetaError, Result, jobs::shortened, kept::Kept};
use serde::{Serialize, de::DeserializeOwned};
use std::collections::{BTreeMap, btree_map::Entry};
use weft_types::{
    HelperSelect, JobWork, LeftBlock, NodeRepair, PlacedBlock, Prefer, SCRUB_WHY_BYTES_MAX, ScrubRecord, StripeLayout,
    StripeRecord,
};
use weft_update::StripeTerm;

/// Version 1: the postcard encoding of the value.
const VERSION: u8 = 1;
/// The version of a placement with copies.
const COPIES_VERSION: u8 = 2;
/// The version of a placement in which some indexes have no block, because it would be empty.
const HOLES_VERSION: u8 = 3;

/// The version of checksums with what is known of blocks that have none.
const KEPT_VERSION: u8 = 2;

/// The version of a job's work with what it prefers.
const PREFER_VERSION: u8 = 2;

/// A stripe's blocks by index, and their copies, each with its index.
pub(crate) type Placement = (BTreeMap<u8, PlacedBlock>, Vec<(u8, PlacedBlock)>);

/// Packs a stripe's layout.
pub(crate) fn pack_layout(layout: &StripeLayout) -> Result<Vec<u8>> {
    pack(layout)
}

/// The inverse of [`pack_layout`].
pub(crate) fn unpack_layout(blob: &[u8]) -> Result<StripeLayout> {
    unpack("a stripe's layout", blob)
}

/// Packs the homes of a stripe's blocks and their copies. Version 1: only first copies. Otherwise the postcard encoding
/// of the ascending list of (index, copy, block): version 2 if each index has a block, and version 3 if one has none.
pub(crate) fn pack_placement(blocks: &BTreeMap<u8, PlacedBlock>, copies: &[(u8, PlacedBlock)]) -> Result<Vec<u8>> {
    let has_holes = !blocks.keys().copied().eq((0..=u8::MAX).take(blocks.len()));
    if !has_holes && copies.is_empty() && blocks.values().all(|placed| placed.copy == 0) {
        return pack(&blocks.values().collect::<Vec<_>>());
    }
    let all = blocks.iter().map(|(index, placed)| (*index, *placed)).chain(copies.iter().copied());
    let mut all: Vec<(u8, u8, PlacedBlock)> = all.map(|(index, placed)| (index, placed.copy, placed)).collect();
    all.sort_unstable_by_key(|(index, copy, _)| (*index, *copy));
    pack_as(if has_holes { HOLES_VERSION } else { COPIES_VERSION }, &all)
}

/// The inverse of [`pack_placement`].
pub(crate) fn unpack_placement(blob: &[u8]) -> Result<Placement> {
    let what = "a stripe's placement";
    let version = match blob.first() {
        Some(version @ (&COPIES_VERSION | &HOLES_VERSION)) => *version,
        _ => {
            let blocks: Vec<PlacedBlock> = unpack(what, blob)?;
            return Ok(((0..=u8::MAX).zip(blocks).collect(), Vec::new()));
        }
    };
    let all: Vec<(u8, u8, PlacedBlock)> = unpack_as(version, what, blob)?;
    let (mut blocks, mut copies) = (BTreeMap::new(), Vec::new());
    for (index, copy, placed) in all {
        let placed = PlacedBlock { copy, ..placed };
        match blocks.entry(index) {
            Entry::Vacant(first) => drop(first.insert(placed)),
            Entry::Occupied(_) => copies.push((index, placed)),
        }
    }
    if version == COPIES_VERSION && !blocks.keys().copied().eq((0..=u8::MAX).take(blocks.len())) {
        return Err(MetaError::Storage(format!("{what} lacks a block")));
    }
    Ok((blocks, copies))
}

/// Packs checksums with four bytes each: they are random, and a variable-length number would take five.
pub(crate) fn pack_checksums(checksums: &[Vec<u32>]) -> Result<Vec<u8>> {
    pack(&fixed(checksums))
}

/// A block's index and its units' checksums, as they are encoded.
type KeptBlock = (u8, Vec<Option<[u8; 4]>>);

/// Packs a stripe's checksums. Version 1: only these. Version 2, if some are known of blocks that have none: the pair of these and of the list of
/// (index, checksums).
pub(crate) fn pack_units(stripe: &StripeRecord) -> Result<Vec<u8>> {
    if stripe.kept.is_empty() {
        return pack_checksums(&stripe.checksums);
    }
    let fixed_of = |units: &Vec<Option<u32>>| units.iter().map(|unit| unit.map(u32::to_le_bytes)).collect();
    let kept: Vec<KeptBlock> = stripe.kept.iter().map(|(index, units)| (*index, fixed_of(units))).collect();
    pack_as(KEPT_VERSION, &(fixed(&stripe.checksums), kept))
}

/// The inverse of [`pack_units`], and of [`pack_checksums`].
pub(crate) fn unpack_units(blob: &[u8]) -> Result<(Vec<Vec<u32>>, Kept)> {
    let what = "a stripe's checksums";
    let (checksums, kept): (Vec<Vec<[u8; 4]>>, Vec<KeptBlock>) = match blob.first() {
        Some(&KEPT_VERSION) => unpack_as(KEPT_VERSION, what, blob)?,
        _ => (unpack(what, blob)?, Vec::new()),
    };
    let checksums = checksums.into_iter().map(|block| block.into_iter().map(u32::from_le_bytes).collect()).collect();
    let known = |units: Vec<Option<[u8; 4]>>| units.into_iter().map(|unit| unit.map(u32::from_le_bytes)).collect();
    Ok((checksums, kept.into_iter().map(|(index, units)| (index, known(units))).collect()))
}

fn fixed(checksums: &[Vec<u32>]) -> Vec<Vec<[u8; 4]>> {
    checksums.iter().map(|block| block.iter().map(|unit| unit.to_le_bytes()).collect()).collect()
}

/// Packs update counts; `None` if there are none.
pub(crate) fn pack_counts(counts: &[u64]) -> Result<Option<Vec<u8>>> {
    if counts.is_empty() { Ok(None) } else { pack(counts).map(Some) }
}

/// The inverse of [`pack_counts`].
pub(crate) fn unpack_counts(blob: Option<&[u8]>) -> Result<Vec<u64>> {
    blob.map_or(Ok(Vec::new()), |blob| unpack("a stripe's update counts", blob))
}

/// Packs a job's work. Version 1: the postcard encoding of the work. Version 2, for what a job prefers if that is not the
/// default, or if the first releases do not know its way to select: of the pair of the work and that.
pub(crate) fn pack_work(work: &JobWork) -> Result<Vec<u8>> {
    let is_first = |repair: &NodeRepair| {
        let known = matches!(repair.select, HelperSelect::Lru | HelperSelect::Random | HelperSelect::Index);
        known && repair.prefer == Prefer::default() && repair.concurrency > 0
    };
    match work {
        JobWork::RepairNode(repair) if !is_first(repair) => pack_as(PREFER_VERSION, &(work, repair.prefer)),
        _ => pack(work),
    }
}

/// The inverse of [`pack_work`].
pub(crate) fn unpack_work(blob: &[u8]) -> Result<JobWork> {
    let what = "a job's work";
    if blob.first() != Some(&PREFER_VERSION) {
        return unpack(what, blob);
    }
    let (mut work, prefer): (JobWork, Prefer) = unpack_as(PREFER_VERSION, what, blob)?;
    if let JobWork::RepairNode(repair) = &mut work {
        repair.prefer = prefer;
    }
    Ok(work)
}

/// Packs the blocks that a job left out.
pub(crate) fn pack_left(blocks: &[LeftBlock]) -> Result<Vec<u8>> {
    pack(blocks)
}

/// The inverse of [`pack_left`].
pub(crate) fn unpack_left(blob: &[u8]) -> Result<Vec<LeftBlock>> {
    unpack("a job's list of blocks left out", blob)
}

/// Packs a stripe's term.
pub(crate) fn pack_term(term: &StripeTerm) -> Result<Vec<u8>> {
    pack(term)
}

/// The inverse of [`pack_term`].
pub(crate) fn unpack_term(blob: &[u8]) -> Result<StripeTerm> {
    unpack("a stripe's term", blob)
}

/// Packs how far a scrub is. Texts are cut to their stored length.
pub(crate) fn pack_scrub(record: &ScrubRecord) -> Result<Vec<u8>> {
    let mut record = record.clone();
    let last = record.last.iter_mut().flat_map(|last| &mut last.wrong);
    for wrong in record.wrong.iter_mut().chain(last) {
        wrong.why.truncate(shortened(&wrong.why, SCRUB_WHY_BYTES_MAX).len());
    }
    pack(&record)
}

/// The inverse of [`pack_scrub`].
pub(crate) fn unpack_scrub(blob: &[u8]) -> Result<ScrubRecord> {
    unpack("how far a scrub is", blob)
}

fn pack<T: Serialize + ?Sized>(value: &T) -> Result<Vec<u8>> {
    pack_as(VERSION, value)
}

fn pack_as<T: Serialize + ?Sized>(version: u8, value: &T) -> Result<Vec<u8>> {
    postcard::to_extend(value, vec![version]).map_err(|error| MetaError::Storage(format!("cannot encode a record: {error}")))
}

fn unpack<T: DeserializeOwned>(what: &str, blob: &[u8]) -> Result<T> {
    unpack_as(VERSION, what, blob)
}

fn unpack_as<T: DeserializeOwned>(known: u8, what: &str, blob: &[u8]) -> Result<T> {
    match blob.split_first() {
        Some((version, packed)) if *version == known => {
            postcard::from_bytes(packed).map_err(|error| MetaError::Storage(format!("cannot decode {what}: {error}")))
        }
        Some((version, _)) => {
            Err(MetaError::Storage(format!("{what} has version {version}, but this weft reads version {known}")))
        }
        None => Err(MetaError::Storage(format!("{what} is empty"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_types::{
        BlockId, BlockState, Conversion, DiskNumber, Home, NodeId, Scrub, ScrubPass, ScrubPlace, ScrubTally, StripeId, WrongBlock,
    };
    use weft_update::{Outcome, Sealed, Session, UpdateId};

    #[test]
    fn packed_records_unpack_and_other_versions_are_named() {
        let checksums = vec![vec![0, 1, u32::MAX], vec![], vec![7]];
        let blob = pack_checksums(&checksums).unwrap();
        assert_eq!(blob.len(), 1 + 1 + 3 + 4 * 4, "a version, a count, three counts, four checksums");
        assert_eq!(unpack_units(&blob).unwrap(), (checksums, Kept::new()));

        let mut other = blob.clone();
        other[0] = 9;
        assert!(unpack_units(&other).unwrap_err().to_string().contains("version 9"));
        assert!(unpack_units(&blob[..blob.len() - 1]).is_err());
        assert!(unpack_units(&[]).is_err());
        let kept = [2, 2, 1, 7, 0, 0, 0, 0, 1, 1, 2, 1, 9, 0, 0, 0, 0];
        let known: Kept = [(1, vec![Some(9), None])].into();
        assert_eq!(unpack_units(&kept).unwrap(), (vec![vec![7], vec![]], known), "the bytes of version 2");
    }

    #[test]
    fn a_placement_without_copies_keeps_version_1_and_one_with_copies_keeps_its_order() {
        let home = |node| Home { node: NodeId(node), disk: DiskNumber(node) };
        let place =
            |node, copy| PlacedBlock { generation: 1, generation_high_water: 3, home: home(node), state: BlockState::Ok, copy };
        let by_index = |blocks: Vec<PlacedBlock>| (0..=u8::MAX).zip(blocks).collect::<BTreeMap<u8, PlacedBlock>>();
        let plain = by_index(vec![place(1, 0), place(2, 0)]);
        let blob = pack_placement(&plain, &[]).unwrap();
        assert_eq!(blob, [1, 2, 1, 3, 1, 1, 0, 1, 3, 2, 2, 0], "the bytes of version 1");
        assert_eq!(unpack_placement(&blob).unwrap(), (plain, vec![]));

        // The first copy of the second block is gone; another copy takes its place as the first for readers.
        let (blocks, copies) = (by_index(vec![place(5, 2), place(2, 1)]), vec![(0, place(1, 0)), (0, place(4, 1))]);
        let blob = pack_placement(&blocks, &copies).unwrap();
        assert_eq!(blob[0], 2);
        let in_order = (by_index(vec![place(1, 0), place(2, 1)]), vec![(0, place(4, 1)), (0, place(5, 2))]);
        assert_eq!(unpack_placement(&blob).unwrap(), in_order);
        assert!(unpack_placement(&blob[..blob.len() - 1]).is_err());
        let hole = pack_as(COPIES_VERSION, &vec![(1u8, 0u8, place(1, 0))]).unwrap();
        assert!(unpack_placement(&hole).unwrap_err().to_string().contains("lacks a block"));
    }

    #[test]
    fn the_packed_form_of_jobs_is_unchanged() {
        let repair = NodeRepair {
            node: NodeId(2),
            select: HelperSelect::Random,
            prefer: Prefer::default(),
            to: vec![NodeId(4)],
            scheme: "s".into(),
            concurrency: 3,
            slice_len: 0,
            force: true,
        };
        let (bucket, policy) = ("b".to_owned(), "p".to_owned());
        let convert = Conversion { bucket, key: None, policy, concurrency: 2, bytes_per_s: 300 };
        let left = vec![LeftBlock { object: "b/k".into(), stripe: 7, index: 3, reason: "r".into() }];
        assert_eq!(pack_work(&JobWork::RepairNode(repair.clone())).unwrap(), [1, 0, 2, 1, 1, 4, 1, b's', 3, 0, 1]);
        let newer = JobWork::RepairNode(NodeRepair { select: HelperSelect::Boost, prefer: Prefer::Traffic, ..repair });
        let blob = pack_work(&newer).unwrap();
        assert_eq!(blob, [2, 0, 2, 3, 1, 4, 1, b's', 3, 0, 1, 2], "the bytes of version 2");
        assert_eq!(unpack_work(&blob).unwrap(), newer);
        assert_eq!(pack_work(&JobWork::Convert(convert)).unwrap(), [1, 1, 1, b'b', 0, 1, b'p', 2, 0xac, 2]);
        let scrub = Scrub { bucket: Some("b".into()), key: None, node: Some(NodeId(3)), concurrency: 4 };
        assert_eq!(pack_work(&JobWork::Scrub(scrub)).unwrap(), [1, 3, 1, 1, b'b', 0, 1, 3, 4]);
        assert_eq!(pack_left(&left).unwrap(), [1, 1, 3, b'b', b'/', b'k', 7, 3, 1, b'r']);
    }

    #[test]
    fn the_packed_form_of_scrubs_is_unchanged() {
        let block = BlockId { stripe: StripeId(5), index: 2, copy: 0, generation: 1 };
        let wrong = |why: &str| WrongBlock { object: "b/k".into(), stripe: 7, block: Some((block, NodeId(4))), why: why.into() };
        let tally = ScrubTally { stripes: 1, blocks: 2, bytes: 3, wrong_blocks: 4, ..ScrubTally::default() };
        let last = ScrubPass { began_ms: 1, ended_ms: 2, tally, wrong: Vec::new() };
        let record = ScrubRecord {
            began_ms: 9,
            place: ScrubPlace { key: String::new(), stripe: 8 },
            tally: ScrubTally { lacking_blocks: 5, away_blocks: 6, skipped_stripes: 7, ..ScrubTally::default() },
            again: vec![StripeId(6)],
            wrong: vec![wrong("w")],
            last: Some(last),
        };
        let blob = pack_scrub(&record).unwrap();
        let expected = [
            &[1, 9, 0, 8][..],
            &[0, 0, 0, 0, 0, 5, 6, 7],
            &[1, 6],
            &[1, 3, b'b', b'/', b'k', 7, 1, 5, 2, 0, 1, 4, 1, b'w'],
            &[1, 1, 2, 1, 2, 3, 4, 0, 0, 0, 0, 0],
        ];
        assert_eq!(blob, expected.concat());
        assert_eq!(unpack_scrub(&blob).unwrap(), record);
        let long = ScrubRecord { wrong: vec![wrong(&"é".repeat(SCRUB_WHY_BYTES_MAX))], ..ScrubRecord::default() };
        assert_eq!(unpack_scrub(&pack_scrub(&long).unwrap()).unwrap().wrong[0].why.len(), SCRUB_WHY_BYTES_MAX);
    }

    #[test]
    fn the_packed_form_of_terms_is_unchanged() {
        let block = |index| BlockId { stripe: StripeId(5), index, copy: 0, generation: 1 };
        let id = UpdateId { session: Session { number: 300, ends_at_ms: 9 }, counter: 2, lead: 1 };
        let sealed = Sealed {
            term: 3,
            members: vec![block(0), block(1)],
            outcomes: [(id, Outcome::Aborted)].into(),
            vector: [(1, 6)].into(),
            floors: [(id.session, 1)].into(),
        };
        let term = StripeTerm { term: 4, sealed: sealed.into(), unaware: [block(1)].into() };
        let blob = pack_term(&term).unwrap();
        let sealed =
            [&[3, 2][..], &[5, 0, 0, 1, 5, 1, 0, 1], &[1, 0xac, 2, 9, 2, 1, 1], &[1, 1, 6], &[1, 0xac, 2, 9, 1]].concat();
        assert_eq!(blob, [&[1, 4][..], &sealed, &[1, 5, 1, 0, 1]].concat());
        assert_eq!(unpack_term(&blob).unwrap(), term);
        assert!(unpack_term(&[&[9], &blob[1..]].concat()).unwrap_err().to_string().contains("version 9"));
    }

    #[test]
    fn empty_blocks_are_not_in_a_placement() {
        let home = Home { node: NodeId(4), disk: DiskNumber(4) };
        let placed = PlacedBlock { generation: 1, generation_high_water: 1, home, state: BlockState::Ok, copy: 0 };
        let blocks: BTreeMap<u8, PlacedBlock> = [0, 6, 7].map(|index| (index, placed)).into();
        for copies in [Vec::new(), vec![(0, PlacedBlock { copy: 1, ..placed })]] {
            let blob = pack_placement(&blocks, &copies).unwrap();
            assert_eq!((blob[0], unpack_placement(&blob).unwrap()), (3, (blocks.clone(), copies)));
        }
        let blob = pack_placement(&blocks, &[]).unwrap();
        assert_eq!(blob, [3, 3, 0, 0, 1, 1, 4, 4, 0, 6, 0, 1, 1, 4, 4, 0, 7, 0, 1, 1, 4, 4, 0], "the bytes of version 3");
    }
}
