//! `weft bench node --lost 2` and `--drain`: the cluster rebuilds all blocks of nodes that were lost at the same time, or moves those of a
//! node that is drained, relative to the lower bound of the links.

use super::links::Links;
use crate::{
    bench::{
        Machine, Outcome, Report, Sample,
        check::too_busy,
        lost::{LOST_AFTER, Leaves, LostNodes},
        median,
        node::Layout,
        place::in_testbed_with,
        repair::{self, Case},
    },
    reproduce::run::adjust,
    testbed::{Settings, Testbed},
};
use serde::Serialize;
use weft_cli::{exit::Exit, output::Output, session::Session, table::columns, target};
use weft_schemes::{AUTO, Kind, rebuilds};
use weft_types::{AutoSize, ByteSize, Error, HelperSelect, Result};

const MIB: f64 = 1048576.0;

/// The measurement.
#[derive(Debug)]
pub(super) struct BenchLost {
    /// Nodes that are lost at the same time.
    pub(super) lost: u32,
    /// Whether they are drained instead.
    pub(super) drained: bool,
    pub(super) select: Option<Vec<String>>,
    pub(super) schemes: Vec<String>,
    pub(super) code: String,
    /// Blocks of all of them together.
    pub(super) blocks: usize,
    pub(super) block_size: ByteSize,
    pub(super) slice_size: AutoSize,
    pub(super) runs: usize,
    pub(super) nodes: u32,
    pub(super) requestors: u32,
    pub(super) links: Links,
    pub(super) seed: u64,
}

/// The settings of a measurement.
#[derive(Debug, Serialize)]
struct Asked {
    lost: u32,
    drained: bool,
    code: String,
    blocks: usize,
    block_size: ByteSize,
    slice_size: AutoSize,
    seed: u64,
    testbed: Settings,
}

/// The result of one scheme.
#[derive(Debug, Serialize)]
struct Row {
    /// Always the one by which the cluster selects nodes.
    select: &'static str,
    /// Its bound is that of the instance: no choice of nodes can undercut it.
    #[serde(flatten)]
    outcome: Outcome,
    /// The rebuilt blocks.
    blocks: usize,
    /// How many stripes lost one block, two, and so on.
    stripes: Vec<usize>,
    rate_mib_s: f64,
    /// The median time relative to the bound.
    over_bound: Option<f64>,
    /// How long the busiest link needs at least for the bytes that it carried: the median of the runs.
    busiest_s: Option<f64>,
}

impl BenchLost {
    pub(super) fn run(self, options: &target::Options, output: Output) -> Result<Exit> {
        let cases = self.cases()?;
        if options.cluster.is_some() {
            return Err(Error::invalid(
                "this benchmark kills agents and changes links, so it needs a testbed of its own: omit --cluster and WEFT_CLUSTER",
            ));
        }
        let testbed = self.links.settings(self.nodes, options.insecure)?;
        let mut results = Vec::with_capacity(cases.len());
        for case in &cases {
            results.push(self.measure(case, options, testbed.clone(), output.json)?);
        }
        let outcomes: Vec<Outcome> = results.iter().map(|row| row.outcome.clone()).collect();
        let warnings: Vec<String> = too_busy(&outcomes).into_iter().collect();
        let Self { lost, drained, code, blocks, block_size, slice_size, seed, runs, .. } = self;
        let settings = Asked { lost, drained, code, blocks, block_size, slice_size, seed, testbed };
        let report = Report { machine: Machine::this(), settings, results, warnings };
        output.result_with(&report, &report.warnings, |report| text(report, runs))?;
        Ok(Exit::Ok)
    }

    /// The schemes to measure.
    fn cases(&self) -> Result<Vec<Case>> {
        let (lost, nodes, spec) = (self.lost, self.nodes, &self.code);
        let asked = if self.drained { "--drain".to_owned() } else { format!("--lost {lost}") };
        let code = weft_codes::parse(spec).map_err(Error::invalid)?;
        if self.runs == 0 || self.schemes.is_empty() || self.blocks == 0 {
            return Err(Error::invalid("nothing to measure: --runs, --scheme and --blocks must not be zero or empty"));
        }
        let boost = HelperSelect::Boost.name();
        if let Some(other) = self.select.iter().flatten().find(|select| *select != boost) {
            return Err(Error::invalid(format!(
                "--select {other} cannot be measured with {asked}: the cluster rebuilds or moves these blocks by itself, and selects by \
                 {boost}: omit --select"
            )));
        }
        if self.requestors > 0 {
            return Err(Error::invalid(format!(
                "--requestors cannot be measured with {asked}: the cluster chooses itself which nodes get the blocks"
            )));
        }
        if code.tolerance() < lost as usize {
            let tolerance = code.tolerance();
            return Err(Error::invalid(format!(
                "--lost {lost} is too many for {spec}, which survives the loss of {tolerance}: choose another --code"
            )));
        }
        let needed = code.n() as u32 + lost;
        if nodes < needed {
            return Err(Error::invalid(format!(
                "--nodes {nodes} is too few for {spec} with {asked}: at least {needed} are needed"
            )));
        }
        self.schemes.iter().map(|text| self.case(text)).collect()
    }

    fn case(&self, text: &str) -> Result<Case> {
        let mut parsed = Case::parse(text, self.slice_size, self.block_size.0)?;
        // One case for each name: PPR in slices, too, unless its name says otherwise.
        let case = parsed.pop().ok_or_else(|| Error::invalid("a scheme has no name"))?;
        weft_schemes::check_name(Kind::Repair, &case.scheme)?;
        if case.scheme != AUTO && !rebuilds(&case.scheme) {
            return Err(Error::invalid(format!("the scheme '{}' does not rebuild blocks", case.scheme)));
        }
        Ok(Case { label: text.to_owned(), ..case })
    }

    /// In a testbed of its own: the scheme is a setting of the coordinator.
    fn measure(&self, case: &Case, options: &target::Options, settings: Settings, quiet: bool) -> Result<Row> {
        let chosen = |config: &mut weft_coordinator::CoordinatorConfig| {
            adjust(config);
            config.lost_after_ms = LOST_AFTER.as_millis() as u64;
            (config.scheme, config.repair_slice_len) = (case.scheme.clone(), case.slice_len);
        };
        in_testbed_with(options, settings, chosen, async |session, testbed| {
            let testbed = testbed.ok_or_else(|| Error::invalid("links can be shaped only in a testbed"))?;
            self.measured(session, testbed, case, quiet).await
        })
    }

    async fn measured(&self, session: &Session, testbed: &mut Testbed, case: &Case, quiet: bool) -> Result<Row> {
        let says = |what: &str| {
            if !quiet {
                eprintln!("{}: {what}", case.label);
            }
        };
        let (lost, blocks) = (self.lost as usize, self.blocks);
        let nodes = weft_types::counted(lost as u64, "node");
        says(&format!("storing stripes until {nodes} together have {blocks} blocks"));
        let layout = Layout { code: &self.code, block_len: self.block_size.0, holders: self.nodes, lost: blocks };
        let leaves = if self.drained { Leaves::Drained } else { Leaves::Lost };
        let nodes = LostNodes::store(session, testbed, layout, (lost, leaves), self.seed).await?;
        if testbed.settings().is_uneven() {
            repair::probe(session, quiet).await?;
        }
        let bound_s = nodes.bound_s(session, testbed, case).await?;
        // The first run opens connections and is not counted.
        says("warm-up");
        nodes.run(session, testbed).await?;
        let (mut samples, mut busiest): (Vec<Sample>, Vec<f64>) = Default::default();
        for run in 0..self.runs {
            says(&format!("run {} of {}", run + 1, self.runs));
            let healed = nodes.run(session, testbed).await?;
            samples.push(healed.sample);
            busiest.extend(healed.busiest_s);
        }
        let (blocks, stripes) = (nodes.blocks(), nodes.stripes());
        nodes.remove(session).await?;
        let outcome = Outcome::of(case.label.clone(), &samples, bound_s);
        Ok(Row {
            select: HelperSelect::Boost.name(),
            rate_mib_s: blocks as f64 * self.block_size.0 as f64 / MIB / outcome.median_s,
            over_bound: bound_s.map(|bound_s| outcome.median_s / bound_s),
            busiest_s: median(&busiest),
            blocks,
            stripes,
            outcome,
        })
    }
}

fn text(report: &Report<Asked, Row>, runs: usize) -> String {
    let Asked { lost, drained, code, block_size, testbed, .. } = &report.settings;
    let links = testbed.link.map_or_else(String::new, |link| format!(", links of {link}"));
    let seconds = |seconds: Option<f64>| seconds.map_or_else(|| "-".to_owned(), |it| format!("{it:.3} s"));
    let row = |row: &Row| {
        let it = &row.outcome;
        vec![
            it.scheme.clone(),
            row.blocks.to_string(),
            row.stripes.iter().map(usize::to_string).collect::<Vec<_>>().join(" / "),
            seconds(Some(it.median_s)),
            format!("{:.3} .. {:.3}", it.min_s, it.max_s),
            format!("{:.1}", row.rate_mib_s),
            seconds(it.bound_s),
            row.over_bound.map_or_else(|| "-".to_owned(), |it| format!("{it:.3} x")),
            seconds(row.busiest_s),
            format!("{:.0} %", it.cpu_idle * 100.0),
        ]
    };
    let stripes = if *drained { "stripes".to_owned() } else { format!("stripes by losses, 1 to {lost}") };
    let heading = ["scheme", "blocks", &stripes, "median", "min .. max", "MiB/s", "bound", "/ bound", "busiest link", "CPU idle"];
    let table = columns(heading, &(1..heading.len()).collect::<Vec<_>>(), report.results.iter().map(row));
    let what = if *drained { "a node drained".to_owned() } else { format!("{lost} nodes lost together") };
    format!("{what}, blocks of {block_size} of {code}{links}; {runs} runs each\n{table}\n{}", report.machine)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(flatten)]
        links: Links,
    }

    fn bench(change: impl FnOnce(&mut BenchLost)) -> Result<Vec<Case>> {
        let mut bench = BenchLost {
            lost: 2,
            drained: false,
            select: None,
            schemes: ["pipeline", "auto", "ppr@block"].map(str::to_owned).into(),
            code: "rs(6,3)".to_owned(),
            blocks: 8,
            block_size: ByteSize(1 << 20),
            slice_size: AutoSize::Bytes(ByteSize(64 << 10)),
            runs: 1,
            nodes: 11,
            requestors: 0,
            links: <Line as clap::Parser>::parse_from(["links"]).links,
            seed: 1,
        };
        change(&mut bench);
        bench.cases()
    }

    #[test]
    fn each_scheme_is_measured_once() {
        let cases = bench(|it| it.select = Some(vec!["boost".to_owned()])).unwrap();
        let named: Vec<String> = cases.iter().map(|it| format!("{} {} {}", it.label, it.scheme, it.slice_len)).collect();
        assert_eq!(named, ["pipeline pipeline 64KiB", "auto auto 64KiB", "ppr@block ppr 1MiB"]);
    }

    /// What is refused, and a word of the reason.
    #[test]
    fn what_means_nothing_for_several_nodes_is_refused_with_the_reason() {
        type Change = fn(&mut BenchLost);
        let refused: [(Change, &str); 10] = [
            (|it| it.select = Some(vec!["boost".to_owned(), "lru".to_owned()]), "--select lru"),
            (|it| it.requestors = 1, "--requestors"),
            (|it| it.nodes = 10, "at least 11"),
            (|it| it.lost = 3, "at least 12"),
            (|it| (it.lost, it.code) = (3, "rs(4,2)".to_owned()), "survives the loss of 2"),
            (|it| it.code = "rs(6)".to_owned(), "rs(6)"),
            (|it| it.schemes = vec!["direct".to_owned()], "does not rebuild"),
            (|it| it.schemes = vec!["pigeon".to_owned()], "pigeon"),
            (|it| it.runs = 0, "--runs"),
            (|it| it.blocks = 0, "--blocks"),
        ];
        for (change, why) in refused {
            let error = bench(change).unwrap_err();
            assert!(error.message.contains(why), "{why}: {error}");
        }
        assert!(bench(|it| (it.lost, it.nodes) = (3, 12)).is_ok());
        let drain = |change: fn(&mut BenchLost)| {
            bench(|it| {
                (it.lost, it.drained) = (1, true);
                change(it);
            })
        };
        assert!(drain(|_| {}).is_ok());
        assert!(drain(|it| it.requestors = 2).unwrap_err().message.contains("with --drain"));
    }
}
