//! The part of the conformance suite for stores that update blocks in place.

use super::{block, pattern, put, reaction};
use crate::block_store::{BlockReader, BlockStore, Image, Patch, verify};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use weft_types::{BlockMeta, ClusterId, PAGE_LEN, Reaction, Seq, Span, crc32c};

/// Runs this part of the suite. Each call of `make_store` must return an empty store of the cluster.
pub fn check_patches<S: BlockStore>(cluster: ClusterId, mut make_store: impl FnMut() -> S) {
    for len in [1, 4096, 5000, 124 * 4096, 125 * 4096 + 1, (2 << 20) + 5000] {
        what_is_patched_is_read(&make_store(), cluster, len);
    }
    blocks_grow(&make_store(), cluster);
    counts_alone_change(&make_store(), cluster);
    patches_that_do_not_fit_are_refused(&make_store(), cluster);
    a_patched_block_can_be_removed_and_written_again(&make_store(), cluster);
    readers_see_all_of_a_patch_or_nothing(&make_store(), cluster);
}

/// Bytes for a patch; other numbers give other bytes.
fn bytes_of(number: u64, len: u64) -> Vec<u8> {
    pattern(len + number).split_off(number as usize)
}

/// The first counts of a stripe of two data blocks.
fn seq(count: u64) -> Seq {
    Seq::new(3, vec![count, 7])
}

/// Patches whole pages of a block. `bytes` is what it contains; returns that afterwards.
fn patch(store: &dyn BlockStore, meta: &BlockMeta, bytes: &mut Vec<u8>, spans: &[Span], count: u64) -> BlockMeta {
    let len = spans.iter().map(|span| span.end).fold(meta.len(), u64::max);
    bytes.resize(len as usize, 0);
    let new = bytes_of(count, len);
    let images: Vec<Image<'_>> =
        spans.iter().map(|span| Image { offset: span.start, bytes: &new[span.start as usize..span.end as usize] }).collect();
    for span in spans {
        bytes[span.start as usize..span.end as usize].copy_from_slice(&new[span.start as usize..span.end as usize]);
    }
    let mut after = BlockMeta { seq: seq(count), ..meta.clone() };
    after.stripe.data_len = after.stripe.data_len.max(len);
    let patch = Patch { id: meta.id, images: &images, seq: after.seq.clone(), data_len: after.stripe.data_len };
    let receipt = store.patch(&patch).expect("patch");
    assert_eq!((receipt.len, &receipt.units), (len, &units(bytes)));
    assert_eq!(store.patch(&patch).expect("the same again"), receipt);
    after
}

fn units(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks(1 << 20).map(crc32c).collect()
}

fn has(reader: &dyn BlockReader, bytes: &[u8]) {
    let mut read = vec![0; bytes.len() + 100];
    let checksum = reader.read_at(0, &mut read).expect("read");
    assert_eq!(checksum, crc32c(&read));
    assert!(read[..bytes.len()] == *bytes && read[bytes.len()..].iter().all(|byte| *byte == 0));
}

fn is(store: &dyn BlockStore, meta: &BlockMeta, bytes: &[u8]) {
    let reader = store.open(meta.id).expect("open");
    assert_eq!(reader.meta(), meta);
    assert_eq!((reader.units(), store.unit_checksums(meta.id).expect("units")), (&units(bytes)[..], units(bytes)));
    assert_eq!(reader.pages(), bytes.chunks(4096).map(crc32c).collect::<Vec<_>>());
    assert_eq!((verify(&*reader).expect("verify"), reader.is_interrupted()), (vec![], false));
    has(&*reader, bytes);
}

fn what_is_patched_is_read(store: &dyn BlockStore, cluster: ClusterId, len: u64) {
    let meta = block(cluster, 5, len);
    let mut bytes = put(store, &meta);
    let before = store.open(meta.id).expect("open");
    let last = Span::new((len - 1) / PAGE_LEN * PAGE_LEN, len);
    let first = Span::new(0, len.min(PAGE_LEN));
    let after = patch(store, &meta, &mut bytes, &[first], 1);
    is(store, &after, &bytes);
    let after = patch(store, &after, &mut bytes, &[last], 2);
    is(store, &after, &bytes);
    has(&*before, &bytes);
    assert_eq!((before.meta(), before.units()), (&meta, &units(&pattern(len))[..]), "as it was opened");
    let after = patch(store, &after, &mut bytes, &[Span::new(0, len)], 3);
    is(store, &after, &bytes);
    if len > 8 * PAGE_LEN {
        let some = [Span::new(4096, 8192), Span::new(8192, 16_384), Span::new(5 * 4096, 6 * 4096), last];
        let after = patch(store, &after, &mut bytes, &some, 4);
        is(store, &after, &bytes);
    }
    has(&*before, &bytes);
}

fn blocks_grow(store: &dyn BlockStore, cluster: ClusterId) {
    let mut meta = block(cluster, 6, 5000);
    let mut bytes = put(store, &meta);
    let before = store.open(meta.id).expect("open");
    for (count, end) in [5001, 8192, 8193, 124 * 4096, 130 * 4096 + 5, (1 << 20) + 1].into_iter().enumerate() {
        let start = meta.len() / PAGE_LEN * PAGE_LEN;
        meta = patch(store, &meta, &mut bytes, &[Span::new(start, end)], count as u64 + 1);
        assert_eq!(meta.len(), end);
        is(store, &meta, &bytes);
    }
    has(&*before, &bytes);
    // The stripe grows, this block does not.
    let mut parity = block(cluster, 7, 5000);
    parity.id.index = 1;
    parity.stripe.data_len = (4 << 20) + 100;
    let bytes = put(store, &parity);
    let (seq, data_len) = (parity.seq.clone(), parity.stripe.data_len);
    store.patch(&Patch { id: parity.id, images: &[], seq, data_len }).expect("patch");
    is(store, &parity, &bytes);
}

fn counts_alone_change(store: &dyn BlockStore, cluster: ClusterId) {
    let meta = block(cluster, 8, 5000);
    let mut bytes = put(store, &meta);
    for count in [1, 2, 300] {
        let after = patch(store, &meta, &mut bytes, &[], count);
        is(store, &after, &bytes);
    }
}

fn patches_that_do_not_fit_are_refused(store: &dyn BlockStore, cluster: ClusterId) {
    let meta = block(cluster, 9, 20_000);
    let mut bytes = put(store, &meta);
    let meta = patch(store, &meta, &mut bytes, &[Span::new(0, 4096)], 5);
    let new = vec![1; 40_000];
    let refuse = |what: &str, spans: &[Span], seq: Seq, data_len: u64| {
        let image = |span: &Span| Image { offset: span.start, bytes: &new[span.start as usize..span.end as usize] };
        let images: Vec<Image<'_>> = spans.iter().map(image).collect();
        let error = store.patch(&Patch { id: meta.id, images: &images, seq, data_len }).expect_err(what);
        assert_eq!((error.reaction, error.block), (Reaction::InvalidInput, Some(meta.id)), "{what}: {error}");
    };
    refuse("not the beginning of a page", &[Span::new(1, 4096)], seq(6), 20_000);
    refuse("not the end of a page", &[Span::new(0, 4095)], seq(6), 20_000);
    refuse("nothing", &[Span::new(0, 0)], seq(6), 20_000);
    refuse("beyond the end", &[Span::new(16_384, 20_480)], seq(6), 20_000);
    refuse("descending", &[Span::new(4096, 8192), Span::new(0, 4096)], seq(6), 20_000);
    refuse("twice", &[Span::new(0, 8192), Span::new(4096, 8192)], seq(6), 20_000);
    refuse("an earlier count", &[Span::new(0, 4096)], seq(4), 20_000);
    refuse("an earlier term", &[Span::new(0, 4096)], Seq::new(2, vec![6, 7]), 20_000);
    refuse("no counts", &[Span::new(0, 4096)], Seq::default(), 20_000);
    refuse("counts of another stripe", &[Span::new(0, 4096)], Seq::new(3, vec![6; 3]), 20_000);
    refuse("shorter", &[Span::new(0, 4096)], seq(6), 19_999);
    refuse("longer than the stripe", &[Span::new(0, 4096)], seq(6), (8 << 20) + 1);
    refuse("growth without bytes", &[Span::new(0, 4096)], seq(6), 20_001);
    refuse("growth without the old end", &[Span::new(20_480, 30_000)], seq(6), 30_000);
    refuse("growth with a gap", &[Span::new(16_384, 20_480), Span::new(24_576, 30_000)], seq(6), 30_000);
    is(store, &meta, &bytes);
    let other = block(cluster, 10, 5000);
    let patch = Patch { id: other.id, images: &[], seq: seq(1), data_len: 5000 };
    assert_eq!(reaction(store.patch(&patch)), Reaction::NotFound);
    let writer = store.create(&other).expect("create");
    assert_eq!(reaction(store.patch(&patch)), Reaction::Retry, "while it is written");
    drop(writer);
    assert_eq!(reaction(store.patch(&patch)), Reaction::NotFound);
}

fn a_patched_block_can_be_removed_and_written_again(store: &dyn BlockStore, cluster: ClusterId) {
    let meta = block(cluster, 11, 9000);
    let mut bytes = put(store, &meta);
    patch(store, &meta, &mut bytes, &[Span::new(4096, 8192)], 1);
    let reader = store.open(meta.id).expect("open");
    assert!(store.remove(meta.id).expect("remove"));
    has(&*reader, &bytes);
    let mut bytes = put(store, &meta);
    is(store, &meta, &bytes);
    let after = patch(store, &meta, &mut bytes, &[Span::new(8192, 9000)], 1);
    store.quarantine(meta.id, "a test", Some(1)).expect("quarantine");
    assert_eq!(reaction(store.open(meta.id)), Reaction::NotFound);
    let bytes = put(store, &meta);
    assert_ne!(after, meta);
    is(store, &meta, &bytes);
}

fn readers_see_all_of_a_patch_or_nothing(store: &dyn BlockStore, cluster: ClusterId) {
    const LEN: u64 = 10 * PAGE_LEN;
    let meta = block(cluster, 12, LEN);
    put(store, &meta);
    let all = |value: u8| vec![value; LEN as usize];
    let write = |count: u64| {
        let bytes = all(count as u8);
        let images = [Image { offset: 0, bytes: &bytes }];
        store.patch(&Patch { id: meta.id, images: &images, seq: seq(count), data_len: LEN }).expect("patch");
    };
    write(1);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for reopens in [false, true] {
            let (is_over, meta) = (&is_over, &meta);
            scope.spawn(move || {
                let mut reader = store.open(meta.id).expect("open");
                let (mut read, mut last) = (vec![0; LEN as usize], 0);
                while !is_over.load(Relaxed) {
                    if reopens {
                        reader = store.open(meta.id).expect("open");
                    }
                    reader.read_at(0, &mut read).expect("read");
                    assert!(read.iter().all(|byte| *byte == read[0]), "a mixture was read");
                    assert!(read[0] >= last, "an update was taken back");
                    last = read[0];
                    if let Some(checksum) = reader.read_cached(0, &mut read) {
                        assert!(checksum == crc32c(&read) && read.iter().all(|byte| *byte == read[0]));
                    }
                }
            });
        }
        (2..40).for_each(write);
        is_over.store(true, Relaxed);
    });
}
