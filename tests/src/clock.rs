//! The wall clocks of the simulation.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::{Duration, SystemTime},
};
use weft_types::Clock;

/// A host's clock. It shows the simulation's time, which begins at the same moment in each run, unless it is set. Clones are the same clock.
#[derive(Debug, Clone, Default)]
pub struct SimClock {
    ahead_ms: Arc<AtomicI64>,
}

impl SimClock {
    /// When every simulation begins.
    pub const START_MS: u64 = 1_700_000_000_000;

    /// The same, as the simulation wants it.
    pub fn start() -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_millis(Self::START_MS)
    }

    /// Sets it ahead of the simulation's time, or behind it if negative.
    pub(crate) fn set(&self, ahead_ms: i64) {
        self.ahead_ms.store(ahead_ms, Ordering::Relaxed);
    }
}

impl Clock for SimClock {
    fn now_ms(&self) -> u64 {
        let now_ms = turmoil::since_epoch().map_or(Self::START_MS, |since| since.as_millis() as u64);
        now_ms.saturating_add_signed(self.ahead_ms.load(Ordering::Relaxed))
    }
}
