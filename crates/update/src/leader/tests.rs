//! One test for each rule of a leader.

use crate::{
    Action, Claim, Entry, Event, Message, NotRun, NotServed, Outcome, Peer, Record, Report, Request, Sealed, Told, Vector, Write,
    fixtures::{FIRST, Node, SECOND, block, blocks, crcs, id, id_of_second, part, record, sent, stamp},
    types::Incarnation,
};
use std::sync::Arc;
use weft_types::{BlockId, Span};

fn write(stream: u8, start: u64, end: u64) -> Write {
    Write { stream, span: Span::new(start, end) }
}

fn request(counter: u64, writes: &[Write]) -> Event {
    Event::Request(Request { id: id(counter), term: 0, writes: writes.to_vec() })
}

fn told(actions: &[Action]) -> Vec<(u64, Told)> {
    let told = |action: &Action| if let Action::Tell { id, told } = action { Some((id.counter, *told)) } else { None };
    actions.iter().filter_map(told).collect()
}

/// The receivers of prepares of an update.
fn prepared(actions: &[Action], counter: u64) -> Vec<u8> {
    let prepare = |(to, message): (u8, Message)| match message {
        Message::Prepare { record, .. } if record.id.counter == counter => Some(to),
        _ => None,
    };
    sent(actions).into_iter().filter_map(prepare).collect()
}

fn held(counter: u64, crc: u32) -> Message {
    Message::Held { id: id(counter), incarnation: FIRST, crcs: crcs(crc) }
}

fn refused(counter: u64) -> Message {
    Message::Refused { id: id(counter), incarnation: FIRST }
}

/// The answers of both parities to an update.
fn held_by_parities(node: &mut Node, counter: u64) -> Vec<(u64, Told)> {
    let mut all = told(&node.receive(2, held(counter, 1)));
    all.extend(told(&node.receive(3, held(counter, 1))));
    all
}

fn report(records: &[(&Arc<Record>, Claim)]) -> Report {
    let numbers = records.iter().map(|(record, _)| (0, record.lead().number)).max().into_iter().collect();
    let records = records.iter().map(|(record, claim)| (record.id, (Arc::clone(record), claim.clone()))).collect();
    Report { records, numbers, ..Report::default() }
}

fn reported(report: &Report) -> Message {
    Message::Reported { term: 0, incarnation: SECOND, report: report.clone() }
}

#[test]
fn an_update_is_acknowledged_when_all_hold_it_durably() {
    let mut node = Node::new(0);
    let actions = node.on(request(1, &[write(0, 0, 10)]));
    assert_eq!(prepared(&actions, 1), [2, 3], "its own journal is the third participant");
    assert_eq!(told(&node.on(Event::Received { from: Peer::Block(block(2)), message: held(1, 1) })), []);
    assert_eq!(told(&node.on(Event::Received { from: Peer::Block(block(3)), message: held(1, 1) })), [], "not durable here");
    assert_eq!(told(&node.on(Event::Durable { entries: 1 })), [(1, Told::Committed)]);
}

#[test]
fn answers_to_an_earlier_life_do_not_count() {
    let mut node = Node::new(0);
    node.sync(request(1, &[write(0, 0, 10)]));
    node.receive(2, held(1, 1));
    let old = Message::Held { id: id(1), incarnation: Incarnation { generation: 0, opened: 0, starts: 9 }, crcs: crcs(1) };
    assert_eq!(told(&node.receive(3, old)), []);
    assert_eq!(told(&node.receive(1, held(1, 1))), [], "not a participant");
    assert_eq!(told(&node.receive(3, held(1, 1))), [(1, Told::Committed)]);
}

#[test]
fn different_deltas_are_aborted() {
    let mut node = Node::new(0);
    node.sync(request(1, &[write(0, 0, 10)]));
    node.receive(2, held(1, 1));
    let actions = node.receive(3, held(1, 2));
    assert!(sent(&actions).iter().any(|(to, message)| *to == 2 && matches!(message, Message::Refuse { .. })), "{actions:?}");
    assert_eq!(told(&node.receive(2, refused(1))), []);
    assert_eq!(told(&node.receive(3, refused(1))), [(1, Told::Aborted)]);
}

#[test]
fn a_client_is_told_of_an_abort_when_all_refuse() {
    let mut node = Node::new(0);
    node.sync(request(1, &[write(0, 0, 10)]));
    assert_eq!(told(&node.sync(Event::GiveUp(id(1)))), []);
    assert_eq!(told(&node.receive(2, held(1, 1))), [], "it came too late");
    assert_eq!(told(&node.receive(2, refused(1))), []);
    assert_eq!(told(&node.receive(3, refused(1))), [(1, Told::Aborted)]);
    assert_eq!(told(&node.sync(request(1, &[write(0, 0, 10)]))), [(1, Told::Aborted)], "a repeated request gets the same answer");
}

#[test]
fn overlapping_updates_wait_and_disjoint_ones_do_not() {
    let mut node = Node::new(0);
    node.sync(request(1, &[write(0, 0, 10)]));
    assert_eq!(prepared(&node.sync(request(2, &[write(0, 5, 15)])), 2), []);
    assert_eq!(prepared(&node.sync(request(3, &[write(0, 20, 30)])), 3), [2, 3]);
    assert_eq!(held_by_parities(&mut node, 3), [(3, Told::Committed)]);
    node.receive(2, held(1, 1));
    let actions = node.receive(3, held(1, 1));
    assert_eq!((told(&actions), prepared(&actions, 2)), (vec![(1, Told::Committed)], vec![2, 3]));
    // The prepare tells that both others are decided.
    let stamps = sent(&actions).into_iter().filter_map(|(_, message)| match message {
        Message::Prepare { stamp, .. } => Some(stamp.watermark),
        _ => None,
    });
    assert_eq!(stamps.collect::<Vec<_>>(), [2, 2]);
}

#[test]
fn requests_are_bounded_and_validated() {
    let mut node = Node::new(0);
    let not_run = |why| Told::NotRun(why);
    for (writes, why) in [
        (vec![write(1, 0, 10)], NotRun::Invalid),
        (vec![write(0, 0, 0)], NotRun::Invalid),
        (vec![write(0, 0, 1), write(0, 1, 2)], NotRun::Invalid),
        (vec![write(0, 0, 1), write(2, 1, 2)], NotRun::Invalid),
    ] {
        assert_eq!(told(&node.sync(request(9, &writes))), [(9, not_run(why))]);
    }
    let others = Request { id: id_of_second(9), term: 0, writes: vec![write(0, 0, 1)] };
    assert_eq!(told(&node.sync(Event::Request(others))), [(9, not_run(NotRun::Invalid))]);
    let old = Request { id: id(9), term: 7, writes: vec![write(0, 0, 1)] };
    assert_eq!(told(&node.sync(Event::Request(old))), [(9, not_run(NotRun::Retry))]);
    for counter in 1..=3 {
        assert_eq!(told(&node.sync(request(counter, &[write(0, 0, 10)]))), []);
    }
    assert_eq!(told(&node.sync(request(4, &[write(0, 0, 10)]))), [(4, not_run(NotRun::Busy))]);
}

#[test]
fn an_id_expires_durably() {
    let mut node = Node::new(0);
    node.sync(request(2, &[write(0, 0, 10)]));
    assert_eq!(held_by_parities(&mut node, 2), [(2, Told::Committed)]);
    node.apply();
    node.at(Event::Forget, crate::OUTCOMES_KEPT_MS);
    assert_eq!(told(&node.on(request(1, &[write(0, 0, 10)]))), [(1, Told::NotRun(NotRun::Retry))], "a crash would undo it");
    node.on(Event::Durable { entries: u64::MAX });
    for counter in [1, 2] {
        assert_eq!(told(&node.on(request(counter, &[write(0, 0, 10)]))), [(counter, Told::Expired)]);
    }
}

#[test]
fn one_long_update_bounds_what_others_leave_above_the_watermark() {
    let mut node = Node::new(0);
    node.sync(request(1, &[write(0, 0, 10)]));
    for counter in 2..=6 {
        node.sync(request(counter, &[write(0, 20, 30)]));
        assert_eq!(held_by_parities(&mut node, counter), [(counter, Told::Committed)]);
    }
    assert_eq!(told(&node.sync(request(7, &[write(0, 20, 30)]))), [(7, Told::NotRun(NotRun::Busy))]);
    held_by_parities(&mut node, 1);
    assert_eq!(told(&node.sync(request(7, &[write(0, 20, 30)]))), []);
}

#[test]
fn an_update_of_two_blocks_locks_them_in_order() {
    let both = [write(1, 0, 10), write(0, 0, 10)];
    let mut node = Node::new(0);
    let actions = node.sync(request(1, &both));
    let lock = Message::Lock { stamp: stamp(FIRST, 0, 0), id: id(1), number: 1, span: Span::new(0, 10) };
    assert_eq!(sent(&actions), [(1, lock)]);
    let locked = |number| Message::Locked { id: id(1), incarnation: FIRST, number, part: part(1, 4), crc: 1 };
    assert_eq!(prepared(&node.receive(1, locked(9)), 1), [], "the answer to another attempt");
    assert_eq!(prepared(&node.receive(1, locked(1)), 1), [1, 2, 3]);
    node.receive(1, held(1, 1));
    node.receive(2, held(1, 1));
    let actions = node.receive(3, held(1, 1));
    assert_eq!(told(&actions), [(1, Told::Committed)]);
    assert!(sent(&actions).iter().any(|(to, message)| *to == 1 && matches!(message, Message::Commit { .. })), "it holds a lock");
}

#[test]
fn the_other_nodes_lock_is_released_when_the_outcome_is_known_or_nobody_needs_it() {
    let mut node = Node::new(1);
    let lock = |counter| Message::Lock { stamp: stamp(FIRST, 0, 0), id: id(counter), number: counter, span: Span::new(0, 10) };
    let unlock = |counter| Message::Unlock { stamp: stamp(FIRST, 0, 0), id: id(counter), number: counter };
    let locked = |counter, number| {
        (0, Message::Locked { id: id(counter), incarnation: FIRST, number: counter, part: part(1, number), crc: 1 })
    };
    assert_eq!(sent(&node.receive(0, lock(1))), [locked(1, 1)]);
    assert_eq!(sent(&node.receive(0, lock(1))), [locked(1, 1)], "a repeated message gets the same answer");
    assert_eq!(sent(&node.receive(0, lock(2))), []);
    assert_eq!(sent(&node.receive(0, unlock(1))), [locked(2, 2)]);
    assert_eq!(sent(&node.receive(0, lock(1))), [], "a late copy");
    let both = Arc::new(Record { id: id(2), ..(*record(0, vec![part(0, 2), part(1, 2)])).clone() });
    node.receive(0, Message::Prepare { stamp: stamp(FIRST, 0, 0), record: both.clone(), crcs: crcs(1) });
    node.receive(0, unlock(2));
    assert_eq!(sent(&node.receive(0, lock(3))), [], "the second may be committed");
    assert_eq!(sent(&node.receive(0, Message::Commit { stamp: stamp(FIRST, 0, 2), record: both })), [locked(3, 3)]);
    // The leader has restarted before it prepared the third.
    assert_eq!(sent(&node.receive(0, lock(4))), []);
    let query = node.receive(0, Message::Query { stamp: stamp(SECOND, 0, 0) });
    assert!(matches!(sent(&query)[..], [(0, Message::Reported { .. })]), "{query:?}");
    let own = Request { id: id_of_second(5), term: 0, writes: vec![write(1, 0, 10)] };
    assert_eq!(prepared(&node.sync(Event::Request(own)), 5), [2, 3]);
}

#[test]
fn a_restarted_leader_decides_when_all_have_reported() {
    let mut node = Node::new(0);
    node.sync(request(1, &[write(0, 0, 10)]));
    let first = match &node.journal[1] {
        Entry::Held { record, .. } => record.clone(),
        other => panic!("{other:?}"),
    };
    // Another one that is not durable here, and a number of which it has not heard.
    let (second, third) = (record(0, vec![part(0, 2)]), record(0, vec![part(0, 5)]));
    let queries = sent(&node.restart(2));
    assert_eq!(queries.iter().map(|(to, _)| *to).collect::<Vec<_>>(), [1, 2, 3], "{queries:?}");
    node.sync(Event::Remind);
    assert_eq!(told(&node.sync(request(1, &[write(0, 0, 10)]))), [(1, Told::NotRun(NotRun::Retry))]);
    node.receive(1, reported(&Report::default()));
    let holds = Claim::Held(crcs(1));
    let parity = report(&[(&first, holds.clone()), (&second, holds.clone()), (&third, Claim::Refused)]);
    assert_eq!(told(&node.receive(2, reported(&parity))), []);
    let actions = node.receive(3, reported(&parity));
    assert_eq!(told(&actions), [(1, Told::Committed)]);
    let refusals: Vec<u8> = sent(&actions)
        .into_iter()
        .filter(|(_, message)| matches!(message, Message::Refuse { record, .. } if record.id == id(2)))
        .map(|(to, _)| to)
        .collect();
    assert_eq!(refusals, [2, 3]);
    // The next number is above all that anybody has seen.
    let actions = node.sync(request(7, &[write(0, 20, 30)]));
    let number = sent(&actions).into_iter().find_map(|(_, message)| match message {
        Message::Prepare { record, .. } => Some(record.lead().number),
        _ => None,
    });
    assert_eq!(number, Some(6));
}

#[test]
fn an_abort_that_only_others_know_is_not_run_again() {
    let mut node = Node::new(0);
    node.restart(1);
    for at in [1, 2, 3] {
        let refused = report(&[(&record(0, vec![part(0, 1)]), Claim::Refused)]);
        node.receive(at, reported(&if at == 2 { refused } else { Report::default() }));
    }
    assert_eq!(told(&node.sync(request(1, &[write(0, 0, 10)]))), [(1, Told::Aborted)]);
}

#[test]
fn a_lock_that_an_earlier_life_asked_for_withdraws_nothing_of_this_one() {
    let mut node = Node::new(0);
    let ask = |incarnation| Message::AskLock { id: id(1), incarnation, number: 3 };
    let withdrawn = Message::Unlock { stamp: stamp(FIRST, 0, 0), id: id(1), number: 3 };
    assert_eq!(sent(&node.receive(1, ask(FIRST))), [(1, withdrawn)]);
    let earlier = Incarnation { generation: 0, opened: 0, starts: 0 };
    assert_eq!(sent(&node.receive(1, ask(earlier))), [], "number 3 may be given again");
}

#[test]
fn the_seal_decides_what_its_term_ends() {
    let mut node = Node::new(0);
    node.sync(request(1, &[write(0, 0, 10)]));
    node.sync(request(2, &[write(0, 0, 10)]));
    node.hear_coordinator(Message::Seal { term: 1 });
    assert_eq!(held_by_parities(&mut node, 1), [], "the seal decides");
    let outcomes = [(id(1), Outcome::Aborted)].into();
    let sealed = Sealed { term: 1, members: blocks(), outcomes, vector: Vector::from([(0, 1)]), ..Sealed::default() };
    let actions = node.hear_coordinator(Message::Sealed(Arc::new(sealed)));
    assert_eq!(told(&actions), [(1, Told::Aborted), (2, Told::NotRun(NotRun::Retry))]);
    let again = Request { id: id(2), term: 1, writes: vec![write(0, 0, 10)] };
    assert_eq!(prepared(&node.sync(Event::Request(again)), 2), [2, 3]);
}

#[test]
fn reads_show_what_is_acknowledged_and_nothing_undecided() {
    let mut node = Node::new(0);
    let read = |node: &mut Node, read, has_lease| node.sync(Event::Read { read, span: Span::new(0, 5), has_lease });
    let numbers = |actions: &[Action]| match actions {
        [Action::Serve { result, .. }] => {
            result.clone().map(|read| read.added.iter().map(|delta| delta.number).collect::<Vec<_>>())
        }
        other => panic!("{other:?}"),
    };
    node.sync(request(1, &[write(0, 0, 10)]));
    assert_eq!(numbers(&read(&mut node, 1, true)), Ok(vec![]), "its client has been told nothing");
    held_by_parities(&mut node, 1);
    assert_eq!(numbers(&read(&mut node, 2, true)), Ok(vec![1]));
    // Without a lease, every parity must confirm the term.
    assert_eq!(sent(&read(&mut node, 3, false)), [2, 3].map(|to| (to, Message::Confirm { incarnation: FIRST, read: 3 })));
    let confirmed = |incarnation, read, term| Message::Confirmed { incarnation, read, term };
    assert_eq!(node.receive(2, confirmed(FIRST, 3, 0)), []);
    assert_eq!(node.receive(3, confirmed(SECOND, 3, 0)), [], "another life asked");
    assert_eq!(numbers(&node.receive(3, confirmed(FIRST, 3, 0))), Ok(vec![1]));
    read(&mut node, 4, false);
    assert_eq!(numbers(&node.receive(3, confirmed(FIRST, 4, 1))), Err(NotServed::Unknown));
    node.restart(99);
    assert_eq!(numbers(&read(&mut node, 1, true)), Err(NotServed::Unknown), "it may have acknowledged more");
}

#[test]
fn a_read_tells_the_version_of_its_range() {
    let mut node = Node::new(0);
    let read = |node: &mut Node, read, start| {
        let span = Span::new(start, start + 5);
        match &node.sync(Event::Read { read, span, has_lease: true })[..] {
            [Action::Serve { result: Ok(read), .. }] => read.version.clone(),
            other => panic!("{other:?}"),
        }
    };
    let before = read(&mut node, 1, 0);
    node.sync(request(1, &[write(0, 0, 10)]));
    assert_eq!(read(&mut node, 2, 0), before, "it is not committed");
    held_by_parities(&mut node, 1);
    let after = read(&mut node, 3, 0);
    assert_eq!((&after.numbers[..], after.term, after.trimmed), (&[1][..], before.term, before.trimmed));
    assert_eq!(read(&mut node, 4, 10), before, "nothing was updated in this range");
}

#[test]
fn a_read_asks_again_and_ends_with_its_term() {
    let mut node = Node::new(0);
    let asks = [2, 3].map(|to| (to, Message::Confirm { incarnation: FIRST, read: 1 }));
    let read = |read| Event::Read { read, span: Span::new(0, 5), has_lease: false };
    assert_eq!(sent(&node.sync(read(1))), asks);
    node.receive(2, Message::Confirmed { incarnation: FIRST, read: 1, term: 0 });
    assert_eq!(sent(&node.sync(Event::Remind)), asks[1..], "the question or the answer was lost");
    let actions = node.hear_coordinator(Message::Seal { term: 1 });
    assert!(actions.contains(&Action::Serve { read: 1, result: Err(NotServed::Unknown) }), "{actions:?}");
    assert_eq!(sent(&node.sync(Event::Remind)), [(u8::MAX, Message::AskSeal { term: 1 })]);
}

#[test]
fn a_read_asks_other_copies_too_because_the_block_can_be_rebuilt_from_them() {
    let copy = BlockId { copy: 1, ..block(0) };
    let members = blocks().into_iter().chain([copy]).collect();
    let (mut leader, _) = crate::Block::new(crate::fixtures::config(0), 0, members);
    let actions = leader.on(Event::Read { read: 1, span: Span::new(0, 5), has_lease: false }, 0);
    let asked = |action: &Action| matches!(action, Action::Send { to: Peer::Block(to), .. } if *to == copy);
    assert!(actions.iter().any(asked), "{actions:?}");
}

#[test]
fn a_fenced_node_answers_its_clients() {
    let mut node = Node::new(0);
    let members = blocks()[1..].to_vec();
    node.hear_coordinator(Message::Sealed(Arc::new(Sealed { term: 1, members, ..Sealed::default() })));
    assert_eq!(told(&node.sync(request(1, &[write(0, 0, 10)]))), [(1, Told::NotRun(NotRun::Retry))]);
}

/// The updates whose deltas are to be computed, with their numbers.
fn deltas(actions: &[Action]) -> Vec<(u64, u64)> {
    let delta = |action: &Action| match action {
        Action::Delta { id, number, .. } => Some((id.counter, *number)),
        _ => None,
    };
    actions.iter().filter_map(delta).collect()
}

#[test]
fn a_delta_is_computed_under_the_lock_and_not_before_the_update_before_it_has_ended() {
    let mut node = Node::new(0);
    let actions = node.block.on(request(1, &[write(0, 0, 10)]), 0);
    assert_eq!((deltas(&actions), prepared(&actions, 1)), (vec![(1, 1)], vec![]));
    assert_eq!(deltas(&node.block.on(request(2, &[write(0, 5, 15)]), 0)), [], "the first one holds the range");
    let late = node.block.on(Event::Delta { id: id(1), number: 9, crc: 1 }, 0);
    assert_eq!(late, [], "the answer for another lock");
    let actions = node.block.on(Event::Delta { id: id(1), number: 1, crc: 1 }, 0);
    assert_eq!(prepared(&actions, 1), [2, 3]);
    node.block.on(Event::Durable { entries: 1 }, 0);
    for parity in [2, 3] {
        let message = held(1, 1);
        let actions = node.block.on(Event::Received { from: Peer::Block(block(parity)), message }, 0);
        assert_eq!(deltas(&actions), if parity == 3 { vec![(2, 2)] } else { vec![] });
    }
    let read = node.block.read_locked(Span::new(5, 15)).map(|read| read.added.len());
    assert_eq!(read, Ok(1), "the second delta is computed from what the first one leaves");
}

#[test]
fn an_update_that_is_given_up_before_its_delta_is_computed_is_not_prepared() {
    let mut node = Node::new(0);
    node.block.on(request(1, &[write(0, 0, 10)]), 0);
    assert_eq!(told(&node.block.on(Event::GiveUp(id(1)), 0)), [(1, Told::NotRun(NotRun::Retry))]);
    assert_eq!(node.block.on(Event::Delta { id: id(1), number: 1, crc: 1 }, 0), []);
}

#[test]
fn a_leader_that_is_fenced_keeps_nothing_of_its_updates() {
    let mut node = Node::new(0);
    node.sync(request(1, &[write(0, 0, 10)]));
    assert!(node.block.leader().is_some_and(|leader| leader.is_concerned(id(1), 0)));
    let sealed = Sealed { term: 1, members: blocks()[1..].to_vec(), ..Sealed::default() };
    assert_eq!(told(&node.hear_coordinator(Message::Sealed(Arc::new(sealed)))), [], "the coordinator knows");
    assert!(node.block.participant().is_fenced());
    assert!(node.block.leader().is_some_and(|leader| !leader.is_concerned(id(1), 0)));
}

#[test]
fn a_repeated_request_for_a_lock_computes_the_delta_again() {
    let mut node = Node::new(1);
    let lock = || Message::Lock { stamp: stamp(FIRST, 0, 0), id: id(1), number: 4, span: Span::new(0, 10) };
    for _ in 0..2 {
        let received = Event::Received { from: Peer::Block(block(0)), message: lock() };
        assert_eq!(deltas(&node.block.on(received, 0)), [(1, 1)]);
        assert!(node.block.leader().is_some_and(|leader| leader.is_concerned(id(1), 4)));
        let answer = node.block.on(Event::Delta { id: id(1), number: 1, crc: 5 }, 0);
        assert!(matches!(sent(&answer)[..], [(0, Message::Locked { number: 4, crc: 5, .. })]), "{answer:?}");
    }
}
