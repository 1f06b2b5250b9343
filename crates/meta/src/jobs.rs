//! Which jobs and how much of each the metadata keeps, and which jobs exclude each other.

use weft_types::{JobWork, LEFT_REASON_BYTES_MAX, LeftBlock, Scrub};

/// The most finished jobs that are kept; those that ended first are dropped.
pub const ENDED_JOBS_MAX: u32 = 100;

/// The subject of a job: of two jobs of one kind and subject, only one may be active.
pub(crate) fn subject(work: &JobWork) -> u64 {
    match work {
        JobWork::RepairNode(repair) => repair.node.0.into(),
        // One conversion at a time in a bucket. A hash suffices: if two buckets share one (once in 2^63 pairs), the
        // second merely waits.
        JobWork::Convert(conversion) => fnv_1a(conversion.bucket.as_bytes()) >> 1,
        JobWork::Balance(_) => 0,
        // Of the same stripes only one at a time.
        JobWork::Scrub(Scrub { bucket, key, node, .. }) => {
            let what = [bucket.as_deref(), key.as_deref()].map(Option::unwrap_or_default).join("/");
            fnv_1a(format!("{what} {}", node.map_or(0, |node| node.0)).as_bytes()) >> 1
        }
    }
}

/// FNV-1a with 64 bits: it is stored, so it must never change.
fn fnv_1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// A block that a job left out, with its reason cut to the stored length.
pub(crate) fn left_shortened(left: &LeftBlock) -> LeftBlock {
    LeftBlock { reason: shortened(&left.reason, LEFT_REASON_BYTES_MAX).to_owned(), ..left.clone() }
}

/// At most the first `bytes_max` bytes of a text, cut between characters.
pub(crate) fn shortened(text: &str, bytes_max: usize) -> &str {
    let kept = (0..=text.len().min(bytes_max)).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    text.get(..kept).unwrap_or_default()
}
