//! On which threads disk calls run, for agents and clients: a simulation needs them on the caller's thread.

use weft_types::{Error, Result};

/// On which threads disk calls run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiskMode {
    /// On the caller's thread, for the same order of events in every run.
    Inline,
    /// On the runtime's threads for blocking calls.
    Pool,
}

impl DiskMode {
    /// Runs `work`, which may block.
    pub async fn run<T: Send + 'static>(self, work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
        match self {
            Self::Inline => work(),
            Self::Pool => match tokio::task::spawn_blocking(work).await {
                Ok(done) => done,
                Err(error) => Err(Error::fatal(format!("a disk call was aborted: {error}"))),
            },
        }
    }
}
