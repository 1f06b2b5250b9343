//! A pipelined check: the stripe's nodes stand in a chain, and each adds what its block gives to the parity check to the sum that it
//! receives. No link carries more than the parities are long, and nobody receives whole blocks; the last one looks whether it is zero.

use super::CheckScheme;
use crate::{
    LaneBuilder, Named,
    repair::{Repair, pipeline},
};
use weft_types::Result;

/// See the module.
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
