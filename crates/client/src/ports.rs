//! The ports of a client's share of a plan: data of a put goes in, blocks of a get come out, and links are dialled.

use crate::{
    client::Shared,
    fetch::Arrivals,
    links::{self, Dialing, LinkSink},
    progress::Meter,
    stripe_data::StripeData,
    sums::UnitSums,
};
use async_trait::async_trait;
use bytes::Bytes;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use weft_engine::{Buffers, Outcome, Ports, SliceSink, SliceSource};
use weft_plan::{Sink, Source, Task, TaskLane, TaskLink, TaskStage, link_id};
use weft_proto::{
    decode_task,
    v1::{ClientTask, LinkPeer},
};
use weft_types::{Error, Party, Result, Span, StripeLayout};

/// A client's share of a plan, ready to run.
pub(crate) struct OpenTask {
    pub(crate) task: Task,
    peers: BTreeMap<u32, LinkPeer>,
    stall: Duration,
}

/// What a share is for.
pub(crate) enum Work {
    /// Data goes in.
    Put(Arc<Outgoing>),
    /// Blocks come out.
    Get(Arc<Arrivals>),
}

/// The stripe that is put.
pub(crate) struct Outgoing {
    pub(crate) data: StripeData,
    pub(crate) layout: StripeLayout,
    pub(crate) meter: Meter,
    /// The checksums of what is to be sent of each block, also of those whose receivers have failed: without them nobody
    /// could say whether such a block was rebuilt right.
    pub(crate) sent: BTreeMap<u32, Mutex<UnitSums>>,
    /// Which block each link carries.
    pub(crate) carries: BTreeMap<u32, u32>,
    /// The blocks whose receivers have failed.
    pub(crate) lost: Mutex<BTreeSet<u32>>,
}

/// A slice of a client's share takes at most this much memory at each port, bytes: the coordinator's slices are far smaller.
const SLICE_BYTES_MAX: u64 = 256 << 20;
/// Without a word from the coordinator: a peer that moves nothing for this long has failed.
const STALL: Duration = Duration::from_secs(30);

impl OpenTask {
    /// Reads what the coordinator sent, and checks that it can be run here.
    pub(crate) fn new(message: Option<ClientTask>) -> Result<Self> {
        let message = message.ok_or_else(|| Error::fatal("the coordinator's answer has no task"))?;
        let task = decode_task(&message.task)?;
        if !matches!(task.party, Party::Client(_)) {
            return Err(Error::fatal("the coordinator's answer has somebody else's task").party(task.party));
        }
        let peers: BTreeMap<u32, LinkPeer> = message.peers.into_iter().map(|peer| (peer.link, peer)).collect();
        for link in &task.links {
            if peers.get(&link.id()).is_none_or(|peer| peer.address.is_empty()) {
                return Err(Error::fatal("the coordinator gave no address").party(link.peer).link(link.id(), 0));
            }
            if u64::from(link.width).saturating_mul(task.slice_len) > SLICE_BYTES_MAX {
                let message = format!("slices of {} positions and {} sub-blocks are too large", task.slice_len, link.width);
                return Err(Error::fatal(message).link(link.id(), 0));
            }
        }
        let stall = if message.stall_ms == 0 { STALL } else { Duration::from_millis(u64::from(message.stall_ms)) };
        Ok(Self { task, peers, stall })
    }

    /// Runs it to its end.
    pub(crate) async fn run(&self, shared: &Arc<Shared>, work: &Work) -> Outcome {
        weft_engine::run(&self.task, &ClientPorts { shared, open: self, work }).await
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
        Ok(Dialing { pool: &self.shared.pool, cluster: self.shared.cluster, plan, party, link, peer, stall: self.open.stall })
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
                // As many as the sinks' queues hold, and the one in hand.
                let buffers = Buffers::new(links::window(lane) + 1);
                Ok(Box::new(InputSource { data, layout, meter, index, sub_blocks, buffers }))
            }
            _ => Err(Error::fatal(format!("a client has no {source:?}"))),
        }
    }

    async fn sink(&self, lane: &TaskLane, _stage: &TaskStage, sink: &Sink) -> Result<Box<dyn SliceSink>> {
        match (sink, self.work) {
            (Sink::Link(link), Work::Put(outgoing)) => {
                let dialing = self.dialing(lane, *link)?;
                match outgoing.carries.get(&link_id(lane.lane, *link)) {
                    Some(index) => Ok(Box::new(BlockSink::new(outgoing, *index, dialing.sink(lane).await)?)),
                    None => Ok(Box::new(dialing.sink(lane).await?)),
                }
            }
            (Sink::Link(link), Work::Get(_)) => Ok(Box::new(self.dialing(lane, *link)?.sink(lane).await?)),
            (Sink::Output { index, sub_blocks }, Work::Get(arrivals)) => {
                let (arrivals, layout) = (arrivals.clone(), self.open.task.layout);
                Ok(Box::new(OutputSink { arrivals, layout, index: u32::from(*index), sub_blocks: sub_blocks.clone() }))
            }
            _ => Err(Error::fatal(format!("a client has no {sink:?}"))),
        }
    }
}

impl Outgoing {
    /// Sums up a slice of a block.
    fn sum(&self, index: u32, slice: Span, rows: &[u8]) {
        let Some(sent) = self.sent.get(&index) else { return };
        let layout = self.layout.layout;
        let mut sent = sent.lock().unwrap_or_else(PoisonError::into_inner);
        let row_len = slice.len().max(1) as usize;
        for (sub_block, row) in (0..layout.alpha).zip(rows.chunks(row_len)) {
            let mut row = row;
            for extent in layout.extents(sub_block, slice) {
                let (piece, rest) = row.split_at(row.len().min(extent.len as usize));
                sent.add(extent.offset, piece);
                row = rest;
            }
        }
    }

    /// A block's receiver has failed.
    fn lose(&self, index: u32) {
        self.lost.lock().unwrap_or_else(PoisonError::into_inner).insert(index);
    }

    /// Whether more blocks are lost than could be rebuilt from the others.
    fn is_hopeless(&self) -> bool {
        self.lost.lock().unwrap_or_else(PoisonError::into_inner).len() > self.layout.m as usize
    }
}

/// A block that is sent. Once its receiver has failed, it is only summed up: the error is told at the end.
struct BlockSink {
    outgoing: Arc<Outgoing>,
    index: u32,
    link: Result<LinkSink>,
}

impl BlockSink {
    fn new(outgoing: &Arc<Outgoing>, index: u32, link: Result<LinkSink>) -> Result<Self> {
        let mut sink = Self { outgoing: outgoing.clone(), index, link };
        if let Err(error) = &sink.link {
            let error = error.clone();
            sink.lose(error)?;
        }
        Ok(sink)
    }

    /// Goes on without the receiver, as long as there is any use in it.
    fn lose(&mut self, error: Error) -> Result<()> {
        self.outgoing.lose(self.index);
        self.link = Err(error.clone());
        if self.outgoing.is_hopeless() { Err(error) } else { Ok(()) }
    }
}

#[async_trait]
impl SliceSink for BlockSink {
    async fn put(&mut self, slice: Span, rows: Bytes) -> Result<()> {
        self.outgoing.sum(self.index, slice, &rows);
        match &mut self.link {
            Ok(link) => match link.put(slice, rows).await {
                Ok(()) => Ok(()),
                Err(error) => self.lose(error),
            },
            Err(error) if self.outgoing.is_hopeless() => Err(error.clone()),
            Err(_) => Ok(()),
        }
    }

    async fn finish(&mut self) -> Result<()> {
        match &mut self.link {
            Ok(link) => link.finish().await,
            Err(error) => Err(error.clone()),
        }
    }
}

/// A data block of the stripe that is put.
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
    async fn next(&mut self, slice: Span) -> Result<Bytes> {
        let rows = self.data.rows(self.layout, self.index, &self.sub_blocks, slice, &self.buffers).await?;
        let extents = self.sub_blocks.iter().flat_map(|sub_block| self.layout.layout.extents(u32::from(*sub_block), slice));
        let block = Span::new(0, self.layout.block_len(self.index));
        self.meter.add(extents.map(|extent| Span::new(extent.offset, extent.offset + extent.len).intersect(block).len()).sum());
        Ok(rows)
    }
}

/// A data block that is delivered.
struct OutputSink {
    arrivals: Arc<Arrivals>,
    layout: weft_types::Layout,
    index: u32,
    sub_blocks: Vec<u16>,
}

#[async_trait]
impl SliceSink for OutputSink {
    async fn put(&mut self, slice: Span, mut rows: Bytes) -> Result<()> {
        let mut pieces = Vec::new();
        for sub_block in &self.sub_blocks {
            for extent in self.layout.extents(u32::from(*sub_block), slice) {
                let len = rows.len().min(extent.len as usize);
                pieces.push((extent.offset, rows.split_to(len)));
            }
        }
        self.arrivals.take(self.index, pieces).await
    }

    async fn finish(&mut self) -> Result<()> {
        Ok(())
    }
}
