//! Limits removals from a disk, so that an operator notices a mistake before the disk is empty.

use crate::{
    Limits,
    state::{Memory, StateFile, Used},
};
use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::time::Instant;
use weft_proto::LogRate;
use weft_types::{BlockId, Error, PAGE_LEN, Reaction, Result};

/// The outcome of a request to remove blocks.
#[derive(Debug, Default)]
pub(crate) struct Removal {
    /// Blocks that were stored and are now deleted.
    pub(crate) removed: u32,
    /// Blocks that were stored and are now in quarantine.
    pub(crate) quarantined: u32,
    /// Blocks that are certainly not in service on the node now.
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

/// The unit of a quota.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Counted {
    /// Bytes freed within an hour: blocks whose removal a user or a committed transaction intended, and blocks deleted for lack of space.
    Freed,
    /// Unexpected removals of blocks within a day: moves to quarantine, and deletions from it.
    Unexpected,
}

/// Counts what is removed from one disk within an hour or a day.
///
/// The agent's state file records the count before a block is removed. Within a process, a monotonic clock measures the time; across
/// a restart, the wall clock does. The remaining time never exceeds one hour or day.
pub(crate) struct Quota {
    counted: Counted,
    window: Mutex<Option<Window>>,
    unrecorded: LogRate,
}

struct Window {
    ends: Instant,
    used: u64,
    /// The recorded count. It runs ahead of `used`, so that most blocks do not wait for the state file.
    noted: u64,
    /// The percentage of the disk's content, computed when the floor was used up; `None` before that.
    allowed: Option<u64>,
}

/// This part of the floor is recorded ahead of its use. A restart loses at most this much of the quota.
const NOTED_AHEAD_DIVISOR: u64 = 16;

/// The bytes that a block takes on its disk: whole pages of payload, and a page for its sidecar.
pub(crate) fn bytes_on_disk(block_len: u64) -> u64 {
    block_len.next_multiple_of(PAGE_LEN).saturating_add(PAGE_LEN)
}

impl Counted {
    fn within(self) -> Duration {
        match self {
            Self::Freed => Duration::from_secs(60 * 60),
            Self::Unexpected => Duration::from_secs(24 * 60 * 60),
        }
    }

    /// The amount that may always be removed, and the percentage of the disk's content that may be removed.
    fn bound(self, limits: &Limits) -> (u64, u32) {
        match self {
            Self::Freed => (limits.freed_bytes_per_hour.0, limits.freed_percent_per_hour),
            Self::Unexpected => (limits.removed_blocks_per_day.into(), limits.removed_percent_per_day),
        }
    }

    fn noted(self, memory: &mut Memory) -> &mut BTreeMap<String, Used> {
        match self {
            Self::Freed => &mut memory.freed,
            Self::Unexpected => &mut memory.removed,
        }
    }

    fn used_up(self, used: u64) -> Error {
        let message = match self {
            Self::Freed => format!(
                "{used} bytes of the disk have been freed within an hour: the rest follows in the next hours \
                 (limits.freed_percent_per_hour)"
            ),
            Self::Unexpected => format!(
                "{used} unexpected blocks of the disk have been removed within a day: to remove more now, run \
                 `weft node garbage release` or raise limits.removed_percent_per_day; otherwise removal continues tomorrow"
            ),
        };
        Error::new(Reaction::Unavailable, message)
    }
}

impl Quota {
    /// Continues with the count recorded before a restart.
    pub(crate) fn new(counted: Counted, mut known: Memory, disk: &str, now_ms: u64, now: Instant) -> Self {
        let window = |noted: Used| Window {
            ends: now + Duration::from_millis(noted.until_ms.saturating_sub(now_ms)).min(counted.within()),
            used: noted.amount,
            noted: noted.amount,
            allowed: None,
        };
        Self { counted, window: Mutex::new(counted.noted(&mut known).remove(disk).map(window)), unrecorded: LogRate::default() }
    }

    /// Takes the right to remove `amount` from the disk `disk`. `all` returns the size of the disk's content. May block.
    pub(crate) fn take(
        &self,
        amount: u64,
        disk: &str,
        bounds: &Bounds<'_>,
        now: Instant,
        all: impl FnOnce(u64) -> Result<u64>,
    ) -> Result<()> {
        let (floor, percent) = self.counted.bound(bounds.limits);
        let mut quota = self.lock();
        let fresh = || Window { ends: now + self.counted.within(), used: 0, noted: 0, allowed: None };
        let window = quota.get_or_insert_with(fresh);
        if now >= window.ends {
            *window = fresh();
        }
        if window.used >= floor {
            let allowed = match window.allowed {
                Some(allowed) => allowed,
                None => *window.allowed.insert(all(window.used)?.saturating_mul(percent.into()) / 100),
            };
            if window.used >= allowed {
                return Err(self.counted.used_up(window.used));
            }
        }
        let used = window.used.saturating_add(amount);
        if used > window.noted {
            let noted = window.used.saturating_add(amount.max(floor / NOTED_AHEAD_DIVISOR));
            let left_ms = u64::try_from(window.ends.duration_since(now).as_millis()).unwrap_or(u64::MAX);
            let until_ms = bounds.now_ms.saturating_add(left_ms);
            let recorded = bounds.state.update(|memory| {
                let all = self.counted.noted(memory);
                all.retain(|_, old| old.until_ms > bounds.now_ms);
                all.insert(disk.to_owned(), Used { until_ms, amount: noted });
            });
            match recorded {
                Ok(()) => window.noted = noted,
                // Intended removals continue without the record, because they may be what makes room for it. A restart then forgets
                // this part of the hour.
                Err(error) if self.counted == Counted::Freed => {
                    if let Some(left_out) = self.unrecorded.admit() {
                        tracing::warn!(disk, %error, left_out, "cannot record the removal of blocks: it continues");
                    }
                }
                Err(error) => return Err(error),
            }
        }
        window.used = used;
        Ok(())
    }

    /// Gives back a right that was not used.
    pub(crate) fn give_back(&self, amount: u64) {
        if let Some(window) = self.lock().as_mut() {
            window.used = window.used.saturating_sub(amount);
        }
    }

    /// A poisoned lock is safe to use: each change is one assignment.
    fn lock(&self) -> MutexGuard<'_, Option<Window>> {
        self.window.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_types::ByteSize;

    const HOUR_MS: u64 = 60 * 60 * 1000;
    const DAY_MS: u64 = 24 * HOUR_MS;
    const DAY: Duration = Duration::from_millis(DAY_MS);
    const MIB: u64 = 1 << 20;

    fn fresh(counted: Counted, now: Instant) -> Quota {
        Quota::new(counted, Memory::default(), "d", 5000, now)
    }

    /// Takes rights to remove one block until none is left; returns their number.
    fn take_all(quota: &Quota, bounds: &Bounds<'_>, now: Instant, there: usize) -> usize {
        let take = |taken: &usize| quota.take(1, "d", bounds, now, |used| Ok((there - taken) as u64 + used));
        (0..there).take_while(|taken| take(taken).is_ok()).count()
    }

    #[tokio::test]
    async fn many_small_requests_cannot_empty_a_disk_and_removal_continues_the_next_day() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateFile::open(dir.path()).unwrap();
        let limits = Limits { removed_blocks_per_day: 10, removed_percent_per_day: 20, ..Limits::default() };
        let bounds = Bounds { limits: &limits, state: &state, now_ms: 5000 };
        let now = Instant::now();
        assert_eq!(take_all(&fresh(Counted::Unexpected, now), &bounds, now, 40), 10, "the floor");
        let large = fresh(Counted::Unexpected, now);
        assert_eq!(take_all(&large, &bounds, now, 1000), 200, "not a fifth of all blocks");
        let refused = large.take(1, "d", &bounds, now, |used| Ok(800 + used)).unwrap_err();
        assert!(refused.message.contains("removed_percent_per_day"), "{refused}");
        large.give_back(1);
        large.take(1, "d", &bounds, now, |used| Ok(800 + used)).unwrap();
        large.take(1, "d", &bounds, now, |used| Ok(800 + used)).unwrap_err();
        assert_eq!(take_all(&large, &bounds, now + DAY, 800), 160);
    }

    #[tokio::test]
    async fn a_restart_does_not_reset_the_quota_and_a_wrong_clock_costs_at_most_a_day() {
        let dir = tempfile::tempdir().unwrap();
        let limits = Limits { removed_blocks_per_day: 100, removed_percent_per_day: 10, ..Limits::default() };
        let now = Instant::now();
        let start = |now_ms| {
            let state = StateFile::open(dir.path()).unwrap();
            let quota = Quota::new(Counted::Unexpected, state.get(), "d", now_ms, now);
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
            // The clock was set back: the elapsed time is unknown.
            (5, DAY - Duration::from_secs(1), 0),
            (5, DAY, 30),
        ] {
            let (_, quota) = start(now_ms);
            let scratch = tempfile::tempdir().unwrap();
            let state = StateFile::open(scratch.path()).unwrap();
            let bounds = Bounds { limits: &limits, state: &state, now_ms };
            assert_eq!(take_all(&quota, &bounds, now + later, 30), left, "{now_ms} + {later:?}");
        }
    }

    /// Takes rights to free blocks of this length until none is left; returns their bytes.
    fn free_all(quota: &Quota, bounds: &Bounds<'_>, now: Instant, len: u64, disk_bytes: u64) -> u64 {
        (0..10_000).take_while(|_| quota.take(len, "d", bounds, now, |_| Ok(disk_bytes)).is_ok()).count() as u64 * len
    }

    #[tokio::test]
    async fn a_quarter_of_a_disks_bytes_is_freed_in_an_hour_and_the_rest_in_the_next_ones() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateFile::open(dir.path()).unwrap();
        let limits = Limits { freed_bytes_per_hour: ByteSize(64 * MIB), ..Limits::default() };
        let bounds = Bounds { limits: &limits, state: &state, now_ms: 5000 };
        let now = Instant::now();
        let hour = |number: u64| now + number as u32 * Duration::from_millis(HOUR_MS);
        let large = fresh(Counted::Freed, now);
        for number in 0..3 {
            assert_eq!(free_all(&large, &bounds, hour(number), MIB, 1 << 30), 256 * MIB);
            let refused = large.take(MIB, "d", &bounds, hour(number), |_| Ok(1 << 30)).unwrap_err();
            assert!(refused.reaction == Reaction::Unavailable && refused.message.contains("freed_percent_per_hour"), "{refused}");
        }
        // On a small disk the minimum in bytes applies, and even one larger block is allowed.
        assert_eq!(free_all(&fresh(Counted::Freed, now), &bounds, now, MIB, 100 * MIB), 64 * MIB);
        assert_eq!(free_all(&fresh(Counted::Freed, now), &bounds, now, 50 * MIB, 100 * MIB), 100 * MIB);
        let none = Limits { freed_bytes_per_hour: ByteSize(0), ..limits.clone() };
        let bounds = Bounds { limits: &none, ..bounds };
        assert_eq!(free_all(&fresh(Counted::Freed, now), &bounds, now, 50 * MIB, 40 * MIB), 50 * MIB);
        let nothing = Limits { freed_percent_per_hour: 0, ..none.clone() };
        assert_eq!(free_all(&fresh(Counted::Freed, now), &Bounds { limits: &nothing, ..bounds }, now, 1, 1 << 30), 0);
        // For small blocks, the space on the disk counts.
        assert_eq!((bytes_on_disk(0), bytes_on_disk(1), bytes_on_disk(MIB)), (4096, 8192, MIB + 4096));
    }

    #[tokio::test]
    async fn freed_bytes_survive_a_restart_even_if_the_clock_was_set_back() {
        let dir = tempfile::tempdir().unwrap();
        let limits = Limits { freed_bytes_per_hour: ByteSize(32 * MIB), ..Limits::default() };
        let now = Instant::now();
        let start = |now_ms| {
            let state = StateFile::open(dir.path()).unwrap();
            let quota = Quota::new(Counted::Freed, state.get(), "d", now_ms, now);
            (state, quota)
        };
        let disk_bytes = 400 * MIB;
        let mut freed = 0;
        for starts in 0..5 {
            let (state, quota) = start(DAY_MS + starts);
            let bounds = Bounds { limits: &limits, state: &state, now_ms: DAY_MS + starts };
            freed += (0..20).filter(|_| quota.take(MIB, "d", &bounds, now, |_| Ok(disk_bytes)).is_ok()).count() as u64 * MIB;
        }
        let (state, quota) = start(DAY_MS + 5);
        let bounds = Bounds { limits: &limits, state: &state, now_ms: DAY_MS + 5 };
        freed += free_all(&quota, &bounds, now, MIB, disk_bytes);
        // Each earlier start had recorded up to 2 MiB ahead.
        assert!((90 * MIB..=100 * MIB).contains(&freed), "{freed} bytes");
        // The daily count of blocks is separate.
        Quota::new(Counted::Unexpected, state.get(), "d", 0, now).take(1, "d", &bounds, now, |_| Ok(0)).unwrap();

        for (now_ms, later_ms, left) in [
            (DAY_MS + HOUR_MS - 1000, 0, 0),
            (DAY_MS + HOUR_MS - 1000, 1000, 100),
            (DAY_MS + HOUR_MS, 0, 100),
            (5, HOUR_MS - 1000, 0),
            (5, HOUR_MS, 100),
        ] {
            let (_, quota) = start(now_ms);
            let scratch = tempfile::tempdir().unwrap();
            let state = StateFile::open(scratch.path()).unwrap();
            let bounds = Bounds { limits: &limits, state: &state, now_ms };
            let at = now + Duration::from_millis(later_ms);
            assert_eq!(free_all(&quota, &bounds, at, MIB, disk_bytes), left * MIB, "{now_ms} + {later_ms}");
        }
    }

    #[tokio::test]
    async fn without_room_for_the_record_only_intended_removals_continue() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateFile::open(dir.path()).unwrap();
        // The state file cannot be replaced, as on a full disk.
        std::fs::create_dir(dir.path().join("agent.new")).unwrap();
        let limits = Limits { freed_bytes_per_hour: ByteSize(64 * MIB), removed_blocks_per_day: 10, ..Limits::default() };
        let bounds = Bounds { limits: &limits, state: &state, now_ms: 5000 };
        let now = Instant::now();
        assert_eq!(free_all(&fresh(Counted::Freed, now), &bounds, now, MIB, 1 << 30), 256 * MIB, "the limit holds");
        let refused = fresh(Counted::Unexpected, now).take(1, "d", &bounds, now, |_| Ok(100)).unwrap_err();
        assert!(refused.message.contains("cannot write"), "{refused}");
    }
}
