//! Which schemes the repairs of a batch take together, and what of it is copied: the mixes from which is chosen.

use super::{super::Load, Candidate, Nodes};
use std::collections::{BTreeMap, BTreeSet};

/// The share of blocks that are copied, where they can be, is chosen in so many steps at most.
const COPIED_STEPS: usize = 64;

/// Nodes that take part in a batch of repairs.
pub(super) struct Carriers {
    /// How many may get a block.
    pub(super) destinations: usize,
    /// Those that may receive anything.
    pub(super) all: BTreeSet<u32>,
    /// The bytes that each node of the cluster was given to send before, less what one that takes part was given to receive on average.
    pub(super) ahead: Vec<i128>,
}

/// How the scheme of each repair is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Choice {
    /// By this scheme, where it can; and of `steps` repairs in a row, so many are copies where they can be.
    Named { scheme: &'static str, copied: usize },
    /// Each by the scheme that moves least.
    LeastTraffic,
}

/// The mixes from which is chosen. Each is made when it is needed: a batch of a large cluster has thousands of repairs, and some hundred mixes.
pub(super) struct Mixes<'a> {
    /// What is possible for each repair.
    all: &'a [Vec<Candidate>],
    steps: usize,
    /// Each with about the time of its busiest link, in bytes.
    bounds: Vec<(Choice, f64)>,
}

impl<'a> Mixes<'a> {
    /// For these repairs. `all`: what is possible for each.
    pub(super) fn of(all: &'a [Vec<Candidate>], carriers: &Carriers, nodes: &Nodes) -> Self {
        let mut names: Vec<&'static str> = Vec::new();
        for it in all.iter().flatten().filter(|it| !is_copy(it)) {
            if !names.contains(&it.scheme) {
                names.push(it.scheme);
            }
        }
        let steps = if all.iter().flatten().any(is_copy) { all.len().min(COPIED_STEPS) } else { 0 };
        let named = names.into_iter().flat_map(|scheme| (0..=steps).map(move |copied| Choice::Named { scheme, copied }));
        let mut it = Self { all, steps, bounds: Vec::new() };
        it.bounds =
            named.chain([Choice::LeastTraffic]).map(|choice| (choice, estimate(&it.mix(choice), nodes, carriers))).collect();
        it
    }

    /// The least time of the busiest link with any of them, in bytes.
    pub(super) fn least(&self) -> f64 {
        self.bounds.iter().map(|(_, bound)| *bound).fold(f64::INFINITY, f64::min)
    }

    /// The mix with the least cost among those whose bounds are at most this; the first of several.
    pub(super) fn best<C: Ord>(&self, bound_max: f64, cost: impl Fn(&[Option<&Candidate>]) -> C) -> Vec<Option<Candidate>> {
        let fitting = self.bounds.iter().filter(|(_, bound)| *bound <= bound_max);
        let best = fitting.min_by_key(|(choice, _)| cost(&self.mix(*choice)));
        let best = best.map(|(choice, _)| self.mix(*choice)).unwrap_or_default();
        best.into_iter().map(|candidate| candidate.cloned()).collect()
    }

    fn mix(&self, choice: Choice) -> Vec<Option<&'a Candidate>> {
        let one = |(at, all): (usize, &'a Vec<Candidate>)| match choice {
            Choice::LeastTraffic => least_traffic(all),
            Choice::Named { scheme, copied } => {
                let is_copied = (at + 1) * copied / self.steps.max(1) > at * copied / self.steps.max(1);
                let copy = all.iter().find(|it| is_copy(it)).filter(|_| is_copied);
                copy.or_else(|| all.iter().find(|it| it.scheme == scheme)).or_else(|| least_traffic(all))
            }
        };
        self.all.iter().enumerate().map(one).collect()
    }
}

fn is_copy(it: &Candidate) -> bool {
    !it.from.is_empty()
}

pub(super) fn least_time(all: &[Candidate]) -> Option<&Candidate> {
    all.iter().min_by_key(|it| (it.parts.busiest(), it.parts.moved()))
}

pub(super) fn least_traffic(all: &[Candidate]) -> Option<&Candidate> {
    all.iter().min_by_key(|it| (it.parts.moved(), it.parts.busiest()))
}

/// About the time of the busiest link, in bytes, if repairs by these schemes are balanced: all links together, those between racks, those of
/// nodes from which blocks are copied, all disks together, and the largest vertices, which cannot be split.
fn estimate(mix: &[Option<&Candidate>], nodes: &Nodes, carriers: &Carriers) -> f64 {
    let moved: u64 = mix.iter().flatten().map(|it| it.parts.moved() * it.scale).sum();
    let largest = mix.iter().flatten().map(|it| it.parts.busiest() * it.scale).max().unwrap_or(0);
    // What a destination receives cannot be split. Of several destinations of a repair around a hub, only one receives much.
    let roots = mix.iter().flatten().map(|it| it.parts.received() * it.scale).max().unwrap_or(0).max(1);
    let received: u64 = mix.iter().flatten().map(|it| it.parts.received_by_all() * it.scale).sum();
    let each = received.div_ceil(roots * carriers.destinations.max(1) as u64);
    let racks = nodes.speeds.racks();
    let mut copied: BTreeMap<u32, Load> = BTreeMap::new();
    for it in mix.iter().flatten() {
        let up = it.parts.received() * it.scale;
        it.from.iter().for_each(|node| *copied.entry(*node).or_default() += Load::of_links(up, 0));
    }
    let source = |(node, load): (&u32, &Load)| {
        let ahead = carriers.ahead.get(*node as usize).copied().unwrap_or(0);
        let up = (i128::from(load.up) + ahead).clamp(0, i128::from(u64::MAX)) as u64;
        nodes.speeds.busier(*node as usize, &Load { up, down: 0, disk: load.up })
    };
    let sources = copied.iter().map(source).max().unwrap_or(0);
    let crossing: f64 = mix.iter().flatten().map(|it| it.parts.crossing(racks.count()) * it.scale as f64).sum();
    let at_disks: u64 = mix.iter().flatten().map(|it| it.parts.at_disks() * it.scale).sum();
    (moved as f64 / carriers.all.len().max(1) as f64)
        .max((each * roots) as f64)
        .max(largest as f64)
        .max(sources as f64)
        .max(racks.time_of_all(crossing))
        .max(nodes.speeds.time_of_disks(carriers.all.iter().copied(), at_disks))
}

#[cfg(test)]
mod tests {
    use super::{
        super::super::{Parts, parts},
        *,
    };
    use crate::{fixtures::view, schedule::Cluster};
    use std::sync::Arc;
    use weft_plan::Network;
    use weft_schemes::Patterns;
    use weft_types::{NodeId, Party};

    #[test]
    fn the_estimate_counts_a_destination_for_each_lost_block() {
        let (view, network, patterns) = (view(16, &[1, 2]), Network::uniform(1e8), Patterns::new(1 << 20));
        let nodes = Nodes::of(&Cluster { view: &view, network: &network, patterns: &patterns });
        let code = weft_codes::parse("rs(6,3)").unwrap();
        let available: Vec<u8> = (2..9).collect();
        let parts = Arc::new(parts(code.as_ref(), "conventional", &[0, 1], &available, None).unwrap());
        let one = Candidate { scheme: "conventional", parts, scale: 1, from: Vec::new() };
        let mix = vec![Some(&one); 10];
        // Each of the two possible destinations gets a block of each stripe: six blocks arrive at one of them, and one at the other.
        let each = estimate(&mix, &nodes, &Carriers { destinations: 2, all: (2..16).collect(), ahead: vec![0; 16] });
        assert!((35.0..=36.0).contains(&each), "{each}");
    }

    #[test]
    fn what_a_source_sends_ahead_of_others_is_no_load_of_its_disks() {
        let (view, patterns, mut network) = (view(16, &[]), Patterns::new(1 << 20), Network::uniform(1e8));
        network.disk_bytes_per_s.extend((1..=16).map(|node| (Party::Node(NodeId(node)), 2.5e7)));
        let nodes = Nodes::of(&Cluster { view: &view, network: &network, patterns: &patterns });
        let copy = Candidate { scheme: "direct", parts: Arc::new(Parts::of_copies(&[0], 1)), scale: 1, from: vec![0] };
        let carriers = Carriers { destinations: 15, all: (1..16).collect(), ahead: [vec![5], vec![0; 15]].concat() };
        assert_eq!(estimate(&[Some(&copy)], &nodes, &carriers), 6.0, "disks need 4 for what is read now");
    }

    #[test]
    fn no_mix_is_kept_before_one_is_chosen() {
        let (view, network, patterns) = (view(16, &[]), Network::uniform(1e8), Patterns::new(1 << 20));
        let nodes = Nodes::of(&Cluster { view: &view, network: &network, patterns: &patterns });
        let parts = Arc::new(Parts::of_copies(&[0], 1));
        let by = |scheme, from| Candidate { scheme, parts: Arc::clone(&parts), scale: 1, from };
        let all = vec![vec![by("pipeline", Vec::new()), by("conventional", Vec::new()), by("direct", vec![0])]; 100];
        let before = Arc::strong_count(&parts);
        let mixes = Mixes::of(&all, &Carriers { destinations: 15, all: (1..16).collect(), ahead: vec![0; 16] }, &nodes);
        assert_eq!((mixes.bounds.len(), Arc::strong_count(&parts)), (2 * (COPIED_STEPS + 1) + 1, before));
        assert_eq!(mixes.best(f64::INFINITY, |_| ()).len(), 100);
    }

    #[test]
    fn a_source_that_sends_more_than_others_receive_copies_less() {
        let (view, network, patterns) = (view(16, &[]), Network::uniform(1e8), Patterns::new(1 << 20));
        let nodes = Nodes::of(&Cluster { view: &view, network: &network, patterns: &patterns });
        let code = weft_codes::parse("rs(6,3)").unwrap();
        let available: Vec<u8> = (1..9).collect();
        let chain = Arc::new(parts(code.as_ref(), "pipeline", &[0], &available, None).unwrap());
        let chain = Candidate { scheme: "pipeline", parts: chain, scale: 1, from: Vec::new() };
        let copy = Candidate { scheme: "direct", parts: Arc::new(Parts::of_copies(&[0], 1)), scale: 1, from: vec![0] };
        let copied = |ahead: i128| {
            let carriers = Carriers { destinations: 15, all: (1..16).collect(), ahead: [vec![ahead], vec![0; 15]].concat() };
            let all = vec![vec![chain.clone(), copy.clone()]; 48];
            let mixes = Mixes::of(&all, &carriers, &nodes);
            let mix = mixes.best(mixes.least(), |_| ());
            mix.iter().flatten().filter(|it| !it.from.is_empty()).count()
        };
        // x copies, and 48 - x chains that move six blocks each over 15 links: x = (6 (48 - x) + x) / 15.
        assert_eq!([0, 5, -5].map(copied), [14, 10, 18]);
    }
}
