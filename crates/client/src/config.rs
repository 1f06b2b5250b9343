//! The configuration of a client.

use std::{path::PathBuf, sync::Arc, time::Duration};
use weft_proto::{DiskMode, Net, NodeLink, PoolLimits, Security, TcpNet, rpc::END_STRIPE_TIMEOUT};
use weft_types::ClusterId;

/// The configuration of a client: which cluster to use, and how.
///
/// ```
/// # use weft_client::ClientConfig;
/// # use weft_proto::Security;
/// let config = ClientConfig { seed: 7, ..ClientConfig::new(["127.0.0.1:7400"], Security::Insecure) };
/// assert_eq!(config.coordinators, ["127.0.0.1:7400"]);
/// ```
#[derive(Clone)]
pub struct ClientConfig {
    /// Coordinator addresses, `host:port`; the client uses the first that answers.
    pub coordinators: Vec<String>,
    /// How connections are secured.
    pub security: Security,
    /// The cluster that must answer; `None`: any cluster.
    pub cluster: Option<ClusterId>,
    /// The network.
    pub net: Arc<dyn Net>,
    /// The seed for everything random (retry pauses, names of temporary files). Several clients may have the same one.
    pub seed: u64,
    /// Where blocking disk calls run.
    pub disk_mode: DiskMode,
    /// The directory for data from a pipe that does not fit into memory.
    pub spool_dir: PathBuf,
    /// Whether short ranges of stripes that are open for updates are read at the nodes of their data blocks, so that the stripes stay open. Otherwise,
    /// they are settled first.
    pub reads_open_stripes: bool,
    /// Resource limits and timeouts.
    pub limits: Limits,
    /// The delegation of an agent that works on the coordinator's behalf: see [`StripeConverter`](crate::StripeConverter).
    pub delegation: Option<u64>,
    /// Throttle for everything that the client sends and receives: an agent's conversions have a lower priority than its other work.
    pub node_link: Option<Arc<dyn NodeLink>>,
}

/// Resource limits and timeouts of a client.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Most bytes of a stripe from a pipe that are kept in memory; the rest goes to a file in the spool directory. Three stripes can be
    /// in progress at once: one is read, one is sent, one is being ended.
    pub stripe_memory_bytes_max: usize,
    /// Bytes fetched at once for a get to a pipe. Two such windows are in flight, and the client keeps as much memory for the next get:
    /// 40 MiB by default. Each window is one plan, so larger windows take less CPU time.
    pub window_bytes_max: u64,
    /// Plans for one window of a read, or one stripe of a write, that can fail without progress.
    pub attempts_max: u32,
    /// Most stripes of an object requested at once; 0: as many as fit into one answer.
    pub stripes_per_page_max: u32,
    /// The coordinator must answer within this time …
    pub call_timeout: Duration,
    /// … but ending a stripe can take longer, because the coordinator may rebuild a block first.
    pub end_stripe_timeout: Duration,
    /// How long to retry calls to a coordinator that is busy or unreachable.
    pub patience: Duration,
    /// Connections to agents.
    pub pool: PoolLimits,
}

impl ClientConfig {
    /// The machine's own network and disk, and default limits.
    pub fn new(coordinators: impl IntoIterator<Item = impl Into<String>>, security: Security) -> Self {
        Self {
            coordinators: coordinators.into_iter().map(Into::into).collect(),
            security,
            cluster: None,
            net: Arc::new(TcpNet::default()),
            seed: u64::from(std::process::id()),
            disk_mode: DiskMode::Pool,
            spool_dir: std::env::temp_dir(),
            reads_open_stripes: true,
            limits: Limits::default(),
            delegation: None,
            node_link: None,
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            stripe_memory_bytes_max: 32 << 20,
            window_bytes_max: 20 << 20,
            attempts_max: 8,
            stripes_per_page_max: 0,
            call_timeout: Duration::from_secs(30),
            end_stripe_timeout: END_STRIPE_TIMEOUT,
            patience: Duration::from_secs(15),
            pool: PoolLimits::default(),
        }
    }
}
