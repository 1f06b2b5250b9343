//! Nodes and disks that are gone for good: what still holds them, and their removal.

use super::{jobs, moved, nodes};
use crate::{Departure, MetaError, Result};
use rusqlite::{OptionalExtension, Transaction};
use weft_types::{DiskNumber, Held, Home, NodeId};

/// A node or one of its disks.
#[derive(Debug, Clone, Copy)]
struct Place {
    node: NodeId,
    disk: Option<DiskNumber>,
}

/// Selects the rows of a [`Place`].
const HERE: &str = "node = ?1 AND (?2 IS NULL OR disk = ?2)";

pub(super) fn held(tx: &Transaction<'_>, node: NodeId, disk: Option<DiskNumber>) -> Result<Held> {
    let count = |table: &str| {
        let sql = format!("SELECT count(*) FROM {table} WHERE {HERE}");
        tx.query_row(&sql, (node.0, disk.map(|disk| disk.0)), |row| row.get::<_, u64>(0))
    };
    Ok(Held { blocks: count("block_at")?, allocations: count("allocations")? })
}

pub(super) fn remove_node(tx: &Transaction<'_>, node: NodeId, now_ms: u64, garbage_max: u32) -> Result<Departure> {
    let sql = "SELECT name, state = 'up' FROM nodes WHERE id = ?1";
    let found = tx.query_row(sql, [node.0], |row| Ok((row.get::<_, String>(0)?, row.get::<_, bool>(1)?))).optional()?;
    let (name, up) = found.ok_or_else(|| MetaError::NotFound(format!("node {node} does not exist")))?;
    if up {
        return Err(MetaError::Conflict(format!("{node} has come back: it is not removed")));
    }
    let mut active = jobs::list(tx)?.into_iter().filter(|job| !job.state.has_ended());
    if let Some(job) = active.find(|job| job.work.names(node)) {
        return Err(MetaError::Conflict(format!("{node} takes part in job {}, which has just begun: it is not removed", job.id)));
    }
    moved::require_none_to_follow(tx, node, None)?;
    let departure = leave(tx, Place { node, disk: None }, garbage_max)?;
    if departure.complete {
        tx.execute("INSERT INTO removed_nodes VALUES (?1, ?2, ?3)", (node.0, &name, now_ms))?;
        tx.execute("DELETE FROM disks WHERE node = ?1", [node.0])?;
        tx.execute("DELETE FROM nodes WHERE id = ?1", [node.0])?;
    }
    Ok(departure)
}

pub(super) fn forget_disk(tx: &Transaction<'_>, home: Home, garbage_max: u32) -> Result<Departure> {
    let Home { node, disk } = home;
    let sql = "SELECT failed FROM disks WHERE number = ?1 AND node = ?2";
    let failed = tx.query_row(sql, (disk.0, node.0), |row| row.get::<_, bool>(0)).optional()?;
    if !failed.ok_or_else(|| MetaError::NotFound(format!("{node} has no disk {}", disk.0)))? {
        return Err(MetaError::Conflict(format!("disk {} of {node} has come back: it is not forgotten", disk.0)));
    }
    moved::require_none_to_follow(tx, node, Some(disk))?;
    let departure = leave(tx, Place { node, disk: Some(disk) }, garbage_max)?;
    if departure.complete {
        tx.execute("DELETE FROM disks WHERE number = ?1", [disk.0])?;
    }
    Ok(departure)
}

/// Fails if something is in this place. Otherwise deletes some of its records of garbage.
fn leave(tx: &Transaction<'_>, place: Place, garbage_max: u32) -> Result<Departure> {
    let Place { node, disk } = place;
    let Held { blocks, allocations } = held(tx, node, disk)?;
    if blocks + allocations > 0 {
        return Err(MetaError::Conflict(format!("{node} got blocks in the meantime: {blocks}, and {allocations} on their way")));
    }
    let sql = format!(
        "DELETE FROM garbage WHERE (node, stripe, idx, copy, generation) IN
         (SELECT node, stripe, idx, copy, generation FROM garbage WHERE {HERE} LIMIT ?3)"
    );
    let garbage_blocks = tx.execute(&sql, (node.0, disk.map(|disk| disk.0), garbage_max))? as u64;
    let sql = format!("SELECT EXISTS (SELECT 1 FROM garbage WHERE {HERE})");
    let more: bool = tx.query_row(&sql, (node.0, disk.map(|disk| disk.0)), |row| row.get(0))?;
    Ok(Departure { garbage_blocks, complete: !more })
}

/// Fails if the node was removed: an agent that still has its number must not return with it.
pub(super) fn require_not_removed(tx: &Transaction<'_>, node: NodeId) -> Result<()> {
    let sql = "SELECT name FROM removed_nodes WHERE id = ?1";
    match tx.query_row(sql, [node.0], |row| row.get::<_, String>(0)).optional()? {
        None => Ok(()),
        Some(name) => Err(MetaError::Refused(format!(
            "node {name} ({node}) was removed from this cluster and cannot come back as {node}: to add it as a new node, stop its \
             agent, move the file `agent` out of its state_dir, and start it"
        ))),
    }
}

/// Fails if a disk or its node was removed since it was chosen, or is to be pulled: an operator may have been told that nothing is left on it.
pub(super) fn require_disk(tx: &Transaction<'_>, home: Home) -> Result<()> {
    let mut find = tx.prepare_cached("SELECT draining, moved_to FROM disks WHERE number = ?1 AND node = ?2")?;
    let node = home.node;
    let found = find.query_row((home.disk.0, node.0), |row| Ok((row.get::<_, u32>(0)?, row.get::<_, Option<u32>>(1)?)));
    let what = match found.optional()? {
        Some((_, Some(_))) => format!("a disk of {node} was moved to another node since it was chosen for a block"),
        Some((nodes::RETIRED, _)) => format!("a disk of {node} is being replaced since it was chosen for a block"),
        Some(_) => return Ok(()),
        None => format!("{node} or its disk was removed from the cluster after it was chosen for a block"),
    };
    Err(MetaError::Closed { node, message: format!("{what}: choose another node") })
}
