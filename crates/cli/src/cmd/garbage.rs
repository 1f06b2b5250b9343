//! `weft node garbage`: blocks that no object needs but that still take space on nodes.

use clap::{Args, Subcommand};
use serde::Serialize;
use weft_cli::{exit::Exit, output::Output, session::Session, table::table, target};
use weft_client::{Client, api};
use weft_types::{Clock as _, Error, GarbageReason, NodeId, Result, SystemClock, human_bytes};

/// List and free garbage: blocks that no object needs but that still take space
#[derive(Debug, Args)]
pub(super) struct Garbage {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Ls(Ls),
    Release(Release),
}

/// List garbage by disk and reason
///
/// Garbage with a known reason is freed automatically: blocks that were removed, replaced, rebuilt elsewhere, or left by an interrupted put
/// or repair. An agent frees at most a quarter of a disk's bytes per hour (its setting limits.freed_percent_per_hour). Unexpected blocks,
/// which the metadata does not know, are moved to the disk's quarantine, at most 1024 per day or a quarter of the disk's blocks, whichever
/// is more. They stay there for 7 days (limits.quarantine_ms), until the disk is nearly full (limits.quarantine_free_percent), or until
/// they are released. Blocks that were found damaged stay until an operator deletes them by hand.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLE
  weft node garbage ls
  weft node garbage ls node-03 --json

EXIT CODES
  0 done   3 no such node, or no cluster   4 no coordinator")]
struct Ls {
    /// Show only this node (name or number)
    node: Option<String>,
}

/// Delete the blocks in a node's quarantine now
///
/// Deletes the unexpected blocks of the node for good. If the metadata was restored from an older copy, list them first: blocks of objects
/// that are newer than the copy are unexpected too.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLE
  weft node garbage release node-03
  weft node garbage release node-03 --yes
  weft node garbage release node-03 --unexpected --yes

EXIT CODES
  0 done, or nothing to release   1 some blocks could not be deleted   2 not confirmed: prints what would be freed   \
  3 no such node, or no cluster   4 the node is down, or no coordinator")]
struct Release {
    /// Node (name or number)
    node: String,
    /// Also release garbage that the metadata records without a reason, such as blocks removed under an earlier version: it is then freed
    /// like blocks of removed objects
    #[arg(long)]
    unexpected: bool,
    /// Confirm the deletion; without this option, only show what would be freed
    #[arg(long)]
    yes: bool,
}

#[derive(Debug, Serialize)]
struct Report {
    garbage: Vec<Entry>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
}

/// The garbage of one disk that has one reason.
#[derive(Debug, Serialize)]
struct Entry {
    node: String,
    name: String,
    disk: String,
    path: String,
    /// `metadata` or `quarantine`.
    place: &'static str,
    reason: String,
    blocks: u64,
    /// Bytes of the blocks whose length is known.
    bytes: u64,
    unmeasured_blocks: u64,
    /// When the first of them may be removed or is deleted, milliseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    first_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_ms: Option<u64>,
}

/// The result of a release.
#[derive(Debug, Default, Serialize)]
struct Released {
    node: String,
    freed_blocks: u64,
    freed_bytes: u64,
    /// Garbage in the metadata that is now being removed, blocks.
    released_blocks: u64,
}

impl Garbage {
    pub(super) fn run(self, options: &target::Options, output: Output) -> Result<Exit> {
        match self.command {
            Command::Ls(Ls { node }) => {
                let report = Session::with(options, async |session| {
                    let node = match &node {
                        Some(node) => Some(session.find_node(node).await?),
                        None => None,
                    };
                    Ok(Report::new(session.client.garbage(node).await?, &session.nodes().await))
                })?;
                let now_ms = SystemClock.now_ms();
                output.result_with(&report, &report.warnings, |report| text(report, now_ms))?;
            }
            Command::Release(release) => {
                let released = Session::with(options, async |session| release.run(session, output).await)?;
                output.result(&released, released_text)?;
            }
        }
        Ok(Exit::Ok)
    }
}

impl Release {
    async fn run(&self, session: &Session, output: Output) -> Result<Released> {
        let name = self.node.as_str();
        let node = session.find_node(name).await?;
        let told = session.client.garbage(Some(node)).await?;
        let is_released =
            |it: &&api::Garbage| it.reason == GarbageReason::Unexpected.name() && (it.quarantined || self.unexpected);
        let (blocks, bytes) = told
            .garbage
            .iter()
            .filter(is_released)
            .fold((0, 0), |(blocks, bytes), it| (blocks + it.blocks, it.bytes.saturating_add(bytes)));
        let released = Released { node: name.to_owned(), ..Released::default() };
        if blocks == 0 {
            return told.warnings.first().map_or(Ok(released), |warning| Err(Error::unavailable(warning)));
        }
        output.warn(&told.warnings);
        let what = format!("{blocks} blocks of {name}, {} as far as their lengths are known", human_bytes(bytes));
        if !self.yes {
            return Err(Error::invalid(format!(
                "{what}, would be deleted for good; nothing was done: pass --yes to delete them"
            )));
        }
        if !output.json {
            eprintln!("deleting {what}");
        }
        released.delete(&session.client, node, self.unexpected).await
    }
}

impl Released {
    async fn delete(mut self, client: &Client, node: NodeId, unexpected: bool) -> Result<Self> {
        loop {
            let some = client.release_garbage(node, unexpected && self.released_blocks == 0).await?;
            self.freed_blocks += some.freed_blocks;
            self.freed_bytes = self.freed_bytes.saturating_add(some.freed_bytes);
            self.released_blocks += some.released_blocks;
            // Do not wait for blocks that arrive in the meantime or that cannot be deleted.
            if some.left_blocks == 0 || some.freed_blocks == 0 {
                return if some.kept.is_empty() { Ok(self) } else { Err(Error::fatal(some.kept)) };
            }
        }
    }
}

impl Report {
    fn new(told: api::ListGarbageReply, nodes: &[api::Node]) -> Self {
        let entry = |it: api::Garbage| {
            let node = NodeId(it.node).to_string();
            let name = nodes.iter().find(|known| known.id == it.node).map_or_else(|| node.clone(), |known| known.name.clone());
            Entry {
                node,
                name,
                disk: it.disk,
                path: it.path,
                place: if it.quarantined { "quarantine" } else { "metadata" },
                reason: it.reason,
                blocks: it.blocks,
                bytes: it.bytes,
                unmeasured_blocks: it.unmeasured_blocks,
                first_ms: it.first_ms,
                last_ms: it.last_ms,
            }
        };
        Self { garbage: told.garbage.into_iter().map(entry).collect(), warnings: told.warnings }
    }
}

fn text(report: &Report, now_ms: u64) -> String {
    let row = |it: &Entry| {
        let bytes = match it.unmeasured_blocks {
            0 => human_bytes(it.bytes),
            unmeasured if unmeasured == it.blocks => "unknown".to_owned(),
            unmeasured => format!("{}, {unmeasured} unknown", human_bytes(it.bytes)),
        };
        let (name, path, reason) = (it.name.clone(), it.path.clone(), it.reason.clone());
        [name, path, it.place.to_owned(), reason, it.blocks.to_string(), bytes, goes(it, now_ms)]
    };
    match report.garbage.is_empty() {
        true => "there is no garbage".to_owned(),
        false => table(["node", "disk", "in", "reason", "blocks", "bytes", "goes"], &[4, 5], report.garbage.iter().map(row)),
    }
}

/// When the first of these blocks is removed.
fn goes(it: &Entry, now_ms: u64) -> String {
    let Some(first_ms) = it.first_ms else { return "by hand".to_owned() };
    let when = match first_ms.saturating_sub(now_ms).div_ceil(1000) {
        0 => "now".to_owned(),
        seconds @ 1..=119 => format!("in {seconds} s"),
        seconds @ 120..=7_199 => format!("in {} min", seconds / 60),
        seconds @ 7_200..=172_799 => format!("in {} h", seconds / 3_600),
        seconds => format!("in {} days", seconds / 86_400),
    };
    let is_slow = it.place == "metadata" && it.reason == GarbageReason::Unexpected.name();
    if is_slow { format!("to quarantine {when}") } else { when }
}

fn released_text(it: &Released) -> String {
    let node = &it.node;
    if it.freed_blocks == 0 && it.released_blocks == 0 {
        return format!("{node} has nothing to release");
    }
    let mut text = format!("deleted {} blocks of the quarantine of {node}, {}", it.freed_blocks, human_bytes(it.freed_bytes));
    if it.released_blocks > 0 {
        text += &format!("; {} garbage blocks in the metadata are now being removed", it.released_blocks);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn garbage_is_listed_with_its_known_properties() {
        const DAY_MS: u64 = 86_400_000;
        let node = api::Node { id: 3, name: "node-03".to_owned(), ..api::Node::default() };
        let removed = api::Garbage { node: 3, path: "/d".into(), blocks: 12, first_ms: Some(40_000), ..api::Garbage::default() };
        let garbage = vec![
            api::Garbage { reason: "removed".into(), bytes: 5 << 20, unmeasured_blocks: 2, ..removed.clone() },
            api::Garbage { reason: "unexpected".into(), unmeasured_blocks: 12, ..removed.clone() },
            api::Garbage {
                reason: "unexpected".into(),
                quarantined: true,
                bytes: 1 << 10,
                first_ms: Some(7 * DAY_MS),
                ..removed.clone()
            },
            api::Garbage { reason: "damaged".into(), quarantined: true, first_ms: None, ..removed },
        ];
        let mut report = Report::new(api::ListGarbageReply { garbage, warnings: vec!["one is down".into()] }, &[node]);
        assert_eq!(
            text(&report, 10_000),
            "node     disk  in          reason      blocks               bytes  goes
node-03  /d    metadata    removed         12  5.0 MiB, 2 unknown  in 30 s
node-03  /d    metadata    unexpected      12             unknown  to quarantine in 30 s
node-03  /d    quarantine  unexpected      12             1.0 KiB  in 6 days
node-03  /d    quarantine  damaged         12                 0 B  by hand"
        );
        assert_eq!((goes(&report.garbage[0], 40_000).as_str(), &report.warnings[..]), ("now", &["one is down".to_owned()][..]));
        (report.garbage, report.warnings) = Default::default();
        assert_eq!(text(&report, 0), "there is no garbage");
    }
}
