//! Stripes that may be acknowledged before all their blocks are durable: the shell around [`weft_control::put::late`],
//! which decides when that is, and what happens to later blocks.

use super::late_plans::Place;
use crate::{pages::Stripes, shared::Shared, supervise::handle::PlanHandle, tasks};
use std::{collections::BTreeSet, sync::Arc};
use tokio::{sync::watch, task::JoinHandle};
use weft_control::{
    put::{
        LateStripe, Request, SentStripe,
        late::{Action, Event, World},
    },
    recovery,
    run::Report,
};
use weft_meta::UploadRecord;
use weft_types::{BlockId, BlockState, Error, NodeId, ObjectName, Owner, Result, StripeId, UploadId};

/// Fails if a put has lost too many blocks since its stripes ended. Blocks on nodes that are down may return soon:
/// [`Reaction::Retry`](weft_types::Reaction). A put that waits for all blocks of each stripe does not need this check.
pub(super) async fn require_readable(shared: &Shared, upload: &UploadRecord) -> Result<()> {
    if upload.new.ack.missing_max == 0 {
        return Ok(());
    }
    let code = shared.code(&upload.new.code)?;
    let mut stripes = Stripes::incomplete(shared, Owner::Upload(upload.id));
    while let Some(stripe) = stripes.next().await? {
        let view = shared.members.view();
        if let Some(error) = recovery::unreadable(&code, stripe, &view) {
            return Err(view.lacking_nodes(error).object(&upload.new.name));
        }
    }
    Ok(())
}

/// A plan that brings a stripe of a put.
pub(super) struct Bringing {
    upload: UploadId,
    object: ObjectName,
    stripe: (StripeId, u64),
    machine: LateStripe,
    handle: Arc<PlanHandle>,
    report: JoinHandle<Report>,
    so_far: watch::Receiver<Report>,
    /// Set if the plan continues after its stripe has ended.
    place: Option<Place>,
}

/// What a plan has brought when its stripe may end.
pub(super) struct Arrived {
    /// The stripe as its writer sent it.
    pub(super) sent: Box<SentStripe>,
    /// The agents' reports.
    pub(super) report: Report,
    /// The plan, if it continues.
    pub(super) late: Option<Bringing>,
}

impl Bringing {
    /// For the plan with this end, which the writer has finished.
    pub(super) fn new(
        request: Request,
        sent: Box<SentStripe>,
        complaints: BTreeSet<NodeId>,
        handle: Arc<PlanHandle>,
        report: JoinHandle<Report>,
    ) -> Self {
        let (upload, object, so_far) = (request.upload, request.object.clone(), handle.so_far());
        let stripe = (sent.stripe.id, sent.stripe.number);
        let machine = LateStripe::new(request, sent, complaints);
        Self { upload, object, stripe, machine, handle, report, so_far, place: None }
    }

    /// Waits until the plan has ended or, if another plan may continue, until enough blocks are durable.
    pub(super) async fn wait(mut self, shared: &Shared) -> Result<Arrived> {
        let (view, mut changes) = (shared.members.view(), shared.puts.late_blocks.changes());
        let mut event = Event::Told;
        loop {
            let report = self.so_far.borrow_and_update().clone();
            if let Some(sent) = self.on(shared, event, World { view: &view, report: &report }).await {
                return Ok(Arrived { sent, report, late: Some(self) });
            }
            event = tokio::select! {
                biased;
                ended = &mut self.report => {
                    let report = ended.map_err(|error| Error::fatal(format!("the supervision of a put failed: {error}")))?;
                    let sent = self.on(shared, Event::PlanEnded, World { view: &view, report: &report }).await;
                    let sent = sent.ok_or_else(|| Error::fatal("internal error: a stripe does not end with its plan"))?;
                    return Ok(Arrived { sent, report, late: None });
                }
                Ok(()) = self.so_far.changed() => Event::Told,
                Ok(()) = changes.changed() => Event::Room,
            };
        }
    }

    /// Its stripe has ended early, or could not. In the first case the plan is followed to its end, and later blocks
    /// are recorded.
    pub(super) async fn stripe_ended(mut self, shared: &Arc<Shared>, has_ended: bool) {
        let report = self.so_far.borrow().clone();
        self.on(shared, Event::StripeEnded(has_ended), World { view: &shared.members.view(), report: &report }).await;
        let (shared, stopped) = (Arc::clone(shared), shared.stop.subscribe());
        if self.place.is_some() {
            tasks::start_until_stopped(stopped, async move { self.follow(&shared).await });
        }
    }

    async fn follow(mut self, shared: &Shared) {
        while self.place.is_some() {
            let (event, report) = tokio::select! {
                biased;
                ended = &mut self.report => ended.map_or_else(
                    |error| {
                        tracing::error!(object = %self.object, stripe = self.stripe.1, %error, "the supervision of a put failed");
                        (Event::PlanLost, Report::default())
                    },
                    |report| (Event::PlanEnded, report),
                ),
                Ok(()) = self.so_far.changed() => (Event::Told, self.so_far.borrow_and_update().clone()),
            };
            self.on(shared, event, World { view: &shared.members.view(), report: &report }).await;
        }
    }

    /// Carries out what is decided. Returns the stripe if it must be ended.
    async fn on(&mut self, shared: &Shared, event: Event, world: World<'_>) -> Option<Box<SentStripe>> {
        let (mut ended, mut next) = (None, Some(event));
        while let Some(event) = next.take() {
            for action in self.machine.on(event, &world) {
                match action {
                    Action::Enter => {
                        let is_running = !self.report.is_finished();
                        let enter = || shared.puts.late_blocks.enter(self.stripe.0, self.upload, &self.handle);
                        self.place = is_running.then(enter).flatten();
                        next = Some(Event::Entered(self.place.is_some()));
                    }
                    Action::EndStripe { sent, .. } => ended = Some(sent),
                    Action::Mark(block) => next = Some(Event::Marked(self.mark(shared, block).await)),
                    Action::Suspect(node) => shared.members.suspect(node),
                    Action::Warn(block, reason) => {
                        tracing::warn!(object = %self.object, %block, reason, "a block of a put did not arrive and will be rebuilt");
                    }
                    Action::End => self.place = None,
                }
            }
        }
        ended
    }

    /// Records that a block is durable.
    async fn mark(&self, shared: &Shared, block: BlockId) -> Result<()> {
        shared.meta.mark_block(shared.epoch, block, BlockState::Ok).await.map_err(|error| shared.meta_error(error))?;
        tracing::debug!(object = %self.object, %block, "a block of a put arrived after its stripe had ended");
        Ok(())
    }
}
