//! Drains slow and failing disks without a person, as far as the setting `drain_failing_disks` allows it. [`weft_control::disk_health`] decides
//! which; whether their blocks have other homes is checked as for a drain that a person begins. Disks that were drained for good are forgotten.

use crate::{
    departures, disk_health, drain,
    health::{self, Summary},
    shared::Shared,
};
use std::{sync::Arc, time::Duration};
use tokio::time::MissedTickBehavior;
use weft_control::disk_health::{Candidate, Surroundings, to_drain};
use weft_types::{Home, Result};

/// How often the disks are judged.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Watches the disks for as long as it runs.
pub(crate) async fn run(shared: Arc<Shared>) {
    shared.until_nodes_are_back().await;
    let mut look = tokio::time::interval(LOOK_INTERVAL);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        look.tick().await;
        disk_health::judge(&shared);
        if let Err(error) = departures::forget_retired(&shared).await
            && let Some(left_out) = shared.failures.admit("retired disks", &error.message)
        {
            tracing::warn!(%error, left_out, "cannot forget a disk that was drained for good yet");
        }
        if let Err(error) = drain_one(&shared).await
            && let Some(left_out) = shared.failures.admit("drain_failing_disks", &error.message)
        {
            tracing::warn!(%error, left_out, "cannot look whether a slow or failing disk is to be drained");
        }
    }
}

/// Begins at most one drain.
async fn drain_one(shared: &Shared) -> Result<()> {
    let (policy, candidates) = (shared.config.drain_failing_disks, candidates(shared));
    let calm = Surroundings { drains: false, at_risk: false, stopped: false };
    // Usually there is nothing to drain, and no more is asked.
    if to_drain(policy, candidates.iter().copied(), calm).is_empty() {
        return Ok(());
    }
    let Summary { reply, at_risk, .. } = health::summary(shared).await?;
    let healing = reply.healing.unwrap_or_default();
    let around = Surroundings {
        drains: reply.draining.iter().any(|it| it.blocks + it.allocations > 0),
        at_risk: reply.counting || at_risk + reply.unreadable_stripes > 0,
        stopped: !healing.on || !healing.stopped.is_empty(),
    };
    for home in to_drain(policy, candidates, around) {
        let Err(error) = drain::begin(shared, home).await else { return Ok(()) };
        let node = shared.members.name(home.node);
        if let Some(left_out) = shared.failures.admit(&node, &error.message) {
            tracing::warn!(%node, disk = home.disk.0, %error, left_out, "a slow or failing disk cannot be drained now");
        }
    }
    Ok(())
}

fn candidates(shared: &Shared) -> Vec<(Home, Candidate)> {
    let mut candidates = Vec::new();
    for status in shared.members.statuses() {
        let record = &status.record;
        for disk in record.disks.iter().filter(|disk| !disk.failed) {
            let Some(ailment) = shared.disk_health.of(disk.number) else { continue };
            let candidate = Candidate {
                trouble: ailment.trouble,
                draining: disk.draining || record.draining,
                kept: disk.kept,
                has_blocks: status.disks.get(&disk.number).is_some_and(|disk| disk.blocks > 0),
                up: status.up,
            };
            candidates.push((Home { node: record.id, disk: disk.number }, candidate));
        }
    }
    candidates
}
