//! How long the answer to an update may take: the longer, the more bytes travel.

use super::course::ANSWER_TIMEOUT;
use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::time::Instant;

/// How long an answer may take as long as other updates of the stripe are committed. What their bytes take comes on top.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// Bytes are waited for as long as they take over a link of this rate, bytes a second.
const SLOWEST_BYTES_PER_S: u64 = 2 << 20;

/// The bytes that an update of so many sends: to the node that leads it, and from there, in the worst case, the change to each parity block's node.
pub(crate) fn sent_bytes(bytes: u64, parities: u32) -> u64 {
    bytes.saturating_mul(1 + u64::from(parities))
}

/// How long so many sent bytes may take.
pub(crate) fn travel_time(bytes: u64) -> Duration {
    Duration::from_micros(bytes.saturating_mul(1_000_000) / SLOWEST_BYTES_PER_S)
}

/// The updates of a stripe that are not answered: how many there are that send so many bytes.
#[derive(Debug, Default)]
pub(crate) struct UnderWay(Mutex<BTreeMap<u64, u32>>);

/// An update that is not answered.
pub(crate) struct Waiting<'a> {
    under_way: &'a UnderWay,
    bytes: u64,
    sent: Instant,
    /// How long its answer may take at most.
    most: Duration,
}

impl UnderWay {
    /// An update that sends so many bytes is under way. It may wait for all that were sent before.
    pub(crate) fn send(&self, bytes: u64) -> Waiting<'_> {
        let mut lengths = self.lock();
        *lengths.entry(bytes).or_default() += 1;
        let all = lengths.iter().map(|(bytes, count)| bytes.saturating_mul(u64::from(*count))).fold(0, u64::saturating_add);
        Waiting { under_way: self, bytes, sent: Instant::now(), most: ANSWER_MAX + travel_time(all) }
    }

    /// A poisoned lock is safe to use: each change is one call.
    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, u32>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiting<'_> {
    /// Until when the answer is waited for, if an update of the stripe was committed last at `heard`. On a slow link, updates wait for each other,
    /// and none is committed while the longest travels.
    pub(crate) fn until(&self, heard: Instant) -> Instant {
        let longest = self.under_way.lock().keys().next_back().copied().unwrap_or_default();
        (heard.max(self.sent) + ANSWER_TIMEOUT + travel_time(longest)).min(self.sent + self.most)
    }

    /// For how long it has been waited for.
    pub(crate) fn waited(&self) -> Duration {
        self.sent.elapsed()
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut lengths = self.under_way.lock();
        if let Some(count) = lengths.get_mut(&self.bytes) {
            *count -= 1;
            if *count == 0 {
                lengths.remove(&self.bytes);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn s(seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds)
    }

    #[test]
    fn bytes_count_again_for_each_parity() {
        assert_eq!(travel_time(sent_bytes(16 * MIB, 3)), s(32.0));
        assert_eq!(travel_time(sent_bytes(MIB, 0)), s(0.5));
        assert_eq!(sent_bytes(u64::MAX, 2), u64::MAX);
    }

    #[tokio::test(start_paused = true)]
    async fn patience_grows_with_the_bytes_that_travel() {
        let (under_way, now) = (UnderWay::default(), Instant::now());
        let small = under_way.send(4096);
        assert!(small.until(now) < now + s(3.01), "a short update is not waited for any longer");
        let large = under_way.send(16 * MIB);
        assert_eq!(large.until(now), now + s(11.0));
        let late = under_way.send(4096);
        assert_eq!(late.until(now), now + s(11.0), "it may wait behind the large one");
        assert_eq!(small.until(now + s(60.0)), now + ANSWER_MAX + travel_time(4096), "at most for all that was sent before");
        assert!(large.until(now + s(60.0)) >= now + s(18.0));
        drop(large);
        assert!(small.until(now) < now + s(3.01));
        tokio::time::advance(s(2.0)).await;
        assert_eq!(
            (small.waited(), small.until(Instant::now())),
            (s(2.0), now + s(5.0) + travel_time(4096)),
            "others are committed"
        );
        drop((small, late));
        assert!(under_way.lock().is_empty());
    }
}
