//! The job of overwriting sub-blocks as a whole.

use std::collections::BTreeSet;
use weft_codes::Code;
use weft_plan::{Change, Hold, Input, Job, Want, WantKind};
use weft_types::{BlockId, Layout, Party, Span};

/// A job that changes these sub-blocks (data block, sub-block) at all positions. Each data block is put in by its holder,
/// and all blocks that depend on it are patched where they do. `holder` names the holder of each block, and the block.
pub fn overwrite(code: &dyn Code, layout: Layout, changed: &[(u8, u16)], holder: impl Fn(u8) -> (Party, BlockId)) -> Job {
    let (alpha, n, span) = (code.alpha(), code.n() as u8, Span::new(0, layout.positions()));
    let changed: BTreeSet<(u8, u16)> = changed.iter().copied().collect();
    let changes = |column: u32| changed.contains(&((column as usize / alpha) as u8, (column as usize % alpha) as u16));
    let want = |index: u8| {
        let row = |sub_block: &u16| code.generator().row(usize::from(index) * alpha + usize::from(*sub_block));
        let depends = |sub_block: &u16| row(sub_block).iter().any(|(_, column, _)| changes(*column));
        let sub_blocks = (0..alpha as u16).filter(depends).collect();
        Want { kind: WantKind::Patch, party: holder(index).0, index, sub_blocks, span }
    };
    let hold = |index: u8| Hold { party: holder(index).0, block: holder(index).1, span };
    let data: BTreeSet<u8> = changed.iter().map(|(index, _)| *index).collect();
    Job {
        holds: (0..n).map(hold).collect(),
        inputs: data.into_iter().map(|index| Input { party: holder(index).0, index }).collect(),
        changed: changed.iter().map(|(index, sub_block)| Change { index: *index, sub_block: *sub_block, span }).collect(),
        wants: (0..n).map(want).filter(|want| !want.sub_blocks.is_empty()).collect(),
    }
}
