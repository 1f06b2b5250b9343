//! The bytes of a batch: a chain of frames, the first of which describes the batch.
//!
//! A frame is its length (4), a CRC32C of the length and what follows (4), a head in postcard, and a payload. The length is that of head
//! and payload. A length of 0 ends the chain.

use serde::{Deserialize, Serialize};
use std::{fmt, sync::Arc};
use weft_types::{BlockId, Error, Result, StripeId, crc32c, crc32c_continued, crc32c_joined};

/// Bytes that a journal shares with those who append them, instead of a copy.
pub trait Payload: AsRef<[u8]> + fmt::Debug + Send + Sync {}

impl<T: AsRef<[u8]> + fmt::Debug + Send + Sync> Payload for T {}

/// Shared bytes.
pub type SharedBytes = Arc<dyn Payload>;

/// Length and checksum.
const PREFIX: usize = 8;
/// The most bytes of a frame in addition to the payload of its record.
pub(super) const FRAME_EXTRA_MAX: usize = PREFIX + 40;
/// The least bytes of [`pad`]: those of a frame that names no released record.
pub(super) const PAD_MIN: usize = PREFIX + 2;

/// What a frame is. The order of the variants is part of the format.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Head {
    /// The first frame of a batch.
    Batch(BatchHead),
    /// A record; its payload follows.
    Record(RecordHead),
    /// These records are released. Each position is given as the difference to the one before, in ascending order. A payload means nothing.
    Released(Vec<u64>),
}

/// Describes a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct BatchHead {
    /// Where the batch begins: bytes written to the ring before it, since the ring was created.
    pub(super) at: u64,
    /// Its pages.
    pub(super) pages: u32,
    /// Where the oldest batch begins that contains a record that is not released.
    pub(super) tail: u64,
    /// The position after the last record of this batch.
    pub(super) next_position: u64,
}

/// Names a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RecordHead {
    pub(super) position: u64,
    stripe: u64,
    index: u8,
    copy: u8,
    generation: u32,
}

impl RecordHead {
    pub(super) fn new(position: u64, block: BlockId) -> Self {
        let BlockId { stripe, index, copy, generation } = block;
        Self { position, stripe: stripe.0, index, copy, generation }
    }

    pub(super) fn block(&self) -> BlockId {
        BlockId { stripe: StripeId(self.stripe), index: self.index, copy: self.copy, generation: self.generation }
    }
}

/// Appends a frame. Returns its length.
pub(super) fn push(stream: &mut Vec<u8>, head: &Head, payload: &[u8]) -> Result<usize> {
    let start = stream.len();
    stream.extend([0; PREFIX]);
    let encoded =
        postcard::to_stdvec(head).map_err(|error| Error::fatal(format!("cannot encode a journal's record: {error}")))?;
    stream.extend_from_slice(&encoded);
    stream.extend_from_slice(payload);
    let body_len = stream.len() - start - PREFIX;
    let len = u32::try_from(body_len).map_err(|_| Error::invalid("the record is too long"))?.to_le_bytes();
    let crc = crc32c_continued(crc32c(&len), &stream[start + PREFIX..]);
    stream[start..start + 4].copy_from_slice(&len);
    stream[start + 4..start + PREFIX].copy_from_slice(&crc.to_le_bytes());
    Ok(body_len + PREFIX)
}

/// The beginning of a record's frame, whose payload is `payload` and then the shared bytes, which follow it. Returns it with the place of
/// the payload in it. `shared_crc` is the CRC32C of the shared bytes.
pub(super) fn begin(head: RecordHead, payload: &[u8], shared: &[SharedBytes], shared_crc: u32) -> Result<(Vec<u8>, usize)> {
    let mut frame = Vec::with_capacity(FRAME_EXTRA_MAX + payload.len());
    push(&mut frame, &Head::Record(head), payload)?;
    let payload_at = frame.len() - payload.len();
    if !shared.is_empty() {
        let shared_len: usize = shared.iter().map(|bytes| (**bytes).as_ref().len()).sum();
        let len = u32::try_from(frame.len() - PREFIX + shared_len).map_err(|_| Error::invalid("the record is too long"))?;
        let len = len.to_le_bytes();
        let crc = crc32c_continued(crc32c(&len), &frame[PREFIX..]);
        let crc = crc32c_joined(crc, shared_crc, shared_len as u64);
        frame[..4].copy_from_slice(&len);
        frame[4..PREFIX].copy_from_slice(&crc.to_le_bytes());
    }
    Ok((frame, payload_at))
}

/// Appends a frame of so many bytes that means nothing.
pub(super) fn pad(stream: &mut Vec<u8>, len: usize) -> Result<()> {
    let zeros = len.checked_sub(PAD_MIN).ok_or_else(|| Error::fatal("a frame that pads is too short"))?;
    push(stream, &Head::Released(Vec::new()), &vec![0; zeros]).map(drop)
}

/// A frame that was read.
pub(super) struct Frame<'a> {
    pub(super) head: Head,
    pub(super) payload: &'a [u8],
    /// Its length, with the prefix.
    pub(super) len: usize,
}

/// Reads the frame at the beginning of the bytes. `Ok(None)`: the chain ends here. `Err(())`: it is no frame.
pub(super) fn read(bytes: &[u8]) -> Result<Option<Frame<'_>>, ()> {
    let Some((len, rest)) = bytes.split_first_chunk::<4>() else {
        // Less than a length is left, all of it padding.
        return if bytes.iter().all(|byte| *byte == 0) { Ok(None) } else { Err(()) };
    };
    if *len == [0; 4] {
        return Ok(None);
    }
    let (crc, rest) = rest.split_first_chunk::<4>().ok_or(())?;
    let body = rest.get(..u32::from_le_bytes(*len) as usize).ok_or(())?;
    if crc32c_continued(crc32c(len), body) != u32::from_le_bytes(*crc) {
        return Err(());
    }
    let (head, payload) = postcard::take_from_bytes::<Head>(body).map_err(|_| ())?;
    Ok(Some(Frame { head, payload, len: PREFIX + body.len() }))
}

/// The frame that names released records.
pub(super) fn released(mut positions: Vec<u64>) -> Head {
    positions.sort_unstable();
    let mut before = 0;
    for position in &mut positions {
        (*position, before) = (*position - before, *position);
    }
    Head::Released(positions)
}

/// The positions that [`released`] was given, in ascending order.
pub(super) fn released_positions(differences: Vec<u64>) -> impl Iterator<Item = u64> {
    differences.into_iter().scan(0u64, |before, difference| {
        *before = before.saturating_add(difference);
        Some(*before)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn frames_are_read_as_they_were_written(position: u64, stripe: u64, index: u8, copy: u8, generation: u32, payload: Vec<u8>) {
            let block = BlockId { stripe: StripeId(stripe), index, copy, generation };
            let head = RecordHead::new(position, block);
            let mut stream = Vec::new();
            let len = push(&mut stream, &Head::Record(head), &payload).unwrap();
            prop_assert!(len <= payload.len() + FRAME_EXTRA_MAX);
            stream.extend([0; 9]);
            let frame = read(&stream).unwrap().unwrap();
            prop_assert_eq!((&frame.head, frame.payload, frame.len), (&Head::Record(head), &payload[..], len));
            prop_assert_eq!(head.block(), block);
            prop_assert!(read(&stream[len..]).unwrap().is_none());
            stream[len / 2] ^= 1;
            prop_assert!(read(&stream).is_err());
        }

        #[test]
        fn a_frame_with_shared_bytes_is_as_if_they_were_not_shared(position: u64, payload: Vec<u8>, shared: Vec<Vec<u8>>) {
            let head = RecordHead::new(position, BlockId { stripe: StripeId(1), index: 2, copy: 3, generation: 4 });
            let (all, mut whole) = (shared.concat(), Vec::new());
            push(&mut whole, &Head::Record(head), &[&payload[..], &all].concat()).unwrap();
            let shared: Vec<SharedBytes> = shared.into_iter().map(|bytes| Arc::new(bytes) as SharedBytes).collect();
            let (mut frame, payload_at) = begin(head, &payload, &shared, crc32c(&all)).unwrap();
            prop_assert_eq!(&frame[payload_at..], &payload[..]);
            frame.extend_from_slice(&all);
            prop_assert_eq!(frame, whole);
        }

        #[test]
        fn padding_is_as_long_as_it_should_be_and_names_nothing(len in PAD_MIN..3000) {
            let mut stream = Vec::new();
            pad(&mut stream, len).unwrap();
            let frame = read(&stream).unwrap().unwrap();
            prop_assert_eq!((frame.head, frame.len, stream.len()), (Head::Released(Vec::new()), len, len));
        }

        #[test]
        fn any_bytes_are_read_without_a_panic(bytes: Vec<u8>) {
            let _any = read(&bytes).is_ok();
        }

        #[test]
        fn released_positions_come_back(positions: std::collections::BTreeSet<u64>) {
            let Head::Released(differences) = released(positions.iter().rev().copied().collect()) else { unreachable!() };
            prop_assert!(released_positions(differences).eq(positions));
        }
    }
}
