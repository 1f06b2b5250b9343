//! The journals of the disks, and the threads that own them: opened when the node registers, created when the first block of a disk is opened for
//! updates, set aside when they are damaged.

use super::{
    Hub, is_damage,
    queue::Queue,
    worker::{self, Worker},
};
use crate::disks::{Disks, JournalledDisk};
use std::{
    collections::{BTreeMap, btree_map::Entry},
    sync::{Arc, PoisonError},
    time::Duration,
};
use tokio::{
    runtime::Handle,
    sync::{Mutex, MutexGuard},
    time::timeout,
};
use weft_proto::DiskMode;
use weft_store::NewJournal;
use weft_types::{BlockId, ByteSize, Error, Reaction, Result};
use weft_updater::{Limits, Updater};

/// The journals of a node's disks.
pub(crate) struct Host {
    pub(crate) hub: Arc<Hub>,
    mode: DiskMode,
    ring: ByteSize,
    /// By the number of the disk. A disk that is not named has no journal, or was not looked at.
    disks: Mutex<BTreeMap<usize, Slot>>,
}

/// A disk with a journal.
enum Slot {
    Running,
    /// The journal is damaged. `lost`: the blocks of which that was said.
    Damaged {
        error: Error,
        lost: Option<Vec<BlockId>>,
    },
    /// The journal could not be opened for another reason.
    Failed(Error),
}

/// How long a call waits for the creation of a journal. The coordinator leaves blocks out that do not answer in time.
const CREATED_WITHIN: Duration = Duration::from_secs(1);

impl Host {
    pub(crate) fn new(hub: Arc<Hub>, mode: DiskMode, ring: ByteSize) -> Self {
        Self { hub, mode, ring, disks: Mutex::default() }
    }

    /// Opens the journals that there are. The blocks that they name are open from then on, so this precedes all tasks. Fails with
    /// [`Reaction::Retry`](weft_types::Reaction) if a journal cannot be opened now: call it again.
    pub(crate) async fn start(&self, disks: &Disks, nonce: u128) -> Result<()> {
        let mut slots = self.disks.lock().await;
        for (number, disk) in disks.journalled() {
            let is_new = !slots.contains_key(&number);
            let exists = is_new && {
                let journal = Arc::clone(&disk.journal);
                self.mode.run(move || Ok(journal.exists())).await.unwrap_or(false)
            };
            if exists {
                match self.open(number, disk, nonce).await {
                    Slot::Failed(error) if error.reaction == Reaction::Retry => return Err(error),
                    slot => drop(slots.insert(number, slot)),
                }
            }
        }
        Ok(())
    }

    /// The queue of a disk. Creates its journal if it has none. That goes on if it takes long: then this fails with
    /// [`Reaction::Retry`](weft_types::Reaction).
    pub(crate) async fn queue(self: &Arc<Self>, disks: &Arc<Disks>, number: usize, nonce: u128) -> Result<Queue> {
        if let Some(queue) = self.hub.queue(number) {
            return Ok(queue);
        }
        let (host, disks) = (Arc::clone(self), Arc::clone(disks));
        let creating = tokio::spawn(async move { host.create(&disks, number, nonce).await });
        let created = timeout(CREATED_WITHIN, creating).await;
        let created = created.map_err(|_| Error::retry("the journal of the disk is being created"))?;
        created.unwrap_or_else(|error| Err(Error::fatal(format!("the journal of the disk was not created: {error}"))))
    }

    async fn create(&self, disks: &Disks, number: usize, nonce: u128) -> Result<Queue> {
        let mut slots = self.disks.lock().await;
        let slot = match slots.entry(number) {
            Entry::Occupied(slot) => slot.into_mut(),
            Entry::Vacant(place) => {
                let disk = disks.journalled().find(|(disk, _)| *disk == number);
                let (_, disk) = disk.ok_or_else(|| Error::replan("the disk cannot be used"))?;
                match self.open(number, disk, nonce).await {
                    // Nothing was written that must be kept: the next call tries again.
                    Slot::Failed(error) => return Err(error),
                    slot => place.insert(slot),
                }
            }
        };
        match slot {
            Slot::Damaged { error, .. } => {
                Err(Error::unavailable(format!("the journal of the disk is damaged: {}", error.message)))
            }
            Slot::Failed(error) => Err(error.clone()),
            Slot::Running => self.hub.queue(number).ok_or_else(|| Error::retry("the agent is stopping")),
        }
    }

    async fn open(&self, number: usize, disk: JournalledDisk, nonce: u128) -> Slot {
        let (hub, mode, ring_bytes, path) = (Arc::clone(&self.hub), self.mode, self.ring.0, disk.path.clone());
        let runtime = Handle::current();
        let open = move || open(&hub, number, &disk, NewJournal { ring_bytes, nonce }, (mode, &runtime));
        let opened = self.mode.run(open).await;
        match opened.map_err(|error| Error { message: format!("disk {}: {}", path.display(), error.message), ..error }) {
            Ok(()) => Slot::Running,
            Err(error) if is_damage(&error) => {
                tracing::error!(%error, "the journal of updates is damaged: the blocks that were open are lost on this disk");
                Slot::Damaged { error, lost: None }
            }
            Err(error) => {
                tracing::error!(%error, "cannot open the journal of updates");
                Slot::Failed(error)
            }
        }
    }

    /// From time to time: reports the blocks that a damaged journal has lost, and sets it aside when the coordinator knows them.
    pub(crate) async fn mend(&self, disks: &Disks) {
        let mut slots = self.disks.lock().await;
        let damaged: Vec<usize> =
            slots.iter().filter(|(_, slot)| matches!(slot, Slot::Damaged { .. })).map(|(number, _)| *number).collect();
        for number in damaged {
            if let Err(error) = self.mend_one(&mut slots, disks, number).await {
                tracing::warn!(disk = number, %error, "the damaged journal of updates stays where it is for now");
            }
        }
    }

    async fn mend_one(&self, slots: &mut MutexGuard<'_, BTreeMap<usize, Slot>>, disks: &Disks, number: usize) -> Result<()> {
        let Some((_, disk)) = disks.journalled().find(|(disk, _)| *disk == number) else { return Ok(()) };
        let Some(Slot::Damaged { error, lost }) = slots.get_mut(&number) else { return Ok(()) };
        let Some(lost) = lost else {
            let blocks = self.mode.run(move || disk.store.list()).await?;
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
        self.mode.run(move || disk.journal.set_aside()).await?;
        slots.remove(&number);
        Ok(())
    }
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
    let open = worker::fence_open_blocks(&updater, hub, number);
    let (queue, commands) = Queue::new();
    hub.queues.write().unwrap_or_else(PoisonError::into_inner).insert(number, queue);
    hub.filled(number, updater.fill());
    let mut worker = Worker::new(number, Arc::downgrade(hub), updater);
    // Before the thread, so that what it says is in order.
    worker.begin(hub);
    worker::start(worker, commands, mode, runtime)?;
    hub.asker.ask(open);
    Ok(())
}
