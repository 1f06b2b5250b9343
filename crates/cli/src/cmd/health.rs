//! `weft status`: whether the cluster is healthy, why not, and how much space is left, on one screen.

use super::{
    healing::{Healing, duration},
    job,
    node_drain::Draining,
    scrubbing::Scrubbing,
};
use clap::Args;
use serde::Serialize;
use std::fmt::Write as _;
use weft_cli::{exit::Exit, output::Output, session::Session, table::table, target, utc::utc};
use weft_client::api;
use weft_types::{NodeId, Result, counted, human_bytes};

/// The most nodes, and the most disks, that get a line of their own.
const LINES_MAX: usize = 6;

/// Show whether the cluster is healthy, why not, how many further losses data survives, and how much space is left
///
/// A block counts as missing if it is lost or if its node is down. The coordinator maintains the counts, so a monitor can run this command
/// every few seconds.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLE
  weft status
  weft status --json | jq -r '.level, .reasons[]'
  weft status >/dev/null || echo \"weft needs attention: exit code $?\"

EXIT CODES
  0 healthy   3 no cluster   4 some data cannot be read now, or the coordinator does not answer   \
  8 degraded: all data can be read, but a node is down, blocks are lost, or stripes are still being counted   \
  9 at risk: all data can be read, but some does not survive the loss of a further block")]
pub(super) struct Status {}

#[derive(Debug, Serialize)]
struct Report {
    /// healthy, degraded, at-risk or unavailable.
    level: String,
    /// The reasons why the cluster is not healthy, the worst first.
    reasons: Vec<String>,
    /// Whether stripes are still being counted. If so, the numbers of stripes and blocks are too low.
    counting: bool,
    cluster: String,
    insecure: bool,
    objects: u64,
    data_bytes: u64,
    stripes: Stripes,
    bad_blocks: BadBlocks,
    /// The first objects that cannot be read.
    unreadable_objects: Vec<String>,
    nodes: u32,
    down_nodes: Vec<DownNode>,
    /// Nodes that are up, and that plans avoid for a while. They do not change the level.
    suspect_nodes: Vec<SuspectNode>,
    failed_disks: Vec<FailedDisk>,
    /// Disks that work, and are slow or failing.
    ailing_disks: Vec<AilingDisk>,
    /// Disks that another node had and that wait to be taken in. They do not change the level.
    aside_disks: Vec<AsideDisk>,
    space: Space,
    garbage_blocks: u64,
    garbage_bytes: u64,
    quarantined_blocks: u64,
    quarantined_bytes: u64,
    /// What the cluster does by itself about lost blocks.
    repair: Healing,
    /// How far the check of all data in the background is.
    scrub: Scrubbing,
    /// Nodes and disks that are being drained.
    draining: Vec<Draining>,
    /// The jobs that are running or paused.
    jobs: Vec<job::Report>,
}

#[derive(Debug, Serialize)]
struct Stripes {
    total: u64,
    with_bad_blocks: u64,
    /// Stripes that cannot be read now.
    unreadable: u64,
    /// Stripes that cannot be read even if all nodes are up.
    lost: u64,
    by_further_losses: Vec<Bearing>,
}

#[derive(Debug, Serialize)]
struct Bearing {
    code: String,
    /// How many further blocks each of these stripes can lose, in any combination; null: they cannot be read.
    further_losses: Option<u32>,
    stripes: u64,
}

/// Blocks that cannot be read; each is counted once.
#[derive(Debug, Serialize)]
struct BadBlocks {
    corrupt: u64,
    missing: u64,
    coming: u64,
    on_failed_disks: u64,
    /// On nodes that are down and were not declared lost.
    on_down_nodes: u64,
    on_lost_nodes: u64,
}

#[derive(Debug, Serialize)]
struct DownNode {
    id: String,
    name: String,
    silent_ms: u64,
    blocks: u64,
    /// Whether it was declared lost: its blocks are rebuilt on other nodes.
    lost: bool,
}

#[derive(Debug, Serialize)]
struct SuspectNode {
    id: String,
    name: String,
    /// For so long, plans still avoid it.
    suspect_ms: u64,
    /// Since when they do, milliseconds since 1970.
    since_ms: u64,
    /// Empty: not known.
    why: String,
}

#[derive(Debug, Serialize)]
struct FailedDisk {
    node: String,
    id: String,
    path: String,
    /// Blocks that the disk held and that were not rebuilt elsewhere.
    blocks: u64,
    /// The node to which it was moved; null: it was not.
    moved_to: Option<String>,
}

#[derive(Debug, Serialize)]
struct AilingDisk {
    node: String,
    id: String,
    path: String,
    /// slow, failing.
    trouble: String,
    why: String,
    /// As far as known.
    blocks: u64,
    draining: bool,
}

/// A disk that another node had, in a node that does not use it yet.
#[derive(Debug, Serialize)]
pub(super) struct AsideDisk {
    pub(super) node: String,
    pub(super) id: String,
    pub(super) path: String,
    /// The node that had it.
    pub(super) owner: String,
    /// That it has, as far as known.
    pub(super) blocks: u64,
    /// Why it waits, and what to do.
    pub(super) why: String,
}

impl From<api::AsideDisk> for AsideDisk {
    fn from(it: api::AsideDisk) -> Self {
        Self { node: it.name, id: it.id, path: it.path, owner: it.owner, blocks: it.blocks, why: it.why }
    }
}

impl AsideDisk {
    /// A line for a person.
    pub(super) fn line(&self) -> String {
        let Self { node, owner, blocks, why, .. } = self;
        format!("{node} keeps a disk aside, with {} of {owner}: {why}", counted(*blocks, "block"))
    }
}

/// The space of usable disks.
#[derive(Debug, Serialize)]
struct Space {
    total_bytes: u64,
    used_bytes: u64,
    free_bytes: u64,
    /// What of the disks puts leave free, so that the largest node can be rebuilt; 0: nothing.
    kept_bytes: u64,
    /// How many bytes of new data fit under the default policy.
    fits_bytes: u64,
    policy: String,
    code: String,
}

impl Report {
    fn new(it: api::HealthReply, nodes: &[api::Node]) -> Self {
        let bearing = |it: api::Bearing| Bearing { code: it.code, further_losses: it.further_losses, stripes: it.stripes };
        let down = |it: api::DownNode| DownNode {
            id: NodeId(it.node).to_string(),
            name: it.name,
            silent_ms: it.silent_ms,
            blocks: it.blocks,
            lost: it.lost,
        };
        let suspect = |it: api::SuspectNode| SuspectNode {
            id: NodeId(it.node).to_string(),
            name: it.name,
            suspect_ms: it.suspect_ms,
            since_ms: it.since_ms,
            why: it.why,
        };
        let failed = |it: api::FailedDisk| FailedDisk {
            node: it.name,
            id: it.id,
            path: it.path,
            blocks: it.blocks,
            moved_to: Some(it.moved_to).filter(|node| !node.is_empty()),
        };
        let ailing = |it: api::AilingDisk| AilingDisk {
            node: it.name,
            id: it.id,
            path: it.path,
            trouble: it.trouble,
            why: it.why,
            blocks: it.blocks,
            draining: it.draining,
        };
        let bad = it.bad_blocks.unwrap_or_default();
        Self {
            level: it.level,
            reasons: it.reasons,
            counting: it.counting,
            cluster: it.cluster,
            insecure: it.insecure,
            objects: it.objects,
            data_bytes: it.data_bytes,
            stripes: Stripes {
                total: it.stripes,
                with_bad_blocks: it.stripes_with_bad_blocks,
                unreadable: it.unreadable_stripes,
                lost: it.lost_stripes,
                by_further_losses: it.bearings.into_iter().map(bearing).collect(),
            },
            bad_blocks: BadBlocks {
                corrupt: bad.corrupt,
                missing: bad.missing,
                coming: bad.coming,
                on_failed_disks: bad.on_failed_disks,
                on_down_nodes: bad.on_down_nodes,
                on_lost_nodes: bad.on_lost_nodes,
            },
            unreadable_objects: it.unreadable_objects.into_iter().map(|it| format!("{}/{}", it.bucket, it.key)).collect(),
            nodes: it.nodes,
            down_nodes: it.down_nodes.into_iter().map(down).collect(),
            suspect_nodes: it.suspect_nodes.into_iter().map(suspect).collect(),
            failed_disks: it.failed_disks.into_iter().map(failed).collect(),
            ailing_disks: it.ailing_disks.into_iter().map(ailing).collect(),
            aside_disks: it.aside_disks.into_iter().map(AsideDisk::from).collect(),
            space: Space {
                total_bytes: it.total_bytes,
                used_bytes: it.total_bytes.saturating_sub(it.free_bytes),
                free_bytes: it.free_bytes,
                kept_bytes: it.kept_bytes,
                fits_bytes: it.fits_bytes,
                policy: it.policy,
                code: it.code,
            },
            garbage_blocks: it.garbage_blocks,
            garbage_bytes: it.garbage_bytes,
            quarantined_blocks: it.quarantined_blocks,
            quarantined_bytes: it.quarantined_bytes,
            repair: it.healing.unwrap_or_default().into(),
            scrub: it.scrub.unwrap_or_default().into(),
            draining: it.draining.into_iter().map(Draining::from).collect(),
            jobs: it.jobs.into_iter().map(|it| job::Report::new(it, nodes)).collect(),
        }
    }

    fn exit(&self) -> Exit {
        match self.level.as_str() {
            "healthy" => Exit::Ok,
            "degraded" => Exit::Degraded,
            "at-risk" => Exit::AtRisk,
            _ => Exit::Unavailable,
        }
    }

    /// The level as text.
    fn headline(&self) -> &str {
        match self.level.as_str() {
            "at-risk" => "at risk",
            "unavailable" => "data unavailable",
            level => level,
        }
    }
}

impl Status {
    pub(super) fn run(self, options: &target::Options, output: Output) -> Result<Exit> {
        let report = Session::with(options, async |session| {
            let health = session.client.health().await?;
            // Jobs contain node ids; show names instead.
            let nodes = if health.jobs.is_empty() { Vec::new() } else { session.nodes().await };
            Ok(Report::new(health, &nodes))
        })?;
        output.result(&report, text)?;
        Ok(report.exit())
    }
}

fn text(it: &Report) -> String {
    let mut text = it.headline().to_owned();
    match it.reasons.as_slice() {
        [] => {}
        [only] => text += &format!(": {only}"),
        reasons => reasons.iter().for_each(|reason| text += &format!("\n  {reason}")),
    }
    text += "\n\n";
    let (up, stripes) = (u64::from(it.nodes).saturating_sub(it.down_nodes.len() as u64), it.stripes.total);
    let insecure = if it.insecure { " (insecure)" } else { "" };
    let _ = writeln!(text, "cluster {}{insecure}: {up} of {} nodes are up", it.cluster, it.nodes);
    let _ = writeln!(
        text,
        "{} with {} of data in {}",
        counted(it.objects, "object"),
        human_bytes(it.data_bytes),
        counted(stripes, "stripe")
    );
    text += &losses_text(it);
    text += &damage_text(it);
    text += "\n";
    text += &space_text(it);
    text += &it.repair.text();
    text += &it.scrub.text();
    it.draining.iter().for_each(|drain| text += &format!("drain: {}\n", drain.line(it.repair.remaining_ms())));
    it.jobs.iter().for_each(|job| text += &format!("{}\n", job.line()));
    text
}

/// How many further losses the stripes survive.
fn losses_text(it: &Report) -> String {
    if it.stripes.by_further_losses.is_empty() {
        return String::new();
    }
    let further = |it: &Bearing| match it.further_losses {
        Some(1) => "1 further loss".to_owned(),
        Some(losses) => format!("{losses} further losses"),
        None => "cannot be read".to_owned(),
    };
    let row = |it: &Bearing| [further(it), it.code.clone(), it.stripes.to_string()];
    format!("\n{}\n", table(["survive any", "code", "stripes"], &[2], it.stripes.by_further_losses.iter().map(row)))
}

/// Objects that cannot be read, and the nodes and disks that held them.
fn damage_text(it: &Report) -> String {
    let mut text = String::new();
    if !it.unreadable_objects.is_empty() {
        let more = if it.unreadable_objects.len() < 10 { "" } else { ", …" };
        let _ = writeln!(text, "\nobjects that cannot be read: {}{more}", it.unreadable_objects.join(", "));
    }
    let down = |node: &DownNode| {
        let (silent, blocks) = (duration(node.silent_ms), counted(node.blocks, "block"));
        match (node.lost, node.blocks) {
            (false, _) => format!("{} is down, silent for {silent}; it holds {blocks}", node.name),
            (true, 0) => format!("{} is lost, silent for {silent}; its blocks are on other nodes", node.name),
            (true, _) => format!("{} is lost, silent for {silent}; {blocks} must be rebuilt", node.name),
        }
    };
    text += &first_lines(&it.down_nodes, "node", down);
    let failed = |disk: &FailedDisk| {
        if let Some(to) = &disk.moved_to {
            let (path, node, blocks) = (&disk.path, &disk.node, counted(disk.blocks, "block"));
            return format!("disk {path} of {node} was moved to {to}; {blocks} did not follow");
        }
        let left = match disk.blocks {
            0 => "nothing is left to rebuild".to_owned(),
            1 => "1 block was not rebuilt".to_owned(),
            blocks => format!("{blocks} blocks were not rebuilt"),
        };
        format!("disk {} of {} failed or is gone; {left}", disk.path, disk.node)
    };
    text += &first_lines(&it.failed_disks, "disk", failed);
    text += &first_lines(&it.aside_disks, "disk", AsideDisk::line);
    text += &first_lines(&it.suspect_nodes, "suspect node", suspect_line);
    text
}

/// A node that plans avoid for a while.
fn suspect_line(it: &SuspectNode) -> String {
    let why = if it.why.is_empty() { "a plan failed there" } else { &it.why };
    let seconds = it.suspect_ms.div_ceil(1000);
    format!("{} is suspect since {}, plans avoid it for {seconds} s more: {why}", it.name, utc(it.since_ms))
}

/// A line for each of the first few, so that everything fits on one screen.
fn first_lines<T>(all: &[T], noun: &str, line: impl Fn(&T) -> String) -> String {
    let more = all.len().saturating_sub(LINES_MAX);
    let mut text: String = all.iter().take(LINES_MAX).map(|it| format!("\n{}\n", line(it))).collect();
    if more > 0 {
        let _ = writeln!(text, "\nand {}: `weft cluster status` lists all", counted(more as u64, &format!("more {noun}")));
    }
    text
}

fn space_text(it: &Report) -> String {
    let Space { total_bytes, used_bytes, free_bytes, kept_bytes, fits_bytes, policy, code } = &it.space;
    let [total, used, free, fits, kept] =
        [total_bytes, used_bytes, free_bytes, fits_bytes, kept_bytes].map(|bytes| human_bytes(*bytes));
    let kept = if *kept_bytes == 0 { String::new() } else { format!(", {kept} kept for repair") };
    let why = if *fits_bytes == 0 { ": too few nodes are up, or disks are full" } else { "" };
    let mut text =
        format!("space: {used} of {total} used, {free} free{kept}; {fits} of new data fit in {code} (policy {policy}){why}\n");
    let amount = |blocks: u64, bytes: u64| {
        if blocks == 0 { "none".to_owned() } else { format!("{} ({})", counted(blocks, "block"), human_bytes(bytes)) }
    };
    let garbage = amount(it.garbage_blocks, it.garbage_bytes);
    let _ = writeln!(text, "garbage: {garbage}; quarantined: {}", amount(it.quarantined_blocks, it.quarantined_bytes));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suspect_nodes_are_listed_and_are_no_alarm() {
        let node = |name: &str, why: &str| api::SuspectNode {
            node: 3,
            name: name.into(),
            suspect_ms: 11_001,
            since_ms: 1_800_000_000_000,
            why: why.into(),
        };
        let suspect_nodes = vec![node("node-03", "it does not answer: refused"), node("node-04", "")];
        let health = api::HealthReply { level: "healthy".into(), suspect_nodes, ..api::HealthReply::default() };
        let report = Report::new(health, &[]);
        let (told, json) = (text(&report), serde_json::to_value(&report).unwrap());
        let (since, more) = (utc(1_800_000_000_000), "plans avoid it for 12 s more");
        assert!(told.contains(&format!("\nnode-03 is suspect since {since}, {more}: it does not answer: refused\n")), "{told}");
        assert!(told.contains(&format!("\nnode-04 is suspect since {since}, {more}: a plan failed there\n")), "{told}");
        assert_eq!(json["suspect_nodes"][0]["why"], "it does not answer: refused");
        assert_eq!((report.exit(), json["reasons"].as_array().map(Vec::len)), (Exit::Ok, Some(0)));
    }

    #[test]
    fn a_disk_that_waits_or_that_was_moved_is_told_with_its_nodes() {
        let (name, owner, why) = ("node-02".into(), "node-01".into(), "node-01 is up and lists it".into());
        let aside = api::AsideDisk { name, owner, why, blocks: 7, ..api::AsideDisk::default() };
        let moved = api::FailedDisk {
            name: "node-01".into(),
            path: "/a".into(),
            blocks: 1,
            moved_to: "node-02".into(),
            ..api::FailedDisk::default()
        };
        let (aside_disks, failed_disks) = (vec![aside], vec![moved]);
        let health = api::HealthReply { level: "healthy".into(), aside_disks, failed_disks, ..api::HealthReply::default() };
        let told = text(&Report::new(health, &[]));
        assert!(told.contains("\nnode-02 keeps a disk aside, with 7 blocks of node-01: node-01 is up and lists it\n"), "{told}");
        assert!(told.contains("\ndisk /a of node-01 was moved to node-02; 1 block did not follow\n"), "{told}");
    }
}
