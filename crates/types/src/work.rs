//! Agents' and clients' reports on their work.

use std::ops::Add;

/// How long a stage of a plan has spent on what, microseconds. Concurrent work at several ports counts as the slowest
/// port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StageTimes {
    /// The lane's number in the plan.
    pub lane: u16,
    /// The stage's number in the lane.
    pub stage: u16,
    /// Reads from its own disk, or from the source of new data.
    pub read_us: u64,
    /// Waits for its incoming links.
    pub wait_us: u64,
    /// Computation.
    pub combine_us: u64,
    /// Waits for room in its outgoing links.
    pub send_us: u64,
    /// Stores, patches or delivers.
    pub write_us: u64,
}

/// The bytes that a task moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TaskTraffic {
    /// Read from disks.
    pub read_bytes: u64,
    /// Written to disks.
    pub written_bytes: u64,
    /// Sent over links.
    pub sent_bytes: u64,
    /// Received over links.
    pub received_bytes: u64,
}

impl Add for TaskTraffic {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            read_bytes: self.read_bytes.saturating_add(other.read_bytes),
            written_bytes: self.written_bytes.saturating_add(other.written_bytes),
            sent_bytes: self.sent_bytes.saturating_add(other.sent_bytes),
            received_bytes: self.received_bytes.saturating_add(other.received_bytes),
        }
    }
}
