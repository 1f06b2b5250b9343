//! Balances the links between racks. Their load depends on which node sends to which: this module places all vertices of a repair together.
//!
//! Each link has a price per byte, which rises exponentially with the link's load, and so have the disks of each node. In each pass, every repair in
//! turn moves to the cheapest nodes that the search finds. Later passes use steeper prices. This is the method of multiplicative weights (Plotkin,
//! Shmoys, Tardos: *Fast Approximation Algorithms for Fractional Packing and Covering Problems*, Mathematics of Operations Research 20(2), 1995).
//!
//! Any prices give a lower bound of the time: the minimum cost of all repairs, divided by the cost of the bytes that all links carry in a
//! unit of time (linear programming duality).

use super::{
    repair::{Assignment, Load, Part, Repair},
    speeds::{Direction, FULL, Racks, Speeds},
};
use Direction::{Disk, Down, Up};
use std::collections::{BTreeMap, BTreeSet};

/// How steep prices are, pass by pass.
const STEEPNESS: [f64; 16] = [4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 48.0, 64.0, 64.0, 96.0, 96.0, 128.0, 128.0, 192.0, 192.0];
/// The search ends after this many passes without an improvement.
const FRUITLESS_MAX: usize = 4;
/// The search compares at most this many placements in all passes together.
const CHOICES_MAX: usize = 1_000_000;
/// But at least this many for each repair and pass.
const CHOICES_MIN: usize = 8;
/// Keeps prices finite.
const EXPONENT_MAX: f64 = 300.0;
/// The orders of racks that are tried for every destination.
const FIRST_ORDERS: usize = 2;
/// The destinations that are tried in each rack.
const ROOTS_PER_RACK: usize = 2;
/// The rounds of the search for the highest lower bound, and the repairs in all of them together.
const BOUND_ROUNDS: usize = 300;
const BOUND_REPAIRS: usize = 40_000;
/// The first rounds weigh all links of racks alike: those out of racks, those into them, and both.
const EVEN_ROUNDS: usize = 3;
/// Of more racks, the bound does not look at all sets.
const RACKS_IN_SETS_MAX: usize = 6;

/// The lines of each node, and of each rack, in the order of [`Direction`]; only nodes have disks.
const LINES: usize = 3;

/// The links by number: of each node, and then of each rack, its lines.
struct Links<'a> {
    racks: &'a Racks,
    nodes: usize,
    /// The time of a byte; 0: not limited.
    per_byte: Vec<f64>,
}

impl<'a> Links<'a> {
    fn of(speeds: &'a Speeds) -> Self {
        let (nodes, racks) = (speeds.nodes(), speeds.racks());
        let time = |speed: Option<u64>| speed.map_or(0.0, |speed| FULL as f64 / speed as f64);
        let lines: [Direction; LINES] = [Up, Down, Disk];
        let of_nodes = (0..nodes).flat_map(|node| lines.map(|line| time(speeds.at(line, node))));
        let of_racks = racks.speeds.iter().flat_map(|(up, down)| [time(*up), time(*down), 0.0]);
        Self { racks, nodes, per_byte: of_nodes.chain(of_racks).collect() }
    }

    const fn line(node: u32, line: Direction) -> usize {
        LINES * node as usize + line as usize
    }

    fn of_rack(&self, rack: usize, line: Direction) -> usize {
        LINES * (self.nodes + rack) + line as usize
    }

    /// The bytes that a repair moves over each link, by places.
    fn uses(&self, repair: &Repair, places: &[u32], mut each: impl FnMut(usize, u64)) {
        for (load, node) in repair.parts.iter().flat_map(|part| &part.vertices).zip(places) {
            each(Self::line(*node, Up), load.up);
            each(Self::line(*node, Down), load.down);
            each(Self::line(*node, Disk), load.disk);
        }
        for edge in &repair.edges {
            let (from, to) = (self.racks.at(places[edge.from]), self.racks.at(places[edge.to]));
            if from != to {
                each(self.of_rack(from, Up), edge.bytes);
                each(self.of_rack(to, Down), edge.bytes);
            }
        }
    }
}

/// Changes assignments so that the busiest link, also of those between racks, carries as little as possible. `loads`: what the nodes, and
/// then the racks, carry already.
pub(super) fn even_out(repairs: &[Repair], chosen: &mut [Assignment], loads: &[Load], speeds: &Speeds) {
    let links = Links::of(speeds);
    let mut bytes: Vec<u64> = loads.iter().flat_map(|load| [load.up, load.down, load.disk]).collect();
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
    // Chains that come to each rack once are mostly a better start.
    for (repair, places) in repairs.iter().zip(&mut places) {
        links.uses(repair, places, |link, less| bytes[link] -= less);
        links.racks.group(repair, places);
        links.uses(repair, places, |link, more| bytes[link] += more);
    }
    if quality(&bytes) < best.0 {
        best = (quality(&bytes), places.clone());
    }
    let choices = choices(repairs.len() * STEEPNESS.len());
    let mut fruitless = 0;
    for steepness in STEEPNESS {
        let most = quality(&bytes).0.max(1.0);
        let price = |bytes: &[u64], link: usize| {
            links.per_byte[link] * (steepness * (time(bytes, link) / most - 1.0)).min(EXPONENT_MAX).exp()
        };
        let mut prices: Vec<f64> = (0..bytes.len()).map(|link| price(&bytes, link)).collect();
        for (repair, places) in repairs.iter().zip(&mut places) {
            links.uses(repair, places, |link, less| {
                bytes[link] -= less;
                prices[link] = price(&bytes, link);
            });
            let choice = Choice { links: &links, prices: &prices, repair };
            *places = choice.cheapest(places, choices);
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
        if fruitless == FRUITLESS_MAX {
            break;
        }
    }
    for (assignment, places) in chosen.iter_mut().zip(best.1) {
        assignment.iter_mut().flatten().zip(places).for_each(|(node, place)| *node = place);
    }
}

/// How many choices each of so many searches compares.
fn choices(searches: usize) -> usize {
    (CHOICES_MAX / searches.max(1)).max(CHOICES_MIN)
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
        let cost = || self.prices[self.links.of_rack(from, Up)] + self.prices[self.links.of_rack(to, Down)];
        if from == to { 0.0 } else { cost() }
    }

    /// About what a vertex of a part costs at a node.
    fn at_node(&self, part: &Part, node: u32) -> f64 {
        self.of_load(&part.vertices.iter().copied().sum(), node)
    }

    /// What a load costs at a node.
    fn of_load(&self, load: &Load, node: u32) -> f64 {
        let disk = load.disk as f64 * self.prices[Links::line(node, Disk)];
        load.up as f64 * self.prices[Links::line(node, Up)] + load.down as f64 * self.prices[Links::line(node, Down)] + disk
    }

    /// The cheapest places of about so many choices; `now` if none are cheaper. Tries all destinations, the best with more orders of racks.
    fn cheapest(&self, now: &[u32], choices: usize) -> Vec<u32> {
        let Some((roots, helpers)) = self.repair.parts.split_last() else { return now.to_vec() };
        let mut best = (self.cost(now), now.to_vec());
        let mut try_one = |roots: &[u32], order: &[usize]| -> f64 {
            let root = roots.first().map_or(0, |node| self.links.racks.at(*node));
            let Some(mut places) = self.helpers(helpers, root, order) else { return f64::INFINITY };
            places.extend(roots);
            let cost = self.cost(&places);
            if cost < best.0 {
                best = (cost, places);
            }
            cost
        };
        let mut left = choices;
        let mut tried: Vec<(f64, Vec<u32>, Vec<Vec<usize>>)> = Vec::new();
        for roots in self.roots(roots) {
            let Some(root) = roots.first().map(|node| self.links.racks.at(*node)).filter(|_| left > 0) else { break };
            let mut orders = self.orders(helpers, root);
            let others = orders.split_off(FIRST_ORDERS.min(orders.len()));
            left = left.saturating_sub(orders.len());
            let cost = orders.iter().map(|order| try_one(&roots, order)).fold(f64::INFINITY, f64::min);
            tried.push((cost, roots, others));
        }
        tried.sort_by(|a, b| a.0.total_cmp(&b.0));
        let more = tried.iter().flat_map(|(_, roots, orders)| orders.iter().map(move |order| (roots, order)));
        for (roots, order) in more.take(left) {
            try_one(roots, order);
        }
        self.swapped(best.0, best.1)
    }

    /// The cheapest places that were found; none if there are none.
    fn first(&self, choices: usize) -> Vec<u32> {
        let Some((roots, helpers)) = self.repair.parts.split_last() else { return Vec::new() };
        let of = |roots: Vec<u32>| {
            let root = self.links.racks.at(*roots.first()?);
            Some([self.helpers(helpers, root, &[])?, roots].concat())
        };
        match self.roots(roots).into_iter().find_map(of) {
            Some(places) => self.cheapest(&places, choices),
            None => Vec::new(),
        }
    }

    /// The destinations to try: the cheapest of each rack, then the second ones. Further lost blocks go to the cheapest nodes in other racks, if
    /// there are any: a rack may hold only so many blocks of a stripe.
    fn roots(&self, part: &Part) -> Vec<Vec<u32>> {
        let rack = |node: u32| self.links.racks.at(node);
        let mut all: Vec<(f64, u32)> =
            part.candidates.all(self.links.nodes).map(|node| (self.at_node(part, node), node)).collect();
        all.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        let mut in_rack: BTreeMap<usize, usize> = BTreeMap::new();
        let mut firsts: Vec<(usize, u32)> = Vec::new();
        for (_, node) in &all {
            let tried = in_rack.entry(rack(*node)).or_default();
            if *tried < ROOTS_PER_RACK {
                firsts.push((*tried, *node));
                *tried += 1;
            }
        }
        // Stable: otherwise by price.
        firsts.sort_by_key(|(number, _)| *number);
        let with_others = |(_, first): (usize, u32)| {
            let mut roots = vec![first];
            while roots.len() < part.vertices.len() {
                let mut free = all.iter().map(|(_, node)| *node).filter(|node| !roots.contains(node));
                let is_apart = |node: &u32| roots.iter().all(|root| rack(*root) != rack(*node));
                let next = free.clone().find(is_apart).or_else(|| free.next())?;
                roots.push(next);
            }
            Some(roots)
        };
        firsts.into_iter().filter_map(with_others).collect()
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
        let price = |rack: usize| self.prices[self.links.of_rack(rack, Up)];
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
            let into = |rack: usize| self.prices[self.links.of_rack(rack, Down)];
            let mut chosen: Vec<u32> = all.into_iter().map(|(.., node)| node).collect();
            chosen.sort_by(|a, b| {
                let (one, other) = (rack(*a), rack(*b));
                let racks = (one == root).cmp(&(other == root)).then(into(other).total_cmp(&into(one))).then(one.cmp(&other));
                racks.then(self.prices[Links::line(*b, Down)].total_cmp(&self.prices[Links::line(*a, Down)])).then(a.cmp(b))
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
}

impl Choice<'_> {
    /// What the repair costs at least, wherever its places are.
    fn least(&self) -> f64 {
        let Some((roots, helpers)) = self.repair.parts.split_last() else { return 0.0 };
        let candidates: Vec<u32> = roots.candidates.all(self.links.nodes).collect();
        let racks: BTreeSet<usize> = candidates.iter().map(|node| self.links.racks.at(*node)).collect();
        let first = helpers.iter().map(|part| part.vertices.len()).sum();
        let is_tied = |part: &Part| part.vertices.len() == 1 && part.candidates.count(self.links.nodes) == 1;
        if helpers.iter().all(is_tied) {
            let places: Vec<u32> = helpers.iter().flat_map(|part| part.candidates.all(self.links.nodes)).collect();
            let fixed = racks.into_iter().map(|rack| self.cost_of_tied(helpers, &places, rack)).fold(f64::INFINITY, f64::min);
            return if fixed.is_finite() { fixed + self.least_at_nodes(roots, &candidates, |_| 0.0) } else { 0.0 };
        }
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

    /// What helpers cost at these places, if the first destination is in this rack. Further destinations may be anywhere.
    fn cost_of_tied(&self, helpers: &[Part], places: &[u32], rack: usize) -> f64 {
        let loads = helpers.iter().flat_map(|part| &part.vertices).zip(places);
        let at_nodes = loads.map(|(load, node)| self.of_load(load, *node));
        let at = |vertex: usize| match places.get(vertex) {
            Some(node) => Some(self.links.racks.at(*node)),
            None => (vertex == places.len()).then_some(rack),
        };
        let crossing =
            self.repair.edges.iter().filter_map(|edge| Some(edge.bytes as f64 * self.crossing(at(edge.from)?, at(edge.to)?)));
        at_nodes.sum::<f64>() + crossing.sum::<f64>()
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
        let up = |of: usize| bytes * self.prices[self.links.of_rack(of, Up)];
        let down = |of: usize| bytes * self.prices[self.links.of_rack(of, Down)];
        let others: Vec<usize> = held.keys().copied().filter(|it| *it != rack).collect();
        if direct == 0 {
            // Its data reach the destination together with those of other parts.
            return self.least_at_nodes(part, &candidates, |_| 0.0);
        }
        if others.len() > RACKS_IN_SETS_MAX {
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

    /// What the vertices of a part cost at least at these nodes, besides `more` for each: the largest at the cheapest, each line for itself.
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
        let received = matched(|load| load.down, cheapest(&|node| self.prices[Links::line(node, Down)]))
            + matched(|load| load.disk, cheapest(&|node| self.prices[Links::line(node, Disk)]));
        let sent = part.vertices.first().map_or(0, |load| load.up);
        if part.vertices.iter().all(|load| load.up == sent) {
            return received
                + cheapest(&|node| sent as f64 * self.prices[Links::line(node, Up)] + more(node)).into_iter().sum::<f64>();
        }
        received
            + matched(|load| load.up, cheapest(&|node| self.prices[Links::line(node, Up)]))
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
    let choices = choices(repairs.len() * rounds);
    for round in 0..rounds {
        // The weights of the links sum up to 1.
        let most = times.iter().copied().fold(1.0, f64::max);
        let weight = |link: usize| {
            let (is_of_rack, is_up) = (link >= LINES * links.nodes, link.is_multiple_of(LINES));
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
        let mut least = 0.0;
        for (repair, places) in repairs.iter().zip(&mut places) {
            let choice = Choice { links: &links, prices: &prices, repair };
            least += choice.least();
            let chosen = match places.take() {
                Some(now) => choice.cheapest(&now, choices),
                None => choice.first(choices),
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
