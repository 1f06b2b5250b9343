//! The ports of a client's share of a plan: inputs for the data of a put, outputs for the blocks of a get, and links.

use crate::{
    client::Shared,
    fetch::Arrivals,
    links::{self, Dialing, LinkSink},
    progress::Meter,
    stripe_data::StripeData,
    sums::UnitSums,
};
use async_trait::async_trait;
use bytes::BytesMut;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::{sync::watch, time::Instant};
use weft_engine::{Buffers, Observer, Outcome, Ports, SliceSink, SliceSource};
use weft_plan::{Class, Sink, Source, Task, TaskLane, TaskLink, TaskStage, link_id};
use weft_proto::{
    Stall, decode_task,
    v1::{ClientTask, LinkPeer, StageReport},
};
use weft_types::{Error, Layout, NodeId, Party, Result, Rows, Span, StageTimes, StripeLayout};

/// A client's share of a plan, ready to run.
pub(crate) struct OpenTask {
    pub(crate) task: Task,
    peers: BTreeMap<u32, LinkPeer>,
    stall_ms: u32,
    /// What of it is due to the limit on repair.
    extra_stall_ms: u32,
}

/// The purpose of a share.
pub(crate) enum Work {
    /// Data goes in.
    Put(Arc<Outgoing>),
    /// Blocks come out.
    Get(Arc<Arrivals>),
}

/// The stripe of a put.
pub(crate) struct Outgoing {
    pub(crate) data: StripeData,
    pub(crate) layout: StripeLayout,
    pub(crate) meter: Meter,
    /// The checksums of all blocks, including those that other nodes compute and those whose receivers failed: without them, such a
    /// block could not be checked.
    pub(crate) sums: BTreeMap<u32, Mutex<UnitSums>>,
    /// Links to receivers that have not failed.
    pub(crate) receivers: AtomicUsize,
    /// When a slice was last sent.
    moved_at: Mutex<Instant>,
    /// For each node, the number of links with a slice that waits to be sent.
    waits: Mutex<BTreeMap<NodeId, usize>>,
    /// Nodes that the coordinator no longer waits for.
    gone: watch::Sender<BTreeSet<NodeId>>,
}

/// A slice that waits to be sent to a node, until this is dropped.
struct Waiting<'a> {
    outgoing: &'a Outgoing,
    node: NodeId,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if let Some(count) = self.outgoing.waits().get_mut(&self.node) {
            *count = count.saturating_sub(1);
        }
    }
}

/// Most memory of a slice of a client's share at each port, bytes: the coordinator's slices are far smaller.
const SLICE_BYTES_MAX: u64 = 256 << 20;
/// If no slice was sent for this long, the client asks the coordinator whether it still waits for the receivers.
const STANDSTILL: Duration = Duration::from_secs(1);
/// Without news from the coordinator: a peer that moves nothing for this long has failed.
const STALL_MS: u32 = 30_000;

impl OpenTask {
    /// Parses what the coordinator sent, and checks that it can be run here.
    pub(crate) fn new(message: Option<ClientTask>) -> Result<Self> {
        let message = message.ok_or_else(|| Error::fatal("the coordinator's answer has no task"))?;
        let task = decode_task(&message.task)?;
        if !matches!(task.party, Party::Client(_)) {
            return Err(Error::fatal("the coordinator sent the task of another party").party(task.party));
        }
        let peers: BTreeMap<u32, LinkPeer> = message.peers.into_iter().map(|peer| (peer.link, peer)).collect();
        for link in &task.links {
            if peers.get(&link.id()).is_none_or(|peer| peer.address.is_empty()) {
                return Err(Error::fatal("the coordinator sent no address").party(link.peer).link(link.id(), 0));
            }
            if u64::from(link.width).saturating_mul(task.slice_len) > SLICE_BYTES_MAX {
                let message = format!("slices of {} positions and {} sub-blocks are too large", task.slice_len, link.width);
                return Err(Error::fatal(message).link(link.id(), 0));
            }
        }
        let stall_ms = if message.stall_ms == 0 { STALL_MS } else { message.stall_ms };
        Ok(Self { task, peers, stall_ms, extra_stall_ms: message.extra_stall_ms })
    }

    /// Runs it to its end; also returns how its stages spent their time.
    pub(crate) async fn run(&self, shared: &Arc<Shared>, work: &Work) -> (Outcome, Vec<StageReport>) {
        let begin = Instant::now();
        let observer = Observer::timed(&self.task, move || begin.elapsed().as_micros() as u64);
        let outcome = weft_engine::run_observed(&self.task, &ClientPorts { shared, open: self, work }, &observer).await;
        let report = |times: StageTimes| StageReport { times: Some(times.into()), ..StageReport::default() };
        (outcome, observer.times().into_iter().map(report).collect())
    }
}

struct ClientPorts<'a> {
    shared: &'a Arc<Shared>,
    open: &'a OpenTask,
    work: &'a Work,
}

impl ClientPorts<'_> {
    fn dialing(&self, lane: &TaskLane, link: u16) -> Result<Dialing<'_>> {
        let id = link_id(lane.lane, link);
        let own: Option<&TaskLink> = self.open.task.links.iter().find(|link| link.id() == id);
        let (Some(link), Some(peer)) = (own, self.open.peers.get(&id)) else {
            return Err(Error::fatal("the task has no such link").link(id, lane.span.start));
        };
        let (plan, party) = (self.open.task.plan, self.open.task.party);
        let Shared { pool, slices, cluster, config, .. } = self.shared.as_ref();
        let node_link = config.node_link.as_ref();
        let is_limited = self.open.task.precedence().class != Class::Foreground;
        let extra = node_link.filter(|_| is_limited).map(|link| link.extra_stall()).unwrap_or_default();
        let stall = Stall::of_task(self.open.stall_ms, self.open.extra_stall_ms, extra);
        Ok(Dialing { pool, slices, cluster: *cluster, plan, party, link, peer, stall, node_link })
    }
}

#[async_trait]
impl Ports for ClientPorts<'_> {
    async fn source(&self, lane: &TaskLane, _stage: &TaskStage, source: &Source) -> Result<Box<dyn SliceSource>> {
        match (source, self.work) {
            (Source::Link(link), _) => Ok(Box::new(self.dialing(lane, *link)?.source(lane, self.open.task.slice_len).await?)),
            (Source::Input { index, sub_blocks, delta: false }, Work::Put(outgoing)) => {
                let (data, layout, meter) = (outgoing.data.clone(), outgoing.layout, outgoing.meter.clone());
                let (index, sub_blocks) = (u32::from(*index), sub_blocks.clone());
                // The slices in the sinks' queues, and the one in progress.
                let buffers = Buffers::new(links::window(lane) + 1);
                Ok(Box::new(InputSource { data, layout, meter, index, sub_blocks, buffers }))
            }
            _ => Err(Error::fatal(format!("a client cannot read from {source:?}"))),
        }
    }

    async fn sink(&self, lane: &TaskLane, _stage: &TaskStage, sink: &Sink) -> Result<Box<dyn SliceSink>> {
        match (sink, self.work) {
            (Sink::Link(link), Work::Put(outgoing)) => {
                let dialing = self.dialing(lane, *link)?;
                let peer = dialing.link.peer;
                match outgoing.unless_gone(peer, dialing.sink(lane)).await {
                    Ok(link) => Ok(Box::new(ReceiverSink { outgoing: outgoing.clone(), link, peer })),
                    Err(error) => Err(outgoing.lose(error)),
                }
            }
            (Sink::Output { index, sub_blocks }, Work::Put(outgoing)) => {
                Ok(Box::new(SumSink { outgoing: outgoing.clone(), index: u32::from(*index), sub_blocks: sub_blocks.clone() }))
            }
            (Sink::Link(link), Work::Get(_)) => Ok(Box::new(self.dialing(lane, *link)?.sink(lane).await?)),
            (Sink::Output { index, sub_blocks }, Work::Get(arrivals)) => {
                let (arrivals, layout) = (arrivals.clone(), self.open.task.layout);
                Ok(Box::new(OutputSink { arrivals, layout, index: u32::from(*index), sub_blocks: sub_blocks.clone() }))
            }
            _ => Err(Error::fatal(format!("a client cannot write to {sink:?}"))),
        }
    }

    /// The rebuilt blocks of a get stay in memory as long as the received ones, so both share it.
    fn room(&self, len: usize) -> Option<BytesMut> {
        matches!(self.work, Work::Get(_)).then(|| self.shared.slices.room(len))
    }
}

impl Outgoing {
    /// For a stripe's data; the writer's share has this many links.
    pub(crate) fn new(data: StripeData, layout: StripeLayout, meter: Meter, links: usize) -> Self {
        let sums = |index| (index, Mutex::new(UnitSums::new(layout.block_len(index))));
        let sums = (0..layout.n()).map(sums).collect();
        let moved_at = Mutex::new(Instant::now());
        let (waits, gone) = (Mutex::default(), watch::Sender::new(BTreeSet::new()));
        Self { data, layout, meter, sums, receivers: AtomicUsize::new(links), moved_at, waits, gone }
    }

    /// The nodes that accept none of the slices that wait for them.
    pub(crate) fn waits_for(&self) -> Vec<u32> {
        self.waits().iter().filter(|(_, count)| **count > 0).map(|(node, _)| node.0).collect()
    }

    /// Continues the put without these nodes.
    pub(crate) fn give_up(&self, nodes: &[u32]) {
        let nodes = || nodes.iter().copied().map(NodeId);
        self.gone.send_if_modified(|gone| {
            let before = gone.len();
            gone.extend(nodes());
            gone.len() > before
        });
    }

    /// Does something that needs a node, unless that node is given up.
    async fn unless_gone<T>(&self, peer: Party, work: impl Future<Output = Result<T>>) -> Result<T> {
        let Party::Node(node) = peer else { return work.await };
        *self.waits().entry(node).or_default() += 1;
        let _waiting = Waiting { outgoing: self, node };
        let mut gone = self.gone.subscribe();
        tokio::select! {
            biased;
            done = work => done,
            Ok(_) = gone.wait_for(|gone| gone.contains(&node)) => {
                Err(Error::replan("the node accepts no data, and the coordinator no longer waits for it").party(peer))
            }
        }
    }

    fn waits(&self) -> MutexGuard<'_, BTreeMap<NodeId, usize>> {
        self.waits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Completes when nothing has moved for a while, and again after each such interval.
    pub(crate) async fn stands_still(&self) {
        tokio::time::sleep(STANDSTILL).await;
        loop {
            let moved_for = self.moved_at.lock().unwrap_or_else(PoisonError::into_inner).elapsed();
            if moved_for >= STANDSTILL {
                return;
            }
            tokio::time::sleep(STANDSTILL - moved_for).await;
        }
    }

    fn moved(&self) {
        *self.moved_at.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// Adds a slice of some of a block's sub-blocks to the checksums.
    fn sum(&self, index: u32, sub_blocks: &[u16], slice: Span, rows: &Rows) {
        let Some(sums) = self.sums.get(&index) else { return };
        let pieces = pieces(&self.layout.layout, sub_blocks, slice, rows);
        let mut sums = sums.lock().unwrap_or_else(PoisonError::into_inner);
        for (offset, piece) in &pieces {
            sums.add_rows(*offset, piece);
        }
    }

    /// A receiver has failed.
    fn lose(&self, error: Error) -> Error {
        self.receivers.fetch_sub(1, Ordering::Relaxed);
        error
    }
}

/// A link to a receiver.
struct ReceiverSink {
    outgoing: Arc<Outgoing>,
    link: LinkSink,
    peer: Party,
}

#[async_trait]
impl SliceSink for ReceiverSink {
    async fn put(&mut self, slice: Span, rows: Rows) -> Result<()> {
        let put = self.outgoing.unless_gone(self.peer, self.link.put(slice, rows)).await;
        put.map_err(|error| self.outgoing.lose(error))?;
        self.outgoing.moved();
        Ok(())
    }

    async fn finish(&mut self) -> Result<()> {
        self.outgoing.unless_gone(self.peer, self.link.finish()).await
    }
}

/// A block whose checksums are computed, but that is not sent.
struct SumSink {
    outgoing: Arc<Outgoing>,
    index: u32,
    sub_blocks: Vec<u16>,
}

#[async_trait]
impl SliceSink for SumSink {
    async fn put(&mut self, slice: Span, rows: Rows) -> Result<()> {
        // Without receivers, everything will be sent again.
        if self.outgoing.receivers.load(Ordering::Relaxed) == 0 {
            return Err(Error::replan("no receiver is left"));
        }
        self.outgoing.sum(self.index, &self.sub_blocks, slice, &rows);
        Ok(())
    }

    async fn finish(&mut self) -> Result<()> {
        Ok(())
    }
}

/// A data block of the stripe of a put.
struct InputSource {
    data: StripeData,
    layout: StripeLayout,
    meter: Meter,
    index: u32,
    sub_blocks: Vec<u16>,
    buffers: Arc<Buffers>,
}

#[async_trait]
impl SliceSource for InputSource {
    async fn next(&mut self, slice: Span) -> Result<Rows> {
        let rows = self.data.rows(self.layout, self.index, &self.sub_blocks, slice, &self.buffers).await?;
        let extents = self.sub_blocks.iter().flat_map(|sub_block| self.layout.layout.extents(u32::from(*sub_block), slice));
        let block = Span::new(0, self.layout.block_len(self.index));
        self.meter.add(extents.map(|extent| Span::new(extent.offset, extent.offset + extent.len).intersect(block).len()).sum());
        Ok(rows.into())
    }
}

/// The runs of a block that consist of rows of some of its sub-blocks, each at its offset. Rows that are one run keep their checksum.
fn pieces(layout: &Layout, sub_blocks: &[u16], slice: Span, rows: &Rows) -> Vec<(u64, Rows)> {
    let (mut rest, mut pieces) = (rows.bytes().clone(), Vec::new());
    for extent in sub_blocks.iter().flat_map(|sub_block| layout.extents(u32::from(*sub_block), slice)) {
        let piece = rest.split_to(rest.len().min(extent.len as usize));
        pieces.push((extent.offset, if piece.len() == rows.len() { rows.clone() } else { piece.into() }));
    }
    pieces
}

/// A data block that is delivered.
struct OutputSink {
    arrivals: Arc<Arrivals>,
    layout: Layout,
    index: u32,
    sub_blocks: Vec<u16>,
}

#[async_trait]
impl SliceSink for OutputSink {
    async fn put(&mut self, slice: Span, rows: Rows) -> Result<()> {
        self.arrivals.take(self.index, pieces(&self.layout, &self.sub_blocks, slice, &rows)).await
    }

    async fn finish(&mut self) -> Result<()> {
        Ok(())
    }
}
