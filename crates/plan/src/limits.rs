//! Limits on plans, jobs and tasks. A plan may come from a hand-written file, so everything that costs memory or time
//! is counted before it is processed.

use crate::{Job, Plan, Refusal, Rule, Sink, Source};
use weft_types::BLOCKS_MAX;

/// The most lanes of a plan.
pub const LANES_MAX: usize = 4096;
/// The most stages of a plan, over all lanes.
pub const STAGES_MAX: usize = 1 << 16;
/// The most links of a lane, which are numbered with 16 bits.
pub const LANE_LINKS_MAX: usize = 1 << 16;
/// The most sub-blocks of a source, sink or link.
pub const PORT_WIDTH_MAX: usize = u16::MAX as usize;
/// The most sub-blocks of all sources, sinks, links and temporaries of a plan, and of all wants of a job.
pub const PLAN_WIDTH_MAX: usize = 1 << 20;
/// The most coefficients of a plan, over all stages.
pub const TERMS_MAX: usize = 1 << 24;
/// The most slices that may wait at each end of a link.
pub const WINDOW_SLICES_MAX: u32 = 4096;
/// The most parties of a plan.
pub const PARTIES_MAX: usize = 4096;
/// The most blocks that a plan reads, and that it stores; also the most inputs of a job.
pub const BLOCKS_BOUND_MAX: usize = 4096;
/// The most holds, changes and wants of a job, each. A block with holes has one hold for each part between them.
pub const JOB_ENTRIES_MAX: usize = 1 << 14;
/// The most slices that are checked one by one for tiling (lanes that share a span evenly need no such check).
pub const TILED_SLICES_MAX: u64 = 1 << 18;
/// The most products of two elements in one verification.
pub const PROOF_PRODUCTS_MAX: u64 = 1 << 35;
/// The most bytes of the rows on the links of one lane in a verification.
pub const PROOF_LANE_BYTES_MAX: u64 = 1 << 28;

/// Refuses a plan that exceeds the limits.
pub(crate) fn check_plan(plan: &Plan) -> Result<(), Refusal> {
    let lanes = &plan.shape.lanes;
    at_most("lanes", lanes.len(), LANES_MAX)?;
    at_most("stages", lanes.iter().map(|lane| lane.stages.len()).sum(), STAGES_MAX)?;
    check_binding(plan)?;
    let (mut width, mut terms) = (0usize, 0usize);
    for lane in lanes {
        at_most("links of a lane", lane.links.len(), LANE_LINKS_MAX)?;
        width = width.saturating_add(lane.links.iter().map(|link| link.width as usize).fold(0, usize::saturating_add));
        for stage in &lane.stages {
            width = width.saturating_add(ports_width(&stage.sources, &stage.sinks)).saturating_add(stage.matrix.temporaries());
            terms = terms.saturating_add(stage.matrix.steps().terms().len());
        }
    }
    at_most("sub-blocks on its ports and links, and temporaries", width, PLAN_WIDTH_MAX)?;
    at_most("coefficients", terms, TERMS_MAX)
}

/// Refuses a binding that exceeds the limits.
pub(crate) fn check_binding(plan: &Plan) -> Result<(), Refusal> {
    at_most("lanes with positions", plan.binding.spans.len(), LANES_MAX)?;
    at_most("parties", plan.binding.parties.len(), PARTIES_MAX)?;
    at_most("counts of updates", plan.binding.seq.counts().len(), BLOCKS_MAX)?;
    at_most("blocks that are read", plan.binding.blocks.len(), BLOCKS_BOUND_MAX)?;
    at_most("blocks that are stored", plan.binding.stores.len(), BLOCKS_BOUND_MAX)
}

/// The sub-blocks that ports name, and one for each port (links are counted elsewhere).
pub(crate) fn ports_width(sources: &[Source], sinks: &[Sink]) -> usize {
    let ins = sources.iter().map(|source| match source {
        Source::Block { sub_blocks, .. } | Source::Input { sub_blocks, .. } => sub_blocks.len(),
        Source::Link(_) => 1,
    });
    let outs = sinks.iter().map(|sink| match sink {
        Sink::Store { sub_blocks, .. } | Sink::Patch { sub_blocks, .. } | Sink::Output { sub_blocks, .. } => sub_blocks.len(),
        Sink::Check { width } => *width as usize,
        Sink::Link(_) => 1,
    });
    ins.chain(outs).map(|width| width.max(1)).fold(0, usize::saturating_add)
}

/// Refuses a job that exceeds the limits.
pub(crate) fn check_job(job: &Job) -> Result<(), Refusal> {
    at_most("holds", job.holds.len(), JOB_ENTRIES_MAX)?;
    at_most("inputs", job.inputs.len(), BLOCKS_BOUND_MAX)?;
    at_most("changes", job.changed.len(), JOB_ENTRIES_MAX)?;
    at_most("wants", job.wants.len(), JOB_ENTRIES_MAX)?;
    let wanted = job.wants.iter().map(|want| want.sub_blocks.len()).fold(0, usize::saturating_add);
    at_most("wanted sub-blocks", wanted, PLAN_WIDTH_MAX)
}

pub(crate) fn at_most(what: &str, count: usize, max: usize) -> Result<(), Refusal> {
    if count <= max {
        return Ok(());
    }
    Err(Refusal::new(Rule::Limits, format!("{count} {what}; at most {max} are allowed")))
}
