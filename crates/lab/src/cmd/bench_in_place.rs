//! `weft bench update --schemes`: measures updates in place by each scheme in turn, over shaped links.

use super::links::Links;
use crate::{
    bench::{
        self, DIRECT, Machine, Outcome, Report,
        check::too_busy,
        in_place::{self, Subject, Work, journal_bytes},
        place::{Own, in_testbed_as},
        repair::{self, Case},
        update_bound::{concerned, theory},
        update_way::Way,
    },
    testbed::{Matrix, Settings, scratch::file_system},
};
use clap::Args;
use serde::Serialize;
use weft_cli::{exit::Exit, local::DaemonSettings, output::Output, target};
use weft_control::options::check_slice_len;
use weft_schemes::{AUTO, Kind, check_name};
use weft_types::{AutoSize, ByteSize, Error, Result, UPDATE_BYTES_MAX, counted, human_bytes};

const RACKS: u32 = 3;
const WRITE_SIZE: ByteSize = ByteSize(16 << 20);
const SYNC_MS_MAX: f64 = 1000.0;
/// How the racks of a pipeline are ordered.
const PATHS: [&str; 4] = [EXACT, "tabu", "random", "worst"];
const EXACT: &str = "exact";
const PIPELINE: &str = "pipeline";

/// How updates are measured by schemes.
#[derive(Debug, Args)]
#[command(next_help_heading = "By schemes, over shaped links")]
#[command(mut_arg("racks", |arg| arg.help("Racks with a parity; each node is in a rack of its own, or at a place of --matrix [default: the code's parities, or 3]")))]
pub(super) struct Schemes {
    /// Schemes to measure, in turn: direct, star, concurrent-star, tree, pipeline, auto; SCHEME@SLICE, or SCHEME@block for slices as large as the write
    #[arg(long, value_delimiter = ',', value_name = "SCHEME")]
    schemes: Vec<String>,
    /// Number of measured runs of each scheme
    #[arg(long, default_value_t = 5, value_name = "N", requires = "schemes")]
    runs: usize,
    /// Bytes of a block
    #[arg(long, default_value = "64MiB", value_name = "SIZE", requires = "schemes")]
    block_size: ByteSize,
    /// Bytes of a slice, or auto
    #[arg(long, default_value = "64KiB", value_name = "SIZE", requires = "schemes")]
    slice_size: AutoSize,
    /// How the racks of a pipeline are ordered: exact, tabu, random or worst
    #[arg(long, default_value = "exact", value_name = "PATH", requires = "schemes")]
    path: String,
    /// Data blocks of a stripe that are updated at the same time, each by a client on its node
    #[arg(long, default_value_t = 1, value_name = "U", requires = "schemes")]
    concurrent: usize,
    /// Stripes that are updated at the same time
    #[arg(long, default_value_t = 1, value_name = "N", requires = "schemes")]
    stripes: usize,
    /// Bytes of each disk's journal of updates [default: enough for 64 of the writes]
    #[arg(long, value_name = "SIZE", requires = "schemes")]
    journal: Option<ByteSize>,
    /// Milliseconds that are added to each sync of a disk
    #[arg(long, value_name = "MS", requires = "schemes")]
    sync_ms: Option<f64>,
    /// Measure the links first, and use the result for plans; it is always so for links that differ, and for auto
    #[arg(long, requires = "schemes")]
    probe: bool,
    #[command(flatten)]
    pub(super) links: Links,
}

/// The options that both ways of measuring have.
pub(super) struct Common {
    pub(super) write_size: Option<ByteSize>,
    pub(super) code: Option<String>,
    pub(super) nodes: Option<u32>,
    pub(super) seed: u64,
}

/// What is measured, where.
#[derive(Debug)]
struct Planned {
    work: Work,
    /// The same with one parity.
    direct: Work,
    cases: Vec<Case>,
    racks: u32,
    journal: ByteSize,
    settings: Settings,
}

/// The settings of a measurement.
#[derive(Debug, Serialize)]
struct Asked {
    code: String,
    /// The code of the direct update.
    direct_code: String,
    block_size: ByteSize,
    write_size: ByteSize,
    slice_size: AutoSize,
    path: String,
    /// Racks with a parity.
    racks: u32,
    concurrent: usize,
    stripes: usize,
    /// The nodes of the clients: those of the blocks that change.
    clients: Vec<String>,
    journal: ByteSize,
    /// Of the disks, with their journals.
    file_system: String,
    sync_ms: f64,
    probed: bool,
    seed: u64,
    testbed: Settings,
}

/// The runs of a scheme.
#[derive(Debug, Serialize)]
struct Row {
    #[serde(flatten)]
    outcome: Outcome,
    /// What theory says, in times of one delta over one link; None: it says nothing of this.
    theory: Option<f64>,
    /// How the changes travel, from the node of each client.
    ways: Vec<Way>,
}

impl Schemes {
    /// Whether it is measured so.
    pub(super) fn are_asked(&self) -> bool {
        !self.schemes.is_empty()
    }

    pub(super) fn run(mut self, common: Common, options: &target::Options, output: Output) -> Result<Exit> {
        let planned = self.planned(common, options.insecure)?;
        if options.cluster.is_some() {
            return Err(Error::invalid(
                "journals and disks are made for the measurement, so it needs a testbed of its own: omit --cluster and WEFT_CLUSTER",
            ));
        }
        let (journal, sync_ms) = (planned.journal, self.sync_ms.unwrap_or(0.0));
        let adjust = |it: DaemonSettings<'_>| {
            if let DaemonSettings::Agent(_, config) = it {
                config.limits.update_journal = journal;
                config.throttle.sync_us = Some((sync_ms * 1e3) as u32).filter(|us| *us > 0);
            }
        };
        in_testbed_as(options, planned.settings.clone(), &Own { on_disk: true, adjust: &adjust }, async |session, testbed| {
            let testbed = testbed.ok_or_else(|| Error::fatal("updates are measured on a testbed"))?;
            let says = |what: &str| {
                if !output.json {
                    eprintln!("{what}");
                }
            };
            says("writing the journals");
            in_place::make_journals(session, planned.settings.nodes).await?;
            let probed = self.probe || planned.settings.is_uneven() || planned.cases.iter().any(|case| case.scheme == AUTO);
            if probed {
                repair::probe(session, output.json).await?;
            }
            says("storing the blocks");
            let mut subjects = vec![Subject::store(session, testbed, planned.work.clone()).await?];
            if planned.cases.iter().any(|case| case.scheme == DIRECT) {
                subjects.push(Subject::store(session, testbed, planned.direct.clone()).await?);
            }
            let cases: Vec<(usize, Case)> =
                planned.cases.iter().map(|case| (usize::from(case.scheme == DIRECT), case.clone())).collect();
            let mut told = |run: usize, at: usize| says(&format!("run {} of {}: {}", run + 1, self.runs, cases[at].1.label));
            let seed = planned.work.seed;
            let mut results = in_place::measure(testbed, &mut subjects, &cases, (self.runs, seed), &mut told).await?;
            let clients = subjects[0].client_nodes();
            let ways: Vec<Vec<Way>> = cases.iter().map(|(of, case)| subjects[*of].ways(&case.label)).collect();
            for subject in subjects {
                subject.compare(session).await?;
                subject.remove(session).await?;
            }
            bench::compare(&mut results, DIRECT);
            let asked = self.asked(&planned, clients, testbed, probed)?;
            let warnings = too_busy(&results).into_iter().collect();
            let results = self.rows(&planned, results, ways);
            let report = Report { machine: Machine::this(), settings: asked, warnings, results };
            output.result_with(&report, &report.warnings, |it| text(it, self.runs))
        })?;
        Ok(Exit::Ok)
    }

    /// Checks all settings.
    fn planned(&mut self, common: Common, insecure: bool) -> Result<Planned> {
        let racks = self.links.take_racks();
        let code = common.code.unwrap_or_else(|| format!("rs(4,{})", racks.unwrap_or(RACKS)));
        let parities = concerned(&code, 0)?.len();
        if racks.is_some_and(|racks| racks as usize != parities) {
            return Err(Error::invalid(format!(
                "{parities} parities of {code} change with a data block: with each in a rack of its own, --racks is {parities}"
            )));
        }
        let (k, n) = weft_codes::parse(&code).map(|code| (code.k(), code.n() as u32)).map_err(Error::invalid)?;
        // Then no stripe needs a node of another one.
        let usual = n.saturating_mul(u32::try_from(self.stripes).unwrap_or(u32::MAX));
        let nodes = common.nodes.unwrap_or(usual);
        if nodes < n {
            return Err(Error::invalid(format!("--nodes {nodes} is too few for {code}, which has {n} blocks")));
        }
        let update_len = common.write_size.unwrap_or(WRITE_SIZE).0;
        if update_len > UPDATE_BYTES_MAX {
            let most = human_bytes(UPDATE_BYTES_MAX);
            return Err(Error::invalid(format!("--write-size is {}: one update has up to {most}", ByteSize(update_len))));
        }
        let block_len = self.block_size.0;
        let work = Work { code, block_len, update_len, blocks: self.concurrent, stripes: self.stripes, seed: common.seed };
        work.check()?;
        let direct = Work { code: format!("rs({k},1)"), blocks: 1, stripes: 1, ..work.clone() };
        let journal = self.journal.unwrap_or_else(|| journal_bytes(update_len));
        let settings = self.links.settings(nodes, insecure)?;
        // A matrix of places has made racks of them.
        let is_of_places = settings.matrix.as_ref().is_some_and(|matrix| !is_of_nodes(&settings, matrix));
        let settings = if is_of_places { settings } else { Settings { racks: nodes, ..settings } };
        settings.check()?;
        let cases = self.cases(&settings, update_len)?;
        Ok(Planned { work, direct, cases, racks: parities as u32, journal, settings })
    }

    fn cases(&self, settings: &Settings, update_len: u64) -> Result<Vec<Case>> {
        if !PATHS.contains(&self.path.as_str()) {
            return Err(Error::invalid(format!("there is no path '{}'; choose from: {}", self.path, PATHS.join(", "))));
        }
        if self.runs == 0 || self.sync_ms.is_some_and(|ms| !(0.0..=SYNC_MS_MAX).contains(&ms)) {
            return Err(Error::invalid(format!("--runs must be at least 1, and --sync-ms 0 to {SYNC_MS_MAX}")));
        }
        check_slice_len("--slice-size", self.slice_size)?;
        let mut cases: Vec<Case> = Vec::new();
        for text in &self.schemes {
            for mut case in Case::parse(text, self.slice_size, update_len)? {
                case.select.clone_from(&self.path);
                match case.scheme.as_str() {
                    DIRECT if settings.is_uneven() => {
                        return Err(Error::invalid(
                            "a direct update goes over one link: if links differ, it is no measure for others",
                        ));
                    }
                    DIRECT => {}
                    scheme => check_name(Kind::Update, scheme)?,
                }
                if case.scheme == PIPELINE {
                    check_slice_len(&format!("the slice size of {}", case.label), case.slice_len)?;
                }
                cases.push(case);
            }
        }
        if self.path != EXACT && !cases.iter().any(|case| case.scheme == PIPELINE) {
            return Err(Error::invalid(format!("--path orders the racks of a pipeline: add {PIPELINE} to --schemes")));
        }
        Ok(cases)
    }

    fn asked(&self, planned: &Planned, clients: Vec<String>, testbed: &crate::testbed::Testbed, probed: bool) -> Result<Asked> {
        let Planned { work, direct, racks, journal, .. } = planned;
        Ok(Asked {
            code: work.code.clone(),
            direct_code: direct.code.clone(),
            block_size: ByteSize(work.block_len),
            write_size: ByteSize(work.update_len),
            slice_size: self.slice_size,
            path: self.path.clone(),
            racks: *racks,
            concurrent: work.blocks,
            stripes: work.stripes,
            clients,
            journal: *journal,
            file_system: file_system(testbed.dir())?,
            sync_ms: self.sync_ms.unwrap_or(0.0),
            probed,
            seed: work.seed,
            testbed: testbed.settings().clone(),
        })
    }

    fn rows(&self, planned: &Planned, results: Vec<Outcome>, ways: Vec<Vec<Way>>) -> Vec<Row> {
        let is_one = planned.work.blocks * planned.work.stripes == 1 && !planned.settings.is_uneven();
        let of = |case: &Case| theory(case, planned.racks as usize, planned.work.update_len).filter(|_| is_one);
        let all = planned.cases.iter().zip(results).zip(ways);
        all.map(|((case, outcome), ways)| Row { theory: of(case), outcome, ways }).collect()
    }
}

/// Whether the places of a matrix are nodes.
fn is_of_nodes(settings: &Settings, matrix: &Matrix) -> bool {
    matrix.names.iter().all(|name| settings.number(name).is_ok())
}

fn text(it: &Report<Asked, Row>, runs: usize) -> String {
    let Asked { code, block_size, write_size, racks, concurrent, stripes, journal, file_system, sync_ms, testbed, .. } =
        &it.settings;
    let links = testbed.link.map_or_else(String::new, |link| format!(", links of {link}"));
    let blocks = counted(*concurrent as u64, "data block");
    let what = match (concurrent, stripes) {
        (1, 1) => format!("an update of {write_size}"),
        (_, 1) => format!("updates of {write_size}, of {blocks} of a stripe at once"),
        _ => format!("updates of {write_size}, of {blocks} in each of {stripes} stripes at once"),
    };
    let syncs = if *sync_ms > 0.0 { format!(", {sync_ms} ms more for each sync") } else { String::new() };
    let outcomes: Vec<Outcome> = it.results.iter().map(|row| row.outcome.clone()).collect();
    let theory =
        it.results.iter().map(|row| row.theory.map_or_else(|| "-".to_owned(), |theory| format!("{theory:.3} x"))).collect();
    let table = bench::results_with(&outcomes, DIRECT, ["link bound", "/ bound"], Some(("theory", theory)));
    let times = it.results.iter().map(|row| {
        let times: Vec<String> = row.outcome.times_s.iter().map(|seconds| format!("{seconds:.3}")).collect();
        format!("  {}: {}", row.outcome.scheme, times.join(" "))
    });
    let times: Vec<String> = times.collect();
    format!(
        "{what}, in blocks of {block_size} of {code}, {racks} parity racks{links}; {runs} runs each\n\
         disks on {file_system}, journals of {journal}{syncs}; each client is on the node of the block that changes\n{table}\n\
         all runs, seconds:\n{}\n{}",
        times.join("\n"),
        it.machine
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::update_bound::SLICE;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        schemes: Schemes,
    }

    fn common() -> Common {
        Common { write_size: None, code: None, nodes: None, seed: 1 }
    }

    fn planned(args: &[&str], common: Common) -> Result<Planned> {
        let given = ["update", "--schemes", "direct,star,tree,pipeline@1MiB,auto"];
        let line = Line::try_parse_from(given.iter().chain(args)).map_err(|error| Error::invalid(error.to_string()))?;
        let mut schemes = line.schemes;
        schemes.planned(common, false)
    }

    #[test]
    fn each_parity_is_in_a_rack_of_its_own() {
        let usual = planned(&[], common()).unwrap();
        assert_eq!((usual.work.code.as_str(), usual.direct.code.as_str()), ("rs(4,3)", "rs(4,1)"));
        assert_eq!((usual.settings.nodes, usual.settings.racks, usual.racks), (7, 7, 3));
        assert_eq!((usual.work.update_len, usual.work.block_len), (16 << 20, 64 << 20));
        let slices: Vec<String> = usual.cases.iter().map(|case| case.slice_len.to_string()).collect();
        assert_eq!(slices, ["64KiB", "64KiB", "64KiB", "1MiB", "64KiB"]);
        assert_eq!(usual.cases[3].select, "exact");
        let two = planned(&["--racks", "2"], Common { nodes: Some(9), ..common() }).unwrap();
        assert_eq!((two.work.code.as_str(), two.settings.nodes, two.settings.racks), ("rs(4,2)", 9, 9));
        let local = planned(&[], Common { code: Some("lrc(4,2,2)".to_owned()), ..common() }).unwrap();
        assert_eq!((local.racks, local.settings.nodes), (3, 8), "the other group's parity does not change");
    }

    #[test]
    fn invalid_settings_are_refused_before_anything_is_made() {
        let of = |code: &str| Common { code: Some(code.to_owned()), ..common() };
        let says = |args: &[&str], common: Common| planned(args, common).unwrap_err().message;
        assert!(says(&["--racks", "2"], of("rs(4,3)")).contains("--racks is 3"));
        assert!(says(&[], Common { nodes: Some(6), ..common() }).contains("too few"));
        assert!(says(&[], Common { write_size: Some(ByteSize(32 << 20)), ..common() }).contains("one update has up to"));
        assert!(says(&["--block-size", "24MiB"], common()).contains("whole updates"));
        assert!(says(&["--concurrent", "5"], common()).contains("4 data blocks"));
        assert!(says(&["--path", "best"], common()).contains("exact, tabu, random, worst"));
        assert!(says(&["--slice-size", "1000"], common()).contains("multiple"));
        assert!(says(&["--slice-size", "65MiB"], common()).contains("at most 64MiB"));
        assert!(says(&["--schemes", "pipeline@1000"], common()).contains("pipeline@1000"));
        let line = Line::try_parse_from(["update", "--schemes", "star", "--path", "worst"]).unwrap();
        let mut without = line.schemes;
        assert!(without.planned(common(), false).unwrap_err().message.contains("add pipeline"));
        assert!(says(&["--sync-ms=-1"], common()).contains("--sync-ms 0 to"));
        assert!(says(&["--sync-ms", "2000"], common()).contains("--sync-ms"));
        assert!(says(&["--limit", "node-01:*=10mbit"], common()).contains("no measure"));
        for wrong in
            [&["--runs", "0"][..], &["--stripes", "0"], &["--concurrent", "0"], &["--schemes", "mist"], &["--link", "fast"]]
        {
            assert!(planned(wrong, common()).is_err(), "{wrong:?}");
        }
        let lines = [&["update", "--runs", "3"][..], &["update", "--sync-ms", "3"], &["update", "--probe"]];
        assert!(lines.iter().all(|line| Line::try_parse_from(line.iter()).is_err()), "they mean nothing without --schemes");
    }

    #[test]
    fn all_runs_are_shown_beside_theory() {
        let it = planned(&["--racks", "3"], common()).unwrap();
        let sample = |seconds| bench::Sample { seconds, bytes_moved: 3 << 20, cpu_idle: 0.5 };
        let outcome = |case: &Case| Outcome::of(case.label.clone(), &[sample(2.0), sample(1.0)], Some(1.5));
        let mut results: Vec<Outcome> = it.cases.iter().map(outcome).collect();
        bench::compare(&mut results, DIRECT);
        let line = Line::try_parse_from(["update", "--schemes", "direct"]).unwrap();
        let rows = line.schemes.rows(&it, results, vec![Vec::new(); it.cases.len()]);
        let theory: Vec<Option<f64>> = rows.iter().map(|row| row.theory).collect();
        assert_eq!(theory, [Some(1.0), Some(3.0), Some(2.0), Some(1.0 + 2.0 / 16.0), None]);
        let json = serde_json::to_value(&rows).unwrap();
        assert_eq!((&json[1]["times_s"], &json[1]["ratio"]), (&serde_json::json!([2.0, 1.0]), &1.0.into()));
        let asked = Asked {
            code: it.work.code.clone(),
            direct_code: it.direct.code.clone(),
            block_size: ByteSize(it.work.block_len),
            write_size: ByteSize(it.work.update_len),
            slice_size: AutoSize::bytes(SLICE),
            path: "exact".to_owned(),
            racks: 3,
            concurrent: 1,
            stripes: 2,
            clients: Vec::new(),
            journal: it.journal,
            file_system: "ext4".to_owned(),
            sync_ms: 3.0,
            probed: false,
            seed: 1,
            testbed: it.settings,
        };
        let report = Report { machine: Machine::this(), settings: asked, warnings: Vec::new(), results: rows };
        let text = text(&report, 2);
        for part in [
            "updates of 16MiB, of 1 data block in each of 2 stripes at once",
            "3 ms more",
            "disks on ext4",
            "  star: 2.000 1.000",
            "3.000 x",
            "links of 200mbit",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}
