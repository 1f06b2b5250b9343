//! Limits how often an event is logged, so that a flood of refused peers, or work that fails again and again, does not fill the log.

use std::{
    collections::BTreeMap,
    fmt::Display,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::time::Instant;

/// The period of the limit.
const PERIOD: Duration = Duration::from_secs(10);
/// The most lines in one period.
const LINES_MAX: u32 = 10;

/// The period of a cause.
const CAUSE_PERIOD: Duration = Duration::from_secs(3600);
/// The most causes that are told apart; further ones count as one.
const CAUSES_MAX: usize = 1_024;
/// The letters by which causes are told apart.
const CAUSE_LETTERS_MAX: usize = 128;

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

/// Admits one log line an hour for each cause, and counts the others.
#[derive(Debug, Default)]
pub struct LogCauses(Mutex<BTreeMap<String, Cause>>);

#[derive(Debug)]
struct Cause {
    logged_at: Instant,
    /// Events without a line since then.
    left_out: u64,
}

impl LogCauses {
    /// Whether this event is logged: `Some` with the number of events of the same cause that were left out since its last line. `of` is what
    /// failed, such as a node or a stripe. Numbers in `why` do not make a difference.
    pub fn admit(&self, of: impl Display, why: impl Display) -> Option<u64> {
        let mut key = format!("{of} ");
        key.extend(why.to_string().chars().filter(|letter| !letter.is_ascii_digit()).take(CAUSE_LETTERS_MAX));
        let mut causes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if causes.len() >= CAUSES_MAX && !causes.contains_key(&key) {
            causes.retain(|_, cause| cause.logged_at.elapsed() < CAUSE_PERIOD);
            if causes.len() >= CAUSES_MAX {
                key = String::new();
            }
        }
        match causes.get_mut(&key) {
            Some(cause) if cause.logged_at.elapsed() < CAUSE_PERIOD => {
                cause.left_out += 1;
                None
            }
            known => {
                let left_out = known.map_or(0, |cause| cause.left_out);
                causes.insert(key, Cause { logged_at: Instant::now(), left_out: 0 });
                Some(left_out)
            }
        }
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

    #[tokio::test(start_paused = true)]
    async fn a_cause_has_one_line_an_hour() {
        let causes = LogCauses::default();
        assert_eq!(causes.admit("s1", "no node after 3 tries"), Some(0));
        for tries in 4..10 {
            assert_eq!(causes.admit("s1", format!("no node after {tries} tries")), None);
        }
        assert_eq!((causes.admit("s1", "no space"), causes.admit("s2", "no space")), (Some(0), Some(0)));
        tokio::time::advance(CAUSE_PERIOD).await;
        assert_eq!(causes.admit("s1", "no node after 99 tries"), Some(6));
        assert_eq!(causes.admit("s1", "no node after 99 tries"), None);
    }

    #[tokio::test(start_paused = true)]
    async fn causes_are_bounded_and_those_beyond_count_as_one() {
        let causes = LogCauses::default();
        let admitted = (0..5_000).filter(|stripe| causes.admit(format!("s{stripe}"), "x".repeat(10_000)).is_some()).count();
        assert_eq!(admitted, CAUSES_MAX + 1);
        tokio::time::advance(CAUSE_PERIOD).await;
        assert_eq!(causes.admit("s4999", "no space"), Some(0), "the old ones were forgotten");
        assert!(causes.0.lock().unwrap().keys().all(|key| key.len() < 2 * CAUSE_LETTERS_MAX));
    }
}
