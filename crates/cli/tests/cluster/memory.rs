//! The memory that a repair needs at an agent.

use crate::harness::{Setup, bytes};
use std::{collections::BTreeMap, fs};

const LIMIT_KIB: u64 = 16 << 10;

#[test]
fn a_large_block_in_a_chain_costs_each_agent_little_memory() {
    let cluster = Setup::nodes(6).up();
    let content = bytes(3 * (64 << 20), 8);
    cluster.put("large", &content, &["--code", "rs(3,2)", "--block-size", "64MiB", "--cell-size", "1MiB"]).ok();
    // Memory that the put used and freed must not count as idle.
    cluster.down().ok();
    cluster.up().ok();
    let nodes = cluster.nodes();
    let mut idle = BTreeMap::new();
    for node in &nodes {
        let pid = cluster.pid(node);
        // Reset the peak.
        fs::write(format!("/proc/{pid}/clear_refs"), "5").expect("our own process");
        idle.insert(node, kib(pid, "VmRSS"));
    }
    let repaired = cluster.weft(["repair", "object", "large", "--block", "1", "--scheme", "pipeline", "--json"]).ok().json();
    assert_eq!((repaired["bytes_read"].as_u64(), repaired["resumed"].as_u64()), (Some(3 * (64 << 20)), Some(0)), "{repaired}");
    let mut costs = BTreeMap::new();
    for node in &nodes {
        costs.insert(node, kib(cluster.pid(node), "VmHWM").saturating_sub(idle[node]));
    }
    println!("KiB above idle: {costs:?}");
    assert!(costs.values().all(|cost| *cost < LIMIT_KIB), "KiB above idle: {costs:?}");
    // The chain used four nodes.
    assert!(costs.values().filter(|cost| **cost > 0).count() >= 4, "{costs:?}");
    cluster.expect("large", &content, &[]);
}

/// A line of /proc/PID/status.
fn kib(pid: u32, name: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.and_then(|line| line.trim().strip_suffix(" kB")?.parse().ok()).expect("a size in kB")
}
