//! A simulated cluster: a coordinator, agents and clients on separate hosts, and the events that can happen to them.

use crate::{Illness, Network, Roles, Sickness, SimClock, SimDisks, Trace};
use std::{
    collections::{BTreeMap, BTreeSet},
    error::Error as StdError,
    fmt,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tempfile::TempDir;
use turmoil::Sim;
use weft_agent::{Agent, AgentConfig, DiskDelay, Limits, MemoryGauge, Throttle};
use weft_client::{Client, ClientConfig, StripeConverter};
use weft_coordinator::{Coordinator, CoordinatorConfig};
use weft_meta::MetaMode;
use weft_proto::Security;
use weft_types::{AutoSize, BlockId, ByteSize, ClusterId};

/// A cluster within the simulation.
pub struct Cluster<'a> {
    sim: Sim<'a>,
    hand: Hand,
    network: Network,
    sickness: Sickness,
    trace: Trace,
    shape: Shape,
    dir: TempDir,
    hosts: Vec<String>,
    /// The hosts that were killed or lost power.
    dead: BTreeSet<String>,
    clocks: BTreeMap<String, SimClock>,
    /// The additional milliseconds of each disk call of an agent.
    delays: BTreeMap<String, &'static AtomicU64>,
    over_budget: Arc<Mutex<Vec<String>>>,
}

/// The size of a cluster.
#[derive(Debug, Clone)]
pub struct Shape {
    /// Agents, `agent-1` and so on.
    pub agents: u32,
    /// Racks, over which the agents are distributed.
    pub racks: u32,
    /// Disks of each agent.
    pub disks_per_agent: u32,
    /// The memory budget of an agent's tasks, bytes.
    pub memory_budget_bytes: u64,
    /// Whether the cluster rebuilds lost blocks without a person.
    pub heals: bool,
    /// The time in which the cluster checks all stripes in the background; `None`: the usual one, which is much longer than a simulation.
    pub scrub_period: Option<Duration>,
    /// A simulation that has not ended after this simulated time has failed.
    pub time_max: Duration,
}

/// Why a simulation failed, for developers.
#[derive(Debug)]
pub struct Failure(pub String);

/// An event in the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Deed {
    /// A host's process is killed: its connections end.
    Kill(String),
    /// A host loses power: it is silent from then on.
    PowerOff(String),
    /// A host that was killed or lost power starts again.
    Start(String),
    /// Nothing passes between two hosts, and data in transit is lost.
    Cut(String, String),
    /// Nothing passes between two hosts for a time, but nothing is lost.
    Hold(String, String),
    /// The network between two hosts works again.
    Heal(String, String),
    /// An agent's disks start to fail.
    Sicken(String),
    /// An agent's disks have this illness.
    Ail(String, Illness),
    /// Each call to an agent's disks takes so many milliseconds longer.
    Slow(String, u64),
    /// All connections to a host are held up for a time, as if its process did not run; nothing is lost.
    Stall(String),
    /// A stalled host goes on.
    GoOn(String),
    /// Nothing passes from the first host to the second; the other direction works. [`Deed::Heal`] repairs it.
    CutOneWay(String, String),
    /// A host's clock is set so many milliseconds ahead of the simulation's time, or behind it.
    SetClock(String, i64),
    /// A bit flips of a block on an agent's disks: of this one, or of any.
    Rot(String, Option<BlockId>),
    /// An agent's disks work again, except for spoiled blocks; a failed disk is used again when the agent restarts.
    Cure(String),
}

/// Causes events from within the simulation. Clones share the queue of events.
#[derive(Clone, Default)]
pub struct Hand {
    due: Arc<Mutex<Vec<(Duration, Deed)>>>,
    at_steps: Arc<Mutex<Vec<(usize, Choose)>>>,
}

/// Chooses events, each after a delay, by who moves blocks at that moment.
type Choose = Box<dyn FnOnce(&Roles) -> Vec<(Duration, Deed)> + Send>;

/// The cluster id of every simulation.
pub(crate) const CLUSTER: ClusterId = ClusterId(0x5eed);
const COORDINATOR: &str = "coordinator";

impl Hand {
    /// Schedules an event.
    pub fn after(&self, delay: Duration, deed: Deed) {
        let at = turmoil::sim_elapsed().unwrap_or_default() + delay;
        self.due.lock().unwrap_or_else(PoisonError::into_inner).push((at, deed));
    }

    /// Schedules events for the moment at which the trace has so many lines.
    pub fn at_step(&self, lines: usize, choose: impl FnOnce(&Roles) -> Vec<(Duration, Deed)> + Send + 'static) {
        self.at_steps.lock().unwrap_or_else(PoisonError::into_inner).push((lines, Box::new(choose)));
    }

    /// Forgets events at steps that have not come.
    pub fn forget_steps(&self) {
        self.at_steps.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Chooses the events whose step has come.
    fn reach(&self, lines: usize, roles: &Roles, now: Duration) {
        let mut at_steps = self.at_steps.lock().unwrap_or_else(PoisonError::into_inner);
        for (_, choose) in at_steps.extract_if(.., |(step, _)| *step <= lines) {
            let chosen = choose(roles).into_iter().map(|(delay, deed)| (now + delay, deed));
            self.due.lock().unwrap_or_else(PoisonError::into_inner).extend(chosen);
        }
    }

    /// Waits until all scheduled events have happened, except for those at steps.
    pub async fn idle(&self) {
        while !self.due.lock().unwrap_or_else(PoisonError::into_inner).is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// The due events, in the order in which they were scheduled.
    fn take(&self, now: Duration) -> Vec<Deed> {
        let mut due = self.due.lock().unwrap_or_else(PoisonError::into_inner);
        due.extract_if(.., |(at, _)| *at <= now).map(|(_, deed)| deed).collect()
    }
}

impl<'a> Cluster<'a> {
    /// A cluster that has just started.
    pub fn new(seed: u64, shape: Shape, trace: &Trace) -> Self {
        let sim = turmoil::Builder::new()
            .rng_seed(seed)
            .epoch(SimClock::start())
            .simulation_duration(shape.time_max)
            .min_message_latency(Duration::from_millis(1))
            .max_message_latency(Duration::from_millis(10))
            .tcp_capacity(256)
            .build();
        let dir = scratch_dir();
        trace.redact(dir.path().display().to_string());
        let network = Network::default();
        let (hand, hosts, over_budget) = (Hand::default(), Vec::new(), Arc::default());
        let (sickness, trace) = (Sickness::new(seed, trace), trace.clone());
        let (dead, clocks, delays) = (BTreeSet::new(), BTreeMap::new(), BTreeMap::new());
        let mut cluster = Self { sim, hand, network, sickness, trace, shape, dir, hosts, dead, clocks, delays, over_budget };
        cluster.add_coordinator(seed);
        for number in 1..=cluster.shape.agents {
            cluster.add_agent(seed, number);
        }
        cluster
    }

    /// A handle that causes events from within.
    pub fn hand(&self) -> Hand {
        self.hand.clone()
    }

    /// The directory of disks and metadata.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The directories of all agents' disks.
    pub fn disks(&self) -> Vec<PathBuf> {
        (1..=self.shape.agents).flat_map(|number| disks_of(self.dir(), number, self.shape.disks_per_agent)).collect()
    }

    /// The faults of the disks.
    pub fn sickness(&self) -> Sickness {
        self.sickness.clone()
    }

    /// The moments at which an agent's tasks exceeded their memory budget.
    pub fn over_budget(&self) -> Vec<String> {
        self.over_budget.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The configuration of a client on `host`.
    pub fn client_config(&self, host: &str, seed: u64) -> ClientConfig {
        let mut config = ClientConfig::new([format!("{COORDINATOR}:7300")], Security::Insecure);
        config.cluster = Some(CLUSTER);
        config.net = Arc::new(self.network.of(host, &self.trace));
        config.seed = seed;
        config.disk_mode = weft_client::DiskMode::Inline;
        config.spool_dir = self.dir().to_path_buf();
        config.limits.call_timeout = Duration::from_secs(8);
        config.limits.end_stripe_timeout = Duration::from_secs(60);
        config.limits.patience = Duration::from_secs(20);
        config
    }

    /// Adds a client that must finish.
    pub fn client<F>(&mut self, host: &str, work: F)
    where
        F: Future<Output = Result<(), Failure>> + 'static,
    {
        self.hosts.push(host.to_string());
        self.sim.client(host, async move { Ok(work.await?) });
    }

    /// Adds a client that may be killed and need not finish. It retries until it is connected.
    pub fn host<F, W>(&mut self, host: &str, config: ClientConfig, work: W)
    where
        W: Fn(Client) -> F + Clone + 'static,
        F: Future<Output = Result<(), Failure>> + 'static,
    {
        self.hosts.push(host.to_string());
        self.sim.host(host, move || {
            let (config, work) = (config.clone(), work.clone());
            async move { Ok(work(connect(config).await).await?) }
        });
    }

    /// Runs until all clients have finished.
    pub fn run(&mut self) -> Result<(), Failure> {
        loop {
            let ended = self.sim.step().map_err(|error| Failure(error.to_string()))?;
            self.trace.set_now(self.sim.elapsed());
            if ended {
                return Ok(());
            }
            self.hand.reach(self.trace.len(), &self.sickness.roles(), self.sim.elapsed());
            for deed in self.hand.take(self.sim.elapsed()) {
                self.trace.event("-", format_args!("{deed:?}"));
                self.does(deed);
            }
        }
    }

    /// Ends everything at once. The disks exist as long as the returned value.
    pub fn switch_off(self) -> TempDir {
        self.dir
    }

    fn does(&mut self, deed: Deed) {
        let Self { sim, network, sickness, trace, dir, hosts, dead, clocks, delays, .. } = self;
        let others = |host: &str| hosts.iter().filter(|other| *other != host).cloned().collect::<Vec<_>>();
        match deed {
            // Two faults may hit the same host.
            Deed::Kill(host) | Deed::PowerOff(host) if dead.contains(&host) => {}
            Deed::Start(host) if !dead.contains(&host) => {}
            Deed::Kill(host) => {
                network.crash(sim, &host, trace);
                dead.insert(host);
            }
            Deed::PowerOff(host) => {
                let others: Vec<&str> = hosts.iter().map(String::as_str).filter(|other| *other != host).collect();
                dead.insert(host.clone());
                network.silently(sim, &host, &others, |sim| network.crash(sim, &host, trace));
            }
            Deed::Start(host) => {
                dead.remove(&host);
                sim.bounce(host);
            }
            Deed::Cut(one, other) => network.cut(sim, &one, &other),
            Deed::Hold(one, other) => network.hold(sim, &one, &other),
            Deed::Heal(one, other) => network.heal(sim, &one, &other),
            Deed::Stall(host) => others(&host).iter().for_each(|other| network.hold(sim, &host, other)),
            Deed::GoOn(host) => others(&host).iter().for_each(|other| network.heal(sim, &host, other)),
            Deed::CutOneWay(from, to) => network.cut_one_way(sim, &from, &to),
            Deed::SetClock(host, ahead_ms) => clocks.entry(host).or_default().set(ahead_ms),
            Deed::Slow(host, ms) => delays.get(&host).into_iter().for_each(|delay| delay.store(ms, Ordering::Relaxed)),
            Deed::Ail(host, illness) => sickness.fall_ill(&host, illness),
            Deed::Rot(host, block) => sickness.flip(&host, &dir.path().join(&host), block),
            Deed::Sicken(host) => sickness.begin(&host),
            Deed::Cure(host) => {
                sickness.end(&host);
                delays.get(&host).into_iter().for_each(|delay| delay.store(0, Ordering::Relaxed));
            }
        }
    }

    fn add_coordinator(&mut self, seed: u64) {
        let mut config = CoordinatorConfig {
            listen: format!("{COORDINATOR}:7300"),
            metrics: weft_proto::metrics::OFF.into(),
            dir: self.dir().join(COORDINATOR),
            cluster: Some(CLUSTER),
            insecure: true,
            heartbeat_interval_ms: 500,
            down_after_ms: 3_000,
            suspect_ms: 12_000,
            upload_lease_ms: 15_000,
            garbage_grace_ms: 3_000,
            sweep_interval_ms: 1_000,
            orphan_check_interval_ms: 4_000,
            // Earlier recorded seeds ran without probes.
            link_probe_interval_ms: 0,
            stall_ms: 4_000,
            call_timeout_ms: 1_000,
            failure_grace_ms: 1_000,
            slice_len: ByteSize(32 << 10),
            repair_slice_len: AutoSize::bytes(16 << 10),
            conversion_restart_ms: 10_000,
            auto_repair: self.shape.heals,
            lost_after_ms: 12_000,
            ..CoordinatorConfig::default()
        };
        if let Some(period) = self.shape.scrub_period {
            config.scrub_period_ms = period.as_millis() as u64;
        }
        let (net, starts) = (self.network.of(COORDINATOR, &self.trace), AtomicU64::new(0));
        let clock = self.clock_of(COORDINATOR);
        self.hosts.push(COORDINATOR.into());
        self.sim.host(COORDINATOR, move || {
            let seams = weft_coordinator::Seams {
                net: Arc::new(net.clone()),
                clock: Arc::new(clock.clone()),
                seed: seed_of(seed, 0, &starts).into(),
                meta_mode: MetaMode::Inline,
            };
            let config = config.clone();
            async move { Ok(Coordinator::start(config, seams).await?.ended().await?) }
        });
    }

    fn add_agent(&mut self, seed: u64, number: u32) {
        let host = agent_name(number);
        let config = AgentConfig {
            name: host.clone(),
            rack: format!("rack-{}", number % self.shape.racks),
            zone: "zone".into(),
            cluster: Some(CLUSTER),
            coordinators: vec![format!("{COORDINATOR}:7300")],
            data_listen: format!("{host}:7411"),
            control_listen: format!("{host}:7412"),
            data_advertise: None,
            control_advertise: None,
            metrics: weft_proto::metrics::OFF.into(),
            state_dir: self.dir().join(&host),
            disks: disks_of(self.dir(), number, self.shape.disks_per_agent),
            certificates: None,
            insecure: true,
            limits: Limits {
                memory_budget: ByteSize(self.shape.memory_budget_bytes),
                // Small enough to become full.
                update_journal: ByteSize(4 << 20),
                ..Limits::default()
            },
            throttle: Throttle::default(),
        };
        let (net, starts) = (self.network.of(&host, &self.trace), AtomicU64::new(0));
        let disks = SimDisks { host: host.clone(), sickness: self.sickness.clone(), trace: self.trace.clone() };
        let (budget, over_budget) = (self.shape.memory_budget_bytes, Arc::clone(&self.over_budget));
        self.hosts.push(host.clone());
        let (clock, delay) = (self.clock_of(&host), self.delay_of(&host));
        self.sim.host(host.clone(), move || {
            let seams = weft_agent::Seams {
                net: Arc::new(net.clone()),
                clock: Arc::new(clock.clone()),
                seed: seed_of(seed, number, &starts).into(),
                disk_mode: weft_agent::DiskMode::Slowed(DiskDelay(delay)),
                disks: Arc::new(disks.clone()),
                converter: Arc::new(StripeConverter),
            };
            let (config, host, over_budget) = (config.clone(), host.clone(), Arc::clone(&over_budget));
            async move {
                let agent = Agent::start(config, seams).await?;
                tokio::spawn(watch_memory(agent.memory_gauge(), budget, host, over_budget));
                Ok(agent.run().await?)
            }
        });
    }
}

impl Cluster<'_> {
    fn clock_of(&mut self, host: &str) -> SimClock {
        self.clocks.entry(host.to_owned()).or_default().clone()
    }

    /// It is never freed: a disk's mode is copied freely.
    fn delay_of(&mut self, host: &str) -> &'static AtomicU64 {
        self.delays.entry(host.to_owned()).or_insert_with(|| Box::leak(Box::new(AtomicU64::new(0))))
    }
}

/// The host of an agent, and its name.
pub fn agent_name(number: u32) -> String {
    format!("agent-{number}")
}

/// Connects a client as soon as there is a coordinator.
pub async fn connect(config: ClientConfig) -> Client {
    loop {
        match Client::connect(config.clone()).await {
            Ok(client) => return client,
            Err(_) => tokio::time::sleep(Duration::from_millis(200)).await,
        }
    }
}

async fn watch_memory(gauge: MemoryGauge, budget: u64, host: String, over_budget: Arc<Mutex<Vec<String>>>) {
    loop {
        let used = gauge.used_bytes();
        if used > budget {
            let mut over_budget = over_budget.lock().unwrap_or_else(PoisonError::into_inner);
            over_budget.push(format!("{host} uses {used} bytes of {budget} at {:?}", turmoil::sim_elapsed()));
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// A different seed for each start of each host.
fn seed_of(seed: u64, host: u32, starts: &AtomicU64) -> u64 {
    let start = starts.fetch_add(1, Ordering::Relaxed);
    seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (u64::from(host) << 32) ^ start
}

fn disks_of(dir: &Path, agent: u32, disks: u32) -> Vec<PathBuf> {
    (0..disks).map(|disk| dir.join(agent_name(agent)).join(format!("disk-{disk}"))).collect()
}

/// In memory if possible, where syncs cost no time.
fn scratch_dir() -> TempDir {
    let made = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
    made.expect("cannot create a scratch directory")
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl StdError for Failure {}

impl From<weft_types::Error> for Failure {
    fn from(error: weft_types::Error) -> Self {
        Self(error.to_string())
    }
}
