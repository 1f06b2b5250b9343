//! How far the scrub in the background is, and which disks are in doubt.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};
use weft_control::{
    Time,
    findings::{Doubt, Verdict},
    scrub::Progress,
};
use weft_types::{BlockId, Home};

/// The state that one task maintains and that answers are computed from.
#[derive(Debug, Default)]
pub(crate) struct Scrub {
    progress: Mutex<Progress>,
    doubts: Mutex<BTreeMap<Home, Doubt>>,
}

impl Scrub {
    /// The progress of the scrub in the background.
    pub(crate) fn progress(&self) -> MutexGuard<'_, Progress> {
        // A poisoned lock is safe to use: each change is one call.
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Draws the combination of the parity checks: another one in each pass.
    pub(super) fn seed(&self) -> u64 {
        let progress = self.progress();
        let record = progress.record();
        if record.began_ms > 0 { record.began_ms } else { record.last.as_ref().map_or(0, |last| last.began_ms) }
    }

    /// See [`Doubt::is_in_doubt`].
    pub(super) fn is_in_doubt(&self, home: Home, verdicts: &[(BlockId, Verdict)], now: Time) -> bool {
        let mut doubts = self.doubts.lock().unwrap_or_else(PoisonError::into_inner);
        let is_in_doubt = doubts.entry(home).or_default().is_in_doubt(verdicts, now);
        if !is_in_doubt {
            doubts.remove(&home);
        }
        is_in_doubt
    }
}
