//! Jobs: the repair of a whole node, conversions, and whatever else outlives a coordinator. The client begins them, looks on, and tells them to
//! wait, go on or end.

use crate::{Client, Repair};
use std::time::Duration;
use weft_proto::v1::{ChangeJobRequest, ConvertRequest, Empty, Job, JobRequest, RepairNodeRequest};
use weft_types::{NodeId, Result};

/// How often it is asked how far a job is.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);

/// How a node's blocks are rebuilt elsewhere.
///
/// ```
/// # use weft_client::RepairNodeOptions;
/// let options = RepairNodeOptions { select: "random".into(), concurrency: 8, ..RepairNodeOptions::default() };
/// ```
#[derive(Debug, Clone, Default)]
pub struct RepairNodeOptions {
    /// Which nodes help: `lru`, `random`, `index`; empty: the coordinator's choice.
    pub select: String,
    /// The nodes that get the rebuilt blocks; none: the coordinator chooses.
    pub to: Vec<NodeId>,
    /// The scheme; empty: the coordinator's choice.
    pub scheme: String,
    /// Stripes that are repaired at the same time; 0: the coordinator's choice.
    pub concurrency: u32,
    /// Bytes of a slice; 0: the coordinator's choice.
    pub slice_len: u64,
    /// Also if the node is up, and then all of its blocks.
    pub force: bool,
}

/// How objects are written anew in another code.
///
/// ```
/// # use weft_client::ConvertOptions;
/// let options = ConvertOptions { concurrency: 4, bytes_per_s: 50 << 20 };
/// ```
#[derive(Debug, Clone, Default)]
pub struct ConvertOptions {
    /// Stripes that are written at the same time; 0: the coordinator's choice.
    pub concurrency: u32,
    /// Bytes of data that are converted in a second, on the average of all stripes; 0: not bounded.
    pub bytes_per_s: u64,
}

/// What a job can be asked to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobChange {
    /// Begin nothing new until it is resumed.
    Pause,
    /// Go on.
    Resume,
    /// End, with what it has done.
    Cancel,
}

impl Client {
    /// Begins to rebuild all blocks of a lost node elsewhere: the job, which goes on whoever looks on.
    ///
    /// ```no_run
    /// # async fn example(client: weft_client::Client) -> weft_types::Result<()> {
    /// # use weft_client::RepairNodeOptions;
    /// let job = client.repair_node(weft_types::NodeId(3), &RepairNodeOptions::default()).await?;
    /// let ended = client.wait_for_job(job.id, |job| println!("{:?} of {:?}", job.done, job.total)).await?;
    /// println!("{}", ended.state);
    /// # Ok(()) }
    /// ```
    pub async fn repair_node(&self, node: NodeId, options: &RepairNodeOptions) -> Result<Job> {
        let request = options.request(node);
        self.shared().calls.once(request, |mut client, request| async move { client.repair_node(request).await }).await
    }

    /// The plans with which such a job would begin; nothing is done.
    ///
    /// ```no_run
    /// # async fn example(client: weft_client::Client) -> weft_types::Result<()> {
    /// # use weft_client::RepairNodeOptions;
    /// let mut plans = client.explain_repair_node(weft_types::NodeId(3), &RepairNodeOptions::default()).await?;
    /// while let Some(event) = plans.next().await? {
    ///     println!("{event:?}");
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn explain_repair_node(&self, node: NodeId, options: &RepairNodeOptions) -> Result<Repair> {
        let request = options.request(node);
        let asked =
            self.shared().calls.stream(request, |mut client, request| async move { client.explain_repair_node(request).await });
        Ok(Repair::of_node(asked.await?))
    }

    /// Begins to write an object, or with an empty `key` all of a bucket, anew in the code and sizes of a policy, which the bucket
    /// carries from then on: the job, which goes on whoever looks on. What is there stays readable all the time.
    ///
    /// ```no_run
    /// # async fn example(client: weft_client::Client) -> weft_types::Result<()> {
    /// # use weft_client::ConvertOptions;
    /// let job = client.convert("photos", "", "cold", &ConvertOptions::default()).await?;
    /// println!("{}", client.wait_for_job(job.id, |_| {}).await?.state);
    /// # Ok(()) }
    /// ```
    pub async fn convert(&self, bucket: &str, key: &str, policy: &str, options: &ConvertOptions) -> Result<Job> {
        let ConvertOptions { concurrency, bytes_per_s } = *options;
        let request = ConvertRequest { bucket: bucket.into(), key: key.into(), policy: policy.into(), concurrency, bytes_per_s };
        self.shared().calls.once(request, |mut client, request| async move { client.convert(request).await }).await
    }

    /// All jobs, by number; of those that have ended, the last ones.
    pub async fn jobs(&self) -> Result<Vec<Job>> {
        let asked = self.shared().calls.ask(Empty {}, |mut client, request| async move { client.list_jobs(request).await });
        asked.await.map(|reply| reply.jobs)
    }

    /// A job.
    pub async fn job(&self, id: u64) -> Result<Job> {
        self.shared().calls.ask(JobRequest { id }, |mut client, request| async move { client.get_job(request).await }).await
    }

    /// Tells a job to wait, to go on or to end. What is under way ends by itself, but of a conversion that is cancelled: of objects that are
    /// not converted yet, everything is given up at once.
    pub async fn change_job(&self, id: u64, change: JobChange) -> Result<Job> {
        let state = match change {
            JobChange::Pause => "paused",
            JobChange::Resume => "running",
            JobChange::Cancel => "cancelled",
        };
        let request = ChangeJobRequest { id, state: state.to_owned() };
        self.shared().calls.ask(request, |mut client, request| async move { client.change_job(request).await }).await
    }

    /// Waits until a job has ended and nothing of it is under way any more; `look` sees it on its way. A coordinator that is gone
    /// for no longer than the client's patience does not matter: the next one goes on with the job.
    pub async fn wait_for_job(&self, id: u64, mut look: impl FnMut(&Job)) -> Result<Job> {
        loop {
            let job = self.job(id).await?;
            look(&job);
            if job.stripes_under_way == 0 && !matches!(job.state.as_str(), "running" | "paused") {
                return Ok(job);
            }
            tokio::time::sleep(LOOK_INTERVAL).await;
        }
    }
}

impl RepairNodeOptions {
    fn request(&self, node: NodeId) -> RepairNodeRequest {
        RepairNodeRequest {
            node: node.0,
            select: self.select.clone(),
            to_nodes: self.to.iter().map(|node| node.0).collect(),
            scheme: self.scheme.clone(),
            concurrency: self.concurrency,
            slice_len: self.slice_len,
            force: self.force,
        }
    }
}
