//! Leases: the right to update a stripe, and where its blocks are. Each stripe has a session of its own, which counts the ids of its updates.

use super::{Writer, patience::UnderWay};
use crate::fetch::StripePlace;
use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex as StdMutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::{sync::Mutex, time::Instant};
use weft_proto::{
    LinkToken, decode_sealed,
    updates::Route,
    v1::{OpenForUpdatesReply, OpenForUpdatesRequest, UpdateRoute, UpdateSession},
};
use weft_types::{BlockId, ByteSize, Error, Result, human_bytes};
use weft_update::{Session, UpdateId};

/// A stripe, and its current lease.
pub(crate) struct Slot {
    pub(crate) stripe: Arc<StripePlace>,
    /// The number of the append that writes to it; 0: none does.
    append: u64,
    lease: Mutex<Option<Arc<Lease>>>,
}

/// The right to update a stripe in one term.
pub(crate) struct Lease {
    pub(crate) term: u64,
    pub(crate) session: Session,
    ends: Instant,
    /// No new id is given from then on: each must be able to be requested again until its update's deadline.
    last_id: Instant,
    /// Counts the session's ids.
    counter: Arc<AtomicU64>,
    /// By index, without copies.
    homes: BTreeMap<u8, Home>,
    /// By the index of the data block whose node leads the updates: the way of their deltas, and for which lengths it is.
    routes: BTreeMap<u8, (Route, u64)>,
    /// The most bytes of an update that its nodes take, and why not more; 0: no bound is known.
    update_bytes_max: (u64, String),
    /// The updates that are not answered.
    pub(crate) under_way: Arc<UnderWay>,
    /// When an update under this lease was committed last.
    heard: StdMutex<Instant>,
}

/// A data block, and the agent that leads its updates.
#[derive(Debug, Clone)]
pub(crate) struct Home {
    pub(crate) block: BlockId,
    pub(crate) name: String,
    pub(crate) address: String,
    /// None: the agent is not up.
    pub(crate) token: Option<LinkToken>,
}

/// A lease that does not serve any more, and the term in which updates do not end (0: none).
pub(crate) type Failed = (Arc<Lease>, u64);

/// An id is not requested in the last moments of its session: the agents have clocks of their own.
const SESSION_MARGIN: Duration = Duration::from_secs(1);

impl Slot {
    /// `append`: the number of the append that writes to the stripe, and reaches its end; 0: none does.
    pub(crate) fn new(stripe: Arc<StripePlace>, append: u64) -> Self {
        Self { stripe, append, lease: Mutex::default() }
    }

    /// A lease for an update of the session, or for a new update; never `failed`. Its session may be another one if that one has ended.
    pub(crate) async fn lease(&self, writer: &Writer, session: Option<Session>, failed: Option<&Failed>) -> Result<Arc<Lease>> {
        let mut slot = self.lease.lock().await;
        let now = Instant::now();
        let is_wanted = |lease: &Arc<Lease>| match session {
            Some(session) => lease.session == session,
            None => lease.takes_new(now),
        };
        if let Some(lease) = slot.as_ref().filter(|lease| is_wanted(lease))
            && failed.is_none_or(|(failed, _)| !Arc::ptr_eq(failed, lease))
        {
            return Ok(lease.clone());
        }
        let kept = session.or_else(|| slot.as_ref().filter(|lease| lease.takes_new(now)).map(|lease| lease.session));
        let failed_term = failed.map_or(0, |(_, term)| *term);
        let reply = self.open(writer, kept, failed_term).await?;
        let mut lease = Lease::new(&self.stripe, reply, now, writer.deadline)?;
        let gives_ids = lease.follow(slot.as_deref(), kept, now);
        let lease = Arc::new(lease);
        if gives_ids {
            *slot = Some(lease.clone());
        }
        Ok(lease)
    }

    async fn open(&self, writer: &Writer, session: Option<Session>, failed_term: u64) -> Result<OpenForUpdatesReply> {
        let request = OpenForUpdatesRequest {
            bucket: self.stripe.bucket.clone(),
            key: self.stripe.key.clone(),
            version: self.stripe.version,
            number: self.stripe.number,
            session: session.map(|Session { number, ends_at_ms }| UpdateSession { number, ends_at_ms }),
            failed_term,
            way: Some(writer.way.clone()),
            append: self.append,
            reaches: if self.append == 0 { 0 } else { self.stripe.layout.data_len },
        };
        writer.shared.calls.ask(request, |mut client, request| async move { client.open_for_updates(request).await }).await
    }
}

impl Lease {
    /// `asked`: when the coordinator was asked for it.
    fn new(stripe: &StripePlace, reply: OpenForUpdatesReply, asked: Instant, deadline: Duration) -> Result<Self> {
        let invalid = |what: &str| Error::fatal(format!("the coordinator opened a stripe for updates with {what}"));
        let UpdateSession { number, ends_at_ms } = reply.session.ok_or_else(|| invalid("no session"))?;
        let open = reply.stripe.ok_or_else(|| invalid("no blocks"))?;
        let term = decode_sealed(&open.sealed)?.term;
        let mut tokens = BTreeMap::new();
        for token in &reply.tokens {
            tokens.insert(token.index, LinkToken::from_slice(&token.token)?);
        }
        let (mut homes, mut routes) = (BTreeMap::new(), BTreeMap::new());
        for member in open.members {
            let block: BlockId = postcard::from_bytes(&member.block).map_err(|_| invalid("an invalid block"))?;
            if block.stripe != stripe.id {
                return Err(invalid("a block of another stripe"));
            }
            if block.copy == 0 {
                let token = tokens.get(&u32::from(block.index)).copied();
                homes.insert(block.index, Home { block, name: member.name, address: member.address, token });
            }
        }
        for UpdateRoute { index, route, from_bytes, .. } in &reply.routes {
            // Updates need no route: one that is not understood is not taken.
            if let (Ok(index), Ok(route)) = (u8::try_from(*index), postcard::from_bytes::<Route>(route)) {
                routes.insert(index, (route, *from_bytes));
            }
        }
        let lasts = Duration::from_millis(reply.lasts_ms);
        // However long the deadline is, a new session must take new updates.
        let reserved = (deadline + SESSION_MARGIN).min(lasts / 2);
        let (session, counter) = (Session { number, ends_at_ms }, Arc::default());
        Ok(Self {
            term,
            session,
            ends: asked + lasts,
            last_id: asked + (lasts - reserved),
            counter,
            homes,
            routes,
            update_bytes_max: (reply.update_bytes_max, reply.update_bytes_why),
            under_way: Arc::default(),
            heard: StdMutex::new(asked),
        })
    }

    /// Takes over what is known of its session: ids are counted once, updates under way stay counted, and the end does not move. `current`: the
    /// stripe's lease until now; `asked`: the session that the coordinator was asked to keep. Returns whether new updates may get ids: not of an earlier session, whose count is not known
    /// any more.
    fn follow(&mut self, current: Option<&Self>, asked: Option<Session>, now: Instant) -> bool {
        if let Some(before) = current.filter(|before| before.session == self.session) {
            self.counter = before.counter.clone();
            // Updates that were requested before travel on.
            self.under_way = before.under_way.clone();
            (self.ends, self.last_id) = (self.ends.min(before.ends), self.last_id.min(before.last_id));
            return true;
        }
        let is_new = asked != Some(self.session);
        if !is_new {
            self.last_id = now;
        }
        is_new
    }

    /// Whether new updates may get ids of its session.
    fn takes_new(&self, now: Instant) -> bool {
        now < self.last_id
    }

    /// Whether ids of its session may be requested.
    pub(crate) fn lasts(&self) -> bool {
        Instant::now() + SESSION_MARGIN < self.ends
    }

    /// An id for an update whose lowest data block is `lead`.
    pub(crate) fn new_id(&self, lead: u8) -> UpdateId {
        UpdateId { session: self.session, counter: self.counter.fetch_add(1, Relaxed) + 1, lead }
    }

    /// The home of a block; `None`: it is lost, and is being rebuilt.
    pub(crate) fn home(&self, index: u8) -> Option<&Home> {
        self.homes.get(&index)
    }

    /// The way of the deltas of an update of so many bytes that this block's node leads; `None`: straight to each node.
    pub(crate) fn route(&self, lead: BlockId, bytes: u64) -> Option<Route> {
        let (route, from_bytes) = self.routes.get(&lead.index)?;
        (bytes >= *from_bytes && route.check(lead).is_ok()).then(|| route.clone())
    }

    /// Fails if its nodes do not take an update of so many bytes.
    pub(crate) fn check_len(&self, bytes: u64) -> Result<()> {
        match &self.update_bytes_max {
            (most, why) if (1..bytes).contains(most) => Err(Error::invalid(format!(
                "{} cannot be written atomically here: {why}; write with --atomic {} or less",
                human_bytes(bytes),
                ByteSize(*most)
            ))),
            _ => Ok(()),
        }
    }

    /// An update was committed.
    pub(crate) fn note_committed(&self) {
        *self.heard.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// When an update under this lease was committed last, or else when it was given.
    pub(crate) fn heard(&self) -> Instant {
        *self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(number: u64) -> Lease {
        let now = Instant::now();
        let session = Session { number, ends_at_ms: 9 };
        let ends = now + Duration::from_secs(9);
        let (counter, homes, routes, under_way) = (Arc::default(), BTreeMap::new(), BTreeMap::new(), Arc::default());
        let (update_bytes_max, heard) = ((0, String::new()), StdMutex::new(now));
        Lease { term: 1, session, ends, last_id: ends, counter, homes, routes, update_bytes_max, under_way, heard }
    }

    #[tokio::test]
    async fn an_id_is_given_once_whichever_session_the_coordinator_returns() {
        let (now, first) = (Instant::now(), lease(1));
        assert_eq!([first.new_id(0).counter, first.new_id(0).counter], [1, 2]);

        let mut again = lease(1);
        assert!(again.follow(Some(&first), Some(first.session), now), "the same session goes on");
        assert_eq!(again.new_id(0).counter, 3);
        assert!(Arc::ptr_eq(&again.under_way, &first.under_way), "its updates that are under way are counted on");

        let mut second = lease(2);
        assert!(second.follow(Some(&again), Some(again.session), now), "a new session replaces one that has ended");
        assert_eq!(second.new_id(0).counter, 1);
        assert!(!Arc::ptr_eq(&second.under_way, &again.under_way));

        // An update of the first session is requested again after that.
        let mut late = lease(1);
        assert!(!late.follow(Some(&second), Some(first.session), now));
        assert!(!late.takes_new(now), "it would give the ids of the first session again");
        let mut fresh = lease(3);
        assert!(fresh.follow(None, None, now) && fresh.takes_new(now));
    }
}
