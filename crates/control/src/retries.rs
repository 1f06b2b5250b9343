//! When failed operations are repeated: with growing pauses, for as long as they fail.

use crate::Time;
use std::{collections::BTreeMap, time::Duration};

/// The first pause before a retry; each next pause is twice as long, up to a limit. The cause may last for hours.
const PAUSE_FIRST: Duration = Duration::from_secs(1);
const PAUSE_LAST: Duration = Duration::from_secs(60);
/// The most failures that are remembered. With that many, no new operation is tried, because it would probably fail for the same cause.
const TRIED_MAX: usize = 65_536;

/// Failed operations, by key.
#[derive(Debug)]
pub struct Retries<K>(BTreeMap<K, Tried>);

#[derive(Debug)]
struct Tried {
    times: u32,
    again_at: Time,
    why: String,
}

impl<K> Default for Retries<K> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Ord> Retries<K> {
    /// Why the last attempt failed; empty if none has.
    pub fn why(&self, what: &K) -> String {
        self.0.get(what).map(|tried| tried.why.clone()).unwrap_or_default()
    }

    /// How often it has failed.
    pub fn times(&self, what: &K) -> u32 {
        self.0.get(what).map_or(0, |tried| tried.times)
    }

    /// Whether it may be tried now.
    pub fn is_due(&self, what: &K, now: Time) -> bool {
        self.0.get(what).map_or(self.0.len() < TRIED_MAX, |tried| tried.again_at <= now)
    }

    /// Whether it has failed, and its pause is not over. Failures that are not remembered do not count.
    pub fn rests(&self, what: &K, now: Time) -> bool {
        self.0.get(what).is_some_and(|tried| tried.again_at > now)
    }

    /// When to check again: when the next retry is due, but not later than `latest`.
    pub fn next(&self, latest: Time) -> Time {
        self.0.values().map(|tried| tried.again_at).min().map_or(latest, |next| next.min(latest))
    }

    /// Records a failed attempt. Returns the number of failures, and the pause before the next attempt.
    pub fn failed(&mut self, what: K, why: String, now: Time) -> (u32, Duration) {
        self.failed_within(what, why, (PAUSE_FIRST, PAUSE_LAST), now)
    }

    /// Like [`failed`](Self::failed), with another first and another last pause.
    pub fn failed_within(&mut self, what: K, why: String, (first, last): (Duration, Duration), now: Time) -> (u32, Duration) {
        let times = self.0.get(&what).map_or(0, |tried| tried.times).saturating_add(1);
        let pause = first.saturating_mul(1 << (times - 1).min(16)).min(last);
        if self.0.len() < TRIED_MAX || self.0.contains_key(&what) {
            self.0.insert(what, Tried { times, again_at: now + pause, why });
        }
        (times, pause)
    }

    /// Records a success.
    pub fn done(&mut self, what: &K) {
        self.0.remove(what);
    }

    /// Forgets operations that are no longer needed.
    pub fn retain(&mut self, is_there: impl Fn(&K) -> bool) {
        self.0.retain(|what, _| is_there(what));
    }
}

/// Pauses that double, up to a limit.
#[derive(Debug, Clone)]
pub struct Pause {
    next: Duration,
    last: Duration,
}

impl Pause {
    /// From the first to the last.
    pub const fn new(first: Duration, last: Duration) -> Self {
        Self { next: first, last }
    }

    /// The next pause.
    pub fn again(&mut self) -> Duration {
        let now = self.next;
        self.next = (now * 2).min(self.last);
        now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_last() {
        let mut pause = Pause::new(Duration::from_secs(3), Duration::from_secs(10));
        assert_eq!([(); 4].map(|()| pause.again().as_secs()), [3, 6, 10, 10]);
    }

    #[test]
    fn repeated_failures_are_retried_less_and_less_often() {
        let (mut retries, now) = (Retries::default(), Time::after(Duration::from_secs(100)));
        assert!(retries.is_due(&3, now) && retries.why(&3).is_empty());
        let pauses: Vec<u64> = (0..8).map(|_| retries.failed(3, "too few nodes".into(), now).1.as_secs()).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
        assert_eq!((retries.times(&3), retries.times(&4)), (8, 0));
        assert!(!retries.is_due(&3, now) && retries.is_due(&4, now));
        assert_eq!((retries.why(&3).as_str(), retries.next(now + 2 * PAUSE_LAST)), ("too few nodes", now + PAUSE_LAST));
        assert_eq!(retries.next(now + PAUSE_FIRST), now + PAUSE_FIRST, "other operations are checked in between");
        assert!(retries.is_due(&3, now + PAUSE_LAST));
        retries.done(&3);
        assert_eq!(retries.failed(3, "again".into(), now).0, 1, "success resets the count");
        retries.retain(|_| false);
        assert_eq!(retries.next(now + 2 * PAUSE_LAST), now + 2 * PAUSE_LAST);
    }

    #[test]
    fn the_number_of_remembered_failures_is_bounded() {
        let mut retries = Retries::default();
        for number in 0..=TRIED_MAX {
            retries.failed(number, String::new(), Time::default());
        }
        let late = Time::after(PAUSE_LAST);
        assert!(retries.is_due(&0, late) && !retries.is_due(&TRIED_MAX, late), "others wait for these");
        assert!(retries.rests(&0, Time::default()) && !retries.rests(&0, late) && !retries.rests(&TRIED_MAX, Time::default()));
    }
}
