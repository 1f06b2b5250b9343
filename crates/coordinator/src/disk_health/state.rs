//! What is known of slow and failing disks. In memory: the next coordinator measures again.

use std::sync::{Mutex, MutexGuard, PoisonError};
use weft_control::{
    Time,
    disk_health::{self, Ailment},
};
use weft_types::{BlockId, DiskNumber};

/// The health of all disks.
#[derive(Debug, Default)]
pub(crate) struct DiskHealth(Mutex<disk_health::DiskHealth>);

impl DiskHealth {
    /// A block of a disk was found to be corrupt or unreadable.
    pub(crate) fn note_bad(&self, disk: DiskNumber, block: BlockId, now: Time) {
        self.lock().note_bad(disk, block, now);
    }

    /// What is wrong with a disk, if anything.
    pub(crate) fn of(&self, disk: DiskNumber) -> Option<Ailment> {
        self.lock().of(disk).cloned()
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, disk_health::DiskHealth> {
        // A poisoned lock is safe to use: each change is one call.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
