//! Conversions from replicas to coded data and back, while coordinators and agents restart and clients read and write.

use crate::harness::{Cluster, Running, Setup, bytes, is_alive, wait_for};
use serde_json::Value;
use std::{collections::BTreeMap, process::Stdio, time::Duration};
use tokio::time::Instant;

/// For each policy, the number of blocks of a stripe and the bytes of its data.
const TRIPLE: (usize, usize) = (3, 256 << 10);
const COLD: (usize, usize) = (6, 512 << 10);
/// The conversion of a stripe moves at most 1.25 MiB over the network, and at least half as much: these bytes suffice for one or two.
const PASSED: usize = 3 << 19;
/// The number of polls between two grants: at least five seconds.
const POLLS_PER_GRANT: usize = 60;

/// A cluster with a bucket of replicas.
struct World {
    cluster: Cluster,
    contents: BTreeMap<String, Vec<u8>>,
}

impl World {
    fn new(setup: Setup, lens: &[usize]) -> Self {
        let cluster = setup.up();
        let policy = |name: &str, code: &str, block: &str| {
            let sizes = ["--block-size", block, "--cell-size", "64KiB"];
            cluster.weft(["policy", "create", name, "--code", code].iter().chain(&sizes)).ok();
        };
        policy("triple", "replication(3)", "256KiB");
        policy("cold", "rs(4,2)", "128KiB");
        cluster.weft(["bucket", "create", "hot", "--policy", "triple"]).ok();
        let mut world = Self { cluster, contents: BTreeMap::new() };
        for (seed, len) in (1..).zip(lens) {
            world.put(&format!("hot/{len}"), bytes(*len, seed), &[]);
        }
        world
    }

    fn put(&mut self, key: &str, content: Vec<u8>, coding: &[&str]) {
        let file = self.cluster.write("content", &content);
        self.cluster.weft(["put", file.to_str().unwrap(), key].iter().chain(coding)).ok();
        self.contents.insert(key.to_owned(), content);
    }

    fn reads_well(&self) {
        self.contents.iter().for_each(|(key, content)| drop(self.cluster.expect(key, content, &[])));
    }

    /// Checks that all objects have this code and are whole, and waits until the disks hold nothing else.
    fn is(&self, code: &str, (blocks, stripe_len): (usize, usize)) {
        let mut expected = 0;
        for (key, content) in &self.contents {
            let stat = self.cluster.stat(key);
            assert_eq!((&stat["code"], stat["size"].as_u64()), (&code.into(), Some(content.len() as u64)), "{key}");
            let held = [self.cluster.blocks(key), self.cluster.copies(key)].concat();
            let full = content.len() / stripe_len * blocks;
            // The last stripe has no blocks where it has no bytes.
            let most = content.len().div_ceil(stripe_len) * blocks;
            assert!((full..=most).contains(&held.len()) && held.is_empty() == content.is_empty(), "{key}: {stat}");
            assert!(held.iter().all(|block| block.state == "ok"), "{key}: {stat}");
            expected += held.len();
        }
        self.reads_well();
        let listed = || self.cluster.json(&["node", "ls"]);
        let counted = |nodes: Value| nodes.as_array().unwrap().iter().map(|node| node["blocks"].as_u64().unwrap()).sum::<u64>();
        wait_for("the metadata to have no other blocks", || counted(listed()) == expected as u64);
        // Each block has a payload and a sidecar.
        wait_for("the old blocks to be removed", || self.cluster.files().len() == 2 * expected);
    }

    fn convert(&self, what: &str, to: &str, options: &[&str]) -> Running {
        self.cluster.start(["policy", "convert", what, "--to", to, "--json"].iter().chain(options), Stdio::null())
    }

    fn job(&self, id: u64) -> Value {
        self.cluster.json(&["job", "show", &id.to_string()])
    }

    /// Waits for the end of a job, which must have converted all objects.
    fn done(&self, id: u64) -> Value {
        let job = self.cluster.json(&["job", "wait", &id.to_string()]);
        assert_eq!(
            (&job["state"], &job["gave_up"]["objects"], &job["done"]),
            (&"done".into(), &0.into(), &job["total"]),
            "{job}"
        );
        job
    }

    /// Waits until the coordinator has converted this many stripes.
    fn wait_for_stripes(&self, job: u64, stripes: u64) {
        let mut polls = 0;
        wait_for("the middle of a conversion", || {
            polls += 1;
            if polls % POLLS_PER_GRANT == 0 {
                // On a busy machine, a retry may have used up the bytes that the gate let pass.
                self.cluster.links.let_pass(PASSED);
            }
            self.cluster.log("coordinator").matches("converted a stripe").count() as u64 >= stripes
        });
        assert_eq!(self.job(job)["state"], "running", "the gate holds up the other stripes");
    }

    /// Pauses a job and waits for the stripe that the gate holds up.
    fn pause(&self, job: u64) -> Value {
        self.cluster.weft(["job", "pause", &job.to_string()]).ok();
        self.cluster.links.let_all_pass();
        wait_for("the stripes under way to end", || self.job(job)["stripes_under_way"] == 0);
        self.job(job)
    }

    /// An agent that has started to convert a stripe.
    fn worker(&self, except: &[String]) -> String {
        let mut found = None;
        wait_for("an agent that converts", || {
            let converts = |node: &&String| !except.contains(node) && self.cluster.log(node).contains("started a conversion");
            found = self.cluster.nodes().iter().find(converts).cloned();
            found.is_some()
        });
        found.unwrap()
    }
}

fn counts(job: &Value) -> [u64; 3] {
    ["total", "done", "gave_up"].map(|what| job[what]["objects"].as_u64().unwrap())
}

#[test]
fn replicas_become_coded_data_and_are_replicas_again() {
    let lens = [0, 1, 256 << 10, (512 << 10) + 1, 3_000_001, (4 << 20) + 4097];
    let mut world = World::new(Setup::nodes(8), &lens);
    let cluster = &world.cluster;
    world.is("replication(3)", TRIPLE);
    let refused = |what: &str, to: &str, code, says: &[&str]| drop(world.convert(what, to, &[]).end().refused(code, says));
    refused("hot", "nothing", 3, &["no policy nothing", "weft policy ls"]);
    refused("nothing", "cold", 3, &["no bucket nothing"]);
    refused("hot/nothing", "cold", 3, &["no object nothing"]);
    refused("hot/", "cold", 2, &["has no key"]);
    cluster.weft(["policy", "create", "wide", "--code", "rs(7,2)"]).ok();
    refused("hot", "wide", 6, &["rs(7,2)", "9", "8"]);
    assert_eq!(cluster.json(&["job", "ls"]), serde_json::json!([]), "a refused job was created");

    // One object: the bucket keeps its policy.
    let before = cluster.stat("hot/3000001");
    let one = world.convert("hot/3000001", "cold", &["--wait"]).end().ok().json();
    assert_eq!((counts(&one), &one["kind"], &one["key"]), ([1, 1, 0], &"convert".into(), &"3000001".into()), "{one}");
    let after = cluster.stat("hot/3000001");
    assert_eq!(
        (&after["created_ms"], &after["size"], &after["code"]),
        (&before["created_ms"], &before["size"], &"rs(4,2)".into())
    );
    let bucket = || {
        let buckets = cluster.json(&["bucket", "ls"]);
        buckets.as_array().unwrap().iter().find(|it| it["name"] == "hot").unwrap()["policy"].clone()
    };
    assert_eq!(bucket(), "triple");
    let begun = world.convert("hot", "cold", &[]).end().ok().json();
    assert_eq!((&begun["state"], bucket()), (&"running".into(), "cold".into()));
    let job = world.done(2);
    assert_eq!((counts(&job), &job["bytes_per_s"]), ([5, 5, 0], &Value::Null), "a converted object was not skipped");
    world.is("rs(4,2)", COLD);
    let again = cluster.weft(["policy", "convert", "hot", "--to", "cold", "--wait"]).ok();
    assert!(again.text().contains("all objects already match the policy"), "{}", again.text());
    world.convert("hot", "triple", &["--wait", "--concurrency", "5"]).end().ok();
    world.is("replication(3)", TRIPLE);
    world.put("hot/new", bytes(70_000, 9), &[]);
    world.is("replication(3)", TRIPLE);
}

#[test]
fn data_get_the_copies_of_the_new_policy_and_lose_them_again() {
    let world = World::new(Setup::nodes(8), &[0, 1, 700_000]);
    let policy = |name: &str, code: &str, replicas: &str| {
        let sizes = ["--block-size", "128KiB", "--cell-size", "64KiB", "--replicas", replicas];
        world.cluster.weft(["policy", "create", name, "--code", code].iter().chain(&sizes)).ok();
    };
    policy("wide", "rs(4,2)", "2");
    world.convert("hot", "wide", &[]).end().refused(6, &["rs(4,2) with 2 copies", "10 different nodes", "8 of 8"]);
    policy("double", "rs(2,1)", "2");
    policy("single", "rs(2,1)", "1");
    let convert = |to| counts(&world.convert("hot", to, &["--wait"]).end().ok().json());
    let (double, single) = ((5, 256 << 10), (3, 256 << 10));
    assert_eq!(convert("double"), [3, 3, 0]);
    world.is("rs(2,1)", double);
    // An empty object has no copies.
    assert_eq!(convert("single"), [2, 2, 0], "objects with too many copies");
    world.is("rs(2,1)", single);
    assert_eq!(convert("double"), [2, 2, 0], "objects with too few copies");
    world.cluster.weft(["policy", "cool", "hot/700000"]).ok();
    assert_eq!(convert("double"), [1, 1, 0], "objects without copies");
    world.is("rs(2,1)", double);
    assert_eq!(convert("double"), [0, 0, 0]);
}

#[test]
fn a_cluster_without_certificates_converts_too_and_keeps_to_a_rate() {
    let world = World::new(Setup { insecure: true, ..Setup::nodes(6) }, &[2 << 20]);
    let job = world.convert("hot", "cold", &["--wait", "--rate", "1MiB"]).end().ok().json();
    let took = job["changed_ms"].as_u64().unwrap() - job["created_ms"].as_u64().unwrap();
    assert!(took >= 1500, "2 MiB in stripes of 512 KiB took {took} ms: the fourth begins after a second and a half");
    world.is("rs(4,2)", COLD);
}

#[test]
fn stripes_that_are_too_large_for_memory_are_converted_too() {
    let world = World::new(Setup::nodes(6), &[(21 << 20) + 333]);
    let policy = |name: &str, code: &str, block: &str| {
        let sizes = ["--block-size", block, "--cell-size", "1MiB"];
        world.cluster.weft(["policy", "create", name, "--code", code].iter().chain(&sizes)).ok();
    };
    policy("large", "rs(4,2)", "4MiB");
    policy("pair", "replication(2)", "16MiB");
    world.convert("hot", "large", &["--wait"]).end().ok();
    world.is("rs(4,2)", (6, 16 << 20));
    // Block sizes of whole MiB before and after: every byte is compared.
    world.convert("hot", "pair", &["--wait"]).end().ok();
    world.is("replication(2)", (2, 16 << 20));
}

#[test]
fn reads_continue_during_a_conversion_and_concurrent_writes_win() {
    let mut world = World::new(Setup::nodes(8).gated(), &[3 << 20, 100_000, 200_000, 300_000]);
    // The first key is being converted now: overwrite it, and remove another one later.
    let (overwritten, removed) = ("hot/100000", "hot/300000");
    world.cluster.links.let_pass(PASSED);
    let job = world.convert("hot", "cold", &["--concurrency", "1"]).end().ok().json();
    assert_eq!(job["state"], "running");
    world.wait_for_stripes(1, 1);
    refused_beside(&world);
    assert_eq!(world.pause(1)["state"], "paused");
    world.put(overwritten, bytes(150_000, 77), &["--code", "replication(3)", "--block-size", "256KiB"]);
    world.cluster.weft(["rm", removed]).ok();
    world.contents.remove(removed);
    world.cluster.weft(["job", "resume", "1"]).ok();
    while world.job(1)["state"] == "running" {
        world.reads_well();
    }
    world.done(1);
    world.cluster.weft(["stat", removed]).code(3);
    world.is("rs(4,2)", COLD);

    // A large object is overwritten in the middle of its conversion.
    let key = "hot/3145728";
    let converted = world.cluster.log("coordinator").matches("converted a stripe").count() as u64;
    world.cluster.links.let_pass(PASSED);
    world.convert(key, "triple", &["--concurrency", "1"]).end().ok();
    world.wait_for_stripes(2, converted + 1);
    assert_eq!(world.pause(2)["state"], "paused");
    world.put(key, bytes(600_000, 99), &["--code", "rs(4,2)", "--block-size", "128KiB", "--cell-size", "64KiB"]);
    world.cluster.weft(["job", "resume", "2"]).ok();
    world.done(2);
    assert_eq!(world.cluster.stat(key)["code"], "replication(3)", "an object that was put during the job is converted, too");
    world.reads_well();
}

fn refused_beside(world: &World) {
    world.convert("hot/200000", "triple", &[]).end().refused(2, &["job 1 does this already"]);
}

#[test]
fn a_conversion_outlives_coordinators_and_waits_while_it_is_paused() {
    let world = World::new(Setup::nodes(8).gated(), &[6 << 20, 1 << 20, 5]);
    let cluster = &world.cluster;
    cluster.links.let_pass(PASSED);
    world.convert("hot", "cold", &["--concurrency", "1"]).end().ok();
    world.wait_for_stripes(1, 1);
    cluster.kill("coordinator");
    cluster.up().ok();
    cluster.links.let_pass(2 * PASSED);
    world.wait_for_stripes(1, 2);
    let paused = world.pause(1);
    assert_eq!(paused["state"], "paused");
    cluster.kill("coordinator");
    cluster.up().ok();
    world.reads_well();
    assert_eq!((world.job(1)["state"].clone(), world.job(1)["done"].clone()), ("paused".into(), paused["done"].clone()));
    cluster.weft(["job", "resume", "1"]).ok();
    let done = world.done(1);
    assert_eq!(counts(&done), [3, 3, 0]);
    assert_eq!(cluster.log("coordinator").matches("resuming a job").count(), 2);
    world.is("rs(4,2)", COLD);

    // If a job is cancelled in the middle of an object, the object does not change.
    cluster.links.let_pass(0);
    world.convert("hot", "triple", &["--concurrency", "1"]).end().ok();
    wait_for("a stripe", || world.job(2)["stripes_under_way"].as_u64() > Some(0));
    cluster.weft(["job", "cancel", "2"]).ok();
    cluster.weft(["job", "wait", "2"]).refused(1, &["job 2 was cancelled"]);
    cluster.links.let_all_pass();
    assert_eq!(cluster.stat("hot/6291456")["code"], "rs(4,2)");
    world.reads_well();
}

#[test]
fn an_agent_that_dies_or_stands_still_is_replaced() {
    let world = World::new(Setup::nodes(9).gated(), &[2 << 20]);
    let cluster = &world.cluster;
    cluster.links.let_pass(0);
    world.convert("hot", "cold", &["--concurrency", "1"]).end().ok();
    let dead = world.worker(&[]);
    cluster.kill(&dead);
    let stopped = world.worker(std::slice::from_ref(&dead));
    cluster.signal(&stopped, "STOP");
    cluster.links.let_all_pass();
    let stopped_pid = cluster.pid(&stopped);
    let job = world.done(1);
    assert!(is_alive(stopped_pid) && counts(&job) == [1, 1, 0], "{job}");
    let log = cluster.log("coordinator");
    assert!(log.matches("cannot convert a stripe on this node").count() >= 2, "no node was replaced");
    cluster.signal(&stopped, "CONT");
    cluster.up().ok();
    cluster.wait_for_state(&[&dead, &stopped], "up");
    world.is("rs(4,2)", COLD);
}

#[test]
fn what_cannot_be_converted_is_told_and_stays() {
    let world = World::new(Setup::nodes(8), &[700_000, 100_000]);
    let cluster = &world.cluster;
    let blocks = cluster.blocks("hot/100000");
    let holders: Vec<&str> = blocks.iter().map(|block| block.node.as_str()).collect();
    cluster.weft(["policy", "create", "pair", "--code", "replication(2)", "--block-size", "256KiB", "--cell-size", "64KiB"]).ok();
    cluster.take_down(&holders);
    let ended = world.convert("hot", "pair", &["--wait"]).end().code(4);
    let job = ended.json();
    assert!(ended.stderr.contains("not converted"), "{}", ended.stderr);
    let left = job["gave_up_objects"].as_array().unwrap();
    assert!(left.iter().any(|it| it["object"] == "hot/100000" && it["reason"].as_str().unwrap().contains("down")), "{job}");
    let shown = cluster.weft(["job", "show", "1"]).ok();
    assert!(shown.text().contains("gave up: hot/100000 stripe 0: "), "{}", shown.text());
    cluster.up().ok();
    cluster.wait_for_state(&holders, "up");
    assert_eq!(cluster.stat("hot/100000")["code"], "replication(3)");
    world.convert("hot", "pair", &["--wait"]).end().ok();
    world.is("replication(2)", (2, 256 << 10));
}

#[test]
fn a_conversion_that_is_cancelled_does_not_wait_for_its_stripe() {
    let world = World::new(Setup::nodes(9).gated(), &[16 << 20]);
    let sizes = ["--block-size", "4MiB", "--cell-size", "1MiB"];
    world.cluster.weft(["policy", "create", "large", "--code", "rs(4,2)"].iter().chain(&sizes)).ok();
    // Nothing reaches the agents.
    world.cluster.links.let_pass(0);
    world.convert("hot", "large", &[]).end().ok();
    world.worker(&[]);
    let begin = Instant::now();
    world.cluster.weft(["job", "cancel", "1"]).ok();
    world.cluster.weft(["job", "wait", "1"]).refused(1, &["job 1 was cancelled"]);
    assert!(begin.elapsed() < Duration::from_secs(10), "it took {:?}", begin.elapsed());
    assert_eq!(world.cluster.stat("hot/16777216")["code"], "replication(3)");
}

#[test]
fn more_stripes_at_once_than_all_agents_take_wait_for_their_turns() {
    let world = World::new(Setup::nodes(6), &[20 << 20]);
    world.convert("hot", "cold", &["--wait", "--concurrency", "64"]).end().ok();
    world.is("rs(4,2)", COLD);
    let log = world.cluster.log("coordinator");
    assert!(!log.contains("cannot convert an object"), "{log}");
    // An agent that has just reported the end of a conversion may not have released it yet.
    assert!(log.matches("conversions are already running").count() <= 4, "busy agents were asked repeatedly");
}
