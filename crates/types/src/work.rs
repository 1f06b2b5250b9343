//! What agents and clients tell of the work that they did.

use std::ops::Add;

/// What a stage of a plan has spent its time on, microseconds. What it does at several ports at once counts as the one that took longest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StageTimes {
    /// The lane's number in the plan.
    pub lane: u16,
    /// The stage's number in the lane.
    pub stage: u16,
    /// On its own disk, or on whoever puts data in.
    pub read_us: u64,
    /// On what comes over its links.
    pub wait_us: u64,
    /// On arithmetic.
    pub combine_us: u64,
    /// On room in the links that it sends over.
    pub send_us: u64,
    /// On what it stores, patches or delivers.
    pub write_us: u64,
}

/// What a task moved, bytes.
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
