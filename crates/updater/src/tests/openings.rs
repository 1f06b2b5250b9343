//! Opening, settling and closing: what is refused, what is repeated, and what a restart finds.

use super::{
    host,
    world::{World, block},
};
use crate::{Pieces, SettledBlock, Updater};
use weft_store::{BlockStore as _, Journal as _, Position};
use weft_types::{BlockId, Error, Reaction, Result, StripeLayout, crc32c};
use weft_update::{Message, Outcome, Peer, Sealed, Session, Told, UpdateId, Vector};

/// One stripe, not open.
fn world() -> World {
    let (mut world, _) = host::plain_world();
    world.ends = true;
    world
}

fn sealed(term: u64) -> Sealed {
    Sealed { term, members: (0..6).map(|index| block(0, index)).collect(), ..Sealed::default() }
}

fn updater(world: &mut World, id: BlockId) -> &mut Updater {
    let node = world.home(id);
    &mut world.nodes[node].disk.as_mut().unwrap().updater
}

fn open(world: &mut World, sealed: &Sealed) -> Result<()> {
    updater(world, block(0, 0)).open_block(block(0, 0), sealed, 1)
}

fn restart(world: &mut World) {
    let node = world.home(block(0, 0));
    world.crashed(node);
    world.start(node);
}

fn reaction<T: std::fmt::Debug>(result: Result<T>) -> Reaction {
    result.expect_err("it was not refused").reaction
}

/// Raises the term of a block, as a seal of the stripe does.
fn seal(world: &mut World, vector: Vector, term: u64) {
    let updater = updater(world, block(0, 0));
    let sealed = Sealed { vector, ..sealed(term) };
    for message in [Message::Seal { term }, Message::Sealed(std::sync::Arc::new(sealed))] {
        updater.receive(block(0, 0), Peer::Coordinator, message, Pieces::new(), 1).unwrap();
        updater.sync(1).unwrap();
    }
}

fn settle(world: &mut World, term: u64) -> Result<Option<SettledBlock>> {
    let updater = updater(world, block(0, 0));
    for _ in 0..3 {
        if let Some(settled) = updater.settle(block(0, 0), term, 1)? {
            return Ok(Some(settled));
        }
        updater.sync(1)?;
    }
    Ok(None)
}

#[test]
fn a_block_is_opened_under_higher_terms_only() {
    let mut world = world();
    assert_eq!(reaction(open(&mut world, &sealed(0))), Reaction::InvalidInput, "terms begin at 1");
    assert_eq!(reaction(open(&mut world, &Sealed { members: vec![block(0, 1)], ..sealed(1) })), Reaction::InvalidInput);
    open(&mut world, &sealed(3)).unwrap();
    open(&mut world, &sealed(3)).unwrap();
    assert_eq!(reaction(open(&mut world, &sealed(2))), Reaction::InvalidInput);
    // An opening that was given up before any lease.
    open(&mut world, &sealed(4)).unwrap();
    restart(&mut world);
    let blocks: Vec<_> = updater(&mut world, block(0, 0)).open_blocks().collect();
    assert_eq!(blocks.iter().map(|open| (open.block, open.term, open.is_settled)).collect::<Vec<_>>(), [(block(0, 0), 4, false)]);
    assert_eq!(blocks[0].members, sealed(4).members);
    open(&mut world, &sealed(4)).unwrap();
    // The coordinator repeats an opening of which it does not know which blocks it has reached, although a seal has reached some of them.
    let seal_begun = Message::Seal { term: 5 };
    updater(&mut world, block(0, 0)).receive(block(0, 0), Peer::Coordinator, seal_begun, Pieces::new(), 1).unwrap();
    open(&mut world, &sealed(4)).unwrap();
    // Two updates of other data blocks, as another seal says.
    seal(&mut world, Vector::from([(1, 2)]), 5);
    let settled = settle(&mut world, 5).unwrap().unwrap();
    assert_eq!((settled.seq.term(), settled.seq.counts()), (5, &[0, 2, 0, 0][..]));
    // A late copy of an opening in this term changes nothing.
    open(&mut world, &Sealed { vector: Vector::from([(1, 2)]), ..sealed(5) }).unwrap();
    assert!(updater(&mut world, block(0, 0)).open_blocks().all(|open| open.is_settled));
    for term in 1..=4 {
        assert_eq!(
            reaction(open(&mut world, &Sealed { vector: Vector::from([(1, 2)]), ..sealed(term) })),
            Reaction::InvalidInput
        );
    }
    updater(&mut world, block(0, 0)).close(block(0, 0), 4).unwrap();
    assert_eq!(updater(&mut world, block(0, 0)).open_blocks().count(), 1, "it was opened later than that");
    updater(&mut world, block(0, 0)).close(block(0, 0), 5).unwrap();
    for term in 1..=5 {
        assert_eq!(
            reaction(open(&mut world, &Sealed { vector: Vector::from([(1, 2)]), ..sealed(term) })),
            Reaction::InvalidInput
        );
    }
    let stale = open(&mut world, &Sealed { vector: Vector::from([(0, 1), (1, 2)]), ..sealed(6) }).unwrap_err();
    assert!(stale.reaction == Reaction::Corrupt && stale.message.contains("0 updates of data block 0"), "{stale}");
    // What the block does not contain does not count.
    open(&mut world, &Sealed { vector: Vector::from([(1, 9)]), ..sealed(6) }).unwrap();
}

#[test]
fn a_block_with_updates_of_its_term_needs_a_seal() {
    let mut world = world();
    world.open_all();
    host::request(&mut world, 1, Pieces::from([(0, host::piece(10, vec![1; 10]))]));
    assert_eq!(host::settle(&mut world), [(1, Told::Committed)]);
    let refused = open(&mut world, &sealed(2)).unwrap_err();
    assert!(refused.reaction == Reaction::Replan && refused.message.contains("seal"), "{refused}");
    assert_eq!(reaction(updater(&mut world, block(0, 0)).close(block(0, 0), 1)), Reaction::InvalidInput);
    host::apply(&mut world);
    let stale = open(&mut world, &sealed(2)).unwrap_err();
    assert_eq!(stale.reaction, Reaction::Corrupt, "it contains an update that the coordinator does not know: {stale}");
}

#[test]
fn a_settled_block_changes_no_more_and_stays_settled_after_a_restart() {
    let mut world = world();
    world.open_all();
    host::request(&mut world, 1, Pieces::from([(0, host::piece(10, vec![1; 10]))]));
    assert_eq!(host::settle(&mut world), [(1, Told::Committed)]);
    assert_eq!(settle(&mut world, 2).unwrap(), None, "it does not know the seal");
    seal(&mut world, Vector::from([(0, 1)]), 2);
    let settled = settle(&mut world, 2).unwrap().unwrap();
    assert_eq!((settled.seq.term(), settled.seq.counts()), (2, &[1, 0, 0, 0][..]));
    let reader = world.nodes[world.home(block(0, 0))].disk.as_ref().unwrap().store.open(block(0, 0)).unwrap();
    assert_eq!((reader.units(), &reader.meta().seq), (&settled.units[..], &settled.seq));
    restart(&mut world);
    let is_settled = |world: &mut World| updater(world, block(0, 0)).open_block_of(block(0, 0)).unwrap().is_settled;
    assert!(is_settled(&mut world));
    assert_eq!(settle(&mut world, 2).unwrap(), Some(settled.clone()));
    assert_eq!(reaction(settle(&mut world, 1)), Reaction::InvalidInput);
    // A client with a lease of this term, which cannot be.
    let id = UpdateId { session: Session { number: 1, ends_at_ms: u64::MAX }, counter: 2, lead: 0 };
    let new = Pieces::from([(0, host::piece(10, vec![2; 10]))]);
    let updater = updater(&mut world, block(0, 0));
    updater.request(block(0, 0), 2, id, new, 1).unwrap();
    let told = updater.take_outputs();
    assert!(format!("{told:?}").contains("NotRun(Retry)"), "{told:?}");
    updater.sync(1).unwrap();
    updater.take_outputs();
    updater.tick(1).unwrap();
    assert!(!updater.is_unsynced() && updater.take_outputs().is_empty(), "it is at rest");
    updater.close(block(0, 0), 2).unwrap();
    updater.sync(1).unwrap();
    assert_eq!(settle(&mut world, 2).unwrap(), Some(settled), "the coordinator has not heard the answer");
    restart(&mut world);
    let updater = self::updater(&mut world, block(0, 0));
    assert_eq!((updater.open_blocks().count(), updater.fill()), (0, 0.0));
    let closed: [Result<()>; 3] = [
        updater.receive(block(0, 0), Peer::Coordinator, Message::Seal { term: 9 }, Pieces::new(), 1),
        updater.request(block(0, 0), 2, id, Pieces::new(), 1),
        updater.settle(block(0, 0), 3, 1).map(drop),
    ];
    for error in closed.map(Result::unwrap_err) {
        assert_eq!((error.reaction, error.block), (Reaction::NotFound, Some(block(0, 0))), "{error}");
    }
}

#[test]
fn a_request_of_an_earlier_term_gets_its_outcome() {
    let mut world = world();
    let id = |counter| UpdateId { session: Session { number: 1, ends_at_ms: u64::MAX }, counter, lead: 0 };
    let outcomes = [(id(5), Outcome::Committed), (id(6), Outcome::Aborted)].into();
    let floors = [(id(0).session, 3)].into();
    open(&mut world, &Sealed { outcomes, floors, ..sealed(1) }).unwrap();
    for life in 0..2 {
        for (counter, told) in [(5, Told::Committed), (6, Told::Aborted), (3, Told::Expired)] {
            let new = Pieces::from([(0, host::piece(10, vec![1; 10]))]);
            let updater = updater(&mut world, block(0, 0));
            updater.request(block(0, 0), 1, id(counter), new, 1).unwrap();
            let outputs = updater.take_outputs();
            let expected = crate::Output::Tell { block: block(0, 0), id: id(counter), told };
            assert!(life == 1 || outputs == [expected], "{counter}: {outputs:?}");
        }
        restart(&mut world);
    }
}

/// Fills the journal of block 0 with records of a block that does not exist.
fn fill(world: &World, until: f64) -> Vec<Position> {
    fill_of(world, block(0, 0), until)
}

fn fill_of(world: &World, of: BlockId, until: f64) -> Vec<Position> {
    let journal = &world.nodes[world.home(of)].disk.as_ref().unwrap().journal;
    let mut filling = Vec::new();
    while journal.fill() < until {
        filling.push(journal.append(block(9, 9), &[0; 3000], None).unwrap());
    }
    journal.sync(filling[filling.len() - 1]).unwrap();
    filling
}

#[test]
fn an_update_that_a_full_journal_of_another_block_does_not_take_ends() {
    let mut world = world();
    world.open_all();
    fill_of(&world, block(0, 5), 0.931);
    host::request(&mut world, 1, Pieces::from([(0, host::piece(10, vec![1; 4000]))]));
    assert_eq!(host::settle(&mut world), [(1, Told::Aborted)]);
}

#[test]
fn a_full_journal_refuses_what_begins_and_lets_end_what_has_begun() {
    let mut world = world();
    world.open_all();
    host::request(&mut world, 1, Pieces::from([(0, host::piece(10, vec![1; 4000]))]));
    assert_eq!(host::settle(&mut world), [(1, Told::Committed)]);
    host::apply(&mut world);
    let mut filling = fill(&world, 0.94);
    let node = world.home(block(0, 0));
    let journal = world.nodes[node].disk.as_ref().unwrap().journal.clone();
    // Not even a small entry fits.
    while let Ok(position) = journal.append(block(9, 9), &[], None) {
        filling.push(position);
    }
    let id = UpdateId { session: Session { number: 1, ends_at_ms: u64::MAX }, counter: 2, lead: 0 };
    let new = Pieces::from([(0, host::piece(10, vec![2; 10]))]);
    let updater = updater(&mut world, block(0, 0));
    assert_eq!(reaction(updater.request(block(0, 0), 1, id, new, 1)), Reaction::Retry);
    updater.receive(block(0, 0), Peer::Coordinator, Message::Seal { term: 2 }, Pieces::new(), 1).unwrap();
    updater.tick(1).unwrap();
    updater.sync(1).unwrap();
    let has_reported = |outputs: Vec<crate::Output>| format!("{outputs:?}").contains("SealReported");
    assert!(!has_reported(updater.take_outputs()), "its term is not durable");
    // Nothing is appended that would name the releases.
    journal.release(&filling);
    updater.sync(1).unwrap();
    assert!(has_reported(updater.take_outputs()) && updater.fill() < 0.1, "{}", updater.fill());
    seal(&mut world, Vector::from([(0, 1)]), 2);
    assert!(settle(&mut world, 2).unwrap().is_some());
}

#[test]
fn outcomes_of_many_updates_take_little_room() {
    let (mut world, _) = host::plain_world();
    world.limits.outcomes_max = 1000;
    restart(&mut world);
    world.open_all();
    for counter in 1..=300 {
        host::request(&mut world, counter, Pieces::from([(0, host::piece(10, vec![1; 1 + counter as usize % 9]))]));
        assert_eq!(host::settle(&mut world), [(counter, Told::Committed)]);
        host::apply(&mut world);
    }
    let node = world.home(block(0, 0));
    let mut records = 0;
    let count = &mut |_, _, _: &[u8]| {
        records += 1;
        Ok(())
    };
    world.nodes[node].disk.as_ref().unwrap().journal.replay(count).unwrap();
    assert!(records < 50, "{records} records for 300 outcomes");
    restart(&mut world);
    host::apply(&mut world);
    for counter in [1, 150, 300] {
        host::request(&mut world, counter, Pieces::from([(0, host::piece(10, vec![2; 1]))]));
        assert_eq!(host::settle(&mut world), [(counter, Told::Committed)]);
    }
}

#[test]
fn only_so_many_blocks_are_open() {
    let mut world = world();
    world.limits.blocks_max = 1;
    restart(&mut world);
    let node = world.home(block(0, 0));
    open(&mut world, &sealed(1)).unwrap();
    let updater = &mut world.nodes[node].disk.as_mut().unwrap().updater;
    let other = block(1, 5);
    let refused = updater.open_block(other, &Sealed { members: vec![other], ..sealed(1) }, 1).unwrap_err();
    assert!(refused.reaction == Reaction::Retry && refused.message.contains("1 blocks"), "{refused}");
    updater.open_block(block(0, 0), &sealed(2), 1).unwrap();
}

#[test]
fn a_block_that_cannot_be_opened_harms_no_other() {
    let mut world = world();
    let other = BlockId { generation: 9, ..block(0, 0) };
    let members = vec![block(0, 0), other];
    let missing: Error = updater(&mut world, block(0, 0)).open_block(other, &Sealed { members, ..sealed(1) }, 1).unwrap_err();
    assert_eq!((missing.reaction, missing.block), (Reaction::NotFound, Some(other)));
    open(&mut world, &sealed(1)).unwrap();
}

/// Recovery moves blocks with broken sidecars to quarantine. They were not removed: the coordinator must hear that they are lost.
#[test]
fn an_open_block_that_is_in_quarantine_is_reported_as_lost() {
    let mut world = world();
    open(&mut world, &sealed(1)).unwrap();
    let node = world.home(block(0, 0));
    world.nodes[node].disk.as_ref().unwrap().store.quarantine(block(0, 0), "as wanted", None).unwrap();
    restart(&mut world);
    let wrong = world.wrong.take().unwrap_or_default();
    assert!(wrong.contains("s0-b000-c0-g1 is lost"), "{wrong}");
    let updater = updater(&mut world, block(0, 0));
    updater.sync(1).unwrap();
    assert_eq!((updater.open_blocks().count(), updater.lost_blocks().count(), updater.fill()), (0, 0, 0.0));
}

/// The last data block, which is shorter than the others, in a stripe that holds so many bytes.
fn open_longer(world: &mut World, data_len: u64, term: u64) -> Result<()> {
    updater(world, block(0, 3)).open_longer_block(block(0, 3), &sealed(term), data_len, 1)
}

#[test]
fn a_block_that_is_opened_longer_has_grown_or_is_as_before_after_a_crash() {
    let data = host::plain_world().1;
    // One more call happens each time, until there is no crash.
    for calls in 0.. {
        let mut world = world();
        let (node, before) = (world.home(block(0, 3)), world.shape);
        let longer = StripeLayout { data_len: before.room_end(), ..before };
        let files = world.nodes[node].files.clone();
        files.crash_after(calls);
        let opened = open_longer(&mut world, longer.data_len, 1);
        let has_crashed = files.is_crashed();
        restart_home_of(&mut world, block(0, 3));
        let read = |world: &World| {
            let reader = world.nodes[node].disk.as_ref().unwrap().store.open(block(0, 3)).unwrap();
            assert!(!reader.is_interrupted(), "it cannot be opened any more");
            let mut bytes = vec![1; before.layout.block_len as usize];
            reader.read_at(0, &mut bytes).unwrap();
            assert!(bytes == data[3], "it has other bytes");
            assert_eq!(reader.units(), [crc32c(&bytes[..reader.meta().len() as usize])]);
            reader.meta().stripe
        };
        let found = read(&world);
        assert!(found == before || found == longer, "{found:?}");
        open_longer(&mut world, longer.data_len, 1).unwrap();
        assert_eq!(read(&world), longer);
        if !has_crashed {
            opened.unwrap();
            assert!(calls > 5, "only {calls} calls can fail");
            break;
        }
    }
}

fn restart_home_of(world: &mut World, id: BlockId) {
    let node = world.home(id);
    world.crashed(node);
    world.start(node);
}

#[test]
fn a_block_grows_only_within_its_stripe() {
    let mut world = world();
    let shape = world.shape;
    for wrong in [shape.data_len - 1, shape.room_end() + 1] {
        assert_eq!(reaction(open_longer(&mut world, wrong, 1)), Reaction::Corrupt, "{wrong}");
    }
    open_longer(&mut world, shape.data_len, 1).unwrap();
    // Blocks that stay as long as they were are of a longer stripe, too.
    updater(&mut world, block(0, 0)).open_longer_block(block(0, 0), &sealed(1), shape.room_end(), 1).unwrap();
    let node = world.home(block(0, 0));
    let reader = world.nodes[node].disk.as_ref().unwrap().store.open(block(0, 0)).unwrap();
    assert_eq!((reader.meta().stripe.data_len, reader.meta().len()), (shape.room_end(), shape.layout.block_len));
    // It is open in this term, as long as it is.
    updater(&mut world, block(0, 0)).open_longer_block(block(0, 0), &sealed(1), shape.room_end(), 1).unwrap();
}
