//! A file system in memory that crashes, for tests and simulations. It is deterministic: one seed and one order of calls give one result.
//!
//! A loss of power keeps what POSIX promises, and of everything else any part, drawn from the seed:
//!
//! - Content: each sector of 512 bytes that was written and not synced is old or new; behind the old end, zeros or new.
//! - Length: old, new, or any sector in between.
//! - Names: each creation, rename, link and removal has happened or not, as a whole, and independently of the others. The sync of a
//!   directory makes those durable that concern it. The sync of a file makes no name durable.
//! - A failed sync has written any part of the file. The rest stays in memory, and no later sync writes it, as on Linux.

mod world;

use crate::files::{FileHandle, Files, Open, Space};
use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use weft_types::Span;
use world::World;

/// What is done to a file or directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FileOp {
    /// A file is opened, and created if it does not exist.
    Open,
    /// Bytes are read.
    Read,
    /// Bytes are written.
    Write,
    /// The length is changed, or space is reserved.
    Resize,
    /// A file is synced, or the whole file system.
    Sync,
    /// A directory is synced.
    SyncDir,
    /// A directory is created.
    CreateDir,
    /// A file is renamed.
    Rename,
    /// A file gets a second name.
    Link,
    /// A file or directory is removed.
    Remove,
}

impl FileOp {
    /// Whether it may change what the disk has.
    fn changes(self) -> bool {
        !matches!(self, Self::Read)
    }
}

/// A call that is about to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileCall {
    /// What it does.
    pub op: FileOp,
    /// The file or directory; of a rename or link, the new name.
    pub path: PathBuf,
}

/// What was done since the file system was created.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SimCounts {
    /// Calls that may change what the disk has. Reads are not counted.
    pub calls: u64,
    /// Syncs of files, directories and the file system.
    pub syncs: u64,
    /// Bytes that were given to writes.
    pub bytes_written: u64,
}

type Choose = dyn FnMut(&FileCall) -> Option<io::Error> + Send;

/// A file system in memory. Clones are the same file system.
#[derive(Clone)]
pub struct SimFiles(Arc<Mutex<Sim>>);

struct Sim {
    world: World,
    counts: SimCounts,
    /// The number of the call before which the power is lost.
    crash_at: Option<u64>,
    is_crashed: bool,
    /// Counts kills and restarts: files that were opened before are closed.
    boot: u64,
    choose: Option<Box<Choose>>,
}

impl SimFiles {
    /// An empty file system.
    pub fn new(seed: u64) -> Self {
        let world = World::new(seed);
        Self(Arc::new(Mutex::new(Sim {
            world,
            counts: SimCounts::default(),
            crash_at: None,
            is_crashed: false,
            boot: 0,
            choose: None,
        })))
    }

    fn sim(&self) -> MutexGuard<'_, Sim> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Loses power after so many further calls: these happen, and all later ones fail until [`restart`](Self::restart).
    pub fn crash_after(&self, calls: u64) {
        let mut sim = self.sim();
        sim.crash_at = Some(sim.counts.calls + calls);
    }

    /// Whether the power is lost.
    pub fn is_crashed(&self) -> bool {
        self.sim().is_crashed
    }

    /// Loses power, unless it is lost already, and starts again.
    pub fn restart(&self) {
        let mut sim = self.sim();
        (sim.crash_at, sim.is_crashed) = (None, false);
        sim.boot += 1;
        sim.world.lose_power();
    }

    /// Kills the process that uses the files, instead of losing power. Nothing is lost.
    pub fn kill(&self) {
        let mut sim = self.sim();
        (sim.crash_at, sim.is_crashed) = (None, false);
        sim.boot += 1;
        sim.world.unlock_all();
    }

    /// Calls `choose` before each call; its error replaces that of the call. A failed sync may lose what was written.
    pub fn inject(&self, choose: impl FnMut(&FileCall) -> Option<io::Error> + Send + 'static) {
        self.sim().choose = Some(Box::new(choose));
    }

    /// Lets no more than these bytes be stored; further ones fail with [`StorageFull`](io::ErrorKind::StorageFull).
    pub fn set_capacity(&self, bytes: u64) {
        self.sim().world.capacity = bytes;
    }

    /// What was done so far.
    pub fn counts(&self) -> SimCounts {
        self.sim().counts
    }

    /// Flips a bit of a file, in memory and on the disk.
    pub fn flip_bit(&self, path: &Path, bit: u64) -> io::Result<()> {
        self.sim().world.flip_bit(path, bit)
    }
}

impl fmt::Debug for SimFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SimFiles").field(&self.counts()).finish()
    }
}

impl Sim {
    /// Counts a call, and fails it if it must fail.
    fn before(&mut self, op: FileOp, path: &Path) -> io::Result<()> {
        if self.is_crashed || (op.changes() && self.crash_at.is_some_and(|at| self.counts.calls >= at)) {
            self.is_crashed = true;
            return Err(io::Error::other("the power is lost"));
        }
        self.counts.calls += u64::from(op.changes());
        self.counts.syncs += u64::from(matches!(op, FileOp::Sync | FileOp::SyncDir));
        let call = FileCall { op, path: path.to_owned() };
        self.choose.as_mut().and_then(|choose| choose(&call)).map_or(Ok(()), Err)
    }
}

impl Files for SimFiles {
    fn open(&self, path: &Path, how: Open) -> io::Result<Box<dyn FileHandle>> {
        let mut sim = self.sim();
        let creates = matches!(how, Open::CreateOrKeep | Open::CreateEmpty);
        sim.before(if creates { FileOp::Open } else { FileOp::Read }, path)?;
        let node = sim.world.open(path, how)?;
        Ok(Box::new(SimFile { files: self.clone(), path: path.to_owned(), node, boot: sim.boot }))
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        let mut sim = self.sim();
        sim.before(FileOp::CreateDir, path)?;
        sim.world.create_dir(path)
    }

    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        let missing: Vec<&Path> = path.ancestors().take_while(|dir| !self.sim().world.is_dir(dir)).collect();
        missing.into_iter().rev().try_for_each(|dir| self.create_dir(dir))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut sim = self.sim();
        sim.before(FileOp::Rename, to)?;
        sim.world.rename(from, to)
    }

    fn hard_link(&self, file: &Path, name: &Path) -> io::Result<()> {
        let mut sim = self.sim();
        sim.before(FileOp::Link, name)?;
        sim.world.hard_link(file, name)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        let mut sim = self.sim();
        sim.before(FileOp::Remove, path)?;
        sim.world.remove_file(path)
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        let mut sim = self.sim();
        sim.before(FileOp::Remove, path)?;
        sim.world.remove_dir(path)
    }

    fn names(&self, dir: &Path) -> io::Result<Vec<OsString>> {
        let mut sim = self.sim();
        sim.before(FileOp::Read, dir)?;
        sim.world.names(dir)
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        let mut sim = self.sim();
        sim.before(FileOp::Read, path)?;
        Ok(sim.world.exists(path))
    }

    fn len(&self, path: &Path) -> io::Result<u64> {
        self.open(path, Open::Read)?.len()
    }

    fn canonicalize(&self, path: &Path) -> io::Result<PathBuf> {
        Ok(path.to_owned())
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        let mut sim = self.sim();
        sim.before(FileOp::SyncDir, dir)?;
        sim.world.sync_dir(dir)
    }

    fn space(&self, _: &Path) -> io::Result<Space> {
        let sim = self.sim();
        let total_bytes = sim.world.capacity;
        Ok(Space { total_bytes, free_bytes: total_bytes.saturating_sub(sim.world.stored) })
    }

    fn file_system(&self, _: &Path) -> io::Result<u64> {
        Ok(1)
    }
}

/// An open file.
#[derive(Debug)]
struct SimFile {
    files: SimFiles,
    path: PathBuf,
    node: usize,
    boot: u64,
}

impl SimFile {
    fn before(&self, op: FileOp) -> io::Result<MutexGuard<'_, Sim>> {
        let mut sim = self.files.sim();
        if sim.boot != self.boot {
            return Err(io::Error::other("the file was opened before the crash"));
        }
        match sim.before(op, &self.path) {
            Ok(()) => Ok(sim),
            Err(error) => {
                if op == FileOp::Sync && !sim.is_crashed {
                    sim.world.fail_sync(self.node);
                }
                Err(error)
            }
        }
    }
}

impl FileHandle for SimFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.before(FileOp::Read)?.world.len(self.node))
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.before(FileOp::Read)?.world.read(self.node, buf, offset)
    }

    fn read_cached_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.read_exact_at(buf, offset)
    }

    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let mut sim = self.before(FileOp::Write)?;
        sim.counts.bytes_written += bytes.len() as u64;
        sim.world.write(self.node, bytes, offset)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.before(FileOp::Resize)?.world.set_len(self.node, len)
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        let mut sim = self.before(FileOp::Resize)?;
        let len = len.max(sim.world.len(self.node));
        sim.world.set_len(self.node, len)
    }

    fn begin_write_back(&self, _: Span) {}

    fn drop_cache(&self, part: Span) {
        self.files.sim().world.drop_cache(self.node, part);
    }

    fn sync_all(&self) -> io::Result<()> {
        self.sync_data()
    }

    fn sync_data(&self) -> io::Result<()> {
        self.before(FileOp::Sync)?.world.sync(self.node);
        Ok(())
    }

    fn sync_file_system(&self) -> io::Result<()> {
        self.before(FileOp::Sync)?.world.sync_all();
        Ok(())
    }

    fn try_lock(&self) -> io::Result<bool> {
        Ok(self.before(FileOp::Read)?.world.try_lock(self.node))
    }
}

impl Drop for SimFile {
    fn drop(&mut self) {
        let mut sim = self.files.sim();
        if sim.boot == self.boot {
            sim.world.unlock(self.node);
        }
    }
}

#[cfg(test)]
mod tests;
