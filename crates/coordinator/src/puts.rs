//! Puts: begin, stripe after stripe, commit.
//!
//! A stripe's blocks are allocated before a byte moves; the client then sends every block itself. When it has, the agents'
//! receipts are compared with the client's checksums, what a failed node did not store is rebuilt elsewhere, and the stripe has
//! ended. The commit makes all stripes visible at once.

use crate::{
    how::How,
    jobs,
    placement::{self, Ask},
    rebuild::{self, Destination, Lost, Rebuild, RebuiltBlock},
    seal::{self, Sealed},
    shared::Shared,
    show,
    supervise::{self, End, OnFailure, Report, Running, Settle},
    validate::{self, Coding},
    view::View,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::task::JoinHandle;
use weft_codes::SharedCode;
use weft_meta::{
    BlockState, EndStripe, Home, MetaError, NewStripe, NewUpload, Owner, PlacedBlock, StripeRecord, UploadId, UploadRecord,
};
use weft_plan::Class;
use weft_proto::{status::decode_error, v1};
use weft_types::{BlockId, Error, NodeId, Party, PlanId, Reaction, Result, StripeId, StripeLayout};

/// A stripe of a put, by its number.
type Key = (UploadId, u64);

/// The stripes that clients are sending.
#[derive(Default)]
pub(crate) struct Puts {
    stripes: Mutex<BTreeMap<Key, Underway>>,
    /// Who begins or ends a stripe, or waits to.
    turns: Mutex<BTreeMap<Key, Arc<tokio::sync::Mutex<()>>>>,
}

/// Of the calls that begin or end a stripe, one at a time has the turn: they may come twice, and late.
struct Turn<'a> {
    puts: &'a Puts,
    key: Key,
    held: Option<tokio::sync::OwnedMutexGuard<()>>,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut turns = self.puts.turns.lock().unwrap_or_else(PoisonError::into_inner);
        self.held = None;
        if turns.get(&self.key).is_some_and(|turn| Arc::strong_count(turn) == 1) {
            turns.remove(&self.key);
        }
    }
}

/// A stripe that is under way.
enum Underway {
    Sending(Sending),
    /// Its blocks are being looked at.
    Ending,
}

/// A stripe that a client is sending.
struct Sending {
    plan: PlanId,
    stripe: Box<StripeRecord>,
    settle: Settle,
    report: JoinHandle<Report>,
}

impl Puts {
    /// Whether something of a put is under way right now.
    pub(crate) fn is_active(&self, upload: UploadId) -> bool {
        let active = |underway: &Underway| match underway {
            Underway::Sending(sending) => !sending.report.is_finished(),
            Underway::Ending => true,
        };
        self.is_turning(upload) || self.lock().range((upload, 0)..=(upload, u64::MAX)).any(|(_, underway)| active(underway))
    }

    /// Whether a stripe of a put is being begun or ended right now.
    fn is_turning(&self, upload: UploadId) -> bool {
        let turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        turns.range((upload, 0)..=(upload, u64::MAX)).next().is_some()
    }

    /// Waits until nobody else begins or ends the stripe.
    async fn turn(&self, key: Key) -> Turn<'_> {
        let turn = {
            let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(turns.entry(key).or_default())
        };
        Turn { puts: self, key, held: Some(turn.lock_owned().await) }
    }

    /// Takes the stripe that `plan` sent, to end it; nothing if none is under way.
    fn begin_end(&self, key: Key, plan: PlanId) -> Result<Option<Sending>> {
        let mut stripes = self.lock();
        match stripes.remove(&key) {
            Some(Underway::Sending(sending)) if sending.plan == plan => {
                stripes.insert(key, Underway::Ending);
                Ok(Some(sending))
            }
            Some(other) => {
                stripes.insert(key, other);
                Err(Error::replan(format!("stripe {} is sent by another plan than {plan} by now", key.1)))
            }
            None => Ok(None),
        }
    }

    /// Stops whatever of a put is under way, without waiting for it.
    pub(crate) fn forget(&self, upload: UploadId) {
        let mut stripes = self.lock();
        let keys: Vec<_> = stripes.range((upload, 0)..=(upload, u64::MAX)).map(|(key, _)| *key).collect();
        for key in keys {
            if let Some(Underway::Sending(sending)) = stripes.remove(&key) {
                sending.settle.settle(Duration::ZERO);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Key, Underway>> {
        self.stripes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Begins a put, or for `explain` tells what its first stripe's plan would be.
pub(crate) async fn begin(shared: &Arc<Shared>, asked: v1::BeginPutRequest) -> Result<v1::BeginPutReply> {
    let name = validate::object(&asked.bucket, &asked.key)?;
    let (_, policy) = shared.meta.bucket(&name.bucket).await.map_err(|error| shared.meta_error(error))?;
    let spec = if asked.code.is_empty() { &policy.code } else { &asked.code };
    let Coding { code, layout } = validate::coding(spec, asked.block_len, asked.cell_len, Some(&policy))?;
    let (k, m) = (code.k() as u32, code.m() as u32);
    let new = NewUpload {
        name,
        code: code.spec(),
        layout,
        failure_domain: policy.failure_domain,
        ack: weft_meta::Ack { missing_max: policy.ack.missing_max.min(code.tolerance() as u32) },
        created_ms: shared.now_ms(),
        expires_ms: shared.lease_end_ms(),
    };
    // Whether there are nodes enough is said now, not after the client has read its input.
    let full = StripeLayout { layout, k, m, data_len: layout.block_len.saturating_mul(k.into()) };
    let stripe = match asked.size_hint {
        0 => full,
        size => StripeLayout { data_len: size.min(full.data_len), ..full },
    };
    let placed = choose_homes(shared, &new, &code, &stripe, &BTreeSet::new())?;
    let plan = if asked.explain { explain(shared, &code, &stripe, &placed.homes)? } else { Vec::new() };
    let upload = if asked.explain {
        UploadId(0)
    } else {
        shared.meta.begin_put(shared.epoch, new).await.map_err(|error| shared.meta_error(error))?.id
    };
    Ok(v1::BeginPutReply {
        upload: upload.0,
        code: code.spec(),
        block_len: layout.block_len,
        cell_len: layout.cell_len,
        k,
        m,
        warnings: placed.warnings,
        plan,
        lease_ms: u32::try_from(shared.config.upload_lease_ms).unwrap_or(u32::MAX),
    })
}

/// Allocates a stripe, opens and starts its plan, and gives the client its share.
pub(crate) async fn put_stripe(shared: &Arc<Shared>, asked: v1::PutStripeRequest) -> Result<v1::PutStripeReply> {
    let upload = touched(shared, UploadId(asked.upload)).await?;
    let place = |error: Error| error.object(&upload.new.name);
    let code = shared.code(&upload.new.code)?;
    let layout = StripeLayout { layout: upload.new.layout, k: code.k() as u32, m: code.m() as u32, data_len: asked.data_len };
    let most = layout.layout.block_len.saturating_mul(layout.k.into());
    if asked.data_len == 0 || asked.data_len > most {
        return Err(place(Error::invalid(format!(
            "a stripe of {} holds 1 to {most} bytes, not {}",
            code.spec(),
            asked.data_len
        ))));
    }
    let key = (upload.id, asked.number);
    let _turn = shared.puts.turn(key).await;
    if let Some(Underway::Sending(sending)) = shared.puts.lock().remove(&key) {
        sending.settle.settle(Duration::ZERO);
    }
    let mut avoid = BTreeSet::new();
    loop {
        match begin_stripe(shared, &upload, &code, &layout, asked.number, &avoid).await {
            Ok(Begun { plan, stripe, client, carries, running, settle }) => {
                let report = tokio::spawn(running.finish(|_, _| {}, None));
                shared.puts.lock().insert(key, Underway::Sending(Sending { plan, stripe: Box::new(stripe), settle, report }));
                // Who gave the put up meanwhile knew nothing of these tasks.
                if let Err(error) = shared.meta.upload(upload.id).await {
                    shared.puts.forget(upload.id);
                    return Err(place(shared.meta_error(error)));
                }
                let layout = postcard::to_allocvec(&layout).map_err(|error| Error::fatal(format!("a layout: {error}")))?;
                return Ok(v1::PutStripeReply { task: Some(client), layout, carries });
            }
            // Somebody could not be asked: the stripe goes to others, under another number.
            Err(error) => match (error.reaction, error.party) {
                (Reaction::Replan, Some(Party::Node(node))) if avoid.len() < shared.config.resumes_max as usize => {
                    tracing::warn!(object = %upload.new.name, stripe = asked.number, %error, "a stripe is placed anew");
                    avoid.insert(node);
                }
                _ => return Err(place(error)),
            },
        }
    }
}

/// The client has sent a stripe, as well as it could: checks the receipts, mends what is missing, ends the stripe.
pub(crate) async fn end_stripe(shared: &Arc<Shared>, asked: v1::EndStripeRequest) -> Result<()> {
    let key = (UploadId(asked.upload), asked.number);
    let _turn = shared.puts.turn(key).await;
    let sending = shared.puts.begin_end(key, PlanId(asked.plan))?;
    let Some(Sending { stripe, settle, report, .. }) = sending else { return ended_already(shared, key).await };
    let result = end_sent(shared, key.0, &stripe, settle, report, &asked).await;
    shared.puts.lock().remove(&key);
    result
}

/// Makes a put visible. It is no error to ask again after the answer was lost.
pub(crate) async fn commit(shared: &Arc<Shared>, asked: v1::CommitPutRequest) -> Result<v1::ObjectReply> {
    let id = UploadId(asked.upload);
    let (now_ms, not_before_ms) = (shared.now_ms(), shared.garbage_not_before_ms());
    let object = match shared.meta.commit_put(shared.epoch, id, asked.size, now_ms, not_before_ms).await {
        Ok(object) => {
            tracing::info!(object = %object.name, version = %object.version, size = object.size, code = %object.code, "put");
            object
        }
        Err(error @ MetaError::NotFound(_)) => {
            let committed = shared.meta.object_of(id).await.ok().filter(|object| object.size == asked.size);
            committed.ok_or_else(|| shared.meta_error(error))?
        }
        Err(error) => return Err(shared.meta_error(error)),
    };
    Ok(show::object(object))
}

/// Puts off the end of a put's lease.
pub(crate) async fn keep(shared: &Shared, id: UploadId) -> Result<()> {
    let extended = shared.meta.extend_upload(shared.epoch, id, shared.lease_end_ms()).await;
    extended.map_err(|error| shared.meta_error(error))
}

/// Gives up a put. It is no error if it was given up already.
pub(crate) async fn abort(shared: &Arc<Shared>, id: UploadId) -> Result<()> {
    // An agent keeps what a task is still writing, and takes no task later: it is only asked in vain meanwhile.
    let running_ms = if shared.puts.is_active(id) { shared.config.stall_ms.into() } else { 0 };
    let not_before_ms = shared.now_ms().saturating_add(running_ms);
    shared.puts.forget(id);
    let aborted = shared.meta.abort_put(shared.epoch, id, not_before_ms).await;
    // What was begun until now; what begins later finds no put.
    shared.puts.forget(id);
    match aborted {
        Ok(()) | Err(MetaError::NotFound(_)) => Ok(()),
        Err(error) => Err(shared.meta_error(error)),
    }
}

/// The put, with its lease put off.
async fn touched(shared: &Shared, id: UploadId) -> Result<UploadRecord> {
    keep(shared, id).await?;
    shared.meta.upload(id).await.map_err(|error| shared.meta_error(error))
}

/// A stripe whose tasks run.
struct Begun {
    stripe: StripeRecord,
    plan: PlanId,
    client: v1::ClientTask,
    carries: Vec<v1::CarriedBlock>,
    running: Running,
    settle: Settle,
}

async fn begin_stripe(
    shared: &Arc<Shared>,
    upload: &UploadRecord,
    code: &SharedCode,
    layout: &StripeLayout,
    number: u64,
    avoid: &BTreeSet<NodeId>,
) -> Result<Begun> {
    let placed = choose_homes(shared, &upload.new, code, layout, avoid)?;
    let new = NewStripe { upload: upload.id, number, layout: *layout, homes: placed.homes.clone() };
    let not_before_ms = shared.now_ms().saturating_add(shared.config.stall_ms.into());
    let stripe = shared.meta.allocate_stripe(shared.epoch, new, not_before_ms).await.map_err(|error| shared.meta_error(error))?;
    shared.members.add_blocks(&placed.homes, layout.block_len(0));
    let slice_len = jobs::usual_slice_positions(&layout.layout, shared.config.slice_len.0);
    let run = shared.run(Class::Foreground, 0, slice_len);
    let writer = shared.draw_client();
    let planned = jobs::write(code, &stripe, writer, run)?;
    let view = shared.members.view();
    let mut orders = BTreeMap::new();
    for (index, placed) in (0..=u8::MAX).zip(&stripe.blocks) {
        let block = BlockId { stripe: stripe.id, index, copy: 0, generation: placed.generation };
        let order = rebuild::store_order(shared, code, &upload.new.name, upload.id, &stripe, block, placed.home, &view)?;
        orders.insert(block, order);
    }
    let mut sealed: Sealed = seal::seal(shared, &planned, &stripe, &orders)?;
    let client = sealed.client.take().ok_or_else(|| Error::fatal("a put's plan has no part for the client"))?;
    supervise::open(shared, &sealed).await?;
    let (running, settle) = supervise::start(shared, sealed, OnFailure::GoOn).await;
    let running = running.all_started().await?;
    let carries = planned.carries(writer).into_iter();
    let carries = carries.map(|(link, index)| v1::CarriedBlock { link, index: index.into() }).collect();
    Ok(Begun { plan: planned.plan.id, stripe, client, carries, running, settle })
}

async fn end_sent(
    shared: &Arc<Shared>,
    id: UploadId,
    stripe: &StripeRecord,
    settle: Settle,
    report: JoinHandle<Report>,
    asked: &v1::EndStripeRequest,
) -> Result<()> {
    let upload = touched(shared, id).await?;
    let name = &upload.new.name;
    for error in asked.errors.iter().filter_map(|bytes| decode_error(bytes)) {
        tracing::warn!(object = %name, stripe = asked.number, %error, "a client could not send everything");
        if let Some(Party::Node(node)) = error.party {
            shared.members.suspect(node);
        }
    }
    let mut sent = sent_units(stripe, &asked.sent);
    // An agent may be busy with its disk for as long as a stall takes.
    settle.settle(Duration::from_millis(u64::from(shared.config.stall_ms).saturating_add(shared.config.failure_grace_ms)));
    let report = report.await.map_err(|error| Error::fatal(format!("a put was not watched over: {error}")).object(name))?;
    let code = shared.code(&upload.new.code)?;
    let received = received(shared, stripe, &sent, &report);
    let missing: Vec<u8> = received.iter().filter(|(_, why)| why.is_some()).map(|(index, _)| *index).collect();
    let mut blocks: Vec<(u32, Home, BlockState)> =
        stripe.blocks.iter().map(|placed| (placed.generation, placed.home, BlockState::Ok)).collect();
    // What may be missing for now must be known by its checksums, or nobody could ever say whether it was rebuilt right.
    let unknown = missing.iter().any(|index| sent.get(usize::from(*index)).is_none_or(Option::is_none));
    if unknown || missing.len() > upload.new.ack.missing_max as usize {
        let reasons: Vec<String> = received.values().flatten().cloned().collect();
        tracing::warn!(object = %name, stripe = asked.number, ?missing, ?reasons, "blocks of a put are rebuilt elsewhere");
        // Then it is sent again, to others. So it is if a block's checksums are not known: nobody could say whether it was
        // rebuilt right.
        if unknown || missing.len() > code.tolerance() {
            let message = format!("too few blocks of stripe {} were stored: {}", asked.number, reasons.join("; "));
            suspect_failed(shared, &report);
            return Err(Error::replan(message).object(name));
        }
        let rebuilt = rebuild_missing(shared, &upload, &code, stripe, &missing, &sent, &report).await;
        // Why it had to be rebuilt is what a person can mend.
        let explain = |error: Error| Error { message: format!("{}; {}", reasons.join("; "), error.message), ..error };
        for rebuilt in rebuilt.map_err(explain)? {
            let index = usize::from(rebuilt.block.index);
            if let (Some(entry), Some(units)) = (blocks.get_mut(index), sent.get_mut(index)) {
                *entry = (rebuilt.block.generation, rebuilt.home, BlockState::Ok);
                *units = Some(rebuilt.units);
            }
        }
    } else {
        for index in &missing {
            if let Some(entry) = blocks.get_mut(usize::from(*index)) {
                entry.2 = BlockState::Missing;
            }
        }
    }
    let garbage_not_before_ms = shared.now_ms().saturating_add(shared.config.stall_ms.into());
    let units = whole(stripe, sent).map_err(|error| error.object(name))?;
    let end = EndStripe { upload: id, stripe: stripe.id, blocks, units, garbage_not_before_ms };
    shared.meta.end_stripe(shared.epoch, end).await.map(drop).map_err(|error| shared.meta_error(error).object(name))
}

async fn rebuild_missing(
    shared: &Arc<Shared>,
    upload: &UploadRecord,
    code: &SharedCode,
    stripe: &StripeRecord,
    missing: &[u8],
    sent: &[Option<Vec<u32>>],
    report: &Report,
) -> Result<Vec<RebuiltBlock>> {
    // The blocks that were stored are as good as those of a visible stripe.
    let mut readable = stripe.clone();
    for (index, placed) in (0..=u8::MAX).zip(&mut readable.blocks) {
        placed.state = if missing.contains(&index) { BlockState::Missing } else { BlockState::Ok };
    }
    let lost = missing.iter().map(|index| Lost { index: *index, units: sent.get(usize::from(*index)).cloned().flatten() });
    let failed = report.nodes.iter().filter(|(_, node)| node.end != Some(End::Done)).map(|(id, _)| *id);
    let mut rebuild = Rebuild {
        shared,
        code,
        object: &upload.new.name,
        version: upload.id,
        stripe: readable,
        lost: lost.collect(),
        how: &How::usual(shared),
        helpers: None,
        to: Destination::Anywhere,
        failure_domain: upload.new.failure_domain,
        upload: Some(upload.id),
        avoid: failed.collect(),
    };
    Ok(rebuild.run(|_| {}).await?.blocks)
}

/// Nodes that did not end their share are avoided for a while.
fn suspect_failed(shared: &Shared, report: &Report) {
    let broken = |end: &Option<End>| matches!(end, Some(End::Broken(_) | End::GivenUp));
    for (node, _) in report.nodes.iter().filter(|(_, report)| broken(&report.end)) {
        shared.members.suspect(*node);
    }
}

/// By block: nothing if it is durable with the checksums that the client sent, else why not.
fn received(shared: &Shared, stripe: &StripeRecord, sent: &[Option<Vec<u32>>], report: &Report) -> BTreeMap<u8, Option<String>> {
    let verdict = |index: u8, placed: &PlacedBlock| {
        let block = BlockId { stripe: stripe.id, index, copy: 0, generation: placed.generation };
        let node = || shared.members.name(placed.home.node);
        match report.nodes.get(&placed.home.node).and_then(|node| node.stored.get(&block)) {
            None => {
                let told = report.nodes.get(&placed.home.node).and_then(|node| node.first_error());
                let why = told.map_or_else(|| "did not store it in time".to_owned(), |error| error.message.clone());
                Some(format!("block {index}: {} {why}", node()))
            }
            Some(stored) if stored.len != stripe.layout.block_len(index.into()) => {
                Some(format!("block {index}: {} stored {} bytes of it", node(), stored.len))
            }
            Some(stored) => match sent.get(usize::from(index)).and_then(Option::as_ref) {
                Some(units) if *units == stored.units => None,
                Some(_) => {
                    tracing::error!(%block, node = %node(), "what was stored is not what was sent");
                    Some(format!("block {index}: {} stored something else than was sent", node()))
                }
                None => Some(format!("block {index}: the client did not send all of it")),
            },
        }
    };
    (0..=u8::MAX).zip(&stripe.blocks).map(|(index, placed)| (index, verdict(index, placed))).collect()
}

/// The client's checksums of the blocks that it sent whole, as many as each block's length asks for.
fn sent_units(stripe: &StripeRecord, sent: &[v1::BlockUnits]) -> Vec<Option<Vec<u32>>> {
    let mut units: Vec<Option<Vec<u32>>> = vec![None; stripe.blocks.len()];
    for block in sent {
        let fits = block.units.len() as u64 == stripe.layout.checksum_units(block.index);
        if let Some(slot) = units.get_mut(block.index as usize).filter(|_| fits) {
            *slot = Some(block.units.clone());
        }
    }
    units
}

/// The checksums of all blocks.
fn whole(stripe: &StripeRecord, units: Vec<Option<Vec<u32>>>) -> Result<Vec<Vec<u32>>> {
    let count = units.iter().flatten().count();
    let units: Option<Vec<Vec<u32>>> = units.into_iter().collect();
    units.ok_or_else(|| {
        let n = stripe.layout.n();
        Error::unavailable(format!("the client told the checksums of {count} of {n} blocks of stripe {}", stripe.number))
    })
}

/// An end that is told again after its answer was lost is no error; a stripe that went down with an earlier coordinator is begun
/// anew.
async fn ended_already(shared: &Shared, (upload, number): (UploadId, u64)) -> Result<()> {
    match shared.meta.upload_stripe(upload, number).await {
        Ok(stripe) if stripe.ended => Ok(()),
        Ok(_) => Err(Error::replan(format!("stripe {number} of put {upload} is not under way any more: send it again"))),
        Err(error) => Err(shared.meta_error(error)),
    }
}

fn choose_homes(
    shared: &Shared,
    new: &NewUpload,
    code: &SharedCode,
    stripe: &StripeLayout,
    avoid: &BTreeSet<NodeId>,
) -> Result<placement::Placed> {
    let view: View = shared.members.view();
    let ask = Ask {
        code: &new.code,
        count: code.n(),
        tolerance: code.tolerance(),
        failure_domain: new.failure_domain,
        held: &[],
        avoid,
        named: false,
        load: &placement::NOTHING,
        bytes: stripe.block_len(0).saturating_add(shared.config.disk_reserve.0),
    };
    let placed = placement::place(&view, &ask, &mut *shared.rng());
    placed.map_err(|error| shared.lacking_nodes(error).object(&new.name))
}

fn explain(shared: &Shared, code: &SharedCode, layout: &StripeLayout, homes: &[Home]) -> Result<Vec<u8>> {
    let place = |home: &Home| PlacedBlock { generation: 1, generation_high_water: 1, home: *home, state: BlockState::Ok };
    let stripe = StripeRecord {
        id: StripeId(0),
        owner: Owner::Upload(UploadId(0)),
        number: 0,
        ended: false,
        seq: 0,
        layout: *layout,
        blocks: homes.iter().map(place).collect(),
        units: Vec::new(),
        corrupt: BTreeMap::new(),
    };
    let slice_len = jobs::usual_slice_positions(&layout.layout, shared.config.slice_len.0);
    let run = shared.run(Class::Foreground, 0, slice_len);
    jobs::write(code, &stripe, shared.draw_client(), run)?.json()
}
