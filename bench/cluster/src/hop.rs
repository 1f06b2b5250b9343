//! One hop of a repair chain: an agent that receives, reads its own block from the disk's cache, combines and sends; in CPU
//! seconds for each GiB that passes through it, beside a relay that only copies from socket to socket.

use crate::{Result, Run, cluster::Cluster, median, relay, report::Hop};
use serde_json::Value;
use std::{fs::File, io::Write as _};

const MIB: usize = 1 << 20;
const SLICE_LENS: [usize; 3] = [32 << 10, 64 << 10, 256 << 10];
const BLOCK_LEN: usize = 128 * MIB;
/// The number of repairs in one turn.
const REPAIRS: usize = 4;
const RELAYED_BYTES: usize = 1 << 30;
/// The nodes of a chain: two helpers, of which the second is the hop, and the node that gets the block.
const CODE: &str = "rs(2,1)";
const NODES: u32 = 4;
/// The parity block.
const LOST: &str = "2";
const OBJECT: &str = "measured/hop";

/// A cluster whose repairs use one slice length.
struct Chain<'a> {
    cluster: Cluster<'a>,
    insecure: bool,
    slice_len: usize,
    /// The agent in the middle.
    middle: String,
    cpu_seconds_per_gib: Vec<f64>,
}

/// Measures hops of all slice lengths, with and without TLS.
pub fn measure(run: &Run) -> Result<Vec<Hop>> {
    let data = run.dir.join("hop-data");
    let mut file = File::create(&data)?;
    for number in 0..2 * BLOCK_LEN / MIB {
        file.write_all(&vec![number as u8; MIB])?;
    }
    let mut chains = Vec::new();
    for insecure in [true, false] {
        for slice_len in SLICE_LENS {
            eprintln!("hop: a cluster of {NODES}, slices of {} KiB, {}", slice_len >> 10, security(insecure));
            chains.push(Chain::new(run, &data.to_string_lossy(), slice_len, insecure)?);
        }
    }
    let mut relayed = [const { Vec::new() }; SLICE_LENS.len()];
    for round in 1..=run.rounds {
        eprintln!("hop: round {round} of {}", run.rounds);
        for (slice_len, seconds) in SLICE_LENS.into_iter().zip(&mut relayed) {
            seconds.push(relay::cpu_seconds(run, slice_len, RELAYED_BYTES)? / gib(RELAYED_BYTES));
        }
        chains.iter_mut().try_for_each(Chain::turn)?;
    }
    let rows = chains.into_iter().map(|chain| {
        let relay = SLICE_LENS.iter().zip(&relayed).find(|(slice_len, _)| **slice_len == chain.slice_len);
        let relay_cpu_s_per_gib = relay.map_or(f64::NAN, |(_, seconds)| median(seconds.clone()));
        let hop_cpu_s_per_gib = median(chain.cpu_seconds_per_gib);
        let ratio = hop_cpu_s_per_gib / relay_cpu_s_per_gib;
        Hop { tls: !chain.insecure, slice_len: chain.slice_len, hop_cpu_s_per_gib, relay_cpu_s_per_gib, ratio }
    });
    Ok(rows.collect())
}

impl<'a> Chain<'a> {
    fn new(run: &'a Run, data: &str, slice_len: usize, insecure: bool) -> Result<Self> {
        let name = format!("hop-{slice_len}-{}", security(insecure));
        // Earlier rebuilt blocks are removed soon, because many repairs produce much garbage.
        let settings = [
            ("REPAIR_SLICE_LEN", format!("{}KiB", slice_len >> 10)),
            ("GARBAGE_GRACE_MS", "1000".to_owned()),
            ("SWEEP_INTERVAL_MS", "1000".to_owned()),
        ];
        let cluster = Cluster::up(run, &name, NODES, insecure, &settings)?;
        let block_size = format!("{}MiB", BLOCK_LEN / MIB);
        cluster.weft(&["bucket", "create", "measured", "--json"])?;
        cluster.weft(&["put", data, OBJECT, "--code", CODE, "--block-size", &block_size, "--json"])?;
        let plan = cluster.ask(&["repair", "object", OBJECT, "--block", LOST, "--scheme", "pipeline", "--explain"])?;
        let number = middle_of(&plan).ok_or("the plan has no agent between two others")?;
        let middle = cluster.agents()?.remove(&number).ok_or_else(|| format!("agent {number} has no name"))?;
        let mut chain = Self { cluster, insecure, slice_len, middle, cpu_seconds_per_gib: Vec::new() };
        // The first repair fills caches and pools.
        chain.repair()?;
        Ok(chain)
    }

    fn turn(&mut self) -> Result<()> {
        let before = self.cluster.cpu_of(&self.middle)?;
        for _ in 0..REPAIRS {
            self.repair()?;
        }
        let used = self.cluster.cpu_of(&self.middle)? - before;
        self.cpu_seconds_per_gib.push(used / gib(REPAIRS * BLOCK_LEN));
        Ok(())
    }

    fn repair(&mut self) -> Result<()> {
        let done = self.cluster.ask(&["repair", "object", OBJECT, "--block", LOST, "--scheme", "pipeline"])?;
        // The block passes two links: from the first helper to the second, and from there to the new home.
        match done["bytes_moved"].as_u64() {
            Some(moved) if moved == 2 * BLOCK_LEN as u64 => Ok(()),
            moved => Err(format!("a repair moved {moved:?} bytes, not twice a block").into()),
        }
    }
}

/// The number of the agent that receives, reads a block and sends.
fn middle_of(plan: &Value) -> Option<u64> {
    let has = |ports: &Value, kind: &str| ports.as_array().is_some_and(|ports| ports.iter().any(|it| it.get(kind).is_some()));
    let stages = plan["plan"]["shape"]["lanes"][0]["stages"].as_array()?;
    let is_middle =
        |stage: &&Value| has(&stage["sources"], "link") && has(&stage["sources"], "block") && has(&stage["sinks"], "link");
    let vertex = stages.iter().find(is_middle)?["vertex"].as_u64()?;
    plan["plan"]["binding"]["parties"][vertex as usize]["Node"].as_u64()
}

fn gib(bytes: usize) -> f64 {
    bytes as f64 / (1u64 << 30) as f64
}

fn security(insecure: bool) -> &'static str {
    if insecure { "insecure" } else { "TLS" }
}
