//! Stripes that may be acknowledged before all their blocks are durable: when that is, and what becomes of the plans that still bring
//! the rest of them.

use super::end::why_not_received;
use crate::{coordinator::until_stopped, shared::Shared, supervise::Settle};
use std::{collections::BTreeMap, sync::Arc, time::Duration};
use tokio::{sync::watch, task::JoinHandle};
use weft_codes::SharedCode;
use weft_control::{planning, run::Report, view::View};
use weft_meta::UploadRecord;
use weft_types::{
    BlockId, BlockState, Error, ObjectName, Owner, PlacedBlock, Reaction, Result, StripeId, StripeRecord, UploadId,
};

/// Plans of one put whose stripes have ended, at most: with more of them under way a stripe ends when all have done their share, so that
/// a writer is not ahead of its receivers without bound. Each holds memory at those who have not done theirs.
const PLANS_PER_PUT_MAX: usize = 4;
/// And of all puts.
const PLANS_MAX: usize = 256;
/// Stripes that are looked up together.
const STRIPES_PER_PAGE: u32 = 256;

/// The plans that go on although their stripes have ended.
#[derive(Debug)]
pub(crate) struct LateBlocks(Arc<watch::Sender<Plans>>);

type Plans = BTreeMap<StripeId, (UploadId, Arc<Settle>)>;

impl Default for LateBlocks {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(Plans::new())))
    }
}

/// A plan's place among them, until it is dropped.
#[derive(Debug)]
pub(super) struct Place {
    plans: Arc<watch::Sender<Plans>>,
    stripe: StripeId,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.plans.send_if_modified(|plans| plans.remove(&self.stripe).is_some());
    }
}

impl LateBlocks {
    /// A place for a stripe's plan, if there is room.
    fn enter(&self, stripe: StripeId, upload: UploadId, settle: &Arc<Settle>) -> Option<Place> {
        let entered = self.0.send_if_modified(|plans| {
            let own = plans.values().filter(|(of, _)| *of == upload).count();
            let has_room = own < PLANS_PER_PUT_MAX && plans.len() < PLANS_MAX;
            has_room && plans.insert(stripe, (upload, Arc::clone(settle))).is_none()
        });
        entered.then(|| Place { plans: Arc::clone(&self.0), stripe })
    }

    /// Whether blocks of a stripe are still being brought by the plan of its put.
    pub(crate) fn has_stripe(&self, stripe: StripeId) -> bool {
        self.0.borrow().contains_key(&stripe)
    }

    /// Whether blocks of a put are.
    pub(super) fn has_put(&self, upload: UploadId) -> bool {
        self.0.borrow().values().any(|(of, _)| *of == upload)
    }

    /// Stops those of a put.
    pub(super) fn stop(&self, upload: UploadId) {
        let plans = self.0.borrow();
        plans.values().filter(|(of, _)| *of == upload).for_each(|(_, settle)| settle.settle(Duration::ZERO));
    }

    /// A stripe has ended without some of its blocks, and nobody brings them.
    pub(super) fn has_left(&self) {
        self.0.send_modify(|_| {});
    }

    /// Tells whenever a plan comes or ends, or a stripe is left incomplete.
    pub(crate) fn changes(&self) -> watch::Receiver<Plans> {
        self.0.subscribe()
    }
}

/// Whether a stripe may be acknowledged without these blocks: they are no more than may be missing, everybody knows what they must
/// become, and they can be made of the others.
pub(super) fn is_enough(
    code: &SharedCode,
    stripe: &StripeRecord,
    checksums: &[Option<Vec<u32>>],
    missing: &[u8],
    missing_max: u32,
) -> bool {
    let is_known = |index: &u8| checksums.get(usize::from(*index)).is_some_and(Option::is_some);
    missing.len() <= missing_max as usize && missing.iter().all(is_known) && is_recoverable(code, stripe, missing)
}

/// Whether blocks can be made of all others.
pub(super) fn is_recoverable(code: &SharedCode, stripe: &StripeRecord, missing: &[u8]) -> bool {
    let all = (0..=u8::MAX).take(stripe.blocks.len());
    let stored: Vec<u8> = all.filter(|index| !missing.contains(index)).collect();
    let wanted: Vec<_> = missing.iter().map(|index| (*index, stripe.layout.coded_span())).collect();
    planning::unrecoverable(code, stripe, &stored, &wanted).is_none()
}

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
            if let Some(error) = unreadable(&code, stripe, &shared.members.view()) {
                return Err(shared.lacking_nodes(error).object(&upload.new.name));
            }
        }
        if !page.more {
            return Ok(());
        }
    }
}

/// Why a stripe cannot be acknowledged, if that is so.
fn unreadable(code: &SharedCode, stripe: StripeRecord, view: &View) -> Option<Error> {
    let error = too_many_lost(code, stripe.clone(), view)?;
    let mut all_back = view.clone();
    all_back.nodes.values_mut().for_each(|node| node.up = true);
    let (reaction, why) = match too_many_lost(code, stripe, &all_back) {
        None => (Reaction::Retry, "for as long as nodes are down that have what it takes to read it"),
        Some(_) => (error.reaction, "as too much was lost since it was sent"),
    };
    Some(Error { reaction, message: format!("it is not acknowledged, {why}: {}", error.message), ..error })
}

/// Why a stripe's data cannot be had of what stands at a moment, if that is so.
fn too_many_lost(code: &SharedCode, stripe: StripeRecord, view: &View) -> Option<Error> {
    let stripe = view.serving(stripe, |_, _| false, |_| 0);
    let readable = planning::readable(&stripe, view, |_| false);
    let available: Vec<u8> = readable.good.into_iter().chain(readable.suspect).collect();
    let data: Vec<_> = (0..code.k() as u8).map(|index| (index, stripe.layout.coded_span())).collect();
    let absent = planning::unrecoverable(code, &stripe, &available, &data)?;
    let lost = planning::why_absent(&stripe, &absent, &readable.lost, "it cannot be read");
    Some(planning::too_many_lost(code, &stripe, &lost, view))
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
    settle: &Arc<Settle>,
    is_enough: impl Fn(&Report) -> bool,
) -> Result<Arrived> {
    let late_blocks = &shared.puts.late_blocks;
    let (mut so_far, mut changes) = (settle.so_far(), late_blocks.changes());
    let mut enough = is_enough(&so_far.borrow_and_update());
    loop {
        if enough
            && !report.is_finished()
            && let Some(place) = late_blocks.enter(stripe, upload, settle)
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
        let mut reasons = Vec::new();
        for (index, placed) in left {
            let block = stripe.id_of(index, &placed);
            if let Some(reason) = why_not_received(shared, stripe, (index, &placed), checksums, report) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use weft_control::view::{DiskView, NodeView};
    use weft_types::{DiskNumber, Home, Layout, NodeId, Owner, PlacedBlock, StripeLayout};

    fn stripe(code: &SharedCode) -> StripeRecord {
        let (k, m) = (code.k() as u32, code.m() as u32);
        let layout = StripeLayout { layout: Layout::new(8192, 4096, 1).unwrap(), k, m, data_len: 8192 * u64::from(k) };
        let home = |node| Home { node: NodeId(node), disk: DiskNumber(node) };
        let placed =
            |node| PlacedBlock { generation: 1, generation_high_water: 1, home: home(node), state: BlockState::Missing, copy: 0 };
        StripeRecord {
            id: StripeId(1),
            owner: Owner::Upload(UploadId(1)),
            number: 0,
            ended: false,
            seq: 0,
            layout,
            blocks: (1..=k + m).map(placed).collect(),
            checksums: Vec::new(),
            corrupt: BTreeMap::new(),
            incomplete: false,
            copies: Vec::new(),
        }
    }

    #[test]
    fn a_stripe_is_acknowledged_only_with_what_all_the_rest_can_be_made_of() {
        let enough = |spec: &str, missing: &[u8], missing_max| {
            let code = weft_codes::parse(spec).unwrap();
            let stripe = stripe(&code);
            is_enough(&code, &stripe, &vec![Some(vec![7]); stripe.blocks.len()], missing, missing_max)
        };
        assert!(enough("rs(4,2)", &[], 0) && enough("rs(4,2)", &[3], 1) && enough("rs(4,2)", &[0, 5], 2));
        assert!(!enough("rs(4,2)", &[3], 0) && !enough("rs(4,2)", &[0, 5], 1), "more are missing than may be");
        // Two of a local group of two and both global parities: k + 0 blocks are there, and do not do.
        assert!(enough("lrc(4,2,2)", &[0, 4, 6], 4) && enough("lrc(4,2,2)", &[4, 5, 6, 7], 4));
        assert!(!enough("lrc(4,2,2)", &[0, 1, 6, 7], 4), "as many as asked for, and they are not enough");
    }

    #[test]
    fn who_is_only_down_is_waited_for_and_what_is_lost_is_not() {
        let code = weft_codes::parse("rs(4,2)").unwrap();
        let mut stripe = stripe(&code);
        stripe.blocks.iter_mut().for_each(|placed| placed.state = BlockState::Ok);
        stripe.blocks[2].state = BlockState::Missing;
        let acknowledged = |down: &[u32], failed: &[u32]| {
            let node = |id: u32| {
                let (number, path) = (DiskNumber(id), String::new());
                let failed = failed.contains(&id);
                let disk = DiskView { number, id: path.clone(), path, total_bytes: 9, free_bytes: 9, failed, blocks: 1 };
                let (name, rack, up) = (id.to_string(), "r".to_owned(), !down.contains(&id));
                (NodeId(id), NodeView { id: NodeId(id), name, rack, up, suspect_for: Duration::ZERO, disks: vec![disk] })
            };
            let view = View { nodes: (1..=6).map(node).collect() };
            unreadable(&code, stripe.clone(), &view).map_or(Ok(()), |error| Err(error.reaction))
        };
        assert_eq!((acknowledged(&[1], &[]), acknowledged(&[], &[1])), (Ok(()), Ok(())));
        assert_eq!(acknowledged(&[1, 4], &[]), Err(Reaction::Retry));
        assert_eq!(acknowledged(&[1], &[4]), Err(Reaction::Retry), "one is enough");
        assert_eq!(acknowledged(&[], &[1, 4]), Err(Reaction::Unavailable));
        assert_eq!(acknowledged(&[1], &[4, 5]), Err(Reaction::Unavailable), "nor would it be enough");
    }

    #[test]
    fn a_block_whose_checksums_nobody_knows_cannot_be_missing() {
        let code = weft_codes::parse("rs(4,2)").unwrap();
        let (stripe, mut checksums) = (stripe(&code), vec![Some(vec![7]); 6]);
        checksums[5] = None;
        assert!(is_enough(&code, &stripe, &checksums, &[4], 2) && !is_enough(&code, &stripe, &checksums, &[5], 2));
    }
}
