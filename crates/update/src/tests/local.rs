//! One node or the coordinator of the model: the state machine, its journal and its disk. Steps are pure, so the explorer computes each once.

use super::Setup;
use crate::{
    Action, Batch, Block, Entry, Event, Message, NotServed, Outcome, Peer, ReadAt, Request, Seal, Sealed, StripeTerm, Told,
    Vector, seal,
    types::{Claim, Delta, UpdateId},
};
use std::collections::BTreeSet;
use weft_types::{BlockId, Seq};

/// A page's content: the deltas that were added to it an odd number of times, one bit for each update and stream.
/// Deltas that are not what was sent have bits of their own.
type Page = u32;

/// How far the bits of damaged deltas lie above those of the sent ones.
pub(super) const DAMAGE_SHIFT: u32 = 16;

/// A message on the network.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Envelope {
    pub(super) from: Peer,
    pub(super) to: Peer,
    pub(super) message: Message,
}

/// A step of one node or of the coordinator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Step {
    Deliver(u32),
    /// A Prepare arrives with another delta than was sent.
    DeliverDamaged(u32),
    Flush,
    /// A crash, at which this many of the unsynced entries survive; and the restart.
    Crash(u8),
    Request(u8),
    /// The first of the deltas that are due is computed.
    Delta,
    GiveUp(u8),
    Remind,
    Apply,
    WritePages,
    WriteSidecar,
    LeaseEnds,
    Read,
    Forget,
    /// A block that joins is rebuilt from others.
    Rebuild(Rebuilt),
    /// A settled block is closed.
    Close,
    /// A stripe whose blocks are closed is opened again.
    Reopen,
    /// The seal under way admits the block that joins.
    Join,
    /// The coordinator begins a seal without the blocks of this set of nodes.
    Seal(u8),
    LeaseEnded(u8),
    /// Another node stays away while the coordinator waits for it.
    Absent(u8),
    CoordinatorRestarts,
    /// A message arrives at the coordinator that was replaced and goes on.
    DeliverToOld(u32),
    OldReminds,
    /// Clients whose updates' leader is fenced ask the coordinator.
    ClientsAsk,
}

/// What a block is rebuilt to: the pages, and the number of each stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Rebuilt {
    pub(super) pages: [Page; 2],
    pub(super) numbers: [u8; 2],
}

/// What a step causes elsewhere.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Effects {
    pub(super) sent: Vec<Envelope>,
    pub(super) told: Vec<(UpdateId, Told)>,
    /// The updates that a read of a node's pages showed.
    pub(super) served: Vec<Result<Page, NotServed>>,
    pub(super) wrong: Option<&'static str>,
}

/// A node.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Node {
    pub(super) block: Block,
    /// Entries, and for after-images the pages.
    journal: Vec<(Entry, Vec<Page>)>,
    unsynced: usize,
    pages: Vec<Page>,
    applied: Vector,
    /// The deltas to compute: update and number.
    deltas: BTreeSet<(UpdateId, u64)>,
    /// A batch that is being written, and whether its pages are written.
    writing: Option<(Batch, bool)>,
    pub(super) has_lease: bool,
    /// The reads since the start.
    reads: u64,
    /// The term of the lease of clients: that in which the block was opened.
    opened_in: u64,
    /// It is closed, and contains the updates of this term.
    closed_in: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Local {
    Node(Box<Node>),
    /// With the one that was replaced, if it goes on.
    Coordinator(Box<Seal>, Option<Box<Seal>>),
}

impl Node {
    pub(super) fn new(setup: &Setup, at: usize) -> Self {
        let is_first = at < setup.first_blocks();
        let (block, first) =
            if is_first { Block::new(setup.config(at), 0, setup.blocks()) } else { Block::join(setup.config(at)) };
        let pages = vec![0; setup.pages as usize];
        let journal = vec![(first, Vec::new())];
        Self {
            block,
            journal,
            unsynced: 0,
            pages,
            applied: Vector::new(),
            deltas: BTreeSet::new(),
            writing: None,
            has_lease: true,
            reads: 0,
            opened_in: 0,
            closed_in: None,
        }
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed_in.is_some()
    }

    pub(super) fn opened_in(&self) -> u64 {
        self.opened_in
    }

    /// It forgets everything but its pages and what its sidecar says of them.
    fn close(&mut self, setup: &Setup, at: usize) {
        self.closed_in = Some(self.block.participant().known_term());
        self.block = Block::new(setup.config(at), 0, setup.blocks()).0;
        (self.journal, self.reads) = (Vec::new(), 0);
        self.deltas.clear();
    }

    /// It is opened in a higher term than it contains, durably, before anything else happens.
    fn reopen(&mut self, setup: &Setup, at: usize, sealed: &Sealed) {
        if self.closed_in.is_some_and(|term| term < sealed.term) {
            let (block, entries) = Block::open(setup.config(at), sealed, 0);
            (self.block, self.opened_in, self.closed_in) = (block, sealed.term, None);
            self.journal = entries.into_iter().map(|entry| (entry, Vec::new())).collect();
        }
    }

    pub(super) fn unsynced(&self) -> usize {
        self.unsynced
    }

    pub(super) fn is_writing(&self) -> Option<bool> {
        self.writing.as_ref().map(|(_, pages_written)| *pages_written)
    }

    /// Whether a delta is due that can be computed: pages are not being written.
    pub(super) fn is_delta_due(&self, setup: &Setup) -> bool {
        !self.deltas.is_empty() && self.block.read_locked(setup.all()) != Err(NotServed::Busy)
    }

    pub(super) fn pages(&self) -> &[Page] {
        &self.pages
    }

    fn step(&mut self, setup: &Setup, at: usize, step: Step, message: Option<&Envelope>) -> Effects {
        if self.is_closed() {
            // What others say is lost.
            if let Some(Envelope { message: Message::Sealed(sealed), .. }) = message {
                self.reopen(setup, at, sealed);
            }
            return Effects::default();
        }
        let event = match step {
            Step::Deliver(_) | Step::DeliverDamaged(_) => {
                let Envelope { from, message, .. } = message.expect("a message").clone();
                let message = if matches!(step, Step::DeliverDamaged(_)) { damaged(message) } else { message };
                Event::Received { from, message }
            }
            Step::Flush => {
                let entries = std::mem::take(&mut self.unsynced) as u64;
                Event::Durable { entries }
            }
            Step::Crash(kept) => return self.crash(setup, at, kept as usize),
            Step::Request(update) => Event::Request(self.request(setup, update)),
            Step::Delta => {
                let (id, number) = self.deltas.pop_first().expect("a delta");
                let stream = setup.block(at).index;
                let leader = self.block.leader().expect("a leader");
                let is_needed = leader.needs_delta(id, number, self.block.participant());
                if is_needed && self.block.read_locked(setup.span(id, stream)) == Err(NotServed::Unknown) {
                    let wrong = Some("a delta is computed although an update before it is undecided");
                    return Effects { wrong, ..Effects::default() };
                }
                let crc = setup.crc(id, stream).expect("its update");
                Event::Delta { id, number, crc }
            }
            Step::GiveUp(update) => Event::GiveUp(setup.id(update)),
            Step::Remind => Event::Remind,
            Step::Apply => Event::Apply,
            Step::WritePages => {
                let (batch, pages_written) = self.writing.as_mut().expect("a batch");
                let image = |(entry, _): &&(Entry, Vec<Page>)| *entry == Entry::Images(batch.clone());
                self.pages = self.journal.iter().rev().find(image).expect("its after-images").1.clone();
                *pages_written = true;
                return Effects::default();
            }
            Step::WriteSidecar => {
                self.applied = self.writing.take().expect("a batch").0.applied;
                Event::Written
            }
            Step::LeaseEnds => {
                self.has_lease = false;
                return Effects::default();
            }
            Step::Read => {
                self.reads += 1;
                Event::Read { read: self.reads, span: setup.all(), has_lease: self.has_lease }
            }
            Step::Forget => Event::Forget,
            Step::Close => {
                self.close(setup, at);
                return Effects::default();
            }
            Step::Rebuild(_) if !self.block.participant().is_joining() => return Effects::default(),
            Step::Rebuild(rebuilt) => {
                self.pages = rebuilt.pages[..self.pages.len()].to_vec();
                let streams = (0..setup.k).filter(|stream| setup.depends(at, *stream));
                Event::Rebuilt(streams.map(|stream| (stream, rebuilt.numbers[usize::from(stream)].into())).collect())
            }
            Step::Join
            | Step::Reopen
            | Step::Seal(_)
            | Step::LeaseEnded(_)
            | Step::Absent(_)
            | Step::CoordinatorRestarts
            | Step::DeliverToOld(_)
            | Step::OldReminds
            | Step::ClientsAsk => unreachable!("a step of the coordinator"),
        };
        let now_ms = if step == Step::Forget { crate::OUTCOMES_KEPT_MS } else { 0 };
        let actions = self.block.on(event, now_ms);
        let effects = self.carry_out(setup, at, actions);
        self.compact();
        effects
    }

    /// What is not needed goes once everything is durable.
    fn compact(&mut self) {
        if self.unsynced == 0 {
            self.journal.retain(|(entry, _)| self.block.needs(entry));
        }
    }

    fn request(&self, setup: &Setup, update: u8) -> Request {
        // Where stripes are opened again, no update begins after a seal: then the next lease is of another term.
        let term = if setup.budget.reopenings > 0 { self.opened_in } else { self.block.participant().term };
        Request { id: setup.id(update), term, writes: setup.updates[update as usize].clone() }
    }

    fn crash(&mut self, setup: &Setup, at: usize, kept: usize) -> Effects {
        self.journal.truncate(self.journal.len() - self.unsynced + kept);
        (self.unsynced, self.writing, self.reads) = (0, None, 0);
        self.deltas.clear();
        let entries = self.journal.iter().map(|(entry, _)| entry);
        let (block, actions) = Block::restart(setup.config(at), entries, self.applied.clone(), 0);
        self.block = block;
        let effects = self.carry_out(setup, at, actions);
        self.compact();
        effects
    }

    fn carry_out(&mut self, setup: &Setup, at: usize, actions: Vec<Action>) -> Effects {
        let mut effects = Effects::default();
        let from = Peer::Block(setup.block(at));
        for action in actions {
            match action {
                Action::Journal(entry) => {
                    let pages = if let Entry::Images(batch) = &entry { self.images(setup, batch) } else { Vec::new() };
                    self.journal.push((entry, pages));
                    self.unsynced += 1;
                }
                Action::Send { to, message } => effects.sent.push(Envelope { from, to, message }),
                Action::Tell { id, told } => effects.told.push((id, told)),
                Action::Delta { id, number, .. } => {
                    self.deltas.insert((id, number));
                }
                Action::Write(batch) => self.writing = Some((batch, false)),
                Action::Serve { result, .. } => effects.served.push(result.map(|read_at| self.read(setup, &read_at))),
            }
        }
        effects
    }

    fn images(&self, setup: &Setup, batch: &Batch) -> Vec<Page> {
        let mut pages = self.pages.clone();
        for (span, deltas) in &batch.merged {
            for page in span.start..span.end {
                deltas.iter().for_each(|delta| pages[page as usize] ^= self.bits(setup, *delta));
            }
        }
        pages
    }

    /// What a delta changes in a page, as this node has received it.
    fn bits(&self, setup: &Setup, delta: Delta) -> Page {
        let crc = |(entry, _): &(Entry, Vec<Page>)| match entry {
            Entry::Held { record, crcs } if record.id == delta.id => crcs.get(&delta.stream).copied(),
            _ => None,
        };
        let bit = setup.bit(delta.id, delta.stream);
        if self.journal.iter().find_map(crc) == setup.crc(delta.id, delta.stream) { bit } else { bit << DAMAGE_SHIFT }
    }

    /// The updates in any page, where each is seen in all pages of its range or in none. The model reads whole blocks.
    fn read(&self, setup: &Setup, read: &ReadAt) -> Page {
        self.overlaid(setup, read).iter().fold(0, |all, page| all | page)
    }

    /// The pages with the deltas of the journal added or taken out.
    fn overlaid(&self, setup: &Setup, read: &ReadAt) -> Vec<Page> {
        let mut pages = self.pages.clone();
        for delta in read.added.iter().chain(&read.removed) {
            let span = setup.span(delta.id, delta.stream);
            (span.start..span.end).for_each(|page| pages[page as usize] ^= self.bits(setup, *delta));
        }
        pages
    }

    /// What the block serves at a vector, if it does.
    pub(super) fn at_vector(&self, setup: &Setup, vector: &Vector) -> Option<Vec<Page>> {
        let read = self.block.participant().read_at(setup.all(), vector).ok()?;
        Some(self.overlaid(setup, &read))
    }

    /// What the block serves of each stream, at each number at which it serves it.
    fn versions(&self, setup: &Setup, at: usize) -> Vec<Version> {
        let streams: Vec<u8> = (0..setup.k).filter(|stream| setup.depends(at, *stream)).collect();
        let count = (VERSIONS_MAX + 1).pow(streams.len() as u32);
        let mut versions = Vec::new();
        for number in 0..count {
            let digit = |place: usize| number / (VERSIONS_MAX + 1).pow(place as u32) % (VERSIONS_MAX + 1);
            let vector: Vector = streams.iter().enumerate().map(|(place, stream)| (*stream, digit(place))).collect();
            let Some(pages) = self.at_vector(setup, &vector) else { continue };
            for (stream, number) in vector {
                let of_stream = setup.bits_of(stream) | setup.bits_of(stream) << DAMAGE_SHIFT;
                let pages = pages.iter().map(|page| page & of_stream).collect();
                versions.push(Version { stream, number, pages });
            }
        }
        versions.sort_unstable();
        versions.dedup();
        versions
    }
}

/// The highest number of a version that is compared.
pub(super) const VERSIONS_MAX: u64 = 3;

/// What a block serves of one stream at one number.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Version {
    pub(super) stream: u8,
    pub(super) number: u64,
    pub(super) pages: Vec<Page>,
}

fn damaged(message: Message) -> Message {
    match message {
        Message::Prepare { stamp, record, crcs } => {
            Message::Prepare { stamp, record, crcs: crcs.into_iter().map(|(stream, crc)| (stream, crc + 1)).collect() }
        }
        other => other,
    }
}

fn step_coordinator(
    seal: &mut Seal,
    old: &mut Option<Box<Seal>>,
    setup: &Setup,
    step: Step,
    message: Option<&Envelope>,
) -> Effects {
    let event = match step {
        Step::Deliver(_) | Step::DeliverToOld(_) => {
            let Envelope { from, message, .. } = message.expect("a message").clone();
            let Peer::Block(from) = from else { return Effects::default() };
            seal::Event::Received { from, message }
        }
        Step::Seal(absent) => {
            let absent: BTreeSet<BlockId> =
                (0..setup.nodes()).filter(|at| absent >> at & 1 == 1).map(|at| setup.block(at)).collect();
            seal::Event::Begin { absent }
        }
        Step::Absent(at) => seal::Event::Absent(setup.block(at.into())),
        Step::Join => seal::Event::Join(setup.block(setup.first_blocks())),
        Step::LeaseEnded(at) => seal::Event::LeaseEnded(setup.block(at.into())),
        Step::ClientsAsk => {
            let told = [Some(&*seal), old.as_deref()].into_iter().flatten().flat_map(|seal| told_by(seal, setup)).collect();
            return Effects { told, ..Effects::default() };
        }
        Step::Reopen => {
            let before = seal.stripe();
            let Sealed { term, members, vector, .. } = &*before.sealed;
            let counts = (0..setup.k).map(|stream| vector.get(&stream).copied().unwrap_or(0)).collect();
            let next = StripeTerm::open(Some(before), members.clone(), &Seq::new(*term, counts), 0);
            let to = |block: &BlockId| Envelope {
                from: Peer::Coordinator,
                to: Peer::Block(*block),
                message: Message::Sealed(next.sealed.clone()),
            };
            let sent = next.sealed.members.iter().map(to).collect();
            *seal = Seal::new(next);
            return Effects { sent, ..Effects::default() };
        }
        Step::CoordinatorRestarts => {
            let next = Seal::new(seal.stripe().clone());
            let before = std::mem::replace(seal, next);
            *old = setup.old_coordinator.map(|_| Box::new(before));
            return Effects::default();
        }
        Step::Remind | Step::OldReminds => seal::Event::Remind,
        _ => unreachable!("a step of a node"),
    };
    if !matches!(step, Step::DeliverToOld(_) | Step::OldReminds) {
        return run_seal(seal, setup, event, true).0;
    }
    let Some(before) = old else { return Effects::default() };
    let (effects, is_refused) = run_seal(before, setup, event, setup.old_coordinator == Some(true));
    if is_refused {
        *old = None;
    }
    effects
}

/// Runs a seal until it waits for messages. Returns whether it wanted to save what it cannot.
fn run_seal(seal: &mut Seal, setup: &Setup, event: seal::Event, saves: bool) -> (Effects, bool) {
    let mut effects = Effects::default();
    let mut events = vec![event];
    while let Some(event) = events.pop() {
        let members = seal.stripe().sealed.members.clone();
        let can_rebuild = |absent: &BTreeSet<BlockId>| setup.can_rebuild(members.iter().filter(|block| !absent.contains(block)));
        for action in seal.on(event, &can_rebuild) {
            match action {
                // A transaction and what is sent after it: what is lost in between is a lost message.
                seal::Action::Save(_) if saves => events.push(seal::Event::Saved),
                seal::Action::Save(_) => return (effects, true),
                seal::Action::Send { to, message } => {
                    effects.sent.push(Envelope { from: Peer::Coordinator, to: Peer::Block(to), message });
                }
            }
        }
    }
    (effects, false)
}

/// What clients hear of updates whose leader is fenced.
fn told_by(seal: &Seal, setup: &Setup) -> Vec<(UpdateId, Told)> {
    let is_fenced = |update: &usize| !seal.stripe().sealed.members.contains(&setup.block(setup.leader_of(*update)));
    let ids = (0..setup.updates.len()).filter(is_fenced).map(|update| setup.id(update as u8));
    ids.filter_map(|id| seal.outcome(id).map(|outcome| (id, outcome.into()))).collect()
}

impl Local {
    pub(super) fn step(&self, setup: &Setup, at: usize, step: Step, message: Option<&Envelope>) -> (Self, Effects) {
        let mut after = self.clone();
        let effects = match &mut after {
            Self::Node(node) => node.step(setup, at, step, message),
            Self::Coordinator(seal, old) => step_coordinator(seal, old, setup, step, message),
        };
        (after, effects)
    }
}

/// What the invariants need to know about a node.
#[derive(Debug, Clone, Default)]
pub(super) struct Facts {
    pub(super) is_fenced: bool,
    pub(super) is_joining: bool,
    /// Whether a leader here decides.
    pub(super) is_active: bool,
    /// Whether nothing is left to decide here.
    pub(super) is_idle: bool,
    /// The records of committed updates that it has not trimmed.
    pub(super) untrimmed: usize,
    /// Bits by update.
    pub(super) undecided: u32,
    pub(super) committed: u32,
    pub(super) aborted: u32,
    pub(super) versions: Vec<Version>,
}

impl Facts {
    pub(super) fn of(node: &Node, setup: &Setup, at: usize) -> Self {
        if node.is_closed() {
            return Self { is_idle: true, ..Self::default() };
        }
        let participant = node.block.participant();
        let mut facts = Self {
            is_fenced: participant.is_fenced(),
            is_joining: participant.is_joining(),
            versions: if setup.applying != 0 { node.versions(setup, at) } else { Vec::new() },
            is_active: node.block.leader().is_some_and(crate::leader::Leader::is_active),
            untrimmed: participant.records.values().filter(|kept| kept.claim == Claim::Committed).count(),
            is_idle: node.block.leader().is_none_or(crate::leader::Leader::is_idle) && !node.block.has_reads(),
            ..Self::default()
        };
        for update in 0..setup.updates.len() as u8 {
            let id = setup.id(update);
            match participant.outcome(id) {
                Some(Outcome::Committed) => facts.committed |= 1 << update,
                Some(Outcome::Aborted) => facts.aborted |= 1 << update,
                None if participant.is_undecided(id) => facts.undecided |= 1 << update,
                None => {}
            }
        }
        facts
    }
}

/// The updates that the coordinator has recorded: committed, aborted.
pub(super) fn recorded(seal: &Seal, setup: &Setup) -> (u32, u32) {
    let bits = |wanted| {
        (0..setup.updates.len() as u8).filter(|at| seal.outcome(setup.id(*at)) == Some(wanted)).fold(0, |all, at| all | 1 << at)
    };
    (bits(Outcome::Committed), bits(Outcome::Aborted))
}
