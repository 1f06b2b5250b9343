//! The memory that a repair needs at an agent, and a get at the client.

use crate::harness::{Cluster, Setup, bytes, path};
use serde_json::Value;
use std::{collections::BTreeMap, fs, io::Read, process::Stdio};

const LIMIT_KIB: u64 = 16 << 10;
/// What a get may need more if it rebuilds blocks.
const REBUILDING_KIB: u64 = 6 << 10;
/// More than a pipe holds: a get that still has to write as much has not ended.
const UNREAD_BYTES: usize = 1 << 20;

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

#[test]
fn a_get_that_rebuilds_blocks_needs_hardly_more_memory_than_another() {
    // Each stripe leaves out two of them, and not the same two every time.
    let cluster = Setup::nodes(8).up();
    let content = bytes(200 << 20, 9);
    cluster.put("large", &content, &["--code", "rs(4,2)", "--block-size", "10MiB"]).ok();
    let (plain, rebuilt) = peak_of_a_get(&cluster, "large", &content);
    assert_eq!(rebuilt, 0);
    // Slices of rebuilt blocks are shorter than others. The worst case for their memory is a get that needs both by turns: the node that
    // is lost holds data of some stripes, and none of those between.
    let blocks = cluster.blocks("large");
    let holds_data = |node: &String| -> Vec<bool> {
        let mut stripes = BTreeMap::<u64, bool>::new();
        for block in &blocks {
            *stripes.entry(block.stripe).or_default() |= block.node == *node && block.index < 4;
        }
        stripes.into_values().collect()
    };
    let nodes = cluster.nodes();
    let turns = |node: &&String| holds_data(node).windows(2).filter(|pair| pair[0] != pair[1]).count();
    let lost = nodes.iter().max_by_key(turns).expect("eight nodes");
    assert!(turns(&lost) > 0, "each node holds data of all stripes or of none: {blocks:?}");
    cluster.take_down(&[lost]);
    // On a busy machine more slices may have come than are written: that adds to a peak, and it is another number each time.
    let mut peaks = Vec::new();
    while peaks.len() < 3 && peaks.last().is_none_or(|peak| *peak >= plain + REBUILDING_KIB) {
        let (degraded, rebuilt) = peak_of_a_get(&cluster, "large", &content);
        assert_eq!(rebuilt, holds_data(lost).into_iter().filter(|holds| *holds).count());
        peaks.push(degraded);
    }
    println!("KiB: {plain}, {peaks:?} if blocks are rebuilt");
    assert!(peaks.iter().any(|peak| *peak < plain + REBUILDING_KIB), "{plain} KiB, and {peaks:?} KiB if blocks are rebuilt");
}

/// The most memory that a get to a pipe had, in KiB, and the number of blocks that it rebuilt.
fn peak_of_a_get(cluster: &Cluster, key: &str, content: &[u8]) -> (u64, usize) {
    let pipe = cluster.file("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().expect("mkfifo runs").success());
    let mut get = cluster.start(["get", key, path(&pipe), "--json"], Stdio::null());
    let mut reader = fs::File::open(&pipe).expect("our own pipe");
    let mut got = vec![0; content.len()];
    let (most, rest) = got.split_at_mut(content.len() - UNREAD_BYTES);
    reader.read_exact(most).expect("the object");
    let peak = kib(get.child().id(), "VmHWM");
    reader.read_exact(rest).expect("the end of the object");
    drop(reader);
    fs::remove_file(&pipe).expect("it is there");
    assert!(got == content, "{key} came back changed");
    // The report of a get to a pipe is on stderr.
    let report: Value = serde_json::from_str(&get.end().ok().stderr).expect("a report");
    (peak, report["rebuilt"].as_array().expect("a list of blocks").len())
}

/// A line of /proc/PID/status.
fn kib(pid: u32, name: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.and_then(|line| line.trim().strip_suffix(" kB")?.parse().ok()).expect("a size in kB")
}
