//! The end of a stripe: what it waits for, and what follows from each answer.

use super::{
    Action, Ended, Event, Request, SentStripe, World,
    receipts::{is_known, stored_at, stored_wrong, who_failed, whole_checksums},
    resend::Resend,
    upload::commits_with,
};
use crate::{
    rebuild::{self, Destination, Lost, Needed, Purpose, RebuiltBlock},
    recovery,
    reserve::Share,
    run::{End, Report},
    view::{NodeView, View},
};
use std::collections::BTreeSet;
use weft_types::{BlockState, Error, FailureDomain, NodeId, Party, PlacedBlock, Reaction, Result, TaskTraffic};

/// The state machine of a stripe's end.
#[derive(Debug)]
pub struct StripeEnd {
    pub(super) request: Request,
    pub(super) sent: SentStripe,
    /// The object's size, if the put is committed with the stripe.
    put_bytes: Option<u64>,
    pub(super) state: State,
    /// The reports of the plan's agents.
    report: Report,
    traffic: TaskTraffic,
    pub(super) actions: Vec<Action>,
}

/// What the stripe waits for.
#[derive(Debug)]
pub(super) enum State {
    Begin,
    Rebuilding(Rebuilding),
    /// For what is needed to send data again.
    Resend(Resend),
    Committing,
    Ended,
}

/// What is rebuilt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rebuilding {
    /// Blocks without any stored copy.
    Missing,
    /// Further copies.
    Copies,
}

impl StripeEnd {
    /// For a stripe as its writer has sent it.
    pub fn new(request: Request, sent: SentStripe) -> Self {
        let (report, traffic, actions) = (Report::default(), TaskTraffic::default(), Vec::new());
        Self { request, sent, put_bytes: None, state: State::Begin, report, traffic, actions }
    }

    /// Also commits the put, at the writer's request; `asked_bytes` is the object's size.
    #[must_use]
    pub fn with_put(self, asked_bytes: Option<u64>) -> Self {
        let put_bytes = commits_with(asked_bytes, self.request.missing_max);
        Self { put_bytes, ..self }
    }

    /// The current state of the stripe.
    pub fn sent(&self) -> &SentStripe {
        &self.sent
    }

    /// Handles an event and returns the next actions. An event that answers no action is ignored.
    pub fn on(&mut self, event: Event, world: &mut World<'_>) -> Vec<Action> {
        match (std::mem::replace(&mut self.state, State::Ended), event) {
            (State::Begin, Event::Begin { report, early, complaints }) => self.begin(report, early, &complaints, world),
            (State::Rebuilding(what), Event::Rebuilt(rebuilt)) => {
                let rebuilt = rebuilt.map(|rebuilt| {
                    self.traffic = self.traffic + rebuilt.traffic;
                    rebuilt.blocks.into_iter().for_each(|new| self.take(new));
                });
                match (what, rebuilt) {
                    (Rebuilding::Missing, Ok(())) => self.complete_copies(world),
                    (Rebuilding::Copies, Ok(())) => self.commit(),
                    (Rebuilding::Missing, Err(error)) => self.not_rebuilt(error, world.view),
                    (Rebuilding::Copies, Err(error)) => self.not_copied(error, world.view),
                }
            }
            (State::Resend(again), event @ (Event::Allocated(_) | Event::Started(_))) => self.on_resend(again, event, world),
            (State::Committing, Event::Committed(Err(error))) if self.put_bytes.is_some() && is_refused(&error) => {
                // The writer gets the reason when it calls `CommitPut`.
                self.put_bytes = None;
                self.commit();
            }
            (State::Committing, Event::Committed(committed)) => {
                let traffic = self.traffic;
                self.end(committed.map(|()| Ended { traffic, again: false }));
            }
            (state, _) => self.state = state,
        }
        std::mem::take(&mut self.actions)
    }

    fn begin(&mut self, report: Report, early: bool, complaints: &BTreeSet<NodeId>, world: &mut World<'_>) {
        self.sent = self.sent.after(&report, world.view);
        self.traffic = report.traffic();
        self.report = report;
        let SentStripe { stripe, checksums, .. } = &self.sent;
        let wrong = stored_wrong(stripe, checksums, &self.report);
        self.actions.extend(wrong.into_iter().map(|(block, node)| Action::StoredWrong(block, node)));
        // The failures of other receivers are handled when their plan ends.
        if early {
            return match self.sent.is_enough(&self.request) {
                true => self.commit(),
                false => self
                    .end(Err(Error::fatal("internal error: a stripe was to end without enough of its blocks")
                        .object(&self.request.object))),
            };
        }
        let failed = who_failed(&self.report, complaints, self.request.long_wait_ms);
        self.actions.extend(complaints.intersection(&failed).map(|node| Action::Suspect(*node)));
        self.sent.failed.extend(failed);
        if self.report.held_up.is_some() {
            self.actions.push(Action::HeldUp);
        }
        // Data comes from the writer: a node that stored something else received the right bytes.
        let SentStripe { stripe, checksums, missing, .. } = &self.sent;
        let data = missing.keys().filter(|index| usize::from(**index) < self.request.code.k() && is_known(checksums, **index));
        let wrong: Vec<NodeId> = data.filter_map(|index| Some(stored_at(stripe, *index, &self.report)?.0)).collect();
        self.sent.failed.extend(wrong);
        match self.sent.is_enough(&self.request) {
            true => self.complete_copies(world),
            false => self.mend(world),
        }
    }

    /// Too many blocks are missing: they are rebuilt from the stored ones or, if that is impossible, sent again.
    fn mend(&mut self, world: &mut World<'_>) {
        self.actions.push(Action::Warn(format!("blocks of a put were not stored: {}", self.sent.reasons())));
        let missing: Vec<u8> = self.sent.missing.keys().copied().collect();
        // A rebuilt block with unknown checksums could not be checked: everything is sent again, to other nodes.
        if self.sent.lacks_unknown() {
            self.give_up();
        } else if recovery::is_recoverable(&self.request.code, &self.sent.stripe, &missing) {
            let copy = |index: u8| self.sent.stripe.blocks.get(&index).map_or(0, |placed| placed.copy);
            let missing = missing.iter().map(|index| (*index, copy(*index))).collect();
            self.rebuild(Rebuilding::Missing, missing, world);
        } else if self.sent.resent < self.request.resumes_max {
            self.send_again(world);
        } else {
            self.give_up();
        }
    }

    /// Creates missing copies from existing blocks, unless the policy allows them to come later.
    fn complete_copies(&mut self, world: &mut World<'_>) {
        let lacks = |(_, placed): &&(u8, PlacedBlock)| placed.state != BlockState::Ok;
        let lacking = self.sent.stripe.copies.iter().filter(lacks).map(|(index, placed)| (*index, placed.copy));
        let lacking: Vec<(u8, u8)> = lacking.filter(|_| self.request.missing_max == 0).collect();
        if lacking.is_empty() {
            return self.commit();
        }
        self.actions.push(Action::Warn(format!("copies of blocks of a put were not stored: {lacking:?} (block, copy)")));
        self.rebuild(Rebuilding::Copies, lacking, world);
    }

    /// Rebuilds blocks, by index and copy, from stored ones, on other nodes.
    fn rebuild(&mut self, what: Rebuilding, blocks: Vec<(u8, u8)>, world: &World<'_>) {
        let (request, SentStripe { checksums, missing, .. }) = (&self.request, &self.sent);
        let mut stripe = self.sent.stripe.clone();
        for (index, placed) in &mut stripe.blocks {
            // The stored blocks are as good as those of a visible stripe.
            placed.state = if missing.contains_key(index) { BlockState::Missing } else { BlockState::Ok };
        }
        let stays = |(index, placed): &(u8, &PlacedBlock)| !blocks.contains(&(*index, placed.copy));
        let held: Vec<NodeId> = stripe.all().filter(stays).map(|(_, placed)| placed.home.node).collect();
        // Copies may go to any node.
        let failure_domain = if stripe.copies.is_empty() { request.failure_domain } else { FailureDomain::Node };
        let avoid = match self.avoided(blocks.len(), &held, failure_domain, world.view) {
            Ok(avoid) => avoid,
            Err(error) if what == Rebuilding::Missing => return self.not_rebuilt(error, world.view),
            Err(error) => return self.not_copied(error, world.view),
        };
        let known = |index: u8| checksums.get(usize::from(index)).cloned().flatten();
        let lost = blocks.into_iter().map(|(index, copy)| Lost { index, copy, checksums: known(index) });
        let rebuild = rebuild::Request {
            code: request.code.clone(),
            object: request.object.clone(),
            lost: lost.collect(),
            stripe,
            options: request.repair.clone(),
            helpers: None,
            scheduled: None,
            to: Destination::Anywhere,
            failure_domain: request.failure_domain,
            purpose: Purpose::Put(request.upload),
            avoid,
            silent: BTreeSet::new(),
            resumes_max: request.resumes_max,
            disk_reserve_bytes: request.disk_reserve_bytes,
            kept: Share::NONE,
            needed: Needed::Always,
            answers: rebuild::Answers::default(),
        };
        self.actions.push(Action::Rebuild(Box::new(rebuild)));
        self.state = State::Rebuilding(what);
    }

    /// Adds a rebuilt block.
    fn take(&mut self, new: RebuiltBlock) {
        let RebuiltBlock { block, home, checksums } = new;
        let known = self.sent.checksums.get_mut(usize::from(block.index));
        if let (Some(placed), Some(known)) = (self.sent.stripe.find_mut(block.index, block.copy), known) {
            *placed = PlacedBlock { generation: block.generation, home, state: BlockState::Ok, ..*placed };
            *known = Some(checksums);
        }
        self.sent.missing.remove(&block.index);
    }

    fn not_rebuilt(&mut self, error: Error, view: &View) {
        // Stored blocks may have been lost since; the writer still has all data.
        if goes_again(&error) && (self.has_lost_more(view) || self.could_go_elsewhere(view)) {
            self.actions.push(Action::Warn(format!("the missing blocks cannot be rebuilt either: {error}")));
            return self.give_up_since(|given_up| format!("{given_up}; they could not be rebuilt either: {}", error.message));
        }
        // An operator can fix the reason for which they had to be rebuilt.
        let message = format!("{}; {}", self.sent.reasons(), error.message);
        self.end(Err(Error { message, ..error }.for_lack_of_space(self.sent.disk_was_full)));
    }

    fn not_copied(&mut self, error: Error, view: &View) {
        if !self.has_lost_more(view) {
            return self.end(Err(error.for_lack_of_space(self.sent.disk_was_full)));
        }
        self.actions.push(Action::Warn(format!("cannot create copies of blocks: {error}")));
        let number = self.sent.stripe.number;
        self.give_up_since(|_| format!("cannot create copies of blocks of stripe {number}: {}", error.message));
    }

    /// Whether a node that had stored its block is down or suspect since.
    fn has_lost_more(&self, view: &View) -> bool {
        let SentStripe { stripe, missing, failed, .. } = &self.sent;
        let stored = stripe.firsts().filter(|(index, _)| !missing.contains_key(index));
        let is_good = |node: &NodeView| node.up && !node.is_suspect() && !failed.contains(&node.id);
        stored.map(|(_, placed)| placed.home.node).any(|node| !view.node(node).is_some_and(is_good))
    }

    /// Whether enough nodes remain for the whole stripe without those that failed. The writer still has all data, and a
    /// node that could not help with the rebuild may be suspect only for a moment.
    fn could_go_elsewhere(&self, view: &View) -> bool {
        let others = view.nodes.values().filter(|node| node.up && !self.sent.failed.contains(&node.id));
        others.count() >= self.sent.stripe.blocks.len()
    }

    /// Gives up the stripe under its number: the writer sends all of it as a new stripe, to other nodes.
    pub(super) fn give_up(&mut self) {
        self.give_up_since(str::to_owned);
    }

    fn give_up_since(&mut self, message: impl FnOnce(&str) -> String) {
        // Nodes that did not complete their tasks are avoided for a while.
        let broken = self.report.nodes.iter().filter(|(_, node)| matches!(node.end, Some(End::Broken(_) | End::GivenUp)));
        self.actions.extend(broken.map(|(node, _)| Action::Suspect(*node)));
        let given_up = format!("too few blocks of stripe {} were stored: {}", self.sent.stripe.number, self.sent.reasons());
        let error = Error::replan(message(&given_up)).object(&self.request.object);
        self.end(Err(error.for_lack_of_space(self.sent.disk_was_full)));
    }

    /// Records that the stripe has ended, and which of its blocks are missing for now.
    fn commit(&mut self) {
        let SentStripe { mut stripe, checksums, missing, .. } = self.sent.clone();
        for (index, placed) in &mut stripe.blocks {
            placed.state = if missing.contains_key(index) { BlockState::Missing } else { BlockState::Ok };
        }
        stripe.put_first(|_, _, placed| placed.copy);
        let blocks = stripe.all().map(|(_, placed)| (placed.generation, placed.home, placed.state)).collect();
        match whole_checksums(&stripe, checksums) {
            Ok(checksums) => {
                self.actions.push(Action::Commit { blocks, checksums, put_bytes: self.put_bytes });
                self.state = State::Committing;
            }
            Err(error) => self.end(Err(error.object(&self.request.object))),
        }
    }

    pub(super) fn end(&mut self, result: Result<Ended>) {
        self.actions.push(Action::End(result));
        self.state = State::Ended;
    }

    /// The writer sends again: reports the agents' traffic so far.
    pub(super) fn end_again(&mut self) {
        self.end(Ok(Ended { traffic: self.traffic, again: true }));
    }
}

/// Whether a stripe whose blocks could not be rebuilt may be stored if all of it is sent again to other nodes: the
/// failure came from the state of the cluster and not from the request.
fn goes_again(error: &Error) -> bool {
    let is_too_much_for_a_node = error.reaction == Reaction::InvalidInput && matches!(error.party, Some(Party::Node(_)));
    is_too_much_for_a_node || matches!(error.reaction, Reaction::Unavailable | Reaction::Replan | Reaction::Retry)
}

/// Whether a transaction was refused for its content, and not for a temporary reason.
fn is_refused(error: &Error) -> bool {
    matches!(error.reaction, Reaction::InvalidInput | Reaction::Replan)
}
