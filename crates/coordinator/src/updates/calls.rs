//! Calls to agents about open blocks, and what their answers mean.

use crate::shared::Shared;
use std::{collections::BTreeMap, time::Duration};
use tokio::time::Instant;
use tonic::{Code, Response, Status, transport::Channel};
use weft_proto::{from_status, rpc, v1::agent_client::AgentClient};
use weft_types::{BlockId, Error, NodeId, Party, Reaction, Result};

/// The pause before an agent is asked again that is busy or cannot be reached.
const PAUSE: Duration = Duration::from_millis(100);

/// What became of a call.
#[derive(Debug)]
pub(super) enum Answer<T> {
    /// Its answer.
    Given(T),
    /// It could not do it within the time, for example because a task uses the block.
    Busy(Error),
    /// It will not do it.
    Refused(Error),
    /// It did not answer: it may have done it.
    Silent(Error),
}

impl<T> Answer<T> {
    /// Something made of the answer. One that makes no sense is a refusal.
    pub(super) fn and_then<U>(self, make: impl FnOnce(T) -> Result<U>) -> Answer<U> {
        match self {
            Self::Given(answer) => make(answer).map_or_else(Answer::Refused, Answer::Given),
            Self::Busy(error) => Answer::Busy(error),
            Self::Refused(error) => Answer::Refused(error),
            Self::Silent(error) => Answer::Silent(error),
        }
    }

    /// The answer, or why there is none.
    pub(super) fn given(self) -> Result<T> {
        match self {
            Self::Given(answer) => Ok(answer),
            Self::Busy(error) | Self::Refused(error) | Self::Silent(error) => Err(error),
        }
    }
}

/// Calls an agent about a block, again and again while it is busy or cannot be reached, at most for this time.
pub(super) async fn ask<T, F>(
    shared: &Shared,
    (node, block): (NodeId, BlockId),
    within: Duration,
    call: impl Fn(AgentClient<Channel>, Duration) -> F,
) -> Answer<T>
where
    F: Future<Output = Result<Response<T>, Status>>,
{
    let until = Instant::now() + within;
    let place = |error: Error| error.party(Party::Node(node)).block(block);
    // What it said last, if it was busy: then it is not silent because the time is over before it answers again.
    let mut said = None;
    let silent = |error: Error, said: Option<Error>| said.map_or(Answer::Silent(error), Answer::Busy);
    loop {
        let Some(session) = shared.members.session(node) else {
            return Answer::Silent(place(Error::retry(format!("{} is down", shared.members.name(node)))));
        };
        let left = until.saturating_duration_since(Instant::now());
        let status = match tokio::time::timeout(left, call(rpc::agent_client(session.channel), left)).await {
            Ok(Ok(answer)) => return Answer::Given(answer.into_inner()),
            Ok(Err(status)) => status,
            Err(_) => return silent(place(Error::retry("no answer in time")), said),
        };
        // An agent of a version without this call can do nothing that must be undone.
        let is_from_agent = !status.details().is_empty() || status.code() == Code::Unimplemented;
        let error = place(from_status(&status));
        let is_busy = is_from_agent && error.reaction == Reaction::Retry;
        let may_help = !is_from_agent || is_busy;
        if is_busy {
            said = Some(error.clone());
        }
        if may_help && Instant::now() + PAUSE < until {
            tokio::time::sleep(PAUSE).await;
            continue;
        }
        return match is_from_agent {
            false => silent(error, said),
            true if is_busy => Answer::Busy(error),
            true => Answer::Refused(error),
        };
    }
}

/// The answers of blocks to calls at the same time.
pub(super) async fn all<T>(calls: impl Iterator<Item = impl Future<Output = (BlockId, T)>>) -> BTreeMap<BlockId, T> {
    futures::future::join_all(calls).await.into_iter().collect()
}
