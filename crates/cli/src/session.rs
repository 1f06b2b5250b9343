//! A command's connection to its cluster.

use crate::{
    interrupt::Signals,
    names::with_names,
    seed::seed,
    target::{Options, Target},
};
use std::{future::Future, pin::Pin, time::Duration};
use tokio::runtime::Runtime;
use weft_client::{Client, ClientConfig, api};
use weft_types::{Error, NodeId, Reaction, Result};

/// Most time that a finished command waits for its threads: a read of standard input may never end.
const LAST_WORK_MAX: Duration = Duration::from_secs(1);

/// Most time that a command waits for the names of nodes.
const NAMES_MAX: Duration = Duration::from_secs(2);

/// A connected client, and the rest of the cluster's file.
pub struct Session {
    /// The client.
    pub client: Client,
    /// The bucket of keys without one.
    pub bucket: Option<String>,
}

impl Session {
    /// Connects.
    pub async fn open(target: Target) -> Result<Self> {
        let config =
            ClientConfig { cluster: target.cluster, seed: seed()?, ..ClientConfig::new([target.coordinator], target.security) };
        let client = Client::connect(config).await.map_err(|error| match error.reaction {
            Reaction::Retry | Reaction::Replan => {
                Error { reaction: Reaction::Unavailable, message: format!("{}; is the cluster up?", error.message), ..error }
            }
            _ => error,
        })?;
        Ok(Self { client, bucket: target.bucket })
    }

    /// Connects to the cluster that the options name, does `work`, and closes the connection.
    pub fn with<T>(options: &Options, work: impl AsyncFnOnce(&Self) -> Result<T>) -> Result<T> {
        let mut once = Once { work: Some(work), done: None };
        work_in_session(options, &mut once)?;
        once.done.ok_or_else(not_done)
    }
}

impl Session {
    /// The nodes, for their names; empty if the coordinator does not answer.
    pub async fn nodes(&self) -> Vec<api::Node> {
        match tokio::time::timeout(NAMES_MAX, self.client.status()).await {
            Ok(Ok(status)) => status.nodes,
            _ => Vec::new(),
        }
    }

    /// The nodes with these names or ids.
    pub async fn find_nodes<S: AsRef<str>>(&self, said: &[S]) -> Result<Vec<NodeId>> {
        if said.is_empty() {
            return Ok(Vec::new());
        }
        let nodes = self.client.status().await?.nodes;
        let find = |said: &str| {
            // A name takes precedence over an id, because a node's name may look like another node's id.
            let named = nodes.iter().find(|node| node.name == said);
            let found = named.or_else(|| nodes.iter().find(|node| NodeId(node.id).to_string() == said));
            found
                .map(|node| NodeId(node.id))
                .ok_or_else(|| Error::not_found(format!("there is no node '{said}': `weft node ls` lists all nodes")))
        };
        said.iter().map(|said| find(said.as_ref())).collect()
    }

    /// The node with this name or id.
    pub async fn find_node(&self, said: &str) -> Result<NodeId> {
        let found = self.find_nodes(&[said]).await?;
        found.first().copied().ok_or_else(|| Error::not_found(format!("there is no node '{said}'")))
    }

    /// Adds the names of nodes to an error: errors contain ids, and operators know names.
    async fn explained(&self, error: Error) -> Error {
        let has_id = error.message.as_bytes().windows(2).any(|pair| pair[0] == b'n' && pair[1].is_ascii_digit());
        if !has_id && error.party.is_none() {
            return error;
        }
        let nodes = self.nodes().await;
        let message = with_names(&error.message, &nodes);
        let party = error.party.map(|party| with_names(&party.to_string(), &nodes));
        // The party's id stays in the JSON form of the error.
        match party.filter(|name| error.party.is_some_and(|party| party.to_string() != *name) && !message.contains(name.as_str()))
        {
            Some(name) => Error { message: format!("{message} (node {name})"), ..error },
            None => Error { message, ..error },
        }
    }
}

/// Runs a command's work on the network until it ends or is interrupted.
pub fn run<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    let mut done = None;
    let work = async {
        done = Some(work.await?);
        Ok(())
    };
    run_boxed(Box::pin(work))?;
    done.ok_or_else(not_done)
}

/// Work in progress with any result. The code around it is compiled once, not once per command.
type Running<'a> = Pin<Box<dyn Future<Output = Result<()>> + 'a>>;

/// Work on a session that has yet to begin.
trait Work {
    fn begin<'a>(&'a mut self, session: &'a Session) -> Running<'a>;
}

/// Work that runs once, and its result.
struct Once<F, T> {
    work: Option<F>,
    done: Option<T>,
}

impl<T, F: AsyncFnOnce(&Session) -> Result<T>> Work for Once<F, T> {
    fn begin<'a>(&'a mut self, session: &'a Session) -> Running<'a> {
        let (work, done) = (self.work.take(), &mut self.done);
        Box::pin(async move {
            if let Some(work) = work {
                *done = Some(work(session).await?);
            }
            Ok(())
        })
    }
}

fn work_in_session(options: &Options, work: &mut dyn Work) -> Result<()> {
    let target = options.target()?;
    let runtime = runtime()?;
    let done = runtime.block_on(async {
        let mut signals = Signals::register()?;
        let session = tokio::select! {
            session = Session::open(target) => session?,
            error = signals.interrupted() => return Err(error),
        };
        let running = work.begin(&session);
        let done = tokio::select! {
            done = async {
                match running.await {
                    Err(error) => Err(session.explained(error).await),
                    done => done,
                }
            } => done,
            error = signals.interrupted() => Err(error),
        };
        // Dropping the work releases what it holds; closing tells the coordinator.
        session.client.close().await;
        done
    });
    runtime.shutdown_timeout(LAST_WORK_MAX);
    done
}

fn run_boxed(work: Running<'_>) -> Result<()> {
    let runtime = runtime()?;
    let done = runtime.block_on(async {
        let mut signals = Signals::register()?;
        tokio::select! {
            done = work => done,
            error = signals.interrupted() => Err(error),
        }
    });
    runtime.shutdown_timeout(LAST_WORK_MAX);
    done
}

fn runtime() -> Result<Runtime> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    runtime.map_err(|error| Error::fatal(format!("cannot start: {error}")))
}

/// Work that succeeds has a result.
fn not_done() -> Error {
    Error::fatal("a command ended without a result")
}
