//! Assignments that see one repair at a time: what the balanced ones are compared with (§5.1).

use super::repair::{Assignment, Candidates, Repair};
use rand::{RngCore, seq::SliceRandom};
use std::collections::BTreeMap;

/// Helpers and destination at random.
pub fn random(nodes: usize, repairs: &[Repair], rng: &mut dyn RngCore) -> Vec<Assignment> {
    let mut chosen = |candidates: &Candidates, count: usize| {
        let mut all: Vec<u32> = candidates.all(nodes).collect();
        let (first, _) = all.partial_shuffle(rng, count);
        first.to_vec()
    };
    let part = |repair: &Repair| repair.parts.iter().map(|part| chosen(&part.candidates, part.vertices.len())).collect();
    repairs.iter().map(part).collect()
}

/// When each node last took part, one time for all nodes of a repair.
#[derive(Debug, Clone, Default)]
pub struct Stamps {
    now: u64,
    last: BTreeMap<u32, u64>,
}

impl Stamps {
    /// The nodes that took part least recently, ties to the lowest number, with one time for all nodes of a repair: the
    /// selection that the paper describes. Its ties make it worse than ours ([`crate::helpers`]).
    pub fn lru_by_stripe(&mut self, nodes: usize, repairs: &[Repair]) -> Vec<Assignment> {
        let mut assignments = Vec::with_capacity(repairs.len());
        for repair in repairs {
            self.now += 1;
            let oldest = |candidates: &Candidates, count: usize| -> Vec<u32> {
                let mut all: Vec<u32> = candidates.all(nodes).collect();
                all.sort_by_key(|node| (self.last.get(node).copied().unwrap_or(0), *node));
                all.truncate(count);
                all
            };
            let chosen: Assignment = repair.parts.iter().map(|part| oldest(&part.candidates, part.vertices.len())).collect();
            self.last.extend(chosen.iter().flatten().map(|node| (*node, self.now)));
            assignments.push(chosen);
        }
        assignments
    }
}
