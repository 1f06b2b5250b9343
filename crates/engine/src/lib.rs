//! Runs one party's share of a plan. In each lane, each stage takes slices from its sources, combines them, and passes
//! the results to its sinks. The engine knows no code, scheme, socket or clock: [`Ports`] provides those as streams of
//! slices.
//!
//! Failures:
//! - A failed source ends its stage. The stage's output then has no End, so its neighbours notice.
//! - A failed sink is dropped, and its stage continues while it has another live sink: a writer continues when one of
//!   its receivers dies. A stage without a live sink ends.
//! - A check that is not zero means that the sources are inconsistent: it ends its stage like a failed source.
//! - The other stages of the task continue.

mod buffers;
pub mod classes;
mod combiner;
mod observer;
mod pace;
mod ports;
mod run;
mod sample;
mod stage;

pub use buffers::{Buffer, Buffers};
pub use observer::{Observer, Port, Waiting};
pub use ports::{HeldBack, Hold, Ports, SliceSink, SliceSource};
pub use run::{Outcome, StageOutcome, run, run_observed};
pub use sample::CodingSample;
