//! The tally of stripes with bad blocks, and its progress.

use std::sync::{Mutex, MutexGuard, PoisonError};
use weft_control::{
    crowding::Crowded,
    health::{Copied, Survey, Tally},
};

/// The state that one task maintains and that answers are computed from.
#[derive(Debug, Default)]
pub(crate) struct Health(Mutex<State>);

#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) survey: Survey,
    pub(crate) tally: Tally,
    /// Stripes without bad blocks that have too many in a rack.
    pub(crate) crowded: Crowded,
    /// Stripes whose data have copies.
    pub(crate) copied: Copied,
}

impl State {
    /// The stripes that can be read, but survive no further loss. `None`: they are still being counted.
    pub(crate) fn at_risk(&self) -> Option<u64> {
        (!self.survey.is_counting()).then(|| self.tally.at_risk())
    }
}

impl Health {
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        // A poisoned lock is safe to use: each change is one call.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
