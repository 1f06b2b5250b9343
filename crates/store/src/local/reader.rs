//! Reads one block and checks every page.
//!
//! A block may be patched while it is read. Its checksums in memory are replaced together with its pages, under the block's page lock. A
//! read without the lock may meet pages that are newer than the checksums that it has; it is then repeated under the lock.

use super::device::{Device, cannot_open, too_many_files};
use super::disk::Disk;
use super::shared::Shared;
use crate::block_store::BlockReader;
use crate::coverage::page_span;
use crate::files::{FileHandle, Open};
use crate::sidecar::{Loaded, SIDECAR_BYTES_MAX};
use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::{Arc, atomic::Ordering::Relaxed};
use weft_types::{BlockId, BlockMeta, Cause, Error, PAGE_LEN, Reaction, Result, Span, crc32c, crc32c_joined, crc32c_zeros};

/// Fills a buffer with the bytes of a file from an offset on.
type Fill = fn(&dyn FileHandle, &mut [u8], u64) -> io::Result<()>;

fn fill_waiting(file: &dyn FileHandle, buf: &mut [u8], offset: u64) -> io::Result<()> {
    file.read_exact_at(buf, offset)
}

/// Reads from the page cache only, or fails.
fn fill_cached(file: &dyn FileHandle, buf: &mut [u8], offset: u64) -> io::Result<()> {
    file.read_cached_at(buf, offset)
}

pub(super) struct LocalReader {
    payload: Box<dyn FileHandle>,
    block: Arc<Shared>,
    /// As it was when the block was opened.
    opened: Arc<Loaded>,
    device: Arc<Device>,
}

impl LocalReader {
    pub(super) fn open(disk: &Disk, id: BlockId) -> Result<Self> {
        Self::opened(disk, id).inspect_err(|error| count(&disk.device, error))
    }

    fn opened(disk: &Disk, id: BlockId) -> Result<Self> {
        let path = disk.payload_path(id);
        let payload = disk.device.files.open(&path, Open::Read).map_err(|error| match error.kind() {
            ErrorKind::NotFound => Error::not_found("the block is not on this disk"),
            _ => unreadable(&path, &error),
        })?;
        let block = disk.shared.get_or_load(id, || match read_sidecar(disk, id)? {
            Some(loaded) => Ok(loaded),
            // Either the block was removed between the two checks, or its sidecar is lost.
            None if !disk.exists(&path)? => Err(Error::not_found("the block is not on this disk")),
            None => Err(Error::corrupt("the block has no sidecar")),
        })?;
        let opened = block.current();
        Ok(Self { payload, block, opened, device: Arc::clone(&disk.device) })
    }

    fn read(&self, offset: u64, buf: &mut [u8], fill: Fill) -> Result<u32> {
        Pages { payload: &*self.payload, loaded: &self.block.current() }.read(offset, buf, fill)
    }

    /// Reads while no patch changes pages.
    fn read_locked(&self, offset: u64, buf: &mut [u8]) -> Result<u32> {
        let _pages = self.block.lock_pages_for_reading();
        self.read(offset, buf, fill_waiting)
    }
}

/// A payload, and the checksums that it must have.
struct Pages<'a> {
    payload: &'a dyn FileHandle,
    loaded: &'a Loaded,
}

impl Pages<'_> {
    /// Returns the CRC32C of the bytes read.
    fn read(&self, offset: u64, buf: &mut [u8], fill: Fill) -> Result<u32> {
        let len = self.loaded.sidecar.meta().len();
        let inside = len.saturating_sub(offset).min(buf.len() as u64) as usize;
        let (mut rest, beyond) = buf.split_at_mut(inside);
        beyond.fill(0);
        let (mut at, mut checksum) = (offset, 0);
        while !rest.is_empty() {
            let page = page_span(at / PAGE_LEN, len);
            let end = at + rest.len() as u64;
            let piece;
            if at == page.start && end >= page.end {
                // Whole pages are read directly into `buf` and checked there.
                let whole_end = if end == len { end } else { end / PAGE_LEN * PAGE_LEN };
                (piece, rest) = rest.split_at_mut((whole_end - at) as usize);
                checksum = self.read_pages(at, piece, checksum, fill)?;
            } else {
                let mut aside = [0; PAGE_LEN as usize];
                let aside = &mut aside[..page.len() as usize];
                self.read_pages(page.start, aside, 0, fill)?;
                let wanted = Span::new(at, end.min(page.end));
                (piece, rest) = rest.split_at_mut(wanted.len() as usize);
                piece.copy_from_slice(&aside[(wanted.start - page.start) as usize..(wanted.end - page.start) as usize]);
                checksum = crc32c_joined(checksum, crc32c(piece), wanted.len());
            }
            at += piece.len() as u64;
        }
        let beyond_len = beyond.len() as u64;
        Ok(if beyond_len == 0 { checksum } else { crc32c_joined(checksum, crc32c_zeros(beyond_len), beyond_len) })
    }

    /// Reads and checks whole pages from a page boundary. `checksum` is that of the bytes before them; returns it
    /// extended by these.
    fn read_pages(&self, start: u64, buf: &mut [u8], mut checksum: u32, fill: Fill) -> Result<u32> {
        let end = start + buf.len() as u64;
        fill(self.payload, buf, start).map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof => {
                let found = self.payload.len().unwrap_or(0);
                Error::corrupt(format!("bytes {}..{end} are missing: the file ends at {found}", found.clamp(start, end)))
            }
            _ => unreadable_bytes(Span::new(start, end), &error),
        })?;
        let first = start / PAGE_LEN;
        for (number, page) in (first..).zip(buf.chunks(PAGE_LEN as usize)) {
            let found = crc32c(page);
            if self.loaded.is_page_interrupted(number) {
                return Err(Error::corrupt(format!("a patch of page {number} was interrupted and must be repeated")));
            }
            if self.loaded.sidecar.pages().get(number as usize) != Some(&found) {
                let span = page_span(number, self.loaded.sidecar.meta().len());
                return Err(Error::corrupt(format!(
                    "the checksum of page {number} (bytes {}..{}) is wrong",
                    span.start, span.end
                )));
            }
            checksum = crc32c_joined(checksum, found, page.len() as u64);
        }
        Ok(checksum)
    }
}

impl BlockReader for LocalReader {
    fn meta(&self) -> &BlockMeta {
        self.opened.sidecar.meta()
    }

    fn units(&self) -> &[u32] {
        self.opened.sidecar.units()
    }

    fn pages(&self) -> &[u32] {
        self.opened.sidecar.pages()
    }

    fn is_interrupted(&self) -> bool {
        self.block.current().is_interrupted()
    }

    fn stored_len(&self) -> Result<u64> {
        let found = self.payload.len().map_err(|error| unreadable_bytes(Span::new(0, self.meta().len()), &error));
        found.map_err(|error| error.block(self.meta().id))
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<u32> {
        let mut read = self.read(offset, buf, fill_waiting);
        if read.as_ref().is_err_and(|error| error.reaction == Reaction::Corrupt) && self.block.is_patched() {
            read = self.read_locked(offset, buf);
        }
        read.inspect_err(|error| count(&self.device, error)).map_err(|error| error.block(self.meta().id))
    }

    fn read_cached(&self, offset: u64, buf: &mut [u8]) -> Option<u32> {
        self.read(offset, buf, fill_cached).ok()
    }

    fn forget_cached(&self, bytes: Span) {
        self.payload.drop_cache(bytes);
    }
}

/// Counts an error of the device.
fn count(device: &Device, error: &Error) {
    if error.cause == Some(Cause::Unreadable) || error.reaction == Reaction::Fatal {
        device.read_errors.fetch_add(1, Relaxed);
    }
}

/// Reads a sidecar and checks that it belongs to this block. `None` if there is none.
pub(super) fn read_sidecar(disk: &Disk, id: BlockId) -> Result<Option<Loaded>> {
    let path = &disk.sidecar_path(id);
    let file = match disk.device.files.open(path, Open::Read) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        file => file.map_err(|error| unreadable(path, &error))?,
    };
    let len = file.len().map_err(|error| unreadable(path, &error))?;
    if len > SIDECAR_BYTES_MAX {
        return Err(Error::corrupt("the sidecar is larger than any valid one"));
    }
    // One call instead of a dozen, because a read opens every block that it touches for every window.
    let mut bytes = vec![0; len as usize];
    file.read_exact_at(&mut bytes, 0).map_err(|error| unreadable(path, &error))?;
    let loaded = Loaded::decode(&bytes)?;
    let meta = loaded.sidecar.meta();
    if meta.id != id {
        return Err(Error::corrupt(format!("the sidecar belongs to block {}", meta.id)));
    }
    if meta.cluster != disk.label.cluster {
        return Err(Error::corrupt(format!("the sidecar belongs to cluster {}", meta.cluster)));
    }
    Ok(Some(loaded))
}

/// A sector that cannot be read counts as a corrupt page; any other error is a fault of the machine.
fn unreadable(path: &Path, error: &io::Error) -> Error {
    if is_media_error(error) {
        return Error::corrupt(format!("cannot read {}: {error}", path.display())).cause(Cause::Unreadable);
    }
    cannot_open(path, "cannot read it", error)
}

fn unreadable_bytes(span: Span, error: &io::Error) -> Error {
    let message = format!("cannot read bytes {}..{}: {error}", span.start, span.end);
    if is_media_error(error) {
        Error::corrupt(message).cause(Cause::Unreadable)
    } else if too_many_files(error) {
        Error::retry(message)
    } else {
        Error::fatal(message)
    }
}

fn is_media_error(error: &io::Error) -> bool {
    rustix::io::Errno::from_io_error(error) == Some(rustix::io::Errno::IO)
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_types::Reaction;

    #[test]
    fn a_sector_that_cannot_be_read_is_told_from_wrong_bytes() {
        let error = rustix::io::Errno::IO.into();
        for error in [unreadable(Path::new("b"), &error), unreadable_bytes(Span::new(0, 1), &error)] {
            assert_eq!((error.reaction, error.cause), (Reaction::Corrupt, Some(Cause::Unreadable)));
        }
        let error = rustix::io::Errno::ACCESS.into();
        assert_eq!(unreadable(Path::new("b"), &error).cause, None);
    }
}
