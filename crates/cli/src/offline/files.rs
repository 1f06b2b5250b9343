//! Files as the sources and sinks of a plan's bytes.
//!
//! Offline there is no node. Each block i is held by its own party, `n(i+1)`, as in a cluster, and this process is the client. So the
//! plans are the same as a cluster's, and are verified and counted in the same way.

use super::{blocks::NewBlock, manifest::Geometry};
use sha2::{Digest as _, Sha256};
use std::{
    collections::BTreeMap,
    fs::File,
    io::{Read as _, Write as _},
    ops::Range,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
    sync::mpsc::RecvTimeoutError,
    time::Duration,
};
use weft_cli::{files::io_error, interrupt, progress::Progress};
use weft_plan::{Data, WantKind};
use weft_types::{BlockId, Error, Extent, NodeId, Party, Result, StripeId};

/// This process.
pub(crate) const SELF: Party = Party::Client(1);

/// The holder of a block.
pub(crate) fn holder(index: u8) -> Party {
    Party::Node(NodeId(u32::from(index) + 1))
}

/// The block of that index in the only stripe.
pub(crate) fn block_id(index: u8) -> BlockId {
    BlockId { stripe: StripeId(1), index, copy: 0, generation: 1 }
}

/// Bytes of standard input that are read at once.
const STDIN_PIECE_BYTES: usize = 1 << 20;
/// How often to check for an interruption while standard input delivers no bytes.
const INTERRUPT_POLL: Duration = Duration::from_millis(100);

/// Whether a path means standard input.
pub(crate) fn is_stdin(path: &Path) -> bool {
    path == Path::new("-")
}

/// A file with its path, for errors.
#[derive(Debug)]
pub(crate) struct Named {
    pub(crate) file: File,
    pub(crate) path: PathBuf,
}

impl Named {
    /// Opens a file for reading. `-` is standard input, which is first copied to an unnamed file, because a plan reads blocks in any order.
    pub(crate) fn open_or_stdin(path: &Path) -> Result<Self> {
        if !is_stdin(path) {
            return Self::open(path);
        }
        let spool = std::env::temp_dir().join(format!(".weft-stdin-{}", std::process::id()));
        let cannot = |error| io_error(&spool, "write", &error);
        let mut file = File::options().read(true).write(true).create_new(true).open(&spool).map_err(cannot)?;
        std::fs::remove_file(&spool).map_err(cannot)?;
        // A thread reads, because a read of standard input cannot be interrupted.
        let (pieces, received) = std::sync::mpsc::sync_channel(2);
        std::thread::spawn(move || {
            let mut stdin = std::io::stdin().lock();
            loop {
                let mut piece = vec![0; STDIN_PIECE_BYTES];
                let read = stdin.read(&mut piece).map(|len| piece[..len].to_vec());
                let is_end = read.as_ref().map_or(true, Vec::is_empty);
                if pieces.send(read).is_err() || is_end {
                    return;
                }
            }
        });
        loop {
            interrupt::check()?;
            let piece = match received.recv_timeout(INTERRUPT_POLL) {
                Err(RecvTimeoutError::Timeout) => continue,
                Err(RecvTimeoutError::Disconnected) => return Err(Error::fatal("the reader of standard input failed")),
                Ok(piece) => piece.map_err(|error| Error::fatal(format!("cannot read standard input: {error}")))?,
            };
            if piece.is_empty() {
                return Ok(Self { file, path: path.to_owned() });
            }
            file.write_all(&piece).map_err(cannot)?;
        }
    }

    /// Opens a file for reading.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let file = File::open(path).map_err(|error| io_error(path, "open", &error))?;
        Ok(Self { file, path: path.to_owned() })
    }
}

/// Where the output goes.
#[derive(Debug)]
pub(crate) enum Target {
    /// New block files, by index.
    Blocks(BTreeMap<u8, NewBlock>),
    /// Data blocks, back into one file.
    Object(Named),
}

/// The files of one run.
#[derive(Debug)]
pub(crate) struct Files<'a> {
    pub(crate) geometry: &'a Geometry,
    /// The file to encode, if any.
    pub(crate) object: Option<Named>,
    /// The readable block files.
    pub(crate) blocks: BTreeMap<u8, Named>,
    pub(crate) target: Target,
    pub(crate) progress: &'a Progress,
    /// Bytes read of each block.
    pub(crate) read: BTreeMap<u8, u64>,
}

impl Data for Files<'_> {
    fn read(&mut self, _party: Party, block: BlockId, extent: Extent, into: &mut [u8]) -> Result<()> {
        let named = self.blocks.get(&block.index);
        let named = named.ok_or_else(|| Error::fatal(format!("the plan reads block {}, which is not open", block.index)))?;
        interrupt::check()?;
        named.file.read_exact_at(into, extent.offset).map_err(|error| io_error(&named.path, "read", &error))?;
        *self.read.entry(block.index).or_default() += extent.len;
        Ok(())
    }

    fn input(&mut self, _party: Party, index: u8, _delta: bool, extent: Extent, into: &mut [u8]) -> Result<()> {
        interrupt::check()?;
        let named = self.object.as_ref().ok_or_else(|| Error::fatal("the plan reads a file, but there is none to encode"))?;
        let mut buffer = Vec::new();
        for run in self.geometry.runs(index, extent) {
            let into = &mut into[run.within(extent)];
            if run.is_of_one_cell {
                let (bytes, beyond) = into.split_at_mut(run.len as usize);
                named.file.read_exact_at(bytes, run.offset).map_err(|error| io_error(&named.path, "read", &error))?;
                beyond.fill(0);
                continue;
            }
            buffer.resize(run.len as usize, 0);
            named.file.read_exact_at(&mut buffer, run.offset).map_err(|error| io_error(&named.path, "read", &error))?;
            for piece in self.geometry.pieces(index, run.extent) {
                let (bytes, beyond) = into[piece.at..piece.at + piece.len].split_at_mut(piece.kept);
                bytes.copy_from_slice(&buffer[run.part(&piece)]);
                beyond.fill(0);
            }
        }
        Ok(())
    }

    fn emit(&mut self, _kind: WantKind, _party: Party, index: u8, extent: Extent, bytes: &[u8]) -> Result<()> {
        interrupt::check()?;
        match &mut self.target {
            Target::Blocks(blocks) => {
                let new = blocks
                    .get_mut(&index)
                    .ok_or_else(|| Error::fatal(format!("the plan produced block {index}, which is not wanted")))?;
                let len = self.geometry.stripe.block_len(index.into());
                let kept = len.saturating_sub(extent.offset).min(extent.len) as usize;
                let (bytes, beyond) = bytes.split_at(kept);
                check_zero(index, beyond)?;
                new.write_at(bytes, extent.offset)?;
            }
            Target::Object(named) => {
                let mut buffer = Vec::new();
                for run in self.geometry.runs(index, extent) {
                    let bytes = &bytes[run.within(extent)];
                    let write = |bytes: &[u8]| {
                        named.file.write_all_at(bytes, run.offset).map_err(|error| io_error(&named.path, "write", &error))
                    };
                    if run.is_of_one_cell {
                        let (bytes, beyond) = bytes.split_at(run.len as usize);
                        check_zero(index, beyond)?;
                        write(bytes)?;
                        continue;
                    }
                    // The bytes between the pieces belong to other blocks and stay.
                    buffer.resize(run.len as usize, 0);
                    named.file.read_exact_at(&mut buffer, run.offset).map_err(|error| io_error(&named.path, "read", &error))?;
                    for piece in self.geometry.pieces(index, run.extent) {
                        let (bytes, beyond) = bytes[piece.at..piece.at + piece.len].split_at(piece.kept);
                        check_zero(index, beyond)?;
                        buffer[run.part(&piece)].copy_from_slice(bytes);
                    }
                    write(&buffer)?;
                }
            }
        }
        self.progress.add(extent.len);
        Ok(())
    }
}

fn check_zero(index: u8, beyond: &[u8]) -> Result<()> {
    if beyond.iter().any(|byte| *byte != 0) {
        return Err(Error::corrupt(format!("block {index} has bytes beyond its end: the blocks do not belong together")));
    }
    Ok(())
}

/// A run of a data block's bytes that is also a run of the file's.
#[derive(Debug, PartialEq, Eq)]
struct Piece {
    /// Its start in the run of the block.
    at: usize,
    /// Bytes.
    len: usize,
    /// Its start in the file.
    offset: u64,
    /// Its bytes that exist in the file; zeros follow.
    kept: usize,
}

/// A run of the file that contains a run of a data block, and between its cells those of other blocks.
#[derive(Debug, PartialEq, Eq)]
struct FileRun {
    /// Its start in the file.
    offset: u64,
    /// Its bytes that exist in the file.
    len: u64,
    /// The bytes of the block.
    extent: Extent,
    is_of_one_cell: bool,
}

impl FileRun {
    /// The place of its bytes in a longer run of the block.
    fn within(&self, longer: Extent) -> Range<usize> {
        let at = (self.extent.offset - longer.offset) as usize;
        at..at + self.extent.len as usize
    }

    /// The place of a piece in its bytes of the file.
    fn part(&self, piece: &Piece) -> Range<usize> {
        let at = piece.offset.saturating_sub(self.offset).min(self.len) as usize;
        at..at + piece.kept
    }
}

/// Most bytes of a file that are read or written at once, if cells are small.
const RUN_BYTES_MAX: u64 = 1 << 20;
/// Reading one smaller cell reads the pages of its neighbours too.
const SMALL_CELL_BYTES: u64 = 4096;

impl Geometry {
    /// The runs of the file for reading and writing a run of a data block's bytes: cell by cell, or many rows of cells at once if they
    /// are small.
    fn runs(&self, index: u8, extent: Extent) -> impl Iterator<Item = FileRun> + use<> {
        let (stripe, cell) = (self.stripe, self.stripe.layout.cell_len);
        let row = cell.saturating_mul(stripe.k.into());
        let rows = if cell < SMALL_CELL_BYTES { (RUN_BYTES_MAX / row).max(1) } else { 1 };
        let (end, mut at) = (extent.offset + extent.len, extent.offset);
        std::iter::from_fn(move || {
            (at < end).then(|| {
                let start = at;
                at = end.min((start / cell + rows) * cell);
                let last_cell = (at - 1) / cell * cell;
                let last = start.max(last_cell);
                // There is nothing to read or write beyond the end of the file.
                let offset = stripe.offset_of(index.into(), start).min(stripe.data_len);
                let run_end = (stripe.offset_of(index.into(), last) + (at - last)).min(stripe.data_len);
                let extent = Extent { offset: start, len: at - start };
                FileRun { offset, len: run_end.saturating_sub(offset), extent, is_of_one_cell: start >= last_cell }
            })
        })
    }

    /// The pieces of the file that make up a run of a data block's bytes.
    fn pieces(&self, index: u8, extent: Extent) -> impl Iterator<Item = Piece> + use<> {
        let (stripe, end, mut at) = (self.stripe, extent.offset + extent.len, extent.offset);
        std::iter::from_fn(move || {
            (at < end).then(|| {
                let start = at;
                let left_in_cell = stripe.layout.cell_len - start % stripe.layout.cell_len;
                let len = left_in_cell.min(end - start);
                at += len;
                let offset = stripe.offset_of(index.into(), start);
                let kept = stripe.data_len.saturating_sub(offset).min(len) as usize;
                Piece { at: (start - extent.offset) as usize, len: len as usize, offset, kept }
            })
        })
    }
}

/// The SHA-256 of some bytes of a file, in hex.
pub(crate) fn file_sha256(path: &Path, range: Range<u64>) -> Result<String> {
    sha256_of(&Named::open(path)?, range)
}

pub(super) fn sha256_of(named: &Named, range: Range<u64>) -> Result<String> {
    let (mut hash, mut buffer, mut at) = (Sha256::new(), vec![0; 1 << 20], range.start);
    while at < range.end {
        interrupt::check()?;
        let piece = &mut buffer[..(range.end - at).min(1 << 20) as usize];
        named.file.read_exact_at(piece, at).map_err(|error| io_error(&named.path, "read", &error))?;
        hash.update(&*piece);
        at += piece.len() as u64;
    }
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

pub(super) fn temporary_beside(path: &Path) -> PathBuf {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    path.with_file_name(format!(".{name}.weft-{}.tmp", std::process::id()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_cells_are_read_in_whole_runs_and_every_piece_is_in_its_run() {
        let code = weft_codes::parse("rs(3,2)").unwrap();
        for (size, cell) in [(10_000_000, 1), (10_000_001, 77), (9_999_999, 4096), (5_000_000, 1 << 20), (7, 1)] {
            let geometry = Geometry::new(&code, size, None, Some(cell)).unwrap();
            let extent = Extent { offset: 0, len: geometry.stripe.layout.block_len };
            for index in 0..3 {
                let (mut runs, mut kept) = (0, 0);
                for run in geometry.runs(index, extent) {
                    assert!(run.len <= RUN_BYTES_MAX && run.offset + run.len <= size);
                    for piece in geometry.pieces(index, run.extent) {
                        assert!(piece.kept == 0 || run.part(&piece).end as u64 <= run.len, "{run:?} {piece:?}");
                        kept += piece.kept as u64;
                    }
                    runs += 1;
                }
                assert_eq!(kept, geometry.stripe.block_len(index.into()));
                assert!(cell >= SMALL_CELL_BYTES || runs <= size / RUN_BYTES_MAX + 1, "{runs} runs of cells of {cell}");
            }
        }
    }
}
