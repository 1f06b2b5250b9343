//! How far scrubs are.

use crate::{Result, packed};
use rusqlite::{OptionalExtension, Transaction};
use weft_types::{JobId, ScrubRecord};

/// The row of the scrub of all data in the background. Jobs are numbered from 1.
const BACKGROUND: u64 = 0;

pub(super) fn get(tx: &Transaction<'_>, job: Option<JobId>) -> Result<ScrubRecord> {
    let sql = "SELECT record FROM scrubs WHERE job = ?1";
    let blob: Option<Vec<u8>> = tx.prepare_cached(sql)?.query_row([row(job)], |row| row.get(0)).optional()?;
    blob.map_or_else(|| Ok(ScrubRecord::default()), |blob| packed::unpack_scrub(&blob))
}

pub(super) fn set(tx: &Transaction<'_>, job: Option<JobId>, record: &ScrubRecord) -> Result<()> {
    // A job that was deleted has no scrub.
    let sql =
        "INSERT OR REPLACE INTO scrubs (job, record) SELECT ?1, ?2 WHERE ?1 = 0 OR EXISTS (SELECT 1 FROM jobs WHERE id = ?1)";
    tx.prepare_cached(sql)?.execute((row(job), packed::pack_scrub(record)?))?;
    Ok(())
}

/// Deletes the records of jobs that were deleted.
pub(super) fn prune(tx: &Transaction<'_>) -> Result<()> {
    tx.execute("DELETE FROM scrubs WHERE job <> 0 AND job NOT IN (SELECT id FROM jobs)", [])?;
    Ok(())
}

fn row(job: Option<JobId>) -> u64 {
    job.map_or(BACKGROUND, |job| job.0)
}
