//! The ends of a link as a source and a sink of a stage. At each end a pump moves slices between the socket and a queue, so
//! that the network goes on while the stage computes.

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
use weft_proto::{FrameStream, Hello, LinkReceiver, LinkSender, Peer, Pool};
use weft_types::{Error, Reaction, Result, Rows, Span};

/// An end of a link that is not connected yet.
pub(crate) struct Unconnected {
    pub(crate) link: TaskLink,
    pub(crate) way: Way,
    /// A link on which nothing moves for this long has failed.
    pub(crate) stall: Duration,
    /// Slices that may wait.
    pub(crate) window: usize,
    pub(crate) traffic: Arc<Traffic>,
    /// What is sent passes it.
    pub(crate) uplink: Passage,
}

/// How a link gets its connection.
pub(crate) enum Way {
    /// This end dials.
    Dial(Dial),
    /// The other end comes.
    Accept(oneshot::Receiver<Arrival>),
}

/// Whom to dial, and what to say.
pub(crate) struct Dial {
    pub(crate) pool: Arc<Pool>,
    pub(crate) address: String,
    pub(crate) peer: Peer,
    pub(crate) hello: Hello,
}

/// How long a peer that cannot be reached is dialled again and again.
const DIAL_TIME: Duration = Duration::from_secs(2);
const DIAL_PAUSE: Duration = Duration::from_millis(50);

impl Unconnected {
    /// The receiving end.
    pub(crate) fn source(self, slices: Slices) -> Box<dyn SliceSource> {
        let (sender, queue) = mpsc::channel(self.window.max(1));
        tokio::spawn(receive_all(self, slices, sender));
        Box::new(LinkSource(queue))
    }

    /// The sending end.
    pub(crate) fn sink(self) -> Box<dyn SliceSink> {
        let room = Arc::new(Semaphore::new(self.window.max(1)));
        let (sender, queue) = mpsc::unbounded_channel();
        let (wanted, unwanted) = oneshot::channel();
        let hold = self.uplink.hold.clone();
        let pump = tokio::spawn(send_all(self, queue, unwanted));
        Box::new(LinkSink { room, sender, pump: Some(pump), hold, _wanted: wanted })
    }

    async fn connect(&mut self) -> Result<Connected> {
        let (stall, peer) = (self.stall, self.link.peer);
        let connected = match &mut self.way {
            Way::Dial(dial) => timeout(stall, dial.connect()).await.map(|frames| {
                let home = Home::Pool(Arc::clone(&dial.pool), dial.address.clone(), dial.peer.clone());
                frames.map(|frames| Connected { frames, home })
            }),
            Way::Accept(arrival) => timeout(stall, arrival).await.map(|arrival| {
                let arrival = arrival.map_err(|_| Error::replan("its connection broke before anything came over it"))?;
                Ok(Connected { frames: arrival.frames, home: Home::Reception(arrival.home) })
            }),
        };
        let late = |_| Err(Error::replan(format!("no connection within {} ms", stall.as_millis())));
        connected.unwrap_or_else(late).map_err(|error| error.party(peer))
    }
}

impl Dial {
    /// Everybody has been told of the plan before anybody dials: who is not there now is starting, or gone.
    async fn connect(&self) -> Result<FrameStream> {
        let (begin, mut pause) = (Instant::now(), DIAL_PAUSE);
        loop {
            match self.pool.open(&self.address, &self.peer, &self.hello).await {
                Err(error) if matches!(error.reaction, Reaction::Retry | Reaction::Replan) && begin.elapsed() < DIAL_TIME => {
                    sleep(pause).await;
                    pause *= 2;
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

/// Where a connection goes when its link has ended as it should.
enum Home {
    Pool(Arc<Pool>, String, Peer),
    Reception(oneshot::Sender<FrameStream>),
}

impl Home {
    fn give_back(self, frames: Option<FrameStream>) {
        match (self, frames) {
            (Self::Pool(pool, address, peer), Some(frames)) => pool.put_back(&address, &peer, frames),
            // Nobody left to take it: the agent is stopping.
            (Self::Reception(home), Some(frames)) => drop(home.send(frames)),
            (_, None) => {}
        }
    }
}

/// What a neighbour is told when a stage ends before its slices do.
fn broken_off() -> Error {
    Error::replan("the stage at the other end of the link has ended")
}

/// The queue's items: slices; at the end `None`.
type Received = Result<Option<Rows>>;

async fn receive_all(mut link: Unconnected, slices: Slices, queue: mpsc::Sender<Received>) {
    let connected = tokio::select! {
        biased;
        connected = link.connect() => connected,
        () = queue.closed() => return,
    };
    let received = match connected {
        Ok(Connected { frames, home }) => {
            let mut receiver = LinkReceiver::new(frames, link.link.id(), link.link.width, link.stall);
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
    // If nobody takes it, nobody wants to know it.
    let _unwanted = queue.send(received.map(|()| None)).await;
}

async fn receive(receiver: &mut LinkReceiver, link: &Unconnected, slices: Slices, queue: &mpsc::Sender<Received>) -> Result<()> {
    let place = |error: Error| error.party(link.link.peer);
    for slice in slices {
        // Room first: what has been received always has a place to go.
        let room = queue.reserve().await.map_err(|_| broken_off())?;
        let rows = receiver.receive(slice).await.map_err(place)?;
        link.traffic.received.add(rows.len() as u64);
        room.send(Ok(Some(rows)));
    }
    receiver.end().await.map_err(place)
}

struct LinkSource(mpsc::Receiver<Received>);

impl LinkSource {
    async fn take(&mut self) -> Received {
        self.0.recv().await.unwrap_or_else(|| Err(Error::fatal("the link's pump has ended")))
    }
}

#[async_trait]
impl SliceSource for LinkSource {
    async fn next(&mut self, _: Span) -> Result<Rows> {
        self.take().await?.ok_or_else(|| Error::replan("the link ended before its last slice"))
    }

    async fn finish(&mut self) -> Result<()> {
        match self.take().await? {
            None => Ok(()),
            Some(_) => Err(Error::replan("the link goes on after its last slice")),
        }
    }
}

/// What a sink gives its pump. The permit is the slice's room in the queue: it is free when the connection has taken the slice.
enum Outgoing {
    Slice(Span, Rows, OwnedSemaphorePermit),
    End,
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
    let mut sender = LinkSender::new(frames, link.link.id(), link.link.width, link.stall);
    loop {
        match queue.recv().await {
            Some(Outgoing::Slice(slice, rows, _room)) => {
                // Small slices that wait already go with it.
                let send = send_slice(&mut sender, &link.uplink, slice, &rows, || queue.is_empty());
                tokio::select! {
                    biased;
                    sent = send => sent.map_err(place)?,
                    // In the middle of a frame there is nothing more to say.
                    _ = &mut unwanted => return Ok(()),
                }
                link.traffic.sent.add(rows.len() as u64);
            }
            Some(Outgoing::End) => {
                sender.end().await.map_err(place)?;
                home.give_back(sender.into_frames());
                return Ok(());
            }
            None => {
                sender.fail(&broken_off()).await;
                return Ok(());
            }
        }
    }
}

/// Nothing of a lower class's turn is held while the peer is waited for: plans that cross at an uplink would block one another.
async fn send_slice(
    sender: &mut LinkSender,
    uplink: &Passage,
    slice: Span,
    rows: &Rows,
    is_last: impl Fn() -> bool,
) -> Result<()> {
    let gives_way = uplink.of.class != Class::Foreground;
    // What is waited for below holds up no slice that is ready already.
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
    /// Taken when its result has been.
    pump: Option<JoinHandle<Result<()>>>,
    hold: Hold,
    /// Dropped with the sink: the pump then stops in whatever it does.
    _wanted: oneshot::Sender<()>,
}

impl LinkSink {
    async fn pump_result(&mut self) -> Result<()> {
        let Some(pump) = self.pump.take() else { return Err(Error::fatal("the link is used after it broke")) };
        pump.await.unwrap_or_else(|error| Err(Error::fatal(format!("the link's pump has ended: {error}"))))
    }

    /// Why the pump does not take anything any more.
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
        // A pump that ends drops its queue, and with it every permit: the wait is as long as the pump's own.
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
}
