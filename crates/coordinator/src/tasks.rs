//! How tasks start. The runtime's code around a task is compiled once for each type of future, and takes ten kilobytes. Futures are
//! boxed here, so all tasks share it.

use crate::shared::wait_for_stop;
use futures::future::BoxFuture;
use std::any::Any;
use tokio::{sync::watch, task::JoinHandle};
use weft_types::{Error, Result};

/// What work returned.
type Returned = Box<dyn Any + Send>;

/// Starts a task.
pub(crate) fn start(task: impl Future<Output = ()> + Send + 'static) -> JoinHandle<()> {
    let task: BoxFuture<'static, ()> = Box::pin(task);
    tokio::spawn(task)
}

/// Starts a task that ends when the coordinator does.
pub(crate) fn start_until_stopped(stopped: watch::Receiver<bool>, task: impl Future<Output = ()> + Send + 'static) {
    spawn_until_stopped(stopped, Box::pin(task));
}

/// Runs work to its end, also if its caller goes away. If the work panics, the error begins with `failed`.
pub(crate) fn to_the_end<T: Send + 'static>(
    failed: &'static str,
    work: impl Future<Output = Result<T>> + Send + 'static,
) -> BoxFuture<'static, Result<T>> {
    let work: BoxFuture<'static, Returned> = Box::pin(async move { Box::new(work.await) as Returned });
    Box::pin(async move {
        let returned = tokio::spawn(work).await.map_err(|error| Error::fatal(format!("{failed}: {error}")))?;
        let result = returned.downcast::<Result<T>>();
        *result.map_err(|_| Error::fatal(format!("internal error: {failed}: it returned another type")))?
    })
}

fn spawn_until_stopped(stopped: watch::Receiver<bool>, task: BoxFuture<'static, ()>) {
    tokio::spawn(async move {
        tokio::select! {
            biased;
            () = wait_for_stop(stopped) => {}
            () = task => {}
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::oneshot;

    fn bug() -> Result<()> {
        panic!("a bug")
    }

    #[tokio::test]
    async fn work_goes_on_without_its_caller() {
        let (go, begins) = oneshot::channel();
        let (done, ended) = oneshot::channel();
        let work = async move {
            let begun: Result<(), _> = begins.await;
            let _gone = done.send(begun.is_ok());
            Ok(())
        };
        tokio::select! {
            biased;
            _ = to_the_end("it failed", work) => panic!("it ended before it began"),
            () = tokio::task::yield_now() => {}
        }
        go.send(()).unwrap();
        assert_eq!(ended.await, Ok(true));
    }

    #[tokio::test]
    async fn work_returns_its_result_or_why_it_failed() {
        assert_eq!(to_the_end("it failed", async { Ok(7) }).await.unwrap(), 7);
        let error = to_the_end("it failed", async { bug() }).await.unwrap_err();
        assert!(error.message.starts_with("it failed: "), "{error}");
    }

    #[tokio::test]
    async fn a_task_ends_when_the_coordinator_does() {
        let (stop, stopped) = watch::channel(false);
        let (held, dropped) = oneshot::channel::<()>();
        start_until_stopped(stopped, async move {
            let _held = held;
            std::future::pending::<()>().await;
        });
        stop.send(true).unwrap();
        assert!(dropped.await.is_err());
    }
}
