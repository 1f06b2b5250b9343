//! The interface between an agent and the code that converts a stripe for it. The agent sets the limits and provides
//! the network; the [`Converter`] reads and writes as a client does. The program that starts an agent passes it in, so
//! the agent crate does not depend on the client.

use crate::{DiskMode, ExtraStall, Net, Security, v1::ConvertStripeRequest};
use async_trait::async_trait;
use std::{path::PathBuf, sync::Arc, time::Duration};
use weft_types::{ClusterId, Result};

/// Converts stripes.
#[async_trait]
pub trait Converter: Send + Sync {
    /// Rewrites a stripe in another code. When this returns, the new stripe has ended. Dropping the future cancels the conversion, with the
    /// effects of an interrupted put.
    async fn convert(&self, conversion: Conversion) -> Result<()>;
}

/// A node's network link, on which a conversion has a lower priority than the node's other work.
#[async_trait]
pub trait NodeLink: Send + Sync {
    /// Waits for the conversion's turn to send `bytes`. The bytes must be ready: a turn never waits for a peer.
    async fn send(&self, bytes: u64);
    /// Waits until `bytes` that were received are within the node's limits.
    async fn received(&self, bytes: u64);
    /// Whether the node's other work holds the conversion back now, so that no peer is blamed for the delay.
    fn is_held_back(&self) -> bool;
    /// How much longer than usual the conversion's links may be silent.
    fn extra_stall(&self) -> ExtraStall;
}

/// One stripe to convert, and what it may use.
pub struct Conversion {
    /// The coordinator's request. Its delegation goes with each call to the coordinator.
    pub asked: ConvertStripeRequest,
    /// The cluster, if known.
    pub cluster: Option<ClusterId>,
    /// The coordinator's addresses, `host:port`; the first that answers is used.
    pub coordinators: Vec<String>,
    /// How connections are secured.
    pub security: Security,
    /// The network.
    pub net: Arc<dyn Net>,
    /// Sent bytes pass it, one frame at a time; received bytes, one slice at a time.
    pub node_link: Arc<dyn NodeLink>,
    /// The seed of all random numbers.
    pub seed: u64,
    /// On which threads disk calls run.
    pub disk_mode: DiskMode,
    /// The directory for a stripe that does not fit in memory.
    pub spool_dir: PathBuf,
    /// The limits of the conversion.
    pub limits: ConversionLimits,
    /// Called often with the bytes done so far; must not block. Each byte counts half when read and half when sent.
    pub progress: Box<dyn Fn(u64) + Send + Sync>,
}

/// The limits of a conversion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConversionLimits {
    /// The stripe's data that is kept in memory, bytes; a longer stripe is spooled to disk.
    pub stripe_memory_bytes_max: usize,
    /// The data that is fetched at once, bytes; three such windows are in flight.
    pub window_bytes_max: u64,
    /// How long an unreachable or busy coordinator is retried.
    pub patience: Duration,
}
