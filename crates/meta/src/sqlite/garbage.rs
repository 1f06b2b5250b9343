//! Blocks that are no longer needed, until their nodes have removed them.

use super::{moved, rows};
use crate::{GarbageBlock, GarbageTotal, Page, Result};
use rusqlite::Transaction;
use weft_types::{BlockId, DiskNumber, GarbageReason, Home, NodeId};

pub(super) fn add(tx: &Transaction<'_>, garbage: &GarbageBlock) -> Result<()> {
    let GarbageBlock { block, home, reason, bytes, not_before_ms } = *garbage;
    // What is on a disk goes where the disk goes.
    let home = moved::place_of(tx, home)?.unwrap_or(home);
    let sql = "INSERT OR IGNORE INTO garbage (node, stripe, idx, copy, generation, disk, not_before_ms, reason, bytes)
               VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)";
    tx.prepare_cached(sql)?.execute((
        home.node.0,
        block.stripe.0,
        block.index,
        block.copy,
        block.generation,
        home.disk.0,
        not_before_ms,
        reason.name(),
        bytes,
    ))?;
    Ok(())
}

pub(super) fn list(
    tx: &Transaction<'_>,
    node: NodeId,
    reason: GarbageReason,
    now_ms: u64,
    after: Option<(u64, BlockId)>,
    limit: u32,
) -> Result<Page<GarbageBlock>> {
    // All times are after this one.
    let (time, block) = after.map_or((-1, None), |(time, block)| (time as i64, Some(block)));
    let [stripe, index, copy, generation] =
        block.map_or([0; 4], |block| [block.stripe.0, block.index.into(), block.copy.into(), block.generation.into()]);
    let mut statement = tx.prepare_cached(
        "SELECT stripe, idx, copy, generation, node, disk, not_before_ms, bytes FROM garbage
         WHERE node = ?1 AND reason = ?2 AND not_before_ms <= ?3
           AND not_before_ms >= ?4 AND (not_before_ms, stripe, idx, copy, generation) > (?4, ?5, ?6, ?7, ?8)
         ORDER BY not_before_ms, stripe, idx, copy, generation LIMIT ?9",
    )?;
    let key = (node.0, reason.name(), now_ms, time, stripe, index, copy, generation, u64::from(limit) + 1);
    let garbage = statement.query_map(key, |row| {
        let (block, home) = rows::block_and_home(row)?;
        Ok(GarbageBlock { block, home, reason, bytes: row.get(7)?, not_before_ms: row.get(6)? })
    })?;
    Ok(rows::page(garbage.collect::<Result<_, _>>()?, limit))
}

pub(super) fn totals(tx: &Transaction<'_>) -> Result<Vec<GarbageTotal>> {
    let mut statement = tx.prepare_cached(
        "SELECT node, disk, reason, count(*), coalesce(sum(bytes), 0), count(*) - count(bytes), min(not_before_ms), max(not_before_ms)
         FROM garbage GROUP BY node, disk, reason ORDER BY node, disk, reason",
    )?;
    let totals = statement.query_map([], |row| {
        Ok(GarbageTotal {
            home: Home { node: NodeId(row.get(0)?), disk: DiskNumber(row.get(1)?) },
            reason: GarbageReason::by_name(&row.get::<_, String>(2)?),
            blocks: row.get(3)?,
            bytes: row.get(4)?,
            unmeasured_blocks: row.get(5)?,
            first_ms: row.get(6)?,
            last_ms: row.get(7)?,
        })
    })?;
    Ok(totals.collect::<Result<_, _>>()?)
}

pub(super) fn release(tx: &Transaction<'_>, node: NodeId) -> Result<u64> {
    let (removed, unexpected) = (GarbageReason::Removed.name(), GarbageReason::Unexpected.name());
    let sql = "UPDATE garbage SET reason = ?2 WHERE node = ?1 AND reason = ?3";
    Ok(tx.execute(sql, (node.0, removed, unexpected))? as u64)
}

pub(super) fn forget(tx: &Transaction<'_>, node: NodeId, blocks: &[BlockId]) -> Result<()> {
    let sql = "DELETE FROM garbage WHERE node = ?1 AND stripe = ?2 AND idx = ?3 AND copy = ?4 AND generation = ?5";
    let mut statement = tx.prepare_cached(sql)?;
    for block in blocks {
        statement.execute((node.0, block.stripe.0, block.index, block.copy, block.generation))?;
    }
    Ok(())
}
