//! The quarantine: blocks that are out of service, each in a directory of its own.
//!
//! ```text
//!   quarantine/s199-b003-c0-g1.1/reason      why
//!   quarantine/s199-b003-c0-g1.1/since-ms    since when, for a block that may be deleted later
//!   quarantine/s199-b003-c0-g1.1/sidecar
//!   quarantine/s199-b003-c0-g1.1/payload     written last and deleted first
//! ```

use super::device::cannot_open;
use super::disk::{Disk, QUARANTINE, remove_if_there, write_synced};
use super::steps::Step;
use crate::block_store::{QuarantinePlace, Quarantined};
use crate::files::Files;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};
use weft_types::{BlockId, Error, Result};

const PAYLOAD: &str = "payload";
const SIDECAR: &str = "sidecar";
const REASON: &str = "reason";
const SINCE: &str = "since-ms";

impl Disk {
    /// Writes the reason and a second name of the sidecar first. A crash before the payload moves leaves the block as
    /// it was. A crash after it leaves a sidecar that the quarantine also has.
    pub(super) fn quarantine(self: &Arc<Self>, id: BlockId, reason: &str, since_ms: Option<u64>) -> Result<()> {
        let _claim = self.claim(id)?;
        self.quarantine_claimed(id, reason, since_ms)
    }

    pub(super) fn quarantine_claimed(&self, id: BlockId, reason: &str, since_ms: Option<u64>) -> Result<()> {
        let (payload, sidecar) = (self.payload_path(id), self.sidecar_path(id));
        let files = &*self.device.files;
        if !self.exists(&payload)? {
            return Err(Error::not_found("the block is not on this disk"));
        }
        let place = self.step(Step::WriteReason, || {
            let place = self.new_quarantine_place(id)?;
            if let Some(since_ms) = since_ms {
                write_synced(&self.device, &place.join(SINCE), &format!("{since_ms}\n"))?;
            }
            write_synced(&self.device, &place.join(REASON), &format!("{id}: {reason}\n"))?;
            Ok(place)
        })?;
        self.step(Step::LinkSidecar, || match files.hard_link(&sidecar, &place.join(SIDECAR)) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => self.device.sync_dir(&place).and_then(|()| self.device.sync_dir(&self.dir.join(QUARANTINE))),
        })?;
        self.shared.forget(id);
        let moved = place.join(PAYLOAD);
        self.step(Step::QuarantinePayload, || files.rename(&payload, &moved).and_then(|()| self.device.sync_dir(&place)))?;
        self.recount(|quarantined, bytes| (quarantined.blocks + 1, quarantined.bytes + bytes), len_of(files, &moved));
        self.step(Step::RemoveSidecar, || remove_if_there(files, &sidecar))?;
        self.step(Step::SyncDirectory, || self.device.sync_dir(&self.shard_dir(id)))?;
        tracing::warn!(block = %id, place = %place.display(), reason, "moved a block to quarantine");
        Ok(())
    }

    pub(super) fn quarantined(&self) -> Quarantined {
        *self.quarantined.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn quarantine_places(&self) -> Result<Vec<QuarantinePlace>> {
        let (files, dir) = (&*self.device.files, self.dir.join(QUARANTINE));
        // Without a readable time it is left to an operator.
        let since = |place: &str| files.read_text(&dir.join(place).join(SINCE)).ok()?.trim_end().parse::<u64>().ok();
        let place = |name: String| QuarantinePlace {
            since_ms: since(&name),
            bytes: len_of(files, &dir.join(&name).join(PAYLOAD)).unwrap_or(0),
            name,
        };
        let mut all: Vec<QuarantinePlace> = places(files, &dir)?.into_iter().map(place).collect();
        all.sort_by_key(|place| place.since_ms.unwrap_or(u64::MAX));
        Ok(all)
    }

    pub(super) fn delete_quarantined(&self, place: &str) -> Result<()> {
        let (files, dir) = (&*self.device.files, self.dir.join(QUARANTINE));
        if !is_place(place) || !self.exists(&dir.join(place))? {
            return Ok(());
        }
        let place = dir.join(place);
        let payload = place.join(PAYLOAD);
        let bytes = len_of(files, &payload);
        self.step(Step::DeleteQuarantined, || remove_if_there(files, &payload).and_then(|()| self.device.sync_dir(&place)))?;
        if bytes.is_some() {
            let without = |of: Quarantined, bytes| (of.blocks.saturating_sub(1), of.bytes.saturating_sub(bytes));
            self.recount(without, bytes);
        }
        // The file that marks the entry as deletable is deleted last.
        self.step(Step::DeleteQuarantined, || {
            [SIDECAR, REASON, SINCE].iter().try_for_each(|name| remove_if_there(files, &place.join(name)))?;
            match files.remove_dir(&place) {
                // An operator may have put other files beside it.
                Err(error) if error.kind() != ErrorKind::DirectoryNotEmpty => Err(error),
                _ => self.device.sync_dir(&dir),
            }
        })
    }

    fn recount(&self, change: impl FnOnce(Quarantined, u64) -> (u64, u64), bytes: Option<u64>) {
        let mut quarantined = self.quarantined.lock().unwrap_or_else(PoisonError::into_inner);
        let (blocks, bytes) = change(*quarantined, bytes.unwrap_or(0));
        *quarantined = Quarantined { blocks, bytes };
    }

    fn new_quarantine_place(&self, id: BlockId) -> io::Result<PathBuf> {
        let quarantine = self.dir.join(QUARANTINE);
        let mut times = 1u32;
        loop {
            let place = quarantine.join(format!("{id}.{times}"));
            match self.device.files.create_dir(&place) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists && times < u32::MAX => times += 1,
                made => return made.map(|()| place),
            }
        }
    }
}

/// Counts the blocks in a quarantine.
pub(super) fn count(files: &dyn Files, dir: &Path) -> Result<Quarantined> {
    let mut all = Quarantined::default();
    for bytes in places(files, dir)?.iter().filter_map(|place| len_of(files, &dir.join(place).join(PAYLOAD))) {
        all = Quarantined { blocks: all.blocks + 1, bytes: all.bytes + bytes };
    }
    Ok(all)
}

fn len_of(files: &dyn Files, payload: &Path) -> Option<u64> {
    files.len(payload).ok()
}

fn is_place(name: &str) -> bool {
    name.rsplit_once('.').is_some_and(|(id, times)| id.parse::<BlockId>().is_ok() && !times.contains('/'))
}

/// The directories of quarantined blocks, sorted. Ignores everything else in `dir`.
fn places(files: &dyn Files, dir: &Path) -> Result<Vec<String>> {
    let failed = |error| cannot_open(dir, "cannot list it", &error);
    let mut places = Vec::new();
    for name in files.names(dir).map_err(failed)? {
        places.extend(name.into_string().ok().filter(|name| is_place(name)));
    }
    places.sort_unstable();
    Ok(places)
}
