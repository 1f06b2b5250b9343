//! Answers: records as messages.

use crate::{compute::compute, moved, pages::Stripes, shared::Shared};
use std::collections::BTreeMap;
use weft_codes::SharedCode;
use weft_control::{
    health::{BadBlocks, Condition, FurtherLosses},
    members::MemberStatus,
    recovery::unreadable_now,
    view::View,
};
use weft_meta::{BucketRecord, ObjectRecord, PolicyRecord};
use weft_proto::v1;
use weft_types::{Amount, DiskNumber, Error, FailureDomain, Home, NodeId, NodeState, Owner, Result, StripeRecord};

/// The most blocks in one answer: more would not fit in a message.
const BLOCKS_MAX: usize = 32 << 10;
/// The most stripes in one answer for which the reason is given why they cannot be read.
const REASONS_MAX: usize = 16;
/// The most checksums in one answer; those of a single stripe with more are left out.
const CHECKSUMS_MAX: usize = 1 << 20;

/// A policy. Its acknowledgement rule is given as a number of durable blocks, which fits any code.
pub(crate) fn policy(policy: PolicyRecord) -> v1::Policy {
    let m = weft_codes::parse(&policy.code).map_or(0, |code| code.m() as u32);
    v1::Policy {
        failure_domain: match policy.failure_domain {
            FailureDomain::Node => "node".into(),
            FailureDomain::Rack => "rack".into(),
        },
        ack: match policy.ack.missing_max {
            0 => "all".into(),
            missing => m.checked_sub(missing).map_or_else(|| format!("tolerate={missing}"), |more| format!("k+{more}")),
        },
        updates: policy.updates.name().into(),
        name: policy.name,
        code: policy.code,
        block_len: policy.block_len,
        cell_len: policy.cell_len,
        is_default: policy.is_default,
        replicas: policy.replicas.into(),
        warnings: Vec::new(),
    }
}

/// A bucket.
pub(crate) fn bucket(bucket: BucketRecord) -> v1::Bucket {
    v1::Bucket {
        name: bucket.name,
        policy: bucket.policy,
        created_ms: bucket.created_ms,
        objects: bucket.objects,
        warnings: Vec::new(),
    }
}

/// An object in a list.
pub(crate) fn entry(object: ObjectRecord) -> v1::ObjectEntry {
    v1::ObjectEntry {
        key: object.name.key,
        size: object.size,
        version: object.version.0,
        created_ms: object.created_ms,
        code: object.code,
    }
}

/// An object without its stripes.
pub(crate) fn object(object: ObjectRecord) -> v1::ObjectReply {
    v1::ObjectReply {
        traffic: None,
        stages: Vec::new(),
        bucket: object.name.bucket,
        key: object.name.key,
        version: object.version.0,
        size: object.size,
        code: object.code,
        block_len: object.layout.block_len,
        cell_len: object.layout.cell_len,
        created_ms: object.created_ms,
        stripes: Vec::new(),
        warnings: Vec::new(),
        stripe_count: object.stripes,
        incomplete: Vec::new(),
        incomplete_count: 0,
        unreadable: Vec::new(),
        read: None,
        written: object.written.0,
    }
}

/// An object that was just put, with the blocks still on their way: the last of its incomplete stripes.
pub(crate) async fn put(shared: &Shared, record: ObjectRecord) -> Result<v1::ObjectReply> {
    let (owner, mut reply) = (Owner::Object(record.version), object(record));
    let (mut stripes, mut last) = (Stripes::incomplete(shared, owner), None);
    while let Some(stripe) = stripes.next().await? {
        reply.incomplete_count += 1;
        last = Some(stripe);
    }
    reply.incomplete.extend(last.iter().map(|stripe| incomplete(shared, stripe)));
    Ok(reply)
}

fn incomplete(shared: &Shared, stripe: &StripeRecord) -> v1::IncompleteStripe {
    let mut blocks: Vec<u32> = stripe.on_their_way().into_iter().map(|(index, _)| index.into()).collect();
    blocks.sort_unstable();
    blocks.dedup();
    v1::IncompleteStripe { number: stripe.number, blocks, why: shared.completion().why(&stripe.id) }
}

/// A stripe that cannot be read.
fn unreadable(stripe: &StripeRecord, code: &SharedCode, view: &View, with_reason: bool) -> Option<v1::UnreadableStripe> {
    let found = unreadable_now(code, stripe.clone(), view)?;
    Some(v1::UnreadableStripe {
        number: stripe.number,
        blocks: found.blocks.into_iter().map(u32::from).collect(),
        why: if with_reason { found.why.message } else { String::new() },
        lost: found.is_lost,
    })
}

/// An object with its stripes from `from` on: at least that one, at most `stripes_max` (0: no limit), and no more than
/// fit in one answer. `seen` gets the records of these stripes.
pub(crate) async fn object_page(
    shared: &Shared,
    record: ObjectRecord,
    from: u64,
    stripes_max: u32,
    mut seen: impl FnMut(&StripeRecord),
) -> Result<v1::ObjectReply> {
    let view = shared.members.view();
    let version = record.version;
    let stripes_max = if stripes_max == 0 { usize::MAX } else { stripes_max as usize };
    let (code, mut further) = (shared.code(&record.code)?, FurtherLosses::default());
    let mut reply = object(record);
    let (mut stripes, mut blocks, mut checksums) = (Stripes::of_object(shared, version, from), 0usize, 0usize);
    while let Some(record) = stripes.next().await? {
        let checksums_of = |(index, _): (u8, _)| record.checksums.get(usize::from(index)).map_or(0, Vec::len);
        let own_checksums: usize = record.all().map(checksums_of).sum();
        blocks = blocks.saturating_add(record.all().count());
        checksums = checksums.saturating_add(own_checksums);
        let is_full = blocks > BLOCKS_MAX || checksums > CHECKSUMS_MAX || reply.stripes.len() >= stripes_max;
        if is_full && !reply.stripes.is_empty() {
            break;
        }
        if record.incomplete {
            reply.incomplete.push(incomplete(shared, &record));
        }
        let bad = BadBlocks::of(&record, &view);
        if !bad.is_none() && compute(|| Condition::of(&record, bad, &code, &view, &mut further)).now.is_none() {
            let with_reason = reply.unreadable.len() < REASONS_MAX;
            reply.unreadable.extend(compute(|| unreadable(&record, &code, &view, with_reason)));
        }
        reply.stripes.push(stripe(&record, &view, own_checksums <= CHECKSUMS_MAX)?);
        seen(&record);
    }
    Ok(reply)
}

/// The recorded checksums of a block.
pub(crate) fn checksums(stripe: &StripeRecord, index: u8) -> v1::BlockChecksums {
    let checksums = stripe.checksums.get(usize::from(index)).cloned().unwrap_or_default();
    let id = stripe.block_id(index).and_then(|block| postcard::to_allocvec(&block).ok()).unwrap_or_default();
    v1::BlockChecksums { index: index.into(), checksums, id }
}

/// A node that was silent for a moment too long counts as down before this is recorded.
pub(crate) fn state(status: &MemberStatus) -> NodeState {
    match (status.up, status.record.state) {
        (true, _) => NodeState::Up,
        (false, NodeState::Up) => NodeState::Down,
        (false, state) => state,
    }
}

/// The trouble of a disk that does not answer.
const HUNG: &str = "hung";

/// A node.
fn node(shared: &Shared, status: &MemberStatus, blocks: &BTreeMap<DiskNumber, u64>, garbage: &[(Home, Amount)]) -> v1::Node {
    let record = &status.record;
    let id = record.id;
    let garbage = || garbage.iter().filter(move |(home, _)| home.node == id).map(|(_, amount)| amount);
    let disk = |disk: &weft_types::DiskRecord| {
        let state = status.disks.get(&disk.number).copied().unwrap_or_default();
        let ailment = shared.disk_health.of(disk.number).filter(|_| !disk.failed);
        let ailment = ailment.map(|it| (it.trouble.name(), it.why));
        // Its node tells that for as long as it is up.
        let hung = Some(state.silent_for).filter(|silent| status.up && !silent.is_zero());
        let hung = hung.map(|silent| (HUNG, format!("it has not answered for {} s", silent.as_secs())));
        let (trouble, trouble_why) = hung.or(ailment).unwrap_or_default();
        v1::Disk {
            id: disk.id.to_string(),
            path: disk.path.to_string(),
            total_bytes: disk.total_bytes,
            free_bytes: state.free_bytes,
            failed: disk.failed,
            quarantined_blocks: state.quarantined.blocks,
            quarantined_bytes: state.quarantined.bytes,
            blocks: blocks.get(&disk.number).copied().unwrap_or(0),
            gone: is_gone(status, disk.number),
            file_system: state.file_system,
            draining: disk.draining,
            trouble: trouble.to_owned(),
            trouble_why,
            moved_to: disk.moved_to.map(|home| shared.members.name(home.node)).unwrap_or_default(),
            bytes_per_s: state.bytes_per_s,
            ..v1::Disk::default()
        }
    };
    v1::Node {
        id: record.id.0,
        name: record.name.to_string(),
        rack: record.rack.to_string(),
        zone: record.zone.clone(),
        state: state(status).name().to_owned(),
        since_ms: record.since_ms,
        draining: record.draining,
        data_address: record.data_address.clone(),
        control_address: record.control_address.clone(),
        disks: record.disks.iter().map(disk).collect(),
        last_seen_ms: u64::try_from(status.silent_for.as_millis()).unwrap_or(u64::MAX),
        blocks: record.disks.iter().filter_map(|disk| blocks.get(&disk.number)).sum(),
        coding_bytes_per_s: status.coding_bytes_per_s,
        fsyncs: status.fsyncs,
        suspect_ms: u64::try_from(status.suspect_for.as_millis()).unwrap_or(u64::MAX),
        metrics_address: shared.members.metrics_address(record.id),
        garbage_blocks: garbage().map(|amount| amount.blocks).sum(),
        garbage_bytes: garbage().map(|amount| amount.bytes).sum(),
        aside: moved::aside(shared).into_iter().filter(|aside| aside.node == record.id.0).collect(),
    }
}

/// Whether a node is up and no longer lists a disk.
fn is_gone(status: &MemberStatus, disk: DiskNumber) -> bool {
    status.up && !status.disks.get(&disk).is_some_and(|state| state.listed)
}

/// Which cluster it is; without any look at the metadata.
pub(crate) fn identity(shared: &Shared) -> v1::StatusReply {
    v1::StatusReply {
        cluster: shared.cluster.id.to_string(),
        epoch: shared.epoch.0,
        incarnation: shared.cluster.incarnation.clone(),
        insecure: shared.security.is_insecure(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        metrics_address: shared.metrics_address.clone(),
        ..v1::StatusReply::default()
    }
}

/// The whole cluster.
pub(crate) async fn status(shared: &Shared) -> Result<v1::StatusReply> {
    let totals = shared.meta.totals().await.map_err(|error| shared.meta_error(error))?;
    let blocks = shared.meta.blocks_per_disk().await.map_err(|error| shared.meta_error(error))?;
    let blocks: BTreeMap<DiskNumber, u64> = blocks.into_iter().collect();
    let garbage = shared.meta.garbage_per_disk().await.map_err(|error| shared.meta_error(error))?;
    let statuses = shared.members.statuses();
    Ok(v1::StatusReply {
        nodes: statuses.iter().map(|status| node(shared, status, &blocks, &garbage)).collect(),
        objects: totals.objects,
        stripes: totals.stripes,
        data_bytes: totals.data_bytes,
        warnings: warnings(shared, &statuses, &blocks),
        commits: shared.meta.commits(),
        fsyncs: statuses.iter().fold(0, |sum, status| status.fsyncs.saturating_add(sum)),
        ..identity(shared)
    })
}

fn warnings(shared: &Shared, statuses: &[MemberStatus], blocks: &BTreeMap<DiskNumber, u64>) -> Vec<String> {
    let mut warnings = Vec::new();
    if shared.security.is_insecure() {
        warnings.push("insecure = true: anyone who can reach a port has all rights".to_owned());
    }
    let down: Vec<&str> = statuses.iter().filter(|status| !status.up).map(|status| &*status.record.name).collect();
    if !down.is_empty() {
        let (count, all, names) = (down.len(), statuses.len(), down.join(", "));
        warnings.push(format!("{count} of {all} nodes are down: {names}"));
    }
    for status in statuses {
        let name = &status.record.name;
        let text = |disk: &weft_types::DiskRecord| match blocks.get(&disk.number) {
            None | Some(0) if is_gone(status, disk.number) => {
                format!("{} (no longer there; `weft node disk forget {name} {}` forgets it)", disk.path, disk.id)
            }
            None | Some(0) => disk.path.to_string(),
            Some(left) => format!("{} ({left} of its blocks were not rebuilt)", disk.path),
        };
        let (moved, failed): (Vec<_>, Vec<_>) =
            status.record.disks.iter().filter(|disk| disk.failed).partition(|disk| disk.moved_to.is_some());
        let failed: Vec<String> = failed.into_iter().map(text).collect();
        if !failed.is_empty() {
            warnings.push(format!("disks of {name} failed: {}", failed.join(", ")));
        }
        for disk in moved {
            let left = blocks.get(&disk.number).copied().unwrap_or(0);
            if let Some(to) = disk.moved_to.filter(|_| left > 0) {
                let (path, to) = (&disk.path, shared.members.name(to.node));
                warnings.push(format!(
                    "{path} of {name} is in {to} now, and {left} of its blocks have not followed: they count as lost"
                ));
            }
        }
    }
    for it in moved::aside(shared) {
        warnings.push(format!("{} keeps the disk {} aside: {}", it.name, it.path, it.why));
    }
    warnings
}

fn stripe(record: &StripeRecord, view: &View, with_checksums: bool) -> Result<v1::Stripe> {
    let layout =
        postcard::to_allocvec(&record.layout).map_err(|error| Error::fatal(format!("cannot encode a layout: {error}")))?;
    let span = |span: &weft_types::Span| v1::SpanMessage { start: span.start, end: span.end };
    let block = |(index, placed): (u8, &weft_types::PlacedBlock)| v1::PlacedBlock {
        index: index.into(),
        generation: placed.generation,
        node: placed.home.node.0,
        disk: view.disk(placed.home).map(|disk| disk.id.to_string()).unwrap_or_default(),
        state: view.state_text(record, index, placed).to_owned(),
        copy: placed.copy.into(),
        len: record.layout.block_len(index.into()),
        checksums: if with_checksums {
            record.checksums.get(usize::from(index)).cloned().unwrap_or_default()
        } else {
            Vec::new()
        },
        rack: rack(view, placed.home.node),
        corrupt: record.corrupt_of(index, placed.copy).iter().map(span).collect(),
    };
    Ok(v1::Stripe {
        id: record.id.0,
        offset: record.object_offset(),
        layout,
        seq: Some(v1::Seq { term: record.seq.term(), counts: record.seq.counts().to_vec() }),
        blocks: record.firsts().map(block).collect(),
        copies: record.copies.iter().map(|(index, placed)| block((*index, placed))).collect(),
    })
}

fn rack(view: &View, node: NodeId) -> String {
    view.node(node).map(|node| node.rack.to_string()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::validate;
    use weft_types::Ack;

    #[test]
    fn a_policys_ack_rule_is_shown_in_a_form_that_can_be_parsed() {
        let shown = |code: &str, missing_max| {
            let record = PolicyRecord { code: code.into(), ack: Ack { missing_max }, ..validate::default_policy() };
            policy(record).ack
        };
        assert_eq!([shown("rs(4,2)", 0), shown("rs(4,2)", 1), shown("rs(4,2)", 2)], ["all", "k+1", "k+0"]);
        // It tolerates the loss of any three blocks, but not of any four.
        assert_eq!(shown("lrc(4,2,2)", 4), "k+0");
    }
}
