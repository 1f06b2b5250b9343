//! `weft write`: bytes of an object are overwritten in place.

use crate::harness::{Setup, bytes, path, send_signal, wait_for};
use std::{io::Write as _, process::Stdio};

const CODING: [&str; 6] = ["--code", "rs(4,2)", "--block-size", "512KiB", "--cell-size", "64KiB"];
const MIB: usize = 1 << 20;
/// Small, so that it is made soon.
const JOURNAL: [(&str, &str); 1] = [("WEFT_AGENT_LIMITS__UPDATE_JOURNAL", "128MiB")];

#[test]
fn bytes_are_overwritten_in_place_also_while_nodes_die() {
    let cluster = Setup::nodes(8).with(&JOURNAL).up();
    let mut content = bytes(5 * MIB, 1);
    cluster.put("data", &content, &CODING).ok();
    let new = bytes(MIB + 5000, 2);
    let file = cluster.write("new", &new);
    let write = |offset: &'static str| ["write", path(&file), "data", "--offset", offset, "--json"].map(str::to_owned);

    let plan = cluster.weft(write("100000").into_iter().chain(["--explain".to_owned()])).ok().json();
    assert_eq!((&plan["updates"], &plan["client_bytes"]), (&2.into(), &(new.len() as u64).into()));
    cluster.expect("data", &content, &[]);

    let wrote = cluster.weft(write("100000")).ok().json();
    assert_eq!((&wrote["bytes"], &wrote["updates"], &wrote["offset"]), (&plan["bytes"], &2.into(), &100_000.into()));
    content[100_000..100_000 + new.len()].copy_from_slice(&new);
    cluster.expect("data", &content, &[]);

    // The end of the object, and beyond.
    let end = content.len() - new.len();
    cluster.weft(write("4MiB")).refused(2, &["beyond the end", "0-5242879"]);
    cluster.weft(["write", path(&file), "data", "--offset", &end.to_string()]).ok();
    content[end..].copy_from_slice(&new);

    // A node with a block dies while the stripe is open: the write continues without it.
    let victim = cluster.blocks("data")[0].node.clone();
    cluster.kill(&victim);
    cluster.weft(write("5000")).ok();
    content[5000..5000 + new.len()].copy_from_slice(&new);
    cluster.expect("data", &content, &[]);
    let other = cluster.blocks("data").iter().map(|block| block.node.clone()).find(|node| *node != victim).unwrap();
    cluster.take_down(&[&other]);
    cluster.expect("data", &content, &[]);
    cluster.up().ok();
    cluster.expect("data", &content, &[]);
    // Nothing is repaired without a person here, except for a block that is written.
    cluster.weft(["repair", "object", "data"]).ok();
    cluster.expect("data", &content, &[]);
    let scrub = cluster.weft(["scrub", "--json"]).ok().json();
    assert_eq!(scrub["state"], "done", "{scrub}");
}

#[test]
fn an_interrupted_write_says_what_is_written() {
    let cluster = Setup::nodes(6).with(&JOURNAL).up();
    let mut content = bytes(4 * MIB, 3);
    cluster.put("data", &content, &CODING).ok();
    let mut write = cluster.start(["write", "-", "data", "--offset", "0"], Stdio::piped());
    let new = bytes(MIB + MIB / 2, 4);
    write.child().stdin.as_mut().expect("a pipe").write_all(&new).expect("the write reads on");
    // Its first MiB is complete, and the next is not. Reads settle the stripe meanwhile.
    let is_there = |content: &[u8]| {
        let out = cluster.file("out");
        cluster.weft(["get", "data", path(&out)]).ok();
        std::fs::read(&out).expect("it is there")[..MIB] == content[..MIB]
    };
    wait_for("the first update", || is_there(&new));
    send_signal(write.child().id(), "INT");
    write.end().refused(130, &["interrupted: bytes 0-1048575 are written"]);
    content[..MIB].copy_from_slice(&new[..MIB]);
    cluster.expect("data", &content, &[]);
}
