//! `weft node`: the nodes of a cluster.

use super::{
    garbage::Garbage,
    node_disk::NodeDisk,
    node_drain::Drain,
    status::{Report, nodes_text},
};
use clap::{Args, Subcommand};
use serde::Serialize;
use weft_cli::{exit::Exit, output::Output, session::Session, target};
use weft_client::api;
use weft_types::{NodeId, Result, counted};

/// List the nodes of the cluster and their disks, take them out of service, and remove those that are gone for good
#[derive(Debug, Args)]
pub(super) struct Node {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Ls(Ls),
    Drain(Drain),
    Remove(Remove),
    Disk(NodeDisk),
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

/// Remove a node that is gone for good
///
/// The cluster forgets the node, its disks and its garbage. The node must be down and hold no block: `weft node drain NODE` moves them to other nodes
/// while it is up, and `weft repair node NODE` rebuilds those of a node that is gone. Nothing is deleted on the node's own disks. An agent with the state directory of the removed node is
/// refused from then on. With an empty state directory it joins as a new node, which may have the same name.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLE
  weft node remove node-03

EXIT CODES
  0 done   1 not now: the node has just died or come back, or a put or repair uses it; try again   \
  2 the node is up, holds blocks, or takes part in a job; the message says what to do   3 no such node, or no cluster   \
  4 no coordinator")]
struct Remove {
    /// Node (name or number)
    node: String,
}

/// What was removed.
#[derive(Debug, Serialize)]
pub(super) struct Removed {
    node: String,
    name: String,
    disks: Vec<Disk>,
    /// Garbage that the cluster no longer waits for, blocks.
    garbage_blocks: u64,
}

/// A disk that was removed.
#[derive(Debug, Serialize)]
struct Disk {
    id: String,
    path: String,
}

impl From<api::DepartureReply> for Removed {
    fn from(it: api::DepartureReply) -> Self {
        let disks = it.disks.into_iter().map(|it| Disk { id: it.id, path: it.path }).collect();
        Self { node: NodeId(it.node).to_string(), name: it.name, disks, garbage_blocks: it.garbage_blocks }
    }
}

impl Removed {
    fn node_text(&self) -> String {
        let Self { node, name, disks, .. } = self;
        let disks = counted(disks.len() as u64, "disk");
        format!("removed {name} ({node}) with {disks}{}; it cannot come back as {node}", self.garbage())
    }

    pub(super) fn disk_text(&self) -> String {
        let paths: Vec<&str> = self.disks.iter().map(|disk| disk.path.as_str()).collect();
        format!("forgot the disk {} of {}{}", paths.join(", "), self.name, self.garbage())
    }

    fn garbage(&self) -> String {
        match self.garbage_blocks {
            0 => String::new(),
            blocks => format!(" and the records of {}", counted(blocks, "garbage block")),
        }
    }
}

impl Node {
    pub(super) fn run(self, options: &target::Options, output: Output) -> Result<Exit> {
        match self.command {
            Command::Ls(Ls {}) => {
                let status = Session::with(options, async |session| session.client.status().await)?;
                output.result(&Report::from(status).nodes, |nodes| nodes_text(nodes)).map(|()| Exit::Ok)
            }
            Command::Drain(drain) => drain.run(options, output),
            Command::Remove(Remove { node }) => {
                let removed = Session::with(options, async |session| {
                    let node = session.find_node(&node).await?;
                    session.client.remove_node(node).await
                })?;
                output.result(&Removed::from(removed), Removed::node_text).map(|()| Exit::Ok)
            }
            Command::Disk(disk) => disk.run(options, output),
            Command::Garbage(garbage) => garbage.run(options, output),
        }
    }
}
