//! Makes files and directories durable, and counts the calls: most of what a small block costs is these.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The calls of one disk that wait until something is durable, since it was opened. Those that fail count too.
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

    /// All of the file system that the file is on.
    pub(super) fn file_system(&self, file: &File) -> io::Result<()> {
        self.0.fetch_add(1, Relaxed);
        Ok(rustix::fs::syncfs(file)?)
    }

    pub(super) fn count(&self) -> u64 {
        self.0.load(Relaxed)
    }
}
