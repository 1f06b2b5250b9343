//! The measured capacity of the links between nodes, with its age; which links to measure next; and the network that
//! follows from it.

use crate::Time;
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};
use weft_plan::Network;
use weft_types::{NodeId, Party};

/// A link: its sender and its receiver.
pub type Pair = (NodeId, NodeId);

/// The most figures that are kept; the oldest are dropped first.
const FIGURES_MAX: usize = 1 << 16;
/// The links that one round measures; of more, those that were not measured for the longest time.
pub const PAIRS_PER_ROUND: usize = 1_000;

/// The measurement of one link.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Figure {
    /// Its rate.
    pub bytes_per_s: f64,
    /// The time of a slice besides its bytes, if it could be measured.
    pub slice_overhead_s: Option<f64>,
    /// When it was measured.
    pub at: Time,
}

/// The measurements of all links.
#[derive(Debug, Default)]
pub struct Links(BTreeMap<Pair, Figure>);

impl Links {
    /// Records a measurement.
    pub fn note(&mut self, pair: Pair, figure: Figure) {
        let figures = &mut self.0;
        figures.insert(pair, figure);
        while figures.len() > FIGURES_MAX
            && let Some(oldest) = figures.iter().min_by_key(|(_, figure)| figure.at).map(|(pair, _)| *pair)
        {
            figures.remove(&oldest);
        }
    }

    /// Drops the measurements of a node that was removed.
    pub fn forget(&mut self, node: NodeId) {
        self.0.retain(|(from, to), _| ![*from, *to].contains(&node));
    }

    /// All measurements.
    pub fn figures(&self) -> &BTreeMap<Pair, Figure> {
        &self.0
    }

    /// The network according to measurements no older than `age_max`. A node's upload and download rates are those of
    /// the best of its links; a node without measurements gets the median of the others. Without any measurement, all
    /// have the rate `otherwise`, bytes a second.
    pub fn network(&self, now: Time, age_max: Duration, otherwise: f64) -> Network {
        let fresh: Vec<(Pair, Figure)> = (self.0.iter())
            .filter(|(_, figure)| now.since(figure.at) <= age_max)
            .map(|(pair, figure)| (*pair, *figure))
            .collect();
        let mut network = Network::uniform(otherwise);
        network.slice_overhead_s = slice_overhead_s(fresh.iter().map(|(_, figure)| figure)).unwrap_or(0.0);
        for ((from, to), Figure { bytes_per_s, .. }) in fresh {
            let (from, to) = (Party::Node(from), Party::Node(to));
            network.pair_bytes_per_s.insert((from, to), bytes_per_s);
            let best = |known: &mut f64| *known = known.max(bytes_per_s);
            network.up_bytes_per_s.entry(from).and_modify(best).or_insert(bytes_per_s);
            network.down_bytes_per_s.entry(to).and_modify(best).or_insert(bytes_per_s);
        }
        let known = network.up_bytes_per_s.values().chain(network.down_bytes_per_s.values());
        network.link_bytes_per_s = median(known.copied().collect()).unwrap_or(otherwise);
        network
    }
}

/// A link between racks with less than this share of its ends' rates is limited between the racks.
const HELD_UP: f64 = 0.8;

/// Sets the rates of the racks' lines, where they are known. If no link out of a rack, or none into it, reaches the
/// rate that its ends reach elsewhere, these links are taken to share a line, as wide as the best of them. A wider
/// line, which no single link fills, cannot be detected and counts as wide enough.
pub fn set_rack_lines(network: &mut Network) {
    let mut lines: [BTreeMap<String, Option<f64>>; 2] = Default::default();
    for ((from, to), rate) in &network.pair_bytes_per_s {
        let (Some(leaves), Some(enters)) = network.crosses(*from, *to) else { continue };
        let is_held_up = *rate < HELD_UP * network.up(*from).min(network.down(*to));
        for (known, rack) in lines.iter_mut().zip([leaves, enters]) {
            let line = known.entry(rack.to_owned()).or_insert(Some(0.0));
            *line = line.filter(|_| is_held_up).map(|line| line.max(*rate));
        }
    }
    let [up, down] = lines.map(|known| known.into_iter().filter_map(|(rack, line)| Some((rack, line?))).collect());
    (network.rack_up_bytes_per_s, network.rack_down_bytes_per_s) = (up, down);
}

/// The time of a slice besides its bytes, seconds: the median of all links for which it was measured.
pub fn slice_overhead_s<'a>(figures: impl Iterator<Item = &'a Figure>) -> Option<f64> {
    median(figures.filter_map(|figure| figure.slice_overhead_s).collect())
}

fn median(mut all: Vec<f64>) -> Option<f64> {
    all.sort_by(f64::total_cmp);
    all.get(all.len() / 2).copied()
}

/// The links of the next round: of `pairs`, those that were neither measured nor tried for the longest time, otherwise
/// in the given order. Attempts at other links are forgotten.
pub fn due(mut pairs: Vec<Pair>, tried: &mut BTreeMap<Pair, Time>, figures: &BTreeMap<Pair, Figure>) -> Vec<Pair> {
    let last: BTreeMap<Pair, Time> = pairs.iter().filter_map(|pair| Some((*pair, *tried.get(pair)?))).collect();
    // A link that cannot be measured waits for its next turn like all others.
    pairs.sort_by_key(|pair| last.get(pair).copied().max(figures.get(pair).map(|figure| figure.at)));
    pairs.truncate(PAIRS_PER_ROUND);
    *tried = last;
    pairs
}

/// The links from some nodes to others; an empty list means all nodes that are up.
pub fn among(ups: &[NodeId], from: &[NodeId], to: &[NodeId]) -> Vec<Pair> {
    let said = |named: &[NodeId]| -> BTreeSet<NodeId> { if named.is_empty() { ups } else { named }.iter().copied().collect() };
    let (from, to) = (said(from), said(to));
    from.iter().flat_map(|from| to.iter().filter(move |to| *to != from).map(move |to| (*from, *to))).collect()
}

/// A resource that only one probe at a time may use.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Used {
    /// A node.
    Node(NodeId),
    /// The line out of a rack.
    RackUp(String),
    /// The line into a rack.
    RackDown(String),
}

/// The resources of a probe of this link.
pub fn used(racks: &BTreeMap<Party, String>, (from, to): Pair) -> Vec<Used> {
    let rack = |node: NodeId| racks.get(&Party::Node(node));
    let crosses = rack(from) != rack(to);
    let lines = [rack(from).cloned().map(Used::RackUp), rack(to).cloned().map(Used::RackDown)];
    [Used::Node(from), Used::Node(to)].into_iter().chain(lines.into_iter().flatten().filter(|_| crosses)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(bytes_per_s: f64, slice_overhead_s: Option<f64>, at: Time) -> Figure {
        Figure { bytes_per_s, slice_overhead_s, at }
    }

    #[test]
    fn a_network_uses_recent_measurements() {
        let (mut links, begin) = (Links::default(), Time::after(Duration::from_secs(100)));
        let age_max = Duration::from_secs(60);
        let [a, b, c] = [NodeId(1), NodeId(2), NodeId(3)];
        assert_eq!(links.network(begin, age_max, 7.0), Network::uniform(7.0));
        links.note((c, a), figure(1.0, Some(9.0), begin));
        let now = begin + age_max + Duration::from_secs(1);
        assert_eq!(links.network(now, age_max, 7.0), Network::uniform(7.0), "old measurements do not count");
        for (pair, bytes_per_s, overhead_s) in
            [((a, b), 10.0, Some(1e-5)), ((a, c), 40.0, Some(3e-5)), ((b, a), 20.0, None), ((b, c), 30.0, Some(2e-5))]
        {
            links.note(pair, figure(bytes_per_s, overhead_s, now));
        }
        let network = links.network(now, age_max, 7.0);
        let party = Party::Node;
        assert_eq!((network.link_bytes_per_s, network.slice_overhead_s), (30.0, 2e-5), "the medians");
        assert_eq!(network.up_bytes_per_s, BTreeMap::from([(party(a), 40.0), (party(b), 30.0)]));
        assert_eq!(network.down_bytes_per_s, BTreeMap::from([(party(a), 20.0), (party(b), 10.0), (party(c), 40.0)]));
        assert_eq!(network.pair_bytes_per_s[&(party(a), party(b))], 10.0);
        assert!(!network.pair_bytes_per_s.contains_key(&(party(c), party(a))));
        assert_eq!(links.figures().len(), 5, "old measurements are still listed");
    }

    #[test]
    fn a_rate_that_no_link_out_of_a_rack_exceeds_is_its_line() {
        // Racks a and b have two nodes each, c has one. Rates: 10 within a rack, 4 between a and b and out of b, 10
        // into c.
        let rack = |node: u32| ["a", "a", "b", "b", "c"][node as usize];
        let mut network = Network::uniform(1.0);
        let party = |node: u32| Party::Node(NodeId(node));
        network.racks = (0..5).map(|node| (party(node), rack(node).to_owned())).collect();
        for (from, to) in (0..5).flat_map(|from| (0..5).map(move |to| (from, to))).filter(|(from, to)| from != to) {
            let rate = match (rack(from), rack(to)) {
                (one, other) if one == other => 10.0,
                ("a", "c") => 10.0,
                ("a", "b") => 4.0,
                _ => {
                    if from == 2 {
                        3.5
                    } else {
                        3.0
                    }
                }
            };
            network.pair_bytes_per_s.insert((party(from), party(to)), rate);
            network.up_bytes_per_s.insert(party(from), 10.0);
            network.down_bytes_per_s.insert(party(to), 10.0);
        }
        set_rack_lines(&mut network);
        let lines = |of: &[(&str, f64)]| of.iter().map(|(rack, rate)| ((*rack).to_owned(), *rate)).collect::<BTreeMap<_, _>>();
        // Full rate is seen out of a and into c, so the line into b is the limit.
        assert_eq!(network.rack_up_bytes_per_s, lines(&[("b", 3.5), ("c", 3.0)]));
        assert_eq!(network.rack_down_bytes_per_s, lines(&[("a", 3.5), ("b", 4.0)]));
        // Slower nodes are not slow racks.
        for ((from, to), rate) in &mut network.pair_bytes_per_s {
            *rate = if *from == party(0) || *to == party(0) { 2.0 } else { 10.0 };
        }
        (network.up_bytes_per_s, network.down_bytes_per_s) = ([(party(0), 2.0)].into(), [(party(0), 2.0)].into());
        network.link_bytes_per_s = 10.0;
        set_rack_lines(&mut network);
        assert_eq!((network.rack_up_bytes_per_s, network.rack_down_bytes_per_s), (BTreeMap::new(), BTreeMap::new()));
    }

    #[test]
    fn a_probe_uses_its_nodes_and_rack_lines_exclusively() {
        let racks: BTreeMap<Party, String> = (0..4).map(|node| (Party::Node(NodeId(node)), format!("r{}", node / 2))).collect();
        let shares = |one: (u32, u32), other: (u32, u32)| {
            let of = |(from, to)| used(&racks, (NodeId(from), NodeId(to)));
            of(one).iter().any(|it| of(other).contains(it))
        };
        assert!(shares((0, 2), (1, 3)) && shares((0, 2), (2, 3)), "a shared line between racks; a shared node");
        assert!(!shares((0, 2), (3, 1)) && !shares((0, 1), (2, 3)));
    }

    #[test]
    fn unmeasurable_links_do_not_delay_others() {
        let begin = Time::after(Duration::from_secs(100));
        let nodes: Vec<NodeId> = (1..=40).map(NodeId).collect();
        let pairs = || among(&nodes, &[], &[]);
        // The links from the first nodes cannot be measured; they are more than one round takes.
        let fails = |pair: &Pair| pair.0.0 <= 30;
        let (mut links, mut tried) = (Links::default(), BTreeMap::from([((NodeId(1), NodeId(99)), begin)]));
        for round in 0..2 {
            let at = begin + Duration::from_secs(round);
            for pair in due(pairs(), &mut tried, links.figures()) {
                tried.insert(pair, at);
                if !fails(&pair) {
                    links.note(pair, figure(1.0, None, at));
                }
            }
        }
        assert_eq!((pairs().len(), links.figures().len()), (1560, 390), "all other links were measured");
        assert!(!tried.contains_key(&(NodeId(1), NodeId(99))), "a removed node is forgotten");
        // A link that was measured on request need not be measured again at once.
        let next = due(pairs(), &mut tried, links.figures())[0];
        links.note(next, figure(1.0, None, begin + Duration::from_secs(9)));
        assert!(!due(pairs(), &mut tried, links.figures()).contains(&next));
    }

    #[test]
    fn links_are_between_different_nodes_and_as_they_were_named() {
        let [a, b, c] = [NodeId(1), NodeId(2), NodeId(3)];
        assert_eq!(among(&[a, b, c], &[], &[]).len(), 6);
        assert_eq!(among(&[a, b, c], &[b, b], &[]), [(b, a), (b, c)]);
        assert_eq!(among(&[a, b, c], &[], &[c]), [(a, c), (b, c)]);
        assert_eq!(among(&[a, b, c], &[a], &[a]), []);
    }
}
