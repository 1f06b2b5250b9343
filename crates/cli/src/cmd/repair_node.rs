//! `weft repair node`: a job that rebuilds what a lost node held.

use super::{explain, job};
use clap::Args;
use std::cell::Cell;
use weft_cli::{exit::Exit, names::with_names, output::Output, session::Session, target};
use weft_client::{RepairNodeOptions, api::repair_event::Event};
use weft_types::{ByteSize, Error, Result};

/// Rebuild all blocks of a lost node on other nodes
///
/// This is a job: it goes on when nobody waits for it, and under the next coordinator too (see `weft job`). Stripe after stripe,
/// several at a time, the block that the node held is rebuilt, compared with recorded checksums, and takes the lost one's place.
/// If a stripe has lost blocks of other nodes too, those stay as they are: repair these nodes as well, if they do not come back.
/// What cannot be rebuilt is told, and the others are rebuilt all the same. If the node comes back meanwhile, what is not lost any
/// more is left alone.
///
/// A node that is up is refused, as nothing of it is lost; of one that is up with a failed disk, the blocks on that disk are
/// rebuilt. With --force all blocks of a node that is up are rebuilt elsewhere as if it were gone, and removed from it afterwards;
/// it does not stop new blocks from being placed there.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLE
  weft repair node node-03
  weft repair node n3 --to node-11 --to node-12 --select random --concurrency 8 --no-wait
  weft repair node node-03 --explain --json > plans.json && weft plan verify plans.json

EXIT CODES
  0 nothing of the node is lost any more (or nothing was); with --no-wait: the job has begun   1 failed on the way, or cancelled   \
  2 the node is up, or an option makes no sense   3 no such node, or no cluster   \
  4 blocks are left that could not be rebuilt; the others were, and the last reason is named   130 broken off; the job goes on")]
pub(super) struct RepairNode {
    /// Which nodes help, of those that could: lru (those that have not for the longest time, so that all get as much to do), random
    /// or index (those of the lowest numbers, each time)
    #[arg(long, value_name = "HOW", default_value = "lru")]
    select: String,
    /// A node that gets rebuilt blocks, by name or number; several can be named, and get them evenly. Without it, the coordinator
    /// chooses, as evenly as racks let it
    #[arg(long, value_name = "NODE")]
    to: Vec<String>,
    /// How: auto (what is predicted to be the quickest), conventional, ppr, pipeline or cyclic; without it, the coordinator's setting
    /// says, which is auto unless it was changed
    #[arg(long)]
    scheme: Option<String>,
    /// How many stripes are repaired at the same time, 1 to 64; without it, 4
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    concurrency: Option<u32>,
    /// Bytes of a slice, a multiple of 4 KiB; without it, the coordinator's setting says
    #[arg(long, value_name = "SIZE")]
    slice_size: Option<ByteSize>,
    /// Also if the node is up, and then all of its blocks
    #[arg(long)]
    force: bool,
    /// Wait for the job's end, and show how far it is (this is so unless --no-wait is said)
    #[arg(long, overrides_with = "no_wait")]
    wait: bool,
    /// Only begin the job
    #[arg(long, overrides_with = "wait")]
    no_wait: bool,
    /// Show the plan of the first stripe with its cost, and do nothing (with --json: the plans of the first 256 stripes, as
    /// `weft plan verify` reads them)
    #[arg(long)]
    explain: bool,
    /// The node, by name or number
    node: String,
}

impl RepairNode {
    pub(super) fn run(self, options: &target::Options, output: Output) -> Result<Exit> {
        // To the coordinator, 0 says that nothing was said.
        if self.slice_size == Some(ByteSize(0)) {
            return Err(Error::invalid("a slice must be greater than zero"));
        }
        if self.explain {
            return self.explain(options, output);
        }
        let begun = Cell::new(None);
        let done = Session::with(options, async |session| {
            let (node, asked) = self.asked(session).await?;
            let job = session.client.repair_node(node, &asked).await?;
            begun.set(Some(job.id));
            match self.no_wait {
                true => Ok(job::Report::new(job, &session.nodes().await)),
                false => job::wait_in(session, job.id, output).await,
            }
        });
        let report = job::goes_on(done, &begun)?;
        match self.no_wait {
            true => output.result(&report, job::Report::line).map(|()| Exit::Ok),
            false => job::end(report, output),
        }
    }

    fn explain(&self, options: &target::Options, output: Output) -> Result<Exit> {
        let (plans, warnings, nodes) = Session::with(options, async |session| {
            let (node, asked) = self.asked(session).await?;
            let mut events = session.client.explain_repair_node(node, &asked).await?;
            let (mut plans, mut warnings) = (Vec::new(), Vec::new());
            while let Some(event) = events.next().await? {
                match event.event {
                    Some(Event::Plan(it)) => plans.push(it.plan),
                    Some(Event::Progress(it)) if !warnings.contains(&it.message) => warnings.push(it.message),
                    _ => {}
                }
            }
            let nodes = session.nodes().await;
            let warnings: Vec<String> = warnings.into_iter().map(|warning| with_names(warning, &nodes)).collect();
            Ok((plans, warnings, nodes))
        })?;
        explain::show_saved(&plans, &warnings, &nodes, output)
    }

    async fn asked(&self, session: &Session) -> Result<(weft_types::NodeId, RepairNodeOptions)> {
        let node = session.find_nodes(&[&self.node]).await?;
        let node = node.first().copied().ok_or_else(|| Error::not_found("no node was named"))?;
        let options = RepairNodeOptions {
            select: self.select.clone(),
            to: session.find_nodes(&self.to).await?,
            scheme: self.scheme.clone().unwrap_or_default(),
            concurrency: self.concurrency.unwrap_or_default(),
            slice_len: self.slice_size.map_or(0, |size| size.0),
            force: self.force,
        };
        Ok((node, options))
    }
}
