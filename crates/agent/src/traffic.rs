//! Payload bytes that a task has moved, counted at the disk or the socket.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use weft_proto::v1;

/// The counters of one task.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    pub(crate) read: Counter,
    pub(crate) written: Counter,
    pub(crate) sent: Counter,
    pub(crate) received: Counter,
}

/// Bytes.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, bytes: u64) {
        self.0.fetch_add(bytes, Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

impl Traffic {
    /// Bytes that were transferred over links.
    pub(crate) fn moved_bytes(&self) -> u64 {
        self.sent.get() + self.received.get()
    }

    pub(crate) fn report(&self) -> v1::TaskTraffic {
        v1::TaskTraffic {
            read_bytes: self.read.get(),
            written_bytes: self.written.get(),
            sent_bytes: self.sent.get(),
            received_bytes: self.received.get(),
        }
    }
}
