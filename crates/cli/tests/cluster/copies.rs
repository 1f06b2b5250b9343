//! Objects with copies of their data, from hot to cold and back, while nodes die.

use crate::harness::{Block, Cluster, Setup, bytes, texts, wait_for};
use std::{collections::BTreeSet, fs, process::Stdio};

const MIB: usize = 1 << 20;

/// A cluster with a bucket `hot` with two copies of the data of rs(3,2).
fn cluster(setup: Setup) -> Cluster {
    let cluster = setup.up();
    let coding = ["--code", "rs(3,2)", "--block-size", "1MiB", "--cell-size", "64KiB", "--replicas", "2"];
    let made = cluster.json(&[&["policy", "create", "hot"], &coding[..]].concat());
    assert_eq!((&made["replicas"], made.get("warnings")), (&2.into(), None));
    assert_eq!(cluster.json(&["policy", "show", "hot"])["replicas"], 2);
    cluster.weft(["bucket", "create", "hot", "--policy", "hot"]).ok();
    cluster
}

/// All blocks and copies are stored, each on its own node, and copies equal their block.
fn is_whole(cluster: &Cluster, key: &str, copies: usize) {
    let (blocks, others) = (cluster.blocks(key), cluster.copies(key));
    assert_eq!(others.len(), blocks.len() / 5 * 3 * copies, "{others:?}");
    let all: Vec<&Block> = blocks.iter().chain(&others).collect();
    assert!(all.iter().all(|block| block.state == "ok"), "{all:?}");
    let homes: BTreeSet<(u64, &str)> = all.iter().map(|block| (block.stripe, block.node.as_str())).collect();
    assert_eq!(homes.len(), all.len(), "two blocks of a stripe on one node: {all:?}");
    for copy in &others {
        let first = blocks.iter().find(|block| (block.stripe, block.index) == (copy.stripe, copy.index)).unwrap();
        let read = |block| fs::read(cluster.payload(block)).unwrap();
        assert!(read(copy) == read(first), "{copy:?} differs from the first copy");
    }
}

#[test]
fn an_object_is_hot_loses_nodes_cools_down_and_is_heated_again() {
    let cluster = cluster(Setup::nodes(10));
    let two_stripes = bytes(4 * MIB + 70_000, 7);
    let one_stripe = &two_stripes[..3 * MIB - 70_000];
    for (key, scheme, content) in [("hot/direct", "direct", &two_stripes[..]), ("hot/mist", "mist", one_stripe)] {
        cluster.put(key, content, &["--scheme", scheme]).ok();
        is_whole(&cluster, key, 1);
    }
    let stat = cluster.weft(["stat", "hot/mist"]).ok();
    assert!(stat.text().contains("0 copy 1"), "{}", stat.text());

    // If the node of a data block is down, reads use the other copy, and a repair reads one block.
    let lost = cluster.blocks("hot/mist")[0].node.clone();
    cluster.take_down(&[&lost]);
    for (key, content) in [("hot/direct", &two_stripes[..]), ("hot/mist", one_stripe)] {
        assert_eq!(texts(&cluster.expect(key, content, &[])["rebuilt"]), "", "{key}: a block with two copies was rebuilt");
    }
    let explained = cluster.json(&["repair", "object", "hot/mist", "--explain"]);
    let read = explained["plan"]["binding"]["blocks"].as_array().expect("what is read");
    assert_eq!((read.len(), &read[0]["id"]["copy"]), (1, &1.into()), "{explained}");
    let repaired = cluster.json(&["repair", "object", "hot/mist"]);
    assert_eq!((&repaired["blocks"][0]["index"], &repaired["bytes_read"]), (&0.into(), &repaired["bytes_written"]), "{repaired}");
    is_whole(&cluster, "hot/mist", 1);
    cluster.weft(["repair", "node", &lost, "--json"]).ok();
    is_whole(&cluster, "hot/direct", 1);
    cluster.up().ok();

    let before = cluster.files().len();
    let cooled = cluster.json(&["policy", "cool", "hot/direct"]);
    assert_eq!(cooled["blocks"], 2 * 3, "{cooled}");
    is_whole(&cluster, "hot/direct", 0);
    assert!(cluster.weft(["policy", "cool", "hot/direct"]).ok().text().contains("has no copies"));
    wait_for("the copies to be removed", || cluster.files().len() <= before - 2 * 2 * 3);
    cluster.expect("hot/direct", &two_stripes, &[]);

    let plans = cluster.weft(["policy", "heat", "hot/direct", "--explain"]).ok();
    assert!(!plans.text().is_empty() && cluster.copies("hot/direct").is_empty());
    let heated = cluster.json(&["policy", "heat", "hot/direct"]);
    assert_eq!(heated["blocks"].as_array().map(Vec::len), Some(2 * 3), "{heated}");
    is_whole(&cluster, "hot/direct", 1);
    assert!(cluster.weft(["policy", "heat", "hot/direct"]).ok().text().contains("has all its copies"));
    cluster.expect("hot/direct", &two_stripes, &[]);
    cluster.weft(["policy", "heat", "hot/nothing"]).refused(3, &["nothing"]);
    cluster.weft(["policy", "cool", "hot/nothing"]).refused(3, &["nothing"]);
    // More copies than nodes can hold: nothing is copied, and nothing is called lost.
    let (before, says) = (cluster.files().len(), ["hot/direct: 3 copies of 3 data blocks", "need 11 nodes", "at most 2 copies"]);
    let refused = cluster.weft(["policy", "heat", "hot/direct", "--replicas", "3"]).refused(6, &says);
    assert!(!refused.stderr.contains("lost") && cluster.files().len() == before, "{}", refused.stderr);
    cluster.put("data", one_stripe, &["--code", "rs(3,2)"]).ok();
    cluster.weft(["policy", "heat", "data"]).refused(2, &["default/data", "default keeps only one copy"]);
}

#[test]
fn a_put_with_copies_goes_on_without_a_node_that_dies() {
    let cluster = cluster(Setup::nodes(11).gated());
    for (key, scheme) in [("hot/direct", "direct"), ("hot/mist", "mist")] {
        let content = bytes(6 * MIB, 8);
        let file = cluster.write("data", &content);
        let args = ["put", crate::harness::path(&file), key, "--scheme", scheme];
        // Half of the first of two stripes: 3 data blocks, twice, and 2 parity blocks.
        cluster.links.let_pass(4 * MIB);
        let put = cluster.start(args, Stdio::null());
        let mut found = None;
        wait_for("a node to write", || {
            found = cluster.nodes().into_iter().find(|node| cluster.is_writing(node));
            found.is_some()
        });
        cluster.signal(found.as_ref().unwrap(), "KILL");
        cluster.links.let_all_pass();
        put.end().ok();
        is_whole(&cluster, key, 1);
        cluster.expect(key, &content, &[]);
        let victim = [found.as_deref().unwrap()];
        cluster.wait_for_state(&victim, "down");
        cluster.up().ok();
        cluster.wait_for_state(&victim, "up");
    }
}

#[test]
fn what_is_not_whole_is_not_cooled_and_a_rack_too_full_is_warned_of() {
    let cluster = Setup { racks: 1, ..Setup::nodes(5) }.up();
    let coding = ["--code", "rs(2,1)", "--block-size", "1MiB", "--cell-size", "64KiB", "--replicas", "2", "--ack", "k+0"];
    assert_eq!(cluster.json(&[&["policy", "create", "hot"], &coding[..]].concat())["ack"], "k+0");
    cluster.weft(["bucket", "create", "hot", "--policy", "hot"]).ok();
    for key in ["hot/one", "hot/other"] {
        cluster.put(key, &bytes(2 * MIB, 10), &["--ack", "all"]).ok();
    }
    let parity = cluster.blocks("hot/one")[2].node.clone();
    cluster.take_down(&[&parity]);
    let says = ["hot/one: block 2 of stripe 0", &parity, "its node is down", "weft repair object hot/one"];
    cluster.weft(["policy", "cool", "hot/one"]).refused(4, &says);
    assert_eq!(cluster.copies("hot/one").len(), 2);
    let says = ["hot/one: 3 copies of 2 data blocks and 1 parity block need 7 nodes, and 4 of 5 nodes are up"];
    cluster.weft(["policy", "heat", "hot/one", "--replicas", "3"]).refused(6, &says);
    cluster.up().ok();
    cluster.wait_for_state(&[&parity], "up");
    let warning = "keeps 3 blocks of a stripe, but rs(2,1) tolerates the loss of 1";
    let cooled = cluster.weft(["policy", "cool", "hot/one"]).ok();
    assert!(cooled.text().contains("dropped 2 blocks") && cooled.stderr.contains(warning), "{}", cooled.stderr);
    let cooled = cluster.json(&["policy", "cool", "hot/other"]);
    assert!(cooled["warnings"][0].as_str().is_some_and(|it| it.contains(warning)), "{cooled}");
}

#[test]
fn who_has_too_few_nodes_for_copies_is_told_how_many_it_takes() {
    let cluster = Setup::nodes(7).up();
    let made = cluster.weft(["policy", "create", "hot", "--code", "rs(3,2)", "--replicas", "2"]).ok();
    let warning = "warning: rs(3,2) with 2 copies of its data puts the blocks of a stripe on 8 different nodes";
    assert!(made.stderr.contains(warning), "{}", made.stderr);
    cluster.weft(["bucket", "create", "hot", "--policy", "hot"]).ok();
    cluster.put("hot/data", &bytes(3 << 20, 9), &[]).refused(6, &["hot/data", "8 different nodes", "7 of 7 nodes are up"]);
    cluster.weft(["policy", "create", "x", "--code", "rs(3,2)", "--replicas", "17"]).refused(2, &["at most 16"]);
    assert!(cluster.files().is_empty());
}
