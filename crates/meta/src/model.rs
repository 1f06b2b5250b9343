//! What the metadata says, as values.

use weft_types::{
    Ack, BlockId, BlockState, ClusterId, Epoch, FailureDomain, GarbageReason, Home, Layout, NodeId, ObjectName, PutKey, StripeId,
    StripeLayout, UploadId,
};

/// Some of a list, and whether there is more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page<T> {
    /// At most as many as were asked for.
    pub items: Vec<T>,
    /// Whether others follow.
    pub more: bool,
}

/// What a cluster begins with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewCluster {
    /// Its id, drawn at random.
    pub id: ClusterId,
    /// Names this database among all that may ever claim to be the cluster's, drawn at random.
    pub incarnation: u128,
    /// Its first policies.
    pub policies: Vec<PolicyRecord>,
    /// When, milliseconds since 1970.
    pub created_ms: u64,
}

/// The cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterRecord {
    /// Its id.
    pub id: ClusterId,
    /// Names this database: a restored or rebuilt one has another.
    pub incarnation: String,
    /// The leader's epoch; 0 before the first.
    pub epoch: Epoch,
    /// The highest stripe number that was ever given.
    pub stripes_high_water: u64,
    /// When it was made, milliseconds since 1970.
    pub created_ms: u64,
}

/// How much there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Totals {
    /// Objects that can be seen.
    pub objects: u64,
    /// Their stripes.
    pub stripes: u64,
    /// Their bytes.
    pub data_bytes: u64,
}

/// What an agent says of itself when it registers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewNode {
    /// Its number, if it has one.
    pub id: Option<NodeId>,
    /// What the operator calls it; unique.
    pub name: String,
    /// Its rack.
    pub rack: String,
    /// Its zone.
    pub zone: String,
    /// Where it takes data connections.
    pub data_address: String,
    /// Where it takes calls.
    pub control_address: String,
    /// All its disks.
    pub disks: Vec<NewDisk>,
}

/// A disk as its agent tells of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewDisk {
    /// Drawn when the disk became part of the cluster.
    pub id: String,
    /// Where it is mounted.
    pub path: String,
    /// Its size.
    pub total_bytes: u64,
    /// Whether it failed.
    pub failed: bool,
}

/// A name for how objects are coded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyRecord {
    /// Its name.
    pub name: String,
    /// The code's canonical spec.
    pub code: String,
    /// Nominal bytes of a block.
    pub block_len: u64,
    /// Bytes of a cell.
    pub cell_len: u64,
    /// What is kept apart.
    pub failure_domain: FailureDomain,
    /// When a put is acknowledged.
    pub ack: Ack,
    /// Copies of each data block, with the coded one: 1 to [`REPLICAS_MAX`].
    pub replicas: u8,
    /// Whether it is the one for buckets that name none.
    pub is_default: bool,
}

/// A bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BucketRecord {
    /// Its name.
    pub name: String,
    /// Its policy's name.
    pub policy: String,
    /// When it was made, milliseconds since 1970.
    pub created_ms: u64,
    /// Objects in it.
    pub objects: u64,
}

/// An object that can be seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectRecord {
    /// Its name.
    pub name: ObjectName,
    /// The put or conversion that made it; nobody else's in the cluster.
    pub version: UploadId,
    /// The put that wrote what it says, and grows with each put of the key. Another one than `version` if it was converted since:
    /// two versions of the same `written` are the same bytes.
    pub written: UploadId,
    /// Bytes.
    pub size: u64,
    /// The code's canonical spec.
    pub code: String,
    /// Its blocks' layout.
    pub layout: Layout,
    /// How many stripes it has.
    pub stripes: u64,
    /// When what it says was committed, milliseconds since 1970; a conversion does not change it.
    pub created_ms: u64,
}

/// A put that begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewUpload {
    /// What it will make.
    pub name: ObjectName,
    /// The code's canonical spec.
    pub code: String,
    /// The blocks' layout.
    pub layout: Layout,
    /// What is kept apart.
    pub failure_domain: FailureDomain,
    /// When it is acknowledged.
    pub ack: Ack,
    /// Copies of each data block, with the coded one: 1 to [`REPLICAS_MAX`].
    pub replicas: u8,
    /// When it begins, milliseconds since 1970.
    pub created_ms: u64,
    /// When it is swept unless something happens before, milliseconds since 1970.
    pub expires_ms: u64,
    /// It is a conversion of the object of that version, and can be committed only in its place.
    pub replaces: Option<UploadId>,
    /// What its writer shows with each call.
    pub key: PutKey,
}

/// A put under way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UploadRecord {
    /// Its number.
    pub id: UploadId,
    /// What it began with; `expires_ms` as it is by now.
    pub new: NewUpload,
}

/// A stripe of a put that is allocated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewStripe {
    /// Its number in the object, from 0.
    pub number: u64,
    /// Its layout.
    pub layout: StripeLayout,
    /// Where its blocks will be, by index; and then, by copy and index, where further copies of its data blocks will be.
    pub homes: Vec<Home>,
}

/// What a put gives up of what it has allocated.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Leftovers {
    /// Stripes of it of which no agent was told: their allocations are forgotten, and nothing becomes garbage.
    pub unopened: Vec<StripeId>,
    /// From when on other blocks that are given up may be removed from their nodes, milliseconds since 1970.
    pub garbage_not_before_ms: u64,
}

/// How a put is committed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CommitPut {
    /// The bytes of all its stripes.
    pub size: u64,
    /// When, milliseconds since 1970.
    pub now_ms: u64,
    /// What it gives up; with it, the blocks of the version before become garbage.
    pub leftovers: Leftovers,
}

/// How a stripe ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndStripe {
    /// The put that it is of.
    pub upload: UploadId,
    /// Which stripe.
    pub stripe: StripeId,
    /// Its blocks and their copies, in the order of [`StripeRecord::all`]: where they are, in which generation; those that are
    /// missing too.
    pub blocks: Vec<(u32, Home, BlockState)>,
    /// CRC32C of each MiB of each block, by index.
    pub checksums: Vec<Vec<u32>>,
    /// From when on what was allocated and not used may be removed from its node, milliseconds since 1970.
    pub garbage_not_before_ms: u64,
}

/// A block that is to be rebuilt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewRepair {
    /// Its stripe.
    pub stripe: StripeId,
    /// Its index.
    pub index: u8,
    /// Which copy of it; it may be one that there was not yet.
    pub copy: u8,
    /// Where it will be.
    pub home: Home,
    /// For a stripe that its put has not ended yet, the put.
    pub upload: Option<UploadId>,
    /// When it is swept, milliseconds since 1970. What an upload allocates is swept with the upload.
    pub expires_ms: u64,
}

/// A block that was allocated and is of no stripe yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Allocation {
    /// The block, in its new generation.
    pub block: BlockId,
    /// Where it will be.
    pub home: Home,
    /// The put that it is for; none: a repair.
    pub upload: Option<UploadId>,
    /// The leader that allocated it.
    pub epoch: Epoch,
    /// When it is swept.
    pub expires_ms: u64,
}

/// A block that its node may remove.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GarbageBlock {
    /// The block.
    pub block: BlockId,
    /// Where it is, if it is anywhere.
    pub home: Home,
    /// Why.
    pub reason: GarbageReason,
    /// Its length; none: it is not known, as of a block that may not have come.
    pub bytes: Option<u64>,
    /// From when on, milliseconds since 1970.
    pub not_before_ms: u64,
}

/// The garbage of one disk that has one reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GarbageTotal {
    /// Where it is, if it is anywhere.
    pub home: Home,
    /// Why.
    pub reason: GarbageReason,
    /// How many blocks.
    pub blocks: u64,
    /// Of those of known length.
    pub bytes: u64,
    /// Those of unknown length.
    pub unmeasured_blocks: u64,
    /// From when on the first may be removed, milliseconds since 1970.
    pub first_ms: u64,
    /// From when on the last may be.
    pub last_ms: u64,
}
