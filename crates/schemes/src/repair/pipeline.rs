//! Repair pipelining (ECPipe: R. Li, X. Li, P. P. C. Lee and Q. Huang, *Repair Pipelining for Erasure-Coded Storage*,
//! USENIX ATC 2017, §3.2). The helpers form a chain; each adds its share to the sum that it receives and sends it on,
//! slice by slice. No link carries more than the length of the wanted blocks. So with many slices a repair takes about
//! as long as a plain read: 1 + (k−1)/s times as long with s slices.
//!
//! The paper repairs one block of a stripe. Here the chain carries one sum for each lost sub-block, and its last helper
//! sends every requestor its own.

use super::{Helper, Repair, RepairScheme, Walk};
use crate::{LaneBuilder, Named};
use weft_gf::SparseMatrix;
use weft_plan::{Sink, Source};
use weft_types::Result;

/// Repair pipelining.
#[derive(Debug)]
pub(crate) struct Pipeline;

impl Named for Pipeline {
    fn name(&self) -> &'static str {
        "pipeline"
    }

    fn summary(&self) -> &'static str {
        "partial sums pass along a chain of the helpers, slice by slice"
    }
}

impl RepairScheme for Pipeline {
    fn walk(&self) -> Walk {
        Walk::Chain
    }

    fn build(&self, repair: &Repair) -> Result<Vec<LaneBuilder>> {
        Ok(vec![lane(repair, chain(repair)?)])
    }
}

/// A helper, and its part of the sum.
pub(crate) type Share<'a> = (&'a Helper, SparseMatrix);

/// The helpers in the order of their chain. Requestors that help come last, the first of them at the very end, where it
/// needs no link.
pub(crate) fn chain(repair: &Repair) -> Result<Vec<Share<'_>>> {
    let mut chain: Vec<_> = repair.helpers.iter().zip(repair.shares()?).collect();
    chain.sort_by_key(|(helper, _)| repair.asks(helper.vertex).map_or(0, |at| repair.requestors.len() - at));
    Ok(chain)
}

/// The lane of a chain through these helpers to the requestors.
pub(crate) fn lane(repair: &Repair, chain: Vec<Share<'_>>) -> LaneBuilder {
    let mut lane = LaneBuilder::default();
    let mut before: Option<u16> = None;
    let last = chain.len().saturating_sub(1);
    for (at, (helper, mut sum)) in chain.into_iter().enumerate() {
        let mut sources = helper.sources.clone();
        if let Some(link) = before {
            sources.insert(0, Source::Link(link));
            sum = SparseMatrix::identity(repair.rows).beside(&sum);
        }
        if at == last {
            lane.deliver(helper.vertex, sources, &sum.into(), &repair.requestors);
        } else {
            let link = lane.link(repair.rows);
            lane.stage(helper.vertex, sources, sum, vec![Sink::Link(link)]);
            before = Some(link);
        }
    }
    lane
}
