//! `weft balance`: a job that moves blocks from fuller disks to emptier ones.

use super::job;
use clap::Args;
use serde::Serialize;
use std::fmt::Write as _;
use weft_cli::{exit::Exit, output::Output, session::Session, table::table, target};
use weft_client::api;
use weft_types::{NodeId, Result, counted, human_bytes};

/// Move blocks from fuller disks to emptier ones, for example after nodes were added
///
/// Afterwards all disks have about the same share of their capacity full of blocks. No more moves than the fuller disks have too much. Blocks are
/// copied, and an old block serves until the new one is committed. Stripes keep one block per node, and racks get no more of a stripe than its code can lose. Lost
/// blocks are rebuilt first, the limit on repair holds (`weft repair limit`), and what puts leave free for repair stays free.
///
/// This is a job: it survives disconnects and coordinator restarts, and can be paused and cancelled (see `weft job`).
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLE
  weft balance --explain
  weft balance
  weft balance --no-wait && weft job ls

EXIT CODES
  0 the fill is even, as far as stripes allow; with --no-wait: the job has begun   1 failed or cancelled   \
  2 an invalid option, or such a job runs already   3 no cluster   4 some blocks could not be moved, or no coordinator   \
  130 interrupted; the job continues")]
pub(super) struct Balance {
    /// Maximum number of stripes of which blocks are moved at the same time, 1 to 64. Fewer run while a link has no room for more streams
    /// [default: four for each node that gets blocks]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    concurrency: Option<u32>,
    /// Start the job and return
    #[arg(long)]
    no_wait: bool,
    /// Show how full disks are before and after, what would move where and how long links and disks need for it, and do nothing
    #[arg(long, conflicts_with = "no_wait")]
    explain: bool,
}

/// What a job would do.
#[derive(Debug, Serialize)]
struct Plan {
    disks: Vec<Disk>,
    nodes: Vec<Traffic>,
    /// What goes where, most bytes first.
    moves: Vec<Moves>,
    /// The sums that were left out of it, because there are too many.
    further_moves: u64,
    blocks: u64,
    bytes: u64,
    /// What would have to move at least to make all disks even.
    least_bytes: u64,
    /// How long the busiest link, or the busiest disks, need, at the rates that are known.
    seconds: f64,
    /// The limit on repair that is in force; null: none.
    limit: Option<String>,
    /// How long the busiest link, or the busiest disks, need under it; null: there is no limit.
    limited_seconds: Option<f64>,
}

#[derive(Debug, Serialize)]
struct Disk {
    node: String,
    name: String,
    id: String,
    path: String,
    /// What blocks can fill.
    capacity_bytes: u64,
    bytes: u64,
    after_bytes: u64,
}

#[derive(Debug, Serialize)]
struct Traffic {
    node: String,
    name: String,
    sends_bytes: u64,
    receives_bytes: u64,
}

/// All moves from a disk to another one.
#[derive(Debug, Serialize)]
struct Moves {
    from: DiskName,
    to: DiskName,
    blocks: u64,
    bytes: u64,
}

#[derive(Debug, Serialize)]
struct DiskName {
    node: String,
    name: String,
    id: String,
    path: String,
}

impl From<Option<api::DiskName>> for DiskName {
    fn from(it: Option<api::DiskName>) -> Self {
        let api::DiskName { node, name, disk, path } = it.unwrap_or_default();
        Self { node: NodeId(node).to_string(), name, id: disk, path }
    }
}

impl From<api::BalancePlan> for Plan {
    fn from(it: api::BalancePlan) -> Self {
        let disk = |it: api::DiskLevel| Disk {
            node: NodeId(it.node).to_string(),
            name: it.name,
            id: it.disk,
            path: it.path,
            capacity_bytes: it.capacity_bytes,
            bytes: it.bytes,
            after_bytes: it.after_bytes,
        };
        let limit = Some(it.limit).filter(|limit| !limit.is_empty());
        let node = |it: api::NodeTraffic| Traffic {
            node: NodeId(it.node).to_string(),
            name: it.name,
            sends_bytes: it.sends_bytes,
            receives_bytes: it.receives_bytes,
        };
        let moves = |it: api::DiskMoves| Moves { from: it.from.into(), to: it.to.into(), blocks: it.blocks, bytes: it.bytes };
        Self {
            disks: it.disks.into_iter().map(disk).collect(),
            nodes: it.nodes.into_iter().map(node).collect(),
            moves: it.moves.into_iter().map(moves).collect(),
            further_moves: it.further_moves,
            blocks: it.blocks,
            bytes: it.bytes,
            least_bytes: it.least_bytes,
            seconds: it.seconds,
            limited_seconds: limit.as_ref().map(|_| it.limited_seconds),
            limit,
        }
    }
}

impl Balance {
    pub(super) fn run(self, options: &target::Options, output: Output) -> Result<Exit> {
        let concurrency = self.concurrency.unwrap_or(0);
        if self.explain {
            let plan = Session::with(options, async |session| session.client.explain_balance(concurrency).await)?;
            return output.result(&Plan::from(plan), Plan::text).map(|()| Exit::Ok);
        }
        job::begin(options, output, self.no_wait, async |session| session.client.balance(concurrency).await)
    }
}

impl Plan {
    fn text(&self) -> String {
        let full = |bytes: u64, disk: &Disk| format!("{:.1} %", bytes as f64 * 100.0 / disk.capacity_bytes.max(1) as f64);
        let row = |it: &Disk| {
            let [capacity, now, after] = [it.capacity_bytes, it.bytes, it.after_bytes].map(human_bytes);
            [it.name.clone(), it.path.clone(), capacity, now, full(it.bytes, it), after, full(it.after_bytes, it)]
        };
        let heading = ["node", "disk", "for blocks", "now", "full", "after", "full"];
        let mut text = format!("{}\n\n", table(heading, &[2, 3, 4, 5, 6], self.disks.iter().map(row)));
        if self.blocks == 0 {
            text += match self.least_bytes {
                0 => "the fill is even: nothing would move",
                _ => "nothing would move: the fill is about even, or stripes leave no choice",
            };
            return text;
        }
        let row = |it: &Traffic| [it.name.clone(), human_bytes(it.sends_bytes), human_bytes(it.receives_bytes)];
        let _ = writeln!(text, "{}\n", table(["node", "sends", "receives"], &[1, 2], self.nodes.iter().map(row)));
        // An older coordinator does not say what goes where.
        if !self.moves.is_empty() {
            let row = |it: &Moves| {
                let [from, to] = [&it.from, &it.to].map(|disk| [disk.name.clone(), disk.path.clone()]);
                let ([from, from_disk], [to, to_disk]) = (from, to);
                [from, from_disk, to, to_disk, it.blocks.to_string(), human_bytes(it.bytes)]
            };
            let heading = ["from", "disk", "to", "disk", "blocks", "bytes"];
            let _ = writeln!(text, "{}", table(heading, &[4, 5], self.moves.iter().map(row)));
            if self.further_moves > 0 {
                let (more, are) = (counted(self.further_moves, "more pair"), if self.further_moves == 1 { "is" } else { "are" });
                let _ = writeln!(text, "{more} of disks, with fewer bytes each, {are} not shown");
            }
            text.push('\n');
        }
        let _ = write!(
            text,
            "{} ({}) would move; links and disks need {:.1} s or more for that",
            counted(self.blocks, "block"),
            human_bytes(self.bytes),
            self.seconds
        );
        if let (Some(limit), Some(seconds)) = (&self.limit, self.limited_seconds) {
            let _ = write!(text, "\nunder the limit on repair ({limit}) they need {seconds:.1} s or more");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_plan_shows_the_fill_before_and_after() {
        let disk = |name: &str, bytes, after_bytes| api::DiskLevel {
            name: name.into(),
            path: "/d".into(),
            capacity_bytes: 1000,
            bytes,
            after_bytes,
            ..api::DiskLevel::default()
        };
        let node = api::NodeTraffic { name: "a".into(), sends_bytes: 100, ..api::NodeTraffic::default() };
        let at = |name: &str| Some(api::DiskName { name: name.into(), path: "/d".into(), ..api::DiskName::default() });
        let plan = api::BalancePlan {
            disks: vec![disk("a", 300, 200), disk("b", 100, 200)],
            nodes: vec![node],
            blocks: 2,
            bytes: 100,
            least_bytes: 100,
            seconds: 1.25,
            moves: vec![api::DiskMoves { from: at("a"), to: at("b"), blocks: 2, bytes: 100 }],
            ..api::BalancePlan::default()
        };
        let text = Plan::from(plan.clone()).text();
        assert!(text.contains("a     /d        1000 B  300 B  30.0 %  200 B  20.0 %"), "{text}");
        assert!(text.ends_with("2 blocks (100 B) would move; links and disks need 1.2 s or more for that"), "{text}");
        let moves = "from  disk  to  disk  blocks  bytes\na     /d    b   /d         2  100 B\n";
        assert!(text.contains(&format!("{moves}\n2 blocks")), "{text}");
        let many = Plan::from(api::BalancePlan { further_moves: 7, ..plan.clone() }).text();
        assert!(
            many.contains(&format!("{moves}7 more pairs of disks, with fewer bytes each, are not shown\n\n2 blocks")),
            "{many}"
        );
        let older = Plan::from(api::BalancePlan { moves: Vec::new(), ..plan.clone() }).text();
        assert!(older.contains("0 B\n\n2 blocks"), "{older}");
        let limited = Plan::from(api::BalancePlan { limit: "50%".into(), limited_seconds: 2.5, ..plan.clone() }).text();
        assert!(limited.ends_with("or more for that\nunder the limit on repair (50%) they need 2.5 s or more"), "{limited}");
        let nothing = Plan::from(api::BalancePlan { blocks: 0, bytes: 0, nodes: Vec::new(), ..plan.clone() }).text();
        assert!(nothing.ends_with("stripes leave no choice"), "{nothing}");
        assert!(
            Plan::from(api::BalancePlan { blocks: 0, least_bytes: 0, ..plan })
                .text()
                .ends_with("the fill is even: nothing would move")
        );
    }
}
