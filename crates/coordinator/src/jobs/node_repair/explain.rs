//! `--explain`: the plans with which a repair would begin, and its schedule. Nothing is started.

use super::{
    NodeRepairJob, Passes as _, check,
    feed::{Feed, Gate, Planned},
};
use crate::{
    repair::{Events, event},
    shared::Shared,
};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};
use weft_control::{
    node_repair::{self, EXPLAINED_MAX},
    planning,
    schedule::{BLOCKS_PER_NODE, Cluster, Load, Scheduler, Starting, Summary},
};
use weft_proto::{
    to_status,
    v1::{self, repair_event},
};
use weft_types::{Error, NodeId, Party, Result};

/// Reports the schedule, and the plans that the repair would start with.
pub(crate) async fn explain(shared: Arc<Shared>, asked: v1::RepairNodeRequest, events: Events) {
    let explained = match check(&shared, &asked).await {
        Ok(repair) => {
            let mut job = NodeRepairJob::new(&shared, repair, shared.jobs.shares().fork());
            job.options.explained = true;
            let scheduler = Scheduler::new(job.repair.select, job.repair.prefer, &job.options.scheme);
            job.scheduler = Mutex::new(scheduler.summarized());
            match job.count().await {
                Ok(_) => job.explain(&events).await,
                Err(error) => Err(error),
            }
        }
        Err(error) => Err(error),
    };
    let last = match explained {
        Ok(()) => Ok(event(v1::repair_event::Event::Done(v1::RepairDone::default()))),
        Err(error) => Err(to_status(&error)),
    };
    // The client may have disconnected.
    let _gone = events.send(last).await;
}

impl NodeRepairJob {
    async fn explain(&self, events: &Events) -> Result<()> {
        let tell = async |told: repair_event::Event| {
            let sent = events.send(Ok(event(told))).await;
            sent.map_err(|_| Error::retry("the caller disconnected"))
        };
        let warn =
            |message: String| repair_event::Event::Progress(v1::RepairProgress { message, ..v1::RepairProgress::default() });
        let gate = Gate::new(Starting::of(self.repair.select));
        let mut feed = Feed::new(self, &gate);
        let mut loads: BTreeMap<NodeId, Load> = BTreeMap::new();
        let mut told = 0;
        while !feed.is_over() {
            let size = (BLOCKS_PER_NODE * self.shared.members.view().up_count().max(1)).min(EXPLAINED_MAX + 1 - told);
            feed.fill(size).await?;
            for planned in feed.drain() {
                if told == EXPLAINED_MAX {
                    tell(warn(format!("only the plans of the first {EXPLAINED_MAX} stripes are shown"))).await?;
                    return tell(self.schedule(loads, told)).await;
                }
                told += 1;
                match self.explained(planned).await {
                    Ok(Some((plan, warnings))) => {
                        for warning in warnings {
                            tell(warn(warning)).await?;
                        }
                        add(&mut loads, &plan.planned)?;
                        tell(repair_event::Event::Plan(plan.shown)).await?;
                    }
                    Ok(None) => {}
                    Err(error) => tell(warn(error.to_string())).await?,
                }
            }
        }
        tell(self.schedule(loads, told)).await
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

    /// The schedule as a whole, with what each node carries by the plans.
    fn schedule(&self, loads: BTreeMap<NodeId, Load>, blocks: usize) -> repair_event::Event {
        let (view, network) = (self.shared.members.view(), self.shared.network_of_helpers());
        let cluster = Cluster { view: &view, network: &network, patterns: self.shared.known.patterns_of_repairs() };
        let Summary { loads, busiest, bound } = self.scheduler().summary(loads, &cluster);
        let load = |(node, load): (NodeId, Load)| v1::NodeLoad { node: node.0, up_bytes: load.up, down_bytes: load.down };
        repair_event::Event::Schedule(v1::RepairSchedule {
            blocks: blocks as u64,
            nodes: loads.into_iter().map(load).collect(),
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

/// Adds what each node sends and receives by a plan.
fn add(loads: &mut BTreeMap<NodeId, Load>, planned: &planning::Planned) -> Result<()> {
    for share in weft_plan::cost(&planned.plan)?.parties {
        if let Party::Node(node) = share.party {
            *loads.entry(node).or_default() += Load { up: share.up_bytes, down: share.down_bytes };
        }
    }
    Ok(())
}
