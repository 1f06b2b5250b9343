//! The bytes that an update changes in one data block.

use bytes::Bytes;
use std::{collections::BTreeMap, sync::Arc};
use weft_types::{Span, crc32c, crc32c_continued};

/// A range of a data block, and its new bytes or their delta.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Piece {
    /// The offset of the first byte in the data block.
    pub start: u64,
    /// The bytes; not empty.
    pub bytes: Bytes,
}

impl Piece {
    /// The bytes of the data block that it covers.
    pub fn span(&self) -> Span {
        Span::new(self.start, self.start.saturating_add(self.bytes.len() as u64))
    }

    /// The CRC32C of its offset and its bytes, by which participants compare deltas. The range of positions of an update does not say where in
    /// the data block the bytes lie.
    pub fn crc(&self) -> u32 {
        crc32c_continued(crc32c(&self.start.to_le_bytes()), &self.bytes)
    }
}

/// Its bytes, which the journal shares.
impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// By stream. They are shared: a leader sends the same delta to several parities.
pub type Pieces = BTreeMap<u8, Arc<Piece>>;

/// The sum of their lengths.
pub(crate) fn bytes_of(pieces: &Pieces) -> u64 {
    pieces.values().map(|piece| piece.bytes.len() as u64).sum()
}
