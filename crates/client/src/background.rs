//! What a client still has to tell the coordinator when nobody waits for it any more: that a put was given up, that a read is
//! over.

use std::{
    future::Future,
    sync::{Mutex, PoisonError},
    time::Duration,
};
use tokio::{
    runtime::Handle,
    task::{JoinHandle, JoinSet},
};

/// Tasks that nobody waits for, until [`finish`](Self::finish).
#[derive(Default)]
pub(crate) struct Background {
    tasks: Mutex<JoinSet<()>>,
}

impl Background {
    /// Starts a task. Outside of a runtime, which is going down then, it does nothing: the coordinator's leases end what was
    /// not ended.
    pub(crate) fn start(&self, task: impl Future<Output = ()> + Send + 'static) {
        let Ok(runtime) = Handle::try_current() else { return };
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        while tasks.try_join_next().is_some() {}
        tasks.spawn_on(task, &runtime);
    }

    /// Waits for all of them, but not for longer than `limit`.
    pub(crate) async fn finish(&self, limit: Duration) {
        let mut tasks = std::mem::take(&mut *self.tasks.lock().unwrap_or_else(PoisonError::into_inner));
        let _those_left_are_dropped = tokio::time::timeout(limit, async { while tasks.join_next().await.is_some() {} }).await;
    }
}

/// A task that ends with the one who waits for it.
pub(crate) struct Owned<T>(JoinHandle<T>);

impl<T: Send + 'static> Owned<T> {
    pub(crate) fn start(task: impl Future<Output = T> + Send + 'static) -> Self {
        Self(tokio::spawn(task))
    }

    /// What the task made; `None` if it panicked or the runtime is going down.
    pub(crate) async fn join(&mut self) -> Option<T> {
        (&mut self.0).await.ok()
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}
