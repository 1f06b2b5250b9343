//! What all jobs have in common: they work while they are running, wait while they are paused, go on when the metadata cannot be
//! reached for a while, and write down how far they are and how they ended.

use super::{Control, conversion::ConversionJob, node_repair::NodeRepairJob};
use crate::shared::Shared;
use std::{sync::Arc, time::Duration};
use tokio::{
    sync::watch,
    time::{Interval, MissedTickBehavior},
};
use weft_meta::{JobId, JobState, MetaError};
use weft_types::{Reaction, Result};

/// How often a job's progress is written while it works.
pub(super) const WRITE_INTERVAL: Duration = Duration::from_secs(2);
/// The first pause after the metadata could not be read or written; each next one is twice as long, up to the last.
const RETRY_FIRST: Duration = Duration::from_millis(250);
const RETRY_LAST: Duration = Duration::from_secs(10);

/// A job at work.
pub(super) struct Runner<'a> {
    pub(super) shared: &'a Arc<Shared>,
    pub(super) id: JobId,
    pub(super) control: &'a Control,
    /// The state that it shall be in.
    pub(super) state: watch::Receiver<JobState>,
}

/// What it does.
pub(super) enum Work<'a> {
    RepairNode(Box<NodeRepairJob<'a>>),
    Convert(Box<ConversionJob<'a>>),
}

/// How a pass over all that there is to do ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Passed {
    /// All was tried.
    All,
    /// Somebody paused or cancelled the job; nothing of it is under way.
    Stopped,
}

impl Work<'_> {
    async fn passes(&mut self, runner: &mut Runner<'_>) -> Result<Passed> {
        match self {
            Self::RepairNode(job) => job.passes(runner).await,
            Self::Convert(job) => job.passes(runner).await,
        }
    }
}

impl<'a> Runner<'a> {
    pub(super) fn new(shared: &'a Arc<Shared>, id: JobId, control: &'a Control) -> Self {
        Self { shared, id, control, state: control.state.subscribe() }
    }

    /// Works until the job has ended.
    pub(super) async fn run(&mut self, work: &mut Work<'_>) {
        let mut pause = RETRY_FIRST;
        loop {
            let state = *self.state.borrow_and_update();
            match state {
                JobState::Running => {}
                JobState::Paused => {
                    // An error means that nobody is left who could say anything.
                    if self.state.changed().await.is_err() {
                        return;
                    }
                    continue;
                }
                JobState::Done | JobState::Failed | JobState::Cancelled => return,
            }
            let end = match work.passes(self).await {
                Ok(Passed::Stopped) => None,
                Ok(Passed::All) if self.control.live().progress.left.blocks == 0 => Some(JobState::Done),
                Ok(Passed::All) => Some(JobState::Failed),
                Err(error) if error.reaction == Reaction::Retry => {
                    tracing::warn!(job = %self.id, %error, "a job pauses");
                    self.control.live().progress.last_error = error.to_string();
                    self.wait(&mut pause).await;
                    continue;
                }
                Err(error) => {
                    tracing::error!(job = %self.id, %error, "a job cannot go on");
                    self.control.live().progress.last_error = error.to_string();
                    Some(JobState::Failed)
                }
            };
            if self.written(end).await {
                return;
            }
        }
    }

    /// Writes how it stands, again and again until that works; tells whether it has ended. Who leads no more is stopped meanwhile.
    async fn written(&mut self, end: Option<JobState>) -> bool {
        let mut pause = RETRY_FIRST;
        loop {
            let ended = match end {
                Some(end) => self.end(end).await,
                None => self.write().await.map(|()| false),
            };
            match ended {
                Ok(ended) => return ended,
                Err(error) if matches!(error.reaction, Reaction::Retry | Reaction::Fatal) => {
                    tracing::error!(job = %self.id, %error, "a job's progress could not be written; it is tried again");
                    self.wait(&mut pause).await;
                }
                // The job is not there any more, or has ended: its state says which.
                Err(error) => {
                    tracing::warn!(job = %self.id, %error, "a job's progress was not taken");
                    return *self.state.borrow() == JobState::Running;
                }
            }
        }
    }

    /// Pauses, the longer the more often it did.
    async fn wait(&self, pause: &mut Duration) {
        tokio::time::sleep(*pause).await;
        *pause = (*pause * 2).min(RETRY_LAST);
    }

    /// Writes that it has ended; tells whether it has, or was told otherwise meanwhile.
    async fn end(&mut self, state: JobState) -> Result<bool> {
        let shared = self.shared;
        let progress = self.control.live().progress.clone();
        match shared.meta.set_job_state(shared.epoch, self.id, state, Some(progress.clone()), shared.now_ms()).await {
            Ok(_) => {
                let (done, left, bytes) = (progress.done.blocks, progress.left.blocks, progress.done.bytes);
                tracing::info!(job = %self.id, state = state.name(), done, left, bytes, "a job has ended");
                Ok(true)
            }
            Err(MetaError::Refused(_)) => {
                // Told otherwise while its last stripes were under way: it has been told of it already, and will not be again.
                if *self.state.borrow() != JobState::Running {
                    return Ok(false);
                }
                self.write().await?;
                // Whoever has written another state tells of it next.
                Ok(self.state.changed().await.is_err())
            }
            Err(error) => Err(shared.meta_error(error)),
        }
    }

    /// Writes how far it is.
    pub(super) async fn write(&self) -> Result<()> {
        let shared = self.shared;
        let progress = self.control.live().progress.clone();
        let written = shared.meta.set_job_progress(shared.epoch, self.id, progress, shared.now_ms()).await;
        written.map(drop).map_err(|error| shared.meta_error(error))
    }

    /// Writes how far it is, if that works now.
    pub(super) async fn has_written(&self) -> bool {
        let written = self.write().await;
        if let Err(error) = &written {
            tracing::warn!(job = %self.id, %error, "a job's progress could not be written; it is tried again");
        }
        written.is_ok()
    }
}

pub(super) fn interval(every: Duration) -> Interval {
    let mut interval = tokio::time::interval(every);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    interval
}
