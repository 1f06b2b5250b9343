//! Drains nodes and disks. It is recorded that their blocks leave; the healer moves them ([`weft_control::healer`]). What is checked first is
//! in [`weft_control::drain`].

pub(crate) mod explain;

use crate::{departures, shared::Shared};
use std::collections::BTreeMap;
use weft_control::{drain::Drain, members::MemberStatus, placement::nodes_needed};
use weft_meta::PolicyRecord;
use weft_proto::v1;
use weft_types::{DiskRecord, Error, FailureDomain, Home, NodeId, Result};

/// Begins or ends a drain, or only says how far it is.
pub(crate) async fn set(shared: &Shared, asked: &v1::DrainRequest) -> Result<v1::DrainReply> {
    shared.until_nodes_are_back().await;
    let status = departures::status_of(shared, NodeId(asked.node))?;
    let disk = if asked.disk.is_empty() { None } else { Some(departures::disk_of(&status, &asked.disk)?) };
    // A registration must not bring back the old record, and two drains that begin together must see each other.
    let recording = shared.members.recording.lock().await;
    let mut warnings = Vec::new();
    let before = disk.map_or(status.record.draining, |disk| disk.draining);
    // To end a drain that has not begun keeps the disk from being drained without a person.
    let keeps = disk.is_some_and(|disk| !disk.kept);
    let retires = retires(asked, &status, disk)?.filter(|disk| !disk.retired);
    if let Some(on) = asked.on.filter(|on| *on != before || !on && keeps || retires.is_some()) {
        // What is on a disk that failed is lost, and rebuilt anyway.
        if on && !before && !disk.is_some_and(|disk| disk.failed) {
            warnings = may_begin(shared, &status, disk, asked.force).await?;
        }
        match retires {
            Some(disk) => retire(shared, Home { node: status.record.id, disk: disk.number }).await?,
            None => record(shared, &status, disk, on).await?,
        }
        let (name, path) = (&status.record.name, disk.map_or("", |disk| &disk.path));
        let retires = retires.is_some();
        tracing::info!(node = %name, path, on, retires, "the drain of a node or disk was begun or ended by request");
    }
    drop(recording);
    let mut draining = left(shared, &status, disk).await?;
    // As it is after that.
    draining.retired = asked.on != Some(false) && (draining.retired || retires.is_some());
    Ok(v1::DrainReply { draining: Some(draining), on: asked.on.unwrap_or(before), warnings })
}

/// The disk, if it is to be drained for good.
fn retires<'a>(asked: &v1::DrainRequest, status: &MemberStatus, disk: Option<&'a DiskRecord>) -> Result<Option<&'a DiskRecord>> {
    let name = &status.record.name;
    match disk {
        _ if !asked.retire || asked.on != Some(true) => Ok(None),
        None => Err(Error::invalid("only a disk is drained for good: name one")),
        Some(disk) if !status.up => Err(Error::unavailable(format!(
            "{name} is down, so {} can be neither drained nor forgotten: start its agent, without this disk if it is gone; or let `weft \
             repair node {name}` rebuild all blocks of the node",
            disk.path
        ))),
        Some(disk) => Ok(Some(disk)),
    }
}

/// Records that a disk is drained for good.
async fn retire(shared: &Shared, home: Home) -> Result<()> {
    shared.meta.retire_disk(shared.epoch, home).await.map_err(|error| shared.meta_error(error))?;
    shared.members.retire(home);
    Ok(())
}

/// Begins the drain of a disk without a person. Does nothing if it has begun, or if a person has ended it.
pub(crate) async fn begin(shared: &Shared, home: Home) -> Result<()> {
    let _recording = shared.members.recording.lock().await;
    let status = departures::status_of(shared, home.node)?;
    let disk = status.record.disks.iter().find(|disk| disk.number == home.disk);
    let Some(disk) = disk.filter(|disk| !disk.draining && !disk.kept) else { return Ok(()) };
    may_begin(shared, &status, Some(disk), false).await?;
    record(shared, &status, Some(disk), true).await?;
    let why = shared.disk_health.of(disk.number).map(|it| it.why).unwrap_or_default();
    tracing::warn!(node = %status.record.name, path = %disk.path, why, "the drain of a slow or failing disk has begun without a person");
    Ok(())
}

/// Records that a drain has begun or ended.
async fn record(shared: &Shared, status: &MemberStatus, disk: Option<&DiskRecord>, on: bool) -> Result<()> {
    let (node, number) = (status.record.id, disk.map(|disk| disk.number));
    let set = shared.meta.set_draining(shared.epoch, node, number, on).await;
    set.map_err(|error| shared.meta_error(error))?;
    shared.members.set_draining(node, number, on);
    Ok(())
}

/// Whether a drain may begin; returns warnings.
async fn may_begin(shared: &Shared, status: &MemberStatus, disk: Option<&DiskRecord>, force: bool) -> Result<Vec<String>> {
    let drain = of(shared, status, disk).await?;
    drain.check(&shared.members.view(), &shared.codes_in_use().await?, force)
}

/// The drain of a node or disk.
async fn of<'a>(shared: &Shared, node: &'a MemberStatus, disk: Option<&'a DiskRecord>) -> Result<Drain<'a>> {
    let policies = shared.meta.policies().await.map_err(|error| shared.meta_error(error))?;
    let by_rack = policies.iter().any(|policy| policy.failure_domain == FailureDomain::Rack);
    let copies_on = copies_on(shared, &policies).await?;
    Ok(Drain { node, disk, reserve_bytes: shared.config.disk_reserve.0, by_rack, copies_on })
}

/// On how many nodes the widest stripe with copies is. While stripes are being counted, also by the policies of buckets that have objects.
async fn copies_on(shared: &Shared, policies: &[PolicyRecord]) -> Result<usize> {
    let (mut most, is_counting) = {
        let health = shared.health.lock();
        (health.copied.most_nodes(), health.survey.is_counting())
    };
    if !is_counting || policies.iter().all(|policy| policy.replicas < 2) {
        return Ok(most);
    }
    let totals = shared.meta.totals_by_bucket().await.map_err(|error| shared.meta_error(error))?;
    let buckets = shared.meta.buckets().await.map_err(|error| shared.meta_error(error))?;
    let of = |name: &str| policies.iter().find(|policy| policy.name == name && policy.replicas > 1);
    let copied: BTreeMap<&str, &PolicyRecord> =
        buckets.iter().filter_map(|bucket| of(&bucket.policy).map(|policy| (&*bucket.name, policy))).collect();
    for (bucket, code, _) in &totals {
        // Objects in another code were not put with this policy.
        if let Some(policy) = copied.get(&**bucket).filter(|policy| policy.code == *code) {
            let code = shared.code(code)?;
            most = most.max(nodes_needed(code.k(), code.n(), policy.replicas));
        }
    }
    Ok(most)
}

/// What is left on all nodes and disks that are being drained.
pub(crate) async fn all(shared: &Shared, statuses: &[MemberStatus]) -> Result<Vec<v1::Draining>> {
    let mut all = Vec::new();
    for status in statuses {
        if status.record.draining {
            all.push(left(shared, status, None).await?);
        }
        for disk in status.record.disks.iter().filter(|disk| disk.draining && !status.record.draining) {
            all.push(left(shared, status, Some(disk)).await?);
        }
    }
    Ok(all)
}

/// What is left on a node or disk. The blocks are as of the last count, which is some seconds old, but none only if there are none.
async fn left(shared: &Shared, status: &MemberStatus, only: Option<&DiskRecord>) -> Result<v1::Draining> {
    let node = status.record.id;
    let mut left = v1::Draining {
        node: node.0,
        name: status.record.name.to_string(),
        disk: only.map(|disk| disk.id.to_string()).unwrap_or_default(),
        path: only.map(|disk| disk.path.to_string()).unwrap_or_default(),
        retired: only.is_some_and(|disk| disk.retired),
        failed: only.is_some_and(|disk| disk.failed),
        listed: only.and_then(|disk| status.disks.get(&disk.number)).is_some_and(|state| state.listed),
        ..v1::Draining::default()
    };
    for disk in status.record.disks.iter().filter(|disk| only.is_none_or(|only| only.number == disk.number)) {
        let home = Home { node, disk: disk.number };
        let found = shared.meta.blocks_on(home, None, 1).await.map_err(|error| shared.meta_error(error))?;
        if !found.items.is_empty() {
            left.blocks += status.disks.get(&disk.number).map_or(0, |disk| disk.blocks).max(1);
        }
    }
    if left.blocks == 0 {
        let held = shared.meta.held(node, only.map(|disk| disk.number)).await.map_err(|error| shared.meta_error(error))?;
        (left.blocks, left.allocations) = (held.blocks, held.allocations);
    }
    Ok(left)
}
