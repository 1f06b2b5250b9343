//! Reads of data blocks that are open for updates, at their own nodes.

use crate::token::{LinkToken, ReadRights};
use serde::{Deserialize, Serialize};
use weft_types::{BlockId, Span};
use weft_update::Version;

/// The most bytes of one read.
pub const OPEN_READ_BYTES_MAX: u64 = 1 << 20;

/// The most bytes of a stripe that are read like this together, and the most reads: the reader collects all of them before it uses any.
pub const OPEN_READS_BYTES_MAX: u64 = 16 << 20;
/// See [`OPEN_READS_BYTES_MAX`].
pub const OPEN_READS_MAX: usize = 64;

/// The ranges in which a range of a block is read.
pub fn pieces_of(range: Span) -> impl Iterator<Item = Span> {
    let step = OPEN_READ_BYTES_MAX as usize;
    (range.start..range.end).step_by(step).map(move |at| Span::new(at, range.end.min(at + OPEN_READ_BYTES_MAX)))
}

/// A read of the last version of a range of a data block.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenRead {
    /// The data block.
    pub block: BlockId,
    /// The term of its stripe: in another one it is not read.
    pub term: u64,
    /// When the right ends, in the coordinator's time.
    pub ends_at_ms: u64,
    /// The right to read the block.
    pub token: LinkToken,
    /// The bytes: at most [`OPEN_READ_BYTES_MAX`].
    pub range: Span,
    /// The version that the reader has: if nothing has changed, the bytes are not sent again.
    pub since: Option<Version>,
    /// The agent asks other blocks' agents whether this is still the term, before it answers. Without that, an answer may be of a time when the block
    /// had already been left out of its stripe.
    pub must_confirm: bool,
}

/// The answer to a read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Found {
    /// The bytes, of this version, with their CRC32C.
    Served {
        /// The version.
        version: Version,
        /// The CRC32C, which follows from the checksums of the block's pages and the updates.
        crc: u32,
    },
    /// The reader has the last version.
    Unchanged,
    /// Nothing is served.
    Refused(ReadRefusal),
}

/// Why a read of an open block is not served. The stripe can be settled, and read as all others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReadRefusal {
    /// The block is not open in this term any more.
    Closed,
    /// The outcome of an update in the range was not known, or the term not confirmed, in time.
    Undecided,
    /// The agent has too much to do.
    Busy,
    /// The right has ended, or the range is not one of the block.
    Invalid,
    /// The block cannot be read.
    Unreadable,
}

impl OpenRead {
    /// What the token must grant.
    pub fn rights(&self) -> ReadRights {
        ReadRights { block: self.block, term: self.term, ends_at_ms: self.ends_at_ms }
    }
}
