//! Jobs that survive a coordinator: operators create, show, pause, resume and cancel them, and the next coordinator
//! resumes them.
//!
//! The metadata holds a job's work and progress; the running part is here. A job's state is written before its worker learns of it. So
//! whenever a coordinator dies, the next one follows the last request.

pub(crate) mod balance;
pub(crate) mod control;
pub(crate) mod conversion;
mod eta;
mod gate;
pub(crate) mod node_repair;
pub(crate) mod pressure;
mod runner;
pub(crate) mod scrub;

use crate::{limit, shared::Shared, tasks};
use balance::BalanceJob;
use control::{Control, Live};
use conversion::ConversionJob;
use node_repair::NodeRepairJob;
use runner::{Passes, Runner};
use scrub::ScrubJob;
use std::sync::{Arc, Mutex};
use tokio::sync::watch;
use weft_control::job::Job;
use weft_proto::v1;
use weft_types::{Amount, Error, Estimated, JobId, JobRecord, JobState, JobWork, LeftBlock, Result};

/// Resumes the jobs of earlier coordinators.
pub(crate) async fn go_on(shared: &Arc<Shared>) -> Result<()> {
    let jobs = shared.meta.jobs().await.map_err(|error| shared.meta_error(error))?;
    for job in jobs.into_iter().filter(|job| !job.state.has_ended()) {
        tracing::info!(job = %job.id, kind = job.work.kind(), state = job.state.name(), "resuming a job");
        work_on(shared, job);
    }
    Ok(())
}

/// Creates a job.
async fn begin(shared: &Arc<Shared>, work: JobWork) -> Result<v1::Job> {
    let job = shared.meta.create_job(shared.epoch, work, shared.now_ms()).await;
    let job = job.map_err(|error| shared.meta_error(error))?;
    tracing::info!(job = %job.id, work = ?job.work, "created a job");
    work_on(shared, job.clone());
    Ok(show(shared, job))
}

/// All jobs.
pub(crate) async fn list(shared: &Arc<Shared>) -> Result<v1::ListJobsReply> {
    let jobs = shared.meta.jobs().await.map_err(|error| shared.meta_error(error))?;
    let mut jobs: Vec<v1::Job> = jobs.into_iter().map(|job| show(shared, job)).collect();
    for job in &mut jobs {
        scrub::add_report(shared, job).await?;
    }
    Ok(v1::ListJobsReply { jobs })
}

/// A job.
pub(crate) async fn get(shared: &Arc<Shared>, job: u64) -> Result<v1::Job> {
    // Looked up first: a job that ends now has written its final record before it leaves the running ones.
    let control = shared.jobs.control(JobId(job));
    let record = shared.meta.job(JobId(job)).await.map_err(|error| shared.meta_error(error))?;
    let mut shown = show_with(shared, record, control);
    scrub::add_report(shared, &mut shown).await?;
    Ok(shown)
}

/// Pauses, resumes or cancels a job.
pub(crate) async fn change(shared: &Arc<Shared>, asked: &v1::ChangeJobRequest) -> Result<v1::Job> {
    let (job, asked_state) = (JobId(asked.id), JobState::by_name(&asked.state));
    let state = asked_state.filter(|state| matches!(state, JobState::Running | JobState::Paused | JobState::Cancelled));
    let state = state.ok_or_else(|| Error::invalid("invalid job state: use running, paused or cancelled"))?;
    let _one_at_a_time = shared.jobs.changing.lock().await;
    let mut record = shared.meta.job(job).await.map_err(|error| shared.meta_error(error))?;
    if record.state != state {
        let changed = shared.meta.set_job_state(shared.epoch, job, state, None, shared.now_ms()).await;
        record = changed.map_err(|error| shared.meta_error(error))?;
        shared.meter.job_written(&record);
        tracing::info!(%job, state = state.name(), "changed the state of a job");
    }
    match shared.jobs.control(job) {
        // The worker takes a notification for a pause, so it gets none if the state is the same. The state differs if an earlier call wrote it
        // and ended before it could notify.
        Some(control) => {
            control.state.send_if_modified(|now| std::mem::replace(now, state) != state);
        }
        // The job has no worker: start one.
        None if state == JobState::Running => work_on(shared, record.clone()),
        None => {}
    }
    Ok(show(shared, record))
}

/// The passes of a job, by its kind.
fn passes(shared: &Arc<Shared>, id: JobId, work: JobWork) -> Box<dyn Passes> {
    match work {
        JobWork::RepairNode(repair) => Box::new(NodeRepairJob::new(shared, repair, shared.jobs.shares())),
        JobWork::Balance(balance) => Box::new(BalanceJob::new(shared, balance)),
        JobWork::Convert(conversion) => Box::new(ConversionJob::new(shared, conversion)),
        JobWork::Scrub(scrub) => Box::new(ScrubJob::new(shared, id, scrub)),
    }
}

/// Runs a job until it or the coordinator ends.
fn work_on(shared: &Arc<Shared>, job: JobRecord) {
    let (converts, kind) = (matches!(job.work, JobWork::Convert(_)), job.work.kind());
    let mut work = passes(shared, job.id, job.work);
    let live = Live::new(Job::new(job.state, job.progress, work.left_unsaid()));
    let control = Arc::new(Control { state: watch::Sender::new(job.state), live: Mutex::new(live), converts, kind });
    shared.jobs.lock().insert(job.id, Arc::clone(&control));
    let (shared, stopped) = (Arc::clone(shared), shared.stop.subscribe());
    tasks::start_until_stopped(stopped, async move {
        let _working = Working { shared: &shared, job: job.id };
        Runner::new(&shared, job.id, &control).run(work.as_mut()).await;
    });
}

/// Dropping it removes the job from the running ones.
struct Working<'a> {
    shared: &'a Shared,
    job: JobId,
}

impl Drop for Working<'_> {
    fn drop(&mut self) {
        self.shared.jobs.lock().remove(&self.job);
    }
}

/// A job that has not ended, as metrics show it.
pub(crate) struct Shown {
    pub(crate) id: JobId,
    pub(crate) kind: &'static str,
    /// Whether it runs; otherwise it is paused.
    pub(crate) is_running: bool,
    pub(crate) total: Amount,
    pub(crate) done: Amount,
    /// What was not done.
    pub(crate) left: Amount,
}

/// The jobs that have not ended, without a look at the metadata.
pub(crate) fn shown(shared: &Shared) -> Vec<Shown> {
    let all: Vec<(JobId, Arc<Control>)> = shared.jobs.lock().iter().map(|(id, control)| (*id, Arc::clone(control))).collect();
    let shown = |(id, control): (JobId, Arc<Control>)| {
        let (state, progress) = (*control.state.borrow(), control.live().job.progress().clone());
        (!state.has_ended()).then_some(Shown {
            id,
            kind: control.kind,
            is_running: state == JobState::Running,
            total: progress.total,
            done: progress.done,
            left: progress.left,
        })
    };
    all.into_iter().filter_map(shown).collect()
}

fn show(shared: &Arc<Shared>, job: JobRecord) -> v1::Job {
    let control = shared.jobs.control(job.id);
    show_with(shared, job, control)
}

fn show_left(left: LeftBlock) -> v1::LeftBlock {
    let LeftBlock { object, stripe, index, reason } = left;
    v1::LeftBlock { stripe, index: index.into(), reason, object, copy: 0 }
}

fn show_with(shared: &Arc<Shared>, job: JobRecord, control: Option<Arc<Control>>) -> v1::Job {
    let (progress, under_way, begun_bytes, waits_for) = match &control {
        Some(control) => {
            let live = control.live();
            (live.job.progress().clone(), live.moving.len(), live.begun_bytes(), live.waits.shown())
        }
        None => (job.progress, 0, 0, Vec::new()),
    };
    let (state, changed_ms, is_conversion) = (job.state, job.changed_ms, matches!(job.work, JobWork::Convert(_)));
    let error = |made: Option<Estimated>| {
        let error = made.filter(|_| state == JobState::Done)?.error(changed_ms)?;
        Some((error * 1000.0).round() as i32)
    };
    let amount = |amount: Amount| Some(v1::JobAmount { blocks: amount.blocks, bytes: amount.bytes });
    let kind = job.work.kind().to_owned();
    let mut shown = v1::Job {
        id: job.id.0,
        kind,
        state: job.state.name().to_owned(),
        total: amount(progress.total),
        done: amount(progress.done),
        left: amount(progress.left),
        last_error: progress.last_error,
        created_ms: job.created_ms,
        changed_ms: job.changed_ms,
        stripes_under_way: u32::try_from(under_way).unwrap_or(u32::MAX),
        moving_bytes: begun_bytes,
        moved_bytes: Some(progress.moved_bytes).filter(|_| !is_conversion),
        remaining_ms: control.as_ref().and_then(|control| eta::remaining_ms(shared, control)),
        stripes_at_risk: if state.has_ended() { None } else { shared.health.lock().at_risk() },
        eta_error_at_quarter: error(progress.quarter),
        eta_error_at_half: error(progress.half),
        left_blocks: progress.left_blocks.into_iter().map(show_left).collect(),
        waits_for,
        limit: control.as_ref().map_or_else(String::new, |_| limit::text(shared)),
        limited_ms: control.and_then(|control| limit::least_ms(shared, Some((control.converts, control.left_bytes())))),
        ..v1::Job::default()
    };
    passes(shared, job.id, job.work).show(&mut shown);
    shown
}
