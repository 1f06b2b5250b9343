//! The thread of one disk that owns the updates of its blocks: it takes all commands that wait, carries them out, syncs once, and hands on what follows.

use super::{
    AT_ONCE_MAX, Hub,
    loads::{Cut, Load, Slice},
    queue::{Answer, Command, Inspected, Reply},
    reads::Reads,
};
use std::{
    collections::{BTreeMap, btree_map::Entry},
    sync::Weak,
    thread,
    time::Duration,
};
use tokio::{
    runtime::Handle,
    sync::{mpsc, oneshot},
    time::Instant,
};
use weft_proto::{DiskMode, LogRate, updates::Route};
use weft_types::{BlockId, Error, Reaction, Result, Span, human_bytes};
use weft_update::{Message, NotRun, Peer, Told, UpdateId};
use weft_updater::{DeltaPart, Output, Pieces, SettledBlock, Updater};

/// The owner of a disk's updates.
pub(crate) struct Worker {
    /// The disk's number.
    disk: usize,
    hub: Weak<Hub>,
    updater: Updater,
    /// The clients that wait for an update.
    asked: BTreeMap<(BlockId, UpdateId), Asked>,
    reads: Reads,
    sealing: Vec<Sealing>,
    settling: Vec<(BlockId, u64, Reply<SettledBlock>)>,
    /// Their blocks are closed when the next sync has returned.
    closing: Vec<(BlockId, u64, Reply<()>)>,
    /// Logged once.
    has_failed: bool,
    too_long: LogRate,
}

#[derive(Default)]
struct Asked {
    answers: Vec<Answer>,
    /// The way of its deltas, until they are sent over it.
    route: Option<Route>,
    /// The journal of another block does not take its bytes.
    is_too_long: bool,
    /// Since when all of its clients have gone.
    gone_since: Option<Instant>,
}

/// A call that waits for a block's answer to a message of a seal.
struct Sealing {
    block: BlockId,
    awaited: Awaited,
    reply: Reply<Message>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Awaited {
    Report { term: u64 },
    Known { term: u64 },
}

/// The most commands that are carried out before a sync.
const BATCH_MAX: usize = 256;
/// How long commands are carried out before a sync. Those of reads, which may have to wait for the disk, do not hold up updates for longer.
const BATCH_FOR: Duration = Duration::from_millis(10);
/// From this fill of the journal on, a request that failed was refused before anything was done for it.
const FULL: f64 = 0.9;
/// How long an update may go on after its clients have gone. One that comes back in time learns the outcome of its first request.
const GIVEN_UP_AFTER: Duration = Duration::from_secs(5);

/// Starts the thread, or with the other modes, which simulations use, a task that never leaves its caller's thread. It ends with the queue.
pub(crate) fn start(worker: Worker, commands: mpsc::Receiver<Command>, mode: DiskMode, runtime: &Handle) -> Result<()> {
    match mode {
        DiskMode::Pool => {
            let (runtime, mut worker, mut commands) = (runtime.clone(), worker, commands);
            let name = format!("updates-{}", worker.disk);
            let run = move || {
                // Connections to other agents are tasks of the runtime.
                let _entered = runtime.enter();
                while let Some(first) = commands.blocking_recv() {
                    worker.step(first, &mut commands);
                }
            };
            let spawned = thread::Builder::new().name(name).spawn(run);
            spawned.map(drop).map_err(|error| Error::fatal(format!("cannot start a thread: {error}")))
        }
        DiskMode::Inline | DiskMode::Slowed(_) => {
            let (mut worker, mut commands) = (worker, commands);
            runtime.spawn(async move {
                while let Some(first) = commands.recv().await {
                    // A slowed disk takes its time for the whole batch.
                    if mode.run(|| Ok(())).await.is_ok() {
                        worker.step(first, &mut commands);
                    }
                }
            });
            Ok(())
        }
    }
}

impl Worker {
    pub(crate) fn new(disk: usize, hub: Weak<Hub>, updater: Updater) -> Self {
        let (asked, sealing, settling, closing) = (BTreeMap::new(), Vec::new(), Vec::new(), Vec::new());
        let (reads, too_long) = (Reads::default(), LogRate::default());
        Self { disk, hub, updater, asked, reads, sealing, settling, closing, has_failed: false, too_long }
    }

    /// Hands on what follows from the start: lost blocks, and questions to others.
    pub(crate) fn begin(&mut self, hub: &Hub) {
        self.hand_on(hub);
    }

    /// Carries out a command and those that wait behind it.
    fn step(&mut self, first: Command, commands: &mut mpsc::Receiver<Command>) {
        let Some(hub) = self.hub.upgrade() else { return };
        let now_ms = hub.time.now_ms();
        let (begin, mut next, mut count) = (Instant::now(), Some(first), 0);
        while let Some(command) = next {
            self.carry_out(command, &hub, now_ms);
            count += 1;
            // What is taken out of the queue is carried out.
            next = if count < BATCH_MAX && begin.elapsed() < BATCH_FOR { commands.try_recv().ok() } else { None };
        }
        // Other nodes journal at the same time as this one.
        self.hand_on(&hub);
        self.sync(&hub, now_ms);
        self.settle(&hub, now_ms);
        self.close(&hub);
        if self.reads.try_again(&mut self.updater, &hub, now_ms) {
            self.hand_on(&hub);
        }
        hub.filled(self.disk, self.updater.fill());
    }

    fn carry_out(&mut self, command: Command, hub: &Hub, now_ms: u64) {
        match command {
            Command::Request { block, term, id, pieces, route, answer, .. } => {
                self.log_if_too_long(block, &pieces);
                let route = match self.asked.entry((block, id)) {
                    Entry::Occupied(mut asked) => {
                        asked.get_mut().answers.push(answer);
                        None
                    }
                    Entry::Vacant(new) => {
                        new.insert(Asked { answers: vec![answer], route: route.clone(), ..Asked::default() });
                        route
                    }
                };
                let departing = route.and_then(|route| hub.departing((block, id), &route, &pieces));
                let requested = match departing {
                    Some(departing) => self.updater.request_departing((block, term, id), pieces, departing, now_ms),
                    None => self.updater.request(block, term, id, pieces, now_ms),
                };
                if let Err(error) = requested {
                    self.log(&error);
                    let told = self.told_of(&error);
                    self.answer_last(block, id, told, hub);
                }
            }
            Command::Receive { to, from, message, pieces, .. } => {
                let received = self.updater.receive(to, from, message, pieces, now_ms);
                self.passing(received, hub);
            }
            Command::Arriving { load, slices } => {
                let arrived = self.arrive(&load, &slices, now_ms);
                self.passing(arrived, hub);
            }
            Command::Gone { load, at } => self.updater.gone(at, load.id, load.attempt),
            Command::Arrived { load, message, .. } => {
                let received = self.receive_arrived(&load, message, hub, now_ms);
                self.passing(received, hub);
            }
            Command::Read(reading) => self.reads.begin(*reading, &mut self.updater, hub, now_ms),
            Command::TooLong { block, id } => {
                if let Some(asked) = self.asked.get_mut(&(block, id)) {
                    asked.is_too_long = true;
                }
            }
            Command::NotSent { block, id, to } => self.updater.not_sent(block, id, to),
            Command::Learn { block, sealed } => {
                if self.updater.open_block_of(block).is_some_and(|open| open.term < sealed.term) {
                    let learned = self.updater.receive(block, Peer::Coordinator, Message::Sealed(sealed), [].into(), now_ms);
                    self.passing(learned, hub);
                }
            }
            Command::Unknown(block) => {
                // The coordinator has recorded what it contains, and could not say so; or it is garbage.
                let settled = self.updater.open_block_of(block).filter(|open| open.is_settled);
                if let Some(open) = settled {
                    let closed = self.updater.close(block, open.term);
                    self.passing(closed, hub);
                    self.closing.push((block, open.term, oneshot::channel().0));
                }
            }
            Command::Open { opening, sealed, data_len, reply } => {
                let block = opening.block();
                let opened = self.updater.open_longer_block(block, &sealed, data_len, now_ms);
                if self.is_hosted(block) {
                    hub.fence.opened(block, self.disk);
                }
                drop(opening);
                let _gone = reply.send(self.checked(opened));
            }
            Command::Seal { block, message, reply } => self.seal(block, message, reply, now_ms),
            Command::Settle { block, term, reply } => self.settling.push((block, term, reply)),
            Command::Close { block, term, reply } => match self.updater.close(block, term) {
                Ok(()) => self.closing.push((block, term, reply)),
                Err(error) => drop(reply.send(self.checked(Err(error)))),
            },
            Command::Inspect { block, reply } => drop(reply.send(self.inspect(block))),
            Command::Removed(block) => {
                self.updater.forget(block);
                self.fail_waiting(block, hub);
                hub.closed(block);
            }
            Command::Tick => {
                let ticked = self.updater.tick(now_ms);
                self.passing(ticked, hub);
                self.tidy(hub, now_ms);
            }
        }
    }

    /// Slices of a load are here.
    fn arrive(&mut self, load: &Load, slices: &[Slice], now_ms: u64) -> Result<()> {
        let Some(whole) = load.head.parts.first() else { return Ok(()) };
        let (stream, whole) = (whole.stream, Span::new(whole.start, whole.start + whole.len));
        let mut pieces = slices.iter().flat_map(|slice| slice.iter()).map(Cut::piece);
        let part = |piece| DeltaPart { id: load.id.id, attempt: load.id.attempt, stream, whole, piece };
        pieces.try_for_each(|piece| self.updater.arrive(load.at, part(piece), now_ms))
    }

    /// All of a load is here, and its message.
    fn receive_arrived(&mut self, load: &Load, message: Message, hub: &Hub, now_ms: u64) -> Result<()> {
        let (from, to) = (Peer::Block(load.id.from), load.at);
        if self.updater.receive_arrived(to, from, message.clone(), now_ms)? {
            return Ok(());
        }
        match load.pieces_of(&message) {
            Some(pieces) => self.updater.receive(to, from, message, pieces, now_ms),
            None => {
                hub.has_other_bytes(load);
                Ok(())
            }
        }
    }

    fn inspect(&self, block: BlockId) -> Result<Inspected> {
        match self.updater.open_block_of(block) {
            Some(open) => Ok((open, self.updater.content_of(block))),
            None if self.updater.is_lost(block) => Err(Error::corrupt("its updates are damaged: it is lost").block(block)),
            None => Err(Error::not_found("the block is not open for updates").block(block)),
        }
    }

    fn seal(&mut self, block: BlockId, message: Message, reply: Reply<Message>, now_ms: u64) {
        let awaited = match &message {
            Message::Seal { term } => Awaited::Report { term: *term },
            Message::Sealed(sealed) => Awaited::Known { term: sealed.term },
            _ => return drop(reply.send(Err(Error::invalid("the message belongs to no seal").block(block)))),
        };
        let open = self.updater.open_block_of(block);
        let refused = match (&open, awaited) {
            (Some(open), _) if open.is_fenced => Some(format!("a seal went on without it after term {}", open.term)),
            (Some(open), Awaited::Report { term }) if open.term >= term => {
                Some(format!("it knows what the seal of term {} has decided", open.term))
            }
            _ => None,
        };
        if let Some(why) = refused {
            return drop(reply.send(Err(Error::invalid(why).block(block))));
        }
        match self.updater.receive(block, Peer::Coordinator, message, [].into(), now_ms) {
            Ok(()) if self.updater.open_block_of(block).is_some_and(|open| open.is_fenced) => {
                let _gone = reply.send(Err(Error::invalid("the seal went on without it").block(block)));
            }
            Ok(()) => self.sealing.push(Sealing { block, awaited, reply }),
            Err(error) => drop(reply.send(self.checked(Err(error)))),
        }
    }

    /// What was appended is durable when this returns, and what waited for it has been handed on.
    fn sync(&mut self, hub: &Hub, now_ms: u64) {
        let mut has_more = self.updater.is_unsynced();
        while has_more {
            let synced = self.updater.sync_step(now_ms);
            has_more = matches!(synced, Ok(true));
            self.passing(synced.map(drop), hub);
            // Answers do not wait until the journal is tidied up.
            self.hand_on(hub);
        }
    }

    /// Settles blocks as far as it goes now. The others wait for what the seal has decided.
    fn settle(&mut self, hub: &Hub, now_ms: u64) {
        for (block, term, reply) in std::mem::take(&mut self.settling) {
            let settled = loop {
                match self.updater.settle(block, term, now_ms) {
                    Ok(None) if self.updater.has_unsynced_entries() => self.sync(hub, now_ms),
                    other => break other,
                }
            };
            match settled {
                Ok(None) => self.settling.push((block, term, reply)),
                Ok(Some(settled)) => drop(reply.send(Ok(settled))),
                Err(error) => drop(reply.send(self.checked(Err(error)))),
            }
        }
        self.hand_on(hub);
    }

    /// The blocks whose end is durable are closed. In a journal that is full, they wait.
    fn close(&mut self, hub: &Hub) {
        if self.updater.is_unsynced() && !self.has_failed {
            return;
        }
        for (block, term, reply) in std::mem::take(&mut self.closing) {
            if self.has_failed {
                let error = Error::fatal(format!("the end of the updates of term {term} may not be durable")).block(block);
                drop(reply.send(Err(error)));
                continue;
            }
            if !self.is_hosted(block) {
                self.fail_waiting(block, hub);
                hub.closed(block);
            }
            let _gone = reply.send(Ok(()));
        }
    }

    /// Hands on what the updater wants to be done.
    fn hand_on(&mut self, hub: &Hub) {
        let mut carried: BTreeMap<(BlockId, UpdateId), BTreeMap<BlockId, (Message, Pieces)>> = BTreeMap::new();
        let outputs = self.updater.take_outputs();
        let at_once = outputs.len() <= AT_ONCE_MAX;
        for output in outputs {
            match output {
                Output::Send { from, to: Peer::Block(to), message, pieces } => match self.carried_with(from, to, &message) {
                    Some(key) => drop(carried.entry(key).or_default().insert(to, (message, pieces))),
                    None if at_once && hub.post_at_once(from, to, &message, &pieces) => {}
                    None => hub.post(from, to, message, pieces),
                },
                Output::Send { from, to: Peer::Coordinator, message, .. } => self.tell_coordinator(from, message, hub),
                Output::Tell { block, id, told } => {
                    let asked = self.asked.remove(&(block, id)).unwrap_or_default();
                    // No participant holds it, and none ever will.
                    let is_without_effect = matches!(told, Told::Aborted | Told::NotRun(_));
                    let told = if asked.is_too_long && is_without_effect { Told::NotRun(NotRun::Invalid) } else { told };
                    asked.answers.into_iter().for_each(|answer| hub.answer(answer, Some(told), at_once));
                    hub.loads.ended(block, id);
                }
                Output::TooLong { from, to, id, bytes, bytes_max } => {
                    self.log_too_long(from, bytes, bytes_max);
                    hub.too_long_here(from, to, id, bytes);
                }
                Output::Served { read, result, .. } => self.reads.served(read, result, &self.updater, hub),
                Output::Lost { block, error } => {
                    hub.lost(block, &error);
                    self.fail_waiting(block, hub);
                }
            }
        }
        // What the machine sends again goes straight.
        for ((from, id), messages) in carried {
            if let Some(route) = self.asked.get_mut(&(from, id)).and_then(|asked| asked.route.take()) {
                hub.carry(from, id, route, messages);
            }
        }
    }

    /// The update whose deltas go to a block over the update's route, if these are such deltas.
    fn carried_with(&self, from: BlockId, to: BlockId, message: &Message) -> Option<(BlockId, UpdateId)> {
        let Message::Prepare { record, .. } = message else { return None };
        let route = self.asked.get(&(from, record.id))?.route.as_ref()?;
        route.reached().any(|block| block == to).then_some((from, record.id))
    }

    /// A request that this disk refuses, because its journal is too small.
    fn log_if_too_long(&self, block: BlockId, pieces: &Pieces) {
        let bytes = super::bytes_of(pieces) as u64;
        if bytes > self.updater.update_bytes_max() {
            self.log_too_long(block, bytes, self.updater.update_bytes_max());
        }
    }

    fn log_too_long(&self, block: BlockId, bytes: u64, bytes_max: u64) {
        if let Some(left_out) = self.too_long.admit() {
            let (bytes, most) = (human_bytes(bytes), human_bytes(bytes_max));
            tracing::warn!(
                %block, disk = self.disk, %bytes, %most, left_out,
                "an update is refused: the journal of the disk is too small for it; see the setting of its size"
            );
        }
    }

    fn tell_coordinator(&mut self, from: BlockId, message: Message, hub: &Hub) {
        let awaited = match &message {
            Message::SealReported { term, .. } => Awaited::Report { term: *term },
            Message::SealKnown { term } => Awaited::Known { term: *term },
            // It asks what a seal has decided.
            _ => return hub.asker.ask([from]),
        };
        let is_awaited = |it: &mut Sealing| it.block == from && it.awaited == awaited;
        for Sealing { reply, .. } in self.sealing.extract_if(.., is_awaited) {
            let _gone = reply.send(Ok(message.clone()));
        }
    }

    /// From time to time: updates without a client are given up, and calls whose caller has gone are forgotten.
    fn tidy(&mut self, hub: &Hub, now_ms: u64) {
        self.reads.tidy(&mut self.updater, hub, now_ms);
        self.sealing.retain(|it| !it.reply.is_closed());
        self.settling.retain(|(_, _, reply)| !reply.is_closed());
        let now = Instant::now();
        let mut given_up = Vec::new();
        for ((block, id), asked) in &mut self.asked {
            let is_gone = asked.answers.iter().all(Answer::is_gone);
            let since = if is_gone { Some(*asked.gone_since.get_or_insert(now)) } else { None };
            asked.gone_since = since;
            if since.is_some_and(|since| now.duration_since(since) >= GIVEN_UP_AFTER) {
                given_up.push((*block, *id));
            }
        }
        for (block, id) in given_up {
            self.asked.remove(&(block, id));
            let given_up = self.updater.give_up(block, id, now_ms);
            self.passing(given_up, hub);
        }
        // A leader that is fenced, or whose block is settled, tells no outcome.
        let is_over = |block: BlockId| self.updater.open_block_of(block).is_none_or(|open| open.is_fenced || open.is_settled);
        let over: Vec<BlockId> = self.asked.keys().map(|(block, _)| *block).filter(|block| is_over(*block)).collect();
        over.into_iter().for_each(|block| self.fail_waiting(block, hub));
    }

    /// No outcome of the block's updates will be known here.
    fn fail_waiting(&mut self, block: BlockId, hub: &Hub) {
        let over: Vec<_> = self.asked.keys().copied().filter(|(of, _)| *of == block).collect();
        over.iter().for_each(|(block, id)| hub.loads.ended(*block, *id));
        self.reads.ended(block, hub);
        for answer in over.iter().filter_map(|key| self.asked.remove(key)).flat_map(|asked| asked.answers) {
            hub.answer(answer, None, false);
        }
        for Sealing { reply, .. } in self.sealing.extract_if(.., |it| it.block == block) {
            let _gone = reply.send(Err(Error::not_found("the block is not open for updates any more").block(block)));
        }
    }

    /// The answer to a request that failed. It says that there was no effect only if that is certain.
    fn told_of(&self, error: &Error) -> Option<Told> {
        match error.reaction {
            Reaction::NotFound => Some(Told::NotRun(NotRun::Retry)),
            Reaction::Retry if self.updater.fill() >= FULL => Some(Told::NotRun(NotRun::Busy)),
            _ => None,
        }
    }

    /// Answers the request that came last; earlier ones of the same update still wait.
    fn answer_last(&mut self, block: BlockId, id: UpdateId, told: Option<Told>, hub: &Hub) {
        let Some(asked) = self.asked.get_mut(&(block, id)) else { return };
        if let Some(answer) = asked.answers.pop() {
            hub.answer(answer, told, false);
        }
        if asked.answers.is_empty() {
            self.asked.remove(&(block, id));
            hub.loads.ended(block, id);
        }
    }

    /// Whether the block is open, or was and is lost.
    fn is_hosted(&self, block: BlockId) -> bool {
        self.updater.open_block_of(block).is_some() || self.updater.is_lost(block)
    }

    /// A message that cannot be handled now is sent again.
    fn passing(&mut self, done: Result<()>, hub: &Hub) {
        if let Err(error) = done {
            hub.meter.dropped();
            self.log(&error);
        }
    }

    fn checked<T>(&mut self, done: Result<T>) -> Result<T> {
        done.inspect_err(|error| self.log(error))
    }

    fn log(&mut self, error: &Error) {
        if error.reaction != Reaction::Fatal {
            tracing::debug!(disk = self.disk, %error, "a step of an update was refused");
        } else if !std::mem::replace(&mut self.has_failed, true) {
            tracing::error!(disk = self.disk, %error, "the updates of a disk have failed");
        }
    }
}
