//! `weft bench put`: measures writes of new data by each scheme, relative to a direct put.

use super::links::Links;
use crate::{
    bench::{
        self, DIRECT, Machine, Outcome, Report,
        check::{TOLERANCE, too_busy},
        place::in_testbed,
        put::{self, Data, StageSeconds},
        repair::{self, Case},
        writer,
    },
    testbed::Settings,
};
use clap::Args;
use serde::Serialize;
use weft_cli::{exit::Exit, output::Output, table::table, target};
use weft_schemes::Kind;
use weft_types::{AutoSize, ByteSize, Error, Result};

/// Write one object by each scheme in turn, relative to a direct put
///
/// The object is one stripe. Its writer is outside of the nodes, with a link shaped like theirs; or several writers on nodes put one
/// object each at the same time. The measured time covers the whole command: planning, coding, moving, storing and committing. The
/// bound is the time of the data alone on the writer's link.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLE
  sudo weft bench put --schemes direct,mist --code 'rs(4,4)' --size 64MiB
  sudo weft bench put --schemes direct,mist@64KiB,mist,mist@1MiB --code 'msr(4,4,d=6)' --json
  sudo weft bench put --writers 4 --size 16MiB
  sudo weft bench put --schemes direct,mist,auto --code 'rs(6,3)' --racks 3 --rack-link 100mbit --probe
  sudo weft bench put --code 'rs(4,7)' --stages
  sudo weft bench put --code 'rs(8,2)' --slow node-03:coding=20MiB

EXIT CODES
  0 measured   1 failed   2 invalid settings   \
  4 no root, no `ip`, no `tc`, or the machine cannot carry these links   130 interrupted; nothing is left behind")]
pub(super) struct BenchPut {
    /// Schemes to measure, in turn: SCHEME, SCHEME@SLICE, or SCHEME@block for slices as large as the block
    #[arg(long, value_delimiter = ',', default_value = "direct,mist", value_name = "SCHEME")]
    schemes: Vec<String>,
    /// Code
    #[arg(long, default_value = "rs(4,4)")]
    code: String,
    /// Bytes of the object
    #[arg(long, default_value = "64MiB", value_name = "SIZE")]
    size: ByteSize,
    /// Bytes of a slice of a block
    #[arg(long, default_value = "256KiB", value_name = "SIZE")]
    slice_size: ByteSize,
    /// Number of concurrent writers, one on each of the first nodes; 0: one writer outside of the nodes
    #[arg(long, default_value_t = 0, value_name = "N")]
    writers: u32,
    /// Show also how each party of one put spends its time: reading, waiting for input, arithmetic, waiting to send, writing
    #[arg(long)]
    stages: bool,
    /// Measure the links first, and use the result for plans
    #[arg(long)]
    probe: bool,
    /// Number of measured runs of each scheme
    #[arg(long, default_value_t = 5, value_name = "N")]
    runs: usize,
    /// Number of agents [default: the code's blocks]
    #[arg(long, value_name = "N")]
    nodes: Option<u32>,
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
    size: ByteSize,
    block_size: ByteSize,
    slice_size: ByteSize,
    /// None: one writer outside of the nodes.
    writers: u32,
    probed: bool,
    seed: u64,
    /// None: a cluster whose links are not shaped.
    testbed: Option<Settings>,
}

/// The results.
#[derive(Debug, Serialize)]
struct Measured {
    #[serde(flatten)]
    report: Report<Asked>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    stages: Vec<StageSeconds>,
}

fn stages_table(stages: &[StageSeconds]) -> String {
    let row = |it: &StageSeconds| {
        let seconds = |s: f64| format!("{s:.3} s");
        let times = [it.read_s, it.wait_s, it.combine_s, it.send_s, it.write_s].map(seconds);
        let [read, wait, combine, send, write] = times;
        [it.scheme.clone(), it.level.to_string(), it.party.clone(), read, wait, combine, send, write]
    };
    let heading = ["scheme", "level", "party", "reads", "waits", "combines", "sends", "writes"];
    table(heading, &[1, 3, 4, 5, 6, 7], stages.iter().map(row))
}

impl BenchPut {
    pub(super) fn run(self, options: &target::Options, output: Output) -> Result<Exit> {
        let (cases, settings) = (self.cases()?, self.settings(options.insecure)?);
        let data = Data::make(&self.code, self.size, self.seed)?;
        in_testbed(options, settings, async |session, testbed| {
            let testbed = testbed.as_deref();
            let writers = writer::on_nodes(testbed, self.writers).await?;
            put::make_bucket(session).await?;
            if self.probe {
                repair::probe(session, output.json).await?;
            }
            let bound_s = put::bound_s(testbed, self.size.0);
            let mut says = |run: usize, case: usize| {
                if !output.json {
                    eprintln!("run {} of {}: {}", run + 1, self.runs, cases[case].label);
                }
            };
            // Warm-up: the first run opens connections and is not counted.
            for case in &cases {
                put::put(session, &writers, &data, case).await?;
            }
            let bounds = vec![bound_s; cases.len()];
            let samples = put::measure(session, &writers, &data, &cases, self.runs, &mut says).await?;
            let mut results = put::outcomes(&cases, &samples, &bounds);
            let stages = if self.stages { put::stages(session, &writers, &data, &cases).await? } else { Vec::new() };
            bench::compare(&mut results, DIRECT);
            let testbed = testbed.map(|testbed| testbed.settings().clone());
            let warnings = self.warnings(&results, &data, testbed.as_ref());
            let asked = Asked {
                code: self.code.clone(),
                size: self.size,
                block_size: ByteSize(data.block_len),
                slice_size: self.slice_size,
                writers: self.writers,
                probed: self.probe,
                seed: self.seed,
                testbed,
            };
            let report = Report { machine: Machine::this(), settings: asked, warnings, results };
            let measured = Measured { report, stages };
            output.result_with(&measured, &measured.report.warnings, |it| self.text(it))
        })?;
        Ok(Exit::Ok)
    }

    fn cases(&self) -> Result<Vec<Case>> {
        let block_len = put::block_len(&self.code, self.size)?;
        let slice_len = AutoSize::Bytes(self.slice_size);
        let cases: Vec<Vec<Case>> =
            self.schemes.iter().map(|text| Case::parse(text, slice_len, block_len)).collect::<Result<_>>()?;
        let cases = cases.concat();
        cases.iter().try_for_each(|case| weft_schemes::check_name(Kind::Write, &case.scheme))?;
        if self.runs == 0 || cases.is_empty() || self.slice_size.0 == 0 {
            return Err(Error::invalid("nothing to measure: --runs, --schemes and --slice-size must not be zero or empty"));
        }
        Ok(cases)
    }

    /// The testbed for it, if none is named.
    fn settings(&self, insecure: bool) -> Result<Settings> {
        let n = weft_codes::parse(&self.code).map_err(Error::invalid)?.n() as u32;
        let nodes = self.nodes.unwrap_or(n);
        if nodes < n || self.writers > nodes {
            let (code, writers) = (&self.code, self.writers);
            return Err(Error::invalid(format!("--nodes {nodes} is too few for {code} and {writers} writers")));
        }
        let settings = self.links.settings(nodes, insecure)?;
        let outside_link = settings.outside_link.or(settings.link);
        let settings = Settings { outside_link, ..settings };
        settings.check()?;
        Ok(settings)
    }

    /// What the reader must know to judge the results.
    fn warnings(&self, results: &[Outcome], data: &Data, testbed: Option<&Settings>) -> Vec<String> {
        let direct = results.iter().find(|outcome| outcome.scheme == DIRECT).and_then(|it| Some((it.median_s, it.bound_s?)));
        // If nodes differ, or writers share links, the writer's link is not the only bound.
        let is_plain = testbed.is_some_and(|it| !it.is_uneven() && it.slow.is_empty()) && self.writers == 0;
        let mut warnings = Vec::new();
        if let Some((seconds, bound_s)) = direct.filter(|_| is_plain) {
            let n = weft_codes::parse(&self.code).map_or(0, |code| code.n());
            let link_s = bound_s * (n as u64 * data.block_len) as f64 / data.size as f64;
            let over = seconds / link_s - 1.0;
            if over.abs() > TOLERANCE {
                warnings.push(format!(
                    "a direct put is {:+.1} % off the predicted time of the writer's link ({link_s:.3} s for {n} blocks): this machine \
                     cannot carry this setting (try slower links, fewer nodes or more data)",
                    over * 100.0
                ));
            }
        }
        warnings.extend(too_busy(results));
        warnings
    }

    fn text(&self, Measured { report: it, stages }: &Measured) -> String {
        let Asked { code, size, block_size, writers, testbed, .. } = &it.settings;
        let links = testbed.as_ref().and_then(|testbed| testbed.link);
        let links = links.map_or_else(String::new, |link| format!(", links of {link}"));
        let what = match writers {
            0 => format!("one object of {size}"),
            1 => format!("one object of {size} from a node"),
            count => format!("{count} objects of {size} at once, each from a node"),
        };
        let results = bench::results_beside(&it.results, DIRECT, ["bound", "/ bound"]);
        let (runs, machine) = (self.runs, &it.machine);
        let stages = if stages.is_empty() { String::new() } else { format!("\n{}\n", stages_table(stages)) };
        format!("{what} as {code}, blocks of {block_size}{links}; {runs} runs each\n{results}\n{stages}{machine}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        put: BenchPut,
    }

    fn parsed(args: &[&str]) -> BenchPut {
        Line::try_parse_from(std::iter::once("put").chain(args.iter().copied())).unwrap().put
    }

    #[test]
    fn a_writer_has_a_link_like_the_nodes_by_default() {
        let of = |args: &[&str]| {
            let settings = parsed(args).settings(false).unwrap();
            (settings.nodes, settings.outside_link.unwrap().to_string())
        };
        assert_eq!(of(&["--code", "rs(6,3)"]), (9, "200mbit".to_owned()));
        assert_eq!(of(&["--link", "100mbit", "--nodes", "12"]), (12, "100mbit".to_owned()));
        assert_eq!(of(&["--link", "100mbit", "--outside-link", "1gbit"]), (8, "1gbit".to_owned()));
        for wrong in [&["--nodes", "7"][..], &["--writers", "9"], &["--slow", "node-09:disk=1MiB"], &["--code", "rs(4)"]] {
            assert!(parsed(wrong).settings(false).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn schemes_are_those_that_write_each_with_its_slices() {
        let cases = parsed(&["--schemes", "direct,mist@1MiB,auto,mist@block", "--size", "8MiB"]).cases().unwrap();
        let slices: Vec<(String, String)> = cases.into_iter().map(|it| (it.label, it.slice_len.to_string())).collect();
        let expected = [("direct", "256KiB"), ("mist@1MiB", "1MiB"), ("auto", "256KiB"), ("mist@block", "2MiB")];
        assert_eq!(slices, expected.map(|(label, slice)| (label.to_owned(), slice.to_owned())));
        for wrong in [&["--schemes", "pipeline"][..], &["--runs", "0"], &["--size", "0B"], &["--schemes", "mist@much"]] {
            assert!(parsed(wrong).cases().is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_direct_put_that_is_off_its_link_is_told() {
        let put = parsed(&["--code", "rs(2,1)", "--size", "2MiB"]);
        let data = Data::make("rs(2,1)", ByteSize(2 << 20), 1).unwrap();
        let settings = put.settings(false).unwrap();
        let warned = |put: &BenchPut, seconds: f64| {
            let sample = bench::Sample { seconds, bytes_moved: 3 << 20, cpu_idle: 0.5 };
            put.warnings(&[Outcome::of(DIRECT.to_owned(), &[sample], Some(2.0))], &data, Some(&settings))
        };
        // Three blocks for two blocks of data.
        assert_eq!(warned(&put, 3.05), Vec::<String>::new());
        assert!(warned(&put, 3.3)[0].contains("+10.0 % off"), "{:?}", warned(&put, 3.3));
        assert!(warned(&parsed(&["--code", "rs(2,1)", "--writers", "2"]), 9.0).is_empty());
    }
}
