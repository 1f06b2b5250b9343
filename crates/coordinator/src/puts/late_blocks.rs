//! Stripes that may be acknowledged before all their blocks are durable: when that is, and what becomes of the plans that still bring
//! the rest of them.

use super::late_plans::Place;
use crate::{
    shared::{Shared, until_stopped},
    supervise::handle::PlanHandle,
};
use std::sync::Arc;
use tokio::{sync::watch, task::JoinHandle};
use weft_control::{put, recovery, run::Report};
use weft_meta::UploadRecord;
use weft_types::{BlockId, BlockState, Error, ObjectName, Owner, PlacedBlock, Result, StripeId, StripeRecord, UploadId};

/// Stripes that are looked up together.
const STRIPES_PER_PAGE: u32 = 256;

/// Refuses to acknowledge a put of which too much has been lost since its stripes ended. What was lost only with nodes that are down may be
/// back soon: [`Reaction::Retry`](weft_types::Reaction). One that waited for all blocks is not looked
/// at: it had as much as it could.
pub(super) async fn require_readable(shared: &Shared, upload: &UploadRecord) -> Result<()> {
    if upload.new.ack.missing_max == 0 {
        return Ok(());
    }
    let code = shared.code(&upload.new.code)?;
    let mut from = 0;
    loop {
        let page = shared.meta.incomplete_of(Owner::Upload(upload.id), from, STRIPES_PER_PAGE).await;
        let page = page.map_err(|error| shared.meta_error(error))?;
        for stripe in page.items {
            from = stripe.number + 1;
            let view = shared.members.view();
            if let Some(error) = recovery::unreadable(&code, stripe, &view) {
                return Err(view.lacking_nodes(error).object(&upload.new.name));
            }
        }
        if !page.more {
            return Ok(());
        }
    }
}

/// What a plan has brought when its stripe may end.
pub(super) enum Arrived {
    /// All that it will bring.
    All(Report),
    /// Enough; the plan goes on.
    Enough(Report, Following),
}

/// A plan that goes on although its stripe ends.
pub(super) struct Following {
    report: JoinHandle<Report>,
    so_far: watch::Receiver<Report>,
    place: Place,
}

/// Waits until a plan has brought all that it will or, as soon as there is room for one more plan that goes on, enough.
pub(super) async fn wait(
    shared: &Shared,
    (stripe, upload): (StripeId, UploadId),
    mut report: JoinHandle<Report>,
    handle: &Arc<PlanHandle>,
    is_enough: impl Fn(&Report) -> bool,
) -> Result<Arrived> {
    let late_blocks = &shared.puts.late_blocks;
    let (mut so_far, mut changes) = (handle.so_far(), late_blocks.changes());
    let mut enough = is_enough(&so_far.borrow_and_update());
    loop {
        if enough
            && !report.is_finished()
            && let Some(place) = late_blocks.enter(stripe, upload, handle)
        {
            let arrived = so_far.borrow().clone();
            return Ok(Arrived::Enough(arrived, Following { report, so_far, place }));
        }
        tokio::select! {
            biased;
            ended = &mut report => {
                let ended = ended.map_err(|error| Error::fatal(format!("a put was not watched over: {error}")))?;
                return Ok(Arrived::All(ended));
            }
            Ok(()) = so_far.changed(), if !enough => enough = is_enough(&so_far.borrow_and_update()),
            Ok(()) = changes.changed(), if enough => {}
        }
    }
}

/// A stripe that has ended without some of its blocks.
pub(super) struct LateStripe {
    pub(super) object: ObjectName,
    /// What had come by then is in the state that says so.
    pub(super) stripe: StripeRecord,
    /// The checksums that the writer made.
    pub(super) checksums: Vec<Option<Vec<u32>>>,
}

impl Following {
    /// Follows the plan to its end, and writes down which of the blocks that were left have come, each as soon as it has. The others are
    /// rebuilt.
    pub(super) fn go_on(self, shared: &Arc<Shared>, mut left: LateStripe, learn: impl FnOnce(&Report) + Send + 'static) {
        let (shared, stopped) = (Arc::clone(shared), shared.stop.subscribe());
        tokio::spawn(until_stopped(stopped, async move {
            let Self { mut report, mut so_far, place } = self;
            let ended = loop {
                tokio::select! {
                    biased;
                    ended = &mut report => break ended,
                    Ok(()) = so_far.changed() => {
                        let come = so_far.borrow_and_update().clone();
                        left.write_down(&shared, &come).await;
                    }
                }
            };
            match ended {
                Ok(report) => {
                    learn(&report);
                    for (block, reason) in left.write_down(&shared, &report).await {
                        tracing::warn!(object = %left.object, %block, reason, "a block of a put did not come; it is to be rebuilt");
                    }
                }
                Err(error) => {
                    tracing::error!(object = %left.object, stripe = left.stripe.number, %error, "a put was not watched over");
                }
            }
            // Only now what is still missing may be rebuilt.
            drop(place);
        }));
    }
}

impl LateStripe {
    /// Writes down what has come since the last time. Tells what has not, and why.
    async fn write_down(&mut self, shared: &Shared, report: &Report) -> Vec<(BlockId, String)> {
        let Self { object, stripe, checksums } = self;
        let left = stripe.all().filter(|(_, placed)| placed.state != BlockState::Ok);
        let left: Vec<(u8, PlacedBlock)> = left.map(|(index, placed)| (index, *placed)).collect();
        let (view, mut reasons) = (shared.members.view(), Vec::new());
        for (index, placed) in left {
            let block = stripe.id_of(index, &placed);
            if let Some(reason) = put::why_not_received(stripe, (index, &placed), checksums, report, &view) {
                reasons.push((block, reason));
                continue;
            }
            match shared.meta.mark_block(shared.epoch, block, BlockState::Ok).await {
                Ok(_) => {
                    tracing::debug!(%object, %block, "a block of a put has come after its stripe's end");
                    stripe.find_mut(index, placed.copy).into_iter().for_each(|placed| placed.state = BlockState::Ok);
                }
                Err(error) => {
                    let error = shared.meta_error(error);
                    reasons.push((block, format!("that it has come could not be written down: {error}")));
                }
            }
        }
        reasons
    }
}
