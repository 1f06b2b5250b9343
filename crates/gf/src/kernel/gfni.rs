//! AVX-512 with GFNI: multiplication by a constant is linear over GF(2), so it is one affine transformation of each
//! byte.

#![allow(unsafe_code)]

use super::{
    lanes::{self, Body, Constants, Lanes, Plain, Xor},
    mirror::Mirror,
    mirrored::{Pairs, Quads},
    pass::{PASS_SOURCES_MAX, Pass, Work},
};
use std::arch::x86_64::*;

pub(super) fn is_available() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("gfni")
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,gfni")]
pub(super) unsafe fn run(mut pass: Pass<'_, '_>) {
    let ones = &[(); PASS_SOURCES_MAX][..pass.sources.len()];
    // SAFETY: this function enables the instructions.
    unsafe {
        match pass.work {
            Work::Xor => plain::<Xor<Zmm>, 1>(&mut pass, Constants { plain: ones, mirror: None }),
            Work::Products(factors) => {
                let mirror = factors.mirror.map(|mirror| (mirror, mirror.affine));
                let constants = Constants { plain: factors.affine, mirror };
                match (pass.outs.len(), mirror) {
                    (1, _) => plain::<Zmm, 1>(&mut pass, constants),
                    (2, None) => plain::<Zmm, 2>(&mut pass, constants),
                    (3, None) => plain::<Zmm, 3>(&mut pass, constants),
                    (4, None) => plain::<Zmm, 4>(&mut pass, constants),
                    (2, Some((mirror, _))) => pairs::<2>(&mut pass, constants, mirror),
                    (3, Some((mirror, _))) => pairs::<3>(&mut pass, constants, mirror),
                    (4, Some((mirror, _))) => quads(&mut pass, constants, mirror),
                    (rows, _) => unreachable!("a pass of {rows} rows"),
                }
            }
        }
    }
}

/// The instance for the number of sources.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,gfni")]
unsafe fn plain<L: Lanes, const M: usize>(pass: &mut Pass<'_, '_>, constants: Constants<'_, L>) {
    macro_rules! instances {
        ($($sources:literal)*) => {
            match pass.sources.len() {
                // SAFETY: this function enables the instructions.
                $($sources => unsafe { instance::<L, Plain<$sources>, M>(pass, constants) },)*
                sources => unreachable!("a pass of {sources} sources"),
            }
        };
    }
    instances!(1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16)
}

/// The instance for the number of pairs; see [`mirror`](super::mirror).
#[target_feature(enable = "avx512f,avx512bw,avx512vl,gfni")]
unsafe fn pairs<const M: usize>(pass: &mut Pass<'_, '_>, constants: Constants<'_, Zmm>, mirror: Mirror<'_>) {
    macro_rules! instances {
        ($($pairs:literal)*) => {
            match mirror.pairs {
                // SAFETY: this function enables the instructions.
                $($pairs => unsafe { instance::<Zmm, Pairs<$pairs>, M>(pass, constants) },)*
                pairs => unreachable!("a pass of {pairs} pairs"),
            }
        };
    }
    instances!(1 2 3 4 5 6 7 8)
}

/// The instance for the numbers of quads and pairs; see [`mirror`](super::mirror).
#[target_feature(enable = "avx512f,avx512bw,avx512vl,gfni")]
unsafe fn quads(pass: &mut Pass<'_, '_>, constants: Constants<'_, Zmm>, mirror: Mirror<'_>) {
    macro_rules! instances {
        ($($quads:literal $pairs:literal),*) => {
            match (mirror.quads, mirror.pairs) {
                // SAFETY: this function enables the instructions.
                $(($quads, $pairs) => unsafe { instance::<Zmm, Quads<$quads, $pairs>, 4>(pass, constants) },)*
                (quads, pairs) => unreachable!("a pass of {quads} quads and {pairs} pairs"),
            }
        };
    }
    instances!(
        0 1, 0 2, 0 3, 0 4, 0 5, 0 6, 0 7, 0 8, 1 0, 1 1, 1 2, 1 3, 1 4, 1 5, 1 6, 2 0, 2 1, 2 2, 2 3, 2 4, 3 0, 3 1, 3 2, 4 0
    )
}

/// A separate function, because compilers are slow on one that contains all instances.
#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,gfni")]
unsafe fn instance<L: Lanes, B: Body<L, M>, const M: usize>(pass: &mut Pass<'_, '_>, constants: Constants<'_, L>) {
    // SAFETY: this function enables the instructions.
    unsafe { lanes::run::<L, B, M>(pass, constants) }
}

struct Zmm;

// SAFETY (all blocks): the trait's contract: the caller has checked the instruction set and the bytes.
impl Lanes for Zmm {
    type Vector = __m512i;
    type Source = __m512i;
    type Constant = u64;
    type Factor = __m512i;

    const BYTES: usize = 64;

    #[inline(always)]
    unsafe fn zero() -> __m512i {
        unsafe { _mm512_setzero_si512() }
    }

    #[inline(always)]
    unsafe fn load(from: *const u8) -> __m512i {
        unsafe { _mm512_loadu_si512(from.cast()) }
    }

    #[inline(always)]
    unsafe fn store(to: *mut u8, vector: __m512i) {
        unsafe { _mm512_storeu_si512(to.cast(), vector) }
    }

    #[inline(always)]
    unsafe fn stream(to: *mut u8, vector: __m512i) {
        unsafe { _mm512_stream_si512(to.cast(), vector) }
    }

    #[inline(always)]
    unsafe fn fence() {
        unsafe { _mm_sfence() }
    }

    #[inline(always)]
    unsafe fn source(vector: __m512i) -> __m512i {
        vector
    }

    #[inline(always)]
    unsafe fn factor(constant: &u64) -> __m512i {
        unsafe { _mm512_set1_epi64(constant.cast_signed()) }
    }

    #[inline(always)]
    unsafe fn xor(a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_xor_si512(a, b) }
    }

    #[inline(always)]
    unsafe fn add_product(sum: __m512i, source: __m512i, factor: __m512i) -> __m512i {
        unsafe { _mm512_xor_si512(sum, _mm512_gf2p8affine_epi64_epi8::<0>(source, factor)) }
    }

    #[inline(always)]
    unsafe fn load_part(from: *const u8, len: usize) -> __m512i {
        unsafe { _mm512_maskz_loadu_epi8(first(len), from.cast()) }
    }

    #[inline(always)]
    unsafe fn store_part(to: *mut u8, vector: __m512i, len: usize) {
        unsafe { _mm512_mask_storeu_epi8(to.cast(), first(len), vector) }
    }
}

/// The mask of the first `len` < 64 bytes.
#[inline(always)]
fn first(len: usize) -> u64 {
    (1 << len) - 1
}
