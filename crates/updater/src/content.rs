//! What a block contains at a version: its pages, with deltas of the journal added or taken out.

use crate::{
    disk::Disk,
    fault::{Rule, dropped},
    open::Open,
    piece::Piece,
    record::{Deltas, Stored, UnitChanges},
};
use std::sync::Arc;
use weft_store::Position;
use weft_types::{BlockId, Error, Result, Span, crc32c, crc32c_contribution};
use weft_update::{Delta, NotServed, ReadAt, Vector, Version};

/// Bytes that a block contains at a version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Content {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// Their CRC32C. It follows from the checksums of the pages and the deltas, so it also detects a change of the bytes in memory.
    pub crc: u32,
}

/// A read of a data block at its own node, at its last version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Read {
    /// The bytes.
    pub range: Span,
    /// The version of them that the reader has: if it is still the last one, they are not read.
    pub since: Option<Version>,
    /// No seal can have gone on without the node since the read began, or the reader checks that later. Otherwise the node has its term confirmed
    /// first.
    pub has_lease: bool,
}

/// What a read has found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Served {
    /// The version of the range.
    pub version: Version,
    /// What it contains; `None`: the reader has this version.
    pub content: Option<Content>,
}

/// Why a block does not serve a version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// The protocol does not permit it now.
    NotServed(NotServed),
    /// The block cannot be read.
    Failed(Error),
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl Open {
    /// The bytes of a range, with these deltas added or taken out: in GF(2^8) both are the same.
    pub(crate) fn content(&self, range: Span, at: &ReadAt, disk: &Disk) -> Result<Content> {
        let mut bytes = vec![0; range.len() as usize];
        let mut crc = self.reader.read_at(range.start, &mut bytes)?;
        let deltas = at.added.iter().chain(&at.removed).filter(|_| !dropped(Rule::Overlay));
        for delta in deltas {
            let read = disk.read_deltas(self.position_of(delta)?)?.ok_or_else(|| missing(delta).block(self.id))?;
            let piece = self.piece_of(delta, &read)?;
            self.shape.changes(delta.stream, &piece, range, |offset, change| {
                let (first, len) = ((offset - range.start) as usize, change.len() as u64);
                add(&mut bytes[first..first + change.len()], change);
                crc ^= crc32c_contribution(crc32c(change), len, range.end - offset - len);
            });
        }
        Ok(Content { bytes, crc })
    }

    /// What a read that may be served finds.
    pub(crate) fn served(&self, read: &Read, at: ReadAt, disk: &Disk) -> Result<Served> {
        let is_known = read.since.as_ref() == Some(&at.version);
        let content = if is_known { None } else { Some(self.content(read.range, &at, disk)?) };
        Ok(Served { version: at.version, content })
    }

    /// The bytes of a range, with exactly the updates up to a vector.
    pub(crate) fn content_at(&self, range: Span, vector: &Vector, disk: &Disk) -> Result<Content, Refusal> {
        let at = self.machine.participant().read_at(self.shape.positions(range), vector).map_err(Refusal::NotServed)?;
        Ok(self.content(range, &at, disk)?)
    }

    /// A delta, from the journal; and what its record says that it adds to the units of this block.
    pub(crate) fn delta(&self, delta: &Delta, disk: &Disk) -> Result<(Arc<Piece>, UnitChanges)> {
        let Stored::Entry(_, Some(deltas)) = disk.read(self.position_of(delta)?)? else {
            return Err(missing(delta).block(self.id));
        };
        let piece = self.piece_of(delta, &deltas)?;
        Ok((piece, deltas.unit_changes))
    }

    /// The record of a delta.
    fn position_of(&self, delta: &Delta) -> Result<Position> {
        let held = self.held.get(&delta.id).ok_or_else(|| missing(delta).block(self.id))?;
        Ok(held.position)
    }

    /// A delta of a record.
    fn piece_of(&self, delta: &Delta, deltas: &Deltas) -> Result<Arc<Piece>> {
        if deltas.generator_hash != self.shape.generator_hash {
            return Err(
                Error::fatal("this program builds the code differently from the one that journalled an update").block(self.id)
            );
        }
        deltas.pieces.get(&delta.stream).cloned().ok_or_else(|| missing(delta).block(self.id))
    }
}

fn missing(delta: &Delta) -> Error {
    Error::corrupt(format!("the journal does not contain the delta of update {}", delta.number))
}

/// `to ^= change`.
pub(crate) fn add(to: &mut [u8], change: &[u8]) {
    to.iter_mut().zip(change).for_each(|(to, change)| *to ^= change);
}

/// Names the block in an error that does not name one.
pub(crate) fn at_block(block: BlockId) -> impl Fn(Error) -> Error {
    move |error| if error.block.is_none() { error.block(block) } else { error }
}
