//! Where calls to disks block, for agents and for clients: a simulation needs them on the caller's thread.

use weft_types::{Error, Result};

/// Where calls to disks block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiskMode {
    /// On the caller's thread: the same order of events at every run.
    Inline,
    /// On threads of the runtime's that may block.
    Pool,
}

impl DiskMode {
    /// Does `work`, which may block.
    pub async fn run<T: Send + 'static>(self, work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
        match self {
            Self::Inline => work(),
            Self::Pool => match tokio::task::spawn_blocking(work).await {
                Ok(done) => done,
                Err(error) => Err(Error::fatal(format!("a call to a disk did not come back: {error}"))),
            },
        }
    }
}
