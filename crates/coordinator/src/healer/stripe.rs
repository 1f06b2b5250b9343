//! The work on one stripe: which of its blocks are rebuilt now, and how it ended.

use crate::{
    compute::compute,
    rebuild::{owner::Of, shares::Shares},
    shared::Shared,
    updates::settle,
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
    rebuild::{Answers, Destination, Lost, Needed, Rebuilt, Request},
    schedule::{Open, Scheduled},
    view::View,
};
use weft_meta::MetaError;
use weft_schemes::{Kind, Paths, Select, simplest};
use weft_types::{Amount, Error, HelperSelect, Owner, Result, StripeId, StripeRecord};

/// How nodes are selected.
pub(crate) const SELECT: HelperSelect = HelperSelect::Boost;

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
    /// Whether they are not lost, and only leave their nodes or disks.
    leave: bool,
}

impl Due {
    /// The blocks, by index and copy.
    fn keys(&self) -> Vec<(u8, u8)> {
        self.lost.iter().map(|lost| (lost.index, lost.copy)).collect()
    }
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
        let Some(due) = due else { return Err(Ended::Nothing) };
        let lost = due.keys();
        let Due { of, stripe, lost: blocks, leave } = due;
        let request = of.request(self.shared, (stripe, blocks)).map_err(|error| Ended::Left(Amount::default(), error))?;
        let open = to_schedule(request, leave).open(view, &self.shared.known);
        Ok((Planned { stripe: id, lost, scheduled: None }, open))
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
        settle::if_open(self.shared, planned.stripe).await?;
        let Some(due) = self.due(planned.stripe, scope).await? else { return Ok(None) };
        let scheduled = planned.scheduled.filter(|_| due.keys() == planned.lost);
        let Due { of, stripe, lost, leave } = due;
        let layout = stripe.layout;
        let copy = simplest(Kind::Move)?.name();
        let change = |request| if leave { moved(evenly(request, scheduled), copy) } else { evenly(request, scheduled) };
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
        let (lost, leave) = self.wanted(&stripe, &shared.code(&of.code)?, scope);
        Ok((!lost.is_empty()).then_some(Due { of, stripe, lost, leave }))
    }

    /// The blocks that are due, and whether they only leave.
    fn wanted(&self, stripe: &StripeRecord, code: &SharedCode, scope: &Scope) -> (Vec<Lost>, bool) {
        let view = self.shared.members.view();
        let blocks = BadBlocks::of(stripe, &view);
        if blocks.is_none() {
            return (Vec::new(), false);
        }
        let condition = compute(|| {
            let mut further = self.further.lock().unwrap_or_else(PoisonError::into_inner);
            Condition::of(stripe, blocks, code, &view, &mut further)
        });
        (healer::wanted(stripe, &condition, scope, &view), condition.only_moves())
    }

    /// The result of a lookup; `None` if the record no longer exists.
    fn found<T>(&self, looked_up: Result<T, MetaError>) -> Result<Option<T>> {
        match looked_up {
            Err(MetaError::NotFound(_)) => Ok(None),
            found => found.map(Some).map_err(|error| self.shared.meta_error(error)),
        }
    }
}

/// What a schedule decides about: by the usual scheme and not by a copy, so that the schedule has the choice. `leave`: the blocks are not
/// lost.
pub(crate) fn to_schedule(request: Request, leave: bool) -> Request {
    let needed = if leave { Needed::WhileLeaving } else { Needed::WhileLost };
    Request { needed, ..evenly(request, None) }
}

/// By the nodes and the scheme of a schedule. What it leaves open is spread evenly, as in the repair of a node.
fn evenly(request: Request, scheduled: Option<Scheduled>) -> Request {
    let mut options = RepairOptions { select: Select::Ordered, paths: Paths::Count(1), ..request.options };
    if let Some(scheduled) = &scheduled {
        options.scheme.clone_from(&scheduled.scheme);
    }
    Request {
        options,
        helpers: Some(SELECT),
        scheduled,
        to: Destination::Among(BTreeSet::new()),
        needed: Needed::WhileLost,
        answers: Answers::default(),
        ..request
    }
}

/// For blocks that can be read where they are: without a schedule, they are copied. The old ones serve until the new ones are committed.
fn moved(request: Request, copy: &str) -> Request {
    let mut options = request.options;
    if request.scheduled.is_none() {
        copy.clone_into(&mut options.scheme);
    }
    Request { options, needed: Needed::WhileLeaving, ..request }
}

/// Why blocks were left out.
fn left(rebuilt: &Rebuilt) -> Option<Error> {
    let (_, why) = rebuilt.left.first()?;
    Some(Error { cause: rebuilt.lack, ..Error::unavailable(why) })
}
