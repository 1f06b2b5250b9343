//! Puts a batch together and writes it.

use super::ahead::{Ahead, LEAD, LEAD_PAGES, LEAD_RECORD_MAX, Sink, bytes_with};
use super::frames::{self, BatchHead, FRAME_EXTRA_MAX, Head, PAD_MIN, RecordHead};
use super::index::Live;
use super::pending::{Pending, Record};
use super::ring_file::RingFile;
use super::sectors::{PAGE, Packer, pages_of};
use crate::local::Step;
use weft_types::{Error, Result};

/// The most bytes of a released position.
const RELEASED_BYTES: usize = 10;
/// The most bytes of the frame of a batch's head.
const HEAD_BYTES_MAX: usize = FRAME_EXTRA_MAX;
/// The released positions that a batch names at most, twice over, and as many for each of its records. They fit in the room that is counted
/// for each record.
pub(super) const RELEASED_MAX: usize = 150;
const RELEASED_PER_RECORD: usize = 2;
const _: () = assert!(
    HEAD_BYTES_MAX + FRAME_EXTRA_MAX + (RELEASED_MAX + RELEASED_PER_RECORD) * RELEASED_BYTES + PAD_MIN + LEAD_RECORD_MAX <= LEAD
);

/// A batch.
pub(super) struct Batch<'a> {
    pub(super) number: u64,
    /// The number of the batch before.
    pub(super) before: u64,
    /// Where it begins.
    pub(super) at: u64,
    pub(super) tail: u64,
    pub(super) next_position: u64,
    pub(super) released: Vec<u64>,
    pub(super) copies: &'a [(u64, Live)],
    pub(super) pending: &'a Pending,
    /// The shared bytes of the pending record at this position, which are written already.
    pub(super) ahead: Option<(u64, Ahead)>,
}

/// The most bytes of the ring that a batch of these records and copies takes, and the page behind it.
pub(super) fn batch_bytes(pending: &Pending, copies_len: usize) -> u64 {
    let released_len = FRAME_EXTRA_MAX + (RELEASED_MAX + released_max(pending)) * RELEASED_BYTES;
    let len = HEAD_BYTES_MAX + released_len + copies_len + pending.len;
    match pending.ahead {
        Some(_) => bytes_with(len),
        None => ((pages_of(len) + 1) * PAGE) as u64,
    }
}

/// How many released positions the batch of these records names at most.
pub(super) fn released_max(pending: &Pending) -> usize {
    RELEASED_MAX + RELEASED_PER_RECORD * pending.records.len()
}

/// Whether a batch with so many released positions has room for the beginning of a record before bytes that were written ahead.
pub(super) fn leads(released: usize, record: &Record) -> bool {
    HEAD_BYTES_MAX + FRAME_EXTRA_MAX + released * RELEASED_BYTES + PAD_MIN + record.bytes.len() <= LEAD
}

impl Batch<'_> {
    /// Writes and syncs it. Returns its pages, and where its records begin in it, by position. With `is_over_unsynced`, the disk may be writing
    /// pages that were written ahead, behind the first [`LEAD_PAGES`] of its place.
    pub(super) fn write(mut self, ring: &RingFile, is_over_unsynced: bool) -> Result<(u32, Vec<(u64, u32)>)> {
        let behind = u32::try_from(self.number - self.before).map_err(|_| Error::fatal("the journal was torn too often"))?;
        let (ahead, copies) = (self.ahead.take(), copies_of(ring, self.copies)?);
        let ahead = ahead.and_then(|(position, ahead)| self.pending.get(position).map(|record| (record, ahead)));
        let arrived = ahead.as_ref().map(|(record, _)| record.position);
        let others = || copies.iter().chain(&self.pending.records).filter(|record| Some(record.position) != arrived);
        let others_len: usize = others().map(Record::len).sum();
        let (mut lead, mut records) = (Vec::new(), Vec::new());
        let released = std::mem::take(&mut self.released);
        if !released.is_empty() {
            frames::push(&mut lead, &frames::released(released), &[])?;
        }
        // The length of the head does not depend on the pages by more than the page that is counted for it.
        let len = ahead.as_ref().map_or(HEAD_BYTES_MAX + lead.len(), |(record, _)| LEAD + record.shared_len());
        let pages = pages_of(len + others_len) as u32;
        lead = [self.head(pages)?, lead].concat();
        let mut at = lead.len();
        if let Some((record, _)) = &ahead {
            let padding = LEAD.saturating_sub(lead.len() + record.bytes.len());
            frames::pad(&mut lead, padding)?;
            records.push((record.position, lead.len() as u32));
            lead.extend_from_slice(&record.bytes);
            at = LEAD + record.shared_len();
        }
        for record in others() {
            records.push((record.position, at as u32));
            at += record.len();
        }
        if is_over_unsynced && pages > LEAD_PAGES {
            ring.device.step(Step::SyncJournal, || ring.sync())?;
        }
        let first = Packer::new(ring.sealer, self.number, behind, 0);
        let write = || {
            let (mut packer, mut sink) = match ahead {
                Some((_, ahead)) => {
                    write_lead(first, &lead, ring, self.at)?;
                    (ahead.packer, ahead.sink)
                }
                None => {
                    let (mut first, mut sink) = (first, Sink::new(self.at));
                    first.push(&lead, &mut |offset, pages| sink.write(ring, offset, pages))?;
                    (first, sink)
                }
            };
            let mut write = |offset: u64, sectors: &[u8]| sink.write(ring, offset, sectors);
            for part in others().flat_map(Record::parts) {
                packer.push(part, &mut write)?;
            }
            packer.finish(pages, &mut write)
        };
        ring.device.step(Step::WriteJournal, write)?;
        ring.device.step(Step::SyncJournal, || ring.sync())?;
        Ok((pages, records))
    }

    /// The frame of its head.
    fn head(&self, pages: u32) -> Result<Vec<u8>> {
        let mut head = Vec::new();
        let Self { at, tail, next_position, .. } = *self;
        frames::push(&mut head, &Head::Batch(BatchHead { at, pages, tail, next_position }), &[])?;
        Ok(head)
    }
}

/// The first pages of a batch, of which the rest was written ahead.
fn write_lead(mut first: Packer, lead: &[u8], ring: &RingFile, at: u64) -> std::io::Result<()> {
    let mut write = |offset: u64, pages: &[u8]| ring.write(at + offset, pages);
    first.push(lead, &mut write)?;
    first.finish(LEAD_PAGES, &mut write)
}

/// The frames of copied records.
fn copies_of(ring: &RingFile, copies: &[(u64, Live)]) -> Result<Vec<Record>> {
    let mut copied = Vec::new();
    for (position, live) in copies {
        let Some(place) = live.place else { continue };
        let head = RecordHead::new(*position, live.block);
        let copy = ring.read_frame(place, live.len, |frame| match frame.head == Head::Record(head) {
            true => frames::begin(head, frame.payload, &[], 0).map(Some),
            false => Ok(None),
        });
        match copy {
            Ok(Some(Ok(Some((bytes, payload_at))))) => {
                copied.push(Record { position: *position, bytes, payload_at, shared: Vec::new() });
            }
            Ok(Some(Err(error))) => return Err(error),
            Ok(_) => return Err(Error::corrupt(format!("record {position} of the journal is damaged"))),
            Err(error) => return Err(Error::corrupt(format!("cannot read record {position} of the journal: {error}"))),
        }
    }
    Ok(copied)
}
