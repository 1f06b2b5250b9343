//! Limits the bytes that a conversion starts in a second, on average.

use crate::Time;
use std::time::Duration;

/// A rate limit, in bytes a second on average.
#[derive(Debug)]
pub struct ReadRate {
    bytes_per_s: u64,
    next: Time,
}

impl ReadRate {
    /// A new limit in bytes a second; 0 means no limit.
    pub fn new(bytes_per_s: u64, now: Time) -> Self {
        Self { bytes_per_s, next: now }
    }

    /// When `bytes` may start.
    pub fn reserve(&mut self, bytes: u64, now: Time) -> Time {
        if self.bytes_per_s == 0 {
            return now;
        }
        let begin = now.max(self.next);
        self.next = begin + Duration::from_secs_f64(bytes as f64 / self.bytes_per_s as f64);
        begin
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conversions_keep_to_the_rate_on_average() {
        let begin = Time::after(Duration::from_secs(7));
        let mut rate = ReadRate::new(1000, begin);
        let mut at = |bytes, now| rate.reserve(bytes, now).since(begin).as_millis();
        assert_eq!([at(500, begin), at(2000, begin), at(1, begin)], [0, 500, 2500]);
        let later = begin + Duration::from_secs(10);
        assert_eq!([at(1000, later), at(1, later)], [10_000, 11_000], "unused time is not made up for");
        assert_eq!(ReadRate::new(0, begin).reserve(u64::MAX, later), later);
    }
}
