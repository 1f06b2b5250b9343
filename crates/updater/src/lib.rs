//! Durable updates of blocks in place: the update protocol (`weft-update`) with payload, on a journal and a store.
//!
//! An [`Updater`] hosts the updates of all blocks of one disk. It is synchronous: calls go in, [`Output`]s come out, and the
//! disk is used on the caller's thread. A shell around it carries messages between nodes, and calls it from time to time.
//! Agents contain that shell.
//!
//! ```text
//!   request, receive ──► state machine of the block ──► entries ──► journal ──sync──► answers
//!                                  │                                   ▲
//!                                  └─ apply: pages, XOR coefficient × delta, as after-images ──sync──► store
//! ```
//!
//! # What a crash finds
//!
//! - The machine's answers wait until its entries are durable, so a crash takes back no promise. Entries are synced in groups: one sync
//!   serves all blocks of the disk.
//! - Pages are written only when their after-images are durable in the journal. A restart copies the after-images again, whatever the pages
//!   contain; it adds no delta twice.
//! - A record is released when payload and sidecar contain it durably and no node will ask for its outcome.
//! - A block is open when all entries of its opening are durable; two lives of a leader would have the same name otherwise.
//! - A block is settled when its sidecar has the term. A block that is not open has no entries, so a journal without them says nothing about it.
//!
//! # Bounds
//!
//! Deltas are in memory only while their update is under way here ([`Limits::inflight_bytes_max`]); afterwards they are read back from the journal.
//! Long ones are kept for a moment then, up to 32 MiB for a disk, because of a long update more is read as a rule.
//! Room in the journal for a delta and its after-images is reserved when the update is admitted. Updates are applied from a quarter on,
//! before any new update is handled from half on, and none is admitted above 90 %. What fails for a passing reason waits and is tried again.

mod apply;
mod arriving;
mod backlog;
mod content;
mod departing;
mod disk;
mod fault;
mod flights;
mod open;
mod opening;
mod outcomes;
mod piece;
mod record;
mod refuse;
mod replay;
mod shape;
mod updater;

#[cfg(test)]
mod tests;

pub use arriving::DeltaPart;
pub use content::{Content, Read, Refusal, Served};
pub use departing::TakeParts;
pub use disk::Limits;
pub use opening::{OpenBlock, SettledBlock};
pub use piece::{Piece, Pieces};
pub use record::fuzz_record;
pub use shape::dependence;
pub use updater::{Output, Updater};
