//! How fast a disk serves, measured at the disk itself: without waiting for a turn, a limit or a thread.
//!
//! The coordinator compares the disks of the cluster by it ([`weft_control::disk_health`](../weft_control/disk_health/index.html)), so the figures
//! must mean the same on all of them:
//!
//! - Only reads that were not in the page cache and syncs of new blocks count. A write goes to memory, and says nothing about the disk. An operation
//!   shorter than [`CACHED_MAX`] cannot be told from memory, and does not count either: otherwise a disk whose blocks happen to be cached makes
//!   its siblings look slow.
//! - The time of operations that overlap is shared among them, so that a disk with many at a time does not look slow. That the figures still
//!   depend on the number at a time and on their sizes, the coordinator takes into account.
//! - Older operations count less and less, so that one bad minute is forgotten and one good one proves little.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::time::Instant;
use weft_proto::{DiskMode, v1};
use weft_types::Result;

/// An operation that takes less may have been served from memory.
const CACHED_MAX: Duration = Duration::from_millis(1);
/// After this time, an operation counts half.
const HALF_LIFE: Duration = Duration::from_secs(180);

/// What a disk has served.
#[derive(Debug, Default)]
pub(crate) struct Served {
    pub(crate) reads: Arc<Gauge>,
    pub(crate) syncs: Arc<Gauge>,
}

impl Served {
    /// Whether it serves now.
    pub(crate) fn is_busy(&self) -> bool {
        [&self.reads, &self.syncs].into_iter().any(|gauge| gauge.lock().under_way > 0)
    }
}

/// Operations of one kind.
#[derive(Debug, Default)]
pub(crate) struct Gauge(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    under_way: u32,
    /// Grows by the time that passes, divided by the number of operations under way: an operation's share of the disk's time is how much it
    /// grows meanwhile.
    shared_s: f64,
    /// When both were brought up to date.
    at: Option<Instant>,
    sums: Sums,
}

/// Each sum decays.
#[derive(Debug, Clone, Copy, Default)]
struct Sums {
    operations: f64,
    bytes: f64,
    busy_s: f64,
    taken_s: f64,
}

/// An operation that is under way.
struct Operation<'a> {
    gauge: &'a Gauge,
    begin: Instant,
    shared_s: f64,
}

impl Gauge {
    /// Runs an operation of a disk. It counts if it succeeds and `bytes` finds any in its result.
    pub(crate) async fn run<T: Send + 'static>(
        self: &Arc<Self>,
        mode: DiskMode,
        bytes: impl Fn(&T) -> u64 + Send + 'static,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        match mode {
            // On the thread, which may have been waited for.
            DiskMode::Pool => {
                let gauge = Arc::clone(self);
                mode.run(move || {
                    let operation = gauge.begin();
                    work().inspect(|done| operation.served(bytes(done)))
                })
                .await
            }
            DiskMode::Inline | DiskMode::Slowed(_) => {
                let operation = self.begin();
                mode.run(work).await.inspect(|done| operation.served(bytes(done)))
            }
        }
    }

    fn begin(&self) -> Operation<'_> {
        let (mut state, now) = (self.lock(), Instant::now());
        state.pass(now);
        state.under_way += 1;
        Operation { gauge: self, begin: now, shared_s: state.shared_s }
    }

    pub(crate) fn report(&self) -> v1::DiskService {
        let mut state = self.lock();
        state.pass(Instant::now());
        let Sums { operations, bytes, busy_s, taken_s } = state.sums;
        let us = |seconds: f64| (seconds * 1e6) as u64;
        v1::DiskService { operations: operations as u64, bytes: bytes as u64, busy_us: us(busy_s), taken_us: us(taken_s) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A poisoned lock is safe to use: it guards numbers only.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Time passes until `now`.
    fn pass(&mut self, now: Instant) {
        let passed_s = now.saturating_duration_since(self.at.unwrap_or(now)).as_secs_f64();
        self.at = Some(now);
        if self.under_way > 0 {
            self.shared_s += passed_s / f64::from(self.under_way);
        }
        let left = 0.5f64.powf(passed_s / HALF_LIFE.as_secs_f64());
        let Sums { operations, bytes, busy_s, taken_s } = &mut self.sums;
        [operations, bytes, busy_s, taken_s].into_iter().for_each(|sum| *sum *= left);
    }
}

impl Operation<'_> {
    /// It has ended, and has moved so many bytes; 0: it does not count.
    fn served(&self, bytes: u64) {
        let (mut state, now) = (self.gauge.lock(), Instant::now());
        state.pass(now);
        let (taken, busy_s) = (now - self.begin, state.shared_s - self.shared_s);
        if bytes == 0 || taken < CACHED_MAX {
            return;
        }
        let sums = &mut state.sums;
        sums.operations += 1.0;
        sums.bytes += bytes as f64;
        sums.busy_s += busy_s;
        sums.taken_s += taken.as_secs_f64();
    }
}

impl Drop for Operation<'_> {
    fn drop(&mut self) {
        let mut state = self.gauge.lock();
        state.pass(Instant::now());
        state.under_way -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;
    use tokio::time::{advance, sleep};
    use weft_proto::DiskDelay;
    use weft_types::Error;

    static DELAY_MS: AtomicU64 = AtomicU64::new(0);

    fn told(it: &Gauge) -> (u64, u64, u64, u64) {
        let v1::DiskService { operations, bytes, busy_us, taken_us } = it.report();
        let ms = |us: u64| (us as f64 / 1000.0).round() as u64;
        (operations, bytes, ms(busy_us), ms(taken_us))
    }

    #[tokio::test(start_paused = true)]
    async fn operations_at_the_same_time_share_the_time_of_the_disk() {
        let gauge = Gauge::default();
        let serve = async |after_ms: u64, ms: u64| {
            sleep(Duration::from_millis(after_ms)).await;
            let operation = gauge.begin();
            sleep(Duration::from_millis(ms)).await;
            operation.served(1000);
        };
        tokio::join!(serve(0, 40), serve(10, 20), serve(100, 5));
        assert_eq!(
            told(&gauge),
            (2, 2999, 45, 65),
            "40 ms of the first two and 5 ms of the third; what is left after 105 ms of decay"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn what_may_come_from_memory_or_has_failed_does_not_count_and_what_is_old_counts_less() {
        let served = Served::default();
        let run = async |ms: u64, done: Result<u64>| {
            DELAY_MS.store(ms, std::sync::atomic::Ordering::Relaxed);
            let mode = DiskMode::Slowed(DiskDelay(&DELAY_MS));
            let _failed = served.reads.run(mode, |bytes| *bytes, move || done).await;
        };
        run(0, Ok(1 << 20)).await;
        run(50, Err(Error::fatal("the disk"))).await;
        run(50, Ok(0)).await;
        assert_eq!(told(&served.reads), (0, 0, 0, 0));
        run(50, Ok(1 << 20)).await;
        assert_eq!(told(&served.reads), (1, 1 << 20, 50, 50));
        assert_eq!(told(&served.syncs), (0, 0, 0, 0));
        advance(HALF_LIFE).await;
        assert_eq!(told(&served.reads), (0, 1 << 19, 25, 25));
    }
}
