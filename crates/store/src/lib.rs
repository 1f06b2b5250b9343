//! Blocks on disks: payload files, sidecars, checksums.
//!
//! A [`BlockStore`] is one disk. [`LocalStore`] keeps blocks as plain files below a directory; [`FaultStore`] stands before
//! any store and makes chosen calls fail; [`conformance::check`] holds every implementation to what is said here.
//! What lies on the disk is described in `docs/formats.md`.
//!
//! All calls block. Whoever must not block runs them where blocking is allowed.

mod block_store;
pub mod conformance;
mod coverage;
mod fault;
mod local;
mod sidecar;

pub use block_store::{BlockReader, BlockStore, BlockWriter, Capacity, QuarantinePlace, Quarantined, Receipt, verify};
pub use fault::{Call, CallKind, Fault, FaultStore};
pub use local::{LocalStore, NewDisk, NoSteps, Recovered, Step, Steps};
pub use sidecar::{SIDECAR_BYTES_MAX, SIDECAR_VERSION, Sidecar};
