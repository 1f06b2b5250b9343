//! What is wrong with what came over a connection.

use super::Kind;
use std::{io, time::Duration};
use weft_types::{Error, Reaction};

/// What is wrong with what came over a connection.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// It was closed between two frames.
    #[error("the connection was closed")]
    Closed,
    /// It was closed within a frame.
    #[error("the connection was closed in the middle of a frame")]
    Truncated,
    /// The other end speaks something else.
    #[error("not a weft peer: it sent {0:02x?} where a frame begins")]
    Magic([u8; 4]),
    /// A frame of a kind or with flags that this version does not have.
    #[error("a frame of unknown kind {kind} or flags {flags:#x}")]
    Unknown {
        /// Its kind.
        kind: u8,
        /// Its flags.
        flags: u8,
    },
    /// A payload that is larger than it may be.
    #[error("a {kind:?} frame of {len} bytes: at most {max}")]
    Oversized {
        /// The frame's kind.
        kind: Kind,
        /// Bytes that it says it has.
        len: u64,
        /// Bytes that it may have.
        max: usize,
    },
    /// The bytes are not those that were sent.
    #[error("a {kind:?} frame is corrupt: its checksum is {found:08x} and should be {expected:08x}")]
    Checksum {
        /// The frame's kind.
        kind: Kind,
        /// As computed.
        found: u32,
        /// As the frame says.
        expected: u32,
    },
    /// A frame that makes no sense here.
    #[error("{0}")]
    Unexpected(String),
    /// No version in common.
    #[error("{0}")]
    OtherVersion(Error),
    /// The peer broke off and said why.
    #[error("the peer broke off: {0}")]
    Peer(Error),
    /// Nothing moved for too long.
    #[error("nothing moved for {} ms", .0.as_millis())]
    Stalled(Duration),
    /// The network failed.
    #[error("{0}")]
    Io(#[from] io::Error),
}

impl From<FrameError> for Error {
    fn from(error: FrameError) -> Self {
        match error {
            FrameError::Peer(ours) | FrameError::OtherVersion(ours) => ours,
            FrameError::Checksum { .. } => Self::corrupt(error),
            other => Self::new(Reaction::Replan, other),
        }
    }
}
