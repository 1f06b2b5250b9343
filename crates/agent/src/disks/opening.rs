//! Opens disks. One that hangs must hold up neither the start nor the other disks, so it is opened in the background, and joins when it answers.

use super::{Disk, Disks, JournalledDisk, Open, Standing};
use crate::{
    OpenDisk,
    removal::{Counted, Quota},
    state::Memory,
};
use std::path::{Path, PathBuf};
use tokio::time::Instant;
use weft_store::NewDisk;
use weft_types::{ClusterId, Error, Reaction, Result};

/// What the opening of a disk has found.
pub(crate) struct Found {
    open: Result<Open>,
    /// Whether it was used before, and this node does not know it.
    is_strange: bool,
    /// The highest stripe number of its blocks; 0 if it has none, or cannot be used.
    pub(crate) highest_stripe: u64,
}

impl Found {
    /// A disk that cannot be used.
    pub(crate) fn failed(error: Error) -> Self {
        tracing::error!(%error, "cannot use a disk");
        Self { open: Err(error), is_strange: false, highest_stripe: 0 }
    }

    /// The agent stops before the disk is used.
    pub(crate) fn unused() -> Self {
        Self { open: Err(Error::retry("the agent is stopping")), is_strange: false, highest_stripe: 0 }
    }

    /// What updates in place need of it, if it can be used. The journal of a disk that may be another node's stays closed.
    pub(crate) fn journalled(&self, path: &Path) -> Option<JournalledDisk> {
        self.open.as_ref().ok().filter(|_| !self.is_strange).map(|open| open.journalled(path))
    }

    /// The disk's id, if it can be used and is this node's.
    pub(crate) fn id(&self) -> Option<&str> {
        self.open.as_ref().ok().filter(|_| !self.is_strange).map(|open| &*open.id)
    }
}

impl Disks {
    /// The disks at these paths, before they are opened.
    pub(crate) fn new(paths: &[PathBuf], known: &Memory) -> Self {
        let known_id = |path: &Path| known.disks.iter().find(|(known, _)| Path::new(known) == path).map(|(_, id)| id.clone());
        Self(paths.iter().map(|path| Disk::new(path.clone(), known_id(path).unwrap_or_default())).collect())
    }

    /// How many disks there are.
    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    /// The path of a disk, by its number.
    pub(crate) fn path(&self, number: usize) -> &Path {
        &self.0[number].path
    }

    /// How many disks have been opened, or could not be.
    pub(crate) fn settled(&self) -> usize {
        self.0.iter().filter(|disk| disk.open.get().is_some()).count()
    }

    /// Opens a disk, or creates it with this identity if none is known at its path. A disk that fails to open is reported as failed, under its
    /// known id. A disk of another cluster is an operator's mistake. No new disk is created at a path where one is known: an empty directory
    /// there is a mount point whose disk is not mounted. Does not return while the disk hangs.
    pub(crate) fn open_one(
        &self,
        number: usize,
        new: NewDisk,
        known: &Memory,
        cluster: ClusterId,
        opener: &dyn OpenDisk,
    ) -> Result<Found> {
        let (disk, now_ms) = (&self.0[number], new.created_ms);
        let new = (disk.known_id.is_empty() && disk.marked_id.is_none()).then_some(new);
        let opened = match opener.open_counting(&disk.path, cluster, new, &disk.progress) {
            Ok(opened) => opened,
            Err(error) if error.reaction == Reaction::InvalidInput => return Err(disk.named(error)),
            Err(error) => return Ok(Found::failed(disk.named(error))),
        };
        let id = format!("{:032x}", opened.id);
        let is_strange = id != disk.known_id && new.is_none_or(|new| new.disk_id != opened.id);
        let quota = |counted| Quota::new(counted, known.clone(), &id, now_ms, Instant::now());
        let (freed, unexpected) = (quota(Counted::Freed), quota(Counted::Unexpected));
        let highest_stripe = opened.store.list()?.last().map_or(0, |last| last.stripe.0);
        let open = Ok(Open { id, store: opened.store, journal: opened.journal, freed, unexpected });
        Ok(Found { open, is_strange, highest_stripe })
    }

    /// The disk serves from now on.
    pub(crate) fn join(&self, number: usize, found: Found) {
        // It is opened once.
        self.0[number].opened_as(found);
        self.0[number].watch.answered(None);
    }

    /// Likewise for a disk that was opened late: its figures are known when it counts as one that answers. May block.
    pub(crate) fn join_late(&self, number: usize, found: Found) {
        let disk = &self.0[number];
        disk.opened_as(found);
        disk.watch.answered(Some(disk.figures()));
    }
}

impl Disk {
    fn opened_as(&self, found: Found) {
        let mut standing = self.standing();
        // The coordinator may have named it meanwhile.
        if !matches!(*standing, Standing::Aside(_)) {
            *standing = if found.is_strange { Standing::Unknown } else { Standing::Ours };
        }
        drop(standing);
        if let Ok(open) = &found.open {
            self.recall_copy(&open.id);
        }
        let _first = self.open.set(found.open);
    }
}

#[cfg(test)]
impl Disks {
    /// Opens all disks, one after the other.
    pub(crate) fn open(
        paths: &[PathBuf],
        known: &Memory,
        cluster: ClusterId,
        opener: &dyn OpenDisk,
        random: &mut rand::rngs::StdRng,
        now_ms: u64,
    ) -> Result<Self> {
        let disks = Self::new(paths, known);
        for number in 0..paths.len() {
            let new = NewDisk { disk_id: rand::Rng::random(random), created_ms: now_ms };
            disks.join(number, disks.open_one(number, new, known, cluster, opener)?);
            *disks.0[number].standing() = Standing::Ours;
        }
        Ok(disks)
    }
}
