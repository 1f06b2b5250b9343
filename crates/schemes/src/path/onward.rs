//! The path of an update (*CPU*, §4.5): from the node with the change through all racks concerned, so that the slowest
//! link is as fast as possible. It is the search of [`super::path`] with all links reversed: the source takes the
//! requestor's place, and every candidate takes part.
//!
//! Of paths with the same slowest link, the one with the least sum of weights fills the soonest, and so takes the least
//! time for any slice length (eq. 9).

use super::{
    EXACT_MAX, Route, path, shortest,
    tabu::{self, Tabu},
    weights::Weights,
};
use crate::{Select, random};

/// Up to this many candidates, the search takes a few milliseconds at most, with ten of them well below one. Above it, an
/// async thread must not wait for it: it can take some seconds and 64 MiB with [`EXACT_MAX`] candidates.
pub const QUICK_MAX: usize = 16;

/// How the order of a path is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Selector {
    /// The fastest order: for certain with up to [`EXACT_MAX`] candidates, otherwise the better of two bounded searches.
    Exact,
    /// The paper's tabu search (TSPS), for comparison.
    Tabu(Tabu),
    /// A random order.
    Random {
        /// The same seed gives the same order.
        seed: u64,
    },
    /// An order with the slowest link of all, for comparison.
    Worst,
    /// The order in which the candidates are given.
    Given,
}

impl From<Select> for Selector {
    fn from(select: Select) -> Self {
        match select {
            Select::Best | Select::Ordered => Self::Exact,
            Select::AsPreferred => Self::Given,
            Select::Random { seed } => Self::Random { seed },
        }
    }
}

/// A path from the source through all candidates, the source's neighbour first. `weights` has the links in their
/// reverse direction, so that the source is the requestor: see [`Weights::set_onward`].
///
/// Above [`QUICK_MAX`] candidates, call it outside of async threads.
pub fn onward(weights: &Weights, selector: Selector) -> Route {
    let (count, mut exact) = (weights.count(), false);
    let given: Vec<usize> = (0..count).collect();
    let mut order = match selector {
        Selector::Exact => {
            let route = path(weights, count);
            exact = route.as_ref().is_none_or(|route| route.exact);
            let mut order = route.map_or(given, |route| route.order);
            if count > EXACT_MAX && !exact {
                let other = tabu::search(weights, Tabu::default());
                order = if weights.key(&other) < weights.key(&order) { other } else { order };
            }
            preferred(weights, order)
        }
        Selector::Tabu(settings) => tabu::search(weights, settings),
        Selector::Random { seed } => random::shuffled(&given, seed),
        Selector::Worst => shortest::worst(weights),
        Selector::Given => given.into_iter().rev().collect(),
    };
    let weight = weights.chain(&order);
    order.reverse();
    Route { order, weight, exact }
}

/// Of the given order, the found one and the shortest one: the fastest, and of equally fast ones the one named first.
/// With racks, the found one already crosses as few of them as possible.
fn preferred(weights: &Weights, found: Vec<usize>) -> Vec<usize> {
    if weights.has_racks() {
        return found;
    }
    let given: Vec<usize> = (0..weights.count()).rev().collect();
    let shortest = shortest::below(weights, weights.chain(&found));
    let mut orders = [Some(found), shortest].into_iter().flatten().collect::<Vec<_>>();
    orders.insert(0, given);
    let least = |best: Vec<usize>, other: Vec<usize>| if weights.key(&other) < weights.key(&best) { other } else { best };
    orders.into_iter().reduce(least).unwrap_or_default()
}
