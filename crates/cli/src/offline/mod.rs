//! Encoding, repairing and decoding plain files, without a cluster.
//!
//! `DIR/block-000`, `DIR/block-001`, … are the raw bytes of the blocks; `DIR/manifest.json` says what they are. Whatever is read is
//! checked against recorded checksums first, whatever is written is checked before it takes its name.

mod blocks;
mod encode;
mod files;
mod manifest;
mod plans;
mod stored;

pub(crate) use blocks::Health;
pub(crate) use encode::{Encoded, Sizes, encode, explain_encode};
pub(crate) use files::file_sha256;
pub(crate) use plans::{Proved, prove};
pub(crate) use stored::{Decoded, Repaired, Stored, Verified};
