//! Which schemes the repairs of a batch take together, and what of it is copied: the mixes from which is chosen.

use super::{super::Load, Candidate, Nodes};
use std::collections::BTreeMap;

/// The share of blocks that are copied, where they can be, is chosen in so many steps at most.
const COPIED_STEPS: usize = 64;

/// Nodes that take part in a batch of repairs.
pub(super) struct Carriers {
    /// How many may get a block.
    pub(super) destinations: usize,
    /// How many may receive anything.
    pub(super) all: usize,
    /// The bytes that each node of the cluster was given to send before, less what one that takes part was given to receive on average.
    pub(super) ahead: Vec<i128>,
}

/// A scheme for each repair, where there is one.
pub(super) type Mix = Vec<Option<Candidate>>;

/// The mixes from which is chosen, each with about the time of its busiest link, in bytes. `all`: what is possible for each repair.
pub(super) fn mixes(all: &[Vec<Candidate>], carriers: &Carriers, nodes: &Nodes) -> Vec<(Mix, f64)> {
    let is_copy = |it: &Candidate| !it.from.is_empty();
    let mut names: Vec<&'static str> = Vec::new();
    for it in all.iter().flatten().filter(|it| !is_copy(it)) {
        if !names.contains(&it.scheme) {
            names.push(it.scheme);
        }
    }
    let steps = if all.iter().flatten().any(is_copy) { all.len().min(COPIED_STEPS) } else { 0 };
    // Of `steps` repairs in a row, so many are copies where they can be.
    let by = |name: &'static str, copied: usize| -> Mix {
        let is_copied = |at: usize| (at + 1) * copied / steps.max(1) > at * copied / steps.max(1);
        let one = |(at, all): (usize, &Vec<Candidate>)| {
            let copy = all.iter().find(|it| is_copy(it)).filter(|_| is_copied(at));
            copy.or_else(|| all.iter().find(|it| it.scheme == name)).cloned().or_else(|| least_traffic(all))
        };
        all.iter().enumerate().map(one).collect()
    };
    let mixed = names.into_iter().flat_map(|name| (0..=steps).map(move |copied| (name, copied)));
    let mixed = mixed.map(|(name, copied)| by(name, copied)).chain([all.iter().map(|all| least_traffic(all)).collect()]);
    mixed.map(|mix| (estimate(&mix, nodes, carriers), mix)).map(|(bound, mix)| (mix, bound)).collect()
}

pub(super) fn least_time(all: &[Candidate]) -> Option<Candidate> {
    all.iter().min_by_key(|it| (it.parts.busiest(), it.parts.moved())).cloned()
}

pub(super) fn least_traffic(all: &[Candidate]) -> Option<Candidate> {
    all.iter().min_by_key(|it| (it.parts.moved(), it.parts.busiest())).cloned()
}

/// About the time of the busiest link, in bytes, if repairs by these schemes are balanced: all links together, those between racks, those of
/// nodes from which blocks are copied, and the largest vertices, which cannot be split.
fn estimate(mix: &[Option<Candidate>], nodes: &Nodes, carriers: &Carriers) -> f64 {
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
        it.from.iter().for_each(|node| *copied.entry(*node).or_default() += Load { up, down: 0 });
    }
    let source = |(node, load): (&u32, &Load)| {
        let ahead = carriers.ahead.get(*node as usize).copied().unwrap_or(0);
        let up = (i128::from(load.up) + ahead).clamp(0, i128::from(u64::MAX)) as u64;
        nodes.speeds.busier(*node as usize, &Load { up, down: 0 })
    };
    let sources = copied.iter().map(source).max().unwrap_or(0);
    let crossing: f64 = mix.iter().flatten().map(|it| it.parts.crossing(racks.count()) * it.scale as f64).sum();
    (moved as f64 / carriers.all.max(1) as f64)
        .max((each * roots) as f64)
        .max(largest as f64)
        .max(sources as f64)
        .max(racks.time_of_all(crossing))
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

    #[test]
    fn the_estimate_counts_a_destination_for_each_lost_block() {
        let (view, network, patterns) = (view(16, &[1, 2]), Network::uniform(1e8), Patterns::new(1 << 20));
        let nodes = Nodes::of(&Cluster { view: &view, network: &network, patterns: &patterns });
        let code = weft_codes::parse("rs(6,3)").unwrap();
        let available: Vec<u8> = (2..9).collect();
        let parts = Arc::new(parts(code.as_ref(), "conventional", &[0, 1], &available, None).unwrap());
        let mix = vec![Some(Candidate { scheme: "conventional", parts, scale: 1, from: Vec::new() }); 10];
        // Each of the two possible destinations gets a block of each stripe: six blocks arrive at one of them, and one at the other.
        let each = estimate(&mix, &nodes, &Carriers { destinations: 2, all: 14, ahead: vec![0; 16] });
        assert!((35.0..=36.0).contains(&each), "{each}");
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
            let carriers = Carriers { destinations: 15, all: 15, ahead: [vec![ahead], vec![0; 15]].concat() };
            let best = mixes(&vec![vec![chain.clone(), copy.clone()]; 48], &carriers, &nodes);
            let (mix, _) = best.into_iter().min_by(|one, other| one.1.total_cmp(&other.1)).unwrap();
            mix.iter().flatten().filter(|it| !it.from.is_empty()).count()
        };
        // x copies, and 48 - x chains that move six blocks each over 15 links: x = (6 (48 - x) + x) / 15.
        assert_eq!([0, 5, -5].map(copied), [14, 10, 18]);
    }
}
