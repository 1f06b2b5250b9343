//! AVX2: like SSSE3, with the tables in both halves of the vector.

#![allow(unsafe_code)]

use super::{
    lanes::{self, ANY, Constants, Lanes, Plain, Xor},
    pass::{Nibbles, PASS_SOURCES_MAX, Pass, Work},
};
use std::arch::x86_64::*;

pub(super) fn is_available() -> bool {
    is_x86_feature_detected!("avx2")
}

#[target_feature(enable = "avx2")]
pub(super) unsafe fn run(mut pass: Pass<'_, '_>) {
    let ones = &[(); PASS_SOURCES_MAX][..pass.sources.len()];
    // SAFETY: this function enables the instructions.
    unsafe {
        match pass.work {
            Work::Xor => lanes::run::<Xor<Ymm>, Plain<ANY>, 1>(&mut pass, Constants { plain: ones, mirror: None }),
            // Mirrors would save products, but their sums do not fit in sixteen registers, so they are not faster.
            Work::Products(factors) => {
                lanes::run_rolled::<Ymm>(&mut pass, Constants { plain: factors.nibbles, mirror: None });
            }
        }
    }
}

struct Ymm;

// SAFETY (all blocks): the trait's contract: the caller has checked the instruction set and the bytes.
impl Lanes for Ymm {
    type Vector = __m256i;
    /// The low half bytes, and the high half bytes.
    type Source = [__m256i; 2];
    type Constant = Nibbles;
    type Factor = [__m256i; 2];

    const BYTES: usize = 32;

    #[inline(always)]
    unsafe fn zero() -> __m256i {
        unsafe { _mm256_setzero_si256() }
    }

    #[inline(always)]
    unsafe fn load(from: *const u8) -> __m256i {
        unsafe { _mm256_loadu_si256(from.cast()) }
    }

    #[inline(always)]
    unsafe fn store(to: *mut u8, vector: __m256i) {
        unsafe { _mm256_storeu_si256(to.cast(), vector) }
    }

    #[inline(always)]
    unsafe fn stream(to: *mut u8, vector: __m256i) {
        unsafe { _mm256_stream_si256(to.cast(), vector) }
    }

    #[inline(always)]
    unsafe fn fence() {
        unsafe { _mm_sfence() }
    }

    #[inline(always)]
    unsafe fn source(vector: __m256i) -> [__m256i; 2] {
        unsafe {
            let half = _mm256_set1_epi8(0x0f);
            [_mm256_and_si256(vector, half), _mm256_and_si256(_mm256_srli_epi64::<4>(vector), half)]
        }
    }

    #[inline(always)]
    unsafe fn factor(constant: &Nibbles) -> [__m256i; 2] {
        let table = constant.0.as_ptr();
        unsafe {
            let low = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.cast()));
            let high = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.add(16).cast()));
            [low, high]
        }
    }

    #[inline(always)]
    unsafe fn xor(a: __m256i, b: __m256i) -> __m256i {
        unsafe { _mm256_xor_si256(a, b) }
    }

    #[inline(always)]
    unsafe fn add_product(sum: __m256i, source: [__m256i; 2], factor: [__m256i; 2]) -> __m256i {
        unsafe {
            let product = _mm256_xor_si256(_mm256_shuffle_epi8(factor[0], source[0]), _mm256_shuffle_epi8(factor[1], source[1]));
            _mm256_xor_si256(sum, product)
        }
    }
}
