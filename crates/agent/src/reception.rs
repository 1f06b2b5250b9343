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
use weft_proto::{
    Accepted, Connections, Direction, FrameError, FrameStream, Held, Hello, Incoming, LinkKey, LinkRights, LogRate, Opening,
    Peer, Shares, frame::PEER_TIMEOUT,
};
use weft_types::{ClusterId, Error, PlanId, Reaction, Result};

use crate::{
    Limits,
    updates::{self, Hub},
};

/// The expected links, and the connections that wait for theirs.
pub(crate) struct Reception {
    expected: Mutex<BTreeMap<(PlanId, u32), Expected>>,
    /// Plans that failed here, the latest last. A peer that connects for a link of one of them learns the cause instead of waiting.
    failed: Mutex<VecDeque<Failed>>,
    /// Counts plans that were opened or failed, so that parked connections check again.
    opened: watch::Sender<u64>,
    connections: Arc<Semaphore>,
    /// Connections that have not yet carried a link, by caller.
    unproved: Connections,
    parked: Semaphore,
    /// Parked connections, by caller.
    parked_by: Connections,
    parked_for: Duration,
    refused: LogRate,
    failures: LogRate,
}

/// An expected connection.
pub(crate) struct Expected {
    pub(crate) guest: Guest,
    pub(crate) arrived: oneshot::Sender<Arrival>,
}

/// Which peer may connect for a link.
pub(crate) struct Guest {
    pub(crate) rights: LinkRights,
    pub(crate) key: LinkKey,
    pub(crate) direction: Direction,
    pub(crate) peer: Peer,
}

/// A plan that failed here.
struct Failed {
    plan: PlanId,
    cause: Error,
    /// The links whose peers had not connected by then.
    guests: BTreeMap<u32, Guest>,
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

/// One caller may have a quarter of all connections before they carry their first link, and half of the parked ones, so that a caller
/// with a valid certificate cannot lock out the others.
const UNPROVED_SHARE: u32 = 4;
const PARKED_SHARE: u32 = 2;
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
        let connections = limits.connections_max.saturating_mul(2);
        let share = |all: u32, of: u32| Connections::new(Shares { agent: all.div_ceil(of), host: all.div_ceil(of) });
        Arc::new(Self {
            expected: Mutex::default(),
            failed: Mutex::default(),
            opened: watch::Sender::new(0),
            connections: Arc::new(Semaphore::new((connections as usize).min(Semaphore::MAX_PERMITS))),
            unproved: share(connections, UNPROVED_SHARE),
            parked: Semaphore::new(limits.parked_connections_max as usize),
            parked_by: share(limits.parked_connections_max, PARKED_SHARE),
            parked_for: Duration::from_millis(limits.parked_ms),
            refused: LogRate::default(),
            failures: LogRate::default(),
        })
    }

    /// Registers the connections that a plan expects. If the plan was opened before and failed, that failure is
    /// forgotten.
    pub(crate) fn expect(self: &Arc<Self>, plan: PlanId, guests: Vec<(u32, Expected)>) -> Guests {
        self.lock_failed().retain(|failed| failed.plan != plan);
        let links = guests.iter().map(|(link, _)| *link).collect();
        self.lock().extend(guests.into_iter().map(|(link, expected)| ((plan, link), expected)));
        self.opened.send_modify(|count| *count += 1);
        Guests { reception: Arc::clone(self), plan, links }
    }

    /// Records the failure of a plan; peers that connect for its links learn the cause.
    pub(crate) fn fail(&self, plan: PlanId, cause: Error) {
        let mut expected = self.lock();
        let links: Vec<u32> = expected.range((plan, 0)..=(plan, u32::MAX)).map(|((_, link), _)| *link).collect();
        let guests = links.into_iter().filter_map(|link| Some((link, expected.remove(&(plan, link))?.guest))).collect();
        drop(expected);
        let mut failed = self.lock_failed();
        if failed.len() >= FAILED_PLANS_MAX {
            failed.pop_front();
        }
        failed.push_back(Failed { plan, cause, guests });
        drop(failed);
        self.opened.send_modify(|count| *count += 1);
    }

    /// The answer to a peer that connects for a link of a failed plan: the cause, if the peer proves that the link is its own.
    fn failure(&self, hello: &Hello, peer: &Peer) -> Option<Error> {
        let failed = self.lock_failed();
        let Failed { cause, guests, .. } = failed.iter().rev().find(|failed| failed.plan == hello.plan)?;
        let checked = guests.get(&hello.link)?.check(hello, peer);
        Some(checked.err().unwrap_or_else(|| cause.clone()))
    }

    /// Accepts connections until the listener ends. The cluster may be unknown at first.
    pub(crate) async fn serve(self: Arc<Self>, mut incoming: Incoming, updates: Arc<Hub>) {
        let mut attended = JoinSet::new();
        loop {
            let accepted = tokio::select! {
                biased;
                Some(_) = attended.join_next(), if !attended.is_empty() => continue,
                accepted = incoming.next() => accepted,
            };
            let Some(accepted) = accepted else { return };
            let Ok(permit) = Arc::clone(&self.connections).try_acquire_owned() else {
                if let Some(left_out) = self.refused.admit() {
                    tracing::warn!(address = %accepted.address, left_out, "refused a data connection: too many are open");
                }
                continue;
            };
            let Some(unproved) = self.unproved.hold(&accepted.peer, &accepted.address) else { continue };
            let (reception, updates) = (Arc::clone(&self), Arc::clone(&updates));
            attended.spawn(async move {
                let address = accepted.address.clone();
                if let Err(error) = reception.attend(accepted, unproved, &updates).await
                    && let Some(left_out) = reception.failures.admit()
                {
                    tracing::warn!(%address, %error, left_out, "closed a data connection after an error");
                }
                drop(permit);
            });
        }
    }

    /// Serves one connection, link after link. It counts as unproved until it carries the first one.
    async fn attend(&self, accepted: Accepted, unproved: Held, updates: &Hub) -> Result<(), FrameError> {
        let mut unproved = Some(unproved);
        let Accepted { stream, peer, address } = accepted;
        let mut frames = FrameStream::new(stream);
        let mut patience = FIRST_HELLO_TIMEOUT;
        loop {
            let hello = match timeout(patience, frames.read_opening()).await {
                Ok(Ok(Opening::Link(hello))) => hello,
                // It carries no link, so it stays within the caller's share of such connections.
                Ok(Ok(Opening::Updates(hello))) => return updates::attend(updates, frames, &hello, &peer).await,
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
            let known = *updates.cluster.borrow();
            let arrived = match self.admit(&hello, &peer, &address, known).await {
                Ok(arrived) => arrived,
                Err(error) => {
                    frames.refuse_hello(hello.link, &error).await?;
                    return Err(FrameError::Unexpected(format!("refused: {error}")));
                }
            };
            unproved.take();
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
    async fn admit(
        &self,
        hello: &Hello,
        peer: &Peer,
        address: &str,
        cluster: Option<ClusterId>,
    ) -> Result<oneshot::Sender<Arrival>> {
        if cluster != Some(hello.cluster) {
            return Err(Error::invalid(format!("this node does not belong to cluster {}", hello.cluster)));
        }
        let mut opened = self.opened.subscribe();
        if let Some(admitted) = self.try_admit(hello, peer) {
            return admitted;
        }
        let unknown = || Error::new(Reaction::Retry, format!("plan {} is not open for link {}", hello.plan, hello.link));
        let Some(_share) = self.parked_by.hold(peer, address) else { return Err(unknown()) };
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
        let mut expected = self.lock();
        let key = (hello.plan, hello.link);
        let Some(of_link) = expected.get(&key) else {
            drop(expected);
            return self.failure(hello, peer).map(Err);
        };
        if let Err(error) = of_link.guest.check(hello, peer) {
            return Some(Err(error.link(hello.link, 0)));
        }
        expected.remove(&key).map(|expected| Ok(expected.arrived))
    }

    fn lock_failed(&self) -> MutexGuard<'_, VecDeque<Failed>> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A poisoned lock is safe to use: each change to the map is one call.
    fn lock(&self) -> MutexGuard<'_, BTreeMap<(PlanId, u32), Expected>> {
        self.expected.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Guest {
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
