//! The updates of all blocks of one disk.

use crate::{
    backlog::is_passing,
    content::{Content, Read, Refusal, Served, at_block},
    disk::{APPLY_FILL, DELAY_FILL, Disk, Limits, REFUSE_FILL, RELEASE_FILL, STOP_FILL},
    fault::{Rule, dropped},
    open::Open,
    piece::{Piece, Pieces, bytes_of},
    record::Stored,
    replay::Replayed,
    shape::Shape,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};
use weft_store::{BlockStore, Journal, Position};
use weft_types::{BlockId, BlockMeta, Error, Reaction, Result, Span, StripeLayout};
use weft_update::{Event, Message, NotRun, NotServed, Peer, Request, Told, UpdateId, Vector, Write};

/// What the shell must do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// Send a message, and these bytes with it. It may be lost.
    Send {
        /// The block whose node sends it.
        from: BlockId,
        /// Its receiver.
        to: Peer,
        /// The message.
        message: Message,
        /// New bytes or deltas, by data block.
        pieces: Pieces,
    },
    /// Tell the leader of an update that the journal here does not take its bytes. Its messages are answered as well.
    TooLong {
        /// The block.
        from: BlockId,
        /// The block that leads the update.
        to: BlockId,
        /// The update.
        id: UpdateId,
        /// Its bytes here, or as far as they have come.
        bytes: u64,
        /// The most that the journal takes.
        bytes_max: u64,
    },
    /// Answer a client.
    Tell {
        /// The block that leads the update.
        block: BlockId,
        /// The update.
        id: UpdateId,
        /// The answer.
        told: Told,
    },
    /// Answer a read.
    Served {
        /// The block.
        block: BlockId,
        /// The read's number.
        read: u64,
        /// What was found, or why nothing is served.
        result: Result<Served, NotServed>,
    },
    /// Report a block as lost: its pages or its part of the journal are damaged. It takes part in nothing any more.
    Lost {
        /// The block.
        block: BlockId,
        /// What is damaged.
        error: Error,
    },
}

/// A block that is open for updates, or settled and not closed.
pub(crate) enum State {
    Open(Box<Open>),
    /// It keeps its part of the journal, so that a restart does not take it for a block that is not open.
    Lost(Vec<Position>),
}

/// The updates of all blocks of one disk. [`open_block`](Self::open_block) opens a block for updates; [`settle`](Self::settle) ends its
/// updates, and [`close`](Self::close) forgets them. A call for a block that is not open fails with [`Reaction::NotFound`]. After an error
/// whose reaction is [`Reaction::Fatal`] it refuses all calls: the disk has failed.
pub struct Updater {
    pub(crate) disk: Disk,
    pub(crate) blocks: BTreeMap<BlockId, State>,
    shapes: BTreeMap<ShapeKey, Arc<Shape>>,
    failed: Option<Error>,
}

/// What determines a shape: the code with its generator, the sizes of the stripe, the block's index.
type ShapeKey = (String, u64, [u64; 6], u8);

/// How often a block looks for outcomes to forget: it looks at all of them.
const FORGET_MS: u64 = 5_000;
/// The most shapes that are kept.
const SHAPES_MAX: usize = 256;

impl Updater {
    /// Replays the journal of a disk. Fails with [`Reaction::Retry`] if the process has too many files open, and the like: then nothing has
    /// happened.
    pub fn open(store: Arc<dyn BlockStore>, journal: Arc<dyn Journal>, mut limits: Limits, now_ms: u64) -> Result<Self> {
        limits.record_bytes_max = limits.record_bytes_max.min(journal.record_bytes_max());
        limits.update_bytes_max = limits.update_bytes_max.min(limits.record_bytes_max as u64 / 4 * 3);
        let disk = Disk::new(store, journal, limits);
        let mut it = Self { disk, blocks: BTreeMap::new(), shapes: BTreeMap::new(), failed: None };
        let mut replayed: BTreeMap<BlockId, Result<Replayed>> = BTreeMap::new();
        it.disk.journal.replay(&mut |position, block, bytes| {
            let of_block = replayed.entry(block).or_insert_with(|| Ok(Replayed::default()));
            if let Ok(entries) = of_block {
                match Stored::decode(bytes) {
                    Ok(stored) => entries.add(position, stored),
                    Err(error) if error.reaction == Reaction::Corrupt => *of_block = Err(error),
                    Err(error) => return Err(at_block(block)(error)),
                }
            }
            Ok(())
        })?;
        for (block, entries) in replayed {
            let positions = entries.as_ref().map(Replayed::positions).unwrap_or_default();
            if let Err(error) = entries.and_then(|entries| it.restart(block, entries, now_ms)) {
                // It may go away: the caller opens the journal again later.
                if is_passing(&error) {
                    return Err(at_block(block)(error));
                }
                it.lose_with(block, error, positions)?;
            }
        }
        Ok(it)
    }

    fn restart(&mut self, block: BlockId, replayed: Replayed, now_ms: u64) -> Result<()> {
        // A crash interrupted its opening, or has undone a part of its closing.
        if !replayed.is_opened() {
            self.disk.release(&replayed.positions());
            return Ok(());
        }
        let reader = self.disk.store.open(block)?;
        let shape = self.shape(reader.meta())?;
        let open = Open::restart(block, replayed, shape, reader, &mut self.disk, now_ms)?;
        self.blocks.insert(block, State::Open(Box::new(open)));
        Ok(())
    }

    /// What the shell must do, in order.
    pub fn take_outputs(&mut self) -> Vec<Output> {
        std::mem::take(&mut self.disk.outputs)
    }

    /// Whether [`sync`](Self::sync) has anything to do.
    pub fn is_unsynced(&self) -> bool {
        self.has_unsynced_entries() || self.disk.has_released
    }

    /// Whether any entry is not durable that [`sync`](Self::sync) makes so.
    pub fn has_unsynced_entries(&self) -> bool {
        self.disk.unsynced.is_some()
    }

    /// How full the journal is, with what is reserved: 0 to 1.
    pub fn fill(&self) -> f64 {
        self.disk.journal.fill()
    }

    /// The bytes of updates under way in memory.
    pub fn inflight_bytes(&self) -> u64 {
        self.disk.inflight_bytes + self.disk.arriving_bytes
    }

    /// The most bytes of an update that the journal takes.
    pub fn update_bytes_max(&self) -> u64 {
        self.disk.limits.update_bytes_max
    }

    /// The blocks that are open or settled, and not lost.
    pub fn blocks(&self) -> impl Iterator<Item = BlockId> + '_ {
        self.blocks.iter().filter(|(_, state)| matches!(state, State::Open(_))).map(|(block, _)| *block)
    }

    /// A client's request to overwrite ranges of data blocks, one range each, at the node that leads it: that of the lowest block. `term`:
    /// that of the client's lease; `new`: the new bytes, by data block. [`Output::Tell`] answers, perhaps much later.
    pub fn request(&mut self, block: BlockId, term: u64, id: UpdateId, new: Pieces, now_ms: u64) -> Result<()> {
        self.make_room(block, now_ms)?;
        let told = self.with(block, |open, disk| {
            if open.is_ending() {
                return Ok(Some(NotRun::Retry));
            }
            let is_valid = |(stream, piece): (&u8, &Arc<Piece>)| open.shape.is_part(*stream, piece.span());
            if new.is_empty() || !new.iter().all(is_valid) || bytes_of(&new) > disk.limits.update_bytes_max {
                return Ok(Some(NotRun::Invalid));
            }
            let write = |(stream, piece): (&u8, &Arc<Piece>)| Write { stream: *stream, span: open.shape.positions(piece.span()) };
            let request = Request { id, term, writes: new.iter().map(write).collect() };
            Ok((!open.request(request, new, disk, now_ms)?).then_some(NotRun::Busy))
        })?;
        if let Some(why) = told.flatten() {
            self.disk.outputs.push(Output::Tell { block, id, told: Told::NotRun(why) });
        }
        Ok(())
    }

    /// A message to a block, and the bytes that came with it.
    pub fn receive(&mut self, block: BlockId, from: Peer, message: Message, pieces: Pieces, now_ms: u64) -> Result<()> {
        if let Message::Prepare { record, .. } = &message {
            self.forget_arriving(block, record.id);
        }
        if matches!(message, Message::Prepare { .. } | Message::Lock { .. })
            && let Err(error) = self.make_room(block, now_ms)
        {
            // A refusal is journalled, and what ends updates needs the rest of the room. Without an answer, the leader asks again.
            let is_refused = is_passing(&error) && self.disk.journal.fill() < REFUSE_FILL;
            if is_passing(&error) && (is_refused || matches!(message, Message::Lock { .. })) {
                self.with(block, |open, disk| open.refuse(from, message, disk, now_ms))?;
            }
            return Err(error);
        }
        let is_of_read = matches!(message, Message::Confirm { .. } | Message::Confirmed { .. });
        let receive = |open: &mut Open, disk: &mut Disk| open.receive(from, message, pieces, disk, now_ms);
        if is_of_read { self.read_with(block, receive).map(drop) } else { self.with(block, receive).map(drop) }
    }

    /// Bytes of an update that a block here leads could not be sent to block `to`: the next [`tick`](Self::tick) sends them again, however many
    /// they are.
    pub fn not_sent(&mut self, block: BlockId, id: UpdateId, to: BlockId) {
        if let Some(State::Open(open)) = self.blocks.get_mut(&block) {
            open.not_sent(id, to);
        }
    }

    /// An update that this node leads has taken too long, or its client has gone.
    pub fn give_up(&mut self, block: BlockId, id: UpdateId, now_ms: u64) -> Result<()> {
        self.with(block, |open, disk| open.on(Event::GiveUp(id), disk, now_ms)).map(drop)
    }

    /// A read of a data block at its own node; `read` is a number that was not used since the start. [`Output::Served`] answers, perhaps later, or
    /// never if the confirmation of the term does not arrive: [`abandon`](Self::abandon) it then. Fails with [`Reaction::InvalidInput`] if the
    /// range is empty, too long, or not in the block, or if this is no data block.
    pub fn read(&mut self, block: BlockId, read: u64, asked: Read, now_ms: u64) -> Result<()> {
        let range = asked.range;
        if range.len() > self.disk.limits.read_bytes_max {
            return Err(Error::invalid(format!("a read of {} bytes is too long", range.len())).block(block));
        }
        match self.read_with(block, |open, disk| open.read(read, asked, disk, now_ms))? {
            Some(false) => {
                Err(Error::invalid(format!("bytes {}..{} are no part of a data block", range.start, range.end)).block(block))
            }
            _ => Ok(()),
        }
    }

    /// Nobody waits for a read any more.
    pub fn abandon(&mut self, block: BlockId, read: u64, now_ms: u64) -> Result<()> {
        self.read_with(block, |open, disk| open.abandon(read, disk, now_ms)).map(drop)
    }

    /// The bytes of a block with exactly the updates up to a vector.
    pub fn read_at(&self, block: BlockId, range: Span, vector: &Vector) -> Result<Content, Refusal> {
        if range.is_empty() || range.len() > self.disk.limits.read_bytes_max {
            return Err(Refusal::Failed(
                Error::invalid(format!("a read of {} bytes is empty or too long", range.len())).block(block),
            ));
        }
        match self.blocks.get(&block) {
            Some(State::Open(open)) => open.content_at(range, vector, &self.disk),
            Some(State::Lost(_)) => Err(Refusal::Failed(lost(block))),
            None => Err(Refusal::Failed(not_open(block))),
        }
    }

    /// Makes everything durable that was appended, for all blocks at once, and carries out what waits for it; until nothing is left. What
    /// had to wait for room or for files is tried again.
    pub fn sync(&mut self, now_ms: u64) -> Result<()> {
        while self.sync_step(now_ms)? {}
        Ok(())
    }

    /// A step of [`sync`](Self::sync); it returns whether there are more. What a caller hands on after each step does not wait for the next ones: after a sync, the
    /// journal is searched for entries that are needless now.
    pub fn sync_step(&mut self, now_ms: u64) -> Result<bool> {
        self.retry(now_ms)?;
        if let Some(last) = self.disk.unsynced.take() {
            self.sync_entries(last, now_ms)?;
            return Ok(true);
        }
        self.release();
        // What was released may be the room for which something waits.
        Ok(self.sync_releases()? && self.has_waiting())
    }

    fn sync_entries(&mut self, last: Position, now_ms: u64) -> Result<()> {
        self.check()?;
        if !dropped(Rule::SyncFirst)
            && let Err(error) = self.disk.journal.sync(last)
        {
            return Err(self.fail(error));
        }
        let mut durable = BTreeMap::new();
        for (block, state) in &mut self.blocks {
            if let State::Open(open) = state
                && open.unsynced > 0
            {
                durable.insert(*block, std::mem::take(&mut open.unsynced));
            }
        }
        let blocks = durable.keys().copied().collect();
        self.each(&blocks, |open, disk| {
            let entries = durable.get(&open.id).copied().unwrap_or(0);
            open.on(Event::Durable { entries }, disk, now_ms)
        })
    }

    /// Makes releases durable: always those of blocks that were closed or removed, and others when the journal is filling, if that frees room. Returns
    /// whether there were any. In a full journal, the former wait; [`is_unsynced`](Self::is_unsynced) says so.
    pub(crate) fn sync_releases(&mut self) -> Result<bool> {
        let has_closed = std::mem::take(&mut self.disk.has_released);
        let synced = match has_closed {
            true => self.disk.journal.sync_releases(),
            false if self.disk.journal.fill() < RELEASE_FILL => return Ok(false),
            false => self.disk.journal.free_room(),
        };
        match synced {
            Err(error) if is_passing(&error) => {
                self.disk.has_released = has_closed;
                Ok(false)
            }
            synced => synced.map_err(|error| self.fail(error)),
        }
    }

    fn has_waiting(&self) -> bool {
        self.blocks.values().any(|state| matches!(state, State::Open(open) if !open.backlog.is_empty()))
    }

    /// Tries again what had to wait.
    fn retry(&mut self, now_ms: u64) -> Result<()> {
        let is_waiting = |state: &State| matches!(state, State::Open(open) if !open.backlog.is_empty());
        let waiting = self.blocks.iter().filter(|(_, state)| is_waiting(state)).map(|(block, _)| *block).collect();
        self.each(&waiting, |open, disk| open.retry(disk, now_ms))
    }

    /// Applies what is known to be committed, for all blocks. The after-images must be synced before pages are written.
    pub fn apply(&mut self, now_ms: u64) -> Result<()> {
        let all = self.blocks().collect();
        self.each(&all, |open, disk| open.on(Event::Apply, disk, now_ms))
    }

    /// From time to time, some times a second: sends again what was not answered, asks, forgets, applies what has waited.
    pub fn tick(&mut self, now_ms: u64) -> Result<()> {
        self.disk.tick(now_ms);
        self.forget_arrivals(now_ms);
        self.retry(now_ms)?;
        let is_filling = self.disk.journal.fill() >= APPLY_FILL;
        let is_settled = |block: &BlockId| matches!(self.blocks.get(block), Some(State::Open(open)) if open.is_settled());
        let all = self.blocks().filter(|block| !is_settled(block)).collect();
        self.each(&all, |open, disk| {
            open.remind(disk, now_ms)?;
            if now_ms.saturating_sub(open.forgot_ms) >= FORGET_MS {
                open.forgot_ms = now_ms;
                open.on(Event::Forget, disk, now_ms)?;
            }
            // Without room, they stay as they are.
            open.join_outcomes(disk).or_else(|error| if is_passing(&error) { Ok(()) } else { Err(error) })?;
            let is_quiet = std::mem::replace(&mut open.is_quiet, true);
            if is_filling || is_quiet { open.on(Event::Apply, disk, now_ms) } else { Ok(()) }
        })
    }

    /// While the journal is filling, or the block has many records, a call that brings a new update applies earlier ones first. When the journal is
    /// full, the call is refused; what ends updates is not.
    fn make_room(&mut self, block: BlockId, now_ms: u64) -> Result<()> {
        self.check()?;
        if let Some(State::Open(open)) = self.blocks.get(&block)
            && open.machine.participant().is_filling()
        {
            self.each(&BTreeSet::from([block]), |open, disk| open.on(Event::Apply, disk, now_ms))?;
        }
        if self.disk.journal.fill() < DELAY_FILL {
            return Ok(());
        }
        self.apply(now_ms)?;
        self.sync(now_ms)?;
        if self.disk.journal.fill() >= STOP_FILL {
            return Err(Error::retry("the journal is full").block(block));
        }
        Ok(())
    }

    /// Calls `what` with a block. `None` if it is lost now.
    pub(crate) fn with<T>(&mut self, block: BlockId, what: impl FnOnce(&mut Open, &mut Disk) -> Result<T>) -> Result<Option<T>> {
        if let Some(State::Open(open)) = self.blocks.get_mut(&block) {
            open.is_quiet = false;
        }
        self.read_with(block, what)
    }

    /// The same for reads: the block stays quiet, and what is committed is applied beside them.
    fn read_with<T>(&mut self, block: BlockId, what: impl FnOnce(&mut Open, &mut Disk) -> Result<T>) -> Result<Option<T>> {
        self.check()?;
        let open = match self.blocks.get_mut(&block) {
            Some(State::Open(open)) => open,
            Some(State::Lost(_)) => return Err(lost(block)),
            None => return Err(not_open(block)),
        };
        let done = what(open, &mut self.disk);
        match open.named(done) {
            Ok(done) => Ok(Some(done)),
            Err(error) if is_passing(&error) => Err(error),
            Err(error) => self.lose(block, error).map(|()| None),
        }
    }

    /// Calls `what` with each of these blocks that is open.
    fn each(&mut self, blocks: &BTreeSet<BlockId>, what: impl Fn(&mut Open, &mut Disk) -> Result<()>) -> Result<()> {
        self.check()?;
        for block in blocks {
            let Some(State::Open(open)) = self.blocks.get_mut(block) else { continue };
            let done = what(open, &mut self.disk);
            match open.named(done) {
                Err(error) if !is_passing(&error) => self.lose(*block, error)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn release(&mut self) {
        for state in self.blocks.values_mut() {
            if let State::Open(open) = state {
                open.release(&self.disk);
            }
        }
    }

    fn lose(&mut self, block: BlockId, error: Error) -> Result<()> {
        self.lose_with(block, error, Vec::new())
    }

    /// A block is lost whose pages or entries are damaged, or that cannot be updated for another reason of its own; a failure of the device
    /// or of the journal fails the disk.
    fn lose_with(&mut self, block: BlockId, error: Error, mut positions: Vec<Position>) -> Result<()> {
        if self.disk.store.failed().is_some() || self.disk.journal.failed().is_some() {
            return Err(self.fail(error));
        }
        if let Some(State::Open(mut open)) = self.blocks.remove(&block) {
            open.clear(&mut self.disk);
            positions = open.positions();
        }
        // It was removed, or recovery has moved it to quarantine: nothing is left that could be taken for a block that is not open.
        if error.reaction == Reaction::NotFound {
            self.disk.release(&positions);
        } else {
            self.blocks.insert(block, State::Lost(positions));
        }
        self.disk.outputs.push(Output::Lost { block, error });
        Ok(())
    }

    pub(crate) fn fail(&mut self, error: Error) -> Error {
        let error = Error { reaction: Reaction::Fatal, ..error };
        self.failed.get_or_insert(error).clone()
    }

    pub(crate) fn check(&self) -> Result<()> {
        self.failed.clone().map_or(Ok(()), Err)
    }

    pub(crate) fn shape(&mut self, meta: &BlockMeta) -> Result<Arc<Shape>> {
        let StripeLayout { layout, k, m, data_len } = meta.stripe;
        let sizes = [layout.block_len, layout.cell_len, layout.alpha.into(), k.into(), m.into(), data_len];
        let key = (meta.code.clone(), meta.generator_hash, sizes, meta.id.index);
        if let Some(shape) = self.shapes.get(&key) {
            return Ok(shape.clone());
        }
        let code = weft_codes::parse(&meta.code).map_err(|error| Error::fatal(format!("the code of the block: {error}")))?;
        let shape = Arc::new(Shape::new(&*code, meta)?);
        if self.shapes.len() >= SHAPES_MAX {
            self.shapes.clear();
        }
        self.shapes.insert(key, shape.clone());
        Ok(shape)
    }
}

pub(crate) fn not_open(block: BlockId) -> Error {
    Error::not_found("the block is not open for updates").block(block)
}

pub(crate) fn lost(block: BlockId) -> Error {
    Error::corrupt("the block's updates are lost on this disk").block(block)
}
