//! What a code is, and what it is asked.

use std::{fmt, sync::Arc};
use weft_gf::SparseMatrix;

/// A linear code over GF(2^8): k data and m parity blocks of α sub-blocks.
///
/// Row `index·α + s` of the generator says what sub-block `s` of block `index` is of the k·α sub-blocks of the data.
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

    /// Ways to get what is wanted from what is there, the best first; at least one.
    /// The default is the generic recipe: solve for the wanted rows over the available blocks in their order of preference.
    fn recipes(&self, ask: &Ask) -> Result<Vec<Recipe>, NotRecoverable>;
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
    pub combine: SparseMatrix,
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
    /// The blocks that were wanted.
    pub lost: Vec<u8>,
    /// The blocks that were there.
    pub available: Vec<u8>,
}

/// A code, shared.
pub type SharedCode = Arc<dyn Code>;
