//! The page checksums of the checksum units that a task reads only in part.
//!
//! The metadata records one checksum for each unit (1 MiB). A partly read unit is checked in two steps: the checksums
//! of its pages, combined, must equal the recorded checksum, and the bytes read must match the checksums of their
//! pages.

use crate::block_source::OpenBlock;
use std::collections::{BTreeMap, BTreeSet};
use weft_plan::{Source, Task};
use weft_proto::v1::UnitPages;
use weft_types::{CHECKSUM_UNIT_LEN, Layout, PAGES_PER_UNIT, Span, UNITS_OF_TASK_MAX};

/// The page checksums of all partly read units of the blocks that the task reads.
pub(crate) fn pages_in_part(task: &Task, blocks: &BTreeMap<u8, OpenBlock>) -> Vec<UnitPages> {
    let mut read: BTreeMap<u8, Vec<Span>> = BTreeMap::new();
    for lane in &task.lanes {
        let bytes = bytes_at(&task.layout, lane.slice_set(task.slice_len).hull());
        for source in lane.stages.iter().flat_map(|stage| &stage.sources) {
            if let Source::Block { index, .. } = source {
                read.entry(*index).or_default().push(bytes);
            }
        }
    }
    let of_block = |(index, spans): (u8, Vec<Span>)| {
        let reader = blocks.get(&index).map(|block| &block.reader);
        let len = reader.map_or(0, |reader| reader.meta().len());
        let units = units_in_part(spans, len);
        units.into_iter().filter_map(move |unit| {
            let number = usize::try_from(unit).ok()?;
            let checksums = reader?.pages().chunks(PAGES_PER_UNIT).nth(number)?.to_vec();
            Some(UnitPages { index: index.into(), unit: u32::try_from(unit).ok()?, checksums })
        })
    };
    read.into_iter().flat_map(of_block).take(UNITS_OF_TASK_MAX).collect()
}

/// The bytes of a block at these positions. With several sub-blocks: all bytes of every cell that contains one of the
/// positions.
fn bytes_at(layout: &Layout, positions: Span) -> Span {
    if layout.alpha == 1 {
        return positions;
    }
    let (sub, cell) = (layout.sub_len(), layout.cell_len);
    Span::new(positions.start / sub * cell, positions.end.div_ceil(sub).saturating_mul(cell))
}

/// The units of a block of `len` bytes that the spans cover in part but not in whole.
fn units_in_part(spans: Vec<Span>, len: u64) -> BTreeSet<u64> {
    let edges = Span::normalize(spans).into_iter().flat_map(|span| [span.start, span.end]);
    let within = edges.filter(|edge| *edge < len && !edge.is_multiple_of(CHECKSUM_UNIT_LEN));
    within.map(|edge| edge / CHECKSUM_UNIT_LEN).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_partly_read_units_are_reported() {
        const NONE: [u64; 0] = [];
        let len = 3 * CHECKSUM_UNIT_LEN + 5000;
        let mib = CHECKSUM_UNIT_LEN;
        let units = |spans: &[(u64, u64)]| -> Vec<u64> {
            let spans = spans.iter().map(|(start, end)| Span::new(*start, *end)).collect();
            units_in_part(spans, len).into_iter().collect()
        };
        assert_eq!(units(&[(0, len)]), NONE);
        assert_eq!(units(&[(mib, 2 * mib), (3 * mib, len + 3192)]), NONE);
        assert_eq!(units(&[(4096, mib)]), [0]);
        assert_eq!(units(&[(0, mib + 4096)]), [1]);
        assert_eq!(units(&[(8192, 2 * mib + 4096), (3 * mib + 4096, len)]), [0, 2, 3]);
        assert_eq!(units(&[(0, 4096), (4096, mib), (mib, mib)]), NONE);
    }

    #[test]
    fn with_sub_blocks_pages_of_whole_cells_are_reported() {
        let layout = Layout::new(1 << 20, 1 << 14, 4).unwrap();
        assert_eq!(bytes_at(&layout, Span::new(1 << 12, 1 << 13)), Span::new(1 << 14, 1 << 15));
        assert_eq!(bytes_at(&layout, Span::new(1, 2)), Span::new(0, 1 << 14));
    }
}
