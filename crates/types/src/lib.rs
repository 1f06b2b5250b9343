//! The terms that every part of weft shares: ids, layout, sizes, errors.
//!
//! This crate has no codes, plans or sockets.

mod block_meta;
mod class_limits;
pub mod conversion;
mod crc;
mod drain_failing_disks;
mod error;
mod garbage;
mod ids;
mod jobs;
mod layout;
mod rebuild_reserve;
mod records;
mod repair_limit;
mod rows;
mod scrub;
mod seed;
mod seq;
mod size;
mod work;

pub use block_meta::BlockMeta;
pub use class_limits::{CLASS_RATE_MIN, ClassLimits, RATE_MIN};
pub use crc::{crc32c, crc32c_continued, crc32c_contribution, crc32c_joined, crc32c_zeros};
pub use drain_failing_disks::DrainFailingDisks;
pub use error::{Cause, Error, Reaction, Result};
pub use garbage::GarbageReason;
pub use ids::{BlockId, ClusterId, NodeId, Party, PlanId, StripeId};
pub use jobs::{
    Amount, Balance, Conversion, Estimated, JOB_ERROR_BYTES_MAX, JobId, JobProgress, JobRecord, JobState, JobWork,
    LEFT_BLOCKS_MAX, LEFT_REASON_BYTES_MAX, LeftBlock, NodeRepair, Scrub,
};
pub use layout::{CELL_BYTES_USUAL, Extent, Layout, SUB_BLOCK_BYTES_GOOD, Span, StripeLayout, usual_cell_len};
pub use rebuild_reserve::RebuildReserve;
pub use records::{
    Ack, BlockState, CORRUPT_RANGES_MAX, DiskNumber, DiskRecord, Epoch, FailureDomain, Held, HelperSelect, Home, LONG_AWAY_MS,
    NodeRecord, NodeState, ObjectName, Owner, PlacedBlock, Prefer, PutKey, REPLICAS_MAX, StripeRecord, UpdatesInPlace, UploadId,
};
pub use repair_limit::RepairLimit;
pub use rows::Rows;
pub use scrub::{
    SCRUB_AGAIN_MAX, SCRUB_WHY_BYTES_MAX, SCRUB_WRONG_MAX, ScrubPass, ScrubPlace, ScrubRecord, ScrubTally, WrongBlock,
};
pub use seed::Seed;
pub use seq::Seq;
pub use size::{AutoSize, ByteSize, counted, human_bytes};
pub use work::{StageTimes, TaskTraffic};

/// Bytes of a block that one page checksum covers. Reads of blocks are multiples of it.
pub const PAGE_LEN: u64 = 4096;

/// Bytes of a block that one checksum in the metadata covers; the last one of a block covers the rest.
pub const CHECKSUM_UNIT_LEN: u64 = 1 << 20;

/// The page checksums of a checksum unit.
pub const PAGES_PER_UNIT: usize = (CHECKSUM_UNIT_LEN / PAGE_LEN) as usize;

/// The most checksum units of one task whose pages a node reports.
pub const UNITS_OF_TASK_MAX: usize = 64;

/// The most new bytes of one update in place.
pub const UPDATE_BYTES_MAX: u64 = 16 << 20;
/// The most new bytes of one update, unless its client asks for more: journals of 86 MiB or more take them.
pub const UPDATE_BYTES_USUAL: u64 = 1 << 20;

/// The most bytes that are appended to a stripe at once: its blocks are opened longer, with zeros, before they are written.
pub const APPENDED_AT_ONCE_MAX: u64 = 4 << 20;

/// The largest payload of one frame on the wire, bytes.
pub const FRAME_PAYLOAD_BYTES_MAX: usize = 1 << 20;

/// The most blocks of a code (GF(2^8)).
pub const BLOCKS_MAX: usize = 255;

/// A clock; it is passed in, so that a simulation can control it.
pub trait Clock: Send + Sync {
    /// Milliseconds since 1970-01-01T00:00:00Z.
    fn now_ms(&self) -> u64;
}

/// The machine's own clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "the only place that reads the machine's clock")]
    fn now_ms(&self) -> u64 {
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
    }
}
