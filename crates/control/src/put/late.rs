//! A stripe that may end before all its blocks are durable: when it ends, which of the blocks that come later are written down, and what is
//! left to be rebuilt.
//!
//! ```text
//! Told ──enough has come──► Enter ──room──► EndStripe (early) ──StripeEnded──► Mark each block that comes
//!   └──PlanEnded──► EndStripe, End                                               └──PlanEnded──► Suspect, Mark, Warn, End
//! ```
//! Events go in, actions come out ([`LateStripe::on`]). At most the last action of an event asks for an answer, which is an event. Events
//! that come while it waits for an answer are kept in mind.

use super::{Request, SentStripe, receipts};
use crate::{run::Report, view::View};
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    mem,
};
use weft_types::{BlockId, BlockState, NodeId, Result, StripeId, StripeRecord, UploadId};

/// Plans of one put whose stripes have ended, at most: with more of them under way a stripe ends when all have done their share, so that
/// a writer is not ahead of its receivers without bound. Each holds memory at the receivers that are not done.
pub const PLANS_PER_PUT_MAX: usize = 4;
/// And of all puts.
pub const PLANS_MAX: usize = 256;

/// The plans that go on although their stripes have ended, each with its handle.
#[derive(Debug)]
pub struct LatePlans<H>(BTreeMap<StripeId, (UploadId, H)>);

impl<H> Default for LatePlans<H> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<H> LatePlans<H> {
    /// Gives a stripe's plan a place, if there is room.
    pub fn enter(&mut self, stripe: StripeId, upload: UploadId, handle: H) -> bool {
        let has_room = self.of_put(upload).count() < PLANS_PER_PUT_MAX && self.0.len() < PLANS_MAX;
        let enters = has_room && !self.has_stripe(stripe);
        if enters {
            self.0.insert(stripe, (upload, handle));
        }
        enters
    }

    /// Takes back a stripe's place, if it has one.
    pub fn leave(&mut self, stripe: StripeId) -> bool {
        self.0.remove(&stripe).is_some()
    }

    /// Whether a stripe's plan is among them.
    pub fn has_stripe(&self, stripe: StripeId) -> bool {
        self.0.contains_key(&stripe)
    }

    /// The plans of a put.
    pub fn of_put(&self, upload: UploadId) -> impl Iterator<Item = &H> {
        self.0.values().filter(move |(of, _)| *of == upload).map(|(_, handle)| handle)
    }
}

/// What is seen when an event comes in.
#[derive(Debug, Clone, Copy)]
pub struct World<'a> {
    /// The nodes, for their names.
    pub view: &'a View,
    /// What the plan's agents have told by now.
    pub report: &'a Report,
}

/// What happened.
#[derive(Debug)]
pub enum Event {
    /// The plan's agents have told more, or the writer has.
    Told,
    /// Another plan has left its place.
    Room,
    /// Answers [`Action::Enter`]: whether the plan has a place now.
    Entered(bool),
    /// Answers an early [`Action::EndStripe`]: whether the stripe has ended.
    StripeEnded(bool),
    /// Answers [`Action::Mark`].
    Marked(Result<()>),
    /// The plan has ended: its agents tell no more.
    PlanEnded,
    /// The plan's end will not be known.
    PlanLost,
}

/// What is to be done.
#[derive(Debug)]
pub enum Action {
    /// Give the plan a place among those that go on; [`Event::Entered`] answers.
    Enter,
    /// End the stripe with what has come. If that is `early`, the plan goes on, and [`Event::StripeEnded`] answers.
    EndStripe {
        /// The stripe as its writer sent it.
        sent: Box<SentStripe>,
        /// The plan has brought enough, and goes on.
        early: bool,
    },
    /// Write down that a block has come; [`Event::Marked`] answers.
    Mark(BlockId),
    /// Avoid a node for a while.
    Suspect(NodeId),
    /// Log a warning: a block did not come, for this reason, and is to be rebuilt.
    Warn(BlockId, String),
    /// Take back the plan's place, if it has one: what is still missing may be rebuilt now. That is all.
    End,
}

/// A stripe of a put and the plan that brings it.
#[derive(Debug)]
pub struct LateStripe {
    request: Request,
    /// The nodes of which the writer complains.
    complaints: BTreeSet<NodeId>,
    plan: Plan,
    state: State,
    actions: Vec<Action>,
}

/// What is known of the plan's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Plan {
    Runs,
    Ended,
    Lost,
}

#[derive(Debug)]
enum State {
    /// It has not ended: too little has come.
    Waiting(Box<SentStripe>),
    /// Enough has come, and the plan has no place.
    Enough(Box<SentStripe>),
    /// The same, and a place was asked for.
    Entering {
        sent: Box<SentStripe>,
        /// Another plan has left its place since.
        room: bool,
    },
    /// It is being ended early.
    Ending(Left),
    /// It has ended early.
    Ended(Left),
    /// That is all.
    Over,
}

impl LateStripe {
    /// A stripe that its writer has sent.
    pub fn new(request: Request, sent: Box<SentStripe>, complaints: BTreeSet<NodeId>) -> Self {
        Self { request, complaints, plan: Plan::Runs, state: State::Waiting(sent), actions: Vec::new() }
    }

    /// Takes an event; what is to be done then. An event that answers nothing that was asked for is ignored.
    pub fn on(&mut self, event: Event, world: &World<'_>) -> Vec<Action> {
        match event {
            Event::PlanEnded if self.plan == Plan::Runs => self.plan = Plan::Ended,
            Event::PlanLost if self.plan == Plan::Runs => self.plan = Plan::Lost,
            _ => {}
        }
        self.state = match mem::replace(&mut self.state, State::Over) {
            State::Ending(left) => self.ending(left, event, world),
            State::Ended(left) => self.ended(left, event, world),
            state => self.before_the_end(state, event, world),
        };
        self.end_with_plan(world);
        mem::take(&mut self.actions)
    }

    fn before_the_end(&mut self, state: State, event: Event, world: &World<'_>) -> State {
        match (state, event) {
            (State::Waiting(sent), Event::Told) if self.is_enough(&sent, world) => self.enter(sent),
            (State::Enough(sent), Event::Room) => self.enter(sent),
            (State::Entering { sent, .. }, Event::Room) => State::Entering { sent, room: true },
            (State::Entering { sent, .. }, Event::Entered(true)) if self.plan == Plan::Runs => {
                let left = Left::new(&sent, world);
                self.actions.push(Action::EndStripe { sent, early: true });
                State::Ending(left)
            }
            (State::Entering { sent, room }, Event::Entered(entered)) => match room && !entered && self.plan == Plan::Runs {
                true => self.enter(sent),
                false => State::Enough(sent),
            },
            (state, _) => state,
        }
    }

    fn is_enough(&self, sent: &SentStripe, world: &World<'_>) -> bool {
        self.plan == Plan::Runs && self.request.missing_max > 0 && sent.after(world.report, world.view).is_enough(&self.request)
    }

    fn enter(&mut self, sent: Box<SentStripe>) -> State {
        self.actions.push(Action::Enter);
        State::Entering { sent, room: false }
    }

    fn ending(&mut self, mut left: Left, event: Event, world: &World<'_>) -> State {
        match event {
            Event::StripeEnded(true) => {
                self.actions.extend(left.next(world));
                return State::Ended(left);
            }
            Event::StripeEnded(false) => {
                self.actions.push(Action::End);
                return State::Over;
            }
            Event::Told => left.told = true,
            _ => {}
        }
        State::Ending(left)
    }

    fn ended(&mut self, mut left: Left, event: Event, world: &World<'_>) -> State {
        match event {
            Event::Told => left.told = true,
            Event::Marked(marked) => left.marked(marked),
            _ => {}
        }
        self.actions.extend(left.next(world));
        State::Ended(left)
    }

    /// Ends what the plan's end ends, unless an answer is still to come.
    fn end_with_plan(&mut self, world: &World<'_>) {
        self.state = match (mem::replace(&mut self.state, State::Over), self.plan) {
            (State::Waiting(sent) | State::Enough(sent), Plan::Ended) => {
                self.actions.push(Action::EndStripe { sent, early: false });
                self.actions.push(Action::End);
                State::Over
            }
            (State::Ended(left), Plan::Ended) if left.marking.is_none() => self.last_look(left, world),
            (State::Ended(left), Plan::Lost) if left.marking.is_some() => State::Ended(left),
            (State::Waiting(_) | State::Enough(_) | State::Ended(_), Plan::Lost) => {
                self.actions.push(Action::End);
                State::Over
            }
            (state, _) => state,
        };
    }

    fn last_look(&mut self, mut left: Left, world: &World<'_>) -> State {
        if !left.is_last {
            (left.is_last, left.told) = (true, true);
            let failed = receipts::who_failed(world.report, &self.complaints, self.request.long_wait_ms);
            self.actions.extend(self.complaints.intersection(&failed).map(|node| Action::Suspect(*node)));
            self.actions.extend(left.next(world));
        }
        if left.marking.is_some() {
            return State::Ended(left);
        }
        self.actions.extend(left.reasons.into_iter().map(|(block, reason)| Action::Warn(block, reason)));
        self.actions.push(Action::End);
        State::Over
    }
}

/// A stripe that ends without some of its blocks.
#[derive(Debug)]
struct Left {
    /// What has come and was written down is in the state that says so.
    stripe: StripeRecord,
    /// The checksums that the writer made.
    checksums: Vec<Option<Vec<u32>>>,
    /// More was told since the last look began.
    told: bool,
    /// This look is the last one: the plan has ended.
    is_last: bool,
    /// Blocks that this look has still to come to, by index and copy.
    to_look_at: VecDeque<(u8, u8)>,
    /// The block that is being written down.
    marking: Option<BlockId>,
    /// Blocks that had not come by this look, and why.
    reasons: Vec<(BlockId, String)>,
}

impl Left {
    /// By what has come.
    fn new(sent: &SentStripe, world: &World<'_>) -> Self {
        let SentStripe { stripe, checksums, .. } = sent.after(world.report, world.view);
        let (to_look_at, reasons) = (VecDeque::new(), Vec::new());
        Self { stripe, checksums, told: false, is_last: false, to_look_at, marking: None, reasons }
    }

    /// Goes on with a look, or begins the next one if there is something new: the next block that has come is to be written down. A block
    /// for which that failed has its turn again in the next look.
    fn next(&mut self, world: &World<'_>) -> Option<Action> {
        while self.marking.is_none() {
            let Some((index, copy)) = self.to_look_at.pop_front() else {
                if !mem::take(&mut self.told) {
                    return None;
                }
                let left = self.stripe.all().filter(|(_, placed)| placed.state != BlockState::Ok);
                self.to_look_at = left.map(|(index, placed)| (index, placed.copy)).collect();
                self.reasons.clear();
                continue;
            };
            let Some(placed) = self.stripe.find(index, copy) else { continue };
            let block = self.stripe.id_of(index, placed);
            match receipts::why_not_received(&self.stripe, (index, placed), &self.checksums, world.report, world.view) {
                Some(reason) => self.reasons.push((block, reason)),
                None => {
                    self.marking = Some(block);
                    return Some(Action::Mark(block));
                }
            }
        }
        None
    }

    fn marked(&mut self, marked: Result<()>) {
        let Some(block) = self.marking.take() else { return };
        match marked {
            Ok(()) => {
                let placed = self.stripe.find_mut(block.index, block.copy);
                placed.into_iter().for_each(|placed| placed.state = BlockState::Ok);
            }
            Err(error) => self.reasons.push((block, format!("that it has come could not be written down: {error}"))),
        }
    }
}

#[cfg(test)]
mod tests;
