//! The plans of puts that continue after their stripes have ended.

use crate::supervise::handle::PlanHandle;
use std::{sync::Arc, time::Duration};
use tokio::sync::watch;
use weft_control::put::late::LatePlans;
use weft_types::{StripeId, UploadId};

/// The plans that continue after their stripes have ended.
#[derive(Debug)]
pub(crate) struct LateBlocks(Arc<watch::Sender<Plans>>);

pub(crate) type Plans = LatePlans<Arc<PlanHandle>>;

impl Default for LateBlocks {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(Plans::default())))
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
        self.plans.send_if_modified(|plans| plans.leave(self.stripe));
    }
}

impl LateBlocks {
    /// Adds a stripe's plan, if there is room.
    pub(super) fn enter(&self, stripe: StripeId, upload: UploadId, handle: &Arc<PlanHandle>) -> Option<Place> {
        let entered = self.0.send_if_modified(|plans| plans.enter(stripe, upload, Arc::clone(handle)));
        entered.then(|| Place { plans: Arc::clone(&self.0), stripe })
    }

    /// Whether a put's plan is still bringing blocks of a stripe.
    pub(crate) fn has_stripe(&self, stripe: StripeId) -> bool {
        self.0.borrow().has_stripe(stripe)
    }

    /// Whether plans are still bringing blocks of a put.
    pub(super) fn has_put(&self, upload: UploadId) -> bool {
        self.0.borrow().of_put(upload).next().is_some()
    }

    /// Stops the plans of a put.
    pub(super) fn stop(&self, upload: UploadId) {
        self.0.borrow().of_put(upload).for_each(|handle| handle.client_done(Duration::ZERO));
    }

    /// Records that a stripe has ended without some of its blocks, and no plan brings them.
    pub(super) fn has_left(&self) {
        self.0.send_modify(|_| {});
    }

    /// Signals whenever a plan starts or ends, or a stripe is left incomplete.
    pub(crate) fn changes(&self) -> watch::Receiver<Plans> {
        self.0.subscribe()
    }
}
