//! What an agent takes from outside: the network, the clock, randomness, the disks, and what converts stripes. A simulation gives others.

use std::{path::Path, sync::Arc};
use weft_proto::{Converter, DiskMode, Net, TcpNet};
use weft_store::{BlockStore, LocalStore, NewDisk};
use weft_types::{Clock, ClusterId, Result, SystemClock};

/// What an agent takes from outside.
#[derive(Clone)]
pub struct Seams {
    /// The network.
    pub net: Arc<dyn Net>,
    /// The wall clock; waiting is by `tokio::time`.
    pub clock: Arc<dyn Clock>,
    /// All that is drawn at random comes from it.
    pub seed: u64,
    /// Where calls to the disks block.
    pub disk_mode: DiskMode,
    /// How a directory becomes a disk.
    pub disks: Arc<dyn OpenDisk>,
    /// What converts stripes: it reads and writes as a client does, and agents know no client.
    pub converter: Arc<dyn Converter>,
}

impl Seams {
    /// The machine's own network, clock and disks.
    pub fn real(seed: u64, converter: Arc<dyn Converter>) -> Self {
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

/// How a directory becomes a disk.
pub trait OpenDisk: Send + Sync {
    /// Opens the disk in `dir`; where there is none, makes one with the identity `new`, or fails and writes nothing without it.
    fn open(&self, dir: &Path, cluster: ClusterId, new: Option<NewDisk>) -> Result<OpenedDisk>;
}

/// A disk that is open.
pub struct OpenedDisk {
    /// Drawn when it was made.
    pub id: u128,
    /// What is on it.
    pub store: Arc<dyn BlockStore>,
}

/// Disks are local directories.
#[derive(Debug, Clone, Copy, Default)]
pub struct LocalDisks;

impl OpenDisk for LocalDisks {
    fn open(&self, dir: &Path, cluster: ClusterId, new: Option<NewDisk>) -> Result<OpenedDisk> {
        let store = match new {
            Some(new) => LocalStore::open(dir, cluster, new)?,
            None => LocalStore::open_existing(dir, cluster)?,
        };
        Ok(OpenedDisk { id: store.disk_id(), store: Arc::new(store) })
    }
}
