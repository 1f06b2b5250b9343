//! The layout of bytes: blocks, cells, sub-blocks, positions; and how an object's bytes map to the data blocks of its
//! stripes.
//!
//! ```text
//! block   | cell 0                    | cell 1                    | …
//!         | sub-block 0 | sub-block 1 | sub-block 0 | sub-block 1 | …      α = 2
//! position  0 … sub-1     0 … sub-1     sub … 2sub-1  sub … 2sub-1
//! ```
//! The bytes at position x of all sub-blocks of all blocks of a stripe are coded together.

use crate::{CHECKSUM_UNIT_LEN, Error, Result};
use serde::{Deserialize, Serialize};

/// A half-open range of positions (or of bytes, where stated).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Span {
    /// The first.
    pub start: u64,
    /// One past the last.
    pub end: u64,
}

impl Span {
    /// `start..end`.
    pub fn new(start: u64, end: u64) -> Self {
        Self { start, end }
    }

    /// The number of positions.
    pub fn len(self) -> u64 {
        self.end.saturating_sub(self.start)
    }

    /// Whether it is empty.
    pub fn is_empty(self) -> bool {
        self.end <= self.start
    }

    /// The intersection of both.
    pub fn intersect(self, other: Self) -> Self {
        Self { start: self.start.max(other.start), end: self.end.min(other.end) }
    }

    /// Whether it contains all of `other`.
    pub fn contains(self, other: Self) -> bool {
        other.is_empty() || (self.start <= other.start && other.end <= self.end)
    }

    /// Sorts and merges spans, and removes empty ones.
    pub fn normalize(mut spans: Vec<Self>) -> Vec<Self> {
        spans.retain(|span| !span.is_empty());
        spans.sort_unstable();
        let mut merged: Vec<Self> = Vec::with_capacity(spans.len());
        for span in spans {
            match merged.last_mut() {
                Some(last) if span.start <= last.end => last.end = last.end.max(span.end),
                _ => merged.push(span),
            }
        }
        merged
    }

    /// The parts of `self` that `spans` do not cover. `spans` need not be sorted.
    pub fn subtract(self, spans: &[Self]) -> Vec<Self> {
        let mut left = Vec::new();
        let mut start = self.start;
        for span in Self::normalize(spans.to_vec()) {
            if span.start > start {
                left.push(Self::new(start, span.start.min(self.end)));
            }
            start = start.max(span.end);
        }
        left.push(Self::new(start, self.end));
        left.retain(|span| !span.is_empty());
        left
    }
}

/// A run of bytes of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// The first byte's offset in the block.
    pub offset: u64,
    /// The number of bytes.
    pub len: u64,
}

/// The default cell length: long enough for efficient disk access, and short enough that the first bytes of a put leave
/// before the last have arrived.
pub const CELL_BYTES_USUAL: u64 = 1 << 20;

/// Reads of sub-blocks shorter than this are slow on a disk (Butterfly codes, §6.2: 9 KB against 800 KB).
pub const SUB_BLOCK_BYTES_GOOD: u64 = 64 << 10;

/// The cell length of a code with `alpha` sub-blocks, where a code with one sub-block would use `cell_len`: the same or
/// longer, so that sub-blocks are equal and have at least [`SUB_BLOCK_BYTES_GOOD`].
pub fn usual_cell_len(cell_len: u64, alpha: u32) -> u64 {
    if alpha <= 1 {
        return cell_len;
    }
    let unit = SUB_BLOCK_BYTES_GOOD.saturating_mul(alpha.into());
    cell_len.div_ceil(unit).max(1).saturating_mul(unit)
}

/// How the bytes of a block are coded: in cells of `alpha` sub-blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Layout {
    /// The nominal length of a block, bytes; a multiple of `cell_len`.
    pub block_len: u64,
    /// Bytes of a cell; a multiple of `alpha`.
    pub cell_len: u64,
    /// Sub-blocks of a cell, α.
    pub alpha: u32,
}

impl Layout {
    /// Checks that α divides the cell and the cell the block.
    pub fn new(block_len: u64, cell_len: u64, alpha: u32) -> Result<Self> {
        if block_len == 0 || cell_len == 0 || alpha == 0 {
            return Err(Error::invalid("block and cell size must be greater than zero"));
        }
        if block_len > 1 << 40 {
            return Err(Error::invalid(format!("a block of {block_len} bytes is too large: at most 1 TiB")));
        }
        if !block_len.is_multiple_of(cell_len) {
            return Err(Error::invalid(format!("the cell size {cell_len} does not divide the block size {block_len}")));
        }
        if !cell_len.is_multiple_of(u64::from(alpha)) {
            return Err(Error::invalid(format!("the cell size {cell_len} is not a multiple of the code's {alpha} sub-blocks")));
        }
        Ok(Self { block_len, cell_len, alpha })
    }

    /// Positions of a block: `block_len / α`.
    pub fn positions(&self) -> u64 {
        self.block_len / u64::from(self.alpha)
    }

    /// A full stripe of k data and m parity blocks.
    pub fn full_stripe(self, k: u32, m: u32) -> StripeLayout {
        StripeLayout { layout: self, k, m, data_len: self.block_len.saturating_mul(k.into()) }
    }

    /// Bytes of one sub-block of one cell.
    pub fn sub_len(&self) -> u64 {
        self.cell_len / u64::from(self.alpha)
    }

    /// The positions at which any sub-block contains one of these bytes of a block.
    pub fn positions_of(&self, bytes: Span) -> Vec<Span> {
        let (sub, cell) = (self.sub_len(), self.cell_len);
        if sub == cell {
            return vec![bytes];
        }
        let mut spans = Vec::new();
        let mut at = bytes.start;
        while at < bytes.end {
            let (number, within) = (at / cell, at % cell);
            let len = (sub - within % sub).min(bytes.end - at);
            let first = number * sub + within % sub;
            spans.push(Span::new(first, first + len));
            at += len;
        }
        Span::normalize(spans)
    }

    /// The byte ranges of one sub-block's positions `span` in the block, in order.
    pub fn extents(&self, sub_block: u32, span: Span) -> impl Iterator<Item = Extent> + use<> {
        let (sub, cell_len) = (self.sub_len(), self.cell_len);
        let mut at = span.start;
        std::iter::from_fn(move || {
            (at < span.end).then(|| {
                let (cell, within) = (at / sub, at % sub);
                // With one sub-block in a cell, adjacent cells are adjacent on disk and form one extent.
                let len = if sub == cell_len { span.end - at } else { (sub - within).min(span.end - at) };
                at += len;
                Extent { offset: cell * cell_len + u64::from(sub_block) * sub + within, len }
            })
        })
    }
}

/// One stripe of an object: its layout, its code's shape, and the number of the object's bytes in it.
///
/// The object's bytes are distributed over the data blocks cell by cell: cell c of the stripe's data is cell ⌊c/k⌋ of
/// block c mod k.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct StripeLayout {
    /// The layout of each block.
    pub layout: Layout,
    /// Data blocks.
    pub k: u32,
    /// Parity blocks.
    pub m: u32,
    /// Bytes of the object in this stripe: 1..=k·block_len.
    pub data_len: u64,
}

impl StripeLayout {
    /// Blocks: k + m.
    pub fn n(&self) -> u32 {
        self.k + self.m
    }

    /// The length of block `index` on disk; beyond it, the block reads as zeros.
    ///
    /// A data block ends with its last byte of the object. A parity block is as long as the longest data block if α =
    /// 1; otherwise it ends with the last cell that contains any byte.
    pub fn block_len(&self, index: u32) -> u64 {
        let cell = self.layout.cell_len;
        if index < self.k {
            let row = cell * u64::from(self.k);
            let (full_rows, rest) = (self.data_len / row, self.data_len % row);
            return full_rows * cell + rest.saturating_sub(u64::from(index) * cell).min(cell);
        }
        let longest = self.block_len(0);
        if self.layout.alpha == 1 { longest } else { longest.div_ceil(cell) * cell }
    }

    /// The most bytes of the object that fit into the data blocks that are not empty: all of each if there are k of them, and otherwise what is left of
    /// the last cell with a byte of the object.
    pub fn room_end(&self) -> u64 {
        let blocks = u64::from(self.data_blocks());
        let each = if self.data_blocks() < self.k { self.layout.cell_len } else { self.layout.block_len };
        blocks.saturating_mul(each)
    }

    /// The number of data blocks that are not empty; these come first.
    pub fn data_blocks(&self) -> u32 {
        let cells = self.data_len.div_ceil(self.layout.cell_len);
        u32::try_from(cells).unwrap_or(u32::MAX).min(self.k)
    }

    /// The indexes of the blocks that are not empty, ascending; all parity blocks are among them.
    pub fn blocks(&self) -> impl Iterator<Item = u8> + use<> {
        (0..self.data_blocks()).chain(self.k..self.n()).filter_map(|index| u8::try_from(index).ok())
    }

    /// The coded positions: beyond them every block of the stripe is zero.
    pub fn coded_span(&self) -> Span {
        let longest = self.block_len(0);
        let positions =
            if self.layout.alpha == 1 { longest } else { longest.div_ceil(self.layout.cell_len) * self.layout.sub_len() };
        Span::new(0, positions)
    }

    /// The place of byte `offset` of the stripe's data: (block index, offset in the block).
    pub fn locate(&self, offset: u64) -> (u32, u64) {
        let cell = self.layout.cell_len;
        let (number, within) = (offset / cell, offset % cell);
        ((number % u64::from(self.k)) as u32, number / u64::from(self.k) * cell + within)
    }

    /// The inverse of [`locate`](Self::locate), for data blocks.
    pub fn offset_of(&self, index: u32, offset_in_block: u64) -> u64 {
        let cell = self.layout.cell_len;
        let (row, within) = (offset_in_block / cell, offset_in_block % cell);
        (row * u64::from(self.k) + u64::from(index)) * cell + within
    }

    /// The smallest byte range of data block `index` that contains its part of the range `data` of the stripe's data;
    /// may be empty.
    pub fn block_range(&self, index: u32, data: Span) -> Span {
        let data = data.intersect(Span::new(0, self.data_len));
        if data.is_empty() {
            return Span::new(0, 0);
        }
        let cell = self.layout.cell_len;
        let row = cell * u64::from(self.k);
        let at = |offset: u64| {
            let (rows, rest) = (offset / row, offset % row);
            rows * cell + rest.saturating_sub(u64::from(index) * cell).min(cell)
        };
        Span::new(at(data.start), at(data.end))
    }

    /// The data blocks that hold a part of the range `data` of the stripe's data, each with its [`block_range`](Self::block_range).
    pub fn data_ranges(&self, data: Span) -> impl Iterator<Item = (u32, Span)> {
        let layout = *self;
        (0..self.k).map(move |index| (index, layout.block_range(index, data))).filter(|(_, range)| !range.is_empty())
    }

    /// The number of 1 MiB checksum units of block `index` in the metadata.
    pub fn checksum_units(&self, index: u32) -> u64 {
        self.block_len(index).div_ceil(CHECKSUM_UNIT_LEN)
    }

    /// Numbers the groups of checksum units: the units of one group of all blocks are coded together, and apart from all others.
    pub fn unit_group(&self, unit: u64) -> u64 {
        let Layout { cell_len, alpha, .. } = self.layout;
        match alpha {
            // Bytes at the same place are coded together.
            1 => unit,
            _ if CHECKSUM_UNIT_LEN.is_multiple_of(cell_len) => unit,
            _ if cell_len.is_multiple_of(CHECKSUM_UNIT_LEN) => unit / (cell_len / CHECKSUM_UNIT_LEN),
            // Cells and units overlap.
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_follow_the_formula_of_positions() {
        let layout = Layout::new(48, 12, 3).unwrap();
        for sub_block in 0..3u32 {
            let mut bytes = Vec::new();
            for extent in layout.extents(sub_block, Span::new(1, 15)) {
                bytes.extend(extent.offset..extent.offset + extent.len);
            }
            let expected: Vec<u64> = (1..15).map(|x: u64| x / 4 * 12 + u64::from(sub_block) * 4 + x % 4).collect();
            assert_eq!(bytes, expected);
        }
        let plain = Layout::new(48, 12, 1).unwrap();
        assert_eq!(plain.extents(0, Span::new(5, 40)).collect::<Vec<_>>(), [Extent { offset: 5, len: 35 }]);
    }

    #[test]
    fn lengths_and_ranges_agree_with_a_walk_over_every_byte() {
        for data_len in 1..=96u64 {
            let stripe = StripeLayout { layout: Layout::new(32, 8, 1).unwrap(), k: 3, m: 2, data_len };
            let mut lens = [0u64; 3];
            for offset in 0..data_len {
                let (index, at) = stripe.locate(offset);
                assert_eq!(stripe.offset_of(index, at), offset);
                lens[index as usize] = lens[index as usize].max(at + 1);
            }
            for index in 0..3 {
                assert_eq!(stripe.block_len(index), lens[index as usize], "{data_len} {index}");
            }
            assert_eq!(stripe.block_len(3), lens[0]);
            for start in 0..data_len {
                for end in start + 1..=data_len {
                    for index in 0..3 {
                        let touched: Vec<u64> =
                            (start..end).map(|o| stripe.locate(o)).filter(|(i, _)| *i == index).map(|(_, at)| at).collect();
                        let range = stripe.block_range(index, Span::new(start, end));
                        assert_eq!(range.len(), touched.len() as u64);
                        assert!(touched.iter().all(|at| range.start <= *at && *at < range.end));
                    }
                }
            }
        }
    }

    #[test]
    fn units_of_a_group_have_their_positions_for_themselves() {
        const MIB: u64 = 1 << 20;
        let whole = [(4, 2 * MIB, 2), (8, MIB, 4), (32, MIB / 4, 2), (6, MIB, 1), (1, 6 * MIB, 1)];
        for (cells, cell_len, alpha) in whole.into_iter().chain([(4, 3 * MIB / 2, 2)]) {
            let layout = Layout::new(cells * cell_len, cell_len, alpha).unwrap();
            let stripe = layout.full_stripe(2, 2);
            let units = stripe.checksum_units(0);
            let positions = |unit: u64| layout.positions_of(Span::new(unit * MIB, (unit + 1) * MIB));
            for (one, other) in (0..units).flat_map(|one| (0..units).map(move |other| (one, other))) {
                let meet = positions(one).iter().any(|a| positions(other).iter().any(|b| !a.intersect(*b).is_empty()));
                assert!(!meet || stripe.unit_group(one) == stripe.unit_group(other), "{cell_len} {alpha}: {one} and {other}");
            }
        }
    }

    #[test]
    fn a_stripe_has_room_in_the_data_blocks_that_have_bytes() {
        for data_len in 1..=96u64 {
            let stripe = StripeLayout { layout: Layout::new(32, 8, 1).unwrap(), k: 3, m: 2, data_len };
            let longer = |data_len| StripeLayout { data_len, ..stripe };
            let end = stripe.room_end();
            assert!(end >= data_len && longer(end).data_blocks() == stripe.data_blocks(), "{data_len}: {end}");
            assert!(end == 96 || longer(end + 1).data_blocks() > stripe.data_blocks(), "{data_len}: {end} is too few");
        }
    }

    #[test]
    fn spans_subtract() {
        let span = Span::new(0, 10);
        assert_eq!(span.subtract(&[Span::new(2, 3), Span::new(3, 5)]), [Span::new(0, 2), Span::new(5, 10)]);
        assert_eq!(span.subtract(&[Span::new(0, 20)]), []);
        assert_eq!(span.subtract(&[]), [span]);
    }

    #[test]
    fn positions_are_those_at_which_any_sub_block_has_a_byte() {
        let layout = Layout::new(8 * 4096, 4096, 4).unwrap();
        for (start, end) in [(0, 1), (1000, 1100), (1024, 2048), (500, 9000), (4095, 4097), (8191, 20_001)] {
            let mut positions: Vec<u64> = Vec::new();
            for sub_block in 0..4 {
                for position in 0..layout.positions() {
                    let byte = layout.extents(sub_block, Span::new(position, position + 1)).next().unwrap().offset;
                    if (start..end).contains(&byte) {
                        positions.push(position);
                    }
                }
            }
            positions.sort_unstable();
            positions.dedup();
            let found: Vec<u64> = layout.positions_of(Span::new(start, end)).iter().flat_map(|s| s.start..s.end).collect();
            assert_eq!(found, positions, "bytes {start}..{end}");
        }
    }
}
