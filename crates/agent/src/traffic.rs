//! Payload bytes that tasks have moved, counted at the disk or the socket: of each task, and of all tasks of a class.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};
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
pub(crate) struct Counter {
    own: AtomicU64,
    /// Those of all tasks of the class.
    all: Arc<AtomicU64>,
}

impl Counter {
    pub(crate) fn add(&self, bytes: u64) {
        self.own.fetch_add(bytes, Relaxed);
        self.all.fetch_add(bytes, Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.own.load(Relaxed)
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

/// The bytes of all tasks of a class since the agent started.
#[derive(Debug, Default)]
pub(crate) struct ClassTraffic {
    read: Arc<AtomicU64>,
    written: Arc<AtomicU64>,
    sent: Arc<AtomicU64>,
    received: Arc<AtomicU64>,
}

impl ClassTraffic {
    /// The counters of a new task.
    pub(crate) fn of_task(&self) -> Traffic {
        let [read, written, sent, received] = [&self.read, &self.written, &self.sent, &self.received]
            .map(|all| Counter { own: AtomicU64::new(0), all: Arc::clone(all) });
        Traffic { read, written, sent, received }
    }

    pub(crate) fn total(&self) -> v1::TaskTraffic {
        v1::TaskTraffic {
            read_bytes: self.read.load(Relaxed),
            written_bytes: self.written.load(Relaxed),
            sent_bytes: self.sent.load(Relaxed),
            received_bytes: self.received.load(Relaxed),
        }
    }
}
