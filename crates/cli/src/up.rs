//! Brings a local cluster up.

use crate::{
    local::{COORDINATOR, LocalCluster},
    seed::seed,
    session::Session,
};
use std::{collections::BTreeSet, time::Duration};
use tokio::time::Instant;
use weft_client::api;
use weft_types::{Error, Reaction, Result};

/// Most time for a cluster to come up.
const UP_TIMEOUT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(50);
/// The poll interval and the number of agents while agents are started one after another.
const POLL_IN_ORDER: Duration = Duration::from_millis(5);
const IN_ORDER_MAX: usize = 64;

/// Starts all processes that are not running, and waits until all nodes are up.
pub async fn bring_up(cluster: &LocalCluster) -> Result<Session> {
    let until = Instant::now() + UP_TIMEOUT;
    let mut started = BTreeSet::new();
    let mut session: Option<Session> = None;
    let mut known = 0;
    loop {
        // Node ids are assigned in the order in which agents first register: node-01 must become n1.
        let in_order = cluster.is_new() && known < cluster.nodes().len().min(IN_ORDER_MAX);
        start_missing(cluster, &mut started, if in_order { known + 1 } else { usize::MAX })?;
        let mut why = None;
        if session.is_none() {
            session = keep(Session::open(cluster.file()?.target()?).await, &mut why)?;
        }
        let missing = match &session {
            Some(session) => {
                // A coordinator that restarts can disappear again for a moment: no answer is not an error yet.
                let status = keep(session.client.status().await, &mut why)?;
                let removed = status.as_ref().map(|status| removed(cluster, status)).transpose()?.unwrap_or_default();
                let nodes = status.map(|status| status.nodes).unwrap_or_default();
                known = nodes.len();
                let is_up = |name: &String| nodes.iter().any(|node| node.name == *name && node.state == "up");
                cluster.nodes().iter().filter(|name| !is_up(name) && !removed.contains(name)).cloned().collect()
            }
            None => vec![COORDINATOR.to_owned()],
        };
        match session.take() {
            Some(session) if missing.is_empty() => return Ok(session),
            not_yet => session = not_yet,
        }
        if Instant::now() > until {
            let logged = missing.first().map(|name| format!("; {name} logged last: {}", cluster.last_logged(name)));
            let (log, missing) = (cluster.dir().join("log"), missing.join(", "));
            let why = why.map_or_else(String::new, |error: Error| format!(": {error}")) + &logged.unwrap_or_default();
            return Err(Error::retry(format!("not up after {UP_TIMEOUT:?}: {missing}{why}; see the logs in {}", log.display())));
        }
        tokio::time::sleep(if in_order { POLL_IN_ORDER } else { POLL }).await;
    }
}

/// The agents whose nodes were removed from the cluster: they have numbers that the coordinator does not know, and cannot come back.
pub fn removed<'a>(cluster: &'a LocalCluster, status: &api::StatusReply) -> Result<Vec<&'a String>> {
    let mut removed = Vec::new();
    for name in cluster.nodes() {
        let is_known = status.nodes.iter().any(|node| node.name == *name);
        let id = if is_known { None } else { cluster.node_id(name)? };
        if id.is_some_and(|id| status.nodes.iter().all(|node| node.id != id.0)) {
            removed.push(name);
        }
    }
    Ok(removed)
}

/// Creates the bucket of keys without one, when the whole cluster is up for the first time.
pub async fn make_first_bucket(cluster: &LocalCluster, session: &Session) -> Result<()> {
    if !cluster.is_new() {
        return Ok(());
    }
    if let Some(bucket) = &session.bucket
        && !session.client.buckets().await?.iter().any(|there| there.name == *bucket)
    {
        session.client.create_bucket(bucket, "").await?;
    }
    cluster.was_up()
}

/// Keeps errors that can pass as the reason why the cluster is not up yet; all others end the wait.
fn keep<T>(answer: Result<T>, why: &mut Option<Error>) -> Result<Option<T>> {
    match answer {
        Err(error) if error.reaction == Reaction::InvalidInput => Err(error),
        Err(error) => {
            *why = Some(error);
            Ok(None)
        }
        Ok(answer) => Ok(Some(answer)),
    }
}

/// Starts the processes that are not running, each of them once, and only the first `agents` agents. A process that was killed a
/// moment ago can seem to run at first. A process that ends by itself after its start has logged why.
fn start_missing(cluster: &LocalCluster, started: &mut BTreeSet<String>, agents: usize) -> Result<()> {
    let processes = cluster.processes()?.into_iter().take(agents.saturating_add(1));
    let missing = processes.filter(|(_, process)| process.is_none()).map(|(name, _)| name);
    for name in missing {
        if !started.insert(name.clone()) {
            return Err(Error::fatal(cluster.ended(&name)));
        }
        if name == COORDINATOR {
            cluster.settle_port(seed()?)?;
        }
        cluster.start(&name)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permanent_failures_are_reported_without_waiting() {
        let mut why = None;
        assert_eq!(keep(Ok(1), &mut why), Ok(Some(1)));
        assert_eq!(keep::<()>(Err(Error::unavailable("later")), &mut why), Ok(None));
        assert_eq!(why.unwrap().message, "later");
        assert!(keep::<()>(Err(Error::invalid("never")), &mut None).is_err());
    }
}
