//! What a code costs, for a person who chooses one.

use crate::{Ask, Code, NotRecoverable, SubBlock};

/// What a code costs.
#[derive(Debug, Clone, PartialEq)]
pub struct CodeInfo {
    /// The canonical spec.
    pub spec: String,
    /// Data blocks.
    pub k: usize,
    /// Parity blocks.
    pub m: usize,
    /// Sub-blocks of a cell.
    pub alpha: usize,
    /// Bytes stored for each byte of data: n/k.
    pub overhead: f64,
    /// Any this many lost blocks can be recovered.
    pub tolerance: usize,
    /// The least number of blocks in which two stripes differ: one more than the tolerance.
    pub distance: usize,
    /// What it costs to rebuild each block when it alone is lost.
    pub blocks: Vec<BlockInfo>,
}

/// What it costs to rebuild one block when it alone is lost.
#[derive(Debug, Clone, PartialEq)]
pub struct BlockInfo {
    /// The block's index.
    pub index: u8,
    /// Who helps.
    pub helpers: Vec<u8>,
    /// What the helpers read from their disks, in blocks.
    pub blocks_read: f64,
    /// What the helpers send, in blocks.
    pub blocks_moved: f64,
}

/// Asks a code what it costs. It fails only for a code that cannot recover a single block.
pub fn info(code: &dyn Code) -> Result<CodeInfo, NotRecoverable> {
    let blocks = (0..code.n()).map(|index| block_info(code, index as u8)).collect::<Result<_, _>>()?;
    Ok(CodeInfo {
        spec: code.spec(),
        k: code.k(),
        m: code.m(),
        alpha: code.alpha(),
        overhead: code.n() as f64 / code.k() as f64,
        tolerance: code.tolerance(),
        distance: code.tolerance() + 1,
        blocks,
    })
}

fn block_info(code: &dyn Code, index: u8) -> Result<BlockInfo, NotRecoverable> {
    let wanted = (0..code.alpha()).map(|s| SubBlock { index, sub_block: s as u16 }).collect();
    let available = (0..code.n()).map(|other| other as u8).filter(|other| *other != index).collect();
    let recipes = code.recipes(&Ask { wanted, available, read_anyway: Vec::new() })?;
    let (helpers, read, sent) = recipes.first().map_or((Vec::new(), 0, 0), |recipe| {
        let helpers = recipe.helpers.iter().map(|helper| helper.index).collect();
        (helpers, recipe.sub_blocks_read(), recipe.sub_blocks_sent())
    });
    let in_blocks = |sub_blocks: usize| sub_blocks as f64 / code.alpha() as f64;
    Ok(BlockInfo { index, helpers, blocks_read: in_blocks(read), blocks_moved: in_blocks(sent) })
}

#[cfg(test)]
mod tests {
    #[test]
    fn reed_solomon_reads_k_blocks_for_one() {
        let info = super::info(crate::parse("rs(10,4)").unwrap().as_ref()).unwrap();
        assert_eq!((info.overhead, info.tolerance, info.distance, info.blocks.len()), (1.4, 4, 5, 14));
        assert!(info.blocks.iter().all(|block| (block.blocks_read, block.blocks_moved) == (10.0, 10.0)));
        assert_eq!(info.blocks[3].helpers, [0, 1, 2, 4, 5, 6, 7, 8, 9, 10]);
    }
}
