//! The bytes of a write, as a reader returns them: cut into updates, of which several are under way at a time.

use super::{WriteOptions, Writer, Wrote, target::Target};
use crate::progress::Meter;
use bytes::{Bytes, BytesMut};
use futures::stream::{self, StreamExt};
use tokio::{
    io::{AsyncRead, AsyncReadExt},
    sync::watch,
};
use weft_types::{Error, Result, Span, UPDATE_BYTES_MAX};

/// The most updates of one write under way.
pub(super) const UPDATES_MAX: usize = 16;

/// The rest of a write's bytes.
struct Input<'a> {
    reader: &'a mut (dyn AsyncRead + Unpin + Send),
    /// The offset in the object of the first byte of `ahead`.
    at: u64,
    ahead: BytesMut,
    has_ended: bool,
    /// The bytes that the reader must return.
    size: Option<u64>,
    read: u64,
    /// Becomes true when an update has failed.
    stop: watch::Receiver<bool>,
}

/// Bytes that are read at once.
const READ_BYTES: usize = 256 << 10;

/// Writes all bytes of a reader. An error comes with the range that was begun: it is empty if nothing was.
pub(super) async fn write(
    writer: &Writer,
    target: &Target,
    offset: u64,
    reader: &mut (dyn AsyncRead + Unpin + Send),
    options: &WriteOptions,
) -> Result<Wrote, (Error, Span)> {
    let asked = target.span(offset, options.size.unwrap_or(0)).map_err(|error| (error, Span::new(0, 0)))?;
    let meter = Meter::new(options.size, &options.progress);
    let (stop, stopped) = watch::channel(false);
    let input =
        Input { reader, at: offset, ahead: BytesMut::new(), has_ended: false, size: options.size, read: 0, stop: stopped };
    let pieces = stream::unfold(Some(input), |input| async move {
        let mut input = input?;
        match input.next(target).await {
            Ok(Some(piece)) => Some((Ok(piece), Some(input))),
            Ok(None) => None,
            Err(error) => Some((Err(error), None)),
        }
    });
    let writing = pieces.map(|piece| {
        let meter = &meter;
        async move {
            let (at, bytes): (u64, Bytes) = piece?;
            let len = bytes.len() as u64;
            let updates = writer.write_span(Span::new(at, at + len), bytes, &options.log).await?;
            meter.add(len);
            Ok((len, updates))
        }
    });
    let mut writing = std::pin::pin!(writing.buffer_unordered(UPDATES_MAX));
    let mut wrote =
        Wrote { object: format!("{}/{}", target.bucket, target.key), version: target.version, offset, bytes: 0, updates: 0 };
    let mut failed: Option<Error> = None;
    // The updates that are under way end before an error is returned.
    while let Some(done) = writing.next().await {
        match done {
            Ok((len, updates)) => (wrote.bytes, wrote.updates) = (wrote.bytes + len, wrote.updates + updates),
            Err(error) => {
                stop.send_replace(true);
                failed.get_or_insert(error);
            }
        }
    }
    match failed {
        Some(error) => Err((error, Span::new(asked.start, asked.end.max(asked.start + 1)))),
        None => Ok(wrote),
    }
}

impl Writer {
    /// Writes a range of the object, several updates at a time.
    pub(super) async fn write_all(&self, span: Span, bytes: Bytes, log: &super::WriteLog) -> Result<()> {
        if bytes.len() as u64 <= UPDATE_BYTES_MAX {
            return self.write_span(span, bytes, log).await.map(drop);
        }
        let options = WriteOptions { size: Some(span.len()), log: log.clone(), ..WriteOptions::default() };
        let target = self.target();
        let written = write(self, &target, span.start, &mut &bytes[..], &options).await;
        written.map(drop).map_err(|(error, _)| error)
    }
}

impl Input<'_> {
    /// The next piece that is an update of its own, and its offset in the object; `None` at the end.
    async fn next(&mut self, target: &Target) -> Result<Option<(u64, Bytes)>> {
        let room = target.slot(self.at).map_or(0, |slot| slot.stripe.offset + slot.stripe.layout.data_len - self.at);
        // One byte more than an update can have shows whether the rest fits into one. At the end of the object, it shows that there is too much.
        let wanted = room.clamp(1, UPDATE_BYTES_MAX + 1) as usize;
        if !self.read_to(wanted).await? {
            return Ok(None);
        }
        let span = Span::new(self.at, self.at + self.ahead.len() as u64);
        match () {
            () if span.is_empty() => return Ok(None),
            () if room == 0 => {
                return Err(Error::invalid(format!(
                    "the data goes on beyond the end of the object, {} bytes, which a write in place cannot extend",
                    target.size
                )));
            }
            () => {}
        }
        let (_, update) = target.first_update(span)?;
        self.at = update.end;
        Ok(Some((update.start, self.ahead.split_to(update.len() as usize).freeze())))
    }

    /// Reads ahead up to `wanted` bytes, or to the end. Returns whether to go on.
    async fn read_to(&mut self, wanted: usize) -> Result<bool> {
        while self.ahead.len() < wanted && !self.has_ended {
            let left = self.size.map_or(u64::MAX, |size| size - self.read);
            let room = (wanted - self.ahead.len()).min(READ_BYTES).min(usize::try_from(left).unwrap_or(usize::MAX));
            let before = self.ahead.len();
            self.ahead.resize(before + room, 0);
            let read = tokio::select! {
                biased;
                _ = self.stop.wait_for(|stop| *stop) => return Ok(false),
                read = self.reader.read(&mut self.ahead[before..]) => read,
            };
            let read = read.map_err(|error| Error::fatal(format!("cannot read the data: {error}")))?;
            self.ahead.truncate(before + read);
            self.read += read as u64;
            self.has_ended = read == 0;
            if let Some(size) = self.size.filter(|size| self.has_ended && self.read < *size) {
                let found = self.read;
                return Err(Error::invalid(format!("the data ends after {found} bytes, before the announced {size}")));
            }
        }
        Ok(!*self.stop.borrow())
    }
}
