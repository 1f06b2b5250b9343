//! What the rebuilds of one job share.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use weft_control::{helpers::LastUsed, rebuild::BlocksGiven};

/// What the rebuilds of a job share: which nodes have helped, and how many blocks each has been given.
#[derive(Debug, Default)]
pub(crate) struct Shares {
    /// Across jobs.
    pub(super) used: Arc<Mutex<LastUsed>>,
    pub(super) given: Mutex<BlocksGiven>,
}

impl Shares {
    /// Of a job that selects helpers together with all that have `used`.
    pub(crate) fn new(used: Arc<Mutex<LastUsed>>) -> Self {
        Self { used, given: Mutex::default() }
    }

    /// Starts from what is known, and remembers by itself: explaining a repair must change nothing.
    pub(crate) fn fork(&self) -> Self {
        let (used, given) = (lock(&self.used).clone(), lock(&self.given).clone());
        Self { used: Arc::new(Mutex::new(used)), given: Mutex::new(given) }
    }
}

/// Every change to it is one call: a panic elsewhere leaves it whole.
pub(super) fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}
