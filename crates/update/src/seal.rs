//! The seal: the coordinator's side. It acts only if a block of a stripe stays away, or if the stripe's blocks change.
//!
//! It raises the stripe's term. The other blocks durably refuse lower terms and report what they hold; the rule of [`decide`] decides what is
//! undecided. One transaction records outcomes, vector and the blocks that remain, and everybody learns them. The absent blocks are fenced:
//! their generations are raised, and they are rebuilt.
//!
//! Invariants:
//! - An outcome that was recorded is never decided again. It is kept until every remaining block knows it durably, and for the next opening.
//! - Nothing is recorded while an absent node may still serve reads under its lease, or while the others cannot rebuild what it held.

use crate::{
    memory::{OUTCOMES_KEPT_MS, OUTCOMES_MAX},
    mutation::{Rule, dropped},
    rule::decide,
    types::{Message, Outcome, Peer, Report, Sealed, Session, UpdateId},
};
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};
use weft_types::{BlockId, Seq};

/// A stripe's term, as the metadata keep it. The outcomes and floors of its seal stay in it, for the next opening of the stripe and for
/// clients whose leader is fenced.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct StripeTerm {
    /// The highest term that was given out.
    pub term: u64,
    /// What the last complete seal recorded; its term is lower if one is under way.
    pub sealed: Arc<Sealed>,
    /// The blocks that may not know it yet.
    pub unaware: BTreeSet<BlockId>,
}

impl StripeTerm {
    /// For a new stripe.
    pub fn new(members: Vec<BlockId>) -> Self {
        Self { term: 0, sealed: Arc::new(Sealed { members, ..Sealed::default() }), unaware: BTreeSet::new() }
    }

    /// For a stripe that is opened for updates. Its term is above those of `before`, its row if it has one, and above that of `seq`, what its settled
    /// blocks contain. The blocks must know the outcomes and floors of earlier updates as long as a client may repeat a request: until their
    /// sessions have ended for so long that no request of them is accepted. If there are very many, the oldest outcomes of the sessions that end
    /// first count as expired.
    pub fn open(before: Option<&Self>, members: Vec<BlockId>, seq: &Seq, now_ms: u64) -> Self {
        let term = before.map_or(0, |before| before.term).max(seq.term()).saturating_add(1);
        let mut sealed = before.map(|before| (*before.sealed).clone()).unwrap_or_default();
        let is_over =
            |session: &Session| session.ends_at_ms.saturating_add(OUTCOMES_KEPT_MS) <= now_ms || dropped(Rule::OutcomesAtOpening);
        sealed.floors.retain(|session, _| !is_over(session));
        sealed.outcomes.retain(|id, _| !is_over(&id.session));
        let mut ids: Vec<UpdateId> = sealed.outcomes.keys().copied().collect();
        ids.sort_unstable_by_key(|id| (id.session.ends_at_ms, id.session.number, id.counter));
        for id in &ids[..ids.len().saturating_sub(OUTCOMES_MAX)] {
            sealed.outcomes.remove(id);
            let floor = sealed.floors.entry(id.session).or_default();
            *floor = id.counter.max(*floor);
        }
        let vector = (0..=u8::MAX).zip(seq.counts().iter().copied()).filter(|(_, count)| *count > 0).collect();
        (sealed.term, sealed.members, sealed.vector) = (term, members, vector);
        Self { term, sealed: Arc::new(sealed), unaware: BTreeSet::new() }
    }

    /// Whether a seal was begun and not completed; it must be begun again after a restart.
    pub fn is_open(&self) -> bool {
        self.term > self.sealed.term
    }
}

/// An event.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Event {
    /// Begin a seal, without blocks that stay away. Nothing begins while a [`Action::Save`] is unanswered.
    Begin {
        /// The blocks that stay away.
        absent: BTreeSet<BlockId>,
    },
    /// Another block stays away.
    Absent(BlockId),
    /// The seal under way admits a block that is allocated, in place of one that is absent or was. It takes part in all later updates,
    /// while it is being rebuilt. `can_rebuild` must not count it before it is rebuilt.
    Join(BlockId),
    /// The lease of an absent block's node has ended.
    LeaseEnded(BlockId),
    /// Answers [`Action::Save`].
    Saved,
    /// A block's message has arrived.
    Received {
        /// The block.
        from: BlockId,
        /// The message.
        message: Message,
    },
    /// From time to time: sends again what was not answered.
    Remind,
}

/// An action.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Action {
    /// Save the stripe's term in one transaction, which also raises the generations of the absent blocks; [`Event::Saved`] answers. The transaction
    /// must fail if the stored term is not the one that [`Seal::new`] got or that was saved last, or if another coordinator has taken over.
    /// Then this state machine must be dropped: it may have been told what no longer holds.
    Save(StripeTerm),
    /// Send a message.
    Send {
        /// Its receiver.
        to: BlockId,
        /// The message.
        message: Message,
    },
}

/// The state machine of a stripe's seals.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Seal {
    stripe: StripeTerm,
    round: Option<Round>,
    /// What is being saved.
    saving: Option<StripeTerm>,
    actions: Vec<Action>,
}

/// A seal that is under way.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
struct Round {
    absent: BTreeSet<BlockId>,
    joining: BTreeSet<BlockId>,
    leases_ended: BTreeSet<BlockId>,
    reports: BTreeMap<BlockId, Report>,
}

impl Seal {
    /// From what the metadata contain. A seal that was under way is forgotten; the next one has a higher term.
    pub fn new(stripe: StripeTerm) -> Self {
        Self { stripe, round: None, saving: None, actions: Vec::new() }
    }

    /// What the metadata contain.
    pub fn stripe(&self) -> &StripeTerm {
        &self.stripe
    }

    /// Whether a seal is under way.
    pub fn is_under_way(&self) -> bool {
        self.round.is_some()
    }

    /// Handles an event and returns the next actions. `can_rebuild`: whether the code rebuilds the whole stripe from its members without these.
    pub fn on(&mut self, event: Event, can_rebuild: &dyn Fn(&BTreeSet<BlockId>) -> bool) -> Vec<Action> {
        match event {
            Event::Begin { absent } => self.begin(absent),
            Event::Absent(block) => {
                let is_member = self.stripe.sealed.members.contains(&block);
                if let Some(round) = self.round.as_mut() {
                    round.joining.remove(&block);
                    if is_member {
                        round.absent.insert(block);
                    }
                }
            }
            Event::Join(block) => {
                if let Some(round) = self.round.as_mut() {
                    round.joining.insert(block);
                }
            }
            Event::LeaseEnded(block) => {
                if let Some(round) = self.round.as_mut().filter(|round| round.absent.contains(&block)) {
                    round.leases_ended.insert(block);
                }
            }
            Event::Saved => self.saved(),
            Event::Received { from, message } => self.received(from, message),
            Event::Remind => self.remind(),
        }
        self.record_if_complete(can_rebuild);
        std::mem::take(&mut self.actions)
    }

    fn begin(&mut self, absent: BTreeSet<BlockId>) {
        if self.saving.is_some() {
            return;
        }
        // Blocks must not be told of the term before it is saved: after a restart, another seal could get it.
        self.save(StripeTerm { term: self.stripe.term.saturating_add(1), ..self.stripe.clone() });
        let absent = absent.into_iter().filter(|block| self.stripe.sealed.members.contains(block)).collect();
        self.round = Some(Round { absent, ..Round::default() });
    }

    fn save(&mut self, stripe: StripeTerm) {
        self.actions.push(Action::Save(stripe.clone()));
        self.saving = Some(stripe);
    }

    fn saved(&mut self) {
        let Some(stripe) = self.saving.take() else { return };
        let is_recorded = stripe.sealed.term > self.stripe.sealed.term;
        self.stripe = stripe;
        if is_recorded {
            self.round = None;
        }
        self.remind();
    }

    fn remind(&mut self) {
        if self.saving.is_some() {
            return;
        }
        let term = self.stripe.term;
        let to: Vec<(BlockId, Message)> = match &self.round {
            Some(round) => {
                let is_missing = |block: &&BlockId| !round.absent.contains(block) && !round.reports.contains_key(block);
                let missing = self.stripe.sealed.members.iter().filter(is_missing);
                missing.map(|block| (*block, Message::Seal { term })).collect()
            }
            None => self.stripe.unaware.iter().map(|block| (*block, Message::Sealed(self.stripe.sealed.clone()))).collect(),
        };
        self.actions.extend(to.into_iter().map(|(to, message)| Action::Send { to, message }));
    }

    fn received(&mut self, from: BlockId, message: Message) {
        match message {
            // Of a report that cannot be right, nothing counts: its block stays away.
            Message::SealReported { term, report }
                if term == self.stripe.term && self.saving.is_none() && report.is_possible(term) =>
            {
                let is_member = self.stripe.sealed.members.contains(&from);
                if let Some(round) = self.round.as_mut().filter(|round| is_member && !round.absent.contains(&from)) {
                    round.reports.entry(from).or_insert(report);
                }
            }
            // Also to blocks that are fenced.
            Message::AskSeal { term } if term <= self.stripe.sealed.term => {
                self.actions.push(Action::Send { to: from, message: Message::Sealed(self.stripe.sealed.clone()) });
            }
            Message::SealKnown { term } if term == self.stripe.sealed.term && self.saving.is_none() => self.known_by(from),
            _ => {}
        }
    }

    fn known_by(&mut self, block: BlockId) {
        let mut stripe = self.stripe.clone();
        if stripe.unaware.remove(&block) {
            self.save(stripe);
        }
    }

    fn record_if_complete(&mut self, can_rebuild: &dyn Fn(&BTreeSet<BlockId>) -> bool) {
        let Some(round) = self.round.as_ref().filter(|_| self.saving.is_none()) else { return };
        let members = &self.stripe.sealed.members;
        let is_missing = |block: &&BlockId| !round.absent.contains(block) && !round.reports.contains_key(block);
        let is_complete = members.iter().filter(is_missing).count() <= usize::from(dropped(Rule::SealHearsAll));
        let may_serve = !dropped(Rule::WaitForLease) && !round.absent.is_subset(&round.leases_ended);
        if !is_complete || may_serve || !can_rebuild(&round.absent) {
            return;
        }
        let mut remaining: Vec<BlockId> = members.iter().filter(|block| !round.absent.contains(block)).copied().collect();
        for block in &round.joining {
            // One generation of a block at a time.
            if !remaining.iter().any(|other| (other.index, other.copy) == (block.index, block.copy)) {
                remaining.push(*block);
            }
        }
        remaining.sort_unstable();
        let sealed = self.decide_all(&round.reports, remaining.clone());
        let unaware = remaining.into_iter().collect();
        self.save(StripeTerm { term: self.stripe.term, sealed: Arc::new(sealed), unaware });
    }

    fn decide_all(&self, reports: &BTreeMap<BlockId, Report>, members: Vec<BlockId>) -> Sealed {
        let before = &self.stripe.sealed;
        let mut sealed = Sealed { term: self.stripe.term, members, ..Sealed::default() };
        let (mut outcomes, mut vector): (BTreeMap<UpdateId, Outcome>, _) = (BTreeMap::new(), before.vector.clone());
        for report in reports.values() {
            for (id, (record, _)) in &report.records {
                let outcome = outcomes.entry(*id).or_insert_with(|| decide(record, reports));
                if let Some(recorded) = before.outcomes.get(id).filter(|_| !dropped(Rule::RecordedStands)) {
                    *outcome = *recorded;
                }
            }
            outcomes.extend(&report.outcomes);
            for (stream, number) in &report.numbers {
                let highest = vector.entry(*stream).or_default();
                *highest = number.max(highest).to_owned();
            }
            for (session, counter) in report.floors.iter().chain(&before.floors) {
                let floor = sealed.floors.entry(*session).or_default();
                *floor = counter.max(floor).to_owned();
            }
        }
        // A block that still does not know an earlier seal may hold what nobody else names.
        for (id, outcome) in &before.outcomes {
            outcomes.entry(*id).or_insert(*outcome);
        }
        (sealed.outcomes, sealed.vector) = (outcomes, vector);
        sealed
    }

    /// The outcome of an update whose leader is fenced, for its client. `None` is no outcome: no remaining block may know the update. The
    /// client repeats its request once the leader's block is rebuilt.
    pub fn outcome(&self, id: UpdateId) -> Option<Outcome> {
        self.stripe.sealed.outcomes.get(&id).copied()
    }
}

/// A seal's messages go to blocks and come from them.
impl From<BlockId> for Peer {
    fn from(block: BlockId) -> Self {
        Self::Block(block)
    }
}

#[cfg(test)]
mod tests;
