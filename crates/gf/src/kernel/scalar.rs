//! The portable kernel: eight bytes in a word, one product for each bit.
//!
//! c·x is the sum of c·2^b over the set bits b of x. The mask of bit b (0xff in each byte that has it) is computed once
//! for each source and shared by all rows. Compilers vectorise the loops over words for the target.

use super::pass::{PASS_ROWS_MAX, Pass, Work};
use crate::field::mul;

/// Words that are processed together.
const WORDS: usize = 16;
const BLOCK_BYTES: usize = WORDS * 8;
const LOW_BITS: u64 = 0x0101_0101_0101_0101;

pub(super) fn run(pass: Pass<'_, '_>) {
    let len = pass.outs.first().map_or(0, |out| out.len());
    let rows = pass.outs.len();
    let mut at = 0;
    while at < len {
        let here = (len - at).min(BLOCK_BYTES);
        let mut sums = [[0u64; WORDS]; PASS_ROWS_MAX];
        if pass.add {
            for (sum, out) in sums.iter_mut().zip(pass.outs.iter()) {
                *sum = load(&out[at..at + here]);
            }
        }
        for (k, source) in pass.sources.iter().enumerate() {
            let words = load(&source[at..at + here]);
            match pass.work {
                Work::Xor => sums[0].iter_mut().zip(&words).for_each(|(sum, word)| *sum ^= word),
                Work::Products(factors) => {
                    add_products(&mut sums[..rows], &words, &factors.coefficients[k * rows..(k + 1) * rows]);
                }
            }
        }
        for (sum, out) in sums.iter().zip(pass.outs.iter_mut()) {
            store(sum, &mut out[at..at + here]);
        }
        at += here;
    }
}

/// `sums[row] ^= coefficients[row] · x`, byte by byte.
fn add_products(sums: &mut [[u64; WORDS]], x: &[u64; WORDS], coefficients: &[u8]) {
    for bit in 0..8 {
        let mut masks = [0u64; WORDS];
        for (mask, word) in masks.iter_mut().zip(x) {
            let set = word >> bit & LOW_BITS;
            *mask = (set << 8).wrapping_sub(set);
        }
        for (sum, coefficient) in sums.iter_mut().zip(coefficients) {
            let product = u64::from(mul(*coefficient, 1 << bit)) * LOW_BITS;
            for (sum, mask) in sum.iter_mut().zip(&masks) {
                *sum ^= mask & product;
            }
        }
    }
}

/// The words of at most [`BLOCK_BYTES`] bytes, padded with zeros.
fn load(bytes: &[u8]) -> [u64; WORDS] {
    let mut padded = [0u8; BLOCK_BYTES];
    padded[..bytes.len()].copy_from_slice(bytes);
    let mut words = [0u64; WORDS];
    for (word, chunk) in words.iter_mut().zip(padded.as_chunks::<8>().0) {
        *word = u64::from_le_bytes(*chunk);
    }
    words
}

fn store(words: &[u64; WORDS], bytes: &mut [u8]) {
    let mut padded = [0u8; BLOCK_BYTES];
    for (word, chunk) in words.iter().zip(padded.as_chunks_mut::<8>().0) {
        *chunk = word.to_le_bytes();
    }
    bytes.copy_from_slice(&padded[..bytes.len()]);
}
