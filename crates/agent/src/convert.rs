//! Conversions. On the coordinator's request, the agent rewrites a stripe of an object in another code. The
//! [`Converter`](weft_proto::Converter) that the agent was started with does the work.
//!
//! The coordinator picks an agent that holds many of the stripe's blocks, because local blocks need no network. This
//! file decides how many conversions run at once, what each may use, and that conversions give way to other work. The
//! rest works like gets and puts.

use crate::{
    Limits,
    admission::capacity,
    both_ways::BothWays,
    membership::LOOK_PATIENCE,
    node::Node,
    spool::{KeptFree, SpoolRoom},
};
use rand::Rng;
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::{sync::mpsc, time::interval};
use tonic::Status;
use weft_engine::classes::Demand;
use weft_plan::Precedence;
use weft_proto::{
    Conversion, ConversionLimits,
    rpc::CONVERSIONS_PER_AGENT_MAX,
    to_status,
    v1::{ConvertDone, ConvertEvent, ConvertProgress, ConvertStripeRequest, convert_event::Event},
};
use weft_types::{
    Error, Result,
    conversion::{MEMORY_BYTES, STRIPE_SHARE},
    human_bytes,
};

/// The smallest fetch window.
const WINDOW_BYTES_MIN: u64 = 1 << 20;
/// How long the conversion retries a busy peer.
const PATIENCE: Duration = Duration::from_secs(10);
/// The interval of progress reports, which also show the coordinator that the conversion is alive.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(250);
/// Events that may wait for the coordinator.
const EVENTS_MAX: usize = 4;

/// Conversions rank below repairs: lost blocks are rebuilt first.
const PRECEDENCE: Precedence = Precedence::MOVE;

/// How many conversions a node with these limits runs at once.
pub(crate) fn at_once(limits: &Limits) -> usize {
    let fit = memory_bytes_all(limits) / MEMORY_BYTES.start();
    fit.min(CONVERSIONS_PER_AGENT_MAX.into()) as usize
}

/// Memory of all conversions together. Half of the node's memory is left to other tasks, as is the part of the class's
/// share that is reserved for its first priority.
fn memory_bytes_all(limits: &Limits) -> u64 {
    let budget = limits.memory_budget.0;
    (budget / 2).min(capacity(limits).limit(PRECEDENCE, budget))
}

/// Memory of each conversion.
fn memory_bytes_each(limits: &Limits, at_once: usize) -> u64 {
    (memory_bytes_all(limits) / at_once as u64).min(*MEMORY_BYTES.end())
}

/// Starts a conversion, or refuses at once if there is no room. The conversion is cancelled when the receiver of its
/// events is dropped.
pub(crate) async fn start(node: &Arc<Node>, asked: ConvertStripeRequest) -> Result<mpsc::Receiver<Result<ConvertEvent, Status>>> {
    let own = node.limits();
    let at_once = at_once(&own);
    if at_once == 0 {
        let (least, has) = (human_bytes(*MEMORY_BYTES.start()), human_bytes(memory_bytes_all(&own)));
        return Err(Error::invalid(format!(
            "a conversion needs {least} of memory, but this node's conversions may use only {has} together: raise \
             limits.memory_budget or limits.repair_percent"
        )));
    }
    let busy = |_| {
        node.admission.was_busy(PRECEDENCE.class);
        Error::retry(format!("busy: {at_once} conversions are already running"))
    };
    let turn = Arc::clone(&node.converting).try_acquire_owned().map_err(busy)?;
    let memory_bytes = memory_bytes_each(&own, at_once);
    let permit = node.admission.admit(PRECEDENCE, Demand { memory_bytes, ..Demand::default() })?;
    let limits = limits(memory_bytes);
    let spool = spool_room(node, &asked, &limits).await?;
    let (events, told) = mpsc::channel(EVENTS_MAX);
    tracing::info!(object = %format_args!("{}/{}", asked.bucket, asked.key), stripe = asked.number, "started a conversion");
    let done_bytes = Arc::new(AtomicU64::new(0));
    let conversion = conversion(node, asked, limits, &spool, &done_bytes);
    let node = Arc::clone(node);
    tokio::spawn(async move {
        let work = node.seams.converter.convert(conversion);
        tokio::select! {
            biased;
            () = events.closed() => tracing::info!("cancelled a conversion: the coordinator no longer waits for it"),
            () = node.stopped() => {}
            () = tell(&events, &done_bytes) => {}
            done = work => {
                let done = done.map(|()| event(Event::Done(ConvertDone {}))).map_err(|error| {
                    tracing::warn!(%error, "a conversion failed");
                    to_status(&error)
                });
                // The caller may have disconnected.
                let _gone = events.send(done).await;
            }
        }
        drop((permit, turn, spool));
    });
    Ok(told)
}

/// Reports progress for as long as the conversion runs.
async fn tell(events: &mpsc::Sender<Result<ConvertEvent, Status>>, done_bytes: &AtomicU64) {
    let mut ticks = interval(PROGRESS_INTERVAL);
    loop {
        ticks.tick().await;
        let progress = ConvertProgress { bytes: done_bytes.load(Ordering::Relaxed) };
        // If the queue is full, the coordinator gets the next report instead.
        let _full = events.try_send(Ok(event(Event::Progress(progress))));
    }
}

/// The conversion uses the agent's own certificate, random numbers and network, and only the memory that it was given.
fn conversion(
    node: &Node,
    asked: ConvertStripeRequest,
    limits: ConversionLimits,
    spool: &SpoolRoom,
    done_bytes: &Arc<AtomicU64>,
) -> Conversion {
    let done_bytes = Arc::clone(done_bytes);
    Conversion {
        asked,
        cluster: *node.cluster.borrow(),
        coordinators: node.config.coordinators.clone(),
        security: node.security.clone(),
        net: Arc::clone(&node.seams.net),
        node_link: Arc::new(BothWays::new(
            &node.throttles,
            PRECEDENCE,
            node.limit.extra_stall(PRECEDENCE.class),
            node.meter.of(PRECEDENCE.class).traffic.of_task(),
        )),
        seed: node.draw(|random| random.random()),
        disk_mode: node.seams.disk_mode,
        spool_dir: spool.dir(),
        limits,
        progress: Box::new(move |bytes| done_bytes.store(bytes, Ordering::Relaxed)),
    }
}

fn limits(memory_bytes: u64) -> ConversionLimits {
    ConversionLimits {
        stripe_memory_bytes_max: (memory_bytes / STRIPE_SHARE) as usize,
        // Three windows are in flight; a quarter of the memory is left for slices.
        window_bytes_max: (memory_bytes / 12).max(WINDOW_BYTES_MIN),
        // The coordinator retries too, and could choose another node, but that node would have to read everything
        // again.
        patience: PATIENCE,
    }
}

/// Reserves disk space for a stripe that does not fit in memory.
async fn spool_room(node: &Node, asked: &ConvertStripeRequest, limits: &ConversionLimits) -> Result<SpoolRoom> {
    let disks = node.disks()?;
    disks.look(node.seams.disk_mode, LOOK_PATIENCE).await;
    // One that hangs now is not used.
    let disks = disks.report_own(LOOK_PATIENCE);
    let stripe_bytes = asked.end.saturating_sub(asked.start);
    let is_spooled = stripe_bytes > limits.stripe_memory_bytes_max as u64;
    node.spools.take(&disks, if is_spooled { stripe_bytes } else { 0 }, KeptFree::of(asked))
}

fn event(event: Event) -> ConvertEvent {
    ConvertEvent { event: Some(event) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_types::ByteSize;

    #[test]
    fn conversions_leave_half_of_the_memory_to_other_tasks() {
        const MIB: u64 = 1 << 20;
        let limits = |mib: u64| Limits { memory_budget: ByteSize(mib * MIB), ..Limits::default() };
        let at_once = |mib: u64| at_once(&limits(mib));
        assert_eq!([7, 8, 15, 16, 24, 31, 32, 256, 4096].map(at_once), [0, 1, 1, 2, 3, 3, 4, 4, 4]);
        for mib in 8..600 {
            let each = memory_bytes_each(&limits(mib), at_once(mib));
            assert!(each >= *MEMORY_BYTES.start() && each * at_once(mib) as u64 <= mib * MIB / 2, "{mib} MiB");
        }
        assert_eq!(memory_bytes_each(&limits(4096), 4), 32 * MIB);
        let few = Limits { repair_percent: 10, ..limits(256) };
        assert_eq!(super::at_once(&few) as u64, 256 * MIB * 10 / 100 * 3 / 4 / (4 * MIB), "of the repairs' memory");
    }
}
