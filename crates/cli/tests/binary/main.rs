//! Tests of the binary without a cluster: plain files, saved plans, and the binary beside it.

mod code;
mod common;
mod handover;
mod plan;
mod quoted;
mod wrong_inputs;
