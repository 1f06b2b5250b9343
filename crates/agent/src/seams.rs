//! An agent's dependencies on the outside: network, clock, random numbers, disks, and the converter. A simulation
//! replaces them.

use crate::Throttle;
use std::{
    path::Path,
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};
use weft_proto::{Converter, DiskMode, Net, TcpNet};
use weft_store::{BlockStore, Journal, LocalStore, NewDisk, NewJournal, RealFiles, SlowFiles};
use weft_types::{Clock, ClusterId, Result, Seed, SystemClock};

/// An agent's dependencies on the outside.
#[derive(Clone)]
pub struct Seams {
    /// The network.
    pub net: Arc<dyn Net>,
    /// The wall clock; timers use `tokio::time`.
    pub clock: Arc<dyn Clock>,
    /// The seed of all random numbers.
    pub seed: Seed,
    /// On which threads disk calls run.
    pub disk_mode: DiskMode,
    /// Opens a directory as a disk.
    pub disks: Arc<dyn OpenDisk>,
    /// Converts stripes. It reads and writes as a client does; the agent crate does not depend on the client.
    pub converter: Arc<dyn Converter>,
}

impl Seams {
    /// The machine's own network, clock and disks.
    pub fn real(seed: Seed, converter: Arc<dyn Converter>) -> Self {
        Self {
            net: Arc::new(TcpNet::default()),
            clock: Arc::new(SystemClock),
            seed,
            disk_mode: DiskMode::Pool,
            disks: Arc::new(LocalDisks),
            converter,
        }
    }
}

impl Seams {
    /// With the delay of syncs that a throttle asks for.
    #[must_use]
    pub fn throttled(self, throttle: &Throttle) -> Self {
        match throttle.sync_us {
            Some(us) => Self { disks: Arc::new(SlowDisks { sync: Duration::from_micros(us.into()) }), ..self },
            None => self,
        }
    }
}

/// Opens a directory as a disk.
pub trait OpenDisk: Send + Sync {
    /// Opens the disk in `dir`. If there is none, creates one with the identity `new`; without `new`, fails and writes
    /// nothing.
    fn open(&self, dir: &Path, cluster: ClusterId, new: Option<NewDisk>) -> Result<OpenedDisk>;

    /// Likewise; `progress` grows with what has been read, if the implementation counts it.
    fn open_counting(&self, dir: &Path, cluster: ClusterId, new: Option<NewDisk>, _progress: &AtomicU64) -> Result<OpenedDisk> {
        self.open(dir, cluster, new)
    }
}

/// An open disk.
pub struct OpenedDisk {
    /// The id drawn when the disk was created.
    pub id: u128,
    /// The disk's blocks.
    pub store: Arc<dyn BlockStore>,
    /// Its journal of updates in place.
    pub journal: Arc<dyn KeepJournal>,
}

/// The journal of a disk, which exists from the first update in place on. All calls block.
pub trait KeepJournal: Send + Sync {
    /// Whether the disk has a journal. Fails if the disk does not say so.
    fn exists(&self) -> Result<bool>;

    /// Opens the journal, or creates it. Fails with [`Reaction::Corrupt`](weft_types::Reaction) if it is damaged.
    fn open(&self, new: NewJournal) -> Result<Arc<dyn Journal>>;

    /// Makes room for a new journal, and keeps the old one for an operator.
    fn set_aside(&self) -> Result<()>;
}

impl KeepJournal for LocalStore {
    fn exists(&self) -> Result<bool> {
        self.has_journal()
    }

    fn open(&self, new: NewJournal) -> Result<Arc<dyn Journal>> {
        Ok(Arc::new(self.open_journal(new)?))
    }

    fn set_aside(&self) -> Result<()> {
        self.set_journal_aside()
    }
}

/// Disks are local directories.
#[derive(Debug, Clone, Copy, Default)]
pub struct LocalDisks;

impl OpenDisk for LocalDisks {
    fn open(&self, dir: &Path, cluster: ClusterId, new: Option<NewDisk>) -> Result<OpenedDisk> {
        self.open_counting(dir, cluster, new, &AtomicU64::new(0))
    }

    fn open_counting(&self, dir: &Path, cluster: ClusterId, new: Option<NewDisk>, progress: &AtomicU64) -> Result<OpenedDisk> {
        let store = Arc::new(LocalStore::open_counting(dir, cluster, new, progress)?);
        Ok(OpenedDisk { id: store.disk_id(), journal: Arc::clone(&store) as _, store })
    }
}

/// Disks are local directories whose syncs take longer.
#[derive(Debug, Clone, Copy)]
struct SlowDisks {
    sync: Duration,
}

impl OpenDisk for SlowDisks {
    fn open(&self, dir: &Path, cluster: ClusterId, new: Option<NewDisk>) -> Result<OpenedDisk> {
        self.open_counting(dir, cluster, new, &AtomicU64::new(0))
    }

    fn open_counting(&self, dir: &Path, cluster: ClusterId, new: Option<NewDisk>, progress: &AtomicU64) -> Result<OpenedDisk> {
        let files = Arc::new(SlowFiles::new(RealFiles, self.sync));
        let store = Arc::new(LocalStore::open_counting_on(files, dir, cluster, new, progress)?);
        Ok(OpenedDisk { id: store.disk_id(), journal: Arc::clone(&store) as _, store })
    }
}
