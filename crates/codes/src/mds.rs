//! Checks whether a systematic code is MDS.
//!
//! A systematic code with the parity rows P is MDS (any k of its n blocks suffice) if and only if every square submatrix of P is
//! regular (MacWilliams and Sloane, *The Theory of Error-Correcting Codes*, chapter 11, theorem 8). A singular one with rows R
//! and columns C is a witness: lose the data blocks C and all parity blocks but R, which are no more than m, and the |C| unknowns
//! are left with |C| dependent equations.

use weft_gf::Matrix;

/// A square submatrix of the parity rows, by its rows and columns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Minor {
    pub(crate) rows: Vec<usize>,
    pub(crate) cols: Vec<usize>,
}

impl Minor {
    /// The m blocks whose loss cannot be recovered if this minor is singular, ascending.
    pub(crate) fn lost(&self, k: usize, m: usize) -> Vec<u8> {
        let parity = (0..m).filter(|row| !self.rows.contains(row)).map(|row| k + row);
        self.cols.iter().copied().chain(parity).map(|index| index as u8).collect()
    }
}

/// A singular square submatrix, if there is one. Searches all of them in growing corners of the matrix, so that one
/// near the corner is found at once. The caller must bound the work, by knowing that one is near or that the matrix is
/// small.
pub(crate) fn singular_minor(parity: &Matrix) -> Option<Minor> {
    let (m, k) = (parity.rows(), parity.cols());
    (1..=m.max(k)).find_map(|edge| {
        let (rows, cols) = (m.min(edge), k.min(edge));
        (1..=rows.min(cols)).find_map(|size| {
            combinations(rows, size).find_map(|rows| {
                let minors = combinations(cols, size).map(|cols| Minor { rows: rows.clone(), cols });
                // Minors that do not touch the corner's edge were checked in the previous corner.
                let touches = |minor: &Minor| [&minor.rows, &minor.cols].iter().any(|at| at.last() == Some(&(edge - 1)));
                minors.filter(touches).find(|minor| parity.select_rows(&minor.rows).select_cols(&minor.cols).rank() < size)
            })
        })
    })
}

/// All ways to choose `size` of 0..n, ascending, in lexicographic order.
pub fn combinations(n: usize, size: usize) -> impl Iterator<Item = Vec<usize>> {
    let mut next = (size <= n).then(|| (0..size).collect::<Vec<_>>());
    std::iter::from_fn(move || {
        let current = next.take()?;
        if let Some(at) = (0..size).rev().find(|at| current[*at] < n - size + at) {
            let mut following = current.clone();
            following[at] += 1;
            for after in at + 1..size {
                following[after] = following[after - 1] + 1;
            }
            next = Some(following);
        }
        Some(current)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_combinations_are_generated() {
        assert_eq!(combinations(4, 2).collect::<Vec<_>>(), [[0, 1], [0, 2], [0, 3], [1, 2], [1, 3], [2, 3]]);
        assert_eq!((combinations(10, 5).count(), combinations(3, 0).count(), combinations(2, 3).count()), (252, 1, 0));
    }

    #[test]
    fn a_singular_minor_is_found_wherever_it_is() {
        let regular = |r: usize, c: usize| weft_gf::field::inv((8 + r) as u8 ^ c as u8).unwrap_or(0);
        assert_eq!(singular_minor(&Matrix::from_fn(4, 8, regular)), None);
        for (row, col) in [(0, 0), (3, 7), (2, 5)] {
            let spoiled = Matrix::from_fn(4, 8, |r, c| if (r, c) == (row, col) { 0 } else { regular(r, c) });
            assert_eq!(singular_minor(&spoiled), Some(Minor { rows: vec![row], cols: vec![col] }));
        }
    }
}
