//! What the metadata keep of jobs: of how many, and how much of each; and which of them cannot be under way together.

use weft_types::{JobWork, LEFT_REASON_BYTES_MAX, LeftBlock};

/// Jobs that have ended and are kept, at most: those that ended last.
pub const ENDED_JOBS_MAX: u32 = 100;

/// What a job is about: of two jobs of one kind about the same, only one can be under way.
pub(crate) fn subject(work: &JobWork) -> u64 {
    match work {
        JobWork::RepairNode(repair) => repair.node.0.into(),
        // One at a time in a bucket. A hash will do: that two buckets share one merely has the second wait, once in 2^63 pairs.
        JobWork::Convert(conversion) => fnv_1a(conversion.bucket.as_bytes()) >> 1,
    }
}

/// FNV-1a of 64 bits: the same in every version, as it is written down.
fn fnv_1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// A block that was left, with as much of the reason as is kept.
pub(crate) fn left_shortened(left: &LeftBlock) -> LeftBlock {
    LeftBlock { reason: shortened(&left.reason, LEFT_REASON_BYTES_MAX).to_owned(), ..left.clone() }
}

/// The first so many bytes of a text, and whole letters of it.
pub(crate) fn shortened(text: &str, bytes_max: usize) -> &str {
    let kept = (0..=text.len().min(bytes_max)).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    text.get(..kept).unwrap_or_default()
}
