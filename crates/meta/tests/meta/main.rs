//! The metadata against a model, and record by record.

mod common;
mod conversions;
mod copies;
mod early;
mod jobs;
mod model;
mod records;

use weft_meta::{CommitPut, Leftovers};

/// A commit at a time, at which also garbage may go.
fn commit_at(size: u64, now_ms: u64) -> CommitPut {
    CommitPut { size, now_ms, leftovers: leftovers_at(now_ms) }
}

fn leftovers_at(garbage_not_before_ms: u64) -> Leftovers {
    Leftovers { garbage_not_before_ms, ..Leftovers::default() }
}
