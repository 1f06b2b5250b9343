//! What all jobs have in common: the shell around [`Job`], which decides. It counts, runs passes, writes and waits.

use super::{Control, eta};
use crate::shared::Shared;
use futures::{Stream, StreamExt as _, stream::FuturesUnordered};
use std::{pin::pin, sync::Arc, time::Duration};
use tokio::{sync::watch, time::MissedTickBehavior};
use tonic::async_trait;
use weft_control::job::{Action, Again, Counted, Event, Pass, Passed, Written};
use weft_meta::MetaError;
use weft_proto::v1;
use weft_types::{JobId, JobProgress, JobState, Result};

/// How often a running job's progress is written.
const WRITE_INTERVAL: Duration = Duration::from_secs(2);

/// A running job.
pub(super) struct Runner<'a> {
    pub(super) shared: &'a Arc<Shared>,
    pub(super) id: JobId,
    pub(super) control: &'a Control,
    /// The requested state.
    pub(super) state: watch::Receiver<JobState>,
    /// The requested state that [`Job`] knows.
    ///
    /// [`Job`]: weft_control::job::Job
    told: watch::Receiver<JobState>,
}

/// The next input of a job's state machine.
enum Next {
    Event(Event),
    /// The requested state at that moment.
    Told,
}

/// The work of a job of one kind.
#[async_trait]
pub(super) trait Passes: Send {
    /// Adds the request to the shown job.
    fn show(&self, shown: &mut v1::Job);

    /// The reason if items are left that no attempt reported.
    fn left_unsaid(&self) -> &'static str;

    /// Runs first when a coordinator starts or resumes the job.
    async fn begin(&mut self) -> Result<()> {
        Ok(())
    }

    /// Counts the work.
    async fn count(&mut self) -> Result<Counted>;

    /// Runs after the job was recorded as done.
    async fn done(&mut self) {}

    /// Tries all items once, usually with [`Runner::all`]. Also returns whether failed items may succeed in another
    /// pass.
    async fn pass(&mut self, runner: &mut Runner<'_>) -> Result<(Passed, Again)>;
}

impl<'a> Runner<'a> {
    pub(super) fn new(shared: &'a Arc<Shared>, id: JobId, control: &'a Control) -> Self {
        let (state, mut told) = (control.state.subscribe(), control.state.subscribe());
        told.mark_changed();
        Self { shared, id, control, state, told }
    }

    /// Carries out the decisions until the job has ended.
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
                    Action::WriteEnd(end, progress) => {
                        let written = self.end(end, progress).await;
                        if end == JobState::Done && written == Ok(Written::Taken) {
                            work.done().await;
                        }
                        answer = Some(Event::Written(written));
                    }
                    Action::Wait(pause) => {
                        tokio::time::sleep(pause).await;
                        answer = Some(Event::Woken);
                    }
                    Action::WaitToBeTold => {
                        // The sender is gone: no further request can arrive.
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

    /// Decides what is next. The job first learns of requests that arrived in between. They are read only here, without
    /// an interruption, so an older request never follows a newer one.
    fn decide(&mut self, next: Next) -> Vec<Action> {
        let mut live = self.control.live();
        match next {
            Next::Told => live.job.on(Event::Asked(*self.told.borrow_and_update())),
            Next::Event(event) => {
                if self.told.has_changed().unwrap_or(false) {
                    // The job is waiting for the event, and takes the request into account then.
                    let _nothing = live.job.on(Event::Asked(*self.told.borrow_and_update()));
                }
                live.job.on(event)
            }
        }
    }

    /// Writes the job's end, unless its state was changed by a request.
    async fn end(&self, state: JobState, progress: JobProgress) -> Result<Written> {
        let shared = self.shared;
        let (done, left, bytes) = (progress.done.blocks, progress.left.blocks, progress.done.bytes);
        match shared.meta.set_job_state(shared.epoch, self.id, state, Some(progress), shared.now_ms()).await {
            Ok(job) => {
                shared.meter.job_written(&job);
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

    /// Runs all items of a pass, up to a number at the same time, and writes the progress at intervals. No item starts
    /// while `is_held`. `item` counts the outcome of each.
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
        // The job knows of earlier requests.
        self.state.mark_unchanged();
        eta::observe(self.shared, self.control);
        loop {
            let begins = pass.begins(*self.state.borrow()) && !is_held();
            if pass.is_idle() && !begins {
                return pass.over();
            }
            tokio::select! {
                biased;
                Some(again) = under_way.next() => {
                    pass.ended(again);
                    eta::observe(self.shared, self.control);
                    changed_since = true;
                }
                // The sender belongs to the job and outlives the pass. Running items finish, or wait until the job
                // continues. The time of a pause counts for no estimate, also if it is too short for the pass to end.
                _ = self.state.changed() => {
                    self.control.live().job.forget_estimates();
                }
                _ = write.tick(), if changed_since => changed_since = !self.has_written().await,
                // The lookup may take long if most items are done; the others continue meanwhile.
                next = items.next(), if begins => {
                    if let Some(next) = pass.next(next.transpose()) {
                        under_way.push(item(next));
                    }
                }
            }
        }
    }

    /// Writes the progress of a running job, if that is possible now.
    async fn has_written(&self) -> bool {
        let progress = self.control.live().job.progress().clone();
        let written = self.write(progress).await;
        if let Err(error) = &written {
            tracing::warn!(job = %self.id, %error, "cannot write a job's progress, trying again later");
        }
        written.is_ok()
    }
}
