//! NEON: a byte's product is the sum of its half bytes' products, each looked up in a 16-byte table.

#![allow(unsafe_code)]

use super::{
    lanes::{self, ANY, Constants, Lanes, Plain, Xor},
    mirrored::{Pairs, Quads},
    pass::{Nibbles, PASS_SOURCES_MAX, Pass, Work},
};
use std::arch::{aarch64::*, is_aarch64_feature_detected};

pub(super) fn is_available() -> bool {
    is_aarch64_feature_detected!("neon")
}

#[target_feature(enable = "neon")]
pub(super) unsafe fn run(mut pass: Pass<'_, '_>) {
    let ones = &[(); PASS_SOURCES_MAX][..pass.sources.len()];
    // SAFETY: this function enables the instructions.
    unsafe {
        match pass.work {
            Work::Xor => lanes::run::<Xor<Quad>, Plain<ANY>, 1>(&mut pass, Constants { plain: ones, mirror: None }),
            Work::Products(factors) => {
                let mirror = factors.mirror.map(|mirror| (mirror, mirror.nibbles));
                let constants = Constants { plain: factors.nibbles, mirror };
                match (pass.outs.len(), mirror) {
                    (2, Some(_)) => lanes::run::<Quad, Pairs<ANY>, 2>(&mut pass, constants),
                    (3, Some(_)) => lanes::run::<Quad, Pairs<ANY>, 3>(&mut pass, constants),
                    (4, Some(_)) => lanes::run::<Quad, Quads<ANY, ANY>, 4>(&mut pass, constants),
                    _ => lanes::run_rolled(&mut pass, constants),
                }
            }
        }
    }
}

struct Quad;

// SAFETY (all blocks): the trait's contract: the caller has checked the instruction set and the bytes.
impl Lanes for Quad {
    type Vector = uint8x16_t;
    /// The low half bytes, and the high half bytes.
    type Source = [uint8x16_t; 2];
    type Constant = Nibbles;
    type Factor = [uint8x16_t; 2];

    const BYTES: usize = 16;

    #[inline(always)]
    unsafe fn zero() -> uint8x16_t {
        unsafe { vdupq_n_u8(0) }
    }

    #[inline(always)]
    unsafe fn load(from: *const u8) -> uint8x16_t {
        unsafe { vld1q_u8(from) }
    }

    #[inline(always)]
    unsafe fn store(to: *mut u8, vector: uint8x16_t) {
        unsafe { vst1q_u8(to, vector) }
    }

    /// AArch64 needs no streaming hint here: the hardware detects streams of whole lines.
    #[inline(always)]
    unsafe fn stream(to: *mut u8, vector: uint8x16_t) {
        unsafe { Self::store(to, vector) }
    }

    #[inline(always)]
    unsafe fn fence() {}

    #[inline(always)]
    unsafe fn source(vector: uint8x16_t) -> [uint8x16_t; 2] {
        unsafe { [vandq_u8(vector, vdupq_n_u8(0x0f)), vshrq_n_u8::<4>(vector)] }
    }

    #[inline(always)]
    unsafe fn factor(constant: &Nibbles) -> [uint8x16_t; 2] {
        let table = constant.0.as_ptr();
        unsafe { [Self::load(table), Self::load(table.add(16))] }
    }

    #[inline(always)]
    unsafe fn xor(a: uint8x16_t, b: uint8x16_t) -> uint8x16_t {
        unsafe { veorq_u8(a, b) }
    }

    #[inline(always)]
    unsafe fn add_product(sum: uint8x16_t, source: [uint8x16_t; 2], factor: [uint8x16_t; 2]) -> uint8x16_t {
        unsafe { veorq_u8(sum, veorq_u8(vqtbl1q_u8(factor[0], source[0]), vqtbl1q_u8(factor[1], source[1]))) }
    }
}
