//! The disks of a node. All calls block; async code makes them through [`DiskMode::run`](weft_proto::DiskMode).

use crate::{
    OpenDisk,
    line::Line,
    partial::Partials,
    removal::{Bounds, Quota, Removal},
    state::Memory,
};
use rand::{Rng, rngs::StdRng};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tokio::time::Instant;
use weft_proto::v1;
use weft_store::{BlockReader, BlockStore, NewDisk, Quarantined};
use weft_types::{BlockId, ClusterId, Error, Reaction, Result};

/// All disks of a node, including failed ones.
pub(crate) struct Disks(Vec<Disk>);

struct Disk {
    /// Empty for a disk that has never been opened.
    id: String,
    path: PathBuf,
    /// The disk's blocks, or why the disk cannot be used.
    store: Result<Arc<dyn BlockStore>>,
    quota: Quota,
    line: Arc<Line>,
}

/// What a disk answers about a block.
enum Look {
    There(Arc<dyn BlockReader>),
    /// The block is there and damaged.
    Damaged(Error),
    Absent,
    /// The disk cannot be read.
    Unknown(Error),
}

/// The most blocks in one listing.
const LISTED_BLOCKS_MAX: usize = 10_000;

impl Disks {
    /// Opens all disks. A disk that fails to open is reported as failed, under its known id. A disk of another cluster
    /// is an operator's mistake, and the agent does not start with it. No new disk is created at a path where one is
    /// known: an empty directory there is a mount point whose disk is not mounted.
    pub(crate) fn open(
        paths: &[PathBuf],
        known: &Memory,
        cluster: ClusterId,
        opener: &dyn OpenDisk,
        random: &mut StdRng,
        now_ms: u64,
    ) -> Result<Self> {
        let mut disks = Vec::with_capacity(paths.len());
        for path in paths {
            let known_id = known.disks.iter().find(|(known, _)| Path::new(known) == path).map(|(_, id)| id.clone());
            let new = known_id.is_none().then(|| NewDisk { disk_id: random.random(), created_ms: now_ms });
            let place = |error: Error| Error { message: format!("disk {}: {}", path.display(), error.message), ..error };
            let (id, store) = match opener.open(path, cluster, new).map_err(place) {
                Ok(opened) => (format!("{:032x}", opened.id), Ok(opened.store)),
                Err(error) if error.reaction == Reaction::InvalidInput => return Err(error),
                Err(error) => {
                    tracing::error!(%error, "cannot use a disk");
                    (known_id.unwrap_or_default(), Err(error))
                }
            };
            let quota = Quota::new(known.removed.get(&id), now_ms, Instant::now());
            disks.push(Disk { id, path: path.clone(), store, quota, line: Line::new(None) });
        }
        Ok(Self(disks))
    }

    /// The disks as reported to the coordinator. A disk that was never opened has no id and is left out.
    pub(crate) fn report(&self) -> Vec<v1::Disk> {
        self.0.iter().filter(|disk| !disk.id.is_empty()).map(Disk::report).collect()
    }

    /// The number of fsyncs on all disks since they were opened.
    pub(crate) fn fsyncs(&self) -> u64 {
        self.0.iter().filter_map(|disk| disk.store.as_ref().ok()).map(|store| store.fsyncs()).sum()
    }

    /// The disks' ids, by path.
    pub(crate) fn ids(&self) -> BTreeMap<String, String> {
        let known = self.0.iter().filter(|disk| !disk.id.is_empty());
        known.map(|disk| (disk.path.display().to_string(), disk.id.clone())).collect()
    }

    /// Opens a block on the disk that has it; also returns that disk's number. Returns not found only if every disk
    /// could be checked.
    pub(crate) fn open_block(&self, id: BlockId) -> Result<(usize, Arc<dyn BlockReader>)> {
        let (number, opened) = self.find(id).map_err(|error| error.block(id))?;
        opened.map(|reader| (number, reader)).map_err(|error| error.block(id))
    }

    /// The disk that has a block, and the result of opening the block there.
    fn find(&self, id: BlockId) -> Result<(usize, Result<Arc<dyn BlockReader>>)> {
        let (mut readable, mut damaged, mut unknown) = (None, None, None);
        for (number, disk) in self.0.iter().enumerate() {
            match disk.look_for(id) {
                Look::Absent => {}
                Look::There(reader) => {
                    if let Some((other, _)) = readable.replace((number, reader)) {
                        let [first, second] = [other, number].map(|number| self.0[number].path.display());
                        // They stem from two incarnations of the metadata, and which of them is meant is unknown.
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
        let found = self.usable().find(|(number, _)| self.0[*number].id == id);
        let (number, store) = found.ok_or_else(|| Error::replan(format!("the node has no usable disk {id}")))?;
        match store.failed() {
            Some(why) => Err(Error::replan(format!("disk {id} has failed: {why}"))),
            None => Ok((number, Arc::clone(store))),
        }
    }

    /// The queue in which tasks wait for a disk, by the disk's number.
    pub(crate) fn line(&self, number: usize) -> &Arc<Line> {
        &self.0[number].line
    }

    /// Removes those of `blocks` that exist. A failure of one does not affect the others. For the time `opening`, no
    /// task may write a removed block again.
    pub(crate) fn remove(&self, blocks: &[BlockId], opening: Duration, partials: &Partials, bounds: &Bounds<'_>) -> Removal {
        let mut removal = Removal::default();
        for id in blocks {
            // Partial blocks come first: a partial block could be committed between a check of the disks and a check of
            // the partial blocks.
            match partials.give_up(*id, opening).and_then(|()| self.remove_one(*id, bounds)) {
                Ok(was_there) => {
                    if was_there {
                        partials.forget(*id);
                    }
                    removal.removed += u32::from(was_there);
                    removal.gone.push(*id);
                }
                Err(error) => removal.kept.push(error.block(*id)),
            }
        }
        removal
    }

    /// Returns whether the block existed. After `Ok`, the block does not exist.
    fn remove_one(&self, id: BlockId, bounds: &Bounds<'_>) -> Result<bool> {
        let number = match self.find(id) {
            Ok((number, _)) => number,
            Err(error) if error.reaction == Reaction::NotFound => return Ok(false),
            Err(error) => return Err(error),
        };
        let taken = self.0[number].take_away(bounds, |store| store.remove(id).map(|was_there| was_there.then_some(())));
        taken.map(|taken| taken.is_some())
    }

    /// Moves those of `blocks` that exist to quarantine, because the metadata does not know them. Returns how many it
    /// moved, and why others were kept.
    pub(crate) fn quarantine(&self, blocks: &[BlockId], partials: &Partials, bounds: &Bounds<'_>) -> (u32, Vec<Error>) {
        let (mut moved, mut kept) = (0, Vec::new());
        for id in blocks {
            let one = partials.require_unused(*id).and_then(|()| match self.find(*id) {
                Ok((number, _)) => self.0[number].take_away(bounds, |store| {
                    store.quarantine(*id, "the metadata does not know it", Some(bounds.now_ms)).map(Some)
                }),
                Err(error) => Err(error),
            });
            match one {
                Ok(_) => moved += 1,
                Err(error) if error.reaction == Reaction::NotFound => {}
                Err(error) => kept.push(error.block(*id)),
            }
        }
        (moved, kept)
    }

    /// Deletes blocks whose quarantine has expired, within the removal limits.
    pub(crate) fn clear_quarantine(&self, bounds: &Bounds<'_>) {
        let before_ms = bounds.now_ms.saturating_sub(bounds.limits.quarantine_ms);
        for disk in &self.0 {
            let Ok(store) = &disk.store else { continue };
            let clear = || {
                for place in store.quarantined_before(before_ms)? {
                    disk.take_away(bounds, |store| store.delete_quarantined(&place).map(Some))?;
                    tracing::info!(disk = %disk.path.display(), place, "deleted a block from quarantine");
                }
                Ok(())
            };
            if let Err(error) = clear() {
                let error: Error = error;
                tracing::warn!(disk = %disk.path.display(), %error, "cannot clear the quarantine");
            }
        }
    }

    /// Lists at most `limit` blocks after `after`, and says whether there may be more. With `disk`, the blocks of that
    /// disk in its own order; otherwise those of all disks in ascending order.
    pub(crate) fn list(&self, disk: Option<&str>, after: Option<BlockId>, limit: usize) -> Result<(Vec<BlockId>, bool)> {
        let limit = if limit == 0 { LISTED_BLOCKS_MAX } else { limit.min(LISTED_BLOCKS_MAX) };
        if let Some(disk) = disk {
            let blocks = self.by_id(disk)?.1.list_after(after, limit)?;
            let more = blocks.len() == limit;
            return Ok((blocks, more));
        }
        let mut blocks = Vec::new();
        for (_, store) in self.usable() {
            blocks.extend(store.list()?.into_iter().filter(|id| after.is_none_or(|after| after < *id)));
        }
        blocks.sort_unstable();
        let more = blocks.len() > limit;
        blocks.truncate(limit);
        Ok((blocks, more))
    }

    /// The highest stripe number of all blocks; 0 if there are none.
    pub(crate) fn highest_stripe(&self) -> Result<u64> {
        let mut highest = 0;
        for (_, store) in self.usable() {
            highest = store.list()?.last().map_or(highest, |last| highest.max(last.stripe.0));
        }
        Ok(highest)
    }

    fn usable(&self) -> impl Iterator<Item = (usize, &Arc<dyn BlockStore>)> {
        self.0.iter().enumerate().filter_map(|(number, disk)| Some((number, disk.store.as_ref().ok()?)))
    }
}

impl Disk {
    /// Runs `work`, which takes a block off the disk, if the day's limit allows it. `work` returns `None` if the block
    /// was not there.
    fn take_away<T>(
        &self,
        bounds: &Bounds<'_>,
        work: impl FnOnce(&Arc<dyn BlockStore>) -> Result<Option<T>>,
    ) -> Result<Option<T>> {
        let store = self.store.as_ref().map_err(Clone::clone)?;
        let right = self.quota.take(&self.id, bounds, Instant::now(), || Ok(store.list()?.len()));
        right.map_err(|error| Error { message: format!("disk {}: {}", self.path.display(), error.message), ..error })?;
        let done = work(store);
        if !matches!(done, Ok(Some(_))) {
            self.quota.give_back();
        }
        done
    }

    fn look_for(&self, id: BlockId) -> Look {
        let store = match &self.store {
            Ok(store) => store,
            Err(error) => return Look::Unknown(error.clone()),
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
        let capacity = self.store.as_ref().map_err(Clone::clone).and_then(|store| store.capacity());
        let failed = self.store.as_ref().map_or(true, |store| store.failed().is_some()) || capacity.is_err();
        let (total_bytes, free_bytes) = capacity.map_or((0, 0), |capacity| (capacity.total_bytes, capacity.free_bytes));
        let quarantined = self.store.as_ref().map_or_else(|_| Quarantined::default(), |store| store.quarantined());
        v1::Disk {
            id: self.id.clone(),
            path: self.path.display().to_string(),
            total_bytes,
            free_bytes,
            failed,
            quarantined_blocks: quarantined.blocks,
            quarantined_bytes: quarantined.bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Limits, LocalDisks, state::StateFile};
    use rand::SeedableRng;
    use weft_store::conformance;
    use weft_types::PlanId;

    const CLUSTER: ClusterId = ClusterId(3);

    fn open(paths: &[PathBuf], known_ids: &BTreeMap<String, String>) -> Disks {
        let known = Memory { disks: known_ids.clone(), ..Memory::default() };
        Disks::open(paths, &known, CLUSTER, &LocalDisks, &mut StdRng::seed_from_u64(1), 0).ok().unwrap()
    }

    fn put(disks: &Disks, disk: usize, stripe: u64) -> BlockId {
        let meta = conformance::block(CLUSTER, stripe, 5000);
        let mut writer = disks.0[disk].store.as_ref().ok().unwrap().create(&meta).unwrap();
        writer.write_at(0, &conformance::pattern(5000)).unwrap();
        writer.finish(None).unwrap();
        meta.id
    }

    fn remove(disks: &Disks, partials: &Partials, blocks: &[BlockId]) -> (u32, Vec<BlockId>, Vec<Reaction>) {
        let scratch = tempfile::tempdir().unwrap();
        let (limits, state) = (Limits::default(), StateFile::open(scratch.path()).unwrap());
        let bounds = Bounds { limits: &limits, state: &state, now_ms: 0 };
        let Removal { removed, gone, kept } = disks.remove(blocks, Duration::ZERO, partials, &bounds);
        (removed, gone, kept.iter().map(|error| error.reaction).collect())
    }

    #[tokio::test]
    async fn a_block_that_is_being_written_is_kept_and_holds_up_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let (disks, partials) = (open(&[dir.path().join("a")], &BTreeMap::new()), Partials::new(&Limits::default()));
        let (number, store) = disks.by_id(&disks.0[0].id).unwrap();
        let meta = conformance::block(CLUSTER, 1, 5000);
        let claim = partials.claim(PlanId(1), number, store.as_ref(), &meta).ok().unwrap();
        claim.write_at(0, &conformance::pattern(5000)).unwrap();
        let other = put(&disks, 0, 2);
        assert_eq!(remove(&disks, &partials, &[meta.id, other]), (1, vec![other], vec![Reaction::Retry]));
        claim.commit(None).unwrap().unwrap();
        // The block is committed but its claim not released: reporting it as gone would leave it there for ever.
        assert_eq!(remove(&disks, &partials, &[meta.id]), (0, vec![], vec![Reaction::Retry]));
        drop(claim);
        assert_eq!(remove(&disks, &partials, &[meta.id]), (1, vec![meta.id], vec![]));
        assert_eq!(store.list().unwrap(), []);
    }

    #[tokio::test]
    async fn what_may_be_on_a_disk_that_cannot_be_used_is_neither_missing_nor_gone() {
        let dir = tempfile::tempdir().unwrap();
        let (paths, partials) = (["a", "b"].map(|name| dir.path().join(name)), Partials::new(&Limits::default()));
        let disks = open(&paths, &BTreeMap::new());
        let (here, there) = (put(&disks, 1, 1), put(&disks, 0, 2));
        let known = disks.ids();
        drop(disks);
        std::fs::rename(&paths[0], dir.path().join("away")).unwrap();
        std::fs::create_dir(&paths[0]).unwrap();

        let disks = open(&paths, &known);
        assert_eq!(std::fs::read_dir(&paths[0]).unwrap().count(), 0, "a disk was created on an empty mount point");
        assert_eq!((disks.report()[0].failed, &disks.ids()), (true, &known));
        assert_eq!(disks.open_block(there).err().unwrap().reaction, Reaction::Replan);
        assert!(disks.open_block(here).is_ok());
        assert_eq!(remove(&disks, &partials, &[there, here]), (1, vec![here], vec![Reaction::Replan]));
        drop(disks);

        std::fs::remove_dir(&paths[0]).unwrap();
        std::fs::rename(dir.path().join("away"), &paths[0]).unwrap();
        let disks = open(&paths, &known);
        assert_eq!(disks.open_block(here).err().unwrap().reaction, Reaction::NotFound);
        assert_eq!(remove(&disks, &partials, &[there, here]), (1, vec![there, here], vec![]));
    }

    #[tokio::test]
    async fn of_two_blocks_of_one_name_none_is_read_and_none_removed() {
        let dir = tempfile::tempdir().unwrap();
        let disks = open(&["a", "b"].map(|name| dir.path().join(name)), &BTreeMap::new());
        let id = put(&disks, 0, 1);
        assert_eq!(put(&disks, 1, 1), id);
        let error = disks.open_block(id).err().unwrap();
        assert!(error.reaction == Reaction::Corrupt && error.message.contains("two blocks of this name"), "{error}");
        assert_eq!(remove(&disks, &Partials::new(&Limits::default()), &[id]), (0, vec![], vec![Reaction::Corrupt]));
        assert_eq!(disks.list(None, None, 0).unwrap().0, [id, id]);
    }

    #[tokio::test]
    async fn what_nobody_expects_is_kept_for_days_and_then_deleted_not_too_much_a_day() {
        let dir = tempfile::tempdir().unwrap();
        let disks = open(&["a", "b"].map(|name| dir.path().join(name)), &BTreeMap::new());
        let partials = Partials::new(&Limits::default());
        let limits = Limits { quarantine_ms: 1000, removed_blocks_per_day: 3, removed_percent_per_day: 0, ..Limits::default() };
        let state = StateFile::open(&dir.path().join("state")).unwrap();
        let at = |now_ms| Bounds { limits: &limits, state: &state, now_ms };
        let orphans = [put(&disks, 0, 1), put(&disks, 0, 2), put(&disks, 1, 3)];
        let kept = put(&disks, 0, 4);
        let nowhere = BlockId { generation: 9, ..kept };

        let (number, store) = disks.by_id(&disks.0[0].id).unwrap();
        let writing = partials.claim(PlanId(1), number, store.as_ref(), &conformance::block(CLUSTER, 5, 5000)).ok().unwrap();
        let busy = conformance::block(CLUSTER, 5, 5000).id;
        let (moved, why) = disks.quarantine(&[orphans[0], orphans[1], orphans[2], nowhere, busy], &partials, &at(5000));
        assert_eq!((moved, why.len(), why[0].block, why[0].reaction), (3, 1, Some(busy), Reaction::Retry), "{why:?}");
        drop(writing);
        assert_eq!(disks.list(None, None, 0).unwrap().0, [kept]);
        let told = |disk: usize| (disks.report()[disk].quarantined_blocks, disks.report()[disk].quarantined_bytes);
        assert_eq!((told(0), told(1)), ((2, 10_000), (1, 5000)));
        for (number, disk) in disks.0.iter().enumerate() {
            assert_eq!(
                disks.list(Some(&disk.id), None, 1).unwrap(),
                if number == 0 { (vec![kept], true) } else { (vec![], false) }
            );
        }

        disks.clear_quarantine(&at(6000));
        assert_eq!(told(0), (2, 10_000), "not yet");
        disks.clear_quarantine(&at(6001));
        assert_eq!((told(0), told(1)), ((1, 5000), (0, 0)), "two were moved today, and three may be removed");
        let (moved, why) = disks.quarantine(&[kept], &partials, &at(6001));
        assert!(moved == 0 && why[0].message.contains("A person must decide"), "{why:?}");
        assert!(disks.open_block(kept).is_ok());
    }
}
