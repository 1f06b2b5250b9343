//! Repairs of objects: lost blocks are rebuilt on other nodes and committed, stripe by stripe.

use crate::{
    copies, options,
    pages::Stripes,
    rebuild::{self, Rebuilder, Told, shares::Shares},
    shared::Shared,
    updates::settle,
    validate,
};
use std::sync::Arc;
use tokio::{sync::mpsc, time::Instant};
use tonic::Status;
use weft_control::{
    options::RepairOptions,
    planning,
    rebuild::{
        Destination, Lost, Request, lacking_copies, leaves_others, lost_blocks, moved_bytes, named_block, room_for_copies,
    },
};
use weft_meta::ObjectRecord;
use weft_proto::{to_status, v1};
use weft_types::{Error, FailureDomain, NodeId, Result, StripeRecord};

/// Events that may wait for the client.
pub(crate) const EVENTS_MAX: usize = 256;

/// The events of a repair. Progress events are dropped while the client is slow; for all other events the repair waits.
pub(crate) type Events = mpsc::Sender<Result<v1::RepairEvent, Status>>;

/// Repairs an object, or for `explain` reports the plans and changes nothing.
pub(crate) async fn run(shared: Arc<Shared>, asked: v1::RepairObjectRequest, events: Events) {
    let result = Repair::new(&shared, &asked, &events).await;
    let result = match result {
        Ok(mut repair) => repair.run().await,
        Err(error) => Err(error),
    };
    let last = match result {
        Ok(done) => Ok(event(v1::repair_event::Event::Done(done))),
        Err(error) => {
            tracing::warn!(bucket = %asked.bucket, key = %asked.key, %error, "a repair failed");
            Err(to_status(&error))
        }
    };
    // The client may have disconnected; committed blocks stay committed.
    let _gone = events.send(last).await;
}

struct Repair<'a> {
    shared: &'a Arc<Shared>,
    events: &'a Events,
    object: ObjectRecord,
    failure_domain: FailureDomain,
    /// Empty: all lost blocks.
    blocks: Vec<u8>,
    /// The required copies of each data block; `None`: no change in the number of copies.
    replicas: Option<u8>,
    options: RepairOptions,
    /// Empty: the coordinator chooses.
    to: Vec<NodeId>,
    explain: bool,
    /// Whether to report each plan when it starts.
    tells_plans: bool,
    done_bytes: u64,
    total_bytes: u64,
}

impl<'a> Repair<'a> {
    async fn new(shared: &'a Arc<Shared>, asked: &v1::RepairObjectRequest, events: &'a Events) -> Result<Self> {
        let name = validate::object(&asked.bucket, &asked.key)?;
        let object = shared.meta.object(&name).await.map_err(|error| shared.meta_error(error))?;
        let (_, policy) = shared.meta.bucket(&name.bucket).await.map_err(|error| shared.meta_error(error))?;
        let code = shared.code(&object.code)?;
        let first = shared.meta.stripes(object.version, 0, 1).await.map_err(|error| shared.meta_error(error))?.items;
        let known = |index: &u32| named_block(&code, first.first(), *index).map_err(|error| error.object(&name));
        let blocks = asked.blocks.iter().map(known).collect::<Result<Vec<u8>>>()?;
        let options = options::of_repair(shared, asked)?;
        let replicas = asked.heat.then(|| copies::asked_to_heat(asked.replicas, &policy)).transpose();
        let replicas = replicas.map_err(|error| error.object(&name))?;
        Ok(Self {
            shared,
            events,
            object,
            failure_domain: policy.failure_domain,
            blocks,
            replicas,
            options,
            to: asked.to_nodes.iter().map(|node| NodeId(*node)).collect(),
            explain: asked.explain,
            tells_plans: asked.plans,
            done_bytes: 0,
            total_bytes: 0,
        })
    }

    async fn run(&mut self) -> Result<v1::RepairDone> {
        let begun = Instant::now();
        self.shared.until_nodes_are_back().await;
        let mut done = v1::RepairDone { traffic: Some(v1::TaskTraffic::default()), ..v1::RepairDone::default() };
        self.total_bytes = self.count_bytes().await.map_err(|error| error.object(&self.object.name))?;
        let (mut stripes, mut first_left) = (self.stripes(), None);
        while let Some(stripe) = stripes.next().await? {
            match self.stripe(&stripe, &mut done).await.map_err(|error| error.object(&self.object.name)) {
                Err(error) if leaves_others(&error) && !self.explain => {
                    self.leave(&stripe, &error, &mut done);
                    first_left.get_or_insert(error);
                }
                other => other?,
            }
        }
        if let Some(error) = first_left.filter(|_| done.blocks.is_empty()) {
            return Err(error);
        }
        done.elapsed_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        Ok(done)
    }

    fn stripes(&self) -> Stripes<'a> {
        Stripes::of_object(self.shared, self.object.version, 0)
    }

    /// The bytes of all lost blocks. Fails if there are too few nodes for the requested copies.
    async fn count_bytes(&self) -> Result<u64> {
        let (mut stripes, mut bytes) = (self.stripes(), 0u64);
        let m = self.shared.code(&self.object.code)?.m();
        while let Some(stripe) = stripes.next().await? {
            let lost = self.lost(&stripe);
            if let Some(replicas) = self.replicas {
                room_for_copies(&stripe, &lost, &self.shared.members.view(), (m, replicas))?;
            }
            bytes = bytes.saturating_add(lost.iter().map(|lost| stripe.layout.block_len(lost.index.into())).sum());
        }
        Ok(bytes)
    }

    /// Records that nothing of a stripe could be rebuilt.
    fn leave(&self, stripe: &StripeRecord, error: &Error, done: &mut v1::RepairDone) {
        tracing::warn!(object = %self.object.name, stripe = stripe.number, %error, "cannot rebuild any block of a stripe");
        let left = |lost: Lost| left_block(stripe, (lost.index, lost.copy), error.message.clone());
        done.left.extend(self.lost(stripe).into_iter().map(left));
    }

    fn lost(&self, stripe: &StripeRecord) -> Vec<Lost> {
        let lost = lost_blocks(stripe, &self.shared.members.view(), &self.blocks);
        match self.replicas {
            Some(replicas) => lacking_copies(stripe, lost, replicas),
            None => lost,
        }
    }

    async fn stripe(&mut self, listed: &StripeRecord, done: &mut v1::RepairDone) -> Result<()> {
        if self.lost(listed).is_empty() {
            return Ok(());
        }
        let shared = self.shared;
        let _claim = if self.explain { None } else { Some(shared.claims.claim(listed.id).await) };
        if !self.explain {
            settle::if_open(shared, listed.id).await?;
        }
        // Others may have rebuilt its blocks since.
        let now = shared.meta.find_stripes(vec![listed.id]).await.map_err(|error| shared.meta_error(error))?;
        let Some(stripe) = now.first() else { return Ok(()) };
        let lost = self.lost(stripe);
        if lost.is_empty() {
            return Ok(());
        }
        let code = self.shared.code(&self.object.code)?;
        let bytes: u64 = lost.iter().map(|lost| stripe.layout.block_len(lost.index.into())).sum();
        let indexes: Vec<u32> = lost.iter().map(|lost| lost.index.into()).collect();
        let (named, failure_domain) = ((&code, &self.object.name), self.failure_domain);
        let request = rebuild::request(self.shared, named, stripe.clone(), lost, &self.options, failure_domain);
        let to = if self.to.is_empty() { Destination::Anywhere } else { Destination::Nodes(self.to.clone()) };
        // Further copies are new data: they leave the room that repair may need.
        let kept = match self.replicas {
            Some(_) => shared.kept_for_repair(&shared.members.view(), code.n()),
            None => request.kept,
        };
        let (request, shares) = (Request { to, kept, ..request }, Shares::default());
        let rebuilder = Rebuilder { shared: self.shared, version: self.object.version, shares: &shares };
        if self.explain {
            let (planned, warnings) = rebuilder.explain(request)?;
            for warning in warnings {
                self.tell_warning(warning).await?;
            }
            return self.tell_plan(stripe, &indexes, &planned).await;
        }
        let rebuilt = {
            let (before, total, json) = (self.done_bytes, self.total_bytes, self.tells_plans);
            let telling = Telling { events: self.events, stripe, lost: &indexes, json, before, bytes, total };
            rebuilder.run(request, |told| telling.tell(told)).await?
        };
        done.blocks.extend(rebuilt.blocks.iter().map(|new| v1::RepairedBlock {
            stripe: stripe.number,
            index: new.block.index.into(),
            copy: new.block.copy.into(),
            generation: new.block.generation,
            node: new.home.node.0,
            len: stripe.layout.block_len(new.block.index.into()),
        }));
        let left = |(block, reason): ((u8, u8), String)| left_block(stripe, block, reason);
        done.left.extend(rebuilt.left.into_iter().map(left));
        for warning in rebuilt.warnings {
            if !done.warnings.contains(&warning) {
                done.warnings.push(warning);
            }
        }
        self.done_bytes = self.done_bytes.saturating_add(bytes);
        done.resumed += rebuilt.resumed;
        done.traffic = Some(done.traffic.unwrap_or_default() + rebuilt.traffic.into());
        Ok(())
    }

    async fn tell_warning(&self, message: String) -> Result<()> {
        let warning = v1::repair_event::Event::Progress(v1::RepairProgress { message, ..v1::RepairProgress::default() });
        let sent = self.events.send(Ok(event(warning))).await;
        sent.map_err(|_| Error::retry("the caller disconnected"))
    }

    async fn tell_plan(&self, stripe: &StripeRecord, lost: &[u32], planned: &planning::Planned) -> Result<()> {
        let plan = v1::RepairPlan { plan: planned.json()?, stripe: stripe.number, lost: lost.to_vec() };
        let sent = self.events.send(Ok(event(v1::repair_event::Event::Plan(plan)))).await;
        sent.map_err(|_| Error::retry("the caller disconnected"))
    }
}

/// Forwards the reports of a stripe's rebuild.
struct Telling<'a> {
    events: &'a Events,
    stripe: &'a StripeRecord,
    lost: &'a [u32],
    /// Whether plans include their JSON.
    json: bool,
    /// Bytes of the stripes before, of this one, and of all.
    before: u64,
    bytes: u64,
    total: u64,
}

impl Telling<'_> {
    /// Does not wait: a slow client must not delay a repair.
    fn tell(&self, told: Told<'_>) {
        let progress = |thousandths: u64, message: String| {
            let done_bytes = self.before.saturating_add(moved_bytes(self.bytes, thousandths));
            v1::repair_event::Event::Progress(v1::RepairProgress { done_bytes, total_bytes: self.total, message })
        };
        let told = match told {
            // The last event has the sum.
            Told::Moved(_) => return,
            Told::Plan(planned) => {
                let plan = if self.json { planned.json().unwrap_or_default() } else { Vec::new() };
                let plan = v1::RepairPlan { plan, stripe: self.stripe.number, lost: self.lost.to_vec() };
                v1::repair_event::Event::Plan(plan)
            }
            Told::Thousandths(thousandths) => progress(thousandths, String::new()),
            Told::Resumed(message) => progress(0, message),
        };
        let _full_or_gone = self.events.try_send(Ok(event(told)));
    }
}

fn left_block(stripe: &StripeRecord, (index, copy): (u8, u8), reason: String) -> v1::LeftBlock {
    v1::LeftBlock { stripe: stripe.number, index: index.into(), copy: copy.into(), reason, object: String::new() }
}

pub(crate) fn event(event: v1::repair_event::Event) -> v1::RepairEvent {
    v1::RepairEvent { event: Some(event) }
}
