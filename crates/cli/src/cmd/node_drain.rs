//! `weft node drain` and `weft node disk drain`: take a node or disk out of service while it is up.

use super::{
    drain_plan::Plan,
    healing::{Healing, duration},
};
use clap::Args;
use serde::Serialize;
use std::time::Duration;
use tokio::time::Instant;
use weft_cli::{exit::Exit, interrupt, output::Output, session::Session, target};
use weft_client::api;
use weft_types::{Error, NodeId, Result, counted};

/// How often the rest is looked at.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);
/// The interval between lines of progress.
const SAY_INTERVAL: Duration = Duration::from_secs(5);

/// Move all blocks of a node to other nodes, so that it can be switched off
///
/// The node gets no new blocks. Each of its blocks is copied to another node, or rebuilt there from the rest of its stripe: the schedule mixes
/// both, so that the whole drain ends soonest. The old block serves reads until the new one is committed. Lost blocks are rebuilt first, and
/// the limit on repair holds (`weft repair limit`). The drain goes on without this command, also after a restart of the coordinator.
///
/// When the node is empty, its agent may be stopped. `weft node remove NODE` then forgets it; or, after maintenance, start the agent again and
/// end the drain with --cancel.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLE
  weft node drain node-03 --explain
  weft node drain node-03
  weft node drain node-03 --no-wait && weft status
  weft node drain node-03 --cancel

EXIT CODES
  0 the node is empty; with --no-wait or --cancel: the drain has begun or ended; with --explain: shown   1 ended by someone else meanwhile   \
  3 no such node, or no cluster   4 the node is down, some blocks have no other home, or no coordinator   \
  130 interrupted; the drain continues")]
pub(super) struct Drain {
    /// Node (name or number)
    node: String,
    #[command(flatten)]
    how: How,
}

/// Move all blocks of a disk elsewhere, so that it can be taken out
///
/// As `weft node drain`, for one disk: its blocks go to other nodes, or to other disks of its node where other nodes cannot take them. When
/// the disk is empty, remove it from `disks` in the agent's settings, restart the agent, and run `weft node disk forget`. A disk that replaces
/// it is a new disk.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLE
  weft node disk drain node-03 /srv/weft/a --explain
  weft node disk drain node-03 /srv/weft/a
  weft node disk drain node-03 /srv/weft/a --cancel

EXIT CODES
  0 the disk is empty; with --no-wait or --cancel: the drain has begun or ended; with --explain: shown   1 ended by someone else meanwhile   \
  2 several disks have this path   3 no such node or disk, or no cluster   \
  4 the node is down, some blocks have no other home, or no coordinator   130 interrupted; the drain continues")]
pub(super) struct DrainDisk {
    /// Node (name or number)
    pub(super) node: String,
    /// Disk: its id, or its directory
    pub(super) disk: String,
    #[command(flatten)]
    pub(super) how: How,
}

#[derive(Debug, Args)]
pub(super) struct How {
    /// End the drain: blocks that were moved stay where they are
    #[arg(long, conflicts_with_all = ["force", "no_wait"])]
    cancel: bool,
    /// Begin although some blocks have no other home yet
    #[arg(long)]
    force: bool,
    /// Return at once; `weft status` shows the progress
    #[arg(long)]
    no_wait: bool,
    /// Show what would move, how and where to, how full the nodes are before and after, how long the links need for it, and what speaks
    /// against it; do nothing
    #[arg(long, conflicts_with_all = ["cancel", "force", "no_wait"])]
    explain: bool,
}

/// A drain at one moment.
#[derive(Debug, Serialize)]
pub(super) struct Draining {
    node: String,
    name: String,
    /// The disk's id; null: the whole node.
    disk: Option<String>,
    path: Option<String>,
    /// Blocks of stripes that it still has.
    blocks: u64,
    /// Blocks of puts and repairs that have not ended.
    allocations: u64,
    /// Whether nothing is left: it may be switched off or taken out.
    empty: bool,
}

impl From<api::Draining> for Draining {
    fn from(it: api::Draining) -> Self {
        let some = |text: String| (!text.is_empty()).then_some(text);
        Self {
            node: NodeId(it.node).to_string(),
            name: it.name,
            disk: some(it.disk),
            path: some(it.path),
            blocks: it.blocks,
            allocations: it.allocations,
            empty: it.blocks == 0 && it.allocations == 0,
        }
    }
}

impl Draining {
    /// The name of a node, or of its disk with this path.
    pub(super) fn name_of(node: &str, path: Option<&str>) -> String {
        path.map_or_else(|| node.to_owned(), |path| format!("{path} of {node}"))
    }

    fn what(&self) -> String {
        Self::name_of(&self.name, self.path.as_deref())
    }

    /// How far it is; `remaining_ms`: how long it still takes, if that is known.
    pub(super) fn line(&self, remaining_ms: Option<u64>) -> String {
        let (what, name) = (self.what(), &self.name);
        match (self.empty, &self.path) {
            (true, None) => format!(
                "{what} is empty: its agent may be stopped, and then `weft node remove {name}` forgets it (`weft node drain {name} --cancel` \
                 takes it back into service)"
            ),
            (true, Some(path)) => format!(
                "{what} is empty: it may be taken out of the agent's `disks`, and then `weft node disk forget {name} {path}` forgets it"
            ),
            (false, _) if self.blocks == 0 => {
                format!("{what} waits for {} of puts or repairs that have not ended", counted(self.allocations, "block"))
            }
            (false, _) => {
                let left = remaining_ms.map(|left| format!(", about {} to go", duration(left))).unwrap_or_default();
                format!("{what} has {} left to move{left}", counted(self.blocks, "block"))
            }
        }
    }
}

impl Drain {
    pub(super) fn run(self, options: &target::Options, output: Output) -> Result<Exit> {
        let Self { node, how } = self;
        run(options, output, &how, async |session| Ok((session.find_node(&node).await?, String::new())))
    }
}

/// Begins, ends or explains the drain of a node or disk, by its id, that `find` finds.
pub(super) fn run(
    options: &target::Options,
    output: Output,
    how: &How,
    find: impl AsyncFnOnce(&Session) -> Result<(NodeId, String)>,
) -> Result<Exit> {
    if how.explain {
        let plan = Session::with(options, async |session| {
            let (node, disk) = find(session).await?;
            session.client.explain_drain(node, &disk).await
        })?;
        return output.result(&Plan::from(plan), Plan::text).map(|()| Exit::Ok);
    }
    let (mut begun, done) = (None, "it may have begun: `weft status` shows it");
    let drained = Session::with(options, async |session| {
        let (node, disk) = find(session).await?;
        let reply = session.client.drain(node, &disk, Some(!how.cancel), how.force).await?;
        output.warn(&reply.warnings);
        let left = Draining::from(reply.draining.unwrap_or_default());
        begun = Some(left.name.clone());
        if how.cancel || how.no_wait || left.empty { Ok(left) } else { wait(session, (node, &disk), output).await }
    });
    let drained = drained.map_err(|error| match &begun {
        Some(name) if interrupt::is_interrupted() => {
            let message =
                format!("{}: the drain continues; `weft status` shows it, and --cancel ends it for {name}", error.message);
            Error { message, ..error }
        }
        None if interrupt::is_interrupted() => Error { message: format!("{}: {done}", error.message), ..error },
        _ => error,
    })?;
    let text = |it: &Draining| match how.cancel {
        true => format!("{} is no longer being drained", it.what()),
        false => it.line(None),
    };
    output.result(&drained, text).map(|()| Exit::Ok)
}

/// Waits until nothing is left.
async fn wait(session: &Session, (node, disk): (NodeId, &str), output: Output) -> Result<Draining> {
    let mut said: Option<Instant> = None;
    loop {
        let reply = session.client.drain(node, disk, None, false).await?;
        let left = Draining::from(reply.draining.unwrap_or_default());
        if !reply.on {
            return Err(Error::retry(format!(
                "the drain was ended while {} still had {}",
                left.what(),
                counted(left.blocks, "block")
            )));
        }
        if left.empty {
            return Ok(left);
        }
        if !output.json && said.is_none_or(|said| said.elapsed() >= SAY_INTERVAL) {
            let health = session.client.health().await?;
            let healing = Healing::from(health.healing.unwrap_or_default());
            eprintln!("{}", left.line(healing.remaining_ms()));
            healing.obstacles(health.stripes_with_bad_blocks).iter().for_each(|line| eprintln!("{line}"));
            said = Some(Instant::now());
        }
        tokio::time::sleep(LOOK_INTERVAL).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left(blocks: u64, allocations: u64, path: &str) -> Draining {
        let (node, name, disk, path) = (3, "far".to_owned(), path.to_owned(), path.to_owned());
        api::Draining { node, name, disk, path, blocks, allocations }.into()
    }

    #[test]
    fn a_drain_says_what_is_left_and_what_comes_next() {
        assert_eq!(left(12, 0, "").line(Some(60_000)), "far has 12 blocks left to move, about 60 s to go");
        assert_eq!(left(1, 1, "/d").line(None), "/d of far has 1 block left to move");
        assert_eq!(left(0, 1, "").line(None), "far waits for 1 block of puts or repairs that have not ended");
        assert!(left(0, 0, "").line(None).contains("far is empty: its agent may be stopped, and then `weft node remove far`"));
        assert!(left(0, 0, "/d").line(None).contains("`weft node disk forget far /d`"));
    }
}
