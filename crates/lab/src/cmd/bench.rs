//! `weft bench`: what schemes take on links of a given rate, beside a direct send.

use super::{
    bench_put::BenchPut,
    cluster::bring_up,
    daemon::seed,
    testbed::{DEFAULT_LINK, Links},
};
use crate::{
    bench::{
        self, IDLE_MIN, Machine, Outcome, Report, Sample,
        faults::{self, Fault, Place},
        repair::{self, Case, Subject, measure},
    },
    exit::Exit,
    interrupt,
    local::{DaemonSettings, LocalCluster},
    output::Output,
    session::{self, Session},
    target,
    testbed::{self, Scratch, Settings, Testbed},
};
use clap::{Args, Subcommand};
use serde::Serialize;
use std::{fmt, path::Path};
use weft_coordinator::CoordinatorConfig;
use weft_types::{AutoSize, ByteSize, Error, Result};

/// A direct send may be so far from what its link says.
pub(super) const TOLERANCE: f64 = 0.03;
/// The baseline of all repairs.
pub(super) const DIRECT: &str = "direct";
/// The check stores three blocks and copies one of them to a fourth node.
const CHECK_NODES_MIN: u32 = 4;
/// How often it does that, until once it takes what it should.
const CHECKS_MAX: u32 = 3;
/// What links say that takes no longer does not go over a limited one.
const UNLIMITED_S: f64 = 1e-3;
/// The block that is rebuilt.
const BLOCK: u8 = 3;

/// Measure schemes on links of a given rate
///
/// Makes a testbed of its own, and takes it away again; with --cluster, the testbed (or cluster) that is named is used.
#[derive(Debug, Args)]
pub(super) struct Bench {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Repair(BenchRepair),
    Faults(BenchFaults),
    Put(BenchPut),
}

/// Repair one block by each scheme in turn, beside a direct send of a block
///
/// The requestor is a node that holds no block of the stripe. What is timed is the whole command: planning, moving, checking,
/// storing and committing. `ppr` goes block by block, as its paper has it, and is shown in slices too.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLE
  sudo weft bench repair --schemes direct,conventional,ppr,pipeline,cyclic --code 'rs(10,4)' --runs 10
  sudo weft bench repair --schemes direct,pipeline@4KiB,pipeline,pipeline@1MiB --block-size 16MiB --json
  sudo weft bench repair --schemes direct,pipeline,cyclic --racks 4 --rack-link 100mbit --probe

EXIT CODES
  0 measured   1 failed on the way   2 settings that make no sense   \
  4 no root, no `ip`, no `tc`, or the machine cannot carry these links   130 broken off, and nothing is left behind")]
struct BenchRepair {
    /// What is measured, in turn: SCHEME, SCHEME@SLICE, or SCHEME@block for slices as large as the block
    #[arg(long, value_delimiter = ',', default_value = "direct,conventional,ppr,pipeline,cyclic", value_name = "SCHEME")]
    schemes: Vec<String>,
    /// The code
    #[arg(long, default_value = "rs(10,4)")]
    code: String,
    /// Bytes of a block
    #[arg(long, default_value = "64MiB", value_name = "SIZE")]
    block_size: ByteSize,
    /// Bytes of a slice, or auto
    #[arg(long, default_value = "32KiB", value_name = "SIZE")]
    slice_size: AutoSize,
    /// How often each is measured
    #[arg(long, default_value_t = 5, value_name = "N")]
    runs: usize,
    /// Blocks of the stripe that are rebuilt together, each at a requestor of its own
    #[arg(long, default_value_t = 1, value_name = "N")]
    lost: u8,
    /// Who helps, and in which order: best, ordered, preferred or random
    #[arg(long, default_value = "best")]
    select: String,
    /// Over how many paths the block comes; 0: as many as should be the quickest. No two share a link, and nodes only where there are
    /// not enough others
    #[arg(long, default_value_t = 1, value_name = "N")]
    paths: u32,
    /// Measure the links first, and let plans go by that
    #[arg(long)]
    probe: bool,
    /// Agents; without it, as many as the code needs and two more
    #[arg(long, value_name = "N")]
    nodes: Option<u32>,
    #[command(flatten)]
    links: Links,
    /// The data, and all else that is left to chance
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Repair one block while something fails half-way: what does that cost?
///
/// A helper is killed, or stops, at each place of the chain in turn; then the requestor; then a helper's block turns out to be
/// damaged. Each time the block must come out right. "went on" (JSON: resumed) is how often the repair went on around what failed.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLE
  sudo weft bench faults
  sudo weft bench faults --scheme pipeline --code 'rs(6,3)' --places 1,6 --json

EXIT CODES
  0 measured, and every block came out right   1 failed on the way   2 settings that make no sense   \
  4 no root, no `ip`, no `tc`   130 broken off, and nothing is left behind")]
struct BenchFaults {
    /// How the block is repaired
    #[arg(long, default_value = "pipeline")]
    scheme: String,
    /// The code
    #[arg(long, default_value = "rs(10,4)")]
    code: String,
    /// Bytes of a block
    #[arg(long, default_value = "64MiB", value_name = "SIZE")]
    block_size: ByteSize,
    /// Bytes of a slice, or auto
    #[arg(long, default_value = "32KiB", value_name = "SIZE")]
    slice_size: AutoSize,
    /// Helpers by their places in the chain, from 1; without it, all
    #[arg(long, value_delimiter = ',', value_name = "N")]
    places: Vec<usize>,
    /// How often each is measured
    #[arg(long, default_value_t = 1, value_name = "N")]
    runs: usize,
    #[command(flatten)]
    links: Links,
    /// The data, and all else that is left to chance
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// What was asked for.
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
    /// None: a cluster whose links nobody here has shaped.
    testbed: Option<Settings>,
}

/// What it took when something failed half-way.
#[derive(Debug, Serialize)]
struct Disturbed {
    #[serde(flatten)]
    outcome: Outcome,
    /// How often the repair went on around it, at most.
    resumed: u32,
}

/// A direct send beside what its link says.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct LinkCheck {
    seconds: f64,
    bound_s: f64,
    /// The part of the processors' time in which they had nothing to do.
    cpu_idle: f64,
    /// What was sent.
    bytes: u64,
}

impl Bench {
    pub(super) fn run(self, options: &target::Options, output: Output) -> Result<Exit> {
        // Also while a testbed is made: nothing of it stays.
        let _watch = interrupt::Watch::begin()?;
        match self.command {
            Command::Repair(it) => it.run(options, output),
            Command::Faults(it) => it.run(options, output),
            Command::Put(it) => it.run(options, output),
        }
    }
}

impl BenchRepair {
    fn run(self, options: &target::Options, output: Output) -> Result<Exit> {
        let cases: Vec<Vec<Case>> =
            self.schemes.iter().map(|text| Case::parse(text, self.slice_size, self.block_size.0)).collect::<Result<_>>()?;
        let mut cases = cases.concat();
        for case in &mut cases {
            // What has no path is what it is.
            if case.scheme != DIRECT {
                case.select.clone_from(&self.select);
            }
            if matches!(case.scheme.as_str(), "pipeline" | weft_schemes::repair::AUTO) {
                case.paths = self.paths;
            }
            weft_schemes::repair::check_name(&case.scheme)?;
        }
        if self.runs == 0 || cases.is_empty() || self.lost == 0 {
            return Err(Error::invalid("nothing is to be measured: --runs, --schemes and --lost say what"));
        }
        let code = weft_codes::parse(&self.code).map_err(Error::invalid)?;
        if usize::from(self.lost) > code.tolerance() {
            return Err(Error::invalid(format!(
                "{} cannot rebuild {} blocks: {} at most",
                self.code,
                self.lost,
                code.tolerance()
            )));
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
            // Of a cluster whose links nobody here has shaped, nothing is known.
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
            output.result(&report, |it| {
                let links = it.settings.testbed.as_ref().and_then(|testbed| testbed.link);
                let links = links.map_or_else(String::new, |link| format!(", links of {link}"));
                let (code, block) = (&it.settings.code, it.settings.block_size);
                let warnings = it.warnings.iter().map(|warning| format!("\nwarning: {warning}"));
                format!(
                    "{} of {block} of {code}{links}; {} runs each\n{}\n{}{}",
                    if self.lost == 1 { "one block".to_owned() } else { format!("{} blocks together", self.lost) },
                    self.runs,
                    bench::results(&it.results, DIRECT),
                    it.machine,
                    warnings.collect::<String>()
                )
            })
        })?;
        Ok(Exit::Ok)
    }
}

impl BenchFaults {
    fn run(self, options: &target::Options, output: Output) -> Result<Exit> {
        weft_schemes::repair::check_name(&self.scheme)?;
        let code = weft_codes::parse(&self.code).map_err(Error::invalid)?;
        if self.runs == 0 || self.places.iter().any(|place| !(1..=code.k()).contains(place)) {
            return Err(Error::invalid(format!(
                "{} runs with helpers {:?}: a chain has 1 to {}",
                self.runs,
                self.places,
                code.k()
            )));
        }
        if code.tolerance() < 2 {
            let message = format!(
                "{} tolerates the loss of {}: one block is lost, and a helper is to fail too",
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
        // One more than the code needs stays free while a requestor is exchanged and the last one's process comes back.
        let settings = self.links.settings(code.n() as u32 + 3, options.insecure)?;
        if options.cluster.is_some() {
            return Err(Error::invalid(
                "processes are killed and blocks damaged: only in a testbed of its own, so without --cluster and WEFT_CLUSTER",
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
            let table = bench::results_with(&results, &undisturbed, ["links say", "/ that"], Some(("went on", went_on)));
            let results = results.into_iter().zip(resumed).map(|(outcome, resumed)| Disturbed { outcome, resumed }).collect();
            let report = Report { machine: Machine::this(), settings: asked, warnings, results };
            output.result(&report, |it| {
                let warnings: String = it.warnings.iter().map(|warning| format!("\nwarning: {warning}")).collect();
                let Asked { block_size, code, .. } = &it.settings;
                format!("one block of {block_size} of {code}, detection included\n{table}\n{}{warnings}", it.machine)
            })
        })?;
        Ok(Exit::Ok)
    }
}

/// Does `work` in the testbed or cluster that the options name, or in one of its own.
pub(super) fn in_testbed<T>(
    options: &target::Options,
    settings: Settings,
    work: impl AsyncFnOnce(&Session, Option<&mut Testbed>) -> Result<T>,
) -> Result<T> {
    in_testbed_with(options, settings, |_| {}, work)
}

/// The same; the coordinator of a testbed of its own is as `adjust` has it.
pub(super) fn in_testbed_with<T>(
    options: &target::Options,
    settings: Settings,
    adjust: fn(&mut CoordinatorConfig),
    work: impl AsyncFnOnce(&Session, Option<&mut Testbed>) -> Result<T>,
) -> Result<T> {
    if let Some(named) = &options.cluster {
        let mut testbed = Testbed::open(Path::new(named)).ok();
        if let Some(testbed) = &testbed {
            testbed.enter()?;
        }
        return Session::with(options, async |session| work(session, testbed.as_mut()).await);
    }
    Testbed::check_machine()?;
    let scratch = Scratch::make()?;
    let _lock = LocalCluster::lock(&scratch.dir)?;
    let (mut testbed, cluster) = Testbed::make(&scratch.dir, settings, seed()?, |it| {
        if let DaemonSettings::Coordinator(config) = it {
            // An experiment should not have to wait for a dead node to be noticed.
            (config.heartbeat_interval_ms, config.down_after_ms) = (500, 2500);
            adjust(config);
        }
    })?;
    testbed.enter()?;
    interrupt::check()?;
    session::run(async {
        let session = bring_up(&cluster).await?;
        let done = work(&session, Some(&mut testbed)).await;
        session.client.close().await;
        done
    })
}

/// What the reader should know before believing the results.
pub(super) fn warnings(results: &[Outcome]) -> Vec<String> {
    let mut warnings = Vec::new();
    let direct = results.iter().find(|outcome| outcome.scheme == DIRECT);
    if let Some((direct, bound_s)) = direct.and_then(|direct| Some((direct, direct.bound_s?))) {
        let check = LinkCheck { seconds: direct.median_s, bound_s, cpu_idle: direct.cpu_idle, bytes: direct.bytes_moved };
        warnings.extend(check.error().map(|error| error.message));
    }
    warnings.extend(too_busy(results));
    warnings
}

/// Says so, if it may be the processors that were measured.
pub(super) fn too_busy(results: &[Outcome]) -> Option<String> {
    let busy = || results.iter().filter(|outcome| outcome.cpu_idle < IDLE_MIN);
    let most = busy().min_by(|a, b| a.cpu_idle.total_cmp(&b.cpu_idle))?;
    let (count, all, least, idle) = (busy().count(), results.len(), IDLE_MIN * 100.0, most.cpu_idle * 100.0);
    Some(format!(
        "the processors were idle for less than {least:.0} % of {count} of {all} results ({idle:.0} % of {}): slower links would \
         show the links, not them",
        most.scheme
    ))
}

impl LinkCheck {
    /// Sends a block from one node to another, and looks what it took; or why that would say nothing.
    pub(super) async fn run(session: &Session, testbed: &Testbed) -> Result<Result<Self, &'static str>> {
        let settings = testbed.settings();
        if !settings.slow.is_empty() {
            return Ok(Err("nodes are slow, and not their links alone"));
        }
        if settings.nodes < CHECK_NODES_MIN {
            return Ok(Err("that takes four nodes"));
        }
        // Between which nodes it goes is not known before it is stored: what the fastest link carries in about a second is enough for
        // any, and what the slowest does in ten is not too much for any.
        let Some((slowest, fastest)) = settings.range()? else { return Ok(Err("nothing limits them")) };
        let bytes = fastest.goodput_bytes_per_s().min(10.0 * slowest.goodput_bytes_per_s());
        let block_len = (bytes as u64).clamp(1 << 18, 64 << 20) >> 18 << 18;
        let case = Case::parse(DIRECT, AutoSize::Bytes(ByteSize(256 << 10)), block_len)?.remove(0);
        let mut subject = Subject::store(session, "rs(2,1)", block_len, &[0], 1, true).await?;
        let mut best: Option<Self> = None;
        for _ in 0..CHECKS_MAX {
            let (Sample { seconds, cpu_idle, bytes_moved: bytes }, plan) = subject.rebuild(session, &case).await?;
            // There and back again: each way has a bound of its own.
            let bound_s = subject.bound_s(&plan, settings)?.filter(|bound_s| *bound_s > UNLIMITED_S);
            let check = bound_s.map(|bound_s| Self { seconds, bound_s, cpu_idle, bytes });
            best = Self::better(best, check);
            if best.is_some_and(|check| check.error().is_none()) {
                break;
            }
        }
        subject.remove(session).await?;
        Ok(best.ok_or("nothing limits some of them"))
    }

    /// The quicker one, each beside its own bound.
    fn better(one: Option<Self>, other: Option<Self>) -> Option<Self> {
        one.into_iter().chain(other).min_by(|a, b| a.over().total_cmp(&b.over()))
    }

    /// How much longer it took than its link says, as a part of that.
    fn over(self) -> f64 {
        self.seconds / self.bound_s - 1.0
    }

    /// Says so, if the machine does not carry what its links say.
    pub(super) fn error(self) -> Option<Error> {
        // A shaper that was idle lets some of it pass at once: of a small block that is much.
        let at_once = testbed::BURST_BYTES / self.bytes.max(1) as f64;
        (!(-TOLERANCE - at_once..=TOLERANCE).contains(&self.over())).then(|| {
            let percent = self.over() * 100.0;
            Error::unavailable(format!(
                "a direct send of one block is {percent:+.1} % off what its link says: this machine cannot carry this setting \
                 (slower links or fewer nodes, e.g. --link {DEFAULT_LINK}, may do)"
            ))
        })
    }
}

impl fmt::Display for LinkCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seconds, bound_s, cpu_idle, .. } = self;
        let (ratio, idle) = (seconds / bound_s, cpu_idle * 100.0);
        write!(
            f,
            "a direct send of one block took {seconds:.3} s, and the link says {bound_s:.3} s ({ratio:.3} x); CPU idle {idle:.0} %"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_send_is_put_beside_the_bound_of_its_own_way() {
        let check = |seconds, bound_s| Some(LinkCheck { seconds, bound_s, cpu_idle: 0.5, bytes: 128 << 20 });
        // There the link carries a third of what it carries back.
        let (there, back) = (check(3.03, 3.0), check(1.01, 1.0));
        for (one, other) in [(there, back), (back, there), (None, back), (there, None)] {
            let best = LinkCheck::better(one, other).unwrap();
            assert!(best.error().is_none(), "{best}");
        }
        assert!(LinkCheck::better(check(3.3, 3.0), check(1.2, 1.0)).unwrap().error().unwrap().message.contains("+10.0 % off"));
        let too_quick = LinkCheck::better(check(0.9, 1.0), back).unwrap();
        assert!(too_quick.error().is_some());
        assert!(LinkCheck { bytes: 1 << 20, ..too_quick }.error().is_none(), "an eighth of it may pass at once");
    }
}
