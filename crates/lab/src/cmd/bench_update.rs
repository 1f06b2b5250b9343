//! `weft bench update`: measures writes in place, small ones of a plain cluster here, and by schemes over shaped links in [`super::bench_in_place`].

use super::bench_in_place::{Common, Schemes};
use crate::bench::{
    Machine, Report,
    place::in_cluster,
    update::{self, BOUND_BYTES, Coded, Row, Work},
    update_cost::APPLIED_WITHIN,
};
use clap::Args;
use serde::Serialize;
use std::time::Duration;
use weft_cli::{duration, exit::Exit, local::Size, output::Output, table::columns, target};
use weft_codes::SharedCode;
use weft_types::{ByteSize, Error, PAGE_LEN, Result, UPDATE_BYTES_USUAL, human_bytes};

const CODE: &str = "rs(4,2)";
const WRITE_SIZE: ByteSize = ByteSize(4 << 10);
/// Stands for no code to compare with.
const OFF: &str = "off";
/// The longest block that is asked for: the usual length.
const BLOCK_LEN_MAX: u64 = 64 << 20;
const DEPTH_MAX: usize = 1024;
/// The objects are in memory, and one of them twice when it is compared.
const SIZE_MAX: u64 = 1 << 30;
/// More nodes than the code has blocks.
const MORE_NODES: u32 = 1;

/// Measure writes in place; with --schemes, by each scheme over shaped links
///
/// Starts a temporary cluster and removes it afterwards; needs no root. Overwrites random slots of one object through the library: at each depth, so
/// many writes are under way at a time. In the end the object is read and compared with what was written. At each depth, the same writes go to an
/// object of another code, by default three copies: as durable, by the same calls, in blocks of the same length.
///
/// `syncs` are those of a journal for each update and node that takes part in it; `bytes` are written to journals, blocks and sidecars of all these
/// nodes, for each byte of a write. Agents count both from the first write at a depth until all writes are applied.
///
/// The last line is the bound: an update waits for one sync at the node of each block concerned, in parallel. So as many threads sync 4 KiB each on
/// the cluster's disk, and the next round begins when all have ended. Several updates share a sync, so many at once can exceed the bound.
///
/// With --schemes, it measures updates of part of a block by each scheme in turn, on a temporary testbed (see `weft testbed`; needs root) whose disks
/// are below TMPDIR and not in memory. The client is on the node of the block that changes, and each parity is in a rack of its own. The time is from
/// its first byte to the acknowledgement. `direct` is the same update with one parity: one delta over one link.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLE
  weft bench update
  weft bench update --code 'rs(6,3)' --write-size 64KiB --depth 1,4 --time 10s --json
  weft bench update --code 'lrc(4,2,2)' --beside 'replication(4)'
  weft bench update --write-size 1MiB --depth 1 --beside off
  weft bench update --cluster weft-cluster
  sudo weft bench update --schemes direct,star,tree,pipeline --racks 3 --runs 5 --json
  sudo weft bench update --schemes star,tree,pipeline,auto --matrix regions.csv --code 'rs(9,3)' --write-size 4MiB --block-size 16MiB
  sudo weft bench update --schemes star,tree,pipeline --concurrent 3 --write-size 4MiB --sync-ms 3

EXIT CODES
  0 measured   1 failed   2 invalid settings   3 no such cluster   4 too few nodes are up; or with --schemes, no root, no `ip`, no `tc`   \
  5 a byte came back wrong   \
  130 interrupted: the temporary cluster is removed; with --cluster, objects can stay in the bucket `bench`")]
pub(super) struct BenchUpdate {
    /// Bytes of the object
    #[arg(long, default_value = "64MiB", value_name = "SIZE", conflicts_with = "schemes")]
    size: ByteSize,
    /// Bytes of a write [default: 4KiB; with --schemes: 16MiB]
    #[arg(long, value_name = "SIZE")]
    write_size: Option<ByteSize>,
    /// Writes at the same time
    #[arg(long, value_delimiter = ',', default_value = "1,16,64", value_name = "N", conflicts_with = "schemes")]
    depth: Vec<usize>,
    /// How long to write at each depth
    #[arg(long, default_value = "5s", value_name = "DURATION", value_parser = duration::parse, conflicts_with = "schemes")]
    time: Duration,
    /// Code [default: rs(4,2); with --schemes: rs(4,R) for R racks]
    #[arg(long)]
    code: Option<String>,
    /// Code to compare with, in blocks of the same length; `off`: none, as for a cluster that has too few nodes for it
    #[arg(long, default_value = "replication(3)", value_name = "CODE", conflicts_with = "schemes")]
    beside: String,
    /// Number of agents [default: the code's blocks and one more; with --schemes: the code's blocks, for each stripe]
    #[arg(long, value_name = "N")]
    nodes: Option<u32>,
    /// Seed of the data, and with --schemes of all random choices
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    schemes: Schemes,
}

/// The settings, and the kind of cluster.
#[derive(Debug, Serialize)]
struct Asked {
    size: ByteSize,
    write_size: ByteSize,
    seconds: f64,
    code: String,
    /// The code with which it is compared.
    beside: Option<String>,
    seed: u64,
    nodes: usize,
    insecure: bool,
    /// The blocks whose nodes sync for a write within one block.
    blocks_concerned: usize,
    /// None: a temporary cluster.
    cluster: Option<String>,
}

impl BenchUpdate {
    pub(super) fn run(self, options: &target::Options, output: Output) -> Result<Exit> {
        if self.schemes.are_asked() {
            let Self { write_size, code, nodes, seed, schemes, .. } = self;
            return schemes.run(Common { write_size, code, nodes, seed }, options, output);
        }
        let size = self.cluster_size(options.insecure)?;
        let codes = self.codes()?;
        let blocks_concerned = codes.first().map_or(0, |coded| coded.concerned);
        let work = Work {
            size: self.size.0 as usize,
            write_size: self.write_size().0 as usize,
            codes,
            depths: self.depth.clone(),
            time: self.time,
            seed: self.seed,
        };
        let says = |what: &str| {
            if !output.json {
                eprintln!("{what}");
            }
        };
        in_cluster(options, size, async |place| {
            let status = place.session.client.status().await?;
            let results = update::measure(place, &work, &says).await?;
            let settings = Asked {
                size: self.size,
                write_size: self.write_size(),
                seconds: self.time.as_secs_f64(),
                code: self.code().to_owned(),
                beside: self.beside().map(str::to_owned),
                seed: self.seed,
                nodes: status.nodes.len(),
                insecure: status.insecure,
                blocks_concerned,
                cluster: options.cluster.clone(),
            };
            let mut warnings = Vec::new();
            if place.local.is_none() {
                warnings.push("the bound was not measured: the cluster's disks are on other machines".to_owned());
            }
            if results.iter().any(|row| row.code.is_some() && row.cost.is_none()) {
                let within = APPLIED_WITHIN.as_secs();
                warnings.push(format!(
                    "some syncs and bytes are not known: the agents' metrics could not be read from here, or agents still \
                     applied writes {within} s after the last one"
                ));
            }
            let report = Report { machine: Machine::this(), settings, warnings, results };
            output.result_with(&report, &report.warnings, text)
        })?;
        Ok(Exit::Ok)
    }

    fn code(&self) -> &str {
        self.code.as_deref().unwrap_or(CODE)
    }

    /// The code with which it is compared.
    fn beside(&self) -> Option<&str> {
        Some(self.beside.as_str()).filter(|beside| *beside != OFF)
    }

    /// The codes, each with an object. That for comparison has blocks of the same length: as many nodes lead updates. They are longer if
    /// writes would cross their ends: such a write is two updates.
    fn codes(&self) -> Result<Vec<Coded>> {
        let code = weft_codes::parse(self.code()).map_err(Error::invalid)?;
        let mut codes = vec![Coded { code: self.code().to_owned(), block_len: 0, concerned: concerned(&code) }];
        if let Some(beside) = self.beside() {
            let block_len = self.size.0.div_ceil(code.k() as u64).min(BLOCK_LEN_MAX);
            let code = weft_codes::parse(beside).map_err(Error::invalid)?;
            let (pages, write_size) = (PAGE_LEN * code.alpha() as u64, self.write_size().0);
            let block_len = block_len.next_multiple_of(pages);
            // Not for sizes that would need very long blocks, like 4097 bytes.
            let mut longer = (block_len..=2 * block_len.max(write_size)).step_by(pages as usize);
            let block_len = longer.find(|len| len.is_multiple_of(write_size)).unwrap_or(block_len);
            codes.push(Coded { code: beside.to_owned(), block_len, concerned: concerned(&code) });
        }
        Ok(codes)
    }

    fn write_size(&self) -> ByteSize {
        self.write_size.unwrap_or(WRITE_SIZE)
    }

    /// The size of a temporary cluster.
    fn cluster_size(&self, insecure: bool) -> Result<Size> {
        let (mut widest, mut n) = (self.code(), 0);
        for spec in std::iter::once(self.code()).chain(self.beside()) {
            let blocks = weft_codes::parse(spec).map_err(Error::invalid)?.n() as u32;
            if blocks > n {
                (widest, n) = (spec, blocks);
            }
        }
        let write_size = self.write_size();
        if !self.schemes.links.is_usual() {
            return Err(Error::invalid("links are shaped only for --schemes"));
        }
        let nodes = self.nodes.unwrap_or(n + MORE_NODES);
        if self.depth.is_empty() || self.depth.iter().any(|depth| !(1..=DEPTH_MAX).contains(depth)) {
            return Err(Error::invalid(format!("--depth is {:?}: the range is 1 to {DEPTH_MAX}", self.depth)));
        }
        if !(1..=UPDATE_BYTES_USUAL).contains(&write_size.0) {
            let most = human_bytes(UPDATE_BYTES_USUAL);
            return Err(Error::invalid(format!("--write-size is {write_size}: the range is 1 byte to {most}")));
        }
        let deepest = self.depth.iter().copied().max().unwrap_or(1) as u64;
        let slots = self.size.0 / write_size.0;
        if self.size.0 > SIZE_MAX || !self.size.0.is_multiple_of(write_size.0) || slots < deepest {
            let most = human_bytes(SIZE_MAX);
            return Err(Error::invalid(format!(
                "--size is {}: use a multiple of --write-size with at least {deepest} of them, up to {most}",
                self.size
            )));
        }
        if self.time.is_zero() {
            return Err(Error::invalid("--time must be greater than zero"));
        }
        if nodes < n {
            return Err(Error::invalid(format!("--nodes {nodes} is too few for {widest}, which has {n} blocks")));
        }
        Ok(Size { nodes, racks: 1, disks_per_node: 1, insecure })
    }
}

/// The blocks whose nodes sync for a write within the first block.
fn concerned(code: &SharedCode) -> usize {
    1 + (code.k()..code.n()).filter(|index| depends_on_first(code, *index)).count()
}

/// Whether a parity block depends on the first data block.
fn depends_on_first(code: &SharedCode, index: usize) -> bool {
    let alpha = code.alpha();
    let mut columns = (index * alpha..(index + 1) * alpha).flat_map(|row| code.generator().row(row));
    columns.any(|(_, column, _)| (*column as usize) < alpha)
}

fn text(it: &Report<Asked, Row>) -> String {
    let Asked { size, write_size, code, beside, nodes, insecure, .. } = &it.settings;
    let tls = if *insecure { "no TLS" } else { "TLS" };
    let row = |row: &Row| {
        let (ms, none) = (|ms: f64| format!("{ms:.2} ms"), || "-".to_owned());
        let what = match (&row.code, row.depth) {
            (Some(code), Some(depth)) => format!("{code}, depth {depth}"),
            _ => format!("{} syncs of {} at once", row.blocks_concerned, ByteSize(BOUND_BYTES as u64)),
        };
        let times = |times: Option<f64>| times.map_or_else(none, |times| format!("{times:.2} x"));
        let (ratio, over) = (times(row.ratio), times(row.p50_over_bound));
        let syncs = row.cost.map_or_else(none, |cost| format!("{:.2}", cost.syncs_per_update));
        let bytes = row.cost.map_or_else(none, |cost| format!("{:.1}", cost.bytes_per_byte));
        let (count, per_s) = (row.count.to_string(), format!("{:.0}", row.per_s));
        [what, count, per_s, ratio, ms(row.p50_ms), over, ms(row.p99_ms), ms(row.max_ms), syncs, bytes]
    };
    let over = beside.as_ref().map_or_else(|| "ratio".to_owned(), |beside| format!("/ {beside}"));
    let heading = ["", "writes", "writes/s", &over, "p50", "/ bound", "p99", "max", "syncs", "bytes"];
    format!(
        "writes of {write_size} to an object of {size} as {code}; {nodes} nodes, {tls}\n{}\n\
         syncs: of a journal, for each update and node that takes part; bytes: on all disks, for each byte of a write\n{}",
        columns(heading, &[1, 2, 3, 4, 5, 6, 7, 8, 9], it.results.iter().map(row)),
        it.machine
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        update: BenchUpdate,
    }

    #[test]
    fn invalid_settings_are_refused() {
        let nodes = |args: &[&str]| {
            let line = Line::try_parse_from(std::iter::once("update").chain(args.iter().copied())).unwrap();
            line.update.cluster_size(true).map(|size| size.nodes)
        };
        assert_eq!((nodes(&[]), nodes(&["--code", "rs(2,1)"]), nodes(&["--nodes", "6"])), (Ok(7), Ok(4), Ok(6)));
        let few = ["--code", "rs(1,1)", "--beside"];
        assert_eq!(["replication(3)", "off"].map(|beside| nodes(&[&few[..], &[beside]].concat())), [Ok(4), Ok(3)]);
        for wrong in [
            &["--nodes", "5"][..],
            &["--nodes", "6", "--beside", "replication(7)"],
            &["--beside", "copies(3)"],
            &["--depth", "0"],
            &["--depth", "1,2000"],
            &["--write-size", "0"],
            &["--write-size", "2MiB"],
            &["--size", "100000"],
            &["--size", "64KiB"],
            &["--time", "0s"],
            &["--code", "rs(0,2)"],
            &["--link", "50mbit"],
            &["--matrix", "a.csv"],
        ] {
            assert!(nodes(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn local_parities_of_other_groups_do_not_sync() {
        let of = |spec: &str| concerned(&weft_codes::parse(spec).unwrap());
        assert_eq!((of("rs(4,2)"), of("lrc(4,2,2)"), of("replication(3)")), (3, 4, 3));
    }

    #[test]
    fn the_code_beside_has_blocks_of_the_same_length() {
        let codes = |args: &[&str]| {
            let line = Line::try_parse_from(std::iter::once("update").chain(args.iter().copied())).unwrap();
            line.update.codes().unwrap().into_iter().map(|coded| (coded.code, coded.block_len)).collect::<Vec<_>>()
        };
        let named = |code: &str, block_len: u64| (code.to_owned(), block_len);
        assert_eq!(codes(&[]), [named("rs(4,2)", 0), named("replication(3)", 16 << 20)]);
        assert_eq!(codes(&["--beside", "off"]), [named("rs(4,2)", 0)]);
        let small = |write_size: &str| codes(&["--code", "rs(3,2)", "--size", "1MiB", "--write-size", write_size])[1].1;
        assert_eq!(small("4KiB"), 352_256, "whole pages");
        assert_eq!((small("64KiB"), small("512KiB")), (384 << 10, 512 << 10), "whole writes");
        assert_eq!(small("4097"), 352_256, "it would be too long");
    }
}
