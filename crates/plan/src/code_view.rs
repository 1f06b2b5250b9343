//! The view of a code that verification needs.

use crate::{Refusal, Rule};
use weft_gf::SparseMatrix;

/// A linear code as verification sees it: which sub-blocks are which combinations of the data.
#[derive(Debug, Clone, Copy)]
pub struct CodeView<'a> {
    /// The canonical spec.
    pub spec: &'a str,
    /// Data blocks.
    pub k: usize,
    /// All blocks.
    pub n: usize,
    /// Sub-blocks of a cell.
    pub alpha: usize,
    /// Row `index·α + s` gives sub-block `s` of block `index` as a combination of the k·α data sub-blocks.
    pub generator: &'a SparseMatrix,
    /// The number of lost blocks that can always be recovered.
    pub tolerance: usize,
}

impl CodeView<'_> {
    /// The generator's row of a sub-block.
    pub(crate) fn row(&self, index: u8, sub_block: u16) -> &[(u32, u32, u8)] {
        self.generator.row(usize::from(index) * self.alpha + usize::from(sub_block))
    }

    /// The blocks that are not zero by definition, as some blocks of a shortened code are.
    pub(crate) fn stored(&self) -> impl Iterator<Item = u8> {
        let is_zero = |index: &u8| (0..self.alpha).all(|s| self.generator.row(usize::from(*index) * self.alpha + s).is_empty());
        (0..=u8::MAX).take(self.n).filter(move |index| !is_zero(index))
    }

    /// The columns of the generator: k·α.
    pub(crate) fn columns(&self) -> usize {
        self.k * self.alpha
    }

    pub(crate) fn check(&self) -> Result<(), Refusal> {
        let sizes = self.k >= 1 && self.k <= self.n && self.n <= weft_types::BLOCKS_MAX && (1..=1 << 16).contains(&self.alpha);
        let shape = sizes && (self.generator.rows(), self.generator.cols()) == (self.n * self.alpha, self.columns());
        if shape && self.generator.is_valid() {
            return Ok(());
        }
        let (rows, cols) = (self.generator.rows(), self.generator.cols());
        let Self { spec, k, n, alpha, .. } = self;
        Err(Refusal::new(Rule::Binding, format!("{spec}: a generator of {rows}×{cols} does not fit k {k}, n {n}, α {alpha}")))
    }
}
