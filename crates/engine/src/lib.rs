//! Runs one party's share of a plan: for each lane, each stage takes its slices from its sources, combines them, and gives
//! them to its sinks. It knows no code, no scheme, no socket and no clock: [`Ports`] gives it those as streams of slices.

mod ports;

pub use ports::{Ports, SliceSink, SliceSource};
