//! Checksums of a block whose bytes arrive in pieces, in any order: CRC32C of each MiB, and which bytes have arrived.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
};
use weft_proto::{crc32c, crc32c_continued, crc32c_joined, v1::BlockChecksums};
use weft_types::{CHECKSUM_UNIT_LEN, Rows, Span};

/// The bytes of a block that have arrived, with their checksums.
#[derive(Debug)]
pub struct UnitSums {
    len: u64,
    /// By first byte; runs do not overlap, neighbours within a unit are merged, and no run crosses the end of a unit.
    runs: BTreeMap<u64, Run>,
}

#[derive(Debug, Clone, Copy)]
struct Run {
    end: u64,
    checksum: u32,
}

impl UnitSums {
    /// For a block of `len` bytes, none of which has arrived.
    pub fn new(len: u64) -> Self {
        Self { len, runs: BTreeMap::new() }
    }

    /// Adds bytes of the block. Bytes beyond the block's end are ignored.
    pub fn add(&mut self, mut offset: u64, mut bytes: &[u8]) {
        while offset < self.len && !bytes.is_empty() {
            let unit_end = self.unit_span(offset / CHECKSUM_UNIT_LEN).end;
            let (piece, rest) = bytes.split_at(bytes.len().min((unit_end - offset) as usize));
            self.add_run(offset, piece.len() as u64, |before| crc32c_continued(before, piece));
            offset += piece.len() as u64;
            bytes = rest;
        }
    }

    /// Like [`add`](Self::add), for rows that are one run of the block: if they lie within a unit, their checksum is used.
    pub fn add_rows(&mut self, offset: u64, rows: &Rows) {
        debug_assert_eq!(rows.checksum(), crc32c(rows), "the memory of rows was changed while they were held");
        let (len, unit) = (rows.len() as u64, self.unit_span(offset / CHECKSUM_UNIT_LEN));
        if len > 0 && offset + len <= unit.end {
            self.add_run(offset, len, |before| crc32c_joined(before, rows.checksum(), len));
        } else {
            self.add(offset, rows);
        }
    }

    /// The bytes that have arrived.
    pub fn arrived(&self) -> Vec<Span> {
        Span::normalize(self.runs.iter().map(|(start, run)| Span::new(*start, run.end)).collect())
    }

    /// The runs of bytes that have arrived, each within one unit, with its checksum.
    pub(crate) fn runs(&self) -> impl Iterator<Item = (Span, u32)> + '_ {
        self.runs.iter().map(|(start, run)| (Span::new(*start, run.end), run.checksum))
    }

    /// The checksum of a unit that has arrived completely.
    pub fn unit(&self, unit: u64) -> Option<u32> {
        let span = self.unit_span(unit);
        self.runs.get(&span.start).filter(|run| run.end == span.end).map(|run| run.checksum)
    }

    /// The checksums of all units, if the whole block has arrived.
    pub fn units(&self) -> Option<Vec<u32>> {
        (0..self.len.div_ceil(CHECKSUM_UNIT_LEN)).map(|unit| self.unit(unit)).collect()
    }

    /// The bytes of a unit.
    pub fn unit_span(&self, unit: u64) -> Span {
        let start = unit * CHECKSUM_UNIT_LEN;
        Span::new(start, (start + CHECKSUM_UNIT_LEN).min(self.len))
    }

    /// Merges a run of one unit with its neighbours; `go_on` returns the checksum of another run followed by this one. A run that overlaps
    /// an earlier one is ignored: the unit stays incomplete, or keeps the checksum of the earlier bytes.
    fn add_run(&mut self, start: u64, len: u64, go_on: impl FnOnce(u32) -> u32) {
        let end = start + len;
        let unit = start / CHECKSUM_UNIT_LEN;
        let before = self.runs.range(..=start).next_back().map(|(at, run)| (*at, *run));
        let after = self.runs.range(start..).next().map(|(at, run)| (*at, *run));
        let overlaps = before.is_some_and(|(_, before)| before.end > start) || after.is_some_and(|(at, _)| at < end);
        if overlaps {
            return;
        }
        let before = before.filter(|(at, before)| before.end == start && at / CHECKSUM_UNIT_LEN == unit);
        let (start, checksum) = before.map_or((start, 0), |(at, before)| (at, before.checksum));
        let mut run = Run { end, checksum: go_on(checksum) };
        if let Some((at, after)) = after
            && at == end
            && at / CHECKSUM_UNIT_LEN == unit
        {
            self.runs.remove(&at);
            run = Run { end: after.end, checksum: crc32c_joined(run.checksum, after.checksum, after.end - at) };
        }
        self.runs.insert(start, run);
    }
}

/// The checksums of the blocks that were summed up completely.
pub(crate) fn whole(sums: &BTreeMap<u32, Mutex<UnitSums>>) -> Vec<BlockChecksums> {
    let units = sums.iter().filter_map(|(index, sums)| {
        let units = sums.lock().unwrap_or_else(PoisonError::into_inner).units()?;
        Some(BlockChecksums { index: *index, checksums: units, id: Vec::new() })
    });
    units.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{Rng, SeedableRng, rngs::StdRng, seq::SliceRandom};
    use weft_proto::crc32c;

    #[test]
    fn pieces_in_any_order_give_the_checksums_of_the_whole() {
        let mut random = StdRng::seed_from_u64(1);
        for len in [1u64, 4096, CHECKSUM_UNIT_LEN, CHECKSUM_UNIT_LEN + 1, 3 * CHECKSUM_UNIT_LEN - 7] {
            let block: Vec<u8> = (0..len).map(|_| random.random()).collect();
            let expected: Vec<u32> = block.chunks(CHECKSUM_UNIT_LEN as usize).map(crc32c).collect();
            let mut edges: Vec<u64> = (0..10).map(|_| random.random_range(0..len)).chain([0, len]).collect();
            edges.sort_unstable();
            let mut pieces: Vec<Span> = edges.windows(2).map(|pair| Span::new(pair[0], pair[1])).collect();
            pieces.shuffle(&mut random);
            let mut sums = UnitSums::new(len);
            for (count, piece) in pieces.iter().enumerate() {
                let whole = Span::normalize(pieces[..count].to_vec()) == [Span::new(0, len)];
                assert_eq!(sums.units().is_some(), whole, "{count} pieces");
                let bytes = &block[piece.start as usize..piece.end as usize];
                match count % 2 {
                    0 => sums.add(piece.start, bytes),
                    _ => sums.add_rows(piece.start, &Rows::from(bytes.to_vec())),
                }
                assert_eq!(sums.arrived(), Span::normalize(pieces[..=count].to_vec()));
            }
            assert_eq!(sums.units(), Some(expected));
        }
    }

    #[test]
    fn bytes_beyond_the_end_do_not_count() {
        let mut sums = UnitSums::new(10);
        sums.add(0, &[7; 4096]);
        assert_eq!(sums.units(), Some(vec![crc32c(&[7; 10])]));
        sums.add(4096, &[1; 10]);
        assert_eq!(sums.arrived(), [Span::new(0, 10)]);
        assert_eq!(UnitSums::new(0).units(), Some(vec![]));
    }

    #[test]
    fn bytes_that_arrive_twice_change_nothing() {
        let mut sums = UnitSums::new(100);
        sums.add(0, &[1; 50]);
        sums.add(25, &[2; 50]);
        assert_eq!(sums.arrived(), [Span::new(0, 50)]);
        sums.add(50, &[1; 50]);
        assert_eq!(sums.units(), Some(vec![crc32c(&[1; 100])]));
    }
}
