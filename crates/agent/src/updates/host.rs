//! The journals of the disks, and the threads that own them: opened before a disk serves, created when the first block of a disk is opened for
//! updates, set aside when they are damaged. A disk that hangs holds up only what has to do with it.

use super::{
    Hub, is_damage,
    queue::Queue,
    worker::{self, Worker},
};
use crate::disks::{Disks, JournalledDisk};
use std::{
    collections::BTreeMap,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::{
    runtime::Handle,
    sync::{Mutex as AsyncMutex, OwnedMutexGuard},
    task::JoinSet,
    time::{Instant, timeout_at},
};
use weft_proto::DiskMode;
use weft_store::NewJournal;
use weft_types::{BlockId, ByteSize, Cause, Error, Result};
use weft_updater::{Limits, Updater};

/// The journals of a node's disks.
pub(crate) struct Host {
    pub(crate) hub: Arc<Hub>,
    mode: DiskMode,
    ring: ByteSize,
    /// By the number of the disk. Each is locked while its journal is being opened, created or set aside.
    disks: Mutex<BTreeMap<usize, Arc<AsyncMutex<Slot>>>>,
}

/// The journal of a disk.
#[derive(Default)]
enum Slot {
    /// The disk has none, or it could not be opened yet.
    #[default]
    Absent,
    Running,
    /// The journal is damaged. `lost`: the blocks of which that was said.
    Damaged {
        error: Error,
        lost: Option<Vec<BlockId>>,
    },
}

/// How long a call waits for the creation of a journal. The coordinator leaves blocks out that do not answer in time.
const CREATED_WITHIN: Duration = Duration::from_secs(1);

impl Host {
    pub(crate) fn new(hub: Arc<Hub>, mode: DiskMode, ring: ByteSize) -> Self {
        Self { hub, mode, ring, disks: Mutex::default() }
    }

    /// Opens the journal of a disk if it has one. The blocks that it names are open from then on, so this precedes all tasks that use the
    /// disk. If it fails, it is not known which blocks are open: the disk must not be used, and this is to be called again. A damaged journal
    /// is no failure. Does not return while the disk hangs.
    pub(crate) async fn start_disk(&self, number: usize, disk: JournalledDisk, nonce: u128) -> Result<()> {
        let mut slot = self.slot(number).lock_owned().await;
        if !matches!(*slot, Slot::Absent) {
            return Ok(());
        }
        let (journal, path) = (Arc::clone(&disk.journal), disk.path.clone());
        if self.mode.run_boxed(move || journal.exists()).await.map_err(|error| error_of_disk(&path, error))? {
            *slot = self.open(number, disk, nonce).await?;
        }
        Ok(())
    }

    /// The queue of a disk. Creates its journal if it has none. That goes on if it takes long: then this fails with
    /// [`Reaction::Retry`](weft_types::Reaction).
    pub(crate) async fn queue(self: &Arc<Self>, disks: &Arc<Disks>, number: usize, nonce: u128) -> Result<Queue> {
        if let Some(queue) = self.hub.queue(number) {
            return Ok(queue);
        }
        let (until, late) = (Instant::now() + CREATED_WITHIN, |_| Error::retry("the journal of the disk is being created"));
        // Only the call that has the lock begins something that goes on without it: one for each disk that hangs.
        let slot = timeout_at(until, self.slot(number).lock_owned()).await.map_err(late)?;
        let (host, disks) = (Arc::clone(self), Arc::clone(disks));
        let creating = tokio::spawn(async move { host.create(slot, &disks, number, nonce).await });
        let created = timeout_at(until, creating).await.map_err(late)?;
        created.unwrap_or_else(|error| Err(Error::fatal(format!("the journal of the disk was not created: {error}"))))
    }

    async fn create(&self, mut slot: OwnedMutexGuard<Slot>, disks: &Disks, number: usize, nonce: u128) -> Result<Queue> {
        if matches!(*slot, Slot::Absent) {
            let disk = disks.journalled().find(|(disk, _)| *disk == number);
            let (_, disk) = disk.ok_or_else(|| Error::replan("the disk cannot be used"))?;
            // If it fails, nothing was written that must be kept: the next call tries again.
            *slot = self.open(number, disk, nonce).await?;
        }
        match &*slot {
            Slot::Damaged { error, .. } => Err(damaged(error)),
            Slot::Absent | Slot::Running => self.hub.queue(number).ok_or_else(|| Error::retry("the agent is stopping")),
        }
    }

    /// Fails if the journal of a disk is damaged, or if that is not known yet.
    pub(crate) fn check(&self, number: usize) -> Result<()> {
        let slot = self.slot(number);
        let Ok(slot) = slot.try_lock() else {
            return match self.hub.queue(number) {
                Some(_) => Ok(()),
                None => Err(Error::retry("the journal of the disk is being opened or set aside")),
            };
        };
        match &*slot {
            Slot::Damaged { error, .. } => Err(damaged(error)),
            Slot::Absent | Slot::Running => Ok(()),
        }
    }

    async fn open(&self, number: usize, disk: JournalledDisk, nonce: u128) -> Result<Slot> {
        let (hub, mode, ring_bytes, path) = (Arc::clone(&self.hub), self.mode, self.ring.0, disk.path.clone());
        let runtime = Handle::current();
        let open = move || open(&hub, number, &disk, NewJournal { ring_bytes, nonce }, (mode, &runtime));
        match self.mode.run_boxed(open).await.map_err(|error| error_of_disk(&path, error)) {
            Ok(()) => Ok(Slot::Running),
            Err(error) if error.cause == Some(Cause::NoSpace) => {
                let (path, name, ring) = (path.display(), &self.hub.name, self.ring);
                let message = format!("disk {path} of {name} has no room for its journal of {ring}");
                Err(Error { message, ..error })
            }
            Err(error) if is_damage(&error) => {
                tracing::error!(%error, "the journal of updates is damaged: the blocks that were open are lost on this disk");
                Ok(Slot::Damaged { error, lost: None })
            }
            Err(error) => Err(error),
        }
    }

    /// From time to time: reports the blocks that a damaged journal has lost, and sets it aside when the coordinator knows them. One task does
    /// so for each disk that needs it, unless one still does.
    pub(crate) fn mend(self: &Arc<Self>, disks: &Disks, mending: &mut JoinSet<()>) {
        for (number, disk) in disks.journalled() {
            let Ok(mut slot) = self.slot(number).try_lock_owned() else { continue };
            if !matches!(*slot, Slot::Damaged { .. }) {
                continue;
            }
            let host = Arc::clone(self);
            mending.spawn(async move {
                if let Err(error) = host.mend_one(&mut slot, disk).await {
                    tracing::warn!(disk = number, %error, "the damaged journal of updates stays where it is for now");
                }
            });
        }
    }

    async fn mend_one(&self, slot: &mut Slot, disk: JournalledDisk) -> Result<()> {
        let Slot::Damaged { error, lost } = slot else { return Ok(()) };
        let Some(lost) = lost else {
            let blocks = self.mode.run_boxed(move || disk.store.list()).await?;
            // Which blocks were open, only the coordinator knows.
            let open = self.hub.asker.find(&blocks).await?;
            let members = open.into_iter().flat_map(|told| told.sealed.members);
            let found: Vec<BlockId> = members.filter(|block| blocks.binary_search(block).is_ok()).collect();
            found.iter().for_each(|block| self.hub.lost(*block, error));
            *lost = Some(found);
            return Ok(());
        };
        if lost.iter().any(|block| self.hub.findings.is_untold(*block)) {
            return Ok(());
        }
        tracing::warn!(disk = %disk.path.display(), blocks = lost.len(), "set a damaged journal of updates aside");
        self.mode.run_boxed(move || disk.journal.set_aside()).await?;
        *slot = Slot::Absent;
        Ok(())
    }

    /// A poisoned lock is safe to use: each change is one insertion.
    fn slot(&self, number: usize) -> Arc<AsyncMutex<Slot>> {
        Arc::clone(self.disks.lock().unwrap_or_else(PoisonError::into_inner).entry(number).or_default())
    }
}

/// It is set aside when the coordinator knows which blocks are lost.
fn damaged(error: &Error) -> Error {
    Error::unavailable(format!("the journal of the disk is damaged, and is not set aside yet: {}", error.message))
}

fn error_of_disk(path: &Path, error: Error) -> Error {
    Error { message: format!("disk {}: {}", path.display(), error.message), ..error }
}

/// Opens a journal and starts its thread.
fn open(
    hub: &Arc<Hub>,
    number: usize,
    disk: &JournalledDisk,
    new: NewJournal,
    (mode, runtime): (DiskMode, &Handle),
) -> Result<()> {
    let journal = disk.journal.open(new)?;
    let updater = Updater::open(Arc::clone(&disk.store), journal, Limits::default(), hub.time.now_ms())?;
    let open = fence_open_blocks(&updater, hub, number);
    let (queue, commands) = Queue::new();
    hub.queues.write().unwrap_or_else(PoisonError::into_inner).insert(number, queue);
    hub.filled(number, updater.fill());
    hub.takes(number, updater.update_bytes_max());
    let mut worker = Worker::new(number, Arc::downgrade(hub), updater);
    // Before the thread, so that what it says is in order.
    worker.begin(hub);
    worker::start(worker, commands, mode, runtime).inspect_err(|_| hub.ended(number))?;
    hub.asker.ask(open);
    Ok(())
}

/// Marks the blocks of an opened journal, before anything may read them.
fn fence_open_blocks(updater: &Updater, hub: &Hub, disk: usize) -> Vec<BlockId> {
    let open: Vec<BlockId> = updater.open_blocks().map(|open| open.block).collect();
    open.iter().copied().chain(updater.lost_blocks()).for_each(|block| hub.fence.opened(block, disk));
    open
}
