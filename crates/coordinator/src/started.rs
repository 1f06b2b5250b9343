//! The coordinator's clock: converts the runtime's time to the time of decisions.

use std::time::Duration;
use tokio::time::Instant;
use weft_control::Time;

/// The start of the coordinator, from which decisions count time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Started(Instant);

impl Started {
    /// Starts now.
    pub(crate) fn now_is_the_start() -> Self {
        Self(Instant::now())
    }

    /// The time since then.
    pub(crate) fn elapsed(self) -> Duration {
        self.0.elapsed()
    }

    /// The moment of a decision on the runtime's clock.
    pub(crate) fn instant(self, at: Time) -> Instant {
        self.0 + at.since(Time::default())
    }

    /// The current time, as decisions count it.
    pub(crate) fn now(self) -> Time {
        Time::after(self.elapsed())
    }
}
