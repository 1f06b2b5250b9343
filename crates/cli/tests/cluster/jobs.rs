//! Jobs: node repairs while coordinators, requestors and observers come and go.

use crate::harness::{Cluster, Running, Setup, bytes, path, send_signal, wait_for, weft};
use serde_json::Value;
use std::{collections::BTreeMap, process::Stdio};

const KEYS: [&str; 2] = ["a", "b"];
/// The bytes that a chain of rs(2,1) moves for a block of 4 MiB, from helper to helper to requestor, and half as many: the next chain
/// stops in its middle.
const A_CHAIN_AND_A_HALF: usize = 12 << 20;

/// A cluster with two objects of several stripes each.
struct World {
    cluster: Cluster,
    contents: Vec<(&'static str, Vec<u8>)>,
}

impl World {
    fn new(setup: Setup, code: &str, stripes: usize, block_kib: usize) -> Self {
        let cluster = setup.up();
        let k: usize = code.split(['(', ',']).nth(1).unwrap().parse().unwrap();
        let block = format!("{block_kib}KiB");
        // The last stripe is short: its blocks differ in length.
        let len = (stripes * k * block_kib * 1024) / KEYS.len() - 5000;
        let coding = ["--code", code, "--block-size", &block, "--cell-size", "16KiB"];
        let contents: Vec<(&str, Vec<u8>)> = (0..).zip(KEYS).map(|(seed, key)| (key, bytes(len, seed))).collect();
        contents.iter().for_each(|(key, content)| drop(cluster.put(key, content, &coding).ok()));
        Self { cluster, contents }
    }

    /// How many blocks each node holds, by the node's name and the block's state.
    fn holdings(&self) -> BTreeMap<(String, String), u64> {
        let mut count = BTreeMap::new();
        for block in KEYS.iter().flat_map(|key| self.cluster.blocks(key)) {
            *count.entry((block.node, block.state)).or_default() += 1;
        }
        count
    }

    fn held_by(&self, node: &str) -> u64 {
        self.holdings().iter().filter(|((holder, _), _)| holder == node).map(|(_, count)| count).sum()
    }

    /// Checks that the node holds nothing, all blocks are intact, and reads return what was written.
    fn is_rebuilt(&self, node: &str) {
        let holdings = self.holdings();
        assert!(holdings.keys().all(|(holder, state)| holder != node && state == "ok"), "{holdings:?}");
        self.reads_well();
    }

    fn reads_well(&self) {
        self.contents.iter().for_each(|(key, content)| drop(self.cluster.expect(key, content, &[])));
    }

    fn job(&self, id: u64) -> Value {
        self.cluster.json(&["job", "show", &id.to_string()])
    }

    /// Begins to rebuild a node, one block after another.
    fn begin(&self, node: &str, options: &[&str]) -> Running {
        let slow = ["repair", "node", node, "--concurrency", "1", "--scheme", "pipeline"];
        self.cluster.start(slow.iter().chain(options), Stdio::null())
    }

    /// Waits until a job has rebuilt this many blocks. The gate stops the others.
    fn wait_for_middle(&self, job: u64, blocks: u64) {
        wait_for("the middle of a job", || {
            let listed = self.cluster.json(&["job", "ls"]);
            let job = listed.as_array().unwrap().iter().find(|it| it["id"] == job);
            job.is_some_and(|job| job["done"]["blocks"].as_u64() >= Some(blocks) && job["stripes_under_way"] == 1)
        });
    }
}

fn amounts(job: &Value) -> [u64; 3] {
    ["total", "done", "gave_up"].map(|what| job[what]["blocks"].as_u64().unwrap())
}

#[test]
fn a_lost_node_is_rebuilt_with_any_helpers_and_every_block_is_accounted_for() {
    let world = World::new(Setup::nodes(10), "rs(4,2)", 24, 64);
    let cluster = &world.cluster;
    let nodes = cluster.nodes();
    cluster.weft(["repair", "node", &nodes[0]]).refused(2, &["is up", "nothing is lost", "--force"]);
    cluster.weft(["repair", "node", "nobody"]).refused(3, &["'nobody'", "weft node ls"]);
    cluster.weft(["repair", "node", &nodes[0], "--to", "nobody"]).refused(3, &["'nobody'"]);
    cluster.weft(["repair", "node", &nodes[0], "--force", "--select", "best"]).refused(2, &["boost, balance, schedule"]);
    cluster.weft(["repair", "node", &nodes[0], "--force", "--to", &nodes[0]]).refused(2, &["cannot go to the node itself"]);
    cluster.weft(["repair", "node", &nodes[0], "--scheme", "direct"]).refused(2, &["'direct' only copies", "are lost"]);
    cluster.weft(["job", "show", "7"]).refused(3, &["there is no job 7", "weft job ls"]);
    assert_eq!(cluster.json(&["job", "ls"]), serde_json::json!([]), "a refused job was created");

    for (number, select) in ["boost", "lru", "random"].into_iter().enumerate() {
        let lost = &nodes[number];
        let held = world.held_by(lost);
        assert!(held > 4, "{lost} holds {held} blocks");
        cluster.take_down(&[lost]);
        if number == 0 {
            cluster.weft(["repair", "node", &nodes[5], "--force", "--to", lost]).refused(2, &[lost, "is down"]);
            let explained = cluster.weft(["repair", "node", lost, "--explain", "--json"]).ok();
            assert!(explained.text().contains("\"bound_bytes\""), "the schedule precedes the plans");
            let plans = cluster.write("plans.json", &explained.stdout);
            assert!(weft(["plan", "verify", path(&plans)]).ok().text().contains("proved"));
            assert_eq!(
                (world.held_by(lost), cluster.json(&["job", "ls"])),
                (held, serde_json::json!([])),
                "--explain changed something"
            );
        }
        let job = cluster.json(&["repair", "node", lost, "--select", select]);
        assert_eq!((amounts(&job), &job["state"]), ([held, held, 0], &"done".into()), "{job}");
        assert_eq!((&job["select"], &job["last_error"], &job["name"]), (&select.into(), &"".into(), &lost.as_str().into()));
        world.is_rebuilt(lost);
    }
    let again = cluster.weft(["repair", "node", &nodes[1]]).ok();
    assert!(again.text().contains("nothing is lost"), "{}", again.text());
    // A node that is up is emptied as if it were lost, onto other nodes.
    let forced = &nodes[3];
    let held = world.held_by(forced);
    let job = cluster.json(&["repair", "node", forced, "--force"]);
    assert_eq!(amounts(&job), [held, held, 0], "{job}");
    world.is_rebuilt(forced);
    wait_for("the replaced blocks to be removed", || cluster.files_of(forced).is_empty());
    assert_eq!(cluster.json(&["job", "ls"]).as_array().unwrap().len(), 5);
}

#[test]
fn named_requestors_get_all_blocks_and_what_none_can_take_is_left() {
    let world = World::new(Setup::nodes(8), "rs(2,1)", 40, 32);
    let cluster = &world.cluster;
    let nodes = cluster.nodes();
    let (lost, to) = (&nodes[0], [nodes[1].as_str(), nodes[2].as_str()]);
    let before = to.map(|node| world.held_by(node));
    let held = world.held_by(lost);
    // A node that already has a block of the stripe cannot take another.
    let blocks: Vec<_> = KEYS.iter().flat_map(|key| cluster.blocks(key)).collect();
    let has = |stripe: u64, node: &str| blocks.iter().any(|block| block.stripe == stripe && block.node == node);
    let lost_in = blocks.iter().filter(|block| block.node == *lost).map(|block| block.stripe);
    let full = lost_in.filter(|stripe| to.iter().all(|node| has(*stripe, node))).count() as u64;
    cluster.take_down(&[lost]);
    let ended = cluster.weft(["repair", "node", lost, "--to", to[0], "--to", to[1], "--json"]).code(if full > 0 { 4 } else { 0 });
    let job = ended.json();
    assert_eq!((amounts(&job), world.held_by(lost)), ([held, held - full, full], full), "{job}");
    assert!(job["moved_bytes"].as_u64() >= job["done"]["bytes"].as_u64() && job["remaining_ms"].is_null(), "{job}");
    if full > 0 {
        assert!(ended.stderr.contains("still lost") && ended.stderr.contains("only the named nodes"), "{}", ended.stderr);
        assert_eq!(job["state"], "failed");
    }
    // Each block is named with its reason.
    let mut named: Vec<String> = Vec::new();
    for it in job["gave_up_blocks"].as_array().unwrap() {
        assert!(it["reason"].as_str().unwrap().contains("only the named nodes"), "{it}");
        named.push(it["object"].as_str().unwrap().to_owned());
    }
    let lost_of = |key: &str| cluster.blocks(key).into_iter().filter(|block| block.node == *lost).count();
    let expected: Vec<String> = KEYS.iter().flat_map(|key| vec![format!("default/{key}"); lost_of(key)]).collect();
    named.sort();
    assert_eq!(named, expected);
    let shown = cluster.weft(["job", "show", "1"]).ok();
    assert_eq!(shown.text().matches("gave up: default/").count() as u64, full, "{}", shown.text());
    // How many each gets depends on how fast both are, which a busy machine decides.
    let [first, second] = [0, 1].map(|at| world.held_by(to[at]) - before[at]);
    assert_eq!(first + second, held - full, "a block went to another node");
    cluster.weft(["repair", "node", lost]).ok();
    world.is_rebuilt(lost);

    // Stripes that have lost more blocks than the code tolerates are not rebuilt; all others are.
    let gone = [nodes[3].as_str(), nodes[4].as_str()];
    let blocks: Vec<_> = KEYS.iter().flat_map(|key| cluster.blocks(key)).collect();
    let has = |stripe: u64, node: &str| blocks.iter().any(|block| block.stripe == stripe && block.node == node);
    let both = blocks.iter().filter(|block| block.node == gone[0] && has(block.stripe, gone[1])).count() as u64;
    let held = world.held_by(gone[0]);
    cluster.take_down(&gone);
    let ended = cluster.weft(["repair", "node", gone[0], "--json"]).code(if both > 0 { 4 } else { 0 });
    assert_eq!((amounts(&ended.json()), world.held_by(gone[0])), ([held, held - both, both], both));
    if both > 0 {
        assert!(ended.stderr.contains("rs(2,1) tolerates the loss of 1"), "{}", ended.stderr);
    }
}

#[test]
fn a_job_outlives_coordinators_and_stays_paused_if_it_was() {
    let world = World::new(Setup::nodes(4).gated(), "rs(2,1)", 16, 4096);
    let cluster = &world.cluster;
    let lost = cluster.nodes()[0].clone();
    let held = world.held_by(&lost);
    cluster.take_down(&[&lost]);
    cluster.links.let_pass(A_CHAIN_AND_A_HALF);
    let told = world.begin(&lost, &["--no-wait", "--json"]).end().ok().json();
    assert_eq!((&told["id"], &told["state"]), (&1.into(), &"running".into()));
    world.wait_for_middle(1, 1);
    cluster.weft(["repair", "node", &lost]).refused(2, &["job 1 does this already"]);
    cluster.weft(["job", "pause", "1"]).ok();
    cluster.links.let_all_pass();
    wait_for("the stripes under way to end", || world.job(1)["stripes_under_way"] == 0);
    let paused = world.job(1);
    let [total, done, _] = amounts(&paused);
    assert!(paused["state"] == "paused" && total == held && (1..held - 2).contains(&done), "{paused}");

    // The node's agent comes back with the coordinator, but without its disk: the blocks are still lost.
    let disk = cluster.dir().join("nodes").join(&lost).join("disk-0");
    std::fs::rename(disk, cluster.file("taken-out")).unwrap();
    cluster.kill("coordinator");
    cluster.up().ok();
    let found = world.job(1);
    assert_eq!((&found["state"], amounts(&found)), (&"paused".into(), [held, done, 0]));
    assert_eq!(world.held_by(&lost), held - done, "a paused job continued");
    let waiting = cluster.start(["job", "wait", "1", "--json"], Stdio::null());
    cluster.links.let_pass(A_CHAIN_AND_A_HALF);
    cluster.weft(["job", "resume", "1"]).ok();
    world.wait_for_middle(1, done + 1);
    cluster.kill("coordinator");
    cluster.links.let_all_pass();
    cluster.up().ok();
    let ended = waiting.end().ok().json();
    assert_eq!((&ended["state"], amounts(&ended)), (&"done".into(), [held, held, 0]), "{ended}");
    assert_eq!(cluster.log("coordinator").matches("resuming a job").count(), 2);
    cluster.weft(["job", "resume", "1"]).refused(2, &["job 1 is done"]);
    assert!(cluster.weft(["repair", "node", &lost]).ok().text().contains("nothing is lost"));
    world.is_rebuilt(&lost);
}

#[test]
fn who_breaks_off_the_waiting_leaves_the_job_and_who_cancels_keeps_what_was_done() {
    let world = World::new(Setup::nodes(4).gated(), "rs(2,1)", 16, 4096);
    let cluster = &world.cluster;
    let lost = cluster.nodes()[0].clone();
    let held = world.held_by(&lost);
    cluster.take_down(&[&lost]);
    cluster.links.let_pass(A_CHAIN_AND_A_HALF);
    let mut waiting = world.begin(&lost, &[]);
    world.wait_for_middle(1, 1);
    send_signal(waiting.child().id(), "INT");
    waiting.end().refused(130, &["job 1 continues", "weft job wait 1"]);
    assert_eq!(world.job(1)["state"], "running");
    cluster.weft(["job", "cancel", "1"]).ok();
    cluster.weft(["job", "cancel", "1"]).ok();
    cluster.links.let_all_pass();
    let ended = cluster.weft(["job", "wait", "1", "--json"]).code(1);
    assert!(ended.stderr.contains("job 1 was cancelled"), "{}", ended.stderr);
    let [total, done, left] = amounts(&ended.json());
    assert!(total == held && (1..held).contains(&done) && left == 0, "{}", ended.json());
    cluster.weft(["job", "pause", "1"]).refused(2, &["job 1 is cancelled"]);

    let rest = cluster.json(&["repair", "node", &lost]);
    assert_eq!(amounts(&rest), [held - done, held - done, 0], "the blocks that the cancelled job rebuilt are kept");
    let states: Vec<String> =
        cluster.json(&["job", "ls"]).as_array().unwrap().iter().map(|job| job["state"].to_string()).collect();
    assert_eq!(states, ["\"cancelled\"", "\"done\""]);
    world.is_rebuilt(&lost);

    // A node that comes back keeps what was not rebuilt yet.
    let other = cluster.nodes()[1].clone();
    cluster.up().ok();
    let held = world.held_by(&other);
    cluster.take_down(&[&other]);
    cluster.links.let_pass(A_CHAIN_AND_A_HALF);
    world.begin(&other, &["--no-wait"]).end().ok();
    world.wait_for_middle(3, 1);
    cluster.weft(["job", "pause", "3"]).ok();
    cluster.links.let_all_pass();
    cluster.up().ok();
    cluster.weft(["job", "resume", "3"]).ok();
    let ended = cluster.json(&["job", "wait", "3"]);
    let [total, done, left] = amounts(&ended);
    assert!(ended["state"] == "done" && total == done && left == 0 && (1..held).contains(&done), "{ended}");
    assert_eq!(world.held_by(&other), held - done, "more was rebuilt than was lost");
    world.reads_well();
}

#[test]
fn a_requestor_that_dies_in_the_middle_is_replaced() {
    let world = World::new(Setup::nodes(6).gated(), "rs(2,2)", 12, 4096);
    let cluster = &world.cluster;
    let nodes = cluster.nodes();
    let lost = &nodes[0];
    let held = world.held_by(lost);
    cluster.take_down(&[lost]);
    // The gate stops the chain before the requestor has the whole block.
    cluster.links.let_pass(6 << 20);
    let running = world.begin(lost, &["--json"]);
    let mut requestor = None;
    wait_for("a requestor", || {
        requestor = nodes[1..].iter().find(|node| cluster.has_written(node, 1 << 20));
        requestor.is_some()
    });
    let requestor = requestor.unwrap();
    cluster.kill(requestor);
    cluster.links.let_all_pass();
    let job = running.end().ok().json();
    assert_eq!(amounts(&job), [held, held, 0], "{job}");
    let holdings = world.holdings();
    assert!(holdings.keys().all(|(holder, state)| holder != lost && (state == "ok" || holder == requestor)), "{holdings:?}");
    world.reads_well();
}
