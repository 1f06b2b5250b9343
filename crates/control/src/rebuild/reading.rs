//! What the plans of a rebuild read: which blocks can help, and whether they suffice.

use super::{Lost, Needed, Request, arriving::is_lost};
use crate::{
    health::{BadBlocks, Condition},
    known::Known,
    options::RepairOptions,
    planning::{self, Planned, Readable, Target, Way},
    schedule::Scheduled,
    view::View,
};
use rand::{RngCore, SeedableRng, rngs::StdRng};
use std::collections::BTreeSet;
use weft_codes::SharedCode;
use weft_plan::{Class, Network, Precedence};
use weft_schemes::{Run, Select, rebuilds};
use weft_types::{BlockId, BlockState, Error, NodeId, ObjectName, Party, PlacedBlock, Reaction, Result, Span, StripeRecord};

/// A plan to make, with everything that is needed for it, so that it can be made on any thread.
#[derive(Debug)]
pub struct PlanRequest {
    code: SharedCode,
    object: ObjectName,
    /// The stripe as the plan reads it: of each block with copies, the copy to read.
    stripe: StripeRecord,
    /// The blocks without known problems.
    first: Vec<u8>,
    /// Blocks that are read only if the first do not suffice, the best first.
    more: Vec<u8>,
    lost: Vec<(u8, &'static str)>,
    wanted: Vec<(u8, Span)>,
    targets: Vec<Target>,
    /// The nodes of all these blocks, in order of preference. `None`: those nearest to the requestor are preferred.
    selected: Option<Vec<NodeId>>,
    /// Whether the first of them take the places of the plan in this order.
    in_places: bool,
    options: RepairOptions,
    precedence: Precedence,
}

impl PlanRequest {
    /// The plan's precedence.
    pub fn precedence(&self) -> Precedence {
        self.precedence
    }

    /// The stripe as the plan reads it.
    pub fn stripe(&self) -> &StripeRecord {
        &self.stripe
    }

    /// Makes the plan. `run` gives the frame of a plan with slices of this many positions.
    pub fn plan(&self, view: &View, network: &Network, known: &Known, mut run: impl FnMut(u64) -> Run) -> Result<Planned> {
        let slice_len = self.options.slice_positions(&self.stripe.layout, network);
        let rack = self.targets.first().and_then(|target| view.node(target.node)).map(|node| &*node.rack);
        let mut attempt = |available: &[u8]| {
            let prefer = self.prefer(available, view, rack);
            let way = Way { options: &self.options, network, prefer: &prefer, known };
            planning::rebuild(&self.code, &self.stripe, available, &self.targets, &way, run(slice_len))
        };
        // Uses as few doubtful blocks as possible. What is only copied has no other source.
        let all: Vec<u8> = self.first.iter().chain(&self.more).copied().collect();
        let fewest = if rebuilds(&self.options.scheme) { self.first.len() } else { all.len() };
        let mut planned = attempt(&all[..fewest]);
        for count in fewest + 1..=all.len() {
            match planned {
                Err(error) if error.reaction == Reaction::Unavailable => planned = attempt(&all[..count]),
                other => return other,
            }
        }
        planned.map_err(|error| match error.reaction {
            Reaction::Unavailable => self.too_many_lost(&all, view).unwrap_or(error),
            _ => error,
        })
    }

    /// The helpers among the nodes of `available`, for a requestor in `rack`.
    fn prefer(&self, available: &[u8], view: &View, rack: Option<&str>) -> Vec<Party> {
        let k = self.stripe.dimension();
        let Some(selected) = &self.selected else { return planning::preference(&self.stripe, available, view, k, rack) };
        let homes: BTreeSet<NodeId> = available.iter().filter_map(|index| node_of(&self.stripe, *index)).collect();
        let selected: Vec<NodeId> = selected.iter().copied().filter(|node| homes.contains(node)).collect();
        if self.in_places {
            return selected.into_iter().map(Party::Node).collect();
        }
        planning::in_chain(selected, view, k, rack)
    }

    fn too_many_lost(&self, available: &[u8], view: &View) -> Option<Error> {
        too_many_lost(&self.code, &self.object, &self.stripe, (available, &self.lost), &self.wanted, view)
    }
}

impl Request {
    /// The plan that brings these targets without the failed nodes. `select` orders the possible helpers by preference;
    /// without it, the requestor's neighbours are preferred.
    pub(super) fn ask(
        &self,
        targets: Vec<Target>,
        failed: &BTreeSet<NodeId>,
        view: &View,
        select: Option<&mut dyn FnMut(Vec<NodeId>) -> Vec<NodeId>>,
    ) -> PlanRequest {
        let stripe = self.serving(view, failed);
        let Readable { good, suspect, lost } = planning::readable(&stripe, view);
        let has_failed = |index: u8| node_of(&stripe, index).is_none_or(|node| failed.contains(&node));
        let is_avoided = |index: u8| node_of(&stripe, index).is_none_or(|node| self.avoid.contains(&node));
        let usable = |index: &u8| self.is_usable(&stripe, *index);
        let all = good.into_iter().chain(suspect.iter().copied()).filter(usable);
        let is_last = |index: &u8| has_failed(*index) || is_avoided(*index) || suspect.contains(index);
        let (mut more, mut first): (Vec<u8>, Vec<u8>) = all.partition(is_last);
        // A suspect node may help if no other can, but never one that failed in this rebuild.
        more.retain(|index| !has_failed(*index));
        let nodes = first.iter().chain(&more).filter_map(|index| node_of(&stripe, *index));
        let mut selected = select.map(|select| select(nodes.collect()));
        let mut options = self.options.clone();
        // If a scheduled helper is gone, its place is free for any other. A suspect one was scheduled because too few others were left.
        let has_place =
            |index: &u8, scheduled: &Scheduled| node_of(&stripe, *index).is_some_and(|node| scheduled.helpers.contains(&node));
        let helping = |some: &[u8], scheduled: &Scheduled| some.iter().filter(|index| has_place(index, scheduled)).count();
        let doubtful: Vec<u8> = more.iter().copied().filter(|index| suspect.contains(index) && !is_avoided(*index)).collect();
        let in_places = self.scheduled.as_ref().filter(|scheduled| {
            let missing = scheduled.helpers.len() - helping(&first, scheduled);
            missing == 0 || missing == helping(&doubtful, scheduled) && !self.suffice(&stripe, &first)
        });
        if let Some(scheduled) = in_places {
            let (placed, others): (Vec<u8>, Vec<u8>) = more.into_iter().partition(|index| has_place(index, scheduled));
            first.extend(placed);
            more = others;
            let others = selected.unwrap_or_default().into_iter().filter(|node| !scheduled.helpers.contains(node));
            selected = Some(scheduled.helpers.iter().copied().chain(others).collect());
            options.select = Select::AsPreferred;
        }
        PlanRequest {
            code: self.code.clone(),
            object: self.object.clone(),
            wanted: self.wanted(),
            options,
            in_places: in_places.is_some(),
            precedence: self.precedence(&targets, view),
            stripe,
            first,
            more,
            lost,
            targets,
            selected,
        }
    }

    /// Whether a block of the stripe is there, and lost wholly or in part.
    pub(super) fn is_lost_now(&self, index: u8, copy: u8, view: &View) -> bool {
        self.stripe.find(index, copy).is_some_and(|placed| is_lost(&self.stripe, view, index, placed))
    }

    /// Lost blocks take precedence over blocks that are only moved or copied.
    fn precedence(&self, targets: &[Target], view: &View) -> Precedence {
        let is_lost = |target: &Target| self.is_lost_now(target.block.index, target.block.copy, view);
        match (self.purpose.is_put(), targets.iter().any(is_lost)) {
            (true, _) => Class::Foreground.into(),
            (false, true) => Precedence::REBUILD,
            (false, false) => Precedence::MOVE,
        }
    }

    /// Whether it must end: none of its blocks is lost any more, because their nodes came back; or it only moves blocks, and another one is
    /// lost, or these need not leave any more.
    pub fn is_needless(&self, view: &View) -> bool {
        match self.needed {
            Needed::Always => false,
            Needed::WhileLost => self.lost.iter().all(|lost| !self.is_lost_now(lost.index, lost.copy, view)),
            Needed::WhileLeaving => self.gives_way(view) || self.lost.iter().all(|lost| !self.is_leaving(lost, view)),
            Needed::ToSpread => self.gives_way(view),
        }
    }

    /// Whether it only moves blocks, and another block of the stripe is lost, which comes first. If none can be rebuilt, those that leave do.
    pub fn gives_way(&self, view: &View) -> bool {
        let blocks = BadBlocks::of(&self.stripe, view);
        let condition = || Condition::of(&self.stripe, blocks, &self.code, view, &mut self.answers.lock());
        match self.needed {
            Needed::Always | Needed::WhileLost => false,
            Needed::WhileLeaving => !blocks.is_whole() && (blocks.away + blocks.coming > 0 || !condition().only_moves()),
            Needed::ToSpread => !blocks.is_whole(),
        }
    }

    /// Whether a block is on a node or disk that is being drained.
    fn is_leaving(&self, lost: &Lost, view: &View) -> bool {
        let placed = self.stripe.find(lost.index, lost.copy);
        placed.is_some_and(|placed| view.disk(placed.home).is_some_and(|disk| disk.draining))
    }

    /// Fails for a stripe with too few remaining blocks, before homes are chosen.
    pub(super) fn require_recoverable(&self, view: &View) -> Result<()> {
        let stripe = self.serving(view, &BTreeSet::new());
        let Readable { good, suspect, lost } = planning::readable(&stripe, view);
        let all = good.into_iter().chain(suspect);
        let available: Vec<u8> = all.filter(|index| self.is_usable(&stripe, *index)).collect();
        match too_many_lost(&self.code, &self.object, &stripe, (&available, &lost), &self.wanted(), view) {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// Whether these blocks of a stripe as read by a plan suffice to rebuild the lost ones.
    pub(super) fn suffice(&self, stripe: &StripeRecord, available: &[u8]) -> bool {
        if self.code.tolerance() == self.code.m() && stripe.corrupt.is_empty() {
            return available.len() >= stripe.dimension();
        }
        planning::unrecoverable(&self.code, stripe, available, &self.wanted()).is_none()
    }

    /// Whether the blocks can be rebuilt without these nodes.
    pub(super) fn can_do_without(&self, nodes: &BTreeSet<NodeId>, view: &View) -> bool {
        let stripe = self.serving(view, nodes);
        let Readable { good, suspect, .. } = planning::readable(&stripe, view);
        let helps =
            |index: &u8| self.is_usable(&stripe, *index) && node_of(&stripe, *index).is_some_and(|home| !nodes.contains(&home));
        let available: Vec<u8> = good.into_iter().chain(suspect).filter(helps).collect();
        planning::unrecoverable(&self.code, &stripe, &available, &self.wanted()).is_none()
    }

    /// The stripe as a plan without these nodes reads it: of a block with copies, the best one that is not being
    /// rebuilt.
    pub(super) fn serving(&self, view: &View, without: &BTreeSet<NodeId>) -> StripeRecord {
        let is_shunned = |block: BlockId, node: NodeId| {
            let is_left_alone = without.contains(&node) || self.avoid.contains(&node);
            is_left_alone || self.is_lost(block.index, block.copy) || view.is_suspect_block(block)
        };
        // Seeded by the stripe, so that an explained plan is the one that runs, as long as the nodes do not change.
        let mut rng = StdRng::seed_from_u64(self.stripe.id.0);
        view.serving(self.stripe.clone(), is_shunned, |_| rng.next_u32())
    }

    /// Whether a block of the stripe as read by a plan may help: it stays, or its readable rest can be copied.
    pub(super) fn is_usable(&self, stripe: &StripeRecord, index: u8) -> bool {
        let stays = |placed: &PlacedBlock| !self.is_lost(index, placed.copy);
        // A block that is only copied is read in place.
        !rebuilds(&self.options.scheme) || stripe.blocks.get(&index).is_some_and(stays) || !stripe.corrupt_bytes(index).is_empty()
    }

    /// All bytes read had passed the checksums on their disks: the same helpers would give the same result again.
    pub(super) fn not_what_was_lost(&self, block: BlockId, reads: &[BlockId], view: &View) -> Error {
        let name = |block: &BlockId| {
            let home = self.stripe.find(block.index, block.copy).map(|placed| placed.home.node);
            format!("{block} on {}", home.map(|node| view.name(node)).unwrap_or_default())
        };
        let read: Vec<String> = reads.iter().map(name).collect();
        let read = read.join(", ");
        let message = format!(
            "the rebuilt block does not match its recorded checksums and was dropped; one of these blocks must be wrong: {read}"
        );
        Error::corrupt(message).block(block).object(&self.object)
    }

    /// Whether all of its blocks are there again according to the current record: their disk was moved to another node.
    pub fn came_back_elsewhere(&self, now: &StripeRecord, view: &View) -> bool {
        let is_there = |lost: &Lost| {
            let (known, now_placed) = (self.stripe.find(lost.index, lost.copy), now.find(lost.index, lost.copy));
            known.zip(now_placed).is_some_and(|(known, placed)| {
                placed.generation == known.generation && placed.home != known.home && !is_lost(now, view, lost.index, placed)
            })
        };
        self.needed == Needed::WhileLost && self.lost.iter().all(is_there)
    }

    /// Updates the states and homes of the stripe's blocks from the metadata. Blocks that were replaced since keep their old
    /// ones.
    pub(super) fn refresh(&mut self, now: &StripeRecord) {
        let stripe = &mut self.stripe;
        for (index, known) in stripe.all_mut() {
            match now.find(index, known.copy) {
                Some(now) if now.generation != known.generation => {}
                Some(now) => (known.state, known.home) = (now.state, now.home),
                // A dropped copy is no longer read.
                None => known.state = BlockState::Missing,
            }
        }
        let generation = |stripe: &StripeRecord, (index, copy)| stripe.find(index, copy).map(|placed| placed.generation);
        let corrupt = now.corrupt.iter().filter(|(block, _)| generation(now, **block) == generation(stripe, **block));
        stripe.corrupt = corrupt.map(|(block, bytes)| (*block, bytes.clone())).collect();
    }

    /// All positions of all lost blocks.
    fn wanted(&self) -> Vec<(u8, Span)> {
        self.lost.iter().map(|lost| (lost.index, self.stripe.layout.coded_span())).collect()
    }
}

fn node_of(stripe: &StripeRecord, index: u8) -> Option<NodeId> {
    stripe.home_of(index).map(|home| home.node)
}

/// Why the wanted data cannot be recovered from the available blocks; `None` if it can.
fn too_many_lost(
    code: &SharedCode,
    object: &ObjectName,
    stripe: &StripeRecord,
    (available, lost): (&[u8], &[(u8, &'static str)]),
    wanted: &[(u8, Span)],
    view: &View,
) -> Option<Error> {
    let absent = planning::unrecoverable(code, stripe, available, wanted)?;
    let lost = planning::why_absent(stripe, &absent, lost, "failed a moment ago");
    Some(view.lacking_nodes(planning::too_many_lost(code, stripe, &lost, view)).object(object))
}
