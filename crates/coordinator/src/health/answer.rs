//! The answer to `weft status`.

use crate::{
    disk_health, drain, healer, jobs, moved, scrub,
    shared::Shared,
    space::{Fits, fits},
};
use std::{collections::BTreeSet, sync::Arc};
use weft_control::{
    health::{AilingDisk, BadBlocks, Bearing, DownNode, FailedDisk, FullPolicy, Signs},
    members::MemberStatus,
};
use weft_meta::{MetaError, PolicyRecord, Totals};
use weft_proto::v1;
use weft_types::{Home, JobState, NodeState, Owner, Result, StripeId, UploadId};

/// The most unreadable objects that are listed.
const OBJECTS_NAMED: usize = 10;
/// The most stripes whose objects are looked up for that list.
const STRIPES_LOOKED_UP: usize = 256;

/// The health of the cluster, without anything that takes longer the more is stored.
pub(crate) struct Summary {
    /// Without jobs, garbage and names of objects.
    pub(crate) reply: v1::HealthReply,
    /// Stripes with bad blocks that can be read but survive no further loss.
    pub(crate) at_risk: u64,
    /// Some stripes that cannot be read.
    unreadable: Vec<StripeId>,
}

/// Whether the cluster is healthy, and why not.
pub(crate) async fn reply(shared: &Arc<Shared>) -> Result<v1::HealthReply> {
    let Summary { reply, unreadable, .. } = summary(shared).await?;
    let garbage = shared.meta.garbage_per_disk().await.map_err(|error| shared.meta_error(error))?;
    let has_ended = |job: &v1::Job| JobState::by_name(&job.state).is_none_or(JobState::has_ended);
    Ok(v1::HealthReply {
        unreadable_objects: objects_of(shared, unreadable).await?,
        garbage_blocks: garbage.iter().map(|(_, amount)| amount.blocks).sum(),
        garbage_bytes: garbage.iter().map(|(_, amount)| amount.bytes).sum(),
        jobs: jobs::list(shared).await?.jobs.into_iter().filter(|job| !has_ended(job)).collect(),
        ..reply
    })
}

/// The part of the health that metrics show, too.
pub(crate) async fn summary(shared: &Shared) -> Result<Summary> {
    let by_code = shared.meta.totals_by_code().await.map_err(|error| shared.meta_error(error))?;
    let statuses = shared.members.statuses();
    let failed = failed_disks(shared, &statuses).await?;
    let ailing = disk_health::ailing(shared, &statuses);
    let (mut signs, unreadable) = signs(shared, &by_code, &statuses, &failed)?;
    signs.ailing = ailing.iter().map(ailing_disk).collect();
    let policies = shared.meta.policies().await.map_err(|error| shared.meta_error(error))?;
    let space = space(shared, policies.into_iter().find(|policy| policy.is_default))?;
    signs.full = space.full.clone();
    let (verdict, counts) = (signs.verdict(), &signs.counts);
    let quarantined = || statuses.iter().flat_map(|status| status.disks.values()).map(|disk| disk.quarantined);
    let at_risk = counts.at_risk;
    let reply = v1::HealthReply {
        level: verdict.level.name().to_owned(),
        reasons: verdict.reasons,
        counting: signs.counting,
        objects: by_code.iter().map(|(_, of)| of.objects).sum(),
        stripes: by_code.iter().map(|(_, of)| of.stripes).sum(),
        data_bytes: by_code.iter().map(|(_, of)| of.data_bytes).sum(),
        bearings: counts.bearings.iter().map(bearing).collect(),
        stripes_with_bad_blocks: counts.with_bad_blocks,
        unreadable_stripes: counts.unreadable,
        lost_stripes: counts.lost,
        bad_blocks: Some(bad_blocks(counts.blocks)),
        nodes: u32::try_from(statuses.len()).unwrap_or(u32::MAX),
        down_nodes: statuses.iter().filter(|status| !status.up).map(down_node).collect(),
        suspect_nodes: statuses.iter().filter_map(suspect_node).collect(),
        failed_disks: failed,
        ailing_disks: ailing,
        aside_disks: moved::aside(shared),
        quarantined_blocks: quarantined().map(|of| of.blocks).sum(),
        quarantined_bytes: quarantined().map(|of| of.bytes).sum(),
        insecure: shared.security.is_insecure(),
        cluster: shared.cluster.id.to_string(),
        healing: Some(healer::show(shared)),
        draining: drain::all(shared, &statuses).await?,
        scrub: Some(scrub::report::status(shared, by_code.iter().map(|(_, of)| of.stripes).sum())),
        total_bytes: space.total_bytes,
        free_bytes: space.free_bytes,
        fits_bytes: space.fits_bytes,
        kept_bytes: space.kept_bytes,
        policy: space.policy,
        code: space.code,
        ..v1::HealthReply::default()
    };
    Ok(Summary { reply, at_risk, unreadable })
}

/// The input of the verdict, and stripes that cannot be read.
fn signs(
    shared: &Shared,
    by_code: &[(String, Totals)],
    statuses: &[MemberStatus],
    failed: &[v1::FailedDisk],
) -> Result<(Signs, Vec<StripeId>)> {
    let all = by_code.iter().map(|(code, of)| Ok((code.clone(), of.stripes, shared.code(code)?.tolerance())));
    let all = all.collect::<Result<Vec<_>>>()?;
    let down = statuses.iter().filter(|status| !status.up).map(|status| DownNode {
        name: status.record.name.to_string(),
        silent_for: status.silent_for,
        blocks: blocks_of(status),
        lost: is_lost(status),
        draining: status.record.draining,
    });
    let failed = failed.iter().map(|it| FailedDisk { node: it.name.clone(), path: it.path.clone(), blocks: it.blocks });
    let state = shared.health.lock();
    let signs = Signs {
        counts: state.tally.counts(&all),
        counting: state.survey.is_counting(),
        nodes: statuses.len(),
        down: down.collect(),
        failed: failed.collect(),
        ailing: Vec::new(),
        full: None,
    };
    Ok((signs, state.tally.unreadable(STRIPES_LOOKED_UP)))
}

/// All failed disks. The blocks left on each are looked up, because the node's own count may be some seconds old.
async fn failed_disks(shared: &Shared, statuses: &[MemberStatus]) -> Result<Vec<v1::FailedDisk>> {
    let mut failed = Vec::new();
    for status in statuses {
        for disk in status.record.disks.iter().filter(|disk| disk.failed) {
            let home = Home { node: status.record.id, disk: disk.number };
            let left = shared.meta.blocks_on(home, None, 1).await.map_err(|error| shared.meta_error(error))?;
            let counted = status.disks.get(&disk.number).map_or(0, |disk| disk.blocks);
            if disk.moved_to.is_some() && left.items.is_empty() {
                continue;
            }
            failed.push(v1::FailedDisk {
                node: status.record.id.0,
                name: status.record.name.to_string(),
                id: disk.id.to_string(),
                path: disk.path.to_string(),
                blocks: if left.items.is_empty() { 0 } else { counted.max(1) },
                moved_to: disk.moved_to.map(|home| shared.members.name(home.node)).unwrap_or_default(),
            });
        }
    }
    Ok(failed)
}

/// The names of the objects that these stripes belong to.
async fn objects_of(shared: &Shared, stripes: Vec<StripeId>) -> Result<Vec<v1::ObjectName>> {
    let stripes = shared.meta.find_stripes(stripes).await.map_err(|error| shared.meta_error(error))?;
    let version = |owner: Owner| if let Owner::Object(version) = owner { Some(version) } else { None };
    let versions: BTreeSet<UploadId> = stripes.iter().filter_map(|stripe| version(stripe.owner)).collect();
    let mut names = Vec::new();
    for version in versions.into_iter().take(OBJECTS_NAMED) {
        match shared.meta.object_of(version).await {
            Ok(object) => names.push(v1::ObjectName { bucket: object.name.bucket, key: object.name.key }),
            // The object was removed in the meantime.
            Err(MetaError::NotFound(_)) => {}
            Err(error) => return Err(shared.meta_error(error)),
        }
    }
    Ok(names)
}

/// The space of the usable disks, and how much data fits there by the default policy.
#[derive(Default)]
struct Space {
    total_bytes: u64,
    free_bytes: u64,
    /// What puts leave free to rebuild the largest node.
    kept_bytes: u64,
    fits_bytes: u64,
    policy: String,
    code: String,
    /// The policy, if nothing fits.
    full: Option<FullPolicy>,
}

fn space(shared: &Shared, policy: Option<PolicyRecord>) -> Result<Space> {
    let view = shared.members.view();
    let mut space = Space::default();
    for (_, disk, sharers) in view.usable_disks() {
        space.total_bytes = space.total_bytes.saturating_add(disk.total_bytes / sharers);
        space.free_bytes = space.free_bytes.saturating_add(disk.free_bytes / sharers);
    }
    if let Some(policy) = policy {
        let Fits { bytes, kept_bytes, full } = fits(shared, &view, &policy)?;
        (space.fits_bytes, space.kept_bytes, space.full) = (bytes, kept_bytes, full);
        (space.policy, space.code) = (policy.name, policy.code);
    }
    Ok(space)
}

fn blocks_of(status: &MemberStatus) -> u64 {
    status.disks.values().map(|disk| disk.blocks).sum()
}

fn down_node(status: &MemberStatus) -> v1::DownNode {
    v1::DownNode {
        node: status.record.id.0,
        name: status.record.name.to_string(),
        silent_ms: u64::try_from(status.silent_for.as_millis()).unwrap_or(u64::MAX),
        blocks: blocks_of(status),
        lost: is_lost(status),
    }
}

fn suspect_node(status: &MemberStatus) -> Option<v1::SuspectNode> {
    let suspect = status.suspect.as_ref()?;
    Some(v1::SuspectNode {
        node: status.record.id.0,
        name: status.record.name.to_string(),
        suspect_ms: u64::try_from(status.suspect_for.as_millis()).unwrap_or(u64::MAX),
        since_ms: suspect.since_ms,
        why: suspect.why.clone(),
    })
}

fn ailing_disk(it: &v1::AilingDisk) -> AilingDisk {
    AilingDisk {
        node: it.name.clone(),
        path: it.path.clone(),
        trouble: it.trouble.clone(),
        why: it.why.clone(),
        blocks: it.blocks,
        draining: it.draining,
    }
}

fn is_lost(status: &MemberStatus) -> bool {
    status.record.state == NodeState::Lost
}

fn bearing(it: &Bearing) -> v1::Bearing {
    let further_losses = it.further.map(|further| u32::try_from(further).unwrap_or(u32::MAX));
    v1::Bearing { code: it.code.clone(), further_losses, stripes: it.stripes }
}

pub(crate) fn bad_blocks(it: BadBlocks) -> v1::BadBlocks {
    let BadBlocks { corrupt, missing, coming, failed, lost, away, leaving: _ } = it;
    v1::BadBlocks { corrupt, missing, coming, on_failed_disks: failed, on_lost_nodes: lost, on_down_nodes: away }
}
