//! Nodes and their disks.

use super::{
    cluster::{Numbered, next_number},
    departures, moved, rows,
};
use crate::{MetaError, NewDisk, NewNode, Page, Result};
use rusqlite::{OptionalExtension, Transaction};
use weft_types::{BlockId, DiskNumber, DiskRecord, Home, LONG_AWAY_MS, NodeId, NodeRecord, NodeState};

pub(super) fn register(tx: &Transaction<'_>, new: &NewNode, now_ms: u64) -> Result<NodeRecord> {
    if let Some(id) = new.id {
        departures::require_not_removed(tx, id)?;
    }
    let id = match (new.id, id_of(tx, &new.name)?) {
        (Some(id), None) => return Err(unknown_or_renamed(tx, id, &new.name)),
        (Some(id), Some(bound)) if id != bound => {
            let name = &new.name;
            return Err(MetaError::Refused(format!("the name {name} belongs to {bound}: {id} must keep its old name")));
        }
        (_, Some(bound)) => bound,
        (None, None) => {
            let id = next_number(tx, Numbered::Node)?;
            let sql = "INSERT INTO nodes (id, name, rack, zone, data_address, control_address, state, since_ms)
                       VALUES (?1, ?2, '', '', '', '', 'up', ?3)";
            tx.execute(sql, (id, &new.name, now_ms))?;
            NodeId(u32::try_from(id).map_err(|_| MetaError::Storage("no node numbers are left".into()))?)
        }
    };
    tx.execute(
        "UPDATE nodes SET rack = ?2, zone = ?3, data_address = ?4, control_address = ?5 WHERE id = ?1",
        (id.0, &new.rack, &new.zone, &new.data_address, &new.control_address),
    )?;
    set_state(tx, id, NodeState::Up, now_ms)?;
    // Disks that the agent does not list are failed.
    tx.execute("UPDATE disks SET failed = 1 WHERE node = ?1", [id.0])?;
    for disk in &new.disks {
        register_disk(tx, id, disk)?;
    }
    list(tx)?.into_iter().find(|node| node.id == id).ok_or_else(|| no_node(id))
}

/// A node that is in this state already keeps the time since when. A node that has registered meanwhile is not lost. The blocks of one that
/// comes up after a long time must be checked (`NodeRecord::is_long_away`).
pub(super) fn set_state(tx: &Transaction<'_>, node: NodeId, state: NodeState, since_ms: u64) -> Result<()> {
    let sql = "UPDATE nodes SET since_ms = CASE state WHEN ?2 THEN since_ms ELSE ?3 END, state = ?2,
               came_back = came_back OR ?2 = 'up' AND (state = 'lost' OR state = 'down' AND ?3 - since_ms >= ?4)
               WHERE id = ?1 AND NOT (?2 = 'lost' AND state = 'up')";
    let changed = tx.execute(sql, (node.0, state.name(), since_ms, LONG_AWAY_MS))?;
    let exists = || tx.query_row("SELECT 1 FROM nodes WHERE id = ?1", [node.0], |_| Ok(())).optional();
    if changed == 0 && exists()?.is_none() { Err(no_node(node)) } else { Ok(()) }
}

/// The blocks of a node that came back have been checked.
pub(super) fn set_checked(tx: &Transaction<'_>, node: NodeId) -> Result<()> {
    tx.execute("UPDATE nodes SET came_back = 0 WHERE id = ?1", [node.0])?;
    Ok(())
}

pub(super) fn set_disk_failed(tx: &Transaction<'_>, disk: DiskNumber, failed: bool) -> Result<()> {
    match tx.execute("UPDATE disks SET failed = ?2 WHERE number = ?1", (disk.0, failed))? {
        0 => Err(MetaError::NotFound(format!("disk {} does not exist", disk.0))),
        _ => Ok(()),
    }
}

/// A disk's `draining` while it is being drained.
const DRAINING: u32 = 1;
/// A disk's `draining` after a drain was ended.
const KEPT: u32 = 2;
/// A disk's `draining` while it is drained for good.
pub(super) const RETIRED: u32 = 3;

/// Of a node, or of one of its disks.
pub(super) fn set_draining(tx: &Transaction<'_>, node: NodeId, disk: Option<DiskNumber>, on: bool) -> Result<()> {
    let changed = match disk {
        None => tx.execute("UPDATE nodes SET draining = ?2 WHERE id = ?1", (node.0, on))?,
        Some(disk) => {
            let state = if on { DRAINING } else { KEPT };
            tx.execute("UPDATE disks SET draining = ?3 WHERE number = ?2 AND node = ?1", (node.0, disk.0, state))?
        }
    };
    match (changed, disk) {
        (0, None) => Err(no_node(node)),
        (0, Some(disk)) => Err(no_disk(Home { node, disk })),
        _ => Ok(()),
    }
}

/// A disk is drained for good.
pub(super) fn retire_disk(tx: &Transaction<'_>, home: Home) -> Result<()> {
    let Home { node, disk } = home;
    match tx.execute("UPDATE disks SET draining = ?3 WHERE number = ?2 AND node = ?1", (node.0, disk.0, RETIRED))? {
        0 => Err(no_disk(home)),
        _ => Ok(()),
    }
}

pub(super) fn list(tx: &Transaction<'_>) -> Result<Vec<NodeRecord>> {
    let sql = "SELECT id, name, rack, zone, data_address, control_address, state, since_ms, came_back, draining
               FROM nodes ORDER BY id";
    let mut statement = tx.prepare_cached(sql)?;
    let nodes = statement.query_map([], |row| {
        let state: String = row.get(6)?;
        let record = NodeRecord {
            id: NodeId(row.get(0)?),
            name: row.get(1)?,
            rack: row.get(2)?,
            zone: row.get(3)?,
            data_address: row.get(4)?,
            control_address: row.get(5)?,
            state: NodeState::Down,
            since_ms: row.get(7)?,
            came_back: row.get(8)?,
            draining: row.get(9)?,
            disks: Vec::new(),
        };
        Ok((record, state))
    })?;
    let complete = |(node, state): (NodeRecord, String)| {
        let unknown = || MetaError::Storage(format!("{} is in the unknown state {state}", node.name));
        let state = NodeState::by_name(&state).ok_or_else(unknown)?;
        Ok(NodeRecord { disks: disks_of(tx, node.id)?, state, ..node })
    };
    nodes.collect::<Result<Vec<_>, _>>()?.into_iter().map(complete).collect()
}

pub(super) fn blocks_per_disk(tx: &Transaction<'_>) -> Result<Vec<(DiskNumber, u64)>> {
    let mut statement = tx.prepare_cached("SELECT disk, count(*) FROM block_at GROUP BY node, disk ORDER BY disk")?;
    let counts = statement.query_map([], |row| Ok((DiskNumber(row.get(0)?), row.get(1)?)))?;
    Ok(counts.collect::<Result<_, _>>()?)
}

pub(super) fn blocks_on(tx: &Transaction<'_>, home: Home, after: Option<BlockId>, limit: u32) -> Result<Page<BlockId>> {
    let (stripe, index) = after.map_or((0, 0), |after| (after.stripe.0, after.index));
    let mut statement = tx.prepare_cached(
        "SELECT stripe, idx, copy, generation FROM block_at WHERE node = ?1 AND disk = ?2 AND (stripe, idx) > (?3, ?4)
         ORDER BY stripe, idx LIMIT ?5",
    )?;
    let blocks = statement.query_map((home.node.0, home.disk.0, stripe, index, u64::from(limit) + 1), rows::block)?;
    Ok(rows::page(blocks.collect::<Result<_, _>>()?, limit))
}

pub(super) fn insert_disk(tx: &Transaction<'_>, node: NodeId, disk: &NewDisk) -> Result<DiskNumber> {
    let number = next_number(tx, Numbered::Disk)?;
    let sql = "INSERT INTO disks (number, id, node, path, total_bytes, failed) VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
    tx.execute(sql, (number, &disk.id, node.0, &disk.path, disk.total_bytes, disk.failed))?;
    Ok(DiskNumber(u32::try_from(number).map_err(|_| MetaError::Storage("no disk numbers are left".into()))?))
}

fn register_disk(tx: &Transaction<'_>, node: NodeId, disk: &NewDisk) -> Result<()> {
    let sql = "SELECT number, node, name FROM disks JOIN nodes ON nodes.id = node WHERE disks.id = ?1";
    let known = tx.query_row(sql, [&disk.id], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?))).optional()?;
    let known: Option<(u32, u32, String)> = known;
    match known {
        Some((number, owner, name)) if owner != node.0 => match disk.taken_from {
            Some(from) if from == (Home { node: NodeId(owner), disk: DiskNumber(number) }) => moved::take(tx, node, disk, from),
            Some(_) => Err(MetaError::Conflict(format!("{} is the disk {} of {name} by now", disk.path, disk.id))),
            None => Err(MetaError::Refused(format!(
                "{} is the disk {id} of {name} ({}), and this agent is too old to take it over with its blocks: install the newest weft \
                 here, or put the disk back",
                disk.path,
                NodeId(owner),
                id = disk.id
            ))),
        },
        Some((number, ..)) => {
            let sql = "UPDATE disks SET path = ?2, total_bytes = ?3, failed = ?4 WHERE number = ?1";
            tx.execute(sql, (number, &disk.path, disk.total_bytes, disk.failed))?;
            Ok(())
        }
        None => insert_disk(tx, node, disk).map(drop),
    }
}

fn disks_of(tx: &Transaction<'_>, node: NodeId) -> Result<Vec<DiskRecord>> {
    let sql = "SELECT own.number, own.id, own.path, own.total_bytes, own.failed, own.draining, now.node, now.number
               FROM disks own LEFT JOIN disks now ON now.number = own.moved_to WHERE own.node = ?1 ORDER BY own.number";
    let mut statement = tx.prepare_cached(sql)?;
    let disks = statement.query_map([node.0], |row| {
        let draining: u32 = row.get(5)?;
        Ok(DiskRecord {
            number: DiskNumber(row.get(0)?),
            id: row.get(1)?,
            path: row.get(2)?,
            total_bytes: row.get(3)?,
            failed: row.get(4)?,
            draining: draining == DRAINING || draining == RETIRED,
            kept: draining == KEPT,
            retired: draining == RETIRED,
            moved_to: home(row.get(6)?, row.get(7)?),
        })
    })?;
    Ok(disks.collect::<Result<_, _>>()?)
}

fn home(node: Option<u32>, disk: Option<u32>) -> Option<Home> {
    Some(Home { node: NodeId(node?), disk: DiskNumber(disk?) })
}

fn id_of(tx: &Transaction<'_>, name: &str) -> Result<Option<NodeId>> {
    Ok(tx.query_row("SELECT id FROM nodes WHERE name = ?1", [name], |row| Ok(NodeId(row.get(0)?))).optional()?)
}

fn unknown_or_renamed(tx: &Transaction<'_>, id: NodeId, name: &str) -> MetaError {
    match tx.query_row("SELECT name FROM nodes WHERE id = ?1", [id.0], |row| row.get::<_, String>(0)).optional() {
        Ok(Some(bound)) => MetaError::Refused(format!("{id} is named {bound}, not {name}: a node must keep its name")),
        Ok(None) => MetaError::Refused(format!(
            "{name} claims to be {id}, which was never registered here: its state directory comes from another cluster \
             or from a metadata database that was lost"
        )),
        Err(error) => error.into(),
    }
}

fn no_disk(Home { node, disk }: Home) -> MetaError {
    MetaError::NotFound(format!("disk {} of {node} does not exist", disk.0))
}

fn no_node(node: NodeId) -> MetaError {
    MetaError::NotFound(format!("node {node} does not exist"))
}
