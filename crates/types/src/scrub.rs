//! How far a scrub is and what it has found: plain values, which the metadata stores and decisions use.

use crate::{BlockId, NodeId, StripeId};
use serde::{Deserialize, Serialize};

/// The most wrong blocks that are listed with their reasons.
pub const SCRUB_WRONG_MAX: usize = 64;
/// Bytes that are stored of what is wrong with a block.
pub const SCRUB_WHY_BYTES_MAX: usize = 512;
/// The most stripes that are remembered to be checked again.
pub const SCRUB_AGAIN_MAX: usize = 4096;

/// How far a scrub is. The metadata stores it with postcard: never change or reorder the fields.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ScrubRecord {
    /// When the pass began, milliseconds since 1970; 0: none runs.
    pub began_ms: u64,
    /// The stripe behind which it continues.
    pub place: ScrubPlace,
    /// What it has checked.
    pub tally: ScrubTally,
    /// Stripes up to there that could not be checked yet.
    pub again: Vec<StripeId>,
    /// The first [`SCRUB_WRONG_MAX`] wrong blocks that it has found. Behind these, those of stripes behind the place, which are counted already;
    /// without reasons.
    pub wrong: Vec<WrongBlock>,
    /// The last whole pass.
    pub last: Option<ScrubPass>,
}

/// A place in the order of a scrub.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub struct ScrubPlace {
    /// The object's key, if the stripes are those of a bucket's objects, in order; else empty.
    pub key: String,
    /// Then the number of the stripe behind it in that object; else the id of the stripe, or 0 for the beginning.
    pub stripe: u64,
}

/// A whole pass.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ScrubPass {
    /// When it began, milliseconds since 1970.
    pub began_ms: u64,
    /// When it ended.
    pub ended_ms: u64,
    /// What it has checked.
    pub tally: ScrubTally,
    /// The first wrong blocks that it has found.
    pub wrong: Vec<WrongBlock>,
}

/// What a scrub has checked, and how much of it is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ScrubTally {
    /// Stripes that were checked.
    pub stripes: u64,
    /// Blocks of these that were read to the end.
    pub blocks: u64,
    /// The bytes of these blocks.
    pub bytes: u64,
    /// Wrong blocks that were found.
    pub wrong_blocks: u64,
    /// Stripes whose blocks match their recorded checksums and contradict each other.
    pub inconsistent_stripes: u64,
    /// Blocks that were known to be lost or corrupt, and were not read.
    pub lacking_blocks: u64,
    /// Blocks that were not read because their nodes are down.
    pub away_blocks: u64,
    /// Stripes that could not be checked, and of which there were too many to remember.
    pub skipped_stripes: u64,
}

/// A wrong block, or a stripe of which it is not known which block is wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WrongBlock {
    /// The object, `bucket/key`.
    pub object: String,
    /// The number of the stripe in the object.
    pub stripe: u64,
    /// The block and its node; `None`: it is not known which block of the stripe is wrong.
    pub block: Option<(BlockId, NodeId)>,
    /// What is wrong; at most [`SCRUB_WHY_BYTES_MAX`] bytes.
    pub why: String,
}

impl ScrubRecord {
    /// Stripes that could not be checked yet.
    pub fn not_checked(&self) -> u64 {
        self.tally.skipped_stripes.saturating_add(self.again.len() as u64)
    }
}
