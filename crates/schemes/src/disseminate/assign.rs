//! Assigns a code's blocks to unequal nodes (*Mist*, §5).

use super::{Edge, Load};
use crate::{AUTO, Kind, Scheme, answering, by_name};
use weft_codes::Code;
use weft_plan::Moved;
use weft_types::{Error, Result};

/// A node that could get any of the blocks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Candidate {
    /// Its coding rate: products of a byte and a coefficient, added up, in a second; infinite if unknown.
    pub products_per_s: f64,
    /// Its upload rate, bytes a second.
    pub up_bytes_per_s: f64,
    /// Its download rate, bytes a second.
    pub down_bytes_per_s: f64,
    /// Concurrent transfers of others over its lines, in blocks.
    pub busy: Moved,
    /// Whether it is on the writer's machine: the writer then sends it what it would compute from others' data.
    pub is_near: bool,
    /// The number of its rack, if it has one.
    pub rack: Option<usize>,
}

/// The racks, by their numbers.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Racks {
    /// The writer's rack.
    pub writer: Option<usize>,
    /// The rates out of and into each rack, bytes a second; infinite if unknown.
    pub lines: Vec<(f64, f64)>,
}

impl Candidate {
    /// A node with unknown properties.
    pub const UNKNOWN: Self = Self {
        products_per_s: f64::INFINITY,
        up_bytes_per_s: f64::INFINITY,
        down_bytes_per_s: f64::INFINITY,
        busy: Moved { up_bytes: 0.0, down_bytes: 0.0 },
        is_near: false,
        rack: None,
    };

    /// Seconds that a load takes it for each byte of a block: its slowest part, because all parts run concurrently.
    fn seconds(&self, load: &Load, is_data: bool) -> f64 {
        // What the writer sends it crosses no link; only what it forwards does.
        let blocks_in = if self.is_near { 0.0 } else { load.blocks_in };
        if self.is_near && !is_data {
            return 0.0;
        }
        let share = |amount: f64, others: f64, rate: f64| if amount == 0.0 { 0.0 } else { (amount + others) / rate };
        let up = share(load.blocks_out, self.busy.up_bytes, self.up_bytes_per_s);
        let down = share(blocks_in, self.busy.down_bytes, self.down_bytes_per_s);
        up.max(down).max(share(load.work(), 0.0, self.products_per_s))
    }
}

/// The candidate for each block of a code, by number: as many candidates as blocks, each once.
///
/// The paper's rule comes first: the fastest coder gets the most work, and so on; of equally fast ones, the one with the best upload rate
/// sends most. The paper ignores links. So two candidates are then swapped as long as the slower of them becomes faster, starting with the
/// slowest. Finally, two candidates in different racks are swapped if neither the slower of them nor the slowest rack's line becomes slower
/// and fewer bytes cross racks. The number of blocks in each rack was decided before and stays.
pub fn assign(code: &dyn Code, scheme: &str, candidates: &[Candidate], racks: &Racks) -> Result<Vec<usize>> {
    if candidates.len() != code.n() {
        let message = format!("{} has {} blocks, but {} nodes were given for them", code.spec(), code.n(), candidates.len());
        return Err(Error::invalid(message));
    }
    let edges = edges(code, scheme)?;
    let loads = Load::of_all(code.n(), &edges);
    // If all loads are equal, the candidates stay in place.
    if loads.windows(2).all(|pair| pair[0] == pair[1]) {
        return Ok((0..loads.len()).collect());
    }
    let mut crossing = Crossing { edges: &edges, loads: &loads, k: code.k(), candidates, racks, looks: 0 };
    let mut chosen = match_up(&loads, code.k(), candidates);
    crossing.reduce(&mut chosen);
    Ok(chosen)
}

/// The transfers of the named scheme. If the choice is open: those of the scheme in which receivers send most, because
/// with the other schemes a node's load depends less on its place.
fn edges(code: &dyn Code, scheme: &str) -> Result<Vec<Edge>> {
    let edges = |scheme: Scheme<'_>| if let Scheme::Write(scheme) = scheme { scheme.edges(code) } else { Vec::new() };
    if scheme != AUTO {
        return by_name(Kind::Write, scheme).map(edges);
    }
    let by_receivers = |edges: &[Edge]| edges.iter().filter(|edge| edge.from.is_some()).map(|edge| edge.blocks).sum::<f64>();
    let all = answering(Kind::Write).map(edges);
    Ok(all.max_by(|a, b| by_receivers(a).total_cmp(&by_receivers(b))).unwrap_or_default())
}

/// The candidate for each load; the first k loads are those of data blocks.
fn match_up(loads: &[Load], k: usize, candidates: &[Candidate]) -> Vec<usize> {
    let (mut hardest, mut best): (Vec<usize>, Vec<usize>) = ((0..loads.len()).collect(), (0..candidates.len()).collect());
    let hard = |at: usize| (loads[at].work(), loads[at].blocks_out);
    let good = |at: usize| (candidates[at].products_per_s, candidates[at].up_bytes_per_s);
    let descending = |a: (f64, f64), b: (f64, f64)| b.0.total_cmp(&a.0).then(b.1.total_cmp(&a.1));
    hardest.sort_by(|a, b| descending(hard(*a), hard(*b)));
    best.sort_by(|a, b| descending(good(*a), good(*b)));
    let mut chosen = vec![0; loads.len()];
    hardest.iter().zip(best).for_each(|(load, candidate)| chosen[*load] = candidate);
    // Each exchange makes the slower of two faster, starting with the slowest of all.
    for _ in 0..loads.len() * loads.len() {
        let seconds = |load: usize, of: usize| candidates[chosen[of]].seconds(&loads[load], load < k);
        let mut slowest: Vec<usize> = (0..loads.len()).collect();
        slowest.sort_by(|a, b| seconds(*b, *b).total_cmp(&seconds(*a, *a)).then(a.cmp(b)));
        let exchange = |slow: usize| {
            let exchanged = |other: usize| seconds(slow, other).max(seconds(other, slow));
            let best = (0..loads.len()).min_by(|a, b| exchanged(*a).total_cmp(&exchanged(*b)))?;
            (exchanged(best) < seconds(slow, slow)).then_some((slow, best))
        };
        match slowest.iter().copied().find_map(exchange) {
            Some((slow, other)) => chosen.swap(slow, other),
            None => break,
        }
    }
    chosen
}

/// The most edges that are examined for the racks: some milliseconds.
const LOOKS_MAX: usize = 1 << 20;

/// The transfers between racks.
struct Crossing<'a> {
    edges: &'a [Edge],
    loads: &'a [Load],
    k: usize,
    candidates: &'a [Candidate],
    racks: &'a Racks,
    looks: usize,
}

impl Crossing<'_> {
    /// Swaps pairs as long as that helps.
    fn reduce(&mut self, chosen: &mut [usize]) {
        let rack = |chosen: &[usize], at: usize| self.candidates[chosen[at]].rack;
        if (1..chosen.len()).all(|at| rack(chosen, at) == rack(chosen, 0)) {
            return;
        }
        let mut best = self.cost(chosen);
        loop {
            let before = best;
            for (one, other) in (0..chosen.len()).flat_map(|one| (0..one).map(move |other| (one, other))) {
                let slower = |chosen: &[usize]| self.seconds(chosen, one).max(self.seconds(chosen, other));
                if self.candidates[chosen[one]].rack == self.candidates[chosen[other]].rack {
                    continue;
                }
                if self.looks > LOOKS_MAX {
                    return;
                }
                let was = slower(chosen);
                chosen.swap(one, other);
                let is_no_slower = slower(chosen) <= was;
                let cost = if is_no_slower { self.cost(chosen) } else { best };
                if cost < best {
                    best = cost;
                } else {
                    chosen.swap(one, other);
                }
            }
            if best == before {
                return;
            }
        }
    }

    fn seconds(&self, chosen: &[usize], at: usize) -> f64 {
        self.candidates[chosen[at]].seconds(&self.loads[at], at < self.k)
    }

    /// The time of the slowest rack's line for each byte of a block, and the transfers between racks, in blocks.
    fn cost(&mut self, chosen: &[usize]) -> (f64, f64) {
        self.looks += self.edges.len();
        let (mut moved, mut all) = (vec![(0.0, 0.0); self.racks.lines.len()], 0.0);
        for Edge { from, to, blocks } in self.edges {
            let candidate = |at: usize| &self.candidates[chosen[at]];
            // Transfers from the writer to a node on its machine cross nothing, and the writer sends that node
            // everything that it needs.
            let is_given = candidate(*to).is_near && (from.is_none() || *to >= self.k);
            let (from, to) = (from.map_or(self.racks.writer, |from| candidate(from).rack), candidate(*to).rack);
            if is_given || from == to {
                continue;
            }
            all += blocks;
            from.and_then(|from| moved.get_mut(from)).into_iter().for_each(|(up, _)| *up += blocks);
            to.and_then(|to| moved.get_mut(to)).into_iter().for_each(|(_, down)| *down += blocks);
        }
        let line = |((up, down), (up_rate, down_rate)): ((f64, f64), &(f64, f64))| (up / up_rate).max(down / down_rate);
        (moved.into_iter().zip(&self.racks.lines).map(line).fold(0.0, f64::max), all)
    }
}
