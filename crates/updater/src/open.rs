//! A block that is updated: its state machine, what the journal contains for it, and the bytes of its updates under way.

use crate::{
    arriving::Arrivals,
    backlog::{Backlog, is_passing},
    content::{Read, at_block},
    disk::Disk,
    fault::{Rule, dropped},
    flights::{Flights, key_of},
    piece::{Piece, Pieces, bytes_of},
    record::{Deltas, Stored},
    replay::{Held, Kept, Replayed},
    shape::{Shape, pages_of},
    updater::Output,
};
use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};
use weft_store::{Ahead, BlockReader, Position, Reservation};
use weft_types::{BlockId, Error, PAGES_PER_UNIT, Reaction, Result, Span};
use weft_update::{Action, Block, Entry, Event, Message, NotServed, Peer, Record, Request, Sealed, UpdateId, Vector};

/// A delta that is to be computed.
#[derive(Debug)]
struct Due {
    id: UpdateId,
    number: u64,
    lead_number: u64,
    positions: Span,
}

/// The deltas of a Prepare that is being handled.
struct Arrived {
    id: UpdateId,
    pieces: Pieces,
    room: Option<Reservation>,
}

/// A block that is updated.
pub(crate) struct Open {
    pub(crate) id: BlockId,
    pub(crate) machine: Block,
    pub(crate) shape: Arc<Shape>,
    pub(crate) reader: Arc<dyn BlockReader>,
    pub(crate) entries: Vec<Kept>,
    pub(crate) held: BTreeMap<UpdateId, Held>,
    flights: Flights,
    due: Vec<Due>,
    arrived: Option<Arrived>,
    pub(crate) arrivals: Arrivals,
    /// The reads that wait.
    reads: BTreeMap<u64, Read>,
    pub(crate) backlog: Backlog,
    /// Entries that are appended and not durable.
    pub(crate) unsynced: u64,
    /// When it last looked for outcomes to forget.
    pub(crate) forgot_ms: u64,
    /// Whether nothing has happened since the last tick.
    pub(crate) is_quiet: bool,
    /// Whether entries may have become needless.
    pub(crate) is_stale: bool,
    /// Whether the actions of a restart are being carried out.
    pub(crate) is_restarting: bool,
    /// Whether no update begins here any more, until the block is opened again.
    pub(crate) is_settling: bool,
}

impl Open {
    /// A block that is opened for updates. Its first entries are appended; the last of them is returned.
    pub(crate) fn first(
        id: BlockId,
        sealed: &Sealed,
        shape: Arc<Shape>,
        reader: Arc<dyn BlockReader>,
        disk: &mut Disk,
        now_ms: u64,
    ) -> Result<Self> {
        let (machine, entries) = Block::open(disk.config(id, &shape), sealed, now_ms);
        let mut it = Self::with(id, machine, shape, reader);
        for entry in entries {
            match disk.append(id, &Stored::Entry(entry.clone(), None), None) {
                Ok(position) => it.entries.push(Kept { position, entry, parts: Some(Vec::new()), replaced_by: None }),
                Err(error) => {
                    disk.release(&it.positions());
                    return Err(error);
                }
            }
        }
        Ok(it)
    }

    /// After a restart.
    pub(crate) fn restart(
        id: BlockId,
        replayed: Replayed,
        shape: Arc<Shape>,
        reader: Arc<dyn BlockReader>,
        disk: &mut Disk,
        now_ms: u64,
    ) -> Result<Self> {
        let is_contained = |stream: u8| shape.dependence.of(id.index, stream);
        let counts = (0..).zip(reader.meta().seq.counts()).filter(|(stream, count)| **count > 0 && is_contained(*stream));
        let applied: Vector = counts.map(|(stream, count)| (stream, *count)).collect();
        let entries = replayed.entries.iter().map(|kept| &kept.entry);
        let (machine, actions) = Block::restart(disk.config(id, &shape), entries, applied, now_ms);
        let mut it = Self::with(id, machine, shape, reader);
        (it.entries, it.held) = (replayed.entries, replayed.held);
        disk.journal.release(&[replayed.orphans, replayed.parts].concat());
        for held in it.held.values_mut() {
            let (pages, units) = room_of(&it.shape, &held.pieces);
            // Without a reservation, the room that is left serves all.
            held.room = disk.reserve(0, pages, units).ok();
        }
        it.is_restarting = true;
        let done = it.carry_out(actions, disk, now_ms);
        it.is_restarting = false;
        done.map(|()| it)
    }

    fn with(id: BlockId, machine: Block, shape: Arc<Shape>, reader: Arc<dyn BlockReader>) -> Self {
        Self {
            id,
            machine,
            shape,
            reader,
            entries: Vec::new(),
            held: BTreeMap::new(),
            flights: Flights::default(),
            due: Vec::new(),
            arrived: None,
            arrivals: Arrivals::default(),
            reads: BTreeMap::new(),
            backlog: Backlog::default(),
            unsynced: 0,
            forgot_ms: 0,
            is_quiet: false,
            is_stale: true,
            is_restarting: false,
            is_settling: false,
        }
    }

    /// The places of all that the journal contains of the block.
    pub(crate) fn positions(&self) -> Vec<Position> {
        self.entries.iter().flat_map(Kept::positions).collect()
    }

    /// A client's request, with its new bytes by data block. They were validated.
    pub(crate) fn request(&mut self, request: Request, new: Pieces, disk: &mut Disk, now_ms: u64) -> Result<bool> {
        let key = (request.id, 0);
        if self.flights.get(key).is_none() {
            let own = new.get(&self.id.index).map(|piece| (self.id.index, piece.span()));
            let (pages, units) = room_of(&self.shape, own.as_slice());
            let Ok(room) = disk.reserve(bytes_of(&new), pages, units) else { return Ok(false) };
            if self.flights.insert(key, new, Some(room), disk).is_err() {
                return Ok(false);
            }
            if dropped(Rule::DeltaUnderLock) {
                self.compute_early(key, disk)?;
            }
        }
        self.on(Event::Request(request), disk, now_ms)?;
        Ok(true)
    }

    /// What the delta would be before the range is locked.
    fn compute_early(&mut self, key: (UpdateId, u64), disk: &mut Disk) -> Result<()> {
        let Some(new) = self.flights.get(key).and_then(|flight| flight.new.get(&self.id.index)).cloned() else { return Ok(()) };
        if let Ok(at) = self.machine.read_locked(self.shape.positions(new.span())) {
            let (delta, _) = self.delta_for(key.0, &new, &at, disk)?;
            self.flights.add_delta(key, self.id.index, delta, disk);
        }
        Ok(())
    }

    /// A message with the pieces that belong to it. Invalid ones count as lost.
    pub(crate) fn receive(&mut self, from: Peer, message: Message, pieces: Pieces, disk: &mut Disk, now_ms: u64) -> Result<()> {
        let me = self.id.index;
        let is_valid = |(stream, piece): (&u8, &Arc<Piece>)| self.shape.is_part(*stream, piece.span());
        let fits = |stream: u8, positions: Span| {
            pieces.get(&stream).is_some_and(|piece| self.shape.positions(piece.span()) == positions)
        };
        // Only the coordinator, which may seal once more, is heard from then on.
        if self.is_ending() && from != Peer::Coordinator {
            return Ok(());
        }
        if !pieces.iter().all(is_valid) {
            return Ok(());
        }
        if bytes_of(&pieces) > disk.limits.update_bytes_max {
            return self.refuse_too_long(from, message, bytes_of(&pieces), disk, now_ms);
        }
        match message {
            Message::Prepare { stamp, record, crcs } => {
                if !record.parts_of(me, &self.shape.dependence).all(|part| fits(part.stream, part.span)) {
                    return Ok(());
                }
                let mine = |stream: &u8| record.part(*stream).is_some() && self.shape.dependence.of(me, *stream);
                let pieces: Pieces = pieces.into_iter().filter(|(stream, _)| mine(stream)).collect();
                let ready = self.arrivals.ready.as_ref();
                let crc = |stream: u8, piece: &Arc<Piece>| match ready {
                    Some(ready) if ready.is_of(record.id, stream, piece) => ready.crc,
                    _ => piece.crc(),
                };
                let received = pieces.iter().map(|(stream, piece)| (*stream, crc(*stream, piece))).collect();
                let crcs = if dropped(Rule::ReceivedCrcs) { crcs } else { received };
                self.prepare(from, Message::Prepare { stamp, record: record.clone(), crcs }, &record, pieces, disk, now_ms)
            }
            Message::Lock { id, number, span, .. } => {
                if !fits(me, span) {
                    return Ok(());
                }
                let is_new = self.flights.get((id, number)).is_none();
                let new = pieces.into_iter().filter(|(stream, _)| *stream == me).collect();
                if is_new && self.flights.insert((id, number), new, None, disk).is_err() {
                    // Two disks that wait for each other's locks would both wait for ever.
                    disk.outputs.extend(self.busy(from, &message));
                    return Ok(());
                }
                self.on(Event::Received { from, message }, disk, now_ms)
            }
            Message::Locked { id, number, part, crc, .. } => {
                let asked = self.flights.get((id, 0)).and_then(|flight| flight.new.get(&part.stream));
                let Some(delta) = pieces.get(&part.stream).filter(|delta| delta.crc() == crc) else { return Ok(()) };
                if asked.is_none_or(|new| new.span() != delta.span()) || !fits(part.stream, part.span) {
                    return Ok(());
                }
                if self.machine.leader().is_some_and(|leader| leader.waits_for(id, number, part.stream)) {
                    self.flights.add_delta((id, 0), part.stream, delta.clone(), disk);
                }
                self.on(Event::Received { from, message }, disk, now_ms)
            }
            message => self.on(Event::Received { from, message }, disk, now_ms),
        }
    }

    /// Reserves room for the deltas and their after-images, unless the record is here already.
    fn prepare(
        &mut self,
        from: Peer,
        message: Message,
        record: &Arc<Record>,
        pieces: Pieces,
        disk: &mut Disk,
        now_ms: u64,
    ) -> Result<()> {
        let id = record.id;
        let mut event = Event::Received { from, message };
        if !self.held.contains_key(&id) {
            let spans: Vec<(u8, Span)> = pieces.iter().map(|(stream, piece)| (*stream, piece.span())).collect();
            let (pages, units) = room_of(&self.shape, &spans);
            match (disk.reserve(bytes_of(&pieces), pages, units), event) {
                (Ok(room), received) => {
                    self.arrived = Some(Arrived { id, pieces, room: Some(room) });
                    event = received;
                }
                (Err(_), Event::Received { from, message }) => event = Event::NoRoom { from, message },
                (Err(_), other) => event = other,
            }
        }
        let done = self.on(event, disk, now_ms);
        self.arrived = None;
        done
    }

    /// A read of this block at its own node, at the last version. Returns false if its range is not one of a data block that this is.
    pub(crate) fn read(&mut self, read: u64, asked: Read, disk: &mut Disk, now_ms: u64) -> Result<bool> {
        let Read { range, has_lease, .. } = asked;
        if !self.shape.is_part(self.id.index, range) {
            return Ok(false);
        }
        self.reads.insert(read, asked);
        self.on(Event::Read { read, span: self.shape.positions(range), has_lease }, disk, now_ms)?;
        Ok(true)
    }

    /// Nobody waits for a read any more.
    pub(crate) fn abandon(&mut self, read: u64, disk: &mut Disk, now_ms: u64) -> Result<()> {
        self.reads.remove(&read);
        self.on(Event::Abandon { read }, disk, now_ms)
    }

    /// Forgets all bytes of updates under way.
    pub(crate) fn clear(&mut self, disk: &mut Disk) {
        self.flights.retain(|_| false, disk);
        self.arrivals.forget(None, disk);
    }

    /// Handles an event, and all that follows from it here.
    pub(crate) fn on(&mut self, event: Event, disk: &mut Disk, now_ms: u64) -> Result<()> {
        self.is_stale = true;
        let actions = self.machine.on(event, now_ms);
        self.carry_out(actions, disk, now_ms)
    }

    /// Bytes of an update could not be sent to a block.
    pub(crate) fn not_sent(&mut self, id: UpdateId, to: BlockId) {
        self.flights.not_sent((id, 0), to);
    }

    /// Sends again what was not answered; large deltas only if they had time to arrive.
    pub(crate) fn remind(&mut self, disk: &mut Disk, now_ms: u64) -> Result<()> {
        self.is_stale = true;
        let mut actions = self.machine.on(Event::Remind, now_ms);
        let passed_ms = disk.passed_ms(now_ms);
        actions.retain(|action| match action {
            Action::Send { to, message } => !self.flights.may_be_arriving(key_of(message), *to, passed_ms),
            _ => true,
        });
        self.carry_out(actions, disk, now_ms)
    }

    fn carry_out(&mut self, actions: Vec<Action>, disk: &mut Disk, now_ms: u64) -> Result<()> {
        self.run(VecDeque::new(), actions, disk, now_ms)
    }

    /// Carries out actions, and handles these events with all that follows from them.
    pub(crate) fn run(
        &mut self,
        mut events: VecDeque<Event>,
        mut actions: Vec<Action>,
        disk: &mut Disk,
        now_ms: u64,
    ) -> Result<()> {
        loop {
            for action in std::mem::take(&mut actions) {
                self.act(action, &mut events, disk, now_ms)?;
            }
            if events.is_empty() {
                self.compute_deltas(&mut events, disk)?;
            }
            let Some(event) = events.pop_front() else { break };
            self.is_stale = true;
            actions = self.machine.on(event, now_ms);
        }
        let leader = self.machine.leader();
        let is_under_way = |(id, number)| leader.is_some_and(|leader| leader.is_concerned(id, number));
        self.flights.retain(is_under_way, disk);
        Ok(())
    }

    fn act(&mut self, action: Action, events: &mut VecDeque<Event>, disk: &mut Disk, now_ms: u64) -> Result<()> {
        match action {
            Action::Journal(entry) => self.append(entry, disk)?,
            Action::Send { to, message } => {
                let pieces = self.pieces_for(to, &message);
                self.flights.sent(to, &message, bytes_of(&pieces), disk.passed_ms(now_ms));
                disk.outputs.push(Output::Send { from: self.id, to, message, pieces });
            }
            Action::Tell { id, told } => disk.outputs.push(Output::Tell { block: self.id, id, told }),
            Action::Delta { id, number, lead_number, span } => {
                self.due.push(Due { id, number, lead_number, positions: span });
            }
            Action::Write(batch) => self.write_batch(batch, events, disk)?,
            Action::Serve { read, result } => {
                let Some(asked) = self.reads.remove(&read) else { return Ok(()) };
                let result = match result.map(|at| self.served(&asked, at, disk)) {
                    Ok(Ok(served)) => Ok(served),
                    Ok(Err(error)) if is_passing(&error) => Err(NotServed::Busy),
                    // A damaged page does not harm the updates of the block: what meets it when they are applied says more.
                    Ok(Err(error)) if is_damage(&error, disk) => Err(NotServed::Unreadable),
                    Ok(Err(error)) => return Err(error),
                    Err(why) => Err(why),
                };
                disk.outputs.push(Output::Served { block: self.id, read, result });
            }
        }
        Ok(())
    }

    /// The deltas of a record for this block, what is written of them already, and the room that was reserved for it.
    pub(crate) fn deltas_of(&mut self, record: &Record) -> Result<(Deltas, Option<Ahead>, Option<Reservation>)> {
        let (all, room) = match self.arrived.take() {
            Some(arrived) if arrived.id == record.id => (arrived.pieces, arrived.room),
            _ => {
                let key = (record.id, 0);
                (self.flights.get(key).map(|flight| flight.deltas.clone()).unwrap_or_default(), self.flights.take_room(key))
            }
        };
        let mut ahead = None;
        let mut deltas = Deltas { generator_hash: self.shape.generator_hash, ..Deltas::default() };
        for part in record.parts_of(self.id.index, &self.shape.dependence) {
            let missing = || Error::fatal("an update is journalled without its delta").block(self.id);
            let piece = all.get(&part.stream).ok_or_else(missing)?;
            match self.arrivals.ready.take_if(|ready| ready.is_of(record.id, part.stream, piece)) {
                Some(ready) => {
                    deltas.unit_changes.extend(ready.unit_changes);
                    ahead = ready.ahead;
                }
                None => self.shape.unit_changes(part.stream, piece, &mut deltas.unit_changes),
            }
            deltas.pieces.insert(part.stream, piece.clone());
        }
        Ok((deltas, ahead, room))
    }

    /// The bytes that go with a message.
    fn pieces_for(&self, to: Peer, message: &Message) -> Pieces {
        let Peer::Block(to) = to else { return Pieces::new() };
        let only = |pieces: &Pieces, stream: u8| pieces.get(&stream).map(|piece| (stream, piece.clone())).into_iter().collect();
        match message {
            Message::Lock { id, .. } => self.flights.get((*id, 0)).map(|flight| only(&flight.new, to.index)).unwrap_or_default(),
            Message::Locked { id, number, part, .. } => {
                self.flights.get((*id, *number)).map(|flight| only(&flight.deltas, part.stream)).unwrap_or_default()
            }
            Message::Prepare { record, .. } => {
                let is_its = |(stream, _): &(&u8, &Arc<Piece>)| self.shape.dependence.of(to.index, **stream);
                let deltas = self.flights.get((record.id, 0)).map(|flight| &flight.deltas);
                deltas.into_iter().flatten().filter(is_its).map(|(stream, piece)| (*stream, piece.clone())).collect()
            }
            _ => Pieces::new(),
        }
    }

    /// Computes the deltas that are due, unless pages are about to be written: then later.
    fn compute_deltas(&mut self, events: &mut VecDeque<Event>, disk: &mut Disk) -> Result<()> {
        let me = self.id.index;
        for due in std::mem::take(&mut self.due) {
            let participant = self.machine.participant();
            if !self.machine.leader().is_some_and(|leader| leader.needs_delta(due.id, due.number, participant)) {
                continue;
            }
            let key = (due.id, due.lead_number);
            let Some(new) = self.flights.get(key).and_then(|flight| flight.new.get(&me)).cloned() else { continue };
            let early = self.flights.get(key).and_then(|flight| flight.deltas.get(&me)).filter(|_| dropped(Rule::DeltaUnderLock));
            let delta = self.machine.read_locked(due.positions).map(|at| self.delta_for(due.id, &new, &at, disk));
            let (delta, crc) = match (early, delta) {
                (Some(early), _) => (early.clone(), early.crc()),
                (None, Ok(Ok(delta))) => delta,
                (None, Err(NotServed::Fenced)) => continue,
                (None, Ok(Err(error))) if !is_passing(&error) => return Err(error),
                (None, _) => {
                    self.due.push(due);
                    continue;
                }
            };
            events.push_back(Event::Delta { id: due.id, number: due.number, crc });
            self.flights.add_delta(key, me, delta, disk);
        }
        Ok(())
    }

    /// Releases the entries that a restart does not need.
    pub(crate) fn release(&mut self, disk: &Disk) {
        if !self.is_stale || self.unsynced > 0 || self.backlog.has_entries() {
            return;
        }
        self.is_stale = false;
        let mut released = Vec::new();
        let machine = &self.machine;
        let is_needed = |entry: &Entry| match entry {
            Entry::Held { record, .. } if dropped(Rule::ReleaseWhenNeedless) => {
                machine.participant().outcome(record.id).is_none()
            }
            entry => machine.needs(entry),
        };
        let durable = disk.journal.durable();
        let is_replaced = |kept: &Kept| kept.replaced_by.is_some_and(|by| durable >= Some(by));
        self.entries.retain(|kept| {
            let is_kept = is_needed(&kept.entry) && !is_replaced(kept);
            if !is_kept {
                released.extend(kept.positions());
            }
            is_kept
        });
        self.held.retain(|_, held| !released.contains(&held.position));
        if !released.is_empty() {
            disk.journal.release(&released);
        }
    }
}

/// The pages and units of a block that changes of these ranges of data blocks touch.
fn room_of(shape: &Shape, pieces: &[(u8, Span)]) -> (u64, u64) {
    let pages = |(stream, bytes): &(u8, Span)| pages_of(&shape.touched(*stream, *bytes));
    let all: Vec<u64> = pieces.iter().flat_map(pages).collect();
    let units = all.iter().map(|page| page / PAGES_PER_UNIT as u64).collect::<std::collections::BTreeSet<u64>>();
    (all.len() as u64, units.len() as u64)
}

/// Whether bytes are damaged that were read, and the disk goes on.
fn is_damage(error: &Error, disk: &Disk) -> bool {
    error.reaction == Reaction::Corrupt && disk.store.failed().is_none() && disk.journal.failed().is_none()
}

impl Open {
    /// Names the block in errors.
    pub(crate) fn named<T>(&self, result: Result<T>) -> Result<T> {
        result.map_err(at_block(self.id))
    }
}
