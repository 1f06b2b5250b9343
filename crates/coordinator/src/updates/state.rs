//! Which stripes are open, in memory: what the metadata say, so that nothing has to be looked up for stripes that are not.

use crate::claims::Claims;
use std::{
    collections::BTreeMap,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};
use weft_control::{Time, retries::Retries, updates::Sessions};
use weft_types::StripeId;

/// The stripes that are open for updates, or have blocks that are not closed yet.
#[derive(Debug, Default)]
pub(crate) struct Updates {
    /// Taken to open or to settle a stripe, after the claim to rebuild it.
    pub(super) turns: Claims,
    stripes: Mutex<BTreeMap<StripeId, Entry>>,
    sessions: Mutex<Sessions>,
    /// Stripes that could not be settled in the background yet.
    retries: Mutex<Retries<StripeId>>,
    pub(super) opens: AtomicU64,
    pub(super) seals: AtomicU64,
    pub(super) settles: AtomicU64,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    phase: Phase,
    /// When it is settled, or its blocks are closed, without a request.
    due_at: Time,
}

/// What is left to do about a stripe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// It must be settled.
    Open,
    /// Some of its blocks must be closed.
    Unclosed,
}

impl Updates {
    /// Whether a stripe must be settled before it is read.
    pub(super) fn is_open(&self, stripe: StripeId) -> bool {
        self.lock().get(&stripe).is_some_and(|entry| entry.phase == Phase::Open)
    }

    /// Whether anything of a stripe is open.
    pub(super) fn has(&self, stripe: StripeId) -> bool {
        self.lock().contains_key(&stripe)
    }

    pub(super) fn set(&self, stripe: StripeId, phase: Phase, due_at: Time) {
        self.lock().insert(stripe, Entry { phase, due_at });
    }

    /// A client asks for an open stripe.
    pub(super) fn touch(&self, stripe: StripeId, due_at: Time) {
        if let Some(entry) = self.lock().get_mut(&stripe).filter(|entry| entry.phase == Phase::Open) {
            entry.due_at = due_at;
        }
    }

    pub(super) fn forget(&self, stripe: StripeId) {
        self.lock().remove(&stripe);
    }

    /// Forgets the failures about stripes of which nothing is open any more.
    pub(super) fn forget_retries(&self) {
        let (stripes, mut retries) = (self.lock(), self.retries());
        retries.retain(|stripe| stripes.contains_key(stripe));
    }

    /// The stripes about which something must be done without a request.
    pub(super) fn due(&self, now: Time) -> Vec<StripeId> {
        let (stripes, retries) = (self.lock(), self.retries());
        let is_due = |(stripe, entry): &(&StripeId, &Entry)| entry.due_at <= now && retries.is_due(stripe, now);
        stripes.iter().filter(is_due).map(|(stripe, _)| *stripe).collect()
    }

    /// The number of open stripes.
    pub(crate) fn open_stripes(&self) -> u64 {
        self.lock().values().filter(|entry| entry.phase == Phase::Open).count() as u64
    }

    /// How often stripes were opened, sealed and settled.
    pub(crate) fn counts(&self) -> [u64; 3] {
        [&self.opens, &self.seals, &self.settles].map(|count| count.load(Relaxed))
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<StripeId, Entry>> {
        // A poisoned lock is safe to use: each change is one call.
        self.stripes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn sessions(&self) -> MutexGuard<'_, Sessions> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn retries(&self) -> MutexGuard<'_, Retries<StripeId>> {
        self.retries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
