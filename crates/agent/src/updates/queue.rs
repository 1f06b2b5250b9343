//! What the thread of a disk is asked to do, and the queue in which it waits.

use super::{
    fence::Opening,
    loads::{Load, Slice},
    outlet::Outlet,
};
use std::sync::Arc;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot},
    time::Instant,
};
use weft_proto::updates::{Found, LoadId, OpenRead, Packet, Part, Route};
use weft_types::{BlockId, Error, Result, UPDATE_BYTES_MAX};
use weft_update::{Message, Peer, Sealed, Told, UpdateId};
use weft_updater::{OpenBlock, Pieces, SettledBlock};

/// A command.
pub(crate) enum Command {
    /// A client's request.
    Request {
        block: BlockId,
        term: u64,
        id: UpdateId,
        pieces: Pieces,
        /// The way of its deltas.
        route: Option<Route>,
        answer: Answer,
        _room: Room,
    },
    /// A client's read.
    Read(Box<Reading>),
    /// The journal of another block does not take the bytes of an update that this block leads.
    TooLong {
        block: BlockId,
        id: UpdateId,
    },
    /// A message between blocks.
    Receive {
        to: BlockId,
        from: Peer,
        message: Message,
        pieces: Pieces,
        _room: Room,
    },
    /// Slices of a load for a block, in order.
    Arriving {
        load: Arc<Load>,
        slices: Vec<Slice>,
    },
    /// A load for a block comes no further.
    Gone {
        load: LoadId,
        at: BlockId,
    },
    /// All of a load is here, whose slices have come before, and the message to which it belongs.
    Arrived {
        load: Arc<Load>,
        message: Message,
        _room: Room,
    },
    /// The bytes of an update that this block leads could not be sent to another block.
    NotSent {
        block: BlockId,
        id: UpdateId,
        to: BlockId,
    },
    /// What the coordinator says of a block's stripe after a restart; nothing waits for it.
    Learn {
        block: BlockId,
        sealed: Arc<Sealed>,
    },
    /// The coordinator does not know the block's stripe as open.
    Unknown(BlockId),
    /// Open a block for updates.
    Open {
        opening: Opening,
        sealed: Sealed,
        /// Bytes of the object in the stripe; 0: as the block's sidecar says.
        data_len: u64,
        reply: Reply<()>,
    },
    /// Pass a message of a seal to a block, and return its answer.
    Seal {
        block: BlockId,
        message: Message,
        reply: Reply<Message>,
    },
    Settle {
        block: BlockId,
        term: u64,
        reply: Reply<SettledBlock>,
    },
    Close {
        block: BlockId,
        term: u64,
        reply: Reply<()>,
    },
    /// Tell what is known of an open block.
    Inspect {
        block: BlockId,
        reply: Reply<Inspected>,
    },
    /// The block was removed from the disk.
    Removed(BlockId),
    Tick,
}

/// A client's read of an open block.
pub(crate) struct Reading {
    pub(crate) block: BlockId,
    pub(crate) read: OpenRead,
    pub(crate) answer: Answer,
}

/// An open block, and what it contains if it is settled.
pub(crate) type Inspected = (OpenBlock, Option<SettledBlock>);

pub(crate) type Reply<T> = oneshot::Sender<Result<T>>;

/// The bytes of a command in its queue.
pub(crate) type Room = Option<OwnedSemaphorePermit>;

/// Where the answer to a client goes.
pub(crate) struct Answer {
    /// The request's number on its connection.
    pub(crate) number: u64,
    pub(crate) to: mpsc::UnboundedSender<Answered>,
    pub(crate) outlet: Arc<Outlet>,
    /// The request's share of what its connection may have under way, which bounds the number of answers.
    pub(crate) share: OwnedSemaphorePermit,
    /// Of a read: its share of what all reads of the node may have under way.
    pub(crate) room: Room,
    pub(crate) begin: Instant,
}

/// An answer on its way to the connection.
pub(crate) struct Answered {
    pub(crate) packet: Packet,
    /// The bytes that were read.
    pub(crate) part: Option<Part>,
    _share: OwnedSemaphorePermit,
    _room: Room,
}

impl Answer {
    /// `at_once`: by this thread itself if the connection is idle; only in the context of a runtime.
    pub(crate) fn send(self, told: Option<Told>, at_once: bool) {
        let packet = Packet::Answer { number: self.number, told };
        if !at_once || !self.outlet.send(&packet, &[]) {
            self.put(packet, None);
        }
    }

    /// What a read has found, and the bytes.
    pub(crate) fn found(self, found: Found, part: Option<Part>) {
        let packet = Packet::Content { number: self.number, found };
        self.put(packet, part);
    }

    fn put(self, packet: Packet, part: Option<Part>) {
        let Self { to, share, room, .. } = self;
        // The connection may have ended.
        let _gone = to.send(Answered { packet, part, _share: share, _room: room });
    }

    /// Whether the client has gone.
    pub(crate) fn is_gone(&self) -> bool {
        self.to.is_closed()
    }
}

/// The queue of one disk.
#[derive(Clone)]
pub(crate) struct Queue {
    commands: mpsc::Sender<Command>,
    room: Arc<Semaphore>,
    /// For commands that wait for it. In one row with the others, a large one would hold them up.
    patient_room: Arc<Semaphore>,
}

/// The most commands that wait.
const COMMANDS_MAX: usize = 1024;
/// The most bytes of deltas and new bytes that wait.
const BYTES_MAX: usize = 4 * UPDATE_BYTES_MAX as usize;
/// The most bytes that wait beside them, of commands that may wait for room.
const PATIENT_BYTES_MAX: usize = 2 * UPDATE_BYTES_MAX as usize;

impl Queue {
    pub(crate) fn new() -> (Self, mpsc::Receiver<Command>) {
        let (commands, receiver) = mpsc::channel(COMMANDS_MAX);
        let (room, patient_room) = (Arc::new(Semaphore::new(BYTES_MAX)), Arc::new(Semaphore::new(PATIENT_BYTES_MAX)));
        (Self { commands, room, patient_room }, receiver)
    }

    /// Queues a command with this many bytes. Returns it if the queue is full.
    pub(crate) fn offer(&self, bytes: usize, command: impl FnOnce(Room) -> Command) -> Result<(), Box<Command>> {
        let permits = u32::try_from(bytes).unwrap_or(u32::MAX);
        let room = Arc::clone(&self.room).try_acquire_many_owned(permits).ok();
        let has_room = room.is_some();
        let command = command(room);
        if !has_room {
            return Err(Box::new(command));
        }
        self.commands.try_send(command).map_err(|error| Box::new(error.into_inner()))
    }

    /// Queues a command with this many bytes, and waits if the queue is full.
    pub(crate) async fn put(&self, bytes: usize, command: impl FnOnce(Room) -> Command) -> Result<()> {
        let permits = u32::try_from(bytes.min(PATIENT_BYTES_MAX)).unwrap_or(u32::MAX);
        let room = Arc::clone(&self.patient_room).acquire_many_owned(permits).await.map_err(|_| stopping())?;
        self.send(command(Some(room))).await
    }

    /// Queues a command without bytes, and waits if the queue is full.
    pub(crate) async fn send(&self, command: Command) -> Result<()> {
        self.commands.send(command).await.map_err(|_| stopping())
    }

    /// Whether nothing takes commands any more.
    pub(crate) fn has_ended(&self) -> bool {
        self.commands.is_closed()
    }

    /// Queues a command without bytes, and waits for its reply.
    pub(crate) async fn ask<T>(&self, command: impl FnOnce(Reply<T>) -> Command) -> Result<T> {
        let (reply, replied) = oneshot::channel();
        self.send(command(reply)).await?;
        replied.await.unwrap_or_else(|_| Err(stopping()))
    }
}

fn stopping() -> Error {
    Error::retry("the agent is stopping, or the disk's updates have ended")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio::time::timeout;

    fn is_queued(queue: &Queue, bytes: usize) -> bool {
        let command = |_room| Command::Receive {
            to: block(),
            from: Peer::Coordinator,
            message: Message::SealKnown { term: 1 },
            pieces: Pieces::new(),
            _room,
        };
        queue.offer(bytes, command).is_ok()
    }

    fn block() -> BlockId {
        BlockId { stripe: weft_types::StripeId(1), index: 0, copy: 0, generation: 1 }
    }

    #[tokio::test(start_paused = true)]
    async fn a_queue_is_bounded_in_commands_and_in_bytes() {
        let (queue, mut commands) = Queue::new();
        let taken = (0..100).take_while(|_| is_queued(&queue, 1 << 20)).count();
        assert_eq!(taken, BYTES_MAX >> 20);
        assert!(is_queued(&queue, 0), "a message without bytes waits for those with bytes");
        drop(commands.recv().await);
        assert!(is_queued(&queue, 1 << 20), "a command that was taken counts");

        let (queue, _commands) = Queue::new();
        assert_eq!((0..2 * COMMANDS_MAX).take_while(|_| is_queued(&queue, 1)).count(), COMMANDS_MAX);
        assert!(timeout(Duration::from_secs(9), queue.send(Command::Tick)).await.is_err(), "the coordinator's calls wait");
        let (queue, commands) = Queue::new();
        drop(commands);
        assert!(!is_queued(&queue, 0) && queue.ask(|reply| Command::Close { block: block(), term: 1, reply }).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_command_that_waits_for_room_does_not_hold_up_others() {
        let (queue, mut commands) = Queue::new();
        let put = |bytes| {
            let queue = queue.clone();
            let command = |_room| Command::Receive {
                to: block(),
                from: Peer::Coordinator,
                message: Message::SealKnown { term: 1 },
                pieces: Pieces::new(),
                _room,
            };
            async move { timeout(Duration::from_secs(9), queue.put(bytes, command)).await }
        };
        assert!(matches!(put(PATIENT_BYTES_MAX - 1).await, Ok(Ok(()))));
        let waiting = tokio::spawn(put(PATIENT_BYTES_MAX));
        tokio::task::yield_now().await;
        assert!(is_queued(&queue, BYTES_MAX), "it waits behind one that waits");
        drop(commands.recv().await);
        assert!(matches!(waiting.await, Ok(Ok(Ok(())))));
        assert!(put(1).await.is_err(), "what waits for room is not bounded");
    }

    #[tokio::test]
    async fn an_answer_gives_its_share_back_when_it_is_sent_on() {
        let (shares, (to, mut answers)) = (Arc::new(Semaphore::new(10)), mpsc::unbounded_channel());
        let share = Arc::clone(&shares).try_acquire_many_owned(7).unwrap();
        let answer = Answer { number: 3, to, outlet: Arc::default(), share, room: None, begin: Instant::now() };
        assert!(!answer.is_gone());
        answer.send(Some(Told::Aborted), true);
        assert_eq!(shares.available_permits(), 3, "answers that wait count");
        let Answered { packet, part, .. } = answers.recv().await.unwrap();
        let answer = Packet::Answer { number: 3, told: Some(Told::Aborted) };
        assert_eq!((packet, part, shares.available_permits()), (answer, None, 10));
    }
}
