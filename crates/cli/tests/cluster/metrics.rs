//! Metrics of real daemons.

use crate::harness::{Cluster, Setup, bytes, wait_for};
use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    time::Duration,
};

/// The answer to an HTTP request.
fn asked(address: &str, request: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("a daemon that serves metrics");
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout");
    stream.write_all(request.as_bytes()).expect("a connection");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer
}

/// The figures of a daemon.
struct Scrape(String);

impl Scrape {
    fn of(address: &str) -> Self {
        let answer = asked(address, "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("# EOF\n"), "{answer}");
        Self(answer)
    }

    /// The sum of all series of this name whose labels contain all of these; `None` if there is none.
    fn sum(&self, name: &str, labels: &[&str]) -> Option<f64> {
        let mut found = None;
        for line in self.0.lines() {
            let Some((series, value)) = line.rsplit_once(' ').filter(|_| !line.starts_with('#')) else { continue };
            let (its, rest) = series.split_once('{').unwrap_or((series, ""));
            if its == name && labels.iter().all(|label| rest.contains(label)) {
                *found.get_or_insert(0.0) += value.parse::<f64>().expect("a number");
            }
        }
        found
    }

    fn value(&self, name: &str, labels: &[&str]) -> f64 {
        self.sum(name, labels).unwrap_or_else(|| panic!("{name} {labels:?} is not in\n{}", self.0))
    }
}

/// Where the agents that are up serve metrics.
fn agents(cluster: &Cluster) -> Vec<(String, String)> {
    let nodes = cluster.json(&["node", "ls"]);
    let address = |node: &serde_json::Value| {
        let [name, address] = ["name", "metrics_address"].map(|key| node[key].as_str().expect(key).to_owned());
        (name, address)
    };
    let all = nodes.as_array().expect("nodes").iter().map(address);
    all.filter(|(_, address)| !address.is_empty()).collect()
}

/// The sum over all agents.
fn of_agents(cluster: &Cluster, name: &str, labels: &[&str]) -> f64 {
    agents(cluster).iter().map(|(_, address)| Scrape::of(address).value(name, labels)).sum()
}

#[test]
fn agents_count_what_they_move_store_and_rebuild() {
    const LEN: usize = 300_000;
    let cluster = Setup::nodes(4).up();
    let all = agents(&cluster);
    assert_eq!(all.len(), 4, "{all:?}");
    assert!(cluster.log("node-01").contains(&all[0].1), "the log does not tell the address {}", all[0].1);
    cluster.put("data", &bytes(LEN, 1), &["--code", "rs(2,1)", "--cell-size", "4KiB"]).ok();
    let stored = of_agents(&cluster, "weft_agent_stored_bytes_total", &["class=\"foreground\""]);
    assert!(stored >= 1.5 * LEN as f64 && stored < 1.6 * LEN as f64, "{stored}");
    let came = of_agents(&cluster, "weft_agent_network_bytes_total", &["class=\"foreground\"", "direction=\"in\""]);
    assert!(came >= stored && came < stored + 8192.0, "{came} bytes came and {stored} were stored: whole pages are sent");
    assert_eq!(of_agents(&cluster, "weft_agent_disk_bytes_total", &["class=\"foreground\"", "direction=\"write\""]), stored);
    let read = ["class=\"foreground\"", "direction=\"read\""];
    let before = of_agents(&cluster, "weft_agent_disk_bytes_total", &read);
    cluster.expect("data", &bytes(LEN, 1), &[]);
    let after = of_agents(&cluster, "weft_agent_disk_bytes_total", &read);
    assert!(after >= before + LEN as f64, "{before} before the get, {after} after it");

    let lost = cluster.blocks("data")[0].node.clone();
    cluster.take_down(&[&lost]);
    assert_eq!(agents(&cluster).len(), 3, "a node that is down tells an address");
    cluster.weft(["repair", "object", "data"]).ok();
    let rebuilt = of_agents(&cluster, "weft_agent_stored_blocks_total", &["class=\"repair\""]);
    assert_eq!(rebuilt, 1.0);
    assert!(of_agents(&cluster, "weft_agent_network_bytes_total", &["class=\"repair\"", "direction=\"out\""]) > 0.0);
    assert!(of_agents(&cluster, "weft_agent_tasks_ended_total", &["class=\"repair\"", "outcome=\"done\""]) >= 2.0);
    wait_for("all tasks to end", || of_agents(&cluster, "weft_agent_tasks", &[]) == 0.0);
    assert_eq!(of_agents(&cluster, "weft_agent_memory_reserved_bytes", &[]), 0.0);

    let (name, address) = &agents(&cluster)[0];
    let seen = Scrape::of(address);
    assert_eq!(seen.value("weft_agent_info", &[&format!("node=\"{name}\"")]), 1.0);
    assert_eq!(seen.value("weft_agent_registered", &[]), 1.0);
    let [size, free, used] = ["size", "free", "used"].map(|what| seen.value(&format!("weft_agent_disk_{what}_bytes"), &[]));
    assert!(size > free && free > 0.0 && used == size - free, "{size} {free} {used}");
    assert_eq!((seen.value("weft_agent_disk_failed", &[]), seen.value("weft_agent_disk_errors_total", &[])), (0.0, 0.0));
    assert!(seen.value("weft_agent_disk_fsyncs_total", &[]) > 0.0);
    assert!(seen.value("weft_rpc_seconds_count", &["service=\"Agent\"", "method=\"Start\""]) > 0.0);
    // Only this one path, and only by GET.
    assert!(asked(address, "GET / HTTP/1.1\r\nHost: x\r\n\r\n").starts_with("HTTP/1.1 404 "));
    assert!(asked(address, "DELETE /metrics HTTP/1.1\r\nHost: x\r\n\r\n").starts_with("HTTP/1.1 405 "));
}

#[test]
fn metrics_can_be_off_and_another_address_is_warned_of() {
    let cluster = Setup::nodes(1).with(&[("WEFT_AGENT_METRICS", "off")]).up();
    assert_eq!(agents(&cluster), []);
    assert!(!cluster.log("node-01").contains("serving metrics"));
    let cluster = Setup::nodes(1).with(&[("WEFT_AGENT_METRICS", "0.0.0.0:0")]).up();
    assert!(cluster.log("node-01").contains("serving metrics without authentication"), "{}", cluster.log("node-01"));
}
