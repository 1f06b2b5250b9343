//! The cluster's row: the leader's epoch and the number counters.

use crate::{ClusterRecord, MetaError, Result, Totals};
use rusqlite::Transaction;
use weft_types::{ClusterId, Epoch, RepairLimit};

/// The counters, which only grow.
#[derive(Debug, Clone, Copy)]
pub(super) enum Numbered {
    Node,
    Disk,
    Stripe,
    Upload,
}

pub(super) fn get(tx: &Transaction<'_>) -> Result<ClusterRecord> {
    let sql = "SELECT id, incarnation, epoch, stripes_high_water, created_ms, auto_repair, repair_limit FROM cluster";
    let (id, limit, cluster): (String, String, ClusterRecord) = tx.query_row(sql, [], |row| {
        let (incarnation, epoch) = (row.get(1)?, Epoch(row.get(2)?));
        let (stripes_high_water, created_ms, auto_repair) = (row.get(3)?, row.get(4)?, row.get(5)?);
        let id = ClusterId(0);
        let repair_limit = RepairLimit::None;
        let cluster = ClusterRecord { id, incarnation, epoch, stripes_high_water, created_ms, auto_repair, repair_limit };
        Ok((row.get(0)?, row.get(6)?, cluster))
    })?;
    let (id, repair_limit) = (id.parse().map_err(MetaError::Storage)?, limit.parse().map_err(MetaError::Storage)?);
    Ok(ClusterRecord { id, repair_limit, ..cluster })
}

pub(super) fn set_auto_repair(tx: &Transaction<'_>, on: bool) -> Result<()> {
    tx.execute("UPDATE cluster SET auto_repair = ?1", [on])?;
    Ok(())
}

pub(super) fn set_repair_limit(tx: &Transaction<'_>, limit: RepairLimit) -> Result<()> {
    tx.execute("UPDATE cluster SET repair_limit = ?1", [limit.to_string()])?;
    Ok(())
}

pub(super) fn become_leader(tx: &Transaction<'_>) -> Result<Epoch> {
    let epoch = tx.query_row("UPDATE cluster SET epoch = epoch + 1 RETURNING epoch", [], |row| row.get(0))?;
    Ok(Epoch(epoch))
}

/// Fails unless `held` is the current epoch. Must run in the transaction that it guards, which holds the write lock.
pub(super) fn require_leader(tx: &Transaction<'_>, held: Epoch) -> Result<()> {
    let current = Epoch(tx.prepare_cached("SELECT epoch FROM cluster")?.query_row([], |row| row.get(0))?);
    if current == held { Ok(()) } else { Err(MetaError::StaleLeader { held, current }) }
}

/// Draws the next number of a kind; numbers are never reused.
pub(super) fn next_number(tx: &Transaction<'_>, kind: Numbered) -> Result<u64> {
    let sql = match kind {
        Numbered::Node => "UPDATE cluster SET nodes_high_water = nodes_high_water + 1 RETURNING nodes_high_water",
        Numbered::Disk => "UPDATE cluster SET disks_high_water = disks_high_water + 1 RETURNING disks_high_water",
        Numbered::Stripe => "UPDATE cluster SET stripes_high_water = stripes_high_water + 1 RETURNING stripes_high_water",
        Numbered::Upload => "UPDATE cluster SET uploads_high_water = uploads_high_water + 1 RETURNING uploads_high_water",
    };
    Ok(tx.prepare_cached(sql)?.query_row([], |row| row.get(0))?)
}

/// Counts the objects of a database that has no totals yet.
pub(super) fn totals(tx: &Transaction<'_>) -> Result<Totals> {
    let sql = "SELECT count(*), coalesce(sum(stripes), 0), coalesce(sum(size), 0) FROM objects";
    Ok(tx.query_row(sql, [], |row| Ok(Totals { objects: row.get(0)?, stripes: row.get(1)?, data_bytes: row.get(2)? }))?)
}
