//! Files as the places where a plan's bytes are and go.
//!
//! Offline there is no node. Block i is held by a party of its own, `n(i+1)`, as it would be in a cluster, and this process is the
//! client: so the plans are those that a cluster would run, and they are verified and counted in the same way.

use super::{blocks::NewBlock, io_error, manifest::Geometry};
use crate::progress::Progress;
use std::{
    collections::BTreeMap,
    fs::File,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
};
use weft_plan::{Data, WantKind};
use weft_types::{BlockId, Error, Extent, NodeId, Party, Result, StripeId};

/// This process.
pub(crate) const SELF: Party = Party::Client(1);

/// Who holds a block.
pub(crate) fn holder(index: u8) -> Party {
    Party::Node(NodeId(u32::from(index) + 1))
}

/// The one stripe's block of that index.
pub(crate) fn block_id(index: u8) -> BlockId {
    BlockId { stripe: StripeId(1), index, copy: 0, generation: 1 }
}

/// A file and its path, for errors.
#[derive(Debug)]
pub(crate) struct Named {
    pub(crate) file: File,
    pub(crate) path: PathBuf,
}

impl Named {
    /// Opens a file to read it.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let file = File::open(path).map_err(|error| io_error(path, "open", &error))?;
        Ok(Self { file, path: path.to_owned() })
    }
}

/// What comes out goes here.
#[derive(Debug)]
pub(crate) enum Target {
    /// Into new block files, by index.
    Blocks(BTreeMap<u8, NewBlock>),
    /// Data blocks, back into one file.
    Object(Named),
}

/// The files of one run.
#[derive(Debug)]
pub(crate) struct Files<'a> {
    pub(crate) geometry: &'a Geometry,
    /// The file that is encoded, if one is.
    pub(crate) object: Option<Named>,
    /// Block files that can be read.
    pub(crate) blocks: BTreeMap<u8, Named>,
    pub(crate) target: Target,
    pub(crate) progress: &'a Progress,
    /// Bytes read of each block.
    pub(crate) read: BTreeMap<u8, u64>,
}

impl Data for Files<'_> {
    fn read(&mut self, _party: Party, block: BlockId, extent: Extent, into: &mut [u8]) -> Result<()> {
        let named = self.blocks.get(&block.index);
        let named = named.ok_or_else(|| Error::fatal(format!("block {} is read, but not open", block.index)))?;
        named.file.read_exact_at(into, extent.offset).map_err(|error| io_error(&named.path, "read", &error))?;
        *self.read.entry(block.index).or_default() += extent.len;
        Ok(())
    }

    fn input(&mut self, _party: Party, index: u8, _delta: bool, extent: Extent, into: &mut [u8]) -> Result<()> {
        let named = self.object.as_ref().ok_or_else(|| Error::fatal("there is no file to encode"))?;
        for piece in self.geometry.pieces(index, extent) {
            let piece_into = &mut into[piece.at..piece.at + piece.len];
            let (bytes, beyond) = piece_into.split_at_mut(piece.kept);
            named.file.read_exact_at(bytes, piece.offset).map_err(|error| io_error(&named.path, "read", &error))?;
            beyond.fill(0);
        }
        Ok(())
    }

    fn emit(&mut self, _kind: WantKind, _party: Party, index: u8, extent: Extent, bytes: &[u8]) -> Result<()> {
        match &self.target {
            Target::Blocks(blocks) => {
                let new = blocks.get(&index).ok_or_else(|| Error::fatal(format!("block {index} comes out unasked")))?;
                let len = self.geometry.stripe.block_len(index.into());
                let kept = len.saturating_sub(extent.offset).min(extent.len) as usize;
                let (bytes, beyond) = bytes.split_at(kept);
                check_zero(index, beyond)?;
                new.write_at(bytes, extent.offset)?;
            }
            Target::Object(named) => {
                for piece in self.geometry.pieces(index, extent) {
                    let (bytes, beyond) = bytes[piece.at..piece.at + piece.len].split_at(piece.kept);
                    check_zero(index, beyond)?;
                    named.file.write_all_at(bytes, piece.offset).map_err(|error| io_error(&named.path, "write", &error))?;
                }
            }
        }
        self.progress.add(extent.len);
        Ok(())
    }
}

fn check_zero(index: u8, beyond: &[u8]) -> Result<()> {
    if beyond.iter().any(|byte| *byte != 0) {
        return Err(Error::corrupt(format!(
            "block {index} came out with bytes beyond its end: the blocks do not belong together"
        )));
    }
    Ok(())
}

/// A run of a data block's bytes that is a run of the file's.
#[derive(Debug, PartialEq, Eq)]
struct Piece {
    /// Where it begins in the run of the block.
    at: usize,
    /// Bytes.
    len: usize,
    /// Where it begins in the file.
    offset: u64,
    /// Bytes that the file really has of it; zeros follow.
    kept: usize,
}

impl Geometry {
    /// The pieces of the file of which a run of a data block's bytes consists.
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
