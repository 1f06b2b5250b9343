//! TSPS (*CPU*, Algorithm 1): a tabu search for a path with a fast slowest link. From a random order it goes to the best
//! neighbour, which has two candidates swapped, even if that is worse; but not back to the orders of the latest steps,
//! unless one is better than all before (aspiration).
//!
//! Neighbours are compared by their slowest link, as in the paper, and then by the sum of weights: swaps that do not
//! touch the slowest link are frequent, and without the sum the search would choose among them blindly.

use super::weights::Weights;
use crate::random;
use std::collections::VecDeque;

/// The settings of a tabu search.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tabu {
    /// Its steps.
    pub iterations: u32,
    /// For how many steps it does not come back to an order.
    pub tenure: u32,
    /// The same seed gives the same order.
    pub seed: u64,
}

impl Default for Tabu {
    /// The paper's number of iterations (§6.5). It does not say its tenure: with this one, no order is visited twice.
    fn default() -> Self {
        Self { iterations: 100, tenure: 100, seed: 0 }
    }
}

/// The most links that a search looks at, for many candidates: some 100 ms.
const LOOKS_MAX: usize = 1 << 26;

/// The best chain found.
pub(super) fn search(weights: &Weights, settings: Tabu) -> Vec<usize> {
    let count = weights.count();
    let mut order = random::shuffled(&(0..count).collect::<Vec<_>>(), settings.seed);
    let (mut best, mut best_key) = (order.clone(), weights.key(&order));
    let mut tabu: VecDeque<(u32, Vec<usize>)> = VecDeque::from([(settings.tenure, order.clone())]);
    let looks = count * count * count / 2;
    let iterations = settings.iterations.min((LOOKS_MAX / looks.max(1)) as u32);
    for now in 1..=iterations {
        tabu.retain(|(until, _)| *until >= now);
        let mut next: Option<((f64, f64), (usize, usize))> = None;
        for a in 0..count {
            for b in a + 1..count {
                order.swap(a, b);
                let key = weights.key(&order);
                let is_better = next.is_none_or(|(least, _)| key < least);
                if is_better && (key < best_key || tabu.iter().all(|(_, other)| *other != order)) {
                    next = Some((key, (a, b)));
                }
                order.swap(a, b);
            }
        }
        let Some((key, (a, b))) = next else { continue };
        order.swap(a, b);
        tabu.push_back((now.saturating_add(settings.tenure), order.clone()));
        if key < best_key {
            (best, best_key) = (order.clone(), key);
        }
    }
    best
}
