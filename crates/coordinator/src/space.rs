//! Where space is used and free, and what can still be written.

use crate::{shared::Shared, show};
use weft_control::{
    health::{FullPolicy, fits_bytes},
    members::MemberStatus,
    placement::{described, nodes_needed},
    reserve::{self, Share},
    view::{NodeView, View},
};
use weft_meta::PolicyRecord;
use weft_proto::v1;
use weft_types::Result;

/// How much new data fits under a policy.
pub(crate) struct Fits {
    pub(crate) bytes: u64,
    /// What puts leave free to rebuild the largest node.
    pub(crate) kept_bytes: u64,
    /// If nothing fits.
    pub(crate) full: Option<FullPolicy>,
}

/// How much new data fits under a policy now.
pub(crate) fn fits(shared: &Shared, view: &View, policy: &PolicyRecord) -> Result<Fits> {
    let code = shared.code(&policy.code)?;
    let kept = shared.kept_for_repair(view, code.n());
    // Each further copy is on another node, too.
    let needed = nodes_needed(code.k(), code.n(), policy.replicas);
    let fits = |kept| fits_bytes(view, code.k(), needed, shared.config.disk_reserve.0, kept);
    let bytes = fits(kept);
    let has_disk = |node: &&NodeView| node.up && node.takes_blocks();
    let full = || FullPolicy {
        name: policy.name.clone(),
        code: described(&policy.code, policy.replicas),
        needed,
        up: view.nodes.values().filter(has_disk).count(),
        kept: if fits(Share::NONE) > 0 { kept } else { Share::NONE },
    };
    Ok(Fits { bytes, kept_bytes: reserve::kept_bytes(view, kept), full: (bytes == 0).then(full) })
}

/// The space of all nodes, buckets and policies.
pub(crate) async fn reply(shared: &Shared) -> Result<v1::SpaceReply> {
    let (view, statuses) = (shared.members.view(), shared.members.statuses());
    let totals = shared.meta.totals_by_bucket().await.map_err(|error| shared.meta_error(error))?;
    let buckets = shared.meta.buckets().await.map_err(|error| shared.meta_error(error))?;
    let policies = shared.meta.policies().await.map_err(|error| shared.meta_error(error))?;
    let mut of_buckets = Vec::new();
    for bucket in buckets {
        let own = totals.iter().filter(|(name, ..)| *name == bucket.name);
        let before = of_buckets.len();
        of_buckets.extend(own.map(|(name, code, of)| v1::BucketSpace {
            bucket: name.clone(),
            policy: bucket.policy.clone(),
            code: code.clone(),
            objects: of.objects,
            stripes: of.stripes,
            data_bytes: of.data_bytes,
        }));
        if of_buckets.len() == before {
            let code = policies.iter().find(|policy| policy.name == bucket.policy).map(|policy| policy.code.clone());
            let (policy, code) = (bucket.policy, code.unwrap_or_default());
            of_buckets.push(v1::BucketSpace { bucket: bucket.name, policy, code, ..v1::BucketSpace::default() });
        }
    }
    let of_policy = |policy: &PolicyRecord| {
        let Fits { bytes, kept_bytes, full } = fits(shared, &view, policy)?;
        Ok(v1::PolicySpace {
            policy: policy.name.clone(),
            code: policy.code.clone(),
            is_default: policy.is_default,
            fits_bytes: bytes,
            kept_bytes,
            why: full.map(|full| full.why()).unwrap_or_default(),
        })
    };
    Ok(v1::SpaceReply {
        nodes: of_nodes(&view, &statuses),
        buckets: of_buckets,
        policies: policies.iter().map(of_policy).collect::<Result<_>>()?,
    })
}

fn of_nodes(view: &View, statuses: &[MemberStatus]) -> Vec<v1::NodeSpace> {
    let space = view.space();
    let of = |status: &MemberStatus| {
        let node = view.node(status.record.id)?;
        let good = || node.disks.iter().filter(|disk| !disk.failed);
        let (total_bytes, free_bytes) = space.get(&node.id).copied().unwrap_or_default();
        Some(v1::NodeSpace {
            node: node.id.0,
            name: node.name.to_string(),
            rack: node.rack.to_string(),
            state: show::state(status).name().to_owned(),
            draining: good().next().is_some() && good().all(|disk| disk.draining),
            total_bytes,
            free_bytes,
            blocks: node.disks.iter().map(|disk| disk.blocks).sum(),
        })
    };
    statuses.iter().filter_map(of).collect()
}
