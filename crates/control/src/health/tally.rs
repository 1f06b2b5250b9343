//! The tally of stripes with bad blocks. Of all other stripes, only the total number is known.

use super::{BadBlocks, Condition};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};
use weft_types::StripeId;

/// The conditions of all stripes with bad blocks; about 50 bytes per stripe.
#[derive(Debug, Default)]
pub struct Tally {
    stripes: BTreeMap<StripeId, Arc<Condition>>,
    /// The number of stripes in each condition.
    conditions: BTreeMap<Arc<Condition>, u64>,
    unreadable: BTreeSet<StripeId>,
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
    /// Stripes with bad blocks.
    pub with_bad_blocks: u64,
    /// Stripes with bad blocks that can be read but survive no further loss.
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
        if let Some(before) = self.stripes.remove(&stripe) {
            self.unreadable.remove(&stripe);
            if let Some(count) = self.conditions.get_mut(&before) {
                *count -= 1;
                if *count == 0 {
                    self.conditions.remove(&before);
                }
            }
        }
        let Some(condition) = condition else { return };
        if condition.now.is_none() {
            self.unreadable.insert(stripe);
        }
        let shared = self.conditions.get_key_value(&condition).map(|(known, _)| Arc::clone(known));
        let shared = shared.unwrap_or_else(|| Arc::new(condition));
        *self.conditions.entry(Arc::clone(&shared)).or_default() += 1;
        self.stripes.insert(stripe, shared);
    }

    /// At most `limit` stripes that cannot be read.
    pub fn unreadable(&self, limit: usize) -> Vec<StripeId> {
        self.unreadable.iter().take(limit).copied().collect()
    }

    /// The sums. `all` contains for each code the number of its stripes, and the number of losses that a stripe without bad blocks
    /// survives.
    pub fn counts(&self, all: &[(String, u64, usize)]) -> Counts {
        let mut counts =
            Counts { with_bad_blocks: self.stripes.len() as u64, unreadable: self.unreadable.len() as u64, ..Counts::default() };
        let mut bearings: BTreeMap<(Option<usize>, &str), u64> = BTreeMap::new();
        let mut good: BTreeMap<&str, (u64, usize)> =
            all.iter().map(|(code, stripes, whole)| (&**code, (*stripes, *whole))).collect();
        for (condition, number) in &self.conditions {
            *bearings.entry((condition.now, &condition.code)).or_default() += number;
            if let Some((good, _)) = good.get_mut(&*condition.code) {
                // The tally and the total number of stripes were not read at the same moment.
                *good = good.saturating_sub(*number);
            }
            counts.at_risk += if condition.now == Some(0) { *number } else { 0 };
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
