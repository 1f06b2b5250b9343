//! `--explain`: what a drain would do. Its blocks are scheduled as the healer would schedule them, and nothing is begun.

use super::{left, of};
use crate::{
    compute::compute,
    departures,
    healer::stripe::{SELECT, to_schedule},
    limit::Longest,
    options,
    pages::BlocksOn,
    rebuild::owner::Of,
    shared::Shared,
};
use rand::{SeedableRng as _, rngs::StdRng};
use std::{collections::BTreeMap, sync::Arc};
use weft_control::{
    busiest::{Busiest, Carrier},
    drain::{Drain, Forecast},
    health::BadBlocks,
    node_repair::{Block, EXPLAINED_BLOCKS_MAX},
    placement,
    rebuild::Lost,
    reserve::Share,
    schedule::{BLOCKS_PER_NODE, Cluster, Load, Open, Place, Scheduler},
    view::View,
};
use weft_meta::MetaError;
use weft_proto::v1;
use weft_schemes::{Kind, simplest};
use weft_types::{Amount, BlockState, Home, NodeId, Owner, Prefer, Result, StripeRecord, UploadId};

/// The most objects whose codes are kept.
const OBJECTS_MAX: usize = 1_024;

/// What a drain would do now.
pub(crate) async fn explain(shared: &Arc<Shared>, asked: &v1::DrainRequest) -> Result<v1::DrainPlan> {
    let _turn = shared.jobs.explain_turn()?;
    shared.until_nodes_are_back().await;
    let status = departures::status_of(shared, NodeId(asked.node))?;
    let disk = if asked.disk.is_empty() { None } else { Some(departures::disk_of(&status, &asked.disk)?) };
    let drain = of(shared, &status, disk).await?;
    let view = shared.members.view();
    let obstacles = drain.obstacles(&view, &shared.codes_in_use().await?);
    let draining = left(shared, &status, disk).await?;
    // What is on a node that is down is not copied.
    let (forecast, looked_at) = if status.up { forecast(shared, drain, &view).await? } else { (Forecast::default(), 0) };
    let network = shared.network_of_helpers();
    let Longest { free, limit, limited } = Longest::of(shared, &forecast.loads, &network);
    let amount = |amount: Amount| Some(v1::JobAmount { blocks: amount.blocks, bytes: amount.bytes });
    Ok(v1::DrainPlan {
        on: disk.map_or(status.record.draining, |disk| disk.draining),
        refusals: obstacles.refusals,
        warnings: obstacles.warnings,
        leaving: amount(forecast.leaving),
        copied: amount(forecast.copied),
        rebuilt: amount(forecast.rebuilt),
        waiting: amount(forecast.waiting),
        unplanned: amount(forecast.unplanned),
        looked_at,
        lacking_stripes: forecast.lacking,
        nodes: nodes(&forecast, drain, &view),
        busiest: free.map(|link| shown(&view, link)),
        limit,
        limited: limited.map(|link| shown(&view, link)),
        draining: Some(draining),
    })
}

/// What each node gets, sends and receives. What leaves a node frees its space.
fn nodes(forecast: &Forecast, drain: Drain<'_>, view: &View) -> Vec<v1::NodeForecast> {
    let space = view.space();
    let of = |(node, (size, free)): (&NodeId, &(u64, u64))| {
        let load = forecast.loads.get(&Place::Node(*node)).copied().unwrap_or_default();
        let gets = forecast.gets.get(node).copied().unwrap_or(0);
        let leaves = if *node == drain.node.record.id { forecast.copied.bytes.saturating_add(forecast.rebuilt.bytes) } else { 0 };
        let used = size.saturating_sub(*free);
        let Load { up: sends_bytes, down: receives_bytes, .. } = load;
        (sends_bytes + receives_bytes + gets + leaves > 0).then(|| v1::NodeForecast {
            node: node.0,
            name: view.name(*node),
            size_bytes: *size,
            used_bytes: used,
            after_bytes: used.saturating_add(gets).saturating_sub(leaves),
            sends_bytes,
            receives_bytes,
            gets_bytes: gets,
        })
    };
    space.iter().filter_map(of).collect()
}

fn shown(view: &View, link: Busiest) -> v1::BusiestLink {
    let (node, name, rack) = match link.at {
        Place::Node(node) => (node.0, view.name(node), String::new()),
        Place::Rack(rack) => (0, String::new(), rack.to_string()),
    };
    let (sends, disks) = (link.carrier == Carrier::Uplink, link.carrier == Carrier::Disks);
    v1::BusiestLink { node, name, rack, sends, bytes: link.bytes, seconds: link.seconds, disks }
}

/// Schedules the blocks, and counts what the schedule has for them. Also returns the number of blocks that were looked at: of more, the rest
/// is estimated.
async fn forecast(shared: &Arc<Shared>, drain: Drain<'_>, view: &View) -> Result<(Forecast, u64)> {
    let node = drain.node.record.id;
    let disks = drain.node.record.disks.iter().filter(|disk| !disk.failed);
    let homes: Vec<Home> = disks
        .filter(|disk| drain.disk.is_none_or(|only| only.number == disk.number))
        .map(|disk| Home { node, disk: disk.number })
        .collect();
    let known = |home: &Home| drain.node.disks.get(&home.disk).map_or(0, |disk| disk.blocks);
    let all = homes.iter().map(known).sum();
    let mut explained = Explained::new(shared, drain.after(view));
    let mut blocks = BlocksOn::new(shared, homes, EXPLAINED_BLOCKS_MAX);
    while let Some((stripe, block)) = blocks.next().await? {
        explained.add(stripe, block).await?;
    }
    explained.schedule()?;
    let mut forecast = explained.forecast;
    forecast.loads = explained.scheduler.carried().clone();
    let looked_at = forecast.leaving.blocks;
    if blocks.is_cut() {
        forecast.scale(all);
    }
    Ok((forecast, looked_at))
}

/// A schedule in the making.
struct Explained<'a> {
    shared: &'a Arc<Shared>,
    /// The nodes after all that was scheduled.
    view: View,
    scheduler: Scheduler,
    owners: BTreeMap<UploadId, Arc<Of>>,
    batch: Vec<(u64, Open)>,
    forecast: Forecast,
}

impl<'a> Explained<'a> {
    fn new(shared: &'a Arc<Shared>, view: View) -> Self {
        let scheduler = Scheduler::new(SELECT, Prefer::default(), &options::usual_repair(shared).scheme);
        Self { shared, view, scheduler, owners: BTreeMap::new(), batch: Vec::new(), forecast: Forecast::default() }
    }

    async fn add(&mut self, stripe: StripeRecord, block: Block) -> Result<()> {
        // Blocks that are lost are rebuilt anyway, and unfinished puts are given up or end.
        let is_there = stripe.find(block.index, block.copy).is_some_and(|placed| placed.state == BlockState::Ok);
        let Owner::Object(version) = stripe.owner else { return Ok(()) };
        let Some(of) = self.owner(version).await?.filter(|_| is_there) else { return Ok(()) };
        self.forecast.lacking += u64::from(!BadBlocks::of(&stripe, &self.view).is_whole());
        let lost = vec![Lost::of(&stripe, block.index, block.copy)];
        let request = to_schedule(of.request(self.shared, (stripe, lost))?, true);
        match request.open(&self.view, &self.shared.known) {
            Some(open) => self.batch.push((block.bytes, open)),
            None => self.forecast.add(block.bytes, None, ""),
        }
        if self.batch.len() >= BLOCKS_PER_NODE * self.view.up_count().max(1) {
            self.schedule()?;
        }
        Ok(())
    }

    fn schedule(&mut self) -> Result<()> {
        let (bytes, open): (Vec<u64>, Vec<Open>) = self.batch.drain(..).unzip();
        let copy = simplest(Kind::Move)?.name();
        // Of its own: the shared one must not be held for the time of a schedule.
        let mut rng = StdRng::from_rng(&mut *self.shared.rng());
        let scheduled = compute(|| {
            let network = self.shared.network_of_helpers();
            let cluster = Cluster { view: &self.view, network: &network, patterns: self.shared.known.patterns_of_repairs() };
            self.scheduler.batch(&open, &cluster, &mut rng)
        });
        for (bytes, scheduled) in bytes.into_iter().zip(&scheduled) {
            self.forecast.add(bytes, Some(scheduled.as_ref()), copy);
            for node in scheduled.iter().flat_map(|scheduled| &scheduled.homes) {
                let disk = self.view.node(*node).and_then(|node| placement::disk_for(node, bytes, Share::NONE));
                if let Some(disk) = disk.map(|disk| disk.number) {
                    self.view.take_space(&[Home { node: *node, disk }], bytes);
                }
            }
        }
        Ok(())
    }

    /// The owner of a stripe; `None` if it was removed meanwhile.
    async fn owner(&mut self, version: UploadId) -> Result<Option<Arc<Of>>> {
        if let Some(of) = self.owners.get(&version) {
            return Ok(Some(Arc::clone(of)));
        }
        let of = match Of::owner(self.shared.meta.as_ref(), Owner::Object(version)).await {
            Err(MetaError::NotFound(_)) => return Ok(None),
            found => Arc::new(found.map_err(|error| self.shared.meta_error(error))?),
        };
        if self.owners.len() >= OBJECTS_MAX {
            self.owners.clear();
        }
        self.owners.insert(version, Arc::clone(&of));
        Ok(Some(of))
    }
}
