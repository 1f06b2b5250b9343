//! What a client takes from outside.

use std::{path::PathBuf, sync::Arc, time::Duration};
use weft_proto::{DiskMode, Net, PoolLimits, Security, TcpNet, Uplink, rpc::END_STRIPE_TIMEOUT};
use weft_types::ClusterId;

/// What a client takes from outside: whom to talk to, and how.
///
/// ```
/// # use weft_client::ClientConfig;
/// # use weft_proto::Security;
/// let config = ClientConfig { seed: 7, ..ClientConfig::new(["127.0.0.1:7400"], Security::Insecure) };
/// assert_eq!(config.coordinators, ["127.0.0.1:7400"]);
/// ```
#[derive(Clone)]
pub struct ClientConfig {
    /// The coordinator's addresses, `host:port`; the first that answers is taken.
    pub coordinators: Vec<String>,
    /// How connections are secured.
    pub security: Security,
    /// The cluster that must answer; `None`: whichever does.
    pub cluster: Option<ClusterId>,
    /// The network.
    pub net: Arc<dyn Net>,
    /// What is drawn at random (pauses before trying again, names of temporary files) comes from it.
    pub seed: u64,
    /// Where calls to the disk block.
    pub disk_mode: DiskMode,
    /// Where data from a pipe waits that is too much for memory.
    pub spool_dir: PathBuf,
    /// What the client may use, and how long it waits.
    pub limits: Limits,
    /// An agent that calls in the coordinator's own name shows this with each call: see [`StripeConverter`](crate::StripeConverter).
    pub delegation: Option<u64>,
    /// What it sends passes this: an agent's conversions give way to its other work.
    pub uplink: Option<Arc<dyn Uplink>>,
}

/// What a client may use, and how long it waits.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Data of one stripe from a pipe that is kept in memory, bytes; what is more goes to a file in the spool directory. Three
    /// stripes may be there at once: one is read, one is sent, one is being ended.
    pub stripe_memory_bytes_max: usize,
    /// Data that is fetched at once when it goes to a pipe, bytes. Three such windows are in flight. The client
    /// keeps their memory for the next get, and that of 64 received slices: 64 MiB as windows and slices are by default.
    pub window_bytes_max: u64,
    /// Plans for one window of a read, or one stripe of a write, that may fail without any progress.
    pub attempts_max: u32,
    /// Stripes of an object that are asked for at once, at most; 0: as many as one answer holds.
    pub stripes_per_page_max: u32,
    /// An answer of the coordinator must come within this time …
    pub call_timeout: Duration,
    /// … but it may have to rebuild a block before it can say that a stripe is complete.
    pub end_stripe_timeout: Duration,
    /// A coordinator that cannot be reached or is busy is asked again for this long.
    pub patience: Duration,
    /// Connections to agents.
    pub pool: PoolLimits,
}

impl ClientConfig {
    /// The machine's own network and disk, and the usual limits.
    pub fn new(coordinators: impl IntoIterator<Item = impl Into<String>>, security: Security) -> Self {
        Self {
            coordinators: coordinators.into_iter().map(Into::into).collect(),
            security,
            cluster: None,
            net: Arc::new(TcpNet::default()),
            seed: u64::from(std::process::id()),
            disk_mode: DiskMode::Pool,
            spool_dir: std::env::temp_dir(),
            limits: Limits::default(),
            delegation: None,
            uplink: None,
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            stripe_memory_bytes_max: 32 << 20,
            window_bytes_max: 16 << 20,
            attempts_max: 8,
            stripes_per_page_max: 0,
            call_timeout: Duration::from_secs(30),
            end_stripe_timeout: END_STRIPE_TIMEOUT,
            patience: Duration::from_secs(15),
            pool: PoolLimits::default(),
        }
    }
}
