//! Runs one open task and reports its events.

use crate::{DiskMode, block_source::OpenBlock, meter::Outcome, node::Node, open::OpenTask, store_sink::Target, wire};
use std::{
    collections::BTreeMap,
    sync::{Arc, PoisonError},
    time::Duration,
};
use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, MissedTickBehavior, interval},
};
use tonic::Status;
use weft_engine::{Observer, run_observed};
use weft_proto::{
    status::encode_error,
    v1::{
        self, ArrivedBlock, CorruptBlock, SpanMessage, StoredBlock, TaskDone, TaskEvent, TaskFailed, TaskProgress, WaitingFor,
        task_event::Event,
    },
};
use weft_types::{Error, Result, Span};

use crate::traffic::Traffic;

const TICK: Duration = Duration::from_millis(250);
/// The most errors that are reported; the first is the cause.
const ERRORS_MAX: usize = 64;

/// Runs a task until it is Done or Failed. All its resources are released when this returns.
pub(crate) async fn run(
    node: &Node,
    open: OpenTask,
    events: &mpsc::Sender<Result<TaskEvent, Status>>,
    cancel: oneshot::Receiver<()>,
) -> TaskEvent {
    let (begin, plan) = (Instant::now(), open.task.plan);
    let observer = Observer::timed(&open.task, move || begin.elapsed().as_micros() as u64);
    let (mut errors, mut cancelled) = (Vec::new(), false);
    tokio::select! {
        biased;
        outcome = run_observed(&open.task, &open.ports, &observer) => errors = outcome.errors,
        _ = cancel => {
            cancelled = true;
            errors.push(Error::retry("the plan was cancelled"));
        }
        () = events.closed() => errors.push(Error::retry("the coordinator disconnected")),
        () = node.stopped() => errors.push(Error::replan("the agent is stopping")),
        () = tell_progress(&observer, &open.traffic, events) => {}
    }
    for error in &mut errors {
        error.party.get_or_insert(open.task.party);
    }
    if let Some(cause) = errors.first() {
        node.reception.fail(plan, cause.clone());
    }
    let (traffic, class) = (Arc::clone(&open.traffic), open.task.precedence().class);
    let mut harvest = harvest(open, node.seams.disk_mode).await;
    let stages = observer.times().into_iter().map(Into::into).collect();
    errors.append(&mut harvest.errors);
    let stored = harvest.stored.iter().map(|block| block.len);
    node.meter.of(class).ended(Outcome::of(!errors.is_empty(), cancelled), stored);
    match errors.first() {
        // The usual cause is that another node was busy or failed.
        Some(_) if cancelled => tracing::debug!(%plan, "a task was cancelled"),
        Some(error) => {
            match node.failures.admit(error.party.map(|party| party.to_string()).unwrap_or_default(), &error.message) {
                Some(left_out) => tracing::warn!(%error, count = errors.len(), left_out, "a task failed"),
                None => tracing::debug!(%error, count = errors.len(), "a task failed"),
            }
        }
        None => {}
    }
    event(&errors, harvest, &traffic, stages)
}

/// Reports, at every tick, the bytes moved and the peers that stages wait for. Never returns.
async fn tell_progress(observer: &Observer, traffic: &Traffic, events: &mpsc::Sender<Result<TaskEvent, Status>>) {
    let begin = Instant::now();
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let now_ms = begin.elapsed().as_millis() as u64;
        observer.advance(now_ms);
        let waiting = observer.waiting().into_iter().filter(|waiting| waiting.since < now_ms);
        let waiting = waiting.map(|waiting| WaitingFor {
            lane: waiting.lane.into(),
            stage: waiting.stage.into(),
            party: waiting.peer.map(|peer| wire::encode(&peer)).unwrap_or_default(),
            since_ms: u32::try_from(now_ms - waiting.since).unwrap_or(u32::MAX),
            held_back: waiting.held_back,
        });
        let progress = TaskProgress {
            bytes_moved: traffic.moved_bytes(),
            bytes_received: traffic.received.get(),
            waiting: waiting.collect(),
        };
        // If the queue is full, the coordinator gets the next report instead.
        let _full = events.try_send(Ok(TaskEvent { event: Some(Event::Progress(progress)) }));
    }
}

/// What a task leaves on the disks.
#[derive(Default)]
struct Harvest {
    stored: Vec<StoredBlock>,
    arrived: Vec<ArrivedBlock>,
    corrupt: Vec<CorruptBlock>,
    errors: Vec<Error>,
}

/// Commits complete blocks, keeps incomplete ones, and releases everything.
async fn harvest(open: OpenTask, mode: DiskMode) -> Harvest {
    let targets: BTreeMap<u8, Arc<Target>> = open.ports.targets.clone();
    let work = move || {
        let mut harvest = Harvest::default();
        for target in targets.values() {
            harvest.take(target);
        }
        harvest.corrupt = open.ports.blocks.values().flat_map(corrupt_bytes).collect();
        drop(targets);
        drop(open);
        Ok(harvest)
    };
    mode.run(work).await.unwrap_or_else(|error| Harvest { errors: vec![error], ..Harvest::default() })
}

/// The byte ranges that a task found corrupt in a block. Its errors say why.
fn corrupt_bytes(block: &OpenBlock) -> Vec<CorruptBlock> {
    let found = block.corrupt.lock().unwrap_or_else(PoisonError::into_inner);
    let tell = |bytes: &Span| CorruptBlock {
        block: wire::encode(&block.id),
        first_byte: bytes.start,
        len_bytes: bytes.len(),
        message: String::new(),
    };
    found.iter().map(tell).collect()
}

impl Harvest {
    fn take(&mut self, target: &Target) {
        let block = target.claim().meta().id;
        let id = wire::encode(&block);
        if let Err(error) = target.write_waiting() {
            self.errors.push(error);
        }
        if target.is_whole()
            && let Err(error) = target.commit()
        {
            self.errors.push(error);
        }
        if let Some(receipt) = target.receipt() {
            self.stored.push(StoredBlock { id, len: receipt.len, checksums: receipt.units });
        } else if let Some(arrived) = target.claim().arrived() {
            self.errors.push(Error::replan("the block has not arrived completely").block(block));
            // An empty block has no bytes to keep for the next plan.
            if !target.claim().meta().is_empty() {
                let spans = arrived.iter().map(|span| SpanMessage { start: span.start, end: span.end }).collect();
                self.arrived.push(ArrivedBlock { id, spans });
            }
        }
        target.claim().release();
    }
}

fn event(errors: &[Error], harvest: Harvest, traffic: &Traffic, stages: Vec<v1::StageTimes>) -> TaskEvent {
    let (stored, traffic) = (harvest.stored, Some(traffic.report()));
    let event = if errors.is_empty() {
        Event::Done(TaskDone { stored, traffic, stages })
    } else {
        let errors = errors.iter().take(ERRORS_MAX).map(encode_error).collect();
        Event::Failed(TaskFailed { errors, stored, arrived: harvest.arrived, traffic, corrupt: harvest.corrupt })
    };
    TaskEvent { event: Some(event) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Limits, LocalDisks, OpenDisk,
        line::{Line, Passage},
        partial::Partials,
    };
    use weft_plan::Class;
    use weft_plan::Precedence;
    use weft_store::{NewDisk, conformance};
    use weft_types::{ClusterId, PlanId, Rows};

    #[tokio::test]
    async fn an_empty_block_is_stored_only_when_its_stage_has_ended() {
        let (dir, cluster) = (tempfile::tempdir().unwrap(), ClusterId(3));
        let store = LocalDisks.open(dir.path(), cluster, Some(NewDisk { disk_id: 1, created_ms: 0 })).ok().unwrap().store;
        let (partials, meta) = (Partials::new(&Limits::default()), conformance::block(cluster, 1, 0));
        let begin = |plan| {
            let claim = partials.claim(PlanId(plan), 0, store.as_ref(), &meta).ok().unwrap();
            let passage = Passage::new(&Line::new(None), Precedence::of(Class::Repair));
            Arc::new(Target::new(claim, None, 1, Arc::default(), (passage, Arc::default())))
        };
        let (mut cancelled, mut ended) = (Harvest::default(), Harvest::default());
        cancelled.take(&begin(1));
        assert_eq!((cancelled.stored.len(), cancelled.arrived.len(), cancelled.errors.len()), (0, 0, 1));
        assert_eq!(store.list().unwrap(), []);

        let target = begin(2);
        target.sink(&[0], 4, DiskMode::Inline).finish().await.unwrap();
        ended.take(&target);
        assert_eq!((ended.stored.len(), ended.errors.len()), (1, 0));
        assert_eq!(store.list().unwrap(), [meta.id]);
    }

    #[tokio::test]
    async fn slices_wait_for_each_other_and_a_task_that_ends_early_writes_them() {
        let (dir, cluster) = (tempfile::tempdir().unwrap(), ClusterId(3));
        let store = LocalDisks.open(dir.path(), cluster, Some(NewDisk { disk_id: 1, created_ms: 0 })).ok().unwrap().store;
        let (partials, meta) = (Partials::new(&Limits::default()), conformance::block(cluster, 1, 32768));
        let begin = |plan, class| {
            let claim = partials.claim(PlanId(plan), 0, store.as_ref(), &meta).ok().unwrap();
            let passage = Passage::new(&Line::new(None), Precedence::of(class));
            Arc::new(Target::new(claim, None, 1, Arc::default(), (passage, Arc::default())))
        };
        let slices = [0, 1, 2, 3].map(|number| Span::new(number * 8192, (number + 1) * 8192));
        let rows = || Rows::from(vec![7; 8192]);
        let missing = |target: &Target| target.claim().missing();

        let target = begin(1, Class::Foreground);
        let mut sink = target.sink(&[0], 2, DiskMode::Pool);
        sink.put(slices[0], rows()).await.unwrap();
        assert_eq!(missing(&target), [Span::new(0, 32768)], "it waits for the next slice");
        sink.put(slices[1], rows()).await.unwrap();
        assert_eq!(missing(&target), [Span::new(16384, 32768)]);
        sink.put(slices[2], rows()).await.unwrap();
        drop(sink);
        let mut ended = Harvest::default();
        ended.take(&target);
        let arrived = SpanMessage { start: 0, end: 24576 };
        assert_eq!(ended.arrived.iter().map(|it| it.spans.clone()).collect::<Vec<_>>(), [vec![arrived]], "a slice was lost");

        let target = begin(2, Class::Repair);
        assert_eq!(missing(&target), [Span::new(24576, 32768)]);
        let mut sink = target.sink(&[0], 2, DiskMode::Pool);
        sink.put(slices[3], rows()).await.unwrap();
        assert_eq!(missing(&target), [], "a lower class writes each slice in its own turn");
        sink.finish().await.unwrap();
        assert_eq!(store.list().unwrap(), [meta.id]);
    }
}
