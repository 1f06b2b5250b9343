//! The interface of a code, and of its recipes.

use crate::solve;
use std::{fmt, sync::Arc};
use weft_gf::{Factored, SparseMatrix};

/// A linear code over GF(2^8): k data and m parity blocks of α sub-blocks.
///
/// Row `index·α + s` of the generator gives sub-block `s` of block `index` as a combination of the k·α data sub-blocks.
/// Codes are systematic: the first k·α rows are the identity, so a healthy read needs no arithmetic. (The rows of data
/// blocks beyond [`dimension`](Self::dimension) are zero.)
pub trait Code: fmt::Debug + Send + Sync {
    /// The canonical spec, which [`crate::parse`] reads back: `rs(10,4)`.
    fn spec(&self) -> String;
    /// Data blocks.
    fn k(&self) -> usize;
    /// Parity blocks.
    fn m(&self) -> usize;
    /// Sub-blocks of a cell.
    fn alpha(&self) -> usize;
    /// The generator matrix, nα × kα.
    fn generator(&self) -> &SparseMatrix;
    /// The number of lost blocks that can always be recovered.
    fn tolerance(&self) -> usize;

    /// The number of blocks: k + m.
    fn n(&self) -> usize {
        self.k() + self.m()
    }

    /// The number of data blocks that may have bytes, which are the first ones: k, or fewer for a
    /// [`shortened`](crate::shortened()) code. No recipe needs more whole blocks.
    fn dimension(&self) -> usize {
        self.k()
    }

    /// The indexes of the blocks that may have bytes, ascending.
    fn stored(&self) -> Vec<u8> {
        (0..self.dimension()).chain(self.k()..self.n()).filter_map(|index| u8::try_from(index).ok()).collect()
    }

    /// Computes the parity sub-blocks from those of the data: mα × kα. The default is the generator's own rows; a code
    /// overrides it if temporaries make it cheaper.
    fn encode(&self) -> Factored {
        let (first, last) = (self.k() * self.alpha(), self.n() * self.alpha());
        self.generator().select_rows(&(first..last).collect::<Vec<_>>()).into()
    }

    /// At least one recipe for `ask`, the one that moves least first. A wanted block that is available is read. A code
    /// may offer several recipes if one reads less and another sends less or needs fewer helpers. The default is the
    /// generic recipe ([`solve::recipe`]), which every linear code has; a code overrides it to read less.
    fn recipes(&self, ask: &Ask) -> Result<Vec<Recipe>, NotRecoverable> {
        Ok(vec![solve::recipe(self, ask)?])
    }
}

/// A sub-block of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SubBlock {
    /// The block's index in the stripe.
    pub index: u8,
    /// Which of its α sub-blocks.
    pub sub_block: u16,
}

/// A question for recipes.
#[derive(Debug, Clone, Default)]
pub struct Ask {
    /// The wanted sub-blocks of one or more blocks, in the order of the result.
    pub wanted: Vec<SubBlock>,
    /// The readable blocks, the preferred first.
    pub available: Vec<u8>,
    /// Blocks that are read anyway and so cost nothing more (a subset of `available`).
    pub read_anyway: Vec<u8>,
}

/// How to compute wanted sub-blocks: every helper h sends `S_h × (its reads)`, and `R × (everything sent)` is the
/// result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recipe {
    /// The helpers, in order.
    pub helpers: Vec<HelperShare>,
    /// R: one row for each wanted sub-block, one column for each sub-block that is sent, helper by helper.
    pub combine: Factored,
}

/// If a recipe's shares would have more coefficients than this in total, it has no shares and can be run only as a
/// star.
const SHARES_TERMS_MAX: usize = 4 << 20;

impl Recipe {
    /// The number of sub-blocks that the helpers read.
    pub fn sub_blocks_read(&self) -> usize {
        self.helpers.iter().map(|helper| helper.reads.len()).sum()
    }

    /// The number of sub-blocks that the helpers send.
    pub fn sub_blocks_sent(&self) -> usize {
        self.helpers.iter().map(|helper| helper.compute.rows()).sum()
    }

    /// The contribution of each helper to the result, in the order of `helpers`: its columns of R, times S_h. One row
    /// for each wanted sub-block, one column for each sub-block that the helper reads. The sum of `share_h × read_h`
    /// over all helpers is the result, which a chain or a tree of partial sums computes. `None` if R without its
    /// temporaries would be too large.
    pub fn shares(&self) -> Option<Vec<SparseMatrix>> {
        shares(&self.combine, self.helpers.iter().map(|helper| &helper.compute))
    }
}

/// The shares of several helpers of a sum, in their order, if each sends `compute × (its reads)` and `combine ×
/// (everything sent)` is the sum. See [`Recipe::shares`].
pub fn shares<'a>(combine: &Factored, computes: impl Iterator<Item = &'a SparseMatrix>) -> Option<Vec<SparseMatrix>> {
    let combine = combine.flatten(SHARES_TERMS_MAX)?;
    let mut first = 0;
    let share = |compute: &SparseMatrix| {
        let cols: Vec<usize> = (first..first + compute.rows()).collect();
        first += cols.len();
        combine.select_cols(&cols).times_sparse(compute)
    };
    Some(computes.map(share).collect())
}

/// What one helper reads and sends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HelperShare {
    /// The helper's block.
    pub index: u8,
    /// The sub-blocks that it reads, ascending.
    pub reads: Vec<u16>,
    /// S_h: one row for each sub-block sent, one column for each that is read.
    pub compute: SparseMatrix,
}

/// These blocks cannot be recovered from the available ones.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{code}: blocks {lost:?} cannot be recovered from blocks {available:?}")]
pub struct NotRecoverable {
    /// The code's spec.
    pub code: String,
    /// The wanted blocks that are not available, ascending.
    pub lost: Vec<u8>,
    /// The available blocks, ascending.
    pub available: Vec<u8>,
}

/// A code, shared.
pub type SharedCode = Arc<dyn Code>;
