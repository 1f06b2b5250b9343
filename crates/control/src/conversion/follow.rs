//! Follows an agent that writes a stripe and reports its progress. An agent without progress is given up.

use crate::Time;
use std::time::Duration;

/// An agent is given up after this time without progress. The time allows for several stalls that are detected and resolved. An agent that
/// has sent everything has as much time as any writer for the end of its stripe.
const STILL_MIN: Duration = Duration::from_secs(60);
const STILL_STALLS: u32 = 6;

/// An agent's progress with a stripe.
#[derive(Debug)]
pub struct Followed {
    len: u64,
    still_max: Duration,
    end_max: Duration,
    far: u64,
    since: Time,
}

impl Followed {
    /// A stripe of `len` bytes starts now. A stall is detected after `stall`; a stripe that was sent completely ends
    /// within `end_max`.
    pub fn new(len: u64, stall: Duration, end_max: Duration, now: Time) -> Self {
        let still_max = STILL_MIN.max(stall * STILL_STALLS);
        Self { len, still_max, end_max: still_max.max(end_max), far: 0, since: now }
    }

    /// Handles a progress report. Returns whether there is progress, or why the agent is given up.
    pub fn told(&mut self, bytes: u64, now: Time) -> Result<bool, String> {
        if bytes != self.far {
            (self.far, self.since) = (bytes, now);
            return Ok(true);
        }
        let still = if self.far < self.len { self.still_max } else { self.end_max };
        if now.since(self.since) >= still { Err(format!("it made no progress for {still:?}")) } else { Ok(false) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With a report each second of progress out of 1000: after how many seconds the agent is given up, and why.
    fn each_second(far: impl Fn(u64) -> u64) -> Option<(u64, String)> {
        let mut followed = Followed::new(1000, Duration::from_secs(5), Duration::from_secs(600), Time::default());
        let told = |second| followed.told(far(second), Time::after(Duration::from_secs(second))).err().map(|why| (second, why));
        (1..1200).find_map(told)
    }

    #[test]
    fn an_agent_without_progress_is_given_up_and_a_slow_one_is_not() {
        assert_eq!(each_second(|second| second.min(10)), Some((10 + 60, "it made no progress for 60s".into())));
        assert_eq!(each_second(|_| 0), Some((60, "it made no progress for 60s".into())));
        assert_eq!(each_second(|second| second / 59), None);
        // The coordinator may have to rebuild lost blocks before it answers that the stripe has ended.
        let sent = each_second(|second| if second < 10 { second } else { 1000 });
        assert_eq!(sent, Some((10 + 600, "it made no progress for 600s".into())));
    }

    #[test]
    fn the_limit_allows_for_several_stalls() {
        let mut followed = Followed::new(9, Duration::from_secs(20), Duration::ZERO, Time::default());
        let mut at = |second| followed.told(0, Time::after(Duration::from_secs(second)));
        assert_eq!((at(119), at(120).is_err()), (Ok(false), true));
    }
}
