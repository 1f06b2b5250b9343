//! Conventional repair: every helper sends its blocks to the requestor, which combines them. One hop; the requestor
//! receives k blocks, and its link is the bottleneck. With several requestors the first one computes for all and
//! forwards the results.

use super::{Repair, RepairScheme, Walk};
use crate::{LaneBuilder, Named};
use weft_codes::Recipe;
use weft_gf::SparseMatrix;
use weft_plan::{Sink, Source};
use weft_types::Result;

/// Conventional repair.
#[derive(Debug)]
pub(crate) struct Conventional;

impl Named for Conventional {
    fn name(&self) -> &'static str {
        "conventional"
    }

    fn summary(&self) -> &'static str {
        "every helper sends its block to the requestor, which combines them"
    }
}

impl RepairScheme for Conventional {
    fn walk(&self) -> Walk {
        Walk::Hub
    }

    fn build(&self, repair: &Repair) -> Result<Vec<LaneBuilder>> {
        let mut lane = LaneBuilder::default();
        let hub = repair.requestors[0].vertex;
        // The hub reads its own blocks in place: one column for each sub-block that it receives or reads.
        let (mut sources, mut given) = (Vec::new(), SparseMatrix::zero(0, 0));
        for helper in &repair.helpers {
            if helper.vertex == hub {
                sources.extend(helper.sources.iter().cloned());
                given = super::diagonal(&given, &helper.compute);
            } else {
                let link = lane.link(helper.compute.rows());
                lane.stage(helper.vertex, helper.sources.clone(), helper.compute.clone(), vec![Sink::Link(link)]);
                sources.push(Source::Link(link));
                given = super::diagonal(&given, &SparseMatrix::identity(helper.compute.rows()));
            }
        }
        lane.deliver(hub, sources, &repair.combine.of(&given), &repair.requestors);
        Ok(vec![lane])
    }

    /// The bytes sent are the cost: the code's first recipe sends least.
    fn choose<'a>(&self, recipes: &'a [Recipe]) -> Option<&'a Recipe> {
        recipes.first()
    }

    fn sends_plain_blocks(&self) -> bool {
        true
    }
}
