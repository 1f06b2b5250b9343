//! On which threads disk calls run, for agents and clients: a simulation needs them on the caller's thread.

use std::{
    ptr,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};
use weft_types::{Error, Result};

/// On which threads disk calls run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiskMode {
    /// On the caller's thread, for the same order of events in every run.
    Inline,
    /// On the runtime's threads for blocking calls.
    Pool,
    /// As [`Inline`](Self::Inline), on a disk that a simulation slows down.
    Slowed(DiskDelay),
}

/// How long each call to a disk takes, in addition; a simulation changes it while calls are made.
#[derive(Debug, Clone, Copy)]
pub struct DiskDelay(pub &'static AtomicU64);

impl PartialEq for DiskDelay {
    fn eq(&self, other: &Self) -> bool {
        ptr::eq(self.0, other.0)
    }
}

impl Eq for DiskDelay {}

impl DiskMode {
    /// Runs `work`, which may block.
    pub async fn run<T: Send + 'static>(self, work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
        match self {
            Self::Inline => work(),
            Self::Slowed(DiskDelay(ms)) => {
                match ms.load(Ordering::Relaxed) {
                    0 => {}
                    ms => tokio::time::sleep(Duration::from_millis(ms)).await,
                }
                work()
            }
            Self::Pool => match tokio::task::spawn_blocking(work).await {
                Ok(done) => done,
                Err(error) => Err(Error::fatal(format!("a disk call was aborted: {error}"))),
            },
        }
    }
}
