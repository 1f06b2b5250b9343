//! Bytes of a record that are written before the record is complete, while they arrive.
//!
//! They are sectors of the next batch, at the place that they will have in it. The first pages of that batch are written with its other
//! records, when it is synced. Until then it is a batch that is torn, and recovery drops it as such: nothing of it was durable. If another
//! batch is written first, it gets a higher number and the same place, and these sectors are forgotten: the record is then written as any other.
//!
//! The disk may be writing these pages already. If memory changed meanwhile, a sector could be mixed of old and new bytes, which counts as damage.
//! So nothing is written over them before a sync.

use super::pending::Record;
use super::ring_file::RingFile;
use super::sectors::{CONTENT, PAGE, Packer, SECTOR, pages_of};
use crate::local::Step;
use std::io;
use std::sync::{
    Arc, Weak,
    atomic::{AtomicU64, Ordering::Relaxed},
};
use weft_types::{Result, crc32c_continued};

/// The pages of a batch before the bytes that were written ahead.
pub(super) const LEAD_PAGES: u32 = 2;
/// The bytes in them: the batch's head, the released positions, padding, and the beginning of the record.
pub(super) const LEAD: usize = LEAD_PAGES as usize * (PAGE / SECTOR) * CONTENT;
/// The most bytes of the beginning of that record.
pub(super) const LEAD_RECORD_MAX: usize = LEAD / 2;
/// From so many bytes on that the disk has not begun to write, it begins.
const WRITE_BACK_LEN: u64 = 2 << 20;

/// Bytes of a record that are written to the journal while they arrive: see [`Journal::begin_ahead`](super::Journal::begin_ahead).
#[derive(Debug)]
pub struct Ahead {
    pub(super) number: u64,
    pub(super) packer: Packer,
    pub(super) sink: Sink,
    /// The bytes that are to come.
    left: usize,
    len: usize,
    crc: u32,
    /// As long as this lives, there is no other one.
    claim: Arc<()>,
    /// The bytes of the pages that are written.
    written: Arc<AtomicU64>,
}

/// The sectors that are written ahead.
#[derive(Debug)]
pub(super) struct Claimed {
    number: u64,
    claim: Weak<()>,
    written: Arc<AtomicU64>,
}

/// Where the pages of a batch go. The disk begins to write a long one at once, so that little is left for the sync.
#[derive(Debug)]
pub(super) struct Sink {
    /// Where the batch begins.
    at: u64,
    /// Up to where the disk has begun.
    begun: u64,
}

impl Sink {
    pub(super) fn new(at: u64) -> Self {
        Self { at, begun: 0 }
    }

    pub(super) fn write(&mut self, ring: &RingFile, offset: u64, pages: &[u8]) -> io::Result<()> {
        ring.write(self.at + offset, pages)?;
        let end = offset + pages.len() as u64;
        if end >= self.begun + WRITE_BACK_LEN {
            ring.begin_write_back(self.at + self.begun, end - self.begun);
            self.begun = end;
        }
        Ok(())
    }
}

/// The most bytes of the ring that a batch with so many bytes written ahead takes, and the page behind it.
pub(super) fn bytes_with(len: usize) -> u64 {
    ((pages_of(LEAD + len) + 1) * PAGE) as u64
}

impl Ahead {
    /// For the batch of this number, which will begin at `at`.
    pub(super) fn new(ring: &RingFile, (number, behind): (u64, u32), at: u64, len: usize) -> (Self, Claimed) {
        let (claim, written) = (Arc::new(()), Arc::new(AtomicU64::new(0)));
        let claimed = Claimed { number, claim: Arc::downgrade(&claim), written: Arc::clone(&written) };
        let packer = Packer::new(ring.sealer, number, behind, LEAD_PAGES * (PAGE / SECTOR) as u32);
        let begun = u64::from(LEAD_PAGES) * PAGE as u64;
        (Self { number, packer, sink: Sink { at, begun }, left: len, len, crc: 0, claim, written }, claimed)
    }

    /// Whether nothing has come yet.
    pub(super) fn is_new(&self) -> bool {
        self.left == self.len
    }

    /// Whether pages are written once so many further bytes have come.
    pub(super) fn has_pages_with(&self, more: usize) -> bool {
        self.len - self.left + more >= PAGE / SECTOR * CONTENT
    }

    /// Whether so many further bytes may come.
    pub(super) fn takes(&self, len: usize) -> bool {
        len <= self.left
    }

    /// Writes the next bytes. With `is_over_unsynced`, the disk may be writing what they replace.
    pub(super) fn write(&mut self, ring: &RingFile, bytes: &[u8], is_over_unsynced: bool) -> Result<()> {
        if is_over_unsynced {
            ring.device.step(Step::SyncJournal, || ring.sync())?;
        }
        let Self { packer, sink, left, crc, written, .. } = self;
        *left -= bytes.len();
        *crc = crc32c_continued(*crc, bytes);
        let mut write = |offset: u64, pages: &[u8]| -> io::Result<()> {
            sink.write(ring, offset, pages)?;
            written.fetch_add(pages.len() as u64, Relaxed);
            Ok(())
        };
        ring.device.step(Step::WriteJournal, || packer.push(bytes, &mut write).and_then(|()| packer.flush(&mut write)))
    }

    /// Whether these are the shared bytes of a record with this checksum, and the rest of its frame fits before them.
    pub(super) fn is_of(&self, record: &Record, shared_crc: u32) -> bool {
        self.left == 0 && self.len == record.shared_len() && self.crc == shared_crc && record.bytes.len() <= LEAD_RECORD_MAX
    }
}

impl Claimed {
    /// Whether it is still wanted.
    pub(super) fn is_wanted(&self) -> bool {
        self.claim.strong_count() > 0
    }

    /// The bytes of the pages that are written.
    pub(super) fn written(&self) -> u64 {
        self.written.load(Relaxed)
    }

    /// Whether it is this one.
    pub(super) fn is(&self, ahead: &Ahead) -> bool {
        self.number == ahead.number && self.claim.ptr_eq(&Arc::downgrade(&ahead.claim))
    }
}
