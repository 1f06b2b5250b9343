//! Repair pipelining's cyclic version (ECPipe §4.1): k−1 chains through the same k helpers, each rotated by one, take turns slice by
//! slice. Each ends at another helper, so that the requestor reads from k−1 of them at once: where what is slow is the way from each
//! helper to the requestor, that is k−1 times as much. On equal links it takes as long as the one chain: 1 + (k−1)/s.
//!
//! Chain i begins at helper i and ends at the one before it; the helper that no chain ends at is the last but one. With one helper or
//! two there is one chain.

use super::{Repair, RepairScheme, Walk, pipeline};
use crate::{LaneBuilder, Named};
use weft_types::Result;

/// See the module.
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
        // A requestor that helps has the end of every chain: only the others rotate.
        let (own, others): (Vec<_>, Vec<_>) =
            pipeline::chain(repair)?.into_iter().partition(|(helper, _)| repair.asks(helper.vertex).is_some());
        let chains = others.len().saturating_sub(1).max(1);
        let rotated = |by: usize| others.iter().cycle().skip(by).take(others.len()).chain(&own).cloned().collect();
        // For predictions, when what is due, in slices' times: all chains begin together, each hop takes one, and then they deliver one
        // after another. Where a helper has several slices ready, what is due first is predicted to go first, so that no delivery holds
        // up the next slices. When it runs, nothing is put in this order: lanes that take turns go in step at each party, which comes
        // close to it.
        let hops = (others.len() + own.len()).saturating_sub(1);
        let lane = |by: usize| {
            let mut lane = pipeline::lane(repair, rotated(by));
            lane.rank(|link| if link < hops { link as u32 } else { (hops + by) as u32 });
            lane
        };
        Ok((0..chains).map(lane).collect())
    }
}
