//! Calls to the coordinator in the background: a put was aborted, a read has ended.

use futures::future::BoxFuture;
use std::{
    future::Future,
    sync::{Mutex, PoisonError},
    time::Duration,
};
use tokio::{
    runtime::Handle,
    task::{JoinHandle, JoinSet},
};

/// Background tasks, until [`finish`](Self::finish).
#[derive(Default)]
pub(crate) struct Background {
    tasks: Mutex<JoinSet<()>>,
}

impl Background {
    /// Starts a task. Outside of a runtime, that is during shutdown, it does nothing: the coordinator's leases then end what the client
    /// did not.
    pub(crate) fn start(&self, task: impl Future<Output = ()> + Send + 'static) {
        let Ok(runtime) = Handle::try_current() else { return };
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        while tasks.try_join_next().is_some() {}
        // The runtime's code around a task is compiled once for each type of future.
        let task: BoxFuture<'static, ()> = Box::pin(task);
        tasks.spawn_on(task, &runtime);
    }

    /// Waits for all of them, for `limit` at most.
    pub(crate) async fn finish(&self, limit: Duration) {
        let mut tasks = std::mem::take(&mut *self.tasks.lock().unwrap_or_else(PoisonError::into_inner));
        let _those_left_are_dropped = tokio::time::timeout(limit, async { while tasks.join_next().await.is_some() {} }).await;
    }
}

/// A task that is aborted when its handle is dropped.
pub(crate) struct Owned<T>(JoinHandle<T>);

impl<T: Send + 'static> Owned<T> {
    pub(crate) fn start(task: impl Future<Output = T> + Send + 'static) -> Self {
        Self(tokio::spawn(task))
    }

    /// The task's result; `None` if it panicked or the runtime is shutting down.
    pub(crate) async fn join(&mut self) -> Option<T> {
        (&mut self.0).await.ok()
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}
