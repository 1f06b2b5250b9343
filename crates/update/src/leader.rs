//! The leader: the node of a data block orders the updates of that block, and leads those that change no lower block.
//!
//! ```text
//!   request ──► locking: the range of each block, in the order of blocks; deltas ──► preparing ──all hold the same──► committed
//!                  │ given up: it never ran                                      │ given up, refused, or deltas differ
//!                  ▼                                                             ▼
//!                retry                                                        aborting ──all refuse──► aborted
//! ```
//! After a restart it asks all blocks of the stripe what they hold, and decides what its earlier lives left ([`recovery`]). While a
//! seal is under way it says nothing: the seal decides.
//!
//! Invariants:
//! - The leader acknowledges an update when all participants hold the same delta durably. It reports an abort to the client when all
//!   participants refuse the update durably, or a seal has decided.
//! - The lock of an update is released when its outcome is final, and only then the watermark passes it.

mod foreign;
mod recovery;

use crate::{
    block::{Action, Config, NotRun, Request, Told, Write, block_of},
    locks::{Holder, Locks},
    mutation::{Rule, dropped},
    participant::Participant,
    rule::agree,
    types::{Crcs, Dependence, Incarnation, Message, Outcome, Part, Peer, Record, Report, Stamp, UpdateId},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};
use weft_types::BlockId;

/// An update that this node leads.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Update {
    /// By stream.
    writes: Vec<Write>,
    /// The parts that are locked.
    parts: Vec<Part>,
    /// Their deltas, as far as they are computed.
    crcs: Crcs,
    phase: Phase,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Phase {
    Locking,
    Preparing { record: Arc<Record>, held: BTreeMap<BlockId, Crcs> },
    Aborting { record: Arc<Record>, refused: BTreeSet<BlockId> },
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum State {
    /// A seal is under way, or the stripe's blocks are not known yet.
    Waiting {
        is_restarted: bool,
    },
    /// After a restart: the reports so far.
    Recovering(BTreeMap<BlockId, Report>),
    Active,
}

/// The state machine of a leader.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Leader {
    config: Config,
    incarnation: Incarnation,
    state: State,
    locks: Locks,
    updates: BTreeMap<UpdateId, Update>,
    /// Requests of other leaders for locks that were withdrawn, by stream, life and number there: late copies of them count no more. Those
    /// below the stream's watermark need not be kept.
    withdrawn: BTreeSet<(u8, Incarnation, u64)>,
    actions: Vec<Action>,
}

impl Leader {
    /// For a block that is opened. Its numbers go on above those in use.
    pub(crate) fn new(config: Config, participant: &Participant) -> Self {
        let incarnation = Incarnation { generation: config.me.generation, opened: participant.opened, starts: 0 };
        let (mut locks, updates, withdrawn) = (Locks::default(), BTreeMap::new(), BTreeSet::new());
        locks.skip_to(participant.watermark(config.me.index));
        Self { config, incarnation, state: State::Active, locks, updates, withdrawn, actions: Vec::new() }
    }

    /// What the shell must do next.
    pub(crate) fn take_actions(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.actions)
    }

    /// Its life.
    pub(crate) fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    fn stream(&self) -> u8 {
        self.config.me.index
    }

    /// What is said with each message.
    pub(crate) fn stamp(&self, participant: &Participant) -> Stamp {
        let watermark = self.locks.watermark();
        Stamp { stream: self.stream(), incarnation: self.incarnation, term: participant.term, watermark }
    }

    /// The highest number that it gave.
    pub(crate) fn given(&self) -> u64 {
        self.locks.last()
    }

    /// Whether it decides: no seal is under way, and it knows what its earlier lives left.
    pub(crate) fn is_active(&self) -> bool {
        self.state == State::Active
    }

    /// Whether it decides, and nothing is left to decide.
    #[cfg(test)]
    pub(crate) fn is_idle(&self) -> bool {
        self.is_active() && self.has_no_updates()
    }

    /// Whether it leads no update, and none holds or awaits a lock here.
    pub(crate) fn has_no_updates(&self) -> bool {
        self.updates.is_empty() && self.locks.holders().next().is_none()
    }

    /// Whether the answer to [`Action::Delta`] is still wanted.
    pub fn needs_delta(&self, id: UpdateId, number: u64, participant: &Participant) -> bool {
        self.is_active() && self.locks.number(id) == Some(number) && !participant.is_undecided(id)
    }

    /// Whether the outcome of an update depends on this node's next steps.
    pub(crate) fn is_pending(&self, id: UpdateId) -> bool {
        self.is_active() && self.updates.contains_key(&id)
    }

    /// Whether this life gave a record the lock of this block.
    pub(crate) fn has_locked(&self, record: &Record) -> bool {
        let is_given = |part: Part| part.incarnation == self.incarnation && self.locks.number(record.id) == Some(part.number);
        self.is_active() && record.part(self.stream()).is_some_and(is_given)
    }

    fn send(&mut self, to: BlockId, message: Message) {
        self.actions.push(Action::Send { to: Peer::Block(to), message });
    }

    fn tell(&mut self, id: UpdateId, told: Told) {
        self.actions.push(Action::Tell { id, told });
    }

    /// A client's request, perhaps a repeated one.
    pub(crate) fn request(&mut self, request: Request, participant: &Participant, now_ms: u64) {
        let Request { id, term, mut writes } = request;
        if self.updates.contains_key(&id) {
            return;
        }
        // What its earlier lives left may still be decided: nothing is known for certain before. Without its content, the block has no deltas.
        if !self.is_active() || participant.is_joining() {
            return self.tell(id, Told::NotRun(NotRun::Retry));
        }
        if let Some(outcome) = participant.outcome(id).filter(|_| !dropped(Rule::RepeatedId)) {
            return self.tell(id, outcome.into());
        }
        if participant.is_expired(id, now_ms) {
            let told = if participant.are_floors_durable() { Told::Expired } else { Told::NotRun(NotRun::Retry) };
            return self.tell(id, told);
        }
        writes.sort_unstable();
        let is_led_here = id.lead == self.stream() && writes.first().is_some_and(|write| write.stream == self.stream());
        let is_distinct = writes.windows(2).all(|pair| pair[0].stream != pair[1].stream);
        let is_wrong = |write: &Write| write.span.is_empty() || self.config.dependence.is_parity(write.stream);
        if !is_led_here || !is_distinct || writes.iter().any(is_wrong) {
            return self.tell(id, Told::NotRun(NotRun::Invalid));
        }
        // A lost block's range must be rebuilt first. No number is used up: the client may ask often.
        let is_lost = |write: &Write| block_of(&participant.members, write.stream).is_none();
        if term != participant.term || writes.iter().any(is_lost) {
            return self.tell(id, Told::NotRun(NotRun::Retry));
        }
        let is_full = self.updates.len() >= self.config.updates_max || self.locks.lag() >= self.config.lag_max;
        if is_full || !participant.has_room_for(id.session) {
            return self.tell(id, Told::NotRun(NotRun::Busy));
        }
        let update = Update { writes: writes.clone(), parts: Vec::new(), crcs: Crcs::new(), phase: Phase::Locking };
        self.updates.insert(id, update);
        let (lead, incarnation) = (self.stream(), self.incarnation);
        let holder = Holder { id, lead, incarnation, lead_number: 0, span: writes[0].span };
        if !self.locks.request(holder, self.config.waiting_max) {
            return self.drop_unprepared(id, NotRun::Busy, participant);
        }
        self.go_on(participant);
    }

    /// Gives the locks that have become free. Only then the content of a range is known, and the delta can be computed.
    pub(crate) fn go_on(&mut self, participant: &Participant) {
        for (holder, number) in self.locks.give() {
            let Holder { id, lead_number, span, .. } = holder;
            self.actions.push(Action::Delta { id, number, lead_number, span });
            if holder.lead == self.stream() {
                let part = Part { stream: self.stream(), number, incarnation: self.incarnation, span };
                self.locked(id, part, participant);
            }
        }
    }

    /// The delta of an update's part in this stream is computed.
    pub(crate) fn delta(&mut self, id: UpdateId, number: u64, crc: u32, participant: &Participant) {
        if !self.needs_delta(id, number, participant) {
            return;
        }
        let stream = self.stream();
        let Some(holder) = self.locks.holders().find(|holder| holder.id == id) else { return };
        if holder.lead != stream {
            let part = Part { stream, number, incarnation: self.incarnation, span: holder.span };
            let Holder { incarnation, lead_number: number, .. } = holder;
            if let Some(leader) = block_of(&participant.members, holder.lead) {
                self.send(leader, Message::Locked { id, incarnation, number, part, crc });
            }
        } else if let Some(update) = self.updates.get_mut(&id).filter(|update| update.phase == Phase::Locking) {
            update.crcs.insert(stream, crc);
            self.prepare_if_complete(id, participant);
        }
    }

    /// Whether this node holds a lock for an update, or waits for one: its new bytes or deltas may be asked for. `lead_number` as in
    /// [`Action::Delta`].
    pub fn is_concerned(&self, id: UpdateId, lead_number: u64) -> bool {
        self.locks.holders().any(|holder| (holder.id, holder.lead_number) == (id, lead_number))
    }

    /// Whether an update still waits for locks of other nodes under this number.
    fn is_locking(&self, id: UpdateId, number: u64) -> bool {
        let is_this = |update: &Update| update.parts.first().is_some_and(|part| part.number == number);
        self.updates.get(&id).is_some_and(|update| update.phase == Phase::Locking && is_this(update))
    }

    /// Whether an answer to [`Message::Lock`] is the one that an update waits for.
    pub fn waits_for(&self, id: UpdateId, number: u64, stream: u8) -> bool {
        let is_next = |update: &Update| update.writes.get(update.parts.len()).is_some_and(|write| write.stream == stream);
        self.is_locking(id, number) && self.updates.get(&id).is_some_and(is_next)
    }

    /// Another node has locked its range and computed its delta.
    pub(crate) fn locked_there(&mut self, id: UpdateId, number: u64, (part, crc): (Part, u32), participant: &Participant) {
        if self.waits_for(id, number, part.stream)
            && let Some(update) = self.updates.get_mut(&id)
        {
            update.crcs.insert(part.stream, crc);
            self.locked(id, part, participant);
        }
    }

    /// An update has got its next lock.
    fn locked(&mut self, id: UpdateId, part: Part, participant: &Participant) {
        let Some(update) = self.updates.get_mut(&id).filter(|update| update.phase == Phase::Locking) else { return };
        update.parts.push(part);
        if update.parts.len() < update.writes.len() {
            return self.lock_next(id, participant);
        }
        self.prepare_if_complete(id, participant);
    }

    /// An update is prepared when all its ranges are locked and all its deltas computed.
    fn prepare_if_complete(&mut self, id: UpdateId, participant: &Participant) {
        let Some(update) = self.updates.get_mut(&id) else { return };
        if update.parts.len() < update.writes.len() || update.crcs.len() < update.writes.len() {
            return;
        }
        let record = Arc::new(Record {
            id,
            term: participant.term,
            participants: concerned(&participant.members, &update.parts, &self.config.dependence),
            parts: update.parts.clone(),
        });
        update.phase = Phase::Preparing { record: record.clone(), held: BTreeMap::new() };
        self.send_prepares(&record, participant);
    }

    fn lock_next(&mut self, id: UpdateId, participant: &Participant) {
        let Some(update) = self.updates.get(&id) else { return };
        let Some(write) = update.writes.get(update.parts.len()).copied() else { return };
        let Some(number) = update.parts.first().map(|part| part.number) else { return };
        if let Some(node) = block_of(&participant.members, write.stream) {
            let stamp = self.stamp(participant);
            self.send(node, Message::Lock { stamp, id, number, span: write.span });
        }
    }

    fn send_prepares(&mut self, record: &Arc<Record>, participant: &Participant) {
        let Some(update) = self.updates.get(&record.id) else { return };
        let Phase::Preparing { held, .. } = &update.phase else { return };
        let missing: Vec<BlockId> = record.participants.iter().filter(|block| !held.contains_key(block)).copied().collect();
        let all = update.crcs.clone();
        let stamp = self.stamp(participant);
        for block in missing {
            let is_received = |(stream, _): &(&u8, &u32)| self.config.dependence.of(block.index, **stream);
            let crcs = all.iter().filter(is_received).map(|(stream, crc)| (*stream, *crc)).collect();
            self.send(block, Message::Prepare { stamp, record: record.clone(), crcs });
        }
    }

    /// A participant holds a record durably.
    pub(crate) fn held(&mut self, from: BlockId, id: UpdateId, crcs: Crcs, participant: &Participant) {
        let Some(Update { phase: Phase::Preparing { record, held }, .. }) = self.updates.get_mut(&id) else { return };
        if !record.participants.contains(&from) {
            return;
        }
        held.insert(from, crcs);
        let answers = if dropped(Rule::AllAnswer) { held.len() + 1 } else { held.len() };
        if answers < record.participants.len() {
            return;
        }
        let (record, is_equal) = (record.clone(), agree(held.values()));
        if is_equal { self.committed(&record, participant) } else { self.abort(record, participant) }
    }

    /// An update is committed. The leader reports that to the client and to the nodes of other data blocks, which hold locks for it. Parity
    /// nodes learn it from the watermark.
    fn committed(&mut self, record: &Arc<Record>, participant: &Participant) {
        self.updates.remove(&record.id);
        self.locks.release(record.id);
        self.tell(record.id, Told::Committed);
        let stamp = self.stamp(participant);
        let is_data = |block: &&BlockId| !self.config.dependence.is_parity(block.index);
        for block in record.participants.iter().filter(is_data).copied().collect::<Vec<_>>() {
            self.send(block, Message::Commit { stamp, record: record.clone() });
        }
        self.go_on(participant);
    }

    /// A participant refuses a record durably.
    pub(crate) fn refused(&mut self, from: BlockId, id: UpdateId, participant: &Participant) {
        match self.updates.get_mut(&id).map(|update| &mut update.phase) {
            Some(Phase::Preparing { record, .. }) => {
                let record = record.clone();
                self.abort(record, participant);
                self.refused(from, id, participant);
            }
            Some(Phase::Aborting { record, refused }) if record.participants.contains(&from) => {
                refused.insert(from);
                if refused.len() == record.participants.len() {
                    self.aborted(id, participant);
                }
            }
            _ => {}
        }
    }

    /// From now on, this leader can only abort the update. It reports the abort to the client later: a seal may already have heard from a
    /// participant that holds the update.
    fn abort(&mut self, record: Arc<Record>, participant: &Participant) {
        let id = record.id;
        let Some(update) = self.updates.get_mut(&id) else { return };
        update.phase = Phase::Aborting { record: record.clone(), refused: BTreeSet::new() };
        if dropped(Rule::AllRefuse) {
            self.tell(id, Told::Aborted);
        }
        if dropped(Rule::WatermarkAfterRefusals) {
            self.locks.release(id);
        }
        self.send_refusals(&record, participant);
    }

    fn send_refusals(&mut self, record: &Arc<Record>, participant: &Participant) {
        let Some(Update { phase: Phase::Aborting { refused, .. }, .. }) = self.updates.get(&record.id) else { return };
        let missing: Vec<BlockId> = record.participants.iter().filter(|block| !refused.contains(block)).copied().collect();
        let stamp = self.stamp(participant);
        for block in missing {
            self.send(block, Message::Refuse { stamp, record: record.clone() });
        }
    }

    fn aborted(&mut self, id: UpdateId, participant: &Participant) {
        self.updates.remove(&id);
        self.locks.release(id);
        self.tell(id, Told::Aborted);
        self.go_on(participant);
    }

    /// An update takes too long, or its client has gone.
    pub(crate) fn give_up(&mut self, id: UpdateId, participant: &Participant) {
        if !self.is_active() {
            return;
        }
        match self.updates.get(&id).map(|update| &update.phase) {
            Some(Phase::Locking) => self.drop_unprepared(id, NotRun::Retry, participant),
            Some(Phase::Preparing { record, .. }) => self.abort(record.clone(), participant),
            Some(Phase::Aborting { .. }) | None => {}
        }
    }

    /// Drops an update of which no participant knows.
    fn drop_unprepared(&mut self, id: UpdateId, why: NotRun, participant: &Participant) {
        let Some(update) = self.updates.remove(&id) else { return };
        self.locks.release(id);
        let number = update.parts.first().map_or(0, |part| part.number);
        let stamp = self.stamp(participant);
        for write in update.writes.iter().skip(1).take(update.parts.len()) {
            if let Some(node) = block_of(&participant.members, write.stream) {
                self.send(node, Message::Unlock { stamp, id, number });
            }
        }
        self.tell(id, Told::NotRun(why));
        self.go_on(participant);
    }

    /// A node waits for its lock of an update that it does not hold.
    pub(crate) fn asked_lock(&mut self, from: BlockId, id: UpdateId, number: u64, participant: &Participant) {
        let is_needed = |update: &Update| update.parts.first().is_some_and(|part| part.number == number);
        if self.is_active() && !self.updates.get(&id).is_some_and(is_needed) {
            let stamp = self.stamp(participant);
            self.send(from, Message::Unlock { stamp, id, number });
        }
    }

    /// The node of another stream is busy.
    pub(crate) fn busy(&mut self, id: UpdateId, number: u64, participant: &Participant) {
        if self.is_locking(id, number) {
            self.drop_unprepared(id, NotRun::Busy, participant);
        }
    }

    /// A participant asks what became of a record.
    pub(crate) fn asked(&mut self, from: BlockId, record: Arc<Record>, participant: &Participant) {
        if !self.is_active() || record.term != participant.term {
            return;
        }
        let stamp = self.stamp(participant);
        if record.lead().stream != self.stream() {
            return self.send(from, Message::Watermark { stamp });
        }
        let is_preparing = |update: &Update| !matches!(update.phase, Phase::Aborting { .. });
        match participant.outcome(record.id) {
            _ if self.updates.get(&record.id).is_some_and(is_preparing) => {}
            Some(Outcome::Committed) => self.send(from, Message::Commit { stamp, record }),
            // All of this life are known, and of earlier ones all that anybody held: this one was given up before it was prepared.
            Some(Outcome::Aborted) | None => self.send(from, Message::Refuse { stamp, record }),
        }
    }

    /// Sends again what was not answered.
    pub(crate) fn remind(&mut self, participant: &Participant) {
        if let State::Recovering(reports) = &self.state {
            let missing: Vec<BlockId> =
                participant.members.iter().filter(|block| !reports.contains_key(block)).copied().collect();
            return self.send_queries(missing, participant);
        }
        if !self.is_active() {
            return;
        }
        for (id, update) in self.updates.clone() {
            match update.phase {
                Phase::Locking if !update.parts.is_empty() => self.lock_next(id, participant),
                Phase::Locking => {}
                Phase::Preparing { record, .. } => self.send_prepares(&record, participant),
                Phase::Aborting { record, .. } => self.send_refusals(&record, participant),
            }
        }
        let foreign = |holder: &Holder| holder.lead != self.stream() && !participant.is_undecided(holder.id);
        let foreign: Vec<Holder> = self.locks.holders().filter(foreign).collect();
        for holder in foreign {
            if let Some(leader) = block_of(&participant.members, holder.lead) {
                let Holder { id, incarnation, lead_number: number, .. } = holder;
                self.send(leader, Message::AskLock { id, incarnation, number });
            }
        }
    }
}

/// The blocks that depend on these parts: the data blocks with their copies, and parities.
fn concerned(members: &[BlockId], parts: &[Part], dependence: &Dependence) -> Vec<BlockId> {
    let is_concerned = |block: &&BlockId| parts.iter().any(|part| dependence.of(block.index, part.stream));
    members.iter().filter(is_concerned).copied().collect()
}

#[cfg(test)]
mod tests;
