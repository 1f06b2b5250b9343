//! Agents on real disks and real loopback sockets (or on simulated time), and a coordinator that opens and starts
//! the plans that a test passes to it.

mod client;
mod coordinator;
mod gate;
pub(crate) mod updates;
mod wires;

pub(crate) use client::Client;
pub(crate) use coordinator::Coordinator;
pub(crate) use gate::{Gate, GatedDisks};
pub(crate) use wires::Wires;

use async_trait::async_trait;
use futures::future::join_all;
use std::{
    collections::BTreeMap,
    ops::Range,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tempfile::TempDir;
use tokio::{task::JoinHandle, time::sleep};
use weft_agent::{Agent, AgentConfig, DiskMode, Limits, OpenDisk, Seams, Throttle};
use weft_codes::{SharedCode, generator_hash};
use weft_gf::Combination;
use weft_plan::{Class, Hold, Input, Job, Plan, Want, WantKind};
use weft_proto::{
    Conversion, Converter, MemoryNet, Net, Peer, Security, TcpNet,
    certs::{Authority, CertificateFiles},
    from_status,
    v1::{self, StartRequest, TaskFailed, agent_client::AgentClient, task_event::Event},
};
use weft_schemes::{Kind, Request, Run, Select, by_name, plan, simplest};
use weft_types::{
    BlockId, BlockMeta, ClusterId, Error, Layout, NodeId, Party, PlanId, Result, Seq, Span, StripeId, StripeLayout,
};

pub(crate) const CLUSTER: ClusterId = ClusterId(0xc1);
pub(crate) const CLIENT: Party = Party::Client(77);

/// The options of a cluster.
pub(crate) struct Options {
    pub(crate) agents: u32,
    /// With [`Options::simulated`], a network in memory.
    pub(crate) net: Arc<dyn Net>,
    /// The connections that an agent dials, by its number, if they are special.
    pub(crate) wires: BTreeMap<u32, Wires>,
    pub(crate) tls: bool,
    pub(crate) limits: Limits,
    /// By agent number, if they are special.
    pub(crate) limits_of: BTreeMap<u32, Limits>,
    /// By agent number.
    pub(crate) throttles: BTreeMap<u32, Throttle>,
    pub(crate) disk_mode: DiskMode,
    pub(crate) disks_per_agent: u32,
    /// How one agent, by its number, opens its disks.
    pub(crate) disks: BTreeMap<u32, Arc<dyn OpenDisk>>,
    pub(crate) converter: Arc<dyn Converter>,
}

/// For tests that are not about conversions and never ask for one.
struct NoConverter;

#[async_trait]
impl Converter for NoConverter {
    async fn convert(&self, _: Conversion) -> Result<()> {
        Err(Error::fatal("this test converts nothing"))
    }
}

impl Options {
    pub(crate) fn agents(agents: u32) -> Self {
        Self {
            agents,
            net: Arc::new(TcpNet::default()),
            wires: BTreeMap::new(),
            tls: false,
            limits: Limits::default(),
            limits_of: BTreeMap::new(),
            throttles: BTreeMap::new(),
            disk_mode: DiskMode::Pool,
            disks_per_agent: 1,
            disks: BTreeMap::new(),
            converter: Arc::new(NoConverter),
        }
    }
}

impl Options {
    /// Uses tokio's clock for everything that takes time. A test with a paused clock then measures only the waits.
    pub(crate) fn simulated(self) -> Self {
        Self { net: Arc::new(MemoryNet::default()), disk_mode: DiskMode::Inline, ..self }
    }

    /// The connections that each agent dials are counted, and can be cut.
    pub(crate) fn wired(mut self) -> Self {
        self.wires = (1..=self.agents).map(|number| (number, Wires::new(&self.net))).collect();
        self
    }
}

/// Running agents 1, 2, …, and their coordinator.
pub(crate) struct Cluster {
    pub(crate) dir: TempDir,
    pub(crate) options: Options,
    pub(crate) coordinator: Arc<Coordinator>,
    pub(crate) agents: BTreeMap<u32, Agent>,
    authority: Option<Authority>,
}

impl Cluster {
    pub(crate) async fn start(options: Options) -> Self {
        let _already_set = tracing_subscriber::fmt().with_test_writer().with_max_level(tracing::Level::ERROR).try_init();
        let dir = tempfile::tempdir().unwrap();
        let authority = options.tls.then(|| Authority::create(dir.path(), CLUSTER).unwrap());
        let security = security(&authority, dir.path(), &Peer::Coordinator);
        let coordinator = Coordinator::start(security, Arc::clone(&options.net)).await;
        let mut cluster = Self { dir, options, coordinator, agents: BTreeMap::new(), authority };
        // In parallel, because each waits for its disks. The names contain the numbers.
        let agents = join_all((1..=cluster.options.agents).map(|number| cluster.started(number))).await;
        cluster.agents = (1..).zip(agents).collect();
        cluster
    }

    /// Starts the agent with this number, and waits until it has registered under it.
    pub(crate) async fn start_agent(&mut self, number: u32) {
        let agent = self.started(number).await;
        self.agents.insert(number, agent);
    }

    async fn started(&self, number: u32) -> Agent {
        let mut started = Agent::start(self.config(number), self.seams(number)).await;
        // A call that was running when the agent stopped may hold its disks for a moment longer.
        for _ in 0..3_000 {
            match &started {
                Err(error) if error.message.contains("in use by another process") => sleep(Duration::from_millis(10)).await,
                _ => break,
            }
            started = Agent::start(self.config(number), self.seams(number)).await;
        }
        let agent = started.unwrap();
        while agent.node().is_none() {
            sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(agent.node(), Some(NodeId(number)));
        agent
    }

    /// Stops an agent as `kill -9` does.
    pub(crate) async fn kill_agent(&mut self, number: u32) {
        drop(self.agents.remove(&number).unwrap());
    }

    pub(crate) fn config(&self, number: u32) -> AgentConfig {
        let name = format!("node-{number:02}");
        if self.authority.is_some() {
            drop(security(&self.authority, self.dir.path(), &Peer::Agent(name.clone())));
        }
        AgentConfig {
            rack: "r1".into(),
            zone: "z1".into(),
            cluster: Some(CLUSTER),
            coordinators: vec![self.coordinator.address.clone()],
            data_listen: "127.0.0.1:0".into(),
            control_listen: "127.0.0.1:0".into(),
            data_advertise: None,
            control_advertise: None,
            metrics: weft_proto::metrics::ANY_PORT.into(),
            state_dir: self.agent_dir(number).join("state"),
            disks: (0..self.options.disks_per_agent).map(|disk| self.agent_dir(number).join(format!("disk{disk}"))).collect(),
            certificates: self.authority.is_some().then(|| self.dir.path().to_path_buf()),
            insecure: self.authority.is_none(),
            limits: self.options.limits_of.get(&number).unwrap_or(&self.options.limits).clone(),
            throttle: self.options.throttles.get(&number).cloned().unwrap_or_default(),
            name,
        }
    }

    pub(crate) fn seams(&self, number: u32) -> Seams {
        let wires = self.options.wires.get(&number).map(|wires| Arc::new(wires.clone()) as Arc<dyn Net>);
        let net = wires.unwrap_or_else(|| Arc::clone(&self.options.net));
        let converter = Arc::clone(&self.options.converter);
        let mut seams = Seams { net, disk_mode: self.options.disk_mode, ..Seams::real(u64::from(number).into(), converter) };
        if let Some(disks) = self.options.disks.get(&number) {
            seams.disks = Arc::clone(disks);
        }
        seams
    }

    pub(crate) fn agent_dir(&self, number: u32) -> PathBuf {
        self.dir.path().join(format!("agent{number}"))
    }

    pub(crate) async fn call(&self, node: NodeId) -> AgentClient<tonic::transport::Channel> {
        self.coordinator.call(node).await
    }

    pub(crate) fn client(&self) -> Client {
        self.client_with(&Peer::Client)
    }

    /// A client with the certificate of `peer`.
    pub(crate) fn client_with(&self, peer: &Peer) -> Client {
        Client::new(self.security(peer), Arc::clone(&self.options.net))
    }

    pub(crate) fn security(&self, peer: &Peer) -> Security {
        security(&self.authority, self.dir.path(), peer)
    }

    /// The payload file of a block, once it is committed.
    pub(crate) fn payload(&self, node: NodeId, id: BlockId) -> Option<PathBuf> {
        find(&self.agent_dir(node.0), &id.to_string())
    }

    /// Opens a plan at all its agents. If one refuses, returns its error and leaves the plan open nowhere.
    pub(crate) async fn open(&self, plan: &Plan, stripe: &Stripe) -> Result<Opened> {
        let opened = Opened { plan: plan.clone(), tasks: self.coordinator.tasks(plan, stripe) };
        for (party, request) in &opened.tasks {
            if let Party::Node(node) = party
                && let Err(status) = self.call(*node).await.open(request.clone()).await
            {
                for party in opened.tasks.keys() {
                    if let Party::Node(node) = party {
                        self.cancel(*node, plan.id).await;
                    }
                }
                return Err(from_status(&status).party(*party));
            }
        }
        Ok(opened)
    }

    pub(crate) async fn cancel(&self, node: NodeId, plan: PlanId) {
        let request = v1::CancelRequest { plan: plan.0, epoch: self.coordinator.epoch(), wait: true };
        self.call(node).await.cancel(request).await.unwrap();
    }

    /// Starts an open plan at all its agents. Each handle returns the task's last event.
    pub(crate) async fn start_all(&self, opened: &Opened) -> BTreeMap<NodeId, JoinHandle<Result<Event>>> {
        let mut running = BTreeMap::new();
        for party in opened.tasks.keys() {
            if let Party::Node(node) = party {
                running.insert(*node, self.start_one(*node, opened.plan.id).await);
            }
        }
        running
    }

    pub(crate) async fn start_one(&self, node: NodeId, plan: PlanId) -> JoinHandle<Result<Event>> {
        let request = StartRequest { plan: plan.0, epoch: self.coordinator.epoch(), open: None, pages: true };
        let started = self.call(node).await.start(request).await;
        let coordinator = Arc::clone(&self.coordinator);
        tokio::spawn(async move {
            let mut events = started.map_err(|status| from_status(&status))?.into_inner();
            loop {
                let event = events.message().await.map_err(|status| from_status(&status))?;
                match event.and_then(|event| event.event) {
                    Some(Event::Progress(progress)) => coordinator.note_progress(node, progress),
                    Some(Event::Started(started)) => coordinator.note_pages(node, started.pages),
                    Some(end) => return Ok(end),
                    None => return Err(Error::replan("the event stream ended without a final event")),
                }
            }
        })
    }

    /// Runs a plan to its end, including the client's share.
    pub(crate) async fn run(&self, plan: &Plan, stripe: &Stripe, client: &Client) -> Result<BTreeMap<NodeId, Event>> {
        let opened = self.open(plan, stripe).await?;
        let running = self.start_all(&opened).await;
        if let Some(request) = opened.tasks.get(&CLIENT) {
            client.run(request).await.into_result()?;
        }
        let mut events = BTreeMap::new();
        for (node, end) in running {
            events.insert(node, end.await.unwrap()?);
        }
        Ok(events)
    }

    /// Writes a stripe and checks that every agent stored its block.
    pub(crate) async fn write(&self, stripe: &Stripe) {
        let client = self.client().with_data(stripe);
        let events = self.run(&stripe.write_plan(), stripe, &client).await.unwrap();
        assert_eq!(events.len(), stripe.blocks.len());
        for (node, event) in events {
            let Event::Done(done) = event else { panic!("{node}: {:?}", errors(&event)) };
            assert_eq!(done.stored.len(), 1, "{node}");
        }
    }
}

/// An open plan, and the requests that opened it.
pub(crate) struct Opened {
    pub(crate) plan: Plan,
    pub(crate) tasks: BTreeMap<Party, v1::OpenRequest>,
}

/// A stripe: block i is at node i+1.
pub(crate) struct Stripe {
    pub(crate) code: SharedCode,
    pub(crate) layout: StripeLayout,
    pub(crate) id: StripeId,
    /// The blocks' bytes, without trailing zeros beyond their ends.
    pub(crate) blocks: Vec<Vec<u8>>,
    pub(crate) slice_len: u64,
    pub(crate) window: u32,
}

impl Stripe {
    pub(crate) fn new(number: u64, spec: &str, block_len: u64, data_len: u64) -> Self {
        let code = weft_codes::parse(spec).unwrap();
        let layout = Layout::new(block_len, block_len, 1).unwrap();
        let layout = StripeLayout { layout, k: code.k() as u32, m: code.m() as u32, data_len };
        let span = layout.coded_span().len() as usize;
        let mut data: Vec<Vec<u8>> = vec![vec![0; span]; code.k()];
        let mut state = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        for offset in 0..data_len {
            let (index, at) = layout.locate(offset);
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            data[index as usize][at as usize] = state as u8;
        }
        let mut blocks: Vec<Vec<u8>> = vec![vec![0; span]; code.n()];
        let sources: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
        let mut rows: Vec<&mut [u8]> = blocks.iter_mut().map(Vec::as_mut_slice).collect();
        Combination::new(code.generator()).apply(&sources, &mut rows);
        for (index, block) in blocks.iter_mut().enumerate() {
            block.truncate(layout.block_len(index as u32) as usize);
        }
        Self { code, layout, id: StripeId(number), blocks, slice_len: 64 << 10, window: 4 }
    }

    pub(crate) fn block(&self, index: u8, generation: u32) -> BlockId {
        BlockId { stripe: self.id, index, copy: 0, generation }
    }

    pub(crate) fn meta(&self, id: BlockId) -> BlockMeta {
        BlockMeta {
            cluster: CLUSTER,
            id,
            object: "bucket/key".into(),
            version: 1,
            object_offset: 0,
            code: self.code.spec(),
            generator_hash: generator_hash(self.code.as_ref()),
            stripe: self.layout,
            seq: Seq::default(),
        }
    }

    pub(crate) fn units(&self, index: u8) -> Vec<u32> {
        self.blocks[usize::from(index)].chunks(1 << 20).map(weft_proto::crc32c).collect()
    }

    /// A plan in which a client writes all blocks.
    pub(crate) fn write_plan(&self) -> Plan {
        self.write_plan_of(0..self.code.n() as u8)
    }

    /// A plan in which a client writes these blocks.
    pub(crate) fn write_plan_of(&self, indices: Range<u8>) -> Plan {
        let inputs = (0..self.code.k() as u8).map(|index| Input { party: CLIENT, index }).collect();
        let wants = indices.clone().map(|index| self.store(node(index), index, self.layout.coded_span())).collect();
        let job = Job { inputs, wants, ..Job::default() };
        let stores: Vec<_> = indices.map(|index| (node(index), self.block(index, 1))).collect();
        plan(&self.request(Class::Foreground, &job, &stores, &[]), by_name(Kind::Write, "direct").unwrap()).unwrap()
    }

    /// A plan that rebuilds block `lost` as generation 2 at `to` from `helpers`, in this order.
    pub(crate) fn repair_plan(&self, lost: u8, to: Party, helpers: &[u8], scheme: &str, spans: &[Span]) -> Plan {
        self.repair_plan_of(self.block(lost, 2), to, helpers, scheme, spans)
    }

    /// Like [`repair_plan`](Self::repair_plan), with the generation in `block`.
    pub(crate) fn repair_plan_of(&self, block: BlockId, to: Party, helpers: &[u8], scheme: &str, spans: &[Span]) -> Plan {
        let lost = block.index;
        let wants = spans.iter().map(|span| self.store(to, lost, *span)).collect();
        let job = Job { holds: self.holds(helpers), wants, ..Job::default() };
        let prefer: Vec<Party> = helpers.iter().map(|index| node(*index)).collect();
        let stores = [(to, block)];
        plan(&self.request(Class::Repair, &job, &stores, &prefer), by_name(Kind::Repair, scheme).unwrap()).unwrap()
    }

    /// A plan in which a client reads a block. The block is rebuilt unless `helpers` includes it.
    pub(crate) fn read_plan(&self, index: u8, helpers: &[u8], scheme: &str) -> Plan {
        self.read_plan_of(index, self.layout.coded_span(), helpers, scheme)
    }

    /// Like [`read_plan`](Self::read_plan), for some positions.
    pub(crate) fn read_plan_of(&self, index: u8, span: Span, helpers: &[u8], scheme: &str) -> Plan {
        let want = Want { kind: WantKind::Output, ..self.store(CLIENT, index, span) };
        let job = Job { holds: self.holds(helpers), wants: vec![want], ..Job::default() };
        plan(&self.request(Class::Foreground, &job, &[], &[]), by_name(Kind::Repair, scheme).unwrap()).unwrap()
    }

    /// A plan in which a party checks all blocks.
    pub(crate) fn check_plan(&self, checker: Party) -> Plan {
        let rows = (0..self.code.m() as u16).collect();
        let want = Want { kind: WantKind::Check, sub_blocks: rows, ..self.store(checker, 0, self.layout.coded_span()) };
        let all: Vec<u8> = (0..self.code.n() as u8).collect();
        let job = Job { holds: self.holds(&all), wants: vec![want], ..Job::default() };
        plan(&self.request(Class::Scrub, &job, &[], &[]), simplest(Kind::Check).unwrap()).unwrap()
    }

    fn holds(&self, helpers: &[u8]) -> Vec<Hold> {
        let hold = |index: &u8| Hold { party: node(*index), block: self.block(*index, 1), span: self.layout.coded_span() };
        helpers.iter().map(hold).collect()
    }

    fn store(&self, party: Party, index: u8, span: Span) -> Want {
        Want { kind: WantKind::Store, party, index, sub_blocks: vec![0], span }
    }

    fn request<'a>(&'a self, class: Class, job: &'a Job, stores: &'a [(Party, BlockId)], prefer: &'a [Party]) -> Request<'a> {
        let run = Run { window: self.window, ..Run::new(next_plan(), 1, class, self.slice_len) };
        Request { stores, prefer, select: Select::AsPreferred, ..Request::new(self.code.as_ref(), self.layout, job, run) }
    }
}

/// The node of a block of generation 1.
pub(crate) fn node(index: u8) -> Party {
    Party::Node(NodeId(u32::from(index) + 1))
}

fn next_plan() -> PlanId {
    static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
    PlanId(1 << 32 | NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed))
}

/// The positions of a block that a Failed event reports as arrived.
pub(crate) fn arrived(event: &Event, block: BlockId) -> Vec<Span> {
    let Event::Failed(TaskFailed { arrived, .. }) = event else { return Vec::new() };
    let id = postcard::to_allocvec(&block).unwrap();
    let of_block = arrived.iter().filter(|arrived| arrived.id == id);
    of_block.flat_map(|arrived| arrived.spans.iter().map(|span| Span::new(span.start, span.end))).collect()
}

/// Waits, up to a limit, until a condition holds.
pub(crate) async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    // A minute and more: on a busy machine, a disk that counts as failed after eight seconds does so after twelve.
    for _ in 0..6000 {
        if is_so().await {
            return;
        }
        sleep(Duration::from_millis(10)).await;
    }
    panic!("timed out waiting until {what}");
}

/// A Data frame for the first slice of a link that is one sub-block wide.
pub(crate) fn data_frame(link: u32, slice_len: u64) -> Vec<u8> {
    let payload = vec![7; slice_len as usize];
    let mut header = b"WEFT".to_vec();
    header.extend([3, 0, 0, 0]);
    header.extend(link.to_le_bytes());
    header.extend((slice_len as u32).to_le_bytes());
    header.extend(0u64.to_le_bytes());
    header.extend(slice_len.to_le_bytes());
    let checksum = weft_proto::crc32c(&[header.as_slice(), &payload].concat());
    [header, checksum.to_le_bytes().to_vec(), payload].concat()
}

/// The errors of a Failed.
pub(crate) fn errors(event: &Event) -> Vec<Error> {
    let Event::Failed(TaskFailed { errors, .. }) = event else { return Vec::new() };
    errors.iter().map(|error| weft_proto::status::decode_error(error).unwrap()).collect()
}

fn security(authority: &Option<Authority>, dir: &Path, peer: &Peer) -> Security {
    let Some(authority) = authority else { return Security::Insecure };
    let files = CertificateFiles::in_dir(dir, peer);
    if !files.key.exists() {
        authority.issue(dir, peer).unwrap();
    }
    Security::load(&files).unwrap()
}

fn find(dir: &Path, name: &str) -> Option<PathBuf> {
    for entry in std::fs::read_dir(dir).ok()?.flatten() {
        let path = entry.path();
        if path.file_name().is_some_and(|file| file == "tmp") {
            continue;
        }
        if path.is_dir() {
            if let Some(found) = find(&path, name) {
                return Some(found);
            }
        } else if path.file_name().is_some_and(|file| file == name) {
            return Some(path);
        }
    }
    None
}
