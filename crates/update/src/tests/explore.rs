//! The explorer: breadth first through every state that a setup can reach.
//!
//! States of nodes, messages and sets of messages are numbered, so that a state of the whole is a few numbers, and each step of a node is
//! computed once, however many states of the others it occurs in.
//!
//! The network is the set of all messages ever sent, each of which may arrive at any time, never, or again. That is loss, repetition and
//! reordering at once, and without more states. Messages whose answers say everything that a node knows ([`is_asked_once`]) arrive once in each life of a node:
//! a later answer says what one answer given later would.

use super::{
    Setup,
    check::{check, settle},
    local::{Effects, Envelope, Facts, Local, Node, Rebuilt, Step, VERSIONS_MAX, recorded},
};
use crate::{Message, NotServed, Peer, Told, Vector};
use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, Hash, Hasher},
    sync::Arc,
};
use weft_types::BlockId;

pub(super) const LOCALS_MAX: usize = 6;

/// What may still go wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(super) struct Budget {
    pub(super) crashes: u8,
    pub(super) seals: u8,
    pub(super) give_ups: u8,
    pub(super) damages: u8,
    pub(super) coordinator_restarts: u8,
    pub(super) absences: u8,
    pub(super) reads: u8,
    pub(super) forgets: u8,
    pub(super) joins: u8,
    /// Sealed stripes that are settled and opened again.
    pub(super) reopenings: u8,
    /// Requests for updates whose client was told an end already.
    pub(super) repeats: u8,
}

/// A state of the whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct World {
    /// The nodes, then the coordinator.
    pub(super) locals: [u32; LOCALS_MAX],
    pub(super) sent: u32,
    /// Messages that are not delivered again.
    done: u32,
    /// What clients were told and have read: four bits for each update.
    pub(super) told: u32,
    /// The updates that were acknowledged when the current read began, and its node.
    read: Option<(u8, u32)>,
    pub(super) left: Budget,
}

pub(super) const COMMITTED: u32 = 1;
pub(super) const ABORTED: u32 = 2;
const EXPIRED: u32 = 4;
pub(super) const SEEN: u32 = 8;

#[derive(Default)]
struct Fast(u64);

impl Hasher for Fast {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }
    fn write_u8(&mut self, value: u8) {
        self.write_u64(value.into());
    }
    fn write_u32(&mut self, value: u32) {
        self.write_u64(value.into());
    }
    fn write_u64(&mut self, value: u64) {
        self.0 = (self.0.rotate_left(5) ^ value).wrapping_mul(0x517c_c1b7_2722_0a95);
    }
    fn write_usize(&mut self, value: usize) {
        self.write_u64(value as u64);
    }
    fn finish(&self) -> u64 {
        self.0 ^ self.0 >> 29
    }
}

type Map<K, V> = HashMap<K, V, BuildHasherDefault<Fast>>;

/// Numbers for values.
struct Numbers<T> {
    values: Vec<Arc<T>>,
    numbers: Map<Arc<T>, u32>,
}

impl<T: Hash + Eq> Numbers<T> {
    fn new() -> Self {
        Self { values: Vec::new(), numbers: Map::default() }
    }

    fn number(&mut self, value: T) -> u32 {
        if let Some(number) = self.numbers.get(&value) {
            return *number;
        }
        let (number, value) = (self.values.len() as u32, Arc::new(value));
        self.values.push(value.clone());
        self.numbers.insert(value, number);
        number
    }

    fn get(&self, number: u32) -> &Arc<T> {
        &self.values[number as usize]
    }
}

/// What a step of one node does.
struct Move {
    after: u32,
    sent: Vec<u32>,
    told: u32,
    served: Vec<Result<u32, NotServed>>,
    wrong: Option<&'static str>,
}

/// What a step reports of a state that must not be.
pub(super) type Verdict<T> = Result<T, String>;

/// A violation, and how to get there.
pub(super) struct Violation {
    pub(super) what: String,
    pub(super) path: Vec<String>,
}

/// How far an exploration got.
pub(super) struct Explored {
    pub(super) states: usize,
    pub(super) settled: usize,
    pub(super) is_complete: bool,
    pub(super) violation: Option<Violation>,
}

pub(super) struct Explorer<'a> {
    pub(super) setup: &'a Setup,
    locals: Numbers<Local>,
    messages: Numbers<Envelope>,
    sets: Numbers<Vec<u32>>,
    unions: Map<(u32, u32), u32>,
    moves: Map<(u32, Step), Arc<Move>>,
    facts: Map<u32, Arc<Facts>>,
}

impl<'a> Explorer<'a> {
    pub(super) fn new(setup: &'a Setup) -> Self {
        let (locals, messages, sets) = (Numbers::new(), Numbers::new(), Numbers::new());
        Self { setup, locals, messages, sets, unions: Map::default(), moves: Map::default(), facts: Map::default() }
    }

    pub(super) fn start(&mut self) -> World {
        let mut locals = [0; LOCALS_MAX];
        for (at, local) in locals.iter_mut().enumerate().take(self.setup.nodes()) {
            *local = self.locals.number(Local::Node(Box::new(Node::new(self.setup, at))));
        }
        locals[self.setup.nodes()] = self.locals.number(Local::Coordinator(Box::new(self.setup.seal()), None));
        let none = self.sets.number(Vec::new());
        World { locals, sent: none, done: none, told: 0, read: None, left: self.setup.budget }
    }

    pub(super) fn local(&self, world: &World, at: usize) -> &Local {
        self.locals.get(world.locals[at])
    }

    pub(super) fn node(&self, world: &World, at: usize) -> &Node {
        let Local::Node(node) = self.local(world, at) else { unreachable!("the coordinator") };
        node
    }

    pub(super) fn seal(&self, world: &World) -> &crate::Seal {
        let Local::Coordinator(seal, _) = self.local(world, self.setup.nodes()) else { unreachable!("a node") };
        seal
    }

    pub(super) fn facts(&mut self, world: &World, at: usize) -> Arc<Facts> {
        let number = world.locals[at];
        if let Some(facts) = self.facts.get(&number) {
            return facts.clone();
        }
        let facts = Arc::new(Facts::of(self.node(world, at), self.setup, at));
        self.facts.insert(number, facts.clone());
        facts
    }

    pub(super) fn recorded(&self, world: &World) -> (u32, u32) {
        recorded(self.seal(world), self.setup)
    }

    /// Whether a block is part of the stripe, by the metadata.
    pub(super) fn is_member(&self, world: &World, at: usize) -> bool {
        self.seal(world).stripe().sealed.members.contains(&self.setup.block(at))
    }

    /// All messages ever sent to a node or to the coordinator.
    pub(super) fn messages_to(&self, world: &World, at: usize) -> Vec<u32> {
        let to = self.setup.peer(at);
        self.sets.get(world.sent).iter().copied().filter(|message| self.messages.get(*message).to == to).collect()
    }

    fn set_with(&mut self, set: u32, message: u32) -> u32 {
        if let Some(with) = self.unions.get(&(set, message)) {
            return *with;
        }
        let mut members = (**self.sets.get(set)).clone();
        if let Err(at) = members.binary_search(&message) {
            members.insert(at, message);
        }
        let with = self.sets.number(members);
        self.unions.insert((set, message), with);
        with
    }

    /// A step of one node, computed once.
    fn step_of(&mut self, world: &World, at: usize, step: Step) -> Arc<Move> {
        let number = world.locals[at];
        if let Some(done) = self.moves.get(&(number, step)) {
            return done.clone();
        }
        let message = match step {
            Step::Deliver(message) | Step::DeliverDamaged(message) | Step::DeliverToOld(message) => {
                Some(self.messages.get(message).clone())
            }
            _ => None,
        };
        let local = self.locals.get(number).clone();
        let (after, Effects { sent, told, served, wrong }) = local.step(self.setup, at, step, message.as_deref());
        let sent = sent.into_iter().map(|message| self.messages.number(message)).collect();
        let told = told.into_iter().fold(0, |all, (id, told)| {
            let bit = match told {
                Told::Committed => COMMITTED,
                Told::Aborted => ABORTED,
                Told::Expired => EXPIRED,
                Told::NotRun(_) => 0,
            };
            all | bit << (4 * self.setup.update_of(id))
        });
        let served = served.into_iter().map(|result| result.map(|page| self.setup.updates_in(page))).collect();
        let done = Arc::new(Move { after: self.locals.number(after), sent, told, served, wrong });
        self.moves.insert((number, step), done.clone());
        done
    }

    /// Takes a step. While no crash is left, entries are durable at once: a crash is all that could tell, and answers may arrive late anyway.
    pub(super) fn take(&mut self, world: &World, at: usize, step: Step) -> Verdict<World> {
        let mut next = *world;
        if step == Step::Reopen {
            self.reopen(&mut next)?;
        } else if step == Step::Remind && at < self.setup.nodes() {
            self.ask(&mut next, at)?;
        } else {
            self.take_one(&mut next, at, step)?;
        }
        // Leases only matter to reads.
        if matches!(step, Step::Seal(_) | Step::Absent(_)) && self.setup.budget.reads == 0 {
            (0..at).try_for_each(|node| self.take_one(&mut next, at, Step::LeaseEnded(node as u8)))?;
        }
        if next.left.crashes == 0 {
            self.sync_all(&mut next)?;
        }
        Ok(next)
    }

    fn sync_all(&mut self, world: &mut World) -> Verdict<()> {
        (0..self.setup.nodes()).try_for_each(|at| self.sync_one(world, at))
    }

    fn sync_one(&mut self, world: &mut World, at: usize) -> Verdict<()> {
        loop {
            let node = self.node(world, at);
            let step = match (node.unsynced(), node.is_writing()) {
                (1.., _) => Step::Flush,
                (0, Some(false)) => Step::WritePages,
                (0, Some(true)) => Step::WriteSidecar,
                (0, None) if node.is_delta_due(self.setup) => Step::Delta,
                (0, None) => return Ok(()),
            };
            self.take_one(world, at, step)?;
        }
    }

    fn members(&self, world: &World) -> Vec<usize> {
        (0..self.setup.nodes()).filter(|at| self.is_member(world, *at)).collect()
    }

    /// Whether all blocks of the stripe are open, so that clients get leases.
    pub(super) fn are_all_open(&self, world: &World) -> bool {
        self.members(world).into_iter().all(|at| !self.node(world, at).is_closed())
    }

    /// Whether a seal is recorded and known to all blocks. The coordinator never continues with updates then: it settles the stripe.
    pub(super) fn can_reopen(&self, world: &World) -> bool {
        let stripe = self.seal(world).stripe();
        let is_ready = |at: usize| {
            let node = self.node(world, at);
            !node.is_closed() && node.block.participant().known_term() == stripe.term && node.opened_in() < stripe.term
        };
        self.setup.budget.reopenings > 0 && !stripe.is_open() && self.members(world).into_iter().all(is_ready)
    }

    /// Settles and closes all blocks, and begins to open them again. What blocks say to a settled one is lost, so it does no harm that they settle at the
    /// same time. Each opens when the coordinator's message arrives.
    pub(super) fn reopen(&mut self, world: &mut World) -> Verdict<()> {
        let vector = self.seal(world).stripe().sealed.vector.clone();
        for at in self.members(world) {
            for _ in 0..4 {
                self.sync_one(world, at)?;
                self.take_one(world, at, Step::Apply)?;
            }
            let block = &self.node(world, at).block;
            let decided = block.participant().decided();
            let count = |of: &Vector, stream: u8| of.get(&stream).copied().unwrap_or(0);
            if !block.is_idle() || (0..self.setup.k).any(|stream| count(decided, stream) != count(&vector, stream)) {
                return Err(format!("node {at} does not settle what was sealed: {decided:?} and not {vector:?}"));
            }
            self.take_one(world, at, Step::Close)?;
        }
        self.take_one(world, self.setup.nodes(), Step::Reopen)
    }

    /// The coordinator asks the blocks again that are not open.
    pub(super) fn open_all(&mut self, world: &mut World) -> Verdict<()> {
        for at in self.members(world) {
            if self.node(world, at).is_closed() {
                let message = Message::Sealed(self.seal(world).stripe().sealed.clone());
                let message = self.messages.number(Envelope { from: Peer::Coordinator, to: self.setup.peer(at), message });
                self.take_one(world, at, Step::Deliver(message))?;
            }
        }
        Ok(())
    }

    fn take_one(&mut self, world: &mut World, at: usize, step: Step) -> Verdict<()> {
        let done = self.step_of(world, at, step);
        let acknowledged = self.setup.updates_told(world.told, COMMITTED | SEEN);
        match step {
            Step::Crash(_) => {
                world.left.crashes -= 1;
                world.read = world.read.filter(|(reader, _)| usize::from(*reader) != at);
                // Whoever waits for an answer sends its message again.
                let to = self.setup.peer(at);
                let kept =
                    self.sets.get(world.done).iter().copied().filter(|message| self.messages.get(*message).to != to).collect();
                world.done = self.sets.number(kept);
            }
            Step::Deliver(message) if is_asked_once(&self.messages.get(message).message) => {
                world.done = self.set_with(world.done, message);
            }
            Step::DeliverDamaged(_) => world.left.damages -= 1,
            Step::Seal(_) => world.left.seals = world.left.seals.saturating_sub(1),
            Step::GiveUp(_) => world.left.give_ups -= 1,
            Step::Absent(_) => world.left.absences -= 1,
            Step::Join => world.left.joins -= 1,
            Step::Reopen => world.left.reopenings = world.left.reopenings.saturating_sub(1),
            Step::CoordinatorRestarts => world.left.coordinator_restarts -= 1,
            Step::Forget => world.left.forgets -= 1,
            Step::Read => {
                world.left.reads -= 1;
                world.read = Some((at as u8, acknowledged));
            }
            Step::Request(update) if world.told >> (4 * update) & 7 != 0 => {
                world.left.repeats = world.left.repeats.saturating_sub(1);
            }
            _ => {}
        }
        if let Some(wrong) = done.wrong {
            return Err(wrong.into());
        }
        world.locals[at] = done.after;
        for message in &done.sent {
            world.sent = self.set_with(world.sent, *message);
        }
        // A node may lose what it forgot, and remember the outcome again. But nothing ends after its client was told that it will not run.
        let ended = self.setup.updates_told(done.told & !world.told, COMMITTED | ABORTED);
        let first = ended & !self.setup.updates_told(world.told, COMMITTED | ABORTED);
        if first & self.setup.updates_told(world.told, EXPIRED) != 0 {
            return Err(format!("an update runs that its client was told to be expired ({ended:b})"));
        }
        world.told |= done.told;
        for served in &done.served {
            let Some((_, acknowledged)) = world.read.take() else { continue };
            let Ok(shown) = served else { continue };
            let missing = acknowledged & self.setup.updates_of(at) & !shown;
            if missing != 0 {
                return Err(format!("a read misses acknowledged updates ({missing:b})"));
            }
            self.setup.each(*shown).for_each(|update| world.told |= SEEN << (4 * update));
        }
        Ok(())
    }

    /// A node asks, and the questions arrive at once: a late one asks what an earlier one would have.
    fn ask(&mut self, world: &mut World, at: usize) -> Verdict<()> {
        let asked = self.step_of(world, at, Step::Remind);
        for message in asked.sent.clone() {
            let envelope = self.messages.get(message).clone();
            let is_question = matches!(envelope.message, Message::Ask { .. } | Message::AskLock { .. } | Message::AskSeal { .. });
            if let Some(to) = self.setup.at(envelope.to).filter(|_| is_question) {
                self.take_one(world, to, Step::Deliver(message))?;
            }
        }
        Ok(())
    }

    /// A node or the coordinator sends again what was not answered, and asks.
    pub(super) fn send_again(&mut self, world: &mut World, at: usize) -> Verdict<()> {
        let asked = self.step_of(world, at, Step::Remind);
        for message in &asked.sent {
            world.sent = self.set_with(world.sent, *message);
        }
        self.take_one(world, at, Step::Remind)
    }

    /// Everything that can happen next.
    fn steps(&self, world: &World) -> Vec<(usize, Step)> {
        let mut steps = Vec::new();
        let done = self.sets.get(world.done);
        for message in self.sets.get(world.sent).iter().filter(|message| done.binary_search(message).is_err()) {
            let envelope = self.messages.get(*message);
            let Some(to) = self.setup.at(envelope.to) else { continue };
            steps.push((to, Step::Deliver(*message)));
            let has_old = matches!(self.local(world, to), Local::Coordinator(_, Some(_)));
            steps.extend(has_old.then_some((to, Step::DeliverToOld(*message))));
            let is_damaged = world.left.damages > 0 && matches!(envelope.message, Message::Prepare { .. });
            steps.extend(is_damaged.then_some((to, Step::DeliverDamaged(*message))));
        }
        for at in 0..self.setup.nodes() {
            self.steps_of(world, at, &mut steps);
        }
        self.steps_of_coordinator(world, &mut steps);
        steps
    }

    fn steps_of(&self, world: &World, at: usize, steps: &mut Vec<(usize, Step)>) {
        let (node, left, setup) = (self.node(world, at), &world.left, self.setup);
        if node.is_closed() {
            return;
        }
        let has_lease = self.are_all_open(world);
        let mut push = |is_possible: bool, step: Step| steps.extend(is_possible.then_some((at, step)));
        push(node.unsynced() > 0, Step::Flush);
        if left.crashes > 0 && setup.crashing >> at & 1 == 1 {
            (0..=node.unsynced()).for_each(|kept| push(true, Step::Crash(kept as u8)));
        }
        push(true, Step::Remind);
        push(node.is_delta_due(setup), Step::Delta);
        push(node.is_writing() == Some(false), Step::WritePages);
        push(node.is_writing() == Some(true), Step::WriteSidecar);
        push(setup.applying >> at & 1 == 1, Step::Apply);
        push(left.forgets > 0, Step::Forget);
        self.rebuilds(world, at).into_iter().for_each(|step| push(true, step));
        for update in (0..setup.updates.len()).filter(|update| setup.orders(at, setup.leader_of(*update) as u8)) {
            let is_told = world.told >> (4 * update) & 7 != 0;
            push(has_lease && (!is_told || left.repeats > 0), Step::Request(update as u8));
            let is_pending = node.block.leader().is_some_and(|leader| leader.is_pending(setup.id(update as u8)));
            push(left.give_ups > 0 && is_pending, Step::GiveUp(update as u8));
        }
        let is_reader = setup.budget.reads > 0 && at < setup.k as usize;
        push(is_reader && node.has_lease, Step::LeaseEnds);
        push(is_reader && left.reads > 0 && world.read.is_none(), Step::Read);
    }

    /// How a block that joins may be rebuilt: from blocks that serve a vector. Its node decides whether the vector is possible.
    pub(super) fn rebuilds(&self, world: &World, at: usize) -> Vec<Step> {
        let setup = self.setup;
        if !self.node(world, at).block.participant().is_joining() || !self.is_member(world, at) {
            return Vec::new();
        }
        let known = self.node(world, at).block.participant().rebuild_at();
        let same = (0..=VERSIONS_MAX).map(|number| (0..setup.k).map(|stream| (stream, number)).collect());
        let mut steps: Vec<Step> =
            [known].into_iter().chain(same).filter_map(|vector| self.rebuild(world, at, &vector)).collect();
        steps.dedup();
        steps
    }

    fn rebuild(&self, world: &World, at: usize, vector: &Vector) -> Option<Step> {
        let setup = self.setup;
        let others = (0..setup.nodes()).filter(|other| *other != at && self.is_member(world, *other));
        let serving: Vec<(usize, Vec<u32>)> =
            others.filter_map(|other| Some((other, self.node(world, other).at_vector(setup, vector)?))).collect();
        let blocks: Vec<BlockId> = serving.iter().map(|(other, _)| setup.block(*other)).collect();
        if !setup.can_rebuild(&blocks) {
            return None;
        }
        let mut rebuilt = Rebuilt { pages: [0; 2], numbers: [0; 2] };
        for stream in (0..setup.k).filter(|stream| setup.depends(at, *stream)) {
            let (_, pages) = serving.iter().find(|(other, _)| setup.depends(*other, stream))?;
            for (page, content) in pages.iter().enumerate() {
                rebuilt.pages[page] |= content & setup.bits_of(stream);
            }
            rebuilt.numbers[usize::from(stream)] = *vector.get(&stream)? as u8;
        }
        Some(Step::Rebuild(rebuilt))
    }

    fn steps_of_coordinator(&self, world: &World, steps: &mut Vec<(usize, Step)>) {
        let (seal, setup) = (self.seal(world), self.setup);
        let at = setup.nodes();
        let members = (0..at).filter(|node| self.is_member(world, *node)).fold(0_u8, |all, node| all | 1 << node);
        for absent in setup.absent.iter().filter(|absent| **absent & members == **absent) {
            let is_left = |block: &&BlockId| (0..at).all(|node| setup.block(node) != **block || absent >> node & 1 == 0);
            let can_rebuild = setup.can_rebuild(seal.stripe().sealed.members.iter().filter(is_left));
            let is_open = self.are_all_open(world);
            steps.extend((world.left.seals > 0 && can_rebuild && is_open).then_some((at, Step::Seal(*absent))));
        }
        steps.extend((seal.is_under_way() && world.left.coordinator_restarts > 0).then_some((at, Step::CoordinatorRestarts)));
        steps.extend((seal.is_under_way() && world.left.joins > 0).then_some((at, Step::Join)));
        steps.extend((world.left.reopenings > 0 && self.can_reopen(world)).then_some((at, Step::Reopen)));
        if seal.is_under_way() && world.left.absences > 0 {
            steps.extend((0..at).map(|node| (at, Step::Absent(node as u8))));
        }
        if seal.is_under_way() && setup.budget.reads > 0 {
            // Only data blocks are read under a lease.
            let has_ended = |node: &usize| *node >= usize::from(setup.k) || !self.node(world, *node).has_lease;
            steps.extend((0..at).filter(has_ended).map(|node| (at, Step::LeaseEnded(node as u8))));
        }
        steps.extend([(at, Step::Remind), (at, Step::ClientsAsk), (at, Step::OldReminds)]);
    }

    /// Explores until everything is known, something is wrong, or there are too many states. Every `every`th state is settled: it must come to
    /// a good end without further faults.
    pub(super) fn explore(&mut self, states_max: usize, every: usize) -> Explored {
        let mut seen: Map<World, u32> = Map::default();
        let mut order: Vec<World> = Vec::new();
        let mut from: Vec<(u32, u8, Step)> = Vec::new();
        let start = self.start();
        seen.insert(start, 0);
        order.push(start);
        from.push((0, 0, Step::Flush));
        let (mut at, mut settled) = (0, 0);
        while at < order.len() {
            let world = order[at];
            let mut wrong = check(self, &world).err().map(|what| (what, None));
            if wrong.is_none() && at % every == 0 {
                settled += 1;
                wrong = settle(self, &world).err().map(|what| (what, None));
            }
            for (node, step) in if wrong.is_none() { self.steps(&world) } else { Vec::new() } {
                match self.take(&world, node, step) {
                    Err(what) => wrong = Some((what, Some((node, step)))),
                    Ok(next) if next != world && !seen.contains_key(&next) => {
                        seen.insert(next, order.len() as u32);
                        order.push(next);
                        from.push((at as u32, node as u8, step));
                    }
                    Ok(_) => {}
                }
            }
            if let Some((what, last)) = wrong {
                let path = self.path(&from, at, last);
                return Explored { states: order.len(), settled, is_complete: false, violation: Some(Violation { what, path }) };
            }
            if order.len() >= states_max {
                return Explored { states: order.len(), settled, is_complete: false, violation: None };
            }
            at += 1;
        }
        Explored { states: order.len(), settled, is_complete: true, violation: None }
    }

    fn path(&self, from: &[(u32, u8, Step)], mut at: usize, last: Option<(usize, Step)>) -> Vec<String> {
        let mut path: Vec<String> = last.into_iter().map(|(node, step)| self.name(node, step)).collect();
        while at != 0 {
            let (before, node, step) = from[at];
            path.push(self.name(node.into(), step));
            at = before as usize;
        }
        path.reverse();
        path
    }

    fn name(&self, at: usize, step: Step) -> String {
        match step {
            Step::Deliver(message) | Step::DeliverDamaged(message) | Step::DeliverToOld(message) => {
                let Envelope { from, message, .. } = &**self.messages.get(message);
                let from = self.setup.at(*from).map_or(String::new(), |from| format!(" from {from}"));
                let how = match step {
                    Step::DeliverDamaged(_) => "receives damaged",
                    Step::DeliverToOld(_) => "that was replaced receives",
                    _ => "receives",
                };
                format!("{at}: {how}{from} {message:?}")
            }
            step => format!("{at}: {step:?}"),
        }
    }
}

/// Messages whose answers contain all that a node knows, or all that it knows at one moment.
fn is_asked_once(message: &Message) -> bool {
    matches!(message, Message::Query { .. } | Message::Seal { .. } | Message::Confirm { .. })
}

impl Setup {
    fn peer(&self, at: usize) -> Peer {
        if at == self.nodes() { Peer::Coordinator } else { Peer::Block(self.block(at)) }
    }

    pub(super) fn at(&self, peer: Peer) -> Option<usize> {
        (0..=self.nodes()).find(|at| self.peer(*at) == peer)
    }
}
