//! Networks that are slow, so that a test can kill a node during a transfer, or on which data never arrive.

use async_trait::async_trait;
use std::{
    collections::BTreeSet,
    future::Future,
    io,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
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

/// Addresses at which no connection arrives.
pub(crate) type CutOff = Arc<Mutex<BTreeSet<String>>>;

/// A network on which connections to some addresses hang without an error.
pub(crate) struct CutNet {
    pub(crate) net: MemoryNet,
    pub(crate) cut_off: CutOff,
}

#[async_trait]
impl Net for CutNet {
    async fn connect(&self, address: &str) -> io::Result<BoxStream> {
        if self.cut_off.lock().unwrap().contains(address) {
            std::future::pending::<()>().await;
        }
        self.net.connect(address).await
    }

    async fn listen(&self, address: &str) -> io::Result<Box<dyn Listen>> {
        self.net.listen(address).await
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
