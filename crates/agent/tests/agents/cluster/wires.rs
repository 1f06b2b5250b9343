//! The connections that one agent dials: they are counted, may be slow, may be cut, and may lead to another address.

use async_trait::async_trait;
use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard},
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep},
};
use weft_proto::{BoxStream, Listen, Net};

/// The network of one agent.
#[derive(Clone)]
pub(crate) struct Wires {
    net: Arc<dyn Net>,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    /// Bytes that were sent, by address.
    sent: BTreeMap<String, u64>,
    /// Of each connection; 0: without a limit.
    bytes_per_s: f64,
    cut: BTreeSet<String>,
    /// Cut when so many bytes were sent there.
    cut_after: BTreeMap<String, u64>,
    instead: BTreeMap<String, String>,
}

impl Wires {
    pub(crate) fn new(net: &Arc<dyn Net>) -> Self {
        Self { net: Arc::clone(net), state: Arc::default() }
    }

    /// The bytes that were sent to an address.
    pub(crate) fn sent(&self, address: &str) -> u64 {
        self.lock().sent.get(address).copied().unwrap_or(0)
    }

    /// From now on, each connection sends so many bytes a second.
    pub(crate) fn slow_down(&self, bytes_per_s: f64) {
        self.lock().bytes_per_s = bytes_per_s;
    }

    /// Breaks the connections to an address when so many further bytes were sent there. None is made from then on.
    pub(crate) fn cut_after(&self, address: &str, bytes: u64) {
        let at = self.sent(address) + bytes;
        self.lock().cut_after.insert(address.to_owned(), at);
    }

    pub(crate) fn is_cut(&self, address: &str) -> bool {
        self.lock().cut.contains(address)
    }

    /// Connections to an address lead to another one.
    pub(crate) fn lead(&self, address: &str, instead: &str) {
        self.lock().instead.insert(address.to_owned(), instead.to_owned());
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }
}

#[async_trait]
impl Net for Wires {
    async fn connect(&self, address: &str) -> io::Result<BoxStream> {
        let to = {
            let state = self.lock();
            if state.cut.contains(address) {
                return Err(io::ErrorKind::ConnectionRefused.into());
            }
            state.instead.get(address).cloned().unwrap_or_else(|| address.to_owned())
        };
        let stream = self.net.connect(&to).await?;
        let pause = Box::pin(tokio::time::sleep(Duration::ZERO));
        Ok(Box::new(Wire { stream, address: address.to_owned(), wires: self.clone(), pause }))
    }

    async fn listen(&self, address: &str) -> io::Result<Box<dyn Listen>> {
        self.net.listen(address).await
    }
}

struct Wire {
    stream: BoxStream,
    address: String,
    wires: Wires,
    /// Ends when the next bytes may be sent.
    pause: Pin<Box<Sleep>>,
}

/// What is sent at once.
const PIECE: usize = 4096;

impl AsyncRead for Wire {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.wires.is_cut(&self.address) {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Wire {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        if this.wires.is_cut(&this.address) {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        ready!(this.pause.as_mut().poll(cx));
        let bytes_per_s = this.wires.lock().bytes_per_s;
        let piece = if bytes_per_s > 0.0 { &buf[..buf.len().min(PIECE)] } else { buf };
        let written = ready!(Pin::new(&mut this.stream).poll_write(cx, piece))?;
        if bytes_per_s > 0.0 {
            this.pause.as_mut().reset(Instant::now() + Duration::from_secs_f64(written as f64 / bytes_per_s));
        }
        let mut state = this.wires.lock();
        let sent = state.sent.entry(this.address.clone()).or_default();
        *sent += written as u64;
        let sent = *sent;
        if state.cut_after.get(&this.address).is_some_and(|at| sent >= *at) {
            state.cut.insert(this.address.clone());
        }
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
