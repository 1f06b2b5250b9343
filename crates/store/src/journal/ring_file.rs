//! The ring's file: its header, and reads and writes of the ring that follows.

use super::frames::{self, Frame};
use super::index::Place;
use super::sectors::{CONTENT, PAGE, SECTOR, Sealer, Tag};
use crate::files::{FileHandle, Open};
use crate::local::Step;
use crate::local::device::{Device, cannot_open};
use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::{Arc, atomic::Ordering::Relaxed};
use weft_types::{Error, Result, Span, crc32c};

/// The newest version of the format.
const VERSION: u32 = 1;
const MAGIC: [u8; 8] = *b"weftjrnl";
/// Magic, version, bytes of the ring, nonce, the disk's id, a checksum.
const HEADER: usize = 8 + 4 + 8 + 16 + 16 + 4;
/// Where the ring begins in the file.
const RING_AT: u64 = PAGE as u64;
const CHUNK: usize = 1 << 20;

/// The smallest ring, in bytes.
pub const RING_BYTES_MIN: u64 = 1 << 20;
/// The largest ring, in bytes.
pub const RING_BYTES_MAX: u64 = 64 << 30;
/// The usual size of a ring, in bytes.
pub const RING_BYTES: u64 = 256 << 20;

/// How a journal is created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewJournal {
    /// Bytes of the ring: a multiple of 4096 from [`RING_BYTES_MIN`] to [`RING_BYTES_MAX`]. An existing journal keeps its size.
    pub ring_bytes: u64,
    /// A random number, drawn by the caller.
    pub nonce: u128,
}

/// An open ring.
#[derive(Debug)]
pub(super) struct RingFile {
    file: Box<dyn FileHandle>,
    _in_use: InUse,
    pub(super) device: Arc<Device>,
    pub(super) sealer: Sealer,
    pub(super) ring_bytes: u64,
}

impl RingFile {
    /// Opens the ring at `path`, or creates it. All space is written at once, so that a sync of the journal later has no metadata of the
    /// file system to write. What is read from now on is what the disk has.
    pub(super) fn open(device: &Arc<Device>, path: &Path, new: NewJournal, disk_id: u128) -> Result<Self> {
        let failed = |error: io::Error| cannot_open(path, "cannot open the journal", &error);
        let in_use = InUse::claim(device)?;
        if !device.files.exists(path).map_err(failed)? {
            create(device, path, new, disk_id)?;
        }
        let file = device.files.open(path, Open::Write).map_err(failed)?;
        let mut header = [0; HEADER];
        file.read_exact_at(&mut header, 0).map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof => damaged("its header is missing"),
            _ => failed(error),
        })?;
        let (ring_bytes, nonce) = decode_header(&header, disk_id)?;
        if file.len().map_err(failed)? != RING_AT + ring_bytes {
            return Err(damaged("its file has another length than its header says"));
        }
        // A process that was killed may have left writes in memory. They are read from now on, so they must be durable. And where an
        // earlier process failed to write them, memory would tell otherwise than the disk.
        device.step(Step::SyncJournal, || device.sync_data(&*file))?;
        file.drop_cache(Span::new(0, RING_AT + ring_bytes));
        Ok(Self { file, _in_use: in_use, device: Arc::clone(device), sealer: Sealer::new(nonce), ring_bytes })
    }

    /// The number of sectors.
    pub(super) fn sectors(&self) -> u64 {
        self.ring_bytes / SECTOR as u64
    }

    /// Writes whole pages at `at`, which counts from the creation of the ring.
    pub(super) fn write(&self, at: u64, pages: &[u8]) -> io::Result<()> {
        self.device.journal_bytes.fetch_add(pages.len() as u64, Relaxed);
        let start = at % self.ring_bytes;
        let (first, second) = pages.split_at((pages.len() as u64).min(self.ring_bytes - start) as usize);
        self.file.write_all_at(first, RING_AT + start)?;
        if second.is_empty() { Ok(()) } else { self.file.write_all_at(second, RING_AT) }
    }

    /// Begins to write a part of the ring to the disk.
    pub(super) fn begin_write_back(&self, at: u64, len: u64) {
        let start = at % self.ring_bytes;
        let end = (start + len).min(self.ring_bytes);
        self.file.begin_write_back(Span::new(RING_AT + start, RING_AT + end));
        if end - start < len {
            self.file.begin_write_back(Span::new(RING_AT, RING_AT + len - (end - start)));
        }
    }

    pub(super) fn sync(&self) -> io::Result<()> {
        self.device.journal_syncs.fetch_add(1, Relaxed);
        self.device.sync_data(&*self.file)
    }

    /// Fills `buf` from `at` on.
    pub(super) fn read(&self, at: u64, buf: &mut [u8]) -> io::Result<()> {
        let start = at % self.ring_bytes;
        let (first, second) = buf.split_at_mut((buf.len() as u64).min(self.ring_bytes - start) as usize);
        let count = |error: &io::Error| {
            if error.kind() != ErrorKind::UnexpectedEof {
                self.device.read_errors.fetch_add(1, Relaxed);
            }
        };
        self.file.read_exact_at(first, RING_AT + start).inspect_err(count)?;
        if second.is_empty() { Ok(()) } else { self.file.read_exact_at(second, RING_AT).inspect_err(count) }
    }

    /// Calls `visit` for each sector of a part of the ring, with its number counted from `at`, and its tag and content; without them if
    /// it is damaged or cannot be read.
    pub(super) fn scan(&self, at: u64, len: u64, mut visit: impl FnMut(u64, Option<(Tag, &[u8])>)) {
        let mut buf = vec![0; CHUNK.min(len as usize)];
        for start in (0..len).step_by(CHUNK) {
            let chunk = &mut buf[..(len - start).min(CHUNK as u64) as usize];
            let is_read = self.read(at + start, chunk).is_ok();
            for (page, bytes) in (start..).step_by(PAGE).zip(chunk.chunks_mut(PAGE)) {
                // Of a chunk that cannot be read, each page is tried alone.
                let is_read = is_read || self.read(at + page, bytes).is_ok();
                for (number, sector) in (page / SECTOR as u64..).zip(bytes.chunks(SECTOR)) {
                    let tag = if is_read { self.sealer.open(sector) } else { None };
                    visit(number, tag.map(|tag| (tag, &sector[..CONTENT])));
                }
            }
        }
    }

    /// Reads the frame of a record and passes it on; `None` if it is not there.
    pub(super) fn read_frame<T>(&self, place: Place, len: u32, take: impl FnOnce(Frame<'_>) -> T) -> io::Result<Option<T>> {
        let (start, end) = (u64::from(place.offset), u64::from(place.offset) + u64::from(len));
        let (first, last) = (start / CONTENT as u64, end.div_ceil(CONTENT as u64));
        let mut sectors = vec![0; (last - first) as usize * SECTOR];
        self.read(place.batch + first * SECTOR as u64, &mut sectors)?;
        let mut stream = Vec::with_capacity(sectors.len());
        for (index, sector) in (first..).zip(sectors.chunks(SECTOR)) {
            if self.sealer.open(sector).is_none_or(|tag| u64::from(tag.index) != index) {
                return Ok(None);
            }
            stream.extend_from_slice(&sector[..CONTENT]);
        }
        let within = (start - first * CONTENT as u64) as usize;
        let frame = frames::read(&stream[within..within + len as usize]);
        Ok(frame.ok().flatten().map(take))
    }
}

/// The right to use the journal of a disk, of which there is one.
#[derive(Debug)]
pub(crate) struct InUse(Arc<Device>);

impl InUse {
    pub(crate) fn claim(device: &Arc<Device>) -> Result<Self> {
        match device.is_journal_open.swap(true, Relaxed) {
            false => Ok(Self(Arc::clone(device))),
            true => Err(Error::invalid("the disk's journal is open already")),
        }
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        self.0.is_journal_open.store(false, Relaxed);
    }
}

pub(super) fn damaged(why: impl std::fmt::Display) -> Error {
    Error::corrupt(format!("the journal is damaged: {why}. It is not known which updates it contained"))
}

fn create(device: &Device, path: &Path, new: NewJournal, disk_id: u128) -> Result<()> {
    if !(RING_BYTES_MIN..=RING_BYTES_MAX).contains(&new.ring_bytes) || !new.ring_bytes.is_multiple_of(PAGE as u64) {
        return Err(Error::invalid(format!(
            "a journal has {RING_BYTES_MIN} to {RING_BYTES_MAX} bytes, a multiple of {PAGE}, not {}",
            new.ring_bytes
        )));
    }
    let temporary = path.with_extension("new");
    let write = || {
        let file = device.files.open(&temporary, Open::CreateEmpty)?;
        file.allocate(RING_AT + new.ring_bytes)?;
        file.write_all_at(&encode_header(new, disk_id), 0)?;
        let mut empty = vec![0; CHUNK];
        let sealer = Sealer::new(new.nonce);
        empty.chunks_mut(SECTOR).for_each(|sector| sealer.seal(sector, Tag::default()));
        for start in (0..new.ring_bytes).step_by(CHUNK) {
            let len = (new.ring_bytes - start).min(CHUNK as u64) as usize;
            file.write_all_at(&empty[..len], RING_AT + start)?;
        }
        device.sync_all(&*file)?;
        device.files.rename(&temporary, path)
    };
    device.step(Step::CreateJournal, write).inspect_err(|_| {
        // If it stays, the next attempt overwrites it.
        let _only_tidy = device.files.remove_file(&temporary);
    })?;
    device.step(Step::SyncDirectory, || path.parent().map_or(Ok(()), |dir| device.sync_dir(dir)))
}

fn encode_header(new: NewJournal, disk_id: u128) -> Vec<u8> {
    let mut header = Vec::with_capacity(PAGE);
    header.extend(MAGIC);
    header.extend(VERSION.to_le_bytes());
    header.extend(new.ring_bytes.to_le_bytes());
    header.extend(new.nonce.to_le_bytes());
    header.extend(disk_id.to_le_bytes());
    header.extend(crc32c(&header).to_le_bytes());
    header.resize(PAGE, 0);
    header
}

/// The ring's bytes and nonce. Every version begins with these fields and this checksum.
fn decode_header(header: &[u8; HEADER], disk_id: u128) -> Result<(u64, u128)> {
    let wrong = || damaged("its header is wrong");
    let (body, crc) = header.split_last_chunk::<4>().ok_or_else(wrong)?;
    let (magic, rest) = body.split_first_chunk::<8>().ok_or_else(wrong)?;
    if *magic != MAGIC || crc32c(body) != u32::from_le_bytes(*crc) {
        return Err(wrong());
    }
    let (version, rest) = rest.split_first_chunk::<4>().ok_or_else(wrong)?;
    let version = u32::from_le_bytes(*version);
    if version != VERSION {
        return Err(Error::fatal(format!(
            "the journal has version {version}, but this program reads version {VERSION}: use a newer weft"
        )));
    }
    let (ring_bytes, rest) = rest.split_first_chunk::<8>().ok_or_else(wrong)?;
    let (nonce, rest) = rest.split_first_chunk::<16>().ok_or_else(wrong)?;
    let (of_disk, _) = rest.split_first_chunk::<16>().ok_or_else(wrong)?;
    let ring_bytes = u64::from_le_bytes(*ring_bytes);
    if !(RING_BYTES_MIN..=RING_BYTES_MAX).contains(&ring_bytes) || !ring_bytes.is_multiple_of(PAGE as u64) {
        return Err(wrong());
    }
    if u128::from_le_bytes(*of_disk) != disk_id {
        return Err(damaged("it belongs to another disk"));
    }
    Ok((ring_bytes, u128::from_le_bytes(*nonce)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_types::Reaction;

    #[test]
    fn a_header_is_read_back_and_a_newer_version_is_told_from_damage() {
        let header = encode_header(NewJournal { ring_bytes: RING_BYTES, nonce: 5 }, 9);
        let bytes: [u8; HEADER] = header[..HEADER].try_into().unwrap();
        assert_eq!(decode_header(&bytes, 9).unwrap(), (RING_BYTES, 5));
        assert_eq!(decode_header(&bytes, 8).unwrap_err().reaction, Reaction::Corrupt);
        for bit in 0..HEADER * 8 {
            let mut flipped = bytes;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(decode_header(&flipped, 9).unwrap_err().reaction, Reaction::Corrupt, "bit {bit}");
        }
        let mut newer = bytes;
        newer[8] = 2;
        let crc = crc32c(&newer[..HEADER - 4]);
        newer[HEADER - 4..].copy_from_slice(&crc.to_le_bytes());
        let error = decode_header(&newer, 9).unwrap_err();
        assert!(error.reaction == Reaction::Fatal && error.message.contains("version 2"), "{error}");
    }
}
