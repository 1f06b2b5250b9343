//! `weft bench node`: the repair of a whole node by each way to select nodes in turn, relative to the lower bound of the links.

use super::{bench_healing::BenchHealing, bench_lost::BenchLost, bench_reads::BenchReads, links::Links};
use crate::{
    bench::{
        self, Machine, Outcome, Report, Sample,
        check::too_busy,
        median,
        node::{Layout, LostNode},
        place::in_testbed_with,
        repair::{self, Case},
    },
    reproduce::run::adjust,
    testbed::{Settings, Testbed},
};
use clap::Args;
use serde::Serialize;
use weft_cli::{exit::Exit, output::Output, session::Session, table::columns, target};
use weft_schemes::{AUTO, Kind, rebuilds};
use weft_types::{AutoSize, ByteSize, Error, HelperSelect, Result};

const MIB: f64 = 1048576.0;
/// The ways to select nodes, if none is named.
const SELECT: [&str; 6] = ["random", "lru-stripe", "lru", "balance", "schedule", "boost"];
/// The schemes, if none is named.
const SCHEMES: [&str; 2] = ["conventional", "pipeline"];

/// Repair all blocks of a node by each way to select nodes in turn, relative to the lower bound
///
/// All stripes lie on random nodes. The node's blocks are rebuilt elsewhere and, between runs, copied back over fast links, so every run
/// starts from the same state. The time is that of the coordinator's job. The bound is the time that the busiest link needs at least for
/// these stripes and this scheme, whichever nodes are selected. Ways that do not schedule run as many stripes at the same time as
/// possible.
///
/// If links differ (--rack-link, --limit, --matrix), they are measured first, and the bound is for their
/// rates in relation to the fastest one, which is taken to carry --link.
///
/// With --lost 2 or 3, so many nodes are lost at the same time, and the cluster rebuilds all their blocks by itself: a stripe that has lost
/// several blocks is rebuilt by one plan. --blocks counts the blocks of all these nodes. The time is from the first rebuild under way until
/// the last block is recorded. After each run, all objects are read back and compared. Each scheme has a testbed of its own.
///
/// With --drain, the node with most blocks is drained by the cluster itself while it serves: some of its blocks are copied from it, others
/// rebuilt from the rest of their stripes. The bound is that of the same mix. Otherwise as with --lost.
///
/// With --local, a cluster on this machine, without shaped links and without root, heals itself with its default settings: objects of one
/// stripe each are stored, an agent is killed for good, and the time is measured from the first rebuild under way until the last block is
/// recorded; then every stripe is whole. It is compared with writing the same bytes to the same disk in synced files. Afterwards all
/// objects are read back and compared.
///
/// With --reads, four readers get ranges of 256 KiB from random objects, each one after another: while nothing else runs, while a node is
/// repaired at a limit of 50 % of the measured rate of each link and disk, and while it is repaired without a limit. The latencies are
/// compared with those of the idle cluster in the same run. The node stays up, so no read rebuilds a block. With --drain, it is drained instead.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLE
  weft bench node --local
  sudo weft bench node --select random,lru-stripe,lru,balance,schedule,boost --scheme conventional,pipeline --code 'rs(6,3)' --runs 3 --json
  sudo weft bench node --select lru,boost --scheme pipeline --code 'rs(10,4)' --requestors 4
  sudo weft bench node --racks 4 --rack-link 20mbit --select random,boost --scheme conventional,pipeline --blocks 32
  sudo weft bench node --lost 2 --runs 3 --json
  sudo weft bench node --lost 3 --scheme auto,pipeline --link 100mbit
  sudo weft bench node --drain --runs 3
  sudo weft bench node --reads --runs 3
  sudo weft bench node --reads --drain --runs 3
  weft bench node --local --nodes 12 --code 'rs(6,3)' --objects 1000 --json

EXIT CODES
  0 measured   1 failed   2 invalid settings   \
  4 no root, no `ip`, no `tc`, or the machine cannot carry these links   130 interrupted; nothing is left behind")]
pub(super) struct BenchNode {
    /// Ways to select nodes, as in `weft repair node`; the first one is what the others are compared with
    /// [default: random,lru-stripe,lru,balance,schedule,boost; with --lost 2 or 3 or --drain boost, the only one]
    #[arg(long, value_delimiter = ',', value_name = "HOW")]
    select: Option<Vec<String>>,
    /// Schemes: SCHEME, SCHEME@SLICE, or SCHEME@block for slices as large as the block
    /// [default: conventional,pipeline; with --lost 2 or 3 or --drain auto, the cluster's own choice]
    #[arg(long, value_delimiter = ',', value_name = "SCHEME")]
    scheme: Option<Vec<String>>,
    /// Number of nodes that are lost at the same time, 1 to 3
    #[arg(
        long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=3),
        conflicts_with_all = ["local", "reads"]
    )]
    lost: u32,
    /// Drain a node while it serves
    #[arg(long, conflicts_with_all = ["local", "lost"])]
    drain: bool,
    /// Let a cluster on this machine heal itself after the death of an agent
    #[arg(long, conflicts_with_all = ["select", "scheme", "blocks", "slice_size", "requestors"])]
    local: bool,
    /// Number of stored objects, with --local
    #[arg(long, default_value_t = 256, value_name = "N", requires = "local")]
    objects: usize,
    /// Measure reads beside a repair or a drain: at least N in each phase of a run
    #[arg(
        long, num_args = 0..=1, default_missing_value = "1000", value_name = "N",
        conflicts_with_all = ["local", "select", "scheme", "slice_size", "requestors"]
    )]
    reads: Option<usize>,
    /// Code [default: rs(6,3); with --local rs(4,2)]
    #[arg(long)]
    code: Option<String>,
    /// Number of blocks of the lost node, or of all lost nodes together
    #[arg(long, default_value_t = 64, value_name = "N")]
    blocks: usize,
    /// Bytes of a block [default: 4MiB; with --local 1MiB]
    #[arg(long, value_name = "SIZE")]
    block_size: Option<ByteSize>,
    /// Bytes of a slice, or auto
    #[arg(long, default_value = "64KiB", value_name = "SIZE")]
    slice_size: AutoSize,
    /// Number of measured runs of each way and scheme
    #[arg(long, default_value_t = 3, value_name = "N")]
    runs: usize,
    /// Number of nodes with blocks [default: 16; with --local 9]
    #[arg(long, value_name = "N")]
    nodes: Option<u32>,
    /// Number of further nodes, which hold no blocks and get all rebuilt ones; 0: the other nodes get them
    #[arg(long, default_value_t = 0, value_name = "N")]
    requestors: u32,
    #[command(flatten)]
    links: Links,
    /// Seed of the data
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// The settings of a measurement.
#[derive(Debug, Serialize)]
struct Asked {
    code: String,
    blocks: usize,
    block_size: ByteSize,
    slice_size: AutoSize,
    requestors: u32,
    seed: u64,
    testbed: Settings,
}

/// The result of one way to select and one scheme.
#[derive(Debug, Serialize)]
struct Row {
    select: String,
    /// Its bound is that of the instance: no choice of nodes can undercut it.
    #[serde(flatten)]
    outcome: Outcome,
    rate_mib_s: f64,
    /// The median time relative to the bound.
    over_bound: Option<f64>,
    /// How long the busiest link needs at least for the bytes that it carried: the median of the runs.
    busiest_s: Option<f64>,
    /// The rate relative to that of the first way with the same scheme.
    gain: f64,
    /// The gain if the busiest link of both ways were always full.
    busiest_gain: Option<f64>,
}

/// The runs of one way and scheme.
#[derive(Debug, Default)]
struct Runs {
    samples: Vec<Sample>,
    busiest: Vec<f64>,
    least: Vec<f64>,
}

impl BenchNode {
    pub(super) fn run(self, options: &target::Options, output: Output) -> Result<Exit> {
        if self.local {
            return self.healing().run(options, output);
        }
        if let Some(reads) = self.reads {
            return self.beside(reads).run(options, output);
        }
        if self.lost > 1 || self.drain {
            return self.together().run(options, output);
        }
        let cases = self.cases()?;
        if options.cluster.is_some() {
            return Err(Error::invalid(
                "this benchmark changes links and moves all blocks of a node, so it needs a testbed of its own: omit --cluster and \
                 WEFT_CLUSTER",
            ));
        }
        let settings = self.links.settings(self.nodes() + self.requestors, options.insecure)?;
        in_testbed_with(options, settings, adjust, async |session, testbed| {
            let testbed = testbed.ok_or_else(|| Error::invalid("links can be shaped only in a testbed"))?;
            let results = self.measure(session, testbed, &cases, output.json).await?;
            let outcomes: Vec<Outcome> = results.iter().map(|row| row.outcome.clone()).collect();
            let warnings: Vec<String> = too_busy(&outcomes).into_iter().collect();
            let Self { blocks, slice_size, requestors, seed, .. } = &self;
            let (code, blocks, block_size, slice_size) = (self.code().to_owned(), *blocks, self.block_size(), *slice_size);
            let testbed = testbed.settings().clone();
            let settings = Asked { code, blocks, block_size, slice_size, requestors: *requestors, seed: *seed, testbed };
            let report = bench::Report { machine: Machine::this(), settings, results, warnings };
            output.result_with(&report, &report.warnings, |report| self.text(report))
        })?;
        Ok(Exit::Ok)
    }

    fn code(&self) -> &str {
        self.code.as_deref().unwrap_or(if self.local { "rs(4,2)" } else { "rs(6,3)" })
    }

    fn block_size(&self) -> ByteSize {
        self.block_size.unwrap_or(ByteSize(if self.local { 1 } else { 4 } << 20))
    }

    fn nodes(&self) -> u32 {
        self.nodes.unwrap_or(if self.local { 9 } else { 16 })
    }

    fn healing(&self) -> BenchHealing {
        let (code, block_size, nodes) = (self.code().to_owned(), self.block_size(), self.nodes());
        BenchHealing { code, block_size, nodes, objects: self.objects, runs: self.runs, seed: self.seed }
    }

    fn together(self) -> BenchLost {
        let (code, block_size, nodes) = (self.code().to_owned(), self.block_size(), self.nodes());
        let Self { lost, drain: drained, select, scheme, blocks, slice_size, runs, requestors, links, seed, .. } = self;
        let schemes = scheme.unwrap_or_else(|| vec![AUTO.to_owned()]);
        BenchLost { lost, drained, select, schemes, code, blocks, block_size, slice_size, runs, nodes, requestors, links, seed }
    }

    fn beside(self, reads: usize) -> BenchReads {
        let (code, block_size, nodes) = (self.code().to_owned(), self.block_size(), self.nodes());
        let Self { drain: drained, blocks, runs, links, seed, .. } = self;
        BenchReads { reads, drained, code, blocks, block_size, nodes, runs, links, seed }
    }

    fn select(&self) -> Vec<String> {
        self.select.clone().unwrap_or_else(|| SELECT.map(str::to_owned).into())
    }

    fn schemes(&self) -> Vec<String> {
        self.scheme.clone().unwrap_or_else(|| SCHEMES.map(str::to_owned).into())
    }

    /// All ways to select for each scheme, in this order.
    fn cases(&self) -> Result<Vec<Case>> {
        let code = weft_codes::parse(self.code()).map_err(Error::invalid)?;
        if self.runs == 0 || self.select().is_empty() || self.schemes().is_empty() || self.blocks == 0 {
            return Err(Error::invalid("nothing to measure: --runs, --select, --scheme and --blocks must not be zero or empty"));
        }
        let needed = code.n() as u32 + u32::from(self.requestors == 0);
        if self.nodes() < needed {
            let (nodes, code) = (self.nodes(), self.code());
            return Err(Error::invalid(format!("--nodes {nodes} is too few for {code}: at least {needed} are needed")));
        }
        for select in self.select() {
            if HelperSelect::ALL.into_iter().all(|known| known.name() != select) {
                let known = HelperSelect::ALL.map(HelperSelect::name).join(", ");
                return Err(Error::invalid(format!("'{select}' does not select nodes: use {known}")));
            }
        }
        let mut cases = Vec::new();
        for text in self.schemes() {
            // One case for each name: PPR in slices, too, unless its name says otherwise.
            let mut parsed = Case::parse(&text, self.slice_size, self.block_size().0)?;
            let case = parsed.pop().ok_or_else(|| Error::invalid("a scheme has no name"))?;
            weft_schemes::check_name(Kind::Repair, &case.scheme)?;
            if !rebuilds(&case.scheme) {
                return Err(Error::invalid(format!("the scheme '{}' does not rebuild blocks", case.scheme)));
            }
            cases.extend(self.select().into_iter().map(|select| Case { label: text.clone(), select, ..case.clone() }));
        }
        Ok(cases)
    }

    async fn measure(&self, session: &Session, testbed: &mut Testbed, cases: &[Case], quiet: bool) -> Result<Vec<Row>> {
        if !quiet {
            eprintln!("storing stripes until a node has {} blocks", self.blocks);
        }
        let layout = Layout { code: self.code(), block_len: self.block_size().0, holders: self.nodes(), lost: self.blocks };
        let node = LostNode::store(session, testbed, layout, self.seed).await?;
        if testbed.settings().is_uneven() {
            repair::probe(session, quiet).await?;
        }
        let requestors = self.requestors as usize;
        // Warm-up: the first run opens connections and is not counted.
        if let Some(first) = cases.first() {
            node.rebuild(session, testbed, first, requestors).await?;
        }
        let mut runs: Vec<Runs> = cases.iter().map(|_| Runs::default()).collect();
        for run in 0..self.runs {
            // The order rotates.
            for at in (0..cases.len()).map(|at| (at + run) % cases.len()) {
                if !quiet {
                    eprintln!("run {} of {}: {} by {}", run + 1, self.runs, cases[at].label, cases[at].select);
                }
                let recovered = node.rebuild(session, testbed, &cases[at], requestors).await?;
                runs[at].samples.push(recovered.sample);
                runs[at].busiest.extend(recovered.busiest_s);
                runs[at].least.extend(recovered.least_s);
            }
        }
        let rebuilt_mib = node.rebuilt_bytes() as f64 / MIB;
        node.remove(session).await?;
        Ok(rows(cases, &runs, self.select().len(), rebuilt_mib))
    }

    fn text(&self, report: &Report<Asked, Row>) -> String {
        let Asked { code, blocks, block_size, testbed, .. } = &report.settings;
        let links = testbed.link.map_or_else(String::new, |link| format!(", links of {link}"));
        let seconds = |seconds: Option<f64>| seconds.map_or_else(|| "-".to_owned(), |it| format!("{it:.3} s"));
        let times = |times: Option<f64>| times.map_or_else(|| "-".to_owned(), |it| format!("{it:.3} x"));
        let row = |row: &Row| {
            let it = &row.outcome;
            vec![
                it.scheme.clone(),
                row.select.clone(),
                seconds(Some(it.median_s)),
                format!("{:.3} .. {:.3}", it.min_s, it.max_s),
                format!("{:.1}", row.rate_mib_s),
                seconds(it.bound_s),
                times(row.over_bound),
                seconds(row.busiest_s),
                times(Some(row.gain)),
                times(row.busiest_gain),
                format!("{:.0} %", it.cpu_idle * 100.0),
            ]
        };
        let gain = format!("rate / {}", self.select()[0]);
        let heading = [
            "scheme",
            "select",
            "median",
            "min .. max",
            "MiB/s",
            "bound",
            "/ bound",
            "busiest link",
            &gain,
            "links allow",
            "CPU idle",
        ];
        let table = columns(heading, &(2..heading.len()).collect::<Vec<_>>(), report.results.iter().map(row));
        let runs = self.runs;
        format!("{blocks} blocks of {block_size} of {code}{links}; {runs} runs each\n{table}\n{}", report.machine)
    }
}

/// The results: for each scheme all ways, of which the first is what the others are compared with.
fn rows(cases: &[Case], runs: &[Runs], ways: usize, rebuilt_mib: f64) -> Vec<Row> {
    let outcome = |(case, runs): (&Case, &Runs)| Outcome::of(case.label.clone(), &runs.samples, median(&runs.least));
    let outcomes: Vec<Outcome> = cases.iter().zip(runs).map(outcome).collect();
    let mut rows = Vec::with_capacity(cases.len());
    for (at, (case, outcome)) in cases.iter().zip(&outcomes).enumerate() {
        let first = at - at % ways.max(1);
        let (busiest_s, first_busiest_s) = (median(&runs[at].busiest), median(&runs[first].busiest));
        rows.push(Row {
            select: case.select.clone(),
            rate_mib_s: rebuilt_mib / outcome.median_s,
            over_bound: outcome.bound_s.map(|bound| outcome.median_s / bound),
            busiest_s,
            gain: outcomes[first].median_s / outcome.median_s,
            busiest_gain: first_busiest_s.zip(busiest_s).map(|(first, own)| first / own),
            outcome: outcome.clone(),
        });
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        node: BenchNode,
    }

    fn parsed(args: &[&str]) -> BenchNode {
        Line::try_parse_from(std::iter::once("node").chain(args.iter().copied())).unwrap().node
    }

    #[test]
    fn every_scheme_is_measured_by_every_way() {
        let cases = parsed(&["--select", "random,boost", "--scheme", "ppr,pipeline@1MiB,ppr@block"]).cases().unwrap();
        let named: Vec<String> =
            cases.iter().map(|it| format!("{} {} {} {}", it.label, it.scheme, it.slice_len, it.select)).collect();
        assert_eq!(
            named,
            [
                "ppr ppr 64KiB random",
                "ppr ppr 64KiB boost",
                "pipeline@1MiB pipeline 1MiB random",
                "pipeline@1MiB pipeline 1MiB boost",
                "ppr@block ppr 4MiB random",
                "ppr@block ppr 4MiB boost",
            ]
        );
        for wrong in [
            &["--select", "best"][..],
            &["--scheme", "direct"],
            &["--scheme", "pigeon"],
            &["--runs", "0"],
            &["--nodes", "9"],
            &["--blocks", "0"],
            &["--code", "rs(6)"],
        ] {
            assert!(parsed(wrong).cases().is_err(), "{wrong:?}");
        }
        for mixed in [
            &["--local", "--select", "lru"][..],
            &["--objects", "9"],
            &["--reads", "--local"],
            &["--reads", "9", "--scheme", "ppr"],
            &["--lost", "2", "--local"],
            &["--lost", "2", "--reads"],
            &["--lost", "0"],
            &["--lost", "4"],
            &["--drain", "--lost", "2"],
            &["--drain", "--local"],
        ] {
            assert!(Line::try_parse_from(std::iter::once("node").chain(mixed.iter().copied())).is_err(), "{mixed:?}");
        }
        let local = parsed(&["--local"]).healing();
        assert_eq!((local.code.as_str(), local.nodes, local.block_size.0, local.objects), ("rs(4,2)", 9, 1 << 20, 256));
        let reads = [&["--reads"][..], &["--reads", "50"], &[]].map(|args| parsed(args).reads);
        assert_eq!(reads, [Some(1000), Some(50), None]);
        let together = parsed(&["--lost", "2", "--blocks", "9", "--nodes", "12", "--scheme", "auto"]).together();
        assert_eq!((together.lost, together.blocks, together.nodes, together.schemes), (2, 9, 12, vec!["auto".to_owned()]));
        assert_eq!((parsed(&[]).lost, together.select), (1, None));
        assert_eq!(parsed(&["--lost", "3"]).together().schemes, ["auto"]);
        let drained = parsed(&["--drain"]).together();
        assert_eq!((drained.lost, drained.drained), (1, true));
        assert_eq!(parsed(&[]).cases().unwrap().len(), SELECT.len() * SCHEMES.len());
        assert!(parsed(&["--nodes", "9", "--requestors", "1"]).cases().is_ok(), "the requestor gets the blocks");
    }

    #[test]
    fn each_scheme_is_compared_with_its_first_way_and_with_its_bound() {
        let cases = parsed(&["--select", "random,boost", "--scheme", "ppr,pipeline"]).cases().unwrap();
        let run = |seconds: f64, busiest: f64, least: f64| Runs {
            samples: vec![Sample { seconds, bytes_moved: 1, cpu_idle: 0.5 }],
            busiest: vec![busiest],
            least: vec![least],
        };
        let runs = [run(9.0, 6.0, 3.0), run(4.0, 3.0, 3.0), run(8.0, 4.0, 2.0), run(2.0, 2.0, 2.0)];
        let rows = rows(&cases, &runs, 2, 8.0);
        let shown: Vec<_> =
            rows.iter().map(|row| (row.gain, row.over_bound.unwrap(), row.busiest_gain.unwrap(), row.rate_mib_s)).collect();
        assert_eq!(shown[0], (1.0, 3.0, 1.0, 8.0 / 9.0));
        assert_eq!(shown[1], (2.25, 4.0 / 3.0, 2.0, 2.0));
        assert_eq!(shown[2..], [(1.0, 4.0, 1.0, 1.0), (4.0, 1.0, 2.0, 4.0)]);
    }
}
