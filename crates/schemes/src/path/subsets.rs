//! All chains of a graph at once: for every set of candidates, which of them can be the first of a chain through the
//! whole set to the requestor (Held and Karp's table, with bits instead of costs).
//!
//! Near the relevant threshold there are few links and few sets with a chain. Each such set is extended by every
//! candidate that can send to one of its firsts; all other sets are skipped.
//!
//! For cycles the lowest candidate of a set takes the requestor's place: the chain ends there, and is closed if that
//! candidate can send to the first. A set with more than one member that cannot send to the requestor has no cycle.

use super::{Form, Graph};

/// The most steps of the search for the order of a set's members with the fewest rack crossings.
const STEPS_MAX: usize = 1 << 10;

/// The table.
pub(super) struct Table {
    count: usize,
    /// By set: one bit for each candidate that can be first.
    firsts: Vec<u32>,
    /// By candidate: the candidates that it can send to, and those that can send to it.
    successors: Vec<u32>,
    predecessors: Vec<u32>,
    /// The candidates that can send to the requestor.
    ends: u32,
    form: Form,
}

impl Table {
    pub(super) fn new(count: usize) -> Self {
        let (firsts, successors, predecessors) = (Vec::new(), vec![0; count], vec![0; count]);
        Self { count, firsts, successors, predecessors, ends: 0, form: Form::Chain }
    }

    /// A chain or cycle of `helpers` members that uses the lowest candidates possible; `None` if there is none.
    pub(super) fn find(&mut self, graph: &Graph<'_>, helpers: usize) -> Option<Vec<usize>> {
        self.load(graph);
        let set = self.fill(helpers, true)?;
        let first = (self.closing(set)).trailing_zeros();
        let mut order = vec![first as usize];
        let mut rest = set;
        while let Some(last) = order.last().filter(|_| order.len() < helpers) {
            rest &= !(1 << last);
            let next = self.at(rest) & self.successors[*last];
            order.push(next.trailing_zeros() as usize);
        }
        Some(order)
    }

    /// Of all chains or cycles of this size, the most preferred: from as few racks as possible, with the first
    /// candidates, in an order with few rack crossings.
    pub(super) fn pick(&mut self, graph: &Graph<'_>, helpers: usize) -> Option<Vec<usize>> {
        self.load(graph);
        self.fill(helpers, false);
        let racks = &graph.weights.racks;
        let foreign = |set: u32| {
            let mut seen = 0u32;
            (bits(set).filter(|at| racks[*at] != racks[self.count])).for_each(|at| seen |= 1 << racks[at]);
            seen.count_ones()
        };
        let sets = (1u32..1 << self.count).filter(|set| set.count_ones() as usize == helpers && self.closing(*set) != 0);
        // Of two sets of one size, the one with the first candidate in which they differ comes first.
        let set = sets.min_by_key(|set| (foreign(*set), u32::MAX - set.reverse_bits()))?;
        let mut order = Walk { table: self, racks, steps: 0, crossings_max: foreign(set) as usize, order: Vec::new() };
        loop {
            if order.extend(set, 0) {
                let mut order = order.order;
                // A cycle ends at its lowest member; it may as well start there.
                order.rotate_right(usize::from(graph.form == Form::Cycle));
                return Some(order);
            }
            // This terminates: no chain can have more crossings than links.
            order.crossings_max += 1;
        }
    }

    fn load(&mut self, graph: &Graph<'_>) {
        self.firsts.clear();
        self.firsts.resize(1 << self.count, 0);
        let all = 0..self.count;
        let mask = |of: &dyn Fn(usize) -> bool| all.clone().filter(|at| of(*at)).fold(0u32, |mask, at| mask | 1 << at);
        for from in all.clone() {
            self.successors[from] = mask(&|to| graph.has(from, to));
            self.predecessors[from] = mask(&|to| graph.has(to, from));
        }
        self.ends = mask(&|from| graph.has_end(from));
        self.form = graph.form;
    }

    fn at(&self, set: u32) -> u32 {
        self.firsts[set as usize]
    }

    /// The candidates that can be the first of a complete chain or cycle through a set.
    fn closing(&self, set: u32) -> u32 {
        let firsts = self.at(set);
        match self.form {
            Form::Chain => firsts,
            Form::Cycle => firsts & self.successors[set.trailing_zeros() as usize],
        }
    }

    /// Fills the table for sets of up to `helpers` members. With `one_is_enough`, stops at the first set of this size
    /// with a chain or cycle, and returns it.
    fn fill(&mut self, helpers: usize, one_is_enough: bool) -> Option<u32> {
        for candidate in 0..self.count {
            // A single candidate is first and last; in a cycle's set the lowest member is last.
            let is_last = self.form == Form::Cycle || self.ends & (1 << candidate) != 0;
            self.firsts[1 << candidate] = u32::from(is_last) << candidate;
        }
        // A set comes after all its subsets with one member less.
        for set in 1..1u32 << self.count {
            let firsts = self.at(set);
            if firsts == 0 {
                continue;
            }
            if set.count_ones() as usize == helpers {
                if one_is_enough && self.closing(set) != 0 {
                    return Some(set);
                }
                continue;
            }
            let senders = bits(firsts).fold(0, |senders, first| senders | self.predecessors[first]);
            for candidate in bits(senders & self.open(set)) {
                self.firsts[(set | 1 << candidate) as usize] |= 1 << candidate;
            }
        }
        None
    }

    /// The candidates that may be added to a set.
    fn open(&self, set: u32) -> u32 {
        let others = !set;
        if self.form == Form::Chain {
            return others;
        }
        let above_lowest = u32::MAX << set.trailing_zeros();
        let spared = if set & !self.ends == 0 { u32::MAX } else { self.ends };
        others & above_lowest & spared
    }
}

/// An order of a set's members, from the table: every permitted first leads to the end.
struct Walk<'a> {
    table: &'a Table,
    racks: &'a [usize],
    steps: usize,
    crossings_max: usize,
    order: Vec<usize>,
}

impl Walk<'_> {
    /// Appends all members of a set within the allowed crossings, or leaves the order unchanged.
    fn extend(&mut self, rest: u32, crossings: usize) -> bool {
        let home = self.racks[self.table.count];
        let last = self.order.last().copied();
        let rack = last.map(|last| self.racks[last]);
        if rest == 0 {
            return self.allows(crossings + usize::from(self.table.form == Form::Chain && rack != Some(home)));
        }
        let next = last.map_or_else(|| self.table.closing(rest), |last| self.table.at(rest) & self.table.successors[last]);
        // Members in the requestor's rack come at the end of a chain.
        let key = |at: &usize| (rack.is_some_and(|rack| rack != self.racks[*at]), self.racks[*at] == home, *at);
        let mut next: Vec<usize> = bits(next).collect();
        next.sort_unstable_by_key(key);
        for at in next {
            self.steps += 1;
            let crossings = crossings + usize::from(rack.is_some_and(|rack| rack != self.racks[at]));
            if !self.allows(crossings) {
                continue;
            }
            self.order.push(at);
            if self.extend(rest & !(1 << at), crossings) {
                return true;
            }
            self.order.pop();
        }
        false
    }

    fn allows(&self, crossings: usize) -> bool {
        crossings <= self.crossings_max || self.steps > STEPS_MAX
    }
}

fn bits(mut set: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let lowest = (set != 0).then(|| set.trailing_zeros() as usize)?;
        set &= set - 1;
        Some(lowest)
    })
}
