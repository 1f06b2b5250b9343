//! The ends of a link as a source and a sink of a stage. At each end a pump moves slices between the socket and a
//! queue, so that transfers continue while the stage computes.

use crate::{line::Passage, reception::Arrival, traffic::Traffic};
use async_trait::async_trait;
use std::{sync::Arc, time::Duration};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot},
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};
use weft_engine::{Hold, SliceSink, SliceSource, classes::FRAME_BYTES_MAX};
use weft_plan::{Class, Slices, TaskLink};
use weft_proto::{FrameStream, Hello, LinkReceiver, LinkSender, Peer, Pool, Stall};
use weft_types::{Cause, Error, Reaction, Result, Rows, Span};

/// An end of a link that is not connected yet.
pub(crate) struct Unconnected {
    pub(crate) link: TaskLink,
    pub(crate) way: Way,
    /// A link fails when nothing moves on it for this long.
    pub(crate) stall: Stall,
    /// The length of the queue, in slices.
    pub(crate) window: usize,
    pub(crate) traffic: Arc<Traffic>,
    /// The node's uplink if the link sends, its downlink if it receives.
    pub(crate) line: Passage,
}

/// How an end of a link gets its connection.
pub(crate) enum Way {
    /// This end dials.
    Dial(Dial),
    /// The other end dials.
    Accept(oneshot::Receiver<Arrival>),
}

/// Whom to dial, and the Hello to send.
pub(crate) struct Dial {
    pub(crate) pool: Arc<Pool>,
    pub(crate) address: String,
    pub(crate) peer: Peer,
    pub(crate) hello: Hello,
}

/// How long dialling an unreachable peer is retried.
const DIAL_TIME: Duration = Duration::from_secs(2);
const DIAL_PAUSE: Duration = Duration::from_millis(50);
/// A peer that refuses a connection does so at once. If it takes longer than this until an attempt fails, nothing came through.
const DIAL_STALLED: Duration = Duration::from_secs(1);

impl Unconnected {
    /// The receiving end.
    pub(crate) fn source(self, slices: Slices) -> Box<dyn SliceSource> {
        let (sender, queue) = mpsc::channel(self.window.max(1));
        let hold = self.line.hold.clone();
        tokio::spawn(receive_all(self, slices, sender));
        Box::new(LinkSource { queue, hold })
    }

    /// The sending end.
    pub(crate) fn sink(self) -> Box<dyn SliceSink> {
        let room = Arc::new(Semaphore::new(self.window.max(1)));
        let (sender, queue) = mpsc::unbounded_channel();
        let (wanted, unwanted) = oneshot::channel();
        let hold = self.line.hold.clone();
        let pump = tokio::spawn(send_all(self, queue, unwanted));
        Box::new(LinkSink { room, sender, pump: Some(pump), hold, _wanted: wanted })
    }

    async fn connect(&mut self) -> Result<Connected> {
        let (stall, peer) = (self.stall.now(), self.link.peer);
        let connected = match &mut self.way {
            Way::Dial(dial) => timeout(stall, dial.connect()).await.map(|frames| {
                let home = Home::Pool(Arc::clone(&dial.pool), dial.address.clone(), dial.peer.clone());
                frames.map(|frames| Connected { frames, home })
            }),
            Way::Accept(arrival) => timeout(stall, arrival).await.map(|arrival| {
                let arrival = arrival.map_err(|_| Error::replan("the connection broke before the first frame"))?;
                Ok(Connected { frames: arrival.frames, home: Home::Reception(arrival.home) })
            }),
        };
        let late = |_| Err(Error::replan(format!("no connection within {} ms", stall.as_millis())).cause(Cause::Stalled));
        connected.unwrap_or_else(late).map_err(|error| error.party(peer))
    }
}

impl Dial {
    /// All agents opened the plan before any of them dials. So a peer that does not answer is either restarting or
    /// down, and a short retry suffices.
    async fn connect(&self) -> Result<FrameStream> {
        let (begin, mut pause) = (Instant::now(), DIAL_PAUSE);
        loop {
            let attempt = Instant::now();
            match self.pool.open(&self.address, &self.peer, &self.hello).await {
                Err(error) if matches!(error.reaction, Reaction::Retry | Reaction::Replan) && begin.elapsed() < DIAL_TIME => {
                    sleep(pause).await;
                    pause *= 2;
                }
                Err(error) if error.cause.is_none() && attempt.elapsed() >= DIAL_STALLED => {
                    return Err(error.cause(Cause::Stalled));
                }
                other => return other,
            }
        }
    }
}

struct Connected {
    frames: FrameStream,
    home: Home,
}

/// Where a connection goes after its link has ended cleanly.
enum Home {
    Pool(Arc<Pool>, String, Peer),
    Reception(oneshot::Sender<FrameStream>),
}

impl Home {
    fn give_back(self, frames: Option<FrameStream>) {
        match (self, frames) {
            (Self::Pool(pool, address, peer), Some(frames)) => pool.put_back(&address, &peer, frames),
            // No receiver is left: the agent is stopping.
            (Self::Reception(home), Some(frames)) => drop(home.send(frames)),
            (_, None) => {}
        }
    }
}

const ENDED_EARLY: &str = "its stage of the plan ended early";

/// Sent to the neighbour when a stage ends before its last slice, and the cause is not known here.
fn broken_off() -> Error {
    Error::replan(format!("{ENDED_EARLY}; its log names the cause"))
}

/// The error that a failed stage sends to its receiver. The cause is part of the message only: a node is blamed on its own
/// report, not on that of another node.
fn failed(why: &Error) -> Error {
    // An error that came over a link names the first cause already.
    if why.message.starts_with(ENDED_EARLY) {
        return Error::replan(&why.message);
    }
    Error::replan(format!("{ENDED_EARLY}: {why}"))
}

/// The queue's items: slices, then `None` at the end.
type Received = Result<Option<Rows>>;

async fn receive_all(mut link: Unconnected, slices: Slices, queue: mpsc::Sender<Received>) {
    let connected = tokio::select! {
        biased;
        connected = link.connect() => connected,
        () = queue.closed() => return,
    };
    let received = match connected {
        Ok(Connected { frames, home }) => {
            let mut receiver = LinkReceiver::new(frames, link.link.id(), link.link.width, link.stall.clone());
            let received = tokio::select! {
                biased;
                received = receive(&mut receiver, &link, slices, &queue) => received,
                () = queue.closed() => Err(broken_off()),
            };
            match &received {
                Ok(()) => home.give_back(receiver.into_frames()),
                Err(error) => receiver.fail(error).await,
            }
            received
        }
        Err(error) => Err(error),
    };
    // If the receiver is gone, the result is not needed.
    let _unwanted = queue.send(received.map(|()| None)).await;
}

async fn receive(receiver: &mut LinkReceiver, link: &Unconnected, slices: Slices, queue: &mpsc::Sender<Received>) -> Result<()> {
    let place = |error: Error| error.party(link.link.peer);
    for slice in slices {
        // Reserve room first, so that a received slice can always be queued.
        let room = queue.reserve().await.map_err(|_| broken_off())?;
        let rows = receiver.receive(slice).await.map_err(place)?;
        link.traffic.received.add(rows.len() as u64);
        // Until then nothing more is read, so the sender stops when the buffers between the two are full.
        link.line.received(rows.len() as u64).await;
        room.send(Ok(Some(rows)));
    }
    receiver.end().await.map_err(place)
}

struct LinkSource {
    queue: mpsc::Receiver<Received>,
    hold: Hold,
}

impl LinkSource {
    async fn take(&mut self) -> Received {
        self.queue.recv().await.unwrap_or_else(|| Err(Error::fatal("the task that receives from the link has ended")))
    }
}

#[async_trait]
impl SliceSource for LinkSource {
    fn hold(&self) -> Option<Hold> {
        Some(self.hold.clone())
    }

    async fn next(&mut self, _: Span) -> Result<Rows> {
        self.take().await?.ok_or_else(|| Error::replan("the peer ended the link before its last slice"))
    }

    async fn finish(&mut self) -> Result<()> {
        match self.take().await? {
            None => Ok(()),
            Some(_) => Err(Error::replan("the peer sent more than the link's last slice")),
        }
    }
}

/// An item for the pump of a sink. The permit is the slice's place in the queue; it is released when the connection has
/// taken the slice.
enum Outgoing {
    Slice(Span, Rows, OwnedSemaphorePermit),
    End,
    /// The stage has failed; this is sent to the receiver.
    Failed(Error),
}

async fn send_all(
    mut link: Unconnected,
    mut queue: mpsc::UnboundedReceiver<Outgoing>,
    mut unwanted: oneshot::Receiver<()>,
) -> Result<()> {
    let peer = link.link.peer;
    let place = |error: Error| error.party(peer);
    let Connected { frames, home } = tokio::select! {
        biased;
        connected = link.connect() => connected?,
        _ = &mut unwanted => return Ok(()),
    };
    let mut sender = LinkSender::new(frames, link.link.id(), link.link.width, link.stall.clone());
    loop {
        match queue.recv().await {
            Some(Outgoing::Slice(slice, rows, _room)) => {
                // Small slices that are already queued are sent together with it.
                let send = send_slice(&mut sender, &link.line, slice, &rows, || queue.is_empty());
                tokio::select! {
                    biased;
                    sent = send => sent.map_err(place)?,
                    // A frame may be half sent, so no error frame can follow.
                    _ = &mut unwanted => return Ok(()),
                }
                link.traffic.sent.add(rows.len() as u64);
            }
            Some(Outgoing::End) => {
                sender.end().await.map_err(place)?;
                home.give_back(sender.into_frames());
                return Ok(());
            }
            Some(Outgoing::Failed(why)) => {
                sender.fail(&why).await;
                return Ok(());
            }
            None => {
                sender.fail(&broken_off()).await;
                return Ok(());
            }
        }
    }
}

/// Releases the turn of a lower class before it waits for the peer. Otherwise plans that cross at an uplink could block
/// each other.
async fn send_slice(
    sender: &mut LinkSender,
    uplink: &Passage,
    slice: Span,
    rows: &Rows,
    is_last: impl Fn() -> bool,
) -> Result<()> {
    let gives_way = uplink.of.class != Class::Foreground;
    // The waits below must not delay slices that are ready already.
    if uplink.is_bounded() {
        sender.flush().await?;
    }
    if !gives_way {
        let turn = uplink.turn().await;
        uplink.pay(rows.len() as u64).await;
        sender.feed(slice, rows).await?;
        if is_last() {
            sender.flush().await?;
        }
        turn.passed(rows.len() as u64);
        return Ok(());
    }
    let mut frames = rows.chunks(FRAME_BYTES_MAX as usize).peekable();
    while let Some(frame) = frames.next() {
        uplink.pass(frame.len() as u64).await;
        sender.feed_frame(slice, frame, frames.peek().is_some()).await?;
        if uplink.is_bounded() || is_last() {
            sender.flush().await?;
        }
    }
    Ok(())
}

struct LinkSink {
    room: Arc<Semaphore>,
    sender: mpsc::UnboundedSender<Outgoing>,
    /// `None` after its result was taken.
    pump: Option<JoinHandle<Result<()>>>,
    hold: Hold,
    /// Dropping the sink drops this sender, and the pump then stops at once.
    _wanted: oneshot::Sender<()>,
}

impl LinkSink {
    async fn pump_result(&mut self) -> Result<()> {
        let Some(pump) = self.pump.take() else { return Err(Error::fatal("the stage used the link after it had failed")) };
        pump.await.unwrap_or_else(|error| Err(Error::fatal(format!("the task that sends on the link has ended: {error}"))))
    }

    /// Why the pump stopped.
    async fn failure(&mut self) -> Error {
        self.pump_result().await.err().unwrap_or_else(broken_off)
    }
}

#[async_trait]
impl SliceSink for LinkSink {
    fn hold(&self) -> Option<Hold> {
        Some(self.hold.clone())
    }

    async fn put(&mut self, slice: Span, rows: Rows) -> Result<()> {
        // A pump that ends drops its queue and with it every permit. So this wait never outlasts the pump.
        let Ok(room) = Arc::clone(&self.room).acquire_owned().await else { return Err(broken_off()) };
        match self.sender.send(Outgoing::Slice(slice, rows, room)) {
            Ok(()) => Ok(()),
            Err(_) => Err(self.failure().await),
        }
    }

    async fn finish(&mut self) -> Result<()> {
        match self.sender.send(Outgoing::End) {
            Ok(()) => self.pump_result().await,
            Err(_) => Err(self.failure().await),
        }
    }

    fn fail(&mut self, why: &Error) {
        // A pump that has ended has told the receiver itself.
        let _ended = self.sender.send(Outgoing::Failed(failed(why)));
    }
}
