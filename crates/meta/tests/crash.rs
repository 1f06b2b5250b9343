//! Kills a process that changes the metadata at random moments. Everything that it acknowledged must be there
//! afterwards, and all or nothing of its last operation.
//!
//! The program starts itself as the process to kill: with a directory in its environment it makes the changes.

#[path = "meta/common.rs"]
mod common;

use common::{Model, apply, draw, dump, open, prepare};
use rand::{Rng, SeedableRng, rngs::StdRng};
use std::{
    io::{BufRead, BufReader, Write},
    path::PathBuf,
    process::{Command, Stdio},
    time::Duration,
};
use weft_meta::Result;
use weft_types::Epoch;

const DIR: &str = "WEFT_META_CRASH_DIR";
const SEED: &str = "WEFT_META_CRASH_SEED";
const KILLS: u64 = 12;

fn main() {
    match (std::env::var(DIR), std::env::var(SEED)) {
        (Ok(dir), Ok(seed)) => runtime().block_on(change(dir.into(), seed.parse().unwrap())),
        _ => what_was_acknowledged_survives_a_kill(),
    }
}

fn what_was_acknowledged_survives_a_kill() {
    let mut random = StdRng::seed_from_u64(1);
    let mut acknowledged_in_all = 0;
    for seed in 0..KILLS {
        let dir = tempfile::tempdir().unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .env(DIR, dir.path())
            .env(SEED, seed.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(std::result::Result::ok);
        assert_eq!(lines.next().as_deref(), Some("ready"));
        let id = child.id();
        let wait = Duration::from_millis(random.random_range(5..500));
        let killer = std::thread::spawn(move || {
            std::thread::sleep(wait);
            child.kill().unwrap();
            child.wait().unwrap();
        });
        let acknowledged = lines.filter(|line| line.starts_with("done ")).count();
        killer.join().unwrap();
        println!("process {id} was killed after {wait:?} and {acknowledged} operations");
        acknowledged_in_all += acknowledged;
        runtime().block_on(check(dir.path().into(), seed, acknowledged));
    }
    assert!(acknowledged_in_all > 0, "every process was killed before it had done anything");
}

/// Changes the metadata until the process is killed.
async fn change(dir: PathBuf, seed: u64) {
    let meta = open(&dir.join("metadata.sqlite"));
    let mut epoch = prepare(&meta).await;
    let mut work = Work::new(seed);
    println!("ready");
    for number in 0..100_000 {
        let op = work.next();
        let done: Result<()> = apply(&meta, epoch, &op).await;
        done.unwrap();
        epoch = Epoch(work.model.epoch);
        println!("done {number}");
        std::io::stdout().flush().unwrap();
    }
}

/// Operations that all succeed, in sequence: the same for the same seed.
struct Work {
    model: Model,
    random: StdRng,
}

impl Work {
    fn new(seed: u64) -> Self {
        Self { model: Model { epoch: 1, ..Model::default() }, random: StdRng::seed_from_u64(seed) }
    }

    fn next(&mut self) -> common::Op {
        loop {
            let op = draw(&self.model, &mut self.random);
            let mut after = self.model.clone();
            if after.apply(&op).is_some() {
                self.model = after;
                return op;
            }
        }
    }
}

async fn check(dir: PathBuf, seed: u64, acknowledged: usize) {
    let meta = open(&dir.join("metadata.sqlite"));
    let found = dump(&meta).await;
    let mut work = Work::new(seed);
    for _ in 0..acknowledged {
        work.next();
    }
    let before = work.model.visible();
    work.next();
    let after = work.model.visible();
    assert!(found == before || found == after, "seed {seed}, {acknowledged} acknowledged: {found:#?}\nis neither\n{before:#?}");
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().build().unwrap()
}
