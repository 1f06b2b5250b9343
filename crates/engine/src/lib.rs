//! Runs one party's share of a plan: for each lane, each stage takes its slices from its sources, combines them, and gives
//! them to its sinks. It knows no code, no scheme, no socket and no clock: [`Ports`] gives it those as streams of slices.
//!
//! What happens when something fails:
//! - A source that fails ends its stage: what the stage has sent so far ends without an End, so that its neighbours notice.
//! - A sink that fails is dropped, and its stage goes on while another sink of it is alive: a writer goes on when one of its
//!   receivers dies. A stage without a live sink ends.
//! - A check that is not zero says that the sources contradict each other: it ends its stage like a source that failed.
//! - The other stages of the task are not touched.

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
