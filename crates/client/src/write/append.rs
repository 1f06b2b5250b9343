//! Appends: bytes behind the end of an object. They are written in place, in its last stripe, and become part of the object in one transaction of the
//! coordinator when all of them are durable.
//!
//! All bytes are read before the append begins: it holds the object while it is under way, and begins from the start if another one took over, or
//! if the object was converted.

use super::{DEADLINE_MAX, WriteLog, WriteOptions, Writer, Wrote, check_update_bytes, target::Target};
use crate::{
    Client,
    client::Shared,
    progress::{Meter, ProgressFn},
    stripe_data::{Spool, StripeData},
};
use std::{
    future::Future,
    hash::{BuildHasher as _, RandomState},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _},
    time::{Instant, sleep},
};
use weft_proto::v1::{BeginAppendReply, BeginAppendRequest, EndAppendRequest, GiveUpAppendRequest, ObjectReply};
use weft_types::{APPENDED_AT_ONCE_MAX, Error, Reaction, Result, Span};

/// An append that is under way. Dropping it before it ends gives it up.
struct Append {
    shared: Arc<Shared>,
    number: u64,
    object: ObjectReply,
    /// It must be renewed so often.
    renewed_every: Duration,
    has_ended: bool,
}

/// Where and what to append.
struct Appended<'a> {
    name: (&'a str, &'a str),
    /// The size that the object must have.
    at: Option<u64>,
    data: StripeData,
    options: &'a WriteOptions,
    meter: Meter,
}

impl Client {
    /// Appends the bytes of `reader` to an object. Readers see all of them or none. The append is acknowledged when they are durable on all blocks concerned and
    /// the object has its new size.
    ///
    /// They must fit into its last stripe: into all of its blocks if each data block has bytes of the object, and otherwise into the cell with its last byte. The
    /// error says how many fit. If several clients append at the same time, one waits for the other, up to [`WriteOptions::deadline`]. The bytes
    /// are read first, to memory or to a spool file. If the append fails or is dropped, nothing is appended, unless the error says that it is unknown: then the object's
    /// size tells.
    ///
    /// ```no_run
    /// # async fn example(client: weft_client::Client) -> weft_types::Result<()> {
    /// # use weft_client::WriteOptions;
    /// let wrote = client.append("logs", "today", &b"a line\n"[..], &WriteOptions::default()).await?;
    /// println!("{} bytes from byte {} on", wrote.bytes, wrote.offset);
    /// # Ok(()) }
    /// ```
    pub async fn append(
        &self,
        bucket: &str,
        key: &str,
        mut reader: impl AsyncRead + Unpin + Send,
        options: &WriteOptions,
    ) -> Result<Wrote> {
        self.append_at((bucket, key), None, &mut reader, options, 0).await
    }

    /// Writes bytes up to the end of the object, and appends the rest.
    pub(super) async fn write_over_end(
        &self,
        writer: &Writer,
        offset: u64,
        reader: &mut (dyn AsyncRead + Unpin + Send),
        options: &WriteOptions,
    ) -> Result<Wrote> {
        let target = writer.target();
        let (name, end) = ((&*target.bucket, &*target.key), writer.size());
        let head = end - offset;
        if let Some(size) = options.size {
            // What does not fit changes nothing.
            self.look_for_room(name, Some(end), size - head).await?;
        }
        if head == 0 {
            return self.append_at(name, Some(end), reader, options, 0).await;
        }
        let (told, total) = (options.progress.clone(), options.size);
        let progress = ProgressFn::new(move |it| told.tell(crate::Progress { total_bytes: total, ..it }));
        let of_head = WriteOptions { size: options.size.map(|_| head), progress, ..options.clone() };
        let wrote = writer.write_from(offset, &mut (&mut *reader).take(head), &of_head).await?;
        if wrote.bytes < head {
            return Ok(wrote);
        }
        let of_rest = WriteOptions { size: options.size.map(|size| size - head), ..options.clone() };
        let appended = self.append_at(name, Some(end), reader, &of_rest, head).await;
        let appended = appended.map_err(|error| super::with_log(error, &options.log, Span::new(offset, end)))?;
        let (bytes, updates) = (wrote.bytes + appended.bytes, wrote.updates + appended.updates);
        Ok(Wrote { offset, bytes, updates, ..appended })
    }

    /// Fails if so many bytes cannot be appended.
    pub(super) async fn look_for_room(&self, (bucket, key): (&str, &str), at: Option<u64>, bytes: u64) -> Result<ObjectReply> {
        let (bucket, key) = (bucket.to_owned(), key.to_owned());
        let asked = BeginAppendRequest { bucket, key, at, bytes, explain: true, ..BeginAppendRequest::default() };
        let ask = self.shared().calls.ask(asked, |mut client, request| async move { client.begin_append(request).await });
        described(ask.await?)
    }

    /// `done`: bytes of the same write that are written.
    async fn append_at(
        &self,
        name: (&str, &str),
        at: Option<u64>,
        mut reader: &mut (dyn AsyncRead + Unpin + Send),
        options: &WriteOptions,
        done: u64,
    ) -> Result<Wrote> {
        check_update_bytes(options.update_bytes)?;
        let place =
            |error: Error| if error.object.is_some() { error } else { error.object(format_args!("{}/{}", name.0, name.1)) };
        let found = match self.look_for_room(name, at, options.size.unwrap_or(0)).await {
            // Nothing may come.
            Err(error) if error.reaction != Reaction::InvalidInput || options.size.is_some() => return Err(place(error)),
            found => found,
        };
        let room = found.as_ref().map_or(0, room);
        let (memory_bytes_max, spool) = (self.shared().config.limits.stripe_memory_bytes_max, Spool::of(self.shared()));
        let most = options.size.unwrap_or(room.saturating_add(1));
        let data = StripeData::read(&mut reader, most, memory_bytes_max, &spool).await.map_err(place)?;
        if let Some(size) = options.size.filter(|size| data.len < *size) {
            let found = data.len;
            return Err(place(Error::invalid(format!("the data ends after {found} bytes, before the announced {size}"))));
        }
        match found {
            Err(error) if data.len > 0 => return Err(place(error)),
            Err(_) => return self.shared().stat(name.0, name.1).await.map(|object| wrote(&object, 0, 0)),
            Ok(object) if data.len == 0 => return Ok(wrote(&object, 0, 0)),
            Ok(object) if data.len > room => {
                let size = object.size;
                let message = format!(
                    "more than {room} bytes come, and no more fit behind the {size} bytes of the object: put it again with all its bytes"
                );
                return Err(place(Error::invalid(message)));
            }
            Ok(_) => {}
        }
        let meter = Meter::new(options.size.map(|size| size + done), &options.progress);
        meter.add(done);
        let appended = Appended { name, at, data, options, meter };
        appended.run(self.shared()).await.map_err(place)
    }
}

impl Appended<'_> {
    /// Appends, from the start if something came between.
    async fn run(&self, shared: &Arc<Shared>) -> Result<Wrote> {
        let until = Instant::now() + self.options.deadline.min(DEADLINE_MAX);
        let mut attempt = 0;
        loop {
            let before = self.meter.counted();
            let error = match self.begin(shared, until).await {
                Ok(append) => match self.write(append).await {
                    Ok(wrote) => return Ok(wrote),
                    Err(error) => error,
                },
                Err(error) => return Err(error),
            };
            attempt += 1;
            let begins_again = matches!(error.reaction, Reaction::Replan | Reaction::NotFound);
            if !begins_again || attempt >= shared.config.limits.attempts_max || Instant::now() >= until {
                return Err(error);
            }
            tracing::info!(%error, "an append begins again");
            self.meter.take_back(self.meter.counted() - before);
        }
    }

    /// Waits until no other append is under way.
    async fn begin(&self, shared: &Arc<Shared>, until: Instant) -> Result<Append> {
        let mut attempt = 0;
        // Another number for each attempt: one that ended does not begin again. Two clients may have the same seed, and must not have the same number,
        // so it is also of the random keys of this process. Nothing but equality depends on it. It has 63 bits, and so always the same length in messages.
        let number = ((shared.random.number() ^ RandomState::new().hash_one(0u8)) >> 1) | (1 << 62);
        loop {
            let asked = self.asked(number, false);
            match shared.calls.once(asked, |mut client, request| async move { client.begin_append(request).await }).await {
                Ok(reply) => {
                    let renewed_every = Duration::from_millis(reply.lasts_ms / 3).max(RENEWED_EVERY_MIN);
                    let (shared, object) = (shared.clone(), described(reply)?);
                    return Ok(Append { shared, number, object, renewed_every, has_ended: false });
                }
                Err(error) if error.reaction == Reaction::Retry => {
                    let pause = shared.random.pause(attempt);
                    if Instant::now() + pause >= until {
                        return Err(error);
                    }
                    sleep(pause).await;
                    attempt += 1;
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn asked(&self, append: u64, renews: bool) -> BeginAppendRequest {
        let (bucket, key) = (self.name.0.to_owned(), self.name.1.to_owned());
        BeginAppendRequest { bucket, key, append, at: self.at, bytes: self.data.len, renews, explain: false }
    }

    /// Writes the bytes behind the end of the object, and ends the append.
    async fn write(&self, mut append: Append) -> Result<Wrote> {
        let (from, len) = (append.object.size, self.data.len);
        let updates = self.renewing(&append, self.write_pieces(&append)).await?;
        let whole = Span::new(from, from + len);
        let log = &self.options.log;
        log.begun(whole);
        match append.end(from + len).await {
            Ok(object) => {
                log.done(whole);
                Ok(Wrote { offset: from, ..wrote(&object, len, updates) })
            }
            Err(error) if error.reaction == Reaction::Retry => {
                let message =
                    format!("it is unknown whether the bytes were appended (`weft stat` shows the size): {}", error.message);
                Err(Error { message, ..error })
            }
            Err(error) => {
                log.not_run(whole);
                Err(error)
            }
        }
    }

    /// Writes all of the bytes. Returns the number of updates.
    async fn write_pieces(&self, append: &Append) -> Result<u64> {
        let (from, len, mut updates) = (append.object.size, self.data.len, 0);
        for start in (0..len).step_by(APPENDED_AT_ONCE_MAX as usize) {
            let piece = Span::new(start, len.min(start + APPENDED_AT_ONCE_MAX));
            let last = append.object.stripe_count.saturating_sub(1);
            let target = Target::longer(append.object.clone(), last, (append.number, from + piece.end))?;
            let (span, bytes) = (Span::new(from + piece.start, from + piece.end), self.data.bytes(piece).await?);
            updates += self.writer(&append.shared, target).write_all(span, bytes, &WriteLog::default()).await?;
            self.meter.add(piece.len());
        }
        Ok(updates)
    }

    /// Does some work of an append, and renews the append until it is done. Fails if another append has begun.
    async fn renewing<T>(&self, append: &Append, work: impl Future<Output = Result<T>>) -> Result<T> {
        let renewals = async {
            loop {
                sleep(append.renewed_every).await;
                let asked = self.asked(append.number, true);
                let calls = &append.shared.calls;
                let renewed = calls
                    .within(append.renewed_every, asked, |mut client, request| async move { client.begin_append(request).await });
                match renewed.await {
                    Err(error) if matches!(error.reaction, Reaction::NotFound | Reaction::InvalidInput) => break error,
                    Err(error) => tracing::debug!(%error, "could not renew an append yet"),
                    Ok(_) => {}
                }
            }
        };
        tokio::select! {
            biased;
            done = Box::pin(work) => done,
            error = renewals => Err(error),
        }
    }

    fn writer(&self, shared: &Arc<Shared>, target: Target) -> Writer {
        let WriteOptions { deadline, update_bytes, way, .. } = self.options;
        let (deadline, way) = ((*deadline).min(DEADLINE_MAX), way.clone());
        let target = Arc::new(Mutex::new(Arc::new(target)));
        Writer { shared: shared.clone(), target, deadline, update_bytes: *update_bytes, way, is_append: true }
    }
}

impl Append {
    /// The bytes up to `to` become part of the object.
    async fn end(&mut self, to: u64) -> Result<ObjectReply> {
        let ObjectReply { bucket, key, version, size: from, .. } = self.object.clone();
        let asked = EndAppendRequest { bucket, key, append: self.number, version, from, to };
        let requests = AtomicU32::new(0);
        let ask = self.shared.calls.ask(asked, |mut client, request| {
            requests.fetch_add(1, Relaxed);
            async move { client.end_append(request).await }
        });
        let ended = ask.await;
        self.has_ended = ended.is_ok();
        match ended {
            // An earlier request, whose answer is not known, may have ended it before another append or a conversion came.
            Err(error) if requests.load(Relaxed) > 1 && matches!(error.reaction, Reaction::Replan | Reaction::NotFound) => {
                Err(Error { reaction: Reaction::Retry, ..error })
            }
            ended => ended,
        }
    }
}

impl Drop for Append {
    fn drop(&mut self) {
        if self.has_ended {
            return;
        }
        let (calls, ObjectReply { bucket, key, .. }) = (self.shared.calls.clone(), self.object.clone());
        let asked = GiveUpAppendRequest { bucket, key, append: self.number };
        self.shared.background.start(async move {
            let given_up = calls.once(asked, |mut client, request| async move { client.give_up_append(request).await });
            if let Ok(Err(error)) = tokio::time::timeout(GIVE_UP_WITHIN, given_up).await {
                tracing::debug!(%error, "could not give up an append: it ends by itself");
            }
        });
    }
}

/// An append is not renewed more often.
const RENEWED_EVERY_MIN: Duration = Duration::from_secs(1);

/// After that, the append ends by itself.
const GIVE_UP_WITHIN: Duration = Duration::from_secs(5);

fn described(reply: BeginAppendReply) -> Result<ObjectReply> {
    reply.object.ok_or_else(|| Error::fatal("the coordinator did not describe the object"))
}

/// The bytes that fit behind the end of an object, of which the last stripe is known.
fn room(object: &ObjectReply) -> u64 {
    let last = object.stripe_count.saturating_sub(1);
    let places = crate::get::stripes_of(object, last, &crate::GetOptions::default()).unwrap_or_default();
    places.last().map_or(0, |place| (place.offset + place.layout.room_end()).saturating_sub(object.size))
}

/// So many bytes were appended.
fn wrote(object: &ObjectReply, bytes: u64, updates: u64) -> Wrote {
    let (name, version, offset) = (format!("{}/{}", object.bucket, object.key), object.version, object.size);
    Wrote { object: name, version, offset, bytes, appended_bytes: bytes, updates }
}
