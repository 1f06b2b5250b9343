//! One link of a plan over one connection. Slices arrive in the order in which they were sent, complete or not at all.

use crate::frame::{FrameError, FrameStream, HEADER_LEN, Header, Kind, peer_error};
use crate::net::BoxStream;
use crate::stall::Stall;
use bytes::{BufMut, BytesMut};
use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::io::{AsyncRead, AsyncWrite};
use weft_types::{Error, FRAME_PAYLOAD_BYTES_MAX, Result, Rows, Span, crc32c, crc32c_continued, crc32c_joined};

/// The sending end of a link.
///
/// ```
/// # use weft_proto::{FrameStream, LinkReceiver, LinkSender};
/// # use weft_types::Span;
/// # use std::time::Duration;
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> weft_types::Result<()> {
/// # let (ours, theirs) = tokio::io::duplex(1 << 20);
/// let stall = Duration::from_secs(10);
/// let mut sender = LinkSender::new(FrameStream::new(ours), 1, 2, stall);
/// let mut receiver = LinkReceiver::new(FrameStream::new(theirs), 1, 2, stall);
/// let slice = Span::new(0, 4);
/// sender.send(slice, b"row1row2").await?;
/// sender.end().await?;
/// assert_eq!(receiver.receive(slice).await?, "row1row2");
/// receiver.end().await?;
/// assert!(sender.into_frames().is_some(), "the connection can carry another link");
/// # Ok(()) }
/// ```
pub struct LinkSender<S = BoxStream> {
    frames: FrameStream<S>,
    state: LinkState,
}

/// The receiving end of a link.
pub struct LinkReceiver<S = BoxStream> {
    frames: FrameStream<S>,
    state: LinkState,
    buffers: SliceBuffers,
}

/// A pool of memory for slices that later links of the same process reuse. What it keeps is bounded: its bytes, and those
/// of one slice to one frame.
///
/// Short slices share memory, so that what slices of one length have left fits those of any other.
#[derive(Debug)]
pub struct SliceMemory {
    kept: Mutex<Vec<Kept>>,
    kept_bytes_max: usize,
}

/// Memory of `room` bytes, which is free when its bytes are no longer held.
#[derive(Debug)]
struct Kept {
    room: usize,
    buffer: BytesMut,
}

/// Receive memory of one link. It is reused when its bytes are no longer held: with a new allocation for each slice,
/// the system would map and clear the pages each time.
#[derive(Default)]
struct SliceBuffers {
    own: Vec<BytesMut>,
    /// The bytes of the largest slice so far.
    room: usize,
    /// The pool that the buffers come from and return to.
    memory: Option<Arc<SliceMemory>>,
}

struct LinkState {
    link: u32,
    width: u32,
    position: u64,
    total: LinkTotal,
    ended: bool,
}

/// End's summary of all Data frames: the length of their payloads, and the CRC32C of their checksums.
struct LinkTotal {
    bytes: u64,
    checksums: u32,
}

/// How long a sender whose connection broke waits for the receiver's reason.
const REASON_TIMEOUT: Duration = Duration::from_millis(200);
/// How long sending the reason for an abort may take.
const FAREWELL_TIMEOUT: Duration = Duration::from_secs(1);
const END_LEN: usize = 12;
/// The most buffers that are kept, however many slices the receiver holds.
const BUFFERS_KEPT_MAX: usize = 64;
/// Larger buffers are freed with their link.
const BUFFER_KEPT_BYTES_MAX: usize = FRAME_PAYLOAD_BYTES_MAX + HEADER_LEN;
/// In a pool, shorter slices share memory of this size: that of a usual slice.
const SHARED_BYTES: usize = (256 << 10) + HEADER_LEN;
/// And those that fit, memory of this size: many links at a time with a small slice each are small reads.
const SHARED_BYTES_MIN: usize = (32 << 10) + HEADER_LEN;

/// The memory that is allocated in a pool for a slice that needs `room` bytes.
fn shared_bytes(room: usize) -> usize {
    if room <= SHARED_BYTES_MIN { SHARED_BYTES_MIN } else { room.max(SHARED_BYTES) }
}

impl<S: AsyncRead + AsyncWrite + Unpin> LinkSender<S> {
    /// Sends on link `link`, of `width` sub-blocks, over a connection whose Hello was accepted. A peer that takes
    /// nothing for `stall` has failed.
    pub fn new(mut frames: FrameStream<S>, link: u32, width: u32, stall: impl Into<Stall>) -> Self {
        frames.set_stall(stall);
        Self { frames, state: LinkState::new(link, width) }
    }

    /// Sends the rows of a slice, one after another.
    pub async fn send(&mut self, slice: Span, rows: &[u8]) -> Result<()> {
        self.feed_rows(slice, rows, || crc32c(rows)).await?;
        self.flush().await
    }

    /// Like [`send`](Self::send), but small slices may be buffered until [`flush`](Self::flush), and a known checksum
    /// is not computed again.
    pub async fn feed(&mut self, slice: Span, rows: &Rows) -> Result<()> {
        self.feed_rows(slice, rows, || rows.checksum()).await
    }

    async fn feed_rows(&mut self, slice: Span, rows: &[u8], checksum: impl FnOnce() -> u32) -> Result<()> {
        self.state.at(slice.start);
        if rows.len() as u64 != self.state.slice_bytes(slice) {
            return Err(self.state.place(Error::fatal(format!(
                "a slice has {} bytes for {} positions",
                rows.len(),
                slice.len()
            ))));
        }
        let sent = self.try_feed(slice, rows, checksum).await;
        self.or_reason(sent).await
    }

    /// Like [`feed`](Self::feed), for a slice that the caller splits into frames: sends the next one; `more` says
    /// whether others follow. The receiver checks their total length.
    pub async fn feed_frame(&mut self, slice: Span, rows: &[u8], more: bool) -> Result<()> {
        self.state.at(slice.start);
        let sent = self.try_feed_frame(slice, rows, more, crc32c(rows)).await;
        self.or_reason(sent).await
    }

    /// Sends all buffered slices.
    pub async fn flush(&mut self) -> Result<()> {
        let sent = self.frames.flush().await;
        self.or_reason(sent).await
    }

    /// Sends End after the last slice.
    pub async fn end(&mut self) -> Result<()> {
        let payload = self.state.total.encode();
        let sent = self.frames.write_control(Kind::End, self.state.link, &payload).await;
        self.or_reason(sent).await?;
        self.state.ended = true;
        Ok(())
    }

    /// Aborts the link and sends the reason.
    pub async fn fail(self, error: &Error) {
        fail(self.frames, self.state, error).await;
    }

    /// The connection, for another link, if this one ended cleanly.
    pub fn into_frames(self) -> Option<FrameStream<S>> {
        self.state.ended.then_some(self.frames)
    }

    async fn try_feed(&mut self, slice: Span, rows: &[u8], checksum: impl FnOnce() -> u32) -> Result<(), FrameError> {
        if (1..=FRAME_PAYLOAD_BYTES_MAX).contains(&rows.len()) {
            return self.try_feed_frame(slice, rows, false, checksum()).await;
        }
        let mut pieces = rows.chunks(FRAME_PAYLOAD_BYTES_MAX).peekable();
        while let Some(piece) = pieces.next() {
            self.try_feed_frame(slice, piece, pieces.peek().is_some(), crc32c(piece)).await?;
        }
        Ok(())
    }

    async fn try_feed_frame(&mut self, slice: Span, piece: &[u8], more: bool, checksum: u32) -> Result<(), FrameError> {
        let header = Header { kind: Kind::Data, more, link: self.state.link, span: slice, payload_len: piece.len() };
        let checksum = self.frames.feed_frame(&header, piece, checksum).await?;
        self.state.total.add(piece.len(), checksum);
        Ok(())
    }

    /// Replaces a broken connection's error by the receiver's reason, which the receiver sends before it closes.
    async fn or_reason(&mut self, sent: Result<(), FrameError>) -> Result<()> {
        let Err(error) = sent else { return Ok(()) };
        if let FrameError::Io(_) = &error {
            let mut payload = BytesMut::new();
            let reading = tokio::time::timeout(REASON_TIMEOUT, self.frames.read_frame(&mut payload));
            if let Ok(Ok(Header { kind: Kind::Error, .. })) = reading.await {
                return Err(self.state.place(peer_error(&payload)));
            }
        }
        Err(self.state.place(error.into()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> LinkReceiver<S> {
    /// Receives on link `link`, of `width` sub-blocks, over a connection whose Hello was accepted. A peer that sends
    /// nothing for `stall` has failed.
    pub fn new(mut frames: FrameStream<S>, link: u32, width: u32, stall: impl Into<Stall>) -> Self {
        frames.set_stall(stall);
        Self { frames, state: LinkState::new(link, width), buffers: SliceBuffers::default() }
    }

    /// Takes receive memory from this pool and returns it there.
    #[must_use]
    pub fn with_memory(mut self, memory: &Arc<SliceMemory>) -> Self {
        self.buffers.memory = Some(Arc::clone(memory));
        self
    }

    /// Receives the rows of a slice, one after another.
    pub async fn receive(&mut self, slice: Span) -> Result<Rows> {
        self.state.at(slice.start);
        let received = self.try_receive(slice).await;
        received.map_err(|error| self.state.place(error.into()))
    }

    /// Waits for End after the last slice, and compares it with what was received.
    pub async fn end(&mut self) -> Result<()> {
        let ended = self.try_end().await;
        ended.map_err(|error| self.state.place(error.into()))?;
        self.state.ended = true;
        Ok(())
    }

    /// Aborts the link and sends the reason.
    pub async fn fail(self, error: &Error) {
        fail(self.frames, self.state, error).await;
    }

    /// The connection, for another link, if this one ended cleanly.
    pub fn into_frames(self) -> Option<FrameStream<S>> {
        self.state.ended.then_some(self.frames)
    }

    async fn try_receive(&mut self, slice: Span) -> Result<Rows, FrameError> {
        let wanted = usize::try_from(self.state.slice_bytes(slice)).unwrap_or(usize::MAX);
        let mut buffer = self.buffers.take(wanted);
        let mut checksum = 0;
        loop {
            let announced = self.frames.read_header().await?;
            let header = announced.header;
            if header.kind == Kind::Error {
                return Err(self.read_reason(&announced).await?);
            }
            let left = wanted - buffer.len();
            if header.kind != Kind::Data || header.link != self.state.link || header.span != slice || header.payload_len > left {
                return Err(self.unexpected(&header, &format!("positions {}..{}", slice.start, slice.end)));
            }
            if header.more == (header.payload_len == left) || (header.payload_len == 0 && left > 0) {
                return Err(FrameError::Unexpected(format!("the pieces of a slice do not add up to its {wanted} bytes")));
            }
            let of_payload = self.frames.read_payload(&announced, &mut buffer).await?;
            checksum = crc32c_joined(checksum, of_payload, header.payload_len as u64);
            self.state.total.add(header.payload_len, announced.checksum);
            if !header.more {
                let rows = buffer.split().freeze();
                self.buffers.own.push(buffer);
                return Ok(Rows::summed(rows, checksum));
            }
        }
    }

    async fn try_end(&mut self) -> Result<(), FrameError> {
        let announced = self.frames.read_header().await?;
        let header = announced.header;
        if header.kind == Kind::Error {
            return Err(self.read_reason(&announced).await?);
        }
        if header.kind != Kind::End || header.link != self.state.link || header.payload_len != END_LEN {
            return Err(self.unexpected(&header, "End"));
        }
        let mut payload = BytesMut::new();
        self.frames.read_payload(&announced, &mut payload).await?;
        if payload[..] != self.state.total.encode() {
            return Err(FrameError::Unexpected("End does not match the received bytes".into()));
        }
        Ok(())
    }

    async fn read_reason(&mut self, announced: &crate::frame::Announced) -> Result<FrameError, FrameError> {
        let mut payload = BytesMut::new();
        self.frames.read_payload(announced, &mut payload).await?;
        Ok(FrameError::Peer(peer_error(&payload)))
    }

    fn unexpected(&self, header: &Header, due: &str) -> FrameError {
        let Header { kind, link, span, payload_len, .. } = header;
        FrameError::Unexpected(format!(
            "received a {kind:?} frame of {payload_len} bytes for positions {}..{} of link {link} instead of {due} of link {}",
            span.start, span.end, self.state.link
        ))
    }
}

impl SliceBuffers {
    /// Room for a slice and for the header that may be read ahead. There are never more buffers than were held at the
    /// same time.
    fn take(&mut self, slice_bytes: usize) -> BytesMut {
        let room = slice_bytes.saturating_add(HEADER_LEN);
        let allocated = if self.memory.is_some() { shared_bytes(room) } else { room };
        if let Some(free) = take_free(&mut self.own, room) {
            return free;
        }
        self.own.truncate(BUFFERS_KEPT_MAX - 1);
        let kept = self.memory.as_ref().and_then(|memory| memory.take(room));
        let Kept { room, buffer } = kept.unwrap_or_else(|| Kept { room: allocated, buffer: BytesMut::with_capacity(allocated) });
        self.room = self.room.max(room);
        buffer
    }
}

impl Drop for SliceBuffers {
    fn drop(&mut self) {
        let Some(memory) = self.memory.take().filter(|_| self.room <= BUFFER_KEPT_BYTES_MAX) else { return };
        memory.keep(self.room, std::mem::take(&mut self.own));
    }
}

impl SliceMemory {
    /// An empty pool that keeps at most this many bytes.
    pub fn within(kept_bytes_max: usize) -> Arc<Self> {
        Arc::new(Self { kept: Mutex::default(), kept_bytes_max })
    }

    /// Zeroed memory for a slice of `len` bytes that is computed instead of received. It returns to the pool when its bytes
    /// are no longer held.
    pub fn room(&self, len: usize) -> BytesMut {
        let mut kept = self.lock();
        let free = kept.iter_mut().position(|kept| kept.buffer.try_reclaim(len));
        let mut rows = match free {
            Some(free) => {
                let rest = kept[free].buffer.split_off(len);
                std::mem::replace(&mut kept[free].buffer, rest)
            }
            None => {
                drop(kept);
                let room = shared_bytes(len);
                let mut rows = BytesMut::with_capacity(room);
                let rest = rows.split_off(len);
                if room <= BUFFER_KEPT_BYTES_MAX {
                    self.keep(room, vec![rest]);
                }
                rows
            }
        };
        rows.resize(len, 0);
        rows
    }

    /// Frees all kept memory.
    pub fn forget(&self) {
        self.lock().clear();
    }

    fn take(&self, room: usize) -> Option<Kept> {
        let mut kept = self.lock();
        let free = kept.iter_mut().position(|kept| kept.buffer.try_reclaim(room))?;
        Some(kept.swap_remove(free))
    }

    /// Keeps buffers of at most `room` bytes each. They may still be held; then they become free later.
    fn keep(&self, room: usize, buffers: Vec<BytesMut>) {
        let mut kept = self.lock();
        kept.extend(buffers.into_iter().map(|buffer| Kept { room, buffer }));
        let mut bytes: usize = kept.iter().map(|kept| kept.room).sum();
        // The latest buffers fit the next link best.
        let too_many = kept.iter().take_while(|kept| {
            let is_over = bytes > self.kept_bytes_max;
            bytes -= kept.room;
            is_over
        });
        let too_many = too_many.count();
        let dropped: Vec<Kept> = kept.drain(..too_many).collect();
        // Unmapping takes time, so the lock is released first.
        drop(kept);
        drop(dropped);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Kept>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes a free buffer with enough room.
fn take_free(buffers: &mut Vec<BytesMut>, room: usize) -> Option<BytesMut> {
    let free = buffers.iter_mut().position(|buffer| buffer.try_reclaim(room))?;
    Some(buffers.swap_remove(free))
}

async fn fail<S: AsyncRead + AsyncWrite + Unpin>(mut frames: FrameStream<S>, state: LinkState, error: &Error) {
    if state.ended {
        return;
    }
    let payload = crate::status::encode_error(error);
    // The connection may be broken already; the other end then knows.
    let _best_effort = tokio::time::timeout(FAREWELL_TIMEOUT, frames.write_control(Kind::Error, state.link, &payload)).await;
}

impl LinkState {
    fn new(link: u32, width: u32) -> Self {
        Self { link, width, position: 0, total: LinkTotal { bytes: 0, checksums: 0 }, ended: false }
    }

    fn at(&mut self, position: u64) {
        self.position = position;
    }

    fn slice_bytes(&self, slice: Span) -> u64 {
        u64::from(self.width).saturating_mul(slice.len())
    }

    fn place(&self, error: Error) -> Error {
        error.link(self.link, self.position)
    }
}

impl LinkTotal {
    fn add(&mut self, payload_len: usize, checksum: u32) {
        self.bytes = self.bytes.wrapping_add(payload_len as u64);
        self.checksums = crc32c_continued(self.checksums, &checksum.to_le_bytes());
    }

    fn encode(&self) -> [u8; END_LEN] {
        let mut bytes = [0; END_LEN];
        let mut fields = &mut bytes[..];
        fields.put_u64_le(self.bytes);
        fields.put_u32_le(self.checksums);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_that_is_kept_for_the_next_link_is_bounded() {
        let memory = SliceMemory::within(100);
        let rooms = || memory.lock().iter().map(|kept| kept.room).collect::<Vec<_>>();
        let buffers = |count, room| vec![BytesMut::with_capacity(room); count];
        memory.keep(30, buffers(2, 30));
        assert_eq!(rooms(), [30, 30]);
        memory.keep(20, buffers(2, 20));
        assert_eq!(rooms(), [30, 30, 20, 20]);
        memory.keep(40, buffers(1, 40));
        assert_eq!(rooms(), [20, 20, 40], "the oldest are freed first");
        assert!(memory.take(41).is_none() && memory.take(35).is_some());
        assert_eq!(rooms(), [20, 20]);
        memory.keep(101, buffers(1, 101));
        assert_eq!(rooms(), [0; 0]);
        memory.keep(20, buffers(1, 20));
        memory.forget();
        assert_eq!(rooms(), [0; 0]);
    }

    #[test]
    fn a_link_of_small_slices_takes_little_memory_of_a_pool() {
        let memory = SliceMemory::within(1 << 20);
        let of_link = |slice_bytes| {
            let mut link = SliceBuffers { own: Vec::new(), room: 0, memory: Some(Arc::clone(&memory)) };
            let buffer = link.take(slice_bytes);
            let bytes = buffer.capacity();
            link.own.push(buffer);
            bytes
        };
        assert_eq!([4 << 10, 32 << 10].map(of_link), [SHARED_BYTES_MIN; 2]);
        assert_eq!([64 << 10, 4 << 10, 256 << 10].map(of_link), [SHARED_BYTES, SHARED_BYTES_MIN, SHARED_BYTES]);
    }
}
