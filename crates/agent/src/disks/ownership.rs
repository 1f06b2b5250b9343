//! Disks that another node had: they are kept aside until the coordinator agrees that they are this node's, and then join.

use super::{Disk, Disks, JournalledDisk, Standing};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::atomic::Ordering::Relaxed,
};
use tokio::time::Instant;
use weft_proto::v1;

/// In the agent's state, before the id of a disk that is not this node's.
pub(super) const ASIDE_MARK: &str = "aside-";
/// Instead of that if its owner has had it at the same time: one of the two is a copy.
const COPY_MARK: &str = "aside-copy-";

impl Disks {
    /// The coordinator's answer: which of the disks to keep aside their owners have had at the same time. `told`: the ids of the disks that it
    /// was asked about; it says nothing of one that was opened since.
    pub(crate) fn note_copies(&self, told: &BTreeSet<String>, aside: &[v1::AsideDisk]) {
        for disk in self.0.iter().filter(|disk| told.contains(disk.id())) {
            disk.is_copy.store(aside.iter().any(|it| it.copy && it.id == disk.id()), Relaxed);
        }
    }

    /// The coordinator's answer about the disks `told`, by id: those to keep aside, with the reasons. Returns the numbers of those that may join
    /// now.
    pub(crate) fn sort(&self, told: &BTreeSet<String>, aside: &BTreeMap<String, String>) -> Vec<usize> {
        let mut joining = Vec::new();
        for (number, disk) in self.0.iter().enumerate().filter(|(_, disk)| told.contains(disk.id())) {
            let why = aside.get(disk.id());
            let mut standing = disk.standing();
            match why {
                Some(why) => {
                    let now = Standing::Aside(why.clone());
                    if *standing != now {
                        tracing::warn!(disk = %disk.path.display(), why, "keeps a disk aside: none of its blocks is served");
                    }
                    *standing = now;
                }
                // The task of one that joins goes on.
                None if disk.open.get().is_none() || matches!(*standing, Standing::Ours | Standing::Joining(_)) => {}
                None => {
                    *standing = Standing::Joining(Instant::now());
                    joining.push(number);
                }
            }
        }
        joining
    }

    /// Whether a disk is kept aside, by its number.
    pub(crate) fn is_aside(&self, number: usize) -> bool {
        matches!(*self.0[number].standing(), Standing::Aside(_))
    }

    /// The marked ids of disks that are not this node's, by path: they are strange after a restart, too, and no new disk is created in the mount
    /// point of one.
    pub(crate) fn marked_ids(&self) -> BTreeMap<String, String> {
        let marked = |disk: &Disk| match (&*disk.standing(), disk.id()) {
            (Standing::Unknown | Standing::Aside(_), id) if !id.is_empty() => Some(disk.mark(id)),
            (_, "") => disk.marked_id.clone(),
            _ => None,
        };
        self.0.iter().filter_map(|disk| Some((disk.path.display().to_string(), marked(disk)?))).collect()
    }

    /// What updates in place need of a disk that joins.
    pub(crate) fn joining(&self, number: usize) -> Option<JournalledDisk> {
        let disk = &self.0[number];
        let open = disk.any_opened().ok()?;
        matches!(*disk.standing(), Standing::Joining(_)).then(|| open.journalled(&disk.path))
    }

    /// The id of a disk, by its number.
    pub(crate) fn id(&self, number: usize) -> &str {
        self.0[number].id()
    }

    /// The journal of a disk that joins is open: it serves from now on, unless it is kept aside again.
    pub(crate) fn joined(&self, number: usize) {
        let mut standing = self.0[number].standing();
        if matches!(*standing, Standing::Joining(_)) {
            *standing = Standing::Ours;
        }
    }
}

impl Disk {
    /// The id with the mark of a disk that is not this node's.
    fn mark(&self, id: &str) -> String {
        let mark = if self.is_copy.load(Relaxed) { COPY_MARK } else { ASIDE_MARK };
        format!("{mark}{id}")
    }

    /// It was opened with this id: whether it was a copy when it was last opened is in the agent's state.
    pub(super) fn recall_copy(&self, id: &str) {
        if self.marked_id.as_deref().and_then(|marked| marked.strip_prefix(COPY_MARK)) == Some(id) {
            self.is_copy.store(true, Relaxed);
        }
    }
}
