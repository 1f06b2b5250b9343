//! SSSE3: a byte's product is the sum of its half bytes' products, each looked up by a shuffle of a 16-byte table.

#![allow(unsafe_code)]

use super::{
    lanes::{self, ANY, Constants, Lanes, Plain, Xor},
    pass::{Nibbles, PASS_SOURCES_MAX, Pass, Work},
};
use std::arch::x86_64::*;

pub(super) fn is_available() -> bool {
    is_x86_feature_detected!("ssse3")
}

#[target_feature(enable = "ssse3")]
pub(super) unsafe fn run(mut pass: Pass<'_, '_>) {
    let ones = &[(); PASS_SOURCES_MAX][..pass.sources.len()];
    // SAFETY: this function enables the instructions.
    unsafe {
        match pass.work {
            Work::Xor => lanes::run::<Xor<Xmm>, Plain<ANY>, 1>(&mut pass, Constants { plain: ones, mirror: None }),
            // Mirrors would save products, but their sums do not fit in sixteen registers, so they are not faster.
            Work::Products(factors) => {
                lanes::run_rolled::<Xmm>(&mut pass, Constants { plain: factors.nibbles, mirror: None });
            }
        }
    }
}

struct Xmm;

// SAFETY (all blocks): the trait's contract: the caller has checked the instruction set and the bytes.
impl Lanes for Xmm {
    type Vector = __m128i;
    /// The low half bytes, and the high half bytes.
    type Source = [__m128i; 2];
    type Constant = Nibbles;
    type Factor = [__m128i; 2];

    const BYTES: usize = 16;

    #[inline(always)]
    unsafe fn zero() -> __m128i {
        unsafe { _mm_setzero_si128() }
    }

    #[inline(always)]
    unsafe fn load(from: *const u8) -> __m128i {
        unsafe { _mm_loadu_si128(from.cast()) }
    }

    #[inline(always)]
    unsafe fn store(to: *mut u8, vector: __m128i) {
        unsafe { _mm_storeu_si128(to.cast(), vector) }
    }

    #[inline(always)]
    unsafe fn stream(to: *mut u8, vector: __m128i) {
        unsafe { _mm_stream_si128(to.cast(), vector) }
    }

    #[inline(always)]
    unsafe fn fence() {
        unsafe { _mm_sfence() }
    }

    #[inline(always)]
    unsafe fn source(vector: __m128i) -> [__m128i; 2] {
        unsafe {
            let half = _mm_set1_epi8(0x0f);
            [_mm_and_si128(vector, half), _mm_and_si128(_mm_srli_epi64::<4>(vector), half)]
        }
    }

    #[inline(always)]
    unsafe fn factor(constant: &Nibbles) -> [__m128i; 2] {
        let table = constant.0.as_ptr();
        unsafe { [Self::load(table), Self::load(table.add(16))] }
    }

    #[inline(always)]
    unsafe fn xor(a: __m128i, b: __m128i) -> __m128i {
        unsafe { _mm_xor_si128(a, b) }
    }

    #[inline(always)]
    unsafe fn add_product(sum: __m128i, source: [__m128i; 2], factor: [__m128i; 2]) -> __m128i {
        unsafe {
            let product = _mm_xor_si128(_mm_shuffle_epi8(factor[0], source[0]), _mm_shuffle_epi8(factor[1], source[1]));
            _mm_xor_si128(sum, product)
        }
    }
}
