//! The blocks to rebuild, in the order of a schedule: the shell around [`Scheduler`] and [`Gate`], which decide.
//!
//! Blocks are read from the metadata and scheduled in batches. The next batch is scheduled while the last repairs of the
//! one before run, so that no link waits for it. Blocks are read further ahead than they are scheduled, so that the last batch of a job
//! is not a small one.

use super::NodeRepairJob;
use crate::{compute::compute, pages::BlocksOn};
use rand::{SeedableRng as _, rngs::StdRng};
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};
use weft_codes::SharedCode;
use weft_control::{
    health::{BadBlocks, Condition, FurtherLosses, Urgency},
    node_repair::{self, Block},
    schedule::{self, BLOCKS_PER_NODE, Cluster, Line, Scheduled, Ticket},
    view::View,
};
use weft_meta::ObjectRecord;
use weft_types::{FailureDomain, Owner, Result, StripeId, StripeRecord, UploadId};

/// The most object versions whose codes are kept.
const OBJECTS_MAX: usize = 1_024;

/// The most stripes of urgent levels that are remembered; further ones may be tried twice.
const TRIED_MAX: usize = 1 << 20;

/// A block, and what is scheduled for it.
#[derive(Debug)]
pub(super) struct Planned {
    pub(super) block: Block,
    pub(super) scheduled: Option<Scheduled>,
}

/// The waiting and running repairs of a pass.
pub(super) type Gate = super::super::gate::Gate<Planned, Urgency>;

/// What is known of stripes besides their records.
#[derive(Debug, Default)]
pub(super) struct Lookups {
    further: FurtherLosses,
    objects: BTreeMap<UploadId, Object>,
}

#[derive(Debug, Clone)]
struct Object {
    record: Arc<ObjectRecord>,
    code: SharedCode,
    failure_domain: FailureDomain,
}

/// The blocks of one pass.
pub(super) struct Feed<'a> {
    job: &'a NodeRepairJob,
    gate: &'a Gate,
    /// The ranks of stripes that are still to be read, the most urgent first; the last one stands for all others. Each is a walk over
    /// all blocks, so reads count only roughly: within a batch, the gate orders by how many there are.
    levels: VecDeque<Urgency>,
    blocks: BlocksOn<'a>,
    all_read: bool,
    /// What was read and is not scheduled yet.
    ahead: VecDeque<(StripeRecord, Block, Urgency)>,
    /// Stripes of earlier levels.
    tried: BTreeSet<StripeId>,
}

impl<'a> Feed<'a> {
    /// All blocks of a job, the most urgent ranks first.
    pub(super) fn new(job: &'a NodeRepairJob, gate: &'a Gate) -> Self {
        let levels = job.ranks.iter().copied().collect();
        let (blocks, ahead) = (job.blocks(), VecDeque::new());
        Self { job, gate, levels, blocks, all_read: false, ahead, tried: BTreeSet::new() }
    }

    /// The block whose repair starts now. Waits while none can start.
    pub(super) async fn next(&mut self) -> Result<Option<(Ticket, Planned)>> {
        loop {
            let size = self.batch_size();
            if !self.is_over() && self.gate.lock().waiting() < size.div_ceil(2) {
                self.fill(size).await?;
            }
            {
                let mut admission = self.gate.lock();
                if let Some(next) = admission.start() {
                    return Ok(Some(next));
                }
                if admission.waiting() == 0 {
                    if self.is_over() {
                        return Ok(None);
                    }
                    continue;
                }
            }
            self.gate.freed().await;
        }
    }

    fn batch_size(&self) -> usize {
        BLOCKS_PER_NODE * self.job.shared.members.view().up_count().max(1)
    }

    /// Schedules so many more blocks, or a few more if these are all.
    pub(super) async fn fill(&mut self, size: usize) -> Result<()> {
        let job = self.job;
        let view = job.shared.members.view();
        self.read(schedule::known_max(size), &view).await?;
        let count = schedule::batch_len(self.ahead.len(), size);
        let (mut blocks, mut open) = (Vec::with_capacity(count), Vec::with_capacity(count));
        let batch: Vec<_> = self.ahead.drain(..count).collect();
        for (stripe, block, rank) in batch {
            open.push(job.open(stripe, block, &view).await?);
            blocks.push((block, rank));
        }
        let places: Vec<usize> = (0..blocks.len()).filter(|at| open[*at].is_some()).collect();
        let open: Vec<_> = open.into_iter().flatten().collect();
        // Of its own: the shared one must not be held for the time of a schedule.
        let mut rng = StdRng::from_rng(&mut *job.shared.rng());
        let (scheduled, likely) = compute(|| {
            let network = job.shared.network_of_helpers();
            let cluster = Cluster { view: &view, network: &network, patterns: job.shared.known.patterns_of_repairs() };
            let mut scheduler = job.scheduler();
            (scheduler.batch(&open, &cluster, &mut rng), scheduler.likely_lines(&open, &cluster, &mut rng))
        });
        let mut by_place: Vec<(Option<Scheduled>, Vec<Line>)> = vec![(None, Vec::new()); blocks.len()];
        for (at, planned) in places.into_iter().zip(scheduled.into_iter().zip(likely)) {
            by_place[at] = planned;
        }
        let batch = blocks.into_iter().zip(by_place).map(|((block, rank), (scheduled, likely))| {
            let (round, lines) = scheduled.as_ref().map_or((0, likely), |it| (it.round, it.lines.clone()));
            (Planned { block, scheduled }, (rank, round), lines)
        });
        self.gate.lock().add(batch);
        Ok(())
    }

    /// Reads on until so many blocks are known that are not scheduled, or all.
    async fn read(&mut self, known_max: usize, view: &View) -> Result<()> {
        let job = self.job;
        while !self.all_read && self.ahead.len() < known_max {
            let Some((stripe, block)) = self.blocks.next().await? else {
                self.levels.pop_front();
                self.all_read = self.levels.is_empty();
                self.blocks = job.blocks();
                continue;
            };
            if !node_repair::is_wanted(&job.repair, &stripe, block, view) || self.tried.contains(&stripe.id) {
                continue;
            }
            let rank = job.rank(&stripe, view).await?;
            let is_last = self.levels.len() < 2;
            if !is_last && self.levels.front().is_none_or(|level| rank.roughly() > *level) {
                continue;
            }
            if !is_last && self.tried.len() < TRIED_MAX {
                self.tried.insert(stripe.id);
            }
            self.ahead.push_back((stripe, block, rank));
        }
        Ok(())
    }

    /// Takes all scheduled blocks, in the order in which they would start one after another.
    pub(super) fn drain(&self) -> Vec<Planned> {
        let mut admission = self.gate.lock();
        let one_by_one = std::iter::from_fn(|| {
            let (ticket, planned) = admission.start()?;
            admission.ended(ticket);
            Some(planned)
        });
        one_by_one.collect()
    }

    /// Whether all blocks have been scheduled.
    pub(super) fn is_over(&self) -> bool {
        self.all_read && self.ahead.is_empty()
    }
}

impl NodeRepairJob {
    /// How urgent a stripe is.
    pub(super) async fn rank(&self, stripe: &StripeRecord, view: &View) -> Result<Urgency> {
        let Some(object) = self.object(stripe).await? else { return Ok(Urgency::of(None, 0)) };
        let blocks = BadBlocks::of(stripe, view);
        let condition = compute(|| Condition::of(stripe, blocks, &object.code, view, &mut self.lookups().further));
        Ok(Urgency::of(condition.now, self.shared.health.lock().tally.reads(stripe.id)))
    }

    /// What a schedule may choose for a block. `None`: nothing, and the rebuild finds out why.
    async fn open(&self, stripe: StripeRecord, block: Block, view: &View) -> Result<Option<weft_control::schedule::Open>> {
        let Some(object) = self.object(&stripe).await? else { return Ok(None) };
        let named = (&object.code, &object.record.name);
        let request = self.request_of(named, stripe, block, object.failure_domain, None);
        Ok(request.open(view, &self.shared.known))
    }

    async fn object(&self, stripe: &StripeRecord) -> Result<Option<Object>> {
        let Owner::Object(version) = stripe.owner else { return Ok(None) };
        if let Some(object) = self.lookups().objects.get(&version) {
            return Ok(Some(object.clone()));
        }
        let Some(record) = self.found(self.shared.meta.object_of(version).await)? else { return Ok(None) };
        let Some((_, policy)) = self.found(self.shared.meta.bucket(&record.name.bucket).await)? else { return Ok(None) };
        let (code, failure_domain) = (self.shared.code(&record.code)?, policy.failure_domain);
        let object = Object { record: Arc::new(record), code, failure_domain };
        let mut lookups = self.lookups();
        if lookups.objects.len() >= OBJECTS_MAX {
            lookups.objects.clear();
        }
        lookups.objects.insert(version, object.clone());
        Ok(Some(object))
    }
}
