//! Stripes as rows: reading, writing and dropping them, with their dependent rows.

use super::{
    feed::{self, Allocated},
    garbage, terms,
};
use crate::{GarbageBlock, MetaError, Page, Result, packed};
use rusqlite::{OptionalExtension, Row, Transaction};
use std::collections::BTreeMap;
use weft_types::{
    BlockId, BlockState, DiskNumber, Epoch, GarbageReason, Home, NodeId, Owner, PlacedBlock, Seq, Span, StripeId, StripeRecord,
    UploadId,
};

const STRIPE: &str = "id, upload, object, number, ended, term, layout, placement, units, counts";

/// Makes a page of a list that was read with one item more than `limit`.
pub(super) fn page<T>(mut items: Vec<T>, limit: u32) -> Page<T> {
    let more = items.len() > limit as usize;
    items.truncate(limit as usize);
    Page { items, more }
}

pub(super) fn stripe(tx: &Transaction<'_>, id: StripeId) -> Result<StripeRecord> {
    find_stripe(tx, id)?.ok_or_else(|| MetaError::NotFound(format!("stripe {id} no longer exists")))
}

pub(super) fn find_stripe(tx: &Transaction<'_>, id: StripeId) -> Result<Option<StripeRecord>> {
    let sql = format!("SELECT {STRIPE} FROM stripes WHERE id = ?1");
    let packed = tx.prepare_cached(&sql)?.query_row([id.0], packed_row).optional()?;
    packed.map(|packed| packed.unpack(tx)).transpose()
}

/// The stripes of an owner by number, from `from` on, at most `limit` of them.
pub(super) fn stripes_of(tx: &Transaction<'_>, owner: Owner, from: u64, limit: u64) -> Result<Vec<StripeRecord>> {
    let (column, id) = owner_column(owner);
    let sql = format!("SELECT {STRIPE} FROM stripes WHERE {column} = ?1 AND number >= ?2 ORDER BY number LIMIT ?3");
    let mut statement = tx.prepare_cached(&sql)?;
    let packed = statement.query_map((id, from, limit), packed_row)?.collect::<Result<Vec<_>, _>>()?;
    packed.into_iter().map(|packed| packed.unpack(tx)).collect()
}

fn owner_column(owner: Owner) -> (&'static str, u64) {
    match owner {
        Owner::Upload(id) => ("upload", id.0),
        Owner::Object(id) => ("object", id.0),
    }
}

/// The ended stripes that have a block on a disk, in order, after `after`.
pub(super) fn stripes_on(tx: &Transaction<'_>, home: Home, after: Option<StripeId>, limit: u32) -> Result<Page<StripeRecord>> {
    let sql = format!(
        "SELECT {STRIPE} FROM stripes WHERE id IN (SELECT stripe FROM block_at WHERE node = ?1 AND disk = ?2 AND stripe > ?3
         GROUP BY stripe ORDER BY stripe LIMIT ?4) ORDER BY id"
    );
    let after = after.map_or(0, |after| after.0);
    let mut statement = tx.prepare_cached(&sql)?;
    let packed = statement.query_map((home.node.0, home.disk.0, after, u64::from(limit) + 1), packed_row)?;
    let packed = packed.collect::<Result<Vec<_>, _>>()?;
    Ok(page(packed.into_iter().map(|packed| packed.unpack(tx)).collect::<Result<_>>()?, limit))
}

/// The stripes of all objects, in order, after `after`.
pub(super) fn of_objects(tx: &Transaction<'_>, after: Option<StripeId>, limit: u32) -> Result<Page<StripeRecord>> {
    let sql = format!("SELECT {STRIPE} FROM stripes WHERE id > ?1 AND object IS NOT NULL ORDER BY id LIMIT ?2");
    let mut statement = tx.prepare_cached(&sql)?;
    let packed = statement.query_map((after.map_or(0, |after| after.0), u64::from(limit) + 1), packed_row)?;
    let packed = packed.collect::<Result<Vec<_>, _>>()?;
    Ok(page(packed.into_iter().map(|packed| packed.unpack(tx)).collect::<Result<_>>()?, limit))
}

/// The incomplete stripes, in order, after `after`.
pub(super) fn incomplete(tx: &Transaction<'_>, after: Option<StripeId>, limit: u32) -> Result<Page<StripeRecord>> {
    // CROSS JOIN fixes the order: there are far more stripes than incomplete ones.
    let sql =
        format!("SELECT {STRIPE} FROM incomplete CROSS JOIN stripes ON id = stripe WHERE stripe > ?1 ORDER BY stripe LIMIT ?2");
    let mut statement = tx.prepare_cached(&sql)?;
    let packed = statement.query_map((after.map_or(0, |after| after.0), u64::from(limit) + 1), packed_row)?;
    let packed = packed.collect::<Result<Vec<_>, _>>()?;
    Ok(page(packed.into_iter().map(|packed| packed.unpack(tx)).collect::<Result<_>>()?, limit))
}

/// The incomplete stripes of an owner, by number, from `from` on.
pub(super) fn incomplete_of(tx: &Transaction<'_>, owner: Owner, from: u64, limit: u32) -> Result<Page<StripeRecord>> {
    let (column, id) = owner_column(owner);
    // CROSS JOIN fixes the order: other owners may have far more incomplete stripes.
    let sql = format!(
        "SELECT {STRIPE} FROM stripes CROSS JOIN incomplete ON stripe = id
         WHERE {column} = ?1 AND number >= ?2 ORDER BY number LIMIT ?3"
    );
    let mut statement = tx.prepare_cached(&sql)?;
    let packed = statement.query_map((id, from, u64::from(limit) + 1), packed_row)?.collect::<Result<Vec<_>, _>>()?;
    Ok(page(packed.into_iter().map(|packed| packed.unpack(tx)).collect::<Result<_>>()?, limit))
}

/// Records that a stripe has ended without some of its blocks.
pub(super) fn set_incomplete(tx: &Transaction<'_>, stripe: StripeId) -> Result<()> {
    tx.prepare_cached("INSERT INTO incomplete VALUES (?1)")?.execute([stripe.0])?;
    Ok(())
}

fn is_incomplete(tx: &Transaction<'_>, stripe: StripeId) -> Result<bool> {
    let sql = "SELECT EXISTS (SELECT 1 FROM incomplete WHERE stripe = ?1)";
    Ok(tx.prepare_cached(sql)?.query_row([stripe.0], |row| row.get(0))?)
}

/// Replaces the recorded corrupt bytes of a block.
pub(super) fn set_corrupt(tx: &Transaction<'_>, block: BlockId, bytes: &[Span]) -> Result<()> {
    let of = (block.stripe.0, block.index, block.copy);
    tx.prepare_cached("DELETE FROM corrupt_bytes WHERE stripe = ?1 AND idx = ?2 AND copy = ?3")?.execute(of)?;
    let mut insert = tx.prepare_cached("INSERT INTO corrupt_bytes VALUES (?1, ?2, ?3, ?4, ?5)")?;
    for span in bytes {
        insert.execute((of.0, of.1, of.2, span.start, span.end))?;
    }
    Ok(())
}

/// The corrupt bytes of a stripe's blocks.
fn corrupt(tx: &Transaction<'_>, stripe: StripeId) -> Result<BTreeMap<(u8, u8), Vec<Span>>> {
    let sql = "SELECT idx, copy, first, behind FROM corrupt_bytes WHERE stripe = ?1 ORDER BY idx, copy, first";
    let mut statement = tx.prepare_cached(sql)?;
    let block = |row: &Row<'_>| Ok::<_, rusqlite::Error>((row.get(0)?, row.get(1)?));
    let rows = statement.query_map([stripe.0], |row| Ok((block(row)?, Span::new(row.get(2)?, row.get(3)?))))?;
    let mut corrupt: BTreeMap<(u8, u8), Vec<Span>> = BTreeMap::new();
    for row in rows {
        let (block, span) = row?;
        corrupt.entry(block).or_default().push(span);
    }
    Ok(corrupt)
}

/// Writes a stripe's placement and its dependent rows: the index from disks to stripes, and whether the stripe is
/// incomplete.
pub(super) fn set_placement(tx: &Transaction<'_>, stripe: &StripeRecord) -> Result<()> {
    let (id, placement) = (stripe.id.0, packed::pack_placement(&stripe.blocks, &stripe.copies)?);
    tx.prepare_cached("UPDATE stripes SET placement = ?2 WHERE id = ?1")?.execute((id, placement))?;
    tx.prepare_cached("DELETE FROM block_at WHERE stripe = ?1")?.execute([id])?;
    if stripe.ended {
        let sql = "INSERT INTO block_at (node, disk, stripe, idx, generation, copy) VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
        let mut insert = tx.prepare_cached(sql)?;
        for (index, block) in stripe.all() {
            insert.execute((block.home.node.0, block.home.disk.0, id, index, block.generation, block.copy))?;
        }
        if !stripe.lacks_any() {
            tx.prepare_cached("DELETE FROM incomplete WHERE stripe = ?1")?.execute([id])?;
        }
    }
    Ok(())
}

/// Writes a stripe's checksums, and what is known of blocks that have none.
pub(super) fn set_checksums(tx: &Transaction<'_>, stripe: &StripeRecord) -> Result<()> {
    let units = packed::pack_units(stripe)?;
    tx.prepare_cached("UPDATE stripes SET units = ?2 WHERE id = ?1")?.execute((stripe.id.0, units))?;
    Ok(())
}

/// Drops a stripe. Its blocks, and the blocks that its put has still allocated for it, become garbage with this reason.
pub(super) fn drop_stripe(tx: &Transaction<'_>, stripe: &StripeRecord, reason: GarbageReason, not_before_ms: u64) -> Result<()> {
    if stripe.ended {
        for (index, block) in stripe.all() {
            drop_block(tx, stripe, index, block, reason, not_before_ms)?;
        }
    }
    release_allocations(tx, stripe.id, not_before_ms, &[])?;
    tx.prepare_cached("DELETE FROM block_at WHERE stripe = ?1")?.execute([stripe.id.0])?;
    tx.prepare_cached("DELETE FROM corrupt_bytes WHERE stripe = ?1")?.execute([stripe.id.0])?;
    tx.prepare_cached("DELETE FROM incomplete WHERE stripe = ?1")?.execute([stripe.id.0])?;
    terms::forget(tx, stripe.id)?;
    tx.prepare_cached("DELETE FROM stripes WHERE id = ?1")?.execute([stripe.id.0])?;
    Ok(())
}

/// Turns a block of a stripe into garbage.
pub(super) fn drop_block(
    tx: &Transaction<'_>,
    stripe: &StripeRecord,
    index: u8,
    placed: &PlacedBlock,
    reason: GarbageReason,
    not_before_ms: u64,
) -> Result<()> {
    // A missing block may have been written in part, so its length is unknown.
    let bytes = (placed.state != BlockState::Missing).then(|| stripe.layout.block_len(index.into()));
    let block = stripe.id_of(index, placed);
    garbage::add(tx, &GarbageBlock { block, home: placed.home, reason, bytes, not_before_ms })
}

/// Drops a stripe of a put that does not complete, or that its put sends again.
pub(super) fn give_up_stripe(tx: &Transaction<'_>, stripe: &StripeRecord, not_before_ms: u64) -> Result<()> {
    drop_stripe(tx, stripe, feed::given_up(tx, Allocated::For(stripe.id))?, not_before_ms)
}

/// Turns a block that was allocated in that epoch into garbage. How much of it was written is unknown.
pub(super) fn give_up(tx: &Transaction<'_>, (block, home, epoch): (BlockId, Home, Epoch), not_before_ms: u64) -> Result<()> {
    let reason = feed::given_up(tx, Allocated::In(epoch))?;
    garbage::add(tx, &GarbageBlock { block, home, reason, bytes: None, not_before_ms })
}

/// Deletes a put's allocations for a stripe; those that are not among the blocks to keep become garbage.
pub(super) fn release_allocations(tx: &Transaction<'_>, stripe: StripeId, not_before_ms: u64, kept: &[BlockId]) -> Result<()> {
    let sql = "DELETE FROM allocations WHERE stripe = ?1 AND upload IS NOT NULL
               RETURNING stripe, idx, copy, generation, node, disk, epoch";
    let mut statement = tx.prepare_cached(sql)?;
    let released = statement.query_map([stripe.0], allocated)?.collect::<Result<Vec<_>, _>>()?;
    for released in released.into_iter().filter(|(block, ..)| !kept.contains(block)) {
        give_up(tx, released, not_before_ms)?;
    }
    Ok(())
}

/// Reads `stripe, idx, copy, generation`.
pub(super) fn block(row: &Row<'_>) -> rusqlite::Result<BlockId> {
    Ok(BlockId { stripe: StripeId(row.get(0)?), index: row.get(1)?, copy: row.get(2)?, generation: row.get(3)? })
}

/// Reads `stripe, idx, copy, generation, node, disk`.
pub(super) fn block_and_home(row: &Row<'_>) -> rusqlite::Result<(BlockId, Home)> {
    Ok((block(row)?, Home { node: NodeId(row.get(4)?), disk: DiskNumber(row.get(5)?) }))
}

/// Reads `stripe, idx, copy, generation, node, disk, epoch`.
pub(super) fn allocated(row: &Row<'_>) -> rusqlite::Result<(BlockId, Home, Epoch)> {
    let (block, home) = block_and_home(row)?;
    Ok((block, home, Epoch(row.get(6)?)))
}

/// A stripe's row before its blobs are decoded.
struct PackedStripe {
    id: u64,
    upload: Option<u64>,
    object: Option<u64>,
    number: u64,
    ended: bool,
    term: u64,
    layout: Vec<u8>,
    placement: Vec<u8>,
    checksums: Vec<u8>,
    counts: Option<Vec<u8>>,
}

fn packed_row(row: &Row<'_>) -> rusqlite::Result<PackedStripe> {
    Ok(PackedStripe {
        id: row.get(0)?,
        upload: row.get(1)?,
        object: row.get(2)?,
        number: row.get(3)?,
        ended: row.get(4)?,
        term: row.get(5)?,
        layout: row.get(6)?,
        placement: row.get(7)?,
        checksums: row.get(8)?,
        counts: row.get(9)?,
    })
}

impl PackedStripe {
    fn unpack(self, tx: &Transaction<'_>) -> Result<StripeRecord> {
        let owner = match (self.upload, self.object) {
            (Some(upload), None) => Owner::Upload(UploadId(upload)),
            (None, Some(object)) => Owner::Object(UploadId(object)),
            _ => return Err(MetaError::Storage(format!("stripe {} has no owner or two owners", self.id))),
        };
        let (blocks, copies) = packed::unpack_placement(&self.placement)?;
        let layout = packed::unpack_layout(&self.layout)?;
        let (checksums, kept) = packed::unpack_units(&self.checksums)?;
        if let Some(index) = layout.blocks().find(|index| !blocks.contains_key(index)) {
            return Err(MetaError::Storage(format!("stripe {} lacks block {index}, which is not empty", self.id)));
        }
        // Few stripes have corrupt or missing blocks; only those need the query.
        let any = |state| blocks.values().chain(copies.iter().map(|(_, copy)| copy)).any(|block| block.state == state);
        let corrupt = if any(BlockState::Corrupt) { corrupt(tx, StripeId(self.id))? } else { BTreeMap::new() };
        let incomplete = self.ended && any(BlockState::Missing) && is_incomplete(tx, StripeId(self.id))?;
        Ok(StripeRecord {
            id: StripeId(self.id),
            owner,
            number: self.number,
            ended: self.ended,
            seq: Seq::new(self.term, packed::unpack_counts(self.counts.as_deref())?),
            layout,
            blocks,
            copies,
            checksums,
            kept,
            corrupt,
            incomplete,
        })
    }
}
