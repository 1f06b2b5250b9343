//! The connections of a control plane's listener: how many a caller may hold, and when one that is idle is closed.

use crate::{
    incoming::Accepted,
    net::{BoxStream, host},
    rpc::Caller,
    security::Peer,
};
use std::{
    collections::BTreeMap,
    future::Future,
    io,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep},
};
use tonic::transport::server::Connected;

/// Connections of one agent: its own, one for each conversion, and as many again that have not noticed yet that they are broken.
const CONNECTIONS_PER_AGENT_MAX: u32 = 16;
/// Connections of all others on one host: each command has one, each program at least one, and all clients of a cluster have one name.
const CONNECTIONS_PER_HOST_MAX: u32 = 512;
/// A connection without a call for this long is closed. A channel connects again with its next call.
pub(crate) const CONNECTION_IDLE_MAX: Duration = Duration::from_secs(600);

/// How many connections each caller holds.
#[derive(Clone, Default)]
pub(crate) struct Connections(Arc<Mutex<BTreeMap<Identity, u32>>>);

/// Who holds connections. An agent is known by its name wherever it calls from, all others by their host, too.
type Identity = (Peer, String);

/// One of a caller's connections, until it is dropped.
struct Held {
    connections: Connections,
    identity: Identity,
}

impl Connections {
    /// A connection as the gRPC server wants it; `None`: its caller has too many.
    pub(crate) fn admit(&self, accepted: Accepted) -> Option<Served> {
        let Accepted { stream, peer, address } = accepted;
        let Some(held) = self.hold(&peer, &address) else {
            tracing::warn!(%peer, %address, "closed a connection: this caller has too many");
            return None;
        };
        let idle = Box::pin(tokio::time::sleep(CONNECTION_IDLE_MAX));
        Some(Served { stream, connection: Connection::of(peer, address), idle, _held: held })
    }

    fn hold(&self, peer: &Peer, address: &str) -> Option<Held> {
        let (identity, most) = match peer {
            Peer::Agent(_) => ((peer.clone(), String::new()), CONNECTIONS_PER_AGENT_MAX),
            _ => ((peer.clone(), host(address)), CONNECTIONS_PER_HOST_MAX),
        };
        let mut counts = self.lock();
        let count = counts.get(&identity).copied().unwrap_or(0);
        if count >= most {
            return None;
        }
        counts.insert(identity.clone(), count + 1);
        Some(Held { connections: self.clone(), identity })
    }

    /// A panic elsewhere leaves the counts as they were: nothing panics while they change.
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Identity, u32>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut counts = self.connections.lock();
        match counts.get_mut(&self.identity) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(counts.remove(&self.identity)),
        }
    }
}

/// What each call of a connection knows of it.
#[derive(Clone)]
pub(crate) struct Connection {
    pub(crate) caller: Caller,
    calls: Arc<Mutex<Calls>>,
}

/// The calls of a connection.
struct Calls {
    under_way: u32,
    /// When the last one ended or, before the first, the connection began.
    quiet_since: Instant,
}

/// A call, until it is dropped.
pub(crate) struct Call(Arc<Mutex<Calls>>);

impl Connection {
    pub(crate) fn of(peer: Peer, address: String) -> Self {
        let calls = Calls { under_way: 0, quiet_since: Instant::now() };
        Self { caller: Caller { peer, address }, calls: Arc::new(Mutex::new(calls)) }
    }

    /// A call begins.
    pub(crate) fn call(&self) -> Call {
        lock(&self.calls).under_way += 1;
        Call(Arc::clone(&self.calls))
    }

    /// When it is to be closed, unless there is another call.
    fn idle_at(&self) -> Instant {
        let calls = lock(&self.calls);
        let quiet_since = if calls.under_way == 0 { calls.quiet_since } else { Instant::now() };
        quiet_since + CONNECTION_IDLE_MAX
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let mut calls = lock(&self.0);
        calls.under_way -= 1;
        calls.quiet_since = Instant::now();
    }
}

fn lock(calls: &Mutex<Calls>) -> MutexGuard<'_, Calls> {
    calls.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A connection as the gRPC server wants it. It ends when it was idle for too long.
pub(crate) struct Served {
    stream: BoxStream,
    connection: Connection,
    idle: Pin<Box<Sleep>>,
    _held: Held,
}

impl Connected for Served {
    type ConnectInfo = Connection;
    fn connect_info(&self) -> Connection {
        self.connection.clone()
    }
}

impl AsyncRead for Served {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        if read.is_ready() {
            return read;
        }
        while self.idle.as_mut().poll(cx).is_ready() {
            let idle_at = self.connection.idle_at();
            if idle_at <= Instant::now() {
                // No byte was read: for the server, the peer has ended the connection.
                return Poll::Ready(Ok(()));
            }
            self.idle.as_mut().reset(idle_at);
        }
        Poll::Pending
    }
}

impl AsyncWrite for Served {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bufs: &[io::IoSlice<'_>]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_holds_its_share_and_what_it_lets_go_is_free() {
        let connections = Connections::default();
        let agent = |name: &str| Peer::Agent(name.into());
        for (peer, other, most) in [
            (agent("a"), (agent("b"), "10.0.0.1:7"), CONNECTIONS_PER_AGENT_MAX),
            (Peer::Client, (Peer::Client, "10.0.0.2:7"), CONNECTIONS_PER_HOST_MAX),
            (Peer::Anonymous, (Peer::Client, "10.0.0.1:7"), CONNECTIONS_PER_HOST_MAX),
        ] {
            let address = |port: u32| format!("10.0.0.1:{port}");
            let mut held: Vec<Held> = (0..most).map(|port| connections.hold(&peer, &address(port)).unwrap()).collect();
            assert!(connections.hold(&peer, &address(most)).is_none(), "{peer}");
            assert!(connections.hold(&other.0, other.1).is_some(), "{peer}");
            held.pop();
            assert!(connections.hold(&peer, &address(most)).is_some(), "{peer}");
        }
        assert!(connections.lock().is_empty());
    }
}
