//! No repair: an available block is copied over one link, to a reader or a new home. It is the lower bound for every
//! repair, because nothing is faster than sending the block itself. Lost blocks are refused.

use super::{Repair, RepairScheme};
use crate::{LaneBuilder, Named};
use weft_types::{Error, Result};

/// The direct copy.
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
            "the scheme '{name}' only copies existing blocks: choose another scheme to rebuild lost ones"
        )))
    }
}
