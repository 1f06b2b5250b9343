//! The coordinator's time, carried on by this machine's monotonic clock.

use std::sync::{Arc, Mutex, PoisonError};
use tokio::time::Instant;
use weft_types::Clock;

/// Milliseconds since 1970, as the coordinator last told. From then on, it never falls.
pub(crate) struct Time {
    /// Until the coordinator has told its time.
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    told: Option<(u64, Instant)>,
    /// The highest of the coordinator's times that was given out.
    last_ms: u64,
}

impl Time {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, state: Mutex::default() }
    }

    /// The coordinator's time is this; 0: it did not tell it.
    pub(crate) fn told(&self, now_ms: u64) {
        if now_ms > 0 {
            self.state.lock().unwrap_or_else(PoisonError::into_inner).told = Some((now_ms, Instant::now()));
        }
    }

    /// The highest of a coordinator's times that was given out; 0: none.
    pub(crate) fn highest_ms(&self) -> u64 {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).last_ms
    }

    pub(crate) fn now_ms(&self) -> u64 {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        // This machine's clock may be ahead: what it says must not hold up the coordinator's time.
        let Some((told_ms, at)) = state.told else { return self.clock.now_ms() };
        let now_ms = told_ms.saturating_add(u64::try_from(at.elapsed().as_millis()).unwrap_or(u64::MAX));
        state.last_ms = state.last_ms.max(now_ms);
        state.last_ms
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio::time::advance;

    struct Fixed;

    impl Clock for Fixed {
        fn now_ms(&self) -> u64 {
            5000
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_time_is_the_coordinators_and_never_falls() {
        let time = Time::new(Arc::new(Fixed));
        time.told(0);
        assert_eq!((time.now_ms(), time.highest_ms()), (5000, 0));
        time.told(1000);
        advance(Duration::from_millis(7)).await;
        assert_eq!(time.now_ms(), 1007, "a clock that is ahead counts");
        time.told(900);
        advance(Duration::from_millis(50)).await;
        assert_eq!((time.now_ms(), time.highest_ms()), (1007, 1007), "it fell");
        advance(Duration::from_millis(100)).await;
        assert_eq!(time.now_ms(), 1050);
    }
}
