//! `weft policy heat`, `weft policy cool`: copies of an object's data blocks, while it is read often and when it is not any more.

use super::{explain, names::ObjectName, repair};
use clap::Args;
use weft_cli::{exit::Exit, output::Output, session::Session, target};
use weft_client::RepairOptions;
use weft_types::{Result, human_bytes};

/// Make copies of an object's data blocks, so that more nodes can be read from
///
/// What is there already is left alone: a command that was broken off goes on when it is given again. Copies that were lost are
/// rebuilt.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLE
  weft policy heat photos/cat.jpg
  weft policy heat photos/cat.jpg --replicas 3
  weft policy heat photos/cat.jpg --explain

EXIT CODES
  0 there are as many copies as were asked for   1 failed on the way   2 a number that makes no sense   \
  3 no such object, or no cluster   \
  4 too few nodes are free, or too much is lost; what could be made was, the rest is named   5 what was made is not what was recorded")]
pub(super) struct Heat {
    /// Copies of each data block, with the coded one; without it, as many as the bucket's policy says
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..))]
    replicas: Option<u32>,
    /// Show the plans with their cost, and do nothing (with --json: as `weft plan verify` reads them)
    #[arg(long)]
    explain: bool,
    /// The object: BUCKET/KEY
    object: ObjectName,
}

/// Drop the copies of an object's data blocks; what its code needs stays
///
/// Of each block one copy stays that is good and on a node that is up; the others are removed from their nodes as what was removed is,
/// after a while. Stripe by stripe: a command that was broken off goes on when it is given again. Where a block has no such copy, parity
/// too, nothing of its stripe is dropped. What is left is spread over the racks as well as may be; where it is not, a warning says so.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLE
  weft policy cool photos/cat.jpg

EXIT CODES
  0 there is one copy of every block   1 failed on the way   3 no such object, or no cluster   \
  4 refused, as a block is not good, still coming, or its node is down; or no coordinator

What was dropped before a stripe that is refused or fails stays dropped, and the message says how much.")]
pub(super) struct Cool {
    /// The object: BUCKET/KEY
    object: ObjectName,
}

impl Heat {
    pub(super) fn run(self, options: &target::Options, output: Output) -> Result<Exit> {
        let (report, nodes, object) = Session::with(options, async |session| {
            let (bucket, key) = self.object.resolve(session.bucket.as_deref())?;
            let options =
                RepairOptions { explain: self.explain, heat: Some(self.replicas.unwrap_or(0)), ..RepairOptions::default() };
            let report = repair::repair(session, &bucket, &key, &options, output.json || self.explain).await?;
            let nodes = session.nodes().await;
            Ok((report.named(&nodes), nodes, format!("{bucket}/{key}")))
        })?;
        if self.explain {
            return explain::show_saved(&report.plans, &report.messages, &nodes, output);
        }
        // Of what could not be made the error tells.
        if report.left.is_empty() || output.json || !report.blocks.is_empty() {
            output.result(&report, |report| match report.blocks.is_empty() {
                true => format!("{object} has all its copies"),
                false => repair::rebuilt_text(report),
            })?;
        }
        report.still_lost().map_or(Ok(Exit::Ok), |error| Err(error.object(object)))
    }
}

impl Cool {
    pub(super) fn run(self, options: &target::Options, output: Output) -> Result<Exit> {
        let (object, cooled) = Session::with(options, async |session| {
            let (bucket, key) = self.object.resolve(session.bucket.as_deref())?;
            let cooled = session.client.cool(&bucket, &key).await?;
            Ok((format!("{bucket}/{key}"), cooled))
        })?;
        let mut report = serde_json::json!({ "cooled": object, "blocks": cooled.blocks, "bytes": cooled.bytes });
        let mut text = match cooled.blocks {
            0 => format!("{object} has no copies"),
            blocks => format!("dropped {blocks} blocks of {object}, {}", human_bytes(cooled.bytes)),
        };
        if !cooled.warnings.is_empty() {
            cooled.warnings.iter().for_each(|warning| text += &format!("\nwarning: {warning}"));
            report["warnings"] = cooled.warnings.into();
        }
        output.result(&report, |_| text).map(|()| Exit::Ok)
    }
}
