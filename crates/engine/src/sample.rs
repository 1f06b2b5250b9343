//! A sample of the stages' work, for measuring its speed.

use weft_gf::{Combination, SparseMatrix};

/// Sources that are combined into one row.
const SOURCES: usize = 4;
/// Bytes of a slice. All slices together fit into a processor's cache.
const SLICE_BYTES: usize = 16 << 10;

/// Combines the same bytes repeatedly.
#[derive(Debug)]
pub struct CodingSample {
    combination: Combination,
    sources: Vec<Vec<u8>>,
    out: Vec<u8>,
}

impl Default for CodingSample {
    fn default() -> Self {
        let matrix = SparseMatrix::new(1, SOURCES, (0..SOURCES).map(|col| (0, col, 2 + col as u8)));
        let matrix = matrix.unwrap_or_else(|| SparseMatrix::zero(1, SOURCES));
        let sources = (0..SOURCES).map(|source| vec![source as u8 + 1; SLICE_BYTES]).collect();
        Self { combination: Combination::new(&matrix), sources, out: vec![0; SLICE_BYTES] }
    }
}

impl CodingSample {
    /// Combines them once. Returns the input bytes, each of which was multiplied by a coefficient and added.
    pub fn run(&mut self) -> u64 {
        let sources: Vec<&[u8]> = self.sources.iter().map(Vec::as_slice).collect();
        self.combination.apply(&sources, &mut [&mut self.out]);
        (SOURCES * SLICE_BYTES) as u64
    }
}
