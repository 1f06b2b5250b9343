//! The metrics of an agent: what `GET /metrics` answers.

use crate::{
    disks::Shown,
    line::Line,
    meter::{CLASSES, Outcome},
    node::Node,
    updates::meter::{Answer, ReadEnd},
};
use async_trait::async_trait;
use futures::future::join_all;
use std::{
    path::PathBuf,
    sync::{Arc, OnceLock},
    time::Duration,
};
use tokio::{sync::Semaphore, time::timeout};
use weft_plan::Class;
use weft_proto::metrics::{self, CallMeter, Family, Figures, Scraped, Value};
use weft_types::Result;

/// The families of an agent's metrics, in the order in which they are written.
pub const FAMILIES: &[Family] = &[
    Family::gauge(
        "weft_agent_info",
        &["node", "rack", "zone", "version"],
        "The agent: its name and place, and its version. Always 1.",
    ),
    Family::gauge("weft_agent_registered", &[], "Whether the agent has registered with a coordinator since it started: 1 or 0."),
    Family::counter(
        "weft_agent_network_bytes",
        &["class", "direction"],
        "Bytes of data that tasks and conversions have received (`in`) and sent (`out`), without headers; also those that stay on the \
         machine. Probes of links are not counted.",
    ),
    Family::counter(
        "weft_agent_disk_bytes",
        &["class", "direction"],
        "Bytes of blocks that tasks have read from disks (`read`; the page cache included) and written to them (`write`).",
    ),
    Family::counter(
        "weft_agent_stored_blocks",
        &["class"],
        "Blocks that were stored completely and durably. Those of class `repair` were rebuilt or moved here.",
    ),
    Family::counter("weft_agent_stored_bytes", &["class"], "The bytes of those blocks."),
    Family::gauge("weft_agent_tasks", &["state"], "Tasks that wait for their start (`open`) and that run (`running`)."),
    Family::counter(
        "weft_agent_tasks_ended",
        &["class", "outcome"],
        "Tasks that ended: `done`, `failed`, or `cancelled` by the coordinator, usually because another node failed.",
    ),
    Family::gauge("weft_agent_conversions", &[], "Conversions of stripes that run here."),
    Family::counter(
        "weft_agent_busy",
        &["class"],
        "Tasks that were refused because memory, connections or blocks of a disk were in use. The coordinator tries them again.",
    ),
    Family::gauge("weft_agent_memory_reserved_bytes", &["class"], "Memory that tasks have reserved."),
    Family::gauge("weft_agent_memory_budget_bytes", &[], "Memory that all tasks together may reserve (`limits.memory_budget`)."),
    Family::counter(
        "weft_agent_queue_wait_seconds",
        &["queue", "class"],
        "Time that slices have waited for their turn at a queue: `disk` (all disks together), `uplink`, `downlink`. Many can wait at \
         the same time.",
    ),
    Family::counter(
        "weft_agent_limit_wait_seconds",
        &[],
        "Time that slices have waited for the limit on repair (`weft repair limit`).",
    ),
    Family::counter(
        "weft_agent_corrupt_pages",
        &[],
        "Pages of 4 KiB that failed their checksum or could not be read. One that several tasks find counts several times.",
    ),
    Family::gauge("weft_agent_update_blocks", &[], "Blocks that are open for updates in place, or were and are not closed."),
    Family::counter(
        "weft_agent_updates",
        &["outcome"],
        "Answers to requests for updates that this node leads: `committed`, `aborted`, `expired` (too late), `refused` (for now, or invalid), or `unknown` (the block was lost or left out of its stripe; the coordinator knows).",
    ),
    Family::histogram(
        "weft_agent_update_seconds",
        &[],
        "The time from the arrival of a request until its update is durable on all nodes.",
    ),
    Family::counter(
        "weft_agent_update_messages_dropped",
        &[],
        "Messages between agents about updates that were not delivered or not accepted. They are sent again.",
    ),
    Family::counter(
        "weft_agent_open_reads",
        &["outcome"],
        "Reads of data blocks here that are open for updates in place: `served`, `unchanged` (the reader had the last version), `closed` (the block is not open any more), `unreadable` (its bytes there are damaged), `undecided` (an update's outcome was not known in time, or the term not confirmed), or `refused` (too many, or invalid). What is not served is read from the settled stripe.",
    ),
    Family::gauge(
        "weft_agent_update_journal_fill",
        &["disk"],
        "How full the disk's journal of updates is, with what is reserved: 0 to 1. From 0.5 on, updates wait for earlier ones to be applied; from 0.9 on, none is accepted. Absent before the first update on the disk.",
    ),
    Family::counter(
        "weft_agent_update_journal_syncs",
        &["disk"],
        "Syncs of the disk's journal of updates. Updates that are under way together share them; the pages of updates that are applied are journalled, too.",
    ),
    Family::counter(
        "weft_agent_update_journal_written_bytes",
        &["disk"],
        "Bytes that were written to the disk's journal of updates, in whole pages: the changes, and the new pages before blocks are overwritten with them.",
    ),
    Family::counter(
        "weft_agent_update_patched_bytes",
        &["disk"],
        "Bytes of blocks and their sidecars that were overwritten to apply updates.",
    ),
    Family::gauge("weft_agent_disk_size_bytes", &["disk"], "Size of the disk's file system. A failed disk may have none."),
    Family::gauge("weft_agent_disk_free_bytes", &["disk"], "Bytes that can still be written there."),
    Family::gauge(
        "weft_agent_disk_used_bytes",
        &["disk"],
        "Bytes that cannot be written there, whatever uses them: size minus free.",
    ),
    Family::gauge(
        "weft_agent_disk_measured_bytes_per_second",
        &["disk"],
        "How fast the disk read when it had nothing else to do (docs/operations.md, \"Disks\"). Absent until it was measured.",
    ),
    Family::gauge(
        "weft_agent_disk_answers",
        &["disk"],
        "Whether the disk has told its figures within a second: 1 or 0. If not, it hangs or is far too slow, and its other figures are absent.",
    ),
    Family::gauge("weft_agent_disk_failed", &["disk"], "Whether the disk failed: 1 or 0."),
    Family::counter(
        "weft_agent_disk_errors",
        &["disk", "operation"],
        "Errors of the device when it was read (`read`) or written (`write`). The first failed write fails the disk.",
    ),
    Family::counter("weft_agent_disk_fsyncs", &["disk"], "Calls of fsync and syncfs."),
    Family::gauge("weft_agent_disk_quarantined_blocks", &["disk"], "Blocks out of service that are kept for a while."),
    Family::gauge("weft_agent_disk_quarantined_bytes", &["disk"], "The bytes of those blocks."),
];

/// How long a disk may take to tell its figures.
const DISK_ANSWERS_WITHIN: Duration = Duration::from_secs(1);

/// An agent as a source of metrics.
pub(crate) struct Source {
    pub(crate) node: Arc<Node>,
    pub(crate) calls: Vec<Arc<CallMeter>>,
    /// Held while a disk is asked for its figures: if it hangs, no further thread waits for it.
    asking: OnceLock<Vec<Arc<Semaphore>>>,
}

/// All groups of families.
const GROUPS: &[&[Family]] = &[FAMILIES, metrics::CALLS];

impl Source {
    pub(crate) fn new(node: Arc<Node>, calls: Vec<Arc<CallMeter>>) -> Self {
        Self { node, calls, asking: OnceLock::new() }
    }

    /// The paths of the disks, if they are open, and the figures of those that answer.
    async fn disks(&self) -> Vec<(PathBuf, Option<Shown>)> {
        let Ok(disks) = self.node.disks() else { return Vec::new() };
        let paths: Vec<PathBuf> = disks.lines().map(|(path, _)| path.to_owned()).collect();
        let asking = self.asking.get_or_init(|| paths.iter().map(|_| Arc::new(Semaphore::new(1))).collect());
        let ask = |(number, turn): (usize, &Arc<Semaphore>)| {
            let (disks, turn, mode) = (Arc::clone(&disks), Arc::clone(turn), self.node.seams.disk_mode);
            let asked = async move {
                let turn = turn.acquire_owned().await.ok()?;
                // The thread that asks keeps the turn, also when nobody waits for it any more.
                let (shown, _turn) = mode.run_boxed(move || Ok((disks.shown(number), turn))).await.ok()?;
                shown
            };
            async move { timeout(DISK_ANSWERS_WITHIN, asked).await.ok().flatten() }
        };
        let shown = join_all(asking.iter().enumerate().map(ask)).await;
        paths.into_iter().zip(shown).collect()
    }
}

#[async_trait]
impl Scraped for Source {
    async fn figures(&self) -> Result<Figures> {
        let (disks, mut figures) = (self.disks().await, Figures::of(GROUPS));
        let (node, all) = (&self.node, &mut figures);
        let config = &node.config;
        all.add("weft_agent_info", [&config.name, &config.rack, &config.zone, env!("CARGO_PKG_VERSION")], true);
        all.add("weft_agent_registered", [], node.registration().is_ok());
        for (class, name) in CLASSES {
            of_class(all, node, class, name);
        }
        let (open, running) = node.tasks.counts();
        all.add("weft_agent_tasks", ["open"], open);
        all.add("weft_agent_tasks", ["running"], running);
        all.add("weft_agent_conversions", [], node.conversions());
        all.add("weft_agent_memory_budget_bytes", [], config.limits.memory_budget.0);
        if let Ok(disks) = node.disks() {
            all.add("weft_agent_limit_wait_seconds", [], crate::limit::limited(&node.throttles, &disks));
        }
        all.add("weft_agent_corrupt_pages", [], node.findings.pages());
        of_updates(all, node, &disks);
        for (path, shown) in &disks {
            all.add("weft_agent_disk_answers", [&path.display().to_string()], shown.is_some());
            shown.iter().for_each(|shown| of_disk(all, shown));
        }
        metrics::add_calls(all, &self.calls);
        Ok(figures)
    }
}

fn of_updates(all: &mut Figures, node: &Node, disks: &[(PathBuf, Option<Shown>)]) {
    let hub = &node.updates.hub;
    all.add("weft_agent_update_blocks", [], hub.fence.open_blocks().len());
    for answer in Answer::ALL {
        all.add("weft_agent_updates", [answer.name()], hub.meter.answers(answer));
    }
    all.add("weft_agent_update_seconds", [], hub.meter.times().clone());
    all.add("weft_agent_update_messages_dropped", [], hub.meter.dropped_messages());
    for end in ReadEnd::ALL {
        all.add("weft_agent_open_reads", [end.name()], hub.meter.reads(end));
    }
    for (number, fill) in hub.fills() {
        if let Some((path, _)) = disks.get(number) {
            all.add("weft_agent_update_journal_fill", [&path.display().to_string()], Value::Real(fill));
        }
    }
}

fn of_class(all: &mut Figures, node: &Node, class: Class, name: &str) {
    let meter = node.meter.of(class);
    let moved = meter.traffic.total();
    all.add("weft_agent_network_bytes", [name, "in"], moved.received_bytes);
    all.add("weft_agent_network_bytes", [name, "out"], moved.sent_bytes);
    all.add("weft_agent_disk_bytes", [name, "read"], moved.read_bytes);
    all.add("weft_agent_disk_bytes", [name, "write"], moved.written_bytes);
    let (blocks, bytes) = meter.stored();
    all.add("weft_agent_stored_blocks", [name], blocks);
    all.add("weft_agent_stored_bytes", [name], bytes);
    for outcome in Outcome::ALL {
        all.add("weft_agent_tasks_ended", [name, outcome.name()], meter.tasks(outcome));
    }
    all.add("weft_agent_busy", [name], node.admission.busy(class));
    all.add("weft_agent_memory_reserved_bytes", [name], node.admission.memory_used_bytes_of(class));
    let waited = |lines: &mut dyn Iterator<Item = &Line>| lines.map(|line| line.waited(class)).sum::<Duration>();
    if let Ok(disks) = node.disks() {
        all.add("weft_agent_queue_wait_seconds", ["disk", name], waited(&mut disks.lines().map(|(_, line)| line)));
    }
    for (queue, line) in [("uplink", &node.throttles.uplink), ("downlink", &node.throttles.downlink)] {
        all.add("weft_agent_queue_wait_seconds", [queue, name], waited(&mut std::iter::once(&**line)));
    }
}

fn of_disk(all: &mut Figures, Shown { report, fsyncs, errors, in_place }: &Shown) {
    let disk = report.path.as_str();
    all.add("weft_agent_update_journal_syncs", [disk], in_place.journal_syncs);
    all.add("weft_agent_update_journal_written_bytes", [disk], in_place.journal_bytes);
    all.add("weft_agent_update_patched_bytes", [disk], in_place.patched_bytes);
    if report.total_bytes > 0 {
        all.add("weft_agent_disk_size_bytes", [disk], report.total_bytes);
        all.add("weft_agent_disk_free_bytes", [disk], report.free_bytes);
        all.add("weft_agent_disk_used_bytes", [disk], report.total_bytes.saturating_sub(report.free_bytes));
    }
    if report.bytes_per_s > 0 {
        all.add("weft_agent_disk_measured_bytes_per_second", [disk], report.bytes_per_s);
    }
    all.add("weft_agent_disk_failed", [disk], report.failed);
    all.add("weft_agent_disk_errors", [disk, "read"], errors.reads);
    all.add("weft_agent_disk_errors", [disk, "write"], errors.writes);
    all.add("weft_agent_disk_fsyncs", [disk], *fsyncs);
    all.add("weft_agent_disk_quarantined_blocks", [disk], report.quarantined_blocks);
    all.add("weft_agent_disk_quarantined_bytes", [disk], report.quarantined_bytes);
}

#[cfg(test)]
mod tests;
