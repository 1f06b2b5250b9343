//! The world of the crash test: real updaters on simulated file systems, and a network that loses, repeats, delays and reorders messages.

use super::{code, coordinator::Row, random::Random};
use crate::{DeltaPart, Limits, Output, Piece, Pieces, Read, Served, SettledBlock, Updater, backlog::is_passing};
use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};
use weft_codes::{SharedCode, generator_hash};
use weft_store::{BlockStore as _, Fault, FaultStore, LocalStore, NewDisk, NewJournal, RING_BYTES_MIN, RingJournal, SimFiles};
use weft_types::{BlockId, BlockMeta, ClusterId, Layout, Reaction, Result, Seq, StripeId, StripeLayout};
use weft_update::{Message, NotServed, Peer, Sealed, Told, UpdateId};

/// What is run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Setup {
    pub(super) code: &'static str,
    pub(super) layout: Layout,
    /// Missing bytes at the end of the last data block.
    pub(super) missing: u64,
    pub(super) stripes: u64,
    pub(super) limits: Limits,
    pub(super) ring_bytes: u64,
}

const DIR: &str = "/disk";
const CLUSTER: ClusterId = ClusterId(7);

/// Small journals, so that the rings wrap and fill.
pub(super) const LIMITS: Limits = Limits {
    blocks_max: 3,
    sessions_max: 16,
    records_max: 12,
    outcomes_max: 32,
    updates_max: 6,
    lag_max: 10,
    waiting_max: 4,
    reads_max: 4,
    update_bytes_max: 8 << 10,
    record_bytes_max: (RING_BYTES_MIN / 64) as usize,
    inflight_bytes_max: 256 << 10,
    read_bytes_max: 64 << 10,
    batch_bytes_max: 24 << 10,
};

/// A node.
pub(super) struct Node {
    pub(super) files: SimFiles,
    pub(super) disk: Option<Disk>,
    /// When it starts again, if it is down.
    pub(super) starts_at: u64,
    /// Whether its lease at the coordinator lasts.
    pub(super) has_lease: bool,
    /// Cut off from the other nodes and the coordinator, not from clients.
    pub(super) is_cut: bool,
    /// Its journal was found damaged: it stays away.
    pub(super) is_lost: bool,
    reads: u64,
}

/// A disk in use.
pub(super) struct Disk {
    pub(super) store: Arc<LocalStore>,
    pub(super) journal: Arc<RingJournal>,
    pub(super) updater: Updater,
}

/// Who receives something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum To {
    Block(BlockId),
    Coordinator(u64),
    Client(usize),
}

/// What is sent.
#[derive(Debug, Clone)]
pub(super) enum Body {
    Protocol { from: Peer, message: Message, pieces: Pieces },
    Request { id: UpdateId, new: Pieces },
    Read { client: usize, number: u64, part: usize, asked: Read },
    Told { id: UpdateId, told: Told },
    Content { number: u64, part: usize, result: Result<Served, NotServed> },
    Open(Arc<Sealed>),
    Opened { from: BlockId, term: u64 },
    Settle(u64),
    Settled { from: BlockId, block: SettledBlock },
    Close(u64),
    Closed { from: BlockId, term: u64 },
}

/// A part of a client's read, and since when it is under way.
pub(super) struct Asked {
    client: usize,
    number: u64,
    part: usize,
    since: u64,
}

/// Something on the network.
#[derive(Debug, Clone)]
pub(super) struct Envelope {
    pub(super) to: To,
    pub(super) body: Body,
    /// The term of a client's lease.
    pub(super) term: u64,
}

/// The world.
pub(super) struct World {
    pub(super) random: Random,
    pub(super) now: u64,
    pub(super) code: SharedCode,
    pub(super) shape: StripeLayout,
    pub(super) nodes: Vec<Node>,
    pub(super) rows: Vec<Row>,
    /// Stripes that were settled just now, with the checksums of their blocks.
    pub(super) settled: Vec<(u64, BTreeMap<BlockId, Vec<u32>>)>,
    /// The blocks that the coordinator considers absent.
    pub(super) absent: BTreeSet<BlockId>,
    pub(super) net: Vec<Envelope>,
    /// Messages that arrive much later, and when.
    late: Vec<(u64, Envelope)>,
    /// Answers to clients.
    pub(super) answers: Vec<(usize, Body)>,
    /// Reads under way, by node, block and number.
    pub(super) reads: BTreeMap<(usize, BlockId, u64), Asked>,
    /// Who waits for the outcome of an update.
    pub(super) writers: BTreeMap<UpdateId, usize>,
    /// Percent of messages that are lost, repeated, and whose payload is damaged.
    pub(super) faults: (u64, u64, u64),
    pub(super) crashes: usize,
    pub(super) sealed: usize,
    /// The updates whose outcome a seal has recorded, and its term.
    pub(super) decided: BTreeMap<UpdateId, u64>,
    /// The deltas that have arrived in parts.
    pub(super) arrived: usize,
    /// How often stripes were opened.
    pub(super) opened: usize,
    /// All stripes are to be settled and closed.
    pub(super) ends: bool,
    pub(super) wrong: Option<String>,
    /// The last update that a journal did not take: where, who leads it, and its bytes there.
    pub(super) too_long: Option<(BlockId, BlockId, u64)>,
    /// Fenced blocks that were told so.
    pub(super) told_fenced: BTreeSet<BlockId>,
    /// Whether everything that happens is printed.
    traces: bool,
    /// A damaged journal is replaced by an empty one.
    pub(super) ignores_damage: bool,
    /// How full any journal was.
    pub(super) fill_max: f64,
    /// Whether some calls of the store fail for a passing reason: the disk is full, or too many files are open.
    pub(super) passing_errors: Arc<AtomicBool>,
    pub(super) limits: Limits,
    ring_bytes: u64,
}

impl World {
    pub(super) fn new(setup: &Setup, seed: u64) -> Self {
        let code = weft_codes::parse(setup.code).unwrap();
        let mut shape = setup.layout.full_stripe(code.k() as u32, code.m() as u32);
        shape.data_len -= setup.missing;
        let mut random = Random::new(seed);
        let nodes = (0..code.n()).map(|_| Node {
            files: SimFiles::new(random.next()),
            disk: None,
            starts_at: 0,
            has_lease: true,
            is_cut: false,
            is_lost: false,
            reads: 0,
        });
        let nodes = nodes.collect();
        let members = |stripe| (0..code.n() as u8).map(move |index| block(stripe, index)).collect();
        let rows = (0..setup.stripes).map(|stripe| Row::new(members(stripe))).collect();
        Self {
            random,
            now: 1,
            code,
            shape,
            nodes,
            rows,
            settled: Vec::new(),
            absent: BTreeSet::new(),
            net: Vec::new(),
            late: Vec::new(),
            answers: Vec::new(),
            reads: BTreeMap::new(),
            writers: BTreeMap::new(),
            faults: (4, 5, 1),
            crashes: 0,
            sealed: 0,
            decided: BTreeMap::new(),
            arrived: 0,
            opened: 0,
            ends: false,
            wrong: None,
            too_long: None,
            told_fenced: BTreeSet::new(),
            traces: std::env::var_os("WEFT_UPDATE_TRACE").is_some(),
            ignores_damage: false,
            fill_max: 0.0,
            passing_errors: Arc::default(),
            limits: setup.limits,
            ring_bytes: setup.ring_bytes,
        }
    }

    /// The node of a block.
    pub(super) fn home(&self, block: BlockId) -> usize {
        (usize::from(block.index) + block.stripe.0 as usize) % self.nodes.len()
    }

    /// Creates the disks and the blocks of all stripes, with this data.
    pub(super) fn create(&mut self, data: &[Vec<Vec<u8>>]) {
        for node in 0..self.nodes.len() {
            self.start(node);
        }
        for (stripe, data) in (0..).zip(data) {
            for (index, content) in (0..).zip(code::encode(&*self.code, self.shape.layout, data)) {
                let id = block(stripe, index);
                let meta = BlockMeta {
                    cluster: CLUSTER,
                    id,
                    object: "bucket/key".into(),
                    version: 1,
                    object_offset: stripe * self.shape.data_len,
                    code: self.code.spec(),
                    generator_hash: generator_hash(&*self.code),
                    stripe: self.shape,
                    seq: Seq::default(),
                };
                let store = &self.nodes[self.home(id)].disk.as_ref().unwrap().store;
                let mut writer = store.create(&meta).unwrap();
                writer.write_at(0, &content[..meta.len() as usize]).unwrap();
                writer.finish(None).unwrap();
            }
        }
    }

    /// Starts a node after a crash, or for the first time.
    pub(super) fn start(&mut self, node: usize) {
        self.trace(|| format!("node {node} starts"));
        let now = self.now;
        let files = self.nodes[node].files.clone();
        files.restart();
        if self.random.percent(15) && now > 1 {
            files.crash_after(self.random.up_to(12));
        }
        match self.open(node, &files) {
            Ok(disk) => {
                self.nodes[node].disk = Some(disk);
                self.nodes[node].has_lease = !self.is_absent(node);
                self.after(node, Ok(()));
            }
            Err(_) if files.is_crashed() => self.crashed(node),
            Err(error) if error.reaction == Reaction::Corrupt => self.nodes[node].is_lost = true,
            Err(error) if is_passing(&error) => self.nodes[node].starts_at = now + 1,
            Err(error) => self.fail(format!("node {node} does not start: {error}")),
        }
    }

    fn open(&self, node: usize, files: &SimFiles) -> Result<Disk> {
        let new = NewDisk { disk_id: node as u128 + 1, created_ms: 1 };
        let store = Arc::new(LocalStore::open_on(Arc::new(files.clone()), Path::new(DIR), CLUSTER, new)?);
        let new = NewJournal { ring_bytes: self.ring_bytes, nonce: node as u128 + 100 };
        let journal = match store.open_journal(new) {
            Err(error) if error.reaction == Reaction::Corrupt && self.ignores_damage => {
                store.set_journal_aside()?;
                store.open_journal(new)?
            }
            other => other?,
        };
        let (is_passing, mut random) = (self.passing_errors.clone(), Random::new(self.now));
        let faulty = FaultStore::new(store.clone(), move |_| {
            let reaction = *random.at(&[Reaction::Retry, Reaction::Unavailable]);
            (is_passing.load(Relaxed) && random.percent(2)).then_some(Fault::Fail(reaction))
        });
        let journal = Arc::new(journal);
        let updater = Updater::open(Arc::new(faulty), journal.clone(), self.limits, self.now)?;
        Ok(Disk { store, journal, updater })
    }

    /// Damages a node's journal while it is down.
    pub(super) fn damage(&mut self, node: usize) {
        let path = Path::new(DIR).join("journal");
        let bit = self.random.up_to(200 * 4096 * 8);
        // A journal that does not exist yet cannot be damaged.
        let _is_there = self.nodes[node].files.flip_bit(&path, 8 * 4096 + bit).is_ok();
    }

    /// Whether the coordinator considers blocks of this node absent.
    pub(super) fn is_absent(&self, node: usize) -> bool {
        self.absent.iter().any(|block| self.home(*block) == node)
    }

    pub(super) fn crashed(&mut self, node: usize) {
        self.trace(|| format!("node {node} crashes"));
        self.crashes += 1;
        let delay = 1 + self.random.up_to(60);
        let down = &mut self.nodes[node];
        (down.disk, down.has_lease, down.starts_at) = (None, false, self.now + delay);
        self.reads.retain(|(at, _, _), _| *at != node);
    }

    pub(super) fn fail(&mut self, what: String) {
        self.wrong.get_or_insert(what);
    }

    /// Calls a node's updater.
    pub(super) fn call(&mut self, node: usize, what: impl FnOnce(&mut Updater, u64) -> Result<()>) {
        let now = self.now;
        let Some(disk) = &mut self.nodes[node].disk else { return };
        let result = what(&mut disk.updater, now);
        self.after(node, result);
    }

    /// A crash takes everything with it that was not sent.
    fn after(&mut self, node: usize, result: Result<()>) {
        if self.nodes[node].files.is_crashed() {
            return self.crashed(node);
        }
        match result {
            // The journal is full, the block is lost or not open, or the message is a late one: it counts as lost.
            Err(error) if error.reaction == Reaction::Fatal => {
                self.fail(format!("node {node}: {error}"));
            }
            Err(error) => self.trace(|| format!("node {node}: {error}")),
            Ok(()) => {}
        }
        let Some(disk) = &mut self.nodes[node].disk else { return };
        for output in disk.updater.take_outputs() {
            self.output(node, output);
        }
    }

    fn output(&mut self, node: usize, output: Output) {
        self.trace(|| format!("node {node}: {}", short(&output)));
        match output {
            Output::Send { from, to, message, pieces } => {
                if let Message::Prepare { record, .. } = &message
                    && self.decided.get(&record.id).is_some_and(|term| record.term >= *term)
                {
                    self.fail(format!("update {:?} runs again in term {}", record.id, record.term));
                }
                // The first part of a delta may come before the message.
                if let (Peer::Block(to), Some((id, stream, piece))) = (to, only_delta(&message, &pieces))
                    && self.faults.0 > 0
                    && self.random.percent(40)
                {
                    self.part_arrives(to, (id, stream, &piece), 0..piece.bytes.len() / 2);
                }
                let to = match to {
                    Peer::Block(block) => To::Block(block),
                    Peer::Coordinator => To::Coordinator(from.stripe.0),
                };
                self.send(to, Body::Protocol { from: Peer::Block(from), message, pieces });
            }
            Output::Tell { id, told, .. } => {
                if let Some(client) = self.writers.get(&id) {
                    self.send(To::Client(*client), Body::Told { id, told });
                }
            }
            Output::Served { block, read, result } => {
                let Some(Asked { client, number, part, .. }) = self.reads.remove(&(node, block, read)) else { return };
                if let Ok(Served { content: Some(content), .. }) = &result
                    && weft_types::crc32c(&content.bytes) != content.crc
                {
                    self.wrong.get_or_insert(format!("block {block} serves bytes with a wrong checksum"));
                }
                self.send(To::Client(client), Body::Content { number, part, result });
            }
            Output::TooLong { from, to, bytes, .. } => self.too_long = Some((from, to, bytes)),
            Output::Lost { block, error } => self.fail(format!("block {block} is lost: {error}")),
        }
    }

    /// Nobody waits any more for reads that have not been answered for long.
    pub(super) fn abandon_reads(&mut self, patience: u64) {
        let is_old = |asked: &Asked| asked.since + patience <= self.now;
        let old: Vec<_> = self.reads.iter().filter(|(_, asked)| is_old(asked)).map(|(key, _)| *key).collect();
        for (node, block, read) in old {
            self.reads.remove(&(node, block, read));
            self.call(node, |updater, now| updater.abandon(block, read, now));
        }
    }

    pub(super) fn send(&mut self, to: To, body: Body) {
        let term = match to {
            To::Block(block) => self.rows[block.stripe.0 as usize].term().unwrap_or(0),
            _ => 0,
        };
        self.net.push(Envelope { to, body, term });
    }

    /// Messages that were delayed for long arrive.
    pub(super) fn deliver_late(&mut self) {
        let now = self.now;
        let (arriving, late) = std::mem::take(&mut self.late).into_iter().partition(|(at, _)| *at <= now);
        self.late = late;
        let arriving: Vec<(u64, Envelope)> = arriving;
        self.net.extend(arriving.into_iter().map(|(_, envelope)| envelope));
    }

    /// Delivers one of the messages on the way.
    pub(super) fn deliver(&mut self, at: usize) {
        let (lost, repeated, damaged) = self.faults;
        let is_repeated = self.random.percent(repeated);
        let mut envelope = if is_repeated { self.net[at].clone() } else { self.net.swap_remove(at) };
        if lost > 0 && self.random.percent(3) {
            self.late.push((self.now + 100 + self.random.up_to(1200), envelope.clone()));
        }
        if self.random.percent(lost) || self.is_cut(&envelope) {
            return;
        }
        if let Body::Protocol { message: Message::Prepare { .. }, pieces, .. } = &mut envelope.body
            && self.random.percent(damaged)
            && let Some(piece) = pieces.values_mut().next()
        {
            let piece = Arc::make_mut(piece);
            let mut bytes = piece.bytes.to_vec();
            bytes[0] ^= 1;
            piece.bytes = bytes.into();
        }
        self.arrive(envelope);
    }

    fn is_cut(&self, envelope: &Envelope) -> bool {
        let Body::Protocol { from, .. } = &envelope.body else { return false };
        let is_cut = |peer: &BlockId| self.nodes[self.home(*peer)].is_cut;
        matches!(from, Peer::Block(from) if is_cut(from)) || matches!(envelope.to, To::Block(to) if is_cut(&to))
    }

    fn arrive(&mut self, Envelope { to, body, term }: Envelope) {
        self.trace(|| format!("{to:?} receives {}", short(&body)));
        match (to, body) {
            (To::Client(client), body) => self.answers.push((client, body)),
            (To::Coordinator(stripe), body) => self.coordinator_receives(stripe, body),
            (To::Block(block), body) => self.block_receives(block, body, term),
        }
    }

    fn block_receives(&mut self, block: BlockId, body: Body, term: u64) {
        let node = self.home(block);
        let coordinator = To::Coordinator(block.stripe.0);
        match body {
            Body::Protocol { from, message, pieces } => {
                match only_delta(&message, &pieces).filter(|_| self.faults.0 > 0 && self.random.percent(60)) {
                    None => self.call(node, |updater, now| updater.receive(block, from, message, pieces, now)),
                    Some((id, stream, piece)) => {
                        let (half, len) = (piece.bytes.len() / 2, piece.bytes.len());
                        if self.random.percent(30) {
                            self.part_arrives(block, (id, stream, &piece), 0..half);
                        }
                        self.part_arrives(block, (id, stream, &piece), half..len);
                        let mut arrived = 0;
                        self.call(node, |updater, now| match updater.receive_arrived(block, from, message.clone(), now)? {
                            true => {
                                arrived = 1;
                                Ok(())
                            }
                            false => updater.receive(block, from, message, pieces, now),
                        });
                        self.arrived += arrived;
                    }
                }
            }
            Body::Request { id, new } => self.call(node, |updater, now| updater.request(block, term, id, new, now)),
            Body::Read { client, number, part, mut asked } => {
                let home = &mut self.nodes[node];
                home.reads += 1;
                // Some clients trust the node's lease where it has one.
                asked.has_lease |= home.has_lease && client % 2 == 0;
                let read = home.reads;
                if home.disk.is_some() {
                    self.reads.insert((node, block, read), Asked { client, number, part, since: self.now });
                }
                self.call(node, |updater, now| updater.read(block, read, asked, now));
            }
            Body::Open(sealed) => {
                let term = sealed.term;
                if self.done(node, |updater, now| updater.open_block(block, &sealed, now)).is_some() {
                    self.send(coordinator, Body::Opened { from: block, term });
                }
            }
            Body::Settle(term) => {
                if let Some(Some(settled)) = self.done(node, |updater, now| updater.settle(block, term, now)) {
                    self.send(coordinator, Body::Settled { from: block, block: settled });
                }
            }
            Body::Close(term) => {
                let close = |updater: &mut Updater, now| updater.close(block, term).and_then(|()| updater.sync(now));
                if self.done(node, close).is_some() {
                    self.send(coordinator, Body::Closed { from: block, term });
                }
            }
            body => unreachable!("{body:?} to {block}"),
        }
    }

    /// A part of a delta for a block.
    pub(super) fn part_arrives(&mut self, to: BlockId, (id, stream, piece): (UpdateId, u8, &Piece), range: Range<usize>) {
        let (node, whole) = (self.home(to), piece.span());
        let part = Piece { start: whole.start + range.start as u64, bytes: piece.bytes.slice(range) };
        let part = DeltaPart { id, attempt: 1, stream, whole, piece: &part };
        self.call(node, |updater, now| updater.arrive(to, part, now));
    }

    /// Calls a node's updater. `None` if it failed, or the node with it.
    fn done<T>(&mut self, node: usize, what: impl FnOnce(&mut Updater, u64) -> Result<T>) -> Option<T> {
        let mut done = None;
        self.call(node, |updater, now| what(updater, now).map(|it| done = Some(it)));
        done.filter(|_| self.nodes[node].disk.is_some())
    }

    /// Prints what happens, if it is wanted.
    pub(super) fn trace(&self, what: impl FnOnce() -> String) {
        if self.traces {
            println!("{:5} {}", self.now, what());
        }
    }
}

/// The delta of a Prepare, if there is only one.
pub(super) fn only_delta(message: &Message, pieces: &Pieces) -> Option<(UpdateId, u8, Arc<Piece>)> {
    let Message::Prepare { record, .. } = message else { return None };
    let (stream, piece) = pieces.first_key_value().filter(|_| pieces.len() == 1)?;
    Some((record.id, *stream, Arc::clone(piece)))
}

/// Without the bytes.
fn short(what: &impl std::fmt::Debug) -> String {
    let text = format!("{what:?}");
    text.split("bytes: [").next().unwrap_or(&text).chars().take(700).collect()
}

pub(super) fn block(stripe: u64, index: u8) -> BlockId {
    BlockId { stripe: StripeId(stripe), index, copy: 0, generation: 1 }
}
