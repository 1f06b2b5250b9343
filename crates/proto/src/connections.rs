//! The connections of a listener: how many a caller may have, and when idle ones are closed.

use crate::{
    budget::{Identity, identity},
    incoming::Accepted,
    log_rate::LogRate,
    net::BoxStream,
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

/// The most connections of one caller.
#[derive(Debug, Clone, Copy)]
pub struct Shares {
    /// Of one agent.
    pub agent: u32,
    /// Of all other callers on one host together: all clients of a cluster share one name.
    pub host: u32,
}

/// The connections to a control plane. An agent has its own, one for each conversion, and as many again for broken ones that are not
/// detected yet. Each command has one, and each program at least one.
pub(crate) const CONTROL_PLANE: Shares = Shares { agent: 16, host: 512 };
/// A connection without calls for this long is closed. A channel reconnects with its next call.
pub(crate) const CONNECTION_IDLE_MAX: Duration = Duration::from_secs(600);

/// Counts the connections of each caller against its share.
#[derive(Clone)]
pub struct Connections {
    shares: Shares,
    counts: Arc<Mutex<BTreeMap<Identity, u32>>>,
    refused: Arc<LogRate>,
}

/// One of a caller's connections, until it is dropped.
pub struct Held {
    connections: Connections,
    identity: Identity,
}

impl Connections {
    /// No connections yet.
    pub fn new(shares: Shares) -> Self {
        Self { shares, counts: Arc::default(), refused: Arc::default() }
    }

    /// A connection for the gRPC server; `None` if its caller has too many.
    pub(crate) fn admit(&self, accepted: Accepted) -> Option<Served> {
        let Accepted { stream, peer, address } = accepted;
        let held = self.hold(&peer, &address)?;
        let idle = Box::pin(tokio::time::sleep(CONNECTION_IDLE_MAX));
        Some(Served { stream, connection: Connection::of(peer, address), idle, _held: held })
    }

    /// Counts a connection; `None`, with a log line at a limited rate, if its caller has too many.
    pub fn hold(&self, peer: &Peer, address: &str) -> Option<Held> {
        let most = if matches!(peer, Peer::Agent(_)) { self.shares.agent } else { self.shares.host };
        let identity = identity(peer, address);
        let mut counts = self.lock();
        let count = counts.get(&identity).copied().unwrap_or(0);
        if count >= most {
            drop(counts);
            if let Some(left_out) = self.refused.admit() {
                tracing::warn!(%peer, %address, left_out, "closed a connection: this caller has too many");
            }
            return None;
        }
        counts.insert(identity.clone(), count + 1);
        Some(Held { connections: self.clone(), identity })
    }

    /// A poisoned lock is safe to use: no code panics while the counts change.
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Identity, u32>> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
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

/// The data of a connection that each of its calls can read.
#[derive(Clone)]
pub(crate) struct Connection {
    pub(crate) caller: Caller,
    calls: Arc<Mutex<Calls>>,
}

/// The calls of a connection.
struct Calls {
    under_way: u32,
    /// When the last call ended; before the first call, when the connection began.
    quiet_since: Instant,
}

/// Counts as a call until it is dropped.
pub(crate) struct Call(Arc<Mutex<Calls>>);

impl Connection {
    pub(crate) fn of(peer: Peer, address: String) -> Self {
        let calls = Calls { under_way: 0, quiet_since: Instant::now() };
        Self { caller: Caller { peer, address }, calls: Arc::new(Mutex::new(calls)) }
    }

    /// Begins a call.
    pub(crate) fn call(&self) -> Call {
        lock(&self.calls).under_way += 1;
        Call(Arc::clone(&self.calls))
    }

    /// When to close the connection if there is no further call.
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

/// A connection for the gRPC server. It ends after it was idle for too long.
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
                // No byte was read, so the server takes it as the end of the connection.
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
    fn a_caller_has_its_share_and_closed_connections_are_free_again() {
        let connections = Connections::new(CONTROL_PLANE);
        let agent = |name: &str| Peer::Agent(name.into());
        for (peer, other, most) in [
            (agent("a"), (agent("b"), "10.0.0.1:7"), CONTROL_PLANE.agent),
            (Peer::Client, (Peer::Client, "10.0.0.2:7"), CONTROL_PLANE.host),
            (Peer::Anonymous, (Peer::Client, "10.0.0.1:7"), CONTROL_PLANE.host),
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
