//! Blocks that are no longer needed, until their nodes have removed them.

use super::rows;
use crate::{GarbageBlock, Result};
use rusqlite::Transaction;
use weft_types::{BlockId, Home, NodeId};

pub(super) fn add(tx: &Transaction<'_>, block: BlockId, home: Home, not_before_ms: u64) -> Result<()> {
    tx.prepare_cached("INSERT OR IGNORE INTO garbage VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)")?.execute((
        home.node.0,
        block.stripe.0,
        block.index,
        block.copy,
        block.generation,
        home.disk.0,
        not_before_ms,
    ))?;
    Ok(())
}

pub(super) fn list(tx: &Transaction<'_>, node: NodeId, now_ms: u64, limit: u32) -> Result<Vec<GarbageBlock>> {
    let mut statement = tx.prepare_cached(
        "SELECT stripe, idx, copy, generation, node, disk, not_before_ms FROM garbage WHERE node = ?1 AND not_before_ms <= ?2
         ORDER BY not_before_ms, stripe, idx, copy, generation LIMIT ?3",
    )?;
    let garbage = statement.query_map((node.0, now_ms, limit), |row| {
        let (block, home) = rows::block_and_home(row)?;
        Ok(GarbageBlock { block, home, not_before_ms: row.get(6)? })
    })?;
    Ok(garbage.collect::<Result<_, _>>()?)
}

pub(super) fn count(tx: &Transaction<'_>) -> Result<u64> {
    Ok(tx.query_row("SELECT count(*) FROM garbage", [], |row| row.get(0))?)
}

pub(super) fn forget(tx: &Transaction<'_>, node: NodeId, blocks: &[BlockId]) -> Result<()> {
    let sql = "DELETE FROM garbage WHERE node = ?1 AND stripe = ?2 AND idx = ?3 AND copy = ?4 AND generation = ?5";
    let mut statement = tx.prepare_cached(sql)?;
    for block in blocks {
        statement.execute((node.0, block.stripe.0, block.index, block.copy, block.generation))?;
    }
    Ok(())
}
