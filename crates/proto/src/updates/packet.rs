//! The packets of updates, and how they are cut into frames.

use super::{Found, LoadHead, LoadId, OpenRead, Route, UPDATE_BYTES_MAX, check::fault_of};
use crate::{
    frame::{FrameError, FrameStream, Header, Kind},
    net::BoxStream,
    token::LinkToken,
};
use bytes::{Buf, Bytes, BytesMut};
use serde::{Deserialize, Serialize};
use std::io::Cursor;
use tokio::io::{AsyncRead, AsyncWrite, ReadHalf, WriteHalf};
use weft_types::{BlockId, FRAME_PAYLOAD_BYTES_MAX, Result, Span, crc32c};
use weft_update::{Message, Told, UpdateId};

/// A packet, without the bytes of blocks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Packet {
    /// From agent to agent: a message of the update protocol.
    Message {
        /// The block whose node sends it.
        from: BlockId,
        /// The block that receives it.
        to: BlockId,
        /// The message.
        message: Message,
    },
    /// From client to agent: a request for an update.
    Request {
        /// Its number on this connection, which the answer repeats.
        number: u64,
        /// The lowest data block that it changes.
        block: BlockId,
        /// The update. It names the client's session.
        id: UpdateId,
        /// The term of the client's lease.
        term: u64,
        /// The right to request it.
        token: LinkToken,
    },
    /// From agent to client: the answer to a request.
    Answer {
        /// The request's number.
        number: u64,
        /// The answer; `None`: the agent does not learn the outcome any more, because the block was lost or is fenced.
        told: Option<Told>,
    },
    /// As `Request`, with the way of the deltas. Peers of protocol 4 and later.
    Routed {
        /// As in `Request`.
        number: u64,
        /// As in `Request`.
        block: BlockId,
        /// As in `Request`.
        id: UpdateId,
        /// As in `Request`.
        term: u64,
        /// As in `Request`.
        token: LinkToken,
        /// The route from `block` to the blocks that are patched.
        route: Route,
    },
    /// From agent to agent: a message of the update protocol, whose parts travel over a route. Peers of protocol 4 and later, as all
    /// that follow.
    Announced {
        /// What travels; it begins at `from`.
        load: LoadId,
        /// As in `Message`.
        from: BlockId,
        /// As in `Message`.
        to: BlockId,
        /// As in `Message`.
        message: Message,
    },
    /// From agent to agent: bytes of deltas that travel over a route. The packet's parts are cut from those of the head, in order.
    Slice {
        /// What travels.
        load: LoadId,
        /// The block to whose node this is sent.
        to: BlockId,
        /// Counts the slices, from 0.
        number: u32,
        /// With the first slice.
        head: Option<LoadHead>,
    },
    /// From agent to agent: all slices are here. To the sender, which sends them to one node after another.
    Arrived {
        /// What travels.
        load: LoadId,
        /// The block to whose node it was sent.
        at: BlockId,
    },
    /// From agent to agent: the slices did not reach this block, and none behind it on the route. To the origin, which sends the parts with the
    /// message then.
    Stuck {
        /// What travels.
        load: LoadId,
        /// The block.
        at: BlockId,
    },
    /// From agent to agent: the journal of a block does not take so many bytes of one update, so the block takes no part in it. To the leader,
    /// before the message that refuses the update. Only of updates above [`UPDATE_BYTES_USUAL`](weft_types::UPDATE_BYTES_USUAL), which no peer
    /// of an earlier protocol leads.
    TooLong {
        /// The block whose journal it is.
        from: BlockId,
        /// The block that leads the update.
        to: BlockId,
        /// The update.
        id: UpdateId,
    },
    /// From client to agent: a read of a data block at its own node. Peers of protocol 5 and later, as what follows.
    Read {
        /// As in `Request`.
        number: u64,
        /// What is read.
        read: OpenRead,
    },
    /// From agent to client: the answer to a read, with the bytes as its one part if they are served.
    Content {
        /// The read's number.
        number: u64,
        /// What was found.
        found: Found,
    },
}

/// Bytes of one data block: new ones, or a delta.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// The data block's index.
    pub stream: u8,
    /// The offset of the first byte in the data block.
    pub start: u64,
    /// The bytes; not empty. Those of a packet that was received are shared with its other parts.
    pub bytes: Bytes,
}

/// A [`Part`] that is sent.
#[derive(Debug, Clone, Copy)]
pub struct PartRef<'a> {
    /// The data block's index.
    pub stream: u8,
    /// The offset of the first byte in the data block.
    pub start: u64,
    /// The bytes; not empty.
    pub bytes: &'a [u8],
}

impl Part {
    /// For sending it.
    pub fn as_part_ref(&self) -> PartRef<'_> {
        PartRef { stream: self.stream, start: self.start, bytes: &self.bytes }
    }
}

/// How long the head of a packet may be: it depends on the sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadMax {
    /// 64 KiB, for requests and answers.
    Small,
    /// 4 MiB, for messages between agents: a report names all updates of a block that are not forgotten.
    Large,
}

impl HeadMax {
    fn bytes(self) -> usize {
        match self {
            Self::Small => 64 << 10,
            Self::Large => 4 << 20,
        }
    }
}

/// What comes before the bytes of the parts.
#[derive(Serialize, Deserialize)]
struct Head<P> {
    packet: P,
    parts: Vec<PartHead>,
}

#[derive(Serialize, Deserialize)]
struct PartHead {
    stream: u8,
    start: u64,
    len: u64,
}

/// Bytes of the head's length.
const LEN_BYTES: usize = 4;
/// Packets up to this size are copied into one frame; of larger ones, no part is copied.
const SMALL_PACKET_BYTES: usize = 16 << 10;

/// The sending direction of a connection.
pub struct UpdateWriter<S = WriteHalf<BoxStream>> {
    frames: FrameStream<S>,
}

/// The receiving direction of a connection.
pub struct UpdateReader<S = ReadHalf<BoxStream>> {
    frames: FrameStream<S>,
    head_max: HeadMax,
}

impl<S: AsyncWrite + Unpin> UpdateWriter<S> {
    pub(crate) fn new(frames: FrameStream<S>) -> Self {
        Self { frames }
    }

    /// Sends a packet, or buffers it until [`flush`](Self::flush) if it is small. It is not sent, and the connection can be used further, if it
    /// is invalid or too long ([`FrameError::Unexpected`]).
    pub async fn feed(&mut self, packet: &Packet, parts: &[PartRef<'_>]) -> Result<(), FrameError> {
        let (first, total) = begin(packet, parts)?;
        let mut left = self.feed_piece(&first, total, total).await?;
        if left > 0 {
            for part in parts {
                left = self.feed_piece(part.bytes, left, total).await?;
            }
        }
        Ok(())
    }

    /// Buffers a small packet until [`flush`](Self::flush). Returns false if it is too long for that.
    pub fn put(&mut self, packet: &Packet, parts: &[PartRef<'_>]) -> Result<bool, FrameError> {
        let (whole, total) = begin(packet, parts)?;
        if total > SMALL_PACKET_BYTES {
            return Ok(false);
        }
        self.frames.put_frame(&header(&whole, total, false), &whole, crc32c(&whole));
        Ok(true)
    }

    /// Sends a piece of a packet of which `left` bytes are not sent; returns how many are left then.
    async fn feed_piece(&mut self, piece: &[u8], mut left: usize, total: usize) -> Result<usize, FrameError> {
        for piece in piece.chunks(FRAME_PAYLOAD_BYTES_MAX) {
            left -= piece.len();
            self.frames.feed_frame(&header(piece, total, left > 0), piece, crc32c(piece)).await?;
        }
        Ok(left)
    }

    /// Sends everything that is buffered. If the future is dropped, the next call sends the rest.
    pub async fn flush(&mut self) -> Result<(), FrameError> {
        self.frames.flush().await
    }

    /// Sends of what is buffered as much as the connection takes at once, from any thread of a runtime. Returns whether nothing is left: else,
    /// [`flush`](Self::flush).
    pub fn flush_now(&mut self) -> Result<bool, FrameError> {
        self.frames.flush_now()
    }
}

impl<S: AsyncRead + Unpin> UpdateReader<S> {
    pub(crate) fn new(frames: FrameStream<S>, head_max: HeadMax) -> Self {
        Self { frames, head_max }
    }

    /// The next packet. Waits without a time limit until it begins. The connection cannot be used after an error, or if the future is dropped.
    pub async fn next(&mut self) -> Result<(Packet, Vec<Part>), FrameError> {
        self.frames.begin_frame().await?;
        let (mut bytes, mut total) = (BytesMut::new(), None);
        loop {
            let announced = self.frames.read_header().await?;
            let Header { kind, more, span, payload_len, .. } = announced.header;
            let len = usize::try_from(span.len()).unwrap_or(usize::MAX);
            let max = LEN_BYTES + self.head_max.bytes() + UPDATE_BYTES_MAX;
            if kind != Kind::Update || span.start != 0 || *total.get_or_insert(len) != len {
                return Err(FrameError::Unexpected(format!("received a {kind:?} frame that is no part of a packet of updates")));
            }
            if len > max {
                return Err(FrameError::Oversized { kind, len: span.len(), max });
            }
            let left = len - bytes.len();
            if payload_len == 0 || payload_len > left || more != (payload_len < left) {
                return Err(FrameError::Unexpected(format!("the frames of a packet do not add up to its {len} bytes")));
            }
            self.frames.read_payload(&announced, &mut bytes).await?;
            if !more {
                return decode(bytes.freeze(), self.head_max);
            }
        }
    }
}

/// The beginning of a packet, which is all of it if it is small; and the bytes of all of it.
fn begin(packet: &Packet, parts: &[PartRef<'_>]) -> Result<(Vec<u8>, usize), FrameError> {
    let heads = parts.iter().map(|part| PartHead { stream: part.stream, start: part.start, len: part.bytes.len() as u64 });
    let head = Head { packet, parts: heads.collect() };
    if !are_valid(&head.parts) {
        return Err(FrameError::Unexpected("the parts of a packet are empty, out of order or too long".into()));
    }
    let mut first = postcard::to_extend(&head, vec![0; LEN_BYTES])
        .map_err(|_| FrameError::Unexpected("cannot encode a packet of updates".into()))?;
    let head_len = first.len() - LEN_BYTES;
    if head_len > HeadMax::Large.bytes() {
        return Err(FrameError::Unexpected(format!("a packet's head has {head_len} bytes: too many")));
    }
    first[..LEN_BYTES].copy_from_slice(&(head_len as u32).to_le_bytes());
    let total = first.len() + parts.iter().map(|part| part.bytes.len()).sum::<usize>();
    if total <= SMALL_PACKET_BYTES {
        parts.iter().for_each(|part| first.extend_from_slice(part.bytes));
    }
    Ok((first, total))
}

/// The header of the frame of a piece of a packet; `more`: other pieces follow.
fn header(piece: &[u8], total: usize, more: bool) -> Header {
    Header { kind: Kind::Update, more, link: 0, span: Span::new(0, total as u64), payload_len: piece.len() }
}

fn are_valid(parts: &[PartHead]) -> bool {
    let len = parts.iter().fold(0u64, |sum, part| sum.saturating_add(part.len));
    parts.windows(2).all(|pair| pair[0].stream < pair[1].stream)
        && parts.iter().all(|part| part.len > 0 && part.start.checked_add(part.len).is_some())
        && len <= UPDATE_BYTES_MAX as u64
}

fn decode(mut bytes: Bytes, head_max: HeadMax) -> Result<(Packet, Vec<Part>), FrameError> {
    let invalid = |what: &str| FrameError::Unexpected(format!("received an invalid packet of updates: {what}"));
    if bytes.len() < LEN_BYTES {
        return Err(invalid("it has no head"));
    }
    let head_len = bytes.get_u32_le() as usize;
    if head_len > bytes.len().min(head_max.bytes()) {
        return Err(invalid("its head is too long"));
    }
    let mut rest = bytes.split_off(head_len);
    let (Head { packet, parts }, behind): (Head<Packet>, &[u8]) =
        postcard::take_from_bytes(&bytes).map_err(|_| invalid("its head cannot be decoded"))?;
    if !behind.is_empty() || !are_valid(&parts) || parts.iter().map(|part| part.len).sum::<u64>() != rest.len() as u64 {
        return Err(invalid("its parts do not fit"));
    }
    if let Some(fault) = fault_of(&packet, !parts.is_empty()) {
        return Err(invalid(fault));
    }
    let take = |PartHead { stream, start, len }: PartHead| Part { stream, start, bytes: rest.split_to(len as usize) };
    Ok((packet, parts.into_iter().map(take).collect()))
}

/// The bytes of packets that all carry these parts, for tests of what parses them.
pub async fn packet_stream(packets: &[Packet], parts: &[PartRef<'_>]) -> Result<Vec<u8>, FrameError> {
    let mut writer = UpdateWriter::new(FrameStream::new(Cursor::new(Vec::new())));
    for packet in packets {
        writer.feed(packet, parts).await?;
    }
    writer.flush().await?;
    Ok(writer.frames.into_inner().into_inner())
}

/// For the fuzzer: reads packets until there are no more, and checks that what is written again is read as the same. Returns the number of
/// packets.
pub async fn fuzz_packets(input: Vec<u8>) -> usize {
    let reader = |bytes| UpdateReader::new(FrameStream::new(Cursor::new(bytes)), HeadMax::Large);
    let (mut reading, mut count) = (reader(input), 0);
    while let Ok((packet, parts)) = reading.next().await {
        let refs: Vec<_> = parts.iter().map(Part::as_part_ref).collect();
        let again = packet_stream(std::slice::from_ref(&packet), &refs).await.ok();
        let again = match again {
            Some(bytes) => reader(bytes).next().await.ok(),
            None => None,
        };
        assert!(again == Some((packet, parts)), "it changed by encoding");
        count += 1;
    }
    count
}
