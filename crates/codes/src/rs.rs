//! Reed–Solomon codes: k data blocks, m parity blocks, any k of the n = k+m suffice.
//!
//! The generator is the identity over m parity rows P. There are three choices for P. Two are byte-identical with Intel's ISA-L
//! (`erasure_code/ec_base.c`) and the third with Jerasure, so each can read what the other wrote:
//!
//! - **Cauchy** (`gf_gen_cauchy1_matrix`; also HDFS's RS coder): `P[i-k][j] = 1 / (i ⊕ j)` for k ≤ i < n, 0 ≤ j < k. In
//!   characteristic 2, ⊕ is subtraction: this is 1/(x_i − y_j) with all x and y distinct, a Cauchy matrix. Every square
//!   submatrix of a Cauchy matrix is a Cauchy matrix, whose determinant ∏(x_a−x_b)(y_b−y_a) / ∏(x_a−y_b) is not zero: always MDS.
//! - **Vandermonde** (`gf_gen_rs_matrix`): `P[r][j] = 2^(r·j)`. Square submatrices of a Vandermonde matrix over a finite field
//!   can be singular, so that this one is MDS for some parameters only, and refused for the others (`vandermonde_witness` below).
//! - **Jerasure** (`reed_sol_van` with w = 8; Plank and Ding, *Note: Correction to the 1997 Tutorial on Reed–Solomon Coding*):
//!   the Vandermonde matrix of the points 0, 1, …, n−2 and ∞, made systematic by column operations, its parity rows then scaled
//!   so that the first row and the first column are ones. Row x of the systematic matrix holds the values at x of the
//!   polynomials that are 1 at one of the points 0..k and 0 at the others (Lagrange), `A(x) / ((x − j) A'(j))` with
//!   `A(x) = ∏(x − j)`, and ∞ stands for the leading coefficients, `1 / A'(j)`. Scaled, with x = k+r:
//!   `P[r][j] = (k ⊕ j)/k · x/(x ⊕ j)` for r < m−1, and `P[m−1][j] = (k ⊕ j)/k`; for r = 0 both are a row of ones.
//!   This is a Cauchy matrix with its rows and columns scaled and, as its last row, the limit of one for x → ∞, whose minors are
//!   not zero either: always MDS.

use crate::{
    Arguments, Code, Family, SharedCode, SpecError,
    mds::{Minor, singular_minor},
};
use std::sync::Arc;
use weft_gf::{Matrix, SparseMatrix, field};

/// The specs of these codes.
pub(crate) const FAMILY: Family = Family {
    name: "rs",
    usage: "rs(k,m) or rs(k,m,matrix=cauchy|vandermonde|jerasure), with k and m at least 1 and k+m at most 255",
    summary: "Reed-Solomon, by default with the Cauchy matrix of ISA-L and HDFS: any k of the k+m blocks recover the data",
    advice: "The default code. It computes fast, but a repair reads k blocks: choose it unless repair traffic is the bottleneck. \
            Choose `matrix=jerasure` for data that Jerasure wrote.",
    measured: &["rs(10,4)", "rs(10,4,matrix=jerasure)", "rs(6,3)"],
    build,
};

/// GF(2^8) has 255 non-zero elements.
const BLOCKS_MAX: usize = 255;

/// A Reed–Solomon code.
#[derive(Debug)]
pub(crate) struct ReedSolomon {
    k: usize,
    m: usize,
    matrix: ParityMatrix,
    generator: SparseMatrix,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ParityMatrix {
    Cauchy,
    Vandermonde,
    Jerasure,
}

impl ReedSolomon {
    fn new(k: usize, m: usize, matrix: ParityMatrix) -> Self {
        let generator = SparseMatrix::from(&Matrix::identity(k).stack(&matrix.rows(k, m)));
        Self { k, m, matrix, generator }
    }
}

impl Code for ReedSolomon {
    fn spec(&self) -> String {
        spec(self.k, self.m, self.matrix)
    }

    fn k(&self) -> usize {
        self.k
    }

    fn m(&self) -> usize {
        self.m
    }

    fn alpha(&self) -> usize {
        1
    }

    fn generator(&self) -> &SparseMatrix {
        &self.generator
    }

    fn tolerance(&self) -> usize {
        self.m
    }
}

impl ParityMatrix {
    /// The parity rows of a code with k data blocks: m × k.
    fn rows(self, k: usize, m: usize) -> Matrix {
        // k + row is never col, and k is never 0, so the inverses exist.
        let inv = |x: usize| field::inv(x as u8).unwrap_or(0);
        Matrix::from_fn(m, k, |row, col| match self {
            Self::Cauchy => inv((k + row) ^ col),
            Self::Vandermonde => field::exp(row * col),
            Self::Jerasure if row == 0 => 1,
            Self::Jerasure => {
                let infinite = field::mul((k ^ col) as u8, inv(k));
                let finite = || field::mul((k + row) as u8, inv((k + row) ^ col));
                if row == m - 1 { infinite } else { field::mul(infinite, finite()) }
            }
        })
    }
}

fn spec(k: usize, m: usize, matrix: ParityMatrix) -> String {
    match matrix {
        ParityMatrix::Cauchy => format!("rs({k},{m})"),
        ParityMatrix::Vandermonde => format!("rs({k},{m},matrix=vandermonde)"),
        ParityMatrix::Jerasure => format!("rs({k},{m},matrix=jerasure)"),
    }
}

fn build(arguments: &Arguments<'_>) -> Result<SharedCode, SpecError> {
    let [k, m] = arguments.numbers(FAMILY.usage, &["matrix"])?;
    let wrong = |problem: String| Err(arguments.wrong(FAMILY.usage, problem));
    let matrix = match arguments.value("matrix") {
        None | Some("cauchy") => ParityMatrix::Cauchy,
        Some("vandermonde") => ParityMatrix::Vandermonde,
        Some("jerasure") => ParityMatrix::Jerasure,
        Some(other) => return wrong(format!("the matrix '{other}' is unknown")),
    };
    if k < 1 {
        return wrong("there are no data blocks: k must be at least 1".to_owned());
    }
    if m < 1 {
        return wrong("there are no parity blocks: m must be at least 1".to_owned());
    }
    if k.saturating_add(m) > BLOCKS_MAX {
        return wrong(format!("k+m is {}: it must be at most {BLOCKS_MAX}", k.saturating_add(m)));
    }
    if matrix == ParityMatrix::Vandermonde
        && let Some(minor) = vandermonde_witness(k, m)
    {
        let remedy = format!(
            "use {}, or a Vandermonde matrix with m at most 3, or with m = 4 and k at most 21",
            spec(k, m, ParityMatrix::Cauchy)
        );
        return Err(SpecError::NotMds { code: spec(k, m, matrix), m, lost: minor.lost(k, m), remedy });
    }
    Ok(Arc::new(ReedSolomon::new(k, m, matrix)))
}

/// A singular square submatrix of the m × k Vandermonde matrix `2^(r·j)`, if there is one.
///
/// There is none for m ≤ 3. Size 1: powers of 2 are not zero. Size 2: the determinant is zero only if 255 divides
/// Δr·Δj, where Δr is 1 or 2, prime to 255, and Δj < 255. Size 3: rows 0, 1, 2 are a true Vandermonde matrix over the
/// distinct points 2^j. There is none for k ≤ 3 either, because the matrix is symmetric in r and j.
///
/// For m = 4 the first one appears with column 21, for m ≥ 5 with column 5, and symmetrically. So the search, which
/// starts at the corner, examines at most the C(26,4) = 14,950 submatrices of 4 × 22.
pub(crate) fn vandermonde_witness(k: usize, m: usize) -> Option<Minor> {
    if k.min(m) <= 3 { None } else { singular_minor(&ParityMatrix::Vandermonde.rows(k, m)) }
}

#[cfg(test)]
#[path = "rs_tests.rs"]
mod tests;
