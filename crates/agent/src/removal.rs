//! Limits removals from a disk, so that no mistake can empty it within a day.

use crate::{
    Limits,
    state::{Removed, StateFile},
};
use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::time::Instant;
use weft_types::{BlockId, Error, Reaction, Result};

/// The outcome of a request to remove blocks.
#[derive(Debug, Default)]
pub(crate) struct Removal {
    /// How many were there and are removed.
    pub(crate) removed: u32,
    /// Blocks that are certainly not on the node: removed, or never there.
    pub(crate) gone: Vec<BlockId>,
    /// Why each of the other blocks is, or may be, still there.
    pub(crate) kept: Vec<Error>,
}

/// The removal limits, and where the count is recorded.
pub(crate) struct Bounds<'a> {
    pub(crate) limits: &'a Limits,
    pub(crate) state: &'a StateFile,
    /// Milliseconds since 1970.
    pub(crate) now_ms: u64,
}

/// Counts the blocks that are taken off one disk within a day: removed, quarantined, or deleted from quarantine.
///
/// The count is recorded in the agent's state file before a block is removed. A running process measures the day by the
/// monotonic clock. After a restart the wall clock counts, and the rest of the day is never longer than a day.
pub(crate) struct Quota(Mutex<Option<Window>>);

struct Window {
    ends: Instant,
    removed_blocks: u64,
    /// The count in the state file: somewhat higher, so that not every removal waits for the state file.
    noted_blocks: u64,
    /// The limit for the blocks that were there when it was computed. It is computed only after the floor is used up.
    allowed_blocks: Option<u64>,
}

const WINDOW: Duration = Duration::from_secs(24 * 60 * 60);
/// The most removals that are recorded ahead; a restart loses at most this many.
const NOTED_AHEAD_MAX: u64 = 64;

impl Quota {
    /// Resumes from the count that was recorded before a restart.
    pub(crate) fn new(noted: Option<&Removed>, now_ms: u64, now: Instant) -> Self {
        let window = |noted: &Removed| Window {
            ends: now + Duration::from_millis(noted.until_ms.saturating_sub(now_ms)).min(WINDOW),
            removed_blocks: noted.blocks,
            noted_blocks: noted.blocks,
            allowed_blocks: None,
        };
        Self(Mutex::new(noted.map(window)))
    }

    /// Takes the right to remove one block from the disk `disk`; `count_blocks` counts the disk's blocks. May block.
    pub(crate) fn take(
        &self,
        disk: &str,
        bounds: &Bounds<'_>,
        now: Instant,
        count_blocks: impl FnOnce() -> Result<usize>,
    ) -> Result<()> {
        let limits = bounds.limits;
        let mut quota = self.lock();
        let fresh = || Window { ends: now + WINDOW, removed_blocks: 0, noted_blocks: 0, allowed_blocks: None };
        let window = quota.get_or_insert_with(fresh);
        if now >= window.ends {
            *window = fresh();
        }
        let floor = u64::from(limits.removed_blocks_per_day);
        if window.removed_blocks >= floor {
            let allowed = match window.allowed_blocks {
                Some(allowed) => allowed,
                None => {
                    let all = count_blocks()? as u64 + window.removed_blocks;
                    *window.allowed_blocks.insert(all * u64::from(limits.removed_percent_per_day) / 100)
                }
            };
            if window.removed_blocks >= allowed {
                return Err(too_many(window.removed_blocks));
            }
        }
        if window.removed_blocks >= window.noted_blocks {
            let noted = window.removed_blocks + (floor / 16).clamp(1, NOTED_AHEAD_MAX);
            let left_ms = u64::try_from(window.ends.duration_since(now).as_millis()).unwrap_or(u64::MAX);
            let removed = Removed { until_ms: bounds.now_ms.saturating_add(left_ms), blocks: noted };
            bounds.state.update(|memory| {
                memory.removed.retain(|_, old| old.until_ms > bounds.now_ms);
                memory.removed.insert(disk.to_owned(), removed);
            })?;
            window.noted_blocks = noted;
        }
        window.removed_blocks += 1;
        Ok(())
    }

    /// Returns an unused right.
    pub(crate) fn give_back(&self) {
        if let Some(window) = self.lock().as_mut() {
            window.removed_blocks = window.removed_blocks.saturating_sub(1);
        }
    }

    /// A poisoned lock is safe to use: each change is one assignment.
    fn lock(&self) -> MutexGuard<'_, Option<Window>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn too_many(removed_blocks: u64) -> Error {
    Error::new(
        Reaction::Unavailable,
        format!(
            "{removed_blocks} blocks of the disk were removed within a day, which is the limit. A person must decide: raise \
             limits.removed_percent_per_day to allow more now; otherwise removal continues tomorrow"
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY_MS: u64 = 24 * 60 * 60 * 1000;

    /// Takes rights until none are left; returns how many there were.
    fn take_all(quota: &Quota, bounds: &Bounds<'_>, now: Instant, there: usize) -> usize {
        (0..there).take_while(|taken| quota.take("d", bounds, now, || Ok(there - taken)).is_ok()).count()
    }

    #[tokio::test]
    async fn many_small_requests_cannot_empty_a_disk_and_the_next_day_it_goes_on() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateFile::open(dir.path()).unwrap();
        let limits = Limits { removed_blocks_per_day: 10, removed_percent_per_day: 20, ..Limits::default() };
        let bounds = Bounds { limits: &limits, state: &state, now_ms: 5000 };
        let now = Instant::now();
        let fresh = || Quota::new(None, 5000, now);
        assert_eq!(take_all(&fresh(), &bounds, now, 40), 10, "the floor");
        let large = fresh();
        assert_eq!(take_all(&large, &bounds, now, 1000), 200, "a fifth of all blocks");
        let refused = large.take("d", &bounds, now, || Ok(800)).unwrap_err();
        assert!(refused.message.contains("removed_percent_per_day"), "{refused}");
        large.give_back();
        large.take("d", &bounds, now, || Ok(800)).unwrap();
        large.take("d", &bounds, now, || Ok(800)).unwrap_err();
        assert_eq!(take_all(&large, &bounds, now + WINDOW, 800), 160);
    }

    #[tokio::test]
    async fn a_restart_gives_no_new_rights_and_a_clock_that_was_wrong_costs_a_day_at_most() {
        let dir = tempfile::tempdir().unwrap();
        let limits = Limits { removed_blocks_per_day: 100, removed_percent_per_day: 10, ..Limits::default() };
        let now = Instant::now();
        let start = |now_ms| {
            let state = StateFile::open(dir.path()).unwrap();
            let quota = Quota::new(state.get().removed.get("d"), now_ms, now);
            (state, quota)
        };
        let mut taken = 0;
        let mut starts = 0;
        loop {
            let (state, quota) = start(DAY_MS + starts);
            let bounds = Bounds { limits: &limits, state: &state, now_ms: DAY_MS + starts };
            let some = take_all(&quota, &bounds, now, 30);
            if some == 0 {
                break;
            }
            (taken, starts) = (taken + some, starts + 1);
        }
        assert!(taken <= 100 && starts >= 4, "{taken} blocks in {starts} starts");
        assert!(taken as u64 + starts * 6 >= 100, "{taken}: a restart lost more than the count recorded ahead");

        for (now_ms, later, left) in [
            (2 * DAY_MS - 1000, Duration::ZERO, 0),
            (2 * DAY_MS - 1000, Duration::from_secs(1), 30),
            (3 * DAY_MS, Duration::ZERO, 30),
            // The clock was set back: when the day began is unknown.
            (5, WINDOW - Duration::from_secs(1), 0),
            (5, WINDOW, 30),
        ] {
            let (_, quota) = start(now_ms);
            let scratch = tempfile::tempdir().unwrap();
            let state = StateFile::open(scratch.path()).unwrap();
            let bounds = Bounds { limits: &limits, state: &state, now_ms };
            assert_eq!(take_all(&quota, &bounds, now + later, 30), left, "{now_ms} + {later:?}");
        }
    }
}
