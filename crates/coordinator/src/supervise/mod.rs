//! Runs plans at agents: opens all tasks, starts all (in one call if no agent dials another), collects their events,
//! and finds the node to blame if the plan fails.
//!
//! All puts, reads and repairs use it. [`weft_control::run`] makes the decisions.

mod active;
mod decode;
pub(crate) mod handle;

use crate::{
    config::CoordinatorConfig,
    in_flight::Moving,
    members::Session,
    membership,
    shared::Shared,
    sign::{Signed, SignedTask},
    tasks,
    updates::settle,
};
use active::Active;
use futures::future::join_all;
use handle::{ClientEvents, PlanHandle};
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
    time::Duration,
};
use tokio::{sync::mpsc, time::Instant};
use tonic::{Request, Response, Status, Streaming};
use weft_control::{
    Time,
    run::{self, Action, Blame, Event, Execution, OnFailure, Opening, Report, Share, StallPolicy, opening},
};
use weft_proto::{from_status, rpc, v1};
use weft_types::{Cause, Error, NodeId, Party, PlanId, Reaction, Result, UNITS_OF_TASK_MAX};

/// How often nodes are checked while their streams are silent.
const LOOK_INTERVAL_MS: u64 = 250;
/// Events of one plan that may wait to be handled.
const EVENTS_MAX: usize = 256;

/// Whether there is an alternative to a node now.
pub(crate) type IsSpare<'a> = Box<dyn Fn(NodeId) -> bool + Send + Sync + 'a>;

/// A plan whose tasks run at the agents.
pub(crate) struct Running {
    shared: Arc<Shared>,
    plan: PlanId,
    tasks: BTreeMap<NodeId, SignedTask>,
    /// Tasks that could not be started, and why.
    not_started: BTreeMap<NodeId, Error>,
    started_at: Time,
    events: mpsc::Receiver<Event>,
    /// The checksum units read in part, from the agents that were asked for them.
    pub(crate) pages: Vec<(NodeId, v1::UnitPages)>,
    on_failure: OnFailure,
    client: ClientEvents,
    moving: Moving,
    _active: Active,
}

/// The streams of the tasks that were started when they were opened.
pub(crate) type Streams = BTreeMap<NodeId, Streaming<v1::TaskEvent>>;

/// Opens a plan at all its agents, or at none. Busy agents are tried `attempts` times.
pub(crate) async fn open(shared: &Arc<Shared>, signed: &Signed, attempts: u32) -> Result<Streams> {
    let (mut opening, mut event) = (Opening::new(attempts), opening::Event::Begin);
    let mut streams = Streams::new();
    loop {
        let action = opening.on(event, &mut *shared.rng());
        event = match action.ok_or_else(|| Error::fatal("internal error: the opening of a plan waits for nothing"))? {
            opening::Action::Ask => {
                let ask = |(node, task)| async move { (node, open_one(shared, node, task, signed).await) };
                let answers = join_all(signed.agents.iter().map(|(node, task)| ask((*node, task)))).await;
                let keep = |(node, answer): (NodeId, Result<Option<Streaming<_>>>)| {
                    (node, answer.map(|stream| streams.extend(stream.map(|stream| (node, stream)))))
                };
                opening::Event::Answered(answers.into_iter().map(keep).collect())
            }
            opening::Action::LetGo { open, unknown } => {
                for task in unknown.iter().filter_map(|node| signed.agents.get(node)) {
                    let (shared, plan, session) = (Arc::clone(shared), signed.id, task.session.clone());
                    tasks::start(async move { cancel(&shared, plan, &session, false).await });
                }
                let open = open.iter().filter_map(|node| signed.agents.get(node));
                // The next attempt opens the same plan.
                join_all(open.map(|task| cancel(shared, signed.id, &task.session, true))).await;
                streams.clear();
                opening::Event::LetGo
            }
            opening::Action::Wait(pause) => {
                shared.meter.waits_for_agents(pause);
                tokio::time::sleep(pause).await;
                opening::Event::Woken
            }
            opening::Action::End(Ok(())) => return Ok(streams),
            opening::Action::End(Err(error)) => return Err(refused(shared, error).await),
        };
    }
}

/// How long after its start [`open`] may still call an agent, milliseconds.
pub(crate) fn opening_ms(config: &CoordinatorConfig) -> u64 {
    // Each attempt calls some agents, and then cancels at those that accepted.
    let attempt_ms = config.call_timeout_ms.saturating_mul(2).saturating_add(opening::BACKOFF_LAST_MS);
    attempt_ms.saturating_mul(config.open_attempts_max.into())
}

/// Starts an open plan at all its agents, unless opening it has started it.
pub(crate) async fn start(
    shared: &Arc<Shared>,
    signed: Signed,
    streams: Streams,
    on_failure: OnFailure,
) -> (Running, PlanHandle) {
    let (sender, events) = mpsc::channel(EVENTS_MAX);
    let plan = signed.id;
    let to_start = signed.agents.iter().filter(|(node, _)| !streams.contains_key(node));
    let started = join_all(to_start.map(|(node, task)| async move { (*node, start_one(shared, plan, task, None).await) })).await;
    let (mut not_started, mut begun) = (BTreeMap::new(), Vec::new());
    for (node, stream) in streams.into_iter().map(|(node, stream)| (node, Ok(stream))).chain(started) {
        match stream {
            Ok(stream) => begun.push((node, stream)),
            Err(error) => drop(not_started.insert(node, error)),
        }
    }
    let tells_pages = |node| signed.agents.get(&node).is_some_and(|task| task.tells_pages);
    let first_events = join_all(begun.into_iter().map(|(node, mut stream)| async move {
        let first = if tells_pages(node) { first_event(shared, &mut stream).await } else { None };
        (node, stream, first)
    }));
    let mut pages = Vec::new();
    for (node, stream, first) in first_events.await {
        if let Some(Ok(Some(v1::TaskEvent { event: Some(v1::task_event::Event::Started(told)) }))) = &first {
            pages.extend(told.pages.iter().take(UNITS_OF_TASK_MAX).map(|unit| (node, unit.clone())));
        }
        drop(tasks::start(forward(node, stream, first, sender.clone())));
    }
    let (shared, started_at) = (Arc::clone(shared), shared.started.now());
    let Signed { agents: tasks, moving, .. } = signed;
    let (handle, client) = PlanHandle::new();
    let _active = Active::begin(&shared, &tasks);
    (Running { shared, plan, tasks, not_started, started_at, events, pages, on_failure, client, moving, _active }, handle)
}

impl Running {
    /// Fails with [`Reaction::Replan`] if a task was not started, because its peers would wait for it. The other tasks are then cancelled.
    pub(crate) async fn all_started(self) -> Result<Self> {
        let Some(error) = self.not_started.values().next().cloned() else { return Ok(self) };
        let started = self.tasks.keys().copied().filter(|node| !self.not_started.contains_key(node)).collect();
        self.cancel_all(started).await;
        Err(Error { reaction: Reaction::Replan, ..error })
    }

    /// Carries out the decisions of the plan's execution until all tasks have ended or were given up. `progress` gets
    /// the bytes that each node has moved. With a policy, a plan that stalls is ended as soon as the culprit is known,
    /// if there is an alternative to that node.
    pub(crate) async fn finish(
        mut self,
        mut progress: impl FnMut(NodeId, u64) + Send,
        stall: Option<(StallPolicy, IsSpare<'_>)>,
    ) -> Report {
        let (policy, is_spare) = stall.unzip();
        let share = |task: &SignedTask| {
            let (name, link_bytes, ends) = (task.session.record.name.to_string(), task.link_bytes, task.ends);
            Share { name, link_bytes, ends }
        };
        let links_timeout =
            self.tasks.values().map(|task| Duration::from_millis(task.open.stall_ms.into())).max().unwrap_or_default();
        let shares = self.tasks.iter().map(|(node, task)| (*node, share(task))).collect();
        let (not_started, grace) =
            (std::mem::take(&mut self.not_started), Duration::from_millis(self.shared.config.failure_grace_ms));
        let mut execution = Execution::new(shares, not_started, self.on_failure, (grace, links_timeout), policy, self.started_at);
        let mut look = tokio::time::interval(Duration::from_millis(LOOK_INTERVAL_MS));
        let mut may_settle = true;
        while !execution.has_ended() {
            let event = tokio::select! {
                biased;
                Some(event) = self.events.recv() => event,
                changed = self.client.done.changed(), if may_settle => {
                    // A dropped handle makes no request: the tasks end on their own or after a stall. After a request, the client may set a
                    // shorter time.
                    may_settle = changed.is_ok();
                    let Some(within) = *self.client.done.borrow() else { continue };
                    Event::ClientDone(within)
                }
                Ok(()) = self.client.complaints.changed() => Event::Complaint(self.client.complaints.borrow_and_update().clone()),
                _ = look.tick() => {
                    let seen = self.shared.activity().of(self.tasks.keys().copied());
                    Event::Looked { down: self.down(execution.report()), seen }
                }
                () = until(execution.wake_at().map(|at| self.shared.started.instant(at))) => Event::Woken,
            };
            let mut events = VecDeque::from([event]);
            while let Some(event) = events.pop_front() {
                for action in execution.on(event, self.shared.started.now()) {
                    match action {
                        Action::CancelAll(nodes) => {
                            self.cancel_all(nodes).await;
                            events.push_back(Event::Cancelled);
                        }
                        Action::Ask(node, around) => {
                            let is_spare = is_spare.as_ref().is_some_and(|is_spare| is_spare(node));
                            events.push_back(Event::Answered { node, around, is_spare });
                        }
                        action => self.act(&execution, action, &mut progress),
                    }
                }
            }
        }
        if self.on_failure == OnFailure::EndAll && execution.report().any_failed() {
            self.client.failing.send_replace(true);
        }
        let (report, suspect) = execution.finish();
        if let Some(blame) = report.blame {
            let (plan, node, cause) = (self.plan, self.shared.members.name(blame.node), report.cause());
            self.shared.meter.plan_failed(&cause, report.starved);
            let starved = report.starved;
            match self.shared.failures.admit(&node, &cause.message) {
                Some(left_out) => tracing::warn!(%plan, %node, %cause, starved, left_out, "a plan failed"),
                None => tracing::debug!(%plan, %node, %cause, starved, "a plan failed"),
            }
        }
        // The next plans avoid it for a while.
        let why = report.cause().message;
        suspect.into_iter().for_each(|node| self.shared.members.suspect_because(node, &why));
        if let Some(Blame { node, accuser: Some(accuser) }) = report.blame.filter(|blame| suspect == Some(blame.node)) {
            self.shared.members.dispute(node, accuser);
        }
        report
    }

    /// Carries out an action without an answer.
    fn act(&self, execution: &Execution, action: Action, progress: &mut impl FnMut(NodeId, u64)) {
        match action {
            Action::Progress(node, bytes) => progress(node, bytes),
            Action::Heard { node, received, sent } => {
                self.shared.activity().moved(node, received, sent, self.shared.started.now());
            }
            Action::Moved(share) => self.moving.moved(share),
            Action::Ended(node) => {
                if let Some(told) = execution.report().nodes.get(&node) {
                    self.shared.stragglers().note(node, told, self.shared.started.now());
                }
            }
            Action::Suspect(node) => self.shared.members.suspect(node),
            Action::GoOnWithout(node, error) => {
                self.shared.members.suspect_because(node, &error.message);
                let node = self.shared.members.name(node);
                tracing::warn!(plan = %self.plan, %node, %error, "a plan continues without a node");
            }
            Action::Cancel(node) => self.cancel_one(node),
            Action::Failing => drop(self.client.failing.send_replace(true)),
            Action::SoFar => drop(self.client.so_far.send_replace(execution.report().clone())),
            Action::CancelAll(_) | Action::Ask(..) => {}
        }
    }

    /// The nodes of a plan that are down, or have registered again and so no longer have the task.
    fn down(&self, report: &Report) -> BTreeSet<NodeId> {
        report.running().into_iter().filter(|node| self.shared.members.session(*node).is_none()).collect()
    }

    /// The call may never be answered, so nothing waits for it.
    fn cancel_one(&self, node: NodeId) {
        if let Some(task) = self.tasks.get(&node) {
            let (shared, plan, session) = (Arc::clone(&self.shared), self.plan, task.session.clone());
            tasks::start(async move { cancel(&shared, plan, &session, false).await });
        }
    }

    async fn cancel_all(&self, nodes: Vec<NodeId>) {
        let tasks = nodes.iter().filter_map(|node| self.tasks.get(node));
        join_all(tasks.map(|task| cancel(&self.shared, self.plan, &task.session, false))).await;
    }
}

async fn until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// Opens a task, and starts it too if no agent of its plan dials another. A retry helps only after a busy answer. A task that is refused as
/// invalid is not the node's fault. All other errors need a plan without that node.
async fn open_one(shared: &Shared, node: NodeId, task: &SignedTask, signed: &Signed) -> Result<Option<Streaming<v1::TaskEvent>>> {
    // A node that has registered again accepts neither this task nor its tokens.
    if shared.members.has_registered_since(&task.session) {
        let error = Error::replan(format!("{} has registered again", task.session.record.name));
        return Err(error.party(Party::Node(node)));
    }
    let opened = if signed.agents_dial {
        let mut agent = rpc::agent_client(task.session.channel.clone());
        let request = rpc::with_deadline(task.open.clone(), shared.call_timeout());
        answer(shared, node, agent.open(request)).await.map(|_| None)
    } else {
        start_one(shared, signed.id, task, Some(task.open.clone())).await.map(Some)
    };
    let error = match opened {
        Ok(stream) => return Ok(stream),
        Err(error) => error,
    };
    if let (Some(block), Some(state)) = (error.block, run::bad_state(&error)) {
        let finding = membership::Finding::Lost(state);
        membership::mark_planned(shared, node, block, &finding, &error.message, &signed.seq).await?;
        if shared.updates.is_doubtful(block.stripe) {
            // It was not bad: the metadata were restored from an older copy.
            return Err(Error { reaction: Reaction::Replan, party: None, cause: Some(Cause::OpenForUpdates), ..error });
        }
    }
    if error.cause == Some(Cause::OpenForUpdates) {
        // It is not the node's fault.
        return Err(Error { reaction: Reaction::Replan, party: None, ..error });
    }
    match error.reaction {
        Reaction::Retry => Err(error),
        // The task can never be accepted, and not because of a block of the node.
        Reaction::InvalidInput if error.block.is_none() => Err(error),
        _ => Err(Error { reaction: Reaction::Replan, ..error }),
    }
}

/// Settles the stripe if a block was refused because it is open for updates: the next plan can read it.
async fn refused(shared: &Arc<Shared>, error: Error) -> Error {
    let open = error.block.filter(|_| error.cause == Some(Cause::OpenForUpdates));
    let settled = match open {
        Some(block) => settle::if_refused(shared, block.stripe).await,
        None => Ok(()),
    };
    settled.err().unwrap_or(error)
}

/// Starts a task, which it may open first.
async fn start_one(
    shared: &Shared,
    plan: PlanId,
    task: &SignedTask,
    open: Option<v1::OpenRequest>,
) -> Result<Streaming<v1::TaskEvent>> {
    let mut agent = rpc::agent_client(task.session.channel.clone());
    // The stream has no deadline: stalls limit how long a plan takes.
    let request = Request::new(v1::StartRequest { plan: plan.0, epoch: shared.epoch.0, open, pages: task.tells_pages });
    answer(shared, task.session.record.id, agent.start(request)).await
}

/// An agent's answer to a call, within [`call_timeout`](Shared::call_timeout).
async fn answer<T>(shared: &Shared, node: NodeId, call: impl Future<Output = Result<Response<T>, Status>>) -> Result<T> {
    let error = match tokio::time::timeout(shared.call_timeout(), call).await {
        Ok(Ok(answer)) => return Ok(answer.into_inner()),
        Ok(Err(status)) if is_from_agent(&status) => from_status(&status),
        Ok(Err(status)) => unreachable(shared, node, from_status(&status)),
        Err(_) if is_full(shared, node) => does_not_answer(shared, node, &Error::replan("no answer in time")),
        Err(_) => unreachable(shared, node, Error::replan("no answer in time")),
    };
    Err(error.party(Party::Node(node)))
}

/// Succeeds if the task no longer exists or the agent cannot be reached: the task then ends by its stall.
async fn cancel(shared: &Shared, plan: PlanId, session: &Session, wait: bool) {
    let mut agent = rpc::agent_client(session.channel.clone());
    let request = rpc::with_deadline(v1::CancelRequest { plan: plan.0, epoch: shared.epoch.0, wait }, shared.call_timeout());
    if let Ok(Err(status)) = tokio::time::timeout(shared.call_timeout(), agent.cancel(request)).await {
        tracing::debug!(%plan, node = %session.record.name, error = %from_status(&status), "cannot cancel a task");
    }
}

/// Whether the agent itself sent this status.
fn is_from_agent(status: &Status) -> bool {
    !status.details().is_empty()
}

/// Whether a node that does not answer in time has full links and was heard of meanwhile: then its answer may wait behind data.
fn is_full(shared: &Shared, node: NodeId) -> bool {
    let (now, within) = (shared.started.now(), shared.call_timeout());
    let seen = shared.activity().of(std::iter::once(node)).remove(&node).unwrap_or_default();
    seen.is_full(Duration::from_millis(shared.config.stall_ms.into()) / 2, now) && seen.is_heard(within, now)
}

/// Marks a node that does not answer as suspect. The error's reaction is to replan.
fn unreachable(shared: &Shared, node: NodeId, error: Error) -> Error {
    shared.members.suspect_because(node, &format!("it does not answer: {}", error.message));
    does_not_answer(shared, node, &error)
}

fn does_not_answer(shared: &Shared, node: NodeId, error: &Error) -> Error {
    Error::replan(format!("{} does not answer: {}", shared.members.name(node), error.message))
}

/// The next item of an event stream.
type Word = Result<Option<v1::TaskEvent>, Status>;

/// The first event; `None` if there is none within the time of a call.
async fn first_event(shared: &Shared, stream: &mut Streaming<v1::TaskEvent>) -> Option<Word> {
    tokio::time::timeout(shared.call_timeout(), stream.message()).await.ok()
}

async fn forward(node: NodeId, mut stream: Streaming<v1::TaskEvent>, mut first: Option<Word>, events: mpsc::Sender<Event>) {
    loop {
        let word = match first.take() {
            Some(first) => first,
            None => stream.message().await,
        };
        let event = match word {
            Ok(Some(v1::TaskEvent { event })) => match event.and_then(|event| decode::event(node, event)) {
                Some(event) => Event::Told(node, event),
                None => continue,
            },
            Ok(None) => Event::Lost(node, None),
            Err(status) => Event::Lost(node, Some(Error { reaction: Reaction::Replan, ..from_status(&status) })),
        };
        let last = matches!(event, Event::Lost(..));
        // No receiver is left: dropping the stream tells the agent.
        if events.send(event).await.is_err() || last {
            return;
        }
    }
}
