//! One party's share of a plan: all that an agent (or a client) is sent.

use crate::{Class, Plan, Precedence, Refusal, Rule, Sink, SliceSet, Source};
use serde::{Deserialize, Serialize};
use weft_gf::Factored;
use weft_types::{BlockId, Layout, Party, PlanId, Seq, Span};

mod check;

pub use check::cell_bytes;

/// One party's share of a plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Task {
    /// The plan.
    pub plan: PlanId,
    /// The epoch of the coordinator that made it.
    pub epoch: u64,
    /// The purpose of the plan: agents give precedence to foreground tasks.
    pub class: Class,
    /// The priority within the class; lower numbers go first.
    pub priority: u8,
    /// The party.
    pub party: Party,
    /// The layout of the stripe's blocks.
    pub layout: Layout,
    /// The updates that the stripe, as it is read, contains.
    pub seq: Seq,
    /// Positions in a slice.
    pub slice_len: u64,
    /// The lanes in which the party has a stage.
    pub lanes: Vec<TaskLane>,
    /// The blocks that it reads.
    pub blocks: Vec<TaskBlock>,
    /// The blocks that it stores.
    pub stores: Vec<TaskBlock>,
    /// The links that begin or end at it.
    pub links: Vec<TaskLink>,
}

/// A block of a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskBlock {
    /// The block, in its generation.
    pub id: BlockId,
    /// Its length on disk.
    pub len: u64,
}

/// The party's stages of one lane.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskLane {
    /// The lane's number in the plan.
    pub lane: u16,
    /// As in [`crate::Binding`].
    pub span: Span,
    /// As in [`crate::Lane`].
    pub first: u32,
    /// As in [`crate::Lane`].
    pub step: u32,
    /// As in [`crate::Lane`].
    pub window: u32,
    /// Its stages.
    pub stages: Vec<TaskStage>,
}

/// A stage of a task. Links in sources and sinks are numbered as in the plan's lane.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskStage {
    /// The stage's number in the lane.
    pub stage: u16,
    /// The inputs.
    pub sources: Vec<Source>,
    /// `sinks = matrix × sources`.
    pub matrix: Factored,
    /// The outputs.
    pub sinks: Vec<Sink>,
}

/// One end of a link.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskLink {
    /// The lane's number in the plan.
    pub lane: u16,
    /// The link's number in the lane.
    pub link: u16,
    /// The number of sub-blocks that it carries.
    pub width: u32,
    /// The party at the other end.
    pub peer: Party,
    /// Whether this party sends.
    pub sends: bool,
}

impl Task {
    /// The task's precedence at its agent.
    pub fn precedence(&self) -> Precedence {
        Precedence { class: self.class, priority: self.priority }
    }
}

impl TaskLink {
    /// The link's number in the plan, as in frames: lane in the upper half.
    pub fn id(&self) -> u32 {
        link_id(self.lane, self.link)
    }
}

/// The number of a link in its plan: lane in the upper half.
pub fn link_id(lane: u16, link: u16) -> u32 {
    u32::from(lane) << 16 | u32::from(link)
}

impl TaskLane {
    /// The positions of this lane's slices, in order.
    pub fn slices(&self, slice_len: u64) -> crate::Slices {
        crate::Slices::new(self.span, self.first, self.step, slice_len)
    }

    /// The lane's slices, for calculations.
    pub fn slice_set(&self, slice_len: u64) -> SliceSet {
        SliceSet { span: self.span, first: self.first, step: self.step, slice_len }
    }
}

/// Refuses a plan that agents could only run in another way than it says: tasks do not contain whose turn it is to send.
pub fn check_for_agents(plan: &Plan) -> Result<(), Refusal> {
    if plan.shape.in_turn {
        return Err(Refusal::new(Rule::Turns, "agents send over all their links at the same time, and not in turn"));
    }
    Ok(())
}

/// Cuts out the share of the party at `vertex`, which may be empty.
///
/// # Panics
/// If the plan has not been verified, or has no such vertex.
pub fn cut(plan: &Plan, vertex: u16) -> Task {
    let binding = &plan.binding;
    let mut lanes = Vec::new();
    let mut links = Vec::new();
    for (number, lane) in plan.shape.lanes.iter().enumerate() {
        let mine = |stage: u16| lane.stages[usize::from(stage)].vertex == vertex;
        let stages: Vec<TaskStage> = (lane.stages.iter().enumerate())
            .filter(|(_, stage)| stage.vertex == vertex)
            .map(|(at, stage)| TaskStage {
                stage: at as u16,
                sources: stage.sources.clone(),
                matrix: stage.matrix.clone(),
                sinks: stage.sinks.clone(),
            })
            .collect();
        for (at, link) in lane.links.iter().enumerate() {
            for (end, other, sends) in [(link.from, link.to, true), (link.to, link.from, false)] {
                if mine(end) {
                    let peer = binding.parties[usize::from(lane.stages[usize::from(other)].vertex)];
                    links.push(TaskLink { lane: number as u16, link: at as u16, width: link.width, peer, sends });
                }
            }
        }
        if !stages.is_empty() {
            let (span, first, step, window) = (plan.span(number), lane.first, lane.step, lane.window);
            lanes.push(TaskLane { lane: number as u16, span, first, step, window, stages });
        }
    }
    let mine = |blocks: &[crate::BoundBlock]| {
        blocks.iter().filter(|block| block.vertex == vertex).map(|block| TaskBlock { id: block.id, len: block.len }).collect()
    };
    Task {
        plan: plan.id,
        epoch: plan.epoch,
        class: plan.class,
        priority: plan.priority,
        party: binding.parties[usize::from(vertex)],
        layout: binding.layout,
        seq: binding.seq.clone(),
        slice_len: binding.slice_len,
        lanes,
        blocks: mine(&binding.blocks),
        stores: mine(&binding.stores),
        links,
    }
}
