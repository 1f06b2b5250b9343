//! Brings a local cluster up.

use crate::{
    local::{COORDINATOR, LocalCluster},
    seed::seed,
    session::Session,
};
use std::{collections::BTreeSet, time::Duration};
use tokio::time::Instant;
use weft_types::{Error, Reaction, Result};

/// A cluster has this long to come up.
const UP_TIMEOUT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(50);
/// While agents are started one after another, which is done for so many of them.
const POLL_IN_ORDER: Duration = Duration::from_millis(5);
const IN_ORDER_MAX: usize = 64;

/// Starts whatever does not run, and waits until all nodes are up.
pub async fn bring_up(cluster: &LocalCluster) -> Result<Session> {
    let until = Instant::now() + UP_TIMEOUT;
    let mut started = BTreeSet::new();
    let mut session: Option<Session> = None;
    let mut known = 0;
    loop {
        // Numbers are given in the order in which agents come for the first time: node-01 shall be n1.
        let in_order = cluster.is_new() && known < cluster.nodes().len().min(IN_ORDER_MAX);
        start_missing(cluster, &mut started, if in_order { known + 1 } else { usize::MAX })?;
        let mut why = None;
        if session.is_none() {
            session = keep(Session::open(cluster.file()?.target()?).await, &mut why)?;
        }
        let missing = match &session {
            Some(session) => {
                // While it is starting again, a coordinator that was there a moment ago may be gone: that is no answer yet.
                let status = keep(session.client.status().await, &mut why)?;
                let nodes = status.map(|status| status.nodes).unwrap_or_default();
                known = nodes.len();
                let is_up = |name: &&String| !nodes.iter().any(|node| node.name == **name && node.state == "up");
                cluster.nodes().iter().filter(is_up).cloned().collect()
            }
            None => vec![COORDINATOR.to_owned()],
        };
        match session.take() {
            Some(session) if missing.is_empty() => return Ok(session),
            not_yet => session = not_yet,
        }
        if Instant::now() > until {
            let (log, missing) = (cluster.dir().join("log"), missing.join(", "));
            let why = why.map_or_else(String::new, |error: Error| format!(": {error}"));
            return Err(Error::retry(format!("not up after {UP_TIMEOUT:?}: {missing}{why} (see {})", log.display())));
        }
        tokio::time::sleep(if in_order { POLL_IN_ORDER } else { POLL }).await;
    }
}

/// Makes the bucket of keys that are named without one, if the cluster is up as a whole for the first time.
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

/// Errors that may pass are kept as the reason why the cluster is not up yet; all others end the wait.
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

/// Starts what does not run, of the agents only the first so many, each once: what was killed a moment ago may seem to run at
/// first, and what ends by itself after it was started has said why.
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
    fn what_waiting_cannot_mend_is_told_at_once() {
        let mut why = None;
        assert_eq!(keep(Ok(1), &mut why), Ok(Some(1)));
        assert_eq!(keep::<()>(Err(Error::unavailable("later")), &mut why), Ok(None));
        assert_eq!(why.unwrap().message, "later");
        assert!(keep::<()>(Err(Error::invalid("never")), &mut None).is_err());
    }
}
