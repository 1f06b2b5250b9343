//! A stripe that may end before all its blocks are durable. Decides when it ends, which later blocks are recorded, and
//! what is left to rebuild.
//!
//! ```text
//!   Told ──enough blocks are durable──► Enter ──room──► EndStripe (early) ──StripeEnded──► Mark each later block
//!     └──PlanEnded──► EndStripe, End                                                         └──PlanEnded──► Suspect, Mark, Warn, End
//! ```
//! Events go in, actions come out ([`LateStripe::on`]). At most the last action of an event needs an answer, which is an event. Events that
//! arrive during the wait for an answer are remembered.

use super::{Request, SentStripe, receipts};
use crate::{run::Report, view::View};
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    mem,
};
use weft_types::{BlockId, BlockState, NodeId, Result, StripeId, StripeRecord, UploadId};

/// The most plans of one put that continue after their stripes have ended. Beyond that, a stripe ends only when all its
/// receivers have finished. So a writer cannot get ahead of its receivers without bound, and each unfinished plan holds
/// memory at its receivers.
pub const PLANS_PER_PUT_MAX: usize = 4;
/// The same limit for all puts together.
pub const PLANS_MAX: usize = 256;

/// The plans that continue after their stripes have ended, with their handles.
#[derive(Debug)]
pub struct LatePlans<H>(BTreeMap<StripeId, (UploadId, H)>);

impl<H> Default for LatePlans<H> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<H> LatePlans<H> {
    /// Adds a stripe's plan, if there is room.
    pub fn enter(&mut self, stripe: StripeId, upload: UploadId, handle: H) -> bool {
        let has_room = self.of_put(upload).count() < PLANS_PER_PUT_MAX && self.0.len() < PLANS_MAX;
        let enters = has_room && !self.has_stripe(stripe);
        if enters {
            self.0.insert(stripe, (upload, handle));
        }
        enters
    }

    /// Removes a stripe's plan. Returns whether it was there.
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

/// The state of the cluster when an event arrives.
#[derive(Debug, Clone, Copy)]
pub struct World<'a> {
    /// The nodes, for their names.
    pub view: &'a View,
    /// The reports of the plan's agents so far.
    pub report: &'a Report,
}

/// An event.
#[derive(Debug)]
pub enum Event {
    /// The plan's agents or the writer have reported something.
    Told,
    /// Another plan has left.
    Room,
    /// Answers [`Action::Enter`]: whether the plan was added.
    Entered(bool),
    /// Answers an early [`Action::EndStripe`]: whether the stripe has ended.
    StripeEnded(bool),
    /// Answers [`Action::Mark`].
    Marked(Result<()>),
    /// The plan has ended: there are no further reports.
    PlanEnded,
    /// The plan's outcome is lost.
    PlanLost,
}

/// An action.
#[derive(Debug)]
pub enum Action {
    /// Add the plan to those that continue; [`Event::Entered`] answers.
    Enter,
    /// End the stripe with the blocks that are durable. If `early`, the plan continues, and [`Event::StripeEnded`]
    /// answers.
    EndStripe {
        /// The stripe as its writer sent it.
        sent: Box<SentStripe>,
        /// Whether the plan continues.
        early: bool,
    },
    /// Record that a block has become durable; [`Event::Marked`] answers.
    Mark(BlockId),
    /// Avoid a node for a while.
    Suspect(NodeId),
    /// Log a warning: a block did not arrive, for this reason, and must be rebuilt.
    Warn(BlockId, String),
    /// Remove the plan from those that continue, if it is among them: missing blocks may be rebuilt now. This is the
    /// last action.
    End,
}

/// A stripe of a put, and the plan that writes it.
#[derive(Debug)]
pub struct LateStripe {
    request: Request,
    /// The nodes that the writer blames.
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
    /// The stripe has not ended: too few blocks are durable.
    Waiting(Box<SentStripe>),
    /// Enough blocks are durable, but there is no room for the plan.
    Enough(Box<SentStripe>),
    /// The same, and a place was requested.
    Entering {
        sent: Box<SentStripe>,
        /// Whether another plan has left since.
        room: bool,
    },
    /// The stripe is being ended early.
    Ending(Left),
    /// The stripe has ended early.
    Ended(Left),
    /// Everything has ended.
    Over,
}

impl LateStripe {
    /// A stripe that its writer has sent.
    pub fn new(request: Request, sent: Box<SentStripe>, complaints: BTreeSet<NodeId>) -> Self {
        Self { request, complaints, plan: Plan::Runs, state: State::Waiting(sent), actions: Vec::new() }
    }

    /// Handles an event and returns the next actions. An event that answers no action is ignored.
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

    /// Does what follows the plan's end, unless an answer is pending.
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

/// A stripe that has ended without some of its blocks.
#[derive(Debug)]
struct Left {
    /// Blocks that arrived and were recorded are in the state that says so.
    stripe: StripeRecord,
    /// The writer's checksums.
    checksums: Vec<Option<Vec<u32>>>,
    /// Whether there are new reports since the last pass began.
    told: bool,
    /// Whether this pass is the last: the plan has ended.
    is_last: bool,
    /// The blocks that this pass has not reached yet, by index and copy.
    to_look_at: VecDeque<(u8, u8)>,
    /// The block that is being recorded.
    marking: Option<BlockId>,
    /// Blocks that had not arrived by this pass, and why.
    reasons: Vec<(BlockId, String)>,
}

impl Left {
    /// From the blocks that are durable so far.
    fn new(sent: &SentStripe, world: &World<'_>) -> Self {
        let SentStripe { stripe, checksums, .. } = sent.after(world.report, world.view);
        let (to_look_at, reasons) = (VecDeque::new(), Vec::new());
        Self { stripe, checksums, told: false, is_last: false, to_look_at, marking: None, reasons }
    }

    /// Continues a pass, or starts the next one if there are new reports: returns the next durable block to record. A
    /// block whose recording failed is tried again in the next pass.
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
            Err(error) => self.reasons.push((block, format!("it arrived, but this could not be recorded: {error}"))),
        }
    }
}

#[cfg(test)]
mod tests;
