//! Dense matrices over GF(2^8): products, ranks, inverses, and the solution of X·L = E.

use crate::{
    field::{inv, mul},
    kernel::add_scaled,
};
use std::fmt;

/// A dense matrix, row by row.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Matrix {
    rows: usize,
    cols: usize,
    data: Vec<u8>,
}

impl Matrix {
    /// `rows × cols` zeros.
    pub fn zero(rows: usize, cols: usize) -> Self {
        Self { rows, cols, data: vec![0; rows * cols] }
    }

    /// The identity of `size`.
    pub fn identity(size: usize) -> Self {
        Self::from_fn(size, size, |r, c| u8::from(r == c))
    }

    /// A matrix with `element(row, column)` at each place.
    pub fn from_fn(rows: usize, cols: usize, mut element: impl FnMut(usize, usize) -> u8) -> Self {
        let mut matrix = Self::zero(rows, cols);
        for r in 0..rows {
            for c in 0..cols {
                matrix.data[r * cols + c] = element(r, c);
            }
        }
        matrix
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The element at (row, column).
    pub fn get(&self, row: usize, col: usize) -> u8 {
        self.data[row * self.cols + col]
    }

    /// Sets the element at (row, column).
    pub fn set(&mut self, row: usize, col: usize, value: u8) {
        self.data[row * self.cols + col] = value;
    }

    /// One row.
    pub fn row(&self, row: usize) -> &[u8] {
        &self.data[row * self.cols..(row + 1) * self.cols]
    }

    /// One row, mutable.
    pub fn row_mut(&mut self, row: usize) -> &mut [u8] {
        &mut self.data[row * self.cols..(row + 1) * self.cols]
    }

    /// All rows, mutable.
    pub(crate) fn rows_mut(&mut self) -> Vec<&mut [u8]> {
        if self.cols == 0 {
            return (0..self.rows).map(|_| &mut [][..]).collect();
        }
        self.data.chunks_exact_mut(self.cols).collect()
    }

    /// The given rows, in that order.
    pub fn select_rows(&self, rows: &[usize]) -> Self {
        Self::from_fn(rows.len(), self.cols, |r, c| self.get(rows[r], c))
    }

    /// The given columns, in that order.
    pub fn select_cols(&self, cols: &[usize]) -> Self {
        Self::from_fn(self.rows, cols.len(), |r, c| self.get(r, cols[c]))
    }

    /// `self` over `below`. Both need the same number of columns.
    pub fn stack(&self, below: &Self) -> Self {
        assert_eq!(self.cols, below.cols, "stacked matrices need the same number of columns");
        let mut data = self.data.clone();
        data.extend_from_slice(&below.data);
        Self { rows: self.rows + below.rows, cols: self.cols, data }
    }

    /// `self` beside `right`. Both need the same number of rows.
    pub fn beside(&self, right: &Self) -> Self {
        assert_eq!(self.rows, right.rows, "matrices side by side need the same number of rows");
        Self::from_fn(
            self.rows,
            self.cols + right.cols,
            |r, c| {
                if c < self.cols { self.get(r, c) } else { right.get(r, c - self.cols) }
            },
        )
    }

    /// The transpose.
    pub fn transpose(&self) -> Self {
        Self::from_fn(self.cols, self.rows, |r, c| self.get(c, r))
    }

    /// The product `self × right`.
    pub fn times(&self, right: &Self) -> Self {
        assert_eq!(self.cols, right.rows, "a product needs as many columns left as rows right");
        let mut product = Self::zero(self.rows, right.cols);
        for r in 0..self.rows {
            for i in 0..self.cols {
                add_scaled(&mut product.data[r * right.cols..(r + 1) * right.cols], right.row(i), self.get(r, i));
            }
        }
        product
    }

    /// Whether every element is zero.
    pub fn is_zero(&self) -> bool {
        self.data.iter().all(|element| *element == 0)
    }

    /// The number of independent rows.
    pub fn rank(&self) -> usize {
        self.clone().reduce(self.cols).len()
    }

    /// The inverse, or `None` if it is singular (or not square).
    pub fn inverse(&self) -> Option<Self> {
        if self.rows != self.cols {
            return None;
        }
        let mut work = self.beside(&Self::identity(self.rows));
        if work.reduce(self.cols).len() < self.rows {
            return None;
        }
        let right: Vec<usize> = (self.cols..2 * self.cols).collect();
        Some(work.select_cols(&right))
    }

    /// One X with `X × self = wanted`, or `None` if the rows of `self` do not span those of `wanted`.
    /// Rows of `self` that are not needed get zero columns; earlier rows are preferred.
    pub fn solve_left(&self, wanted: &Self) -> Option<Self> {
        assert_eq!(self.cols, wanted.cols, "both sides need the same number of columns");
        let mut work = self.transpose().beside(&wanted.transpose());
        let pivots = work.reduce(self.rows);
        for r in pivots.len()..work.rows {
            if work.row(r)[self.rows..].iter().any(|element| *element != 0) {
                return None;
            }
        }
        let mut solution = Self::zero(wanted.rows, self.rows);
        for (r, pivot) in pivots.iter().enumerate() {
            for w in 0..wanted.rows {
                solution.set(w, *pivot, work.get(r, self.rows + w));
            }
        }
        Some(solution)
    }

    /// A basis of the rows X with `X × self = 0`: one for each row of `self` that depends on earlier ones, with a 1 in its column, and the
    /// coefficients of those earlier ones.
    pub fn left_null(&self) -> Self {
        let mut work = self.transpose();
        let independent = work.reduce(self.rows);
        let dependent: Vec<usize> = (0..self.rows).filter(|row| independent.binary_search(row).is_err()).collect();
        let mut null = Self::zero(dependent.len(), self.rows);
        for (at, row) in dependent.into_iter().enumerate() {
            null.set(at, row, 1);
            for (r, pivot) in independent.iter().enumerate() {
                null.set(at, *pivot, work.get(r, row));
            }
        }
        null
    }

    /// Reduced row echelon form over the first `cols` columns, in place; the pivot columns.
    fn reduce(&mut self, cols: usize) -> Vec<usize> {
        let mut pivots = Vec::new();
        for c in 0..cols {
            let r = pivots.len();
            let Some(found) = (r..self.rows).find(|row| self.get(*row, c) != 0) else { continue };
            self.swap_rows(r, found);
            let scale = inv(self.get(r, c)).unwrap_or(1);
            for element in self.row_mut(r) {
                *element = mul(*element, scale);
            }
            // The rest of the pivot's column is zero now.
            let pivot = self.row(r)[c..].to_vec();
            for row in (0..self.rows).filter(|row| *row != r) {
                let factor = self.get(row, c);
                add_scaled(&mut self.row_mut(row)[c..], &pivot, factor);
            }
            pivots.push(c);
            if pivots.len() == self.rows {
                break;
            }
        }
        pivots
    }

    fn swap_rows(&mut self, a: usize, b: usize) {
        if a != b {
            for c in 0..self.cols {
                self.data.swap(a * self.cols + c, b * self.cols + c);
            }
        }
    }
}

impl fmt::Debug for Matrix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}×{}", self.rows, self.cols)?;
        for r in 0..self.rows {
            writeln!(f, "{:02x?}", self.row(r))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cauchy(size: usize) -> Matrix {
        Matrix::from_fn(size, size, |r, c| inv((size + r) as u8 ^ c as u8).unwrap())
    }

    #[test]
    fn inverses_and_solutions() {
        let matrix = cauchy(10);
        let inverse = matrix.inverse().unwrap();
        assert_eq!(matrix.times(&inverse), Matrix::identity(10));
        let wanted = matrix.select_rows(&[3, 7]);
        assert_eq!(matrix.solve_left(&wanted).unwrap().times(&matrix), wanted);
        let singular = matrix.select_rows(&[0, 1, 0]);
        assert_eq!(singular.rank(), 2);
        assert!(singular.solve_left(&matrix.select_rows(&[5])).is_none());
        assert!(matrix.select_rows(&[0, 1, 0]).select_cols(&[0, 1, 2]).inverse().is_none());
    }

    #[test]
    fn the_left_null_space_is_all_of_it() {
        let tall = cauchy(10).select_cols(&[2, 5, 7]);
        for matrix in [tall.clone(), tall.select_rows(&[0, 1, 1, 0, 4]), Matrix::zero(4, 2), Matrix::zero(3, 0), cauchy(4)] {
            let null = matrix.left_null();
            assert_eq!((null.rows(), null.rank()), (matrix.rows() - matrix.rank(), null.rows()), "{matrix:?}");
            assert!(null.times(&matrix).is_zero(), "{matrix:?}");
        }
    }
}
