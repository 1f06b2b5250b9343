//! Encodes, repairs and decodes plain files without a cluster.
//!
//! `DIR/block-000`, `DIR/block-001`, … are the raw bytes of the blocks; `DIR/manifest.json` describes them. All input is compared with
//! its checksums before use; all output is checked before it gets its name.

mod blocks;
mod encode;
mod files;
mod manifest;
mod plans;
mod stored;

pub(crate) use blocks::Health;
pub(crate) use encode::{Encoded, Sizes, encode, explain_encode};
pub(crate) use files::{block_id, file_sha256, holder};
pub(crate) use plans::{Proved, prove};
pub(crate) use stored::{Decoded, Repaired, Stored, Verified};
