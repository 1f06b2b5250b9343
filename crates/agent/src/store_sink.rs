//! A new block on a disk as a sink of stages.

use crate::{
    DiskMode,
    line::{Passage, parts},
    partial::Claim,
    traffic::Traffic,
};
use async_trait::async_trait;
use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicUsize, Ordering},
};
use weft_engine::{Hold, SliceSink};
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
    traffic: Arc<Traffic>,
    passage: Passage,
}

impl Target {
    /// A block with `sinks` sinks in the task. May block.
    pub(crate) fn new(
        claim: Claim,
        expected_checksums: Option<Vec<u32>>,
        sinks: usize,
        traffic: Arc<Traffic>,
        passage: Passage,
    ) -> Self {
        let (missing, unfinished) = (claim.missing(), AtomicUsize::new(sinks));
        Self { claim, expected_checksums, missing, unfinished, receipt: Mutex::default(), traffic, passage }
    }

    pub(crate) fn claim(&self) -> &Claim {
        &self.claim
    }

    /// One of its sinks.
    pub(crate) fn sink(self: &Arc<Self>, sub_blocks: &[u16], mode: DiskMode) -> Box<dyn SliceSink> {
        Box::new(StoreSink { target: Arc::clone(self), sub_blocks: Arc::from(sub_blocks), mode })
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

    /// The block's last sink to finish commits it.
    fn finish_one(&self) -> Result<()> {
        if self.unfinished.fetch_sub(1, Ordering::AcqRel) == 1 { self.commit() } else { Ok(()) }
    }
}

struct StoreSink {
    target: Arc<Target>,
    sub_blocks: Arc<[u16]>,
    mode: DiskMode,
}

#[async_trait]
impl SliceSink for StoreSink {
    fn hold(&self) -> Option<Hold> {
        Some(self.target.passage.hold.clone())
    }

    async fn put(&mut self, slice: Span, rows: Rows) -> Result<()> {
        for part in parts(slice, self.sub_blocks.len(), self.target.passage.of) {
            let (target, sub_blocks, rows) = (Arc::clone(&self.target), Arc::clone(&self.sub_blocks), rows.clone());
            let turn = self.target.passage.turn().await;
            self.mode.run(move || target.write(&sub_blocks, slice, part, &rows)).await?;
            turn.passed(part.len() * self.sub_blocks.len() as u64);
        }
        Ok(())
    }

    async fn finish(&mut self) -> Result<()> {
        let target = Arc::clone(&self.target);
        self.mode.run(move || target.finish_one()).await
    }
}
