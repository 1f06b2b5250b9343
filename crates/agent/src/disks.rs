//! The disks of a node. All calls block: whoever must not goes through [`DiskMode::run`](crate::DiskMode).

use crate::OpenDisk;
use rand::{Rng, rngs::StdRng};
use std::{collections::BTreeMap, path::PathBuf, sync::Arc};
use weft_proto::v1;
use weft_store::{BlockReader, BlockStore, NewDisk};
use weft_types::{BlockId, ClusterId, Error, Reaction, Result};

/// All disks of a node, those that cannot be used too.
pub(crate) struct Disks(Vec<Disk>);

struct Disk {
    /// Empty for a disk that could never be opened.
    id: String,
    path: PathBuf,
    /// What is on it, or why it cannot be used.
    store: Result<Arc<dyn BlockStore>>,
}

/// In one request no more blocks of a disk are removed than this, or than one in [`REMOVED_PART`].
const REMOVED_BLOCKS_FLOOR: usize = 64;
const REMOVED_PART: usize = 100;
/// Blocks that are listed at once.
const LISTED_BLOCKS_MAX: usize = 10_000;

impl Disks {
    /// Opens all disks. One that fails is reported as failed, by the id that is known of it; one that is not for this cluster is
    /// a mistake of the operator's, and the agent does not start with it.
    pub(crate) fn open(
        paths: &[PathBuf],
        known_ids: &BTreeMap<String, String>,
        cluster: ClusterId,
        opener: &dyn OpenDisk,
        random: &mut StdRng,
        now_ms: u64,
    ) -> Result<Self> {
        let mut disks = Vec::with_capacity(paths.len());
        for path in paths {
            let new = NewDisk { disk_id: random.random(), created_ms: now_ms };
            let place = |error: Error| Error { message: format!("disk {}: {}", path.display(), error.message), ..error };
            let (id, store) = match opener.open(path, cluster, new).map_err(place) {
                Ok(opened) => (format!("{:032x}", opened.id), Ok(opened.store)),
                Err(error) if error.reaction == Reaction::InvalidInput => return Err(error),
                Err(error) => {
                    tracing::error!(%error, "a disk cannot be used");
                    (known_ids.get(&path.display().to_string()).cloned().unwrap_or_default(), Err(error))
                }
            };
            disks.push(Disk { id, path: path.clone(), store });
        }
        Ok(Self(disks))
    }

    /// As the coordinator is told of them. One that could never be opened has no name to tell of it by.
    pub(crate) fn report(&self) -> Vec<v1::Disk> {
        self.0.iter().filter(|disk| !disk.id.is_empty()).map(Disk::report).collect()
    }

    /// Their ids, by their paths.
    pub(crate) fn ids(&self) -> BTreeMap<String, String> {
        let known = self.0.iter().filter(|disk| !disk.id.is_empty());
        known.map(|disk| (disk.path.display().to_string(), disk.id.clone())).collect()
    }

    /// Opens a block, on whichever disk it is, and tells that disk's number.
    pub(crate) fn open_block(&self, id: BlockId) -> Result<(usize, Arc<dyn BlockReader>)> {
        for (number, store) in self.usable() {
            match store.open(id) {
                Ok(reader) => return Ok((number, reader)),
                Err(error) if error.reaction == Reaction::NotFound => {}
                Err(error) => return Err(error.block(id)),
            }
        }
        Err(Error::not_found("it is on none of the node's disks").block(id))
    }

    /// The disk that the coordinator means by `id`, and its number.
    pub(crate) fn by_id(&self, id: &str) -> Result<(usize, Arc<dyn BlockStore>)> {
        let found = self.usable().find(|(number, _)| self.0[*number].id == id);
        let (number, store) = found.ok_or_else(|| Error::replan(format!("the node has no disk {id} that can be used")))?;
        match store.failed() {
            Some(why) => Err(Error::replan(format!("disk {id} has failed: {why}"))),
            None => Ok((number, Arc::clone(store))),
        }
    }

    /// Removes those of `blocks` that are there, unless they are suspiciously many. Returns how many were.
    pub(crate) fn remove(&self, blocks: &[BlockId]) -> Result<u32> {
        let mut on_disk: BTreeMap<usize, Vec<BlockId>> = BTreeMap::new();
        for id in blocks {
            match self.open_block(*id) {
                Ok((number, _)) => on_disk.entry(number).or_default().push(*id),
                Err(error) if error.reaction == Reaction::NotFound => {}
                // What is damaged may be removed like anything else, once it is known on which disk it is.
                Err(_) => {
                    let holder = self.usable().find(|(_, store)| store.list().is_ok_and(|list| list.contains(id)));
                    holder.into_iter().for_each(|(number, _)| on_disk.entry(number).or_default().push(*id));
                }
            }
        }
        for (number, doomed) in &on_disk {
            self.refuse_too_many(*number, doomed.len())?;
        }
        let mut removed = 0;
        for (number, doomed) in &on_disk {
            let store = self.0[*number].store.as_ref().map_err(Clone::clone)?;
            for id in doomed {
                removed += u32::from(store.remove(*id)?);
            }
        }
        Ok(removed)
    }

    fn refuse_too_many(&self, number: usize, doomed: usize) -> Result<()> {
        if doomed <= REMOVED_BLOCKS_FLOOR {
            return Ok(());
        }
        let disk = &self.0[number];
        let all = disk.store.as_ref().map_err(Clone::clone)?.list()?.len();
        if doomed <= all / REMOVED_PART {
            return Ok(());
        }
        Err(Error::new(
            Reaction::Unavailable,
            format!(
                "refused to remove {doomed} of the {all} blocks of disk {} at once: a person must decide whether that is meant",
                disk.path.display()
            ),
        ))
    }

    /// At most `limit` blocks behind `after`, in ascending order, and whether there are more.
    pub(crate) fn list(&self, after: Option<BlockId>, limit: usize) -> Result<(Vec<BlockId>, bool)> {
        let mut blocks = Vec::new();
        for (_, store) in self.usable() {
            blocks.extend(store.list()?.into_iter().filter(|id| after.is_none_or(|after| after < *id)));
        }
        blocks.sort_unstable();
        let limit = if limit == 0 { LISTED_BLOCKS_MAX } else { limit.min(LISTED_BLOCKS_MAX) };
        let more = blocks.len() > limit;
        blocks.truncate(limit);
        Ok((blocks, more))
    }

    /// The highest stripe number of all blocks; 0 where there are none.
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
    fn report(&self) -> v1::Disk {
        let capacity = self.store.as_ref().map_err(Clone::clone).and_then(|store| store.capacity());
        let failed = self.store.as_ref().map_or(true, |store| store.failed().is_some()) || capacity.is_err();
        let (total_bytes, free_bytes) = capacity.map_or((0, 0), |capacity| (capacity.total_bytes, capacity.free_bytes));
        v1::Disk { id: self.id.clone(), path: self.path.display().to_string(), total_bytes, free_bytes, failed }
    }
}
