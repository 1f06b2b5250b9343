//! The checks that an agent makes on its task before it runs it, and the task's resources.

use super::{Task, TaskLane, TaskLink, TaskStage};
use crate::{Sink, Source, executor::check_matrix, limits};
use std::collections::{BTreeMap, HashMap, HashSet};
use weft_types::{BLOCKS_MAX, BlockId, Error, Layout, Result};

/// A task's links by (lane, link), each with the number of its uses by the task's stages.
type Links<'a> = HashMap<(u16, u16), (&'a TaskLink, u32)>;

/// A shorter part of a sub-block is not read by itself.
const PART_BYTES_MIN: u64 = 64 << 10;
/// Longer cells are not kept for cutting slices.
const CELL_BYTES_MAX: u64 = 32 << 20;

/// The bytes that a source keeps to read slices of some sub-blocks of a block. Slices with only a small part of each of
/// several sub-blocks are cut from whole sub-blocks, so that the disk gets no small reads. 0: slices are read directly.
pub fn cell_bytes(layout: &Layout, slice_len: u64, sub_blocks: usize) -> u64 {
    // The layout may not have been validated.
    let sub_len = layout.cell_len.checked_div(layout.alpha.into()).unwrap_or_default();
    let bytes = sub_len.saturating_mul(sub_blocks as u64);
    if sub_blocks > 1 && slice_len < sub_len.min(PART_BYTES_MIN) && bytes <= CELL_BYTES_MAX { bytes } else { 0 }
}

impl Task {
    /// Checks that the task can run: sizes within limits, consistent generations, every link used once at this end,
    /// matrices that match their ports, existing positions.
    ///
    /// Only the whole plan can show that it computes the right thing: see [`crate::verify()`].
    pub fn validate(&self) -> Result<()> {
        self.check_all().map_err(|error| error.party(self.party))
    }

    /// The bytes that the task needs: at each source and sink, `window` waiting slices and the current one; the cells
    /// that slices are cut from; and the temporaries of a piece.
    pub fn memory_bytes(&self) -> u64 {
        let widths: HashMap<(u16, u16), u64> =
            self.links.iter().map(|link| ((link.lane, link.link), u64::from(link.width))).collect();
        let mut bytes = 0u64;
        for lane in &self.lanes {
            let slices = u64::from(lane.window).saturating_add(1);
            let link = |link: &u16| widths.get(&(lane.lane, *link)).copied().unwrap_or_default();
            for stage in &lane.stages {
                let ins = stage.sources.iter().map(|source| match source {
                    Source::Link(number) => link(number),
                    Source::Block { sub_blocks, .. } | Source::Input { sub_blocks, .. } => sub_blocks.len() as u64,
                });
                let outs = stage.sinks.iter().map(|sink| match sink {
                    Sink::Link(number) => link(number),
                    Sink::Check { width } => u64::from(*width),
                    Sink::Store { sub_blocks, .. } | Sink::Patch { sub_blocks, .. } | Sink::Output { sub_blocks, .. } => {
                        sub_blocks.len() as u64
                    }
                });
                let cells = stage.sources.iter().map(|source| match source {
                    Source::Block { sub_blocks, .. } => cell_bytes(&self.layout, self.slice_len, sub_blocks.len()),
                    Source::Link(_) | Source::Input { .. } => 0,
                });
                bytes = cells.fold(bytes, u64::saturating_add);
                let width = ins.chain(outs).fold(0, u64::saturating_add);
                let slice_len = self.slice_len.min(lane.span.len());
                bytes = bytes.saturating_add(width.saturating_mul(slices).saturating_mul(slice_len));
                // A matrix may declare any number of rows, and scheduling them takes memory for each. No valid task has so many.
                let declared = stage.matrix.steps().rows();
                let scratch = match declared > limits::PLAN_WIDTH_MAX {
                    true => u64::MAX,
                    false => weft_gf::Combination::scratch_bytes(&stage.matrix, slice_len),
                };
                bytes = bytes.saturating_add(scratch);
            }
        }
        bytes
    }

    fn check_all(&self) -> Result<()> {
        let Layout { block_len, cell_len, alpha } = self.layout;
        Layout::new(block_len, cell_len, alpha)?;
        if self.slice_len == 0 {
            return Err(Error::invalid("the task's slices have no position"));
        }
        self.check_sizes()?;
        self.check_blocks()?;
        let mut links: Links<'_> = HashMap::new();
        for link in &self.links {
            let TaskLink { lane, link: number, width, peer, .. } = link;
            if *width == 0 || *width as usize > limits::PORT_WIDTH_MAX || *peer == self.party {
                return Err(Error::invalid(format!(
                    "link {number} of lane {lane} has {width} sub-blocks and the other end {peer}"
                )));
            }
            if links.insert((*lane, *number), (link, 0)).is_some() {
                return Err(Error::invalid(format!("link {number} of lane {lane} occurs twice")));
            }
        }
        let mut lanes = HashSet::new();
        for lane in &self.lanes {
            if !lanes.insert(lane.lane) {
                return Err(Error::invalid(format!("lane {} occurs twice", lane.lane)));
            }
            self.check_lane(lane)?;
            for stage in &lane.stages {
                let at = |message: String| Error::invalid(format!("lane {} stage {}: {message}", lane.lane, stage.stage));
                self.check_stage(lane, stage, &mut links).map_err(at)?;
            }
        }
        match links.into_iter().find(|(_, (_, used))| *used != 1) {
            Some(((lane, link), (_, used))) => {
                Err(Error::invalid(format!("link {link} of lane {lane} is used {used} times; it must be once")))
            }
            None => Ok(()),
        }
    }

    fn check_sizes(&self) -> Result<()> {
        let stages = || self.lanes.iter().flat_map(|lane| &lane.stages);
        let widths =
            stages().map(|stage| limits::ports_width(&stage.sources, &stage.sinks).saturating_add(stage.matrix.temporaries()));
        let width = widths.chain(self.links.iter().map(|link| link.width as usize)).fold(0, usize::saturating_add);
        for (what, count, max) in [
            ("lanes", self.lanes.len(), limits::LANES_MAX),
            ("stages", stages().count(), limits::STAGES_MAX),
            ("links", self.links.len(), limits::LANE_LINKS_MAX),
            ("blocks that are read", self.blocks.len(), limits::BLOCKS_BOUND_MAX),
            ("blocks that are stored", self.stores.len(), limits::BLOCKS_BOUND_MAX),
            ("counts of updates", self.seq.counts().len(), BLOCKS_MAX),
            ("sub-blocks on its ports and links, and temporaries", width, limits::PLAN_WIDTH_MAX),
            ("coefficients", stages().map(|stage| stage.matrix.steps().terms().len()).sum(), limits::TERMS_MAX),
        ] {
            limits::at_most(what, count, max).map_err(|refusal| Error::invalid(refusal.message))?;
        }
        Ok(())
    }

    fn check_blocks(&self) -> Result<()> {
        let mut read: BTreeMap<u8, BlockId> = BTreeMap::new();
        let mut stored: BTreeMap<u8, BlockId> = BTreeMap::new();
        for (blocks, seen) in [(&self.blocks, &mut read), (&self.stores, &mut stored)] {
            for block in blocks {
                if block.len > self.layout.block_len {
                    return Err(
                        Error::invalid(format!("the block has {} bytes, more than the layout allows", block.len)).block(block.id)
                    );
                }
                if seen.insert(block.id.index, block.id).is_some() {
                    return Err(Error::invalid("the task has another block of this index").block(block.id));
                }
            }
        }
        let mut stripes = read.values().chain(stored.values()).map(|id| id.stripe);
        let first = stripes.next();
        if stripes.any(|stripe| Some(stripe) != first) {
            return Err(Error::invalid("the task's blocks belong to several stripes"));
        }
        for (index, new) in stored {
            let old = read.get(&index).filter(|old| old.copy == new.copy).map_or(0, |old| old.generation);
            if new.generation <= old {
                return Err(
                    Error::invalid(format!("the block cannot be stored: the task names its generation {old} too")).block(new)
                );
            }
        }
        Ok(())
    }

    fn check_lane(&self, lane: &TaskLane) -> Result<()> {
        let wrong = |message: String| Err(Error::invalid(format!("lane {}: {message}", lane.lane)));
        let positions = self.layout.positions();
        if lane.span.is_empty() || lane.span.end > positions {
            return wrong(format!("positions {}..{} of a block that has {positions}", lane.span.start, lane.span.end));
        }
        if lane.window == 0 || lane.window > limits::WINDOW_SLICES_MAX {
            return wrong(format!("a window of {} slices is invalid: use 1 to {}", lane.window, limits::WINDOW_SLICES_MAX));
        }
        if lane.slice_set(self.slice_len).is_empty() || lane.stages.is_empty() {
            return wrong("no slice, or no stage".into());
        }
        let mut stages = HashSet::new();
        match lane.stages.iter().find(|stage| !stages.insert(stage.stage)) {
            Some(twice) => wrong(format!("stage {} occurs twice", twice.stage)),
            None => Ok(()),
        }
    }

    fn check_stage(&self, lane: &TaskLane, stage: &TaskStage, links: &mut Links<'_>) -> Result<(), String> {
        let mut use_link = |number: u16, sends: bool| -> Result<usize, String> {
            let (link, used) = links.get_mut(&(lane.lane, number)).ok_or_else(|| format!("link {number} does not exist"))?;
            if link.sends != sends {
                return Err(format!("link {number} has the opposite direction"));
            }
            *used += 1;
            Ok(link.width as usize)
        };
        let (mut rows, mut cols) = (0, 0);
        for source in &stage.sources {
            cols += match source {
                Source::Link(number) => use_link(*number, false)?,
                Source::Input { sub_blocks, .. } => self.check_sub_blocks(sub_blocks)?,
                Source::Block { index, sub_blocks } => {
                    if !self.blocks.iter().any(|block| block.id.index == *index) {
                        return Err(format!("block {index} is read, but not named"));
                    }
                    self.check_sub_blocks(sub_blocks)?
                }
            };
        }
        for sink in &stage.sinks {
            rows += match sink {
                Sink::Link(number) => use_link(*number, true)?,
                Sink::Check { width: 0 } => return Err("a check has no rows".into()),
                Sink::Check { width } => *width as usize,
                Sink::Output { sub_blocks, .. } => self.check_sub_blocks(sub_blocks)?,
                Sink::Store { index, sub_blocks } | Sink::Patch { index, sub_blocks } => {
                    let named = if matches!(sink, Sink::Store { .. }) { &self.stores } else { &self.blocks };
                    if !named.iter().any(|block| block.id.index == *index) {
                        return Err(format!("block {index} is written, but not named"));
                    }
                    self.check_sub_blocks(sub_blocks)?
                }
            };
        }
        check_matrix(&stage.matrix, rows, cols)
    }

    /// Checks a list of sub-blocks, and returns its length.
    fn check_sub_blocks(&self, sub_blocks: &[u16]) -> Result<usize, String> {
        let mut seen = HashSet::new();
        let fits = |sub_block: &u16| u32::from(*sub_block) < self.layout.alpha;
        if sub_blocks.is_empty() || !sub_blocks.iter().all(|sub_block| fits(sub_block) && seen.insert(*sub_block)) {
            let alpha = self.layout.alpha;
            return Err(format!("sub-blocks {sub_blocks:?}: at least one, none twice, each less than {alpha}"));
        }
        Ok(sub_blocks.len())
    }
}
