//! The cluster's health: the shell around [`weft_control::health`], which decides.
//!
//! One task maintains the tally. Only this task reads stripes for it, page by page, so a status query scans nothing. It reads all stripes
//! once after the start, then those that the metadata reports as changed, and those of disks that appeared or disappeared.

mod answer;
pub(crate) mod state;

pub(crate) use answer::reply;

use crate::{compute::compute, shared::Shared};
use std::{collections::BTreeMap, sync::Arc, time::Duration};
use tokio::time::Instant;
use weft_codes::SharedCode;
use weft_control::{
    health::{BadBlocks, Condition, FurtherLosses, Step},
    view::View,
};
use weft_meta::MetaError;
use weft_types::{Owner, Result, StripeId, StripeRecord, UploadId};

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
    codes: BTreeMap<UploadId, SharedCode>,
    /// Changed stripes that were taken but not checked yet.
    changed: Vec<StripeId>,
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
            let (view, step) = {
                let mut state = shared.health.lock();
                state.survey.look(shared.members.view());
                (state.survey.view(), state.survey.next())
            };
            if self.look_at_changed(shared, &view).await? {
                continue;
            }
            let Some(step) = step else { return Ok(()) };
            let page = match step {
                Step::All(after) => shared.meta.object_stripes(after, STRIPES_PER_PAGE).await,
                Step::Disk(home, after) => shared.meta.stripes_on(home, after, STRIPES_PER_PAGE).await,
            };
            let page = page.map_err(|error| shared.meta_error(error))?;
            let mut judged = self.judged(shared, &page.items, &view).await?;
            {
                let mut state = shared.health.lock();
                page.items.iter().for_each(|stripe| state.tally.set(stripe.id, judged.remove(&stripe.id)));
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
        let found = shared.meta.find_stripes(self.changed.clone()).await.map_err(|error| shared.meta_error(error))?;
        let mut judged = self.judged(shared, &found, view).await?;
        let mut state = shared.health.lock();
        self.changed.drain(..).for_each(|id| state.tally.set(id, judged.remove(&id)));
        Ok(true)
    }

    /// The conditions of those stripes that have bad blocks and belong to an object.
    async fn judged(&mut self, shared: &Shared, stripes: &[StripeRecord], view: &View) -> Result<BTreeMap<StripeId, Condition>> {
        let mut bad = Vec::new();
        for stripe in stripes {
            let blocks = BadBlocks::of(stripe, view);
            if let Owner::Object(version) = stripe.owner
                && !blocks.is_none()
                && let Some(code) = self.code_of(shared, version).await?
            {
                bad.push((stripe, blocks, code));
            }
        }
        if bad.is_empty() {
            return Ok(BTreeMap::new());
        }
        let further = &mut self.further;
        let condition = |(stripe, blocks, code): (&StripeRecord, BadBlocks, SharedCode)| {
            (stripe.id, Condition::of(stripe, blocks, &code, view, further))
        };
        Ok(compute(|| bad.into_iter().map(condition).collect()))
    }

    /// The code of an object; `None` if the object no longer exists. Its stripes are then among the changed ones.
    async fn code_of(&mut self, shared: &Shared, version: UploadId) -> Result<Option<SharedCode>> {
        if let Some(code) = self.codes.get(&version) {
            return Ok(Some(Arc::clone(code)));
        }
        let code = match shared.meta.object_of(version).await {
            Ok(object) => shared.code(&object.code)?,
            Err(MetaError::NotFound(_)) => return Ok(None),
            Err(error) => return Err(shared.meta_error(error)),
        };
        if self.codes.len() >= CODES_MAX {
            self.codes.clear();
        }
        self.codes.insert(version, Arc::clone(&code));
        Ok(Some(code))
    }
}
