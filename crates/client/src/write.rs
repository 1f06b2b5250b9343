//! Writes in place: they overwrite bytes of an object that exists.
//!
//! A write is cut into updates ([`split`]), several of which are under way at a time ([`stream`]). Each is requested from the agent that leads it,
//! under a lease of the coordinator ([`lease`]), until its outcome is known ([`update`], [`course`]). The longer it is, the longer its answer is
//! waited for ([`patience`]).

mod append;
mod course;
mod explain;
mod lease;
mod log;
mod patience;
mod request;
mod split;
mod stream;
mod target;
mod update;

pub use explain::{PlannedBlock, PlannedStripe, WritePlan};
pub use log::WriteLog;

use crate::{Client, client::Shared, progress::ProgressFn};
use bytes::Bytes;
use futures::stream::{self as streams, StreamExt, TryStreamExt};
use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use target::Target;
use tokio::io::AsyncRead;
use weft_proto::v1::{ExplainUpdateRequest, ExplainedUpdate, UpdateWay};
use weft_types::{ByteSize, Error, Reaction, Result, Span, UPDATE_BYTES_MAX, UPDATE_BYTES_USUAL};

/// How bytes of an object are overwritten.
///
/// ```
/// # use std::time::Duration;
/// # use weft_client::WriteOptions;
/// let options = WriteOptions { deadline: Duration::from_secs(10), ..WriteOptions::default() };
/// ```
#[derive(Debug, Clone)]
pub struct WriteOptions {
    /// How long each update may take, with all repetitions; at most a day. After it, the write fails.
    pub deadline: Duration,
    /// The most bytes of one update, which is atomic: 1 byte to 16 MiB. The nodes' journals must take it; those of 86 MiB or more take 1 MiB.
    pub update_bytes: u64,
    /// How the changes of blocks travel from node to node. By default, the way that is predicted to be fastest is taken.
    pub way: UpdateWay,
    /// The number of bytes to write; it is an error if the reader ends earlier. If the size is known, a write that does not fit
    /// changes nothing. None: everything that the reader returns.
    pub size: Option<u64>,
    /// Receives progress.
    pub progress: ProgressFn,
    /// Tells what is written, also when the write fails or is dropped.
    pub log: WriteLog,
}

/// The longest deadline.
const DEADLINE_MAX: Duration = Duration::from_secs(24 * 60 * 60);

impl Default for WriteOptions {
    fn default() -> Self {
        Self {
            deadline: Duration::from_secs(60),
            update_bytes: UPDATE_BYTES_USUAL,
            way: UpdateWay::default(),
            size: None,
            progress: ProgressFn::default(),
            log: WriteLog::default(),
        }
    }
}

/// The result of a write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wrote {
    /// The object, as `bucket/key`.
    pub object: String,
    /// Its version.
    pub version: u64,
    /// The offset of the first byte.
    pub offset: u64,
    /// The bytes that were written.
    pub bytes: u64,
    /// Of these, those by which the object has grown.
    pub appended_bytes: u64,
    /// The updates, each of which was atomic.
    pub updates: u64,
}

/// Writes to one object in place. It keeps its leases, so a write needs no call to the coordinator. Clones share them.
///
/// If the object is replaced by another, writes fail from then on. One that comes at the same time may be acknowledged and belong to the
/// replaced object. If the object is converted to another code, writes continue.
#[derive(Clone)]
pub struct Writer {
    shared: Arc<Shared>,
    target: Arc<Mutex<Arc<Target>>>,
    deadline: Duration,
    update_bytes: u64,
    way: UpdateWay,
    /// It writes an append, which begins from the start if the object has another version by now.
    is_append: bool,
}

/// The most calls for an explanation at once.
const EXPLAINED_AT_ONCE: usize = 8;

impl Client {
    /// Overwrites bytes of an object from `offset` on with those of `reader`. The write is acknowledged when all of it is durable on all blocks
    /// concerned. Bytes beyond the end are appended, as by [`append`](Self::append), after the others; a write must begin at the end or before.
    ///
    /// Up to [`WriteOptions::update_bytes`] within one stripe are one update: it is written atomically, and survives crashes as a whole or not at all. A longer write is several
    /// updates; reads at the same time may see some of them. If the write fails or is dropped, [`WriteOptions::log`] tells which bytes are written.
    /// Repeating a write is safe unless others write the same bytes.
    ///
    /// ```no_run
    /// # async fn example(client: weft_client::Client) -> weft_types::Result<()> {
    /// # use weft_client::WriteOptions;
    /// client.write_at("volumes", "disk.img", 4096, &[0; 4096][..], &WriteOptions::default()).await?;
    /// # Ok(()) }
    /// ```
    pub async fn write_at(
        &self,
        bucket: &str,
        key: &str,
        offset: u64,
        mut reader: impl AsyncRead + Unpin + Send,
        options: &WriteOptions,
    ) -> Result<Wrote> {
        let writer = self.writer(bucket, key, options).await?;
        let end = writer.size();
        match options.size {
            Some(size) if offset.saturating_add(size) <= end => writer.write_from(offset, &mut reader, options).await,
            _ if offset > end || end == 0 => writer.write_from(offset, &mut reader, options).await,
            _ => self.write_over_end(&writer, offset, &mut reader, options).await,
        }
    }

    /// A writer for many writes to one object. Of the options, it uses the deadline, the length of updates, and their way.
    ///
    /// ```no_run
    /// # async fn example(client: weft_client::Client) -> weft_types::Result<()> {
    /// # use weft_client::WriteOptions;
    /// let writer = client.writer("volumes", "disk.img", &WriteOptions::default()).await?;
    /// writer.write_at(0, vec![1; 4096]).await?;
    /// writer.write_at(8192, vec![2; 4096]).await?;
    /// # Ok(()) }
    /// ```
    pub async fn writer(&self, bucket: &str, key: &str, options: &WriteOptions) -> Result<Writer> {
        let WriteOptions { deadline, update_bytes, ref way, .. } = *options;
        check_update_bytes(update_bytes)?;
        let target = Target::new(self.shared().stat(bucket, key).await?)?;
        let (shared, target) = (self.shared().clone(), Arc::new(Mutex::new(Arc::new(target))));
        Ok(Writer { shared, target, deadline: deadline.min(DEADLINE_MAX), update_bytes, way: way.clone(), is_append: false })
    }

    /// What a write of `len` bytes at `offset` would do. Nothing is written. Of the options, it uses the length of updates, and their way.
    /// A block whose way cannot be planned, because it is lost for example, has one without a plan that says why.
    ///
    /// ```no_run
    /// # async fn example(client: weft_client::Client) -> weft_types::Result<()> {
    /// # use weft_client::WriteOptions;
    /// let plan = client.explain_write("volumes", "disk.img", 4096, 8192, &WriteOptions::default()).await?;
    /// println!("{} updates of {} stripes", plan.updates(), plan.stripes.len());
    /// # Ok(()) }
    /// ```
    pub async fn explain_write(
        &self,
        bucket: &str,
        key: &str,
        offset: u64,
        len: u64,
        options: &WriteOptions,
    ) -> Result<WritePlan> {
        check_update_bytes(options.update_bytes)?;
        let object = self.shared().stat(bucket, key).await?;
        let end = offset.saturating_add(len);
        let target = match end > object.size && offset <= object.size {
            true => {
                self.look_for_room((bucket, key), Some(object.size), end - object.size).await?;
                Target::longer(object.clone(), 0, (0, end))?
            }
            false => Target::new(object.clone())?,
        };
        let span = target.span(offset, len)?;
        let mut plan = WritePlan::new(object, &target, span, options.update_bytes);
        let asked: Vec<ExplainUpdateRequest> = plan.asked(&options.way).collect();
        let mut replies = streams::iter(asked).map(|asked| self.ways(asked)).buffered(EXPLAINED_AT_ONCE);
        for stripe in &mut plan.stripes {
            stripe.ways = replies.try_next().await.map_err(|error| target.place(error))?.unwrap_or_default();
        }
        drop(replies);
        Ok(plan)
    }

    /// How the changes of these blocks of a stripe would travel. One that cannot be explained, because it is lost for example, says why.
    async fn ways(&self, asked: ExplainUpdateRequest) -> Result<Vec<ExplainedUpdate>> {
        let calls = &self.shared().calls;
        let of_all = calls.ask(asked.clone(), |mut client, request| async move { client.explain_update(request).await }).await;
        match of_all {
            Ok(reply) => return Ok(reply.blocks),
            Err(error) if !matches!(error.reaction, Reaction::Retry | Reaction::Unavailable) => return Err(error),
            Err(_) => {}
        }
        let mut ways = Vec::new();
        for index in &asked.indexes {
            let one = ExplainUpdateRequest { indexes: vec![*index], ..asked.clone() };
            let reply = calls.once(one, |mut client, request| async move { client.explain_update(request).await }).await;
            match reply {
                Ok(reply) => ways.extend(reply.blocks),
                Err(error) => {
                    let no_routes = error.message;
                    ways.push(ExplainedUpdate { index: *index, no_routes, ..ExplainedUpdate::default() });
                }
            }
        }
        Ok(ways)
    }
}

impl Writer {
    /// The size of the object, bytes.
    pub fn size(&self) -> u64 {
        self.target().size
    }

    /// Overwrites bytes of the object from `offset` on. Returns when they are durable on all blocks concerned. Up to [`WriteOptions::update_bytes`] within one
    /// stripe are written atomically. Writes at the same time to the same bytes take effect in any order. It does not append.
    pub async fn write_at(&self, offset: u64, bytes: impl Into<Bytes>) -> Result<()> {
        let bytes = bytes.into();
        let target = self.target();
        let span = target.span(offset, bytes.len() as u64)?;
        let log = WriteLog::default();
        self.write_all(span, bytes, &log).await.map(drop).map_err(|error| target.place(with_log(error, &log, span)))
    }

    /// Like [`Client::write_at`], with this writer's deadline, length of updates, and way. It does not append.
    pub async fn write_from(
        &self,
        offset: u64,
        reader: &mut (dyn AsyncRead + Unpin + Send),
        options: &WriteOptions,
    ) -> Result<Wrote> {
        let target = self.target();
        let written = stream::write(self, &target, offset, reader, options).await;
        written.map_err(|(error, span)| target.place(with_log(error, &options.log, span)))
    }

    fn target(&self) -> Arc<Target> {
        self.target.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// After the object was found to be replaced: it, if its bytes are the same.
    async fn find_again(&self, before: &Target) -> Result<()> {
        let now = self.target();
        if now.version != before.version {
            return Ok(());
        }
        let found = before.after(self.shared.stat(&before.bucket, &before.key).await?)?;
        *self.target.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(found);
        Ok(())
    }
}

fn check_update_bytes(bytes: u64) -> Result<()> {
    if (1..=UPDATE_BYTES_MAX).contains(&bytes) {
        return Ok(());
    }
    let most = ByteSize(UPDATE_BYTES_MAX);
    Err(Error::invalid(format!("an atomic update of {bytes} bytes cannot be requested: the range is 1 byte to {most}")))
}

/// Says what is written in spite of an error, unless the write was one update that did nothing.
fn with_log(error: weft_types::Error, log: &WriteLog, span: Span) -> weft_types::Error {
    match span.is_empty() {
        true => error,
        false => weft_types::Error { message: format!("{}; {log}", error.message), ..error },
    }
}
