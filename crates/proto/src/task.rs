//! The encoding of a task: a version, then the task. Decoding bounds the memory that a hostile input can make it
//! allocate.

use std::collections::HashMap;
use weft_plan::{Sink, Source, Task, TaskLane, TaskStage};
use weft_types::{Error, Result};

/// The most bytes of an encoded task. Decoding takes a small multiple of that.
pub const TASK_BYTES_MAX: usize = 8 << 20;
/// The most sub-blocks of a source or sink: a dense matrix of a stage would still fit in memory.
pub const WIDTH_MAX: u32 = 1 << 16;

const VERSION: u8 = 3;

/// Encodes a task.
pub fn encode_task(task: &Task) -> Result<Vec<u8>> {
    let bytes =
        postcard::to_extend(task, vec![VERSION]).map_err(|error| Error::fatal(format!("cannot encode the task: {error}")))?;
    if bytes.len() > TASK_BYTES_MAX {
        return Err(Error::invalid(format!("the task is too large: {} bytes, at most {TASK_BYTES_MAX}", bytes.len())));
    }
    Ok(bytes)
}

/// Decodes a task. Its matrices have the dimensions of its sources and sinks; whether the task may run is not checked
/// here.
pub fn decode_task(bytes: &[u8]) -> Result<Task> {
    if bytes.len() > TASK_BYTES_MAX {
        return Err(Error::invalid(format!("the task is too large: {} bytes, at most {TASK_BYTES_MAX}", bytes.len())));
    }
    let task = match bytes.split_first() {
        Some((&VERSION, body)) => match postcard::take_from_bytes::<Task>(body) {
            Ok((task, [])) => task,
            Ok((_, rest)) => return Err(Error::invalid(format!("{} extra bytes follow the task", rest.len()))),
            Err(error) => return Err(Error::invalid(format!("cannot decode the task: {error}"))),
        },
        Some((version, _)) => {
            return Err(Error::invalid(format!("the task has version {version}, but this side reads version {VERSION}")));
        }
        None => return Err(Error::invalid("the task is empty")),
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
        return Err(Error::invalid(format!("{place}: the task does not have this link")));
    };
    if columns.max(rows) > u64::from(WIDTH_MAX) {
        return Err(Error::invalid(format!("{place}: {rows} × {columns} sub-blocks are too many: at most {WIDTH_MAX} each")));
    }
    if (matrix.rows() as u64, matrix.cols() as u64) != (rows, columns) {
        let found = format!("{} × {}", matrix.rows(), matrix.cols());
        return Err(Error::invalid(format!("{place}: its matrix is {found} instead of {rows} × {columns}")));
    }
    Ok(())
}
