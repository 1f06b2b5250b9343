//! Weighted path selection (ECPipe, §4.2): which k of the possible helpers, and in which order, so that the slowest
//! link of the chain to the requestor is as fast as possible. For the cyclic version (§4.1), the same for a cycle.
//!
//! A weight is the time of a link for one byte, in seconds. A chain is as fast as its slowest link, so only the order
//! of weights matters: the search looks for the smallest threshold such that the links below it still contain a chain.
//! Below a bound from matchings, no search is needed. Above it, a table over sets of helpers (`subsets`) decides a
//! threshold exactly for any weights. For more than [`EXACT_MAX`] helpers, a bounded search (`dive`) replaces the
//! table: it finds a chain or gives up, and the [`Route`] says whether a better chain is ruled out.
//!
//! Updates take the same search in the other direction (`onward`).
//!
//! Of equally fast chains, the one with the fewest rack crossings is taken, and then the one with the most preferred helpers. If all links
//! are fast enough, this needs no search (`any`).

mod algorithm_1;
mod any;
mod bound;
mod dive;
mod onward;
mod shortest;
mod subsets;
mod tabu;
mod weights;

pub use algorithm_1::algorithm_1;
pub use onward::{QUICK_MAX, Selector, onward};
use subsets::Table;
pub use tabu::Tabu;
pub use weights::Weights;

/// Up to this many candidates, the best path is found for certain. The table has one entry of four bytes for each set,
/// at most 64 MiB.
pub const EXACT_MAX: usize = 24;

/// A chosen chain or cycle.
#[derive(Debug, Clone, PartialEq)]
pub struct Route {
    /// Its candidates, first to last; a chain's last one sends to the requestor.
    pub order: Vec<usize>,
    /// The largest weight of its links, seconds for a byte.
    pub weight: f64,
    /// Whether it is known that no better one exists.
    pub exact: bool,
}

/// The form of the route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// A chain to the requestor.
    Chain,
    /// A cycle in which all members but one send to the requestor.
    Cycle,
}

/// The links below a threshold.
pub(crate) struct Graph<'a> {
    weights: &'a Weights,
    most: f64,
    form: Form,
}

impl<'a> Graph<'a> {
    pub(crate) fn new(weights: &'a Weights, form: Form, most: f64) -> Self {
        Self { weights, most, form }
    }

    /// Whether the link from one candidate to another may be used. A cycle may have one member that cannot send to the
    /// requestor.
    pub(crate) fn has(&self, from: usize, to: usize) -> bool {
        let is_quick = from != to && self.weights.link(from, to) <= self.most;
        is_quick && (self.form == Form::Chain || self.has_end(from) || self.has_end(to))
    }

    /// Whether a candidate may send to the requestor.
    pub(crate) fn has_end(&self, from: usize) -> bool {
        self.weights.end(from) <= self.most
    }

    /// Whether all links may be used, so that any chain works.
    fn is_complete(&self) -> bool {
        let (links, ends) = (&self.weights.links, &self.weights.ends);
        let to_itself = |at: usize| at.is_multiple_of(self.weights.count + 1);
        ends.iter().all(|end| *end <= self.most) && (0..links.len()).all(|at| to_itself(at) || links[at] <= self.most)
    }
}

/// The fastest chain of `helpers` candidates; `None` if there are too few.
pub fn path(weights: &Weights, helpers: usize) -> Option<Route> {
    best(weights, helpers, Form::Chain)
}

/// The fastest cycle of `helpers` candidates, in which all members but the last but one also count their links to the
/// requestor. `None` if there are too few candidates, or fewer than three.
pub fn cycle(weights: &Weights, helpers: usize) -> Option<Route> {
    let spared = helpers.checked_sub(2).filter(|spared| *spared > 0)?;
    let mut route = best(weights, helpers, Form::Cycle)?;
    let end = |at: usize| weights.end(route.order[at]);
    let slowest = (0..helpers).max_by(|a, b| end(*a).total_cmp(&end(*b))).filter(|at| end(*at) > end(spared));
    if let Some(at) = slowest {
        route.order.rotate_left((at + helpers - spared) % helpers);
    }
    Some(route)
}

fn best(weights: &Weights, helpers: usize, form: Form) -> Option<Route> {
    if helpers == 0 || helpers > weights.count() {
        return None;
    }
    let weigh = |order: &[usize]| if form == Form::Chain { weights.chain(order) } else { weights.cycle(order) };
    let steps = thresholds(weights);
    let graph = |at: usize| Graph::new(weights, form, steps[at]);
    let lowest = first(0, steps.len() - 1, |at| bound::allows(&graph(at), helpers));
    let place = |order: &[usize]| steps.partition_point(|step| *step < weigh(order));
    // A found route, or just the first candidates, may be better than the threshold of the search.
    let preferred: Vec<usize> = (0..helpers).collect();
    let mut found = Found { at: place(&preferred), order: preferred };
    let dive = |at: usize, looks_max: usize| dive::dive(&graph(at), helpers, false, looks_max);
    found.halve(lowest, |at| dive(at, dive::QUICK_LOOKS_MAX), place);
    let mut table = (weights.count() <= EXACT_MAX).then(|| Table::new(weights.count()));
    let exact = match &mut table {
        Some(table) => {
            found.descend(lowest, |at| table.find(&graph(at), helpers), place);
            true
        }
        None => {
            found.halve(lowest, |at| dive(at, dive::LOOKS_MAX), place);
            found.at == lowest
        }
    };
    let quick = graph(found.at);
    let liked = match &mut table {
        _ if quick.is_complete() => Some(any::preferred(weights, helpers)),
        Some(table) if weights.has_racks() => table.pick(&quick, helpers),
        Some(table) => table.find(&quick, helpers),
        None => dive::dive(&quick, helpers, true, dive::LOOKS_MAX),
    };
    let order = liked.unwrap_or(found.order);
    Some(Route { weight: weigh(&order), order, exact })
}

/// The best route so far, and its place among the thresholds.
struct Found {
    at: usize,
    order: Vec<usize>,
}

impl Found {
    /// Searches for better routes between `low` and the current one by bisection; for searches that may give up.
    fn halve(&mut self, mut low: usize, find: impl Fn(usize) -> Option<Vec<usize>>, place: impl Fn(&[usize]) -> usize) {
        while low < self.at {
            let middle = low + (self.at - low) / 2;
            match find(middle) {
                Some(order) => *self = Self { at: place(&order).min(middle), order },
                None => low = middle + 1,
            }
        }
    }

    /// Searches for better routes downwards from the current one, which is close, until there is certainly none.
    fn descend(&mut self, mut low: usize, mut find: impl FnMut(usize) -> Option<Vec<usize>>, place: impl Fn(&[usize]) -> usize) {
        let mut stride = 1;
        while low < self.at {
            let at = self.at.saturating_sub(stride).max(low);
            match find(at) {
                Some(order) => {
                    *self = Self { at: place(&order).min(at), order };
                    stride *= 2;
                }
                None => (low, stride) = (at + 1, 1),
            }
        }
    }
}

/// All possible weights of a chain, ascending.
fn thresholds(weights: &Weights) -> Vec<f64> {
    let all = 0..weights.count();
    let links = all.clone().flat_map(|from| all.clone().filter(move |to| *to != from).map(move |to| weights.link(from, to)));
    let mut steps: Vec<f64> = links.chain(all.clone().map(|from| weights.end(from))).collect();
    steps.sort_unstable_by(f64::total_cmp);
    steps.dedup();
    steps
}

/// The first value of `low..=high` for which a monotonic condition holds; it must hold for `high`.
fn first(mut low: usize, mut high: usize, holds: impl Fn(usize) -> bool) -> usize {
    while low < high {
        let middle = low + (high - low) / 2;
        if holds(middle) { high = middle } else { low = middle + 1 }
    }
    low
}
