//! The journal as a ring of fixed size in one file, with group commit. `docs/formats.md` describes the file, and
//! `docs/adr/0015-journal.md` why it is so.
//!
//! Appended records wait in memory. A thread that syncs one of them writes all waiting records as one batch, with one write and one sync, unless
//! another thread is writing; then it waits for that thread. So at most one batch is not durable, and the next names it.
//!
//! A record that arrives slowly may be written ahead (`ahead.rs`): it then is part of the next batch, unless another batch comes first.
//!
//! Space is given back at the tail: past batches without a live record. A live record that stands in the way for long is copied to the
//! head. It keeps its position, and the copy counts. A batch may overwrite only what is behind the tail that a durable batch names.

use super::ahead::{self, Ahead, Claimed};
use super::batch::{self, Batch, RELEASED_MAX, batch_bytes, released_max};
use super::frames::{self, FRAME_EXTRA_MAX, Head, RecordHead};
use super::index::{Index, Live, ring_bytes};
use super::pending::{Pending, Record};
use super::recovery;
use super::ring_file::{NewJournal, RingFile};
use super::sectors::{CONTENT, PAGE, SECTOR};
use super::{Journal, JournalCounts, Position, RECORD_BYTES_MAX, Reservation, Tail, Visit};
use crate::local::{Step, device::Device};
use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{
    Arc, Condvar, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicU64, Ordering::Relaxed},
};
use weft_types::{BlockId, Error, Result, crc32c_continued};

/// Above this fill, no room is reserved.
const RESERVED_PERCENT: u64 = 90;
/// Above this fill, nothing is appended but what has a reservation.
const APPENDED_PERCENT: u64 = 95;
/// Above this fill, no batch is written only to name releases, unless that frees room.
const NAMED_PERCENT: u64 = 98;
/// Up to this fill, copies to the head are small, so that no batch takes much longer for them.
const CALM_PERCENT: u64 = 80;
/// The most that a batch copies to the head, as a part of the ring.
const COPIED_PART: u64 = 64;
/// The most bytes of records that a batch copies; one record at least. As many may be pending; the heads of records and sectors take less than as
/// many again.
const COPIED_BYTES_MAX: u64 = RECORD_BYTES_MAX as u64;
/// The bytes of records that are written as one batch: the largest record, or several of usual length.
const BATCH_BYTES: usize = 8 << 20;
const _: () = assert!(3 * COPIED_BYTES_MAX <= recovery::BATCH_PAGES_MAX as u64 * PAGE as u64);
/// The most batches that one reservation writes to make room.
const BATCHES_FOR_ROOM_MAX: u32 = 64;

/// The journal of a [`LocalStore`](crate::LocalStore).
#[derive(Debug)]
pub struct RingJournal {
    ring: RingFile,
    state: Mutex<State>,
    /// A batch is durable, or has failed.
    changed: Condvar,
    reserved: Arc<AtomicU64>,
    /// Keeps the disk locked. The last field, so that it is dropped last.
    _disk: Arc<dyn fmt::Debug + Send + Sync>,
}

#[derive(Debug)]
struct State {
    index: Index,
    /// Appended, and not being written.
    pending: Pending,
    /// Being written.
    writing: Arc<Pending>,
    is_writing: bool,
    /// Sectors of the next batch that are written already.
    claimed: Option<Claimed>,
    /// Since the last sync, pages behind the first ones of the next batch were written ahead.
    is_ahead_unsynced: bool,
    /// Released, and not named by a batch, in the order of the releases.
    released: VecDeque<u64>,
    /// How many releases a durable batch has named.
    named: u64,
    /// How many releases there were.
    releases: u64,
    next_position: u64,
    /// The highest position that is durable; 0: none.
    durable: u64,
    last_number: u64,
    /// Higher than that of any batch of which a sector may exist.
    next_number: u64,
    /// What is behind may be overwritten.
    durable_tail: u64,
    counts: JournalCounts,
}

impl RingJournal {
    /// Opens the ring at `path`, or creates it. Fails with [`Reaction::Corrupt`](weft_types::Reaction) if it is damaged.
    pub(crate) fn open(
        disk: Arc<dyn fmt::Debug + Send + Sync>,
        device: &Arc<Device>,
        path: &Path,
        new: NewJournal,
        disk_id: u128,
    ) -> Result<Self> {
        let ring = RingFile::open(device, path, new, disk_id)?;
        let found = recovery::recover(&ring)?;
        tracing::info!(journal = %path.display(), records = found.index.len(), "opened a journal");
        let state = State {
            pending: Pending::default(),
            writing: Arc::default(),
            is_writing: false,
            claimed: None,
            is_ahead_unsynced: false,
            released: VecDeque::new(),
            named: 0,
            releases: 0,
            durable: found.next_position - 1,
            next_position: found.next_position,
            last_number: found.last_number,
            next_number: found.next_number,
            durable_tail: found.tail,
            index: found.index,
            counts: JournalCounts::default(),
        };
        Ok(Self { ring, state: Mutex::new(state), changed: Condvar::new(), reserved: Arc::default(), _disk: disk })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The bytes of records that are written as one batch.
    fn batch_bytes_max(&self) -> usize {
        let record = self.record_bytes_max();
        (2 * record).min(BATCH_BYTES.max(record))
    }

    /// The bytes of the ring that are not free, with those that are promised.
    fn used(&self, state: &State) -> u64 {
        let batches = [&state.pending, &*state.writing].into_iter().filter(|batch| !batch.records.is_empty());
        let batches: u64 = batches.map(|batch| batch_bytes(batch, 0)).sum();
        let bytes = state.index.span() + batches + self.reserved.load(Relaxed);
        // Small records take more memory than bytes of the ring; their number is bounded, too.
        bytes.max(state.index.len() as u64 * SECTOR as u64)
    }

    /// Whether so many further bytes leave the ring at most this full.
    fn fits(&self, state: &State, bytes: u64, percent: u64) -> bool {
        self.used(state).saturating_add(bytes) <= self.ring.ring_bytes / 100 * percent
    }

    /// Whether a batch that names releases frees more room than it takes: the tail moves, or it names as many as there can be.
    fn frees_room(&self, state: &State) -> bool {
        let is_many = state.released.len() >= RELEASED_MAX;
        is_many || state.index.is_oldest_free() || state.should_copy(self.ring.ring_bytes)
    }

    /// Waits while another thread writes; otherwise writes a batch.
    fn next_batch<'a>(&'a self, state: MutexGuard<'a, State>) -> Result<MutexGuard<'a, State>> {
        self.ring.device.check_alive()?;
        if state.is_writing {
            return Ok(self.changed.wait(state).unwrap_or_else(PoisonError::into_inner));
        }
        self.write_batches(state)
    }

    /// Writes what is pending, and copies that make room. If the ring is full up to the durable tail, an empty batch first moves that
    /// tail; a page is always left for it.
    fn write_batches<'a>(&'a self, mut state: MutexGuard<'a, State>) -> Result<MutexGuard<'a, State>> {
        let ring_bytes = self.ring.ring_bytes;
        let copies = state.to_copy(ring_bytes, self.fits(&state, 0, CALM_PERCENT));
        let copies_len: usize = copies.iter().map(|(_, live)| live.len as usize).sum();
        let needed = batch_bytes(&state.pending, copies_len);
        let is_full = |state: &State| state.index.head + needed - state.durable_tail > ring_bytes;
        state.is_writing = true;
        let mut released = Vec::new();
        if is_full(&state) {
            // No release may be named before its record.
            let durable = state.durable;
            released = state.take_released(RELEASED_MAX, durable);
            if state.index.tail() > state.durable_tail {
                state = self.write_batch(state, Pending::default(), Vec::new(), std::mem::take(&mut released));
            }
        }
        // An error has failed the device.
        let result = self.ring.device.check_alive().and_then(|()| match is_full(&state) {
            // Admission prevents it. Nothing live may be overwritten.
            true => {
                let why = "the journal has no room for what it accepted";
                self.ring.device.fail(Step::WriteJournal, why);
                Err(Error::fatal(why))
            }
            false => Ok(()),
        });
        if result.is_ok() {
            let pending = std::mem::take(&mut state.pending);
            released.extend(state.take_released(released_max(&pending), u64::MAX));
            state = self.write_batch(state, pending, copies, released);
        }
        state.is_writing = false;
        self.changed.notify_all();
        result?;
        self.ring.device.check_alive()?;
        Ok(state)
    }

    /// Writes and syncs one batch, without the lock. If that fails, the device has failed.
    fn write_batch<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        mut pending: Pending,
        copies: Vec<(u64, Live)>,
        released: Vec<u64>,
    ) -> MutexGuard<'a, State> {
        let released_count = released.len();
        let ahead = pending.ahead.take().filter(|(position, ahead)| {
            let leads = pending.get(*position).is_some_and(|record| batch::leads(released_count, record));
            leads && state.claimed.as_ref().is_some_and(|claimed| claimed.is(ahead))
        });
        // What else was written ahead is in the way.
        let claimed = state.claimed.take().filter(|_| ahead.is_none());
        state.counts.bytes_wasted += claimed.map_or(0, |claimed| claimed.written());
        let is_other = ahead.as_ref().is_none_or(|(_, ahead)| !ahead.has_pages_with(0));
        let is_over_unsynced = std::mem::take(&mut state.is_ahead_unsynced) && is_other;
        let number = ahead.as_ref().map_or(state.next_number, |(_, ahead)| ahead.number);
        state.next_number = state.next_number.max(number + 1);
        state.counts.records_ahead += u64::from(ahead.is_some());
        let (at, tail) = (state.index.head, state.index.tail());
        let next_position = pending.records.last().map_or(state.durable + 1, |record| record.position + 1);
        state.writing = Arc::new(pending);
        let (pending, before) = (Arc::clone(&state.writing), state.last_number);
        drop(state);

        let batch = Batch { number, before, at, tail, next_position, released, copies: &copies, pending: &pending, ahead };
        // If it panicked and this went on, the others would wait for ever.
        let written = catch_unwind(AssertUnwindSafe(|| batch.write(&self.ring, is_over_unsynced)));
        let written = written.unwrap_or_else(|_| Err(Error::fatal("a thread panicked while it wrote a batch")));

        let mut state = self.lock();
        state.writing = Arc::default();
        match written {
            Ok((pages, records)) => {
                state.index.durable(at, pages, &records);
                (state.last_number, state.durable_tail) = (number, tail);
                state.durable = next_position - 1;
                state.named += released_count as u64;
                state.counts.syncs += 1;
                state.counts.bytes_written += u64::from(pages) * PAGE as u64;
                state.counts.bytes_copied += copies.iter().map(|(_, live)| ring_bytes(live.len)).sum::<u64>();
            }
            Err(error) => self.ring.device.fail(Step::WriteJournal, &error.message),
        }
        state
    }

    /// Calls `write` without the lock, and lets others wait meanwhile.
    fn while_writing<T>(&self, mut state: MutexGuard<'_, State>, write: impl FnOnce() -> Result<T>) -> Result<T> {
        state.is_writing = true;
        drop(state);
        let written = catch_unwind(AssertUnwindSafe(write));
        let written = written.unwrap_or_else(|_| Err(Error::fatal("a thread panicked while it wrote to the journal")));
        if let Err(error) = &written {
            self.ring.device.fail(Step::WriteJournal, &error.message);
        }
        self.lock().is_writing = false;
        self.changed.notify_all();
        written
    }
}

impl State {
    /// The records to copy to the head: the oldest, if much of what is between tail and head is released. While the ring `is_calm`,
    /// twice as much as is appended: from half full on, that reaches the released ones before the ring is full.
    fn to_copy(&self, ring_bytes: u64, is_calm: bool) -> Vec<(u64, Live)> {
        // A batch with these and with what is pending must not be longer than recovery accepts.
        let most = (ring_bytes / COPIED_PART).min(COPIED_BYTES_MAX);
        let bytes_max = if is_calm { (2 * self.pending.len as u64).clamp(PAGE as u64, most) } else { most };
        if self.should_copy(ring_bytes) { self.index.oldest(bytes_max) } else { Vec::new() }
    }

    fn should_copy(&self, ring_bytes: u64) -> bool {
        let span = self.index.span();
        span > ring_bytes / 2 && self.index.live_bytes() < span / 4 * 3
    }

    /// The oldest released positions, before the first beyond `last`. They are named by the batch that is written next.
    fn take_released(&mut self, count_max: usize, last: u64) -> Vec<u64> {
        let count = self.released.iter().take(count_max).take_while(|position| **position <= last).count();
        let released: Vec<u64> = self.released.drain(..count).collect();
        released.iter().for_each(|position| self.index.forget(*position));
        released
    }
}

/// The most bytes of the ring that a record takes: its frame, and a batch of its own.
fn room_for(payload: u64, records: u64) -> u64 {
    let frames = payload.saturating_add(records.saturating_mul(FRAME_EXTRA_MAX as u64));
    let sectors = frames.div_ceil(CONTENT as u64).saturating_mul(SECTOR as u64);
    sectors.saturating_add(records.saturating_mul(2 * PAGE as u64))
}

impl Journal for RingJournal {
    fn reserve(&self, records: u64, bytes: u64) -> Result<Reservation> {
        let room = room_for(bytes, records);
        let mut state = self.lock();
        for _ in 0..BATCHES_FOR_ROOM_MAX {
            self.ring.device.check_alive()?;
            if self.fits(&state, room, RESERVED_PERCENT) {
                return Ok(Reservation::new(room, &self.reserved));
            }
            if !state.should_copy(self.ring.ring_bytes) {
                break;
            }
            state = self.next_batch(state)?;
        }
        let percent = self.used(&state) * 100 / self.ring.ring_bytes;
        Err(Error::retry(format!("the journal is busy: {percent} % are in use, and {room} more bytes were asked for")))
    }

    fn begin_ahead(&self, len: usize) -> Option<Ahead> {
        let mut state = self.lock();
        let bytes = ahead::bytes_with(FRAME_EXTRA_MAX + len);
        let ring_bytes = self.ring.ring_bytes;
        let is_free = state.index.head + bytes - state.durable_tail <= ring_bytes && self.fits(&state, bytes, CALM_PERCENT);
        let is_other = state.claimed.as_ref().is_some_and(Claimed::is_wanted);
        if state.is_writing || is_other || !is_free || len > self.record_bytes_max() || self.ring.device.failed().is_some() {
            return None;
        }
        let number = state.next_number;
        let behind = u32::try_from(number - state.last_number).ok()?;
        // Whatever becomes of it, no other batch has this number.
        state.next_number += 1;
        let (ahead, claimed) = Ahead::new(&self.ring, (number, behind), state.index.head, len);
        let before = state.claimed.replace(claimed);
        state.counts.bytes_wasted += before.map_or(0, |before| before.written());
        Some(ahead)
    }

    fn write_ahead(&self, ahead: &mut Ahead, bytes: &[u8]) -> Result<bool> {
        self.ring.device.check_alive()?;
        let mut state = self.lock();
        if !state.claimed.as_ref().is_some_and(|claimed| claimed.is(ahead)) || !ahead.takes(bytes.len()) || state.is_writing {
            return Ok(false);
        }
        // Of another one, at the same place.
        let is_over_unsynced = ahead.is_new() && state.is_ahead_unsynced;
        state.is_ahead_unsynced = ahead.has_pages_with(bytes.len());
        self.while_writing(state, || ahead.write(&self.ring, bytes, is_over_unsynced)).map(|()| true)
    }

    fn append_shared(&self, block: BlockId, bytes: &[u8], tail: Tail, room: Option<&mut Reservation>) -> Result<Position> {
        let Tail { shared, ahead } = tail;
        let (shared_len, crc) = shared
            .iter()
            .map(|bytes| (**bytes).as_ref())
            .fold((0, 0), |(len, crc), bytes: &[u8]| (len + bytes.len(), crc32c_continued(crc, bytes)));
        let len = bytes.len() + shared_len;
        if len > self.record_bytes_max() {
            let max = self.record_bytes_max();
            return Err(
                Error::invalid(format!("a record of {len} bytes is too long for this journal: at most {max}")).block(block)
            );
        }
        self.ring.device.check_alive()?;
        let needed = room_for(len as u64, 1);
        let mut state = self.lock();
        while state.pending.len > 0 && state.pending.len + len > self.batch_bytes_max() {
            state = self.next_batch(state)?;
        }
        if !room.is_some_and(|room| room.take(needed)) && !self.fits(&state, needed, APPENDED_PERCENT) {
            return Err(Error::retry("the journal is full: only reserved room is left").block(block));
        }
        let position = state.next_position;
        let (bytes, payload_at) = frames::begin(RecordHead::new(position, block), bytes, &shared, crc)?;
        let record = Record { position, bytes, payload_at, shared };
        // What is written ahead takes more room than was reserved.
        let is_calm = self.fits(&state, needed + ahead::bytes_with(0), CALM_PERCENT);
        let ahead = ahead.filter(|ahead| is_calm && ahead.is_of(&record, crc));
        if let Some(ahead) = ahead.filter(|ahead| state.claimed.as_ref().is_some_and(|claimed| claimed.is(ahead))) {
            state.pending.ahead = Some((position, ahead));
        }
        state.next_position += 1;
        state.index.append(position, block, record.len() as u32);
        state.pending.push(record);
        state.counts.appends += 1;
        Ok(Position(position))
    }

    fn sync(&self, position: Position) -> Result<()> {
        let mut state = self.lock();
        if position.0 >= state.next_position {
            return Err(Error::invalid(format!("nothing was appended at position {position} of the journal")));
        }
        while state.durable < position.0 {
            state = self.next_batch(state)?;
        }
        Ok(())
    }

    fn durable(&self) -> Option<Position> {
        Some(self.lock().durable).filter(|position| *position > 0).map(Position)
    }

    fn read(&self, position: Position) -> Result<Vec<u8>> {
        let mut before = None;
        self.lock().counts.reads += 1;
        loop {
            let state = self.lock();
            let Some(live) = state.index.get(position.0) else {
                return Err(Error::not_found(format!("record {position} of the journal is released")));
            };
            let Some(place) = live.place else {
                let found = [&state.pending, &state.writing].into_iter().find_map(|pending| pending.payload(position.0));
                return found
                    .ok_or_else(|| Error::fatal(format!("record {position} of the journal was not written")).block(live.block));
            };
            drop(state);
            let frame = self.ring.read_frame(place, live.len, |frame| match frame.head {
                Head::Record(head) if head.position == position.0 => Some(frame.payload.to_vec()),
                _ => None,
            });
            match frame {
                Ok(Some(Some(payload))) => return Ok(payload),
                // It was copied, and then its old place was overwritten.
                Ok(_) if before.replace(place) != Some(place) => {}
                Ok(_) => return Err(Error::corrupt(format!("record {position} of the journal is damaged")).block(live.block)),
                Err(error) => {
                    return Err(
                        Error::corrupt(format!("cannot read record {position} of the journal: {error}")).block(live.block)
                    );
                }
            }
        }
    }

    fn release(&self, positions: &[Position]) {
        // If a crash undoes a part of it, that is the part with the later records.
        let mut positions = positions.to_vec();
        positions.sort_unstable();
        let mut state = self.lock();
        for position in positions {
            if state.index.release(position.0) {
                state.released.push_back(position.0);
                state.releases += 1;
            }
        }
    }

    fn sync_releases(&self) -> Result<bool> {
        let mut state = self.lock();
        let (wanted, has_any) = (state.releases, state.named < state.releases);
        while state.named < wanted {
            let fits = self.fits(&state, batch_bytes(&Pending::default(), 0), NAMED_PERCENT);
            if !state.is_writing && state.pending.records.is_empty() && !fits && !self.frees_room(&state) {
                return Err(Error::retry("the journal is full: releases wait until older records go"));
            }
            state = self.next_batch(state)?;
        }
        Ok(has_any)
    }

    fn free_room(&self) -> Result<bool> {
        let mut state = self.lock();
        let (wanted, mut is_written) = (state.releases, false);
        while state.named < wanted && (state.is_writing || self.frees_room(&state)) {
            state = self.next_batch(state)?;
            is_written = true;
        }
        Ok(is_written)
    }

    /// Small rings take smaller ones, so that a few copied ones do not fill them.
    fn record_bytes_max(&self) -> usize {
        RECORD_BYTES_MAX.min((self.ring.ring_bytes / COPIED_PART) as usize)
    }

    fn replay(&self, visit: &mut Visit<'_>) -> Result<()> {
        let mut from = 0;
        loop {
            let next = self.lock().index.next(from);
            let Some((position, live)) = next else { return Ok(()) };
            from = position + 1;
            match self.read(Position(position)) {
                Ok(payload) => visit(Position(position), live.block, &payload)?,
                // It was released meanwhile.
                Err(error) if error.reaction == weft_types::Reaction::NotFound => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn fill(&self) -> f64 {
        self.used(&self.lock()) as f64 / self.ring.ring_bytes as f64
    }

    fn failed(&self) -> Option<String> {
        self.ring.device.failed()
    }

    fn counts(&self) -> JournalCounts {
        self.lock().counts
    }
}
