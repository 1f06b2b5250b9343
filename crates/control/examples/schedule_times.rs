//! Measures how long the schedule of a node's repair takes: `cargo run --release -p weft-control --example schedule_times`.
//!
//! Stripes of rs(6,3) and rs(10,4) lie on random nodes; one node is lost. `assigned`: all batches are scheduled. `first
//! batch`: the first one is, and its first repairs start. The lookups in the metadata, and the plans with their proofs, are
//! not part of it (see the example plan_times of the coordinator). Fails if a schedule takes longer than it may.

// This program measures real time.
#![allow(clippy::disallowed_methods)]

use rand::{SeedableRng, rngs::StdRng, seq::index};
use std::{
    collections::BTreeSet,
    fs,
    time::{Duration, Instant},
};
use weft_control::{
    Time,
    schedule::{Admission, BLOCKS_PER_NODE, Cluster, Open, Scheduler, Starting, batch_len, known_max},
    view::{DiskView, NodeView, View},
};
use weft_plan::Network;
use weft_schemes::Patterns;
use weft_types::{DiskNumber, HelperSelect, NodeId, Prefer};

const BLOCK_LEN: u64 = 64 << 20;

/// Lost blocks, nodes, the scheme, and how long all may take, milliseconds.
const CASES: [(usize, u32, &str, u64); 5] = [
    (100, 16, "auto", 10),
    (10_000, 100, "conventional", 1_000),
    (10_000, 100, "auto", 1_000),
    (100_000, 1_000, "conventional", 30_000),
    (100_000, 1_000, "auto", 30_000),
];

fn view(nodes: u32) -> View {
    let node = |id: u32| {
        let disk = DiskView {
            number: DiskNumber(id),
            id: format!("disk-{id}").into(),
            path: "/d".into(),
            total_bytes: 1 << 44,
            free_bytes: 1 << 43,
            file_system: 0,
            failed: false,
            draining: false,
            blocks: 0,
            bytes_per_s: 0,
        };
        let (name, rack) = (format!("node-{id}").into(), format!("rack-{}", id % 20).into());
        let node =
            NodeView { id: NodeId(id), name, rack, up: id > 1, lost: false, suspect_for: Default::default(), disks: vec![disk] };
        (NodeId(id), node)
    };
    View { nodes: (1..=nodes).map(node).collect(), now: Time::default(), ..View::default() }
}

/// Blocks that were lost with node 1.
fn lost(spec: &str, nodes: u32, count: usize) -> Result<Vec<Open>, String> {
    let code = weft_codes::parse(spec).map_err(|error| error.to_string())?;
    let (n, mut rng) = (code.n(), StdRng::seed_from_u64(1));
    let open = |at: usize| {
        let homes: Vec<NodeId> =
            index::sample(&mut rng, nodes as usize - 1, n - 1).iter().map(|node| NodeId(node as u32 + 2)).collect();
        let lost = (at % n) as u8;
        let available = (0..n as u8).filter(|index| *index != lost).zip(homes.iter().copied()).collect();
        let never = BTreeSet::from([NodeId(1)]);
        let code = weft_codes::SharedCode::clone(&code);
        Open {
            code,
            lost: vec![lost],
            block_len: BLOCK_LEN,
            available,
            copies: Vec::new(),
            held: homes,
            never,
            rack_max: None,
            named: false,
            in_blocks: false,
            reserve_bytes: 0,
        }
    };
    Ok((0..count).map(open).collect())
}

fn peak_memory() -> String {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmHWM"));
    line.and_then(|line| line.split_once(':')).map(|(_, value)| value.trim().to_owned()).unwrap_or_default()
}

fn main() -> Result<(), String> {
    println!(
        "{:<10} {:>7} {:>6} {:<13} {:>12} {:>12} {:>14}",
        "code", "blocks", "nodes", "scheme", "first batch", "assigned", "peak memory"
    );
    for spec in ["rs(6,3)", "rs(10,4)"] {
        for (count, nodes, scheme, most_ms) in CASES {
            let (view, network, patterns) = (view(nodes), Network::uniform(1e9), Patterns::new(1 << 20));
            let open = lost(spec, nodes, count)?;
            let (cluster, mut rng) = (Cluster { view: &view, network: &network, patterns: &patterns }, StdRng::seed_from_u64(2));
            let mut scheduler = Scheduler::new(HelperSelect::Boost, Prefer::Whole, scheme);
            let mut admission = Admission::new(Starting::ByShares);
            let (begun, mut first) = (Instant::now(), None);
            let mut scheduled = 0;
            let (size, mut left) = (BLOCKS_PER_NODE * nodes as usize, open.as_slice());
            while !left.is_empty() {
                let (batch, others) = left.split_at(batch_len(left.len().min(known_max(size)), size));
                let done = scheduler.batch(batch, &cluster, &mut rng);
                left = others;
                scheduled += done.iter().flatten().count();
                if first.is_none() {
                    admission.add(done.into_iter().flatten().map(|it| ((), (0, it.round), it.lines)));
                    while admission.start().is_some() {}
                    first = Some(begun.elapsed());
                }
            }
            let all = begun.elapsed();
            let ms = |time: Duration| format!("{:.1} ms", time.as_secs_f64() * 1e3);
            let first = first.map(ms).unwrap_or_default();
            println!("{spec:<10} {count:>7} {nodes:>6} {scheme:<13} {first:>12} {:>12} {:>14}", ms(all), peak_memory());
            if scheduled != count {
                return Err(format!("{scheduled} of {count} blocks were scheduled"));
            }
            if all > Duration::from_millis(most_ms) {
                return Err(format!("{count} blocks took longer than {most_ms} ms"));
            }
        }
    }
    Ok(())
}
