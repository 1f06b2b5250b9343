//! A pool of data connections, kept for the next link to the same peer.

use crate::{
    frame::{FrameError, FrameStream, Hello},
    net::Net,
    security::{Peer, Security},
};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::time::Instant;
use weft_types::{Error, Result};

/// Dials peers, and keeps connections that ended cleanly.
pub struct Pool {
    net: Arc<dyn Net>,
    security: Security,
    limits: PoolLimits,
    idle: Mutex<BTreeMap<Key, Vec<Idle>>>,
}

/// Limits of a pool.
#[derive(Debug, Clone)]
pub struct PoolLimits {
    /// Idle connections to one peer.
    pub idle_per_peer_max: usize,
    /// Idle connections to all peers together.
    pub idle_max: usize,
    /// Idle connections older than this are closed. The accepting end keeps them longer.
    pub idle_age_max: Duration,
    /// How long the answer to a Hello may take.
    pub answer_timeout: Duration,
}

type Key = (String, Peer);

struct Idle {
    frames: FrameStream,
    since: Instant,
}

impl Default for PoolLimits {
    fn default() -> Self {
        Self {
            idle_per_peer_max: 8,
            idle_max: 256,
            idle_age_max: Duration::from_secs(60),
            answer_timeout: Duration::from_secs(10),
        }
    }
}

impl Pool {
    /// An empty pool.
    pub fn new(net: Arc<dyn Net>, security: Security, limits: PoolLimits) -> Self {
        Self { net, security, limits, idle: Mutex::default() }
    }

    /// A connection to `expected` at `address` on which `hello` was accepted. Tries a kept connection first and dials a
    /// new one if that is dead.
    pub async fn open(&self, address: &str, expected: &Peer, hello: &Hello) -> Result<FrameStream> {
        let place = |error: Error| Error { message: format!("{expected} at {address}: {}", error.message), ..error };
        while let Some(mut frames) = self.take(address, expected).await {
            match self.greet(&mut frames, hello).await {
                Ok(()) => return Ok(frames),
                // The peer closed the kept connection before it answered.
                Err(FrameError::Closed | FrameError::Truncated | FrameError::Io(_)) => {}
                Err(error) => return Err(place(error.into())),
            }
        }
        let mut frames = FrameStream::new(self.security.dial(self.net.as_ref(), address, expected).await?);
        self.greet(&mut frames, hello).await.map_err(|error| place(error.into()))?;
        Ok(frames)
    }

    /// Returns a connection on which a link has ended cleanly.
    pub fn put_back(&self, address: &str, peer: &Peer, frames: FrameStream) {
        let now = Instant::now();
        let mut idle = self.lock();
        self.drop_old(&mut idle, now);
        let total: usize = idle.values().map(Vec::len).sum();
        let of_peer = idle.entry((address.to_string(), peer.clone())).or_default();
        if total < self.limits.idle_max && of_peer.len() < self.limits.idle_per_peer_max {
            of_peer.push(Idle { frames, since: now });
        }
    }

    /// The number of idle connections.
    pub fn idle_count(&self) -> usize {
        self.lock().values().map(Vec::len).sum()
    }

    async fn greet(&self, frames: &mut FrameStream, hello: &Hello) -> Result<(), FrameError> {
        frames.set_stall(self.limits.answer_timeout);
        frames.send_hello(hello).await?;
        frames.read_hello_ack(hello.link).await
    }

    /// The most recently used live connection to this peer.
    async fn take(&self, address: &str, peer: &Peer) -> Option<FrameStream> {
        let key = (address.to_string(), peer.clone());
        loop {
            let mut frames = {
                let mut idle = self.lock();
                self.drop_old(&mut idle, Instant::now());
                idle.get_mut(&key)?.pop()?.frames
            };
            if !frames.is_stale().await {
                return Some(frames);
            }
        }
    }

    fn drop_old(&self, idle: &mut BTreeMap<Key, Vec<Idle>>, now: Instant) {
        idle.retain(|_, connections| {
            connections.retain(|connection| now.duration_since(connection.since) <= self.limits.idle_age_max);
            !connections.is_empty()
        });
    }

    /// A poisoned lock is safe to use: each change to the map is one call.
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Key, Vec<Idle>>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
