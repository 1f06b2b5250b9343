//! The cluster heals itself: which nodes are declared lost, which stripes are rebuilt without a person, in which order, and what waits for
//! what.
//!
//! ```text
//!   statuses of the nodes ──► judge: who is lost, how far repair goes ──► queue: the next stripes ──► which of their blocks
//!                                                                           ▲
//!                                                                      tally of stripes with bad blocks (health)
//! ```
//! The queue holds no stripes of its own. The tally has them, and follows every change, so the next coordinator starts with what is there.
//! A node that is silent for a moment costs nothing. A stripe that would not survive a further loss does not wait for its nodes.

mod held;
mod judge;
mod queue;
mod silence;
#[cfg(test)]
mod tests;

pub use judge::{Guard, Judge, Judgement, Policy, Scope, Stop};
pub use queue::{Ended, Progress, Queue, Wait, Waiting, concurrency};
pub use silence::{Recorder, SILENCE_BYTES_MAX, Silence, resume};

use crate::{
    health::{Condition, Reach},
    rebuild::Lost,
    view::View,
};
use weft_types::{BlockState, StripeRecord};

/// Whether blocks of a stripe in this condition are rebuilt or moved now.
pub fn is_due(condition: &Condition, scope: &Scope) -> bool {
    if condition.only_moves() {
        return condition.blocks.leaving > 0 && scope.moves();
    }
    let (Scope::Lost { silent_slack }, Some(slack)) = (scope, condition.now) else { return false };
    condition.blocks.to_rebuild() > 0 || condition.blocks.away > 0 && slack <= *silent_slack
}

/// The blocks of a stripe that are brought to new homes now, given its condition: if it lacks none, or too many to rebuild any, those that
/// leave. Those that are still coming are left to their put. If the stripe is due only for its blocks on silent nodes, or also for them, all
/// its lost blocks are rebuilt together: they need the same helpers.
pub fn wanted(stripe: &StripeRecord, condition: &Condition, scope: &Scope, view: &View) -> Vec<Lost> {
    if !is_due(condition, scope) {
        return Vec::new();
    }
    let only_moves = condition.only_moves();
    let is_near = |slack: usize| matches!(scope, Scope::Lost { silent_slack } if slack <= *silent_slack);
    let with_silent = condition.now.is_some_and(is_near);
    let is_wanted = |state: BlockState, reach: Reach| match (state, reach) {
        (BlockState::Ok, Reach::Leaving) => only_moves,
        _ if only_moves => false,
        (BlockState::Missing, _) => !stripe.incomplete,
        (BlockState::Corrupt, _) | (BlockState::Ok, Reach::Gone | Reach::Lost) => true,
        (BlockState::Ok, Reach::Away) => with_silent,
        (BlockState::Ok, Reach::Here) => false,
    };
    let wanted = stripe.all().filter(|(_, placed)| is_wanted(placed.state, Reach::of(view, placed.home)));
    wanted.map(|(index, placed)| Lost::of(stripe, index, placed.copy)).collect()
}
