//! Networks that are slow, so that a test can kill a node during a transfer, or on which data never arrive.

use async_trait::async_trait;
use std::{
    collections::{BTreeMap, BTreeSet},
    future::Future,
    io,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::{Context, Poll, Waker, ready},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf},
    time::{Instant, Sleep},
};
use weft_proto::{
    MemoryNet, Net,
    net::{BoxStream, Listen},
};

/// A network on which the connecting end sends [`BYTES`] every [`PAUSE`].
pub(crate) struct SlowNet {
    net: MemoryNet,
    /// All bytes that were sent.
    pub(crate) sent_bytes: Arc<AtomicU64>,
}

const BYTES: usize = 16 << 10;
const PAUSE: Duration = Duration::from_millis(5);
const STOPPED_LOOK: Duration = Duration::from_millis(50);

impl SlowNet {
    pub(crate) fn new(net: &MemoryNet) -> Self {
        Self { net: net.clone(), sent_bytes: Arc::default() }
    }
}

#[async_trait]
impl Net for SlowNet {
    async fn connect(&self, address: &str) -> io::Result<BoxStream> {
        let stream = self.net.connect(address).await?;
        let (pause, sent_bytes) = (Box::pin(tokio::time::sleep(Duration::ZERO)), Arc::clone(&self.sent_bytes));
        Ok(Box::new(Slow { stream, pause, sent_bytes }))
    }

    async fn listen(&self, address: &str) -> io::Result<Box<dyn Listen>> {
        self.net.listen(address).await
    }
}

/// A network whose connections deliver everything [`FAR`] after it was sent, in both directions. Connecting takes no time.
pub(crate) struct FarNet(pub(crate) MemoryNet);

/// Half of a round trip.
pub(crate) const FAR: Duration = Duration::from_millis(50);

#[async_trait]
impl Net for FarNet {
    async fn connect(&self, address: &str) -> io::Result<BoxStream> {
        let (near_reads, near_writes) = tokio::io::split(self.0.connect(address).await?);
        let (ours, theirs) = tokio::io::duplex(FAR_BYTES);
        let (reads, writes) = tokio::io::split(theirs);
        tokio::spawn(deliver(near_reads, writes));
        tokio::spawn(deliver(reads, near_writes));
        Ok(Box::new(ours))
    }

    async fn listen(&self, address: &str) -> io::Result<Box<dyn Listen>> {
        self.0.listen(address).await
    }
}

/// The bytes that one direction takes at once.
const FAR_BYTES: usize = 4 << 20;

/// Passes bytes on, each [`FAR`] after it came.
async fn deliver(mut from: impl AsyncRead + Unpin + Send + 'static, mut to: impl AsyncWrite + Unpin + Send + 'static) {
    let (sender, mut arrived) = tokio::sync::mpsc::unbounded_channel::<(Instant, Vec<u8>)>();
    tokio::spawn(async move {
        while let Some((at, bytes)) = arrived.recv().await {
            tokio::time::sleep_until(at + FAR).await;
            if to.write_all(&bytes).await.is_err() {
                return;
            }
        }
        // The other end sees the end of the connection as late as its last byte.
        let _closed = to.shutdown().await;
    });
    let mut bytes = vec![0; FAR_BYTES];
    while let Ok(count) = from.read(&mut bytes).await
        && count > 0
        && sender.send((Instant::now(), bytes[..count].to_vec())).is_ok()
    {}
}

/// Addresses at which no connection arrives.
pub(crate) type CutOff = Arc<Mutex<BTreeSet<String>>>;

/// A network on which connections to some addresses hang without an error, and others share a link that is full.
pub(crate) struct CutNet {
    pub(crate) net: MemoryNet,
    pub(crate) cut_off: CutOff,
    pub(crate) full: FullLinks,
}

#[async_trait]
impl Net for CutNet {
    async fn connect(&self, address: &str) -> io::Result<BoxStream> {
        if self.cut_off.lock().unwrap().contains(address) {
            std::future::pending::<()>().await;
        }
        let stream = self.net.connect(address).await?;
        let link = self.full.lock().unwrap().get(address).cloned();
        let Some(link) = link else { return Ok(stream) };
        let number = link.begin();
        Ok(Box::new(Sharing { stream, link, number, pause: Box::pin(tokio::time::sleep(Duration::ZERO)), wants_since: None }))
    }

    async fn listen(&self, address: &str) -> io::Result<Box<dyn Listen>> {
        self.net.listen(address).await
    }
}

/// The links to these addresses are full.
pub(crate) type FullLinks = Arc<Mutex<BTreeMap<String, Arc<FullLink>>>>;

/// A link that carries [`FULL_BYTES`] every [`PAUSE`], of the oldest connection that has something to send: the others starve, as some streams
/// do on a link that many share.
#[derive(Default)]
pub(crate) struct FullLink(Mutex<Queue>);

#[derive(Default)]
struct Queue {
    next: u64,
    free_at: Option<Instant>,
    waiting: BTreeMap<u64, Waker>,
    starved: Duration,
}

const FULL_BYTES: usize = 32 << 10;

impl FullLink {
    fn begin(&self) -> u64 {
        let mut queue = self.0.lock().unwrap();
        queue.next += 1;
        queue.next
    }

    /// The longest time for which a connection got nothing.
    pub(crate) fn starved(&self) -> Duration {
        self.0.lock().unwrap().starved
    }
}

/// A connection over a full link. What it receives does not pass the link.
struct Sharing {
    stream: BoxStream,
    link: Arc<FullLink>,
    number: u64,
    pause: Pin<Box<Sleep>>,
    wants_since: Option<Instant>,
}

impl AsyncRead for Sharing {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Sharing {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        let now = Instant::now();
        let since = *this.wants_since.get_or_insert(now);
        let free_at = {
            let mut queue = this.link.0.lock().unwrap();
            queue.starved = queue.starved.max(now - since);
            queue.waiting.insert(this.number, cx.waker().clone());
            if queue.waiting.keys().next() < Some(&this.number) {
                return Poll::Pending;
            }
            queue.free_at.unwrap_or(now)
        };
        if free_at > now {
            this.pause.as_mut().reset(free_at);
            ready!(this.pause.as_mut().poll(cx));
        }
        let written = ready!(Pin::new(&mut this.stream).poll_write(cx, &buf[..buf.len().min(FULL_BYTES)]))?;
        this.wants_since = None;
        let mut queue = this.link.0.lock().unwrap();
        queue.free_at = Some(Instant::now() + PAUSE);
        queue.leave(this.number);
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

impl Queue {
    /// The next one has its turn.
    fn leave(&mut self, number: u64) {
        self.waiting.remove(&number);
        if let Some(next) = self.waiting.values().next() {
            next.wake_by_ref();
        }
    }
}

impl Drop for Sharing {
    fn drop(&mut self) {
        self.link.0.lock().unwrap().leave(self.number);
    }
}

/// The network of a node that can be stopped: until it resumes, its ends of all connections move no data and report no error.
pub(crate) struct StoppableNet {
    pub(crate) net: Arc<dyn Net>,
    pub(crate) stopped: Arc<AtomicBool>,
}

#[async_trait]
impl Net for StoppableNet {
    async fn connect(&self, address: &str) -> io::Result<BoxStream> {
        let stream = self.net.connect(address).await?;
        Ok(Box::new(Stoppable { stream, stopped: Arc::clone(&self.stopped) }))
    }

    async fn listen(&self, address: &str) -> io::Result<Box<dyn Listen>> {
        Ok(Box::new(StoppableListener { listener: self.net.listen(address).await?, stopped: Arc::clone(&self.stopped) }))
    }
}

struct StoppableListener {
    listener: Box<dyn Listen>,
    stopped: Arc<AtomicBool>,
}

#[async_trait]
impl Listen for StoppableListener {
    async fn accept(&self) -> io::Result<(BoxStream, String)> {
        let (stream, address) = self.listener.accept().await?;
        Ok((Box::new(Stoppable { stream, stopped: Arc::clone(&self.stopped) }), address))
    }

    fn local_address(&self) -> io::Result<String> {
        self.listener.local_address()
    }
}

struct Stoppable {
    stream: BoxStream,
    stopped: Arc<AtomicBool>,
}

impl Stoppable {
    /// A stopped node checks from time to time whether it may resume.
    fn go_on(&self, cx: &Context<'_>) -> Poll<()> {
        if !self.stopped.load(Ordering::Relaxed) {
            return Poll::Ready(());
        }
        let waker = cx.waker().clone();
        tokio::spawn(async move {
            tokio::time::sleep(STOPPED_LOOK).await;
            waker.wake();
        });
        Poll::Pending
    }
}

impl AsyncRead for Stoppable {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        ready!(self.go_on(cx));
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Stoppable {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.go_on(cx));
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.go_on(cx));
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.go_on(cx));
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

struct Slow {
    stream: BoxStream,
    pause: Pin<Box<Sleep>>,
    sent_bytes: Arc<AtomicU64>,
}

impl AsyncRead for Slow {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Slow {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.pause.as_mut().poll(cx));
        let written = ready!(Pin::new(&mut self.stream).poll_write(cx, &buf[..buf.len().min(BYTES)]))?;
        self.sent_bytes.fetch_add(written as u64, Ordering::Relaxed);
        self.pause.as_mut().reset(Instant::now() + PAUSE);
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
