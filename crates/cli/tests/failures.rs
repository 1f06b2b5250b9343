//! What fails in the middle: nodes, clients and coordinators that die while something is under way; and what an agent may use.

mod common;

use common::{bytes, cluster::Cluster};
use std::{
    io::Write as _,
    process::{Child, ChildStdin, Stdio},
    time::Duration,
};

const MIB: usize = 1 << 20;
const SMALL: [&str; 6] = ["--code", "rs(3,2)", "--block-size", "256KiB", "--cell-size", "64KiB"];
/// Data of one stripe of `SMALL`.
const STRIPE: usize = 3 * 256 * 1024;

/// A put that takes its data as the test gives it.
fn slow_put(cluster: &Cluster, object: &str) -> (Child, ChildStdin) {
    let args = [&["put", "-", object][..], &SMALL].concat();
    let mut putting = cluster.command(&args).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let data = putting.stdin.take().unwrap();
    (putting, data)
}

/// How many payloads all nodes have.
fn payloads(cluster: &Cluster, nodes: usize) -> usize {
    (1..=nodes).map(|number| cluster.payloads(&format!("node-{number:02}")).len()).sum()
}

#[test]
fn a_put_goes_on_when_a_node_dies() {
    let cluster = Cluster::up(&["--nodes", "8"]);
    let content = bytes(12 * STRIPE, 1);
    let (putting, mut data) = slow_put(&cluster, "default/data");
    data.write_all(&content[..4 * STRIPE]).unwrap();
    cluster.wait_until("two stripes are on the disks", |cluster| payloads(cluster, 8) >= 10);
    cluster.signal("node-03", "KILL");
    data.write_all(&content[4 * STRIPE..]).unwrap();
    drop(data);
    let ended = putting.wait_with_output().unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    cluster.fetches("default/data", &content, &[]);
    // What the dead node had before it died is rebuilt; then two more may die.
    cluster.wait_until("the dead node is noticed", |cluster| cluster.state("node-03") == "down");
    cluster.weft(["repair", "object", "default/data"]).ok();
    cluster.kill("node-05");
    cluster.kill("node-07");
    cluster.fetches("default/data", &content, &[]);
}

#[test]
fn a_put_that_dies_half_way_leaves_nothing() {
    let quick = [
        ("WEFT_COORDINATOR_UPLOAD_LEASE_MS", "1500"),
        ("WEFT_COORDINATOR_SWEEP_INTERVAL_MS", "200"),
        ("WEFT_COORDINATOR_GARBAGE_GRACE_MS", "100"),
    ];
    let cluster = Cluster::up_with(&["--nodes", "6"], &quick);
    let (mut putting, mut data) = slow_put(&cluster, "default/data");
    data.write_all(&bytes(4 * STRIPE, 2)).unwrap();
    cluster.wait_until("a stripe is on the disks", |cluster| payloads(cluster, 6) >= 5);
    putting.kill().unwrap();
    putting.wait().unwrap();
    assert_eq!(cluster.json(&["ls", "default"]), serde_json::json!([]));
    cluster.wait_until("all of it is swept", |cluster| payloads(cluster, 6) == 0);
    let (file, content) = cluster.file("again", 2 * STRIPE);
    cluster.weft([&["put", &file, "default/data"][..], &SMALL].concat()).ok();
    cluster.fetches("default/data", &content, &[]);
}

#[test]
fn a_put_whose_data_is_slow_to_come_outlives_its_lease() {
    let quick = [("WEFT_COORDINATOR_UPLOAD_LEASE_MS", "1500"), ("WEFT_COORDINATOR_SWEEP_INTERVAL_MS", "200")];
    let cluster = Cluster::up_with(&["--nodes", "6"], &quick);
    let content = bytes(4 * STRIPE, 5);
    let (putting, mut data) = slow_put(&cluster, "default/data");
    data.write_all(&content[..2 * STRIPE]).unwrap();
    std::thread::sleep(Duration::from_millis(4_000));
    data.write_all(&content[2 * STRIPE..]).unwrap();
    drop(data);
    let ended = putting.wait_with_output().unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    cluster.fetches("default/data", &content, &[]);
}

#[test]
fn a_put_that_is_broken_off_is_given_up_at_once() {
    // The lease is ten minutes: only the client's own word can end the put sooner.
    let quick = [("WEFT_COORDINATOR_STALL_MS", "5500"), ("WEFT_COORDINATOR_SWEEP_INTERVAL_MS", "200")];
    let cluster = Cluster::up_with(&["--nodes", "6"], &quick);
    let (putting, mut data) = slow_put(&cluster, "default/data");
    data.write_all(&bytes(4 * STRIPE, 6)).unwrap();
    cluster.wait_until("a stripe is on the disks", |cluster| payloads(cluster, 6) >= 5);
    let sent = std::process::Command::new("/bin/sh").args(["-c", &format!("kill -s INT {}", putting.id())]).status().unwrap();
    assert!(sent.success());
    let ended = putting.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(130), "{}", String::from_utf8_lossy(&ended.stderr));
    cluster.wait_until("all of it is removed", |cluster| payloads(cluster, 6) == 0);
    drop(data);
}

#[test]
fn a_put_goes_on_when_a_node_stops_moving() {
    let cluster = Cluster::up_with(&["--nodes", "8"], &[("WEFT_COORDINATOR_STALL_MS", "5500")]);
    let content = bytes(12 * STRIPE, 7);
    let (putting, mut data) = slow_put(&cluster, "default/data");
    data.write_all(&content[..4 * STRIPE]).unwrap();
    cluster.wait_until("two stripes are on the disks", |cluster| payloads(cluster, 8) >= 10);
    cluster.signal("node-03", "STOP");
    data.write_all(&content[4 * STRIPE..]).unwrap();
    drop(data);
    let ended = putting.wait_with_output().unwrap();
    cluster.signal("node-03", "CONT");
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    cluster.fetches("default/data", &content, &[]);
}

#[test]
fn a_repair_goes_on_around_a_helper_that_stops_moving() {
    // A stopped process keeps its connections and says nothing: the worst of helpers.
    let cluster = Cluster::up_with(&["--nodes", "8"], &[("WEFT_COORDINATOR_STALL_MS", "5500")]);
    let (file, content) = cluster.file("data", 12 * MIB);
    let sizes = ["--code", "rs(3,2)", "--block-size", "4MiB", "--cell-size", "1MiB"];
    cluster.weft([&["put", &file, "default/data"][..], &sizes].concat()).ok();
    cluster.kill(&cluster.holder("default/data", 0));
    let helper = cluster.holder("default/data", 1);
    cluster.signal(&helper, "STOP");
    let repaired = cluster.json(&["repair", "object", "default/data", "--block", "0", "--scheme", "pipeline"]);
    assert_eq!(repaired["blocks"][0]["generation"], 2, "{repaired}");
    cluster.fetches("default/data", &content, &["--scheme", "pipeline"]);
    cluster.signal(&helper, "CONT");
    cluster.wait_until("it comes back", |cluster| cluster.state(&helper) == "up");
    cluster.fetches("default/data", &content, &[]);
    assert_eq!(cluster.states("default/data"), ["ok"; 5]);
}

#[test]
fn a_repair_goes_on_when_its_helpers_die_one_after_another() {
    let cluster = Cluster::up(&["--nodes", "9"]);
    let (file, content) = cluster.file("data", 96 * MIB);
    let sizes = ["--code", "rs(3,3)", "--block-size", "32MiB", "--cell-size", "1MiB"];
    cluster.weft([&["put", &file, "default/data"][..], &sizes].concat()).ok();
    cluster.kill(&cluster.holder("default/data", 0));
    let helpers = [1, 2].map(|index| cluster.holder("default/data", index));
    let args = ["repair", "object", "default/data", "--block", "0", "--scheme", "pipeline", "--json"];
    let repairing = cluster.command(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    for helper in &helpers {
        std::thread::sleep(Duration::from_millis(60));
        cluster.signal(helper, "KILL");
    }
    let ended = repairing.wait_with_output().unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    cluster.fetches("default/data", &content, &[]);
    cluster.weft(["repair", "object", "default/data"]).ok();
    assert_eq!(cluster.states("default/data"), ["ok"; 6]);
    cluster.fetches("default/data", &content, &[]);
}

#[test]
fn a_large_block_in_a_chain_costs_an_agent_little_memory() {
    const ALLOWED_KIB: u64 = 16 << 10;
    let cluster = Cluster::up(&["--nodes", "6"]);
    let (file, content) = cluster.file("data", 128 * MIB + 5);
    let sizes = ["--code", "rs(2,2)", "--block-size", "64MiB", "--cell-size", "1MiB"];
    cluster.weft([&["put", &file, "default/data"][..], &sizes].concat()).ok();
    // Fresh processes: what they had at most so far is what they are when idle.
    cluster.weft(["cluster", "down"]).ok();
    cluster.weft(["cluster", "up"]).ok();
    let lost = cluster.holder("default/data", 1);
    cluster.kill(&lost);
    let nodes: Vec<String> = (1..=6).map(|number| format!("node-{number:02}")).filter(|name| *name != lost).collect();
    let idle: Vec<u64> = nodes.iter().map(|name| peak_kib(&cluster, name)).collect();
    cluster.weft(["repair", "object", "default/data", "--scheme", "pipeline"]).ok();
    for (name, idle) in nodes.iter().zip(idle) {
        let busy = peak_kib(&cluster, name);
        assert!(busy < idle + ALLOWED_KIB, "{name}: {idle} KiB idle, {busy} KiB at most");
    }
    cluster.fetches("default/data", &content, &[]);
}

/// The most memory that a process has had.
fn peak_kib(cluster: &Cluster, name: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", cluster.pid(name))).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}
