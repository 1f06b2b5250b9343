//! `weft bench objects`: measures puts, gets and removals of many objects at the same time.

use crate::bench::{
    Machine, Report,
    objects::{self, Measured, OnDisk, Phase, Work},
    place::in_cluster,
};
use clap::Args;
use serde::Serialize;
use std::collections::BTreeSet;
use weft_cli::{
    exit::Exit,
    local::Size,
    output::{Output, human_rate},
    table::columns,
    target,
};
use weft_types::{ByteSize, Error, Result, human_bytes};

const COUNT_MAX: u64 = 1_000_000;
const CLIENTS_MAX: usize = 256;
const ROUNDS_MAX: usize = 1000;
/// Limit for the objects in memory: the data and what all clients have read back.
const READ_BYTES_MAX: u64 = 4 << 30;
/// More nodes than the code has blocks, so puts and repairs have a choice when a node is down.
const MORE_NODES: u32 = 3;

/// Put, get and remove many objects with several clients at once
///
/// Starts a temporary cluster and removes it afterwards; needs no root. The clients work at the same time, each with its own
/// connections, in four phases: put, get, degraded get, remove. Before the degraded get, a node is killed and noticed as down; only
/// objects with data on it are read, some of them several times. Everything that is read is compared with what was stored. With
/// --cluster, uses that cluster and kills nothing.
///
/// CPU time is that of the clients (including the comparison), of all agents together and of the coordinator. Commits are durable
/// transactions of the metadata; fsyncs are those of the agents' disks.
#[derive(Debug, Args)]
#[command(after_help = "\
EXAMPLE
  weft bench objects
  weft bench objects --size 64KiB --count 1000 --clients 16 --code 'rs(2,1)' --rounds 3 --json
  weft bench objects --cluster weft-cluster --code 'rs(4,2)'

EXIT CODES
  0 measured   1 failed   2 invalid settings   3 no such cluster   4 too few nodes are up   \
  5 a byte came back wrong   130 interrupted: the temporary cluster is removed; with --cluster, objects can stay in the bucket \
  `bench`")]
pub(super) struct BenchObjects {
    /// Bytes of an object
    #[arg(long, default_value = "4MiB", value_name = "SIZE")]
    size: ByteSize,
    /// Objects per round
    #[arg(long, default_value_t = 256, value_name = "N")]
    count: u64,
    /// Number of concurrent clients
    #[arg(long, default_value_t = 4, value_name = "N")]
    clients: usize,
    /// Code
    #[arg(long, default_value = "rs(4,2)")]
    code: String,
    /// Number of agents [default: the code's blocks and three more]
    #[arg(long, value_name = "N")]
    nodes: Option<u32>,
    /// Number of racks
    #[arg(long, default_value_t = 1, value_name = "N")]
    racks: u32,
    /// Number of rounds of all phases
    #[arg(long, default_value_t = 1, value_name = "R")]
    rounds: usize,
    /// Seed of the data
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// The settings, and the kind of cluster.
#[derive(Debug, Serialize)]
struct Asked {
    size: ByteSize,
    count: u64,
    clients: usize,
    code: String,
    rounds: usize,
    seed: u64,
    nodes: usize,
    racks: usize,
    insecure: bool,
    /// None: a temporary cluster.
    cluster: Option<String>,
}

/// The results.
#[derive(Debug, Serialize)]
struct Found {
    #[serde(flatten)]
    report: Report<Asked, Phase>,
    on_disk: Option<OnDisk>,
}

impl BenchObjects {
    pub(super) fn run(self, options: &target::Options, output: Output) -> Result<Exit> {
        let size = self.cluster_size(options.insecure)?;
        let work = Work {
            size: self.size.0 as usize,
            count: self.count,
            clients: self.clients,
            code: self.code.clone(),
            rounds: self.rounds,
            seed: self.seed,
        };
        let says = |round: usize, job: objects::Job| {
            if !output.json {
                eprintln!("round {} of {}: {job}", round + 1, self.rounds);
            }
        };
        in_cluster(options, size, async |place| {
            let status = place.session.client.status().await?;
            let racks: BTreeSet<&str> = status.nodes.iter().map(|node| node.rack.as_str()).collect();
            let asked = Asked {
                size: self.size,
                count: self.count,
                clients: self.clients,
                code: self.code.clone(),
                rounds: self.rounds,
                seed: self.seed,
                nodes: status.nodes.len(),
                racks: racks.len(),
                insecure: status.insecure,
                cluster: options.cluster.clone(),
            };
            let Measured { phases, on_disk } = objects::measure(place, &work, &says).await?;
            let warnings = self.warnings(place.is_own);
            let report = Report { machine: Machine::this(), settings: asked, warnings, results: phases };
            let found = Found { report, on_disk };
            output.result_with(&found, &found.report.warnings, text)
        })?;
        Ok(Exit::Ok)
    }

    /// The size of a temporary cluster.
    fn cluster_size(&self, insecure: bool) -> Result<Size> {
        let n = weft_codes::parse(&self.code).map_err(Error::invalid)?.n() as u32;
        let nodes = self.nodes.unwrap_or(n + MORE_NODES);
        let between = |what: &str, value: u64, max: u64| {
            let fits = (1..=max).contains(&value);
            fits.then_some(()).ok_or_else(|| Error::invalid(format!("--{what} is {value}: the range is 1 to {max}")))
        };
        between("count", self.count, COUNT_MAX)?;
        between("clients", self.clients as u64, CLIENTS_MAX as u64)?;
        between("rounds", self.rounds as u64, ROUNDS_MAX as u64)?;
        if self.size.0 == 0 || self.size.0.saturating_mul(self.clients as u64) > READ_BYTES_MAX {
            let most = human_bytes(READ_BYTES_MAX);
            return Err(Error::invalid(format!(
                "--size is {}: the least is 1 byte, and the objects that {} clients read must fit into {most} of memory",
                self.size, self.clients
            )));
        }
        if nodes < n {
            return Err(Error::invalid(format!("--nodes {nodes} is too few for {}, which has {n} blocks", self.code)));
        }
        Ok(Size { nodes, racks: self.racks, disks_per_node: 1, insecure })
    }

    /// A warning if a phase was not measured, with the reason.
    fn warnings(&self, is_own: bool) -> Vec<String> {
        let tolerance = weft_codes::parse(&self.code).map_or(0, |code| code.tolerance());
        let why = match (is_own, tolerance) {
            (false, _) => "the cluster was given by --cluster, so no node is killed".to_owned(),
            (true, 0) => format!("{} recovers no lost block", self.code),
            (true, _) => return Vec::new(),
        };
        vec![format!("degraded get was not measured: {why}")]
    }
}

fn text(Found { report: it, on_disk }: &Found) -> String {
    let Asked { size, count, clients, code, rounds, nodes, racks, insecure, .. } = &it.settings;
    let (rack_word, tls) = (if *racks == 1 { "rack" } else { "racks" }, if *insecure { "no TLS" } else { "TLS" });
    let on_disk = on_disk.map_or_else(String::new, |it| {
        format!("on disk, per object: {:.1} files, {}\n", it.files_per_object, human_bytes(it.bytes_per_object as u64))
    });
    format!(
        "{count} objects of {size} as {code} by {clients} clients; {nodes} nodes in {racks} {rack_word}, {tls}; rounds: {rounds}\n\
         {}\nCPU time, commits and fsyncs are per object\n{on_disk}{}",
        phases(&it.results, *rounds > 1),
        it.machine
    )
}

fn phases(phases: &[Phase], with_spread: bool) -> String {
    let row = |it: &Phase| {
        let each = |of: f64| of / it.objects as f64;
        let cpu = |seconds: Option<f64>| seconds.map_or_else(|| "-".to_owned(), |it| format!("{:.2} ms", each(it) * 1e3));
        let ms = |ms: f64| format!("{ms:.1} ms");
        let mut row = vec![it.phase.to_string(), it.objects.to_string(), format!("{:.1}", it.objects_per_s)];
        if with_spread {
            row.push(format!("{:.1} .. {:.1}", it.objects_per_s_min, it.objects_per_s_max));
        }
        row.push(it.bytes_per_s.map_or_else(|| "-".to_owned(), |rate| human_rate(rate as u64, 1.0)));
        row.extend([it.p50_ms, it.p99_ms, it.max_ms].map(ms));
        row.extend([Some(it.client_cpu_s), it.agents_cpu_s, it.coordinator_cpu_s].map(cpu));
        row.extend([it.commits, it.fsyncs].map(|count| format!("{:.2}", each(count as f64))));
        row.push(it.rebuilt.to_string());
        row
    };
    let mut heading = vec!["phase", "objects", "objects/s"];
    if with_spread {
        heading.push("min .. max");
    }
    heading.extend(["rate", "p50", "p99", "max", "CPU client", "agents", "coordinator", "commits", "fsyncs", "rebuilt"]);
    let right: Vec<usize> = (1..heading.len()).collect();
    columns(heading, &right, phases.iter().map(row))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        objects: BenchObjects,
    }

    fn parsed(args: &[&str]) -> BenchObjects {
        Line::try_parse_from(std::iter::once("objects").chain(args.iter().copied())).unwrap().objects
    }

    #[test]
    fn a_cluster_has_three_nodes_more_than_the_code_has_blocks_unless_told_otherwise() {
        let nodes = |args: &[&str]| parsed(args).cluster_size(true).map(|size| size.nodes);
        assert_eq!((nodes(&[]), nodes(&["--code", "rs(2,1)"]), nodes(&["--nodes", "6"])), (Ok(9), Ok(6), Ok(6)));
        for wrong in [
            &["--nodes", "5"][..],
            &["--size", "0B"],
            &["--size", "2GiB"],
            &["--count", "0"],
            &["--clients", "0"],
            &["--clients", "257"],
            &["--rounds", "0"],
            &["--code", "rs(0,2)"],
        ] {
            assert!(nodes(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_phase_that_is_left_out_is_told_with_its_reason() {
        assert!(parsed(&[]).warnings(true).is_empty());
        assert!(parsed(&[]).warnings(false)[0].contains("degraded get was not measured: the cluster was given"));
    }
}
