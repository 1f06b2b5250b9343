//! Placement of new blocks: one block of a stripe per node and, as far as the racks allow, no rack with more blocks
//! than the code tolerates to lose.
//!
//! Racks are filled evenly, which minimises the fullest of them. Within a rack the emptiest node comes first; the order
//! of equals is random.

use crate::{
    reserve::Share,
    view::{DiskView, NodeView, View},
};
use rand::{Rng, seq::SliceRandom};
use std::collections::{BTreeMap, BTreeSet};
use weft_codes::SharedCode;
use weft_types::{Cause, DiskNumber, Error, FailureDomain, Home, NodeId, Result, human_bytes};

/// Disks that differ in fullness by less than a twentieth count as equally full.
const FULLNESS_STEPS: u64 = 20;
/// The most full disks that a message names.
const FULL_DISKS_NAMED: usize = 8;

/// The number of different nodes that a stripe with `data` data blocks, `blocks` blocks and `replicas` copies of its
/// data needs.
pub fn nodes_needed(data: usize, blocks: usize, replicas: u8) -> usize {
    blocks + data * usize::from(replicas.saturating_sub(1))
}

/// A code as messages name it.
pub fn described(code: &str, replicas: u8) -> String {
    if replicas < 2 { code.to_owned() } else { format!("{code} with {replicas} copies of its data") }
}

/// A warning if a policy needs more nodes than the cluster has.
pub fn too_few_nodes(code: &SharedCode, replicas: u8, nodes: usize) -> Option<String> {
    let needed = nodes_needed(code.k(), code.n(), replicas);
    let what = described(&code.spec(), replicas);
    (needed > nodes).then(|| {
        format!("{what} puts the blocks of a stripe on {needed} different nodes, and the cluster has {nodes}: add nodes first")
    })
}

/// A request for homes.
#[derive(Debug, Clone)]
pub struct Ask<'a> {
    /// The code, for messages.
    pub code: &'a str,
    /// The number of blocks.
    pub count: usize,
    /// The number of lost blocks that the code tolerates.
    pub tolerance: usize,
    /// The unit of placement.
    pub failure_domain: FailureDomain,
    /// Nodes that hold other blocks of the stripe.
    pub held: &'a [NodeId],
    /// Nodes that get no block for other reasons.
    pub avoid: &'a BTreeSet<NodeId>,
    /// Whether an operator named the remaining nodes: all of them then count as trusted, including suspect ones.
    pub named: bool,
    /// Bytes that a disk must have free, including the reserve.
    pub bytes: u64,
    /// What of each disk must stay free besides.
    pub kept: Share,
    /// The load that earlier placements of the same batch gave each node; nodes with less come first.
    pub load: &'a BTreeMap<NodeId, u64>,
}

/// No load.
pub static NOTHING: BTreeMap<NodeId, u64> = BTreeMap::new();

/// The result of a placement, in random order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Placed {
    /// As many homes as requested.
    pub homes: Vec<Home>,
    /// Warnings about racks.
    pub warnings: Vec<String>,
}

/// Chooses homes. The error states how many nodes there are and how many are needed.
pub fn place(view: &View, ask: &Ask<'_>, rng: &mut impl Rng) -> Result<Placed> {
    let mut candidates: Vec<Candidate<'_>> =
        asked(view, ask).filter_map(|node| Candidate::new(node, ask, rng.random())).collect();
    // Suspect nodes are used only if there are not enough others.
    let trusted = candidates.iter().filter(|candidate| !candidate.node.is_suspect()).count();
    if trusted >= ask.count && !ask.named {
        candidates.retain(|candidate| !candidate.node.is_suspect());
    }
    if candidates.len() < ask.count {
        return Err(too_few(view, ask, candidates.len()));
    }
    let mut racks: BTreeMap<&str, RackFill<'_>> = BTreeMap::new();
    for node in ask.held.iter().filter_map(|id| view.node(*id)) {
        racks.entry(&node.rack).or_default().blocks += 1;
    }
    for candidate in candidates {
        racks.entry(&candidate.node.rack).or_default().candidates.push(candidate);
    }
    for rack in racks.values_mut() {
        // The best candidate is last, because it is popped first.
        rack.candidates.sort_by_key(|candidate| std::cmp::Reverse(candidate.rank()));
    }
    let mut homes = Vec::with_capacity(ask.count);
    while homes.len() < ask.count {
        let open = racks.values_mut().filter(|rack| !rack.candidates.is_empty());
        let rack = open.min_by_key(|rack| (rack.blocks, rack.candidates.last().map(Candidate::rank)));
        let Some(candidate) = rack.and_then(RackFill::take) else { return Err(too_few(view, ask, homes.len())) };
        homes.push(Home { node: candidate.node.id, disk: candidate.disk.number });
    }
    // Spreads data and parity alike over all racks.
    homes.shuffle(rng);
    let fullest = racks.iter().max_by_key(|(_, rack)| rack.blocks);
    let total = racks.values().map(|rack| rack.blocks).sum();
    let warnings = fullest.and_then(|(name, rack)| rack_warning(ask, name, rack.blocks, total)).into_iter().collect();
    Ok(Placed { homes, warnings })
}

/// The disk of a node for a new block: the one with the most free space, if that suffices.
pub fn disk_for(node: &NodeView, bytes: u64, kept: Share) -> Option<&DiskView> {
    let usable = node.disks.iter().filter(|disk| has_room(disk, bytes, kept));
    usable.max_by_key(|disk| (disk.free_bytes, std::cmp::Reverse(disk.blocks), std::cmp::Reverse(disk.number)))
}

/// This disk of a node, if it can take a new block.
pub fn disk_if(node: &NodeView, number: DiskNumber, bytes: u64, kept: Share) -> Option<&DiskView> {
    node.disks.iter().find(|disk| disk.number == number && has_room(disk, bytes, kept))
}

fn has_room(disk: &DiskView, bytes: u64, kept: Share) -> bool {
    disk.takes_blocks() && disk.free_bytes >= bytes.saturating_add(kept.of(disk.total_bytes))
}

struct Candidate<'a> {
    node: &'a NodeView,
    disk: &'a DiskView,
    load: u64,
    fullness: u64,
    blocks: u64,
    draw: u32,
}

#[derive(Default)]
struct RackFill<'a> {
    /// The stripe's blocks in the rack.
    blocks: usize,
    candidates: Vec<Candidate<'a>>,
}

impl<'a> Candidate<'a> {
    fn new(node: &'a NodeView, ask: &Ask<'_>, draw: u32) -> Option<Self> {
        let disk = disk_for(node, ask.bytes, ask.kept)?;
        let (total, free) = node.disks.iter().filter(|disk| disk.takes_blocks()).fold((0u64, 0u64), |(total, free), disk| {
            (total.saturating_add(disk.total_bytes), free.saturating_add(disk.free_bytes))
        });
        let used = u128::from(total.saturating_sub(free)) * u128::from(FULLNESS_STEPS);
        let fullness = (used / u128::from(total.max(1))) as u64;
        let blocks = node.disks.iter().map(|disk| disk.blocks).sum();
        let load = ask.load.get(&node.id).copied().unwrap_or(0);
        Some(Self { node, disk, load, fullness, blocks, draw })
    }

    /// Lower is better.
    fn rank(&self) -> (u64, u64, u64, u32, NodeId) {
        (self.load, self.fullness, self.blocks, self.draw, self.node.id)
    }
}

impl<'a> RackFill<'a> {
    fn take(&mut self) -> Option<Candidate<'a>> {
        self.blocks += 1;
        self.candidates.pop()
    }
}

/// The warning for a rack with `blocks` of the `total` blocks of a stripe, if one is due.
pub fn rack_warning(ask: &Ask<'_>, name: &str, blocks: usize, total: usize) -> Option<String> {
    let (code, tolerance) = (ask.code, ask.tolerance);
    if ask.failure_domain == FailureDomain::Node || blocks <= tolerance {
        return None;
    }
    let needed = total.div_ceil(tolerance.max(1));
    Some(format!(
        "rack {name} gets {blocks} blocks of a stripe, but {code} tolerates the loss of {tolerance}: losing the rack loses data. \
         Use nodes in at least {needed} racks"
    ))
}

fn too_few(view: &View, ask: &Ask<'_>, found: usize) -> Error {
    let (code, count, nodes, up) = (ask.code, ask.count, view.nodes.len(), view.up_count());
    let needed = count + ask.held.len();
    if up < needed {
        let message = format!(
            "{code} puts the blocks of a stripe on {needed} different nodes, and {up} of {nodes} nodes are up: start or add \
             nodes{}",
            narrower(up)
        );
        let error = if nodes < needed { Error::invalid(message) } else { Error::unavailable(message) };
        return error.cause(Cause::TooFewNodes);
    }
    let full = full_disks(view, ask);
    let cause = if full.is_empty() { Cause::TooFewNodes } else { Cause::NoSpace };
    let (kept, help) = match is_kept(view, ask) {
        false => (String::new(), ""),
        true => (
            format!(" beside the {} that puts leave free to rebuild the largest node", ask.kept),
            "; add nodes or disks, remove objects, or set a smaller rebuild_reserve",
        ),
    };
    Error::unavailable(format!(
        "{code} needs {count} more nodes for a stripe, but only {found} of the {up} nodes that are up can take a block of it: the \
         others hold one already, have failed, are being drained, or have less than {} free on every disk{kept}{full}{help}",
        human_bytes(ask.bytes),
    ))
    .cause(cause)
}

/// The alternative to more nodes; no code needs fewer than two.
fn narrower(up: usize) -> String {
    if up < 2 { String::new() } else { format!(", or use a code with at most {up} blocks") }
}

/// Whether some node lacks space only because of what is kept free.
fn is_kept(view: &View, ask: &Ask<'_>) -> bool {
    let has_room = |node: &NodeView, kept: Share| disk_for(node, ask.bytes, kept).is_some();
    asked(view, ask).any(|node| has_room(node, Share::NONE) && !has_room(node, ask.kept))
}

/// The nodes that could take a block if they have the space.
fn asked<'a>(view: &'a View, ask: &Ask<'_>) -> impl Iterator<Item = &'a NodeView> {
    view.nodes.values().filter(|node| node.up && !ask.held.contains(&node.id) && !ask.avoid.contains(&node.id))
}

/// Lists the fullest disks of the nodes that lack space.
fn full_disks(view: &View, ask: &Ask<'_>) -> String {
    let nodes = asked(view, ask).filter(|node| disk_for(node, ask.bytes, ask.kept).is_none());
    let disks = nodes.flat_map(|node| node.disks.iter().filter(|disk| disk.takes_blocks()).map(move |disk| (node, disk)));
    let name = |(node, disk): (&NodeView, &DiskView)| format!("{}:{} has {}", node.name, disk.path, human_bytes(disk.free_bytes));
    let mut named: Vec<String> = disks.take(FULL_DISKS_NAMED + 1).map(name).collect();
    if named.len() > FULL_DISKS_NAMED {
        named.truncate(FULL_DISKS_NAMED);
        named.push("…".to_owned());
    }
    if named.is_empty() { String::new() } else { format!(" ({})", named.join(", ")) }
}

#[cfg(test)]
mod tests;
