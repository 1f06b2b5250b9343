//! Golden instances of an independent model (ties to the lowest number), and bounds.

use super::{super::*, *};
use rand::{Rng, SeedableRng, rngs::StdRng};
use serde_json::Value;

fn golden() -> Value {
    serde_json::from_str(include_str!("../../tests/data/repairboost.json")).unwrap()
}

fn numbers(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|it| u32::try_from(it.as_u64().unwrap()).unwrap()).collect()
}

/// The loads of the vertices of a repair DAG: its last vertex is the destination.
fn vertices(edges: &Value) -> Vec<Load> {
    let edges: Vec<Vec<u32>> = edges.as_array().unwrap().iter().map(numbers).collect();
    let last = edges.iter().flatten().max().copied().unwrap();
    let count = |of: usize, vertex: u32| edges.iter().filter(|edge| edge[of] == vertex).count() as u64;
    (0..=last).map(|vertex| Load::of_links(count(0, vertex), count(1, vertex))).collect()
}

/// A repair of which any survivors help, and every other living node can be the destination.
fn repair(vertices: &[Load], survivors: &[u32], alive: &[u32]) -> Repair {
    let (root, helpers) = vertices.split_last().unwrap();
    let mut candidates = survivors.to_vec();
    candidates.sort_unstable();
    let others = alive.iter().copied().filter(|node| !survivors.contains(node)).collect();
    Repair {
        parts: vec![
            Part { vertices: helpers.to_vec(), candidates: Candidates::These(candidates) },
            Part { vertices: vec![*root], candidates: Candidates::These(others) },
        ],
        edges: Vec::new(),
    }
}

/// Stripes of a code on random nodes that lost a block with node 0, repaired by a scheme.
fn stripes(spec: &str, scheme: &str, nodes: usize, count: usize, seed: u64) -> Vec<Repair> {
    let code = weft_codes::parse(spec).unwrap();
    let n = code.n();
    let others = |lost: u8| (0..n as u8).filter(|index| *index != lost).collect::<Vec<_>>();
    let parts: Vec<Parts> =
        (0..n as u8).map(|lost| parts(code.as_ref(), scheme, &[lost], &others(lost), None).unwrap()).collect();
    let mut rng = StdRng::seed_from_u64(seed);
    let mut repair = |_| {
        let lost = rng.random_range(0..n);
        let mut homes: Vec<u32> = rand::seq::index::sample(&mut rng, nodes - 1, n).iter().map(|node| node as u32 + 1).collect();
        homes[lost] = 0;
        let mut holders = homes.clone();
        holders.sort_unstable();
        parts[lost].repair(1, |index| homes[usize::from(index)], Candidates::AllBut(holders))
    };
    (0..count).map(&mut repair).collect()
}

/// Every vertex has a candidate of its part, and no node takes two of a repair.
fn check(nodes: usize, repairs: &[Repair], assignments: &[Assignment]) {
    assert_eq!(repairs.len(), assignments.len());
    for (repair, assignment) in repairs.iter().zip(assignments) {
        assert_eq!(repair.parts.len(), assignment.len());
        for (part, chosen) in repair.parts.iter().zip(assignment) {
            assert_eq!(part.vertices.len(), chosen.len());
            let candidates: Vec<u32> = part.candidates.all(nodes).collect();
            assert!(chosen.iter().all(|node| candidates.contains(node)), "{chosen:?} of {candidates:?}");
        }
        let mut all: Vec<u32> = assignment.iter().flatten().copied().collect();
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count, "{assignment:?}");
    }
}

fn busiest(nodes: usize, repairs: &[Repair], assignments: &[Assignment]) -> u64 {
    check(nodes, repairs, assignments);
    loads(nodes, repairs, assignments).iter().map(Load::busier).max().unwrap()
}

#[test]
fn the_example_of_figure_6() {
    let (golden, mut loads) = (&golden()["figure6"], vec![Load::of_links(1000, 1000); 7]);
    for (node, load) in golden["before_ud"].as_object().unwrap() {
        let load = numbers(load);
        loads[node.parse::<usize>().unwrap()] = Load::of_links(load[0].into(), load[1].into());
    }
    let repair = repair(&vertices(&golden["rdag"]), &numbers(&golden["stripe_nodes"]), &numbers(&golden["alive"]));
    let chosen = algorithm_1(std::slice::from_ref(&repair), &loads).unwrap();
    for (vertex, node) in chosen[0].iter().flatten().enumerate() {
        assert_eq!(golden["map"][vertex.to_string()], *node, "v{}", vertex + 1);
    }
}

#[test]
fn algorithm_1_gives_the_loads_of_the_model_and_balance_is_never_worse() {
    for instance in golden()["instances"].as_array().unwrap() {
        let alive = numbers(&instance["alive"]);
        let nodes = alive.len() + 1;
        for (scheme, expected) in instance["algs"].as_object().unwrap() {
            let vertices = vertices(&expected["rdag"]);
            let stripes = instance["stripes_surviving_nodes"].as_array().unwrap();
            let repairs: Vec<Repair> = stripes.iter().map(|nodes| repair(&vertices, &numbers(nodes), &alive)).collect();
            let none = vec![Load::default(); nodes];
            let greedy = algorithm_1(&repairs, &none).unwrap();
            check(nodes, &repairs, &greedy);
            let load = loads(nodes, &repairs, &greedy);
            for node in &alive {
                let (up, down) = (&expected["u"][node.to_string()], &expected["d"][node.to_string()]);
                let Load { up: our_up, down: our_down, .. } = load[*node as usize];
                assert_eq!((up, down), (&our_up.into(), &our_down.into()), "{scheme}, node {node}");
            }
            if let Some(map) = expected["map"].as_array() {
                let ours: Vec<Vec<u32>> = greedy.iter().map(|parts| parts.concat()).collect();
                assert_eq!(ours, map.iter().map(numbers).collect::<Vec<_>>(), "{scheme}");
            }
            if let Some(model) = expected["rounds"].as_u64() {
                let edges: Vec<Vec<u32>> = expected["rdag"].as_array().unwrap().iter().map(numbers).collect();
                let transfer =
                    |places: &[u32], edge: &[u32]| Transfer { from: places[edge[0] as usize], to: places[edge[1] as usize] };
                let transfers = |parts: &Assignment| edges.iter().map(|edge| transfer(&parts.concat(), edge)).collect();
                let rounds = rounds(nodes, &greedy.iter().map(transfers).collect::<Vec<_>>());
                let last = u64::from(rounds.iter().flatten().max().unwrap() + 1);
                let least = expected["max_ud"].as_u64().unwrap();
                assert!(last >= least && last <= model + 1, "{scheme}: {least} <= {last} <= {model} of the model");
            }
            let (greedy, ours) =
                (busiest(nodes, &repairs, &greedy), balance(&repairs, &none, &Speeds::even(none.len())).unwrap());
            let (ours, least) = (busiest(nodes, &repairs, &ours), lower_bound(&repairs, &Speeds::even(nodes)));
            assert_eq!(expected["max_ud"], greedy, "{scheme}");
            assert!(least <= ours && ours <= greedy, "{scheme}: {least} <= {ours} <= {greedy}");
            // The bound of the linear program, which the model solved.
            assert!(instance["lb_lp"].as_f64().unwrap() <= ours as f64 + 1e-6, "{scheme}: {ours}");
        }
    }
}

/// The codes and schemes of the paper's Table 1.
#[test]
fn the_busiest_link_carries_at_most_a_twentieth_more_than_the_lower_bound() {
    const NODES: usize = 16;
    for spec in ["rs(6,3)", "rs(10,4)", "lrc(6,2,2)", "lrc(8,2,2)", "butterfly(4)", "clay(5,3,d=6)"] {
        for scheme in ["conventional", "pipeline", "ppr"] {
            for seed in 0..8 {
                let repairs = stripes(spec, scheme, NODES, 100, seed);
                let assigned = balance(&repairs, &[Load::default(); NODES], &Speeds::even(NODES)).unwrap();
                let (ours, least) = (busiest(NODES, &repairs, &assigned), lower_bound(&repairs, &Speeds::even(NODES)));
                let ratio = ours as f64 / least as f64;
                assert!(ours >= least && ratio <= 1.05, "{spec} {scheme} seed {seed}: {ours} / {least} = {ratio:.3}");
                assert_eq!(balance(&repairs, &[Load::default(); NODES], &Speeds::even(NODES)), Some(assigned));
            }
        }
    }
}

/// A stripe of this code has five helpers, of which a chain takes four: nodes with many blocks send most, however little they receive.
#[test]
fn where_uplinks_are_the_bottleneck_the_lower_bound_is_met() {
    const NODES: usize = 16;
    for seed in 0..24 {
        let repairs = stripes("butterfly(4)", "pipeline", NODES, 100, seed);
        let ours = busiest(NODES, &repairs, &balance(&repairs, &[Load::default(); NODES], &Speeds::even(NODES)).unwrap());
        assert_eq!(ours, lower_bound(&repairs, &Speeds::even(NODES)), "seed {seed}");
    }
}

#[test]
fn slow_disks_carry_less_and_the_lower_bound_is_nearly_met() {
    const NODES: usize = 16;
    // Disks at a tenth of the links, and those of node 3 at a quarter of that.
    let links = [(1e9, 1e9); NODES];
    let disks: Vec<Option<f64>> = (0..NODES).map(|node| Some(if node == 3 { 2.5e7 } else { 1e8 })).collect();
    let speeds = Speeds::of(&links).and_disks(&links, &disks);
    for scheme in ["conventional", "pipeline", "ppr"] {
        for seed in 0..4 {
            let repairs = stripes("rs(6,3)", scheme, NODES, 100, seed);
            let assigned = balance(&repairs, &[Load::default(); NODES], &speeds).unwrap();
            check(NODES, &repairs, &assigned);
            let loads = loads(NODES, &repairs, &assigned);
            let busiest = (0..NODES).map(|node| speeds.busier(node, &loads[node])).max().unwrap();
            let (least, disks) = (lower_bound(&repairs, &speeds), loads.iter().map(|load| load.disk).max().unwrap());
            assert!(busiest >= least && busiest as f64 <= 1.15 * least as f64, "{scheme} seed {seed}: {busiest} / {least}");
            assert!(loads[3].disk * 3 <= disks, "{scheme} seed {seed}: {loads:?}");
        }
    }
}

/// The helpers of these codes read different parts of their blocks.
#[test]
fn what_disks_carry_changes_nothing_where_none_was_measured() {
    const NODES: usize = 16;
    let (none, even) = ([Load::default(); NODES], Speeds::even(NODES));
    for (spec, scheme) in [("butterfly(4)", "conventional"), ("butterfly(4)", "pipeline"), ("clay(5,3,d=6)", "conventional")] {
        let mut repairs = stripes(spec, scheme, NODES, 100, 3);
        let (assigned, least) = (balance(&repairs, &none, &even), lower_bound(&repairs, &even));
        let vertices = repairs.iter_mut().flat_map(|repair| &mut repair.parts).flat_map(|part| &mut part.vertices);
        vertices.for_each(|load| load.disk = 0);
        assert_eq!((balance(&repairs, &none, &even), lower_bound(&repairs, &even)), (assigned, least), "{spec} {scheme}");
    }
}

#[test]
fn large_networks_are_thinned_out_and_still_balanced() {
    let (nodes, count) = (200, 6_000);
    let repairs = stripes("rs(6,3)", "conventional", nodes, count, 1);
    assert!(repairs.iter().map(|repair| repair.parts[1].candidates.count(nodes)).sum::<usize>() > ARCS_MAX);
    let ours = loads(nodes, &repairs, &balance(&repairs, &vec![Load::default(); nodes], &Speeds::even(nodes)).unwrap());
    let destinations = ours.iter().map(|load| load.down / 6).max().unwrap();
    assert!(destinations <= (count as u64).div_ceil(nodes as u64 - 1) + 1, "{destinations} blocks");
}

#[test]
fn a_repair_without_enough_nodes_has_no_assignment() {
    let mut repairs = stripes("rs(6,3)", "pipeline", 16, 3, 1);
    repairs[1].parts[1].candidates = Candidates::These(Vec::new());
    let none = [Load::default(); 16];
    assert_eq!((balance(&repairs, &none, &Speeds::even(none.len())), algorithm_1(&repairs, &none)), (None, None));
}

#[test]
fn nodes_that_carry_more_already_get_less() {
    let repairs = stripes("rs(6,3)", "conventional", 16, 100, 2);
    let mut before = [Load::default(); 16];
    before[1] = Load::of_links(1_000, 1_000);
    before[2] = Load::of_links(20, 24);
    let ours = loads(16, &repairs, &balance(&repairs, &before, &Speeds::even(16)).unwrap());
    assert_eq!(ours[1].down, 0);
    assert!(ours[2].up + 20 <= ours[3].up + 2 && ours[2].down + 24 <= ours[3].down + 6, "{ours:?}");
}

#[test]
fn baselines_choose_valid_nodes() {
    let repairs = stripes("lrc(6,2,2)", "pipeline", 16, 200, 3);
    let (mut rng, none) = (StdRng::seed_from_u64(1), [Load::default(); 16]);
    let random = baseline::random(16, &repairs, &mut rng);
    let (random, lru) =
        (busiest(16, &repairs, &random), busiest(16, &repairs, &baseline::Stamps::default().lru_by_stripe(16, &repairs)));
    let greedy = busiest(16, &repairs, &algorithm_1(&repairs, &none).unwrap());
    assert!(greedy <= random.min(lru), "{greedy} {random} {lru}");
}

/// Also where links differ a little, so that a whole block more on the one costs less time than on the other.
#[test]
fn no_assignment_undercuts_the_lower_bound() {
    const NODES: usize = 9;
    const BLOCK: u64 = 25 << 20;
    let mut rng = StdRng::seed_from_u64(5);
    for seed in 0..40 {
        let mut repairs =
            stripes("rs(4,2)", ["pipeline", "conventional", "ppr"][seed as usize % 3], NODES, 1 + seed as usize % 4, seed);
        let vertices = repairs.iter_mut().flat_map(|repair| &mut repair.parts).flat_map(|part| &mut part.vertices);
        vertices.for_each(|load| *load = Load { up: load.up * BLOCK, down: load.down * BLOCK, ..*load });
        let mut rate = || 1e9 * rng.random_range(0.85..1.0);
        let rates: Vec<(f64, f64)> = (0..NODES).map(|_| (rate(), rate())).collect();
        let speeds = Speeds::of(&rates);
        let least = lower_bound(&repairs, &speeds);
        for made in [balance(&repairs, &[Load::default(); NODES], &speeds), algorithm_1(&repairs, &[Load::default(); NODES])] {
            let loads = loads(NODES, &repairs, &made.unwrap());
            let busiest = loads.iter().enumerate().map(|(node, load)| speeds.busier(node, load)).max().unwrap();
            assert!(busiest >= least, "seed {seed}: {busiest} of {least}");
        }
    }
}
