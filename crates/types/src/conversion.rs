//! Constants of conversions on which coordinator and agents must agree.

use std::ops::RangeInclusive;

/// Memory of one conversion at an agent, bytes. An agent with more memory runs several conversions at the same time.
pub const MEMORY_BYTES: RangeInclusive<u64> = 4 << 20..=32 << 20;
/// The fraction of it that a stripe may take; a longer stripe is spooled to disk.
pub const STRIPE_SHARE: u64 = 4;
/// Stripes longer than this, in bytes, may be spooled to disk at agents with little memory.
pub const SPOOLED_BEYOND_BYTES: u64 = *MEMORY_BYTES.start() / STRIPE_SHARE;

/// Bytes of a disk of `total_bytes` that conversions leave free: the reserve that puts leave too, and this percentage
/// for puts.
pub fn kept_free_bytes(total_bytes: u64, reserve_bytes: u64, percent: u32) -> u64 {
    (total_bytes / 100).saturating_mul(percent.into()).saturating_add(reserve_bytes)
}
