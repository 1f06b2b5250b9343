//! The request of an update, and its answer.

use super::{
    course::{ANSWER_TIMEOUT, Heard},
    lease::{Home, Lease},
};
use crate::update_links::UpdateLinks;
use std::{pin::pin, time::Duration};
use tokio::time::{Instant, timeout, timeout_at};
use weft_proto::{
    LinkToken,
    updates::{Part, UpdateRequest},
};
use weft_types::{Error, Reaction};
use weft_update::{Told, UpdateId};

/// How long an answer may take as long as other updates of the stripe are committed.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// Requests an update from the agent that leads it, until `until` at most.
pub(crate) async fn request(
    links: &UpdateLinks,
    (lease, home): (&Lease, &Home),
    token: LinkToken,
    id: UpdateId,
    parts: Vec<Part>,
    until: Instant,
) -> Heard {
    let connected = match timeout(ANSWER_TIMEOUT, links.connect(&home.address, &home.name)).await {
        Ok(connected) => connected,
        Err(_) => Err(Error::replan(format!("no connection to agent {} at {} in time", home.name, home.address))),
    };
    let client = match connected {
        Ok(client) => client,
        Err(error) if error.reaction == Reaction::InvalidInput => return Heard::Refused(error),
        Err(error) => {
            links.forget_broken();
            return Heard::NotSent(error);
        }
    };
    let sent = Instant::now();
    let request = UpdateRequest { block: home.block, id, term: lease.term, token, parts, route: None };
    let mut answer = pin!(client.request(request));
    loop {
        // On a slow link, updates wait for each other.
        let patience = (lease.heard().max(sent) + ANSWER_TIMEOUT).min(sent + ANSWER_MAX).min(until);
        match timeout_at(patience, &mut answer).await {
            Ok(Ok(told)) => {
                if told == Told::Committed {
                    lease.note_committed();
                }
                return Heard::Told(told);
            }
            Ok(Err(error)) if error.reaction == Reaction::InvalidInput => return Heard::Refused(error),
            Ok(Err(error)) => return Heard::Broken(error),
            Err(_) if lease.heard() + ANSWER_TIMEOUT > Instant::now() && Instant::now() < (sent + ANSWER_MAX).min(until) => {}
            Err(_) => return Heard::Silent,
        }
    }
}
