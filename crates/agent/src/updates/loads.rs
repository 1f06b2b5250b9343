//! Deltas that travel over a route: what has come of them, and the messages that wait for them.
//!
//! ```text
//!   leader ──announced: the message, without bytes──────────────► each block of the route
//!      └──slices──► relay ──slices, as they come──► relay ──► …
//! ```
//! The origin and a relay do the same. The only difference is that all slices are at the origin from the start. A load that is given up costs time
//! and nothing else: whatever did not arrive is sent again, straight, with the message.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::RangeInclusive,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak, atomic::AtomicUsize},
    time::Duration,
};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    time::Instant,
};
use weft_proto::updates::{LoadHead, LoadId, LoadPart, Part, PartRef};
use weft_types::{BlockId, StripeId};
use weft_update::{Message, UpdateId};
use weft_updater::{Piece, Pieces};

/// Bytes of a delta that are sent together.
#[derive(Debug, Clone)]
pub(crate) struct Cut {
    pub(crate) stream: u8,
    piece: Arc<Piece>,
    /// In the piece.
    from: usize,
    len: usize,
}

/// What one packet carries of a load.
pub(crate) type Slice = Arc<[Cut]>;

/// The loads that travel through a node, and the messages that wait for them.
#[derive(Debug, Default)]
pub(crate) struct Loads(Mutex<State>);

#[derive(Debug)]
pub(super) struct State {
    /// By load, and by the block here to which it has come, or from which it comes.
    pub(super) entries: BTreeMap<(LoadId, BlockId), Entry>,
    /// What the loads take in memory.
    room: Arc<Semaphore>,
}

#[derive(Debug)]
pub(super) struct Entry {
    /// It is dropped then.
    until: Instant,
    pub(super) stage: Stage,
    /// The message for this block, until the bytes are here.
    message: Option<Message>,
    /// The bytes were here, and no message came for them in time.
    is_unclaimed: bool,
    /// At the origin: what was announced, until it is sent straight.
    pub(super) announced: Announced,
    /// At the origin: the blocks that it did not reach.
    pub(super) missed: BTreeSet<BlockId>,
}

/// By the block to which it is announced.
pub(super) type Announced = BTreeMap<BlockId, (Message, Pieces)>;

#[derive(Debug)]
pub(super) enum Stage {
    /// Only the message is here.
    Awaited,
    Here(Arc<Load>),
    /// The bytes were handed over, or no message came for them. They may still be passed on.
    Over(Weak<Load>),
}

/// Deltas that travel, at one block.
#[derive(Debug)]
pub(crate) struct Load {
    pub(crate) id: LoadId,
    /// The block to which they have come.
    pub(crate) at: BlockId,
    pub(crate) head: LoadHead,
    /// Who sends them; `None` at the origin.
    source: Option<Source>,
    pub(crate) progress: watch::Sender<Progress>,
    /// The slices that the disk has taken as they came.
    pub(super) early: AtomicUsize,
    _room: OwnedSemaphorePermit,
}

/// A connection of another agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Source {
    pub(crate) name: String,
    /// Tells apart the connections of one agent.
    pub(crate) connection: u64,
}

/// How far a load has come.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    pub(crate) slices: Vec<Slice>,
    /// The blocks behind this one that have all slices.
    pub(crate) arrived: BTreeSet<BlockId>,
    /// It is given up, or not needed any more.
    pub(crate) is_over: bool,
}

/// What follows from a slice.
#[derive(Debug)]
pub(crate) enum Taken {
    /// It does not count.
    Dropped,
    /// The load cannot be completed here.
    Stuck,
    Kept {
        load: Arc<Load>,
        /// It was the first one.
        is_first: bool,
        /// It was the last one. With the message, if that is here.
        is_last: bool,
        message: Option<Message>,
    },
}

/// What follows from a message whose bytes travel.
#[derive(Debug)]
pub(crate) enum Parked {
    Waits,
    /// All bytes are here.
    Complete(Arc<Load>, Message),
    /// The bytes were here, and are not any more.
    Stuck,
    Dropped,
}

/// The most loads and messages.
const ENTRIES_MAX: usize = 4096;
/// The most bytes of loads.
const BYTES_MAX: usize = 96 << 20;
/// What a load counts at least.
const LOAD_BYTES_MIN: usize = 4 << 10;
/// How long the next slice, or the message, may take; a slice may take longer by the time for its bytes.
const STALL: Duration = Duration::from_secs(10);
/// A slower link is no link.
const BYTES_PER_SECOND_MIN: f64 = 256.0 * 1024.0;
/// How long a message waits for its bytes, and the origin for the outcome of the update.
const KEPT: Duration = Duration::from_secs(60);

impl Default for State {
    fn default() -> Self {
        Self { entries: BTreeMap::new(), room: Arc::new(Semaphore::new(BYTES_MAX)) }
    }
}

impl Cut {
    pub(super) fn new(part: LoadPart, piece: &Arc<Piece>) -> Self {
        let from = part.start.saturating_sub(piece.start) as usize;
        Self { stream: part.stream, piece: Arc::clone(piece), from, len: part.len as usize }
    }

    /// All bytes of pieces.
    pub(crate) fn all(pieces: &Pieces) -> Slice {
        let whole = |(stream, piece): (&u8, &Arc<Piece>)| Self {
            stream: *stream,
            piece: Arc::clone(piece),
            from: 0,
            len: piece.bytes.len(),
        };
        pieces.iter().map(whole).collect()
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        self.piece.bytes.get(self.from..self.from + self.len).unwrap_or_default()
    }

    /// What it is cut from; all of it, unless it was cut here.
    pub(crate) fn piece(&self) -> &Piece {
        &self.piece
    }

    /// For sending it.
    pub(crate) fn as_part_ref(&self) -> PartRef<'_> {
        PartRef { stream: self.stream, start: self.piece.start + self.from as u64, bytes: self.bytes() }
    }
}

impl Load {
    /// The number of slices.
    pub(crate) fn slices(&self) -> usize {
        self.head.slices()
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.progress.borrow().slices.len() == self.slices()
    }

    /// The parts that a message names by their CRCs, put together. `None` if they are not complete, or have other bytes than the message says.
    pub(crate) fn pieces_of(&self, message: &Message) -> Option<Pieces> {
        let Message::Prepare { crcs, .. } = message else { return None };
        let slices = self.progress.borrow().slices.clone();
        let mut pieces = Pieces::new();
        for part in self.head.parts.iter().filter(|part| crcs.contains_key(&part.stream)) {
            let of_part = || slices.iter().flat_map(|slice| slice.iter()).filter(|cut| cut.stream == part.stream);
            let whole = of_part().next().filter(|cut| cut.piece.bytes.len() as u64 == part.len);
            let piece = match whole {
                Some(cut) => Arc::clone(&cut.piece),
                None => {
                    let bytes: Vec<&[u8]> = of_part().map(Cut::bytes).collect();
                    Arc::new(Piece { start: part.start, bytes: bytes.concat().into() })
                }
            };
            pieces.insert(part.stream, piece);
        }
        let is_equal = |(stream, crc): (&u8, &u32)| pieces.get(stream).is_some_and(|piece| piece.crc() == *crc);
        crcs.iter().all(is_equal).then_some(pieces)
    }

    /// How long nothing may come of it.
    fn patience(&self) -> Duration {
        let bytes = u32::try_from(self.head.bytes()).unwrap_or(u32::MAX).min(self.head.route.slice_len);
        STALL + Duration::from_secs_f64(f64::from(bytes) / BYTES_PER_SECOND_MIN)
    }

    pub(super) fn give_up(&self) {
        self.progress.send_modify(|progress| progress.is_over = true);
    }
}

impl Loads {
    /// The deltas of an update begin to travel, with what was announced to each block. `None` if there is no room for them.
    pub(crate) fn begin(&self, id: LoadId, head: LoadHead, pieces: &Pieces, announced: Announced) -> Option<Arc<Load>> {
        let cut = |part: LoadPart| pieces.get(&part.stream).map(|piece| Cut::new(part, piece));
        let slices = (0..head.slices()).map(|number| head.slice(number).into_iter().filter_map(cut).collect()).collect();
        self.begin_with(id, head, Progress { slices, ..Progress::default() }, announced)
    }

    pub(super) fn begin_with(&self, id: LoadId, head: LoadHead, progress: Progress, announced: Announced) -> Option<Arc<Load>> {
        let mut state = self.lock();
        let load = state.load(id, id.from, head, None, progress)?;
        let stage = Stage::Here(Arc::clone(&load));
        state.entries.insert((id, id.from), Entry { announced, ..Entry::new(Instant::now() + KEPT, stage) });
        Some(load)
    }

    /// A message whose bytes travel. The first one counts.
    pub(crate) fn park(&self, id: LoadId, to: BlockId, message: Message) -> Parked {
        let mut state = self.lock();
        if let Some(entry) = state.entries.get_mut(&(id, to)) {
            let is_unclaimed = std::mem::take(&mut entry.is_unclaimed);
            return match &entry.stage {
                Stage::Over(load) if is_unclaimed => match load.upgrade().filter(|load| !load.progress.borrow().is_over) {
                    Some(load) => Parked::Complete(load, message),
                    None => Parked::Stuck,
                },
                Stage::Here(load) if load.is_complete() => {
                    let load = Arc::clone(load);
                    entry.set_over(&load);
                    Parked::Complete(load, message)
                }
                Stage::Here(_) if entry.message.is_none() => {
                    entry.message = Some(message);
                    Parked::Waits
                }
                _ => Parked::Dropped,
            };
        }
        if !state.has_room() {
            return Parked::Dropped;
        }
        let entry = Entry { message: Some(message), ..Entry::new(Instant::now() + KEPT, Stage::Awaited) };
        state.entries.insert((id, to), entry);
        Parked::Waits
    }

    /// A slice that another agent has sent. With the first one's head, its sender was checked.
    pub(crate) fn take(
        &self,
        source: Source,
        (id, to): (LoadId, BlockId),
        number: u32,
        head: Option<LoadHead>,
        parts: Vec<Part>,
    ) -> Taken {
        let mut state = self.lock();
        let is_first = head.is_some();
        let load = match (state.entries.get(&(id, to)).map(|entry| &entry.stage), head) {
            (Some(Stage::Here(load)), None) if load.source.as_ref() == Some(&source) => Arc::clone(load),
            (None | Some(Stage::Awaited), Some(head)) => {
                let is_full = !state.entries.contains_key(&(id, to)) && !state.has_room();
                let load = if is_full { None } else { state.load(id, to, head, Some(source), Progress::default()) };
                let Some(load) = load else {
                    state.entries.remove(&(id, to));
                    return Taken::Stuck;
                };
                load
            }
            // Of a load that is over or was given up, or of another one that has the same name.
            _ => return Taken::Dropped,
        };
        let known = load.progress.borrow().slices.len();
        if (number as usize) < known {
            return Taken::Dropped;
        }
        let ranges = load.head.slice(number as usize);
        let is_range = |(range, part): (&LoadPart, &Part)| {
            (range.stream, range.start, range.len) == (part.stream, part.start, part.bytes.len() as u64)
        };
        let is_next = number as usize == known && ranges.len() == parts.len() && !ranges.is_empty();
        if !is_next || !ranges.iter().zip(&parts).all(is_range) {
            state.entries.remove(&(id, to));
            load.give_up();
            return Taken::Stuck;
        }
        let cut = |Part { stream, start, bytes }| {
            let len = bytes.len();
            Cut { stream, piece: Arc::new(Piece { start, bytes }), from: 0, len }
        };
        let slice: Slice = parts.into_iter().map(cut).collect();
        load.progress.send_modify(|progress| progress.slices.push(slice));
        let is_last = load.is_complete();
        // The message was sent before the bytes, or there is none for this block.
        let waits = if is_last { STALL } else { load.patience() };
        let entry = state.entries.entry((id, to)).or_insert_with(|| Entry::new(Instant::now(), Stage::Awaited));
        entry.until = Instant::now() + waits;
        let message = if is_last { entry.message.take() } else { None };
        if message.is_some() {
            entry.set_over(&load);
        } else {
            entry.stage = Stage::Here(Arc::clone(&load));
        }
        Taken::Kept { load, is_first, is_last, message }
    }

    /// All slices are at a block behind one that is here.
    pub(crate) fn arrived(&self, id: LoadId, at: BlockId) {
        for load in self.lock().of(id) {
            if load.head.route.before(at) == Some(load.at) {
                load.progress.send_modify(|progress| progress.arrived.extend([at]));
            }
        }
    }

    /// What was announced to a block and to those behind it, and did not arrive there; each once. `is_on_route` says of the route's blocks
    /// whether the agent that tells it may do so.
    pub(crate) fn stuck(&self, id: LoadId, at: BlockId, is_on_route: impl Fn(BlockId) -> bool) -> Announced {
        let mut state = self.lock();
        let Some(entry) = state.entries.get_mut(&(id, id.from)) else { return BTreeMap::new() };
        let Stage::Here(load) = &entry.stage else { return BTreeMap::new() };
        let route = &load.head.route;
        if !route.reached().chain([id.from]).any(is_on_route) {
            return BTreeMap::new();
        }
        let behind = route.behind(at);
        entry.missed.extend(&behind);
        let announced = std::mem::take(&mut entry.announced).into_iter();
        let (missing, others) = announced.partition(|(block, _)| behind.contains(block));
        entry.announced = others;
        missing
    }

    /// An update that a block here leads has its outcome: its deltas need not travel any further.
    pub(crate) fn ended(&self, from: BlockId, id: UpdateId) {
        let mut state = self.lock();
        let own: Vec<_> = state.entries.range(own(from, id)).map(|(key, _)| *key).filter(|(_, at)| *at == from).collect();
        for key in own {
            state.drop_entry(&key);
        }
    }

    /// A connection has ended: what it was bringing does not come any more. Returns the loads, and the blocks that they did not reach.
    pub(crate) fn broken(&self, source: &Source) -> Vec<(LoadId, BlockId)> {
        let is_its = |entry: &Entry| match &entry.stage {
            Stage::Here(load) => load.source.as_ref() == Some(source) && !load.is_complete(),
            Stage::Awaited | Stage::Over(_) => false,
        };
        self.lock().drop_all(is_its)
    }

    /// From time to time: forgets what is over, and what does not go on. Returns the loads that have stalled, and the blocks that they did not reach.
    pub(crate) fn tidy(&self) -> Vec<(LoadId, BlockId)> {
        let now = Instant::now();
        let mut state = self.lock();
        for entry in state.entries.values_mut().filter(|entry| entry.until <= now) {
            // No message has come for it. The blocks behind this one may have theirs.
            if let Stage::Here(load) = &entry.stage
                && load.source.is_some()
                && load.is_complete()
            {
                let load = Arc::clone(load);
                entry.set_over(&load);
                entry.is_unclaimed = true;
            }
        }
        let is_stalled = |entry: &Entry| match &entry.stage {
            Stage::Here(load) => entry.until <= now && load.source.is_some(),
            Stage::Awaited | Stage::Over(_) => false,
        };
        let stalled = state.drop_all(is_stalled);
        let is_over = |entry: &Entry| match &entry.stage {
            Stage::Over(load) => load.strong_count() == 0 && !entry.is_unclaimed || entry.until <= now,
            Stage::Awaited | Stage::Here(_) => entry.until <= now,
        };
        state.drop_all(is_over);
        stalled
    }

    /// A poisoned lock is safe to use: an entry that was left half changed is dropped in time.
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The entries of an update's loads that begin at a block.
pub(super) fn own(from: BlockId, id: UpdateId) -> RangeInclusive<(LoadId, BlockId)> {
    let last = BlockId { stripe: StripeId(u64::MAX), index: u8::MAX, copy: u8::MAX, generation: u32::MAX };
    (LoadId { from, id, attempt: 0 }, FIRST_BLOCK)..=(LoadId { from, id, attempt: u32::MAX }, last)
}

const FIRST_BLOCK: BlockId = BlockId { stripe: StripeId(0), index: 0, copy: 0, generation: 0 };

impl State {
    /// Whether there is room for a further entry. If need be, the oldest load goes that was not claimed in time and is not passed on any more. A message that
    /// comes for it later waits for bytes that are gone: until it is sent again, straight.
    fn has_room(&mut self) -> bool {
        if self.entries.len() < ENTRIES_MAX {
            return true;
        }
        let is_gone = |entry: &Entry| match &entry.stage {
            Stage::Over(load) => entry.is_unclaimed && load.strong_count() == 0,
            Stage::Awaited | Stage::Here(_) => false,
        };
        let gone = self.entries.iter().filter(|(_, entry)| is_gone(entry)).min_by_key(|(_, entry)| entry.until);
        let Some(oldest) = gone.map(|(key, _)| *key) else { return false };
        self.entries.remove(&oldest).is_some()
    }

    /// `None` if there is no room for it.
    fn load(&self, id: LoadId, at: BlockId, head: LoadHead, source: Option<Source>, progress: Progress) -> Option<Arc<Load>> {
        let bytes = u32::try_from(head.bytes()).ok()?.max(LOAD_BYTES_MIN as u32);
        let room = Arc::clone(&self.room).try_acquire_many_owned(bytes).ok()?;
        let progress = watch::Sender::new(progress);
        Some(Arc::new(Load { id, at, head, source, progress, early: AtomicUsize::new(0), _room: room }))
    }

    /// The loads of this name at the blocks here.
    fn of(&self, id: LoadId) -> Vec<Arc<Load>> {
        let own = self.entries.range((id, FIRST_BLOCK)..).take_while(|((load, _), _)| *load == id);
        let load = |(_, entry): (_, &Entry)| match &entry.stage {
            Stage::Awaited => None,
            Stage::Here(load) => Some(Arc::clone(load)),
            Stage::Over(load) => load.upgrade(),
        };
        own.filter_map(load).collect()
    }

    fn drop_all(&mut self, is_dropped: impl Fn(&Entry) -> bool) -> Vec<(LoadId, BlockId)> {
        let dropped: Vec<_> = self.entries.iter().filter(|(_, entry)| is_dropped(entry)).map(|(key, _)| *key).collect();
        dropped.iter().for_each(|key| self.drop_entry(key));
        dropped
    }

    fn drop_entry(&mut self, key: &(LoadId, BlockId)) {
        if let Some(entry) = self.entries.remove(key) {
            entry.give_up();
        }
    }
}

impl Entry {
    fn new(until: Instant, stage: Stage) -> Self {
        Self { until, stage, message: None, is_unclaimed: false, announced: Announced::new(), missed: BTreeSet::new() }
    }

    /// The load is not needed here any more. It is passed on as long as its origin keeps it.
    fn set_over(&mut self, load: &Arc<Load>) {
        self.stage = Stage::Over(Arc::downgrade(load));
        self.until = Instant::now() + KEPT;
    }

    fn give_up(&self) {
        match &self.stage {
            Stage::Awaited => {}
            Stage::Here(load) => load.give_up(),
            Stage::Over(load) => {
                if let Some(load) = load.upgrade() {
                    load.give_up();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
