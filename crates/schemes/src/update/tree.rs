//! T-Update (as in *CPU*, §3): the delta goes down a tree, whole. In each step, every node that has it sends it to one
//! that lacks it, so R nodes take ⌈log2(R+1)⌉ steps. In the last step, those send that have sent the least: then the
//! writer sends the least that it can (Figure 2).
//!
//! If the network is known, the tree that ends the soonest over the measured links is taken instead.

use super::{Hop, Routes, Update, UpdateScheme, Writer};
use crate::{Named, Select, random};

/// The tree update.
#[derive(Debug)]
pub struct Tree;

/// The most transfers that the search for the best tree looks at: some hundred microseconds. In most networks, that is
/// enough to rule out a better tree of up to seven nodes.
const LOOKS_MAX: usize = 1 << 14;

impl Named for Tree {
    fn name(&self) -> &'static str {
        "tree"
    }

    fn summary(&self) -> &'static str {
        "every node that has all of what changed sends it to one that lacks it, step by step"
    }
}

impl UpdateScheme for Tree {
    fn routes(&self, update: &Update<'_>) -> Routes {
        // All trees take the homes in one order, so that they do not pass two of them in opposite order.
        let mut order: Vec<usize> = (0..update.homes.len()).collect();
        if let Select::Random { seed } = update.request.select {
            order = random::shuffled(&order, seed);
        }
        let mut best = None;
        if let (Select::Best | Select::Ordered, [writer]) = (update.request.select, &update.writers[..]) {
            best = Some(fastest(update, writer));
        }
        let rounds = |writer: &Writer| {
            let concerned = update.concerned(writer);
            rounds(&order.iter().copied().filter(|at| concerned.contains(at)).collect::<Vec<_>>())
        };
        let hops = best.map_or_else(|| update.writers.iter().map(rounds).collect(), |hops| vec![hops]);
        Routes { hops, path: None }
    }

    fn sends_in_turn(&self) -> bool {
        true
    }
}

/// The tree of ⌈log2(R+1)⌉ rounds.
fn rounds(homes: &[usize]) -> Vec<Hop> {
    let mut hops: Vec<Hop> = Vec::with_capacity(homes.len());
    // Who has the delta, and how often each has sent it.
    let mut senders: Vec<(Option<usize>, usize)> = vec![(None, 0)];
    let mut rest = homes;
    while !rest.is_empty() {
        let (now, later) = rest.split_at(rest.len().min(senders.len()));
        if later.is_empty() {
            senders.sort_by_key(|(_, sent)| *sent);
        }
        for (at, to) in now.iter().enumerate() {
            hops.push(Hop { from: senders[at].0, to: *to });
            senders[at].1 += 1;
        }
        senders.extend(now.iter().map(|to| (Some(*to), 0)));
        rest = later;
    }
    hops
}

/// The tree that ends the soonest if each node sends over one link at a time: by branch and bound, from the tree in
/// which the transfer that ends first always comes next.
fn fastest(update: &Update<'_>, writer: &Writer) -> Vec<Hop> {
    let homes = update.concerned(writer);
    let parties: Vec<_> = [writer.party].into_iter().chain(homes.iter().map(|at| update.homes[*at].party)).collect();
    let weigh = |from: usize, to: usize| update.network().between(parties[from], parties[to]).recip();
    let weights: Vec<Vec<f64>> = (0..parties.len()).map(|from| (0..parties.len()).map(|to| weigh(from, to)).collect()).collect();
    let mut search = Search { weights, free: vec![None; parties.len()], hops: Vec::new(), best: None, looks: 0 };
    search.free[0] = Some(0.0);
    search.extend(0.0);
    let (_, hops) = search.best.unwrap_or_default();
    let home = |at: usize| homes[at - 1];
    hops.into_iter().map(|(from, to)| Hop { from: from.checked_sub(1).map(|_| home(from)), to: home(to) }).collect()
}

/// A search over the trees, by the order in which their transfers end.
struct Search {
    /// By sender and receiver; the writer is 0.
    weights: Vec<Vec<f64>>,
    /// When each can send; `None`: it lacks the delta.
    free: Vec<Option<f64>>,
    hops: Vec<(usize, usize)>,
    best: Option<(f64, Vec<(usize, usize)>)>,
    looks: usize,
}

impl Search {
    /// Adds all further transfers, none of which ends before `now`.
    fn extend(&mut self, now: f64) {
        if self.hops.len() + 1 == self.free.len() {
            self.best = Some((now, self.hops.clone()));
            return;
        }
        let count = self.free.len();
        let mut next: Vec<(f64, usize, usize)> = Vec::new();
        for (from, free) in self.free.iter().enumerate().filter_map(|(from, free)| Some((from, (*free)?))) {
            let lacking = (0..count).filter(|to| self.free[*to].is_none());
            next.extend(lacking.map(|to| (free + self.weights[from][to], from, to)));
        }
        // A transfer that would have ended before the last one belongs to a tree that was looked at.
        next.retain(|(end, ..)| *end >= now);
        next.sort_by(|a, b| a.0.total_cmp(&b.0));
        self.looks += next.len();
        for (end, from, to) in next {
            let is_slower = self.best.as_ref().is_some_and(|(best, _)| end >= *best);
            if is_slower || self.best.is_some() && self.looks > LOOKS_MAX {
                return;
            }
            let before = self.free[from].replace(end);
            self.free[to] = Some(end);
            self.hops.push((from, to));
            self.extend(end);
            self.hops.pop();
            (self.free[from], self.free[to]) = (before, None);
        }
    }
}
