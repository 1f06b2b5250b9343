//! Frames: for any input, reading ends with a frame or a typed error, in bounded memory.

use super::hello;
use bytes::BytesMut;
use proptest::prelude::*;
use std::io::Cursor;
use tokio::runtime::{Builder, Runtime};
use weft_proto::frame::{CONTROL_PAYLOAD_BYTES_MAX, FrameError, FrameStream, HEADER_LEN, Header, Kind};
use weft_proto::{LinkReceiver, LinkSender, crc32c};
use weft_types::{FRAME_PAYLOAD_BYTES_MAX, Span};

const STALL: std::time::Duration = std::time::Duration::from_secs(10);
const WIDTH: u32 = 2;
const LINK: u32 = 65537;

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// The bytes that a sender of these slices writes.
fn recorded(slices: &[(Span, Vec<u8>)]) -> Vec<u8> {
    let mut sender = LinkSender::new(FrameStream::new(Cursor::new(Vec::new())), LINK, WIDTH, STALL);
    runtime().block_on(async {
        for (slice, rows) in slices {
            sender.send(*slice, rows).await.unwrap();
        }
        sender.end().await.unwrap();
    });
    sender.into_frames().unwrap().into_inner().into_inner()
}

/// The slices that a receiver decodes from bytes, if the link is complete.
fn replayed(bytes: &[u8], slices: &[(Span, Vec<u8>)]) -> weft_types::Result<Vec<Vec<u8>>> {
    let mut receiver = LinkReceiver::new(FrameStream::new(Cursor::new(bytes.to_vec())), LINK, WIDTH, STALL);
    runtime().block_on(async {
        let mut received = Vec::new();
        for (slice, _) in slices {
            received.push(receiver.receive(*slice).await?.to_vec());
        }
        receiver.end().await?;
        Ok(received)
    })
}

fn three_slices() -> Vec<(Span, Vec<u8>)> {
    let slice = |start: u64, end: u64| (Span::new(start, end), (0..2 * (end - start)).map(|x| (x * 7 + start) as u8).collect());
    vec![slice(0, 100), slice(200, 300), slice(400, 441)]
}

fn read_all(bytes: Vec<u8>) -> (usize, FrameError, usize) {
    let mut frames = FrameStream::new(Cursor::new(bytes));
    let mut payload = BytesMut::new();
    runtime().block_on(async {
        let mut count = 0;
        loop {
            payload.clear();
            match frames.read_frame(&mut payload).await {
                Ok(_) => count += 1,
                Err(error) => return (count, error, payload.capacity()),
            }
        }
    })
}

#[test]
fn the_header_is_as_documented() {
    let mut frames = FrameStream::new(Cursor::new(Vec::new()));
    let header = Header { kind: Kind::Data, more: true, link: 0x0002_0001, span: Span::new(4096, 4100), payload_len: 3 };
    runtime().block_on(frames.write_frame(&header, b"abc")).unwrap();
    let bytes = frames.into_inner().into_inner();
    let mut expected = b"WEFT".to_vec();
    expected.extend([3, 1, 0, 0]);
    expected.extend(0x0002_0001u32.to_le_bytes());
    expected.extend(3u32.to_le_bytes());
    expected.extend(4096u64.to_le_bytes());
    expected.extend(4u64.to_le_bytes());
    let checksum = crc32c(&[&expected[..], b"abc"].concat());
    expected.extend(checksum.to_le_bytes());
    expected.extend(b"abc");
    assert_eq!(bytes, expected);
    assert_eq!(crc32c(b"123456789"), 0xe306_9283, "the check value of CRC-32C");
}

#[test]
fn a_stream_that_ends_early_is_never_complete() {
    let slices = three_slices();
    let bytes = recorded(&slices);
    assert_eq!(replayed(&bytes, &slices).unwrap(), slices.iter().map(|(_, rows)| rows.clone()).collect::<Vec<_>>());
    for len in 0..bytes.len() {
        assert!(replayed(&bytes[..len], &slices).is_err(), "{len} of {} bytes were enough", bytes.len());
    }
}

#[test]
fn missing_repeated_and_swapped_frames_are_detected() {
    let slices = three_slices();
    let bytes = recorded(&slices);
    let (first, rest) = bytes.split_at(HEADER_LEN + 200);
    let (second, rest) = rest.split_at(HEADER_LEN + 200);
    let others = [[second, rest].concat(), [first, first, second, rest].concat(), [second, first, rest].concat()];
    for other in others {
        assert!(replayed(&other, &slices).is_err());
    }
    // End detects the change even if another frame has the same positions.
    let mut changed = slices.clone();
    changed[1].1[0] ^= 1;
    let other = recorded(&changed);
    let swapped = [first, &other[first.len()..first.len() + second.len()], rest].concat();
    let error = replayed(&swapped, &slices).unwrap_err();
    assert!(error.message.contains("End"), "{error}");
}

#[test]
fn a_header_may_not_announce_more_than_is_allowed() {
    for (kind, max) in [(Kind::Data, FRAME_PAYLOAD_BYTES_MAX), (Kind::Hello, CONTROL_PAYLOAD_BYTES_MAX)] {
        let mut bytes = b"WEFT".to_vec();
        bytes.extend([kind as u8, 0, 0, 0, 1, 0, 0, 0]);
        bytes.extend((max as u32 + 1).to_le_bytes());
        bytes.extend([0; 20]);
        let (_, error, capacity) = read_all(bytes);
        assert!(matches!(error, FrameError::Oversized { .. }), "{error}");
        assert_eq!(capacity, 0, "memory was allocated for a frame that is too large");
    }
}

#[test]
fn other_protocols_are_named() {
    let (_, error, _) = read_all(b"GET / HTTP/1.1\r\nHost: weft.example\r\n\r\n".to_vec());
    assert!(matches!(error, FrameError::Magic(magic) if &magic == b"GET "), "{error}");
    let unknown = [b"WEFT".as_slice(), &[9], &[0; 31]].concat();
    assert!(matches!(read_all(unknown).1, FrameError::Unknown { kind: 9, flags: 0 }));
    assert!(matches!(read_all(Vec::new()).1, FrameError::Closed));
}

#[test]
fn a_hello_of_another_version_is_answered_with_both() {
    runtime().block_on(async {
        let (ours, theirs) = tokio::io::duplex(4096);
        let (mut ours, mut theirs) = (FrameStream::new(ours), FrameStream::new(theirs));
        let mut payload = Vec::new();
        payload.extend(7u16.to_le_bytes());
        payload.extend(9u16.to_le_bytes());
        payload.extend([0; 8]);
        payload.extend(b"what a Hello of version 9 says");
        let header = Header { kind: Kind::Hello, more: false, link: 1, span: Span::new(0, 0), payload_len: payload.len() };
        theirs.write_frame(&header, &payload).await.unwrap();
        let refused = ours.read_hello().await.unwrap_err();
        assert!(matches!(refused, FrameError::OtherVersion(_)), "{refused}");
        let told = theirs.read_hello_ack(1).await.unwrap_err().to_string();
        for text in [told, refused.to_string()] {
            assert!(text.contains("versions 7 to 9") && text.contains(&weft_proto::PROTOCOL.to_string()), "{text}");
        }
    });
}

#[test]
fn a_hello_is_transferred_completely_and_may_be_refused() {
    runtime().block_on(async {
        let (ours, theirs) = tokio::io::duplex(4096);
        let (mut ours, mut theirs) = (FrameStream::new(ours), FrameStream::new(theirs));
        ours.send_hello(&hello(1)).await.unwrap();
        let received = theirs.read_hello().await.unwrap();
        assert_eq!(received, hello(1));
        theirs.accept_hello(&received).await.unwrap();
        ours.read_hello_ack(1).await.unwrap();

        ours.send_hello(&hello(2)).await.unwrap();
        let received = theirs.read_hello().await.unwrap();
        let busy = weft_types::Error::retry("no more links, please");
        theirs.refuse_hello(received.link, &busy).await.unwrap();
        assert_eq!(weft_types::Error::from(ours.read_hello_ack(2).await.unwrap_err()), busy);
    });
}

proptest! {
    #[test]
    fn any_change_to_a_stream_is_detected(at in any::<prop::sample::Index>(), mask in 1u8..) {
        let slices = three_slices();
        let mut bytes = recorded(&slices);
        let at = at.index(bytes.len());
        bytes[at] ^= mask;
        prop_assert!(replayed(&bytes, &slices).is_err(), "byte {at} was changed by {mask:#x}");
    }

    #[test]
    fn any_removed_piece_is_detected(start in any::<prop::sample::Index>(), len in 1usize..400) {
        let slices = three_slices();
        let mut bytes = recorded(&slices);
        let start = start.index(bytes.len());
        let end = bytes.len().min(start + len);
        bytes.drain(start..end);
        prop_assert!(replayed(&bytes, &slices).is_err());
    }
}
