//! A cluster within the simulation: a coordinator, agents and clients as hosts of their own, and what can be done to them.

use crate::{Network, Sickness, SimClock, SimDisks, Trace};
use std::{
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
use weft_agent::{Agent, AgentConfig, Limits, MemoryGauge, Throttle};
use weft_client::{Client, ClientConfig, StripeConverter};
use weft_coordinator::{Coordinator, CoordinatorConfig};
use weft_meta::MetaMode;
use weft_proto::Security;
use weft_types::{AutoSize, ByteSize, ClusterId};

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
    over_budget: Arc<Mutex<Vec<String>>>,
}

/// How large a cluster is.
#[derive(Debug, Clone)]
pub struct Shape {
    /// Agents, `agent-1` and so on.
    pub agents: u32,
    /// Racks, over which the agents are spread.
    pub racks: u32,
    /// Disks of each agent.
    pub disks_per_agent: u32,
    /// What the tasks of an agent may use of memory, bytes.
    pub memory_budget_bytes: u64,
    /// After this much of its own time a simulation that has not ended has failed.
    pub time_max: Duration,
}

/// Why a simulation failed, for a person.
#[derive(Debug)]
pub struct Failure(pub String);

/// Something that befalls the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Deed {
    /// A host's process is killed: its connections end.
    Kill(String),
    /// A host loses its power: it is silent from then on.
    PowerOff(String),
    /// A host that was killed or lost its power starts again.
    Start(String),
    /// Nothing passes between two hosts, and what was under way is lost.
    Cut(String, String),
    /// Nothing passes between two hosts for a time, and nothing is lost.
    Hold(String, String),
    /// All passes again between two hosts.
    Heal(String, String),
    /// An agent's disks go bad.
    Sicken(String),
    /// An agent's disks are good again, but for what is spoiled; one that has failed is used again when the agent starts anew.
    Cure(String),
}

/// Does things to the cluster from within the simulation. Clones are the same hand.
#[derive(Clone, Default)]
pub struct Hand {
    due: Arc<Mutex<Vec<(Duration, Deed)>>>,
}

/// The cluster that every simulation makes.
pub(crate) const CLUSTER: ClusterId = ClusterId(0x5eed);
const COORDINATOR: &str = "coordinator";

impl Hand {
    /// Lets something happen in a while.
    pub fn after(&self, delay: Duration, deed: Deed) {
        let at = turmoil::sim_elapsed().unwrap_or_default() + delay;
        self.due.lock().unwrap_or_else(PoisonError::into_inner).push((at, deed));
    }

    /// Waits until all that was to happen has happened.
    pub async fn idle(&self) {
        while !self.due.lock().unwrap_or_else(PoisonError::into_inner).is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// What is due, in the order in which it was asked for.
    fn take(&self, now: Duration) -> Vec<Deed> {
        let mut due = self.due.lock().unwrap_or_else(PoisonError::into_inner);
        due.extract_if(.., |(at, _)| *at <= now).map(|(_, deed)| deed).collect()
    }
}

impl<'a> Cluster<'a> {
    /// A cluster that has just been switched on.
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
        let mut cluster = Self { sim, hand, network, sickness, trace, shape, dir, hosts, over_budget };
        cluster.add_coordinator(seed);
        for number in 1..=cluster.shape.agents {
            cluster.add_agent(seed, number);
        }
        cluster
    }

    /// Does things to the cluster from within.
    pub fn hand(&self) -> Hand {
        self.hand.clone()
    }

    /// Where disks and metadata lie.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Where the disks of all agents lie.
    pub fn disks(&self) -> Vec<PathBuf> {
        (1..=self.shape.agents).flat_map(|number| disks_of(self.dir(), number, self.shape.disks_per_agent)).collect()
    }

    /// What is wrong with the disks.
    pub fn sickness(&self) -> Sickness {
        self.sickness.clone()
    }

    /// The moments at which an agent's tasks used more than they may.
    pub fn over_budget(&self) -> Vec<String> {
        self.over_budget.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How a client on `host` reaches the cluster.
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

    /// A client that must come to its end.
    pub fn client<F>(&mut self, host: &str, work: F)
    where
        F: Future<Output = Result<(), Failure>> + 'static,
    {
        self.hosts.push(host.to_string());
        self.sim.client(host, async move { Ok(work.await?) });
    }

    /// A client that may be killed and need not come to an end. It tries to connect until it is connected.
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

    /// Runs until all clients have come to their end.
    pub fn run(&mut self) -> Result<(), Failure> {
        loop {
            let ended = self.sim.step().map_err(|error| Failure(error.to_string()))?;
            self.trace.set_now(self.sim.elapsed());
            if ended {
                return Ok(());
            }
            for deed in self.hand.take(self.sim.elapsed()) {
                self.trace.event("-", format_args!("{deed:?}"));
                self.does(deed);
            }
        }
    }

    /// Ends everything at once. The disks are there for as long as what is returned.
    pub fn switch_off(self) -> TempDir {
        self.dir
    }

    fn does(&mut self, deed: Deed) {
        let Self { sim, network, sickness, trace, hosts, .. } = self;
        match deed {
            Deed::Kill(host) => network.crash(sim, &host, trace),
            Deed::PowerOff(host) => {
                let others: Vec<&str> = hosts.iter().map(String::as_str).filter(|other| *other != host).collect();
                network.silently(sim, &host, &others, |sim| network.crash(sim, &host, trace));
            }
            Deed::Start(host) => sim.bounce(host),
            Deed::Cut(one, other) => network.cut(sim, &one, &other),
            Deed::Hold(one, other) => network.hold(sim, &one, &other),
            Deed::Heal(one, other) => network.heal(sim, &one, &other),
            Deed::Sicken(host) => sickness.begin(&host),
            Deed::Cure(host) => sickness.end(&host),
        }
    }

    fn add_coordinator(&mut self, seed: u64) {
        let config = CoordinatorConfig {
            listen: format!("{COORDINATOR}:7300"),
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
            // A seed that was found has always gone on without.
            link_probe_interval_ms: 0,
            stall_ms: 4_000,
            call_timeout_ms: 1_000,
            failure_grace_ms: 1_000,
            slice_len: ByteSize(32 << 10),
            repair_slice_len: AutoSize::bytes(16 << 10),
            conversion_restart_ms: 10_000,
            ..CoordinatorConfig::default()
        };
        let (net, starts) = (self.network.of(COORDINATOR, &self.trace), AtomicU64::new(0));
        self.hosts.push(COORDINATOR.into());
        self.sim.host(COORDINATOR, move || {
            let seams = weft_coordinator::Seams {
                net: Arc::new(net.clone()),
                clock: Arc::new(SimClock),
                seed: seed_of(seed, 0, &starts),
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
            state_dir: self.dir().join(&host),
            disks: disks_of(self.dir(), number, self.shape.disks_per_agent),
            certificates: None,
            insecure: true,
            limits: Limits { memory_budget: ByteSize(self.shape.memory_budget_bytes), ..Limits::default() },
            throttle: Throttle::default(),
        };
        let (net, starts) = (self.network.of(&host, &self.trace), AtomicU64::new(0));
        let disks = SimDisks { host: host.clone(), sickness: self.sickness.clone(), trace: self.trace.clone() };
        let (budget, over_budget) = (self.shape.memory_budget_bytes, Arc::clone(&self.over_budget));
        self.hosts.push(host.clone());
        self.sim.host(host.clone(), move || {
            let seams = weft_agent::Seams {
                net: Arc::new(net.clone()),
                clock: Arc::new(SimClock),
                seed: seed_of(seed, number, &starts),
                disk_mode: weft_agent::DiskMode::Inline,
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

/// The host of an agent, and its name.
pub fn agent_name(number: u32) -> String {
    format!("agent-{number}")
}

/// A client, as soon as there is a coordinator.
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

/// Each start of each host draws other numbers.
fn seed_of(seed: u64, host: u32, starts: &AtomicU64) -> u64 {
    let start = starts.fetch_add(1, Ordering::Relaxed);
    seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (u64::from(host) << 32) ^ start
}

fn disks_of(dir: &Path, agent: u32, disks: u32) -> Vec<PathBuf> {
    (0..disks).map(|disk| dir.join(agent_name(agent)).join(format!("disk-{disk}"))).collect()
}

/// In memory where that can be had: what is synced there costs no time.
fn scratch_dir() -> TempDir {
    let made = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
    made.expect("a scratch directory can be made")
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
