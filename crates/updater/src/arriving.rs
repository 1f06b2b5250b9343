//! Deltas that arrive in parts, before the message to which they belong can be handled: they are put together, and written ahead to the journal.
//! Nothing is promised with that, and nothing of it is used unless it is what the message says.

use crate::{
    disk::{DELAY_FILL, Disk},
    open::Open,
    piece::{Piece, Pieces},
    record::UnitChanges,
    updater::{State, Updater},
};
use std::{collections::BTreeMap, sync::Arc};
use weft_store::Ahead;
use weft_types::{BlockId, Result, Span, crc32c, crc32c_continued};
use weft_update::{Message, Peer, UpdateId};

/// A part of a delta.
#[derive(Debug, Clone, Copy)]
pub struct DeltaPart<'a> {
    /// The update.
    pub id: UpdateId,
    /// Tells apart the times that the delta is sent.
    pub attempt: u32,
    /// The data block that changes.
    pub stream: u8,
    /// The range of the whole delta in it.
    pub whole: Span,
    /// The part. Parts come in order.
    pub piece: &'a Piece,
}

/// A delta, as far as it has arrived.
#[derive(Debug)]
struct Arriving {
    attempt: u32,
    stream: u8,
    whole: Span,
    /// Its bytes, from the beginning on.
    bytes: Vec<u8>,
    /// As [`Piece::crc`].
    crc: u32,
    unit_changes: UnitChanges,
    ahead: Option<Ahead>,
    /// How often it was begun to be written ahead.
    begun: u32,
    /// The bytes that were written ahead in vain.
    wasted: u64,
    since_ms: u64,
}

/// The deltas that arrive for a block, and what is known of the one whose message is being handled.
#[derive(Debug, Default)]
pub(crate) struct Arrivals {
    arriving: BTreeMap<UpdateId, Arriving>,
    pub(crate) ready: Option<Ready>,
}

/// What is known of a delta that was put together here.
#[derive(Debug)]
pub(crate) struct Ready {
    pub(crate) id: UpdateId,
    pub(crate) stream: u8,
    /// What it is known of.
    piece: Arc<Piece>,
    pub(crate) crc: u32,
    pub(crate) unit_changes: UnitChanges,
    pub(crate) ahead: Option<Ahead>,
}

/// The most deltas that arrive for a block at a time.
const ARRIVING_MAX: usize = 4;
/// The part of the bytes of updates under way that deltas may take while they arrive: what their senders do not end must not keep others from beginning.
const BYTES_PART: u64 = 4;
/// How often a delta is written ahead from its beginning on, if other records come first; while less than its length was written in vain.
const BEGUN_MAX: u32 = 3;
/// How long the next part, or the message, may take.
const KEPT_MS: u64 = 30_000;
/// The same if what has come takes the room of another delta.
const KEPT_IF_FULL_MS: u64 = 1000;

impl Arriving {
    /// Writes what has come, from this byte on.
    fn write_ahead(&mut self, from: usize, disk: &Disk) -> Result<()> {
        if let Some(ahead) = &mut self.ahead
            && disk.journal.write_ahead(ahead, &self.bytes[from..])?
        {
            return Ok(());
        }
        // Another record came first.
        if self.ahead.take().is_some() {
            self.wasted += from as u64;
        }
        // From that fill on, other records come before this one is used.
        if self.begun < BEGUN_MAX
            && self.wasted < self.whole.len()
            && disk.journal.fill() < DELAY_FILL
            && let Some(mut ahead) = disk.journal.begin_ahead(self.whole.len() as usize)
        {
            self.begun += 1;
            self.ahead = disk.journal.write_ahead(&mut ahead, &self.bytes)?.then_some(ahead);
        }
        Ok(())
    }

    /// The range that has arrived.
    fn span(&self) -> Span {
        Span::new(self.whole.start, self.whole.start + self.bytes.len() as u64)
    }

    fn is_next(&self, part: &DeltaPart<'_>) -> bool {
        (self.stream, self.whole) == (part.stream, part.whole)
            && part.piece.start == self.span().end
            && part.piece.span().end <= self.whole.end
    }
}

impl Arrivals {
    fn remove(&mut self, id: UpdateId, disk: &mut Disk) -> Option<Arriving> {
        let arriving = self.arriving.remove(&id)?;
        disk.arriving_bytes = disk.arriving_bytes.saturating_sub(arriving.whole.len());
        Some(arriving)
    }

    /// The one of which nothing has come for longest, and since when.
    fn longest_quiet(&self) -> Option<(u64, UpdateId)> {
        self.arriving.iter().map(|(id, it)| (it.since_ms, *id)).min()
    }

    /// Forgets those of which nothing has come for long; all with `None`.
    pub(crate) fn forget(&mut self, now_ms: Option<u64>, disk: &mut Disk) {
        let is_over = |it: &Arriving| now_ms.is_none_or(|now_ms| now_ms >= it.since_ms.saturating_add(KEPT_MS));
        let over: Vec<UpdateId> = self.arriving.iter().filter(|(_, it)| is_over(it)).map(|(id, _)| *id).collect();
        over.into_iter().for_each(|id| drop(self.remove(id, disk)));
    }

    /// The delta of a Prepare, if it has arrived as the message says.
    fn take(&mut self, message: &Message, disk: &mut Disk) -> Option<Pieces> {
        let Message::Prepare { record, crcs, .. } = message else { return None };
        let it = self.remove(record.id, disk)?;
        let is_whole = it.span() == it.whole;
        let Arriving { stream, whole, bytes, crc, unit_changes, ahead, .. } = it;
        let is_said = is_whole && crcs.len() == 1 && crcs.get(&stream) == Some(&crc);
        is_said.then(|| {
            let piece = Arc::new(Piece { start: whole.start, bytes: bytes.into() });
            self.ready = Some(Ready { id: record.id, stream, piece: Arc::clone(&piece), crc, unit_changes, ahead });
            Pieces::from([(stream, piece)])
        })
    }
}

impl Ready {
    pub(crate) fn is_of(&self, id: UpdateId, stream: u8, piece: &Arc<Piece>) -> bool {
        (self.id, self.stream) == (id, stream) && Arc::ptr_eq(&self.piece, piece)
    }
}

impl Disk {
    /// Whether a delta of so many bytes has room while it arrives, if nothing else does.
    fn may_arrive(&self, bytes: u64) -> bool {
        bytes <= self.limits.inflight_bytes_max / BYTES_PART
    }

    fn has_room_to_arrive(&self, bytes: u64) -> bool {
        self.may_arrive(self.arriving_bytes.saturating_add(bytes))
    }
}

impl Open {
    /// Whether the parts of a delta are of use here.
    fn wants(&self, part: &DeltaPart<'_>, disk: &Disk) -> bool {
        let DeltaPart { id, stream, whole, .. } = *part;
        let participant = self.machine.participant();
        !self.is_ending()
            && !participant.is_fenced()
            && !self.held.contains_key(&id)
            && participant.outcome(id).is_none()
            && self.shape.is_part(stream, whole)
            && self.shape.dependence.of(self.id.index, stream)
            && whole.len() <= disk.limits.update_bytes_max
            && disk.may_arrive(whole.len())
    }

    /// A part of a delta. What has no room, or does not follow what has come, is not kept.
    fn arrive(&mut self, part: &DeltaPart<'_>, disk: &mut Disk, now_ms: u64) -> Result<()> {
        let DeltaPart { id, attempt, stream, whole, piece } = *part;
        if piece.start == whole.start {
            let is_full = self.arrivals.arriving.len() >= ARRIVING_MAX;
            if is_full || !disk.has_room_to_arrive(whole.len()) || !self.wants(part, disk) {
                return Ok(());
            }
            disk.arriving_bytes += whole.len();
            let arriving = Arriving {
                attempt,
                stream,
                whole,
                bytes: Vec::with_capacity(whole.len() as usize),
                crc: crc32c(&whole.start.to_le_bytes()),
                unit_changes: UnitChanges::new(),
                ahead: None,
                begun: 0,
                wasted: 0,
                since_ms: 0,
            };
            self.arrivals.arriving.insert(id, arriving);
        }
        let Some(arriving) = self.arrivals.arriving.get_mut(&id) else { return Ok(()) };
        // Of an attempt that was given up.
        if arriving.attempt != attempt {
            return Ok(());
        }
        if !arriving.is_next(part) {
            self.arrivals.remove(id, disk);
            return Ok(());
        }
        let from = arriving.bytes.len();
        arriving.bytes.extend_from_slice(&piece.bytes);
        arriving.crc = crc32c_continued(arriving.crc, &piece.bytes);
        arriving.since_ms = disk.passed_ms(now_ms);
        self.shape.unit_changes(stream, piece, &mut arriving.unit_changes);
        arriving.write_ahead(from, disk)
    }
}

impl Updater {
    /// A delta of which parts may have [arrived](Self::arrive) comes no further in this attempt.
    pub fn gone(&mut self, block: BlockId, id: UpdateId, attempt: u32) {
        let Some(State::Open(open)) = self.blocks.get(&block) else { return };
        if open.arrivals.arriving.get(&id).is_some_and(|it| it.attempt == attempt) {
            self.forget_arriving(block, id);
        }
    }

    /// What has arrived of a delta is not needed any more.
    pub(crate) fn forget_arriving(&mut self, block: BlockId, id: UpdateId) {
        if let Some(State::Open(open)) = self.blocks.get_mut(&block) {
            open.arrivals.remove(id, &mut self.disk);
        }
    }

    /// Forgets deltas of which nothing has come for long, and all of those for blocks whose updates have ended.
    pub(crate) fn forget_arrivals(&mut self, now_ms: u64) {
        let passed_ms = self.disk.passed_ms(now_ms);
        for state in self.blocks.values_mut() {
            if let State::Open(open) = state {
                let has_ended = open.is_ending() || open.machine.participant().is_fenced();
                open.arrivals.forget(if has_ended { None } else { Some(passed_ms) }, &mut self.disk);
            }
        }
    }

    /// Makes room for a delta that begins to arrive: the deltas go of which nothing has come for longest. A leader that has stopped must not keep others
    /// from arriving early. What came a moment ago stays: its message is on its way.
    fn make_room_to_arrive(&mut self, block: BlockId, bytes: u64, now_ms: u64) {
        let before_ms = self.disk.passed_ms(now_ms).saturating_sub(KEPT_IF_FULL_MS);
        loop {
            let Some(State::Open(open)) = self.blocks.get(&block) else { return };
            let is_full = open.arrivals.arriving.len() >= ARRIVING_MAX;
            if !is_full && self.disk.has_room_to_arrive(bytes) {
                return;
            }
            let quiet = self.blocks.iter().filter(|(other, _)| !is_full || **other == block).filter_map(|(other, state)| {
                let State::Open(open) = state else { return None };
                open.arrivals.longest_quiet().map(|(since_ms, id)| (since_ms, *other, id))
            });
            match quiet.min() {
                Some((since_ms, other, id)) if since_ms <= before_ms => self.forget_arriving(other, id),
                _ => return,
            }
        }
    }

    /// A part of a delta for a block, whose message comes to [`receive_arrived`](Self::receive_arrived). Parts that are not kept do no harm.
    pub fn arrive(&mut self, block: BlockId, part: DeltaPart<'_>, now_ms: u64) -> Result<()> {
        self.check()?;
        if part.piece.start == part.whole.start {
            self.forget_arriving(block, part.id);
            if matches!(self.blocks.get(&block), Some(State::Open(open)) if open.wants(&part, &self.disk)) {
                self.make_room_to_arrive(block, part.whole.len(), now_ms);
            }
        }
        let Some(State::Open(open)) = self.blocks.get_mut(&block) else { return Ok(()) };
        // Only the disk can have failed.
        open.arrive(&part, &mut self.disk, now_ms).map_err(|error| self.fail(error))
    }

    /// A message to a block whose delta has [arrived](Self::arrive) in parts. Returns false if not all of it has, or if it has other bytes than
    /// the message says: then nothing has happened.
    pub fn receive_arrived(&mut self, block: BlockId, from: Peer, message: Message, now_ms: u64) -> Result<bool> {
        let Some(State::Open(open)) = self.blocks.get_mut(&block) else { return Ok(false) };
        let Some(pieces) = open.arrivals.take(&message, &mut self.disk) else { return Ok(false) };
        let received = self.receive(block, from, message, pieces, now_ms);
        if let Some(State::Open(open)) = self.blocks.get_mut(&block) {
            open.arrivals.ready = None;
        }
        received.map(|()| true)
    }
}
