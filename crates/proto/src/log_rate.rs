//! Limits how often an event is logged, so that a flood of refused peers does not fill the log.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::time::Instant;

/// The period of the limit.
const PERIOD: Duration = Duration::from_secs(10);
/// The most lines in one period.
const LINES_MAX: u32 = 10;

/// Admits at most ten log lines of one kind in ten seconds, and counts the others.
#[derive(Debug, Default)]
pub struct LogRate(Mutex<Lines>);

#[derive(Debug, Default)]
struct Lines {
    since: Option<Instant>,
    /// Lines in this period.
    logged: u32,
    /// Events without a line since the last line.
    left_out: u64,
}

impl LogRate {
    /// Whether this event is logged: `Some` with the number of events that were left out since the last line.
    pub fn admit(&self) -> Option<u64> {
        let mut lines = self.lock();
        if lines.since.is_none_or(|since| since.elapsed() >= PERIOD) {
            (lines.since, lines.logged) = (Some(Instant::now()), 0);
        }
        if lines.logged >= LINES_MAX {
            lines.left_out += 1;
            return None;
        }
        lines.logged += 1;
        Some(std::mem::take(&mut lines.left_out))
    }

    /// A poisoned lock is safe to use: no code panics while the counts change.
    fn lock(&self) -> MutexGuard<'_, Lines> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_flood_is_counted_not_logged() {
        let rate = LogRate::default();
        let admitted = |events: u32| (0..events).filter_map(|_| rate.admit()).collect::<Vec<_>>();
        assert_eq!(admitted(1000), [0; 10]);
        tokio::time::advance(PERIOD - Duration::from_millis(1)).await;
        assert_eq!(admitted(5), [0; 0]);
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(admitted(2), [995, 0]);
    }
}
