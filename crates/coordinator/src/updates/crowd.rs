//! How many stripes are open on each disk. An agent opens no more than so many blocks of a disk: before that, those that were not used for longest are
//! settled early, so that openings do not wait for them.

use std::collections::{BTreeMap, BTreeSet};
use weft_types::{Home, StripeId};

/// From so many open stripes with a block on one disk, some are settled early: three quarters of what an agent opens.
pub(super) const CROWDED_FROM: usize = 3072;
/// How many of them are settled early.
pub(super) const SETTLED_EARLY: usize = 512;

/// The disks of open stripes.
#[derive(Debug, Default)]
pub(super) struct Crowd {
    by_disk: BTreeMap<Home, BTreeSet<StripeId>>,
    of_stripe: BTreeMap<StripeId, Vec<Home>>,
}

impl Crowd {
    /// A stripe is opened on these disks. Returns the stripes on those of them that are crowded.
    pub(super) fn add(&mut self, stripe: StripeId, homes: Vec<Home>) -> BTreeSet<StripeId> {
        self.remove(stripe);
        let mut crowded = BTreeSet::new();
        for home in &homes {
            let stripes = self.by_disk.entry(*home).or_default();
            if stripes.len() >= CROWDED_FROM {
                crowded.extend(stripes.iter().copied());
            }
            stripes.insert(stripe);
        }
        self.of_stripe.insert(stripe, homes);
        crowded
    }

    /// All blocks of a stripe are closed.
    pub(super) fn remove(&mut self, stripe: StripeId) {
        for home in self.of_stripe.remove(&stripe).unwrap_or_default() {
            if let Some(stripes) = self.by_disk.get_mut(&home) {
                stripes.remove(&stripe);
                if stripes.is_empty() {
                    self.by_disk.remove(&home);
                }
            }
        }
    }
}
