//! Writes one block: payload under a temporary name, sidecar, commit.

use super::disk::{Claim, Disk, remove_if_there};
use super::steps::Step;
use super::write_back::WriteBack;
use crate::block_store::{BlockWriter, Receipt};
use crate::coverage::{Coverage, units_of};
use crate::files::{FileHandle, Files, Open};
use crate::sidecar::Sidecar;
use std::path::PathBuf;
use std::sync::Arc;
use weft_types::{BlockMeta, CHECKSUM_UNIT_LEN, Error, Result, Span};

pub(super) struct LocalWriter {
    disk: Arc<Disk>,
    meta: BlockMeta,
    payload: Box<dyn FileHandle>,
    coverage: Coverage,
    write_back: WriteBack,
    /// True after a failed write: the content of the file is unknown.
    broken: bool,
    leftovers: Leftovers,
    // The last field, so that it is dropped after the leftovers: the next writer of this block may use their names.
    _claim: Claim,
}

impl LocalWriter {
    pub(super) fn create(disk: &Arc<Disk>, meta: &BlockMeta) -> Result<Self> {
        disk.device.check_alive()?;
        let claim = disk.claim(meta.id)?;
        if disk.exists(&disk.payload_path(meta.id))? {
            return Err(Error::invalid("the block is already on this disk"));
        }
        let temporary = disk.temporary_dir().join(meta.id.to_string());
        let leftovers = Leftovers { files: Arc::clone(&disk.device.files), paths: vec![temporary.clone()] };
        let payload = disk.step(Step::CreateTemporary, || disk.device.files.open(&temporary, Open::CreateEmpty))?;
        let len = meta.len();
        if len > 0 {
            // Allocates all space now. A full disk is then noticed before bytes are transferred, and scattered writes
            // do not fragment the file.
            disk.step(Step::Allocate, || payload.allocate(len))?;
        }
        let disk = Arc::clone(disk);
        let (coverage, write_back) = (Coverage::new(len), WriteBack::default());
        Ok(Self { disk, meta: meta.clone(), payload, coverage, write_back, broken: false, leftovers, _claim: claim })
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        if self.broken {
            return Err(Error::fatal("an earlier write of this block failed"));
        }
        let len = self.meta.len();
        let end =
            offset.checked_add(bytes.len() as u64).ok_or_else(|| Error::invalid("the offset is too large for any block"))?;
        let (bytes, beyond) = bytes.split_at(len.saturating_sub(offset).min(bytes.len() as u64) as usize);
        if beyond.iter().any(|byte| *byte != 0) {
            return Err(Error::corrupt(format!("bytes {}..{end} are beyond the block's end and not zero", offset.max(len))));
        }
        if bytes.is_empty() {
            return Ok(());
        }
        let span = Span::new(offset, offset + bytes.len() as u64);
        self.coverage.admit(span)?;
        let written = self.disk.step(Step::WritePayload, || self.payload.write_all_at(bytes, offset));
        self.broken = written.is_err();
        written?;
        self.coverage.add(offset, bytes);
        self.write_back.wrote(&*self.payload, span);
        Ok(())
    }

    /// Makes the sidecar durable before it renames the payload, because the payload's name makes the block exist.
    fn commit(mut self, expected_checksums: Option<&[u32]>) -> Result<Receipt> {
        if self.broken {
            return Err(Error::fatal("an earlier write of this block failed"));
        }
        if let Some(first) = self.coverage.missing().first() {
            return Err(Error::replan(format!("bytes {}..{} have not arrived", first.start, first.end)));
        }
        let (id, len) = (self.meta.id, self.meta.len());
        let pages = self.coverage.into_pages();
        compare(&units_of(&pages, len), expected_checksums, len)?;
        let sidecar = Sidecar::new(self.meta, pages)?;
        let (disk, device) = (&self.disk, &self.disk.device);
        let shard = disk.make_shard(id)?;

        let (temporary, name) = (disk.temporary_dir().join(format!("{id}.meta")), disk.sidecar_path(id));
        self.leftovers.paths.extend([temporary.clone(), name.clone()]);
        let encoded = sidecar.encode()?;
        let file = disk.step(Step::WriteSidecar, || {
            let file = device.files.open(&temporary, Open::CreateEmpty)?;
            file.write_all_at(&encoded, 0).map(|()| file)
        })?;
        disk.step(Step::SyncSidecar, || device.sync_all(&*file))?;
        disk.step(Step::RenameSidecar, || device.files.rename(&temporary, &name))?;

        disk.step(Step::SyncPayload, || device.sync_all(&*self.payload))?;
        disk.step(Step::RenamePayload, || {
            device.files.rename(&disk.temporary_dir().join(id.to_string()), &disk.payload_path(id))?;
            // The block exists now: its files are no longer leftovers.
            self.leftovers.paths.clear();
            Ok(())
        })?;
        disk.step(Step::SyncDirectory, || device.sync_dir(&shard))?;
        Ok(Receipt { len, units: sidecar.units().to_vec() })
    }
}

impl BlockWriter for LocalWriter {
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.write(offset, bytes).map_err(|error| error.block(self.meta.id))
    }

    fn missing(&self) -> Vec<Span> {
        self.coverage.missing()
    }

    fn finish(self: Box<Self>, expected_checksums: Option<&[u32]>) -> Result<Receipt> {
        let id = self.meta.id;
        self.commit(expected_checksums).map_err(|error| error.block(id))
    }
}

/// The files to remove if the block is not committed.
#[derive(Debug)]
struct Leftovers {
    files: Arc<dyn Files>,
    paths: Vec<PathBuf>,
}

impl Drop for Leftovers {
    fn drop(&mut self) {
        for path in &self.paths {
            // A remaining file is removed at the next start.
            if let Err(error) = remove_if_there(&*self.files, path) {
                tracing::warn!(path = %path.display(), %error, "cannot remove a temporary file");
            }
        }
    }
}

fn compare(units: &[u32], expected: Option<&[u32]>, len: u64) -> Result<()> {
    let Some(expected) = expected else { return Ok(()) };
    if units.len() != expected.len() {
        return Err(Error::invalid(format!("{} unit checksums were given for a block of {} units", expected.len(), units.len())));
    }
    match units.iter().zip(expected).position(|(unit, expected)| unit != expected) {
        None => Ok(()),
        Some(unit) => {
            let start = unit as u64 * CHECKSUM_UNIT_LEN;
            let end = (start + CHECKSUM_UNIT_LEN).min(len);
            Err(Error::corrupt(format!("unit {unit} (bytes {start}..{end}) differs from its recorded checksum")))
        }
    }
}
