//! The cluster's health: the shell around [`weft_control::health`], which decides.
//!
//! One task maintains the tally. Only this task reads stripes for it, page by page, so a status query scans nothing. It reads all stripes
//! once after the start, then those that the metadata reports as changed, and those of disks that appeared or disappeared.

mod answer;
pub(crate) mod state;

pub(crate) use answer::{Summary, bad_blocks, reply, summary};

use crate::{compute::compute, rebuild::owner::Of, shared::Shared};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};
use tokio::time::Instant;
use weft_codes::SharedCode;
use weft_control::{
    crowding::{self, Racks},
    health::{BadBlocks, Condition, Copied, FurtherLosses, Step},
    view::View,
};
use weft_meta::MetaError;
use weft_types::{FailureDomain, Owner, Result, StripeId, StripeRecord, UploadId};

/// How often the task looks for changes.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);
/// How often a lasting failure is logged.
const WARN_INTERVAL: Duration = Duration::from_secs(60);
/// Stripes that are checked together.
const STRIPES_PER_PAGE: u32 = 256;
/// The pause between two pages, so that other users of the metadata get their turn.
const PAGE_PAUSE: Duration = Duration::from_millis(5);
/// The most object versions whose codes are cached.
const CODES_MAX: usize = 1_024;

/// The state of the task that maintains the tally.
#[derive(Default)]
struct Keeper {
    further: FurtherLosses,
    codes: BTreeMap<UploadId, Coding>,
    /// The racks of the last look, if there was one.
    racks: Option<Racks>,
    /// Changed stripes that were taken but not checked yet.
    changed: Vec<StripeId>,
}

/// How an object's stripes are coded and placed.
#[derive(Clone)]
struct Coding {
    code: SharedCode,
    failure_domain: FailureDomain,
}

/// What was found about stripes.
struct Found {
    bad: BTreeMap<StripeId, Condition>,
    /// Of the others, those with too many blocks in a rack.
    crowded: BTreeSet<StripeId>,
    /// On how many nodes those are whose data have copies.
    copied: BTreeMap<StripeId, usize>,
}

impl Found {
    /// Records it for one of these stripes.
    fn record(&mut self, stripe: StripeId, state: &mut state::State) {
        state.tally.set(stripe, self.bad.remove(&stripe));
        state.crowded.set(stripe, self.crowded.contains(&stripe));
        state.copied.set(stripe, self.copied.remove(&stripe));
    }
}

/// Maintains the tally until it is dropped.
pub(crate) async fn run(shared: Arc<Shared>) {
    // Otherwise all stripes would count as unreadable until the nodes have registered.
    shared.until_nodes_are_back().await;
    let mut keeper = Keeper::default();
    let mut warned_at: Option<Instant> = None;
    let mut look = tokio::time::interval(LOOK_INTERVAL);
    look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        look.tick().await;
        if let Err(error) = keeper.catch_up(&shared).await
            && warned_at.is_none_or(|at| at.elapsed() >= WARN_INTERVAL)
        {
            warned_at = Some(Instant::now());
            tracing::warn!(%error, "cannot count the stripes with bad blocks");
        }
    }
}

impl Keeper {
    async fn catch_up(&mut self, shared: &Shared) -> Result<()> {
        loop {
            let view = {
                let mut state = shared.health.lock();
                state.survey.look(shared.members.view());
                state.survey.view()
            };
            self.look_at_racks(shared, &view).await?;
            if self.look_at_changed(shared, &view).await? {
                continue;
            }
            let Some(step) = shared.health.lock().survey.next() else { return Ok(()) };
            let page = match step {
                Step::All(after) | Step::Again(after) => shared.meta.object_stripes(after, STRIPES_PER_PAGE).await,
                Step::Disk(home, after) => shared.meta.stripes_on(home, after, STRIPES_PER_PAGE).await,
            };
            let page = page.map_err(|error| shared.meta_error(error))?;
            let mut found = self.judged(shared, &page.items, &view).await?;
            {
                let mut state = shared.health.lock();
                page.items.iter().for_each(|stripe| found.record(stripe.id, &mut state));
                state.survey.came(step, &page.items, page.more);
            }
            tokio::time::sleep(PAGE_PAUSE).await;
        }
    }

    /// Checks stripes that changed, if there are any. Those that could not be read from the metadata are checked again later.
    async fn look_at_changed(&mut self, shared: &Shared, view: &View) -> Result<bool> {
        if self.changed.is_empty() {
            let changed = shared.meta.changed_stripes(STRIPES_PER_PAGE).await;
            self.changed = changed.map_err(|error| shared.meta_error(error))?;
        }
        if self.changed.is_empty() {
            return Ok(false);
        }
        let stripes = shared.meta.find_stripes(self.changed.clone()).await.map_err(|error| shared.meta_error(error))?;
        let mut found = self.judged(shared, &stripes, view).await?;
        let mut state = shared.health.lock();
        self.changed.drain(..).for_each(|id| found.record(id, &mut state));
        Ok(true)
    }

    /// If racks can now keep stripes of some code that they could not before, or the other way round, all stripes are looked at again.
    async fn look_at_racks(&mut self, shared: &Shared, view: &View) -> Result<()> {
        let racks = Racks::of(view);
        let has_changed = match self.racks.as_ref().filter(|before| **before != racks) {
            None => false,
            Some(before) => {
                let fit = |racks: &Racks, code: &SharedCode| racks.fit(code.n(), code.tolerance());
                shared.codes_in_use().await?.iter().any(|code| fit(&racks, code) != fit(before, code))
            }
        };
        self.racks = Some(racks);
        let mut state = shared.health.lock();
        if has_changed || state.crowded.take_forgotten() {
            state.survey.look_again();
        }
        Ok(())
    }

    /// What is to be said of these stripes, if they belong to objects.
    async fn judged(&mut self, shared: &Shared, stripes: &[StripeRecord], view: &View) -> Result<Found> {
        let (mut bad, mut perhaps_crowded) = (Vec::new(), Vec::new());
        for stripe in stripes {
            let Owner::Object(version) = stripe.owner else { continue };
            let blocks = BadBlocks::of(stripe, view);
            if blocks.is_none() {
                perhaps_crowded.push((stripe, version, crowding::most_in_rack(stripe, view)));
            } else if let Some(Coding { code, .. }) = self.coding_of(shared, version).await? {
                bad.push((stripe, blocks, code));
            }
        }
        let of_objects = stripes.iter().filter(|stripe| matches!(stripe.owner, Owner::Object(_)));
        let copied = of_objects.filter_map(|stripe| Some((stripe.id, Copied::nodes_of(stripe)?))).collect();
        let mut found = Found { bad: BTreeMap::new(), crowded: self.crowded(shared, perhaps_crowded, view).await?, copied };
        if !bad.is_empty() {
            let further = &mut self.further;
            let condition = |(stripe, blocks, code): (&StripeRecord, BadBlocks, SharedCode)| {
                (stripe.id, Condition::of(stripe, blocks, &code, view, further))
            };
            found.bad = compute(|| bad.into_iter().map(condition).collect());
        }
        Ok(found)
    }

    /// Those of the stripes that have too many blocks in a rack, given the most in any.
    async fn crowded(
        &mut self,
        shared: &Shared,
        mut stripes: Vec<(&StripeRecord, UploadId, usize)>,
        view: &View,
    ) -> Result<BTreeSet<StripeId>> {
        let mut crowded = BTreeSet::new();
        stripes.retain(|(.., most)| *most > 1);
        let Some(racks) = self.racks.clone().filter(|_| !stripes.is_empty()) else { return Ok(crowded) };
        // Objects are looked up only for the few stripes that some code would not allow and that other racks can help.
        let codes = shared.codes_in_use().await?;
        stripes.retain(|(stripe, _, most)| {
            let same = |code: &&SharedCode| (code.k(), code.m()) == (stripe.layout.k as usize, stripe.layout.m as usize);
            let tolerances = codes.iter().filter(same).map(|code| code.tolerance());
            crowding::may_be_crowded(stripe, *most, tolerances, &racks)
        });
        for (stripe, version, _) in stripes {
            if let Some(Coding { code, failure_domain }) = self.coding_of(shared, version).await?
                && !crowding::excess(stripe, code.tolerance(), failure_domain, &racks, view).is_empty()
            {
                crowded.insert(stripe.id);
            }
        }
        Ok(crowded)
    }

    /// The code of an object, and its bucket's failure domain; `None` if the object no longer exists. Its stripes are then among the changed
    /// ones.
    async fn coding_of(&mut self, shared: &Shared, version: UploadId) -> Result<Option<Coding>> {
        if let Some(coding) = self.codes.get(&version) {
            return Ok(Some(coding.clone()));
        }
        let Of { code, failure_domain, .. } = match Of::owner(shared.meta.as_ref(), Owner::Object(version)).await {
            Ok(of) => of,
            Err(MetaError::NotFound(_)) => return Ok(None),
            Err(error) => return Err(shared.meta_error(error)),
        };
        let coding = Coding { code: shared.code(&code)?, failure_domain };
        if self.codes.len() >= CODES_MAX {
            self.codes.clear();
        }
        self.codes.insert(version, coding.clone());
        Ok(Some(coding))
    }
}
