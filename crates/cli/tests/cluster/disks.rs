//! Disks that are really full, and the quarantine.

use crate::harness::{Cluster, Setup, bytes, path, wait_for};
use std::{fs, path::PathBuf};

const MIB: usize = 1 << 20;
const CODING: [&str; 6] = ["--code", "rs(2,1)", "--block-size", "4MiB", "--cell-size", "1MiB"];
const NO_RESERVE: [(&str, &str); 2] = [("WEFT_COORDINATOR_DISK_RESERVE", "0"), ("WEFT_COORDINATOR_REBUILD_RESERVE", "off")];

/// Replaces disks by small ones, each given by node, bytes and files. Returns `None` if the machine does not allow it.
fn small_disks(cluster: &mut Cluster, disks: &[(&str, usize, u32)]) -> Option<Vec<PathBuf>> {
    let nodes: Vec<&str> = disks.iter().map(|(node, _, _)| *node).collect();
    cluster.take_down(&nodes);
    let mut mounted = Vec::new();
    for (node, size, files) in disks {
        let disk = cluster.dir().join("nodes").join(node).join("disk-0");
        if let Err(why) = cluster.mount(&disk, *size, *files) {
            eprintln!("skipped: small disks cannot be mounted, which needs root: {why}");
            return None;
        }
        mounted.push(disk);
    }
    cluster.up().ok();
    cluster.wait_for_state(&nodes, "up");
    Some(mounted)
}

/// Fills a disk up to `left` free bytes, and waits until the coordinator knows.
fn fill_up(cluster: &Cluster, disk: &std::path::Path, left: u64) {
    let filler = disk.join("filler");
    let free = || rustix::fs::statvfs(disk).map(|stat| stat.f_bavail * stat.f_frsize).expect("a disk");
    let size = free().checked_sub(left).expect("more space is free") as usize;
    fs::write(filler, vec![1; size]).expect("there is room");
    assert_eq!(free(), left);
    wait_for_free(cluster, disk, |bytes| bytes == left);
}

/// Waits until the coordinator knows the free space of a disk.
fn wait_for_free(cluster: &Cluster, disk: &std::path::Path, holds: impl Fn(u64) -> bool) {
    wait_for("the coordinator to know the free space", || {
        let nodes = cluster.weft(["node", "ls", "--json"]).ok().json();
        let mut disks = nodes.as_array().expect("nodes").iter().flat_map(|node| node["disks"].as_array().expect("disks"));
        disks.any(|it| it["path"] == path(disk) && it["free_bytes"].as_u64().is_some_and(&holds))
    });
}

#[test]
fn a_disk_that_fills_up_during_a_put_is_gone_around() {
    let mut cluster = Setup { racks: 1, ..Setup::nodes(4) }.with(&NO_RESERVE).up();
    let disks = [("node-01", 16, 0), ("node-02", 6, 0), ("node-03", 16, 0), ("node-04", 16, 0)];
    let Some(disks) = small_disks(&mut cluster, &disks.map(|(node, size, files)| (node, size * MIB, files))) else { return };
    // The disk has the largest share of free space: it has room for a block, but not for its sidecar.
    fill_up(&cluster, &disks[1], 4 * MIB as u64);
    for disk in [&disks[0], &disks[2], &disks[3]] {
        fill_up(&cluster, disk, 9 * MIB as u64);
    }
    let content = bytes(8 * MIB, 1);
    put_around(&cluster, "key", &content);

    // Once it has free space again, the disk gets blocks like any other.
    fs::remove_file(disks[1].join("filler")).expect("it was there");
    let content = bytes(MIB, 9);
    wait_for("a block on node-02", || {
        // The other disks are nearly full, and overwritten blocks are removed with a delay: sometimes there is no room.
        let put = cluster.put("more", &content, &CODING);
        put.status.success() && cluster.blocks("more").iter().any(|block| block.node == "node-02")
    });
    cluster.expect("more", &content, &[]);
}

#[test]
fn a_disk_that_takes_no_more_files_is_gone_around() {
    let mut cluster = Setup { racks: 1, ..Setup::nodes(4) }.with(&NO_RESERVE).up();
    let Some(disks) = small_disks(&mut cluster, &[("node-02", 64 * MIB, 64)]) else { return };
    let filler = disks[0].join("filler");
    fs::create_dir(&filler).expect("there is room");
    let full = (0..64).find(|number| fs::write(filler.join(number.to_string()), "").is_err());
    assert!(full.is_some(), "the disk accepts any number of files");
    for number in 0..3 {
        put_around(&cluster, &format!("key-{number}"), &bytes(8 * MIB, number));
    }
}

/// Puts an object. The put tries the full disk of node-02, then stores all blocks on other nodes.
fn put_around(cluster: &Cluster, key: &str, content: &[u8]) {
    cluster.put(key, content, &CODING).ok();
    let blocks = cluster.blocks(key);
    assert!(blocks.len() == 3 && blocks.iter().all(|block| block.state == "ok" && block.node != "node-02"), "{blocks:?}");
    cluster.expect(key, content, &[]);
    assert!(
        cluster.log("coordinator").contains("the disk is full"),
        "no put tried the full disk: {}",
        cluster.log("coordinator")
    );
    wait_for("the unfinished blocks to be removed", || cluster.files_of("node-02").is_empty());
}

#[test]
fn a_put_that_has_nowhere_else_to_go_names_the_node_and_the_disk_that_is_full() {
    let mut cluster = Setup::nodes(3).with(&NO_RESERVE).up();
    let kept = bytes(8 * MIB, 1);
    cluster.put("kept", &kept, &CODING).ok();
    let Some(disks) = small_disks(&mut cluster, &[("node-03", 16 * MIB, 0)]) else { return };
    let disk = &disks[0];
    // Either the write finds the disk full and no other node is left, or the disk has no room when the put begins.
    for left in [4 * MIB as u64, 8192] {
        fill_up(&cluster, disk, left);
        let before = cluster.files().len();
        let refused = cluster.put("new", &bytes(8 * MIB, 2), &CODING);
        assert_eq!(refused.status.code(), Some(7), "{}", refused.stderr);
        for said in ["node-03", path(disk), "new"] {
            assert!(refused.stderr.contains(said), "'{said}' is missing with {left} bytes left: {}", refused.stderr);
        }
        wait_for("the blocks of the failed put to be removed", || cluster.files().len() == before);
        fs::remove_file(disk.join("filler")).expect("it was there");
    }
    wait_for_free(&cluster, disk, |bytes| bytes > 4 * MIB as u64);
    // Stored data can be read, and smaller objects can be written.
    cluster.expect("kept", &kept, &[]);
    cluster.put("small", &bytes(MIB, 3), &CODING).ok();
    cluster.expect("small", &bytes(MIB, 3), &[]);
}

#[test]
fn blocks_in_quarantine_are_counted() {
    let cluster = Setup::nodes(3).with(&[("WEFT_COORDINATOR_ORPHAN_CHECK_INTERVAL_MS", "500")]).up();
    let content = bytes(MIB, 1);
    cluster.put("old", &content, &CODING).ok();
    let block = cluster.blocks("old").remove(0);
    let payload = cluster.payload(&block);
    let sidecar = PathBuf::from(format!("{}.meta", path(&payload)));
    let files = [sidecar, payload].map(|file| (fs::read(&file).expect("a file"), file));
    cluster.put("new", &content, &CODING).ok();
    cluster.weft(["rm", "old"]).ok();
    wait_for("the old blocks to be removed", || cluster.files().len() == 2 * cluster.blocks("new").len());
    for (copy, file) in &files {
        fs::write(file, copy).expect("there is room");
    }
    let quarantined = || {
        let nodes = cluster.weft(["node", "ls", "--json"]).ok().json();
        let node = nodes.as_array().expect("nodes").iter().find(|node| node["name"] == *block.node).cloned().expect("the node");
        (node["disks"][0]["quarantined_blocks"].as_u64(), node["disks"][0]["quarantined_bytes"].as_u64())
    };
    wait_for("the unknown block to be quarantined", || quarantined().0 == Some(1));
    assert_eq!(quarantined().1, Some(files[1].0.len() as u64));
    let table = String::from_utf8(cluster.weft(["node", "ls"]).ok().stdout).expect("text");
    let row = table.lines().find(|row| row.contains(&block.node)).expect("the node's row");
    assert!(table.contains("quarantined") && row.contains("1 ("), "{table}");
    assert!(cluster.log("coordinator").contains("does not know"), "{}", cluster.log("coordinator"));
    cluster.expect("new", &content, &[]);
}
