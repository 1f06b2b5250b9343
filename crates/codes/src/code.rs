//! What a code is, and what it is asked.

use crate::solve;
use std::{fmt, sync::Arc};
use weft_gf::{Factored, SparseMatrix};

/// A linear code over GF(2^8): k data and m parity blocks of α sub-blocks.
///
/// Row `index·α + s` of the generator says what sub-block `s` of block `index` is of the k·α sub-blocks of the data.
/// Codes are systematic: the first k·α rows are the identity, so that a healthy read needs no arithmetic. (Those of data blocks
/// beyond [`dimension`](Self::dimension) are zero.)
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
    /// Any this many lost blocks can be recovered.
    fn tolerance(&self) -> usize;

    /// Blocks: k + m.
    fn n(&self) -> usize {
        self.k() + self.m()
    }

    /// Data blocks that may have bytes, the first ones: k, but of a [`shortened`](crate::shortened()) code fewer. No more whole blocks than
    /// these are needed for anything.
    fn dimension(&self) -> usize {
        self.k()
    }

    /// The indexes of the blocks that may have bytes, ascending.
    fn stored(&self) -> Vec<u8> {
        (0..self.dimension()).chain(self.k()..self.n()).filter_map(|index| u8::try_from(index).ok()).collect()
    }

    /// The parity sub-blocks from those of the data: mα × kα. The default are the generator's own rows; a code overrides it where
    /// temporaries make it cheaper.
    fn encode(&self) -> Factored {
        let (first, last) = (self.k() * self.alpha(), self.n() * self.alpha());
        self.generator().select_rows(&(first..last).collect::<Vec<_>>()).into()
    }

    /// Ways to get what is wanted from what is there, the best first: that which moves the least; at least one. A wanted block
    /// that is there is read. A code may offer several, where one reads less and another sends less or asks fewer helpers.
    /// The default is the generic recipe ([`solve::recipe`]), which every linear code has; a code overrides it to read less.
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

/// What a recipe is asked for.
#[derive(Debug, Clone, Default)]
pub struct Ask {
    /// The sub-blocks that must come out, in this order, of one or more blocks.
    pub wanted: Vec<SubBlock>,
    /// The blocks that can be read, the preferred first.
    pub available: Vec<u8>,
    /// Blocks that are read anyway, and so cost nothing more (a subset of `available`).
    pub read_anyway: Vec<u8>,
}

/// How to compute wanted sub-blocks: every helper h sends `S_h × (what it reads)`, and `R × (all that was sent)` is what was wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recipe {
    /// The helpers, in order.
    pub helpers: Vec<HelperShare>,
    /// R: one row for each wanted sub-block, one column for each sub-block that is sent, in the order of the helpers.
    pub combine: Factored,
}

/// A recipe whose shares would have more coefficients than this, all together, has none: it can be run as a star only.
const SHARES_TERMS_MAX: usize = 4 << 20;

impl Recipe {
    /// Sub-blocks that the helpers read, all together.
    pub fn sub_blocks_read(&self) -> usize {
        self.helpers.iter().map(|helper| helper.reads.len()).sum()
    }

    /// Sub-blocks that the helpers send, all together.
    pub fn sub_blocks_sent(&self) -> usize {
        self.helpers.iter().map(|helper| helper.compute.rows()).sum()
    }

    /// What each helper contributes to what is wanted, in the order of `helpers`: its columns of R, times S_h.
    /// One row for each wanted sub-block, one column for each that the helper reads. The sum of `share_h × read_h` over all
    /// helpers is what was wanted: this is what a chain or a tree of partial sums adds up. `None` where R without its
    /// temporaries would be too large.
    pub fn shares(&self) -> Option<Vec<SparseMatrix>> {
        shares(&self.combine, self.helpers.iter().map(|helper| &helper.compute))
    }
}

/// What each of several helpers adds to a sum, in their order, if each sends `compute × (what it reads)` and `combine × (all that
/// was sent)` is the sum. See [`Recipe::shares`].
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

/// These blocks cannot be had from what is left.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{code}: blocks {lost:?} cannot be recovered from blocks {available:?}")]
pub struct NotRecoverable {
    /// The code's spec.
    pub code: String,
    /// The blocks that were wanted and not there, ascending.
    pub lost: Vec<u8>,
    /// The blocks that were there, ascending.
    pub available: Vec<u8>,
}

/// A code, shared.
pub type SharedCode = Arc<dyn Code>;
