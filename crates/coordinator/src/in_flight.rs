//! The running plans, shared by all parts of the coordinator.

use crate::started::Started;
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use weft_control::in_flight::{self, Lines};
use weft_plan::{Busy, Class};
use weft_types::Party;

/// The running plans.
#[derive(Debug, Clone)]
pub(crate) struct InFlight {
    all: Arc<Mutex<in_flight::InFlight>>,
    started: Started,
}

/// Counts as running until it is dropped.
#[derive(Debug)]
pub(crate) struct Moving {
    in_flight: InFlight,
    number: u64,
}

impl InFlight {
    /// Without any running plan.
    pub(crate) fn new(started: Started) -> Self {
        Self { all: Arc::default(), started }
    }

    /// Adds a plan.
    pub(crate) fn begin(&self, lines: Lines, class: Class) -> Moving {
        let number = self.lock().begin(lines, class);
        Moving { in_flight: self.clone(), number }
    }

    /// Announces a put that will move about this much.
    pub(crate) fn announce(&self, lines: Lines) -> Moving {
        let number = self.lock().announce(lines, self.started.now());
        Moving { in_flight: self.clone(), number }
    }

    /// The remaining bytes of all plans.
    pub(crate) fn left(&self) -> BTreeMap<Party, Busy> {
        self.lock().left(self.started.now())
    }

    /// A poisoned lock is safe to use: each change is one call.
    fn lock(&self) -> MutexGuard<'_, in_flight::InFlight> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Moving {
    /// Records that this share of it, from 0 to 1, has been moved.
    pub(crate) fn moved(&self, share: f64) {
        self.in_flight.lock().moved(self.number, share);
    }
}

impl Drop for Moving {
    fn drop(&mut self) {
        self.in_flight.lock().end(self.number);
    }
}
