//! Linear maps with temporaries, for maps that would be too dense or too slow as one matrix.

use crate::{Matrix, SparseMatrix};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// A linear map of `cols` sources to `rows` results, as sparse rows, some of which are temporaries.
///
/// A temporary is a combination of sources and earlier temporaries; a result is a combination of sources and
/// temporaries. A product of sparse factors `A·B·C` has the rows of C and B as temporaries and those of A as results; a
/// plain sparse matrix has no temporaries. Codes with many sub-blocks need this form: the factors that couple their
/// layers are sparse, but their product is not.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "Terms", into = "Terms")]
pub struct Factored {
    cols: usize,
    /// The temporaries' rows, then the results'. Columns: the sources, then the temporaries.
    steps: SparseMatrix,
}

/// The serialised form: a [`SparseMatrix`] with the same rows and columns, and the number of temporaries. Row t is
/// temporary t, and the results follow; column `cols + t` is temporary t.
#[derive(Serialize, Deserialize)]
struct Terms {
    rows: u32,
    cols: u32,
    terms: Arc<Vec<(u32, u32, u8)>>,
    #[serde(default)]
    temporaries: u32,
}

impl Factored {
    /// A map from `steps`: the temporaries' rows, then the results'. Its columns are the sources and then the
    /// temporaries. `None` if a temporary depends on itself or a later one, or if there are fewer columns than
    /// temporaries.
    pub fn new(temporaries: usize, steps: SparseMatrix) -> Option<Self> {
        let cols = steps.cols().checked_sub(temporaries)?;
        let backwards = |term: &(u32, u32, u8)| term.0 as usize >= temporaries || (term.1 as usize) < cols + term.0 as usize;
        let valid = steps.rows() >= temporaries && steps.is_valid() && steps.terms().iter().all(backwards);
        valid.then_some(Self { cols, steps })
    }

    /// Number of results.
    pub fn rows(&self) -> usize {
        self.steps.rows().saturating_sub(self.temporaries())
    }

    /// Number of sources.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Number of temporaries.
    pub fn temporaries(&self) -> usize {
        self.steps.cols().saturating_sub(self.cols)
    }

    /// The temporaries' rows, then the results'. Columns: the sources, then the temporaries.
    pub fn steps(&self) -> &SparseMatrix {
        &self.steps
    }

    /// The matrix itself, if there are no temporaries.
    pub fn as_matrix(&self) -> Option<&SparseMatrix> {
        (self.temporaries() == 0).then_some(&self.steps)
    }

    /// The equivalent single matrix, which can be much denser. `None` if it, or a temporary on the way, would have more
    /// than `terms_max` elements.
    pub fn flatten(&self, terms_max: usize) -> Option<SparseMatrix> {
        if let Some(matrix) = self.as_matrix() {
            return (matrix.terms().len() <= terms_max).then(|| matrix.clone());
        }
        let (cols, temporaries) = (self.cols, self.temporaries());
        let mut row = SparseRow::new(cols);
        let mut known: Vec<Vec<(u32, u8)>> = Vec::with_capacity(temporaries);
        let (mut kept, mut terms) = (0, Vec::new());
        for step in 0..self.steps.rows() {
            for (_, col, coefficient) in self.steps.row(step) {
                match (*col as usize).checked_sub(cols) {
                    None => row.add(*col, *coefficient),
                    Some(temporary) => {
                        known[temporary].iter().for_each(|(col, c)| row.add(*col, crate::field::mul(*c, *coefficient)))
                    }
                }
            }
            let taken = row.take();
            kept += taken.len();
            if kept > terms_max {
                return None;
            }
            match step.checked_sub(temporaries) {
                None => known.push(taken),
                Some(result) => terms.extend(taken.into_iter().map(|(col, c)| (result, col as usize, c))),
            }
        }
        SparseMatrix::new(self.rows(), cols, terms)
    }

    /// The same map without unused temporaries.
    #[must_use]
    pub fn pruned(self) -> Self {
        let (cols, temporaries) = (self.cols, self.temporaries());
        let mut needed = vec![false; temporaries];
        for (row, col, _) in self.steps.terms().iter().rev() {
            let (row, col) = (*row as usize, *col as usize);
            if col >= cols && (row >= temporaries || needed[row]) {
                needed[col - cols] = true;
            }
        }
        let rows: Vec<usize> = (0..self.steps.rows()).filter(|row| *row >= temporaries || needed[*row]).collect();
        let columns: Vec<usize> = (0..cols).chain((0..temporaries).filter(|at| needed[*at]).map(|at| cols + at)).collect();
        Self { cols, steps: self.steps.select_rows(&rows).select_cols(&columns) }
    }

    /// The map over these sources only, ascending; it must not use others.
    #[must_use]
    pub fn select_cols(&self, cols: &[usize]) -> Self {
        let columns: Vec<usize> = cols.iter().copied().chain(self.cols..self.steps.cols()).collect();
        Self { cols: cols.len(), steps: self.steps.select_cols(&columns) }
    }

    /// The sources that are used, ascending.
    pub fn sources_used(&self) -> Vec<usize> {
        let mut used = vec![false; self.steps.cols()];
        self.steps.terms().iter().for_each(|(_, col, _)| used[*col as usize] = true);
        (0..self.cols).filter(|col| used[*col]).collect()
    }

    /// The sources followed by the results, all as results.
    #[must_use]
    pub fn after_sources(&self) -> Self {
        let (temporaries, cols) = (self.temporaries(), self.cols as u32);
        let first = temporaries as u32;
        let split = self.steps.terms().partition_point(|term| term.0 < first);
        let (of_temporaries, of_results) = self.steps.terms().split_at(split);
        let sources = (0..cols).map(|col| (first + col, col, 1));
        let moved = of_results.iter().map(|(row, col, c)| (row + cols, *col, *c));
        let terms = Arc::new(of_temporaries.iter().copied().chain(sources).chain(moved).collect());
        Self { cols: self.cols, steps: SparseMatrix { rows: self.steps.rows + cols, cols: self.steps.cols, terms } }
    }

    /// Some of the results, in this order, and what they need.
    #[must_use]
    pub fn select_rows(&self, rows: &[usize]) -> Self {
        let temporaries = self.temporaries();
        let kept: Vec<usize> = (0..temporaries).chain(rows.iter().map(|row| temporaries + row)).collect();
        Self { cols: self.cols, steps: self.steps.select_rows(&kept) }.pruned()
    }

    /// `self × right`, for sources that are combinations of other sources.
    ///
    /// # Panics
    /// If `right` does not have one row for each source.
    #[must_use]
    pub fn of(&self, right: &SparseMatrix) -> Self {
        assert_eq!(self.cols, right.rows(), "a product needs as many columns left as rows right");
        let kept = SparseMatrix::identity(self.temporaries());
        let (above, below) = (SparseMatrix::zero(right.rows(), kept.cols()), SparseMatrix::zero(kept.rows(), right.cols()));
        let sources = right.beside(&above).stack(&below.beside(&kept));
        Self { cols: right.cols(), steps: self.steps.times_sparse(&sources) }
    }

    /// The non-zero elements of a result: over the sources, and then the temporaries.
    pub fn row(&self, row: usize) -> &[(u32, u32, u8)] {
        self.steps.row(self.temporaries() + row)
    }

    /// `left × self`, for combinations of these results.
    ///
    /// # Panics
    /// If `left` does not have one column for each result.
    #[must_use]
    pub fn then(&self, left: &SparseMatrix) -> Self {
        assert_eq!(left.cols(), self.rows(), "a product needs as many columns left as rows right");
        let temporaries = self.temporaries();
        let mut row = SparseRow::new(self.steps.cols());
        let first = self.steps.terms().partition_point(|term| (term.0 as usize) < temporaries);
        let mut terms = self.steps.terms()[..first].to_vec();
        for result in 0..left.rows() {
            for (_, through, factor) in left.row(result) {
                for (_, col, coefficient) in self.steps.row(temporaries + *through as usize) {
                    row.add(*col, crate::field::mul(*coefficient, *factor));
                }
            }
            terms.extend(row.take().into_iter().map(|(col, c)| ((temporaries + result) as u32, col, c)));
        }
        let rows = (temporaries + left.rows()) as u32;
        Self { cols: self.cols, steps: SparseMatrix { rows, cols: self.steps.cols, terms: Arc::new(terms) } }
    }
}

impl From<&Matrix> for Factored {
    fn from(matrix: &Matrix) -> Self {
        SparseMatrix::from(matrix).into()
    }
}

impl From<SparseMatrix> for Factored {
    fn from(matrix: SparseMatrix) -> Self {
        Self { cols: matrix.cols(), steps: matrix }
    }
}

impl TryFrom<Terms> for Factored {
    type Error = &'static str;

    fn try_from(Terms { rows, cols, terms, temporaries }: Terms) -> Result<Self, Self::Error> {
        let steps = SparseMatrix { rows, cols, terms };
        Self::new(temporaries as usize, steps)
            .ok_or("the matrix has terms that are unsorted, out of range, or depend on later rows")
    }
}

impl From<Factored> for Terms {
    fn from(factored: Factored) -> Self {
        let temporaries = factored.temporaries() as u32;
        let SparseMatrix { rows, cols, terms } = factored.steps;
        Self { rows, cols, terms, temporaries }
    }
}

/// Builds a [`Factored`] step by step.
#[derive(Debug, Clone)]
pub struct FactoredBuilder {
    cols: usize,
    temporaries: Vec<Vec<(usize, u8)>>,
}

impl FactoredBuilder {
    /// For this many sources, in columns 0..`cols`.
    pub fn new(cols: usize) -> Self {
        Self { cols, temporaries: Vec::new() }
    }

    /// Adds a temporary that is the sum of `terms`, each a column (of a source or an earlier temporary) and its
    /// coefficient; terms of one column add up. Returns the temporary's column.
    pub fn temporary(&mut self, terms: Vec<(usize, u8)>) -> usize {
        self.temporaries.push(terms);
        self.cols + self.temporaries.len() - 1
    }

    /// The map with these results, each the sum of its terms. Unused temporaries are dropped. `None` if a term's column
    /// does not exist (yet).
    pub fn finish(self, results: &[Vec<(usize, u8)>]) -> Option<Factored> {
        let rows = self.temporaries.iter().map(Vec::as_slice).chain(results.iter().map(Vec::as_slice));
        let terms = rows.enumerate().flat_map(|(row, terms)| terms.iter().map(move |(col, c)| (row, *col, *c)));
        let temporaries = self.temporaries.len();
        let steps = SparseMatrix::new(temporaries + results.len(), self.cols + temporaries, terms)?;
        Some(Factored::new(temporaries, steps)?.pruned())
    }
}

/// A row that is being added up: dense, with a list of the touched places.
pub(crate) struct SparseRow {
    dense: Vec<u8>,
    touched: Vec<u32>,
    is_touched: Vec<bool>,
}

impl SparseRow {
    pub(crate) fn new(cols: usize) -> Self {
        Self { dense: vec![0; cols], touched: Vec::new(), is_touched: vec![false; cols] }
    }

    pub(crate) fn add(&mut self, col: u32, coefficient: u8) {
        let at = col as usize;
        self.dense[at] ^= coefficient;
        if !self.is_touched[at] {
            self.is_touched[at] = true;
            self.touched.push(col);
        }
    }

    /// The row's terms, ascending; resets the row to zero.
    pub(crate) fn take(&mut self) -> Vec<(u32, u8)> {
        self.touched.sort_unstable();
        let mut terms = Vec::with_capacity(self.touched.len());
        for col in self.touched.drain(..) {
            let at = col as usize;
            self.is_touched[at] = false;
            let coefficient = std::mem::take(&mut self.dense[at]);
            if coefficient != 0 {
                terms.push((col, coefficient));
            }
        }
        terms
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Combination, Kernel, field};
    use proptest::prelude::*;

    /// Sources, temporaries and results with random sparse terms.
    fn factored() -> impl Strategy<Value = Factored> {
        let sizes = (1usize..12, 0usize..20, 1usize..12);
        sizes.prop_flat_map(|(cols, temporaries, rows)| {
            let step = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6);
            prop::collection::vec(step, temporaries + rows).prop_map(move |steps| {
                let width = |row: usize| cols + row.min(temporaries);
                let terms = steps.iter().enumerate().flat_map(|(row, terms)| {
                    terms.iter().map(move |(col, c)| (row, col.index(width(row)), *c)).collect::<Vec<_>>()
                });
                Factored::new(temporaries, SparseMatrix::new(temporaries + rows, cols + temporaries, terms).unwrap()).unwrap()
            })
        })
    }

    /// The map by definition, one multiplication at a time.
    fn oracle(factored: &Factored) -> Matrix {
        let (cols, temporaries) = (factored.cols(), factored.temporaries());
        let mut all = Matrix::identity(cols).stack(&Matrix::zero(temporaries, cols));
        let mut results = Matrix::zero(factored.rows(), cols);
        for (row, through, c) in factored.steps().terms() {
            for col in 0..cols {
                let product = field::mul(*c, all.get(*through as usize, col));
                match (*row as usize).checked_sub(temporaries) {
                    None => all.set(cols + *row as usize, col, all.get(cols + *row as usize, col) ^ product),
                    Some(result) => results.set(result, col, results.get(result, col) ^ product),
                }
            }
        }
        results
    }

    proptest! {
        #[test]
        fn every_kernel_gives_the_result_of_the_flat_matrix(factored in factored(), len in 0usize..10_000, seed: u8) {
            let right = oracle(&factored);
            prop_assert_eq!(factored.flatten(usize::MAX).unwrap().to_dense(), right.clone());
            let sources: Vec<Vec<u8>> =
                (0..factored.cols()).map(|s| (0..len).map(|x| (x * 31 + s * 7 + usize::from(seed)) as u8).collect()).collect();
            let sources: Vec<&[u8]> = sources.iter().map(Vec::as_slice).collect();
            let flat = Combination::with_kernel(Kernel::Naive, &SparseMatrix::from(&right));
            let (mut expected, mut added) = (vec![vec![0x5a; len]; factored.rows()], vec![vec![0x17; len]; factored.rows()]);
            flat.apply(&sources, &mut expected.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>());
            flat.accumulate(&sources, &mut added.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>());
            for kernel in Kernel::available() {
                let ready = Combination::factored_with_kernel(kernel, &factored);
                let (mut out, mut sum) = (vec![vec![0xa5; len]; factored.rows()], vec![vec![0x17; len]; factored.rows()]);
                ready.apply(&sources, &mut out.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>());
                ready.accumulate(&sources, &mut sum.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>());
                prop_assert_eq!(&out, &expected, "{:?}", kernel);
                prop_assert_eq!(&sum, &added, "{:?}", kernel);
            }
        }

        #[test]
        fn a_product_from_the_left_is_correct(factored in factored(), seed: u8) {
            let left = Matrix::from_fn(3, factored.rows(), |r, c| ((r * 5 + c * 11 + usize::from(seed)) % 7) as u8);
            let product = factored.then(&SparseMatrix::from(&left));
            prop_assert_eq!(oracle(&product), left.times(&oracle(&factored)));
        }

        #[test]
        fn a_product_from_the_right_and_parts_are_correct(factored in factored(), seed: u8) {
            let right = Matrix::from_fn(factored.cols(), 4, |r, c| ((r * 3 + c * 13 + usize::from(seed)) % 9) as u8);
            prop_assert_eq!(oracle(&factored.of(&SparseMatrix::from(&right))), oracle(&factored).times(&right));
            let rows: Vec<usize> = (0..factored.rows()).rev().step_by(2).collect();
            prop_assert_eq!(oracle(&factored.select_rows(&rows)), oracle(&factored).select_rows(&rows));
            prop_assert_eq!(oracle(&factored.clone().pruned()), oracle(&factored));
            let with_sources = factored.after_sources();
            prop_assert_eq!(oracle(&with_sources), Matrix::identity(factored.cols()).stack(&oracle(&factored)));
            let used = factored.sources_used();
            prop_assert_eq!(oracle(&factored.select_cols(&used)), oracle(&factored).select_cols(&used));
            prop_assert_eq!(Factored::new(with_sources.temporaries(), with_sources.steps().clone()), Some(with_sources));
        }

        #[test]
        fn a_factored_matrix_is_written_and_read_back(factored in factored()) {
            let json = serde_json::to_string(&factored).unwrap();
            prop_assert_eq!(serde_json::from_str::<Factored>(&json).unwrap(), factored);
        }
    }

    #[test]
    fn a_plain_matrix_is_read_as_one_without_temporaries() {
        let matrix = SparseMatrix::new(2, 3, [(0, 0, 1), (1, 2, 9)]).unwrap();
        let json = serde_json::to_string(&matrix).unwrap();
        assert_eq!(serde_json::from_str::<Factored>(&json).unwrap(), Factored::from(matrix));
    }

    #[test]
    fn a_temporary_that_depends_on_itself_or_a_later_one_is_refused() {
        let steps = |terms: &[(usize, usize, u8)]| SparseMatrix::new(3, 4, terms.iter().copied()).unwrap();
        assert!(Factored::new(2, steps(&[(0, 0, 1), (1, 2, 1), (2, 3, 1)])).is_some());
        assert!(Factored::new(2, steps(&[(0, 2, 1)])).is_none());
        assert!(Factored::new(2, steps(&[(0, 3, 1)])).is_none());
        assert!(Factored::new(5, steps(&[])).is_none());
        let outside = [
            r#"{"rows":1,"cols":1,"terms":[],"temporaries":2}"#,
            r#"{"rows":1,"cols":2,"terms":[[0,5,1]],"temporaries":1}"#,
            r#"{"rows":2,"cols":2,"terms":[[0,1,1]],"temporaries":1}"#,
            r#"{"rows":2,"cols":2,"terms":[[1,1,1],[0,0,1]]}"#,
        ];
        for outside in outside {
            assert!(serde_json::from_str::<Factored>(outside).is_err(), "{outside}");
        }
    }

    #[test]
    fn a_builder_omits_unused_temporaries() {
        let mut builder = FactoredBuilder::new(2);
        let unused = builder.temporary(vec![(0, 3)]);
        let sum = builder.temporary(vec![(0, 1), (1, 1)]);
        let twice = builder.temporary(vec![(sum, 2), (1, 1), (1, 1)]);
        assert_eq!((unused, sum, twice), (2, 3, 4));
        let factored = builder.clone().finish(&[vec![(twice, 1)], vec![(sum, 1), (0, 1)]]).unwrap();
        assert_eq!((factored.temporaries(), factored.rows(), factored.cols()), (2, 2, 2));
        assert_eq!(oracle(&factored), Matrix::from_fn(2, 2, |r, c| if r == 0 { 2 } else { c as u8 }));
        assert!(builder.clone().finish(&[vec![(5, 1)]]).is_none(), "the temporary does not exist");
        builder.temporary(vec![(5, 1)]);
        assert!(builder.finish(&[vec![(5, 1)]]).is_none(), "the temporary would depend on itself");
    }
}
