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
use weft_client::{RepairNodeOptions, api};
use weft_types::{Error, NodeId, Reaction, Result, counted};

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
    /// Show what would move, how and where to, how full the nodes are before and after, how long links and disks need for it, and what speaks
    /// against it; do nothing
    #[arg(long, conflicts_with_all = ["cancel", "force", "no_wait"])]
    explain: bool,
    /// Whether the disk is drained for good.
    #[arg(skip)]
    retire: bool,
}

/// Replace a disk: move or rebuild its blocks, say when it may be pulled and what to do then, and forget it
///
/// The blocks of a disk that works move elsewhere while it serves, as with `weft node disk drain`. Those of a disk that failed or is gone are
/// rebuilt on other nodes. The cluster records that the disk goes for good: when nothing is left of it and its agent no longer lists it, it is
/// forgotten. The command ends when the disk may be pulled, or, if the agent no longer lists it, when it is forgotten. All of that goes on without
/// this command, also after a restart of the coordinator; `weft node disk drain NODE DISK --cancel` ends it.
///
/// A new disk gets another directory than the old one, and a number of its own.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLE
  weft node disk replace node-03 /srv/weft/a

EXIT CODES
  0 the disk may be pulled, or is forgotten; with --no-wait: begun   1 ended by someone else meanwhile   2 several disks have this path   \
  3 no such node or disk, or no cluster   4 the node is down, some blocks have no other home, or no coordinator   \
  130 interrupted; it continues")]
pub(super) struct ReplaceDisk {
    /// Node (name or number)
    pub(super) node: String,
    /// Disk: its id, or its directory
    pub(super) disk: String,
    /// Begin although some blocks have no other home yet
    #[arg(long)]
    force: bool,
    /// Return at once; `weft status` shows the progress
    #[arg(long)]
    no_wait: bool,
}

impl ReplaceDisk {
    pub(super) fn how(&self) -> How {
        How { cancel: false, force: self.force, no_wait: self.no_wait, explain: false, retire: true }
    }
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
    /// Whether the disk is drained for good: it is forgotten when nothing is left of it and its agent no longer lists it.
    retired: bool,
    /// Whether the disk failed: its blocks are rebuilt, and not moved.
    failed: bool,
    /// Whether the agent lists the disk.
    listed: bool,
    /// Whether the disk is forgotten.
    forgotten: bool,
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
            retired: it.retired,
            failed: it.failed,
            listed: it.listed,
            forgotten: false,
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

    /// Whether there is nothing to wait for: a disk that is gone is forgotten in a moment.
    fn is_over(&self) -> bool {
        self.forgotten || self.empty && !(self.retired && self.failed && !self.listed)
    }

    /// How far it is, and what to do next.
    fn result(&self) -> String {
        let (what, name) = (self.what(), &self.name);
        let Some(path) = self.path.as_ref().filter(|_| self.retired && (self.empty || self.forgotten)) else {
            return self.line(None);
        };
        let left = if self.failed { "is left of" } else { "is left on" };
        if self.forgotten {
            return format!("nothing {left} {what}, and it is forgotten");
        }
        format!(
            "nothing {left} {what}: it may be pulled\n\
             1. stop the agent of {name}\n\
             2. in its settings (agent.toml), put the directory of the new disk in the place of {path} in `disks`; another directory, because an \
             empty one under the old name counts as a disk that is not mounted\n\
             3. start the agent: the new disk gets a number of its own, and {path} is forgotten\n\
             4. `weft balance` fills the new disk"
        )
    }

    /// How far it is; `remaining_ms`: how long it still takes, if that is known.
    pub(super) fn line(&self, remaining_ms: Option<u64>) -> String {
        let (what, name) = (self.what(), &self.name);
        match (self.empty, &self.path) {
            (true, None) => format!(
                "{what} is empty: its agent may be stopped, and then `weft node remove {name}` forgets it (`weft node drain {name} --cancel` \
                 takes it back into service)"
            ),
            (true, Some(_)) if self.retired => format!(
                "nothing is left of {what}: put the directory of a new disk in its place in the agent's `disks`, and restart the agent; then it \
                 is forgotten"
            ),
            (true, Some(path)) => format!(
                "{what} is empty: it may be taken out of the agent's `disks`, and then `weft node disk forget {name} {path}` forgets it"
            ),
            (false, _) if self.blocks == 0 => {
                format!("{what} waits for {} of puts or repairs that have not ended", counted(self.allocations, "block"))
            }
            (false, _) => {
                let left = remaining_ms.map(|left| format!(", about {} remaining", duration(left))).unwrap_or_default();
                let how = if self.failed { "rebuild" } else { "move" };
                format!("{what} has {} left to {how}{left}", counted(self.blocks, "block"))
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
        let reply = match how.retire {
            true => session.client.retire_disk(node, &disk, how.force).await?,
            false => session.client.drain(node, &disk, Some(!how.cancel), how.force).await?,
        };
        output.warn(&reply.warnings);
        let left = Draining::from(reply.draining.unwrap_or_default());
        begun = Some(left.name.clone());
        if how.retire && left.failed && left.blocks > 0 {
            rebuild(session, node, output).await?;
        }
        if how.cancel || how.no_wait || left.is_over() { Ok(left) } else { wait(session, (node, &disk), left, output).await }
    });
    let drained = drained.map_err(|error| match &begun {
        Some(name) if interrupt::is_interrupted() => {
            let end = if how.retire { "`weft node disk drain --cancel`" } else { "--cancel" };
            let message = format!("{}: the drain continues; `weft status` shows it, and {end} ends it for {name}", error.message);
            Error { message, ..error }
        }
        None if interrupt::is_interrupted() => Error { message: format!("{}: {done}", error.message), ..error },
        _ => error,
    })?;
    let text = |it: &Draining| match how.cancel {
        true => format!("{} is no longer being drained", it.what()),
        false => it.result(),
    };
    output.result(&drained, text).map(|()| Exit::Ok)
}

/// Rebuilds the lost blocks of a node, if nothing is rebuilt without a person.
async fn rebuild(session: &Session, node: NodeId, output: Output) -> Result<()> {
    if session.client.health().await?.healing.is_some_and(|healing| healing.on) {
        return Ok(());
    }
    match session.client.repair_node(node, &RepairNodeOptions::default()).await {
        Ok(job) if !output.json => eprintln!("repair without a person is turned off: job {} rebuilds the blocks", job.id),
        // It runs already, or nothing is lost any more.
        Err(error) if error.reaction != Reaction::InvalidInput => return Err(error),
        _ => {}
    }
    Ok(())
}

/// Waits until nothing is left. `before`: what was left when it began.
async fn wait(session: &Session, (node, disk): (NodeId, &str), before: Draining, output: Output) -> Result<Draining> {
    let mut said: Option<Instant> = None;
    loop {
        let reply = match session.client.drain(node, disk, None, false).await {
            Err(error) if before.retired && error.reaction == Reaction::NotFound => {
                return Ok(Draining { blocks: 0, allocations: 0, empty: true, listed: false, forgotten: true, ..before });
            }
            reply => reply?,
        };
        let left = Draining::from(reply.draining.unwrap_or_default());
        if !reply.on {
            return Err(Error::retry(format!(
                "the drain was ended while {} still had {}",
                left.what(),
                counted(left.blocks, "block")
            )));
        }
        if left.is_over() {
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
        api::Draining { node, name, disk, path, blocks, allocations, ..api::Draining::default() }.into()
    }

    #[test]
    fn a_disk_that_is_replaced_says_when_it_may_be_pulled_and_what_comes_then() {
        let retired = |blocks, failed, listed| Draining { retired: true, failed, listed, ..left(blocks, 0, "/d") };
        assert_eq!(retired(2, true, true).result(), "/d of far has 2 blocks left to rebuild");
        let pulled = retired(0, false, true).result();
        assert!(
            pulled.starts_with("nothing is left on /d of far: it may be pulled\n1. stop the agent of far\n2. in"),
            "{pulled}"
        );
        assert!(retired(0, false, true).line(None).contains("put the directory of a new disk in its place"));
        for (draining, is_over) in [
            (retired(1, false, true), false),
            (retired(0, false, true), true),
            (retired(0, true, true), true),
            // It is forgotten in a moment.
            (retired(0, true, false), false),
            (left(0, 0, "/d"), true),
        ] {
            assert_eq!(draining.is_over(), is_over, "{draining:?}");
        }
        let forgotten = Draining { forgotten: true, ..retired(0, true, false) };
        assert_eq!(
            (forgotten.result().as_str(), forgotten.is_over()),
            ("nothing is left of /d of far, and it is forgotten", true)
        );
    }

    #[test]
    fn a_drain_says_what_is_left_and_what_comes_next() {
        assert_eq!(left(12, 0, "").line(Some(60_000)), "far has 12 blocks left to move, about 60 s remaining");
        assert_eq!(left(1, 1, "/d").line(None), "/d of far has 1 block left to move");
        assert_eq!(left(0, 1, "").line(None), "far waits for 1 block of puts or repairs that have not ended");
        assert!(left(0, 0, "").line(None).contains("far is empty: its agent may be stopped, and then `weft node remove far`"));
        assert!(left(0, 0, "/d").line(None).contains("`weft node disk forget far /d`"));
    }
}
