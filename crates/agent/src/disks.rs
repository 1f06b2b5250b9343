//! The disks of a node. All calls block; async code makes them through [`DiskMode::run`](weft_proto::DiskMode).

mod opening;
mod ownership;
mod quarantine;
mod rate;
mod watch;

pub(crate) use opening::Found;
pub(crate) use quarantine::Released;
use rate::Rate;
pub(crate) use rate::hold as hold_rates;
use watch::Watch;

use crate::{
    KeepJournal,
    line::{Bound, Line},
    partial::Partials,
    removal::{Bounds, Counted, Quota, Removal, bytes_on_disk},
    served::Served,
};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU64},
    },
    time::Duration,
};
use tokio::time::Instant;
use weft_proto::v1;
use weft_store::{BlockReader, BlockStore, Capacity, DeviceErrors, InPlaceCounts, Quarantined};
use weft_types::{BlockId, ByteSize, Error, GarbageReason, Reaction, Result};

/// All disks of a node, including failed ones.
pub(crate) struct Disks(Vec<Disk>);

struct Disk {
    /// Its id when it was last opened. Empty if it has never been.
    known_id: String,
    /// Its id with a mark if it was not this node's when it was last opened; then no `known_id`.
    marked_id: Option<String>,
    path: PathBuf,
    /// The open disk, or why it cannot be used. Unset while it is being opened: it may hang.
    open: OnceLock<Result<Open>>,
    standing: Mutex<Standing>,
    /// Whether a coordinator has said that its owner has had it at the same time, so that one of the two is a copy.
    is_copy: AtomicBool,
    /// Grows while it is being opened, unless it hangs.
    progress: AtomicU64,
    line: Arc<Line>,
    served: Served,
    rate: Rate,
    watch: Watch,
}

/// Whether a disk is this node's. Only then it serves.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Standing {
    Ours,
    /// It was used before, and this node does not know it: another node may have it. The coordinator knows.
    Unknown,
    /// The coordinator has agreed, and its journal is being opened, since then.
    Joining(Instant),
    /// Another node had it, and the coordinator has not agreed, for this reason.
    Aside(String),
}

/// What updates in place need of a disk.
pub(crate) struct JournalledDisk {
    pub(crate) path: PathBuf,
    pub(crate) store: Arc<dyn BlockStore>,
    pub(crate) journal: Arc<dyn KeepJournal>,
}

/// A disk that can be used.
struct Open {
    id: String,
    /// Its blocks.
    store: Arc<dyn BlockStore>,
    /// Its journal of updates in place.
    journal: Arc<dyn KeepJournal>,
    freed: Quota,
    unexpected: Quota,
}

impl Open {
    fn journalled(&self, path: &Path) -> JournalledDisk {
        JournalledDisk { path: path.to_owned(), store: Arc::clone(&self.store), journal: Arc::clone(&self.journal) }
    }
}

/// What metrics show of a disk.
pub(crate) struct Shown {
    pub(crate) report: v1::Disk,
    pub(crate) fsyncs: u64,
    pub(crate) errors: DeviceErrors,
    pub(crate) in_place: InPlaceCounts,
}

/// The result of opening a block.
type Opened = Result<Arc<dyn BlockReader>>;

/// The state of a block on a disk.
enum Look {
    There(Arc<dyn BlockReader>),
    /// The block is there and damaged.
    Damaged(Error),
    Absent,
    /// The disk cannot be read.
    Unknown(Error),
}

/// Why a block is in quarantine if it is garbage without a known reason.
const NO_REASON: &str = "it is garbage in the metadata, without a known reason";

/// The assumed length of a block whose length cannot be read: the usual block length.
const UNREADABLE_BYTES: u64 = 64 << 20;

/// The most blocks in one listing.
const LISTED_BLOCKS_MAX: usize = 10_000;

impl Disks {
    /// What metrics show of a disk, by its number, also of one that cannot be used. `None` while it is being opened.
    pub(crate) fn shown(&self, number: usize) -> Option<Shown> {
        let disk = &self.0[number];
        disk.open.get()?;
        Some(Shown {
            report: v1::Disk { bytes_per_s: disk.rate.bytes_per_s(), ..disk.report() },
            fsyncs: disk.store().map_or(0, |store| store.fsyncs()),
            errors: disk.store().map(|store| store.errors()).unwrap_or_default(),
            in_place: disk.store().map(|store| store.in_place()).unwrap_or_default(),
        })
    }

    /// The disks' ids, by path, of those that are this node's.
    pub(crate) fn ids(&self) -> BTreeMap<String, String> {
        let known = self.0.iter().filter(|disk| !disk.id().is_empty() && *disk.standing() == Standing::Ours);
        known.map(|disk| (disk.path.display().to_string(), disk.id().to_owned())).collect()
    }

    /// Opens a block on the disk that has it; also returns that disk's number. Returns not found only if every disk
    /// could be checked.
    pub(crate) fn open_block(&self, id: BlockId) -> Result<(usize, Arc<dyn BlockReader>)> {
        let (number, opened) = self.find(id).map_err(|error| error.block(id))?;
        opened.map(|reader| (number, reader)).map_err(|error| error.block(id))
    }

    /// Lets go of what the page cache has of the block's sidecar: a scrub asks what the disk has.
    pub(crate) fn forget_sidecar(&self, id: BlockId) {
        let answering = self.usable().filter(|(number, _)| self.0[*number].require_answers().is_ok());
        answering.for_each(|(_, store)| store.forget_cached_sidecar(id));
    }

    /// Like [`find`](Self::find), but `None` if the block is on no disk.
    fn find_there(&self, id: BlockId) -> Result<Option<(usize, Opened)>> {
        match self.find(id) {
            Err(error) if error.reaction == Reaction::NotFound => Ok(None),
            found => found.map(Some),
        }
    }

    /// The disk that has a block, and the result of opening the block there.
    fn find(&self, id: BlockId) -> Result<(usize, Opened)> {
        let (mut readable, mut damaged, mut unknown) = (None, None, None);
        for (number, disk) in self.0.iter().enumerate() {
            match disk.look_for(id) {
                Look::Absent => {}
                Look::There(reader) => {
                    if let Some((other, _)) = readable.replace((number, reader)) {
                        let [first, second] = [other, number].map(|number| self.0[number].path.display());
                        // They come from two incarnations of the metadata, and it is unknown which of them is valid.
                        return Err(Error::corrupt(format!("the node has two blocks of this name, in {first} and {second}")));
                    }
                }
                Look::Damaged(error) => damaged = damaged.or(Some((number, error))),
                Look::Unknown(error) => unknown = unknown.or(Some(error)),
            }
        }
        match (readable, damaged, unknown) {
            (Some((number, reader)), _, _) => Ok((number, Ok(reader))),
            (None, Some((number, error)), _) => Ok((number, Err(error))),
            (None, None, Some(error)) if error.reaction == Reaction::Retry => Err(error),
            (None, None, Some(error)) => {
                Err(Error::replan(format!("the block may be on a disk that cannot be used: {}", error.message)))
            }
            (None, None, None) => Err(Error::not_found("the block is on none of the node's disks")),
        }
    }

    /// The disk with this id, and its number.
    pub(crate) fn by_id(&self, id: &str) -> Result<(usize, Arc<dyn BlockStore>)> {
        let found = self.usable().find(|(number, _)| self.0[*number].id() == id);
        let (number, store) = found.ok_or_else(|| Error::replan(format!("the node has no usable disk {id}")))?;
        self.0[number].require_answers()?;
        match store.failed() {
            Some(why) => Err(Error::replan(format!("disk {id} has failed: {why}"))),
            None => Ok((number, Arc::clone(store))),
        }
    }

    /// The disks that can be used, by number: their paths, blocks and journals.
    pub(crate) fn journalled(&self) -> impl Iterator<Item = (usize, JournalledDisk)> {
        let open = |disk: &Disk| disk.opened().ok().map(|open| open.journalled(&disk.path));
        self.0.iter().enumerate().filter_map(move |(number, disk)| Some((number, open(disk)?)))
    }

    /// Sets the limit of all classes below foreground at each disk, bytes a second.
    pub(crate) fn limit(&self, rate: Option<ByteSize>) {
        self.0.iter().for_each(|disk| disk.line.bound(Bound::BelowForeground, rate));
    }

    /// Each disk's path and queue.
    pub(crate) fn lines(&self) -> impl Iterator<Item = (&Path, &Line)> {
        self.0.iter().map(|disk| (&*disk.path, &*disk.line))
    }

    /// The queue in which tasks wait for a disk, by the disk's number.
    pub(crate) fn line(&self, number: usize) -> &Arc<Line> {
        &self.0[number].line
    }

    /// What a disk has served, by its number.
    pub(crate) fn served(&self, number: usize) -> &Served {
        &self.0[number].served
    }

    /// Removes those of `blocks` that exist, or quarantines them if the reason is unknown. A failure of one does not affect the others.
    /// Tasks that would still write one of them may arrive for the duration `opening`; they are refused.
    pub(crate) fn remove(
        &self,
        blocks: &[BlockId],
        reason: GarbageReason,
        opening: Duration,
        partials: &Partials,
        bounds: &Bounds<'_>,
    ) -> Removal {
        let mut removal = Removal::default();
        for id in blocks {
            let remove = || if reason.is_meant() { self.remove_one(*id, bounds) } else { self.set_aside(*id, NO_REASON, bounds) };
            // Partial blocks first: otherwise a block could be committed after the look at the disks and be missed. A block that was
            // there was complete, and one that is kept is not reported as gone: neither is remembered.
            let removed = partials.give_up(*id).and_then(|removing| {
                let was_there = remove()?;
                if !was_there {
                    removing.remember(opening)?;
                }
                Ok(was_there)
            });
            match removed {
                Ok(was_there) => {
                    let count = if reason.is_meant() { &mut removal.removed } else { &mut removal.quarantined };
                    *count += u32::from(was_there);
                    removal.gone.push(*id);
                }
                Err(error) => removal.kept.push(error.block(*id)),
            }
        }
        removal
    }

    /// Returns whether the block existed. After `Ok`, the block does not exist.
    fn remove_one(&self, id: BlockId, bounds: &Bounds<'_>) -> Result<bool> {
        let Some((number, opened)) = self.find_there(id)? else { return Ok(false) };
        let bytes = bytes_on_disk(opened.map_or(UNREADABLE_BYTES, |reader| reader.meta().len()));
        let remove = |store: &Arc<dyn BlockStore>| store.remove(id).map(|was_there| was_there.then_some(()));
        Ok(self.0[number].take_away(Counted::Freed, bytes, bounds, remove)?.is_some())
    }

    /// Moves a block to quarantine. Returns whether it existed.
    fn set_aside(&self, id: BlockId, why: &str, bounds: &Bounds<'_>) -> Result<bool> {
        let Some((number, _)) = self.find_there(id)? else { return Ok(false) };
        let quarantine = |store: &Arc<dyn BlockStore>| store.quarantine(id, why, Some(bounds.now_ms)).map(Some);
        Ok(self.0[number].take_away(Counted::Unexpected, 1, bounds, quarantine)?.is_some())
    }

    /// Moves those of `blocks` that exist to quarantine, because the metadata does not know them. Returns how many it
    /// moved, and why others were kept.
    pub(crate) fn quarantine(&self, blocks: &[BlockId], partials: &Partials, bounds: &Bounds<'_>) -> (u32, Vec<Error>) {
        let (mut moved, mut kept) = (0, Vec::new());
        for id in blocks {
            match partials.require_unused(*id).and_then(|()| self.set_aside(*id, "the metadata does not know it", bounds)) {
                Ok(was_there) => moved += u32::from(was_there),
                Err(error) => kept.push(error.block(*id)),
            }
        }
        (moved, kept)
    }

    /// At most `limit` blocks behind `after`, and whether there may be more: of one disk in its own order, or of all in ascending
    /// order.
    pub(crate) fn list(&self, disk: Option<&str>, after: Option<BlockId>, limit: usize) -> Result<(Vec<BlockId>, bool)> {
        let limit = if limit == 0 { LISTED_BLOCKS_MAX } else { limit.min(LISTED_BLOCKS_MAX) };
        if let Some(disk) = disk {
            let blocks = self.by_id(disk)?.1.list_after(after, limit)?;
            let more = blocks.len() == limit;
            return Ok((blocks, more));
        }
        let mut blocks = Vec::new();
        for disk in &self.0 {
            // One that is still being opened is no failed disk: its blocks count.
            disk.require_answers()?;
            let Ok(store) = disk.store() else { continue };
            blocks.extend(store.list()?.into_iter().filter(|id| after.is_none_or(|after| after < *id)));
        }
        blocks.sort_unstable();
        let more = blocks.len() > limit;
        blocks.truncate(limit);
        Ok((blocks, more))
    }

    fn usable(&self) -> impl Iterator<Item = (usize, &Arc<dyn BlockStore>)> {
        self.0.iter().enumerate().filter_map(|(number, disk)| Some((number, disk.store().ok()?)))
    }
}

impl Disk {
    fn new(path: PathBuf, id: String) -> Self {
        let (known_id, marked_id) = if id.starts_with(ownership::ASIDE_MARK) { (String::new(), Some(id)) } else { (id, None) };
        let (line, served, rate, watch) = (Line::new(None), Served::default(), Rate::default(), Watch::default());
        watch.begins();
        let standing = Mutex::new(if known_id.is_empty() { Standing::Unknown } else { Standing::Ours });
        Self {
            known_id,
            marked_id,
            path,
            open: OnceLock::new(),
            standing,
            is_copy: AtomicBool::new(false),
            progress: AtomicU64::new(0),
            line,
            served,
            rate,
            watch,
        }
    }

    /// A poisoned lock is safe to use: each change is one assignment.
    fn standing(&self) -> MutexGuard<'_, Standing> {
        self.standing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Empty for a disk that has never been opened.
    fn id(&self) -> &str {
        self.open.get().and_then(|open| open.as_ref().ok()).map_or(&self.known_id, |open| &open.id)
    }

    /// The disk, if it serves.
    fn opened(&self) -> Result<&Open> {
        let open = self.any_opened()?;
        match &*self.standing() {
            Standing::Ours => Ok(open),
            Standing::Unknown | Standing::Joining(_) => Err(self.named(Error::replan("it is still being taken in"))),
            Standing::Aside(why) => Err(self.named(Error::replan(format!("it is kept aside: {why}")))),
        }
    }

    /// Also one that is not this node's.
    fn any_opened(&self) -> Result<&Open> {
        match self.open.get() {
            Some(open) => open.as_ref().map_err(Clone::clone),
            None => Err(self.named(Error::replan("it is still being opened, or hangs"))),
        }
    }

    /// The disk's blocks, or why the disk cannot be used.
    fn store(&self) -> Result<&Arc<dyn BlockStore>> {
        self.opened().map(|open| &open.store)
    }

    /// Runs `work`, which takes a block off the disk, if its quota allows it. `work` returns `None` if the block
    /// was not there.
    fn take_away<T>(
        &self,
        counted: Counted,
        amount: u64,
        bounds: &Bounds<'_>,
        work: impl FnOnce(&Arc<dyn BlockStore>) -> Result<Option<T>>,
    ) -> Result<Option<T>> {
        let Open { id, store, freed, unexpected, .. } = self.opened()?;
        let (quota, now) = (if counted == Counted::Freed { freed } else { unexpected }, Instant::now());
        let right = quota.take(amount, id, bounds, now, |used| match counted {
            Counted::Freed => Ok(store.capacity()?.total_bytes),
            Counted::Unexpected => Ok(store.list()?.len() as u64 + used),
        });
        right.map_err(|error| self.named(error))?;
        let done = work(store);
        if !matches!(done, Ok(Some(_))) {
            quota.give_back(amount);
        }
        done
    }

    fn named(&self, error: Error) -> Error {
        Error { message: format!("disk {}: {}", self.path.display(), error.message), ..error }
    }

    fn look_for(&self, id: BlockId) -> Look {
        // What is on it is another node's.
        if matches!(*self.standing(), Standing::Aside(_)) {
            return Look::Absent;
        }
        if let Err(error) = self.require_answers() {
            return Look::Unknown(error);
        }
        let store = match self.store() {
            Ok(store) => store,
            Err(error) => return Look::Unknown(error),
        };
        match store.open(id) {
            Ok(reader) => Look::There(reader),
            Err(error) => match (error.reaction, store.failed()) {
                (Reaction::Corrupt, _) => Look::Damaged(error),
                (Reaction::NotFound, None) => Look::Absent,
                (Reaction::NotFound, Some(why)) => Look::Unknown(Error::replan(why)),
                _ => Look::Unknown(error),
            },
        }
    }

    fn report(&self) -> v1::Disk {
        let store = || self.any_opened().map(|open| &open.store);
        let capacity = store().and_then(|store| store.capacity());
        let failed = store().map_or(true, |store| store.failed().is_some()) || capacity.is_err();
        let Capacity { total_bytes, free_bytes, file_system } = capacity.unwrap_or_default();
        let quarantined = store().map_or_else(|_| Quarantined::default(), |store| store.quarantined());
        v1::Disk {
            id: self.id().to_owned(),
            path: self.path.display().to_string(),
            total_bytes,
            free_bytes,
            failed,
            quarantined_blocks: quarantined.blocks,
            quarantined_bytes: quarantined.bytes,
            file_system,
            reads: Some(self.served.reads.report()),
            syncs: Some(self.served.syncs.report()),
            ..v1::Disk::default()
        }
    }
}

#[cfg(test)]
mod tests;
