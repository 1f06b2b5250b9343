//! The wall clock of the simulation.

use std::time::{Duration, SystemTime};
use weft_types::Clock;

/// Shows the simulation's time: all hosts agree, and each run begins at the same moment.
#[derive(Debug, Clone, Copy, Default)]
pub struct SimClock;

impl SimClock {
    /// When every simulation begins.
    pub const START_MS: u64 = 1_700_000_000_000;

    /// The same, as the simulation wants it.
    pub fn start() -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_millis(Self::START_MS)
    }
}

impl Clock for SimClock {
    fn now_ms(&self) -> u64 {
        turmoil::since_epoch().map_or(Self::START_MS, |since| since.as_millis() as u64)
    }
}
