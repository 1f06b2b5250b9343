//! One pass: a few rows over a few sources, in the form that kernels take.

use super::mirror::Mirror;
use crate::field::mul;

/// The most sources of one pass, for which the unrolled loops are made.
pub(super) const PASS_SOURCES_MAX: usize = 16;

/// The most rows of one pass: their sums must fit in the registers of every kernel.
pub(super) const PASS_ROWS_MAX: usize = 4;

/// The input of a kernel: `outs (^)= coefficients × sources`, all slices of one length.
pub(super) struct Pass<'a, 's> {
    /// The operation on the sources.
    pub(super) work: Work<'a>,
    /// At least one, at most [`PASS_SOURCES_MAX`].
    pub(super) sources: &'a [&'s [u8]],
    /// At least one, at most [`PASS_ROWS_MAX`]; exactly one for [`Work::Xor`].
    pub(super) outs: &'a mut [&'s mut [u8]],
    /// Whether the sums are added to the content of `outs` or replace it.
    pub(super) add: bool,
    /// Whether `outs` are written past the caches, if the kernel can.
    pub(super) stream: bool,
}

/// The operation on the sources of a pass.
#[derive(Clone, Copy)]
pub(super) enum Work<'a> {
    /// Add them up.
    Xor,
    /// Multiply them by coefficients, and add them up.
    Products(Factors<'a>),
}

/// The factors of a pass in the forms of all kernels, laid out [source][row]: those of one source are adjacent.
#[derive(Clone, Copy)]
pub(super) struct Factors<'a> {
    /// The coefficients themselves.
    pub(super) coefficients: &'a [u8],
    /// As in [`AFFINE`].
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
    pub(super) affine: &'a [u64],
    /// As in [`NIBBLES`].
    pub(super) nibbles: &'a [Nibbles],
    /// A decomposition with fewer products, for the kernels that support it.
    pub(super) mirror: Option<Mirror<'a>>,
}

impl Factors<'static> {
    /// For one source and one row.
    pub(super) fn single(coefficient: u8) -> Self {
        static COEFFICIENTS: [u8; 256] = coefficients();
        let at = usize::from(coefficient)..=usize::from(coefficient);
        Self { coefficients: &COEFFICIENTS[at.clone()], affine: &AFFINE[at.clone()], nibbles: &NIBBLES[at], mirror: None }
    }
}

/// The products of one coefficient with the 16 low, then with the 16 high half bytes.
#[derive(Debug, Clone, Copy)]
#[repr(align(32))]
pub(super) struct Nibbles(pub(super) [u8; 32]);

/// For each coefficient, multiplication by it as GFNI's bit matrix: bit i of the result is the parity of the source and of
/// the matrix's byte 7-i.
pub(super) static AFFINE: [u64; 256] = affine();

/// For each coefficient, its products with half bytes.
pub(super) static NIBBLES: [Nibbles; 256] = nibbles();

const fn coefficients() -> [u8; 256] {
    let (mut all, mut c) = ([0; 256], 0);
    while c < 256 {
        all[c] = c as u8;
        c += 1;
    }
    all
}

const fn affine() -> [u64; 256] {
    let (mut all, mut c) = ([0; 256], 0);
    while c < 256 {
        let mut bit = 0;
        while bit < 8 {
            let (column, mut row) = (mul(c as u8, 1 << bit) as u64, 0);
            while row < 8 {
                all[c] |= (column >> row & 1) << ((7 - row) * 8 + bit);
                row += 1;
            }
            bit += 1;
        }
        c += 1;
    }
    all
}

const fn nibbles() -> [Nibbles; 256] {
    let (mut all, mut c) = ([Nibbles([0; 32]); 256], 0);
    while c < 256 {
        let mut half = 0;
        while half < 16 {
            all[c].0[half] = mul(c as u8, half as u8);
            all[c].0[16 + half] = mul(c as u8, (half << 4) as u8);
            half += 1;
        }
        c += 1;
    }
    all
}
