//! Direct write: the writer codes, and sends every block to the node that stores it.

use super::{Write, WriteScheme};
use crate::LaneBuilder;

/// See the module.
#[derive(Debug)]
pub(super) struct Direct;

impl WriteScheme for Direct {
    fn name(&self) -> &'static str {
        "direct"
    }

    fn summary(&self) -> &'static str {
        "the writer codes and sends every block to its node"
    }

    fn build(&self, write: &Write, lane: &mut LaneBuilder) {
        lane.deliver(write.writer, write.inputs.clone(), &write.rows, &write.receivers);
    }
}
