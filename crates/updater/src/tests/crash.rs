//! One run: clients write and read while nodes crash, are cut off, and lose power; then everything settles, and what is left is checked.

use super::{
    clients::{Clients, PATIENCE},
    code,
    linear::{self, Operation, What},
    world::{Setup, World, block},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::atomic::Ordering::Relaxed,
};
use weft_store::BlockStore as _;
use weft_types::{BlockId, CHECKSUM_UNIT_LEN, Span, crc32c};
use weft_update::Vector;

/// What happens in a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// A node loses power at one of its calls of the file system, perhaps twice, and comes back.
    Crash,
    /// All nodes lose power at once.
    PowerLoss,
    /// A node crashes and stays away until its blocks are sealed out; then it comes back.
    Away,
    /// A node is cut off from the others until its blocks are sealed out; another one crashes.
    Cut,
    /// A node crashes, and its journal is damaged.
    Damage,
}

/// How a run ended.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) crashes: usize,
    pub(super) committed: usize,
    pub(super) aborted: usize,
    pub(super) served: usize,
    pub(super) served_together: usize,
    pub(super) unknown: usize,
    pub(super) sealed: usize,
    pub(super) versions: usize,
    pub(super) arrived: usize,
    pub(super) opened: usize,
    pub(super) settled: usize,
    pub(super) fill_max: f64,
    pub(super) wrong: Option<String>,
}

const STEPS_MAX: u64 = 6000;
/// How often everything is delivered before a run that does not settle is wrong.
const ROUNDS_MAX: usize = 80;

struct Run {
    world: World,
    clients: Clients,
    fault: Fault,
    victim: usize,
    other: usize,
    /// When the fault happens.
    at: u64,
    /// A node that must not start yet.
    away: Option<usize>,
    versions: usize,
    settled: usize,
}

/// Runs everything that a seed determines.
pub(super) fn run(setup: &Setup, seed: u64, ignores_damage: bool) -> Ended {
    let mut world = World::new(setup, seed);
    world.ignores_damage = ignores_damage;
    world.passing_errors.store(seed.is_multiple_of(2), Relaxed);
    let mut clients = Clients::new(&mut world, 4, 2, 8, seed);
    let data = clients.first_data(&world);
    world.create(&data);
    let faults = [Fault::Crash, Fault::PowerLoss, Fault::Away, Fault::Crash, Fault::Cut, Fault::Crash, Fault::Damage];
    let fault = if ignores_damage { Fault::Damage } else { faults[(seed % faults.len() as u64) as usize] };
    let nodes = world.nodes.len() as u64;
    let victim = world.random.up_to(nodes) as usize;
    let other = (victim + 1 + world.random.up_to(nodes - 1) as usize) % nodes as usize;
    let at = 50 + world.random.up_to(1200);
    let mut run = Run { world, clients, fault, victim, other, at, away: None, versions: 0, settled: 0 };
    run.arm();
    run.work();
    run.settle();
    if run.world.wrong.is_none()
        && let Err(wrong) = run.check()
    {
        run.world.fail(wrong);
    }
    let Run { world, clients, versions, settled, .. } = run;
    Ended {
        crashes: world.crashes,
        committed: clients.committed,
        aborted: clients.aborted,
        served: clients.served,
        served_together: clients.served_together,
        unknown: clients.unknown,
        sealed: world.sealed,
        versions,
        arrived: world.arrived,
        opened: world.opened,
        settled,
        fill_max: world.fill_max,
        wrong: world.wrong,
    }
}

impl Run {
    fn arm(&mut self) {
        let calls = self.calls();
        let node = match self.fault {
            Fault::Crash | Fault::Away | Fault::Damage => self.victim,
            Fault::Cut => self.other,
            Fault::PowerLoss => return,
        };
        self.world.nodes[node].files.crash_after(calls);
        if matches!(self.fault, Fault::Away | Fault::Damage) {
            self.away = Some(self.victim);
        }
    }

    fn work(&mut self) {
        for step in 0..STEPS_MAX {
            if self.world.wrong.is_some() || (step > self.at + 300 && !self.clients.is_working() && self.world.net.is_empty()) {
                return;
            }
            self.world.now += 1;
            self.world.deliver_late();
            self.faults(step);
            self.one();
            self.clients.answers(&mut self.world);
            self.check_settled();
            if step % 4 == 0 {
                self.clients.step(&mut self.world, true);
            }
            if step % 20 == 19 {
                self.world.abandon_reads(2 * PATIENCE);
                (0..4).for_each(|_| self.check_version());
                self.world.check_states();
            }
        }
    }

    /// Something happens at one place.
    fn one(&mut self) {
        let world = &mut self.world;
        if !world.net.is_empty() && world.random.percent(80) {
            let at = world.random.up_to(world.net.len() as u64) as usize;
            world.deliver(at);
        }
        let node = world.random.up_to(world.nodes.len() as u64) as usize;
        match world.random.up_to(100) {
            0..20 => world.call(node, |updater, now| updater.sync(now)),
            // What it has to send is sent before the next step.
            20..35 => world.call(node, |updater, now| updater.sync_step(now).map(drop)),
            35..41 => world.call(node, |updater, now| updater.tick(now)),
            41..44 => world.call(node, |updater, now| updater.apply(now)),
            44 => self.give_up(node),
            45..51 => world.remind(),
            _ => {}
        }
        let fill = self.world.nodes[node].disk.as_ref().map_or(0.0, |disk| disk.updater.fill());
        self.world.fill_max = self.world.fill_max.max(fill);
    }

    /// An update at a node takes too long.
    fn give_up(&mut self, node: usize) {
        let writers: Vec<_> = self.world.writers.keys().rev().take(6).copied().collect();
        if writers.is_empty() {
            return;
        }
        let id = *self.world.random.at(&writers);
        let blocks: Vec<_> = self.world.nodes[node].disk.iter().flat_map(|disk| disk.updater.blocks()).collect();
        for block in blocks {
            self.world.call(node, |updater, now| updater.give_up(block, id, now));
        }
    }

    fn faults(&mut self, step: u64) {
        if step == self.at {
            match self.fault {
                Fault::PowerLoss => (0..self.world.nodes.len()).for_each(|node| {
                    if self.world.nodes[node].disk.is_some() {
                        self.world.crashed(node);
                    }
                }),
                Fault::Crash => {
                    let calls = self.calls();
                    self.world.nodes[self.other].files.crash_after(calls);
                }
                Fault::Cut => self.world.nodes[self.victim].is_cut = true,
                Fault::Away | Fault::Damage => {}
            }
        }
        let is_down = self.world.nodes[self.victim].disk.is_none();
        if step >= self.at + 100 && self.fault == Fault::Cut || step >= self.at && is_down && self.fault == Fault::Away {
            self.world.give_up_on(self.victim);
        }
        if self.world.nodes[self.victim].is_lost {
            self.world.give_up_on(self.victim);
        }
        if step >= self.at + 250 && self.fault == Fault::Cut {
            self.world.nodes[self.victim].has_lease = false;
        }
        let ends_at = self.at + 700;
        if step == ends_at {
            (self.away, self.world.nodes[self.victim].is_cut) = (None, false);
        }
        if self.fault == Fault::Damage && is_down && self.away.is_some() {
            self.world.damage(self.victim);
            self.away = None;
        }
        for node in 0..self.world.nodes.len() {
            let it = &self.world.nodes[node];
            if it.disk.is_none() && !it.is_lost && it.starts_at <= self.world.now && self.away != Some(node) {
                self.world.start(node);
                if self.world.nodes[node].disk.is_some() && self.world.random.percent(30) {
                    let calls = self.calls();
                    self.world.nodes[node].files.crash_after(calls);
                }
            }
        }
    }

    /// How many calls of its file system a node still makes before it loses power: often few, to meet what happens first.
    fn calls(&mut self) -> u64 {
        let most = if self.world.random.percent(30) { 8 } else { 250 };
        self.world.random.up_to(most)
    }

    /// No further faults: everything comes to an end.
    fn settle(&mut self) {
        self.world.faults = (0, 0, 0);
        self.world.passing_errors.store(false, Relaxed);
        self.away = None;
        for node in 0..self.world.nodes.len() {
            self.world.nodes[node].is_cut = false;
            self.world.nodes[node].files.crash_after(u64::MAX / 2);
            if self.world.is_absent(node) {
                self.world.nodes[node].has_lease = false;
            }
        }
        let (mut quiet, mut left) = (0, Vec::new());
        for round in 0..ROUNDS_MAX {
            if self.world.wrong.is_some() {
                return;
            }
            self.world.now += PATIENCE;
            self.world.deliver_late();
            self.restart_all();
            if round == 20 {
                self.clients.stop();
            }
            self.world.ends = !self.clients.is_busy();
            self.clients.step(&mut self.world, false);
            self.world.abandon_reads(PATIENCE);
            let mut was_quiet = !self.clients.is_busy();
            self.deliver_all();
            for node in 0..self.world.nodes.len() {
                self.world.call(node, |updater, now| updater.tick(now));
                self.world.call(node, |updater, now| updater.apply(now));
                self.world.call(node, |updater, now| updater.sync(now));
            }
            was_quiet &= self.world.net.is_empty();
            left = self.world.net.iter().take(4).map(|envelope| format!("{envelope:.500?}")).collect();
            self.world.tell_fenced();
            self.world.remind();
            was_quiet &= self.world.net.is_empty() && self.world.rows.iter().all(|row| row.is_closed());
            self.deliver_all();
            self.check_settled();
            self.world.check_states();
            quiet = if was_quiet { quiet + 1 } else { 0 };
            if quiet == 2 {
                return;
            }
        }
        let phases: Vec<_> = self.world.rows.iter().map(|row| row.phase).collect();
        self.world.wrong.get_or_insert(format!("it does not come to an end: {phases:?} {left:#?}"));
    }

    fn restart_all(&mut self) {
        for node in 0..self.world.nodes.len() {
            while self.world.nodes[node].disk.is_none() && !self.world.nodes[node].is_lost && self.world.wrong.is_none() {
                self.world.start(node);
            }
            self.world.nodes[node].files.crash_after(u64::MAX / 2);
            if self.world.nodes[node].is_lost {
                self.world.give_up_on(node);
            }
        }
    }

    fn deliver_all(&mut self) {
        let mut left = 5000;
        while !self.world.net.is_empty() && left > 0 {
            self.world.deliver(0);
            if self.world.net.is_empty() {
                (0..self.world.nodes.len()).for_each(|node| self.world.call(node, |updater, now| updater.sync(now)));
            }
            left -= 1;
        }
        self.clients.answers(&mut self.world);
    }

    /// A vector: what the blocks serve there belongs together, whatever their pages contain.
    fn check_version(&mut self) {
        let k = self.world.shape.k as u8;
        let world = &mut self.world;
        let stripe = world.random.up_to(world.rows.len() as u64);
        let row = &world.rows[stripe as usize];
        let (members, Some(term)) = (row.members.clone(), row.term()) else { return };
        let mut vector = Vector::new();
        for stream in 0..k {
            // A number near what one of the blocks contains.
            let asked = *world.random.at(&members);
            let asked = if asked.index < k { block(stripe, stream) } else { asked };
            let Some(disk) = &world.nodes[world.home(asked)].disk else { return };
            let Ok(reader) = disk.store.open(asked) else { return };
            let applied = reader.meta().seq.counts().get(usize::from(stream)).copied().unwrap_or(0);
            vector.insert(stream, applied + world.random.up_to(3));
        }
        let mut blocks = BTreeMap::new();
        for member in members {
            let len = world.shape.block_len(member.index.into());
            let Some(disk) = &world.nodes[world.home(member)].disk else { continue };
            if disk.updater.open_block_of(member).is_none_or(|open| open.term != term) {
                continue;
            }
            if let Ok(content) = disk.updater.read_at(member, Span::new(0, len), &vector) {
                let mut bytes = content.bytes;
                bytes.resize(world.shape.layout.block_len as usize, 0);
                blocks.insert(member.index, bytes);
            }
        }
        let data: Vec<Vec<u8>> = (0..k).filter_map(|index| blocks.get(&index).cloned()).collect();
        if data.len() < usize::from(k) || blocks.len() == usize::from(k) {
            return;
        }
        self.versions += 1;
        let expected = code::encode(&*world.code, world.shape.layout, &data);
        if let Some((index, _)) = blocks.iter().find(|(index, bytes)| expected[usize::from(**index)] != **bytes) {
            world.fail(format!("at the vector {vector:?}, block {index} of stripe {stripe} does not belong to the data"));
        }
    }

    /// What the blocks of stripes contain that were settled just now, as others read them: all of them belong together, and have the
    /// checksums that they said. To clients this is a read.
    fn check_settled(&mut self) {
        for (stripe, units) in std::mem::take(&mut self.world.settled) {
            self.settled += 1;
            if let Err(wrong) = self.check_plain(stripe, Some(&units)) {
                self.world.fail(wrong);
            }
        }
    }

    fn check_plain(&mut self, stripe: u64, units: Option<&BTreeMap<BlockId, Vec<u32>>>) -> Result<(), String> {
        let Some(data) = self.contents(stripe, units)? else { return Ok(()) };
        let mut values = Vec::new();
        for (index, bytes) in (0..).zip(&data) {
            values.extend(self.clients.values(stripe, &self.clients.segments_of(stripe, index), 0, bytes)?);
        }
        let now = self.world.now;
        let register = &mut self.clients.stripes[stripe as usize];
        register.history.push(Operation { begin: now, end: Some(now), what: What::Read(values) });
        Ok(())
    }

    /// What the stripes contain in the end.
    fn check(&mut self) -> Result<(), String> {
        for stripe in 0..self.world.rows.len() as u64 {
            self.world.now += 1;
            self.check_plain(stripe, None)?;
            let register = &self.clients.stripes[stripe as usize];
            linear::check(register.segments.len(), &register.history).map_err(|stuck| format!("stripe {stripe}: {stuck}"))?;
        }
        let members: BTreeSet<_> = self.world.rows.iter().flat_map(|row| row.members.clone()).collect();
        for (at, node) in self.world.nodes.iter_mut().enumerate() {
            let Some(disk) = &mut node.disk else { continue };
            // Fenced blocks are removed.
            let fenced: Vec<_> = disk.updater.blocks().filter(|block| !members.contains(block)).collect();
            fenced.into_iter().for_each(|block| disk.updater.forget(block));
            disk.updater.sync(self.world.now).map_err(|error| error.to_string())?;
            let (bytes, fill, open) = (disk.updater.inflight_bytes(), disk.updater.fill(), disk.updater.open_blocks().count());
            if bytes > 0 || fill > 0.0 || open > 0 {
                return Err(format!(
                    "node {at} has {open} open blocks and keeps {bytes} bytes of updates that have ended, its journal is {fill:.2} full"
                ));
            }
        }
        Ok(())
    }

    /// Each block without which the other blocks decode to data that clients wrote.
    fn odd_blocks(&self, stripe: u64, blocks: &BTreeMap<u8, Vec<u8>>) -> Vec<u8> {
        let is_odd = |odd: &u8| {
            let others = blocks.iter().filter(|(index, _)| *index != odd).map(|(index, bytes)| (*index, bytes.clone())).collect();
            code::decode(&*self.world.code, self.world.shape.layout, &others).is_some_and(|data| {
                (0..)
                    .zip(&data)
                    .all(|(index, bytes)| self.clients.values(stripe, &self.clients.segments_of(stripe, index), 0, bytes).is_ok())
            })
        };
        blocks.keys().copied().filter(is_odd).collect()
    }

    /// The data of a stripe, by what its blocks contain. All of them belong together, and any that suffice give the same data. `None` if
    /// too many nodes are down.
    fn contents(&mut self, stripe: u64, said: Option<&BTreeMap<BlockId, Vec<u32>>>) -> Result<Option<Vec<Vec<u8>>>, String> {
        let layout = self.world.shape.layout;
        let mut blocks = BTreeMap::new();
        let mut counts = Vec::new();
        for member in self.world.rows[stripe as usize].members.clone() {
            if member != block(stripe, member.index) {
                return Err(format!("{member} is no block of stripe {stripe}"));
            }
            let Some(disk) = &self.world.nodes[self.world.home(member)].disk else { continue };
            let reader = disk.store.open(member).map_err(|error| error.to_string())?;
            let mut bytes = vec![0; reader.meta().len() as usize];
            reader.read_at(0, &mut bytes).map_err(|error| error.to_string())?;
            let units: Vec<u32> = bytes.chunks(CHECKSUM_UNIT_LEN as usize).map(crc32c).collect();
            if reader.meta().seq != self.world.rows[stripe as usize].seq {
                return Err(format!("{member} contains {:?}", reader.meta().seq));
            }
            if units != reader.units() || said.is_some_and(|said| said[&member] != units) {
                return Err(format!("the checksums of {member} are wrong"));
            }
            bytes.resize(layout.block_len as usize, 0);
            blocks.insert(member.index, bytes);
            counts.push((member.index, reader.meta().seq.counts().to_vec()));
        }
        let code = self.world.code.clone();
        let Some(data) = code::decode(&*code, layout, &blocks) else { return Ok(None) };
        let all = code::encode(&*code, layout, &data);
        if let Some((index, _)) = blocks.iter().find(|(index, bytes)| all[usize::from(**index)] != **bytes) {
            let odd = self.odd_blocks(stripe, &blocks);
            return Err(format!(
                "block {index} of stripe {stripe} does not belong to the others: a mixed stripe; they contain the updates {counts:?}; \
                 without any one of {odd:?}, the others decode to data that clients wrote"
            ));
        }
        for _ in 0..2 {
            let mut left = blocks.clone();
            let lost: BTreeSet<u8> =
                (0..code.m()).map(|_| *self.world.random.at(&blocks.keys().copied().collect::<Vec<_>>())).collect();
            left.retain(|index, _| !lost.contains(index));
            if code::decode(&*code, layout, &left).is_some_and(|other| other != data) {
                return Err(format!("stripe {stripe} without blocks {lost:?} has other data"));
            }
        }
        Ok(Some(data))
    }
}
