//! Repairs between racks whose links are slower than those of nodes.

use super::{
    super::{Candidates, Parts, balance, imbalance, loads, lower_bound, parts},
    *,
};
use rand::{Rng, SeedableRng, rngs::StdRng, seq::SliceRandom as _};

/// Repairs of a block that was lost with node 0, in racks of `racks` nodes in turn. No rack has more blocks than the code tolerates to
/// lose, also after the repair.
fn stripes(spec: &str, scheme: &str, nodes: u32, racks: u32, count: usize, seed: u64) -> Vec<Repair> {
    let code = weft_codes::parse(spec).unwrap();
    let (n, most) = (code.n(), code.tolerance().max(n_per_rack(code.n(), racks)));
    let others = |lost: u8| (0..n as u8).filter(|index| *index != lost).collect::<Vec<_>>();
    let all: Vec<Parts> = (0..n as u8).map(|lost| parts(code.as_ref(), scheme, &[lost], &others(lost), None).unwrap()).collect();
    let mut rng = StdRng::seed_from_u64(seed);
    let mut one = |_| {
        let lost = rng.random_range(0..n);
        let mut homes = vec![0];
        let mut order: Vec<u32> = (1..nodes).collect();
        order.shuffle(&mut rng);
        let in_rack = |homes: &[u32], rack: u32| homes.iter().filter(|node| **node % racks == rack).count();
        for node in order {
            if homes.len() < n && in_rack(&homes, node % racks) < most {
                homes.push(node);
            }
        }
        homes.swap(0, lost);
        let held: Vec<u32> = homes.iter().copied().filter(|node| *node != 0).collect();
        let may = |node: &u32| !homes.contains(node) && in_rack(&held, node % racks) < most;
        let destinations = (1..nodes).filter(may).collect();
        all[lost].repair(1, |index| homes[usize::from(index)], Candidates::These(destinations))
    };
    (0..count).map(&mut one).collect()
}

fn n_per_rack(n: usize, racks: u32) -> usize {
    n.div_ceil(racks as usize)
}

/// Racks whose links have this part of a node's rate.
fn speeds(nodes: u32, racks: u32, part: f64) -> Speeds {
    let rates = vec![(1e8, 1e8); nodes as usize];
    Speeds::with_racks(
        &rates,
        (0..nodes).map(|node| node % racks).collect(),
        &vec![(Some(1e8 * part), Some(1e8 * part)); racks as usize],
    )
}

/// The time of the busiest link.
fn busiest(repairs: &[Repair], assignments: &[Assignment], speeds: &Speeds) -> u64 {
    let of_nodes = loads(speeds.nodes(), repairs, assignments);
    let mut of_racks: BTreeMap<u32, Load> = BTreeMap::new();
    for (repair, assignment) in repairs.iter().zip(assignments) {
        speeds.racks().loads(repair, assignment).into_iter().for_each(|(rack, load)| *of_racks.entry(rack).or_default() += load);
    }
    let nodes = of_nodes.iter().enumerate().map(|(node, load)| speeds.busier(node, load));
    nodes.chain(of_racks.iter().map(|(rack, load)| speeds.racks().busier(*rack, load))).max().unwrap_or(0)
}

#[test]
fn links_between_racks_carry_little_more_than_the_lower_bound() {
    const NODES: u32 = 16;
    let mut worst: BTreeMap<&str, f64> = BTreeMap::new();
    for spec in ["rs(6,3)", "rs(10,4)", "lrc(6,2,2)", "butterfly(4)"] {
        for scheme in ["conventional", "ppr", "pipeline"] {
            for part in [0.1, 0.05].into_iter().take(if spec == "rs(6,3)" { 2 } else { 1 }) {
                let (repairs, speeds) = (stripes(spec, scheme, NODES, 4, 64, 7), speeds(NODES, 4, part));
                let none = vec![Load::default(); NODES as usize + 4];
                let ours = balance(&repairs, &none, &speeds).unwrap();
                let (ours, least) = (busiest(&repairs, &ours, &speeds), lower_bound(&repairs, &speeds));
                let blind = balance(&repairs, &none[..NODES as usize], &Speeds::even(NODES as usize)).unwrap();
                let (blind, ratio) = (busiest(&repairs, &blind, &speeds), ours as f64 / least as f64);
                println!("{spec} {scheme} at {part}: {ratio:.3} of the bound, {:.2} without racks", blind as f64 / ours as f64);
                assert!(ratio >= 1.0 && blind >= ours);
                let worst = worst.entry(scheme).or_default();
                *worst = worst.max(ratio);
            }
        }
    }
    assert!(worst["conventional"] <= 1.06 && worst["pipeline"] <= 1.03 && worst["ppr"] <= 1.13, "{worst:?}");
}

#[test]
fn no_assignment_undercuts_the_lower_bound_between_racks() {
    for seed in 0..60 {
        let mut rng = StdRng::seed_from_u64(seed);
        let spec = ["rs(4,2)", "rs(3,2)", "lrc(4,2,2)"][seed as usize % 3];
        let scheme = ["conventional", "ppr", "pipeline"][seed as usize / 3 % 3];
        let (nodes, racks) = (12, rng.random_range(2..5));
        let repairs = stripes(spec, scheme, nodes, racks, rng.random_range(1..4), seed);
        let speeds = speeds(nodes, racks, rng.random_range(0.05..1.5));
        let least = lower_bound(&repairs, &speeds);
        // All places at random, many times.
        for _ in 0..2_000 {
            let one = |repair: &Repair| -> Assignment {
                let part = |part: &Part| {
                    let mut all: Vec<u32> = part.candidates.all(nodes as usize).collect();
                    all.shuffle(&mut rng);
                    all.truncate(part.vertices.len());
                    all
                };
                repair.parts.iter().map(part).collect()
            };
            let assignments: Vec<Assignment> = repairs.iter().map(one).collect();
            let reached = busiest(&repairs, &assignments, &speeds);
            assert!(reached >= least, "seed {seed}: {reached} of {least}");
        }
        let none = vec![Load::default(); (nodes + racks) as usize];
        let ours = balance(&repairs, &none, &speeds).unwrap();
        assert!(busiest(&repairs, &ours, &speeds) >= least, "seed {seed}");
    }
}

#[test]
fn racks_without_limited_links_change_nothing() {
    let repairs = stripes("rs(6,3)", "pipeline", 16, 4, 40, 1);
    let none = vec![Load::default(); 16];
    let rates = vec![(1e8, 1e8); 16];
    let unlimited = Speeds::with_racks(&rates, (0..16).map(|node| node % 4).collect(), &[(None, None); 4]);
    assert_eq!(unlimited, Speeds::even(16));
    let ours = balance(&repairs, &none, &unlimited).unwrap();
    assert!(imbalance(&loads(16, &repairs, &ours)) < 1.2);
    assert!(unlimited.racks().loads(&repairs[0], &ours[0]).is_empty());
}
