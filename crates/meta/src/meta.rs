//! The interface to the metadata.

use crate::*;
use async_trait::async_trait;
use weft_types::{
    Amount, BlockId, BlockState, DiskNumber, Epoch, GarbageReason, Held, Home, JobId, JobProgress, JobRecord, JobState, JobWork,
    NodeId, NodeRecord, NodeState, ObjectName, Owner, RepairLimit, ScrubRecord, StripeId, StripeRecord, UploadId,
};

/// The cluster's metadata. Each method is one transaction: when it returns, it is complete and durable, or nothing
/// happened.
///
/// A method that takes an [`Epoch`] makes a change, and only while that epoch is current.
#[async_trait]
pub trait Meta: UpdateMeta + AppendMeta + Send + Sync {
    /// The cluster: its id, its leader's epoch, its high-water marks.
    async fn cluster(&self) -> Result<ClusterRecord>;
    /// Begins a new epoch, with the caller as leader.
    async fn become_leader(&self) -> Result<Epoch>;
    /// The number of durable transactions that changed something, since this was opened.
    fn commits(&self) -> u64;
    /// The totals of objects, stripes and bytes. They are maintained, not counted for each call.
    async fn totals(&self) -> Result<Totals>;
    /// The same totals by code spec.
    async fn totals_by_code(&self) -> Result<Vec<(String, Totals)>>;
    /// The same totals by bucket and code spec.
    async fn totals_by_bucket(&self) -> Result<Vec<(String, String, Totals)>>;
    /// Records whether lost blocks are rebuilt without a person.
    async fn set_auto_repair(&self, epoch: Epoch, on: bool) -> Result<()>;
    /// Records the limit on repair.
    async fn set_repair_limit(&self, epoch: Epoch, limit: RepairLimit) -> Result<()>;
    /// Takes at most `limit` stripes of objects that were written or dropped since the database was opened. Each change is returned once.
    async fn changed_stripes(&self, limit: u32) -> Result<Vec<StripeId>>;

    /// Registers a node that is new or restarted. A node's number and name are bound to each other until the node is
    /// removed; its number is never used again. Disks that it had and no longer lists are marked failed.
    /// It is then up; if it was not before, since `now_ms`.
    ///
    /// A disk with `taken_from` gets a new number at this node. A conflict if that is not where it is, or if the other node is up and has it.
    /// Its blocks follow with [`Self::follow_disk`].
    async fn register_node(&self, epoch: Epoch, node: NewNode, now_ms: u64) -> Result<NodeRecord>;
    /// Changes the state of a node, since `since_ms`. A node that is in this state already keeps the time since when,
    /// and one that is up does not become lost.
    async fn set_node_state(&self, epoch: Epoch, node: NodeId, state: NodeState, since_ms: u64) -> Result<()>;
    /// The blocks of a node that came back have been checked.
    async fn set_checked(&self, epoch: Epoch, node: NodeId) -> Result<()>;
    /// Records whether a node or, with `disk`, one of its disks is being drained.
    async fn set_draining(&self, epoch: Epoch, node: NodeId, disk: Option<DiskNumber>, on: bool) -> Result<()>;
    /// Records that a disk is drained for good. [`Self::set_draining`] ends it.
    async fn retire_disk(&self, epoch: Epoch, home: Home) -> Result<()>;
    /// Marks a disk as failed or healthy.
    async fn set_disk_failed(&self, epoch: Epoch, disk: DiskNumber, failed: bool) -> Result<()>;
    /// All nodes, by number.
    async fn nodes(&self) -> Result<Vec<NodeRecord>>;
    /// The number of blocks on each disk that has any.
    async fn blocks_per_disk(&self) -> Result<Vec<(DiskNumber, u64)>>;
    /// The blocks on a disk, in order, after `after`.
    async fn blocks_on(&self, home: Home, after: Option<BlockId>, limit: u32) -> Result<Page<BlockId>>;

    /// What a node or, with `disk`, one of its disks holds.
    async fn held(&self, node: NodeId, disk: Option<DiskNumber>) -> Result<Held>;
    /// Removes a node for good, with its disks and its records of garbage. A conflict if it is up, holds a block or an
    /// allocation, or takes part in a job that has not ended. Deletes at most `garbage_max` records of garbage, to bound
    /// the time that other changes wait: if more are left, the node stays, and the caller asks again.
    async fn remove_node(&self, epoch: Epoch, node: NodeId, now_ms: u64, garbage_max: u32) -> Result<Departure>;
    /// Removes a failed disk in the same way. If its agent lists it again later, it is a new disk.
    async fn forget_disk(&self, epoch: Epoch, home: Home, garbage_max: u32) -> Result<Departure>;
    /// Moves blocks to where their disk is now, with their generations, states and corrupt bytes, in the order of [`Self::blocks_on`]. Records
    /// of garbage go first. A block stays where it is, lost, if it is missing, if its stripe is open for updates, or if the new node has, or is
    /// about to get, another block of its stripe; it may follow later.
    ///
    /// The last step of a walk marks the new node's blocks as to be checked if any has moved, and forgets the place of before if nothing is
    /// left there; otherwise that is a failed disk from then on.
    ///
    /// With [`FollowDisk::only`] one block moves out of its turn, and no walk ends.
    async fn follow_disk(&self, epoch: Epoch, step: FollowDisk) -> Result<FollowedBlocks>;

    /// Creates a policy. If it is the new default, the old default is no longer one.
    async fn create_policy(&self, epoch: Epoch, policy: PolicyRecord) -> Result<()>;
    /// All policies, by name.
    async fn policies(&self) -> Result<Vec<PolicyRecord>>;
    /// Removes a policy. Fails if it is the default or a bucket uses it.
    async fn remove_policy(&self, epoch: Epoch, name: &str) -> Result<()>;
    /// Makes this policy the default.
    async fn set_default_policy(&self, epoch: Epoch, name: &str) -> Result<()>;

    /// Creates a bucket with the given policy, or with the current default.
    async fn create_bucket(&self, epoch: Epoch, name: &str, policy: Option<&str>, now_ms: u64) -> Result<BucketRecord>;
    /// A bucket and its policy.
    async fn bucket(&self, name: &str) -> Result<(BucketRecord, PolicyRecord)>;
    /// All buckets, by name.
    async fn buckets(&self) -> Result<Vec<BucketRecord>>;
    /// Removes a bucket. Fails if it has objects or running puts.
    async fn remove_bucket(&self, epoch: Epoch, name: &str) -> Result<()>;

    /// An object.
    async fn object(&self, name: &ObjectName) -> Result<ObjectRecord>;
    /// The object that a put has created.
    async fn object_of(&self, version: UploadId) -> Result<ObjectRecord>;
    /// The object whose content a put wrote, if it still exists: also after a conversion.
    async fn object_written_by(&self, put: UploadId) -> Result<Option<ObjectRecord>>;
    /// The objects of a bucket whose keys begin with `prefix`, by key, after `after`.
    async fn objects(&self, bucket: &str, prefix: &str, after: &str, limit: u32) -> Result<Page<ObjectRecord>>;
    /// A page of a listing of a bucket: objects, and folders of them in place of their keys.
    async fn listing(&self, bucket: &str, query: Listing) -> Result<Page<Listed>>;
    /// Removes objects in order; their blocks become garbage. One transaction for all of them. It ends early behind the object with which
    /// the removed stripes are at least `stripes_max`, to bound the time that other changes wait: the caller asks again for the rest.
    /// Returns the results of the first objects; an object that does not exist does not fail the others.
    async fn remove_objects(
        &self,
        epoch: Epoch,
        names: Vec<ObjectName>,
        stripes_max: u64,
        garbage_not_before_ms: u64,
    ) -> Result<Vec<Result<ObjectRecord>>>;
    /// Removes an object; its blocks become garbage.
    async fn remove_object(&self, epoch: Epoch, name: &ObjectName, garbage_not_before_ms: u64) -> Result<ObjectRecord>;
    /// The ended stripes that have a block on a disk, in order, after `after`.
    async fn stripes_on(&self, home: Home, after: Option<StripeId>, limit: u32) -> Result<Page<StripeRecord>>;
    /// The stripes of an object's version, by number, from `from` on.
    async fn stripes(&self, version: UploadId, from: u64, limit: u32) -> Result<Page<StripeRecord>>;
    /// The stripes of all objects, in order, after `after`.
    async fn object_stripes(&self, after: Option<StripeId>, limit: u32) -> Result<Page<StripeRecord>>;
    /// Returns those of these stripes that still exist.
    async fn find_stripes(&self, stripes: Vec<StripeId>) -> Result<Vec<StripeRecord>>;
    /// A stripe.
    async fn stripe(&self, stripe: StripeId) -> Result<StripeRecord>;

    /// Begins a put into an existing bucket, and allocates its first stripes.
    async fn begin_put(
        &self,
        epoch: Epoch,
        upload: NewUpload,
        stripes: Vec<NewStripe>,
    ) -> Result<(UploadRecord, Vec<StripeRecord>)>;
    /// A running put.
    async fn upload(&self, upload: UploadId) -> Result<UploadRecord>;
    /// The stripe with this number of a running put.
    async fn upload_stripe(&self, upload: UploadId, number: u64) -> Result<StripeRecord>;
    /// Extends a put's lease.
    async fn extend_upload(&self, epoch: Epoch, upload: UploadId, expires_ms: u64) -> Result<()>;
    /// Allocates stripes of a put. An unfinished stripe with the same number is dropped, and its blocks become garbage.
    async fn allocate_stripes(
        &self,
        epoch: Epoch,
        upload: UploadId,
        stripes: Vec<NewStripe>,
        leftovers: Leftovers,
    ) -> Result<Vec<StripeRecord>>;
    /// Records that a stripe's blocks are durable, or as many of them as the acknowledgement needs. In the second case
    /// the stripe is incomplete until no block is missing. With `commit`, also commits the put like
    /// [`commit_put`](Self::commit_put), in the same transaction.
    async fn end_stripe(
        &self,
        epoch: Epoch,
        end: EndStripe,
        commit: Option<CommitPut>,
    ) -> Result<(StripeRecord, Option<ObjectRecord>)>;
    /// Makes a put's object visible and its predecessor garbage. All stripes must have ended, and their bytes must add
    /// up to those of `commit`. A conversion is a conflict unless the current version is the one that it replaces, and no stripe of it was
    /// opened for updates since the conversion began; it
    /// keeps that version's time and `written`.
    async fn commit_put(&self, epoch: Epoch, upload: UploadId, commit: CommitPut) -> Result<ObjectRecord>;
    /// The incomplete stripes of objects and of running puts, in order, after `after`.
    async fn incomplete_stripes(&self, after: Option<StripeId>, limit: u32) -> Result<Page<StripeRecord>>;
    /// The incomplete stripes of a running put or of an object, by number, from `from` on.
    async fn incomplete_of(&self, owner: Owner, from: u64, limit: u32) -> Result<Page<StripeRecord>>;
    /// Aborts a put; all its allocations become garbage.
    async fn abort_put(&self, epoch: Epoch, upload: UploadId, leftovers: Leftovers) -> Result<()>;
    /// The puts whose lease has expired, the oldest first.
    async fn expired_uploads(&self, now_ms: u64, limit: u32) -> Result<Vec<UploadRecord>>;

    /// Allocates a block's next generation: for a put, in a stripe that has not ended; for a repair, in one that has. A
    /// conflict if the stripe is open for updates, if its term is not the one that the repair was planned with, or if the node has, or is about to
    /// get, another block of the stripe: a node holds one block of a stripe.
    async fn allocate_repair(&self, epoch: Epoch, repair: NewRepair) -> Result<BlockId>;
    /// Replaces the same copy of generation `old` (0: there was none) by the rebuilt block. The old block must be
    /// current, and the checksums must equal the recorded ones; if those are unknown, they are recorded. The old block becomes
    /// garbage. A conflict if the stripe is open for updates, or if the node has another block of the stripe by now.
    async fn commit_repair(
        &self,
        epoch: Epoch,
        block: BlockId,
        old: u32,
        checksums: Vec<u32>,
        garbage_not_before_ms: u64,
    ) -> Result<StripeRecord>;
    /// Keeps only these blocks of an object's stripe, one copy of each; all other copies become garbage. A conflict if
    /// the stripe is open for updates, or if one of `keep` is no longer current or, where other copies exist, is not good.
    async fn drop_copies(
        &self,
        epoch: Epoch,
        stripe: StripeId,
        keep: Vec<BlockId>,
        garbage_not_before_ms: u64,
    ) -> Result<StripeRecord>;
    /// Releases an allocated block, which becomes garbage. Succeeds if it was released already.
    async fn abort_repair(&self, epoch: Epoch, block: BlockId, garbage_not_before_ms: u64) -> Result<()>;
    /// Extends the leases of repairs' allocations to `expires_ms`, unless they end later. Those that were released stay released.
    async fn extend_repairs(&self, epoch: Epoch, blocks: Vec<BlockId>, expires_ms: u64) -> Result<()>;
    /// Releases expired allocations of repairs, and those of earlier leaders, whose plans have ended. They become garbage when they expire.
    /// Returns their number.
    async fn expire_repairs(&self, epoch: Epoch, now_ms: u64) -> Result<u64>;
    /// All allocations, in the order of their blocks.
    async fn allocations(&self) -> Result<Vec<Allocation>>;
    /// Changes the state of a block as a whole, if that generation is current. Only a missing block can become good.
    /// Returns whether the state changed: never of a stripe that is open for updates, whose next seal finds what is lost.
    async fn mark_block(&self, epoch: Epoch, block: BlockId, state: BlockState) -> Result<bool>;

    /// The garbage of one reason that a node may remove now, the oldest first, after `after`: a block and its `not_before_ms`.
    async fn garbage(
        &self,
        node: NodeId,
        reason: GarbageReason,
        now_ms: u64,
        after: Option<(u64, BlockId)>,
        limit: u32,
    ) -> Result<Page<GarbageBlock>>;
    /// All garbage, by disk and reason, including garbage that may not be removed yet. All of it is read.
    async fn garbage_totals(&self) -> Result<Vec<GarbageTotal>>;
    /// Changes the reason of a node's unexpected garbage to removal by a user. Returns the number of blocks.
    async fn release_garbage(&self, epoch: Epoch, node: NodeId) -> Result<u64>;
    /// The amount of garbage on each disk that has some, including garbage that may not be removed yet; of blocks of unknown length, no bytes. It
    /// is maintained, so it takes the same time however much there is.
    async fn garbage_per_disk(&self) -> Result<Vec<(Home, Amount)>>;
    /// Those of `blocks`, found on a node, that the metadata does not know: neither current in a stripe, nor allocated,
    /// nor garbage of that node.
    async fn orphans(&self, node: NodeId, blocks: Vec<BlockId>) -> Result<Vec<BlockId>>;
    /// Deletes the records of garbage that the node has removed.
    async fn forget_garbage(&self, epoch: Epoch, node: NodeId, blocks: Vec<BlockId>) -> Result<()>;

    /// Creates a job, which is then running. Fails while another job of its kind and subject is running or paused. A
    /// bucket that is converted gets its new policy in this transaction, so later puts need no conversion.
    async fn create_job(&self, epoch: Epoch, work: JobWork, now_ms: u64) -> Result<JobRecord>;
    /// A job.
    async fn job(&self, job: JobId) -> Result<JobRecord>;
    /// All jobs, by number: those that are running or paused, and the [`ENDED_JOBS_MAX`] that ended last.
    async fn jobs(&self) -> Result<Vec<JobRecord>>;
    /// Changes a job's state and, if given, its progress. Fails if the new state cannot follow the current one
    /// ([`JobState::may_become`]).
    async fn set_job_state(
        &self,
        epoch: Epoch,
        job: JobId,
        state: JobState,
        progress: Option<JobProgress>,
        now_ms: u64,
    ) -> Result<JobRecord>;
    /// Records a job's progress, also after it has ended, because running work may have finished since.
    async fn set_job_progress(&self, epoch: Epoch, job: JobId, progress: JobProgress, now_ms: u64) -> Result<JobRecord>;

    /// How far the scrub of a job is or, without one, that of all data in the background.
    async fn scrub(&self, job: Option<JobId>) -> Result<ScrubRecord>;
    /// Records it.
    async fn set_scrub(&self, epoch: Epoch, job: Option<JobId>, record: ScrubRecord) -> Result<()>;
}
