//! Which stripes to check next: all of them once, and later those of each disk that appeared or disappeared.

use super::condition::Reach;
use crate::{view::View, walk::Walk};
use std::{collections::BTreeMap, sync::Arc};
use weft_types::{Home, StripeId, StripeRecord};

/// The start of a page: after this stripe, or at the first one.
type Place = Option<StripeId>;

/// The progress of a survey. The owner of the tally also checks each stripe that changes.
#[derive(Debug)]
pub struct Survey {
    view: Arc<View>,
    reach: BTreeMap<Home, Reach>,
    all: Walk<Place, StripeId>,
    /// Once more all of them, because what racks can keep has changed.
    again: Option<Walk<Place, StripeId>>,
    disks: BTreeMap<Home, Walk<Place, StripeId>>,
    /// Disks whose blocks begin to leave, or stay after all; nothing of them is lost.
    drained: BTreeMap<Home, Walk<Place, StripeId>>,
}

/// A page of stripes to check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// All stripes after this one.
    All(Option<StripeId>),
    /// The stripes after this one that have a block on a disk.
    Disk(Home, Option<StripeId>),
    /// All stripes after this one, once more. The tally is up to date without them.
    Again(Option<StripeId>),
}

impl Default for Survey {
    fn default() -> Self {
        Self {
            view: Arc::default(),
            reach: BTreeMap::new(),
            all: walk(),
            again: None,
            disks: BTreeMap::new(),
            drained: BTreeMap::new(),
        }
    }
}

impl Survey {
    /// Compares the nodes with those of the last update, and schedules a new check of the stripes on disks that appeared or disappeared.
    pub fn look(&mut self, view: View) {
        let disks = view.nodes.values().flat_map(|node| node.disks.iter().map(|disk| Home { node: node.id, disk: disk.number }));
        let now: BTreeMap<Home, Reach> = disks.map(|home| (home, Reach::of(&view, home))).collect();
        let reach = |of: &BTreeMap<Home, Reach>, home: &Home| of.get(home).copied().unwrap_or(Reach::Gone);
        for home in now.keys().chain(self.reach.keys()) {
            let (before, after) = (reach(&self.reach, home), reach(&now, home));
            if before == after {
                continue;
            }
            if before.is_here() && after.is_here() && !self.disks.contains_key(home) {
                self.drained.insert(*home, walk());
            } else {
                self.drained.remove(home);
                self.disks.insert(*home, walk());
            }
        }
        // The survey of all stripes has not started, and will see the current state of all disks.
        if self.all.next() == Some(None) {
            self.disks.clear();
            self.drained.clear();
        }
        (self.view, self.reach) = (Arc::new(view), now);
    }

    /// The nodes at the last update. Stripes must be checked against these; otherwise a change between two updates would be missed.
    pub fn view(&self) -> Arc<View> {
        Arc::clone(&self.view)
    }

    /// All stripes are checked once more, from the first on.
    pub fn look_again(&mut self) {
        self.again = Some(walk());
    }

    /// The next page; `None` if the tally is up to date.
    pub fn next(&self) -> Option<Step> {
        let drained = || self.drained.iter().find_map(of_disk);
        let again = || self.again.as_ref().and_then(Walk::next).map(Step::Again);
        self.next_for_tally().or_else(drained).or_else(again)
    }

    fn next_for_tally(&self) -> Option<Step> {
        self.all.next().map(Step::All).or_else(|| self.disks.iter().find_map(of_disk))
    }

    /// Records a page that was checked against the view of the last update.
    pub fn came(&mut self, step: Step, page: &[StripeRecord], more: bool) {
        let ids: Vec<StripeId> = page.iter().map(|stripe| stripe.id).collect();
        match step {
            Step::All(_) => self.all.came(&ids, more),
            Step::Again(_) => self.again.iter_mut().for_each(|walk| walk.came(&ids, more)),
            Step::Disk(home, _) => {
                let walks = if self.disks.contains_key(&home) { &mut self.disks } else { &mut self.drained };
                if let Some(walk) = walks.get_mut(&home) {
                    walk.came(&ids, more);
                    if walk.next().is_none() {
                        walks.remove(&home);
                    }
                }
            }
        }
    }

    /// Whether there are stripes left to check before the tally is up to date.
    pub fn is_counting(&self) -> bool {
        self.next_for_tally().is_some()
    }
}

fn of_disk((home, walk): (&Home, &Walk<Place, StripeId>)) -> Option<Step> {
    walk.next().map(|after| Step::Disk(*home, after))
}

fn walk() -> Walk<Place, StripeId> {
    Walk::new(None, |stripe| Some(*stripe))
}
