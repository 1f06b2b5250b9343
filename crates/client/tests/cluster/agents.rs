//! Agents that run their tasks with the engine and keep their blocks in memory.

use crate::{
    CLUSTER,
    open_reads::OpenReads,
    updates::{self, Updates},
};
use async_trait::async_trait;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::sync::Notify;
use weft_engine::{Outcome, Ports, SliceSink, SliceSource};
use weft_plan::{Sink, Source, Task, TaskLane, TaskLink, TaskStage, link_id};
use weft_proto::{
    Direction, FrameStream, Hello, Incoming, LinkReceiver, LinkSender, LinkToken, Net, Opening, Peer, Security, TcpNet,
};
use weft_types::{BlockId, Error, NodeId, Party, Result, Rows, Span};

const STALL: Duration = Duration::from_secs(5);

#[derive(Default)]
pub(crate) struct Faults {
    /// Nodes that are down.
    pub(crate) dead: BTreeSet<NodeId>,
    /// Nodes that die after this many more slices.
    pub(crate) dying: BTreeMap<NodeId, u32>,
    /// Nodes that read a wrong byte in this many more slices.
    pub(crate) lying: BTreeMap<NodeId, u32>,
}

pub(crate) struct Node {
    pub(crate) id: NodeId,
    pub(crate) name: String,
    pub(crate) address: String,
    security: Security,
}

pub(crate) struct Agents {
    pub(crate) nodes: Vec<Node>,
    pub(crate) blocks: Mutex<BTreeMap<(NodeId, BlockId), Vec<u8>>>,
    pub(crate) faults: Mutex<Faults>,
    pub(crate) updates: Mutex<Updates>,
    pub(crate) open_reads: Mutex<OpenReads>,
    /// Connections whose Hello was accepted, by plan and link, until the task takes them.
    greeted: Mutex<BTreeMap<(u64, u32), FrameStream>>,
    arrived: Notify,
}

impl Agents {
    pub(crate) async fn start(count: u32, security: &impl Fn(&Peer) -> Security) -> Arc<Self> {
        let (mut nodes, mut listeners) = (Vec::new(), Vec::new());
        for number in 1..=count {
            let name = format!("node-{number}");
            let security = security(&Peer::Agent(name.clone()));
            let listener = TcpNet::default().listen("127.0.0.1:0").await.unwrap();
            let address = listener.local_address().unwrap();
            listeners.push((NodeId(number), Incoming::start(listener, security.clone())));
            nodes.push(Node { id: NodeId(number), name, address, security });
        }
        let agents = Arc::new(Self {
            nodes,
            blocks: Mutex::default(),
            faults: Mutex::default(),
            updates: Mutex::default(),
            open_reads: Mutex::default(),
            greeted: Mutex::default(),
            arrived: Notify::new(),
        });
        for (node, mut incoming) in listeners {
            let agents = agents.clone();
            tokio::spawn(async move {
                while let Some(accepted) = incoming.next().await {
                    tokio::spawn(agents.clone().begin(node, FrameStream::new(accepted.stream), accepted.peer));
                }
            });
        }
        agents
    }

    pub(crate) fn node(&self, node: NodeId) -> &Node {
        &self.nodes[node.0 as usize - 1]
    }

    pub(crate) fn kill(&self, node: NodeId) {
        self.faults.lock().unwrap().dead.insert(node);
        self.arrived.notify_waiters();
    }

    pub(crate) fn is_dead(&self, node: NodeId) -> bool {
        self.faults.lock().unwrap().dead.contains(&node)
    }

    /// A new connection: for links, or for updates.
    async fn begin(self: Arc<Self>, node: NodeId, mut frames: FrameStream, peer: Peer) {
        match frames.read_opening().await {
            Ok(Opening::Link(hello)) => self.link(node, frames, hello).await,
            Ok(Opening::Updates(hello)) => updates::serve(self, node, frames, hello, peer).await,
            Err(_) => {}
        }
    }

    /// Waits for the next Hello of a connection.
    async fn greet(self: Arc<Self>, node: NodeId, mut frames: FrameStream) {
        let Ok(hello) = frames.read_hello().await else { return };
        self.link(node, frames, hello).await;
    }

    async fn link(&self, node: NodeId, mut frames: FrameStream, hello: Hello) {
        assert_eq!(hello.cluster, CLUSTER);
        if self.is_dead(node) || frames.accept_hello(&hello).await.is_err() {
            return;
        }
        self.greeted.lock().unwrap().insert((hello.plan.0, hello.link), frames);
        self.arrived.notify_waiters();
    }

    async fn greeted(&self, plan: u64, link: u32) -> Result<FrameStream> {
        let waiting = async {
            loop {
                let arrived = self.arrived.notified();
                if let Some(frames) = self.greeted.lock().unwrap().remove(&(plan, link)) {
                    return frames;
                }
                arrived.await;
            }
        };
        tokio::time::timeout(STALL, waiting).await.map_err(|_| Error::replan("no link was opened").link(link, 0))
    }

    pub(crate) async fn run(self: Arc<Self>, node: NodeId, task: Task) -> Outcome {
        let ports = AgentPorts { agents: self.clone(), node, task: &task };
        weft_engine::run(&task, &ports).await
    }

    /// Counts one more slice, and fails if the node dies now.
    fn step(&self, node: NodeId) -> Result<()> {
        let mut faults = self.faults.lock().unwrap();
        if let Some(left) = faults.dying.get_mut(&node) {
            *left = left.saturating_sub(1);
            if *left == 0 {
                faults.dying.remove(&node);
                faults.dead.insert(node);
            }
        }
        match faults.dead.contains(&node) {
            true => Err(Error::replan("this node is dead").party(Party::Node(node))),
            false => Ok(()),
        }
    }

    fn lies(&self, node: NodeId) -> bool {
        let mut faults = self.faults.lock().unwrap();
        let Some(left) = faults.lying.get_mut(&node) else { return false };
        let lies = *left > 0;
        *left = left.saturating_sub(1);
        lies
    }
}

struct AgentPorts<'a> {
    agents: Arc<Agents>,
    node: NodeId,
    task: &'a Task,
}

impl AgentPorts<'_> {
    fn link(&self, lane: &TaskLane, link: u16) -> TaskLink {
        let id = link_id(lane.lane, link);
        self.task.links.iter().find(|link| link.id() == id).unwrap().clone()
    }

    async fn dial(&self, link: &TaskLink, peer: NodeId) -> Result<FrameStream> {
        let (own, peer) = (self.agents.node(self.node), self.agents.node(peer));
        let expected = Peer::Agent(peer.name.clone());
        let mut frames = FrameStream::new(own.security.dial(&TcpNet::default(), &peer.address, &expected).await?);
        let hello = Hello {
            cluster: CLUSTER,
            plan: self.task.plan,
            link: link.id(),
            from: self.task.party,
            to: link.peer,
            direction: Direction::Push,
            token: LinkToken([0; 32]),
        };
        frames.send_hello(&hello).await?;
        frames.read_hello_ack(link.id()).await?;
        Ok(frames)
    }
}

#[async_trait]
impl Ports for AgentPorts<'_> {
    async fn source(&self, lane: &TaskLane, _: &TaskStage, source: &Source) -> Result<Box<dyn SliceSource>> {
        match source {
            Source::Block { index, .. } => {
                let block = self.task.blocks.iter().find(|block| block.id.index == *index).unwrap();
                let bytes = self.agents.blocks.lock().unwrap()[&(self.node, block.id)].clone();
                assert_eq!(bytes.len() as u64, block.len);
                Ok(Box::new(BlockSource { agents: self.agents.clone(), node: self.node, bytes }))
            }
            Source::Link(link) => {
                let link = self.link(lane, *link);
                let frames = self.agents.greeted(self.task.plan.0, link.id()).await?;
                let receiver = LinkReceiver::new(frames, link.id(), link.width, STALL);
                Ok(Box::new(LinkEnd { agents: self.agents.clone(), node: self.node, end: Some(receiver) }))
            }
            Source::Input { .. } => panic!("an agent got a stage that reads new data"),
        }
    }

    async fn sink(&self, lane: &TaskLane, _: &TaskStage, sink: &Sink) -> Result<Box<dyn SliceSink>> {
        match sink {
            Sink::Store { index, .. } => {
                let block = self.task.stores.iter().find(|block| block.id.index == *index).unwrap();
                let (id, bytes) = (block.id, vec![0; block.len as usize]);
                Ok(Box::new(StoreSink { agents: self.agents.clone(), node: self.node, id, bytes }))
            }
            Sink::Link(link) => {
                let link = self.link(lane, *link);
                let frames = match link.peer {
                    Party::Node(peer) => self.dial(&link, peer).await?,
                    Party::Client(_) => self.agents.greeted(self.task.plan.0, link.id()).await?,
                };
                let sender = LinkSender::new(frames, link.id(), link.width, STALL);
                Ok(Box::new(LinkEnd { agents: self.agents.clone(), node: self.node, end: Some(sender) }))
            }
            other => panic!("an agent got the stage {other:?}"),
        }
    }
}

struct BlockSource {
    agents: Arc<Agents>,
    node: NodeId,
    bytes: Vec<u8>,
}

#[async_trait]
impl SliceSource for BlockSource {
    async fn next(&mut self, slice: Span) -> Result<Rows> {
        self.agents.step(self.node)?;
        let there = |at: u64| (at as usize).min(self.bytes.len());
        let mut rows = self.bytes[there(slice.start)..there(slice.end)].to_vec();
        rows.resize(slice.len() as usize, 0);
        if self.agents.lies(self.node) {
            rows[0] ^= 1;
        }
        Ok(rows.into())
    }
}

struct StoreSink {
    agents: Arc<Agents>,
    node: NodeId,
    id: BlockId,
    bytes: Vec<u8>,
}

#[async_trait]
impl SliceSink for StoreSink {
    async fn put(&mut self, slice: Span, rows: Rows) -> Result<()> {
        let there = |at: u64| (at as usize).min(self.bytes.len());
        let place = there(slice.start)..there(slice.end);
        let (stored, beyond) = rows.split_at(place.len());
        self.bytes[place].copy_from_slice(stored);
        assert!(beyond.iter().all(|byte| *byte == 0), "bytes beyond the block's end are not zero");
        Ok(())
    }

    async fn finish(&mut self) -> Result<()> {
        self.agents.blocks.lock().unwrap().insert((self.node, self.id), std::mem::take(&mut self.bytes));
        Ok(())
    }
}

struct LinkEnd<E> {
    agents: Arc<Agents>,
    node: NodeId,
    end: Option<E>,
}

#[async_trait]
impl SliceSource for LinkEnd<LinkReceiver> {
    async fn next(&mut self, slice: Span) -> Result<Rows> {
        self.agents.step(self.node)?;
        self.end.as_mut().unwrap().receive(slice).await
    }

    async fn finish(&mut self) -> Result<()> {
        let mut receiver = self.end.take().unwrap();
        receiver.end().await?;
        tokio::spawn(self.agents.clone().greet(self.node, receiver.into_frames().unwrap()));
        Ok(())
    }
}

#[async_trait]
impl SliceSink for LinkEnd<LinkSender> {
    async fn put(&mut self, slice: Span, rows: Rows) -> Result<()> {
        self.end.as_mut().unwrap().send(slice, &rows).await
    }

    async fn finish(&mut self) -> Result<()> {
        let mut sender = self.end.take().unwrap();
        sender.end().await?;
        tokio::spawn(self.agents.clone().greet(self.node, sender.into_frames().unwrap()));
        Ok(())
    }
}
