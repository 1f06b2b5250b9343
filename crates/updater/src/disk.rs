//! What all blocks of a disk share: store, journal, bounds, and what the shell must do next.

use crate::{
    departing::Departing,
    piece::bytes_of,
    record::{Deltas, Stored},
    shape::Shape,
    updater::Output,
};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};
use weft_store::{Ahead, BlockStore, Journal, Position, RECORD_BYTES_MAX, Reservation, Tail};
use weft_types::{BlockId, PAGE_LEN, Result, UPDATE_BYTES_MAX};
use weft_update::{Config, OUTCOMES_MAX};

/// What a disk keeps in memory and on the disk for updates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The most blocks that are open or settled. Each takes memory for the checksums of its pages, 1/1024 of its length.
    pub blocks_max: usize,
    /// The most untrimmed records of a block.
    pub records_max: usize,
    /// The most outcomes that a block remembers.
    pub outcomes_max: usize,
    /// The most sessions of which a block remembers how far their outcomes are forgotten.
    pub sessions_max: usize,
    /// The most updates that a block leads at a time.
    pub updates_max: usize,
    /// The most numbers above the watermark of a block's stream.
    pub lag_max: u64,
    /// The most updates that wait for a range of a block.
    pub waiting_max: usize,
    /// The most reads of a block that wait for a confirmation of the term.
    pub reads_max: usize,
    /// The most bytes of one update. Larger ones write new generations of the blocks.
    pub update_bytes_max: u64,
    /// The most bytes of a record of the journal. A journal may take smaller ones only; then that counts, and for updates about three
    /// quarters of it.
    pub record_bytes_max: usize,
    /// The most new bytes and deltas in memory, for all blocks. Deltas that arrive before their messages may take a quarter of it in addition.
    pub inflight_bytes_max: u64,
    /// The most bytes of one read.
    pub read_bytes_max: u64,
    /// The most bytes of a block's updates that are applied together, with a page for each; one update at least.
    pub batch_bytes_max: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            blocks_max: 4096,
            records_max: 256,
            outcomes_max: OUTCOMES_MAX,
            sessions_max: 1024,
            updates_max: 64,
            lag_max: 128,
            waiting_max: 64,
            reads_max: 64,
            update_bytes_max: UPDATE_BYTES_MAX,
            record_bytes_max: RECORD_BYTES_MAX,
            inflight_bytes_max: 64 << 20,
            read_bytes_max: 4 << 20,
            batch_bytes_max: 8 << 20,
        }
    }
}

/// Updates are applied from this fill of the journal on.
pub(crate) const APPLY_FILL: f64 = 0.25;
/// From this fill on, a call that brings a new update applies earlier ones first.
pub(crate) const DELAY_FILL: f64 = 0.5;
/// From this fill on, releases are made durable at once, since only then what they free can be used.
pub(crate) const RELEASE_FILL: f64 = 0.75;
/// From this fill on, nothing is handled with which an update begins. Reservations end at 90 %; the rest is for entries without payload.
pub(crate) const STOP_FILL: f64 = 0.93;

/// From this fill on, a Prepare is not even refused.
pub(crate) const REFUSE_FILL: f64 = 0.94;

/// The time between two ticks, about.
const TICK_MS: u64 = 200;
/// The most bytes that a record says about a page, in addition to its content.
const PAGE_HEAD_BYTES: u64 = 16;

/// From so many bytes on, the deltas of a record are kept for a moment when they are read back: of a long update, more is read as a rule.
const READ_BACK_FROM: u64 = 64 << 10;
/// The most bytes of them.
const READ_BACK_BYTES_MAX: u64 = 32 << 20;

/// The deltas of long records that were read back a moment ago.
#[derive(Default)]
struct ReadBack {
    deltas: BTreeMap<Position, Arc<Deltas>>,
    bytes: u64,
    /// Any of them was asked for since the last tick.
    is_used: bool,
}

/// A disk.
pub(crate) struct Disk {
    pub(crate) store: Arc<dyn BlockStore>,
    pub(crate) journal: Arc<dyn Journal>,
    pub(crate) limits: Limits,
    pub(crate) outputs: Vec<Output>,
    pub(crate) departing: Option<Departing>,
    /// The last append that is not synced.
    pub(crate) unsynced: Option<Position>,
    pub(crate) inflight_bytes: u64,
    /// The bytes of deltas that arrive before their messages.
    pub(crate) arriving_bytes: u64,
    read_back: Mutex<ReadBack>,
    /// The time of the last tick.
    ticked_ms: u64,
    /// How long the clock has stood still.
    stood_ms: u64,
    /// Whether the journal's part of a block was released as a whole, and a crash might bring it back.
    pub(crate) has_released: bool,
}

impl Disk {
    pub(crate) fn new(store: Arc<dyn BlockStore>, journal: Arc<dyn Journal>, limits: Limits) -> Self {
        Self {
            store,
            journal,
            limits,
            outputs: Vec::new(),
            departing: None,
            unsynced: None,
            inflight_bytes: 0,
            arriving_bytes: 0,
            read_back: Mutex::default(),
            ticked_ms: 0,
            stood_ms: 0,
            has_released: false,
        }
    }

    /// What the machine of a block is given.
    pub(crate) fn config(&self, me: BlockId, shape: &Shape) -> Config {
        let limits = self.limits;
        Config {
            me,
            dependence: shape.dependence.clone(),
            records_max: limits.records_max,
            outcomes_max: limits.outcomes_max,
            sessions_max: limits.sessions_max,
            updates_max: limits.updates_max,
            lag_max: limits.lag_max,
            waiting_max: limits.waiting_max,
            reads_max: limits.reads_max,
            batch_positions_max: limits.batch_bytes_max / shape.alpha(),
        }
    }

    /// A tick. If the clock has not moved since the last one, this counts as time.
    pub(crate) fn tick(&mut self, now_ms: u64) {
        let read_back = self.read_back.get_mut().unwrap_or_else(PoisonError::into_inner);
        if !std::mem::take(&mut read_back.is_used) {
            *read_back = ReadBack::default();
        }
        if now_ms > self.ticked_ms {
            self.ticked_ms = now_ms;
        } else {
            self.stood_ms += TICK_MS;
        }
    }

    /// A time that goes on while the clock stands still, as it does after a step back. Only for what is measured here.
    pub(crate) fn passed_ms(&self, now_ms: u64) -> u64 {
        now_ms.saturating_add(self.stood_ms)
    }

    /// Releases all that the journal contains of a block, or all that was left of it.
    pub(crate) fn release(&mut self, positions: &[Position]) {
        self.journal.release(positions);
        self.has_released = true;
    }

    /// Appends a record.
    pub(crate) fn append(&mut self, block: BlockId, stored: &Stored, room: Option<&mut Reservation>) -> Result<Position> {
        self.append_ahead(block, stored, None, room)
    }

    /// The same for a record whose deltas may be written already.
    pub(crate) fn append_ahead(
        &mut self,
        block: BlockId,
        stored: &Stored,
        ahead: Option<Ahead>,
        room: Option<&mut Reservation>,
    ) -> Result<Position> {
        let (bytes, shared) = stored.encode_shared()?;
        let position = self.journal.append_shared(block, &bytes, Tail { shared, ahead }, room)?;
        self.unsynced = Some(position);
        Ok(position)
    }

    /// Reads a record back.
    pub(crate) fn read(&self, position: Position) -> Result<Stored> {
        Stored::decode(&self.journal.read(position)?)
    }

    /// Reads the deltas of a record back for a reader; `None` if it has none. Those of a long one are kept for a moment.
    pub(crate) fn read_deltas(&self, position: Position) -> Result<Option<Arc<Deltas>>> {
        let mut read_back = self.read_back.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(deltas) = read_back.deltas.get(&position).cloned() {
            read_back.is_used = true;
            return Ok(Some(deltas));
        }
        let Stored::Entry(_, Some(deltas)) = self.read(position)? else { return Ok(None) };
        let (bytes, deltas) = (bytes_of(&deltas.pieces), Arc::new(deltas));
        if bytes >= READ_BACK_FROM {
            if read_back.bytes + bytes > READ_BACK_BYTES_MAX {
                *read_back = ReadBack::default();
            }
            read_back.bytes += bytes;
            read_back.is_used = true;
            read_back.deltas.insert(position, Arc::clone(&deltas));
        }
        Ok(Some(deltas))
    }

    /// Reserves room for the deltas of an update and for their after-images, which are applied one by one at worst; and for what is written
    /// when the record is trimmed.
    pub(crate) fn reserve(&self, delta_bytes: u64, pages: u64, units: u64) -> Result<Reservation> {
        const HEAD_BYTES: u64 = 8 << 10;
        let records = 4 + units + pages / self.pages_of_record() as u64;
        self.journal.reserve(records, HEAD_BYTES + delta_bytes + pages * (PAGE_LEN + PAGE_HEAD_BYTES))
    }

    /// How many after-images fit into a record.
    pub(crate) fn pages_of_record(&self) -> usize {
        (self.limits.record_bytes_max / (PAGE_LEN + PAGE_HEAD_BYTES) as usize).max(2) - 1
    }
}
