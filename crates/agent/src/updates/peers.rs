//! Connections to other agents, one to each, that carry messages of the blocks here to blocks there.

use super::{
    homes::Home,
    loads::{Cut, Slice},
    outlet::Outlet,
};
use std::{
    collections::{BTreeMap, VecDeque},
    pin::pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch},
    time::{Instant, sleep, timeout},
};
use weft_proto::{
    FrameError, LogRate, Net, Security, UpdatesHello,
    updates::{HeadMax, Packet, PartRef, UpdateReader, UpdateWriter, dial},
};
use weft_types::{ClusterId, UPDATE_BYTES_MAX};
use weft_updater::Pieces;

/// The connections to other agents.
pub(crate) struct Peers {
    dialling: Arc<Dialling>,
    /// By the agent's name.
    queues: Mutex<BTreeMap<String, Outgoing>>,
}

/// What a connection is made with.
struct Dialling {
    net: Arc<dyn Net>,
    security: Security,
    name: String,
    cluster: watch::Receiver<Option<ClusterId>>,
    failures: LogRate,
}

/// What waits for a connection.
struct Outgoing {
    address: String,
    packets: mpsc::Sender<Sending>,
    room: Arc<Semaphore>,
    slices: Arc<Semaphore>,
    outlet: Arc<Outlet>,
    is_unreachable: Arc<AtomicBool>,
}

struct Sending {
    packet: Packet,
    bytes: Slice,
    /// Gets an answer when the packet was sent; is dropped if it never is.
    sent: Option<oneshot::Sender<()>>,
    _room: OwnedSemaphorePermit,
}

/// The way of slices to one agent.
pub(crate) struct Lane {
    packets: mpsc::Sender<Sending>,
    room: Arc<Semaphore>,
}

/// The most messages that wait for one connection.
const PACKETS_MAX: usize = 1024;
/// The most bytes of deltas that wait for one connection.
const BYTES_MAX: usize = 2 * UPDATE_BYTES_MAX as usize;
/// The room for them, for each of their messages, and for as many messages without bytes.
const ROOM: usize = BYTES_MAX + 2 * PACKETS_MAX;
/// The most bytes of slices that wait for one connection; one slice at least. Messages wait behind them.
const SLICES_BYTES_MAX: u32 = 1 << 20;
/// A connection on which nothing is sent for this long is closed.
const IDLE_MAX: Duration = Duration::from_secs(120);
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(2);

impl Peers {
    pub(crate) fn new(net: Arc<dyn Net>, security: Security, name: &str, cluster: watch::Receiver<Option<ClusterId>>) -> Self {
        let dialling = Dialling { net, security, name: name.to_owned(), cluster, failures: LogRate::default() };
        Self { dialling: Arc::new(dialling), queues: Mutex::default() }
    }

    /// Queues a packet. Returns false if the queue is full.
    pub(crate) fn send(&self, home: &Home, packet: Packet, pieces: &Pieces) -> bool {
        // One more, so that the room shows whether anything waits.
        let bytes = super::bytes_of(pieces) + 1;
        self.with(home, |queue| {
            // Messages without bytes always have room: updates end with them.
            if bytes > 1 && queue.room.available_permits() < bytes + PACKETS_MAX {
                return false;
            }
            let room = Arc::clone(&queue.room).try_acquire_many_owned(u32::try_from(bytes).unwrap_or(u32::MAX));
            let Ok(room) = room else { return false };
            queue.packets.try_send(Sending { packet, bytes: Cut::all(pieces), sent: None, _room: room }).is_ok()
        })
    }

    /// Sends a small packet by this thread itself, if there is a connection on which nothing waits. Returns false if it does nothing. Only in the context of
    /// a runtime.
    pub(crate) fn send_at_once(&self, home: &Home, packet: &Packet, pieces: &Pieces) -> bool {
        let Some(outlet) = self.with(home, |queue| queue.is_empty().then(|| Arc::clone(&queue.outlet))) else { return false };
        let bytes = Cut::all(pieces);
        let parts: Vec<PartRef<'_>> = bytes.iter().map(Cut::as_part_ref).collect();
        outlet.send(packet, &parts)
    }

    /// The way of slices to an agent.
    pub(crate) fn lane(&self, home: &Home) -> Lane {
        self.with(home, |queue| Lane { packets: queue.packets.clone(), room: Arc::clone(&queue.slices) })
    }

    fn with<T>(&self, home: &Home, what: impl FnOnce(&Outgoing) -> T) -> T {
        let mut queues = self.lock();
        if queues.get(&home.name).is_some_and(|queue| queue.address != home.address || queue.packets.is_closed()) {
            queues.remove(&home.name);
        }
        what(queues.entry(home.name.clone()).or_insert_with(|| self.connect(home)))
    }

    /// The name of an agent that could not be reached since the last call.
    pub(crate) fn take_unreachable(&self) -> Option<String> {
        let queues = self.lock();
        queues.iter().find(|(_, queue)| queue.is_unreachable.swap(false, Relaxed)).map(|(name, _)| name.clone())
    }

    fn connect(&self, home: &Home) -> Outgoing {
        let (packets, waiting) = mpsc::channel(PACKETS_MAX);
        let is_unreachable = Arc::new(AtomicBool::new(false));
        let (dialling, home, unreachable) = (Arc::clone(&self.dialling), home.clone(), Arc::clone(&is_unreachable));
        let (address, outlet) = (home.address.clone(), Arc::new(Outlet::default()));
        let lent = Arc::clone(&outlet);
        tokio::spawn(async move { dialling.run(home, waiting, (&*lent, &*unreachable)).await });
        let (room, slices) = (Arc::new(Semaphore::new(ROOM)), Arc::new(Semaphore::new(SLICES_BYTES_MAX as usize)));
        Outgoing { address, packets, room, slices, outlet, is_unreachable }
    }

    /// A poisoned lock is safe to use: each change is one call.
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Outgoing>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Outgoing {
    /// Whether nothing waits that was queued before.
    fn is_empty(&self) -> bool {
        self.room.available_permits() == ROOM && self.slices.available_permits() == SLICES_BYTES_MAX as usize
    }
}

impl Lane {
    /// Queues a slice, and waits if there is no room for it. `None` if the connection is closed. What is returned gets an answer when the slice is
    /// sent; an error if it never is.
    pub(crate) async fn send(&self, packet: Packet, bytes: Slice) -> Option<oneshot::Receiver<()>> {
        let len: usize = bytes.iter().map(|cut| cut.bytes().len()).sum();
        let counted = u32::try_from(len).unwrap_or(u32::MAX).min(SLICES_BYTES_MAX);
        let room = Arc::clone(&self.room).acquire_many_owned(counted).await.ok()?;
        let (sent, done) = oneshot::channel();
        self.packets.send(Sending { packet, bytes, sent: Some(sent), _room: room }).await.ok()?;
        Some(done)
    }
}

impl Dialling {
    /// Connects when there is something to send, and again when the connection breaks. What was under way then is lost. When there is no connection,
    /// slices are lost, too: their loads must not wait for it.
    async fn run(&self, home: Home, mut waiting: mpsc::Receiver<Sending>, (outlet, is_unreachable): (&Outlet, &AtomicBool)) {
        let mut pause = PAUSE_MIN;
        // Messages that waited when there was no connection.
        let mut kept: VecDeque<Sending> = VecDeque::new();
        loop {
            let first = match kept.pop_front() {
                Some(first) => first,
                None => match timeout(IDLE_MAX, waiting.recv()).await {
                    Ok(Some(first)) => first,
                    Ok(None) | Err(_) => return,
                },
            };
            let begin = Instant::now();
            let ended = match self.dial(&home).await {
                Ok((reader, writer)) => {
                    let ended = carry((reader, writer), first, (&mut kept, &mut waiting), outlet).await;
                    // One that breaks at once is no better than none.
                    pause = if begin.elapsed() >= PAUSE_MAX { PAUSE_MIN } else { pause };
                    ended.map_err(|error| error.to_string())
                }
                Err(error) => {
                    is_unreachable.store(true, Relaxed);
                    drop(first);
                    drop_slices(&mut kept, &mut waiting);
                    Err(error.to_string())
                }
            };
            if let Err(error) = ended {
                if let Some(left_out) = self.failures.admit() {
                    tracing::warn!(agent = %home.name, address = %home.address, %error, left_out, "no connection for updates");
                }
                sleep(pause).await;
                pause = (pause * 2).min(PAUSE_MAX);
            }
        }
    }

    async fn dial(&self, home: &Home) -> weft_types::Result<(UpdateReader, UpdateWriter)> {
        let cluster = *self.cluster.borrow();
        let cluster = cluster.ok_or_else(|| weft_types::Error::retry("the cluster is not known yet"))?;
        let hello = UpdatesHello { cluster, from: Some(self.name.clone()), to: home.name.clone() };
        dial(self.net.as_ref(), &self.security, &home.address, &hello, HeadMax::Small).await
    }
}

/// Drops the slices that wait, and keeps the messages in their order, as many as may wait for a connection.
fn drop_slices(kept: &mut VecDeque<Sending>, waiting: &mut mpsc::Receiver<Sending>) {
    // Not those that come meanwhile.
    for _ in 0..waiting.len() {
        let Ok(next) = waiting.try_recv() else { return };
        if next.sent.is_none() && kept.len() < PACKETS_MAX {
            kept.push_back(next);
        }
    }
}

/// Sends until the connection breaks, or nothing was sent for long; first what was kept. While nothing waits, others send by the outlet.
async fn carry(
    (mut reader, mut writer): (UpdateReader, UpdateWriter),
    first: Sending,
    (kept, waiting): (&mut VecDeque<Sending>, &mut mpsc::Receiver<Sending>),
    outlet: &Outlet,
) -> Result<(), FrameError> {
    let mut closed = pin!(reader.next());
    let mut next = Some(first);
    loop {
        while let Some(Sending { packet, bytes, sent, _room }) = next {
            let parts: Vec<PartRef<'_>> = bytes.iter().map(Cut::as_part_ref).collect();
            match writer.feed(&packet, &parts).await {
                // Nothing was sent.
                Err(FrameError::Unexpected(error)) => tracing::error!(%error, "cannot send a message of an update"),
                fed => {
                    fed?;
                    // What sends it may have given it up.
                    let _gone = sent.map(|sent| sent.send(()));
                }
            }
            next = kept.pop_front().or_else(|| waiting.try_recv().ok());
        }
        writer.flush().await?;
        let lent = outlet.lend(writer);
        next = tokio::select! {
            biased;
            ended = &mut closed => {
                return Err(ended.err().unwrap_or_else(|| FrameError::Unexpected("the agent answers on this connection".into())));
            }
            () = lent.falls_behind() => None,
            waited = timeout(IDLE_MAX, waiting.recv()) => match waited {
                Ok(Some(first)) => Some(first),
                Err(_) if lent.was_used() => None,
                Ok(None) | Err(_) => return Ok(()),
            },
        };
        writer = lent.take()?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::updates::outlet::tests::{Pipe, other_end};
    use async_trait::async_trait;
    use std::io;
    use weft_proto::{BoxStream, Listen, updates::LoadId};
    use weft_types::{BlockId, StripeId};
    use weft_update::{Session, UpdateId};
    use weft_updater::Piece;

    struct Nowhere;

    #[async_trait]
    impl Net for Nowhere {
        async fn connect(&self, _address: &str) -> io::Result<BoxStream> {
            Err(io::ErrorKind::ConnectionRefused.into())
        }

        async fn listen(&self, _address: &str) -> io::Result<Box<dyn Listen>> {
            Err(io::ErrorKind::Unsupported.into())
        }
    }

    fn packet(index: u8) -> Packet {
        let from = BlockId { stripe: StripeId(1), index: 0, copy: 0, generation: 1 };
        let id = UpdateId { session: Session { number: 9, ends_at_ms: 1000 }, counter: 1, lead: 0 };
        Packet::Arrived { load: LoadId { from, id, attempt: 0 }, at: BlockId { index, ..from } }
    }

    fn bytes() -> Pieces {
        pieces(64 << 10)
    }

    fn pieces(len: usize) -> Pieces {
        Pieces::from([(0, Arc::new(Piece { start: 0, bytes: vec![1; len].into() }))])
    }

    #[tokio::test(start_paused = true)]
    async fn slices_do_not_wait_for_an_agent_that_cannot_be_reached() {
        let (_known, cluster) = watch::channel(Some(ClusterId(7)));
        let peers = Peers::new(Arc::new(Nowhere), Security::Insecure, "one", cluster);
        let home = Home { name: "two".into(), address: "two:1".into() };
        assert!(peers.send(&home, packet(1), &Pieces::new()));
        let (lane, mut sent) = (peers.lane(&home), Vec::new());
        for _ in 0..SLICES_BYTES_MAX >> 16 {
            sent.push(lane.send(packet(2), Cut::all(&bytes())).await.unwrap());
        }
        let begin = Instant::now();
        for sent in sent {
            assert!(sent.await.is_err());
        }
        assert!(begin.elapsed() < PAUSE_MIN, "they wait for {:?}", begin.elapsed());
        assert_eq!(lane.room.available_permits(), SLICES_BYTES_MAX as usize);
    }

    #[tokio::test(start_paused = true)]
    async fn messages_with_bytes_leave_room_for_those_without() {
        let (_known, cluster) = watch::channel(Some(ClusterId(7)));
        let peers = Peers::new(Arc::new(Nowhere), Security::Insecure, "one", cluster);
        let home = Home { name: "two".into(), address: "two:1".into() };
        // The connection's task does not run meanwhile.
        let most = UPDATE_BYTES_MAX as usize;
        assert!([most, most, 1021].into_iter().all(|len| peers.send(&home, packet(0), &pieces(len))));
        assert!(!peers.send(&home, packet(0), &pieces(1)), "the rest is for others");
        assert!((3..PACKETS_MAX).all(|_| peers.send(&home, packet(1), &Pieces::new())));
        assert!(!peers.send(&home, packet(1), &Pieces::new()), "it is full");
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_sent_at_once_comes_after_what_was_queued_before() {
        let ((accepted, mut accepting), (_known, cluster)) = (mpsc::unbounded_channel(), watch::channel(Some(ClusterId(7))));
        let peers = Peers::new(Arc::new(Pipe(accepted)), Security::Insecure, "one", cluster);
        let home = Home { name: "two".into(), address: "two:1".into() };
        let at_once = |index: u8| peers.send_at_once(&home, &packet(index), &Pieces::new());
        assert!(peers.send(&home, packet(0), &Pieces::new()) && !at_once(1));
        let (mut reader, _writer) = other_end(&mut accepting).await;
        let idle = async {
            while !at_once(1) {
                sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(Duration::from_secs(1), idle).await.expect("the connection is idle");
        assert!(peers.send(&home, packet(2), &Pieces::new()) && !at_once(3), "one waits, and none is sent before it");
        for index in 0..3 {
            assert_eq!(reader.next().await.unwrap(), (packet(index), vec![]));
        }
    }

    #[test]
    fn messages_are_kept_in_their_order_when_slices_are_dropped() {
        let (room, (packets, mut waiting)) = (Arc::new(Semaphore::new(10)), mpsc::channel(10));
        for index in 0..4 {
            let sent = (index % 2 == 1).then(|| oneshot::channel().0);
            let held = Arc::clone(&room).try_acquire_owned().unwrap();
            let sending = Sending { packet: packet(index), bytes: Cut::all(&bytes()), sent, _room: held };
            assert!(packets.try_send(sending).is_ok());
        }
        let mut kept = VecDeque::new();
        drop_slices(&mut kept, &mut waiting);
        let kept: Vec<Packet> = kept.into_iter().map(|sending| sending.packet).collect();
        assert_eq!(kept, [packet(0), packet(2)]);
        assert_eq!(room.available_permits(), 10);
    }
}
