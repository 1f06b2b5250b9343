//! Runs plans at agents: opens all, starts all, collects what they tell, and says who is to blame when one fails.
//!
//! Nobody queues while holding something: an agent that has no room says so at once, and then all of them let go and are asked
//! again a little later. Puts, reads and repairs all come through here.

mod decode;

use crate::{
    config::CoordinatorConfig,
    in_flight::Moving,
    members::Session,
    membership,
    shared::Shared,
    sign::{Signed, SignedTask},
};
use futures::future::join_all;
use rand::Rng;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};
use tokio::{
    sync::{mpsc, watch},
    time::Instant,
};
use tonic::{Request, Streaming};
use weft_control::run::{self, Flow, Report, StallPolicy, TaskEvent};
use weft_proto::{from_status, rpc, v1};
use weft_types::{Error, NodeId, Party, PlanId, Reaction, Result};

/// The first pause before busy agents are asked again; each next one is twice as long, up to the last.
const BACKOFF_FIRST_MS: u64 = 10;
const BACKOFF_LAST_MS: u64 = 1_000;
/// How often it is looked whether nodes went down while their streams are silent.
const LOOK_INTERVAL_MS: u64 = 250;
/// Who holds up everybody may say for so long what has arrived there.
const HELD_UP_GRACE: Duration = Duration::from_millis(300);
/// Events of one plan that may wait to be looked at.
const EVENTS_MAX: usize = 256;

/// What shall happen when one agent fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnFailure {
    /// The others have a moment to end by themselves, and are cancelled then.
    EndAll,
    /// The others go on: a put's receivers do not depend on each other.
    GoOn,
}

/// A plan whose tasks run at the agents.
pub(crate) struct Running {
    shared: Arc<Shared>,
    plan: PlanId,
    tasks: BTreeMap<NodeId, SignedTask>,
    events: mpsc::Receiver<(NodeId, Event)>,
    report: Report,
    flow: Flow,
    on_failure: OnFailure,
    settle: watch::Receiver<Option<Duration>>,
    failing: watch::Sender<bool>,
    complaints: watch::Receiver<BTreeSet<NodeId>>,
    so_far: watch::Sender<Report>,
    moving: Moving,
}

/// Tells a running plan that its client is done with it: whoever has not ended after a while is cancelled. And what it waits for meanwhile.
#[derive(Debug)]
pub(crate) struct Settle {
    settle: watch::Sender<Option<Duration>>,
    failing: watch::Receiver<bool>,
    complaints: watch::Sender<BTreeSet<NodeId>>,
    so_far: watch::Receiver<Report>,
}

enum Event {
    Told(TaskEvent),
    Ended(Option<Error>),
}

/// Opens a plan at all its agents, or at none.
pub(crate) async fn open(shared: &Arc<Shared>, signed: &Signed) -> Result<()> {
    let mut attempt = 0;
    loop {
        let Err(error) = open_once(shared, signed).await else { return Ok(()) };
        attempt += 1;
        if error.reaction != Reaction::Retry || attempt >= shared.config.open_attempts_max {
            return Err(error);
        }
        let longest = BACKOFF_FIRST_MS.saturating_mul(1 << attempt.min(16)).min(BACKOFF_LAST_MS);
        let pause = shared.rng().random_range(longest / 2..=longest);
        tokio::time::sleep(Duration::from_millis(pause)).await;
    }
}

/// For so long after it was begun [`open`] may still ask an agent, milliseconds.
pub(crate) fn opening_ms(config: &CoordinatorConfig) -> u64 {
    // At each attempt some are asked, and then those that said yes are told that it was in vain.
    let attempt_ms = config.call_timeout_ms.saturating_mul(2).saturating_add(BACKOFF_LAST_MS);
    attempt_ms.saturating_mul(config.open_attempts_max.into())
}

/// Starts a plan that is open at all its agents.
pub(crate) async fn start(shared: &Arc<Shared>, signed: Signed, on_failure: OnFailure) -> (Running, Settle) {
    let (sender, events) = mpsc::channel(EVENTS_MAX);
    let plan = signed.id;
    let started = join_all(signed.agents.iter().map(|(node, task)| async move { (*node, start_one(shared, plan, task).await) }));
    let mut report = Report::new(signed.agents.keys().copied());
    for (node, stream) in started.await {
        match stream {
            Ok(stream) => drop(tokio::spawn(forward(node, stream, sender.clone()))),
            Err(error) => drop(report.broken(node, error)),
        }
    }
    let ((settle_sender, settle), (failing_sender, failing)) = (watch::channel(None), watch::channel(false));
    let ((complain, complaints), (so_far_sender, so_far)) = (watch::channel(BTreeSet::new()), watch::channel(Report::default()));
    let (shared, flow) = (Arc::clone(shared), Flow::new(signed.agents.keys().copied(), shared.started.now()));
    let Signed { agents: tasks, moving, .. } = signed;
    let running = Running {
        shared,
        plan,
        tasks,
        events,
        report,
        flow,
        on_failure,
        settle,
        failing: failing_sender,
        complaints,
        so_far: so_far_sender,
        moving,
    };
    (running, Settle { settle: settle_sender, failing, complaints: complain, so_far })
}

impl Settle {
    /// Of a plan that does not run, and what is told of it.
    #[cfg(test)]
    pub(crate) fn of_nothing() -> (Self, watch::Receiver<Option<Duration>>) {
        let (settle, told) = watch::channel(None);
        let (complaints, so_far) = (watch::Sender::default(), watch::Sender::default().subscribe());
        (Self { settle, failing: watch::Sender::new(false).subscribe(), complaints, so_far }, told)
    }

    /// The client is done; the tasks may take that long to end.
    pub(crate) fn settle(&self, within: Duration) {
        self.settle.send_replace(Some(within));
    }

    /// The client cannot go on for these nodes. If the plan does not hear of one either, it does without it.
    pub(crate) fn complain(&self, nodes: BTreeSet<NodeId>) {
        self.complaints.send_replace(nodes);
    }

    /// What those that have ended have told, each time that one more has: of plans whose nodes do not depend on each other.
    pub(crate) fn so_far(&self) -> watch::Receiver<Report> {
        self.so_far.clone()
    }

    /// Whether somebody has failed already.
    pub(crate) fn is_failing(&self) -> bool {
        *self.failing.borrow()
    }
}

impl Running {
    /// An error that asks for another plan if somebody did not even start: its peers would wait for it in vain. The others are
    /// cancelled then.
    pub(crate) async fn all_started(self) -> Result<Self> {
        let Some(error) = self.report.first_broken().cloned() else { return Ok(self) };
        self.cancel_rest().await;
        Err(Error { reaction: Reaction::Replan, ..error })
    }

    /// Collects events until all tasks have ended or been given up. `progress` is told the bytes that a node has moved. With
    /// `patience`, a plan that stands still is ended as soon as it is known by whom.
    pub(crate) async fn finish(
        mut self,
        mut progress: impl FnMut(NodeId, u64) + Send,
        stall_policy: Option<StallPolicy<'_>>,
    ) -> Report {
        let grace = Duration::from_millis(self.shared.config.failure_grace_ms);
        let mut look = tokio::time::interval(Duration::from_millis(LOOK_INTERVAL_MS));
        let mut deadlines = Deadlines::default();
        let (mut may_settle, mut held_up_until, mut ended_count) = (true, None, 0);
        while !self.report.all_ended() {
            if self.on_failure == OnFailure::GoOn && self.report.ended_count() > ended_count {
                ended_count = self.report.ended_count();
                self.so_far.send_replace(self.report.clone());
            }
            if self.on_failure == OnFailure::EndAll && self.report.any_failed() {
                self.failing.send_replace(true);
                deadlines.begin(grace);
            }
            tokio::select! {
                biased;
                Some((node, event)) = self.events.recv() => self.take(node, event, &mut progress),
                changed = self.settle.changed(), if may_settle => {
                    // Whoever dropped its end does not ask: the tasks end by themselves, or by their stall. Who asked may not want them
                    // any more later.
                    may_settle = changed.is_ok();
                    self.settle.borrow().into_iter().for_each(|within| deadlines.begin(within));
                }
                Ok(()) = self.complaints.changed() => self.give_up_silent(stall_policy.as_ref()),
                _ = look.tick() => {
                    self.look_who_is_down();
                    if let Some(stall_policy) = stall_policy.as_ref().filter(|_| !self.report.any_failed() && self.report.held_up.is_none())
                        && self.end_stalled(stall_policy).await
                    {
                        self.failing.send_replace(true);
                        deadlines.cancel_sent(grace);
                        held_up_until = Some(Instant::now() + HELD_UP_GRACE.min(grace));
                    }
                }
                () = until(held_up_until) => {
                    held_up_until = None;
                    self.break_who_holds_up();
                }
                () = deadlines.passed() => {
                    if deadlines.cancelled {
                        self.report.give_up_rest();
                    } else {
                        self.cancel_rest().await;
                        deadlines.cancel_sent(grace);
                    }
                }
            }
        }
        if self.on_failure == OnFailure::EndAll && self.report.any_failed() {
            self.failing.send_replace(true);
        }
        self.blame();
        self.report
    }

    fn take(&mut self, node: NodeId, event: Event, progress: &mut impl FnMut(NodeId, u64)) {
        match event {
            Event::Told(event) => {
                let now = self.shared.started.now();
                match event {
                    TaskEvent::Progress { moved_bytes, .. } => {
                        progress(node, moved_bytes);
                        self.flow.told(node, moved_bytes, now);
                    }
                    TaskEvent::Done { .. } => self.flow.done(node, now),
                    TaskEvent::Failed { .. } => {}
                }
                let moves = !matches!(event, TaskEvent::Failed { .. });
                let is_done = matches!(event, TaskEvent::Done { .. });
                self.report.take(node, event);
                if moves {
                    self.moving.moved(self.share_moved());
                }
                if let Some(told) = self.report.nodes.get(&node).filter(|_| is_done) {
                    self.shared.stragglers().note(node, told, now);
                }
            }
            Event::Ended(error) => {
                let silent = || Error::replan("its stream of events ended without an end of the task");
                // Whoever is gone is avoided at once, not only when all others have ended too.
                if self.report.broken(node, error.unwrap_or_else(silent).party(Party::Node(node))) {
                    self.shared.members.suspect(node);
                }
            }
        }
    }

    /// How much of what is to go over links has, from 0 to 1.
    fn share_moved(&self) -> f64 {
        let all: u64 = self.tasks.values().map(|task| task.link_bytes).sum();
        let moved: u64 = self.tasks.iter().map(|(node, task)| self.flow.moved_bytes(*node).min(task.link_bytes)).sum();
        if all > 0 { moved as f64 / all as f64 } else { 1.0 }
    }

    /// A node that is down, or has registered anew, has no such task any more.
    fn look_who_is_down(&mut self) {
        for node in self.report.running() {
            if self.shared.members.session(node).is_none() {
                let name = self.shared.members.name(node);
                self.report.broken(node, Error::replan(format!("{name} went down")).party(Party::Node(node)));
            }
        }
    }

    /// Ends a plan that somebody holds up whom there is a way around; tells whether it did.
    async fn end_stalled(&mut self, stall_policy: &StallPolicy<'_>) -> bool {
        let culprit = self
            .flow
            .culprit(&self.report, stall_policy, self.shared.started.now())
            .filter(|(node, _)| (stall_policy.is_spare)(*node));
        let Some((node, accuser)) = culprit else { return false };
        let (name, stalled_ms) = (self.shared.members.name(node), stall_policy.still.as_millis());
        let error = Error::replan(format!("{name} holds up everybody: nothing has moved for {stalled_ms} ms"));
        // Perhaps it was but a moment: so it is blamed as one of whom another complains.
        self.report.held_up = Some((run::Blame { node, accuser }, error.party(Party::Node(node))));
        self.shared.members.suspect(node);
        self.cancel_one(node);
        self.cancel_rest().await;
        true
    }

    /// Does without those that the client complains of and that are not heard of, where nobody else waits for them.
    fn give_up_silent(&mut self, stall_policy: Option<&StallPolicy<'_>>) {
        let complaints = self.complaints.borrow_and_update().clone();
        let Some(stall_policy) = stall_policy.filter(|stall_policy| stall_policy.one_by_one) else { return };
        for node in self.report.running().into_iter().filter(|node| complaints.contains(node)) {
            let may_fail = self.report.failed_nodes().count() < stall_policy.failed_max || (stall_policy.is_spare)(node);
            if !may_fail || !self.flow.is_silent(node, stall_policy.still, self.shared.started.now()) {
                continue;
            }
            let (name, stalled_ms) = (self.shared.members.name(node), stall_policy.still.as_millis());
            let error = Error::replan(format!("{name} takes nothing, and was not heard of for {stalled_ms} ms"));
            tracing::warn!(plan = %self.plan, node = %name, %error, "a plan goes on without a node");
            self.report.broken(node, error.party(Party::Node(node)));
            self.shared.members.suspect(node);
            self.cancel_one(node);
        }
    }

    /// It may never answer: nobody waits for that call.
    fn cancel_one(&self, node: NodeId) {
        if let Some(task) = self.tasks.get(&node) {
            let (shared, plan, session) = (Arc::clone(&self.shared), self.plan, task.session.clone());
            tokio::spawn(async move { cancel(&shared, plan, &session).await });
        }
    }

    /// Who held up everybody has had its time to say what has arrived.
    fn break_who_holds_up(&mut self) {
        if let Some((blame, error)) = self.report.held_up.clone() {
            self.report.broken(blame.node, error);
        }
    }

    async fn cancel_rest(&self) {
        let mut rest = self.report.running();
        rest.retain(|node| self.report.held_up.as_ref().is_none_or(|(blame, _)| blame.node != *node));
        join_all(rest.iter().filter_map(|node| self.tasks.get(node)).map(|task| cancel(&self.shared, self.plan, &task.session)))
            .await;
    }

    /// Names who is to blame; the next plans avoid it for a while.
    fn blame(&mut self) {
        self.report.blame = run::culprit(&self.report);
        if let Some(run::Blame { node: culprit, .. }) = self.report.blame {
            tracing::warn!(plan = %self.plan, node = %self.shared.members.name(culprit), cause = %self.report.cause(), "a plan failed");
            // For a bad block its whole node need not be avoided: the block is.
            if !self.report.is_bad_block(culprit) {
                self.shared.members.suspect(culprit);
            }
        }
    }
}

/// When those that are still running are cancelled, and when nobody waits for them any more.
#[derive(Debug, Default)]
struct Deadlines {
    at: Option<Instant>,
    cancelled: bool,
}

impl Deadlines {
    fn begin(&mut self, after: Duration) {
        let at = Instant::now() + after;
        if !self.cancelled {
            self.at = Some(self.at.map_or(at, |before| before.min(at)));
        }
    }

    fn cancel_sent(&mut self, after: Duration) {
        (self.at, self.cancelled) = (Some(Instant::now() + after), true);
    }

    async fn passed(&self) {
        until(self.at).await;
    }
}

async fn until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

async fn open_once(shared: &Arc<Shared>, signed: &Signed) -> Result<()> {
    let opened =
        join_all(signed.agents.iter().map(|(node, task)| async move { (task, open_one(shared, *node, task).await) })).await;
    // What another plan is needed for is not mended by asking again.
    let errors = || opened.iter().filter_map(|(_, opened)| opened.as_ref().err());
    let Some(worst) = errors().find(|error| error.reaction != Reaction::Retry).or(errors().next()) else { return Ok(()) };
    // Those that opened it let go before anybody is asked again; who gave no answer is told too, but not waited for.
    let (held, unknown): (Vec<_>, Vec<_>) = opened.iter().partition(|(_, opened)| opened.is_ok());
    for (task, _) in unknown {
        let (shared, plan, session) = (Arc::clone(shared), signed.id, task.session.clone());
        tokio::spawn(async move { cancel(&shared, plan, &session).await });
    }
    join_all(held.iter().map(|(task, _)| cancel(shared, signed.id, &task.session))).await;
    Err(worst.clone())
}

/// Opens a task. Busy is the only answer after which asking again helps; a task that is refused as such is no node's fault; all
/// else calls for a plan without that node.
async fn open_one(shared: &Shared, node: NodeId, task: &SignedTask) -> Result<()> {
    let place = |error: Error| error.party(Party::Node(node));
    // Who has registered anew since takes neither this task nor the tokens of it.
    if shared.members.has_registered_since(&task.session) {
        return Err(place(Error::replan(format!("{} has registered anew", task.session.record.name))));
    }
    let mut agent = rpc::agent_client(task.session.channel.clone());
    let request = rpc::with_deadline(task.open.clone(), shared.call_timeout());
    let error = match tokio::time::timeout(shared.call_timeout(), agent.open(request)).await {
        Ok(Ok(_)) => return Ok(()),
        Ok(Err(status)) if is_from_agent(&status) => place(from_status(&status)),
        Ok(Err(status)) => return Err(place(unreachable(shared, node, from_status(&status)))),
        Err(_) => return Err(place(unreachable(shared, node, Error::replan("no answer in time")))),
    };
    if let (Some(block), Some(state)) = (error.block, run::bad_state(&error)) {
        membership::mark(shared, node, block, &membership::Finding::Lost(state), &error.message).await?;
    }
    match error.reaction {
        Reaction::Retry => Err(error),
        // The task can never be taken, and it is not for a block of the node's.
        Reaction::InvalidInput if error.block.is_none() => Err(error),
        _ => Err(Error { reaction: Reaction::Replan, ..error }),
    }
}

async fn start_one(shared: &Shared, plan: PlanId, task: &SignedTask) -> Result<Streaming<v1::TaskEvent>> {
    let node = task.session.record.id;
    let mut agent = rpc::agent_client(task.session.channel.clone());
    // No deadline on the stream itself: how long a plan takes is its stalls' to say.
    let request = Request::new(v1::StartRequest { plan: plan.0, epoch: shared.epoch.0 });
    let place = |error: Error| error.party(Party::Node(node));
    match tokio::time::timeout(shared.call_timeout(), agent.start(request)).await {
        Ok(Ok(stream)) => Ok(stream.into_inner()),
        Ok(Err(status)) if is_from_agent(&status) => Err(place(from_status(&status))),
        Ok(Err(status)) => Err(place(unreachable(shared, node, from_status(&status)))),
        Err(_) => Err(place(unreachable(shared, node, Error::replan("no answer in time")))),
    }
}

/// It is no error if there is no such task any more, or nobody to ask: the task dies of its stall then.
async fn cancel(shared: &Shared, plan: PlanId, session: &Session) {
    let mut agent = rpc::agent_client(session.channel.clone());
    let request = rpc::with_deadline(v1::CancelRequest { plan: plan.0, epoch: shared.epoch.0 }, shared.call_timeout());
    if let Ok(Err(status)) = tokio::time::timeout(shared.call_timeout(), agent.cancel(request)).await {
        tracing::debug!(%plan, node = %session.record.name, error = %from_status(&status), "a task could not be cancelled");
    }
}

/// Whether an agent has said so itself, rather than the way to it.
fn is_from_agent(status: &tonic::Status) -> bool {
    !status.details().is_empty()
}

/// Whoever does not answer is avoided, and another plan is needed.
fn unreachable(shared: &Shared, node: NodeId, error: Error) -> Error {
    shared.members.suspect(node);
    Error::replan(format!("{} does not answer: {}", shared.members.name(node), error.message))
}

async fn forward(node: NodeId, mut stream: Streaming<v1::TaskEvent>, events: mpsc::Sender<(NodeId, Event)>) {
    loop {
        let event = match stream.message().await {
            Ok(Some(v1::TaskEvent { event: Some(event) })) => Event::Told(decode::event(node, event)),
            Ok(Some(v1::TaskEvent { event: None })) => continue,
            Ok(None) => Event::Ended(None),
            Err(status) => Event::Ended(Some(Error { reaction: Reaction::Replan, ..from_status(&status) })),
        };
        let last = matches!(event, Event::Ended(_));
        // Nobody listens any more: dropping the stream tells the agent so.
        if events.send((node, event)).await.is_err() || last {
            return;
        }
    }
}
