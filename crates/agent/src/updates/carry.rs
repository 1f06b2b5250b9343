//! Sends deltas over a route: one task for each block to which this node sends, or one for all of them if they are sent in turn.

use super::{
    Hub, bytes_of,
    loads::{Cut, Load, Parked, Progress, Slice, Source, Taken},
    queue::Command,
};
use std::{
    collections::BTreeMap,
    sync::{Arc, Weak, atomic::Ordering::Relaxed},
    time::Duration,
};
use tokio::{
    sync::{oneshot, watch},
    time::timeout,
};
use weft_proto::updates::{LoadHead, LoadId, LoadPart, Packet, Part, Route};
use weft_types::BlockId;
use weft_update::{Message, Peer, UpdateId};
use weft_updater::Pieces;

/// The most bytes of a slice: as much as waits for a connection. A client may have asked for more.
const SLICE_LEN_MAX: u32 = 1 << 20;
/// How long a block may take to say that all slices are there, after they were sent.
const ARRIVES_WITHIN: Duration = Duration::from_secs(10);

impl Hub {
    /// Sends the deltas of an update over a route, and the messages, without them, straight to their blocks.
    pub(crate) fn carry(&self, from: BlockId, id: UpdateId, route: Route, mut messages: BTreeMap<BlockId, (Message, Pieces)>) {
        let mut pieces = Pieces::new();
        messages.values().for_each(|(_, own)| pieces.extend(own.clone()));
        let route = with_slices(route, bytes_of(&pieces) as u64);
        let part = |(stream, piece): (&u8, &Arc<weft_updater::Piece>)| LoadPart {
            stream: *stream,
            start: piece.start,
            len: piece.bytes.len() as u64,
        };
        let head = LoadHead { route, parts: pieces.iter().map(part).collect() };
        // The deltas may have left while they were computed.
        let (load, begun) = match self.loads.announce((from, id), &head.parts, &messages) {
            Some((load, missed)) => {
                messages.retain(|to, _| !missed.contains_key(to));
                missed.into_iter().for_each(|(to, (message, pieces))| self.post(from, to, message, pieces));
                (load.id, None)
            }
            None => {
                let load = LoadId { from, id, attempt: self.next_attempt() };
                let begun = head.check(from).is_ok().then(|| self.loads.begin(load, head, &pieces, messages.clone())).flatten();
                let Some(begun) = begun else {
                    return messages.into_iter().for_each(|(to, (message, pieces))| self.post(from, to, message, pieces));
                };
                (load, Some(begun))
            }
        };
        for (to, (message, _)) in messages {
            if self.fence.disk_of(to).is_some() {
                self.announced(&self.name, (load, from, to), message);
            } else if !self.dispatch(from, to, Packet::Announced { load, from, to, message }, &Pieces::new()) {
                self.not_sent(from, id, to);
            }
        }
        if let Some(begun) = begun {
            self.pass_on(&begun);
        }
    }

    /// Tells apart the loads that begin here.
    pub(super) fn next_attempt(&self) -> u32 {
        self.attempts.fetch_add(1, Relaxed)
    }

    /// A message that agent `name` has sent, and whose bytes travel. It counts as if it had come with them, once they are here.
    pub(crate) fn announced(&self, name: &str, (load, from, to): (LoadId, BlockId, BlockId), message: Message) {
        let counts = from.stripe == to.stripe && self.homes.holds(name, from) && self.fence.disk_of(to).is_some();
        match if counts { self.loads.park(load, to, message) } else { Parked::Dropped } {
            Parked::Waits => {}
            Parked::Complete(load, message) => self.hand_over(load, message),
            Parked::Stuck => self.stopped(load, to),
            Parked::Dropped => self.meter.dropped(),
        }
    }

    /// A slice that another agent has sent. It counts only from the node before this one on the route.
    pub(crate) fn slice(
        &self,
        source: Source,
        (id, to): (LoadId, BlockId),
        number: u32,
        head: Option<LoadHead>,
        parts: Vec<Part>,
    ) {
        let is_before = |head: &LoadHead| head.route.before(to).is_some_and(|before| self.homes.holds(&source.name, before));
        let (is_of_stripe, is_here) = (id.from.stripe == to.stripe, self.fence.disk_of(to).is_some());
        let counts = is_of_stripe && is_here && head.as_ref().is_none_or(is_before);
        // The origin does not know the stripe's blocks as they are here. What comes from another agent than the one before is not its load.
        let is_before_unknown = |head: &LoadHead| head.route.before(to).is_some_and(|before| !self.knows(before));
        let is_astray = is_of_stripe && head.as_ref().is_some_and(|head| !is_here || is_before_unknown(head));
        let taken = if counts {
            self.loads.take(source, (id, to), number, head, parts)
        } else if is_astray && self.knows(id.from) {
            Taken::Stuck
        } else {
            Taken::Dropped
        };
        match taken {
            Taken::Dropped => self.meter.dropped(),
            Taken::Stuck => self.stopped(id, to),
            Taken::Kept { load, is_first, is_last, message } => {
                if is_first {
                    self.pass_on(&load);
                }
                let slices = load.take_early();
                if !slices.is_empty() {
                    let queue = self.queue_of(to);
                    let arriving = |_| Command::Arriving { load: Arc::clone(&load), slices };
                    if queue.is_none_or(|queue| queue.offer(0, arriving).is_err()) {
                        load.refuse_early();
                    }
                }
                if is_last && load.head.route.in_turn {
                    self.tell_arrived(&load);
                }
                if let Some(message) = message {
                    self.hand_over(load, message);
                }
            }
        }
    }

    /// Whether a message to a block can be delivered.
    fn knows(&self, block: BlockId) -> bool {
        self.fence.disk_of(block).is_some() || self.homes.of(block).is_some()
    }

    /// Agent `name` says that a load is at a block.
    pub(crate) fn load_arrived(&self, name: &str, id: LoadId, at: BlockId) {
        if self.homes.holds(name, at) { self.loads.arrived(id, at) } else { self.meter.dropped() }
    }

    /// Agent `name` says that a load does not reach a block. What was announced to it, and to those behind it, is sent straight.
    pub(crate) fn load_stuck(&self, name: &str, id: LoadId, at: BlockId) {
        let missing = self.loads.stuck(id, at, |block| self.homes.holds(name, block));
        if !missing.is_empty() {
            tracing::debug!(%at, agent = %name, "deltas did not arrive over their route: they are sent straight");
        }
        missing.into_iter().for_each(|(to, (message, pieces))| self.post(id.from, to, message, pieces));
    }

    /// A connection that another agent has dialled has ended.
    pub(crate) fn disconnected(&self, source: &Source) {
        self.loads.broken(source).into_iter().for_each(|(id, at)| self.stopped(id, at));
    }

    /// A load to a block here comes no further.
    pub(super) fn stopped(&self, id: LoadId, at: BlockId) {
        if let Some(queue) = self.queue_of(at) {
            // If the queue is full, the disk forgets in time what it has taken.
            let _full = queue.offer(0, |_| Command::Gone { load: id, at });
        }
        self.tell_stuck(at, id, at);
    }

    /// Tells the origin that a load does not reach block `at`. Block `from` is here, or should be.
    pub(crate) fn tell_stuck(&self, from: BlockId, id: LoadId, at: BlockId) {
        if self.fence.disk_of(id.from).is_some() {
            self.load_stuck(&self.name, id, at);
        } else {
            self.dispatch(from, id.from, Packet::Stuck { load: id, at }, &Pieces::new());
        }
    }

    /// Tells the node that has sent a load that all of it is here.
    fn tell_arrived(&self, load: &Load) {
        let Some(before) = load.head.route.before(load.at) else { return };
        if self.fence.disk_of(before).is_some() {
            self.load_arrived(&self.name, load.id, load.at);
        } else {
            self.dispatch(load.at, before, Packet::Arrived { load: load.id, at: load.at }, &Pieces::new());
        }
    }

    /// Begins to send a load to the blocks behind this one on the route.
    pub(super) fn pass_on(&self, load: &Arc<Load>) {
        let onward: Vec<BlockId> = load.head.route.onward(load.at).collect();
        let each: Vec<Vec<BlockId>> =
            if load.head.route.in_turn { vec![onward] } else { onward.into_iter().map(|to| vec![to]).collect() };
        for children in each.into_iter().filter(|children| !children.is_empty()) {
            let (hub, load) = (self.me.clone(), Arc::clone(load));
            self.spawn(async move { send_all(&hub, &load, children).await });
        }
    }

    /// All bytes of a message are here: it is handled as if it had come with them. Waits for room in the queue of the disk.
    fn hand_over(&self, load: Arc<Load>, message: Message) {
        let hub = self.me.clone();
        self.spawn(async move {
            let (from, to) = (Peer::Block(load.id.from), load.at);
            let Some(queue) = hub.upgrade().and_then(|hub| hub.queue_of(to)) else { return };
            if load.is_early() {
                let bytes = usize::try_from(load.head.bytes()).unwrap_or(usize::MAX);
                let _ended = queue.put(bytes, |_room| Command::Arrived { load, message, _room }).await;
                return;
            }
            let Some(pieces) = load.pieces_of(&message) else {
                return hub.upgrade().into_iter().for_each(|hub| hub.has_other_bytes(&load));
            };
            // Without a thread, the block is not updated any more.
            let _ended = queue.put(bytes_of(&pieces), |_room| Command::Receive { to, from, message, pieces, _room }).await;
        });
    }

    /// A load has other bytes than its message says.
    pub(crate) fn has_other_bytes(&self, load: &Load) {
        let Load { id, at, .. } = *load;
        tracing::warn!(block = %at, from = %id.from, "deltas have arrived over their route with other bytes than were sent");
        self.tell_stuck(at, id, at);
    }

    /// Runs a task until the node stops.
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = self.tasks.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        while tasks.try_join_next().is_some() {}
        tasks.spawn(task);
    }
}

/// The route of so many bytes, with slices that are as long as they are sent. A longer slice that is all bytes is passed on when all of it is there.
pub(super) fn with_slices(route: Route, bytes: u64) -> Route {
    let is_one_slice = route.slice_len > SLICE_LEN_MAX && bytes <= u64::from(route.slice_len);
    Route { slice_len: route.slice_len.min(SLICE_LEN_MAX), in_turn: route.in_turn || is_one_slice, ..route }
}

/// Sends a load to these blocks, one after another.
async fn send_all(hub: &Weak<Hub>, load: &Load, children: Vec<BlockId>) {
    let is_in_turn = load.head.route.in_turn;
    let mut progress = load.progress.subscribe();
    if is_in_turn && progress.wait_for(|it| it.is_over || it.slices.len() == load.slices()).await.is_err() {
        return;
    }
    for (number, to) in children.iter().enumerate() {
        let mut is_sent = send(hub, load, *to).await;
        // The last one need not be waited for.
        if is_in_turn && is_sent && number + 1 < children.len() {
            let arrives = progress.wait_for(|it| it.is_over || it.arrived.contains(to));
            is_sent = timeout(ARRIVES_WITHIN, arrives).await.is_ok_and(|arrived| arrived.is_ok());
        }
        if progress.borrow().is_over {
            return;
        }
        if let Some(hub) = hub.upgrade().filter(|_| !is_sent) {
            hub.tell_stuck(load.at, load.id, *to);
        }
    }
}

/// Sends a load to a block, each slice as soon as it is here. Returns whether all of it was sent.
async fn send(hub: &Weak<Hub>, load: &Load, to: BlockId) -> bool {
    let mut progress = load.progress.subscribe();
    let mut before: Option<oneshot::Receiver<()>> = None;
    for number in 0..load.slices() {
        let slice = match progress.wait_for(|it| it.is_over || it.slices.len() > number).await {
            Ok(it) if !it.is_over => it.slices.get(number).cloned(),
            _ => None,
        };
        let Some(slice) = slice else { return false };
        let head = (number == 0).then(|| load.head.clone());
        let sent = tokio::select! {
            biased;
            sent = send_slice(hub, load, to, number as u32, head, slice) => sent,
            // It is given up.
            _ = progress.wait_for(|it| it.is_over) => None,
        };
        let Some(sent) = sent else { return false };
        // One slice waits while another one is being sent.
        if let Some(before) = before.replace(sent)
            && !is_sent(before, &mut progress).await
        {
            return false;
        }
    }
    match before {
        Some(last) => is_sent(last, &mut progress).await,
        None => false,
    }
}

/// Waits until a slice is sent. Returns false if it never is, or if its load is given up.
async fn is_sent(done: oneshot::Receiver<()>, progress: &mut watch::Receiver<Progress>) -> bool {
    tokio::select! {
        biased;
        done = done => done.is_ok(),
        _ = progress.wait_for(|it| it.is_over) => false,
    }
}

/// Sends a slice when the connection has room for it. `None` if it cannot be sent. What is returned tells when it is sent; an error if it never is.
async fn send_slice(
    hub: &Weak<Hub>,
    load: &Load,
    to: BlockId,
    number: u32,
    head: Option<LoadHead>,
    slice: Slice,
) -> Option<oneshot::Receiver<()>> {
    let lane = {
        let hub = hub.upgrade()?;
        if hub.fence.disk_of(to).is_some() {
            let part = |cut: &Cut| {
                let part = cut.as_part_ref();
                Part { stream: part.stream, start: part.start, bytes: part.bytes.to_vec().into() }
            };
            let source = Source { name: hub.name.clone(), connection: 0 };
            hub.slice(source, (load.id, to), number, head, slice.iter().map(part).collect());
            let (sent, done) = oneshot::channel();
            return sent.send(()).ok().map(|()| done);
        }
        let home = hub.homes.of(to).filter(|home| home.name != hub.name);
        if home.is_none() {
            hub.asker.ask([load.at]);
        }
        hub.peers.lane(&home?)
    };
    lane.send(Packet::Slice { load: load.id, to, number, head }, slice).await
}
