//! Plans can take milliseconds to make. Other calls and timers of the same thread must not wait for them.

use tokio::runtime::{Handle, RuntimeFlavor};

/// With this many nodes, a choice among them takes a good part of a millisecond.
const MANY_NODES: usize = 100;

/// Does work that computes for a while. Of a runtime with several threads another one goes on with this thread's tasks meanwhile. With one
/// thread, as in a simulation, there is none, and the order of events is the same at every run.
pub(crate) fn compute<T>(work: impl FnOnce() -> T) -> T {
    match Handle::try_current().map(|handle| handle.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(work),
        _ => work(),
    }
}

/// Does work whose time grows with the number of nodes: milliseconds with a thousand; with a few, less than a hand-over takes.
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
    async fn other_tasks_go_on_meanwhile() {
        // On the only thread that there is for tasks.
        let computing = tokio::spawn(async {
            let (sender, receiver) = mpsc::channel();
            tokio::spawn(async move { sender.send(()) });
            compute(|| receiver.recv_timeout(Duration::from_secs(10)))
        });
        assert_eq!(computing.await.unwrap(), Ok(()));
    }

    #[tokio::test]
    async fn with_one_thread_it_is_done_there() {
        assert_eq!(compute(|| thread::current().id()), this_thread().await);
    }
}
