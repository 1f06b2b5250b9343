//! A plan that runs at its agents, from the start of its tasks until the last of them has ended or was given up.
//!
//! Events and the time go in, actions come out. The shell carries out the actions in order, and answers some of them.
//! [`wake_at`](Execution::wake_at) says when to wake the plan without an event.
//!
//! ```text
//!   running ──client is done, or a task of EndAll failed──► ending: the others have a grace period
//!      │                                                       │ it has passed
//!      └──a node delays the plan──► cancelling ◄───────────────┘
//!                                        │ answered, and another grace period has passed
//!                                        ▼
//!                                     given up
//! ```
//! A node may be found to delay the plan in any of these states but the last; the grace period then restarts.
//!
//! Whether there is an alternative to a node depends on all nodes at that moment and takes time to compute. So it is requested
//! ([`Action::Ask`]) only when it matters, and the answer is an event.

use super::{
    activity::{Ends, Seen},
    blame::{self, culprit},
    report::{Blame, Report, TaskEvent},
    stall::{Flow, StallPolicy},
};
use crate::Time;
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};
use weft_types::{Error, NodeId, Party, TaskTraffic};

/// How long a node that delays a plan may take to report what has arrived there.
const HELD_UP_GRACE: Duration = Duration::from_millis(300);

/// A node on whose links nothing has moved for this fraction of the time after which links give up stands still: on a full link, something moves
/// all the time.
const RECENT_SHARE: u32 = 2;

/// What happens to the other tasks when one fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnFailure {
    /// They have a grace period to end, and are then cancelled.
    EndAll,
    /// They continue: a put's receivers do not depend on each other.
    GoOn,
}

/// A node's part of a plan.
#[derive(Debug, Clone)]
pub struct Share {
    /// The node's name.
    pub name: String,
    /// The bytes over all its links, in and out, if nothing fails.
    pub link_bytes: u64,
    /// Its links.
    pub ends: Ends,
}

/// What to do if there is an alternative to a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Around {
    /// End the plan; another plan avoids the node.
    Replan,
    /// Continue the plan without the node.
    GoOn,
}

/// An event.
#[derive(Debug, Clone)]
pub enum Event {
    /// An agent's event about its task.
    Told(NodeId, TaskEvent),
    /// Contact with a task is lost, and why.
    Lost(NodeId, Option<Error>),
    /// The client has finished: tasks may take this long to end.
    ClientDone(Duration),
    /// The client cannot continue because of these nodes.
    Complaint(BTreeSet<NodeId>),
    /// The nodes were checked: these are down, or have registered again.
    Looked {
        /// Nodes without a task of this plan are ignored.
        down: BTreeSet<NodeId>,
        /// What moves at the nodes of this plan, over all plans.
        seen: BTreeMap<NodeId, Seen>,
    },
    /// [`Action::CancelAll`] was answered, or timed out.
    Cancelled,
    /// Answers [`Action::Ask`].
    Answered {
        /// The node.
        node: NodeId,
        /// The requested alternative.
        around: Around,
        /// Whether there is one.
        is_spare: bool,
    },
    /// The time of [`Execution::wake_at`] has come.
    Woken,
}

/// An action.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// A node has moved this many bytes in total.
    Progress(NodeId, u64),
    /// A node has reported; whether its task has received and sent more since its last report.
    Heard {
        /// The node.
        node: NodeId,
        /// Whether it has received more.
        received: bool,
        /// Whether it has sent more.
        sent: bool,
    },
    /// This share of all link bytes has moved, from 0 to 1.
    Moved(f64),
    /// A task has finished: its times show how fast the node is.
    Ended(NodeId),
    /// Avoid a node for a while.
    Suspect(NodeId),
    /// The plan continues without a node, for this reason.
    GoOnWithout(NodeId, Error),
    /// Cancel a task without waiting for an answer, which may never come.
    Cancel(NodeId),
    /// Cancel these tasks; [`Event::Cancelled`] answers.
    CancelAll(Vec<NodeId>),
    /// Find out whether there is an alternative to a node now; [`Event::Answered`] answers.
    Ask(NodeId, Around),
    /// The plan is failing: its caller may know this before its end.
    Failing,
    /// Another task has ended. A caller that follows independent tasks may check the report.
    SoFar,
}

/// The state machine of a running plan.
pub struct Execution {
    shares: BTreeMap<NodeId, Share>,
    on_failure: OnFailure,
    /// How long tasks have to end before they are cancelled.
    grace: Duration,
    policy: Option<StallPolicy>,
    /// After this time without movement, links give up.
    links_timeout: Duration,
    /// What moved at the nodes when they were last checked, and when that was; no later than the first failure.
    seen: (BTreeMap<NodeId, Seen>, Time),
    report: Report,
    flow: Flow,
    deadline: Deadline,
    /// Until when the node that delays the plan may report what has arrived.
    held_up_until: Option<Time>,
    /// The number of ended tasks at the last [`Action::SoFar`].
    ended_told: usize,
    is_failing: bool,
    /// Questions without an answer yet.
    asked: BTreeSet<(NodeId, Around)>,
    actions: Vec<Action>,
}

/// When the running tasks are cancelled or given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Deadline {
    /// No end is set.
    None,
    /// They are cancelled at this time.
    Cancel(Time),
    /// They are being cancelled.
    Cancelling,
    /// They are given up at this time.
    GiveUp(Time),
}

impl Execution {
    /// For a plan whose tasks were started by `now`; some could not be started, for these reasons. When one fails, the others have the time
    /// `grace` to end before they are cancelled. Links give up after `links_timeout`; with a policy, a stalled plan is ended as soon as the
    /// culprit is known.
    pub fn new(
        shares: BTreeMap<NodeId, Share>,
        not_started: BTreeMap<NodeId, Error>,
        on_failure: OnFailure,
        (grace, links_timeout): (Duration, Duration),
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
            links_timeout,
            seen: (BTreeMap::new(), now),
            deadline: Deadline::None,
            held_up_until: None,
            ended_told: 0,
            is_failing: false,
            asked: BTreeSet::new(),
            actions: Vec::new(),
        };
        // The consequences of tasks that could not be started are returned with the first event's actions.
        it.settle(now);
        it
    }

    /// The reports so far.
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// Whether every task has ended or was given up.
    pub fn has_ended(&self) -> bool {
        self.report.all_ended()
    }

    /// When to wake the plan without an event.
    pub fn wake_at(&self) -> Option<Time> {
        let deadline = match self.deadline {
            Deadline::Cancel(at) | Deadline::GiveUp(at) => Some(at),
            Deadline::None | Deadline::Cancelling => None,
        };
        [deadline, self.held_up_until].into_iter().flatten().min()
    }

    /// Handles an event and returns the next actions. There is at most one [`Action::CancelAll`], and it is the last.
    pub fn on(&mut self, event: Event, now: Time) -> Vec<Action> {
        match event {
            Event::Told(node, event) => self.told(node, event, now),
            Event::Lost(node, error) => {
                let silent = || Error::replan("its event stream ended before the task did");
                // Avoid a lost node at once, and not only after all others have ended.
                if self.report.broken(node, error.unwrap_or_else(silent).party(Party::Node(node))) {
                    self.actions.push(Action::Suspect(node));
                }
            }
            Event::ClientDone(within) => self.end_by(now + within),
            Event::Complaint(nodes) => self.give_up_silent(&nodes, now),
            Event::Looked { down, seen } => self.looked(&down, seen, now),
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

    /// The final report, with the node to blame, and the node to avoid for that. No node is avoided if links may only have been full.
    pub fn finish(mut self) -> (Report, Option<NodeId>) {
        self.report.blame = culprit(&self.report);
        self.report.starved = self.report.blame.is_some_and(|blame| self.is_starved(blame));
        // For a bad block, only the block is avoided, and not its node.
        let is_suspect = |node: &NodeId| !self.report.starved && !self.report.is_bad_block(*node);
        let suspect = self.report.blame.map(|blame| blame.node).filter(is_suspect);
        (self.report, suspect)
    }

    /// Whether a node may be blamed only because links are full: this link stood still, while other links of the node moved. Or while many
    /// others moved at its accuser, if that receives from it, or if the node has no other links that would tell. A node none of whose other
    /// links moves either is to blame.
    fn is_starved(&self, Blame { node, accuser }: Blame) -> bool {
        let accusers = if accuser.is_some() { blame::accusers_of_stall(&self.report, node) } else { Vec::new() };
        let ((seen, at), within) = (&self.seen, self.links_timeout / RECENT_SHARE);
        let ends = self.shares.get(&node).map(|share| share.ends).unwrap_or_default();
        let own = seen.get(&node).copied().unwrap_or_default();
        let may_starve_it = |accuser: &NodeId| {
            let other = seen.get(accuser).copied().unwrap_or_default();
            ends.receives == 0 && other.receives.is_full(within, *at) || own.has_only(ends) && other.is_full(within, *at)
        };
        !accusers.is_empty() && (own.moves(ends, within, *at) || accusers.iter().any(may_starve_it))
    }

    /// The running tasks, except the one that delays the others, which was cancelled separately.
    fn rest(&self) -> Vec<NodeId> {
        let mut rest = self.report.running();
        rest.retain(|node| self.report.held_up.as_ref().is_none_or(|(blame, _)| blame.node != *node));
        rest
    }

    fn told(&mut self, node: NodeId, event: TaskEvent, now: Time) {
        match &event {
            TaskEvent::Progress { moved_bytes, received_bytes, .. } => {
                let (received, sent) = self.flow.told(node, (*moved_bytes, *received_bytes), now);
                self.actions.extend([Action::Progress(node, *moved_bytes), Action::Heard { node, received, sent }]);
                self.actions.push(Action::Moved(self.share_moved()));
            }
            TaskEvent::Done { traffic, .. } => {
                self.ended_with(node, traffic, now);
                self.flow.done(node, now);
                self.actions.extend([Action::Moved(self.share_moved()), Action::Ended(node)]);
            }
            TaskEvent::Failed { traffic, .. } => self.ended_with(node, traffic, now),
        }
        self.report.take(node, event);
    }

    /// A task has ended, with this traffic. A short one has reported nothing before.
    fn ended_with(&mut self, node: NodeId, traffic: &TaskTraffic, now: Time) {
        let TaskTraffic { sent_bytes, received_bytes, .. } = *traffic;
        let (received, sent) = self.flow.told(node, (sent_bytes.saturating_add(received_bytes), received_bytes), now);
        self.actions.push(Action::Heard { node, received, sent });
    }

    /// Applies all consequences of the current state.
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

    /// Sets a time at which running tasks are cancelled, unless an earlier one is set.
    fn end_by(&mut self, at: Time) {
        self.deadline = match self.deadline {
            Deadline::None => Deadline::Cancel(at),
            Deadline::Cancel(before) => Deadline::Cancel(before.min(at)),
            further => further,
        };
    }

    fn looked(&mut self, down: &BTreeSet<NodeId>, seen: BTreeMap<NodeId, Seen>, now: Time) {
        if !self.report.any_failed() {
            self.seen = (seen, now);
        }
        for node in self.report.running().into_iter().filter(|node| down.contains(node)) {
            let error = Error::replan(format!("{} went down", self.name(node)));
            self.report.broken(node, error.party(Party::Node(node)));
        }
        if let Some((node, _)) = self.culprit(now) {
            self.ask(node, Around::Replan);
        }
    }

    /// The node that delays the plan, and a node that it delays.
    fn culprit(&self, now: Time) -> Option<(NodeId, Option<NodeId>)> {
        let policy = self.policy.filter(|_| !self.report.any_failed() && self.report.held_up.is_none());
        let (policy, (seen, at)) = (policy?, &self.seen);
        // Its reports wait in the queue of a full link, like all that it sends.
        let is_alive = |node: NodeId| {
            let within = policy.stall_timeout;
            seen.get(&node).is_some_and(|seen| seen.is_full(self.links_timeout / RECENT_SHARE, *at) && seen.is_heard(within, now))
        };
        self.flow.culprit(&self.report, &policy, is_alive, now)
    }

    fn ask(&mut self, node: NodeId, around: Around) {
        self.asked.insert((node, around));
        self.actions.push(Action::Ask(node, around));
    }

    fn go_around(&mut self, node: NodeId, around: Around, now: Time) {
        // The node may have moved bytes since, or have ended.
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

    /// Ends a plan that is delayed by a node to which there is an alternative.
    fn end_stalled(&mut self, node: NodeId, accuser: Option<NodeId>) {
        let name = self.name(node);
        let error = Error::replan(format!("{name} delays the whole plan: nothing has moved for {} ms", self.stall_ms()));
        // The delay may be short, so the node is blamed like one that another node blames.
        self.report.held_up = Some((Blame { node, accuser }, error.party(Party::Node(node))));
        self.actions.extend([Action::Suspect(node), Action::Cancel(node)]);
        self.cancel_rest();
    }

    /// Gives up silent nodes that the client blames, if no other node waits for them.
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
        let error = Error::replan(format!("{name} has taken no data and sent no report for {} ms", self.stall_ms()));
        self.report.broken(node, error.clone().party(Party::Node(node)));
        self.actions.extend([Action::GoOnWithout(node, error), Action::Suspect(node), Action::Cancel(node)]);
    }

    fn stall_ms(&self) -> u128 {
        self.policy.map_or(0, |policy| policy.stall_timeout.as_millis())
    }

    fn woken(&mut self, now: Time) {
        if self.held_up_until.is_some_and(|until| until <= now) {
            self.held_up_until = None;
            // Its time to report what has arrived is over.
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
