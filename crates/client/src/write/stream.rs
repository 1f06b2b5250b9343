//! The bytes of a write, as a reader returns them: cut into updates, of which several are under way at a time.

use super::{WriteOptions, Writer, Wrote, target::Target};
use crate::progress::Meter;
use bytes::{Bytes, BytesMut};
use futures::{
    future::BoxFuture,
    stream::{FuturesUnordered, StreamExt},
};
use tokio::io::{AsyncRead, AsyncReadExt};
use weft_types::{Error, Result, Span};

/// The most updates of one write under way.
pub(super) const UPDATES_MAX: usize = 16;
/// The most bytes of updates of one write under way.
const UNDER_WAY_BYTES_MAX: u64 = 32 << 20;

/// The rest of a write's bytes.
struct Input<'a> {
    reader: &'a mut (dyn AsyncRead + Unpin + Send),
    /// The offset in the object of the first byte of `ahead`.
    at: u64,
    ahead: BytesMut,
    has_ended: bool,
    /// The most bytes of an update.
    update_bytes: u64,
    /// The bytes that the reader must return.
    size: Option<u64>,
    read: u64,
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
    let (size, update_bytes) = (options.size, writer.update_bytes);
    let input = Input { reader, at: offset, ahead: BytesMut::new(), has_ended: false, update_bytes, size, read: 0 };
    let updates_max = usize::try_from(UNDER_WAY_BYTES_MAX / update_bytes).unwrap_or(UPDATES_MAX).clamp(1, UPDATES_MAX);
    let object = format!("{}/{}", target.bucket, target.key);
    let mut wrote = Wrote { object, version: target.version, offset, bytes: 0, appended_bytes: 0, updates: 0 };
    let (mut reading, mut failed) = (Some(input.read(target)), None);
    // Boxed, for otherwise the compiler cannot tell that a write can be spawned.
    let mut writing: FuturesUnordered<BoxFuture<'_, Result<(u64, u64)>>> = FuturesUnordered::new();
    // After an error, the updates that are under way end, but no more begin.
    loop {
        let may_read = failed.is_none() && reading.is_some() && writing.len() < updates_max;
        tokio::select! {
            biased;
            Some(done) = writing.next(), if !writing.is_empty() => match done {
                Ok((len, updates)) => {
                    meter.add(len);
                    (wrote.bytes, wrote.updates) = (wrote.bytes + len, wrote.updates + updates);
                }
                Err(error) => drop(failed.get_or_insert(error)),
            },
            read = piece(&mut reading), if may_read => {
                reading = None;
                match read {
                    Ok((input, Some((at, bytes)))) => {
                        let span = Span::new(at, at + bytes.len() as u64);
                        let written = writer.write_span(span, bytes, &options.log);
                        writing.push(Box::pin(async move { written.await.map(|updates| (span.len(), updates)) }));
                        reading = Some(input.read(target));
                    }
                    Ok((_, None)) => {}
                    Err(error) => failed = Some(error),
                }
            }
            else => break,
        }
    }
    match failed {
        Some(error) => Err((error, Span::new(asked.start, asked.end.max(asked.start + 1)))),
        None => Ok(wrote),
    }
}

/// A piece of an update's size and its offset in the object, or none at the end; and the rest.
type Read<'a> = Result<(Input<'a>, Option<(u64, Bytes)>)>;

async fn piece<'a>(reading: &mut Option<BoxFuture<'_, Read<'a>>>) -> Read<'a> {
    match reading {
        Some(reading) => reading.await,
        None => std::future::pending().await,
    }
}

impl Writer {
    /// Writes a range of the object, several updates at a time. Returns the number of updates.
    pub(super) async fn write_all(&self, span: Span, bytes: Bytes, log: &super::WriteLog) -> Result<u64> {
        if bytes.len() as u64 <= self.update_bytes {
            return self.write_span(span, bytes, log).await;
        }
        let options = WriteOptions { size: Some(span.len()), log: log.clone(), ..WriteOptions::default() };
        let target = self.target();
        let written = write(self, &target, span.start, &mut &bytes[..], &options).await;
        written.map(|wrote| wrote.updates).map_err(|(error, _)| error)
    }
}

impl<'a> Input<'a> {
    fn read<'t>(mut self, target: &'t Target) -> BoxFuture<'t, Read<'a>>
    where
        'a: 't,
    {
        Box::pin(async move {
            let piece = self.next(target).await?;
            Ok((self, piece))
        })
    }

    /// The next piece that is an update of its own, and its offset in the object; `None` at the end.
    async fn next(&mut self, target: &Target) -> Result<Option<(u64, Bytes)>> {
        let room = target.slot(self.at).map_or(0, |slot| slot.stripe.offset + slot.stripe.layout.data_len - self.at);
        // One byte more than an update can have shows whether the rest fits into one. At the end of the object, it shows that there is too much.
        let wanted = room.clamp(1, self.update_bytes + 1) as usize;
        self.read_to(wanted).await?;
        let span = Span::new(self.at, self.at + self.ahead.len() as u64);
        match () {
            () if span.is_empty() => return Ok(None),
            () if room == 0 => {
                return Err(Error::invalid(format!(
                    "the data goes on beyond the end of the object, {} bytes, and this write does not append",
                    target.size
                )));
            }
            () => {}
        }
        let (_, update) = target.first_update(span, self.update_bytes)?;
        self.at = update.end;
        Ok(Some((update.start, self.ahead.split_to(update.len() as usize).freeze())))
    }

    /// Reads ahead up to `wanted` bytes, or to the end.
    async fn read_to(&mut self, wanted: usize) -> Result<()> {
        while self.ahead.len() < wanted && !self.has_ended {
            let left = self.size.map_or(u64::MAX, |size| size - self.read);
            let room = (wanted - self.ahead.len()).min(READ_BYTES).min(usize::try_from(left).unwrap_or(usize::MAX));
            let before = self.ahead.len();
            self.ahead.resize(before + room, 0);
            let read = self.reader.read(&mut self.ahead[before..]).await;
            let read = read.map_err(|error| Error::fatal(format!("cannot read the data: {error}")))?;
            self.ahead.truncate(before + read);
            self.read += read as u64;
            self.has_ended = read == 0;
            if let Some(size) = self.size.filter(|size| self.has_ended && self.read < *size) {
                let found = self.read;
                return Err(Error::invalid(format!("the data ends after {found} bytes, before the announced {size}")));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Client;

    #[test]
    fn writes_can_be_spawned() {
        fn sendable<T: Send + 'static>(_: impl FnOnce(Client, Writer) -> T) {}
        sendable(|client, _| async move { client.write_at("b", "k", 0, tokio::io::empty(), &WriteOptions::default()).await });
        sendable(|client, _| async move { client.append("b", "k", tokio::io::empty(), &WriteOptions::default()).await });
        sendable(|_, writer| async move { writer.write_at(0, vec![1; 2]).await });
    }
}
