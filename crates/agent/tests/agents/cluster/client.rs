//! A client's share of a plan, run one slice at a time.

use super::{CLUSTER, Stripe};
use async_trait::async_trait;
use bytes::Bytes;
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};
use weft_engine::{Outcome, Ports, SliceSink, SliceSource, run};
use weft_plan::{Sink, Source, Task, TaskLane, TaskLink, TaskStage};
use weft_proto::{
    Direction, FrameStream, Hello, LinkReceiver, LinkSender, LinkToken, Net, Peer, Pool, PoolLimits, Security, decode_task,
    v1::{LinkPeer, OpenRequest},
};
use weft_types::{Result, Rows, Span};

/// A client that reads and writes.
pub(crate) struct Client {
    pub(crate) pool: Pool,
    data: BTreeMap<u8, Vec<u8>>,
    outputs: Arc<Mutex<BTreeMap<u8, BTreeMap<u64, Bytes>>>>,
}

const STALL: Duration = Duration::from_secs(10);

impl Client {
    pub(crate) fn new(security: Security, net: Arc<dyn Net>) -> Self {
        let pool = Pool::new(net, security, PoolLimits::default());
        Self { pool, data: BTreeMap::new(), outputs: Arc::default() }
    }

    pub(crate) fn with_data(mut self, stripe: &Stripe) -> Self {
        let span = stripe.layout.coded_span().len() as usize;
        for index in 0..stripe.code.k() {
            let mut block = stripe.blocks[index].clone();
            block.resize(span, 0);
            self.data.insert(index as u8, block);
        }
        self
    }

    /// Runs the client's task, which arrives in the same request as an agent's.
    pub(crate) async fn run(&self, request: &OpenRequest) -> Outcome {
        let task = decode_task(&request.task).unwrap();
        run(&task, &ClientPorts { client: self, task: &task, peers: &request.peers }).await
    }

    /// The bytes that were read of a block.
    pub(crate) fn output(&self, index: u8) -> Vec<u8> {
        self.outputs.lock().unwrap().remove(&index).unwrap_or_default().into_values().flatten().collect()
    }

    /// Dials for a link.
    pub(crate) async fn dial(&self, task: &Task, link: &TaskLink, peer: &LinkPeer) -> Result<FrameStream> {
        self.pool.open(&peer.address, &Peer::Agent(peer.name.clone()), &hello(task, link, peer)?).await
    }

    /// Dials for a link without TLS, and returns the raw connection.
    pub(crate) async fn dial_raw(&self, task: &Task, link: &TaskLink, peer: &LinkPeer) -> tokio::net::TcpStream {
        let stream = tokio::net::TcpStream::connect(&peer.address).await.unwrap();
        let mut frames = FrameStream::new(stream);
        frames.send_hello(&hello(task, link, peer).unwrap()).await.unwrap();
        frames.read_hello_ack(link.id()).await.unwrap();
        frames.into_inner()
    }
}

fn hello(task: &Task, link: &TaskLink, peer: &LinkPeer) -> Result<Hello> {
    let (from, to) = if link.sends { (task.party, link.peer) } else { (link.peer, task.party) };
    let direction = if link.sends { Direction::Push } else { Direction::Pull };
    let token = LinkToken::from_slice(&peer.token)?;
    Ok(Hello { cluster: CLUSTER, plan: task.plan, link: link.id(), from, to, direction, token })
}

struct ClientPorts<'a> {
    client: &'a Client,
    task: &'a Task,
    peers: &'a [LinkPeer],
}

impl ClientPorts<'_> {
    async fn connect(&self, lane: &TaskLane, link: u16) -> Result<(FrameStream, &TaskLink)> {
        let link = self.task.links.iter().find(|l| (l.lane, l.link) == (lane.lane, link)).unwrap();
        let peer = self.peers.iter().find(|peer| peer.link == link.id()).unwrap();
        Ok((self.client.dial(self.task, link, peer).await?, link))
    }
}

#[async_trait]
impl Ports for ClientPorts<'_> {
    async fn source(&self, lane: &TaskLane, _: &TaskStage, source: &Source) -> Result<Box<dyn SliceSource>> {
        match source {
            Source::Input { index, .. } => Ok(Box::new(Input(self.client.data[index].clone()))),
            Source::Link(link) => {
                let (frames, link) = self.connect(lane, *link).await?;
                Ok(Box::new(FromLink(LinkReceiver::new(frames, link.id(), link.width, STALL))))
            }
            Source::Block { .. } => panic!("a client stores no block"),
        }
    }

    async fn sink(&self, lane: &TaskLane, _: &TaskStage, sink: &Sink) -> Result<Box<dyn SliceSink>> {
        match sink {
            Sink::Output { index, .. } => Ok(Box::new(Output(*index, Arc::clone(&self.client.outputs)))),
            Sink::Link(link) => {
                let (frames, link) = self.connect(lane, *link).await?;
                Ok(Box::new(ToLink(LinkSender::new(frames, link.id(), link.width, STALL))))
            }
            other => panic!("a client has no {other:?}"),
        }
    }
}

struct Input(Vec<u8>);

#[async_trait]
impl SliceSource for Input {
    async fn next(&mut self, slice: Span) -> Result<Rows> {
        Ok(self.0[slice.start as usize..slice.end as usize].to_vec().into())
    }
}

struct Output(u8, Arc<Mutex<BTreeMap<u8, BTreeMap<u64, Bytes>>>>);

#[async_trait]
impl SliceSink for Output {
    async fn put(&mut self, slice: Span, rows: Rows) -> Result<()> {
        self.1.lock().unwrap().entry(self.0).or_default().insert(slice.start, rows.bytes().clone());
        Ok(())
    }

    async fn finish(&mut self) -> Result<()> {
        Ok(())
    }
}

struct FromLink(LinkReceiver);

#[async_trait]
impl SliceSource for FromLink {
    async fn next(&mut self, slice: Span) -> Result<Rows> {
        self.0.receive(slice).await
    }

    async fn finish(&mut self) -> Result<()> {
        self.0.end().await
    }
}

struct ToLink(LinkSender);

#[async_trait]
impl SliceSink for ToLink {
    async fn put(&mut self, slice: Span, rows: Rows) -> Result<()> {
        self.0.send(slice, &rows).await
    }

    async fn finish(&mut self) -> Result<()> {
        self.0.end().await
    }
}
