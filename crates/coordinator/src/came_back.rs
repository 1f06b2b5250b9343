//! Checks the blocks of nodes that came back after they were lost or away for long: what their disks may have lost meanwhile is rebuilt at
//! once, and not found by a later read. What is right is kept, and counts as there from the moment the node is back.
//!
//! The shell around [`weft_control::findings::Check`], which decides. Some blocks at a time, the node looks for them and tells the checksums in their sidecars. The
//! bytes themselves are checked by every read. Whether a node is still to be checked is in the metadata, so the next coordinator begins again.

pub(crate) mod state;

use crate::{
    blocks::{asked, stripes_of},
    membership,
    shared::Shared,
};
use futures::{StreamExt as _, stream::FuturesUnordered};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Display,
    ops::Bound,
    sync::Arc,
    time::Duration,
};
use tokio::time::MissedTickBehavior;
use weft_control::findings::{Ask, Verdict, is_current};
use weft_types::{BlockId, DiskNumber, DiskRecord, Error, Home, NodeId, Result};

/// How often to look for nodes that came back.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// Nodes that are checked at the same time.
const NODES_AT_ONCE: usize = 8;
/// Blocks that one call checks. A disk that must seek for each answers in time.
const BLOCKS_PER_CALL: usize = 20;
/// The pause between two calls, which leaves time for other work of the metadata and the disks.
const CALL_PAUSE: Duration = Duration::from_millis(20);

/// Checks for as long as it runs.
pub(crate) async fn run(shared: Arc<Shared>) {
    let (mut under_way, mut busy, mut last) = (FuturesUnordered::new(), BTreeSet::new(), NodeId(0));
    let mut look = tokio::time::interval(LOOK_INTERVAL);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            biased;
            Some(node) = under_way.next() => drop(busy.remove(&node)),
            _ = look.tick() => {
                let back = back(&shared);
                // All have their turn.
                let in_turn = back.range((Bound::Excluded(last), Bound::Unbounded)).chain(back.range(..=last));
                for node in in_turn {
                    if busy.len() < NODES_AT_ONCE && busy.insert(*node) {
                        last = *node;
                        let (shared, node) = (&shared, *node);
                        under_way.push(async move {
                            check_node(shared, node).await;
                            node
                        });
                    }
                }
            }
        }
    }
}

/// The nodes that came back. What is known of others is forgotten: when they come back from a long absence, all of their blocks are checked.
fn back(shared: &Shared) -> BTreeSet<NodeId> {
    let now_ms = shared.now_ms();
    let statuses = shared.members.statuses().into_iter().filter(|it| it.record.came_back && !it.record.is_long_away(now_ms));
    let back: BTreeMap<NodeId, bool> = statuses.map(|it| (it.record.id, it.up)).collect();
    shared.came_back.lock().retain(|node, _| back.contains_key(node));
    back.into_iter().filter_map(|(node, up)| up.then_some(node)).collect()
}

/// Checks what can be checked now of a node's blocks.
async fn check_node(shared: &Shared, node: NodeId) {
    loop {
        let Some(status) = shared.members.status(node).filter(|it| it.up && it.record.came_back) else { return };
        let disks: Vec<(DiskNumber, bool)> = status.record.disks.iter().map(|disk| (disk.number, !disk.failed)).collect();
        let (next, is_over) = shared.came_back.with(node, |check| {
            let next = check.next(&disks, BLOCKS_PER_CALL, shared.started.now());
            (next, check.is_over())
        });
        let done = match next {
            Some((number, ask)) => match status.record.disks.iter().find(|disk| disk.number == number) {
                Some(disk) => check_some(shared, node, disk, ask).await.map(|()| false),
                None => return,
            },
            None if is_over => record(shared, node).await.map(|()| true),
            None => return,
        };
        match done {
            Ok(true) => return,
            Ok(false) => tokio::time::sleep(CALL_PAUSE).await,
            Err(error) => return warn(shared, node, &error),
        }
    }
}

fn warn(shared: &Shared, node: NodeId, why: impl Display) {
    let node = shared.members.name(node);
    match shared.failures.admit(&node, &why) {
        Some(left_out) => tracing::warn!(%node, %why, left_out, "cannot check all blocks of a node that came back yet"),
        None => tracing::debug!(%node, %why, "cannot check all blocks of a node that came back yet"),
    }
}

/// Records that a node has been checked, unless more blocks have come to it.
async fn record(shared: &Shared, node: NodeId) -> Result<()> {
    let _recording = shared.members.recording.lock().await;
    if !shared.came_back.is_over(node) {
        return Ok(());
    }
    shared.meta.set_checked(shared.epoch, node).await.map_err(|error| shared.meta_error(error))?;
    shared.members.checked(node);
    let check = shared.came_back.lock().remove(&node).unwrap_or_default();
    let name = shared.members.name(node);
    tracing::info!(node = %name, blocks = check.blocks, bad = check.bad, "checked the blocks of a node that came back");
    Ok(())
}

/// Asks a disk for some blocks, and records what is wrong. After an error the same is asked again, after a pause.
async fn check_some(shared: &Shared, node: NodeId, disk: &DiskRecord, ask: Ask) -> Result<()> {
    let checked = try_some(shared, node, disk, ask).await;
    if checked.is_err() {
        shared.came_back.with(node, |check| check.failed(disk.number, shared.started.now()));
    }
    checked
}

async fn try_some(shared: &Shared, node: NodeId, disk: &DiskRecord, ask: Ask) -> Result<()> {
    let (blocks, last) = match &ask {
        Ask::Behind(after) => {
            let home = Home { node, disk: disk.number };
            let page = shared.meta.blocks_on(home, *after, BLOCKS_PER_CALL as u32).await;
            let page = page.map_err(|error| shared.meta_error(error))?;
            let last = page.items.last().copied().filter(|_| page.more);
            (page.items, last)
        }
        // Some may have been rebuilt elsewhere.
        Ask::Again(blocks) => {
            let stripes = stripes_of(shared, blocks).await?;
            let is_there = |block: &&BlockId| stripes.get(&block.stripe).is_some_and(|stripe| is_current(stripe, node, **block));
            (blocks.iter().filter(is_there).copied().collect(), None)
        }
    };
    let mut verdicts = match &ask {
        _ if blocks.is_empty() => Vec::new(),
        Ask::Again(_) if disk.failed => {
            blocks.iter().map(|block| (*block, Verdict::Unknown("its disk cannot be used".to_owned()))).collect()
        }
        // Its blocks are rebuilt elsewhere, or the disk can be used again.
        Ask::Behind(_) if disk.failed => {
            shared.came_back.with(node, |check| check.failed(disk.number, shared.started.now()));
            return Ok(());
        }
        _ => asked(shared, node, &disk.id, &blocks).await?,
    };
    if shared.came_back.with(node, |check| check.is_in_doubt(disk.number, &verdicts, shared.started.now())) {
        let doubt = || {
            let (path, blocks) = (&disk.path, verdicts.len());
            Error::retry(format!("disk {path} has none of {blocks} blocks as they were written: is it in order?"))
        };
        verdicts = vouched(shared, node, disk, &blocks).await?.ok_or_else(doubt)?;
    }
    for (block, verdict) in &verdicts {
        match verdict {
            Verdict::Wrong(finding, why) => membership::mark(shared, node, *block, finding, why).await?,
            Verdict::Unknown(why) => warn(shared, node, why),
            Verdict::Right | Verdict::Obsolete => {}
        }
    }
    shared.came_back.with(node, |check| check.answered((disk.number, ask), &verdicts, last, shared.started.now()));
    Ok(())
}

/// Asks for blocks once more, if the disk still has one that was right before. `None` if it has not.
async fn vouched(
    shared: &Shared,
    node: NodeId,
    disk: &DiskRecord,
    blocks: &[BlockId],
) -> Result<Option<Vec<(BlockId, Verdict)>>> {
    let witnesses = shared.came_back.with(node, |check| check.witnesses(disk.number));
    if witnesses.is_empty() {
        return Ok(None);
    }
    let told = asked(shared, node, &disk.id, &witnesses).await?;
    match told.iter().any(|(_, verdict)| *verdict == Verdict::Right) {
        true => asked(shared, node, &disk.id, blocks).await.map(Some),
        false => Ok(None),
    }
}
