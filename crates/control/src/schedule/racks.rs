//! Links between racks in the balance of a job. What they carry follows from who sends to whom, so the vertices of a repair cannot be
//! assigned one by one.
//!
//! Every link has a price that grows steeply with its time. Repair by repair, the places are taken back and chosen anew, where they cost
//! least; with each pass prices become steeper. This is the method of multiplicative weights (Plotkin, Shmoys, Tardos: *Fast Approximation
//! Algorithms for Fractional Packing and Covering Problems*, Mathematics of Operations Research 20(2), 1995). The same prices give a lower
//! bound: no schedule can be quicker than all repairs at their least cost, over the cost of all that the links can carry.

use super::{Assignment, Load, Part, Repair, speeds::FULL, speeds::Speeds};
use std::collections::{BTreeMap, BTreeSet};

/// How steep prices are, pass by pass.
const STEEPNESS: [f64; 16] = [4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 48.0, 64.0, 64.0, 96.0, 96.0, 128.0, 128.0, 192.0, 192.0];
/// The passes end after so many that were no better.
const FRUITLESS_MAX: usize = 4;
/// The most choices of places that are compared in all.
const CHOICES_MAX: usize = 2_000_000;
/// The destinations that are tried in each rack.
const ROOTS_PER_RACK: usize = 2;
/// The rounds of the search for the highest lower bound, and the repairs in all of them together.
const BOUND_ROUNDS: usize = 300;
const BOUND_REPAIRS: usize = 40_000;
/// The first rounds weigh all links of racks alike: those out of racks, those into them, and both.
const EVEN_ROUNDS: usize = 3;
/// Of more racks, the bound does not look at all sets.
const RACKS_IN_SETS_MAX: usize = 6;

/// The racks of nodes, and how fast their links are.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Racks {
    /// Of each node; empty if no rack's links are limited.
    of: Vec<u32>,
    /// Speeds out of each rack and into it; `None`: not limited.
    speeds: Vec<(Option<u64>, Option<u64>)>,
}

impl Racks {
    pub(super) fn new(of: Vec<u32>, speeds: Vec<(Option<u64>, Option<u64>)>) -> Self {
        match speeds.iter().any(|(up, down)| up.or(*down).is_some()) {
            true => Self { of, speeds },
            false => Self::default(),
        }
    }

    /// Whether links of racks are limited.
    pub fn are_limited(&self) -> bool {
        !self.of.is_empty()
    }

    /// How many there are, if their links are limited; otherwise 0.
    pub fn count(&self) -> usize {
        self.speeds.len()
    }

    fn at(&self, node: u32) -> usize {
        self.of.get(node as usize).map_or(0, |rack| *rack as usize)
    }

    /// What the links of each rack carry under an assignment.
    pub fn loads(&self, repair: &Repair, assignment: &Assignment) -> BTreeMap<u32, Load> {
        let (places, mut loads): (Vec<u32>, BTreeMap<u32, Load>) = (assignment.concat(), BTreeMap::new());
        for edge in repair.edges.iter().filter(|_| self.are_limited()) {
            let (from, to) = (self.at(places[edge.from]), self.at(places[edge.to]));
            if from != to {
                loads.entry(from as u32).or_default().up += edge.bytes;
                loads.entry(to as u32).or_default().down += edge.bytes;
            }
        }
        loads
    }

    /// The time in which the links of all racks together carry so many bytes, in bytes that the fastest link of a node carries in it.
    pub fn time_of_all(&self, bytes: f64) -> f64 {
        let together = |of: fn(&(Option<u64>, Option<u64>)) -> Option<u64>| -> Option<u64> { self.speeds.iter().map(of).sum() };
        let time = |speed: Option<u64>| speed.filter(|speed| *speed > 0).map_or(0.0, |speed| bytes * FULL as f64 / speed as f64);
        time(together(|(up, _)| *up)).max(time(together(|(_, down)| *down)))
    }

    /// The time of a rack's busier link, in bytes that the fastest link of a node carries in it.
    pub fn busier(&self, rack: u32, load: &Load) -> u64 {
        let (up, down) = self.speeds.get(rack as usize).copied().unwrap_or_default();
        let time = |bytes: u64, speed: Option<u64>| speed.map_or(0, |speed| bytes.saturating_mul(FULL).div_ceil(speed));
        time(load.up, up).max(time(load.down, down))
    }
}

/// The links by number: of each node, and then of each rack, the uplink and the downlink.
struct Links<'a> {
    racks: &'a Racks,
    nodes: usize,
    /// The time of a byte; 0: not limited.
    per_byte: Vec<f64>,
}

impl<'a> Links<'a> {
    fn of(speeds: &'a Speeds) -> Self {
        let (nodes, racks) = (speeds.nodes(), speeds.racks());
        let of_nodes = (0..nodes).flat_map(|node| speeds.of_node(node).map(|speed| FULL as f64 / speed as f64));
        let time = |speed: Option<u64>| speed.map_or(0.0, |speed| FULL as f64 / speed as f64);
        let of_racks = racks.speeds.iter().flat_map(|(up, down)| [time(*up), time(*down)]);
        Self { racks, nodes, per_byte: of_nodes.chain(of_racks).collect() }
    }

    const fn up(node: u32) -> usize {
        2 * node as usize
    }

    const fn down(node: u32) -> usize {
        2 * node as usize + 1
    }

    fn rack_up(&self, rack: usize) -> usize {
        2 * (self.nodes + rack)
    }

    fn rack_down(&self, rack: usize) -> usize {
        2 * (self.nodes + rack) + 1
    }

    /// The bytes that a repair moves over each link, by places.
    fn uses(&self, repair: &Repair, places: &[u32], mut each: impl FnMut(usize, u64)) {
        for (load, node) in repair.parts.iter().flat_map(|part| &part.vertices).zip(places) {
            each(Self::up(*node), load.up);
            each(Self::down(*node), load.down);
        }
        for edge in &repair.edges {
            let (from, to) = (self.racks.at(places[edge.from]), self.racks.at(places[edge.to]));
            if from != to {
                each(self.rack_up(from), edge.bytes);
                each(self.rack_down(to), edge.bytes);
            }
        }
    }
}

/// Changes assignments so that the busiest link, also of those between racks, carries as little as possible. `loads`: what the nodes, and
/// then the racks, carry already.
pub(super) fn even_out(repairs: &[Repair], chosen: &mut [Assignment], loads: &[Load], speeds: &Speeds) {
    let links = Links::of(speeds);
    let mut bytes: Vec<u64> = loads.iter().flat_map(|load| [load.up, load.down]).collect();
    bytes.resize(links.per_byte.len(), 0);
    let mut places: Vec<Vec<u32>> = chosen.iter().map(|assignment| assignment.concat()).collect();
    for (repair, places) in repairs.iter().zip(&places) {
        links.uses(repair, places, |link, more| bytes[link] += more);
    }
    let time = |bytes: &[u64], link: usize| bytes[link] as f64 * links.per_byte[link];
    let quality = |bytes: &[u64]| {
        let times = (0..bytes.len()).map(|link| time(bytes, link));
        times.fold((0.0f64, 0.0f64), |(most, squares), time| (most.max(time), squares + time * time))
    };
    let mut best = (quality(&bytes), places.clone());
    let (mut fruitless, mut choices_left) = (0, CHOICES_MAX);
    for steepness in STEEPNESS {
        let most = quality(&bytes).0.max(1.0);
        let price = |bytes: &[u64], link: usize| links.per_byte[link] * (steepness * (time(bytes, link) / most - 1.0)).exp();
        let mut prices: Vec<f64> = (0..bytes.len()).map(|link| price(&bytes, link)).collect();
        for (repair, places) in repairs.iter().zip(&mut places) {
            links.uses(repair, places, |link, less| {
                bytes[link] -= less;
                prices[link] = price(&bytes, link);
            });
            let choice = Choice { links: &links, prices: &prices, repair };
            *places = choice.cheapest(places, &mut choices_left);
            links.uses(repair, places, |link, more| {
                bytes[link] += more;
                prices[link] = price(&bytes, link);
            });
        }
        let reached = quality(&bytes);
        fruitless += 1;
        if reached < best.0 {
            (best, fruitless) = ((reached, places.clone()), 0);
        }
        if fruitless == FRUITLESS_MAX || choices_left == 0 {
            break;
        }
    }
    for (assignment, places) in chosen.iter_mut().zip(best.1) {
        let mut places = places.into_iter();
        assignment.iter_mut().flatten().zip(&mut places).for_each(|(node, place)| *node = place);
    }
}

/// The choice of the places of one repair at these prices, a price for each byte on each link.
struct Choice<'a> {
    links: &'a Links<'a>,
    prices: &'a [f64],
    repair: &'a Repair,
}

impl Choice<'_> {
    fn cost(&self, places: &[u32]) -> f64 {
        let mut cost = 0.0;
        self.links.uses(self.repair, places, |link, bytes| cost += self.prices[link] * bytes as f64);
        cost
    }

    /// The price of a byte from rack to rack.
    fn crossing(&self, from: usize, to: usize) -> f64 {
        let cost = || self.prices[self.links.rack_up(from)] + self.prices[self.links.rack_down(to)];
        if from == to { 0.0 } else { cost() }
    }

    /// About what a vertex of a part costs at a node.
    fn at_node(&self, part: &Part, node: u32) -> f64 {
        let all =
            part.vertices.iter().fold(Load::default(), |sum, load| Load { up: sum.up + load.up, down: sum.down + load.down });
        all.up as f64 * self.prices[Links::up(node)] + all.down as f64 * self.prices[Links::down(node)]
    }

    /// The cheapest places that were found; `now` if none are cheaper.
    fn cheapest(&self, now: &[u32], left: &mut usize) -> Vec<u32> {
        let Some((roots, helpers)) = self.repair.parts.split_last() else { return now.to_vec() };
        let mut best = (self.cost(now), now.to_vec());
        for roots in self.roots(roots) {
            let Some(root) = roots.first().map(|node| self.links.racks.at(*node)) else { continue };
            for order in self.orders(helpers, root) {
                if *left == 0 {
                    return best.1;
                }
                *left -= 1;
                let Some(mut places) = self.helpers(helpers, root, &order) else { continue };
                places.extend(&roots);
                let cost = self.cost(&places);
                if cost < best.0 {
                    best = (cost, places);
                }
            }
        }
        self.swapped(best.0, best.1)
    }

    /// The cheapest places that were found; none if there are none.
    fn first(&self, left: &mut usize) -> Vec<u32> {
        let Some((roots, helpers)) = self.repair.parts.split_last() else { return Vec::new() };
        let of = |roots: Vec<u32>| {
            let root = self.links.racks.at(*roots.first()?);
            Some([self.helpers(helpers, root, &[])?, roots].concat())
        };
        match self.roots(roots).into_iter().find_map(of) {
            Some(places) => self.cheapest(&places, left),
            None => Vec::new(),
        }
    }

    /// The destinations to try: the cheapest of each rack, and for further lost blocks the cheapest others.
    fn roots(&self, part: &Part) -> Vec<Vec<u32>> {
        let mut all: Vec<(f64, u32)> =
            part.candidates.all(self.links.nodes).map(|node| (self.at_node(part, node), node)).collect();
        all.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        let mut tried: BTreeMap<usize, usize> = BTreeMap::new();
        let mut found = Vec::new();
        for (_, first) in &all {
            let rack = self.links.racks.at(*first);
            let of_rack = tried.entry(rack).or_default();
            *of_rack += 1;
            if *of_rack > ROOTS_PER_RACK {
                continue;
            }
            let largest = part.vertices.iter().map(|load| load.down).max().unwrap_or(0) as f64;
            let cost = |(cost, node): &(f64, u32)| cost + largest * self.crossing(rack, self.links.racks.at(*node));
            let mut others: Vec<&(f64, u32)> = all.iter().filter(|(_, node)| node != first).collect();
            others.sort_by(|a, b| cost(a).total_cmp(&cost(b)).then(a.1.cmp(&b.1)));
            let roots: Vec<u32> =
                std::iter::once(*first).chain(others.iter().map(|(_, node)| *node)).take(part.vertices.len()).collect();
            if roots.len() == part.vertices.len() {
                found.push(roots);
            }
        }
        found
    }

    /// Orders of racks from which helpers are taken: that of the destination first, then each other one, and those with most helpers. The
    /// empty order: each helper for itself.
    fn orders(&self, helpers: &[Part], root: usize) -> Vec<Vec<usize>> {
        let has_choice = |part: &&Part| part.candidates.count(self.links.nodes) > part.vertices.len() || part.vertices.len() > 1;
        let mut held: BTreeMap<usize, usize> = BTreeMap::new();
        for node in helpers.iter().filter(has_choice).flat_map(|part| part.candidates.all(self.links.nodes)) {
            *held.entry(self.links.racks.at(node)).or_default() += 1;
        }
        held.remove(&root);
        let price = |rack: usize| self.prices[self.links.rack_up(rack)];
        let mut others: Vec<(usize, usize)> = held.into_iter().collect();
        others.sort_by(|a, b| b.1.cmp(&a.1).then(price(a.0).total_cmp(&price(b.0))));
        let all = others.iter().map(|(rack, _)| *rack);
        let mut cheapest: Vec<usize> = all.clone().collect();
        cheapest.sort_by(|a, b| price(*a).total_cmp(&price(*b)));
        let mut orders = vec![Vec::new(), std::iter::once(root).chain(cheapest).collect()];
        // All pairs of few racks; of many, each with those that have most helpers.
        let seconds = if others.len() <= RACKS_IN_SETS_MAX { others.len() } else { 2 };
        for first in all.clone() {
            for second in all.clone().filter(|second| *second != first).take(seconds.max(1)) {
                let rest = all.clone().filter(|rack| ![first, second].contains(rack));
                orders.push([root, first, second].into_iter().chain(rest).collect());
            }
            if others.len() == 1 {
                orders.push(vec![root, first]);
            }
        }
        orders
    }

    /// The places of all helpers, with those in the rack of the destination at the end of each part. `None` if there are too few.
    fn helpers(&self, helpers: &[Part], root: usize, order: &[usize]) -> Option<Vec<u32>> {
        let mut places = Vec::new();
        for part in helpers {
            let rack = |node: u32| self.links.racks.at(node);
            let rank = |node: u32| order.iter().position(|it| *it == rack(node)).unwrap_or(order.len());
            let sent = part.vertices.iter().map(|load| load.up).max().unwrap_or(0) as f64;
            // Several parts: no node takes two places.
            let free = part.candidates.all(self.links.nodes).filter(|node| !places.contains(node));
            let mut all: Vec<(usize, f64, u32)> = free
                .map(|node| {
                    // Of the whole part: so that it compares with what the part sends.
                    let cost = self.at_node(part, node) / part.vertices.len().max(1) as f64;
                    match order.is_empty() {
                        true => (0, cost + sent * self.crossing(rack(node), root), node),
                        false => (rank(node), cost, node),
                    }
                })
                .collect();
            all.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)).then(a.2.cmp(&b.2)));
            all.truncate(part.vertices.len());
            if all.len() < part.vertices.len() {
                return None;
            }
            // The first rack of a chain receives nothing.
            let into = |rack: usize| self.prices[self.links.rack_down(rack)];
            let mut chosen: Vec<u32> = all.into_iter().map(|(.., node)| node).collect();
            chosen.sort_by(|a, b| {
                let (one, other) = (rack(*a), rack(*b));
                let racks = (one == root).cmp(&(other == root)).then(into(other).total_cmp(&into(one))).then(one.cmp(&other));
                racks.then(self.prices[Links::down(*b)].total_cmp(&self.prices[Links::down(*a)])).then(a.cmp(b))
            });
            places.extend(chosen);
        }
        Some(places)
    }

    /// With places of a part exchanged where that costs less.
    fn swapped(&self, mut cost: f64, mut places: Vec<u32>) -> Vec<u32> {
        let mut begin = 0;
        for part in &self.repair.parts {
            let end = begin + part.vertices.len();
            for (one, other) in (begin..end).flat_map(|one| (one + 1..end).map(move |other| (one, other))) {
                places.swap(one, other);
                match self.cost(&places) {
                    less if less < cost => cost = less,
                    _ => places.swap(one, other),
                }
            }
            begin = end;
        }
        places
    }

    /// What the repair costs at least, wherever its places are.
    fn least(&self) -> f64 {
        let Some((roots, helpers)) = self.repair.parts.split_last() else { return 0.0 };
        let candidates: Vec<u32> = roots.candidates.all(self.links.nodes).collect();
        let racks: BTreeSet<usize> = candidates.iter().map(|node| self.links.racks.at(*node)).collect();
        let first = helpers.iter().map(|part| part.vertices.len()).sum();
        let in_rack = |root: usize| {
            let mut begin = 0;
            let mut sum = 0.0;
            for part in helpers {
                sum += self.least_of_part(part, begin, first, root);
                begin += part.vertices.len();
            }
            sum
        };
        let helpers = racks.into_iter().map(in_rack).fold(f64::INFINITY, f64::min);
        if helpers.is_finite() { helpers + self.least_at_nodes(roots, &candidates, |_| 0.0) } else { 0.0 }
    }

    /// What a part whose vertices are numbered from `begin` costs at least, if the first destination, number `root`, is in this rack.
    ///
    /// Vertices that send to the destination themselves cross to it alone. Of others, at least one crosses out of each rack that has some,
    /// at least one into that of the destination, and the others into one of these racks.
    fn least_of_part(&self, part: &Part, begin: usize, root: usize, rack: usize) -> f64 {
        let candidates: Vec<u32> = part.candidates.all(self.links.nodes).collect();
        let at = |node: u32| self.links.racks.at(node);
        let own: Vec<_> =
            self.repair.edges.iter().filter(|edge| (begin..begin + part.vertices.len()).contains(&edge.from)).collect();
        let bytes = own.iter().map(|edge| edge.bytes).min().unwrap_or(0) as f64;
        let direct = own.iter().filter(|edge| edge.to == root).count();
        if direct == part.vertices.len() {
            return self.least_at_nodes(part, &candidates, |node| bytes * self.crossing(at(node), rack));
        }
        let mut held: BTreeMap<usize, usize> = BTreeMap::new();
        candidates.iter().for_each(|node| *held.entry(at(*node)).or_default() += 1);
        let up = |of: usize| bytes * self.prices[self.links.rack_up(of)];
        let down = |of: usize| bytes * self.prices[self.links.rack_down(of)];
        let others: Vec<usize> = held.keys().copied().filter(|it| *it != rack).collect();
        if direct == 0 || others.len() > RACKS_IN_SETS_MAX {
            let alone = |node: u32| if at(node) == rack { 0.0 } else { up(at(node)) / held[&at(node)] as f64 };
            return self.least_at_nodes(part, &candidates, alone);
        }
        let of_set = |set: usize| {
            let used: Vec<usize> = (0..others.len()).filter(|at| set >> at & 1 == 1).map(|at| others[at]).collect();
            let there: Vec<u32> =
                candidates.iter().copied().filter(|node| at(*node) == rack || used.contains(&at(*node))).collect();
            if there.len() < part.vertices.len() {
                return f64::INFINITY;
            }
            let out: f64 = used.iter().map(|of| up(*of)).sum();
            let cheapest = used.iter().copied().chain([rack]).map(down).fold(f64::INFINITY, f64::min);
            let into = if used.is_empty() { 0.0 } else { down(rack) + (used.len() - 1) as f64 * cheapest };
            out + into + self.least_at_nodes(part, &there, |_| 0.0)
        };
        (0..1usize << others.len()).map(of_set).fold(f64::INFINITY, f64::min)
    }

    /// What the vertices of a part cost at least at these nodes, besides `more` for each node: the largest at the cheapest, uploads and
    /// downloads each for themselves.
    fn least_at_nodes(&self, part: &Part, nodes: &[u32], more: impl Fn(u32) -> f64) -> f64 {
        let count = part.vertices.len();
        let cheapest = |of: &dyn Fn(u32) -> f64| {
            let mut all: Vec<f64> = nodes.iter().map(|node| of(*node)).collect();
            all.sort_by(f64::total_cmp);
            all.truncate(count);
            all
        };
        let matched = |of: fn(&Load) -> u64, prices: Vec<f64>| {
            let mut loads: Vec<u64> = part.vertices.iter().map(of).collect();
            loads.sort_unstable_by(|a, b| b.cmp(a));
            loads.into_iter().zip(prices).map(|(load, price)| load as f64 * price).sum::<f64>()
        };
        let received = matched(|load| load.down, cheapest(&|node| self.prices[Links::down(node)]));
        let sent = part.vertices.first().map_or(0, |load| load.up);
        if part.vertices.iter().all(|load| load.up == sent) {
            return received + cheapest(&|node| sent as f64 * self.prices[Links::up(node)] + more(node)).into_iter().sum::<f64>();
        }
        received
            + matched(|load| load.up, cheapest(&|node| self.prices[Links::up(node)]))
            + cheapest(&more).into_iter().sum::<f64>()
    }
}

/// A lower bound of the time of the busiest link under any assignment, also of those between racks, in bytes that the fastest link of a
/// node carries in it.
pub(super) fn bound(repairs: &[Repair], speeds: &Speeds) -> u64 {
    let links = Links::of(speeds);
    let mut times = vec![0.0f64; links.per_byte.len()];
    let mut best = 0.0f64;
    let mut places: Vec<Option<Vec<u32>>> = vec![None; repairs.len()];
    let rounds = (BOUND_REPAIRS / repairs.len().max(1)).clamp(EVEN_ROUNDS, BOUND_ROUNDS);
    for round in 0..rounds {
        // The weights of the links sum up to 1.
        let most = times.iter().copied().fold(1.0, f64::max);
        let weight = |link: usize| {
            let (is_of_rack, is_up) = (link >= 2 * links.nodes, link.is_multiple_of(2));
            match round {
                _ if links.per_byte[link] == 0.0 => 0.0,
                0 => f64::from(is_of_rack && is_up),
                1 => f64::from(is_of_rack && !is_up),
                2 => f64::from(is_of_rack),
                _ => ((4.0 + round as f64) * (times[link] / most - 1.0)).exp(),
            }
        };
        let weights: Vec<f64> = (0..times.len()).map(weight).collect();
        let sum: f64 = weights.iter().sum();
        if sum == 0.0 {
            continue;
        }
        let prices: Vec<f64> = weights.iter().zip(&links.per_byte).map(|(weight, per_byte)| weight / sum * per_byte).collect();
        let (mut least, mut left) = (0.0, CHOICES_MAX);
        for (repair, places) in repairs.iter().zip(&mut places) {
            let choice = Choice { links: &links, prices: &prices, repair };
            least += choice.least();
            let chosen = match places.take() {
                Some(now) => choice.cheapest(&now, &mut left),
                None => choice.first(&mut left),
            };
            if !chosen.is_empty() {
                links.uses(repair, &chosen, |link, bytes| times[link] += bytes as f64 * links.per_byte[link]);
                *places = Some(chosen);
            }
        }
        best = best.max(least);
    }
    // Rounded down: a bound must not be above what is possible.
    (best * (1.0 - 1e-9)).floor() as u64
}

#[cfg(test)]
#[path = "racks_tests.rs"]
mod tests;
