//! The seam between an agent and what converts a stripe for it: the agent decides what a conversion may use and over which network it
//! goes; the [`Converter`] reads and writes as a client does. The program that starts an agent gives it one, so that agents need not
//! know the client.

use crate::{DiskMode, Net, Security, v1::ConvertStripeRequest};
use async_trait::async_trait;
use std::{path::PathBuf, sync::Arc, time::Duration};
use weft_types::{ClusterId, Result};

/// Converts stripes.
#[async_trait]
pub trait Converter: Send + Sync {
    /// Writes a stripe again in another code. The new stripe has ended when this returns. Dropped, the conversion is given up; what it
    /// left is what a put leaves that breaks off.
    async fn convert(&self, conversion: Conversion) -> Result<()>;
}

/// The uplink of a node, where work of its own goes before a conversion.
#[async_trait]
pub trait Uplink: Send + Sync {
    /// Waits until it is the conversion's turn to send so many bytes. They are ready: no peer is waited for meanwhile.
    async fn pass(&self, bytes: u64);
    /// Whether other work holds the conversion back right now: no peer is to blame for that.
    fn is_held_back(&self) -> bool;
}

/// One stripe to convert, and what it may use.
pub struct Conversion {
    /// What the coordinator asked for. Its delegation goes with each call to the coordinator.
    pub asked: ConvertStripeRequest,
    /// The cluster, if it is known.
    pub cluster: Option<ClusterId>,
    /// The coordinator's addresses, `host:port`; the first that answers is taken.
    pub coordinators: Vec<String>,
    /// How connections are secured.
    pub security: Security,
    /// The network.
    pub net: Arc<dyn Net>,
    /// What is sent passes it, a frame at a time.
    pub uplink: Arc<dyn Uplink>,
    /// All that is drawn at random comes from it.
    pub seed: u64,
    /// Where calls to the disk block.
    pub disk_mode: DiskMode,
    /// Where a stripe waits that is too much for memory.
    pub spool_dir: PathBuf,
    /// What the conversion may use, and how long it waits.
    pub limits: ConversionLimits,
    /// Is told how many bytes are done, often; it must not block. Half of each byte is done when it was read, half when it was sent.
    pub progress: Box<dyn Fn(u64) + Send + Sync>,
}

/// What a conversion may use, and how long it waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConversionLimits {
    /// Data of the stripe that is kept in memory, bytes; a longer stripe waits in the spool directory.
    pub stripe_memory_bytes_max: usize,
    /// Data that is fetched at once, bytes; three such windows are in flight.
    pub window_bytes_max: u64,
    /// A coordinator that cannot be reached or is busy is asked again for this long.
    pub patience: Duration,
}
