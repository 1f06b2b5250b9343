//! A client's connection to an agent whose blocks are open for updates.

use super::{
    Found, HeadMax, OPEN_READ_BYTES_MAX, OpenRead, Packet, Part, PartRef, Route, UPDATE_BYTES_MAX, UpdateReader, UpdateWriter,
    session,
};
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
use weft_types::{BlockId, ClusterId, Error, Result, crc32c};
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

/// A packet on its way to the writer.
struct Sending {
    number: u64,
    packet: Packet,
    parts: Vec<Part>,
}

/// What waits for an answer.
enum Waiting {
    Update(oneshot::Sender<Result<Told>>),
    Read(oneshot::Sender<Result<(Found, Option<Part>)>>),
}

/// A packet with its answer's number, and its bytes.
type Numbered = (Packet, Vec<Part>);

struct Shared {
    /// For messages: agent and address.
    place: String,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    next_number: u64,
    waiting: BTreeMap<u64, Waiting>,
    broken: Option<Error>,
}

/// The most bytes of requests that wait for their answer.
const INFLIGHT_BYTES_MAX: usize = 2 * UPDATE_BYTES_MAX;
/// What a request or a read counts at least: its head, and what both ends keep for it.
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
        let packet = |number| {
            let UpdateRequest { block, id, term, token, parts, route } = request;
            let packet = match route {
                Some(route) => Packet::Routed { number, block, id, term, token, route },
                None => Packet::Request { number, block, id, term, token },
            };
            (packet, parts)
        };
        self.ask(block, bytes, Waiting::Update, packet).await
    }

    /// Reads a range of an open data block at its agent, and waits for the answer: bound the time. What is returned with [`Found::Served`] are the
    /// bytes of the range; they are checked.
    pub async fn read(&self, read: OpenRead) -> Result<(Found, Vec<u8>)> {
        let (block, range) = (read.block, read.range);
        let len = range.len();
        if len == 0 || len > OPEN_READ_BYTES_MAX {
            return Err(Error::invalid(format!("a read of {len} bytes: 1 to {OPEN_READ_BYTES_MAX} are allowed")).block(block));
        }
        let packet = |number| (Packet::Read { number, read }, Vec::new());
        let (found, part) = self.ask(block, len as usize, Waiting::Read, packet).await?;
        let wrong = |what: &str| Error::retry(format!("{}: {what}", self.shared.place)).block(block);
        let Found::Served { crc, .. } = found else { return Ok((found, Vec::new())) };
        let is_asked = |part: &Part| part.stream == block.index && part.start == range.start && part.bytes.len() as u64 == len;
        let part = part.filter(is_asked).ok_or_else(|| wrong("it sent another range than was asked for"))?;
        match crc32c(&part.bytes) == crc {
            true => Ok((found, part.bytes.into())),
            false => Err(wrong("the bytes of a read do not have the checksum that it names")),
        }
    }

    /// Sends a packet and waits for its answer.
    async fn ask<T>(
        &self,
        block: BlockId,
        bytes: usize,
        waiting: impl FnOnce(oneshot::Sender<Result<T>>) -> Waiting,
        packet: impl FnOnce(u64) -> Numbered,
    ) -> Result<T> {
        let gone = || Error::retry(format!("{}: the connection is closed", self.shared.place)).block(block);
        let counted = u32::try_from(bytes + REQUEST_BYTES_MIN).unwrap_or(u32::MAX);
        let _room = self.room.acquire_many(counted).await.map_err(|_| gone())?;
        let (answer, answered) = oneshot::channel();
        let waits = self.shared.wait(waiting(answer)).map_err(|error| error.block(block))?;
        let (packet, parts) = packet(waits.number);
        self.queue.send(Sending { number: waits.number, packet, parts }).await.map_err(|_| gone())?;
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

impl Waiting {
    fn fail(self, error: Error) {
        // What waited may have been given up.
        let _given_up = match self {
            Self::Update(waiting) => waiting.send(Err(error)).is_ok(),
            Self::Read(waiting) => waiting.send(Err(error)).is_ok(),
        };
    }
}

impl Shared {
    fn wait(&self, answer: Waiting) -> Result<Waits<'_>> {
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
                    if let Some(Waiting::Update(waiting)) = self.take(number) {
                        let _given_up = waiting.send(told.ok_or_else(unknown));
                    }
                }
                Ok((Packet::Content { number, found }, parts)) if parts.len() <= 1 => {
                    if let Some(Waiting::Read(waiting)) = self.take(number) {
                        let _given_up = waiting.send(Ok((found, parts.into_iter().next())));
                    }
                }
                Ok(_) => return FrameError::Unexpected("received a packet that is no answer".into()),
                Err(error) => return error,
            }
        }
    }

    async fn send(&self, mut writer: UpdateWriter, mut requests: mpsc::Receiver<Sending>) -> Result<(), FrameError> {
        while let Some(first) = requests.recv().await {
            let mut next = Some(first);
            while let Some(Sending { number, packet, parts }) = next {
                let parts: Vec<PartRef<'_>> = parts.iter().map(Part::as_part_ref).collect();
                match writer.feed(&packet, &parts).await {
                    // Nothing was sent.
                    Err(FrameError::Unexpected(why)) => {
                        if let Some(waiting) = self.take(number) {
                            waiting.fail(Error::invalid(why));
                        }
                    }
                    sent => sent?,
                }
                next = requests.try_recv().ok();
            }
            writer.flush().await?;
        }
        Ok(())
    }

    fn take(&self, number: u64) -> Option<Waiting> {
        self.lock().waiting.remove(&number)
    }

    fn fail(&self, error: &FrameError) {
        let error = Error::retry(format!("{}: the connection for updates has failed: {error}", self.place));
        let mut state = self.lock();
        let error = state.broken.get_or_insert(error).clone();
        for (_, waiting) in std::mem::take(&mut state.waiting) {
            waiting.fail(error.clone());
        }
    }

    /// A poisoned lock is safe to use: each change is one call.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
