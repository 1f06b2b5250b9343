//! The error type: what happened, where, and how the caller should react.

use crate::{BlockId, Party};
use serde::{Deserialize, Serialize};
use std::fmt;

/// How the caller of a failed operation should react.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Reaction {
    /// Repeat later: a party was busy, or a deadline passed.
    Retry,
    /// Make another plan: a party in this one is gone, slow or outdated.
    Replan,
    /// Stored or sent bytes are wrong: treat them as lost, and report them.
    Corrupt,
    /// The request is invalid; the message says what is valid.
    InvalidInput,
    /// It does not exist.
    NotFound,
    /// More blocks are lost than the code tolerates, or no party that could answer is up.
    Unavailable,
    /// This process or disk cannot continue.
    Fatal,
}

impl Reaction {
    /// All reactions.
    pub const ALL: [Self; 7] =
        [Self::Retry, Self::Replan, Self::Corrupt, Self::InvalidInput, Self::NotFound, Self::Unavailable, Self::Fatal];

    /// Its name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Retry => "retry",
            Self::Replan => "replan",
            Self::Corrupt => "corrupt",
            Self::InvalidInput => "invalid_input",
            Self::NotFound => "not_found",
            Self::Unavailable => "unavailable",
            Self::Fatal => "fatal",
        }
    }
}

/// A cause that must be distinguished from others of the same reaction: a missing resource, a device that does not read, blocks that
/// contradict each other, a link on which nothing moves, or a block that is being updated. New causes are added at the end: versions that do not know one read the error without it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Cause {
    /// The cluster has too few nodes for the code, or too few of them can take a block.
    TooFewNodes,
    /// A disk is full, or all disks are.
    NoSpace,
    /// A device did not read the bytes, so it is not known what they are.
    Unreadable,
    /// A parity check was not zero: the blocks contradict each other, and it is not known which of them is wrong.
    Inconsistent,
    /// Nothing moved on a link, or no connection was made, for so long that the link was given up. Either end may be at fault, or the
    /// network between them is full.
    Stalled,
    /// The block is open for updates: no task reads it until its stripe is settled.
    OpenForUpdates,
}

/// An error with its place. Printed as one line: the place first, then what happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Error {
    /// The reaction.
    pub reaction: Reaction,
    /// What happened, for an operator.
    pub message: String,
    /// The object, as `bucket/key`.
    pub object: Option<String>,
    /// The block that was read or written.
    pub block: Option<BlockId>,
    /// The party that failed.
    pub party: Option<Party>,
    /// The link's number in the plan.
    pub link: Option<u32>,
    /// The first position of the slice.
    pub position: Option<u64>,
    /// What must be distinguished. On the wire it follows the error, so versions that do not know it can still read the rest.
    #[serde(skip)]
    pub cause: Option<Cause>,
}

/// The result of fallible operations in weft.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error without a place.
    pub fn new(reaction: Reaction, message: impl fmt::Display) -> Self {
        let (message, object, block, party) = (message.to_string(), None, None, None);
        Self { reaction, message, object, block, party, link: None, position: None, cause: None }
    }

    /// [`Reaction::InvalidInput`].
    pub fn invalid(message: impl fmt::Display) -> Self {
        Self::new(Reaction::InvalidInput, message)
    }

    /// [`Reaction::NotFound`].
    pub fn not_found(message: impl fmt::Display) -> Self {
        Self::new(Reaction::NotFound, message)
    }

    /// [`Reaction::Corrupt`].
    pub fn corrupt(message: impl fmt::Display) -> Self {
        Self::new(Reaction::Corrupt, message)
    }

    /// [`Reaction::Fatal`].
    pub fn fatal(message: impl fmt::Display) -> Self {
        Self::new(Reaction::Fatal, message)
    }

    /// [`Reaction::Retry`].
    pub fn retry(message: impl fmt::Display) -> Self {
        Self::new(Reaction::Retry, message)
    }

    /// [`Reaction::Replan`].
    pub fn replan(message: impl fmt::Display) -> Self {
        Self::new(Reaction::Replan, message)
    }

    /// [`Reaction::Unavailable`].
    pub fn unavailable(message: impl fmt::Display) -> Self {
        Self::new(Reaction::Unavailable, message)
    }

    /// Sets the cause.
    #[must_use]
    pub fn cause(mut self, cause: Cause) -> Self {
        self.cause = Some(cause);
        self
    }

    /// Sets the missing resource to space if `disk_was_full`, and no other node could take the bytes instead.
    #[must_use]
    pub fn for_lack_of_space(self, disk_was_full: bool) -> Self {
        let elsewhere = matches!(self.reaction, Reaction::Retry | Reaction::Replan | Reaction::Unavailable);
        if disk_was_full && elsewhere { self.cause(Cause::NoSpace) } else { self }
    }

    /// Names the object, unless one is named already.
    #[must_use]
    pub fn object(mut self, object: impl fmt::Display) -> Self {
        self.object.get_or_insert_with(|| object.to_string());
        self
    }

    /// Adds the block, unless one is set.
    #[must_use]
    pub fn block(mut self, block: BlockId) -> Self {
        self.block.get_or_insert(block);
        self
    }

    /// Adds the party that failed, unless one is set.
    #[must_use]
    pub fn party(mut self, party: Party) -> Self {
        self.party.get_or_insert(party);
        self
    }

    /// Adds the link and the first position of the slice, unless they are set.
    #[must_use]
    pub fn link(mut self, link: u32, position: u64) -> Self {
        self.link.get_or_insert(link);
        self.position.get_or_insert(position);
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(object) = &self.object {
            write!(f, "{object}: ")?;
        }
        if let Some(party) = &self.party {
            write!(f, "{party}: ")?;
        }
        if let Some(block) = &self.block {
            write!(f, "block {block}: ")?;
        }
        if let (Some(link), Some(position)) = (self.link, self.position) {
            write!(f, "link {link} at position {position}: ")?;
        }
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}
