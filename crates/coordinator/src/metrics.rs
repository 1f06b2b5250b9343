//! The metrics of the coordinator: what `GET /metrics` answers. The figures are those of `weft status`, and are read the same way.

mod families;
#[cfg(test)]
mod tests;

pub use families::FAMILIES;

use crate::{
    health::{self, Summary},
    jobs, limit,
    meter::{OpenRead, PlanKind},
    shared::Shared,
};
use async_trait::async_trait;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};
use weft_control::{disk_health::Trouble, health::Level, members::MemberStatus};
use weft_proto::{
    metrics::{self, CallMeter, Family, Figures, Scraped},
    v1,
};
use weft_types::{NodeState, Reaction, Result};

/// All groups of families.
const GROUPS: &[&[Family]] = &[FAMILIES, metrics::CALLS];

/// What stripes wait for, to be shown also if none does.
const WAITS: [&str; 4] = ["nodes", "space", "checksums", "retry"];

/// A coordinator as a source of metrics.
pub(crate) struct Source {
    pub(crate) shared: Arc<Shared>,
    pub(crate) calls: Vec<Arc<CallMeter>>,
}

#[async_trait]
impl Scraped for Source {
    async fn figures(&self) -> Result<Figures> {
        let shared = &self.shared;
        let (summary, statuses) = (health::summary(shared).await?, shared.members.statuses());
        let mut figures = Figures::of(GROUPS);
        let all = &mut figures;
        all.add("weft_coordinator_info", [env!("CARGO_PKG_VERSION")], true);
        all.add("weft_coordinator_epoch", [], shared.epoch.0);
        all.add("weft_metadata_commits", [], shared.meta.commits());
        of_health(all, &summary);
        of_nodes(all, &statuses, &summary.reply.ailing_disks);
        of_drains(all, &summary.reply.draining);
        of_repair(all, shared, &summary.reply.healing.unwrap_or_default());
        of_scrub(all, &summary.reply.scrub.unwrap_or_default());
        of_updates(all, shared);
        of_jobs(all, shared);
        of_plans(all, shared);
        metrics::add_calls(all, &self.calls);
        Ok(figures)
    }
}

fn of_health(all: &mut Figures, Summary { reply, at_risk, .. }: &Summary) {
    for level in [Level::Healthy, Level::Degraded, Level::AtRisk, Level::Unavailable] {
        all.add("weft_health", [level.name()], level.name() == reply.level);
    }
    all.add("weft_counting", [], reply.counting);
    all.add("weft_objects", [], reply.objects);
    all.add("weft_data_bytes", [], reply.data_bytes);
    for v1::Bearing { code, further_losses, stripes } in &reply.bearings {
        let further = further_losses.map_or_else(|| "unreadable".to_owned(), |further| further.to_string());
        all.add("weft_stripes", [code, &further], *stripes);
    }
    all.add("weft_stripes_with_bad_blocks", [], reply.stripes_with_bad_blocks);
    all.add("weft_stripes_at_risk", [], *at_risk);
    all.add("weft_stripes_unreadable", [], reply.unreadable_stripes);
    all.add("weft_stripes_lost", [], reply.lost_stripes);
    let bad = reply.bad_blocks.unwrap_or_default();
    let kinds = [
        ("corrupt", bad.corrupt),
        ("missing", bad.missing),
        ("coming", bad.coming),
        ("on_failed_disks", bad.on_failed_disks),
        ("on_down_nodes", bad.on_down_nodes),
        ("on_lost_nodes", bad.on_lost_nodes),
    ];
    kinds.iter().for_each(|(kind, blocks)| all.add("weft_bad_blocks", [kind], *blocks));
    all.add("weft_failed_disk_blocks", [], reply.failed_disks.iter().map(|disk| disk.blocks).sum::<u64>());
    all.add("weft_space_size_bytes", [], reply.total_bytes);
    all.add("weft_space_free_bytes", [], reply.free_bytes);
    all.add("weft_space_kept_bytes", [], reply.kept_bytes);
    all.add("weft_space_fits_bytes", [], reply.fits_bytes);
    all.add("weft_quarantined_blocks", [], reply.quarantined_blocks);
    all.add("weft_quarantined_bytes", [], reply.quarantined_bytes);
}

fn of_nodes(all: &mut Figures, statuses: &[MemberStatus], ailing: &[v1::AilingDisk]) {
    let ailing: BTreeSet<[&str; 3]> = ailing.iter().map(|it| [&*it.name, &*it.path, &*it.trouble]).collect();
    let mut states = BTreeMap::from([NodeState::Up, NodeState::Down, NodeState::Lost].map(|state| (state.name(), 0u64)));
    for status in statuses {
        *states.entry(crate::show::state(status).name()).or_default() += 1;
        all.add("weft_node_up", [&*status.record.name, &*status.record.rack], status.up);
        all.add("weft_node_suspect", [&*status.record.name, &*status.record.rack], !status.suspect_for.is_zero());
        // A disk that was replaced and its successor may have the same path.
        let mut failed: BTreeMap<&str, bool> = BTreeMap::new();
        for disk in &status.record.disks {
            *failed.entry(&disk.path).or_default() |= disk.failed;
        }
        for (path, failed) in failed {
            all.add("weft_disk_failed", [&*status.record.name, path], failed);
            for trouble in Trouble::ALL {
                let labels = [&*status.record.name, path, trouble.name()];
                all.add("weft_disk_trouble", labels, ailing.contains(&labels));
            }
        }
    }
    states.into_iter().for_each(|(state, nodes)| all.add("weft_nodes", [state], nodes));
}

fn of_drains(all: &mut Figures, drains: &[v1::Draining]) {
    // As in `of_nodes`.
    let mut left: BTreeMap<[&str; 2], u64> = BTreeMap::new();
    drains.iter().for_each(|it| *left.entry([&*it.name, &*it.path]).or_default() += it.blocks + it.allocations);
    left.into_iter().for_each(|(labels, blocks)| all.add("weft_draining_blocks", labels, blocks));
}

fn of_repair(all: &mut Figures, shared: &Shared, healing: &v1::Healing) {
    all.add("weft_repair_auto", [], healing.on);
    all.add("weft_repair_stopped", [], !healing.stopped.is_empty());
    all.add("weft_repair_guarded", [], !healing.guard.is_empty());
    all.add("weft_repair_stripes_left", [], healing.stripes_left);
    all.add("weft_repair_stripes_under_way", [], u64::from(healing.stripes_under_way));
    for wait in WAITS {
        let stripes = healing.waiting.iter().filter(|it| it.wait == wait).map(|it| it.stripes).sum::<u64>();
        all.add("weft_repair_stripes_waiting", [wait], stripes);
    }
    all.add("weft_crowded_stripes", [], healing.crowded_stripes);
    all.add("weft_repair_limited", [], !healing.limit.is_empty());
    if let Some(rate) = limit::lowest(shared) {
        all.add("weft_repair_limit_bytes_per_second", [], rate);
    }
    for (scheme, of) in shared.meter.repairs() {
        all.add("weft_repaired_blocks", [&scheme], of.blocks);
        all.add("weft_repaired_bytes", [&scheme], of.bytes);
        all.add("weft_repair_failed_plans", [&scheme], of.failed_plans);
    }
}

fn of_scrub(all: &mut Figures, scrub: &v1::ScrubStatus) {
    all.add("weft_scrub_period_seconds", [], scrub.period_ms / 1000);
    all.add("weft_scrub_began_timestamp_seconds", [], scrub.began_ms / 1000);
    all.add("weft_scrub_last_end_timestamp_seconds", [], scrub.last_ended_ms / 1000);
    all.add("weft_scrub_late", [], scrub.late);
    for (pass, report) in [("current", &scrub.report), ("last", &scrub.last_report)] {
        let tally = report.as_ref().and_then(|report| report.tally).unwrap_or_default();
        all.add("weft_scrub_checked_stripes", [pass], tally.stripes);
        all.add("weft_scrub_checked_bytes", [pass], tally.bytes);
        all.add("weft_scrub_wrong_blocks", [pass], tally.wrong_blocks);
        all.add("weft_scrub_inconsistent_stripes", [pass], tally.inconsistent_stripes);
        all.add("weft_scrub_away_blocks", [pass], tally.away_blocks);
        all.add("weft_scrub_not_checked_stripes", [pass], tally.not_checked_stripes);
    }
}

fn of_updates(all: &mut Figures, shared: &Shared) {
    all.add("weft_open_stripes", [], shared.updates.open_stripes());
    let [opened, sealed, settled] = shared.updates.counts();
    all.add("weft_stripes_opened", [], opened);
    all.add("weft_stripes_sealed", [], sealed);
    all.add("weft_stripes_settled", [], settled);
    for how in OpenRead::ALL {
        all.add("weft_open_stripe_reads", [how.name()], shared.meter.open_reads(how));
    }
}

fn of_jobs(all: &mut Figures, shared: &Shared) {
    for jobs::Shown { id, kind, is_running, total, done, left } in jobs::shown(shared) {
        let id = id.to_string();
        all.add("weft_job_running", [&id, kind], is_running);
        all.add("weft_job_size_blocks", [&id, kind], total.blocks);
        all.add("weft_job_size_bytes", [&id, kind], total.bytes);
        all.add("weft_job_done_blocks", [&id, kind], done.blocks);
        all.add("weft_job_done_bytes", [&id, kind], done.bytes);
        all.add("weft_job_left_blocks", [&id, kind], left.blocks);
        all.add("weft_job_left_bytes", [&id, kind], left.bytes);
    }
    for ((kind, outcome), jobs) in shared.meter.jobs_ended() {
        all.add("weft_jobs_ended", [kind, outcome], jobs);
    }
}

fn of_plans(all: &mut Figures, shared: &Shared) {
    let meter = &shared.meter;
    for kind in PlanKind::ALL {
        all.add("weft_plan_seconds", [kind.name()], meter.plan_times(kind));
        all.add("weft_plans_refused", [kind.name()], meter.refused(kind));
    }
    for reaction in Reaction::ALL {
        all.add("weft_plans_failed", [reaction.name()], meter.failed(reaction));
    }
    all.add("weft_plans_starved", [], meter.starved());
    let (waits, waited) = meter.busy_waits();
    all.add("weft_plan_busy_waits", [], waits);
    all.add("weft_plan_busy_wait_seconds", [], waited);
    for (cache, counts) in [("shapes", shared.known.proofs()), ("patterns", shared.known.patterns())] {
        all.add("weft_plan_cache_lookups", [cache, "hit"], counts.hits);
        all.add("weft_plan_cache_lookups", [cache, "miss"], counts.misses);
    }
}
