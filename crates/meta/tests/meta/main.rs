//! The metadata, compared with a model and record by record.

mod appends;
mod backup;
mod common;
mod conversions;
mod copies;
mod departures;
mod early;
mod garbage;
mod jobs;
mod listing;
mod model;
mod moved;
mod records;
mod removals;
mod updates;

use weft_meta::{CommitPut, Leftovers, NewUpload};
use weft_types::{Ack, FailureDomain, Layout, ObjectName, PutKey};

/// A put of `b/k` as rs(2,1), in blocks of 1 MiB.
pub(crate) fn new_put() -> NewUpload {
    NewUpload {
        name: ObjectName { bucket: "b".into(), key: "k".into() },
        code: "rs(2,1)".into(),
        layout: Layout { block_len: 1 << 20, cell_len: 1 << 20, alpha: 1 },
        failure_domain: FailureDomain::Rack,
        ack: Ack { missing_max: 0 },
        replicas: 1,
        created_ms: 1,
        expires_ms: 2,
        replaces: None,
        key: PutKey(7),
    }
}

/// A commit at a time at which garbage may be removed too.
fn commit_at(size: u64, now_ms: u64) -> CommitPut {
    CommitPut { size, now_ms, leftovers: leftovers_at(now_ms) }
}

fn leftovers_at(garbage_not_before_ms: u64) -> Leftovers {
    Leftovers { garbage_not_before_ms, ..Leftovers::default() }
}
