//! The fused kernel `dst[0..r] (^)= M[r×c] × src[0..c]`.

use crate::{SparseMatrix, field::mul};

/// An implementation of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kernel {
    /// One table look-up a byte: the oracle.
    Naive,
}

/// A matrix made ready for the kernel: built once, applied to many slices.
#[derive(Debug, Clone)]
pub struct Combination {
    matrix: SparseMatrix,
}

impl Combination {
    /// For the best kernel of this machine.
    pub fn new(matrix: &SparseMatrix) -> Self {
        Self { matrix: matrix.clone() }
    }

    /// `out = M × sources`. All slices have the same length; there are `cols` sources and `rows` outputs.
    /// What is in `out` before does not matter.
    pub fn apply(&self, sources: &[&[u8]], out: &mut [&mut [u8]]) {
        for row in out.iter_mut() {
            row.fill(0);
        }
        self.accumulate(sources, out);
    }

    /// `out ^= M × sources`.
    pub fn accumulate(&self, sources: &[&[u8]], out: &mut [&mut [u8]]) {
        assert_eq!((sources.len(), out.len()), (self.matrix.cols(), self.matrix.rows()), "the matrix's shape");
        for (r, c, coefficient) in self.matrix.terms() {
            for (d, s) in out[*r as usize].iter_mut().zip(sources[*c as usize]) {
                *d ^= mul(*s, *coefficient);
            }
        }
    }
}
