//! Jobs: node repairs, conversions and balancing, which outlive a coordinator. The client starts, watches, pauses, resumes and cancels them.

use crate::{Client, Repair};
use std::time::Duration;
use weft_proto::v1::{
    BalancePlan, BalanceRequest, ChangeJobRequest, ConvertRequest, Empty, Job, JobRequest, RepairNodeRequest, ScrubRequest,
};
use weft_types::{NodeId, Result};

/// How often the progress of a job is polled.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);

/// How the blocks of a node are rebuilt elsewhere.
///
/// ```
/// # use weft_client::RepairNodeOptions;
/// let options = RepairNodeOptions { select: "random".into(), concurrency: 8, ..RepairNodeOptions::default() };
/// ```
#[derive(Debug, Clone, Default)]
pub struct RepairNodeOptions {
    /// Which nodes take part, and when: `boost`, `balance`, `schedule`, `polling`, `sequential`, `lru`, `lru-stripe`, `random`,
    /// `index`; empty: the coordinator's choice.
    pub select: String,
    /// What is minimised if the scheme is open: `whole`, `time`, `traffic`; empty: the time of the whole job.
    pub prefer: String,
    /// The nodes that get the rebuilt blocks; none: the coordinator chooses.
    pub to: Vec<NodeId>,
    /// The scheme; empty: the coordinator's choice.
    pub scheme: String,
    /// Stripes repaired at the same time, at most; 0: the coordinator's choice.
    pub concurrency: u32,
    /// Bytes of a slice; 0: the coordinator's choice.
    pub slice_len: u64,
    /// Also repair a node that is up: move all of its blocks.
    pub force: bool,
}

/// How objects are converted to another code.
///
/// ```
/// # use weft_client::ConvertOptions;
/// let options = ConvertOptions { concurrency: 4, bytes_per_s: 50 << 20 };
/// ```
#[derive(Debug, Clone, Default)]
pub struct ConvertOptions {
    /// Stripes written at the same time; 0: the coordinator's choice.
    pub concurrency: u32,
    /// Average bytes of data converted per second, over all stripes; 0: no limit.
    pub bytes_per_s: u64,
}

/// A change of a job's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobChange {
    /// Pause: start nothing new until the job is resumed.
    Pause,
    /// Resume.
    Resume,
    /// Cancel; completed work is kept.
    Cancel,
}

impl Client {
    /// Starts a job that rebuilds all blocks of a lost node elsewhere. The job survives disconnects.
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

    /// Starts a job that rewrites an object, or with an empty `key` a whole bucket, in the code and sizes of a policy; the bucket then
    /// uses that policy. The job survives disconnects. Objects stay readable all the time.
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

    /// Starts a job that moves blocks from fuller disks to emptier ones. `concurrency`: stripes at the same time, at most; 0: the coordinator's
    /// choice. The job survives disconnects.
    ///
    /// ```no_run
    /// # async fn example(client: weft_client::Client) -> weft_types::Result<()> {
    /// let job = client.balance(0).await?;
    /// println!("{}", client.wait_for_job(job.id, |_| {}).await?.state);
    /// # Ok(()) }
    /// ```
    pub async fn balance(&self, concurrency: u32) -> Result<Job> {
        let request = BalanceRequest { concurrency };
        self.shared().calls.once(request, |mut client, request| async move { client.balance(request).await }).await
    }

    /// Starts a job that checks stripes now: it reads all their blocks, and records what is wrong, so that it is rebuilt. The job survives
    /// disconnects.
    ///
    /// ```no_run
    /// # async fn example(client: weft_client::Client) -> weft_types::Result<()> {
    /// let job = client.scrub("photos", "", None, 0).await?;
    /// let ended = client.wait_for_job(job.id, |_| {}).await?;
    /// println!("{:?}", ended.scrubbed);
    /// # Ok(()) }
    /// ```
    ///
    /// `bucket` and `key`: those of an object, or with an empty key of a bucket; both empty: all. `node`: only those with a block there, if
    /// no bucket is named. `concurrency`: stripes at the same time; 0: the coordinator's choice.
    pub async fn scrub(&self, bucket: &str, key: &str, node: Option<NodeId>, concurrency: u32) -> Result<Job> {
        let node = node.map_or(0, |NodeId(node)| node);
        let request = ScrubRequest { bucket: bucket.into(), key: key.into(), node, concurrency };
        self.shared().calls.once(request, |mut client, request| async move { client.scrub(request).await }).await
    }

    /// What such a job would do now.
    ///
    /// ```no_run
    /// # async fn example(client: weft_client::Client) -> weft_types::Result<()> {
    /// println!("{} bytes would move", client.explain_balance(0).await?.bytes);
    /// # Ok(()) }
    /// ```
    pub async fn explain_balance(&self, concurrency: u32) -> Result<BalancePlan> {
        let request = BalanceRequest { concurrency };
        self.shared().calls.ask(request, |mut client, request| async move { client.explain_balance(request).await }).await
    }

    /// All jobs, by number; of the ended ones, the most recent.
    pub async fn jobs(&self) -> Result<Vec<Job>> {
        let asked = self.shared().calls.ask(Empty {}, |mut client, request| async move { client.list_jobs(request).await });
        asked.await.map(|reply| reply.jobs)
    }

    /// A job.
    pub async fn job(&self, id: u64) -> Result<Job> {
        self.shared().calls.ask(JobRequest { id }, |mut client, request| async move { client.get_job(request).await }).await
    }

    /// Pauses, resumes or cancels a job. Work in progress is completed, except for a cancelled conversion, which drops its incomplete
    /// objects at once.
    pub async fn change_job(&self, id: u64, change: JobChange) -> Result<Job> {
        let state = match change {
            JobChange::Pause => "paused",
            JobChange::Resume => "running",
            JobChange::Cancel => "cancelled",
        };
        let request = ChangeJobRequest { id, state: state.to_owned() };
        self.shared().calls.ask(request, |mut client, request| async move { client.change_job(request).await }).await
    }

    /// Waits until a job has ended and none of its work is in progress; calls `look` with its progress. Survives a restart of the
    /// coordinator within the client's patience: the next coordinator continues the job.
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
            prefer: self.prefer.clone(),
        }
    }
}
