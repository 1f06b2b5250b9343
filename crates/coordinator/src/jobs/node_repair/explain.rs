//! `--explain`: the plans with which a repair would begin, and its schedule. Nothing is started.

use super::{
    NodeRepairJob, Passes as _, check,
    feed::{Feed, Gate, Planned},
};
use crate::{
    compute::compute,
    repair::{Events, event},
    shared::{Shared, while_read},
    tasks,
};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::sync::mpsc;
use tonic::Status;
use weft_control::{
    node_repair::{self, EXPLAINED_BLOCKS_MAX, EXPLAINED_MAX},
    planning,
    schedule::{BLOCKS_PER_NODE, Cluster, Load, Place, Scheduler, Starting, Summary},
};
use weft_proto::{
    to_status,
    v1::{self, repair_event},
};
use weft_types::{Error, Result};

/// Events that may wait for the caller: most are plans, of some tens of kilobytes each.
const EVENTS_MAX: usize = 16;
/// An explanation ends after this time, so that a caller that does not read takes no turn from others for long.
const EXPLAINED_FOR_MAX: Duration = Duration::from_secs(300);

/// Begins to report the schedule, and the plans that the repair would start with, unless too many others are being explained.
pub(crate) fn explain(
    shared: &Arc<Shared>,
    asked: v1::RepairNodeRequest,
) -> Result<mpsc::Receiver<Result<v1::RepairEvent, Status>>> {
    let turn = shared.jobs.explain_turn()?;
    let (events, told) = mpsc::channel(EVENTS_MAX);
    let shared = Arc::clone(shared);
    tasks::start(async move {
        // It must not wait either for a caller that does not read.
        let work = tokio::time::timeout(EXPLAINED_FOR_MAX, tell(&shared, &asked, &events));
        while_read(&events, async { drop(work.await) }).await;
        drop(turn);
    });
    Ok(told)
}

async fn tell(shared: &Arc<Shared>, asked: &v1::RepairNodeRequest, events: &Events) {
    let last = match NodeRepairJob::explain(shared, asked, events).await {
        Ok(()) => Ok(event(v1::repair_event::Event::Done(v1::RepairDone::default()))),
        Err(error) => Err(to_status(&error)),
    };
    // The client may have disconnected.
    let _gone = events.send(last).await;
}

impl NodeRepairJob {
    async fn explain(shared: &Arc<Shared>, asked: &v1::RepairNodeRequest, events: &Events) -> Result<()> {
        let tell = async |told: repair_event::Event| {
            let sent = events.send(Ok(event(told))).await;
            sent.map_err(|_| Error::retry("the caller disconnected"))
        };
        let warn =
            |message: String| repair_event::Event::Progress(v1::RepairProgress { message, ..v1::RepairProgress::default() });
        let repair = check(shared, asked).await?;
        let mut job = Self::new(shared, repair, shared.jobs.shares().fork());
        (job.options.explained, job.blocks_max) = (true, EXPLAINED_BLOCKS_MAX);
        job.scheduler = Mutex::new(Scheduler::new(job.repair.select, job.repair.prefer, &job.options.scheme).summarized());
        if job.count().await?.there.blocks >= EXPLAINED_BLOCKS_MAX as u64 {
            let most = EXPLAINED_BLOCKS_MAX;
            tell(warn(format!("only the first {most} blocks of the node were looked at: the repair may begin with others")))
                .await?;
        }
        let gate = Gate::new(Starting::of(job.repair.select));
        let mut feed = Feed::new(&job, &gate);
        let mut loads: BTreeMap<Place, Load> = BTreeMap::new();
        let mut told = 0;
        while !feed.is_over() {
            let size = (BLOCKS_PER_NODE * shared.members.view().up_count().max(1)).min(EXPLAINED_MAX + 1 - told);
            feed.fill(size).await?;
            for planned in feed.drain() {
                if told == EXPLAINED_MAX {
                    tell(warn(format!("only the plans of the first {EXPLAINED_MAX} stripes are shown"))).await?;
                    return tell(job.schedule(loads, told)).await;
                }
                told += 1;
                match job.explained(planned).await {
                    Ok(Some((plan, warnings))) => {
                        for warning in warnings {
                            tell(warn(warning)).await?;
                        }
                        job.add(&mut loads, &plan.planned)?;
                        tell(repair_event::Event::Plan(plan.shown)).await?;
                    }
                    Ok(None) => {}
                    Err(error) => tell(warn(error.to_string())).await?,
                }
            }
        }
        tell(job.schedule(loads, told)).await
    }

    async fn explained(&self, planned: Planned) -> Result<Option<(Explained, Vec<String>)>> {
        let block = planned.block;
        let Some(stripe) = self.found(self.shared.meta.stripe(block.stripe).await)? else { return Ok(None) };
        let version = node_repair::visible(&stripe)?;
        let object = self.shared.meta.object_of(version).await.map_err(|error| self.shared.meta_error(error))?;
        let number = stripe.number;
        let request = self.request(&object, stripe, block, planned.scheduled).await;
        let explained = request.and_then(|(rebuilder, request)| rebuilder.explain(request));
        let (planned, warnings) = explained.map_err(|error| error.object(&object.name))?;
        let shown = v1::RepairPlan { plan: planned.json()?, stripe: number, lost: vec![block.index.into()] };
        Ok(Some((Explained { planned, shown }, warnings)))
    }

    /// Adds what each node and each rack sends and receives by a plan, and what the nodes' disks carry.
    fn add(&self, loads: &mut BTreeMap<Place, Load>, planned: &planning::Planned) -> Result<()> {
        let view = self.shared.members.view();
        for ((from, to), bytes) in weft_plan::transfers(&planned.plan)? {
            let (Some(from), Some(to)) = (from.node(), to.node()) else { continue };
            let mut count = |from: Place, to: Place| {
                loads.entry(from).or_default().up += bytes;
                loads.entry(to).or_default().down += bytes;
            };
            count(Place::Node(from), Place::Node(to));
            let rack = |node| view.node(node).map(|node| Arc::clone(&node.rack));
            match (rack(from), rack(to)) {
                (Some(from), Some(to)) if from != to && !from.is_empty() && !to.is_empty() => {
                    count(Place::Rack(from), Place::Rack(to))
                }
                _ => {}
            }
        }
        for of in weft_plan::cost(&planned.plan)?.parties {
            if let Some(node) = of.party.node() {
                loads.entry(Place::Node(node)).or_default().disk += of.disk_bytes();
            }
        }
        Ok(())
    }

    /// The schedule as a whole, with what each node and each rack carries by the plans.
    fn schedule(&self, loads: BTreeMap<Place, Load>, blocks: usize) -> repair_event::Event {
        let (view, network) = (self.shared.members.view(), self.shared.network_of_helpers());
        let cluster = Cluster { view: &view, network: &network, patterns: self.shared.known.patterns_of_repairs() };
        let Summary { loads, busiest, bound } = compute(|| self.scheduler().summary(loads, &cluster));
        let (mut nodes, mut racks) = (Vec::new(), Vec::new());
        for (at, Load { up: up_bytes, down: down_bytes, disk: disk_bytes }) in loads {
            match at {
                Place::Node(node) => nodes.push(v1::NodeLoad { node: node.0, up_bytes, down_bytes, disk_bytes }),
                Place::Rack(rack) => racks.push(v1::RackLoad { rack: rack.to_string(), up_bytes, down_bytes }),
            }
        }
        repair_event::Event::Schedule(v1::RepairSchedule {
            blocks: blocks as u64,
            nodes,
            racks,
            busiest_bytes: busiest,
            bound_bytes: bound,
            select: self.repair.select.name().to_owned(),
        })
    }
}

/// A plan as it would run, and as it is shown.
struct Explained {
    planned: planning::Planned,
    shown: v1::RepairPlan,
}
