//! The cost of a plan for each party, independent of the network.

use crate::{Lane, Plan, Refusal, Rule, Sink, Source, executor::check_lane, limits};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap, HashSet};
use weft_types::{Layout, Party};

/// The cost of a plan.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Cost {
    /// Each party's share, ordered by party.
    pub parties: Vec<PartyCost>,
    /// The most consecutive links on any path.
    pub hops: u32,
}

/// The cost of a plan for one party.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartyCost {
    /// The party.
    pub party: Party,
    /// Bytes sent.
    pub up_bytes: u64,
    /// Bytes received.
    pub down_bytes: u64,
    /// Bytes read from blocks (a patch reads what it changes).
    pub read_bytes: u64,
    /// Bytes written to blocks.
    pub written_bytes: u64,
    /// Products of a byte and a coefficient that are added up. Equal rows count once, and copies count nothing.
    pub products: u64,
}

impl Cost {
    /// Bytes over the network.
    pub fn moved_bytes(&self) -> u64 {
        self.sum(|party| party.up_bytes)
    }

    /// Bytes read from blocks.
    pub fn read_bytes(&self) -> u64 {
        self.sum(|party| party.read_bytes)
    }

    /// Bytes written to blocks.
    pub fn written_bytes(&self) -> u64 {
        self.sum(|party| party.written_bytes)
    }

    /// One party's share, if it has one.
    pub fn of(&self, party: Party) -> Option<&PartyCost> {
        self.parties.iter().find(|share| share.party == party)
    }

    fn sum(&self, of: impl Fn(&PartyCost) -> u64) -> u64 {
        self.parties.iter().map(of).fold(0, u64::saturating_add)
    }
}

impl PartyCost {
    /// Bytes read from blocks and written to them.
    pub const fn disk_bytes(&self) -> u64 {
        self.read_bytes.saturating_add(self.written_bytes)
    }

    fn new(party: Party) -> Self {
        Self { party, up_bytes: 0, down_bytes: 0, read_bytes: 0, written_bytes: 0, products: 0 }
    }
}

/// The cost of a plan. The plan need not be verified, but its lanes must be runnable.
pub fn cost(plan: &Plan) -> Result<Cost, Refusal> {
    check(plan)?;
    let mut shares: BTreeMap<Party, PartyCost> = BTreeMap::new();
    let blocks = lens(&plan.binding.blocks);
    let stores = lens(&plan.binding.stores);
    let mut hops = 0;
    for (number, lane) in plan.shape.lanes.iter().enumerate() {
        hops = hops.max(lane_hops(lane, &check_lane(plan, number)?));
        let slices = plan.slice_set(number);
        let positions = slices.positions();
        // The bytes of some sub-blocks of a block, up to the block's length.
        let bytes = |len: Option<&u64>, sub_blocks: &[u16]| {
            let (layout, len) = (&plan.binding.layout, len.copied().unwrap_or(plan.binding.layout.block_len));
            let of = |sub_block: &u16| slices.positions_below(positions_before(layout, *sub_block, len));
            sub_blocks.iter().map(of).fold(0, u64::saturating_add)
        };
        for stage in &lane.stages {
            let party = plan.binding.parties[usize::from(stage.vertex)];
            let share = shares.entry(party).or_insert_with(|| PartyCost::new(party));
            for source in &stage.sources {
                match source {
                    Source::Block { index, sub_blocks } => {
                        share.read_bytes += bytes(blocks.get(&(stage.vertex, *index)), sub_blocks);
                    }
                    Source::Link(_) => share.down_bytes += positions * lane.source_width(source) as u64,
                    Source::Input { .. } => {}
                }
            }
            for sink in &stage.sinks {
                match sink {
                    Sink::Store { index, sub_blocks } => {
                        share.written_bytes += bytes(stores.get(&(stage.vertex, *index)), sub_blocks);
                    }
                    Sink::Patch { index, sub_blocks } => {
                        let patched = bytes(blocks.get(&(stage.vertex, *index)), sub_blocks);
                        share.read_bytes += patched;
                        share.written_bytes += patched;
                    }
                    Sink::Link(_) => share.up_bytes += positions * lane.sink_width(sink) as u64,
                    Sink::Output { .. } | Sink::Check { .. } => {}
                }
            }
            share.products = share.products.saturating_add(positions.saturating_mul(products(stage.matrix.steps())));
        }
    }
    Ok(Cost { parties: shares.into_values().collect(), hops })
}

/// The bytes that a plan moves from each party to each other one. Its lanes must be runnable.
pub fn transfers(plan: &Plan) -> Result<BTreeMap<(Party, Party), u64>, Refusal> {
    check(plan)?;
    let mut transfers = BTreeMap::new();
    for (number, lane) in plan.shape.lanes.iter().enumerate() {
        let positions = plan.slice_set(number).positions();
        let party = |stage: u16| plan.binding.parties[usize::from(lane.stages[usize::from(stage)].vertex)];
        for sink in lane.stages.iter().flat_map(|stage| &stage.sinks) {
            if let Sink::Link(link) = sink {
                let link = &lane.links[usize::from(*link)];
                *transfers.entry((party(link.from), party(link.to))).or_default() += positions * lane.sink_width(sink) as u64;
            }
        }
    }
    Ok(transfers)
}

/// Checks the assumptions of all calculations: sizes, layout, runnable lanes, and a party for each vertex.
pub(crate) fn check(plan: &Plan) -> Result<(), Refusal> {
    limits::check_plan(plan)?;
    let Layout { block_len, cell_len, alpha } = plan.binding.layout;
    Layout::new(block_len, cell_len, alpha).map_err(|error| Refusal::new(Rule::Binding, error.message))?;
    for (number, lane) in plan.shape.lanes.iter().enumerate() {
        check_lane(plan, number)?;
        if plan.span(number).end > plan.binding.layout.positions() {
            return Err(Refusal::new(Rule::Lane, format!("lane {number} extends beyond the block")));
        }
        if lane.stages.iter().any(|stage| usize::from(stage.vertex) >= plan.binding.parties.len()) {
            return Err(Refusal::new(Rule::Binding, format!("lane {number} has a vertex without a party")));
        }
    }
    Ok(())
}

fn lens(blocks: &[crate::BoundBlock]) -> HashMap<(u16, u8), u64> {
    blocks.iter().map(|block| ((block.vertex, block.id.index), block.len)).collect()
}

/// The number of a sub-block's positions within the block's first `len` bytes.
fn positions_before(layout: &Layout, sub_block: u16, len: u64) -> u64 {
    let (cells, rest) = (len / layout.cell_len, len % layout.cell_len);
    let within = rest.saturating_sub(u64::from(sub_block) * layout.sub_len()).min(layout.sub_len());
    cells * layout.sub_len() + within
}

/// Products for each position: of distinct rows, except rows that only copy.
fn products(matrix: &weft_gf::SparseMatrix) -> u64 {
    let rows: HashSet<Vec<(u32, u8)>> = matrix
        .terms()
        .chunk_by(|a, b| a.0 == b.0)
        .map(|row| row.iter().map(|(_, column, coefficient)| (*column, *coefficient)).collect())
        .collect();
    let copies = |row: &&Vec<(u32, u8)>| !matches!(row.as_slice(), [(_, 1)]);
    rows.iter().filter(copies).map(|row| row.len() as u64).sum()
}

fn lane_hops(lane: &Lane, order: &[usize]) -> u32 {
    let mut depth = vec![0u32; lane.stages.len()];
    for stage in order {
        for sink in &lane.stages[*stage].sinks {
            if let Sink::Link(link) = sink {
                let to = usize::from(lane.links[usize::from(*link)].to);
                depth[to] = depth[to].max(depth[*stage] + 1);
            }
        }
    }
    depth.into_iter().max().unwrap_or(0)
}
