//! Every parser of bytes from outside, as a function of bytes that panics if something is wrong: for the fuzzer in
//! `fuzz/`, and for the test of this crate, which runs them on the seeds and a bounded number of mutations.
//!
//! Random bytes rarely have a valid checksum, so a fuzzer would not reach the code behind the check. Where there is a
//! checksum, the first byte of the input says whether it is corrected before the rest is parsed.

mod seeds;

pub use seeds::seeds;

use bytes::BytesMut;
use std::{cell::RefCell, io::Cursor, time::Duration};
use tokio::runtime::{Builder, Runtime};
use weft_plan::{cut, from_json, to_json, verify};
use weft_proto::{
    FrameError, FrameStream, LinkReceiver, crc32c, decode_message, decode_task, encode_message, encode_task,
    frame::{CONTROL_PAYLOAD_BYTES_MAX, HEADER_LEN, Header, Kind},
    updates::fuzz_packets,
};
use weft_schemes::code_view;
use weft_store::Sidecar;
use weft_types::{FRAME_PAYLOAD_BYTES_MAX, Span};

/// Takes any bytes, and returns whether they were valid; panics if the result is wrong.
pub type Entry = fn(&[u8]) -> bool;

/// All entries, by the names of their fuzz targets.
pub const ENTRIES: [(&str, Entry); 9] = [
    ("frames", frames),
    ("hello", hello),
    ("sidecar", sidecar),
    ("saved_plan", saved_plan),
    ("code_spec", code_spec),
    ("task", task),
    ("update_record", update_record),
    ("updates", updates),
    ("update_message", update_message),
];

/// Codes of more blocks take the fuzzer too long to verify.
const BLOCKS_MAX: usize = 16;
/// The link, the sub-blocks and the slices that a receiver of frames expects.
pub(crate) const LINK: u32 = 65_537;
pub(crate) const WIDTH: u32 = 2;
pub(crate) const SLICES: [Span; 3] = [Span { start: 0, end: 100 }, Span { start: 200, end: 300 }, Span { start: 400, end: 441 }];
const STALL: Duration = Duration::from_secs(10);

/// A record of the journal of updates.
pub fn update_record(input: &[u8]) -> bool {
    weft_updater::fuzz_record(input)
}

/// A stream of packets of updates.
pub fn updates(input: &[u8]) -> bool {
    let bytes = sealed(input, seal_frames);
    block_on(fuzz_packets(bytes)) > 0
}

/// A message of the update protocol.
pub fn update_message(input: &[u8]) -> bool {
    let Ok(read) = decode_message(input) else { return false };
    let again = encode_message(&read).expect("a decoded value can be encoded");
    assert_eq!(decode_message(&again).expect("an encoded value can be decoded"), read);
    true
}

/// A stream of the data plane: frames in bounded memory, and a link that gives the expected slices or an error.
pub fn frames(input: &[u8]) -> bool {
    let bytes = sealed(input, seal_frames);
    let mut stream = FrameStream::new(Cursor::new(bytes.clone()));
    let (mut payload, mut at) = (BytesMut::new(), 0);
    block_on(async {
        loop {
            payload.clear();
            let Ok(header) = stream.read_frame(&mut payload).await else { break };
            assert_eq!(payload.len(), header.payload_len);
            assert!(payload.len() <= FRAME_PAYLOAD_BYTES_MAX);
            let again = written(&header, &payload).await;
            assert_eq!(bytes.get(at..at + again.len()), Some(&again[..]), "it is encoded differently");
            at += again.len();
        }
        assert!(payload.capacity() <= 2 * (FRAME_PAYLOAD_BYTES_MAX + HEADER_LEN), "{} bytes are held", payload.capacity());
        let mut receiver = LinkReceiver::new(FrameStream::new(Cursor::new(bytes)), LINK, WIDTH, STALL);
        for slice in SLICES {
            let Ok(rows) = receiver.receive(slice).await else { return false };
            assert_eq!(rows.len() as u64, u64::from(WIDTH) * slice.len());
        }
        receiver.end().await.is_ok()
    })
}

/// The payload of a Hello, with any bytes after the two versions.
pub fn hello(input: &[u8]) -> bool {
    if input.len() > CONTROL_PAYLOAD_BYTES_MAX {
        return false;
    }
    block_on(async {
        let (ours, theirs) = tokio::io::duplex(4 * CONTROL_PAYLOAD_BYTES_MAX);
        let (mut ours, mut theirs) = (FrameStream::new(ours), FrameStream::new(theirs));
        let header = Header { kind: Kind::Hello, more: false, link: LINK, span: Span::new(0, 0), payload_len: input.len() };
        theirs.write_frame(&header, input).await.expect("there is room");
        match ours.read_hello().await {
            Ok(read) => {
                theirs.send_hello(&read).await.expect("there is room");
                assert_eq!(ours.read_hello().await.expect("it was one before"), read);
                true
            }
            Err(error) => {
                assert!(matches!(error, FrameError::Unexpected(_) | FrameError::OtherVersion(_)), "{error}");
                false
            }
        }
    })
}

/// A sidecar, with its checksum corrected or not.
pub fn sidecar(input: &[u8]) -> bool {
    let bytes = sealed(input, |bytes| {
        let body = bytes.len().saturating_sub(4);
        let checksum = crc32c(bytes.get(..body).unwrap_or_default()).to_le_bytes();
        if let Some(end) = bytes.get_mut(body..).filter(|end| end.len() == 4) {
            end.copy_from_slice(&checksum);
        }
    });
    let Ok(read) = Sidecar::decode(&bytes) else { return false };
    let again = read.encode().expect("a decoded value can be encoded");
    assert_eq!(Sidecar::decode(&again).expect("an encoded value can be decoded"), read);
    assert_eq!(read.pages().len() as u64, read.meta().len().div_ceil(weft_types::PAGE_LEN));
    true
}

/// A saved plan: read, written again, verified or refused, and cut.
pub fn saved_plan(input: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(input) else { return false };
    let Ok(saved) = from_json(text) else { return false };
    if let Ok(again) = to_json(&saved.plan, &saved.job, &saved.considered) {
        let again = from_json(&again).expect("an encoded value can be decoded");
        assert!(again.plan == saved.plan && again.job == saved.job, "it changed by encoding");
    }
    let Ok(code) = weft_codes::parse(&saved.plan.shape.code) else { return false };
    if code.n() > BLOCKS_MAX {
        return false;
    }
    let spec = code.spec();
    if verify(&saved.plan, code_view(code.as_ref(), &spec), &saved.job).is_err() {
        return false;
    }
    for vertex in (0..=u16::MAX).take(saved.plan.binding.parties.len()) {
        let task = cut(&saved.plan, vertex);
        task.validate().expect("all tasks of a verified plan are valid");
        encode_task(&task).and_then(|bytes| decode_task(&bytes)).expect("all valid tasks can be encoded");
    }
    true
}

/// The spec of a code.
pub fn code_spec(input: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(input) else { return false };
    let Ok((code, _cell_len)) = weft_codes::parse_policy(text) else { return false };
    let again = weft_codes::parse(&code.spec()).expect("a code's own spec is valid");
    assert_eq!((again.spec(), again.k(), again.m(), again.alpha()), (code.spec(), code.k(), code.m(), code.alpha()));
    assert_eq!(code.n(), code.k() + code.m());
    true
}

/// A task as in Open.
pub fn task(input: &[u8]) -> bool {
    let Ok(read) = decode_task(input) else { return false };
    let again = encode_task(&read).expect("a decoded value can be encoded");
    assert_eq!(decode_task(&again).expect("an encoded value can be decoded"), read);
    read.validate().is_ok()
}

/// The input after its first byte; if that byte is odd, with corrected checksums.
fn sealed(input: &[u8], seal: impl FnOnce(&mut [u8])) -> Vec<u8> {
    let Some((first, rest)) = input.split_first() else { return Vec::new() };
    let mut bytes = rest.to_vec();
    if first % 2 == 1 {
        seal(&mut bytes);
    }
    bytes
}

/// Corrects the checksum of each frame, as far as there are frames.
fn seal_frames(mut bytes: &mut [u8]) {
    while bytes.len() >= HEADER_LEN {
        let mut len = [0; 4];
        len.copy_from_slice(&bytes[12..16]);
        let end = HEADER_LEN.saturating_add(u32::from_le_bytes(len) as usize);
        if end > bytes.len() {
            return;
        }
        let (frame, rest) = bytes.split_at_mut(end);
        let checksum = crc32c(&[&frame[..HEADER_LEN - 4], &frame[HEADER_LEN..]].concat());
        frame[HEADER_LEN - 4..HEADER_LEN].copy_from_slice(&checksum.to_le_bytes());
        bytes = rest;
    }
}

/// An encoded frame.
async fn written(header: &Header, payload: &[u8]) -> Vec<u8> {
    let mut stream = FrameStream::new(Cursor::new(Vec::new()));
    stream.write_frame(header, payload).await.expect("a write to memory");
    stream.into_inner().into_inner()
}

fn block_on<T>(work: impl Future<Output = T>) -> T {
    thread_local! {
        static RUNTIME: RefCell<Runtime> =
            RefCell::new(Builder::new_current_thread().enable_time().build().expect("a runtime"));
    }
    RUNTIME.with_borrow(|runtime| runtime.block_on(work))
}
