//! Exit codes of commands.

use std::process::ExitCode;
use weft_types::{Cause, Error, Reaction};

/// An exit code. Exit codes are a stable interface: scripts rely on them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// Success.
    Ok = 0,
    /// The command failed; trying again may help.
    Failed = 1,
    /// The request is invalid.
    Usage = 2,
    /// A named object, file or node does not exist.
    NotFound = 3,
    /// More blocks are lost than the code tolerates, or the coordinator cannot be reached.
    Unavailable = 4,
    /// Stored bytes do not match their recorded checksums, or a check failed.
    Corrupt = 5,
    /// Too few nodes for the code.
    TooFewNodes = 6,
    /// Disks are full.
    NoSpace = 7,
    /// The cluster is degraded: all data can be read, but a node, disk or block needs attention.
    Degraded = 8,
    /// The cluster is at risk: all data can be read, but some of it does not survive another loss.
    AtRisk = 9,
    /// Interrupted by a signal.
    Interrupted = 130,
}

/// The text of `weft help exit-codes`.
pub const EXIT_CODES: &str = "\
EXIT CODES
  0  success
  1  failed: busy, timed out, or a disk or peer failed; the message says why, and trying again may help
  2  invalid request; nothing was done, and the message says what is valid
  3  something that was named does not exist
  4  unavailable: more is lost than the code recovers, or the coordinator or a node cannot be reached
  5  corrupt, or refused by a check: stored bytes are not what was recorded, or a plan is not proved right
  6  too few nodes: the cluster has fewer nodes than the code needs, or too few of them are up and can take a block
  7  no space: disks of nodes, or a disk of this machine, are full
  8  degraded (only from `weft status`, `weft check`, `weft scrub` and `weft cluster status`): all data can be read, but something is to be done
  9  at risk (likewise): all data can be read, but some does not survive the loss of a further block
  130  interrupted by ctrl-C, SIGTERM or SIGHUP: unfinished work is undone, but jobs continue

Errors are one line on stderr, `weft: …`. With --json, they are one JSON object on stderr:
  {\"error\":{\"kind\":\"not_found\",\"exit_code\":3,\"message\":\"…\",\"object\":…,\"block\":…,\"party\":…,\"link\":…,\"position\":…}}
An interrupted command reports the kind \"interrupted\". Warnings are lines on stderr,
`warning: …`; with --json they are in the result under the key \"warnings\" (beside an explained plan: {\"warnings\":[\"…\"]} on stderr).
";

impl From<&Error> for Exit {
    fn from(error: &Error) -> Self {
        match (error.cause, error.reaction) {
            (Some(Cause::TooFewNodes), _) => Self::TooFewNodes,
            (Some(Cause::NoSpace), _) => Self::NoSpace,
            (_, Reaction::Retry | Reaction::Replan | Reaction::Fatal) => Self::Failed,
            (_, Reaction::InvalidInput) => Self::Usage,
            (_, Reaction::NotFound) => Self::NotFound,
            (_, Reaction::Unavailable) => Self::Unavailable,
            (_, Reaction::Corrupt) => Self::Corrupt,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}
