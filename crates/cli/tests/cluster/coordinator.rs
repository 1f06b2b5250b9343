//! A coordinator that is killed at random moments.

use crate::harness::{Setup, bytes, is_alive, path, wait_for};
use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
use std::{
    collections::BTreeMap,
    fs,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread,
    time::Duration,
};

const CODING: [&str; 6] = ["--code", "rs(3,2)", "--block-size", "64KiB", "--cell-size", "16KiB"];
const KEYS: u64 = 5;
const KILLS: usize = 6;

#[test]
fn a_copy_of_the_metadata_that_was_made_under_way_takes_its_place() {
    let cluster = Setup::nodes(5).up();
    let content = bytes(100_000, 1);
    cluster.put("kept", &content, &CODING).ok();
    let copy = cluster.file("copy.sqlite");
    let report = cluster.json(&["metadata", "backup", path(&copy)]);
    assert_eq!((&report["objects"], &report["epoch"]), (&1.into(), &1.into()), "{report}");
    cluster.weft(["metadata", "backup", path(&copy)]).refused(2, &["copy.sqlite already exists"]);
    cluster.down().ok();
    let dir = cluster.dir().join("coordinator");
    for entry in fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.file_name().unwrap().to_str().unwrap().starts_with("metadata.sqlite") {
            fs::remove_file(entry).unwrap();
        }
    }
    let settings = dir.join("coordinator.toml");
    cluster.weft(["metadata", "backup", "nothing", "--config", path(&settings)]).refused(3, &["there is no metadata in"]);
    fs::rename(&copy, dir.join("metadata.sqlite")).unwrap();
    cluster.up().ok();
    cluster.expect("kept", &content, &[]);
}

#[test]
fn daemons_log_that_they_stop_on_a_signal_and_that_they_have_stopped() {
    let cluster = Setup::nodes(2).up();
    for (name, daemon, signal) in
        [("node-01", "agent", "INT"), ("node-02", "agent", "TERM"), ("coordinator", "coordinator", "TERM")]
    {
        let pid = cluster.pid(name);
        cluster.signal(name, signal);
        wait_for(&format!("{name} to end"), || !is_alive(pid));
        let log = cluster.log(name);
        let lines: Vec<&str> = log.lines().filter(|line| line.contains(" INFO weft::")).collect();
        let ends = [format!("the {daemon} stops on SIG{signal}"), format!("the {daemon} has stopped")];
        let last: Vec<bool> = lines.iter().rev().take(2).rev().zip(&ends).map(|(line, end)| line.ends_with(end)).collect();
        assert_eq!(last, [true; 2], "{name}: {log}");
    }
}

#[test]
fn what_was_acknowledged_survives_whenever_the_coordinator_dies() {
    let cluster = Setup::nodes(6).up();
    let agents: Vec<u32> = cluster.nodes().iter().map(|node| cluster.pid(node)).collect();
    let (stop, stored) = (AtomicBool::new(false), AtomicUsize::new(0));
    // By key: the last acknowledged content, and the contents tried since.
    let mut told: BTreeMap<String, (Option<u64>, Vec<u64>)> = BTreeMap::new();
    thread::scope(|scope| {
        let puts = scope.spawn(|| {
            let mut told: BTreeMap<String, (Option<u64>, Vec<u64>)> = BTreeMap::new();
            for seed in 0.. {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                let key = format!("key-{}", seed % KEYS);
                let (acknowledged, tried) = told.entry(key.clone()).or_default();
                let put = cluster.put(&key, &content(seed), &CODING);
                if put.status.success() {
                    (*acknowledged, *tried) = (Some(seed), Vec::new());
                    stored.fetch_add(1, Ordering::Relaxed);
                } else {
                    eprintln!("{key}: {}", put.stderr);
                    tried.push(seed);
                }
            }
            told
        });
        // The other thread must end even if this one panics.
        let _stopped = StopAtEnd(&stop);
        let mut random = StdRng::seed_from_u64(11);
        for _ in 0..KILLS {
            let before = stored.load(Ordering::Relaxed);
            wait_for("puts to continue", || stored.load(Ordering::Relaxed) > before);
            thread::sleep(Duration::from_millis(random.random_range(50..900)));
            cluster.kill("coordinator");
            thread::sleep(Duration::from_millis(random.random_range(0..300)));
            cluster.up().ok();
        }
        stop.store(true, Ordering::Relaxed);
        told = puts.join().expect("the thread of the puts");
    });

    let nodes = cluster.nodes();
    cluster.wait_for_state(&nodes.iter().map(String::as_str).collect::<Vec<_>>(), "up");
    assert_eq!(agents, nodes.iter().map(|node| cluster.pid(node)).collect::<Vec<_>>(), "an agent was restarted");
    for (key, (acknowledged, tried)) in told {
        let out = cluster.file("out");
        let got = cluster.weft(["get", &key, path(&out)]);
        if acknowledged.is_none() && got.status.code() == Some(3) {
            continue;
        }
        got.ok();
        // A put whose answer was lost can still have been committed, as a whole.
        let found = fs::read(&out).unwrap();
        let candidates = acknowledged.iter().chain(&tried);
        assert!(candidates.into_iter().any(|seed| found == content(*seed)), "{key} has none of {acknowledged:?}, {tried:?}");
    }
}

/// One to four stripes, the last one short.
fn content(seed: u64) -> Vec<u8> {
    bytes(150_000 + (seed as usize % 4) * 200_000, seed)
}

struct StopAtEnd<'a>(&'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
