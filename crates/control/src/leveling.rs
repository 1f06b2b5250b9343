//! Even fill: which blocks move from fuller disks to emptier ones, for example after nodes were added.
//!
//! Each disk should have the same share of its capacity full of blocks. No more bytes move than the fuller disks have too much. A block moves
//! only where its stripe has no other, and into a rack that then has no more of the stripe than its code tolerates to lose, or than its fullest rack had
//! before.

use crate::{
    health::BadBlocks,
    view::{DiskView, View},
};
use std::collections::{BTreeMap, BTreeSet};
use weft_plan::Network;
use weft_types::{BlockState, Home, NodeId, Owner, Party, StripeId, StripeRecord};

/// A disk may deviate by this part of what it should have.
const TOLERANCE: u64 = 100;

/// The most stripes of which blocks are moved by one plan; others follow with the next.
const STRIPES_MAX: usize = 1 << 18;

/// Bytes of blocks on each disk, by the metadata.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stored {
    bytes: BTreeMap<Home, u64>,
    /// What will be free, too: of blocks that are not needed any more, as of those that were just moved.
    garbage: BTreeMap<Home, u64>,
    /// The longest block.
    longest: u64,
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

/// How many blocks of a stripe may be lost, by the numbers of its data and parity blocks; the least of several codes.
pub type Tolerances = BTreeMap<(u32, u32), usize>;

/// Chooses moves, given one stripe after the other.
#[derive(Debug)]
pub struct Leveling {
    levels: Vec<Level>,
    /// What each disk still has too much, or can take.
    excess: BTreeMap<Home, u64>,
    room: BTreeMap<Home, u64>,
    racks: BTreeMap<NodeId, u32>,
    tolerances: Tolerances,
    moves: Vec<Moves>,
    moved_bytes: u64,
}

impl Stored {
    /// Counts the blocks of a stripe.
    pub fn add(&mut self, stripe: &StripeRecord) {
        for (index, placed) in stripe.all().filter(|(_, placed)| placed.state != BlockState::Missing) {
            let len = stripe.layout.block_len(index.into());
            let bytes = self.bytes.entry(placed.home).or_default();
            *bytes = bytes.saturating_add(len);
            self.longest = self.longest.max(len);
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
        let (mut excess, mut room) = (BTreeMap::new(), BTreeMap::new());
        if levels.iter().any(|level| level.is_uneven(stored.longest)) {
            for level in &levels {
                let (more, less) =
                    (level.bytes.saturating_sub(level.target_bytes), level.target_bytes.saturating_sub(level.bytes));
                if more > 0 {
                    excess.insert(level.home, more);
                }
                if less > 0 {
                    room.insert(level.home, less);
                }
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
        self.excess.is_empty() || self.room.is_empty() || self.is_cut()
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
            let Some(too_much) = self.excess.get(&from).copied().filter(|excess| bytes > 0 && *excess >= bytes.div_ceil(2))
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
            let best = self.room.iter().filter(|(home, room)| fits(**room) && may_take(home)).max_by_key(|(_, room)| **room);
            let Some((to, room)) = best.map(|(home, room)| (*home, *room)) else { continue };
            // Until the move is committed, the old block keeps its node from getting another one.
            nodes.insert(to.node);
            if let Some(there) = in_racks.get_mut(&rack_of_source) {
                *there -= 1;
            }
            *in_racks.entry(self.rack(to.node)).or_default() += 1;
            lower(&mut self.excess, from, too_much, bytes);
            lower(&mut self.room, to, room, bytes);
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
        let left = |of: &BTreeMap<Home, u64>| of.get(&level.home).copied().unwrap_or(0);
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

    /// What each node sends and receives, bytes.
    pub fn traffic(&self) -> BTreeMap<NodeId, (u64, u64)> {
        let mut traffic: BTreeMap<NodeId, (u64, u64)> = BTreeMap::new();
        for moved in self.moves.iter().flat_map(|moves| &moves.blocks).filter(|moved| moved.from.node != moved.to.node) {
            let sent = &mut traffic.entry(moved.from.node).or_default().0;
            *sent = sent.saturating_add(moved.bytes);
            let received = &mut traffic.entry(moved.to.node).or_default().1;
            *received = received.saturating_add(moved.bytes);
        }
        traffic
    }

    /// How long the busiest link needs for the moves, in seconds.
    pub fn least_seconds(&self, network: &Network) -> f64 {
        let seconds = |(node, (up, down)): (NodeId, (u64, u64))| {
            let party = Party::Node(node);
            (up as f64 / network.up(party)).max(down as f64 / network.down(party))
        };
        self.traffic().into_iter().map(seconds).fold(0.0, f64::max)
    }
}

/// Subtracts bytes; what is left of less than nothing is forgotten.
fn lower(of: &mut BTreeMap<Home, u64>, home: Home, had: u64, bytes: u64) {
    match had.checked_sub(bytes).filter(|left| *left > 0) {
        Some(left) => of.insert(home, left),
        None => of.remove(&home),
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{BLOCK_LEN, home, stripe, view};
    use proptest::prelude::*;
    use rand::{SeedableRng, rngs::StdRng, seq::index};

    /// Stripes of six blocks on random nodes of the first `nodes`.
    fn stripes(count: u64, nodes: u32, seed: u64) -> Vec<StripeRecord> {
        let mut rng = StdRng::seed_from_u64(seed);
        let one = |id| {
            let mut it = stripe();
            it.id = StripeId(id);
            let chosen = index::sample(&mut rng, nodes as usize, 6);
            it.blocks.values_mut().zip(chosen.iter()).for_each(|(placed, node)| placed.home = home(node as u32 + 1));
            it
        };
        (1..=count).map(one).collect()
    }

    fn stored(stripes: &[StripeRecord]) -> Stored {
        let mut stored = Stored::default();
        stripes.iter().for_each(|stripe| stored.add(stripe));
        stored
    }

    fn planned(stripes: &[StripeRecord], view: &View) -> Leveling {
        let mut leveling = Leveling::new(&stored(stripes), Tolerances::from([((4, 2), 2)]), view);
        stripes.iter().for_each(|stripe| leveling.stripe(stripe, view));
        leveling
    }

    /// Carries the moves out.
    fn moved(stripes: &mut [StripeRecord], moves: &[Moves]) {
        for moves in moves {
            let stripe = stripes.iter_mut().find(|stripe| stripe.id == moves.stripe).unwrap();
            for it in &moves.blocks {
                let placed = stripe.find_mut(it.index, it.copy).unwrap();
                assert_eq!(placed.home, it.from);
                placed.home = it.to;
            }
            let nodes: BTreeSet<NodeId> = stripe.all().map(|(_, placed)| placed.home.node).collect();
            assert_eq!(nodes.len(), stripe.all().count(), "no two blocks of a stripe on one node");
        }
    }

    fn deviation(stripes: &[StripeRecord], view: &View) -> f64 {
        let levels = stored(stripes).levels(view);
        let of = |level: &Level| level.bytes.abs_diff(level.target_bytes) as f64 / level.target_bytes as f64;
        levels.iter().map(of).fold(0.0, f64::max)
    }

    #[test]
    fn nodes_that_join_empty_take_their_share_and_no_byte_moves_in_vain() {
        let (mut all, view) = (stripes(2_000, 13, 1), view(16, &[]));
        let before = deviation(&all, &view);
        let leveling = planned(&all, &view);
        let ((blocks, bytes), least) = (leveling.amount(), leveling.least_bytes());
        assert_eq!(blocks * BLOCK_LEN, bytes);
        let traffic = leveling.traffic();
        assert_eq!(traffic.values().map(|(up, _)| up).sum::<u64>(), bytes);
        assert!((14..=16).all(|node| traffic[&NodeId(node)].0 == 0), "new ones only receive");
        let seconds = leveling.least_seconds(&Network::uniform(BLOCK_LEN as f64));
        assert!((seconds - (blocks as f64 / 3.0)).abs() < 0.02 * seconds, "three downlinks: {seconds} s for {blocks} blocks");
        moved(&mut all, &leveling.into_moves());
        let after = deviation(&all, &view);
        println!("moved {:.3} x the least; deviation {before:.3} before, {after:.4} after", bytes as f64 / least as f64);
        assert!(before > 0.9 && after <= 0.02, "{before} {after}");
        assert!(bytes as f64 <= 1.05 * least as f64);
        assert!(planned(&all, &view).is_over(), "it is even");
    }

    #[test]
    fn larger_disks_get_more_and_shared_ones_less() {
        let mut all = stripes(1_200, 12, 2);
        let mut uneven = view(13, &[]);
        uneven.nodes.get_mut(&NodeId(13)).unwrap().disks[0].free_bytes *= 2;
        let moves = planned(&all, &uneven).into_moves();
        moved(&mut all, &moves);
        assert!(deviation(&all, &uneven) <= 0.02);
        let bytes = |node| stored(&all).bytes[&home(node)] as f64;
        assert!((bytes(13) / bytes(1) - 2.0).abs() < 0.1, "{} {}", bytes(13), bytes(1));
        // All on one file system: each node its share of the blocks.
        let mut shared = view(9, &[]);
        shared.nodes.values_mut().for_each(|node| node.disks[0].file_system = 7);
        let mut all = stripes(600, 8, 3);
        let moves = planned(&all, &shared).into_moves();
        moved(&mut all, &moves);
        assert!(deviation(&all, &shared) <= 0.02);
        let levels = stored(&all).levels(&shared);
        assert!(levels.iter().all(|level| level.capacity_bytes == levels[0].capacity_bytes));
    }

    #[test]
    fn what_is_drained_down_or_not_whole_takes_no_part() {
        let mut view = view(10, &[7]);
        view.nodes.get_mut(&NodeId(10)).unwrap().disks[0].draining = true;
        let mut all = stripes(400, 7, 4);
        all[0].incomplete = true;
        all[1].find_mut(0, 0).unwrap().state = BlockState::Corrupt;
        let leveling = planned(&all, &view);
        let lacks = |stripe: u64| all[stripe as usize - 1].all().any(|(_, placed)| placed.home.node == NodeId(7));
        assert!(leveling.moves.iter().all(|moves| !lacks(moves.stripe.0)), "what lacks a block is not moved");
        assert!(leveling.levels().iter().all(|level| ![7, 10].contains(&level.home.node.0)));
        let moves = leveling.into_moves();
        let blocks = || moves.iter().flat_map(|moves| &moves.blocks);
        assert!(!moves.is_empty() && blocks().all(|it| [8, 9].contains(&it.to.node.0) && it.from.node != NodeId(7)));
        assert!(moves.iter().all(|moves| moves.stripe.0 > 2));
    }

    #[test]
    fn a_new_disk_of_a_node_gets_its_share() {
        let mut view = view(16, &[]);
        let disks = &mut view.nodes.get_mut(&NodeId(3)).unwrap().disks;
        disks.push(DiskView { number: weft_types::DiskNumber(30), ..disks[0].clone() });
        let mut all = stripes(800, 16, 6);
        let moves = planned(&all, &view).into_moves();
        moved(&mut all, &moves);
        assert!(deviation(&all, &view) <= 0.02, "{}", deviation(&all, &view));
        let new = Home { node: NodeId(3), disk: weft_types::DiskNumber(30) };
        assert!(moves.iter().flat_map(|moves| &moves.blocks).filter(|it| it.to == new).count() > 200);
    }

    #[test]
    fn what_was_moved_and_is_not_removed_yet_moves_nothing_more() {
        let (mut all, mut view) = (stripes(300, 13, 8), view(16, &[]));
        for node in view.nodes.values_mut() {
            node.disks[0].free_bytes = 40 * BLOCK_LEN;
        }
        let moves = planned(&all, &view).into_moves();
        let mut after = Stored::default();
        for it in moves.iter().flat_map(|moves| &moves.blocks) {
            after.add_garbage(it.from, it.bytes);
            view.nodes.get_mut(&it.to.node).unwrap().disks[0].free_bytes -= it.bytes;
        }
        moved(&mut all, &moves);
        let again = |after: &Stored| {
            let mut leveling = Leveling::new(after, Tolerances::from([((4, 2), 2)]), &view);
            all.iter().for_each(|stripe| leveling.stripe(stripe, &view));
            leveling.amount().0
        };
        assert!(again(&stored(&all)) > 0, "the disks that have sent blocks look smaller");
        all.iter().for_each(|stripe| after.add(stripe));
        assert_eq!(again(&after), 0);
    }

    #[test]
    fn a_stripe_on_all_nodes_cannot_move() {
        let mut all = stripes(100, 6, 5);
        for stripe in &mut all[..50] {
            stripe.layout.data_len = 1;
        }
        let mut view = view(6, &[]);
        view.nodes.get_mut(&NodeId(1)).unwrap().disks[0].free_bytes = 0;
        let leveling = planned(&all, &view);
        assert!(leveling.least_bytes() > 0 && leveling.amount() == (0, 0));
    }

    proptest! {
        #[test]
        fn racks_get_no_fuller_and_fills_more_even(seed in any::<u64>(), racks in 1u32..6, joined in 0u32..4) {
            let nodes = 10;
            let mut view = view(nodes + joined, &[]);
            view.nodes.values_mut().for_each(|node| node.rack = format!("r{}", node.id.0 % racks).into());
            let mut all = stripes(300, nodes, seed);
            let most = |stripe: &StripeRecord| {
                let mut in_racks: BTreeMap<u32, usize> = BTreeMap::new();
                stripe.all().for_each(|(_, placed)| *in_racks.entry(placed.home.node.0 % racks).or_default() += 1);
                in_racks.into_values().max().unwrap()
            };
            let before: Vec<usize> = all.iter().map(most).collect();
            let uneven = deviation(&all, &view);
            let leveling = planned(&all, &view);
            prop_assert!(leveling.amount().1 <= leveling.least_bytes() + BLOCK_LEN * u64::from(nodes + joined));
            moved(&mut all, &leveling.into_moves());
            for (stripe, before) in all.iter().zip(before) {
                prop_assert!(most(stripe) <= before.max(2));
            }
            prop_assert!(deviation(&all, &view) <= uneven);
        }
    }
}
