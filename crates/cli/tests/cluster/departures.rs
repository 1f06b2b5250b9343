//! A node and a disk that are gone for good are forgotten.

use crate::harness::{Cluster, Setup, bytes, path, wait_for};
use serde_json::Value;
use std::{collections::BTreeSet, fs};

const CODING: [&str; 6] = ["--code", "rs(2,1)", "--block-size", "64KiB", "--cell-size", "4KiB"];

impl Cluster {
    fn names_listed(&self) -> Vec<String> {
        let nodes = self.json(&["node", "ls"]);
        nodes.as_array().unwrap().iter().map(|node| node["name"].as_str().unwrap().to_owned()).collect()
    }

    fn disks_of(&self, node: &str) -> Vec<Value> {
        self.json(&["node", "disk", "ls", node]).as_array().unwrap().clone()
    }
}

#[test]
fn a_node_that_is_gone_is_removed_and_comes_back_only_as_a_new_one() {
    let cluster = Setup { racks: 1, ..Setup::nodes(5) }.up();
    let content = bytes(2_000_000, 1);
    cluster.put("data", &content, &CODING).ok();
    cluster.weft(["node", "remove", "nobody"]).refused(3, &["there is no node 'nobody'", "weft node ls"]);
    cluster.weft(["node", "remove", "node-03"]).refused(2, &["node-03 is up", "stop its agent", "`weft node drain node-03`"]);
    cluster.take_down(&["node-03"]);
    cluster.weft(["node", "remove", "n3"]).refused(2, &["node-03 holds", "`weft repair node node-03`"]);
    cluster.weft(["repair", "node", "node-03"]).ok();
    let removed = cluster.json(&["node", "remove", "node-03"]);
    let disk = cluster.dir().join("nodes/node-03/disk-0");
    assert_eq!(
        (&removed["node"], &removed["name"], &removed["disks"][0]["path"]),
        (&"n3".into(), &"node-03".into(), &path(&disk).into())
    );
    assert!(removed["garbage_blocks"].as_u64() > Some(0), "{removed}");
    assert_eq!(cluster.names_listed(), ["node-01", "node-02", "node-04", "node-05"]);
    assert_eq!(cluster.weft(["cluster", "status"]).ok().stderr, "");
    // Nothing is lost, but five nodes are needed for the default policy.
    let full = "no new data fit in rs(3,2), the code of the default policy default: it needs 5 nodes, and 4 are up with a disk for new blocks";
    wait_for("the status to say what is left", || {
        let status = cluster.weft(["status", "--json"]).json();
        status["level"] == "degraded" && status["reasons"] == serde_json::json!([full])
    });
    cluster.weft(["policy", "create", "thin", "--code", "rs(2,1)"]).ok();
    cluster.weft(["policy", "default", "thin"]).ok();
    wait_for("the cluster to be healthy", || cluster.weft(["status"]).status.code() == Some(0));
    cluster.weft(["node", "remove", "node-03"]).refused(3, &["there is no node 'node-03'"]);
    cluster.expect("data", &content, &[]);

    // Its agent is refused as long as it has its state.
    let mut back =
        cluster.start(["agent", "--config", path(&cluster.dir().join("nodes/node-03/agent.toml"))], std::process::Stdio::null());
    let refused = "node node-03 (n3) was removed from this cluster";
    wait_for("its agent to be refused", || cluster.log("coordinator").contains(refused));
    assert!(back.is_running());
    assert_eq!(cluster.names_listed().len(), 4);
    drop(back);
    // The others do not wait for it.
    let up = cluster.up().ok();
    assert!(up.stderr.contains("the node of node-03 was removed from the cluster"), "{}", up.stderr);
    assert_eq!(cluster.names_listed().len(), 4);
    cluster.kill("node-03");
    fs::rename(cluster.dir().join("nodes/node-03/state/agent"), cluster.file("agent")).unwrap();
    cluster.up().ok();
    let nodes = cluster.json(&["node", "ls"]);
    let new = nodes.as_array().unwrap().iter().find(|node| node["name"] == "node-03").unwrap();
    assert_eq!((&new["id"], &new["blocks"]), (&"n6".into(), &0.into()));
    cluster.put("data", &bytes(2_000_000, 2), &CODING).ok();
}

#[test]
fn a_drained_node_is_switched_off_and_removed() {
    let cluster = Setup { racks: 1, disks_per_node: 2, ..Setup::nodes(4) }.up();
    let content = bytes(3_000_000, 1);
    cluster.put("data", &content, &CODING).ok();
    let state_of = |node: &str| {
        let nodes = cluster.weft(["node", "ls"]).ok();
        nodes.text().lines().find(|line| line.contains(node)).unwrap_or_default().to_owned()
    };
    cluster.weft(["node", "drain", "nobody"]).refused(3, &["there is no node 'nobody'"]);
    let disk = path(&cluster.dir().join("nodes/node-02/disk-1")).to_owned();
    let drained = cluster.json(&["node", "disk", "drain", "node-02", &disk]);
    assert_eq!((&drained["path"], &drained["blocks"], &drained["empty"]), (&disk.as_str().into(), &0.into(), &true.into()));
    assert!(cluster.disks_of("node-02").iter().any(|it| it["path"] == disk.as_str() && it["state"] == "draining"));
    let ended = cluster.weft(["node", "disk", "drain", "node-02", &disk, "--cancel"]).ok();
    assert!(ended.text().contains("node-02 is no longer being drained"), "{}", ended.text());

    let plan = cluster.json(&["node", "drain", "node-03", "--explain"]);
    assert!(plan["leaving"]["blocks"].as_u64() > Some(10) && plan["busiest"]["link"].is_string(), "{plan}");
    let explained = cluster.weft(["node", "drain", "node-03", "--explain"]).ok();
    assert!(explained.text().contains("would leave node-03: ") && explained.text().contains("or more at the measured rates"));
    assert!(!state_of("node-03").contains("draining"), "{}", state_of("node-03"));
    let begun = cluster.weft(["node", "drain", "node-03", "--no-wait"]).ok();
    assert!(begun.text().starts_with("node-03 "), "{}", begun.text());
    assert!(state_of("node-03").contains("up, draining"), "{}", state_of("node-03"));
    let drained = cluster.weft(["node", "drain", "node-03"]).ok();
    assert!(drained.text().contains("node-03 is empty: its agent may be stopped"), "{}", drained.text());
    let left = || crate::metrics::coordinator(&cluster).sum("weft_draining_blocks", &["node=\"node-03\""]);
    assert_eq!(left(), Some(0.0));
    let status = cluster.weft(["status"]);
    assert!(status.text().contains("drain: node-03 is empty"), "{}", status.text());
    // Three nodes are left, as many as a stripe needs.
    cluster.weft(["node", "drain", "node-01"]).refused(4, &["without node-01 only 2 can keep blocks", "--force"]);
    cluster.take_down(&["node-03"]);
    cluster.weft(["node", "remove", "node-03"]).ok();
    assert_eq!((cluster.names_listed().join(" ").as_str(), left()), ("node-01 node-02 node-04", None));
    cluster.expect("data", &content, &[]);
    cluster.put("more", &content, &CODING).ok();
    cluster.expect("more", &content, &[]);
    // Two nodes join, and get their share.
    cluster.weft(["cluster", "add-node", "--dir", path(&cluster.dir()), "--count", "2", "--rack", "rack-9"]).ok();
    let mut names = cluster.names_listed();
    // Those that join at the same time get their numbers in any order.
    names.sort();
    assert_eq!(names, ["node-01", "node-02", "node-04", "node-05", "node-06"]);
    let plan = cluster.json(&["balance", "--explain"]);
    assert!(plan["blocks"].as_u64() > Some(10), "{plan}");
    let moves = plan["moves"].as_array().unwrap();
    assert_eq!(plan["bytes"], moves.iter().map(|it| it["bytes"].as_u64().unwrap()).sum::<u64>());
    assert!(moves.iter().any(|it| it["from"]["name"] == "node-01" && it["to"]["path"].is_string()), "{plan}");
    assert!(moves.iter().any(|it| it["to"]["name"] == "node-05"), "{plan}");
    let done = cluster.weft(["balance"]).ok();
    assert!(done.text().contains("balancing of all disks: done") && done.text().contains("blocks moved"), "{}", done.text());
    let blocks = cluster.json(&["node", "ls"]);
    let of_new = blocks.as_array().unwrap().iter().filter(|it| it["rack"] == "rack-9").map(|it| it["blocks"].as_u64().unwrap());
    assert!(of_new.clone().count() == 2 && of_new.clone().all(|blocks| blocks > 5), "{blocks}");
    let even = cluster.weft(["balance"]).ok();
    assert!(even.text().contains("the fill is even"), "{}", even.text());
    cluster.expect("data", &content, &[]);
    cluster.expect("more", &content, &[]);
}

#[test]
fn a_drain_a_balance_and_a_scrub_outlive_kills_of_agents_and_of_the_coordinator() {
    let cluster = Setup { racks: 1, ..Setup::nodes(5) }.up();
    let content = bytes(6_000_000, 1);
    cluster.put("data", &content, &CODING).ok();
    let held = || cluster.blocks("data").iter().filter(|block| block.node == "node-03").count();
    let limit = |rate: &str| cluster.weft(["repair", "limit", rate]).ok();
    let kill = |names: [&str; 3]| {
        for name in names {
            cluster.kill(name);
            cluster.up().ok();
        }
        let agents: Vec<&str> = names.into_iter().filter(|name| *name != "coordinator").collect();
        cluster.wait_for_state(&agents, "up");
    };
    let assert_whole = || {
        wait_for("all blocks to be there", || cluster.blocks("data").iter().all(|block| block.state == "ok"));
        let mut homes = BTreeSet::new();
        for block in cluster.blocks("data") {
            assert!(homes.insert((block.stripe, block.node.clone())), "the node has two blocks of the stripe: {block:?}");
        }
        cluster.expect("data", &content, &[]);
    };
    let before = held();
    limit("256KiB/s");
    cluster.weft(["node", "drain", "node-03", "--no-wait"]).ok();
    wait_for("blocks to leave the node", || held() < before);
    // The last one gets blocks.
    kill(["coordinator", "node-03", "node-01"]);
    limit("none");
    let drained = cluster.weft(["node", "drain", "node-03"]).ok();
    assert!(drained.text().contains("node-03 is empty: its agent may be stopped"), "{}", drained.text());
    assert_eq!(held(), 0);
    assert_whole();

    cluster.weft(["node", "drain", "node-03", "--cancel"]).ok();
    limit("256KiB/s");
    let job = cluster.json(&["balance", "--no-wait"])["id"].to_string();
    wait_for("blocks to come to the node", || held() > 0);
    kill(["coordinator", "node-03", "node-02"]);
    limit("none");
    // It may have given up blocks of nodes that were away for too long.
    cluster.weft(["job", "wait", &job]);
    wait_for("the fill to be even", || cluster.weft(["balance"]).status.success());
    assert!(held() > before / 2, "{} of {before}", held());
    assert_whole();

    limit("256KiB/s");
    let id = cluster.json(&["scrub", "--no-wait"])["id"].clone();
    let job = id.to_string();
    wait_for("the scrub to check stripes", || {
        let jobs = cluster.json(&["job", "ls"]);
        let begun = |it: &Value| it["stripes_under_way"].as_u64() > Some(0) || it["state"] != "running";
        jobs.as_array().unwrap().iter().any(|it| it["id"] == id && begun(it))
    });
    kill(["node-04", "coordinator", "node-05"]);
    limit("none");
    cluster.weft(["job", "wait", &job]);
    wait_for("a scrub to find nothing wrong", || {
        let scrubbed = cluster.weft(["scrub", "--json"]);
        scrubbed.status.success() && scrubbed.json()["wrong_blocks"] == 0
    });
    assert_whole();
}

#[test]
fn a_replaced_disk_is_forgotten() {
    let cluster = Setup { racks: 1, disks_per_node: 2, ..Setup::nodes(4) }.up();
    let content = bytes(3_000_000, 1);
    cluster.put("data", &content, &CODING).ok();
    let home = cluster.dir().join("nodes/node-02");
    let old = path(&home.join("disk-0")).to_owned();
    let forget = |disk: &str| cluster.weft(["node", "disk", "forget", "node-02", disk]);
    forget(&old).refused(2, &[&old, "in use", "remove it from `disks`"]);
    forget("disk-9").refused(3, &["'disk-9'", "`weft node disk ls node-02`"]);
    cluster.take_down(&["node-02"]);
    forget(&old).refused(4, &["node-02 is down"]);
    assert!(cluster.disks_of("node-02").iter().all(|disk| disk["state"] == "unknown"));

    let settings = home.join("agent.toml");
    let text = fs::read_to_string(&settings).unwrap();
    fs::write(&settings, text.replace("\"disk-0\"", "\"disk-new\"")).unwrap();
    cluster.up().ok();
    cluster.wait_for_state(&["node-02"], "up");
    let states = || -> Vec<(String, String)> {
        let text = |it: &Value| it.as_str().unwrap().to_owned();
        cluster.disks_of("n2").iter().map(|disk| (text(&disk["path"]), text(&disk["state"]))).collect()
    };
    wait_for("the old disk to be gone", || states().contains(&(old.clone(), "gone".to_owned())));
    forget(&old).refused(2, &["held", "`weft repair node node-02`"]);
    cluster.weft(["repair", "node", "node-02"]).ok();
    let warned = cluster.weft(["cluster", "status"]).ok().stderr;
    assert!(warned.contains("`weft node disk forget node-02 "), "{warned}");
    let forgotten = forget(&old).ok();
    assert!(forgotten.text().starts_with(&format!("forgot the disk {old} of node-02")), "{}", forgotten.text());
    assert_eq!(states().iter().map(|(_, state)| state.as_str()).collect::<Vec<_>>(), ["ok", "ok"]);
    assert_eq!(cluster.weft(["cluster", "status"]).ok().stderr, "");
    cluster.expect("data", &content, &[]);

    // With one command, for a disk that is gone: its blocks are rebuilt although nothing is rebuilt without a person.
    let old = path(&home.join("disk-1")).to_owned();
    cluster.take_down(&["node-02"]);
    let text = fs::read_to_string(&settings).unwrap();
    fs::write(&settings, text.replace("\"disk-1\"", "\"disk-newer\"")).unwrap();
    cluster.weft(["node", "disk", "replace", "node-02", &old]).refused(4, &["node-02 is down"]);
    cluster.up().ok();
    cluster.wait_for_state(&["node-02"], "up");
    let replaced = cluster.weft(["node", "disk", "replace", "node-02", &old]).ok();
    assert_eq!(replaced.text(), format!("nothing is left of {old} of node-02, and it is forgotten\n"));
    assert_eq!(states().iter().map(|(_, state)| state.as_str()).collect::<Vec<_>>(), ["ok", "ok"]);
    // And for one that works.
    let other = path(&home.join("disk-new")).to_owned();
    let pulled = cluster.weft(["node", "disk", "replace", "node-02", &other]).ok();
    assert!(
        pulled.text().starts_with(&format!("nothing is left on {other} of node-02: it may be pulled\n1. stop")),
        "{}",
        pulled.text()
    );
    assert!(states().contains(&(other, "draining".to_owned())));
    cluster.expect("data", &content, &[]);
}
