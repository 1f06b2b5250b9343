//! Garbage collection: puts with expired leases, dropped allocations, blocks of removed objects.
//!
//! A block is removed from its node only if it is garbage in the metadata, and its garbage record is deleted only after the node has
//! reported the block as gone. Garbage on a node that is down is removed when the node returns.

use crate::{blocks, puts, shared::Shared, supervise, updates::settle};
use futures::future::join_all;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};
use weft_control::{
    Time,
    garbage::{self, Key, Removals},
    put::upload,
};
use weft_meta::GarbageBlock;
use weft_proto::{rpc, v1};
use weft_types::{BlockId, Error, GarbageReason, NodeId, Result, StripeId, StripeRecord};

/// The most puts that one sweep aborts.
const UPLOADS_PER_SWEEP: u32 = 1_000;
/// The most blocks that one call removes, so that it finishes within its deadline.
const BLOCKS_PER_CALL: usize = 64;
/// The most blocks of one node in one sweep; the rest waits for the next sweep.
const BLOCKS_PER_SWEEP: u32 = 16_384;
/// How long one sweep asks one node, for intended and for unexpected garbage each: a slow node does not delay the others for longer than
/// this and its last call. A node of usual speed removes thousands of blocks in this time.
const NODE_TIME_MAX: Duration = Duration::from_secs(20);

/// Identifies a node's registration.
type Registration = [u8; 8];

/// The blocks that a node was asked to remove and still has.
#[derive(Default)]
struct Kept {
    blocks: usize,
    /// Those that wait for their disk's quota.
    waiting: usize,
    /// The node's reason for the first of them.
    why: String,
    /// Whether a whole page of the list is still needed.
    is_needed: bool,
    /// Where the list of each reason ended, or was left.
    listed: BTreeMap<GarbageReason, Option<Key>>,
}

/// Sweeps for as long as it runs.
pub(crate) async fn run(shared: Arc<Shared>) {
    let mut removals = Removals::default();
    let mut interval = tokio::time::interval(Duration::from_millis(shared.config.sweep_interval_ms));
    interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        interval.tick().await;
        if let Err(error) = sweep(&shared, &mut removals).await {
            tracing::warn!(%error, "a sweep did not finish");
        }
    }
}

async fn sweep(shared: &Arc<Shared>, removals: &mut Removals<Registration>) -> Result<()> {
    shared.reads.forget_ended();
    give_up_puts(shared).await?;
    let now_ms = shared.now_ms();
    let given_up = shared.meta.expire_repairs(shared.epoch, now_ms).await.map_err(|error| shared.meta_error(error))?;
    if given_up > 0 {
        tracing::info!(given_up, "released expired allocations of repairs");
    }
    for meant in [true, false] {
        remove_all_garbage(shared, removals, meant, now_ms).await;
    }
    let counts = shared.meta.blocks_per_disk().await.map_err(|error| shared.meta_error(error))?;
    shared.members.set_blocks(&counts);
    Ok(())
}

async fn give_up_puts(shared: &Arc<Shared>) -> Result<()> {
    if !upload::leases_end(shared.started.elapsed(), shared.config.upload_lease_ms, shared.epoch) {
        return Ok(());
    }
    let expired = shared.meta.expired_uploads(shared.now_ms(), UPLOADS_PER_SWEEP).await;
    for upload in expired.map_err(|error| shared.meta_error(error))? {
        if shared.puts.is_active(upload.id) {
            let extended = shared.meta.extend_upload(shared.epoch, upload.id, shared.lease_end_ms()).await;
            extended.map_err(|error| shared.meta_error(error))?;
            continue;
        }
        tracing::info!(object = %upload.new.name, upload = %upload.id, "aborting a put whose lease has expired");
        puts::abort(shared, upload.id).await?;
    }
    Ok(())
}

/// Asks all nodes to remove intended or unexpected garbage: agents limit the two separately.
async fn remove_all_garbage(shared: &Shared, removals: &mut Removals<Registration>, meant: bool, now_ms: u64) {
    let now = shared.started.now();
    let up = shared.members.view().nodes.into_values().filter(|node| node.up).map(|node| node.id);
    let registered = up.filter_map(|node| Some((node, shared.members.session(node)?.link_key.id())));
    let nodes: Vec<(NodeId, Registration)> = registered.filter(|(node, of)| removals.is_due(*node, meant, of, now)).collect();
    let after = &*removals;
    let asking = nodes.iter().map(async |(node, _)| {
        let mut kept = Kept::default();
        let asked = remove_garbage(shared, *node, meant, after, now_ms, &mut kept).await;
        (kept, asked)
    });
    let all_kept = join_all(asking).await;
    for ((node, registration), (kept, asked)) in nodes.into_iter().zip(all_kept) {
        kept.listed.iter().for_each(|(reason, last)| removals.listed(node, *reason, *last));
        if kept.waiting > 0 || kept.is_needed {
            removals.waits(node, meant, registration, now);
        }
        match asked {
            Ok(()) if kept.blocks == 0 => {}
            asked if removals.tells(node, meant, now) => tell(&shared.members.name(node), meant, asked.map(|()| kept)),
            _ => {}
        }
    }
}

fn tell(node: &str, meant: bool, kept: Result<Kept>) {
    match kept {
        Ok(Kept { blocks, waiting, why, .. }) if meant && blocks == waiting => {
            tracing::info!(node, blocks, why, "garbage waits for the hourly limit of its disk");
        }
        Ok(Kept { blocks, why, .. }) => tracing::warn!(node, blocks, why, "cannot remove garbage"),
        Err(error) => tracing::warn!(node, %error, "cannot remove garbage"),
    }
}

/// Deletes the garbage records of the blocks that the node has removed. Blocks that it keeps, for example on a failed disk, stay garbage.
/// If they fill a whole sweep, or its time, the next sweep continues after them.
async fn remove_garbage(
    shared: &Shared,
    node: NodeId,
    meant: bool,
    removals: &Removals<Registration>,
    now_ms: u64,
    kept: &mut Kept,
) -> Result<()> {
    let reasons: Vec<GarbageReason> = GarbageReason::ALL.into_iter().filter(|reason| reason.is_meant() == meant).collect();
    let ends = shared.started.now() + NODE_TIME_MAX;
    for (number, reason) in reasons.iter().enumerate() {
        // The reasons share the time that is left, so that much garbage of one reason does not delay that of the next.
        let now = shared.started.now();
        let ends = now + ends.since(now) / (reasons.len() - number) as u32;
        let garbage = shared.meta.garbage(node, *reason, now_ms, removals.after(node, *reason), BLOCKS_PER_SWEEP).await;
        let garbage = garbage.map_err(|error| shared.meta_error(error))?;
        let (last, more) = (garbage.items.last().map(|last| (last.not_before_ms, last.block)), garbage.more);
        let is_repaired = *reason == GarbageReason::Repaired;
        let items = if is_repaired { unneeded(shared, node, garbage.items, now_ms).await? } else { garbage.items };
        kept.is_needed |= items.is_empty() && more;
        if remove_list(shared, node, *reason, &items, ends, kept).await? {
            kept.listed.insert(*reason, garbage::after_page(last, more));
        }
    }
    Ok(())
}

/// Leaves out blocks that are missing since they were left out of updates in place: their node keeps what is right when they are rebuilt there. It
/// needs room for both generations; without that, or after a while, the old one is removed.
async fn unneeded(shared: &Shared, node: NodeId, garbage: Vec<GarbageBlock>, now_ms: u64) -> Result<Vec<GarbageBlock>> {
    let view = shared.members.view();
    let registered_ms = shared.members.session(node).map_or(0, |session| session.registered_ms);
    let waits = |garbage: &GarbageBlock| garbage::waits_for_rebuild(garbage.not_before_ms, registered_ms, now_ms);
    let has_room = |bytes: u64| {
        let needed = bytes.saturating_add(shared.config.disk_reserve.0);
        view.node(node).is_some_and(|node| node.disks.iter().any(|disk| disk.takes_blocks() && disk.free_bytes >= needed))
    };
    let mut unneeded = Vec::with_capacity(garbage.len());
    for some in garbage.chunks(BLOCKS_PER_CALL) {
        let blocks: Vec<BlockId> = some.iter().filter(|garbage| waits(garbage)).map(|garbage| garbage.block).collect();
        if blocks.is_empty() {
            unneeded.extend_from_slice(some);
            continue;
        }
        // Of an open stripe, it is known when it is settled. It may be by the time when it is looked up.
        let open: BTreeSet<StripeId> =
            blocks.iter().map(|block| block.stripe).filter(|stripe| settle::require(shared, *stripe).is_err()).collect();
        let stripes = blocks::stripes_of(shared, &blocks).await?;
        let is_needed = |garbage: &GarbageBlock| {
            let block = garbage.block;
            let is_known = |stripe: &StripeRecord| stripe.kept.contains_key(&block.index) || open.contains(&block.stripe);
            let may_keep = |stripe: &StripeRecord| is_known(stripe) && stripe.may_keep(block, node);
            let is_kept = |stripe: &StripeRecord| may_keep(stripe) && has_room(stripe.layout.block_len(0));
            waits(garbage) && stripes.get(&block.stripe).is_some_and(is_kept)
        };
        unneeded.extend(some.iter().copied().filter(|garbage| !is_needed(garbage)));
    }
    Ok(unneeded)
}

/// Removes garbage until `ends`, but at least the blocks of one call. Returns whether the node was asked for all.
async fn remove_list(
    shared: &Shared,
    node: NodeId,
    reason: GarbageReason,
    garbage: &[GarbageBlock],
    ends: Time,
    kept: &mut Kept,
) -> Result<bool> {
    let mut left = garbage.len();
    for garbage in garbage.chunks(BLOCKS_PER_CALL) {
        let asked: Vec<BlockId> = garbage.iter().map(|garbage| garbage.block).collect();
        let reply = remove(shared, node, &asked, reason).await?;
        let gone = reply.gone.iter().filter_map(|id| postcard::from_bytes::<BlockId>(id).ok());
        let gone: Vec<BlockId> = gone.filter(|id| asked.contains(id)).collect();
        kept.blocks += asked.len().saturating_sub(gone.len());
        kept.waiting += reply.waiting as usize;
        if !gone.is_empty() {
            shared.meta.forget_garbage(shared.epoch, node, gone).await.map_err(|error| shared.meta_error(error))?;
        }
        if kept.why.is_empty() {
            kept.why = reply.kept;
        }
        kept.listed.insert(reason, garbage.last().map(|last| (last.not_before_ms, last.block)));
        left -= garbage.len();
        if ends <= shared.started.now() {
            break;
        }
    }
    Ok(left == 0)
}

async fn remove(shared: &Shared, node: NodeId, blocks: &[BlockId], reason: GarbageReason) -> Result<v1::RemoveReply> {
    let Some(session) = shared.members.session(node) else { return Err(Error::retry("it went down")) };
    let encoded = blocks.iter().map(postcard::to_allocvec).collect::<Result<Vec<_>, _>>();
    let blocks = encoded.map_err(|error| Error::fatal(format!("cannot encode a block's id: {error}")))?;
    let cluster = shared.meta.cluster().await.map_err(|error| shared.meta_error(error))?;
    let request = v1::RemoveRequest {
        epoch: shared.epoch.0,
        incarnation: cluster.incarnation,
        high_water: cluster.stripes_high_water,
        blocks,
        // A stripe or a rebuild that began before its blocks became garbage may still send tasks.
        opening_ms: supervise::opening_ms(&shared.config),
        reason: reason.name().to_owned(),
    };
    let mut agent = rpc::agent_client(session.channel);
    let reply = shared.answer(agent.remove(rpc::with_deadline(request, shared.call_timeout()))).await?;
    let (removed, quarantined) = (reply.removed, reply.quarantined);
    tracing::debug!(node = %session.record.name, reason = reason.name(), removed, quarantined, "removed garbage");
    Ok(reply)
}
