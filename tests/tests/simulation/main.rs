//! A whole cluster under faults, once for each seed.
//!
//! **The fault budget.** Objects use `rs(4,2)` over eight agents in four racks: a stripe survives the loss of any two of its
//! blocks. At any moment
//! - at most one agent is dead: its process is killed or its machine loses power, at a random time, also in the middle of a
//!   put. It comes back with its disks;
//! - at most one other agent is cut off from some of its peers, and sometimes from clients: messages between them are lost or
//!   held up, but the coordinator and that agent still reach each other. In about half of the seeds, the agent's disks fail
//!   instead: some reads fail, bits flip on the way to the disk and on the disk, and syncs fail; a disk whose sync failed is
//!   unusable until the agent restarts. These faults begin at a random time of the first puts, and end when all other agents
//!   are up. Spoiled blocks stay spoiled until a repair replaces them. An agent holds at most one block of a stripe, so this is
//!   one loss, too;
//! - the coordinator is killed at a random time of a put, repair or conversion, and restarts with its disk within a few seconds;
//! - a client is killed in the middle of a put.
//!
//! Messages are delayed, but neither duplicated nor damaged: the tests of the wire cover that. Blocks that are not read are not
//! checked: a parity block may stay spoiled to the end, but only if an injected fault spoiled it.
//!
//! **What must hold** is in the crate's `checks`. Acknowledged objects can be read at any time, byte for byte. Objects that were
//! not acknowledged are not visible, unless the outcome of their put is unknown. No agent's tasks exceed their memory budget.
//! Once the cluster is quiet, the disks hold exactly the blocks that the metadata names. Comparing disks with the metadata, which
//! happens many times meanwhile, quarantines no block.
//!
//! In some runs, the cluster rebuilds lost blocks without a person ([`weft_coordinator`]'s healer), and the client only waits for it.
//!
//! Runs with copies use `rs(2,2)` and two copies of the data: a stripe has six blocks, too, of which any two may be lost. These
//! runs also cool objects down and heat them up.
//!
//! `WEFT_SIM_SEED=7` runs one seed, `WEFT_SIM_SEEDS=200` runs 200. `WEFT_SIM_HASHES=FILE` appends a line for each run: its seed,
//! whether data have copies, and the hash of its trace without log lines. A change that must not affect behaviour must leave
//! these lines unchanged.

mod chaos;
mod network;
mod updates;

use rand::{Rng, SeedableRng, rngs::StdRng, seq::IndexedRandom};
use std::{
    collections::BTreeMap,
    env, fs,
    io::Write as _,
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};
use tokio::io::{AsyncRead, ReadBuf};
use weft_client::{
    Client, ConvertOptions, PutOptions, RepairOptions,
    api::{ObjectReply, Policy, Stripe, repair_event::Event},
};
use weft_tests::{
    Acknowledged, Ailment, Cluster, Deed, Failure, Hand, Shape, Trace, agent_name, check_disks, check_readable, check_visible,
    connect,
};
use weft_types::Reaction;

const AGENTS: u32 = 8;
const BUCKET: &str = "bucket";
const CODE: &str = "rs(4,2)";
/// The code of a run with copies.
const HOT_CODE: &str = "rs(2,2)";
const HOT_DATA_BLOCKS: u32 = 2;
const BLOCK_LEN: u64 = 128 << 10;
const CELL_LEN: u64 = 16 << 10;
const SCHEMES: [&str; 3] = ["conventional", "ppr", "pipeline"];
/// The number of seeds if the environment sets none.
const SEEDS: u64 = 12;
/// How many are added at a time until every kind of disk fault has happened.
const MORE_SEEDS: u64 = 4;
/// The kinds of disk faults.
const KINDS: usize = 4;
/// The same for runs with copies.
const SEEDS_WITH_COPIES: u64 = 4;
/// The same for runs in which the cluster heals itself.
const SEEDS_THAT_HEAL: u64 = 4;
/// Threads that run seeds, each its own simulation.
const THREADS: usize = 2;

/// What distinguishes a run from the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Plain,
    /// Data have copies.
    Hot,
    /// Lost blocks are rebuilt without a person.
    Heals,
}

#[test]
fn acknowledged_objects_survive() {
    let seeds = seeds(SEEDS);
    let (rebuilt, repaired, mut befell) = all_survive(seeds.clone(), Kind::Plain);
    let enough = seeds.end - seeds.start >= 8;
    assert!(!enough || (rebuilt > 0 && repaired > 0), "no block was ever lost");
    // Any change of the code draws other faults: a few more seeds have the kinds that are missing.
    let mut more = seeds.end..seeds.end + MORE_SEEDS;
    while enough && befell.len() < KINDS && more.start < seeds.end + 4 * MORE_SEEDS {
        let (.., others) = all_survive(more.clone(), Kind::Plain);
        others.into_iter().for_each(|(ailment, times)| *befell.entry(ailment).or_default() += times);
        more = more.end..more.end + MORE_SEEDS;
    }
    assert!(!enough || befell.len() == KINDS, "not every kind of disk fault happened: {befell:?}");
}

#[test]
fn acknowledged_objects_with_copies_survive() {
    let seeds = seeds(SEEDS_WITH_COPIES);
    let (_, repaired, _) = all_survive(seeds.clone(), Kind::Hot);
    assert!(seeds.end - seeds.start < 4 || repaired > 0, "no block was ever lost");
}

#[test]
fn a_cluster_heals_itself() {
    let seeds = seeds(SEEDS_THAT_HEAL);
    let (_, repaired, _) = all_survive(seeds.clone(), Kind::Heals);
    assert!(seeds.end - seeds.start < 4 || repaired > 0, "no block was ever lost");
}

/// Returns how many blocks were rebuilt for readers and on disks, and how often each kind of disk fault happened.
fn all_survive(seeds: std::ops::Range<u64>, kind: Kind) -> (usize, usize, BTreeMap<Ailment, usize>) {
    let (next, failed) = (AtomicU64::new(seeds.start), Mutex::new(Vec::new()));
    let (rebuilt, repaired) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let befell: Mutex<BTreeMap<Ailment, usize>> = Mutex::default();
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end {
                        return;
                    }
                    match run_to_the_end(seed, kind).1 {
                        Ok(left) => {
                            rebuilt.fetch_add(left.rebuilt, Ordering::Relaxed);
                            repaired.fetch_add(left.repaired, Ordering::Relaxed);
                            let mut befell = befell.lock().unwrap_or_else(PoisonError::into_inner);
                            left.befell.iter().for_each(|(ailment, times)| *befell.entry(*ailment).or_default() += times);
                        }
                        Err(failure) => failed.lock().unwrap_or_else(PoisonError::into_inner).push((seed, failure)),
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
    assert!(failed.is_empty(), "{} of {} seeds failed:\n{}", failed.len(), seeds.end - seeds.start, told(&failed));
    let (rebuilt, repaired) = (rebuilt.into_inner(), repaired.into_inner());
    let befell = befell.into_inner().unwrap_or_else(PoisonError::into_inner);
    println!("{} seeds: {rebuilt} blocks rebuilt for readers, {repaired} on disks; {befell:?}", seeds.end - seeds.start);
    (rebuilt, repaired, befell)
}

#[test]
fn a_seed_gives_one_trace() {
    let seeds = seeds(SEEDS);
    for seed in seeds.start..seeds.end.min(seeds.start + 2) {
        let kind = if seed % 2 == 1 { Kind::Hot } else { Kind::Heals };
        let (first, second) = (run_to_the_end(seed, kind).0, run_to_the_end(seed, kind).0);
        let difference = first.difference(&second).unwrap_or_default();
        assert!(difference.is_empty(), "{}\ntwo runs of seed {seed} have different traces: {difference}", replay(seed));
        assert!(first.len() > 1_000, "a trace of {} lines is too short to compare", first.len());
    }
}

/// Whether a stripe has `of_each` further copies of each data block. Its code is the hot code, or one without copies.
fn has_copies(stripe: &Stripe, of_each: usize) -> bool {
    let data = stripe.blocks.iter().filter(|block| block.index < HOT_DATA_BLOCKS).count();
    stripe.copies.len() == of_each * data
}

fn seeds(usual: u64) -> std::ops::Range<u64> {
    let number =
        |name| env::var(name).ok().map(|text| text.parse::<u64>().unwrap_or_else(|_| panic!("{name}={text} is not a number")));
    match (number("WEFT_SIM_SEED"), number("WEFT_SIM_SEEDS")) {
        (Some(seed), _) => seed..seed + 1,
        (None, Some(seeds)) => 0..seeds,
        (None, None) => 0..usual,
    }
}

fn replay(seed: u64) -> String {
    format!("WEFT_SIM_SEED={seed} cargo test -p weft-tests --test simulation -- --nocapture")
}

fn told(failed: &[(u64, Failure)]) -> String {
    let tell = |(seed, failure): &(u64, Failure)| {
        let trace = trace_file(*seed);
        format!("seed {seed}: {failure}\n  trace:  {}\n  replay: {}\n", trace.display(), replay(*seed))
    };
    failed.iter().map(tell).collect()
}

fn trace_file(seed: u64) -> std::path::PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("simulation-{seed}.trace"))
}

/// Runs a seed. If it fails, writes its trace to a file.
fn run_to_the_end(seed: u64, kind: Kind) -> (Trace, Result<Left, Failure>) {
    let trace = Trace::default();
    let ended = catch_unwind(AssertUnwindSafe(|| trace.capture(|| run(seed, kind, &trace))));
    let ended = ended.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned().or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
        Err(Failure(format!("it panicked: {}", text.unwrap_or_default())))
    });
    if let Err(failure) = &ended {
        trace.event("-", failure);
        let _no_trace = fs::write(trace_file(seed), trace.text());
    } else if env::var_os("WEFT_SIM_SEED").is_some() {
        let _no_trace = fs::write(trace_file(seed), trace.text());
        println!("seed {seed}: {} lines, {}, in {}", trace.len(), trace.hash(), trace_file(seed).display());
    }
    if let Some(file) = env::var_os("WEFT_SIM_HASHES") {
        let kind = match kind {
            Kind::Plain => "plain",
            Kind::Hot => "copies",
            Kind::Heals => "heals",
        };
        let line = format!("{seed} {kind} {}\n", trace.hash_without_log());
        let appended =
            fs::File::options().append(true).create(true).open(&file).and_then(|mut file| file.write_all(line.as_bytes()));
        appended.unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    }
    (trace, ended)
}

fn run(seed: u64, kind: Kind, trace: &Trace) -> Result<Left, Failure> {
    let mut rng = StdRng::seed_from_u64(seed);
    let (hot, heals, time_max) = (kind == Kind::Hot, kind == Kind::Heals, Duration::from_secs(900));
    let (memory_budget_bytes, scrub_period) = (32 << 20, None);
    let shape = Shape { agents: AGENTS, racks: 4, disks_per_agent: 2, memory_budget_bytes, heals, scrub_period, time_max };
    let mut cluster = Cluster::new(seed, shape, trace);
    let config = cluster.client_config("writer", seed ^ 1);
    let doomed = some_bytes(&mut rng, 3 * 4 * BLOCK_LEN as usize);
    let doomed_until = rng.random_range(0..doomed.len());
    cluster.host("writer", config, move |client| put_without_end(client, hot, doomed[..doomed_until].to_vec()));

    let left: Arc<Mutex<Left>> = Arc::default();
    let config = cluster.client_config("client", seed ^ 2);
    let (hand, told, traced) = (cluster.hand(), Arc::clone(&left), trace.clone());
    cluster.client("client", async move {
        let client = connect(config).await;
        let mut story =
            Story { client, hand, rng, hot, heals, known: Acknowledged::default(), trace: traced, rebuilt: 0, repaired: 0 };
        story.tell().await?;
        let objects = story.placed().await?;
        let (rebuilt, repaired) = (story.rebuilt, story.repaired);
        *told.lock().unwrap_or_else(PoisonError::into_inner) = Left { objects, rebuilt, repaired, ..Left::default() };
        Ok(())
    });
    cluster.run()?;
    if let Some(over) = cluster.over_budget().first() {
        return Err(Failure(over.clone()));
    }
    let (disks, sickness) = (cluster.disks(), cluster.sickness());
    let _dir = cluster.switch_off();
    let left = std::mem::take(&mut *left.lock().unwrap_or_else(PoisonError::into_inner));
    check_disks(&disks, &left.objects, &sickness.spoiled())?;
    Ok(Left { befell: sickness.befell(), ..left })
}

/// The results of a story.
#[derive(Default)]
struct Left {
    objects: Vec<ObjectReply>,
    rebuilt: usize,
    repaired: usize,
    befell: BTreeMap<Ailment, usize>,
}

/// The faults of one cluster, and what its client does during them.
struct Story {
    client: Client,
    hand: Hand,
    rng: StdRng,
    /// Whether data have copies.
    hot: bool,
    /// Whether lost blocks are rebuilt without a person.
    heals: bool,
    known: Acknowledged,
    trace: Trace,
    /// Blocks that were rebuilt for readers, and on disks.
    rebuilt: usize,
    repaired: usize,
}

impl Story {
    async fn tell(&mut self) -> Result<(), Failure> {
        self.until_up(AGENTS as usize).await?;
        let (block_len, cell_len) = (BLOCK_LEN, CELL_LEN);
        for (name, code, replicas) in [("triple", "replication(3)", 1), ("coded", CODE, 1), ("hot", HOT_CODE, 2)] {
            let (name, code, failure_domain) = (name.into(), code.into(), "rack".into());
            let policy = Policy { name, code, failure_domain, block_len, cell_len, replicas, ..Policy::default() };
            self.client.create_policy(policy).await?;
        }
        self.client.create_bucket(BUCKET, if self.hot { "hot" } else { "" }).await?;
        let victim = self.rng.random_range(1..=AGENTS);
        let apart = (victim + self.rng.random_range(1..AGENTS) - 1) % AGENTS + 1;
        let (victim, apart) = (agent_name(victim), agent_name(apart));
        let sick = self.rng.random_bool(0.5);

        self.note("an agent dies during puts");
        self.within(1_000, Deed::Kill("writer".into()));
        if sick {
            self.within(100, Deed::Sicken(apart.clone()));
        }
        let end = if self.rng.random() { Deed::Kill(victim.clone()) } else { Deed::PowerOff(victim.clone()) };
        self.within(300, end);
        for number in 0..4 {
            self.put(&format!("object-{number}")).await?;
        }
        self.hand.idle().await;
        check_visible(&self.client, BUCKET, &self.known).await?;

        self.note(if sick { "the disks of another are bad" } else { "another is apart from some of its peers" });
        let cuts = if sick { Vec::new() } else { self.separate(&apart, &victim) };
        for scheme in self.schemes() {
            self.rebuilt += check_readable(&self.client, BUCKET, &self.known, scheme).await?;
        }
        self.hand.idle().await;
        self.put("object-4").await?;
        for round in 0..if sick { 4 } else { 0 } {
            self.put(&format!("object-{}", 2 + round)).await?;
            self.rebuilt += check_readable(&self.client, BUCKET, &self.known, "").await?;
        }

        self.note("what is lost is rebuilt");
        self.until_up(AGENTS as usize - 1).await?;
        if self.rng.random() {
            self.heal(&cuts);
        }
        if self.rng.random() {
            self.coordinator_dies();
        }
        self.repair_all().await?;
        self.rebuilt += check_readable(&self.client, BUCKET, &self.known, "").await?;
        self.hand.idle().await;

        self.note("all come back");
        self.heal(&cuts);
        self.within(500, Deed::Start(victim.clone()));
        self.coordinator_dies();
        self.put("object-0").await?;
        check_readable(&self.client, BUCKET, &self.known, "pipeline").await?;
        self.hand.idle().await;
        self.until_up(AGENTS as usize).await?;
        if sick {
            self.hand.after(Duration::from_millis(1), Deed::Cure(apart.clone()));
            self.hand.after(Duration::from_millis(2), Deed::Kill(apart.clone()));
            let is_away = self.moment(1_000);
            self.hand.after(is_away + Duration::from_millis(2), Deed::Start(apart));
            self.hand.idle().await;
        }
        self.remove("object-1").await?;
        if self.hot {
            self.cool_and_heat("object-2").await?;
        }
        self.mend().await?;

        self.note("all is converted, and back");
        let dies = self.moment(300);
        let is_away = dies + self.moment(5_000);
        self.hand.after(dies, Deed::Kill(victim.clone()));
        self.hand.after(is_away, Deed::Start(victim));
        self.convert("triple", "replication(3)", 0).await?;
        self.coordinator_dies();
        match self.hot {
            false => self.convert("coded", CODE, 0).await?,
            true => self.convert("hot", HOT_CODE, 1).await?,
        }
        self.hand.idle().await;
        self.until_up(AGENTS as usize).await?;
        self.mend().await?;
        check_readable(&self.client, BUCKET, &self.known, "").await?;
        // Leases end, readers' grace ends, sweeps run.
        tokio::time::sleep(Duration::from_secs(45)).await;
        check_visible(&self.client, BUCKET, &self.known).await?;
        check_readable(&self.client, BUCKET, &self.known, "").await?;
        self.client.close().await;
        Ok(())
    }

    /// The objects, and where their blocks are, at the end.
    async fn placed(&self) -> Result<Vec<ObjectReply>, Failure> {
        let mut objects = Vec::new();
        for key in self.known.objects.keys() {
            objects.push(self.client.stat(BUCKET, key).await?);
        }
        Ok(objects)
    }

    /// Waits until this many agents are up, according to the coordinator.
    async fn until_up(&self, agents: usize) -> Result<(), Failure> {
        for _ in 0..300 {
            if let Ok(status) = self.client.status().await
                && status.nodes.iter().filter(|node| node.state == "up").count() == agents
            {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Err(Failure(format!("the number of agents that are up did not become {agents}")))
    }

    /// Puts an object. As long as the faults stay within the budget, the put succeeds, possibly after retries.
    async fn put(&mut self, key: &str) -> Result<(), Failure> {
        let longest = 3 * 4 * BLOCK_LEN as usize;
        let len = *[0, 1, 4096, self.rng.random_range(0..longest), self.rng.random_range(0..longest)]
            .choose(&mut self.rng)
            .unwrap_or(&0);
        let bytes = some_bytes(&mut self.rng, len);
        for attempt in 0..6 {
            let put = self.client.put(BUCKET, key, &bytes[..], &options(self.hot)).await;
            self.note(format_args!(
                "put {key} of {len} bytes: {}",
                put.as_ref().map_or_else(ToString::to_string, |_| "done".into())
            ));
            match put {
                Ok(_) => {
                    self.known.objects.insert(key.into(), bytes);
                    self.known.unknown.remove(key);
                    return Ok(());
                }
                Err(error) if error.reaction == Reaction::Retry => {
                    self.known.unknown.insert(key.into(), bytes.clone());
                    tokio::time::sleep(Duration::from_secs(1 + attempt)).await;
                }
                Err(error) => return Err(Failure(format!("a put of {key} failed: {error}"))),
            }
        }
        Err(Failure(format!("{key} cannot be put")))
    }

    /// Drops an object's copies and makes them again, although the coordinator dies meanwhile.
    async fn cool_and_heat(&mut self, key: &str) -> Result<(), Failure> {
        self.coordinator_dies();
        for heat in [None, Some(2)] {
            let mut attempts = 0;
            loop {
                let done = match heat {
                    None => self.client.cool(BUCKET, key).await.map(|cooled| cooled.blocks),
                    heat => self.rebuild(key, &RepairOptions { heat, ..RepairOptions::default() }).await.map(|made| made as u64),
                };
                self.note(format_args!("{key} with {heat:?} copies: {done:?}"));
                let Err(error) = done else { break };
                attempts += 1;
                if attempts == 10 {
                    return Err(Failure(format!("{key} cannot be cooled and heated: {error}")));
                }
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            check_readable(&self.client, BUCKET, &self.known, "").await?;
        }
        self.hand.idle().await;
        let stat = self.client.stat(BUCKET, key).await?;
        match stat.stripes.iter().find(|stripe| !has_copies(stripe, 1)) {
            Some(stripe) => {
                Err(Failure(format!("stripe {} of {key} was heated and has {} copies", stripe.id, stripe.copies.len())))
            }
            None => Ok(()),
        }
    }

    async fn remove(&mut self, key: &str) -> Result<(), Failure> {
        self.client.remove(BUCKET, key).await?;
        self.known.objects.remove(key);
        self.note(format_args!("{key} is removed"));
        Ok(())
    }

    /// Converts all objects during reads and writes. At the end, all objects have the code, and `copies` further copies of
    /// each data block.
    async fn convert(&mut self, policy: &str, code: &str, copies: usize) -> Result<(), Failure> {
        for _ in 0..6 {
            let begun = self.client.convert(BUCKET, "", policy, &ConvertOptions::default()).await;
            self.put("object-2").await?;
            check_readable(&self.client, BUCKET, &self.known, "").await?;
            let jobs = self.client.jobs().await?;
            // The answer to the call may have been lost.
            let job = jobs.iter().rev().find(|job| begun.as_ref().map_or(job.state == "running", |begun| begun.id == job.id));
            let Some(job) = job else { continue };
            let ended = self.client.wait_for_job(job.id, |_| {}).await?;
            self.note(format_args!("conversion to {policy}: {}, {}", ended.state, ended.last_error));
            let mut others = 0;
            for key in self.known.objects.keys() {
                let stat = self.client.stat(BUCKET, key).await?;
                let is_converted = stat.code == code && stat.stripes.iter().all(|stripe| has_copies(stripe, copies));
                others += usize::from(!is_converted);
            }
            match (ended.state.as_str(), others) {
                ("done", 0) => return Ok(()),
                // The put may have been committed after the end of the job.
                ("done", 2..) => return Err(Failure(format!("the job is done, but {others} objects are not converted"))),
                _ => tokio::time::sleep(Duration::from_secs(2)).await,
            }
        }
        Err(Failure(format!("the objects cannot be converted to {policy}")))
    }

    /// Reads and repairs until no more damage is found: a repair may find that its helpers are spoiled, too.
    async fn mend(&mut self) -> Result<(), Failure> {
        for _ in 0..6 {
            let repaired = self.repaired;
            check_readable(&self.client, BUCKET, &self.known, "").await?;
            // Give the coordinator time to receive the reports on spoiled blocks.
            tokio::time::sleep(Duration::from_secs(2)).await;
            self.until_up(AGENTS as usize).await?;
            self.repair_all().await?;
            if self.repaired == repaired {
                return Ok(());
            }
        }
        Err(Failure("each round of repairs finds more damage".into()))
    }

    /// Waits until no block that is known to be lost is left.
    async fn until_whole(&mut self) -> Result<(), Failure> {
        let mut left = String::new();
        for _ in 0..400 {
            if let Ok(health) = self.client.health().await {
                let done = health.healing.and_then(|it| it.done).map_or(0, |done| done.blocks);
                self.repaired = self.repaired.max(done as usize);
            }
            match self.lost().await {
                Ok(None) => return Ok(()),
                Ok(Some(block)) => left = block,
                Err(error) => left = error.to_string(),
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        let told = self.client.health().await.map(|health| health.healing);
        Err(Failure(format!("the cluster does not heal itself: {left}; {told:?}")))
    }

    /// A block that is known to be lost.
    async fn lost(&self) -> Result<Option<String>, weft_types::Error> {
        for key in self.known.objects.keys() {
            let stat = self.client.stat(BUCKET, key).await?;
            for stripe in stat.stripes {
                if let Some(lost) = stripe.blocks.iter().chain(&stripe.copies).find(|block| block.state != "ok") {
                    return Ok(Some(format!("block {} of stripe {} of {key} is {}", lost.index, stripe.id, lost.state)));
                }
            }
        }
        Ok(None)
    }

    async fn repair_all(&mut self) -> Result<(), Failure> {
        if self.heals {
            return self.until_whole().await;
        }
        let keys: Vec<String> = self.known.objects.keys().cloned().collect();
        for key in keys {
            let mut attempts = 0;
            while let Err(error) = self.repair(&key).await {
                attempts += 1;
                // The coordinator may die during a repair.
                if attempts == 10 {
                    return Err(Failure(format!("{key} cannot be repaired: {error}")));
                }
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
        Ok(())
    }

    async fn repair(&mut self, key: &str) -> Result<(), weft_types::Error> {
        let scheme = SCHEMES.choose(&mut self.rng).copied().unwrap_or_default();
        let options = RepairOptions { scheme: scheme.into(), ..RepairOptions::default() };
        let done = self.rebuild(key, &options).await;
        self.note(format_args!("repair of {key} by {scheme}: {done:?}"));
        self.repaired += *done.as_ref().unwrap_or(&0);
        done.map(|_: usize| ())
    }

    /// Repairs an object as requested; fails if a block is left. Returns the number of rebuilt blocks.
    async fn rebuild(&self, key: &str, options: &RepairOptions) -> Result<usize, weft_types::Error> {
        let mut repair = self.client.repair(BUCKET, key, options).await?;
        let mut blocks = 0;
        while let Some(event) = repair.next().await? {
            if let Some(Event::Done(done)) = event.event {
                blocks += done.blocks.len();
                if let Some(left) = done.left.first() {
                    return Err(weft_types::Error::unavailable(format!("block {} is left: {}", left.index, left.reason)));
                }
            }
        }
        Ok(blocks)
    }

    /// Cuts an agent off from some of its peers. Returns the pairs.
    fn separate(&mut self, apart: &str, dead: &str) -> Vec<String> {
        let mut peers: Vec<String> = (1..=AGENTS).map(agent_name).filter(|peer| peer != apart && peer != dead).collect();
        peers.push("client".into());
        let lost = self.rng.random();
        peers.retain(|_| self.rng.random_bool(0.4));
        for peer in &peers {
            let (apart, peer) = (apart.to_string(), peer.clone());
            let deed = if lost { Deed::Cut(apart, peer) } else { Deed::Hold(apart, peer) };
            self.within(500, deed);
        }
        peers.into_iter().map(|peer| format!("{apart} {peer}")).collect()
    }

    fn heal(&self, cuts: &[String]) {
        for (apart, peer) in cuts.iter().filter_map(|cut| cut.split_once(' ')) {
            self.hand.after(Duration::from_secs(1), Deed::Heal(apart.into(), peer.into()));
        }
    }

    fn coordinator_dies(&mut self) {
        let (dies, is_away) = (self.moment(100), self.moment(3_000));
        self.hand.after(dies, Deed::Kill("coordinator".into()));
        self.hand.after(dies + is_away, Deed::Start("coordinator".into()));
    }

    /// Schedules an event at a random moment of the next `ms` milliseconds.
    fn within(&mut self, ms: u64, deed: Deed) {
        let delay = self.moment(ms);
        self.hand.after(delay, deed);
    }

    fn moment(&mut self, within_ms: u64) -> Duration {
        Duration::from_millis(self.rng.random_range(1..within_ms))
    }

    fn schemes(&mut self) -> [&'static str; 2] {
        let first = self.rng.random_range(0..SCHEMES.len());
        [SCHEMES[first], SCHEMES[(first + 1) % SCHEMES.len()]]
    }

    fn note(&self, what: impl std::fmt::Display) {
        self.trace.event("client", format_args!("== {what}"));
    }
}

fn options(hot: bool) -> PutOptions {
    let code = if hot { HOT_CODE } else { CODE };
    PutOptions { code: code.into(), block_len: BLOCK_LEN, cell_len: CELL_LEN, ..PutOptions::default() }
}

fn some_bytes(rng: &mut StdRng, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    rng.fill(&mut bytes[..]);
    bytes
}

/// A put whose data stop and never end: it must never be acknowledged.
async fn put_without_end(client: Client, hot: bool, bytes: Vec<u8>) -> Result<(), Failure> {
    loop {
        let put = client.put(BUCKET, "never", Endless { bytes: bytes.clone(), at: 0 }, &options(hot)).await;
        if let Ok(object) = put {
            return Err(Failure(format!("a put whose data never ended was acknowledged with {} bytes", object.size)));
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

struct Endless {
    bytes: Vec<u8>,
    at: usize,
}

impl AsyncRead for Endless {
    fn poll_read(mut self: Pin<&mut Self>, _: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<std::io::Result<()>> {
        let len = buf.remaining().min(self.bytes.len() - self.at);
        if len == 0 {
            return Poll::Pending;
        }
        buf.put_slice(&self.bytes[self.at..self.at + len]);
        self.at += len;
        Poll::Ready(Ok(()))
    }
}
