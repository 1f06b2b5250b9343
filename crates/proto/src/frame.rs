//! The data plane's frames: a fixed header, a payload, and a CRC32C over both. docs/formats.md describes the bytes.
//!
//! A connection carries one link of a plan after another: Hello, HelloAck, Data …, End; then the next Hello. All input
//! from the peer is checked before memory is allocated for it. An invalid frame ends the connection with a
//! [`FrameError`].

mod error;
mod hello;

pub use error::FrameError;
pub use hello::{Direction, Hello, Opening, UpdatesHello};

use crate::{net::BoxStream, stall::Stall, status::decode_error};
use bytes::{Buf, BufMut, BytesMut};
use std::{
    future::poll_fn,
    io,
    pin::{Pin, pin},
    task::{Context, Poll, Waker},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf, ReadHalf, WriteHalf},
    time::{Instant, timeout_at},
};
use weft_types::{Error, FRAME_PAYLOAD_BYTES_MAX, Result, Span, crc32c, crc32c_joined};

/// Bytes of a frame's header.
pub const HEADER_LEN: usize = 36;
/// The largest payload of a frame that is neither Data nor Update, bytes.
pub const CONTROL_PAYLOAD_BYTES_MAX: usize = 8192;
/// A peer that stops in the middle of a frame, or before an expected answer, for this long has failed. (A link has its own limit.)
pub const PEER_TIMEOUT: Duration = Duration::from_secs(10);

/// Data frames up to this size are copied and sent in batches, because a system call and a packet of their own cost
/// more than the copy.
const SMALL_FRAME_BYTES: usize = 16 << 10;
/// The bytes of one send or receive of a batch.
const BATCH_BYTES: usize = 64 << 10;

const MAGIC: [u8; 4] = *b"WEFT";
const CRC_AT: usize = 32;

/// A connection that carries frames.
pub struct FrameStream<S = BoxStream> {
    stream: S,
    /// Bytes read beyond the last frame: the start of the next header, or many small frames.
    ahead: BytesMut,
    /// Small frames that wait to be sent together.
    waiting: BytesMut,
    /// True after a small frame of Data or Update: more of them probably follow.
    reads_many: bool,
    stall: Stall,
}

/// The kind of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// The dialling end names the link and sends its token.
    Hello = 1,
    /// The answer to a Hello.
    HelloAck = 2,
    /// A slice's rows, or a piece of them.
    Data = 3,
    /// The link is complete.
    End = 4,
    /// Why the sender aborts the link.
    Error = 5,
    /// The dialling end announces that the connection carries updates in place from now on.
    Updates = 6,
    /// A packet of updates, or a part of it.
    Update = 7,
}

/// A frame's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// The frame's kind.
    pub kind: Kind,
    /// For Data and Update: whether more frames of this slice, or of this packet, follow.
    pub more: bool,
    /// The link's number in its plan.
    pub link: u32,
    /// For Data: the slice's positions. For Update: from 0, the bytes of the packet.
    pub span: Span,
    /// Bytes of the payload.
    pub payload_len: usize,
}

impl Kind {
    fn from_byte(byte: u8) -> Option<Self> {
        let all = [Self::Hello, Self::HelloAck, Self::Data, Self::End, Self::Error, Self::Updates, Self::Update];
        all.into_iter().find(|kind| *kind as u8 == byte)
    }

    /// Whether it carries a part of something larger.
    fn is_part(self) -> bool {
        matches!(self, Self::Data | Self::Update)
    }

    fn payload_bytes_max(self) -> usize {
        if self.is_part() { FRAME_PAYLOAD_BYTES_MAX } else { CONTROL_PAYLOAD_BYTES_MAX }
    }
}

impl Header {
    /// A frame that is neither Data nor Update.
    fn control(kind: Kind, link: u32, payload_len: usize) -> Self {
        Self { kind, more: false, link, span: Span::new(0, 0), payload_len }
    }

    /// The encoded header and the frame's checksum. `payload_checksum`: the CRC32C of the payload.
    fn encode(&self, payload_checksum: u32) -> ([u8; HEADER_LEN], u32) {
        let mut bytes = [0; HEADER_LEN];
        let mut fields = &mut bytes[..];
        fields.put_slice(&MAGIC);
        fields.put_u8(self.kind as u8);
        fields.put_u8(u8::from(self.more));
        fields.put_u16_le(0);
        fields.put_u32_le(self.link);
        fields.put_u32_le(self.payload_len as u32);
        fields.put_u64_le(self.span.start);
        fields.put_u64_le(self.span.len());
        let checksum = frame_checksum(&bytes, payload_checksum, self.payload_len);
        bytes[CRC_AT..].copy_from_slice(&checksum.to_le_bytes());
        (bytes, checksum)
    }

    /// Decodes a header; also returns the frame's checksum.
    fn decode(bytes: &[u8; HEADER_LEN]) -> Result<(Self, u32), FrameError> {
        let mut fields = &bytes[..];
        let mut magic = [0; 4];
        fields.copy_to_slice(&mut magic);
        if magic != MAGIC {
            return Err(FrameError::Magic(magic));
        }
        let (kind_byte, flags, reserved) = (fields.get_u8(), fields.get_u8(), fields.get_u16_le());
        let unknown = FrameError::Unknown { kind: kind_byte, flags };
        let Some(kind) = Kind::from_byte(kind_byte) else { return Err(unknown) };
        if flags > u8::from(kind.is_part()) || reserved != 0 {
            return Err(unknown);
        }
        let (link, len) = (fields.get_u32_le(), fields.get_u32_le());
        let (start, positions) = (fields.get_u64_le(), fields.get_u64_le());
        let checksum = fields.get_u32_le();
        let max = kind.payload_bytes_max();
        if len as usize > max {
            return Err(FrameError::Oversized { kind, len: u64::from(len), max });
        }
        let Some(end) = start.checked_add(positions) else {
            return Err(FrameError::Unexpected(format!("the frame's positions are out of range: {positions} from {start} on")));
        };
        let header = Self { kind, more: flags == 1, link, span: Span::new(start, end), payload_len: len as usize };
        Ok((header, checksum))
    }
}

fn frame_checksum(header: &[u8; HEADER_LEN], payload_checksum: u32, payload_len: usize) -> u32 {
    crc32c_joined(crc32c(&header[..CRC_AT]), payload_checksum, payload_len as u64)
}

/// A decoded header, and the checksum that its frame must have.
pub(crate) struct Announced {
    pub(crate) header: Header,
    pub(crate) checksum: u32,
    bytes: [u8; HEADER_LEN],
}

impl<S> FrameStream<S> {
    /// Frames over a connection.
    pub fn new(stream: S) -> Self {
        Self { stream, ahead: BytesMut::new(), waiting: BytesMut::new(), reads_many: false, stall: PEER_TIMEOUT.into() }
    }

    /// The underlying connection.
    pub fn into_inner(self) -> S {
        self.stream
    }

    /// Sets the time after which a read or write that moves nothing fails.
    pub fn set_stall(&mut self, stall: impl Into<Stall>) {
        self.stall = stall.into();
    }
}

impl<S: AsyncRead + AsyncWrite> FrameStream<S> {
    /// Both directions apart, so that one can be used while the other waits.
    pub(crate) fn split(self) -> (FrameStream<ReadHalf<S>>, FrameStream<WriteHalf<S>>) {
        let Self { stream, ahead, waiting, reads_many, stall } = self;
        let (read, write) = tokio::io::split(stream);
        let reading = FrameStream { stream: read, ahead, waiting: BytesMut::new(), reads_many, stall: stall.clone() };
        (reading, FrameStream { stream: write, ahead: BytesMut::new(), waiting, reads_many: false, stall })
    }
}

impl<S: AsyncWrite + Unpin> FrameStream<S> {
    /// Sends a frame.
    pub async fn write_frame(&mut self, header: &Header, payload: &[u8]) -> Result<(), FrameError> {
        self.feed_frame(header, payload, crc32c(payload)).await?;
        self.flush().await
    }

    /// Sends a frame, or buffers it until [`flush`](Self::flush) if it is small; the payload of a large one is not
    /// copied. `payload_checksum`: its CRC32C. Returns the frame's checksum.
    pub(crate) async fn feed_frame(&mut self, header: &Header, payload: &[u8], payload_checksum: u32) -> Result<u32, FrameError> {
        debug_assert_eq!(header.payload_len, payload.len());
        if payload.len() <= SMALL_FRAME_BYTES {
            let checksum = self.put_frame(header, payload, payload_checksum);
            if self.waiting.len() >= BATCH_BYTES {
                self.write_waiting().await?;
            }
            return Ok(checksum);
        }
        let (bytes, checksum) = header.encode(payload_checksum);
        self.write_waiting().await?;
        write_all(&mut self.stream, Buf::chain(&bytes[..], payload), &self.stall).await?;
        Ok(checksum)
    }

    /// Buffers a small frame until [`flush`](Self::flush). Returns its checksum.
    pub(crate) fn put_frame(&mut self, header: &Header, payload: &[u8], payload_checksum: u32) -> u32 {
        let (bytes, checksum) = header.encode(payload_checksum);
        self.waiting.reserve(HEADER_LEN + payload.len());
        self.waiting.put_slice(&bytes);
        self.waiting.put_slice(payload);
        checksum
    }

    /// Sends everything that is buffered. If the future is dropped, the next call sends the rest.
    pub async fn flush(&mut self) -> Result<(), FrameError> {
        self.write_waiting().await?;
        within(&self.stall, self.stream.flush()).await
    }

    /// Sends of what is buffered as much as the connection takes at once. Returns whether nothing is left: else, [`flush`](Self::flush).
    pub(crate) fn flush_now(&mut self) -> Result<bool, FrameError> {
        match pin!(self.flush()).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(flushed) => flushed.map(|()| true),
            Poll::Pending => Ok(false),
        }
    }

    async fn write_waiting(&mut self) -> Result<(), FrameError> {
        write_all(&mut self.stream, &mut self.waiting, &self.stall).await
    }

    /// Sends a frame that is neither Data nor Update.
    pub(crate) async fn write_control(&mut self, kind: Kind, link: u32, payload: &[u8]) -> Result<(), FrameError> {
        self.write_frame(&Header::control(kind, link, payload.len()), payload).await?;
        // An idle connection in a pool must not hold memory.
        self.waiting = BytesMut::new();
        Ok(())
    }
}

impl<S: AsyncRead + Unpin> FrameStream<S> {
    /// Waits for the first byte of the next frame, without a time limit.
    pub(crate) async fn begin_frame(&mut self) -> Result<(), FrameError> {
        if self.ahead.is_empty() {
            let limit = self.limit_ahead();
            self.ahead.reserve(limit);
            if self.stream.read_buf(&mut (&mut self.ahead).limit(limit)).await? == 0 {
                return Err(FrameError::Closed);
            }
        }
        Ok(())
    }

    /// Reads a frame of any kind; its payload is appended to `payload`.
    pub async fn read_frame(&mut self, payload: &mut BytesMut) -> Result<Header, FrameError> {
        let announced = self.read_header().await?;
        self.read_payload(&announced, payload).await?;
        Ok(announced.header)
    }

    /// Reads a frame's header. The payload must be read next.
    pub(crate) async fn read_header(&mut self) -> Result<Announced, FrameError> {
        let mut bytes = [0; HEADER_LEN];
        while self.ahead.len() < HEADER_LEN {
            let first = self.ahead.is_empty();
            let limit = self.limit_ahead();
            match self.read_ahead(limit).await {
                Err(FrameError::Truncated) if first => return Err(FrameError::Closed),
                read => read?,
            }
        }
        self.ahead.copy_to_slice(&mut bytes);
        let (header, checksum) = Header::decode(&bytes)?;
        Ok(Announced { header, checksum, bytes })
    }

    /// Reads the announced payload. The same system call also reads what follows, if it has arrived: the start of the
    /// next header, or many small frames. Returns the CRC32C of the payload.
    pub(crate) async fn read_payload(&mut self, announced: &Announced, payload: &mut BytesMut) -> Result<u32, FrameError> {
        let (start, kind, len) = (payload.len(), announced.header.kind, announced.header.payload_len);
        let end = start + len;
        self.reads_many = kind.is_part() && len <= SMALL_FRAME_BYTES;
        while self.reads_many && self.ahead.len() < len {
            self.read_ahead(BATCH_BYTES).await?;
        }
        let there = len.min(self.ahead.len());
        payload.reserve(if there == len { len } else { len + HEADER_LEN });
        payload.put_slice(&self.ahead[..there]);
        self.ahead.advance(there);
        while payload.len() < end {
            let room = end + HEADER_LEN - payload.len();
            read_some(&mut self.stream, payload, room, &self.stall).await?;
        }
        self.ahead.put_slice(&payload[end..]);
        payload.truncate(end);
        if !self.reads_many && self.ahead.is_empty() {
            // An idle connection in a pool must not hold memory.
            self.ahead = BytesMut::new();
        }
        let payload_checksum = crc32c(&payload[start..]);
        let found = frame_checksum(&announced.bytes, payload_checksum, len);
        if found != announced.checksum {
            return Err(FrameError::Checksum { kind, found, expected: announced.checksum });
        }
        Ok(payload_checksum)
    }

    /// How many bytes to read before the next header is there.
    fn limit_ahead(&self) -> usize {
        if self.reads_many { BATCH_BYTES } else { HEADER_LEN.saturating_sub(self.ahead.len()) }
    }

    async fn read_ahead(&mut self, limit: usize) -> Result<(), FrameError> {
        read_some(&mut self.stream, &mut self.ahead, limit, &self.stall).await
    }

    /// Whether the connection has ended or has unexpected input. Does not wait.
    pub(crate) async fn is_stale(&mut self) -> bool {
        if !self.ahead.is_empty() {
            return true;
        }
        let mut byte = [0];
        poll_fn(|cx| {
            let mut buf = ReadBuf::new(&mut byte);
            Poll::Ready(Pin::new(&mut self.stream).poll_read(cx, &mut buf).is_ready())
        })
        .await
    }
}

/// The error in an Error frame, or in a HelloAck.
pub(crate) fn peer_error(payload: &[u8]) -> Error {
    decode_error(payload).unwrap_or_else(|| Error::replan("the peer aborted the link without a readable reason"))
}

async fn write_all(stream: &mut (impl AsyncWrite + Unpin), mut rest: impl Buf, stall: &Stall) -> Result<(), FrameError> {
    while rest.has_remaining() {
        if within(stall, stream.write_buf(&mut rest)).await? == 0 {
            return Err(io::Error::from(io::ErrorKind::WriteZero).into());
        }
    }
    Ok(())
}

/// Appends at least one and at most `limit` bytes, as many as are available.
async fn read_some(
    stream: &mut (impl AsyncRead + Unpin),
    into: &mut BytesMut,
    limit: usize,
    stall: &Stall,
) -> Result<(), FrameError> {
    into.reserve(limit);
    match within(stall, stream.read_buf(&mut into.limit(limit))).await? {
        0 => Err(FrameError::Truncated),
        _ => Ok(()),
    }
}

async fn within<T>(stall: &Stall, moving: impl Future<Output = io::Result<T>>) -> Result<T, FrameError> {
    let begin = Instant::now();
    let mut moving = pin!(moving);
    loop {
        let limit = stall.now();
        match timeout_at(begin + limit, &mut moving).await {
            Ok(moved) => return Ok(moved?),
            // It was lengthened meanwhile.
            Err(_) if stall.now() > limit => {}
            Err(_) => return Err(FrameError::Stalled(limit)),
        }
    }
}
