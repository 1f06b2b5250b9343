//! The schedule of a job: batch by batch, which scheme rebuilds each stripe's lost blocks, and which nodes help and receive
//! them.
//!
//! What nodes carry adds up over the batches, and the last one is not a small one, so that the whole job is balanced. A batch sees the
//! nodes and links as they are when it is scheduled: what failed or slowed down is planned around in the next one.

mod alone;
mod batch;
mod independent;
mod mix;

pub use batch::{batch_len, known_max};

use super::{
    Assigning, Assignment, Candidates, Edge, Line, Load, Parts, Place, Repair, Speeds, Transfer, baseline, lower_bound, parts,
    rounds,
};
use crate::{placement, reserve::Share, view::View};
use batch::above_least;
use independent::balanced;
use mix::{Carriers, Mixes, least_time, least_traffic};
use rand::RngCore;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};
use weft_codes::SharedCode;
use weft_plan::Network;
use weft_schemes::{AUTO, Kind, Patterns, answering};
use weft_types::{HelperSelect, NodeId, Party, Prefer};

/// The repairs of a batch for each node that is up.
pub const BLOCKS_PER_NODE: usize = 4;

/// Disks with room for so many blocks are preferred: a batch may bring a node several.
const ROOM_BLOCKS: u64 = BLOCKS_PER_NODE as u64;

/// The most parts that are kept; each is for a code, a scheme, and the blocks that are there.
const PARTS_MAX: usize = 4_096;

/// Schemes whose bounds differ by at most this factor count as equal: then the one that rebuilds a block faster is taken.
const ALIKE: f64 = 1.02;

/// The rebuild of a stripe's lost blocks, and what of it is open.
#[derive(Debug, Clone)]
pub struct Open {
    /// The code, of the stripe's number of data blocks.
    pub code: SharedCode,
    /// The lost blocks: different ones.
    pub lost: Vec<u8>,
    /// The bytes of a lost block, at most.
    pub block_len: u64,
    /// The blocks that can help, by index, and their nodes.
    pub available: Vec<(u8, NodeId)>,
    /// The lost blocks and their nodes, if they are not lost but leave: they can be copied from there. Otherwise none.
    pub copies: Vec<(u8, NodeId)>,
    /// The nodes that hold blocks of the stripe that stay.
    pub held: Vec<NodeId>,
    /// Further nodes that must not get a lost block.
    pub never: BTreeSet<NodeId>,
    /// The blocks of the stripe that a rack may hold; `None`: racks do not matter.
    pub rack_max: Option<usize>,
    /// Whether an operator named the remaining nodes: all of them then count as trusted, including suspect ones.
    pub named: bool,
    /// Whether nodes send whole blocks, and not slice by slice.
    pub in_blocks: bool,
    /// Bytes that must stay free on a disk besides the block.
    pub reserve_bytes: u64,
}

/// What a schedule decides for the rebuild of a stripe's lost blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scheduled {
    /// The scheme.
    pub scheme: String,
    /// The nodes that help, in the order of their places; further ones only if these cannot.
    pub helpers: Vec<NodeId>,
    /// The nodes that get the blocks, in the order of the lost blocks.
    pub homes: Vec<NodeId>,
    /// The time that it needs of each link and of disks, in bytes that the fastest link of a node carries in it.
    pub lines: Vec<Line>,
    /// Of whole blocks: the round of its first transfer in its batch; 0 if it moves in slices.
    pub round: u32,
}

/// The cluster as a batch sees it.
#[derive(Debug, Clone, Copy)]
pub struct Cluster<'a> {
    /// The nodes.
    pub view: &'a View,
    /// What their links and disks can carry.
    pub network: &'a Network,
    /// The cache of recipes.
    pub patterns: &'a Patterns,
}

/// A schedule as a whole.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Summary {
    /// What each node sends, receives, reads and writes; and each rack, if a rack's links are limited.
    pub loads: BTreeMap<Place, Load>,
    /// The time of the busiest link or disks, in bytes that the fastest link of a node carries in it.
    pub busiest: u64,
    /// What no assignment of the same repairs can undercut, in the same unit.
    pub bound: u64,
}

type PartsKey = (String, usize, &'static str, Vec<u8>, Vec<u8>);

/// Makes the schedule of a job.
#[derive(Debug)]
pub struct Scheduler {
    assigning: Assigning,
    prefer: Prefer,
    /// The scheme's name, or `auto`.
    scheme: String,
    carried: BTreeMap<Place, Load>,
    stamps: baseline::Stamps,
    known: BTreeMap<PartsKey, Option<Arc<Parts>>>,
    /// The repairs of all batches and the time of the busiest link, if a summary is wanted.
    told: Option<Vec<(Repair, Vec<NodeId>)>>,
}

/// The nodes of a batch, by number.
struct Nodes {
    ids: Vec<NodeId>,
    facts: Vec<Facts>,
    racks: Vec<Arc<str>>,
    speeds: Speeds,
}

struct Facts {
    up: bool,
    suspect: bool,
    free_bytes: u64,
    rack: u32,
}

/// A repair by one scheme.
#[derive(Debug, Clone)]
struct Candidate {
    scheme: &'static str,
    parts: Arc<Parts>,
    scale: u64,
    /// The nodes from which it copies, if it is no rebuild.
    from: Vec<u32>,
}

impl Scheduler {
    /// For a job that selects nodes in this way. `scheme`: its name, or `auto`.
    pub fn new(select: HelperSelect, prefer: Prefer, scheme: &str) -> Self {
        Self {
            assigning: Assigning::of(select),
            prefer,
            scheme: scheme.to_owned(),
            carried: BTreeMap::new(),
            stamps: baseline::Stamps::default(),
            known: BTreeMap::new(),
            told: None,
        }
    }

    /// Schedules a batch. `None` for a rebuild that must find its nodes alone, because the schedule has none for it.
    pub fn batch(&mut self, batch: &[Open], cluster: &Cluster<'_>, rng: &mut dyn RngCore) -> Vec<Option<Scheduled>> {
        if self.assigning == Assigning::Alone && self.told.is_none() {
            return vec![None; batch.len()];
        }
        let nodes = Nodes::of(cluster);
        let destinations: Vec<Vec<u32>> = batch.iter().map(|open| nodes.destinations(open)).collect();
        let chosen = self.schemes(batch, &destinations, &nodes, cluster.patterns);
        let mut repairs: Vec<(usize, Candidate, Repair)> = Vec::with_capacity(batch.len());
        for (at, (candidate, destinations)) in chosen.into_iter().zip(destinations).enumerate() {
            let Some(candidate) = candidate.filter(|_| !destinations.is_empty()) else { continue };
            let repair = nodes.repair(&candidate, &batch[at], destinations);
            // Without enough nodes for a part, the rebuild says why.
            if repair.parts.iter().all(|part| part.candidates.count(nodes.ids.len()) >= part.vertices.len()) {
                repairs.push((at, candidate, repair));
            }
        }
        let only: Vec<Repair> = repairs.iter().map(|(.., repair)| repair.clone()).collect();
        let dependent =
            |(at, candidate, _): &(usize, Candidate, Repair)| candidate.parts.dependent(|index| nodes.home(&batch[*at], index));
        let dependent: Vec<Vec<Vec<u32>>> = repairs.iter().map(dependent).collect();
        let mut assignments = self.assign(&only, &dependent, &nodes, rng).unwrap_or_default();
        // A balance that counts the links between racks has ordered its places.
        if self.assigning != Assigning::Balanced || !nodes.speeds.racks().are_limited() {
            for ((.., repair), assignment) in repairs.iter().zip(&mut assignments) {
                nodes.group_by_rack(repair, assignment);
            }
        }
        let mut scheduled = vec![None; batch.len()];
        let (mut in_blocks, mut transfers) = (Vec::new(), Vec::new());
        for ((at, candidate, repair), assignment) in repairs.iter().zip(assignments) {
            scheduled[*at] = self.scheduled(candidate, repair, &assignment, &nodes);
            if batch[*at].in_blocks {
                let places: Vec<u32> = assignment.concat();
                let of = |edge: &Edge| Some(Transfer { from: *places.get(edge.from)?, to: *places.get(edge.to)? });
                in_blocks.push(*at);
                transfers.push(repair.edges.iter().filter_map(of).collect());
            }
        }
        for (at, rounds) in in_blocks.into_iter().zip(rounds(nodes.ids.len(), &transfers)) {
            if let Some(scheduled) = &mut scheduled[at] {
                scheduled.round = rounds.into_iter().min().unwrap_or(0);
            }
        }
        if let Some(told) = &mut self.told {
            told.extend(only.into_iter().map(|repair| (repair, nodes.ids.clone())));
        }
        scheduled
    }

    /// `dependent`: of each repair, the sets of nodes that must not all help ([`Parts::dependent`]).
    fn assign(
        &mut self,
        repairs: &[Repair],
        dependent: &[Vec<Vec<u32>>],
        nodes: &Nodes,
        rng: &mut dyn RngCore,
    ) -> Option<Vec<Assignment>> {
        let count = nodes.ids.len();
        match self.assigning {
            Assigning::Alone => None,
            Assigning::Random => Some(baseline::random(count, repairs, rng)),
            Assigning::LruByStripe => Some(self.stamps.lru_by_stripe(count, repairs)),
            Assigning::Balanced => {
                let carried = |at: &Place| self.carried.get(at).copied().unwrap_or_default();
                let of_nodes: Vec<Load> = nodes.ids.iter().map(|node| carried(&Place::Node(*node))).collect();
                let of_racks = nodes.racks.iter().map(|rack| carried(&Place::Rack(Arc::clone(rack))));
                let of_racks: Vec<Load> = of_racks.take(nodes.speeds.racks().count()).collect();
                // Only differences matter, and small numbers keep the flow fast.
                let before = [above_least(&of_nodes), above_least(&of_racks)].concat();
                balanced(repairs, dependent, &before, &nodes.speeds)
            }
        }
    }

    /// An assignment in the nodes' own names; counts what they carry.
    fn scheduled(&mut self, candidate: &Candidate, repair: &Repair, assignment: &Assignment, nodes: &Nodes) -> Option<Scheduled> {
        let id = |node: &u32| nodes.ids.get(*node as usize).copied();
        let rack = |rack: u32| nodes.racks.get(rack as usize).map(|name| Place::Rack(Arc::clone(name)));
        let (roots, helpers) = assignment.split_last()?;
        let homes = roots.iter().map(id).collect::<Option<_>>()?;
        let mut lines = Vec::new();
        for (part, chosen) in repair.parts.iter().zip(assignment) {
            for (load, node) in part.vertices.iter().zip(chosen) {
                let at = *node as usize;
                *self.carried.entry(Place::Node(id(node)?)).or_default() += *load;
                let [up, down, disk] =
                    [load.only_up(), load.only_down(), load.only_disk()].map(|it| nodes.speeds.busier(at, &it));
                lines.push(Line { at: Place::Node(id(node)?), up, down, disk });
            }
        }
        let racks = nodes.speeds.racks();
        for (number, load) in racks.loads(repair, assignment) {
            *self.carried.entry(rack(number)?).or_default() += load;
            let time = |load: Load| racks.busier(number, &load);
            lines.push(Line { at: rack(number)?, up: time(load.only_up()), down: time(load.only_down()), disk: 0 });
        }
        let helpers = helpers.iter().flatten().filter_map(id).collect();
        Some(Scheduled { scheme: candidate.scheme.to_owned(), helpers, homes, lines, round: 0 })
    }

    /// The scheme of each repair: the named one; or, over the whole batch, the one with the least bound, or the one that
    /// moves least for each repair if that has a lower bound. Of blocks that can be copied, as many are as gives the least bound.
    fn schemes(
        &mut self,
        batch: &[Open],
        destinations: &[Vec<u32>],
        nodes: &Nodes,
        patterns: &Patterns,
    ) -> Vec<Option<Candidate>> {
        let all = self.all_candidates(batch, nodes, patterns);
        match self.prefer {
            Prefer::Time => return all.iter().map(|all| least_time(all).cloned()).collect(),
            Prefer::Traffic => return all.iter().map(|all| least_traffic(all).cloned()).collect(),
            Prefer::Whole => {}
        }
        let mixes = Mixes::of(&all, &self.carriers(batch, destinations, nodes), nodes);
        let longest = |mix: &[Option<&Candidate>]| {
            let all = || mix.iter().flatten();
            (all().map(|it| it.parts.busiest() * it.scale).max(), all().map(|it| it.parts.moved() * it.scale).sum::<u64>())
        };
        mixes.best(mixes.least() * ALIKE, longest)
    }

    /// About the least time of the busiest link that these repairs need, in bytes that the fastest link of a node carries in it, with any share
    /// of copies. No schedule undercuts it.
    pub fn least(&mut self, batch: &[Open], cluster: &Cluster<'_>) -> f64 {
        let nodes = Nodes::of(cluster);
        let destinations: Vec<Vec<u32>> = batch.iter().map(|open| nodes.destinations(open)).collect();
        let all = self.all_candidates(batch, &nodes, cluster.patterns);
        Mixes::of(&all, &self.carriers(batch, &destinations, &nodes), &nodes).least()
    }

    fn all_candidates(&mut self, batch: &[Open], nodes: &Nodes, patterns: &Patterns) -> Vec<Vec<Candidate>> {
        let all = answering(Kind::Repair).map(|scheme| scheme.name());
        let names: Vec<&'static str> = all.filter(|name| self.scheme == AUTO || self.scheme == *name).collect();
        batch.iter().map(|open| self.candidates(open, &names, nodes, patterns)).collect()
    }

    /// The nodes that can receive anything in these repairs, and what earlier batches give the others to send.
    fn carriers(&self, batch: &[Open], destinations: &[Vec<u32>], nodes: &Nodes) -> Carriers {
        let reached: BTreeSet<u32> = destinations.iter().flatten().copied().collect();
        let helpers = batch.iter().flat_map(|open| &open.available).filter_map(|(_, node)| nodes.number(*node));
        let all: BTreeSet<u32> = helpers.filter(|node| nodes.facts[*node as usize].up).chain(reached.iter().copied()).collect();
        let carried = |node: &NodeId| self.carried.get(&Place::Node(*node)).copied().unwrap_or_default();
        let received = all.iter().filter_map(|node| nodes.ids.get(*node as usize)).map(|node| i128::from(carried(node).down));
        let mean = received.sum::<i128>() / all.len().max(1) as i128;
        let ahead = nodes.ids.iter().map(|node| i128::from(carried(node).up) - mean).collect();
        Carriers { destinations: reached.len(), all, ahead }
    }

    /// The parts of a repair by each scheme that can do it.
    fn candidates(&mut self, open: &Open, names: &[&'static str], nodes: &Nodes, patterns: &Patterns) -> Vec<Candidate> {
        let scale = (open.block_len / open.code.alpha() as u64).max(1);
        let indexes: Vec<u8> = open.available.iter().map(|(index, _)| *index).collect();
        let mut found = Vec::with_capacity(names.len());
        for scheme in names {
            let key = (open.code.spec(), open.code.dimension(), *scheme, open.lost.clone(), indexes.clone());
            if self.known.len() >= PARTS_MAX && !self.known.contains_key(&key) {
                self.known.clear();
            }
            let made = || parts(open.code.as_ref(), scheme, &open.lost, &indexes, Some(patterns)).ok().map(Arc::new);
            let parts = self.known.entry(key).or_insert_with(made).clone();
            found.extend(parts.map(|parts| Candidate { scheme, parts, scale, from: Vec::new() }));
        }
        if let Some(scheme) = answering(Kind::Move).next().filter(|_| !open.copies.is_empty()) {
            let parts = Arc::new(Parts::of_copies(&open.lost, open.code.alpha() as u64));
            let from = open.copies.iter().filter_map(|(_, node)| nodes.number(*node)).collect();
            found.push(Candidate { scheme: scheme.name(), parts, scale, from });
        }
        found
    }

    /// Forgets what nodes carried: a node that is new gets its share of what follows, and not all of it.
    pub fn begin_again(&mut self) {
        self.carried.clear();
    }

    /// Keeps what a summary needs.
    pub fn summarized(mut self) -> Self {
        self.told = Some(Vec::new());
        self
    }

    /// What the repairs of all batches need at least, for a scheduler that is [`Self::summarized`]. `carried`: what each
    /// node and each rack sends and receives, and what disks carry.
    pub fn summary(&self, mut carried: BTreeMap<Place, Load>, cluster: &Cluster<'_>) -> Summary {
        let nodes = Nodes::of(cluster);
        let told = self.told.iter().flatten();
        // Nodes that came or went since a batch have other numbers: its repairs do not count.
        let repairs: Vec<Repair> = told.filter(|(_, ids)| *ids == nodes.ids).map(|(repair, _)| repair.clone()).collect();
        let racks = nodes.speeds.racks();
        carried.retain(|at, _| racks.are_limited() || matches!(at, Place::Node(_)));
        let time = |(at, load): (&Place, &Load)| match at {
            Place::Node(node) => Some(nodes.speeds.busier(nodes.ids.binary_search(node).ok()?, load)),
            Place::Rack(rack) => Some(racks.busier(nodes.racks.iter().position(|it| it == rack)? as u32, load)),
        };
        let busiest = carried.iter().filter_map(time).max().unwrap_or(0);
        Summary { loads: carried, busiest, bound: lower_bound(&repairs, &nodes.speeds) }
    }

    /// What the schedule gives each node to carry; and each rack, if a rack's links are limited.
    pub fn carried(&self) -> &BTreeMap<Place, Load> {
        &self.carried
    }
}

impl Nodes {
    fn of(cluster: &Cluster<'_>) -> Self {
        let Cluster { view, network, .. } = cluster;
        let ids: Vec<NodeId> = view.nodes.keys().copied().collect();
        let mut racks: Vec<Arc<str>> = Vec::new();
        let mut facts = Vec::with_capacity(ids.len());
        for node in view.nodes.values() {
            let known = racks.iter().position(|rack| *rack == node.rack);
            let rack = known.unwrap_or(racks.len()) as u32;
            if known.is_none() {
                racks.push(Arc::clone(&node.rack));
            }
            let free_bytes = placement::disk_for(node, 0, Share::NONE).map_or(0, |disk| disk.free_bytes);
            facts.push(Facts { up: node.up, suspect: node.is_suspect(), free_bytes, rack });
        }
        let rates: Vec<(f64, f64)> =
            ids.iter().map(|node| (network.up(Party::Node(*node)), network.down(Party::Node(*node)))).collect();
        let of_rack = |rack: &Arc<str>| {
            let rate = |rates: &BTreeMap<String, f64>| rates.get(&**rack).copied();
            (rate(&network.rack_up_bytes_per_s), rate(&network.rack_down_bytes_per_s))
        };
        let of_racks: Vec<(Option<f64>, Option<f64>)> = racks.iter().map(of_rack).collect();
        let known = |node: &NodeId| network.disk_bytes_per_s.get(&Party::Node(*node)).copied();
        let mut all_known: Vec<f64> = ids.iter().filter_map(known).collect();
        all_known.sort_by(f64::total_cmp);
        // Without a rate, as after a restart of its agent, a node would get what others are spared. A few rates say nothing of the others.
        let usual = all_known.get(all_known.len() / 2).copied().filter(|_| 2 * all_known.len() >= view.up_count());
        let of_disks: Vec<Option<f64>> = ids.iter().map(|node| known(node).or(usual)).collect();
        let speeds = Speeds::with_racks(&rates, facts.iter().map(|facts: &Facts| facts.rack).collect(), &of_racks)
            .and_disks(&rates, &of_disks);
        Self { ids, facts, racks, speeds }
    }

    /// Vertices of a part with the same load are interchangeable: their nodes are ordered so that a chain crosses racks as
    /// seldom as possible, with those in the rack of the destination next to it.
    fn group_by_rack(&self, repair: &Repair, assignment: &mut Assignment) {
        let rack = |node: u32| self.facts.get(node as usize).map(|facts| facts.rack);
        let home = assignment.last().and_then(|root| root.first()).and_then(|node| rack(*node));
        for (part, chosen) in repair.parts.iter().zip(assignment) {
            let seen = |load: &Load| self.speeds.seen(*load);
            let mut loads: Vec<Load> = part.vertices.iter().map(seen).collect();
            loads.sort_unstable_by_key(|load| (load.up, load.down, load.disk));
            loads.dedup();
            for load in loads {
                let same: Vec<usize> = (0..chosen.len()).filter(|at| seen(&part.vertices[*at]) == load).collect();
                let mut nodes: Vec<u32> = same.iter().map(|at| chosen[*at]).collect();
                nodes.sort_unstable_by_key(|node| (rack(*node) == home, rack(*node), *node));
                same.into_iter().zip(nodes).for_each(|(at, node)| chosen[at] = node);
            }
        }
    }

    fn number(&self, node: NodeId) -> Option<u32> {
        self.ids.binary_search(&node).ok().map(|at| at as u32)
    }

    fn repair(&self, candidate: &Candidate, open: &Open, destinations: Vec<u32>) -> Repair {
        candidate.parts.repair(candidate.scale, |index| self.home(open, index), Candidates::These(destinations))
    }

    fn home(&self, open: &Open, index: u8) -> u32 {
        let node =
            open.available.iter().chain(&open.copies).find(|(at, _)| *at == index).and_then(|(_, node)| self.number(*node));
        node.unwrap_or(u32::MAX)
    }

    /// The nodes that may get a block, ascending: with room for several and not suspect if there are enough such nodes, and in racks that
    /// the stripe's tolerance allows, or else in those with the fewest blocks of the stripe.
    fn destinations(&self, open: &Open) -> Vec<u32> {
        let mut is_out = vec![false; self.ids.len()];
        let mut in_rack: BTreeMap<u32, usize> = BTreeMap::new();
        for node in open.held.iter().filter_map(|node| self.number(*node)) {
            is_out[node as usize] = true;
            *in_rack.entry(self.facts[node as usize].rack).or_default() += 1;
        }
        open.never.iter().filter_map(|node| self.number(*node)).for_each(|node| is_out[node as usize] = true);
        let blocks = |node: u32| in_rack.get(&self.facts[node as usize].rack).copied().unwrap_or(0);
        let such = |trusted: bool, blocks: u64| -> Vec<u32> {
            let room = open.block_len.saturating_mul(blocks).saturating_add(open.reserve_bytes);
            let may = |node: &u32| {
                let facts = &self.facts[*node as usize];
                facts.up && (!trusted || !facts.suspect) && facts.free_bytes >= room && !is_out[*node as usize]
            };
            (0..self.ids.len() as u32).filter(may).collect()
        };
        let mut found = such(!open.named, ROOM_BLOCKS);
        // A wide stripe leaves few nodes: a suspect one is better than none.
        for (trusted, blocks) in [(!open.named, 1), (false, 1)] {
            if found.len() < open.lost.len() {
                found = such(trusted, blocks);
            }
        }
        if let Some(most) = open.rack_max {
            let fewest = found.iter().map(|node| blocks(*node)).min().unwrap_or(0);
            found.retain(|node| blocks(*node) < most.max(fewest + 1));
        }
        found
    }
}

#[cfg(test)]
#[path = "job_tests.rs"]
mod tests;
