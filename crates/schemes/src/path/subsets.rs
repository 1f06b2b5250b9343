//! All chains of a graph at once: for every set of candidates, who of them can be the first of a chain that goes through all of the
//! set and ends at the requestor (Held and Karp's table, with bits for whether instead of costs).
//!
//! Near the threshold that is looked for, links are few, and so are the sets that have a chain: each of them is extended by whoever can
//! send to one of its firsts, and all others are passed over.
//!
//! For cycles the lowest candidate of a set stands for the requestor: the chain ends there, and closes if it can send to the first. Sets
//! with more than one who cannot send to the requestor have none.

use super::{Form, Graph};

/// Steps in which the order of a set's members is searched for the fewest crossings between racks.
const STEPS_MAX: usize = 1 << 10;

/// See the module.
pub(super) struct Table {
    count: usize,
    /// By set: a bit for each candidate that can be first.
    firsts: Vec<u32>,
    /// By candidate: whom it can send to, and who can send to it.
    successors: Vec<u32>,
    predecessors: Vec<u32>,
    /// Who can send to the requestor.
    ends: u32,
    form: Form,
}

impl Table {
    pub(super) fn new(count: usize) -> Self {
        let (firsts, successors, predecessors) = (Vec::new(), vec![0; count], vec![0; count]);
        Self { count, firsts, successors, predecessors, ends: 0, form: Form::Chain }
    }

    /// A chain or cycle of so many helpers, of those without whom the last ones can be left out; none if there is none.
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

    /// Of all chains or cycles of so many helpers, one that is the most to our liking: of as few racks as possible, of those who come
    /// first, in an order that crosses between racks seldom.
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
        // Of two sets of one size that comes first which has the first candidate in which they differ.
        let set = sets.min_by_key(|set| (foreign(*set), u32::MAX - set.reverse_bits()))?;
        let mut order = Walk { table: self, racks, steps: 0, crossings_max: foreign(set) as usize, order: Vec::new() };
        loop {
            if order.extend(set, 0) {
                let mut order = order.order;
                // A cycle ends at its lowest member: it may as well begin there.
                order.rotate_right(usize::from(graph.form == Form::Cycle));
                return Some(order);
            }
            // It ends: so many crossings no chain can have.
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

    /// Who can be the first of a whole chain, or of a cycle, through a set.
    fn closing(&self, set: u32) -> u32 {
        let firsts = self.at(set);
        match self.form {
            Form::Chain => firsts,
            Form::Cycle => firsts & self.successors[set.trailing_zeros() as usize],
        }
    }

    /// Fills the table for sets of up to so many helpers. Where one is enough, it stops at the first of so many that has a chain or
    /// cycle, and tells it.
    fn fill(&mut self, helpers: usize, one_is_enough: bool) -> Option<u32> {
        for candidate in 0..self.count {
            // Who is alone is first and last; of a cycle's set the lowest member is last.
            let is_last = self.form == Form::Cycle || self.ends & (1 << candidate) != 0;
            self.firsts[1 << candidate] = u32::from(is_last) << candidate;
        }
        // A set comes after those with one member less.
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

    /// Who may be added to a set.
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

/// An order of a set's members, by the table: whoever it lets be first can be followed to the end.
struct Walk<'a> {
    table: &'a Table,
    racks: &'a [usize],
    steps: usize,
    crossings_max: usize,
    order: Vec<usize>,
}

impl Walk<'_> {
    /// Appends all of a set, with no more crossings than are allowed, or leaves the order as it was.
    fn extend(&mut self, rest: u32, crossings: usize) -> bool {
        let home = self.racks[self.table.count];
        let last = self.order.last().copied();
        let rack = last.map(|last| self.racks[last]);
        if rest == 0 {
            return self.allows(crossings + usize::from(self.table.form == Form::Chain && rack != Some(home)));
        }
        let next = last.map_or_else(|| self.table.closing(rest), |last| self.table.at(rest) & self.table.successors[last]);
        // Who stands beside the requestor comes at the end of a chain.
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
