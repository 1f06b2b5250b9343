//! A task as bytes: a version, then the task. Decoding bounds what a hostile blob can make its reader allocate.

use std::collections::HashMap;
use weft_plan::{Sink, Source, Task, TaskLane, TaskStage};
use weft_types::{Error, Result};

/// The largest encoded task, bytes. What is decoded from it takes a small multiple of that.
pub const TASK_BYTES_MAX: usize = 8 << 20;
/// The widest source or sink, sub-blocks: a dense matrix of a stage would still fit in memory.
pub const WIDTH_MAX: u32 = 1 << 16;

const VERSION: u8 = 3;

/// The task as bytes.
pub fn encode_task(task: &Task) -> Result<Vec<u8>> {
    let bytes =
        postcard::to_extend(task, vec![VERSION]).map_err(|error| Error::fatal(format!("a task cannot be encoded: {error}")))?;
    if bytes.len() > TASK_BYTES_MAX {
        return Err(Error::invalid(format!("a task of {} bytes is too large: at most {TASK_BYTES_MAX}", bytes.len())));
    }
    Ok(bytes)
}

/// The task that bytes hold. Its matrices have the dimensions that its sources and sinks say; whether it may run is for
/// others to say.
pub fn decode_task(bytes: &[u8]) -> Result<Task> {
    if bytes.len() > TASK_BYTES_MAX {
        return Err(Error::invalid(format!("a task of {} bytes is too large: at most {TASK_BYTES_MAX}", bytes.len())));
    }
    let task = match bytes.split_first() {
        Some((&VERSION, body)) => match postcard::take_from_bytes::<Task>(body) {
            Ok((task, [])) => task,
            Ok((_, rest)) => return Err(Error::invalid(format!("{} bytes follow the task", rest.len()))),
            Err(error) => return Err(Error::invalid(format!("not a task: {error}"))),
        },
        Some((version, _)) => {
            return Err(Error::invalid(format!("a task of version {version}: this side reads version {VERSION}")));
        }
        None => return Err(Error::invalid("not a task: no bytes")),
    };
    let widths = task.links.iter().map(|link| ((link.lane, link.link), u64::from(link.width))).collect();
    for lane in &task.lanes {
        for stage in &lane.stages {
            check_dimensions(&widths, lane, stage)?;
        }
    }
    Ok(task)
}

/// The widths of a task's links, by lane and number.
type Widths = HashMap<(u16, u16), u64>;

fn check_dimensions(widths: &Widths, lane: &TaskLane, stage: &TaskStage) -> Result<()> {
    let link_width = |link: u16| widths.get(&(lane.lane, link)).copied();
    let source_width = |source: &Source| match source {
        Source::Block { sub_blocks, .. } | Source::Input { sub_blocks, .. } => Some(sub_blocks.len() as u64),
        Source::Link(link) => link_width(*link),
    };
    let sink_width = |sink: &Sink| match sink {
        Sink::Store { sub_blocks, .. } | Sink::Patch { sub_blocks, .. } | Sink::Output { sub_blocks, .. } => {
            Some(sub_blocks.len() as u64)
        }
        Sink::Link(link) => link_width(*link),
        Sink::Check { width } => Some(u64::from(*width)),
    };
    let columns: Option<u64> = stage.sources.iter().map(source_width).sum();
    let rows: Option<u64> = stage.sinks.iter().map(sink_width).sum();
    let (place, matrix) = (format!("lane {}, stage {}", lane.lane, stage.stage), &stage.matrix);
    let (Some(columns), Some(rows)) = (columns, rows) else {
        return Err(Error::invalid(format!("{place}: a link that the task does not have")));
    };
    if columns.max(rows) > u64::from(WIDTH_MAX) {
        return Err(Error::invalid(format!("{place}: {rows} × {columns} sub-blocks: at most {WIDTH_MAX} each")));
    }
    if (matrix.rows() as u64, matrix.cols() as u64) != (rows, columns) {
        let found = format!("{} × {}", matrix.rows(), matrix.cols());
        return Err(Error::invalid(format!("{place}: its matrix is {found}; {rows} × {columns} is needed")));
    }
    Ok(())
}
