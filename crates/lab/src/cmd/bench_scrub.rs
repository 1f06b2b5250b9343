//! `weft bench scrub`: how fast a cluster on this machine checks all that it stores.

use crate::bench::{
    IDLE_MIN, Machine, Report, median,
    scrub::{self, Scrubbed, Work},
};
use clap::Args;
use serde::Serialize;
use weft_cli::{exit::Exit, local::Size, output::Output, table::columns, target};
use weft_types::{ByteSize, CLASS_RATE_MIN, Error, Result, human_bytes};

const MIB: f64 = 1048576.0;
/// Limit for all stored data.
const STORED_BYTES_MAX: u64 = 64 << 30;

/// Check all data of a cluster on this machine, relative to direct reads of the same files
///
/// Objects of one stripe each are stored. Then `weft scrub` checks all of them, with nothing of their files in the page cache, and after it
/// the same files are read past the page cache: those of all disks at the same time, each disk's files one after another. The ratio of both
/// rates says how much of its disks a scrub uses. The disks of such a cluster are directories: they share one device, unless TMPDIR says
/// otherwise.
///
/// The bytes moved count everything on the loopback interface, with headers and encryption. A chain over the n blocks of a stripe sends n-1
/// block lengths, so (n-1)/n for each byte that is checked.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLE
  weft bench scrub --local
  TMPDIR=/mnt/disk weft bench scrub --local --code 'rs(6,3)' --block-size 64MiB --objects 200 --runs 3 --json
  weft bench scrub --local --limit 20MiB

EXIT CODES
  0 measured   1 failed   2 invalid settings, or TMPDIR has no direct reads   130 interrupted; nothing is left behind")]
pub(super) struct BenchScrub {
    /// Use a temporary cluster on this machine, whose links are not shaped
    #[arg(long, required = true)]
    local: bool,
    /// Code
    #[arg(long, default_value = "rs(4,2)")]
    code: String,
    /// Bytes of a block
    #[arg(long, default_value = "16MiB", value_name = "SIZE")]
    block_size: ByteSize,
    /// Number of agents, each with one disk
    #[arg(long, default_value_t = 9, value_name = "N")]
    nodes: u32,
    /// Number of objects, each of one stripe
    #[arg(long, default_value_t = 64, value_name = "N")]
    objects: usize,
    /// Bytes per second that scrubs of a node may send, and may receive (`limits.scrub_bytes_per_s`) [default: no limit]
    #[arg(long, value_name = "RATE")]
    limit: Option<ByteSize>,
    /// Maximum number of stripes that are checked at the same time, 1 to 64 [default: as `weft scrub`]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    concurrency: Option<u32>,
    /// Number of measured runs
    #[arg(long, default_value_t = 3, value_name = "N")]
    runs: usize,
    /// Seed of the data
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

#[derive(Debug, Serialize)]
struct Asked {
    code: String,
    block_size: ByteSize,
    nodes: u32,
    objects: usize,
    limit: Option<ByteSize>,
    concurrency: Option<u32>,
    runs: usize,
    seed: u64,
    insecure: bool,
}

/// One run.
#[derive(Debug, Serialize)]
struct Row {
    seconds: f64,
    blocks: u64,
    bytes: u64,
    /// Of each disk: bytes checked, and bytes of the same files read past the page cache.
    checked_mib_s: f64,
    read_mib_s: f64,
    /// The first relative to the second.
    over_read: f64,
    /// Bytes over the loopback interface for each byte that was checked.
    moved: f64,
    /// Bytes moved in a second by each node, relative to the limit; None: no limit.
    over_limit: Option<f64>,
    cpu_idle: f64,
}

#[derive(Debug, Serialize)]
struct Found {
    #[serde(flatten)]
    report: Report<Asked, Row>,
    checked_mib_s: f64,
    over_read: f64,
    moved: f64,
    /// What a chain moves for each byte, without headers: (n-1)/n.
    moved_bound: f64,
    over_limit: Option<f64>,
}

impl BenchScrub {
    pub(super) fn run(self, options: &target::Options, output: Output) -> Result<Exit> {
        if options.cluster.is_some() {
            return Err(Error::invalid(
                "this benchmark reads the files of its disks, so it needs a cluster of its own: omit --cluster and WEFT_CLUSTER",
            ));
        }
        let (work, blocks) = self.work(options.insecure)?;
        let says = |what: &str| {
            if !output.json {
                eprintln!("{what}");
            }
        };
        let results: Vec<Row> = scrub::run(&work, &says)?.into_iter().map(|it| Row::of(it, &work)).collect();
        let of = |of: fn(&Row) -> f64| median(&results.iter().map(of).collect::<Vec<_>>()).unwrap_or(f64::NAN);
        let (checked_mib_s, over_read, moved) = (of(|row| row.checked_mib_s), of(|row| row.over_read), of(|row| row.moved));
        let over_limit = self.limit.map(|_| of(|row| row.over_limit.unwrap_or(f64::NAN)));
        let warnings = warnings(&results, self.limit);
        let Self { local: _, code, block_size, nodes, objects, limit, concurrency, runs, seed } = self;
        let settings = Asked { code, block_size, nodes, objects, limit, concurrency, runs, seed, insecure: options.insecure };
        let report = Report { machine: Machine::this(), settings, results, warnings };
        let moved_bound = (blocks - 1) as f64 / blocks as f64;
        let found = Found { report, checked_mib_s, over_read, moved, moved_bound, over_limit };
        output.result_with(&found, &found.report.warnings, text)?;
        Ok(Exit::Ok)
    }

    /// Also returns how many blocks a stripe has.
    fn work(&self, insecure: bool) -> Result<(Work, usize)> {
        let code = weft_codes::parse(&self.code).map_err(Error::invalid)?;
        let object_len = self.block_size.0.saturating_mul(code.k() as u64);
        if self.runs == 0 || self.objects == 0 || object_len == 0 {
            return Err(Error::invalid("nothing to measure: --runs, --objects and --block-size must not be zero"));
        }
        let (nodes, needed) = (self.nodes, code.n() as u32);
        if nodes < needed {
            let spec = &self.code;
            return Err(Error::invalid(format!("--nodes {nodes} is too few for {spec}: at least {needed} are needed")));
        }
        if object_len.saturating_mul(self.objects as u64) > STORED_BYTES_MAX {
            let most = human_bytes(STORED_BYTES_MAX);
            return Err(Error::invalid(format!("more than {most} of data: store fewer or smaller objects")));
        }
        if self.limit.is_some_and(|limit| limit < CLASS_RATE_MIN) {
            return Err(Error::invalid(format!("--limit must be {CLASS_RATE_MIN} a second or more")));
        }
        let work = Work {
            code: self.code.clone(),
            objects: self.objects,
            object_len: object_len as usize,
            size: Size { nodes, racks: 1, disks_per_node: 1, insecure },
            limit: self.limit,
            concurrency: self.concurrency.unwrap_or(0),
            runs: self.runs,
            seed: self.seed,
        };
        Ok((work, code.n()))
    }
}

impl Row {
    fn of(it: Scrubbed, work: &Work) -> Self {
        let disks = f64::from(work.size.nodes * work.size.disks_per_node);
        let rate = |bytes: u64, seconds: f64| bytes as f64 / MIB / seconds / disks;
        let (checked_mib_s, read_mib_s) = (rate(it.bytes, it.seconds), rate(it.read_bytes, it.read_s));
        let sent_per_s = it.moved_bytes as f64 / it.seconds / f64::from(work.size.nodes);
        Self {
            seconds: it.seconds,
            blocks: it.blocks,
            bytes: it.bytes,
            checked_mib_s,
            read_mib_s,
            over_read: checked_mib_s / read_mib_s,
            moved: it.moved_bytes as f64 / it.bytes.max(1) as f64,
            over_limit: work.limit.map(|limit| sent_per_s / limit.0 as f64),
            cpu_idle: it.cpu_idle,
        }
    }
}

/// If the processors were busy and nothing else limits a scrub, they were measured.
fn warnings(results: &[Row], limit: Option<ByteSize>) -> Vec<String> {
    let is_busy = limit.is_none() && results.iter().any(|row| row.cpu_idle < IDLE_MIN);
    let warning = "the processors were busy: they were measured, and not the disks".to_owned();
    Some(warning).filter(|_| is_busy).into_iter().collect()
}

fn text(found: &Found) -> String {
    let Asked { code, block_size, nodes, objects, limit, .. } = &found.report.settings;
    let rate = |mib_s: f64| format!("{mib_s:.1} MiB/s");
    let row = |row: &Row| {
        vec![
            format!("{:.3} s", row.seconds),
            row.blocks.to_string(),
            rate(row.checked_mib_s),
            rate(row.read_mib_s),
            format!("{:.2} x", row.over_read),
            format!("{:.3}", row.moved),
            row.over_limit.map_or_else(|| "-".to_owned(), |over| format!("{over:.2} x")),
            format!("{:.0} %", row.cpu_idle * 100.0),
        ]
    };
    let heading = ["checked in", "blocks", "rate / disk", "direct reads", "/ these", "moved / byte", "/ limit", "CPU idle"];
    let table = columns(heading, &(0..heading.len()).collect::<Vec<_>>(), found.report.results.iter().map(row));
    let limit = limit.map_or_else(String::new, |limit| format!(", scrubs limited to {limit}/s for each node"));
    let (checked, over, moved, bound) = (rate(found.checked_mib_s), found.over_read, found.moved, found.moved_bound);
    format!(
        "{objects} objects of one stripe of {code} in blocks of {block_size}, on {nodes} disks{limit}\n{table}\nmedian {checked} for each \
         disk, {over:.2} x the rate of direct reads; {moved:.3} bytes moved for each byte (a chain: {bound:.3})\n{}",
        found.report.machine
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        scrub: BenchScrub,
    }

    fn parsed(args: &[&str]) -> Result<BenchScrub, clap::Error> {
        Line::try_parse_from(std::iter::once("scrub").chain(args.iter().copied())).map(|line| line.scrub)
    }

    #[test]
    fn rates_are_those_of_a_disk_and_moved_bytes_those_of_a_node() {
        let (work, blocks) = parsed(&["--local", "--limit", "1MiB"]).unwrap().work(false).unwrap();
        assert_eq!((blocks, work.object_len), (6, 4 * (16 << 20)));
        let run = Scrubbed {
            seconds: 2.0,
            blocks: 6,
            bytes: 36 << 20,
            moved_bytes: 9 << 20,
            cpu_idle: 0.05,
            read_s: 0.5,
            read_bytes: 18 << 20,
        };
        let row = Row::of(run, &work);
        assert_eq!((row.checked_mib_s, row.read_mib_s, row.over_read), (2.0, 4.0, 0.5));
        assert_eq!((row.moved, row.over_limit), (0.25, Some(0.5)));
        assert_eq!((warnings(&[row], work.limit).len(), warnings(&[Row::of(run, &work)], None).len()), (0, 1));
    }

    #[test]
    fn settings_without_a_result_are_refused() {
        assert!(parsed(&[]).is_err(), "--local is the only place");
        for wrong in [&["--runs", "0"][..], &["--objects", "0"], &["--nodes", "5"], &["--code", "rs(6)"], &["--limit", "1KiB"]] {
            let args = [&["--local"], wrong].concat();
            assert!(parsed(&args).unwrap().work(false).is_err(), "{wrong:?}");
        }
        assert!(parsed(&["--local", "--concurrency", "65"]).is_err());
    }
}
