//! Garbage collection: puts with expired leases, dropped allocations, blocks of removed objects.
//!
//! A block is removed from its node only if it is garbage in the metadata, and is forgotten there only after its node
//! has reported it as gone. A node that is down is asked when it returns.

use crate::{puts, shared::Shared, supervise};
use futures::future::join_all;
use std::{sync::Arc, time::Duration};
use weft_control::put::upload;
use weft_proto::{from_status, rpc, v1};
use weft_types::{BlockId, Error, NodeId, Result};

/// The most puts that one sweep aborts.
const UPLOADS_PER_SWEEP: u32 = 1_000;
/// The most blocks that one call removes, so that it finishes within its deadline.
const BLOCKS_PER_CALL: usize = 64;
/// The most blocks of one node in one sweep; the rest waits for the next sweep.
const BLOCKS_PER_SWEEP: u32 = 16_384;

/// Sweeps for as long as it runs.
pub(crate) async fn run(shared: Arc<Shared>) {
    let mut interval = tokio::time::interval(Duration::from_millis(shared.config.sweep_interval_ms));
    interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        interval.tick().await;
        if let Err(error) = sweep(&shared).await {
            tracing::warn!(%error, "a sweep failed");
        }
    }
}

/// One sweep.
pub(crate) async fn sweep(shared: &Arc<Shared>) -> Result<()> {
    shared.reads.forget_ended();
    give_up_puts(shared).await?;
    let now_ms = shared.now_ms();
    let given_up = shared.meta.expire_repairs(shared.epoch, now_ms).await.map_err(|error| shared.meta_error(error))?;
    if given_up > 0 {
        tracing::info!(given_up, "released expired allocations of repairs");
    }
    let nodes: Vec<NodeId> = shared.members.view().nodes.values().filter(|node| node.up).map(|node| node.id).collect();
    let removed = join_all(nodes.iter().map(|node| remove_garbage(shared, *node, now_ms))).await;
    for (node, result) in nodes.iter().zip(removed) {
        if let Err(error) = result {
            tracing::warn!(node = %shared.members.name(*node), %error, "cannot remove garbage from a node");
        }
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

/// Removes a node's garbage, and forgets what it reports as gone. What it keeps, for example on a failed disk, stays
/// garbage and delays nothing else.
async fn remove_garbage(shared: &Shared, node: NodeId, now_ms: u64) -> Result<()> {
    let garbage = shared.meta.garbage(node, now_ms, BLOCKS_PER_SWEEP).await.map_err(|error| shared.meta_error(error))?;
    let blocks: Vec<BlockId> = garbage.iter().map(|garbage| garbage.block).collect();
    let mut kept = String::new();
    for asked in blocks.chunks(BLOCKS_PER_CALL) {
        let reply = remove(shared, node, asked).await?;
        let gone = reply.gone.iter().filter_map(|id| postcard::from_bytes::<BlockId>(id).ok());
        let gone: Vec<BlockId> = gone.filter(|id| asked.contains(id)).collect();
        if !gone.is_empty() {
            shared.meta.forget_garbage(shared.epoch, node, gone).await.map_err(|error| shared.meta_error(error))?;
        }
        if kept.is_empty() {
            kept = reply.kept;
        }
    }
    if kept.is_empty() { Ok(()) } else { Err(Error::retry(kept)) }
}

async fn remove(shared: &Shared, node: NodeId, blocks: &[BlockId]) -> Result<v1::RemoveReply> {
    let Some(session) = shared.members.session(node) else { return Err(Error::retry("the node went down")) };
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
    };
    let mut agent = rpc::agent_client(session.channel);
    let call = agent.remove(rpc::with_deadline(request, shared.call_timeout()));
    match tokio::time::timeout(shared.call_timeout(), call).await {
        Ok(Ok(reply)) => {
            let reply = reply.into_inner();
            tracing::debug!(node = %session.record.name, removed = reply.removed, "removed garbage from a node");
            Ok(reply)
        }
        Ok(Err(status)) => Err(from_status(&status)),
        Err(_) => Err(Error::retry("no answer in time")),
    }
}
