//! What blocks and journal of one disk share: its files, its counts, and whether it has failed.

use super::steps::{Step, Steps};
use crate::block_store::InPlaceCounts;
use crate::files::{FileHandle, Files};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
};
use weft_types::{Cause, Error, Result};

/// The device under a disk. Shared with readers, which outlive the disk.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) files: Arc<dyn Files>,
    steps: Arc<dyn Steps>,
    /// The disk's directory, for messages.
    dir: PathBuf,
    failed: Mutex<Option<String>>,
    /// The calls of fsync, fdatasync and syncfs, including failed ones. They are most of the cost of a small block.
    fsyncs: AtomicU64,
    pub(crate) read_errors: AtomicU64,
    pub(crate) write_errors: AtomicU64,
    pub(crate) journal_syncs: AtomicU64,
    pub(crate) journal_bytes: AtomicU64,
    pub(crate) patched_bytes: AtomicU64,
    pub(crate) is_journal_open: AtomicBool,
}

impl Device {
    pub(crate) fn new(files: Arc<dyn Files>, steps: Arc<dyn Steps>, dir: PathBuf) -> Self {
        let count = AtomicU64::default;
        Self {
            files,
            steps,
            dir,
            failed: Mutex::default(),
            fsyncs: count(),
            read_errors: count(),
            write_errors: count(),
            journal_syncs: count(),
            journal_bytes: count(),
            patched_bytes: count(),
            is_journal_open: AtomicBool::new(false),
        }
    }

    pub(crate) fn failed(&self) -> Option<String> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Refuses writes once the disk has failed.
    pub(crate) fn check_alive(&self) -> Result<()> {
        match self.failed() {
            Some(why) => Err(Error::fatal(format!("disk {} has failed and takes no more writes: {why}", self.dir.display()))),
            None => Ok(()),
        }
    }

    /// Makes one change to the disk and classifies its error. A full disk and a lack of file handles are temporary; any
    /// other error fails the disk.
    pub(crate) fn step<T>(&self, step: Step, change: impl FnOnce() -> io::Result<T>) -> Result<T> {
        self.check_alive()?;
        self.steps.before(step).and_then(|()| change()).map_err(|error| self.judge(step, &error))
    }

    pub(crate) fn sync_all(&self, file: &dyn FileHandle) -> io::Result<()> {
        self.fsyncs.fetch_add(1, Relaxed);
        file.sync_all()
    }

    pub(crate) fn sync_data(&self, file: &dyn FileHandle) -> io::Result<()> {
        self.fsyncs.fetch_add(1, Relaxed);
        file.sync_data()
    }

    pub(crate) fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.fsyncs.fetch_add(1, Relaxed);
        self.files.sync_dir(dir)
    }

    /// Syncs the whole file system of the file.
    pub(crate) fn sync_file_system(&self, file: &dyn FileHandle) -> io::Result<()> {
        self.fsyncs.fetch_add(1, Relaxed);
        file.sync_file_system()
    }

    pub(crate) fn fsyncs(&self) -> u64 {
        self.fsyncs.load(Relaxed)
    }

    pub(crate) fn in_place(&self) -> InPlaceCounts {
        let [journal_syncs, journal_bytes, patched_bytes] =
            [&self.journal_syncs, &self.journal_bytes, &self.patched_bytes].map(|count| count.load(Relaxed));
        InPlaceCounts { journal_syncs, journal_bytes, patched_bytes }
    }

    fn judge(&self, step: Step, error: &io::Error) -> Error {
        let what = format!("disk {}: {step:?}: {error}", self.dir.display());
        match error.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge if !step.is_final() => {
                Error::unavailable(format!("the disk is full: {what}")).cause(Cause::NoSpace)
            }
            _ if !step.is_final() && too_many_files(error) => Error::retry(what),
            _ => {
                self.write_errors.fetch_add(1, Relaxed);
                self.fail(step, &what);
                Error::fatal(what)
            }
        }
    }

    /// Takes no more writes.
    pub(crate) fn fail(&self, step: Step, why: &str) {
        let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        if failed.is_none() {
            *failed = Some(why.to_owned());
            tracing::error!(disk = %self.dir.display(), ?step, why, "the disk has failed");
        }
    }
}

/// A lack of file handles is not a fault of the disk.
pub(crate) fn too_many_files(error: &io::Error) -> bool {
    matches!(rustix::io::Errno::from_io_error(error), Some(rustix::io::Errno::MFILE | rustix::io::Errno::NFILE))
}

pub(crate) fn cannot_open(path: &Path, what: &str, error: &io::Error) -> Error {
    let message = format!("{}: {what}: {error}", path.display());
    if too_many_files(error) { Error::retry(message) } else { Error::fatal(message) }
}
