//! The field GF(2^8) with the polynomial x^8 + x^4 + x^3 + x^2 + 1 (0x11d): arithmetic, matrices, and one fused kernel.
//!
//! All of weft's computation over data has the form `dst (^)= M × src` ([`Combination`]).

mod factored;
pub mod field;
mod kernel;
mod matrix;
mod sparse;

pub use factored::{Factored, FactoredBuilder};
pub use kernel::{Combination, Kernel, UnusableKernel};
pub use matrix::Matrix;
pub use sparse::SparseMatrix;
