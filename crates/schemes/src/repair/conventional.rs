//! Conventional repair: every helper sends what it has to the requestor, which combines. One hop; the requestor receives k
//! blocks, and its link is the bottleneck. With several requestors the first one computes for all and passes on.

use super::{Repair, RepairScheme};
use crate::LaneBuilder;
use weft_gf::Matrix;
use weft_plan::{Sink, Source};

/// See the module.
#[derive(Debug)]
pub(super) struct Conventional;

impl RepairScheme for Conventional {
    fn name(&self) -> &'static str {
        "conventional"
    }

    fn summary(&self) -> &'static str {
        "every helper sends its block to the requestor, which combines them"
    }

    fn build(&self, repair: &Repair, lane: &mut LaneBuilder) {
        let hub = repair.requestors[0].vertex;
        let (mut sources, mut sum) = (Vec::new(), Matrix::zero(repair.rows, 0));
        for helper in &repair.helpers {
            if helper.vertex == hub {
                sources.extend(helper.sources.iter().cloned());
                sum = sum.beside(&helper.share());
            } else {
                let link = lane.link(helper.compute.rows());
                lane.stage(helper.vertex, helper.sources.clone(), &helper.compute, vec![Sink::Link(link)]);
                sources.push(Source::Link(link));
                sum = sum.beside(&helper.weights);
            }
        }
        lane.deliver(hub, sources, &sum, &repair.requestors);
    }

    fn sends_plain_blocks(&self) -> bool {
        true
    }
}
