//! What is counted where it happens, for metrics and for nothing else.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::time::Instant;
use weft_control::planning::Planned;
use weft_proto::metrics::Histogram;
use weft_types::{Error, JobRecord, JobState, JobWork, Reaction, Result};

/// The ends of the buckets for the time to make a plan, seconds.
const PLAN_BUCKETS: [f64; 9] = [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.025, 0.1, 1.0];

/// What a plan is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PlanKind {
    Read,
    Write,
    Repair,
    Check,
}

impl PlanKind {
    pub(crate) const ALL: [Self; 4] = [Self::Read, Self::Write, Self::Repair, Self::Check];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Repair => "repair",
            Self::Check => "check",
        }
    }
}

/// How a stripe that is open for updates is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OpenRead {
    /// At the nodes of its data blocks.
    Nodes,
    /// It is settled first.
    Settled,
}

impl OpenRead {
    pub(crate) const ALL: [Self; 2] = [Self::Nodes, Self::Settled];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Nodes => "nodes",
            Self::Settled => "settled",
        }
    }
}

/// The counts, since the coordinator started.
#[derive(Debug)]
pub(crate) struct Meter {
    plan_times: [Histogram; PlanKind::ALL.len()],
    refused: [AtomicU64; PlanKind::ALL.len()],
    /// In the order of [`Reaction::ALL`].
    failed: [AtomicU64; Reaction::ALL.len()],
    starved: AtomicU64,
    busy_waits: AtomicU64,
    busy_waited_us: AtomicU64,
    open_reads: [AtomicU64; OpenRead::ALL.len()],
    repairs: Mutex<BTreeMap<String, Repairs>>,
    jobs_ended: Mutex<JobsEnded>,
}

/// How many jobs have ended, by the names of their kinds and of the states in which they are.
pub(crate) type JobsEnded = BTreeMap<(&'static str, &'static str), u64>;

/// The repairs of one scheme.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Repairs {
    pub(crate) blocks: u64,
    pub(crate) bytes: u64,
    /// Plans that failed as a whole or in part.
    pub(crate) failed_plans: u64,
}

impl Default for Meter {
    fn default() -> Self {
        let plan_times = PlanKind::ALL.map(|_| Histogram::new(&PLAN_BUCKETS));
        Self {
            plan_times,
            refused: Default::default(),
            failed: Default::default(),
            starved: AtomicU64::default(),
            busy_waits: AtomicU64::default(),
            busy_waited_us: AtomicU64::default(),
            open_reads: Default::default(),
            repairs: Mutex::default(),
            // A counter that appears with its first event would hide this event from rates.
            jobs_ended: Mutex::new(
                JobWork::KINDS.into_iter().flat_map(|kind| JobState::ENDS.map(|end| ((kind, end.name()), 0))).collect(),
            ),
        }
    }
}

impl Meter {
    /// Makes a plan, and counts it and its time.
    pub(crate) fn plan<T>(&self, kind: PlanKind, make: impl FnOnce() -> Result<T>) -> Result<T> {
        let begin = Instant::now();
        let made = make();
        match &made {
            Ok(_) => self.plan_times[kind as usize].observe(begin.elapsed()),
            Err(_) => drop(self.refused[kind as usize].fetch_add(1, Relaxed)),
        }
        made
    }

    /// A plan failed while it ran; `starved`: perhaps only because links are full.
    pub(crate) fn plan_failed(&self, cause: &Error, starved: bool) {
        self.failed[cause.reaction as usize].fetch_add(1, Relaxed);
        self.starved.fetch_add(starved.into(), Relaxed);
    }

    /// The opening of a plan waits for so long, because an agent is busy.
    pub(crate) fn waits_for_agents(&self, pause: Duration) {
        self.busy_waits.fetch_add(1, Relaxed);
        self.busy_waited_us.fetch_add(u64::try_from(pause.as_micros()).unwrap_or(u64::MAX), Relaxed);
    }

    /// A client asks for bytes of a stripe that is open for updates.
    pub(crate) fn open_read(&self, how: OpenRead) {
        self.open_reads[how as usize].fetch_add(1, Relaxed);
    }

    /// How often clients asked for bytes of open stripes.
    pub(crate) fn open_reads(&self, how: OpenRead) -> u64 {
        self.open_reads[how as usize].load(Relaxed)
    }

    /// A block was rebuilt by a scheme.
    pub(crate) fn rebuilt(&self, scheme: &str, bytes: u64) {
        self.of_scheme(scheme, |repairs| {
            repairs.blocks += 1;
            repairs.bytes = repairs.bytes.saturating_add(bytes);
        });
    }

    /// A plan of a scheme for a repair failed as a whole or in part.
    pub(crate) fn repair_failed(&self, scheme: &str) {
        self.of_scheme(scheme, |repairs| repairs.failed_plans += 1);
    }

    /// A state of a job was written. Counts it if the job has ended.
    pub(crate) fn job_written(&self, job: &JobRecord) {
        if job.state.has_ended() {
            *lock(&self.jobs_ended).entry((job.work.kind(), job.state.name())).or_default() += 1;
        }
    }

    /// The jobs that have ended.
    pub(crate) fn jobs_ended(&self) -> JobsEnded {
        lock(&self.jobs_ended).clone()
    }

    /// The times to make plans.
    pub(crate) fn plan_times(&self, kind: PlanKind) -> Histogram {
        self.plan_times[kind as usize].clone()
    }

    /// How often no plan could be made.
    pub(crate) fn refused(&self, kind: PlanKind) -> u64 {
        self.refused[kind as usize].load(Relaxed)
    }

    /// Failed plans, by what their first errors ask for.
    pub(crate) fn failed(&self, reaction: Reaction) -> u64 {
        self.failed[reaction as usize].load(Relaxed)
    }

    /// Of the failed plans, those in which links stood still while others of the same nodes moved.
    pub(crate) fn starved(&self) -> u64 {
        self.starved.load(Relaxed)
    }

    /// How often the opening of a plan has waited, and how long in all.
    pub(crate) fn busy_waits(&self) -> (u64, Duration) {
        (self.busy_waits.load(Relaxed), Duration::from_micros(self.busy_waited_us.load(Relaxed)))
    }

    /// The repairs by scheme.
    pub(crate) fn repairs(&self) -> BTreeMap<String, Repairs> {
        lock(&self.repairs).clone()
    }

    fn of_scheme(&self, scheme: &str, change: impl FnOnce(&mut Repairs)) {
        let mut repairs = lock(&self.repairs);
        match repairs.get_mut(scheme) {
            Some(of) => change(of),
            None => change(repairs.entry(scheme.to_owned()).or_default()),
        }
    }
}

fn lock<T>(numbers: &Mutex<T>) -> MutexGuard<'_, T> {
    // A poisoned lock is safe to use: it guards numbers only.
    numbers.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The scheme of a plan. If none was compared with others, it is the one that was asked for.
pub(crate) fn scheme_of<'a>(planned: &'a Planned, asked: &'a str) -> &'a str {
    planned.considered.first().map_or(asked, |chosen| &chosen.scheme)
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_types::{Balance, JobId, JobProgress};

    #[test]
    fn plans_and_repairs_are_counted_with_their_failures() {
        let meter = Meter::default();
        assert_eq!(meter.plan(PlanKind::Read, || Ok(7)), Ok(7));
        assert!(meter.plan::<()>(PlanKind::Repair, || Err(Error::unavailable("too few blocks"))).is_err());
        assert_eq!(PlanKind::ALL.map(|kind| meter.refused(kind)), [0, 0, 1, 0]);
        meter.plan_failed(&Error::corrupt("a page"), false);
        assert_eq!(meter.starved(), 0);
        meter.plan_failed(&Error::corrupt("a page"), true);
        assert_eq!(meter.starved(), 1);
        assert_eq!(Reaction::ALL.map(|reaction| meter.failed(reaction)), [0, 0, 2, 0, 0, 0, 0]);
        meter.waits_for_agents(Duration::from_millis(20));
        meter.waits_for_agents(Duration::from_millis(40));
        assert_eq!(meter.busy_waits(), (2, Duration::from_millis(60)));
        meter.rebuilt("chain", 5);
        meter.rebuilt("chain", 6);
        meter.repair_failed("tree");
        let expected = [
            ("chain".to_owned(), Repairs { blocks: 2, bytes: 11, failed_plans: 0 }),
            ("tree".to_owned(), Repairs { failed_plans: 1, ..Repairs::default() }),
        ];
        assert_eq!(meter.repairs(), BTreeMap::from(expected));
    }

    #[test]
    fn jobs_are_counted_when_they_end_and_shown_before() {
        let (meter, balance) = (Meter::default(), Balance { concurrency: 0 });
        let (id, work, progress) = (JobId(1), JobWork::Balance(balance), JobProgress::default());
        let mut job = JobRecord { id, work, state: JobState::Paused, progress, created_ms: 0, changed_ms: 0 };
        meter.job_written(&job);
        let ended = meter.jobs_ended();
        assert!(ended.len() == 12 && ended.values().all(|jobs| *jobs == 0), "{ended:?}");
        job.state = JobState::Failed;
        meter.job_written(&job);
        let ended = meter.jobs_ended();
        assert_eq!((ended.len(), ended[&("balance", "failed")], ended.values().sum::<u64>()), (12, 1, 1));
    }
}
