//! The operator's setting which disks are drained without a person.

use serde::{Deserialize, Serialize};

/// Which disks that still work are drained without a person.
///
/// The default is `Failing`: a disk that loses blocks will lose more, and each block that moves in time needs no rebuild. A slow disk loses nothing,
/// and slowness can have another cause than the disk, so a person decides about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DrainFailingDisks {
    /// None.
    Off,
    /// Those with many corrupt or unreadable blocks.
    #[default]
    Failing,
    /// Also those that are much slower than the others.
    Slow,
}
