//! On which threads disk calls run, for agents and clients: a simulation needs them on the caller's thread.

use std::{
    any::Any,
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

/// What work returned.
type Returned = Box<dyn Any + Send>;

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

    /// As [`run`](Self::run), for work that is rare: the runtime's code around it is not compiled for each type of work. This costs an
    /// allocation and an indirect call.
    pub async fn run_boxed<T: Send + 'static>(self, work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
        let work: Box<dyn FnOnce() -> Result<Returned> + Send> = Box::new(move || work().map(|done| Box::new(done) as Returned));
        let other = |_| Error::fatal("internal error: a disk call returned another type");
        self.run(work).await?.downcast::<T>().map(|done| *done).map_err(other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bug() -> Result<u64> {
        panic!("a bug")
    }

    #[tokio::test]
    async fn boxed_work_returns_what_the_work_does() {
        for mode in [DiskMode::Inline, DiskMode::Pool] {
            assert_eq!(mode.run_boxed(|| Ok("done".to_owned())).await.unwrap(), "done");
            let error = mode.run_boxed(|| Err::<u64, _>(Error::retry("busy"))).await.unwrap_err();
            assert_eq!(error.message, "busy");
        }
        let error = DiskMode::Pool.run_boxed(bug).await.unwrap_err();
        assert!(error.message.starts_with("a disk call was aborted: "), "{error}");
    }
}
