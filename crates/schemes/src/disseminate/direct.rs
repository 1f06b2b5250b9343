//! Direct write: the writer codes, and sends every block to the node that stores it.

use super::{Write, WriteScheme};
use crate::LaneBuilder;
use weft_types::Result;

/// See the module.
#[derive(Debug)]
pub(super) struct Direct;

impl WriteScheme for Direct {
    fn name(&self) -> &'static str {
        super::DIRECT
    }

    fn summary(&self) -> &'static str {
        "the writer codes and sends every block to its node"
    }

    fn build(&self, write: &Write<'_>, lane: &mut LaneBuilder) -> Result<()> {
        let (inputs, sum) = write.encoded(&(0..write.wanted.len()).collect::<Vec<_>>())?;
        let requestors: Vec<_> = write.homes.iter().map(|home| home.requestor.clone()).collect();
        lane.deliver(write.writer, inputs, &sum, &requestors);
        Ok(())
    }
}
