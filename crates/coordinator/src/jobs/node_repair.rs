//! The repair of a whole node: the shell around [`weft_control::node_repair`], which decides. The blocks of the node
//! are rebuilt on other nodes, several stripes at a time.
//!
//! A job needs no list of its own: a resumed job starts from the beginning and finds only the rest.

mod explain;
mod feed;

pub(crate) use explain::explain;

use super::{
    Control,
    runner::{Passes, Runner},
};
use crate::{
    membership, options,
    pages::BlocksOn,
    rebuild::{self, Rebuilder, Told, shares::Shares},
    shared::Shared,
    updates::settle,
    validate,
};
use feed::{Feed, Gate, Lookups};
use futures::stream;
use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tonic::async_trait;
use weft_codes::SharedCode;
use weft_control::{
    health::Urgency,
    job::{Again, Counted, Passed},
    node_repair::{self, Block, Outcome},
    options::RepairOptions,
    rebuild::Request,
    schedule::{Scheduled, Scheduler, Starting},
};
use weft_meta::{MetaError, ObjectRecord};
use weft_proto::v1;
use weft_types::{FailureDomain, Home, JobId, JobWork, NodeRepair, ObjectName, Result, StripeRecord};

/// A running repair of a node.
pub(super) struct NodeRepairJob {
    shared: Arc<Shared>,
    repair: NodeRepair,
    options: RepairOptions,
    shares: Shares,
    scheduler: Mutex<Scheduler>,
    lookups: Mutex<Lookups>,
    /// The rough ranks of the stripes that were counted.
    ranks: BTreeSet<Urgency>,
    /// The most blocks that are looked at.
    blocks_max: usize,
}

/// Creates the repair of a node.
pub(crate) async fn begin(shared: &Arc<Shared>, asked: &v1::RepairNodeRequest) -> Result<v1::Job> {
    let repair = check(shared, asked).await?;
    super::begin(shared, JobWork::RepairNode(repair)).await
}

/// Checks a request.
async fn check(shared: &Shared, asked: &v1::RepairNodeRequest) -> Result<NodeRepair> {
    let repair = validate::jobs::repair_node(asked, &shared.config)?;
    shared.until_nodes_are_back().await;
    node_repair::check(&repair, &shared.members.view(), Duration::from_millis(shared.config.down_after_ms))?;
    Ok(repair)
}

#[async_trait]
impl Passes for NodeRepairJob {
    fn show(&self, shown: &mut v1::Job) {
        let NodeRepair { node, select, prefer, to, scheme, concurrency, slice_len, force } = self.repair.clone();
        shown.repair_node = Some(v1::RepairNodeRequest {
            node: node.0,
            select: select.name().to_owned(),
            to_nodes: to.iter().map(|node| node.0).collect(),
            scheme,
            concurrency,
            slice_len,
            force,
            prefer: prefer.name().to_owned(),
        });
    }

    fn left_unsaid(&self) -> &'static str {
        node_repair::LEFT_UNSAID
    }

    async fn count(&mut self) -> Result<Counted> {
        let view = self.shared.members.view();
        let (mut counted, mut ranks) = (Counted::default(), BTreeSet::new());
        let mut blocks = self.blocks();
        while let Some((stripe, block)) = blocks.next().await? {
            counted.there.add(block.bytes);
            if node_repair::is_wanted(&self.repair, &stripe, block, &view) {
                counted.to_do.add(block.bytes);
                ranks.insert(self.rank(&stripe, &view).await?.roughly());
            }
        }
        drop(blocks);
        self.ranks = ranks;
        Ok(counted)
    }

    /// If nothing is left on the node, a person has decided that it does not come back, so its silence is no longer a sign of anything. (Of
    /// a node with a failed disk, only the blocks of that disk were rebuilt.)
    async fn done(&mut self) {
        let (shared, node) = (&self.shared, self.repair.node);
        let declared = async {
            let held = shared.meta.held(node, None).await.map_err(|error| shared.meta_error(error))?;
            if held.blocks == 0 { membership::declare_lost(shared, node).await } else { Ok(false) }
        };
        if let Err(error) = declared.await {
            tracing::warn!(node = %shared.members.name(node), %error, "cannot record that a repaired node is lost");
        }
    }

    async fn pass(&mut self, runner: &mut Runner<'_>) -> Result<(Passed, Again)> {
        let (work, id, control) = (&*self, runner.id, runner.control);
        let gate = Gate::new(Starting::of(self.repair.select));
        let (feed, gate) = (Feed::new(work, &gate), &gate);
        let blocks = stream::try_unfold(feed, |mut feed| async move { Ok(feed.next().await?.map(|next| (next, feed))) });
        let block = |(ticket, planned): (_, feed::Planned)| async move {
            let block = planned.block;
            let outcome = work.block(control, planned).await;
            gate.ended(ticket);
            take(&work.shared, (id, control), block, outcome)
        };
        let concurrency = node_repair::concurrency(&self.repair, self.shared.members.view().nodes.len());
        runner.all(concurrency, blocks, || false, block).await
    }
}

/// Counts the outcome for a block. Returns whether another attempt may succeed.
fn take(shared: &Shared, (job, control): (JobId, &Control), block: Block, outcome: Outcome) -> Again {
    let mut live = control.live();
    live.moving.remove(&block.stripe.0);
    if let Outcome::Left(error) = &outcome
        && let Some(left_out) = shared.failures.admit(format_args!("{job} {}", block.stripe), &error.message)
    {
        tracing::warn!(%job, stripe = %block.stripe, index = block.index, %error, left_out, "cannot rebuild a block of a node");
    }
    node_repair::take(&mut live.job, block, outcome)
}

impl NodeRepairJob {
    pub(super) fn new(shared: &Arc<Shared>, repair: NodeRepair, shares: Shares) -> Self {
        let options = options::of_node(shared, &repair);
        Self {
            shared: Arc::clone(shared),
            scheduler: Mutex::new(Scheduler::new(repair.select, repair.prefer, &options.scheme)),
            options,
            repair,
            shares,
            lookups: Mutex::default(),
            ranks: BTreeSet::new(),
            blocks_max: usize::MAX,
        }
    }

    /// A poisoned lock is safe to use: each change is one call.
    fn scheduler(&self) -> MutexGuard<'_, Scheduler> {
        self.scheduler.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Likewise.
    fn lookups(&self) -> MutexGuard<'_, Lookups> {
        self.lookups.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All blocks on the node's disks.
    fn blocks(&self) -> BlocksOn<'_> {
        let node = self.repair.node;
        let disks = self.shared.members.view().node(node).map(|node| node.disks.clone()).unwrap_or_default();
        let homes = disks.iter().map(|disk| Home { node, disk: disk.number }).collect();
        BlocksOn::new(&self.shared, homes, self.blocks_max)
    }

    async fn block(&self, control: &Control, planned: feed::Planned) -> Outcome {
        let block = planned.block;
        control.live().moving.insert(block.stripe.0, 0);
        let outcome = self.rebuild(control, planned).await.unwrap_or_else(Outcome::Left);
        // Its object may have been removed, overwritten or converted meanwhile.
        if matches!(outcome, Outcome::Left(_)) && self.is_gone(block).await { Outcome::Gone } else { outcome }
    }

    /// Whether a block is not there any more, or not lost; false if that cannot be looked up.
    async fn is_gone(&self, block: Block) -> bool {
        match self.shared.meta.stripe(block.stripe).await {
            Ok(stripe) => {
                let view = self.shared.members.view();
                matches!(node_repair::object_of(&self.repair, &stripe, block, &view), Ok(None))
            }
            Err(error) => matches!(error, MetaError::NotFound(_)),
        }
    }

    async fn rebuild(&self, control: &Control, planned: feed::Planned) -> Result<Outcome> {
        let block = planned.block;
        let _claim = self.shared.claims.claim(block.stripe).await;
        settle::if_open(&self.shared, block.stripe).await?;
        // The current record, which other tasks may have changed.
        let Some(stripe) = self.found(self.shared.meta.stripe(block.stripe).await)? else { return Ok(Outcome::Gone) };
        let version = node_repair::object_of(&self.repair, &stripe, block, &self.shared.members.view())?;
        let Some(version) = version else { return Ok(Outcome::Gone) };
        let Some(object) = self.found(self.shared.meta.object_of(version).await)? else { return Ok(Outcome::Gone) };
        let tell = |told: Told<'_>| match told {
            Told::Thousandths(thousandths) => {
                control.live().moving.insert(block.stripe.0, block.moved_bytes(thousandths));
            }
            Told::Moved(bytes) => control.live().job.moved(bytes),
            Told::Plan(_) | Told::Resumed(_) => {}
        };
        let rebuilt = async {
            let (rebuilder, request) = self.request(&object, stripe, block, planned.scheduled).await?;
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

    /// The request to rebuild the node's block of a stripe.
    async fn request(
        &self,
        object: &ObjectRecord,
        stripe: StripeRecord,
        block: Block,
        scheduled: Option<Scheduled>,
    ) -> Result<(Rebuilder<'_>, Request)> {
        let code = self.shared.code(&object.code)?;
        let bucket = self.shared.meta.bucket(&object.name.bucket).await;
        let (_, policy) = bucket.map_err(|error| self.shared.meta_error(error))?;
        let request = self.request_of((&code, &object.name), stripe, block, policy.failure_domain, scheduled);
        Ok((Rebuilder { shared: &self.shared, version: object.version, shares: &self.shares }, request))
    }

    fn request_of(
        &self,
        named: (&SharedCode, &ObjectName),
        stripe: StripeRecord,
        block: Block,
        failure_domain: FailureDomain,
        scheduled: Option<Scheduled>,
    ) -> Request {
        let lost = node_repair::lost(&stripe, block);
        let request = rebuild::request(&self.shared, named, stripe, lost, &self.options, failure_domain);
        node_repair::request(&self.repair, request, scheduled)
    }
}
