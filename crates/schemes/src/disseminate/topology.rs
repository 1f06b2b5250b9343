//! Who gets its block from whom (*Mist*, §3 to §4): the shape of a dissemination, with no party, byte or matrix in it.
//!
//! The **general topology** (§3.2): the writer sends k blocks, the data, and encodes nothing. Receivers of the next level each get k
//! blocks and compute theirs; knowing all data, they *stand in* for the writer, and send those of the level after it their blocks.
//! So there are k, k, k², k², k³, k³ … receivers on the levels. Nobody sends more than k blocks, its *capacity*, which is what the
//! writer sends: its line stays the slowest, and all is done about when the data have left it.
//!
//! What a code is good at comes from its recipes:
//! - **Local** parities (§4.1), where a recipe sends fewer than k blocks, from whom it names, and the others by the general
//!   rule, as far as capacities are left. So are those of local reconstruction codes, and all of self-repairing codes (§7.2), pair by
//!   pair.
//! - **Narrow** repairs (§4.2), where d > k helpers send less than k blocks together: d receivers by the general rule, of
//!   whose capacities x are reserved; the others by recipes. The x that moves least is taken, or the general topology where that moves
//!   no more: the paper's own bounds of x are sufficient only.
//!
//! **Copies** (§3.3) of a block stand in a chain above it: from copy to copy, and the last passes it on to the rest. Copies of one that
//! stands in come after it, for only what it computes from others makes it one.

use super::grow::Grower;
use std::collections::BTreeMap;
use weft_codes::{Ask, Code, SubBlock};

/// Who gets its block from whom.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topology {
    /// The receivers: whoever somebody gets something from comes before him.
    pub receivers: Vec<Receiver>,
    /// Sub-blocks of a block.
    alpha: usize,
}

/// Somebody who stores a block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Receiver {
    /// The block's index.
    pub index: u8,
    /// Which copy of it.
    pub copy: u8,
    /// From 1. Who is on a level gets nothing from that level or a later one.
    pub level: usize,
    /// Where its block comes from.
    pub upstream: Upstream,
    /// Whether it knows all data: it can make any block.
    pub stands_in: bool,
}

/// Where a block comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Upstream {
    /// The writer sends it.
    Writer,
    /// A receiver sends it, by its place in [`Topology::receivers`]: one that stands in, or has the same block.
    Receiver(usize),
    /// It is computed from what receivers send of their own blocks: their places, and how many sub-blocks each sends.
    Helpers(Vec<(usize, usize)>),
}

/// What a receiver has to do.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Load {
    /// How many send to it: N_i.
    pub from: usize,
    /// To how many it sends: N_o.
    pub to: usize,
    /// What it receives, blocks.
    pub blocks_in: f64,
    /// What it sends, blocks.
    pub blocks_out: f64,
}

/// Somebody sends to somebody.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Edge {
    /// Who sends; `None`: the writer.
    pub from: Option<usize>,
    /// Who receives.
    pub to: usize,
    /// How much, blocks.
    pub blocks: f64,
}

impl Load {
    /// What so many have to do.
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

    /// Products of a byte and a coefficient for each byte of a block, as the paper counts them (§5): (N_o + 1)·N_i.
    pub fn work(&self) -> f64 {
        ((self.to + 1) * self.from) as f64
    }
}

impl Topology {
    /// Of blocks of a code, each an index and a copy. `reserve` is x; `None` takes that which moves least.
    pub fn new(code: &dyn Code, blocks: &[(u8, u8)], reserve: Option<usize>) -> Self {
        let mut copies: BTreeMap<u8, Vec<u8>> = BTreeMap::new();
        for (index, copy) in blocks {
            copies.entry(*index).or_default().push(*copy);
        }
        copies.values_mut().for_each(|copies| copies.sort_unstable());
        let receivers = single(code, &copies, reserve);
        Self { receivers: with_copies(receivers, &copies), alpha: code.alpha() }
    }

    /// Of one copy of each of a code's blocks.
    pub fn of_code(code: &dyn Code, reserve: Option<usize>) -> Self {
        let blocks: Vec<(u8, u8)> = (0..code.n()).map(|index| (index as u8, 0)).collect();
        Self::new(code, &blocks, reserve)
    }

    /// What is sent, by places in [`Topology::receivers`].
    pub fn edges(&self) -> Vec<Edge> {
        let edge = |(from, to, sent)| Edge { from, to, blocks: sent as f64 / self.alpha as f64 };
        self.sent().map(edge).collect()
    }

    /// Likewise: from whom, to whom, how many sub-blocks.
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

    /// Sub-blocks that are sent, all together.
    pub fn sub_blocks_sent(&self) -> usize {
        self.sent().map(|(_, _, sent)| sent).sum()
    }

    /// How many receivers each level has.
    pub fn levels(&self) -> Vec<usize> {
        let mut levels = vec![0; self.receivers.iter().map(|receiver| receiver.level).max().unwrap_or(0)];
        self.receivers.iter().for_each(|receiver| levels[receiver.level - 1] += 1);
        levels
    }

    /// What each receiver has to do.
    pub fn loads(&self) -> Vec<Load> {
        Load::of_all(self.receivers.len(), &self.edges())
    }
}

/// The sub-blocks of a block.
pub(super) fn whole(code: &dyn Code, index: u8) -> impl Iterator<Item = SubBlock> {
    (0..code.alpha()).map(move |sub_block| SubBlock { index, sub_block: sub_block as u16 })
}

/// One copy of each block, the first, by the rule that suits the code.
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
    // All that is left costs the same in each of them: what moves least now moves least in the end.
    narrow.sort_by_key(|first| (first.sent, first.level));
    let done = narrow.into_iter().find_map(|mut narrow| {
        narrow.local();
        narrow.is_done().then_some(narrow)
    });
    done.filter(|narrow| given || narrow.sent < general.sent).unwrap_or(general).receivers
}

/// Who repairs the last block by sending less than k blocks, if they are more than k.
///
/// Of a code of which any k blocks suffice, and of k blocks none can be computed from less than all of them.
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

/// The same with all copies.
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

/// On the earliest levels that they can be on, level by level.
fn in_levels(mut receivers: Vec<Receiver>) -> Vec<Receiver> {
    let upstream = |receiver: &Receiver| match &receiver.upstream {
        Upstream::Writer => Vec::new(),
        Upstream::Receiver(from) => vec![*from],
        Upstream::Helpers(helpers) => helpers.iter().map(|(from, _)| *from).collect(),
    };
    let upstreams: Vec<Vec<usize>> = receivers.iter().map(upstream).collect();
    receivers.iter_mut().for_each(|receiver| receiver.level = 1);
    // Each round settles a level at least.
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
