//! A pipelined update over nodes: the delta goes along a chain of all nodes that patch a block, and each patches its
//! own. No node sends or receives the delta more than once, also within a rack: d nodes take 1 + (d−1)/s of the time of
//! one hop, for s slices. The order is that of the fastest path (`path`), across racks as seldom as possible.

use super::{Routes, Update, UpdateScheme, hops};
use crate::{
    Named,
    path::{Selector, Weights, onward},
};
use weft_plan::ChosenPath;

/// The pipelined update over nodes.
#[derive(Debug)]
pub struct Chain;

impl Named for Chain {
    fn name(&self) -> &'static str {
        "chain"
    }

    fn summary(&self) -> &'static str {
        "what changed passes along a chain of the nodes that patch a block, slice by slice"
    }
}

impl UpdateScheme for Chain {
    fn routes(&self, update: &Update<'_>) -> Routes {
        let all: Vec<usize> = (0..update.homes.len()).collect();
        let is_hop = |at: &usize| update.writers.iter().any(|writer| update.concerned(writer).contains(at));
        let homes: Vec<usize> = all.into_iter().filter(is_hop).collect();
        let parties: Vec<_> = homes.iter().map(|at| update.homes[*at].party).collect();
        let mut weights = weigh(update, &parties);
        let stands = parties.iter().copied().map(Some).chain([update.writers.first().map(|writer| writer.party)]);
        let racks: Vec<Option<&String>> = stands.map(|party| update.network().racks.get(&party?)).collect();
        weights.set_racks(&racks);
        let selector = Selector::from(update.request.select);
        let route = onward(&weights, selector);
        let mut order: Vec<usize> = route.order.iter().map(|at| homes[*at]).collect();
        let concerned: Vec<Vec<usize>> = update.writers.iter().map(|writer| update.concerned(writer)).collect();
        let ways = |order: &[usize]| -> Vec<Vec<hops::Hop>> {
            concerned.iter().map(|of| hops::chain(order.iter().copied().filter(|at| of.contains(at)), None)).collect()
        };
        if selector == Selector::Exact {
            order = hops::improved(update, order, ways);
        }
        Routes { hops: ways(&order), path: chosen(update, &order, selector, route.exact) }
    }
}

/// The weights of a path onward through these parties, from all writers: each sends its own part, and all parts arrive
/// at the first.
pub(super) fn weigh(update: &Update<'_>, parties: &[weft_types::Party]) -> Weights {
    let (network, mut weights) = (update.network(), Weights::new(parties.len()));
    let all: usize = update.writers.iter().map(|writer| writer.columns.len()).sum();
    for (at, party) in parties.iter().enumerate() {
        for (other, to) in parties.iter().enumerate().filter(|(other, _)| *other != at) {
            weights.set_onward(at, other, network.between(*party, *to).recip());
        }
        let from = |writer: &super::Writer| {
            let share = writer.columns.len() as f64 / all.max(1) as f64;
            if writer.party == *party { 0.0 } else { share / network.between(writer.party, *party) }
        };
        let arrives = if update.writers.len() > 1 { network.down(*party).recip() } else { 0.0 };
        weights.set_end(at, update.writers.iter().map(from).fold(arrives, f64::max));
    }
    weights
}

/// The description of a path from the first writer on.
pub(super) fn chosen(update: &Update<'_>, order: &[usize], selector: Selector, exact: bool) -> Option<ChosenPath> {
    let first = update.writers.first()?.party;
    let stations = order.iter().map(|at| update.homes[*at].party).filter(|party| *party != first);
    let parties: Vec<_> = [first].into_iter().chain(stations).collect();
    let rate = |(from, to): (weft_types::Party, weft_types::Party)| update.network().between(from, to);
    let links = parties.windows(2).map(|pair| (pair[0], pair[1]));
    let bottleneck = links.min_by(|a, b| rate(*a).total_cmp(&rate(*b)))?;
    let bytes_per_s = Some(rate(bottleneck)).filter(|rate| rate.is_finite()).unwrap_or(0.0);
    // For several writers, the order is only improved step by step.
    let exact = matches!(selector, Selector::Exact).then_some(exact && update.writers.len() == 1);
    Some(ChosenPath { parties, bottleneck, bytes_per_s, exact })
}
