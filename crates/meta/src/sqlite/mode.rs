//! Where a transaction runs.

use crate::{MetaError, Result};
use std::{any::Any, time::Duration};

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

/// What a transaction returned.
type Returned = Box<dyn Any + Send>;

impl MetaMode {
    /// Runs a transaction. It is boxed because the runtime's code around a closure is compiled once for each type of closure.
    pub(super) async fn run<T: Send + 'static>(self, run: impl FnOnce() -> T + Send + 'static) -> Result<T> {
        let returned = self.run_boxed(Box::new(move || Box::new(run()) as Returned)).await?;
        let other = |_| MetaError::Storage("internal error: a transaction returned another type".into());
        returned.downcast::<T>().map(|returned| *returned).map_err(other)
    }

    async fn run_boxed(self, run: Box<dyn FnOnce() -> Returned + Send>) -> Result<Returned> {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn bug() -> u64 {
        panic!("a bug")
    }

    #[tokio::test]
    async fn every_mode_returns_what_the_transaction_does() {
        for mode in [MetaMode::Inline, MetaMode::InlineAfter(Duration::from_millis(1)), MetaMode::Pool] {
            assert_eq!(mode.run(|| "done".to_owned()).await.unwrap(), "done");
            assert!(mode.run(|| ()).await.is_ok());
        }
        let Err(MetaError::Storage(why)) = MetaMode::Pool.run(bug).await else { panic!("a panic is an answer") };
        assert!(why.starts_with("a transaction was aborted: "), "{why}");
    }
}
