//! How long a slice should be (*cross-rack pipelined updates*, eq. 9, 13 and 14, with their corrections): short slices fill a chain
//! quickly, long ones cost less beside their bytes.
//!
//! Over links of b_r bytes a second, the slowest of b_min, l bytes in slices of c, each of which costs α bytes' time more, take
//! (⌈l/c⌉ − 1)·(α + c)/b_min + Σ (α + c)/b_r. That is least for c = √(l·α / (Σ b_min/b_r − 1)); over one link a single slice is best.

use weft_types::PAGE_LEN;

/// The shortest and longest slice that [`slice_size`] gives, bytes.
const SLICES: (u64, u64) = (PAGE_LEN, 1 << 20);

/// The length c of a slice (eq. 13, 14), bytes, a multiple of `unit` and at most about `len`: for `len` bytes over `links` of so many
/// bytes a second each, where a slice costs as much as `overhead_bytes` more on the slowest link.
pub fn best_slice(len: u64, links: &[f64], overhead_bytes: f64, unit: u64) -> u64 {
    let unit = unit.max(1);
    let slowest = links.iter().copied().fold(f64::INFINITY, f64::min);
    let more: f64 = links.iter().map(|link| slowest / link).sum::<f64>() - 1.0;
    let best = (len as f64 * overhead_bytes.max(0.0) / more).sqrt();
    // Over one link, or where all others are no link's worth, nothing is gained by slices.
    if more <= 0.0 || !best.is_finite() || best >= len as f64 { len } else { ((best / unit as f64).round() as u64).max(1) * unit }
}

/// The length of a slice of a block for a chain: whole pages, 4 KiB to 1 MiB. `links` are what the chain's links carry, bytes a second;
/// `overhead_s` is what a slice costs besides its bytes, seconds.
pub fn slice_size(block_len: u64, links: &[f64], overhead_s: f64) -> u64 {
    let slowest = links.iter().copied().fold(f64::INFINITY, f64::min);
    let overhead_bytes = if slowest.is_finite() { overhead_s * slowest } else { 0.0 };
    best_slice(block_len, links, overhead_bytes, PAGE_LEN).next_multiple_of(PAGE_LEN).clamp(SLICES.0, SLICES.1)
}
