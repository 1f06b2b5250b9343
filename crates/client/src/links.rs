//! A client's ends of links: it dials for both directions, and a queue decouples a stage from the network.

use crate::background::Owned;
use async_trait::async_trait;
use std::sync::Arc;
use tokio::sync::mpsc;
use weft_engine::{SliceSink, SliceSource, classes::FRAME_BYTES_MAX};
use weft_plan::{Slices, TaskLane, TaskLink};
use weft_proto::{
    Direction, FrameStream, Hello, LinkReceiver, LinkSender, LinkToken, NodeLink, Peer, Pool, SliceMemory, Stall, v1::LinkPeer,
};
use weft_types::{ClusterId, Error, Party, PlanId, Result, Rows, Span};

/// What opening a link needs.
pub(crate) struct Dialing<'a> {
    pub(crate) pool: &'a Arc<Pool>,
    /// Buffers for received slices.
    pub(crate) slices: &'a Arc<SliceMemory>,
    pub(crate) cluster: ClusterId,
    pub(crate) plan: PlanId,
    pub(crate) party: Party,
    pub(crate) link: &'a TaskLink,
    pub(crate) peer: &'a LinkPeer,
    pub(crate) stall: Stall,
    /// Throttle for what is sent and received.
    pub(crate) node_link: Option<&'a Arc<dyn NodeLink>>,
}

/// The sending end.
pub(crate) struct LinkSink {
    queue: Option<mpsc::Sender<Outgoing>>,
    sending: Owned<Result<()>>,
}

enum Outgoing {
    Slice(Span, Rows),
    End,
}

/// The receiving end.
pub(crate) struct LinkSource {
    queue: mpsc::Receiver<(Span, Rows)>,
    receiving: Owned<Result<()>>,
}

/// The pool of a link's connection.
struct Home {
    pool: Arc<Pool>,
    address: String,
    peer: Peer,
}

impl Home {
    fn put_back(&self, frames: Option<FrameStream>) {
        if let Some(frames) = frames {
            self.pool.put_back(&self.address, &self.peer, frames);
        }
    }
}

impl Dialing<'_> {
    /// Opens a link on which this client sends.
    pub(crate) async fn sink(&self, lane: &TaskLane) -> Result<LinkSink> {
        let (frames, home) = self.open(Direction::Push).await?;
        let sender = LinkSender::new(frames, self.link.id(), self.link.width, self.patience(Direction::Push));
        let (queue, outgoing) = mpsc::channel(window(lane));
        Ok(LinkSink { queue: Some(queue), sending: Owned::start(send_all(sender, outgoing, self.node_link.cloned(), home)) })
    }

    /// Opens a link on which this client receives.
    pub(crate) async fn source(&self, lane: &TaskLane, slice_len: u64) -> Result<LinkSource> {
        let (frames, home) = self.open(Direction::Pull).await?;
        let receiver = LinkReceiver::new(frames, self.link.id(), self.link.width, self.stall.clone()).with_memory(self.slices);
        let (incoming, queue) = mpsc::channel(window(lane));
        let receiving = Owned::start(receive_all(receiver, lane.slices(slice_len), incoming, self.node_link.cloned(), home));
        Ok(LinkSource { queue, receiving })
    }

    async fn open(&self, direction: Direction) -> Result<(FrameStream, Home)> {
        let (from, to) = match direction {
            Direction::Push => (self.party, self.link.peer),
            Direction::Pull => (self.link.peer, self.party),
        };
        let hello = Hello {
            cluster: self.cluster,
            plan: self.plan,
            link: self.link.id(),
            from,
            to,
            direction,
            token: LinkToken::from_slice(&self.peer.token)?,
        };
        let peer = Peer::Agent(self.peer.name.clone());
        let patience = self.patience(direction).now();
        let opening = tokio::time::timeout(patience, self.pool.open(&self.peer.address, &peer, &hello));
        let late = |_| Error::replan(format!("{peer} at {}: no link within {} ms", self.peer.address, patience.as_millis()));
        let frames = opening.await.map_err(late)??;
        Ok((frames, Home { pool: self.pool.clone(), address: self.peer.address.clone(), peer }))
    }

    /// Shorter than the patience of the other receivers of a put: otherwise they would abort the put while it waits for this one.
    fn patience(&self, direction: Direction) -> Stall {
        match direction {
            Direction::Push => self.stall.shortened(),
            Direction::Pull => self.stall.clone(),
        }
    }
}

/// Slices that can wait at one end of a link.
pub(crate) fn window(lane: &TaskLane) -> usize {
    (lane.window as usize).clamp(1, 64)
}

async fn send_all(
    mut sender: LinkSender,
    mut outgoing: mpsc::Receiver<Outgoing>,
    node_link: Option<Arc<dyn NodeLink>>,
    home: Home,
) -> Result<()> {
    loop {
        match outgoing.recv().await {
            Some(Outgoing::Slice(slice, rows)) => match &node_link {
                Some(link) => send_by(link.as_ref(), &mut sender, slice, &rows).await?,
                None => {
                    sender.feed(slice, &rows).await?;
                    sender.flush().await?;
                }
            },
            Some(Outgoing::End) => {
                sender.end().await?;
                home.put_back(sender.into_frames());
                return Ok(());
            }
            None => {
                let error = Error::replan("the sending task was cancelled");
                sender.fail(&error).await;
                return Err(error);
            }
        }
    }
}

/// Sends a slice frame by frame, each in its turn. The wait for a turn does not count against the peer's patience.
async fn send_by(link: &dyn NodeLink, sender: &mut LinkSender, slice: Span, rows: &[u8]) -> Result<()> {
    let mut frames = rows.chunks(FRAME_BYTES_MAX as usize).peekable();
    while let Some(frame) = frames.next() {
        link.send(frame.len() as u64).await;
        sender.feed_frame(slice, frame, frames.peek().is_some()).await?;
        sender.flush().await?;
    }
    Ok(())
}

async fn receive_all(
    mut receiver: LinkReceiver,
    slices: Slices,
    incoming: mpsc::Sender<(Span, Rows)>,
    node_link: Option<Arc<dyn NodeLink>>,
    home: Home,
) -> Result<()> {
    for slice in slices {
        let rows = receiver.receive(slice).await?;
        if let Some(link) = &node_link {
            link.received(rows.len() as u64).await;
        }
        if incoming.send((slice, rows)).await.is_err() {
            let error = Error::replan("the receiving task was cancelled");
            receiver.fail(&error).await;
            return Err(error);
        }
    }
    receiver.end().await?;
    home.put_back(receiver.into_frames());
    Ok(())
}

/// The result of a task that moves slices.
async fn ended(task: &mut Owned<Result<()>>) -> Result<()> {
    task.join().await.unwrap_or_else(|| Err(Error::fatal("the task that moves slices ended unexpectedly")))
}

#[async_trait]
impl SliceSink for LinkSink {
    async fn put(&mut self, slice: Span, rows: Rows) -> Result<()> {
        if let Some(queue) = &self.queue
            && queue.send(Outgoing::Slice(slice, rows)).await.is_ok()
        {
            return Ok(());
        }
        self.queue = None;
        ended(&mut self.sending).await.and_then(|()| Err(Error::fatal("a slice followed the link's end")))
    }

    async fn finish(&mut self) -> Result<()> {
        if let Some(queue) = self.queue.take() {
            // If the queue is closed, the task has failed and reports why.
            let _taken = queue.send(Outgoing::End).await;
        }
        ended(&mut self.sending).await
    }
}

#[async_trait]
impl SliceSource for LinkSource {
    async fn next(&mut self, slice: Span) -> Result<Rows> {
        match self.queue.recv().await {
            Some((received, rows)) if received == slice => Ok(rows),
            Some((received, _)) => Err(Error::fatal(format!("received slice {received:?} instead of {slice:?}"))),
            None => ended(&mut self.receiving).await.and_then(|()| Err(Error::fatal("the link ended before all slices arrived"))),
        }
    }

    async fn finish(&mut self) -> Result<()> {
        ended(&mut self.receiving).await
    }
}
