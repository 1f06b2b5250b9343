//! `weft policy heat` and `weft policy cool`: add and drop copies of an object's data blocks.

use super::{explain, names::ObjectName, repair};
use clap::Args;
use weft_cli::{exit::Exit, output::Output, session::Session, target};
use weft_client::RepairOptions;
use weft_types::{Result, human_bytes};

/// Add copies of an object's data blocks, so that reads are spread over more nodes
///
/// Keeps existing copies and rebuilds lost ones. If too few nodes are up for all copies, it copies nothing and prints the largest possible
/// number of copies. After an interruption, run the command again to continue.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLE
  weft policy heat photos/cat.jpg
  weft policy heat photos/cat.jpg --replicas 3
  weft policy heat photos/cat.jpg --explain

EXIT CODES
  0 the object has the requested number of copies   1 failed   2 an invalid number   \
  3 no such object, or no cluster   \
  4 some blocks could not be copied; the rest was, and the message names what is missing   \
  5 a copy does not match its checksums   6 too few nodes are free   7 disks are full")]
pub(super) struct Heat {
    /// Copies of each data block, including the coded one [default: as the bucket's policy says]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..))]
    replicas: Option<u32>,
    /// Show the plans with their cost and do nothing (with --json: in the form that `weft plan verify` reads)
    #[arg(long)]
    explain: bool,
    /// Object: BUCKET/KEY
    object: ObjectName,
}

/// Drop the copies of an object's data blocks; the coded blocks stay
///
/// Of each block, one good copy on a node that is up stays. The other copies are removed from their nodes after a delay, like all
/// removed blocks. The command works stripe by stripe: after an interruption, run it again to continue. If a block of a stripe,
/// data or parity, has no good copy on a node that is up, nothing of that stripe is dropped. The remaining blocks are spread over
/// the racks as evenly as possible; a warning tells if that is not even enough.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLE
  weft policy cool photos/cat.jpg

EXIT CODES
  0 one copy of every block is left   1 failed   3 no such object, or no cluster   \
  4 refused: a block is not good, not yet stored, or on a node that is down; or no coordinator

  Copies that were dropped before a stripe was refused or failed stay dropped; the message says how many.")]
pub(super) struct Cool {
    /// Object: BUCKET/KEY
    object: ObjectName,
}

impl Heat {
    pub(super) fn run(self, options: &target::Options, output: Output) -> Result<Exit> {
        let (report, nodes, object) = Session::with(options, async |session| {
            let (bucket, key) = self.object.resolve(session, "KEY").await?;
            let options =
                RepairOptions { explain: self.explain, heat: Some(self.replicas.unwrap_or(0)), ..RepairOptions::default() };
            let report = repair::repair(session, &bucket, &key, &options, output.json || self.explain).await?;
            let nodes = session.nodes().await;
            Ok((report.named(&nodes), nodes, format!("{bucket}/{key}")))
        })?;
        if self.explain {
            return explain::show_saved(&report.plans, &report.warnings, &nodes, output);
        }
        // The error names what could not be copied.
        if report.gave_up.is_empty() || output.json || !report.blocks.is_empty() {
            output.result_with(&report, &report.warnings, |report| match report.blocks.is_empty() {
                true => format!("{object} has all its copies"),
                false => repair::rebuilt_text(report),
            })?;
        }
        let missing = report.missing("copy is missing", "copies are missing");
        missing.map_or(Ok(Exit::Ok), |error| Err(error.object(object)))
    }
}

impl Cool {
    pub(super) fn run(self, options: &target::Options, output: Output) -> Result<Exit> {
        let (object, cooled) = Session::with(options, async |session| {
            let (bucket, key) = self.object.resolve(session, "KEY").await?;
            let cooled = session.client.cool(&bucket, &key).await?;
            Ok((format!("{bucket}/{key}"), cooled))
        })?;
        let (blocks, bytes, warnings) = (cooled.blocks, cooled.bytes, cooled.warnings);
        let report = serde_json::json!({ "cooled": object, "blocks": blocks, "bytes": bytes, "warnings": warnings });
        let text = match blocks {
            0 => format!("{object} has no copies"),
            blocks => format!("dropped {blocks} blocks of {object}, {}", human_bytes(bytes)),
        };
        output.result_with(&report, &warnings, |_| text).map(|()| Exit::Ok)
    }
}
