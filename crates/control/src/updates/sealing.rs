//! A seal at the coordinator: the machine of the protocol ([`Seal`]), driven by rounds of answers. A block that does not answer in a round stays away.

use std::collections::BTreeSet;
use weft_types::BlockId;
use weft_update::{
    Message, Seal, StripeTerm,
    seal::{Action, Event},
};

/// Whether the whole stripe can be rebuilt without these blocks.
type CanRebuild<'a> = dyn Fn(&BTreeSet<BlockId>) -> bool + 'a;

/// A seal.
#[derive(Debug)]
pub struct Sealing(Seal);

/// What comes next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Save the term, conditional on the one before; [`Sealing::saved`] answers.
    Save {
        /// The stored term.
        before: StripeTerm,
        /// The term to store.
        term: StripeTerm,
    },
    /// Send a message to each of these blocks; [`Sealing::answered`] answers for all.
    Ask(Vec<(BlockId, Message)>),
    /// The seal is recorded.
    Done(StripeTerm),
    /// The others cannot rebuild the blocks that stay away: the seal must wait for one of them.
    Stuck,
}

impl Sealing {
    /// Begins a seal of a stripe with this term, without blocks that stay away.
    pub fn begin(term: StripeTerm, absent: &BTreeSet<BlockId>, can_rebuild: &CanRebuild<'_>) -> (Self, Step) {
        let mut sealing = Self(Seal::new(term));
        let mut actions = sealing.0.on(Event::Begin { absent: absent.clone() }, can_rebuild);
        // Agents serve no reads under leases yet.
        absent.iter().for_each(|block| actions.extend(sealing.0.on(Event::LeaseEnded(*block), can_rebuild)));
        let step = sealing.step(actions);
        (sealing, step)
    }

    /// What [`Step::Save`] asked for is saved.
    pub fn saved(&mut self, can_rebuild: &CanRebuild<'_>) -> Step {
        let actions = self.0.on(Event::Saved, can_rebuild);
        match self.0.is_under_way() {
            true => self.step(actions),
            false => Step::Done(self.0.stripe().clone()),
        }
    }

    /// The answers to [`Step::Ask`]; `None`: there was none.
    pub fn answered(&mut self, answers: Vec<(BlockId, Option<Message>)>, can_rebuild: &CanRebuild<'_>) -> Step {
        let mut actions = Vec::new();
        for (from, message) in answers {
            let events = match message {
                Some(message) if self.counts(&message) => vec![Event::Received { from, message }],
                _ => vec![Event::Absent(from), Event::LeaseEnded(from)],
            };
            events.into_iter().for_each(|event| actions.extend(self.0.on(event, can_rebuild)));
        }
        self.step(actions)
    }

    /// Whether an answer to [`Step::Ask`] is the report that was asked for, and can be right.
    pub fn counts(&self, answer: &Message) -> bool {
        matches!(answer, Message::SealReported { term, report } if *term == self.0.stripe().term && report.is_possible(*term))
    }

    fn step(&self, actions: Vec<Action>) -> Step {
        let mut asked = Vec::new();
        for action in actions {
            match action {
                Action::Save(term) => return Step::Save { before: self.0.stripe().clone(), term },
                Action::Send { to, message } => asked.push((to, message)),
            }
        }
        if asked.is_empty() { Step::Stuck } else { Step::Ask(asked) }
    }
}
