//! A coordinator, agents and a client in one process, on real disks, with a network in memory and on simulated time. Time
//! advances when all tasks are idle, so no test waits or depends on the speed of the machine.

use crate::{
    lying_disks::{DiskBytes, Forgotten, Lies, LyingDisks, Spoils, Unreadable},
    slow_net::{CutNet, CutOff, FarNet, FullLink, FullLinks, SlowNet, StoppableNet},
};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering},
    },
    time::Duration,
};
use tempfile::TempDir;
use tokio::time::Instant;
use weft_agent::{Agent, AgentConfig, DiskDelay, DiskMode, Limits, Throttle};
use weft_client::{Client, ClientConfig, GetOptions, Got, PutOptions, RepairOptions, StripeConverter, api};
use weft_coordinator::{Coordinator, CoordinatorConfig, Seams};
use weft_meta::MetaMode;
use weft_proto::{MemoryNet, Security};
use weft_store::Sidecar;
use weft_types::{ByteSize, Clock, Error, NodeId, Party, RebuildReserve, Result};

/// The longest wait of a test.
const PATIENCE: Duration = Duration::from_secs(20);
/// The pauses between looks at what is waited for.
const LOOK_FIRST: Duration = Duration::from_millis(20);
const LOOK_LAST: Duration = Duration::from_millis(100);

/// A cluster.
pub(crate) struct World {
    dir: TempDir,
    pub(crate) net: MemoryNet,
    pub(crate) clock: SimulatedClock,
    config: CoordinatorConfig,
    coordinator: Option<Coordinator>,
    agents: BTreeMap<u32, Agent>,
    racks: u32,
    seed: u64,
    slow_agents: bool,
    throttles: BTreeMap<u32, Throttle>,
    /// Addresses that agents cannot reach.
    cut_off: CutOff,
    /// Addresses to which all agents share a full link.
    full: FullLinks,
    /// Nodes that a test has stopped.
    stopped: BTreeMap<u32, Arc<AtomicBool>>,
    /// Blocks that nodes store with wrong bytes.
    pub(crate) lies: Lies,
    /// Blocks that nodes corrupt after reading them.
    pub(crate) spoils: Spoils,
    /// Disks that cannot read blocks.
    pub(crate) unreadable: Unreadable,
    /// Blocks of which the page cache was told to let go.
    pub(crate) forgotten: Forgotten,
    /// The size of each disk.
    pub(crate) disk_bytes: DiskBytes,
    /// How long each disk call of a node takes, milliseconds, from its next start on.
    pub(crate) disk_call_ms: BTreeMap<u32, u64>,
    /// Disks that agents that are started from now on do not list.
    pub(crate) unlisted: Vec<PathBuf>,
    /// Disks that agents of these nodes that are started from now on list besides their own.
    pub(crate) added: Vec<(u32, PathBuf)>,
    /// The limits of agents that are started from now on.
    pub(crate) limits: Limits,
    pub(crate) client: Client,
}

impl World {
    /// A cluster with this many nodes and racks, all nodes up, and a bucket `b`.
    pub(crate) async fn new(nodes: u32, racks: u32) -> Self {
        Self::with(nodes, racks, |_| {}).await
    }

    /// With other settings of the coordinator.
    pub(crate) async fn with(nodes: u32, racks: u32, change: impl FnOnce(&mut CoordinatorConfig)) -> Self {
        Self::made(nodes, racks, MetaMode::Inline, change).await
    }

    /// With other settings of the coordinator, and with another speed of its disk.
    pub(crate) async fn made(nodes: u32, racks: u32, meta_mode: MetaMode, change: impl FnOnce(&mut CoordinatorConfig)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut config = CoordinatorConfig {
            listen: "127.0.0.1:0".into(),
            metrics: weft_proto::metrics::OFF.into(),
            dir: dir.path().join("coordinator"),
            insecure: true,
            heartbeat_interval_ms: 100,
            down_after_ms: 800,
            // Most tests are about what people ask for.
            auto_repair: false,
            scrub_period_ms: 0,
            suspect_ms: 6_000,
            sweep_interval_ms: 200,
            garbage_grace_ms: 300,
            stall_ms: 2_000,
            call_timeout_ms: 1_500,
            failure_grace_ms: 500,
            disk_reserve: ByteSize(0),
            // Independent of the free space of the machine's own disk.
            conversion_free_percent: 0,
            rebuild_reserve: RebuildReserve::Off,
            conversion_restart_ms: 2_000,
            ..CoordinatorConfig::default()
        };
        change(&mut config);
        let (net, clock) = (MemoryNet::default(), SimulatedClock::default());
        let seams = Seams { meta_mode, ..seams(&net, clock.clone(), 1) };
        let coordinator = Coordinator::start(config.clone(), seams).await.unwrap();
        config.listen = coordinator.address().to_owned();
        let client = Client::connect(client_config(&net, &config.listen)).await.unwrap();
        client.create_bucket("b", "").await.unwrap();
        let mut world = Self {
            dir,
            net,
            clock,
            config,
            coordinator: Some(coordinator),
            agents: BTreeMap::new(),
            racks,
            seed: 1,
            slow_agents: false,
            throttles: BTreeMap::new(),
            cut_off: CutOff::default(),
            full: FullLinks::default(),
            stopped: BTreeMap::new(),
            lies: Arc::default(),
            spoils: Arc::default(),
            unreadable: Arc::default(),
            forgotten: Arc::default(),
            disk_bytes: Arc::default(),
            disk_call_ms: BTreeMap::new(),
            unlisted: Vec::new(),
            added: Vec::new(),
            limits: Limits::default(),
            client,
        };
        for node in 1..=nodes {
            // One after another, so that the numbers are in the order of the names.
            world.start_agent(node).await;
            world.until("a node is up", async |world| world.up().await.contains(&node)).await;
        }
        world
    }

    /// Starts or restarts an agent; it keeps its directory.
    pub(crate) async fn start_agent(&mut self, node: u32) {
        let mut seams = weft_agent::Seams::real(u64::from(node).into(), Arc::new(StripeConverter));
        let net: Arc<dyn weft_proto::Net> = if self.slow_agents {
            Arc::new(SlowNet::new(&self.net))
        } else {
            Arc::new(CutNet { net: self.net.clone(), cut_off: Arc::clone(&self.cut_off), full: Arc::clone(&self.full) })
        };
        let stopped = Arc::new(AtomicBool::new(false));
        // An agent that was killed while stopped could not close its disks.
        if let Some(before) = self.stopped.insert(node, Arc::clone(&stopped)) {
            before.store(false, Ordering::Relaxed);
        }
        seams.net = Arc::new(StoppableNet { net, stopped });
        let slowed = self.disk_call_ms.get(&node).map(|ms| DiskMode::Slowed(DiskDelay(Box::leak(Box::new(AtomicU64::new(*ms))))));
        (seams.clock, seams.disk_mode) = (Arc::new(self.clock.clone()), slowed.unwrap_or(DiskMode::Inline));
        seams.disks = Arc::new(LyingDisks {
            lies: Arc::clone(&self.lies),
            spoils: Arc::clone(&self.spoils),
            unreadable: Arc::clone(&self.unreadable),
            forgotten: Arc::clone(&self.forgotten),
            disk_bytes: Arc::clone(&self.disk_bytes),
        });
        // A killed agent holds its disks for a moment.
        for _ in 0..500 {
            if let Ok(agent) = Agent::start(self.agent_config(node), seams.clone()).await {
                self.agents.insert(node, agent);
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("n{node} does not come back");
    }

    pub(crate) fn agent_config(&self, node: u32) -> AgentConfig {
        let dir = self.node_dir(node);
        let added = self.added.iter().filter(|(of, _)| *of == node).map(|(_, disk)| disk.clone());
        let address = || "127.0.0.1:0".to_owned();
        AgentConfig {
            name: format!("node-{node:02}"),
            rack: format!("r{}", node % self.racks),
            zone: "z".into(),
            cluster: None,
            coordinators: vec![self.config.listen.clone()],
            data_listen: "127.0.0.1:0".into(),
            control_listen: address(),
            data_advertise: None,
            control_advertise: None,
            metrics: weft_proto::metrics::OFF.into(),
            state_dir: dir.join("state"),
            disks: self.disk_dirs(node).into_iter().chain(added).filter(|disk| !self.unlisted.contains(disk)).collect(),
            certificates: None,
            insecure: true,
            limits: self.limits.clone(),
            throttle: self.throttles.get(&node).cloned().unwrap_or_default(),
        }
    }

    /// From now on agents send slowly to each other.
    pub(crate) async fn slow_down_agents(&mut self) {
        self.slow_agents = true;
        self.restart_agents().await;
    }

    /// Restarts all agents with the current limits and networks.
    pub(crate) async fn restart_agents(&mut self) {
        for node in self.agents.keys().copied().collect::<Vec<_>>() {
            self.kill(node);
            self.start_agent(node).await;
        }
        let nodes = self.agents.len();
        // Killed nodes still count as up for a moment.
        tokio::time::sleep(Duration::from_millis(self.config.down_after_ms)).await;
        self.until("all nodes are up again", async |world| world.up().await.len() == nodes).await;
    }

    /// Restarts a node with a throttle.
    pub(crate) async fn throttle(&mut self, node: u32, throttle: Throttle) {
        self.throttles.insert(node, throttle);
        self.kill(node);
        self.until("the node is down", async |world| !world.up().await.contains(&node)).await;
        self.start_agent(node).await;
        self.until("the node is up again", async |world| world.up().await.contains(&node)).await;
    }

    /// From now on other agents cannot connect to a node's data address; the coordinator can call it.
    pub(crate) async fn cut_off(&self, node: u32) {
        let status = self.client.status().await.unwrap();
        let address = status.nodes.into_iter().find(|it| it.id == node).unwrap().data_address;
        self.cut_off.lock().unwrap().insert(address);
    }

    /// From now on all connections of other agents to a node share a link that is full.
    pub(crate) async fn fill_link_to(&self, node: u32) -> Arc<FullLink> {
        let status = self.client.status().await.unwrap();
        let address = status.nodes.into_iter().find(|it| it.id == node).unwrap().data_address;
        Arc::clone(self.full.lock().unwrap().entry(address).or_default())
    }

    /// All agents reach each other again.
    pub(crate) fn reach_all(&self) {
        self.cut_off.lock().unwrap().clear();
    }

    /// A client whose address is on another machine than the agents.
    pub(crate) async fn outside_client(&self) -> Client {
        let config = client_config(&self.net.host("127.0.0.2"), &self.config.listen);
        Client::connect(config).await.unwrap()
    }

    /// A client that is far away: see [`FarNet`].
    pub(crate) async fn far_client(&self) -> Client {
        let config = ClientConfig { net: Arc::new(FarNet(self.net.clone())), ..client_config(&self.net, &self.config.listen) };
        Client::connect(config).await.unwrap()
    }

    /// A client that sends slowly, and how many bytes it has sent.
    pub(crate) async fn slow_client(&self) -> (Client, Arc<AtomicU64>) {
        let net = SlowNet::new(&self.net);
        let sent_bytes = Arc::clone(&net.sent_bytes);
        let config = ClientConfig { net: Arc::new(net), ..client_config(&self.net, &self.config.listen) };
        (Client::connect(config).await.unwrap(), sent_bytes)
    }

    /// Stops a node: it receives and sends nothing, and its connections stay open.
    pub(crate) fn stop(&self, node: u32) {
        self.stopped[&node].store(true, Ordering::Relaxed);
    }

    /// Resumes a stopped node.
    pub(crate) fn go_on(&self, node: u32) {
        self.stopped[&node].store(false, Ordering::Relaxed);
    }

    /// The blocks that are being written, and the nodes that write them.
    pub(crate) fn being_written(&self) -> BTreeMap<weft_types::BlockId, u32> {
        let disks = |node: u32| self.disk_dirs(node).map(|disk| disk.join("tmp"));
        let entries = |dir: PathBuf| std::fs::read_dir(dir).into_iter().flatten().flatten();
        let names = |node: u32| disks(node).into_iter().flat_map(entries).map(|entry| entry.file_name());
        let blocks = |node: u32| names(node).filter_map(move |name| Some((name.to_str()?.parse().ok()?, node)));
        self.agents.keys().copied().flat_map(blocks).collect()
    }

    /// The number of blocks that the metadata records as allocated.
    pub(crate) fn allocations(&self) -> u64 {
        self.rows("allocations")
    }

    /// Rows of a table of the metadata.
    pub(crate) fn rows(&self, table: &str) -> u64 {
        let file = rusqlite::Connection::open(self.metadata_file()).unwrap();
        file.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get(0)).unwrap()
    }

    /// Kills an agent.
    pub(crate) fn kill(&mut self, node: u32) {
        drop(self.agents.remove(&node));
    }

    /// Kills the coordinator and starts another in its place.
    pub(crate) async fn restart_coordinator(&mut self) {
        drop(self.coordinator.take());
        self.seed += 1;
        // Its port becomes free a moment later.
        for _ in 0..200 {
            match Coordinator::start(self.config.clone(), seams(&self.net, self.clock.clone(), self.seed)).await {
                Ok(coordinator) => {
                    self.coordinator = Some(coordinator);
                    self.client = Client::connect(client_config(&self.net, &self.config.listen)).await.unwrap();
                    return;
                }
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
        panic!("the coordinator does not come back");
    }

    /// Copies the metadata, as a backup does.
    pub(crate) fn back_up(&self) -> PathBuf {
        let copy = self.dir.path().join("copy.sqlite");
        let _absent = std::fs::remove_file(&copy);
        let file = rusqlite::Connection::open(self.metadata_file()).unwrap();
        file.execute("VACUUM INTO ?1", [copy.display().to_string()]).unwrap();
        copy
    }

    /// Kills the coordinator, and starts another on a copy of the metadata.
    pub(crate) async fn restore(&mut self, copy: &std::path::Path) {
        drop(self.coordinator.take());
        for end in ["", "-wal", "-shm"] {
            let _absent = std::fs::remove_file(format!("{}{end}", self.metadata_file().display()));
        }
        std::fs::copy(copy, self.metadata_file()).unwrap();
        self.restart_coordinator().await;
    }

    /// The path of the metadata.
    pub(crate) fn metadata_file(&self) -> PathBuf {
        self.config.dir.join("metadata.sqlite")
    }

    pub(crate) fn coordinator(&self) -> &Coordinator {
        self.coordinator.as_ref().unwrap()
    }

    /// The nodes that are up.
    pub(crate) async fn up(&self) -> Vec<u32> {
        let status = self.client.status().await.unwrap();
        let up = status.nodes.iter().filter(|node| node.state == "up" && !node.disks.is_empty());
        up.map(|node| node.id).collect()
    }

    /// Waits until something holds.
    pub(crate) async fn until(&self, what: &str, holds: impl AsyncFn(&Self) -> bool) {
        let waiting = async {
            // Each look costs far more than the time that passes meanwhile, so what takes longer is looked at less often.
            let mut pause = LOOK_FIRST;
            while !holds(self).await {
                tokio::time::sleep(pause).await;
                pause = (pause * 9 / 8).min(LOOK_LAST);
            }
        };
        assert!(tokio::time::timeout(PATIENCE, waiting).await.is_ok(), "not within {PATIENCE:?}: {what}");
    }

    pub(crate) async fn put(&self, key: &str, data: &[u8]) -> Result<api::ObjectReply> {
        let options = PutOptions { code: "rs(4,2)".into(), block_len: 512 << 10, cell_len: 64 << 10, ..PutOptions::default() };
        within(self.client.put("b", key, data, &options)).await
    }

    /// Reads an object.
    pub(crate) async fn get(&self, key: &str, scheme: &str) -> Result<(Vec<u8>, Got)> {
        let mut bytes = Vec::new();
        let options = GetOptions { scheme: scheme.into(), ..GetOptions::default() };
        let got = within(self.client.get("b", key, &mut bytes, &options)).await?;
        Ok((bytes, got))
    }

    pub(crate) async fn stat(&self, key: &str) -> api::ObjectReply {
        self.client.stat("b", key).await.unwrap()
    }

    /// Repairs an object to the end.
    pub(crate) async fn repair(&self, key: &str, options: &RepairOptions) -> Result<api::RepairDone> {
        within(async {
            let mut repair = self.client.repair("b", key, options).await?;
            while let Some(event) = repair.next().await? {
                if let Some(api::repair_event::Event::Done(done)) = event.event {
                    return Ok(done);
                }
            }
            Err(Error::fatal("the repair did not end"))
        })
        .await
    }

    /// The node on which a repair would rebuild a block of an object's first stripe.
    pub(crate) async fn explained_target(&self, key: &str, index: u8) -> u32 {
        match self.explained(key, index).await.job.wants[0].party {
            Party::Node(node) => node.0,
            client => panic!("{client} stores a block"),
        }
    }

    /// The plan by which a block would be rebuilt now.
    pub(crate) async fn explained(&self, key: &str, index: u8) -> weft_plan::Saved {
        let options = RepairOptions { explain: true, ..block(index, None) };
        let mut repair = self.client.repair("b", key, &options).await.unwrap();
        let event = repair.next().await.unwrap().unwrap().event.unwrap();
        let api::repair_event::Event::Plan(plan) = event else { panic!("not a plan: {event:?}") };
        weft_plan::from_json(std::str::from_utf8(&plan.plan).unwrap()).unwrap()
    }

    /// The states of the blocks of an object, those that are ok left out: (stripe, index, state).
    pub(crate) async fn not_ok(&self, key: &str) -> Vec<(u64, u32, String)> {
        let stat = self.stat(key).await;
        let blocks = stat.stripes.iter().flat_map(|stripe| stripe.blocks.iter().map(move |block| (stripe.offset, block)));
        blocks.filter(|(_, block)| block.state != "ok").map(|(at, block)| (at, block.index, block.state.clone())).collect()
    }

    /// The node that holds a block of an object's first stripe.
    pub(crate) async fn holder(&self, key: &str, index: usize) -> u32 {
        self.stat(key).await.stripes[0].blocks[index].node
    }

    pub(crate) fn node_dir(&self, node: u32) -> PathBuf {
        self.dir.path().join(format!("node-{node:02}"))
    }

    /// A node's disks.
    pub(crate) fn disk_dirs(&self, node: u32) -> [PathBuf; 2] {
        ["disk-a", "disk-b"].map(|disk| self.node_dir(node).join(disk))
    }

    /// The files of blocks' payloads on a node's disks.
    pub(crate) fn block_files(&self, node: u32) -> Vec<PathBuf> {
        let mut found = Vec::new();
        find_blocks(&self.node_dir(node), &mut found);
        found.sort();
        found
    }

    /// The payload file of a block on a node.
    pub(crate) fn block_file(&self, node: u32, stripe: u64, (index, copy): (u8, u8), generation: u32) -> PathBuf {
        let block = weft_types::BlockId { stripe: weft_types::StripeId(stripe), index, copy, generation };
        let is_it = |file: &PathBuf| file.file_name().is_some_and(|name| name.to_string_lossy() == block.to_string());
        self.block_files(node).into_iter().find(is_it).unwrap_or_else(|| panic!("{block} is not on n{node}"))
    }

    /// The payload of a block of an object of one stripe, on nodes that hold nothing else.
    pub(crate) async fn payload(&self, key: &str, index: usize) -> PathBuf {
        self.block_files(self.holder(key, index).await).pop().unwrap()
    }

    /// Flips a byte of a block of an object of one stripe.
    pub(crate) async fn flip(&self, key: &str, index: usize, byte: usize) {
        let file = self.payload(key, index).await;
        let mut payload = std::fs::read(&file).unwrap();
        payload[byte] ^= 1;
        std::fs::write(&file, payload).unwrap();
    }

    /// Changes a byte of a block, and the checksums on the disk to match.
    pub(crate) async fn forge(&self, key: &str, index: usize, byte: usize) {
        self.flip(key, index, byte).await;
        let payload = self.payload(key, index).await;
        let sidecar = payload.with_extension("meta");
        let pages = std::fs::read(&payload).unwrap().chunks(4096).map(weft_types::crc32c).collect();
        let honest = Sidecar::decode(&std::fs::read(&sidecar).unwrap()).unwrap();
        let forged = Sidecar::new(honest.meta().clone(), pages).unwrap();
        std::fs::write(&sidecar, forged.encode().unwrap()).unwrap();
    }

    /// How many blocks all disks hold together.
    pub(crate) fn block_count(&self, nodes: impl Iterator<Item = u32>) -> usize {
        nodes.map(|node| self.block_files(node).len()).sum()
    }

    /// A client of the control plane that takes no part in plans.
    pub(crate) async fn bare_client(&self) -> api::weft_client::WeftClient<tonic::transport::Channel> {
        let net = Arc::new(self.net.clone());
        let expected = weft_proto::Peer::Coordinator;
        let channel = weft_proto::rpc::connect(net, &Security::Insecure, &self.config.listen, &expected).await.unwrap();
        weft_proto::rpc::weft_client(channel)
    }

    /// An agent of the membership service that has no disk.
    pub(crate) async fn bare_member(&self) -> weft_proto::v1::membership_client::MembershipClient<tonic::transport::Channel> {
        let net = Arc::new(self.net.clone());
        let expected = weft_proto::Peer::Coordinator;
        let channel = weft_proto::rpc::connect(net, &Security::Insecure, &self.config.listen, &expected).await.unwrap();
        weft_proto::rpc::membership_client(channel)
    }
}

/// Bytes without repetition.
pub(crate) fn data(len: usize, seed: u64) -> Vec<u8> {
    use rand::{RngCore, SeedableRng};
    let mut bytes = vec![0; len];
    rand::rngs::StdRng::seed_from_u64(seed).fill_bytes(&mut bytes);
    bytes
}

/// A repair of one block.
pub(crate) fn block(index: u8, to: Option<u32>) -> RepairOptions {
    RepairOptions { blocks: vec![index], to: to.map(NodeId).into_iter().collect(), ..RepairOptions::default() }
}

fn find_blocks(dir: &Path, found: &mut Vec<PathBuf>) {
    let Ok(entries) = std::fs::read_dir(dir) else { return };
    for entry in entries.flatten() {
        let path = entry.path();
        let name = entry.file_name().to_string_lossy().into_owned();
        if path.is_dir() && name != "quarantine" {
            find_blocks(&path, found);
        } else if name.parse::<weft_types::BlockId>().is_ok() {
            found.push(path);
        }
    }
}

/// The coordinator's clock, network and randomness.
pub(crate) fn seams(net: &MemoryNet, clock: SimulatedClock, seed: u64) -> Seams {
    Seams { net: Arc::new(net.clone()), clock: Arc::new(clock), seed: seed.into(), meta_mode: MetaMode::Inline }
}

/// Tokio's time, counted from a fixed date. Clones are the same clock.
#[derive(Debug, Clone)]
pub(crate) struct SimulatedClock {
    start: Instant,
    /// By how much a test has set it forward.
    pub(crate) ahead_ms: Arc<AtomicI64>,
}

impl Default for SimulatedClock {
    fn default() -> Self {
        Self { start: Instant::now(), ahead_ms: Arc::default() }
    }
}

impl Clock for SimulatedClock {
    fn now_ms(&self) -> u64 {
        let ahead_ms = self.ahead_ms.load(Ordering::Relaxed);
        (1_700_000_000_000 + self.start.elapsed().as_millis() as u64).saturating_add_signed(ahead_ms)
    }
}

fn client_config(net: &MemoryNet, coordinator: &str) -> ClientConfig {
    let config = ClientConfig::new([coordinator], Security::Insecure);
    ClientConfig { net: Arc::new(net.clone()), disk_mode: weft_client::DiskMode::Inline, ..config }
}

async fn within<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::time::timeout(PATIENCE, work).await.unwrap_or_else(|_| Err(Error::fatal(format!("not within {PATIENCE:?}"))))
}
