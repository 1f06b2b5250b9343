//! A participant: what the node of one block does with the updates of its stripe, data block or parity block alike.
//!
//! A node writes its state to the journal before it sends an answer: the answer waits until all earlier entries are durable. Entries become
//! durable in batches.
//!
//! Invariants:
//! - A record is held or refused once and for all: a refusal excludes holding it, and only an outcome changes what is held.
//! - The term and the earliest life of each leader that is obeyed never fall.
//! - What is committed is never refused, and the other way round.
//! - The outcome of a record whose term is below the block's is learned from the seal alone.

mod apply;
mod join;
mod read;
mod restart;
mod seal;

pub use read::{NotServed, ReadAt};

use crate::{
    block::{Action, Config, Told, block_of},
    memory::Memory,
    mutation::{Rule, dropped},
    types::{
        Batch, Claim, Crcs, Entry, Incarnation, Known, Message, Outcome, Part, Peer, Record, Report, Session, Stamp, UpdateId,
        Vector,
    },
};
use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};
use weft_types::BlockId;

/// A record that is not trimmed.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Kept {
    pub(crate) record: Arc<Record>,
    pub(crate) claim: Claim,
}

/// A batch that is being applied.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Applying {
    batch: Batch,
    /// How many of the unsynced entries must be durable before pages are written; `None`: they are being written.
    after: Option<u64>,
}

/// The state machine of a participant.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Participant {
    pub(crate) config: Config,
    /// Lower terms are refused.
    pub(crate) term: u64,
    /// The highest term whose seal's outcomes are known; nothing new begins while it is below `term`.
    pub(crate) opened: u64,
    /// The stripe's blocks in the term `opened`.
    pub(crate) members: Vec<BlockId>,
    is_fenced: bool,
    /// The block joins the stripe, and its content is to be rebuilt at this vector or a later one.
    joining: Option<Vector>,
    least: BTreeMap<u8, Incarnation>,
    watermarks: Vector,
    /// The watermarks that the journal contains.
    written_watermarks: Vector,
    pub(crate) records: BTreeMap<UpdateId, Kept>,
    memory: Memory,
    /// What the block's pages contain; its sidecar says so.
    applied: Vector,
    /// Updates above may be untrimmed.
    trimmed: Vector,
    batch: Option<Applying>,
    /// The entries that are appended and not durable.
    unsynced: u64,
    /// How many of them must be durable before the floors are.
    unsynced_floors: u64,
    /// Messages, and how many of the unsynced entries must be durable before each is sent.
    waiting: VecDeque<(u64, Peer, Message)>,
    actions: Vec<Action>,
}

impl Participant {
    /// For a block that contains the updates `applied`.
    fn empty(config: Config, applied: Vector) -> Self {
        Self {
            config,
            term: 0,
            opened: 0,
            members: Vec::new(),
            is_fenced: false,
            joining: None,
            least: BTreeMap::new(),
            watermarks: Vector::new(),
            written_watermarks: Vector::new(),
            records: BTreeMap::new(),
            memory: Memory::default(),
            trimmed: applied.clone(),
            applied,
            batch: None,
            unsynced: 0,
            unsynced_floors: 0,
            waiting: VecDeque::new(),
            actions: Vec::new(),
        }
    }

    /// What the shell must do next.
    pub(crate) fn take_actions(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.actions)
    }

    /// Whether the block is part of the stripe, and all outcomes of lower terms are known.
    pub(crate) fn is_open(&self) -> bool {
        self.opened == self.term && !self.is_fenced && !self.members.is_empty()
    }

    /// Whether half of the records that it may have wait to be applied and trimmed. When it has all of them, it refuses more.
    pub fn is_filling(&self) -> bool {
        self.records.len() >= self.config.records_max / 2
    }

    /// Whether a seal went on without this block.
    pub fn is_fenced(&self) -> bool {
        self.is_fenced
    }

    /// The highest term whose outcomes are known here.
    pub fn known_term(&self) -> u64 {
        self.opened
    }

    /// Lower terms are refused. It is above [`known_term`](Self::known_term) while a seal is under way.
    pub fn term(&self) -> u64 {
        self.term
    }

    /// The stripe's blocks in it.
    pub fn members(&self) -> &[BlockId] {
        &self.members
    }

    /// For each stream, the number up to which all updates are decided, as far as this block knows.
    pub fn decided(&self) -> &Vector {
        &self.watermarks
    }

    /// Whether all updates of which it knows are decided, applied and trimmed, and all of that is durable.
    pub(crate) fn is_idle(&self) -> bool {
        let is_applied = self.streams().all(|stream| self.applied(stream) == self.watermark(stream));
        let has_none = self.records.is_empty() && self.batch.is_none() && self.unsynced == 0;
        self.is_open() && !self.is_joining() && has_none && is_applied
    }

    /// The number up to which all updates of a stream are decided, as far as this block knows.
    pub(crate) fn watermark(&self, stream: u8) -> u64 {
        self.watermarks.get(&stream).copied().unwrap_or(0)
    }

    /// The earliest life of a stream's leader that is obeyed.
    pub(crate) fn least(&self, stream: u8) -> Incarnation {
        self.least.get(&stream).copied().unwrap_or_default()
    }

    /// Whether a record is held and its outcome unknown.
    pub(crate) fn is_undecided(&self, id: UpdateId) -> bool {
        self.records.get(&id).is_some_and(|kept| matches!(kept.claim, Claim::Held(_)))
    }

    /// What this block knows about the end of an update. Aborted: it refuses it. Others may still hold it.
    pub fn outcome(&self, id: UpdateId) -> Option<Outcome> {
        match self.records.get(&id).map(|kept| &kept.claim) {
            Some(Claim::Held(_)) => None,
            Some(Claim::Committed) => Some(Outcome::Committed),
            Some(Claim::Refused) => Some(Outcome::Aborted),
            None => self.memory.outcome(id),
        }
    }

    /// Whether it remembers the outcome of an update whose record is trimmed.
    pub fn remembers(&self, id: UpdateId) -> bool {
        self.memory.outcome(id).is_some()
    }

    /// Whether an update must not run because its outcome may have been forgotten.
    pub(crate) fn is_expired(&self, id: UpdateId, now_ms: u64) -> bool {
        self.memory.is_expired(id, now_ms)
    }

    /// Whether there is room for what must be remembered of a session.
    pub(crate) fn has_room_for(&self, session: Session) -> bool {
        let floors = self.memory.floors();
        floors.len() < self.config.sessions_max || floors.contains_key(&session)
    }

    /// Whether the floors of all sessions are durable. Until then the node does not answer that an id has expired, because the id could run
    /// after a restart.
    pub(crate) fn are_floors_durable(&self) -> bool {
        self.unsynced_floors == 0 || dropped(Rule::DurableFirst)
    }

    pub(crate) fn send(&mut self, to: Peer, message: Message) {
        self.actions.push(Action::Send { to, message });
    }

    pub(crate) fn tell(&mut self, id: UpdateId, told: Told) {
        self.actions.push(Action::Tell { id, told });
    }

    fn append(&mut self, entry: Entry) {
        self.unsynced += 1;
        if matches!(entry, Entry::Floor { .. }) {
            self.unsynced_floors = self.unsynced;
        }
        self.actions.push(Action::Journal(entry));
    }

    fn append_known(&mut self, known: &[Known]) {
        known.chunks(Known::MAX).for_each(|some| self.append(Entry::Known(some.to_vec())));
    }

    /// Sends a message once all that has been appended is durable.
    fn answer(&mut self, to: Peer, message: Message) {
        if self.unsynced == 0 || dropped(Rule::DurableFirst) {
            return self.send(to, message);
        }
        // A repeated question gets one answer.
        if !self.waiting.iter().any(|(_, other, answer)| *other == to && is_same_answer(answer, &message)) {
            self.waiting.push_back((self.unsynced, to, message));
        }
    }

    /// This many further entries are durable.
    pub(crate) fn durable(&mut self, entries: u64) {
        self.unsynced = self.unsynced.saturating_sub(entries);
        self.unsynced_floors = self.unsynced_floors.saturating_sub(entries);
        for (after, _, _) in &mut self.waiting {
            *after = after.saturating_sub(entries);
        }
        let ready = self.waiting.iter().take_while(|(after, _, _)| *after == 0).count();
        for (_, to, message) in self.waiting.drain(..ready).collect::<Vec<_>>() {
            self.send(to, message);
        }
        self.images_durable(entries);
    }

    /// Whether a leader's message counts: it is of this term and of no earlier life.
    pub(crate) fn obeys(&self, stamp: &Stamp) -> bool {
        let is_term = stamp.term == self.term || (dropped(Rule::OldTerm) && stamp.term < self.term);
        let is_life = stamp.incarnation >= self.least(stamp.stream) || dropped(Rule::OldIncarnation);
        is_term && is_life && !self.is_fenced
    }

    /// A leader speaks of an update under the update's own term.
    fn obeys_about(&self, stamp: &Stamp, record: &Record) -> bool {
        self.obeys(stamp) && (record.term == stamp.term || dropped(Rule::SealDecides))
    }

    /// Learns outcomes from a watermark: an aborted update would be refused here, so all that is held below is committed.
    pub(crate) fn hear(&mut self, stamp: &Stamp) {
        if self.obeys(stamp) {
            self.raise_watermark(stamp.stream, stamp.term, stamp.watermark);
        }
    }

    fn raise_watermark(&mut self, stream: u8, term: u64, number: u64) {
        let at = self.watermarks.entry(stream).or_default();
        *at = number.max(*at);
        // Records of other terms may have been aborted by a seal of which this block has not heard.
        let is_of_term = |record: &Record| record.term == term || dropped(Rule::WatermarkOfTerm);
        for kept in self.records.values_mut() {
            let lead = kept.record.lead();
            let is_decided = lead.stream == stream && lead.number <= number && is_of_term(&kept.record);
            if is_decided && matches!(kept.claim, Claim::Held(_)) {
                kept.claim = Claim::Committed;
            }
        }
    }

    /// Holds a record, if nothing speaks against it. `is_locked`: this node gave the record its lock, if it is its to give. `has_room`: there is
    /// room for its deltas.
    pub(crate) fn prepare(&mut self, stamp: &Stamp, record: Arc<Record>, crcs: Crcs, is_locked: bool, has_room: bool) {
        if !self.obeys_about(stamp, &record) {
            return;
        }
        if let Some(kept) = self.records.get(&record.id) {
            match kept.claim.clone() {
                Claim::Held(crcs) => self.answer_held(stamp, &record, crcs),
                Claim::Refused => self.answer_refused(stamp, &record),
                Claim::Committed => {}
            }
            return;
        }
        if self.is_over(stamp, &record) {
            return;
        }
        let is_void = |part: &Part| {
            let is_passed = part.number <= self.watermark(part.stream).max(self.applied(part.stream));
            part.incarnation < self.least(part.stream) || is_passed
        };
        // The nodes of the other streams have given up these numbers, or started again since: they never hold the record.
        let is_unlocked = !is_locked || record.parts.iter().skip(1).any(is_void);
        let is_full = !has_room || self.records.len() >= self.config.records_max;
        if is_full || (is_unlocked && !dropped(Rule::LockBeforeHold)) {
            return self.refuse(stamp, record);
        }
        self.append(Entry::Held { record: record.clone(), crcs: crcs.clone() });
        self.records.insert(record.id, Kept { record: record.clone(), claim: Claim::Held(crcs.clone()) });
        self.answer_held(stamp, &record, crcs);
    }

    /// Refuses a record for ever, unless its outcome is known.
    pub(crate) fn refuse(&mut self, stamp: &Stamp, record: Arc<Record>) {
        if !self.obeys_about(stamp, &record) {
            return;
        }
        let claim = self.records.get(&record.id).map(|kept| &kept.claim);
        let (is_known, is_refused) = (claim.is_some(), claim == Some(&Claim::Refused));
        if claim == Some(&Claim::Committed) || (!is_known && self.is_over(stamp, &record)) {
            return;
        }
        if !is_refused {
            self.append(Entry::Refused(record.clone()));
            self.records.insert(record.id, Kept { record: record.clone(), claim: Claim::Refused });
        }
        self.answer_refused(stamp, &record);
    }

    /// Whether a record is trimmed here, or below the watermark: the message is a late copy. A leader that has lost an abort of which only
    /// others knew may ask again, so it gets an answer.
    fn is_over(&mut self, stamp: &Stamp, record: &Record) -> bool {
        let lead = record.lead();
        match self.memory.outcome(record.id) {
            Some(Outcome::Aborted) => self.answer_refused(stamp, record),
            Some(Outcome::Committed) => {}
            None => return lead.number <= self.watermark(lead.stream),
        }
        true
    }

    /// Learns that a record is committed.
    pub(crate) fn commit(&mut self, stamp: &Stamp, record: &Record) {
        if self.obeys_about(stamp, record)
            && let Some(kept) = self.records.get_mut(&record.id)
            && matches!(kept.claim, Claim::Held(_))
        {
            kept.claim = Claim::Committed;
        }
    }

    fn answer_held(&mut self, stamp: &Stamp, record: &Record, crcs: Crcs) {
        if let Some(leader) = record.leader() {
            self.answer(Peer::Block(leader), Message::Held { id: record.id, incarnation: stamp.incarnation, crcs });
        }
    }

    fn answer_refused(&mut self, stamp: &Stamp, record: &Record) {
        if let Some(leader) = record.leader() {
            self.answer(Peer::Block(leader), Message::Refused { id: record.id, incarnation: stamp.incarnation });
        }
    }

    /// A restarted leader: earlier lives of it are not obeyed any more.
    pub(crate) fn query(&mut self, from: Peer, stamp: &Stamp) {
        if !self.obeys(stamp) || !(self.is_open() || dropped(Rule::SealDecides)) {
            return;
        }
        self.write_watermarks();
        if self.least.insert(stamp.stream, stamp.incarnation) != Some(stamp.incarnation) {
            self.append(Entry::Fence { stream: stamp.stream, incarnation: stamp.incarnation });
        }
        let message = Message::Reported { term: self.term, incarnation: stamp.incarnation, report: self.report() };
        self.answer(from, message);
    }

    /// Takes over what others remember, for clients that repeat their requests here.
    pub(crate) fn learn(&mut self, outcomes: &BTreeMap<UpdateId, Outcome>, floors: &BTreeMap<Session, u64>, now_ms: u64) {
        let mut known = Vec::new();
        for (id, outcome) in outcomes {
            if !self.records.contains_key(id) && self.memory.outcome(*id).is_none() {
                self.memory.learn(*id, *outcome, now_ms);
                known.push(Known { id: *id, outcome: *outcome, at_ms: now_ms });
            }
        }
        self.append_known(&known);
        for (session, counter) in floors {
            if self.memory.raise(*session, *counter) {
                self.append(Entry::Floor { session: *session, counter: *counter });
            }
        }
    }

    /// What is known here, for the entry that is appended last.
    fn report(&self) -> Report {
        let claim = |kept: &Kept| (kept.record.clone(), kept.claim.clone());
        Report {
            records: self.records.iter().map(|(id, kept)| (*id, claim(kept))).collect(),
            watermarks: self.watermarks.clone(),
            numbers: self.numbers(),
            outcomes: self.memory.outcomes(),
            floors: self.memory.floors().clone(),
        }
    }

    /// The highest numbers seen. What is applied counts, or is being applied: an update with a number below would never be applied.
    fn numbers(&self) -> Vector {
        let in_records = self.records.values().flat_map(|kept| &kept.record.parts).map(|part| (part.stream, part.number));
        let in_batch = self.batch.iter().flat_map(|applying| &applying.batch.applied).filter(|_| !dropped(Rule::BatchIsUsed));
        let decided = self.watermarks.iter().chain(&self.applied).chain(in_batch).map(|(stream, number)| (*stream, *number));
        let mut numbers = Vector::new();
        for (stream, number) in in_records.chain(decided) {
            let highest = numbers.entry(stream).or_default();
            *highest = number.max(*highest);
        }
        numbers
    }

    fn write_watermarks(&mut self) {
        for (stream, number) in self.watermarks.clone() {
            let written = self.written_watermarks.insert(stream, number).unwrap_or(0);
            if number > written {
                self.append(Entry::Watermark { stream, term: self.term, number });
            }
        }
    }

    /// Asks about everything whose outcome is unknown here, and what the seal decided.
    pub(crate) fn remind(&mut self) {
        if self.is_fenced {
            return;
        }
        if self.opened < self.term {
            return self.send(Peer::Coordinator, Message::AskSeal { term: self.term });
        }
        let is_open = |kept: &&Kept| {
            let lead = kept.record.lead();
            lead.number > self.watermark(lead.stream) || matches!(kept.claim, Claim::Held(_))
        };
        let mut asked: Vec<(u8, Arc<Record>)> =
            self.records.values().filter(is_open).map(|kept| (kept.record.lead().stream, kept.record.clone())).collect();
        for kept in self.records.values().filter(|kept| kept.claim == Claim::Committed) {
            // It cannot be applied before all that come first are known.
            let parts = self.parts(&kept.record).filter(|part| part.number > self.frontier(part.stream));
            asked.extend(parts.map(|part| (part.stream, kept.record.clone())));
        }
        asked.dedup();
        for (stream, record) in asked {
            if let Some(node) = block_of(&self.members, stream).filter(|node| *node != self.config.me) {
                self.send(Peer::Block(node), Message::Ask { record });
            }
        }
    }

    /// Forgets what need not be kept any longer.
    pub(crate) fn forget(&mut self, now_ms: u64) {
        for (session, counter) in self.memory.expire(self.config.outcomes_max, now_ms) {
            self.append(Entry::Floor { session, counter });
        }
    }
}

/// Whether an answer that waits makes another one needless: of two reports, either will do.
fn is_same_answer(waiting: &Message, new: &Message) -> bool {
    match (waiting, new) {
        (Message::Reported { term, incarnation, .. }, Message::Reported { term: other, incarnation: life, .. }) => {
            (term, incarnation) == (other, life)
        }
        (Message::SealReported { term, .. }, Message::SealReported { term: other, .. }) => term == other,
        _ => waiting == new,
    }
}

#[cfg(test)]
mod tests;
