//! The job of overwriting sub-blocks as a whole.

use std::collections::BTreeSet;
use weft_codes::Code;
use weft_plan::{Change, Hold, Input, Job, Want, WantKind};
use weft_types::{BlockId, Layout, Party, Span};

/// A job that changes these sub-blocks (data block, sub-block) at all positions. Each data block is put in by its holder,
/// and all blocks that depend on it are patched where they do. `holder` names the holder of each block, and the block.
pub fn overwrite(code: &dyn Code, layout: Layout, changed: &[(u8, u16)], holder: impl Fn(u8) -> (Party, BlockId)) -> Job {
    let holders: Vec<(Party, BlockId)> = (0..code.n() as u8).map(holder).collect();
    overwrite_at(code, layout, changed, &holders)
}

/// The same for these blocks at their holders: copies are patched, too, and blocks that are not among them are not. Each
/// data block is put in by its first holder.
pub fn overwrite_at(code: &dyn Code, layout: Layout, changed: &[(u8, u16)], holders: &[(Party, BlockId)]) -> Job {
    let (alpha, span) = (code.alpha(), Span::new(0, layout.positions()));
    let changed: BTreeSet<(u8, u16)> = changed.iter().copied().collect();
    let changes = |column: u32| changed.contains(&((column as usize / alpha) as u8, (column as usize % alpha) as u16));
    let want = |(party, block): &(Party, BlockId)| {
        let index = block.index;
        let row = |sub_block: &u16| code.generator().row(usize::from(index) * alpha + usize::from(*sub_block));
        let depends = |sub_block: &u16| row(sub_block).iter().any(|(_, column, _)| changes(*column));
        let sub_blocks = (0..alpha as u16).filter(depends).collect();
        Want { kind: WantKind::Patch, party: *party, index, sub_blocks, span }
    };
    let input = |index: u8| {
        let holder = holders.iter().find(|(_, block)| block.index == index);
        holder.map(|(party, _)| Input { party: *party, index })
    };
    let data: BTreeSet<u8> = changed.iter().map(|(index, _)| *index).collect();
    Job {
        holds: holders.iter().map(|(party, block)| Hold { party: *party, block: *block, span }).collect(),
        inputs: data.into_iter().filter_map(input).collect(),
        changed: changed.iter().map(|(index, sub_block)| Change { index: *index, sub_block: *sub_block, span }).collect(),
        wants: holders.iter().map(want).filter(|want| !want.sub_blocks.is_empty()).collect(),
    }
}
