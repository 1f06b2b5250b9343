//! The state of the healer, which answers are computed from.

use std::sync::{Mutex, MutexGuard, PoisonError};
use weft_control::healer::{Judgement, Queue, Scope, Stop};

/// The state that one task maintains.
#[derive(Debug)]
pub(crate) struct Healer(Mutex<State>);

#[derive(Debug)]
pub(crate) struct State {
    /// Whether lost blocks are rebuilt without a person.
    pub(super) on: bool,
    pub(super) queue: Queue,
    pub(super) judgement: Judgement,
}

impl Healer {
    /// Nothing is rebuilt before the first judgement.
    pub(crate) fn new(on: bool) -> Self {
        let scope = Scope::Nothing(Stop::ComingBack);
        let judgement = Judgement { declared: Vec::new(), scope, guard: None, silent: Vec::new() };
        Self(Mutex::new(State { on, queue: Queue::default(), judgement }))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        // A poisoned lock is safe to use: each change is one call.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
