//! The simulation's disks: real directories with a fixed size on every machine.

use crate::{Illness, Sickness, Trace, sickness::SickSteps};
use std::{path::Path, sync::Arc};
use weft_agent::{OpenDisk, OpenedDisk};
use weft_store::{
    BlockReader, BlockStore, BlockWriter, Capacity, FaultStore, LocalStore, NewDisk, Patch, QuarantinePlace, Quarantined, Receipt,
};
use weft_types::{BlockId, BlockMeta, Cause, ClusterId, Error, Result};

/// Opens directories as disks of one size, and records what is done to them.
#[derive(Clone)]
pub struct SimDisks {
    /// The host of the disks.
    pub host: String,
    /// Their faults.
    pub sickness: Sickness,
    /// The trace for records.
    pub trace: Trace,
}

const DISK: Capacity = Capacity { total_bytes: 1 << 40, free_bytes: 1 << 39, file_system: 0 };

impl OpenDisk for SimDisks {
    fn open(&self, dir: &Path, cluster: ClusterId, new: Option<NewDisk>) -> Result<OpenedDisk> {
        let (host, sickness) = (self.host.clone(), self.sickness.clone());
        let steps = Arc::new(SickSteps { host: host.clone(), sickness: sickness.clone() });
        let local = Arc::new(LocalStore::open_with_steps(dir, cluster, new, steps)?);
        let store = FaultStore::new(Arc::clone(&local) as Arc<dyn BlockStore>, move |call| sickness.fault(&host, call));
        let (id, journal) = (local.disk_id(), Arc::clone(&local) as _);
        Ok(OpenedDisk { id, journal, store: Arc::new(SimDisk { store, local, disks: self.clone() }) })
    }
}

struct SimDisk {
    /// Dropped before `local`.
    store: FaultStore,
    local: Arc<LocalStore>,
    disks: SimDisks,
}

impl SimDisk {
    fn is_full(&self) -> bool {
        self.disks.sickness.is_ill(&self.disks.host, Illness::Full)
    }

    fn note<T>(&self, what: &str, id: BlockId, result: &Result<T>) {
        match result {
            Ok(_) => self.disks.trace.event(&self.disks.host, format_args!("{what} {id}")),
            Err(error) => self.disks.trace.event(&self.disks.host, format_args!("{what} {id}: {error}")),
        }
    }
}

impl BlockStore for SimDisk {
    fn create(&self, meta: &BlockMeta) -> Result<Box<dyn BlockWriter>> {
        let created = match self.is_full() {
            true => Err(Error::unavailable("the disk is full: injected").cause(Cause::NoSpace)),
            false => self.store.create(meta),
        };
        self.disks.sickness.moved(&self.disks.host, true);
        self.note("creates", meta.id, &created);
        created
    }

    fn open(&self, id: BlockId) -> Result<Arc<dyn BlockReader>> {
        self.disks.sickness.rot(&self.disks.host, self.local.dir(), id, &self.local.payload_path(id));
        let opened = self.store.open(id);
        self.disks.sickness.moved(&self.disks.host, false);
        self.note("opens", id, &opened);
        opened
    }

    fn patch(&self, patch: &Patch<'_>) -> Result<Receipt> {
        let patched = self.store.patch(patch);
        self.disks.sickness.moved(&self.disks.host, true);
        self.note("patches", patch.id, &patched);
        patched
    }

    fn remove(&self, id: BlockId) -> Result<bool> {
        let removed = self.store.remove(id);
        self.note("removes", id, &removed);
        removed
    }

    fn list_after(&self, after: Option<BlockId>, blocks_max: usize) -> Result<Vec<BlockId>> {
        self.store.list_after(after, blocks_max)
    }

    fn quarantine(&self, id: BlockId, reason: &str, since_ms: Option<u64>) -> Result<()> {
        let quarantined = self.store.quarantine(id, reason, since_ms);
        self.note("quarantines", id, &quarantined);
        quarantined
    }

    fn quarantined(&self) -> Quarantined {
        self.store.quarantined()
    }

    fn quarantine_places(&self) -> Result<Vec<QuarantinePlace>> {
        self.store.quarantine_places()
    }

    fn delete_quarantined(&self, place: &str) -> Result<()> {
        self.store.delete_quarantined(place)
    }

    fn capacity(&self) -> Result<Capacity> {
        Ok(if self.is_full() { Capacity { free_bytes: 0, ..DISK } } else { DISK })
    }

    fn failed(&self) -> Option<String> {
        self.store.failed()
    }
}
