//! Sparse matrices over GF(2^8): the form in which codes, recipes and plans carry their coefficients.

use crate::{Combination, Matrix, factored::SparseRow, field};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// A sparse matrix: its non-zero elements as (row, column, coefficient), sorted and unique by place. Clones share them.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SparseMatrix {
    pub(crate) rows: u32,
    pub(crate) cols: u32,
    pub(crate) terms: Arc<Vec<(u32, u32, u8)>>,
}

impl SparseMatrix {
    /// A matrix from terms in any order; terms at one place are added up, and zeros are dropped. `None` if a term is
    /// out of range.
    pub fn new(rows: usize, cols: usize, terms: impl IntoIterator<Item = (usize, usize, u8)>) -> Option<Self> {
        let (rows, cols) = (u32::try_from(rows).ok()?, u32::try_from(cols).ok()?);
        let mut sorted = Vec::new();
        for (r, c, coefficient) in terms {
            let term = (u32::try_from(r).ok()?, u32::try_from(c).ok()?, coefficient);
            if term.0 >= rows || term.1 >= cols {
                return None;
            }
            sorted.push(term);
        }
        sorted.sort_unstable_by_key(|(r, c, _)| (*r, *c));
        let mut terms: Vec<(u32, u32, u8)> = Vec::with_capacity(sorted.len());
        for (r, c, coefficient) in sorted {
            match terms.last_mut() {
                Some(last) if (last.0, last.1) == (r, c) => last.2 ^= coefficient,
                _ => terms.push((r, c, coefficient)),
            }
        }
        terms.retain(|term| term.2 != 0);
        Some(Self { rows, cols, terms: Arc::new(terms) })
    }

    /// The identity of `size`.
    pub fn identity(size: usize) -> Self {
        let size = size as u32;
        Self { rows: size, cols: size, terms: Arc::new((0..size).map(|at| (at, at, 1)).collect()) }
    }

    /// All zeros.
    pub fn zero(rows: usize, cols: usize) -> Self {
        Self { rows: rows as u32, cols: cols as u32, terms: Arc::default() }
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows as usize
    }

    /// Number of columns.
    pub fn cols(&self) -> usize {
        self.cols as usize
    }

    /// The non-zero elements, sorted by (row, column).
    pub fn terms(&self) -> &[(u32, u32, u8)] {
        &self.terms
    }

    /// The non-zero elements of one row.
    pub fn row(&self, row: usize) -> &[(u32, u32, u8)] {
        let start = self.terms.partition_point(|term| (term.0 as usize) < row);
        let end = self.terms.partition_point(|term| (term.0 as usize) <= row);
        &self.terms[start..end]
    }

    /// Whether a matrix from outside is well-formed: sorted, in range, without zeros or duplicate places.
    pub fn is_valid(&self) -> bool {
        self.terms.windows(2).all(|pair| (pair[0].0, pair[0].1) < (pair[1].0, pair[1].1))
            && self.terms.iter().all(|(r, c, coefficient)| *r < self.rows && *c < self.cols && *coefficient != 0)
    }

    /// The dense form.
    pub fn to_dense(&self) -> Matrix {
        let mut dense = Matrix::zero(self.rows(), self.cols());
        for (r, c, coefficient) in self.terms.iter() {
            dense.set(*r as usize, *c as usize, *coefficient);
        }
        dense
    }

    /// The product `self × right`, dense.
    pub fn times(&self, right: &Matrix) -> Matrix {
        assert_eq!(self.cols(), right.rows(), "a product needs as many columns left as rows right");
        let mut product = Matrix::zero(self.rows(), right.cols());
        let sources: Vec<&[u8]> = (0..right.rows()).map(|row| right.row(row)).collect();
        Combination::for_once(self).apply(&sources, &mut product.rows_mut());
        product
    }

    /// The product `self × right`, sparse.
    ///
    /// # Panics
    /// Unless `right` has as many rows as this has columns.
    pub fn times_sparse(&self, right: &Self) -> Self {
        assert_eq!(self.cols(), right.rows(), "a product needs as many columns left as rows right");
        let mut row = SparseRow::new(right.cols());
        let mut terms = Vec::new();
        for r in 0..self.rows() {
            for (_, through, factor) in self.row(r) {
                right.row(*through as usize).iter().for_each(|(_, col, c)| row.add(*col, field::mul(*c, *factor)));
            }
            terms.extend(row.take().into_iter().map(|(col, c)| (r as u32, col, c)));
        }
        Self { rows: self.rows, cols: right.cols, terms: Arc::new(terms) }
    }

    /// `self` over `below`.
    ///
    /// # Panics
    /// If the numbers of columns differ.
    pub fn stack(&self, below: &Self) -> Self {
        assert_eq!(self.cols, below.cols, "stacked matrices need the same number of columns");
        let moved = below.terms.iter().map(|(r, c, v)| (r + self.rows, *c, *v));
        let terms = Arc::new(self.terms.iter().copied().chain(moved).collect());
        Self { rows: self.rows + below.rows, cols: self.cols, terms }
    }

    /// `self` beside `right`.
    ///
    /// # Panics
    /// If the numbers of rows differ.
    pub fn beside(&self, right: &Self) -> Self {
        assert_eq!(self.rows, right.rows, "matrices side by side need the same number of rows");
        let mut terms = Vec::with_capacity(self.terms.len() + right.terms.len());
        for row in 0..self.rows() {
            terms.extend_from_slice(self.row(row));
            terms.extend(right.row(row).iter().map(|(r, c, v)| (*r, c + self.cols, *v)));
        }
        Self { rows: self.rows, cols: self.cols + right.cols, terms: Arc::new(terms) }
    }

    /// The given columns, in that order; each may be given once.
    pub fn select_cols(&self, cols: &[usize]) -> Self {
        let mut place = vec![u32::MAX; self.cols()];
        cols.iter().enumerate().for_each(|(new, old)| place[*old] = new as u32);
        let kept = self.terms.iter().map(|(r, c, v)| (*r, place[*c as usize], *v)).filter(|term| term.1 != u32::MAX);
        let mut terms: Vec<_> = kept.collect();
        terms.sort_unstable_by_key(|(r, c, _)| (*r, *c));
        Self { rows: self.rows, cols: cols.len() as u32, terms: Arc::new(terms) }
    }

    /// The given rows, in that order.
    pub fn select_rows(&self, rows: &[usize]) -> Self {
        let terms =
            rows.iter().enumerate().flat_map(|(r, old)| self.row(*old).iter().map(move |term| (r as u32, term.1, term.2)));
        Self { rows: rows.len() as u32, cols: self.cols, terms: Arc::new(terms.collect()) }
    }
}

impl From<&Matrix> for SparseMatrix {
    fn from(dense: &Matrix) -> Self {
        let places = (0..dense.rows()).flat_map(|r| (0..dense.cols()).map(move |c| (r, c)));
        let terms = places.map(|(r, c)| (r as u32, c as u32, dense.get(r, c))).filter(|term| term.2 != 0).collect();
        Self { rows: dense.rows() as u32, cols: dense.cols() as u32, terms: Arc::new(terms) }
    }
}
