//! The costs of a code, for users who choose one.

use crate::{Ask, Code, NotRecoverable, SubBlock, mds::combinations};
use std::collections::BTreeSet;

/// The costs of a code.
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
    /// The number of lost blocks that can always be recovered.
    pub tolerance: usize,
    /// The least number of blocks in which two stripes differ: one more than the tolerance.
    pub distance: usize,
    /// A smallest known set of at most m blocks whose loss cannot be recovered; `None` if any m may be lost (MDS
    /// codes).
    pub fatal: Option<Vec<u8>>,
    /// The cost of rebuilding each block if only it is lost.
    pub blocks: Vec<BlockInfo>,
}

/// The cost of rebuilding one block if only it is lost.
#[derive(Debug, Clone, PartialEq)]
pub struct BlockInfo {
    /// The block's index.
    pub index: u8,
    /// The helpers.
    pub helpers: Vec<u8>,
    /// What the helpers read from their disks, in blocks.
    pub blocks_read: f64,
    /// What the helpers send, in blocks.
    pub blocks_moved: f64,
}

/// Computes the costs of a code. Fails only for a code that cannot recover a single block.
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
        fatal: fatal(code),
        blocks,
    })
}

/// The most patterns that are searched for a fatal one.
const PATTERNS_MAX: usize = 20_000;

/// A small set of at most m blocks whose loss cannot be recovered, as far as it can be found quickly.
///
/// The blocks in which two stripes differ are such a set: without them the stripes cannot be told apart. Stripes that
/// differ in one data sub-block often differ in the fewest blocks; where they do not, patterns of one block more than
/// the tolerance are tried one by one.
fn fatal(code: &dyn Code) -> Option<Vec<u8>> {
    let (n, alpha, fewest) = (code.n(), code.alpha(), code.tolerance() + 1);
    if fewest > code.m() {
        return None;
    }
    let mut touched = vec![BTreeSet::new(); code.k() * alpha];
    for (row, col, _) in code.generator().terms() {
        touched[*col as usize].insert((*row as usize / alpha) as u8);
    }
    let found = touched.into_iter().min_by_key(BTreeSet::len).filter(|touched| touched.len() <= code.m());
    let found = found.map(|touched| touched.into_iter().collect::<Vec<u8>>());
    if found.as_ref().is_some_and(|found| found.len() == fewest) {
        return found;
    }
    let is_fatal = |lost: &Vec<usize>| {
        let left: Vec<usize> = (0..n * alpha).filter(|row| !lost.contains(&(row / alpha))).collect();
        code.generator().select_rows(&left).to_dense().rank() < code.k() * alpha
    };
    let smaller = combinations(n, fewest).take(PATTERNS_MAX).find(is_fatal);
    smaller.map(|lost| lost.into_iter().map(|index| index as u8).collect()).or(found)
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
    use crate::{Ask, FAMILIES, SubBlock, parse};

    #[test]
    fn the_reported_fatal_pattern_is_fatal_and_minimal() {
        for (spec, fatal) in [
            ("rs(4,2)", None),
            ("xor(3)", None),
            ("replication(3)", None),
            ("butterfly(4)", None),
            ("lrc(4,2,2)", Some(4)),
            ("lrc(12,2,2)", Some(4)),
            ("lrc(20,4,3)", Some(5)),
            ("hsrc(7,3)", Some(4)),
            ("hsrc(250,8)", Some(123)),
        ] {
            let code = parse(spec).unwrap();
            let found = super::fatal(code.as_ref());
            assert_eq!(found.as_ref().map(Vec::len), fatal, "{spec}: {found:?}");
            let Some(lost) = found else { continue };
            assert_eq!(lost.len(), code.tolerance() + 1, "{spec}");
            let can = |lost: &[u8]| {
                let all = |index: u8| (0..code.alpha() as u16).map(move |sub_block| SubBlock { index, sub_block });
                let wanted = lost.iter().copied().flat_map(all).collect();
                let available = (0..code.n() as u8).filter(|index| !lost.contains(index)).collect();
                code.recipes(&Ask { wanted, available, read_anyway: Vec::new() }).is_ok()
            };
            assert!(!can(&lost) && can(&lost[1..]), "{spec}: {lost:?}");
        }
        assert!(FAMILIES.iter().all(|family| !family.usage.is_empty() && !family.summary.is_empty()));
    }

    #[test]
    fn reed_solomon_reads_k_blocks_for_one() {
        let info = super::info(crate::parse("rs(10,4)").unwrap().as_ref()).unwrap();
        assert_eq!((info.overhead, info.tolerance, info.distance, info.blocks.len()), (1.4, 4, 5, 14));
        assert!(info.blocks.iter().all(|block| (block.blocks_read, block.blocks_moved) == (10.0, 10.0)));
        assert_eq!(info.blocks[3].helpers, [0, 1, 2, 4, 5, 6, 7, 8, 9, 10]);
    }
}
