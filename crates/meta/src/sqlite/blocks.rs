//! Single blocks: allocation, repair, and bad blocks.

use super::{departures, rows, terms};
use crate::{Allocation, Bad, Marked, MetaError, NewRepair, Result, kept};
use rusqlite::{OptionalExtension, Transaction};
use std::collections::BTreeMap;
use weft_types::{
    BlockId, BlockState, CORRUPT_RANGES_MAX, Epoch, GarbageReason, Home, NodeId, Owner, PlacedBlock, REPLICAS_MAX, Seq, Span,
    StripeId, StripeRecord, UploadId,
};

pub(super) fn allocate(tx: &Transaction<'_>, epoch: Epoch, new: &NewRepair) -> Result<BlockId> {
    let mut stripe = rows::stripe(tx, new.stripe)?;
    // A stripe belongs to its put until it has ended; a repair after that outlives the put's commit.
    let fits = match new.upload {
        Some(upload) => stripe.owner == Owner::Upload(upload) && !stripe.ended,
        None => stripe.ended,
    };
    if !fits {
        return Err(MetaError::Conflict(format!(
            "stripe {} changed its owner since the repair was planned: plan it again",
            new.stripe
        )));
    }
    terms::require_settled(tx, new.stripe)?;
    // From now on, an opening gives the allocation up. So nothing is committed that was made from an earlier record.
    if new.term.is_some_and(|planned| planned != stripe.seq.term()) {
        let id = new.stripe;
        return Err(MetaError::Conflict(format!("stripe {id} was updated since the repair was planned: plan it again")));
    }
    if !stripe.blocks.contains_key(&new.index) || new.copy >= REPLICAS_MAX {
        return Err(no_block(&stripe, new.index, new.copy));
    }
    departures::require_disk(tx, new.home)?;
    let of = BlockId { stripe: new.stripe, index: new.index, copy: new.copy, generation: 0 };
    require_alone_at(tx, &stripe, of, new.home)?;
    // All copies of a block share one generation count, which outlives each of them.
    let of_index = |(index, placed)| (index == new.index).then_some(placed);
    let generation = stripe.all().filter_map(of_index).map(|placed| placed.generation_high_water).max().unwrap_or(0) + 1;
    for (_, placed) in stripe.all_mut().filter(|(index, _)| *index == new.index) {
        placed.generation_high_water = generation;
    }
    let block = BlockId { stripe: new.stripe, index: new.index, copy: new.copy, generation };
    rows::set_placement(tx, &stripe)?;
    tx.execute(
        "INSERT INTO allocations VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
        (
            block.stripe.0,
            block.index,
            block.copy,
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

pub(super) fn commit(
    tx: &Transaction<'_>,
    block: BlockId,
    old: u32,
    checksums: &[u32],
    not_before_ms: u64,
) -> Result<StripeRecord> {
    let (home, _) = take_allocation(tx, block)?
        .ok_or_else(|| MetaError::Conflict(format!("block {block} is no longer allocated: its repair was given up")))?;
    let mut stripe = rows::find_stripe(tx, block.stripe)?
        .ok_or_else(|| MetaError::Conflict(format!("stripe {} was removed during the repair", block.stripe)))?;
    terms::require_settled(tx, block.stripe)?;
    let is_unknown = stripe.checksums_of(block.index).is_none() && usize::from(block.index) < stripe.checksums.len();
    let is_right = stripe.kept.get(&block.index).is_none_or(|known| kept::agrees(known, checksums));
    let is_whole = is_right && checksums.len() as u64 == stripe.layout.checksum_units(block.index.into());
    if stripe.checksums_of(block.index) != Some(checksums) && !(is_unknown && is_whole) {
        return Err(MetaError::Refused(format!("block {block} was rebuilt, but its checksums differ from the recorded ones")));
    }
    require_alone(&stripe, block.index, block.copy, home)?;
    let now = stripe.find(block.index, block.copy).map_or(0, |placed| placed.generation);
    if now != old {
        return Err(MetaError::Conflict(match now {
            0 => format!("block {block} cannot replace generation {old}: that copy was dropped during the repair"),
            now => format!("block {block} cannot replace generation {old}: the current generation is {now}"),
        }));
    }
    // Another allocation of the block may exist by now.
    let of_index = |(index, placed): (u8, &PlacedBlock)| (index == block.index).then_some(placed.generation_high_water);
    let generation_high_water = stripe.all().filter_map(of_index).fold(block.generation, u32::max);
    let new = PlacedBlock { generation: block.generation, generation_high_water, home, state: BlockState::Ok, copy: block.copy };
    if let Some(placed) = stripe.find(block.index, block.copy) {
        rows::drop_block(tx, &stripe, block.index, placed, GarbageReason::Repaired, not_before_ms)?;
    }
    match stripe.find_mut(block.index, block.copy) {
        Some(placed) => *placed = new,
        None => stripe.copies.push((block.index, new)),
    }
    stripe.put_first(|_, _, placed| placed.copy);
    stripe.corrupt.remove(&(block.index, block.copy));
    rows::set_placement(tx, &stripe)?;
    rows::set_corrupt(tx, block, &[])?;
    if let Some(recorded) = stripe.checksums.get_mut(usize::from(block.index)).filter(|_| is_unknown) {
        *recorded = checksums.to_vec();
        stripe.kept.remove(&block.index);
        rows::set_checksums(tx, &stripe)?;
    }
    Ok(stripe)
}

pub(super) fn forget_kept(tx: &Transaction<'_>, id: StripeId, term: u64, index: u8) -> Result<bool> {
    let found = rows::find_stripe(tx, id)?.filter(|stripe| stripe.seq.term() == term);
    let Some(mut stripe) = found else { return Ok(false) };
    let was_known = stripe.kept.remove(&index).is_some();
    if was_known {
        rows::set_checksums(tx, &stripe)?;
    }
    Ok(was_known)
}

/// Drops all copies of a stripe's blocks except one of each, which must be good.
pub(super) fn drop_copies(tx: &Transaction<'_>, id: StripeId, keep: &[BlockId], not_before_ms: u64) -> Result<StripeRecord> {
    let mut stripe = rows::stripe(tx, id)?;
    if !matches!(stripe.owner, Owner::Object(_)) {
        return Err(MetaError::Conflict(format!("stripe {id} belongs to a put that has not been committed")));
    }
    terms::require_settled(tx, id)?;
    let (kept, dropped): (Vec<_>, Vec<_>) = stripe
        .all()
        .map(|(index, placed)| (index, *placed))
        .partition(|(index, placed)| keep.contains(&stripe.id_of(*index, placed)));
    let count = kept.len();
    let mut kept: BTreeMap<u8, PlacedBlock> = kept.into_iter().collect();
    if kept.len() != count || !kept.keys().eq(stripe.blocks.keys()) {
        return Err(MetaError::Conflict(format!(
            "the copies of stripe {id} changed since they were chosen, or the choice does not keep one of each block"
        )));
    }
    // Blocks that are kept could be rebuilt from blocks that are dropped, so all kept ones must be good.
    let lost = kept.iter().find(|(_, placed)| placed.state != BlockState::Ok);
    if let Some((index, placed)) = lost.filter(|_| !dropped.is_empty()) {
        let block = stripe.id_of(*index, placed);
        return Err(MetaError::Conflict(format!(
            "block {block} would be the only copy, but it is not good: no copy is dropped until it is repaired"
        )));
    }
    for (index, placed) in dropped {
        rows::drop_block(tx, &stripe, index, &placed, GarbageReason::Removed, not_before_ms)?;
        rows::set_corrupt(tx, stripe.id_of(index, &placed), &[])?;
        stripe.corrupt.remove(&(index, placed.copy));
        if let Some(kept) = kept.get_mut(&index) {
            kept.generation_high_water = placed.generation_high_water.max(kept.generation_high_water);
        }
    }
    stripe.blocks = kept;
    stripe.copies.clear();
    stripe.incomplete &= stripe.lacks_any();
    rows::set_placement(tx, &stripe)?;
    Ok(stripe)
}

pub(super) fn abort(tx: &Transaction<'_>, block: BlockId, not_before_ms: u64) -> Result<()> {
    match take_allocation(tx, block)? {
        Some((home, epoch)) => rows::give_up(tx, (block, home, epoch), not_before_ms),
        None => Ok(()),
    }
}

/// Allocations of a put expire with the put.
pub(super) fn extend(tx: &Transaction<'_>, blocks: &[BlockId], expires_ms: u64) -> Result<()> {
    let sql = "UPDATE allocations SET expires_ms = ?5
               WHERE stripe = ?1 AND idx = ?2 AND copy = ?3 AND generation = ?4 AND upload IS NULL AND expires_ms < ?5";
    let mut statement = tx.prepare_cached(sql)?;
    for block in blocks {
        statement.execute((block.stripe.0, block.index, block.copy, block.generation, expires_ms))?;
    }
    Ok(())
}

pub(super) fn expire(tx: &Transaction<'_>, epoch: Epoch, now_ms: u64) -> Result<u64> {
    let expired = allocations(tx)?
        .into_iter()
        .filter(|allocation| allocation.upload.is_none() && (allocation.expires_ms <= now_ms || allocation.epoch < epoch));
    let mut count = 0;
    for allocation in expired {
        // An agent may run an earlier leader's plan until the allocation would have expired.
        abort(tx, allocation.block, allocation.expires_ms)?;
        count += 1;
    }
    Ok(count)
}

pub(super) fn allocations(tx: &Transaction<'_>) -> Result<Vec<Allocation>> {
    let mut statement = tx.prepare_cached(
        "SELECT stripe, idx, copy, generation, node, disk, upload, epoch, expires_ms FROM allocations
         ORDER BY stripe, idx, copy, generation",
    )?;
    let allocations = statement.query_map([], |row| {
        let (block, home) = rows::block_and_home(row)?;
        let upload = row.get::<_, Option<u64>>(6)?.map(UploadId);
        Ok(Allocation { block, home, upload, epoch: Epoch(row.get(7)?), expires_ms: row.get(8)? })
    })?;
    Ok(allocations.collect::<Result<_, _>>()?)
}

pub(super) fn mark(tx: &Transaction<'_>, block: BlockId, state: BlockState) -> Result<bool> {
    let Some(mut stripe) = rows::find_stripe(tx, block.stripe)?.filter(|stripe| stripe.ended) else { return Ok(false) };
    if terms::is_open(tx, block.stripe)? {
        return Ok(false);
    }
    let whole = !stripe.corrupt.contains_key(&(block.index, block.copy));
    let Some(placed) = placed_mut(&mut stripe, block)? else { return Ok(false) };
    // A late receipt of a block does not clear corruption that was found since.
    let revives = state == BlockState::Ok && placed.state != BlockState::Missing;
    if placed.generation != block.generation || revives || placed.state == state && whole {
        return Ok(false);
    }
    placed.state = state;
    rows::set_placement(tx, &stripe)?;
    rows::set_corrupt(tx, block, &[])?;
    Ok(true)
}

pub(super) fn mark_found(tx: &Transaction<'_>, block: BlockId, bad: Bad, planned: Option<&Seq>) -> Result<Marked> {
    let Some(stripe) = rows::find_stripe(tx, block.stripe)?.filter(|stripe| stripe.ended) else { return Ok(Marked::Unchanged) };
    if planned.is_some_and(|planned| *planned != stripe.seq) {
        return Ok(Marked::Updated);
    }
    if terms::is_open(tx, block.stripe)? {
        return Ok(Marked::Open);
    }
    let is_changed = match bad {
        Bad::Lost(state) => mark(tx, block, state)?,
        Bad::Corrupt(bytes) => mark_corrupt(tx, stripe, block, bytes)?,
    };
    Ok(if is_changed { Marked::Changed } else { Marked::Unchanged })
}

fn mark_corrupt(tx: &Transaction<'_>, mut stripe: StripeRecord, block: BlockId, bytes: Vec<Span>) -> Result<bool> {
    let known = stripe.corrupt_of(block.index, block.copy).to_vec();
    let all = Span::normalize(known.iter().copied().chain(bytes).collect());
    let Some(placed) = placed_mut(&mut stripe, block)? else { return Ok(false) };
    let lost_as_a_whole = placed.state != BlockState::Ok && known.is_empty();
    if placed.generation != block.generation || lost_as_a_whole || all == known {
        return Ok(false);
    }
    placed.state = BlockState::Corrupt;
    rows::set_placement(tx, &stripe)?;
    rows::set_corrupt(tx, block, if all.len() > CORRUPT_RANGES_MAX { &[] } else { &all })?;
    Ok(true)
}

/// A disk may have moved to another node. So only garbage, which is not needed, is looked up by node.
pub(super) fn orphans(tx: &Transaction<'_>, node: NodeId, mut blocks: Vec<BlockId>) -> Result<Vec<BlockId>> {
    let of_block = "stripe = ?1 AND idx = ?2 AND generation = ?3 AND copy = ?5";
    let mut is_known = tx.prepare_cached(&format!(
        "SELECT EXISTS (SELECT 1 FROM block_at WHERE {of_block}) OR EXISTS (SELECT 1 FROM allocations WHERE {of_block})
         OR EXISTS (SELECT 1 FROM garbage WHERE node = ?4 AND {of_block})"
    ))?;
    let mut failed = None;
    blocks.retain(|block| {
        let key = (block.stripe.0, block.index, block.generation, node.0, block.copy);
        let known = is_known.query_row(key, |row| row.get::<_, bool>(0)).unwrap_or_else(|error| {
            failed.get_or_insert(error);
            true
        });
        !known
    });
    failed.map_or(Ok(blocks), |error| Err(error.into()))
}

/// Ensures that a node gets at most one block of a stripe. A lost block counts, because its node may return with it.
fn require_alone(stripe: &StripeRecord, index: u8, copy: u8, home: Home) -> Result<()> {
    let others = stripe.all().filter(|(other, placed)| (*other, placed.copy) != (index, copy));
    match others.map(|(other, placed)| (other, placed.home.node)).find(|(_, node)| *node == home.node) {
        Some((other, node)) => Err(MetaError::Conflict(format!(
            "block {index} of stripe {} cannot go to {node}, which has block {other} of it: choose another node",
            stripe.id
        ))),
        None => Ok(()),
    }
}

/// Ensures that a node has, and is about to get, no other block of a stripe.
pub(super) fn require_alone_at(tx: &Transaction<'_>, stripe: &StripeRecord, block: BlockId, home: Home) -> Result<()> {
    require_alone(stripe, block.index, block.copy, home)?;
    // Allocations of any task.
    let sql = "SELECT idx FROM allocations WHERE stripe = ?1 AND node = ?2 AND (idx, copy) <> (?3, ?4) LIMIT 1";
    let key = (stripe.id.0, home.node.0, block.index, block.copy);
    match tx.prepare_cached(sql)?.query_row(key, |row| row.get::<_, u8>(0)).optional()? {
        Some(other) => Err(MetaError::Conflict(format!(
            "block {} of stripe {} cannot go to {}, because block {other} of it is on its way there: choose another node",
            block.index, stripe.id, home.node
        ))),
        None => Ok(()),
    }
}

/// `None` if that copy was dropped or the block is empty.
fn placed_mut(stripe: &mut StripeRecord, block: BlockId) -> Result<Option<&mut PlacedBlock>> {
    if u32::from(block.index) >= stripe.layout.n() {
        return Err(no_block(stripe, block.index, block.copy));
    }
    Ok(stripe.find_mut(block.index, block.copy))
}

fn no_block(stripe: &StripeRecord, index: u8, copy: u8) -> MetaError {
    let (id, last) = (stripe.id, stripe.layout.n().saturating_sub(1));
    let message = match stripe.layout.block_len(index.into()) {
        0 if u32::from(index) <= last => format!("block {index} of stripe {id} is empty: it is not stored"),
        _ => format!(
            "stripe {id} has no block {index}, copy {copy}: its blocks are 0 to {last}, with at most {REPLICAS_MAX} copies each"
        ),
    };
    MetaError::Refused(message)
}

/// Its home, and the epoch in which it was allocated.
fn take_allocation(tx: &Transaction<'_>, block: BlockId) -> Result<Option<(Home, Epoch)>> {
    let sql = "DELETE FROM allocations WHERE stripe = ?1 AND idx = ?2 AND copy = ?3 AND generation = ?4
               RETURNING stripe, idx, copy, generation, node, disk, epoch";
    let key = (block.stripe.0, block.index, block.copy, block.generation);
    let taken = tx.query_row(sql, key, rows::allocated).optional()?;
    Ok(taken.map(|(_, home, epoch)| (home, epoch)))
}
