//! Deltas that travel over routes, on real agents: each scheme's way, what fails on it, and what bytes may count.

use crate::cluster::{
    CLUSTER, Cluster, Options, Stripe, Wires,
    updates::{Updated, node_of, part},
};
use std::{sync::Arc, time::Duration};
use tokio::{
    sync::mpsc,
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};
use weft_agent::Limits;
use weft_proto::{
    FrameStream, Incoming, Opening, Security, UpdatesHello,
    updates::{HeadMax, Hop, Packet, Part, PartRef, Route, UpdateWriter, accept, dial},
};
use weft_types::{ByteSize, NodeId};
use weft_update::{Message, NotRun, Told};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
/// Of the updates here.
const LEN: usize = 150 * KIB;
const SLICE: u32 = 8 << 10;
/// A slow link, and how long an update takes on it.
const SLOW: f64 = (512 * KIB) as f64;
const WHOLE: Duration = Duration::from_millis(293);

/// Two data blocks and three parities, on five agents.
fn options() -> Options {
    let limits = Limits { update_journal: ByteSize(16 << 20), ..Limits::default() };
    Options { limits, ..Options::agents(5) }.simulated().wired()
}

fn stripe() -> Stripe {
    Stripe::new(1, "rs(2,3)", MIB as u64, 2 * MIB as u64)
}

fn route(stripe: &Stripe, hops: &[(u8, u8)]) -> Route {
    let hop = |(from, to): &(u8, u8)| Hop { from: stripe.block(*from, 1), to: stripe.block(*to, 1) };
    Route { hops: hops.iter().map(hop).collect(), in_turn: false, slice_len: SLICE }
}

const PIPELINE: [(u8, u8); 3] = [(0, 2), (2, 3), (3, 4)];

/// The address of the agent with block `index`.
fn address(cluster: &Cluster, index: u8) -> String {
    cluster.coordinator.member(NodeId(u32::from(index) + 1)).unwrap().request.data_address
}

fn wires(cluster: &Cluster, index: u8) -> &Wires {
    &cluster.options.wires[&(u32::from(index) + 1)]
}

/// The bytes that the agent of one block has sent to that of another, in KiB.
fn sent(cluster: &Cluster, from: u8, to: u8) -> u64 {
    wires(cluster, from).sent(&address(cluster, to)) >> 10
}

/// An update over a route, until its answer; the time that it took.
async fn run(updated: &mut Updated<'_>, parts: Vec<Part>, route: Route) -> (Told, Duration) {
    let begin = Instant::now();
    let told = finish(updated.start_routed(&parts, route).await.1).await;
    if told == Told::Committed {
        updated.apply(&parts);
    }
    (told, begin.elapsed())
}

async fn finish(asked: JoinHandle<weft_types::Result<Told>>) -> Told {
    timeout(Duration::from_secs(60), asked).await.expect("the update ends").unwrap().unwrap()
}

async fn check(mut updated: Updated<'_>) {
    let settled = updated.settle(&[]).await;
    updated.check(&settled);
}

#[tokio::test(start_paused = true)]
async fn a_pipeline_sends_each_delta_once_over_each_link_and_relays_do_not_wait_for_all_of_it() {
    let cluster = Cluster::start(options()).await;
    let mut updated = Updated::start(&cluster, stripe()).await;
    (0..5).for_each(|index| wires(&cluster, index).slow_down(SLOW));
    let way = route(&updated.stripe, &PIPELINE);
    let (told, time) = run(&mut updated, vec![part(0, 1000, LEN, 1)], way).await;
    assert_eq!(told, Told::Committed);
    assert!(time > WHOLE && time < WHOLE.mul_f64(1.3), "{time:?} for {WHOLE:?} on each link");
    for (from, to, kib) in [(0, 2, 150), (2, 3, 150), (3, 4, 150), (0, 3, 0), (0, 4, 0), (0, 1, 0)] {
        let sent = sent(&cluster, from, to);
        assert!((kib..kib + 15).contains(&sent), "{sent} KiB from {from} to {to}");
    }
    check(updated).await;
}

#[tokio::test(start_paused = true)]
async fn a_tree_carries_the_deltas_of_several_blocks_and_others_get_theirs_straight() {
    let cluster = Cluster::start(options()).await;
    let mut updated = Updated::start(&cluster, stripe()).await;
    let parts = || vec![part(0, 77, 75 * KIB, 1), part(1, 500, 75 * KIB, 2)];
    let way = route(&updated.stripe, &[(0, 3), (0, 2), (3, 4)]);
    assert_eq!(run(&mut updated, parts(), way).await.0, Told::Committed);
    // The new bytes of block 1 go there once, and its delta as well.
    for (from, to, kib) in [(0, 3, 150), (0, 2, 150), (3, 4, 150), (0, 4, 0), (2, 4, 0), (0, 1, 150)] {
        let sent = sent(&cluster, from, to);
        assert!((kib..kib + 15).contains(&sent), "{sent} KiB from {from} to {to}");
    }
    // A route over the other data block, which needs its own delta only, and passes on both.
    let way = route(&updated.stripe, &[(0, 1), (1, 2), (1, 3), (3, 4)]);
    let more = vec![part(0, 4096, 5000, 3), part(1, 9000, 7, 4)];
    assert_eq!(run(&mut updated, more, way).await.0, Told::Committed);
    check(updated).await;
}

#[tokio::test(start_paused = true)]
async fn a_star_in_turn_sends_to_one_node_after_another() {
    let cluster = Cluster::start(options()).await;
    let mut updated = Updated::start(&cluster, stripe()).await;
    (0..5).for_each(|index| wires(&cluster, index).slow_down(SLOW));
    let star = Route { slice_len: MIB as u32, ..route(&updated.stripe, &[(0, 2), (0, 3), (0, 4)]) };
    let (told, time) = run(&mut updated, vec![part(0, 0, LEN, 1)], Route { in_turn: true, ..star.clone() }).await;
    assert_eq!(told, Told::Committed);
    assert!(time > WHOLE * 3 && time < WHOLE.mul_f64(3.3), "{time:?} for {WHOLE:?} on each link");
    // The same links at the same time.
    let (told, time) = run(&mut updated, vec![part(0, 0, LEN, 2)], star).await;
    assert_eq!(told, Told::Committed);
    assert!(time > WHOLE && time < WHOLE.mul_f64(1.3), "{time:?} for {WHOLE:?} on each link");
    // A path with one long slice for all of it.
    let path = Route { slice_len: 2 * MIB as u32, ..route(&updated.stripe, &PIPELINE) };
    let (told, time) = run(&mut updated, vec![part(0, 0, LEN, 4)], path).await;
    assert_eq!(told, Told::Committed);
    assert!(time > WHOLE * 3 && time < WHOLE.mul_f64(3.3), "{time:?} for {WHOLE:?} on each link");
    // A relay has everything before it sends.
    let way = Route { in_turn: true, ..route(&updated.stripe, &[(0, 2), (2, 3), (2, 4)]) };
    let (told, time) = run(&mut updated, vec![part(0, 0, LEN, 3)], way).await;
    assert_eq!(told, Told::Committed);
    assert!(time > WHOLE * 3 && time < WHOLE.mul_f64(3.3), "{time:?} for {WHOLE:?} on each link");
    check(updated).await;
}

/// The connection breaks in the middle of the load, and none can be made any more: at the origin, and at a relay. What is behind gets the deltas
/// straight, without a wait for the reminder.
#[tokio::test(start_paused = true)]
async fn what_a_route_does_not_reach_gets_its_deltas_straight() {
    for (from, to) in [(2, 3), (3, 4)] {
        let cluster = Cluster::start(options()).await;
        let mut updated = Updated::start(&cluster, stripe()).await;
        wires(&cluster, from).cut_after(&address(&cluster, to), 50 << 10);
        let way = route(&updated.stripe, &PIPELINE);
        let (told, time) = run(&mut updated, vec![part(0, 0, LEN, 1)], way).await;
        assert_eq!(told, Told::Committed);
        assert!(wires(&cluster, from).is_cut(&address(&cluster, to)));
        assert!(time < Duration::from_millis(900), "{time:?}: it waited for the reminder");
        for straight in to..5 {
            assert!((150..165).contains(&sent(&cluster, 0, straight)), "{} KiB to {straight}", sent(&cluster, 0, straight));
        }
        check(updated).await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_update_over_a_relay_that_is_killed_ends_when_that_returns() {
    let mut cluster = Cluster::start(options()).await;
    let (parts, id, asked, term, session) = {
        let mut updated = Updated::start(&cluster, stripe()).await;
        (0..5).for_each(|index| wires(&cluster, index).slow_down(SLOW));
        let (way, parts) = (route(&updated.stripe, &PIPELINE), vec![part(0, 0, LEN, 1)]);
        let (id, asked) = updated.start_routed(&parts, way).await;
        sleep(Duration::from_millis(150)).await;
        (parts, id, asked, updated.term.clone(), updated.session)
    };
    // In the middle of the load.
    assert!((20..130).contains(&sent(&cluster, 2, 3)), "{} KiB", sent(&cluster, 2, 3));
    cluster.kill_agent(3).await;
    cluster.start_agent(3).await;
    drop(asked);
    let mut updated = Updated::resume(&cluster, stripe(), term, session, 1);
    updated.finish(id, &parts).await;
    check(updated).await;
}

/// Takes the place of the agent with block 2 towards the leader: passes on what `change` makes of each packet.
struct Between {
    _task: JoinHandle<()>,
    /// The kinds of packets that were passed on.
    passed: mpsc::UnboundedReceiver<&'static str>,
}

type Change = Box<dyn FnMut(Packet, Vec<Part>) -> Vec<(Packet, Vec<Part>)> + Send>;

async fn between(cluster: &Cluster, mut change: Change) -> Between {
    let listener = cluster.options.net.listen("127.0.0.1:0").await.unwrap();
    let (real, ours) = (address(cluster, 2), listener.local_address().unwrap());
    wires(cluster, 0).lead(&real, &ours);
    let (net, (told, passed)) = (Arc::clone(&cluster.options.net), mpsc::unbounded_channel());
    let task = tokio::spawn(async move {
        let mut incoming = Incoming::start(listener, Security::Insecure);
        while let Some(accepted) = incoming.next().await {
            let mut frames = FrameStream::new(accepted.stream);
            let Opening::Updates(hello) = frames.read_opening().await.unwrap() else { panic!("a link") };
            let (mut reader, _answers) = accept(frames, &hello, &accepted.peer, HeadMax::Large).await.unwrap();
            let (_reader, mut writer) = dial(net.as_ref(), &Security::Insecure, &real, &hello, HeadMax::Small).await.unwrap();
            while let Ok((packet, parts)) = reader.next().await {
                for (packet, parts) in change(packet, parts) {
                    feed(&mut writer, &packet, &parts).await;
                    told.send(name(&packet)).unwrap();
                }
            }
        }
    });
    Between { _task: task, passed }
}

async fn feed(writer: &mut UpdateWriter, packet: &Packet, parts: &[Part]) {
    let parts: Vec<PartRef<'_>> = parts.iter().map(Part::as_part_ref).collect();
    writer.feed(packet, &parts).await.unwrap();
    writer.flush().await.unwrap();
}

fn name(packet: &Packet) -> &'static str {
    match packet {
        Packet::Message { message: Message::Prepare { .. }, .. } => "prepare",
        Packet::Announced { .. } => "announced",
        Packet::Slice { .. } => "slice",
        _ => "other",
    }
}

/// One bit, in a packet whose own checksums are right.
#[tokio::test(start_paused = true)]
async fn altered_bytes_are_never_committed_and_the_update_still_is() {
    let cluster = Cluster::start(options()).await;
    let mut updated = Updated::start(&cluster, stripe()).await;
    let alter = |packet: Packet, mut parts: Vec<Part>| {
        if let Packet::Slice { number: 5, .. } = packet {
            let mut bytes = parts[0].bytes.to_vec();
            bytes[777] ^= 0x10;
            parts[0].bytes = bytes.into();
        }
        vec![(packet, parts)]
    };
    let mut between = between(&cluster, Box::new(alter)).await;
    let way = route(&updated.stripe, &PIPELINE);
    let (told, time) = run(&mut updated, vec![part(0, 0, LEN, 1)], way).await;
    assert_eq!(told, Told::Committed);
    assert!(time < Duration::from_millis(900), "{time:?}: it waited for the reminder");
    let mut passed = Vec::new();
    while let Ok(name) = between.passed.try_recv() {
        passed.push(name);
    }
    assert!(passed.contains(&"slice") && passed.contains(&"prepare"), "{passed:?}");
    check(updated).await;
}

#[tokio::test(start_paused = true)]
async fn a_message_may_come_before_or_after_its_bytes() {
    for is_message_first in [true, false] {
        let cluster = Cluster::start(options()).await;
        let mut updated = Updated::start(&cluster, stripe()).await;
        let (slices, mut held) = (LEN.div_ceil(SLICE as usize) as u32, Vec::new());
        let (mut seen, mut is_message_there) = (0, false);
        let reorder = move |packet: Packet, parts: Vec<Part>| {
            let is_slice = matches!(packet, Packet::Slice { .. });
            seen += u32::from(is_slice);
            let is_announced = matches!(packet, Packet::Announced { .. });
            is_message_there |= is_announced;
            // Slices leave before the delta is computed.
            let is_held = if is_message_first { is_slice && !is_message_there } else { is_announced && seen < slices };
            if is_held {
                held.push((packet, parts));
                return Vec::new();
            }
            let mut passed = vec![(packet, parts)];
            if is_announced || seen == slices {
                passed.append(&mut held);
            }
            passed
        };
        let mut between = between(&cluster, Box::new(reorder)).await;
        let way = route(&updated.stripe, &PIPELINE);
        let (told, time) = run(&mut updated, vec![part(0, 0, LEN, 1)], way).await;
        assert!(told == Told::Committed && time < Duration::from_millis(900), "{told:?} after {time:?}");
        let mut passed = Vec::new();
        while let Ok(name) = between.passed.try_recv() {
            passed.push(name);
        }
        let at = |name: &str| passed.iter().position(|passed| *passed == name);
        assert_eq!(at("announced") < at("slice"), is_message_first, "{passed:?}");
        assert!(!passed.contains(&"prepare"), "the bytes were sent twice");
        check(updated).await;
    }
}

/// Agents send slices for which they are not on the route, repeat some, leave some out, and announce what they do not lead.
#[tokio::test(start_paused = true)]
async fn slices_and_messages_count_only_from_their_place_on_the_route() {
    let cluster = Cluster::start(options()).await;
    let mut updated = Updated::start(&cluster, stripe()).await;
    let seen = Arc::new(std::sync::Mutex::new(Vec::new()));
    let noted = Arc::clone(&seen);
    // Everything of the first update is swallowed, but noted.
    let swallow = move |packet: Packet, parts: Vec<Part>| {
        let is_load = matches!(packet, Packet::Slice { .. } | Packet::Announced { .. });
        if is_load {
            noted.lock().unwrap().push((packet, parts));
            return Vec::new();
        }
        vec![(packet, parts)]
    };
    let between = between(&cluster, Box::new(swallow)).await;
    let way = route(&updated.stripe, &PIPELINE);
    let parts = vec![part(0, 0, LEN, 1)];
    let (_, asked) = updated.start_routed(&parts, way).await;
    sleep(Duration::from_millis(50)).await;
    let seen = std::mem::take(&mut *seen.lock().unwrap());
    assert_eq!(seen.len(), 1 + LEN.div_ceil(SLICE as usize));
    let connect = async |from: &str, to: u8| {
        let member = cluster.coordinator.member(NodeId(u32::from(to) + 1)).unwrap().request;
        let hello = UpdatesHello { cluster: CLUSTER, from: Some(from.to_owned()), to: member.name };
        let net = Arc::clone(&cluster.options.net);
        dial(net.as_ref(), &Security::Insecure, &member.data_address, &hello, HeadMax::Small).await.unwrap()
    };
    let name = |index: u8| cluster.coordinator.member(NodeId(u32::from(index) + 1)).unwrap().request.name;
    // The right packets from agents that are not before block 2 on the route, or of no block at all.
    for from in [name(1), name(3), "node-09".to_owned()] {
        let (_reader, mut writer) = connect(&from, 2).await;
        for (packet, parts) in &seen {
            feed(&mut writer, packet, parts).await;
        }
        sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(sent(&cluster, 2, 3), 0, "slices of others were passed on");
    assert!(!asked.is_finished());
    // From the leader's agent: each slice three times, and those of another agent in between.
    let (_reader, mut writer) = connect(&name(0), 2).await;
    let (_other_reader, mut other) = connect(&name(1), 2).await;
    for (packet, parts) in &seen {
        for _ in 0..3 {
            feed(&mut writer, packet, parts).await;
        }
        feed(&mut other, packet, parts).await;
        sleep(Duration::from_millis(1)).await;
    }
    // Before the reminder.
    assert_eq!(timeout(Duration::from_millis(300), asked).await.unwrap().unwrap(), Ok(Told::Committed));
    assert!((150..165).contains(&sent(&cluster, 2, 3)), "{} KiB", sent(&cluster, 2, 3));
    updated.apply(&parts);
    drop(between);
    check(updated).await;
}

/// A journal of 8 MiB takes updates of 96 KiB. That of the first agent takes a little more than 1 MiB.
#[tokio::test(start_paused = true)]
async fn an_update_that_a_journal_does_not_take_is_refused() {
    let [small, large] = [8, 96].map(|mib| Limits { update_journal: ByteSize(mib << 20), ..Limits::default() });
    let options = Options { limits: small, limits_of: [(1, large)].into(), ..options() };
    let cluster = Cluster::start(Options { agents: 3, ..options }).await;
    let mut updated = Updated::start(&cluster, Stripe::new(1, "rs(2,1)", 2 * MIB as u64, 4 * MIB as u64)).await;
    let long = 1100 * KIB;
    // The journals of a parity, of the leader, and of another data block, which gets new bytes before anything is prepared.
    for (parts, hops) in [
        (vec![part(0, 0, long, 1)], (0, 2)),
        (vec![part(1, 0, long, 1)], (1, 2)),
        (vec![part(0, 0, 4, 1), part(1, 0, long - 4, 1)], (0, 2)),
    ] {
        for is_routed in [true, false] {
            let way = route(&updated.stripe, &[hops]);
            let begin = Instant::now();
            let told = if is_routed {
                run(&mut updated, parts.clone(), way).await.0
            } else {
                let id = updated.next_id(parts[0].stream);
                updated.ask(id, &parts).await.unwrap()
            };
            let time = begin.elapsed();
            assert!(told == Told::NotRun(NotRun::Invalid) && time < Duration::from_millis(500), "{told:?} after {time:?}");
        }
        // Others are not held up.
        updated.commit(vec![part(0, 0, 4096, 3), part(1, 0, 4096, 4)]).await;
    }
    check(updated).await;
}

#[tokio::test(start_paused = true)]
async fn large_deltas_are_not_sent_again_while_they_travel() {
    let cluster = Cluster::start(options()).await;
    let mut updated = Updated::start(&cluster, stripe()).await;
    // It takes 0.9 seconds, and a reminder comes every 0.2.
    (0..5).for_each(|index| wires(&cluster, index).slow_down(SLOW / 3.0));
    updated.commit(vec![part(0, 0, LEN, 1)]).await;
    for to in 2..5 {
        assert!((150..165).contains(&sent(&cluster, 0, to)), "{} KiB to {to}", sent(&cluster, 0, to));
    }
    assert_eq!(node_of(updated.stripe.block(2, 1)), NodeId(3));
    check(updated).await;
}

/// The largest update there is, with journals of 1366 MiB, on real disks. They would slow down the tests that run at the same time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_update_of_16_mib_runs_if_the_journals_are_large_enough() {
    if std::env::var_os("WEFT_LARGE_JOURNALS").is_none() {
        eprintln!("skipped: it writes 3 GiB to the disk; set WEFT_LARGE_JOURNALS=1 to run it");
        return;
    }
    let limits = Limits { update_journal: ByteSize(1366 << 20), ..Limits::default() };
    let cluster = Cluster::start(Options { limits, ..Options::agents(2) }).await;
    let mut updated = Updated::start(&cluster, Stripe::new(1, "rs(1,1)", 16 * MIB as u64, 16 * MIB as u64)).await;
    let way = Route { slice_len: MIB as u32, ..route(&updated.stripe, &[(0, 1)]) };
    assert_eq!(run(&mut updated, vec![part(0, 0, 16 * MIB, 1)], way).await.0, Told::Committed);
    check(updated).await;
}
