//! `weft bench node --local`: how fast a cluster on this machine heals itself.

use crate::bench::{
    Machine, Report,
    healing::{self, Healed, Work},
    median,
};
use serde::Serialize;
use weft_cli::{exit::Exit, local::Size, output::Output, table::columns, target};
use weft_types::{ByteSize, Error, Result, human_bytes};

const MIB: f64 = 1048576.0;
/// Limit for all stored data.
const STORED_BYTES_MAX: u64 = 64 << 30;

/// The measurement.
#[derive(Debug)]
pub(super) struct BenchHealing {
    pub(super) code: String,
    pub(super) block_size: ByteSize,
    pub(super) nodes: u32,
    pub(super) objects: usize,
    pub(super) runs: usize,
    pub(super) seed: u64,
}

#[derive(Debug, Serialize)]
struct Asked {
    code: String,
    block_size: ByteSize,
    nodes: u32,
    objects: usize,
    runs: usize,
    seed: u64,
    insecure: bool,
}

/// One run.
#[derive(Debug, Serialize)]
struct Row {
    /// From the death of the agent until the first block was being rebuilt.
    noticed_s: f64,
    /// From then until all stripes were whole.
    seconds: f64,
    blocks: u64,
    bytes: u64,
    rate_mib_s: f64,
    /// Bytes over the loopback interface for each rebuilt byte.
    moved: f64,
    /// The rate at which the same bytes were written to the same disk.
    written_mib_s: f64,
    /// Of both rates.
    over_written: f64,
    cpu_idle: f64,
}

#[derive(Debug, Serialize)]
struct Found {
    #[serde(flatten)]
    report: Report<Asked, Row>,
    rate_mib_s: f64,
    over_written: f64,
}

impl BenchHealing {
    pub(super) fn run(self, options: &target::Options, output: Output) -> Result<Exit> {
        if options.cluster.is_some() {
            return Err(Error::invalid(
                "this benchmark kills an agent for good, so it needs a cluster of its own: omit --cluster and WEFT_CLUSTER",
            ));
        }
        let work = self.work(options.insecure)?;
        let mut results = Vec::with_capacity(self.runs);
        for run in 0..self.runs {
            let says = |what: &str| {
                if !output.json {
                    eprintln!("run {} of {}: {what}", run + 1, self.runs);
                }
            };
            results.push(Row::of(healing::run(&work, &says)?));
        }
        let of = |of: fn(&Row) -> f64| median(&results.iter().map(of).collect::<Vec<_>>()).unwrap_or(f64::NAN);
        let (rate_mib_s, over_written) = (of(|row| row.rate_mib_s), of(|row| row.over_written));
        let Self { code, block_size, nodes, objects, runs, seed } = self;
        let settings = Asked { code, block_size, nodes, objects, runs, seed, insecure: options.insecure };
        let report = Report { machine: Machine::this(), settings, results, warnings: Vec::new() };
        let found = Found { report, rate_mib_s, over_written };
        output.result_with(&found, &found.report.warnings, text)?;
        Ok(Exit::Ok)
    }

    fn work(&self, insecure: bool) -> Result<Work> {
        let code = weft_codes::parse(&self.code).map_err(Error::invalid)?;
        let object_len = self.block_size.0.saturating_mul(code.k() as u64);
        if self.runs == 0 || self.objects == 0 || object_len == 0 {
            return Err(Error::invalid("nothing to measure: --runs, --objects and --block-size must not be zero"));
        }
        let (nodes, needed) = (self.nodes, code.n() as u32 + 1);
        if nodes < needed || code.tolerance() == 0 {
            let spec = &self.code;
            return Err(Error::invalid(format!("--nodes {nodes} is too few for {spec}: at least {needed} are needed")));
        }
        if object_len.saturating_mul(self.objects as u64) > STORED_BYTES_MAX {
            let most = human_bytes(STORED_BYTES_MAX);
            return Err(Error::invalid(format!("more than {most} of data: store fewer or smaller objects")));
        }
        let size = Size { nodes, racks: 1, disks_per_node: 1, insecure };
        let (object_len, block_len) = (object_len as usize, self.block_size.0 as usize);
        Ok(Work { code: self.code.clone(), objects: self.objects, object_len, block_len, size, seed: self.seed })
    }
}

impl Row {
    fn of(it: Healed) -> Self {
        let mib = it.bytes as f64 / MIB;
        let (rate_mib_s, written_mib_s) = (mib / it.seconds, mib / it.written_s);
        Self {
            noticed_s: it.noticed_s,
            seconds: it.seconds,
            blocks: it.blocks,
            bytes: it.bytes,
            rate_mib_s,
            moved: it.moved_bytes as f64 / it.bytes.max(1) as f64,
            written_mib_s,
            over_written: rate_mib_s / written_mib_s,
            cpu_idle: it.cpu_idle,
        }
    }
}

fn text(found: &Found) -> String {
    let Asked { code, block_size, nodes, objects, .. } = &found.report.settings;
    let rate = |mib_s: f64| format!("{mib_s:.0} MiB/s");
    let row = |row: &Row| {
        vec![
            format!("{:.1} s", row.noticed_s),
            format!("{:.3} s", row.seconds),
            row.blocks.to_string(),
            rate(row.rate_mib_s),
            format!("{:.2}", row.moved),
            rate(row.written_mib_s),
            format!("{:.2} x", row.over_written),
            format!("{:.0} %", row.cpu_idle * 100.0),
        ]
    };
    let heading = ["noticed", "rebuilt in", "blocks", "rate", "moved / byte", "synced writes", "/ these", "CPU idle"];
    let table = columns(heading, &(0..heading.len()).collect::<Vec<_>>(), found.report.results.iter().map(row));
    let (rate, over) = (rate(found.rate_mib_s), found.over_written);
    format!(
        "{objects} objects of one stripe of {code} in blocks of {block_size}, on {nodes} nodes of which one died\n{table}\nmedian {rate}, \
         {over:.2} x the rate of synced writes\n{}",
        found.report.machine
    )
}
