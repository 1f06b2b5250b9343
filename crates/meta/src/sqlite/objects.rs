//! Visible objects.

use super::{policies, rows};
use crate::{MetaError, ObjectRecord, Page, Result};
use rusqlite::{OptionalExtension, Row, Transaction};
use weft_types::{GarbageReason, Layout, ObjectName, Owner, StripeRecord, UploadId};

pub(super) const OBJECT: &str = "bucket, key, version, size, code, block_len, cell_len, alpha, stripes, created_ms,
                      coalesce(written, version)";

pub(super) fn get(tx: &Transaction<'_>, name: &ObjectName) -> Result<ObjectRecord> {
    policies::require_bucket(tx, &name.bucket)?;
    find(tx, name)?.ok_or_else(|| no_object(name))
}

pub(super) fn find(tx: &Transaction<'_>, name: &ObjectName) -> Result<Option<ObjectRecord>> {
    let sql = format!("SELECT {OBJECT} FROM objects WHERE bucket = ?1 AND key = ?2");
    Ok(tx.prepare_cached(&sql)?.query_row((&name.bucket, &name.key), object_row).optional()?)
}

pub(super) fn of_version(tx: &Transaction<'_>, version: UploadId) -> Result<ObjectRecord> {
    let sql = format!("SELECT {OBJECT} FROM objects WHERE version = ?1");
    let found = tx.prepare_cached(&sql)?.query_row([version.0], object_row).optional()?;
    found.ok_or_else(|| MetaError::NotFound(format!("version {version} no longer exists: its object was removed or overwritten")))
}

/// The object whose content a put wrote, if it still exists: under its own version or after a conversion.
pub(super) fn written_by(tx: &Transaction<'_>, put: UploadId) -> Result<Option<ObjectRecord>> {
    let sql = format!(
        "SELECT {OBJECT} FROM objects WHERE version = ?1 AND coalesce(written, version) = ?1
         UNION ALL SELECT {OBJECT} FROM objects WHERE written = ?1 AND written <> version"
    );
    Ok(tx.prepare_cached(&sql)?.query_row([put.0], object_row).optional()?)
}

/// Removes objects until the removed stripes are `stripes_max`; those that do not exist have an error of their own.
pub(super) fn remove_some(
    tx: &Transaction<'_>,
    names: &[ObjectName],
    stripes_max: u64,
    garbage_not_before_ms: u64,
) -> Result<Vec<Result<ObjectRecord>>> {
    let (mut results, mut stripes) = (Vec::with_capacity(names.len()), 0);
    for name in names {
        if stripes >= stripes_max.max(1) {
            break;
        }
        let removed = match remove(tx, name, garbage_not_before_ms) {
            Ok(object) => Ok(object),
            Err(MetaError::NotFound(why)) => Err(MetaError::NotFound(why)),
            // The database failed: the transaction with all its removals is undone.
            Err(error) => return Err(error),
        };
        // An object without bytes has no stripe, and costs as much as one.
        stripes += removed.as_ref().map_or(0, |object| object.stripes.max(1));
        results.push(removed);
    }
    Ok(results)
}

pub(super) fn remove(tx: &Transaction<'_>, name: &ObjectName, garbage_not_before_ms: u64) -> Result<ObjectRecord> {
    let object = get(tx, name)?;
    drop_object(tx, &object, GarbageReason::Removed, garbage_not_before_ms)?;
    Ok(object)
}

/// Drops an object and its stripes; their blocks become garbage for that reason.
pub(super) fn drop_object(
    tx: &Transaction<'_>,
    object: &ObjectRecord,
    reason: GarbageReason,
    garbage_not_before_ms: u64,
) -> Result<()> {
    for stripe in rows::stripes_of(tx, Owner::Object(object.version), 0, object.stripes)? {
        rows::drop_stripe(tx, &stripe, reason, garbage_not_before_ms)?;
    }
    tx.execute("DELETE FROM objects WHERE version = ?1", [object.version.0])?;
    Ok(())
}

pub(super) fn stripes(tx: &Transaction<'_>, version: UploadId, from: u64, limit: u32) -> Result<Page<StripeRecord>> {
    Ok(rows::page(rows::stripes_of(tx, Owner::Object(version), from, u64::from(limit) + 1)?, limit))
}

pub(super) fn insert(tx: &Transaction<'_>, object: &ObjectRecord) -> Result<()> {
    tx.execute(
        "INSERT INTO objects (bucket, key, version, size, code, block_len, cell_len, alpha, stripes, created_ms, written)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)",
        (
            &object.name.bucket,
            &object.name.key,
            object.version.0,
            object.size,
            &object.code,
            object.layout.block_len,
            object.layout.cell_len,
            object.layout.alpha,
            object.stripes,
            object.created_ms,
            object.written.0,
        ),
    )?;
    Ok(())
}

pub(super) fn object_row(row: &Row<'_>) -> rusqlite::Result<ObjectRecord> {
    Ok(ObjectRecord {
        name: ObjectName { bucket: row.get(0)?, key: row.get(1)? },
        version: UploadId(row.get(2)?),
        size: row.get(3)?,
        code: row.get(4)?,
        layout: Layout { block_len: row.get(5)?, cell_len: row.get(6)?, alpha: row.get(7)? },
        stripes: row.get(8)?,
        created_ms: row.get(9)?,
        written: UploadId(row.get(10)?),
    })
}

fn no_object(name: &ObjectName) -> MetaError {
    MetaError::NotFound(format!(
        "there is no object {} in the bucket {}: `weft ls {}` lists its objects",
        name.key, name.bucket, name.bucket
    ))
}
