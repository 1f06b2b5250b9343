//! The jobs that this coordinator runs, and the state that they share with calls about them.

use crate::rebuild::shares::Shares;
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use weft_control::{conversion::waits::Waits, helpers::LastUsed, job::Job, node_repair::EXPLAINED_AT_ONCE_MAX};
use weft_types::{Error, JobId, JobState, Result};

/// The jobs that this coordinator runs.
#[derive(Debug)]
pub(crate) struct Jobs {
    running: Mutex<BTreeMap<JobId, Arc<Control>>>,
    /// A turn for each repair, drain or balance that is explained.
    explaining: Arc<Semaphore>,
    /// Serialises changes of jobs' states, so that the last change reported is the last one written.
    pub(super) changing: tokio::sync::Mutex<()>,
    helpers_used: Arc<Mutex<LastUsed>>,
}

/// State that a job's worker shares with the calls that show it.
#[derive(Debug)]
pub(crate) struct Control {
    /// The requested state.
    pub(super) state: watch::Sender<JobState>,
    pub(super) live: Mutex<Live>,
    /// Whether it is a conversion.
    pub(super) converts: bool,
    /// The name of its kind.
    pub(super) kind: &'static str,
}

/// The progress of a job.
#[derive(Debug)]
pub(crate) struct Live {
    /// The job's state machine.
    pub(super) job: Job,
    /// Received bytes of stripes in progress, each under its own number.
    pub(super) moving: BTreeMap<u64, u64>,
    /// Finished bytes of items that count only as a whole.
    pub(super) gathered_bytes: u64,
    /// What its parts wait for.
    pub(super) waits: Waits,
}

impl Live {
    pub(super) fn new(job: Job) -> Self {
        Self { job, moving: BTreeMap::new(), gathered_bytes: 0, waits: Waits::default() }
    }

    /// The finished bytes of items that are not finished.
    pub(super) fn begun_bytes(&self) -> u64 {
        self.moving.values().sum::<u64>().saturating_add(self.gathered_bytes)
    }
}

impl Default for Jobs {
    fn default() -> Self {
        let explaining = Arc::new(Semaphore::new(EXPLAINED_AT_ONCE_MAX));
        Self { running: Mutex::default(), explaining, changing: tokio::sync::Mutex::default(), helpers_used: Arc::default() }
    }
}

impl Jobs {
    pub(super) fn control(&self, job: JobId) -> Option<Arc<Control>> {
        self.lock().get(&job).cloned()
    }

    /// A turn to explain something, until it is dropped.
    pub(crate) fn explain_turn(&self) -> Result<OwnedSemaphorePermit> {
        let busy = |_| {
            Error::retry(format!(
                "busy: {EXPLAINED_AT_ONCE_MAX} other repairs or moves are being explained: try again in a moment"
            ))
        };
        Arc::clone(&self.explaining).try_acquire_owned().map_err(busy)
    }

    /// What the rebuilds of a new job share. The times at which nodes helped are shared by all jobs and the healer.
    pub(crate) fn shares(&self) -> Shares {
        Shares::new(Arc::clone(&self.helpers_used))
    }

    /// Of each running job, whether it is a conversion, and the bytes that are neither done nor given up.
    pub(crate) fn left(&self) -> Vec<(bool, u64)> {
        let all: Vec<Arc<Control>> = self.lock().values().cloned().collect();
        let running = all.iter().filter(|control| *control.state.borrow() == JobState::Running);
        running.map(|control| (control.converts, control.left_bytes())).collect()
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, BTreeMap<JobId, Arc<Control>>> {
        // A poisoned lock is safe to use: each change is one call.
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Control {
    /// The bytes that are neither done nor given up.
    pub(super) fn left_bytes(&self) -> u64 {
        let live = self.live();
        let progress = live.job.progress();
        progress.total.bytes.saturating_sub(progress.done.bytes).saturating_sub(progress.left.bytes)
    }

    pub(super) fn live(&self) -> MutexGuard<'_, Live> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
