//! Disks that work and are slow or failing: the shell around [`weft_control::disk_health`], which decides.

pub(crate) mod state;

use crate::shared::Shared;
use std::{collections::BTreeMap, time::Duration};
use weft_control::{disk_health::Served, members::MemberStatus};
use weft_proto::v1;
use weft_types::{DiskNumber, DiskRecord};

/// Judges all disks, and logs what has changed.
pub(crate) fn judge(shared: &Shared) {
    let statuses = shared.members.statuses();
    let all = || statuses.iter().flat_map(|status| status.record.disks.iter().map(move |disk| (status, disk)));
    let served: BTreeMap<DiskNumber, Served> = all().map(|(status, disk)| (disk.number, served(status, disk))).collect();
    let mut health = shared.disk_health.lock();
    let changed = health.judge(&served, Duration::from_millis(shared.config.slow_disk_ms), shared.started.now());
    for (status, disk) in all().filter(|(_, disk)| changed.contains(&disk.number)) {
        let (node, path) = (&status.record.name, &disk.path);
        match health.of(disk.number) {
            Some(it) => {
                let (trouble, why) = (it.trouble.name(), &it.why);
                tracing::warn!(%node, %path, trouble, why, "a disk works, but is slow or failing");
            }
            None => tracing::info!(%node, %path, "a disk is no longer slow or failing"),
        }
    }
}

/// What a disk has served lately; nothing if it cannot be measured now.
fn served(status: &MemberStatus, disk: &DiskRecord) -> Served {
    let measured = status.disks.get(&disk.number).filter(|_| status.up && !disk.failed);
    measured.map(|state| state.served).unwrap_or_default()
}

/// All disks that work and are slow or failing.
pub(crate) fn ailing(shared: &Shared, statuses: &[MemberStatus]) -> Vec<v1::AilingDisk> {
    let mut ailing = Vec::new();
    for status in statuses {
        for disk in status.record.disks.iter().filter(|disk| !disk.failed) {
            let Some(it) = shared.disk_health.of(disk.number) else { continue };
            ailing.push(v1::AilingDisk {
                node: status.record.id.0,
                name: status.record.name.to_string(),
                id: disk.id.to_string(),
                path: disk.path.to_string(),
                trouble: it.trouble.name().to_owned(),
                why: it.why,
                blocks: status.disks.get(&disk.number).map_or(0, |disk| disk.blocks),
                draining: disk.draining || status.record.draining,
            });
        }
    }
    ailing
}
