//! What a plan, a job or a task may be at most. A plan may come from a file that somebody wrote by hand, so that everything
//! that costs memory or time is counted before it is walked through.

use crate::{Job, Plan, Refusal, Rule, Sink, Source};
use weft_types::BLOCKS_MAX;

/// Lanes of a plan, at most.
pub const LANES_MAX: usize = 4096;
/// Stages of a plan, at most, over all lanes.
pub const STAGES_MAX: usize = 1 << 16;
/// Links of one lane, at most: they are numbered with 16 bits.
pub const LANE_LINKS_MAX: usize = 1 << 16;
/// Sub-blocks that one source, sink or link carries, at most.
pub const PORT_WIDTH_MAX: usize = u16::MAX as usize;
/// Sub-blocks of all sources, sinks, links and temporaries of a plan, at most; and of all wants of a job.
pub const PLAN_WIDTH_MAX: usize = 1 << 20;
/// Coefficients of a plan, at most, over all stages.
pub const TERMS_MAX: usize = 1 << 24;
/// Slices that may wait at each end of a link, at most.
pub const WINDOW_SLICES_MAX: u32 = 4096;
/// Parties of a plan, at most.
pub const PARTIES_MAX: usize = 4096;
/// Blocks that a plan reads, at most, and that it stores; and inputs of a job.
pub const BLOCKS_BOUND_MAX: usize = 4096;
/// Holds, changes, and wants of a job, at most, each. A block with holes is one hold for each part between them.
pub const JOB_ENTRIES_MAX: usize = 1 << 14;
/// Slices that are looked at one by one to see whether they tile what is wanted (lanes that share a span evenly need none).
pub const TILED_SLICES_MAX: u64 = 1 << 18;
/// Products of two elements in one proof, at most.
pub const PROOF_PRODUCTS_MAX: u64 = 1 << 35;
/// Bytes of the rows on the links of one lane in a proof, at most.
pub const PROOF_LANE_BYTES_MAX: u64 = 1 << 28;

/// Refuses a plan that is larger than any plan needs to be.
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

/// Refuses a binding that is larger than any needs to be.
pub(crate) fn check_binding(plan: &Plan) -> Result<(), Refusal> {
    at_most("lanes with positions", plan.binding.spans.len(), LANES_MAX)?;
    at_most("parties", plan.binding.parties.len(), PARTIES_MAX)?;
    at_most("counts of updates", plan.binding.seq.counts().len(), BLOCKS_MAX)?;
    at_most("blocks that are read", plan.binding.blocks.len(), BLOCKS_BOUND_MAX)?;
    at_most("blocks that are stored", plan.binding.stores.len(), BLOCKS_BOUND_MAX)
}

/// Sub-blocks that ports name themselves, and one for each port (links are counted where they are).
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

/// Refuses a job that is larger than any job needs to be.
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
