//! A coordinator that records its members and otherwise acts only on a test's command.

use super::{CLUSTER, Stripe};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};
use tokio::{task::JoinHandle, time::Instant};
use tonic::{Request, Response, Status, transport::Channel};
use weft_plan::{Plan, cut};
use weft_proto::{
    LinkKey, LinkRights, Net, Peer, Security, encode_sealed, encode_task, rpc, to_status,
    token::task_hash,
    v1::{
        ClassLimits, CorruptBlock, Disk, FindOpenStripesReply, FindOpenStripesRequest, HeartbeatReply, HeartbeatRequest,
        LinkPeer, OpenMember, OpenRequest, OpenStripe, RegisterReply, RegisterRequest, StoreSpec, TaskProgress, UnitPages,
        agent_client::AgentClient, membership_server::Membership,
    },
};
use weft_types::{BlockId, Error, NodeId, Party, StripeId};
use weft_update::Sealed;

/// A coordinator that records its members.
pub(crate) struct Coordinator {
    net: Arc<dyn Net>,
    pub(crate) address: String,
    security: Security,
    epoch: AtomicU64,
    known: Mutex<Known>,
    server: Mutex<Option<JoinHandle<()>>>,
    begin: Instant,
}

/// A stripe that is open for updates, as the metadata have it.
pub(crate) struct Opened {
    pub(crate) sealed: Sealed,
    pub(crate) homes: Vec<(BlockId, NodeId)>,
}

#[derive(Default)]
struct Known {
    nodes: BTreeMap<u32, Member>,
    forgotten: BTreeSet<u32>,
    corrupt: Vec<(u32, CorruptBlock)>,
    progress: BTreeMap<NodeId, TaskProgress>,
    pages: BTreeMap<NodeId, Vec<UnitPages>>,
    limits: Option<ClassLimits>,
    open: BTreeMap<StripeId, Opened>,
    /// Questions about open stripes are not answered.
    is_silent: bool,
    /// A question about more blocks is refused.
    asked_max: Option<usize>,
    /// The blocks of which agents have said that they are open.
    told_open: BTreeSet<BlockId>,
}

#[derive(Clone)]
pub(crate) struct Member {
    pub(crate) request: RegisterRequest,
    pub(crate) key: LinkKey,
    pub(crate) registrations: u32,
    pub(crate) heartbeats: u32,
    /// The last report.
    pub(crate) disks: Vec<Disk>,
}

impl Coordinator {
    pub(crate) async fn start(security: Security, net: Arc<dyn Net>) -> Arc<Self> {
        let listener = net.listen("127.0.0.1:0").await.unwrap();
        let address = listener.local_address().unwrap();
        let known = Mutex::default();
        let coordinator = Arc::new(Self {
            net,
            address,
            security,
            epoch: AtomicU64::new(1),
            known,
            server: Mutex::default(),
            begin: Instant::now(),
        });
        coordinator.serve(listener);
        coordinator
    }

    fn serve(self: &Arc<Self>, listener: Box<dyn weft_proto::Listen>) {
        let services = rpc::Services::new().with(rpc::membership_server(Registry(Arc::clone(self))));
        let security = self.security.clone();
        let server = tokio::spawn(async move {
            rpc::serve(services, listener, security, std::future::pending()).await.unwrap();
        });
        *self.server.lock().unwrap() = Some(server);
    }

    /// Replaces it, as after `kill -9`, by a new one in the next epoch that knows nothing.
    pub(crate) async fn restart(self: &Arc<Self>) {
        let server = self.server.lock().unwrap().take().unwrap();
        server.abort();
        let _aborted = server.await;
        self.epoch.fetch_add(1, Relaxed);
        *self.known.lock().unwrap() = Known::default();
        for _ in 0..100 {
            if let Ok(listener) = self.net.listen(&self.address).await {
                return self.serve(listener);
            }
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
        panic!("the coordinator's port is taken");
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Relaxed)
    }

    pub(crate) fn member(&self, node: NodeId) -> Option<Member> {
        self.known.lock().unwrap().nodes.get(&node.0).cloned()
    }

    /// Answers the next heartbeat of that node with NOT_FOUND.
    pub(crate) fn forget(&self, node: NodeId) {
        self.known.lock().unwrap().forgotten.insert(node.0);
    }

    /// Answers heartbeats with these limits; returns when all nodes have them.
    pub(crate) async fn limit(&self, limits: Option<ClassLimits>) {
        let beats = |known: &Known| known.nodes.values().map(|member| member.heartbeats).min().unwrap_or_default();
        let before = {
            let mut known = self.known.lock().unwrap();
            known.limits = limits;
            known.nodes.values_mut().for_each(|member| member.heartbeats = 0);
            beats(&known)
        };
        // The answer to the first heartbeat may still be on its way when the second arrives.
        while beats(&self.known.lock().unwrap()) < before + 2 {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    }

    pub(crate) fn now_ms(&self) -> u64 {
        1_700_000_000_000 + self.begin.elapsed().as_millis() as u64
    }

    /// Opens a stripe for updates, or changes what is known of it.
    pub(crate) fn publish(&self, opened: Opened) {
        self.known.lock().unwrap().open.insert(opened.homes[0].0.stripe, opened);
    }

    /// The stripe is settled.
    pub(crate) fn withdraw(&self, stripe: StripeId) {
        self.known.lock().unwrap().open.remove(&stripe);
    }

    /// Whether agents learn what is open.
    pub(crate) fn silence(&self, is_silent: bool) {
        self.known.lock().unwrap().is_silent = is_silent;
    }

    /// Refuses questions about more blocks: their answers would be too large.
    pub(crate) fn answer_at_most(&self, blocks: usize) {
        self.known.lock().unwrap().asked_max = Some(blocks);
    }

    /// The blocks of which agents have said that they are open, since the last call.
    pub(crate) fn take_told_open(&self) -> BTreeSet<BlockId> {
        std::mem::take(&mut self.known.lock().unwrap().told_open)
    }

    /// The description of an open stripe for agents.
    pub(crate) fn open_stripe(&self, stripe: StripeId) -> Option<OpenStripe> {
        let known = self.known.lock().unwrap();
        let Opened { sealed, homes } = known.open.get(&stripe)?;
        let member = |(block, node): &(BlockId, NodeId)| {
            let request = &known.nodes.get(&node.0)?.request;
            let (name, address) = (request.name.clone(), request.data_address.clone());
            Some(OpenMember { block: postcard::to_allocvec(block).unwrap(), node: node.0, name, address })
        };
        let members = homes.iter().filter_map(member).collect();
        Some(OpenStripe { stripe: stripe.0, sealed: encode_sealed(sealed).unwrap(), members })
    }

    pub(crate) fn corrupt(&self) -> Vec<(u32, CorruptBlock)> {
        self.known.lock().unwrap().corrupt.clone()
    }

    pub(crate) fn note_progress(&self, node: NodeId, progress: TaskProgress) {
        self.known.lock().unwrap().progress.insert(node, progress);
    }

    pub(crate) fn progress(&self, node: NodeId) -> Option<TaskProgress> {
        self.known.lock().unwrap().progress.get(&node).cloned()
    }

    pub(crate) fn note_pages(&self, node: NodeId, pages: Vec<UnitPages>) {
        self.known.lock().unwrap().pages.insert(node, pages);
    }

    /// The pages that a node reported when it last started a task.
    pub(crate) fn pages(&self, node: NodeId) -> Option<Vec<UnitPages>> {
        self.known.lock().unwrap().pages.get(&node).cloned()
    }

    pub(crate) async fn call(&self, node: NodeId) -> AgentClient<Channel> {
        self.call_with(self.security.clone(), node).await
    }

    /// A client for calls, with the given certificate.
    pub(crate) async fn call_with(&self, security: Security, node: NodeId) -> AgentClient<Channel> {
        let member = self.member(node).unwrap();
        let peer = Peer::Agent(member.request.name);
        let net = Arc::clone(&self.net);
        rpc::agent_client(rpc::connect(net, &security, &member.request.control_address, &peer).await.unwrap())
    }

    /// Each party's share of a plan, with addresses and tokens, as in Open.
    pub(crate) fn tasks(&self, plan: &Plan, stripe: &Stripe) -> BTreeMap<Party, OpenRequest> {
        let mut plan = plan.clone();
        plan.epoch = self.epoch();
        let vertices = 0..plan.binding.parties.len() as u16;
        let tasks: BTreeMap<Party, _> = vertices.map(|vertex| cut(&plan, vertex)).map(|task| (task.party, task)).collect();
        let bytes: BTreeMap<Party, Vec<u8>> = tasks.iter().map(|(party, task)| (*party, encode_task(task).unwrap())).collect();
        let open = |(party, task): (&Party, &weft_plan::Task)| {
            let peer = |link: &weft_plan::TaskLink| {
                let (from, to) = if link.sends { (*party, link.peer) } else { (link.peer, *party) };
                // A client always dials; between agents the sender dials.
                let acceptor = if let Party::Client(_) = to { from } else { to };
                let (name, mut address, mut token) = (self.name(link.peer), String::new(), Vec::new());
                if acceptor != *party {
                    let member = self.member_of(acceptor);
                    let task_hash = task_hash(&bytes[&acceptor]);
                    let rights = LinkRights { epoch: plan.epoch, plan: plan.id, link: link.id(), from, to, task_hash };
                    address = member.request.data_address;
                    token = member.key.issue(&rights).0.to_vec();
                }
                LinkPeer { link: link.id(), address, token, name }
            };
            let spec = |block: &weft_plan::TaskBlock| StoreSpec {
                meta: postcard::to_allocvec(&stripe.meta(block.id)).unwrap(),
                expected_checksums: if block.id.generation > 1 { stripe.units(block.id.index) } else { Vec::new() },
                disk: self.member_of(*party).request.disks[0].id.clone(),
            };
            let request = OpenRequest {
                task: bytes[party].clone(),
                peers: task.links.iter().map(peer).collect(),
                stores: task.stores.iter().map(spec).collect(),
                stall_ms: 10_000,
                registration: Vec::new(),
                reads: Vec::new(),
                extra_stall_ms: 0,
            };
            (*party, request)
        };
        tasks.iter().map(open).collect()
    }

    fn name(&self, party: Party) -> String {
        if let Party::Client(_) = party { String::new() } else { self.member_of(party).request.name }
    }

    fn member_of(&self, party: Party) -> Member {
        let Party::Node(node) = party else { panic!("a client is not a member") };
        self.member(node).unwrap()
    }
}

struct Registry(Arc<Coordinator>);

#[tonic::async_trait]
impl Membership for Registry {
    async fn register(&self, request: Request<RegisterRequest>) -> Result<Response<RegisterReply>, Status> {
        let request = request.into_inner();
        let mut known = self.0.known.lock().unwrap();
        let number: u32 = request.name.trim_start_matches("node-").parse().unwrap();
        assert!(request.node == 0 || request.node == number, "a node keeps its number for ever");
        let registrations = known.nodes.get(&number).map_or(0, |member| member.registrations) + 1;
        let link_key = [number as u8 ^ registrations as u8; 32];
        let key = LinkKey::new(link_key);
        known.nodes.insert(number, Member { disks: request.disks.clone(), request, key, registrations, heartbeats: 0 });
        Ok(Response::new(RegisterReply {
            cluster: CLUSTER.to_string(),
            node: number,
            epoch: self.0.epoch(),
            link_key: link_key.to_vec(),
            heartbeat_interval_ms: 50,
            incarnation: "first".into(),
            protocol: weft_proto::PROTOCOL.newest.into(),
            now_ms: self.0.now_ms(),
            ..RegisterReply::default()
        }))
    }

    async fn find_open_stripes(
        &self,
        request: Request<FindOpenStripesRequest>,
    ) -> Result<Response<FindOpenStripesReply>, Status> {
        if self.0.known.lock().unwrap().is_silent {
            return Err(to_status(&Error::retry("the coordinator is silent")));
        }
        let FindOpenStripesRequest { blocks, open, .. } = request.into_inner();
        if open {
            let told = blocks.iter().map(|block| postcard::from_bytes::<BlockId>(block).unwrap());
            self.0.known.lock().unwrap().told_open.extend(told);
        }
        if self.0.known.lock().unwrap().asked_max.is_some_and(|max| blocks.len() > max) {
            return Err(to_status(&Error::invalid("the answer would be too large: ask for fewer blocks at a time")));
        }
        let stripes: BTreeSet<StripeId> =
            blocks.iter().map(|block| postcard::from_bytes::<BlockId>(block).unwrap().stripe).collect();
        let stripes = stripes.into_iter().filter_map(|stripe| self.0.open_stripe(stripe)).collect();
        Ok(Response::new(FindOpenStripesReply { stripes }))
    }

    async fn heartbeat(&self, request: Request<HeartbeatRequest>) -> Result<Response<HeartbeatReply>, Status> {
        let request = request.into_inner();
        let mut known = self.0.known.lock().unwrap();
        let forgotten = known.forgotten.remove(&request.node);
        match known.nodes.get_mut(&request.node) {
            Some(member) if !forgotten => {
                member.heartbeats += 1;
                member.disks = request.disks.clone();
            }
            _ => return Err(to_status(&Error::not_found("no such node"))),
        }
        known.corrupt.extend(request.corrupt.into_iter().map(|corrupt| (request.node, corrupt)));
        Ok(Response::new(HeartbeatReply { epoch: self.0.epoch(), limits: known.limits, now_ms: self.0.now_ms() }))
    }
}
