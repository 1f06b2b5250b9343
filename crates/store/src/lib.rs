//! Blocks on disks: payload files, sidecars, checksums; and the journal of updates in place.
//!
//! A [`BlockStore`] is one disk. [`LocalStore`] keeps blocks as plain files in a directory. [`FaultStore`] wraps any
//! store and injects faults. [`conformance::check`] tests any implementation against the contract. `docs/formats.md`
//! describes the files on the disk.
//!
//! A [`Journal`] keeps the records of updates until they are in the blocks. [`RingJournal`] is that of a [`LocalStore`];
//! [`journal_conformance`] has its contract's tests.
//!
//! All of it works on any [`Files`]: on those of the operating system, or on [`SimFiles`], which lose power.
//!
//! All calls block: async callers run them on threads that may block.

mod block_store;
pub mod conformance;
mod coverage;
mod fault;
mod files;
mod journal;
pub mod journal_conformance;
mod local;
mod sidecar;
mod sim_files;
mod slow_files;

pub use block_store::{
    BlockReader, BlockStore, BlockWriter, Capacity, DeviceErrors, Image, InPlaceCounts, Patch, QuarantinePlace, Quarantined,
    Receipt, verify,
};
pub use fault::{Call, CallKind, Fault, FaultStore};
pub use files::{FileHandle, Files, Open, RealFiles, Space};
pub use journal::{
    Ahead, Journal, JournalCounts, NewJournal, Payload, Position, RECORD_BYTES_MAX, RING_BYTES, RING_BYTES_MAX, RING_BYTES_MIN,
    Reservation, RingJournal, SharedBytes, Tail, Visit,
};
pub use local::{LocalStore, NewDisk, NoSteps, Recovered, Step, Steps};
pub use sidecar::{SIDECAR_BYTES_MAX, SIDECAR_VERSION, Sidecar};
pub use sim_files::{FileCall, FileOp, SimCounts, SimFiles};
pub use slow_files::SlowFiles;
