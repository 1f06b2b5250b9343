//! A block on a disk as a source of a stage: slices are read ahead, every page checked.

use crate::{DiskMode, corruption::Findings, traffic::Traffic};
use async_trait::async_trait;
use bytes::Bytes;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::mpsc;
use weft_engine::{Buffers, SliceSource};
use weft_plan::Slices;
use weft_store::BlockReader;
use weft_types::{BlockId, Error, Layout, PAGE_LEN, Reaction, Result, Span};

/// A block that a task reads.
#[derive(Clone)]
pub(crate) struct OpenBlock {
    pub(crate) id: BlockId,
    pub(crate) reader: Arc<dyn BlockReader>,
    pub(crate) layout: Layout,
    pub(crate) traffic: Arc<Traffic>,
    pub(crate) findings: Arc<Findings>,
    /// The bytes that this task found to be corrupt.
    pub(crate) corrupt: Arc<Mutex<Vec<Span>>>,
}

/// Bytes that are read by one call: a call costs about as much as reading 32 KiB, so that small slices are read several at once.
const READ_BYTES: u64 = 256 << 10;

/// Where bytes are corrupt, others often are: so much of the block behind them is looked at, at once, so that the next plan goes
/// around all of them and not around the first. Bounded, as the task's peers wait meanwhile.
const LOOK_AHEAD_BYTES: u64 = 64 << 20;
/// Runs of corrupt bytes that are told one by one; what lies behind them is told as one with the last.
const RUNS_MAX: usize = 64;

impl OpenBlock {
    /// The block's sub-blocks at `slices`, `window` of which may be read ahead.
    pub(crate) fn source(self, sub_blocks: &[u16], slices: Slices, window: usize, mode: DiskMode) -> Box<dyn SliceSource> {
        let rows = Rows { block: self, sub_blocks: sub_blocks.to_vec(), buffers: Buffers::new(window + 1) };
        match mode {
            DiskMode::Inline => Box::new(InlineSource(rows)),
            DiskMode::Pool => {
                let (sender, ahead) = mpsc::channel(window.max(1));
                tokio::spawn(read_ahead(Arc::new(rows), slices, window.max(1), sender));
                Box::new(AheadSource(ahead))
            }
        }
    }

    /// Names the bytes that are corrupt, for the coordinator.
    fn find_corruption(&self, offset: u64, len: u64, error: &Error) {
        let mut known = self.corrupt.lock().unwrap_or_else(PoisonError::into_inner);
        let failed = Span::new(offset / PAGE_LEN * PAGE_LEN, (offset + len).next_multiple_of(PAGE_LEN));
        // Another stage that reads the same block may have looked already.
        if known.iter().any(|run| !run.intersect(failed).is_empty()) {
            return;
        }
        let end = failed.end.saturating_add(LOOK_AHEAD_BYTES).min(self.reader.meta().len()).max(failed.end);
        let mut runs = self.corrupt_runs(Span::new(failed.start, end));
        if runs.is_empty() {
            // It reads well now: a disk that gives other bytes each time is not to be believed there.
            runs.push(failed);
        }
        for run in &runs {
            self.findings.add(self.id, *run, error);
        }
        known.extend(runs);
    }

    /// The runs of corrupt pages within a range that begins with a page.
    fn corrupt_runs(&self, range: Span) -> Vec<Span> {
        let is_corrupt = |span: Span, buffer: &mut [u8]| {
            let read = self.reader.read_at(span.start, &mut buffer[..span.len() as usize]);
            read.is_err_and(|error| error.reaction == Reaction::Corrupt)
        };
        let pieces = |span: Span, len: u64| {
            (span.start..span.end).step_by(len as usize).map(move |start| Span::new(start, (start + len).min(span.end)))
        };
        let mut buffer = vec![0; READ_BYTES as usize];
        let mut runs: Vec<Span> = Vec::new();
        for piece in pieces(range, READ_BYTES) {
            if !is_corrupt(piece, &mut buffer) {
                continue;
            }
            for page in pieces(piece, PAGE_LEN) {
                if !is_corrupt(page, &mut buffer) {
                    continue;
                }
                let is_full = runs.len() >= RUNS_MAX;
                match runs.last_mut() {
                    Some(last) if last.end == page.start || is_full => last.end = page.end,
                    _ => runs.push(page),
                }
            }
        }
        runs
    }
}

/// Reads slices of some of a block's sub-blocks. All its calls block.
struct Rows {
    block: OpenBlock,
    sub_blocks: Vec<u16>,
    buffers: Arc<Buffers>,
}

impl Rows {
    fn read(&self, slice: Span) -> Result<Bytes> {
        let block = &self.block;
        let slice_len = usize::try_from(slice.len()).map_err(|_| Error::invalid("a slice that is too large"))?;
        let mut buffer = self.buffers.take(self.sub_blocks.len() * slice_len);
        for (row, sub_block) in buffer.bytes_mut().chunks_exact_mut(slice_len.max(1)).zip(&self.sub_blocks) {
            let mut at = 0;
            for extent in block.layout.extents(u32::from(*sub_block), slice) {
                let bytes = &mut row[at..at + extent.len as usize];
                at += extent.len as usize;
                if let Err(error) = block.reader.read_at(extent.offset, bytes) {
                    if error.reaction == Reaction::Corrupt {
                        block.find_corruption(extent.offset, extent.len, &error);
                    }
                    return Err(error.block(block.id));
                }
                let on_disk = block.reader.meta().len().saturating_sub(extent.offset).min(extent.len);
                block.traffic.read.add(on_disk);
            }
        }
        Ok(buffer.freeze())
    }
}

struct InlineSource(Rows);

#[async_trait]
impl SliceSource for InlineSource {
    async fn next(&mut self, slice: Span) -> Result<Bytes> {
        self.0.read(slice)
    }
}

struct AheadSource(mpsc::Receiver<Result<Bytes>>);

#[async_trait]
impl SliceSource for AheadSource {
    async fn next(&mut self, _: Span) -> Result<Bytes> {
        self.0.recv().await.unwrap_or_else(|| Err(Error::fatal("reading ahead has ended")))
    }
}

/// Reads while there is room for slices; ends when nobody wants them any more, or at the first error.
async fn read_ahead(rows: Arc<Rows>, mut slices: Slices, window: usize, sender: mpsc::Sender<Result<Bytes>>) {
    loop {
        let mut batch: Vec<Span> = slices.by_ref().take(1).collect();
        let Some(first) = batch.first() else { return };
        let slice_bytes = first.len().saturating_mul(rows.sub_blocks.len() as u64).max(1);
        let more = (READ_BYTES / slice_bytes).saturating_sub(1).min(window as u64 / 2);
        batch.extend(slices.by_ref().take(more as usize));
        let Ok(room) = sender.reserve_many(batch.len()).await else { return };
        let reader = Arc::clone(&rows);
        let read = DiskMode::Pool.run(move || {
            let mut slices = Vec::with_capacity(batch.len());
            for slice in batch {
                let read = reader.read(slice);
                let failed = read.is_err();
                slices.push(read);
                if failed {
                    break;
                }
            }
            Ok(slices)
        });
        let (read, failed) = match read.await {
            Ok(read) => {
                let failed = read.last().is_none_or(Result::is_err);
                (read, failed)
            }
            Err(error) => (vec![Err(error)], true),
        };
        room.zip(read).for_each(|(room, slice)| room.send(slice));
        if failed {
            return;
        }
    }
}
