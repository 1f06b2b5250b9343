//! What all jobs have in common: they work while they are running, wait while they are paused, go on when the metadata cannot be
//! reached for a while, and write down how far they are and how they ended.

use super::{Control, conversion::ConversionJob, node_repair::NodeRepairJob};
use crate::shared::Shared;
use std::{sync::Arc, time::Duration};
use tokio::{
    sync::watch,
    time::{Interval, MissedTickBehavior},
};
use weft_meta::{Amount, JobId, JobProgress, JobState, LEFT_BLOCKS_MAX, LeftBlock, MetaError};
use weft_types::{Error, Reaction, Result};

/// How often a job's progress is written while it works.
pub(super) const WRITE_INTERVAL: Duration = Duration::from_secs(2);
/// The first pause after the metadata could not be read or written; each next one is twice as long, up to the last.
const RETRY_FIRST: Duration = Duration::from_millis(250);
const RETRY_LAST: Duration = Duration::from_secs(10);

/// How often what could not be done is tried, if other things could or the reason may have gone.
const PASSES_MAX: u32 = 3;

/// A job at work.
pub(super) struct Runner<'a> {
    pub(super) shared: &'a Arc<Shared>,
    pub(super) id: JobId,
    pub(super) control: &'a Control,
    /// The state that it shall be in.
    pub(super) state: watch::Receiver<JobState>,
    /// What is left was counted since this coordinator took up the job.
    counted: bool,
}

/// A job that tries all that there is to do, again and again, as long as that helps.
pub(super) trait Passes {
    /// What is said if something is left in the end of which no attempt has told.
    const LEFT: &'static str;

    /// Comes before all else when a coordinator takes up the job.
    async fn begin(&mut self) -> Result<()>;

    /// Counts what there is to do.
    async fn count(&mut self) -> Result<Counted>;

    /// Tries all of it once. Tells, too, whether what was left may work the next time.
    async fn pass(&mut self, runner: &mut Runner<'_>) -> Result<(Passed, Again)>;
}

/// What there is to do now.
pub(super) struct Counted {
    pub(super) to_do: Amount,
    /// With what is not to be done at the moment: all else that ever was is done.
    pub(super) there: Amount,
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

/// Whether what was left may work the next time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Again {
    InVain,
    Perhaps,
    /// Some of it only made way for others.
    MadeWay,
}

/// The passes of a job that were made in vain, or nearly so.
#[derive(Debug)]
struct Tries {
    count: u32,
    helps: bool,
}

impl Tries {
    fn is_over(&self) -> bool {
        self.count == PASSES_MAX || !self.helps
    }

    /// A pass has done something, or nothing. What made way for what was done has not been tried: there may be as many such passes as
    /// there is to do.
    fn count(&mut self, has_done: bool, again: Again) {
        self.helps = has_done || again > Again::InVain;
        self.count += u32::from(!(has_done && again == Again::MadeWay));
    }
}

impl Work<'_> {
    async fn passes(&mut self, runner: &mut Runner<'_>) -> Result<Passed> {
        match self {
            Self::RepairNode(job) => runner.passes(job.as_mut()).await,
            Self::Convert(job) => runner.passes(job.as_mut()).await,
        }
    }
}

impl<'a> Runner<'a> {
    pub(super) fn new(shared: &'a Arc<Shared>, id: JobId, control: &'a Control) -> Self {
        Self { shared, id, control, state: control.state.subscribe(), counted: false }
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

    /// Whether anything is left is what the metadata say at the end, not what the attempts told.
    async fn passes<J: Passes>(&mut self, job: &mut J) -> Result<Passed> {
        self.shared.until_nodes_are_back().await;
        if !self.counted {
            job.begin().await?;
        }
        let mut tries = Tries { count: 0, helps: true };
        loop {
            let to_do = self.count(job.count().await?);
            if to_do.blocks > 0 && tries.is_over() {
                let progress = &mut self.control.live().progress;
                progress.left = to_do;
                if progress.last_error.is_empty() {
                    progress.last_error = J::LEFT.to_owned();
                }
                return Ok(Passed::All);
            }
            // What was left before is tried again.
            self.control.live().progress.left_blocks.clear();
            self.write().await?;
            if to_do.blocks == 0 {
                return Ok(Passed::All);
            }
            let before = self.control.live().progress.done.blocks;
            let (passed, again) = job.pass(self).await?;
            if passed == Passed::Stopped {
                return Ok(Passed::Stopped);
            }
            let has_done = self.control.live().progress.done.blocks > before;
            tries.count(has_done, again);
        }
    }

    /// Takes down what there is to do.
    fn count(&mut self, Counted { to_do, there }: Counted) -> Amount {
        let mut live = self.control.live();
        let JobProgress { total, done, left, .. } = &mut live.progress;
        if !self.counted && total.blocks > 0 {
            // What an earlier coordinator did last it may not have written: what is not there any more is done.
            done.blocks = done.blocks.max(total.blocks.saturating_sub(there.blocks));
            done.bytes = done.bytes.max(total.bytes.saturating_sub(there.bytes));
        }
        (*total, *left) = (Amount { blocks: done.blocks + to_do.blocks, bytes: done.bytes + to_do.bytes }, Amount::default());
        self.counted = true;
        to_do
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

/// Counts something.
pub(super) fn add(amount: &mut Amount, bytes: u64) {
    amount.blocks += 1;
    amount.bytes = amount.bytes.saturating_add(bytes);
}

/// Counts what could not be done, and names it with the reason; tells whether that may have gone soon.
pub(super) fn left(progress: &mut JobProgress, bytes: u64, error: Error, name: impl FnOnce(String) -> LeftBlock) -> Again {
    add(&mut progress.left, bytes);
    progress.last_error = error.to_string();
    let reaction = error.reaction;
    if progress.left_blocks.len() < LEFT_BLOCKS_MAX {
        progress.left_blocks.push(name(Error { object: None, ..error }.to_string()));
    }
    if matches!(reaction, Reaction::Retry | Reaction::Replan) { Again::Perhaps } else { Again::InVain }
}

pub(super) fn interval(every: Duration) -> Interval {
    let mut interval = tokio::time::interval(every);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    interval
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_only_made_way_for_others_is_tried_for_as_long_as_they_come_to_their_end() {
        let after = |passes: &[(bool, Again)]| {
            let mut tries = Tries { count: 0, helps: true };
            passes.iter().for_each(|(has_done, again)| tries.count(*has_done, *again));
            tries.is_over()
        };
        assert!(!after(&[]) && !after(&[(true, Again::InVain); 2]) && after(&[(true, Again::InVain); 3]));
        assert!(after(&[(false, Again::InVain)]) && !after(&[(false, Again::Perhaps)]));
        assert!(!after(&[(true, Again::MadeWay); 100]));
        assert!(after(&[(false, Again::MadeWay); 3]), "for those that fail");
    }
}
