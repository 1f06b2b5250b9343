//! The plans of puts that go on although their stripes have ended.

use crate::supervise::handle::PlanHandle;
use std::{collections::BTreeMap, sync::Arc, time::Duration};
use tokio::sync::watch;
use weft_types::{StripeId, UploadId};

/// Plans of one put whose stripes have ended, at most: with more of them under way a stripe ends when all have done their share, so that
/// a writer is not ahead of its receivers without bound. Each holds memory at the receivers that are not done.
const PLANS_PER_PUT_MAX: usize = 4;
/// And of all puts.
const PLANS_MAX: usize = 256;

/// The plans that go on although their stripes have ended.
#[derive(Debug)]
pub(crate) struct LateBlocks(Arc<watch::Sender<Plans>>);

pub(crate) type Plans = BTreeMap<StripeId, (UploadId, Arc<PlanHandle>)>;

impl Default for LateBlocks {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(Plans::new())))
    }
}

/// A plan's place among them, until it is dropped.
#[derive(Debug)]
pub(super) struct Place {
    plans: Arc<watch::Sender<Plans>>,
    stripe: StripeId,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.plans.send_if_modified(|plans| plans.remove(&self.stripe).is_some());
    }
}

impl LateBlocks {
    /// A place for a stripe's plan, if there is room.
    pub(super) fn enter(&self, stripe: StripeId, upload: UploadId, handle: &Arc<PlanHandle>) -> Option<Place> {
        let entered = self.0.send_if_modified(|plans| {
            let own = plans.values().filter(|(of, _)| *of == upload).count();
            let has_room = own < PLANS_PER_PUT_MAX && plans.len() < PLANS_MAX;
            has_room && plans.insert(stripe, (upload, Arc::clone(handle))).is_none()
        });
        entered.then(|| Place { plans: Arc::clone(&self.0), stripe })
    }

    /// Whether blocks of a stripe are still being brought by the plan of its put.
    pub(crate) fn has_stripe(&self, stripe: StripeId) -> bool {
        self.0.borrow().contains_key(&stripe)
    }

    /// Whether blocks of a put are.
    pub(super) fn has_put(&self, upload: UploadId) -> bool {
        self.0.borrow().values().any(|(of, _)| *of == upload)
    }

    /// Stops those of a put.
    pub(super) fn stop(&self, upload: UploadId) {
        let plans = self.0.borrow();
        plans.values().filter(|(of, _)| *of == upload).for_each(|(_, handle)| handle.client_done(Duration::ZERO));
    }

    /// A stripe has ended without some of its blocks, and no plan brings them.
    pub(super) fn has_left(&self) {
        self.0.send_modify(|_| {});
    }

    /// Tells whenever a plan comes or ends, or a stripe is left incomplete.
    pub(crate) fn changes(&self) -> watch::Receiver<Plans> {
        self.0.subscribe()
    }
}
