//! Which node gets its block from which (*Mist*, §3 to §4): the shape of a dissemination, without parties, bytes or
//! matrices.
//!
//! The **general topology** (§3.2): the writer sends k blocks, the data, and encodes nothing. Each receiver of the next
//! level gets k blocks and computes its own. Since these receivers know all data, they *stand in* for the writer and
//! send the next level's receivers their blocks. So the levels have k, k, k², k², k³, k³ … receivers. No node sends
//! more than k blocks, its *capacity*, which is what the writer sends. So the writer's line stays the slowest, and
//! everything is done about when the data has left it.
//!
//! The properties of a code come from its recipes:
//! - **Local** parities (§4.1), whose recipes send fewer than k blocks, use their recipes' helpers; the others follow
//!   the general rule, within the capacities. This covers local reconstruction codes and, pair by pair, self-repairing
//!   codes (§7.2).
//! - **Narrow** repairs (§4.2), in which d > k helpers together send less than k blocks: d receivers follow the general
//!   rule, with x of their capacities reserved; the others use recipes. The x that moves least is used, or the general
//!   topology if it moves no more. The paper's bounds of x are only sufficient conditions.
//!
//! **Copies** (§3.3) of a block form a chain: each copy forwards the block to the next, and the last forwards it to the
//! rest of the topology. Copies of a block whose receiver stands in come after it, because that receiver stands in only
//! by computing its block from others.

use super::grow::Grower;
use std::collections::BTreeMap;
use weft_codes::{Ask, Code, SubBlock};

/// The source of each receiver's block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topology {
    /// The receivers; each comes after those that it receives from.
    pub receivers: Vec<Receiver>,
    /// Sub-blocks of a block.
    alpha: usize,
}

/// A node that stores a block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Receiver {
    /// The block's index.
    pub index: u8,
    /// The copy's number.
    pub copy: u8,
    /// Counts from 1. A receiver gets nothing from its own level or a later one.
    pub level: usize,
    /// The source of its block.
    pub upstream: Upstream,
    /// Whether it knows all data and so can compute any block.
    pub stands_in: bool,
}

/// The source of a block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Upstream {
    /// The writer sends it.
    Writer,
    /// A receiver sends it, by its index in [`Topology::receivers`]: one that stands in or has the same block.
    Receiver(usize),
    /// It is computed from what receivers send of their blocks: their indexes, and the sub-blocks that each sends.
    Helpers(Vec<(usize, usize)>),
}

/// The work of a receiver.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Load {
    /// The number of senders to it: N_i.
    pub from: usize,
    /// The number of receivers from it: N_o.
    pub to: usize,
    /// What it receives, in blocks.
    pub blocks_in: f64,
    /// What it sends, in blocks.
    pub blocks_out: f64,
}

/// A transfer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Edge {
    /// The sender; `None` for the writer.
    pub from: Option<usize>,
    /// The receiver.
    pub to: usize,
    /// The amount, in blocks.
    pub blocks: f64,
}

impl Load {
    /// The loads of `count` receivers.
    pub fn of_all(count: usize, edges: &[Edge]) -> Vec<Self> {
        let mut loads = vec![Self::default(); count];
        for Edge { from, to, blocks } in edges.iter().copied() {
            loads[to].from += 1;
            loads[to].blocks_in += blocks;
            if let Some(from) = from {
                loads[from].to += 1;
                loads[from].blocks_out += blocks;
            }
        }
        loads
    }

    /// Products of a byte and a coefficient for each byte of a block, as in the paper (§5): (N_o + 1)·N_i.
    pub fn work(&self) -> f64 {
        ((self.to + 1) * self.from) as f64
    }
}

impl Topology {
    /// For blocks of a code, each an index and a copy. `reserve` is x; `None` uses the value that moves least.
    pub fn new(code: &dyn Code, blocks: &[(u8, u8)], reserve: Option<usize>) -> Self {
        let mut copies: BTreeMap<u8, Vec<u8>> = BTreeMap::new();
        for (index, copy) in blocks {
            copies.entry(*index).or_default().push(*copy);
        }
        copies.values_mut().for_each(|copies| copies.sort_unstable());
        let receivers = single(code, &copies, reserve);
        Self { receivers: with_copies(receivers, &copies), alpha: code.alpha() }
    }

    /// For one copy of each of a code's blocks.
    pub fn of_code(code: &dyn Code, reserve: Option<usize>) -> Self {
        let blocks: Vec<(u8, u8)> = (0..code.n()).map(|index| (index as u8, 0)).collect();
        Self::new(code, &blocks, reserve)
    }

    /// The transfers, by indexes in [`Topology::receivers`].
    pub fn edges(&self) -> Vec<Edge> {
        let edge = |(from, to, sent)| Edge { from, to, blocks: sent as f64 / self.alpha as f64 };
        self.sent().map(edge).collect()
    }

    /// The same as sender, receiver and sub-blocks.
    fn sent(&self) -> impl Iterator<Item = (Option<usize>, usize, usize)> {
        self.receivers.iter().enumerate().flat_map(|(to, receiver)| {
            let from = match &receiver.upstream {
                Upstream::Writer => vec![(None, self.alpha)],
                Upstream::Receiver(from) => vec![(Some(*from), self.alpha)],
                Upstream::Helpers(helpers) => helpers.iter().map(|(from, sent)| (Some(*from), *sent)).collect(),
            };
            from.into_iter().map(move |(from, sent)| (from, to, sent))
        })
    }

    /// Sub-blocks that are sent, in total.
    pub fn sub_blocks_sent(&self) -> usize {
        self.sent().map(|(_, _, sent)| sent).sum()
    }

    /// The number of receivers on each level.
    pub fn levels(&self) -> Vec<usize> {
        let mut levels = vec![0; self.receivers.iter().map(|receiver| receiver.level).max().unwrap_or(0)];
        self.receivers.iter().for_each(|receiver| levels[receiver.level - 1] += 1);
        levels
    }

    /// The load of each receiver.
    pub fn loads(&self) -> Vec<Load> {
        Load::of_all(self.receivers.len(), &self.edges())
    }
}

/// The sub-blocks of a block.
pub(super) fn whole(code: &dyn Code, index: u8) -> impl Iterator<Item = SubBlock> {
    (0..code.alpha()).map(move |sub_block| SubBlock { index, sub_block: sub_block as u16 })
}

/// The first copy of each block, by the rule that suits the code.
fn single(code: &dyn Code, copies: &BTreeMap<u8, Vec<u8>>, reserve: Option<usize>) -> Vec<Receiver> {
    let (k, start) = (code.k(), Grower::start(code, copies));
    let mut general = start.clone();
    general.local();
    general.general(usize::MAX, k);
    general.give_up();
    let Some(helpers) = narrow(code, copies) else { return general.receivers };
    let given = reserve.is_some();
    let reserves = reserve.map_or(1..k, |reserve| reserve..reserve + 1);
    let mut narrow: Vec<Grower<'_>> = reserves
        .filter_map(|reserve| {
            let mut first = start.clone();
            first.prefer(&helpers);
            first.general(helpers.len(), k.checked_sub(reserve)?);
            (first.receivers.len() == helpers.len()).then_some(first)
        })
        .collect();
    // The rest costs the same for each of them, so the one that moves least now moves least in the end.
    narrow.sort_by_key(|first| (first.sent, first.level));
    let done = narrow.into_iter().find_map(|mut narrow| {
        narrow.local();
        narrow.is_done().then_some(narrow)
    });
    done.filter(|narrow| given || narrow.sent < general.sent).unwrap_or(general).receivers
}

/// The helpers of the last block's repair, if it has more than k helpers that together send less than k blocks.
///
/// For a code of which any k blocks suffice and no block of k can be computed from less than all of them.
fn narrow(code: &dyn Code, copies: &BTreeMap<u8, Vec<u8>>) -> Option<Vec<u8>> {
    let (index, alpha) = (*copies.keys().last()?, code.alpha());
    if alpha == 1 || code.tolerance() < code.m() {
        return None;
    }
    let available = copies.keys().copied().filter(|other| *other != index).collect();
    let ask = Ask { wanted: whole(code, index).collect(), available, read_anyway: Vec::new() };
    let recipe = code.recipes(&ask).ok()?.into_iter().next()?;
    let narrow = recipe.helpers.len() > code.k() && recipe.sub_blocks_sent() < code.k() * alpha;
    narrow.then(|| recipe.helpers.iter().map(|share| share.index).collect())
}

/// Adds all copies.
fn with_copies(mut receivers: Vec<Receiver>, copies: &BTreeMap<u8, Vec<u8>>) -> Vec<Receiver> {
    if copies.values().all(|copies| copies.len() < 2) {
        return receivers;
    }
    for first in 0..receivers.len() {
        let receiver = receivers[first].clone();
        let mut others = copies[&receiver.index][1..].to_vec();
        let copy = |copy: u8, upstream| Receiver { copy, upstream, stands_in: false, ..receiver.clone() };
        if receiver.stands_in {
            let mut before = first;
            for other in others {
                receivers.push(copy(other, Upstream::Receiver(before)));
                before = receivers.len() - 1;
            }
            continue;
        }
        others.reverse();
        let mut upstream = receiver.upstream.clone();
        for other in others {
            receivers.push(copy(other, upstream));
            upstream = Upstream::Receiver(receivers.len() - 1);
        }
        receivers[first].upstream = upstream;
    }
    in_levels(receivers)
}

/// Moves receivers to the earliest possible levels, level by level.
fn in_levels(mut receivers: Vec<Receiver>) -> Vec<Receiver> {
    let upstream = |receiver: &Receiver| match &receiver.upstream {
        Upstream::Writer => Vec::new(),
        Upstream::Receiver(from) => vec![*from],
        Upstream::Helpers(helpers) => helpers.iter().map(|(from, _)| *from).collect(),
    };
    let upstreams: Vec<Vec<usize>> = receivers.iter().map(upstream).collect();
    receivers.iter_mut().for_each(|receiver| receiver.level = 1);
    // Each round settles at least one level.
    for _ in 0..receivers.len() {
        for at in 0..receivers.len() {
            receivers[at].level = upstreams[at].iter().map(|from| receivers[*from].level + 1).max().unwrap_or(1);
        }
    }
    let mut order: Vec<usize> = (0..receivers.len()).collect();
    order.sort_by_key(|at| receivers[*at].level);
    let mut place = vec![0; order.len()];
    order.iter().enumerate().for_each(|(new, old)| place[*old] = new);
    let mut moved: Vec<Receiver> = order.into_iter().map(|at| receivers[at].clone()).collect();
    for receiver in &mut moved {
        match &mut receiver.upstream {
            Upstream::Writer => {}
            Upstream::Receiver(from) => *from = place[*from],
            Upstream::Helpers(helpers) => helpers.iter_mut().for_each(|(from, _)| *from = place[*from]),
        }
    }
    moved
}
