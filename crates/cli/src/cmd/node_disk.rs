//! `weft node disk`: the disks of the nodes.

use super::{
    node::Removed,
    node_drain::{self, DrainDisk, ReplaceDisk},
};
use clap::{Args, Subcommand};
use serde::Serialize;
use weft_cli::{exit::Exit, output::Output, session::Session, table::table, target};
use weft_client::api;
use weft_types::{Error, NodeId, Result, human_bytes};

/// List the disks of nodes, take them out of service, replace them, and forget those that are gone for good
#[derive(Debug, Args)]
pub(super) struct NodeDisk {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Ls(Ls),
    Drain(DrainDisk),
    Replace(ReplaceDisk),
    Forget(Forget),
}

/// List disks with their ids, space, blocks and states
///
/// A disk is `draining` if its blocks move elsewhere, `failed` if its node cannot use it, and `gone` if the node's agent no longer lists it. Disks of
/// a node that is down are `unknown`. A disk is `slow` if it serves much more slowly than the others, and `failing` if many of its blocks were
/// found corrupt or unreadable. It is `hung` if it does not answer its agent; then it soon counts as failed. It is `aside` if another node had it, and
/// may still have it, and `moved` where it was before it was moved to another node, until nothing is left there. The lines below the table say why.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLE
  weft node disk ls
  weft node disk ls node-03 --json

EXIT CODES
  0 done   3 no such node, or no cluster   4 no coordinator")]
struct Ls {
    /// Show only this node (name or number)
    node: Option<String>,
}

/// Forget a disk that was replaced or lost
///
/// The node's agent must no longer list the disk, and the disk must hold no block: `weft repair node NODE` rebuilds them on other nodes
/// first. Nothing is deleted on the disk itself. If it comes back, it is a new disk, and what is on it goes to its quarantine.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLE
  weft node disk forget node-03 /srv/weft/a
  weft node disk forget node-03 9f86d081884c7d659a2feaa0c55ad015

EXIT CODES
  0 done   1 not now: a put or repair uses the disk; try again   \
  2 the agent still lists the disk, or the disk held blocks; the message says what to do   \
  3 no such node or disk, or no cluster   4 the node is down, or no coordinator")]
struct Forget {
    /// Node (name or number)
    node: String,
    /// Disk: its id, or its directory
    disk: String,
}

/// A disk at one moment.
#[derive(Debug, Serialize)]
struct Disk {
    node: String,
    id: String,
    path: String,
    /// ok, draining (the disk or its node), slow, failing, hung, failed, gone, moved, aside, unknown.
    state: &'static str,
    total_bytes: u64,
    free_bytes: u64,
    /// Blocks of stripes.
    blocks: u64,
    /// Its rate, for reads and writes together; null: not known.
    bytes_per_s: Option<u64>,
    /// Why it is slow, failing or hung, also while it is drained or counts as failed; where it was moved; or why it is kept aside.
    why: Option<String>,
}

impl NodeDisk {
    pub(super) fn run(self, options: &target::Options, output: Output) -> Result<Exit> {
        match self.command {
            Command::Ls(Ls { node }) => {
                let disks = Session::with(options, async |session| {
                    let only = match &node {
                        Some(node) => Some(session.find_node(node).await?),
                        None => None,
                    };
                    let nodes = session.client.status().await?.nodes;
                    let chosen = nodes.iter().filter(|node| only.is_none_or(|only| only.0 == node.id));
                    Ok(chosen.flat_map(disks_of).collect::<Vec<_>>())
                })?;
                output.result(&disks, |disks| text(disks)).map(|()| Exit::Ok)
            }
            Command::Drain(DrainDisk { node, disk, how }) => {
                node_drain::run(options, output, &how, async |session| find(session, &node, &disk).await)
            }
            Command::Replace(replace) => node_drain::run(options, output, &replace.how(), async |session| {
                find(session, &replace.node, &replace.disk).await
            }),
            Command::Forget(Forget { node, disk }) => {
                let removed = Session::with(options, async |session| {
                    let (node, disk) = find(session, &node, &disk).await?;
                    session.client.forget_disk(node, &disk).await
                })?;
                output.result(&Removed::from(removed), Removed::disk_text).map(|()| Exit::Ok)
            }
        }
    }
}

/// The node, and the id of its disk, that a user names.
async fn find(session: &Session, name: &str, disk: &str) -> Result<(NodeId, String)> {
    let node = session.find_node(name).await?;
    let nodes = session.client.status().await?.nodes;
    let disks: Vec<Disk> = nodes.iter().filter(|it| it.id == node.0).flat_map(disks_of).collect();
    Ok((node, chosen(&disks, name, disk)?.to_owned()))
}

fn disks_of(node: &api::Node) -> impl Iterator<Item = Disk> {
    let own = node.disks.iter().map(|disk| Disk {
        node: node.name.clone(),
        id: disk.id.clone(),
        path: disk.path.clone(),
        state: match (node.state == "up", disk.gone, disk.failed) {
            _ if !disk.moved_to.is_empty() => "moved",
            (true, true, _) => "gone",
            (_, _, true) => "failed",
            (false, _, false) => "unknown",
            (true, false, false) if disk.draining || node.draining => "draining",
            (true, false, false) => match disk.trouble.as_str() {
                "slow" => "slow",
                "failing" => "failing",
                "hung" => "hung",
                _ => "ok",
            },
        },
        total_bytes: disk.total_bytes,
        free_bytes: disk.free_bytes,
        blocks: disk.blocks,
        bytes_per_s: Some(disk.bytes_per_s).filter(|rate| *rate > 0),
        why: match (disk.moved_to.as_str(), disk.trouble.as_str()) {
            ("", "") => None,
            ("", trouble) => Some(format!("{trouble}: {}", disk.trouble_why)),
            (node, _) => Some(format!("in {node} now; what is left here has not followed")),
        },
    });
    let aside = node.aside.iter().map(|disk| Disk {
        node: node.name.clone(),
        id: disk.id.clone(),
        path: disk.path.clone(),
        state: "aside",
        total_bytes: 0,
        free_bytes: 0,
        blocks: 0,
        bytes_per_s: None,
        why: Some(format!("kept aside: {}", disk.why)),
    });
    own.chain(aside)
}

/// The id of the disk that a user names by its id or directory. Of several disks that had the same directory, only one can be there.
fn chosen<'a>(disks: &'a [Disk], node: &str, said: &str) -> Result<&'a str> {
    let is_path = |disk: &&Disk| disk.path.trim_end_matches('/') == said.trim_end_matches('/');
    let mut named: Vec<&Disk> = disks.iter().filter(|disk| disk.id == said).collect();
    if named.is_empty() {
        named = disks.iter().filter(is_path).collect();
    }
    match named.as_slice() {
        [only] => Ok(&only.id),
        [] => Err(Error::not_found(format!(
            "{node} has no disk '{said}': `weft node disk ls {node}` lists its disks and their ids"
        ))),
        several => {
            let each: Vec<String> = several.iter().map(|disk| format!("{} ({})", disk.id, disk.state)).collect();
            Err(Error::invalid(format!("{node} has several disks at {said}: name one by its id: {}", each.join(", "))))
        }
    }
}

fn text(disks: &[Disk]) -> String {
    let row = |it: &Disk| {
        let (node, path, id) = (it.node.clone(), it.path.clone(), it.id.clone());
        [node, path, human_bytes(it.total_bytes), human_bytes(it.free_bytes), it.blocks.to_string(), it.state.to_owned(), id]
    };
    let mut text = table(["node", "disk", "size", "free", "blocks", "state", "id"], &[2, 3, 4], disks.iter().map(row));
    for it in disks {
        if let Some(why) = &it.why {
            text += &format!("\n{} of {} is {why}", it.path, it.node);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(state: &str, disks: &[(&str, &str, bool, bool)]) -> Vec<Disk> {
        let disk = |(id, path, failed, gone): &(&str, &str, bool, bool)| api::Disk {
            id: (*id).to_owned(),
            path: (*path).to_owned(),
            failed: *failed,
            gone: *gone,
            ..api::Disk::default()
        };
        let disks = disks.iter().map(disk).collect();
        disks_of(&api::Node { name: "far".into(), state: state.into(), disks, ..api::Node::default() }).collect()
    }

    #[test]
    fn a_disk_is_named_by_its_id_or_by_its_directory_if_that_says_which() {
        let disks = node("up", &[("1a", "/srv/a", true, true), ("2b", "/srv/a", false, false), ("3c", "/srv/c", true, false)]);
        assert_eq!(disks.iter().map(|disk| disk.state).collect::<Vec<_>>(), ["gone", "ok", "failed"]);
        assert_eq!(node("down", &[("1a", "/a", false, false), ("2b", "/b", true, false)])[0].state, "unknown");
        let api_disk = |trouble: &str, draining| api::Disk {
            trouble: trouble.into(),
            trouble_why: "it crawls".into(),
            draining,
            ..api::Disk::default()
        };
        let of_disks = vec![api_disk("slow", false), api_disk("failing", true)];
        let ailing: Vec<Disk> = disks_of(&api::Node { state: "up".into(), disks: of_disks, ..api::Node::default() }).collect();
        assert_eq!(ailing.iter().map(|disk| disk.state).collect::<Vec<_>>(), ["slow", "draining"]);
        assert!(text(&ailing).ends_with(" is failing: it crawls"), "{}", text(&ailing));
        let moved = api::Disk { moved_to: "node-9".into(), failed: true, gone: true, ..api::Disk::default() };
        let aside =
            vec![api::AsideDisk { path: "/b".into(), why: "/b is the disk 1 of node-8".into(), ..api::AsideDisk::default() }];
        let node_9 = api::Node { name: "far".into(), state: "up".into(), disks: vec![moved], aside, ..api::Node::default() };
        let both: Vec<Disk> = disks_of(&node_9).collect();
        assert_eq!(both.iter().map(|disk| disk.state).collect::<Vec<_>>(), ["moved", "aside"]);
        assert!(text(&both).ends_with("\n/b of far is kept aside: /b is the disk 1 of node-8"), "{}", text(&both));
        for (said, found) in [("1a", "1a"), ("2b", "2b"), ("/srv/c", "3c"), ("/srv/c/", "3c")] {
            assert_eq!(chosen(&disks, "far", said), Ok(found));
        }
        let error = chosen(&disks, "far", "/srv/a").unwrap_err().message;
        assert!(error.ends_with("name one by its id: 1a (gone), 2b (ok)"), "{error}");
        let error = chosen(&disks, "far", "/srv").unwrap_err();
        assert!(error.reaction == weft_types::Reaction::NotFound && error.message.contains("`weft node disk ls far`"), "{error}");
    }
}
