//! Puts: begin, stripe after stripe, commit.
//!
//! A stripe's blocks are allocated before any byte moves. Then the client sends its data by the plan of a write scheme,
//! and computes the checksums of all blocks, including those that other nodes compute. [`end`] ends a stripe. The
//! commit makes all stripes visible at once.

mod end;
mod late_blocks;
mod late_plans;
mod stripe;
pub(crate) mod under_way;

use crate::{
    compute::compute_among,
    delegations::{Delegation, Who},
    options,
    shared::Shared,
    show,
    validate::{self, Coding},
};
use std::{
    collections::BTreeSet,
    iter,
    sync::{Arc, PoisonError},
    time::Duration,
};
use stripe::{begin_stripe, count_blocks, explain, new_stripes, with_site};
use under_way::{Key, Sending, Upload};
use weft_codes::SharedCode;
use weft_control::{
    placement::Placed,
    put::{
        self, Site,
        upload::{self, Known, Lesson},
    },
};
use weft_meta::{CommitPut, Leftovers, MetaError, NewUpload, ObjectRecord, UploadRecord};
use weft_proto::{rpc::Caller, v1};
use weft_types::{Error, NodeId, PlanId, PutKey, Result, StripeLayout, UploadId};

/// A node that had waited for another for this fraction of a stall when a plan ended did not fail itself.
const WAIT_SHARE: u32 = 4;

/// How many times busy agents are tried when a first stripe is started with its put. If it fails, the client requests the stripe like any
/// other.
const START_ATTEMPTS: u32 = 2;

/// The longest wait for the answer to a writer's complaint.
const COMPLAINT_LOOK: Duration = Duration::from_millis(100);

/// Begins a put, or for `explain` returns the first stripe's plan.
pub(crate) async fn begin(shared: &Arc<Shared>, asked: v1::BeginPutRequest, caller: &Caller) -> Result<v1::BeginPutReply> {
    let name = validate::object(&asked.bucket, &asked.key)?;
    let options = options::of_put(shared, asked.options.as_ref(), caller, None)?;
    let (_, policy) = shared.meta.bucket(&name.bucket).await.map_err(|error| shared.meta_error(error))?;
    let spec = if asked.code.is_empty() { &policy.code } else { &asked.code };
    let Coding { code, layout } = validate::coding(spec, asked.block_len, asked.cell_len, Some(&policy))?;
    let (k, m) = (code.k() as u32, code.m() as u32);
    let new = NewUpload {
        name,
        code: code.spec(),
        layout,
        failure_domain: policy.failure_domain,
        ack: validate::ack_of_put(&asked.ack, &code, &policy)?,
        replicas: if asked.replicas == 0 { policy.replicas } else { validate::replicas(asked.replicas)? },
        created_ms: shared.now_ms(),
        expires_ms: shared.lease_end_ms(),
        replaces: None,
        key: shared.draw_put_key(),
    };
    // A lack of nodes is reported now, and not after the client has read its input.
    let full = layout.full_stripe(k, m);
    let stripe = upload::first_stripe(full, asked.size_hint);
    let request = request(shared, UploadId(0), &new, &code);
    let mut put = Upload::new((asked.size_hint > 0).then_some(asked.size_hint));
    let following = if asked.explain { Vec::new() } else { put.ahead().following(0, stripe, full) };
    let layouts: Vec<StripeLayout> = iter::once(stripe).chain(following).collect();
    let place = |avoid: &BTreeSet<NodeId>| {
        let homes_of = |site: &mut Site<'_>| request.homes_of(&layouts, &options, avoid, site);
        compute_among(shared.members.count(), || with_site(shared, &options, homes_of))
    };
    let placed = place(&BTreeSet::new())?;
    let first = placed.first().cloned().unwrap_or_default();
    let (mut plan, mut id, mut put_key, mut started) = (Vec::new(), UploadId(0), PutKey::NONE, None);
    if asked.explain {
        plan = explain(shared, &code, &stripe, &first.homes, &options)?;
    } else {
        // Concurrent puts must see each other: otherwise the first would take all links to be free.
        let announced = shared.in_flight.announce(options::announced(&options, shared, &first.homes, stripe.block_len(0)));
        put_key = new.key;
        id = begin_with(shared, new, put, &layouts, placed, place).await?;
        shared.puts.announced.lock().unwrap_or_else(PoisonError::into_inner).insert(id, announced);
        if upload::starts_at_once(asked.start, asked.size_hint, &stripe) {
            let (upload, data_len, options) = (id.0, stripe.data_len, asked.options);
            let asked = v1::PutStripeRequest { upload, number: 0, data_len, options, put_key: put_key.to_bytes() };
            let who = Who { caller: caller.clone(), delegation: None };
            // The client gets the reason when it requests the stripe.
            started = put_stripe(shared, asked, &who, START_ATTEMPTS)
                .await
                .inspect_err(|error| tracing::debug!(%error, "cannot start the first stripe with its put"))
                .ok();
        }
    }
    Ok(v1::BeginPutReply {
        upload: id.0,
        code: code.spec(),
        block_len: layout.block_len,
        cell_len: layout.cell_len,
        k,
        m,
        warnings: first.warnings,
        plan,
        first: started,
        lease_ms: u32::try_from(shared.config.upload_lease_ms).unwrap_or(u32::MAX),
        put_key: put_key.to_bytes(),
    })
}

/// Begins a put in the metadata, with its first stripes. If a node takes no block any more, `place` chooses others.
async fn begin_with(
    shared: &Shared,
    new: NewUpload,
    mut put: Upload,
    layouts: &[StripeLayout],
    mut placed: Vec<Placed>,
    place: impl Fn(&BTreeSet<NodeId>) -> Result<Vec<Placed>>,
) -> Result<UploadId> {
    let mut closed = BTreeSet::new();
    let (upload, stripes) = loop {
        match shared.meta.begin_put(shared.epoch, new.clone(), new_stripes(0, layouts, &placed)).await {
            Ok(begun) => break begun,
            Err(MetaError::Closed { node, .. }) if closed.insert(node) && closed.len() <= shared.config.resumes_max as usize => {
                placed = place(&closed)?;
            }
            Err(error) => return Err(shared.meta_error(error)),
        }
    };
    count_blocks(shared, &stripes);
    put.ahead().allocated(stripes);
    shared.puts.begun(upload.id, put);
    Ok(upload.id)
}

/// Allocates a stripe, opens and starts its plan, and returns the client's task. Busy agents are tried `attempts` times.
pub(crate) async fn put_stripe(
    shared: &Arc<Shared>,
    asked: v1::PutStripeRequest,
    who: &Who,
    attempts: u32,
) -> Result<v1::PutStripeReply> {
    let upload = touched(shared, UploadId(asked.upload)).await?;
    let place = |error: Error| error.object(&upload.new.name);
    let options = options::of_put(shared, asked.options.as_ref(), &who.caller, who.delegation.as_ref());
    let mut options = options.map_err(place)?;
    if options.is_left_open() && shared.puts.learnt(upload.id).is_simplest() {
        options = options.by_the_simplest();
    }
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
    if asked.number > i64::MAX as u64 / most {
        return Err(place(Error::invalid(format!("the stripe number {} is too large for any object", asked.number))));
    }
    let key = (upload.id, asked.number);
    let _turn = shared.puts.turn(key).await;
    shared.puts.leave(key);
    let begun = begin_stripe(shared, &upload, &code, layout, asked.number, options, attempts).await;
    if begun.is_err() {
        forget_if_gone(shared, upload.id).await;
    }
    let (sending, client) = begun.map_err(place)?;
    keep_sending(shared, key, sending, None).await.map_err(place)?;
    let layout = postcard::to_allocvec(&layout).map_err(|error| Error::fatal(format!("cannot encode a layout: {error}")))?;
    Ok(v1::PutStripeReply { task: Some(client), layout })
}

/// The client has sent a stripe as far as it could. Checks the receipts, rebuilds missing blocks, and ends the stripe,
/// or returns what must be sent again.
pub(crate) async fn end_stripe(shared: &Arc<Shared>, asked: v1::EndStripeRequest) -> Result<v1::EndStripeReply> {
    let key = (UploadId(asked.upload), asked.number);
    let _turn = shared.puts.turn(key).await;
    let sending = match shared.puts.begin_end(key, PlanId(asked.plan))? {
        Known::Now(sending) => sending,
        Known::Again(reply) => return Ok(*reply),
        Known::Nothing => return end::ended_already(shared, key, asked.commit_size).await,
    };
    let ended = end::end(shared, key, sending, &asked).await;
    shared.puts.leave(key);
    // The client must not repeat the call: the stripe's state is used up.
    let end::PlanEnd { again, traffic, stages, object } = ended.map_err(put::begin::not_again)?;
    let mut reply = v1::EndStripeReply { again: None, traffic: Some(traffic.into()), stages, object: object.map(show::object) };
    if let Some((sending, task)) = again {
        reply.again = Some(task);
        let answer = (PlanId(asked.plan), Box::new(reply.clone()));
        keep_sending(shared, key, sending, Some(answer)).await?;
    }
    Ok(reply)
}

/// Fails for calls without the put's key, and for calls without a delegation on a conversion's put.
pub(crate) async fn require_writer(shared: &Shared, id: u64, shown: &[u8], delegation: Option<&Delegation>) -> Result<()> {
    match shared.meta.upload(UploadId(id)).await {
        Ok(upload) if upload.new.replaces.is_some() && delegation.is_none() => {
            Err(Error::invalid("only the agent that the coordinator chose may write a conversion").object(&upload.new.name))
        }
        Ok(upload) if !upload.new.key.admits(PutKey::from_bytes(shown)) => {
            let message = format!("this is not the key of put {id}: only the writer that began the put may continue it");
            Err(Error::invalid(message).object(&upload.new.name))
        }
        // The call itself reports a put that does not exist.
        Ok(_) | Err(MetaError::NotFound(_)) => Ok(()),
        Err(error) => Err(shared.meta_error(error)),
    }
}

/// Makes a put visible, if the blocks that are still missing can be rebuilt from the others. The call may be repeated
/// after its answer was lost.
pub(crate) async fn commit(shared: &Arc<Shared>, asked: v1::CommitPutRequest) -> Result<v1::ObjectReply> {
    let id = UploadId(asked.upload);
    let upload = match shared.meta.upload(id).await {
        Ok(upload) => upload,
        Err(error @ MetaError::NotFound(_)) => return committed_already(shared, &asked, error).await,
        Err(error) => return Err(shared.meta_error(error)),
    };
    late_blocks::require_readable(shared, &upload).await?;
    let object = match shared.meta.commit_put(shared.epoch, id, commit_of(shared, id, asked.size)).await {
        Ok(object) => object,
        Err(error @ MetaError::NotFound(_)) => return committed_already(shared, &asked, error).await,
        Err(error) => return Err(shared.meta_error(error)),
    };
    committed(shared, &object);
    match upload.new.ack.missing_max {
        0 => Ok(show::object(object)),
        _ => told(shared, object).await,
    }
}

/// The parameters of a put's commit, as an object of this size.
pub(crate) fn commit_of(shared: &Shared, upload: UploadId, size: u64) -> CommitPut {
    let (unopened, garbage_not_before_ms) = (shared.puts.take_unopened(upload), shared.garbage_not_before_ms());
    CommitPut { size, now_ms: shared.now_ms(), leftovers: Leftovers { unopened, garbage_not_before_ms } }
}

/// Cleans up after the commit of a put.
fn committed(shared: &Shared, object: &ObjectRecord) {
    shared.puts.forget(object.version);
    tracing::info!(object = %object.name, version = %object.version, size = object.size, code = %object.code, "put");
}

/// The object of a put that was committed before; it may have been converted since.
async fn committed_already(shared: &Shared, asked: &v1::CommitPutRequest, error: MetaError) -> Result<v1::ObjectReply> {
    let object = shared.meta.object_written_by(UploadId(asked.upload)).await.map_err(|error| shared.meta_error(error))?;
    // It may have been extended since.
    match object.filter(|object| object.size >= asked.size) {
        Some(object) => told(shared, object).await,
        None => Err(shared.meta_error(error)),
    }
}

/// The answer to a client whose put was committed.
async fn told(shared: &Shared, object: ObjectRecord) -> Result<v1::ObjectReply> {
    let name = object.name.clone();
    show::put(shared, object).await.map_err(|error| upload::stored_all_the_same(&name, &error))
}

/// Extends a put's lease, and reports whether a plan's receivers still take data.
pub(crate) async fn keep(shared: &Shared, asked: &v1::KeepPutRequest) -> Result<v1::KeepPutReply> {
    let id = UploadId(asked.upload);
    touched(shared, id).await?;
    if asked.plan == 0 {
        return Ok(v1::KeepPutReply::default());
    }
    let (over, plan) = shared.puts.is_over((id, asked.number), PlanId(asked.plan));
    let Some(plan) = plan else { return Ok(v1::KeepPutReply { over, gone: Vec::new() }) };
    let mut so_far = plan.so_far();
    if !asked.waits_for.is_empty() {
        so_far.mark_unchanged();
        plan.complain(asked.waits_for.iter().copied().map(NodeId).collect());
        // The consequences of a complaint are reported now or in the next answer.
        let _not_yet = tokio::time::timeout(COMPLAINT_LOOK, so_far.changed()).await;
    }
    let gone = so_far.borrow().failed_nodes().map(|node| node.0).collect();
    Ok(v1::KeepPutReply { over, gone })
}

/// Aborts a put. Succeeds if it was aborted already.
pub(crate) async fn abort(shared: &Arc<Shared>, id: UploadId) -> Result<()> {
    // An agent does not remove a block that a task is writing, so removing it has no effect before the task has ended.
    let running_ms = if shared.puts.is_active(id) { shared.config.stall_ms.into() } else { 0 };
    let not_before_ms = shared.now_ms().saturating_add(running_ms);
    let leftovers = Leftovers { unopened: shared.puts.take_unopened(id), garbage_not_before_ms: not_before_ms };
    match shared.meta.abort_put(shared.epoch, id, leftovers).await {
        Ok(()) => {}
        Err(MetaError::NotFound(_)) => {
            let committed = shared.meta.object_written_by(id).await.map_err(|error| shared.meta_error(error))?;
            // Blocks may still arrive after the commit.
            if committed.is_some() {
                return Ok(());
            }
        }
        Err(error) => return Err(shared.meta_error(error)),
    }
    // Stops all plans that have begun; later ones find no put.
    shared.puts.late_blocks.stop(id);
    shared.puts.forget(id);
    Ok(())
}

/// Looks up the put of a call, and renews its lease if that is due.
async fn touched(shared: &Shared, id: UploadId) -> Result<UploadRecord> {
    let upload = shared.meta.upload(id).await.map_err(|error| shared.meta_error(error))?;
    if upload::is_lease_due(upload.new.expires_ms, shared.now_ms(), shared.config.upload_lease_ms) {
        let extended = shared.meta.extend_upload(shared.epoch, id, shared.lease_end_ms()).await;
        extended.map_err(|error| shared.meta_error(error))?;
    }
    Ok(upload)
}

/// Records for a put what a failure has shown.
async fn learn_of(shared: &Shared, upload: UploadId, lesson: Lesson) {
    shared.puts.with(upload, |put| put.learn(lesson));
    forget_if_gone(shared, upload).await;
}

/// An abort at the same time may have removed the put's state before it was set: removes it again.
async fn forget_if_gone(shared: &Shared, upload: UploadId) {
    if let Err(MetaError::NotFound(_)) = shared.meta.upload(upload).await {
        shared.puts.forget(upload);
    }
}

/// Records a stripe that is being sent, unless its put was aborted.
async fn keep_sending(
    shared: &Shared,
    key: Key,
    sending: Sending,
    answer: Option<(PlanId, Box<v1::EndStripeReply>)>,
) -> Result<()> {
    if let Some(before) = shared.puts.with(key.0, |put| put.sends(key.1, sending.plan, sending, answer)) {
        before.stop();
    }
    // An abort at the same time did not see these tasks.
    match shared.meta.upload(key.0).await {
        Ok(_) => Ok(()),
        Err(MetaError::NotFound(what)) => {
            shared.puts.forget(key.0);
            Err(shared.meta_error(MetaError::NotFound(what)))
        }
        // The client repeats the call.
        Err(error) => {
            shared.puts.leave(key);
            Err(shared.meta_error(error))
        }
    }
}

/// Switches a put to the simplest scheme.
async fn simplest(shared: &Shared, upload: &UploadRecord, stripe: u64, error: &Error) {
    tracing::info!(object = %upload.new.name, stripe, %error, "the writer now sends every block itself");
    learn_of(shared, upload.id, Lesson::Simplest).await;
}

/// What all stripes of a put have in common.
fn request(shared: &Shared, upload: UploadId, new: &NewUpload, code: &SharedCode) -> put::Request {
    put::Request {
        upload,
        code: Arc::clone(code),
        object: new.name.clone(),
        failure_domain: new.failure_domain,
        replicas: new.replicas,
        missing_max: new.ack.missing_max,
        kept_free: new.replaces.map(|_| shared.kept_free()),
        repair: options::usual_repair(shared),
        resumes_max: shared.config.resumes_max,
        disk_reserve_bytes: shared.config.disk_reserve.0,
        rebuild_reserve: shared.config.rebuild_reserve,
        long_wait_ms: shared.config.stall_ms / WAIT_SHARE,
    }
}
