//! Jobs of repair under two faults, each at any step of the job, once for each seed.
//!
//! A seed chooses the kind of work (the repair of a node, the healer, the move of a node's blocks, a conversion), a pair of faults of
//! [`PAIRS`], and for each fault the step at which it begins: after how many lines of the trace. Who is hit is decided at that moment: the
//! node that last began to read a block is a helper, the one that last began to write one is a destination.
//!
//! **The fault budget.** Objects use `rs(4,2)` over nine agents, each in its own rack. Nothing that was stored is lost for good, but any
//! number of blocks may be out of reach for a while: so reads may fail during the job, but never return other bytes. In the end, all faults
//! are over, except that up to two nodes do not come back: these must be replaced.
//!
//! **What must hold**: the job ends, and names what it gave up; every stripe is at full strength, without nodes that are gone and again when
//! they have come back; no node has two blocks of a stripe; every object has its bytes; the disks hold exactly what the metadata names.

use crate::{BLOCK_LEN, BUCKET, CELL_LEN, CODE, replay, seeds, some_bytes, trace_file};
use rand::{Rng, SeedableRng, rngs::StdRng};
use std::{
    collections::BTreeSet,
    fs,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};
use weft_client::{
    Client, ConvertOptions, GetOptions, PutOptions, RepairNodeOptions,
    api::{Job, ObjectReply, Policy},
};
use weft_tests::{
    Acknowledged, Cluster, Deed, Failure, Hand, Illness, Roles, Shape, Trace, agent_name, check_apart, check_disks,
    check_readable, connect,
};
use weft_types::NodeId;

const AGENTS: u32 = 9;
const COORDINATOR: &str = "coordinator";
const OBJECTS: usize = 3;
/// The number of seeds if the environment sets none: a few seconds each. With [`MANY`], each pair of faults has its turn.
const SEEDS: u64 = 3;
const MANY: u64 = PAIRS.len() as u64;
/// Threads that run seeds.
const THREADS: usize = 2;
/// By how much clocks are set. Backwards only a little: garbage waits until the clock shows again what it did.
const FORWARD_MS: i64 = 86_400_000;
const BACK_MS: i64 = -15_000;

/// What is done under faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Work {
    /// The repair of a node that is down.
    RepairNode,
    /// The healer replaces a lost node.
    Heal,
    /// The blocks of a node that is up are moved.
    Move,
    /// All objects are converted, and back.
    Convert,
}

const WORKS: [Work; 4] = [Work::RepairNode, Work::Heal, Work::Move, Work::Convert];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    KillHelper,
    KillDestination,
    KillCoordinator,
    StallHelper,
    StallDestination,
    StallCoordinator,
    SlowHelper,
    SlowDestination,
    /// The disk of a destination is full.
    Full,
    /// It fails.
    Broken,
    /// A helper returns other bytes than were written.
    Lying,
    /// A destination writes other bytes than it got.
    Spoiling,
    /// Nothing passes from a helper to a destination.
    OneWay,
    /// Another node is lost.
    Second,
    /// Two other nodes are lost.
    Third,
    /// The first lost node comes back.
    Returns,
    /// Three of nine nodes restart.
    Restarts,
    ClockForward,
    ClockBack,
    /// The coordinator restarts with another time.
    RestartForward,
    RestartBack,
}

use Fault::{
    Broken, ClockBack, ClockForward, Full, KillCoordinator, KillDestination, KillHelper, Lying, OneWay, RestartBack,
    RestartForward, Restarts, Returns, Second, SlowDestination, SlowHelper, Spoiling, StallCoordinator, StallDestination,
    StallHelper, Third,
};

const PAIRS: [(Fault, Fault); 21] = [
    (KillHelper, KillDestination),
    (KillCoordinator, KillHelper),
    (KillDestination, KillCoordinator),
    (Lying, KillDestination),
    (Lying, KillCoordinator),
    (Lying, Second),
    (Spoiling, KillHelper),
    (Spoiling, Full),
    (Full, KillDestination),
    (Broken, Second),
    (Broken, StallHelper),
    (StallHelper, StallDestination),
    (StallCoordinator, KillDestination),
    (SlowHelper, SlowDestination),
    (SlowDestination, OneWay),
    (OneWay, KillHelper),
    (Third, KillCoordinator),
    (Returns, Second),
    (Restarts, RestartForward),
    (RestartBack, StallHelper),
    (ClockForward, ClockBack),
];

/// One run.
#[derive(Debug, Clone, Copy)]
struct Case {
    work: Work,
    faults: (Fault, Fault),
}

impl Case {
    fn of(seed: u64) -> Self {
        let (pairs, works) = (PAIRS.len() as u64, WORKS.len() as u64);
        let work = (seed + seed / pairs) % works;
        Self { work: WORKS[work as usize], faults: PAIRS[(seed % pairs) as usize] }
    }

    /// About how many lines of the trace the work takes without faults.
    fn steps(self) -> usize {
        match self.work {
            Work::RepairNode | Work::Move => 500,
            Work::Heal => 900,
            Work::Convert => 5_500,
        }
    }
}

/// How many faults began while the work was under way, and how often a node was found to change bytes.
#[derive(Default)]
struct Told {
    in_time: AtomicUsize,
    found_out: AtomicUsize,
}

#[test]
fn repairs_survive_two_faults_at_any_step() {
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
    println!("{runs} seeds: {in_time} faults began during the work, {found_out} rebuilt blocks were wrong at first");
    if runs < MANY {
        return;
    }
    assert!(in_time as u64 >= runs, "too few faults begin while the work is under way");
    assert!(found_out > 0, "no rebuilt block was wrong");
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
    let shape = Shape { agents: AGENTS, racks: AGENTS, disks_per_agent: 1, memory_budget_bytes: 32 << 20, heals: true, time_max };
    let mut cluster = Cluster::new(seed, shape, trace);
    let config = cluster.client_config("client", seed ^ 2);
    let left: Arc<Mutex<(Vec<ObjectReply>, usize)>> = Arc::default();
    let (hand, traced, tells) = (cluster.hand(), trace.clone(), Arc::clone(&left));
    cluster.client("client", async move {
        let (client, rng) = (connect(config).await, StdRng::seed_from_u64(seed));
        let (case, known) = (Case::of(seed), Acknowledged::default());
        let mut story = Story { client, hand, rng, case, trace: traced, known, victim: 0, begun: Arc::default() };
        story.tell().await?;
        let mut objects = Vec::new();
        for key in story.known.objects.keys() {
            objects.push(story.client.stat(BUCKET, key).await?);
        }
        *tells.lock().unwrap_or_else(PoisonError::into_inner) = (objects, story.begun.load(Ordering::Relaxed));
        story.client.close().await;
        Ok(())
    });
    cluster.run()?;
    if let Some(over) = cluster.over_budget().first() {
        return Err(Failure(over.clone()));
    }
    let disks = cluster.disks();
    let _dir = cluster.switch_off();
    let (objects, begun) = std::mem::take(&mut *left.lock().unwrap_or_else(PoisonError::into_inner));
    told.in_time.fetch_add(begun, Ordering::Relaxed);
    check_disks(&disks, &objects, &BTreeSet::new())
}

struct Story {
    client: Client,
    hand: Hand,
    rng: StdRng,
    case: Case,
    trace: Trace,
    known: Acknowledged,
    /// The node that is lost first, or emptied.
    victim: u32,
    /// How many faults have begun.
    begun: Arc<AtomicUsize>,
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
        for number in 0..OBJECTS {
            let bytes = some_bytes(&mut self.rng, 3 * 4 * BLOCK_LEN as usize - 1_000);
            let options = PutOptions { code: CODE.into(), block_len: BLOCK_LEN, cell_len: CELL_LEN, ..PutOptions::default() };
            let key = format!("object-{number}");
            self.client.put(BUCKET, &key, &bytes[..], &options).await?;
            self.known.objects.insert(key, bytes);
        }
        self.victim = self.rng.random_range(1..=AGENTS);
        let victim = agent_name(self.victim);
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
        self.until_whole().await?;
        check_apart(&self.client, BUCKET, &self.known).await?;
        check_readable(&self.client, BUCKET, &self.known, "").await?;
        self.note("all nodes come back");
        (1..=AGENTS).for_each(|number| self.now(Deed::Start(agent_name(number))));
        self.hand.idle().await;
        self.until_up(AGENTS).await?;
        self.work_again().await?;
        // Leases end, readers' grace ends, sweeps run.
        tokio::time::sleep(Duration::from_secs(30)).await;
        self.until_whole().await?;
        check_apart(&self.client, BUCKET, &self.known).await?;
        check_readable(&self.client, BUCKET, &self.known, "").await?;
        Ok(())
    }

    /// Does the work, with faults.
    async fn work(&mut self) -> Result<(), Failure> {
        let job = match self.case.work {
            Work::Heal => {
                self.until("the node is lost", 60, async |story| story.state_of(story.victim).await == "lost").await?;
                None
            }
            _ => Some(self.begin_job("triple").await?),
        };
        let (one, other) = self.case.faults;
        for fault in [one, other] {
            let (at, mut rng) = (self.trace.len() + self.rng.random_range(0..self.case.steps()), StdRng::from_rng(&mut self.rng));
            let (begun, victim, trace) = (Arc::clone(&self.begun), agent_name(self.victim), self.trace.clone());
            self.hand.at_step(at, move |roles| {
                begun.fetch_add(1, Ordering::Relaxed);
                trace.event("-", format_args!("== {fault:?}"));
                deeds(fault, roles, &victim, &mut rng)
            });
        }
        match job {
            Some(job) => {
                let ended = self.ended(&job).await?;
                if ended.state == "failed" && ended.last_error.is_empty() {
                    return Err(Failure(format!("the job failed and does not say why: {ended:?}")));
                }
            }
            // Reads go on until the faults are over.
            None => {
                for _ in 0..20 {
                    self.read().await?;
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
            }
        }
        Ok(())
    }

    /// What a job has given up, another one does when the faults are over.
    async fn work_again(&mut self) -> Result<(), Failure> {
        if !matches!(self.case.work, Work::Move | Work::Convert) {
            return Ok(());
        }
        let job = self.begin_job(if self.case.work == Work::Move { "" } else { "coded" }).await?;
        let ended = self.ended(&job).await?;
        match ended.state.as_str() {
            "done" => Ok(()),
            _ => Err(Failure(format!("without faults, the job ended as {ended:?}"))),
        }
    }

    /// Begins the job. The coordinator may not know yet that the node is down, and its answer may be lost.
    async fn begin_job(&mut self, policy: &str) -> Result<Job, Failure> {
        let mut why = String::new();
        for _ in 0..40 {
            let begun = match self.case.work {
                Work::Convert => self.client.convert(BUCKET, "", policy, &ConvertOptions::default()).await,
                work => {
                    let options = RepairNodeOptions { force: work == Work::Move, ..RepairNodeOptions::default() };
                    self.client.repair_node(NodeId(self.number_of(self.victim).await?), &options).await
                }
            };
            match begun {
                Ok(job) => return Ok(job),
                Err(error) => why = error.to_string(),
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        Err(Failure(format!("the job cannot be started: {why}")))
    }

    /// Waits for the end of a job, and reads meanwhile.
    async fn ended(&mut self, job: &Job) -> Result<Job, Failure> {
        let mut seen = job.clone();
        for _ in 0..600 {
            if let Ok(job) = self.client.job(job.id).await {
                if job.stripes_under_way == 0 && !matches!(job.state.as_str(), "running" | "paused") {
                    self.note(format_args!("the job is {}: {}", job.state, job.last_error));
                    return Ok(job);
                }
                seen = job;
            }
            self.read().await?;
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        Err(Failure(format!("the job does not end: {seen:?}")))
    }

    /// Reads an object. That may fail while too much is out of reach, but must not return other bytes.
    async fn read(&mut self) -> Result<(), Failure> {
        let key = format!("object-{}", self.rng.random_range(0..OBJECTS));
        let (mut bytes, options) = (Vec::new(), GetOptions::default());
        let got = tokio::time::timeout(Duration::from_secs(5), self.client.get(BUCKET, &key, &mut bytes, &options)).await;
        let expected = self.known.objects.get(&key).map(Vec::as_slice).unwrap_or_default();
        match got {
            Ok(Ok(_)) if bytes != expected => Err(Failure(format!("{key} has other bytes than were put"))),
            // What was returned before an error is right, too.
            _ if !expected.starts_with(&bytes) => Err(Failure(format!("{key} has other bytes, before an error"))),
            _ => Ok(()),
        }
    }

    /// Ends all faults. Up to two nodes stay away.
    async fn all_well(&mut self, victim: &str) -> Result<(), Failure> {
        let (one, other) = self.case.faults;
        let stays_away = ![one, other].contains(&Third);
        self.now(Deed::Start(COORDINATOR.into()));
        self.now(Deed::GoOn(COORDINATOR.into()));
        for agent in (1..=AGENTS).map(agent_name) {
            self.now(Deed::GoOn(agent.clone()));
            self.now(Deed::Cure(agent.clone()));
            if !stays_away && agent != victim {
                self.now(Deed::Start(agent));
            }
        }
        self.hand.idle().await;
        if [one, other].contains(&Broken) {
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

    async fn state_of(&self, agent: u32) -> String {
        let (name, status) = (agent_name(agent), self.client.status().await);
        let state = |nodes: Vec<weft_client::api::Node>| nodes.into_iter().find(|node| node.name == name).map(|node| node.state);
        status.ok().and_then(|status| state(status.nodes)).unwrap_or_default()
    }

    /// The number of an agent's node.
    async fn number_of(&self, agent: u32) -> Result<u32, Failure> {
        let (name, status) = (agent_name(agent), self.client.status().await?);
        let node = status.nodes.iter().find(|node| node.name == name).map(|node| node.id);
        node.ok_or_else(|| Failure(format!("there is no node {name}")))
    }

    fn now(&self, deed: Deed) {
        self.hand.after(Duration::ZERO, deed);
    }

    fn note(&self, what: impl std::fmt::Display) {
        self.trace.event("client", format_args!("== {what}"));
    }
}

/// What happens, and when.
fn deeds(fault: Fault, roles: &Roles, victim: &str, rng: &mut StdRng) -> Vec<(Duration, Deed)> {
    let mut others: Vec<String> = (1..=AGENTS).map(agent_name).filter(|agent| agent != victim).collect();
    let mut other = || others.remove(rng.random_range(0..others.len()));
    let helper = roles.helper.clone().unwrap_or_else(&mut other);
    let destination = roles.destination.clone().unwrap_or_else(&mut other);
    let (second, third, fourth) = (other(), other(), other());
    let coordinator = || COORDINATOR.to_owned();
    let mut within = |from_ms: u64, to_ms: u64| Duration::from_millis(rng.random_range(from_ms..to_ms));
    let at_once = |deed: Deed| (Duration::ZERO, deed);
    let mut restarts =
        |host: String, to_ms: u64| vec![at_once(Deed::Kill(host.clone())), (within(500, to_ms), Deed::Start(host))];
    match fault {
        KillHelper => restarts(helper, 8_000),
        KillDestination => restarts(destination, 8_000),
        KillCoordinator => restarts(coordinator(), 4_000),
        Restarts => [second, third, fourth].into_iter().flat_map(|agent| restarts(agent, 5_000)).collect(),
        RestartForward | RestartBack => {
            let ahead_ms = if fault == RestartForward { FORWARD_MS } else { BACK_MS };
            let clock = (Duration::from_millis(1), Deed::SetClock(coordinator(), ahead_ms));
            restarts(coordinator(), 4_000).into_iter().chain([clock]).collect()
        }
        StallHelper | StallDestination | StallCoordinator => {
            let host = match fault {
                StallHelper => helper,
                StallDestination => destination,
                _ => coordinator(),
            };
            vec![at_once(Deed::Stall(host.clone())), (within(1_000, 12_000), Deed::GoOn(host))]
        }
        SlowHelper | SlowDestination => {
            let host = if fault == SlowHelper { helper } else { destination };
            vec![at_once(Deed::Slow(host.clone(), 400)), (Duration::from_secs(20), Deed::Slow(host, 0))]
        }
        Full => vec![at_once(Deed::Ail(destination, Illness::Full))],
        Broken => vec![at_once(Deed::Ail(destination, Illness::Broken))],
        Lying => vec![at_once(Deed::Ail(helper, Illness::Lying))],
        Spoiling => vec![at_once(Deed::Ail(destination, Illness::Spoiling))],
        OneWay => {
            let to = if destination == helper { second } else { destination };
            let heal = Deed::Heal(helper.clone(), to.clone());
            vec![at_once(Deed::CutOneWay(helper, to)), (Duration::from_secs(20), heal)]
        }
        Second => vec![at_once(Deed::PowerOff(second))],
        Third => vec![at_once(Deed::PowerOff(second)), (within(100, 2_000), Deed::PowerOff(third))],
        Returns => vec![at_once(Deed::Start(victim.to_owned()))],
        ClockForward => vec![at_once(Deed::SetClock(coordinator(), FORWARD_MS))],
        ClockBack => vec![at_once(Deed::SetClock(coordinator(), BACK_MS))],
    }
}
