//! A directory as a disk.
//!
//! ```text
//!   DIR/disk                          the disk's label (see `label`)
//!   DIR/lock                          held by the process that uses the disk
//!   DIR/blocks/003/s199-b003-c0-g1        payload; the block exists once this name exists
//!   DIR/blocks/003/s199-b003-c0-g1.meta   sidecar
//!   DIR/tmp/                          blocks being written; emptied at start
//!   DIR/quarantine/NAME/{payload,sidecar,reason,since-ms}
//! ```
//!
//! Assumptions about the file system: `rename` within it is atomic. What an `fsync` of a file or directory has
//! confirmed survives a loss of power. A failed `fsync` may have lost anything written since the last one; so it is not
//! repeated, and the disk is failed.

pub(crate) mod device;
mod disk;
mod label;
mod patch;
mod quarantine;
mod reader;
mod recover;
mod shared;
mod steps;
mod write_back;
mod writer;

pub use label::NewDisk;
pub use recover::Recovered;
pub use steps::{NoSteps, Step, Steps};

use crate::block_store::{
    BlockReader, BlockStore, BlockWriter, Capacity, DeviceErrors, InPlaceCounts, Patch, QuarantinePlace, Quarantined, Receipt,
};
use crate::files::{Files, Open, RealFiles};
use crate::journal::{InUse, NewJournal, RingJournal};
use crate::sidecar::{SIDECAR_BYTES_MAX, check_meta};
use disk::Disk;
use reader::LocalReader;
use std::path::{Path, PathBuf};
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};
use weft_types::{BlockId, BlockMeta, ClusterId, Error, Result, Span};
use writer::LocalWriter;

/// One disk: a directory with a payload file and a sidecar for each block.
#[derive(Debug)]
pub struct LocalStore {
    disk: Arc<Disk>,
    recovered: Recovered,
}

impl LocalStore {
    /// Opens a disk and recovers it. An empty or missing directory first becomes a disk of `cluster` with the identity
    /// `new`.
    ///
    /// Fails with [`Reaction::InvalidInput`](weft_types::Reaction) if the disk belongs to another cluster, if another
    /// process uses it, or if the directory holds other files.
    pub fn open(dir: &Path, cluster: ClusterId, new: NewDisk) -> Result<Self> {
        Self::open_with_steps(dir, cluster, new, Arc::new(NoSteps))
    }

    /// Opens an existing disk. If there is none, fails with [`Reaction::Fatal`](weft_types::Reaction) and writes
    /// nothing: the directory may be the mount point of a disk that is not mounted.
    pub fn open_existing(dir: &Path, cluster: ClusterId) -> Result<Self> {
        Self::open_as(Arc::new(RealFiles), dir, cluster, None, Arc::new(NoSteps))
    }

    /// Like [`open`](Self::open), or without `new` like [`open_existing`](Self::open_existing), with a hook before each
    /// step that changes the disk: for tests.
    pub fn open_with_steps(
        dir: &Path,
        cluster: ClusterId,
        new: impl Into<Option<NewDisk>>,
        steps: Arc<dyn Steps>,
    ) -> Result<Self> {
        Self::open_as(Arc::new(RealFiles), dir, cluster, new.into(), steps)
    }

    /// Like [`open`](Self::open), or without `new` like [`open_existing`](Self::open_existing). `checked` grows with the blocks that have been
    /// checked, so that another thread sees a disk that hangs.
    pub fn open_counting(dir: &Path, cluster: ClusterId, new: Option<NewDisk>, checked: &AtomicU64) -> Result<Self> {
        Self::open_counting_on(Arc::new(RealFiles), dir, cluster, new, checked)
    }

    /// Like [`open`](Self::open), or without `new` like [`open_existing`](Self::open_existing), on any file system.
    pub fn open_on(files: Arc<dyn Files>, dir: &Path, cluster: ClusterId, new: impl Into<Option<NewDisk>>) -> Result<Self> {
        Self::open_as(files, dir, cluster, new.into(), Arc::new(NoSteps))
    }

    /// Like [`open_counting`](Self::open_counting), on any file system.
    pub fn open_counting_on(
        files: Arc<dyn Files>,
        dir: &Path,
        cluster: ClusterId,
        new: Option<NewDisk>,
        checked: &AtomicU64,
    ) -> Result<Self> {
        Self::open_disk(Disk::open(files, dir, cluster, new, Arc::new(NoSteps))?, checked)
    }

    fn open_as(
        files: Arc<dyn Files>,
        dir: &Path,
        cluster: ClusterId,
        new: Option<NewDisk>,
        steps: Arc<dyn Steps>,
    ) -> Result<Self> {
        Self::open_disk(Disk::open(files, dir, cluster, new, steps)?, &AtomicU64::new(0))
    }

    fn open_disk(disk: Disk, checked: &AtomicU64) -> Result<Self> {
        let recovered = recover::recover(&disk, checked)?;
        Ok(Self { disk: Arc::new(disk), recovered })
    }

    /// Opens the disk's journal, or creates it. It can be open once at a time, and keeps the disk locked. From then on, older programs do not open the disk.
    ///
    /// Fails with [`Reaction::Corrupt`](weft_types::Reaction) if it is damaged. Then it is not known which updates it contained, so all
    /// blocks that take part in updates are lost. When this is recorded durably, [`set_journal_aside`](Self::set_journal_aside) makes
    /// room for a new one.
    pub fn open_journal(&self, new: NewJournal) -> Result<RingJournal> {
        self.disk.raise_version()?;
        RingJournal::open(Arc::clone(&self.disk) as _, &self.disk.device, &self.disk.journal_path(), new, self.disk.label.disk_id)
    }

    /// Whether the disk has a journal. Fails if the disk does not say so.
    pub fn has_journal(&self) -> Result<bool> {
        let path = self.disk.journal_path();
        path.try_exists().map_err(|error| device::cannot_open(&path, "cannot look for the journal", &error))
    }

    /// Renames the journal, if there is one, to `journal.damaged`, so that the next [`open_journal`](Self::open_journal) creates one. An
    /// older file of that name is replaced. The caller has durably recorded which blocks are lost.
    pub fn set_journal_aside(&self) -> Result<()> {
        let _in_use = InUse::claim(&self.disk.device)?;
        self.disk.set_journal_aside()
    }

    /// The disk's own id, drawn when the disk was created.
    pub fn disk_id(&self) -> u128 {
        self.disk.label.disk_id
    }

    /// The disk's directory.
    pub fn dir(&self) -> &Path {
        &self.disk.dir
    }

    /// What was found and repaired when the disk was opened.
    pub fn recovered(&self) -> &Recovered {
        &self.recovered
    }

    /// The path of a block's payload, whether or not the block exists.
    pub fn payload_path(&self, id: BlockId) -> PathBuf {
        self.disk.payload_path(id)
    }

    /// The path of a block's sidecar, whether or not the block exists.
    pub fn sidecar_path(&self, id: BlockId) -> PathBuf {
        self.disk.sidecar_path(id)
    }
}

impl BlockStore for LocalStore {
    fn create(&self, meta: &BlockMeta) -> Result<Box<dyn BlockWriter>> {
        check_meta(meta)?;
        if meta.cluster != self.disk.label.cluster {
            let what = format!("the block belongs to cluster {}, this disk to cluster {}", meta.cluster, self.disk.label.cluster);
            return Err(Error::invalid(what).block(meta.id));
        }
        Ok(Box::new(LocalWriter::create(&self.disk, meta).map_err(|error| error.block(meta.id))?))
    }

    fn open(&self, id: BlockId) -> Result<Arc<dyn BlockReader>> {
        Ok(Arc::new(LocalReader::open(&self.disk, id).map_err(|error| error.block(id))?))
    }

    fn forget_cached_sidecar(&self, id: BlockId) {
        // If it cannot be opened now, the block cannot be opened either.
        if let Ok(file) = self.disk.device.files.open(&self.disk.sidecar_path(id), Open::Read) {
            file.drop_cache(Span::new(0, SIDECAR_BYTES_MAX));
        }
    }

    fn patch(&self, patch: &Patch<'_>) -> Result<Receipt> {
        patch::patch(&self.disk, patch).map_err(|error| error.block(patch.id))
    }

    fn remove(&self, id: BlockId) -> Result<bool> {
        self.disk.remove(id).map_err(|error| error.block(id))
    }

    fn list_after(&self, after: Option<BlockId>, blocks_max: usize) -> Result<Vec<BlockId>> {
        recover::list_after(&self.disk, after, blocks_max)
    }

    fn quarantine(&self, id: BlockId, reason: &str, since_ms: Option<u64>) -> Result<()> {
        self.disk.quarantine(id, reason, since_ms).map_err(|error| error.block(id))
    }

    fn quarantined(&self) -> Quarantined {
        self.disk.quarantined()
    }

    fn quarantine_places(&self) -> Result<Vec<QuarantinePlace>> {
        self.disk.quarantine_places()
    }

    fn delete_quarantined(&self, place: &str) -> Result<()> {
        self.disk.delete_quarantined(place)
    }

    fn capacity(&self) -> Result<Capacity> {
        self.disk.capacity()
    }

    fn failed(&self) -> Option<String> {
        self.disk.device.failed()
    }

    fn fsyncs(&self) -> u64 {
        self.disk.device.fsyncs()
    }

    fn in_place(&self) -> InPlaceCounts {
        self.disk.device.in_place()
    }

    fn errors(&self) -> DeviceErrors {
        let device = &self.disk.device;
        DeviceErrors { reads: device.read_errors.load(Relaxed), writes: device.write_errors.load(Relaxed) }
    }
}
