//! What the rebuilds of one job share.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use weft_control::{helpers::LastUsed, rebuild::BlocksGiven};

/// What the rebuilds of a job share: when each node helped, and how many blocks each has been given.
#[derive(Debug, Default)]
pub(crate) struct Shares {
    /// Shared by all jobs.
    pub(super) used: Arc<Mutex<LastUsed>>,
    pub(super) given: Mutex<BlocksGiven>,
}

impl Shares {
    /// For a job that selects helpers together with all jobs that share `used`.
    pub(crate) fn new(used: Arc<Mutex<LastUsed>>) -> Self {
        Self { used, given: Mutex::default() }
    }

    /// Forgets how many blocks each node has been given: a node that is new gets its share of those that follow, and not all of them.
    pub(crate) fn begin_again(&self) {
        lock(&self.given).clear();
    }

    /// An independent copy: explaining a repair must change nothing.
    pub(crate) fn fork(&self) -> Self {
        let (used, given) = (lock(&self.used).clone(), lock(&self.given).clone());
        Self { used: Arc::new(Mutex::new(used)), given: Mutex::new(given) }
    }
}

/// A poisoned lock is safe to use: each change is one call.
pub(super) fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}
