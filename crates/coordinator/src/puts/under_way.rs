//! The puts that clients are sending. Holds their state, which is [`weft_control::put::Upload`].

use super::late_plans::LateBlocks;
use crate::{in_flight::Moving, supervise::handle::PlanHandle};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::task::JoinHandle;
use weft_control::{
    put::{
        self, SentStripe,
        upload::{Known, Learnt},
    },
    run::{Levels, Report},
};
use weft_proto::v1;
use weft_types::{PlanId, Result, StripeId, UploadId};

/// A stripe of a put, by its number.
pub(super) type Key = (UploadId, u64);

/// A put, with its stripes in progress and the answers to calls that ended plans.
pub(super) type Upload = put::Upload<Sending, Box<v1::EndStripeReply>>;

/// The puts that clients are sending.
#[derive(Default)]
pub(crate) struct Puts {
    uploads: Mutex<BTreeMap<UploadId, Upload>>,
    /// One lock for each stripe that is being started or ended.
    turns: Mutex<BTreeMap<Key, Arc<tokio::sync::Mutex<()>>>>,
    /// The plans that continue after their stripes have ended.
    pub(crate) late_blocks: LateBlocks,
    /// Puts that have begun, and of which no stripe has been planned yet.
    pub(super) announced: Mutex<BTreeMap<UploadId, Moving>>,
    /// Serialises placement, so that each stripe sees the transfers of those before it.
    pub(super) placing: tokio::sync::Mutex<()>,
}

/// The turn to start or end a stripe. One call at a time has it, because calls may be repeated or late.
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

/// A stripe that a client is sending.
pub(super) struct Sending {
    pub(super) plan: PlanId,
    pub(super) sent: Box<SentStripe>,
    pub(super) handle: Arc<PlanHandle>,
    pub(super) report: JoinHandle<Report>,
    /// The levels of its stages.
    pub(super) levels: Levels,
}

impl Sending {
    /// Whether its result is known.
    fn is_finished(&self) -> bool {
        self.report.is_finished()
    }

    /// Stops it, without waiting for it.
    pub(super) fn stop(&self) {
        self.handle.client_done(Duration::ZERO);
    }
}

impl Puts {
    /// Whether a stripe of a put is in progress.
    pub(crate) fn is_active(&self, upload: UploadId) -> bool {
        self.is_turning(upload)
            || self.late_blocks.has_put(upload)
            || self.lock().get(&upload).is_some_and(|put| put.is_active(Sending::is_finished))
    }

    /// Whether a plan is over; its handle if it is not.
    pub(super) fn is_over(&self, (upload, number): Key, plan: PlanId) -> (bool, Option<Arc<PlanHandle>>) {
        let uploads = self.lock();
        // It ended with an earlier coordinator.
        let Some(put) = uploads.get(&upload) else { return (true, None) };
        let (over, sending) = put.is_over(number, plan, Sending::is_finished);
        (over, sending.map(|sending| Arc::clone(&sending.handle)))
    }

    /// Whether a stripe of a put is being started or ended.
    pub(super) fn is_turning(&self, upload: UploadId) -> bool {
        let turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        turns.range((upload, 0)..=(upload, u64::MAX)).next().is_some()
    }

    /// Waits until no other call starts or ends the stripe.
    pub(super) async fn turn(&self, key: Key) -> Turn<'_> {
        let turn = {
            let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(turns.entry(key).or_default())
        };
        Turn { puts: self, key, held: Some(turn.lock_owned().await) }
    }

    /// Takes the stripe that `plan` sent, to end it.
    pub(super) fn begin_end(&self, (upload, number): Key, plan: PlanId) -> Result<Known<Sending, Box<v1::EndStripeReply>>> {
        self.lock().get_mut(&upload).map_or(Ok(Known::Nothing), |put| put.begin_end(number, plan))
    }

    /// Stops a stripe that is no longer being sent.
    pub(super) fn leave(&self, (upload, number): Key) {
        if let Some(sending) = self.lock().get_mut(&upload).and_then(|put| put.leave(number)) {
            sending.stop();
        }
    }

    /// Removes the expected transfers of a put.
    pub(super) fn take_announced(&self, upload: UploadId) -> Option<Moving> {
        self.announced.lock().unwrap_or_else(PoisonError::into_inner).remove(&upload)
    }

    /// Reads or changes the state of a put.
    pub(super) fn with<T>(&self, upload: UploadId, act: impl FnOnce(&mut Upload) -> T) -> T {
        // The size of a put that began under an earlier coordinator is not known.
        act(self.lock().entry(upload).or_insert_with(|| Upload::new(None)))
    }

    /// Records that a put has begun.
    pub(super) fn begun(&self, upload: UploadId, put: Upload) {
        self.lock().insert(upload, put);
    }

    /// Removes and returns the stripes of a put that were never opened, so that the caller can release them.
    pub(crate) fn take_unopened(&self, upload: UploadId) -> Vec<StripeId> {
        self.lock().get_mut(&upload).map(Upload::take_unopened).unwrap_or_default()
    }

    pub(super) fn learnt(&self, upload: UploadId) -> Learnt {
        self.lock().get(&upload).map(Upload::learnt).unwrap_or_default()
    }

    /// Stops everything of a put, without waiting for it.
    pub(crate) fn forget(&self, upload: UploadId) {
        drop(self.take_announced(upload));
        // Stripes that were neither opened nor released become garbage with their put.
        let put = self.lock().remove(&upload);
        put.into_iter().flat_map(|mut put| put.leave_all()).for_each(|sending| sending.stop());
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<UploadId, Upload>> {
        self.uploads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
