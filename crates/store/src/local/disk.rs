//! The directory: its paths, its lock, its failure state, and every step that changes it.

use super::fsyncs::Fsyncs;
use super::label::{self, Label, NewDisk};
use super::quarantine;
use super::steps::{Step, Steps};
use crate::block_store::{Capacity, Quarantined};
use std::collections::BTreeSet;
use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicU64, Ordering::Relaxed},
};
use weft_types::{BlockId, Cause, ClusterId, Error, Result};

const LABEL: &str = "disk";
const NEW_LABEL: &str = "disk.new";
const LOCK: &str = "lock";
const BLOCKS: &str = "blocks";
const TEMPORARY: &str = "tmp";
pub(super) const QUARANTINE: &str = "quarantine";
pub(super) const SIDECAR_SUFFIX: &str = ".meta";

#[derive(Debug)]
pub(super) struct Disk {
    pub(super) dir: PathBuf,
    pub(super) label: Label,
    steps: Arc<dyn Steps>,
    /// Blocks that a caller is writing, removing or moving.
    claimed: Mutex<BTreeSet<BlockId>>,
    failed: Mutex<Option<String>>,
    /// Shards whose directories are durable.
    shards: Mutex<BTreeSet<u64>>,
    /// The size of the quarantine, counted when the disk was opened.
    pub(super) quarantined: Mutex<Quarantined>,
    pub(super) fsyncs: Fsyncs,
    /// Shared with readers, which outlive the disk.
    pub(super) read_errors: Arc<AtomicU64>,
    pub(super) write_errors: AtomicU64,
    /// Equal for directories on one file system of one machine; 0: unknown.
    file_system: u64,
    /// Holds the lock until the last user of the disk is dropped.
    lock: File,
}

impl Disk {
    /// Without `new`, opens only an existing disk.
    pub(super) fn open(dir: &Path, cluster: ClusterId, new: Option<NewDisk>, steps: Arc<dyn Steps>) -> Result<Self> {
        let context = |what: &'static str| move |error: io::Error| cannot_open(dir, what, &error);
        if new.is_some() {
            fs::create_dir_all(dir).map_err(context("cannot create it"))?;
        }
        if !dir.join(LABEL).try_exists().map_err(context("cannot read it"))? {
            // Checked before anything is written to the directory.
            if new.is_none() {
                return Err(no_disk(dir));
            }
            refuse_foreign(dir)?;
        }
        let (mut lock, fsyncs) = (lock(dir)?, Fsyncs::default());
        let label = match fs::read_to_string(dir.join(LABEL)) {
            Ok(text) => Label::decode(&text)
                .map_err(|error| Error { message: format!("{}: {}", dir.display(), error.message), ..error })?,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                format_disk(dir, cluster, new.ok_or_else(|| no_disk(dir))?, &fsyncs)?
            }
            Err(error) => return Err(cannot_open(dir, "cannot read its disk file", &error)),
        };
        if label.cluster != cluster {
            let (dir, its) = (dir.display(), label.cluster);
            return Err(Error::invalid(format!(
                "{dir} belongs to cluster {its}, not to cluster {cluster}: choose another directory"
            )));
        }
        for name in [BLOCKS, TEMPORARY, QUARANTINE] {
            fs::create_dir_all(dir.join(name)).map_err(context("cannot create its directories"))?;
        }
        fsyncs.dir(dir).map_err(context("cannot sync it"))?;
        // The lock file is empty after a clean shutdown. Content means that the last process was killed.
        if lock.metadata().map_err(context("cannot read its lock file"))?.len() > 0 {
            // A payload may have its name without a synced directory. The block is listed from now on, so it must be
            // durable.
            fsyncs.file_system(&lock).map_err(context("cannot sync it"))?;
        }
        lock.write_all(format!("{}\n", std::process::id()).as_bytes()).map_err(context("cannot write its lock file"))?;
        let (claimed, failed, shards) = (Mutex::default(), Mutex::default(), Mutex::default());
        let quarantined = Mutex::new(quarantine::count(&dir.join(QUARANTINE))?);
        let file_system = file_system(dir).map_err(context("cannot read its file system"))?;
        let (read_errors, write_errors) = (Arc::default(), AtomicU64::new(0));
        Ok(Self {
            dir: dir.to_owned(),
            label,
            steps,
            claimed,
            failed,
            shards,
            quarantined,
            fsyncs,
            read_errors,
            write_errors,
            file_system,
            lock,
        })
    }

    pub(super) fn blocks_dir(&self) -> PathBuf {
        self.dir.join(BLOCKS)
    }

    pub(super) fn temporary_dir(&self) -> PathBuf {
        self.dir.join(TEMPORARY)
    }

    /// The number of the directory that holds a block.
    pub(super) fn shard(&self, id: BlockId) -> u64 {
        self.label.shard(id.stripe)
    }

    pub(super) fn shard_dir(&self, id: BlockId) -> PathBuf {
        self.blocks_dir().join(shard_name(self.shard(id)))
    }

    pub(super) fn payload_path(&self, id: BlockId) -> PathBuf {
        self.shard_dir(id).join(id.to_string())
    }

    pub(super) fn sidecar_path(&self, id: BlockId) -> PathBuf {
        self.shard_dir(id).join(format!("{id}{SIDECAR_SUFFIX}"))
    }

    pub(super) fn failed(&self) -> Option<String> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Refuses writes once the disk has failed.
    pub(super) fn check_alive(&self) -> Result<()> {
        match self.failed() {
            Some(why) => Err(Error::fatal(format!("disk {} has failed and takes no more writes: {why}", self.dir.display()))),
            None => Ok(()),
        }
    }

    /// Makes one change to the disk and classifies its error. A full disk and a lack of file handles are temporary; any
    /// other error fails the disk.
    pub(super) fn step<T>(&self, step: Step, change: impl FnOnce() -> io::Result<T>) -> Result<T> {
        self.check_alive()?;
        self.steps.before(step).and_then(|()| change()).map_err(|error| self.judge(step, &error))
    }

    /// Claims a block: until the claim is dropped, no other caller can write, remove or move it.
    pub(super) fn claim(self: &Arc<Self>, id: BlockId) -> Result<Claim> {
        if self.claims().insert(id) {
            return Ok(Claim { disk: Arc::clone(self), id });
        }
        Err(Error::retry("another task is writing or removing the block"))
    }

    pub(super) fn make_shard(&self, id: BlockId) -> Result<PathBuf> {
        let dir = self.shard_dir(id);
        // Held until the directory is durable, so that no other caller relies on one that is not.
        let mut shards = self.shards.lock().unwrap_or_else(PoisonError::into_inner);
        if !shards.contains(&self.shard(id)) {
            self.step(Step::CreateShard, || {
                fs::create_dir_all(&dir)?;
                self.fsyncs.dir(&self.blocks_dir())
            })?;
            shards.insert(self.shard(id));
        }
        Ok(dir)
    }

    /// Removes the payload first, durably, and the block with it. In the other order, a crash in between would leave a payload without a
    /// description, which could not be deleted safely.
    pub(super) fn remove(self: &Arc<Self>, id: BlockId) -> Result<bool> {
        let _claim = self.claim(id)?;
        let payload = self.payload_path(id);
        if !exists(&payload)? {
            self.check_alive()?;
            return Ok(false);
        }
        self.step(Step::RemovePayload, || fs::remove_file(&payload))?;
        self.step(Step::SyncDirectory, || self.fsyncs.dir(&self.shard_dir(id)))?;
        self.step(Step::RemoveSidecar, || remove_if_there(&self.sidecar_path(id)))?;
        Ok(true)
    }

    pub(super) fn capacity(&self) -> Result<Capacity> {
        let stat =
            rustix::fs::statvfs(&self.dir).map_err(|error| cannot_open(&self.dir, "cannot read its size", &error.into()))?;
        let bytes = |blocks: u64| blocks.saturating_mul(stat.f_frsize);
        Ok(Capacity { total_bytes: bytes(stat.f_blocks), free_bytes: bytes(stat.f_bavail), file_system: self.file_system })
    }

    fn claims(&self) -> std::sync::MutexGuard<'_, BTreeSet<BlockId>> {
        self.claimed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn judge(&self, step: Step, error: &io::Error) -> Error {
        let what = format!("disk {}: {step:?}: {error}", self.dir.display());
        // A failed sync may have dropped any write, even if the error is a lack of space. So it always fails the disk.
        let sync = matches!(step, Step::SyncPayload | Step::SyncSidecar | Step::SyncDirectory);
        match error.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge if !sync => {
                Error::unavailable(format!("the disk is full: {what}")).cause(Cause::NoSpace)
            }
            _ if !sync && too_many_files(error) => Error::retry(what),
            _ => {
                self.write_errors.fetch_add(1, Relaxed);
                self.failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(|| what.clone());
                tracing::error!(disk = %self.dir.display(), ?step, %error, "the disk has failed");
                Error::fatal(what)
            }
        }
    }
}

/// Identifies the file system of a directory: by its device, and by the machine's current boot, which is drawn at random.
fn file_system(dir: &Path) -> io::Result<u64> {
    let device = fs::metadata(dir)?.dev();
    let Ok(boot) = fs::read_to_string("/proc/sys/kernel/random/boot_id") else { return Ok(0) };
    let digits: String = boot.chars().filter(char::is_ascii_hexdigit).take(16).collect();
    Ok(u64::from_str_radix(&digits, 16).map_or(0, |boot| boot ^ device))
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Marks a clean shutdown.
        if let Err(error) = self.lock.set_len(0) {
            tracing::warn!(disk = %self.dir.display(), %error, "cannot empty the lock file");
        }
    }
}

/// A claimed block.
#[derive(Debug)]
pub(super) struct Claim {
    disk: Arc<Disk>,
    id: BlockId,
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.disk.claims().remove(&self.id);
    }
}

pub(super) fn shard_name(shard: u64) -> String {
    format!("{shard:03x}")
}

pub(super) fn remove_if_there(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// A lack of file handles is not a fault of the disk.
pub(super) fn too_many_files(error: &io::Error) -> bool {
    matches!(rustix::io::Errno::from_io_error(error), Some(rustix::io::Errno::MFILE | rustix::io::Errno::NFILE))
}

pub(super) fn cannot_open(path: &Path, what: &str, error: &io::Error) -> Error {
    let message = format!("{}: {what}: {error}", path.display());
    if too_many_files(error) { Error::retry(message) } else { Error::fatal(message) }
}

pub(super) fn exists(path: &Path) -> Result<bool> {
    path.try_exists().map_err(|error| cannot_open(path, "cannot look it up", &error))
}

fn lock(dir: &Path) -> Result<File> {
    let failed = |error: io::Error| cannot_open(dir, "cannot use its lock file", &error);
    let file = File::options().create(true).truncate(false).read(true).write(true).open(dir.join(LOCK)).map_err(failed)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(Error::invalid(format!("{} is in use by another process", dir.display()))),
        Err(TryLockError::Error(error)) => Err(failed(error)),
    }
}

fn no_disk(dir: &Path) -> Error {
    Error::fatal(format!(
        "{} was a weft disk but is none now: is it mounted? To replace the disk, use a directory with another name",
        dir.display()
    ))
}

/// Refuses a directory that is neither a disk nor empty.
fn refuse_foreign(dir: &Path) -> Result<()> {
    let failed = |error: io::Error| cannot_open(dir, "cannot list it", &error);
    for entry in fs::read_dir(dir).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        // Files of an interrupted or concurrent creation of the disk, and the directory that mkfs creates.
        if ![LABEL, LOCK, NEW_LABEL, "lost+found"].iter().any(|own| name == *own) {
            let (dir, name) = (dir.display(), name.display());
            return Err(Error::invalid(format!(
                "{dir} is neither empty nor a weft disk: it contains '{name}'; choose another directory"
            )));
        }
    }
    Ok(())
}

/// Creates a disk in an empty directory. The label is written atomically.
fn format_disk(dir: &Path, cluster: ClusterId, new: NewDisk, fsyncs: &Fsyncs) -> Result<Label> {
    let label = Label { version: label::VERSION, cluster, disk_id: new.disk_id, created_ms: new.created_ms };
    let write = || {
        let mut file = File::create(dir.join(NEW_LABEL))?;
        file.write_all(label.encode().as_bytes())?;
        fsyncs.file(&file)?;
        fs::rename(dir.join(NEW_LABEL), dir.join(LABEL))?;
        fsyncs.dir(dir)?;
        dir.canonicalize()?.parent().map_or(Ok(()), |parent| fsyncs.dir(parent))
    };
    write().map_err(|error| cannot_open(dir, "cannot create a disk in it", &error))?;
    Ok(label)
}
