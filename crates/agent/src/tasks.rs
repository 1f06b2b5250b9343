//! The tasks of a node: opening, open, running. There is at most one for each plan.

use crate::{
    node::Node,
    open::{OpenTask, open},
    pages::pages_in_part,
    run::run,
};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::{Instant, timeout},
};
use tonic::Status;
use weft_plan::Task;
use weft_proto::v1::{OpenRequest, TaskEvent, TaskStarted, task_event::Event};
use weft_types::{Error, PlanId, Result};

/// The tasks of a node.
#[derive(Default)]
pub(crate) struct Tasks(Mutex<BTreeMap<PlanId, Entry>>);

enum Entry {
    /// Shared with the `Place` of this opening.
    Opening(Arc<()>),
    Open {
        task: Box<OpenTask>,
        since: Instant,
    },
    /// `cancel` is `None` once the task was cancelled and is ending.
    Running {
        cancel: Option<oneshot::Sender<()>>,
        ended: watch::Receiver<()>,
    },
}

/// The events of a running task, as the answer to a call.
pub(crate) type Events = mpsc::Receiver<Result<TaskEvent, Status>>;

/// Events that may wait for a slow coordinator; further progress reports are dropped.
const EVENTS_MAX: usize = 16;
/// The longest wait for the end of a cancelled task: a disk may hang.
const END_TIMEOUT: Duration = Duration::from_secs(1);

impl Tasks {
    /// Opens the task of a request. Returns the reserved bytes.
    pub(crate) async fn open(&self, node: &Arc<Node>, task: Task, request: OpenRequest) -> Result<u64> {
        let place = Place::take(&self.0, task.plan)?;
        let task = open(node, task, request).await?;
        let memory_bytes = task.permit.memory_bytes();
        place.keep(task)?;
        Ok(memory_bytes)
    }

    /// Starts an open task. With `pages`, its first event is Started.
    pub(crate) fn start(&self, node: &Arc<Node>, plan: PlanId, pages: bool) -> Result<Events> {
        let ((cancel, cancelled), (running, ended)) = (oneshot::channel(), watch::channel(()));
        let mut tasks = self.lock();
        let task = match tasks.remove(&plan) {
            Some(Entry::Open { task, .. }) => task,
            None => return Err(Error::not_found(format!("plan {plan} is not open"))),
            Some(other) => {
                tasks.insert(plan, other);
                return Err(Error::invalid(format!("plan {plan} has already been started")));
            }
        };
        tasks.insert(plan, Entry::Running { cancel: Some(cancel), ended });
        drop(tasks);
        let (sender, events) = mpsc::channel(EVENTS_MAX);
        if pages {
            let started = TaskStarted { pages: pages_in_part(&task.task, &task.ports.blocks) };
            // The channel is empty, so this cannot fail.
            let _told = sender.try_send(Ok(TaskEvent { event: Some(Event::Started(started)) }));
        }
        tokio::spawn(run_to_end(Arc::clone(node), plan, task, sender, (cancelled, running)));
        Ok(events)
    }

    /// Ends a task. With `wait`, its resources are released when this returns, unless a disk hangs.
    pub(crate) async fn cancel(&self, plan: PlanId, wait: bool) {
        if let Some(mut ended) = self.end(plan).filter(|_| wait) {
            let _ended = timeout(END_TIMEOUT, ended.changed()).await;
        }
    }

    /// Drops a task that was never started. For a running task, returns a receiver that closes when it has ended.
    fn end(&self, plan: PlanId) -> Option<watch::Receiver<()>> {
        let mut tasks = self.lock();
        if let Some(Entry::Running { cancel, ended }) = tasks.get_mut(&plan) {
            cancel.take();
            return Some(ended.clone());
        }
        let never_started = tasks.remove(&plan);
        drop(tasks);
        drop(never_started);
        None
    }

    /// How many tasks are open (or being opened) and wait for their start, and how many run.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let tasks = self.lock();
        let running = tasks.values().filter(|entry| matches!(entry, Entry::Running { .. })).count();
        (tasks.len() - running, running)
    }

    /// Whether the node has no task.
    pub(crate) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// Drops tasks that were opened and not started in time.
    pub(crate) fn expire(&self, unstarted: Duration) {
        let now = Instant::now();
        let old = |entry: &Entry| matches!(entry, Entry::Open { since, .. } if now.duration_since(*since) > unstarted);
        let mut tasks = self.lock();
        let plans: Vec<PlanId> = tasks.iter().filter(|(_, entry)| old(entry)).map(|(plan, _)| *plan).collect();
        let dropped: Vec<Entry> = plans.iter().filter_map(|plan| tasks.remove(plan)).collect();
        drop(tasks);
        for plan in plans {
            tracing::warn!(%plan, "dropped a task that was opened and never started");
        }
        drop(dropped);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<PlanId, Entry>> {
        lock(&self.0)
    }
}

/// A poisoned lock is safe to use: each change to the map is one call.
fn lock(tasks: &Mutex<BTreeMap<PlanId, Entry>>) -> MutexGuard<'_, BTreeMap<PlanId, Entry>> {
    tasks.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A plan's place while it is being opened. Dropping it frees the place, unless another opening has taken it.
struct Place<'a> {
    tasks: &'a Mutex<BTreeMap<PlanId, Entry>>,
    plan: PlanId,
    own: Arc<()>,
}

impl<'a> Place<'a> {
    fn take(tasks: &'a Mutex<BTreeMap<PlanId, Entry>>, plan: PlanId) -> Result<Self> {
        match lock(tasks).entry(plan) {
            std::collections::btree_map::Entry::Vacant(place) => {
                let own = Arc::default();
                place.insert(Entry::Opening(Arc::clone(&own)));
                Ok(Self { tasks, plan, own })
            }
            std::collections::btree_map::Entry::Occupied(entry) => match entry.get() {
                Entry::Running { cancel: None, .. } => Err(Error::retry(format!("busy: plan {plan} is still ending"))),
                // The message that should have ended it may be lost; the task ends on its own.
                _ => Err(Error::retry(format!("busy: plan {plan} is already open"))),
            },
        }
    }

    fn keep(self, task: OpenTask) -> Result<()> {
        let mut tasks = lock(self.tasks);
        match tasks.get_mut(&self.plan) {
            Some(entry) if self.has(entry) => {
                *entry = Entry::Open { task: Box::new(task), since: Instant::now() };
                Ok(())
            }
            _ => {
                drop(tasks);
                Err(Error::retry(format!("plan {} was cancelled while it was being opened", self.plan)))
            }
        }
    }

    fn has(&self, entry: &Entry) -> bool {
        matches!(entry, Entry::Opening(own) if Arc::ptr_eq(own, &self.own))
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut tasks = lock(self.tasks);
        if tasks.get(&self.plan).is_some_and(|entry| self.has(entry)) {
            tasks.remove(&self.plan);
        }
    }
}

/// The entry of a running task. It is removed with the task, also if that panics.
struct Listed<'a> {
    node: &'a Node,
    plan: PlanId,
    /// Dropped last, so that a caller that waits for the task's end finds no entry.
    _running: watch::Sender<()>,
}

impl Drop for Listed<'_> {
    fn drop(&mut self) {
        self.node.tasks.lock().remove(&self.plan);
    }
}

async fn run_to_end(
    node: Arc<Node>,
    plan: PlanId,
    task: Box<OpenTask>,
    events: mpsc::Sender<Result<TaskEvent, Status>>,
    (cancelled, running): (oneshot::Receiver<()>, watch::Sender<()>),
) {
    let listed = Listed { node: &node, plan, _running: running };
    let event = run(&node, *task, &events, cancelled).await;
    // Release the resources before the end is reported: the next plan can then have them at once.
    drop(listed);
    // A receiver that is gone does not need the event.
    let _gone = events.send(Ok(event)).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_opening_that_was_cancelled_leaves_the_next_one_its_place() {
        let (tasks, plan) = (Tasks::default(), PlanId(7));
        let cancelled = Place::take(&tasks.0, plan).unwrap();
        assert!(tasks.end(plan).is_none());
        let next = Place::take(&tasks.0, plan).unwrap();
        drop(cancelled);
        assert!(Place::take(&tasks.0, plan).is_err());
        drop(next);
        assert!(tasks.is_empty());
    }
}
