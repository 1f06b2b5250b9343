//! A plan that runs at its agents: from when its tasks were started until the last of them has ended or been given up.
//!
//! Events go in with the time, actions come out. The shell does them in order, and answers those that say so. With
//! [`wake_at`](Execution::wake_at) it is told when to come back without an event.
//!
//! ```text
//! running ──client is done, or a task of EndAll failed──► ending: the others have a grace
//!    │                                                       │ it has passed
//!    └──a node holds up the plan──► cancelling ◄─────────────┘
//!                                       │ answered, and another grace has passed
//!                                       ▼
//!                                    given up
//! ```
//! A node may be found to hold up the plan in any of these states but the last; the grace period then restarts.
//!
//! Whether there is a way around a node depends on all nodes at that moment and takes a while to find out: it is asked ([`Action::Ask`])
//! only when it matters, and the answer is an event.

use super::{
    blame::culprit,
    report::{Blame, Report, TaskEvent},
    stall::{Flow, StallPolicy},
};
use crate::Time;
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};
use weft_types::{Error, NodeId, Party};

/// A node that holds up a plan may say for so long what has arrived there.
const HELD_UP_GRACE: Duration = Duration::from_millis(300);

/// What happens to the other tasks when one fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnFailure {
    /// They have a grace to end by themselves, and are cancelled then.
    EndAll,
    /// They go on: a put's receivers do not depend on each other.
    GoOn,
}

/// A node's share of a plan, as far as its execution goes.
#[derive(Debug, Clone)]
pub struct Share {
    /// What its operator calls the node.
    pub name: String,
    /// What goes over all its links, in and out, when all goes well.
    pub link_bytes: u64,
}

/// What is done if there is a way around a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Around {
    /// The plan is ended, and another goes around the node.
    Replan,
    /// The plan goes on without the node.
    GoOn,
}

/// What happened.
#[derive(Debug, Clone)]
pub enum Event {
    /// An agent tells something of its task.
    Told(NodeId, TaskEvent),
    /// Nothing more can be heard of a task, and why.
    Lost(NodeId, Option<Error>),
    /// The client is done: tasks may take this long to end.
    ClientDone(Duration),
    /// The client cannot go on for these nodes.
    Complaint(BTreeSet<NodeId>),
    /// The nodes were checked: these are down, or have registered again.
    Looked {
        /// Nodes that have no task of this plan are ignored.
        down: BTreeSet<NodeId>,
    },
    /// [`Action::CancelAll`] was answered, or timed out.
    Cancelled,
    /// Answers [`Action::Ask`].
    Answered {
        /// The node.
        node: NodeId,
        /// What was asked.
        around: Around,
        /// Whether there is a way around it.
        is_spare: bool,
    },
    /// The time that [`Execution::wake_at`] named has come.
    Woken,
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// A node has moved so many bytes.
    Progress(NodeId, u64),
    /// So much of what goes over links has gone, from 0 to 1.
    Moved(f64),
    /// A task came to its end: its times tell how fast the node is.
    Ended(NodeId),
    /// A node is to be avoided for a while.
    Suspect(NodeId),
    /// The plan goes on without a node, and why.
    GoOnWithout(NodeId, Error),
    /// Cancel a task, and wait for no answer: there may never be one.
    Cancel(NodeId),
    /// Cancel these tasks; [`Event::Cancelled`] answers.
    CancelAll(Vec<NodeId>),
    /// Find out whether there is a way around a node as things are now; [`Event::Answered`] answers.
    Ask(NodeId, Around),
    /// The plan fails: whoever asks may know it before its end.
    Failing,
    /// One more task has ended: whoever follows a plan whose tasks do not depend on each other may look.
    SoFar,
}

/// A plan that runs at its agents.
pub struct Execution {
    shares: BTreeMap<NodeId, Share>,
    on_failure: OnFailure,
    /// How long tasks have to end by themselves.
    grace: Duration,
    policy: Option<StallPolicy>,
    report: Report,
    flow: Flow,
    deadline: Deadline,
    /// Whoever holds up the plan may say until then what has arrived.
    held_up_until: Option<Time>,
    /// How many tasks had ended when that was last told.
    ended_told: usize,
    is_failing: bool,
    /// What was asked and has no answer yet.
    asked: BTreeSet<(NodeId, Around)>,
    actions: Vec<Action>,
}

/// When those that still run are cancelled, or given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Deadline {
    /// Nobody waits for them to end.
    None,
    /// They are cancelled then.
    Cancel(Time),
    /// They are being cancelled.
    Cancelling,
    /// They are given up then.
    GiveUp(Time),
}

impl Execution {
    /// Of a plan whose tasks were started by `now`; some could not be, and why. Others have so long a `grace` to end by themselves when
    /// one fails. With a policy, a plan that stalls is ended as soon as it is known because of whom.
    pub fn new(
        shares: BTreeMap<NodeId, Share>,
        not_started: BTreeMap<NodeId, Error>,
        on_failure: OnFailure,
        grace: Duration,
        policy: Option<StallPolicy>,
        now: Time,
    ) -> Self {
        let mut report = Report::new(shares.keys().copied());
        for (node, error) in not_started {
            report.broken(node, error);
        }
        let mut it = Self {
            report,
            flow: Flow::new(shares.keys().copied(), now),
            shares,
            on_failure,
            grace,
            policy,
            deadline: Deadline::None,
            held_up_until: None,
            ended_told: 0,
            is_failing: false,
            asked: BTreeSet::new(),
            actions: Vec::new(),
        };
        // What follows from a task that could not be started is told with the first event's actions.
        it.settle(now);
        it
    }

    /// What was told so far.
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// Whether every task has ended or been given up.
    pub fn has_ended(&self) -> bool {
        self.report.all_ended()
    }

    /// When to come back without an event.
    pub fn wake_at(&self) -> Option<Time> {
        let deadline = match self.deadline {
            Deadline::Cancel(at) | Deadline::GiveUp(at) => Some(at),
            Deadline::None | Deadline::Cancelling => None,
        };
        [deadline, self.held_up_until].into_iter().flatten().min()
    }

    /// Takes an event; what is to be done then. Of the actions, [`Action::CancelAll`] is the last, and there is at most one.
    pub fn on(&mut self, event: Event, now: Time) -> Vec<Action> {
        match event {
            Event::Told(node, event) => self.told(node, event, now),
            Event::Lost(node, error) => {
                let silent = || Error::replan("its stream of events ended without an end of the task");
                // Whoever is gone is avoided at once, not only when all others have ended too.
                if self.report.broken(node, error.unwrap_or_else(silent).party(Party::Node(node))) {
                    self.actions.push(Action::Suspect(node));
                }
            }
            Event::ClientDone(within) => self.end_by(now + within),
            Event::Complaint(nodes) => self.give_up_silent(&nodes, now),
            Event::Looked { down } => self.looked(&down, now),
            Event::Cancelled if self.deadline == Deadline::Cancelling => {
                self.deadline = Deadline::GiveUp(now + self.grace);
                if self.report.held_up.is_some() {
                    self.fail();
                    self.held_up_until = Some(now + HELD_UP_GRACE.min(self.grace));
                }
            }
            Event::Cancelled => {}
            Event::Answered { node, around, is_spare } => {
                if self.asked.remove(&(node, around)) && is_spare {
                    self.go_around(node, around, now);
                }
            }
            Event::Woken => self.woken(now),
        }
        self.settle(now);
        std::mem::take(&mut self.actions)
    }

    /// What all tasks have told when they have ended, with who is to blame; and whom to avoid for that.
    pub fn finish(mut self) -> (Report, Option<NodeId>) {
        self.report.blame = culprit(&self.report);
        // For a bad block its whole node need not be avoided: the block is.
        let suspect = self.report.blame.map(|blame| blame.node).filter(|node| !self.report.is_bad_block(*node));
        (self.report, suspect)
    }

    /// The tasks that still run, but for the one that holds up the others, which was cancelled by itself.
    fn rest(&self) -> Vec<NodeId> {
        let mut rest = self.report.running();
        rest.retain(|node| self.report.held_up.as_ref().is_none_or(|(blame, _)| blame.node != *node));
        rest
    }

    fn told(&mut self, node: NodeId, event: TaskEvent, now: Time) {
        match &event {
            TaskEvent::Progress { moved_bytes, .. } => {
                self.actions.push(Action::Progress(node, *moved_bytes));
                self.flow.told(node, *moved_bytes, now);
                self.actions.push(Action::Moved(self.share_moved()));
            }
            TaskEvent::Done { .. } => {
                self.flow.done(node, now);
                self.actions.extend([Action::Moved(self.share_moved()), Action::Ended(node)]);
            }
            TaskEvent::Failed { .. } => {}
        }
        self.report.take(node, event);
    }

    /// What follows from what is known by now, whatever the event was.
    fn settle(&mut self, now: Time) {
        let ended = self.report.ended_count();
        if self.on_failure == OnFailure::GoOn && ended > self.ended_told && !self.report.all_ended() {
            self.ended_told = ended;
            self.actions.push(Action::SoFar);
        }
        if self.on_failure == OnFailure::EndAll && self.report.any_failed() {
            self.fail();
            self.end_by(now + self.grace);
        }
    }

    fn fail(&mut self) {
        if !self.is_failing {
            self.actions.push(Action::Failing);
        }
        self.is_failing = true;
    }

    /// Tasks that still run then are cancelled, unless that happens sooner anyway.
    fn end_by(&mut self, at: Time) {
        self.deadline = match self.deadline {
            Deadline::None => Deadline::Cancel(at),
            Deadline::Cancel(before) => Deadline::Cancel(before.min(at)),
            further => further,
        };
    }

    fn looked(&mut self, down: &BTreeSet<NodeId>, now: Time) {
        for node in self.report.running().into_iter().filter(|node| down.contains(node)) {
            let error = Error::replan(format!("{} went down", self.name(node)));
            self.report.broken(node, error.party(Party::Node(node)));
        }
        if let Some((node, _)) = self.culprit(now) {
            self.ask(node, Around::Replan);
        }
    }

    /// Who holds up the plan, and one of those held up.
    fn culprit(&self, now: Time) -> Option<(NodeId, Option<NodeId>)> {
        let policy = self.policy.filter(|_| !self.report.any_failed() && self.report.held_up.is_none());
        self.flow.culprit(&self.report, &policy?, now)
    }

    fn ask(&mut self, node: NodeId, around: Around) {
        self.asked.insert((node, around));
        self.actions.push(Action::Ask(node, around));
    }

    fn go_around(&mut self, node: NodeId, around: Around, now: Time) {
        // It may have moved since, or have ended.
        match around {
            Around::Replan => {
                if let Some((_, accuser)) = self.culprit(now).filter(|(culprit, _)| *culprit == node) {
                    self.end_stalled(node, accuser);
                }
            }
            Around::GoOn if self.may_be_given_up(node, now) => self.give_up(node),
            Around::GoOn => {}
        }
    }

    /// Ends a plan that a node holds up whom there is a way around.
    fn end_stalled(&mut self, node: NodeId, accuser: Option<NodeId>) {
        let name = self.name(node);
        let error = Error::replan(format!("{name} holds up everybody: nothing has moved for {} ms", self.stall_ms()));
        // Perhaps it was but a moment: so it is blamed as one of whom another complains.
        self.report.held_up = Some((Blame { node, accuser }, error.party(Party::Node(node))));
        self.actions.extend([Action::Suspect(node), Action::Cancel(node)]);
        self.cancel_rest();
    }

    /// Does without those that the client complains of and that are not heard of, where nobody else waits for them.
    fn give_up_silent(&mut self, complaints: &BTreeSet<NodeId>, now: Time) {
        for node in complaints {
            if !self.may_be_given_up(*node, now) {
                continue;
            }
            let failed_max = self.policy.map_or(0, |policy| policy.failed_max);
            match self.report.failed_nodes().count() < failed_max {
                true => self.give_up(*node),
                false => self.ask(*node, Around::GoOn),
            }
        }
    }

    /// Whether only the client waits for a node that reports nothing.
    fn may_be_given_up(&self, node: NodeId, now: Time) -> bool {
        let is_silent = |policy: StallPolicy| policy.one_by_one && self.flow.is_silent(node, policy.stall_timeout, now);
        self.report.running().contains(&node) && self.policy.is_some_and(is_silent)
    }

    fn give_up(&mut self, node: NodeId) {
        let name = self.name(node);
        let error = Error::replan(format!("{name} takes nothing, and was not heard of for {} ms", self.stall_ms()));
        self.report.broken(node, error.clone().party(Party::Node(node)));
        self.actions.extend([Action::GoOnWithout(node, error), Action::Suspect(node), Action::Cancel(node)]);
    }

    fn stall_ms(&self) -> u128 {
        self.policy.map_or(0, |policy| policy.stall_timeout.as_millis())
    }

    fn woken(&mut self, now: Time) {
        if self.held_up_until.is_some_and(|until| until <= now) {
            self.held_up_until = None;
            // It has had its time to say what has arrived.
            if let Some((blame, error)) = self.report.held_up.clone() {
                self.report.broken(blame.node, error);
            }
            return;
        }
        match self.deadline {
            Deadline::Cancel(at) if at <= now => self.cancel_rest(),
            Deadline::GiveUp(at) if at <= now => self.report.give_up_rest(),
            _ => {}
        }
    }

    fn cancel_rest(&mut self) {
        self.deadline = Deadline::Cancelling;
        self.actions.push(Action::CancelAll(self.rest()));
    }

    fn share_moved(&self) -> f64 {
        let all: u64 = self.shares.values().map(|share| share.link_bytes).sum();
        let moved: u64 = self.shares.iter().map(|(node, share)| self.flow.moved_bytes(*node).min(share.link_bytes)).sum();
        if all > 0 { moved as f64 / all as f64 } else { 1.0 }
    }

    fn name(&self, node: NodeId) -> String {
        name(&self.shares, node)
    }
}

fn name(shares: &BTreeMap<NodeId, Share>, node: NodeId) -> String {
    shares.get(&node).map_or_else(|| node.to_string(), |share| share.name.clone())
}

#[cfg(test)]
mod tests;
