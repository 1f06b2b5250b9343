//! Disks that were moved to another node, and their blocks, which follow them.
//!
//! The disk gets its new number in one transaction. Its blocks follow in steps, so that other changes do not wait for a disk with millions of
//! them: each step is whole, a block has one home at any time, and until it has followed it counts as lost where it was. After a crash the
//! next coordinator finds the place of before in `disks.moved_to`, and goes on.

use super::{blocks, departures, nodes, rows, terms};
use crate::{FollowDisk, FollowedBlocks, MetaError, NewDisk, Page, Result};
use rusqlite::{OptionalExtension, Transaction};
use weft_types::{BlockId, BlockState, DiskNumber, Held, Home, NodeId, StripeRecord};

/// The disk is at this node from now on. Its place of before has failed only when its blocks have followed: if its node is down, none of them is
/// rebuilt until then.
pub(super) fn take(tx: &Transaction<'_>, node: NodeId, disk: &NewDisk, from: Home) -> Result<()> {
    let sql = "SELECT failed OR state <> 'up' FROM disks JOIN nodes ON nodes.id = node WHERE number = ?1";
    if !tx.query_row(sql, [from.disk.0], |row| row.get::<_, bool>(0))? {
        return Err(MetaError::Conflict(format!("{} has come back and has the disk {}: it is not moved", from.node, disk.id)));
    }
    let sql = "UPDATE disks SET id = id || '/' || number, draining = 0 WHERE number = ?1";
    tx.execute(sql, [from.disk.0])?;
    let number = nodes::insert_disk(tx, node, disk)?;
    // Blocks of an earlier move that have not followed yet go on from where they are.
    tx.execute("UPDATE disks SET moved_to = ?2 WHERE number = ?1 OR moved_to = ?1", (from.disk.0, number.0))?;
    Ok(())
}

/// Where a disk is now, if it was moved.
pub(super) fn place_of(tx: &Transaction<'_>, from: Home) -> Result<Option<Home>> {
    let sql = "SELECT now.node, now.number FROM disks own JOIN disks now ON now.number = own.moved_to
               WHERE own.number = ?1 AND own.node = ?2";
    let mut find = tx.prepare_cached(sql)?;
    let home = |row: &rusqlite::Row<'_>| Ok(Home { node: NodeId(row.get(0)?), disk: DiskNumber(row.get(1)?) });
    Ok(find.query_row((from.disk.0, from.node.0), home).optional()?)
}

/// Fails if blocks are still to follow to this node or, with `disk`, to this disk.
pub(super) fn require_none_to_follow(tx: &Transaction<'_>, node: NodeId, disk: Option<DiskNumber>) -> Result<()> {
    let sql = "SELECT EXISTS (SELECT 1 FROM disks own JOIN disks now ON now.number = own.moved_to
               WHERE now.node = ?1 AND (?2 IS NULL AND own.node <> ?1 OR now.number = ?2))";
    match tx.query_row(sql, (node.0, disk.map(|disk| disk.0)), |row| row.get(0))? {
        true => {
            Err(MetaError::Conflict(format!("blocks of a disk that was moved to {node} are still where it was: try again later")))
        }
        false => Ok(()),
    }
}

pub(super) fn follow(tx: &Transaction<'_>, step: FollowDisk) -> Result<FollowedBlocks> {
    let FollowDisk { from, after, limit, unchecked, only } = step;
    let gone = || MetaError::NotFound(format!("disk {} of {} was not moved, or is forgotten", from.disk.0, from.node));
    let to = place_of(tx, from)?.ok_or_else(gone)?;
    if only.is_none() && after.is_none() && follow_garbage(tx, from, to, limit)? >= u64::from(limit) {
        return Ok(FollowedBlocks { more: true, ..FollowedBlocks::default() });
    }
    let page = match only {
        Some(block) => Page { items: vec![block], more: true },
        None => nodes::blocks_on(tx, from, after, limit)?,
    };
    let (mut moved, mut stayed) = (Vec::new(), 0);
    for block in &page.items {
        let mut stripe = rows::stripe(tx, block.stripe)?;
        if stays(tx, &stripe, *block, (from, to))? {
            stayed += 1;
            continue;
        }
        if let Some(placed) = stripe.find_mut(block.index, block.copy) {
            placed.home = to;
        }
        rows::set_placement(tx, &stripe)?;
        moved.push(stripe.id);
    }
    let mut complete = false;
    if !page.more {
        if unchecked || !moved.is_empty() {
            tx.execute("UPDATE nodes SET came_back = 1 WHERE id = ?1", [to.node.0])?;
        }
        let garbage = "SELECT EXISTS (SELECT 1 FROM garbage WHERE node = ?1 AND disk = ?2)";
        complete = departures::held(tx, from.node, Some(from.disk))? == Held::default()
            && !tx.query_row(garbage, (from.node.0, from.disk.0), |row| row.get::<_, bool>(0))?;
        let sql = if complete { "DELETE FROM disks WHERE number = ?1" } else { "UPDATE disks SET failed = 1 WHERE number = ?1" };
        tx.execute(sql, [from.disk.0])?;
    }
    Ok(FollowedBlocks { moved, stayed, last: page.items.last().copied().or(after), more: page.more, complete })
}

fn follow_garbage(tx: &Transaction<'_>, from: Home, to: Home, limit: u32) -> Result<u64> {
    let sql = "UPDATE OR REPLACE garbage SET node = ?3, disk = ?4 WHERE (node, stripe, idx, copy, generation) IN
               (SELECT node, stripe, idx, copy, generation FROM garbage WHERE node = ?1 AND disk = ?2 LIMIT ?5)";
    Ok(tx.execute(sql, (from.node.0, from.disk.0, to.node.0, to.disk.0, limit))? as u64)
}

/// Whether a block cannot follow its disk now.
fn stays(tx: &Transaction<'_>, stripe: &StripeRecord, block: BlockId, (from, to): (Home, Home)) -> Result<bool> {
    // Nothing is known to be there.
    let placed = stripe.find(block.index, block.copy);
    if placed.is_none_or(|placed| placed.home != from || placed.state == BlockState::Missing) {
        return Ok(true);
    }
    // The disk came back to its node: no node gets another block.
    if from.node == to.node {
        return Ok(false);
    }
    // A term names the nodes of its blocks.
    if terms::is_open(tx, block.stripe)? {
        return Ok(true);
    }
    match blocks::require_alone_at(tx, stripe, block, to) {
        Ok(()) => Ok(false),
        Err(MetaError::Conflict(_)) => Ok(true),
        Err(error) => Err(error),
    }
}
