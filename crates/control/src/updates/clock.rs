//! The time of sessions, which agents judge by: it never falls, even if the clock of the machine is set back.

use crate::Time;

/// A told time that is ahead of the machine's clock by more than this is wrong: all sessions would last that much longer.
const AHEAD_MAX_MS: u64 = 24 * 60 * 60 * 1000;

/// A clock that follows the machine's, and goes on by itself when that steps back.
#[derive(Debug, Default)]
pub struct Clock {
    /// A time that was given out, in milliseconds since 1970, and when that was.
    floor: Option<(u64, Time)>,
}

impl Clock {
    /// The time, milliseconds since 1970. `wall_ms`: by the machine's clock; `now`: by one that is never set.
    pub fn now_ms(&mut self, wall_ms: u64, now: Time) -> u64 {
        let gone =
            |(floor_ms, at): (u64, Time)| floor_ms.saturating_add(u64::try_from(now.since(at).as_millis()).unwrap_or(u64::MAX));
        let now_ms = self.floor.map_or(wall_ms, |floor| gone(floor).max(wall_ms));
        self.floor = Some((now_ms, now));
        now_ms
    }

    /// An agent has judged sessions by a time that an earlier coordinator has told. Sessions that begin now must not end before that.
    /// Nothing happens if it is more than a day ahead of the machine's clock; then it answers `false`.
    pub fn heard(&mut self, told_ms: u64, wall_ms: u64, now: Time) -> bool {
        let now_ms = self.now_ms(wall_ms, now);
        let is_taken = told_ms <= wall_ms.saturating_add(AHEAD_MAX_MS);
        if is_taken {
            self.floor = Some((now_ms.max(told_ms), now));
        }
        is_taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn it_goes_on_when_the_machines_clock_is_set_back() {
        let (mut clock, at) = (Clock::default(), |seconds| Time::after(Duration::from_secs(seconds)));
        assert_eq!(clock.now_ms(900_000, at(0)), 900_000);
        assert_eq!(clock.now_ms(902_000, at(1)), 902_000, "it follows the machine's clock");
        assert_eq!(clock.now_ms(603_000, at(2)), 903_000);
        assert_eq!(clock.now_ms(604_000, at(3)), 904_000, "it stands still");
        assert_eq!(clock.now_ms(990_000, at(4)), 990_000);
        assert!(clock.heard(10, 991_000, at(5)));
        assert_eq!(clock.now_ms(991_000, at(5)), 991_000);
        let mut next = Clock::default();
        assert!(next.heard(991_000, 100_000, at(0)));
        assert_eq!(next.now_ms(101_000, at(1)), 992_000, "an agent knows a later time");
        let day = AHEAD_MAX_MS;
        for (told_ms, expected) in [(u64::MAX, 993_000), (102_001 + day, 993_000), (102_000 + day, 86_502_000)] {
            assert_eq!(next.heard(told_ms, 102_000, at(2)), expected > 993_000, "told {told_ms}");
            assert_eq!(next.now_ms(102_000, at(2)), expected, "told {told_ms}");
        }
    }
}
