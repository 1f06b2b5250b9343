//! Opens blocks for updates, settles them, and closes them.
//!
//! ```text
//!   plain ──open_block──► open ──a seal, settle──► settled ──close──► plain
//!                           ▲                         │
//!                           └───open_block, a higher term
//! ```
//! A *plain* block is immutable: the journal contains nothing of it. An *open* one is updated. A *settled* one has all updates of its term
//! in its pages, and its sidecar has the term and the counts of the whole stripe. So a block is opened only under a term above its
//! sidecar's, and late messages of earlier terms meet a block that is not open, or one whose term is higher.

use crate::{
    disk::Disk,
    fault::{Rule, dropped},
    open::Open,
    updater::{State, Updater, lost, not_open},
};
use std::collections::BTreeMap;
use weft_store::{BlockReader, Image, Patch};
use weft_types::{BlockId, Error, PAGE_LEN, Reaction, Result, Seq};
use weft_update::{Event, Sealed};

/// A block that is open for updates, or settled and not closed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenBlock {
    /// The block.
    pub block: BlockId,
    /// The highest term whose members and outcomes the block knows.
    pub term: u64,
    /// The highest term that it obeys. It is above the known one while a seal is under way.
    pub obeyed: u64,
    /// The stripe's blocks in that term.
    pub members: Vec<BlockId>,
    /// Whether it is settled in that term.
    pub is_settled: bool,
    /// Whether a seal went on without it: it is no block of the stripe any more.
    pub is_fenced: bool,
}

/// What a block contains that was settled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SettledBlock {
    /// The term, and the number of updates of each data block of the stripe. All settled blocks of a stripe have the same.
    pub seq: Seq,
    /// The CRC32C of each MiB.
    pub units: Vec<u32>,
}

impl Updater {
    /// Opens a block for the updates of a term. When this returns, the term and what `sealed` tells are durable: a request of an earlier
    /// term that is repeated gets its outcome and does not run again. Succeeds if the block is open in this term.
    ///
    /// `sealed` must have the stripe's counts as its vector. The block is refused with
    /// - [`Reaction::InvalidInput`] if the term is not above the one in the block's sidecar, or below the one in which it is open;
    /// - [`Reaction::Replan`] if it is open in a lower term and has updates of it: that term must be sealed and settled first;
    /// - [`Reaction::Corrupt`] if its sidecar has other counts: it is stale, and must be rebuilt;
    /// - [`Reaction::NotFound`] if the disk does not have it, and [`Reaction::Retry`] if the journal is full or too many blocks are open.
    pub fn open_block(&mut self, block: BlockId, sealed: &Sealed, now_ms: u64) -> Result<()> {
        self.open_longer_block(block, sealed, 0, now_ms)
    }

    /// Like [`open_block`](Self::open_block), in a stripe that holds `data_len` bytes of the object (0: as many as the block's sidecar says). A block that is
    /// shorter grows by zeros first: durably, and as a whole. Grown or not, it has the same content, so it stays grown if it is not opened then.
    /// One that is longer is refused with [`Reaction::Corrupt`]: it is none of this stripe. Fails with [`Reaction::Unavailable`] if the disk has no room.
    pub fn open_longer_block(&mut self, block: BlockId, sealed: &Sealed, data_len: u64, now_ms: u64) -> Result<()> {
        self.check()?;
        let refuse = |what: String| Err(Error::invalid(what).block(block));
        if sealed.term == 0 || !sealed.members.contains(&block) {
            return refuse(format!("it is no block of its stripe in term {}, or the term is 0", sealed.term));
        }
        match self.blocks.get(&block) {
            Some(State::Lost(_)) => return Err(lost(block)),
            Some(State::Open(open)) => {
                let participant = open.machine.participant();
                let (term, is_settled) = (participant.term(), open.is_settled());
                // Also while a later seal is under way: the coordinator may not know yet which blocks this opening has reached.
                if participant.known_term() == sealed.term && !participant.is_fenced() {
                    return Ok(());
                }
                if sealed.term <= term {
                    return refuse(format!("it was open in term {term} already, so it is not opened in term {}", sealed.term));
                }
                if !is_settled && !open.machine.is_idle() {
                    let what = format!("it is open in term {term} and has updates of that term: seal and settle it first");
                    return Err(Error::replan(what).block(block));
                }
            }
            None if self.blocks.len() >= self.disk.limits.blocks_max => {
                let open = self.blocks.len();
                return Err(Error::retry(format!(
                    "{open} blocks of this disk are open for updates: others must be closed first"
                ))
                .block(block));
            }
            None => {}
        }
        let mut reader = self.disk.store.open(block)?;
        check_plain(&*reader, sealed)?;
        let unfit = |error: Error| Error { reaction: Reaction::InvalidInput, ..error }.block(block);
        let mut shape = self.shape(reader.meta()).map_err(unfit)?;
        let check = |stream: u8| shape.dependence.of(block.index, stream);
        check_counts(reader.meta().seq.counts(), sealed, shape.dependence.k, check).map_err(|error| error.block(block))?;
        if data_len != 0 && data_len != reader.meta().stripe.data_len {
            self.grow(&*reader, data_len).map_err(|error| error.block(block))?;
            reader = self.disk.store.open(block)?;
            shape = self.shape(reader.meta()).map_err(unfit)?;
        }
        let without = Sealed { outcomes: BTreeMap::new(), floors: BTreeMap::new(), ..sealed.clone() };
        let sealed = if dropped(Rule::OutcomesAtOpening) { &without } else { sealed };
        let open = Open::first(block, sealed, shape, reader, &mut self.disk, now_ms).map_err(|error| error.block(block))?;
        // Otherwise a crash could begin two lives of its leader under the same name.
        if !dropped(Rule::OpenedFirst)
            && let Some(last) = open.entries.last()
            && let Err(error) = self.disk.journal.sync(last.position)
        {
            return Err(self.fail(error));
        }
        if let Some(State::Open(mut before)) = self.blocks.insert(block, State::Open(Box::new(open))) {
            before.clear(&mut self.disk);
            self.disk.release(&before.positions());
        }
        Ok(())
    }

    /// Lets a block grow by zeros, as it is in a stripe that holds `data_len` bytes of the object.
    fn grow(&self, block: &dyn BlockReader, data_len: u64) -> Result<()> {
        let before = block.meta();
        let mut after = before.clone();
        after.stripe.data_len = data_len;
        if data_len < before.stripe.data_len || data_len > before.stripe.room_end() {
            let has = before.stripe.data_len;
            return Err(Error::corrupt(format!("its stripe holds {data_len} bytes, but it is a block of one with {has}")));
        }
        let (id, seq, start) = (before.id, before.seq.clone(), before.len() / PAGE_LEN * PAGE_LEN);
        let mut image = vec![0; after.len().saturating_sub(start) as usize];
        let old = (before.len() - start) as usize;
        block.read_at(start, image.get_mut(..old).unwrap_or_default())?;
        let images = [Image { offset: start, bytes: &image }];
        let images = if after.len() > before.len() { &images[..] } else { &[] };
        self.disk.store.patch(&Patch { id, images, seq, data_len }).map(drop)
    }

    /// Ends the updates of a block whose term a seal has raised to `term`: once this is called, none begins. Returns what it contains when
    /// all that the seal has decided is applied, and the sidecar durably says so. Until then it returns `None`: call it again after the
    /// next [`sync`](Self::sync), which it may need twice. It is `None`, too, while the block does not know what the seal has decided.
    ///
    /// A settled block stays as it is until it is closed, after a restart too, and answers no other block. Repeated calls return the same,
    /// even for a block that is closed. Fails with [`Reaction::InvalidInput`] if the block knows a higher term or is fenced, with
    /// [`Reaction::NotFound`] if it is not open, and with [`Reaction::Corrupt`] if it is lost.
    pub fn settle(&mut self, block: BlockId, term: u64, now_ms: u64) -> Result<Option<SettledBlock>> {
        self.check()?;
        match self.blocks.get(&block) {
            None => {
                let reader = self.disk.store.open(block).map_err(|error| match error.reaction {
                    Reaction::NotFound => not_open(block),
                    _ => error,
                })?;
                let is_closed = reader.meta().seq.term() == term && !reader.is_interrupted();
                return if is_closed { Ok(Some(settled(&*reader))) } else { Err(not_open(block)) };
            }
            Some(State::Lost(_)) => return Err(lost(block)),
            Some(State::Open(open)) => {
                let participant = open.machine.participant();
                if participant.is_fenced() || participant.known_term() > term {
                    let known = participant.known_term();
                    return Err(Error::invalid(format!("it is fenced, or open in term {known} and not in {term}")).block(block));
                }
            }
        }
        self.with(block, |open, disk| open.settle(term, disk, now_ms)).map(Option::flatten)
    }

    /// Ends a settled block: what the journal contains of it is released, durably once [`sync`](Self::sync) has returned. Succeeds if the
    /// block is not open, or lost, or open in a higher term, and leaves it so. Fails with [`Reaction::InvalidInput`] if it is not settled.
    pub fn close(&mut self, block: BlockId, term: u64) -> Result<()> {
        self.check()?;
        let Some(State::Open(open)) = self.blocks.get(&block) else { return Ok(()) };
        if open.machine.participant().term() > term {
            return Ok(());
        }
        if !open.is_settled() {
            return Err(Error::invalid(format!("it is not settled in term {term}, so it is not closed")).block(block));
        }
        self.forget(block);
        Ok(())
    }

    /// The block is removed from this disk, or is about to be: what the journal contains of it is released, durably once
    /// [`sync`](Self::sync) has returned.
    pub fn forget(&mut self, block: BlockId) {
        match self.blocks.remove(&block) {
            Some(State::Open(mut open)) => {
                open.clear(&mut self.disk);
                self.disk.release(&open.positions());
            }
            Some(State::Lost(positions)) => self.disk.release(&positions),
            None => {}
        }
    }

    /// All blocks that are open, or settled and not closed, ascending.
    pub fn open_blocks(&self) -> impl Iterator<Item = OpenBlock> + '_ {
        self.blocks.keys().filter_map(|block| self.open_block_of(*block))
    }

    /// A block, if it is open, or settled and not closed.
    pub fn open_block_of(&self, block: BlockId) -> Option<OpenBlock> {
        let State::Open(open) = self.blocks.get(&block)? else { return None };
        let participant = open.machine.participant();
        let (term, members) = (participant.known_term(), participant.members().to_vec());
        let (obeyed, is_fenced) = (participant.term(), participant.is_fenced());
        Some(OpenBlock { block, term, obeyed, members, is_settled: open.is_settled(), is_fenced })
    }

    /// What a block contains that is settled and not closed.
    pub fn content_of(&self, block: BlockId) -> Option<SettledBlock> {
        let State::Open(open) = self.blocks.get(&block)? else { return None };
        open.is_settled().then(|| settled(&*open.reader))
    }

    /// Whether a block was open and is lost. It stays so until [`forget`](Self::forget).
    pub fn is_lost(&self, block: BlockId) -> bool {
        matches!(self.blocks.get(&block), Some(State::Lost(_)))
    }

    /// All blocks that are lost.
    pub fn lost_blocks(&self) -> impl Iterator<Item = BlockId> + '_ {
        self.blocks.iter().filter(|(_, state)| matches!(state, State::Lost(_))).map(|(block, _)| *block)
    }
}

impl Open {
    /// Whether the sidecar says that all updates of this term are in the pages.
    pub(crate) fn is_settled(&self) -> bool {
        let participant = self.machine.participant();
        self.reader.meta().seq.term() == participant.known_term() && participant.term() == participant.known_term()
    }

    /// Whether no update may begin.
    pub(crate) fn is_ending(&self) -> bool {
        self.is_settling || self.is_settled()
    }

    fn settle(&mut self, term: u64, disk: &mut Disk, now_ms: u64) -> Result<Option<SettledBlock>> {
        let participant = self.machine.participant();
        if self.is_settled() && participant.known_term() == term {
            return Ok(Some(settled(&*self.reader)));
        }
        if participant.known_term() < term || participant.term() > term {
            return Ok(None);
        }
        self.is_settling = true;
        self.arrivals.forget(None, disk);
        if !self.machine.is_idle() {
            self.retry(disk, now_ms)?;
            return self.on(Event::Apply, disk, now_ms).map(|()| None);
        }
        let decided = self.machine.participant().decided();
        let counts = (0..self.shape.dependence.k).map(|stream| decided.get(&stream).copied().unwrap_or(0));
        let seq = Seq::new(term, counts.collect());
        let data_len = self.reader.meta().stripe.data_len;
        disk.store.patch(&Patch { id: self.id, images: &[], seq, data_len })?;
        self.reader = disk.store.open(self.id)?;
        Ok(Some(settled(&*self.reader)))
    }
}

fn settled(reader: &dyn BlockReader) -> SettledBlock {
    SettledBlock { seq: reader.meta().seq.clone(), units: reader.units().to_vec() }
}

fn check_plain(reader: &dyn BlockReader, sealed: &Sealed) -> Result<()> {
    let (block, term) = (reader.meta().id, reader.meta().seq.term());
    if reader.is_interrupted() {
        return Err(Error::corrupt("its last update was interrupted, and the journal does not contain it").block(block));
    }
    if sealed.term <= term && !dropped(Rule::TermAbove) {
        let what = format!("it contains the updates of term {term}, so it is not opened in term {}", sealed.term);
        return Err(Error::invalid(what).block(block));
    }
    Ok(())
}

fn check_counts(counts: &[u64], sealed: &Sealed, k: u8, is_contained: impl Fn(u8) -> bool) -> Result<()> {
    for stream in (0..k).filter(|stream| is_contained(*stream)) {
        let contained = counts.get(usize::from(stream)).copied().unwrap_or(0);
        let wanted = sealed.vector.get(&stream).copied().unwrap_or(0);
        if contained != wanted {
            let what =
                format!("it contains {contained} updates of data block {stream}, but the stripe has {wanted}: it is stale");
            return Err(Error::corrupt(what));
        }
    }
    Ok(())
}
