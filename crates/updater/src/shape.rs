//! How the deltas of data blocks change one block of their stripe.
//!
//! With G the generator, sub-block p of parity block j changes by `G[j·α + p][i·α + a] × δ` where sub-block a of data block i changes by δ, at
//! the same positions (Butterfly codes, §5.1; "columns of the parity rows"). So a change of few sub-blocks of a data block changes
//! only the sub-blocks of a parity that depend on them.

use crate::{
    fault::{Rule, dropped},
    piece::Piece,
    record::UnitChanges,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};
use weft_codes::{Code, generator_hash};
use weft_gf::{Combination, SparseMatrix};
use weft_types::{BlockMeta, CHECKSUM_UNIT_LEN, Error, PAGE_LEN, Result, Span, StripeLayout, crc32c, crc32c_contribution};
use weft_update::Dependence;

/// A block of a stripe, as its code and its layout determine it.
#[derive(Debug)]
pub(crate) struct Shape {
    stripe: StripeLayout,
    /// The block's index.
    index: u8,
    pub(crate) dependence: Dependence,
    /// By data block and its sub-block, the sub-blocks of this block that change with it.
    columns: BTreeMap<(u8, u16), Vec<(u16, Factor)>>,
    pub(crate) generator_hash: u64,
}

/// A coefficient.
#[derive(Debug, Clone)]
enum Factor {
    One,
    Other(Arc<Combination>),
}

/// A part of a range that lies in one sub-block of one cell.
struct Run {
    sub_block: u16,
    /// Where the cell begins, and where in the sub-block the run does.
    cell: u64,
    within: u64,
    /// Its bytes, from the beginning of the range on.
    from: usize,
    len: usize,
}

impl Shape {
    /// Fails if the code is not the one that wrote the block.
    pub(crate) fn new(code: &dyn Code, meta: &BlockMeta) -> Result<Self> {
        let stripe = meta.stripe;
        let sizes = [code.k() as u64, code.m() as u64, code.alpha() as u64];
        let hash = generator_hash(code);
        if sizes != [stripe.k.into(), stripe.m.into(), stripe.layout.alpha.into()] || hash != meta.generator_hash {
            return Err(Error::fatal(format!("this program builds {} differently from the one that wrote the block", meta.code)));
        }
        let (index, k) = (meta.id.index, stripe.k as u8);
        let dependence = dependence(code);
        let mut columns: BTreeMap<(u8, u16), Vec<(u16, Factor)>> = BTreeMap::new();
        if index < k {
            (0..code.alpha() as u16)
                .for_each(|sub_block| drop(columns.insert((index, sub_block), vec![(sub_block, Factor::One)])));
            return Ok(Self { stripe, index, dependence, columns, generator_hash: hash });
        }
        let mut factors: BTreeMap<u8, Factor> = BTreeMap::from([(1, Factor::One)]);
        let alpha = code.alpha();
        for row in 0..alpha {
            for (_, col, coefficient) in code.generator().row(usize::from(index) * alpha + row) {
                let (stream, sub_block) = ((*col as usize / alpha) as u8, (*col as usize % alpha) as u16);
                let factor = factors.entry(*coefficient).or_insert_with(|| factor(*coefficient)).clone();
                columns.entry((stream, sub_block)).or_default().push((row as u16, factor));
            }
        }
        Ok(Self { stripe, index, dependence, columns, generator_hash: hash })
    }

    /// The bytes at each position.
    pub(crate) fn alpha(&self) -> u64 {
        u64::from(self.stripe.layout.alpha).max(1)
    }

    /// The length of data block `stream`; `None` if there is none.
    pub(crate) fn data_len(&self, stream: u8) -> Option<u64> {
        (u32::from(stream) < self.stripe.k).then(|| self.stripe.block_len(stream.into()))
    }

    /// The length of this block.
    pub(crate) fn len(&self) -> u64 {
        self.stripe.block_len(self.index.into())
    }

    /// Whether a range is a valid part of data block `stream`.
    pub(crate) fn is_part(&self, stream: u8, bytes: Span) -> bool {
        !bytes.is_empty() && self.data_len(stream).is_some_and(|len| bytes.end <= len)
    }

    /// The range of positions that contains these bytes of a block: what the protocol locks.
    pub(crate) fn positions(&self, bytes: Span) -> Span {
        let spans = self.stripe.layout.positions_of(bytes);
        let (first, last) = (spans.first(), spans.last());
        Span::new(first.map_or(0, |span| span.start), last.map_or(0, |span| span.end))
    }

    /// Calls `visit` with each part of a range of this block that a delta changes: its offset, and what is added to its bytes.
    pub(crate) fn changes(&self, stream: u8, delta: &Piece, range: Span, mut visit: impl FnMut(u64, &[u8])) {
        let mut product = Vec::new();
        for run in self.runs(delta.span()) {
            for (sub_block, factor) in self.column(stream, run.sub_block) {
                let first = self.offset(&run, *sub_block);
                let part = Span::new(first, first + run.len as u64).intersect(range);
                let from = run.from + part.start.saturating_sub(first) as usize;
                let Some(source) = delta.bytes.get(from..from + part.len() as usize).filter(|it| !it.is_empty()) else {
                    continue;
                };
                let bytes = match factor {
                    Factor::One => source,
                    Factor::Other(_) if dropped(Rule::Coefficients) => source,
                    Factor::Other(combination) => {
                        product.resize(source.len(), 0);
                        combination.apply(&[source], &mut [&mut product]);
                        &product
                    }
                };
                visit(part.start, bytes);
            }
        }
    }

    /// The parts of this block that a change of these bytes of data block `stream` changes.
    pub(crate) fn touched(&self, stream: u8, bytes: Span) -> Vec<Span> {
        let mut spans = Vec::new();
        for run in self.runs(bytes) {
            for (sub_block, _) in self.column(stream, run.sub_block) {
                let offset = self.offset(&run, *sub_block);
                spans.push(Span::new(offset, offset + run.len as u64));
            }
        }
        Span::normalize(spans)
    }

    /// What a delta adds to the CRC32C of each unit (1 MiB) of this block. CRCs are linear: see `weft_types::crc`.
    pub(crate) fn unit_changes(&self, stream: u8, delta: &Piece, changes: &mut UnitChanges) {
        let len = self.len();
        self.changes(stream, delta, Span::new(0, len), |mut offset, mut bytes| {
            while !bytes.is_empty() {
                let number = offset / CHECKSUM_UNIT_LEN;
                let end = ((number + 1) * CHECKSUM_UNIT_LEN).min(len);
                let (part, rest) = bytes.split_at(bytes.len().min((end - offset) as usize));
                let behind = end - offset - part.len() as u64;
                *changes.entry((stream, number as u32)).or_default() ^=
                    crc32c_contribution(crc32c(part), part.len() as u64, behind);
                (offset, bytes) = (offset + part.len() as u64, rest);
            }
        });
    }

    fn column(&self, stream: u8, sub_block: u16) -> &[(u16, Factor)] {
        self.columns.get(&(stream, sub_block)).map_or(&[], Vec::as_slice)
    }

    fn offset(&self, run: &Run, sub_block: u16) -> u64 {
        run.cell + u64::from(sub_block) * self.stripe.layout.sub_len() + run.within
    }

    fn runs(&self, bytes: Span) -> impl Iterator<Item = Run> + use<> {
        let layout = self.stripe.layout;
        let (cell, sub) = (layout.cell_len, layout.sub_len());
        let mut at = bytes.start;
        std::iter::from_fn(move || {
            (at < bytes.end).then(|| {
                let in_cell = at % cell;
                // With one sub-block in a cell, adjacent cells are adjacent in all blocks.
                let len = if sub == cell { bytes.end - at } else { (sub - in_cell % sub).min(bytes.end - at) };
                let (sub_block, within) = ((in_cell / sub) as u16, in_cell % sub);
                let run = Run { sub_block, cell: at - in_cell, within, from: (at - bytes.start) as usize, len: len as usize };
                at += len;
                run
            })
        })
    }
}

/// The numbers of the pages that these ranges touch.
pub(crate) fn pages_of(spans: &[Span]) -> BTreeSet<u64> {
    spans.iter().filter(|span| !span.is_empty()).flat_map(|span| span.start / PAGE_LEN..=(span.end - 1) / PAGE_LEN).collect()
}

fn factor(coefficient: u8) -> Factor {
    let matrix = SparseMatrix::new(1, 1, [(0, 0, coefficient)]).unwrap_or_else(|| SparseMatrix::identity(1));
    Factor::Other(Arc::new(Combination::new(&matrix)))
}

/// On which data blocks the parities of a code depend.
pub fn dependence(code: &dyn Code) -> Dependence {
    let (k, alpha) = (code.k(), code.alpha());
    let mut partial = BTreeMap::new();
    for index in k..code.n() {
        let rows = (index * alpha..(index + 1) * alpha).flat_map(|row| code.generator().row(row));
        let streams: BTreeSet<u8> = rows.map(|(_, col, _)| (*col as usize / alpha) as u8).collect();
        if streams.len() < k {
            partial.insert(index as u8, streams);
        }
    }
    Dependence { k: k as u8, partial: Arc::new(partial) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_types::{BlockId, ClusterId, Layout, Seq, StripeId};

    fn shape(spec: &str, index: u8, layout: Layout) -> (Shape, weft_codes::SharedCode) {
        let code = weft_codes::parse(spec).unwrap();
        let meta = BlockMeta {
            cluster: ClusterId(1),
            id: BlockId { stripe: StripeId(1), index, copy: 0, generation: 1 },
            object: "a/b".into(),
            version: 1,
            object_offset: 0,
            code: spec.into(),
            generator_hash: generator_hash(&*code),
            stripe: layout.full_stripe(code.k() as u32, code.m() as u32),
            seq: Seq::default(),
        };
        (Shape::new(&*code, &meta).unwrap(), code)
    }

    /// The blocks of a stripe, by the definition of the code: position by position.
    fn encode(code: &dyn Code, layout: Layout, data: &[Vec<u8>]) -> Vec<Vec<u8>> {
        let alpha = code.alpha();
        let mut blocks = vec![vec![0; layout.block_len as usize]; code.n()];
        for x in 0..layout.positions() {
            let at = |sub: usize| layout.extents(sub as u32, Span::new(x, x + 1)).next().unwrap().offset as usize;
            for row in 0..code.n() * alpha {
                let product = |(_, col, factor): &(u32, u32, u8)| {
                    let (block, sub) = (*col as usize / alpha, *col as usize % alpha);
                    weft_gf::field::mul(*factor, data[block][at(sub)])
                };
                let sum = code.generator().row(row).iter().map(product).fold(0, |sum, product| sum ^ product);
                blocks[row / alpha][at(row % alpha)] = sum;
            }
        }
        blocks
    }

    #[test]
    fn a_delta_changes_every_block_as_encoding_the_new_data_would() {
        for (spec, alpha) in [("rs(4,2)", 1), ("lrc(4,2,2)", 1), ("butterfly(4)", 8)] {
            let layout = Layout::new(768, 384, alpha).unwrap();
            for stream in 0..4_u8 {
                for (start, len) in [(0, 1), (47, 2), (100, 300), (380, 10), (0, 768)] {
                    let seed = |block: usize, at: usize| (block * 7 + at * 31 + at / 5) as u8;
                    let data: Vec<Vec<u8>> = (0..4).map(|block| (0..768).map(|at| seed(block, at)).collect()).collect();
                    let delta = Piece { start, bytes: (0..len).map(|at| (at * 13 + 1) as u8).collect() };
                    let mut changed = data.clone();
                    for (at, byte) in delta.bytes.iter().enumerate() {
                        changed[usize::from(stream)][start as usize + at] ^= byte;
                    }
                    let (_, code) = shape(spec, 0, layout);
                    let (before, after) = (encode(&*code, layout, &data), encode(&*code, layout, &changed));
                    for (index, (mut block, wanted)) in before.into_iter().zip(after).enumerate() {
                        let (shape, _) = shape(spec, index as u8, layout);
                        let (old, mut unit) = (crc32c(&block), BTreeMap::new());
                        let touched = shape.touched(stream, delta.span());
                        shape.unit_changes(stream, &delta, &mut unit);
                        let middle = (start + 37).min(block.len() as u64);
                        for range in [Span::new(0, middle), Span::new(middle, block.len() as u64)] {
                            shape.changes(stream, &delta, range, |offset, bytes| {
                                let span = Span::new(offset, offset + bytes.len() as u64);
                                assert!(range.contains(span) && touched.iter().any(|at| at.contains(span)));
                                bytes.iter().enumerate().for_each(|(at, byte)| block[offset as usize + at] ^= byte);
                            });
                        }
                        assert_eq!(block, wanted, "{spec} block {index}, {len} bytes at {start} of block {stream}");
                        assert_eq!(crc32c(&block), old ^ unit.get(&(stream, 0)).copied().unwrap_or(0), "{spec} block {index}");
                        assert_eq!(touched.is_empty(), !shape.dependence.of(index as u8, stream), "{spec} block {index}");
                    }
                }
            }
        }
    }

    #[test]
    fn sub_blocks_that_do_not_change_are_not_touched() {
        let layout = Layout::new(64 << 10, 64 << 10, 8).unwrap();
        let (horizontal, _) = shape("butterfly(4)", 4, layout);
        assert_eq!(horizontal.touched(1, Span::new(10, 20)), [Span::new(10, 20)]);
        let (butterfly, _) = shape("butterfly(4)", 5, layout);
        let touched: u64 = butterfly.touched(1, Span::new(10, 20)).iter().map(|span| span.len()).sum();
        assert!((10..=40).contains(&touched), "{touched}");
        assert_eq!(horizontal.positions(Span::new(8190, 8200)), Span::new(0, 8192), "the hull of the ends of two sub-blocks");
    }

    #[test]
    fn a_block_that_another_construction_wrote_is_refused() {
        let code = weft_codes::parse("rs(4,2)").unwrap();
        let (layout, id) =
            (Layout::new(4096, 4096, 1).unwrap(), BlockId { stripe: StripeId(1), index: 0, copy: 0, generation: 1 });
        let meta = BlockMeta {
            cluster: ClusterId(1),
            id,
            object: "a/b".into(),
            version: 1,
            object_offset: 0,
            code: "rs(4,2)".into(),
            generator_hash: 7,
            stripe: layout.full_stripe(4, 2),
            seq: Seq::default(),
        };
        assert!(Shape::new(&*code, &meta).is_err());
    }
}
