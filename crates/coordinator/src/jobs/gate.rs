//! What of a job waits for the streams of its links: the shell around [`Admission`], which decides.

use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;
use weft_control::schedule::{Admission, Line, Starting, Ticket};

/// What waits and what runs in one pass of a job.
#[derive(Debug)]
pub(super) struct Gate<T, U> {
    admission: Mutex<Admission<T, U>>,
    freed: Notify,
}

impl<T, U: Ord + Copy> Gate<T, U> {
    pub(super) fn new(starting: Starting) -> Self {
        Self { admission: Mutex::new(Admission::new(starting)), freed: Notify::new() }
    }

    /// One has ended, and its links are free.
    pub(super) fn ended(&self, ticket: Ticket) {
        self.lock().ended(ticket);
        self.freed.notify_one();
    }

    /// Waits until another one has ended.
    pub(super) async fn freed(&self) {
        self.freed.notified().await;
    }

    /// A poisoned lock is safe to use: each change is one call.
    pub(super) fn lock(&self) -> MutexGuard<'_, Admission<T, U>> {
        self.admission.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Gate<T, ()> {
    /// With all that the pass does, and the links that each takes.
    pub(super) fn of_all(all: impl IntoIterator<Item = (T, Vec<Line>)>) -> Self {
        let gate = Self::new(Starting::InOrder);
        gate.lock().add(all.into_iter().map(|(what, lines)| (what, ((), 0), lines)));
        gate
    }

    /// The next one. Waits while none can start. `None` after the last one.
    pub(super) async fn next(&self) -> Option<(Ticket, T)> {
        loop {
            {
                let mut admission = self.lock();
                let next = admission.start();
                if next.is_some() || admission.waiting() == 0 {
                    return next;
                }
            }
            self.freed().await;
        }
    }
}
