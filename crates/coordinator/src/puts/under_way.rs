//! The stripes that clients are sending, and what their puts have taught.

use super::late_plans::LateBlocks;
use crate::{in_flight::Moving, supervise::handle::PlanHandle};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::task::JoinHandle;
use weft_control::{
    put::{Ahead, SentStripe},
    run::Report,
};
use weft_proto::v1;
use weft_types::{Error, NodeId, PlanId, Result, StripeId, UploadId};

/// A stripe of a put, by its number.
pub(super) type Key = (UploadId, u64);

/// The stripes that clients are sending.
#[derive(Default)]
pub(crate) struct Puts {
    stripes: Mutex<BTreeMap<Key, Underway>>,
    /// One lock for each stripe that is being begun or ended.
    turns: Mutex<BTreeMap<Key, Arc<tokio::sync::Mutex<()>>>>,
    /// What puts that are under way have taught.
    pub(super) learnt: Mutex<BTreeMap<UploadId, Learnt>>,
    /// The plans that go on although their stripes have ended.
    pub(crate) late_blocks: LateBlocks,
    /// What is allocated of puts that are under way, and not opened.
    ahead: Mutex<BTreeMap<UploadId, Ahead>>,
    /// Those that have begun, and of which no stripe has been planned yet.
    pub(super) announced: Mutex<BTreeMap<UploadId, Moving>>,
    /// Stripes are placed one after another: each sees what those before it will move.
    pub(super) placing: Mutex<()>,
}

/// What a put has taught for its next stripes.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Learnt {
    /// How often a plan of it was ended because a node held it up.
    pub(super) held_up: u32,
    /// Some node has too little memory for any but the simplest scheme.
    pub(super) simplest: bool,
    /// What there is to say of where its blocks go has been said.
    pub(super) is_warned: bool,
}

/// Of the calls that begin or end a stripe, one at a time has the turn: they may come twice, and late.
pub(super) struct Turn<'a> {
    puts: &'a Puts,
    key: Key,
    held: Option<tokio::sync::OwnedMutexGuard<()>>,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut turns = self.puts.turns.lock().unwrap_or_else(PoisonError::into_inner);
        self.held = None;
        if turns.get(&self.key).is_some_and(|turn| Arc::strong_count(turn) == 1) {
            turns.remove(&self.key);
        }
    }
}

/// A stripe that is under way.
pub(super) enum Underway {
    Sending(Sending),
    /// Its blocks are being looked at.
    Ending,
}

/// A stripe that a client is sending.
pub(super) struct Sending {
    pub(super) plan: PlanId,
    pub(super) sent: Box<SentStripe>,
    pub(super) handle: Arc<PlanHandle>,
    pub(super) report: JoinHandle<Report>,
    /// How far from the writer each of its stages is, by node, lane and stage.
    pub(super) levels: BTreeMap<(NodeId, u32, u32), u32>,
    /// The plan whose end was answered with this one, and the answer: it may have been lost.
    pub(super) answer: Option<Box<(PlanId, v1::EndStripeReply)>>,
}

/// What is known of a plan that is to be ended.
pub(super) enum Known {
    /// It is under way: end it.
    Now(Sending),
    /// It has ended, and this was to be sent again.
    Again(Box<v1::EndStripeReply>),
    Nothing,
}

impl Puts {
    /// Whether something of a put is under way right now.
    pub(crate) fn is_active(&self, upload: UploadId) -> bool {
        let active = |underway: &Underway| match underway {
            Underway::Sending(sending) => !sending.report.is_finished(),
            Underway::Ending => true,
        };
        self.is_turning(upload)
            || self.late_blocks.has_put(upload)
            || self.lock().range((upload, 0)..=(upload, u64::MAX)).any(|(_, underway)| active(underway))
    }

    /// Whether a plan is over; its handle, if it is not.
    pub(super) fn is_over(&self, key: Key, plan: PlanId) -> (bool, Option<Arc<PlanHandle>>) {
        match self.lock().get(&key) {
            Some(Underway::Sending(sending)) if sending.plan == plan => {
                (sending.report.is_finished(), Some(Arc::clone(&sending.handle)))
            }
            Some(Underway::Sending(_) | Underway::Ending) => (false, None),
            // It went down with an earlier coordinator.
            None => (true, None),
        }
    }

    /// Whether a stripe of a put is being begun or ended right now.
    pub(super) fn is_turning(&self, upload: UploadId) -> bool {
        let turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        turns.range((upload, 0)..=(upload, u64::MAX)).next().is_some()
    }

    /// Waits until no other call begins or ends the stripe.
    pub(super) async fn turn(&self, key: Key) -> Turn<'_> {
        let turn = {
            let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(turns.entry(key).or_default())
        };
        Turn { puts: self, key, held: Some(turn.lock_owned().await) }
    }

    /// Takes the stripe that `plan` sent, to end it.
    pub(super) fn begin_end(&self, key: Key, plan: PlanId) -> Result<Known> {
        let mut stripes = self.lock();
        let known = match stripes.remove(&key) {
            None => return Ok(Known::Nothing),
            Some(Underway::Sending(sending)) if sending.plan == plan => {
                stripes.insert(key, Underway::Ending);
                return Ok(Known::Now(sending));
            }
            Some(known) => known,
        };
        let again = match &known {
            Underway::Sending(Sending { answer: Some(answer), .. }) if answer.0 == plan => {
                Ok(Known::Again(Box::new(answer.1.clone())))
            }
            _ => Err(Error::replan(format!("stripe {} is sent by another plan than {plan} by now", key.1))),
        };
        stripes.insert(key, known);
        again
    }

    /// What a put was expected to move, until it is known better.
    pub(super) fn take_announced(&self, upload: UploadId) -> Option<Moving> {
        self.announced.lock().unwrap_or_else(PoisonError::into_inner).remove(&upload)
    }

    /// Looks at what is allocated of a put, or changes that.
    pub(super) fn ahead<T>(&self, upload: UploadId, act: impl FnOnce(&mut Ahead) -> T) -> T {
        let mut ahead = self.ahead.lock().unwrap_or_else(PoisonError::into_inner);
        // The size of a put that began under an earlier coordinator is not known.
        act(ahead.entry(upload).or_insert_with(|| Ahead::new(None)))
    }

    /// A put has begun, with these stripes.
    pub(super) fn begun(&self, upload: UploadId, ahead: Ahead) {
        self.ahead.lock().unwrap_or_else(PoisonError::into_inner).insert(upload, ahead);
    }

    /// Takes out the stripes of a put that were never opened, to give them up: from now on none of them is opened.
    pub(crate) fn take_unopened(&self, upload: UploadId) -> Vec<StripeId> {
        let ahead = self.ahead.lock().unwrap_or_else(PoisonError::into_inner).remove(&upload);
        ahead.map(|mut ahead| ahead.take_all()).unwrap_or_default()
    }

    pub(super) fn learnt(&self, upload: UploadId) -> Learnt {
        self.learnt.lock().unwrap_or_else(PoisonError::into_inner).get(&upload).copied().unwrap_or_default()
    }

    /// Stops whatever of a put is under way, without waiting for it.
    pub(crate) fn forget(&self, upload: UploadId) {
        drop(self.take_announced(upload));
        // If they were not given up, they become garbage with their put.
        self.take_unopened(upload);
        self.learnt.lock().unwrap_or_else(PoisonError::into_inner).remove(&upload);
        let mut stripes = self.lock();
        let keys: Vec<_> = stripes.range((upload, 0)..=(upload, u64::MAX)).map(|(key, _)| *key).collect();
        for key in keys {
            if let Some(Underway::Sending(sending)) = stripes.remove(&key) {
                sending.handle.client_done(Duration::ZERO);
            }
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, BTreeMap<Key, Underway>> {
        self.stripes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
