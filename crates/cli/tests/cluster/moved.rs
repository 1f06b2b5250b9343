//! A disk that is pulled out of one node and put into another keeps its blocks.

use crate::harness::{Cluster, Running, Setup, bytes, path, wait_for};
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

const CODING: [&str; 6] = ["--code", "rs(2,1)", "--block-size", "64KiB", "--cell-size", "4KiB"];

impl Cluster {
    fn settings_of(&self, node: &str) -> PathBuf {
        self.dir().join("nodes").join(node).join("agent.toml")
    }

    /// From its next start on, an agent lists these disks.
    fn set_disks(&self, node: &str, disks: &[&str]) {
        let file = self.settings_of(node);
        let mut settings: toml::Table = fs::read_to_string(&file).expect("its settings").parse().expect("TOML");
        settings.insert("disks".into(), disks.iter().map(|disk| (*disk).to_owned()).collect::<Vec<_>>().into());
        fs::write(file, settings.to_string()).expect("it is ours");
    }

    /// Starts one agent; `weft cluster up` would start all.
    fn start_agent(&self, node: &str) -> Running {
        self.start(["agent", "--config", path(&self.settings_of(node))], Stdio::null())
    }

    /// The states of a node's disks, by the last part of their paths, and their blocks.
    fn disk_states(&self, node: &str) -> Vec<(String, String, u64)> {
        let disks = self.json(&["node", "disk", "ls", node]);
        let disk = |it: &serde_json::Value| {
            let [path, state] = [&it["path"], &it["state"]].map(|text| text.as_str().expect("a text").to_owned());
            let name = Path::new(&path).file_name().expect("a name").to_string_lossy().into_owned();
            (name, state, it["blocks"].as_u64().expect("a number"))
        };
        disks.as_array().expect("disks").iter().map(disk).collect()
    }

    /// Whether all blocks are where they can be read, as they were put.
    fn are_all_there(&self, keys: &[&str]) -> bool {
        keys.iter().flat_map(|key| self.blocks(key)).all(|block| block.state == "ok" && block.generation == 1)
    }
}

#[test]
fn a_disk_of_a_dead_node_is_served_by_another_node() {
    let cluster = Setup { racks: 1, ..Setup::nodes(5) }.up();
    let objects: Vec<(&str, Vec<u8>)> =
        ["a", "b", "c"].into_iter().enumerate().map(|(seed, key)| (key, bytes(1_500_000, seed as u64))).collect();
    for (key, content) in &objects {
        cluster.put(key, content, &CODING).ok();
    }
    let keys: Vec<&str> = objects.iter().map(|(key, _)| *key).collect();
    let on = |node: &str| keys.iter().flat_map(|key| cluster.blocks(key)).filter(|block| block.node == node).count() as u64;
    let held = on("node-02");
    assert!(held > 0);
    cluster.weft(["cluster", "add-node"]).ok();
    let nodes = cluster.dir().join("nodes");
    let moved = nodes.join("node-06/from-node-02");

    // The agent of the old node is killed, and its disk is put into the new one.
    cluster.kill("node-02");
    fs::rename(nodes.join("node-02/disk-0"), &moved).expect("the disk");
    cluster.kill("node-06");
    cluster.set_disks("node-06", &["disk-0", "from-node-02"]);
    let agent = cluster.start_agent("node-06");
    let is_served = || cluster.disk_states("node-06").contains(&("from-node-02".to_owned(), "ok".to_owned(), held));
    wait_for("the disk to be taken over", is_served);
    wait_for("nothing to be left", || cluster.disk_states("node-02").is_empty());
    assert!(cluster.are_all_there(&keys) && (on("node-02"), on("node-06")) == (0, held));
    for (key, content) in &objects {
        cluster.expect(key, content, &[]);
    }
    drop(agent);

    // The old node comes back, at first without the disk.
    cluster.set_disks("node-02", &["disk-1"]);
    fs::create_dir(nodes.join("node-02/disk-1")).expect("its place is free");
    cluster.up().ok();
    cluster.wait_for_state(&["node-02", "node-06"], "up");
    assert_eq!(cluster.disk_states("node-02"), [("disk-1".to_owned(), "ok".to_owned(), 0)]);
    wait_for("all to be there", || cluster.are_all_there(&keys));
    // The directory is in use, and a copy of it is another node's.
    cluster.kill("node-02");
    cluster.set_disks("node-02", &["disk-1", path(&moved)]);
    let refused = cluster.start_agent("node-02").end();
    let told = format!("{}{}", refused.text(), refused.stderr);
    assert!(!refused.status.success() && told.contains("is in use by another process"), "{told}");
    let copied = Command::new("cp").args(["-r", path(&moved), path(&nodes.join("node-02/copy"))]).status();
    assert!(copied.expect("cp").success());
    cluster.set_disks("node-02", &["disk-1", "copy"]);
    cluster.up().ok();
    let is_aside = |(name, state, _): &(String, String, u64)| name == "copy" && state == "aside";
    wait_for("the copy to be kept aside", || cluster.disk_states("node-02").iter().any(is_aside));
    let says = "of node-06, which is up and lists it as";
    for told in [&["status"][..], &["node", "ls"], &["node", "disk", "ls", "node-02"]] {
        let told = cluster.weft(told);
        assert!(told.text().contains(says) && told.text().contains("take it out of `disks`"), "{}", told.text());
    }
    assert!(cluster.log("node-02").contains("keeps a disk aside"), "{}", cluster.log("node-02"));
    assert!(cluster.are_all_there(&keys) && on("node-06") == held);
    for (key, content) in &objects {
        cluster.expect(key, content, &[]);
    }

    // If the new node gives the disk up, the old one has it again, with its blocks.
    cluster.kill("node-06");
    cluster.set_disks("node-06", &["disk-0"]);
    cluster.up().ok();
    wait_for("the disk to be taken back", || {
        cluster.disk_states("node-02").contains(&("copy".to_owned(), "ok".to_owned(), held))
    });
    wait_for("all blocks to have followed", || cluster.are_all_there(&keys) && on("node-02") == held);
    for (key, content) in &objects {
        cluster.expect(key, content, &[]);
    }
}
