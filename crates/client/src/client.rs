//! A connection to a cluster, and all operations that need no plan: buckets, policies, nodes, listings.

use crate::{
    background::Background,
    calls::{Calls, Random},
    config::ClientConfig,
    fetch::Begun,
    get::WINDOWS_MAX,
    update_links::UpdateLinks,
};
use futures::future::BoxFuture;
use std::{sync::Arc, time::Duration};
use weft_proto::{
    Peer, Pool, SliceMemory, rpc,
    v1::{
        AutoRepair, BeginRead, BegunRead, Bucket, Empty, HealthReply, ListDamageReply, ListDamageRequest, ListPoliciesRequest,
        Name, ObjectReply, Policy, RepairLimit, RepairLimitReply, SpaceReply, StatObjectRequest, StatusReply, StatusRequest,
    },
};
use weft_types::{ClusterId, Error, Reaction, Result};

/// A connection to a cluster. Clones share it.
#[derive(Clone)]
pub struct Client {
    shared: Arc<Shared>,
}

/// The state that all operations of a client share.
pub(crate) struct Shared {
    pub(crate) config: ClientConfig,
    pub(crate) calls: Calls,
    pub(crate) pool: Arc<Pool>,
    pub(crate) cluster: ClusterId,
    pub(crate) random: Random,
    pub(crate) background: Background,
    /// Memory of received slices. The windows of a get consist of it.
    pub(crate) slices: Arc<SliceMemory>,
    pub(crate) updates: UpdateLinks,
}

/// How long [`Client::close`] waits for outstanding messages to the coordinator.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// An object, and the read of one of its stripes that was started when it was looked up.
type Stated = (ObjectReply, Option<(u64, Begun)>);

impl Shared {
    /// Frees the buffers that are kept for the next read.
    pub(crate) fn forget_memory(&self) {
        self.slices.forget();
    }
}

impl Client {
    /// Connects to the first coordinator that answers, and asks for its cluster.
    ///
    /// ```no_run
    /// # async fn example() -> weft_types::Result<()> {
    /// use weft_client::{Client, ClientConfig};
    /// use weft_proto::Security;
    ///
    /// let client = Client::connect(ClientConfig::new(["127.0.0.1:7400"], Security::Insecure)).await?;
    /// println!("cluster {}", client.cluster());
    /// # Ok(()) }
    /// ```
    pub async fn connect(config: ClientConfig) -> Result<Self> {
        Self::connecting(config).await
    }

    /// Boxed, it is compiled here once, and not again in each crate that calls [`connect`](Self::connect).
    fn connecting(config: ClientConfig) -> BoxFuture<'static, Result<Self>> {
        Box::pin(async move {
            let random = Random::seeded(config.seed);
            let mut last = Error::invalid("no coordinator address given");
            for address in &config.coordinators {
                match rpc::connect(config.net.clone(), &config.security, address, &Peer::Coordinator).await {
                    Ok(channel) => {
                        let calls = Calls::new(channel, config.limits.clone(), random.clone(), config.delegation);
                        let cluster = match (config.delegation, config.cluster) {
                            // The agent that delegated the call knows the cluster; asking for the whole status costs more.
                            (Some(_), Some(cluster)) => cluster,
                            _ => cluster_of(&calls, &config).await?,
                        };
                        let pool = Pool::new(config.net.clone(), config.security.clone(), config.limits.pool.clone());
                        let (pool, background) = (Arc::new(pool), Background::default());
                        let windows_bytes = (config.limits.window_bytes_max as usize).saturating_mul(WINDOWS_MAX);
                        let slices = SliceMemory::within(windows_bytes);
                        let updates = UpdateLinks::new(config.net.clone(), config.security.clone(), cluster);
                        let shared = Shared { config, calls, pool, cluster, random, background, slices, updates };
                        return Ok(Self { shared: Arc::new(shared) });
                    }
                    Err(error) => last = error,
                }
            }
            Err(last)
        })
    }

    /// The cluster.
    pub fn cluster(&self) -> ClusterId {
        self.shared.cluster
    }

    /// Waits a few seconds at most until the coordinator knows of all aborted puts and ended reads.
    ///
    /// ```no_run
    /// # async fn example(client: weft_client::Client) {
    /// # use weft_client::PutOptions;
    /// let options = PutOptions::default();
    /// tokio::select! {
    ///     stored = client.put_file("b", "k", "file", &options) => println!("{stored:?}"),
    ///     _ = tokio::signal::ctrl_c() => {}
    /// }
    /// client.close().await; // nothing of a put that was given up is left behind
    /// # }
    /// ```
    pub async fn close(&self) {
        self.shared.background.finish(CLOSE_TIMEOUT).await;
    }

    /// The cluster's nodes and their states.
    ///
    /// ```no_run
    /// # async fn example(client: weft_client::Client) -> weft_types::Result<()> {
    /// for node in client.status().await?.nodes {
    ///     println!("{} is {}", node.name, node.state);
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn status(&self) -> Result<StatusReply> {
        self.shared.calls.ask(StatusRequest::default(), |mut client, request| async move { client.status(request).await }).await
    }

    /// Whether the cluster is healthy, and why not.
    ///
    /// ```no_run
    /// # async fn example(client: weft_client::Client) -> weft_types::Result<()> {
    /// let health = client.health().await?;
    /// println!("{}: {}", health.level, health.reasons.join("; "));
    /// # Ok(()) }
    /// ```
    pub async fn health(&self) -> Result<HealthReply> {
        self.shared.calls.ask(Empty {}, |mut client, request| async move { client.health(request).await }).await
    }

    /// Turns the repair without a person on or off. If it is off, [`Self::repair_node`] or [`Self::repair`] rebuilds lost blocks;
    /// what is being rebuilt is finished.
    pub async fn set_auto_repair(&self, on: bool) -> Result<()> {
        let set =
            self.shared.calls.ask(AutoRepair { on }, |mut client, request| async move { client.set_auto_repair(request).await });
        set.await.map(drop)
    }

    /// The limit on repairs, moves, conversions and scrubs, and where it is in force.
    pub async fn repair_limit(&self) -> Result<RepairLimitReply> {
        self.shared.calls.ask(Empty {}, |mut client, request| async move { client.get_repair_limit(request).await }).await
    }

    /// Sets that limit, durably and at once. Answers when all nodes that are up have confirmed it, or after two seconds.
    ///
    /// ```no_run
    /// # async fn example(client: weft_client::Client) -> weft_types::Result<()> {
    /// let limit = weft_client::api::RepairLimit { bytes_per_s: Some(100 << 20), ..Default::default() };
    /// let told = client.set_repair_limit(limit).await?;
    /// println!("{} nodes have not confirmed it", told.nodes.iter().filter(|node| node.state != "confirmed").count());
    /// # Ok(()) }
    /// ```
    pub async fn set_repair_limit(&self, limit: RepairLimit) -> Result<RepairLimitReply> {
        self.shared.calls.ask(limit, |mut client, request| async move { client.set_repair_limit(request).await }).await
    }

    /// An object: its stripes, the locations of their blocks, and their checksums.
    ///
    /// ```no_run
    /// # async fn example(client: weft_client::Client) -> weft_types::Result<()> {
    /// println!("{} bytes", client.stat("photos", "cat.jpg").await?.size);
    /// # Ok(()) }
    /// ```
    pub async fn stat(&self, bucket: &str, key: &str) -> Result<ObjectReply> {
        self.shared.stat(bucket, key).await
    }

    /// Creates a bucket; without a policy, it gets the default policy.
    ///
    /// ```no_run
    /// # async fn example(client: weft_client::Client) -> weft_types::Result<()> {
    /// client.create_bucket("photos", "").await?;
    /// # Ok(()) }
    /// ```
    pub async fn create_bucket(&self, name: &str, policy: &str) -> Result<Bucket> {
        let request = Bucket { name: name.into(), policy: policy.into(), ..Bucket::default() };
        self.shared.calls.once(request, |mut client, request| async move { client.create_bucket(request).await }).await
    }

    /// All buckets.
    ///
    /// ```no_run
    /// # async fn example(client: weft_client::Client) -> weft_types::Result<()> {
    /// client.buckets().await?.iter().for_each(|bucket| println!("{}", bucket.name));
    /// # Ok(()) }
    /// ```
    pub async fn buckets(&self) -> Result<Vec<Bucket>> {
        let asked = self.shared.calls.ask(Empty {}, |mut client, request| async move { client.list_buckets(request).await });
        asked.await.map(|reply| reply.buckets)
    }

    /// Where space is used and free, and how much can still be written under each policy.
    ///
    /// ```no_run
    /// # async fn example(client: weft_client::Client) -> weft_types::Result<()> {
    /// client.space().await?.policies.iter().for_each(|it| println!("{}: {} bytes fit", it.policy, it.fits_bytes));
    /// # Ok(()) }
    /// ```
    pub async fn space(&self) -> Result<SpaceReply> {
        self.shared.calls.ask(Empty {}, |mut client, request| async move { client.space(request).await }).await
    }

    /// A page of the stripes that lack blocks: of an object, of a bucket (with an empty key), or of all (with an empty bucket, too). `after`: the
    /// `next_after` of the page before; 0: the first.
    ///
    /// ```no_run
    /// # async fn example(client: weft_client::Client) -> weft_types::Result<()> {
    /// let page = client.list_damage("photos", "", 0).await?;
    /// page.stripes.iter().for_each(|it| println!("{}: {:?} further losses", it.key, it.further_losses));
    /// # Ok(()) }
    /// ```
    pub async fn list_damage(&self, bucket: &str, key: &str, after: u64) -> Result<ListDamageReply> {
        let request = ListDamageRequest { bucket: bucket.into(), key: key.into(), after_stripe: after };
        self.shared.calls.ask(request, |mut client, request| async move { client.list_damage(request).await }).await
    }

    /// Removes an empty bucket.
    ///
    /// ```no_run
    /// # async fn example(client: weft_client::Client) -> weft_types::Result<()> {
    /// client.remove_bucket("photos").await
    /// # }
    /// ```
    pub async fn remove_bucket(&self, name: &str) -> Result<()> {
        let request = Name { name: name.into() };
        let removed = self.shared.calls.once(request, |mut client, request| async move { client.remove_bucket(request).await });
        removed.await.map(|Empty {}| ())
    }

    /// Creates a policy.
    ///
    /// ```no_run
    /// # async fn example(client: weft_client::Client) -> weft_types::Result<()> {
    /// use weft_client::api::Policy;
    /// let wide = Policy { name: "wide".into(), code: "rs(20,4)".into(), block_len: 64 << 20, ..Policy::default() };
    /// client.create_policy(wide).await?;
    /// # Ok(()) }
    /// ```
    pub async fn create_policy(&self, policy: Policy) -> Result<Policy> {
        self.shared.calls.once(policy, |mut client, request| async move { client.create_policy(request).await }).await
    }

    /// All policies.
    ///
    /// ```no_run
    /// # async fn example(client: weft_client::Client) -> weft_types::Result<()> {
    /// client.policies().await?.iter().for_each(|policy| println!("{} {}", policy.name, policy.code));
    /// # Ok(()) }
    /// ```
    pub async fn policies(&self) -> Result<Vec<Policy>> {
        let request = ListPoliciesRequest {};
        let asked = self.shared.calls.ask(request, |mut client, request| async move { client.list_policies(request).await });
        asked.await.map(|reply| reply.policies)
    }

    /// Removes a policy that no bucket uses.
    ///
    /// ```no_run
    /// # async fn example(client: weft_client::Client) -> weft_types::Result<()> {
    /// client.remove_policy("wide").await
    /// # }
    /// ```
    pub async fn remove_policy(&self, name: &str) -> Result<()> {
        let request = Name { name: name.into() };
        let removed = self.shared.calls.once(request, |mut client, request| async move { client.remove_policy(request).await });
        removed.await.map(|Empty {}| ())
    }

    /// Makes a policy the default for new buckets.
    ///
    /// ```no_run
    /// # async fn example(client: weft_client::Client) -> weft_types::Result<()> {
    /// client.set_default_policy("wide").await
    /// # }
    /// ```
    pub async fn set_default_policy(&self, name: &str) -> Result<()> {
        let request = Name { name: name.into() };
        let set = self.shared.calls.once(request, |mut client, request| async move { client.set_default_policy(request).await });
        set.await.map(|Empty {}| ())
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
}

impl Shared {
    /// Whether to ask for another plan after a pause. Under a delegation, the client does not retry a busy agent: it reports this to the
    /// coordinator, which can choose another agent.
    pub(crate) fn may_try_again(&self, error: &Error) -> bool {
        match error.reaction {
            Reaction::Replan | Reaction::Corrupt => true,
            Reaction::Retry => self.config.delegation.is_none(),
            _ => false,
        }
    }

    pub(crate) async fn stat(self: &Arc<Self>, bucket: &str, key: &str) -> Result<ObjectReply> {
        self.stat_and_read(bucket, key, None).await.map(|(object, _)| object)
    }

    /// An object, and the read that was started with the same call, with its stripe's number. A coordinator may start none.
    pub(crate) async fn stat_and_read(self: &Arc<Self>, bucket: &str, key: &str, read: Option<BeginRead>) -> Result<Stated> {
        let place = |error: Error| error.object(format_args!("{bucket}/{key}"));
        for _ in 0..self.config.limits.attempts_max {
            if let Some(object) = self.stat_pages(bucket, key, read.as_ref()).await.map_err(place)? {
                return Ok(object);
            }
        }
        Err(place(Error::retry("the object is replaced faster than its stripes can be listed")))
    }

    /// An object with all of its stripes, possibly fetched in pages; `None`: the object was replaced in between.
    async fn stat_pages(self: &Arc<Self>, bucket: &str, key: &str, read: Option<&BeginRead>) -> Result<Option<Stated>> {
        let (mut whole, mut begun): (Option<ObjectReply>, Option<(u64, Begun)>) = (None, None);
        loop {
            let from_stripe = whole.as_ref().map_or(0, |whole| whole.stripes.len() as u64);
            let stripes_max = self.config.limits.stripes_per_page_max;
            let read = read.filter(|_| begun.is_none()).cloned();
            let request = StatObjectRequest { bucket: bucket.into(), key: key.into(), from_stripe, stripes_max, read };
            let asked = self.calls.ask(request, |mut client, request| async move { client.stat_object(request).await });
            let mut page = match (asked.await, &whole) {
                (Ok(page), Some(whole)) if page.version != whole.version => return Ok(None),
                (page, _) => page?,
            };
            if let Some(BegunRead { number, reply: Some(reply) }) = page.read.take() {
                begun = Some((number, Begun::new(self, reply)?));
            }
            let (count, is_empty) = (page.stripe_count, page.stripes.is_empty());
            let mut object = match whole.take() {
                None => page,
                Some(mut object) => {
                    object.stripes.extend(page.stripes);
                    object.incomplete.extend(page.incomplete);
                    object.unreadable.extend(page.unreadable);
                    object
                }
            };
            if object.stripes.len() as u64 >= count {
                object.incomplete_count = object.incomplete.len() as u64;
                return Ok(Some((object, begun)));
            }
            if is_empty {
                let message = format!("the coordinator sent {} of {count} stripes", object.stripes.len());
                return Err(Error::fatal(message));
            }
            whole = Some(object);
        }
    }
}

async fn cluster_of(calls: &Calls, config: &ClientConfig) -> Result<ClusterId> {
    let request = StatusRequest { identity: true };
    let status = calls.ask(request, |mut client, request| async move { client.status(request).await }).await?;
    let cluster: ClusterId = status.cluster.parse().map_err(Error::fatal)?;
    match config.cluster {
        Some(expected) if expected != cluster => {
            Err(Error::invalid(format!("the coordinator belongs to cluster {cluster}, not to {expected}")))
        }
        _ => Ok(cluster),
    }
}
