//! The errors of data connections.

use super::Kind;
use std::{io, time::Duration};
use weft_types::{Cause, Error, Reaction};

/// Why a data connection failed.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// The connection was closed between two frames.
    #[error("the connection was closed")]
    Closed,
    /// The connection was closed within a frame.
    #[error("the connection was closed in the middle of a frame")]
    Truncated,
    /// The other end does not speak weft's protocol.
    #[error("the peer does not speak weft's protocol: it sent {0:02x?} instead of a frame")]
    Magic([u8; 4]),
    /// A frame's kind or flags are unknown to this version.
    #[error("received a frame of unknown kind {kind} or flags {flags:#x}")]
    Unknown {
        /// Its kind.
        kind: u8,
        /// Its flags.
        flags: u8,
    },
    /// A payload is too large.
    #[error("received a {kind:?} frame of {len} bytes: at most {max} are allowed")]
    Oversized {
        /// The frame's kind.
        kind: Kind,
        /// The payload's length according to the header.
        len: u64,
        /// The largest allowed length.
        max: usize,
    },
    /// The received bytes differ from those sent.
    #[error("a {kind:?} frame is corrupt: its checksum is {found:08x} instead of {expected:08x}")]
    Checksum {
        /// The frame's kind.
        kind: Kind,
        /// As computed.
        found: u32,
        /// As the frame says.
        expected: u32,
    },
    /// A frame is not valid at this point.
    #[error("{0}")]
    Unexpected(String),
    /// No version in common.
    #[error("{0}")]
    OtherVersion(Error),
    /// The peer aborted the link and gave the reason.
    #[error("the peer aborted the link: {0}")]
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
            FrameError::Stalled(_) => Self::replan(error).cause(Cause::Stalled),
            other => Self::new(Reaction::Replan, other),
        }
    }
}
