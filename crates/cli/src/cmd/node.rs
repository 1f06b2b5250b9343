//! `weft node`: the nodes of a cluster.

use super::{
    garbage::Garbage,
    status::{Report, nodes_text},
};
use clap::{Args, Subcommand};
use weft_cli::{exit::Exit, output::Output, session::Session, target};
use weft_types::Result;

/// List the nodes of the cluster
#[derive(Debug, Args)]
pub(super) struct Node {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Ls(Ls),
    Garbage(Garbage),
}

/// List all nodes with their racks, disks, blocks and states
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLE
  weft node ls

EXIT CODES
  0 done   3 no cluster   4 no coordinator")]
struct Ls {}

impl Node {
    pub(super) fn run(self, options: &target::Options, output: Output) -> Result<Exit> {
        match self.command {
            Command::Ls(Ls {}) => {
                let status = Session::with(options, async |session| session.client.status().await)?;
                output.result(&Report::from(status).nodes, |nodes| nodes_text(nodes)).map(|()| Exit::Ok)
            }
            Command::Garbage(garbage) => garbage.run(options, output),
        }
    }
}
