//! What the healer logs: each change once, and not each stripe.

use crate::shared::Shared;
use std::collections::BTreeSet;
use weft_control::healer::{Scope, Stop, Wait};

/// What was logged last.
#[derive(Debug, Default)]
pub(super) struct Reports {
    held: Option<String>,
    waits: BTreeSet<Wait>,
    working: bool,
}

impl Reports {
    /// Logs what has changed.
    pub(super) fn look(&mut self, shared: &Shared) {
        let health = shared.health.lock();
        let state = shared.healer.lock();
        let held = match (&state.judgement.scope, &state.judgement.guard) {
            (Scope::Nothing(stop @ Stop::Minority { .. }), _) => Some(stop.text()),
            (_, guard) => guard.as_ref().map(|guard| guard.text()),
        };
        match &held {
            Some(why) if self.held.as_ref() != Some(why) => tracing::warn!("silent nodes are not declared lost: {why}"),
            None if self.held.is_some() => tracing::info!("silent nodes are declared lost again"),
            _ => {}
        }
        self.held = held;
        let waiting = state.queue.waiting(&health.tally, &state.judgement.scope);
        for it in waiting.iter().filter(|it| !self.waits.contains(&it.wait)) {
            tracing::warn!(stripes = it.stripes, wait = it.wait.name(), why = it.why, "lost blocks cannot be rebuilt yet");
        }
        self.waits = waiting.iter().map(|it| it.wait).collect();
        let left = state.queue.left(&health.tally, &state.judgement.scope);
        // What waits is tried now and then; that is no work to speak of.
        let (working, progress) = (left > 0, state.queue.progress());
        match (self.working, working) {
            (false, true) => tracing::info!(stripes = left, "rebuilding lost blocks"),
            (true, false) => {
                let (stripes, blocks, bytes) = (progress.stripes, progress.done.blocks, progress.done.bytes);
                tracing::info!(stripes, blocks, bytes, "rebuilt the lost blocks that can be rebuilt");
            }
            _ => {}
        }
        self.working = working;
    }
}
