//! The plans under way, as all parts of the coordinator share them.

use crate::started::Started;
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use weft_control::in_flight::{self, Lines};
use weft_plan::{Busy, Class};
use weft_types::Party;

/// What is under way.
#[derive(Debug, Clone)]
pub(crate) struct InFlight {
    all: Arc<Mutex<in_flight::InFlight>>,
    started: Started,
}

/// Counts until it is dropped.
#[derive(Debug)]
pub(crate) struct Moving {
    in_flight: InFlight,
    number: u64,
}

impl InFlight {
    /// Nothing is.
    pub(crate) fn new(started: Started) -> Self {
        Self { all: Arc::default(), started }
    }

    /// A plan begins.
    pub(crate) fn begin(&self, lines: Lines, class: Class) -> Moving {
        let number = self.lock().begin(lines, class);
        Moving { in_flight: self.clone(), number }
    }

    /// A put will move about this much, if it is not given up before.
    pub(crate) fn announce(&self, lines: Lines) -> Moving {
        let number = self.lock().announce(lines, self.started.now());
        Moving { in_flight: self.clone(), number }
    }

    /// What is left of everything now.
    pub(crate) fn left(&self) -> BTreeMap<Party, Busy> {
        self.lock().left(self.started.now())
    }

    /// A panic elsewhere leaves it as good as it was: each change to it is one call.
    fn lock(&self) -> MutexGuard<'_, in_flight::InFlight> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Moving {
    /// So much of it, from 0 to 1, has been moved.
    pub(crate) fn moved(&self, share: f64) {
        self.in_flight.lock().moved(self.number, share);
    }
}

impl Drop for Moving {
    fn drop(&mut self) {
        self.in_flight.lock().end(self.number);
    }
}
