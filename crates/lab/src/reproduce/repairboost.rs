//! Table 1 of "Boosting Full-Node Repair in Erasure-Coded Storage" (Lin et al., USENIX ATC 2021), §5.1: how unevenly a
//! node's repair loads the links if each stripe's helpers and destination are chosen on their own. Nothing is sent: the
//! loads follow from the plans.

use super::report::{read_json, write_json};
use crate::bench::{self, Machine};
use rand::{Rng, SeedableRng, rngs::StdRng, seq::index};
use serde::{Deserialize, Serialize};
use std::{path::Path, sync::Mutex, thread};
use weft_cli::{interrupt, table::columns};
use weft_control::schedule::{
    Assignment, Candidates, Load, Parts, Repair, Speeds, algorithm_1, balance, baseline, imbalance, loads, lower_bound, parts,
};
use weft_types::{Error, Result};

/// The results, in the form of `weft bench`.
pub(crate) type Report = bench::Report<Asked, Cell>;

pub(crate) const NAME: &str = "repairboost";
pub(crate) const TITLE: &str =
    "Boosting Full-Node Repair in Erasure-Coded Storage (S. Lin, G. Gong, Z. Shen, P. P. C. Lee, J. Shu)";
/// The name of the table, and of its files.
pub(crate) const TABLE_1: &str = "table1";
/// Sets of five runs that the paper's number is compared with.
pub(crate) const SETS: usize = 1000;

/// The paper's setting: the lost node and 15 others, 100 lost blocks, five runs.
const NODES: usize = 16;
const BLOCKS: usize = 100;
const RUNS: usize = 5;
/// Balanced assignments take longer to compute, and differ little from set to set.
const BALANCED_SETS: usize = 100;

/// Our codes for the paper's. RC(k, m, d) are regenerating codes with d helpers.
const CODES: [(&str, &str); 6] = [
    ("RS(6,3)", "rs(6,3)"),
    ("RS(10,4)", "rs(10,4)"),
    ("LRC(6,2,2)", "lrc(6,2,2)"),
    ("LRC(8,2,2)", "lrc(8,2,2)"),
    ("RC(4,2,5)", "butterfly(4)"),
    ("RC(5,3,6)", "clay(5,3,d=6)"),
];
const SCHEMES: [(&str, &str); 3] = [("CR", "conventional"), ("ECPipe", "pipeline"), ("PPR", "ppr")];

/// The paper's numbers: for each code and scheme random, LRU.
const PAPER: [[[f64; 2]; 3]; 6] = [
    [[1.64, 1.65], [1.25, 1.44], [1.30, 1.43]],
    [[1.67, 1.82], [1.14, 1.41], [1.25, 2.01]],
    [[1.67, 1.68], [1.34, 1.32], [1.46, 1.37]],
    [[1.63, 1.65], [1.25, 1.26], [1.33, 1.43]],
    [[1.71, 1.74], [1.29, 1.31], [1.37, 1.32]],
    [[1.70, 1.73], [1.25, 1.30], [1.33, 1.35]],
];

/// How nodes are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Select {
    /// At random.
    Random,
    /// The least recently used, one time for all nodes of a stripe.
    LruStripe,
    /// The paper's Algorithm 1.
    Algorithm1,
    /// By maximum flow.
    Balance,
}

const SELECTS: [Select; 4] = [Select::Random, Select::LruStripe, Select::Algorithm1, Select::Balance];

/// The settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Asked {
    /// Sets of five runs.
    pub(crate) sets: usize,
    pub(crate) seed: u64,
}

/// One code, scheme and way to choose.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Cell {
    /// As the paper calls it.
    pub(crate) code: String,
    pub(crate) scheme: String,
    pub(crate) select: Select,
    /// The paper's number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) paper: Option<f64>,
    /// The busiest link relative to the mean.
    #[serde(flatten)]
    pub(crate) spread: Spread,
    /// The same if the chosen nodes take the vertices in the opposite order; only where nodes are chosen in an order, by LRU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) turned: Option<Spread>,
    /// The busiest link relative to the instance's lower bound: the mean and the largest of the runs for which a bound was computed.
    pub(crate) over_bound: f64,
    pub(crate) over_bound_max: f64,
}

/// The mean of all sets of five runs, and the interval of 95 % of them.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Spread {
    pub(crate) mean: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
}

/// Computes the table. `told` is called with the number of done rows and their total.
pub(crate) fn run(asked: Asked, told: impl Fn(usize, usize) + Sync) -> Result<Report> {
    let rows: Vec<(usize, usize)> =
        (0..CODES.len()).flat_map(|code| (0..SCHEMES.len()).map(move |scheme| (code, scheme))).collect();
    let (next, done) = (Mutex::new(rows.iter()), Mutex::new(Vec::with_capacity(rows.len())));
    let worker = || -> Result<()> {
        loop {
            let row = next.lock().map_err(Error::fatal)?.next().copied();
            let Some(row) = row else { return Ok(()) };
            let cells = self::row(asked, row)?;
            let mut done = done.lock().map_err(Error::fatal)?;
            done.push((row, cells));
            told(done.len(), rows.len());
        }
    };
    let workers = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        let all: Vec<_> = (0..workers).map(|_| scope.spawn(worker)).collect();
        all.into_iter()
            .try_for_each(|worker| worker.join().unwrap_or_else(|_| Err(Error::fatal("internal error: a worker panicked"))))
    })?;
    let mut done = done.into_inner().map_err(Error::fatal)?;
    done.sort_by_key(|(row, _)| *row);
    let results = done.into_iter().flat_map(|(_, cells)| cells).collect();
    Ok(Report { machine: Machine::this(), settings: asked, results, warnings: Vec::new() })
}

/// All ways to choose for one code and scheme, on the same stripes.
fn row(asked: Asked, (code_at, scheme_at): (usize, usize)) -> Result<Vec<Cell>> {
    let ((code_name, spec), (scheme_name, scheme)) = (CODES[code_at], SCHEMES[scheme_at]);
    let code = weft_codes::parse(spec).map_err(Error::fatal)?;
    let others = |lost: u8| (0..code.n() as u8).filter(|index| *index != lost).collect::<Vec<_>>();
    let all = (0..code.n() as u8).map(|lost| parts(code.as_ref(), scheme, &[lost], &others(lost), None));
    let all = all.collect::<Result<Vec<Parts>>>()?;
    let (mut imbalances, mut bounded) = ([const { Vec::new() }; SELECTS.len()], [const { Vec::new() }; SELECTS.len()]);
    let mut turned = Vec::new();
    for set in 0..asked.sets {
        interrupt::check()?;
        let (mut sums, mut turned_sum) = ([0.0; SELECTS.len()], 0.0);
        for run in 0..RUNS {
            let number = ((code_at * SCHEMES.len() + scheme_at) * asked.sets + set) * RUNS + run;
            let mut rng = StdRng::seed_from_u64(asked.seed.wrapping_add(number as u64));
            let repairs: Vec<Repair> = (0..BLOCKS).map(|_| lost_block(&all, &mut rng)).collect();
            let is_bounded = set < BALANCED_SETS;
            let least = is_bounded.then(|| lower_bound(&repairs, &Speeds::even(NODES)));
            for (at, select) in SELECTS.into_iter().enumerate() {
                let balanced = matches!(select, Select::Algorithm1 | Select::Balance);
                if balanced && !is_bounded {
                    continue;
                }
                let mut chosen = chosen(select, &repairs, &mut rng)?;
                // The lost node is node 0, which takes no part.
                let loads_of = |chosen: &[Assignment]| loads(NODES, &repairs, chosen).split_off(1);
                let loads = loads_of(&chosen);
                sums[at] += imbalance(&loads);
                if select == Select::LruStripe {
                    chosen.iter_mut().flatten().for_each(|part| part.reverse());
                    turned_sum += imbalance(&loads_of(&chosen));
                }
                if let Some(least) = least {
                    let busiest = loads.iter().map(Load::busier).max().unwrap_or(0);
                    bounded[at].push(busiest as f64 / least as f64);
                }
            }
        }
        for (at, sum) in sums.into_iter().enumerate().filter(|(_, sum)| *sum > 0.0) {
            imbalances[at].push(sum / RUNS as f64);
        }
        turned.push(turned_sum / RUNS as f64);
    }
    let cell = |(at, select): (usize, Select)| {
        let bounded = &bounded[at];
        Cell {
            code: code_name.to_owned(),
            scheme: scheme_name.to_owned(),
            select,
            paper: PAPER[code_at][scheme_at].get(at).copied(),
            spread: Spread::of(&mut imbalances[at]),
            turned: (select == Select::LruStripe).then(|| Spread::of(&mut turned)),
            over_bound: bounded.iter().sum::<f64>() / bounded.len() as f64,
            over_bound_max: bounded.iter().copied().fold(0.0, f64::max),
        }
    };
    Ok(SELECTS.into_iter().enumerate().map(cell).collect())
}

/// A stripe on random nodes that lost a random block with node 0.
fn lost_block(parts: &[Parts], rng: &mut StdRng) -> Repair {
    let lost = rng.random_range(0..parts.len());
    let mut homes: Vec<u32> = index::sample(rng, NODES - 1, parts.len()).iter().map(|node| node as u32 + 1).collect();
    homes[lost] = 0;
    let mut holders = homes.clone();
    holders.sort_unstable();
    parts[lost].repair(1, |index| homes[usize::from(index)], Candidates::AllBut(holders))
}

fn chosen(select: Select, repairs: &[Repair], rng: &mut StdRng) -> Result<Vec<Assignment>> {
    let none = [Load::default(); NODES];
    let chosen = match select {
        Select::Random => Some(baseline::random(NODES, repairs, rng)),
        Select::LruStripe => Some(baseline::Stamps::default().lru_by_stripe(NODES, repairs)),
        Select::Algorithm1 => algorithm_1(repairs, &none),
        Select::Balance => balance(repairs, &none, &Speeds::even(NODES)),
    };
    chosen.ok_or_else(|| Error::fatal("internal error: a stripe has no node for its block"))
}

impl Spread {
    fn of(sets: &mut [f64]) -> Self {
        sets.sort_by(f64::total_cmp);
        let share = |part: f64| sets[((sets.len() - 1) as f64 * part).round() as usize];
        Self { mean: sets.iter().sum::<f64>() / sets.len() as f64, low: share(0.025), high: share(0.975) }
    }

    /// Whether a number of the paper, which gives two digits, lies in the interval.
    fn has(&self, paper: f64) -> bool {
        paper >= self.low - 0.005 && paper <= self.high + 0.005
    }

    fn text(&self) -> String {
        format!("{:.2} ({:.2}-{:.2})", self.mean, self.low, self.high)
    }
}

impl Cell {
    /// The paper's number, if it lies outside of the interval of our sets.
    fn outside(&self) -> Option<f64> {
        self.paper.filter(|paper| !self.spread.has(*paper))
    }

    fn here(&self) -> String {
        format!("{}{}", self.spread.text(), if self.outside().is_some() { " *" } else { "" })
    }

    fn bounded(&self) -> String {
        format!("{:.3} ({:.3})", self.over_bound, self.over_bound_max)
    }
}

/// The headings of the tables, and their rows.
type Rows = (&'static [&'static str], Vec<Vec<String>>);

/// The paper's table beside ours, and the distance from the lower bound.
fn tables(report: &Report) -> [Rows; 2] {
    let rows = |cells: fn(&[Cell]) -> Vec<String>| {
        let row = |row: &[Cell]| [vec![row[0].code.clone(), row[0].scheme.clone()], cells(row)].concat();
        report.results.chunks_exact(SELECTS.len()).map(row).collect()
    };
    let beside = |row: &[Cell]| {
        let paper = |cell: &Cell| cell.paper.map_or_else(|| "-".to_owned(), |paper| format!("{paper:.2}"));
        vec![paper(&row[0]), row[0].here(), paper(&row[1]), row[1].here(), row[2].here(), row[3].here()]
    };
    let bounded = |row: &[Cell]| row.iter().map(Cell::bounded).collect();
    [
        (&["code", "repair", "random: paper", "here", "LRU: paper", "here", "Algorithm 1", "balance"], rows(beside)),
        (&["code", "repair", "random", "LRU", "Algorithm 1", "balance"], rows(bounded)),
    ]
}

/// The command that computes it again in the same way.
fn command(report: &Report) -> String {
    let Asked { sets, seed } = report.settings;
    let sets = if sets == SETS { String::new() } else { format!(" --sets {sets}") };
    let seed = if seed == super::SEED { String::new() } else { format!(" --seed {seed}") };
    format!("weft reproduce {NAME} --figure {TABLE_1}{sets}{seed}")
}

const BUSIEST: &str =
    "load of the busiest link, relative to the mean: the mean of all sets of five runs, and the interval of 95 % of them";
const BOUNDED: &str = "load of the busiest link, relative to the lower bound: the mean of all runs, and the largest";
const ABOUT: &str = "Computes the load of each link when a node with 100 blocks is repaired. The stripes lie on random nodes of 16. \
    Helpers and destination are chosen at random, or are the least recently used with one time for all nodes of a stripe (the paper's \
    two baselines), or by the paper's Algorithm 1, or balanced by maximum flow (`balance`). The paper gives the mean of five runs; here \
    many sets of five runs show how far such means lie apart. The lower bound is what no assignment of the same stripes can undercut.";
const DIFFERS: &str = "RC(4,2,5) is `butterfly(4)` and RC(5,3,6) is `clay(5,3,d=6)`. Their conventional repair reads parts of blocks, from \
    the helpers that the code names. The chain and the tree send partial sums, which are whole blocks, so they take any k blocks. The \
    paper does not say how its RC, chain and tree go together. It does not say either which vertex of a chain or a tree a chosen node \
    becomes; here the first chosen node is the first vertex, and the last one sends to the destination.";
const OUTSIDE: &str = "The paper's number lies outside of the interval; by chance alone, one of twenty would.";

/// How numbers that are not in the interval would be in the opposite order.
fn in_opposite_order(report: &Report) -> String {
    let of = |cell: &Cell| -> Option<String> {
        let (paper, turned) = (cell.outside()?, cell.turned?);
        let Cell { code, scheme, .. } = cell;
        let has = if turned.has(paper) { ", and the paper's number lies in the interval" } else { "" };
        Some(format!(
            " By LRU, {code} with {scheme} has {} if the chosen nodes take the vertices in the opposite order{has}.",
            turned.text()
        ))
    };
    report.results.iter().filter_map(of).collect()
}

/// For a person.
pub(crate) fn text(report: &Report) -> String {
    let [beside, bounded] = tables(report).map(|(heading, rows)| {
        let numbers: Vec<usize> = (2..heading.len()).collect();
        columns(heading.iter().copied(), &numbers, rows)
    });
    let (command, machine, opposite) = (command(report), &report.machine, in_opposite_order(report));
    format!("table 1 of {NAME}\n{command}\n\n{BUSIEST}\n{beside}\n* {OUTSIDE}{opposite}\n\n{BOUNDED}\n{bounded}\n\n{machine}")
}

/// The section of the page.
pub(super) fn section(report: &Report, to: &str) -> String {
    let [beside, bounded] = tables(report).map(|(heading, rows)| {
        let line = |cells: &[String]| format!("| {} |\n", cells.join(" | ").replace(" *", " \\*"));
        let heading: Vec<String> = heading.iter().map(|&cell| cell.to_owned()).collect();
        let rows: String = rows.iter().map(|row| line(row)).collect();
        format!("{}| --- | --- |{}\n{rows}", line(&heading), " --: |".repeat(heading.len() - 2))
    });
    let (command, sets) = (command(report), report.settings.sets);
    let results = &report.results;
    let all = results.iter().filter(|cell| cell.paper.is_some()).count();
    let (inside, opposite) = (all - results.iter().filter(|cell| cell.outside().is_some()).count(), in_opposite_order(report));
    let balanced = sets.min(BALANCED_SETS);
    format!(
        "\n## {NAME}: {TITLE}\n\n### Table 1: How evenly links are loaded\n\n{ABOUT}\n\n```text\n{command}\n```\n\nThe {BUSIEST}:\n\n{beside}\n\
         \\* {OUTSIDE} {inside} of {all} lie inside.{opposite}\n\nThe {BOUNDED}:\n\n{bounded}\n{DIFFERS}\n\n{sets} sets of five runs; Algorithm 1, \
         balance and the lower bound in the first {balanced}. Nothing is measured, so the machine does not matter. All numbers: \
         [{NAME}-{TABLE_1}.json]({to}{NAME}-{TABLE_1}.json).\n"
    )
}

/// Writes the results into `dir`.
pub(crate) fn write(report: &Report, dir: &Path) -> Result<()> {
    write_json(report, dir, &file())
}

/// The results, if `dir` has them.
pub(crate) fn read(dir: &Path) -> Result<Option<Report>> {
    let Some(report) = read_json::<Report>(dir, &file())? else { return Ok(None) };
    let is_whole = report.results.chunks(SELECTS.len()).all(|row| row.iter().map(|cell| cell.select).eq(SELECTS));
    let incomplete = || Error::invalid(format!("{}: rows are not complete", dir.join(file()).display()));
    if is_whole { Ok(Some(report)) } else { Err(incomplete()) }
}

fn file() -> String {
    format!("{NAME}-{TABLE_1}.json")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_the_same_each_time_and_balance_beats_the_baselines() {
        let asked = Asked { sets: 1, seed: 1 };
        let report = run(asked, |_, _| ()).unwrap();
        assert_eq!(report.results, run(asked, |_, _| ()).unwrap().results);
        assert_eq!(report.results.len(), CODES.len() * SCHEMES.len() * SELECTS.len());
        for row in report.results.chunks_exact(SELECTS.len()) {
            let [random, lru, greedy, balanced] = row else { panic!("{row:?}") };
            assert!(balanced.over_bound_max <= 1.05, "{balanced:?}");
            let mean = |cell: &Cell| cell.spread.mean;
            assert!(mean(balanced) <= mean(greedy) && mean(balanced) < mean(random).min(mean(lru)), "{row:?}");
        }
        let dir = tempfile::tempdir().unwrap();
        write(&report, dir.path()).unwrap();
        let again = read(dir.path()).unwrap().unwrap();
        assert_eq!(text(&again), text(&report));
        assert!(section(&again, "figures/").contains("--sets 1\n"), "{}", section(&again, "figures/"));
    }

    /// What is outside of the interval says how it would be in the opposite order.
    #[test]
    fn a_number_outside_of_the_interval_is_marked_and_explained() {
        let spread = |low: f64, high: f64| Spread { mean: (low + high) / 2.0, low, high };
        let (code, scheme) = ("RC(4,2,5)".to_owned(), "PPR".to_owned());
        let (select, paper, turned) = (Select::LruStripe, Some(1.32), Some(spread(1.3, 1.4)));
        let cell = Cell { code, scheme, select, paper, spread: spread(1.35, 1.59), turned, over_bound: 1.0, over_bound_max: 1.0 };
        assert_eq!((cell.outside(), cell.here()), (Some(1.32), "1.47 (1.35-1.59) *".to_owned()));
        assert_eq!(Cell { paper: Some(1.347), ..cell.clone() }.outside(), None, "the paper rounds");
        let settings = Asked { sets: 1, seed: 1 };
        let report = Report { machine: Machine::this(), settings, results: vec![cell], warnings: Vec::new() };
        let said = in_opposite_order(&report);
        assert!(said.contains("RC(4,2,5) with PPR has 1.35 (1.30-1.40)") && said.ends_with("lies in the interval."), "{said}");
    }

    /// The docs have enough sets for the interval.
    #[test]
    fn the_docs_have_as_many_sets_as_usual() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/figures");
        assert_eq!(read(&dir).unwrap().unwrap().settings, Asked { sets: SETS, seed: super::super::SEED });
    }
}
