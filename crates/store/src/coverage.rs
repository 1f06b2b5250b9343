//! Tracks which bytes of a block have arrived, and computes the checksums of its pages on arrival.

use std::collections::BTreeMap;
use weft_types::{Error, PAGE_LEN, PAGES_PER_UNIT, Result, Span, crc32c, crc32c_contribution, crc32c_joined, crc32c_zeros};

/// The most separate runs of bytes in an unfinished block. It bounds a writer's memory when bytes arrive in an
/// arbitrary order.
const RUNS_MAX: usize = 1 << 18;

/// The bytes that have arrived, as disjoint, non-adjacent runs.
#[derive(Debug)]
pub(crate) struct Coverage {
    len: u64,
    /// Start → end.
    runs: BTreeMap<u64, u64>,
    /// The CRC32C of each page, with zeros in place of missing bytes.
    pages: Vec<u32>,
}

impl Coverage {
    pub(crate) fn new(len: u64) -> Self {
        let mut pages = vec![crc32c_zeros(PAGE_LEN); len.div_ceil(PAGE_LEN) as usize];
        if let Some(last) = pages.last_mut() {
            *last = crc32c_zeros(page_span(pages_before(len), len).len());
        }
        Self { len, runs: BTreeMap::new(), pages }
    }

    /// Fails if any byte of the run has already arrived, or if the run would exceed [`RUNS_MAX`].
    pub(crate) fn admit(&self, run: Span) -> Result<()> {
        if let Some((start, end)) = self.runs.range(..run.end).next_back()
            && *end > run.start
        {
            let twice = run.intersect(Span::new(*start, *end));
            return Err(Error::invalid(format!("bytes {}..{} were written twice", twice.start, twice.end)));
        }
        if self.runs.len() >= RUNS_MAX {
            return Err(Error::invalid(format!("the block's bytes arrived in more than {RUNS_MAX} separate runs")));
        }
        Ok(())
    }

    /// Records a run that was admitted and written.
    pub(crate) fn add(&mut self, offset: u64, bytes: &[u8]) {
        let run = Span::new(offset, offset + bytes.len() as u64);
        if run.is_empty() {
            return;
        }
        let mut rest = bytes;
        let mut start = offset;
        while !rest.is_empty() {
            let number = start / PAGE_LEN;
            let page = page_span(number, self.len);
            let (piece, behind) = rest.split_at(rest.len().min((page.end - start) as usize));
            let end = start + piece.len() as u64;
            if let Some(sum) = self.pages.get_mut(number as usize) {
                *sum = if Span::new(start, end) == page {
                    crc32c(piece)
                } else {
                    *sum ^ crc32c_contribution(crc32c(piece), piece.len() as u64, page.end - end)
                };
            }
            (rest, start) = (behind, end);
        }
        self.join(run);
    }

    pub(crate) fn missing(&self) -> Vec<Span> {
        let runs: Vec<Span> = self.runs.iter().map(|(start, end)| Span::new(*start, *end)).collect();
        Span::new(0, self.len).subtract(&runs)
    }

    pub(crate) fn into_pages(self) -> Vec<u32> {
        self.pages
    }

    fn join(&mut self, mut run: Span) {
        if let Some((start, end)) = self.runs.range(..run.start).next_back().map(|(start, end)| (*start, *end))
            && end == run.start
        {
            run.start = start;
        }
        if let Some(end) = self.runs.remove(&run.end) {
            run.end = end;
        }
        self.runs.insert(run.start, run.end);
    }
}

/// The bytes of page `number` in a block of `len` bytes.
pub(crate) fn page_span(number: u64, len: u64) -> Span {
    Span::new(number * PAGE_LEN, ((number + 1) * PAGE_LEN).min(len))
}

/// The checksums of units, from those of their pages, for a block of `len` bytes.
pub(crate) fn units_of(pages: &[u32], len: u64) -> Vec<u32> {
    (0..pages.len().div_ceil(PAGES_PER_UNIT)).map(|unit| unit_of(pages, unit, len)).collect()
}

/// The checksum of one unit, from those of the block's pages.
pub(crate) fn unit_of(pages: &[u32], unit: usize, len: u64) -> u32 {
    let first = unit * PAGES_PER_UNIT;
    let pages = pages.iter().enumerate().skip(first).take(PAGES_PER_UNIT);
    pages.fold(0, |sum, (number, page)| crc32c_joined(sum, *page, page_span(number as u64, len).len()))
}

fn pages_before(len: u64) -> u64 {
    len.div_ceil(PAGE_LEN).saturating_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Runs of any length in any order give the checksums of the whole block.
        #[test]
        fn any_order_gives_the_same_checksums(
            len in 1usize..20_000, cuts in proptest::collection::vec(0usize..20_000, 0..40), seed: u64,
        ) {
            let bytes: Vec<u8> = (0..len as u64).map(|i| (i.wrapping_mul(seed | 1) >> 7) as u8).collect();
            let mut cuts: Vec<usize> = cuts.into_iter().filter(|cut| *cut < len).chain([0, len]).collect();
            cuts.sort_unstable();
            cuts.dedup();
            let mut runs: Vec<(usize, usize)> = cuts.windows(2).map(|pair| (pair[0], pair[1])).collect();
            runs.sort_by_key(|run| (run.0 as u64).wrapping_mul(seed | 1));
            let mut coverage = Coverage::new(len as u64);
            let mut left = vec![Span::new(0, len as u64)];
            for (start, end) in runs {
                let run = Span::new(start as u64, end as u64);
                coverage.admit(run).unwrap();
                coverage.add(run.start, &bytes[start..end]);
                prop_assert!(coverage.admit(run).is_err());
                left = left.iter().flat_map(|span| span.subtract(&[run])).collect();
                prop_assert_eq!(coverage.missing(), left.clone());
            }
            prop_assert_eq!(coverage.runs.len(), 1);
            let pages = coverage.into_pages();
            let expected: Vec<u32> = bytes.chunks(4096).map(crc32c).collect();
            prop_assert_eq!(&pages, &expected);
            prop_assert_eq!(units_of(&pages, len as u64), [crc32c(&bytes)]);
        }
    }
}
