//! Which of the chosen stripes are rebuilt now, and by which nodes: the shell around [`Scheduler`] and [`Admission`], which decide.

use super::stripe::{Planned, SELECT, Worker};
use crate::{compute::compute, options};
use futures::{StreamExt as _, stream};
use rand::{SeedableRng as _, rngs::StdRng};
use weft_control::{
    healer::{Ended, Scope},
    health::{Tally, Urgency},
    schedule::{Admission, Cluster, Open, Scheduled, Scheduler, Starting, Ticket},
    view::View,
};
use weft_types::{Prefer, StripeId};

/// How many stripes are looked up at the same time.
const LOOKUPS: usize = 8;

/// What a schedule may choose for a stripe, or why nothing can be done.
type Found = Result<(Planned, Option<Open>), Ended>;

/// The stripes to rebuild next.
pub(super) struct Batch {
    view: View,
    /// Each with its urgency.
    found: Vec<(StripeId, Urgency, Found)>,
}

/// Looks stripes up, each with its urgency.
pub(super) async fn look_up(worker: &Worker<'_>, stripes: Vec<(StripeId, Urgency)>, scope: Scope) -> Batch {
    let view = worker.shared().members.view();
    let found = stream::iter(stripes).map(|(stripe, urgency)| {
        let (view, scope) = (&view, &scope);
        async move { (stripe, urgency, worker.open(stripe, scope, view).await) }
    });
    let found = found.buffered(LOOKUPS).collect().await;
    Batch { view, found }
}

/// The waiting and the running rebuilds.
pub(super) struct Schedule<'a> {
    worker: &'a Worker<'a>,
    scheduler: Scheduler,
    admission: Admission<Planned, Urgency>,
}

impl<'a> Schedule<'a> {
    pub(super) fn new(worker: &'a Worker<'a>) -> Self {
        let scheme = options::usual_repair(worker.shared()).scheme;
        let scheduler = Scheduler::new(SELECT, Prefer::default(), &scheme);
        Self { worker, scheduler, admission: Admission::new(Starting::of(SELECT)) }
    }

    /// The nodes have changed, or nothing is under way.
    pub(super) fn begin_again(&mut self) {
        self.scheduler.begin_again();
        self.worker.begin_again();
    }

    /// How many rebuilds wait for their links.
    pub(super) fn waiting(&self) -> usize {
        self.admission.waiting()
    }

    /// Stripes that wait may have become more urgent.
    pub(super) fn urge(&mut self, tally: &Tally) {
        self.admission.urge(|planned| tally.urgency(planned.stripe));
    }

    /// Schedules the rebuilds of a batch together. Returns the stripes with which nothing can be done.
    pub(super) fn add(&mut self, batch: Batch) -> Vec<(StripeId, Ended)> {
        let (Batch { view, found }, shared) = (batch, self.worker.shared());
        let (mut ended, mut unscheduled, mut planned, mut open) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for (stripe, urgency, found) in found {
            match found {
                Ok((plan, Some(what))) => {
                    planned.push((plan, urgency));
                    open.push(what);
                }
                Ok((plan, None)) => unscheduled.push((plan, (urgency, 0), Vec::new())),
                Err(end) => ended.push((stripe, end)),
            }
        }
        // Of its own: the shared one must not be held for the time of a schedule.
        let mut rng = StdRng::from_rng(&mut *shared.rng());
        let scheduled = compute(|| {
            let network = shared.network_of_helpers();
            let cluster = Cluster { view: &view, network: &network, patterns: shared.known.patterns_of_repairs() };
            self.scheduler.batch(&open, &cluster, &mut rng)
        });
        let batch = planned.into_iter().zip(scheduled).map(|((plan, urgency), scheduled)| {
            let (round, lines) = scheduled.as_ref().map_or_else(Default::default, |it: &Scheduled| (it.round, it.lines.clone()));
            (Planned { scheduled, ..plan }, (urgency, round), lines)
        });
        self.admission.add(batch.chain(unscheduled));
        ended
    }

    /// The rebuild that starts now, if one can. [`Self::ended`] takes its ticket back.
    pub(super) fn start(&mut self) -> Option<(Ticket, Planned)> {
        self.admission.start()
    }

    /// A rebuild has ended.
    pub(super) fn ended(&mut self, ticket: Ticket) {
        self.admission.ended(ticket);
    }
}
