//! Updates in place: blocks that are open for updates, the threads that own them, and the connections that carry their messages.
//!
//! ```text
//!  clients ─► guests ─┐             ┌─► worker of a disk (one thread: the updater, one sync for all that waits)
//!  agents  ─► guests ─┼─► queue ────┤        │ outputs
//!  coordinator calls ─┘             └────────┼─► clients' connections      ► peers ─► agents      ► asker ─► coordinator
//! ```
//! Deltas may travel from agent to agent: guests ─► [`loads`] ─► [`carry`] ─► peers, and from there into the queue, with the message to which they belong.
//! A few small messages and answers go straight from the thread of a disk into a connection that is idle: [`outlet`].
//! The [`fence`] keeps tasks off the blocks that are open, and openings off the blocks that tasks read.

mod asker;
mod carry;
mod early;
pub(crate) mod fence;
mod guests;
mod homes;
mod host;
mod loads;
pub(crate) mod meter;
mod outlet;
mod peers;
mod queue;
mod reads;
mod time;
mod worker;

pub(crate) use asker::{Coordinator, ask_coordinator};
pub(crate) use guests::attend;
pub(crate) use homes::Told;
pub(crate) use host::Host;
pub(crate) use queue::Command;

use crate::corruption::Findings;
use asker::Asker;
use fence::Fence;
use homes::Homes;
use loads::Loads;
use meter::Meter;
use peers::Peers;
use queue::{Answer, Queue, Reading};
use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak,
        atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
    },
};
use time::Time;
use tokio::{
    sync::{Semaphore, watch},
    task::JoinSet,
};
use weft_proto::{
    LinkKey, LinkToken, Net, Security, UpdateRights,
    updates::{OPEN_READ_BYTES_MAX, OpenRead, Packet, ReadRefusal, Route},
};
use weft_types::{BlockId, Clock, ClusterId, Error, Reaction, Result, Span, StripeId, UPDATE_BYTES_USUAL};
use weft_update::{Message, NotRun, Peer, Told as Outcome, UpdateId};
use weft_updater::Pieces;

/// What all parts of the updates of a node share.
pub(crate) struct Hub {
    /// The node's name.
    pub(crate) name: String,
    pub(crate) cluster: watch::Receiver<Option<ClusterId>>,
    pub(crate) fence: Fence,
    pub(crate) homes: Homes,
    pub(crate) asker: Asker,
    pub(crate) time: Time,
    pub(crate) meter: Meter,
    peers: Peers,
    /// Deltas that travel over routes.
    loads: Loads,
    /// Of the next load that begins here. The first one is drawn from the clock, so that a restart uses others.
    attempts: AtomicU32,
    /// Of the next connection of another agent.
    connections: AtomicU64,
    /// What sends loads. It ends with this.
    tasks: Mutex<JoinSet<()>>,
    me: Weak<Self>,
    findings: Arc<Findings>,
    /// Of the last registration: what clients' tokens are made with.
    key: RwLock<Option<LinkKey>>,
    /// By the number of the disk.
    queues: RwLock<BTreeMap<usize, Queue>>,
    /// How full the journals are, by the number of the disk: 0 to 1.
    fills: Mutex<BTreeMap<usize, f64>>,
    /// The most bytes of an update that the journals take, by the number of the disk.
    update_bytes_max: Mutex<BTreeMap<usize, u64>>,
    /// For the bytes of reads whose answers are not sent yet.
    read_room: Arc<Semaphore>,
}

/// The most bytes of reads, of all clients, whose answers are not sent yet.
const READ_BYTES_MAX: usize = 64 << 20;

/// The most messages and answers at a time that the thread of a disk sends itself. The tasks of the connections send more of them together.
const AT_ONCE_MAX: usize = 4;
/// Messages with more bytes are sent by the task of their connection.
const AT_ONCE_BYTES_MAX: usize = 8 << 10;

/// A client's request.
pub(crate) struct Request {
    pub(crate) block: BlockId,
    pub(crate) term: u64,
    pub(crate) id: UpdateId,
    pub(crate) token: LinkToken,
    pub(crate) pieces: Pieces,
    pub(crate) route: Option<Route>,
}

impl Hub {
    pub(crate) fn new(
        name: &str,
        cluster: watch::Receiver<Option<ClusterId>>,
        (net, security): (Arc<dyn Net>, Security),
        clock: Arc<dyn Clock>,
        findings: Arc<Findings>,
    ) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            name: name.to_owned(),
            peers: Peers::new(net, security, name, cluster.clone()),
            cluster,
            fence: Fence::default(),
            homes: Homes::default(),
            asker: Asker::default(),
            loads: Loads::default(),
            attempts: AtomicU32::new(clock.now_ms() as u32),
            connections: AtomicU64::new(1),
            tasks: Mutex::default(),
            me: me.clone(),
            time: Time::new(clock),
            meter: Meter::default(),
            findings,
            key: RwLock::default(),
            queues: RwLock::default(),
            fills: Mutex::default(),
            update_bytes_max: Mutex::default(),
            read_room: Arc::new(Semaphore::new(READ_BYTES_MAX)),
        })
    }

    /// The node has registered, and shares this key with the coordinator.
    pub(crate) fn registered(&self, key: LinkKey) {
        *self.key.write().unwrap_or_else(PoisonError::into_inner) = Some(key);
    }

    /// Delivers a message of a block here to another block: on the same node, or at its home. It is dropped if that cannot take it now; the
    /// protocol repeats it.
    pub(crate) fn post(&self, from: BlockId, to: BlockId, message: Message, pieces: Pieces) {
        let id = match &message {
            Message::Prepare { record, .. } => Some(record.id),
            Message::Lock { id, .. } => Some(*id),
            _ => None,
        };
        let has_bytes = !pieces.is_empty();
        let is_taken = if self.fence.disk_of(to).is_some() {
            self.receive(from, to, message, pieces)
        } else {
            self.dispatch(from, to, Packet::Message { from, to, message }, &pieces)
        };
        if let Some(id) = id.filter(|_| has_bytes && !is_taken) {
            self.not_sent(from, id, to);
        }
    }

    /// Sends a message of a block here to a block on another node by this thread itself, if nothing waits for the connection to that node. Returns false if
    /// it does nothing. Only in the context of a runtime.
    pub(crate) fn post_at_once(&self, from: BlockId, to: BlockId, message: &Message, pieces: &Pieces) -> bool {
        let is_small = bytes_of(pieces) <= AT_ONCE_BYTES_MAX && self.fence.disk_of(to).is_none();
        let Some(home) = self.homes.of(to).filter(|home| is_small && home.name != self.name) else { return false };
        self.peers.send_at_once(&home, &Packet::Message { from, to, message: message.clone() }, pieces)
    }

    /// Bytes of an update that block `from` leads are not on their way to block `to`: they need no time to arrive before they are sent again.
    fn not_sent(&self, from: BlockId, id: UpdateId, to: BlockId) {
        if let Some(queue) = self.queue_of(from) {
            // If the queue is full, that time passes first.
            let _full = queue.offer(0, |_| Command::NotSent { block: from, id, to });
        }
    }

    /// Sends a packet to the home of a block, for a block that is here. It is dropped if that cannot take it now; then this returns false.
    fn dispatch(&self, from: BlockId, to: BlockId, packet: Packet, pieces: &Pieces) -> bool {
        match self.homes.of(to) {
            Some(home) if home.name == self.name => {
                self.meter.dropped();
                false
            }
            Some(home) => {
                let is_taken = self.peers.send(&home, packet, pieces);
                if !is_taken {
                    self.meter.dropped();
                }
                if let Some(name) = self.peers.take_unreachable() {
                    // Its address may have changed.
                    let stripes = self.homes.with(&name);
                    let open = self.fence.open_blocks();
                    self.asker.ask(open.into_iter().filter(|block| stripes.contains(&block.stripe)));
                }
                is_taken
            }
            None => {
                self.meter.dropped();
                self.asker.ask([from]);
                false
            }
        }
    }

    /// A message that agent `name` has sent.
    pub(crate) fn received(&self, name: &str, from: BlockId, to: BlockId, message: Message, pieces: Pieces) {
        let counts = from.stripe == to.stripe && self.homes.holds(name, from);
        if counts && !is_of_seal(&message) {
            self.receive(from, to, message, pieces);
        } else {
            self.meter.dropped();
        }
    }

    /// Queues a message to a block here. Returns false if it is dropped.
    fn receive(&self, from: BlockId, to: BlockId, message: Message, pieces: Pieces) -> bool {
        let from = Peer::Block(from);
        let bytes = bytes_of(&pieces);
        let taken = self
            .queue_of(to)
            .is_some_and(|queue| queue.offer(bytes, |_room| Command::Receive { to, from, message, pieces, _room }).is_ok());
        if !taken {
            self.meter.dropped();
        }
        taken
    }

    /// Agent `name` says that the journal of a block does not take the bytes of an update.
    pub(crate) fn too_long(&self, name: &str, from: BlockId, to: BlockId, id: UpdateId) {
        let counts = from.stripe == to.stripe && self.homes.holds(name, from);
        let queue = self.queue_of(to).filter(|_| counts);
        if queue.is_none_or(|queue| queue.offer(0, |_| Command::TooLong { block: to, id }).is_err()) {
            self.meter.dropped();
        }
    }

    /// The journal of a block here does not take the bytes of an update that block `to` leads.
    fn too_long_here(&self, from: BlockId, to: BlockId, id: UpdateId, bytes: u64) {
        if self.fence.disk_of(to).is_some() {
            self.too_long(&self.name, from, to, id);
        } else if bytes > UPDATE_BYTES_USUAL {
            self.dispatch(from, to, Packet::TooLong { from, to, id }, &Pieces::new());
        }
    }

    /// A number for a connection of another agent.
    fn next_connection(&self) -> u64 {
        self.connections.fetch_add(1, Relaxed)
    }

    /// A client's request. `answer` gets the answer, perhaps much later.
    pub(crate) fn request(&self, request: Request, answer: Answer) {
        let Request { block, term, id, token, pieces, route } = request;
        let rights = UpdateRights { block, term, session: id.session.number, ends_at_ms: id.session.ends_at_ms };
        let key = self.key.read().unwrap_or_else(PoisonError::into_inner).clone();
        let is_valid = key.is_some_and(|key| key.verify_update(&rights, &token).is_ok());
        let Some(queue) = self.queue_of(block).filter(|_| is_valid) else {
            return self.answer(answer, Some(Outcome::NotRun(NotRun::Retry)), false);
        };
        let bytes = bytes_of(&pieces);
        let refused = queue.offer(bytes, |_room| Command::Request { block, term, id, pieces, route, answer, _room });
        if let Err(refused) = refused
            && let Command::Request { answer, .. } = *refused
        {
            self.answer(answer, Some(Outcome::NotRun(NotRun::Busy)), false);
        }
    }

    /// A client's read of an open block. `answer` gets the answer, perhaps later.
    pub(crate) fn read(&self, read: OpenRead, answer: Answer) {
        let key = self.key.read().unwrap_or_else(PoisonError::into_inner).clone();
        let is_valid = key.is_some_and(|key| key.verify_read(&read.rights(), &read.token).is_ok());
        let is_short = (1..=OPEN_READ_BYTES_MAX).contains(&read.range.len());
        let block = read.block;
        let bytes = u32::try_from(read.range.len()).unwrap_or(u32::MAX);
        let mut reading = Box::new(Reading { block, read, answer });
        if !is_valid || !is_short || reading.read.ends_at_ms <= self.time.now_ms() {
            return reads::refuse(*reading, ReadRefusal::Invalid, self);
        }
        let Some(queue) = self.queue_of(block) else { return reads::refuse(*reading, ReadRefusal::Closed, self) };
        let Ok(room) = Arc::clone(&self.read_room).try_acquire_many_owned(bytes) else {
            return reads::refuse(*reading, ReadRefusal::Busy, self);
        };
        reading.answer.room = Some(room);
        if let Err(refused) = queue.offer(0, |_| Command::Read(reading))
            && let Command::Read(reading) = *refused
        {
            reads::refuse(*reading, ReadRefusal::Busy, self);
        }
    }

    fn answer(&self, answer: Answer, told: Option<Outcome>, at_once: bool) {
        self.meter.told(told, answer.begin.elapsed());
        answer.send(told, at_once);
    }

    /// The queue of the disk on which a block is open.
    fn queue_of(&self, block: BlockId) -> Option<Queue> {
        self.queue(self.fence.disk_of(block)?)
    }

    fn queue(&self, disk: usize) -> Option<Queue> {
        self.queues.read().unwrap_or_else(PoisonError::into_inner).get(&disk).cloned()
    }

    /// A disk has no thread for its updates.
    fn ended(&self, disk: usize) {
        self.queues.write().unwrap_or_else(PoisonError::into_inner).remove(&disk);
    }

    fn queues(&self) -> Vec<Queue> {
        self.queues.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// Sends a command to the disk on which a block is open, and returns its reply.
    pub(crate) async fn ask<T>(&self, block: BlockId, command: impl FnOnce(queue::Reply<T>) -> Command) -> Result<T> {
        let not_open = || Error::not_found("the block is not open for updates").block(block);
        let queue = self.queue_of(block).ok_or_else(not_open)?;
        queue.ask(command).await.map_err(|error| if error.block.is_none() { error.block(block) } else { error })
    }

    /// Blocks were removed from the node's disks.
    pub(crate) async fn removed(&self, blocks: impl IntoIterator<Item = BlockId>) {
        for block in blocks {
            if let Some(queue) = self.queue_of(block) {
                // Without a thread, nothing of it is kept either.
                let _ended = queue.send(Command::Removed(block)).await;
            }
        }
    }

    /// A block is not open any more.
    fn closed(&self, block: BlockId) {
        self.fence.close(block);
        self.forget_homes(block.stripe);
    }

    /// Forgets the homes of a stripe of which no block is open here.
    pub(crate) fn forget_homes(&self, stripe: StripeId) {
        self.homes.forget_unless(stripe, || self.fence.has_open(stripe));
    }

    /// The pages or the journal of a block are damaged.
    fn lost(&self, block: BlockId, error: &Error) {
        // It is damaged as a whole, but only its first page is known to be.
        self.findings.add(block, Span::new(0, 1), error);
    }

    /// The journal of a disk is open, and takes updates of so many bytes.
    fn takes(&self, disk: usize, bytes_max: u64) {
        self.update_bytes_max.lock().unwrap_or_else(PoisonError::into_inner).insert(disk, bytes_max);
    }

    /// The most bytes of an update that the journal of a disk takes; 0: that is not known.
    pub(crate) fn update_bytes_max(&self, disk: usize) -> u64 {
        self.update_bytes_max.lock().unwrap_or_else(PoisonError::into_inner).get(&disk).copied().unwrap_or(0)
    }

    fn filled(&self, disk: usize, fill: f64) {
        self.lock_fills().insert(disk, fill);
    }

    /// How full the journals are, by the number of the disk: 0 to 1.
    pub(crate) fn fills(&self) -> BTreeMap<usize, f64> {
        self.lock_fills().clone()
    }

    fn lock_fills(&self) -> MutexGuard<'_, BTreeMap<usize, f64>> {
        self.fills.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From time to time, every thread sends again what was not answered.
    pub(crate) fn tick(&self) {
        self.loads.tidy().into_iter().for_each(|(id, at)| self.stopped(id, at));
        for queue in self.queues() {
            // If the queue is full, the thread is not idle, and the next tick comes soon.
            let _full = queue.offer(0, |_| Command::Tick);
        }
    }

    /// What the coordinator says of a stripe.
    pub(crate) fn learn(&self, told: &Told) {
        if self.fence.has_open(told.stripe) {
            self.homes.learn(told);
        }
    }
}

/// Messages of a seal come from the coordinator, and go there.
fn is_of_seal(message: &Message) -> bool {
    matches!(
        message,
        Message::Seal { .. }
            | Message::SealReported { .. }
            | Message::Sealed(_)
            | Message::SealKnown { .. }
            | Message::AskSeal { .. }
    )
}

fn bytes_of(pieces: &Pieces) -> usize {
    pieces.values().map(|piece| piece.bytes.len()).sum()
}

/// Whether a journal is damaged, and not the program or the disk at fault.
fn is_damage(error: &Error) -> bool {
    error.reaction == Reaction::Corrupt
}
