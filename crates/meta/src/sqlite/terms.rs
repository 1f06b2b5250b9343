//! Stripes that are open for updates in place, or were a while ago.

use super::{blocks, rows};
use crate::{AdoptStripe, Adopted, MetaError, OpenStripe, Page, Result, SettleStripe, TermRecord, TermState, kept, packed};
use rusqlite::{OptionalExtension, Row, Transaction};
use std::collections::{BTreeMap, BTreeSet};
use weft_types::{
    BlockId, BlockState, CHECKSUM_UNIT_LEN, GarbageReason, Owner, PlacedBlock, Seq, StripeId, StripeRecord, crc32c_joined,
    crc32c_zeros,
};
use weft_update::{Sealed, StripeTerm};

const TERM: &str = "stripe, state, record, settled_ms, grows_to";

/// Whether only the update protocol may change a stripe.
pub(super) fn is_open(tx: &Transaction<'_>, stripe: StripeId) -> Result<bool> {
    let sql = "SELECT EXISTS (SELECT 1 FROM stripe_terms WHERE stripe = ?1 AND state IN ('opening', 'open'))";
    Ok(tx.prepare_cached(sql)?.query_row([stripe.0], |row| row.get(0))?)
}

/// A conflict if only the update protocol may change a stripe.
pub(super) fn require_settled(tx: &Transaction<'_>, stripe: StripeId) -> Result<()> {
    match is_open(tx, stripe)? {
        true => Err(MetaError::Conflict(format!("stripe {stripe} is open for updates: it must be settled first"))),
        false => Ok(()),
    }
}

/// Deletes the row of a stripe that is dropped.
pub(super) fn forget(tx: &Transaction<'_>, stripe: StripeId) -> Result<()> {
    tx.prepare_cached("DELETE FROM stripe_terms WHERE stripe = ?1")?.execute([stripe.0])?;
    Ok(())
}

/// The row of a stripe.
pub(super) fn find(tx: &Transaction<'_>, stripe: StripeId) -> Result<Option<TermRecord>> {
    let sql = format!("SELECT {TERM} FROM stripe_terms WHERE stripe = ?1");
    tx.prepare_cached(&sql)?.query_row([stripe.0], packed_row).optional()?.map(unpack).transpose()
}

pub(super) fn list(tx: &Transaction<'_>, after: Option<StripeId>, limit: u32) -> Result<Page<TermRecord>> {
    let mut statement =
        tx.prepare_cached(&format!("SELECT {TERM} FROM stripe_terms WHERE stripe > ?1 ORDER BY stripe LIMIT ?2"))?;
    let packed = statement.query_map((after.map_or(0, |after| after.0), u64::from(limit) + 1), packed_row)?;
    let packed = packed.collect::<Result<Vec<_>, _>>()?;
    Ok(rows::page(packed.into_iter().map(unpack).collect::<Result<_>>()?, limit))
}

fn put(tx: &Transaction<'_>, record: &TermRecord) -> Result<()> {
    let TermRecord { stripe, state, term, settled_ms, grows_to } = record;
    let sql = format!("INSERT OR REPLACE INTO stripe_terms ({TERM}) VALUES (?1, ?2, ?3, ?4, ?5)");
    let row = (stripe.0, state.name(), packed::pack_term(term)?, settled_ms, grows_to.unwrap_or(0));
    tx.prepare_cached(&sql)?.execute(row)?;
    Ok(())
}

pub(super) fn begin(tx: &Transaction<'_>, open: OpenStripe) -> Result<TermRecord> {
    let OpenStripe { stripe: id, before, members, now_ms, garbage_not_before_ms, grows_to } = open;
    let conflict = |why: &str| Err(MetaError::Conflict(format!("stripe {id} cannot be opened for updates: {why}")));
    let mut stripe = complete(tx, id)?;
    let found = find(tx, id)?;
    if found.as_ref().is_some_and(|found| found.state.is_open()) {
        return conflict("it is open already");
    }
    let term = found.map(|found| found.term);
    if term != before {
        return conflict("its term has changed");
    }
    let is_open = |block: &BlockId| term.as_ref().is_some_and(|term| term.unaware.contains(block));
    if !are_good(&stripe, &members) || members.iter().any(is_open) {
        return conflict("its blocks have changed, or are not closed yet");
    }
    if grows_to.is_some_and(|data_len| !can_grow(&stripe, data_len)) {
        return Err(MetaError::Refused(format!("stripe {id} cannot grow so")));
    }
    let members: BTreeSet<BlockId> = members.into_iter().collect();
    take(tx, &mut stripe, &members, garbage_not_before_ms)?;
    let term = StripeTerm::open(term.as_ref(), members.into_iter().collect(), &stripe.seq, now_ms);
    let record = TermRecord { stripe: id, state: TermState::Opening, term, settled_ms: 0, grows_to };
    put(tx, &record)?;
    Ok(record)
}

/// Whether a stripe can hold so many bytes of the object in the blocks that it has, and holds fewer now.
fn can_grow(stripe: &StripeRecord, data_len: u64) -> bool {
    stripe.layout.data_len < data_len && data_len <= stripe.layout.room_end()
}

/// Makes a stripe longer. Its blocks read as zeros where they are longer.
fn grow(tx: &Transaction<'_>, stripe: &mut StripeRecord, data_len: u64) -> Result<()> {
    let before = stripe.layout;
    stripe.layout.data_len = data_len;
    for (index, units) in (0..).zip(&mut stripe.checksums).filter(|(_, units)| !units.is_empty()) {
        *units = lengthened(units, before.block_len(index), stripe.layout.block_len(index));
    }
    for (index, known) in &mut stripe.kept {
        let units: Vec<u32> = known.iter().map(|unit| unit.unwrap_or_default()).collect();
        let longer = lengthened(&units, before.block_len((*index).into()), stripe.layout.block_len((*index).into()));
        let is_known = |unit: usize| known.get(unit).is_none_or(Option::is_some);
        *known = longer.into_iter().enumerate().map(|(unit, sum)| is_known(unit).then_some(sum)).collect();
    }
    let (layout, units) = (packed::pack_layout(&stripe.layout)?, packed::pack_units(stripe)?);
    tx.prepare_cached("UPDATE stripes SET layout = ?2, units = ?3 WHERE id = ?1")?.execute((stripe.id.0, layout, units))?;
    Ok(())
}

/// The CRC32C of each MiB of a block that grows from `from` bytes to `to` by zeros.
fn lengthened(units: &[u32], from: u64, to: u64) -> Vec<u32> {
    let unit = |number: u64| {
        let len = |end: u64| end.saturating_sub(number * CHECKSUM_UNIT_LEN).min(CHECKSUM_UNIT_LEN);
        let zeros = len(to) - len(from);
        crc32c_joined(units.get(number as usize).copied().unwrap_or(0), crc32c_zeros(zeros), zeros)
    };
    (0..to.div_ceil(CHECKSUM_UNIT_LEN)).map(unit).collect()
}

/// A stripe that was being opened is as long as it is then: some blocks are, and all others are fenced.
fn grown(tx: &Transaction<'_>, record: &TermRecord) -> Result<()> {
    match record.grows_to {
        Some(data_len) => grow(tx, &mut rows::stripe(tx, record.stripe)?, data_len),
        None => Ok(()),
    }
}

/// A complete stripe of an object.
fn complete(tx: &Transaction<'_>, id: StripeId) -> Result<StripeRecord> {
    let stripe = rows::stripe(tx, id)?;
    let conflict = |why: &str| Err(MetaError::Conflict(format!("stripe {id} cannot be opened for updates: {why}")));
    match stripe.owner {
        Owner::Object(_) if stripe.ended && !stripe.incomplete => Ok(stripe),
        Owner::Object(_) => conflict("some of its blocks are still on their way"),
        _ => conflict("it is not part of an object"),
    }
}

fn are_good(stripe: &StripeRecord, members: &[BlockId]) -> bool {
    let is_good = |block: &BlockId| {
        let placed = stripe.find(block.index, block.copy);
        placed.is_some_and(|placed| stripe.id_of(block.index, placed) == *block && placed.state == BlockState::Ok)
    };
    !members.is_empty() && members.iter().all(is_good)
}

/// From now on, only these blocks count, and what was begun with the content of before does not end.
fn take(tx: &Transaction<'_>, stripe: &mut StripeRecord, members: &BTreeSet<BlockId>, not_before_ms: u64) -> Result<()> {
    give_up_repairs(tx, stripe.id, not_before_ms)?;
    let fenced =
        stripe.all().map(|(index, placed)| stripe.id_of(index, placed)).filter(|block| !members.contains(block)).collect();
    fence(tx, stripe, &fenced, not_before_ms)?;
    if let Owner::Object(version) = stripe.owner {
        tx.prepare_cached("UPDATE objects SET updates = updates + 1 WHERE version = ?1")?.execute([version.0])?;
    }
    Ok(())
}

/// A rebuild that began before the stripe was opened must not end after it is settled.
fn give_up_repairs(tx: &Transaction<'_>, stripe: StripeId, not_before_ms: u64) -> Result<()> {
    let sql = "SELECT stripe, idx, copy, generation FROM allocations WHERE stripe = ?1 AND upload IS NULL";
    let mut statement = tx.prepare_cached(sql)?;
    let allocated = statement.query_map([stripe.0], rows::block)?.collect::<Result<Vec<_>, _>>()?;
    allocated.into_iter().try_for_each(|block| blocks::abort(tx, block, not_before_ms))
}

/// Gives up the generations of blocks.
fn fence(tx: &Transaction<'_>, stripe: &mut StripeRecord, fenced: &BTreeSet<BlockId>, not_before_ms: u64) -> Result<()> {
    if fenced.is_empty() {
        return Ok(());
    }
    for block in fenced {
        let of_index = |(index, placed): (u8, &PlacedBlock)| (index == block.index).then_some(placed.generation_high_water);
        let generation = stripe.all().filter_map(of_index).max().unwrap_or(0) + 1;
        let Some(placed) = stripe.find(block.index, block.copy).copied() else { continue };
        // It was fenced before, and not rebuilt since: there is nothing of this generation.
        if placed.state == BlockState::Missing && stripe.checksums_of(block.index).is_none() {
            continue;
        }
        rows::drop_block(tx, stripe, block.index, &placed, GarbageReason::Repaired, not_before_ms)?;
        rows::set_corrupt(tx, *block, &[])?;
        stripe.corrupt.remove(&(block.index, block.copy));
        for (_, placed) in stripe.all_mut().filter(|(index, _)| *index == block.index) {
            placed.generation_high_water = generation;
        }
        if let Some(placed) = stripe.find_mut(block.index, block.copy) {
            (placed.generation, placed.state) = (generation, BlockState::Missing);
        }
    }
    rows::set_placement(tx, stripe)
}

/// The row of a stripe that is open.
fn open_row(tx: &Transaction<'_>, stripe: StripeId) -> Result<TermRecord> {
    let found = find(tx, stripe)?.filter(|found| found.state.is_open());
    found.ok_or_else(|| MetaError::Conflict(format!("stripe {stripe} is not open for updates, or no longer exists")))
}

fn changed(stripe: StripeId, term: u64) -> MetaError {
    MetaError::Conflict(format!("stripe {stripe} has another term than {term} by now"))
}

pub(super) fn mark_open(tx: &Transaction<'_>, stripe: StripeId, term: u64) -> Result<()> {
    let record = open_row(tx, stripe)?;
    if record.term.term != term || record.term.sealed.term != term {
        return Err(changed(stripe, term));
    }
    grown(tx, &record)?;
    put(tx, &TermRecord { state: TermState::Open, grows_to: None, ..record })
}

pub(super) fn cancel(tx: &Transaction<'_>, stripe: StripeId, term: u64, now_ms: u64) -> Result<()> {
    let record = open_row(tx, stripe)?;
    // Blocks that a seal has reached are not closed by themselves.
    let is_sealed = record.term.term != term || record.term.sealed.term != term || !record.term.unaware.is_empty();
    if record.state != TermState::Opening || is_sealed {
        return Err(changed(stripe, term));
    }
    put(tx, &TermRecord { state: TermState::Closed, settled_ms: now_ms, grows_to: None, ..record })
}

pub(super) fn save(tx: &Transaction<'_>, id: StripeId, before: &StripeTerm, term: StripeTerm, not_before_ms: u64) -> Result<()> {
    let record = open_row(tx, id)?;
    if record.term != *before {
        return Err(changed(id, before.term));
    }
    if term.sealed.members != before.sealed.members {
        let members = |term: &StripeTerm| term.sealed.members.iter().copied().collect::<BTreeSet<_>>();
        let fenced = &members(before) - &members(&term);
        fence(tx, &mut rows::stripe(tx, id)?, &fenced, not_before_ms)?;
    }
    grown(tx, &record)?;
    put(tx, &TermRecord { term, grows_to: None, ..record })
}

pub(super) fn end(tx: &Transaction<'_>, settle: SettleStripe) -> Result<StripeRecord> {
    let SettleStripe { stripe: id, term, checksums, now_ms } = settle;
    let record = open_row(tx, id)?;
    if record.term.term != term || record.term.sealed.term != term {
        return Err(changed(id, term));
    }
    let mut stripe = rows::stripe(tx, id)?;
    let unaware = record.term.sealed.members.iter().copied().collect();
    record_content(tx, &mut stripe, &record.term.sealed, &checksums)?;
    let term = StripeTerm { unaware, ..record.term };
    put(tx, &TermRecord { stripe: id, state: TermState::Settled, term, settled_ms: now_ms, grows_to: None })?;
    Ok(stripe)
}

/// Records what the members of a seal contain.
fn record_content(
    tx: &Transaction<'_>,
    stripe: &mut StripeRecord,
    sealed: &Sealed,
    checksums: &BTreeMap<u8, Vec<u32>>,
) -> Result<()> {
    let (id, Sealed { term, members, vector, .. }) = (stripe.id, sealed);
    let indexes: BTreeSet<u8> = members.iter().map(|block| block.index).collect();
    let is_whole = |(index, units): (&u8, &Vec<u32>)| units.len() as u64 == stripe.layout.checksum_units((*index).into());
    if !checksums.keys().eq(&indexes) || !checksums.iter().all(is_whole) {
        return Err(MetaError::Refused(format!("the checksums of stripe {id} are not those of the blocks that are settled")));
    }
    stripe.kept = kept::kept(stripe, checksums, vector);
    let placed: BTreeSet<u8> = stripe.blocks.keys().copied().collect();
    for (index, recorded) in (0..=u8::MAX).zip(&mut stripe.checksums).filter(|(index, _)| placed.contains(index)) {
        *recorded = checksums.get(&index).cloned().unwrap_or_default();
    }
    let counts = (0..=u8::MAX).take(stripe.layout.k as usize).map(|stream| vector.get(&stream).copied().unwrap_or(0)).collect();
    stripe.seq = Seq::new(*term, counts);
    let (counts, units) = (packed::pack_counts(stripe.seq.counts())?, packed::pack_units(stripe)?);
    let sql = "UPDATE stripes SET term = ?2, counts = ?3, units = ?4 WHERE id = ?1";
    tx.prepare_cached(sql)?.execute((id.0, term, counts, units))?;
    Ok(())
}

pub(super) fn adopt(tx: &Transaction<'_>, adopt: AdoptStripe) -> Result<()> {
    let AdoptStripe { stripe: id, before, term, state, data_len, garbage_not_before_ms } = adopt;
    let mut stripe = complete(tx, id)?;
    let found = find(tx, id)?.map(|found| found.term);
    let least = found.as_ref().map_or(0, |found| found.term).max(stripe.seq.term());
    if found != before || term.term < least || term.sealed.term <= stripe.seq.term() {
        return Err(changed(id, before.map_or(0, |before| before.term)));
    }
    if !are_good(&stripe, &term.sealed.members) {
        return Err(MetaError::Conflict(format!("the blocks of stripe {id} have changed")));
    }
    if can_grow(&stripe, data_len) {
        grow(tx, &mut stripe, data_len)?;
    }
    take(tx, &mut stripe, &term.sealed.members.iter().copied().collect(), garbage_not_before_ms)?;
    let (state, settled_ms) = match state {
        Adopted::Opening => (TermState::Opening, 0),
        Adopted::Open => (TermState::Open, 0),
        Adopted::Settled { checksums, now_ms } => {
            record_content(tx, &mut stripe, &term.sealed, &checksums)?;
            (TermState::Settled, now_ms)
        }
    };
    put(tx, &TermRecord { stripe: id, state, term, settled_ms, grows_to: None })
}

pub(super) fn closed(tx: &Transaction<'_>, stripe: StripeId, term: u64, blocks: &[BlockId]) -> Result<bool> {
    let settled = find(tx, stripe)?.filter(|found| found.state == TermState::Settled && found.term.term == term);
    let Some(mut record) = settled else { return Ok(false) };
    record.term.unaware.retain(|block| !blocks.contains(block));
    let is_left = !record.term.unaware.is_empty();
    record.state = if is_left { TermState::Settled } else { TermState::Closed };
    put(tx, &record)?;
    Ok(is_left)
}

/// Deletes the rows of stripes that were settled at that time or before and are closed.
pub(super) fn forget_closed(tx: &Transaction<'_>, settled_ms: u64) -> Result<u64> {
    let sql = "DELETE FROM stripe_terms WHERE state = 'closed' AND settled_ms <= ?1";
    Ok(tx.execute(sql, [settled_ms])? as u64)
}

/// A row before its blob is decoded.
type Packed = (u64, String, Vec<u8>, u64, u64);

fn packed_row(row: &Row<'_>) -> rusqlite::Result<Packed> {
    Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?))
}

fn unpack((stripe, state, record, settled_ms, grows_to): Packed) -> Result<TermRecord> {
    let unknown = || MetaError::Storage(format!("the term of stripe {stripe} has the unknown state '{state}'"));
    let state = TermState::ALL.into_iter().find(|known| known.name() == state).ok_or_else(unknown)?;
    let grows_to = (grows_to > 0).then_some(grows_to);
    Ok(TermRecord { stripe: StripeId(stripe), state, term: packed::unpack_term(&record)?, settled_ms, grows_to })
}
