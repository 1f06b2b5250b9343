//! The steps in which the disk is changed, named, so that a test can fail or crash before each of them.

use std::{fmt, io};

/// One change of the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Step {
    /// Makes a shard's directory and syncs its parent.
    CreateShard,
    /// Makes the temporary payload file.
    CreateTemporary,
    /// Reserves the payload's space.
    Allocate,
    /// Writes bytes of the payload.
    WritePayload,
    /// Writes the temporary sidecar.
    WriteSidecar,
    /// Syncs the temporary sidecar.
    SyncSidecar,
    /// Gives the sidecar its name.
    RenameSidecar,
    /// Syncs the payload.
    SyncPayload,
    /// Gives the payload its name: the block exists.
    RenamePayload,
    /// Syncs the directory of a shard, so that names in it last.
    SyncDirectory,
    /// Takes a payload's name away: the block no longer exists.
    RemovePayload,
    /// Takes a sidecar's name away.
    RemoveSidecar,
    /// Makes a quarantined block's directory with the reason in it.
    WriteReason,
    /// Gives the sidecar a second name in the quarantine.
    LinkSidecar,
    /// Moves the payload to the quarantine: the block no longer exists.
    QuarantinePayload,
    /// Deletes a place in quarantine: first its payload, then all of it.
    DeleteQuarantined,
}

/// Asked before each step; an error is taken for the error of the system call.
pub trait Steps: Send + Sync + fmt::Debug {
    /// Lets the step happen, or not.
    fn before(&self, step: Step) -> io::Result<()>;
}

/// Lets everything happen.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoSteps;

impl Steps for NoSteps {
    fn before(&self, _: Step) -> io::Result<()> {
        Ok(())
    }
}
