//! The journal: its contract, crashes, and damage in every sector.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use weft_store::{
    Ahead, BlockStore, FileCall, FileOp, Files, InPlaceCounts, Journal, LocalStore, NewDisk, NewJournal, Open, Position,
    RING_BYTES_MIN, RingJournal, SimFiles, Step, Steps, Tail, journal_conformance,
};
use weft_types::{BlockId, Cause, ClusterId, Reaction, Result};

const CLUSTER: ClusterId = ClusterId(0xc1);
const NEW: NewDisk = NewDisk { disk_id: 0xd15c, created_ms: 1_700_000_000_000 };
const NEW_JOURNAL: NewJournal = NewJournal { ring_bytes: RING_BYTES_MIN, nonce: 0x5eed };

fn open(files: &SimFiles) -> Result<RingJournal> {
    LocalStore::open_on(Arc::new(files.clone()), Path::new("/disk"), CLUSTER, NEW)?.open_journal(NEW_JOURNAL)
}

fn path() -> PathBuf {
    PathBuf::from("/disk/journal")
}

#[test]
fn the_ring_conforms_on_simulated_files() {
    let mut seed = 0;
    journal_conformance::check(|| {
        seed += 1;
        open(&SimFiles::new(seed)).unwrap()
    });
}

#[test]
fn the_ring_conforms_on_real_files() {
    let dir = tempfile::tempdir().unwrap();
    let mut number = 0;
    journal_conformance::check(|| {
        number += 1;
        let store = LocalStore::open(&dir.path().join(number.to_string()), CLUSTER, NEW).unwrap();
        store.open_journal(NEW_JOURNAL).unwrap()
    });
}

#[test]
fn no_crash_loses_what_is_durable() {
    journal_conformance::check_crashes(0..100, open);
}

/// All records of a journal; why it does not open, if it does not.
fn found(files: &SimFiles) -> Result<Vec<(Position, BlockId, Vec<u8>)>> {
    let mut all = Vec::new();
    open(files)?.replay(&mut |position, block, bytes| {
        all.push((position, block, bytes.to_vec()));
        Ok(())
    })?;
    Ok(all)
}

/// The bytes of `docs/formats.md`, which an independent program made.
#[test]
fn the_format_does_not_change() {
    let golden = include_bytes!("../../src/journal/ring-v1.bin");
    let files = SimFiles::new(1);
    let journal = open(&files).unwrap();
    let first = journal.append(journal_conformance::block(1), b"abc", None).unwrap();
    let second = journal.append(journal_conformance::block(300), &[7; 600], None).unwrap();
    journal.sync(second).unwrap();
    journal.release(&[first, second]);
    let third = journal.append(journal_conformance::block(2), &[], None).unwrap();
    journal.sync(third).unwrap();
    drop(journal);
    let mut bytes = vec![0; golden.len()];
    files.open(&path(), Open::Read).unwrap().read_exact_at(&mut bytes, 0).unwrap();
    assert!(bytes == golden, "{:?}", bytes.iter().zip(golden).position(|(one, other)| one != other));
    assert_eq!(found(&files).unwrap().iter().map(|record| record.1).collect::<Vec<_>>(), [journal_conformance::block(2)]);
}

#[test]
fn syncs_and_bytes_of_the_journal_are_counted_for_its_disk() {
    let store = LocalStore::open_on(Arc::new(SimFiles::new(1)), Path::new("/disk"), CLUSTER, NEW).unwrap();
    let journal = store.open_journal(NEW_JOURNAL).unwrap();
    assert_eq!(store.in_place(), InPlaceCounts::default(), "its creation is none of an update");
    let first = journal.append(journal_conformance::block(1), &[1; 5000], None).unwrap();
    let second = journal.append(journal_conformance::block(2), &[2; 100], None).unwrap();
    journal.sync(second).unwrap();
    journal.sync(first).unwrap();
    let one = store.in_place();
    assert_eq!((one.journal_syncs, one.patched_bytes), (1, 0), "a sync serves all that wait");
    assert!(one.journal_bytes > 5100 && one.journal_bytes.is_multiple_of(4096), "{one:?}");
    fill(&journal, [1, 2]);
    let all = store.in_place();
    assert_eq!((all.journal_syncs, all.journal_bytes), (3, journal.counts().bytes_written));
}

/// Appends a record of each length, and syncs after each.
fn fill(journal: &RingJournal, lens: impl IntoIterator<Item = usize>) -> Vec<Position> {
    let record = |len: usize| {
        let position = journal.append(journal_conformance::block(len as u64), &vec![len as u8; len], None).unwrap();
        journal.sync(position).unwrap();
        position
    };
    lens.into_iter().map(record).collect()
}

const RING_AT: u64 = 4096;
const SECTOR: u64 = 512;

/// Flips a bit in a sector of the ring, and says whether that is noticed. If not, the records are the same.
fn is_noticed(files: &SimFiles, sector: u64, expected: &[(Position, BlockId, Vec<u8>)]) -> bool {
    let sector = sector % (RING_BYTES_MIN / SECTOR);
    let bit = (RING_AT + sector * SECTOR) * 8 + sector * 1009 % (SECTOR * 8);
    files.flip_bit(&path(), bit).unwrap();
    let found = found(files);
    files.flip_bit(&path(), bit).unwrap();
    match found {
        Ok(found) => {
            assert!(found == expected, "sector {sector}");
            false
        }
        Err(error) => {
            assert_eq!(error.reaction, Reaction::Corrupt, "sector {sector}: {error}");
            assert!(error.message.contains("journal is damaged"), "{error}");
            true
        }
    }
}

/// The last batch, too: it may have been reported as durable.
#[test]
fn a_flipped_bit_in_any_live_sector_is_damage_and_never_the_end() {
    let files = SimFiles::new(1);
    let journal = open(&files).unwrap();
    fill(&journal, [10, 5000, 0, 492, 9000, 100]);
    let head = journal.counts().bytes_written / SECTOR;
    drop(journal);
    let expected = found(&files).unwrap();
    assert_eq!(expected.len(), 6);
    for sector in 0..head + 8 {
        assert!(is_noticed(&files, sector, &expected), "sector {sector} of {head}");
    }
    // Behind the next batch's first page nothing can have been written.
    for sector in (head + 8..RING_BYTES_MIN / SECTOR).step_by(97) {
        assert!(!is_noticed(&files, sector, &expected), "sector {sector} of {head}");
    }
    for bit in [0, 8 * 8, 12 * 8 + 3, 55 * 8] {
        files.flip_bit(&path(), bit).unwrap();
        assert_eq!(found(&files).unwrap_err().reaction, Reaction::Corrupt, "bit {bit} of the header");
        files.flip_bit(&path(), bit).unwrap();
    }
    assert_eq!(found(&files).unwrap(), expected);
}

/// The same in a ring that has wrapped around, whose tail is released.
#[test]
fn a_flipped_bit_in_a_wrapped_ring_is_damage_or_changes_nothing() {
    let files = SimFiles::new(2);
    let journal = open(&files).unwrap();
    let mut released = 0;
    let mut positions = Vec::new();
    for round in 0..12 {
        positions.extend(fill(&journal, (0..10).map(|i| 10_000 + round * 100 + i)));
        let old = positions.len() - 8;
        journal.release(&positions[released..old]);
        released = old;
    }
    fill(&journal, [1, 2]);
    assert!(journal.counts().bytes_written > RING_BYTES_MIN);
    drop(journal);
    let expected = found(&files).unwrap();
    assert_eq!(expected.len(), 10);
    let noticed = (0..RING_BYTES_MIN / SECTOR).step_by(3).filter(|sector| is_noticed(&files, *sector, &expected)).count() as u64;
    let live: u64 = expected.iter().map(|record| record.2.len() as u64).sum::<u64>() / SECTOR / 3;
    assert!(noticed >= live && noticed < 3 * live, "{noticed} sectors were noticed, {live} are live");
}

/// Bytes of a record that arrive while others are appended.
fn arrive(journal: &RingJournal, bytes: &[u8]) -> Ahead {
    arrive_in_parts(journal, bytes, 5000)
}

fn arrive_in_parts(journal: &RingJournal, bytes: &[u8], len: usize) -> Ahead {
    let mut ahead = journal.begin_ahead(bytes.len()).unwrap();
    for part in bytes.chunks(len) {
        assert!(journal.write_ahead(&mut ahead, part).unwrap());
    }
    ahead
}

/// All its sectors may be on the disk, but for those that say what it is.
#[test]
fn a_record_that_arrives_is_nothing_until_it_is_durable() {
    for seed in 0..20 {
        let files = SimFiles::new(seed);
        fill(&open(&files).unwrap(), [3000, 10]);
        let expected = found(&files).unwrap();
        // One that arrived before, longer than the next, leaves its sectors behind.
        for len in [16_000, 9000, 12_000] {
            let journal = open(&files).unwrap();
            let ahead = arrive(&journal, &vec![len as u8; len]);
            drop((ahead, journal));
            if seed % 2 == 0 {
                files.restart()
            } else {
                files.kill()
            }
            assert_eq!(found(&files).unwrap(), expected, "seed {seed}, {len} bytes");
        }
        let journal = open(&files).unwrap();
        fill(&journal, [700]);
        drop(journal);
        assert_eq!(found(&files).unwrap().len(), 3, "seed {seed}");
    }
}

#[test]
fn what_is_synced_while_a_record_arrives_is_not_lost_behind_it() {
    let (mut with, mut without) = (0, 0);
    for (calls, seed) in (0..6).flat_map(|calls| (0..10).map(move |seed| (calls, seed))) {
        let (files, bytes) = (SimFiles::new(seed), vec![9; 14_000]);
        let journal = open(&files).unwrap();
        let mut expected = fill(&journal, [3000]);
        let ahead = arrive(&journal, &bytes);
        expected.extend(fill(&journal, [100, 6000]));
        drop(ahead);
        // Again, behind these and over what is left of it.
        let ahead = arrive(&journal, &bytes);
        let tail = Tail { shared: vec![Arc::new(bytes.clone())], ahead: Some(ahead) };
        let last = journal.append_shared(journal_conformance::block(2), &[1; 30], tail, None).unwrap();
        files.crash_after(calls);
        let synced = journal.sync(last);
        let count = journal.counts().records_ahead;
        drop(journal);
        files.restart();
        let records = found(&files).unwrap_or_else(|error| panic!("{calls} calls, seed {seed}: {error}"));
        let positions: Vec<Position> = records.iter().map(|record| record.0).collect();
        if positions.len() == expected.len() {
            without += 1;
        } else {
            expected.push(last);
            assert_eq!(records[expected.len() - 1].2, [&[1; 30][..], &bytes].concat());
            with += 1;
        }
        assert_eq!((positions, count), (expected.clone(), 1), "{calls} calls, seed {seed}");
        assert!(synced.is_err() || expected.contains(&last), "{calls} calls, seed {seed}");
    }
    assert!(with > 10 && without > 10, "{with} and {without}");
}

#[test]
fn a_flipped_bit_in_a_record_that_was_written_ahead_is_damage() {
    let (files, bytes) = (SimFiles::new(3), vec![9; 14_000]);
    let journal = open(&files).unwrap();
    let ahead = arrive(&journal, &bytes);
    let tail = Tail { shared: vec![Arc::new(bytes)], ahead: Some(ahead) };
    let last = journal.append_shared(journal_conformance::block(2), &[1; 30], tail, None).unwrap();
    journal.sync(last).unwrap();
    let head = journal.counts().bytes_written / SECTOR;
    drop(journal);
    let expected = found(&files).unwrap();
    assert_eq!(expected.len(), 1);
    for sector in 0..head + 8 {
        assert!(is_noticed(&files, sector, &expected), "sector {sector} of {head}");
    }
}

/// The disk may have begun to write it, and must not find other bytes meanwhile.
#[test]
fn what_was_written_ahead_is_synced_before_other_bytes_take_its_place() {
    let (files, calls) = (SimFiles::new(4), Arc::new(Mutex::new(Vec::new())));
    let (journal, bytes) = (open(&files).unwrap(), vec![9; 14_000]);
    let seen = Arc::clone(&calls);
    files.inject(move |call: &FileCall| {
        seen.lock().unwrap().push(call.op);
        None
    });
    // Whether a sync is the first call since the last time, and how many syncs there were.
    let syncs = || {
        let calls: Vec<FileOp> = std::mem::take(&mut *calls.lock().unwrap());
        (calls.first() == Some(&FileOp::Sync), calls.iter().filter(|op| **op == FileOp::Sync).count())
    };
    drop(arrive(&journal, &bytes));
    assert_eq!(syncs(), (false, 0));
    // Another one at the same place.
    drop(arrive(&journal, &bytes));
    assert_eq!(syncs(), (true, 1));
    // Another one, whose first parts fill no page yet.
    drop(arrive_in_parts(&journal, &bytes, 500));
    assert_eq!(syncs(), (true, 1));
    // What fills no page writes nothing that a batch could meet.
    drop(arrive_in_parts(&journal, &bytes[..2000], 500));
    assert_eq!(syncs(), (true, 1));
    fill(&journal, [10_000]);
    assert_eq!(syncs(), (false, 1));
    drop(arrive(&journal, &bytes));
    assert_eq!(syncs(), (false, 0));
    // A batch at the same place, of three pages and of two.
    fill(&journal, [10_000]);
    assert_eq!(syncs(), (true, 2));
    drop(arrive(&journal, &bytes));
    assert_eq!(syncs(), (false, 0));
    fill(&journal, [6000]);
    assert_eq!(syncs(), (false, 1));
    // Its own batch.
    let ahead = arrive(&journal, &bytes);
    let tail = Tail { shared: vec![Arc::new(bytes)], ahead: Some(ahead) };
    let last = journal.append_shared(journal_conformance::block(2), &[1; 30], tail, None).unwrap();
    journal.sync(last).unwrap();
    assert_eq!((syncs(), journal.counts().records_ahead), ((false, 1), 1));
}

/// Recovery drops a torn batch behind durable ones, and still reports damage before it.
#[test]
fn damage_before_a_torn_batch_is_not_taken_for_its_tear() {
    let mut torn = 0;
    for seed in 0..20 {
        let files = SimFiles::new(seed);
        let journal = open(&files).unwrap();
        fill(&journal, [3000, 10]);
        let head = journal.counts().bytes_written / SECTOR;
        files.inject(|call: &FileCall| {
            (call.op == FileOp::Sync && call.path.ends_with("journal")).then(|| ErrorKind::Other.into())
        });
        let last = journal.append(journal_conformance::block(1), &[7; 9000], None).unwrap();
        assert!(journal.sync(last).is_err());
        drop(journal);
        files.inject(|_| None);
        files.restart();
        let expected = found(&files).unwrap();
        torn += u64::from(expected.len() == 2);
        for sector in 0..head {
            assert!(is_noticed(&files, sector, &expected), "sector {sector} of {head}");
        }
        for sector in head..head + 24 {
            is_noticed(&files, sector, &expected);
        }
        // The next batch goes to the same place.
        let journal = open(&files).unwrap();
        fill(&journal, [20, 4000]);
        drop(journal);
        assert_eq!(found(&files).unwrap().len(), expected.len() + 2);
    }
    assert!(torn > 10, "{torn}");
}

/// A full ring, in which only one record is live: the oldest. To make room, it is copied, and only the next batch can say so. Returns the
/// journal, the record, and the positions of two pending ones that are too long for what is left.
fn full(files: &SimFiles) -> (RingJournal, Position, [Position; 2]) {
    let journal = open(files).unwrap();
    let block = journal_conformance::block(1);
    let kept = fill(&journal, [16_000])[0];
    let mut others = Vec::new();
    for len in [14_000, 0] {
        while let Ok(position) = journal.append(block, &vec![1; len], None) {
            journal.sync(position).unwrap();
            others.push(position);
        }
    }
    assert!(others.len() < 150, "they fit into one batch when they are released");
    journal.release(&others);
    let mut room = journal.reserve(2, 32_000).unwrap();
    let long = [2, 3].map(|value| journal.append(block, &[value; 16_000], Some(&mut room)).unwrap());
    (journal, kept, long)
}

#[test]
fn a_batch_overwrites_only_what_a_durable_batch_has_given_up() {
    for (calls, seed) in (0..8).flat_map(|calls| (0..6).map(move |seed| (calls, seed))) {
        let files = SimFiles::new(seed);
        let (journal, kept, long) = full(&files);
        let before = journal.counts().syncs;
        files.crash_after(calls);
        let synced = journal.sync(long[1]);
        assert!(files.is_crashed() || journal.counts().syncs == before + 2, "an empty batch came first");
        drop(journal);
        files.restart();
        let found = found(&files).unwrap_or_else(|error| panic!("{calls} calls, seed {seed}: {error}"));
        let found: Vec<Position> = found.iter().map(|record| record.0).collect();
        assert!(found == [kept] && synced.is_err() || found == [kept, long[0], long[1]], "{calls} calls, seed {seed}: {found:?}");
    }
}

#[test]
fn a_record_that_is_released_before_it_is_written_does_not_come_back() {
    let files = SimFiles::new(1);
    let (journal, kept, long) = full(&files);
    journal.release(&long[..1]);
    journal.sync(long[1]).unwrap();
    drop(journal);
    files.restart();
    assert_eq!(found(&files).unwrap().iter().map(|record| record.0).collect::<Vec<_>>(), [kept, long[1]]);
}

/// Many releases do not fit into one batch. If the last of them were known first, by the tail, entries would come back that it relies on.
#[test]
fn a_release_is_not_known_before_an_earlier_one() {
    let files = SimFiles::new(7);
    let journal = open(&files).unwrap();
    let block = journal_conformance::block(1);
    let first = journal.append(block, &[1], None).unwrap();
    journal.sync(first).unwrap();
    let many: Vec<Position> = (0..400).map(|_| journal.append(block, &[2], None).unwrap()).collect();
    let kept = journal.append(block, &[3], None).unwrap();
    journal.sync(kept).unwrap();
    journal.release(&many);
    journal.release(&[first]);
    let last = journal.append(block, &[4], None).unwrap();
    journal.sync(last).unwrap();
    let counts = journal.counts();
    drop(journal);
    files.restart();
    let back: Vec<Position> = found(&files).unwrap().iter().map(|record| record.0).collect();
    assert_eq!(counts.syncs, 3);
    assert!(back.len() > 100 && back.contains(&first) && back.ends_with(&[kept, last]), "{back:?}");
    assert!(!back.contains(&many[0]) && back.contains(&many[399]), "{back:?}");
}

#[test]
fn releases_that_were_synced_are_not_undone() {
    let files = SimFiles::new(1);
    let journal = open(&files).unwrap();
    let positions = fill(&journal, vec![100; 700]);
    journal.release(&positions[..690]);
    assert!(journal.sync_releases().unwrap());
    files.crash_after(0);
    drop(journal);
    files.restart();
    assert_eq!(found(&files).unwrap().iter().map(|record| record.0).collect::<Vec<_>>(), positions[690..]);
}

/// A ring that is full of small records, the most of which stay live.
fn crowded(files: &SimFiles) -> (RingJournal, Vec<Position>) {
    let journal = open(files).unwrap();
    let mut positions = Vec::new();
    // Many to a batch.
    while let Ok(position) = journal.append(journal_conformance::block(1), &[1; 400], None) {
        positions.push(position);
        if positions.len().is_multiple_of(30) {
            journal.sync(position).unwrap();
        }
    }
    journal.sync(positions[positions.len() - 1]).unwrap();
    assert!(journal.fill() > 0.9 && positions.len() > 1000, "{} records, {}", positions.len(), journal.fill());
    (journal, positions)
}

#[test]
fn releases_alone_do_not_fill_the_ring() {
    let (journal, positions) = crowded(&SimFiles::new(1));
    let before = journal.counts().syncs;
    for released in &positions[500..700] {
        journal.release(&[*released]);
        journal.free_room().unwrap();
    }
    assert_eq!((journal.failed(), journal.counts().syncs - before), (None, 1), "one batch names many");
    // Those that must be durable wait before the ring is full.
    let waits = positions[700..760].iter().find_map(|released| {
        journal.release(&[*released]);
        journal.sync_releases().err()
    });
    assert_eq!(waits.map(|error| error.reaction), Some(Reaction::Retry));
    assert!(journal.failed().is_none() && journal.fill() < 0.99, "{}", journal.fill());
    // Until older ones go.
    journal.release(&positions[..200]);
    assert!(journal.sync_releases().unwrap());
    assert!(journal.fill() < 0.95, "{}", journal.fill());
    let last = journal.append(journal_conformance::block(1), &[1; 400], None).unwrap();
    journal.sync(last).unwrap();
}

/// A bug in one thread must not let the others wait for ever.
#[test]
fn a_panic_in_a_write_fails_the_journal_for_all() {
    #[derive(Debug)]
    struct Panics;
    impl Steps for Panics {
        fn before(&self, step: Step) -> io::Result<()> {
            if step == Step::SyncJournal && std::thread::current().name() == Some("writer") {
                std::thread::sleep(std::time::Duration::from_millis(20));
                panic!("as wanted");
            }
            Ok(())
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let store = LocalStore::open_with_steps(dir.path(), CLUSTER, NEW, Arc::new(Panics)).unwrap();
    let journal = store.open_journal(NEW_JOURNAL).unwrap();
    let position = journal.append(journal_conformance::block(1), &[], None).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let sync = || assert_eq!(journal.sync(position).unwrap_err().reaction, Reaction::Fatal);
            std::thread::Builder::new().name("writer".into()).spawn_scoped(scope, sync).unwrap();
        }
    });
    assert!(journal.failed().is_some());
}

#[test]
fn a_failed_sync_fails_journal_and_disk_for_good() {
    let files = SimFiles::new(3);
    let store = LocalStore::open_on(Arc::new(files.clone()), Path::new("/disk"), CLUSTER, NEW).unwrap();
    let journal = store.open_journal(NEW_JOURNAL).unwrap();
    fill(&journal, [100]);
    files.inject(|call| (call.op == FileOp::Sync).then(|| io::Error::from_raw_os_error(5)));
    let position = journal.append(journal_conformance::block(1), &[1; 6000], None).unwrap();
    assert_eq!(journal.sync(position).unwrap_err().reaction, Reaction::Fatal);
    files.inject(|_| None);
    assert!(journal.failed().is_some_and(|why| why.contains("SyncJournal")), "{:?}", journal.failed());
    assert_eq!(store.failed(), journal.failed());
    assert_eq!(journal.sync(position).unwrap_err().reaction, Reaction::Fatal);
    assert_eq!(journal.append(journal_conformance::block(1), &[1], None).unwrap_err().reaction, Reaction::Fatal);
    assert_eq!(journal.reserve(1, 1).err().map(|error| error.reaction), Some(Reaction::Fatal));
    let meta = weft_store::conformance::block(CLUSTER, 1, 100);
    assert_eq!(store.create(&meta).err().map(|error| error.reaction), Some(Reaction::Fatal));
    // Memory still has all that was written. What the next process finds must be what the disk has.
    drop((journal, store));
    files.kill();
    let seen = found(&files).unwrap();
    files.restart();
    assert_eq!(found(&files).unwrap(), seen);
}

#[test]
fn a_journal_without_room_is_not_created_and_can_be_created_later() {
    let files = SimFiles::new(4);
    files.set_capacity(RING_BYTES_MIN / 2);
    let store = LocalStore::open_on(Arc::new(files.clone()), Path::new("/disk"), CLUSTER, NEW).unwrap();
    let error = store.open_journal(NEW_JOURNAL).unwrap_err();
    assert_eq!((error.reaction, error.cause), (Reaction::Unavailable, Some(Cause::NoSpace)), "{error}");
    let free = store.capacity().unwrap().free_bytes;
    assert!(free > RING_BYTES_MIN / 2 - 4096, "{free} bytes are free");
    files.set_capacity(2 * RING_BYTES_MIN);
    store.open_journal(NEW_JOURNAL).unwrap();
    let odd = NewJournal { ring_bytes: RING_BYTES_MIN + 1, nonce: 1 };
    let other = LocalStore::open_on(Arc::new(SimFiles::new(1)), Path::new("/disk"), CLUSTER, NEW).unwrap();
    assert_eq!(other.open_journal(odd).unwrap_err().reaction, Reaction::InvalidInput);
}

#[test]
fn a_crash_at_any_call_of_the_creation_leaves_no_journal_or_an_empty_one() {
    for calls in 0.. {
        let files = SimFiles::new(calls);
        files.crash_after(calls);
        let is_created = open(&files).is_ok();
        files.restart();
        assert_eq!(found(&files).unwrap_or_else(|error| panic!("after {calls} calls: {error}")), []);
        if is_created {
            assert!(calls > 10);
            break;
        }
    }
}

#[test]
fn a_damaged_journal_is_set_aside_for_a_new_one() {
    let files = SimFiles::new(5);
    fill(&open(&files).unwrap(), [100]);
    files.flip_bit(&path(), (RING_AT + 100) * 8).unwrap();
    let store = LocalStore::open_on(Arc::new(files.clone()), Path::new("/disk"), CLUSTER, NEW).unwrap();
    assert_eq!(store.open_journal(NEW_JOURNAL).unwrap_err().reaction, Reaction::Corrupt);
    store.set_journal_aside().unwrap();
    fill(&store.open_journal(NewJournal { nonce: 6, ..NEW_JOURNAL }).unwrap(), [7]);
    drop(store);
    assert_eq!(found(&files).unwrap().len(), 1);
    files.flip_bit(Path::new("/disk/journal.damaged"), 0).unwrap();
}

#[test]
fn a_journal_is_open_once_and_keeps_the_disk_locked() {
    let files = SimFiles::new(6);
    let store = || LocalStore::open_on(Arc::new(files.clone()), Path::new("/disk"), CLUSTER, NEW);
    let first = store().unwrap();
    let journal = first.open_journal(NEW_JOURNAL).unwrap();
    assert_eq!(first.open_journal(NEW_JOURNAL).unwrap_err().reaction, Reaction::InvalidInput);
    assert_eq!(first.set_journal_aside().unwrap_err().reaction, Reaction::InvalidInput);
    drop(first);
    assert!(store().unwrap_err().message.contains("in use by another process"));
    drop(journal);
    store().unwrap().open_journal(NEW_JOURNAL).unwrap();
}

/// Older programs do not know the journal.
#[test]
fn a_disk_with_a_journal_has_a_version_that_older_programs_refuse() {
    let dir = tempfile::tempdir().unwrap();
    let label = || std::fs::read_to_string(dir.path().join("disk")).unwrap();
    let store = LocalStore::open(dir.path(), CLUSTER, NEW).unwrap();
    assert!(label().starts_with("weft-disk 2\n"));
    for _ in 0..2 {
        drop(store.open_journal(NEW_JOURNAL).unwrap());
        assert!(label().starts_with("weft-disk 3\n") && label().contains("\ndirectories 2\n"), "{}", label());
    }
    drop(store);
    LocalStore::open_existing(dir.path(), CLUSTER).unwrap();
}
