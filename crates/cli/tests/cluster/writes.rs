//! `weft write`: bytes of an object are overwritten in place.

use crate::{
    harness::{Cluster, Setup, bytes, path, send_signal, wait_for},
    metrics::coordinator,
};
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
    cluster.weft(write("6MiB")).refused(2, &["beyond the end", "0-5242879", "must not leave a gap"]);
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
fn a_node_that_missed_a_write_keeps_what_it_did_not_change() {
    // No other node can take its block.
    let cluster = Setup::nodes(6).with(&JOURNAL).up();
    let mut content = bytes(16 * MIB, 7);
    cluster.put("data", &content, &["--code", "rs(4,2)", "--block-size", "4MiB", "--cell-size", "4MiB"]).ok();
    let parity = cluster.blocks("data")[5].clone();
    cluster.take_down(&[&parity.node]);
    let new = bytes(1000, 8);
    let file = cluster.write("new", &new);
    cluster.weft(["write", path(&file), "data", "--offset", "1048600"]).ok();
    content[1_048_600..][..new.len()].copy_from_slice(&new);
    cluster.expect("data", &content, &[]);
    assert_ne!(cluster.blocks("data")[5].state, "ok");

    cluster.up().ok();
    let repaired = cluster.json(&["repair", "object", "data"]);
    let kept = format!("kept_bytes={}", 3 * MIB);
    assert!(cluster.log("coordinator").contains(&kept), "{}", cluster.log("coordinator"));
    assert_eq!(repaired["bytes_moved"], 4 * MIB, "one MiB of each of four blocks: {repaired}");
    let rebuilt = cluster.blocks("data")[5].clone();
    assert_eq!((rebuilt.state.as_str(), &rebuilt.node), ("ok", &parity.node));
    assert!(rebuilt.generation > parity.generation);

    // It is what the others say, and helps to read what they lack.
    let scrub = cluster.json(&["scrub"]);
    assert_eq!(scrub["state"], "done", "{scrub}");
    let others: Vec<String> = cluster.blocks("data")[..2].iter().map(|block| block.node.clone()).collect();
    cluster.take_down(&others.iter().map(String::as_str).collect::<Vec<_>>());
    cluster.expect("data", &content, &[]);
}

#[test]
fn an_interrupted_write_says_what_is_written() {
    let cluster = Setup::nodes(6).with(&JOURNAL).up();
    let mut content = bytes(4 * MIB, 3);
    cluster.put("data", &content, &CODING).ok();
    let mut write = cluster.start(["write", "-", "data", "--offset", "0"], Stdio::piped());
    let new = bytes(MIB + MIB / 2, 4);
    // It stays open: at the end of its input, the write would begin the second update.
    let mut pipe = write.child().stdin.take().expect("a pipe");
    pipe.write_all(&new).expect("the write reads on");
    // Its first MiB is complete, and the next is not.
    let is_there = |content: &[u8]| {
        let out = cluster.file("out");
        cluster.weft(["get", "data", path(&out)]).ok();
        std::fs::read(&out).expect("it is there")[..MIB] == content[..MIB]
    };
    wait_for("the first update", || is_there(&new));
    send_signal(write.child().id(), "INT");
    let ended = write.end().code(130);
    drop(pipe);
    // On a slow machine, it has shown its progress before.
    assert_eq!(ended.stderr.lines().last(), Some("weft: interrupted: bytes 0-1048575 are written"), "{}", ended.stderr);
    content[..MIB].copy_from_slice(&new[..MIB]);
    cluster.expect("data", &content, &[]);
}

/// The calls of clients that the coordinator has answered.
fn calls(cluster: &Cluster, labels: &[&str]) -> f64 {
    let labels = [&["service=\"Weft\""], labels].concat();
    coordinator(cluster).sum("weft_rpc_seconds_count", &labels).unwrap_or(0.0)
}

#[test]
fn updates_need_no_call_to_the_coordinator_once_their_stripe_is_open() {
    const UPDATES: usize = 1000;
    let cluster = Setup::nodes(6).with(&JOURNAL).up();
    let mut content = bytes(2 * UPDATES * 4096, 5);
    cluster.put("data", &content, &["--code", "rs(4,2)", "--block-size", "1MiB", "--cell-size", "64KiB"]).ok();
    let new = bytes(UPDATES * 4096, 6);
    let file = cluster.write("new", &new);
    let opened = |cluster: &Cluster| calls(cluster, &["method=\"OpenForUpdates\""]);
    let (before, before_opened) = (calls(&cluster, &[]), opened(&cluster));
    let wrote = cluster.json(&["write", path(&file), "data", "--offset", "0", "--atomic", "4KiB"]);
    assert_eq!(wrote["updates"], UPDATES);
    let (after, after_opened) = (calls(&cluster, &[]), opened(&cluster));
    // All are in one stripe. While it is being opened, the coordinator is asked again.
    assert!((1.0..5.0).contains(&(after_opened - before_opened)), "{before_opened} and then {after_opened} leases");
    // The command, and the questions where metrics are, make some calls of their own.
    assert!((1.0..20.0).contains(&(after - before)), "{} calls for {UPDATES} updates", after - before);
    content[..new.len()].copy_from_slice(&new);
    cluster.expect("data", &content, &[]);
}

#[test]
fn changes_travel_as_the_command_says() {
    // The smaller journal does not take updates of 2 MiB.
    let cluster = Setup::nodes(8).with(&[("WEFT_AGENT_LIMITS__UPDATE_JOURNAL", "256MiB")]).up();
    let mut content = bytes(16 * MIB, 7);
    cluster.put("data", &content, &["--code", "rs(4,4)", "--block-size", "4MiB", "--cell-size", "1MiB"]).ok();
    let homes = cluster.blocks("data");
    for (seed, scheme) in (8..).zip(["pipeline", "tree", "star", "chain", "concurrent-star", "auto"]) {
        let new = bytes(2 * MIB, seed);
        let file = cluster.write("new", &new);
        let asked = ["write", path(&file), "data", "--offset", "1MiB", "--atomic", "2MiB", "--scheme", scheme];
        let explained = cluster.json(&[&asked[..], &["--explain"]].concat());
        let way = &explained["stripes"][0]["ways"][0];
        assert_eq!((&way["block"], &way["bytes"], &explained["updates"]), (&1.into(), &(2 * MIB).into(), &1.into()));
        assert!(way["seconds"].as_f64().is_some_and(|seconds| seconds > 0.0), "{way}");
        let considered = way["considered"].as_array().expect("schemes");
        match scheme {
            "auto" => assert!(considered.len() > 4, "{way}"),
            named => assert_eq!((&way["scheme"], considered.len()), (&named.into(), 1), "{way}"),
        }
        // Each parity gets the change once, from a node that has it.
        let mut reached = vec![1];
        for hop in way["hops"].as_array().expect("hops") {
            let block = |end: &str| hop[end]["block"].as_u64().expect("a block");
            assert!(reached.contains(&block("from")) && !reached.contains(&block("to")), "{way}");
            let home = homes.iter().find(|home| home.index as u64 == block("to")).expect("a block");
            assert_eq!(hop["to"]["name"], home.node, "{way}");
            assert!(hop["to"]["rack"].as_str().is_some_and(|rack| !rack.is_empty()), "{way}");
            reached.push(block("to"));
        }
        reached.sort_unstable();
        assert_eq!(reached, [1, 4, 5, 6, 7], "by {scheme}");
        let text = cluster.weft([&asked[..], &["--explain"]].concat()).ok();
        assert!(text.text().contains("change of block 1 in an update of 2.0 MiB") && text.text().contains(" → block 4 on "));

        assert_eq!(cluster.json(&asked)["updates"], 1, "one atomic update");
        content[MIB..3 * MIB].copy_from_slice(&new);
        cluster.expect("data", &content, &[]);
    }
    let file = cluster.write("new", &[1; 10]);
    let asked = ["write", path(&file), "data", "--offset", "0"];
    for (wrong, says) in [
        (["--scheme", "pigeon"], "no update scheme 'pigeon'"),
        (["--path", "worst"], "only be chosen for the scheme pipeline"),
        (["--atomic", "17MiB"], "the range is 1 byte to 16MiB"),
        (["--slice-size", "1000"], "must be a multiple of 4KiB"),
    ] {
        cluster.weft([&asked[..], &wrong].concat()).refused(2, &[says]);
    }
    let scrub = cluster.json(&["scrub"]);
    assert_eq!(scrub["state"], "done", "{scrub}");
    cluster.expect("data", &content, &[]);
}

#[test]
fn reads_leave_a_stripe_open_that_is_written() {
    let cluster = Setup::nodes(6).with(&JOURNAL).up();
    let mut content = bytes(4 * MIB, 9);
    cluster.put("data", &content, &["--code", "rs(4,2)", "--block-size", "1MiB", "--cell-size", "64KiB"]).ok();
    let count = |name: &str, labels: &[&str]| coordinator(&cluster).sum(name, labels).unwrap_or(0.0);
    let out = cluster.file("out");
    let read = |range: std::ops::Range<usize>, content: &[u8]| {
        let text = format!("{}-{}", range.start, range.end - 1);
        cluster.weft(["get", "data", path(&out), "--range", &text]).ok();
        assert!(std::fs::read(&out).expect("it is there") == content[range], "other bytes {text}");
    };
    for round in 0..10 {
        let (offset, new) = (round * 300_000, bytes(5000, 10 + round as u64));
        let file = cluster.write("new", &new);
        cluster.weft(["write", path(&file), "data", "--offset", &offset.to_string()]).ok();
        content[offset..offset + new.len()].copy_from_slice(&new);
        // In one block, in several, and all of the object.
        read(offset + 10..offset + 20, &content);
        read(offset..offset + 200_000, &content);
        cluster.expect("data", &content, &[]);
    }
    assert_eq!((count("weft_stripes_opened_total", &[]), count("weft_stripes_settled_total", &[])), (1.0, 0.0));
    assert_eq!(count("weft_open_stripe_reads_total", &["outcome=\"nodes\""]), 30.0);
    let explained = cluster.weft(["get", "data", "-", "--explain"]).ok();
    assert!(explained.text().contains("open for updates: read at its data nodes"), "{}", explained.text());
    let plan = cluster.weft(["get", "data", "-", "--explain", "--json"]).ok();
    assert!(plan.stderr.contains("open for updates") && plan.json().is_object(), "the plan if it is settled: {}", plan.text());
    assert_eq!(count("weft_stripes_settled_total", &[]), 0.0);

    // A node that is needed is gone: the stripe is settled, and read without it.
    let victim = cluster.blocks("data").iter().find(|block| block.index == 0).expect("a block").node.clone();
    cluster.kill(&victim);
    cluster.expect("data", &content, &[]);
    assert_eq!(count("weft_stripes_settled_total", &[]), 1.0);
}
