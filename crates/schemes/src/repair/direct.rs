//! No repair at all: a block that is there is copied over one link, to a reader or to a new home. What every repair is measured
//! against, as nothing can be quicker than to send the block itself. A block that is lost is refused.

use super::{Repair, RepairScheme};
use crate::{LaneBuilder, Named};
use weft_types::{Error, Result};

/// See the module.
#[derive(Debug)]
pub(crate) struct Direct;

impl Named for Direct {
    fn name(&self) -> &'static str {
        "direct"
    }

    fn summary(&self) -> &'static str {
        "a block that is not lost is copied"
    }
}

impl RepairScheme for Direct {
    fn rebuilds(&self) -> bool {
        false
    }

    fn build(&self, _: &Repair) -> Result<Vec<LaneBuilder>> {
        let name = self.name();
        Err(Error::invalid(format!(
            "the scheme '{name}' copies blocks that are there; what is lost must be rebuilt by another scheme"
        )))
    }
}
