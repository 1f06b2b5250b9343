//! Networks on which what is sent takes its time, so that there is time to kill somebody, or never arrives.

use async_trait::async_trait;
use std::{
    collections::BTreeSet,
    future::Future,
    io,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep},
};
use weft_proto::{
    Net, TcpNet,
    net::{BoxStream, Listen},
};

/// TCP on which whoever has connected sends [`BYTES`] every [`PAUSE`].
pub(crate) struct SlowNet(pub(crate) TcpNet);

const BYTES: usize = 16 << 10;
const PAUSE: Duration = Duration::from_millis(5);

#[async_trait]
impl Net for SlowNet {
    async fn connect(&self, address: &str) -> io::Result<BoxStream> {
        let stream = self.0.connect(address).await?;
        Ok(Box::new(Slow { stream, pause: Box::pin(tokio::time::sleep(Duration::ZERO)) }))
    }

    async fn listen(&self, address: &str) -> io::Result<Box<dyn Listen>> {
        self.0.listen(address).await
    }
}

/// Addresses at which no connection arrives.
pub(crate) type CutOff = Arc<Mutex<BTreeSet<String>>>;

/// TCP on which connections to some addresses never come about, and nothing says so.
pub(crate) struct CutNet {
    pub(crate) net: TcpNet,
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

struct Slow {
    stream: BoxStream,
    pause: Pin<Box<Sleep>>,
}

impl AsyncRead for Slow {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Slow {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.pause.as_mut().poll(cx));
        let written = ready!(Pin::new(&mut self.stream).poll_write(cx, &buf[..buf.len().min(BYTES)]));
        self.pause.as_mut().reset(Instant::now() + PAUSE);
        Poll::Ready(written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
