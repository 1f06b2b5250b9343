//! What is counted where it happens, for metrics and for nothing else. Each count is one atomic addition.

use crate::traffic::ClassTraffic;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use weft_plan::Class;

/// All classes, by their numbers, and their names.
pub(crate) const CLASSES: [(Class, &str); 3] =
    [(Class::Foreground, "foreground"), (Class::Repair, "repair"), (Class::Scrub, "scrub")];

/// The counts of a node.
#[derive(Debug, Default)]
pub(crate) struct Meter([ClassMeter; CLASSES.len()]);

/// The counts of a class, since the agent started.
#[derive(Debug, Default)]
pub(crate) struct ClassMeter {
    pub(crate) traffic: ClassTraffic,
    ended: [AtomicU64; Outcome::ALL.len()],
    stored_blocks: AtomicU64,
    stored_bytes: AtomicU64,
}

/// How a task ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Done,
    Failed,
    /// The coordinator ended it, usually because another node failed.
    Cancelled,
}

impl Outcome {
    pub(crate) const ALL: [Self; 3] = [Self::Done, Self::Failed, Self::Cancelled];

    pub(crate) fn of(has_errors: bool, is_cancelled: bool) -> Self {
        match (is_cancelled, has_errors) {
            (true, _) => Self::Cancelled,
            (false, true) => Self::Failed,
            (false, false) => Self::Done,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }
}

impl Meter {
    /// The counts of a class.
    pub(crate) fn of(&self, class: Class) -> &ClassMeter {
        &self.0[class as usize]
    }
}

impl ClassMeter {
    /// A task has ended, and has stored blocks of these lengths.
    pub(crate) fn ended(&self, outcome: Outcome, stored: impl Iterator<Item = u64>) {
        self.ended[outcome as usize].fetch_add(1, Relaxed);
        for bytes in stored {
            self.stored_blocks.fetch_add(1, Relaxed);
            self.stored_bytes.fetch_add(bytes, Relaxed);
        }
    }

    /// How many tasks ended so.
    pub(crate) fn tasks(&self, outcome: Outcome) -> u64 {
        self.ended[outcome as usize].load(Relaxed)
    }

    /// The blocks that were stored, and their bytes.
    pub(crate) fn stored(&self) -> (u64, u64) {
        (self.stored_blocks.load(Relaxed), self.stored_bytes.load(Relaxed))
    }
}
