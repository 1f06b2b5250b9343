//! The coordinator's clock: it maps the runtime's time to the time that decisions count in.

use std::time::Duration;
use tokio::time::Instant;
use weft_control::Time;

/// When the coordinator started: decisions count time from then.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Started(Instant);

impl Started {
    /// It starts now.
    pub(crate) fn now_is_the_start() -> Self {
        Self(Instant::now())
    }

    /// How long ago that was.
    pub(crate) fn elapsed(self) -> Duration {
        self.0.elapsed()
    }

    /// The moment of a decision on the runtime's clock.
    pub(crate) fn instant(self, at: Time) -> Instant {
        self.0 + at.since(Time::default())
    }

    /// Now, as decisions count time.
    pub(crate) fn now(self) -> Time {
        Time::after(self.elapsed())
    }
}
