//! The repair of a whole node: the shell around [`weft_control::node_repair`], which decides. The blocks of the node
//! are rebuilt on other nodes, several stripes at a time.
//!
//! A job needs no list of its own: a resumed job starts from the beginning and finds only the rest.

use super::{
    Control,
    runner::{Passes, Runner},
};
use crate::{
    options,
    pages::{Pages, STRIPES_PER_PAGE},
    rebuild::{self, Rebuilder, Told, shares::Shares},
    repair::{Events, event},
    shared::Shared,
    validate,
};
use futures::stream;
use std::{sync::Arc, time::Duration};
use tonic::async_trait;
use weft_control::{
    job::{Again, Counted, Passed},
    node_repair::{self, Block, EXPLAINED_MAX, Outcome},
    options::RepairOptions,
    rebuild::Request,
};
use weft_meta::{MetaError, ObjectRecord};
use weft_proto::{
    to_status,
    v1::{self, repair_event},
};
use weft_types::{Error, Home, JobId, JobWork, NodeRepair, Result, StripeId, StripeRecord};

/// A running repair of a node.
pub(super) struct NodeRepairJob {
    shared: Arc<Shared>,
    repair: NodeRepair,
    options: RepairOptions,
    shares: Shares,
}

/// Creates the repair of a node.
pub(crate) async fn begin(shared: &Arc<Shared>, asked: &v1::RepairNodeRequest) -> Result<v1::Job> {
    let repair = check(shared, asked).await?;
    super::begin(shared, JobWork::RepairNode(repair)).await
}

/// Reports the plans that it would start with.
pub(crate) async fn explain(shared: Arc<Shared>, asked: v1::RepairNodeRequest, events: Events) {
    let explained = match check(&shared, &asked).await {
        Ok(repair) => {
            let mut job = NodeRepairJob::new(&shared, repair, shared.jobs.shares().fork());
            job.options.explained = true;
            job.explain(&events).await
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

/// Checks a request.
async fn check(shared: &Shared, asked: &v1::RepairNodeRequest) -> Result<NodeRepair> {
    let repair = validate::repair_node(asked, &shared.config)?;
    shared.until_nodes_are_back().await;
    node_repair::check(&repair, &shared.members.view(), Duration::from_millis(shared.config.down_after_ms))?;
    Ok(repair)
}

#[async_trait]
impl Passes for NodeRepairJob {
    fn show(&self, shown: &mut v1::Job) {
        let NodeRepair { node, select, to, scheme, concurrency, slice_len, force } = self.repair.clone();
        shown.repair_node = Some(v1::RepairNodeRequest {
            node: node.0,
            select: select.name().to_owned(),
            to_nodes: to.iter().map(|node| node.0).collect(),
            scheme,
            concurrency,
            slice_len,
            force,
        });
    }

    fn left_unsaid(&self) -> &'static str {
        node_repair::LEFT_UNSAID
    }

    async fn count(&mut self) -> Result<Counted> {
        let view = self.shared.members.view();
        let mut counted = Counted::default();
        let mut blocks = self.blocks();
        while let Some((stripe, block)) = blocks.next().await? {
            counted.there.add(block.bytes);
            if node_repair::is_wanted(&self.repair, &stripe, block, &view) {
                counted.to_do.add(block.bytes);
            }
        }
        Ok(counted)
    }

    async fn pass(&mut self, runner: &mut Runner<'_>) -> Result<(Passed, Again)> {
        let (work, id, control) = (&*self, runner.id, runner.control);
        let all = self.blocks();
        let blocks = stream::try_unfold(all, |mut all| async move { Ok(all.next().await?.map(|(_, block)| (block, all))) });
        let block = |block| async move {
            let outcome = work.block(control, block).await;
            take(id, control, block, outcome)
        };
        runner.all(self.repair.concurrency as usize, blocks, || false, block).await
    }
}

/// Counts the outcome for a block. Returns whether another attempt may succeed.
fn take(job: JobId, control: &Control, block: Block, outcome: Outcome) -> Again {
    let mut live = control.live();
    live.moving.remove(&block.stripe.0);
    if let Outcome::Left(error) = &outcome {
        tracing::warn!(%job, stripe = %block.stripe, index = block.index, %error, "cannot rebuild a block of a node");
    }
    node_repair::take(&mut live.job, block, outcome)
}

impl NodeRepairJob {
    pub(super) fn new(shared: &Arc<Shared>, repair: NodeRepair, shares: Shares) -> Self {
        Self { shared: Arc::clone(shared), options: options::of_node(shared, &repair), repair, shares }
    }

    async fn explain(&self, events: &Events) -> Result<()> {
        let tell = async |told: repair_event::Event| {
            let sent = events.send(Ok(event(told))).await;
            sent.map_err(|_| Error::retry("the caller disconnected"))
        };
        let warn =
            |message: String| repair_event::Event::Progress(v1::RepairProgress { message, ..v1::RepairProgress::default() });
        let (mut blocks, mut told) = (self.blocks(), 0);
        while let Some((stripe, block)) = blocks.next().await? {
            if !node_repair::is_wanted(&self.repair, &stripe, block, &self.shared.members.view()) {
                continue;
            }
            if told == EXPLAINED_MAX {
                return tell(warn(format!("only the plans of the first {EXPLAINED_MAX} stripes are shown"))).await;
            }
            told += 1;
            match self.explained(stripe, block).await {
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

    /// All blocks on the node's disks.
    fn blocks(&self) -> Blocks<'_> {
        let node = self.repair.node;
        let disks = self.shared.members.view().node(node).map(|node| node.disks.clone()).unwrap_or_default();
        let homes = disks.iter().map(|disk| Home { node, disk: disk.number }).collect();
        Blocks { shared: &self.shared, homes, stripes: stripes_on_a_disk() }
    }

    async fn block(&self, control: &Control, block: Block) -> Outcome {
        control.live().moving.insert(block.stripe.0, 0);
        self.rebuild(control, block).await.unwrap_or_else(Outcome::Left)
    }

    async fn rebuild(&self, control: &Control, block: Block) -> Result<Outcome> {
        // The current record, which other tasks may have changed.
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

    /// The result of a lookup; `None` if the record no longer exists.
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

    /// The request to rebuild the node's block of a stripe.
    async fn request(&self, object: &ObjectRecord, stripe: StripeRecord, block: Block) -> Result<(Rebuilder<'_>, Request)> {
        let code = self.shared.code(&object.code)?;
        let bucket = self.shared.meta.bucket(&object.name.bucket).await;
        let (_, policy) = bucket.map_err(|error| self.shared.meta_error(error))?;
        let (lost, named) = (node_repair::lost(&stripe, block), (&code, &object.name));
        let request = rebuild::request(&self.shared, named, stripe, lost, &self.options, policy.failure_domain);
        let request = node_repair::request(&self.repair, request);
        Ok((Rebuilder { shared: &self.shared, version: object.version, shares: &self.shares }, request))
    }
}

/// The blocks on disks, page by page.
struct Blocks<'a> {
    shared: &'a Arc<Shared>,
    /// The last disk is the current one.
    homes: Vec<Home>,
    stripes: Pages<Option<StripeId>, StripeRecord>,
}

fn stripes_on_a_disk() -> Pages<Option<StripeId>, StripeRecord> {
    Pages::new(None, |stripe| Some(stripe.id))
}

impl Blocks<'_> {
    async fn next(&mut self) -> Result<Option<(StripeRecord, Block)>> {
        while let Some(home) = self.homes.last().copied() {
            let stripe = self.stripes.next(|after| self.shared.meta.stripes_on(home, after, STRIPES_PER_PAGE)).await;
            let Some(stripe) = stripe.map_err(|error| self.shared.meta_error(error))? else {
                self.homes.pop();
                self.stripes = stripes_on_a_disk();
                continue;
            };
            if let Some(block) = Block::on(&stripe, home) {
                return Ok(Some((stripe, block)));
            }
        }
        Ok(None)
    }
}
