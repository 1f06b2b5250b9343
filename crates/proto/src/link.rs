//! One link of a plan over one connection: slices go in at one end and come out at the other, in order, complete or not at all.

use crate::frame::{FrameError, FrameStream, HEADER_LEN, Header, Kind, peer_error};
use crate::net::BoxStream;
use bytes::{BufMut, Bytes, BytesMut};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use weft_types::{Error, FRAME_PAYLOAD_BYTES_MAX, Result, Span, crc32c_continued};

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
    /// Memory of the slices that were received: it is used again when nobody holds their bytes any more.
    buffers: Vec<BytesMut>,
}

struct LinkState {
    link: u32,
    width: u32,
    position: u64,
    total: LinkTotal,
    ended: bool,
}

/// What End says of all Data frames: their payload's length, and the CRC32C of their checksums.
struct LinkTotal {
    bytes: u64,
    checksums: u32,
}

/// How long a sender whose connection broke waits for the reason that the receiver may have sent.
const REASON_TIMEOUT: Duration = Duration::from_millis(200);
/// How long one who breaks off may take to say why.
const FAREWELL_TIMEOUT: Duration = Duration::from_secs(1);
const END_LEN: usize = 12;
/// Buffers of one link that are kept, whatever is held of what it received.
const BUFFERS_KEPT_MAX: usize = 64;

impl<S: AsyncRead + AsyncWrite + Unpin> LinkSender<S> {
    /// Sends on link `link`, of `width` sub-blocks, over a connection whose Hello was accepted. A peer that takes nothing
    /// for `stall` has failed.
    pub fn new(mut frames: FrameStream<S>, link: u32, width: u32, stall: Duration) -> Self {
        frames.set_stall(stall);
        Self { frames, state: LinkState::new(link, width) }
    }

    /// Sends the rows of a slice, one after another.
    pub async fn send(&mut self, slice: Span, rows: &[u8]) -> Result<()> {
        self.feed(slice, rows).await?;
        self.flush().await
    }

    /// As [`send`](Self::send), but small slices may wait for more of them until [`flush`](Self::flush).
    pub async fn feed(&mut self, slice: Span, rows: &[u8]) -> Result<()> {
        self.state.at(slice.start);
        if rows.len() as u64 != self.state.slice_bytes(slice) {
            return Err(self.state.place(Error::fatal(format!("{} bytes for {} positions", rows.len(), slice.len()))));
        }
        let sent = self.try_feed(slice, rows).await;
        self.or_reason(sent).await
    }

    /// As [`feed`](Self::feed), of a slice that the caller cuts into frames: the next of them, and whether more follow. What they are
    /// together is for the receiver to check.
    pub async fn feed_frame(&mut self, slice: Span, rows: &[u8], more: bool) -> Result<()> {
        self.state.at(slice.start);
        let sent = self.try_feed_frame(slice, rows, more).await;
        self.or_reason(sent).await
    }

    /// Sees to it that all slices are on their way.
    pub async fn flush(&mut self) -> Result<()> {
        let sent = self.frames.flush().await;
        self.or_reason(sent).await
    }

    /// After the last slice: all is said.
    pub async fn end(&mut self) -> Result<()> {
        let payload = self.state.total.encode();
        let sent = self.frames.write_control(Kind::End, self.state.link, &payload).await;
        self.or_reason(sent).await?;
        self.state.ended = true;
        Ok(())
    }

    /// Breaks off and tells the receiver why.
    pub async fn fail(self, error: &Error) {
        fail(self.frames, self.state, error).await;
    }

    /// The connection, for another link, if this one ended as it should.
    pub fn into_frames(self) -> Option<FrameStream<S>> {
        self.state.ended.then_some(self.frames)
    }

    async fn try_feed(&mut self, slice: Span, rows: &[u8]) -> Result<(), FrameError> {
        let mut pieces = rows.chunks(FRAME_PAYLOAD_BYTES_MAX).peekable();
        while let Some(piece) = pieces.next() {
            self.try_feed_frame(slice, piece, pieces.peek().is_some()).await?;
        }
        Ok(())
    }

    async fn try_feed_frame(&mut self, slice: Span, piece: &[u8], more: bool) -> Result<(), FrameError> {
        let header = Header { kind: Kind::Data, more, link: self.state.link, span: slice, payload_len: piece.len() };
        let checksum = self.frames.feed_frame(&header, piece).await?;
        self.state.total.add(piece.len(), checksum);
        Ok(())
    }

    /// A receiver that breaks off says why before it closes; what the network says then is only that it closed.
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
    /// Receives on link `link`, of `width` sub-blocks, over a connection whose Hello was accepted. A peer that sends nothing
    /// for `stall` has failed.
    pub fn new(mut frames: FrameStream<S>, link: u32, width: u32, stall: Duration) -> Self {
        frames.set_stall(stall);
        Self { frames, state: LinkState::new(link, width), buffers: Vec::new() }
    }

    /// Receives the rows of a slice, one after another.
    pub async fn receive(&mut self, slice: Span) -> Result<Bytes> {
        self.state.at(slice.start);
        let received = self.try_receive(slice).await;
        received.map_err(|error| self.state.place(error.into()))
    }

    /// After the last slice: waits for End, and checks that what it says is what came.
    pub async fn end(&mut self) -> Result<()> {
        let ended = self.try_end().await;
        ended.map_err(|error| self.state.place(error.into()))?;
        self.state.ended = true;
        Ok(())
    }

    /// Breaks off and tells the sender why.
    pub async fn fail(self, error: &Error) {
        fail(self.frames, self.state, error).await;
    }

    /// The connection, for another link, if this one ended as it should.
    pub fn into_frames(self) -> Option<FrameStream<S>> {
        self.state.ended.then_some(self.frames)
    }

    async fn try_receive(&mut self, slice: Span) -> Result<Bytes, FrameError> {
        let wanted = usize::try_from(self.state.slice_bytes(slice)).unwrap_or(usize::MAX);
        let mut buffer = self.take_buffer(wanted);
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
                return Err(FrameError::Unexpected(format!("a slice of {wanted} bytes comes in pieces that do not make it up")));
            }
            self.frames.read_payload(&announced, &mut buffer).await?;
            self.state.total.add(header.payload_len, announced.checksum);
            if !header.more {
                let rows = buffer.split().freeze();
                self.buffers.push(buffer);
                return Ok(rows);
            }
        }
    }

    /// Room for a slice, and for the header that may be read ahead. To allocate anew for each slice makes the system map and
    /// clear its pages each time; so there are as many buffers as were ever held at once, and no more.
    fn take_buffer(&mut self, slice_bytes: usize) -> BytesMut {
        let room = slice_bytes.saturating_add(HEADER_LEN);
        match self.buffers.iter_mut().position(|buffer| buffer.try_reclaim(room)) {
            Some(free) => self.buffers.swap_remove(free),
            None => {
                self.buffers.truncate(BUFFERS_KEPT_MAX - 1);
                BytesMut::with_capacity(room)
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
            return Err(FrameError::Unexpected("End tells of other bytes than those that came".into()));
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
            "a {kind:?} frame of {payload_len} bytes for positions {}..{} of link {link}, where {due} of link {} is due",
            span.start, span.end, self.state.link
        ))
    }
}

async fn fail<S: AsyncRead + AsyncWrite + Unpin>(mut frames: FrameStream<S>, state: LinkState, error: &Error) {
    if state.ended {
        return;
    }
    let payload = crate::status::encode_error(error);
    // The connection may be broken already, which is then known at the other end, too.
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
