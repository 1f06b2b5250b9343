//! Batches that change more than one unit (1 MiB) of a block, and more pages in each than a sector of the sidecar has.

use super::{
    host,
    world::{Body, Envelope, Setup, To, World, block},
};
use crate::{
    Limits, Pieces,
    fault::{Rule, drop_rule},
};
use weft_types::{BlockId, Layout};
use weft_update::{Message, NotRun, Told};

const PIECE: usize = 48 << 10;
/// Together more than 124 pages in each of two units, and less than half of the ring, so that they are one batch.
const UPDATES: u64 = 25;

fn world(ring_bytes: u64) -> World {
    world_of("rs(2,1)", ring_bytes)
}

fn world_of(code: &'static str, ring_bytes: u64) -> World {
    let layout = Layout { block_len: 2 << 20, cell_len: 64 << 10, alpha: 1 };
    let setup = Setup { code, layout, missing: 0, stripes: 1, limits: Limits::default(), ring_bytes };
    let mut world = World::new(&setup, 1);
    world.faults = (0, 0, 0);
    let data = (0..2).map(|_| vec![3; 2 << 20]).collect();
    world.create(&[data]);
    world.open_all();
    world
}

/// Lets the node of block 0 lose power at each call of the batch's application, or at some from `first` on. Returns what is wrong.
fn crash_in_the_patch(first: u64) -> Option<String> {
    let mut wrong = None;
    for crash in (first..200).step_by(if first > 0 { 2 } else { 1 }) {
        let mut world = world(8 << 20);
        for counter in 1..=UPDATES {
            let start = (1 << 20) - 600_000 + PIECE as u64 * (counter - 1);
            host::request(&mut world, counter, Pieces::from([(0, host::piece(start, vec![10 + counter as u8; PIECE]))]));
        }
        assert_eq!(host::settle(&mut world).len(), UPDATES as usize);
        let node = world.home(block(0, 0));
        world.call(node, |updater, now| updater.apply(now));
        world.nodes[node].files.crash_after(crash);
        world.call(node, |updater, now| updater.sync(now));
        if !world.nodes[node].files.is_crashed() {
            assert!(crash > 0);
            break;
        }
        world.start(node);
        let updater = world.nodes[node].disk.as_ref().map(|disk| &disk.updater);
        let is_open = updater.is_some_and(|updater| updater.open_block_of(block(0, 0)).is_some());
        if !is_open {
            wrong = Some(format!("after {crash} calls, block 0 does not open: {:?}", world.wrong));
            break;
        }
        host::apply(&mut world);
        let (first, rest) = (PIECE as u64 * UPDATES, 1 << 20);
        let stored = host::stored(&world, block(0, 0));
        assert!(stored[rest - 600_000..][..first as usize].iter().all(|byte| *byte != 3));
    }
    wrong
}

#[test]
fn a_crash_in_a_batch_of_two_units_is_survived() {
    assert_eq!(crash_in_the_patch(0), None);
    drop_rule(Some(Rule::OnePatch));
    // The first of several patches does no harm.
    let wrong = crash_in_the_patch(10);
    drop_rule(None);
    assert!(wrong.is_some(), "two patches of one batch do no harm");
}

#[test]
fn an_update_that_the_ring_cannot_take_is_refused() {
    // Records of 16 KiB at most.
    let mut world = world(weft_store::RING_BYTES_MIN);
    host::request(&mut world, 1, Pieces::from([(0, host::piece(0, vec![1; 16 << 10]))]));
    assert_eq!(host::settle(&mut world), [(1, Told::NotRun(NotRun::Invalid))]);
    host::request(&mut world, 2, Pieces::from([(0, host::piece(0, vec![1; 12 << 10]))]));
    assert_eq!(host::settle(&mut world), [(2, Told::Committed)]);
    host::apply(&mut world);
    assert_eq!(host::stored(&world, block(0, 0))[..12 << 10], [1; 12 << 10]);
}

/// The blocks to which Prepares with bytes are under way, each once; they are lost.
fn lose_prepares(world: &mut World) -> Vec<BlockId> {
    let is_prepare = |envelope: &Envelope| matches!(&envelope.body, Body::Protocol { message: Message::Prepare { .. }, pieces, .. } if !pieces.is_empty());
    let mut to: Vec<BlockId> = world
        .net
        .extract_if(.., |envelope| is_prepare(envelope))
        .filter_map(|envelope| if let To::Block(to) = envelope.to { Some(to) } else { None })
        .collect();
    to.sort_unstable();
    to.dedup();
    to
}

#[test]
fn large_deltas_are_sent_again_when_they_had_time_to_arrive_and_small_ones_at_once() {
    // At 2 MiB/s, all copies together: a node may send to one parity after another.
    for (code, len, patience) in [("rs(2,1)", 80 << 10, 1000 + 39), ("rs(2,3)", 80 << 10, 1000 + 117), ("rs(2,3)", 64 << 10, 0)] {
        let mut world = world_of(code, 8 << 20);
        host::request(&mut world, 1, Pieces::from([(0, host::piece(0, vec![1; len]))]));
        while lose_prepares(&mut world).is_empty() {
            world.deliver(0);
        }
        let (node, sent) = (world.home(block(0, 0)), world.now);
        for _ in 0..2 {
            let before = world.now;
            while lose_prepares(&mut world).is_empty() {
                assert!(world.now <= sent + 4000, "{len} bytes are not sent again");
                world.now += 13;
                world.call(node, |updater, now| updater.tick(now));
            }
            let waited = world.now - before;
            assert!((patience..patience + 14).contains(&waited), "{len} bytes are sent again after {waited} ms");
        }
        // An answer that comes at last.
        world.now += patience;
        world.call(node, |updater, now| updater.tick(now));
        assert_eq!(host::settle(&mut world), [(1, Told::Committed)]);
    }
}

/// A large update whose deltas were sent and lost.
fn lost_large() -> (World, usize) {
    let mut world = world(8 << 20);
    host::request(&mut world, 1, Pieces::from([(0, host::piece(0, vec![1; 80 << 10]))]));
    while lose_prepares(&mut world).is_empty() {
        world.deliver(0);
    }
    let node = world.home(block(0, 0));
    world.call(node, |updater, now| updater.tick(now));
    assert_eq!(lose_prepares(&mut world), []);
    (world, node)
}

#[test]
fn large_deltas_that_could_not_be_sent_are_sent_at_the_next_tick() {
    let (mut world, node) = lost_large();
    world.call(node, |updater, now| {
        updater.not_sent(block(0, 0), host::id(2), block(0, 2));
        updater.tick(now)
    });
    assert_eq!(lose_prepares(&mut world), [], "those of another update count");
    world.call(node, |updater, now| {
        updater.not_sent(block(0, 0), host::id(1), block(0, 2));
        updater.tick(now)
    });
    assert_eq!(host::settle(&mut world), [(1, Told::Committed)]);
}

#[test]
fn large_deltas_are_sent_again_only_to_those_to_whom_they_could_not_be_sent() {
    let mut world = world_of("rs(2,3)", 8 << 20);
    host::request(&mut world, 1, Pieces::from([(0, host::piece(0, vec![1; 80 << 10]))]));
    while lose_prepares(&mut world).is_empty() {
        world.deliver(0);
    }
    let node = world.home(block(0, 0));
    world.call(node, |updater, now| {
        updater.not_sent(block(0, 0), host::id(1), block(0, 3));
        updater.tick(now)
    });
    assert_eq!(lose_prepares(&mut world), [block(0, 3)]);
}

#[test]
fn a_clock_that_stands_still_does_not_hold_up_large_deltas() {
    let (mut world, node) = lost_large();
    let ticks = (1..100).find(|_| {
        world.call(node, |updater, now| updater.tick(now));
        !lose_prepares(&mut world).is_empty()
    });
    // 1.04 s.
    assert!(ticks.is_some_and(|ticks| (5..=6).contains(&ticks)), "{ticks:?}");
}

#[test]
fn a_block_whose_journal_is_too_small_refuses_and_says_why() {
    let mut world = world(8 << 20);
    let (node, parity) = (world.home(block(0, 0)), world.home(block(0, 2)));
    world.call(parity, |updater, _| {
        updater.disk.limits.update_bytes_max = 1000;
        Ok(())
    });
    host::request(&mut world, 1, Pieces::from([(0, host::piece(0, vec![1; 1001]))]));
    assert_eq!(host::settle(&mut world), [(1, Told::Aborted)]);
    let told = world.too_long.take();
    assert!(told.is_some_and(|(from, to, bytes)| (from, to, bytes) == (block(0, 2), block(0, 0), 1001)), "{told:?}");
    // New bytes for another data block.
    world.call(node, |updater, _| {
        updater.disk.limits.update_bytes_max = 1000;
        Ok(())
    });
    let both = Pieces::from([(0, host::piece(0, vec![1; 4])), (1, host::piece(0, vec![1; 996]))]);
    host::request(&mut world, 2, both.clone());
    assert_eq!(host::settle(&mut world), [(2, Told::Committed)]);
    let other = world.home(block(0, 1));
    world.call(other, |updater, _| {
        updater.disk.limits.update_bytes_max = 995;
        Ok(())
    });
    host::request(&mut world, 3, both);
    assert_eq!(host::settle(&mut world), [(3, Told::NotRun(NotRun::Busy))]);
    assert_eq!(world.too_long, Some((block(0, 1), block(0, 0), 996)));
    host::request(&mut world, 4, Pieces::from([(0, host::piece(0, vec![2; 999]))]));
    assert_eq!(host::settle(&mut world), [(4, Told::Committed)]);
}

#[test]
fn a_lock_for_which_there_is_no_room_is_refused_so_that_its_update_ends() {
    let mut world = world(8 << 20);
    let other = world.home(block(0, 1));
    world.call(other, |updater, _| {
        updater.disk.limits.inflight_bytes_max = 1991;
        Ok(())
    });
    let both = Pieces::from([(0, host::piece(0, vec![1; 4])), (1, host::piece(0, vec![1; 996]))]);
    host::request(&mut world, 1, both);
    assert_eq!(host::settle(&mut world), [(1, Told::NotRun(NotRun::Busy))]);
    let both = Pieces::from([(0, host::piece(0, vec![1; 4])), (1, host::piece(0, vec![1; 995]))]);
    host::request(&mut world, 2, both);
    assert_eq!(host::settle(&mut world), [(2, Told::Committed)], "what the first one has held is free");
}
