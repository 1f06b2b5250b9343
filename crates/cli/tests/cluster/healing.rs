//! The cluster heals itself, on real processes.

use crate::harness::{Cluster, Setup, bytes, wait_for};

const CODING: [&str; 6] = ["--code", "rs(4,2)", "--block-size", "1MiB", "--cell-size", "64KiB"];
const HEALS: [(&str, &str); 2] = [("WEFT_COORDINATOR_AUTO_REPAIR", "true"), ("WEFT_COORDINATOR_LOST_AFTER_MS", "4000")];

fn wait_for_healthy(cluster: &Cluster) {
    wait_for("`weft status` to exit with 0", || cluster.weft(["status"]).status.code() == Some(0));
}

#[test]
fn a_node_that_is_killed_is_replaced_without_a_command() {
    let cluster = Setup { racks: 1, ..Setup::nodes(8) }.with(&HEALS).up();
    let objects: Vec<(String, Vec<u8>)> = (0..4).map(|number| (format!("data-{number}"), bytes(5 << 20, number))).collect();
    objects.iter().for_each(|(key, content)| drop(cluster.put(key, content, &CODING).ok()));
    wait_for_healthy(&cluster);
    let told = cluster.weft(["status"]).ok().text().to_owned();
    assert!(told.contains("repair: automatic, nothing to do"), "{told}");

    let lost = cluster.blocks("data-0")[2].node.clone();
    cluster.kill(&lost);
    cluster.wait_for_state(&[&lost], "lost");
    wait_for_healthy(&cluster);
    for (key, content) in &objects {
        let blocks = cluster.blocks(key);
        assert!(blocks.iter().all(|block| block.state == "ok" && block.node != lost), "{blocks:?}");
        assert_eq!(cluster.expect(key, content, &[])["rebuilt"].as_array().map(Vec::len), Some(0));
    }
    let told = cluster.weft(["status"]).ok().text().to_owned();
    assert!(told.contains(&format!("{lost} is lost")) && told.contains("its blocks are on other nodes"), "{told}");
    let log = cluster.log("coordinator");
    assert_eq!(log.matches("a node is lost: its blocks are rebuilt on other nodes").count(), 1, "said once");

    // It comes back, and what was rebuilt is removed from it.
    cluster.up().ok();
    wait_for("its old blocks to be removed", || cluster.files_of(&lost).is_empty());
    wait_for_healthy(&cluster);
}

#[test]
fn with_too_few_nodes_it_says_what_it_waits_for_and_it_can_be_turned_off() {
    let cluster = Setup { racks: 1, ..Setup::nodes(6) }.with(&HEALS).up();
    let content = bytes(4 << 20, 9);
    cluster.put("data", &content, &CODING).ok();
    wait_for_healthy(&cluster);
    let off = cluster.weft(["repair", "auto", "off", "--json"]).ok().json();
    assert_eq!((&off["state"], &off["on"]), (&"off".into(), &false.into()), "{off}");
    let told = cluster.weft(["repair", "auto", "status"]).ok().text().to_owned();
    assert!(told.contains("`weft repair auto on` turns it on"), "{told}");
    cluster.weft(["repair", "auto", "on"]).ok();

    let lost = cluster.blocks("data")[0].node.clone();
    cluster.kill(&lost);
    wait_for("it to wait for nodes", || {
        let told = cluster.weft(["status", "--json"]);
        let told: serde_json::Value = serde_json::from_slice(&told.stdout).unwrap_or_default();
        told["repair"]["waiting"][0]["wait"] == "nodes"
    });
    let told = String::from_utf8(cluster.weft(["status"]).stdout).unwrap();
    assert!(told.contains("1 stripe waits for nodes: start nodes that are down, or add some"), "{told}");
    cluster.up().ok();
    wait_for_healthy(&cluster);
    assert!(cluster.blocks("data").iter().all(|block| block.generation == 1), "nothing had to be rebuilt");
}

#[test]
fn the_limit_on_repair_is_set_shown_and_survives_a_restart() {
    let cluster = Setup { racks: 1, ..Setup::nodes(3) }.up();
    let set = cluster.weft(["repair", "limit", "100MiB/s"]).ok().text().to_owned();
    assert!(
        set.contains("repair limit: 100MiB/s at each disk, uplink and downlink\nin force at all 3 nodes that are up"),
        "{set}"
    );
    cluster.weft(["cluster", "down"]).ok();
    cluster.up().ok();
    let shown = cluster.weft(["repair", "limit", "--json"]).ok().json();
    assert_eq!((&shown["kind"], &shown["bytes_per_s"]), (&"rate".into(), &(100u64 << 20).into()), "{shown}");
    wait_for("all nodes to confirm it", || {
        let shown = cluster.weft(["repair", "limit", "--json"]).ok().json();
        let lines = shown["nodes"].as_array().unwrap().iter().flat_map(|node| node["lines"].as_array().unwrap());
        shown["in_force"] == true && lines.clone().count() == 9 && lines.clone().all(|line| line["bytes_per_s"] == 100u64 << 20)
    });
    for (asked, says) in [
        (&["0"] as &[_], "'0' is not a limit: write a rate (100MiB/s)"),
        (&["0%"], "would stop repair"),
        (&["150%"], "use 1% to 100%"),
        (&["10furlongs/s"], "write a rate (100MiB/s)"),
        (&["1KiB/s"], "1KiB/s is too low"),
        (&["--deadline", "0s"], "the deadline 0s is not in the future"),
        (&["--deadline", "-1h"], "the deadline -1h is not in the future"),
        (&["--deadline", "tomorrow"], "not a duration"),
        (&["50%", "--deadline", "2h"], "cannot be used with"),
    ] {
        let refused = cluster.weft(["repair", "limit"].iter().chain(asked));
        let told = &refused.stderr;
        assert!(refused.status.code() == Some(2) && told.contains(says), "{asked:?}: {told}");
    }
    let deadline = cluster.weft(["repair", "limit", "--deadline", "2h"]).ok().text().to_owned();
    assert!(deadline.contains("now, to finish in 1") || deadline.contains("now, to finish in 2 h"), "{deadline}");
    let none = cluster.weft(["repair", "limit", "none", "--json"]).ok().json();
    assert_eq!((&none["kind"], &none["in_force"]), (&"none".into(), &true.into()), "{none}");
}

#[test]
fn a_node_that_returns_during_its_repair_is_checked_and_keeps_its_right_blocks() {
    let cluster = Setup { racks: 1, ..Setup::nodes(8) }.with(&HEALS).up();
    let objects: Vec<(String, Vec<u8>)> = (0..6).map(|number| (format!("data-{number}"), bytes(8 << 20, 50 + number))).collect();
    objects.iter().for_each(|(key, content)| drop(cluster.put(key, content, &CODING).ok()));
    wait_for_healthy(&cluster);
    // Slow enough for the node to come back in the middle.
    cluster.weft(["repair", "limit", "256KiB/s"]).ok();
    let lost = cluster.blocks("data-0")[1].node.clone();
    let held: Vec<_> = cluster.files_of(&lost).into_iter().filter(|file| file.extension().is_none()).collect();
    cluster.kill(&lost);
    cluster.wait_for_state(&[&lost], "lost");
    let gone = held.last().expect("it holds blocks");
    std::fs::remove_file(gone).unwrap();
    cluster.up().ok();
    wait_for("the check to end", || {
        let told = cluster.weft(["status", "--json"]);
        let told: serde_json::Value = serde_json::from_slice(&told.stdout).unwrap_or_default();
        told["repair"]["returned_nodes"] == serde_json::json!([])
            && cluster.log("coordinator").contains("checked the blocks of a node")
    });
    assert!(cluster.log("coordinator").contains("found a bad block"), "the block that is gone");
    cluster.weft(["repair", "limit", "none"]).ok();
    wait_for("the block that is gone to be rebuilt", || cluster.log("coordinator").contains("rebuilt a block"));
    wait_for_healthy(&cluster);
    let rebuilt: usize = objects
        .iter()
        .map(|(key, content)| {
            cluster.expect(key, content, &[]);
            cluster.blocks(key).iter().filter(|block| block.generation > 1).count()
        })
        .sum();
    assert!((1..held.len()).contains(&rebuilt), "{rebuilt} of {} were rebuilt", held.len());
}
