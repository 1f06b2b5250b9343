//! Table 3 of "CPU: Cross-Rack-Aware Pipelining Update for Erasure-Coded Storage" (Wu, Du, Gong, Wu), §6.5: how good the paths of its tabu search are,
//! and how long it takes, beside the exact search. The paper's rates between its eleven nodes are not published, so here they are drawn, once. Nothing
//! is sent.

use super::{
    cpu::NAME,
    report::{read_json, write_json},
};
use crate::bench::{self, Machine, median, percentile};
use serde::{Deserialize, Serialize};
use std::path::Path;
use tokio::time::Instant;
use weft_cli::{interrupt, table::columns};
use weft_schemes::path::{Selector, Tabu, Weights, onward};
use weft_types::{Error, Result};

/// The results, in the form of `weft bench`.
pub(crate) type Report = bench::Report<Asked, Row>;

/// The name of the table, and of its files.
pub(crate) const TABLE_3: &str = "table3";
const FILE: &str = "cpu-table3.json";
/// Searches from each node, as in the paper.
pub(crate) const RUNS: usize = 1000;
/// The paper shows the time of so many bits over a link.
const SHOWN_MBIT: f64 = 1000.0;
/// Rates between eleven nodes, four matrices of each kind.
const MATRICES: &str = include_str!("../../../schemes/tests/schemes/data/eleven_nodes.json");
const KINDS: [&str; 3] = ["uniformly random", "random places", "Amazon's regions"];
const MATRICES_OF_KIND: usize = 4;

/// The settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Asked {
    /// Searches from each node.
    pub(crate) runs: usize,
    /// Steps of a search.
    pub(crate) iterations: u32,
    pub(crate) seed: u64,
}

/// All searches from one node of a matrix.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Row {
    /// How the rates were drawn.
    pub(crate) kind: String,
    /// The matrix, from 0.
    pub(crate) matrix: usize,
    /// The node with the change, from 1.
    pub(crate) location: usize,
    /// The time of 1 Gb over the slowest link of the best path, seconds.
    pub(crate) best_s: f64,
    /// The least that the tabu searches found, and their mean.
    pub(crate) tabu_best_s: f64,
    pub(crate) tabu_mean_s: f64,
    /// How much the mean is above the best.
    pub(crate) gap: f64,
    /// The part of the searches that found the best.
    pub(crate) hits: f64,
    /// The median, the 99th percentile and the longest time of a search, milliseconds.
    pub(crate) tabu_ms: [f64; 3],
    pub(crate) exact_ms: [f64; 3],
}

#[derive(Deserialize)]
struct Matrices {
    mbps: Vec<Vec<Vec<f64>>>,
}

/// Searches paths from all nodes of all matrices; `told` gets what is done.
pub(crate) fn run(asked: Asked, told: impl Fn(usize, usize)) -> Result<Report> {
    let Matrices { mbps } = serde_json::from_str(MATRICES).map_err(Error::fatal)?;
    let all = mbps.iter().map(Vec::len).sum();
    let mut results = Vec::with_capacity(all);
    for (matrix, rates) in mbps.iter().enumerate() {
        for source in 0..rates.len() {
            interrupt::check()?;
            results.push(row(asked, matrix, rates, source));
            told(results.len(), all);
        }
    }
    Ok(Report { machine: Machine::this(), settings: asked, results, warnings: Vec::new() })
}

fn row(asked: Asked, matrix: usize, rates: &[Vec<f64>], source: usize) -> Row {
    let weights = weights(rates, source);
    let timed = |selector| {
        let begun = Instant::now();
        let weight = onward(&weights, selector).weight;
        (weight, begun.elapsed().as_secs_f64() * 1e3)
    };
    let search = |run: usize| {
        let seed = asked.seed.wrapping_add(run as u64);
        timed(Selector::Tabu(Tabu { iterations: asked.iterations, tenure: asked.iterations, seed }))
    };
    let (found, tabu_ms): (Vec<f64>, Vec<f64>) = (0..asked.runs).map(search).unzip();
    let (best, exact_ms): (Vec<f64>, Vec<f64>) = (0..asked.runs).map(|_| timed(Selector::Exact)).unzip();
    let best = best.into_iter().fold(f64::INFINITY, f64::min);
    let mean = found.iter().sum::<f64>() / found.len() as f64;
    Row {
        kind: KINDS.get(matrix / MATRICES_OF_KIND).copied().unwrap_or_default().to_owned(),
        matrix,
        location: source + 1,
        best_s: best * SHOWN_MBIT,
        tabu_best_s: found.iter().copied().fold(f64::INFINITY, f64::min) * SHOWN_MBIT,
        tabu_mean_s: mean * SHOWN_MBIT,
        gap: mean / best - 1.0,
        hits: found.iter().filter(|weight| **weight <= best).count() as f64 / found.len() as f64,
        tabu_ms: times(tabu_ms),
        exact_ms: times(exact_ms),
    }
}

fn times(mut ms: Vec<f64>) -> [f64; 3] {
    ms.sort_by(f64::total_cmp);
    [median(&ms).unwrap_or(f64::NAN), percentile(&ms, 99), percentile(&ms, 100)]
}

/// The weights of links by their rates, Mb/s: the source is the requestor, all links are in their reverse direction.
fn weights(rates: &[Vec<f64>], source: usize) -> Weights {
    let others: Vec<usize> = (0..rates.len()).filter(|at| *at != source).collect();
    let mut weights = Weights::new(others.len());
    for (from, at) in others.iter().enumerate() {
        for (to, other) in others.iter().enumerate().filter(|(to, _)| *to != from) {
            weights.set_onward(from, to, rates[*at][*other].recip());
        }
        weights.set_end(from, rates[source][*at].recip());
    }
    weights
}

const HEADING: [&str; 6] = ["location", "OPT", "best", "mean", "gap", "hits"];

/// A statement of the paper, and our ranges for each kind of matrix.
fn claims(report: &Report) -> Vec<Vec<String>> {
    let range = |kind: &str, of: &dyn Fn(&Row) -> f64, shown: &dyn Fn(f64) -> String| {
        let all = || report.results.iter().filter(|row| row.kind == kind).map(of);
        let (least, most) = (all().fold(f64::INFINITY, f64::min), all().fold(f64::NEG_INFINITY, f64::max));
        format!("{}-{}", shown(least), shown(most))
    };
    let claim = |text: &str, paper: &str, of: &dyn Fn(&Row) -> f64, shown: &dyn Fn(f64) -> String| {
        let here = KINDS.iter().map(|kind| range(kind, of, shown));
        [text.to_owned(), paper.to_owned()].into_iter().chain(here).collect()
    };
    let percent = |part: f64| format!("{:.1} %", part * 100.0);
    let ms = |ms: f64| format!("{ms:.3} ms");
    vec![
        claim("mean above the best path", "1.9-6.8 %", &|row| row.gap, &percent),
        claim("searches that find the best path", "21-65 %", &|row| row.hits, &percent),
        claim("median time of a tabu search", "below 3.5 ms", &|row| row.tabu_ms[0], &ms),
        claim("99th percentile of a tabu search", "-", &|row| row.tabu_ms[1], &ms),
        claim("median time of the exact search", "over 350 ms, by brute force", &|row| row.exact_ms[0], &ms),
        claim("99th percentile of the exact search", "-", &|row| row.exact_ms[1], &ms),
    ]
}

fn claims_heading() -> Vec<String> {
    ["", "paper"].into_iter().chain(KINDS).map(str::to_owned).collect()
}

/// The paper's columns, of the first matrix between Amazon's regions.
fn shown(report: &Report) -> Vec<Vec<String>> {
    let of = |row: &Row| {
        let seconds = |s: f64| format!("{s:.2} s");
        let percent = |part: f64| format!("{:.1} %", part * 100.0);
        let times = [row.best_s, row.tabu_best_s, row.tabu_mean_s].map(seconds);
        let parts = [percent(row.gap), percent(row.hits)];
        std::iter::once(row.location.to_string()).chain(times).chain(parts).collect()
    };
    report.results.iter().filter(|row| row.matrix == SHOWN_MATRIX).map(of).collect()
}

const SHOWN_MATRIX: usize = 8;

/// The command that computes it again in the same way.
fn command(report: &Report) -> String {
    let Asked { runs, seed, .. } = report.settings;
    let runs = if runs == RUNS { String::new() } else { format!(" --runs {runs}") };
    let seed = if seed == super::SEED { String::new() } else { format!(" --seed {seed}") };
    format!("weft reproduce {NAME} --table 3{runs}{seed}")
}

/// For a person.
pub(crate) fn text(report: &Report) -> String {
    let heading = claims_heading();
    let claims = columns(heading.iter().map(String::as_str), &[1, 2, 3, 4], claims(report));
    let table = columns(HEADING, &[1, 2, 3, 4, 5], shown(report));
    let (runs, iterations, machine) = (report.settings.runs, report.settings.iterations, &report.machine);
    let command = command(report);
    format!(
        "table 3 of {NAME}: paths over eleven nodes, {runs} tabu searches of {iterations} steps from each node of twelve drawn matrices\n{command}\n\n\
         {claims}\n\none of Amazon's regions by their distance; time of 1 Gb over the slowest link\n{table}\n\n{machine}"
    )
}

const ABOUT: &str = "Searches the path of an update from each of eleven nodes, as in the paper's §6.5: by its tabu search, and exactly. Nothing is sent. The paper's \
    rates are not published. Here they are drawn once and kept: four matrices are uniformly random, in four the rate falls with the distance of random places, \
    and in four with the distance of eleven regions of Amazon EC2. Ranges are over all nodes and matrices of a kind. The exact search is timed as often. The \
    paper's exact search is brute force, which tries all paths; ours is not, so their times are those of two algorithms.";

/// The part of the page.
pub(super) fn section(report: &Report, to: &str) -> String {
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let claims: String = claims(report).iter().map(|cells| line(cells)).collect();
    let table: String = shown(report).iter().map(|cells| line(cells)).collect();
    let (heading, shown_heading) = (line(&claims_heading()), line(&HEADING.map(str::to_owned)));
    let Asked { runs, iterations, .. } = report.settings;
    format!(
        "\n### Table 3: Paths by tabu search\n\n{ABOUT}\n\n```text\n{command}\n```\n\n{heading}| --- |{}\n{claims}\n\
         One of the matrices between Amazon's regions, in the paper's form: the time of 1 Gb over the slowest link of the path.\n\n{shown_heading}| --: |{}\n\
         {table}\n{runs} searches of {iterations} steps from each node; {machine}. All numbers: [{FILE}]({to}{FILE}).\n",
        " --: |".repeat(1 + KINDS.len()),
        " --: |".repeat(HEADING.len() - 1),
        command = command(report),
        machine = report.machine,
    )
}

/// Writes the results into `dir`.
pub(crate) fn write(report: &Report, dir: &Path) -> Result<()> {
    write_json(report, dir, FILE)
}

/// The results, if `dir` has them.
pub(crate) fn read(dir: &Path) -> Result<Option<Report>> {
    read_json(dir, FILE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tabu_searches_stand_beside_the_best_path_of_every_node() {
        let report = run(Asked { runs: 10, iterations: 100, seed: 1 }, |_, _| {}).unwrap();
        assert_eq!(report.results.len(), 12 * 11);
        for row in &report.results {
            assert!(row.best_s <= row.tabu_best_s && row.tabu_best_s < row.tabu_mean_s + 1e-9, "{row:?}");
            assert_eq!(row.hits > 0.0, row.tabu_best_s == row.best_s, "{row:?}");
            assert!((row.best_s * (1.0 + row.gap) - row.tabu_mean_s).abs() < 1e-9 && row.gap < 0.5, "{row:?}");
            assert!(row.tabu_ms[0] > 0.0 && row.tabu_ms[1] <= row.tabu_ms[2] && row.exact_ms[0] > 0.0, "{row:?}");
        }
        let again = run(Asked { runs: 10, iterations: 100, seed: 1 }, |_, _| {}).unwrap();
        let found = |report: &Report| report.results.iter().map(|row| (row.tabu_mean_s, row.hits)).collect::<Vec<_>>();
        assert_eq!(found(&report), found(&again), "the same seed gives the same paths");
        let dir = tempfile::tempdir().unwrap();
        write(&report, dir.path()).unwrap();
        let kept = read(dir.path()).unwrap().unwrap();
        assert_eq!((kept.settings, &kept.results), (report.settings, &report.results));
        for text in [text(&report), section(&kept, "figures/")] {
            assert!(text.contains("weft reproduce cpu --table 3 --runs 10\n") && text.contains("21-65 %"), "{text}");
            assert!(text.contains("| 11 |") || text.contains("\n11 "), "{text}");
        }
    }
}
