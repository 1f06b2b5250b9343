//! Rebuilds blocks of one stripe: chooses homes, allocates, runs a plan, and goes on around whoever fails with what is missing.
//! Committing is the caller's: a repair commits to a visible object, a put to its own stripe.

mod commit;
mod homes;

use crate::{
    helpers::Helpers,
    membership,
    shared::Shared,
    sign::{self, StoreOrder},
    supervise,
};
use homes::Chosen;
pub(crate) use homes::{Destination, Requestors};
use rand::{Rng, SeedableRng, rngs::StdRng};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};
use weft_codes::SharedCode;
use weft_control::{
    options::RepairOptions,
    planning::{self, Target, Way},
    rebuild::{Arriving, Avoided, DISPUTES_MAX, Lost, RebuiltBlock, is_known_bad, knows_bad_blocks},
    run::{End, OnFailure, Report, StallPolicy},
    view::View,
};
use weft_meta::NewRepair;
use weft_plan::Class;
use weft_schemes::repair;
use weft_types::{
    BlockId, BlockMeta, BlockState, Error, FailureDomain, Home, NodeId, ObjectName, Party, PlacedBlock, Reaction, Result, Span,
    StripeRecord, TaskTraffic, UploadId,
};

/// A repair that is slower than this for as long as its lease has failed.
const SLOWEST_BYTES_PER_MS: u64 = 64;

/// How many homes are tried for a block while others bring blocks of the stripe to them.
const HOMES_MAX: usize = 4;

/// What is to be rebuilt.
pub(crate) struct Rebuild<'a> {
    pub(crate) shared: &'a Arc<Shared>,
    pub(crate) code: &'a SharedCode,
    pub(crate) object: &'a ObjectName,
    pub(crate) version: UploadId,
    pub(crate) stripe: StripeRecord,
    pub(crate) lost: Vec<Lost>,
    pub(crate) options: &'a RepairOptions,
    /// Who selects the helpers; none: those next to the requestor help.
    pub(crate) helpers: Option<&'a Helpers>,
    /// Where it goes.
    pub(crate) to: Destination<'a>,
    pub(crate) failure_domain: FailureDomain,
    /// For a stripe that its put has not ended yet.
    pub(crate) upload: Option<UploadId>,
    /// Nodes that are to be left alone.
    pub(crate) avoid: BTreeSet<NodeId>,
}

/// What came of it. The blocks are durable and allocated, and no stripe's yet.
#[derive(Debug)]
pub(crate) struct Rebuilt {
    pub(crate) blocks: Vec<RebuiltBlock>,
    /// Blocks, by index and copy, for which there was no room, and why.
    pub(crate) left: Vec<((u8, u8), String)>,
    pub(crate) warnings: Vec<String>,
    pub(crate) traffic: TaskTraffic,
    pub(crate) resumed: u32,
}

/// What a rebuild tells on its way.
pub(crate) enum Told<'a> {
    /// The plan that runs next.
    Plan(&'a planning::Planned),
    /// How much of what this stripe's new blocks take has come in, in thousandths.
    Thousandths(u64),
    /// It goes on around a failure.
    Resumed(String),
}

impl Rebuild<'_> {
    /// The plan, and what there is to say of it.
    pub(crate) fn explain(&self) -> Result<(planning::Planned, Vec<String>)> {
        self.require_recoverable()?;
        let Chosen { homes, mut warnings, short } = self.choose_homes()?;
        let new = |(lost, home): (&Lost, &Option<Home>)| {
            let generation = self.stripe.blocks.get(usize::from(lost.index)).map_or(1, |placed| placed.generation_high_water + 1);
            let block = BlockId { stripe: self.stripe.id, index: lost.index, copy: lost.copy, generation };
            Some(Target { node: (*home)?.node, block, missing: vec![self.stripe.layout.coded_span()] })
        };
        let targets: Vec<Target> = self.lost.iter().zip(&homes).filter_map(new).collect();
        warnings.extend(short.map(|error| error.message));
        Ok((self.plan(&targets, &BTreeSet::new(), Class::Repair)?, warnings))
    }

    /// Rebuilds what is lost, or as much of it as there is room for; or gives back what was allocated.
    pub(crate) async fn run(&mut self, mut tell: impl FnMut(Told<'_>) + Send) -> Result<Rebuilt> {
        self.require_recoverable()?;
        let mut arriving = Vec::with_capacity(self.lost.len());
        let result = self.run_allocated(&mut arriving, &mut tell).await;
        if result.is_err() {
            for new in &arriving {
                self.give_up(new).await;
            }
        }
        result
    }

    async fn run_allocated(&mut self, arriving: &mut Vec<Arriving>, tell: &mut (impl FnMut(Told<'_>) + Send)) -> Result<Rebuilt> {
        let Chosen { homes, warnings, short } = self.choose_homes()?;
        let (mut avoided, mut conflict) = (Avoided::default(), None);
        for (lost, home) in self.lost.iter().zip(homes) {
            match home {
                Some(home) => match self.allocate_free(lost, home, arriving, &BTreeSet::new()).await {
                    Ok(new) => arriving.push(new),
                    Err(error) if self.upload.is_none() && error.reaction == Reaction::Replan => {
                        avoided.left.push(((lost.index, lost.copy), error.message.clone()));
                        conflict.get_or_insert(error);
                    }
                    Err(error) => return Err(error),
                },
                None => {
                    let why = short.as_ref().map(|error| error.message.clone()).unwrap_or_default();
                    avoided.left.push(((lost.index, lost.copy), why));
                }
            }
        }
        if let Some(error) = conflict.filter(|_| arriving.is_empty()) {
            return Err(error);
        }
        let mut traffic = TaskTraffic::default();
        let mut resumed = 0;
        loop {
            let error = match self.attempt(arriving, &avoided.left_alone(), resumed, tell).await {
                Ok(report) => {
                    traffic = traffic + report.traffic();
                    if let Some(blocks) = arriving.iter().map(Arriving::rebuilt).collect() {
                        return Ok(Rebuilt { blocks, left: avoided.left, warnings, traffic, resumed });
                    }
                    self.refresh().await;
                    let bad = report.blame.is_some_and(|blame| knows_bad_blocks(&self.stripe, blame.node, &report));
                    avoided.learn(&report, arriving, bad);
                    self.replace_dead_targets(arriving, &report, &mut avoided).await?;
                    self.replace_doubtful_targets(arriving, &mut avoided, DISPUTES_MAX).await?;
                    report.cause()
                }
                // Somebody could not even be asked: another plan is to be made, unless nobody is to blame.
                Err(error) if error.reaction == Reaction::Replan => match error.party {
                    Some(Party::Node(node)) => {
                        self.refresh().await;
                        if !error.block.is_some_and(|block| is_known_bad(&self.stripe, block)) {
                            avoided.failed.insert(node);
                            self.replace_targets_on(arriving, &mut avoided).await?;
                        }
                        error
                    }
                    _ => return Err(error),
                },
                // Too few are left without those who were blamed. Perhaps it was those who complained.
                Err(error) if error.reaction == Reaction::Unavailable && !avoided.blamed.is_empty() => {
                    if !self.replace_doubtful_targets(arriving, &mut avoided, 1).await? && !avoided.second_chances() {
                        return Err(error);
                    }
                    error
                }
                Err(error) => return Err(error),
            };
            resumed += 1;
            if resumed > self.shared.config.resumes_max {
                let message = format!("given up after {resumed} plans; the last failed with: {}", error.message);
                return Err(Error { reaction: Reaction::Unavailable, message, ..error });
            }
            let missing: u64 =
                arriving.iter().filter(|new| new.durable.is_none()).flat_map(|new| &new.missing).map(|span| span.len()).sum();
            let message = format!("{error}; going on with the {missing} positions that are missing");
            tracing::warn!(object = %self.object, stripe = %self.stripe.id, "{message}");
            tell(Told::Resumed(message));
        }
    }

    /// One plan, over what is missing.
    async fn attempt(
        &self,
        arriving: &mut [Arriving],
        failed: &BTreeSet<NodeId>,
        resumed: u32,
        tell: &mut (impl FnMut(Told<'_>) + Send),
    ) -> Result<Report> {
        let pending = arriving.iter().filter(|new| new.durable.is_none());
        let target = |new: &Arriving| Target { node: new.home.node, block: new.block, missing: new.missing.clone() };
        let targets: Vec<Target> = pending.map(target).collect();
        let class = if self.upload.is_some() { Class::Foreground } else { Class::Repair };
        let planned = self.plan(&targets, failed, class)?;
        tell(Told::Plan(&planned));
        let view = self.shared.members.view();
        let orders = arriving.iter().map(|new| Ok((new.block, self.order(new, &view)?))).collect::<Result<BTreeMap<_, _>>>()?;
        let signed = sign::sign(self.shared, &planned, &self.stripe, &orders, "")?;
        supervise::open(self.shared, &signed).await?;
        let coming: BTreeMap<NodeId, u64> =
            targets.iter().filter_map(|target| Some((target.node, signed.agents.get(&target.node)?.incoming_bytes))).collect();
        let total: u64 = coming.values().sum::<u64>().max(1);
        let (running, _settle) = supervise::start(self.shared, signed, OnFailure::EndAll).await;
        let mut moved: BTreeMap<NodeId, u64> = BTreeMap::new();
        let progress = |node: NodeId, bytes: u64| {
            if let Some(most) = coming.get(&node) {
                moved.insert(node, bytes.min(*most));
                tell(Told::Thousandths(moved.values().sum::<u64>().saturating_mul(1000) / total));
            }
        };
        let homes: Vec<NodeId> = targets.iter().map(|target| target.node).collect();
        let slice_bytes = planned.plan.binding.slice_len.saturating_mul(self.stripe.layout.layout.alpha.into());
        let is_spare = |node: NodeId| self.is_spare(node, failed, &homes);
        let stall_policy = self.shared.stall_after(slice_bytes, resumed);
        let stall_policy = stall_policy.map(|still| StallPolicy::of_chain(still, is_spare));
        let report = running.finish(progress, stall_policy).await;
        note_bad_blocks(self.shared, &report).await;
        for new in arriving.iter_mut().filter(|new| new.durable.is_none()) {
            new.take(&report, self.stripe.layout.coded_span());
            if new.durable.is_none() && report.is_not_what_was_lost(new.block, new.home.node) {
                // Or it was spoiled where it was to be stored: who tries again does so elsewhere, if there is an elsewhere.
                self.shared.members.suspect(new.home.node);
                return Err(self.not_what_was_lost(new, &planned));
            }
        }
        Ok(report)
    }

    /// Whether it can go on without a node: with other helpers, or another home.
    fn is_spare(&self, node: NodeId, failed: &BTreeSet<NodeId>, homes: &[NodeId]) -> bool {
        if homes.contains(&node) {
            let avoid: BTreeSet<NodeId> = homes.iter().chain(failed).copied().collect();
            return !self.to.names(node) && self.find_homes(1, &avoid).is_ok();
        }
        let without: BTreeSet<NodeId> = failed.iter().copied().chain([node]).collect();
        let view = self.shared.members.view();
        let stripe = self.serving(&view, &without);
        let readable = planning::readable(&stripe, &view, |_| false);
        let helps = |index: &u8| {
            let home = stripe.blocks.get(usize::from(*index)).map(|placed| placed.home.node);
            self.is_usable(&stripe, *index) && home.is_some_and(|home| !without.contains(&home))
        };
        let available: Vec<u8> = readable.good.iter().chain(&readable.suspect).copied().filter(helps).collect();
        planning::unrecoverable(self.code, &stripe, &available, &self.wanted()).is_none()
    }

    /// The stripe as a plan without these nodes reads it: of a block that has copies, that which stands best and is not to be rebuilt.
    fn serving(&self, view: &View, without: &BTreeSet<NodeId>) -> StripeRecord {
        let is_shunned = |block: BlockId, node: NodeId| {
            let is_left_alone = without.contains(&node) || self.avoid.contains(&node);
            is_left_alone || self.is_lost(block.index, block.copy) || self.shared.members.is_suspect_block(block)
        };
        // Drawn from the stripe: what is explained is what is done, as long as the nodes are as they were.
        let mut rng = StdRng::seed_from_u64(self.stripe.id.0);
        view.serving(self.stripe.clone(), is_shunned, |_| rng.random())
    }

    /// All that was read passed the checksums of its disks: the same helpers would make the same of it again.
    fn not_what_was_lost(&self, new: &Arriving, planned: &planning::Planned) -> Error {
        let name = |block: &BlockId| {
            let home = self.stripe.find(block.index, block.copy).map(|placed| placed.home.node);
            format!("{block} on {}", home.map(|node| self.shared.members.name(node)).unwrap_or_default())
        };
        let read: Vec<String> = planned.plan.binding.blocks.iter().map(|block| name(&block.id)).collect();
        let read = read.join(", ");
        let message = format!("what was rebuilt is not what was recorded, and is not kept; one of these must be wrong: {read}");
        Error::corrupt(message).block(new.block).object(self.object)
    }

    fn plan(&self, targets: &[Target], failed: &BTreeSet<NodeId>, class: Class) -> Result<planning::Planned> {
        let view = self.shared.members.view();
        let stripe = self.serving(&view, failed);
        let readable = planning::readable(&stripe, &view, |block| self.shared.members.is_suspect_block(block));
        let node_of = |index: &u8| stripe.blocks.get(usize::from(*index)).map(|placed| placed.home.node);
        let avoided = |index: &u8| node_of(index).is_none_or(|node| failed.contains(&node) || self.avoid.contains(&node));
        let all = readable.good.iter().chain(&readable.suspect).copied().filter(|index| self.is_usable(&stripe, *index));
        let (last, first): (Vec<u8>, Vec<u8>) = all.partition(|index| avoided(index) || readable.suspect.contains(index));
        let rack = targets.first().and_then(|target| view.node(target.node)).map(|node| node.rack.clone());
        let network = self.shared.network_of_helpers();
        let slice_len = self.options.slice_positions(&self.stripe.layout, &network);
        let attempt = |available: &[u8]| {
            let prefer = self.prefer(&stripe, available, &view, rack.as_deref());
            let run = self.shared.run(class, self.stripe.seq, &self.stripe.layout.layout, slice_len);
            let way = Way { options: self.options, network: &network, prefer: &prefer };
            planning::rebuild(self.code, &stripe, available, targets, &way, run)
        };
        // Rather with those that failed a moment ago than not at all, as few as will do; but never with who failed in this very
        // rebuild.
        let more = last.iter().copied().filter(|index| node_of(index).is_some_and(|node| !failed.contains(&node)));
        let all: Vec<u8> = first.iter().copied().chain(more).collect();
        let mut planned = attempt(&first);
        for count in first.len() + 1..=all.len() {
            match planned {
                Err(error) if error.reaction == Reaction::Unavailable => planned = attempt(&all[..count]),
                other => return other.inspect(|planned| self.note_helpers(planned)),
            }
        }
        let planned = planned.map_err(|error| self.unavailable(error, &stripe, &all, &readable.lost, &view));
        planned.inspect(|planned| self.note_helpers(planned))
    }

    /// Who shall help a requestor in `rack`, of those that hold `available`.
    fn prefer(&self, stripe: &StripeRecord, available: &[u8], view: &View, rack: Option<&str>) -> Vec<Party> {
        let k = stripe.layout.k as usize;
        let Some(helpers) = self.helpers else { return planning::preference(stripe, available, view, k, rack) };
        let home = |index: &u8| Some(stripe.blocks.get(usize::from(*index))?.home.node);
        let selected = helpers.order(available.iter().filter_map(home).collect(), &mut *self.shared.rng());
        planning::in_chain(selected, view, k, rack)
    }

    /// Those whose blocks the plan reads help now.
    fn note_helpers(&self, planned: &planning::Planned) {
        let Some(helpers) = self.helpers else { return };
        let binding = &planned.plan.binding;
        let party = |block: &weft_plan::BoundBlock| binding.parties.get(usize::from(block.vertex)).copied();
        let node = |party| if let Party::Node(node) = party { Some(node) } else { None };
        helpers.selected(binding.blocks.iter().filter_map(party).filter_map(node));
    }

    /// Whether what is left is enough comes before where it would go.
    fn require_recoverable(&self) -> Result<()> {
        let view = self.shared.members.view();
        let stripe = self.serving(&view, &BTreeSet::new());
        let readable = planning::readable(&stripe, &view, |_| false);
        let all = readable.good.iter().chain(&readable.suspect).copied();
        let available: Vec<u8> = all.filter(|index| self.is_usable(&stripe, *index)).collect();
        match planning::unrecoverable(self.code, &stripe, &available, &self.wanted()) {
            Some(_) => Err(self.unavailable(Error::unavailable("too much is lost"), &stripe, &available, &readable.lost, &view)),
            None => Ok(()),
        }
    }

    fn unavailable(
        &self,
        error: Error,
        stripe: &StripeRecord,
        available: &[u8],
        lost: &[(u8, &'static str)],
        view: &View,
    ) -> Error {
        if error.reaction != Reaction::Unavailable {
            return error;
        }
        let Some(absent) = planning::unrecoverable(self.code, stripe, available, &self.wanted()) else { return error };
        let lost = planning::why_absent(stripe, &absent, lost, "failed just now");
        self.shared.lacking_nodes(planning::too_many_lost(self.code, stripe, &lost, view)).object(self.object)
    }

    /// All positions of all that is lost.
    fn wanted(&self) -> Vec<(u8, Span)> {
        self.lost.iter().map(|lost| (lost.index, self.stripe.layout.coded_span())).collect()
    }

    /// Whether a block of the stripe as a plan reads it may help: it stays, or what is still good of it can be copied.
    fn is_usable(&self, stripe: &StripeRecord, index: u8) -> bool {
        let stays = |placed: &PlacedBlock| !self.is_lost(index, placed.copy);
        // What is only to be copied is read where it is.
        self.options.scheme == repair::DIRECT
            || stripe.blocks.get(usize::from(index)).is_some_and(stays)
            || !stripe.corrupt_bytes(index).is_empty()
    }

    /// Looks up what has been found out about the stripe's blocks since.
    async fn refresh(&mut self) {
        // What is known of a put's stripe is written down when it has ended.
        if self.upload.is_some() {
            return;
        }
        let now = match self.shared.meta.stripe(self.stripe.id).await {
            Ok(now) => now,
            // The commit will say it, if it is gone.
            Err(error) => return tracing::debug!(stripe = %self.stripe.id, %error, "a stripe cannot be looked up"),
        };
        for (index, known) in self.stripe.all_mut() {
            // A copy that was dropped is read no more.
            known.state = match now.find(index, known.copy) {
                Some(now) if now.generation != known.generation => continue,
                Some(now) => now.state,
                None => BlockState::Missing,
            };
        }
        let is_as_it_was = |index: u8, copy: u8| {
            let generation = |stripe: &StripeRecord| stripe.find(index, copy).map(|placed| placed.generation);
            generation(&now) == generation(&self.stripe)
        };
        let corrupt = now.corrupt.iter().filter(|((index, copy), _)| is_as_it_was(*index, *copy));
        self.stripe.corrupt = corrupt.map(|(block, bytes)| (*block, bytes.clone())).collect();
    }

    /// New homes for blocks whose node failed, or said nothing of what had arrived.
    async fn replace_dead_targets(&self, arriving: &mut Vec<Arriving>, report: &Report, avoided: &mut Avoided) -> Result<()> {
        for new in arriving.iter().filter(|new| new.durable.is_none()) {
            let end = report.nodes.get(&new.home.node).and_then(|node| node.end.as_ref());
            let wrong = report.stored(new.block, new.home.node).is_some();
            if wrong || matches!(end, Some(End::Broken(_) | End::GivenUp)) {
                avoided.failed.insert(new.home.node);
            }
        }
        self.replace_targets_on(arriving, avoided).await
    }

    /// New homes for blocks whose node was in a dispute with its helpers in so many plans: then it is what they have in common,
    /// and they are not blamed any more. Where no other node is left, the block stays. Tells whether any was moved.
    async fn replace_doubtful_targets(&self, arriving: &mut Vec<Arriving>, avoided: &mut Avoided, plans: u32) -> Result<bool> {
        let doubtful =
            |node: &NodeId| avoided.disputes.get(node).is_some_and(|disputes| *disputes >= plans) && !self.to.names(*node);
        let pending = arriving.iter().filter(|new| new.durable.is_none()).map(|new| new.home.node);
        let doubtful: BTreeSet<NodeId> = pending.filter(doubtful).collect();
        let avoid: BTreeSet<NodeId> = arriving.iter().map(|new| new.home.node).chain(avoided.left_alone()).collect();
        if doubtful.is_empty() || self.find_homes(doubtful.len(), &avoid).is_err() {
            return Ok(false);
        }
        for node in &doubtful {
            self.shared.members.suspect(*node);
        }
        avoided.failed.extend(&doubtful);
        avoided.blamed.clear();
        self.replace_targets_on(arriving, avoided).await?;
        Ok(true)
    }

    /// New homes for blocks whose node has failed. Where there is none for one of several, the others are rebuilt without it.
    async fn replace_targets_on(&self, arriving: &mut Vec<Arriving>, avoided: &mut Avoided) -> Result<()> {
        let taken: Vec<NodeId> = arriving.iter().map(|new| new.home.node).collect();
        let mut at = 0;
        while let Some(new) = arriving.get(at) {
            if new.durable.is_some() || !avoided.failed.contains(&new.home.node) {
                at += 1;
                continue;
            }
            if self.to.names(new.home.node) {
                let name = self.shared.members.name(new.home.node);
                return Err(Error::unavailable(format!("{name}, where the block was to go, failed")).block(new.block));
            }
            let taken = taken.iter().copied().chain(self.lost_nodes_of_others(new.block.index, new.block.copy));
            let avoid: BTreeSet<NodeId> = taken.chain(avoided.failed.iter().copied()).collect();
            let placed = self.place(1, &avoid);
            let home =
                placed.and_then(|placed| placed.homes.first().copied().ok_or_else(|| Error::unavailable("no node is left")));
            match home {
                Ok(home) => {
                    let lost = Lost { index: new.block.index, copy: new.block.copy, checksums: new.expected.clone() };
                    self.give_up(new).await;
                    let other = self.allocate_free(&lost, home, arriving, &avoided.failed).await?;
                    arriving[at] = other;
                    at += 1;
                }
                Err(error) if self.upload.is_none() && arriving.len() > 1 => {
                    self.give_up(new).await;
                    avoided.left.push(((new.block.index, new.block.copy), error.message));
                    arriving.remove(at);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Allocates a block where it is to go or, while somebody else brings another block of the stripe there, elsewhere.
    async fn allocate_free(
        &self,
        lost: &Lost,
        mut home: Home,
        arriving: &[Arriving],
        failed: &BTreeSet<NodeId>,
    ) -> Result<Arriving> {
        let others = self.lost_nodes_of_others(lost.index, lost.copy);
        let taken = arriving.iter().map(|new| new.home.node).chain(failed.iter().copied()).chain(others);
        let mut avoid: BTreeSet<NodeId> = taken.collect();
        let mut tried = 1;
        loop {
            let error = match self.allocate(lost, home).await {
                Err(error) if error.reaction == Reaction::Replan => error,
                allocated => return allocated,
            };
            avoid.insert(home.node);
            if self.to.names(home.node) || tried == HOMES_MAX {
                return Err(error);
            }
            let other = self.place(1, &avoid).ok().and_then(|placed| placed.homes.first().copied());
            let Some(other) = other else { return Err(error) };
            (home, tried) = (other, tried + 1);
        }
    }

    async fn allocate(&self, lost: &Lost, home: Home) -> Result<Arriving> {
        // Nobody puts off a repair's lease: it counts with a slow link from the first.
        let slowest_ms = self.stripe.layout.block_len(lost.index.into()) / SLOWEST_BYTES_PER_MS;
        let expires_ms = self.shared.lease_end_ms().saturating_add(slowest_ms);
        let (index, copy) = (lost.index, lost.copy);
        let repair = NewRepair { stripe: self.stripe.id, index, copy, home, upload: self.upload, expires_ms };
        let block =
            self.shared.meta.allocate_repair(self.shared.epoch, repair).await.map_err(|error| self.shared.meta_error(error))?;
        self.shared.members.add_blocks(&[home], self.stripe.layout.block_len(lost.index.into()));
        Ok(Arriving {
            block,
            home,
            expected: lost.checksums.clone(),
            missing: vec![self.stripe.layout.coded_span()],
            durable: None,
        })
    }

    async fn give_up(&self, new: &Arriving) {
        // Its task may hang on for as long as a stall takes.
        let not_before_ms = self.shared.now_ms().saturating_add(self.shared.config.stall_ms.into());
        if let Err(error) = self.shared.meta.abort_repair(self.shared.epoch, new.block, not_before_ms).await {
            let error = self.shared.meta_error(error);
            tracing::warn!(block = %new.block, %error, "an allocation could not be given up; it will expire");
        }
    }

    fn order(&self, new: &Arriving, view: &View) -> Result<StoreOrder> {
        store_order(self.shared, self.code, self.object, self.version, &self.stripe, new.block, new.home, view)
            .map(|order| StoreOrder { expected_checksums: new.expected.clone().unwrap_or_default(), ..order })
    }
}

/// What an agent needs to know of a block that it is to store.
#[expect(clippy::too_many_arguments, reason = "a sidecar says all of this")]
pub(crate) fn store_order(
    shared: &Shared,
    code: &SharedCode,
    object: &ObjectName,
    version: UploadId,
    stripe: &StripeRecord,
    block: BlockId,
    home: Home,
    view: &View,
) -> Result<StoreOrder> {
    let disk = view.disk(home).ok_or_else(|| Error::replan("its disk is gone").party(Party::Node(home.node)).block(block))?;
    let meta = BlockMeta {
        cluster: shared.cluster.id,
        id: block,
        object: object.to_string(),
        version: version.0,
        object_offset: stripe.object_offset(),
        code: code.spec(),
        generator_hash: weft_codes::generator_hash(code.as_ref()),
        stripe: stripe.layout,
        seq: stripe.seq,
    };
    Ok(StoreOrder { meta, expected_checksums: Vec::new(), disk: disk.id.clone() })
}

/// Writes down the blocks that agents found to be bad, or not to have, in a plan.
pub(crate) async fn note_bad_blocks(shared: &Shared, report: &Report) {
    for (id, node) in &report.nodes {
        for (block, state, error) in node.bad_blocks(*id) {
            // Where nobody says which bytes are, the block is lost as a whole.
            let finding = match node.corrupt.get(&block) {
                Some(bytes) if state == BlockState::Corrupt => membership::Finding::Corrupt(bytes.clone()),
                _ => membership::Finding::Lost(state),
            };
            if let Err(error) = membership::mark(shared, *id, block, &finding, &error.message).await {
                tracing::error!(%block, %error, "a bad block could not be written down");
            }
        }
    }
}
