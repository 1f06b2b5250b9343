//! Measures how long path selection takes, for repairs and updates, and how often it is exact: `cargo run --release -p weft-schemes --example
//! path_times`.

// This program measures real time.
#![allow(clippy::disallowed_methods)]

use rand::{Rng, SeedableRng, rngs::StdRng};
use std::time::{Duration, Instant};
use weft_schemes::path::{self, EXACT_MAX, Selector, Tabu, Weights};

fn weights(count: usize, link: impl Fn(usize, usize) -> f64, end: impl Fn(usize) -> f64) -> Weights {
    let mut weights = Weights::new(count);
    for from in 0..count {
        (0..count).for_each(|to| weights.set_link(from, to, link(from, to)));
        weights.set_end(from, end(from));
    }
    weights
}

fn random_weights(random: &mut StdRng, count: usize, draw: impl Fn(&mut StdRng) -> f64) -> Weights {
    let drawn: Vec<f64> = (0..count * (count + 1)).map(|_| draw(random)).collect();
    weights(count, |from, to| drawn[from * count + to], |from| drawn[count * count + from])
}

/// The minimum, median, 99th percentile and maximum of many runs. Each time is the best of three, which hides most
/// other load.
fn times(runs: u64, mut run: impl FnMut(u64)) -> [Duration; 4] {
    let time = |seed: u64, run: &mut dyn FnMut(u64)| {
        let start = Instant::now();
        run(seed);
        start.elapsed()
    };
    let mut least = |seed: u64| (0..3).map(|_| time(seed, &mut run)).min().unwrap_or_default();
    let mut all: Vec<Duration> = (0..runs).map(&mut least).collect();
    all.sort_unstable();
    [all[0], all[all.len() / 2], all[all.len() * 99 / 100], all[all.len() - 1]]
}

/// The path of an update through ten racks, the paper's case (*CPU*, §6.5), and through more.
fn update_paths() {
    for racks in [4, 10, 16, 24] {
        let runs = if racks > 16 { 20 } else { 200 };
        let drawn: Vec<Weights> = (0..runs)
            .map(|seed| random_weights(&mut StdRng::seed_from_u64(seed), racks, |random| random.random_range(0.1..1.0)))
            .collect();
        let time = |selector: Selector| times(runs, |seed| drop(path::onward(&drawn[seed as usize], selector)));
        println!("update of {racks} racks, exact: min, median, p99, max {:?}", time(Selector::Exact));
        println!("update of {racks} racks, tabu: {:?}", time(Selector::Tabu(Tabu::default())));
    }
}

fn main() {
    type Draw = fn(&mut StdRng) -> f64;
    let draws: [(&str, Draw); 4] = [
        ("uniform", |random| random.random()),
        ("integers 0..8", |random| f64::from(random.random_range(0u8..8))),
        ("all equal", |_| 1.0),
        ("heavy tail", |random| random.random::<f64>().powi(-3)),
    ];
    for (count, helpers) in [(13, 10), (15, 12), (16, 12), (20, 16), (23, 16), (24, 18), (40, 30)] {
        let runs = if count <= 16 { 1000 } else { 100 };
        for (name, draw) in draws {
            let mut exact = vec![false; runs as usize];
            let drawn: Vec<Weights> =
                (0..runs).map(|seed| random_weights(&mut StdRng::seed_from_u64(seed), count, draw)).collect();
            let chain = times(runs, |seed| {
                exact[seed as usize] = path::path(&drawn[seed as usize], helpers).is_some_and(|route| route.exact);
            });
            let exact = exact.into_iter().filter(|exact| *exact).count();
            println!("{helpers} of {count}, {name}: min, median, p99, max {chain:?}; {exact} of {runs} exact");
            if count <= EXACT_MAX {
                println!(
                    "{helpers} of {count}, {name}, cycle: {:?}",
                    times(runs, |seed| drop(path::cycle(&drawn[seed as usize], helpers)))
                );
            }
        }
        // Regions with slow links to all others but one: at several thresholds, many chains almost exist.
        let ring = |seed: u64| {
            let mut random = StdRng::seed_from_u64(seed);
            let jitter: Vec<f64> = (0..count * count).map(|_| random.random_range(0.99..1.01)).collect();
            let slow = |from: usize, to: usize| {
                if from % 4 == to % 4 {
                    1.0
                } else if (from + 1) % 4 == to % 4 {
                    5.0
                } else {
                    9.0
                }
            };
            weights(count, |from, to| slow(from, to) * jitter[from * count + to], |from| slow(from, 0) * jitter[from])
        };
        let drawn: Vec<Weights> = (0..runs).map(ring).collect();
        println!(
            "{helpers} of {count}, ring of regions: {:?}",
            times(runs, |seed| drop(path::path(&drawn[seed as usize], helpers)))
        );
    }
    update_paths();
    // Four regions of four nodes, with the bandwidths of ECPipe's Table 1 (North America) between them, Mb/s.
    let table = [[501.3, 57.2, 44.1, 299.9], [55.3, 732.0, 63.3, 48.0], [46.3, 65.7, 332.5, 95.6], [297.8, 50.2, 93.6, 250.1f64]];
    let drawn: Vec<Weights> = (0..4)
        .map(|home| weights(16, |from, to| table[from / 4][to / 4].recip(), |from| table[from / 4][home].recip()))
        .collect();
    println!("12 of 16, Table 1: {:?}", times(1000, |seed| drop(path::path(&drawn[seed as usize % 4], 12))));
    let drawn = |seed| random_weights(&mut StdRng::seed_from_u64(seed), 13, |random| random.random());
    println!("10 of 13, uniform, Algorithm 1: {:?}", times(20, |seed| drop(path::algorithm_1(&drawn(seed), 10))));
}
