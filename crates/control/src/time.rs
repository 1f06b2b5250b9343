//! Time as the decisions see it: the time since the shell started. Nothing here reads a clock.

use std::{
    ops::{Add, Sub},
    time::Duration,
};

/// A moment, counted from the start of the shell, which passes it in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Time(Duration);

impl Time {
    /// This long after the start.
    pub const fn after(since_start: Duration) -> Self {
        Self(since_start)
    }

    /// The time since `earlier`; zero if that is in the future.
    pub fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<Duration> for Time {
    type Output = Self;

    fn add(self, after: Duration) -> Self {
        Self(self.0.saturating_add(after))
    }
}

impl Sub for Time {
    type Output = Duration;

    fn sub(self, earlier: Self) -> Duration {
        self.since(earlier)
    }
}
