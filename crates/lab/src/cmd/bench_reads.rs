//! `weft bench node --reads`: how long foreground reads take while a node is rebuilt or drained, relative to an idle cluster.

use super::links::Links;
use crate::{
    bench::{
        IDLE_MIN, Machine, Report,
        lost::{Leaves, LostNodes},
        median,
        node::{Layout, LostNode},
        place::in_testbed_with,
        reads::{self, Beside, Moved, PERCENT, READERS, Seen, Work},
        repair::probe,
    },
    reproduce::run::adjust,
    testbed::{Settings, Testbed},
};
use serde::Serialize;
use weft_cli::{exit::Exit, output::Output, session::Session, table::columns, target};
use weft_types::{ByteSize, Error, Result};

const MIB: f64 = 1048576.0;
/// Bytes of a read.
const READ_SIZE: ByteSize = ByteSize(256 << 10);

/// The measurement.
#[derive(Debug)]
pub(super) struct BenchReads {
    pub(super) reads: usize,
    /// Whether the node is drained instead of rebuilt.
    pub(super) drained: bool,
    pub(super) code: String,
    pub(super) blocks: usize,
    pub(super) block_size: ByteSize,
    pub(super) nodes: u32,
    pub(super) runs: usize,
    pub(super) links: Links,
    pub(super) seed: u64,
}

#[derive(Debug, Serialize)]
struct Asked {
    reads: usize,
    read_size: ByteSize,
    readers: usize,
    limit_percent: u32,
    drained: bool,
    code: String,
    blocks: usize,
    block_size: ByteSize,
    runs: usize,
    seed: u64,
    testbed: Settings,
}

/// The reads beside one kind of work: medians of the runs.
#[derive(Debug, Serialize)]
struct Row {
    beside: Beside,
    reads: usize,
    p50_ms: f64,
    p99_ms: f64,
    /// Relative to an idle cluster in the same run.
    p50_over_idle: f64,
    p99_over_idle: f64,
    /// Rebuilt or moved bytes.
    repair_mib_s: Option<f64>,
    cpu_idle: f64,
    runs: Vec<Run>,
}

/// The same of one run.
#[derive(Debug, Clone, Serialize)]
struct Run {
    reads: usize,
    p50_ms: f64,
    p99_ms: f64,
    max_ms: f64,
    p50_over_idle: f64,
    p99_over_idle: f64,
    repair_mib_s: Option<f64>,
    cpu_idle: f64,
}

impl BenchReads {
    pub(super) fn run(self, options: &target::Options, output: Output) -> Result<Exit> {
        let work = self.work()?;
        if options.cluster.is_some() {
            return Err(Error::invalid(
                "this benchmark moves all blocks of a node, so it needs a testbed of its own: omit --cluster and WEFT_CLUSTER",
            ));
        }
        let settings = self.links.settings(self.nodes, options.insecure)?;
        in_testbed_with(options, settings, adjust, async |session, testbed| {
            let testbed = testbed.ok_or_else(|| Error::invalid("links can be shaped only in a testbed"))?;
            let runs = self.measure(session, testbed, work, output.json).await?;
            let testbed = testbed.settings().clone();
            let results = rows(&runs, self.drained);
            let Self { reads, drained, code, blocks, block_size, runs, seed, .. } = &self;
            let (reads, code, blocks, block_size, runs, seed) = (*reads, code.clone(), *blocks, *block_size, *runs, *seed);
            let (read_size, readers, limit_percent, drained) = (READ_SIZE, READERS, PERCENT, *drained);
            let settings =
                Asked { reads, read_size, readers, limit_percent, drained, code, blocks, block_size, runs, seed, testbed };
            let busy = results.iter().find(|row| row.cpu_idle < IDLE_MIN);
            let warning = |row: &Row| {
                let percent = row.cpu_idle * 100.0;
                format!("beside {}, the processors were {percent:.0} % idle: they may have limited the reads", row.beside)
            };
            let report =
                Report { machine: Machine::this(), settings, warnings: busy.map(warning).into_iter().collect(), results };
            output.result_with(&report, &report.warnings, text)
        })?;
        Ok(Exit::Ok)
    }

    fn work(&self) -> Result<Work> {
        let code = weft_codes::parse(&self.code).map_err(Error::invalid)?;
        if self.runs == 0 || self.blocks == 0 || self.reads == 0 {
            return Err(Error::invalid("nothing to measure: --runs, --reads and --blocks must not be zero"));
        }
        let (nodes, needed) = (self.nodes, code.n() as u32 + 1);
        if nodes < needed {
            let code = &self.code;
            return Err(Error::invalid(format!("--nodes {nodes} is too few for {code}: at least {needed} are needed")));
        }
        let object_len = self.block_size.0.saturating_mul(code.k() as u64);
        if object_len < READ_SIZE.0 {
            return Err(Error::invalid(format!("an object of {object_len} bytes is shorter than a read of {READ_SIZE}")));
        }
        Ok(Work { reads: self.reads, read_len: READ_SIZE.0, object_len, runs: self.runs, seed: self.seed })
    }

    async fn measure(&self, session: &Session, testbed: &mut Testbed, work: Work, quiet: bool) -> Result<Vec<[Seen; 3]>> {
        if !quiet {
            eprintln!("storing stripes until a node has {} blocks", self.blocks);
        }
        let layout = Layout { code: &self.code, block_len: self.block_size.0, holders: self.nodes, lost: self.blocks };
        let node = match self.drained {
            true => Moved::Drained(LostNodes::store(session, testbed, layout, (1, Leaves::Drained), self.seed).await?),
            false => Moved::Repaired(LostNode::store(session, testbed, layout, self.seed).await?),
        };
        // The limit is a share of what was measured.
        probe(session, quiet).await?;
        let says = |run: usize, beside: Beside| {
            if !quiet {
                eprintln!("run {} of {}: reads beside {beside}", run + 1, self.runs);
            }
        };
        let seen = reads::measure(session, testbed, &node, work, &says).await?;
        node.remove(session).await?;
        Ok(seen)
    }
}

/// The medians of the runs, in each of which all kinds are compared with the idle cluster.
fn rows(runs: &[[Seen; 3]], drained: bool) -> Vec<Row> {
    let row = |(at, beside): (usize, Beside)| {
        let runs: Vec<Run> = runs.iter().map(|run| Run::of(&run[at], &run[0])).collect();
        let of = |of: fn(&Run) -> f64| median(&runs.iter().map(of).collect::<Vec<_>>()).unwrap_or(f64::NAN);
        Row {
            beside,
            reads: runs.iter().map(|run| run.reads).sum(),
            p50_ms: of(|run| run.p50_ms),
            p99_ms: of(|run| run.p99_ms),
            p50_over_idle: of(|run| run.p50_over_idle),
            p99_over_idle: of(|run| run.p99_over_idle),
            repair_mib_s: median(&runs.iter().filter_map(|run| run.repair_mib_s).collect::<Vec<_>>()),
            cpu_idle: of(|run| run.cpu_idle),
            runs,
        }
    };
    Beside::of(drained).into_iter().enumerate().map(row).collect()
}

impl Run {
    fn of(seen: &Seen, idle: &Seen) -> Self {
        let (p50_ms, p99_ms) = (seen.ms(50), seen.ms(99));
        Self {
            reads: seen.latencies.len(),
            p50_ms,
            p99_ms,
            max_ms: seen.ms(100),
            p50_over_idle: p50_ms / idle.ms(50),
            p99_over_idle: p99_ms / idle.ms(99),
            repair_mib_s: (seen.repair_s > 0.0).then(|| seen.rebuilt_bytes as f64 / MIB / seen.repair_s),
            cpu_idle: seen.cpu_idle,
        }
    }
}

fn text(report: &Report<Asked, Row>) -> String {
    let Asked { code, blocks, block_size, runs, testbed, read_size, readers, drained, .. } = &report.settings;
    let links = testbed.link.map_or_else(String::new, |link| format!(", links of {link}"));
    let (ms, times) = (|ms: f64| format!("{ms:.1} ms"), |times: f64| format!("{times:.2} x"));
    let row = |row: &Row| {
        vec![
            row.beside.to_string(),
            row.reads.to_string(),
            ms(row.p50_ms),
            times(row.p50_over_idle),
            ms(row.p99_ms),
            times(row.p99_over_idle),
            row.repair_mib_s.map_or_else(|| "-".to_owned(), |rate| format!("{rate:.1}")),
            format!("{:.0} %", row.cpu_idle * 100.0),
        ]
    };
    let (what, rate) = if *drained { ("drain", "moved MiB/s") } else { ("repair", "rebuilt MiB/s") };
    let heading = ["beside", "reads", "p50", "/ idle", "p99", "/ idle", rate, "CPU idle"];
    let table = columns(heading, &(1..heading.len()).collect::<Vec<_>>(), report.results.iter().map(row));
    format!(
        "reads of {read_size} by {readers} readers; {what} of {blocks} blocks of {block_size} of {code}{links}; runs: {runs}\n{table}\n{}",
        report.machine
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn each_run_is_compared_with_its_own_idle_cluster_and_the_median_counts() {
        let seen = |ms: u64, repair_s: f64| Seen {
            latencies: (1..=100).map(|at| Duration::from_millis(at * ms)).collect(),
            repair_s,
            rebuilt_bytes: 64 << 20,
            cpu_idle: 0.5,
        };
        // The machine was ten times as slow in the second run.
        let runs = [[seen(1, 0.0), seen(2, 4.0), seen(4, 1.0)], [seen(10, 0.0), seen(20, 8.0), seen(50, 2.0)]];
        let rows = rows(&runs, false);
        let over: Vec<(f64, f64)> = rows.iter().map(|row| (row.p50_over_idle, row.p99_over_idle)).collect();
        assert_eq!(over, [(1.0, 1.0), (2.0, 2.0), (4.5, 4.5)]);
        assert_eq!((rows[1].p50_ms, rows[1].p99_ms, rows[1].reads), (550.0, 1089.0, 200));
        assert_eq!(rows.iter().map(|row| row.repair_mib_s).collect::<Vec<_>>(), [None, Some(12.0), Some(48.0)]);
    }
}
