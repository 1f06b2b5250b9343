//! The updates of one block at its node: a participant, and a leader if it is a data block.
//!
//! Events go in, actions come out, as in `weft-control`. The shell carries out the actions in order. What one part of the node sends to the
//! other is delivered at once, so no crash comes in between.
//!
//! What the shell must guarantee: the journal keeps the order of its entries, and after a crash it has lost at most entries that were
//! not reported as durable, from its end. Messages may be lost, repeated and reordered. A journal that has lost more makes its block lost.

mod reads;

use crate::{
    leader::Leader,
    mutation::{Rule, dropped},
    participant::{NotServed, Participant, ReadAt},
    types::{Batch, Dependence, Entry, Message, Outcome, Peer, Sealed, Stamp, UpdateId, Vector},
};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use weft_types::{BlockId, Span};

/// A block and the bounds of what its node keeps for it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Config {
    /// The block.
    pub me: BlockId,
    /// On which data blocks the stripe's blocks depend.
    pub dependence: Dependence,
    /// The most untrimmed records; further ones are refused. Refusals are kept as long, and bounded by the leaders' `lag_max`.
    pub records_max: usize,
    /// The most outcomes of trimmed records; the oldest expire early.
    pub outcomes_max: usize,
    /// The most updates that this node leads at a time.
    pub updates_max: usize,
    /// The most numbers above the watermark of this node's stream: one update that takes long does not let others fill journals.
    pub lag_max: u64,
    /// The most updates that wait for a range of this block.
    pub waiting_max: usize,
    /// The most reads that wait for a confirmation of the term.
    pub reads_max: usize,
    /// The most sessions of which it keeps floors; the requests of further ones must wait until others have ended.
    pub sessions_max: usize,
    /// The most positions of the updates that are applied together, with a page for each; one update at least.
    pub batch_positions_max: u64,
}

/// One range that an update overwrites.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Write {
    /// The data block.
    pub stream: u8,
    /// The range.
    pub span: Span,
}

/// A client's request to update ranges of a stripe.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Request {
    /// The update's id.
    pub id: UpdateId,
    /// The term of the client's lease.
    pub term: u64,
    /// One range of each block at most.
    pub writes: Vec<Write>,
}

/// Why a request had no effect. It may be repeated under the same id. What an earlier request under this id did is not known: only another answer
/// tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum NotRun {
    /// The node cannot accept it now, or the client's term is not the current one.
    Retry,
    /// Too many updates run or wait.
    Busy,
    /// The request is invalid, or meant for the node of another block: it never runs here.
    Invalid,
}

/// The outcome of an update, as its client receives it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Told {
    /// The update is durable.
    Committed,
    /// It has no effect and never will.
    Aborted,
    /// The outcome is not known any more; the update will not run (again).
    Expired,
    /// This request had no effect.
    NotRun(NotRun),
}

impl From<Outcome> for Told {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Committed => Self::Committed,
            Outcome::Aborted => Self::Aborted,
        }
    }
}

/// An event.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Event {
    /// A message has arrived.
    Received {
        /// Its sender.
        from: Peer,
        /// The message.
        message: Message,
    },
    /// A [`Message::Prepare`] has arrived, and there is no room for its deltas: it is refused unless it is known.
    NoRoom {
        /// Its sender.
        from: Peer,
        /// The message.
        message: Message,
    },
    /// Answers [`Action::Delta`].
    Delta {
        /// The update.
        id: UpdateId,
        /// Its number in this block's stream.
        number: u64,
        /// The CRC32C of the delta.
        crc: u32,
    },
    /// This many further entries of the journal are durable.
    Durable {
        /// Their number.
        entries: u64,
    },
    /// A client's request.
    Request(Request),
    /// An update has taken too long.
    GiveUp(UpdateId),
    /// From time to time: asks and sends again what was not answered.
    Remind,
    /// From time to time: applies what is committed.
    Apply,
    /// Answers [`Action::Write`]: payload and sidecar are synced.
    Written,
    /// From time to time: forgets old outcomes.
    Forget,
    /// The content of a block that joins is rebuilt at this vector, and synced. Ignored while the vector is not possible, e.g. after a
    /// restart, until the node has asked for outcomes again: then [`Participant::is_joining`] still says so. [`Participant::rebuild_at`]
    /// names a vector that is possible.
    Rebuilt(Vector),
    /// A read of a data block's range at its own node.
    Read {
        /// Its number, not used before since the start.
        read: u64,
        /// The range.
        span: Span,
        /// Whether the node's lease at the coordinator lasts.
        has_lease: bool,
    },
    /// Nobody waits for a read any more.
    Abandon {
        /// Its number.
        read: u64,
    },
}

/// An action.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Action {
    /// Append to the journal; [`Event::Durable`] says when it is synced.
    Journal(Entry),
    /// Send a message.
    Send {
        /// Its receiver.
        to: Peer,
        /// The message.
        message: Message,
    },
    /// Answer a client.
    Tell {
        /// The update.
        id: UpdateId,
        /// The answer.
        told: Told,
    },
    /// Compute the delta of an update for this block's range: the new bytes, XOR what [`Block::read_locked`] says that the range contains. Nothing
    /// else changes the range before the update has ended. [`Event::Delta`] answers.
    Delta {
        /// The update.
        id: UpdateId,
        /// Its number in this block's stream.
        number: u64,
        /// Its number at its leader; 0 if this node leads it. It tells apart the requests of one id.
        lead_number: u64,
        /// The range.
        span: Span,
    },
    /// Copy the after-images of this batch to the pages, then write the sidecar; [`Event::Written`] answers.
    Write(Batch),
    /// Answer a read.
    Serve {
        /// Its number.
        read: u64,
        /// What to serve, or why not.
        result: Result<ReadAt, NotServed>,
    },
}

/// The state machine of a block's updates.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Block {
    participant: Participant,
    leader: Option<Leader>,
    /// Reads that wait, and the blocks that have not confirmed the term.
    reads: BTreeMap<u64, (Span, BTreeSet<BlockId>)>,
}

impl Block {
    /// For a block that is opened for updates, and contains those up to the vector of the seal. Its journal must begin with the returned
    /// entries. The last one says that the block is open: without it, the others mean nothing.
    pub fn open(config: Config, sealed: &Sealed, now_ms: u64) -> (Self, Vec<Entry>) {
        let is_contained = |stream: u8| config.dependence.of(config.me.index, stream);
        let applied = sealed.vector.iter().map(|(stream, number)| (*stream, *number));
        let applied = applied.filter(|(stream, number)| *number > 0 && is_contained(*stream)).collect();
        let entries = Participant::opening(sealed, now_ms);
        let participant = Participant::restart(config.clone(), &entries, applied);
        let leader = is_data(&config).then(|| Leader::new(config, &participant));
        (Self { participant, leader, reads: BTreeMap::new() }, entries)
    }

    /// For a block that was never updated.
    #[cfg(test)]
    pub(crate) fn new(config: Config, term: u64, members: Vec<BlockId>) -> (Self, Entry) {
        let sealed = Sealed { term, members: members.clone(), ..Sealed::default() };
        (Self::open(config, &sealed, 0).0, Entry::Opened { term, members })
    }

    /// For a block that is rebuilt at a new home: a new generation. A seal admits it to the stripe. Its journal must begin with the returned entry.
    pub fn join(config: Config) -> (Self, Entry) {
        let first = Entry::Joining(Vector::new());
        let participant = Participant::restart(config.clone(), [&first], Vector::new());
        let leader = is_data(&config).then(|| Leader::restart(config, &participant));
        (Self { participant, leader, reads: BTreeMap::new() }, first)
    }

    /// After a restart: from the entries of the journal, in order, and the counts of the block's sidecar.
    pub fn restart<'a>(
        config: Config,
        entries: impl IntoIterator<Item = &'a Entry>,
        applied: Vector,
        now_ms: u64,
    ) -> (Self, Vec<Action>) {
        let participant = Participant::restart(config.clone(), entries, applied);
        let leader = is_data(&config).then(|| Leader::restart(config, &participant));
        let mut it = Self { participant, leader, reads: BTreeMap::new() };
        let actions = it.settle(VecDeque::new(), now_ms);
        (it, actions)
    }

    /// The block's state as a participant.
    pub fn participant(&self) -> &Participant {
        &self.participant
    }

    /// Its state as the leader of a data block's updates.
    pub fn leader(&self) -> Option<&Leader> {
        self.leader.as_ref()
    }

    /// Whether all updates of which this block knows are decided, applied and forgotten, and their end is durable. Then nothing changes the
    /// block until the next update begins.
    pub fn is_idle(&self) -> bool {
        self.participant.is_idle() && self.leader.as_ref().is_none_or(Leader::has_no_updates)
    }

    /// Whether any read waits for a confirmation of the term.
    #[cfg(test)]
    pub(crate) fn has_reads(&self) -> bool {
        !self.reads.is_empty()
    }

    /// Whether a restart needs an entry of the journal. Only when all entries are durable, those that it does not need may be removed, all of
    /// them or the oldest ones first: an entry that says how a record ended must not go before the record's own entry.
    pub fn needs(&self, entry: &Entry) -> bool {
        self.participant.needs(entry)
    }

    /// What a range contains that this node has locked for an update: all updates before it are known.
    pub fn read_locked(&self, span: Span) -> Result<ReadAt, NotServed> {
        self.participant.read_last(span, |_| false)
    }

    /// Handles an event and returns the next actions. The time is the database's, and never falls, even across restarts: what is not remembered of
    /// a session that has ended could run again. An error below [`OUTCOMES_KEPT_MS`](crate::OUTCOMES_KEPT_MS) does no harm.
    pub fn on(&mut self, event: Event, now_ms: u64) -> Vec<Action> {
        self.settle(VecDeque::from([event]), now_ms)
    }

    /// Handles events, and what the parts of this node send to each other.
    fn settle(&mut self, mut events: VecDeque<Event>, now_ms: u64) -> Vec<Action> {
        let me = Peer::Block(self.participant.config.me);
        let mut actions = Vec::new();
        loop {
            if let Some(event) = events.pop_front() {
                self.step(event, now_ms);
            }
            if events.is_empty() {
                self.follow_up(now_ms);
            }
            let leaders = self.leader.as_mut().map(Leader::take_actions).unwrap_or_default();
            for action in self.participant.take_actions().into_iter().chain(leaders) {
                match action {
                    Action::Send { to, message } if to == me => events.push_back(Event::Received { from: me, message }),
                    action => actions.push(action),
                }
            }
            if events.is_empty() {
                return actions;
            }
        }
    }

    /// What follows from the current state: what the leader has decided is known here, and what is over is trimmed.
    fn follow_up(&mut self, now_ms: u64) {
        if let Some(leader) = &mut self.leader {
            leader.release_foreign(&self.participant);
            if leader.is_active() {
                self.participant.hear(&leader.stamp(&self.participant));
            }
        }
        self.participant.trim(now_ms);
    }

    fn step(&mut self, event: Event, now_ms: u64) {
        let participant = &mut self.participant;
        match event {
            Event::Received { from: Peer::Coordinator, message } => self.told_by_coordinator(message, now_ms),
            Event::Received { from: Peer::Block(from), message } => self.received(from, (message, true), now_ms),
            Event::NoRoom { from: Peer::Block(from), message } => self.received(from, (message, false), now_ms),
            Event::NoRoom { from: Peer::Coordinator, .. } => {}
            Event::Delta { id, number, crc } => {
                if let Some((leader, participant)) = self.leader_unless_fenced() {
                    leader.delta(id, number, crc, participant);
                }
            }
            Event::Durable { entries } => participant.durable(entries),
            Event::Apply => participant.apply(),
            Event::Written => participant.written(),
            Event::Forget => participant.forget(now_ms),
            Event::Rebuilt(vector) => {
                participant.rebuilt(&vector);
            }
            Event::Remind => {
                self.ask_to_confirm(..);
                let participant = &mut self.participant;
                participant.remind();
                if let Some(leader) = &mut self.leader {
                    leader.remind(participant);
                }
            }
            Event::Request(request) => match self.leader_unless_fenced() {
                Some((leader, participant)) => leader.request(request, participant, now_ms),
                None => self.participant.tell(request.id, Told::NotRun(NotRun::Retry)),
            },
            Event::GiveUp(id) => {
                if let Some(leader) = &mut self.leader {
                    leader.give_up(id, participant);
                }
            }
            Event::Read { read, span, has_lease } => self.read(read, span, has_lease),
            Event::Abandon { read } => drop(self.reads.remove(&read)),
        }
    }

    fn leader_unless_fenced(&mut self) -> Option<(&mut Leader, &mut Participant)> {
        let is_fenced = self.participant.is_fenced();
        self.leader.as_mut().filter(|_| !is_fenced).map(|leader| (leader, &mut self.participant))
    }

    fn told_by_coordinator(&mut self, message: Message, now_ms: u64) {
        match message {
            Message::Seal { term } => {
                self.participant.seal(term, self.leader.as_ref().map_or(0, Leader::given));
                let is_sealing = !self.participant.is_open() && !dropped(Rule::SealDecides);
                if let Some(leader) = self.leader.as_mut().filter(|_| is_sealing) {
                    leader.wait_for_seal();
                }
            }
            Message::Sealed(sealed) => self.sealed(&sealed, now_ms),
            _ => {}
        }
        if !self.participant.is_open() {
            self.end_reads();
        }
    }

    fn sealed(&mut self, sealed: &Sealed, now_ms: u64) {
        let is_new = self.participant.sealed(sealed, now_ms);
        let Some(leader) = &mut self.leader else { return };
        if is_new {
            let stream = self.participant.config.me.index;
            leader.opened(&self.participant, sealed.vector.get(&stream).copied().unwrap_or(0));
        } else if self.participant.is_fenced() {
            leader.fenced();
        }
    }

    fn received(&mut self, from: BlockId, (message, has_room): (Message, bool), now_ms: u64) {
        // A node speaks of no other stream than that of its own data block.
        let leads = |stamp: &Stamp| block_of(&self.participant.members, stamp.stream) == Some(from);
        if message.stamp().is_some_and(|stamp| !leads(stamp)) || !message.is_possible(self.participant.term) {
            return;
        }
        match message {
            message @ Message::Prepare { .. } => self.prepare(message, has_room),
            Message::Refuse { stamp, record } => {
                self.participant.hear(&stamp);
                self.participant.refuse(&stamp, record);
            }
            Message::Commit { stamp, record } => {
                self.participant.hear(&stamp);
                self.participant.commit(&stamp, &record);
            }
            Message::Watermark { stamp } => self.participant.hear(&stamp),
            Message::Query { stamp } => self.participant.query(Peer::Block(from), &stamp),
            Message::Confirm { incarnation, read } => {
                let term = self.participant.term;
                self.participant.send(Peer::Block(from), Message::Confirmed { incarnation, read, term });
            }
            Message::Confirmed { incarnation, read, term } => {
                if self.leader.as_ref().is_some_and(|leader| leader.incarnation() == incarnation) || dropped(Rule::ConfirmLife) {
                    self.confirmed(from, read, term);
                }
            }
            message => self.for_leader(from, message, now_ms),
        }
    }

    fn prepare(&mut self, message: Message, has_room: bool) {
        let Message::Prepare { stamp, record, crcs } = message else { return };
        self.participant.hear(&stamp);
        let me = self.participant.config.me;
        let is_mine =
            |leader: &&Leader| record.part(me.index).is_some() && record.lead().stream != me.index && leader.is_active();
        let is_locked = match self.leader.as_ref() {
            Some(leader) if is_mine(&leader) => leader.has_locked(&record),
            // A node that is recovering has given no lock in this life.
            Some(leader) => leader.is_active() || record.lead().stream == me.index,
            None => true,
        };
        self.participant.prepare(&stamp, record, crcs, is_locked, has_room);
    }

    /// Messages to the leader. Answers to an earlier life of it do not count.
    fn for_leader(&mut self, from: BlockId, message: Message, now_ms: u64) {
        let Some((leader, participant)) = self.leader_unless_fenced() else { return };
        let incarnation = leader.incarnation();
        if let Message::Lock { stamp, .. } | Message::Unlock { stamp, .. } = &message {
            participant.hear(stamp);
        }
        match message {
            Message::Held { id, incarnation: of, crcs } if of == incarnation && leader.is_active() => {
                leader.held(from, id, crcs, participant);
            }
            Message::Refused { id, incarnation: of } if of == incarnation && leader.is_active() => {
                leader.refused(from, id, participant);
            }
            Message::Reported { term, incarnation: of, report } if of == incarnation => {
                leader.reported(from, term, report, participant, now_ms);
            }
            Message::Locked { id, incarnation: of, number, part, crc } if of == incarnation && leader.is_active() => {
                leader.locked_there(id, number, (part, crc), participant);
            }
            Message::Busy { id, incarnation: of, number } if of == incarnation && leader.is_active() => {
                leader.busy(id, number, participant);
            }
            Message::Ask { record } => leader.asked(from, record, participant),
            Message::Lock { stamp, id, number, span } => leader.lock(from, &stamp, (id, number), span, participant),
            Message::Unlock { stamp, id, number } => leader.unlock(&stamp, id, number, participant),
            // Locks for an earlier life were released when this one was announced, and its numbers may be given again.
            Message::AskLock { id, incarnation: of, number } if of == incarnation => {
                leader.asked_lock(from, id, number, participant);
            }
            _ => {}
        }
    }
}

/// Whether the block's node orders updates: of several copies of a data block, the first.
fn is_data(config: &Config) -> bool {
    config.me.index < config.dependence.k && config.me.copy == 0
}

/// The block whose node orders a stream.
pub(crate) fn block_of(members: &[BlockId], stream: u8) -> Option<BlockId> {
    members.iter().find(|block| block.index == stream && block.copy == 0).copied()
}
