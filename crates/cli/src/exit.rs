//! How commands end: their exit codes.

use std::process::ExitCode;
use weft_types::Reaction;

/// An exit code. They are part of what `weft` promises: scripts rely on them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// Done.
    Ok = 0,
    /// Something went wrong on the way; the same again may work.
    Failed = 1,
    /// What was asked makes no sense.
    Usage = 2,
    /// What was named does not exist.
    NotFound = 3,
    /// More is lost than the code tolerates, or nobody is there to ask.
    Unavailable = 4,
    /// Something is not what it should be, and is named.
    Corrupt = 5,
    /// A person broke it off.
    Interrupted = 130,
}

/// What `weft help exit-codes` says.
pub const EXIT_CODES: &str = "\
EXIT CODES
  0  done
  1  failed on the way: busy, timed out, a disk or a peer that gave up; the message says what, and trying again may help
  2  what was asked makes no sense; nothing was done, and the message says what would be right
  3  what was named does not exist
  4  data unavailable: more is lost than the code tolerates, or nobody is there to ask
  5  corrupt, or refused by a check: stored bytes are not what was recorded, or a plan is not proved right
  130  broken off by ctrl-C, SIGTERM or SIGHUP: what was under way is given up, and nothing of it stays; but a job that was waited for goes on

Errors are one line on stderr, `weft: …`. With --json they are one JSON object on stderr instead:
  {\"error\":{\"kind\":\"not_found\",\"exit_code\":3,\"message\":\"…\",\"object\":…,\"block\":…,\"party\":…,\"link\":…,\"position\":…}}
What is broken off is of the kind \"interrupted\". Warnings beside a plan that is explained are {\"warning\":\"…\"}, one a line, on stderr too.
";

impl From<Reaction> for Exit {
    fn from(reaction: Reaction) -> Self {
        match reaction {
            Reaction::Retry | Reaction::Replan | Reaction::Fatal => Self::Failed,
            Reaction::InvalidInput => Self::Usage,
            Reaction::NotFound => Self::NotFound,
            Reaction::Unavailable => Self::Unavailable,
            Reaction::Corrupt => Self::Corrupt,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}
