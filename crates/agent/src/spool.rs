//! Disk space for stripes under conversion that do not fit in memory. A conversion reserves it before it reads the
//! first byte and releases it when it ends.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use weft_proto::v1::{ConvertStripeRequest, Disk};
use weft_types::{Error, Result, conversion::kept_free_bytes, human_bytes};

/// Bytes reserved for stripes on each disk, by the disk's path.
#[derive(Debug, Default)]
pub(crate) struct Spools(Mutex<BTreeMap<String, u64>>);

/// The reservation for one stripe. Dropping it releases the space.
#[derive(Debug)]
pub(crate) struct SpoolRoom {
    spools: Arc<Spools>,
    disk: String,
    bytes: u64,
}

/// The space that must stay free on a disk.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KeptFree {
    reserve_bytes: u64,
    percent: u32,
}

impl KeptFree {
    pub(crate) fn of(asked: &ConvertStripeRequest) -> Self {
        Self { reserve_bytes: asked.reserve_bytes, percent: asked.free_percent }
    }

    fn on(self, disk: &Disk) -> u64 {
        kept_free_bytes(disk.total_bytes, self.reserve_bytes, self.percent)
    }
}

impl Spools {
    /// Reserves `bytes` on the disk with the most room, or fails at once with
    /// [`Reaction::Retry`](weft_types::Reaction). Other reservations count in full, even where their bytes are already
    /// written and so count twice.
    pub(crate) fn take(self: &Arc<Self>, disks: &[Disk], bytes: u64, kept: KeptFree) -> Result<SpoolRoom> {
        let mut taken = self.lock();
        let room = |disk: &&Disk| {
            let others = taken.get(&disk.path).copied().unwrap_or(0);
            disk.free_bytes.saturating_sub(kept.on(disk)).saturating_sub(others)
        };
        let usable = disks.iter().filter(|disk| !disk.failed);
        let disk = usable.max_by_key(room).ok_or_else(|| Error::retry("none of the node's disks is usable"))?;
        if bytes > 0 && room(&disk) < bytes {
            let (path, free, bytes) = (&disk.path, human_bytes(disk.free_bytes), human_bytes(bytes));
            let (left, others) = (human_bytes(kept.on(disk)), human_bytes(taken.get(path).copied().unwrap_or(0)));
            return Err(Error::retry(format!(
                "waits for space: {path} has no room to spool a stripe of {bytes}. It has {free} free; conversions must \
                 leave {left} to puts, and other conversions have reserved {others}"
            )));
        }
        let path = disk.path.clone();
        *taken.entry(path.clone()).or_default() += bytes;
        drop(taken);
        Ok(SpoolRoom { spools: Arc::clone(self), disk: path, bytes })
    }

    /// A poisoned lock is safe to use: no code panics while the sums change.
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SpoolRoom {
    /// The directory for its files: that of the blocks being written on the disk.
    pub(crate) fn dir(&self) -> PathBuf {
        Path::new(&self.disk).join("tmp")
    }
}

impl Drop for SpoolRoom {
    fn drop(&mut self) {
        if let Some(taken) = self.spools.lock().get_mut(&self.disk) {
            *taken -= self.bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_types::Reaction;

    fn disk(path: &str, free_bytes: u64) -> Disk {
        Disk { path: path.into(), total_bytes: 1000, free_bytes, ..Disk::default() }
    }

    #[test]
    fn a_stripe_is_spooled_to_a_disk_with_room_beside_reservations_and_the_reserve() {
        let spools = Arc::new(Spools::default());
        let kept = KeptFree { reserve_bytes: 10, percent: 10 };
        let disks = [disk("a", 210), disk("b", 180), Disk { failed: true, ..disk("c", 999) }];
        let first = spools.take(&disks, 60, kept).unwrap();
        assert_eq!(first.dir(), Path::new("a/tmp"));
        let second = spools.take(&disks, 70, kept).unwrap();
        assert_eq!(second.dir(), Path::new("b/tmp"), "the first disk's room is reserved");
        let refused = spools.take(&disks, 41, kept).unwrap_err();
        assert_eq!(refused.reaction, Reaction::Retry);
        assert!(refused.message.starts_with("waits for space"), "{refused}");
        let third = spools.take(&disks, 40, kept).unwrap();
        drop((first, third));
        assert_eq!(spools.take(&disks, 100, kept).unwrap().dir(), Path::new("a/tmp"), "room that fits exactly was refused");
        spools.take(&[disk("a", 5)], 0, kept).unwrap();
        assert!(spools.take(&disks[2..], 0, kept).unwrap_err().message.contains("none of the node's disks"));
    }
}
