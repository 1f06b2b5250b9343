//! Weighted path selection (ECPipe §4.2): of the parties that could help, which k, and in which order, so that the slowest link of
//! the chain that ends at the requestor is as quick as possible. For the cyclic version (§4.1) the same for a cycle.
//!
//! A weight is what a link takes for a byte, seconds. A chain is as quick as its slowest link, so that only the order of weights
//! counts: the search is one for the smallest threshold such that the links below it still hold a chain. Below a bound that
//! matchings give nothing need be tried; above it a threshold is decided by a table over sets of helpers (`subsets`), which is
//! exact whatever the weights are. For more helpers than [`EXACT_MAX`] a bounded search stands in for the table (`dive`): it finds a
//! chain or gives up, and a [`Route`] says whether a better one is ruled out.
//!
//! Among equally quick chains, that which crosses from rack to rack seldom is taken, and then that of those who come first. Where all
//! links are quick enough, that takes no search (`any`).

mod algorithm_1;
mod any;
mod bound;
mod dive;
mod subsets;

pub use algorithm_1::algorithm_1;
use subsets::Table;

/// For up to this many candidates the best path is found for certain. The table has 2^so many entries of four bytes, 64 MiB at most.
pub const EXACT_MAX: usize = 24;

/// What links between candidates, and from each to the requestor, take for a byte.
#[derive(Debug, Clone, PartialEq)]
pub struct Weights {
    count: usize,
    /// Of the link from i to j at i·count + j.
    links: Vec<f64>,
    ends: Vec<f64>,
    /// The rack of each candidate by a number, and the requestor's at the end; who stands in none has one of its own.
    racks: Vec<usize>,
}

/// A chain or cycle that was chosen.
#[derive(Debug, Clone, PartialEq)]
pub struct Route {
    /// The candidates in it, first to last; a chain's last one sends to the requestor.
    pub order: Vec<usize>,
    /// The largest weight of its links, seconds for a byte.
    pub weight: f64,
    /// Whether no better one exists; else nobody knows.
    pub exact: bool,
}

/// What is looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// A chain to the requestor.
    Chain,
    /// A cycle, each of whose members but one sends to the requestor.
    Cycle,
}

/// The links that are quick enough.
pub(crate) struct Graph<'a> {
    weights: &'a Weights,
    most: f64,
    form: Form,
}

impl Weights {
    /// Of links that take nothing, between so many candidates, who come in the order of preference and stand in no racks.
    pub fn new(candidates: usize) -> Self {
        let (links, ends) = (vec![0.0; candidates * candidates], vec![0.0; candidates]);
        Self { count: candidates, links, ends, racks: (0..=candidates).collect() }
    }

    /// How many candidates there are.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Says what the link from one candidate to another takes. What is no number never ends.
    pub fn set_link(&mut self, from: usize, to: usize, weight: f64) {
        self.links[from * self.count + to] = sane(weight);
    }

    /// Says what the link from a candidate to the requestor takes.
    pub fn set_end(&mut self, from: usize, weight: f64) {
        self.ends[from] = sane(weight);
    }

    /// Says what a candidate itself takes for a byte, whichever link it sends it by: its disk, its processor.
    pub fn slow_down(&mut self, candidate: usize, weight: f64) {
        let weight = sane(weight);
        self.ends[candidate] = self.ends[candidate].max(weight);
        let row = candidate * self.count;
        self.links[row..row + self.count].iter_mut().for_each(|link| *link = link.max(weight));
    }

    /// Says where the candidates and, at the end, the requestor stand.
    pub fn set_racks<T: PartialEq>(&mut self, racks: &[Option<T>]) {
        for (at, rack) in racks.iter().enumerate().take(self.count + 1) {
            let same = racks[..at].iter().position(|other| rack.is_some() && other == rack);
            self.racks[at] = same.unwrap_or(at);
        }
    }

    /// Whether some of the candidates and the requestor share a rack, and some do not: else the order has no part in how often racks
    /// are crossed.
    fn has_racks(&self) -> bool {
        let is_alone = |(at, rack): (usize, &usize)| at == *rack;
        !self.racks.iter().enumerate().all(is_alone) && self.racks.iter().any(|rack| *rack != 0)
    }

    /// What the link from one candidate to another takes.
    pub fn link(&self, from: usize, to: usize) -> f64 {
        self.links[from * self.count + to]
    }

    /// What the link from a candidate to the requestor takes.
    pub fn end(&self, from: usize) -> f64 {
        self.ends[from]
    }

    /// The largest weight of a chain through these candidates to the requestor.
    pub fn chain(&self, order: &[usize]) -> f64 {
        let links = order.windows(2).map(|pair| self.link(pair[0], pair[1]));
        links.chain(order.last().map(|last| self.end(*last))).fold(0.0, f64::max)
    }

    /// The largest weight of a cycle of these candidates and of what each of them sends to the requestor, but for the one with the
    /// slowest link to it.
    pub fn cycle(&self, order: &[usize]) -> f64 {
        let next = order.iter().cycle().skip(1);
        let links = order.iter().zip(next).filter(|(from, to)| from != to).map(|(from, to)| self.link(*from, *to));
        let mut ends: Vec<f64> = order.iter().map(|from| self.end(*from)).collect();
        ends.sort_unstable_by(f64::total_cmp);
        ends.pop();
        links.chain(ends).fold(0.0, f64::max)
    }

    /// Links of a chain that go from one rack to another.
    pub fn crossings(&self, order: &[usize]) -> usize {
        let racks = order.iter().map(|at| self.racks[*at]).chain([self.racks[self.count]]);
        racks.clone().zip(racks.skip(1)).filter(|(from, to)| from != to).count()
    }
}

fn sane(weight: f64) -> f64 {
    if weight.is_nan() { f64::INFINITY } else { weight.max(0.0) }
}

impl<'a> Graph<'a> {
    pub(crate) fn new(weights: &'a Weights, form: Form, most: f64) -> Self {
        Self { weights, most, form }
    }

    /// Whether the link from one candidate to another may be used. A cycle has room for one member that cannot send to the requestor.
    pub(crate) fn has(&self, from: usize, to: usize) -> bool {
        let is_quick = from != to && self.weights.link(from, to) <= self.most;
        is_quick && (self.form == Form::Chain || self.has_end(from) || self.has_end(to))
    }

    /// Whether a candidate may send to the requestor.
    pub(crate) fn has_end(&self, from: usize) -> bool {
        self.weights.end(from) <= self.most
    }

    /// Whether all links may be used: then any chain will do.
    fn is_complete(&self) -> bool {
        let (links, ends) = (&self.weights.links, &self.weights.ends);
        let to_itself = |at: usize| at.is_multiple_of(self.weights.count + 1);
        ends.iter().all(|end| *end <= self.most) && (0..links.len()).all(|at| to_itself(at) || links[at] <= self.most)
    }
}

/// The quickest chain of `helpers` of the candidates. None, if there are not so many.
pub fn path(weights: &Weights, helpers: usize) -> Option<Route> {
    best(weights, helpers, Form::Chain)
}

/// The quickest cycle of `helpers` of the candidates, each of which but the last but one is also held to its link to the requestor.
/// None, if there are not so many, or fewer than three.
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
    // What is found, or only comes first, is often better than the threshold for which it was looked for.
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

/// The best that was found so far, and its place among the thresholds.
struct Found {
    at: usize,
    order: Vec<usize>,
}

impl Found {
    /// Looks for better ones between `low` and what there is, by halves: for searches that may give up.
    fn halve(&mut self, mut low: usize, find: impl Fn(usize) -> Option<Vec<usize>>, place: impl Fn(&[usize]) -> usize) {
        while low < self.at {
            let middle = low + (self.at - low) / 2;
            match find(middle) {
                Some(order) => *self = Self { at: place(&order).min(middle), order },
                None => low = middle + 1,
            }
        }
    }

    /// Looks for better ones from what there is downwards, for it is close: until there certainly is none.
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

/// All weights that a chain can have, ascending.
fn thresholds(weights: &Weights) -> Vec<f64> {
    let all = 0..weights.count();
    let links = all.clone().flat_map(|from| all.clone().filter(move |to| *to != from).map(move |to| weights.link(from, to)));
    let mut steps: Vec<f64> = links.chain(all.clone().map(|from| weights.end(from))).collect();
    steps.sort_unstable_by(f64::total_cmp);
    steps.dedup();
    steps
}

/// The first of `low..=high` at which something holds, that holds from somewhere on and certainly at `high`.
fn first(mut low: usize, mut high: usize, holds: impl Fn(usize) -> bool) -> usize {
    while low < high {
        let middle = low + (high - low) / 2;
        if holds(middle) { high = middle } else { low = middle + 1 }
    }
    low
}
