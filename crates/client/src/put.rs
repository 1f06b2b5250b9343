//! Puts: stripe by stripe, while the next stripe is read and the last one is being ended.

use crate::{
    Client,
    background::Owned,
    client::Shared,
    lease::keep,
    ports::{OpenTask, Outgoing, Work},
    progress::{Counted, Meter, ProgressFn},
    stripe_data::{Spool, StripeData},
    sums,
};
use futures::stream::{self, TryStreamExt};
use std::{
    fs::File,
    path::Path,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};
use tokio::{
    io::AsyncRead,
    sync::{Semaphore, watch},
};
use tonic::transport::Channel;
use weft_proto::{
    DiskMode,
    status::{decode_error, encode_error},
    v1::{
        AbortPutRequest, BeginPutReply, BeginPutRequest, CommitPutRequest, EndStripeReply, EndStripeRequest, KeepPutReply,
        KeepPutRequest, ObjectReply, PutStripeReply, PutStripeRequest, StageReport, TaskTraffic, WriteScheme,
        weft_client::WeftClient,
    },
};
use weft_types::{Error, PlanId, PutKey, Reaction, Result, StripeLayout};

/// How an object is put.
///
/// ```
/// # use weft_client::PutOptions;
/// let options = PutOptions { code: "rs(4,2)".into(), block_len: 1 << 20, ..PutOptions::default() };
/// assert_eq!(options.cell_len, 0, "as the bucket's policy says");
/// ```
#[derive(Debug, Clone, Default)]
pub struct PutOptions {
    /// The code; empty: the bucket's policy.
    pub code: String,
    /// Bytes of a block; 0: the bucket's policy.
    pub block_len: u64,
    /// Bytes of a cell; 0: the bucket's policy.
    pub cell_len: u64,
    /// How the data reaches its nodes: `direct`, `mist`, `auto`; empty: the coordinator's setting.
    pub scheme: String,
    /// Bytes of a slice of a block, a multiple of 4 KiB; 0: the coordinator's setting.
    pub slice_len: u64,
    /// Place blocks on random nodes, regardless of their speed and load: to measure what that costs.
    pub random: bool,
    /// Place blocks on nodes in the order of the nodes' names, regardless of their speed and load: to measure what that costs.
    pub by_name: bool,
    /// When the put is acknowledged: when `all` blocks are durable, when `k+N` blocks of each stripe are, or when all but N are:
    /// `tolerate=N`; the rest follows. Empty: the bucket's policy. All data is sent before, as fast as the slowest link allows.
    pub ack: String,
    /// Copies of each data block, including the coded one; 0: the bucket's policy.
    pub replicas: u32,
    /// The number of bytes to store; it is an error if the reader ends earlier. If the size is known, the coordinator allocates the
    /// stripes at once. None: everything that the reader returns. A file has its own size.
    pub size: Option<u64>,
    /// Receives progress.
    pub progress: ProgressFn,
}

/// Stripes of a put in progress at once: one is sent, one is being ended.
const STRIPES_MAX: usize = 2;
/// Most stages whose times a put reports.
const STAGES_MAX: usize = 4096;

impl Client {
    /// Stores the bytes of `reader` as `bucket/key`. The put is acknowledged when all of it is durable, or as much as
    /// [`PutOptions::ack`] requires; the object is invisible before that. Dropping the future aborts the put.
    ///
    /// The answer's `warnings` say, for example, that a rack got more blocks of a stripe than the code can lose. Its `incomplete` lists
    /// blocks of the last stripes that were not stored yet.
    ///
    /// The answer's `traffic` is what the agents moved for the put: they received from this client and from each other. If an answer of the
    /// coordinator was lost, some traffic is not counted. Its `stages` show how the client and the nodes spent their time, for the first
    /// stripes.
    ///
    /// ```no_run
    /// # async fn example(client: weft_client::Client) -> weft_types::Result<()> {
    /// # use weft_client::PutOptions;
    /// let pipe = tokio::fs::File::open("/run/log.pipe").await.map_err(weft_types::Error::invalid)?;
    /// let object = client.put("logs", "today", pipe, &PutOptions::default()).await?;
    /// println!("{} bytes in {} stripes", object.size, object.stripe_count);
    /// # Ok(()) }
    /// ```
    pub async fn put(
        &self,
        bucket: &str,
        key: &str,
        reader: impl AsyncRead + Unpin + Send,
        options: &PutOptions,
    ) -> Result<ObjectReply> {
        let put = Put::begin(self.shared(), request(bucket, key, options.size, options), options).await?;
        let (memory_bytes_max, stripe_len) = (self.shared().config.limits.stripe_memory_bytes_max, put.stripe_len);
        let size = options.size;
        // Owned, not borrowed: otherwise the compiler cannot tell that a put can be spawned.
        let begin = (reader, Spool::of(self.shared()), 0);
        let stripes = stream::try_unfold(begin, move |(mut reader, spool, number)| async move {
            let start = stripe_len.saturating_mul(number);
            let len_max = size.map_or(stripe_len, |size| size.saturating_sub(start).min(stripe_len));
            let data = StripeData::read(&mut reader, len_max, memory_bytes_max, &spool).await?;
            if let Some(size) = size.filter(|_| data.len < len_max) {
                let found = start + data.len;
                return Err(Error::invalid(format!("the data ends after {found} bytes, before the announced {size}")));
            }
            let is_last = size.map_or(data.len < stripe_len, |size| size.saturating_sub(start) <= stripe_len);
            Ok(if data.len == 0 { None } else { Some((Stripe { number, data, is_last }, (reader, spool, number + 1))) })
        });
        put.stripes_and_commit(stripes).await
    }

    /// Stores a file as `bucket/key`; the file is read as it is sent, without a copy. Otherwise like [`put`](Self::put).
    ///
    /// ```no_run
    /// # async fn example(client: weft_client::Client) -> weft_types::Result<()> {
    /// # use weft_client::PutOptions;
    /// client.put_file("photos", "cat.jpg", "cat.jpg", &PutOptions::default()).await?;
    /// # Ok(()) }
    /// ```
    pub async fn put_file(&self, bucket: &str, key: &str, path: impl AsRef<Path>, options: &PutOptions) -> Result<ObjectReply> {
        let mode = self.shared().config.disk_mode;
        let (file, size) = open(path.as_ref(), mode).await?;
        let start = BeginPutRequest { start: size > 0, ..request(bucket, key, Some(size), options) };
        let put = Put::begin(self.shared(), start, options).await?;
        let stripe_len = put.stripe_len;
        let stripes = (0..size.div_ceil(stripe_len)).map(|number| {
            let start = number * stripe_len;
            let data = StripeData::in_file(file.clone(), start, stripe_len.min(size - start), mode);
            Ok(Stripe { number, data, is_last: size - start <= stripe_len })
        });
        put.stripes_and_commit(stream::iter(stripes)).await
    }

    /// What a put would do: the JSON of its first stripe's plan, and the coordinator's warnings. Nothing is stored.
    ///
    /// ```no_run
    /// # async fn example(client: weft_client::Client) -> weft_types::Result<()> {
    /// # use weft_client::PutOptions;
    /// let begun = client.explain_put("photos", "cat.jpg", 1 << 30, &PutOptions::default()).await?;
    /// println!("{} {}", begun.code, String::from_utf8_lossy(&begun.plan));
    /// # Ok(()) }
    /// ```
    pub async fn explain_put(&self, bucket: &str, key: &str, size: u64, options: &PutOptions) -> Result<BeginPutReply> {
        let request = BeginPutRequest { explain: true, ..request(bucket, key, Some(size), options) };
        self.shared().calls.ask(request, |mut client, request| async move { client.begin_put(request).await }).await
    }
}

async fn open(path: &Path, mode: DiskMode) -> Result<(Arc<File>, u64)> {
    let path = path.to_path_buf();
    let open = move || {
        let cannot = |error| Error::invalid(format!("cannot read {}: {error}", path.display()));
        let file = File::open(&path).map_err(cannot)?;
        let metadata = file.metadata().map_err(cannot)?;
        if !metadata.is_file() {
            return Err(Error::invalid(format!("{} is not a regular file: store its output as from a pipe", path.display())));
        }
        Ok((Arc::new(file), metadata.len()))
    };
    mode.run(open).await
}

fn request(bucket: &str, key: &str, size: Option<u64>, options: &PutOptions) -> BeginPutRequest {
    BeginPutRequest {
        bucket: bucket.into(),
        key: key.into(),
        code: options.code.clone(),
        block_len: options.block_len,
        cell_len: options.cell_len,
        explain: false,
        size_hint: size.unwrap_or(0),
        options: Some(how(options)),
        ack: options.ack.clone(),
        replicas: options.replicas,
        start: false,
    }
}

/// Data of a put.
pub(crate) struct Stripe {
    /// Its number in the object, from 0.
    pub(crate) number: u64,
    pub(crate) data: StripeData,
    /// It is the last stripe: the put can be committed with it.
    pub(crate) is_last: bool,
}

fn how(options: &PutOptions) -> WriteScheme {
    let PutOptions { slice_len, random, by_name, .. } = *options;
    WriteScheme { scheme: options.scheme.clone(), slice_len, random, by_name }
}

/// A put that has begun. Dropping it before its commit aborts it.
pub(crate) struct Put {
    shared: Arc<Shared>,
    object: String,
    upload: u64,
    key: PutKey,
    stripe_len: u64,
    how: WriteScheme,
    /// The coordinator's warnings at the start of the put.
    warnings: Vec<String>,
    meter: Meter,
    /// What the agents moved for the stripes that have ended.
    traffic: Mutex<TaskTraffic>,
    /// How all stages of the client and the nodes spent their time.
    stages: Mutex<Vec<StageReport>>,
    /// Renews the put's lease: its data can arrive slowly.
    _keeping: Owned<()>,
    /// Only one stripe is sent at a time.
    sending: Semaphore,
    /// The first stripe, which was started when the put began.
    first: Mutex<Option<PutStripeReply>>,
    /// The number of stripes that have ended.
    ended: watch::Sender<u64>,
    /// The coordinator was asked to commit the put with its last stripe.
    end_is_asked: AtomicBool,
    /// Dropping it aborts it.
    open: AtomicBool,
}

/// The outcome of `CommitPut`, except success.
enum NotCommitted {
    /// The put is not committed, for this reason.
    Known(Error),
    /// No answer arrived: the put may have been committed.
    Unknown(Error),
}

impl Put {
    async fn begin(shared: &Arc<Shared>, request: BeginPutRequest, options: &PutOptions) -> Result<Self> {
        let object = format!("{}/{}", request.bucket, request.key);
        let size = Some(request.size_hint).filter(|size| *size > 0);
        let begun = shared.calls.once(request, |mut client, request| async move { client.begin_put(request).await }).await;
        let begun = begun.map_err(|error| error.object(&object))?;
        let put = Self {
            shared: shared.clone(),
            object,
            upload: begun.upload,
            key: PutKey::from_bytes(&begun.put_key),
            stripe_len: u64::from(begun.k).saturating_mul(begun.block_len),
            how: how(options),
            warnings: begun.warnings,
            meter: Meter::new(size, &options.progress),
            traffic: Mutex::default(),
            stages: Mutex::default(),
            _keeping: Owned::start(keep(
                shared.calls.clone(),
                (begun.upload, PutKey::from_bytes(&begun.put_key)),
                begun.lease_ms,
            )),
            sending: Semaphore::new(1),
            first: Mutex::new(begun.first),
            ended: watch::Sender::new(0),
            end_is_asked: AtomicBool::new(false),
            open: AtomicBool::new(true),
        };
        match put.stripe_len {
            0 => Err(Error::fatal("the coordinator sent no block size")),
            _ => Ok(put),
        }
    }

    /// A put that the coordinator began and will end: this client only sends stripes of it.
    pub(crate) fn of_another(
        shared: &Arc<Shared>,
        object: String,
        (upload, key): (u64, PutKey),
        len: u64,
        progress: &ProgressFn,
    ) -> Self {
        Self {
            shared: shared.clone(),
            object,
            upload,
            key,
            stripe_len: len,
            how: WriteScheme::default(),
            warnings: Vec::new(),
            meter: Meter::new(Some(len), progress),
            traffic: Mutex::default(),
            stages: Mutex::default(),
            _keeping: Owned::start(std::future::ready(())),
            sending: Semaphore::new(1),
            first: Mutex::default(),
            ended: watch::Sender::new(0),
            end_is_asked: AtomicBool::new(false),
            open: AtomicBool::new(false),
        }
    }

    async fn stripes_and_commit(mut self, stripes: impl stream::Stream<Item = Result<Stripe>>) -> Result<ObjectReply> {
        let this = &self;
        let written = stripes
            .map_ok(|stripe| this.stripe(stripe))
            .try_buffer_unordered(STRIPES_MAX)
            .try_fold((0, None), |(size, object), (len, committed)| std::future::ready(Ok((size + len, object.or(committed)))))
            .await;
        let object = match written.map_err(|error| error.object(&self.object))? {
            (_, Some(object)) => object,
            (size, None) => self.commit(size).await.map_err(|error| error.object(&self.object))?,
        };
        self.open.store(false, Ordering::Relaxed);
        let traffic = *self.traffic.get_mut().unwrap_or_else(PoisonError::into_inner);
        let stages = std::mem::take(self.stages.get_mut().unwrap_or_else(PoisonError::into_inner));
        let mut warnings = std::mem::take(&mut self.warnings);
        warnings.extend(object.warnings);
        Ok(ObjectReply { traffic: Some(traffic), stages, warnings, ..object })
    }

    /// Makes the object visible. It is no error if it already is.
    async fn commit(&self, size: u64) -> Result<ObjectReply> {
        self.ask_to_commit(size).await.map_err(|failed| self.not_committed(failed))
    }

    /// The caller's error for a failed commit.
    fn not_committed(&self, failed: NotCommitted) -> Error {
        match failed {
            NotCommitted::Known(error) => error,
            NotCommitted::Unknown(error) => {
                // An abort could not undo the commit, and must not be tried.
                self.open.store(false, Ordering::Relaxed);
                let message = format!("unknown whether the object was stored (check with `weft stat`): {}", error.message);
                Error { message, ..error }
            }
        }
    }

    async fn ask_to_commit(&self, size: u64) -> std::result::Result<ObjectReply, NotCommitted> {
        let request = CommitPutRequest { upload: self.upload, size, put_key: self.key.to_bytes() };
        let is_told = &AtomicBool::new(false);
        let commit = |mut client: WeftClient<Channel>, request| async move {
            is_told.store(false, Ordering::Relaxed);
            let answer = client.commit_put(request).await;
            is_told.store(answer.as_ref().is_err_and(|status| decode_error(status.details()).is_some()), Ordering::Relaxed);
            answer
        };
        self.shared.calls.ask(request, commit).await.map_err(|error| match error.reaction {
            // The coordinator waited for nodes, and the call waited for it.
            Reaction::Retry if is_told.load(Ordering::Relaxed) => {
                NotCommitted::Known(Error { reaction: Reaction::Unavailable, ..error })
            }
            Reaction::Retry => NotCommitted::Unknown(error),
            _ => NotCommitted::Known(error),
        })
    }

    /// Sends a stripe until the coordinator accepts it. Returns its length and, if the put was committed with it, the object.
    pub(crate) async fn stripe(&self, Stripe { number, data, is_last }: Stripe) -> Result<(u64, Option<ObjectReply>)> {
        let commit_size = is_last.then(|| number.saturating_mul(self.stripe_len).saturating_add(data.len));
        let mut attempt = 0;
        loop {
            let error = match self.try_stripe(number, &data, commit_size).await {
                Ok(object) => {
                    self.ended.send_modify(|ended| *ended += 1);
                    return Ok((data.len, object));
                }
                Err(error) => error,
            };
            attempt += 1;
            let goes_on = self.shared.may_try_again(&error) && attempt < self.shared.config.limits.attempts_max;
            // After a request for its end, the put may have been committed with it, whatever the answer was.
            if let Some(size) = commit_size.filter(|_| self.end_is_asked.load(Ordering::Relaxed)) {
                match self.ask_to_commit(size).await {
                    Ok(object) => {
                        self.meter.add(data.len);
                        return Ok((data.len, Some(object)));
                    }
                    Err(unknown @ NotCommitted::Unknown(_)) if !goes_on => return Err(self.not_committed(unknown)),
                    // The coordinator lacks the stripe, or there is no answer yet.
                    Err(_) => {}
                }
            }
            if !goes_on {
                return Err(error);
            }
            tracing::info!(object = %self.object, number, %error, "sending a stripe again");
            tokio::time::sleep(self.shared.random.pause(attempt)).await;
        }
    }

    async fn try_stripe(&self, number: u64, data: &StripeData, commit_size: Option<u64>) -> Result<Option<ObjectReply>> {
        let counted = Counted::new(&self.meter);
        let turn = self.sending.acquire().await;
        let mut reply = self.begin_stripe(number, data.len).await?;
        let mut open = OpenTask::new(reply.task.take())?;
        let layout: StripeLayout =
            postcard::from_bytes(&reply.layout).map_err(|_| Error::fatal("the coordinator sent an invalid layout"))?;
        if layout.data_len != data.len {
            return Err(Error::fatal(format!("the coordinator's plan is for {} bytes, not {}", layout.data_len, data.len)));
        }
        let mut turn = Some(turn);
        let mut meter = counted.meter();
        loop {
            let outgoing = Arc::new(Outgoing::new(data.clone(), layout, meter, open.task.links.len()));
            let work = Work::Put(outgoing.clone());
            let (outcome, own) = tokio::select! {
                biased;
                done = open.run(&self.shared, &work) => done,
                () = self.until_over(number, open.task.plan, &outgoing) => Default::default(),
            };
            drop(turn.take());
            if commit_size.is_some() {
                // This function holds the sender: the channel cannot be closed.
                let mut ended = self.ended.subscribe();
                let _all_others = ended.wait_for(|ended| *ended >= number).await;
                self.end_is_asked.store(true, Ordering::Relaxed);
            }
            let request = EndStripeRequest {
                upload: self.upload,
                number,
                plan: open.task.plan.0,
                sent: sums::whole(&outgoing.sums),
                errors: outcome.errors.iter().map(encode_error).collect(),
                commit_size,
                put_key: self.key.to_bytes(),
            };
            let timeout = self.shared.config.limits.end_stripe_timeout;
            let calls = &self.shared.calls;
            // The end can be reported twice: the stripe ended, but the answer was lost.
            let ended = calls.ask_within(timeout, request, |mut client, request| async move { client.end_stripe(request).await });
            let EndStripeReply { again, traffic, stages, object } = ended.await?;
            self.count(traffic, own.into_iter().chain(stages));
            let Some(again) = again else {
                counted.keep();
                return Ok(object);
            };
            // Bytes of a stripe that is sent again are already counted.
            (open, meter) = (OpenTask::new(Some(again))?, Meter::new(None, &ProgressFn::default()));
        }
    }

    /// Requests the start of a stripe, unless it was started with the put.
    async fn begin_stripe(&self, number: u64, data_len: u64) -> Result<PutStripeReply> {
        let first = self.first.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(first) = first.filter(|_| number == 0) {
            return Ok(first);
        }
        let (upload, options, put_key) = (self.upload, Some(self.how.clone()), self.key.to_bytes());
        let request = PutStripeRequest { upload, number, data_len, options, put_key };
        self.shared.calls.ask(request, |mut client, request| async move { client.put_stripe(request).await }).await
    }

    fn count(&self, traffic: Option<TaskTraffic>, stages: impl Iterator<Item = StageReport>) {
        let mut known = self.stages.lock().unwrap_or_else(PoisonError::into_inner);
        // For objects of very many stripes, the first ones are enough.
        let room = STAGES_MAX.saturating_sub(known.len());
        known.extend(stages.take(room));
        drop(known);
        let mut sum = self.traffic.lock().unwrap_or_else(PoisonError::into_inner);
        *sum = *sum + traffic.unwrap_or_default();
    }

    /// Completes when no receiver of a plan is left. Calls the coordinator only when nothing moves: a stalled receiver does not report
    /// itself.
    async fn until_over(&self, number: u64, plan: PlanId, outgoing: &Outgoing) {
        loop {
            outgoing.stands_still().await;
            // The put waits for other work of its own node: no receiver is to blame.
            let is_held_back = self.shared.config.node_link.as_ref().is_some_and(|link| link.is_held_back());
            let (waits_for, put_key) = (if is_held_back { Vec::new() } else { outgoing.waits_for() }, self.key.to_bytes());
            let request = KeepPutRequest { upload: self.upload, number, plan: plan.0, waits_for, put_key };
            let kept = self.shared.calls.once(request, |mut client, request| async move { client.keep_put(request).await }).await;
            match kept {
                Ok(KeepPutReply { over: true, .. }) => return,
                Ok(KeepPutReply { gone, .. }) => outgoing.give_up(&gone),
                // The put was aborted.
                Err(error) if error.reaction == Reaction::NotFound => return,
                Err(error) => tracing::debug!(%error, "could not ask the coordinator about a put"),
            }
        }
    }
}

impl Drop for Put {
    fn drop(&mut self) {
        if !self.open.load(Ordering::Relaxed) {
            return;
        }
        let (calls, object) = (self.shared.calls.clone(), self.object.clone());
        let request = AbortPutRequest { upload: self.upload, put_key: self.key.to_bytes() };
        self.shared.background.start(async move {
            if let Err(error) = calls.ask(request, |mut client, request| async move { client.abort_put(request).await }).await {
                tracing::warn!(%object, %error, "could not abort a put; its blocks are removed when its lease ends");
            }
        });
    }
}
