//! `weft repair node`: a job that rebuilds the blocks of a lost node.

use super::{explain, job, schedule};
use clap::Args;
use weft_cli::{exit::Exit, names::with_names, output::Output, session::Session, target};
use weft_client::{RepairNodeOptions, api::repair_event::Event};
use weft_types::{ByteSize, Error, Result};

/// Rebuild all blocks of a lost node on other nodes
///
/// This is a job: it survives disconnects and coordinator restarts (see `weft job`). It repairs several stripes at a time: it
/// rebuilds the node's block, compares it with the recorded checksums, and replaces the lost block by it. Lost blocks of other nodes
/// stay lost: repair these nodes as well if they do not come back. Blocks that cannot be rebuilt are reported; the job rebuilds all
/// others. If the node comes back during the repair, the job leaves blocks alone that are no longer lost.
///
/// A node that is up is refused, because none of its blocks is lost; if one of its disks has failed, the blocks of that disk are
/// rebuilt. With --force, all blocks of a node that is up are rebuilt elsewhere and then removed from it; the node can still get new
/// blocks.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLE
  weft repair node node-03
  weft repair node n3 --to node-11 --to node-12 --concurrency 8 --no-wait
  weft repair node node-03 --explain
  weft repair node node-03 --explain --json > plans.json && weft plan verify plans.json

EXIT CODES
  0 nothing of the node is lost (any more); with --no-wait: the job has begun   1 failed or cancelled   \
  2 the node is up, or an invalid option   3 no such node, or no cluster   \
  4 some blocks could not be rebuilt; the others were, and the message names the last reason   130 interrupted; the job continues")]
pub(super) struct RepairNode {
    /// Which nodes help and which get the blocks, and when a block's turn comes: boost (balanced over all links, and started as links
    /// have room), balance (only balanced), schedule (at random, but started as links have room), polling (balanced, and started where
    /// links have carried least), sequential (balanced, one stripe after another), lru (the least recently used nodes), lru-stripe (the
    /// same with one time for all nodes of a stripe), random, or index (always the lowest indexes)
    #[arg(long, value_name = "HOW", default_value = "boost")]
    select: String,
    /// What an automatic scheme minimises: whole (the time of the whole job), time (that of each block), or traffic
    #[arg(long, value_name = "WHAT", default_value = "whole")]
    prefer: String,
    /// Node for rebuilt blocks (name or number); can be repeated, and the blocks are spread evenly [default: the coordinator chooses,
    /// as evenly as the racks allow]
    #[arg(long, value_name = "NODE")]
    to: Vec<String>,
    /// Repair scheme: auto (see --prefer), conventional, ppr, pipeline or cyclic [default: the coordinator's
    /// setting, normally auto]
    #[arg(long)]
    scheme: Option<String>,
    /// Maximum number of stripes repaired at the same time, 1 to 64. Fewer run while a link has no room for more streams [default: as
    /// many as the links carry; 4 for ways to select that do not schedule]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    concurrency: Option<u32>,
    /// Bytes of a slice, a multiple of 4 KiB [default: the coordinator's setting]
    #[arg(long, value_name = "SIZE")]
    slice_size: Option<ByteSize>,
    /// Also repair a node that is up: move all its blocks to other nodes
    #[arg(long)]
    force: bool,
    /// Wait until the job has ended, and show its progress (the default)
    #[arg(long, overrides_with = "no_wait")]
    wait: bool,
    /// Start the job and return
    #[arg(long, overrides_with = "wait")]
    no_wait: bool,
    /// Show the schedule (what each node sends and receives, and the lower bound) and the plan of the first stripe, and do nothing. With
    /// --json: the schedule and the plans of the first 256 stripes, in the form that `weft plan verify` reads
    #[arg(long)]
    explain: bool,
    /// Node to repair (name or number)
    node: String,
}

impl RepairNode {
    pub(super) fn run(self, options: &target::Options, output: Output) -> Result<Exit> {
        // In the request, 0 stands for "not given".
        if self.slice_size == Some(ByteSize(0)) {
            return Err(Error::invalid("--slice-size must be greater than zero"));
        }
        if self.explain {
            return self.explain(options, output);
        }
        job::begin(options, output, self.no_wait, async |session| {
            let (node, asked) = self.asked(session).await?;
            session.client.repair_node(node, &asked).await
        })
    }

    fn explain(&self, options: &target::Options, output: Output) -> Result<Exit> {
        let (plans, warnings, schedule, nodes) = Session::with(options, async |session| {
            let (node, asked) = self.asked(session).await?;
            let mut events = session.client.explain_repair_node(node, &asked).await?;
            let (mut plans, mut warnings, mut schedule) = (Vec::new(), Vec::new(), None);
            while let Some(event) = events.next().await? {
                match event.event {
                    Some(Event::Plan(it)) => plans.push(it.plan),
                    Some(Event::Schedule(it)) => schedule = Some(it),
                    Some(Event::Progress(it)) if !warnings.contains(&it.message) => warnings.push(it.message),
                    _ => {}
                }
            }
            let nodes = session.nodes().await;
            let warnings: Vec<String> = warnings.into_iter().map(|warning| with_names(&warning, &nodes)).collect();
            Ok((plans, warnings, schedule, nodes))
        })?;
        if let Some(schedule) = schedule.filter(|schedule| schedule.blocks > 0) {
            schedule::show(&schedule, &nodes, output)?;
        }
        explain::show_saved(&plans, &warnings, &nodes, output)
    }

    async fn asked(&self, session: &Session) -> Result<(weft_types::NodeId, RepairNodeOptions)> {
        let node = session.find_node(&self.node).await?;
        let options = RepairNodeOptions {
            select: self.select.clone(),
            prefer: self.prefer.clone(),
            to: session.find_nodes(&self.to).await?,
            scheme: self.scheme.clone().unwrap_or_default(),
            concurrency: self.concurrency.unwrap_or_default(),
            slice_len: self.slice_size.map_or(0, |size| size.0),
            force: self.force,
        };
        Ok((node, options))
    }
}
