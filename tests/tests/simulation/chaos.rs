//! Repairs, moves, drains, balances, conversions and scrubs under two faults, each at any step of the work, once for each seed.
//!
//! A seed chooses the kind of work ([`Work`]), a pair of faults of [`PAIRS`], and for each fault the step at which it begins: after how many
//! lines of the trace. Who is hit is decided at that moment: the node that last began to read a block is a helper, the one that last began to
//! write one is a destination.
//!
//! **The fault budget.** Objects use `rs(4,2)` over nine agents, each in its own rack. Nothing that was stored is lost for good, but any
//! number of blocks may be out of reach for a while: so reads may fail during the work, but never return other bytes. In the end, all faults
//! are over, except that up to two nodes do not come back: these must be replaced.
//!
//! **What must hold**: the work ends, and names what it gave up; every stripe is at full strength, without nodes that are gone and again when
//! they have come back; no node has two blocks of a stripe; every object has its bytes; the disks hold exactly what the metadata names.
//! Meanwhile, status says of every stripe that lacks blocks that it is being rebuilt or what it waits for ([`named`]).
//! A node that is said to be drained has no block, and can be switched off and removed. After a balance, the disks are even. A scrub counts
//! each stripe once, finds a bit that flipped, and calls nothing else wrong. No job is left.

mod faults;
mod named;
mod works;

use crate::{BLOCK_LEN, BUCKET, CELL_LEN, CODE, replay, seeds, some_bytes, trace_file};
use faults::{FORWARD_MS, Fault, PAIRS, deeds};
use named::Named;
use rand::{Rng, SeedableRng, rngs::StdRng};
use std::{
    collections::BTreeSet,
    fs,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};
use weft_client::{
    Client, PutOptions,
    api::{Node, ObjectReply, Policy},
};
use weft_tests::{
    Acknowledged, Cluster, Deed, Failure, Hand, Shape, Trace, agent_name, check_apart, check_disks, check_readable, connect,
};
use weft_types::NodeId;
use works::{SCRUB_PERIOD, WORKS, Work};

const AGENTS: u32 = 9;
const COORDINATOR: &str = "coordinator";
const OBJECTS: usize = 3;
/// The number of seeds if the environment sets none: a few seconds each. With [`MANY`], each pair of faults has its turn.
const SEEDS: u64 = 3;
const MANY: u64 = PAIRS.len() as u64;
/// Threads that run seeds.
const THREADS: usize = 2;

/// One run.
#[derive(Debug, Clone, Copy)]
struct Case {
    work: Work,
    faults: (Fault, Fault),
}

impl Case {
    fn of(seed: u64) -> Self {
        let (pairs, works) = (PAIRS.len() as u64, WORKS.len() as u64);
        let work = (seed % pairs + seed / pairs) % works;
        Self { work: WORKS[work as usize], faults: PAIRS[(seed % pairs) as usize] }
    }
}

/// How many faults began while the work was under way, how often a node was found to change bytes, and how often status was compared with
/// stripes that lacked blocks.
#[derive(Default)]
struct Told {
    in_time: AtomicUsize,
    found_out: AtomicUsize,
    compared: AtomicUsize,
}

#[test]
fn work_survives_two_faults_at_any_step() {
    let seeds = seeds(SEEDS);
    let (next, failed, told) = (AtomicU64::new(seeds.start), Mutex::new(Vec::new()), Told::default());
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end {
                        return;
                    }
                    if let Err(failure) = run_to_the_end(seed, &told).1 {
                        let (case, trace) = (Case::of(seed), trace_file(seed));
                        let text = format!(
                            "seed {seed}, {case:?}: {failure}\n  trace:  {}\n  replay: {}",
                            trace.display(),
                            replay(seed)
                        );
                        failed.lock().unwrap_or_else(PoisonError::into_inner).push(text);
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
    let runs = seeds.end - seeds.start;
    assert!(failed.is_empty(), "{} of {runs} seeds failed:\n{}", failed.len(), failed.join("\n"));
    let (in_time, found_out) = (told.in_time.load(Ordering::Relaxed), told.found_out.load(Ordering::Relaxed));
    let compared = told.compared.load(Ordering::Relaxed);
    println!(
        "{runs} seeds: {in_time} faults began during the work, {found_out} rebuilt blocks were wrong at first, {compared} times status was \
         compared with stripes that lacked blocks"
    );
    if runs < MANY {
        return;
    }
    assert!(in_time as u64 >= runs, "too few faults begin while the work is under way");
    assert!(found_out > 0, "no rebuilt block was wrong");
    assert!(compared as u64 >= runs, "stripes that lack blocks are seldom compared with status");
    let (first, second) = (run_to_the_end(seeds.start, &told).0, run_to_the_end(seeds.start, &told).0);
    let difference = first.difference(&second).unwrap_or_default();
    assert!(difference.is_empty(), "{}\ntwo runs of seed {} differ: {difference}", replay(seeds.start), seeds.start);
}

fn run_to_the_end(seed: u64, told: &Told) -> (Trace, Result<(), Failure>) {
    let trace = Trace::default();
    let ended = catch_unwind(AssertUnwindSafe(|| trace.capture(|| run(seed, &trace, told))));
    let ended = ended.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned().or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
        Err(Failure(format!("it panicked: {}", text.unwrap_or_default())))
    });
    if let Err(failure) = &ended {
        trace.event("-", failure);
    }
    if ended.is_err() || std::env::var_os("WEFT_SIM_SEED").is_some() {
        let _no_trace = fs::write(trace_file(seed), trace.text());
    }
    told.found_out.fetch_add(trace.text().matches("one of which changes bytes").count(), Ordering::Relaxed);
    (trace, ended)
}

fn run(seed: u64, trace: &Trace, told: &Told) -> Result<(), Failure> {
    let time_max = Duration::from_secs(1_500);
    let scrub_period = (Case::of(seed).work == Work::ScrubAlways).then_some(SCRUB_PERIOD);
    let (disks_per_agent, memory_budget_bytes) = (1, 32 << 20);
    let shape =
        Shape { agents: AGENTS, racks: AGENTS, disks_per_agent, memory_budget_bytes, heals: true, scrub_period, time_max };
    let mut cluster = Cluster::new(seed, shape, trace);
    let config = cluster.client_config("client", seed ^ 2);
    let left: Arc<Mutex<Left>> = Arc::default();
    let (hand, traced, tells) = (cluster.hand(), trace.clone(), Arc::clone(&left));
    cluster.client("client", async move {
        let (client, rng) = (connect(config).await, StdRng::seed_from_u64(seed));
        let (case, known) = (Case::of(seed), Acknowledged::default());
        let (victim, node, puts, begun, is_cancelled) = (0, NodeId(0), 0, Arc::default(), Arc::default());
        let (drains, is_removed, converts) = (false, false, false);
        let mut story = Story {
            client,
            hand,
            rng,
            case,
            trace: traced,
            known,
            victim,
            node,
            drains,
            is_removed,
            converts,
            puts,
            begun,
            is_cancelled,
            named: Named::default(),
        };
        story.tell().await?;
        let mut objects = Vec::new();
        for key in story.known.objects.keys() {
            objects.push(story.client.stat(BUCKET, key).await?);
        }
        let (begun, removed) = (story.begun.load(Ordering::Relaxed), story.is_removed.then_some(story.victim));
        let compared = story.named.compared;
        *tells.lock().unwrap_or_else(PoisonError::into_inner) = Left { objects, begun, removed, compared };
        story.client.close().await;
        Ok(())
    });
    cluster.run()?;
    if let Some(over) = cluster.over_budget().first() {
        return Err(Failure(over.clone()));
    }
    let mut disks = cluster.disks();
    let _dir = cluster.switch_off();
    let left = std::mem::take(&mut *left.lock().unwrap_or_else(PoisonError::into_inner));
    told.in_time.fetch_add(left.begun, Ordering::Relaxed);
    told.compared.fetch_add(left.compared, Ordering::Relaxed);
    // What a node that was removed has on its disk is not the cluster's any more.
    left.removed.map(|agent| disks.remove(agent as usize - 1));
    check_disks(&disks, &left.objects, &BTreeSet::new())
}

/// The results of a story.
#[derive(Default)]
struct Left {
    objects: Vec<ObjectReply>,
    /// How many faults have begun.
    begun: usize,
    /// The agent whose node was removed.
    removed: Option<u32>,
    /// How often status was compared with stripes that lacked blocks.
    compared: usize,
}

struct Story {
    client: Client,
    hand: Hand,
    rng: StdRng,
    case: Case,
    trace: Trace,
    known: Acknowledged,
    /// The agent that is lost first, emptied or filled, and its node.
    victim: u32,
    node: NodeId,
    /// Whether it is being drained, and whether it was removed.
    drains: bool,
    is_removed: bool,
    /// Whether objects are converted beside a scrub, and how many were put.
    converts: bool,
    puts: u64,
    /// How many faults have begun.
    begun: Arc<AtomicUsize>,
    /// Whether an operator is to end the work.
    is_cancelled: Arc<AtomicBool>,
    /// Whether status says what becomes of each stripe.
    named: Named,
}

impl Story {
    async fn tell(&mut self) -> Result<(), Failure> {
        self.until_up(AGENTS).await?;
        for (name, code) in [("triple", "replication(3)"), ("coded", CODE)] {
            let (name, code, failure_domain) = (name.into(), code.into(), "node".into());
            let policy = Policy { name, code, failure_domain, block_len: BLOCK_LEN, cell_len: CELL_LEN, ..Policy::default() };
            self.client.create_policy(policy).await?;
        }
        self.client.create_bucket(BUCKET, "coded").await?;
        self.victim = self.rng.random_range(1..=AGENTS);
        self.node = self.node_of(self.victim).await?;
        let (victim, stays_empty) = (agent_name(self.victim), self.case.work == Work::Balance);
        if stays_empty {
            self.set_drain(true).await?;
        }
        for number in 0..OBJECTS {
            let bytes = some_bytes(&mut self.rng, 3 * 4 * BLOCK_LEN as usize - 1_000);
            let options = PutOptions { code: CODE.into(), block_len: BLOCK_LEN, cell_len: CELL_LEN, ..PutOptions::default() };
            let key = format!("object-{number}");
            self.client.put(BUCKET, &key, &bytes[..], &options).await?;
            self.known.objects.insert(key, bytes);
        }
        if stays_empty {
            self.set_drain(false).await?;
        }
        if matches!(self.case.work, Work::RepairNode | Work::Heal) {
            self.now(Deed::PowerOff(victim.clone()));
            self.hand.idle().await;
            self.until_up(AGENTS - 1).await?;
        }

        self.note(format_args!("{:?}", self.case));
        let steps = self.trace.len();
        self.work().await?;
        self.note(format_args!("the work took {} steps", self.trace.len() - steps));

        self.note("all faults are over");
        self.hand.forget_steps();
        self.hand.idle().await;
        self.all_well(&victim).await?;
        self.settle().await?;
        self.until_whole().await?;
        check_apart(&self.client, BUCKET, &self.known).await?;
        check_readable(&self.client, BUCKET, &self.known, "").await?;
        self.note("all nodes come back");
        (1..=AGENTS).for_each(|number| self.now(Deed::Start(agent_name(number))));
        self.hand.idle().await;
        self.until_up(AGENTS).await?;
        self.work_again().await?;
        self.scrub_all().await?;
        // Leases end, readers' grace ends, sweeps run.
        tokio::time::sleep(Duration::from_secs(30)).await;
        self.until_whole().await?;
        check_apart(&self.client, BUCKET, &self.known).await?;
        check_readable(&self.client, BUCKET, &self.known, "").await?;
        self.check_jobs().await
    }

    /// Does the work, with faults.
    async fn work(&mut self) -> Result<(), Failure> {
        let job = self.begin().await?;
        let (one, other) = self.case.faults;
        for fault in [one, other] {
            let (at, mut rng) =
                (self.trace.len() + self.rng.random_range(0..self.case.work.steps()), StdRng::from_rng(&mut self.rng));
            let (begun, is_cancelled) = (Arc::clone(&self.begun), Arc::clone(&self.is_cancelled));
            let (victim, trace) = (agent_name(self.victim), self.trace.clone());
            self.hand.at_step(at, move |roles| {
                begun.fetch_add(1, Ordering::Relaxed);
                is_cancelled.fetch_or(fault == Fault::Cancel, Ordering::Relaxed);
                trace.event("-", format_args!("== {fault:?}"));
                deeds(fault, roles, &victim, &mut rng)
            });
        }
        self.go_on(job).await
    }

    /// Ends all faults. Up to two nodes stay away.
    async fn all_well(&mut self, victim: &str) -> Result<(), Failure> {
        let (one, other) = self.case.faults;
        let stays_away = ![one, other].contains(&Fault::Third);
        self.now(Deed::Start(COORDINATOR.into()));
        self.now(Deed::GoOn(COORDINATOR.into()));
        if [one, other].into_iter().any(|fault| matches!(fault, Fault::ClockForward | Fault::RestartForward)) {
            // Garbage waits until the clock shows again what it did.
            self.now(Deed::SetClock(COORDINATOR.into(), FORWARD_MS));
        }
        for agent in (1..=AGENTS).map(agent_name) {
            self.now(Deed::GoOn(agent.clone()));
            self.now(Deed::Cure(agent.clone()));
            if !stays_away && agent != victim {
                self.now(Deed::Start(agent));
            }
        }
        self.hand.idle().await;
        if [one, other].contains(&Fault::Broken) {
            // A failed disk is used again when its agent has restarted.
            for agent in (1..=AGENTS).map(agent_name) {
                if self.trace.contains(&format!("Ail(\"{agent}\", Broken)")) {
                    self.now(Deed::Kill(agent.clone()));
                    self.hand.after(Duration::from_millis(1_500), Deed::Start(agent));
                }
            }
            self.hand.idle().await;
        }
        self.until("at least seven nodes are up", 60, async |story| story.up().await >= 7).await
    }

    /// Waits until no block is lost.
    async fn until_whole(&mut self) -> Result<(), Failure> {
        let mut left = String::new();
        for _ in 0..400 {
            match check_apart(&self.client, BUCKET, &self.known).await {
                Ok(()) => return Ok(()),
                Err(failure) => left = failure.0,
            }
            self.check_named().await?;
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        let told = self.client.health().await.map(|health| (health.healing, health.unreadable_stripes));
        Err(Failure(format!("the cluster does not heal itself: {left}; {told:?}")))
    }

    async fn until_up(&mut self, agents: u32) -> Result<(), Failure> {
        self.until(&format!("{agents} agents are up"), 60, async |story| story.up().await == agents as usize).await
    }

    async fn until(&mut self, what: &str, seconds: u32, is_so: impl AsyncFn(&Self) -> bool) -> Result<(), Failure> {
        for _ in 0..seconds * 5 {
            if is_so(self).await {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        Err(Failure(format!("not within {seconds} s: {what}")))
    }

    async fn up(&self) -> usize {
        let status = self.client.status().await;
        status.map_or(0, |status| status.nodes.iter().filter(|node| node.state == "up").count())
    }

    async fn nodes(&self) -> Vec<Node> {
        self.client.status().await.map(|status| status.nodes).unwrap_or_default()
    }

    async fn state_of(&self, agent: u32) -> String {
        let name = agent_name(agent);
        self.nodes().await.into_iter().find(|node| node.name == name).map(|node| node.state).unwrap_or_default()
    }

    async fn node_of(&self, agent: u32) -> Result<NodeId, Failure> {
        let name = agent_name(agent);
        let node = self.nodes().await.into_iter().find(|node| node.name == name).map(|node| NodeId(node.id));
        node.ok_or_else(|| Failure(format!("there is no node {name}")))
    }

    /// The agent of a node.
    async fn agent_of(&self, node: u32) -> Result<String, Failure> {
        let agent = self.nodes().await.into_iter().find(|it| it.id == node).map(|it| it.name);
        agent.ok_or_else(|| Failure(format!("there is no node {node}")))
    }

    fn now(&self, deed: Deed) {
        self.hand.after(Duration::ZERO, deed);
    }

    fn note(&self, what: impl std::fmt::Display) {
        self.trace.event("client", format_args!("== {what}"));
    }
}
