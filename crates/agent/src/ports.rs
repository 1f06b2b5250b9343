//! A task's sources and sinks: blocks on the node's disks, and links.

use crate::{DiskMode, block_source::OpenBlock, link::Unconnected, store_sink::Target, throttle::Throttles};
use async_trait::async_trait;
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};
use weft_engine::{Ports, SliceSink, SliceSource};
use weft_plan::{Precedence, Sink, Source, TaskLane, TaskStage, link_id};
use weft_types::{Error, Result};

/// The resources with which a task was opened.
pub(crate) struct TaskPorts {
    pub(crate) slice_len: u64,
    pub(crate) disk_mode: DiskMode,
    /// The blocks to read, by index.
    pub(crate) blocks: BTreeMap<u8, OpenBlock>,
    /// The blocks to store, by index.
    pub(crate) targets: BTreeMap<u8, Arc<Target>>,
    /// The link ends that no stage has taken yet, by the links' numbers in the plan.
    pub(crate) links: Mutex<BTreeMap<u32, Unconnected>>,
    pub(crate) throttles: Throttles,
    pub(crate) of: Precedence,
}

impl TaskPorts {
    fn link(&self, lane: &TaskLane, link: u16) -> Result<Unconnected> {
        let taken = self.links.lock().unwrap_or_else(PoisonError::into_inner).remove(&link_id(lane.lane, link));
        taken.ok_or_else(|| Error::invalid("the task does not have this link, or has used it already"))
    }
}

#[async_trait]
impl Ports for TaskPorts {
    async fn source(&self, lane: &TaskLane, stage: &TaskStage, source: &Source) -> Result<Box<dyn SliceSource>> {
        let slices = lane.slices(self.slice_len);
        let (port, from_disk) = match source {
            Source::Block { index, sub_blocks } => {
                let block =
                    self.blocks.get(index).ok_or_else(|| Error::invalid(format!("the request does not name block {index}")))?;
                (block.clone().source(sub_blocks, slices, self.slice_len, lane.window as usize, self.disk_mode), true)
            }
            Source::Link(link) => (self.link(lane, *link)?.source(slices), false),
            Source::Input { .. } => return Err(Error::invalid("an agent has no new data as an input: only a client has")),
        };
        Ok(self.throttles.source(port, self.of, from_disk, combines(stage)))
    }

    async fn sink(&self, lane: &TaskLane, _: &TaskStage, sink: &Sink) -> Result<Box<dyn SliceSink>> {
        match sink {
            Sink::Store { index, sub_blocks } => {
                let target =
                    self.targets.get(index).ok_or_else(|| Error::invalid(format!("the request does not name block {index}")))?;
                Ok(self.throttles.disk_sink(target.sink(sub_blocks, lane.window as usize, self.disk_mode), self.of))
            }
            Sink::Link(link) => Ok(self.link(lane, *link)?.sink()),
            Sink::Patch { .. } => Err(Error::invalid("this version of the agent changes blocks in place without plans")),
            Sink::Output { .. } => Err(Error::invalid("an agent cannot deliver to a reader: only a client can")),
            Sink::Check { .. } => Err(Error::fatal("a check was passed to the agent instead of the engine")),
        }
    }
}

/// Whether a stage computes anything, or only forwards its input.
fn combines(stage: &TaskStage) -> bool {
    let passes_on = |row| matches!(stage.matrix.row(row), [(_, column, 1)] if (*column as usize) < stage.matrix.cols());
    !(0..stage.matrix.rows()).all(passes_on)
}
