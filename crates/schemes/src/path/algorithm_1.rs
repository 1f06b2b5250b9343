//! ECPipe's Algorithm 1 as printed: all paths by depth-first search from the requestor, without links that are no
//! faster than the best path's slowest one. It is here for comparison; on weights with geographic structure it takes
//! seconds.

use super::{Route, Weights};

/// The best path. As printed, it checks a link only when it adds it: links in the path are not tested again when a
/// better path is found.
pub fn algorithm_1(weights: &Weights, helpers: usize) -> Option<Route> {
    let mut search = Search { weights, helpers, path: Vec::new(), best: None, weight: f64::INFINITY };
    search.extend_path();
    search.best.map(|order| Route { weight: weights.chain(&order), order, exact: true })
}

struct Search<'a> {
    weights: &'a Weights,
    helpers: usize,
    /// From the requestor's neighbour to the head.
    path: Vec<usize>,
    best: Option<Vec<usize>>,
    weight: f64,
}

impl Search<'_> {
    fn extend_path(&mut self) {
        if self.path.len() == self.helpers {
            let order: Vec<usize> = self.path.iter().rev().copied().collect();
            self.weight = self.weights.chain(&order);
            self.best = Some(order);
            return;
        }
        for node in 0..self.weights.count() {
            if self.path.contains(&node) {
                continue;
            }
            let weight = self.path.last().map_or_else(|| self.weights.end(node), |head| self.weights.link(node, *head));
            if weight < self.weight {
                self.path.push(node);
                self.extend_path();
                self.path.pop();
            }
        }
    }
}
