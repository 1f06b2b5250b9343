//! Puts whose client dies, and puts that continue although a node dies or hangs.

use crate::harness::{Cluster, Setup, bytes, path, send_signal, wait_for};
use std::{collections::BTreeSet, io::Write as _, process::Stdio, time::Duration};
use tokio::time::Instant;

const CODING: [&str; 6] = ["--code", "rs(4,2)", "--block-size", "256KiB", "--cell-size", "64KiB"];
const STRIPE: usize = 1 << 20;
const MIB: usize = 1 << 20;

#[test]
fn a_put_that_dies_half_way_leaves_nothing() {
    let cluster = Setup::nodes(7).gated().with(&[("WEFT_COORDINATOR_UPLOAD_LEASE_MS", "1500")]).up();
    let kept = bytes(2 * STRIPE, 1);
    cluster.put("kept", &kept, &CODING).ok();
    let before: BTreeSet<_> = cluster.files().into_iter().collect();

    // One put overwrites a visible object and dies between two stripes; one has a new name and dies in the middle of a stripe.
    let mut over = cluster.start(["put", "-", "kept"].iter().chain(&CODING), Stdio::piped());
    let pipe = over.child().stdin.as_mut().expect("a pipe");
    pipe.write_all(&bytes(3 * STRIPE + 1000, 2)).expect("the put reads on");
    wait_for("two stripes to be stored", || cluster.files().len() >= before.len() + 2 * 6 * 2);
    let file = cluster.write("new", &bytes(64 * STRIPE, 3));
    cluster.links.let_pass(12 * MIB);
    let mut new = cluster.start(["put", path(&file), "new", "--code", "rs(4,2)", "--block-size", "4MiB"], Stdio::null());
    let _writes = node_in_the_middle(&cluster);
    cluster.weft(["stat", "new"]).refused(3, &["no object new"]);
    for put in [&mut over, &mut new] {
        send_signal(put.child().id(), "KILL");
    }
    drop((over, new));
    cluster.links.let_all_pass();

    cluster.weft(["stat", "new"]).refused(3, &["no object new"]);
    cluster.expect("kept", &kept, &[]);
    wait_for("the sweep", || cluster.files().into_iter().collect::<BTreeSet<_>>() == before);
    cluster.weft(["get", "new", path(&cluster.file("out"))]).refused(3, &["no object new"]);
    assert!(!cluster.file("out").exists());
    cluster.expect("kept", &kept, &[]);
}

#[test]
fn a_put_goes_on_without_a_node_that_dies_or_stands_still() {
    let cluster = Setup::nodes(10).gated().up();
    for (key, signal) in [("killed", "KILL"), ("stopped", "STOP")] {
        let content = bytes(48 << 20, 4);
        let file = cluster.write("data", &content);
        // The gate lets half of the first stripe pass.
        cluster.links.let_pass(12 * MIB);
        let put = cluster.start(
            ["put", path(&file), key, "--code", "rs(4,2)", "--block-size", "4MiB", "--cell-size", "256KiB"],
            Stdio::null(),
        );
        let victim = node_in_the_middle(&cluster);
        cluster.signal(&victim, signal);
        cluster.links.let_all_pass();
        put.end().ok();

        let blocks = cluster.blocks(key);
        assert_eq!(blocks.len(), 3 * 6);
        for block in &blocks {
            assert!(block.node != victim && block.state == "ok", "{block:?}");
            assert_eq!(cluster.payload(block).metadata().expect("it is there").len(), 4 << 20, "{block:?}");
        }
        // The stripe has full redundancy: it survives m losses.
        let stripe: Vec<&str> = blocks[..2].iter().map(|block| block.node.as_str()).collect();
        cluster.take_down(&stripe);
        cluster.expect(key, &content, &[]);
        if signal == "STOP" {
            cluster.signal(&victim, "CONT");
        }
        cluster.up().ok();
        cluster.expect(key, &content, &[]);
    }
}

#[test]
fn a_put_whose_data_is_slow_to_come_outlives_its_lease() {
    let cluster = Setup::nodes(6).with(&[("WEFT_COORDINATOR_UPLOAD_LEASE_MS", "1500")]).up();
    let content = bytes(4 * STRIPE, 5);
    let mut put = cluster.start(["put", "-", "data"].iter().chain(&CODING), Stdio::piped());
    let pipe = put.child().stdin.as_mut().expect("a pipe");
    pipe.write_all(&content[..2 * STRIPE]).expect("the put reads on");
    std::thread::sleep(Duration::from_millis(4000));
    pipe.write_all(&content[2 * STRIPE..]).expect("the put reads on");
    put.end().ok();
    cluster.expect("data", &content, &[]);
}

#[test]
fn a_put_that_is_interrupted_is_aborted_at_once() {
    // The lease is ten minutes: only the client's abort can end the put sooner.
    let cluster = Setup::nodes(6).up();
    let mut put = cluster.start(["put", "-", "data", "--json"].iter().chain(&CODING), Stdio::piped());
    put.child().stdin.as_mut().expect("a pipe").write_all(&bytes(4 * STRIPE, 6)).expect("the put reads on");
    wait_for("a stripe to be stored", || cluster.files().len() >= 2 * 6);
    send_signal(put.child().id(), "INT");
    // Its standard input stays open, and the command does not wait for it.
    wait_for("the put to end", || !put.is_running());
    let ended = put.end().refused(130, &["interrupted"]);
    let told: serde_json::Value = serde_json::from_str(&ended.stderr).expect("one object");
    assert_eq!((&told["error"]["kind"], &told["error"]["exit_code"]), (&"interrupted".into(), &130.into()));
    wait_for("all blocks to be removed", || cluster.files().is_empty());
}

/// A node that has received more than a MiB of its block. The gate holds up the rest.
fn node_in_the_middle(cluster: &Cluster) -> String {
    let mut found = None;
    wait_for("a node to have received a MiB", || {
        found = cluster.nodes().into_iter().find(|node| cluster.has_written(node, 1 << 20));
        found.is_some()
    });
    found.unwrap()
}

#[test]
fn a_put_with_an_early_ack_does_not_wait_for_who_stands_still_and_is_completed() {
    // A stall takes half a minute, so the put must not wait for it. No node is spare.
    let stall = [("WEFT_COORDINATOR_STALL_MS", "30000"), ("WEFT_COORDINATOR_SUSPECT_MS", "60000")];
    let cluster = Setup::nodes(6).gated().with(&stall).up();
    let content = bytes(64 << 20, 7);
    let file = cluster.write("data", &content);
    let coding = ["--code", "rs(4,2)", "--block-size", "16MiB", "--cell-size", "256KiB", "--ack", "k+1"];
    let begun = Instant::now();
    cluster.links.let_pass(24 * MIB);
    let put = cluster.start(["put", path(&file), "data", "--json"].iter().chain(&coding), Stdio::null());
    let victim = node_in_the_middle(&cluster);
    cluster.signal(&victim, "STOP");
    cluster.links.let_all_pass();
    let stored = put.end().ok().json();
    assert!(begun.elapsed() < Duration::from_secs(12), "{:?}", begun.elapsed());
    assert_eq!((&stored["complete"], &stored["incomplete_stripes"]), (&false.into(), &1.into()), "{stored}");
    let left = &stored["incomplete"]["blocks"];
    assert_eq!(left.as_array().map(Vec::len), Some(1), "{stored}");

    // All processes are killed, including the stopped node's, and start again.
    let nodes = cluster.nodes();
    nodes.iter().map(String::as_str).chain(["coordinator"]).for_each(|name| cluster.kill(name));
    cluster.up().ok();
    let stat = cluster.stat("data");
    assert!(stat["complete"] == true || stat["incomplete"][0]["blocks"] == *left, "{stat}");
    cluster.expect("data", &content, &[]);
    wait_for("the object to be complete", || cluster.stat("data")["complete"] == true);
    let blocks = cluster.blocks("data");
    assert!(blocks.iter().all(|block| block.state == "ok"), "{blocks:?}");
    let text = String::from_utf8(cluster.weft(["stat", "data"]).ok().stdout).expect("text");
    assert!(!text.contains("not stored yet"), "{text}");
    // The object has full redundancy: it survives m losses.
    let two: Vec<&str> = blocks[..2].iter().map(|block| block.node.as_str()).collect();
    cluster.take_down(&two);
    cluster.expect("data", &content, &[]);
}

#[test]
fn what_is_on_its_way_is_told() {
    let stall = [("WEFT_COORDINATOR_STALL_MS", "30000"), ("WEFT_COORDINATOR_SUSPECT_MS", "60000")];
    let cluster = Setup::nodes(6).gated().with(&stall).up();
    cluster.weft(["put", "/etc/hostname", "x", "--ack", "k+3", "--code", "rs(4,2)"]).refused(2, &["rs(4,2) has k+2 blocks"]);
    cluster.weft(["put", "/etc/hostname", "x", "--ack", "soon", "--code", "rs(4,2)"]).refused(2, &["k+N", "tolerate=N"]);
    cluster.weft(["policy", "create", "quick", "--code", "rs(4,2)", "--block-size", "16MiB", "--ack", "k+1"]).ok();
    cluster.weft(["bucket", "create", "quick", "--policy", "quick"]).ok();
    let content = bytes(64 << 20, 8);
    let file = cluster.write("data", &content);
    cluster.links.let_pass(24 * MIB);
    let put = cluster.start(["put", path(&file), "quick/data"], Stdio::null());
    let victim = node_in_the_middle(&cluster);
    cluster.signal(&victim, "STOP");
    cluster.links.let_all_pass();
    let told = String::from_utf8(put.end().ok().stdout).expect("text");
    assert!(told.contains("acknowledged before 1 of 6 blocks of stripe 0 were stored"), "{told}");
    let text = String::from_utf8(cluster.weft(["stat", "quick/data"]).ok().stdout).expect("text");
    assert!(text.contains("0 of 1 stripes are complete; not stored yet: block "), "{text}");
    cluster.signal(&victim, "CONT");
    wait_for("the object to be complete", || cluster.stat("quick/data")["complete"] == true);
    cluster.expect("quick/data", &content, &[]);
}
