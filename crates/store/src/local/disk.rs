//! The directory: its paths, its lock, its failure state, and every step that changes it.

use super::device::{Device, cannot_open};
use super::label::{self, Label, NewDisk};
use super::quarantine;
use super::shared::Blocks;
use super::steps::{Step, Steps};
use crate::block_store::{Capacity, Quarantined};
use crate::files::{FileHandle, Files, Open};
use std::collections::BTreeSet;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use weft_types::{BlockId, ClusterId, Error, Result};

const LABEL: &str = "disk";
const NEW_LABEL: &str = "disk.new";
const LOCK: &str = "lock";
const JOURNAL: &str = "journal";
const DAMAGED_JOURNAL: &str = "journal.damaged";
const BLOCKS: &str = "blocks";
const TEMPORARY: &str = "tmp";
pub(super) const QUARANTINE: &str = "quarantine";
pub(super) const SIDECAR_SUFFIX: &str = ".meta";

#[derive(Debug)]
pub(super) struct Disk {
    pub(super) dir: PathBuf,
    pub(super) label: Label,
    pub(super) device: Arc<Device>,
    /// Blocks that readers have open.
    pub(super) shared: Blocks,
    /// Blocks that a caller is writing, patching, removing or moving.
    claimed: Mutex<BTreeSet<BlockId>>,
    /// Shards whose directories are durable.
    shards: Mutex<BTreeSet<u64>>,
    /// The size of the quarantine, counted when the disk was opened.
    pub(super) quarantined: Mutex<Quarantined>,
    /// Equal for directories on one file system of one machine; 0: unknown.
    file_system: u64,
    /// Holds the lock until the last user of the disk is dropped.
    lock: Box<dyn FileHandle>,
    /// Whether the label keeps older programs from opening the disk.
    is_raised: Mutex<bool>,
}

impl Disk {
    /// Without `new`, opens only an existing disk.
    pub(super) fn open(
        files: Arc<dyn Files>,
        dir: &Path,
        cluster: ClusterId,
        new: Option<NewDisk>,
        steps: Arc<dyn Steps>,
    ) -> Result<Self> {
        let context = |what: &'static str| move |error: io::Error| cannot_open(dir, what, &error);
        if new.is_some() {
            files.create_dir_all(dir).map_err(context("cannot create it"))?;
        }
        if !files.exists(&dir.join(LABEL)).map_err(context("cannot read it"))? {
            // Checked before anything is written to the directory.
            if new.is_none() {
                return Err(no_disk(dir));
            }
            refuse_foreign(&*files, dir)?;
        }
        let lock = lock(&*files, dir)?;
        let device = Device::new(files, steps, dir.to_owned());
        let label = match device.files.read_text(&dir.join(LABEL)) {
            Ok(text) => Label::decode(&text)
                .map_err(|error| Error { message: format!("{}: {}", dir.display(), error.message), ..error })?,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                format_disk(&device, dir, cluster, new.ok_or_else(|| no_disk(dir))?)?
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
            device.files.create_dir_all(&dir.join(name)).map_err(context("cannot create its directories"))?;
        }
        device.sync_dir(dir).map_err(context("cannot sync it"))?;
        // The lock file is empty after a clean shutdown. Content means that the last process was killed.
        if !lock.is_empty().map_err(context("cannot read its lock file"))? {
            // A payload may have its name without a synced directory. The block is listed from now on, so it must be
            // durable.
            device.sync_file_system(&*lock).map_err(context("cannot sync it"))?;
        }
        lock.write_all_at(format!("{}\n", std::process::id()).as_bytes(), 0).map_err(context("cannot write its lock file"))?;
        let (claimed, shards) = (Mutex::default(), Mutex::default());
        let is_raised = Mutex::new(label.version >= label::UPDATES_VERSION);
        let quarantined = Mutex::new(quarantine::count(&*device.files, &dir.join(QUARANTINE))?);
        let file_system = device.files.file_system(dir).map_err(context("cannot read its file system"))?;
        let device = Arc::new(device);
        Ok(Self {
            dir: dir.to_owned(),
            label,
            device,
            shared: Blocks::default(),
            claimed,
            shards,
            quarantined,
            file_system,
            lock,
            is_raised,
        })
    }

    pub(super) fn journal_path(&self) -> PathBuf {
        self.dir.join(JOURNAL)
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

    /// Makes one change to the disk, as [`Device::step`].
    pub(super) fn step<T>(&self, step: Step, change: impl FnOnce() -> io::Result<T>) -> Result<T> {
        self.device.step(step, change)
    }

    pub(super) fn exists(&self, path: &Path) -> Result<bool> {
        self.device.files.exists(path).map_err(|error| cannot_open(path, "cannot look it up", &error))
    }

    /// Keeps older programs from opening the disk, from now on.
    pub(super) fn raise_version(&self) -> Result<()> {
        // Held until the label is durable, so that no other caller relies on one that is not.
        let mut is_raised = self.is_raised.lock().unwrap_or_else(PoisonError::into_inner);
        if !*is_raised {
            let label = Label { version: label::UPDATES_VERSION, ..self.label };
            self.step(Step::RaiseVersion, || write_label(&self.device, &self.dir, &label))?;
            *is_raised = true;
        }
        Ok(())
    }

    /// Gives a damaged journal another name, for a person to look at.
    pub(super) fn set_journal_aside(&self) -> Result<()> {
        let aside = self.dir.join(DAMAGED_JOURNAL);
        self.step(Step::SetJournalAside, || match self.device.files.rename(&self.journal_path(), &aside) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => self.device.sync_dir(&self.dir),
        })
    }

    /// Claims a block: until the claim is dropped, no other caller can write, patch, remove or move it.
    pub(super) fn claim(self: &Arc<Self>, id: BlockId) -> Result<Claim> {
        if self.claims().insert(id) {
            return Ok(Claim { disk: Arc::clone(self), id });
        }
        Err(Error::retry("another task is writing, patching or removing the block"))
    }

    pub(super) fn make_shard(&self, id: BlockId) -> Result<PathBuf> {
        let dir = self.shard_dir(id);
        // Held until the directory is durable, so that no other caller relies on one that is not.
        let mut shards = self.shards.lock().unwrap_or_else(PoisonError::into_inner);
        if !shards.contains(&self.shard(id)) {
            self.step(Step::CreateShard, || {
                self.device.files.create_dir_all(&dir)?;
                self.device.sync_dir(&self.blocks_dir())
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
        if !self.exists(&payload)? {
            self.device.check_alive()?;
            return Ok(false);
        }
        self.shared.forget(id);
        self.step(Step::RemovePayload, || self.device.files.remove_file(&payload))?;
        self.step(Step::SyncDirectory, || self.device.sync_dir(&self.shard_dir(id)))?;
        self.step(Step::RemoveSidecar, || remove_if_there(&*self.device.files, &self.sidecar_path(id)))?;
        Ok(true)
    }

    pub(super) fn capacity(&self) -> Result<Capacity> {
        let space = self.device.files.space(&self.dir);
        let space = space.map_err(|error| cannot_open(&self.dir, "cannot read its size", &error))?;
        Ok(Capacity { total_bytes: space.total_bytes, free_bytes: space.free_bytes, file_system: self.file_system })
    }

    fn claims(&self) -> std::sync::MutexGuard<'_, BTreeSet<BlockId>> {
        self.claimed.lock().unwrap_or_else(PoisonError::into_inner)
    }
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

pub(super) fn remove_if_there(files: &dyn Files, path: &Path) -> io::Result<()> {
    match files.remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn lock(files: &dyn Files, dir: &Path) -> Result<Box<dyn FileHandle>> {
    let failed = |error: io::Error| cannot_open(dir, "cannot use its lock file", &error);
    let file = files.open(&dir.join(LOCK), Open::CreateOrKeep).map_err(failed)?;
    if !file.try_lock().map_err(failed)? {
        return Err(Error::invalid(format!("{} is in use by another process", dir.display())));
    }
    Ok(file)
}

fn no_disk(dir: &Path) -> Error {
    Error::fatal(format!(
        "{} was a weft disk but is none now: is it mounted? To replace the disk, use a directory with another name",
        dir.display()
    ))
}

/// Refuses a directory that is neither a disk nor empty.
fn refuse_foreign(files: &dyn Files, dir: &Path) -> Result<()> {
    let failed = |error: io::Error| cannot_open(dir, "cannot list it", &error);
    for name in files.names(dir).map_err(failed)? {
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

/// Creates a disk in an empty directory.
fn format_disk(device: &Device, dir: &Path, cluster: ClusterId, new: NewDisk) -> Result<Label> {
    let label = Label {
        version: label::NEW_VERSION,
        directories: label::NEW_VERSION,
        cluster,
        disk_id: new.disk_id,
        created_ms: new.created_ms,
    };
    let write = || {
        write_label(device, dir, &label)?;
        device.files.canonicalize(dir)?.parent().map_or(Ok(()), |parent| device.sync_dir(parent))
    };
    write().map_err(|error| cannot_open(dir, "cannot create a disk in it", &error))?;
    Ok(label)
}

/// Writes the label atomically.
fn write_label(device: &Device, dir: &Path, label: &Label) -> io::Result<()> {
    write_synced(device, &dir.join(NEW_LABEL), &label.encode())?;
    device.files.rename(&dir.join(NEW_LABEL), &dir.join(LABEL))?;
    device.sync_dir(dir)
}

/// Writes a small file and syncs it.
pub(super) fn write_synced(device: &Device, path: &Path, text: &str) -> io::Result<()> {
    let file = device.files.open(path, Open::CreateEmpty)?;
    file.write_all_at(text.as_bytes(), 0)?;
    device.sync_all(&*file)
}
