//! The conformance suite of [`Journal`], for tests: it panics if a journal breaks the trait's contract.

use crate::journal::{Ahead, Journal, Position, Tail};
use crate::sim_files::SimFiles;
use std::{collections::BTreeMap, sync::Arc};
use weft_types::{BlockId, Reaction, Result, StripeId};

/// Runs the suite. Each call of `make_journal` must return an empty journal with a ring of 1 MiB.
pub fn check<J: Journal>(mut make_journal: impl FnMut() -> J) {
    what_is_appended_is_read_and_replayed(&make_journal());
    a_record_is_written_while_it_arrives(&make_journal());
    one_sync_is_enough_for_all(&make_journal());
    released_records_are_gone(&make_journal());
    releases_free_room_without_an_append(&make_journal());
    reservations_keep_room(&make_journal());
    a_record_that_stands_in_the_way_is_carried_along(&make_journal());
    refusals(&make_journal());
    many_threads(&make_journal());
}

/// A block of a number.
pub fn block(number: u64) -> BlockId {
    BlockId { stripe: StripeId(number), index: (number % 5) as u8, copy: 0, generation: 1 }
}

fn payload(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|i| ((i ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 37) as u8).collect()
}

fn replayed(journal: &dyn Journal) -> Vec<(Position, BlockId, Vec<u8>)> {
    let mut all = Vec::new();
    let visit = &mut |position, block, bytes: &[u8]| {
        all.push((position, block, bytes.to_vec()));
        Ok(())
    };
    journal.replay(visit).expect("replay");
    all
}

fn reaction<T>(result: Result<T>) -> Reaction {
    result.err().expect("an error was expected").reaction
}

fn what_is_appended_is_read_and_replayed(journal: &dyn Journal) {
    assert_eq!((journal.durable(), replayed(journal).len()), (None, 0));
    let mut expected = Vec::new();
    for (number, len) in [0, 1, 491, 492, 493, 4095, 4096, 10_000, 16_000, 3].into_iter().enumerate() {
        let bytes = payload(number as u64, len);
        let position = journal.append(block(number as u64 % 3), &bytes, None).expect("append");
        assert!(expected.last().is_none_or(|(last, _, _)| *last < position), "positions rise");
        assert_eq!(journal.read(position).expect("read before it is durable"), bytes);
        if number % 3 == 2 {
            journal.sync(position).expect("sync");
            assert!(journal.durable() >= Some(position));
        }
        expected.push((position, block(number as u64 % 3), bytes));
        assert_eq!(replayed(journal), expected);
    }
    for (position, _, bytes) in &expected {
        journal.sync(*position).expect("sync");
        assert_eq!(journal.read(*position).expect("read"), *bytes);
    }
    assert_eq!(journal.durable(), expected.last().map(|last| last.0));
    let mut visited = 0;
    let stop = journal.replay(&mut |_, _, _| {
        visited += 1;
        Err(weft_types::Error::replan("enough"))
    });
    assert_eq!((reaction(stop), visited), (Reaction::Replan, 1));
}

/// What a record has whose payload ends with these bytes, which were written ahead or not.
fn tail(bytes: &[u8], ahead: Option<Ahead>) -> Tail {
    let (first, last) = bytes.split_at(bytes.len() / 3);
    Tail { shared: vec![Arc::new(first.to_vec()), Arc::new(last.to_vec())], ahead }
}

/// Bytes that arrive in parts of a length; `None` if not all of them could be written.
fn arrive(journal: &dyn Journal, bytes: &[u8], part: usize) -> Option<Ahead> {
    let mut ahead = journal.begin_ahead(bytes.len())?;
    let mut parts = bytes.chunks(part);
    parts.all(|part| journal.write_ahead(&mut ahead, part).expect("write")).then_some(ahead)
}

fn a_record_is_written_while_it_arrives(journal: &dyn Journal) {
    let mut expected = Vec::new();
    let append = |head: &[u8], bytes: &[u8], ahead| {
        let position = journal.append_shared(block(1), head, tail(bytes, ahead), None).expect("append");
        let payload = [head, bytes].concat();
        assert_eq!(journal.read(position).expect("read before it is durable"), payload);
        (position, block(1), payload)
    };
    for (number, len) in [0, 1, 491, 492, 4096, 7872, 12_000].into_iter().enumerate() {
        let (head, bytes) = (payload(1, number * 300), payload(number as u64, len));
        // Others in the same batch, before and after.
        (0..number % 3).for_each(|_| expected.push(append(&[], &[3; 700], None)));
        let ahead = arrive(journal, &bytes, 5000);
        assert!(ahead.is_some());
        expected.push(append(&head, &bytes, ahead));
        (0..number % 2).for_each(|_| expected.push(append(&[4; 20], &[], None)));
        journal.sync(expected[expected.len() - 1].0).expect("sync");
        assert_eq!((replayed(journal), journal.counts().records_ahead), (expected.clone(), number as u64 + 1));
    }
    assert_eq!(journal.counts().bytes_wasted, 0);
    // Another record comes first.
    let (before, bytes) = (journal.counts(), payload(9, 9000));
    let mut ahead = journal.begin_ahead(9000).expect("begin");
    assert!(journal.write_ahead(&mut ahead, &bytes[..6000]).expect("write"));
    assert!(journal.begin_ahead(10).is_none(), "one at a time");
    expected.push(append(&[], &[5; 3000], None));
    assert!(journal.write_ahead(&mut ahead, &bytes[6000..]).expect("write"), "it is not synced yet");
    assert_eq!(journal.counts().bytes_wasted, 0, "it may be used yet");
    journal.sync(expected[expected.len() - 1].0).expect("sync");
    // Whole pages of what has come.
    assert_eq!(journal.counts().bytes_wasted, 8192, "in vain");
    assert!(!journal.write_ahead(&mut ahead, &[]).expect("write"));
    let mut again = journal.begin_ahead(9000).expect("begin again");
    expected.push(append(&[6], &bytes, Some(ahead)));
    // More than was announced; then other bytes than those of the record, and too few.
    assert!(!journal.write_ahead(&mut again, &payload(9, 9001)).expect("write"));
    drop(again);
    for other in [&payload(8, 9000)[..], &bytes[..8999]] {
        expected.push(append(&[7], &bytes, arrive(journal, other, 4000)));
        journal.sync(expected[expected.len() - 1].0).expect("sync");
    }
    let counts = journal.counts();
    assert_eq!((counts.records_ahead, counts.appends), (before.records_ahead, before.appends + 4));
    assert_eq!(counts.bytes_wasted, 3 * 8192, "batches took the place of each");
    // One that is dropped, when another one begins at its place.
    drop(arrive(journal, &bytes[..5000], 5000));
    drop(journal.begin_ahead(10));
    assert_eq!(journal.counts().bytes_wasted, 3 * 8192 + 4096);
    assert_eq!(replayed(journal), expected);
    // It waits for the sync when another one begins.
    let ahead = arrive(journal, &bytes, 9000);
    expected.push(append(&[8], &bytes, ahead));
    assert!(journal.begin_ahead(10).is_none());
    journal.sync(expected[expected.len() - 1].0).expect("sync");
    assert_eq!((replayed(journal), journal.counts().records_ahead), (expected, before.records_ahead + 1));
    // Not in a journal that is filling, and not more than a record may have.
    assert!(journal.begin_ahead(journal.record_bytes_max() + 1).is_none());
    let mut filling = journal.begin_ahead(10);
    while filling.take().is_some() {
        let last = journal.append(block(1), &bytes, None).expect("append");
        journal.sync(last).expect("sync");
        filling = journal.begin_ahead(10);
    }
    assert!(journal.fill() < 0.85, "{}", journal.fill());
}

fn one_sync_is_enough_for_all(journal: &dyn Journal) {
    let positions: Vec<Position> = (0..64).map(|i| journal.append(block(i), &[1; 100], None).expect("append")).collect();
    for position in positions.iter().rev() {
        journal.sync(*position).expect("sync");
    }
    let counts = journal.counts();
    assert_eq!((counts.appends, counts.syncs), (64, 1));
}

fn released_records_are_gone(journal: &dyn Journal) {
    let positions: Vec<Position> = (0..10).map(|i| journal.append(block(i), &[i as u8; 50], None).expect("append")).collect();
    journal.sync(positions[9]).expect("sync");
    journal.release(&[positions[3], positions[0], positions[3]]);
    assert_eq!(reaction(journal.read(positions[3])), Reaction::NotFound);
    let left: Vec<Position> = replayed(journal).into_iter().map(|record| record.0).collect();
    assert_eq!(left, [1, 2, 4, 5, 6, 7, 8, 9].map(|i| positions[i]));
    journal.release(&positions);
    assert!(replayed(journal).is_empty());
    let last = journal.append(block(1), &[], None).expect("append");
    journal.sync(last).expect("sync");
    assert!(journal.fill() < 0.01, "{}", journal.fill());
}

fn releases_free_room_without_an_append(journal: &dyn Journal) {
    assert!(!journal.sync_releases().expect("there are none"));
    let mut positions = Vec::new();
    while let Ok(position) = journal.append(block(1), &payload(1, 2000), None) {
        positions.push(position);
    }
    journal.sync(positions[positions.len() - 1]).expect("sync");
    journal.release(&positions);
    assert!(journal.fill() > 0.9 && positions.len() > 300, "{}", journal.fill());
    assert!(journal.sync_releases().expect("sync the releases"));
    assert!(journal.fill() < 0.01, "{}", journal.fill());
    assert!(!journal.sync_releases().expect("they are durable"));
}

fn reservations_keep_room(journal: &dyn Journal) {
    let mut reservation = journal.reserve(2, 9000).expect("reserve");
    let (full, bytes) = (journal.fill(), payload(1, 8000));
    assert!(full > 0.008 && full < 0.05, "{full}");
    let mut others = Vec::new();
    let busy = loop {
        match journal.reserve(1, 10_000) {
            Ok(other) => others.push(other),
            Err(error) => break error,
        }
    };
    assert_eq!(busy.reaction, Reaction::Retry, "{busy}");
    assert!((0.85..=0.9).contains(&journal.fill()), "{}", journal.fill());
    let mut unreserved = 0;
    while let Ok(position) = journal.append(block(1), &bytes, None) {
        unreserved += 1;
        journal.sync(position).expect("sync");
    }
    assert!(unreserved < 10, "reserved room was given away");
    let last = journal.append(block(2), &bytes, Some(&mut reservation)).expect("its room is reserved");
    journal.append(block(2), &[1; 1000], Some(&mut reservation)).expect("its room is reserved");
    assert_eq!(reaction(journal.append(block(2), &bytes, Some(&mut reservation))), Reaction::Retry, "it is used up");
    drop((reservation, others));
    assert!(journal.fill() < 0.2, "{}", journal.fill());
    journal.sync(last).expect("sync");
    // Everything that was promised fits.
    let mut promised = Vec::new();
    while let Ok(reservation) = journal.reserve(1, 10_000) {
        promised.push(reservation);
    }
    for reservation in &mut promised {
        let position = journal.append(block(3), &payload(2, 10_000), Some(reservation)).expect("its room is reserved");
        journal.sync(position).expect("sync");
    }
}

/// Many times the ring's size is written past a record that stays live.
fn a_record_that_stands_in_the_way_is_carried_along(journal: &dyn Journal) {
    let kept: Vec<(Position, Vec<u8>)> = (0..5)
        .map(|i| {
            let bytes = payload(i, 3000);
            (journal.append(block(i), &bytes, None).expect("append"), bytes)
        })
        .collect();
    let mut others: Vec<Position> = Vec::new();
    for round in 0..600 {
        others.push(journal.append(block(round), &payload(round, 9000), None).expect("the records before it are released"));
        if round % 4 == 3 {
            journal.sync(others[others.len() - 1]).expect("sync");
            journal.release(&others);
            others.clear();
        }
        assert!(journal.fill() < 0.9, "{}", journal.fill());
    }
    for (position, bytes) in &kept {
        assert_eq!(journal.read(*position).expect("read"), *bytes);
    }
    let first: Vec<Position> = replayed(journal).iter().map(|record| record.0).collect();
    assert_eq!(first, kept.iter().map(|kept| kept.0).collect::<Vec<_>>(), "in the order of the appends");
    assert!(journal.counts().bytes_copied > 0);
}

fn refusals(journal: &dyn Journal) {
    let error = journal.append(block(1), &vec![0; (1 << 20) / 64 + 1], None).expect_err("it is too long");
    assert_eq!((error.reaction, error.block), (Reaction::InvalidInput, Some(block(1))));
    let position = journal.append(block(1), &vec![0; (1 << 20) / 64], None).expect("append");
    journal.release(&[position]);
    assert_eq!(reaction(journal.read(position)), Reaction::NotFound);
    assert_eq!(reaction(journal.reserve(1, 2 << 20)), Reaction::Retry);
    journal.sync(position).expect("what is released can be waited for");
    assert_eq!(reaction(journal.sync(Position(position.0 + 1))), Reaction::InvalidInput, "nothing was appended there");
}

fn many_threads(journal: &dyn Journal) {
    std::thread::scope(|scope| {
        for thread in 0..8 {
            scope.spawn(move || {
                for round in 0..50 {
                    let bytes = payload(thread * 1000 + round, 200 + round as usize);
                    let position = journal.append(block(thread), &bytes, None).expect("append");
                    journal.sync(position).expect("sync");
                    assert!(journal.durable() >= Some(position));
                    assert_eq!(journal.read(position).expect("read"), bytes);
                    journal.release(&[position]);
                }
            });
        }
    });
    assert_eq!(journal.counts().appends, 400);
    assert!(replayed(journal).is_empty());
}

/// What a journal was asked for over several lives.
#[derive(Default)]
struct Model {
    /// By position.
    records: BTreeMap<Position, (BlockId, Vec<u8>)>,
    /// In the order of the releases.
    released: Vec<Position>,
    durable: Option<Position>,
}

impl Model {
    /// Checks what a journal has after a crash, and goes on from there.
    fn recover(&mut self, found: Vec<(Position, BlockId, Vec<u8>)>, case: &str) {
        let found: BTreeMap<Position, (BlockId, Vec<u8>)> =
            found.into_iter().map(|(position, block, bytes)| (position, (block, bytes))).collect();
        let end = found.keys().next_back().copied().max(self.durable);
        let before_end = |position: &Position| Some(*position) <= end;
        let is_it = |undone: usize| {
            let released = &self.released[..self.released.len() - undone];
            let expected = self.records.iter().filter(|(position, _)| before_end(position) && !released.contains(position));
            expected.eq(found.iter())
        };
        let undone = (0..=self.released.len()).find(|undone| is_it(*undone));
        let lost: Vec<_> = self.records.keys().filter(|it| !found.contains_key(it) && !self.released.contains(it)).collect();
        assert!(undone.is_some(), "{case}: lost {lost:?}, durable {:?}, found {:?}", self.durable, found.keys());
        (self.records, self.released, self.durable) = (found, Vec::new(), end);
    }
}

/// Runs a journal through crashes: for each seed some lives, each of which ends with a loss of power at a random call or with a kill.
/// `open` opens the journal on the given files, or creates it with a ring of 1 MiB.
pub fn check_crashes<J: Journal>(seeds: std::ops::Range<u64>, open: impl Fn(&SimFiles) -> Result<J>) {
    let (mut crashes, mut copied, mut ahead) = (0, 0, 0);
    for seed in seeds {
        let files = SimFiles::new(seed);
        let mut random = Random(seed);
        let mut model = Model::default();
        drop(open(&files).expect("create"));
        for life in 0..4 {
            let case = format!("seed {seed}, life {life}");
            let journal = open(&files).unwrap_or_else(|error| panic!("{case}: {error}"));
            model.recover(replayed(&journal), &case);
            // Long lives go around the ring several times.
            let calls_max = [10, 40, 400][random.below(3) as usize];
            files.crash_after(random.below(calls_max));
            live(&journal, &files, &mut model, &mut random);
            crashes += u64::from(files.is_crashed());
            copied += journal.counts().bytes_copied;
            ahead += journal.counts().records_ahead;
            drop(journal);
            if random.below(4) == 0 && !files.is_crashed() {
                files.kill()
            } else {
                files.restart()
            }
            // A crash while it is opened changes nothing.
            files.crash_after(random.below(4));
            drop(open(&files));
            files.restart();
        }
    }
    assert!(crashes > 0 && copied > 0 && ahead > 0, "{crashes} crashes, {copied} bytes were copied, {ahead} records ahead");
}

/// Appends, syncs and releases until the power is lost, or for a while.
fn live(journal: &dyn Journal, files: &SimFiles, model: &mut Model, random: &mut Random) {
    // In some lives, nothing is released before the journal is nearly full.
    let is_greedy = random.below(2) == 0;
    let mut arriving: Option<(Vec<u8>, usize, Ahead)> = None;
    for _ in 0..random.below(1000) {
        match random.below(10) {
            0..5 => {
                let bytes = payload(random.0, random.below(12_000) as usize);
                let block = block(random.below(6));
                match journal.append(block, &bytes, None) {
                    Ok(position) => _ = model.records.insert(position, (block, bytes)),
                    Err(error) if error.reaction == Reaction::Retry => {}
                    Err(error) => return assert!(files.is_crashed(), "{error}"),
                }
            }
            5..7 => {
                let Some(last) = model.records.keys().next_back().copied() else { continue };
                if let Err(error) = journal.sync(last) {
                    return assert!(files.is_crashed(), "{error}");
                }
                model.durable = model.durable.max(Some(last));
            }
            7..9 => {
                if let Err(error) = go_on(&mut arriving, journal, model, random) {
                    return assert!(files.is_crashed(), "{error}");
                }
            }
            _ if is_greedy && journal.fill() < 0.85 => {}
            _ => {
                // Every eighth record stays for long, and stands in the way.
                let (all, part) = (random.below(60) == 0, random.below(3));
                let is_any = random.below(4) == 0;
                let is_live = |it: &Position| (is_any || Some(*it) <= model.durable) && !model.released.contains(it);
                let live = model.records.keys().copied().filter(is_live);
                let some: Vec<Position> =
                    live.filter(|it| all || (it.0 % 8 != 0 && it.0 % 3 != part)).take(if all { 400 } else { 60 }).collect();
                journal.release(&some.iter().rev().copied().collect::<Vec<_>>());
                model.released.extend(some);
            }
        }
    }
}

/// Lets parts of a record arrive, and appends it when it is whole; or begins with one.
fn go_on(
    arriving: &mut Option<(Vec<u8>, usize, Ahead)>,
    journal: &dyn Journal,
    model: &mut Model,
    random: &mut Random,
) -> Result<()> {
    let begin = |random: &mut Random| {
        let bytes = payload(random.0, random.below(12_000) as usize);
        journal.begin_ahead(bytes.len()).map(|ahead| (bytes, 0, ahead))
    };
    let Some((bytes, mut at, mut ahead)) = arriving.take().or_else(|| begin(random)) else { return Ok(()) };
    while at < bytes.len() && random.below(6) > 0 {
        let end = bytes.len().min(at + 1 + random.below(5000) as usize);
        // Another record may have come first.
        if !journal.write_ahead(&mut ahead, &bytes[at..end])? {
            break;
        }
        at = end;
    }
    // Sometimes it is appended without the rest, as any other one.
    if at < bytes.len() && random.below(4) > 0 {
        *arriving = Some((bytes, at, ahead));
        return Ok(());
    }
    let (head, block) = (payload(random.0, random.below(300) as usize), block(random.below(6)));
    match journal.append_shared(block, &head, tail(&bytes, Some(ahead)), None) {
        Ok(position) => _ = model.records.insert(position, (block, [head, bytes].concat())),
        Err(error) if error.reaction == Reaction::Retry => {}
        Err(error) => return Err(error),
    }
    Ok(())
}

/// splitmix64.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % end
    }
}
