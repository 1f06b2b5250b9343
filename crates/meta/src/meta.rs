//! The interface to the metadata.

use crate::*;
use async_trait::async_trait;
use weft_types::{
    BlockId, BlockState, DiskNumber, Epoch, GarbageReason, Home, JobId, JobProgress, JobRecord, JobState, JobWork, NodeId,
    NodeRecord, NodeState, ObjectName, Owner, Span, StripeId, StripeRecord, UploadId,
};

/// The cluster's metadata. Each method is one transaction: it happens whole and is durable when it returns, or not at all.
///
/// Whatever takes an [`Epoch`] changes something, and does so only while that epoch's leader leads.
#[async_trait]
pub trait Meta: Send + Sync {
    /// The cluster: its id, its leader's epoch, its high-water marks.
    async fn cluster(&self) -> Result<ClusterRecord>;
    /// Begins a new epoch, which is the caller's.
    async fn become_leader(&self) -> Result<Epoch>;
    /// Transactions that changed something and are durable, since this was opened.
    fn commits(&self) -> u64;
    /// How much there is.
    async fn totals(&self) -> Result<Totals>;

    /// A node comes, or comes back: a node's number and its name are bound to each other for good.
    /// Disks that it had and does not name any more are taken for failed.
    async fn register_node(&self, epoch: Epoch, node: NewNode) -> Result<NodeRecord>;
    /// A node goes up or down.
    async fn set_node_state(&self, epoch: Epoch, node: NodeId, state: NodeState) -> Result<()>;
    /// A disk fails, or is well again.
    async fn set_disk_failed(&self, epoch: Epoch, disk: DiskNumber, failed: bool) -> Result<()>;
    /// All nodes, by number.
    async fn nodes(&self) -> Result<Vec<NodeRecord>>;
    /// How many blocks each disk has that has any.
    async fn blocks_per_disk(&self) -> Result<Vec<(DiskNumber, u64)>>;
    /// The blocks on a disk, in order, after one.
    async fn blocks_on(&self, home: Home, after: Option<BlockId>, limit: u32) -> Result<Page<BlockId>>;

    /// Makes a policy. If it is to be the default, another one ceases to be.
    async fn create_policy(&self, epoch: Epoch, policy: PolicyRecord) -> Result<()>;
    /// All policies, by name.
    async fn policies(&self) -> Result<Vec<PolicyRecord>>;
    /// Removes a policy that is not the default and that no bucket has.
    async fn remove_policy(&self, epoch: Epoch, name: &str) -> Result<()>;
    /// Makes another policy the default.
    async fn set_default_policy(&self, epoch: Epoch, name: &str) -> Result<()>;

    /// Makes a bucket with a policy, or with what is the default now.
    async fn create_bucket(&self, epoch: Epoch, name: &str, policy: Option<&str>, now_ms: u64) -> Result<BucketRecord>;
    /// A bucket and its policy.
    async fn bucket(&self, name: &str) -> Result<(BucketRecord, PolicyRecord)>;
    /// All buckets, by name.
    async fn buckets(&self) -> Result<Vec<BucketRecord>>;
    /// Removes a bucket that is empty and into which nothing is being put.
    async fn remove_bucket(&self, epoch: Epoch, name: &str) -> Result<()>;

    /// An object.
    async fn object(&self, name: &ObjectName) -> Result<ObjectRecord>;
    /// The object that a put has made.
    async fn object_of(&self, version: UploadId) -> Result<ObjectRecord>;
    /// The object that says what a put wrote, if there still is one: also if it was converted since.
    async fn object_written_by(&self, put: UploadId) -> Result<Option<ObjectRecord>>;
    /// Objects of a bucket whose keys begin with `prefix`, by key, after one.
    async fn objects(&self, bucket: &str, prefix: &str, after: &str, limit: u32) -> Result<Page<ObjectRecord>>;
    /// Removes an object; its blocks become garbage.
    async fn remove_object(&self, epoch: Epoch, name: &ObjectName, garbage_not_before_ms: u64) -> Result<ObjectRecord>;
    /// The stripes that have ended and have a block on a disk, in order, after one.
    async fn stripes_on(&self, home: Home, after: Option<StripeId>, limit: u32) -> Result<Page<StripeRecord>>;
    /// Stripes of the object of a version, by number, from one on.
    async fn stripes(&self, version: UploadId, from: u64, limit: u32) -> Result<Page<StripeRecord>>;
    /// A stripe.
    async fn stripe(&self, stripe: StripeId) -> Result<StripeRecord>;

    /// Begins a put into a bucket that exists, and allocates its first stripes.
    async fn begin_put(
        &self,
        epoch: Epoch,
        upload: NewUpload,
        stripes: Vec<NewStripe>,
    ) -> Result<(UploadRecord, Vec<StripeRecord>)>;
    /// A put under way.
    async fn upload(&self, upload: UploadId) -> Result<UploadRecord>;
    /// The stripe of that number of a put under way.
    async fn upload_stripe(&self, upload: UploadId, number: u64) -> Result<StripeRecord>;
    /// Puts off the end of a put's lease.
    async fn extend_upload(&self, epoch: Epoch, upload: UploadId, expires_ms: u64) -> Result<()>;
    /// Allocates stripes of a put. One of the same number that has not ended is given up: its blocks become garbage.
    async fn allocate_stripes(
        &self,
        epoch: Epoch,
        upload: UploadId,
        stripes: Vec<NewStripe>,
        leftovers: Leftovers,
    ) -> Result<Vec<StripeRecord>>;
    /// The blocks of a stripe of a put are durable, or as many as it may be acknowledged with: it is incomplete then until no block of
    /// it is missing any more. With `commit` the put is committed too, as by [`commit_put`](Self::commit_put): both happen or neither.
    async fn end_stripe(
        &self,
        epoch: Epoch,
        end: EndStripe,
        commit: Option<CommitPut>,
    ) -> Result<(StripeRecord, Option<ObjectRecord>)>;
    /// Makes a put's object visible and its predecessor garbage, if all stripes have ended and their bytes are those of `commit`. A
    /// conversion is a conflict unless its predecessor is the version that it replaces, whose time and number of writing it takes over.
    async fn commit_put(&self, epoch: Epoch, upload: UploadId, commit: CommitPut) -> Result<ObjectRecord>;
    /// Stripes that are incomplete, in order, after one: of objects, and of puts under way.
    async fn incomplete_stripes(&self, after: Option<StripeId>, limit: u32) -> Result<Page<StripeRecord>>;
    /// Those of a put under way or of an object, by number, from one on.
    async fn incomplete_of(&self, owner: Owner, from: u64, limit: u32) -> Result<Page<StripeRecord>>;
    /// Gives up a put; whatever it allocated becomes garbage.
    async fn abort_put(&self, epoch: Epoch, upload: UploadId, leftovers: Leftovers) -> Result<()>;
    /// The puts whose lease has ended, the oldest first.
    async fn expired_uploads(&self, now_ms: u64, limit: u32) -> Result<Vec<UploadRecord>>;

    /// Allocates a block's next generation: for a put, of a stripe that has not ended, or for a repair, of one that has. A conflict, if its node has another block of the stripe, or is to get one: a node
    /// takes one.
    async fn allocate_repair(&self, epoch: Epoch, repair: NewRepair) -> Result<BlockId>;
    /// The rebuilt block takes the place of the same copy of generation `old` (0: there was no such copy), if that is still the one
    /// that counts and the rebuilt one's checksums `units` are those that are recorded. The old one becomes garbage. A conflict, if its node has
    /// another block of the stripe by now.
    async fn commit_repair(
        &self,
        epoch: Epoch,
        block: BlockId,
        old: u32,
        checksums: Vec<u32>,
        garbage_not_before_ms: u64,
    ) -> Result<StripeRecord>;
    /// Of an object's stripe only these are left, one copy of each block; all other copies become garbage. A conflict, if one of
    /// these is not what counts any more or, where there are others, is not good.
    async fn drop_copies(
        &self,
        epoch: Epoch,
        stripe: StripeId,
        keep: Vec<BlockId>,
        garbage_not_before_ms: u64,
    ) -> Result<StripeRecord>;
    /// Gives up an allocated block; it becomes garbage. It is no error if it was given up already.
    async fn abort_repair(&self, epoch: Epoch, block: BlockId, garbage_not_before_ms: u64) -> Result<()>;
    /// Gives up the repairs' allocations that have expired and those of earlier leaders, whose plans died with them.
    /// They become garbage when they expire. Tells how many.
    async fn expire_repairs(&self, epoch: Epoch, now_ms: u64) -> Result<u64>;
    /// What is allocated, in order of blocks.
    async fn allocations(&self) -> Result<Vec<Allocation>>;
    /// What is known of a block as a whole changes, if that generation still counts. Only one that was missing becomes good. Tells
    /// whether it did.
    async fn mark_block(&self, epoch: Epoch, block: BlockId, state: BlockState) -> Result<bool>;
    /// These bytes of a block are corrupt, in addition to those that are known to be, if that generation still counts and the
    /// block is not lost as a whole. If that makes more than [`CORRUPT_RANGES_MAX`] ranges, it is from now on. Tells whether
    /// anything changed.
    async fn mark_corrupt(&self, epoch: Epoch, block: BlockId, bytes: Vec<Span>) -> Result<bool>;

    /// What a node may remove by now for one reason.
    async fn garbage(&self, node: NodeId, reason: GarbageReason, now_ms: u64, limit: u32) -> Result<Vec<GarbageBlock>>;
    /// All garbage, whenever it may be removed, by disk and reason.
    async fn garbage_totals(&self) -> Result<Vec<GarbageTotal>>;
    /// A person wants a node's unexpected garbage removed, whatever it is: from now on that is its reason. Tells how many blocks.
    async fn release_garbage(&self, epoch: Epoch, node: NodeId) -> Result<u64>;
    /// How much garbage there is, whenever it may be removed, and on whatever node.
    async fn garbage_count(&self) -> Result<u64>;
    /// Those of `blocks`, which were found on a node, that nothing is known of: neither the block that counts of any stripe, nor
    /// allocated, nor garbage of that node.
    async fn orphans(&self, node: NodeId, blocks: Vec<BlockId>) -> Result<Vec<BlockId>>;
    /// The node has removed them.
    async fn forget_garbage(&self, epoch: Epoch, node: NodeId, blocks: Vec<BlockId>) -> Result<()>;

    /// Begins a job, which runs from then on. Refused while another one of its kind about the same is running or paused. A bucket
    /// that is converted carries its new policy from this moment on: puts that begin later need no conversion.
    async fn create_job(&self, epoch: Epoch, work: JobWork, now_ms: u64) -> Result<JobRecord>;
    /// A job.
    async fn job(&self, job: JobId) -> Result<JobRecord>;
    /// All jobs, by number: those that are running or paused, and the [`ENDED_JOBS_MAX`] that ended last.
    async fn jobs(&self) -> Result<Vec<JobRecord>>;
    /// A job changes its state, with how far it has come if that is known anew. Refused if that state cannot follow the one that
    /// it has ([`JobState::may_become`]).
    async fn set_job_state(
        &self,
        epoch: Epoch,
        job: JobId,
        state: JobState,
        progress: Option<JobProgress>,
        now_ms: u64,
    ) -> Result<JobRecord>;
    /// A job has come so far; also one that has ended, as what was under way then may have gone on.
    async fn set_job_progress(&self, epoch: Epoch, job: JobId, progress: JobProgress, now_ms: u64) -> Result<JobRecord>;
}
