//! Converts one object. Its new stripes belong to a put that replaces its version, and are invisible until all of them
//! have ended, each with the receipts of all its blocks. Then one transaction replaces the old stripes, unless the
//! object has changed.

use super::{Work, lock, waits::Waits};
use crate::{jobs::Control, puts};
use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};
use tokio::{sync::SemaphorePermit, time::Instant};
use weft_control::{
    conversion::{self, Failed, Lost, Now, Outcome, PAUSE_FIRST, PAUSE_LAST, Whole},
    put::upload,
    retries::Pause,
};
use weft_meta::{MetaError, NewUpload, ObjectRecord, UploadRecord};
use weft_types::{Ack, Error, JobState, Result, Span, UploadId};

impl Work<'_> {
    /// Converts an object, or leaves it as it is.
    pub(super) async fn object(&self, object: ObjectRecord) -> (ObjectRecord, Outcome) {
        let outcome = match self.convert(&object).await {
            Ok(outcome) => outcome,
            Err(failed) => self.judged(&object, failed).await,
        };
        (object, outcome)
    }

    async fn convert(&self, object: &ObjectRecord) -> Result<Outcome, Failed> {
        let upload = self.begin(object).await.map_err(|error| (0, error))?;
        let gathered = Gathered { control: self.control, bytes: AtomicU64::new(0) };
        let all = tokio::select! {
            biased;
            all = self.whole(object, &upload, &gathered) => all,
            lost = self.keep(upload.id) => Err((0, lost)),
        };
        let committed = match all {
            Ok(true) => self.commit(object, upload.id).await.map(|()| Outcome::Converted).map_err(|error| (0, error)),
            Ok(false) => Ok(Outcome::Stopped),
            Err(_) if lock(&self.room).has_made_way(upload.id) => Ok(Outcome::MadeWay),
            Err(failed) => Err(failed),
        };
        if !matches!(committed, Ok(Outcome::Converted))
            && let Err(error) = puts::abort(self.shared, upload.id).await
        {
            tracing::warn!(object = %object.name, upload = %upload.id, %error, "cannot abort the put of a conversion; the sweep will remove it later");
        }
        committed
    }

    /// Begins the put. It waits for all blocks, even if the policy allows an earlier acknowledgement: no user waits for it, and the old
    /// blocks will be dropped.
    async fn begin(&self, object: &ObjectRecord) -> Result<UploadRecord> {
        let (shared, target) = (self.shared, self.target);
        let new = NewUpload {
            name: object.name.clone(),
            code: target.policy.code.clone(),
            layout: target.layout,
            failure_domain: target.policy.failure_domain,
            ack: Ack { missing_max: 0 },
            replicas: target.policy.replicas,
            created_ms: shared.now_ms(),
            expires_ms: shared.lease_end_ms(),
            replaces: Some(object.version),
            key: shared.draw_put_key(),
        };
        let begun = shared.meta.begin_put(shared.epoch, new, Vec::new()).await;
        begun.map(|(upload, _)| upload).map_err(|error| shared.meta_error(error))
    }

    /// Writes all stripes, and waits until all are complete. Returns false if the job was cancelled.
    async fn whole(&self, object: &ObjectRecord, upload: &UploadRecord, gathered: &Gathered<'_>) -> Result<bool, Failed> {
        if !self.stripes(object, upload, gathered).await? {
            return Ok(false);
        }
        tokio::select! {
            biased;
            whole = self.require_whole(object, upload.id) => whole.map(|()| true),
            () = self.job_ended() => Ok(false),
        }
    }

    /// Writes all stripes. Returns true if all have ended, and false if the job was cancelled.
    async fn stripes(&self, object: &ObjectRecord, upload: &UploadRecord, gathered: &Gathered<'_>) -> Result<bool, Failed> {
        let len = self.stripe_len();
        let stripe = |number: u64| async move {
            let data = Span::new(number * len, object.size.min((number + 1) * len));
            let written = self.stripe(object, upload, number, data, gathered).await;
            written.map_err(|error| (number, error))
        };
        let stripes = stream::iter(0..object.size.div_ceil(len)).map(stripe).buffer_unordered(self.concurrency);
        stripes.try_fold(true, |all, written| std::future::ready(Ok(all && written))).await
    }

    /// Bytes of data of a full new stripe.
    fn stripe_len(&self) -> u64 {
        self.target.layout.block_len.saturating_mul(self.target.code.k() as u64)
    }

    async fn stripe(
        &self,
        object: &ObjectRecord,
        upload: &UploadRecord,
        number: u64,
        data: Span,
        gathered: &Gathered<'_>,
    ) -> Result<bool> {
        let turn = self.turn().await?;
        if !self.goes_on(data.len()).await {
            return Ok(false);
        }
        tokio::select! {
            biased;
            written = self.written(object, upload, (number, data), turn) => written?,
            // The writing agent stops when its events have no receiver.
            () = self.job_ended() => return Ok(false),
        }
        gathered.add(data.len());
        Ok(true)
    }

    /// One of the turns for concurrent stripes; dropping it frees it.
    pub(super) async fn turn(&self) -> Result<SemaphorePermit<'_>> {
        let gone = |_| Error::fatal("the semaphore of stripes was closed");
        self.stripes.acquire().await.map_err(gone)
    }

    /// Waits while the job is paused, and until its rate allows `bytes`. Returns whether the job continues.
    async fn goes_on(&self, bytes: u64) -> bool {
        let mut state = self.state.clone();
        let mut begin = None;
        loop {
            let now = *state.borrow_and_update();
            let until = match now {
                JobState::Running => *begin.get_or_insert_with(|| {
                    let begin = lock(&self.rate).reserve(bytes, self.shared.started.now());
                    self.shared.started.instant(begin)
                }),
                JobState::Paused => {
                    if state.changed().await.is_err() {
                        return false;
                    }
                    continue;
                }
                JobState::Done | JobState::Failed | JobState::Cancelled => return false,
            };
            if until <= Instant::now() {
                return true;
            }
            tokio::select! {
                biased;
                changed = state.changed() => if changed.is_err() { return false },
                () = tokio::time::sleep_until(until) => {}
            }
        }
    }

    /// Waits until the job has ended.
    async fn job_ended(&self) {
        let mut state = self.state.clone();
        // An error means that the sender is gone, and with it the job.
        let _nobody = state.wait_for(|state| state.has_ended()).await;
    }

    /// Renews the put's lease for as long as it runs; returns why that failed for good.
    async fn keep(&self, id: UploadId) -> Error {
        let shared = self.shared;
        loop {
            tokio::time::sleep(upload::kept_after(shared.config.upload_lease_ms)).await;
            let kept = shared.meta.extend_upload(shared.epoch, id, shared.lease_end_ms()).await;
            match kept.map_err(|error| shared.meta_error(error)) {
                Err(error) if upload::is_gone(&error) => return error,
                Err(error) => tracing::warn!(upload = %id, %error, "cannot extend a lease"),
                Ok(()) => {}
            }
        }
    }

    /// Fails for stripes that have lost a block since they ended. A node that is only down may return soon.
    async fn require_whole(&self, object: &ObjectRecord, upload: UploadId) -> Result<(), Failed> {
        let (shared, begin, mut pause) = (self.shared, Instant::now(), Pause::new(PAUSE_FIRST, PAUSE_LAST));
        let patience = Duration::from_millis(shared.config.conversion_restart_ms);
        let waits = Waits::new(self.control);
        loop {
            let lost = self.lost(object, upload).await?;
            match conversion::whole(&object.name, lost, &shared.members.view(), begin.elapsed(), patience) {
                Whole::Yes => return Ok(()),
                Whole::No(failed) => return Err(failed),
                Whole::WaitsFor(what) => waits.tell(&what),
            }
            tokio::time::sleep(pause.again()).await;
        }
    }

    /// What the new stripes have lost, by their numbers.
    async fn lost(&self, object: &ObjectRecord, upload: UploadId) -> Result<Vec<(u64, Lost)>, Failed> {
        let (shared, mut all) = (self.shared, Vec::new());
        for number in 0..object.size.div_ceil(self.stripe_len()) {
            let stripe = shared.meta.upload_stripe(upload, number).await;
            let stripe = stripe.map_err(|error| (number, shared.meta_error(error)))?;
            all.extend(Lost::of(&stripe, &shared.members.view()).map(|lost| (number, lost)));
            // A permanent loss decides; further stripes do not matter.
            if all.last().is_some_and(|(_, lost)| !lost.is_away) {
                break;
            }
        }
        Ok(all)
    }

    async fn commit(&self, object: &ObjectRecord, upload: UploadId) -> Result<()> {
        let shared = self.shared;
        let committed = shared.meta.commit_put(shared.epoch, upload, puts::commit_of(shared, upload, object.size)).await;
        let now = committed.map_err(|error| shared.meta_error(error))?;
        shared.puts.forget(upload);
        let (name, from, code) = (&object.name, &object.code, &now.code);
        tracing::info!(job = %self.job, object = %name, version = %now.version, size = now.size, %from, %code, "converted");
        Ok(())
    }

    /// The outcome for an object that could not be converted.
    async fn judged(&self, object: &ObjectRecord, failed: Failed) -> Outcome {
        let now = match self.shared.meta.object(&object.name).await {
            Err(MetaError::NotFound(_)) => Now::Nothing,
            Ok(now) if now.version != object.version => match self.target.is_wanted_of(self.shared, &now).await {
                Ok(false) => Now::Fine,
                _ => Now::Another,
            },
            _ => Now::Same,
        };
        Outcome::of_failed(&object.name, now, failed)
    }
}

/// Bytes of ended stripes of an object that is not converted yet.
pub(super) struct Gathered<'a> {
    control: &'a Control,
    bytes: AtomicU64,
}

impl Gathered<'_> {
    fn add(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.control.live().gathered_bytes += bytes;
    }
}

impl Drop for Gathered<'_> {
    fn drop(&mut self) {
        let mut live = self.control.live();
        live.gathered_bytes = live.gathered_bytes.saturating_sub(self.bytes.load(Ordering::Relaxed));
    }
}
