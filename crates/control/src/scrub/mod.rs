//! Scrubs: whether what is stored is still what was written, before a second loss makes it matter.
//!
//! A scrub checks stripe by stripe: [`StripeCheck`] decides what is done with one, [`Progress`] counts and says where the next coordinator
//! continues, and [`Pace`] says when the next stripe begins. A scrub only finds; what it finds is recorded as by any read, and the healer
//! rebuilds it.

mod pace;
mod progress;
mod stripe;

pub use pace::{Left, Pace, left_bytes};
pub use progress::{Progress, Ticket};
pub use stripe::{Action, End, Event, Outcome, StripeCheck, Summed};

use crate::{schedule::STREAMS_MAX, view::View};

/// Stripes of which at most one is checked in a cluster of so many nodes at the same time.
const NODES_PER_STRIPE: usize = 4;
/// The most stripes that are checked at the same time.
const CONCURRENCY_MAX: usize = 64;
// A check is a chain, with one stream on each link, so scrubs need no other limit on streams.
const _: () = assert!(CONCURRENCY_MAX as u64 <= STREAMS_MAX);

/// How many stripes are checked at the same time: enough to keep disks busy, and few enough that a node has memory left for others.
pub fn concurrency(view: &View) -> usize {
    (view.up_count() / NODES_PER_STRIPE).clamp(1, CONCURRENCY_MAX)
}

#[cfg(test)]
mod tests;
