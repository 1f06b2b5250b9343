//! Which records of the ring are live, and where they are.

use super::sectors::{CONTENT, PAGE, SECTOR};
use std::collections::{BTreeMap, VecDeque};
use weft_types::BlockId;

/// A record that is live, or whose release no batch has named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Live {
    pub(super) block: BlockId,
    /// `None` until it is durable.
    pub(super) place: Option<Place>,
    /// Bytes of its frame.
    pub(super) len: u32,
    /// It is not live. It keeps its place in the ring, until its release is named: no later release may be known before it.
    is_released: bool,
}

/// Where a record's frame is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    /// Where its batch begins.
    pub(super) batch: u64,
    /// Where the frame begins in the batch's bytes.
    pub(super) offset: u32,
}

/// A durable batch.
#[derive(Debug)]
struct Batch {
    at: u64,
    /// The positions of its records, whether live here or not.
    records: Vec<u64>,
    /// How many of them are in the index, here.
    kept: usize,
}

/// The live records and the durable batches, from the tail on.
#[derive(Debug, Default)]
pub(super) struct Index {
    records: BTreeMap<u64, Live>,
    batches: VecDeque<Batch>,
    /// Where the next batch begins.
    pub(super) head: u64,
    /// The ring's bytes that live records take, about.
    live_bytes: u64,
}

impl Index {
    /// Where the oldest batch begins that is needed.
    pub(super) fn tail(&self) -> u64 {
        self.batches.front().map_or(self.head, |batch| batch.at)
    }

    /// The bytes between tail and head.
    pub(super) fn span(&self) -> u64 {
        self.head - self.tail()
    }

    pub(super) fn live_bytes(&self) -> u64 {
        self.live_bytes
    }

    pub(super) fn len(&self) -> usize {
        self.records.len()
    }

    /// A live record.
    pub(super) fn get(&self, position: u64) -> Option<Live> {
        self.records.get(&position).filter(|live| !live.is_released).copied()
    }

    /// The first live record from a position on.
    pub(super) fn next(&self, from: u64) -> Option<(u64, Live)> {
        let mut live = self.records.range(from..).filter(|(_, live)| !live.is_released);
        live.next().map(|(position, live)| (*position, *live))
    }

    /// A record that is not written yet.
    pub(super) fn append(&mut self, position: u64, block: BlockId, len: u32) {
        self.records.insert(position, Live { block, place: None, len, is_released: false });
        self.live_bytes += ring_bytes(len);
    }

    /// Releases a record. Returns whether it was live.
    pub(super) fn release(&mut self, position: u64) -> bool {
        let Some(live) = self.records.get_mut(&position).filter(|live| !live.is_released) else { return false };
        live.is_released = true;
        self.live_bytes -= ring_bytes(live.len);
        true
    }

    /// The release of a record is named by the batch that is written next, or by one that was read. Its batch, and those at the tail that
    /// are not needed, are free then.
    pub(super) fn forget(&mut self, position: u64) {
        if let Some(record) = self.records.remove(&position) {
            self.leave(record.place);
            self.advance();
        }
    }

    /// A batch is durable. It contains these records, by position with the offsets of their frames: new ones, and copies.
    pub(super) fn durable(&mut self, at: u64, pages: u32, records: &[(u64, u32)]) {
        self.head = at + u64::from(pages) * PAGE as u64;
        self.batches.push_back(Batch { at, records: records.iter().map(|(position, _)| *position).collect(), kept: 0 });
        for (position, offset) in records {
            let Some(record) = self.records.get_mut(position) else { continue };
            let before = record.place.replace(Place { batch: at, offset: *offset });
            self.leave(before);
            if let Some(batch) = self.batches.back_mut() {
                batch.kept += 1;
            }
        }
        self.advance();
    }

    /// The live records of the oldest batches, in the order of their places, as many as have these bytes; at least one, if there is any.
    pub(super) fn oldest(&self, bytes_max: u64) -> Vec<(u64, Live)> {
        let mut found = Vec::new();
        let mut bytes = 0;
        for batch in &self.batches {
            for position in &batch.records {
                let Some(live) = self.get(*position).filter(|live| live.place.is_some_and(|place| place.batch == batch.at))
                else {
                    continue;
                };
                bytes += u64::from(live.len);
                if bytes > bytes_max && !found.is_empty() {
                    return found;
                }
                found.push((*position, live));
            }
        }
        found
    }

    /// Whether no record of the oldest batch is live: it is free once their releases are named.
    pub(super) fn is_oldest_free(&self) -> bool {
        let is_live = |batch: &Batch, position: &u64| {
            self.get(*position).is_some_and(|live| live.place.is_some_and(|place| place.batch == batch.at))
        };
        self.batches.front().is_some_and(|batch| !batch.records.iter().any(|position| is_live(batch, position)))
    }

    fn leave(&mut self, place: Option<Place>) {
        let Some(place) = place else { return };
        if let Ok(number) = self.batches.binary_search_by_key(&place.batch, |batch| batch.at)
            && let Some(batch) = self.batches.get_mut(number)
        {
            batch.kept -= 1;
        }
    }

    /// Drops the oldest batches that are not needed.
    fn advance(&mut self) {
        while self.batches.front().is_some_and(|batch| batch.kept == 0) {
            self.batches.pop_front();
        }
    }
}

/// The bytes of the ring that this many bytes of frames take, without padding.
pub(super) fn ring_bytes(len: u32) -> u64 {
    u64::from(len).div_ceil(CONTENT as u64) * SECTOR as u64
}
