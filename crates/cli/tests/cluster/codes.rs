//! Every family of codes on real nodes: objects are written, read with losses and rebuilt by every scheme, at the cost that the code
//! promises.

use crate::harness::{Block, Cluster, Setup, bytes, path, weft};
use serde_json::Value;
use std::fs;

/// Codes with their number of sub-blocks per cell.
const CODES: &[(&str, u64)] = &[
    ("rs(4,2,matrix=jerasure)", 1),
    ("xor(3)", 1),
    ("replication(3)", 1),
    ("lrc(4,2,2)", 1),
    ("rotated-rs(4,2)", 2),
    ("hitchhiker-xor(4,2)", 2),
    ("hitchhiker-xor+(4,2)", 2),
    ("butterfly(4)", 8),
    ("msr(3,3,d=4)", 2),
    ("clay(4,2)", 8),
    ("clay(5,3,d=6)", 16),
    ("hsrc(7,3)", 1),
];

const SCHEMES: [&str; 4] = ["conventional", "ppr", "pipeline", "auto"];

/// Two pages.
const SUB: u64 = 8 << 10;

fn info(spec: &str) -> Value {
    weft(["code", "info", spec, "--json"]).ok().json()
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is not a number"))
}

/// An object stored with a code.
struct Object {
    spec: &'static str,
    key: String,
    content: Vec<u8>,
    k: u64,
    n: u64,
    tolerance: u64,
}

impl Object {
    /// Stores `stripes` whole stripes of blocks of two cells, and `tail` bytes.
    fn put(cluster: &Cluster, number: usize, stripes: u64, tail: u64) -> Self {
        let (spec, alpha) = CODES[number];
        let info = info(spec);
        let [k, m, tolerance] = ["k", "m", "tolerance"].map(|name| self::number(&info[name]));
        assert_eq!(self::number(&info["alpha"]), alpha, "{spec}");
        let block_len = 2 * alpha * SUB;
        let content = bytes((stripes * k * block_len + tail) as usize, number as u64);
        let (key, [block, cell]) = (format!("object-{number}"), [block_len, alpha * SUB].map(|len| len.to_string()));
        cluster.put(&key, &content, &["--code", spec, "--block-size", &block, "--cell-size", &cell]).ok();
        Self { spec, key, content, k, n: k + m, tolerance }
    }

    /// Reads it whole and in part, by every scheme.
    fn is_read(&self, cluster: &Cluster) {
        let (from, to) = (self.content.len() / 3 + 5, self.content.len() - 7);
        for scheme in SCHEMES {
            cluster.expect(&self.key, &self.content, &["--scheme", scheme]);
            let range = format!("{from}-{}", to - 1);
            cluster.expect(&self.key, &self.content[from..to], &["--scheme", scheme, "--range", &range]);
        }
    }

    fn is_well(&self, cluster: &Cluster, down: &[&str]) {
        let blocks = cluster.blocks(&self.key);
        let is_well = |block: &Block| block.state == "ok" && !down.contains(&block.node.as_str());
        assert!(blocks.iter().all(is_well), "{}: {blocks:?}", self.spec);
        cluster.expect(&self.key, &self.content, &[]);
    }

    /// The largest number of blocks that one of its stripes would lose.
    fn losses(&self, blocks: &[Block], down: &[&str]) -> u64 {
        let lost = |stripe: &[Block]| stripe.iter().filter(|block| down.contains(&block.node.as_str())).count() as u64;
        blocks.chunks(self.n as usize).map(lost).max().unwrap_or_default()
    }
}

/// The `count` nodes whose loss brings the most objects to the limit: a stripe has lost as many blocks as it tolerates.
fn worst(cluster: &Cluster, objects: &[&Object], count: u64) -> Vec<String> {
    let nodes = cluster.nodes();
    let blocks: Vec<Vec<Block>> = objects.iter().map(|object| cluster.blocks(&object.key)).collect();
    let mut sets: Vec<Vec<&str>> = vec![Vec::new()];
    for _ in 0..count {
        let mut longer = Vec::new();
        for set in &sets {
            let after = nodes.iter().map(String::as_str).filter(|node| set.last().is_none_or(|last| last < node));
            longer.extend(after.map(|node| [set.as_slice(), &[node]].concat()));
        }
        sets = longer;
    }
    let is_full = |set: &[&str], at: usize| objects[at].losses(&blocks[at], set) == objects[at].tolerance;
    let score = |set: &Vec<&str>| (0..objects.len()).filter(|at| is_full(set, *at)).count();
    let best = sets.into_iter().max_by_key(score).expect("there are nodes");
    assert!(score(&best) * 2 >= objects.len(), "{best:?}");
    best.into_iter().map(str::to_owned).collect()
}

#[test]
fn every_code_is_read_around_losses_and_rebuilt() {
    let cluster = Setup::nodes(11).up();
    let objects: Vec<Object> =
        (0..CODES.len()).map(|number| Object::put(&cluster, number, 2, 70_001 + 4096 * number as u64)).collect();
    for count in 1..=3 {
        let these: Vec<&Object> = objects.iter().filter(|object| object.tolerance == count).collect();
        let down = worst(&cluster, &these, count);
        let down: Vec<&str> = down.iter().map(String::as_str).collect();
        cluster.take_down(&down);
        for (object, scheme) in these.iter().zip(SCHEMES.iter().cycle()) {
            object.is_read(&cluster);
            let told = cluster.weft(["repair", "object", &object.key, "--scheme", scheme, "--json"]).ok().json();
            assert_eq!(told["gave_up"].as_array().map(Vec::len), Some(0), "{} {scheme}: {told}", object.spec);
            object.is_well(&cluster, &down);
        }
        cluster.up().ok();
        cluster.wait_for_state(&down, "up");
    }
    objects.iter().for_each(|object| object.is_well(&cluster, &[]));
}

#[test]
fn every_scheme_rebuilds_the_same_bytes_of_every_code() {
    let cluster = Setup::nodes(9).up();
    for number in 0..CODES.len() {
        let object = Object::put(&cluster, number, 1, 50_001);
        for (at, scheme) in SCHEMES.into_iter().enumerate() {
            let index = [0, object.n - 1, object.k - 1, object.k][at] as usize;
            let these = || cluster.blocks(&object.key).into_iter().filter(|block| block.index == index).collect::<Vec<_>>();
            let payload = |block: &Block| fs::read(cluster.payload(block)).expect("its payload");
            let before: Vec<(u64, Vec<u8>)> = these().iter().map(|block| (block.generation, payload(block))).collect();
            let block = index.to_string();
            cluster.weft(["repair", "object", &object.key, "--block", &block, "--scheme", scheme]).ok();
            for (block, (generation, bytes)) in these().iter().zip(&before) {
                assert!(block.generation > *generation, "{} {scheme}: {block:?}", object.spec);
                assert!(payload(block) == *bytes, "{} {scheme}: {block:?} was rebuilt with other bytes", object.spec);
            }
        }
        object.is_well(&cluster, &[]);
    }
}

/// What agents read from disks and sent over sockets, by their own counters, matches the code's recipe.
#[test]
fn a_repair_reads_and_moves_what_the_code_promises() {
    let cluster = Setup::nodes(10).up();
    // The last code's slices are cut from cells, and it uses its default cell.
    let codes = [
        ("rs(4,2)", 1 << 20),
        ("lrc(4,2,2)", 1 << 20),
        ("rotated-rs(4,2)", 1 << 20),
        ("hitchhiker-xor(4,2)", 1 << 20),
        ("butterfly(4)", 1 << 20),
        ("msr(3,3,d=5)", 1152 << 10),
        ("clay(4,2)", 1 << 20),
        ("clay(6,3)", 1728 << 10),
    ];
    for (number, (spec, block_len)) in codes.into_iter().enumerate() {
        let (info, key) = (info(spec), format!("object-{number}"));
        let content = bytes((self::number(&info["k"]) * block_len) as usize, number as u64);
        cluster.put(&key, &content, &["--code", spec, "--block-size", &block_len.to_string()]).ok();
        assert_eq!(cluster.stat(&key)["cell_size"], block_len, "{spec}");
        for block in info["blocks"].as_array().expect("blocks") {
            let index = block["index"].to_string();
            let args = ["repair", "object", &key, "--block", &index, "--scheme", "conventional", "--json"];
            let told = cluster.weft(args).ok().json();
            let promised = |name: &str| block[name].as_f64().expect("a number") * block_len as f64;
            for (counted, promised) in [
                ("bytes_read", promised("blocks_read")),
                ("bytes_moved", promised("blocks_moved")),
                ("bytes_written", block_len as f64),
            ] {
                let bytes = told[counted].as_f64().expect("a number");
                assert!((bytes - promised).abs() <= promised / 100.0, "{spec}, block {index}: {counted} {bytes}, not {promised}");
            }
        }
        is_explained(&cluster, &key, spec);
        let file = cluster.file("out");
        cluster.weft(["get", &key, path(&file)]).ok();
        assert!(fs::read(&file).expect("the file") == content, "{spec}");
    }
}

/// Without a named scheme, the output shows all considered schemes and their costs.
fn is_explained(cluster: &Cluster, key: &str, spec: &str) {
    let args = ["repair", "object", key, "--block", "0", "--explain"];
    let text = cluster.weft(args).ok().text().to_owned();
    let schemes = text.split("Schemes considered").nth(1).unwrap_or_else(|| panic!("{spec}: {text}"));
    let lines: Vec<&str> = schemes.lines().skip(1).take(4).map(str::trim).collect();
    assert!(lines[0].ends_with("chosen: the fastest"), "{spec}: {text}");
    for scheme in &SCHEMES[..3] {
        let line = lines.iter().find(|line| line.starts_with(scheme)).unwrap_or_else(|| panic!("{spec}: {text}"));
        assert!(["takes", "reads", "moves"].iter().all(|word| line.contains(word)), "{spec}: {text}");
    }
    let plan = cluster.weft(args.iter().chain(&["--json"])).ok().json();
    let considered = plan["considered"].as_array().unwrap_or_else(|| panic!("{plan}"));
    let seconds: Vec<f64> = considered.iter().map(|it| it["seconds"].as_f64().expect("a time")).collect();
    // Of about equally fast ones, the first is the one that moves least.
    assert!(seconds.windows(2).all(|pair| pair[0] <= pair[1] * 1.002), "{spec}: {plan}");
    let named = cluster.weft(args.iter().chain(&["--scheme", "ppr"])).ok();
    assert!(!named.text().contains("considered"), "only the named scheme was considered: {}", named.text());
}
