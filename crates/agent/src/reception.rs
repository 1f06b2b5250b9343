//! Accepts data connections: checks which peer may connect for which link, and parks connections that arrive early.

use std::{
    collections::{BTreeMap, VecDeque},
    io::ErrorKind,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::{
    sync::{Semaphore, oneshot, watch},
    task::JoinSet,
    time::timeout,
};
use weft_proto::{Accepted, Direction, FrameError, FrameStream, Hello, Incoming, LinkKey, LinkRights, Peer, frame::PEER_TIMEOUT};
use weft_types::{ClusterId, Error, PlanId, Reaction, Result};

use crate::Limits;

/// The expected links, and the connections that wait for theirs.
pub(crate) struct Reception {
    expected: Mutex<BTreeMap<(PlanId, u32), Expected>>,
    /// Plans that failed here, and why, the latest last. A peer that connects for one of them learns the cause instead
    /// of waiting.
    failed: Mutex<VecDeque<(PlanId, Error)>>,
    /// Counts plans that were opened or failed, so that parked connections check again.
    opened: watch::Sender<u64>,
    connections: Arc<Semaphore>,
    parked: Semaphore,
    parked_for: Duration,
}

/// Which peer may connect for a link.
pub(crate) struct Expected {
    pub(crate) rights: LinkRights,
    pub(crate) key: LinkKey,
    pub(crate) direction: Direction,
    pub(crate) peer: Peer,
    pub(crate) arrived: oneshot::Sender<Arrival>,
}

/// A connection that was admitted for its link.
pub(crate) struct Arrival {
    pub(crate) frames: FrameStream,
    /// Takes the connection back after its link has ended cleanly.
    pub(crate) home: oneshot::Sender<FrameStream>,
}

/// The expected connections of one plan. Dropping it withdraws them.
pub(crate) struct Guests {
    reception: Arc<Reception>,
    plan: PlanId,
    links: Vec<u32>,
}

/// The number of failed plans that are remembered.
const FAILED_PLANS_MAX: usize = 256;
/// A connection without a Hello is closed after this time.
const FIRST_HELLO_TIMEOUT: Duration = PEER_TIMEOUT;
/// A connection that has carried a link is closed after this idle time. It is longer than dialling peers keep idle
/// connections.
const NEXT_HELLO_TIMEOUT: Duration = Duration::from_secs(120);

impl Reception {
    pub(crate) fn new(limits: &Limits) -> Arc<Self> {
        // Between two links a connection is idle and belongs to no task, so there is room for as many again.
        let connections = (limits.connections_max as usize).saturating_mul(2).min(Semaphore::MAX_PERMITS);
        Arc::new(Self {
            expected: Mutex::default(),
            failed: Mutex::default(),
            opened: watch::Sender::new(0),
            connections: Arc::new(Semaphore::new(connections)),
            parked: Semaphore::new(limits.parked_connections_max as usize),
            parked_for: Duration::from_millis(limits.parked_ms),
        })
    }

    /// Registers the connections that a plan expects. If the plan was opened before and failed, that failure is
    /// forgotten.
    pub(crate) fn expect(self: &Arc<Self>, plan: PlanId, guests: Vec<(u32, Expected)>) -> Guests {
        self.lock_failed().retain(|(failed, _)| *failed != plan);
        let links = guests.iter().map(|(link, _)| *link).collect();
        self.lock().extend(guests.into_iter().map(|(link, expected)| ((plan, link), expected)));
        self.opened.send_modify(|count| *count += 1);
        Guests { reception: Arc::clone(self), plan, links }
    }

    /// Records the failure of a plan; peers that connect for its links learn the cause.
    pub(crate) fn fail(&self, plan: PlanId, cause: Error) {
        let mut failed = self.lock_failed();
        if failed.len() >= FAILED_PLANS_MAX {
            failed.pop_front();
        }
        failed.push_back((plan, cause));
        drop(failed);
        self.opened.send_modify(|count| *count += 1);
    }

    fn failure(&self, plan: PlanId) -> Option<Error> {
        let failed = self.lock_failed();
        failed.iter().rev().find(|(failed, _)| *failed == plan).map(|(_, cause)| cause.clone())
    }

    /// Accepts connections until the listener ends. `cluster` may be unknown at first.
    pub(crate) async fn serve(self: Arc<Self>, mut incoming: Incoming, cluster: watch::Receiver<Option<ClusterId>>) {
        let mut attended = JoinSet::new();
        loop {
            let accepted = tokio::select! {
                biased;
                Some(_) = attended.join_next(), if !attended.is_empty() => continue,
                accepted = incoming.next() => accepted,
            };
            let Some(accepted) = accepted else { return };
            let Ok(permit) = Arc::clone(&self.connections).try_acquire_owned() else {
                tracing::warn!(address = %accepted.address, "refused a data connection: too many are open");
                continue;
            };
            let (reception, cluster) = (Arc::clone(&self), cluster.clone());
            attended.spawn(async move {
                let address = accepted.address.clone();
                if let Err(error) = reception.attend(accepted, cluster).await {
                    tracing::warn!(%address, %error, "closed a data connection after an error");
                }
                drop(permit);
            });
        }
    }

    /// Serves one connection, link after link.
    async fn attend(&self, accepted: Accepted, cluster: watch::Receiver<Option<ClusterId>>) -> Result<(), FrameError> {
        let mut frames = FrameStream::new(accepted.stream);
        let mut patience = FIRST_HELLO_TIMEOUT;
        loop {
            let hello = match timeout(patience, frames.read_hello()).await {
                Ok(Ok(hello)) => hello,
                // Between two links, a peer closes a connection that it no longer needs.
                Ok(Err(FrameError::Closed)) => return Ok(()),
                // A client process that exits does not send TLS's close_notify. No transfer was running.
                Ok(Err(FrameError::Io(error))) if patience == NEXT_HELLO_TIMEOUT && error.kind() == ErrorKind::UnexpectedEof => {
                    return Ok(());
                }
                Ok(Err(error)) => return Err(error),
                Err(_) if patience == NEXT_HELLO_TIMEOUT => return Ok(()),
                Err(_) => return Err(FrameError::Stalled(patience)),
            };
            let known = *cluster.borrow();
            let arrived = match self.admit(&hello, &accepted.peer, known).await {
                Ok(arrived) => arrived,
                Err(error) => {
                    frames.refuse_hello(hello.link, &error).await?;
                    return Err(FrameError::Unexpected(format!("refused: {error}")));
                }
            };
            frames.accept_hello(&hello).await?;
            let (home, returned) = oneshot::channel();
            if arrived.send(Arrival { frames, home }).is_err() {
                return Ok(());
            }
            // The receiver is dropped when the link fails.
            let Ok(back) = returned.await else { return Ok(()) };
            frames = back;
            frames.set_stall(PEER_TIMEOUT);
            patience = NEXT_HELLO_TIMEOUT;
        }
    }

    /// The receiver for a connection with this Hello. Waits, bounded, for a plan that is not open yet.
    async fn admit(&self, hello: &Hello, peer: &Peer, cluster: Option<ClusterId>) -> Result<oneshot::Sender<Arrival>> {
        if cluster != Some(hello.cluster) {
            return Err(Error::invalid(format!("this node does not belong to cluster {}", hello.cluster)));
        }
        let mut opened = self.opened.subscribe();
        if let Some(admitted) = self.try_admit(hello, peer) {
            return admitted;
        }
        let unknown = || Error::new(Reaction::Retry, format!("plan {} is not open for link {}", hello.plan, hello.link));
        let Ok(_place) = self.parked.try_acquire() else { return Err(unknown()) };
        let wait = async {
            loop {
                if opened.changed().await.is_err() {
                    return Err(unknown());
                }
                if let Some(admitted) = self.try_admit(hello, peer) {
                    return admitted;
                }
            }
        };
        timeout(self.parked_for, wait).await.unwrap_or_else(|_| Err(unknown()))
    }

    /// `None` if no connection is expected for that link. A successful proof uses the expectation up.
    fn try_admit(&self, hello: &Hello, peer: &Peer) -> Option<Result<oneshot::Sender<Arrival>>> {
        if let Some(cause) = self.failure(hello.plan) {
            return Some(Err(cause));
        }
        let mut expected = self.lock();
        let key = (hello.plan, hello.link);
        let refused = expected.get(&key)?.check(hello, peer).err();
        if let Some(error) = refused {
            return Some(Err(error.link(hello.link, 0)));
        }
        expected.remove(&key).map(|expected| Ok(expected.arrived))
    }

    fn lock_failed(&self) -> MutexGuard<'_, VecDeque<(PlanId, Error)>> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A poisoned lock is safe to use: each change to the map is one call.
    fn lock(&self) -> MutexGuard<'_, BTreeMap<(PlanId, u32), Expected>> {
        self.expected.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Expected {
    fn check(&self, hello: &Hello, peer: &Peer) -> Result<()> {
        let known = match &self.peer {
            Peer::Agent(name) => peer.may_be_agent(name),
            expected => *peer == Peer::Anonymous || peer == expected,
        };
        if !known {
            return Err(Error::invalid(format!("expected {}, but {peer} connected", self.peer)));
        }
        let LinkRights { from, to, .. } = self.rights;
        if (hello.from, hello.to, hello.direction) != (from, to, self.direction) {
            return Err(Error::invalid(format!(
                "the Hello names a link from {} to {}, but the plan's link goes from {from} to {to}",
                hello.from, hello.to
            )));
        }
        self.key.verify(&self.rights, &hello.token)
    }
}

impl Drop for Guests {
    fn drop(&mut self) {
        let mut expected = self.reception.lock();
        for link in &self.links {
            expected.remove(&(self.plan, *link));
        }
    }
}
