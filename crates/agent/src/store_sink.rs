//! A new block on a disk as a sink of stages.

use crate::{
    DiskMode,
    line::{Passage, parts},
    partial::Claim,
    served::Gauge,
    traffic::Traffic,
};
use async_trait::async_trait;
use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicUsize, Ordering},
};
use weft_engine::{Hold, SliceSink};
use weft_plan::Class;
use weft_store::Receipt;
use weft_types::{Extent, Result, Rows, Span};

/// A block that a task stores, possibly from several stages of several lanes.
pub(crate) struct Target {
    claim: Claim,
    /// The checksums that the block must have, if they are known.
    expected_checksums: Option<Vec<u32>>,
    /// The byte ranges that were missing when the task was opened; earlier plans transferred the rest.
    missing: Vec<Span>,
    /// The block's sinks in this task that have not finished.
    unfinished: AtomicUsize,
    receipt: Mutex<Option<Receipt>>,
    /// Accepted slices that are written together with later ones.
    waiting: Mutex<Vec<Waiting>>,
    traffic: Arc<Traffic>,
    passage: Passage,
    /// The disk's syncs.
    served: Arc<Gauge>,
}

/// A slice that waits to be written.
struct Waiting {
    sub_blocks: Arc<[u16]>,
    slice: Span,
    rows: Rows,
}

/// Slices are written together up to this many bytes: a call on a blocking thread costs more than writing a slice to the
/// page cache.
const BATCH_BYTES: usize = 1 << 20;

impl Target {
    /// A block with `sinks` sinks in the task. May block.
    pub(crate) fn new(
        claim: Claim,
        expected_checksums: Option<Vec<u32>>,
        sinks: usize,
        traffic: Arc<Traffic>,
        (passage, served): (Passage, Arc<Gauge>),
    ) -> Self {
        let (missing, unfinished) = (claim.missing(), AtomicUsize::new(sinks));
        let (receipt, waiting) = (Mutex::default(), Mutex::default());
        Self { claim, expected_checksums, missing, unfinished, receipt, waiting, traffic, passage, served }
    }

    pub(crate) fn claim(&self) -> &Claim {
        &self.claim
    }

    /// One of its sinks. At most `window` slices wait there, as the task's memory allows.
    pub(crate) fn sink(self: &Arc<Self>, sub_blocks: &[u16], window: usize, mode: DiskMode) -> Box<dyn SliceSink> {
        // Lower classes give way between frames, so they write each in its own turn.
        let gathers = mode == DiskMode::Pool && self.passage.of.class == Class::Foreground;
        let batch_max = if gathers { window } else { 0 };
        let batch = Batch { slices: 0, bytes: 0 };
        Box::new(StoreSink { target: Arc::clone(self), sub_blocks: Arc::from(sub_blocks), mode, batch_max, batch })
    }

    /// Writes all slices that wait. A task that ends early must call it too: its next plan relies on every slice that was
    /// accepted. May block.
    pub(crate) fn write_waiting(&self) -> Result<()> {
        let waiting = std::mem::take(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner));
        waiting.iter().try_for_each(|it| self.write(&it.sub_blocks, it.slice, it.slice, &it.rows))
    }

    /// Whether all the block's sinks have finished, or all its bytes have arrived. An empty block never misses a byte:
    /// only its finished sinks show that it must be stored.
    pub(crate) fn is_whole(&self) -> bool {
        let meta = self.claim.meta();
        self.unfinished.load(Ordering::Acquire) == 0 || !meta.is_empty() && self.claim.missing().is_empty()
    }

    /// Commits the block if it is complete. May block.
    pub(crate) fn commit(&self) -> Result<()> {
        if let Some(receipt) = self.claim.commit(self.expected_checksums.as_deref())? {
            *self.receipt.lock().unwrap_or_else(PoisonError::into_inner) = Some(receipt);
        }
        Ok(())
    }

    /// The receipt of the commit.
    pub(crate) fn receipt(&self) -> Option<Receipt> {
        self.receipt.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Writes the part `part` of a slice's rows.
    fn write(&self, sub_blocks: &[u16], slice: Span, part: Span, rows: &[u8]) -> Result<()> {
        let layout = self.claim.meta().stripe.layout;
        for (row, sub_block) in rows.chunks_exact((slice.len() as usize).max(1)).zip(sub_blocks) {
            let mut at = (part.start - slice.start) as usize;
            for extent in layout.extents(u32::from(*sub_block), part) {
                self.write_extent(extent, &row[at..at + extent.len as usize])?;
                at += extent.len as usize;
            }
        }
        Ok(())
    }

    /// Writes the missing bytes of an extent. Bytes beyond the block's end also go to the writer, which checks that
    /// they are zeros.
    fn write_extent(&self, extent: Extent, bytes: &[u8]) -> Result<()> {
        let whole = Span::new(extent.offset, extent.offset + extent.len);
        let beyond = whole.intersect(Span::new(self.claim.meta().len(), u64::MAX));
        for part in self.missing.iter().chain([&beyond]).map(|span| span.intersect(whole)) {
            if !part.is_empty() {
                let within = (part.start - whole.start) as usize..(part.end - whole.start) as usize;
                self.claim.write_at(part.start, &bytes[within])?;
            }
        }
        let written: u64 = self.missing.iter().map(|span| span.intersect(whole).len()).sum();
        self.traffic.written.add(written);
        Ok(())
    }

    /// The block's last sink to finish commits it. Returns the bytes of the block that was.
    fn finish_one(&self) -> Result<u64> {
        self.write_waiting()?;
        if self.unfinished.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.commit()?;
        }
        Ok(self.receipt().map_or(0, |receipt| receipt.len))
    }
}

struct StoreSink {
    target: Arc<Target>,
    sub_blocks: Arc<[u16]>,
    mode: DiskMode,
    /// The most slices that wait; below 2, none does.
    batch_max: usize,
    batch: Batch,
}

/// What this sink has added to the waiting slices.
struct Batch {
    slices: usize,
    bytes: usize,
}

impl StoreSink {
    /// Adds a slice to those that wait, and writes them if they are enough.
    async fn gather(&mut self, slice: Span, rows: Rows) -> Result<()> {
        self.batch = Batch { slices: self.batch.slices + 1, bytes: self.batch.bytes + rows.len() };
        let waiting = Waiting { sub_blocks: Arc::clone(&self.sub_blocks), slice, rows };
        self.target.waiting.lock().unwrap_or_else(PoisonError::into_inner).push(waiting);
        if self.batch.slices < self.batch_max && self.batch.bytes < BATCH_BYTES {
            return Ok(());
        }
        let (target, bytes) = (Arc::clone(&self.target), self.batch.bytes as u64);
        self.batch = Batch { slices: 0, bytes: 0 };
        let turn = self.target.passage.turn().await;
        self.mode.run(move || target.write_waiting()).await?;
        turn.passed(bytes);
        Ok(())
    }
}

#[async_trait]
impl SliceSink for StoreSink {
    fn hold(&self) -> Option<Hold> {
        Some(self.target.passage.hold.clone())
    }

    async fn put(&mut self, slice: Span, rows: Rows) -> Result<()> {
        if self.batch_max > 1 {
            return self.gather(slice, rows).await;
        }
        for part in parts(slice, self.sub_blocks.len(), self.target.passage.of) {
            let (target, sub_blocks, rows) = (Arc::clone(&self.target), Arc::clone(&self.sub_blocks), rows.clone());
            let bytes = part.len() * self.sub_blocks.len() as u64;
            let turn = self.target.passage.turn_of(bytes).await;
            self.mode.run(move || target.write(&sub_blocks, slice, part, &rows)).await?;
            turn.passed(bytes);
        }
        Ok(())
    }

    async fn finish(&mut self) -> Result<()> {
        let target = Arc::clone(&self.target);
        self.target.served.run(self.mode, |bytes| *bytes, move || target.finish_one()).await.map(drop)
    }
}
