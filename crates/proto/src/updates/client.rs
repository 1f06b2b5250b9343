//! A client's connection to an agent whose blocks lead updates.

use super::{HeadMax, Packet, Part, PartRef, Route, UPDATE_BYTES_MAX, UpdateReader, UpdateWriter, session};
use crate::{
    frame::{FrameError, UpdatesHello},
    net::Net,
    security::Security,
    token::LinkToken,
};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tokio::{
    sync::{Semaphore, mpsc, oneshot},
    task::JoinSet,
};
use weft_types::{BlockId, ClusterId, Error, Result};
use weft_update::{Told, UpdateId};

/// A connection to one agent, for many requests at a time. After an error all its requests fail, and it stays broken: dial again.
pub struct UpdateClient {
    shared: Arc<Shared>,
    queue: mpsc::Sender<Sending>,
    /// Bytes of requests that are not answered.
    room: Arc<Semaphore>,
    /// Aborted when this is dropped.
    _tasks: JoinSet<()>,
}

/// A client's request to overwrite ranges of data blocks, one range of each at most, all or nothing.
#[derive(Debug, Clone)]
pub struct UpdateRequest {
    /// The lowest data block that it changes: its node is the agent.
    pub block: BlockId,
    /// The update. A repeated request has the same id.
    pub id: UpdateId,
    /// The term of the client's lease.
    pub term: u64,
    /// The right to request updates that this block's node leads.
    pub token: LinkToken,
    /// The new bytes, ascending by data block: together at most [`UPDATE_BYTES_MAX`].
    pub parts: Vec<Part>,
    /// The way of the deltas; without one, the agent sends them straight to all blocks that are patched. Only for agents of protocol 4 and later.
    pub route: Option<Route>,
}

/// A request on its way to the writer.
struct Sending {
    number: u64,
    request: UpdateRequest,
}

struct Shared {
    /// For messages: agent and address.
    place: String,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    next_number: u64,
    waiting: BTreeMap<u64, oneshot::Sender<Result<Told>>>,
    broken: Option<Error>,
}

/// The most bytes of requests that wait for their answer.
const INFLIGHT_BYTES_MAX: usize = 2 * UPDATE_BYTES_MAX;
/// What a request counts at least: its head, and what both ends keep for it.
const REQUEST_BYTES_MIN: usize = 4 << 10;
/// The most requests that wait to be sent. Those that are sent are bounded by their bytes.
const QUEUED_MAX: usize = 64;

impl UpdateClient {
    /// Connects to the agent with this name.
    pub async fn dial(net: &dyn Net, security: &Security, address: &str, agent: &str, cluster: ClusterId) -> Result<Self> {
        let hello = UpdatesHello { cluster, from: None, to: agent.to_owned() };
        let (reader, writer) = session::dial(net, security, address, &hello, HeadMax::Small).await?;
        let shared = Arc::new(Shared { place: format!("agent {agent} at {address}"), state: Mutex::default() });
        let (queue, requests) = mpsc::channel(QUEUED_MAX);
        let mut tasks = JoinSet::new();
        let (reading, writing) = (Arc::clone(&shared), Arc::clone(&shared));
        tasks.spawn(async move {
            let ended = reading.receive(reader).await;
            reading.fail(&ended);
        });
        tasks.spawn(async move {
            if let Err(error) = writing.send(writer, requests).await {
                writing.fail(&error);
            }
        });
        Ok(Self { shared, queue, room: Arc::new(Semaphore::new(INFLIGHT_BYTES_MAX)), _tasks: tasks })
    }

    /// Sends a request and waits for its answer, which may take as long as the update: bound the time. An error says nothing about what becomes of
    /// the update; its reaction is [`Reaction::Retry`](weft_types::Reaction) if the connection is broken, or if the agent cannot tell the outcome: then the
    /// coordinator's next lease is for a stripe that knows it, and the request may be repeated under the same id.
    pub async fn request(&self, request: UpdateRequest) -> Result<Told> {
        let bytes: usize = request.parts.iter().map(|part| part.bytes.len()).sum();
        if bytes == 0 || bytes > UPDATE_BYTES_MAX {
            return Err(
                Error::invalid(format!("an update of {bytes} bytes: 1 to {UPDATE_BYTES_MAX} are allowed")).block(request.block)
            );
        }
        let block = request.block;
        if let Some(route) = &request.route {
            route.check(block)?;
        }
        let gone = || Error::retry(format!("{}: the connection is closed", self.shared.place)).block(block);
        let counted = u32::try_from(bytes + REQUEST_BYTES_MIN).unwrap_or(u32::MAX);
        let _room = self.room.acquire_many(counted).await.map_err(|_| gone())?;
        let (answer, answered) = oneshot::channel();
        let waits = self.shared.wait(answer).map_err(|error| error.block(block))?;
        self.queue.send(Sending { number: waits.number, request }).await.map_err(|_| gone())?;
        answered.await.unwrap_or_else(|_| Err(gone())).map_err(|error| error.block(block))
    }

    /// Whether the connection has failed.
    pub fn is_broken(&self) -> bool {
        self.shared.lock().broken.is_some()
    }
}

/// A request that waits for its answer. Dropping it gives up waiting, not the update.
struct Waits<'a> {
    shared: &'a Shared,
    number: u64,
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.shared.lock().waiting.remove(&self.number);
    }
}

impl Shared {
    fn wait(&self, answer: oneshot::Sender<Result<Told>>) -> Result<Waits<'_>> {
        let mut state = self.lock();
        if let Some(error) = &state.broken {
            return Err(error.clone());
        }
        let number = state.next_number;
        state.next_number += 1;
        state.waiting.insert(number, answer);
        Ok(Waits { shared: self, number })
    }

    async fn receive(&self, mut reader: UpdateReader) -> FrameError {
        loop {
            match reader.next().await {
                Ok((Packet::Answer { number, told }, parts)) if parts.is_empty() => {
                    let unknown = || Error::retry(format!("{}: it cannot tell the outcome: ask the coordinator", self.place));
                    self.answer(number, told.ok_or_else(unknown));
                }
                Ok(_) => return FrameError::Unexpected("received a packet that is no answer".into()),
                Err(error) => return error,
            }
        }
    }

    async fn send(&self, mut writer: UpdateWriter, mut requests: mpsc::Receiver<Sending>) -> Result<(), FrameError> {
        while let Some(first) = requests.recv().await {
            let mut next = Some(first);
            while let Some(Sending { number, request }) = next {
                let UpdateRequest { block, id, term, token, parts, route } = request;
                let packet = match route {
                    Some(route) => Packet::Routed { number, block, id, term, token, route },
                    None => Packet::Request { number, block, id, term, token },
                };
                let parts: Vec<PartRef<'_>> = parts.iter().map(Part::as_part_ref).collect();
                match writer.feed(&packet, &parts).await {
                    // Nothing was sent.
                    Err(FrameError::Unexpected(why)) => self.answer(number, Err(Error::invalid(why))),
                    sent => sent?,
                }
                next = requests.try_recv().ok();
            }
            writer.flush().await?;
        }
        Ok(())
    }

    fn answer(&self, number: u64, answer: Result<Told>) {
        if let Some(waiting) = self.lock().waiting.remove(&number) {
            let _given_up = waiting.send(answer);
        }
    }

    fn fail(&self, error: &FrameError) {
        let error = Error::retry(format!("{}: the connection for updates has failed: {error}", self.place));
        let mut state = self.lock();
        let error = state.broken.get_or_insert(error).clone();
        for (_, waiting) in std::mem::take(&mut state.waiting) {
            let _given_up = waiting.send(Err(error.clone()));
        }
    }

    /// A poisoned lock is safe to use: each change is one call.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
