//! The terms of the protocol: ids, records, journal entries, messages.

use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};
use weft_types::{BlockId, Span};

/// On which data blocks the content of each block of a stripe depends, by the stripe's code.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Dependence {
    /// The data blocks of the code.
    pub k: u8,
    /// By index, the parities that depend on some of the data blocks only. The others depend on all of them.
    pub partial: Arc<BTreeMap<u8, BTreeSet<u8>>>,
}

impl Dependence {
    /// For a code whose parities depend on all `k` data blocks.
    pub fn full(k: u8) -> Self {
        Self { k, partial: Arc::default() }
    }

    /// Whether the content of block `index` changes with data block `stream`.
    pub fn of(&self, index: u8, stream: u8) -> bool {
        match self.partial.get(&index) {
            _ if index < self.k => index == stream,
            Some(streams) => streams.contains(&stream),
            None => true,
        }
    }

    /// Whether a block is a parity.
    pub fn is_parity(&self, index: u8) -> bool {
        index >= self.k
    }
}

/// A client's session. The lease under which it writes ends at a known time; from then on its requests are not accepted, so
/// nothing about it has to be remembered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Session {
    /// Drawn by the coordinator, never reused.
    pub number: u64,
    /// When its lease ends, in the database's time.
    pub ends_at_ms: u64,
}

/// The id of an update. A session counts its updates. A client that errs and uses a counter for different blocks has requested two updates: their
/// leaders do not know of each other, and participants must not take one for the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct UpdateId {
    /// The session.
    pub session: Session,
    /// Counts the session's updates.
    pub counter: u64,
    /// The lowest data block that it changes: that block's node leads it.
    pub lead: u8,
}

/// How an update ended, for all blocks and for good.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Outcome {
    /// Every block contains it, or will.
    Committed,
    /// No block contains it, or ever will.
    Aborted,
}

/// A life of the node that orders a data block's updates. A new generation of the block has lived before in no one's memory, so
/// generations compare first. A block that is opened again has forgotten its earlier lives, so the term comes before the count: a late
/// answer to a life of an earlier opening counts for none of a later one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub struct Incarnation {
    /// The block's generation.
    pub generation: u32,
    /// The highest term whose outcomes the node knew when this life began.
    pub opened: u64,
    /// Counts the starts of its node under that term.
    pub starts: u32,
}

/// The part of an update that changes one data block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Part {
    /// The data block's index: its updates are one stream.
    pub stream: u8,
    /// The update's number in the stream, from 1, given together with the lock on its range.
    pub number: u64,
    /// The life of the stream's node in which it gave lock and number.
    pub incarnation: Incarnation,
    /// The range.
    pub span: Span,
}

/// An update as its participants journal it, without payload.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Record {
    /// Its id.
    pub id: UpdateId,
    /// The term under which it was prepared.
    pub term: u64,
    /// Every block that must hold it, in order.
    pub participants: Vec<BlockId>,
    /// By stream; not empty. The first one's node leads the update.
    pub parts: Vec<Part>,
}

impl Record {
    /// The part of the leader's block.
    pub fn lead(&self) -> Part {
        self.parts[0]
    }

    /// Its part in a stream.
    pub fn part(&self, stream: u8) -> Option<Part> {
        self.parts.iter().find(|part| part.stream == stream).copied()
    }

    /// The block whose node leads the update.
    pub fn leader(&self) -> Option<BlockId> {
        self.participants.iter().find(|block| block.index == self.lead().stream && block.copy == 0).copied()
    }

    /// The parts that change the content of block `index`.
    pub fn parts_of<'a>(&'a self, index: u8, dependence: &'a Dependence) -> impl Iterator<Item = Part> + 'a {
        self.parts.iter().copied().filter(move |part| dependence.of(index, part.stream))
    }
}

/// The CRC32C of each delta that a block received, by stream.
pub type Crcs = BTreeMap<u8, u32>;

/// A number for each stream: the updates up to it. A stream that is not named has 0.
pub type Vector = BTreeMap<u8, u64>;

/// The last version of a range of a data block at its own node. Two reads of the range that have found equal versions have found the same updates
/// in it, and none was added or removed between them: numbers are not given again, what is committed stays, and what is trimmed was known before.
/// Unequal versions say nothing: a record may have been trimmed.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub struct Version {
    /// The block's term.
    pub term: u64,
    /// Updates up to this number may be trimmed; all of them are decided.
    pub trimmed: u64,
    /// The numbers of the updates in the range that are committed and not trimmed, ascending.
    pub numbers: Vec<u64>,
}

/// What a block says about a record.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Claim {
    /// It holds the record durably, with these deltas, and does not know the outcome.
    Held(Crcs),
    /// It knows that the update is committed.
    Committed,
    /// It does not hold the record and never will.
    Refused,
}

/// What a block reports to a restarted leader or to a seal. All of it is durable.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub struct Report {
    /// The records that it has not trimmed.
    pub records: BTreeMap<UpdateId, (Arc<Record>, Claim)>,
    /// For each stream, the number up to which its leader has said that all are decided.
    pub watermarks: Vector,
    /// For each stream, the highest number that it has seen.
    pub numbers: Vector,
    /// The outcomes of trimmed records that it still remembers.
    pub outcomes: BTreeMap<UpdateId, Outcome>,
    /// For each session, the highest counter whose outcome it has forgotten.
    pub floors: BTreeMap<Session, u64>,
}

/// What each message of a leader carries: who speaks, and which updates are decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Stamp {
    /// The leader's stream.
    pub stream: u8,
    /// The leader's life.
    pub incarnation: Incarnation,
    /// The term of the leader's node.
    pub term: u64,
    /// All updates of the stream up to this number are decided. Those of them that are aborted are refused by every participant.
    pub watermark: u64,
}

/// What a seal has decided, as the metadata record it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub struct Sealed {
    /// The new term.
    pub term: u64,
    /// The stripe's blocks in it.
    pub members: Vec<BlockId>,
    /// The outcomes of all updates of lower terms that a member may not know.
    pub outcomes: BTreeMap<UpdateId, Outcome>,
    /// For each stream, the highest number in use. All up to it are decided.
    pub vector: Vector,
    /// For each session, the highest counter that a member has forgotten.
    pub floors: BTreeMap<Session, u64>,
}

/// A message between nodes.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Message {
    /// Leader to participant: hold this record.
    Prepare {
        /// Who speaks.
        stamp: Stamp,
        /// The record.
        record: Arc<Record>,
        /// The CRCs of the deltas as the participant received them.
        crcs: Crcs,
    },
    /// Leader to participant: never hold this record.
    Refuse {
        /// Who speaks.
        stamp: Stamp,
        /// The record.
        record: Arc<Record>,
    },
    /// Leader to participant: this record is committed.
    Commit {
        /// Who speaks.
        stamp: Stamp,
        /// The record.
        record: Arc<Record>,
    },
    /// A restarted leader to every block of the stripe: obey no earlier life of mine, and report.
    Query {
        /// Who speaks.
        stamp: Stamp,
    },
    /// Participant to leader: the record is durable here.
    Held {
        /// The update.
        id: UpdateId,
        /// The life of the leader that asked.
        incarnation: Incarnation,
        /// The CRCs of the deltas.
        crcs: Crcs,
    },
    /// Participant to leader: the refusal is durable here.
    Refused {
        /// The update.
        id: UpdateId,
        /// The life of the leader that asked.
        incarnation: Incarnation,
    },
    /// Answers [`Message::Query`].
    Reported {
        /// The term in which it reports.
        term: u64,
        /// The life of the leader that asked.
        incarnation: Incarnation,
        /// The report.
        report: Report,
    },
    /// To the leader: what became of this record? To the node of another of its streams: are all up to it decided?
    Ask {
        /// The record.
        record: Arc<Record>,
    },
    /// Leader to whoever asks: all up to the stamp's watermark are decided.
    Watermark {
        /// Who speaks.
        stamp: Stamp,
    },
    /// Leader to the node of another data block: lock a range for this update and number it.
    Lock {
        /// Who speaks.
        stamp: Stamp,
        /// The update.
        id: UpdateId,
        /// Its number at the leader. An update that was given up and requested again has another one.
        number: u64,
        /// The range.
        span: Span,
    },
    /// Answers [`Message::Lock`] once the range is locked and the delta computed.
    Locked {
        /// The update.
        id: UpdateId,
        /// The life of the leader that asked.
        incarnation: Incarnation,
        /// The update's number at the leader.
        number: u64,
        /// The part.
        part: Part,
        /// The CRC32C of its delta, which that node has computed.
        crc: u32,
    },
    /// Answers [`Message::Lock`] if too many updates wait.
    Busy {
        /// The update.
        id: UpdateId,
        /// The life of the leader that asked.
        incarnation: Incarnation,
        /// The update's number at the leader.
        number: u64,
    },
    /// Leader to the node of another data block: the update was given up before it was prepared.
    Unlock {
        /// Who speaks.
        stamp: Stamp,
        /// The update.
        id: UpdateId,
        /// Its number at the leader.
        number: u64,
    },
    /// The node of another data block to the leader: do you still need this lock?
    AskLock {
        /// The update.
        id: UpdateId,
        /// The life of the leader that asked for the lock.
        incarnation: Incarnation,
        /// The update's number at the leader.
        number: u64,
    },
    /// Coordinator to block: refuse lower terms, and report.
    Seal {
        /// The new term.
        term: u64,
    },
    /// Answers [`Message::Seal`].
    SealReported {
        /// The new term.
        term: u64,
        /// The report.
        report: Report,
    },
    /// Coordinator to block: what the seal decided.
    Sealed(Arc<Sealed>),
    /// Block to coordinator: it is durable here.
    SealKnown {
        /// The seal's term.
        term: u64,
    },
    /// Block to coordinator: what did the seal of this term decide?
    AskSeal {
        /// The term.
        term: u64,
    },
    /// The node of a data block to those that must take part in a seal: is this still the term?
    Confirm {
        /// The life of the node that asks.
        incarnation: Incarnation,
        /// The read that waits for it.
        read: u64,
    },
    /// Answers [`Message::Confirm`].
    Confirmed {
        /// The life of the node that asked.
        incarnation: Incarnation,
        /// The read that waits for it.
        read: u64,
        /// The term here.
        term: u64,
    },
}

impl Message {
    /// The stamp of a leader's message.
    pub fn stamp(&self) -> Option<&Stamp> {
        match self {
            Self::Prepare { stamp, .. }
            | Self::Refuse { stamp, .. }
            | Self::Commit { stamp, .. }
            | Self::Query { stamp }
            | Self::Watermark { stamp }
            | Self::Lock { stamp, .. }
            | Self::Unlock { stamp, .. } => Some(stamp),
            _ => None,
        }
    }
}

/// A party that sends or receives a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Peer {
    /// The node that holds a block.
    Block(BlockId),
    /// The coordinator.
    Coordinator,
}

/// An entry of a block's journal. A restart reads the entries in the order in which they were written.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Entry {
    /// The stripe's blocks under a term, whose seal's outcomes are known: what is still held under a lower one is committed. The first
    /// entry of a journal.
    Opened {
        /// The term.
        term: u64,
        /// The stripe's blocks.
        members: Vec<BlockId>,
    },
    /// Lower terms are refused.
    Term(u64),
    /// Earlier lives of a stream's leader are refused.
    Fence {
        /// The stream.
        stream: u8,
        /// The earliest life that is obeyed.
        incarnation: Incarnation,
    },
    /// A record, with its deltas.
    Held {
        /// The record.
        record: Arc<Record>,
        /// The CRCs of its deltas.
        crcs: Crcs,
    },
    /// A record that is never held.
    Refused(Arc<Record>),
    /// All updates of a stream up to a number are decided.
    Watermark {
        /// The stream.
        stream: u8,
        /// The term in which it was said.
        term: u64,
        /// The number.
        number: u64,
    },
    /// What pages contain after these updates. Until the sidecar names them, a restart copies the pages from here.
    Images(Batch),
    /// The outcomes of trimmed records; [`Known::MAX`] at most. The shell may replace several of these entries by one with the outcomes that
    /// [`Participant::remembers`](crate::Participant::remembers).
    Known(Vec<Known>),
    /// The outcomes of a session up to a counter are forgotten.
    Floor {
        /// The session.
        session: Session,
        /// The counter.
        counter: u64,
    },
    /// The block is not part of the stripe any more.
    Fenced,
    /// The block joins the stripe: it holds all updates above this vector, and what it contained up to it is not rebuilt yet. The first
    /// entry of such a block's journal, with an empty vector until a seal admits the block.
    Joining(Vector),
    /// What the block contained up to this vector is rebuilt, and synced.
    Rebuilt(Vector),
}

/// The outcome of a trimmed record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Known {
    /// The update.
    pub id: UpdateId,
    /// Its outcome.
    pub outcome: Outcome,
    /// When the record was trimmed.
    pub at_ms: u64,
}

impl Known {
    /// The most in one entry.
    pub const MAX: usize = 256;
}

/// Updates that are applied together.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Batch {
    /// What the block contains afterwards; the sidecar's counts.
    pub applied: Vector,
    /// Disjoint ranges, in order, and the deltas that are added there.
    pub merged: Vec<(Span, Vec<Delta>)>,
}

/// The delta of one update for one data block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Delta {
    /// The data block.
    pub stream: u8,
    /// The update's number in this stream.
    pub number: u64,
    /// The update.
    pub id: UpdateId,
}
