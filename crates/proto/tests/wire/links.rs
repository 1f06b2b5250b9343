//! Links over loopback sockets, with and without TLS.

use super::{Cluster, connection};
use bytes::BytesMut;
use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::pin::Pin;
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::timeout;
use weft_proto::frame::{FrameStream, Header, Kind};
use weft_proto::{ExtraStall, LinkReceiver, LinkSender, SliceMemory, Stall};
use weft_types::{Error, FRAME_PAYLOAD_BYTES_MAX, Reaction, Span};

const STALL: Duration = Duration::from_secs(10);

fn rows(slice: Span, width: u32) -> Vec<u8> {
    (0..slice.len() * u64::from(width)).map(|x| (x % 251) as u8 ^ (slice.start >> 12) as u8).collect()
}

async fn carry(cluster: Option<&Cluster>, width: u32, slices: &[Span]) {
    let (ours, theirs) = connection(cluster).await;
    let sending = async {
        let mut sender = LinkSender::new(ours, 9, width, STALL);
        for slice in slices {
            sender.send(*slice, &rows(*slice, width)).await.unwrap();
        }
        sender.end().await.unwrap();
        sender.into_frames()
    };
    let receiving = async {
        let mut receiver = LinkReceiver::new(theirs, 9, width, STALL);
        for slice in slices {
            let received = receiver.receive(*slice).await.unwrap();
            assert!(received == rows(*slice, width), "slice {slice:?} is wrong");
        }
        receiver.end().await.unwrap();
        receiver.into_frames()
    };
    let (ours, theirs) = tokio::join!(sending, receiving);
    assert!(ours.is_some() && theirs.is_some());
}

#[tokio::test]
async fn slices_of_all_sizes_arrive_unchanged() {
    let frame = FRAME_PAYLOAD_BYTES_MAX as u64;
    let slices = [
        Span::new(0, 1),
        Span::new(4096, 4096 + 32768),
        Span::new(frame, 2 * frame),
        Span::new(3 * frame, 6 * frame + 1),
        Span::new(9 * frame, 9 * frame + 3),
    ];
    let cluster = Cluster::new(1);
    for width in [1, 3] {
        carry(None, width, &slices).await;
        carry(Some(&cluster), width, &slices).await;
    }
}

/// Counts reads and writes of a stream.
struct Counting<S> {
    inner: S,
    reads: Arc<AtomicUsize>,
    writes: Arc<AtomicUsize>,
}

impl<S: AsyncRead + Unpin> AsyncRead for Counting<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.reads.fetch_add(1, Relaxed);
        Pin::new(&mut self.inner).poll_read(cx, into)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Counting<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.writes.fetch_add(1, Relaxed);
        Pin::new(&mut self.inner).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

#[tokio::test]
async fn small_slices_are_sent_together_and_at_the_latest_when_flushed() {
    let (reads, writes) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (ours, theirs) = tokio::io::duplex(1 << 20);
    let counting = |inner| FrameStream::new(Counting { inner, reads: Arc::clone(&reads), writes: Arc::clone(&writes) });
    let mut sender = LinkSender::new(counting(ours), 9, 1, STALL);
    let mut receiver = LinkReceiver::new(counting(theirs), 9, 1, STALL);
    // Two large slices, each sent separately, in order.
    let large = |number: u64| number == 20 || number == 21;
    let slice = |number: u64| Span::new(number << 16, (number << 16) + if large(number) { 40_000 } else { 1000 });
    for number in 0..50 {
        sender.feed(slice(number), &rows(slice(number), 1).into()).await.unwrap();
    }
    assert!(writes.load(Relaxed) <= 8, "{} writes", writes.load(Relaxed));
    sender.flush().await.unwrap();
    for number in 0..50 {
        assert!(receiver.receive(slice(number)).await.unwrap() == rows(slice(number), 1), "slice {number} is wrong");
    }
    assert!(reads.load(Relaxed) <= 16, "{} reads", reads.load(Relaxed));
    sender.feed(slice(50), &rows(slice(50), 1).into()).await.unwrap();
    sender.end().await.unwrap();
    assert!(receiver.receive(slice(50)).await.unwrap() == rows(slice(50), 1));
    receiver.end().await.unwrap();
    assert!(sender.into_frames().is_some() && receiver.into_frames().is_some());
}

#[tokio::test]
async fn memory_is_reused_only_when_no_reader_holds_it() {
    const HELD_MAX: usize = 3;
    let (ours, theirs) = connection(None).await;
    let slices: Vec<Span> = (0..40).map(|number| Span::new(number << 12, (number + 1) << 12)).collect();
    let sending = async {
        let mut sender = LinkSender::new(ours, 9, 1, STALL);
        for slice in &slices {
            sender.send(*slice, &rows(*slice, 1)).await.unwrap();
        }
    };
    let receiving = async {
        let mut receiver = LinkReceiver::new(theirs, 9, 1, STALL);
        let mut places = BTreeSet::new();
        let mut held = VecDeque::new();
        for slice in &slices {
            let received = receiver.receive(*slice).await.unwrap();
            places.insert(received.as_ptr() as usize);
            held.push_back((*slice, received));
            assert!(held.iter().all(|(slice, received)| *received == rows(*slice, 1)), "held bytes were overwritten");
            // Not in the order of arrival: one slice is held for long.
            if held.len() == HELD_MAX {
                held.remove(1 + slice.start as usize / 4096 % 2);
            }
        }
        places.len()
    };
    let ((), places) = tokio::join!(sending, receiving);
    assert_eq!(places, HELD_MAX, "one buffer for each slice held at the same time");
}

#[tokio::test]
async fn the_next_link_receives_where_the_last_one_did() {
    let memory = SliceMemory::within(1 << 20);
    let (mut places, mut held) = (BTreeSet::new(), Vec::new());
    for link in 0..8 {
        let (ours, theirs) = connection(None).await;
        let slice = Span::new(link << 18, (link + 1) << 18);
        let mut sender = LinkSender::new(ours, 9, 1, STALL);
        let mut receiver = LinkReceiver::new(theirs, 9, 1, STALL).with_memory(&memory);
        let (sent, received) = tokio::join!(async { sender.send(slice, &rows(slice, 1)).await }, receiver.receive(slice));
        sent.unwrap();
        let received = received.unwrap();
        places.insert(received.as_ptr() as usize);
        // Every other slice is held beyond the end of its link.
        if link % 2 == 0 {
            held.push((slice, received));
        }
        drop(receiver);
        assert!(held.iter().all(|(slice, received)| *received == rows(*slice, 1)), "held bytes were overwritten");
    }
    assert_eq!(places.len(), held.len() + 1, "one buffer for each held slice, and one that is reused");
}

#[tokio::test]
async fn slices_of_all_lengths_share_memory_with_computed_ones() {
    const KIB: u64 = 1 << 10;
    let memory = SliceMemory::within(1 << 20);
    let mut first = None;
    for (count, kib) in [(4, 64), (1, 256), (3, 80), (4, 64), (64, 4), (1, 256)] {
        let (ours, theirs) = connection(None).await;
        let (mut sender, mut receiver) =
            (LinkSender::new(ours, 9, 1, STALL), LinkReceiver::new(theirs, 9, 1, STALL).with_memory(&memory));
        let slices = || (0..count).map(|at| Span::new(at * kib * KIB, (at + 1) * kib * KIB));
        let sending = async {
            for slice in slices() {
                sender.send(slice, &rows(slice, 1)).await.unwrap();
            }
        };
        let receiving = async {
            let mut held = Vec::new();
            for slice in slices() {
                held.push(receiver.receive(slice).await.unwrap());
            }
            held
        };
        let ((), received) = tokio::join!(sending, receiving);
        assert!(slices().zip(&received).all(|(slice, received)| *received == rows(slice, 1)), "held bytes were overwritten");
        drop((received, receiver));
        let computed: Vec<_> = (0..count).map(|_| memory.room((kib * KIB) as usize)).collect();
        assert!(computed.iter().all(|rows| rows.len() as u64 == kib * KIB && rows.iter().all(|byte| *byte == 0)));
        let at = computed[0].as_ptr() as usize;
        assert_eq!(*first.get_or_insert(at), at, "{count} slices of {kib} KiB were received in other memory");
        let end = computed.iter().map(|rows| rows.as_ptr() as usize + rows.len()).max();
        assert!(
            end.is_some_and(|end| end <= at + 257 * KIB as usize),
            "{count} slices of {kib} KiB need more memory than one long one"
        );
    }
}

#[tokio::test]
async fn an_aborted_link_gives_the_reason() {
    let cluster = Cluster::new(1);
    for cluster in [None, Some(&cluster)] {
        let reason = Error::corrupt("page 3 has a wrong checksum");
        let (ours, theirs) = connection(cluster).await;
        let sender = LinkSender::new(ours, 9, 1, STALL);
        let mut receiver = LinkReceiver::new(theirs, 9, 1, STALL);
        sender.fail(&reason).await;
        let told = receiver.receive(Span::new(4096, 8192)).await.unwrap_err();
        assert_eq!(told, reason.clone().link(9, 4096));
        assert!(receiver.into_frames().is_none(), "a broken connection would be reused");

        let (ours, theirs) = connection(cluster).await;
        let mut sender = LinkSender::new(ours, 9, 1, STALL);
        let receiver = LinkReceiver::new(theirs, 9, 1, STALL);
        receiver.fail(&reason).await;
        let mut told = Ok(());
        for slice in 0..1000 {
            told = sender.send(Span::new(slice * 65536, (slice + 1) * 65536), &[0; 65536]).await;
            if told.is_err() {
                break;
            }
        }
        let told = told.unwrap_err();
        assert_eq!((told.reaction, &told.message), (reason.reaction, &reason.message));
        assert!(sender.into_frames().is_none());
    }
}

#[tokio::test]
async fn a_peer_that_moves_nothing_is_given_up() {
    let stall = Duration::from_millis(100);
    let (ours, theirs) = connection(None).await;
    let mut receiver = LinkReceiver::new(ours, 9, 1, stall);
    let error = timeout(STALL, receiver.receive(Span::new(0, 10))).await.unwrap().unwrap_err();
    assert!(error.message.contains("100 ms") && error.reaction == Reaction::Replan && error.link == Some(9), "{error}");
    drop(theirs);

    let (ours, _theirs) = connection(None).await;
    let mut sender = LinkSender::new(ours, 9, 1, stall);
    let mut sent = Ok(());
    let sending = async {
        for slice in 0..1000 {
            sent = sender.send(Span::new(slice << 20, (slice + 1) << 20), &vec![0; 1 << 20]).await;
            if sent.is_err() {
                break;
            }
        }
    };
    timeout(STALL, sending).await.unwrap();
    assert_eq!(sent.unwrap_err().reaction, Reaction::Replan);
}

#[tokio::test(start_paused = true)]
async fn a_link_that_waits_may_be_silent_for_longer_when_the_limit_is_lowered() {
    let extra = ExtraStall::default();
    let (ours, theirs) = tokio::io::duplex(4096);
    let stall = Stall::of_task(1_000, 0, extra.clone());
    let mut receiver = LinkReceiver::new(FrameStream::new(ours), 9, 1, stall);
    let begin = tokio::time::Instant::now();
    let lowered = async {
        tokio::time::sleep(Duration::from_millis(900)).await;
        extra.set_ms(5_000);
    };
    let (received, ()) = tokio::join!(receiver.receive(Span::new(0, 10)), lowered);
    assert!(received.unwrap_err().message.contains("6000 ms"));
    assert_eq!(begin.elapsed(), Duration::from_secs(6));
    drop(theirs);
}

#[tokio::test]
async fn pieces_that_do_not_form_a_slice_are_refused() {
    let piece = |more, len| Header { kind: Kind::Data, more, link: 9, span: Span::new(0, 100), payload_len: len };
    let wrong: [&[Header]; 5] = [
        &[piece(false, 99)],
        &[piece(true, 100)],
        &[piece(true, 60), piece(false, 41)],
        &[piece(true, 0)],
        &[Header { span: Span::new(0, 101), ..piece(false, 101) }],
    ];
    for frames in wrong {
        let (mut ours, theirs) = connection(None).await;
        for header in frames {
            ours.write_frame(header, &vec![1; header.payload_len]).await.unwrap();
        }
        let mut receiver = LinkReceiver::new(theirs, 9, 1, STALL);
        let error = timeout(STALL, receiver.receive(Span::new(0, 100))).await.unwrap().unwrap_err();
        assert_eq!(error.reaction, Reaction::Replan, "{error}");
        assert!(error.message.contains("pieces") || error.message.contains("instead of"), "{error}");
    }
}

#[tokio::test]
async fn one_connection_carries_one_link_after_another() {
    let (mut ours, mut theirs) = connection(None).await;
    for link in 0..3u32 {
        let mut sender = LinkSender::new(ours, link, 1, STALL);
        sender.send(Span::new(0, 5), b"slice").await.unwrap();
        sender.end().await.unwrap();
        ours = sender.into_frames().unwrap();
        // The following frames are read ahead and must not be lost.
        ours.send_hello(&super::hello(link)).await.unwrap();
        let mut receiver = LinkReceiver::new(theirs, link, 1, STALL);
        assert_eq!(receiver.receive(Span::new(0, 5)).await.unwrap(), "slice");
        receiver.end().await.unwrap();
        theirs = receiver.into_frames().unwrap();
        assert_eq!(theirs.read_hello().await.unwrap().link, link);
    }
    drop(ours);
    assert!(theirs.read_frame(&mut BytesMut::new()).await.is_err());
}
