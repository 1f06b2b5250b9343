//! A command's connection to its cluster.

use crate::{
    exit::Exit,
    target::{Options, Target},
};
use std::future::Future;
use weft_client::{Client, ClientConfig};
use weft_types::{Error, Reaction, Result};

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
        run(async {
            let session = Self::open(target).await?;
            let done = tokio::select! {
                done = work(&session) => Some(done),
                _ = tokio::signal::ctrl_c() => None,
            };
            // The work is dropped by now: what it held is given up, and the coordinator is told.
            session.client.close().await;
            done.unwrap_or_else(|| interrupted())
        })
    }
}

/// Ends the process at once: a thread that waits for standard input would hold up an orderly end for ever.
fn interrupted() -> ! {
    eprintln!("weft: interrupted");
    std::process::exit(Exit::Interrupted as i32)
}

/// Runs what a command does over the network.
pub(crate) fn run<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    runtime.map_err(|error| Error::fatal(format!("cannot start: {error}")))?.block_on(work)
}
