use super::*;
use tokio::time::advance;
use weft_proto::updates::{Hop, Route};
use weft_update::{Incarnation, Part as Range, Record, Session, Stamp};

const LEN: u64 = 10_000;
const SLICES: usize = 3;

fn block(index: u8) -> BlockId {
    BlockId { stripe: StripeId(7), index, copy: 0, generation: 1 }
}

fn load(attempt: u32) -> LoadId {
    let id = UpdateId { session: Session { number: 9, ends_at_ms: 1000 }, counter: 1, lead: 0 };
    LoadId { from: block(0), id, attempt }
}

fn source(connection: u64) -> Source {
    Source { name: "one".into(), connection }
}

/// From block 0 over 4 to 5, and to 6; deltas of two data blocks.
fn head(len: u64) -> LoadHead {
    let hop = |(from, to)| Hop { from: block(from), to: block(to) };
    let hops = [(0, 4), (4, 5), (0, 6)].map(hop).to_vec();
    let range = |stream, start, len| LoadPart { stream, start, len };
    LoadHead { route: Route { hops, in_turn: false, slice_len: 4096 }, parts: vec![range(0, 100, len - 3000), range(2, 7, 3000)] }
}

fn pieces() -> Pieces {
    let piece = |part: &LoadPart| {
        let bytes = (0..part.len).map(|at| (at * 7) as u8 ^ part.stream).collect();
        (part.stream, Arc::new(Piece { start: part.start, bytes }))
    };
    head(LEN).parts.iter().map(piece).collect()
}

/// A slice as it arrives.
fn slice(head: &LoadHead, number: u32) -> Vec<Part> {
    let all = pieces();
    let part = |range: LoadPart| {
        let piece = &all[&range.stream];
        let from = (range.start - piece.start) as usize;
        Part { stream: range.stream, start: range.start, bytes: piece.bytes.slice(from..from + range.len as usize) }
    };
    head.slice(number as usize).into_iter().map(part).collect()
}

fn message(streams: &[u8]) -> Message {
    let range = Range { stream: 0, number: 5, incarnation: Incarnation::default(), span: weft_types::Span::new(0, 9) };
    let record = Record { id: load(0).id, term: 3, participants: vec![block(0), block(4)], parts: vec![range] };
    let stamp = Stamp { stream: 0, incarnation: Incarnation::default(), term: 3, watermark: 4 };
    let crcs = streams.iter().map(|stream| (*stream, pieces()[stream].crc())).collect();
    Message::Prepare { stamp, record: Arc::new(record), crcs }
}

fn take(loads: &Loads, source: Source, attempt: u32, number: u32) -> Taken {
    let head = head(LEN);
    let parts = slice(&head, number);
    loads.take(source, (load(attempt), block(4)), number, (number == 0).then_some(head), parts)
}

/// A load of one delta, with slices of 64 KiB, on its way to block 4.
fn arriving(loads: &Loads, len: u64, count: u32) -> Arc<Load> {
    let head = LoadHead { route: Route { slice_len: 64 << 10, ..head(LEN).route }, parts: vec![whole(len)] };
    let mut kept = None;
    for number in 0..count {
        let LoadPart { stream, start, len } = head.slice(number as usize)[0];
        let parts = vec![Part { stream, start, bytes: vec![number as u8; len as usize].into() }];
        let taken = loads.take(source(1), (load(1), block(4)), number, (number == 0).then(|| head.clone()), parts);
        let Taken::Kept { load, .. } = taken else { panic!("{taken:?}") };
        kept = Some(load);
    }
    kept.unwrap()
}

fn whole(len: u64) -> LoadPart {
    LoadPart { stream: 0, start: 100, len }
}

#[test]
fn the_disk_gets_the_slices_of_a_long_load_in_order_and_the_last_ones_at_once() {
    let bytes = |load: &Load| {
        let slices = load.take_early();
        slices.iter().flat_map(|slice| slice.iter()).map(|cut| cut.piece().bytes[0]).collect::<Vec<_>>()
    };
    let len = (5 << 16) + 10;
    let after = |count| arriving(&Loads::default(), len, count);
    assert_eq!([bytes(&after(1)), bytes(&after(2)), bytes(&after(5))], [vec![], vec![0, 1], vec![0, 1, 2, 3, 4]]);
    let load = after(6);
    assert!(!load.is_early());
    assert_eq!((bytes(&load), load.is_early()), (vec![0, 1, 2, 3, 4, 5], true));
    assert_eq!((bytes(&load), load.is_early()), (vec![], true));
    load.refuse_early();
    assert_eq!((bytes(&load), load.is_early()), (vec![], false));
    // Short ones, and those of several deltas.
    assert!(bytes(&arriving(&Loads::default(), 100 << 10, 2)).is_empty());
    let loads = Loads::default();
    for number in 0..SLICES as u32 {
        let Taken::Kept { load, .. } = take(&loads, source(1), 1, number) else { panic!("{number}") };
        assert!(bytes(&load).is_empty());
    }
}

#[test]
fn what_left_early_is_announced_if_it_is_the_delta_of_the_message() {
    let (loads, id) = (Loads::default(), load(1).id);
    let announced = || Announced::from([4, 5, 6].map(|index| (block(index), (message(&[0]), Pieces::new()))));
    let head = LoadHead { route: head(LEN).route, parts: vec![whole(9000)] };
    let announce = |parts: &[LoadPart]| loads.announce((block(0), id), parts, &announced());
    let piece = |start: u64, len: usize| Arc::new(Piece { start: 100 + start, bytes: vec![7; len].into() });
    assert!(announce(&[whole(9000)]).is_none());
    let first = loads.begin_empty(load(1), head.clone()).unwrap();
    first.push(&piece(0, 4096));
    assert!(announce(&[whole(9000)]).is_none(), "a part is missing");
    // It was computed again.
    let second = loads.begin_empty(load(2), head.clone()).unwrap();
    [piece(0, 8192), piece(8192, 808)].iter().for_each(|piece| second.push(piece));
    assert_eq!((second.progress.borrow().slices.len(), first.progress.borrow().slices.len()), (3, 1));
    // Block 4 is not reached, so block 5 behind it is not either.
    assert!(loads.stuck(load(2), block(4), |_| true).is_empty());
    assert!(announce(&[whole(8999)]).is_none() && announce(&[whole(9000), whole(1)]).is_none());
    let (begun, missed) = announce(&[whole(9000)]).unwrap();
    assert_eq!((begun.id, missed.keys().copied().collect::<Vec<_>>()), (load(2), vec![block(4), block(5)]));
    assert!(announce(&[whole(9000)]).is_none(), "once");
    assert_eq!(loads.stuck(load(2), block(6), |_| true).keys().copied().collect::<Vec<_>>(), [block(6)]);
    loads.ended(block(0), id);
    assert!(first.progress.borrow().is_over && second.progress.borrow().is_over && is_empty(&loads));
}

fn room(loads: &Loads) -> usize {
    loads.lock().room.available_permits()
}

fn is_empty(loads: &Loads) -> bool {
    loads.lock().entries.is_empty()
}

#[tokio::test(start_paused = true)]
async fn a_load_is_put_together_from_its_slices_in_order_and_only_for_the_streams_of_the_message() {
    let loads = Loads::default();
    assert!(matches!(loads.park(load(1), block(4), message(&[0, 2])), Parked::Waits));
    for number in 0..SLICES as u32 {
        // Repeated ones, and those of another connection, change nothing.
        assert!(matches!(take(&loads, source(2), 1, number.max(1)), Taken::Dropped));
        let Taken::Kept { load, is_first, is_last, message } = take(&loads, source(1), 1, number) else { panic!("{number}") };
        assert_eq!((is_first, is_last, message.is_some()), (number == 0, number == 2, number == 2));
        assert!(matches!(take(&loads, source(1), 1, number), Taken::Dropped));
        if let Some(message) = message {
            assert_eq!(load.pieces_of(&message), Some(pieces()));
            let only = load.pieces_of(&self::message(&[2])).unwrap();
            assert!(only.len() == 1 && only[&2] == pieces()[&2]);
            let Message::Prepare { stamp, record, .. } = message else { panic!("another message") };
            for crcs in [[(2, 5)].into(), [(9, 5)].into()] {
                let other = Message::Prepare { stamp, record: Arc::clone(&record), crcs };
                assert_eq!(load.pieces_of(&other), None, "bytes that the message does not name");
            }
        }
    }
    assert!(room(&loads) == BYTES_MAX, "the bytes of a load that was handed over are kept");
    loads.tidy();
    assert!(is_empty(&loads));
}

#[tokio::test(start_paused = true)]
async fn a_load_with_a_gap_or_with_other_ranges_is_given_up_at_once() {
    for number in [0, 2] {
        let loads = Loads::default();
        let Taken::Kept { load: kept, .. } = take(&loads, source(1), 1, 0) else { panic!("dropped") };
        let (head, key) = (head(LEN), (load(1), block(4)));
        // A slice too far, or the next one with the ranges of another.
        let taken = loads.take(source(1), key, number.max(1), None, slice(&head, 2 - number.min(1)));
        assert!(matches!(taken, Taken::Stuck), "{taken:?}");
        assert!(kept.progress.borrow().is_over && is_empty(&loads), "what is behind it waits on");
        assert!(matches!(take(&loads, source(1), 1, 1), Taken::Dropped), "it begins in the middle");
    }
}

#[tokio::test(start_paused = true)]
async fn what_never_completes_is_freed_and_what_has_no_room_is_not_begun() {
    let loads = Loads::default();
    let largest = || head(weft_types::UPDATE_BYTES_MAX);
    let begin = |attempt| {
        let bytes = vec![0; 4096].into();
        loads.take(source(1), (load(attempt), block(4)), 0, Some(largest()), vec![Part { stream: 0, start: 100, bytes }])
    };
    let begun = (0..100).take_while(|attempt| matches!(begin(*attempt), Taken::Kept { .. })).count();
    assert_eq!(begun, BYTES_MAX / weft_types::UPDATE_BYTES_MAX as usize);
    assert!(loads.begin(load(200), head(LEN), &pieces(), BTreeMap::new()).is_none(), "own loads count, too");
    advance(STALL / 2).await;
    loads.tidy();
    assert!(matches!(begin(101), Taken::Stuck));
    advance(STALL).await;
    loads.tidy();
    assert!(room(&loads) == BYTES_MAX && is_empty(&loads));

    let parked = (0..2 * ENTRIES_MAX as u32)
        .take_while(|attempt| matches!(loads.park(load(*attempt), block(4), message(&[0])), Parked::Waits));
    assert_eq!(parked.count(), ENTRIES_MAX);
    assert!(matches!(take(&loads, source(1), 1 << 20, 0), Taken::Stuck));
    advance(KEPT).await;
    loads.tidy();
    assert!(is_empty(&loads));
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_connection_ends_what_it_was_bringing() {
    let loads = Loads::default();
    for number in 0..SLICES as u32 {
        assert!(matches!(take(&loads, source(1), 1, number), Taken::Kept { .. }));
    }
    assert!(matches!(take(&loads, source(1), 2, 0), Taken::Kept { .. }));
    assert!(matches!(take(&loads, source(2), 3, 0), Taken::Kept { .. }));
    assert_eq!(loads.broken(&source(1)), [(load(2), block(4))]);
    assert!(loads.broken(&source(1)).is_empty());
    // The complete one still waits for its message.
    assert!(matches!(loads.park(load(1), block(4), message(&[0])), Parked::Complete(..)));
    assert!(matches!(loads.park(load(1), block(4), message(&[0])), Parked::Dropped));
}

#[tokio::test(start_paused = true)]
async fn a_load_that_stalls_is_stuck_and_a_complete_one_without_a_message_is_passed_on() {
    let loads = Loads::default();
    let mut passed_on = None;
    for number in 0..SLICES as u32 {
        let Taken::Kept { load, .. } = take(&loads, source(1), 1, number) else { panic!("{number}") };
        passed_on = Some(load);
    }
    assert!(matches!(take(&loads, source(1), 2, 0), Taken::Kept { .. }));
    let begun = loads.begin(load(3), head(LEN), &pieces(), BTreeMap::new()).unwrap();
    assert_eq!(loads.tidy(), []);
    advance(STALL + Duration::from_secs(1)).await;
    assert_eq!(loads.tidy(), [(load(2), block(4))]);
    assert_eq!(loads.tidy(), []);
    let passed_on = passed_on.unwrap();
    assert!(!passed_on.progress.borrow().is_over, "the blocks behind this one do not get it");
    // The message comes late. The bytes are still here, once.
    assert!(matches!(loads.park(load(1), block(4), message(&[0])), Parked::Complete(..)));
    assert!(matches!(loads.park(load(1), block(4), message(&[0])), Parked::Dropped));
    // Those to whom it is passed on do not take it.
    advance(KEPT).await;
    assert_eq!(loads.tidy(), []);
    assert!(passed_on.progress.borrow().is_over && begun.progress.borrow().is_over && is_empty(&loads));
    drop((passed_on, begun));
    assert_eq!(room(&loads), BYTES_MAX);
}

#[tokio::test(start_paused = true)]
async fn a_message_that_comes_after_its_bytes_were_dropped_is_told_so() {
    let loads = Loads::default();
    drop(arriving(&loads, LEN, 1));
    advance(STALL + Duration::from_secs(1)).await;
    // Nothing passes it on.
    assert_eq!(loads.tidy(), []);
    assert_eq!(room(&loads), BYTES_MAX);
    assert!(matches!(loads.park(load(1), block(4), message(&[0])), Parked::Stuck));
    assert!(matches!(loads.park(load(1), block(4), message(&[0])), Parked::Dropped));
    assert_eq!(loads.tidy(), []);
    assert!(is_empty(&loads));
}

#[tokio::test(start_paused = true)]
async fn loads_that_no_message_has_claimed_make_room_for_others() {
    let loads = Loads::default();
    let take = |attempt: u32| {
        let head = LoadHead { route: head(LEN).route, parts: vec![whole(10)] };
        let parts = vec![Part { stream: 0, start: 100, bytes: vec![1; 10].into() }];
        loads.take(source(1), (load(attempt), block(4)), 0, Some(head), parts)
    };
    let full = ENTRIES_MAX as u32;
    let mut passed_on = None;
    for attempt in 0..full {
        let Taken::Kept { load, is_last: true, .. } = take(attempt) else { panic!("{attempt}") };
        passed_on = passed_on.or(Some(load));
    }
    assert!(matches!(take(full), Taken::Stuck), "their messages may come");
    advance(STALL + Duration::from_secs(1)).await;
    assert_eq!(loads.tidy(), []);
    assert!(matches!(take(full), Taken::Kept { .. }));
    assert!(matches!(loads.park(load(full + 1), block(4), message(&[0])), Parked::Waits));
    assert_eq!(loads.lock().entries.len(), ENTRIES_MAX);
    // The second and the third are gone. The first one is still passed on.
    assert!(matches!(loads.park(load(0), block(4), message(&[0])), Parked::Complete(..)));
    assert!(matches!(loads.park(load(3), block(4), message(&[0])), Parked::Stuck));
    assert!([1, 2].iter().all(|attempt| !loads.lock().entries.contains_key(&(load(*attempt), block(4)))));
}

#[tokio::test(start_paused = true)]
async fn what_is_stuck_is_sent_straight_once_with_all_that_is_behind_it() {
    let loads = Loads::default();
    let announced = || [4, 5, 6].map(|index| (block(index), (message(&[0]), pieces()))).into();
    let begun = loads.begin(load(1), head(LEN), &pieces(), announced()).unwrap();
    assert!(begun.is_complete());
    let stuck = |at: u8, speaker: u8| {
        let blocks: Vec<u8> = loads.stuck(load(1), block(at), |it| it == block(speaker)).keys().map(|it| it.index).collect();
        blocks
    };
    assert!(stuck(4, 9).is_empty(), "an agent that is not on the route was believed");
    assert_eq!(stuck(5, 4), [5]);
    assert_eq!(stuck(4, 4), [4]);
    assert!(stuck(4, 4).is_empty());
    // The outcome is known.
    loads.ended(block(0), load(1).id);
    assert!(stuck(6, 4).is_empty() && begun.progress.borrow().is_over && is_empty(&loads));
}

#[tokio::test(start_paused = true)]
async fn only_what_was_sent_from_here_arrives() {
    let loads = Loads::default();
    let Taken::Kept { load: kept, .. } = take(&loads, source(1), 1, 0) else { panic!("dropped") };
    for (at, counts) in [(6, false), (4, false), (5, true)] {
        loads.arrived(load(1), block(at));
        assert_eq!(kept.progress.borrow().arrived.contains(&block(at)), counts, "{at}");
    }
}
