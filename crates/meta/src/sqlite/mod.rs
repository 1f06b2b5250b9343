//! The metadata in one SQLite file.
//!
//! The database uses WAL with `synchronous=FULL`: a transaction is durable when it returns. One connection makes all changes, so they have
//! one order; those that wait at the same time are committed together ([`group`]). A second reads the last committed state, without waiting.

mod appends;
mod backup;
mod blocks;
mod cluster;
mod connection;
mod departures;
mod feed;
mod garbage;
mod group;
mod jobs;
mod listing;
mod mode;
mod moved;
mod nodes;
mod objects;
mod policies;
mod puts;
mod rows;
mod schema;
mod scrubs;
mod terms;
mod update_meta;

pub use backup::backup;
pub use mode::MetaMode;

use crate::*;
use async_trait::async_trait;
use connection::connect;
use group::Writer;
use rusqlite::{Connection, Transaction};
use std::{
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};
use weft_types::{
    Amount, BlockId, BlockState, DiskNumber, Epoch, GarbageReason, Held, Home, JobId, JobProgress, JobRecord, JobState, JobWork,
    NodeId, NodeRecord, NodeState, ObjectName, Owner, RepairLimit, ScrubRecord, StripeId, StripeRecord, UploadId,
};

/// [`Meta`] in a SQLite file. Clones share the connections.
#[derive(Clone)]
pub struct SqliteMeta {
    writer: Arc<Writer>,
    reader: Arc<Mutex<Connection>>,
    mode: MetaMode,
}

impl std::fmt::Debug for SqliteMeta {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SqliteMeta").field("mode", &self.mode).finish_non_exhaustive()
    }
}

impl SqliteMeta {
    /// Opens the file, migrates its schema, and creates the cluster `new` in it if it has none.
    pub fn open(path: &Path, mode: MetaMode, new: &NewCluster) -> Result<Self> {
        let mut writer = connect(path)?;
        writer.pragma_update(None, "journal_mode", "WAL")?;
        writer.pragma_update(None, "synchronous", "FULL")?;
        writer.pragma_update(None, "foreign_keys", true)?;
        schema::migrate(&mut writer)?;
        schema::create_cluster(&mut writer, new)?;
        feed::record(&writer)?;
        let reader = connect(path)?;
        reader.pragma_update(None, "query_only", true)?;
        Ok(Self { writer: Arc::new(Writer::new(writer)), reader: Arc::new(Mutex::new(reader)), mode })
    }

    /// A read-only transaction on the last committed state.
    async fn read<T, F>(&self, query: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&Transaction<'_>) -> Result<T> + Send + 'static,
    {
        let reader = Arc::clone(&self.reader);
        let run = move || {
            // A query that panicked left no transaction open: its drop ended it.
            let mut connection = reader.lock().unwrap_or_else(PoisonError::into_inner);
            query(&connection.transaction()?)
        };
        self.mode.run(run).await.unwrap_or_else(Err)
    }

    /// A transaction for the leader of an epoch.
    async fn write<T, F>(&self, epoch: Epoch, change: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&Transaction<'_>) -> Result<T> + Send + 'static,
    {
        self.change(move |tx| {
            cluster::require_leader(tx, epoch)?;
            change(tx)
        })
        .await
    }

    /// One transaction; an error of `change` rolls it back.
    async fn change<T, F>(&self, change: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&Transaction<'_>) -> Result<T> + Send + 'static,
    {
        let answer = self.writer.enqueue(change);
        self.commit_waiting().await?;
        answer.await.unwrap_or_else(|_| Err(MetaError::Storage("a transaction was aborted".into())))
    }

    async fn commit_waiting(&self) -> Result<()> {
        let writer = Arc::clone(&self.writer);
        self.mode.run(move || writer.commit_waiting()).await
    }

    /// A query on the writing connection, the only one that sees what [`feed`] records.
    async fn recorded<T, F>(&self, query: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> Result<T> + Send + 'static,
    {
        let writer = Arc::clone(&self.writer);
        self.mode.run(move || writer.with_connection(query)).await.unwrap_or_else(Err)
    }
}

#[async_trait]
impl Meta for SqliteMeta {
    async fn cluster(&self) -> Result<ClusterRecord> {
        self.read(cluster::get).await
    }

    async fn become_leader(&self) -> Result<Epoch> {
        self.change(cluster::become_leader).await
    }

    fn commits(&self) -> u64 {
        self.writer.commits()
    }

    async fn totals(&self) -> Result<Totals> {
        Ok(self.totals_by_code().await?.into_iter().fold(Totals::default(), |sum, (_, of)| sum.and(of)))
    }

    async fn totals_by_code(&self) -> Result<Vec<(String, Totals)>> {
        self.recorded(feed::totals_by_code).await
    }

    async fn totals_by_bucket(&self) -> Result<Vec<(String, String, Totals)>> {
        self.recorded(feed::totals_by_bucket).await
    }

    async fn changed_stripes(&self, limit: u32) -> Result<Vec<StripeId>> {
        self.recorded(move |writer| feed::take_changed(writer, limit)).await
    }

    async fn set_auto_repair(&self, epoch: Epoch, on: bool) -> Result<()> {
        self.write(epoch, move |tx| cluster::set_auto_repair(tx, on)).await
    }

    async fn set_repair_limit(&self, epoch: Epoch, limit: RepairLimit) -> Result<()> {
        self.write(epoch, move |tx| cluster::set_repair_limit(tx, limit)).await
    }

    async fn register_node(&self, epoch: Epoch, node: NewNode, now_ms: u64) -> Result<NodeRecord> {
        self.write(epoch, move |tx| nodes::register(tx, &node, now_ms)).await
    }

    async fn set_node_state(&self, epoch: Epoch, node: NodeId, state: NodeState, since_ms: u64) -> Result<()> {
        self.write(epoch, move |tx| nodes::set_state(tx, node, state, since_ms)).await
    }

    async fn set_checked(&self, epoch: Epoch, node: NodeId) -> Result<()> {
        self.write(epoch, move |tx| nodes::set_checked(tx, node)).await
    }

    async fn set_draining(&self, epoch: Epoch, node: NodeId, disk: Option<DiskNumber>, on: bool) -> Result<()> {
        self.write(epoch, move |tx| nodes::set_draining(tx, node, disk, on)).await
    }

    async fn retire_disk(&self, epoch: Epoch, home: Home) -> Result<()> {
        self.write(epoch, move |tx| nodes::retire_disk(tx, home)).await
    }

    async fn set_disk_failed(&self, epoch: Epoch, disk: DiskNumber, failed: bool) -> Result<()> {
        self.write(epoch, move |tx| nodes::set_disk_failed(tx, disk, failed)).await
    }

    async fn nodes(&self) -> Result<Vec<NodeRecord>> {
        self.read(nodes::list).await
    }

    async fn blocks_per_disk(&self) -> Result<Vec<(DiskNumber, u64)>> {
        self.read(nodes::blocks_per_disk).await
    }

    async fn blocks_on(&self, home: Home, after: Option<BlockId>, limit: u32) -> Result<Page<BlockId>> {
        self.read(move |tx| nodes::blocks_on(tx, home, after, limit)).await
    }

    async fn held(&self, node: NodeId, disk: Option<DiskNumber>) -> Result<Held> {
        self.read(move |tx| departures::held(tx, node, disk)).await
    }

    async fn remove_node(&self, epoch: Epoch, node: NodeId, now_ms: u64, garbage_max: u32) -> Result<Departure> {
        self.write(epoch, move |tx| departures::remove_node(tx, node, now_ms, garbage_max)).await
    }

    async fn forget_disk(&self, epoch: Epoch, home: Home, garbage_max: u32) -> Result<Departure> {
        self.write(epoch, move |tx| departures::forget_disk(tx, home, garbage_max)).await
    }

    async fn follow_disk(&self, epoch: Epoch, step: FollowDisk) -> Result<FollowedBlocks> {
        self.write(epoch, move |tx| moved::follow(tx, step)).await
    }

    async fn create_policy(&self, epoch: Epoch, policy: PolicyRecord) -> Result<()> {
        self.write(epoch, move |tx| policies::create(tx, &policy)).await
    }

    async fn policies(&self) -> Result<Vec<PolicyRecord>> {
        self.read(policies::list).await
    }

    async fn remove_policy(&self, epoch: Epoch, name: &str) -> Result<()> {
        let name = name.to_owned();
        self.write(epoch, move |tx| policies::remove(tx, &name)).await
    }

    async fn set_default_policy(&self, epoch: Epoch, name: &str) -> Result<()> {
        let name = name.to_owned();
        self.write(epoch, move |tx| policies::set_default(tx, &name)).await
    }

    async fn create_bucket(&self, epoch: Epoch, name: &str, policy: Option<&str>, now_ms: u64) -> Result<BucketRecord> {
        let (name, policy) = (name.to_owned(), policy.map(str::to_owned));
        self.write(epoch, move |tx| policies::create_bucket(tx, &name, policy.as_deref(), now_ms)).await
    }

    async fn bucket(&self, name: &str) -> Result<(BucketRecord, PolicyRecord)> {
        let name = name.to_owned();
        self.read(move |tx| policies::bucket_and_policy(tx, &name)).await
    }

    async fn buckets(&self) -> Result<Vec<BucketRecord>> {
        self.read(policies::buckets).await
    }

    async fn remove_bucket(&self, epoch: Epoch, name: &str) -> Result<()> {
        let name = name.to_owned();
        self.write(epoch, move |tx| policies::remove_bucket(tx, &name)).await
    }

    async fn object(&self, name: &ObjectName) -> Result<ObjectRecord> {
        let name = name.clone();
        self.read(move |tx| objects::get(tx, &name)).await
    }

    async fn object_of(&self, version: UploadId) -> Result<ObjectRecord> {
        self.read(move |tx| objects::of_version(tx, version)).await
    }

    async fn object_written_by(&self, put: UploadId) -> Result<Option<ObjectRecord>> {
        self.read(move |tx| objects::written_by(tx, put)).await
    }

    async fn objects(&self, bucket: &str, prefix: &str, after: &str, limit: u32) -> Result<Page<ObjectRecord>> {
        let (bucket, prefix, after) = (bucket.to_owned(), prefix.to_owned(), after.to_owned());
        self.read(move |tx| listing::objects(tx, &bucket, Listing { prefix, after, limit, ..Listing::default() })).await
    }

    async fn listing(&self, bucket: &str, query: Listing) -> Result<Page<Listed>> {
        let bucket = bucket.to_owned();
        self.read(move |tx| listing::page(tx, &bucket, &query)).await
    }

    async fn remove_objects(
        &self,
        epoch: Epoch,
        names: Vec<ObjectName>,
        stripes_max: u64,
        garbage_not_before_ms: u64,
    ) -> Result<Vec<Result<ObjectRecord>>> {
        self.write(epoch, move |tx| objects::remove_some(tx, &names, stripes_max, garbage_not_before_ms)).await
    }

    async fn remove_object(&self, epoch: Epoch, name: &ObjectName, garbage_not_before_ms: u64) -> Result<ObjectRecord> {
        let name = name.clone();
        self.write(epoch, move |tx| objects::remove(tx, &name, garbage_not_before_ms)).await
    }

    async fn stripes(&self, version: UploadId, from: u64, limit: u32) -> Result<Page<StripeRecord>> {
        self.read(move |tx| objects::stripes(tx, version, from, limit)).await
    }

    async fn stripes_on(&self, home: Home, after: Option<StripeId>, limit: u32) -> Result<Page<StripeRecord>> {
        self.read(move |tx| rows::stripes_on(tx, home, after, limit)).await
    }

    async fn object_stripes(&self, after: Option<StripeId>, limit: u32) -> Result<Page<StripeRecord>> {
        self.read(move |tx| rows::of_objects(tx, after, limit)).await
    }

    async fn find_stripes(&self, stripes: Vec<StripeId>) -> Result<Vec<StripeRecord>> {
        self.read(move |tx| stripes.into_iter().filter_map(|id| rows::find_stripe(tx, id).transpose()).collect()).await
    }

    async fn stripe(&self, stripe: StripeId) -> Result<StripeRecord> {
        self.read(move |tx| rows::stripe(tx, stripe)).await
    }

    async fn begin_put(
        &self,
        epoch: Epoch,
        upload: NewUpload,
        stripes: Vec<NewStripe>,
    ) -> Result<(UploadRecord, Vec<StripeRecord>)> {
        self.write(epoch, move |tx| {
            let upload = puts::begin(tx, upload)?;
            let stripes = puts::allocate_stripes(tx, epoch, &upload, &stripes, 0)?;
            Ok((upload, stripes))
        })
        .await
    }

    async fn upload(&self, upload: UploadId) -> Result<UploadRecord> {
        self.read(move |tx| puts::get(tx, upload)).await
    }

    async fn upload_stripe(&self, upload: UploadId, number: u64) -> Result<StripeRecord> {
        self.read(move |tx| puts::stripe(tx, upload, number)).await
    }

    async fn extend_upload(&self, epoch: Epoch, upload: UploadId, expires_ms: u64) -> Result<()> {
        self.write(epoch, move |tx| puts::extend(tx, upload, expires_ms)).await
    }

    async fn allocate_stripes(
        &self,
        epoch: Epoch,
        upload: UploadId,
        stripes: Vec<NewStripe>,
        leftovers: Leftovers,
    ) -> Result<Vec<StripeRecord>> {
        self.write(epoch, move |tx| {
            puts::forget_unopened(tx, upload, &leftovers.unopened)?;
            puts::allocate_stripes(tx, epoch, &puts::get(tx, upload)?, &stripes, leftovers.garbage_not_before_ms)
        })
        .await
    }

    async fn end_stripe(
        &self,
        epoch: Epoch,
        end: EndStripe,
        commit: Option<CommitPut>,
    ) -> Result<(StripeRecord, Option<ObjectRecord>)> {
        self.write(epoch, move |tx| {
            let upload = end.upload;
            let stripe = puts::end_stripe(tx, end)?;
            let object = commit.map(|commit| puts::commit(tx, upload, &commit)).transpose()?;
            Ok((stripe, object))
        })
        .await
    }

    async fn commit_put(&self, epoch: Epoch, upload: UploadId, commit: CommitPut) -> Result<ObjectRecord> {
        self.write(epoch, move |tx| puts::commit(tx, upload, &commit)).await
    }

    async fn incomplete_stripes(&self, after: Option<StripeId>, limit: u32) -> Result<Page<StripeRecord>> {
        self.read(move |tx| rows::incomplete(tx, after, limit)).await
    }

    async fn incomplete_of(&self, owner: Owner, from: u64, limit: u32) -> Result<Page<StripeRecord>> {
        self.read(move |tx| rows::incomplete_of(tx, owner, from, limit)).await
    }

    async fn abort_put(&self, epoch: Epoch, upload: UploadId, leftovers: Leftovers) -> Result<()> {
        self.write(epoch, move |tx| puts::abort(tx, upload, &leftovers)).await
    }

    async fn expired_uploads(&self, now_ms: u64, limit: u32) -> Result<Vec<UploadRecord>> {
        self.read(move |tx| puts::expired(tx, now_ms, limit)).await
    }

    async fn allocate_repair(&self, epoch: Epoch, repair: NewRepair) -> Result<BlockId> {
        self.write(epoch, move |tx| blocks::allocate(tx, epoch, &repair)).await
    }

    async fn commit_repair(
        &self,
        epoch: Epoch,
        block: BlockId,
        old: u32,
        checksums: Vec<u32>,
        garbage_not_before_ms: u64,
    ) -> Result<StripeRecord> {
        self.write(epoch, move |tx| blocks::commit(tx, block, old, &checksums, garbage_not_before_ms)).await
    }

    async fn drop_copies(
        &self,
        epoch: Epoch,
        stripe: StripeId,
        keep: Vec<BlockId>,
        garbage_not_before_ms: u64,
    ) -> Result<StripeRecord> {
        self.write(epoch, move |tx| blocks::drop_copies(tx, stripe, &keep, garbage_not_before_ms)).await
    }

    async fn abort_repair(&self, epoch: Epoch, block: BlockId, garbage_not_before_ms: u64) -> Result<()> {
        self.write(epoch, move |tx| blocks::abort(tx, block, garbage_not_before_ms)).await
    }

    async fn extend_repairs(&self, epoch: Epoch, blocks: Vec<BlockId>, expires_ms: u64) -> Result<()> {
        self.write(epoch, move |tx| blocks::extend(tx, &blocks, expires_ms)).await
    }

    async fn expire_repairs(&self, epoch: Epoch, now_ms: u64) -> Result<u64> {
        self.write(epoch, move |tx| blocks::expire(tx, epoch, now_ms)).await
    }

    async fn allocations(&self) -> Result<Vec<Allocation>> {
        self.read(blocks::allocations).await
    }

    async fn mark_block(&self, epoch: Epoch, block: BlockId, state: BlockState) -> Result<bool> {
        self.write(epoch, move |tx| blocks::mark(tx, block, state)).await
    }

    async fn garbage(
        &self,
        node: NodeId,
        reason: GarbageReason,
        now_ms: u64,
        after: Option<(u64, BlockId)>,
        limit: u32,
    ) -> Result<Page<GarbageBlock>> {
        self.read(move |tx| garbage::list(tx, node, reason, now_ms, after, limit)).await
    }

    async fn garbage_totals(&self) -> Result<Vec<GarbageTotal>> {
        self.read(garbage::totals).await
    }

    async fn release_garbage(&self, epoch: Epoch, node: NodeId) -> Result<u64> {
        self.write(epoch, move |tx| garbage::release(tx, node)).await
    }

    async fn garbage_per_disk(&self) -> Result<Vec<(Home, Amount)>> {
        self.recorded(feed::garbage_per_disk).await
    }

    async fn orphans(&self, node: NodeId, blocks: Vec<BlockId>) -> Result<Vec<BlockId>> {
        self.read(move |tx| blocks::orphans(tx, node, blocks)).await
    }

    async fn forget_garbage(&self, epoch: Epoch, node: NodeId, blocks: Vec<BlockId>) -> Result<()> {
        self.write(epoch, move |tx| garbage::forget(tx, node, &blocks)).await
    }

    async fn create_job(&self, epoch: Epoch, work: JobWork, now_ms: u64) -> Result<JobRecord> {
        self.write(epoch, move |tx| jobs::create(tx, &work, now_ms)).await
    }

    async fn job(&self, job: JobId) -> Result<JobRecord> {
        self.read(move |tx| jobs::get(tx, job)).await
    }

    async fn jobs(&self) -> Result<Vec<JobRecord>> {
        self.read(jobs::list).await
    }

    async fn set_job_state(
        &self,
        epoch: Epoch,
        job: JobId,
        state: JobState,
        progress: Option<JobProgress>,
        now_ms: u64,
    ) -> Result<JobRecord> {
        self.write(epoch, move |tx| jobs::set_state(tx, job, state, progress, now_ms)).await
    }

    async fn set_job_progress(&self, epoch: Epoch, job: JobId, progress: JobProgress, now_ms: u64) -> Result<JobRecord> {
        self.write(epoch, move |tx| jobs::set_progress(tx, job, progress, now_ms)).await
    }

    async fn scrub(&self, job: Option<JobId>) -> Result<ScrubRecord> {
        self.read(move |tx| scrubs::get(tx, job)).await
    }

    async fn set_scrub(&self, epoch: Epoch, job: Option<JobId>, record: ScrubRecord) -> Result<()> {
        self.write(epoch, move |tx| scrubs::set(tx, job, &record)).await
    }
}
