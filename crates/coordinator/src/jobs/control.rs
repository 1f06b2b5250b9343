//! The jobs that this coordinator works on: what their work shares with the calls that ask after them.

use crate::rebuild::shares::Shares;
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tokio::sync::watch;
use weft_control::{conversion::waits::Waits, helpers::LastUsed, job::Job};
use weft_types::{JobId, JobState};

/// The jobs that this coordinator works on.
#[derive(Debug, Default)]
pub(crate) struct Jobs {
    running: Mutex<BTreeMap<JobId, Arc<Control>>>,
    /// One change of a job's state at a time, so that what is told last is what is written last.
    pub(super) changing: tokio::sync::Mutex<()>,
    helpers_used: Arc<Mutex<LastUsed>>,
}

/// State that a job's worker shares with the calls that show it.
#[derive(Debug)]
pub(crate) struct Control {
    /// The state that it shall be in.
    pub(super) state: watch::Sender<JobState>,
    pub(super) live: Mutex<Live>,
}

/// How far a job has come.
#[derive(Debug)]
pub(crate) struct Live {
    /// What is next, and how far it is.
    pub(super) job: Job,
    /// What has come in of the stripes that are under way, each by a number of its own.
    pub(super) moving: BTreeMap<u64, u64>,
    /// Bytes that are done, of what is done as a whole or not at all.
    pub(super) gathered_bytes: u64,
    /// What its parts wait for.
    pub(super) waits: Waits,
}

impl Live {
    pub(super) fn new(job: Job) -> Self {
        Self { job, moving: BTreeMap::new(), gathered_bytes: 0, waits: Waits::default() }
    }
}

impl Jobs {
    pub(super) fn control(&self, job: JobId) -> Option<Arc<Control>> {
        self.lock().get(&job).cloned()
    }

    /// What the rebuilds of a new job share. Which nodes have helped is remembered across jobs.
    pub(super) fn shares(&self) -> Shares {
        Shares::new(Arc::clone(&self.helpers_used))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, BTreeMap<JobId, Arc<Control>>> {
        // Each change is one call, so a panic leaves it whole.
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Control {
    pub(super) fn live(&self) -> MutexGuard<'_, Live> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
