//! How long a connection may move nothing. The limit on repair lengthens this time, and may change while a link waits.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

/// How much longer links of classes below foreground may be silent than without a limit on repair. All clones are one value.
#[derive(Debug, Clone, Default)]
pub struct ExtraStall(Arc<AtomicU32>);

impl ExtraStall {
    /// Changes it, for links that wait, too.
    pub fn set_ms(&self, extra_ms: u32) {
        self.0.store(extra_ms, Relaxed);
    }

    fn get(&self) -> Duration {
        Duration::from_millis(self.0.load(Relaxed).into())
    }
}

/// How long a connection may move nothing before it has failed.
#[derive(Debug, Clone)]
pub struct Stall {
    usual: Duration,
    /// What came with the plan: the connection never waits for less.
    least_extra: Duration,
    extra: ExtraStall,
}

impl Stall {
    /// Of a task whose links may be silent for `stall_ms`, of which `extra_stall_ms` are due to the limit on repair. `extra` tells how much
    /// that is now.
    pub fn of_task(stall_ms: u32, extra_stall_ms: u32, extra: ExtraStall) -> Self {
        let ms = |ms: u32| Duration::from_millis(ms.into());
        Self { usual: ms(stall_ms.saturating_sub(extra_stall_ms)), least_extra: ms(extra_stall_ms.min(stall_ms)), extra }
    }

    /// The time as of now.
    pub fn now(&self) -> Duration {
        self.usual + self.least_extra.max(self.extra.get())
    }

    /// Shorter by half of what it is without a limit.
    #[must_use]
    pub fn shortened(&self) -> Self {
        Self { usual: self.usual / 2, ..self.clone() }
    }
}

impl From<Duration> for Stall {
    fn from(usual: Duration) -> Self {
        Self { usual, least_extra: Duration::ZERO, extra: ExtraStall::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_keeps_its_time_and_gets_more_when_the_limit_is_lowered() {
        let extra = ExtraStall::default();
        let (stall, s) = (Stall::of_task(12_000, 2_000, extra.clone()), Duration::from_secs);
        assert_eq!((stall.now(), stall.shortened().now()), (s(12), s(7)));
        extra.set_ms(60_000);
        assert_eq!((stall.now(), stall.shortened().now()), (s(70), s(65)));
        extra.set_ms(0);
        assert_eq!(stall.now(), s(12), "a higher limit shortens nothing that runs");
        assert_eq!(Stall::of_task(1_000, u32::MAX, extra).now(), s(1));
        assert_eq!(Stall::from(s(3)).now(), s(3));
    }
}
