//! Puts that die, and puts that go on although a node does.

use crate::harness::{Cluster, Running, Setup, bytes, path, send_signal, wait_for};
use std::{collections::BTreeSet, io::Write as _, process::Stdio, time::Duration};

const CODING: [&str; 6] = ["--code", "rs(4,2)", "--block-size", "256KiB", "--cell-size", "64KiB"];
const STRIPE: usize = 1 << 20;

#[test]
fn a_put_that_dies_half_way_leaves_nothing() {
    let cluster = Setup::nodes(7).with(&[("WEFT_COORDINATOR_UPLOAD_LEASE_MS", "1500")]).up();
    let kept = bytes(2 * STRIPE, 1);
    cluster.put("kept", &kept, &CODING).ok();
    let before: BTreeSet<_> = cluster.files().into_iter().collect();

    // One over a visible object between two stripes, one under a new name while a stripe is on its way.
    let mut over = cluster.start(["put", "-", "kept"].iter().chain(&CODING), Stdio::piped());
    let pipe = over.child().stdin.as_mut().expect("a pipe");
    pipe.write_all(&bytes(3 * STRIPE + 1000, 2)).expect("it reads on");
    wait_for("two stripes to be stored", || cluster.files().len() >= before.len() + 2 * 6 * 2);
    let file = cluster.write("new", &bytes(64 * STRIPE, 3));
    let mut new = cluster.start(["put", path(&file), "new", "--code", "rs(4,2)", "--block-size", "4MiB"], Stdio::null());
    wait_for("a stripe to be on its way", || cluster.nodes().iter().any(|node| cluster.is_writing(node)) || !new.is_running());
    cluster.weft(["stat", "new"]).refused(3, &["no object new"]);
    for put in [&mut over, &mut new] {
        assert!(put.is_running(), "a put was faster than the test");
        send_signal(put.child().id(), "KILL");
    }
    drop((over, new));

    cluster.weft(["stat", "new"]).refused(3, &["no object new"]);
    cluster.expect("kept", &kept, &[]);
    wait_for("the sweep", || cluster.files().into_iter().collect::<BTreeSet<_>>() == before);
    cluster.weft(["get", "new", path(&cluster.file("out"))]).refused(3, &["no object new"]);
    assert!(!cluster.file("out").exists());
    cluster.expect("kept", &kept, &[]);
}

#[test]
fn a_put_goes_on_without_a_node_that_dies_or_stands_still() {
    let cluster = Setup::nodes(10).up();
    for (key, signal) in [("killed", "KILL"), ("stopped", "STOP")] {
        let content = bytes(48 << 20, 4);
        let file = cluster.write("data", &content);
        let mut put = cluster.start(
            ["put", path(&file), key, "--code", "rs(4,2)", "--block-size", "4MiB", "--cell-size", "256KiB"],
            Stdio::null(),
        );
        let victim = writing_node(&cluster, &mut put);
        cluster.signal(&victim, signal);
        assert!(put.is_running(), "the put was faster than the test");
        put.end().ok();

        let blocks = cluster.blocks(key);
        assert_eq!(blocks.len(), 3 * 6);
        for block in &blocks {
            assert!(block.node != victim && block.state == "ok", "{block:?}");
            assert_eq!(cluster.payload(block).metadata().expect("it is there").len(), 4 << 20, "{block:?}");
        }
        // It is as good as any other stripe: m more losses do no harm.
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
    pipe.write_all(&content[..2 * STRIPE]).expect("it reads on");
    std::thread::sleep(Duration::from_millis(4000));
    pipe.write_all(&content[2 * STRIPE..]).expect("it reads on");
    put.end().ok();
    cluster.expect("data", &content, &[]);
}

#[test]
fn a_put_that_is_broken_off_is_given_up_at_once() {
    // The lease is ten minutes: only the client's own word can end the put sooner.
    let cluster = Setup::nodes(6).up();
    let mut put = cluster.start(["put", "-", "data", "--json"].iter().chain(&CODING), Stdio::piped());
    put.child().stdin.as_mut().expect("a pipe").write_all(&bytes(4 * STRIPE, 6)).expect("it reads on");
    wait_for("a stripe to be stored", || cluster.files().len() >= 2 * 6);
    send_signal(put.child().id(), "INT");
    // Its standard input stays open: nobody waits for it.
    wait_for("the put to end", || !put.is_running());
    let ended = put.end().refused(130, &["interrupted"]);
    let told: serde_json::Value = serde_json::from_str(&ended.stderr).expect("one object");
    assert_eq!((&told["error"]["kind"], &told["error"]["exit_code"]), (&"interrupted".into(), &130.into()));
    wait_for("all of it to be removed", || cluster.files().is_empty());
}

/// A node that is in the middle of receiving a block.
fn writing_node(cluster: &Cluster, put: &mut Running) -> String {
    let nodes = cluster.nodes();
    let mut found = None;
    wait_for("somebody to write", || {
        found = nodes.iter().find(|node| cluster.is_writing(node)).cloned();
        found.is_some() || !put.is_running()
    });
    found.expect("the put was faster than the test")
}
