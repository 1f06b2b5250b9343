//! Fewer products for matrices with mirror symmetry, such as the parity rows of a Cauchy matrix 1/(i + j).
//!
//! i + j is an XOR. So for an even row i and an even column j, the four coefficients of rows i, i+1 and columns j, j+1
//! form a *pair* `[a b; b a]`, and
//!
//! ```text
//! [a b; b a] · (x, y)  =  a·(x + y)  +  (a + b)·(y, x)
//! ```
//!
//! needs three products instead of four. Pairs A, B of two pairs of rows and two pairs of columns are again mirrored in
//! a *quad* `[A B; B A]`, to which the same identity applies: 3·3 products instead of 16. Products of the same row by
//! `a` or by `a + b` are summed first and added once. Products limit the kernel as long as the data is in the caches:
//! rs(10,4) needs 24 for its 40 coefficients, rs(12,4) 27 for 48.

use super::pass::Nibbles;
use crate::Matrix;

/// The decomposition of a pass: its sources are first those of the quads, then those of the pairs, then single ones.
#[derive(Clone, Copy)]
pub(super) struct Mirror<'a> {
    /// Four sources each; only with four rows.
    pub(super) quads: usize,
    /// Two sources each.
    pub(super) pairs: usize,
    /// The constants, as in [`AFFINE`](super::pass::AFFINE), in the order of the loops.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
    pub(super) affine: &'a [u64],
    /// The same, as in [`NIBBLES`](super::pass::NIBBLES).
    #[cfg_attr(not(target_arch = "aarch64"), allow(dead_code))]
    pub(super) nibbles: &'a [Nibbles],
}

/// An order of rows and columns that shows the mirror symmetry of a matrix.
#[derive(Debug, Clone)]
pub(super) struct Arrangement {
    /// Two rows that mirror each other, followed by a single one or by two more that do.
    pub(super) rows: Vec<usize>,
    pub(super) sources: Vec<usize>,
    pub(super) quads: usize,
    pub(super) pairs: usize,
    /// The coefficients to multiply by, in the order of the loops.
    pub(super) constants: Vec<u8>,
}

/// Below this percentage of the coefficients, the saved products outweigh the extra additions.
const WORTH_PERCENT: usize = 90;

impl Arrangement {
    /// The arrangement with the fewest products; `None` if it is not worth its additions.
    pub(super) fn of(matrix: &Matrix) -> Option<Self> {
        let orders: &[&[usize]] = match matrix.rows() {
            2 => &[&[0, 1]],
            3 => &[&[0, 1, 2], &[0, 2, 1], &[1, 2, 0]],
            4 => &[&[0, 1, 2, 3], &[0, 1, 3, 2], &[0, 2, 1, 3], &[0, 2, 3, 1], &[0, 3, 1, 2], &[0, 3, 2, 1]],
            _ => return None,
        };
        let found = orders.iter().map(|rows| Self::with_rows(matrix, rows));
        let best = found.min_by_key(|arrangement| arrangement.products())?;
        (best.products() * 100 <= matrix.rows() * matrix.cols() * WORTH_PERCENT).then_some(best)
    }

    /// The number of products for one vector of each source.
    pub(super) fn products(&self) -> usize {
        let rows = self.rows.len();
        let singles = self.sources.len() - 4 * self.quads - 2 * self.pairs;
        self.quads * 9 + self.pairs * pair_products(rows) + singles * rows
    }

    fn with_rows(matrix: &Matrix, rows: &[usize]) -> Self {
        let matrix = matrix.select_rows(rows);
        let columns: Vec<Vec<u8>> =
            (0..matrix.cols()).map(|col| (0..matrix.rows()).map(|row| matrix.get(row, col)).collect()).collect();
        // The third of three rows is single.
        let mirrored = rows.len() / 2 * 2;
        let mut left: Vec<usize> = (0..columns.len()).collect();
        let mut found_pairs = Vec::new();
        // The partner of a column is the column with the rows of each pair swapped.
        let mut singles = Vec::new();
        while let Some(x) = take_first(&mut left) {
            match take(&mut left, |y| columns[*y][..mirrored] == swapped(&columns[x][..mirrored])) {
                Some(y) => found_pairs.push([x, y]),
                None => singles.push(x),
            }
        }
        let (mut quads, mut pairs) = (Vec::new(), Vec::new());
        while let Some([x, y]) = take_first(&mut found_pairs) {
            let crossed = crossed(&columns[x]);
            match take(&mut found_pairs, |pair| rows.len() == 4 && pair.iter().any(|u| columns[*u] == crossed)) {
                Some([u, v]) if columns[u] == crossed => quads.push([x, y, u, v]),
                Some([u, v]) => quads.push([x, y, v, u]),
                None => pairs.push([x, y]),
            }
        }
        let mut constants = Vec::new();
        for [x, y, _, _] in &quads {
            let (a, b, c, d) = (columns[*x][0], columns[*y][0], columns[*x][2], columns[*y][2]);
            constants.extend([a, a ^ b, a ^ c, a ^ b ^ c ^ d]);
        }
        for [x, y] in &pairs {
            let (x, y) = (&columns[*x], &columns[*y]);
            constants.extend([x[0], x[0] ^ y[0]]);
            match rows.len() {
                3 => constants.extend([x[2], y[2]]),
                4 => constants.extend([x[2], x[2] ^ y[2]]),
                _ => {}
            }
        }
        singles.iter().for_each(|x| constants.extend(&columns[*x]));
        let (quads_len, pairs_len) = (quads.len(), pairs.len());
        let sources = quads.into_iter().flatten().chain(pairs.into_iter().flatten()).chain(singles).collect();
        Self { rows: rows.to_vec(), sources, quads: quads_len, pairs: pairs_len, constants }
    }
}

impl Mirror<'_> {
    /// The number of constants of a pass over this many sources; `None` if it has too few sources.
    pub(super) fn constants(&self, sources: usize, rows: usize) -> Option<usize> {
        let singles = sources.checked_sub(4 * self.quads + 2 * self.pairs)?;
        Some(4 * self.quads + pair_constants(rows) * self.pairs + singles * rows)
    }
}

/// The number of products for a pair of columns.
fn pair_products(rows: usize) -> usize {
    match rows {
        2 => 3,
        3 => 5,
        _ => 6,
    }
}

/// The number of constants for a pair of columns.
pub(super) const fn pair_constants(rows: usize) -> usize {
    if rows == 2 { 2 } else { 4 }
}

/// The column with the two rows of each pair swapped.
fn swapped(column: &[u8]) -> Vec<u8> {
    let mut swapped = column.to_vec();
    swapped.chunks_exact_mut(2).for_each(|pair| pair.swap(0, 1));
    swapped
}

/// The column of four rows with its halves swapped.
fn crossed(column: &[u8]) -> Vec<u8> {
    let mut crossed = column.to_vec();
    crossed.rotate_left(column.len() / 2);
    crossed
}

fn take_first<T>(left: &mut Vec<T>) -> Option<T> {
    if left.is_empty() { None } else { Some(left.remove(0)) }
}

fn take<T>(left: &mut Vec<T>, wanted: impl Fn(&T) -> bool) -> Option<T> {
    let place = left.iter().position(wanted)?;
    Some(left.remove(place))
}
