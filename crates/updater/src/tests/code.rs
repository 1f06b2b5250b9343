//! Encodes and decodes whole blocks by the code's generator: the oracle of the crash test.

use std::collections::BTreeMap;
use weft_codes::Code;
use weft_gf::{Combination, Matrix, SparseMatrix};
use weft_types::{Layout, Span};

/// The sub-blocks of a block, each as one run of bytes.
fn split(layout: Layout, block: &[u8]) -> Vec<Vec<u8>> {
    let all = Span::new(0, layout.positions());
    let sub_block = |number| {
        let extents = layout.extents(number, all);
        extents.flat_map(|extent| block[extent.offset as usize..(extent.offset + extent.len) as usize].to_vec()).collect()
    };
    (0..layout.alpha).map(sub_block).collect()
}

fn join(layout: Layout, sub_blocks: &[Vec<u8>]) -> Vec<u8> {
    let mut block = vec![0; layout.block_len as usize];
    for (number, bytes) in (0..).zip(sub_blocks) {
        let mut from = 0;
        for extent in layout.extents(number, Span::new(0, layout.positions())) {
            let (at, len) = (extent.offset as usize, extent.len as usize);
            block[at..at + len].copy_from_slice(&bytes[from..from + len]);
            from += len;
        }
    }
    block
}

fn apply(matrix: &SparseMatrix, sources: &[Vec<u8>], len: usize) -> Vec<Vec<u8>> {
    let mut out = vec![vec![0; len]; matrix.rows()];
    let sources: Vec<&[u8]> = sources.iter().map(Vec::as_slice).collect();
    let mut slices: Vec<&mut [u8]> = out.iter_mut().map(Vec::as_mut_slice).collect();
    Combination::new(matrix).apply(&sources, &mut slices);
    out
}

/// All blocks of a stripe, from its data blocks. All have the full length.
pub(super) fn encode(code: &dyn Code, layout: Layout, data: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let sources: Vec<Vec<u8>> = data.iter().flat_map(|block| split(layout, block)).collect();
    let rows = apply(code.generator(), &sources, layout.positions() as usize);
    rows.chunks(code.alpha()).map(|sub_blocks| join(layout, sub_blocks)).collect()
}

/// Whether these blocks determine the data.
pub(super) fn can_decode(code: &dyn Code, available: &[u8]) -> bool {
    coefficients(code, available).is_some()
}

/// The data blocks, from these blocks of the stripe; `None` if they are too few.
pub(super) fn decode(code: &dyn Code, layout: Layout, blocks: &BTreeMap<u8, Vec<u8>>) -> Option<Vec<Vec<u8>>> {
    let available: Vec<u8> = blocks.keys().copied().collect();
    let matrix = SparseMatrix::from(&coefficients(code, &available)?);
    let sources: Vec<Vec<u8>> = blocks.values().flat_map(|block| split(layout, block)).collect();
    let rows = apply(&matrix, &sources, layout.positions() as usize);
    Some(rows.chunks(code.alpha()).map(|sub_blocks| join(layout, sub_blocks)).collect())
}

fn coefficients(code: &dyn Code, available: &[u8]) -> Option<Matrix> {
    let alpha = code.alpha();
    let rows: Vec<usize> =
        available.iter().flat_map(|index| (0..alpha).map(move |sub| usize::from(*index) * alpha + sub)).collect();
    code.generator().to_dense().select_rows(&rows).solve_left(&Matrix::identity(code.k() * alpha))
}
