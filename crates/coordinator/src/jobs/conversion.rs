//! Conversions rewrite objects in the code and sizes of another policy (Mist, §1 and §8: replicas become coded data),
//! and back. This is the shell around [`weft_control::conversion`], which decides.
//!
//! The objects to convert are those that the metadata has in another code at any moment; a converted object is no
//! longer among them. So a job needs no list of its own, and a resumed job starts from the beginning and finds only the
//! rest.

mod object;
mod waits;
mod worker;

use super::{
    Control,
    runner::{Passes, Runner},
};
use crate::{
    pages::{Pages, Stripes},
    puts,
    shared::Shared,
    validate::{self, Coding},
};
use futures::stream;
use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::AtomicU64},
};
use tokio::sync::{Semaphore, watch};
use tonic::async_trait;
use weft_codes::SharedCode;
use weft_control::{
    capacity::Wanted,
    conversion::{self, Outcome, rate::ReadRate, room::Room, writers::Writers},
    job::{Again, Counted, Passed},
    placement::{self, Ask},
    reserve::Share,
};
use weft_meta::{MetaError, ObjectRecord, Page, PolicyRecord};
use weft_proto::{rpc::CONVERSIONS_PER_AGENT_MAX, v1};
use weft_types::{Amount, Conversion, Error, JobId, JobState, JobWork, Layout, ObjectName, Reaction, Result, StripeLayout};

/// Objects that are looked up together.
const OBJECTS_PER_PAGE: u32 = 1_000;
/// Puts of an earlier coordinator that are aborted at once; further ones end with their leases.
const LEFT_UPLOADS_MAX: u32 = 1_000;

/// A running conversion.
pub(super) struct ConversionJob {
    shared: Arc<Shared>,
    conversion: Conversion,
}

/// What all objects of a pass have in common.
struct Work<'a> {
    shared: &'a Arc<Shared>,
    job: JobId,
    concurrency: usize,
    target: &'a Target,
    control: &'a Control,
    state: watch::Receiver<JobState>,
    /// Limits the stripes that are written at the same time.
    stripes: Semaphore,
    rate: Mutex<ReadRate>,
    /// Objects that wait for space.
    room: Mutex<Room>,
    /// The number of stripes that each node is writing.
    writers: Mutex<Writers>,
    /// Numbers the stripes in progress.
    numbers: AtomicU64,
}

/// The form that objects are converted to.
struct Target {
    policy: PolicyRecord,
    code: SharedCode,
    layout: Layout,
}

impl Target {
    async fn of(shared: &Shared, policy: &str) -> Result<Self> {
        let policies = shared.meta.policies().await.map_err(|error| shared.meta_error(error))?;
        let found = policies.into_iter().find(|it| it.name == policy);
        let none = || Error::not_found(format!("there is no policy {policy}: `weft policy ls` lists the policies"));
        let policy = found.ok_or_else(none)?;
        // The same as for a put into a bucket with that policy.
        let Coding { code, layout } = validate::coding(&policy.code, 0, 0, Some(&policy))?;
        Ok(Self { policy, code, layout })
    }

    /// The space that a stripe and its writer need.
    fn wanted(&self, stripe: &StripeLayout) -> Wanted<'_> {
        Wanted::stripe(&self.code, self.policy.replicas, self.policy.failure_domain, stripe).spooled(stripe.data_len)
    }

    /// Whether an object needs a conversion: it has another code or another number of copies.
    async fn is_wanted_of(&self, shared: &Shared, object: &ObjectRecord) -> Result<bool> {
        if object.code != self.policy.code || object.layout != self.layout {
            return Ok(true);
        }
        let mut stripes = Stripes::of_object(shared, object.version, 0);
        while let Some(stripe) = stripes.next().await? {
            if !conversion::has_copies(&stripe, self.policy.replicas) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Creates a conversion job.
pub(crate) async fn begin(shared: &Arc<Shared>, asked: &v1::ConvertRequest) -> Result<v1::Job> {
    let conversion = check(shared, asked).await?;
    super::begin(shared, JobWork::Convert(conversion)).await
}

/// Checks a request.
async fn check(shared: &Shared, asked: &v1::ConvertRequest) -> Result<Conversion> {
    let conversion = validate::jobs::conversion(asked)?;
    let target = Target::of(shared, &conversion.policy).await?;
    let meta = |error: MetaError| shared.meta_error(error);
    shared.meta.bucket(&conversion.bucket).await.map_err(meta)?;
    if let Some(key) = &conversion.key {
        let name = ObjectName { bucket: conversion.bucket.clone(), key: key.clone() };
        shared.meta.object(&name).await.map_err(meta)?;
    }
    shared.until_nodes_are_back().await;
    let replicas = target.policy.replicas;
    let ask = Ask {
        code: &placement::described(&target.policy.code, replicas),
        count: placement::nodes_needed(target.code.k(), target.code.n(), replicas),
        tolerance: target.code.tolerance(),
        failure_domain: target.policy.failure_domain,
        held: &[],
        avoid: &BTreeSet::new(),
        named: false,
        load: &placement::NOTHING,
        bytes: shared.config.disk_reserve.0,
        kept: Share::NONE,
    };
    let view = shared.members.view();
    placement::place(&view, &ask, &mut *shared.rng()).map_err(|error| view.lacking_nodes(error))?;
    let stripe = target.layout.full_stripe(target.code.k() as u32, target.code.m() as u32);
    match shared.without_capacity(&target.wanted(&stripe)) {
        // It can wait for space.
        Err(error) if error.reaction != Reaction::Retry => Err(error),
        _ => Ok(conversion),
    }
}

impl ConversionJob {
    pub(super) fn new(shared: &Arc<Shared>, conversion: Conversion) -> Self {
        Self { shared: Arc::clone(shared), conversion }
    }

    /// Aborts the conversions of an earlier coordinator; their objects start again. No other job converts objects of
    /// the bucket.
    async fn give_up_earlier(&self) -> Result<()> {
        let all = self.shared.meta.expired_uploads(i64::MAX as u64, LEFT_UPLOADS_MAX).await;
        let all = all.map_err(|error| self.shared.meta_error(error))?;
        for upload in all.into_iter().filter(|it| it.new.replaces.is_some() && it.new.name.bucket == self.conversion.bucket) {
            tracing::info!(object = %upload.new.name, upload = %upload.id, "restarting a conversion of an earlier coordinator");
            puts::abort(&self.shared, upload.id).await?;
        }
        Ok(())
    }

    /// All objects of the job, in any code.
    fn objects(&self) -> Objects<'_> {
        let (bucket, key) = (self.conversion.bucket.clone(), self.conversion.key.clone());
        Objects { shared: &self.shared, bucket, key, pages: Pages::new(String::new(), |object| object.name.key.clone()) }
    }
}

#[async_trait]
impl Passes for ConversionJob {
    fn show(&self, shown: &mut v1::Job) {
        let Conversion { bucket, key, policy, concurrency, bytes_per_s } = self.conversion.clone();
        shown.convert = Some(v1::ConvertRequest { bucket, key: key.unwrap_or_default(), policy, concurrency, bytes_per_s });
    }

    fn left_unsaid(&self) -> &'static str {
        conversion::LEFT_UNSAID
    }

    async fn begin(&mut self) -> Result<()> {
        self.give_up_earlier().await
    }

    async fn count(&mut self) -> Result<Counted> {
        let target = Target::of(&self.shared, &self.conversion.policy).await?;
        let mut to_do = Amount::default();
        let mut objects = self.objects();
        while let Some(object) = objects.next_wanted(&target).await? {
            to_do.add(object.size);
        }
        Ok(Counted { to_do, there: to_do })
    }

    async fn pass(&mut self, runner: &mut Runner<'_>) -> Result<(Passed, Again)> {
        let target = &Target::of(&self.shared, &self.conversion.policy).await?;
        let (id, control, concurrency) = (runner.id, runner.control, self.conversion.concurrency as usize);
        let work = &Work {
            shared: &self.shared,
            job: id,
            concurrency,
            target,
            control,
            state: runner.state.clone(),
            stripes: Semaphore::new(concurrency),
            rate: Mutex::new(ReadRate::new(self.conversion.bytes_per_s, self.shared.started.now())),
            room: Mutex::default(),
            writers: Mutex::new(Writers::new(CONVERSIONS_PER_AGENT_MAX)),
            numbers: AtomicU64::new(0),
        };
        let objects = stream::try_unfold(self.objects(), |mut objects| async move {
            Ok(objects.next_wanted(target).await?.map(|object| (object, objects)))
        });
        // While an object waits for space, no other object may take what becomes free.
        let is_held = || lock(&work.room).is_awaited();
        let object = |object| async move {
            let (object, outcome) = work.object(object).await;
            take(id, control, &object, outcome)
        };
        runner.all(concurrency, objects, is_held, object).await
    }
}

/// Counts the outcome for an object. Returns whether another attempt may succeed.
fn take(job: JobId, control: &Control, object: &ObjectRecord, outcome: Outcome) -> Again {
    match &outcome {
        Outcome::MadeWay => {
            tracing::info!(%job, object = %object.name, "postponed an object, because another one waits for space");
        }
        Outcome::Left { stripe, error } => {
            tracing::warn!(%job, object = %object.name, stripe, %error, "cannot convert an object");
        }
        Outcome::Converted | Outcome::Gone | Outcome::Stopped => {}
    }
    conversion::take(&mut control.live().job, &object.name, object.size, outcome)
}

/// A poisoned lock is safe to use: each change is one call.
fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The objects of a bucket, page by page, or a single object.
struct Objects<'a> {
    shared: &'a Arc<Shared>,
    bucket: String,
    key: Option<String>,
    pages: Pages<String, ObjectRecord>,
}

impl Objects<'_> {
    /// The next object that needs a conversion.
    async fn next_wanted(&mut self, target: &Target) -> Result<Option<ObjectRecord>> {
        while let Some(object) = self.next().await? {
            if target.is_wanted_of(self.shared, &object).await? {
                return Ok(Some(object));
            }
        }
        Ok(None)
    }

    async fn next(&mut self) -> Result<Option<ObjectRecord>> {
        let (meta, bucket, key) = (&self.shared.meta, &self.bucket, &self.key);
        let look_up = |after: String| async move {
            let Some(key) = key else { return meta.objects(bucket, "", &after, OBJECTS_PER_PAGE).await };
            let name = ObjectName { bucket: bucket.clone(), key: key.clone() };
            Ok(Page { items: vec![meta.object(&name).await?], more: false })
        };
        match self.pages.next(look_up).await {
            // The object was removed: there is nothing to do.
            Err(MetaError::NotFound(_)) => Ok(None),
            next => next.map_err(|error| self.shared.meta_error(error)),
        }
    }
}
