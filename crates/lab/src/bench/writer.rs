//! A client on a node of a testbed: a thread in the node's namespace, whose sockets use the node's links.

use crate::testbed::{Testbed, enter};
use std::{
    ops::Deref,
    path::{Path, PathBuf},
    thread::JoinHandle,
    time::Duration,
};
use tokio::sync::{mpsc, oneshot};
use weft_cli::{session::Session, target::Target};
use weft_client::{PutOptions, api::ObjectReply};
use weft_types::{Error, Result};

/// How often, and at which interval, to wait for writers to end: their clients report aborted puts to the coordinator.
const END_POLLS: u32 = 500;
const END_POLL: Duration = Duration::from_millis(20);

/// A client on a node. When it can get no more orders, it aborts its puts and ends.
#[derive(Debug)]
pub(crate) struct Writer {
    orders: Option<mpsc::UnboundedSender<Order>>,
    thread: JoinHandle<()>,
}

/// Writers that end together: dropping them aborts their puts.
#[derive(Debug, Default)]
pub(crate) struct Writers(Vec<Writer>);

impl Deref for Writers {
    type Target = [Writer];

    fn deref(&self) -> &[Writer] {
        &self.0
    }
}

/// An object to put.
struct Order {
    bucket: String,
    key: String,
    path: PathBuf,
    options: PutOptions,
    done: oneshot::Sender<Result<ObjectReply>>,
}

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
        let (done, came_of_it) = oneshot::channel();
        let order =
            Order { bucket: bucket.to_owned(), key: key.to_owned(), path: path.to_owned(), options: options.clone(), done };
        let sent = self.orders.as_ref().is_some_and(|orders| orders.send(order).is_ok());
        async move { if sent { came_of_it.await.map_err(|_| gone())? } else { Err(gone()) } }
    }
}

/// Writers on the first `count` nodes of a testbed.
pub(crate) async fn on_nodes(testbed: Option<&Testbed>, count: u32) -> Result<Writers> {
    let mut writers = Writers::default();
    if count == 0 {
        return Ok(writers);
    }
    let testbed = testbed.ok_or_else(|| Error::invalid("--writers needs a testbed"))?;
    let cluster = testbed.cluster()?;
    let nodes = cluster.nodes().get(..count as usize);
    let nodes = nodes.ok_or_else(|| Error::invalid(format!("--writers {count} needs at least {count} nodes")))?;
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

/// Connects, then puts one order after another until there are no more.
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
        // No one waits for the result: the put is already aborted.
        Err(error) => return ready.send(Err(error)).map_err(|_| gone()),
    };
    if ready.send(Ok(())).is_err() {
        return Ok(());
    }
    runtime.block_on(async {
        while let Some(Order { bucket, key, path, options, mut done }) = todo.recv().await {
            let put = session.client.put_file(&bucket, &key, path, &options);
            let came_of_it = tokio::select! {
                came_of_it = put => came_of_it,
                () = done.closed() => continue,
            };
            // The sender of the order may have ended.
            let _told = done.send(came_of_it);
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
