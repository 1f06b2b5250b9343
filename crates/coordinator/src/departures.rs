//! Removes nodes and disks that are gone for good: the shell around [`weft_control::departures`], which decides.

use crate::{membership, shared::Shared};
use std::time::Duration;
use weft_control::{departures, members::MemberStatus};
use weft_meta::MetaError;
use weft_proto::v1;
use weft_types::{DiskRecord, Error, Home, NodeId, Reaction, Result};

/// The most records of garbage that one transaction deletes, so that other changes do not wait long.
const GARBAGE_PER_STEP: u32 = 10_000;

/// Removes a node.
pub(crate) async fn remove_node(shared: &Shared, asked: &v1::RemoveNodeRequest) -> Result<v1::DepartureReply> {
    let node = NodeId(asked.node);
    shared.until_nodes_are_back().await;
    membership::take_down_silent(shared).await;
    let status = status_of(shared, node)?;
    let held = meta(shared, shared.meta.held(node, None).await)?;
    let jobs = meta(shared, shared.meta.jobs().await)?;
    departures::check_node(&status, held, &jobs, Duration::from_millis(shared.config.down_after_ms))?;
    let garbage_blocks = remove(shared, Leaver::Node(node)).await?;
    // From now on its agent cannot register, so nothing brings it back.
    shared.members.forget(node);
    shared.stragglers().forget(node);
    shared.links().forget(node);
    let name = status.record.name.to_string();
    tracing::info!(node = %name, id = %node, garbage_blocks, "a node was removed by request");
    Ok(v1::DepartureReply { node: node.0, name, disks: status.record.disks.iter().map(disk).collect(), garbage_blocks })
}

/// Forgets a disk.
pub(crate) async fn forget_disk(shared: &Shared, asked: &v1::ForgetDiskRequest) -> Result<v1::DepartureReply> {
    let _recording = shared.members.recording.lock().await;
    let status = status_of(shared, NodeId(asked.node))?;
    let record = disk_of(&status, &asked.disk)?;
    let reply = forget(shared, &status, record).await?;
    tracing::info!(node = %reply.name, path = %record.path, garbage_blocks = reply.garbage_blocks, "a disk was forgotten by request");
    Ok(reply)
}

/// Forgets the disks that were drained for good and are no longer there. Returns the first error, after it has tried all.
pub(crate) async fn forget_retired(shared: &Shared) -> Result<()> {
    let mut failed = Ok(());
    for status in shared.members.statuses() {
        for record in status.record.disks.iter().filter(|disk| departures::is_over(&status, disk)) {
            // Someone may have ended the drain, or the agent registers the disk again.
            let _recording = shared.members.recording.lock().await;
            let Some(status) = shared.members.status(status.record.id) else { continue };
            let now = status.record.disks.iter().find(|disk| disk.number == record.number);
            let Some(record) = now.filter(|disk| departures::is_over(&status, disk)) else { continue };
            match forget(shared, &status, record).await {
                Ok(reply) => {
                    tracing::info!(node = %reply.name, path = %record.path, "a disk that was drained for good is forgotten")
                }
                // The count of its blocks is some seconds old, puts and repairs may not have ended, or it has just come back.
                Err(error) if matches!(error.reaction, Reaction::InvalidInput | Reaction::Retry | Reaction::Replan) => {
                    tracing::debug!(node = %status.record.name, path = %record.path, %error, "a disk cannot be forgotten yet");
                }
                Err(error) => failed = failed.and(Err(error)),
            }
        }
    }
    failed
}

/// Forgets a disk, if nothing needs it. Meanwhile, no registration may bring back its record, so the caller holds `recording`.
async fn forget(shared: &Shared, status: &MemberStatus, record: &DiskRecord) -> Result<v1::DepartureReply> {
    let (node, name) = (status.record.id, status.record.name.to_string());
    let home = Home { node, disk: record.number };
    departures::check_disk(status, record, meta(shared, shared.meta.held(node, Some(home.disk)).await)?)?;
    let garbage_blocks = remove(shared, Leaver::Disk(home)).await?;
    shared.members.forget_disk(home);
    Ok(v1::DepartureReply { node: node.0, name, disks: vec![disk(record)], garbage_blocks })
}

/// What is removed.
#[derive(Debug, Clone, Copy)]
enum Leaver {
    Node(NodeId),
    Disk(Home),
}

/// Removes a node or disk from the metadata, step by step. Returns the number of records of garbage that were deleted with it.
async fn remove(shared: &Shared, leaver: Leaver) -> Result<u64> {
    let mut garbage_blocks = 0;
    loop {
        let step = match leaver {
            Leaver::Node(node) => shared.meta.remove_node(shared.epoch, node, shared.now_ms(), GARBAGE_PER_STEP).await,
            Leaver::Disk(home) => shared.meta.forget_disk(shared.epoch, home, GARBAGE_PER_STEP).await,
        };
        // The metadata may have forgotten a disk although the call failed.
        if let (Leaver::Disk(_), Err(MetaError::NotFound(_))) = (leaver, &step) {
            return Ok(garbage_blocks);
        }
        let step = meta(shared, step)?;
        garbage_blocks += step.garbage_blocks;
        if step.complete {
            return Ok(garbage_blocks);
        }
    }
}

pub(crate) fn status_of(shared: &Shared, node: NodeId) -> Result<MemberStatus> {
    shared
        .members
        .status(node)
        .ok_or_else(|| Error::not_found(format!("there is no node {node}: `weft node ls` lists the nodes")))
}

/// The disk of a node with this id.
pub(crate) fn disk_of<'a>(status: &'a MemberStatus, id: &str) -> Result<&'a DiskRecord> {
    let name = &status.record.name;
    let unknown = || Error::not_found(format!("{name} has no disk '{id}': `weft node disk ls {name}` lists its disks"));
    status.record.disks.iter().find(|disk| *disk.id == *id).ok_or_else(unknown)
}

fn disk(record: &DiskRecord) -> v1::Disk {
    v1::Disk { id: record.id.to_string(), path: record.path.to_string(), ..v1::Disk::default() }
}

fn meta<T>(shared: &Shared, result: Result<T, MetaError>) -> Result<T> {
    result.map_err(|error| shared.meta_error(error))
}
