//! Runs a plan on bytes in one process: does what its nodes would read, send and store, without a network.

use crate::executor::{Ends, Executor};
use crate::{Plan, Refusal, Rule, Sink, Source, WantKind, limits};
use std::collections::{BTreeMap, HashMap};
use weft_types::{BlockId, Cause, Error, Extent, Layout, Party, Result, Span};

/// The approximate number of bytes that are processed at once.
const PIECE_BYTES: u64 = 16 << 20;
/// The most bytes of a block in [`Memory`].
const MEMORY_BLOCK_BYTES_MAX: u64 = 1 << 30;

/// The source and target of a plan's bytes: memory ([`Memory`]) or files.
pub trait Data {
    /// Fills `into` (as long as the extent) with stored bytes. Never called for bytes beyond the length in the plan.
    fn read(&mut self, party: Party, block: BlockId, extent: Extent, into: &mut [u8]) -> Result<()>;

    /// Fills `into` with new bytes of a data block, or with new XOR old if `delta`; with zeros beyond the block's end.
    fn input(&mut self, party: Party, index: u8, delta: bool, extent: Extent, into: &mut [u8]) -> Result<()>;

    /// Takes output bytes: of a stored block, of a patch to be XORed into one, or of a delivery. For stored and patched
    /// blocks, never beyond the length in the plan. Reads of the same run must not see a patch.
    fn emit(&mut self, kind: WantKind, party: Party, index: u8, extent: Extent, bytes: &[u8]) -> Result<()>;
}

/// Runs a plan. The plan need not be verified; an unverified plan gives what it computes, and not what a job wants.
pub fn eval(plan: &Plan, data: &mut impl Data) -> Result<()> {
    limits::check_plan(plan)?;
    let Layout { block_len, cell_len, alpha } = plan.binding.layout;
    Layout::new(block_len, cell_len, alpha)?;
    let blocks = lens(&plan.binding.blocks);
    let stores = lens(&plan.binding.stores);
    for (number, lane) in plan.shape.lanes.iter().enumerate() {
        if plan.span(number).end > plan.binding.layout.positions() {
            return Err(Refusal::new(Rule::Lane, format!("lane {number} extends beyond the block")).into());
        }
        let mut executor = Executor::new(plan, number)?;
        let mut bytes = Bytes { plan, lane: number, blocks: &blocks, stores: &stores, slice: plan.span(number), data };
        let width: u64 = lane.stages.iter().map(|stage| (stage.matrix.steps().rows() + stage.matrix.cols()) as u64).sum();
        let piece_len = (PIECE_BYTES / width.max(1)).max(1);
        for run in plan.slice_set(number).runs() {
            let mut start = run.start;
            while start < run.end {
                let piece = Span::new(start, (start + piece_len).min(run.end));
                bytes.slice = piece;
                executor.run(piece.len() as usize, &mut bytes)?;
                start = piece.end;
            }
        }
    }
    Ok(())
}

type Lens = HashMap<(u16, u8), (BlockId, u64)>;

fn lens(blocks: &[crate::BoundBlock]) -> Lens {
    blocks.iter().map(|block| ((block.vertex, block.id.index), (block.id, block.len))).collect()
}

struct Bytes<'a, D> {
    plan: &'a Plan,
    lane: usize,
    blocks: &'a Lens,
    stores: &'a Lens,
    slice: Span,
    data: &'a mut D,
}

impl<D: Data> Bytes<'_, D> {
    fn party(&self, stage: usize) -> Result<(u16, Party)> {
        let vertex = self.plan.shape.lanes[self.lane].stages[stage].vertex;
        let party = self.plan.binding.parties.get(usize::from(vertex));
        party.map(|party| (vertex, *party)).ok_or_else(|| Error::invalid(format!("vertex {vertex} has no party")))
    }

    /// The extents of a slice's rows: (row, offset in the row, extent).
    fn extents(&self, sub_blocks: &[u16]) -> Result<Vec<(usize, usize, Extent)>> {
        let layout = self.plan.binding.layout;
        let mut extents = Vec::new();
        for (row, sub_block) in sub_blocks.iter().enumerate() {
            if u32::from(*sub_block) >= layout.alpha {
                return Err(Error::invalid(format!("sub-block {sub_block} does not exist")));
            }
            let mut at = 0;
            for extent in layout.extents(u32::from(*sub_block), self.slice) {
                extents.push((row, at, extent));
                at += extent.len as usize;
            }
        }
        Ok(extents)
    }
}

/// The part of an extent before `len`.
fn clip(extent: Extent, len: u64) -> Extent {
    Extent { offset: extent.offset, len: extent.len.min(len.saturating_sub(extent.offset)) }
}

impl<D: Data> Ends for Bytes<'_, D> {
    type Error = Error;

    fn read(&mut self, stage: usize, source: &Source, row_len: usize, rows: &mut [u8]) -> Result<()> {
        let (vertex, party) = self.party(stage)?;
        match source {
            Source::Link(_) => Ok(()),
            Source::Block { index, sub_blocks } => {
                let not_bound = || Error::invalid(format!("block {index} is read, but not bound")).party(party);
                let (id, len) = *self.blocks.get(&(vertex, *index)).ok_or_else(not_bound)?;
                for (row, at, extent) in self.extents(sub_blocks)? {
                    let extent = clip(extent, len);
                    if extent.len > 0 {
                        let start = row * row_len + at;
                        self.data.read(party, id, extent, &mut rows[start..start + extent.len as usize])?;
                    }
                }
                Ok(())
            }
            Source::Input { index, sub_blocks, delta } => {
                for (row, at, extent) in self.extents(sub_blocks)? {
                    let start = row * row_len + at;
                    self.data.input(party, *index, *delta, extent, &mut rows[start..start + extent.len as usize])?;
                }
                Ok(())
            }
        }
    }

    fn emit(&mut self, stage: usize, sink: &Sink, row_len: usize, rows: &[u8]) -> Result<()> {
        let (vertex, party) = self.party(stage)?;
        let (kind, index, sub_blocks, bound) = match sink {
            Sink::Link(_) => return Ok(()),
            Sink::Check { .. } => return check_zero(party, self.slice, row_len, rows),
            Sink::Output { index, sub_blocks } => (WantKind::Output, *index, sub_blocks, None),
            Sink::Store { index, sub_blocks } => (WantKind::Store, *index, sub_blocks, Some(self.stores)),
            Sink::Patch { index, sub_blocks } => (WantKind::Patch, *index, sub_blocks, Some(self.blocks)),
        };
        let bound = match bound.map(|bound| bound.get(&(vertex, index))) {
            Some(None) => return Err(Error::invalid(format!("block {index} is written, but not bound")).party(party)),
            Some(Some((id, len))) => Some((*id, *len)),
            None => None,
        };
        for (row, at, extent) in self.extents(sub_blocks)? {
            let start = row * row_len + at;
            let kept = bound.map_or(extent, |(_, len)| clip(extent, len));
            let (bytes, beyond) = rows[start..start + extent.len as usize].split_at(kept.len as usize);
            if let Some((id, len)) = bound
                && beyond.iter().any(|byte| *byte != 0)
            {
                return Err(Error::corrupt(format!("not zero beyond its {len} bytes")).block(id).party(party));
            }
            if !bytes.is_empty() {
                self.data.emit(kind, party, index, kept, bytes)?;
            }
        }
        Ok(())
    }
}

fn check_zero(party: Party, slice: Span, row_len: usize, rows: &[u8]) -> Result<()> {
    match rows.iter().position(|byte| *byte != 0) {
        None => Ok(()),
        Some(at) => {
            let position = slice.start + (at % row_len) as u64;
            let error = Error::corrupt(format!("the stripe's blocks are inconsistent at position {position}")).party(party);
            Err(Error { position: Some(position), ..error.cause(Cause::Inconsistent) })
        }
    }
}

/// Blocks, new data and outputs in memory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Memory {
    /// The blocks of the parties.
    pub blocks: BTreeMap<(Party, BlockId), Vec<u8>>,
    /// New bytes of data blocks (`false`) and deltas (`true`). They read as zeros beyond their ends.
    pub inputs: BTreeMap<(Party, u8, bool), Vec<u8>>,
    /// The outputs, with zeros where nothing was written.
    pub out: BTreeMap<(WantKind, Party, u8), Vec<u8>>,
}

impl Data for Memory {
    fn read(&mut self, party: Party, block: BlockId, extent: Extent, into: &mut [u8]) -> Result<()> {
        let bytes = self
            .blocks
            .get(&(party, block))
            .ok_or_else(|| Error::not_found("the block does not exist").block(block).party(party))?;
        copy(bytes, extent, into);
        Ok(())
    }

    fn input(&mut self, party: Party, index: u8, delta: bool, extent: Extent, into: &mut [u8]) -> Result<()> {
        let bytes = self.inputs.get(&(party, index, delta));
        let bytes = bytes.ok_or_else(|| Error::not_found(format!("there are no new bytes of block {index}")).party(party))?;
        copy(bytes, extent, into);
        Ok(())
    }

    fn emit(&mut self, kind: WantKind, party: Party, index: u8, extent: Extent, bytes: &[u8]) -> Result<()> {
        let out = self.out.entry((kind, party, index)).or_default();
        if extent.offset.saturating_add(extent.len) > MEMORY_BLOCK_BYTES_MAX {
            return Err(Error::invalid(format!(
                "the block is too large to run in memory: at most {MEMORY_BLOCK_BYTES_MAX} bytes"
            )));
        }
        let range = extent.offset as usize..(extent.offset + extent.len) as usize;
        if out.len() < range.end {
            out.resize(range.end, 0);
        }
        out[range].copy_from_slice(bytes);
        Ok(())
    }
}

/// Copies an extent, with zeros beyond the end.
fn copy(bytes: &[u8], extent: Extent, into: &mut [u8]) {
    let start = usize::try_from(extent.offset).unwrap_or(usize::MAX).min(bytes.len());
    let len = into.len().min(bytes.len() - start);
    into[..len].copy_from_slice(&bytes[start..start + len]);
    into[len..].fill(0);
}
