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
    shared.activity().forget(node);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        config::CoordinatorConfig,
        coordinator::{Coordinator, Seams},
    };
    use std::sync::Arc;
    use tokio::task::JoinHandle;
    use weft_meta::MetaMode;
    use weft_proto::{MemoryNet, PROTOCOL, Peer, Security, rpc};
    use weft_types::{DiskNumber, SystemClock};

    const OLD: Home = Home { node: NodeId(1), disk: DiskNumber(1) };

    /// A coordinator whose only node no longer lists a disk that was drained for good; nothing else forgets it.
    struct Replaced {
        _dir: tempfile::TempDir,
        _coordinator: Coordinator,
        shared: Arc<Shared>,
    }

    impl Replaced {
        async fn new() -> Self {
            let (dir, net) = (tempfile::tempdir().unwrap(), Arc::new(MemoryNet::default()));
            let config = CoordinatorConfig {
                listen: "127.0.0.1:0".into(),
                metrics: weft_proto::metrics::OFF.into(),
                dir: dir.path().to_owned(),
                insecure: true,
                sweep_interval_ms: 3_600_000,
                ..CoordinatorConfig::default()
            };
            let seams = Seams { net: net.clone(), clock: Arc::new(SystemClock), seed: 1.into(), meta_mode: MetaMode::Inline };
            let (coordinator, shared) = Coordinator::begin(config, seams).await.unwrap();
            let channel = rpc::connect(net, &Security::Insecure, coordinator.address(), &Peer::Coordinator).await.unwrap();
            let mut member = rpc::membership_client(channel);
            let disk = |id: &str| v1::Disk { id: id.into(), path: format!("/{id}"), total_bytes: 1 << 30, ..v1::Disk::default() };
            for disks in [vec![disk("old"), disk("new")], vec![disk("new")]] {
                let request = v1::RegisterRequest {
                    protocol: Some(PROTOCOL.into()),
                    name: "n".into(),
                    rack: "r".into(),
                    zone: "z".into(),
                    node: shared.members.count() as u32,
                    data_address: "127.0.0.1:1".into(),
                    control_address: "127.0.0.1:1".into(),
                    disks,
                    ..v1::RegisterRequest::default()
                };
                member.register(request).await.unwrap();
                shared.meta.retire_disk(shared.epoch, OLD).await.unwrap();
                shared.members.retire(OLD);
            }
            Self { _dir: dir, _coordinator: coordinator, shared }
        }

        /// The numbers of the node's disks: as the coordinator knows them, and in the metadata.
        async fn disks(&self) -> (Vec<u32>, Vec<u32>) {
            let numbers = |record: &weft_types::NodeRecord| record.disks.iter().map(|disk| disk.number.0).collect();
            let status = self.shared.members.status(OLD.node).unwrap();
            (numbers(&status.record), numbers(&self.shared.meta.nodes().await.unwrap()[0]))
        }

        /// Begins to forget what is over, and goes on until it must wait.
        async fn begin(&self) -> JoinHandle<Result<()>> {
            let shared = Arc::clone(&self.shared);
            let forgets = tokio::spawn(async move { forget_retired(&shared).await });
            tokio::time::sleep(Duration::from_secs(1)).await;
            forgets
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_disk_is_not_forgotten_while_a_registration_is_recorded_that_may_have_read_it() {
        let replaced = Replaced::new().await;
        let recording = replaced.shared.members.recording.lock().await;
        let forgets = replaced.begin().await;
        assert_eq!(replaced.disks().await, (vec![1, 2], vec![1, 2]), "the registration would bring it back");
        drop(recording);
        forgets.await.unwrap().unwrap();
        assert_eq!(replaced.disks().await, (vec![2], vec![2]));
    }

    #[tokio::test(start_paused = true)]
    async fn a_disk_whose_drain_was_ended_meanwhile_is_not_forgotten() {
        let replaced = Replaced::new().await;
        let shared = &replaced.shared;
        let recording = shared.members.recording.lock().await;
        let forgets = replaced.begin().await;
        shared.meta.set_draining(shared.epoch, OLD.node, Some(OLD.disk), false).await.unwrap();
        shared.members.set_draining(OLD.node, Some(OLD.disk), false);
        drop(recording);
        forgets.await.unwrap().unwrap();
        assert_eq!(replaced.disks().await, (vec![1, 2], vec![1, 2]));
    }
}
