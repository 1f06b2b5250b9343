//! Overwrites pages of a block in place. `BlockStore::patch` says what the caller must do; `sidecar::in_place` how a crash in the middle is
//! noticed.
//!
//! The payload is synced before the sidecar is written. So once the sidecar says that the block contains an update, the payload does.

use super::disk::Disk;
use super::reader::read_sidecar;
use super::shared::Shared;
use super::steps::Step;
use crate::block_store::{Patch, Receipt};
use crate::files::{FileHandle, Open};
use crate::sidecar::Writes;
use std::io::ErrorKind;
use std::sync::{Arc, atomic::Ordering::Relaxed};
use weft_types::{Error, Result};

pub(super) fn patch(disk: &Arc<Disk>, patch: &Patch<'_>) -> Result<Receipt> {
    let id = patch.id;
    disk.device.check_alive()?;
    let _claim = disk.claim(id)?;
    let missing = || Error::not_found("the block is not on this disk");
    let payload = disk.device.files.open(&disk.payload_path(id), Open::Write);
    let payload = payload.map_err(|error| match error.kind() {
        ErrorKind::NotFound => missing(),
        _ => super::device::cannot_open(&disk.payload_path(id), "cannot open it", &error),
    })?;
    disk.raise_version()?;
    let load = || read_sidecar(disk, id)?.ok_or_else(|| Error::corrupt("the block has no sidecar"));
    let block = disk.shared.begin_patch(id, load)?;
    let (after, writes) = block.current().patched(patch)?;
    let receipt = Receipt { len: after.sidecar.meta().len(), units: after.sidecar.units().to_vec() };
    let images: u64 = patch.images.iter().map(|image| image.bytes.len() as u64).sum();
    disk.device.patched_bytes.fetch_add(images + writes.bytes(), Relaxed);
    let written = write_pages(disk, &*payload, &block, patch, after).and_then(|()| write_sidecar(disk, patch, writes));
    // After an error, memory has more than the disk.
    written.inspect_err(|_| disk.shared.forget(id))?;
    Ok(receipt)
}

fn write_pages(
    disk: &Disk,
    payload: &dyn FileHandle,
    block: &Shared,
    patch: &Patch<'_>,
    after: crate::sidecar::Loaded,
) -> Result<()> {
    {
        let _pages = block.lock_pages();
        for image in patch.images {
            disk.step(Step::PatchPayload, || payload.write_all_at(image.bytes, image.offset))?;
        }
        block.replace(after);
    }
    if patch.images.is_empty() {
        return Ok(());
    }
    disk.step(Step::SyncPayload, || disk.device.sync_data(payload))
}

fn write_sidecar(disk: &Disk, patch: &Patch<'_>, writes: Writes) -> Result<()> {
    let (device, name) = (&disk.device, disk.sidecar_path(patch.id));
    match writes {
        Writes::Nothing => Ok(()),
        Writes::Replace(bytes) => {
            let temporary = disk.temporary_dir().join(format!("{}.meta", patch.id));
            let file = disk.step(Step::WriteSidecar, || {
                let file = device.files.open(&temporary, Open::CreateEmpty)?;
                file.write_all_at(&bytes, 0).map(|()| file)
            })?;
            disk.step(Step::SyncSidecar, || device.sync_all(&*file))?;
            disk.step(Step::RenameSidecar, || device.files.rename(&temporary, &name))?;
            disk.step(Step::SyncDirectory, || device.sync_dir(&disk.shard_dir(patch.id)))
        }
        Writes::At { first, then } => {
            let file = disk.step(Step::PatchSidecar, || device.files.open(&name, Open::Write))?;
            if let Some((offset, bytes)) = first {
                disk.step(Step::PatchSidecar, || file.write_all_at(&bytes, offset))?;
                disk.step(Step::SyncSidecar, || device.sync_data(&*file))?;
            }
            for (offset, bytes) in then {
                disk.step(Step::PatchSidecar, || file.write_all_at(&bytes, offset))?;
            }
            disk.step(Step::SyncSidecar, || device.sync_data(&*file))
        }
    }
}
