//! Which bytes of a stripe one update overwrites, and where they lie in its data blocks.
//!
//! An update is a range of the stripe's data, so it is one range of each data block: see [`StripeLayout::block_range`].

use crate::stripe_data::{Piece, pieces_of};
use bytes::Bytes;
use weft_proto::updates::Part;
use weft_types::{Span, StripeLayout};

/// The end of the next update of a range of a stripe's data that is not empty. A range of up to `bytes_max` bytes is one update, so it is written
/// atomically. A longer range is cut where few blocks take part in each update: at the ends of cells, or of rows of cells if these are small.
pub(crate) fn next_end(layout: &StripeLayout, data: Span, bytes_max: u64) -> u64 {
    if data.len() <= bytes_max {
        return data.end;
    }
    let cell = layout.layout.cell_len;
    let row = cell.saturating_mul(layout.k.into());
    let (grain, step) = match () {
        () if cell >= bytes_max => (cell, bytes_max),
        () if row >= bytes_max => (row, bytes_max / cell * cell),
        () => (bytes_max / row * row, bytes_max),
    };
    let from = data.start / grain * grain;
    let next = from + ((data.start - from) / step + 1) * step;
    next.min(from + grain).min(data.end)
}

/// The parts of an update, ascending by data block: `bytes` are the new bytes of the range `data` of the stripe's data.
pub(crate) fn parts(layout: &StripeLayout, data: Span, bytes: &Bytes) -> Vec<Part> {
    let part = |(index, range): (u32, Span)| {
        let mut pieces = Vec::new();
        pieces_of(layout, index, range.start, range.len(), 0, &mut pieces);
        let of = |piece: &Piece| {
            let from = (piece.data_offset - data.start) as usize;
            bytes.get(from..from + piece.len).unwrap_or_default()
        };
        let bytes = match &pieces[..] {
            [one] => bytes.slice_ref(of(one)),
            pieces => pieces.iter().map(of).collect::<Vec<_>>().concat().into(),
        };
        Part { stream: index as u8, start: range.start, bytes }
    };
    layout.data_ranges(data).map(part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{Rng, SeedableRng, rngs::StdRng};
    use weft_types::Layout;

    /// A layout with cells of any length, also much smaller and much larger than an update.
    fn any_layout(random: &mut StdRng) -> StripeLayout {
        let alpha = [1, 1, 2, 4, 8][random.random_range(0..5)];
        let cell_len = u64::from(alpha) * random.random_range(1..40);
        let layout = Layout::new(cell_len * random.random_range(1..12), cell_len, alpha).unwrap();
        let k = random.random_range(1..7);
        let data_len = random.random_range(1..=u64::from(k) * layout.block_len);
        StripeLayout { layout, k, m: 2, data_len }
    }

    fn any_range(random: &mut StdRng, len: u64) -> Span {
        let start = random.random_range(0..len);
        Span::new(start, random.random_range(start + 1..=len))
    }

    fn cut(layout: &StripeLayout, data: Span, bytes_max: u64) -> Vec<Span> {
        let (mut at, mut cuts) = (data.start, Vec::new());
        while at < data.end {
            let end = next_end(layout, Span::new(at, data.end), bytes_max);
            cuts.push(Span::new(at, end));
            at = end;
        }
        cuts
    }

    #[test]
    fn updates_write_each_byte_once_where_the_layout_puts_it() {
        let mut random = StdRng::seed_from_u64(7);
        for _ in 0..3000 {
            let layout = any_layout(&mut random);
            let data = any_range(&mut random, layout.data_len);
            let bytes_max = random.random_range(1..300);
            let new: Vec<u8> = (0..data.len()).map(|_| random.random_range(1..=255)).collect();
            let mut blocks = vec![vec![0u8; layout.layout.block_len as usize]; layout.k as usize];
            let mut at = data.start;
            for update in cut(&layout, data, bytes_max) {
                assert_eq!(update.start, at, "a gap or an overlap in {layout:?}");
                assert!(!update.is_empty() && update.len() <= bytes_max, "{update:?} of {bytes_max} bytes in {layout:?}");
                let bytes = &new[(update.start - data.start) as usize..][..update.len() as usize];
                let parts = parts(&layout, update, &Bytes::copy_from_slice(bytes));
                assert_eq!(parts.iter().map(|part| part.bytes.len() as u64).sum::<u64>(), update.len());
                assert!(parts.windows(2).all(|pair| pair[0].stream < pair[1].stream), "two ranges of a block");
                for part in parts {
                    assert!(!part.bytes.is_empty());
                    let place = &mut blocks[usize::from(part.stream)][part.start as usize..][..part.bytes.len()];
                    assert!(place.iter().all(|byte| *byte == 0), "a byte is written twice in {layout:?}");
                    place.copy_from_slice(&part.bytes);
                }
                at = update.end;
            }
            assert_eq!(at, data.end, "bytes are left out of {layout:?}");
            // The definition: byte by byte.
            let mut expected = vec![vec![0u8; layout.layout.block_len as usize]; layout.k as usize];
            for (offset, byte) in (data.start..).zip(&new) {
                let (index, within) = layout.locate(offset);
                expected[index as usize][within as usize] = *byte;
            }
            assert!(blocks == expected, "{data:?} of {layout:?}");
        }
    }

    #[test]
    fn what_fits_into_one_update_is_one() {
        let mut random = StdRng::seed_from_u64(8);
        for _ in 0..500 {
            let layout = any_layout(&mut random);
            let data = any_range(&mut random, layout.data_len);
            assert_eq!(cut(&layout, data, data.len()), [data]);
        }
    }

    #[test]
    fn few_blocks_take_part_in_each_update_of_a_long_range() {
        let of = |cell_len: u64, data: Span| {
            let layout = StripeLayout { layout: Layout::new(4096, cell_len, 1).unwrap(), k: 4, m: 2, data_len: 16384 };
            cut(&layout, data, 256).into_iter().map(|update| (update, layout.data_ranges(update).count())).collect::<Vec<_>>()
        };
        // Long cells: one block, except for an end that fits into one update.
        assert!(of(1024, Span::new(10, 9000)).iter().all(|(_, blocks)| *blocks == 1));
        assert_eq!(of(1024, Span::new(900, 1200))[0], (Span::new(900, 1024), 1));
        // Cells shorter than an update, rows longer: whole cells, and no update goes on in the next row.
        let whole = of(128, Span::new(10, 5000));
        assert_eq!(whole[0].0, Span::new(10, 256));
        assert!(whole.iter().all(|(_, blocks)| *blocks <= 2));
        // Short rows: whole rows.
        assert!(of(16, Span::new(0, 8192)).iter().all(|(update, blocks)| (update.len(), *blocks) == (256, 4)));
    }
}
