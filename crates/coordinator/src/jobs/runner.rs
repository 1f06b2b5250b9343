//! What all jobs have in common: the shell around [`Job`], which decides. It counts, passes, writes and waits.

use super::Control;
use crate::shared::Shared;
use futures::{Stream, StreamExt as _, stream::FuturesUnordered};
use std::{pin::pin, sync::Arc, time::Duration};
use tokio::{sync::watch, time::MissedTickBehavior};
use tonic::async_trait;
use weft_control::job::{Action, Again, Counted, Event, Pass, Passed, Written};
use weft_meta::MetaError;
use weft_proto::v1;
use weft_types::{JobId, JobProgress, JobState, Result};

/// How often a job's progress is written while it works.
const WRITE_INTERVAL: Duration = Duration::from_secs(2);

/// A job at work.
pub(super) struct Runner<'a> {
    pub(super) shared: &'a Arc<Shared>,
    pub(super) id: JobId,
    pub(super) control: &'a Control,
    /// The state that it shall be in.
    pub(super) state: watch::Receiver<JobState>,
    /// The same, as [`Job`] was told of it.
    ///
    /// [`Job`]: weft_control::job::Job
    told: watch::Receiver<JobState>,
}

/// The next input of a job's state machine.
enum Next {
    Event(Event),
    /// The state that the job is asked for at that moment.
    Told,
}

/// What jobs of one kind do.
#[async_trait]
pub(super) trait Passes: Send {
    /// What was asked for.
    fn show(&self, shown: &mut v1::Job);

    /// What is said if something is left in the end of which no attempt has told.
    fn left_unsaid(&self) -> &'static str;

    /// Comes before all else when a coordinator takes up the job.
    async fn begin(&mut self) -> Result<()> {
        Ok(())
    }

    /// Counts what there is to do.
    async fn count(&mut self) -> Result<Counted>;

    /// Tries all of it once, as a rule by [`Runner::all`]. Tells, too, whether what was left may work the next time.
    async fn pass(&mut self, runner: &mut Runner<'_>) -> Result<(Passed, Again)>;
}

impl<'a> Runner<'a> {
    pub(super) fn new(shared: &'a Arc<Shared>, id: JobId, control: &'a Control) -> Self {
        let (state, mut told) = (control.state.subscribe(), control.state.subscribe());
        told.mark_changed();
        Self { shared, id, control, state, told }
    }

    /// Works until the job has ended: does what is decided.
    pub(super) async fn run(&mut self, work: &mut dyn Passes) {
        let mut next = Next::Event(Event::TakenUp);
        'next: loop {
            let mut answer = None;
            for action in self.decide(next) {
                match action {
                    Action::Warn(warning) => tracing::warn!(job = %self.id, "{warning}"),
                    Action::Error(error) => tracing::error!(job = %self.id, "{error}"),
                    Action::Begin => {
                        self.shared.until_nodes_are_back().await;
                        answer = Some(Event::Begun(work.begin().await));
                    }
                    Action::Count => answer = Some(Event::Counted(work.count().await)),
                    Action::Pass => answer = Some(Event::Passed(work.pass(self).await)),
                    Action::Write(progress) => {
                        answer = Some(Event::Written(self.write(progress).await.map(|()| Written::Taken)));
                    }
                    Action::WriteEnd(end, progress) => answer = Some(Event::Written(self.end(end, progress).await)),
                    Action::Wait(pause) => {
                        tokio::time::sleep(pause).await;
                        answer = Some(Event::Woken);
                    }
                    Action::WaitToBeTold => {
                        // The sender is gone: no request can come any more.
                        if self.told.changed().await.is_err() {
                            return;
                        }
                        next = Next::Told;
                        continue 'next;
                    }
                    Action::End => return,
                }
            }
            let Some(event) = answer else { return };
            next = Next::Event(event);
        }
    }

    /// Decides what is next. What it was asked meanwhile it knows before. That is read here only, where nothing comes in between: an older
    /// request never follows a newer one.
    fn decide(&mut self, next: Next) -> Vec<Action> {
        let mut live = self.control.live();
        match next {
            Next::Told => live.job.on(Event::Asked(*self.told.borrow_and_update())),
            Next::Event(event) => {
                if self.told.has_changed().unwrap_or(false) {
                    // It waits for the event, and takes this into account then.
                    let _nothing = live.job.on(Event::Asked(*self.told.borrow_and_update()));
                }
                live.job.on(event)
            }
        }
    }

    /// Writes that it has ended, unless it was told otherwise meanwhile.
    async fn end(&self, state: JobState, progress: JobProgress) -> Result<Written> {
        let shared = self.shared;
        let (done, left, bytes) = (progress.done.blocks, progress.left.blocks, progress.done.bytes);
        match shared.meta.set_job_state(shared.epoch, self.id, state, Some(progress), shared.now_ms()).await {
            Ok(_) => {
                tracing::info!(job = %self.id, state = state.name(), done, left, bytes, "a job has ended");
                Ok(Written::Taken)
            }
            Err(MetaError::Refused(_)) => {
                let now = shared.meta.job(self.id).await.map_err(|error| shared.meta_error(error))?;
                Ok(Written::Refused(now.state))
            }
            Err(error) => Err(shared.meta_error(error)),
        }
    }

    async fn write(&self, progress: JobProgress) -> Result<()> {
        let shared = self.shared;
        let written = shared.meta.set_job_progress(shared.epoch, self.id, progress, shared.now_ms()).await;
        written.map(drop).map_err(|error| shared.meta_error(error))
    }

    /// Does all items of a pass, so many at a time, and writes now and then how far the job is. None begins while `is_held`. `item` counts what
    /// became of one.
    pub(super) async fn all<T, F: Future<Output = Again>>(
        &mut self,
        concurrency: usize,
        items: impl Stream<Item = Result<T>>,
        is_held: impl Fn() -> bool,
        item: impl Fn(T) -> F,
    ) -> Result<(Passed, Again)> {
        let (mut items, mut under_way, mut write) = (pin!(items), FuturesUnordered::new(), tokio::time::interval(WRITE_INTERVAL));
        write.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut pass, mut changed_since) = (Pass::new(concurrency), false);
        loop {
            let begins = pass.begins(*self.state.borrow()) && !is_held();
            if pass.is_idle() && !begins {
                return pass.over();
            }
            tokio::select! {
                biased;
                Some(again) = under_way.next() => {
                    pass.ended(again);
                    changed_since = true;
                }
                // Its sender is the job's own, and outlives the pass. What is under way ends, or waits until the job goes on.
                _ = self.state.changed() => {}
                _ = write.tick(), if changed_since => changed_since = !self.has_written().await,
                // To look for it may take long where most is done already: the others go on meanwhile.
                next = items.next(), if begins => {
                    if let Some(next) = pass.next(next.transpose()) {
                        under_way.push(item(next));
                    }
                }
            }
        }
    }

    /// Writes how far it is while it works, if that works now.
    async fn has_written(&self) -> bool {
        let progress = self.control.live().job.progress().clone();
        let written = self.write(progress).await;
        if let Err(error) = &written {
            tracing::warn!(job = %self.id, %error, "a job's progress could not be written; it is tried again");
        }
        written.is_ok()
    }
}
