//! A client on a node of a testbed: a thread in the node's namespace, whose sockets use the node's links.

use crate::testbed::{Testbed, enter};
use futures::{FutureExt as _, future::LocalBoxFuture};
use std::{ops::Deref, path::Path, thread::JoinHandle, time::Duration};
use tokio::sync::{mpsc, oneshot};
use weft_cli::{session::Session, target::Target};
use weft_client::{Client, PutOptions, api::ObjectReply};
use weft_types::{Error, Result};

/// How often, and at which interval, to wait for writers to end: their clients report aborted puts to the coordinator.
const END_POLLS: u32 = 500;
const END_POLL: Duration = Duration::from_millis(20);

/// A client on a node. When it can get no more orders, it aborts its work and ends.
#[derive(Debug)]
pub(crate) struct Writer {
    orders: Option<mpsc::UnboundedSender<Order>>,
    thread: JoinHandle<()>,
}

/// Writers that end together: dropping them aborts their work.
#[derive(Debug, Default)]
pub(crate) struct Writers(Vec<Writer>);

impl Deref for Writers {
    type Target = [Writer];

    fn deref(&self) -> &[Writer] {
        &self.0
    }
}

/// Work for its client. It ends early if nothing waits for the result.
type Order = Box<dyn FnOnce(Client) -> LocalBoxFuture<'static, ()> + Send>;

impl Writer {
    /// Starts one on the node of that name and connects it.
    pub(crate) async fn start(testbed: &Testbed, node: &str) -> Result<Self> {
        let (namespace, target) = (testbed.namespace(node)?, testbed.cluster()?.file()?.target()?);
        let ((orders, todo), (ready, is_ready)) = (mpsc::unbounded_channel(), oneshot::channel());
        let work = move || {
            if let Err(error) = serve(&namespace, target, todo, ready) {
                // The next order fails, because the receiver is gone.
                tracing::warn!(%error, "a writer on a node has ended");
            }
        };
        let thread = std::thread::Builder::new().name(format!("on {node}")).spawn(work);
        let thread = thread.map_err(|error| Error::fatal(format!("cannot start a writer: {error}")))?;
        let writer = Self { orders: Some(orders), thread };
        is_ready.await.map_err(|_| gone())??;
        Ok(writer)
    }

    /// Puts a file from there. The put is in progress on return; its result is in the future.
    pub(crate) fn put(
        &self,
        bucket: &str,
        key: &str,
        path: &Path,
        options: &PutOptions,
    ) -> impl Future<Output = Result<ObjectReply>> + use<> {
        let (bucket, key, path, options) = (bucket.to_owned(), key.to_owned(), path.to_owned(), options.clone());
        self.order(move |client| async move { client.put_file(&bucket, &key, path, &options).await }.boxed_local())
    }

    /// Does something there with its client, after all earlier orders. The result is in the future.
    pub(crate) fn order<T, W>(&self, work: W) -> impl Future<Output = Result<T>> + use<T, W>
    where
        T: Send + 'static,
        W: FnOnce(Client) -> LocalBoxFuture<'static, Result<T>> + Send + 'static,
    {
        let (mut done, came_of_it) = oneshot::channel();
        let order: Order = Box::new(move |client| {
            async move {
                let result = tokio::select! {
                    result = work(client) => result,
                    () = done.closed() => return,
                };
                // The sender of the order may have ended.
                let _told = done.send(result);
            }
            .boxed_local()
        });
        let sent = self.orders.as_ref().is_some_and(|orders| orders.send(order).is_ok());
        async move { if sent { came_of_it.await.map_err(|_| gone())? } else { Err(gone()) } }
    }
}

/// Writers on the first `count` nodes of a testbed.
pub(crate) async fn on_nodes(testbed: Option<&Testbed>, count: u32) -> Result<Writers> {
    if count == 0 {
        return Ok(Writers::default());
    }
    let testbed = testbed.ok_or_else(|| Error::invalid("--writers needs a testbed"))?;
    let cluster = testbed.cluster()?;
    let nodes = cluster.nodes().get(..count as usize);
    let nodes = nodes.ok_or_else(|| Error::invalid(format!("--writers {count} needs at least {count} nodes")))?;
    on_named(testbed, nodes).await
}

/// Writers on these nodes of a testbed, in this order.
pub(crate) async fn on_named(testbed: &Testbed, nodes: &[String]) -> Result<Writers> {
    let mut writers = Writers::default();
    for node in nodes {
        writers.0.push(Writer::start(testbed, node).await?);
    }
    Ok(writers)
}

impl Drop for Writers {
    fn drop(&mut self) {
        self.0.iter_mut().for_each(|writer| writer.orders = None);
        // A namespace is removed only when no thread is in it; a thread that hangs must not prevent the removal of the testbed.
        for _ in 0..END_POLLS {
            if self.iter().all(|writer| writer.thread.is_finished()) {
                return;
            }
            std::thread::sleep(END_POLL);
        }
        let hang = self.iter().filter(|writer| !writer.thread.is_finished()).count();
        tracing::warn!(hang, "writers on nodes do not end");
    }
}

/// Connects, then follows one order after another until there are no more.
fn serve(
    namespace: &str,
    target: Target,
    mut todo: mpsc::UnboundedReceiver<Order>,
    ready: oneshot::Sender<Result<()>>,
) -> Result<()> {
    let open = || -> Result<_> {
        // Threads that this thread starts are in the namespace too.
        enter(namespace)?;
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.map_err(|error| Error::fatal(format!("cannot start: {error}")))?;
        let session = runtime.block_on(Session::open(target))?;
        Ok((runtime, session))
    };
    let (runtime, session) = match open() {
        Ok(opened) => opened,
        // If no one waits for the result, the work is already given up.
        Err(error) => return ready.send(Err(error)).map_err(|_| gone()),
    };
    if ready.send(Ok(())).is_err() {
        return Ok(());
    }
    runtime.block_on(async {
        while let Some(order) = todo.recv().await {
            order(session.client.clone()).await;
        }
        session.client.close().await;
    });
    Ok(())
}

fn gone() -> Error {
    Error::fatal("a writer on a node has ended unexpectedly")
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::Instant;

    #[test]
    fn writers_end_at_the_same_time() {
        let slow = || {
            let (orders, mut todo) = mpsc::unbounded_channel();
            let thread = std::thread::spawn(move || {
                while todo.blocking_recv().is_some() {}
                std::thread::sleep(Duration::from_millis(400));
            });
            Writer { orders: Some(orders), thread }
        };
        let (writers, begun) = (Writers((0..6).map(|_| slow()).collect()), Instant::now());
        drop(writers);
        let took = begun.elapsed();
        assert!(took >= Duration::from_millis(400) && took < Duration::from_millis(1600), "{took:?}");
    }
}
