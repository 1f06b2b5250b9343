//! The work on one stripe: which of its blocks are rebuilt now, and how it ended.

use crate::{
    compute::compute,
    rebuild::{owner::Of, shares::Shares},
    shared::Shared,
};
use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, PoisonError},
};
use weft_codes::SharedCode;
use weft_control::{
    healer::{self, Ended, Scope},
    health::{BadBlocks, Condition, FurtherLosses},
    options::RepairOptions,
    rebuild::{Destination, Lost, Rebuilt, Request},
    schedule::{Open, Scheduled},
    view::View,
};
use weft_meta::MetaError;
use weft_schemes::{Paths, Select};
use weft_types::{Amount, Error, HelperSelect, Owner, Result, StripeId, StripeRecord};

/// How nodes are selected.
pub(super) const SELECT: HelperSelect = HelperSelect::Boost;

/// Works on stripes.
pub(super) struct Worker<'a> {
    shared: &'a Arc<Shared>,
    shares: Shares,
    further: Mutex<FurtherLosses>,
}

/// A stripe and what a schedule has chosen for its rebuild.
#[derive(Debug)]
pub(super) struct Planned {
    pub(super) stripe: StripeId,
    /// The lost blocks, by index and copy, that it is for.
    pub(super) lost: Vec<(u8, u8)>,
    pub(super) scheduled: Option<Scheduled>,
}

/// A stripe with blocks that are due.
struct Due {
    of: Of,
    stripe: StripeRecord,
    lost: Vec<Lost>,
}

impl<'a> Worker<'a> {
    pub(super) fn new(shared: &'a Arc<Shared>) -> Self {
        Self { shared, shares: shared.jobs.shares(), further: Mutex::default() }
    }

    pub(super) fn shared(&self) -> &'a Arc<Shared> {
        self.shared
    }

    /// The nodes have changed, or nothing is under way.
    pub(super) fn begin_again(&self) {
        self.shares.begin_again();
    }

    /// What a schedule may choose for a stripe's blocks that are due, if anything. Ends if none are.
    pub(super) async fn open(&self, id: StripeId, scope: &Scope, view: &View) -> Result<(Planned, Option<Open>), Ended> {
        let due = self.due(id, scope).await.map_err(|error| Ended::Left(Amount::default(), error))?;
        let Some(Due { of, stripe, lost }) = due else { return Err(Ended::Nothing) };
        let lost_blocks = keys(&lost);
        let request = of.request(self.shared, (stripe, lost)).map_err(|error| Ended::Left(Amount::default(), error))?;
        let open = evenly(request, None).open(view, &self.shared.known);
        Ok((Planned { stripe: id, lost: lost_blocks, scheduled: None }, open))
    }

    /// Rebuilds the blocks of a stripe that are due. It may have changed since it was chosen.
    pub(super) async fn stripe(&self, planned: Planned, scope: &Scope) -> Ended {
        let id = planned.stripe;
        // Someone else rebuilds it. If anything is left, the tally shows it.
        let Some(_claim) = self.shared.claims.try_claim(id) else { return Ended::Nothing };
        match self.rebuilt(planned, scope).await {
            Ok(None) => Ended::Nothing,
            Ok(Some((done, None))) => Ended::Rebuilt(done),
            Ok(Some((done, Some(error)))) => Ended::Left(done, error),
            Err(error) => {
                tracing::debug!(stripe = %id, %error, "cannot rebuild blocks of a stripe yet");
                Ended::Left(Amount::default(), error)
            }
        }
    }

    /// What was rebuilt, and why not all of it; `None` if there is nothing to do.
    async fn rebuilt(&self, planned: Planned, scope: &Scope) -> Result<Option<(Amount, Option<Error>)>> {
        let Some(Due { of, stripe, lost }) = self.due(planned.stripe, scope).await? else { return Ok(None) };
        let scheduled = planned.scheduled.filter(|_| keys(&lost) == planned.lost);
        let layout = stripe.layout;
        let change = |request| evenly(request, scheduled);
        let rebuilt = of.rebuild(self.shared, (stripe, lost), &self.shares, change, |_| {}).await?;
        let mut done = Amount::default();
        rebuilt.blocks.iter().for_each(|new| done.add(layout.block_len(new.block.index.into())));
        Ok(Some((done, left(&rebuilt).map(|error| of.place(error)))))
    }

    /// The blocks of a stripe that are due, if any, by its current record.
    async fn due(&self, id: StripeId, scope: &Scope) -> Result<Option<Due>> {
        let shared = self.shared;
        let Some(stripe) = self.found(shared.meta.stripe(id).await)? else { return Ok(None) };
        if !matches!(stripe.owner, Owner::Object(_)) {
            return Ok(None);
        }
        let Some(of) = self.found(Of::owner(shared.meta.as_ref(), stripe.owner).await)? else { return Ok(None) };
        let lost = self.wanted(&stripe, &shared.code(&of.code)?, scope);
        Ok((!lost.is_empty()).then_some(Due { of, stripe, lost }))
    }

    fn wanted(&self, stripe: &StripeRecord, code: &SharedCode, scope: &Scope) -> Vec<Lost> {
        let view = self.shared.members.view();
        let blocks = BadBlocks::of(stripe, &view);
        if blocks.is_none() {
            return Vec::new();
        }
        let condition = compute(|| {
            let mut further = self.further.lock().unwrap_or_else(PoisonError::into_inner);
            Condition::of(stripe, blocks, code, &view, &mut further)
        });
        healer::wanted(stripe, &condition, scope, &view)
    }

    /// The result of a lookup; `None` if the record no longer exists.
    fn found<T>(&self, looked_up: Result<T, MetaError>) -> Result<Option<T>> {
        match looked_up {
            Err(MetaError::NotFound(_)) => Ok(None),
            found => found.map(Some).map_err(|error| self.shared.meta_error(error)),
        }
    }
}

/// By the nodes and the scheme of a schedule. What it leaves open is spread evenly, as in the repair of a node.
fn evenly(request: Request, scheduled: Option<Scheduled>) -> Request {
    let mut options = RepairOptions { select: Select::Ordered, paths: Paths::Count(1), ..request.options };
    if let Some(scheduled) = &scheduled {
        options.scheme.clone_from(&scheduled.scheme);
    }
    Request { options, helpers: Some(SELECT), scheduled, to: Destination::Among(BTreeSet::new()), only_lost: true, ..request }
}

fn keys(lost: &[Lost]) -> Vec<(u8, u8)> {
    lost.iter().map(|lost| (lost.index, lost.copy)).collect()
}

/// Why blocks were left out.
fn left(rebuilt: &Rebuilt) -> Option<Error> {
    let (_, why) = rebuilt.left.first()?;
    Some(Error { cause: rebuilt.lack, ..Error::unavailable(why) })
}
