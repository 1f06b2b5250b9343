//! `weft bench update`: measures writes in place, small ones of a plain cluster here, and by schemes over shaped links in [`super::bench_in_place`].

use super::bench_in_place::{Common, Schemes};
use crate::bench::{
    Machine, Report,
    place::in_cluster,
    update::{self, BOUND_BYTES, Row, Work},
};
use clap::Args;
use serde::Serialize;
use std::time::Duration;
use weft_cli::{duration, exit::Exit, local::Size, output::Output, table::columns, target};
use weft_types::{ByteSize, Error, Result, UPDATE_BYTES_USUAL, human_bytes};

const CODE: &str = "rs(4,2)";
const WRITE_SIZE: ByteSize = ByteSize(4 << 10);
const DEPTH_MAX: usize = 1024;
/// The object is in memory, three times.
const SIZE_MAX: u64 = 1 << 30;
/// More nodes than the code has blocks.
const MORE_NODES: u32 = 1;

/// Measure writes in place; with --schemes, by each scheme over shaped links
///
/// Starts a temporary cluster and removes it afterwards; needs no root. Overwrites random slots of one object through the library: at each depth, so
/// many writes are under way at a time. In the end the object is read and compared with what was written.
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
  weft bench update --cluster weft-cluster
  sudo weft bench update --schemes direct,star,tree,pipeline --racks 3 --runs 5 --json
  sudo weft bench update --schemes star,tree,pipeline,auto --matrix regions.csv --code 'rs(9,3)' --write-size 4MiB --block-size 16MiB
  sudo weft bench update --schemes star,tree,pipeline --concurrent 3 --write-size 4MiB --sync-ms 3

EXIT CODES
  0 measured   1 failed   2 invalid settings   3 no such cluster   4 too few nodes are up; or with --schemes, no root, no `ip`, no `tc`   \
  5 a byte came back wrong   \
  130 interrupted: the temporary cluster is removed; with --cluster, an object can stay in the bucket `bench`")]
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
        let code = weft_codes::parse(self.code()).map_err(Error::invalid)?;
        let synced = 1 + (code.k()..code.n()).filter(|index| depends_on_first(&code, *index)).count();
        let work = Work {
            size: self.size.0 as usize,
            write_size: self.write_size().0 as usize,
            code: self.code().to_owned(),
            depths: self.depth.clone(),
            time: self.time,
            seed: self.seed,
        };
        let says = |depth: Option<usize>| {
            if !output.json {
                eprintln!("{}", depth.map_or_else(|| "syncs".to_owned(), |depth| format!("depth {depth}")));
            }
        };
        in_cluster(options, size, async |place| {
            let status = place.session.client.status().await?;
            let results = update::measure(place, &work, synced, &says).await?;
            let settings = Asked {
                size: self.size,
                write_size: self.write_size(),
                seconds: self.time.as_secs_f64(),
                code: self.code().to_owned(),
                seed: self.seed,
                nodes: status.nodes.len(),
                insecure: status.insecure,
                blocks_concerned: synced,
                cluster: options.cluster.clone(),
            };
            let warnings = match place.local {
                Some(_) => Vec::new(),
                None => vec!["the bound was not measured: the cluster's disks are on other machines".to_owned()],
            };
            let report = Report { machine: Machine::this(), settings, warnings, results };
            output.result_with(&report, &report.warnings, text)
        })?;
        Ok(Exit::Ok)
    }

    fn code(&self) -> &str {
        self.code.as_deref().unwrap_or(CODE)
    }

    fn write_size(&self) -> ByteSize {
        self.write_size.unwrap_or(WRITE_SIZE)
    }

    /// The size of a temporary cluster.
    fn cluster_size(&self, insecure: bool) -> Result<Size> {
        let (n, write_size) = (weft_codes::parse(self.code()).map_err(Error::invalid)?.n() as u32, self.write_size());
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
            return Err(Error::invalid(format!("--nodes {nodes} is too few for {}, which has {n} blocks", self.code())));
        }
        Ok(Size { nodes, racks: 1, disks_per_node: 1, insecure })
    }
}

/// Whether a parity block depends on the first data block.
fn depends_on_first(code: &weft_codes::SharedCode, index: usize) -> bool {
    let alpha = code.alpha();
    let mut columns = (index * alpha..(index + 1) * alpha).flat_map(|row| code.generator().row(row));
    columns.any(|(_, column, _)| (*column as usize) < alpha)
}

fn text(it: &Report<Asked, Row>) -> String {
    let Asked { size, write_size, code, nodes, insecure, blocks_concerned, .. } = &it.settings;
    let tls = if *insecure { "no TLS" } else { "TLS" };
    let row = |row: &Row| {
        let ms = |ms: f64| format!("{ms:.2} ms");
        let what = match row.depth {
            Some(depth) => format!("depth {depth}"),
            None => format!("{blocks_concerned} syncs of {} at once", ByteSize(BOUND_BYTES as u64)),
        };
        [what, row.count.to_string(), format!("{:.0}", row.per_s), ms(row.p50_ms), ms(row.p99_ms), ms(row.max_ms)]
    };
    let heading = ["", "writes", "writes/s", "p50", "p99", "max"];
    format!(
        "writes of {write_size} to an object of {size} as {code}; {nodes} nodes, {tls}\n{}\n{}",
        columns(heading, &[1, 2, 3, 4, 5], it.results.iter().map(row)),
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
        for wrong in [
            &["--nodes", "5"][..],
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
        let concerned = |spec: &str| {
            let code = weft_codes::parse(spec).unwrap();
            (code.k()..code.n()).filter(|index| depends_on_first(&code, *index)).count()
        };
        assert_eq!((concerned("rs(4,2)"), concerned("lrc(4,2,2)")), (2, 3));
    }
}
