//! The repair of a whole node: the shell around [`weft_control::node_repair`], which decides. Stripe after stripe, several at a time, the
//! blocks that it held are rebuilt on other nodes.
//!
//! A job needs no list of its own: one that is taken up again begins from the start and finds only what is left.

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
    node_repair::{self, Block, EXPLAINED_MAX, Outcome},
    options::RepairOptions,
    rebuild::Request,
};
use weft_meta::{MetaError, ObjectRecord};
use weft_proto::v1::{self, repair_event};
use weft_types::{Error, Home, JobId, NodeRepair, Result, StripeId, StripeRecord};

/// Stripes that are looked up together.
const STRIPES_PER_PAGE: u32 = 256;
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
            if node_repair::is_wanted(&self.work.repair, &stripe, block, &view) {
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
    if let Outcome::Left(error) = &outcome {
        tracing::warn!(%job, stripe = %block.stripe, index = block.index, %error, "a block of a node could not be rebuilt");
    }
    node_repair::take(&mut live.job, block, outcome)
}

/// Tells the plans that the repair would begin with.
pub(super) async fn explain(shared: &Arc<Shared>, repair: NodeRepair, events: &Events) -> Result<()> {
    let tell = async |told: repair_event::Event| {
        let sent = events.send(Ok(event(told))).await;
        sent.map_err(|_| Error::retry("whoever asked for the plans is gone"))
    };
    let warn = |message: String| repair_event::Event::Progress(v1::RepairProgress { message, ..v1::RepairProgress::default() });
    let mut work = Work::new(shared, repair, shared.jobs.shares().fork());
    work.options.explained = true;
    let (mut blocks, mut told) = (work.blocks(), 0);
    while let Some((stripe, block)) = blocks.next().await? {
        if !node_repair::is_wanted(&work.repair, &stripe, block, &shared.members.view()) {
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

    async fn block(&self, control: &Control, block: Block) -> (Block, Outcome) {
        control.live().moving.insert(block.stripe.0, 0);
        let outcome = self.rebuild(control, block).await.unwrap_or_else(Outcome::Left);
        (block, outcome)
    }

    async fn rebuild(&self, control: &Control, block: Block) -> Result<Outcome> {
        // As it is by now: others repair, write and remove too.
        let Some(stripe) = self.found(self.shared.meta.stripe(block.stripe).await)? else { return Ok(Outcome::Gone) };
        let version = node_repair::object_of(&self.repair, &stripe, block, &self.shared.members.view())?;
        let Some(version) = version else { return Ok(Outcome::Gone) };
        let Some(object) = self.found(self.shared.meta.object_of(version).await)? else { return Ok(Outcome::Gone) };
        let tell = |told: Told<'_>| {
            if let Told::Thousandths(thousandths) = told {
                control.live().moving.insert(block.stripe.0, block.moved_bytes(thousandths));
            }
        };
        let rebuilt = async {
            let (rebuilder, request) = self.request(&object, stripe, block).await?;
            rebuilder.run(request, tell).await
        };
        Ok(node_repair::outcome(rebuilt.await, &object.name))
    }

    /// What was looked up; none if it is not there any more.
    fn found<T>(&self, looked_up: Result<T, MetaError>) -> Result<Option<T>> {
        match looked_up {
            Err(MetaError::NotFound(_)) => Ok(None),
            found => found.map(Some).map_err(|error| self.shared.meta_error(error)),
        }
    }

    async fn explained(&self, stripe: StripeRecord, block: Block) -> Result<(v1::RepairPlan, Vec<String>)> {
        let version = node_repair::visible(&stripe)?;
        let object = self.shared.meta.object_of(version).await.map_err(|error| self.shared.meta_error(error))?;
        let number = stripe.number;
        let explained = self.request(&object, stripe, block).await.and_then(|(rebuilder, request)| rebuilder.explain(request));
        let (planned, warnings) = explained.map_err(|error| error.object(&object.name))?;
        Ok((v1::RepairPlan { plan: planned.json()?, stripe: number, lost: vec![block.index.into()] }, warnings))
    }

    /// What the rebuild of the node's block of a stripe takes.
    async fn request(&self, object: &ObjectRecord, stripe: StripeRecord, block: Block) -> Result<(Rebuilder<'_>, Request)> {
        let code = self.shared.code(&object.code)?;
        let bucket = self.shared.meta.bucket(&object.name.bucket).await;
        let (_, policy) = bucket.map_err(|error| self.shared.meta_error(error))?;
        let (lost, named) = (node_repair::lost(&stripe, block), (&code, &object.name));
        let request = rebuild::request(self.shared, named, stripe, lost, &self.options, policy.failure_domain);
        let request = node_repair::request(&self.repair, request);
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
                let Some(block) = Block::on(&stripe, home) else { continue };
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
