//! Repairs during which a node dies or stalls.

use crate::harness::{Block, Cluster, Ended, Running, Setup, bytes, texts};
use serde_json::Value;
use std::{collections::BTreeSet, fs, process::Stdio};

const BLOCK: u64 = 16 << 20;
const CODING: [&str; 6] = ["--code", "rs(4,2)", "--block-size", "16MiB", "--cell-size", "1MiB"];

/// A cluster with one object of one stripe. Its agents send slowly, so no buffer holds all that a helper has to send.
struct Repair {
    cluster: Cluster,
    content: Vec<u8>,
    blocks: Vec<Block>,
    /// Nodes without a block of the object.
    free: Vec<String>,
}

impl Repair {
    fn new(nodes: u32) -> Self {
        let cluster = Setup::nodes(nodes).gated().with(&[("WEFT_AGENT_THROTTLE__NETWORK_BYTES_PER_S", "12MiB")]).up();
        let content = bytes(4 * BLOCK as usize, 5);
        cluster.put("data", &content, &CODING).ok();
        let mut repair = Self { cluster, content, blocks: Vec::new(), free: Vec::new() };
        repair.refresh();
        repair
    }

    /// Looks up where the blocks are now.
    fn refresh(&mut self) {
        self.blocks = self.cluster.blocks("data");
        let held: BTreeSet<&String> = self.blocks.iter().map(|block| &block.node).collect();
        self.free = self.cluster.nodes().into_iter().filter(|node| !held.contains(node)).collect();
    }

    /// Blocks that a chain to `to` would read.
    fn helpers(&self, to: &str) -> Vec<&Block> {
        let explained = self.repair(&["--to", to, "--explain"]).end().ok().json();
        let read = explained["plan"]["binding"]["blocks"].as_array().expect("what is read");
        let index = |block: &Value| block["id"]["index"].as_u64().expect("an index") as usize;
        read.iter().map(|block| &self.blocks[index(block)]).collect()
    }

    /// Begins to rebuild block 0 through one chain: on a busy machine the measured links can make two paths look faster.
    fn repair(&self, options: &[&str]) -> Running {
        let args = ["repair", "object", "data", "--block", "0", "--scheme", "pipeline", "--paths", "1", "--json"];
        self.cluster.start(args.iter().chain(options), Stdio::null())
    }

    /// Begins to rebuild block 0 at `to`, and waits until a part of it has arrived. The gate stops the rest.
    fn repair_half(&self, to: &str) -> Running {
        self.cluster.links.let_pass(0);
        let repair = self.repair(&["--to", to]);
        let links = &self.cluster.links;
        links.let_pass_until("the middle of a repair", 64 << 10, || self.cluster.has_written(to, BLOCK / 8));
        repair
    }

    fn is_right(&self) {
        let rebuilt = self.cluster.blocks("data")[0].clone();
        assert_eq!(rebuilt.state, "ok");
        let expected: Vec<u8> = self.content.chunks(1 << 20).step_by(4).flatten().copied().collect();
        assert!(fs::read(self.cluster.payload(&rebuilt)).unwrap() == expected, "the rebuilt block differs from the lost one");
        self.cluster.expect("data", &self.content, &[]);
    }
}

/// Checks that the repair resumed, and wrote no bytes twice.
fn resumed(ended: Ended) {
    let told = ended.ok().json();
    assert!(told["resumed"].as_u64() >= Some(1), "{told}");
    let messages = texts(&told["messages"]);
    let missing = messages.split("resuming with the ").nth(1).and_then(|rest| rest.split(' ').next()?.parse::<u64>().ok());
    assert!((1..BLOCK).contains(&missing.expect("the number of missing positions")), "{told}");
    assert_eq!(told["bytes_written"].as_u64(), Some(BLOCK), "bytes were written twice: {told}");
}

#[test]
fn a_chain_goes_on_around_a_helper_that_was_killed_or_stands_still() {
    let mut repair = Repair::new(8);
    // The first helper of the chain, one in the middle, and the last.
    for (signal, place) in ["KILL", "STOP"].into_iter().flat_map(|signal| [0, 2, 3].map(|place| (signal, place))) {
        let to = repair.free[0].clone();
        let helpers = repair.helpers(&to);
        assert_eq!(helpers.len(), 4);
        let helper = helpers[place].node.clone();
        let running = repair.repair_half(&to);
        repair.cluster.signal(&helper, signal);
        repair.cluster.links.let_all_pass();
        resumed(running.end());
        repair.is_right();
        if signal == "KILL" {
            repair.cluster.up().ok();
        } else {
            repair.cluster.signal(&helper, "CONT");
        }
        repair.cluster.wait_for_state(&[&helper], "up");
        repair.refresh();
    }
}

#[test]
fn a_target_that_was_killed_is_replaced_or_named() {
    let repair = Repair::new(9);
    // The target was named, so no other node can replace it.
    let to = repair.free[0].clone();
    let running = repair.repair_half(&to);
    repair.cluster.kill(&to);
    repair.cluster.links.let_all_pass();
    running.end().refused(4, &[&to, "failed, which was to store the block", "s1-b000-c0-g2"]);
    assert_eq!((repair.cluster.blocks("data")[0].generation, repair.cluster.stat("data")["version"].as_u64()), (1, Some(1)));
    repair.cluster.expect("data", &repair.content, &[]);

    repair.cluster.links.let_pass(0);
    let running = repair.repair(&[]);
    let mut to = None;
    repair.cluster.links.let_pass_until("a target", 64 << 10, || {
        let alive = repair.cluster.nodes().into_iter().filter(|node| *node != repair.free[0]);
        to = alive.into_iter().find(|node| repair.cluster.has_written(node, BLOCK / 8));
        to.is_some()
    });
    let to = to.unwrap();
    repair.cluster.kill(&to);
    repair.cluster.links.let_all_pass();
    let told = running.end().ok().json();
    assert!(told["resumed"].as_u64() >= Some(1), "{told}");
    assert_ne!(repair.cluster.blocks("data")[0].node, to);
    repair.is_right();
}
