//! The request of an update, and its answer.

use super::{
    course::{ANSWER_TIMEOUT, Heard},
    lease::{Home, Lease},
};
use crate::update_links::UpdateLinks;
use std::pin::pin;
use tokio::time::{Instant, timeout, timeout_at};
use weft_proto::{
    LinkToken,
    updates::{Part, UpdateRequest},
};
use weft_types::{Error, Reaction};
use weft_update::{Told, UpdateId};

/// Requests an update from the agent that leads it, until `until` at most. With its id comes how many bytes it sends in all.
pub(crate) async fn request(
    links: &UpdateLinks,
    (lease, home): (&Lease, &Home),
    token: LinkToken,
    (id, sent): (UpdateId, u64),
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
    let bytes = parts.iter().map(|part| part.bytes.len() as u64).sum();
    let waiting = lease.under_way.send(sent);
    let route = lease.route(home.block, bytes);
    let request = UpdateRequest { block: home.block, id, term: lease.term, token, parts, route };
    let mut answer = pin!(client.request(request));
    loop {
        match timeout_at(waiting.until(lease.heard()).min(until), &mut answer).await {
            Ok(Ok(told)) => {
                if told == Told::Committed {
                    lease.note_committed();
                }
                return Heard::Told(told);
            }
            Ok(Err(error)) if error.reaction == Reaction::InvalidInput => return Heard::Refused(error),
            Ok(Err(error)) => return Heard::Broken(error),
            Err(_) if Instant::now() < waiting.until(lease.heard()).min(until) => {}
            Err(_) => return Heard::Silent(waiting.waited()),
        }
    }
}
