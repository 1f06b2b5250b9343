//! Even fill: which blocks move from fuller disks to emptier ones, for example after nodes were added.
//!
//! Each disk should have the same share of its capacity full of blocks. No more bytes move than the fuller disks have too much. A block moves
//! only where its stripe has no other, and into a rack that then has no more of the stripe than its code tolerates to lose, or than its fullest rack had
//! before.

use crate::{
    health::BadBlocks,
    schedule::{Line, Load, Place},
    view::{DiskView, View},
};
use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};
use weft_plan::Network;
use weft_types::{Amount, BlockState, Home, NodeId, Owner, Party, StripeId, StripeRecord};

/// A disk may deviate by this part of what it should have.
const TOLERANCE: u64 = 100;

/// The most stripes of which blocks are moved by one plan; others follow with the next.
const STRIPES_MAX: usize = 1 << 18;

/// The most sums of moves that are shown: 100 rows can still be read.
const SUMS_MAX: usize = 100;

/// Bytes of blocks on each disk, by the metadata.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    bytes: BTreeMap<Home, u64>,
    /// What will be free, too: of blocks that are not needed any more, as of those that were just moved.
    garbage: BTreeMap<Home, u64>,
    /// The longest block, and the shortest one with bytes.
    longest: u64,
    shortest: u64,
}

/// A disk, and what it has and should have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Level {
    /// The disk.
    pub home: Home,
    /// What blocks can fill: what they do fill, garbage, and the free space. Disks on one file system share this evenly.
    pub capacity_bytes: u64,
    /// Bytes of blocks.
    pub bytes: u64,
    /// Bytes of blocks that it should have.
    pub target_bytes: u64,
}

/// Blocks of a stripe that move together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Moves {
    /// The stripe.
    pub stripe: StripeId,
    /// Its number in its object, from 0.
    pub number: u64,
    /// The blocks, each on another node.
    pub blocks: Vec<Move>,
}

/// A block that moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Move {
    /// Its index.
    pub index: u8,
    /// Its copy.
    pub copy: u8,
    /// Its length, bytes.
    pub bytes: u64,
    /// Where it is.
    pub from: Home,
    /// Where it goes.
    pub to: Home,
}

/// All moves from a disk to another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sum {
    /// Where the blocks are.
    pub from: Home,
    /// Where they go.
    pub to: Home,
    /// How many they are, and their bytes.
    pub amount: Amount,
}

/// How many blocks of a stripe may be lost, by the numbers of its data and parity blocks; the least of several codes.
pub type Tolerances = BTreeMap<(u32, u32), usize>;

/// Bytes of disks.
#[derive(Debug, Default)]
struct Bytes {
    /// Those for which a block can still be found.
    open: BTreeMap<Home, u64>,
    /// Rests that are too small for any block.
    rest: BTreeMap<Home, u64>,
    /// The least that a block needs.
    least: u64,
}

/// Chooses moves, given one stripe after the other.
#[derive(Debug)]
pub struct Leveling {
    levels: Vec<Level>,
    /// What each disk still has too much, or can take, if a block fits.
    excess: Bytes,
    room: Bytes,
    racks: BTreeMap<NodeId, u32>,
    tolerances: Tolerances,
    moves: Vec<Moves>,
    moved_bytes: u64,
}

impl Default for Stored {
    fn default() -> Self {
        Self { bytes: BTreeMap::new(), garbage: BTreeMap::new(), longest: 0, shortest: u64::MAX }
    }
}

impl Moves {
    /// The links that they take: each block is one stream from a node to another.
    pub fn lines(&self) -> Vec<Line> {
        let line = |home: Home, up, down| Line { at: Place::Node(home.node), up, down, disk: 0 };
        self.blocks.iter().flat_map(|it| [line(it.from, 1, 0), line(it.to, 0, 1)]).collect()
    }
}

impl Stored {
    /// Counts the blocks of a stripe.
    pub fn add(&mut self, stripe: &StripeRecord) {
        for (index, placed) in stripe.all().filter(|(_, placed)| placed.state != BlockState::Missing) {
            let len = stripe.layout.block_len(index.into());
            let bytes = self.bytes.entry(placed.home).or_default();
            *bytes = bytes.saturating_add(len);
            self.longest = self.longest.max(len);
            if len > 0 {
                self.shortest = self.shortest.min(len);
            }
        }
    }

    /// Counts bytes of a disk that are about to be free.
    pub fn add_garbage(&mut self, home: Home, bytes: u64) {
        let garbage = self.garbage.entry(home).or_default();
        *garbage = garbage.saturating_add(bytes);
    }

    /// The disks that can get blocks, each with what it has and should have.
    pub fn levels(&self, view: &View) -> Vec<Level> {
        let up = || view.nodes.values().filter(|node| node.up);
        let disks = || up().flat_map(|node| node.disks.iter().map(move |disk| (Home { node: node.id, disk: disk.number }, disk)));
        let of = |home: Home| self.bytes.get(&home).copied().unwrap_or(0);
        let garbage = |home: Home| self.garbage.get(&home).copied().unwrap_or(0);
        // All blocks on a file system, and the disks that share it.
        let mut shared: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
        for (home, disk) in disks().filter(|(_, disk)| disk.takes_blocks() && disk.file_system != 0) {
            let (bytes, sharers) = shared.entry(disk.file_system).or_default();
            (*bytes, *sharers) = (bytes.saturating_add(of(home)).saturating_add(garbage(home)), *sharers + 1);
        }
        let capacity = |home: Home, disk: &DiskView| {
            let (bytes, sharers) = shared.get(&disk.file_system).copied().unwrap_or((of(home).saturating_add(garbage(home)), 1));
            disk.free_bytes.saturating_add(bytes) / sharers.max(1)
        };
        let level = |(home, disk): (Home, &DiskView)| Level {
            home,
            capacity_bytes: capacity(home, disk),
            bytes: of(home),
            target_bytes: 0,
        };
        let mut levels: Vec<Level> = disks().filter(|(_, disk)| disk.takes_blocks()).map(level).collect();
        let sum = |of: fn(&Level) -> u64| levels.iter().map(|level| u128::from(of(level))).sum::<u128>();
        let (bytes, capacity) = (sum(|level| level.bytes), sum(|level| level.capacity_bytes).max(1));
        for level in &mut levels {
            let target = bytes * u128::from(level.capacity_bytes) / capacity;
            level.target_bytes = u64::try_from(target).unwrap_or(u64::MAX);
        }
        levels
    }
}

impl Level {
    /// The full share of its capacity, between 0 and 1.
    pub fn fill(&self) -> f64 {
        self.bytes as f64 / self.capacity_bytes.max(1) as f64
    }

    /// Whether it has or lacks more than a disk may.
    fn is_uneven(&self, longest: u64) -> bool {
        self.bytes.abs_diff(self.target_bytes) > (self.target_bytes / TOLERANCE).max(longest)
    }
}

impl Leveling {
    /// For these levels. Chooses nothing if all disks are about even.
    pub fn new(stored: &Stored, tolerances: Tolerances, view: &View) -> Self {
        let levels = stored.levels(view);
        let bytes = || Bytes { least: stored.shortest.div_ceil(2), ..Bytes::default() };
        let (mut excess, mut room) = (bytes(), bytes());
        if levels.iter().any(|level| level.is_uneven(stored.longest)) {
            for level in &levels {
                let (more, less) =
                    (level.bytes.saturating_sub(level.target_bytes), level.target_bytes.saturating_sub(level.bytes));
                excess.set(level.home, more);
                room.set(level.home, less);
            }
        }
        let mut names: BTreeMap<&str, u32> = BTreeMap::new();
        let mut racks = BTreeMap::new();
        for node in view.nodes.values() {
            let next = names.len() as u32;
            racks.insert(node.id, *names.entry(&node.rack).or_insert(next));
        }
        Self { levels, excess, room, racks, tolerances, moves: Vec::new(), moved_bytes: 0 }
    }

    /// Whether there are more moves than one plan has.
    pub fn is_cut(&self) -> bool {
        self.moves.len() >= STRIPES_MAX
    }

    /// Whether further stripes matter.
    pub fn is_over(&self) -> bool {
        self.excess.open.is_empty() || self.room.open.is_empty() || self.is_cut()
    }

    /// Chooses which blocks of a stripe move, if any: none of a stripe that lacks a block, or with one that must leave its disk anyway.
    pub fn stripe(&mut self, stripe: &StripeRecord, view: &View) {
        if self.is_over() || !matches!(stripe.owner, Owner::Object(_)) || !BadBlocks::of(stripe, view).is_none() {
            return;
        }
        let mut nodes: BTreeSet<NodeId> = stripe.all().map(|(_, placed)| placed.home.node).collect();
        let mut in_racks: BTreeMap<u32, usize> = BTreeMap::new();
        nodes.iter().for_each(|node| *in_racks.entry(self.rack(*node)).or_default() += 1);
        let tolerance = self.tolerances.get(&(stripe.layout.k, stripe.layout.m)).copied().unwrap_or(0);
        let most = in_racks.values().copied().max().unwrap_or(0).max(tolerance);
        let mut blocks = Vec::new();
        for (index, placed) in stripe.all() {
            let (from, bytes) = (placed.home, stripe.layout.block_len(index.into()));
            let Some(too_much) = self.excess.open.get(&from).copied().filter(|excess| bytes > 0 && *excess >= bytes.div_ceil(2))
            else {
                continue;
            };
            let rack_of_source = self.rack(from.node);
            let may_take = |home: &Home| {
                let rack = self.rack(home.node);
                let there = in_racks.get(&rack).copied().unwrap_or(0) - usize::from(rack == rack_of_source);
                let is_free = home.node == from.node && home.disk != from.disk || !nodes.contains(&home.node);
                is_free && there < most
            };
            let fits = |room: u64| room >= bytes.div_ceil(2);
            let best = self.room.open.iter().filter(|(home, room)| fits(**room) && may_take(home)).max_by_key(|(_, room)| **room);
            let Some((to, room)) = best.map(|(home, room)| (*home, *room)) else { continue };
            // Until the move is committed, the old block keeps its node from getting another one.
            nodes.insert(to.node);
            if let Some(there) = in_racks.get_mut(&rack_of_source) {
                *there -= 1;
            }
            *in_racks.entry(self.rack(to.node)).or_default() += 1;
            self.excess.set(from, too_much.saturating_sub(bytes));
            self.room.set(to, room.saturating_sub(bytes));
            self.moved_bytes = self.moved_bytes.saturating_add(bytes);
            blocks.push(Move { index, copy: placed.copy, bytes, from, to });
        }
        if !blocks.is_empty() {
            self.moves.push(Moves { stripe: stripe.id, number: stripe.number, blocks });
        }
    }

    fn rack(&self, node: NodeId) -> u32 {
        self.racks.get(&node).copied().unwrap_or(u32::MAX)
    }

    /// The disks before the moves.
    pub fn levels(&self) -> &[Level] {
        &self.levels
    }

    /// What a disk has after the moves, bytes.
    pub fn after(&self, level: &Level) -> u64 {
        let left = |of: &Bytes| of.open.get(&level.home).or(of.rest.get(&level.home)).copied().unwrap_or(0);
        let (target, is_planned) = (level.target_bytes, !self.moves.is_empty());
        match level.bytes > target {
            _ if !is_planned => level.bytes,
            true => target.saturating_add(left(&self.excess)),
            false => target.saturating_sub(left(&self.room)),
        }
    }

    /// The chosen moves.
    pub fn into_moves(self) -> Vec<Moves> {
        self.moves
    }

    /// How many blocks move, and their bytes.
    pub fn amount(&self) -> (u64, u64) {
        (self.moves.iter().map(|moves| moves.blocks.len() as u64).sum(), self.moved_bytes)
    }

    /// The least bytes that must move until all disks are even.
    pub fn least_bytes(&self) -> u64 {
        self.levels.iter().map(|level| level.bytes.saturating_sub(level.target_bytes)).sum()
    }

    /// What goes where: all moves from a disk to another one, most bytes first. Also returns how many such sums are left out, because there are
    /// too many.
    pub fn sums(&self) -> (Vec<Sum>, u64) {
        let mut sums: BTreeMap<(Home, Home), Amount> = BTreeMap::new();
        for it in self.moves.iter().flat_map(|moves| &moves.blocks) {
            sums.entry((it.from, it.to)).or_default().add(it.bytes);
        }
        let mut sums: Vec<Sum> = sums.into_iter().map(|((from, to), amount)| Sum { from, to, amount }).collect();
        // Equal ones stay in the order of the disks.
        sums.sort_by_key(|sum| Reverse(sum.amount.bytes));
        let further = sums.len().saturating_sub(SUMS_MAX) as u64;
        sums.truncate(SUMS_MAX);
        (sums, further)
    }

    /// What each node, and each rack, sends and receives for the moves, and what the nodes' disks carry for it.
    pub fn loads(&self, network: &Network) -> BTreeMap<Place, Load> {
        let mut loads: BTreeMap<Place, Load> = BTreeMap::new();
        for it in self.moves.iter().flat_map(|moves| &moves.blocks) {
            for node in [it.from.node, it.to.node] {
                let carried = &mut loads.entry(Place::Node(node)).or_default().disk;
                *carried = carried.saturating_add(it.bytes);
            }
            if it.from.node == it.to.node {
                continue;
            }
            let (leaves, enters) = network.crosses(Party::Node(it.from.node), Party::Node(it.to.node));
            let rack = |rack: &str| Place::Rack(rack.into());
            for place in [Place::Node(it.from.node)].into_iter().chain(leaves.map(rack)) {
                let sent = &mut loads.entry(place).or_default().up;
                *sent = sent.saturating_add(it.bytes);
            }
            for place in [Place::Node(it.to.node)].into_iter().chain(enters.map(rack)) {
                let received = &mut loads.entry(place).or_default().down;
                *received = received.saturating_add(it.bytes);
            }
        }
        loads
    }
}

impl Bytes {
    fn set(&mut self, home: Home, bytes: u64) {
        self.open.remove(&home);
        let of = if bytes > 0 && bytes >= self.least { &mut self.open } else { &mut self.rest };
        of.insert(home, bytes);
    }
}

#[cfg(test)]
mod tests;
