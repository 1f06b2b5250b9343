//! Reads one block and checks every page.

use super::disk::{Disk, cannot_open, too_many_files};
use crate::block_store::BlockReader;
use crate::coverage::page_span;
use crate::sidecar::{SIDECAR_BYTES_MAX, Sidecar};
use rustix::io::ReadWriteFlags;
use std::fs::File;
use std::io::{self, ErrorKind, IoSliceMut, Read};
use std::num::NonZeroU64;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};
use weft_types::{
    BlockId, BlockMeta, Cause, ClusterId, Error, PAGE_LEN, Reaction, Result, Span, crc32c, crc32c_joined, crc32c_zeros,
};

/// Fills a buffer with the bytes of a file from an offset on.
type Fill = fn(&File, &mut [u8], u64) -> io::Result<()>;

fn fill_waiting(file: &File, buf: &mut [u8], offset: u64) -> io::Result<()> {
    file.read_exact_at(buf, offset)
}

/// Reads from the page cache only, or fails.
fn fill_cached(file: &File, buf: &mut [u8], offset: u64) -> io::Result<()> {
    let read = rustix::io::preadv2(file, &mut [IoSliceMut::new(buf)], offset, ReadWriteFlags::NOWAIT)?;
    if read == buf.len() { Ok(()) } else { Err(ErrorKind::WouldBlock.into()) }
}

pub(super) struct LocalReader {
    payload: File,
    sidecar: Sidecar,
    /// The disk's count.
    errors: Arc<AtomicU64>,
}

impl LocalReader {
    pub(super) fn open(disk: &Disk, id: BlockId) -> Result<Self> {
        Self::opened(disk, id).inspect_err(|error| count(&disk.read_errors, error))
    }

    fn opened(disk: &Disk, id: BlockId) -> Result<Self> {
        let path = disk.payload_path(id);
        let payload = File::open(&path).map_err(|error| match error.kind() {
            ErrorKind::NotFound => Error::not_found("the block is not on this disk"),
            _ => unreadable(&path, &error),
        })?;
        let sidecar = match read_sidecar(&disk.sidecar_path(id), id, disk.label.cluster)? {
            Some(sidecar) => sidecar,
            // Either the block was removed between the two checks, or its sidecar is lost.
            None if !path.exists() => return Err(Error::not_found("the block is not on this disk")),
            None => return Err(Error::corrupt("the block has no sidecar")),
        };
        Ok(Self { payload, sidecar, errors: Arc::clone(&disk.read_errors) })
    }

    /// Returns the CRC32C of the bytes read.
    fn read(&self, offset: u64, buf: &mut [u8], fill: Fill) -> Result<u32> {
        let len = self.meta().len();
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
        fill(&self.payload, buf, start).map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof => {
                let found = self.payload.metadata().map_or(0, |it| it.len());
                Error::corrupt(format!("bytes {}..{end} are missing: the file ends at {found}", found.clamp(start, end)))
            }
            _ => unreadable_bytes(Span::new(start, end), &error),
        })?;
        let first = start / PAGE_LEN;
        for (number, page) in (first..).zip(buf.chunks(PAGE_LEN as usize)) {
            let found = crc32c(page);
            if self.sidecar.pages().get(number as usize) != Some(&found) {
                let span = page_span(number, self.meta().len());
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
        self.sidecar.meta()
    }

    fn units(&self) -> &[u32] {
        self.sidecar.units()
    }

    fn pages(&self) -> &[u32] {
        self.sidecar.pages()
    }

    fn stored_len(&self) -> Result<u64> {
        let found = self.payload.metadata().map_err(|error| unreadable_bytes(Span::new(0, self.meta().len()), &error));
        found.map(|it| it.len()).map_err(|error| error.block(self.meta().id))
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<u32> {
        let read = self.read(offset, buf, fill_waiting).inspect_err(|error| count(&self.errors, error));
        read.map_err(|error| error.block(self.meta().id))
    }

    fn read_cached(&self, offset: u64, buf: &mut [u8]) -> Option<u32> {
        self.read(offset, buf, fill_cached).ok()
    }

    fn forget_cached(&self, bytes: Span) {
        // Without a length, it would be all that follows.
        if let Some(len) = NonZeroU64::new(bytes.len()) {
            let _unsupported = rustix::fs::fadvise(&self.payload, bytes.start, Some(len), rustix::fs::Advice::DontNeed);
        }
    }
}

/// Counts an error of the device.
fn count(errors: &AtomicU64, error: &Error) {
    if error.cause == Some(Cause::Unreadable) || error.reaction == Reaction::Fatal {
        errors.fetch_add(1, Relaxed);
    }
}

/// Reads a sidecar and checks that it belongs to this block. `None` if there is none.
pub(super) fn read_sidecar(path: &Path, id: BlockId, cluster: ClusterId) -> Result<Option<Sidecar>> {
    let mut file = match File::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        file => file.map_err(|error| unreadable(path, &error))?,
    };
    let len = file.metadata().map_err(|error| unreadable(path, &error))?.len();
    if len > SIDECAR_BYTES_MAX {
        return Err(Error::corrupt("the sidecar is larger than any valid one"));
    }
    // One call instead of a dozen, because a read opens every block that it touches for every window.
    let mut bytes = vec![0; len as usize];
    file.read_exact(&mut bytes).map_err(|error| unreadable(path, &error))?;
    let sidecar = Sidecar::decode(&bytes)?;
    let meta = sidecar.meta();
    if meta.id != id {
        return Err(Error::corrupt(format!("the sidecar belongs to block {}", meta.id)));
    }
    if meta.cluster != cluster {
        return Err(Error::corrupt(format!("the sidecar belongs to cluster {}", meta.cluster)));
    }
    Ok(Some(sidecar))
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
