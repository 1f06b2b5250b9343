//! The coordinator of the crash test: it opens stripes, seals, settles and closes them, and opens them again.

use super::{
    code,
    world::{Body, Envelope, To, World, block},
};
use crate::{Pieces, SettledBlock};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};
use weft_types::{BlockId, Seq};
use weft_update::{Peer, Seal, Sealed, StripeTerm, seal};

/// Where a stripe is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Its blocks are as they were settled; perhaps not all of them are closed.
    Plain,
    Opening,
    Open,
    Sealing,
    Settling,
}

/// A stripe in the metadata.
pub(super) struct Row {
    pub(super) phase: Phase,
    pub(super) seal: Seal,
    /// What was sent to open the stripe.
    opening: Arc<Sealed>,
    /// The blocks that have answered in this phase, with what they contain if they are settled.
    answers: BTreeMap<BlockId, Option<SettledBlock>>,
    /// What the blocks contain that are plain.
    pub(super) seq: Seq,
    pub(super) members: Vec<BlockId>,
}

impl Row {
    pub(super) fn new(members: Vec<BlockId>) -> Self {
        let seal = Seal::new(StripeTerm::new(members.clone()));
        Self { phase: Phase::Plain, seal, opening: Arc::default(), answers: BTreeMap::new(), seq: Seq::default(), members }
    }

    fn enter(&mut self, phase: Phase) {
        self.phase = phase;
        self.answers.clear();
    }

    /// The term of the stripe's leases, if any are given.
    pub(super) fn term(&self) -> Option<u64> {
        (self.phase == Phase::Open).then(|| self.opening.term)
    }

    /// Whether no block is open for updates.
    pub(super) fn is_closed(&self) -> bool {
        self.phase == Phase::Plain && (self.seq.term() == 0 || self.members.iter().all(|block| self.answers.contains_key(block)))
    }
}

impl World {
    /// The coordinator's timer.
    pub(super) fn remind(&mut self) {
        for stripe in 0..self.rows.len() as u64 {
            self.advance(stripe);
            self.ask(stripe);
        }
    }

    /// Begins what is next for a stripe.
    fn advance(&mut self, stripe: u64) {
        let chance = self.random.up_to(100);
        let (ends, row) = (self.ends, &self.rows[stripe as usize]);
        let absent: BTreeSet<BlockId> = row.members.iter().copied().filter(|block| self.absent.contains(block)).collect();
        let is_missing = |block: &BlockId| !row.answers.contains_key(block);
        let seal_lacks = row.seal.stripe().sealed.members.iter().any(|block| absent.contains(block));
        match row.phase {
            // A stripe may be opened before all of its blocks are closed.
            Phase::Plain if !ends && (chance < 15 || (row.is_closed() && chance < 60)) => self.begin_opening(stripe),
            Phase::Opening if !row.members.iter().any(is_missing) => {
                self.rows[stripe as usize].enter(Phase::Open);
                self.opened += 1;
            }
            // An opening that is given up, before any lease.
            Phase::Opening if chance < 3 && absent.is_empty() => self.begin_opening(stripe),
            Phase::Opening if !absent.is_empty() || chance < 6 || ends => self.begin_seal(stripe, absent),
            Phase::Open if !absent.is_empty() || chance < 4 || ends => self.begin_seal(stripe, absent),
            Phase::Sealing if !row.seal.is_under_way() && !row.seal.stripe().is_open() => {
                let members = row.seal.stripe().sealed.members.clone();
                self.rows[stripe as usize].members = members;
                self.rows[stripe as usize].enter(Phase::Settling);
            }
            Phase::Settling if seal_lacks => self.begin_seal(stripe, absent),
            _ => {}
        }
        if self.rows[stripe as usize].phase == Phase::Sealing {
            let absent: Vec<BlockId> = self.absent.iter().copied().filter(|block| block.stripe.0 == stripe).collect();
            for block in absent {
                self.seal(stripe, seal::Event::Absent(block));
                if !self.nodes[self.home(block)].has_lease {
                    self.seal(stripe, seal::Event::LeaseEnded(block));
                }
            }
        }
    }

    pub(super) fn begin_opening(&mut self, stripe: u64) {
        let row = &self.rows[stripe as usize];
        let members: Vec<BlockId> = row.members.iter().copied().filter(|block| !self.absent.contains(block)).collect();
        if !code::can_decode(&*self.code, &members.iter().map(|block| block.index).collect::<Vec<_>>()) {
            return;
        }
        let term = StripeTerm::open(Some(row.seal.stripe()), members.clone(), &row.seq, self.now);
        let row = &mut self.rows[stripe as usize];
        (row.opening, row.seal, row.members) = (term.sealed.clone(), Seal::new(term), members);
        row.enter(Phase::Opening);
    }

    pub(super) fn begin_seal(&mut self, stripe: u64, absent: BTreeSet<BlockId>) {
        self.rows[stripe as usize].phase = Phase::Sealing;
        self.seal(stripe, seal::Event::Begin { absent });
    }

    /// Sends again what was not answered.
    fn ask(&mut self, stripe: u64) {
        let row = &self.rows[stripe as usize];
        let (term, opening) = (row.seal.stripe().sealed.term, row.opening.clone());
        let asked: Vec<BlockId> = row.members.iter().copied().filter(|block| !row.answers.contains_key(block)).collect();
        let body = match row.phase {
            // A block that was not opened cannot report to the seal.
            Phase::Opening | Phase::Sealing => Some(Body::Open(opening)),
            Phase::Settling => Some(Body::Settle(term)),
            Phase::Plain if row.seq.term() > 0 => Some(Body::Close(row.seq.term())),
            _ => None,
        };
        if matches!(row.phase, Phase::Sealing | Phase::Settling) {
            self.seal(stripe, seal::Event::Remind);
        }
        for (block, body) in asked.into_iter().flat_map(|block| body.clone().map(|body| (block, body))) {
            self.net.push(Envelope { to: To::Block(block), body, term: 0 });
        }
    }

    /// A block's answer.
    pub(super) fn coordinator_receives(&mut self, stripe: u64, body: Body) {
        let row = &mut self.rows[stripe as usize];
        match body {
            Body::Protocol { from: Peer::Block(from), message, .. } => self.seal(stripe, seal::Event::Received { from, message }),
            Body::Opened { from, term } => {
                if matches!(row.phase, Phase::Opening | Phase::Sealing) && term == row.opening.term {
                    row.answers.insert(from, None);
                }
            }
            Body::Settled { from, block } => {
                if row.phase == Phase::Settling && block.seq.term() == row.seal.stripe().sealed.term {
                    row.answers.insert(from, Some(block));
                    self.settle_if_complete(stripe);
                }
            }
            Body::Closed { from, term } => {
                if row.phase == Phase::Plain && term == row.seq.term() {
                    row.answers.insert(from, None);
                }
            }
            body => unreachable!("{body:?} to the coordinator"),
        }
    }

    fn settle_if_complete(&mut self, stripe: u64) {
        let row = &mut self.rows[stripe as usize];
        let settled: Option<Vec<&SettledBlock>> =
            row.members.iter().map(|block| row.answers.get(block).and_then(Option::as_ref)).collect();
        let Some(settled) = settled else { return };
        let sealed = &row.seal.stripe().sealed;
        let count = |stream: u8| sealed.vector.get(&stream).copied().unwrap_or(0);
        let seq = Seq::new(sealed.term, (0..self.shape.k as u8).map(count).collect());
        if let Some(other) = settled.iter().find(|block| block.seq != seq) {
            let what = format!("a block of stripe {stripe} is settled with {:?}, but the seal decided {seq:?}", other.seq);
            return self.fail(what);
        }
        let units = settled.iter().map(|block| block.units.clone());
        self.settled.push((stripe, row.members.iter().copied().zip(units).collect()));
        row.seq = seq;
        row.enter(Phase::Plain);
        self.trace(|| format!("stripe {stripe} is settled"));
    }

    /// An event of a stripe's seal.
    pub(super) fn seal(&mut self, stripe: u64, event: seal::Event) {
        let mut events = vec![event];
        while let Some(event) = events.pop() {
            let before = self.rows[stripe as usize].seal.stripe().sealed.clone();
            let code = self.code.clone();
            let can_rebuild = |absent: &BTreeSet<BlockId>| {
                let left = before.members.iter().filter(|block| !absent.contains(block)).map(|block| block.index);
                code::can_decode(&*code, &left.collect::<Vec<_>>())
            };
            for action in self.rows[stripe as usize].seal.on(event, &can_rebuild) {
                match action {
                    seal::Action::Save(_) => events.push(seal::Event::Saved),
                    seal::Action::Send { to, message } => {
                        let body = Body::Protocol { from: Peer::Coordinator, message, pieces: Pieces::new() };
                        self.net.push(Envelope { to: To::Block(to), body, term: 0 });
                    }
                }
            }
            let sealed = &self.rows[stripe as usize].seal.stripe().sealed;
            for id in sealed.outcomes.keys() {
                self.decided.entry(*id).or_insert(sealed.term);
            }
            self.sealed += usize::from(self.rows[stripe as usize].seal.stripe().sealed.term > before.term);
        }
    }

    /// Fenced blocks learn it, as heartbeats tell their nodes.
    pub(super) fn tell_fenced(&mut self) {
        for block in self.absent.clone() {
            let row = &self.rows[block.stripe.0 as usize];
            let is_fenced = !row.members.contains(&block) && self.nodes[self.home(block)].disk.is_some();
            if is_fenced && self.told_fenced.insert(block) {
                let message = weft_update::Message::Sealed(row.seal.stripe().sealed.clone());
                let body = Body::Protocol { from: Peer::Coordinator, message, pieces: Pieces::new() };
                self.net.push(Envelope { to: To::Block(block), body, term: 0 });
            }
        }
    }

    /// The coordinator considers a node's blocks absent from now on.
    pub(super) fn give_up_on(&mut self, node: usize) {
        for stripe in 0..self.rows.len() as u64 {
            for index in 0..self.code.n() as u8 {
                let block = block(stripe, index);
                if self.home(block) == node {
                    self.absent.insert(block);
                }
            }
        }
    }

    /// Opens all stripes without messages.
    pub(super) fn open_all(&mut self) {
        for stripe in 0..self.rows.len() as u64 {
            self.begin_opening(stripe);
            let row = &mut self.rows[stripe as usize];
            row.phase = Phase::Open;
            let (members, sealed) = (row.members.clone(), row.opening.clone());
            for block in members {
                self.call(self.home(block), |updater, now| updater.open_block(block, &sealed, now));
            }
        }
    }

    /// A block that has said that it is open, or closed, must be so.
    pub(super) fn check_states(&mut self) {
        let mut wrong = None;
        for row in &self.rows {
            for member in row.members.iter().filter(|block| row.answers.contains_key(block) || row.phase == Phase::Open) {
                let Some(disk) = &self.nodes[self.home(*member)].disk else { continue };
                let open = disk.updater.open_block_of(*member);
                let is_wrong = match row.phase {
                    Phase::Opening | Phase::Open => {
                        open.as_ref().is_none_or(|open| open.term != row.opening.term || open.is_settled)
                    }
                    Phase::Settling => open.as_ref().is_none_or(|open| !open.is_settled),
                    Phase::Plain => open.is_some(),
                    Phase::Sealing => false,
                };
                if is_wrong && !disk.updater.is_lost(*member) {
                    wrong =
                        Some(format!("{member} is {open:?} while its stripe is {:?} in term {}", row.phase, row.opening.term));
                }
            }
        }
        wrong.into_iter().for_each(|wrong| self.fail(wrong));
    }
}
