//! `weft repair`: rebuilds lost blocks.

use super::{explain, names::ObjectName, repair_auto::RepairAuto, repair_limit::RepairLimitArgs, repair_node::RepairNode};
use clap::{Args, Subcommand};
use serde::Serialize;
use weft_cli::{
    exit::Exit,
    names::with_names,
    output::{Output, human_rate},
    progress::Progress,
    session::Session,
    target,
};
use weft_client::{RepairOptions, api, api::repair_event::Event};
use weft_types::{AutoSize, Error, NodeId, Result, human_bytes};

/// Rebuild lost blocks
#[derive(Debug, Args)]
pub(super) struct Repair {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Object(RepairObject),
    Node(RepairNode),
    Auto(RepairAuto),
    Limit(RepairLimitArgs),
}

/// Rebuild lost blocks of an object on other nodes
///
/// A rebuilt block counts only after its checksums match the recorded ones. If a helper fails, the repair continues around it with
/// the parts that are still missing.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLE
  weft repair object photos/cat.jpg
  weft repair object photos/cat.jpg --block 3 --scheme pipeline --to node-05
  weft repair object photos/cat.jpg --block 3,5 --to node-05,node-06
  weft repair object photos/cat.jpg --slice-size auto --select random --paths 1
  weft repair object photos/cat.jpg --explain --json > plan.json && weft plan verify plan.json

EXIT CODES
  0 nothing of the object is lost (any more)   1 failed   2 an invalid block, node or scheme   \
  3 no such object, or no cluster   \
  4 some blocks could not be rebuilt, or more is lost than the code recovers; the message names them   \
  5 a rebuilt block does not match its checksums   6 too few nodes are free   7 disks are full")]
struct RepairObject {
    /// Rebuild this block, even if it is not lost (of a block with copies: the lost copies, or else the first one); several blocks are
    /// rebuilt together [default: all lost blocks]
    #[arg(long, value_name = "I", value_delimiter = ',')]
    block: Vec<u8>,
    /// Repair scheme: auto (whichever is predicted to be fastest), conventional, ppr, pipeline, cyclic, or direct (copies a block that is
    /// not lost, for comparison) [default: the coordinator's setting, normally auto]
    #[arg(long)]
    scheme: Option<String>,
    /// Node for the rebuilt block (name or number), or one node per block [default: the coordinator chooses]
    #[arg(long, value_name = "NODE", value_delimiter = ',')]
    to: Vec<String>,
    /// Bytes of a slice, a multiple of 4 KiB; or auto: the size predicted to be fastest [default: the coordinator's setting]
    #[arg(long, value_name = "SIZE|auto")]
    slice_size: Option<AutoSize>,
    /// Helpers and their order: best (the fastest path through any of them), ordered (the first ones, in the order of the fastest path),
    /// preferred (the first ones as they come) or random
    #[arg(long, default_value = "best")]
    select: String,
    /// Number of paths for each lost block; or auto: the number predicted to be fastest. Paths share no link, and share nodes only if
    /// there are too few
    #[arg(long, value_name = "N|auto", default_value = "auto", value_parser = paths)]
    paths: u32,
    /// Show the plan with its cost and do nothing (with --json: in the form that `weft plan verify` reads)
    #[arg(long)]
    explain: bool,
    /// Object: BUCKET/KEY
    object: ObjectName,
}

/// A number of paths; 0 stands for `auto`.
fn paths(text: &str) -> Result<u32, String> {
    let count = if text == "auto" { Some(0) } else { text.parse().ok().filter(|count| *count > 0) };
    count.ok_or_else(|| format!("'{text}' is not a number of paths: write 1, 2, … or auto"))
}

/// The result of a repair.
#[derive(Debug, Default, Serialize)]
pub(super) struct Report {
    pub(super) blocks: Vec<Rebuilt>,
    /// How often the repair continued around a failure.
    resumed: u32,
    bytes_read: u64,
    bytes_written: u64,
    bytes_moved: u64,
    messages: Vec<String>,
    pub(super) warnings: Vec<String>,
    /// The blocks that could not be rebuilt.
    pub(super) gave_up: Vec<GaveUp>,
    pub(super) seconds: f64,
    #[serde(skip)]
    pub(super) plans: Vec<Vec<u8>>,
}

/// A rebuilt block.
#[derive(Debug, Serialize)]
pub(super) struct Rebuilt {
    /// The stripe's number in the object, from 0.
    stripe_number: u64,
    index: u32,
    copy: u32,
    generation: u32,
    pub(super) node: String,
    /// The name of the node.
    name: String,
    size: u64,
}

/// A block that could not be rebuilt.
#[derive(Debug, Serialize)]
pub(super) struct GaveUp {
    /// The stripe's number in the object, from 0.
    stripe_number: u64,
    index: u32,
    copy: u32,
    reason: String,
}

impl Report {
    /// Adds the names of the nodes.
    pub(super) fn named(mut self, nodes: &[api::Node]) -> Self {
        for block in &mut self.blocks {
            let node = nodes.iter().find(|node| NodeId(node.id).to_string() == block.node);
            block.name = node.map(|node| node.name.clone()).unwrap_or_default();
        }
        for text in [&mut self.messages, &mut self.warnings].into_iter().flatten() {
            *text = with_names(text, nodes);
        }
        self
    }

    /// The error that says why blocks are still missing, if any; `one` or `many` describes them.
    pub(super) fn missing(&self, one: &str, many: &str) -> Option<Error> {
        let mut reasons: Vec<&str> = Vec::new();
        for block in &self.gave_up {
            if !reasons.contains(&block.reason.as_str()) {
                reasons.push(&block.reason);
            }
        }
        let count = self.gave_up.len();
        let blocks = if count == 1 { one } else { many };
        (count > 0).then(|| Error::unavailable(format!("{count} {blocks}: {}", reasons.join("; "))))
    }
}

impl Repair {
    pub(super) fn run(self, options: &target::Options, output: Output) -> Result<Exit> {
        let asked = match self.command {
            Command::Object(asked) => asked,
            Command::Node(asked) => return asked.run(options, output),
            Command::Auto(asked) => return asked.run(options, output),
            Command::Limit(asked) => return asked.run(options, output),
        };
        let quiet = output.json || asked.explain;
        let (report, nodes, object) = Session::with(options, async |session| {
            let (bucket, key) = asked.object.resolve(session, "KEY").await?;
            let object = format!("{bucket}/{key}");
            let options = RepairOptions {
                blocks: asked.block.clone(),
                scheme: asked.scheme.clone().unwrap_or_default(),
                to: session.find_nodes(&asked.to).await?,
                slice_len: asked.slice_size,
                select: asked.select.clone(),
                paths: asked.paths,
                explain: asked.explain,
                plans: false,
                heat: None,
            };
            let report = repair(session, &bucket, &key, &options, quiet).await?;
            let nodes = session.nodes().await;
            Ok((report.named(&nodes), nodes, object))
        })?;
        if asked.explain {
            return explain::show_saved(&report.plans, &report.warnings, &nodes, output);
        }
        // The error names what could not be rebuilt.
        if report.gave_up.is_empty() || output.json || !report.blocks.is_empty() {
            output.result_with(&report, &report.warnings, text)?;
        }
        let missing = report.missing("block is still lost", "blocks are still lost");
        missing.map_or(Ok(Exit::Ok), |error| Err(error.object(object)))
    }
}

/// Repairs an object and shows the progress.
pub(super) async fn repair(session: &Session, bucket: &str, key: &str, options: &RepairOptions, quiet: bool) -> Result<Report> {
    let progress = Progress::new(if options.heat.is_some() { "copying" } else { "repairing" }, 0, quiet);
    let mut repair = session.client.repair(bucket, key, options).await?;
    let mut report = Report::default();
    let mut is_done = false;
    while let Some(event) = repair.next().await? {
        match event.event {
            Some(Event::Plan(it)) if options.explain => report.plans.push(it.plan),
            Some(Event::Plan(_) | Event::Schedule(_)) | None => {}
            Some(Event::Progress(it)) => {
                progress.set(it.done_bytes, Some(it.total_bytes).filter(|total| *total > 0));
                match it.message.is_empty() {
                    true => {}
                    false if options.explain => report.warnings.push(it.message),
                    false => report.messages.push(it.message),
                }
            }
            Some(Event::Done(it)) => {
                is_done = true;
                let traffic = it.traffic.unwrap_or_default();
                report.bytes_read = traffic.read_bytes;
                report.bytes_written = traffic.written_bytes;
                report.bytes_moved = traffic.sent_bytes;
                report.resumed = it.resumed;
                report.warnings = it.warnings;
                report.messages.retain(|message| !report.warnings.contains(message));
                report.gave_up = it.left.into_iter().map(GaveUp::from).collect();
                report.blocks = it.blocks.into_iter().map(Rebuilt::from).collect();
            }
        }
    }
    if !is_done {
        return Err(Error::retry(
            "the connection to the coordinator ended before the repair did; `weft stat` shows which blocks are lost",
        ));
    }
    report.seconds = progress.finish();
    Ok(report)
}

impl From<api::RepairedBlock> for Rebuilt {
    fn from(it: api::RepairedBlock) -> Self {
        let (stripe_number, node) = (it.stripe, NodeId(it.node).to_string());
        Self { stripe_number, index: it.index, copy: it.copy, generation: it.generation, node, name: String::new(), size: it.len }
    }
}

impl From<api::LeftBlock> for GaveUp {
    fn from(it: api::LeftBlock) -> Self {
        Self { stripe_number: it.stripe, index: it.index, copy: it.copy, reason: it.reason }
    }
}

fn text(it: &Report) -> String {
    if it.blocks.is_empty() {
        return it.messages.iter().map(String::as_str).chain(["nothing is lost"]).collect::<Vec<_>>().join("\n");
    }
    rebuilt_text(it)
}

/// The rebuilt blocks and their cost.
pub(super) fn rebuilt_text(it: &Report) -> String {
    let mut lines: Vec<String> = it.messages.clone();
    for block in &it.blocks {
        let (index, number, size) = (block.index, block.stripe_number, human_bytes(block.size));
        let (node, generation) = (format!("{} {}", block.node, block.name), block.generation);
        let copy = if block.copy == 0 { String::new() } else { format!(", copy {},", block.copy) };
        lines.push(format!("block {index}{copy} of the object's stripe {number}: {size} on {node}, generation {generation}"));
    }
    let (read, moved, written) = (human_bytes(it.bytes_read), human_bytes(it.bytes_moved), human_bytes(it.bytes_written));
    let resumed = match it.resumed {
        0 => String::new(),
        1 => ", resumed once".to_owned(),
        times => format!(", resumed {times} times"),
    };
    let rate = human_rate(it.blocks.iter().map(|block| block.size).sum(), it.seconds);
    lines.push(format!("read {read}, moved {moved}, wrote {written}, {:.2} s, {rate}{resumed}", it.seconds));
    lines.join("\n")
}
