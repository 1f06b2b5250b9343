//! The tally of stripes with bad blocks. Of all other stripes, only the total number is known.

use super::{BadBlocks, Condition, Urgency, reads::Reads};
use crate::Time;
use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    ops::Bound,
    sync::Arc,
};
use weft_types::StripeId;

/// The conditions of all stripes with bad blocks; about 80 bytes per stripe. Those that were read most lately are known, too.
#[derive(Debug, Default)]
pub struct Tally {
    stripes: BTreeMap<StripeId, Known>,
    /// The number of the last look at a stripe.
    looks: u64,
    /// The stripes in each condition.
    conditions: BTreeMap<Arc<Condition>, Stripes>,
    unreadable: BTreeSet<StripeId>,
    reads: Reads,
}

/// The stripes in a condition.
#[derive(Debug, Default)]
struct Stripes {
    all: BTreeSet<StripeId>,
    /// Of these, those that were read lately, the most read first.
    read: BTreeSet<Rank>,
}

/// The order among stripes in a condition: how often it was read, and then its age.
type Rank = (Reverse<u32>, StripeId);

#[derive(Debug)]
struct Known {
    condition: Arc<Condition>,
    look: u64,
}

/// The stripes of one code that survive the same number of further losses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bearing {
    /// The code's spec.
    pub code: String,
    /// How many further blocks each of them can lose, in any combination; `None`: they cannot be read.
    pub further: Option<usize>,
    /// The number of stripes.
    pub stripes: u64,
}

/// The sums of a tally.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Counts {
    /// All stripes, sorted by the number of losses that they survive.
    pub bearings: Vec<Bearing>,
    /// Stripes with blocks that cannot be read.
    pub with_bad_blocks: u64,
    /// Of those, the ones that can be read but survive no further loss.
    pub at_risk: u64,
    /// Stripes that cannot be read.
    pub unreadable: u64,
    /// Stripes that cannot be read even if all nodes are up.
    pub lost: u64,
    /// The bad blocks.
    pub blocks: BadBlocks,
}

impl Tally {
    /// Records a stripe's condition; `None` if it has no bad block or does not exist.
    pub fn set(&mut self, stripe: StripeId, condition: Option<Condition>) {
        self.looks += 1;
        if let Some(Known { condition: before, .. }) = self.stripes.remove(&stripe) {
            self.unreadable.remove(&stripe);
            if let Some(stripes) = self.conditions.get_mut(&before) {
                stripes.all.remove(&stripe);
                stripes.read.remove(&(Reverse(self.reads.of(stripe)), stripe));
                if stripes.all.is_empty() {
                    self.conditions.remove(&before);
                }
            }
        }
        let Some(condition) = condition else {
            self.reads.forget(stripe);
            return;
        };
        if condition.now.is_none() {
            self.unreadable.insert(stripe);
        }
        let shared = self.conditions.get_key_value(&condition).map(|(known, _)| Arc::clone(known));
        let shared = shared.unwrap_or_else(|| Arc::new(condition));
        let stripes = self.conditions.entry(Arc::clone(&shared)).or_default();
        stripes.all.insert(stripe);
        if self.reads.of(stripe) > 0 {
            stripes.read.insert((Reverse(self.reads.of(stripe)), stripe));
        }
        self.stripes.insert(stripe, Known { condition: shared, look: self.looks });
    }

    /// A client reads a stripe, and bad blocks are rebuilt for it. Others are not counted: stripes without bad blocks need no repair, and
    /// a read that needs none of the bad blocks gains nothing by one.
    pub fn read(&mut self, stripe: StripeId, now: Time) {
        let Some(Known { condition, .. }) = self.stripes.get(&stripe) else { return };
        let before = self.reads.of(stripe);
        let have_all_changed = self.reads.count(stripe, now);
        if let Some(stripes) = self.conditions.get_mut(condition) {
            stripes.read.remove(&(Reverse(before), stripe));
            stripes.read.insert((Reverse(self.reads.of(stripe)), stripe));
        }
        if have_all_changed {
            for stripes in self.conditions.values_mut() {
                let ranks = stripes.read.iter().map(|(_, stripe)| (Reverse(self.reads.of(*stripe)), *stripe));
                stripes.read = ranks.filter(|(Reverse(reads), _)| *reads > 0).collect();
            }
        }
    }

    /// How often a stripe was read lately while it had bad blocks.
    pub fn reads(&self, stripe: StripeId) -> u32 {
        self.reads.of(stripe)
    }

    /// Whether a stripe has bad blocks.
    pub fn has(&self, stripe: StripeId) -> bool {
        self.stripes.contains_key(&stripe)
    }

    /// Whether a stripe has blocks that cannot be read, which come before those that leave.
    pub fn lacks(&self, stripe: StripeId) -> bool {
        self.condition(stripe).is_some_and(|condition| !condition.only_moves())
    }

    /// At most `limit` stripes after this one that have blocks that cannot be read.
    pub fn lacking(&self, after: Option<StripeId>, limit: usize) -> Vec<(StripeId, Arc<Condition>)> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let lacking = self.stripes.range((from, Bound::Unbounded)).filter(|(_, known)| !known.condition.blocks.is_whole());
        lacking.take(limit).map(|(stripe, known)| (*stripe, Arc::clone(&known.condition))).collect()
    }

    /// The condition of a stripe with bad blocks.
    pub fn condition(&self, stripe: StripeId) -> Option<&Arc<Condition>> {
        Some(&self.stripes.get(&stripe)?.condition)
    }

    /// The number of the look that found a stripe in its condition: a later look has a higher one, also if it found the same condition.
    pub fn look(&self, stripe: StripeId) -> Option<u64> {
        Some(self.stripes.get(&stripe)?.look)
    }

    /// How urgent it is to rebuild a stripe; one that cannot be read, has no bad blocks, or only blocks that leave, comes last.
    pub fn urgency(&self, stripe: StripeId) -> Urgency {
        let lacking = self.condition(stripe).filter(|condition| !condition.blocks.is_whole());
        Urgency::of(lacking.and_then(|condition| condition.now), self.reads(stripe))
    }

    /// The stripes in a condition; `None` if there are none.
    pub fn stripes_in(&self, condition: &Condition) -> Option<&BTreeSet<StripeId>> {
        self.conditions.get(condition).map(|stripes| &stripes.all)
    }

    /// The conditions that occur, and how many stripes are in each.
    pub fn conditions(&self) -> impl Iterator<Item = (&Condition, u64)> {
        self.conditions.iter().map(|(condition, stripes)| (&**condition, stripes.all.len() as u64))
    }

    /// The first stripes whose conditions satisfy `is_due`, at most `limit`, without those that satisfy `is_out`: first those that survive
    /// the fewest further losses; among these those that were read most lately, and then the oldest. Those of which blocks only leave come last.
    pub fn first(&self, limit: usize, is_due: impl Fn(&Condition) -> bool, is_out: impl Fn(StripeId) -> bool) -> Vec<StripeId> {
        let mut by_losses: BTreeMap<(bool, Option<usize>), Vec<&Stripes>> = BTreeMap::new();
        for (condition, stripes) in self.conditions.iter().filter(|(condition, _)| is_due(condition)) {
            by_losses.entry(condition.order()).or_default().push(stripes);
        }
        let mut found: Vec<StripeId> = Vec::new();
        for sets in by_losses.into_values() {
            let open = limit - found.len();
            let mut next: Vec<Rank> = Vec::new();
            for stripes in sets {
                // Of a million stripes, only those that were read and as many of the others as are wanted are looked at.
                let read = stripes.read.iter().copied();
                let others = stripes.all.iter().filter(|stripe| self.reads(**stripe) == 0).map(|stripe| (Reverse(0), *stripe));
                next.extend(read.chain(others).filter(|(_, stripe)| !is_out(*stripe)).take(open));
            }
            next.sort_unstable();
            found.extend(next.into_iter().take(open).map(|(_, stripe)| stripe));
        }
        found
    }

    /// At most `limit` stripes that cannot be read.
    pub fn unreadable(&self, limit: usize) -> Vec<StripeId> {
        self.unreadable.iter().take(limit).copied().collect()
    }

    /// The stripes with blocks that cannot be read that can be read themselves, but survive no further loss.
    pub fn at_risk(&self) -> u64 {
        let at_risk = self.conditions().filter(|(condition, _)| !condition.blocks.is_whole() && condition.now == Some(0));
        at_risk.map(|(_, stripes)| stripes).sum()
    }

    /// The sums. `all` contains for each code the number of its stripes, and the number of losses that a stripe without bad blocks
    /// survives.
    pub fn counts(&self, all: &[(String, u64, usize)]) -> Counts {
        let mut counts = Counts { at_risk: self.at_risk(), unreadable: self.unreadable.len() as u64, ..Counts::default() };
        let mut bearings: BTreeMap<(Option<usize>, &str), u64> = BTreeMap::new();
        let mut good: BTreeMap<&str, (u64, usize)> =
            all.iter().map(|(code, stripes, whole)| (&**code, (*stripes, *whole))).collect();
        for (condition, stripes) in &self.conditions {
            let number = &(stripes.all.len() as u64);
            *bearings.entry((condition.now, &condition.code)).or_default() += number;
            if let Some((good, _)) = good.get_mut(&*condition.code) {
                // The tally and the total number of stripes were not read at the same moment.
                *good = good.saturating_sub(*number);
            }
            let lacks_blocks = !condition.blocks.is_whole();
            counts.with_bad_blocks += if lacks_blocks { *number } else { 0 };
            counts.lost += if condition.with_all_nodes.is_none() { *number } else { 0 };
            counts.blocks = counts.blocks.plus(condition.blocks, *number);
        }
        for (code, (number, whole)) in good.into_iter().filter(|(_, (number, _))| *number > 0) {
            *bearings.entry((Some(whole), code)).or_default() += number;
        }
        let bearing =
            |((further, code), stripes): ((Option<usize>, &str), u64)| Bearing { code: code.to_owned(), further, stripes };
        counts.bearings = bearings.into_iter().map(bearing).collect();
        counts
    }
}
