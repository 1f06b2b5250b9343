//! Several parties in one process: blocks in memory, links as bounded channels, and injected faults.

use async_trait::async_trait;
use futures::{
    SinkExt, StreamExt,
    channel::mpsc::{Receiver, Sender, channel},
    future::join_all,
};
use rand::{Rng, SeedableRng, rngs::StdRng};
use std::{
    collections::{BTreeMap, BTreeSet},
    future::poll_fn,
    sync::{Arc, Mutex},
    task::Poll,
};
use weft_engine::{Outcome, Ports, SliceSink, SliceSource, run};
use weft_plan::{Plan, Sink, Source, TaskLane, TaskStage, cut, link_id};
use weft_types::{Error, Party, Result, Span};

/// The content of one block: one row of positions for each sub-block.
pub(crate) type Rows = Vec<Vec<u8>>;

/// Output by (party, index, sub-block): the bytes at the positions that arrived.
pub(crate) type Written = BTreeMap<(Party, u8, u16), BTreeMap<u64, u8>>;

/// Faults to inject, each after a number of slices.
#[derive(Debug, Clone, Default)]
pub(crate) struct Faults {
    /// Links whose sender gets an error; the receiver sees the stream end.
    pub(crate) links: BTreeMap<u32, u32>,
    /// Stores that fail: (party, index).
    pub(crate) stores: BTreeMap<(Party, u8), u32>,
    /// Blocks that cannot be read: (party, index).
    pub(crate) blocks: BTreeMap<(Party, u8), u32>,
    /// Links that cannot be opened.
    pub(crate) unopened: BTreeSet<u32>,
}

/// All parties of a plan.
pub(crate) struct Memory {
    blocks: BTreeMap<(Party, u8), Rows>,
    faults: Faults,
    links: Mutex<BTreeMap<u32, Ends>>,
    written: Arc<Mutex<Written>>,
    finished: Arc<Mutex<BTreeSet<(Party, u8)>>>,
    seed: u64,
}

/// The unopened ends of a link.
type Ends = (Option<Sender<Message>>, Option<Receiver<Message>>);

/// The result of a plan.
pub(crate) struct Run {
    pub(crate) outcomes: BTreeMap<Party, Outcome>,
    pub(crate) written: Written,
    pub(crate) finished: BTreeSet<(Party, u8)>,
}

enum Message {
    Slice(Span, weft_types::Rows),
    End,
}

impl Memory {
    pub(crate) fn new(plan: &Plan, blocks: BTreeMap<(Party, u8), Rows>, faults: Faults, seed: u64) -> Self {
        let mut links = BTreeMap::new();
        for (number, lane) in plan.shape.lanes.iter().enumerate() {
            for link in 0..lane.links.len() {
                let (sender, receiver) = channel(lane.window as usize);
                links.insert(link_id(number as u16, link as u16), (Some(sender), Some(receiver)));
            }
        }
        Self { blocks, faults, links: Mutex::new(links), written: Arc::default(), finished: Arc::default(), seed }
    }

    /// Runs all parties' shares concurrently.
    pub(crate) fn run(self, plan: &Plan) -> Run {
        let tasks: Vec<_> = (0..plan.binding.parties.len()).map(|vertex| cut(plan, vertex as u16)).collect();
        let shares: Vec<_> = tasks.iter().map(|task| Share { memory: &self, party: task.party }).collect();
        let runs = tasks.iter().zip(&shares).map(|(task, share)| async move { (task.party, run(task, share).await) });
        let outcomes = futures::executor::block_on(join_all(runs)).into_iter().collect();
        let written = self.written.lock().unwrap().clone();
        let finished = self.finished.lock().unwrap().clone();
        Run { outcomes, written, finished }
    }

    /// Yields now and then, differently for each seed, so that stages overtake one another.
    fn pace(&self, salt: u64) -> Pace {
        Pace(StdRng::seed_from_u64(self.seed ^ salt.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
    }
}

struct Pace(StdRng);

impl Pace {
    async fn give_way(&mut self) {
        for _ in 0..self.0.random_range(0..3) {
            let mut yielded = false;
            poll_fn(|context| {
                if yielded {
                    return Poll::Ready(());
                }
                yielded = true;
                context.waker().wake_by_ref();
                Poll::Pending
            })
            .await;
        }
    }
}

/// One party's ports.
struct Share<'a> {
    memory: &'a Memory,
    party: Party,
}

#[async_trait]
impl Ports for Share<'_> {
    async fn source(&self, lane: &TaskLane, _: &TaskStage, source: &Source) -> Result<Box<dyn SliceSource>> {
        match source {
            Source::Block { index, sub_blocks } | Source::Input { index, sub_blocks, .. } => {
                let key = (self.party, *index);
                let rows = self.memory.blocks.get(&key).ok_or_else(|| Error::not_found("no such block"))?;
                let rows = sub_blocks.iter().map(|sub_block| rows[usize::from(*sub_block)].clone()).collect();
                let left = self.memory.faults.blocks.get(&key).copied().unwrap_or(u32::MAX);
                Ok(Box::new(BlockSource { rows, left, pace: self.memory.pace(u64::from(*index)) }))
            }
            Source::Link(link) => {
                let id = link_id(lane.lane, *link);
                let receiver = self.memory.links.lock().unwrap().get_mut(&id).and_then(|ends| ends.1.take());
                let receiver = receiver.ok_or_else(|| Error::fatal("a link was opened twice"))?;
                Ok(Box::new(LinkSource(receiver, self.memory.pace(u64::from(id) << 8))))
            }
        }
    }

    async fn sink(&self, lane: &TaskLane, _: &TaskStage, sink: &Sink) -> Result<Box<dyn SliceSink>> {
        match sink {
            Sink::Store { index, sub_blocks } | Sink::Output { index, sub_blocks } | Sink::Patch { index, sub_blocks } => {
                let key = (self.party, *index);
                Ok(Box::new(StoreSink {
                    key,
                    sub_blocks: sub_blocks.clone(),
                    left: self.memory.faults.stores.get(&key).copied().unwrap_or(u32::MAX),
                    written: Arc::clone(&self.memory.written),
                    finished: Arc::clone(&self.memory.finished),
                }))
            }
            Sink::Link(link) => {
                let id = link_id(lane.lane, *link);
                let sender = self.memory.links.lock().unwrap().get_mut(&id).and_then(|ends| ends.0.take());
                let sender = sender.ok_or_else(|| Error::fatal("a link was opened twice"))?;
                if self.memory.faults.unopened.contains(&id) {
                    return Err(Error::replan("connection refused"));
                }
                let left = self.memory.faults.links.get(&id).copied().unwrap_or(u32::MAX);
                Ok(Box::new(LinkSink { sender: Some(sender), left, pace: self.memory.pace(u64::from(id) << 9) }))
            }
            Sink::Check { .. } => Err(Error::fatal("a check was passed to the ports instead of the engine")),
        }
    }
}

struct BlockSource {
    rows: Rows,
    left: u32,
    pace: Pace,
}

#[async_trait]
impl SliceSource for BlockSource {
    async fn next(&mut self, slice: Span) -> Result<weft_types::Rows> {
        self.pace.give_way().await;
        self.left = self.left.checked_sub(1).ok_or_else(|| Error::corrupt("a page is bad"))?;
        Ok(self
            .rows
            .iter()
            .flat_map(|row| row[slice.start as usize..slice.end as usize].iter().copied())
            .collect::<Vec<u8>>()
            .into())
    }
}

struct LinkSource(Receiver<Message>, Pace);

#[async_trait]
impl SliceSource for LinkSource {
    async fn next(&mut self, slice: Span) -> Result<weft_types::Rows> {
        self.1.give_way().await;
        match self.0.next().await {
            Some(Message::Slice(sent, bytes)) if sent == slice => Ok(bytes),
            Some(_) => Err(Error::corrupt("a slice followed the last one")),
            None => Err(Error::replan("the stream ended without End")),
        }
    }

    async fn finish(&mut self) -> Result<()> {
        match self.0.next().await {
            Some(Message::End) => Ok(()),
            _ => Err(Error::replan("the stream ended without End")),
        }
    }
}

struct LinkSink {
    sender: Option<Sender<Message>>,
    left: u32,
    pace: Pace,
}

impl LinkSink {
    async fn send(&mut self, message: Message) -> Result<()> {
        self.pace.give_way().await;
        let sender = self.sender.as_mut().ok_or_else(|| Error::fatal("the sink was used after it had failed"))?;
        sender.send(message).await.map_err(|_| Error::replan("the receiver was dropped"))
    }
}

#[async_trait]
impl SliceSink for LinkSink {
    async fn put(&mut self, slice: Span, rows: weft_types::Rows) -> Result<()> {
        if self.left == 0 {
            self.sender = None;
            return Err(Error::replan("connection reset"));
        }
        self.left -= 1;
        self.send(Message::Slice(slice, rows)).await
    }

    async fn finish(&mut self) -> Result<()> {
        self.send(Message::End).await
    }
}

struct StoreSink {
    key: (Party, u8),
    sub_blocks: Vec<u16>,
    left: u32,
    written: Arc<Mutex<Written>>,
    finished: Arc<Mutex<BTreeSet<(Party, u8)>>>,
}

#[async_trait]
impl SliceSink for StoreSink {
    async fn put(&mut self, slice: Span, rows: weft_types::Rows) -> Result<()> {
        self.left = self.left.checked_sub(1).ok_or_else(|| Error::fatal("the disk is full"))?;
        let mut written = self.written.lock().unwrap();
        for (row, sub_block) in rows.chunks_exact(slice.len() as usize).zip(&self.sub_blocks) {
            let positions = written.entry((self.key.0, self.key.1, *sub_block)).or_default();
            for (position, byte) in (slice.start..slice.end).zip(row) {
                assert_eq!(positions.insert(position, *byte), None, "position {position} of {:?} arrived twice", self.key);
            }
        }
        Ok(())
    }

    async fn finish(&mut self) -> Result<()> {
        self.finished.lock().unwrap().insert(self.key);
        Ok(())
    }
}
