//! The running reads, and the outcomes of those that ended a moment ago.

use crate::{delegations::Delegation, supervise::handle::PlanHandle};
use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::{task::JoinHandle, time::Instant};
use weft_types::{BlockId, PlanId, StripeId};

/// How often failing plans are checked for their end.
const VERDICT_LOOK_MS: u64 = 25;

/// How long the outcome of a read is kept: a client that saw it fail asks again soon.
const ENDED_KEPT: Duration = Duration::from_secs(10);
/// The shortest interval between two clean-ups of old outcomes.
const FORGET_INTERVAL: Duration = Duration::from_secs(1);

/// The running reads, and those that ended a moment ago.
#[derive(Default)]
pub(crate) struct Reads {
    running: Mutex<BTreeMap<PlanId, Reading>>,
    /// When old outcomes were last removed.
    forgotten: Mutex<Option<Instant>>,
}

pub(super) struct Reading {
    pub(super) stripe: StripeId,
    /// The blocks that it reads.
    pub(super) blocks: Vec<BlockId>,
    /// The delegation that reads; `None` for a client.
    pub(super) delegation: Option<Delegation>,
    pub(super) handle: PlanHandle,
    pub(super) watching: JoinHandle<()>,
    /// Whether a node was blamed for its failure.
    pub(super) blames: Arc<AtomicBool>,
    pub(super) ended: Arc<OnceLock<Instant>>,
}

impl Reads {
    /// Adds a read.
    pub(super) fn begin(&self, plan: PlanId, reading: Reading) {
        self.forget_ended();
        self.lock().insert(plan, reading);
    }

    /// Removes reads that ended long enough ago.
    pub(crate) fn forget_ended(&self) {
        let now = Instant::now();
        let mut forgotten = self.forgotten.lock().unwrap_or_else(PoisonError::into_inner);
        if forgotten.is_some_and(|last| now.duration_since(last) < FORGET_INTERVAL) {
            return;
        }
        *forgotten = Some(now);
        drop(forgotten);
        self.lock().retain(|_, reading| {
            let has_ended = reading.ended.get().is_some() || reading.watching.is_finished();
            !has_ended || now.duration_since(*reading.ended.get_or_init(|| now)) < ENDED_KEPT
        });
    }

    /// Waits for a short time until the plan that a client saw fail has ended; if that plan is unknown, until all
    /// failing plans of its stripe have. Agents know better which node is to blame than a client, which sees only its
    /// own links. Returns whether they have blamed a node.
    pub(super) async fn verdict(&self, failed: PlanId, stripe: StripeId, delegation: Option<&Delegation>, grace_ms: u64) -> bool {
        let is_own = |reading: &Reading| reading.stripe == stripe && reading.delegation.as_ref() == delegation;
        let known = self.lock().get(&failed).filter(|reading| is_own(reading)).map(|reading| {
            // The client may know of the failure before the coordinator does.
            reading.handle.client_done(Duration::from_millis(grace_ms));
            failed
        });
        // Whether this holds for any of the reads in question.
        let any = |is_so: &dyn Fn(&Reading) -> bool| match known {
            Some(known) => self.lock().get(&known).is_some_and(is_so),
            None => self.lock().values().any(|reading| reading.stripe == stripe && reading.handle.is_failing() && is_so(reading)),
        };
        for _ in 0..grace_ms.saturating_mul(3) / VERDICT_LOOK_MS {
            if !any(&|reading| !reading.watching.is_finished()) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(VERDICT_LOOK_MS)).await;
        }
        any(&|reading| reading.blames.load(Ordering::Relaxed))
    }

    /// The blocks that a plan has read, if it is known and read by this caller.
    pub(super) fn blocks(&self, plan: PlanId, delegation: Option<&Delegation>) -> Vec<BlockId> {
        let running = self.lock();
        let reading = running.get(&plan).filter(|reading| reading.delegation.as_ref() == delegation);
        reading.map(|reading| reading.blocks.clone()).unwrap_or_default()
    }

    /// Its reader has finished; its tasks may take this long to end.
    pub(super) fn end(&self, plan: PlanId, delegation: Option<&Delegation>, within: Duration) {
        if let Some(reading) = self.lock().get(&plan).filter(|reading| reading.delegation.as_ref() == delegation) {
            reading.handle.client_done(within);
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<PlanId, Reading>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_types::{NodeId, ObjectName, UploadId};

    #[tokio::test(start_paused = true)]
    async fn the_outcome_of_a_read_is_kept_for_a_moment() {
        let reads = Reads::default();
        let begin = |plan| {
            let (handle, watching) = (PlanHandle::of_nothing().0, tokio::spawn(std::future::pending()));
            let ended = Arc::<OnceLock<Instant>>::default();
            let (stripe, blocks, blames) = (StripeId(7), Vec::new(), Arc::default());
            let reading = Reading { stripe, blocks, delegation: None, handle, watching, blames, ended: Arc::clone(&ended) };
            reads.begin(PlanId(plan), reading);
            ended
        };
        let known = || reads.lock().keys().map(|plan| plan.0).collect::<Vec<_>>();
        let _still_runs = begin(1);
        begin(2).set(Instant::now()).unwrap();
        tokio::time::advance(ENDED_KEPT - Duration::from_millis(1)).await;
        begin(3).set(Instant::now()).unwrap();
        assert_eq!(known(), [1, 2, 3]);
        tokio::time::advance(FORGET_INTERVAL).await;
        let _still_runs = begin(4);
        assert_eq!(known(), [1, 3, 4]);
    }

    #[tokio::test]
    async fn only_its_own_caller_ends_a_read() {
        let delegation = |number| Delegation {
            node: NodeId(3),
            agent: "node-03".into(),
            object: ObjectName { bucket: "b".into(), key: "k".into() },
            version: UploadId(5),
            upload: UploadId(9),
            number,
        };
        let (own, other, within) = (delegation(2), delegation(3), Duration::from_secs(1));
        for (whose, others) in [(Some(&own), [Some(&other), None]), (None, [Some(&other), Some(&own)])] {
            let (reads, (handle, told)) = (Reads::default(), PlanHandle::of_nothing());
            let (stripe, watching) = (StripeId(7), tokio::spawn(std::future::pending()));
            let (delegation, blocks) = (whose.cloned(), vec![BlockId { stripe, index: 1, copy: 0, generation: 1 }]);
            let reading = Reading { stripe, blocks, delegation, handle, watching, blames: Arc::default(), ended: Arc::default() };
            reads.lock().insert(PlanId(1), reading);
            reads.end(PlanId(2), whose, within);
            others.into_iter().for_each(|other| reads.end(PlanId(1), other, within));
            let blocks = |plan, whose| reads.blocks(PlanId(plan), whose).len();
            assert_eq!((others.map(|other| blocks(1, other)), blocks(2, whose), blocks(1, whose)), ([0, 0], 0, 1));
            assert_eq!(*told.borrow(), None);
            reads.end(PlanId(1), whose, within);
            assert_eq!(*told.borrow(), Some(within));
        }
    }
}
