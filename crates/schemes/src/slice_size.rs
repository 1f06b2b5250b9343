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

/// How much longer an update may take with a slice of the region of interest than with the best one.
const OF_INTEREST: f64 = 0.05;

/// The region of interest (*CPU*, §4.5): the slice lengths, bytes, with which `len` bytes take at most `1 + more` times
/// as long over a path of `hops` equal links as with the best slice, if a slice costs `overhead_bytes` more. A path with
/// faster links beside its slowest one depends less on the slice length.
///
/// By eq. (9) with ⌈l/c⌉ = l/c, R equal links take l·α/c + (R−1)·c more than l + (R−1)·α bytes do.
pub fn region_of_interest(len: u64, hops: usize, overhead_bytes: f64, more: f64) -> (f64, f64) {
    let (len, others, overhead) = (len as f64, hops.saturating_sub(1) as f64, overhead_bytes.max(0.0));
    let best = if others > 0.0 { (len * overhead / others).sqrt().min(len) } else { len };
    let takes = |slice: f64| if slice > 0.0 { len * overhead / slice + others * slice } else { 0.0 };
    let most = takes(best) + more * (takes(best) + len + others * overhead);
    if others == 0.0 {
        return (len * overhead / most, len);
    }
    let root = (most * most - 4.0 * others * len * overhead).max(0.0).sqrt();
    ((most - root) / (2.0 * others), ((most + root) / (2.0 * others)).min(len))
}

/// The slice length of an update along a path, like [`slice_size`], within the region of interest: a path with a single
/// slow link would gain little by longer slices, which take more memory at each of its nodes.
pub fn update_slice_size(block_len: u64, links: &[f64], overhead_s: f64) -> u64 {
    let slowest = links.iter().copied().fold(f64::INFINITY, f64::min);
    let overhead_bytes = if slowest.is_finite() { overhead_s * slowest } else { 0.0 };
    let (_, longest) = region_of_interest(block_len, links.len(), overhead_bytes, OF_INTEREST);
    let longest = (longest as u64 / PAGE_LEN * PAGE_LEN).max(SLICES.0);
    slice_size(block_len, links, overhead_s).min(longest)
}

/// The slice length of a block for a chain: whole pages, 4 KiB to 1 MiB. `links` are the rates of the chain's links,
/// bytes a second; `overhead_s` is the time of a slice besides its bytes, seconds.
pub fn slice_size(block_len: u64, links: &[f64], overhead_s: f64) -> u64 {
    let slowest = links.iter().copied().fold(f64::INFINITY, f64::min);
    let overhead_bytes = if slowest.is_finite() { overhead_s * slowest } else { 0.0 };
    best_slice(block_len, links, overhead_bytes, PAGE_LEN).next_multiple_of(PAGE_LEN).clamp(SLICES.0, SLICES.1)
}
