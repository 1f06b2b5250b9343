//! What is known of jobs, work of operators that takes long and outlives the coordinator that began it: plain values, which the metadata
//! keeps and decisions are made by.

use crate::{HelperSelect, NodeId};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Bytes that are kept of a job's last error.
pub const JOB_ERROR_BYTES_MAX: usize = 2048;

/// Blocks that are named of those that a job has left, at most.
pub const LEFT_BLOCKS_MAX: usize = 16;

/// Bytes that are kept of why a block was left.
pub const LEFT_REASON_BYTES_MAX: usize = 512;

/// A job, numbered from 1 and never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct JobId(pub u64);

/// What a job does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum JobWork {
    /// Rebuilds the blocks of a node elsewhere.
    RepairNode(NodeRepair),
    /// Rewrites objects in another code.
    Convert(Conversion),
}

/// Which objects are rewritten, and in which code.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Conversion {
    /// The bucket.
    pub bucket: String,
    /// The one object; none: all of the bucket, which carries the policy itself from the job's beginning on.
    pub key: Option<String>,
    /// The policy whose code and sizes they get.
    pub policy: String,
    /// Stripes that are written at the same time.
    pub concurrency: u32,
    /// Bytes of data that are converted in a second, at most; 0: not bounded.
    pub bytes_per_s: u64,
}

/// How the blocks of a node are rebuilt elsewhere.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRepair {
    /// The node.
    pub node: NodeId,
    /// Which nodes help.
    pub select: HelperSelect,
    /// The nodes that the blocks go to; none: wherever the rules of placement say.
    pub to: Vec<NodeId>,
    /// The scheme.
    pub scheme: String,
    /// Stripes that are repaired at the same time.
    pub concurrency: u32,
    /// Bytes of a slice; 0: as the coordinator's setting has it.
    pub slice_len: u64,
    /// All of its blocks, also those that can be read, as if it were gone.
    pub force: bool,
}

/// How far a job has come in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum JobState {
    /// It goes on, under whichever coordinator leads.
    Running,
    /// It waits until an operator resumes it.
    Paused,
    /// It did all that it was to do.
    Done,
    /// It ended, and not all was done: its last error tells why.
    Failed,
    /// An operator has ended it.
    Cancelled,
}

/// So much of a job's work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Amount {
    /// Blocks; of a conversion, objects.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// How far a job has come in its work.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct JobProgress {
    /// What there is to do in all; zero until it has been counted.
    pub total: Amount,
    /// What is done.
    pub done: Amount,
    /// What was tried, and could not be done.
    pub left: Amount,
    /// The first of them, in the order in which they were left: at most [`LEFT_BLOCKS_MAX`] are kept.
    pub left_blocks: Vec<LeftBlock>,
    /// What went wrong last, with object, stripe and block; empty: nothing did. At most [`JOB_ERROR_BYTES_MAX`] are kept.
    pub last_error: String,
}

/// A block that a job could do nothing for; of a conversion, an object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftBlock {
    /// The object, `bucket/key`; empty: it was not known.
    pub object: String,
    /// The number of the stripe in the object.
    pub stripe: u64,
    /// The block's index in the stripe; of a conversion, 0.
    pub index: u8,
    /// Why; at most [`LEFT_REASON_BYTES_MAX`] are kept.
    pub reason: String,
}

/// A job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobRecord {
    /// Its number.
    pub id: JobId,
    /// What it does.
    pub work: JobWork,
    /// Whether it goes on.
    pub state: JobState,
    /// How far it had come when that was last written.
    pub progress: JobProgress,
    /// When it was begun, milliseconds since 1970.
    pub created_ms: u64,
    /// When its state or progress was last written, milliseconds since 1970.
    pub changed_ms: u64,
}

impl JobWork {
    /// What its kind is called.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::RepairNode(_) => "repair-node",
            Self::Convert(_) => "convert",
        }
    }
}

impl JobState {
    const ALL: [Self; 5] = [Self::Running, Self::Paused, Self::Done, Self::Failed, Self::Cancelled];

    /// What it is called.
    pub fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }

    /// The state of that name.
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.name() == name)
    }

    /// Whether it is over.
    pub fn has_ended(self) -> bool {
        !matches!(self, Self::Running | Self::Paused)
    }

    /// Whether another state may follow.
    pub fn may_become(self, next: Self) -> bool {
        match self {
            Self::Running => next != Self::Running,
            Self::Paused => matches!(next, Self::Running | Self::Cancelled),
            Self::Done | Self::Failed | Self::Cancelled => false,
        }
    }
}

impl Amount {
    /// Counts one more, of so many bytes.
    pub fn add(&mut self, bytes: u64) {
        self.blocks += 1;
        self.bytes = self.bytes.saturating_add(bytes);
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
