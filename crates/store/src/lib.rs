//! Blocks on disks: payload files, sidecars, checksums.
//!
//! A [`BlockStore`] is one disk. [`LocalStore`] keeps blocks as plain files in a directory. [`FaultStore`] wraps any
//! store and injects faults. [`conformance::check`] tests any implementation against the contract. `docs/formats.md`
//! describes the files on the disk.
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

pub use block_store::{
    BlockReader, BlockStore, BlockWriter, Capacity, DeviceErrors, Image, Patch, QuarantinePlace, Quarantined, Receipt, verify,
};
pub use fault::{Call, CallKind, Fault, FaultStore};
pub use files::{FileHandle, Files, Open, RealFiles, Space};
pub use journal::{
    Journal, JournalCounts, NewJournal, Position, RECORD_BYTES_MAX, RING_BYTES, RING_BYTES_MAX, RING_BYTES_MIN, Reservation,
    RingJournal,
};
pub use local::{LocalStore, NewDisk, NoSteps, Recovered, Step, Steps};
pub use sidecar::{SIDECAR_BYTES_MAX, SIDECAR_VERSION, Sidecar};
pub use sim_files::{FileCall, FileOp, SimCounts, SimFiles};
