//! The state of the healer, which answers are computed from.

use crate::health::state::Health;
use std::sync::{Mutex, MutexGuard, PoisonError};
use weft_control::{
    healer::{Judge, Judgement, Queue, Scope, Stop},
    retries::Retries,
};

/// The state that one task maintains.
#[derive(Debug)]
pub(crate) struct Healer {
    state: Mutex<State>,
    /// Held while nodes are judged and while a person changes the setting: both first change the metadata and then the state.
    pub(super) judging: tokio::sync::Mutex<()>,
}

#[derive(Debug)]
pub(crate) struct State {
    /// Whether lost blocks are rebuilt without a person.
    pub(super) on: bool,
    pub(super) queue: Queue,
    /// How many stripes are being rebuilt.
    pub(super) under_way: usize,
    pub(super) judge: Judge,
    pub(super) judgement: Judgement,
    /// When lost nodes are recorded again, after the metadata could not be written.
    pub(super) recording: Retries<()>,
}

impl Healer {
    /// Nothing is rebuilt before the first judgement.
    pub(crate) fn new(on: bool) -> Self {
        let scope = Scope::Nothing(Stop::ComingBack);
        let judgement = Judgement { declared: Vec::new(), scope, guard: None, silent: Vec::new() };
        let (queue, judge, recording) = (Queue::default(), Judge::default(), Retries::default());
        Self {
            state: Mutex::new(State { on, queue, under_way: 0, judge, judgement, recording }),
            judging: tokio::sync::Mutex::default(),
        }
    }

    /// The blocks that are due to be rebuilt.
    pub(crate) fn left_blocks(&self, health: &Health) -> u64 {
        let health = health.lock();
        let state = self.lock();
        state.queue.left_blocks(&health.tally, &state.judgement.scope)
    }

    /// The rebuild of a stripe has ended so.
    #[cfg(test)]
    pub(crate) fn ended(&self, stripe: weft_types::StripeId, ended: weft_control::healer::Ended, now: weft_control::Time) {
        self.lock().queue.ended(stripe, ended, now);
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        // A poisoned lock is safe to use: each change is one call.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
