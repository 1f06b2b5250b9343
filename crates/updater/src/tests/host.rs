//! What a host does apart from crashes: bounds, refusals, damage, versions.

use super::{
    code, rs,
    world::{Body, LIMITS, To, World, block},
};
use crate::{Output, Piece, Pieces, Read, Refusal, Served};
use std::{path::Path, sync::Arc};
use weft_store::BlockStore as _;
use weft_types::{BlockId, PAGE_LEN, Reaction, Span};
use weft_update::{NotRun, NotServed, Session, Told, UpdateId, Vector};

/// A stripe that is open, whose messages all arrive.
fn world() -> (World, Vec<Vec<u8>>) {
    let (mut world, data) = plain_world();
    world.open_all();
    (world, data)
}

/// The same, before it is opened.
pub(super) fn plain_world() -> (World, Vec<Vec<u8>>) {
    let mut world = World::new(&super::world::Setup { stripes: 1, ..rs() }, 1);
    world.faults = (0, 0, 0);
    let len = world.shape.layout.block_len as usize;
    let mut data: Vec<Vec<u8>> = (0..4).map(|_| world.random.bytes(len)).collect();
    for (index, data) in (0..).zip(&mut data) {
        let stored = world.shape.block_len(index) as usize;
        data[stored..].fill(0);
    }
    world.create(&[data.clone()]);
    (world, data)
}

pub(super) fn id(counter: u64) -> UpdateId {
    UpdateId { session: Session { number: 1, ends_at_ms: u64::MAX }, counter, lead: 0 }
}

pub(super) fn piece(start: u64, bytes: Vec<u8>) -> Arc<Piece> {
    Arc::new(Piece { start, bytes: bytes.into() })
}

pub(super) fn request(world: &mut World, counter: u64, new: Pieces) {
    let lead = *new.keys().next().unwrap_or(&0);
    let id = UpdateId { lead, ..id(counter) };
    world.writers.insert(id, 0);
    world.send(To::Block(block(0, lead)), Body::Request { id, new });
}

/// Delivers everything, and syncs everything. Returns what clients were told.
pub(super) fn settle(world: &mut World) -> Vec<(u64, Told)> {
    for _ in 0..20 {
        while !world.net.is_empty() {
            world.deliver(0);
        }
        (0..world.nodes.len()).for_each(|node| world.call(node, |updater, now| updater.sync(now)));
    }
    assert_eq!(world.wrong, None);
    let told = |(_, body)| if let Body::Told { id, told } = body { Some((id.counter, told)) } else { None };
    std::mem::take(&mut world.answers).into_iter().filter_map(told).collect()
}

pub(super) fn apply(world: &mut World) {
    for _ in 0..3 {
        for node in 0..world.nodes.len() {
            world.call(node, |updater, now| updater.tick(now));
            world.call(node, |updater, now| updater.apply(now));
        }
        settle(world);
    }
}

/// What a block's pages contain, in full length.
pub(super) fn stored(world: &World, id: BlockId) -> Vec<u8> {
    let reader = world.nodes[world.home(id)].disk.as_ref().unwrap().store.open(id).unwrap();
    let mut bytes = vec![0; world.shape.layout.block_len as usize];
    let len = reader.meta().len() as usize;
    reader.read_at(0, &mut bytes[..len]).unwrap();
    bytes
}

#[test]
fn an_update_reaches_the_pages_of_all_blocks_that_depend_on_it() {
    let (mut world, mut data) = world();
    let new = Pieces::from([(1, piece(4000, vec![7; 300])), (2, piece(10, vec![9; 50]))]);
    request(&mut world, 1, new);
    assert_eq!(settle(&mut world), [(1, Told::Committed)]);
    assert_eq!(stored(&world, block(0, 1)), data[1], "it is in the journal");
    apply(&mut world);
    data[1][4000..4300].fill(7);
    data[2][10..60].fill(9);
    for (index, expected) in (0..).zip(code::encode(&*world.code, world.shape.layout, &data)) {
        assert_eq!(stored(&world, block(0, index)), expected, "block {index}");
    }
}

#[test]
fn updates_without_a_pause_do_not_fill_a_block_with_records() {
    let (mut world, _) = world();
    // No tick finds the blocks quiet, and the journal is far from full.
    for counter in 1..=2 * LIMITS.records_max as u64 {
        request(&mut world, counter, Pieces::from([((counter % 4) as u8, piece(100, vec![counter as u8; 10]))]));
        assert_eq!(settle(&mut world), [(counter, Told::Committed)]);
    }
}

#[test]
fn a_block_serves_the_versions_that_it_has() {
    let (mut world, data) = world();
    for (counter, byte) in [(1, 1), (2, 2), (3, 3)] {
        request(&mut world, counter, Pieces::from([(0, piece(100, vec![byte; 10]))]));
        assert_eq!(settle(&mut world), [(counter, Told::Committed)]);
    }
    let read = |world: &World, index: u8, number: u64| {
        let id = block(0, index);
        let updater = &world.nodes[world.home(id)].disk.as_ref().unwrap().updater;
        updater.read_at(id, Span::new(95, 115), &Vector::from([(0, number)])).map(|content| content.bytes)
    };
    let (oracle, layout) = (world.code.clone(), world.shape.layout);
    let expected = |number: u8| {
        let mut data = data.clone();
        if number > 0 {
            data[0][100..110].fill(number);
        }
        code::encode(&*oracle, layout, &data)
    };
    for number in 0..=3 {
        assert_eq!(read(&world, 0, number.into()).unwrap(), expected(number)[0][95..115], "version {number}");
    }
    // Parities know the outcome of the third one when they are told.
    for number in 0..=2 {
        assert_eq!(read(&world, 4, number.into()).unwrap(), expected(number)[4][95..115], "version {number}");
    }
    let stale = Err(Refusal::NotServed(NotServed::Stale));
    assert_eq!((read(&world, 4, 3), read(&world, 0, 4)), (stale.clone(), stale.clone()));
    apply(&mut world);
    assert_eq!(read(&world, 4, 3).unwrap(), expected(3)[4][95..115]);
    assert_eq!(read(&world, 4, 0), stale, "its delta is trimmed");
}

#[test]
fn a_data_block_serves_its_last_version_and_only_what_the_reader_does_not_have() {
    let (mut world, data) = world();
    let node = world.home(block(0, 0));
    let read = |world: &mut World, index: u8, asked: Read| {
        let updater = &mut world.nodes[node].disk.as_mut().unwrap().updater;
        let asked = updater.read(block(0, index), 1, asked, 0);
        let outputs = updater.take_outputs();
        let served = |output| if let Output::Served { result, .. } = output { Some(result) } else { None };
        asked.map(|()| outputs.into_iter().find_map(served).expect("it is served at once").expect("it is served"))
    };
    let of = |start, end, since| Read { range: Span::new(start, end), since, has_lease: true };
    let bytes = |served: &Served| served.content.as_ref().map(|content| content.bytes.clone());

    let first = read(&mut world, 0, of(95, 115, None)).unwrap();
    assert_eq!(bytes(&first).unwrap(), data[0][95..115]);
    let again = read(&mut world, 0, of(95, 115, Some(first.version.clone()))).unwrap();
    assert_eq!(again, Served { version: first.version.clone(), content: None });
    // An update elsewhere in the block changes nothing here.
    request(&mut world, 1, Pieces::from([(0, piece(2000, vec![1; 10]))]));
    settle(&mut world);
    assert_eq!(read(&mut world, 0, of(95, 115, Some(first.version.clone()))).unwrap(), again);
    request(&mut world, 2, Pieces::from([(0, piece(100, vec![2; 10]))]));
    settle(&mut world);
    let second = read(&mut world, 0, of(95, 115, Some(first.version.clone()))).unwrap();
    assert_ne!(second.version, first.version);
    assert_eq!(bytes(&second).unwrap()[5..15], [2; 10], "it is not in the pages yet");
    apply(&mut world);
    let third = read(&mut world, 0, of(95, 115, Some(second.version.clone()))).unwrap();
    assert_eq!(third.content.is_some(), third.version != second.version, "a trimmed record may count as a change");

    let len = world.shape.block_len(0);
    for (start, end) in [(5, 5), (9, 5), (len - 1, len + 1), (u64::MAX - 1, u64::MAX), (0, LIMITS.read_bytes_max + 1)] {
        let refused = read(&mut world, 0, of(start, end, None)).unwrap_err();
        assert_eq!(refused.reaction, Reaction::InvalidInput, "{start}..{end}: {refused}");
    }
    assert!(read(&mut world, 0, of(0, 1, None)).is_ok(), "a wrong range does not lose the block");
}

#[test]
fn requests_that_do_not_fit_are_refused() {
    let (mut world, _) = world();
    let short = world.shape.block_len(3);
    let too_long = LIMITS.update_bytes_max as usize + 1;
    let wrong = [
        Pieces::new(),
        Pieces::from([(4, piece(0, vec![1]))]),
        Pieces::from([(0, piece(5, Vec::new()))]),
        Pieces::from([(3, piece(short, vec![1]))]),
        Pieces::from([(3, piece(u64::MAX, vec![1; 9]))]),
        Pieces::from([(0, piece(0, vec![1; too_long]))]),
    ];
    for (counter, new) in (1..).zip(wrong) {
        request(&mut world, counter, new.clone());
        let told = settle(&mut world);
        let is_refused = told.iter().all(|(_, told)| *told == Told::NotRun(NotRun::Invalid));
        assert!(is_refused && told.len() == 1, "{new:?}: {told:?}");
    }
}

#[test]
fn updates_of_several_stripes_share_a_sync() {
    let (mut world, _) = world();
    let node = world.home(block(0, 0));
    request(&mut world, 1, Pieces::from([(0, piece(0, vec![1; 10]))]));
    settle(&mut world);
    let syncs = |world: &World| world.nodes[node].files.counts().syncs;
    let before = syncs(&world);
    for counter in 2..=5 {
        request(&mut world, counter, Pieces::from([(0, piece(100 * counter, vec![1; 10]))]));
    }
    while !world.net.is_empty() {
        world.deliver(0);
    }
    world.call(node, |updater, now| updater.sync(now));
    assert_eq!(syncs(&world), before + 1, "four updates, one sync");
    assert_eq!(settle(&mut world).len(), 4);
}

#[test]
fn what_is_durable_is_told_before_the_journal_is_tidied_up() {
    let (mut world, _) = world();
    let parity = world.home(block(0, 4));
    request(&mut world, 1, Pieces::from([(0, piece(0, vec![1; 10]))]));
    while !world.net.is_empty() {
        world.deliver(0);
    }
    let now = world.now;
    let updater = &mut world.nodes[parity].disk.as_mut().unwrap().updater;
    assert!(updater.has_unsynced_entries() && updater.take_outputs().is_empty());
    assert_eq!(updater.sync_step(now), Ok(true), "the journal was not looked through yet");
    assert!(!updater.take_outputs().is_empty(), "the parity's answer");
}

#[test]
fn a_full_journal_refuses_updates_until_it_has_applied_others() {
    let (mut world, _) = world();
    let (mut busy, mut committed) = (0, 0);
    // One block's room is bounded by the number of its records; reads and ticks do not happen here.
    for counter in 1..400 {
        let start = counter * 97 % 4000;
        request(&mut world, counter, Pieces::from([(0, piece(start, vec![counter as u8; 4000]))]));
        for (_, told) in settle(&mut world) {
            busy += u64::from(told == Told::NotRun(NotRun::Busy));
            committed += u64::from(told == Told::Committed);
        }
        let fill = world.nodes[world.home(block(0, 0))].disk.as_ref().unwrap().updater.fill();
        assert!(fill < 0.95, "{fill}");
        if counter % 5 == 0 {
            apply(&mut world);
        }
    }
    assert!(committed > 300, "{committed} committed, {busy} refused");
}

#[test]
fn a_damaged_page_loses_the_block_and_not_the_disk() {
    let (mut world, _) = world();
    request(&mut world, 1, Pieces::from([(0, piece(10, vec![1; 10]))]));
    assert_eq!(settle(&mut world), [(1, Told::Committed)]);
    let node = world.home(block(0, 0));
    let path = world.nodes[node].disk.as_ref().unwrap().store.payload_path(block(0, 0));
    world.nodes[node].files.flip_bit(Path::new(&path), 8 * (PAGE_LEN - 1)).unwrap();
    world.call(node, |updater, now| updater.apply(now));
    let wrong = world.wrong.take().unwrap_or_default();
    assert!(wrong.contains("s0-b000-c0-g1 is lost"), "{wrong}");
    let updater = &world.nodes[node].disk.as_ref().unwrap().updater;
    assert!(!updater.blocks().any(|id| id == block(0, 0)));
    // The other nodes serve it no more, and the disk takes other blocks.
    request(&mut world, 2, Pieces::from([(0, piece(10, vec![1; 10]))]));
    assert_eq!(settle(&mut world), []);
}

#[test]
fn a_read_of_a_damaged_page_is_refused_and_the_block_stays_open() {
    let (mut world, data) = world();
    let node = world.home(block(0, 0));
    let path = world.nodes[node].disk.as_ref().unwrap().store.payload_path(block(0, 0));
    world.nodes[node].files.flip_bit(Path::new(&path), 8 * (PAGE_LEN - 1)).unwrap();
    let updater = &mut world.nodes[node].disk.as_mut().unwrap().updater;
    let mut read = |number: u64, start: u64| {
        let asked = Read { range: Span::new(start, start + 10), since: None, has_lease: true };
        updater.read(block(0, 0), number, asked, 0).unwrap();
        let served = |output| if let Output::Served { result, .. } = output { Some(result) } else { None };
        updater.take_outputs().into_iter().find_map(served).unwrap()
    };
    assert_eq!(read(1, 10), Err(NotServed::Unreadable));
    let other = read(2, PAGE_LEN).unwrap().content.unwrap();
    assert_eq!(other.bytes, data[0][PAGE_LEN as usize..PAGE_LEN as usize + 10]);
    assert!(updater.blocks().any(|id| id == block(0, 0)));
}

#[test]
fn a_block_that_is_removed_frees_its_journal() {
    let (mut world, _) = world();
    request(&mut world, 1, Pieces::from([(0, piece(10, vec![1; 4000]))]));
    settle(&mut world);
    let node = world.home(block(0, 0));
    let disk = world.nodes[node].disk.as_mut().unwrap();
    let before = disk.updater.fill();
    disk.updater.forget(block(0, 0));
    assert!(disk.updater.fill() < before && disk.updater.inflight_bytes() == 0);
    assert_eq!(disk.updater.blocks().count(), 0);
}

/// After-images without an entry are left by a crash, or come back when it undoes a release.
#[test]
fn after_images_without_an_entry_are_not_copied_for_the_next_one() {
    use crate::{
        record::{PageImage, Stored},
        replay::Replayed,
    };
    use weft_store::Journal as _;
    use weft_update::Batch;
    let files = weft_store::SimFiles::new(1);
    let new = weft_store::NewDisk { disk_id: 1, created_ms: 1 };
    let store = weft_store::LocalStore::open_on(Arc::new(files), Path::new("/other"), weft_types::ClusterId(1), new).unwrap();
    let journal = store.open_journal(weft_store::NewJournal { ring_bytes: weft_store::RING_BYTES_MIN, nonce: 1 }).unwrap();
    let pages = |byte| {
        let bytes = vec![byte; 10];
        Stored::Pages(vec![PageImage { number: 0, crc: weft_types::crc32c(&bytes), bytes }])
    };
    let batch = Batch { applied: Vector::from([(0, 1)]), merged: Vec::new() };
    let (mut replayed, mut positions) = (Replayed::default(), Vec::new());
    for stored in [pages(1), pages(2), pages(3), Stored::Images(batch.clone(), 2), Stored::Images(batch, 1)] {
        let position = journal.append(block(0, 0), &stored.encode().unwrap(), None).unwrap();
        positions.push(position);
        replayed.add(position, stored);
    }
    let parts: Vec<_> = replayed.entries.iter().map(|kept| kept.parts.clone()).collect();
    assert_eq!(parts, [Some(positions[1..3].to_vec()), None], "the after-images of the second entry are missing");
}
