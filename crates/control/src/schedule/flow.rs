//! Maximum flow by Dinic's algorithm (E. Dinic, 1970), on a network that can be widened: after an arc got more
//! capacity, only the additional flow is searched for.

use std::collections::VecDeque;

/// No arc, or a vertex that is not reached.
const NONE: u32 = u32::MAX;

/// An arc of a [`Flow`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Arc(u32);

/// A network from a source to a sink, with its flow so far.
#[derive(Debug)]
pub(super) struct Flow {
    source: u32,
    sink: u32,
    /// The first arc out of each vertex.
    first: Vec<u32>,
    /// The arc after an arc, out of the same vertex.
    next: Vec<u32>,
    to: Vec<u32>,
    /// What an arc can still carry. An arc and its reverse are neighbours: 2i and 2i+1.
    left: Vec<u64>,
    /// The distance of each vertex from the source, over arcs with capacity left.
    level: Vec<u32>,
    /// The arc with which the search goes on at each vertex.
    current: Vec<u32>,
}

impl Flow {
    /// A network with this many vertices, without arcs. The first vertex is the source, the last one the sink.
    pub(super) fn new(vertices: usize) -> Self {
        let none = vec![NONE; vertices];
        Self {
            source: 0,
            sink: vertices.saturating_sub(1) as u32,
            first: none.clone(),
            next: Vec::new(),
            to: Vec::new(),
            left: Vec::new(),
            level: none.clone(),
            current: none,
        }
    }

    /// Adds an arc.
    pub(super) fn arc(&mut self, from: usize, to: usize, capacity: u64) -> Arc {
        let arc = self.to.len() as u32;
        for (at, end, capacity) in [(from, to, capacity), (to, from, 0)] {
            self.next.push(self.first[at]);
            self.first[at] = self.to.len() as u32;
            self.to.push(end as u32);
            self.left.push(capacity);
        }
        Arc(arc)
    }

    /// Gives an arc more capacity.
    pub(super) fn widen(&mut self, arc: Arc, by: u64) {
        self.left[arc.0 as usize] += by;
    }

    /// The flow over an arc.
    pub(super) fn carried(&self, arc: Arc) -> u64 {
        self.left[arc.0 as usize ^ 1]
    }

    /// Adds as much flow as fits, and returns how much that was.
    pub(super) fn fill(&mut self) -> u64 {
        let mut added = 0;
        while self.find_levels() {
            self.current.copy_from_slice(&self.first);
            added += self.block();
        }
        added
    }

    /// Whether the sink can be reached.
    fn find_levels(&mut self) -> bool {
        self.level.fill(NONE);
        self.level[self.source as usize] = 0;
        let mut queue = VecDeque::from([self.source]);
        while let Some(vertex) = queue.pop_front() {
            let mut arc = self.first[vertex as usize];
            while arc != NONE {
                let to = self.to[arc as usize] as usize;
                if self.left[arc as usize] > 0 && self.level[to] == NONE {
                    self.level[to] = self.level[vertex as usize] + 1;
                    queue.push_back(to as u32);
                }
                arc = self.next[arc as usize];
            }
        }
        self.level[self.sink as usize] != NONE
    }

    /// A blocking flow over shortest paths.
    fn block(&mut self) -> u64 {
        let (mut added, mut path): (u64, Vec<u32>) = (0, Vec::new());
        loop {
            let vertex = path.last().map_or(self.source, |arc| self.to[*arc as usize]);
            if vertex == self.sink {
                let least = path.iter().map(|arc| self.left[*arc as usize]).min().unwrap_or(0);
                for arc in &path {
                    self.left[*arc as usize] -= least;
                    self.left[(*arc ^ 1) as usize] += least;
                }
                added += least;
                // The search goes on before the first arc that is now full.
                let full = path.iter().position(|arc| self.left[*arc as usize] == 0).unwrap_or(0);
                path.truncate(full);
                continue;
            }
            let arc = self.current[vertex as usize];
            if arc == NONE {
                // A dead end.
                match path.pop() {
                    Some(to) => self.advance(to),
                    None => return added,
                }
                continue;
            }
            let to = self.to[arc as usize] as usize;
            if self.left[arc as usize] > 0 && self.level[to] == self.level[vertex as usize] + 1 {
                path.push(arc);
            } else {
                self.advance(arc);
            }
        }
    }

    /// The vertex that an arc leaves has tried it.
    fn advance(&mut self, arc: u32) {
        let from = self.to[(arc ^ 1) as usize] as usize;
        self.current[from] = self.next[arc as usize];
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The capacity of the smallest cut, by trying all.
    fn smallest_cut(vertices: usize, arcs: &[(usize, usize, u64)]) -> u64 {
        let inner = vertices - 2;
        let cut = |set: usize| {
            let with_source = |vertex: usize| vertex == 0 || (vertex <= inner && set >> (vertex - 1) & 1 == 1);
            arcs.iter().filter(|(from, to, _)| with_source(*from) && !with_source(*to)).map(|arc| arc.2).sum()
        };
        (0..1 << inner).map(cut).min().unwrap()
    }

    fn arcs(vertices: usize) -> impl Strategy<Value = Vec<(usize, usize, u64)>> {
        proptest::collection::vec((0..vertices, 0..vertices, 0..9u64), 0..24)
    }

    proptest! {
        #[test]
        fn the_flow_is_as_large_as_the_smallest_cut_and_what_goes_in_comes_out(
            (vertices, mut arcs, widened) in (2..8usize).prop_flat_map(|n| (Just(n), arcs(n), 0..20usize))
        ) {
            let mut flow = Flow::new(vertices);
            let handles: Vec<Arc> = arcs.iter().map(|(from, to, capacity)| flow.arc(*from, *to, *capacity)).collect();
            let first = flow.fill();
            prop_assert_eq!(first, smallest_cut(vertices, &arcs));
            let more = match arcs.len() {
                0 => 0,
                len => {
                    arcs[widened % len].2 += 3;
                    flow.widen(handles[widened % len], 3);
                    flow.fill()
                }
            };
            prop_assert_eq!(first + more, smallest_cut(vertices, &arcs));
            for vertex in 1..vertices - 1 {
                let sum = |at: fn(&(usize, usize, u64)) -> usize| -> u64 {
                    arcs.iter().zip(&handles).filter(|(arc, _)| at(arc) == vertex).map(|(_, arc)| flow.carried(*arc)).sum()
                };
                prop_assert_eq!(sum(|arc| arc.0), sum(|arc| arc.1));
            }
            for (arc, handle) in arcs.iter().zip(&handles) {
                prop_assert!(flow.carried(*handle) <= arc.2);
            }
        }
    }

    #[test]
    fn long_paths_need_no_stack() {
        let len = 200_000;
        let mut flow = Flow::new(len);
        for at in 1..len {
            flow.arc(at - 1, at, 2);
        }
        assert_eq!((flow.fill(), flow.fill()), (2, 0));
    }
}
