//! Deltas that arrive in parts, before their message is handled.

use super::{
    host,
    world::{Body, Setup, To, World, block, only_delta},
};
use crate::{DeltaPart, Limits, Piece, Pieces, flights::Flights};
use std::sync::Arc;
use weft_store::{Journal as _, JournalCounts};
use weft_types::{BlockId, Layout, Result, Span};
use weft_update::{Message, Peer, Sealed, Told, UpdateId, Vector};

const LEN: usize = 90 << 10;
const PARITY: u8 = 2;

/// A Prepare with the delta of one data block for a parity, which was taken out of the network.
struct Prepare {
    from: Peer,
    to: BlockId,
    message: Message,
    stream: u8,
    delta: Arc<Piece>,
}

fn world() -> World {
    let layout = Layout { block_len: 2 << 20, cell_len: 64 << 10, alpha: 1 };
    let setup = Setup { code: "rs(2,1)", layout, missing: 0, stripes: 1, limits: Limits::default(), ring_bytes: 8 << 20 };
    let mut world = World::new(&setup, 1);
    world.faults = (0, 0, 0);
    let data = (0..2).map(|index| (0..2 << 20).map(|at: usize| (at / 7) as u8 ^ index).collect()).collect();
    world.create(&[data]);
    world.open_all();
    world
}

/// An update whose Prepare is under way.
fn prepare(world: &mut World, counter: u64) -> Prepare {
    let new = (0..LEN).map(|at| (at * 3) as u8 ^ counter as u8).collect();
    host::request(world, counter, Pieces::from([(0, host::piece(1000, new))]));
    let is_it = |body: &Body| matches!(body, Body::Protocol { message, pieces, .. } if only_delta(message, pieces).is_some());
    loop {
        let found = world.net.iter().position(|it| it.to == To::Block(block(0, PARITY)) && is_it(&it.body));
        let Some(at) = found else {
            world.deliver(0);
            continue;
        };
        let Body::Protocol { from, message, pieces } = world.net.swap_remove(at).body else { unreachable!() };
        let (_, stream, delta) = only_delta(&message, &pieces).unwrap();
        return Prepare { from, to: block(0, PARITY), message, stream, delta };
    }
}

/// Parts of a delta, and then its message if `is_last`. Returns whether it was taken with what had arrived.
fn arrive(world: &mut World, it: &Prepare, attempt: u32, parts: &[Piece], is_last: bool) -> Option<bool> {
    let (node, mut taken) = (world.home(it.to), None);
    let Message::Prepare { record, .. } = &it.message else { unreachable!() };
    let whole = it.delta.span();
    for piece in parts {
        let part = DeltaPart { id: record.id, attempt, stream: it.stream, whole, piece };
        world.call(node, |updater, now| updater.arrive(it.to, part, now));
    }
    let receive = |updater: &mut crate::Updater, now| -> Result<()> {
        taken = Some(updater.receive_arrived(it.to, it.from, it.message.clone(), now)?);
        Ok(())
    };
    if is_last {
        world.call(node, receive);
    }
    taken
}

fn parts(delta: &Piece) -> Vec<Piece> {
    let part = |at: usize| Piece { start: delta.start + at as u64, bytes: delta.bytes.slice(at..LEN.min(at + (25 << 10))) };
    (0..LEN).step_by(25 << 10).map(part).collect()
}

fn journal(world: &World) -> JournalCounts {
    world.nodes[world.home(block(0, PARITY))].disk.as_ref().unwrap().journal.counts()
}

fn inflight(world: &World) -> u64 {
    world.nodes[world.home(block(0, PARITY))].disk.as_ref().unwrap().updater.inflight_bytes()
}

/// What the parity contains when all is applied.
fn applied(world: &mut World) -> Vec<u8> {
    host::apply(world);
    host::stored(world, block(0, PARITY))
}

/// What it contains after this update, without any of this.
fn expected(counter: u64) -> Vec<u8> {
    let mut world = world();
    let it = prepare(&mut world, counter);
    let pieces = Pieces::from([(it.stream, it.delta)]);
    let node = world.home(it.to);
    world.call(node, |updater, now| updater.receive(it.to, it.from, it.message, pieces, now));
    assert_eq!(host::settle(&mut world), [(counter, Told::Committed)]);
    applied(&mut world)
}

#[test]
fn a_delta_that_arrives_in_parts_is_as_one_that_comes_with_its_message() {
    let mut world = world();
    let it = prepare(&mut world, 1);
    let before = journal(&world);
    assert_eq!(arrive(&mut world, &it, 1, &parts(&it.delta), true), Some(true));
    assert_eq!(host::settle(&mut world), [(1, Told::Committed)]);
    let after = journal(&world);
    assert_eq!((after.records_ahead - before.records_ahead, inflight(&world)), (1, 0));
    // From the journal.
    let node = world.home(it.to);
    restart(&mut world, node);
    assert!(applied(&mut world) == expected(1));
}

#[test]
fn a_record_that_is_synced_first_does_not_change_what_arrives() {
    let mut world = world();
    let it = prepare(&mut world, 1);
    let parts = parts(&it.delta);
    arrive(&mut world, &it, 1, &parts[..2], false);
    let before = journal(&world);
    other_record(&world);
    assert_eq!(arrive(&mut world, &it, 1, &parts[2..], true), Some(true));
    assert_eq!(host::settle(&mut world), [(1, Told::Committed)]);
    assert_eq!(journal(&world).records_ahead - before.records_ahead, 1, "it was begun again");
    assert!(applied(&mut world) == expected(1));
}

/// A record of another update, or of anything else.
fn other_record(world: &World) {
    let journal = &world.nodes[world.home(block(0, PARITY))].disk.as_ref().unwrap().journal;
    let other = journal.append(block(9, 9), &[0; 3000], None).unwrap();
    journal.sync(other).unwrap();
    journal.release(&[other]);
}

#[test]
fn what_arrives_is_not_written_again_and_again() {
    let mut world = world();
    let it = prepare(&mut world, 1);
    let parts = parts(&it.delta);
    let before = journal(&world);
    arrive(&mut world, &it, 1, &parts[..2], false);
    other_record(&world);
    arrive(&mut world, &it, 1, &parts[2..3], false);
    other_record(&world);
    assert_eq!(arrive(&mut world, &it, 1, &parts[3..], true), Some(true));
    assert_eq!(host::settle(&mut world), [(1, Told::Committed)]);
    assert_eq!(journal(&world).records_ahead - before.records_ahead, 0, "more than its length was written in vain");
    assert!(applied(&mut world) == expected(1));
}

#[test]
fn what_arrives_for_a_journal_that_is_half_full_is_written_with_its_record() {
    let mut world = world();
    let it = prepare(&mut world, 1);
    let node = world.home(it.to);
    let journal_of = Arc::clone(&world.nodes[node].disk.as_ref().unwrap().journal);
    while journal_of.fill() < 0.55 {
        let position = journal_of.append(block(9, 9), &[0; 100_000], None).unwrap();
        journal_of.sync(position).unwrap();
    }
    let before = journal(&world);
    assert_eq!(arrive(&mut world, &it, 1, &parts(&it.delta), true), Some(true));
    assert_eq!(host::settle(&mut world), [(1, Told::Committed)]);
    assert_eq!(journal(&world).records_ahead - before.records_ahead, 0);
}

#[test]
fn what_does_not_fit_the_message_is_not_taken() {
    let mut world = world();
    let it = prepare(&mut world, 1);
    let good = parts(&it.delta);
    let mut other = good.clone();
    let mut bytes = other[1].bytes.to_vec();
    bytes[77] ^= 1;
    other[1].bytes = bytes.into();
    for wrong in [&other[..], &good[..3], &good[1..], &[&good[..2], &good[3..]].concat()[..], &good[..0]] {
        assert_eq!(arrive(&mut world, &it, 1, wrong, true), Some(false));
        assert_eq!(inflight(&world), 0);
    }
    // A part of another attempt; then all of a third one, which begins while the second one has not ended.
    arrive(&mut world, &it, 1, &good[..2], false);
    assert_eq!(arrive(&mut world, &it, 2, &good[2..], true), Some(false));
    arrive(&mut world, &it, 1, &good[..2], false);
    assert_eq!((arrive(&mut world, &it, 2, &good[..1], false), inflight(&world)), (None, LEN as u64));
    // A late part of an attempt that was given up.
    arrive(&mut world, &it, 1, &good[2..3], false);
    assert_eq!(arrive(&mut world, &it, 2, &good[1..], true), Some(true));
    assert_eq!(host::settle(&mut world), [(1, Told::Committed)]);
    assert!(applied(&mut world) == expected(1));
}

#[test]
fn what_arrives_is_bounded_in_bytes_and_in_time() {
    let mut world = world();
    let it = prepare(&mut world, 1);
    let (good, node) = (parts(&it.delta), world.home(it.to));
    world.call(node, |updater, _| {
        updater.disk.limits.inflight_bytes_max = 4 * LEN as u64 - 1;
        Ok(())
    });
    arrive(&mut world, &it, 1, &good[..2], false);
    assert_eq!(inflight(&world), 0);
    world.call(node, |updater, _| {
        updater.disk.limits.inflight_bytes_max = 4 * LEN as u64;
        Ok(())
    });
    arrive(&mut world, &it, 1, &good[..2], false);
    assert_eq!(inflight(&world), LEN as u64);
    // Updates that are led here have all of their room. New bytes count twice, for their deltas.
    world.call(node, |updater, _| {
        let (mut flights, new) = (Flights::default(), Pieces::from([(0, host::piece(0, vec![1; 2 * LEN]))]));
        flights.insert((host::id(9), 0), new, None, &mut updater.disk).unwrap();
        flights.retain(|_| false, &mut updater.disk);
        Ok(())
    });
    for (later, kept) in [(29_000, LEN as u64), (1_000, 0)] {
        world.now += later;
        world.call(node, |updater, now| updater.tick(now));
        assert_eq!(inflight(&world), kept, "{later} ms later");
    }
    assert_eq!(arrive(&mut world, &it, 1, &good[2..], true), Some(false));
    // One that comes no further.
    arrive(&mut world, &it, 2, &good[..2], false);
    let Message::Prepare { record, .. } = &it.message else { unreachable!() };
    for (attempt, kept) in [(1, LEN as u64), (2, 0)] {
        world.call(node, |updater, _| {
            updater.gone(it.to, record.id, attempt);
            Ok(())
        });
        assert_eq!(inflight(&world), kept, "attempt {attempt}");
    }
    // A block that is closed or removed.
    arrive(&mut world, &it, 1, &good[..2], false);
    world.call(node, |updater, _| {
        updater.forget(it.to);
        Ok(())
    });
    assert_eq!(inflight(&world), 0);
    assert_eq!(arrive(&mut world, &it, 1, &good[..2], false), None);
    assert_eq!(inflight(&world), 0);
}

/// What is quiet for a second makes room for others: in the budget of the disk, and among those of a block.
#[test]
fn what_was_quiet_for_longest_makes_room_for_what_arrives() {
    let mut world = world();
    let it = prepare(&mut world, 1);
    let (good, node) = (parts(&it.delta), world.home(it.to));
    let begin = |world: &mut World, id: UpdateId| {
        let part = DeltaPart { id, attempt: 1, stream: it.stream, whole: it.delta.span(), piece: &good[0] };
        world.call(node, |updater, now| updater.arrive(it.to, part, now));
    };
    // Returns whether it was kept.
    let ends = |world: &mut World, id: UpdateId| {
        let before = inflight(world);
        world.call(node, |updater, _| {
            updater.gone(it.to, id, 1);
            Ok(())
        });
        inflight(world) < before
    };
    let limit = |world: &mut World, deltas: usize| {
        world.call(node, |updater, _| {
            updater.disk.limits.inflight_bytes_max = 4 * (deltas * LEN) as u64;
            Ok(())
        });
    };
    world.now = 10_000;
    limit(&mut world, 1);
    // All of it is here, and its message does not come.
    arrive(&mut world, &it, 1, &good, false);
    world.now += 999;
    begin(&mut world, host::id(11));
    assert!(!ends(&mut world, host::id(11)), "the message may be on its way");
    world.now += 1;
    begin(&mut world, host::id(11));
    assert_eq!(arrive(&mut world, &it, 1, &[], true), Some(false), "its bytes come with the message");
    assert!(ends(&mut world, host::id(11)));

    limit(&mut world, 100);
    for counter in 11..=15 {
        begin(&mut world, host::id(counter));
        world.now += 10;
    }
    assert_eq!(inflight(&world), 4 * LEN as u64);
    world.now += 1000;
    begin(&mut world, host::id(16));
    assert_eq!([11, 12, 15, 16].map(|counter| ends(&mut world, host::id(counter))), [false, true, false, true]);
    // One that can have no room takes none away.
    limit(&mut world, 0);
    begin(&mut world, host::id(17));
    assert_eq!([13, 14, 17].map(|counter| ends(&mut world, host::id(counter))), [true, true, false]);
}

#[test]
fn a_long_delta_that_is_read_in_parts_is_read_back_once() {
    let mut world = world();
    let new: Vec<u8> = (0..LEN).map(|at| (at * 5) as u8).collect();
    host::request(&mut world, 1, Pieces::from([(0, host::piece(1000, new.clone()))]));
    assert_eq!(host::settle(&mut world), [(1, Told::Committed)]);
    let (lead, node) = (block(0, 0), world.home(block(0, 0)));
    let reads = |world: &World| world.nodes[node].disk.as_ref().unwrap().journal.counts().reads;
    let before = reads(&world);
    let read = |world: &World, start: usize| {
        let (updater, at) = (&world.nodes[node].disk.as_ref().unwrap().updater, 1000 + start as u64);
        let content = updater.read_at(lead, Span::new(at, at + 10_000), &Vector::from([(0, 1)])).unwrap();
        assert_eq!(content.bytes, new[start..start + 10_000]);
        reads(world) - before
    };
    let tick = |world: &mut World| {
        world.call(node, |updater, now| {
            updater.disk.tick(now);
            Ok(())
        });
    };
    assert_eq!([0, 10_000, 70_000].map(|start| read(&world, start)), [1; 3]);
    tick(&mut world);
    assert_eq!(read(&world, 5), 1);
    tick(&mut world);
    tick(&mut world);
    assert_eq!(read(&world, 5), 2, "it is kept as long as it is read");
}

#[test]
fn what_arrives_of_an_update_that_is_here_is_not_kept() {
    let mut world = world();
    let it = prepare(&mut world, 1);
    let (good, node) = (parts(&it.delta), world.home(it.to));
    arrive(&mut world, &it, 1, &good[..2], false);
    assert_eq!(inflight(&world), LEN as u64);
    // It comes straight.
    let pieces = Pieces::from([(it.stream, Arc::clone(&it.delta))]);
    world.call(node, |updater, now| updater.receive(it.to, it.from, it.message.clone(), pieces, now));
    assert_eq!(inflight(&world), 0);
    arrive(&mut world, &it, 2, &good[..2], false);
    assert_eq!(inflight(&world), 0, "it is held");
    assert_eq!(host::settle(&mut world), [(1, Told::Committed)]);
    arrive(&mut world, &it, 3, &good[..2], false);
    assert_eq!(inflight(&world), 0, "its outcome is known");
}

#[test]
fn nothing_is_kept_of_what_arrives_for_a_block_that_is_settled_or_fenced() {
    let settled = |world: &mut World, it: &Prepare| {
        let node = world.home(it.to);
        world.call(node, |updater, now| {
            let term = updater.open_block_of(it.to).unwrap().term;
            updater.settle(it.to, term, now).map(drop)
        });
    };
    let fenced = |world: &mut World, it: &Prepare| {
        let (node, sealed) = (world.home(it.to), Message::Sealed(Arc::new(Sealed { term: 1000, ..Sealed::default() })));
        world.call(node, |updater, now| updater.receive(it.to, Peer::Coordinator, sealed, Pieces::new(), now));
        world.call(node, |updater, now| updater.tick(now));
        world.call(node, |updater, _| {
            assert!(updater.open_block_of(it.to).unwrap().is_fenced);
            Ok(())
        });
    };
    for end in [&settled as &dyn Fn(&mut World, &Prepare), &fenced] {
        let mut world = world();
        let it = prepare(&mut world, 1);
        let good = parts(&it.delta);
        arrive(&mut world, &it, 1, &good[..2], false);
        assert_eq!(inflight(&world), LEN as u64);
        end(&mut world, &it);
        assert_eq!(inflight(&world), 0);
        arrive(&mut world, &it, 2, &good[..2], false);
        assert_eq!(inflight(&world), 0);
    }
}

/// Starts a node that does not crash again.
fn restart(world: &mut World, node: usize) {
    world.start(node);
    while world.nodes[node].disk.is_none() {
        world.start(node);
    }
    world.nodes[node].files.crash_after(1_000_000);
}

/// The parity loses power at each call of the file system, from the first part of the delta on.
#[test]
fn a_crash_while_a_delta_arrives_is_survived() {
    let expected = expected(1);
    let mut crashes = 0;
    for calls in 0..100 {
        let mut world = world();
        let it = prepare(&mut world, 1);
        let node = world.home(it.to);
        world.nodes[node].files.crash_after(calls);
        let parts = parts(&it.delta);
        arrive(&mut world, &it, 1, &parts, true);
        world.call(node, |updater, now| updater.sync(now));
        let is_crashed = world.nodes[node].files.is_crashed();
        crashes += usize::from(is_crashed);
        if is_crashed {
            restart(&mut world, node);
        }
        world.nodes[node].files.crash_after(1_000_000);
        // The leader sends it again when it had time to arrive.
        world.now += 5_000;
        let mut told = host::settle(&mut world);
        for _ in 0..20 {
            (0..3).for_each(|node| world.call(node, |updater, now| updater.tick(now)));
            told.extend(host::settle(&mut world));
            world.now += 500;
        }
        assert_eq!(told, [(1, Told::Committed)], "{calls} calls");
        assert!(applied(&mut world) == expected, "{calls} calls");
        if !is_crashed {
            break;
        }
    }
    assert!(crashes > 5, "{crashes}");
}
