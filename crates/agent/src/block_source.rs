//! Reads a block on a disk as a source of a stage: reads slices ahead and checks every page.

use crate::{
    DiskMode,
    corruption::Findings,
    line::{Passage, parts},
    served::Gauge,
    traffic::Traffic,
    updates::fence::Reading,
};
use async_trait::async_trait;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::mpsc;
use weft_engine::{Buffer, Buffers, Hold, SliceSource};
use weft_plan::Slices;
use weft_store::BlockReader;
use weft_types::{BlockId, Error, Layout, PAGE_LEN, Reaction, Result, Rows, Span, crc32c_joined};

/// A block that a task reads.
#[derive(Clone)]
pub(crate) struct OpenBlock {
    pub(crate) id: BlockId,
    pub(crate) reader: Arc<dyn BlockReader>,
    pub(crate) layout: Layout,
    pub(crate) traffic: Arc<Traffic>,
    pub(crate) findings: Arc<Findings>,
    /// The byte ranges that this task found corrupt.
    pub(crate) corrupt: Arc<Mutex<Vec<Span>>>,
    pub(crate) passage: Passage,
    /// The disk's reads.
    pub(crate) served: Arc<Gauge>,
    pub(crate) buffers: Arc<Buffers>,
    /// It is not opened for updates meanwhile.
    pub(crate) _in_use: Arc<Reading>,
}

/// The most that one call on a blocking thread reads. Such a call costs about as much as reading 32 KiB, so small
/// slices are read several at a time. It is also the most that may be read on a thread that must not block.
const READ_BYTES: u64 = 256 << 10;

/// Corrupt pages are often near each other. After a corrupt page, this much of the block is checked at once, so that
/// the next plan avoids all corrupt pages and not just the first. The scan is bounded because the task's peers wait for
/// it.
const LOOK_AHEAD_BYTES: u64 = 64 << 20;
/// The most runs of corrupt bytes that are reported separately; later ones are merged into the last.
const RUNS_MAX: usize = 64;

impl OpenBlock {
    /// A source that reads the block's `sub_blocks` at `slices`, each of `slice_len` positions, up to `window` of them
    /// ahead.
    pub(crate) fn source(
        self,
        sub_blocks: &[u16],
        slices: Slices,
        slice_len: u64,
        window: usize,
        mode: DiskMode,
    ) -> Box<dyn SliceSource> {
        let cuts = weft_plan::cell_bytes(&self.layout, slice_len, sub_blocks.len()) > 0;
        let rows = RowReader { block: self, sub_blocks: sub_blocks.to_vec(), cell: cuts.then(Mutex::default) };
        match mode {
            DiskMode::Inline | DiskMode::Slowed(_) => Box::new(InlineSource(Arc::new(rows), mode)),
            DiskMode::Pool => Box::new(AheadSource { rows: Arc::new(rows), slices, window: window.max(1), ahead: None }),
        }
    }

    /// Reads whole pages, and records those that are corrupt. Blocks the thread.
    pub(crate) fn read_at(&self, offset: u64, bytes: &mut [u8]) -> Result<u32> {
        self.reader.read_at(offset, bytes).map_err(|error| {
            if error.reaction == Reaction::Corrupt {
                self.find_corruption(offset, bytes.len() as u64, &error);
            }
            error.block(self.id)
        })
    }

    /// Finds the corrupt bytes and records them for the coordinator.
    fn find_corruption(&self, offset: u64, len: u64, error: &Error) {
        let mut known = self.corrupt.lock().unwrap_or_else(PoisonError::into_inner);
        let failed = Span::new(offset / PAGE_LEN * PAGE_LEN, (offset + len).next_multiple_of(PAGE_LEN));
        // Another stage that reads the same block may have scanned this range already.
        if known.iter().any(|run| !run.intersect(failed).is_empty()) {
            return;
        }
        let end = failed.end.saturating_add(LOOK_AHEAD_BYTES).min(self.reader.meta().len()).max(failed.end);
        let mut runs = self.corrupt_runs(Span::new(failed.start, end));
        if runs.is_empty() {
            // The page reads correctly now. A disk that returns different bytes each time is not trusted there.
            runs.push(failed);
        }
        for run in &runs {
            self.findings.add(self.id, *run, error);
        }
        known.extend(runs);
    }

    /// The runs of corrupt pages within a range that starts at a page boundary.
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

/// Reads slices of some of a block's sub-blocks.
struct RowReader {
    block: OpenBlock,
    sub_blocks: Vec<u16>,
    /// The cell that slices are cut from, if the reader works by cells.
    cell: Option<Mutex<Cell>>,
}

/// The sub-blocks of one cell that the stage reads, in order.
#[derive(Default)]
struct Cell {
    number: Option<u64>,
    /// True if all of them were read without an error.
    is_whole: bool,
    bytes: Option<Buffer>,
}

/// The bytes are not in the page cache.
struct NotCached;

impl RowReader {
    /// Blocks the thread.
    fn read(&self, slice: Span) -> Result<Rows> {
        let block = &self.block;
        if let Some(rows) = self.cut_from_cell(slice) {
            return Ok(rows);
        }
        self.fill(slice, |offset, bytes| block.read_at(offset, bytes))
    }

    /// Does not block. `None` if the slice is not in the page cache or is too large for the caller's thread.
    fn read_cached(&self, slice: Span) -> Option<Rows> {
        if self.bytes_of(slice) > READ_BYTES || self.cell_of(slice).is_some() {
            return None;
        }
        let reader = &self.block.reader;
        self.fill(slice, |offset, bytes| reader.read_cached(offset, bytes).ok_or(NotCached)).ok()
    }

    fn bytes_of(&self, slice: Span) -> u64 {
        slice.len().saturating_mul(self.sub_blocks.len() as u64)
    }

    /// The cell that contains the slice. Reading the slice's part of each sub-block separately would take many small
    /// reads. So the sub-blocks are read whole, and adjacent ones in one call (Butterfly codes, §4.3, vector
    /// communication; here applied to the disk).
    fn cell_of(&self, slice: Span) -> Option<(&Mutex<Cell>, u64)> {
        let sub_len = self.block.layout.sub_len();
        let number = slice.start / sub_len;
        let is_one = slice.end.saturating_sub(1) / sub_len == number;
        self.cell.as_ref().filter(|_| is_one).map(|cell| (cell, number))
    }

    /// Cuts the slice from its cell, and reads the cell first unless it is already loaded. `None` if the slice is not
    /// cut from a cell, or if the cell cannot be read whole: the bad page may lie outside the slice. Blocks the thread.
    fn cut_from_cell(&self, slice: Span) -> Option<Rows> {
        let (cell, number) = self.cell_of(slice)?;
        let mut cell = cell.lock().unwrap_or_else(PoisonError::into_inner);
        if cell.number != Some(number) {
            cell.is_whole = self.read_cell(number, &mut cell.bytes).is_some();
            cell.number = Some(number);
        }
        if !cell.is_whole {
            return None;
        }
        let sub_len = self.block.layout.sub_len();
        let (from, len) = ((slice.start % sub_len) as usize, slice.len() as usize);
        let mut buffer = self.block.buffers.take(self.bytes_of(slice) as usize);
        let sub_blocks = cell.bytes.as_ref()?.as_ref().chunks_exact(sub_len as usize);
        for (row, sub_block) in buffer.bytes_mut().chunks_exact_mut(len.max(1)).zip(sub_blocks) {
            row.copy_from_slice(&sub_block[from..from + len]);
        }
        Some(buffer.freeze().into())
    }

    /// Reads the wanted sub-blocks of a cell, with one call for each run of adjacent ones.
    fn read_cell(&self, number: u64, cell: &mut Option<Buffer>) -> Option<()> {
        let (block, layout) = (&self.block, &self.block.layout);
        let sub_len = layout.sub_len() as usize;
        let cell = cell.get_or_insert_with(|| block.buffers.take(self.sub_blocks.len() * sub_len));
        let (mut rest, mut on_disk) = (cell.bytes_mut(), 0);
        for run in self.sub_blocks.chunk_by(|a, b| a + 1 == *b) {
            let (these, after) = rest.split_at_mut(run.len() * sub_len);
            let offset = number * layout.cell_len + u64::from(run[0]) * layout.sub_len();
            block.reader.read_at(offset, these).ok()?;
            on_disk += block.reader.meta().len().saturating_sub(offset).min(these.len() as u64);
            rest = after;
        }
        block.traffic.read.add(on_disk);
        Some(())
    }

    /// The slice's bytes, if they are contiguous on the disk.
    fn whole_run(&self, slice: Span) -> Option<Span> {
        let (layout, sub_len) = (&self.block.layout, self.block.layout.sub_len());
        let is_whole = slice.len() == sub_len && slice.start.is_multiple_of(sub_len);
        let are_neighbours = self.sub_blocks.windows(2).all(|pair| pair[0] + 1 == pair[1]);
        let first = self.sub_blocks.first().filter(|_| is_whole && are_neighbours && self.sub_blocks.len() > 1)?;
        let start = slice.start / sub_len * layout.cell_len + u64::from(*first) * sub_len;
        Some(Span::new(start, start + self.bytes_of(slice)))
    }

    fn fill<E>(&self, slice: Span, read: impl Fn(u64, &mut [u8]) -> Result<u32, E>) -> Result<Rows, E> {
        let mut buffer = self.block.buffers.take(self.bytes_of(slice) as usize);
        // Adjacent sub-blocks of which the slice covers a whole cell are contiguous on the disk and in the buffer.
        if let Some(run) = self.whole_run(slice) {
            let checksum = read(run.start, buffer.bytes_mut())?;
            let block = &self.block;
            block.traffic.read.add(block.reader.meta().len().saturating_sub(run.start).min(run.len()));
            return Ok(Rows::summed(buffer.freeze(), checksum));
        }
        let checksum = self.fill_part(&mut buffer, slice, slice, read)?;
        Ok(Rows::summed(buffer.freeze(), checksum))
    }

    /// Fills the buffer with one part of the slice. Returns the CRC32C of the bytes read, in row order.
    fn fill_part<E>(
        &self,
        buffer: &mut Buffer,
        slice: Span,
        part: Span,
        read: impl Fn(u64, &mut [u8]) -> Result<u32, E>,
    ) -> Result<u32, E> {
        let (block, mut on_disk, mut checksum) = (&self.block, 0, 0);
        for (row, sub_block) in buffer.bytes_mut().chunks_exact_mut(slice.len().max(1) as usize).zip(&self.sub_blocks) {
            let mut at = (part.start - slice.start) as usize;
            for extent in block.layout.extents(u32::from(*sub_block), part) {
                let bytes = &mut row[at..at + extent.len as usize];
                at += extent.len as usize;
                checksum = crc32c_joined(checksum, read(extent.offset, bytes)?, extent.len);
                on_disk += block.reader.meta().len().saturating_sub(extent.offset).min(extent.len);
            }
        }
        block.traffic.read.add(on_disk);
        Ok(checksum)
    }
}

struct InlineSource(Arc<RowReader>, DiskMode);

#[async_trait]
impl SliceSource for InlineSource {
    async fn next(&mut self, slice: Span) -> Result<Rows> {
        read_in_turn(&self.0, vec![slice], self.1).await.pop().unwrap_or_else(|| Err(unread()))
    }

    fn hold(&self) -> Option<Hold> {
        Some(self.0.block.passage.hold.clone())
    }
}

fn unread() -> Error {
    Error::fatal("the read-ahead task has ended")
}

/// A source that reads directly as long as slices are in the page cache, because a call on a blocking thread costs more
/// than copying such a slice. At the first slice that is not cached, it starts a task that reads ahead.
struct AheadSource {
    rows: Arc<RowReader>,
    /// The slices that are still unread.
    slices: Slices,
    window: usize,
    ahead: Option<mpsc::Receiver<Result<Rows>>>,
}

#[async_trait]
impl SliceSource for AheadSource {
    async fn next(&mut self, slice: Span) -> Result<Rows> {
        if self.ahead.is_none()
            && let Some(rows) = self.rows.read_cached(slice)
        {
            self.slices.next();
            return Ok(rows);
        }
        let ahead = self.ahead.get_or_insert_with(|| {
            let (sender, ahead) = mpsc::channel(self.window);
            tokio::spawn(read_ahead(Arc::clone(&self.rows), self.slices.clone(), self.window, sender));
            ahead
        });
        ahead.recv().await.unwrap_or_else(|| Err(unread()))
    }

    fn hold(&self) -> Option<Hold> {
        Some(self.rows.block.passage.hold.clone())
    }
}

/// Reads while the queue has room. Ends when the receiver is dropped or at the first error.
async fn read_ahead(rows: Arc<RowReader>, mut slices: Slices, window: usize, sender: mpsc::Sender<Result<Rows>>) {
    loop {
        let mut batch: Vec<Span> = slices.by_ref().take(1).collect();
        let Some(first) = batch.first() else { return };
        let more = (READ_BYTES / rows.bytes_of(*first).max(1)).saturating_sub(1).min(window as u64 / 2);
        batch.extend(slices.by_ref().take(more as usize));
        let Ok(mut room) = sender.reserve_many(batch.len()).await else { return };
        let cached: Vec<Rows> = batch.iter().map_while(|slice| rows.read_cached(*slice)).collect();
        batch.drain(..cached.len());
        // Zip takes from `cached` first, so that the shorter side never consumes a place of the other.
        cached.into_iter().zip(room.by_ref()).for_each(|(slice, room)| room.send(Ok(slice)));
        if batch.is_empty() {
            continue;
        }
        let read = read_in_turn(&rows, batch, DiskMode::Pool).await;
        let failed = read.last().is_none_or(Result::is_err);
        room.zip(read).for_each(|(room, slice)| room.send(slice));
        if failed {
            return;
        }
    }
}

/// Reads slices up to the first that fails. Each waits for its turn at the disk.
async fn read_in_turn(rows: &Arc<RowReader>, batch: Vec<Span>, mode: DiskMode) -> Vec<Result<Rows>> {
    let passage = &rows.block.passage;
    if let [slice] = batch[..]
        && rows.cell_of(slice).is_none()
        && parts(slice, rows.sub_blocks.len(), passage.of).nth(1).is_some()
    {
        return vec![read_in_parts(rows, slice, mode).await];
    }
    let bytes = batch.iter().map(|slice| rows.bytes_of(*slice)).sum();
    let (turn, reader) = (passage.turn_of(bytes).await, Arc::clone(rows));
    let served = |read: &Vec<Result<Rows>>| read.iter().flatten().map(|rows| rows.len() as u64).sum();
    let read = rows.block.served.run(mode, served, move || Ok(read_batch(&reader, &batch))).await;
    drop(turn);
    read.unwrap_or_else(|error| vec![Err(error)])
}

/// Reads a slice that is larger than one turn at the disk allows.
async fn read_in_parts(rows: &Arc<RowReader>, slice: Span, mode: DiskMode) -> Result<Rows> {
    let (passage, mut buffer) = (&rows.block.passage, rows.block.buffers.take(rows.bytes_of(slice) as usize));
    for part in parts(slice, rows.sub_blocks.len(), passage.of) {
        let bytes = part.len() * rows.sub_blocks.len() as u64;
        let (turn, reader) = (passage.turn_of(bytes).await, Arc::clone(rows));
        let read = move || {
            reader.fill_part(&mut buffer, slice, part, |offset, bytes| reader.block.read_at(offset, bytes))?;
            Ok(buffer)
        };
        buffer = rows.block.served.run(mode, move |_| bytes, read).await?;
        drop(turn);
    }
    Ok(buffer.freeze().into())
}

/// Reads slices up to the first that fails. Blocks the thread.
fn read_batch(rows: &RowReader, batch: &[Span]) -> Vec<Result<Rows>> {
    let mut slices = Vec::with_capacity(batch.len());
    for slice in batch {
        let read = rows.read(*slice);
        let failed = read.is_err();
        slices.push(read);
        if failed {
            break;
        }
    }
    slices
}

#[cfg(test)]
mod tests;
