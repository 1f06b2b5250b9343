//! Partial parallel repair (Mitra et al., *Partial-parallel-repair*, EuroSys 2016): in each round the helpers and the
//! requestor form pairs, and one of each pair sends its partial sum to the other, which stays. The requestor always
//! stays. With k helpers it has the whole sum after ⌈log2(k+1)⌉ rounds, and receives at most one block in each round
//! instead of k.

use super::{Repair, RepairScheme, Walk};
use crate::{LaneBuilder, Named};
use weft_gf::SparseMatrix;
use weft_plan::{Sink, Source};
use weft_types::Result;

/// Partial parallel repair.
#[derive(Debug)]
pub(crate) struct Ppr;

/// A vertex with its partial sum so far.
struct Partial {
    vertex: u16,
    sources: Vec<Source>,
    sum: SparseMatrix,
}

impl Named for Ppr {
    fn name(&self) -> &'static str {
        "ppr"
    }

    fn summary(&self) -> &'static str {
        "partial sums meet in a binary tree with the requestor at its root"
    }
}

impl RepairScheme for Ppr {
    fn walk(&self) -> Walk {
        Walk::Tree
    }

    fn build(&self, repair: &Repair) -> Result<Vec<LaneBuilder>> {
        let mut lane = LaneBuilder::default();
        let hub = repair.requestors[0].vertex;
        let mut root = Partial { vertex: hub, sources: Vec::new(), sum: SparseMatrix::zero(repair.rows, 0) };
        let mut round: Vec<Partial> = Vec::with_capacity(repair.helpers.len());
        for (helper, sum) in repair.helpers.iter().zip(repair.shares()?) {
            let partial = Partial { vertex: helper.vertex, sources: helper.sources.clone(), sum };
            if helper.vertex == hub { root = partial } else { round.push(partial) }
        }
        while !round.is_empty() {
            // The root is the last of the round: it is paired with the remaining vertex, if any.
            let mut next = Vec::with_capacity(round.len() / 2);
            let mut pairs = round.into_iter();
            while let Some(giver) = pairs.next() {
                let taker = pairs.next();
                let link = lane.link(repair.rows);
                lane.stage(giver.vertex, giver.sources, giver.sum, vec![Sink::Link(link)]);
                match taker {
                    Some(mut taker) => {
                        taker.receive(link);
                        next.push(taker);
                    }
                    None => root.receive(link),
                }
            }
            round = next;
        }
        lane.deliver(root.vertex, root.sources, &root.sum.into(), &repair.requestors);
        Ok(vec![lane])
    }
}

impl Partial {
    fn receive(&mut self, link: u16) {
        self.sources.push(Source::Link(link));
        self.sum = self.sum.beside(&SparseMatrix::identity(self.sum.rows()));
    }
}
