use super::*;
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
