//! `weft repair auto`: whether lost blocks are rebuilt without a person.

use super::healing::Healing;
use clap::{Args, ValueEnum};
use weft_cli::{exit::Exit, output::Output, session::Session, target};
use weft_types::Result;

/// Turn the repair without a person on or off, or show what it does
///
/// On, which is the default, the cluster rebuilds corrupt and missing blocks and those of failed disks at once, and the blocks of a node
/// that is silent for longer than the coordinator's setting lost_after_ms (15 minutes). The stripes that survive the fewest further losses
/// come first. A stripe that would not survive a further loss does not wait for its nodes. If a whole rack of two or more nodes is silent,
/// or more than 10 % and at least three of all nodes, none of them is declared lost without a person. If the coordinator hears less than
/// half of the nodes, it rebuilds nothing.
///
/// If it is off, `weft repair node` or `weft repair object` rebuilds lost blocks. What is being rebuilt is finished. The setting survives
/// restarts.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLE
  weft repair auto status
  weft repair auto off

EXIT CODES
  0 done   3 no cluster   4 no coordinator")]
pub(super) struct RepairAuto {
    /// What to do
    #[arg(value_enum)]
    command: Command,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Command {
    /// Rebuild lost blocks without a person
    On,
    /// Rebuild nothing without a person
    Off,
    /// Show what is being done
    Status,
}

impl RepairAuto {
    pub(super) fn run(self, options: &target::Options, output: Output) -> Result<Exit> {
        let healing = Session::with(options, async |session| {
            if self.command != Command::Status {
                session.client.set_auto_repair(self.command == Command::On).await?;
            }
            Ok(Healing::from(session.client.health().await?.healing.unwrap_or_default()))
        })?;
        output.result(&healing, |it| it.text().trim_end().to_owned()).map(|()| Exit::Ok)
    }
}
