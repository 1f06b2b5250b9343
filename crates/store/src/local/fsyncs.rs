//! Makes files and directories durable and counts the calls, which are most of the cost of a small block.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The fsync and syncfs calls of one disk since it was opened, including failed ones.
#[derive(Debug, Default)]
pub(super) struct Fsyncs(AtomicU64);

impl Fsyncs {
    pub(super) fn file(&self, file: &File) -> io::Result<()> {
        self.0.fetch_add(1, Relaxed);
        file.sync_all()
    }

    pub(super) fn dir(&self, dir: &Path) -> io::Result<()> {
        self.file(&File::open(dir)?)
    }

    /// Syncs the whole file system of the file.
    pub(super) fn file_system(&self, file: &File) -> io::Result<()> {
        self.0.fetch_add(1, Relaxed);
        Ok(rustix::fs::syncfs(file)?)
    }

    pub(super) fn count(&self) -> u64 {
        self.0.load(Relaxed)
    }
}
