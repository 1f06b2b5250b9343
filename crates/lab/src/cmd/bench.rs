//! `weft bench`: measures schemes on links of a given rate, relative to a direct send, and workloads of many objects.

use super::{bench_node::BenchNode, bench_objects::BenchObjects, bench_put::BenchPut, bench_scrub::BenchScrub, links::Links};
use crate::{
    bench::{
        self, DIRECT, Machine, Outcome, Report,
        check::{too_busy, warnings},
        faults::{self, Fault, Place},
        place::in_testbed,
        repair::{self, Case, Subject, measure},
    },
    testbed::Settings,
};
use clap::{Args, Subcommand};
use serde::Serialize;
use weft_cli::{exit::Exit, interrupt, output::Output, target};
use weft_schemes::{AUTO, Kind, by_name};
use weft_types::{AutoSize, ByteSize, Error, Result};

/// The block that is rebuilt.
const BLOCK: u8 = 3;

/// Measure schemes on links of a given rate, or many objects
///
/// Creates a temporary testbed (for `objects` and `scrub`, a plain cluster) and removes it afterwards. With --cluster, uses that testbed or cluster.
#[derive(Debug, Args)]
pub(super) struct Bench {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Repair(BenchRepair),
    Faults(BenchFaults),
    Node(BenchNode),
    Put(BenchPut),
    Objects(BenchObjects),
    Scrub(BenchScrub),
}

/// Repair one block by each scheme in turn, relative to a direct send of a block
///
/// The requestor is a node without a block of the stripe. The measured time covers the whole command: planning, moving, checking,
/// storing and committing. `ppr` runs block by block, as in its paper, and is also shown in slices.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLE
  sudo weft bench repair --schemes direct,conventional,ppr,pipeline,cyclic --code 'rs(10,4)' --runs 10
  sudo weft bench repair --schemes direct,pipeline@4KiB,pipeline,pipeline@1MiB --block-size 16MiB --json
  sudo weft bench repair --schemes direct,pipeline,cyclic --racks 4 --rack-link 100mbit --probe

EXIT CODES
  0 measured   1 failed   2 invalid settings   \
  4 no root, no `ip`, no `tc`, or the machine cannot carry these links   130 interrupted; nothing is left behind")]
struct BenchRepair {
    /// Schemes to measure, in turn: SCHEME, SCHEME@SLICE, or SCHEME@block for slices as large as the block
    #[arg(long, value_delimiter = ',', default_value = "direct,conventional,ppr,pipeline,cyclic", value_name = "SCHEME")]
    schemes: Vec<String>,
    /// Code
    #[arg(long, default_value = "rs(10,4)")]
    code: String,
    /// Bytes of a block
    #[arg(long, default_value = "64MiB", value_name = "SIZE")]
    block_size: ByteSize,
    /// Bytes of a slice, or auto
    #[arg(long, default_value = "32KiB", value_name = "SIZE")]
    slice_size: AutoSize,
    /// Number of measured runs of each scheme
    #[arg(long, default_value_t = 5, value_name = "N")]
    runs: usize,
    /// Number of blocks of the stripe that are rebuilt together, each at its own requestor
    #[arg(long, default_value_t = 1, value_name = "N")]
    lost: u8,
    /// Helpers and their order: best, ordered, preferred or random
    #[arg(long, default_value = "best")]
    select: String,
    /// Number of paths for the block; 0: the number predicted to be fastest. Paths share no link, and share nodes only if there are too
    /// few
    #[arg(long, default_value_t = 1, value_name = "N")]
    paths: u32,
    /// Measure the links first, and use the result for plans
    #[arg(long)]
    probe: bool,
    /// Number of agents [default: the code's blocks and two more]
    #[arg(long, value_name = "N")]
    nodes: Option<u32>,
    #[command(flatten)]
    links: Links,
    /// Seed of the data and of all random choices
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Measure the cost of failures half-way through the repair of one block
///
/// Kills, and then stops, a helper at each place of the chain in turn; then the requestor; then damages a helper's block. Each time the
/// rebuilt block must be correct. The column "resumed" is how often the repair continued around a failure.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLE
  sudo weft bench faults
  sudo weft bench faults --scheme pipeline --code 'rs(6,3)' --places 1,6 --json

EXIT CODES
  0 measured, and every rebuilt block was correct   1 failed   2 invalid settings   \
  4 no root, no `ip`, no `tc`   130 interrupted; nothing is left behind")]
struct BenchFaults {
    /// Repair scheme
    #[arg(long, default_value = "pipeline")]
    scheme: String,
    /// Code
    #[arg(long, default_value = "rs(10,4)")]
    code: String,
    /// Bytes of a block
    #[arg(long, default_value = "64MiB", value_name = "SIZE")]
    block_size: ByteSize,
    /// Bytes of a slice, or auto
    #[arg(long, default_value = "32KiB", value_name = "SIZE")]
    slice_size: AutoSize,
    /// Helpers by their place in the chain, from 1 [default: all]
    #[arg(long, value_delimiter = ',', value_name = "N")]
    places: Vec<usize>,
    /// Number of measured runs of each fault
    #[arg(long, default_value_t = 1, value_name = "N")]
    runs: usize,
    #[command(flatten)]
    links: Links,
    /// Seed of the data and of all random choices
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// The settings of a measurement.
#[derive(Debug, Serialize)]
struct Asked {
    code: String,
    block_size: ByteSize,
    slice_size: AutoSize,
    seed: u64,
    /// Blocks that were rebuilt together.
    lost: u8,
    /// Empty: the best path.
    select: String,
    paths: u32,
    /// Whether links were measured first.
    probed: bool,
    /// None: a cluster whose links are not shaped.
    testbed: Option<Settings>,
}

/// The results with failures.
#[derive(Debug, Serialize)]
struct Disturbed {
    #[serde(flatten)]
    outcome: Outcome,
    /// How often the repair continued around a failure, at most.
    resumed: u32,
}

impl Bench {
    pub(super) fn run(self, options: &target::Options, output: Output) -> Result<Exit> {
        // From the start, so an interruption while the testbed is created leaves nothing.
        let _watch = interrupt::Watch::begin()?;
        match self.command {
            Command::Repair(it) => it.run(options, output),
            Command::Faults(it) => it.run(options, output),
            Command::Node(it) => it.run(options, output),
            Command::Put(it) => it.run(options, output),
            Command::Objects(it) => it.run(options, output),
            Command::Scrub(it) => it.run(options, output),
        }
    }
}

impl BenchRepair {
    fn run(self, options: &target::Options, output: Output) -> Result<Exit> {
        let cases: Vec<Vec<Case>> =
            self.schemes.iter().map(|text| Case::parse(text, self.slice_size, self.block_size.0)).collect::<Result<_>>()?;
        let mut cases = cases.concat();
        for case in &mut cases {
            // A direct send has no path to choose.
            if case.scheme != DIRECT {
                case.select.clone_from(&self.select);
            }
            if case.scheme == AUTO || by_name(Kind::Repair, &case.scheme)?.has_several_paths() {
                case.paths = self.paths;
            }
        }
        if self.runs == 0 || cases.is_empty() || self.lost == 0 {
            return Err(Error::invalid("nothing to measure: --runs, --schemes and --lost must not be zero or empty"));
        }
        let code = weft_codes::parse(&self.code).map_err(Error::invalid)?;
        if usize::from(self.lost) > code.tolerance() {
            return Err(Error::invalid(format!("{} cannot rebuild {} blocks, only {}", self.code, self.lost, code.tolerance())));
        }
        let nodes = self.nodes.unwrap_or(code.n() as u32 + 1 + u32::from(self.lost));
        let settings = self.links.settings(nodes, options.insecure)?;
        in_testbed(options, settings, async |session, testbed| {
            let blocks: Vec<u8> = (0..usize::from(self.lost)).map(|at| ((usize::from(BLOCK) + at) % code.n()) as u8).collect();
            let mut subject = Subject::store(session, &self.code, self.block_size.0, &blocks, self.seed, output.json).await?;
            if self.probe {
                repair::probe(session, output.json).await?;
            }
            let mut says = |run: usize, case: usize| {
                if !output.json {
                    eprintln!("run {} of {}: {}", run + 1, self.runs, cases[case].label);
                }
            };
            // The rates of a cluster without shaped links are unknown.
            let uneven = testbed.as_ref().is_none_or(|testbed| testbed.settings().is_uneven());
            let measured = measure(session, testbed.as_deref(), &mut subject, &cases, self.runs, uneven, &mut says).await;
            let removed = subject.remove(session).await;
            let mut results = measured?;
            removed?;
            bench::compare(&mut results, DIRECT);
            let (code, block_size, slice_size, seed) = (self.code.clone(), self.block_size, self.slice_size, self.seed);
            let (lost, select, paths, probed) = (self.lost, self.select.clone(), self.paths, self.probe);
            let testbed = testbed.map(|testbed| testbed.settings().clone());
            let asked = Asked { code, block_size, slice_size, seed, lost, select, paths, probed, testbed };
            let report = Report { machine: Machine::this(), settings: asked, warnings: warnings(&results), results };
            output.result_with(&report, &report.warnings, |it| {
                let links = it.settings.testbed.as_ref().and_then(|testbed| testbed.link);
                let links = links.map_or_else(String::new, |link| format!(", links of {link}"));
                let (code, block) = (&it.settings.code, it.settings.block_size);
                format!(
                    "{} of {block} of {code}{links}; {} runs each\n{}\n{}",
                    if self.lost == 1 { "one block".to_owned() } else { format!("{} blocks together", self.lost) },
                    self.runs,
                    bench::results(&it.results, DIRECT),
                    it.machine
                )
            })
        })?;
        Ok(Exit::Ok)
    }
}

impl BenchFaults {
    fn run(self, options: &target::Options, output: Output) -> Result<Exit> {
        weft_schemes::check_name(Kind::Repair, &self.scheme)?;
        let code = weft_codes::parse(&self.code).map_err(Error::invalid)?;
        if self.runs == 0 || self.places.iter().any(|place| !(1..=code.k()).contains(place)) {
            return Err(Error::invalid(format!(
                "invalid --runs {} or --places {:?}: at least one run, and places 1 to {}",
                self.runs,
                self.places,
                code.k()
            )));
        }
        if code.tolerance() < 2 {
            let message = format!(
                "{} recovers only {} lost blocks, but this benchmark loses one and a helper fails too",
                self.code,
                code.tolerance()
            );
            return Err(Error::invalid(message));
        }
        let places = if self.places.is_empty() { (1..=code.k()).collect() } else { self.places.clone() };
        let helpers = || places.iter().map(|place| Place::Helper(*place));
        let middle = Place::Helper(places[places.len() / 2]);
        let mut faults = vec![Fault::None];
        faults.extend(helpers().chain([Place::Requestor]).map(Fault::Kill));
        faults.extend(helpers().chain([Place::Requestor]).map(Fault::Stop));
        faults.extend([Fault::Flip(middle), Fault::Truncate(middle)]);
        // One node more than necessary is free while a requestor is replaced and the last one restarts.
        let settings = self.links.settings(code.n() as u32 + 3, options.insecure)?;
        if options.cluster.is_some() {
            return Err(Error::invalid(
                "this benchmark kills processes and damages blocks, so it needs a testbed of its own: omit --cluster and WEFT_CLUSTER",
            ));
        }
        in_testbed(options, settings, async |session, testbed| {
            let testbed = testbed.ok_or_else(|| Error::invalid("processes can be killed only in a testbed"))?;
            let block = usize::from(BLOCK).min(code.n() - 1) as u8;
            let case = Case::parse(&self.scheme, self.slice_size, self.block_size.0)?.remove(0);
            let mut subject = Subject::store(session, &self.code, self.block_size.0, &[block], self.seed, output.json).await?;
            let measured = faults::measure(session, testbed, &mut subject, &case, &faults, self.runs, output.json).await?;
            let (mut results, resumed): (Vec<Outcome>, Vec<u32>) = measured.into_iter().unzip();
            let undisturbed = Fault::None.label();
            bench::compare(&mut results, &undisturbed);
            let (code, block_size, slice_size, seed) = (self.code.clone(), self.block_size, self.slice_size, self.seed);
            let testbed = Some(testbed.settings().clone());
            let (lost, select, paths, probed) = (1, case.select.clone(), case.paths, false);
            let asked = Asked { code, block_size, slice_size, seed, lost, select, paths, probed, testbed };
            let warnings: Vec<String> = too_busy(&results).into_iter().collect();
            let went_on: Vec<String> = resumed.iter().map(u32::to_string).collect();
            let table = bench::results_with(&results, &undisturbed, ["link bound", "/ bound"], Some(("resumed", went_on)));
            let results = results.into_iter().zip(resumed).map(|(outcome, resumed)| Disturbed { outcome, resumed }).collect();
            let report = Report { machine: Machine::this(), settings: asked, warnings, results };
            output.result_with(&report, &report.warnings, |it| {
                let Asked { block_size, code, .. } = &it.settings;
                format!("one block of {block_size} of {code}, including detection\n{table}\n{}", it.machine)
            })
        })?;
        Ok(Exit::Ok)
    }
}
