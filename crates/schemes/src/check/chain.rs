//! A pipelined check: the stripe's nodes form a chain, and each adds its block's part of the parity check to the sum
//! that it receives. No link carries more than the rows of the check: one block length in a routine check. The last
//! node checks that the sum is zero.

use super::CheckScheme;
use crate::{
    LaneBuilder, Named,
    repair::{Repair, pipeline},
};
use weft_types::Result;

/// The pipelined check.
#[derive(Debug)]
pub(crate) struct Chain;

impl Named for Chain {
    fn name(&self) -> &'static str {
        "chain"
    }

    fn summary(&self) -> &'static str {
        "partial sums of the parity check pass along a chain of all blocks, slice by slice"
    }
}

impl CheckScheme for Chain {
    fn build(&self, check: &Repair) -> Result<Vec<LaneBuilder>> {
        Ok(vec![pipeline::lane(check, pipeline::chain(check)?)])
    }
}
