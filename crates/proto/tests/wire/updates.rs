//! Connections for updates in place: packets of all sizes in both directions, and peers that do not keep to the format.

use super::{Cluster, agent, listen, net};
use bytes::BytesMut;
use std::{collections::BTreeMap, sync::Arc, time::Duration};
use tokio::time::timeout;
use weft_proto::{
    Accepted, FrameError, FrameStream, Incoming, LinkToken, MemoryNet, Net, Opening, PROTOCOL, Peer, Security, UpdatesHello,
    frame::{Header, Kind},
    updates::{
        Found, HeadMax, Hop, LoadHead, LoadId, LoadPart, OPEN_READ_BYTES_MAX, OpenRead, Packet, Part, PartRef, ReadRefusal,
        Route, UPDATE_BYTES_MAX, UpdateClient, UpdateReader, UpdateRequest, UpdateWriter, accept, dial, pieces_of,
    },
};
use weft_types::{BlockId, ClusterId, Error, Reaction, Result, Span, StripeId};
use weft_update::{Incarnation, Message, NotRun, Part as Range, Record, Report, Session, Stamp, Told, UpdateId, Version};

const CLUSTER: ClusterId = ClusterId(1);

fn block(index: u8) -> BlockId {
    BlockId { stripe: StripeId(7), index, copy: 0, generation: 1 }
}

fn id(counter: u64) -> UpdateId {
    UpdateId { session: Session { number: 9, ends_at_ms: 1000 }, counter, lead: 0 }
}

fn part(stream: u8, len: usize) -> Part {
    Part { stream, start: u64::from(stream) * 100, bytes: (0..len).map(|at| (at * 7 + usize::from(stream)) as u8).collect() }
}

fn request(counter: u64, parts: Vec<Part>) -> UpdateRequest {
    UpdateRequest { block: block(0), id: id(counter), term: 3, token: LinkToken([5; 32]), parts, route: None }
}

fn record(parts: Vec<Range>) -> Arc<Record> {
    Arc::new(Record { id: id(1), term: 3, participants: vec![block(0), block(2)], parts })
}

fn hello(from: Option<&str>, to: &str) -> UpdatesHello {
    UpdatesHello { cluster: CLUSTER, from: from.map(str::to_owned), to: to.to_owned() }
}

/// Accepts the next connection for updates.
async fn accepted(incoming: &mut Incoming, head_max: HeadMax) -> Result<(UpdateReader, UpdateWriter), FrameError> {
    let Accepted { stream, peer, .. } = incoming.next().await.unwrap();
    let mut frames = FrameStream::new(stream);
    match frames.read_opening().await? {
        Opening::Updates(hello) => accept(frames, &hello, &peer, head_max).await,
        Opening::Link(_) => panic!("a link was announced"),
    }
}

/// A client's connection to agent `a`: the client, what `a` receives, and what `a` sends.
async fn to_agent() -> (UpdateClient, UpdateReader, UpdateWriter) {
    let (address, mut incoming) = listen(Security::Insecure).await;
    let net = net();
    let dialled = UpdateClient::dial(net.as_ref(), &Security::Insecure, &address, "a", CLUSTER);
    let (client, accepted) = tokio::join!(dialled, accepted(&mut incoming, HeadMax::Small));
    let (reader, writer) = accepted.unwrap();
    (client.unwrap(), reader, writer)
}

/// A connection of agent `b` to agent `a`: what `a` receives, and what `b` sends.
async fn between_agents() -> (UpdateReader, UpdateWriter) {
    let (address, mut incoming) = listen(Security::Insecure).await;
    let (net, hello) = (net(), hello(Some("b"), "a"));
    let dialled = dial(net.as_ref(), &Security::Insecure, &address, &hello, HeadMax::Large);
    let (dialled, accepted) = tokio::join!(dialled, accepted(&mut incoming, HeadMax::Large));
    (accepted.unwrap().0, dialled.unwrap().1)
}

type Frames = Vec<(Header, Vec<u8>)>;

/// Both ends of a connection for updates; the dialling one speaks in frames.
async fn raw() -> (UpdateReader, FrameStream) {
    let net = MemoryNet::default();
    let listener = net.listen("127.0.0.1:0").await.unwrap();
    let address = listener.local_address().unwrap();
    let mut incoming = Incoming::start(listener, Security::Insecure);
    let dialled = async {
        let mut frames = FrameStream::new(net.connect(&address).await.unwrap());
        let mut payload = Vec::new();
        payload.extend(PROTOCOL.oldest.to_le_bytes());
        payload.extend(PROTOCOL.newest.to_le_bytes());
        payload.extend([0; 8]);
        payload.extend(postcard_of_hello());
        let header = Header { kind: Kind::Updates, more: false, link: 0, span: Span::new(0, 0), payload_len: payload.len() };
        frames.write_frame(&header, &payload).await.unwrap();
        frames.read_hello_ack(0).await.unwrap();
        frames
    };
    let (frames, accepted) = tokio::join!(dialled, accepted(&mut incoming, HeadMax::Small));
    (accepted.unwrap().0, frames)
}

/// As documented: the cluster as text, no name, the name `a`.
fn postcard_of_hello() -> Vec<u8> {
    let cluster = CLUSTER.to_string();
    [&[cluster.len() as u8], cluster.as_bytes(), &[0, 1, b'a']].concat()
}

fn update(more: bool, total: u64, payload_len: usize) -> Header {
    Header { kind: Kind::Update, more, link: 0, span: Span::new(0, total), payload_len }
}

#[tokio::test]
async fn messages_arrive_in_order_with_their_bytes_whatever_their_length() {
    let (mut reader, mut writer) = between_agents().await;
    let stamp = Stamp { stream: 0, incarnation: Incarnation::default(), term: 3, watermark: 4 };
    let range = Range { stream: 0, number: 5, incarnation: Incarnation::default(), span: Span::new(0, 9) };
    let records = (0..2000).map(|counter| {
        (id(counter), (Arc::new(Record { id: id(counter), ..(*record(vec![range])).clone() }), weft_update::Claim::Refused))
    });
    let report = Report { records: records.collect(), ..Report::default() };
    let messages = [
        (Message::Watermark { stamp }, vec![]),
        (Message::Prepare { stamp, record: record(vec![range]), crcs: BTreeMap::new() }, vec![part(0, 4096)]),
        (Message::Reported { term: 3, incarnation: Incarnation::default(), report }, vec![]),
        (
            Message::Prepare { stamp, record: record(vec![range]), crcs: BTreeMap::new() },
            vec![part(0, 1), part(3, UPDATE_BYTES_MAX - 1)],
        ),
        (Message::Prepare { stamp, record: record(vec![range]), crcs: BTreeMap::new() }, vec![part(1, 20_000), part(2, 17)]),
        (Message::SealKnown { term: 3 }, vec![]),
    ];
    let sent = messages.clone();
    let sending = tokio::spawn(async move {
        for (message, parts) in sent {
            let parts: Vec<PartRef<'_>> = parts.iter().map(Part::as_part_ref).collect();
            writer.feed(&Packet::Message { from: block(0), to: block(2), message }, &parts).await.unwrap();
        }
        writer.flush().await.unwrap();
        writer
    });
    for (message, parts) in messages {
        let (packet, received) = reader.next().await.unwrap();
        assert!(packet == Packet::Message { from: block(0), to: block(2), message }, "another message arrived");
        assert!(received == parts, "other bytes arrived");
    }
    drop(sending.await.unwrap());
    assert!(matches!(reader.next().await, Err(FrameError::Closed)));
}

#[tokio::test]
async fn what_is_too_long_or_invalid_is_not_sent_and_harms_nothing() {
    let (mut reader, mut writer) = between_agents().await;
    let known = Packet::Message { from: block(0), to: block(2), message: Message::SealKnown { term: 3 } };
    let long = part(0, UPDATE_BYTES_MAX + 1);
    let (some, other) = (part(1, 5), part(0, 5));
    let empty = PartRef { stream: 0, start: 0, bytes: &[] };
    let beyond = PartRef { stream: 0, start: u64::MAX, bytes: &[1] };
    let wrong = [vec![long.as_part_ref()], vec![some.as_part_ref(), other.as_part_ref()], vec![empty], vec![beyond]];
    for parts in wrong {
        assert!(matches!(writer.feed(&known, &parts).await, Err(FrameError::Unexpected(_))));
    }
    writer.feed(&known, &[]).await.unwrap();
    writer.flush().await.unwrap();
    assert_eq!(reader.next().await.unwrap(), (known, vec![]));
}

#[tokio::test]
async fn packets_that_are_not_as_announced_end_the_connection_before_memory_is_allocated() {
    let limit = 4 + (64 << 10) + UPDATE_BYTES_MAX as u64;
    let garbage = [&6u32.to_le_bytes()[..], &[0xff; 6]].concat();
    let table: [(&str, Frames, &str); 9] = [
        ("too long", vec![(update(true, limit + 1, 8), vec![0; 8])], "are allowed"),
        ("longer than announced", vec![(update(false, 7, 8), vec![0; 8])], "do not add up"),
        ("shorter than announced", vec![(update(false, 9, 8), vec![0; 8])], "do not add up"),
        ("an empty piece", vec![(update(true, 9, 0), vec![])], "do not add up"),
        ("another length in between", vec![(update(true, 9, 8), vec![0; 8]), (update(false, 10, 2), vec![0; 2])], "no part of"),
        (
            "another kind in between",
            vec![(update(true, 9, 8), vec![0; 8]), (Header { kind: Kind::Data, ..update(false, 9, 1) }, vec![0])],
            "no part of",
        ),
        ("no head", vec![(update(false, 3, 3), vec![0; 3])], "no head"),
        ("a head beyond the end", vec![(update(false, 8, 8), [9, 0, 0, 0, 1, 2, 3, 4].to_vec())], "head is too long"),
        ("a head that is none", vec![(update(false, 10, 10), garbage)], "cannot be decoded"),
    ];
    for (case, sent, expected) in table {
        let (mut reader, mut frames) = raw().await;
        for (header, payload) in sent {
            frames.write_frame(&header, &payload).await.unwrap();
        }
        let error = timeout(Duration::from_secs(5), reader.next()).await.unwrap().unwrap_err();
        assert!(error.to_string().contains(expected), "{case}: {error}");
    }
    let (mut reader, mut frames) = raw().await;
    frames.write_frame(&update(true, 20, 4), &[0; 4]).await.unwrap();
    drop(frames);
    let error = reader.next().await.unwrap_err();
    assert!(matches!(error, FrameError::Truncated | FrameError::Closed), "{error}");
}

#[tokio::test]
async fn records_without_parts_are_refused() {
    let stamp = Stamp { stream: 0, incarnation: Incarnation::default(), term: 3, watermark: 4 };
    let range = |stream, span| Range { stream, number: 5, incarnation: Incarnation::default(), span };
    let fine = Span::new(0, 1);
    for parts in [vec![], vec![range(1, fine), range(0, fine)], vec![range(0, Span::new(2, 1))]] {
        let (mut reader, mut writer) = between_agents().await;
        let message = Message::Commit { stamp, record: record(parts) };
        writer.feed(&Packet::Message { from: block(0), to: block(2), message }, &[]).await.unwrap();
        writer.flush().await.unwrap();
        let error = reader.next().await.unwrap_err();
        assert!(error.to_string().contains("invalid parts"), "{error}");
    }
}

fn route(hops: &[(u8, u8)]) -> Route {
    let hop = |(from, to): &(u8, u8)| Hop { from: block(*from), to: block(*to) };
    Route { hops: hops.iter().map(hop).collect(), in_turn: false, slice_len: 4096 }
}

fn load() -> LoadId {
    LoadId { from: block(0), id: id(1), attempt: 5 }
}

fn head() -> LoadHead {
    LoadHead { route: route(&[(0, 2), (2, 3)]), parts: vec![LoadPart { stream: 0, start: 0, len: 5000 }] }
}

fn prepare() -> Message {
    let stamp = Stamp { stream: 0, incarnation: Incarnation::default(), term: 3, watermark: 4 };
    let range = Range { stream: 0, number: 5, incarnation: Incarnation::default(), span: Span::new(0, 9) };
    Message::Prepare { stamp, record: record(vec![range]), crcs: BTreeMap::new() }
}

#[tokio::test]
async fn what_travels_over_a_route_arrives_as_it_was_sent() {
    let (mut reader, mut writer) = between_agents().await;
    let sent = [
        (Packet::Announced { load: load(), from: block(0), to: block(2), message: prepare() }, vec![]),
        (Packet::Slice { load: load(), to: block(2), number: 0, head: Some(head()) }, vec![part(0, 4096)]),
        (Packet::Slice { load: load(), to: block(2), number: 1, head: None }, vec![part(0, 904)]),
        (Packet::Arrived { load: load(), at: block(2) }, vec![]),
        (Packet::Stuck { load: load(), at: block(3) }, vec![]),
        (Packet::TooLong { from: block(2), to: block(0), id: id(1) }, vec![]),
    ];
    for (packet, parts) in &sent {
        let parts: Vec<PartRef<'_>> = parts.iter().map(Part::as_part_ref).collect();
        writer.feed(packet, &parts).await.unwrap();
    }
    writer.flush().await.unwrap();
    for expected in sent {
        assert!(reader.next().await.unwrap() == expected, "another packet than {:?}", expected.0);
    }
}

#[tokio::test]
async fn what_cannot_travel_is_refused_before_anything_is_kept_of_it() {
    let slice = |number, head| Packet::Slice { load: load(), to: block(2), number, head };
    let other = BlockId { stripe: StripeId(8), ..block(2) };
    let with_route = |route| LoadHead { route, ..head() };
    let with_parts = |parts| LoadHead { parts, ..head() };
    let range = |stream, start, len| LoadPart { stream, start, len };
    let announced = |load, message| Packet::Announced { load, from: block(0), to: block(2), message };
    let elsewhere = LoadId { from: block(1), ..load() };
    let routed =
        Packet::Routed { number: 1, block: block(1), id: id(1), term: 3, token: LinkToken([5; 32]), route: route(&[(0, 2)]) };
    let table = [
        ("the first slice without a head", slice(0, None), true),
        ("a later slice with a head", slice(1, Some(head())), true),
        ("a slice without parts", slice(0, Some(head())), false),
        ("a route that is no tree", slice(0, Some(with_route(route(&[(0, 2), (0, 2)])))), true),
        ("a route from elsewhere", Packet::Slice { load: elsewhere, to: block(2), number: 0, head: Some(head()) }, true),
        ("a route to elsewhere", Packet::Slice { load: load(), to: block(4), number: 0, head: Some(head()) }, true),
        ("no deltas", slice(0, Some(with_parts(vec![]))), true),
        ("deltas out of order", slice(0, Some(with_parts(vec![range(1, 0, 5), range(0, 0, 5)]))), true),
        ("deltas that are too long", slice(0, Some(with_parts(vec![range(0, 0, u64::MAX), range(1, 0, 5)]))), true),
        ("a message that needs no deltas", announced(load(), Message::SealKnown { term: 3 }), false),
        ("a message with bytes", announced(load(), prepare()), true),
        ("a message of another load", announced(elsewhere, prepare()), false),
        ("two stripes", Packet::Stuck { load: load(), at: other }, false),
        ("an arrival with bytes", Packet::Arrived { load: load(), at: block(2) }, true),
        ("a request with the route of another block", routed, true),
    ];
    for (case, packet, has_parts) in table {
        let (mut reader, mut writer) = between_agents().await;
        let some = part(0, 5);
        let parts = if has_parts { vec![some.as_part_ref()] } else { vec![] };
        writer.feed(&packet, &parts).await.unwrap();
        writer.flush().await.unwrap();
        let error = reader.next().await.expect_err(case);
        assert!(error.to_string().contains("invalid packet of updates"), "{case}: {error}");
    }
}

#[tokio::test]
async fn a_request_brings_its_route_if_it_begins_at_its_block() {
    let (client, mut reader, mut writer) = to_agent().await;
    let routed = |hops: &[(u8, u8)]| UpdateRequest { route: Some(route(hops)), ..request(1, vec![part(0, 10)]) };
    let refused = client.request(routed(&[(1, 2)])).await.unwrap_err();
    assert!(refused.reaction == Reaction::InvalidInput && refused.message.contains("not a tree"), "{refused}");
    let answering = async {
        let (packet, parts) = reader.next().await.unwrap();
        let Packet::Routed { number, block: led, route: way, .. } = packet else { panic!("another packet") };
        assert_eq!((led, way, parts), (block(0), route(&[(0, 2), (2, 3)]), vec![part(0, 10)]));
        writer.feed(&Packet::Answer { number, told: Some(Told::Committed) }, &[]).await.unwrap();
        writer.flush().await.unwrap();
    };
    assert_eq!(tokio::join!(client.request(routed(&[(0, 2), (2, 3)])), answering).0, Ok(Told::Committed));
}

#[tokio::test]
async fn a_peer_must_be_who_it_says() {
    let cluster = Cluster::new(1);
    let table = [
        (Peer::Client, None, true),
        (Peer::Client, Some("b"), false),
        (agent("b"), Some("b"), true),
        (agent("b"), Some("c"), false),
        (agent("b"), None, false),
        (Peer::Coordinator, None, false),
    ];
    for (peer, from, is_accepted) in table {
        let (address, mut incoming) = listen(cluster.security(&agent("a"))).await;
        let (net, security, hello) = (net(), cluster.security(&peer), hello(from, "a"));
        let dialled = dial(net.as_ref(), &security, &address, &hello, HeadMax::Small);
        let (dialled, accepted) = tokio::join!(dialled, accepted(&mut incoming, HeadMax::Small));
        assert_eq!((dialled.is_ok(), accepted.is_ok()), (is_accepted, is_accepted), "{peer} as {from:?}");
        if let Err(error) = dialled {
            assert!(error.message.contains("but") && error.message.contains("connected"), "{error}");
        }
    }
    let (address, _incoming) = listen(cluster.security(&agent("a"))).await;
    let elsewhere = dial(net().as_ref(), &cluster.security(&Peer::Client), &address, &hello(None, "x"), HeadMax::Small).await;
    assert!(elsewhere.is_err(), "agent a was taken for agent x");
}

#[tokio::test]
async fn another_version_is_answered_with_both() {
    let (address, mut incoming) = listen(Security::Insecure).await;
    let mut frames = FrameStream::new(net().connect(&address).await.unwrap());
    let payload = [&9u16.to_le_bytes()[..], &9u16.to_le_bytes(), &[0; 8], b"as in version 9"].concat();
    let header = Header { kind: Kind::Updates, more: false, link: 0, span: Span::new(0, 0), payload_len: payload.len() };
    // What a connection without TLS begins with.
    frames.write_frame(&header, &payload).await.unwrap();
    let Err(refused) = accepted(&mut incoming, HeadMax::Small).await else { panic!("version 9 was accepted") };
    let told = frames.read_hello_ack(0).await.unwrap_err().to_string();
    for text in [told, refused.to_string()] {
        assert!(text.contains("version 9") && text.contains(&PROTOCOL.to_string()), "{text}");
    }
}

/// Answers each request with what its counter says, the newest of ten first.
async fn answer_tens(mut reader: UpdateReader, mut writer: UpdateWriter) {
    let mut requests = Vec::new();
    while let Ok((packet, parts)) = reader.next().await {
        let Packet::Request { number, id, .. } = packet else { panic!("not a request") };
        let expected = part(0, parts[0].bytes.len());
        assert!(parts[0] == expected, "other bytes arrived");
        requests.push((number, id.counter));
        if requests.len() == 10 {
            for (number, counter) in requests.drain(..).rev() {
                writer.feed(&Packet::Answer { number, told: Some(told(counter)) }, &[]).await.unwrap();
            }
            writer.flush().await.unwrap();
        }
    }
}

fn told(counter: u64) -> Told {
    [Told::Committed, Told::Aborted, Told::Expired, Told::NotRun(NotRun::Busy)][counter as usize % 4]
}

#[tokio::test]
async fn many_requests_are_under_way_on_one_connection() {
    let cluster = Cluster::new(1);
    for secured in [false, true] {
        let security = |peer: &Peer| if secured { cluster.security(peer) } else { Security::Insecure };
        let (address, mut incoming) = listen(security(&agent("a"))).await;
        let (net, dialling) = (net(), security(&Peer::Client));
        let dialled = UpdateClient::dial(net.as_ref(), &dialling, &address, "a", CLUSTER);
        let (client, accepted) = tokio::join!(dialled, accepted(&mut incoming, HeadMax::Small));
        let (client, (reader, writer)) = (Arc::new(client.unwrap()), accepted.unwrap());
        tokio::spawn(answer_tens(reader, writer));
        let requests = (0..200u64).map(|counter| {
            let (client, len) = (Arc::clone(&client), if counter % 20 == 0 { UPDATE_BYTES_MAX } else { 4096 });
            // Ten of the largest exceed the bytes that may be under way, so some wait; the agent answers ten at a time.
            tokio::spawn(async move { (counter, client.request(request(counter, vec![part(0, len)])).await) })
        });
        for request in requests.collect::<Vec<_>>() {
            let (counter, answer) = timeout(Duration::from_secs(20), request).await.unwrap().unwrap();
            assert_eq!(answer, Ok(told(counter)));
        }
        assert!(!client.is_broken());
        let long = client.request(request(0, vec![part(0, UPDATE_BYTES_MAX), part(1, 1)])).await.unwrap_err();
        assert_eq!(long.reaction, Reaction::InvalidInput);
        let twice = client.request(request(0, vec![part(1, 4), part(1, 4)])).await.unwrap_err();
        assert_eq!((twice.reaction, twice.block), (Reaction::InvalidInput, Some(block(0))));
    }
}

fn read(start: u64, len: u64) -> OpenRead {
    let (term, token, range) = (3, LinkToken([5; 32]), Span::new(start, start + len));
    OpenRead { block: block(0), term, ends_at_ms: 99, token, range, since: None, must_confirm: true }
}

#[tokio::test]
async fn a_read_returns_the_bytes_that_were_asked_for_or_the_reason() {
    let (client, mut reader, mut writer) = to_agent().await;
    let version = || Version { term: 3, trimmed: 1, numbers: vec![2] };
    let served = |bytes: &[u8]| Found::Served { version: version(), crc: weft_proto::crc32c(bytes) };
    let bytes = part(0, 50).bytes;
    let of = |start, bytes: &[u8]| vec![Part { stream: 0, start, bytes: bytes.to_vec().into() }];
    let answers = vec![
        (served(&bytes), of(100, &bytes)),
        (Found::Unchanged, vec![]),
        (Found::Refused(ReadRefusal::Busy), vec![]),
        (served(&bytes[1..]), of(100, &bytes)),
        (served(&bytes), of(101, &bytes)),
        (served(&bytes[..9]), of(100, &bytes[..9])),
    ];
    let answering = tokio::spawn(async move {
        for (found, parts) in answers {
            let Ok((Packet::Read { number, read: asked }, none)) = reader.next().await else { panic!("no read") };
            assert_eq!((asked, none), (read(100, 50), vec![]));
            let parts: Vec<PartRef<'_>> = parts.iter().map(Part::as_part_ref).collect();
            writer.feed(&Packet::Content { number, found }, &parts).await.unwrap();
            writer.flush().await.unwrap();
        }
        (reader, writer)
    });
    let mut got = Vec::new();
    for _ in 0..6 {
        got.push(client.read(read(100, 50)).await);
    }
    assert_eq!(got[0], Ok((served(&bytes), bytes.to_vec())));
    assert_eq!(got[1], Ok((Found::Unchanged, vec![])));
    assert_eq!(got[2], Ok((Found::Refused(ReadRefusal::Busy), vec![])));
    for (wrong, says) in [(3, "checksum"), (4, "another range"), (5, "another range")] {
        let error = got[wrong].clone().unwrap_err();
        assert!(error.reaction == Reaction::Retry && error.message.contains(says), "{error}");
    }
    for len in [0, OPEN_READ_BYTES_MAX + 1] {
        assert_eq!(client.read(read(0, len)).await.unwrap_err().reaction, Reaction::InvalidInput);
    }
    // An answer without the bytes that it names ends the connection.
    let (_reader, mut writer) = answering.await.unwrap();
    writer.feed(&Packet::Content { number: 6, found: served(&bytes) }, &[]).await.unwrap();
    writer.flush().await.unwrap();
    let error = timeout(Duration::from_secs(5), client.read(read(0, 1))).await.unwrap().unwrap_err();
    assert!(error.message.contains("do not fit") && client.is_broken(), "{error}");
}

#[test]
fn long_ranges_are_read_in_pieces() {
    let pieces = |start, end| pieces_of(Span::new(start, end)).collect::<Vec<_>>();
    assert_eq!(pieces(5, 6), [Span::new(5, 6)]);
    assert_eq!(pieces(5, 5), []);
    let (first, last) = (5 + OPEN_READ_BYTES_MAX, 6 + OPEN_READ_BYTES_MAX);
    assert_eq!(pieces(5, last), [Span::new(5, first), Span::new(first, last)]);
}

#[tokio::test]
async fn when_the_connection_breaks_all_waiting_requests_fail_and_later_ones_do_at_once() {
    let (client, mut reader, mut writer) = to_agent().await;
    let client = Arc::new(client);
    let waiting: Vec<_> = (0..5)
        .map(|counter| {
            let client = Arc::clone(&client);
            tokio::spawn(async move { client.request(request(counter, vec![part(0, 10)])).await })
        })
        .collect();
    // An outcome that the agent cannot tell, and a request that is given up, hold up no others.
    assert!(timeout(Duration::from_millis(20), client.request(request(9, vec![part(0, 10)]))).await.is_err());
    for _ in 0..6 {
        reader.next().await.unwrap();
    }
    let asking = client.request(request(6, vec![part(0, 10)]));
    let answering = async {
        let Packet::Request { number, .. } = reader.next().await.unwrap().0 else { panic!("not a request") };
        writer.feed(&Packet::Answer { number, told: None }, &[]).await.unwrap();
        writer.flush().await.unwrap();
    };
    let unknown = tokio::join!(asking, answering).0.unwrap_err();
    assert!(unknown.reaction == Reaction::Retry && unknown.message.contains("cannot tell"), "{unknown}");
    assert!(!client.is_broken());
    drop((reader, writer));
    for waiting in waiting {
        let error: Error = timeout(Duration::from_secs(5), waiting).await.unwrap().unwrap().unwrap_err();
        assert_eq!((error.reaction, error.block), (Reaction::Retry, Some(block(0))), "{error}");
        assert!(error.message.contains("agent a"), "{error}");
    }
    assert!(client.is_broken());
    let late = timeout(Duration::from_secs(5), client.request(request(7, vec![part(0, 10)]))).await.unwrap();
    assert_eq!(late.unwrap_err().reaction, Reaction::Retry);
}

#[tokio::test]
async fn a_client_that_is_dropped_closes_its_connection() {
    let (client, mut reader, _writer) = to_agent().await;
    drop(client);
    let ended = timeout(Duration::from_secs(5), reader.next()).await.unwrap();
    assert!(matches!(ended, Err(FrameError::Closed)));
}

#[tokio::test]
async fn the_bytes_of_a_packet_are_as_documented() {
    let (net, _) = (MemoryNet::default(), ());
    let listener = net.listen("127.0.0.1:0").await.unwrap();
    let address = listener.local_address().unwrap();
    let answering = async {
        let mut incoming = Incoming::start(listener, Security::Insecure);
        let mut frames = FrameStream::new(incoming.next().await.unwrap().stream);
        let mut hello = BytesMut::new();
        let header = frames.read_frame(&mut hello).await.unwrap();
        assert_eq!((header.kind, &hello[12..]), (Kind::Updates, &postcard_of_hello()[..]));
        let ack = Header { kind: Kind::HelloAck, ..header };
        frames.write_frame(&Header { payload_len: 12, ..ack }, &hello[..12]).await.unwrap();
        let mut packet = BytesMut::new();
        let header = frames.read_frame(&mut packet).await.unwrap();
        (header, packet)
    };
    let asking = async {
        let client = UpdateClient::dial(&net, &Security::Insecure, &address, "a", CLUSTER).await.unwrap();
        _ = timeout(Duration::from_millis(500), client.request(request(6, vec![part(0, 3)]))).await;
    };
    let ((header, packet), ()) = tokio::join!(answering, asking);
    let mut head = vec![1, 0, 7, 0, 0, 1, 9, 0xe8, 7, 6, 0, 3];
    head.extend([5; 32]);
    head.extend([1, 0, 0, 3]);
    let expected = [&(head.len() as u32).to_le_bytes()[..], &head, &part(0, 3).bytes].concat();
    assert_eq!(packet, expected);
    assert_eq!(header, update(false, expected.len() as u64, expected.len()));
}
