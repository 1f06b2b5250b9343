//! The length of a slice (*cross-rack pipelined updates*, eq. 9, 13 and 14, with corrections): short slices fill a
//! chain quickly, long ones have less overhead.
//!
//! Sending l bytes in slices of c over links of b_r bytes a second, the slowest of which has b_min, takes (⌈l/c⌉ −
//! 1)·(α + c)/b_min + Σ (α + c)/b_r, where α is the overhead of a slice in bytes. The minimum is at c = √(l·α / (Σ
//! b_min/b_r − 1)); over a single link one slice is best.

use weft_types::PAGE_LEN;

/// The shortest and longest result of [`slice_size`], bytes.
const SLICES: (u64, u64) = (PAGE_LEN, 1 << 20);

/// The best slice length c (eq. 13, 14), bytes: a multiple of `unit`, at most about `len`, for `len` bytes over `links`
/// with these rates, if a slice costs `overhead_bytes` more on the slowest link.
pub fn best_slice(len: u64, links: &[f64], overhead_bytes: f64, unit: u64) -> u64 {
    let unit = unit.max(1);
    let slowest = links.iter().copied().fold(f64::INFINITY, f64::min);
    let more: f64 = links.iter().map(|link| slowest / link).sum::<f64>() - 1.0;
    let best = (len as f64 * overhead_bytes.max(0.0) / more).sqrt();
    // Over a single link, or if all others together are negligible, slices gain nothing.
    if more <= 0.0 || !best.is_finite() || best >= len as f64 { len } else { ((best / unit as f64).round() as u64).max(1) * unit }
}

/// The slice length of a block for a chain: whole pages, 4 KiB to 1 MiB. `links` are the rates of the chain's links,
/// bytes a second; `overhead_s` is the time of a slice besides its bytes, seconds.
pub fn slice_size(block_len: u64, links: &[f64], overhead_s: f64) -> u64 {
    let slowest = links.iter().copied().fold(f64::INFINITY, f64::min);
    let overhead_bytes = if slowest.is_finite() { overhead_s * slowest } else { 0.0 };
    best_slice(block_len, links, overhead_bytes, PAGE_LEN).next_multiple_of(PAGE_LEN).clamp(SLICES.0, SLICES.1)
}
