//! Puts: from the lease to the commit.

use super::{
    cluster::{Numbered, next_number},
    departures, objects, policies, rows,
};
use crate::{CommitPut, EndStripe, Leftovers, MetaError, NewStripe, NewUpload, ObjectRecord, Result, UploadRecord, packed};
use rusqlite::{OptionalExtension, Row, Transaction};
use std::collections::BTreeMap;
use weft_types::{
    Ack, BlockId, BlockState, Epoch, GarbageReason, Home, Layout, ObjectName, Owner, PlacedBlock, PutKey, REPLICAS_MAX, Seq,
    StripeId, StripeRecord, UploadId,
};

const UPLOAD: &str = "id, bucket, key, code, block_len, cell_len, alpha, failure_domain, ack_missing_max, created_ms, expires_ms,
                      replicas, replaces, put_key";

pub(super) fn begin(tx: &Transaction<'_>, new: NewUpload) -> Result<UploadRecord> {
    policies::require_bucket(tx, &new.name.bucket)?;
    let id = UploadId(next_number(tx, Numbered::Upload)?);
    tx.execute(
        &format!("INSERT INTO uploads ({UPLOAD}) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)"),
        (
            id.0,
            &new.name.bucket,
            &new.name.key,
            &new.code,
            new.layout.block_len,
            new.layout.cell_len,
            new.layout.alpha,
            policies::domain_text(new.failure_domain),
            new.ack.missing_max,
            new.created_ms,
            new.expires_ms,
            new.replicas,
            new.replaces.map(|version| version.0),
            // All 64 bits, as SQLite's integers are signed.
            new.key.to_bytes(),
        ),
    )?;
    if let Some(version) = new.replaces {
        // What is updated in place from here on, the conversion may have read before.
        let sql = "UPDATE uploads SET updates = coalesce((SELECT updates FROM objects WHERE version = ?2), 0) WHERE id = ?1";
        tx.prepare_cached(sql)?.execute((id.0, version.0))?;
    }
    Ok(UploadRecord { id, new })
}

pub(super) fn get(tx: &Transaction<'_>, id: UploadId) -> Result<UploadRecord> {
    let sql = format!("SELECT {UPLOAD} FROM uploads WHERE id = ?1");
    tx.prepare_cached(&sql)?.query_row([id.0], upload_row).optional()?.ok_or_else(|| no_upload(id))
}

pub(super) fn stripe(tx: &Transaction<'_>, id: UploadId, number: u64) -> Result<StripeRecord> {
    let found = rows::stripes_of(tx, Owner::Upload(id), number, 1)?.pop().filter(|stripe| stripe.number == number);
    found.ok_or_else(|| MetaError::NotFound(format!("put {id} has no stripe {number}")))
}

pub(super) fn extend(tx: &Transaction<'_>, id: UploadId, expires_ms: u64) -> Result<()> {
    let sql = "UPDATE uploads SET expires_ms = max(expires_ms, ?2) WHERE id = ?1";
    match tx.prepare_cached(sql)?.execute((id.0, expires_ms))? {
        0 => Err(no_upload(id)),
        _ => Ok(()),
    }
}

/// Deletes a put's stripes that no agent knows of.
pub(super) fn forget_unopened(tx: &Transaction<'_>, id: UploadId, unopened: &[StripeId]) -> Result<()> {
    for stripe in unopened {
        let Some(found) = rows::find_stripe(tx, *stripe)? else { continue };
        if found.owner != Owner::Upload(id) || found.ended {
            return Err(MetaError::Refused(format!("stripe {stripe} is not an unopened stripe of put {id}")));
        }
        tx.prepare_cached("DELETE FROM allocations WHERE stripe = ?1")?.execute([stripe.0])?;
        tx.prepare_cached("DELETE FROM stripes WHERE id = ?1")?.execute([stripe.0])?;
    }
    Ok(())
}

pub(super) fn allocate_stripes(
    tx: &Transaction<'_>,
    epoch: Epoch,
    upload: &UploadRecord,
    stripes: &[NewStripe],
    not_before_ms: u64,
) -> Result<Vec<StripeRecord>> {
    stripes.iter().map(|new| allocate_stripe(tx, epoch, upload, new, not_before_ms)).collect()
}

fn allocate_stripe(
    tx: &Transaction<'_>,
    epoch: Epoch,
    upload: &UploadRecord,
    new: &NewStripe,
    not_before_ms: u64,
) -> Result<StripeRecord> {
    let indexes: Vec<u8> = new.layout.blocks().collect();
    let data = new.layout.data_blocks() as usize;
    let needed = indexes.len() + data * usize::from(upload.new.replicas.saturating_sub(1));
    if new.homes.len() != needed || new.layout.n() as usize > weft_types::BLOCKS_MAX || upload.new.replicas > REPLICAS_MAX {
        let homes = new.homes.len();
        return Err(MetaError::Refused(format!("{homes} homes were given, but a stripe with its copies has {needed} blocks")));
    }
    let earlier = rows::stripes_of(tx, Owner::Upload(upload.id), new.number, 1)?;
    if let Some(earlier) = earlier.first().filter(|earlier| earlier.number == new.number) {
        if earlier.ended {
            let (number, upload) = (new.number, upload.id);
            return Err(MetaError::Conflict(format!("stripe {number} of put {upload} has already been written")));
        }
        rows::give_up_stripe(tx, earlier, not_before_ms)?;
    }
    let id = StripeId(next_number(tx, Numbered::Stripe)?);
    let place =
        |home: &_, copy| PlacedBlock { generation: 1, generation_high_water: 1, home: *home, state: BlockState::Missing, copy };
    let (firsts, others) = new.homes.split_at(indexes.len());
    let blocks: BTreeMap<u8, PlacedBlock> =
        indexes.into_iter().zip(firsts).map(|(index, home)| (index, place(home, 0))).collect();
    let levels = (1..=u8::MAX).zip(others.chunks(data.max(1)));
    let copies = levels.flat_map(|(copy, homes)| (0..=u8::MAX).zip(homes).map(move |(index, home)| (index, place(home, copy))));
    let mut copies: Vec<(u8, PlacedBlock)> = copies.collect();
    copies.sort_unstable_by_key(|(index, placed)| (*index, placed.copy));
    let sql = "INSERT INTO stripes (id, upload, number, ended, term, layout, placement, units, counts)
               VALUES (?1, ?2, ?3, 0, ?4, ?5, ?6, ?7, ?8)";
    let seq = Seq::default();
    tx.prepare_cached(sql)?.execute((
        id.0,
        upload.id.0,
        new.number,
        seq.term(),
        packed::pack_layout(&new.layout)?,
        packed::pack_placement(&blocks, &copies)?,
        packed::pack_checksums(&[])?,
        packed::pack_counts(seq.counts())?,
    ))?;
    let mut allocate = tx.prepare_cached("INSERT INTO allocations VALUES (?1, ?2, ?3, 1, ?4, ?5, ?6, ?7, ?8)")?;
    for (index, PlacedBlock { home, copy, .. }) in blocks.into_iter().chain(copies) {
        departures::require_disk(tx, home)?;
        allocate.execute((id.0, index, copy, home.node.0, home.disk.0, upload.id.0, epoch.0, upload.new.expires_ms))?;
    }
    rows::stripe(tx, id)
}

pub(super) fn end_stripe(tx: &Transaction<'_>, end: EndStripe) -> Result<StripeRecord> {
    let mut stripe = rows::stripe(tx, end.stripe)?;
    if stripe.owner != Owner::Upload(end.upload) || stripe.ended {
        let (stripe, upload) = (end.stripe, end.upload);
        return Err(MetaError::Conflict(format!("put {upload} is not writing stripe {stripe}")));
    }
    if end.blocks.len() != stripe.all().count() || end.checksums.len() != stripe.layout.n() as usize {
        return Err(MetaError::Refused(format!(
            "stripe {} has {} blocks: the states of all must be given",
            end.stripe,
            stripe.all().count()
        )));
    }
    let mut kept = Vec::with_capacity(end.blocks.len());
    for ((index, placed), (generation, home, state)) in stripe.all_mut().zip(end.blocks) {
        let id = BlockId { stripe: end.stripe, index, copy: placed.copy, generation };
        require_allocated(tx, id, home)?;
        kept.push(id);
        *placed = PlacedBlock { generation, home, state, ..*placed };
    }
    let missing_max = get(tx, end.upload)?.new.ack.missing_max;
    require_enough(&stripe, missing_max)?;
    rows::release_allocations(tx, end.stripe, end.garbage_not_before_ms, &kept)?;
    let checksums = packed::pack_checksums(&end.checksums)?;
    tx.prepare_cached("UPDATE stripes SET ended = 1, units = ?2 WHERE id = ?1")?.execute((end.stripe.0, checksums))?;
    stripe.ended = true;
    rows::set_placement(tx, &stripe)?;
    if stripe.lacks_any() {
        rows::set_incomplete(tx, end.stripe)?;
    }
    rows::stripe(tx, end.stripe)
}

pub(super) fn commit(tx: &Transaction<'_>, id: UploadId, commit: &CommitPut) -> Result<ObjectRecord> {
    let CommitPut { size, now_ms, leftovers: Leftovers { unopened, garbage_not_before_ms } } = commit;
    let (size, now_ms, not_before_ms) = (*size, *now_ms, *garbage_not_before_ms);
    forget_unopened(tx, id, unopened)?;
    let NewUpload { name, code, layout, replaces, .. } = get(tx, id)?.new;
    let (stripes, unneeded) = require_whole(tx, id, size)?;
    for stripe in unneeded {
        rows::give_up_stripe(tx, &stripe, not_before_ms)?;
    }
    let (mut written, mut created_ms) = (id, now_ms);
    let before = objects::find(tx, &name)?;
    if replaces.is_some_and(|version| before.as_ref().is_none_or(|before| before.version != version)) {
        return Err(MetaError::Conflict(format!(
            "{name} was overwritten or removed while it was converted: the conversion is dropped"
        )));
    }
    if replaces.is_some_and(|_| before.is_some()) && was_updated(tx, id, &name)? {
        return Err(MetaError::Conflict(format!(
            "{name} was updated in place during its conversion: the conversion starts again"
        )));
    }
    if let Some(before) = before {
        if replaces.is_some() && before.size != size {
            let was = before.size;
            return Err(MetaError::Refused(format!("{name} has {was} bytes, but its conversion wrote {size}")));
        }
        if replaces.is_some() {
            (written, created_ms) = (before.written, before.created_ms);
        } else if before.written > id {
            return Err(MetaError::Conflict(format!("a later put of {name} was committed first: this one is obsolete")));
        }
        objects::drop_object(tx, &before, GarbageReason::Replaced, not_before_ms)?;
    }
    let object = ObjectRecord { name, version: id, written, size, code, layout, stripes, created_ms };
    objects::insert(tx, &object)?;
    tx.execute("UPDATE stripes SET object = upload, upload = NULL WHERE upload = ?1", [id.0])?;
    tx.execute("DELETE FROM uploads WHERE id = ?1", [id.0])?;
    Ok(object)
}

/// Whether a stripe of an object was opened for updates since its conversion began.
fn was_updated(tx: &Transaction<'_>, conversion: UploadId, name: &ObjectName) -> Result<bool> {
    let sql =
        "SELECT (SELECT updates FROM uploads WHERE id = ?1) <> (SELECT updates FROM objects WHERE bucket = ?2 AND key = ?3)";
    Ok(tx.prepare_cached(sql)?.query_row((conversion.0, &name.bucket, &name.key), |row| row.get(0))?)
}

pub(super) fn abort(tx: &Transaction<'_>, id: UploadId, leftovers: &Leftovers) -> Result<()> {
    get(tx, id)?;
    forget_unopened(tx, id, &leftovers.unopened)?;
    for stripe in rows::stripes_of(tx, Owner::Upload(id), 0, i64::MAX as u64)? {
        rows::give_up_stripe(tx, &stripe, leftovers.garbage_not_before_ms)?;
    }
    tx.execute("DELETE FROM uploads WHERE id = ?1", [id.0])?;
    Ok(())
}

pub(super) fn expired(tx: &Transaction<'_>, now_ms: u64, limit: u32) -> Result<Vec<UploadRecord>> {
    let sql = format!("SELECT {UPLOAD} FROM uploads WHERE expires_ms <= ?1 ORDER BY expires_ms, id LIMIT ?2");
    let mut statement = tx.prepare_cached(&sql)?;
    let uploads = statement.query_map((now_ms, limit), upload_row)?;
    Ok(uploads.collect::<Result<_, _>>()?)
}

/// Fails if a put has a gap, an unfinished stripe, or not the stated size. Returns its number of stripes, and the stripes that were
/// allocated after them.
fn require_whole(tx: &Transaction<'_>, id: UploadId, size: u64) -> Result<(u64, Vec<StripeRecord>)> {
    let (mut bytes, mut count, mut unneeded) = (0u64, 0u64, Vec::new());
    for stripe in rows::stripes_of(tx, Owner::Upload(id), 0, i64::MAX as u64)? {
        if !stripe.ended && bytes == size {
            unneeded.push(stripe);
            continue;
        }
        if stripe.number != count {
            return Err(MetaError::Refused(format!("stripe {count} of put {id} was not written")));
        }
        if !stripe.ended {
            return Err(MetaError::Refused(format!("stripe {count} of put {id} has not ended")));
        }
        if stripe.object_offset() != bytes {
            return Err(MetaError::Refused(format!("put {id} has a stripe before stripe {count} that is not full")));
        }
        bytes = bytes.saturating_add(stripe.layout.data_len);
        count += 1;
    }
    match bytes == size {
        true => Ok((count, unneeded)),
        false => Err(MetaError::Refused(format!("put {id} states {size} bytes, but its stripes hold {bytes}"))),
    }
}

/// Fails if a stripe misses more than the policy allows: more than `missing_max` blocks without a copy or, if that is
/// 0, any copy.
fn require_enough(stripe: &StripeRecord, missing_max: u32) -> Result<()> {
    let is_there = |index: u8| stripe.all().any(|(at, placed)| at == index && placed.state == BlockState::Ok);
    let missing = match missing_max {
        0 => stripe.all().filter(|(_, placed)| placed.state != BlockState::Ok).count(),
        _ => stripe.blocks.keys().filter(|index| !is_there(**index)).count(),
    };
    if missing > missing_max as usize {
        let id = stripe.id;
        return Err(MetaError::Refused(format!(
            "{missing} blocks of stripe {id} are missing, but the policy allows {missing_max}"
        )));
    }
    Ok(())
}

fn require_allocated(tx: &Transaction<'_>, block: BlockId, home: Home) -> Result<()> {
    let sql = "SELECT 1 FROM allocations
               WHERE stripe = ?1 AND idx = ?2 AND generation = ?3 AND node = ?4 AND disk = ?5 AND copy = ?6";
    let key = (block.stripe.0, block.index, block.generation, home.node.0, home.disk.0, block.copy);
    match tx.prepare_cached(sql)?.query_row(key, |_| Ok(())).optional()? {
        Some(()) => Ok(()),
        None => Err(MetaError::Conflict(format!("block {block} is not allocated on {}", home.node))),
    }
}

fn upload_row(row: &Row<'_>) -> rusqlite::Result<UploadRecord> {
    let new = NewUpload {
        name: ObjectName { bucket: row.get(1)?, key: row.get(2)? },
        code: row.get(3)?,
        layout: Layout { block_len: row.get(4)?, cell_len: row.get(5)?, alpha: row.get(6)? },
        failure_domain: policies::domain_of(&row.get::<_, String>(7)?),
        ack: Ack { missing_max: row.get(8)? },
        created_ms: row.get(9)?,
        expires_ms: row.get(10)?,
        replicas: row.get(11)?,
        replaces: row.get::<_, Option<u64>>(12)?.map(UploadId),
        key: PutKey::from_bytes(&row.get::<_, Vec<u8>>(13)?),
    };
    Ok(UploadRecord { id: UploadId(row.get(0)?), new })
}

fn no_upload(id: UploadId) -> MetaError {
    MetaError::NotFound(format!("there is no put {id}: it was committed or aborted, or its lease expired"))
}
