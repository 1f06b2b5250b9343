//! Jobs: long operations that survive the coordinator that started them. Plain values, which the metadata stores and
//! decisions use.

use crate::{HelperSelect, NodeId, Prefer};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Bytes that are stored of a job's last error.
pub const JOB_ERROR_BYTES_MAX: usize = 2048;

/// The most left-out blocks of a job that are stored by name.
pub const LEFT_BLOCKS_MAX: usize = 16;

/// Bytes that are stored of the reason for a left-out block.
pub const LEFT_REASON_BYTES_MAX: usize = 512;

/// A job, numbered from 1 and never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct JobId(pub u64);

/// The work of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum JobWork {
    /// Rebuilds the blocks of a node on other nodes.
    RepairNode(NodeRepair),
    /// Rewrites objects in another code.
    Convert(Conversion),
    /// Moves blocks from fuller disks to emptier ones.
    Balance(Balance),
    /// Checks stripes.
    Scrub(Scrub),
}

/// Which stripes are checked, and how many at the same time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scrub {
    /// Those of this bucket; `None`: of all.
    pub bucket: Option<String>,
    /// Those of this object of the bucket; `None`: of all its objects.
    pub key: Option<String>,
    /// Those that have a block on this node; `None`: on any.
    pub node: Option<NodeId>,
    /// Stripes at the same time; 0: by the number of nodes.
    pub concurrency: u32,
}

/// How blocks are moved to emptier disks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Balance {
    /// Stripes of which blocks are moved at the same time, at most; 0: by the number of nodes that get blocks.
    pub concurrency: u32,
}

/// The objects to rewrite, and their new code.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Conversion {
    /// The bucket.
    pub bucket: String,
    /// The object; `None` for all objects of the bucket, which gets the policy when the job begins.
    pub key: Option<String>,
    /// The policy with the new code and sizes.
    pub policy: String,
    /// Stripes that are written at the same time.
    pub concurrency: u32,
    /// The most bytes of data converted in a second; 0: no limit.
    pub bytes_per_s: u64,
}

/// The repair of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRepair {
    /// The node.
    pub node: NodeId,
    /// How helpers and targets are selected.
    pub select: HelperSelect,
    /// What is minimised if the scheme is open. Not part of the serialised form: the metadata stores it apart.
    #[serde(skip)]
    pub prefer: Prefer,
    /// The targets of the blocks; empty: the placement rules decide.
    pub to: Vec<NodeId>,
    /// The scheme.
    pub scheme: String,
    /// Stripes that are repaired at the same time, at most; 0: as many as the schedule starts.
    pub concurrency: u32,
    /// Bytes of a slice; 0: the coordinator's setting.
    pub slice_len: u64,
    /// Whether readable blocks are rebuilt too, as if the node were gone.
    pub force: bool,
}

/// The state of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum JobState {
    /// It runs, under whichever coordinator leads.
    Running,
    /// It waits for an operator to resume it.
    Paused,
    /// It has finished all its work.
    Done,
    /// It has ended with unfinished work: its last error says why.
    Failed,
    /// An operator cancelled it.
    Cancelled,
}

/// An amount of a job's work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Amount {
    /// Blocks; for a conversion, objects; for a scrub, stripes.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// The progress of a job.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct JobProgress {
    /// All work; zero until it has been counted.
    pub total: Amount,
    /// Finished work.
    pub done: Amount,
    /// Work that was tried and failed.
    pub left: Amount,
    /// The first blocks left out, in order: at most [`LEFT_BLOCKS_MAX`].
    pub left_blocks: Vec<LeftBlock>,
    /// The last error, with object, stripe and block; empty if there was none. At most [`JOB_ERROR_BYTES_MAX`] bytes.
    pub last_error: String,
    /// Bytes that its plans have sent over links. Those of conversions are not counted.
    pub moved_bytes: u64,
    /// The estimate when a quarter of the work was done. `None`: not that far, or after it the job was paused or another coordinator took it
    /// up, or one item went past it.
    pub quarter: Option<Estimated>,
    /// Likewise, half.
    pub half: Option<Estimated>,
}

/// An estimate of a job's remaining time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Estimated {
    /// When it was made, milliseconds since 1970.
    pub made_ms: u64,
    /// The remaining time, milliseconds.
    pub remaining_ms: u64,
}

/// A block that a job left out; for a conversion, an object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftBlock {
    /// The object, `bucket/key`; empty if unknown.
    pub object: String,
    /// The number of the stripe in the object.
    pub stripe: u64,
    /// The block's index in the stripe; 0 for a conversion.
    pub index: u8,
    /// The reason; at most [`LEFT_REASON_BYTES_MAX`] bytes.
    pub reason: String,
}

/// A job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobRecord {
    /// Its number.
    pub id: JobId,
    /// Its work.
    pub work: JobWork,
    /// Its state.
    pub state: JobState,
    /// Its progress when last written.
    pub progress: JobProgress,
    /// When it was created, milliseconds since 1970.
    pub created_ms: u64,
    /// When its state or progress was last written, milliseconds since 1970.
    pub changed_ms: u64,
}

impl JobWork {
    /// The names of all kinds.
    pub const KINDS: [&'static str; 4] = ["repair-node", "convert", "balance", "scrub"];

    /// The name of its kind.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::RepairNode(_) => "repair-node",
            Self::Convert(_) => "convert",
            Self::Balance(_) => "balance",
            Self::Scrub(_) => "scrub",
        }
    }

    /// Whether it names this node: as the one to repair, or as one that gets blocks.
    pub fn names(&self, node: NodeId) -> bool {
        match self {
            Self::RepairNode(repair) => repair.node == node || repair.to.contains(&node),
            Self::Scrub(scrub) => scrub.node == Some(node),
            Self::Convert(_) | Self::Balance(_) => false,
        }
    }
}

impl JobState {
    const ALL: [Self; 5] = [Self::Running, Self::Paused, Self::Done, Self::Failed, Self::Cancelled];
    /// Those in which a job has ended.
    pub const ENDS: [Self; 3] = [Self::Done, Self::Failed, Self::Cancelled];

    /// The name of the state.
    pub fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }

    /// The state with this name.
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.name() == name)
    }

    /// Whether the job has ended.
    pub fn has_ended(self) -> bool {
        !matches!(self, Self::Running | Self::Paused)
    }

    /// Whether `next` may follow this state.
    pub fn may_become(self, next: Self) -> bool {
        match self {
            Self::Running => next != Self::Running,
            Self::Paused => matches!(next, Self::Running | Self::Cancelled),
            Self::Done | Self::Failed | Self::Cancelled => false,
        }
    }
}

impl Estimated {
    /// How wrong it was if the job ended then, as a part of the time that was really left; positive: it was too long. `None`: no time was
    /// left.
    pub fn error(self, ended_ms: u64) -> Option<f64> {
        let left_ms = ended_ms.checked_sub(self.made_ms).filter(|left_ms| *left_ms > 0)?;
        Some((self.remaining_ms as f64 - left_ms as f64) / left_ms as f64)
    }
}

impl Amount {
    /// Adds one item of this many bytes.
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
