//! Bounds the memory that the calls of a control plane take, over all connections, and the time in which a message must arrive.
//!
//! Nothing waits for memory: a call beyond the budget is refused, and its caller repeats it later. So calls cannot block each other.

use crate::{log_rate::LogRate, net::host, rpc::MESSAGE_BYTES_MAX, security::Peer, status::to_status};
use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use std::{
    collections::BTreeMap,
    future::Future,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll},
    time::Duration,
};
use tokio::time::Sleep;
use tonic::Status;
use weft_types::{Error, Result};

/// The most bytes of one caller's calls: four of the largest messages, or thousands of usual ones.
const CALLER_BYTES_MAX: u64 = 4 * MESSAGE_BYTES_MAX as u64;
/// The most bytes of all calls: as much as an agent's tasks use (`limits.memory_budget`).
const ALL_BYTES_MAX: u64 = 4 * CALLER_BYTES_MAX;
/// The most bytes of the calls of all clients. The rest is for agents, whose heartbeats must not wait, and for the coordinator.
const CLIENTS_BYTES_MAX: u64 = ALL_BYTES_MAX - CALLER_BYTES_MAX;
/// What a call takes besides its headers and message.
const CALL_BYTES: u64 = 4 << 10;
/// How long a message may take to arrive. The largest one arrives in time at 3 Mbit/s, a usual one at any speed.
const ARRIVAL_TIME_MAX: Duration = Duration::from_secs(60);

/// A caller. An agent is identified by its name, whatever its address; other callers by their name and host.
pub(crate) type Identity = (Peer, String);

/// Who makes a call or a connection from an address.
pub(crate) fn identity(peer: &Peer, address: &str) -> Identity {
    let host = if matches!(peer, Peer::Agent(_)) { String::new() } else { host(address) };
    (peer.clone(), host)
}

/// The bytes of all calls of a control plane.
#[derive(Clone, Default)]
pub(crate) struct Budget {
    used: Arc<Mutex<Used>>,
    refused: Arc<LogRate>,
}

#[derive(Default)]
struct Used {
    all: u64,
    clients: u64,
    callers: BTreeMap<Identity, u64>,
}

/// The bytes of one call, until it is dropped.
pub(crate) struct Charge {
    budget: Budget,
    identity: Identity,
    bytes: AtomicU64,
}

impl Budget {
    /// Counts a new call. Refuses it if there is no room for it.
    pub(crate) fn call(&self, identity: Identity, headers: &http::HeaderMap) -> Result<Arc<Charge>> {
        let headers: usize = headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum();
        let charge = Charge { budget: self.clone(), identity, bytes: AtomicU64::new(0) };
        charge.add(CALL_BYTES.saturating_add(headers as u64))?;
        Ok(Arc::new(charge))
    }

    /// A poisoned lock is safe to use: no code panics while the counts change.
    fn lock(&self) -> MutexGuard<'_, Used> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Used {
    fn add(&mut self, identity: &Identity, is_client: bool, bytes: u64) -> Result<()> {
        let caller = self.callers.get(identity).copied().unwrap_or(0).saturating_add(bytes);
        let all = self.all.saturating_add(bytes);
        let clients = self.clients.saturating_add(if is_client { bytes } else { 0 });
        if caller > CALLER_BYTES_MAX {
            return Err(Error::retry("busy: the calls of this host or agent take too much memory"));
        }
        if all > ALL_BYTES_MAX || clients > CLIENTS_BYTES_MAX {
            return Err(Error::retry("busy: all calls together take too much memory"));
        }
        self.callers.insert(identity.clone(), caller);
        (self.all, self.clients) = (all, clients);
        Ok(())
    }
}

impl Charge {
    fn add(&self, bytes: u64) -> Result<()> {
        let is_client = self.is_client();
        let added = self.budget.lock().add(&self.identity, is_client, bytes);
        added.inspect_err(|error| {
            if let Some(left_out) = self.budget.refused.admit() {
                let (peer, host) = &self.identity;
                tracing::warn!(%peer, %host, %error, left_out, "refused a call");
            }
        })?;
        self.bytes.fetch_add(bytes, Relaxed);
        Ok(())
    }

    fn is_client(&self) -> bool {
        matches!(self.identity.0, Peer::Client | Peer::Anonymous)
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        let bytes = *self.bytes.get_mut();
        let is_client = self.is_client();
        let mut used = self.budget.lock();
        used.all -= bytes;
        used.clients -= if is_client { bytes } else { 0 };
        match used.callers.get_mut(&self.identity) {
            Some(caller) if *caller > bytes => *caller -= bytes,
            _ => drop(used.callers.remove(&self.identity)),
        }
    }
}

/// A message that arrives. It is counted byte by byte, because callers announce its length but need not send it.
pub(crate) struct Arriving<B> {
    body: B,
    charge: Arc<Charge>,
    /// Set when the message is waited for.
    late: Option<Pin<Box<Sleep>>>,
}

impl<B> Arriving<B> {
    pub(crate) fn new(body: B, charge: Arc<Charge>) -> Self {
        Self { body, charge, late: None }
    }
}

impl<B: Body<Data = Bytes, Error = Status> + Unpin> Body for Arriving<B> {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) else {
            let late = self.late.get_or_insert_with(|| Box::pin(tokio::time::sleep(ARRIVAL_TIME_MAX)));
            let refusal = || to_status(&Error::retry(format!("the call's message did not arrive within {ARRIVAL_TIME_MAX:?}")));
            return late.as_mut().poll(cx).map(|()| Some(Err(refusal())));
        };
        if let Some(Ok(frame)) = &frame
            && let Some(data) = frame.data_ref()
            && let Err(error) = self.charge.add(data.len() as u64)
        {
            return Poll::Ready(Some(Err(to_status(&error))));
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_types::Reaction;

    #[test]
    fn a_host_has_its_share_and_all_clients_leave_room_for_agents() {
        let budget = Budget::default();
        let call = |(peer, address): (Peer, &str)| budget.call(identity(&peer, address), &http::HeaderMap::new());
        let fill = |charge: &Charge| charge.add(CALLER_BYTES_MAX - CALL_BYTES).unwrap();
        let refusal = |caller: (Peer, &str)| call(caller).err().unwrap();
        let agent = |name: &str| (Peer::Agent(name.into()), "10.0.0.1:1");
        let mut hosts = Vec::new();
        for address in ["10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1"] {
            let charge = call((Peer::Client, address)).unwrap();
            fill(&charge);
            let refused = refusal((Peer::Client, &address.replace(":1", ":2")));
            assert!(refused.reaction == Reaction::Retry && refused.message.contains("this host"), "{refused}");
            hosts.push(charge);
        }
        let refused = refusal((Peer::Client, "10.0.0.4:1"));
        assert!(refused.reaction == Reaction::Retry && refused.message.contains("all calls"), "{refused}");
        let one = call(agent("one")).unwrap();
        let other = call(agent("other")).unwrap();
        other.add(CALLER_BYTES_MAX - 2 * CALL_BYTES).unwrap();
        assert!(refusal(agent("third")).message.contains("all calls"));
        hosts.pop();
        let fourth = call((Peer::Client, "10.0.0.4:1")).unwrap();
        assert!(call(agent("third")).is_ok());
        drop((hosts, fourth, one, other));
        let used = budget.lock();
        assert_eq!((used.all, used.clients, used.callers.len()), (0, 0, 0));
    }
}
