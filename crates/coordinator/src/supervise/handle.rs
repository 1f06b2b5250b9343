//! Messages between a plan's client and the running plan.

use std::{collections::BTreeSet, time::Duration};
use tokio::sync::watch;
use weft_control::run::Report;
use weft_types::NodeId;

/// The client's end of a running plan.
#[derive(Debug)]
pub(crate) struct PlanHandle {
    done: watch::Sender<Option<Duration>>,
    failing: watch::Receiver<bool>,
    complaints: watch::Sender<BTreeSet<NodeId>>,
    so_far: watch::Receiver<Report>,
}

/// The plan's end of a [`PlanHandle`].
#[derive(Debug)]
pub(super) struct ClientEvents {
    pub(super) done: watch::Receiver<Option<Duration>>,
    pub(super) failing: watch::Sender<bool>,
    pub(super) complaints: watch::Receiver<BTreeSet<NodeId>>,
    pub(super) so_far: watch::Sender<Report>,
}

impl PlanHandle {
    /// Both ends.
    pub(super) fn new() -> (Self, ClientEvents) {
        let ((done_sender, done), (failing_sender, failing)) = (watch::channel(None), watch::channel(false));
        let (complaints_sender, complaints) = watch::channel(BTreeSet::new());
        let (so_far_sender, so_far) = watch::channel(Report::default());
        let events = ClientEvents { done, failing: failing_sender, complaints, so_far: so_far_sender };
        (Self { done: done_sender, failing, complaints: complaints_sender, so_far }, events)
    }

    /// The handle of a plan that does not run, and what its client reports.
    #[cfg(test)]
    pub(crate) fn of_nothing() -> (Self, watch::Receiver<Option<Duration>>) {
        let (handle, events) = Self::new();
        (handle, events.done)
    }

    /// The client has finished; tasks may take this long to end, and are then cancelled.
    pub(crate) fn client_done(&self, within: Duration) {
        self.done.send_replace(Some(within));
    }

    /// The client cannot continue because of these nodes. The plan continues without those that are silent.
    pub(crate) fn complain(&self, nodes: BTreeSet<NodeId>) {
        self.complaints.send_replace(nodes);
    }

    /// The reports of ended tasks, updated when another one ends; for plans whose nodes do not depend on each other.
    pub(crate) fn so_far(&self) -> watch::Receiver<Report> {
        self.so_far.clone()
    }

    /// Whether a task has failed already.
    pub(crate) fn is_failing(&self) -> bool {
        *self.failing.borrow()
    }
}
