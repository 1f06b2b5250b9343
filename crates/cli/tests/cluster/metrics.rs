//! Metrics of real daemons.

use crate::harness::{Cluster, Setup, bytes, path, wait_for};
use serde_json::Value;
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
pub(crate) struct Scrape(String);

impl Scrape {
    fn of(address: &str) -> Self {
        let answer = asked(address, "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("# EOF\n"), "{answer}");
        Self(answer)
    }

    /// The sum of all series of this name whose labels contain all of these; `None` if there is none.
    pub(crate) fn sum(&self, name: &str, labels: &[&str]) -> Option<f64> {
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
    let address = |node: &Value| {
        let [name, address] = ["name", "metrics_address"].map(|key| node[key].as_str().expect(key).to_owned());
        (name, address)
    };
    let all = nodes.as_array().expect("nodes").iter().map(address);
    all.filter(|(_, address)| !address.is_empty()).collect()
}

/// The figures of the coordinator.
pub(crate) fn coordinator(cluster: &Cluster) -> Scrape {
    let status = cluster.weft(["cluster", "status", "--json"]).json();
    Scrape::of(status["metrics_address"].as_str().expect("an address"))
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
    cluster.weft(["repair", "object", "data", "--scheme", "ppr"]).ok();
    let by_scheme =
        ["blocks", "bytes"].map(|what| coordinator(&cluster).value(&format!("weft_repaired_{what}_total"), &["scheme=\"ppr\""]));
    assert_eq!(by_scheme[0], 1.0);
    assert_eq!(by_scheme[1], of_agents(&cluster, "weft_agent_stored_bytes_total", &["class=\"repair\""]));
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
fn agents_count_what_updates_in_place_write_and_sync() {
    const LEN: usize = 256 << 10;
    let cluster = Setup::nodes(3).with(&[("WEFT_AGENT_LIMITS__UPDATE_JOURNAL", "32MiB")]).up();
    cluster.put("data", &bytes(LEN, 1), &["--code", "rs(2,1)", "--block-size", "128KiB", "--cell-size", "64KiB"]).ok();
    let count = |what: &str| of_agents(&cluster, &format!("weft_agent_update_{what}_total"), &[]);
    assert_eq!(["journal_syncs", "journal_written_bytes", "patched_bytes"].map(count), [0.0; 3], "a put is no update");
    let new = cluster.write("new", &bytes(4096, 2));
    cluster.weft(["write", path(&new), "data", "--offset", "8192"]).ok();
    assert!(count("journal_syncs") >= 2.0, "one block and its parity");
    assert!(count("journal_written_bytes") >= 2.0 * 4096.0);
    wait_for("the update to be applied", || count("patched_bytes") >= 2.0 * 4096.0);
}

#[test]
fn metrics_can_be_off_and_another_address_is_warned_of() {
    let cluster = Setup::nodes(1).with(&[("WEFT_AGENT_METRICS", "off")]).up();
    assert_eq!(agents(&cluster), []);
    assert!(!cluster.log("node-01").contains("serving metrics"));
    let config = cluster.dir().join("nodes").join("node-01").join("agent.toml");
    cluster.weft(["agent", "--config", path(&config), "--metrics", "9100"]).refused(2, &["metrics is '9100'", "use host:port"]);
    let config = cluster.dir().join("coordinator").join("coordinator.toml");
    cluster
        .weft(["coordinator", "--config", path(&config), "--metrics", "9100"])
        .refused(2, &["metrics is '9100'", "use host:port"]);
    let cluster = Setup::nodes(1).with(&[("WEFT_AGENT_METRICS", "0.0.0.0:0")]).up();
    assert!(cluster.log("node-01").contains("serving metrics without authentication"), "{}", cluster.log("node-01"));
}

/// The figures that both `weft status --json` and the coordinator's metrics have, with the names that they have there.
fn compared(status: &Value, seen: &Scrape) -> Vec<(String, f64, f64)> {
    let at = |path: &str| path.split('.').fold(status, |value, key| &value[key]);
    let number = |path: &str| at(path).as_f64().unwrap_or_else(|| panic!("{path} is not in {status}"));
    let mut all = Vec::new();
    for (path, name, labels) in [
        ("objects", "weft_objects", ""),
        ("data_bytes", "weft_data_bytes", ""),
        ("stripes.total", "weft_stripes", ""),
        ("stripes.with_bad_blocks", "weft_stripes_with_bad_blocks", ""),
        ("stripes.unreadable", "weft_stripes_unreadable", ""),
        ("stripes.lost", "weft_stripes_lost", ""),
        ("bad_blocks.corrupt", "weft_bad_blocks", "kind=\"corrupt\""),
        ("bad_blocks.missing", "weft_bad_blocks", "kind=\"missing\""),
        ("bad_blocks.coming", "weft_bad_blocks", "kind=\"coming\""),
        ("bad_blocks.on_failed_disks", "weft_bad_blocks", "kind=\"on_failed_disks\""),
        ("bad_blocks.on_down_nodes", "weft_bad_blocks", "kind=\"on_down_nodes\""),
        ("bad_blocks.on_lost_nodes", "weft_bad_blocks", "kind=\"on_lost_nodes\""),
        ("nodes", "weft_nodes", ""),
        ("space.total_bytes", "weft_space_size_bytes", ""),
        ("space.free_bytes", "weft_space_free_bytes", ""),
        ("space.kept_bytes", "weft_space_kept_bytes", ""),
        ("space.fits_bytes", "weft_space_fits_bytes", ""),
        ("quarantined_blocks", "weft_quarantined_blocks", ""),
        ("quarantined_bytes", "weft_quarantined_bytes", ""),
        ("repair.stripes_left", "weft_repair_stripes_left", ""),
        ("repair.stripes_under_way", "weft_repair_stripes_under_way", ""),
        ("repair.crowded_stripes", "weft_crowded_stripes", ""),
    ] {
        all.push((path.to_owned(), number(path), seen.value(name, &[labels])));
    }
    for bearing in at("stripes.by_further_losses").as_array().expect("bearings") {
        let further = bearing["further_losses"].as_u64().map_or("unreadable".to_owned(), |further| further.to_string());
        let labels = [format!("code=\"{}\"", bearing["code"].as_str().expect("a code")), format!("further_losses=\"{further}\"")];
        let of_metrics = seen.value("weft_stripes", &labels.each_ref().map(String::as_str));
        all.push((labels.join(","), bearing["stripes"].as_f64().expect("a number"), of_metrics));
    }
    let at_risk = at("stripes.by_further_losses").as_array().expect("bearings").iter().filter(|it| it["further_losses"] == 0);
    let at_risk: f64 = at_risk.filter_map(|it| it["stripes"].as_f64()).sum();
    all.push(("at risk".to_owned(), at_risk, seen.value("weft_stripes_at_risk", &[])));
    let of_scrub = |key: &str| at("scrub")[key].as_u64().map_or(0.0, |ms| (ms / 1000) as f64);
    all.push(("scrub.period_ms".to_owned(), of_scrub("period_ms"), seen.value("weft_scrub_period_seconds", &[])));
    all.push(("scrub.began_ms".to_owned(), of_scrub("began_ms"), seen.value("weft_scrub_began_timestamp_seconds", &[])));
    for (key, name) in [("stripes", "weft_scrub_checked_stripes"), ("wrong_blocks", "weft_scrub_wrong_blocks")] {
        let now = at("scrub")["now"][key].as_f64().unwrap_or(0.0);
        all.push((format!("scrub.now.{key}"), now, seen.value(name, &["pass=\"current\""])));
    }
    let listed = |path: &str| at(path).as_array().unwrap_or_else(|| panic!("{path} is not in {status}")).len() as f64;
    all.push(("suspect_nodes".to_owned(), listed("suspect_nodes"), seen.value("weft_node_suspect", &[])));
    all.push(("ailing_disks".to_owned(), listed("ailing_disks"), seen.value("weft_disk_trouble", &[])));
    let left = |it: &Value| it["blocks"].as_f64().unwrap_or(0.0) + it["allocations"].as_f64().unwrap_or(0.0);
    let draining: f64 = at("draining").as_array().expect("drains").iter().map(left).sum();
    all.push(("draining".to_owned(), draining, seen.sum("weft_draining_blocks", &[]).unwrap_or(0.0)));
    let level = format!("level=\"{}\"", at("level").as_str().expect("a level"));
    all.push((level.clone(), 1.0, seen.value("weft_health", &[&level])));
    all.push(("counting".to_owned(), f64::from(u8::from(*at("counting") == true)), seen.value("weft_counting", &[])));
    let down = at("down_nodes").as_array().expect("nodes").len() as f64;
    all.push(("down_nodes".to_owned(), down, number("nodes") - seen.value("weft_node_up", &[])));
    let failed = at("failed_disks").as_array().expect("disks").len() as f64;
    all.push(("failed_disks".to_owned(), failed, seen.value("weft_disk_failed", &[])));
    let on = f64::from(u8::from(*at("repair.on") == true));
    all.push(("repair.on".to_owned(), on, seen.value("weft_repair_auto", &[])));
    let waiting: f64 = at("repair.waiting").as_array().expect("waits").iter().filter_map(|it| it["stripes"].as_f64()).sum();
    all.push(("repair.waiting".to_owned(), waiting, seen.value("weft_repair_stripes_waiting", &[])));
    all
}

/// Compares `weft status --json` with the metrics. They are not read at the same moment, and other programs change the free space, so what
/// differs once is read again.
fn agree(cluster: &Cluster) -> Scrape {
    let (mut last, mut differs) = (None, Vec::new());
    wait_for("`weft status` and the metrics to agree", || {
        let status = cluster.weft(["status", "--json"]).json();
        let seen = coordinator(cluster);
        // Another program may write to the disk between the two.
        let is_space = |name: &str| name.starts_with("space.") && !name.ends_with("total_bytes");
        let is_same = |name: &str, one: f64, other: f64| {
            if is_space(name) { (one - other).abs() <= one.max(other) * 0.01 } else { one == other }
        };
        differs = compared(&status, &seen).into_iter().filter(|(name, one, other)| !is_same(name, *one, *other)).collect();
        last = Some(seen);
        if !differs.is_empty() {
            eprintln!("they differ: {differs:?}");
        }
        differs.is_empty()
    });
    last.expect("a scrape")
}

#[test]
fn the_coordinator_tells_the_figures_of_weft_status_while_a_node_is_lost_and_healed() {
    const LEN: usize = 400_000;
    let settings = [
        ("WEFT_COORDINATOR_AUTO_REPAIR", "true"),
        ("WEFT_COORDINATOR_LOST_AFTER_MS", "4000"),
        ("WEFT_COORDINATOR_DEFAULT_FAILURE_DOMAIN", "node"),
    ];
    let cluster = Setup { racks: 1, ..Setup::nodes(7) }.with(&settings).up();
    for number in 0..4 {
        cluster.put(&format!("data-{number}"), &bytes(LEN, number), &["--code", "rs(3,2)", "--cell-size", "4KiB"]).ok();
    }
    wait_for("the cluster to be healthy", || cluster.weft(["status"]).status.code() == Some(0));
    let seen = agree(&cluster);
    assert_eq!(seen.value("weft_health", &["level=\"healthy\""]), 1.0);
    assert_eq!((seen.value("weft_objects", &[]), seen.value("weft_nodes", &["state=\"up\""])), (4.0, 7.0));
    assert_eq!(seen.value("weft_stripes", &["further_losses=\"2\""]), seen.value("weft_stripes", &[]));
    assert_eq!(seen.sum("weft_repaired_blocks_total", &[]), None, "nothing was repaired");
    assert!(seen.value("weft_plan_seconds_count", &["kind=\"write\""]) >= 4.0);
    assert_eq!(seen.value("weft_rpc_seconds_count", &["service=\"Weft\"", "method=\"BeginPut\""]), 4.0);
    assert!(seen.value("weft_metadata_commits_total", &[]) > 0.0);
    cluster.weft(["stat", "nothing"]).code(3);
    let missing = ["method=\"StatObject\"", "reaction=\"not_found\""];
    assert_eq!(coordinator(&cluster).value("weft_rpc_errors_total", &missing), 1.0);

    let lost = cluster.blocks("data-0")[0].node.clone();
    let held: usize =
        (0..4).map(|number| cluster.blocks(&format!("data-{number}")).iter().filter(|it| it.node == lost).count()).sum();
    cluster.take_down(&[&lost]);
    let node = format!("node=\"{lost}\"");
    wait_for("the loss to be seen", || coordinator(&cluster).value("weft_stripes_with_bad_blocks", &[]) > 0.0);
    assert_eq!(coordinator(&cluster).value("weft_node_up", &[&node]), 0.0);
    wait_for("the blocks to be rebuilt", || {
        coordinator(&cluster).sum("weft_repaired_blocks_total", &[]).is_some_and(|blocks| blocks >= held as f64)
    });
    wait_for("the cluster to be healed", || coordinator(&cluster).value("weft_stripes_with_bad_blocks", &[]) == 0.0);
    let seen = agree(&cluster);
    assert_eq!((seen.value("weft_nodes", &["state=\"lost\""]), seen.value("weft_nodes", &["state=\"up\""])), (1.0, 6.0));
    assert_eq!(seen.value("weft_repair_stripes_left", &[]), 0.0);
    let [blocks, bytes] = ["blocks", "bytes"].map(|what| seen.value(&format!("weft_repaired_{what}_total"), &[]));
    assert_eq!(blocks, held as f64, "each lost block is rebuilt once");
    // What the agents have stored is what the coordinator has recorded.
    assert_eq!(of_agents(&cluster, "weft_agent_stored_blocks_total", &["class=\"repair\""]), blocks);
    assert_eq!(of_agents(&cluster, "weft_agent_stored_bytes_total", &["class=\"repair\""]), bytes);
    assert!(seen.value("weft_plan_seconds_count", &["kind=\"repair\""]) >= 1.0);
}

#[test]
fn a_failed_disk_a_job_and_a_limit_are_seen_while_they_last() {
    let cluster = Setup { racks: 1, ..Setup::nodes(5) }.up();
    let coding = ["--code", "rs(2,1)", "--block-size", "1MiB", "--cell-size", "64KiB"];
    cluster.put("data", &bytes(12 << 20, 1), &coding).ok();
    let node = cluster.blocks("data")[0].node.clone();
    let held = cluster.blocks("data").iter().filter(|block| block.node == node).count() as f64;
    cluster.take_down(&[&node]);
    let disk = cluster.dir().join("nodes").join(&node).join("disk-0");
    std::fs::rename(&disk, cluster.file("taken")).expect("its disk");
    cluster.up().ok();
    cluster.wait_for_state(&[&node], "up");
    wait_for("the disk to be known as failed", || coordinator(&cluster).value("weft_disk_failed", &[]) == 1.0);
    wait_for("its blocks to be counted", || {
        coordinator(&cluster).value("weft_bad_blocks", &["kind=\"on_failed_disks\""]) == held
    });
    let seen = agree(&cluster);
    assert_eq!(seen.value("weft_disk_failed", &[&format!("node=\"{node}\"")]), 1.0);
    assert!(seen.value("weft_failed_disk_blocks", &[]) >= 1.0);
    assert_eq!(of_agents(&cluster, "weft_agent_disk_failed", &[]), 1.0);
    assert_eq!((seen.sum("weft_job_running", &[]), seen.sum("weft_repair_limit_bytes_per_second", &[])), (None, None));

    cluster.weft(["repair", "limit", "256KiB/s"]).ok();
    cluster.weft(["repair", "node", &node, "--no-wait"]).ok();
    let mut last = None;
    wait_for("the job to move bytes", || {
        let seen = last.insert(coordinator(&cluster));
        seen.sum("weft_job_size_blocks", &[]).is_some_and(|blocks| blocks > 0.0) && seen.value("weft_repair_limited", &[]) == 1.0
    });
    let seen = last.expect("a scrape");
    let job = ["kind=\"repair-node\""];
    assert_eq!((seen.value("weft_job_running", &job), seen.value("weft_job_size_blocks", &job)), (1.0, held));
    assert_eq!(seen.value("weft_repair_limit_bytes_per_second", &[]), 262_144.0);
    let status = cluster.weft(["status", "--json"]).json();
    let total = |key: &str| status["jobs"][0]["total"][key].as_f64().unwrap_or_else(|| panic!("no {key} in {status}"));
    assert_eq!(total("blocks"), seen.value("weft_job_size_blocks", &job));
    assert_eq!(total("bytes"), seen.value("weft_job_size_bytes", &job));
    let ended = |seen: &Scrape, outcome: &str| seen.value("weft_jobs_ended_total", &[job[0], &format!("outcome=\"{outcome}\"")]);
    assert_eq!(["done", "failed", "cancelled"].map(|outcome| ended(&seen, outcome)), [0.0; 3]);
    let id = status["jobs"][0]["id"].as_u64().expect("its number").to_string();
    assert_eq!(seen.value("weft_job_running", &[&format!("job=\"{id}\"")]), 1.0);
    cluster.weft(["job", "pause", &id]).ok();
    assert_eq!(coordinator(&cluster).value("weft_job_running", &job), 0.0);
    cluster.weft(["job", "resume", &id]).ok();
    assert!(of_agents(&cluster, "weft_agent_limit_wait_seconds_total", &[]) > 0.0);

    cluster.weft(["repair", "limit", "none"]).ok();
    wait_for("the job to end", || coordinator(&cluster).sum("weft_job_running", &[]).is_none());
    wait_for("the repair to be seen", || coordinator(&cluster).value("weft_stripes_with_bad_blocks", &[]) == 0.0);
    let seen = agree(&cluster);
    assert_eq!(seen.value("weft_repaired_blocks_total", &[]), held);
    assert_eq!(seen.value("weft_failed_disk_blocks", &[]), 0.0);
    assert_eq!((ended(&seen, "done"), seen.value("weft_jobs_ended_total", &[])), (1.0, 1.0));
    cluster.weft(["repair", "limit", "256KiB/s"]).ok();
    cluster.weft(["scrub", "--no-wait"]).ok();
    let jobs = cluster.weft(["job", "ls", "--json"]).json();
    let id = |it: &Value| (it["kind"] == "scrub").then(|| it["id"].as_u64().expect("its number").to_string());
    let id = jobs.as_array().expect("jobs").iter().find_map(id).expect("the scrub");
    cluster.weft(["job", "cancel", &id]).ok();
    assert_eq!(coordinator(&cluster).value("weft_jobs_ended_total", &["kind=\"scrub\"", "outcome=\"cancelled\""]), 1.0);
}
