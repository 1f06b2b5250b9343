//! An update as a star (*CPU*, §3): the writer sends the delta to every node that patches a block. As in the paper, it
//! sends to one after another, everything at once: R nodes take R times as long as one. The concurrent star sends to all
//! of them at the same time; it takes as long as its slowest link or, if that takes longer, as the writer's own line for
//! all of them.

use super::{Hop, Routes, Update, UpdateScheme};
use crate::Named;

/// The star update.
#[derive(Debug)]
pub struct Star {
    /// Whether the writer sends to all nodes at the same time.
    pub concurrent: bool,
}

impl Named for Star {
    fn name(&self) -> &'static str {
        if self.concurrent { "concurrent-star" } else { "star" }
    }

    fn summary(&self) -> &'static str {
        match self.concurrent {
            true => "the writer sends what changed to all nodes that patch a block at the same time",
            false => "the writer sends what changed to one node after another, each of which patches its block",
        }
    }
}

impl UpdateScheme for Star {
    fn routes(&self, update: &Update<'_>) -> Routes {
        let hops = |homes: Vec<usize>| homes.into_iter().map(|to| Hop { from: None, to }).collect();
        Routes { hops: update.writers.iter().map(|writer| hops(update.concerned(writer))).collect(), path: None }
    }

    fn sends_in_turn(&self) -> bool {
        !self.concurrent
    }
}
