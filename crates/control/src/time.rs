//! Time as decisions see it: what has passed since the shell began. Nothing here looks at a clock.

use std::{
    ops::{Add, Sub},
    time::Duration,
};

/// A moment, counted from when the shell began. The shell passes it in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Time(Duration);

impl Time {
    /// So long after the shell began.
    pub const fn after(since_start: Duration) -> Self {
        Self(since_start)
    }

    /// How long ago `earlier` was; zero if it is yet to come.
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
