//! A client that stands on a node of a testbed: a thread of its own, in the node's namespace, whose sockets use the node's links.

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

/// Writers that are to end are waited for so often, for so long: their clients tell the coordinator what they gave up.
const END_POLLS: u32 = 500;
const END_POLL: Duration = Duration::from_millis(20);

/// A client on a node. It gives up what it puts, and ends, once nobody can give it another order.
#[derive(Debug)]
pub(crate) struct Writer {
    orders: Option<mpsc::UnboundedSender<Order>>,
    thread: JoinHandle<()>,
}

/// Writers that end together: dropped, each gives up what it puts.
#[derive(Debug, Default)]
pub(crate) struct Writers(Vec<Writer>);

impl Deref for Writers {
    type Target = [Writer];

    fn deref(&self) -> &[Writer] {
        &self.0
    }
}

/// An object that is to be put.
struct Order {
    bucket: String,
    key: String,
    path: PathBuf,
    options: PutOptions,
    done: oneshot::Sender<Result<ObjectReply>>,
}

impl Writer {
    /// One on the node of that name, connected.
    pub(crate) async fn start(testbed: &Testbed, node: &str) -> Result<Self> {
        let (namespace, target) = (testbed.namespace(node)?, testbed.cluster()?.file()?.target()?);
        let ((orders, todo), (ready, is_ready)) = (mpsc::unbounded_channel(), oneshot::channel());
        let work = move || {
            if let Err(error) = serve(&namespace, target, todo, ready) {
                // Whoever gives the next order learns that nobody is there.
                tracing::warn!(%error, "a writer on a node has ended");
            }
        };
        let thread = std::thread::Builder::new().name(format!("on {node}")).spawn(work);
        let thread = thread.map_err(|error| Error::fatal(format!("cannot start a writer: {error}")))?;
        let writer = Self { orders: Some(orders), thread };
        is_ready.await.map_err(|_| gone())??;
        Ok(writer)
    }

    /// Puts a file from there; it is under way when this returns, and what comes of it is in the future.
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
    let testbed = testbed.ok_or_else(|| Error::invalid("writers can stand on nodes only in a testbed"))?;
    let cluster = testbed.cluster()?;
    let nodes = cluster.nodes().get(..count as usize);
    let nodes = nodes.ok_or_else(|| Error::invalid(format!("{count} writers need as many nodes to stand on")))?;
    for node in nodes {
        writers.0.push(Writer::start(testbed, node).await?);
    }
    Ok(writers)
}

impl Drop for Writers {
    fn drop(&mut self) {
        self.0.iter_mut().for_each(|writer| writer.orders = None);
        // A namespace is gone only when nobody is in it any more; but those who hang keep nobody from taking the testbed away.
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

/// Connects, and puts one order after another until there are no more.
fn serve(
    namespace: &str,
    target: Target,
    mut todo: mpsc::UnboundedReceiver<Order>,
    ready: oneshot::Sender<Result<()>>,
) -> Result<()> {
    let open = || -> Result<_> {
        // Whatever this thread starts is there too.
        enter(namespace)?;
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.map_err(|error| Error::fatal(format!("cannot start: {error}")))?;
        let session = runtime.block_on(Session::open(target))?;
        Ok((runtime, session))
    };
    let (runtime, session) = match open() {
        Ok(opened) => opened,
        // Nobody waits for it: it is given up already.
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
            // Whoever asked may be gone by now.
            let _told = done.send(came_of_it);
        }
        session.client.close().await;
    });
    Ok(())
}

fn gone() -> Error {
    Error::fatal("a writer on a node has ended before its time")
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
