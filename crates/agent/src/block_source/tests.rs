use super::*;
use crate::{line::Line, updates::fence::Fence};
use weft_plan::Precedence;
use weft_plan::{Class, TaskLane};
use weft_store::conformance;
use weft_types::{BlockMeta, ClusterId, crc32c};

const LEN: u64 = 1 << 20;
const SLICE_LEN: u64 = 32 << 10;

/// A block in memory. Some of its slices are reported as not cached, and one page may be bad.
struct Reader {
    meta: BlockMeta,
    bytes: Vec<u8>,
    cached: fn(u64) -> bool,
    bad_page: Option<u64>,
    /// The byte ranges that were read on a blocking thread.
    waited: Mutex<Vec<Span>>,
}

impl Reader {
    fn copy(&self, offset: u64, buf: &mut [u8]) -> Result<u32> {
        let end = offset + buf.len() as u64;
        if self.bad_page.is_some_and(|page| page * PAGE_LEN < end && (page + 1) * PAGE_LEN > offset) {
            return Err(Error::corrupt("its page checksum is wrong"));
        }
        let there = &self.bytes[(offset as usize).min(self.bytes.len())..(end as usize).min(self.bytes.len())];
        buf[..there.len()].copy_from_slice(there);
        buf[there.len()..].fill(0);
        Ok(crc32c(buf))
    }
}

impl BlockReader for Reader {
    fn meta(&self) -> &BlockMeta {
        &self.meta
    }

    fn units(&self) -> &[u32] {
        &[]
    }

    fn pages(&self) -> &[u32] {
        &[]
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<u32> {
        self.waited.lock().unwrap().push(Span::new(offset, offset + buf.len() as u64));
        self.copy(offset, buf)
    }

    fn read_cached(&self, offset: u64, buf: &mut [u8]) -> Option<u32> {
        (self.cached)(offset / SLICE_LEN).then(|| self.copy(offset, buf).ok()).flatten()
    }
}

fn block(cached: fn(u64) -> bool, bad_page: Option<u64>) -> (OpenBlock, Arc<Reader>) {
    let meta = conformance::block(ClusterId(1), 1, LEN);
    open(meta, cached, bad_page)
}

fn open(meta: BlockMeta, cached: fn(u64) -> bool, bad_page: Option<u64>) -> (OpenBlock, Arc<Reader>) {
    let (id, layout, bytes) = (meta.id, meta.stripe.layout, conformance::pattern(meta.len()));
    let reader = Arc::new(Reader { meta, bytes, cached, bad_page, waited: Mutex::default() });
    let (traffic, findings) = (Arc::default(), Arc::default());
    let passage = Passage::new(&Line::new(None), Precedence::of(Class::Repair));
    (
        OpenBlock {
            id,
            reader: reader.clone(),
            layout,
            traffic,
            findings,
            corrupt: Arc::default(),
            passage,
            served: Arc::default(),
            buffers: Buffers::new(4),
            _in_use: Arc::new(Fence::default().read(id).unwrap()),
        },
        reader,
    )
}

fn slices() -> Slices {
    let span = Span::new(0, LEN);
    TaskLane { lane: 0, span, first: 0, step: 1, window: 4, stages: Vec::new() }.slices(SLICE_LEN)
}

#[tokio::test]
async fn slices_arrive_in_order_from_cache_and_disk() {
    let all: fn(u64) -> bool = |_| true;
    let some: fn(u64) -> bool = |slice| slice < 5 || slice % 7 > 1;
    let none: fn(u64) -> bool = |_| false;
    for (cached, waits) in [(all, false), (some, true), (none, true)] {
        let (block, reader) = block(cached, None);
        let mut source = block.clone().source(&[0], slices(), SLICE_LEN, 4, DiskMode::Pool);
        for slice in slices() {
            let expected = &reader.bytes[slice.start as usize..slice.end as usize];
            assert!(source.next(slice).await.unwrap() == expected, "{slice:?}");
        }
        let waited: Vec<u64> = reader.waited.lock().unwrap().iter().map(|bytes| bytes.start / SLICE_LEN).collect();
        assert_eq!(!waited.is_empty(), waits);
        // A cached slice may be read together with one of the two uncached slices before it.
        let needed = |slice: u64| (slice.saturating_sub(2)..=slice).any(|near| !cached(near));
        assert!(waited.is_sorted() && waited.iter().all(|slice| needed(*slice)), "{waited:?}");
    }
}

#[tokio::test]
async fn a_bad_page_is_named_also_when_it_is_in_memory() {
    let (block, _) = block(|_| true, Some(100));
    let mut source = block.clone().source(&[0], slices(), SLICE_LEN, 4, DiskMode::Pool);
    let mut error = None;
    for slice in slices() {
        if let Err(failed) = source.next(slice).await {
            error = Some((slice, failed));
            break;
        }
    }
    let (slice, error) = error.unwrap();
    assert!(slice.start <= 100 * PAGE_LEN && slice.end > 100 * PAGE_LEN);
    assert_eq!((error.reaction, error.block), (Reaction::Corrupt, Some(block.id)));
    let found = block.findings.report();
    assert_eq!((found.len(), found[0].first_byte, found[0].len_bytes), (1, 100 * PAGE_LEN, PAGE_LEN));
    assert_eq!(block.traffic.report().read_bytes, slice.start, "the count of bytes read is wrong");
}

/// Sub-blocks of 64 KiB; slices of 16 KiB.
const SUB: u64 = 64 << 10;
const PART: u64 = 16 << 10;
const ALPHA: u32 = 6;
const CELL: u64 = SUB * ALPHA as u64;

/// A block of three cells; the last ends in its second sub-block.
fn vector_block(cached: fn(u64) -> bool, bad_page: Option<u64>) -> (OpenBlock, Arc<Reader>) {
    let mut meta = conformance::block(ClusterId(1), 1, 2 * CELL + SUB + 5000);
    meta.stripe.layout = Layout::new(3 * CELL, CELL, ALPHA).unwrap();
    open(meta, cached, bad_page)
}

fn vector_slices(slice_len: u64) -> Slices {
    let lane = TaskLane { lane: 0, span: Span::new(0, 3 * SUB), first: 0, step: 1, window: 4, stages: Vec::new() };
    lane.slices(slice_len)
}

/// The rows of a slice, by the definition of positions.
fn expected(reader: &Reader, sub_blocks: &[u16], slice: Span) -> Vec<u8> {
    let byte = |sub_block: u16, x: u64| x / SUB * CELL + u64::from(sub_block) * SUB + x % SUB;
    let row = |sub_block: &u16| (slice.start..slice.end).map(|x| byte(*sub_block, x)).collect::<Vec<_>>();
    sub_blocks.iter().flat_map(row).map(|at| reader.bytes.get(at as usize).copied().unwrap_or(0)).collect()
}

fn on_disk(reader: &Reader, sub_blocks: &[u16]) -> u64 {
    let len = reader.bytes.len() as u64;
    let starts = (0..3).flat_map(|cell| sub_blocks.iter().map(move |sub_block| cell * CELL + u64::from(*sub_block) * SUB));
    starts.map(|start| len.saturating_sub(start).min(SUB)).sum()
}

/// Buffers are poisoned before reuse, so a byte that was not written shows.
#[tokio::test]
async fn sub_blocks_are_read_whole_however_small_the_slices_are() {
    let sets: [(&[u16], u64); 5] = [(&[0, 1, 2, 3, 4, 5], 1), (&[1, 2, 4, 5], 2), (&[0, 2, 4], 3), (&[5, 4], 2), (&[3, 0, 1], 2)];
    for mode in [DiskMode::Pool, DiskMode::Inline] {
        for (sub_blocks, runs) in sets {
            let (block, reader) = vector_block(|_| true, None);
            let mut source = block.clone().source(sub_blocks, vector_slices(PART), PART, 2, mode);
            for slice in vector_slices(PART) {
                assert!(source.next(slice).await.unwrap() == expected(&reader, sub_blocks, slice), "{sub_blocks:?} {slice:?}");
            }
            let read = reader.waited.lock().unwrap().clone();
            assert_eq!(read.len() as u64, 3 * runs, "{sub_blocks:?}: one call for each run of each cell, {read:?}");
            assert_eq!(block.traffic.report().read_bytes, on_disk(&reader, sub_blocks), "{sub_blocks:?}");
        }
    }
}

#[tokio::test]
async fn slices_of_whole_sub_blocks_and_of_several_cells_are_correct() {
    // A slice of 24 KiB may cover parts of two cells; a slice of 72 KiB covers one cell and part of the next.
    for slice_len in [SUB, 24 << 10, 72 << 10, 3 * SUB] {
        for (cached, sub_blocks) in [(true, &[0u16, 1, 2, 3][..]), (false, &[0, 1, 2, 3]), (false, &[1, 4]), (false, &[2])] {
            let cached: fn(u64) -> bool = if cached { |_| true } else { |_| false };
            let (block, reader) = vector_block(cached, None);
            let mut source = block.clone().source(sub_blocks, vector_slices(slice_len), slice_len, 2, DiskMode::Pool);
            for slice in vector_slices(slice_len) {
                let same = source.next(slice).await.unwrap() == expected(&reader, sub_blocks, slice);
                assert!(same, "{slice_len}: {sub_blocks:?} {slice:?}");
            }
            let read = reader.waited.lock().unwrap().clone();
            if slice_len == SUB && sub_blocks == [0, 1, 2, 3] && !cached(0) {
                let run = |cell: u64| Span::new(cell * CELL, cell * CELL + 4 * SUB);
                assert_eq!(read, [run(0), run(1), run(2)], "adjacent sub-blocks are read in one call");
            }
            if slice_len == SUB {
                assert_eq!(block.traffic.report().read_bytes, on_disk(&reader, sub_blocks), "{sub_blocks:?}");
            }
        }
    }
}

#[tokio::test]
async fn a_corrupt_page_beside_the_slice_does_not_spoil_the_slice() {
    // Page 2 of sub-block 1 of the second cell: positions 8 to 12 KiB of its 64.
    let bad = (CELL + SUB) / PAGE_LEN + 2;
    for mode in [DiskMode::Pool, DiskMode::Inline] {
        let (block, reader) = vector_block(|_| false, Some(bad));
        let around = [Span::new(0, SUB + 8192), Span::new(SUB + 3 * PAGE_LEN, 3 * SUB)];
        for span in around {
            let slices = TaskLane { lane: 0, span, first: 0, step: 1, window: 4, stages: Vec::new() }.slices(2 * PAGE_LEN);
            let mut source = block.clone().source(&[0, 1, 2], slices.clone(), 2 * PAGE_LEN, 2, mode);
            for slice in slices {
                assert!(source.next(slice).await.unwrap() == expected(&reader, &[0, 1, 2], slice), "{slice:?}");
            }
        }
        assert!(
            block.findings.report().is_empty() && block.corrupt.lock().unwrap().is_empty(),
            "a page outside the wanted sub-blocks was reported"
        );
        // A bad page in another sub-block of the cell is ignored; a bad page in this sub-block is reported.
        let mut source = block.clone().source(&[0, 2], vector_slices(PART), PART, 2, mode);
        for slice in vector_slices(PART) {
            source.next(slice).await.unwrap();
        }
        let mut source = block.clone().source(&[0, 1], vector_slices(PART), PART, 2, mode);
        let mut good = 0;
        let error = loop {
            match source.next(Span::new(good, good + PART)).await {
                Ok(_) => good += PART,
                Err(error) => break error,
            }
        };
        assert_eq!((good, error.reaction, error.block), (SUB, Reaction::Corrupt, Some(block.id)));
        let found = block.findings.report();
        assert_eq!((found.len(), found[0].first_byte, found[0].len_bytes), (1, bad * PAGE_LEN, PAGE_LEN));
    }
}

#[tokio::test]
async fn a_cell_that_cannot_be_read_whole_is_not_tried_for_every_slice() {
    let bad = (2 * SUB) / PAGE_LEN - 1;
    let (block, reader) = vector_block(|_| false, Some(bad));
    let slices = || vector_slices(PART).take_while(|slice| slice.end < SUB);
    let mut source = block.source(&[0, 1], vector_slices(PART), PART, 2, DiskMode::Inline);
    for slice in slices() {
        source.next(slice).await.unwrap();
    }
    let whole = reader.waited.lock().unwrap().iter().filter(|bytes| bytes.len() == 2 * SUB).count();
    assert_eq!(whole, 1);
}
