//! Jobs that outlive a coordinator: begun, looked at, paused, resumed and cancelled by operators, and taken up again by the next
//! coordinator.
//!
//! What a job is to do and how far it has come is in the metadata; what of it is under way is here. A job's state is written
//! before its work is told of it: so whatever a coordinator does when it dies, the next one does what was asked last.

pub(crate) mod control;
mod conversion;
mod node_repair;
mod runner;

use crate::{
    repair::{Events, event},
    shared::{Shared, until_stopped},
    validate,
};
use control::{Control, Live};
use conversion::ConversionJob;
use node_repair::NodeRepairJob;
use runner::{Runner, Work};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};
use tokio::sync::watch;
use weft_control::{conversion::LEFT_UNSAID as CONVERSION_LEFT, job::Job, node_repair::LEFT_UNSAID as REPAIR_LEFT};
use weft_proto::{to_status, v1};
use weft_types::{Amount, Conversion, Error, JobId, JobRecord, JobState, JobWork, LeftBlock, NodeId, NodeRepair, Result};

/// Takes up the jobs that earlier coordinators have left.
pub(crate) async fn go_on(shared: &Arc<Shared>) -> Result<()> {
    let jobs = shared.meta.jobs().await.map_err(|error| shared.meta_error(error))?;
    for job in jobs.into_iter().filter(|job| !job.state.has_ended()) {
        tracing::info!(job = %job.id, kind = job.work.kind(), state = job.state.name(), "a job is taken up");
        work_on(shared, job);
    }
    Ok(())
}

/// Begins the repair of a node.
pub(crate) async fn begin(shared: &Arc<Shared>, asked: &v1::RepairNodeRequest) -> Result<v1::Job> {
    let repair = check(shared, asked).await?;
    create(shared, JobWork::RepairNode(repair)).await
}

/// Begins to write objects anew in another code.
pub(crate) async fn begin_conversion(shared: &Arc<Shared>, asked: &v1::ConvertRequest) -> Result<v1::Job> {
    let conversion = conversion::check(shared, asked).await?;
    create(shared, JobWork::Convert(conversion)).await
}

async fn create(shared: &Arc<Shared>, work: JobWork) -> Result<v1::Job> {
    let job = shared.meta.create_job(shared.epoch, work, shared.now_ms()).await;
    let job = job.map_err(|error| shared.meta_error(error))?;
    tracing::info!(job = %job.id, work = ?job.work, "a job begins");
    work_on(shared, job.clone());
    Ok(show(shared, job))
}

/// Tells the plans that a repair of a node would begin with.
pub(crate) async fn explain(shared: Arc<Shared>, asked: v1::RepairNodeRequest, events: Events) {
    let explained = match check(&shared, &asked).await {
        Ok(repair) => node_repair::explain(&shared, repair, &events).await,
        Err(error) => Err(error),
    };
    let last = match explained {
        Ok(()) => Ok(event(v1::repair_event::Event::Done(v1::RepairDone::default()))),
        Err(error) => Err(to_status(&error)),
    };
    // Whoever asked may be gone.
    let _gone = events.send(last).await;
}

/// All jobs.
pub(crate) async fn list(shared: &Shared) -> Result<v1::ListJobsReply> {
    let jobs = shared.meta.jobs().await.map_err(|error| shared.meta_error(error))?;
    Ok(v1::ListJobsReply { jobs: jobs.into_iter().map(|job| show(shared, job)).collect() })
}

/// A job.
pub(crate) async fn get(shared: &Shared, job: u64) -> Result<v1::Job> {
    // Looked up first: a job that ends meanwhile has written all by the time that it is none of those that run.
    let control = shared.jobs.control(JobId(job));
    let record = shared.meta.job(JobId(job)).await.map_err(|error| shared.meta_error(error))?;
    Ok(show_with(record, control))
}

/// Pauses, resumes or cancels a job.
pub(crate) async fn change(shared: &Arc<Shared>, asked: &v1::ChangeJobRequest) -> Result<v1::Job> {
    let (job, asked_state) = (JobId(asked.id), JobState::by_name(&asked.state));
    let state = asked_state.filter(|state| matches!(state, JobState::Running | JobState::Paused | JobState::Cancelled));
    let state = state.ok_or_else(|| Error::invalid("a job can be asked to be running, paused or cancelled"))?;
    let _one_at_a_time = shared.jobs.changing.lock().await;
    let mut record = shared.meta.job(job).await.map_err(|error| shared.meta_error(error))?;
    if record.state != state {
        let changed = shared.meta.set_job_state(shared.epoch, job, state, None, shared.now_ms()).await;
        record = changed.map_err(|error| shared.meta_error(error))?;
        tracing::info!(%job, state = state.name(), "a job was told");
    }
    match shared.jobs.control(job) {
        Some(control) => drop(control.state.send_replace(state)),
        // Nobody works on it, for whatever reason: from now on somebody does.
        None if state == JobState::Running => work_on(shared, record.clone()),
        None => {}
    }
    Ok(show(shared, record))
}

/// Works on a job until it has ended, or the coordinator has.
fn work_on(shared: &Arc<Shared>, job: JobRecord) {
    let left_unsaid = match &job.work {
        JobWork::RepairNode(_) => REPAIR_LEFT,
        JobWork::Convert(_) => CONVERSION_LEFT,
    };
    let live = Live::new(Job::new(job.state, job.progress, left_unsaid));
    let control = Arc::new(Control { state: watch::Sender::new(job.state), live: Mutex::new(live) });
    shared.jobs.lock().insert(job.id, Arc::clone(&control));
    let (shared, stopped) = (Arc::clone(shared), shared.stop.subscribe());
    tokio::spawn(until_stopped(stopped, async move {
        let _working = Working { shared: &shared, job: job.id };
        let mut work = match job.work {
            JobWork::RepairNode(repair) => Work::RepairNode(Box::new(NodeRepairJob::new(&shared, repair))),
            JobWork::Convert(conversion) => Work::Convert(Box::new(ConversionJob::new(&shared, conversion))),
        };
        Runner::new(&shared, job.id, &control).run(&mut work).await;
    }));
}

/// Dropped, however that comes, nobody works on the job any more.
struct Working<'a> {
    shared: &'a Shared,
    job: JobId,
}

impl Drop for Working<'_> {
    fn drop(&mut self) {
        self.shared.jobs.lock().remove(&self.job);
    }
}

/// What is asked, if it can be done.
async fn check(shared: &Shared, asked: &v1::RepairNodeRequest) -> Result<NodeRepair> {
    let repair = validate::repair_node(asked, &shared.config)?;
    shared.until_nodes_are_back().await;
    let view = shared.members.view();
    let known =
        |id: NodeId| view.node(id).ok_or_else(|| Error::not_found(format!("there is no node {id}: `weft node ls` lists them")));
    let node = known(repair.node)?;
    if node.up && !repair.force && !node.disks.iter().any(|disk| disk.failed) {
        let (name, seconds) = (&node.name, shared.config.down_after_ms.div_ceil(1000));
        return Err(Error::invalid(format!(
            "{name} is up and its blocks can be read: nothing of it is lost. A node that has just died counts as down after \
             {seconds} s; to rebuild all blocks of one that is up elsewhere, as if it were gone, say --force (it may still get new \
             ones: stop its agent first if it shall not)"
        )));
    }
    for to in &repair.to {
        let node = known(*to)?;
        if !node.up {
            return Err(Error::invalid(format!("{} is down: nothing can be rebuilt there", node.name)));
        }
    }
    Ok(repair)
}

fn show(shared: &Shared, job: JobRecord) -> v1::Job {
    let control = shared.jobs.control(job.id);
    show_with(job, control)
}

fn show_left(left: LeftBlock) -> v1::LeftBlock {
    let LeftBlock { object, stripe, index, reason } = left;
    v1::LeftBlock { stripe, index: index.into(), reason, object, copy: 0 }
}

fn show_with(job: JobRecord, control: Option<Arc<Control>>) -> v1::Job {
    let (progress, moving, gathered_bytes, waits_for) = match &control {
        Some(control) => {
            let live = control.live();
            (live.job.progress().clone(), live.moving.clone(), live.gathered_bytes, live.waits.shown())
        }
        None => (job.progress, BTreeMap::new(), 0, Vec::new()),
    };
    let amount = |amount: Amount| Some(v1::JobAmount { blocks: amount.blocks, bytes: amount.bytes });
    let kind = job.work.kind().to_owned();
    let (repair_node, convert) = show_work(job.work);
    v1::Job {
        id: job.id.0,
        kind,
        state: job.state.name().to_owned(),
        total: amount(progress.total),
        done: amount(progress.done),
        left: amount(progress.left),
        last_error: progress.last_error,
        created_ms: job.created_ms,
        changed_ms: job.changed_ms,
        stripes_under_way: u32::try_from(moving.len()).unwrap_or(u32::MAX),
        repair_node,
        convert,
        moving_bytes: moving.values().sum::<u64>().saturating_add(gathered_bytes),
        left_blocks: progress.left_blocks.into_iter().map(show_left).collect(),
        waits_for,
    }
}

fn show_work(work: JobWork) -> (Option<v1::RepairNodeRequest>, Option<v1::ConvertRequest>) {
    match work {
        JobWork::RepairNode(repair) => {
            let repair = v1::RepairNodeRequest {
                node: repair.node.0,
                select: repair.select.name().to_owned(),
                to_nodes: repair.to.iter().map(|node| node.0).collect(),
                scheme: repair.scheme,
                concurrency: repair.concurrency,
                slice_len: repair.slice_len,
                force: repair.force,
            };
            (Some(repair), None)
        }
        JobWork::Convert(conversion) => {
            let Conversion { bucket, key, policy, concurrency, bytes_per_s } = conversion;
            (None, Some(v1::ConvertRequest { bucket, key: key.unwrap_or_default(), policy, concurrency, bytes_per_s }))
        }
    }
}
