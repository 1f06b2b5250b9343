//! The metadata's records as values.

use weft_types::{
    Ack, BlockId, BlockState, ClusterId, Epoch, FailureDomain, GarbageReason, Home, Layout, NodeId, ObjectName, PutKey,
    RepairLimit, StripeId, StripeLayout, UpdatesInPlace, UploadId,
};

/// One page of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page<T> {
    /// At most as many items as requested.
    pub items: Vec<T>,
    /// Whether more items follow.
    pub more: bool,
}

/// What to list of a bucket.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Listing {
    /// Only keys that begin with this.
    pub prefix: String,
    /// Keys with this text behind the prefix are rolled up to the folder that ends with it. Empty: no folders.
    pub delimiter: String,
    /// Only what comes after this key or folder.
    pub after: String,
    /// The most items: objects and folders.
    pub limit: u32,
}

/// An item of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Listed {
    /// An object.
    Object(ObjectRecord),
    /// The common beginning of the keys of one or more objects, up to the end of the delimiter.
    Folder(String),
}

/// The initial state of a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewCluster {
    /// The cluster's id, drawn at random.
    pub id: ClusterId,
    /// The database's incarnation, drawn at random: distinguishes it from any other database of the same cluster.
    pub incarnation: u128,
    /// Its first policies.
    pub policies: Vec<PolicyRecord>,
    /// When the cluster was created, milliseconds since 1970.
    pub created_ms: u64,
    /// Whether lost blocks are rebuilt without a person.
    pub auto_repair: bool,
}

/// The cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterRecord {
    /// Its id.
    pub id: ClusterId,
    /// The database's incarnation: a restored or rebuilt database has another one.
    pub incarnation: String,
    /// The leader's epoch; 0 before the first.
    pub epoch: Epoch,
    /// The highest stripe number ever assigned.
    pub stripes_high_water: u64,
    /// When the cluster was created, milliseconds since 1970.
    pub created_ms: u64,
    /// Whether lost blocks are rebuilt without a person.
    pub auto_repair: bool,
    /// The limit on repair.
    pub repair_limit: RepairLimit,
}

/// Totals of the metadata.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Totals {
    /// Visible objects.
    pub objects: u64,
    /// Their stripes.
    pub stripes: u64,
    /// Their bytes.
    pub data_bytes: u64,
}

impl Totals {
    pub(crate) fn and(self, of: Self) -> Self {
        Self {
            objects: self.objects + of.objects,
            stripes: self.stripes + of.stripes,
            data_bytes: self.data_bytes + of.data_bytes,
        }
    }
}

/// A node as its agent registers it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewNode {
    /// Its number, if it has one.
    pub id: Option<NodeId>,
    /// Its name, chosen by the operator; unique.
    pub name: String,
    /// Its rack.
    pub rack: String,
    /// Its zone.
    pub zone: String,
    /// The address for data connections.
    pub data_address: String,
    /// The address for gRPC calls.
    pub control_address: String,
    /// All its disks.
    pub disks: Vec<NewDisk>,
}

/// A disk as its agent reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewDisk {
    /// The id drawn when the disk was created.
    pub id: String,
    /// Its directory.
    pub path: String,
    /// Its size, in bytes.
    pub total_bytes: u64,
    /// Whether it failed.
    pub failed: bool,
    /// Where it was before, if it was another node's and is taken over with its blocks.
    pub taken_from: Option<Home>,
}

/// A step of the move of blocks that follow their disk to another node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FollowDisk {
    /// Where the disk was.
    pub from: Home,
    /// The last block of the step before.
    pub after: Option<BlockId>,
    /// The most blocks.
    pub limit: u32,
    /// Whether earlier steps may have moved blocks that are not marked as to be checked.
    pub unchecked: bool,
    /// Only this block, out of its turn: the walk is neither continued nor ended, and `after`, `limit` and `unchecked` do not count.
    pub only: Option<BlockId>,
}

/// What a step of such a move has done.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FollowedBlocks {
    /// The stripes whose blocks have followed.
    pub moved: Vec<StripeId>,
    /// How many blocks cannot follow now.
    pub stayed: u64,
    /// The last block that was looked at. `None` while records of garbage follow, which come first.
    pub last: Option<BlockId>,
    /// Whether there is more to look at, behind that block.
    pub more: bool,
    /// Whether nothing is left where the disk was, so that this was forgotten.
    pub complete: bool,
}

/// A storage policy: how objects are coded and placed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyRecord {
    /// Its name.
    pub name: String,
    /// The code's canonical spec.
    pub code: String,
    /// The nominal length of a block, in bytes.
    pub block_len: u64,
    /// The length of a cell, in bytes.
    pub cell_len: u64,
    /// The unit of placement: two blocks of a stripe never share one.
    pub failure_domain: FailureDomain,
    /// When a put is acknowledged.
    pub ack: Ack,
    /// Copies of each data block, including the coded one: 1 to [`REPLICAS_MAX`](weft_types::REPLICAS_MAX).
    pub replicas: u8,
    /// Whether bytes of objects may be changed in place, and appended.
    pub updates: UpdatesInPlace,
    /// Whether buckets without a named policy get this one.
    pub is_default: bool,
}

/// A bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BucketRecord {
    /// Its name.
    pub name: String,
    /// Its policy's name.
    pub policy: String,
    /// When it was created, milliseconds since 1970.
    pub created_ms: u64,
    /// The number of objects in it.
    pub objects: u64,
}

/// A visible object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectRecord {
    /// Its name.
    pub name: ObjectName,
    /// The put or conversion that created it; unique in the cluster.
    pub version: UploadId,
    /// The put that wrote its content; it grows with each put of the key. It differs from `version` after a conversion.
    /// Two versions with the same `written` have the same bytes.
    pub written: UploadId,
    /// Its size, in bytes.
    pub size: u64,
    /// The code's canonical spec.
    pub code: String,
    /// The layout of its blocks.
    pub layout: Layout,
    /// Its number of stripes.
    pub stripes: u64,
    /// When its content was committed, milliseconds since 1970; a conversion does not change it.
    pub created_ms: u64,
}

/// A new put.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewUpload {
    /// The object that it creates.
    pub name: ObjectName,
    /// The code's canonical spec.
    pub code: String,
    /// The layout of its blocks.
    pub layout: Layout,
    /// The unit of placement.
    pub failure_domain: FailureDomain,
    /// When it is acknowledged.
    pub ack: Ack,
    /// Copies of each data block, including the coded one: 1 to [`REPLICAS_MAX`](weft_types::REPLICAS_MAX).
    pub replicas: u8,
    /// When it began, milliseconds since 1970.
    pub created_ms: u64,
    /// When it is aborted unless its lease is extended, milliseconds since 1970.
    pub expires_ms: u64,
    /// For a conversion: the version that it converts and must replace.
    pub replaces: Option<UploadId>,
    /// The key that the writer must send with each call.
    pub key: PutKey,
}

/// A running put.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UploadRecord {
    /// Its number.
    pub id: UploadId,
    /// Its parameters; `expires_ms` is the current one.
    pub new: NewUpload,
}

/// A newly allocated stripe of a put.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewStripe {
    /// Its number in the object, from 0.
    pub number: u64,
    /// Its layout.
    pub layout: StripeLayout,
    /// The homes of its blocks, by index, then those of further copies of its data blocks, by copy and index.
    pub homes: Vec<Home>,
}

/// The allocations that a put releases.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Leftovers {
    /// Stripes that no agent knows of: their allocations are deleted, and nothing becomes garbage.
    pub unopened: Vec<StripeId>,
    /// When nodes may remove the other released blocks, milliseconds since 1970.
    pub garbage_not_before_ms: u64,
}

/// The parameters of a commit.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CommitPut {
    /// The bytes of all its stripes.
    pub size: u64,
    /// The time of the commit, milliseconds since 1970.
    pub now_ms: u64,
    /// The allocations that it releases. The blocks of the previous version become garbage under the same rules.
    pub leftovers: Leftovers,
}

/// The end of a stripe's write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndStripe {
    /// The put that it belongs to.
    pub upload: UploadId,
    /// The stripe.
    pub stripe: StripeId,
    /// Its blocks and their copies, in the order of [`StripeRecord::all`](weft_types::StripeRecord::all): generation, home and state, including
    /// missing blocks.
    pub blocks: Vec<(u32, Home, BlockState)>,
    /// The CRC32C of each MiB of each block, by index.
    pub checksums: Vec<Vec<u32>>,
    /// When nodes may remove unused allocations, milliseconds since 1970.
    pub garbage_not_before_ms: u64,
}

/// A block to rebuild.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewRepair {
    /// Its stripe.
    pub stripe: StripeId,
    /// Its index.
    pub index: u8,
    /// The copy's number; it may be a new copy.
    pub copy: u8,
    /// Its new home.
    pub home: Home,
    /// The put, if its stripe has not ended yet.
    pub upload: Option<UploadId>,
    /// The term of the stripe's updates in the record that it is planned from; `None`: any.
    pub term: Option<u64>,
    /// When the allocation expires, milliseconds since 1970. For a put, it expires with the put.
    pub expires_ms: u64,
}

/// A block that was allocated and does not belong to a stripe yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Allocation {
    /// The block, in its new generation.
    pub block: BlockId,
    /// Its new home.
    pub home: Home,
    /// The put that it is for; `None` for a repair.
    pub upload: Option<UploadId>,
    /// The epoch in which it was allocated.
    pub epoch: Epoch,
    /// When it expires, milliseconds since 1970.
    pub expires_ms: u64,
}

/// A block that its node may remove.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GarbageBlock {
    /// The block.
    pub block: BlockId,
    /// Where it is, if it was written at all.
    pub home: Home,
    /// The reason.
    pub reason: GarbageReason,
    /// Its length; `None` if unknown, for example of a block that may never have arrived.
    pub bytes: Option<u64>,
    /// When its node may remove it, milliseconds since 1970.
    pub not_before_ms: u64,
}

/// A step of the removal of a node or a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Departure {
    /// The records of garbage that this step deleted.
    pub garbage_blocks: u64,
    /// Whether the node or disk is removed. Otherwise more garbage is left.
    pub complete: bool,
}

/// The garbage of one disk for one reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GarbageTotal {
    /// The disk, if the blocks were written at all.
    pub home: Home,
    /// The reason.
    pub reason: GarbageReason,
    /// The number of blocks.
    pub blocks: u64,
    /// Bytes of the blocks whose length is known.
    pub bytes: u64,
    /// The number of blocks of unknown length.
    pub unmeasured_blocks: u64,
    /// When the first may be removed, milliseconds since 1970.
    pub first_ms: u64,
    /// When the last may be removed, milliseconds since 1970.
    pub last_ms: u64,
}
