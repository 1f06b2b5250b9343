//! Operators' jobs.

use super::{policies, scrubs};
use crate::{
    ENDED_JOBS_MAX, MetaError, Result,
    jobs::{left_shortened, shortened, subject},
    packed,
};
use rusqlite::{OptionalExtension, Row, Transaction, params};
use weft_types::{
    Amount, Conversion, Estimated, JOB_ERROR_BYTES_MAX, JobId, JobProgress, JobRecord, JobState, JobWork, LEFT_BLOCKS_MAX,
    LeftBlock,
};

const JOB: &str = "id, work, state, total_blocks, total_bytes, done_blocks, done_bytes, left_blocks, left_bytes, last_error,
                   created_ms, changed_ms, left_list, moved_bytes, quarter_made_ms, quarter_remaining_ms, half_made_ms, half_remaining_ms";

pub(super) fn create(tx: &Transaction<'_>, work: &JobWork, now_ms: u64) -> Result<JobRecord> {
    let (kind, subject) = (work.kind(), subject(work));
    let sql = "SELECT id, state FROM jobs WHERE kind = ?1 AND subject = ?2 AND state IN ('running', 'paused')";
    let other = tx.query_row(sql, (kind, subject), |row| Ok((row.get::<_, u64>(0)?, row.get::<_, String>(1)?))).optional()?;
    if let Some((id, state)) = other {
        return Err(MetaError::Refused(format!("job {id} does this already and is {state}: see `weft job show {id}`")));
    }
    if let JobWork::Convert(Conversion { bucket, key: None, policy, .. }) = work {
        policies::set_policy_of(tx, bucket, policy)?;
    }
    tx.execute(
        "INSERT INTO jobs (kind, subject, work, state, total_blocks, total_bytes, done_blocks, done_bytes, left_blocks, left_bytes,
         last_error, created_ms, changed_ms) VALUES (?1, ?2, ?3, ?4, 0, 0, 0, 0, 0, 0, '', ?5, ?5)",
        (kind, subject, packed::pack_work(work)?, JobState::Running.name(), now_ms),
    )?;
    let id = u64::try_from(tx.last_insert_rowid()).map_err(|_| MetaError::Storage("a job's number is negative".into()))?;
    get(tx, JobId(id))
}

pub(super) fn get(tx: &Transaction<'_>, job: JobId) -> Result<JobRecord> {
    let sql = format!("SELECT {JOB} FROM jobs WHERE id = ?1");
    let found = tx.prepare_cached(&sql)?.query_row([job.0], packed_row).optional()?;
    found.ok_or_else(|| MetaError::NotFound(format!("there is no job {job}: `weft job ls` lists them")))?.unpack()
}

pub(super) fn list(tx: &Transaction<'_>) -> Result<Vec<JobRecord>> {
    let mut statement = tx.prepare_cached(&format!("SELECT {JOB} FROM jobs ORDER BY id"))?;
    let packed = statement.query_map([], packed_row)?.collect::<Result<Vec<_>, _>>()?;
    packed.into_iter().map(PackedJob::unpack).collect()
}

pub(super) fn set_state(
    tx: &Transaction<'_>,
    job: JobId,
    state: JobState,
    progress: Option<JobProgress>,
    now_ms: u64,
) -> Result<JobRecord> {
    let now = get(tx, job)?;
    if !now.state.may_become(state) {
        let (is, asked) = (now.state.name(), state.name());
        return Err(MetaError::Refused(format!("job {job} is {is} and cannot become {asked}")));
    }
    write(tx, job, state, progress.as_ref().unwrap_or(&now.progress), now_ms)?;
    if state.has_ended() {
        prune(tx)?;
    }
    // Not read again: the row may just have been pruned.
    Ok(JobRecord { state, progress: progress.unwrap_or(now.progress), changed_ms: now_ms, ..now })
}

pub(super) fn set_progress(tx: &Transaction<'_>, job: JobId, progress: JobProgress, now_ms: u64) -> Result<JobRecord> {
    let now = get(tx, job)?;
    write(tx, job, now.state, &progress, now_ms)?;
    Ok(JobRecord { progress, changed_ms: now_ms, ..now })
}

fn write(tx: &Transaction<'_>, job: JobId, state: JobState, progress: &JobProgress, now_ms: u64) -> Result<()> {
    let JobProgress { total, done, left, left_blocks, last_error, moved_bytes, quarter, half } = progress;
    let made_ms = |it: &Option<Estimated>| it.map(|it| it.made_ms);
    let remaining_ms = |it: &Option<Estimated>| it.map(|it| it.remaining_ms);
    let left_blocks: Vec<LeftBlock> = left_blocks.iter().take(LEFT_BLOCKS_MAX).map(left_shortened).collect();
    let sql =
        "UPDATE jobs SET state = ?2, total_blocks = ?3, total_bytes = ?4, done_blocks = ?5, done_bytes = ?6, left_blocks = ?7,
               left_bytes = ?8, last_error = ?9, changed_ms = ?10, left_list = ?11, moved_bytes = ?12, quarter_made_ms = ?13,
               quarter_remaining_ms = ?14, half_made_ms = ?15, half_remaining_ms = ?16 WHERE id = ?1";
    tx.prepare_cached(sql)?.execute(params![
        job.0,
        state.name(),
        total.blocks,
        total.bytes,
        done.blocks,
        done.bytes,
        left.blocks,
        left.bytes,
        shortened(last_error, JOB_ERROR_BYTES_MAX),
        now_ms,
        packed::pack_left(&left_blocks)?,
        moved_bytes,
        made_ms(quarter),
        remaining_ms(quarter),
        made_ms(half),
        remaining_ms(half),
    ])?;
    Ok(())
}

/// Deletes the oldest finished jobs.
fn prune(tx: &Transaction<'_>) -> Result<()> {
    let ended = "state NOT IN ('running', 'paused')";
    let kept = format!("SELECT id FROM jobs WHERE {ended} ORDER BY changed_ms DESC, id DESC LIMIT ?1");
    tx.execute(&format!("DELETE FROM jobs WHERE {ended} AND id NOT IN ({kept})"), [ENDED_JOBS_MAX])?;
    scrubs::prune(tx)
}

/// A job's row before its texts and blobs are decoded.
struct PackedJob {
    id: u64,
    work: Vec<u8>,
    state: String,
    progress: JobProgress,
    created_ms: u64,
    changed_ms: u64,
    left_blocks: Vec<u8>,
}

fn packed_row(row: &Row<'_>) -> rusqlite::Result<PackedJob> {
    let amount = |at: usize| Ok::<_, rusqlite::Error>(Amount { blocks: row.get(at)?, bytes: row.get(at + 1)? });
    let estimated = |at: usize| {
        let (made_ms, remaining_ms): (Option<u64>, Option<u64>) = (row.get(at)?, row.get(at + 1)?);
        let both = made_ms.zip(remaining_ms);
        Ok::<_, rusqlite::Error>(both.map(|(made_ms, remaining_ms)| Estimated { made_ms, remaining_ms }))
    };
    Ok(PackedJob {
        id: row.get(0)?,
        work: row.get(1)?,
        state: row.get(2)?,
        progress: JobProgress {
            total: amount(3)?,
            done: amount(5)?,
            left: amount(7)?,
            left_blocks: Vec::new(),
            last_error: row.get(9)?,
            moved_bytes: row.get(13)?,
            quarter: estimated(14)?,
            half: estimated(16)?,
        },
        created_ms: row.get(10)?,
        changed_ms: row.get(11)?,
        left_blocks: row.get(12)?,
    })
}

impl PackedJob {
    fn unpack(self) -> Result<JobRecord> {
        let Self { id, work, state, progress, created_ms, changed_ms, left_blocks } = self;
        let unknown = || MetaError::Storage(format!("job {id} has the unknown state '{state}'"));
        let state = JobState::by_name(&state).ok_or_else(unknown)?;
        let progress = JobProgress { left_blocks: packed::unpack_left(&left_blocks)?, ..progress };
        Ok(JobRecord { id: JobId(id), work: packed::unpack_work(&work)?, state, progress, created_ms, changed_ms })
    }
}
