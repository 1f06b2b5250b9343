//! Where a transaction runs.

use crate::{MetaError, Result};
use std::time::Duration;

/// Where a transaction runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetaMode {
    /// On the calling thread: for a deterministic simulation.
    Inline,
    /// On the calling thread, after this time: for a simulation of a slow disk.
    InlineAfter(Duration),
    /// On tokio's pool for blocking calls.
    Pool,
}

impl MetaMode {
    pub(super) async fn run<T: Send + 'static>(self, run: impl FnOnce() -> T + Send + 'static) -> Result<T> {
        match self {
            Self::Inline => Ok(run()),
            Self::InlineAfter(pause) => {
                tokio::time::sleep(pause).await;
                Ok(run())
            }
            Self::Pool => tokio::task::spawn_blocking(run)
                .await
                .map_err(|error| MetaError::Storage(format!("a transaction was aborted: {error}"))),
        }
    }
}
