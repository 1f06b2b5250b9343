//! The conformance suite of [`BlockStore`], for tests: it panics if a store breaks the trait's contract.

mod patches;

pub use patches::check_patches;

use crate::block_store::{BlockStore, BlockWriter, Quarantined, verify};
use weft_types::{BlockId, BlockMeta, ClusterId, Layout, Reaction, Seq, Span, StripeId, StripeLayout, crc32c};

/// Runs the whole suite. Each call of `make_store` must return an empty store of the cluster.
pub fn check<S: BlockStore>(cluster: ClusterId, mut make_store: impl FnMut() -> S) {
    for len in [0, 1, 4095, 4096, 4097, 3 * 4096, (1 << 20) - 1, 1 << 20, (2 << 20) + 5000] {
        what_is_written_is_read(&make_store(), cluster, len);
    }
    runs_in_any_order(&make_store(), cluster);
    sub_blocks_of_less_than_a_page(&make_store(), cluster);
    nothing_is_seen_before_finish(&make_store(), cluster);
    refusals(&make_store(), cluster);
    removal(&make_store(), cluster);
    listing(&make_store(), cluster);
    quarantine(&make_store(), cluster);
    let capacity = make_store().capacity().expect("capacity");
    assert!(capacity.free_bytes <= capacity.total_bytes && capacity.total_bytes > 0, "{capacity:?}");
}

/// The description of a block of the given stripe with `len` payload bytes.
pub fn block(cluster: ClusterId, stripe: u64, len: u64) -> BlockMeta {
    let layout = Layout { block_len: 4 << 20, cell_len: 4 << 20, alpha: 1 };
    // The first block holds all bytes of a short object. An empty block is the second block of a stripe with one byte.
    let (index, data_len) = if len == 0 { (1, 1) } else { (0, len) };
    BlockMeta {
        cluster,
        id: BlockId { stripe: StripeId(stripe), index, copy: 0, generation: 1 },
        object: "bucket/key".to_owned(),
        version: 7,
        object_offset: 3 << 22,
        code: "rs(2,1)".to_owned(),
        generator_hash: 0x0123_4567_89ab_cdef,
        stripe: StripeLayout { layout, k: 2, m: 1, data_len },
        seq: Seq::default(),
    }
}

/// Bytes that differ from page to page.
pub fn pattern(len: u64) -> Vec<u8> {
    (0..len).map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 29) as u8).collect()
}

fn put(store: &dyn BlockStore, meta: &BlockMeta) -> Vec<u8> {
    let bytes = pattern(meta.len());
    let mut writer = store.create(meta).expect("create");
    writer.write_at(0, &bytes).expect("write");
    writer.finish(None).expect("finish");
    bytes
}

fn reaction<T>(result: weft_types::Result<T>) -> Reaction {
    result.err().expect("an error was expected").reaction
}

fn what_is_written_is_read(store: &dyn BlockStore, cluster: ClusterId, len: u64) {
    let meta = block(cluster, 5, len);
    let bytes = pattern(len);
    let units: Vec<u32> = bytes.chunks(1 << 20).map(crc32c).collect();
    let mut writer = store.create(&meta).expect("create");
    assert_eq!(writer.missing(), if len == 0 { vec![] } else { vec![Span::new(0, len)] });
    writer.write_at(0, &bytes).expect("write");
    let receipt = writer.finish(Some(&units)).expect("finish");
    assert_eq!((receipt.len, &receipt.units), (len, &units));
    assert_eq!(store.unit_checksums(meta.id).expect("units"), units);

    let reader = store.open(meta.id).expect("open");
    assert_eq!(*reader.meta(), meta);
    assert_eq!(reader.units(), units);
    assert_eq!(reader.pages(), bytes.chunks(4096).map(crc32c).collect::<Vec<_>>());
    assert_eq!(verify(&*reader).expect("verify"), []);
    let edges = [0, 1, 2048, 4095, 4096, 4097, 8191, 8192, 12_288, 12_300];
    let edges: Vec<u64> = edges.into_iter().chain([len.saturating_sub(1), len, len + 1, len + 9000]).collect();
    for start in edges.iter().copied() {
        for end in edges.iter().copied().filter(|end| *end >= start) {
            let mut buf = vec![0xaa; (end - start) as usize];
            let checksum = reader.read_at(start, &mut buf).expect("read");
            assert_eq!(checksum, crc32c(&buf), "{start}..{end} of {len}");
            let inside = bytes.get(start.min(len) as usize..end.min(len) as usize).expect("a range of the block");
            assert_eq!(buf[..inside.len()], *inside, "{start}..{end} of {len}");
            assert!(buf[inside.len()..].iter().all(|byte| *byte == 0), "zeros beyond the end: {start}..{end} of {len}");
            let mut cached = vec![0xaa; buf.len()];
            if let Some(cached_checksum) = reader.read_cached(start, &mut cached) {
                assert!(cached == buf && cached_checksum == checksum, "{start}..{end} of {len} without waiting");
            }
        }
    }
}

/// Sub-blocks arrive as strided runs, and lanes arrive out of order.
fn runs_in_any_order(store: &dyn BlockStore, cluster: ClusterId) {
    let meta = block(cluster, 6, 100_000);
    let bytes = pattern(100_000);
    for run_len in [4096, 1024, 1000] {
        let mut writer = store.create(&meta).expect("create");
        let runs: Vec<usize> = (0..100_000).step_by(run_len).collect();
        for stride in [3, 2, 1, 0] {
            for start in runs.iter().enumerate().filter(|(i, _)| i % 4 == stride).map(|(_, start)| *start) {
                let end = (start + run_len).min(bytes.len());
                let mut run = bytes[start..end].to_vec();
                run.resize(run_len, 0);
                writer.write_at(start as u64, &run).expect("write");
            }
        }
        assert_eq!(writer.missing(), []);
        assert_eq!(writer.finish(None).expect("finish").units, [crc32c(&bytes)]);
        let mut read = vec![1; bytes.len()];
        store.open(meta.id).expect("open").read_at(0, &mut read).expect("read");
        assert!(read == bytes);
        assert!(store.remove(meta.id).expect("remove"));
    }
}

/// Codes with sub-blocks write one strided run for each sub-block of a cell; here each is half a page, in two lanes.
fn sub_blocks_of_less_than_a_page(store: &dyn BlockStore, cluster: ClusterId) {
    let mut meta = block(cluster, 11, 50_000);
    let layout = Layout { block_len: 1 << 20, cell_len: 8192, alpha: 4 };
    meta.stripe.layout = layout;
    meta.id.index = 2;
    let len = meta.len();
    let bytes = pattern(len);
    let mut writer = store.create(&meta).expect("create");
    let positions = len / u64::from(layout.alpha);
    let slices: Vec<Span> = (0..positions).step_by(4096).map(|start| Span::new(start, (start + 4096).min(positions))).collect();
    let lanes = [1, 0].into_iter().flat_map(|lane| slices.iter().skip(lane).step_by(2));
    for slice in lanes {
        for extent in (0..layout.alpha).rev().flat_map(|sub_block| layout.extents(sub_block, *slice)) {
            let run = &bytes[extent.offset as usize..(extent.offset + extent.len) as usize];
            writer.write_at(extent.offset, run).expect("write");
        }
    }
    assert_eq!(writer.finish(Some(&[crc32c(&bytes)])).expect("finish").len, len);
    assert_eq!(verify(&*store.open(meta.id).expect("open")).expect("verify"), []);
}

fn nothing_is_seen_before_finish(store: &dyn BlockStore, cluster: ClusterId) {
    let meta = block(cluster, 7, 5000);
    let unseen = |what| {
        assert_eq!(reaction(store.open(meta.id)), Reaction::NotFound, "{what}");
        assert_eq!(store.list().expect("list"), [], "{what}");
    };
    let start = || -> Box<dyn BlockWriter> {
        let mut writer = store.create(&meta).expect("create");
        writer.write_at(0, &pattern(4096)).expect("write");
        writer
    };
    let writer = start();
    unseen("while it is written");
    assert_eq!(reaction(store.create(&meta)), Reaction::Retry);
    assert_eq!(reaction(store.remove(meta.id)), Reaction::Retry);
    drop(writer);
    unseen("after it was dropped");
    assert_eq!(start().missing(), [Span::new(4096, 5000)]);
    assert_eq!(reaction(start().finish(None)), Reaction::Replan);
    unseen("after an incomplete finish");
    let mut writer = start();
    writer.write_at(4096, &pattern(5000)[4096..]).expect("write");
    let error = writer.finish(Some(&[1])).expect_err("wrong units");
    assert_eq!((error.reaction, error.block), (Reaction::Corrupt, Some(meta.id)));
    assert!(error.message.contains("unit 0 (bytes 0..5000)"), "{error}");
    unseen("after a finish with the wrong checksum");
    put(store, &meta);
    assert_eq!(store.list().expect("list"), [meta.id]);
}

fn refusals(store: &dyn BlockStore, cluster: ClusterId) {
    let meta = block(cluster, 8, 5000);
    assert_eq!(reaction(store.create(&block(ClusterId(!cluster.0), 8, 5000))), Reaction::InvalidInput, "another cluster");
    let mut absurd = meta.clone();
    absurd.stripe.k = 0;
    assert_eq!(reaction(store.create(&absurd)), Reaction::InvalidInput, "no data blocks");
    let mut absurd = meta.clone();
    absurd.id.index = 3;
    assert_eq!(reaction(store.create(&absurd)), Reaction::InvalidInput, "no such index");

    let mut writer = store.create(&meta).expect("create");
    writer.write_at(0, &[]).expect("nothing");
    writer.write_at(4096, &[0; 8192]).expect("zeros beyond the end");
    assert_eq!(reaction(writer.write_at(4096, &[0])), Reaction::InvalidInput, "twice");
    assert_eq!(reaction(writer.write_at(4000, &[0; 97])), Reaction::InvalidInput, "twice in part");
    assert_eq!(reaction(writer.write_at(5000, &[0, 1])), Reaction::Corrupt, "not zero beyond the end");
    assert_eq!(reaction(writer.write_at(u64::MAX, &[0, 0])), Reaction::InvalidInput, "beyond everything");
    writer.write_at(0, &[0; 4096]).expect("the rest");
    assert_eq!(writer.finish(Some(&[crc32c(&[0; 5000])])).expect("finish").len, 5000);
    assert_eq!(reaction(store.create(&meta)), Reaction::InvalidInput, "there already");
    let mut next = meta.clone();
    next.id.generation = 2;
    put(store, &next);
}

fn removal(store: &dyn BlockStore, cluster: ClusterId) {
    let meta = block(cluster, 9, 9000);
    assert!(!store.remove(meta.id).expect("remove"), "the block never existed");
    let bytes = put(store, &meta);
    let reader = store.open(meta.id).expect("open");
    assert!(store.remove(meta.id).expect("remove"));
    assert!(!store.remove(meta.id).expect("remove"), "the block was removed");
    assert_eq!(reaction(store.open(meta.id)), Reaction::NotFound);
    let mut read = vec![0; bytes.len()];
    reader.read_at(0, &mut read).expect("an open reader keeps its block");
    assert!(read == bytes);
    put(store, &meta);
}

fn listing(store: &dyn BlockStore, cluster: ClusterId) {
    let mut ids: Vec<BlockId> =
        (1..=20).map(|i| block(cluster, i * 1365, i % 3)).inspect(|meta| _ = put(store, meta)).map(|it| it.id).collect();
    ids.sort_unstable();
    assert_eq!(store.list().expect("list"), ids);
    for page in [1, 3, 20, 21] {
        let mut paged = Vec::new();
        loop {
            let some = store.list_after(paged.last().copied(), page).expect("list");
            assert!(some.len() <= page);
            paged.extend_from_slice(&some);
            if some.len() < page {
                break;
            }
        }
        paged.sort_unstable();
        assert_eq!(paged, ids, "{page} at a time");
    }
}

fn quarantine(store: &dyn BlockStore, cluster: ClusterId) {
    let meta = block(cluster, 10, 9000);
    assert_eq!(reaction(store.quarantine(meta.id, "it is not there", None)), Reaction::NotFound);
    let quarantined = |blocks| assert_eq!(store.quarantined(), Quarantined { blocks, bytes: blocks * 9000 });
    for (before, since_ms) in [None, None, Some(1000), Some(2000)].into_iter().enumerate() {
        quarantined(before as u64);
        put(store, &meta);
        store.quarantine(meta.id, "page 1 fails its checksum", since_ms).expect("quarantine");
        assert_eq!(reaction(store.open(meta.id)), Reaction::NotFound);
        assert_eq!(store.list().expect("list"), []);
    }
    let before = |ms| {
        let places = store.quarantine_places().expect("list").into_iter();
        places.filter(|place| place.since_ms.is_some_and(|since| since < ms)).map(|place| place.name).collect::<Vec<_>>()
    };
    assert_eq!(before(1000).len(), 0);
    assert_eq!(before(u64::MAX).len(), 2, "broken blocks wait for an operator");
    for place in before(1500) {
        store.delete_quarantined(&place).expect("delete");
        store.delete_quarantined(&place).expect("it was deleted before");
    }
    quarantined(3);
    assert_eq!((before(1500).len(), before(2001).len()), (0, 1));
    store.delete_quarantined("../blocks").expect("there is no such place");
    put(store, &meta);
}
