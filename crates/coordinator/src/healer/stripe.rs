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
};
use weft_meta::MetaError;
use weft_schemes::{Paths, Select};
use weft_types::{Amount, Error, HelperSelect, Owner, Result, StripeId, StripeRecord};

/// Works on stripes.
pub(super) struct Worker<'a> {
    shared: &'a Arc<Shared>,
    shares: Shares,
    further: Mutex<FurtherLosses>,
}

impl<'a> Worker<'a> {
    pub(super) fn new(shared: &'a Arc<Shared>) -> Self {
        Self { shared, shares: shared.jobs.shares(), further: Mutex::default() }
    }

    /// The nodes have changed, or nothing is under way.
    pub(super) fn begin_again(&self) {
        self.shares.begin_again();
    }

    /// Rebuilds the blocks of a stripe that are due. It may have changed since it was chosen.
    pub(super) async fn stripe(&self, id: StripeId, scope: &Scope) -> Ended {
        // Someone else rebuilds it. If anything is left, the tally shows it.
        let Some(_claim) = self.shared.claims.try_claim(id) else { return Ended::Nothing };
        match self.rebuilt(id, scope).await {
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
    async fn rebuilt(&self, id: StripeId, scope: &Scope) -> Result<Option<(Amount, Option<Error>)>> {
        let shared = self.shared;
        let Some(stripe) = self.found(shared.meta.stripe(id).await)? else { return Ok(None) };
        if !matches!(stripe.owner, Owner::Object(_)) {
            return Ok(None);
        }
        let Some(of) = self.found(Of::owner(shared.meta.as_ref(), stripe.owner).await)? else { return Ok(None) };
        let lost = self.wanted(&stripe, &shared.code(&of.code)?, scope);
        if lost.is_empty() {
            return Ok(None);
        }
        let layout = stripe.layout;
        let rebuilt = of.rebuild(shared, (stripe, lost), &self.shares, evenly, |_| {}).await?;
        let mut done = Amount::default();
        rebuilt.blocks.iter().for_each(|new| done.add(layout.block_len(new.block.index.into())));
        Ok(Some((done, left(&rebuilt).map(|error| of.place(error)))))
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

/// Spreads helpers and new blocks evenly, as the repair of a node does.
fn evenly(request: Request) -> Request {
    let options = RepairOptions { select: Select::Ordered, paths: Paths::Count(1), ..request.options };
    Request { options, helpers: Some(HelperSelect::Lru), to: Destination::Among(BTreeSet::new()), ..request }
}

/// Why blocks were left out.
fn left(rebuilt: &Rebuilt) -> Option<Error> {
    let (_, why) = rebuilt.left.first()?;
    Some(Error { cause: rebuilt.lack, ..Error::unavailable(why) })
}
