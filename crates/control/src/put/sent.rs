//! A stripe that its writer sends, and its state after the plans so far.

use super::{
    Request,
    receipts::{is_known, note_stored, received},
};
use crate::{options::WriteOptions, recovery, run::Report, view::View};
use std::collections::{BTreeMap, BTreeSet};
use weft_types::{BlockId, Home, NodeId, StripeRecord};

/// A stripe that its writer sends.
#[derive(Debug, Clone)]
pub struct SentStripe {
    /// The stripe, with the homes of its blocks.
    pub stripe: StripeRecord,
    /// How it is sent.
    pub options: WriteOptions,
    /// The checksums of all blocks, from the writer.
    pub(super) checksums: Vec<Option<Vec<u32>>>,
    /// Which blocks were not stored, and why.
    pub(super) missing: BTreeMap<u8, String>,
    /// Whether a disk was full when a block arrived.
    pub(super) disk_was_full: bool,
    /// Nodes that failed.
    pub(super) failed: BTreeSet<NodeId>,
    /// How often data was sent again.
    pub(super) resent: u32,
    /// The blocks that the plan brings.
    pub(super) blocks: Vec<u8>,
}

impl SentStripe {
    /// A new stripe, whose plan brings all blocks.
    pub fn new(stripe: StripeRecord, options: WriteOptions) -> Self {
        Self {
            // Those of an empty block are known.
            checksums: (0..stripe.layout.n()).map(|index| (stripe.layout.block_len(index) == 0).then(Vec::new)).collect(),
            missing: BTreeMap::new(),
            disk_was_full: false,
            failed: BTreeSet::new(),
            resent: 0,
            blocks: stripe.blocks.keys().copied().collect(),
            stripe,
            options,
        }
    }

    /// Whether this is the stripe's first plan, which brings all of it.
    pub fn is_first(&self) -> bool {
        self.resent == 0
    }

    /// The blocks that the plan brings, by index.
    pub fn blocks(&self) -> &[u8] {
        &self.blocks
    }

    /// All blocks that the plan brings, including copies, and their homes.
    pub fn brings(&self) -> impl Iterator<Item = (BlockId, Home)> {
        let placed = self.blocks.iter().filter_map(|index| Some((*index, self.stripe.blocks.get(index)?)));
        // Data is resent once, and other copies are made from it.
        let copies = self.stripe.copies.iter().filter(|_| self.is_first()).map(|(index, placed)| (*index, placed));
        placed.chain(copies).map(|(index, placed)| (self.stripe.id_of(index, placed), placed.home))
    }

    /// Stores the writer's checksums. The writer computes them once, for all blocks: a resend has none.
    pub fn take_checksums(&mut self, made: impl IntoIterator<Item = (u32, Vec<u32>)>) {
        for (index, checksums) in made.into_iter().filter(|_| self.resent == 0) {
            let fits = checksums.len() as u64 == self.stripe.layout.checksum_units(index);
            if let Some(known) = self.checksums.get_mut(index as usize).filter(|_| fits) {
                *known = Some(checksums);
            }
        }
    }

    /// The checksums of all blocks, from the writer.
    pub fn checksums(&self) -> &[Option<Vec<u32>>] {
        &self.checksums
    }

    /// The stripe after a plan with this report. One stored copy of each block takes the block's place; blocks without
    /// a stored copy are missing.
    pub fn after(&self, report: &Report, view: &View) -> Self {
        let mut after = self.clone();
        after.disk_was_full |= report.lacks_space();
        note_stored(&mut after.stripe, &self.checksums, report);
        for (index, why) in received(&after.stripe, &self.blocks, &self.checksums, report, view) {
            match why {
                Some(why) => after.missing.insert(index, why),
                None => after.missing.remove(&index),
            };
        }
        after
    }

    /// Whether enough is stored to end the stripe.
    pub fn is_enough(&self, request: &Request) -> bool {
        let missing: Vec<u8> = self.missing.keys().copied().collect();
        recovery::is_enough(&request.code, &self.stripe, &self.checksums, &missing, request.missing_max)
    }

    /// Whether a block with unknown checksums is missing.
    pub(super) fn lacks_unknown(&self) -> bool {
        self.missing.keys().any(|index| !is_known(&self.checksums, *index))
    }

    /// Why blocks are missing.
    pub(super) fn reasons(&self) -> String {
        let reasons: Vec<&str> = self.missing.values().map(String::as_str).collect();
        reasons.join("; ")
    }
}
