//! Blocks, records and messages for tests of single rules.

use crate::{
    Action, Block, Config, Crcs, Dependence, Entry, Event, Incarnation, Message, Part, Peer, Record, Session, Stamp, UpdateId,
    Vector,
};
use std::sync::Arc;
use weft_types::{BlockId, Span, StripeId};

/// Data blocks of all stripes here; block 2 and further ones are parities.
pub(crate) const K: u8 = 2;

pub(crate) fn block(index: u8) -> BlockId {
    BlockId { stripe: StripeId(1), index, copy: 0, generation: 1 }
}

/// Two data blocks and two parities.
pub(crate) fn blocks() -> Vec<BlockId> {
    (0..4).map(block).collect()
}

pub(crate) fn config(index: u8) -> Config {
    Config {
        me: block(index),
        dependence: Dependence::full(K),
        records_max: 6,
        outcomes_max: 8,
        updates_max: 3,
        lag_max: 6,
        waiting_max: 2,
        reads_max: 2,
        batch_positions_max: u64::MAX,
        sessions_max: 2,
    }
}

pub(crate) fn id(counter: u64) -> UpdateId {
    UpdateId { session: Session { number: 1, ends_at_ms: u64::MAX }, counter, lead: 0 }
}

/// The id of an update that block 1's node leads.
pub(crate) fn id_of_second(counter: u64) -> UpdateId {
    UpdateId { lead: 1, ..id(counter) }
}

/// The first life.
pub(crate) const FIRST: Incarnation = Incarnation { generation: 1, opened: 0, starts: 0 };
/// After a restart.
pub(crate) const SECOND: Incarnation = Incarnation { generation: 1, opened: 0, starts: 1 };

pub(crate) fn part(stream: u8, number: u64) -> Part {
    Part { stream, number, incarnation: FIRST, span: Span::new(0, 10) }
}

/// A record whose id counts like its number in the first stream.
pub(crate) fn record(term: u64, parts: Vec<Part>) -> Arc<Record> {
    let is_concerned = |at: &BlockId| at.index >= K || parts.iter().any(|part| part.stream == at.index);
    let participants = blocks().into_iter().filter(is_concerned).collect();
    Arc::new(Record { id: id(parts[0].number), term, participants, parts })
}

pub(crate) fn stamp(incarnation: Incarnation, term: u64, watermark: u64) -> Stamp {
    Stamp { stream: 0, incarnation, term, watermark }
}

pub(crate) fn crcs(crc: u32) -> Crcs {
    Crcs::from([(0, crc)])
}

/// A block with its journal, all of which is durable at once unless a test says otherwise.
pub(crate) struct Node {
    pub(crate) block: Block,
    pub(crate) journal: Vec<Entry>,
    pub(crate) applied: Vector,
    /// The updates that were written to the pages.
    pub(crate) written: Vec<UpdateId>,
    index: u8,
}

impl Node {
    pub(crate) fn new(index: u8) -> Self {
        let (block, first) = Block::new(config(index), 0, blocks());
        Self { block, journal: vec![first], applied: Vector::new(), written: Vec::new(), index }
    }

    /// Handles an event without making anything durable.
    pub(crate) fn on(&mut self, event: Event) -> Vec<Action> {
        self.at(event, 0)
    }

    pub(crate) fn at(&mut self, event: Event, now_ms: u64) -> Vec<Action> {
        let mut actions = self.block.on(event, now_ms);
        // Deltas are computed at once, and all have the CRC 1.
        while let Some(at) = actions.iter().position(|action| matches!(action, Action::Delta { .. })) {
            if let Action::Delta { id, number, .. } = actions.remove(at) {
                actions.extend(self.block.on(Event::Delta { id, number, crc: 1 }, now_ms));
            }
        }
        let entry = |action: &Action| if let Action::Journal(entry) = action { Some(entry.clone()) } else { None };
        self.journal.extend(actions.iter().filter_map(entry));
        actions
    }

    /// Handles an event, and whatever follows when all entries are durable; without the entries.
    pub(crate) fn sync(&mut self, event: Event) -> Vec<Action> {
        let mut actions = self.on(event);
        loop {
            let more = self.on(Event::Durable { entries: u64::MAX });
            if more.is_empty() {
                actions.retain(|action| !matches!(action, Action::Journal(_)));
                return actions;
            }
            actions.extend(more);
        }
    }

    pub(crate) fn receive(&mut self, from: u8, message: Message) -> Vec<Action> {
        self.sync(Event::Received { from: Peer::Block(block(from)), message })
    }

    pub(crate) fn hear_coordinator(&mut self, message: Message) -> Vec<Action> {
        self.sync(Event::Received { from: Peer::Coordinator, message })
    }

    /// Restarts with the first entries of the journal. Returns the actions without new entries.
    pub(crate) fn restart(&mut self, entries: usize) -> Vec<Action> {
        self.journal.truncate(entries);
        let (block, mut actions) = Block::restart(config(self.index), &self.journal, self.applied.clone(), 0);
        self.block = block;
        let entry = |action: &Action| if let Action::Journal(entry) = action { Some(entry.clone()) } else { None };
        self.journal.extend(actions.iter().filter_map(entry));
        actions.retain(|action| !matches!(action, Action::Journal(_)));
        actions
    }

    /// Applies everything, as the shell does.
    pub(crate) fn apply(&mut self) {
        for action in self.sync(Event::Apply) {
            if let Action::Write(batch) = action {
                self.written.extend(batch.merged.iter().flat_map(|(_, deltas)| deltas).map(|delta| delta.id));
                self.applied = batch.applied;
                self.sync(Event::Written);
            }
        }
    }
}

/// The messages among actions, with their receivers' indexes.
pub(crate) fn sent(actions: &[Action]) -> Vec<(u8, Message)> {
    let message = |action: &Action| match action {
        Action::Send { to: Peer::Block(to), message } => Some((to.index, message.clone())),
        Action::Send { to: Peer::Coordinator, message } => Some((u8::MAX, message.clone())),
        _ => None,
    };
    actions.iter().filter_map(message).collect()
}
