//! Which stripes are being rebuilt: the healer, jobs, repairs of objects and late blocks never rebuild the same stripe at the same time.

use std::{
    collections::BTreeSet,
    sync::{Mutex, PoisonError},
};
use tokio::sync::Notify;
use weft_types::StripeId;

/// The stripes that are being rebuilt.
#[derive(Debug, Default)]
pub(crate) struct Claims {
    taken: Mutex<BTreeSet<StripeId>>,
    freed: Notify,
}

/// The exclusive right to rebuild a stripe, until this is dropped.
#[derive(Debug)]
pub(crate) struct Claim<'a> {
    claims: &'a Claims,
    stripe: StripeId,
}

impl Claims {
    /// Claims a stripe; `None` if it is being rebuilt.
    pub(crate) fn try_claim(&self, stripe: StripeId) -> Option<Claim<'_>> {
        // A poisoned lock is safe to use: each change is one call.
        let is_free = self.taken.lock().unwrap_or_else(PoisonError::into_inner).insert(stripe);
        is_free.then(|| Claim { claims: self, stripe })
    }

    /// Claims a stripe, as soon as it is not being rebuilt. Look the stripe up afterwards: it may have changed.
    pub(crate) async fn claim(&self, stripe: StripeId) -> Claim<'_> {
        loop {
            // It sees every wake-up from here on, so none between the attempt and the wait is missed.
            let freed = self.freed.notified();
            if let Some(claim) = self.try_claim(stripe) {
                return claim;
            }
            freed.await;
        }
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.claims.taken.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.stripe);
        self.claims.freed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_claimed_stripe_is_waited_for_and_another_is_not() {
        let (claims, stripe) = (Claims::default(), StripeId(3));
        let first = claims.try_claim(stripe).unwrap();
        assert!(claims.try_claim(stripe).is_none() && claims.try_claim(StripeId(4)).is_some());
        let mut second = std::pin::pin!(claims.claim(stripe));
        assert!(futures::poll!(&mut second).is_pending());
        drop(first);
        let second = second.await;
        assert!(claims.try_claim(stripe).is_none());
        drop(second);
        assert!(claims.try_claim(stripe).is_some());
    }
}
