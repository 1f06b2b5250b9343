//! A command's connection to its cluster.

use crate::{
    interrupt::Signals,
    names::legend,
    target::{Options, Target},
};
use std::{future::Future, time::Duration};
use weft_client::{Client, ClientConfig, api};
use weft_types::{Error, NodeId, Reaction, Result};

/// What still holds a thread when a command is done has this long to end: standard input may never.
const LAST_WORK_MAX: Duration = Duration::from_secs(1);

/// Names of nodes are waited for so long.
const NAMES_MAX: Duration = Duration::from_secs(2);

/// A client that is connected, and what its cluster's file says besides.
pub(crate) struct Session {
    pub(crate) client: Client,
    /// The bucket of keys that are named without one.
    pub(crate) bucket: Option<String>,
}

impl Session {
    /// Connects.
    pub(crate) async fn open(target: Target) -> Result<Self> {
        let config = ClientConfig {
            cluster: target.cluster,
            seed: crate::cmd::seed()?,
            ..ClientConfig::new([target.coordinator], target.security)
        };
        let client = Client::connect(config).await.map_err(|error| match error.reaction {
            Reaction::Retry | Reaction::Replan => {
                Error { reaction: Reaction::Unavailable, message: format!("{}; is the cluster up?", error.message), ..error }
            }
            _ => error,
        })?;
        Ok(Self { client, bucket: target.bucket })
    }

    /// Connects to the cluster that the options name, does `work`, and closes.
    pub(crate) fn with<T>(options: &Options, work: impl AsyncFnOnce(&Self) -> Result<T>) -> Result<T> {
        let target = options.target()?;
        block_on(async |signals| {
            let session = tokio::select! {
                session = Self::open(target) => session?,
                error = signals.broken_off() => return Err(error),
            };
            let done = tokio::select! {
                done = async {
                    match work(&session).await {
                        Err(error) => Err(session.explained(error).await),
                        done => done,
                    }
                } => done,
                error = signals.broken_off() => Err(error),
            };
            // The work is dropped by now: what it held is given up, and the coordinator is told.
            session.client.close().await;
            done
        })
    }
}

impl Session {
    /// The nodes, to name them by; none, if the coordinator does not say.
    pub(crate) async fn nodes(&self) -> Vec<api::Node> {
        match tokio::time::timeout(NAMES_MAX, self.client.status()).await {
            Ok(Ok(status)) => status.nodes,
            _ => Vec::new(),
        }
    }

    /// The nodes of these names or numbers.
    pub(crate) async fn find_nodes<S: AsRef<str>>(&self, said: &[S]) -> Result<Vec<NodeId>> {
        if said.is_empty() {
            return Ok(Vec::new());
        }
        let nodes = self.client.status().await?.nodes;
        let find = |said: &str| {
            let found = nodes.iter().find(|node| node.name == said || NodeId(node.id).to_string() == said);
            found
                .map(|node| NodeId(node.id))
                .ok_or_else(|| Error::not_found(format!("there is no node '{said}': `weft node ls` lists them")))
        };
        said.iter().map(|said| find(said.as_ref())).collect()
    }

    /// Errors name nodes by their numbers, which operators do not know.
    async fn explained(&self, error: Error) -> Error {
        let all = error.to_string();
        let has_number = all.as_bytes().windows(2).any(|pair| pair[0] == b'n' && pair[1].is_ascii_digit());
        match has_number.then_some(self.nodes()) {
            Some(nodes) => match legend(&all, &nodes.await) {
                Some(legend) => Error { message: format!("{} ({legend})", error.message), ..error },
                None => error,
            },
            None => error,
        }
    }
}

/// Runs what a command does over the network, until it is broken off.
pub(crate) fn run<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    block_on(async |signals| {
        tokio::select! {
            done = work => done,
            error = signals.broken_off() => Err(error),
        }
    })
}

fn block_on<T>(work: impl AsyncFnOnce(&mut Signals) -> Result<T>) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Error::fatal(format!("cannot start: {error}")))?;
    let done = runtime.block_on(async { work(&mut Signals::register()?).await });
    runtime.shutdown_timeout(LAST_WORK_MAX);
    done
}
