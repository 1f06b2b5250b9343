//! Page checksums of checksum units that arrive in part.

use std::{collections::BTreeMap, ops::Range};
use weft_proto::crc32c_joined;
use weft_types::{CHECKSUM_UNIT_LEN, PAGE_LEN, Span};

/// The page checksums of some of a block's units. The page checksums of a unit must combine to its recorded checksum, so they are
/// correct unless they were forged.
#[derive(Debug, Default)]
pub(crate) struct Pages {
    block_len: u64,
    by_unit: BTreeMap<u64, Vec<u32>>,
}

impl Pages {
    /// For a block of `block_len` bytes with unit checksums `recorded`. `told` holds units with the page checksums that a node sent. Calls
    /// `wrong` with each unit whose page checksums do not fit its recorded checksum.
    pub(crate) fn new<'a>(
        block_len: u64,
        recorded: &[u32],
        told: impl Iterator<Item = (u32, &'a [u32])>,
        mut wrong: impl FnMut(u64),
    ) -> Self {
        let mut pages = Self { block_len, by_unit: BTreeMap::new() };
        for (unit, checksums) in told {
            let number = u64::from(unit);
            let span = pages.bytes_of(number);
            let is_whole = checksums.len() as u64 == span.len().div_ceil(PAGE_LEN);
            match recorded.get(unit as usize) {
                Some(recorded) if is_whole && pages.joined(span, checksums) == *recorded => {
                    pages.by_unit.insert(number, checksums.to_vec());
                }
                _ => wrong(number),
            }
        }
        pages
    }

    /// The checksum of a part of one unit. None: unknown, or the part does not consist of whole pages.
    pub(crate) fn checksum(&self, part: Span) -> Option<u32> {
        let unit = part.start / CHECKSUM_UNIT_LEN;
        let whole = self.bytes_of(unit);
        let is_edge = |at: u64| at.is_multiple_of(PAGE_LEN) || at == self.block_len;
        if part.is_empty() || !whole.contains(part) || !is_edge(part.start) || !is_edge(part.end) {
            return None;
        }
        let page = |at: u64| usize::try_from((at - whole.start).div_ceil(PAGE_LEN)).ok();
        let range: Range<usize> = page(part.start)?..page(part.end)?;
        Some(self.joined(part, self.by_unit.get(&unit)?.get(range)?))
    }

    /// The checksum of a part of the block with these page checksums.
    fn joined(&self, part: Span, checksums: &[u32]) -> u32 {
        let starts = (part.start..part.end).step_by(PAGE_LEN as usize);
        starts.zip(checksums).fold(0, |joined, (start, page)| crc32c_joined(joined, *page, PAGE_LEN.min(part.end - start)))
    }

    fn bytes_of(&self, unit: u64) -> Span {
        let start = unit.saturating_mul(CHECKSUM_UNIT_LEN).min(self.block_len);
        Span::new(start, start.saturating_add(CHECKSUM_UNIT_LEN).min(self.block_len))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_proto::crc32c;

    /// Two units and a half, and the last page is short.
    const LEN: usize = (5 << 19) + 12_300;

    fn block() -> (Vec<u8>, Vec<u32>, Vec<Vec<u32>>) {
        let bytes: Vec<u8> = (0..LEN as u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        let units = bytes.chunks(CHECKSUM_UNIT_LEN as usize);
        let recorded = units.clone().map(crc32c).collect();
        let pages = units.map(|unit| unit.chunks(PAGE_LEN as usize).map(crc32c).collect()).collect();
        (bytes, recorded, pages)
    }

    #[test]
    fn a_part_of_whole_pages_has_the_combined_checksum_of_its_pages() {
        let (bytes, recorded, pages) = block();
        let told = (0..).zip(pages.iter().map(Vec::as_slice));
        let pages = Pages::new(LEN as u64, &recorded, told, |unit| panic!("unit {unit} is right"));
        let end = LEN as u64;
        for (start, end) in
            [(0, 4096), (4096, 1 << 20), (1 << 20, (1 << 20) + 8192), (2 << 20, end), (end - 12, end), (0, 1 << 20)]
        {
            let part = &bytes[start as usize..end as usize];
            assert_eq!(pages.checksum(Span::new(start, end)), Some(crc32c(part)), "{start}..{end}");
        }
        for (start, end) in
            [(0, 4095), (1, 4096), (0, 0), (4096, (1 << 20) + 4096), (2 << 20, end + 1), (end, end + 4096), (end, end)]
        {
            assert_eq!(pages.checksum(Span::new(start, end)), None, "{start}..{end}");
        }
    }

    #[test]
    fn page_checksums_that_do_not_combine_to_the_recorded_one_are_ignored() {
        let (_, recorded, right) = block();
        let mut forged = right[0].clone();
        forged[3] ^= 1;
        let lists: [(u32, &[u32]); 8] = [
            (0, &forged),
            (0, &[]),
            (0, &right[0][..255]),
            (0, &[&right[0][..], &[0]].concat()),
            (1, &right[0]),
            (2, &right[2][..1]),
            (3, &[]),
            (u32::MAX, &right[0]),
        ];
        for (unit, checksums) in lists {
            let mut wrong = Vec::new();
            let pages = Pages::new(LEN as u64, &recorded, [(unit, checksums)].into_iter(), |unit| wrong.push(unit));
            assert_eq!((wrong, pages.by_unit.len()), (vec![u64::from(unit)], 0));
            assert_eq!(pages.checksum(Span::new(0, 4096)), None);
        }
        let pages = Pages::new(LEN as u64, &[], [(0, &right[0][..])].into_iter(), |_| ());
        assert_eq!(pages.checksum(Span::new(0, 4096)), None, "nothing is recorded");
    }
}
