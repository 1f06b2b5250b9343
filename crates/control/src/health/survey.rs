//! Which stripes are looked at next: all of them once, and later those of each disk that came or went.

use super::condition::Reach;
use crate::{view::View, walk::Walk};
use std::{collections::BTreeMap, sync::Arc};
use weft_types::{Home, StripeId, StripeRecord};

/// Where a page begins: after this stripe, or with the first.
type Place = Option<StripeId>;

/// The progress of a survey. A stripe that changes is looked at besides, by whoever keeps the tally.
#[derive(Debug)]
pub struct Survey {
    view: Arc<View>,
    reach: BTreeMap<Home, Reach>,
    all: Walk<Place, StripeId>,
    disks: BTreeMap<Home, Walk<Place, StripeId>>,
}

/// A page of stripes to look at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Of all stripes, after this one.
    All(Option<StripeId>),
    /// Of the stripes that have a block on a disk, after this one.
    Disk(Home, Option<StripeId>),
}

impl Default for Survey {
    fn default() -> Self {
        Self { view: Arc::default(), reach: BTreeMap::new(), all: walk(), disks: BTreeMap::new() }
    }
}

impl Survey {
    /// Compares the nodes with those of the last look: the stripes of disks that came or went are to be looked at again.
    pub fn look(&mut self, view: View) {
        let disks = view.nodes.values().flat_map(|node| node.disks.iter().map(|disk| Home { node: node.id, disk: disk.number }));
        let now: BTreeMap<Home, Reach> = disks.map(|home| (home, Reach::of(&view, home))).collect();
        let reach = |of: &BTreeMap<Home, Reach>, home: &Home| of.get(home).copied().unwrap_or(Reach::Gone);
        for home in now.keys().chain(self.reach.keys()) {
            if reach(&now, home) != reach(&self.reach, home) {
                self.disks.insert(*home, walk());
            }
        }
        // The first pages of the survey of all are still to come: they see all disks as they are.
        if self.all.next() == Some(None) {
            self.disks.clear();
        }
        (self.view, self.reach) = (Arc::new(view), now);
    }

    /// The nodes at the last look: stripes must be judged by these, or a change between two looks would be missed.
    pub fn view(&self) -> Arc<View> {
        Arc::clone(&self.view)
    }

    /// The next page; `None` if the tally is up to date.
    pub fn next(&self) -> Option<Step> {
        let of_disk = |(home, walk): (&Home, &Walk<Place, StripeId>)| walk.next().map(|after| Step::Disk(*home, after));
        self.all.next().map(Step::All).or_else(|| self.disks.iter().find_map(of_disk))
    }

    /// Handles a page, which was judged by the view of the last look.
    pub fn came(&mut self, step: Step, page: &[StripeRecord], more: bool) {
        let ids: Vec<StripeId> = page.iter().map(|stripe| stripe.id).collect();
        match step {
            Step::All(_) => self.all.came(&ids, more),
            Step::Disk(home, _) => {
                if let Some(walk) = self.disks.get_mut(&home) {
                    walk.came(&ids, more);
                    if walk.next().is_none() {
                        self.disks.remove(&home);
                    }
                }
            }
        }
    }

    /// Whether stripes are still to be looked at.
    pub fn is_counting(&self) -> bool {
        self.next().is_some()
    }
}

fn walk() -> Walk<Place, StripeId> {
    Walk::new(None, |stripe| Some(*stripe))
}
