//! The condition of one stripe: which of its blocks cannot be read, why, and how many further losses it survives.

use super::FurtherLosses;
use crate::{planning::holes_of, view::View};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};
use weft_codes::SharedCode;
use weft_types::{BlockState, Home, PlacedBlock, Span, StripeRecord};

/// Blocks that cannot be read or that must leave their disk, by reason; each is counted once.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct BadBlocks {
    /// Corrupt blocks, including partly corrupt ones.
    pub corrupt: u64,
    /// Missing blocks.
    pub missing: u64,
    /// Missing blocks of a put that was acknowledged early: they will still be stored.
    pub coming: u64,
    /// Blocks on disks that failed or that their nodes no longer have.
    pub failed: u64,
    /// Blocks on nodes that were declared lost.
    pub lost: u64,
    /// Blocks on other nodes that are down.
    pub away: u64,
    /// Blocks that can be read, on nodes or disks that are being drained.
    pub leaving: u64,
}

/// The condition of a stripe with bad blocks. Stripes in the same condition share one value.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Condition {
    /// Its code's spec.
    pub code: Arc<str>,
    /// How many further lost blocks it survives now; `None`: it cannot be read.
    pub now: Option<usize>,
    /// The same number if every node that is down came back with all its blocks.
    pub with_all_nodes: Option<usize>,
    /// Its bad blocks; at least one.
    pub blocks: BadBlocks,
}

/// Whether the blocks on a disk can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    /// Yes.
    Here,
    /// Yes, but it must leave: its node or disk is being drained.
    Leaving,
    /// Not now: its node is down.
    Away,
    /// Not now, and probably never: its node is down and was declared lost.
    Lost,
    /// Not any more: the disk failed or is gone.
    Gone,
}

/// Which part of a block can be read.
enum Part {
    All,
    /// All but these positions.
    Except(Vec<Span>),
    None,
}

impl Reach {
    pub(crate) fn of(view: &View, home: Home) -> Self {
        match (view.node(home.node), view.disk(home)) {
            (Some(node), Some(disk)) if !disk.failed => match (node.up, node.lost) {
                (true, _) if disk.draining => Self::Leaving,
                (true, _) => Self::Here,
                (false, true) => Self::Lost,
                (false, false) => Self::Away,
            },
            _ => Self::Gone,
        }
    }

    /// Whether the blocks can be read now.
    pub(super) fn is_here(self) -> bool {
        matches!(self, Self::Here | Self::Leaving)
    }
}

impl BadBlocks {
    /// The bad blocks of a stripe, including copies.
    pub fn of(stripe: &StripeRecord, view: &View) -> Self {
        let mut bad = Self::default();
        for (_, placed) in stripe.all() {
            match (placed.state, Reach::of(view, placed.home)) {
                (BlockState::Corrupt, _) => bad.corrupt += 1,
                (BlockState::Missing, _) if stripe.incomplete => bad.coming += 1,
                (BlockState::Missing, _) => bad.missing += 1,
                (BlockState::Ok, Reach::Gone) => bad.failed += 1,
                (BlockState::Ok, Reach::Lost) => bad.lost += 1,
                (BlockState::Ok, Reach::Away) => bad.away += 1,
                (BlockState::Ok, Reach::Leaving) => bad.leaving += 1,
                (BlockState::Ok, Reach::Here) => {}
            }
        }
        bad
    }

    /// Those that do not come back by themselves: all but those on nodes that are only down, and those still on their way.
    pub fn to_rebuild(&self) -> u64 {
        self.corrupt + self.missing + self.failed + self.lost
    }

    /// Whether all blocks can be read; some may have to leave their disks.
    pub fn is_whole(&self) -> bool {
        Self { leaving: 0, ..*self } == Self::default()
    }

    /// Whether there are none.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// Adds these counts, multiplied by `times`, to `others`.
    pub(super) fn plus(self, other: Self, times: u64) -> Self {
        Self {
            corrupt: self.corrupt + other.corrupt * times,
            missing: self.missing + other.missing * times,
            coming: self.coming + other.coming * times,
            failed: self.failed + other.failed * times,
            lost: self.lost + other.lost * times,
            away: self.away + other.away * times,
            leaving: self.leaving + other.leaving * times,
        }
    }
}

impl Condition {
    /// Stripes in conditions of which this is lowest come first: those that lack blocks, by the further losses that they survive.
    pub(crate) fn order(&self) -> (bool, Option<usize>) {
        (self.only_moves(), self.now)
    }

    /// Whether only blocks that leave are brought to new homes, as copies: the stripe lacks none, or so many that none can be rebuilt, and
    /// none of them comes back by itself.
    pub fn only_moves(&self) -> bool {
        self.blocks.is_whole() || self.now.is_none() && self.blocks.away + self.blocks.coming == 0
    }

    /// How many blocks are brought to new homes: those to rebuild; or, if blocks only move, those that leave.
    pub(crate) fn to_bring(&self) -> u64 {
        if self.only_moves() { self.blocks.leaving } else { self.blocks.to_rebuild() }
    }

    /// The condition of a stripe with these bad blocks.
    pub fn of(stripe: &StripeRecord, blocks: BadBlocks, code: &SharedCode, view: &View, further: &mut FurtherLosses) -> Self {
        let now = least(stripe, code, further, |home| Reach::of(view, home).is_here());
        let with_all_nodes = match blocks.away + blocks.lost {
            0 => now,
            _ => least(stripe, code, further, |home| Reach::of(view, home) != Reach::Gone),
        };
        Self { code: code.spec().into(), now, with_all_nodes, blocks }
    }
}

/// The number of further losses that a stripe survives, at the positions where this number is lowest. A block counts as lost if no copy of
/// it can be read; additional copies do not raise the number.
fn least(stripe: &StripeRecord, code: &SharedCode, further: &mut FurtherLosses, is_here: impl Fn(Home) -> bool) -> Option<usize> {
    let parts: BTreeMap<u8, Part> = stripe.blocks.keys().map(|index| (*index, best_part(stripe, *index, &is_here))).collect();
    let holes = || parts.values().filter_map(|part| if let Part::Except(holes) = part { Some(holes) } else { None }).flatten();
    // The set of lost blocks changes only where a hole begins or ends, and shrinks where a hole ends. So checking the starts suffices.
    let starts: BTreeSet<Option<u64>> = holes().map(|hole| Some(hole.start)).chain([None]).collect();
    let lost_at = |position: Option<u64>| -> Vec<u8> {
        let is_lost = |part: &Part| match part {
            Part::All => false,
            Part::Except(holes) => position.is_some_and(|at| holes.iter().any(|hole| hole.start <= at && at < hole.end)),
            Part::None => true,
        };
        parts.iter().filter(|(_, part)| is_lost(part)).map(|(index, _)| *index).collect()
    };
    let sets: BTreeSet<Vec<u8>> = starts.into_iter().map(lost_at).collect();
    sets.iter().map(|lost| further.of(code, stripe.dimension(), lost)).min().flatten()
}

/// The readable part of a block's best copy.
fn best_part(stripe: &StripeRecord, index: u8, is_here: impl Fn(Home) -> bool) -> Part {
    let part = |placed: &PlacedBlock| match placed.state {
        BlockState::Ok => Part::All,
        BlockState::Missing => Part::None,
        BlockState::Corrupt => match holes_of(stripe, stripe.corrupt_of(index, placed.copy)) {
            holes if holes.is_empty() => Part::None,
            holes => Part::Except(holes),
        },
    };
    let copies = stripe.all().filter(|(at, placed)| *at == index && is_here(placed.home)).map(|(_, placed)| part(placed));
    let bad_positions = |part: &Part| match part {
        Part::All => 0,
        Part::Except(holes) => holes.iter().map(|hole| hole.len()).sum(),
        Part::None => u64::MAX,
    };
    copies.min_by_key(bad_positions).unwrap_or(Part::None)
}
