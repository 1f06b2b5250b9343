//! What coordinator and agents have to agree on of conversions.

use std::ops::RangeInclusive;

/// Memory of one conversion at an agent, bytes; who has more for all tasks together does several at once.
pub const MEMORY_BYTES: RangeInclusive<u64> = 4 << 20..=32 << 20;
/// The part of it that a stripe may take; a longer one waits on a disk.
pub const STRIPE_SHARE: u64 = 4;
/// Longer stripes, in bytes, wait on a disk at least at agents that have little memory.
pub const SPOOLED_BEYOND_BYTES: u64 = *MEMORY_BYTES.start() / STRIPE_SHARE;

/// Bytes of a disk of `total_bytes` that conversions leave free: what puts leave, too, and so many percent for puts.
pub fn kept_free_bytes(total_bytes: u64, reserve_bytes: u64, percent: u32) -> u64 {
    (total_bytes / 100).saturating_mul(percent.into()).saturating_add(reserve_bytes)
}
