//! A scrub that an operator asks for: the stripes of an object, a bucket, a node or all, at once. The shell around
//! [`weft_control::scrub`], which decides.
//!
//! The metadata has how far it is, so the next coordinator continues there.

use super::{
    Control,
    runner::{Passes, Runner},
};
use crate::{
    scrub::{
        report, stripe,
        walk::{Item, Walk},
    },
    shared::Shared,
    validate,
};
use futures::stream;
use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tonic::async_trait;
use weft_control::{
    Time,
    job::{Again, Counted, Passed},
    scrub::{End, Outcome, Progress, Ticket, concurrency},
};
use weft_meta::MetaError;
use weft_proto::v1;
use weft_types::{Amount, Error, JobId, JobWork, LeftBlock, NodeId, ObjectName, Result, Scrub, ScrubPlace, StripeId};

/// The reason if stripes are left that no attempt reported.
const LEFT_UNSAID: &str = "stripes could not be checked: run the scrub again";
/// How often the progress is recorded.
const WRITE_INTERVAL: Duration = Duration::from_secs(2);
/// The pause before what could not be checked is tried again: longer than the time for which a disk is doubted of which no block is right.
const PAUSE: Duration = Duration::from_secs(6);

/// A running job.
pub(super) struct ScrubJob {
    shared: Arc<Shared>,
    id: JobId,
    scrub: Scrub,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    progress: Progress,
    written_at: Time,
}

/// A stripe to check, for the first time or again.
struct ToCheck {
    stripe: StripeId,
    bytes: u64,
    /// Where the job continues behind it, if it is the first time.
    behind: Option<ScrubPlace>,
}

/// Creates the job.
pub(crate) async fn begin(shared: &Arc<Shared>, asked: &v1::ScrubRequest) -> Result<v1::Job> {
    let scrub = validate::jobs::scrub(asked)?;
    let is_there = async {
        match (&scrub.bucket, &scrub.key) {
            (Some(bucket), Some(key)) => {
                shared.meta.object(&ObjectName { bucket: bucket.clone(), key: key.clone() }).await.map(drop)
            }
            (Some(bucket), None) => shared.meta.bucket(bucket).await.map(drop),
            (None, _) => Ok(()),
        }
    };
    is_there.await.map_err(|error: MetaError| shared.meta_error(error))?;
    if let Some(node) = scrub.node
        && shared.members.status(node).is_none()
    {
        return Err(Error::not_found(format!("there is no node {node}: `weft node ls` lists them")));
    }
    shared.until_nodes_are_back().await;
    super::begin(shared, JobWork::Scrub(scrub)).await
}

/// Adds what a job has checked and found to its description.
pub(super) async fn add_report(shared: &Shared, shown: &mut v1::Job) -> Result<()> {
    if shown.scrub.is_some() {
        let record = shared.meta.scrub(Some(JobId(shown.id))).await.map_err(|error| shared.meta_error(error))?;
        shown.scrubbed = Some(report::of_record(shared, &record));
    }
    Ok(())
}

impl ScrubJob {
    pub(super) fn new(shared: &Arc<Shared>, id: JobId, scrub: Scrub) -> Self {
        Self { shared: Arc::clone(shared), id, scrub, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A poisoned lock is safe to use: each change is one call.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn walk(&self) -> Walk<'_> {
        let place = self.state().progress.record().place.clone();
        Walk::new(&self.shared, &self.scrub, &place)
    }

    async fn write(&self) -> Result<()> {
        let (shared, record) = (&self.shared, self.state().progress.record().clone());
        shared.meta.set_scrub(shared.epoch, Some(self.id), record).await.map_err(|error| shared.meta_error(error))?;
        self.state().written_at = shared.started.now();
        Ok(())
    }

    /// Stripes that could not be checked, and the bytes of their blocks. Those that are gone have none.
    async fn again(&self) -> Result<Vec<ToCheck>> {
        let again = self.state().progress.record().again.clone();
        let found = self.shared.meta.find_stripes(again.clone()).await.map_err(|error| self.shared.meta_error(error))?;
        let bytes = |stripe: StripeId| {
            let found = found.iter().find(|it| it.id == stripe);
            found.map_or(0, |it| it.all().map(|(index, _)| it.layout.block_len(index.into())).sum())
        };
        Ok(again.into_iter().map(|stripe| ToCheck { stripe, bytes: bytes(stripe), behind: None }).collect())
    }

    /// Checks a stripe.
    async fn check(&self, stripe: StripeId) -> Outcome {
        let mut outcome = stripe::check(&self.shared, stripe).await;
        report::log(&self.shared, &outcome);
        if outcome.end == End::Checked && outcome.away > 0 {
            outcome.end = End::Again(Error::unavailable("nodes with blocks of it are down: start them"));
        }
        outcome
    }

    /// Checks a stripe and counts it.
    async fn item(&self, control: &Control, stripe: StripeId, bytes: u64, ticket: Option<Ticket>) -> Again {
        control.live().moving.insert(stripe.0, 0);
        let outcome = self.check(stripe).await;
        control.live().moving.remove(&stripe.0);
        let is_due = {
            let (mut state, now) = (self.state(), self.shared.started.now());
            let found = match &ticket {
                Some(ticket) => state.progress.ended(ticket, stripe, &outcome),
                None => state.progress.repeated(stripe, &outcome),
            };
            found > 0 || now.since(state.written_at) >= WRITE_INTERVAL
        };
        if is_due && let Err(error) = self.write().await {
            tracing::warn!(job = %self.id, %error, "cannot write how far a scrub is, trying again later");
        }
        let mut live = control.live();
        live.job.moved(outcome.moved_bytes);
        match outcome.end {
            End::Checked | End::Gone => {
                live.job.done(bytes);
                Again::InVain
            }
            End::Again(error) => {
                let Outcome { object, number, .. } = outcome;
                live.job.left(bytes, error, |reason| LeftBlock { object, stripe: number, index: 0, reason })
            }
        }
    }
}

#[async_trait]
impl Passes for ScrubJob {
    fn show(&self, shown: &mut v1::Job) {
        let Scrub { bucket, key, node, concurrency } = self.scrub.clone();
        let (bucket, key) = (bucket.unwrap_or_default(), key.unwrap_or_default());
        shown.scrub = Some(v1::ScrubRequest { bucket, key, node: node.map_or(0, |NodeId(node)| node), concurrency });
    }

    fn left_unsaid(&self) -> &'static str {
        LEFT_UNSAID
    }

    async fn begin(&mut self) -> Result<()> {
        let record = self.shared.meta.scrub(Some(self.id)).await.map_err(|error| self.shared.meta_error(error))?;
        *self.state() = State { progress: Progress::new(record), written_at: self.shared.started.now() };
        Ok(())
    }

    async fn count(&mut self) -> Result<Counted> {
        // Before the job ends, all that it has found is recorded.
        self.write().await?;
        let mut to_do = Amount::default();
        self.again().await?.iter().for_each(|it| to_do.add(it.bytes));
        let mut walk = self.walk();
        while let Some(item) = walk.next().await? {
            to_do.add(item.bytes());
        }
        Ok(Counted { to_do, there: to_do })
    }

    async fn pass(&mut self, runner: &mut Runner<'_>) -> Result<(Passed, Again)> {
        let again = self.again().await?;
        if !again.is_empty() {
            tokio::time::sleep(PAUSE).await;
        }
        let (work, control) = (&*self, runner.control);
        let at_once = match work.scrub.concurrency {
            0 => concurrency(&work.shared.members.view()),
            asked => asked as usize,
        };
        let rest = stream::try_unfold(work.walk(), |mut walk| async move {
            let Some(Item { stripe, behind, blocks }) = walk.next().await? else { return Ok(None) };
            let bytes = blocks.iter().map(|(_, bytes)| bytes).sum();
            Ok(Some((ToCheck { stripe, bytes, behind: Some(behind) }, walk)))
        });
        let items = futures::StreamExt::chain(stream::iter(again.into_iter().map(Ok)), rest);
        let item = |ToCheck { stripe, bytes, behind }: ToCheck| {
            // In the order of the walk, before others are polled.
            let ticket = behind.map(|behind| work.state().progress.begin(behind));
            work.item(control, stripe, bytes, ticket)
        };
        runner.all(at_once, items, || !work.state().progress.may_begin(), item).await
    }
}
