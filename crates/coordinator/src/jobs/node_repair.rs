//! The repair of a whole node: stripe after stripe, several at a time, the blocks that it held are rebuilt on other nodes.
//!
//! What is to be done is what the metadata has on the node's disks, at any moment: a block that was rebuilt is there no more.
//! So a job needs no list of its own, and one that is taken up again begins from the start and finds only what is left.

use super::{
    Control,
    runner::{Passes, Runner, WRITE_INTERVAL, interval},
};
use crate::{
    options,
    rebuild::{self, Rebuilder, Told, shares::Shares},
    repair::{Events, event},
    shared::Shared,
};
use futures::{StreamExt as _, stream::FuturesUnordered};
use std::{collections::VecDeque, sync::Arc};
use weft_control::{
    job::{Again, Counted, Pass, Passed},
    options::RepairOptions,
    rebuild::{Destination, Lost, Request},
    view::{Standing, View},
};
use weft_meta::{MetaError, ObjectRecord};
use weft_proto::v1::{self, repair_event};
use weft_types::{Error, Home, JobId, LeftBlock, NodeRepair, Owner, Result, StripeId, StripeRecord};

/// Stripes that are looked up together.
const STRIPES_PER_PAGE: u32 = 256;
/// Plans that are told of a repair that is explained, at most.
const EXPLAINED_MAX: usize = 256;

/// What is said if something is left of which no attempt has told.
pub(super) const LEFT_UNSAID: &str = "blocks came to the node, or were lost, while the others were rebuilt: repair it again";

/// The repair of a node, at work.
pub(super) struct NodeRepairJob<'a> {
    work: Work<'a>,
}

/// What all stripes of the repair have in common.
struct Work<'a> {
    shared: &'a Arc<Shared>,
    repair: NodeRepair,
    options: RepairOptions,
    shares: Shares,
}

/// A block of the node.
#[derive(Debug, Clone, Copy)]
struct Block {
    stripe: StripeId,
    /// The stripe's number in its object.
    number: u64,
    index: u8,
    copy: u8,
    bytes: u64,
}

/// What became of a block.
enum Outcome {
    Rebuilt,
    /// It is not the node's any more, or not lost: there is nothing to do.
    Gone,
    Left(Error),
}

impl<'a> NodeRepairJob<'a> {
    pub(super) fn new(shared: &'a Arc<Shared>, repair: NodeRepair) -> Self {
        Self { work: Work::new(shared, repair, shared.jobs.shares()) }
    }
}

impl Passes for NodeRepairJob<'_> {
    async fn begin(&mut self) -> Result<()> {
        Ok(())
    }

    async fn count(&mut self) -> Result<Counted> {
        let view = self.work.shared.members.view();
        let mut counted = Counted::default();
        let mut blocks = self.work.blocks();
        while let Some((stripe, block)) = blocks.next().await? {
            counted.there.add(block.bytes);
            if self.work.is_wanted(&stripe, block, &view) {
                counted.to_do.add(block.bytes);
            }
        }
        Ok(counted)
    }

    async fn pass(&mut self, runner: &mut Runner<'_>) -> Result<(Passed, Again)> {
        let (work, control) = (&self.work, runner.control);
        let mut blocks = work.blocks();
        let mut under_way = FuturesUnordered::new();
        let mut write = interval(WRITE_INTERVAL);
        let (mut pass, mut changed_since) = (Pass::new(work.repair.concurrency as usize), false);
        loop {
            let asked = *runner.state.borrow();
            while pass.begins(asked) {
                if let Some((_, block)) = pass.next(blocks.next().await) {
                    under_way.push(work.block(control, block));
                }
            }
            if pass.is_idle() {
                return pass.over();
            }
            tokio::select! {
                biased;
                Some((block, outcome)) = under_way.next() => {
                    pass.ended(take(runner.id, control, block, outcome));
                    changed_since = true;
                }
                // Its sender is the job's own, and outlives the pass.
                _ = runner.state.changed() => {}
                _ = write.tick(), if changed_since => {
                    changed_since = !runner.has_written().await;
                }
            }
        }
    }
}

/// Counts what became of a block; tells whether it was left for a reason that may have gone soon.
fn take(job: JobId, control: &Control, block: Block, outcome: Outcome) -> Again {
    let mut live = control.live();
    live.moving.remove(&block.stripe.0);
    match outcome {
        Outcome::Rebuilt => live.job.done(block.bytes),
        Outcome::Gone => {}
        Outcome::Left(error) => {
            tracing::warn!(%job, stripe = %block.stripe, index = block.index, %error, "a block of a node could not be rebuilt");
            let object = error.object.clone().unwrap_or_default();
            return live.job.left(block.bytes, error, |reason| {
                let reason = if block.copy == 0 { reason } else { format!("copy {}: {reason}", block.copy) };
                LeftBlock { object, stripe: block.number, index: block.index, reason }
            });
        }
    }
    Again::InVain
}

/// Tells the plans that the repair would begin with.
pub(super) async fn explain(shared: &Arc<Shared>, repair: NodeRepair, events: &Events) -> Result<()> {
    let tell = async |told: repair_event::Event| {
        let sent = events.send(Ok(event(told))).await;
        sent.map_err(|_| Error::retry("whoever asked for the plans is gone"))
    };
    let warn = |message: String| repair_event::Event::Progress(v1::RepairProgress { message, ..v1::RepairProgress::default() });
    let work = Work::new(shared, repair, shared.jobs.shares().fork());
    let (mut blocks, mut told) = (work.blocks(), 0);
    while let Some((stripe, block)) = blocks.next().await? {
        if !work.is_wanted(&stripe, block, &shared.members.view()) {
            continue;
        }
        if told == EXPLAINED_MAX {
            return tell(warn(format!("only the plans of the first {EXPLAINED_MAX} stripes are shown"))).await;
        }
        told += 1;
        match work.explained(stripe, block).await {
            Ok((plan, warnings)) => {
                for warning in warnings {
                    tell(warn(warning)).await?;
                }
                tell(repair_event::Event::Plan(plan)).await?;
            }
            Err(error) => tell(warn(error.to_string())).await?,
        }
    }
    Ok(())
}

impl<'a> Work<'a> {
    fn new(shared: &'a Arc<Shared>, repair: NodeRepair, shares: Shares) -> Self {
        Self { shared, options: options::of_node(shared, &repair), repair, shares }
    }

    /// All blocks on the node's disks.
    fn blocks(&self) -> Blocks<'a> {
        let node = self.repair.node;
        let disks = self.shared.members.view().node(node).map(|node| node.disks.clone()).unwrap_or_default();
        let homes = disks.iter().map(|disk| Home { node, disk: disk.number }).collect();
        Blocks { shared: self.shared, homes, after: None, page: VecDeque::new() }
    }

    /// Whether a block of the node is to be rebuilt.
    fn is_wanted(&self, stripe: &StripeRecord, block: Block, view: &View) -> bool {
        let is_lost = |placed| matches!(view.standing_of(stripe, block.index, placed), Standing::Lost(_));
        self.repair.force || stripe.find(block.index, block.copy).is_some_and(is_lost)
    }

    async fn block(&self, control: &Control, block: Block) -> (Block, Outcome) {
        control.live().moving.insert(block.stripe.0, 0);
        let outcome = self.rebuild(control, block).await.unwrap_or_else(Outcome::Left);
        (block, outcome)
    }

    async fn rebuild(&self, control: &Control, block: Block) -> Result<Outcome> {
        // As it is by now: others repair, write and remove too.
        let Some(stripe) = self.found(self.shared.meta.stripe(block.stripe).await)? else { return Ok(Outcome::Gone) };
        let is_there = stripe.find(block.index, block.copy).is_some_and(|placed| placed.home.node == self.repair.node);
        if !is_there || !self.is_wanted(&stripe, block, &self.shared.members.view()) {
            return Ok(Outcome::Gone);
        }
        let Owner::Object(version) = stripe.owner else {
            let id = stripe.id;
            return Err(Error::unavailable(format!("stripe {id} is of an object that is still being put: repair again later")));
        };
        let Some(object) = self.found(self.shared.meta.object_of(version).await)? else { return Ok(Outcome::Gone) };
        let place = |error: Error| if error.object.is_some() { error } else { error.object(&object.name) };
        let tell = |told: Told<'_>| {
            if let Told::Thousandths(thousandths) = told {
                let moved = (u128::from(block.bytes) * u128::from(thousandths) / 1000) as u64;
                control.live().moving.insert(block.stripe.0, moved);
            }
        };
        let rebuilt = async {
            let (rebuilder, request) = self.request(&object, stripe, block).await?;
            rebuilder.run(request, tell).await
        };
        let rebuilt = rebuilt.await;
        let rebuilt = rebuilt.map_err(place)?;
        match rebuilt.left.into_iter().next() {
            Some((_, reason)) => Err(place(Error::unavailable(reason))),
            None => Ok(Outcome::Rebuilt),
        }
    }

    /// What was looked up; none if it is not there any more.
    fn found<T>(&self, looked_up: Result<T, MetaError>) -> Result<Option<T>> {
        match looked_up {
            Err(MetaError::NotFound(_)) => Ok(None),
            found => found.map(Some).map_err(|error| self.shared.meta_error(error)),
        }
    }

    async fn explained(&self, stripe: StripeRecord, block: Block) -> Result<(v1::RepairPlan, Vec<String>)> {
        let Owner::Object(version) = stripe.owner else {
            return Err(Error::unavailable(format!("stripe {} is of an object that is still being put", stripe.id)));
        };
        let object = self.shared.meta.object_of(version).await.map_err(|error| self.shared.meta_error(error))?;
        let number = stripe.number;
        let explained = self.request(&object, stripe, block).await.and_then(|(rebuilder, request)| rebuilder.explain(request));
        let (planned, warnings) = explained.map_err(|error| error.object(&object.name))?;
        Ok((v1::RepairPlan { plan: planned.json()?, stripe: number, lost: vec![block.index.into()] }, warnings))
    }

    /// What the rebuild of the node's block of a stripe takes. Other blocks that the stripe may have lost stay as they are: their nodes
    /// may come back, and rebuilding them is for the repair of those nodes.
    async fn request(&self, object: &ObjectRecord, stripe: StripeRecord, block: Block) -> Result<(Rebuilder<'_>, Request)> {
        let code = self.shared.code(&object.code)?;
        let bucket = self.shared.meta.bucket(&object.name.bucket).await;
        let (_, policy) = bucket.map_err(|error| self.shared.meta_error(error))?;
        let lost = vec![Lost::of(&stripe, block.index, block.copy)];
        let (named, options) = ((&code, &object.name), &self.options);
        let request = Request {
            helpers: Some(self.repair.select),
            to: Destination::Among(self.repair.to.iter().copied().collect()),
            // A node that is up all the same gets nothing of it back.
            avoid: self.repair.force.then_some(self.repair.node).into_iter().collect(),
            ..rebuild::request(self.shared, named, stripe, lost, options, policy.failure_domain)
        };
        Ok((Rebuilder { shared: self.shared, version: object.version, shares: &self.shares }, request))
    }
}

/// The blocks on disks, page by page.
struct Blocks<'a> {
    shared: &'a Arc<Shared>,
    /// The last is the one that is looked at.
    homes: Vec<Home>,
    after: Option<StripeId>,
    page: VecDeque<StripeRecord>,
}

impl Blocks<'_> {
    async fn next(&mut self) -> Result<Option<(StripeRecord, Block)>> {
        while let Some(home) = self.homes.last().copied() {
            if let Some(stripe) = self.page.pop_front() {
                self.after = Some(stripe.id);
                let on = stripe.all().find(|(_, placed)| placed.home == home).map(|(index, placed)| (index, placed.copy));
                let Some((index, copy)) = on else { continue };
                let bytes = stripe.layout.block_len(index.into());
                let block = Block { stripe: stripe.id, number: stripe.number, index, copy, bytes };
                return Ok(Some((stripe, block)));
            }
            let page = self.shared.meta.stripes_on(home, self.after, STRIPES_PER_PAGE).await;
            let page = page.map_err(|error| self.shared.meta_error(error))?;
            if page.items.is_empty() {
                self.homes.pop();
                self.after = None;
            }
            self.page = page.items.into();
        }
        Ok(None)
    }
}
