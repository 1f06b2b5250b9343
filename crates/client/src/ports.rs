//! The ports of a client's share of a plan: data of a put goes in, blocks of a get come out, and links are dialled.

use crate::{
    client::Shared,
    fetch::Arrivals,
    links::{Dialing, Tap},
    progress::Meter,
    stripe_data::StripeData,
    sums::UnitSums,
};
use async_trait::async_trait;
use bytes::Bytes;
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use weft_engine::{Outcome, Ports, SliceSink, SliceSource};
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
    Put(Outgoing),
    /// Blocks come out.
    Get(Arc<Arrivals>),
}

/// The stripe that is put.
pub(crate) struct Outgoing {
    pub(crate) data: StripeData,
    pub(crate) layout: StripeLayout,
    pub(crate) meter: Meter,
    /// What was sent of each block, with its checksums.
    pub(crate) sent: BTreeMap<u32, Arc<Mutex<UnitSums>>>,
    /// Which block each link carries.
    pub(crate) carries: BTreeMap<u32, u32>,
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
                Ok(Box::new(InputSource { data, layout, meter, index: u32::from(*index), sub_blocks: sub_blocks.clone() }))
            }
            _ => Err(Error::fatal(format!("a client has no {source:?}"))),
        }
    }

    async fn sink(&self, lane: &TaskLane, _stage: &TaskStage, sink: &Sink) -> Result<Box<dyn SliceSink>> {
        match (sink, self.work) {
            (Sink::Link(link), work) => {
                let tap = match work {
                    Work::Put(outgoing) => outgoing.tap(link_id(lane.lane, *link)),
                    Work::Get(_) => None,
                };
                Ok(Box::new(self.dialing(lane, *link)?.sink(lane, tap).await?))
            }
            (Sink::Output { index, sub_blocks }, Work::Get(arrivals)) => {
                let (arrivals, layout) = (arrivals.clone(), self.open.task.layout);
                Ok(Box::new(OutputSink { arrivals, layout, index: u32::from(*index), sub_blocks: sub_blocks.clone() }))
            }
            _ => Err(Error::fatal(format!("a client has no {sink:?}"))),
        }
    }
}

impl Outgoing {
    /// Sums up what a link carries, while it is sent.
    fn tap(&self, link: u32) -> Option<Tap> {
        let index = self.carries.get(&link)?;
        let sent = self.sent.get(index)?.clone();
        let layout = self.layout.layout;
        Some(Box::new(move |slice: Span, rows: &[u8]| {
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
        }))
    }
}

/// A data block of the stripe that is put.
struct InputSource {
    data: StripeData,
    layout: StripeLayout,
    meter: Meter,
    index: u32,
    sub_blocks: Vec<u16>,
}

#[async_trait]
impl SliceSource for InputSource {
    async fn next(&mut self, slice: Span) -> Result<Bytes> {
        let rows = self.data.rows(self.layout, self.index, &self.sub_blocks, slice).await?;
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
