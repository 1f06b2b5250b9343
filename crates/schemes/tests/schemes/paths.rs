//! Path selection finds the best path, on the paper's measurements, on an independent model's weights, and on random ones.

use proptest::prelude::*;
use rand::{Rng, SeedableRng, rngs::StdRng};
use serde_json::Value;
use weft_schemes::path::{self, EXACT_MAX, Route, Weights};

fn vectors() -> Value {
    serde_json::from_str(include_str!("data/topo_ecpipe.json")).unwrap()
}

/// Weights: `link` gives those between two candidates, `end` those between a candidate and the requestor.
fn weights(count: usize, link: impl Fn(usize, usize) -> f64, end: impl Fn(usize) -> f64) -> Weights {
    let mut weights = Weights::new(count);
    for from in 0..count {
        (0..count).for_each(|to| weights.set_link(from, to, link(from, to)));
        weights.set_end(from, end(from));
    }
    weights
}

fn random_weights(random: &mut StdRng, count: usize, mut draw: impl FnMut(&mut StdRng) -> f64) -> Weights {
    let mut weights = Weights::new(count);
    for from in 0..count {
        (0..count).for_each(|to| weights.set_link(from, to, draw(random)));
        weights.set_end(from, draw(random));
    }
    weights
}

/// The continents of Table 1, with one node in each of `regions`; a weight is the inverse of a bandwidth in Mb/s.
fn continent(name: &str, requestor: usize, regions: &[usize]) -> Weights {
    let table = &vectors()["table1"][name]["bandwidth_mbps"];
    let weight = |from: usize, to: usize| table[from][to].as_f64().unwrap().recip();
    weights(regions.len(), |from, to| weight(regions[from], regions[to]), |from| weight(regions[from], requestor))
}

/// The regions of 16 helpers, four in each of four regions, less one in `lost_in`.
fn sixteen(lost_in: Option<usize>) -> Vec<usize> {
    (0..4).flat_map(|region| std::iter::repeat_n(region, if lost_in == Some(region) { 3 } else { 4 })).collect()
}

/// Checks that a route has this many distinct candidates and the weight that it declares.
fn check(weights: &Weights, route: &Route, helpers: usize) {
    let mut members = route.order.clone();
    members.sort_unstable();
    members.dedup();
    assert_eq!((members.len(), route.order.len()), (helpers, helpers), "{route:?}");
    assert!(members.iter().all(|at| *at < weights.count()));
}

fn path(weights: &Weights, helpers: usize) -> Route {
    let route = path::path(weights, helpers).unwrap();
    check(weights, &route, helpers);
    assert_eq!(route.weight, weights.chain(&route.order));
    route
}

fn cycle(weights: &Weights, helpers: usize) -> Route {
    let route = path::cycle(weights, helpers).unwrap();
    check(weights, &route, helpers);
    assert_eq!((route.weight, route.weight), (weights.cycle(&route.order), rotated(weights, &route.order)));
    route
}

/// The greatest weight in a cycle: each candidate sends to the next, and all but the last but one send to the requestor.
fn rotated(weights: &Weights, order: &[usize]) -> f64 {
    let count = order.len();
    let links = (0..count).map(|at| weights.link(order[at], order[(at + 1) % count]));
    let ends = (0..count).filter(|at| at + 2 != count).map(|at| weights.end(order[at]));
    links.chain(ends).fold(0.0, f64::max)
}

/// The least weight over all orders of all selections.
fn brute_force(weights: &Weights, helpers: usize, of: &dyn Fn(&Weights, &[usize]) -> f64) -> f64 {
    fn extend(weights: &Weights, helpers: usize, of: &dyn Fn(&Weights, &[usize]) -> f64, order: &mut Vec<usize>) -> f64 {
        if order.len() == helpers {
            return of(weights, order);
        }
        let mut best = f64::INFINITY;
        for next in 0..weights.count() {
            if !order.contains(&next) {
                order.push(next);
                best = best.min(extend(weights, helpers, of, order));
                order.pop();
            }
        }
        best
    }
    extend(weights, helpers, of, &mut Vec::new())
}

#[test]
fn the_models_optima_are_found() {
    let mut seen = 0;
    for case in vectors()["paths"].as_array().unwrap() {
        let at = |name: &str| case[name].as_u64().unwrap() as usize;
        let (n, k, requestor) = (at("n"), at("k"), at("requestor"));
        let others: Vec<usize> = (0..n).filter(|node| *node != requestor).collect();
        let weight = |from: usize, to: usize| case["weights"][from][to].as_f64().unwrap();
        let weights = weights(n - 1, |from, to| weight(others[from], others[to]), |from| weight(others[from], requestor));
        let route = path(&weights, k);
        assert_eq!((route.weight, route.exact), (case["opt_max_weight"].as_f64().unwrap(), true), "{case}");
        assert_eq!(path::algorithm_1(&weights, k).unwrap().weight, route.weight);
        seen += 1;
    }
    assert_eq!(seen, 16);
}

#[test]
fn the_path_through_table_1_uses_its_best_links() {
    let (vectors, mut seen) = (vectors(), 0);
    for (name, continent_of) in vectors["table1"].as_object().unwrap() {
        for (requestor, region) in continent_of["optimal"].as_array().unwrap().iter().enumerate() {
            let names = continent_of["regions"].as_array().unwrap();
            assert_eq!(names[requestor], region["requestor"]);
            let mut cases = vec![(sixteen(None), &region["helpers16"])];
            let lost = |at: usize| &region["lost_in"][names[at].as_str().unwrap()];
            cases.extend((0..4).map(|at| (sixteen(Some(at)), lost(at))));
            for (regions, optimum) in cases {
                let route = path(&continent(name, requestor, &regions), 12);
                let mbps = optimum["bw_mbps"].as_f64().unwrap();
                assert!((route.weight.recip() - mbps).abs() < 1e-9 && route.exact, "{name}, {requestor}: {route:?} for {mbps}");
                seen += 1;
            }
        }
    }
    assert_eq!(seen, 2 * 4 * 5);
}

#[test]
fn with_equal_links_preferred_helpers_are_chosen_in_their_order() {
    for (count, helpers) in [(1, 1), (2, 1), (4, 3), (13, 10), (15, 12), (20, 10), (23, 16), (40, 30), (254, 200)] {
        let route = path(&weights(count, |_, _| 1.0, |_| 1.0), helpers);
        assert_eq!(route, Route { order: (0..helpers).collect(), weight: 1.0, exact: true }, "{count} candidates");
    }
    assert_eq!(path::path(&Weights::new(3), 4), None);
    assert_eq!(path::path(&Weights::new(3), 0), None);
    assert_eq!(path::cycle(&Weights::new(3), 2), None, "that is a chain");
}

#[test]
fn racks_are_crossed_as_seldom_as_possible() {
    let mut equal = weights(9, |_, _| 1.0, |_| 1.0);
    // Three candidates in each rack; the requestor is in rack 0.
    let racks: Vec<Option<usize>> = (0..9).map(|at| Some(at % 3)).chain([Some(0)]).collect();
    equal.set_racks(&racks);
    // The requestor is in rack 0: its three candidates come last, after three of another rack.
    let route = path(&equal, 6);
    assert_eq!((route.order.clone(), equal.crossings(&route.order)), (vec![1, 4, 7, 0, 3, 6], 1));
    let route = path(&equal, 9);
    assert_eq!((route.order.clone(), equal.crossings(&route.order)), (vec![1, 4, 7, 2, 5, 8, 0, 3, 6], 2));
    // The path avoids a slow link within a rack, and leaves a rack only for that.
    equal.set_link(1, 4, 2.0);
    equal.set_link(4, 1, 2.0);
    let route = path(&equal, 9);
    assert_eq!((route.weight, equal.crossings(&route.order)), (1.0, 2), "{route:?}");
    // More candidates than the table has room for.
    let mut many = weights(60, |_, _| 1.0, |_| 1.0);
    many.set_racks(&(0..60).map(|at| Some(at % 6)).chain([Some(0)]).collect::<Vec<_>>());
    let route = path(&many, 30);
    assert_eq!((route.exact, many.crossings(&route.order)), (true, 2));
}

#[test]
fn a_straggler_helps_only_if_no_other_node_is_left() {
    let mut slow = weights(6, |_, _| 1.0, |_| 1.0);
    slow.slow_down(2, 50.0);
    assert_eq!(path(&slow, 5).order, [0, 1, 3, 4, 5]);
    assert_eq!(path(&slow, 6).weight, 50.0);
    assert_eq!(cycle(&slow, 5).weight, 1.0);
    let dead = weights(4, |_, _| f64::INFINITY, |_| f64::NAN);
    assert_eq!(path(&dead, 3).weight, f64::INFINITY, "a chain with a dead link still has a route");
}

#[test]
fn a_search_over_too_many_candidates_is_bounded_and_reported() {
    let mut random = StdRng::seed_from_u64(3);
    let mut proved = 0;
    for count in [EXACT_MAX + 1, 30, 60, 254] {
        for helpers in [count / 2, count * 3 / 4] {
            let weights = random_weights(&mut random, count, |random| random.random());
            let route = path(&weights, helpers);
            let as_they_come: Vec<usize> = (0..helpers).collect();
            assert!(route.weight < weights.chain(&as_they_come));
            proved += usize::from(route.exact);
            // Few candidates have slow links to the requestor: a cycle can avoid them or use one.
            let slow = self::weights(count, |from, to| weights.link(from, to), |from| if from % 7 == 0 { 9.0 } else { 0.0 });
            assert!(cycle(&slow, helpers).weight < 1.0);
        }
    }
    assert!(proved < 8, "no hard case was tried");
}

proptest! {
    #[test]
    fn no_chain_or_cycle_is_better(seed: u64, count in 2usize..=7, distinct in 1u32..40) {
        let mut random = StdRng::seed_from_u64(seed);
        let weights = random_weights(&mut random, count, |random| f64::from(random.random_range(0..distinct)));
        let helpers = random.random_range(1..=count.min(6));
        let route = path(&weights, helpers);
        prop_assert_eq!((route.weight, route.exact), (brute_force(&weights, helpers, &|w, order| w.chain(order)), true));
        prop_assert_eq!(path::algorithm_1(&weights, helpers).unwrap().weight, route.weight);
        if helpers > 2 {
            let route = cycle(&weights, helpers);
            prop_assert_eq!((route.weight, route.exact), (brute_force(&weights, helpers, &rotated), true));
        }
    }

    #[test]
    fn algorithm_1_finds_nothing_better_for_usual_codes(seed: u64, (count, helpers) in prop::sample::select(vec![(8, 6), (9, 6), (9, 7)])) {
        let mut random = StdRng::seed_from_u64(seed);
        let weights = random_weights(&mut random, count, |random| random.random());
        prop_assert_eq!(path::algorithm_1(&weights, helpers).unwrap().weight, path(&weights, helpers).weight);
    }
}
