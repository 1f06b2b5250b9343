//! Names each step that changes the disk, so that tests can fail or crash before it.

use std::{fmt, io};

/// One change to the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Step {
    /// Creates a shard's directory and syncs its parent.
    CreateShard,
    /// Creates the temporary payload file.
    CreateTemporary,
    /// Reserves the payload's space.
    Allocate,
    /// Writes bytes of the payload.
    WritePayload,
    /// Writes the temporary sidecar.
    WriteSidecar,
    /// Syncs the temporary sidecar.
    SyncSidecar,
    /// Renames the sidecar to its final name.
    RenameSidecar,
    /// Syncs the payload.
    SyncPayload,
    /// Renames the payload to its final name: the block exists.
    RenamePayload,
    /// Syncs a shard's directory, so that its entries are durable.
    SyncDirectory,
    /// Removes a payload: the block no longer exists.
    RemovePayload,
    /// Removes a sidecar.
    RemoveSidecar,
    /// Creates a quarantined block's directory, with the reason in it.
    WriteReason,
    /// Gives the sidecar a second name in the quarantine.
    LinkSidecar,
    /// Moves the payload to the quarantine: the block no longer exists.
    QuarantinePayload,
    /// Deletes an entry of the quarantine: first the payload, then the rest.
    DeleteQuarantined,
    /// Gives the disk the version that older programs do not open.
    RaiseVersion,
    /// Creates the journal's file.
    CreateJournal,
    /// Writes records to the journal.
    WriteJournal,
    /// Syncs the journal.
    SyncJournal,
    /// Renames a damaged journal.
    SetJournalAside,
    /// Overwrites pages of a payload.
    PatchPayload,
    /// Overwrites parts of a sidecar.
    PatchSidecar,
}

impl Step {
    /// Whether any error of the step fails the disk. A failed sync may have dropped any write, even if the error is a lack of space.
    /// The journal's file has all its space, so a lack of it is a fault, too.
    pub(super) fn is_final(self) -> bool {
        let syncs = [Self::SyncPayload, Self::SyncSidecar, Self::SyncDirectory, Self::SyncJournal];
        syncs.contains(&self) || self == Self::WriteJournal
    }
}

/// A hook before each step; its error replaces that of the system call.
pub trait Steps: Send + Sync + fmt::Debug {
    /// Lets the step happen, or fails it.
    fn before(&self, step: Step) -> io::Result<()>;
}

/// Lets every step happen.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoSteps;

impl Steps for NoSteps {
    fn before(&self, _: Step) -> io::Result<()> {
        Ok(())
    }
}
