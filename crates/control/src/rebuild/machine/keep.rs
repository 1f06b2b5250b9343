//! Keeps what is right of a block that was left out of updates in place, if its node is back: most updates change little. The node compares its old
//! file with the checksums that still hold, and copies what is right to the new generation; the plan brings the rest. So an old file of any age does
//! no harm, and nothing is changed in place.

use super::Rebuild;
use crate::{
    rebuild::{Action, Kept, Lost, Request, World, homes::Others, state::State},
    view::View,
};
use weft_types::{BlockId, Home, Result};

/// The most runs of MiBs that are kept of a block: each gap between them is a lane of the plan.
const RUNS_MAX: usize = 15;
/// A block goes to the node of its old file if at least one in this many of its MiBs is known.
const KNOWN_OF: usize = 4;

impl Request {
    /// What is known of a lost block that was left out of updates in place; empty for others.
    pub(super) fn known_of(&self, index: u8, copy: u8) -> Vec<Option<u32>> {
        self.stripe.kept_of(index, copy).map(<[_]>::to_vec).unwrap_or_default()
    }

    /// For each lost block, the node of its old file, if much of that is known, its disk is there, and the node may take the block.
    pub(in crate::rebuild) fn homes_that_keep(&self, view: &View) -> Vec<Option<Home>> {
        let not_asked = self.not_asked(view);
        let home = |lost: &Lost| {
            let units = self.stripe.kept_of(lost.index, lost.copy)?;
            let old = self.stripe.find(lost.index, lost.copy)?.home;
            let node = view.node(old.node)?;
            let has_file = node.disks.iter().any(|disk| disk.number == old.disk && !disk.failed);
            if !has_file || units.iter().flatten().count() * KNOWN_OF < units.len() {
                return None;
            }
            let is_shunned = self.avoid.contains(&node.id) || self.silent.contains(&node.id) || not_asked.contains(&node.id);
            if node.up && !node.is_suspect() && !is_shunned { self.disk_of(node) } else { None }
        };
        self.lost.iter().map(home).collect()
    }
}

impl Rebuild {
    /// Asks the home of a new block to keep what is right of its earlier generation. Returns whether there may be anything.
    pub(super) fn keep(&mut self, block: BlockId, home: Home) -> bool {
        let units = longest_runs(self.request.known_of(block.index, block.copy), RUNS_MAX);
        let is_own = self.request.stripe.find(block.index, block.copy).is_some_and(|placed| placed.home.node == home.node);
        if self.keeps_nothing || !is_own || units.iter().all(Option::is_none) {
            return false;
        }
        self.actions.push(Action::Keep { block, units });
        self.state = State::Keeping(block);
        true
    }

    /// If it is unknown what is there, the block begins again in another generation, as a whole, and elsewhere if possible.
    pub(super) fn kept(&mut self, block: BlockId, kept: Result<Kept>, world: &mut World<'_>) {
        let whole = self.request.stripe.layout.coded_span();
        let Some(at) = self.arriving.iter().position(|new| new.block == block) else { return self.go_on(world) };
        let why = match kept.map(|kept| self.arriving[at].keep(&kept, whole)) {
            Ok(true) => return self.go_on(world),
            Ok(false) => "it kept other bytes".to_owned(),
            Err(error) => error.message,
        };
        self.keeps_nothing = true;
        let new = self.arriving.remove(at);
        let name = world.view.name(new.home.node);
        let warning = format!("{name} did not keep what is right of block {block}, which is rebuilt as a whole: {why}");
        self.actions.push(Action::Warn(warning));
        let lost = Lost { index: block.index, copy: block.copy, checksums: new.expected };
        let avoid = self.taken(&lost).into_iter().chain([new.home.node]).collect();
        let others = Others { avoid, coming: self.coming(|_| true) };
        let other = match self.request.to.names(new.home.node) {
            true => None,
            false => self.request.place_one(&others, world.view, world.given).ok(),
        };
        let (home, warnings) = other.unwrap_or((new.home, Vec::new()));
        self.warn(&warnings);
        self.unallocated.push_back((lost, home));
        self.actions.push(Action::Release { block, may_be_written: true });
        self.state = State::Releasing;
    }
}

/// Only the longest runs of what is known.
fn longest_runs(mut units: Vec<Option<u32>>, runs_max: usize) -> Vec<Option<u32>> {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for at in (0..units.len()).filter(|at| units[*at].is_some()) {
        match runs.last_mut() {
            Some((_, end)) if *end == at => *end += 1,
            _ => runs.push((at, at + 1)),
        }
    }
    runs.sort_by_key(|(start, end)| std::cmp::Reverse(end - start));
    runs.iter().skip(runs_max).for_each(|(start, end)| units[*start..*end].fill(None));
    units
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_runs_are_kept() {
        let units = |known: &str| known.chars().map(|unit| (unit == 'x').then_some(7)).collect::<Vec<_>>();
        for (known, kept) in [
            ("x.xx.xxx", "..xx.xxx"),
            ("xxx.x.xx", "xxx...xx"),
            ("xxxx", "xxxx"),
            ("x.x", "x.x"),
            ("x.x.x", "x.x.."),
            ("....", "...."),
            ("", ""),
        ] {
            assert_eq!(longest_runs(units(known), 2), units(kept), "{known}");
        }
    }
}
