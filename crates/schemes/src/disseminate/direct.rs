//! Direct write: the writer codes, and sends every block to its node.

use super::{Write, WriteScheme};
use crate::{LaneBuilder, Named};
use weft_types::Result;

/// The direct write.
#[derive(Debug)]
pub(crate) struct Direct;

impl Named for Direct {
    fn name(&self) -> &'static str {
        "direct"
    }

    fn summary(&self) -> &'static str {
        "the writer codes and sends every block to its node"
    }
}

impl WriteScheme for Direct {
    fn build(&self, write: &Write<'_>, lane: &mut LaneBuilder) -> Result<()> {
        let (inputs, sum) = write.encoded(&(0..write.wanted.len()).collect::<Vec<_>>())?;
        let requestors: Vec<_> = write.homes.iter().map(|home| home.requestor.clone()).collect();
        lane.deliver(write.writer, inputs, &sum, &requestors);
        Ok(())
    }
}
