//! The state that all parts of a coordinator share.

use crate::{
    config::CoordinatorConfig, in_flight::InFlight, members::Members, meter::Meter, puts::under_way::Puts, started::Started,
};
use rand::{Rng, rngs::StdRng};
use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};
use tokio::sync::{mpsc, watch};
use weft_codes::SharedCode;
use weft_control::{
    known::Known,
    links::Links,
    rebuild::lease_len,
    retries::Retries,
    run::{Activity, stall_after},
    stragglers::Stragglers,
};
use weft_meta::{ClusterRecord, Meta, MetaError};
use weft_plan::{Class, Precedence};
use weft_proto::{LogCauses, Net, Security, from_status};
use weft_schemes::Run;
use weft_types::{Clock, Epoch, Error, Layout, Party, PlanId, PutKey, Result, StripeId};

/// The most codes that are kept constructed.
const CODES_MAX: usize = 64;

/// How often to check whether all nodes have returned.
const COMING_BACK_POLL: Duration = Duration::from_millis(100);

/// The state that all parts of a coordinator share.
pub(crate) struct Shared {
    pub(crate) config: CoordinatorConfig,
    pub(crate) meta: Arc<dyn Meta>,
    pub(crate) cluster: ClusterRecord,
    pub(crate) epoch: Epoch,
    pub(crate) net: Arc<dyn Net>,
    pub(crate) security: Security,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) members: Members,
    pub(crate) links: Mutex<Links>,
    pub(crate) stragglers: Mutex<Stragglers>,
    pub(crate) activity: Mutex<Activity>,
    pub(crate) in_flight: InFlight,
    pub(crate) puts: Puts,
    /// Stripes that could not be completed yet.
    pub(crate) completion: Mutex<Retries<StripeId>>,
    pub(crate) reads: crate::read::under_way::Reads,
    pub(crate) jobs: crate::jobs::control::Jobs,
    pub(crate) delegations: crate::delegations::Delegations,
    pub(crate) health: crate::health::state::Health,
    pub(crate) healer: crate::healer::state::Healer,
    /// Which disks are slow or failing although they work.
    pub(crate) disk_health: crate::disk_health::state::DiskHealth,
    /// The limit on repair.
    pub(crate) limit: crate::limit::state::Limit,
    /// How far the checks of nodes that came back are.
    pub(crate) came_back: crate::came_back::state::Checks,
    /// What is known of disks that were moved to other nodes.
    pub(crate) moved: crate::moved::state::Moves,
    /// How far the scrub is.
    pub(crate) scrub: crate::scrub::state::Scrub,
    /// Which stripes are being rebuilt.
    pub(crate) claims: crate::claims::Claims,
    /// Which stripes are open for updates.
    pub(crate) updates: crate::updates::state::Updates,
    /// Why rebuilds and plans fail, to say each now and then.
    pub(crate) failures: LogCauses,
    pub(crate) started: Started,
    /// Becomes true when the coordinator must stop.
    pub(crate) stop: watch::Sender<bool>,
    pub(crate) rng: Mutex<StdRng>,
    pub(crate) plans: AtomicU32,
    pub(crate) codes: Mutex<BTreeMap<String, SharedCode>>,
    /// The caches of planning.
    pub(crate) known: Known,
    /// What is counted for metrics and for nothing else.
    pub(crate) meter: Meter,
    /// Where the coordinator serves metrics; empty if it does not.
    pub(crate) metrics_address: String,
}

impl Shared {
    /// The rates of nodes, to find slow ones.
    pub(crate) fn stragglers(&self) -> MutexGuard<'_, Stragglers> {
        // A poisoned lock is safe to use: each change is one call.
        self.stragglers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What moves at each node.
    pub(crate) fn activity(&self) -> MutexGuard<'_, Activity> {
        self.activity.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The stripes that could not be completed, and when they are tried again.
    pub(crate) fn completion(&self) -> MutexGuard<'_, Retries<StripeId>> {
        self.completion.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The measurements of links.
    pub(crate) fn links(&self) -> MutexGuard<'_, Links> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The codes of which there are objects.
    pub(crate) async fn codes_in_use(&self) -> Result<Vec<SharedCode>> {
        let totals = self.meta.totals_by_code().await.map_err(|error| self.meta_error(error))?;
        totals.iter().map(|(code, _)| self.code(code)).collect()
    }

    /// The code for a spec.
    pub(crate) fn code(&self, spec: &str) -> Result<SharedCode> {
        let mut codes = self.codes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(code) = codes.get(spec) {
            return Ok(Arc::clone(code));
        }
        let code = weft_codes::parse(spec).map_err(Error::invalid)?;
        if codes.len() < CODES_MAX {
            codes.insert(spec.to_owned(), Arc::clone(&code));
        }
        Ok(code)
    }

    /// The generator of all random numbers.
    pub(crate) fn rng(&self) -> MutexGuard<'_, StdRng> {
        self.rng.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new client party for one plan.
    pub(crate) fn draw_client(&self) -> Party {
        Party::Client(self.rng().random())
    }

    /// A seed for numbers that must be reproducible.
    pub(crate) fn draw_seed(&self) -> u64 {
        self.rng().random()
    }

    /// A random key for a put.
    pub(crate) fn draw_put_key(&self) -> PutKey {
        PutKey(self.rng().random_range(1..=u128::MAX))
    }

    /// A plan's frame, with a unique number.
    pub(crate) fn run(&self, precedence: Precedence, layout: &Layout, slice_len: u64) -> Run {
        Run::new(self.next_plan(), self.epoch.0, precedence, slice_len).of_sub_blocks(layout.alpha)
    }

    /// A unique plan number.
    pub(crate) fn next_plan(&self) -> PlanId {
        let number = self.plans.fetch_add(1, Ordering::Relaxed);
        PlanId(self.epoch.0 << 32 | u64::from(number))
    }

    /// The time, milliseconds since 1970.
    pub(crate) fn now_ms(&self) -> u64 {
        self.clock.now_ms()
    }

    /// When blocks that readers may still need can be removed.
    pub(crate) fn garbage_not_before_ms(&self) -> u64 {
        self.now_ms().saturating_add(self.config.garbage_grace_ms)
    }

    /// The time in so long, milliseconds since 1970.
    pub(crate) fn after_ms(&self, time: Duration) -> u64 {
        self.now_ms().saturating_add(u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
    }

    /// When a new allocation expires.
    pub(crate) fn lease_end_ms(&self) -> u64 {
        self.now_ms().saturating_add(self.config.upload_lease_ms)
    }

    /// The lease of a new block. If slices wait for the limit on repair, it must outlast several of them.
    pub(crate) fn repair_lease(&self) -> Duration {
        lease_len(Duration::from_millis(self.config.upload_lease_ms), self.limit.extra_stall(Class::Repair))
    }

    /// How long links of a class may be silent.
    pub(crate) fn stall(&self, class: Class) -> Duration {
        Duration::from_millis(self.config.stall_ms.into()) + self.limit.extra_stall(class)
    }

    /// See [`stall_after`].
    pub(crate) fn stall_after(&self, slice_bytes: u64, resumed: u32) -> Option<Duration> {
        stall_after(self.config.repair_stall_ms, slice_bytes, resumed)
    }

    /// The deadline of a call to an agent.
    pub(crate) fn call_timeout(&self) -> Duration {
        Duration::from_millis(self.config.call_timeout_ms)
    }

    /// The answer of a call to an agent, within the deadline.
    pub(crate) async fn answer<T>(&self, call: impl Future<Output = Result<tonic::Response<T>, tonic::Status>>) -> Result<T> {
        match tokio::time::timeout(self.call_timeout(), call).await {
            Ok(Ok(reply)) => Ok(reply.into_inner()),
            Ok(Err(status)) => Err(from_status(&status)),
            Err(_) => Err(Error::retry("no answer in time")),
        }
    }

    /// Logs and converts the error of a failed transaction. If another coordinator leads, stops this one.
    pub(crate) fn meta_error(&self, error: MetaError) -> Error {
        match &error {
            MetaError::StaleLeader { .. } => {
                tracing::error!(%error, "another coordinator leads; stopping");
                self.stop.send_replace(true);
            }
            MetaError::Storage(_) => tracing::error!(%error, "a metadata transaction failed"),
            _ => {}
        }
        error.into()
    }

    /// Waits after the coordinator's start: a node that has not registered yet is not lost, and its blocks need not be rebuilt.
    pub(crate) async fn until_nodes_are_back(&self) {
        let most = Duration::from_millis(self.config.down_after_ms.saturating_mul(2));
        let all_back = async {
            while self.members.are_coming_back() {
                tokio::time::sleep(COMING_BACK_POLL).await;
            }
        };
        let _down_by_now = tokio::time::timeout(most, all_back).await;
    }
}

/// Works for as long as someone reads the events that it sends.
pub(crate) async fn while_read<T>(events: &mpsc::Sender<T>, work: impl Future<Output = ()>) {
    tokio::select! {
        biased;
        () = events.closed() => {}
        () = work => {}
    }
}

pub(crate) async fn wait_for_stop(mut stopped: watch::Receiver<bool>) {
    // An error means that the sender is gone: the coordinator ends.
    let _gone = stopped.wait_for(|stopped| *stopped).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn work_ends_by_itself_or_with_its_reader() {
        let (events, told) = mpsc::channel::<()>(1);
        while_read(&events, async {}).await;
        let mut endless = std::pin::pin!(while_read(&events, std::future::pending()));
        assert!(futures::poll!(&mut endless).is_pending());
        drop(told);
        endless.await;
    }
}
