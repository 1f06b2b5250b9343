//! Rebuilds blocks of one stripe: the shell around [`weft_control::rebuild`], which decides.

mod keep;
pub(crate) mod owner;
pub(crate) mod shares;

use crate::{
    compute::compute,
    membership,
    meter::{PlanKind, scheme_of},
    shared::Shared,
    sign::{self, StoreOrder},
    supervise::{self, IsSpare},
    tasks,
};
use shares::{Shares, lock};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};
use weft_codes::SharedCode;
use weft_control::{
    Time,
    options::RepairOptions,
    planning::Planned,
    rebuild::{
        self, Action, Arriving, Destination, Event, Lease, Lost, Needed, PlanRequest, Purpose, Rebuilt, RebuiltBlock, Request,
        World,
    },
    reserve::Share,
    run::{OnFailure, Report, StallPolicy},
    view::View,
};
use weft_meta::NewRepair;
use weft_plan::Class;
use weft_types::{BlockId, Error, FailureDomain, Home, NodeId, ObjectName, Result, StripeId, StripeRecord, UploadId};

/// How often a running rebuild looks whether its blocks have come back.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);

/// The context of a rebuild.
#[derive(Clone, Copy)]
pub(crate) struct Rebuilder<'a> {
    pub(crate) shared: &'a Arc<Shared>,
    /// The version of the object that the stripe belongs to.
    pub(crate) version: UploadId,
    pub(crate) shares: &'a Shares,
}

/// A report of a running rebuild.
pub(crate) enum Told<'a> {
    /// The plan that runs next.
    Plan(&'a Planned),
    /// The received share of this stripe's new blocks, in thousandths.
    Thousandths(u64),
    /// A plan has ended, and has sent so many bytes over links.
    Moved(u64),
    /// It continues after a failure.
    Resumed(String),
}

impl Rebuilder<'_> {
    /// The first plan, and its warnings.
    pub(crate) fn explain(self, request: Request) -> Result<(Planned, Vec<String>)> {
        let machine = rebuild::Rebuild::new(request);
        let view = self.shared.members.view();
        let (ask, warnings) = self.with_world(&view, |world| machine.explain(world))?;
        let planned = self.plan(&ask, &view)?;
        self.with_world(&view, |world| machine.note_helpers(&planned, world));
        Ok((planned, warnings))
    }

    /// Rebuilds the lost blocks, or as many as there is room for, and releases all other allocations. The blocks of a
    /// repair are committed.
    pub(crate) async fn run(self, request: Request, mut tell: impl FnMut(Told<'_>) + Send) -> Result<Rebuilt> {
        let (shared, object, stripe) = (self.shared, request.object.clone(), request.stripe.id);
        let (mut machine, mut scheme) = (rebuild::Rebuild::new(request), String::new());
        let mut keep_until = None;
        let mut event = Event::Begin;
        loop {
            if matches!(event, Event::Ran(_))
                && self.may_have_moved(machine.request())
                && let Some(now) = self.look_up(stripe).await
            {
                machine.refresh(&now);
            }
            let view = shared.members.view();
            let mut answer = None;
            for action in self.with_world(&view, |world| machine.on(event, world)) {
                match action {
                    Action::Warn(warning) => {
                        if let Some(left_out) = shared.failures.admit(stripe, &warning) {
                            tracing::warn!(%object, %stripe, left_out, "{warning}");
                        }
                    }
                    Action::Resumed(message) => {
                        if let Some(left_out) = shared.failures.admit(stripe, &message) {
                            tracing::warn!(%object, %stripe, left_out, "{message}");
                        }
                        tell(Told::Resumed(message));
                    }
                    Action::Suspect(node) => shared.members.suspect(node),
                    Action::ForgetKept { index } => self.forget_kept(machine.request(), index).await,
                    Action::End(result) => return result,
                    asked => answer = Some(self.answer(asked, &mut scheme, &mut keep_until, &machine, &view, &mut tell).await),
                }
            }
            event = answer.flatten().ok_or_else(|| Error::fatal("internal error: a rebuild waits for nothing"))?;
        }
    }

    /// Carries out an action that requires an answer. `scheme` is that of the last plan that ran; `keep_until` is when nodes stop keeping what is
    /// right of blocks, once one was asked to.
    async fn answer(
        self,
        action: Action,
        scheme: &mut String,
        keep_until: &mut Option<Time>,
        machine: &rebuild::Rebuild,
        view: &View,
        tell: &mut (impl FnMut(Told<'_>) + Send),
    ) -> Option<Event> {
        let request = machine.request();
        Some(match action {
            Action::Allocate { index, copy, home } => Event::Allocated(self.allocate(request, (index, copy), home).await),
            Action::Release { block, may_be_written } => {
                self.release(block, may_be_written).await;
                Event::Released
            }
            Action::Keep { block, units } => {
                let until = *keep_until.get_or_insert_with(|| self.shared.started.now() + keep::WITHIN);
                Event::Kept(self.keep(machine, block, &units, view, until).await)
            }
            Action::Plan(ask) => Event::Planned(self.plan(&ask, view).map(Box::new)),
            Action::Run(planned) => {
                scheme_of(&planned, &request.options.scheme).clone_into(scheme);
                let ran = self.run_plan(machine, &planned, tell).await;
                if !request.purpose.is_put() && ran.as_ref().map_or(true, Report::any_failed) {
                    self.shared.meter.repair_failed(scheme);
                }
                Event::Ran(ran)
            }
            Action::LookUp => Event::LookedUp(self.look_up(request.stripe.id).await),
            Action::Commit { new, old } => {
                let bytes = request.stripe.layout.block_len(new.block.index.into());
                let committed = self.commit(&request.object, new, old).await;
                if committed.is_ok() {
                    self.shared.meter.rebuilt(scheme, bytes);
                }
                Event::Committed(committed)
            }
            Action::Warn(_) | Action::Resumed(_) | Action::Suspect(_) | Action::ForgetKept { .. } | Action::End(_) => {
                return None;
            }
        })
    }

    fn with_world<T>(self, view: &View, act: impl FnOnce(&mut World<'_>) -> T) -> T {
        let (mut used, mut given) = (lock(&self.shares.used), lock(&self.shares.given));
        act(&mut World { view, used: &mut used, given: &mut given, rng: &mut *self.shared.rng() })
    }

    async fn allocate(self, request: &Request, (index, copy): (u8, u8), home: Home) -> Result<BlockId> {
        let (shared, stripe) = (self.shared, &request.stripe);
        let len = stripe.layout.block_len(index.into());
        // Progress extends it.
        let expires_ms = shared.after_ms(shared.repair_lease());
        let upload = if let Purpose::Put(upload) = request.purpose { Some(upload) } else { None };
        let term = upload.is_none().then(|| stripe.seq.term());
        let repair = NewRepair { stripe: stripe.id, index, copy, home, upload, term, expires_ms };
        let block = shared.meta.allocate_repair(shared.epoch, repair).await.map_err(|error| shared.meta_error(error))?;
        shared.members.add_blocks(&[home], len);
        Ok(block)
    }

    async fn release(self, block: BlockId, may_be_written: bool) {
        let shared = self.shared;
        // Its task may continue for the time of a stall.
        let running = if may_be_written { shared.stall(Class::Repair) } else { Duration::ZERO };
        let not_before_ms = shared.after_ms(running);
        if let Err(error) = shared.meta.abort_repair(shared.epoch, block, not_before_ms).await {
            let error = shared.meta_error(error);
            tracing::warn!(%block, %error, "cannot release an allocation; it will expire");
        }
    }

    fn plan(self, ask: &PlanRequest, view: &View) -> Result<Planned> {
        let stripe = ask.stripe();
        let run = |slice_len| self.shared.run(ask.precedence(), &stripe.layout.layout, slice_len);
        let plan = || ask.plan(view, &self.shared.network_of_helpers(), &self.shared.known, run);
        compute(|| self.shared.meter.plan(PlanKind::Repair, plan))
    }

    /// Runs a plan, and records the bad blocks that it finds.
    async fn run_plan(
        self,
        machine: &rebuild::Rebuild,
        planned: &Planned,
        tell: &mut (impl FnMut(Told<'_>) + Send),
    ) -> Result<Report> {
        let (shared, stripe) = (self.shared, &machine.request().stripe);
        tell(Told::Plan(planned));
        let view = shared.members.view();
        let orders = machine.arriving().iter().map(|new| Ok((new.block, self.order(machine.request(), new, &view)?)));
        let orders = orders.collect::<Result<BTreeMap<_, _>>>()?;
        let signed = compute(|| sign::sign(shared, planned, stripe, &orders, ""))?;
        let streams = supervise::open(shared, &signed, shared.config.open_attempts_max).await?;
        let pending = machine.arriving().iter().filter(|new| new.durable.is_none()).map(|new| new.home.node);
        let coming: BTreeMap<NodeId, u64> =
            pending.filter_map(|node| Some((node, signed.agents.get(&node)?.incoming_bytes))).collect();
        let total: u64 = coming.values().sum::<u64>().max(1);
        let (running, _client) = supervise::start(shared, signed, streams, OnFailure::EndAll).await;
        let mut moved: BTreeMap<NodeId, u64> = BTreeMap::new();
        let allocated = (machine.resumed() == 0).then(|| (shared.started.now(), shared.repair_lease()));
        let mut lease = Lease::new(allocated);
        let progress = |node: NodeId, bytes: u64| {
            let len = shared.repair_lease();
            if lease.told(node, bytes, len, shared.started.now()) {
                self.renew(machine, len);
            }
            if let Some(most) = coming.get(&node) {
                moved.insert(node, bytes.min(*most));
                tell(Told::Thousandths(moved.values().sum::<u64>().saturating_mul(1000) / total));
            }
        };
        let slice_bytes = planned.plan.binding.slice_len.saturating_mul(stripe.layout.layout.alpha.into());
        let is_spare: IsSpare<'_> = Box::new(|node| machine.is_spare(node, &shared.members.view(), &lock(&self.shares.given)));
        let stall_policy = shared.stall_after(slice_bytes, machine.resumed()).map(StallPolicy::of_chain);
        let finishing = running.finish(progress, stall_policy.map(|policy| (policy, is_spare)));
        let report = tokio::select! {
            biased;
            report = finishing => report,
            // The agents end tasks whose events no one reads.
            why = self.needless(machine) => return Err(Error::unavailable(why)),
        };
        tell(Told::Moved(report.traffic().sent_bytes));
        membership::note_bad_blocks(shared, &report, &stripe.seq).await;
        Ok(report)
    }

    /// Waits until the rebuild must end, and says why: the nodes of all lost blocks have come back, or it only moves blocks, and the stripe
    /// lacks one. For ever if neither matters.
    async fn needless(self, machine: &rebuild::Rebuild) -> &'static str {
        let request = machine.request();
        let Request { object, stripe, .. } = request;
        if request.needed == Needed::Always {
            return std::future::pending().await;
        }
        let lacks = || request.needed.moves() && self.shared.health.lock().tally.lacks(stripe.id);
        while !request.is_needless(&self.shared.members.view()) && !lacks() && !self.has_moved(request).await {
            tokio::time::sleep(LOOK_INTERVAL).await;
        }
        let why = match request.needed.moves() {
            true if lacks() || request.gives_way(&self.shared.members.view()) => "the stripe lacks a block, which comes first",
            true => "its node or disk is no longer being drained",
            false => "its blocks came back with their nodes or disks",
        };
        tracing::info!(%object, stripe = %stripe.id, why, "drops a rebuild");
        why
    }

    /// Whether the disk of a lost block was moved to another node.
    fn may_have_moved(self, request: &Request) -> bool {
        let (members, stripe) = (&self.shared.members, &request.stripe);
        let mut homes = request.lost.iter().filter_map(|lost| Some(stripe.find(lost.index, lost.copy)?.home));
        // When nothing is left of it where it was, it is forgotten there.
        request.needed == Needed::WhileLost && homes.any(|home| members.is_moved_or_gone(home))
    }

    /// Whether all lost blocks have come back with their disk, at another node.
    async fn has_moved(self, request: &Request) -> bool {
        if !self.may_have_moved(request) {
            return false;
        }
        let now = self.look_up(request.stripe.id).await;
        now.is_some_and(|now| request.came_back_elsewhere(&now, &self.shared.members.view()))
    }

    /// Extends the leases of the blocks that are being written; those of a put live as long as the put. The plan does not wait for it, and
    /// the next progress tries again.
    fn renew(self, machine: &rebuild::Rebuild, lease: Duration) {
        if machine.request().purpose.is_put() {
            return;
        }
        let (shared, blocks) = (Arc::clone(self.shared), machine.arriving().iter().map(|new| new.block).collect());
        tasks::start(async move {
            if let Err(error) = shared.meta.extend_repairs(shared.epoch, blocks, shared.after_ms(lease)).await {
                let error = shared.meta_error(error);
                tracing::warn!(%error, "cannot extend the lease of a repair's allocations");
            }
        });
    }

    fn order(self, request: &Request, new: &Arriving, view: &View) -> Result<StoreOrder> {
        let Request { code, object, stripe, .. } = request;
        let order = sign::store_order(self.shared, code, object, self.version, stripe, new.block, new.home, view)?;
        Ok(StoreOrder { expected_checksums: new.expected.clone().unwrap_or_default(), ..order })
    }

    async fn look_up(self, id: StripeId) -> Option<StripeRecord> {
        // If the stripe is gone, the commit will fail.
        let found = self.shared.meta.stripe(id).await;
        found.inspect_err(|error| tracing::debug!(stripe = %id, %error, "cannot look up a stripe")).ok()
    }

    async fn commit(self, object: &ObjectName, new: RebuiltBlock, old: u32) -> Result<()> {
        let (shared, block) = (self.shared, new.block);
        let not_before_ms = shared.garbage_not_before_ms();
        let committed = shared.meta.commit_repair(shared.epoch, block, old, new.checksums, not_before_ms).await;
        committed.map_err(|error| shared.meta_error(error))?;
        tracing::info!(%object, %block, node = %shared.members.name(new.home.node), "rebuilt a block");
        Ok(())
    }
}

/// A request to rebuild blocks of a stripe.
pub(crate) fn request(
    shared: &Shared,
    (code, object): (&SharedCode, &ObjectName),
    stripe: StripeRecord,
    lost: Vec<Lost>,
    options: &RepairOptions,
    failure_domain: FailureDomain,
) -> Request {
    Request {
        code: Arc::clone(code),
        object: object.clone(),
        stripe,
        lost,
        options: options.clone(),
        helpers: None,
        scheduled: None,
        to: Destination::Anywhere,
        failure_domain,
        purpose: Purpose::Repair,
        avoid: BTreeSet::new(),
        silent: shared.updates.silent.nodes(shared),
        resumes_max: shared.config.resumes_max,
        disk_reserve_bytes: shared.config.disk_reserve.0,
        kept: Share::NONE,
        needed: Needed::Always,
        answers: rebuild::Answers::default(),
    }
}
