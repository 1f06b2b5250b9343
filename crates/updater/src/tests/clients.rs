//! Writers and readers, and what they have seen.

use super::{
    linear::{Operation, What},
    random::Random,
    world::{Body, To, World, block},
};
use crate::{
    Piece, Pieces, Read, Served,
    fault::{Rule, dropped},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};
use weft_types::{Span, crc32c};
use weft_update::{Rounds, RoundsEnd, Session, Told, UpdateId, Version};

/// A part of a data block that is always written as a whole: a register of the checker.
#[derive(Debug, Clone, Copy)]
pub(super) struct Segment {
    pub(super) index: u8,
    pub(super) bytes: Span,
}

/// What clients know of a stripe.
pub(super) struct Register {
    pub(super) segments: Vec<Segment>,
    /// By segment and CRC32C of its bytes: the value.
    values: BTreeMap<(usize, u32), u32>,
    pub(super) history: Vec<Operation>,
}

/// A request, or a read, and when it was sent last.
struct Current {
    stripe: u64,
    begin: u64,
    sent: u64,
    tries: u32,
    what: Doing,
}

enum Doing {
    Write { id: UpdateId, value: u32, segments: Vec<usize>, new: Pieces },
    Read { number: u64, rounds: Rounds, parts: Vec<ReadPart> },
}

/// What a reader wants of one block, and what it has.
struct ReadPart {
    index: u8,
    segments: Vec<usize>,
    bytes: Vec<u8>,
    /// In this round.
    found: Option<Version>,
}

/// A client: it writes or reads, one thing at a time.
#[derive(Default)]
pub(super) struct Client {
    is_writer: bool,
    current: Option<Current>,
    left: u32,
    counter: u64,
}

/// All clients.
pub(super) struct Clients {
    pub(super) stripes: Vec<Register>,
    clients: Vec<Client>,
    next_value: u32,
    /// What clients were told, for good.
    told: BTreeMap<UpdateId, Told>,
    /// Requests that were answered for good.
    past: Vec<(u64, UpdateId, Pieces)>,
    seed: u64,
    pub(super) committed: usize,
    pub(super) aborted: usize,
    pub(super) served: usize,
    /// Of these, reads of several blocks.
    pub(super) served_together: usize,
    pub(super) unknown: usize,
}

/// So often a request is sent before its client gives up.
const TRIES_MAX: u32 = 20;
/// Steps after which a request is sent again.
pub(super) const PATIENCE: u64 = 150;

impl Clients {
    pub(super) fn new(world: &mut World, writers: usize, readers: usize, operations: u32, seed: u64) -> Self {
        let mut stripes = Vec::new();
        for _ in 0..world.rows.len() {
            let mut segments = Vec::new();
            for index in 0..world.shape.k as u8 {
                let len = world.shape.block_len(index.into());
                let mut cuts: BTreeSet<u64> = (0..4).map(|_| 64 + world.random.up_to(len - 128)).collect();
                cuts.extend([0, len]);
                let cuts: Vec<u64> = cuts.into_iter().collect();
                segments.extend(cuts.windows(2).map(|pair| Segment { index, bytes: Span::new(pair[0], pair[1]) }));
            }
            stripes.push(Register { segments, values: BTreeMap::new(), history: Vec::new() });
        }
        let client = |is_writer| Client { is_writer, left: operations, ..Client::default() };
        let clients = (0..writers + readers).map(|at| client(at < writers)).collect();
        let mut it = Self {
            stripes,
            clients,
            next_value: 1,
            told: BTreeMap::new(),
            past: Vec::new(),
            seed,
            committed: 0,
            aborted: 0,
            served: 0,
            served_together: 0,
            unknown: 0,
        };
        for stripe in 0..it.stripes.len() {
            (0..it.stripes[stripe].segments.len()).for_each(|segment| drop(it.content(stripe as u64, segment, 0)));
        }
        it
    }

    /// The bytes of a value in a segment.
    fn content(&mut self, stripe: u64, segment: usize, value: u32) -> Vec<u8> {
        let seed = self.seed ^ (stripe << 56 | (segment as u64) << 40 | u64::from(value));
        let register = &mut self.stripes[stripe as usize];
        let bytes = Random::new(seed).bytes(register.segments[segment].bytes.len() as usize);
        register.values.insert((segment, crc32c(&bytes)), value);
        bytes
    }

    /// The data blocks of all stripes before any update, in full length.
    pub(super) fn first_data(&mut self, world: &World) -> Vec<Vec<Vec<u8>>> {
        let mut all = Vec::new();
        for stripe in 0..self.stripes.len() as u64 {
            let mut data = vec![vec![0; world.shape.layout.block_len as usize]; world.shape.k as usize];
            for number in 0..self.stripes[stripe as usize].segments.len() {
                let (bytes, Segment { index, bytes: span }) =
                    (self.content(stripe, number, 0), self.stripes[stripe as usize].segments[number]);
                data[usize::from(index)][span.start as usize..span.end as usize].copy_from_slice(&bytes);
            }
            all.push(data);
        }
        all
    }

    /// The values in a block's bytes, by segment. Fails if a segment contains bytes that no client wrote, or a mixture.
    pub(super) fn values(&self, stripe: u64, segments: &[usize], from: u64, bytes: &[u8]) -> Result<Vec<(usize, u32)>, String> {
        let register = &self.stripes[stripe as usize];
        let value = |segment: &usize| {
            let Segment { index, bytes: span } = register.segments[*segment];
            let part = &bytes[(span.start - from) as usize..(span.end - from) as usize];
            let value = register.values.get(&(*segment, crc32c(part))).copied();
            let what = || format!("bytes {span:?} of block {index} of stripe {stripe} were written by no client");
            value.map(|value| (*segment, value)).ok_or_else(what)
        };
        segments.iter().map(value).collect()
    }

    /// Whether any client is still busy.
    pub(super) fn is_busy(&self) -> bool {
        self.clients.iter().any(|client| client.current.is_some())
    }

    /// Whether any client is busy, or has more to do.
    pub(super) fn is_working(&self) -> bool {
        self.clients.iter().any(|client| client.current.is_some() || client.left > 0)
    }

    /// A request is repeated that was answered, perhaps when the stripe was opened last time. It must not run again.
    fn repeat(&mut self, world: &mut World) {
        if !self.past.is_empty() {
            let (stripe, id, new) = world.random.at(&self.past).clone();
            if world.rows[stripe as usize].term().is_some() {
                world.send(To::Block(block(stripe, id.lead)), Body::Request { id, new });
            }
        }
    }

    /// Clients begin, ask again, or give up.
    pub(super) fn step(&mut self, world: &mut World, begins: bool) {
        if begins && world.random.percent(2) {
            self.repeat(world);
        }
        for client in 0..self.clients.len() {
            let at = &self.clients[client];
            match &at.current {
                None if begins && at.left > 0 && world.random.percent(20) => self.begin(world, client),
                Some(current) if world.now >= current.sent + PATIENCE => self.again(world, client),
                _ => {}
            }
        }
    }

    /// Clients send no more requests and wait for no answers.
    pub(super) fn stop(&mut self) {
        for client in 0..self.clients.len() {
            self.give_up(client);
        }
    }

    fn begin(&mut self, world: &mut World, client: usize) {
        let stripe = world.random.up_to(self.stripes.len() as u64);
        let row = &world.rows[stripe as usize];
        if row.term().is_none() {
            return;
        }
        let members: BTreeSet<u8> = row.members.iter().map(|block| block.index).collect();
        let mut data: Vec<u8> = (0..world.shape.k as u8).filter(|index| members.contains(index)).collect();
        if data.is_empty() {
            return;
        }
        self.clients[client].left -= 1;
        let is_writer = self.clients[client].is_writer;
        let count = if world.random.percent(if is_writer { 35 } else { 60 }) { 2 } else { 1 };
        while data.len() > count {
            data.swap_remove(world.random.up_to(data.len() as u64) as usize);
        }
        let mut segments = Vec::new();
        for index in data {
            let of_block: Vec<usize> = self.segments_of(stripe, index);
            let first = world.random.up_to(of_block.len() as u64) as usize;
            let len = 1 + world.random.up_to(2 + 2 * u64::from(!is_writer)) as usize;
            segments.extend(of_block.into_iter().skip(first).take(len));
        }
        segments.sort_unstable();
        let what = if is_writer { self.write(stripe, client, segments) } else { self.read(stripe, client, &segments) };
        if let Doing::Write { id, .. } = &what {
            world.writers.insert(*id, client);
        }
        let current = Current { stripe, begin: world.now, sent: world.now, tries: 0, what };
        self.clients[client].current = Some(current);
        self.send(world, client);
    }

    pub(super) fn segments_of(&self, stripe: u64, index: u8) -> Vec<usize> {
        let segments = &self.stripes[stripe as usize].segments;
        (0..segments.len()).filter(|segment| segments[*segment].index == index).collect()
    }

    fn write(&mut self, stripe: u64, client: usize, mut segments: Vec<usize>) -> Doing {
        let value = self.next_value;
        self.next_value += 1;
        self.clients[client].counter += 1;
        let session = Session { number: client as u64 + 1, ends_at_ms: u64::MAX };
        let bytes_max = super::world::LIMITS.update_bytes_max;
        let mut total = 0;
        segments.retain(|segment| {
            let len = self.stripes[stripe as usize].segments[*segment].bytes.len();
            total += len;
            total <= bytes_max
        });
        let mut new = Pieces::new();
        let mut kept: Vec<usize> = Vec::new();
        for segment in segments {
            let Segment { index, bytes: span } = self.stripes[stripe as usize].segments[segment];
            // A segment in between was too long.
            if new.get(&index).is_some_and(|piece: &Arc<Piece>| piece.span().end != span.start) {
                continue;
            }
            let bytes = self.content(stripe, segment, value);
            let piece = new.entry(index).or_insert_with(|| Arc::new(Piece { start: span.start, bytes: [].as_slice().into() }));
            let piece = Arc::make_mut(piece);
            piece.bytes = [&piece.bytes[..], &bytes].concat().into();
            kept.push(segment);
        }
        let lead = new.keys().next().copied().unwrap_or_default();
        let id = UpdateId { session, counter: self.clients[client].counter, lead };
        Doing::Write { id, value, segments: kept, new }
    }

    fn read(&mut self, stripe: u64, client: usize, segments: &[usize]) -> Doing {
        self.clients[client].counter += 1;
        let mut parts: Vec<ReadPart> = Vec::new();
        for segment in segments {
            let index = self.stripes[stripe as usize].segments[*segment].index;
            match parts.last_mut().filter(|part| part.index == index) {
                Some(part) => part.segments.push(*segment),
                None => parts.push(ReadPart { index, segments: vec![*segment], bytes: Vec::new(), found: None }),
            }
        }
        Doing::Read { number: self.clients[client].counter, rounds: Rounds::new(parts.len()), parts }
    }

    fn send(&mut self, world: &mut World, client: usize) {
        let Some(Current { stripe, what, .. }) = &self.clients[client].current else { return };
        match what {
            Doing::Write { id, new, .. } => {
                let Some(leader) = new.keys().next() else { return };
                world.send(To::Block(block(*stripe, *leader)), Body::Request { id: *id, new: new.clone() });
            }
            Doing::Read { number, rounds, parts } => {
                for (part, wanted) in parts.iter().enumerate().filter(|(_, part)| part.found.is_none()) {
                    let range = range_of(&self.stripes[*stripe as usize].segments, &wanted.segments);
                    let asked = Read { range, since: rounds.since(part).cloned(), has_lease: !rounds.must_confirm() };
                    let body = Body::Read { client, number: *number, part, asked };
                    world.send(To::Block(block(*stripe, wanted.index)), body);
                }
            }
        }
    }

    fn again(&mut self, world: &mut World, client: usize) {
        let Some(current) = &mut self.clients[client].current else { return };
        (current.sent, current.tries) = (world.now, current.tries + 1);
        if current.tries > TRIES_MAX {
            return self.give_up(client);
        }
        // Most clients ask the node once more, perhaps after the stripe was opened again.
        let is_asked = world.random.percent(15);
        if let Doing::Write { id, .. } = &current.what
            && is_asked
            && let Some(outcome) = world.rows[current.stripe as usize].seal.outcome(*id)
        {
            // The leader is fenced, perhaps: the coordinator knows.
            let id = *id;
            return self.told(world, client, id, outcome.into());
        }
        self.send(world, client);
    }

    fn give_up(&mut self, client: usize) {
        let Some(Current { stripe, begin, what: Doing::Write { value, segments, .. }, .. }) = self.clients[client].current.take()
        else {
            return;
        };
        self.unknown += 1;
        let what = What::Write(segments.into_iter().map(|segment| (segment, value)).collect());
        self.stripes[stripe as usize].history.push(Operation { begin, end: None, what });
    }

    /// Handles the answers that have arrived.
    pub(super) fn answers(&mut self, world: &mut World) {
        for (client, body) in std::mem::take(&mut world.answers) {
            match body {
                Body::Told { id, told } => self.told(world, client, id, told),
                Body::Content { number, part, result: Ok(served) } => self.served(world, client, (number, part), served),
                _ => {}
            }
        }
    }

    fn told(&mut self, world: &mut World, client: usize, id: UpdateId, told: Told) {
        if matches!(told, Told::NotRun(_)) {
            return;
        }
        let before = *self.told.entry(id).or_insert(told);
        if before != told || told == Told::Expired {
            world.fail(format!("update {id:?}: its client received {told:?} after {before:?}"));
        }
        let is_current = |current: &&Current| matches!(current.what, Doing::Write { id: its, .. } if its == id);
        if self.clients[client].current.as_ref().filter(is_current).is_none() {
            return;
        }
        let Some(Current { stripe, begin, what: Doing::Write { value, segments, new, .. }, .. }) =
            self.clients[client].current.take()
        else {
            return;
        };
        self.past.push((stripe, id, new));
        if told == Told::Committed {
            self.committed += 1;
            let what = What::Write(segments.into_iter().map(|segment| (segment, value)).collect());
            self.stripes[stripe as usize].history.push(Operation { begin, end: Some(world.now), what });
        } else {
            // It must never be seen: no operation has written its value.
            self.aborted += 1;
        }
    }

    /// A part of a round of a read.
    fn served(&mut self, world: &mut World, client: usize, (number, part): (u64, usize), served: Served) {
        let Some(Current { sent, what: Doing::Read { number: its, rounds, parts }, .. }) = &mut self.clients[client].current
        else {
            return;
        };
        if *its != number || parts[part].found.is_some() {
            return;
        }
        match served.content {
            Some(content) => parts[part].bytes = content.bytes,
            None if rounds.since(part) == Some(&served.version) => {}
            None => return world.fail("a read got no bytes of a version that the reader does not have".into()),
        }
        parts[part].found = Some(served.version);
        if parts.iter().any(|part| part.found.is_none()) {
            return;
        }
        let versions = parts.iter_mut().filter_map(|part| part.found.take()).collect();
        match rounds.ended(versions) {
            RoundsEnd::Again if !dropped(Rule::TwoRounds) => {
                (*its, *sent, self.clients[client].counter) = (number + 1, world.now, number + 1);
                self.send(world, client);
            }
            RoundsEnd::Vain => self.clients[client].current = None,
            RoundsEnd::Again | RoundsEnd::Done => self.has_read(world, client),
        }
    }

    /// A read is done.
    fn has_read(&mut self, world: &mut World, client: usize) {
        let Some(Current { stripe, begin, what: Doing::Read { parts, .. }, .. }) = self.clients[client].current.take() else {
            return;
        };
        let mut all = Vec::new();
        for ReadPart { segments, bytes, .. } in &parts {
            let from = range_of(&self.stripes[stripe as usize].segments, segments).start;
            match self.values(stripe, segments, from, bytes) {
                Err(what) => return world.fail(format!("a read: {what}")),
                Ok(values) => all.extend(values),
            }
        }
        self.served_together += usize::from(parts.len() > 1);
        self.stripes[stripe as usize].history.push(Operation { begin, end: Some(world.now), what: What::Read(all) });
        self.served += 1;
    }
}

fn range_of(segments: &[Segment], numbers: &[usize]) -> Span {
    let (first, last) = (segments[numbers[0]].bytes, segments[numbers[numbers.len() - 1]].bytes);
    Span::new(first.start, last.end)
}
