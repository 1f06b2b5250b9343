use super::*;
use crate::block_store::{Image, Patch};
use crate::conformance;
use proptest::prelude::*;
use weft_types::{Reaction, crc32c};

const CLUSTER: ClusterId = ClusterId(0x0011_2233_4455_6677_8899_aabb_ccdd_eeff);

fn sidecar(len: u64) -> Sidecar {
    let meta = conformance::block(CLUSTER, 300, len);
    let pages = conformance::pattern(len).chunks(PAGE_LEN as usize).map(crc32c).collect();
    Sidecar::new(meta, pages).unwrap()
}

/// The same for a stripe with updates.
fn updated(len: u64) -> Sidecar {
    let it = sidecar(len);
    let seq = Seq::new(3, (0..u64::from(it.meta.stripe.k)).map(|index| index * 1000).collect());
    Sidecar { meta: BlockMeta { seq, ..it.meta }, ..it }
}

fn sealed(mut body: Vec<u8>) -> Vec<u8> {
    body.extend(crc32c(&body).to_le_bytes());
    body
}

/// Version 1 stays readable: these bytes must never change.
#[test]
fn version_1_is_still_read() {
    let golden = include_bytes!("sidecar-v1.bin");
    assert_eq!(Sidecar::decode(golden).unwrap(), sidecar(5000));
    assert_eq!(sidecar(5000).encode().unwrap(), golden);
}

/// Version 2, for a block with updates, stays readable too.
#[test]
fn version_2_is_still_read() {
    let golden = include_bytes!("sidecar-v2.bin");
    assert_eq!(Sidecar::decode(golden).unwrap(), updated(5000));
    assert_eq!(updated(5000).encode().unwrap(), golden);
    assert_eq!((golden[8], sidecar(5000).encode().unwrap()[8]), (2, 1), "version 2 is used only for updates");
}

/// Version 3, for a block that was updated in place. An independent program made these bytes.
#[test]
fn version_3_is_still_read() {
    let golden = include_bytes!("sidecar-v3.bin");
    assert_eq!(Sidecar::decode(golden).unwrap(), updated(5000));
    let before = Loaded::decode(&sidecar(5000).encode().unwrap()).unwrap();
    let (after, writes) = before.patched(&counts(&updated(5000))).unwrap();
    assert_eq!(writes, Writes::Replace(golden.to_vec()));
    assert_eq!(after, Loaded::decode(golden).unwrap());
}

/// A patch that changes nothing but the counts.
fn counts(after: &Sidecar) -> Patch<'static> {
    Patch { id: after.meta.id, images: &[], seq: after.meta.seq.clone(), data_len: after.meta.stripe.data_len }
}

/// A file of version 3 for a block with three sectors of page checksums.
fn in_place() -> Vec<u8> {
    let it = sidecar(300 * PAGE_LEN + 9);
    let loaded = Loaded::decode(&it.encode().unwrap()).unwrap();
    match loaded.patched(&counts(&updated(300 * PAGE_LEN + 9))).unwrap().1 {
        Writes::Replace(file) => file,
        other => panic!("{other:?}"),
    }
}

#[test]
fn every_flipped_bit_of_version_3_is_detected_or_means_nothing() {
    let file = in_place();
    let expected = Loaded::decode(&file).unwrap();
    let mut ignored = 0;
    for at in 0..file.len() {
        let mut changed = file.clone();
        changed[at] ^= 1 << (at % 8);
        match Loaded::decode(&changed) {
            Ok(loaded) => {
                assert_eq!(loaded, expected, "byte {at}");
                ignored += 1;
            }
            Err(error) => assert_eq!(error.reaction, Reaction::Corrupt, "byte {at}"),
        }
    }
    assert!(ignored < 4096, "more than the padding of the head is not checked");
    for end in (0..file.len()).rev().step_by(100).chain(file.len() - SECTOR_LEN..file.len()) {
        assert_eq!(Loaded::decode(&file[..end]).unwrap_err().reaction, Reaction::Corrupt, "cut at {end}");
    }
}

const SECTOR_LEN: usize = 512;

/// Whatever part of an update's sectors is written: the counts are new if all are, else old, and no checksum is a mixture unnoticed.
#[test]
fn every_part_of_an_update_of_version_3_is_told_from_the_whole() {
    let file = in_place();
    let before = Loaded::decode(&file).unwrap();
    let content = vec![1; 4096];
    let images = [0, 130, 250].map(|page| Image { offset: page * PAGE_LEN, bytes: &content });
    let seq = Seq::new(4, vec![5, 2000]);
    let patch = Patch { id: before.sidecar.meta.id, images: &images, seq, data_len: before.sidecar.meta.stripe.data_len };
    let (after, writes) = before.patched(&patch).unwrap();
    let Writes::At { first: None, then } = writes else { panic!("{writes:?}") };
    let sectors: Vec<(usize, &[u8])> =
        then.iter().flat_map(|(at, bytes)| (*at as usize..).step_by(SECTOR_LEN).zip(bytes.chunks(SECTOR_LEN))).collect();
    assert_eq!(sectors.len(), 4, "a state and three sectors of checksums");
    for part in 0..1 << sectors.len() {
        let mut torn = file.clone();
        for (_, (at, sector)) in sectors.iter().enumerate().filter(|(bit, _)| part >> bit & 1 == 1) {
            torn[*at..at + SECTOR_LEN].copy_from_slice(sector);
        }
        let read = Loaded::decode(&torn).unwrap();
        let is_whole = part == (1 << sectors.len()) - 1;
        assert_eq!(read.is_interrupted(), part != 0 && !is_whole, "{part:b}");
        assert_eq!(read.sidecar.meta, if is_whole { &after } else { &before }.sidecar.meta, "{part:b}");
        for page in [0, 123, 124, 130, 250] {
            let is_new = read.sidecar.pages[page] != before.sidecar.pages[page];
            assert!(!is_new || is_whole || read.is_page_interrupted(page as u64), "{part:b}, page {page}");
        }
        assert_eq!(Sidecar::decode(&torn).is_ok(), part == 0 || is_whole);
        // Another patch must not leave a part of this one.
        let other = Patch { images: &images[..1], seq: Seq::new(4, vec![6, 2000]), ..patch.clone() };
        let is_left_over = !is_whole && part & 0b1100 != 0;
        assert_eq!(read.patched(&other).is_err(), is_left_over, "{part:b}");
        let (redone, _) = read.patched(&patch).unwrap();
        assert_eq!(redone.sidecar, after.sidecar);
    }
}

/// With counts of many data blocks, a state has several sectors. What a crash has left of them must not become a part of the next update.
#[test]
fn sectors_of_a_torn_state_do_not_join_those_of_a_later_update() {
    let mut meta = conformance::block(CLUSTER, 1, 5000);
    (meta.stripe.k, meta.stripe.m, meta.id.index) = (200, 2, 0);
    let seq = |number: u64| Seq::new(4, vec![(1 << 60) + number; 200]);
    meta.seq = seq(0);
    let pages = vec![7; meta.len().div_ceil(PAGE_LEN) as usize];
    let patch = |number| Patch { id: meta.id, images: &[], seq: seq(number), data_len: meta.stripe.data_len };
    let first = Loaded::decode(&Sidecar::new(meta.clone(), pages).unwrap().encode().unwrap()).unwrap();
    let Writes::Replace(file) = first.patched(&patch(1)).unwrap().1 else { panic!("another version") };
    let Writes::At { first: None, then } = Loaded::decode(&file).unwrap().patched(&patch(2)).unwrap().1 else {
        panic!("no update")
    };
    let (at, state) = &then[0];
    let sectors = state.len() / SECTOR_LEN;
    assert!(sectors > 3);
    for part in 1..1 << sectors {
        let write = |file: &mut [u8], at: usize, bytes: &[u8], part: usize| {
            for (number, sector) in bytes.chunks(SECTOR_LEN).enumerate().filter(|(number, _)| part >> number & 1 == 1) {
                file[at + number * SECTOR_LEN..][..SECTOR_LEN].copy_from_slice(sector);
            }
        };
        let mut torn = file.clone();
        write(&mut torn, *at as usize, state, part);
        let read = Loaded::decode(&torn).unwrap();
        let is_whole = part == (1 << sectors) - 1;
        assert_eq!((read.is_interrupted(), &read.sidecar.meta.seq), (!is_whole, &seq(1 + u64::from(is_whole))), "{part:b}");
        // Another update, which is torn the other way round.
        let Writes::At { first, then } = read.patched(&patch(3)).unwrap().1 else { panic!("no update") };
        assert_eq!(first.is_some(), !is_whole);
        first.into_iter().for_each(|(at, bytes)| write(&mut torn, at as usize, &bytes, usize::MAX));
        write(&mut torn, then[0].0 as usize, &then[0].1, !part);
        assert_eq!(Loaded::decode(&torn).unwrap().sidecar.meta.seq, read.sidecar.meta.seq, "{part:b}");
    }
}

#[test]
fn every_changed_byte_and_every_truncation_is_detected() {
    let bytes = sidecar(3 * PAGE_LEN + 7).encode().unwrap();
    for at in 0..bytes.len() {
        for change in [0x01, 0x80, 0xff] {
            let mut changed = bytes.clone();
            changed[at] ^= change;
            assert_eq!(Sidecar::decode(&changed).unwrap_err().reaction, Reaction::Corrupt, "byte {at}");
        }
        assert!(Sidecar::decode(&bytes[..at]).is_err(), "cut at {at}");
    }
    assert!(Sidecar::decode(&[&bytes[..], &[0]].concat()).is_err(), "a byte too many");
}

#[test]
fn invalid_descriptions_are_refused() {
    let good = conformance::block(CLUSTER, 1, 5000);
    let changes: [fn(&mut BlockMeta); 10] = [
        |meta| meta.stripe.k = 0,
        |meta| (meta.stripe.k, meta.stripe.m) = (u32::MAX, u32::MAX),
        |meta| meta.stripe.layout.block_len = 0,
        |meta| meta.stripe.layout.block_len = u64::MAX,
        |meta| meta.stripe.layout.cell_len = 0,
        |meta| meta.stripe.layout.alpha = 0,
        |meta| meta.stripe.data_len = 0,
        |meta| meta.stripe.data_len = u64::MAX,
        |meta| meta.id.index = 3,
        |meta| meta.seq = Seq::new(0, vec![1; 100]),
    ];
    for change in changes {
        let mut meta = good.clone();
        change(&mut meta);
        assert!(check_meta(&meta).is_err(), "{meta:?}");
        let bytes = Sidecar { meta, pages: vec![1, 2], units: vec![3] }.encode().unwrap();
        assert_eq!(Sidecar::decode(&bytes).unwrap_err().reaction, Reaction::Corrupt);
    }
    let contradiction = Sidecar { meta: good, pages: vec![1, 2], units: vec![3] };
    assert!(Sidecar::decode(&contradiction.encode().unwrap()).unwrap_err().message.contains("contradict"));
}

proptest! {
    /// Changes of version 3 with recomputed checksums, so they reach the decoder.
    #[test]
    fn sealed_changes_of_version_3_never_panic(
        changes in proptest::collection::vec((0usize..19, 0usize..508, any::<u8>()), 1..4), end in 0usize..20_000,
    ) {
        let mut bytes = in_place();
        let head_len = bytes.len() - 19 * SECTOR_LEN;
        for (sector, at, value) in changes {
            let sector = &mut bytes[head_len + sector * SECTOR_LEN..][..SECTOR_LEN];
            sector[at] = value;
            let crc = crc32c(&sector[..508]);
            sector[508..].copy_from_slice(&crc.to_le_bytes());
        }
        bytes.truncate(bytes.len().saturating_sub(end / 10 * 9));
        if let Ok(read) = Loaded::decode(&bytes) {
            prop_assert!(check_meta(read.sidecar.meta()).is_ok());
            prop_assert_eq!(read.sidecar.pages().len() as u64, read.sidecar.meta().len().div_ceil(PAGE_LEN));
        }
    }

    #[test]
    fn any_bytes_are_refused_without_a_panic(bytes: Vec<u8>) {
        prop_assert!(Sidecar::decode(&bytes).is_err());
    }

    /// The same after a valid magic, version and checksum, so the bytes reach the decoder itself.
    #[test]
    fn any_bytes_with_a_valid_checksum_are_refused_without_a_panic(head: [u32; 3], body: Vec<u8>) {
        for version in [FIRST_VERSION, SIDECAR_VERSION] {
            let head = [version, head[0], head[1], head[2]].map(u32::to_le_bytes).concat();
            prop_assert!(Sidecar::decode(&sealed([&MAGIC[..], &head, &body].concat())).is_err());
        }
    }

    /// A changed sidecar with a recomputed checksum is either refused or has a valid description.
    #[test]
    fn sealed_changes_never_panic(changes in proptest::collection::vec((8usize..160, any::<u8>()), 1..4), has_updates: bool) {
        let mut bytes = if has_updates { updated(5000) } else { sidecar(5000) }.encode().unwrap();
        bytes.truncate(bytes.len() - CRC_LEN);
        for (at, value) in changes {
            let at = at % bytes.len();
            bytes[at] = value;
        }
        if let Ok(read) = Sidecar::decode(&sealed(bytes)) {
            prop_assert!(check_meta(read.meta()).is_ok());
            prop_assert_eq!(read.pages().len() as u64, read.meta().len().div_ceil(PAGE_LEN));
        }
    }

    #[test]
    fn encoding_and_decoding_round_trips(len in 0u64..3_000_000, object in ".{0,40}", term: u64, count: u64, copy: u8, generation: u32) {
        let mut meta = conformance::block(CLUSTER, 1, len);
        let seq = Seq::new(term, vec![count; meta.stripe.k as usize]);
        (meta.object, meta.seq, meta.id.copy, meta.id.generation) = (object, seq, copy, generation);
        let pages = (0..len.div_ceil(PAGE_LEN) as u32).map(|page| page.wrapping_mul(0x9e37_79b9)).collect();
        let sidecar = Sidecar::new(meta, pages).unwrap();
        prop_assert_eq!(Sidecar::decode(&sidecar.encode().unwrap()).unwrap(), sidecar);
    }
}
