//! Plans can take milliseconds to make. Other calls and timers on the same thread must not wait for them.

use tokio::runtime::{Handle, RuntimeFlavor};
use weft_types::{Error, Result};

/// With this many nodes, choosing among them takes a considerable part of a millisecond.
const MANY_NODES: usize = 100;

/// Runs a long computation. On a multi-threaded runtime, another thread takes over this thread's tasks in the meantime.
/// On a single thread, as in a simulation, this is impossible, and the order of events is the same in every run.
pub(crate) fn compute<T>(work: impl FnOnce() -> T) -> T {
    match Handle::try_current().map(|handle| handle.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(work),
        _ => work(),
    }
}

/// Runs a long computation on a thread of its own. It goes on when its caller goes away. On a single thread, it runs in place.
pub(crate) async fn compute_apart<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    match Handle::current().runtime_flavor() {
        RuntimeFlavor::MultiThread => {
            tokio::task::spawn_blocking(work).await.map_err(|error| Error::fatal(format!("a computation did not end: {error}")))
        }
        _ => Ok(work()),
    }
}

/// Runs work whose time grows with the number of nodes. It takes milliseconds with a thousand nodes; with a few,
/// handing over the thread would take longer.
pub(crate) fn compute_among<T>(nodes: usize, work: impl FnOnce() -> T) -> T {
    if nodes < MANY_NODES { work() } else { compute(work) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        sync::mpsc,
        thread::{self, ThreadId},
        time::Duration,
    };

    async fn this_thread() -> ThreadId {
        thread::current().id()
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn other_tasks_continue_during_a_computation() {
        // On the only thread that runs tasks.
        let computing = tokio::spawn(async {
            let (sender, receiver) = mpsc::channel();
            tokio::spawn(async move { sender.send(()) });
            compute(|| receiver.recv_timeout(Duration::from_secs(10)))
        });
        assert_eq!(computing.await.unwrap(), Ok(()));
    }

    #[tokio::test]
    async fn on_a_single_thread_it_runs_in_place() {
        assert_eq!(compute_apart(|| thread::current().id()).await.unwrap(), this_thread().await);
        assert_eq!(compute(|| thread::current().id()), this_thread().await);
    }
}
