//! Lists garbage for clients, and releases it on an operator's request.

use crate::{members::Session, shared::Shared};
use futures::future::join_all;
use std::collections::BTreeMap;
use weft_control::members::MemberStatus;
use weft_meta::GarbageTotal;
use weft_proto::{rpc, v1};
use weft_types::{DiskRecord, Error, GarbageReason, NodeId, Result};

/// The most blocks that one call deletes, so that it finishes within its deadline.
const BLOCKS_PER_CALL: u32 = 64;
/// The reason shown for damaged blocks in quarantine, which only an operator deletes, by hand.
const DAMAGED: &str = "damaged";

/// Lists the garbage in the metadata, and the quarantines of nodes that are up, by disk and reason; for one node or for all.
pub(crate) async fn list(shared: &Shared, asked: &v1::ListGarbageRequest) -> Result<v1::ListGarbageReply> {
    let mut members: Vec<MemberStatus> = shared.members.statuses();
    if asked.node != 0 {
        require_node(&members, NodeId(asked.node))?;
        members.retain(|member| member.record.id.0 == asked.node);
    }
    let mut reply = v1::ListGarbageReply::default();
    let totals = shared.meta.garbage_totals().await.map_err(|error| shared.meta_error(error))?;
    let disks: BTreeMap<_, _> =
        members.iter().flat_map(|member| member.record.disks.iter().map(|disk| (disk.number, disk))).collect();
    for total in totals.iter().filter(|total| asked.node == 0 || total.home.node.0 == asked.node) {
        reply.garbage.push(in_metadata(total, disks.get(&total.home.disk).copied()));
    }
    let quarantines = join_all(members.iter().map(|member| release(shared, member.record.id, 0))).await;
    for (member, quarantine) in members.iter().zip(quarantines) {
        let record = &member.record;
        match quarantine {
            Ok(told) => {
                let known = |id: &str| record.disks.iter().find(|disk| &*disk.id == id);
                let disks = told.disks.iter().flat_map(|disk| in_quarantine(record.id, disk, known(&disk.disk)));
                reply.garbage.extend(disks);
                reply.warnings.extend((!told.kept.is_empty()).then(|| format!("{}: {}", record.name, told.kept)));
            }
            Err(error) => reply.warnings.push(format!("the quarantine of {} is not known: {}", record.name, error.message)),
        }
    }
    Ok(reply)
}

/// Deletes some blocks from a node's quarantine.
pub(crate) async fn release_some(shared: &Shared, asked: &v1::ReleaseGarbageRequest) -> Result<v1::ReleaseGarbageReply> {
    let node = NodeId(asked.node);
    require_node(&shared.members.statuses(), node)?;
    let mut reply = v1::ReleaseGarbageReply::default();
    // The node first: if it is down, nothing is released.
    let released = release(shared, node, BLOCKS_PER_CALL).await?;
    if asked.unexpected {
        let released = shared.meta.release_garbage(shared.epoch, node).await;
        reply.released_blocks = released.map_err(|error| shared.meta_error(error))?;
    }
    (reply.freed_blocks, reply.freed_bytes, reply.kept) = (released.freed_blocks, released.freed_bytes, released.kept);
    reply.left_blocks = released.disks.iter().map(|disk| disk.blocks).sum();
    let (blocks, bytes, in_metadata) = (reply.freed_blocks, reply.freed_bytes, reply.released_blocks);
    tracing::info!(node = %shared.members.name(node), blocks, bytes, in_metadata, "garbage was released by request");
    Ok(reply)
}

/// Deletes at most `blocks_max` blocks of a node's quarantine. Returns what is left.
async fn release(shared: &Shared, node: NodeId, blocks_max: u32) -> Result<v1::ReleaseQuarantineReply> {
    let is_up = shared.members.view().nodes.get(&node).is_some_and(|node| node.up);
    let Some(Session { channel, .. }) = shared.members.session(node).filter(|_| is_up) else {
        return Err(Error::unavailable(format!("{} is down: try again when it is back", shared.members.name(node))));
    };
    let cluster = shared.meta.cluster().await.map_err(|error| shared.meta_error(error))?;
    let request = v1::ReleaseQuarantineRequest {
        epoch: shared.epoch.0,
        incarnation: cluster.incarnation,
        high_water: cluster.stripes_high_water,
        blocks_max,
    };
    let mut agent = rpc::agent_client(channel);
    shared.answer(agent.release_quarantine(rpc::with_deadline(request, shared.call_timeout()))).await
}

fn require_node(members: &[MemberStatus], node: NodeId) -> Result<()> {
    match members.iter().any(|member| member.record.id == node) {
        true => Ok(()),
        false => Err(Error::not_found(format!("there is no node {node}: `weft node ls` lists them"))),
    }
}

fn in_metadata(total: &GarbageTotal, disk: Option<&DiskRecord>) -> v1::Garbage {
    v1::Garbage {
        reason: total.reason.name().to_owned(),
        blocks: total.blocks,
        bytes: total.bytes,
        unmeasured_blocks: total.unmeasured_blocks,
        first_ms: Some(total.first_ms),
        last_ms: Some(total.last_ms),
        ..on(total.home.node, disk)
    }
}

/// A disk's quarantine: blocks that are deleted automatically, and damaged ones.
fn in_quarantine(node: NodeId, told: &v1::QuarantinedDisk, disk: Option<&DiskRecord>) -> Vec<v1::Garbage> {
    let unexpected = v1::Garbage {
        quarantined: true,
        reason: GarbageReason::Unexpected.name().to_owned(),
        blocks: told.blocks,
        bytes: told.bytes,
        first_ms: Some(told.first_deleted_ms),
        last_ms: Some(told.last_deleted_ms),
        ..on(node, disk)
    };
    let damaged = v1::Garbage {
        quarantined: true,
        reason: DAMAGED.to_owned(),
        blocks: told.damaged_blocks,
        bytes: told.damaged_bytes,
        ..on(node, disk)
    };
    [unexpected, damaged].into_iter().filter(|garbage| garbage.blocks > 0).collect()
}

fn on(node: NodeId, disk: Option<&DiskRecord>) -> v1::Garbage {
    let (id, path) = disk.map(|disk| (disk.id.to_string(), disk.path.to_string())).unwrap_or_default();
    v1::Garbage { node: node.0, disk: id, path, ..v1::Garbage::default() }
}
