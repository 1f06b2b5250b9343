//! The cyclic version of repair pipelining (ECPipe, §4.1): k−1 chains through the same k helpers, each rotated by one,
//! take turns slice by slice. Each ends at another helper, so the requestor reads from k−1 of them in parallel. If the
//! links from helpers to the requestor are the bottleneck, the throughput is k−1 times as high. On equal links it takes
//! as long as a single chain: 1 + (k−1)/s.
//!
//! Chain i starts at helper i and ends at the one before it; no chain ends at the last helper but one. With one or two
//! helpers there is a single chain.

use super::{Repair, RepairScheme, Walk, pipeline};
use crate::{LaneBuilder, Named};
use weft_types::Result;

/// Cyclic repair pipelining.
#[derive(Debug)]
pub(crate) struct Cyclic;

impl Named for Cyclic {
    fn name(&self) -> &'static str {
        "cyclic"
    }

    fn summary(&self) -> &'static str {
        "chains that begin at another helper each take turns, so that the requestor reads from nearly all of them"
    }
}

impl RepairScheme for Cyclic {
    fn walk(&self) -> Walk {
        Walk::Cycle
    }

    fn build(&self, repair: &Repair) -> Result<Vec<LaneBuilder>> {
        // A requestor that helps is the end of every chain: only the others rotate.
        let (own, others): (Vec<_>, Vec<_>) =
            pipeline::chain(repair)?.into_iter().partition(|(helper, _)| repair.asks(helper.vertex).is_some());
        let chains = others.len().saturating_sub(1).max(1);
        let rotated = |by: usize| others.iter().cycle().skip(by).take(others.len()).chain(&own).cloned().collect();
        // Ranks for predictions: the time at which a link is due, in slice times. All chains start together, each hop
        // takes one slice time, and then they deliver one after another. If a helper has several slices ready, the
        // prediction sends the earliest first, so that no delivery delays the next slices. Execution does not follow
        // ranks: lanes that take turns keep in step at each party, which comes close to this order.
        let hops = (others.len() + own.len()).saturating_sub(1);
        let lane = |by: usize| {
            let mut lane = pipeline::lane(repair, rotated(by));
            lane.rank(|link| if link < hops { link as u32 } else { (hops + by) as u32 });
            lane
        };
        Ok((0..chains).map(lane).collect())
    }
}
