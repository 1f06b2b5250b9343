//! No repair at all: a block that is there is copied over one link. What every repair is measured against, as nothing can be quicker
//! than to send the block itself. A block that is lost is refused.

use super::{Repair, RepairScheme};
use crate::LaneBuilder;
use weft_types::{Error, Result};

/// See the module.
#[derive(Debug)]
pub(super) struct Direct;

impl RepairScheme for Direct {
    fn name(&self) -> &'static str {
        super::DIRECT
    }

    fn summary(&self) -> &'static str {
        "a block that is not lost is copied, to compare with"
    }

    fn build(&self, _: &Repair) -> Result<Vec<LaneBuilder>> {
        Err(Error::invalid("the scheme 'direct' copies blocks that are there; what is lost must be rebuilt by another scheme"))
    }
}
