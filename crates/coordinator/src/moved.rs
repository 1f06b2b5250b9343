//! Disks that were moved from one node to another with their blocks: the shell around [`weft_control::moved`], which decides.
//!
//! A registration takes a disk over, or names it to the agent as one to keep aside. What is kept aside is judged again and again; when it
//! may be taken over, the next heartbeat asks the agent to register again. What was taken over is in the metadata, so the next coordinator goes
//! on with the blocks that have not followed yet.

pub(crate) mod follow;
pub(crate) mod state;

use crate::shared::Shared;
use state::Aside;
use std::time::Duration;
use weft_control::{
    members::MemberStatus,
    moved::{Claim, judge},
};
use weft_meta::{NewDisk, NewNode};
use weft_proto::v1;
use weft_types::{DiskRecord, Home, NodeId, Result};

/// Decides about the disks of a registration that are another node's: those that are taken over are marked, and those to keep aside are taken
/// out.
pub(crate) fn sort(shared: &Shared, new: &mut NewNode, told: &[v1::Disk]) -> Vec<Aside> {
    recall_copies(shared, &new.name, told);
    let (mut disks, mut aside) = (Vec::new(), Vec::new());
    for disk in std::mem::take(&mut new.disks) {
        let copy = shared.moved.is_copy(&new.name, &disk.id);
        match judged(shared, &new.name, &disk, copy) {
            None => disks.push(disk),
            Some(Ok(from)) => disks.push(NewDisk { taken_from: Some(from), ..disk }),
            Some(Err(why)) => aside.push(Aside { disk, why, copy, open_since: None }),
        }
    }
    if disks.iter().any(|disk| disk.taken_from.is_some()) {
        // Before it is recorded, and also if the answer is lost.
        shared.moved.lock().joining.insert(new.name.clone());
    }
    new.disks = disks;
    aside
}

/// An earlier coordinator has found that both nodes had these disks at the same time, and the agent remembers it. If the owner has said since that
/// its own has failed, the other may be the disk itself.
fn recall_copies(shared: &Shared, node: &str, told: &[v1::Disk]) {
    for disk in told.iter().filter(|disk| disk.copy) {
        if owner_of(shared, &disk.id).is_some_and(|(owner, record)| *owner.record.name != *node && !record.failed) {
            shared.moved.note_copy(node, &disk.id);
        }
    }
}

/// `None`: the disk is this node's, or new. `copy`: whether both nodes have had it at the same time.
fn judged(shared: &Shared, node: &str, disk: &NewDisk, copy: bool) -> Option<Result<Home, String>> {
    let (owner, record) = owner_of(shared, &disk.id).filter(|(owner, _)| *owner.record.name != *node)?;
    let claim = Claim { node, path: &disk.path, failed: is_unusable(disk), copy };
    Some(judge(&owner, &record, claim, Duration::from_millis(shared.config.down_after_ms)))
}

/// The size of a disk that has not been opened yet is not known.
fn is_unusable(disk: &NewDisk) -> bool {
    disk.failed || disk.total_bytes == 0
}

fn owner_of(shared: &Shared, id: &str) -> Option<(MemberStatus, DiskRecord)> {
    let owner = shared.members.status(shared.members.owner_of(id)?)?;
    let record = owner.record.disks.iter().find(|disk| *disk.id == *id).cloned()?;
    Some((owner, record))
}

/// Disks may have been taken over from other nodes, whose records have changed then.
pub(crate) async fn refresh_if_taken(shared: &Shared, disks: &[NewDisk]) -> Result<()> {
    if disks.iter().all(|disk| disk.taken_from.is_none()) { Ok(()) } else { refresh(shared).await }
}

/// Logs the disks that were taken over.
pub(crate) fn tell_taken(shared: &Shared, node: &str, disks: &[NewDisk]) {
    for (disk, from) in disks.iter().filter_map(|disk| Some((disk, disk.taken_from?))) {
        let from = shared.members.name(from.node);
        tracing::warn!(%node, disk = %disk.path, id = %disk.id, %from, "a disk was moved to another node: its blocks follow it");
    }
}

/// Takes the records of disks from the metadata. Meanwhile no registration may change them, so the caller holds `recording`.
async fn refresh(shared: &Shared) -> Result<()> {
    let nodes = shared.meta.nodes().await.map_err(|error| shared.meta_error(error))?;
    nodes.iter().for_each(|node| shared.members.refresh(node));
    Ok(())
}

/// The disks that nodes keep aside, for people.
pub(crate) fn aside(shared: &Shared) -> Vec<v1::AsideDisk> {
    let aside = shared.moved.lock().aside.clone();
    let told = |node: NodeId, it: Aside| {
        let owner = owner_of(shared, &it.disk.id);
        let blocks = owner.as_ref().and_then(|(owner, disk)| owner.disks.get(&disk.number)).map_or(0, |state| state.blocks);
        v1::AsideDisk {
            node: node.0,
            name: shared.members.name(node),
            path: it.disk.path.clone(),
            owner: owner.map(|(owner, _)| owner.record.name.to_string()).unwrap_or_default(),
            blocks,
            ..it.told()
        }
    };
    aside.into_iter().flat_map(|(node, disks)| disks.into_iter().map(move |disk| told(node, disk))).collect()
}
