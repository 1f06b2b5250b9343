//! Single blocks: allocated, rebuilt, found to be bad.

use super::{garbage, rows};
use crate::{
    Allocation, BlockState, CORRUPT_RANGES_MAX, Epoch, Home, MetaError, NewRepair, Owner, PlacedBlock, Result, StripeRecord,
    UploadId,
};
use rusqlite::{OptionalExtension, Transaction};
use weft_types::{BlockId, NodeId, Span};

pub(super) fn allocate(tx: &Transaction<'_>, epoch: Epoch, new: &NewRepair) -> Result<BlockId> {
    let mut stripe = rows::stripe(tx, new.stripe)?;
    // A put's stripe is its own until it has ended; afterwards a block is rebuilt only for an object.
    let fits = match (stripe.owner, new.upload) {
        (Owner::Upload(owner), Some(upload)) => owner == upload && !stripe.ended,
        (Owner::Object(_), None) => true,
        _ => false,
    };
    if !fits {
        return Err(MetaError::Conflict(format!("stripe {} changed hands: plan again", new.stripe)));
    }
    require_alone(&stripe, new.index, new.home)?;
    require_alone_on_the_way(tx, new)?;
    let placed = placed_mut(&mut stripe, new.index)?;
    placed.generation_high_water += 1;
    let block = BlockId { stripe: new.stripe, index: new.index, copy: 0, generation: placed.generation_high_water };
    rows::set_placement(tx, new.stripe, &stripe.blocks, stripe.ended)?;
    tx.execute(
        "INSERT INTO allocations VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
        (
            block.stripe.0,
            block.index,
            block.generation,
            new.home.node.0,
            new.home.disk.0,
            new.upload.map(|upload| upload.0),
            epoch.0,
            new.expires_ms,
        ),
    )?;
    Ok(block)
}

pub(super) fn commit(tx: &Transaction<'_>, block: BlockId, old: u32, units: &[u32], not_before_ms: u64) -> Result<StripeRecord> {
    let home = take_allocation(tx, block)?
        .ok_or_else(|| MetaError::Conflict(format!("block {block} is not allocated any more: its repair was given up")))?;
    let mut stripe = rows::find_stripe(tx, block.stripe)?
        .ok_or_else(|| MetaError::Conflict(format!("stripe {} was removed meanwhile", block.stripe)))?;
    if stripe.units.get(usize::from(block.index)).map(Vec::as_slice) != Some(units) {
        return Err(MetaError::Refused(format!("block {block} was rebuilt, but its checksums are not those that are recorded")));
    }
    require_alone(&stripe, block.index, home)?;
    let placed = placed_mut(&mut stripe, block.index)?;
    if placed.generation != old {
        let now = placed.generation;
        return Err(MetaError::Conflict(format!(
            "block {block} was to replace generation {old}, and generation {now} is there now"
        )));
    }
    let replaced = (BlockId { generation: old, ..block }, placed.home);
    *placed = PlacedBlock { generation: block.generation, home, state: BlockState::Ok, ..*placed };
    stripe.corrupt.remove(&block.index);
    rows::set_placement(tx, block.stripe, &stripe.blocks, stripe.ended)?;
    rows::set_corrupt(tx, block, &[])?;
    garbage::add(tx, replaced.0, replaced.1, not_before_ms)?;
    Ok(stripe)
}

pub(super) fn abort(tx: &Transaction<'_>, block: BlockId, not_before_ms: u64) -> Result<()> {
    match take_allocation(tx, block)? {
        Some(home) => garbage::add(tx, block, home, not_before_ms),
        None => Ok(()),
    }
}

pub(super) fn expire(tx: &Transaction<'_>, epoch: Epoch, now_ms: u64) -> Result<u64> {
    let expired = allocations(tx)?
        .into_iter()
        .filter(|allocation| allocation.upload.is_none() && (allocation.expires_ms <= now_ms || allocation.epoch < epoch));
    let mut count = 0;
    for allocation in expired {
        // An agent may go on with an earlier leader's plan for as long as the allocation was meant to last.
        abort(tx, allocation.block, allocation.expires_ms)?;
        count += 1;
    }
    Ok(count)
}

pub(super) fn allocations(tx: &Transaction<'_>) -> Result<Vec<Allocation>> {
    let mut statement = tx.prepare_cached(
        "SELECT stripe, idx, generation, node, disk, upload, epoch, expires_ms FROM allocations ORDER BY stripe, idx, generation",
    )?;
    let allocations = statement.query_map([], |row| {
        let (block, home) = rows::block_and_home(row)?;
        let upload = row.get::<_, Option<u64>>(5)?.map(UploadId);
        Ok(Allocation { block, home, upload, epoch: Epoch(row.get(6)?), expires_ms: row.get(7)? })
    })?;
    Ok(allocations.collect::<Result<_, _>>()?)
}

pub(super) fn mark(tx: &Transaction<'_>, block: BlockId, state: BlockState) -> Result<bool> {
    let Some(mut stripe) = rows::find_stripe(tx, block.stripe)?.filter(|stripe| stripe.ended) else { return Ok(false) };
    let whole = !stripe.corrupt.contains_key(&block.index);
    let placed = placed_mut(&mut stripe, block.index)?;
    if placed.generation != block.generation || placed.state == state && whole {
        return Ok(false);
    }
    placed.state = state;
    rows::set_placement(tx, block.stripe, &stripe.blocks, true)?;
    rows::set_corrupt(tx, block, &[])?;
    Ok(true)
}

pub(super) fn mark_corrupt(tx: &Transaction<'_>, block: BlockId, bytes: Vec<Span>) -> Result<bool> {
    let Some(mut stripe) = rows::find_stripe(tx, block.stripe)?.filter(|stripe| stripe.ended) else { return Ok(false) };
    let known = stripe.corrupt_bytes(block.index).to_vec();
    let all = Span::normalize(known.iter().copied().chain(bytes).collect());
    let placed = placed_mut(&mut stripe, block.index)?;
    let lost_as_a_whole = placed.state != BlockState::Ok && known.is_empty();
    if placed.generation != block.generation || lost_as_a_whole || all == known {
        return Ok(false);
    }
    placed.state = BlockState::Corrupt;
    rows::set_placement(tx, block.stripe, &stripe.blocks, true)?;
    rows::set_corrupt(tx, block, if all.len() > CORRUPT_RANGES_MAX { &[] } else { &all })?;
    Ok(true)
}

/// A disk may have moved from one node to another: so only garbage, which nobody would miss, is looked for by its node.
pub(super) fn strangers(tx: &Transaction<'_>, node: NodeId, mut blocks: Vec<BlockId>) -> Result<Vec<BlockId>> {
    let of_block = "stripe = ?1 AND idx = ?2 AND generation = ?3";
    let mut is_known = tx.prepare_cached(&format!(
        "SELECT EXISTS (SELECT 1 FROM block_at WHERE {of_block}) OR EXISTS (SELECT 1 FROM allocations WHERE {of_block})
         OR EXISTS (SELECT 1 FROM garbage WHERE node = ?4 AND {of_block})"
    ))?;
    let mut failed = None;
    blocks.retain(|block| {
        let key = (block.stripe.0, block.index, block.generation, node.0);
        let known = is_known.query_row(key, |row| row.get::<_, bool>(0)).unwrap_or_else(|error| {
            failed.get_or_insert(error);
            true
        });
        !known || block.copy != 0
    });
    failed.map_or(Ok(blocks), |error| Err(error.into()))
}

/// A node takes one block of a stripe: also one that is lost there, since its node may come back with it.
fn require_alone(stripe: &StripeRecord, index: u8, home: Home) -> Result<()> {
    let others = (0..=u8::MAX).zip(&stripe.blocks).filter(|(other, _)| *other != index);
    match others.map(|(other, placed)| (other, placed.home.node)).find(|(_, node)| *node == home.node) {
        Some((other, node)) => Err(MetaError::Conflict(format!(
            "block {index} of stripe {} cannot go to {node}, which has block {other} of it: another home is needed",
            stripe.id
        ))),
        None => Ok(()),
    }
}

/// Nor do two blocks of a stripe go to one node, whoever brings them there.
fn require_alone_on_the_way(tx: &Transaction<'_>, new: &NewRepair) -> Result<()> {
    let sql = "SELECT idx FROM allocations WHERE stripe = ?1 AND node = ?2 AND idx <> ?3 LIMIT 1";
    let other = tx.query_row(sql, (new.stripe.0, new.home.node.0, new.index), |row| row.get::<_, u8>(0)).optional()?;
    match other {
        Some(other) => Err(MetaError::Conflict(format!(
            "block {} of stripe {} cannot go to {}, to which block {other} of it is on its way: another home is needed",
            new.index, new.stripe, new.home.node
        ))),
        None => Ok(()),
    }
}

fn placed_mut(stripe: &mut StripeRecord, index: u8) -> Result<&mut PlacedBlock> {
    let (id, n) = (stripe.id, stripe.blocks.len());
    let none = || MetaError::Refused(format!("stripe {id} has blocks 0 to {}, not {index}", n.saturating_sub(1)));
    stripe.blocks.get_mut(usize::from(index)).ok_or_else(none)
}

fn take_allocation(tx: &Transaction<'_>, block: BlockId) -> Result<Option<Home>> {
    let sql = "DELETE FROM allocations WHERE stripe = ?1 AND idx = ?2 AND generation = ?3
               RETURNING stripe, idx, generation, node, disk";
    let taken = tx.query_row(sql, (block.stripe.0, block.index, block.generation), rows::block_and_home).optional()?;
    Ok(taken.map(|(_, home)| home))
}
