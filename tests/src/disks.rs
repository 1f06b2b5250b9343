//! The disks of the simulation: real directories, of a size that does not change from machine to machine.

use crate::Trace;
use std::{path::Path, sync::Arc};
use weft_agent::{OpenDisk, OpenedDisk};
use weft_store::{BlockReader, BlockStore, BlockWriter, Capacity, LocalStore, NewDisk, Quarantined};
use weft_types::{BlockId, BlockMeta, ClusterId, Result};

/// Opens directories as disks of one size, and notes what is done to them.
#[derive(Clone)]
pub struct SimDisks {
    /// Whose disks they are.
    pub host: String,
    /// Where it is noted.
    pub trace: Trace,
}

const DISK: Capacity = Capacity { total_bytes: 1 << 40, free_bytes: 1 << 39 };

impl OpenDisk for SimDisks {
    fn open(&self, dir: &Path, cluster: ClusterId, new: Option<NewDisk>) -> Result<OpenedDisk> {
        let store = match new {
            Some(new) => LocalStore::open(dir, cluster, new)?,
            None => LocalStore::open_existing(dir, cluster)?,
        };
        Ok(OpenedDisk { id: store.disk_id(), store: Arc::new(SimDisk { store, disks: self.clone() }) })
    }
}

struct SimDisk {
    store: LocalStore,
    disks: SimDisks,
}

impl SimDisk {
    fn note<T>(&self, what: &str, id: BlockId, result: &Result<T>) {
        match result {
            Ok(_) => self.disks.trace.event(&self.disks.host, format_args!("{what} {id}")),
            Err(error) => self.disks.trace.event(&self.disks.host, format_args!("{what} {id}: {error}")),
        }
    }
}

impl BlockStore for SimDisk {
    fn create(&self, meta: &BlockMeta) -> Result<Box<dyn BlockWriter>> {
        let created = self.store.create(meta);
        self.note("creates", meta.id, &created);
        created
    }

    fn open(&self, id: BlockId) -> Result<Arc<dyn BlockReader>> {
        let opened = self.store.open(id);
        self.note("opens", id, &opened);
        opened
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

    fn quarantined_before(&self, before_ms: u64) -> Result<Vec<String>> {
        self.store.quarantined_before(before_ms)
    }

    fn delete_quarantined(&self, place: &str) -> Result<()> {
        self.store.delete_quarantined(place)
    }

    fn capacity(&self) -> Result<Capacity> {
        Ok(DISK)
    }

    fn failed(&self) -> Option<String> {
        self.store.failed()
    }
}
