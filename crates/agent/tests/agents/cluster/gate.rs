//! A disk whose reads stop at a given byte until a test lets them go on. So a test can act in the middle of a task.

use std::{
    path::Path,
    sync::{Arc, Condvar, Mutex},
    time::Duration,
};
use weft_agent::{LocalDisks, OpenDisk, OpenedDisk};
use weft_store::{CallKind, FaultStore, NewDisk};
use weft_types::{ClusterId, Result};

/// Reads from byte `stops_at` of any block wait until the gate is opened.
pub(crate) struct Gate {
    stops_at: u64,
    open: Mutex<bool>,
    changed: Condvar,
}

impl Gate {
    pub(crate) fn at(stops_at: u64) -> Arc<Self> {
        Arc::new(Self { stops_at, open: Mutex::new(false), changed: Condvar::new() })
    }

    pub(crate) fn open(&self) {
        *self.open.lock().unwrap() = true;
        self.changed.notify_all();
    }

    fn pass(&self) {
        let closed = self.open.lock().unwrap();
        // Bounded, so that a test that fails before it opens the gate still ends.
        drop(self.changed.wait_timeout_while(closed, Duration::from_secs(20), |open| !*open).unwrap());
    }
}

/// The disks of an agent, behind a gate.
pub(crate) struct GatedDisks(pub(crate) Arc<Gate>);

impl OpenDisk for GatedDisks {
    fn open(&self, dir: &Path, cluster: ClusterId, new: Option<NewDisk>) -> Result<OpenedDisk> {
        let OpenedDisk { id, store, journal } = LocalDisks.open(dir, cluster, new)?;
        let gate = Arc::clone(&self.0);
        let gated = FaultStore::new(store, move |call| {
            if call.kind == CallKind::Read && call.bytes.end > gate.stops_at {
                gate.pass();
            }
            None
        });
        Ok(OpenedDisk { id, store: Arc::new(gated), journal })
    }
}
