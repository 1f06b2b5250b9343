//! Deletes unexpected blocks from the quarantine of a node's disks: when they reach their age, when a disk is short of space, or when an
//! operator releases them. Damaged blocks stay until an operator deletes them by hand.

use super::{Disk, Disks};
use crate::{
    Limits,
    removal::{Bounds, Counted, bytes_on_disk},
};
use weft_proto::v1;
use weft_store::{BlockStore, QuarantinePlace};
use weft_types::{Error, Reaction, Result};

/// The result of a release, and what is left.
#[derive(Default)]
pub(crate) struct Released {
    pub(crate) freed_blocks: u64,
    pub(crate) freed_bytes: u64,
    /// What is left on each usable disk.
    pub(crate) disks: Vec<v1::QuarantinedDisk>,
    /// Why blocks could not be deleted.
    pub(crate) kept: Vec<Error>,
}

impl Disks {
    /// Deletes blocks whose time in quarantine is over, within the daily limit.
    pub(crate) fn clear_quarantine(&self, bounds: &Bounds<'_>) {
        let before_ms = bounds.now_ms.saturating_sub(bounds.limits.quarantine_ms);
        for disk in self.0.iter().filter(|disk| disk.require_answers().is_ok()) {
            disk.log_of_clearing(disk.delete_oldest(Counted::Unexpected, bounds, |_, since_ms| Ok(since_ms < before_ms)));
        }
    }

    /// Deletes the oldest quarantined blocks of disks that are short of space, within the hourly limit.
    pub(crate) fn relieve(&self, bounds: &Bounds<'_>) {
        for disk in self.0.iter().filter(|disk| disk.require_answers().is_ok()) {
            let Ok(store) = disk.store() else { continue };
            if store.quarantined().blocks > 0 && is_short(store.as_ref(), bounds.limits).unwrap_or(false) {
                let is_short = |store: &dyn BlockStore, _| is_short(store, bounds.limits);
                disk.log_of_clearing(disk.delete_oldest(Counted::Freed, bounds, is_short));
            }
        }
    }

    /// Deletes at most `blocks_max` quarantined blocks, the oldest of each disk first. An operator requested it, so no quota applies.
    pub(crate) fn release_quarantine(&self, blocks_max: usize, limits: &Limits) -> Released {
        let mut released = Released::default();
        for disk in &self.0 {
            let Ok(store) = disk.store() else { continue };
            if let Err(error) = disk.require_answers() {
                released.kept.push(error);
                continue;
            }
            match disk.release(store.as_ref(), blocks_max, limits, &mut released) {
                Ok(left) => released.disks.push(left),
                Err(error) => released.kept.push(disk.named(error)),
            }
        }
        released
    }
}

impl Disk {
    /// Deletes unexpected blocks, the oldest first, while `goes` returns true for the time of the next block.
    fn delete_oldest(
        &self,
        counted: Counted,
        bounds: &Bounds<'_>,
        goes: impl Fn(&dyn BlockStore, u64) -> Result<bool>,
    ) -> Result<()> {
        let Ok(store) = self.store() else { return Ok(()) };
        for QuarantinePlace { name, since_ms, bytes } in store.quarantine_places()? {
            let Some(since_ms) = since_ms else { break };
            if !goes(store.as_ref(), since_ms)? {
                break;
            }
            let amount = if counted == Counted::Freed { bytes_on_disk(bytes) } else { 1 };
            self.take_away(counted, amount, bounds, |store| store.delete_quarantined(&name).map(Some))?;
            tracing::info!(disk = %self.path.display(), place = name, "deleted from the quarantine");
        }
        Ok(())
    }

    fn release(
        &self,
        store: &dyn BlockStore,
        blocks_max: usize,
        limits: &Limits,
        released: &mut Released,
    ) -> Result<v1::QuarantinedDisk> {
        let mut left = v1::QuarantinedDisk { disk: self.id().to_owned(), ..v1::QuarantinedDisk::default() };
        for QuarantinePlace { name, since_ms, bytes } in store.quarantine_places()? {
            let Some(since_ms) = since_ms else {
                (left.damaged_blocks, left.damaged_bytes) = (left.damaged_blocks + 1, left.damaged_bytes.saturating_add(bytes));
                continue;
            };
            if released.freed_blocks < blocks_max as u64 {
                store.delete_quarantined(&name)?;
                tracing::info!(disk = %self.path.display(), place = name, "deleted from the quarantine by request");
                released.freed_blocks += 1;
                released.freed_bytes = released.freed_bytes.saturating_add(bytes);
                continue;
            }
            let deleted_ms = since_ms.saturating_add(limits.quarantine_ms);
            left.first_deleted_ms = if left.blocks == 0 { deleted_ms } else { left.first_deleted_ms };
            left.last_deleted_ms = deleted_ms;
            (left.blocks, left.bytes) = (left.blocks + 1, left.bytes.saturating_add(bytes));
        }
        Ok(left)
    }

    /// A quota that is used up is normal: clearing continues in the next period.
    fn log_of_clearing(&self, cleared: Result<()>) {
        match cleared.map_err(|error| self.named(error)) {
            Ok(()) => {}
            Err(error) if error.reaction == Reaction::Unavailable => tracing::debug!(%error, "the quarantine is cleared later"),
            Err(error) => tracing::warn!(%error, "the quarantine could not be cleared"),
        }
    }
}

/// Whether a disk has less free space than `quarantine_free_percent`.
fn is_short(store: &dyn BlockStore, limits: &Limits) -> Result<bool> {
    let capacity = store.capacity()?;
    let wanted = capacity.total_bytes.saturating_mul(limits.quarantine_free_percent.into()) / 100;
    Ok(capacity.free_bytes < wanted)
}
