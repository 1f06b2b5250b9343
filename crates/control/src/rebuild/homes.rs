//! The homes of rebuilt blocks.

use super::{Lost, Needed, Request, object::too_few_for_copies};
use crate::{
    placement::{self, NOTHING, Placed},
    view::{NodeView, View},
};
use rand::{SeedableRng, rngs::StdRng};
use std::collections::{BTreeMap, BTreeSet};
use weft_types::{Cause, DiskNumber, Error, FailureDomain, Home, NodeId, PlacedBlock, Reaction, Result};

/// The nodes that may get rebuilt blocks.
#[derive(Debug, Clone)]
pub enum Destination {
    /// Any node, by the placement rules.
    Anywhere,
    /// These nodes, one block of the stripe each, in the order of the lost blocks.
    Nodes(Vec<NodeId>),
    /// These disks, one block of the stripe each, in the order of the lost blocks.
    Homes(Vec<Home>),
    /// The requestors of a job, evenly; empty: all nodes.
    Among(BTreeSet<NodeId>),
}

/// The nodes that matter for the home of a block, besides those that hold other blocks of its stripe.
#[derive(Debug, Clone, Default)]
pub(super) struct Others {
    /// Nodes that cannot take it.
    pub(super) avoid: BTreeSet<NodeId>,
    /// The homes of other blocks of the same rebuild: they count in their racks.
    pub(super) coming: Vec<NodeId>,
}

/// How many blocks of a job each node has been given.
pub type BlocksGiven = BTreeMap<NodeId, u64>;

/// Homes for lost blocks.
#[derive(Debug)]
pub(super) struct Chosen {
    /// One for each lost block; `None` if there is none.
    pub(super) homes: Vec<Option<Home>>,
    pub(super) warnings: Vec<String>,
    /// Why some blocks have no home.
    pub(super) short: Option<Error>,
}

impl Destination {
    /// Whether a block must go to this node.
    pub(super) fn names(&self, node: NodeId) -> bool {
        self.each().is_some_and(|places| places.iter().any(|(named, _)| *named == node))
    }

    /// The node, and perhaps the disk, for each lost block, if they are named.
    fn each(&self) -> Option<Vec<(NodeId, Option<DiskNumber>)>> {
        match self {
            Self::Nodes(nodes) => Some(nodes.iter().map(|node| (*node, None)).collect()),
            Self::Homes(homes) => Some(homes.iter().map(|home| (home.node, Some(home.disk))).collect()),
            Self::Anywhere | Self::Among(_) => None,
        }
    }

    /// Whether the request names target nodes.
    pub(super) fn is_named(&self) -> bool {
        match self {
            Self::Anywhere => false,
            Self::Nodes(_) | Self::Homes(_) => true,
            Self::Among(requestors) => !requestors.is_empty(),
        }
    }
}

impl Request {
    /// Homes for all lost blocks, or for as many as there is room for.
    pub(super) fn choose_homes(&self, view: &View, given: &mut BlocksGiven) -> Result<Chosen> {
        let Some(places) = self.to.each() else {
            let keeping = self.homes_that_keep(view);
            if keeping.iter().any(Option::is_some) {
                return self.choose_others(keeping, None, view, given);
            }
            return match self.place(self.lost.len(), &Others::default(), view, given) {
                Ok(Placed { homes, warnings }) => {
                    let mut chosen = vec![None; self.lost.len()];
                    self.fill(&mut chosen, homes);
                    Ok(Chosen { homes: chosen, warnings, short: None })
                }
                Err(short) => self.choose_some(short, view, given),
            };
        };
        let (lost, named) = (self.lost.len(), places.len());
        let nodes: Vec<NodeId> = places.iter().map(|(node, _)| *node).collect();
        if lost != named {
            let number = self.stripe.number;
            let message = format!(
                "{lost} blocks of stripe {number} must be rebuilt, but {named} nodes are named: name one node for each block"
            );
            return Err(Error::invalid(message));
        }
        let mut chosen = Chosen { homes: Vec::with_capacity(named), warnings: Vec::new(), short: None };
        for (at, (to, disk)) in places.iter().enumerate() {
            if nodes[..at].contains(to) {
                return Err(Error::invalid(format!(
                    "{} is named twice, but a node takes only one block of a stripe",
                    view.name(*to)
                )));
            }
            let (home, warning) = self.home_at((*to, *disk), &nodes[..at], view)?;
            chosen.homes.push(Some(home));
            chosen.warnings.extend(warning);
        }
        Ok(chosen)
    }

    /// A home on a named node, and perhaps on a named disk of it, and a warning about it, if any. `others`: nodes that get other lost blocks.
    fn home_at(
        &self,
        (to, disk): (NodeId, Option<DiskNumber>),
        others: &[NodeId],
        view: &View,
    ) -> Result<(Home, Option<String>)> {
        let name = view.name(to);
        let node =
            view.node(to).ok_or_else(|| Error::not_found(format!("there is no node {to}: `weft node ls` lists the nodes")))?;
        if !node.up {
            return Err(Error::invalid(format!("{name} is down: choose a node that is up")));
        }
        if node.disks.iter().any(|disk| disk.draining) && !node.takes_blocks() {
            return Err(Error::invalid(format!("{name} is being drained: choose another node")));
        }
        if let Some(index) = self.kept().find(|(_, node)| *node == to).map(|(index, _)| index) {
            let number = self.stripe.number;
            return Err(Error::invalid(format!(
                "{name} already holds block {index} of stripe {number}, and a node takes only one"
            )));
        }
        let bytes = self.bytes_needed();
        let disk = match disk {
            None => placement::disk_for(node, bytes, self.kept),
            Some(number) => placement::disk_if(node, number, bytes, self.kept),
        };
        let disk = disk.ok_or_else(|| {
            Error::invalid(format!("no disk of {name} has {} left", weft_types::human_bytes(bytes))).cause(Cause::NoSpace)
        })?;
        let mut in_rack = 1;
        for other in self.kept().map(|(_, kept)| kept).chain(others.iter().copied()) {
            in_rack += usize::from(view.node(other).is_some_and(|other| other.rack == node.rack));
        }
        let (spec, nobody) = (self.code.spec(), BTreeSet::new());
        let ask = self.placement(&spec, 1, &[], &nobody);
        let warning = placement::rack_warning(&ask, &node.rack, in_rack, self.kept().count() + others.len() + 1);
        // Blocks that only spread go where no rack gets fuller than the fullest is.
        let spreads = self.needed == Needed::ToSpread && in_rack > self.in_fullest_rack(view);
        if let Some(warning) = warning.as_ref().filter(|_| spreads) {
            return Err(Error::unavailable(warning).object(&self.object));
        }
        Ok((Home { node: to, disk: disk.number }, warning))
    }

    /// How many blocks of the stripe the rack has that has most of them.
    fn in_fullest_rack(&self, view: &View) -> usize {
        let mut in_racks: BTreeMap<&str, usize> = BTreeMap::new();
        for node in self.stripe.all().filter_map(|(_, placed)| view.node(placed.home.node)) {
            *in_racks.entry(&node.rack).or_default() += 1;
        }
        in_racks.into_values().max().unwrap_or(0)
    }

    /// For a lack of nodes: partly lost blocks stay where they are, in a new generation, and the others go where there
    /// is room.
    fn choose_some(&self, short: Error, view: &View, given: &mut BlocksGiven) -> Result<Chosen> {
        let others = self.not_asked(view);
        let may_take = |node: NodeId| !self.avoid.contains(&node) && !others.contains(&node);
        let at_home = |lost: &Lost| {
            let node = self.partly_lost().find(|(block, _)| *block == (lost.index, lost.copy))?.1;
            self.disk_of(view.node(node).filter(|node| node.up && may_take(node.id))?)
        };
        self.choose_others(self.lost.iter().map(at_home).collect(), Some(short), view, given)
    }

    /// A disk of a node with room for a block.
    pub(super) fn disk_of(&self, node: &NodeView) -> Option<Home> {
        placement::disk_for(node, self.bytes_needed(), self.kept).map(|disk| Home { node: node.id, disk: disk.number })
    }

    /// Homes also for the blocks without one, as far as there is room. `short`: why not for all, if that is known.
    fn choose_others(
        &self,
        mut homes: Vec<Option<Home>>,
        mut short: Option<Error>,
        view: &View,
        given: &mut BlocksGiven,
    ) -> Result<Chosen> {
        let homeless = homes.iter().filter(|home| home.is_none()).count();
        let others = Others { coming: homes.iter().flatten().map(|home| home.node).collect(), ..Others::default() };
        let placed = (1..=homeless).rev().find_map(|count| match self.place(count, &others, view, given) {
            Ok(placed) => Some(placed),
            Err(error) => {
                short.get_or_insert(error);
                None
            }
        });
        let Placed { homes: found, warnings } = placed.unwrap_or_default();
        self.fill(&mut homes, found);
        let missing = homes.iter().filter(|home| home.is_none()).count();
        let short = short.filter(|_| missing > 0);
        match short {
            Some(short) if missing == homes.len() || self.purpose.is_put() => Err(short),
            short => Ok(Chosen { homes, warnings, short }),
        }
    }

    /// Gives each block without a home one of these. The node of a lost block can get only that block.
    fn fill(&self, homes: &mut [Option<Home>], mut found: Vec<Home>) {
        let open = |homes: &[Option<Home>], at: usize| homes.get(at).is_some_and(Option::is_none);
        for (at, lost) in self.lost.iter().enumerate() {
            let own = self.stripe.find(lost.index, lost.copy).map(|placed| placed.home.node);
            if let Some(found_at) = found.iter().position(|home| open(homes, at) && Some(home.node) == own) {
                homes[at] = Some(found.remove(found_at));
            }
        }
        for (home, found) in homes.iter_mut().filter(|home| home.is_none()).zip(found) {
            *home = Some(found);
        }
    }

    /// The nodes of the other lost blocks, to which those may return.
    pub(super) fn lost_nodes_of_others(&self, index: u8, copy: u8) -> impl Iterator<Item = NodeId> + '_ {
        let others = self.lost.iter().filter(move |other| (other.index, other.copy) != (index, copy));
        others.filter_map(|other| Some(self.stripe.find(other.index, other.copy)?.home.node))
    }

    /// Chooses homes for `count` blocks and counts them as given.
    pub(super) fn place(&self, count: usize, others: &Others, view: &View, given: &mut BlocksGiven) -> Result<Placed> {
        let placed = self.find_homes(count, others, view, given)?;
        placed.homes.iter().for_each(|home| *given.entry(home.node).or_default() += 1);
        Ok(placed)
    }

    /// Another home for one block.
    pub(super) fn place_one(&self, others: &Others, view: &View, given: &mut BlocksGiven) -> Result<(Home, Vec<String>)> {
        let Placed { homes, warnings } = self.place(1, others, view, given)?;
        let home = homes.first().copied().ok_or_else(|| Error::unavailable("no node is left").cause(Cause::TooFewNodes))?;
        Ok((home, warnings))
    }

    /// The homes that `count` blocks would get.
    pub(super) fn find_homes(&self, count: usize, others: &Others, view: &View, given: &BlocksGiven) -> Result<Placed> {
        match self.scheduled_homes(count, &others.avoid, view) {
            Some(scheduled) if scheduled.warnings.is_empty() || self.to.is_named() => Ok(scheduled),
            // A rack gets more blocks than the code tolerates to lose. The schedule may have had no better one, or a block has come to the
            // rack since; and it does not see the racks of several lost blocks together.
            Some(scheduled) => match self.place_freely(count, others, view, given) {
                Ok(placed) if placed.warnings.is_empty() => Ok(placed),
                _ => Ok(scheduled),
            },
            None => self.place_freely(count, others, view, given),
        }
    }

    /// The homes that `count` blocks would get without a schedule.
    fn place_freely(&self, count: usize, others: &Others, view: &View, given: &BlocksGiven) -> Result<Placed> {
        let held: Vec<NodeId> = self.kept().map(|(_, node)| node).chain(others.coming.iter().copied()).collect();
        let copies = self.copies_max();
        let spec = placement::described(&self.code.spec(), copies);
        // Prefers other nodes. If there are none, a node may get its own lost block back, in a new generation.
        let not_asked = self.not_asked(view);
        let never = others.avoid.iter().chain(&self.avoid).chain(&not_asked).copied();
        let elsewhere: BTreeSet<NodeId> = never.clone().chain(self.lost_nodes()).collect();
        // The readable rest of a partly lost block helps, so its node gets no other block of the stripe.
        let helping = self.partly_lost().map(|(_, node)| node);
        let anywhere: BTreeSet<NodeId> = never.chain(helping).collect();
        // Only a job spreads its blocks evenly; the blocks of a single stripe go where there is most space.
        let load = if matches!(self.to, Destination::Among(_)) { given } else { &NOTHING };
        let ask = placement::Ask { load, named: self.to.is_named(), ..self.placement(&spec, count, &held, &elsewhere) };
        // Seeded by the stripe, so that an explained plan is the one that runs, as long as the nodes do not change.
        let mut rng = StdRng::seed_from_u64(self.stripe.id.0);
        placement::place(view, &ask, &mut rng)
            .or_else(|_| placement::place(view, &placement::Ask { avoid: &anywhere, ..ask }, &mut rng))
            .map_err(|error| Error { reaction: Reaction::Unavailable, ..error })
            .map_err(|error| match count + held.len() {
                needed if copies > 1 && view.up_count() < needed => {
                    too_few_for_copies(&self.stripe, self.code.m(), copies, needed, view)
                }
                _ => error,
            })
            .map_err(|error| view.lacking_nodes(error).object(&self.object))
            .map_err(|error| match not_asked.is_empty() {
                true => error,
                false => Error { message: format!("{}; only the named nodes may take it", error.message), ..error },
            })
            .and_then(|placed| match placed.warnings.first() {
                Some(warning) if self.needed == Needed::ToSpread => Err(Error::unavailable(warning).object(&self.object)),
                _ => Ok(placed),
            })
    }

    /// The homes that a schedule chose, if they can still take the blocks.
    fn scheduled_homes(&self, count: usize, avoid: &BTreeSet<NodeId>, view: &View) -> Option<Placed> {
        let scheduled = &self.scheduled.as_ref()?.homes;
        if scheduled.len() != count {
            return None;
        }
        let mut placed = Placed { homes: Vec::with_capacity(count), warnings: Vec::new() };
        for (at, to) in scheduled.iter().enumerate() {
            let is_doubtful = view.node(*to)?.is_suspect() && !self.to.is_named();
            if avoid.contains(to) || self.avoid.contains(to) || is_doubtful {
                return None;
            }
            let (home, warning) = self.home_at((*to, None), &scheduled[..at], view).ok()?;
            placed.homes.push(home);
            placed.warnings.extend(warning);
        }
        Some(placed)
    }

    /// The highest number of copies of a block, including the new ones.
    fn copies_max(&self) -> u8 {
        let there = self.stripe.all().map(|(index, placed)| (index, placed.copy));
        let all: BTreeSet<(u8, u8)> = there.chain(self.lost.iter().map(|lost| (lost.index, lost.copy))).collect();
        let of = |at: u8| all.iter().filter(|(index, _)| *index == at).count();
        self.stripe.blocks.keys().copied().map(of).max().and_then(|most| u8::try_from(most).ok()).unwrap_or(1)
    }

    /// The nodes that are not requestors, if requestors are given.
    pub(super) fn not_asked(&self, view: &View) -> BTreeSet<NodeId> {
        match &self.to {
            Destination::Among(only) if self.to.is_named() => {
                view.nodes.keys().filter(|node| !only.contains(node)).copied().collect()
            }
            _ => BTreeSet::new(),
        }
    }

    /// With copies, a rack with more blocks than the code tolerates to lose is not a risk yet.
    pub(super) fn unit_of_placement(&self) -> FailureDomain {
        let has_copies = !self.stripe.copies.is_empty() || self.lost.iter().any(|lost| lost.copy > 0);
        if has_copies { FailureDomain::Node } else { self.failure_domain }
    }

    fn placement<'a>(&self, code: &'a str, count: usize, held: &'a [NodeId], avoid: &'a BTreeSet<NodeId>) -> placement::Ask<'a> {
        let (tolerance, bytes) = (self.code.tolerance(), self.bytes_needed());
        let failure_domain = self.unit_of_placement();
        let kept = self.kept;
        placement::Ask { code, count, tolerance, failure_domain, held, avoid, named: false, bytes, kept, load: &NOTHING }
    }

    /// The blocks that stay, and their nodes.
    pub(super) fn kept(&self) -> impl Iterator<Item = (u8, NodeId)> + '_ {
        let stays = |(index, placed): &(u8, &PlacedBlock)| !self.is_lost(*index, placed.copy);
        self.stripe.all().filter(stays).map(|(index, placed)| (index, placed.home.node))
    }

    pub(super) fn lost_nodes(&self) -> impl Iterator<Item = NodeId> + '_ {
        let is_lost = |(index, placed): &(u8, &PlacedBlock)| self.is_lost(*index, placed.copy);
        self.stripe.all().filter(is_lost).map(|(_, placed)| placed.home.node)
    }

    /// The partly readable blocks, by index and copy, and their nodes.
    fn partly_lost(&self) -> impl Iterator<Item = ((u8, u8), NodeId)> + '_ {
        let is_partly = |(index, placed): &(u8, &PlacedBlock)| {
            self.is_lost(*index, placed.copy) && !self.stripe.corrupt_of(*index, placed.copy).is_empty()
        };
        self.stripe.all().filter(is_partly).map(|(index, placed)| ((index, placed.copy), placed.home.node))
    }

    pub(super) fn is_lost(&self, index: u8, copy: u8) -> bool {
        self.lost.iter().any(|lost| (lost.index, lost.copy) == (index, copy))
    }

    fn bytes_needed(&self) -> u64 {
        self.stripe.layout.block_len(0).saturating_add(self.disk_reserve_bytes)
    }
}

#[cfg(test)]
mod tests;
