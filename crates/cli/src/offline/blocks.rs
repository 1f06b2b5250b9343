//! Block files: their health, and the replacement by a rebuilt one.

use super::manifest::{Geometry, Manifest, block_name};
use std::{
    fs::{File, TryLockError},
    io::Read as _,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
};
use weft_cli::{files::io_error, interrupt, progress::Progress};
use weft_client::UnitSums;
use weft_proto::crc32c;
use weft_types::{CHECKSUM_UNIT_LEN, Error, Result, Span};

/// The result of checking a block file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Scan {
    pub(crate) health: Health,
    /// Byte ranges that do not match their checksums, whole checksum units.
    pub(crate) bad: Vec<Span>,
    /// The problem as text; empty if there is none.
    pub(crate) reason: String,
}

/// Whether a block can be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Health {
    /// Every byte matches its checksum.
    Ok,
    /// The file does not exist.
    Missing,
    /// Some bytes do not match their checksums, or the length is wrong.
    Corrupt,
}

/// Reads every block file and compares it with its checksums.
pub(crate) fn scan_all(dir: &Path, manifest: &Manifest, quiet: bool) -> Result<Vec<Scan>> {
    let total = manifest.blocks.iter().map(|block| block.size).sum();
    let progress = Progress::new("checking", total, quiet);
    let scans = (manifest.blocks.iter())
        .map(|block| scan(&dir.join(&block.file), block.size, &block.crc32c, &progress))
        .collect::<Result<_>>()?;
    progress.finish();
    Ok(scans)
}

fn scan(path: &Path, size: u64, units: &[u32], progress: &Progress) -> Result<Scan> {
    let missing = |reason: &str| Scan { health: Health::Missing, bad: vec![Span::new(0, size)], reason: reason.to_owned() };
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(missing("the file does not exist")),
        Err(error) => return Err(io_error(path, "open", &error)),
    };
    let metadata = file.metadata().map_err(|error| io_error(path, "access", &error))?;
    if !metadata.is_file() {
        return Err(Error::invalid(format!("{} is not a regular file: move it away", path.display())));
    }
    let (mut bad, mut at) = (Vec::new(), 0);
    let mut buffer = Vec::new();
    for expected in units {
        let unit = Span::new(at, (at + CHECKSUM_UNIT_LEN).min(size));
        buffer.resize(unit.len() as usize, 0);
        interrupt::check()?;
        // A unit that cannot be read completely counts as corrupt; so do all units after it.
        if file.read_exact(&mut buffer).is_err() || crc32c(&buffer) != *expected {
            bad.push(unit);
        }
        progress.add(unit.len());
        at = unit.end;
    }
    let bad = Span::normalize(bad);
    let reason = match bad.first() {
        _ if metadata.len() != size => format!("it has {} bytes instead of {size}", metadata.len()),
        Some(first) => format!("bytes {}-{} do not match their checksum", first.start, first.end - 1),
        None => String::new(),
    };
    let health = if reason.is_empty() { Health::Ok } else { Health::Corrupt };
    Ok(Scan { health, bad, reason })
}

/// The positions that byte ranges of a block touch; with several sub-blocks, the positions of whole cells.
pub(crate) fn positions_of(geometry: &Geometry, bytes: &[Span]) -> Vec<Span> {
    let layout = geometry.stripe.layout;
    let widen = |span: &Span| {
        if layout.alpha == 1 {
            return *span;
        }
        let (first, end) = (span.start / layout.cell_len, span.end.div_ceil(layout.cell_len));
        Span::new(first * layout.sub_len(), end * layout.sub_len())
    };
    Span::normalize(bytes.iter().map(widen).collect())
}

/// A block file that is written under a temporary name, and takes its place only when it is complete.
#[derive(Debug)]
pub(crate) struct NewBlock {
    file: File,
    temporary: PathBuf,
    path: PathBuf,
    /// The checksums of what was written to it.
    written: UnitSums,
    placed: bool,
}

impl NewBlock {
    /// Begins a file of `len` bytes: zeros, and in the ranges `keep` the bytes of the existing file. The caller has [locked](lock) the
    /// directory, so a file under the temporary name is a leftover of a killed process.
    pub(crate) fn create(dir: &Path, index: u8, len: u64, keep: &[Span]) -> Result<Self> {
        let path = dir.join(block_name(index));
        let temporary = dir.join(format!(".{}.tmp", block_name(index)));
        match std::fs::remove_file(&temporary) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(io_error(&temporary, "remove", &error)),
            _ => {}
        }
        let file = File::options().read(true).write(true).create_new(true).open(&temporary);
        let file = file.map_err(|error| io_error(&temporary, "create", &error))?;
        let mut new = Self { file, temporary, path, written: UnitSums::new(len), placed: false };
        new.file.set_len(len).map_err(|error| io_error(&new.temporary, "write", &error))?;
        if !keep.is_empty() {
            new.keep_what_is_there(keep)?;
        }
        Ok(new)
    }

    /// Writes some of its bytes.
    pub(crate) fn write_at(&mut self, bytes: &[u8], offset: u64) -> Result<()> {
        self.written.add(offset, bytes);
        self.file.write_all_at(bytes, offset).map_err(|error| io_error(&self.temporary, "write", &error))
    }

    /// The CRC32C of each MiB as read back, which must match what was written.
    pub(crate) fn units(&self, len: u64) -> Result<Vec<u32>> {
        let mut buffer = Vec::new();
        let units = (0..len.div_ceil(CHECKSUM_UNIT_LEN)).map(|unit| {
            interrupt::check()?;
            let span = self.written.unit_span(unit);
            buffer.resize(span.len() as usize, 0);
            self.file.read_exact_at(&mut buffer, span.start).map_err(|error| io_error(&self.temporary, "read back", &error))?;
            let read = crc32c(&buffer);
            if self.written.unit(unit) != Some(read) {
                let (shown, first, last) = (self.temporary.display(), span.start, span.end - 1);
                return Err(Error::corrupt(format!(
                    "bytes {first}-{last} of {shown} differ when read back: the disk may be failing"
                )));
            }
            Ok(read)
        });
        units.collect()
    }

    /// Makes it durable and gives it its name.
    pub(crate) fn place(mut self) -> Result<()> {
        self.file.sync_all().map_err(|error| io_error(&self.temporary, "flush", &error))?;
        std::fs::rename(&self.temporary, &self.path).map_err(|error| io_error(&self.path, "replace", &error))?;
        self.placed = true;
        Ok(())
    }

    fn keep_what_is_there(&mut self, keep: &[Span]) -> Result<()> {
        let old = File::open(&self.path).map_err(|error| io_error(&self.path, "open", &error))?;
        let mut buffer = vec![0; CHECKSUM_UNIT_LEN as usize];
        for span in keep {
            let mut at = span.start;
            while at < span.end {
                interrupt::check()?;
                let piece = &mut buffer[..(span.end - at).min(CHECKSUM_UNIT_LEN) as usize];
                old.read_exact_at(piece, at).map_err(|error| io_error(&self.path, "read", &error))?;
                self.write_at(piece, at)?;
                at += piece.len() as u64;
            }
        }
        Ok(())
    }
}

impl Drop for NewBlock {
    fn drop(&mut self) {
        if !self.placed {
            // Best effort: a leftover has a name that nothing reads, and the next attempt overwrites it.
            let _ = std::fs::remove_file(&self.temporary);
        }
    }
}

/// Locks the directory against other processes that encode into it or repair it.
pub(crate) fn lock(dir: &Path) -> Result<File> {
    let file = File::open(dir).map_err(|error| io_error(dir, "open", &error))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => {
            Err(Error::retry(format!("another weft process is working in {}: wait until it has ended", dir.display())))
        }
        Err(TryLockError::Error(error)) => Err(io_error(dir, "lock", &error)),
    }
}

/// Makes the names in a directory durable.
pub(crate) fn sync_dir(dir: &Path) -> Result<()> {
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(|error| io_error(dir, "flush", &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_that_read_back_differently_are_refused() {
        let dir = tempfile::TempDir::new().unwrap();
        let mut new = NewBlock::create(dir.path(), 3, 2000, &[]).unwrap();
        new.write_at(&[7; 1000], 1000).unwrap();
        assert!(new.units(2000).is_err(), "half of the block was never written");
        new.write_at(&[8; 1000], 0).unwrap();
        assert_eq!(new.units(2000).unwrap(), [crc32c(&[[8; 1000], [7; 1000]].concat())]);
        std::fs::OpenOptions::new().write(true).open(dir.path().join(".block-003.tmp")).unwrap().write_all_at(&[9], 5).unwrap();
        let error = new.units(2000).unwrap_err();
        assert!(error.message.contains("bytes 0-1999 of"), "{error}");
    }
}
