//! A search in bounded time, for more candidates than a table over their sets can hold. It follows the links of a graph
//! back from the requestor, backtracks where it is stuck, and gives up after a while.

use super::{Form, Graph};

/// Links that are examined before it gives up.
pub(super) const LOOKS_MAX: usize = 1 << 18;
/// The same for a search that is followed by others.
pub(super) const QUICK_LOOKS_MAX: usize = 1 << 10;

struct Dive<'a> {
    graph: &'a Graph<'a>,
    helpers: usize,
    /// Whether candidates in the chain's current rack come first; otherwise those with the fewest links, because they
    /// are hardest to place later.
    by_rack: bool,
    looks_max: usize,
    /// The number of possible senders to each.
    degrees: Vec<usize>,
    used: Vec<bool>,
    /// From the last helper to the first.
    chain: Vec<usize>,
    looks: usize,
}

/// A chain or cycle in a graph; `None` if there is none or the search gave up. With `by_rack`, it seldom crosses racks.
pub(super) fn dive(graph: &Graph<'_>, helpers: usize, by_rack: bool, looks_max: usize) -> Option<Vec<usize>> {
    let count = graph.weights.count();
    let degrees = (0..count).map(|to| (0..count).filter(|from| graph.has(*from, to)).count()).collect();
    let (used, chain) = (vec![false; count], Vec::with_capacity(helpers));
    let mut dive = Dive { graph, helpers, by_rack, looks_max, degrees, used, chain, looks: 0 };
    dive.extend().then(|| dive.chain.into_iter().rev().collect())
}

impl Dive<'_> {
    fn extend(&mut self) -> bool {
        if self.chain.len() == self.helpers {
            return match (self.graph.form, self.chain.first(), self.chain.last()) {
                (Form::Cycle, Some(last), Some(first)) => self.graph.has(*last, *first),
                _ => true,
            };
        }
        let weights = self.graph.weights;
        self.looks += weights.count();
        let head = self.chain.last().copied();
        // One member of a cycle need not send to the requestor.
        let spares = self.graph.form == Form::Chain || self.chain.iter().all(|at| self.graph.has_end(*at));
        let goes_on = |from: usize| head.map_or_else(|| self.graph.has_end(from), |to| self.graph.has(from, to));
        let fits = |from: &usize| !self.used[*from] && goes_on(*from) && (spares || self.graph.has_end(*from));
        let rack = weights.racks[head.unwrap_or(weights.count())];
        // The preferred helpers in their order, seen from the chain's end, and then the others.
        let place = |from: usize| if from < self.helpers { self.helpers - 1 - from } else { from };
        let key = |from: &usize| {
            let elsewhere = weights.racks[*from] != rack;
            let degree = if self.by_rack { 0 } else { self.degrees[*from] };
            (degree, elsewhere, place(*from))
        };
        let mut next: Vec<usize> = (0..weights.count()).filter(fits).collect();
        next.sort_by_key(key);
        for from in next {
            self.used[from] = true;
            self.chain.push(from);
            if self.extend() {
                return true;
            }
            self.chain.pop();
            self.used[from] = false;
            if self.looks >= self.looks_max {
                return false;
            }
        }
        false
    }
}
