//! One test for each rule of a participant.

use super::*;
use crate::{
    Block, Event,
    fixtures::{FIRST, Node, SECOND, blocks, config, crcs, id, part, record, sent, stamp},
    types::Sealed,
};
use weft_types::Span;

fn prepare(stamp: Stamp, record: &Arc<Record>) -> Message {
    Message::Prepare { stamp, record: record.clone(), crcs: crcs(1) }
}

fn refuse(stamp: Stamp, record: &Arc<Record>) -> Message {
    Message::Refuse { stamp, record: record.clone() }
}

fn held(counter: u64) -> (u8, Message) {
    (0, Message::Held { id: id(counter), incarnation: FIRST, crcs: crcs(1) })
}

fn refused(counter: u64, incarnation: Incarnation) -> (u8, Message) {
    (0, Message::Refused { id: id(counter), incarnation })
}

/// A parity that holds the first update of stream 0.
fn holder() -> (Node, Arc<Record>) {
    let (mut node, record) = (Node::new(2), record(0, vec![part(0, 1)]));
    assert_eq!(sent(&node.receive(0, prepare(stamp(FIRST, 0, 0), &record))), [held(1)]);
    (node, record)
}

fn outcome(node: &Node, counter: u64) -> Option<Outcome> {
    node.block.participant().outcome(id(counter))
}

fn seal_of(term: u64, outcomes: &[(u64, Outcome)]) -> Message {
    let outcomes = outcomes.iter().map(|(counter, outcome)| (id(*counter), *outcome)).collect();
    Message::Sealed(Arc::new(Sealed { term, members: blocks(), outcomes, vector: Vector::from([(0, 7)]), ..Sealed::default() }))
}

#[test]
fn answers_wait_for_the_journal_and_become_durable_in_batches() {
    let mut node = Node::new(2);
    for number in [1, 2] {
        let message = prepare(stamp(FIRST, 0, 0), &record(0, vec![part(0, number)]));
        assert_eq!(sent(&node.on(Event::Received { from: Peer::Block(blocks()[0]), message })), []);
    }
    assert_eq!(sent(&node.on(Event::Durable { entries: 1 })), [held(1)]);
    assert_eq!(sent(&node.on(Event::Durable { entries: 1 })), [held(2)]);
}

#[test]
fn a_repeated_message_gets_one_answer() {
    let mut node = Node::new(2);
    let message = prepare(stamp(FIRST, 0, 0), &record(0, vec![part(0, 1)]));
    for _ in 0..3 {
        node.on(Event::Received { from: Peer::Block(blocks()[0]), message: message.clone() });
    }
    assert_eq!(sent(&node.on(Event::Durable { entries: 1 })), [held(1)]);
}

#[test]
fn what_was_not_durable_is_forgotten_and_what_was_is_kept() {
    let (mut node, first) = holder();
    node.restart(2);
    assert_eq!(sent(&node.receive(0, prepare(stamp(FIRST, 0, 0), &first))), [held(1)], "a repeated message gets the same answer");
    assert_eq!(node.journal.len(), 2, "and is not journalled again");
    node.restart(1);
    assert!(!node.block.participant().is_undecided(id(1)));
}

#[test]
fn a_refusal_excludes_holding_whatever_the_order() {
    let (mut node, first) = holder();
    assert_eq!(sent(&node.receive(0, refuse(stamp(FIRST, 0, 0), &first))), [refused(1, FIRST)]);
    let second = record(0, vec![part(0, 2)]);
    node.receive(0, refuse(stamp(FIRST, 0, 0), &second));
    node.restart(9);
    for record in [&first, &second] {
        assert_eq!(sent(&node.receive(0, prepare(stamp(FIRST, 0, 0), record))), [refused(record.id.counter, FIRST)]);
    }
}

#[test]
fn lower_terms_are_not_obeyed_even_after_a_restart() {
    let (mut node, first) = holder();
    let reported = sent(&node.hear_coordinator(Message::Seal { term: 1 }));
    let [(u8::MAX, Message::SealReported { term: 1, report })] = &reported[..] else { panic!("{reported:?}") };
    assert_eq!(report.records[&id(1)].1, Claim::Held(crcs(1)));
    node.restart(9);
    for message in [refuse(stamp(FIRST, 0, 0), &first), prepare(stamp(FIRST, 0, 0), &record(0, vec![part(0, 2)]))] {
        assert_eq!(sent(&node.receive(0, message)), []);
    }
    assert!(node.block.participant().is_undecided(id(1)));
    // Nor does a leader of the new term speak of records of the old one, by name or by its watermark.
    node.receive(0, refuse(stamp(FIRST, 1, 0), &first));
    node.receive(0, Message::Commit { stamp: stamp(FIRST, 1, 1), record: first });
    assert_eq!(outcome(&node, 1), None);
}

#[test]
fn earlier_lives_of_a_leader_are_not_obeyed_even_after_a_restart() {
    let (mut node, first) = holder();
    let reported = sent(&node.receive(0, Message::Query { stamp: stamp(SECOND, 0, 0) }));
    assert!(matches!(reported[..], [(0, Message::Reported { term: 0, incarnation: SECOND, .. })]), "{reported:?}");
    node.restart(9);
    assert_eq!(sent(&node.receive(0, refuse(stamp(FIRST, 0, 0), &first))), []);
    assert_eq!(sent(&node.receive(0, refuse(stamp(SECOND, 0, 0), &first))), [refused(1, SECOND)]);
}

#[test]
fn a_watermark_commits_what_is_held_and_leaves_what_is_refused() {
    let (mut node, _) = holder();
    let (second, third) = (record(0, vec![part(0, 2)]), record(0, vec![part(0, 3)]));
    node.receive(0, refuse(stamp(FIRST, 0, 0), &second));
    node.receive(0, prepare(stamp(FIRST, 0, 2), &third));
    assert_eq!(
        (outcome(&node, 1), outcome(&node, 2), outcome(&node, 3)),
        (Some(Outcome::Committed), Some(Outcome::Aborted), None)
    );
}

#[test]
fn a_watermark_of_another_stream_decides_nothing() {
    let (mut node, both) = (Node::new(2), record(0, vec![part(0, 1), part(1, 1)]));
    node.receive(0, prepare(stamp(FIRST, 0, 0), &both));
    let other = Stamp { stream: 1, ..stamp(FIRST, 0, 1) };
    node.receive(1, prepare(other, &Arc::new(Record { id: id(9), ..(*record(0, vec![part(1, 2)])).clone() })));
    assert_eq!(outcome(&node, 1), None, "the other node may have refused it");
}

#[test]
fn late_copies_of_what_is_trimmed_are_ignored() {
    let (mut node, first) = holder();
    node.receive(0, Message::Commit { stamp: stamp(FIRST, 0, 1), record: first.clone() });
    node.apply();
    assert!(node.block.participant().records.is_empty(), "it is trimmed");
    for message in [prepare(stamp(FIRST, 0, 1), &first), refuse(stamp(FIRST, 0, 1), &first)] {
        assert_eq!(sent(&node.receive(0, message)), []);
    }
    assert_eq!(outcome(&node, 1), Some(Outcome::Committed));
}

#[test]
fn records_are_bounded() {
    let mut node = Node::new(2);
    for number in 1..=6 {
        assert_eq!(sent(&node.receive(0, prepare(stamp(FIRST, 0, 0), &record(0, vec![part(0, number)])))), [held(number)]);
    }
    assert_eq!(sent(&node.receive(0, prepare(stamp(FIRST, 0, 0), &record(0, vec![part(0, 7)])))), [refused(7, FIRST)]);
}

#[test]
fn a_data_block_holds_an_update_of_another_leader_only_with_its_lock() {
    let (mut node, both) = (Node::new(1), record(0, vec![part(0, 1), part(1, 1)]));
    assert_eq!(sent(&node.receive(0, prepare(stamp(FIRST, 0, 0), &both))), [refused(1, FIRST)]);
    let mut node = Node::new(1);
    let lock = Message::Lock { stamp: stamp(FIRST, 0, 0), id: id(1), number: 1, span: Span::new(0, 10) };
    let locked = Message::Locked { id: id(1), incarnation: FIRST, number: 1, part: part(1, 1), crc: 1 };
    assert_eq!(sent(&node.receive(0, lock)), [(0, locked)]);
    assert_eq!(sent(&node.receive(0, prepare(stamp(FIRST, 0, 0), &both))), [held(1)]);
}

#[test]
fn the_outcomes_of_a_seal_survive_a_restart() {
    let (mut node, _) = holder();
    node.receive(0, prepare(stamp(FIRST, 0, 0), &record(0, vec![part(0, 2)])));
    node.hear_coordinator(Message::Seal { term: 1 });
    let sealed = seal_of(1, &[(1, Outcome::Committed), (2, Outcome::Aborted)]);
    assert_eq!(sent(&node.hear_coordinator(sealed)), [(u8::MAX, Message::SealKnown { term: 1 })]);
    for _ in 0..2 {
        assert_eq!((outcome(&node, 1), outcome(&node, 2)), (Some(Outcome::Committed), Some(Outcome::Aborted)));
        node.restart(99);
    }
}

#[test]
fn a_seal_of_which_it_has_not_heard_decides_nothing_and_one_without_it_ends_it() {
    let (mut node, first) = holder();
    node.hear_coordinator(seal_of(1, &[(1, Outcome::Aborted)]));
    assert_eq!(outcome(&node, 1), None);
    let members = blocks().into_iter().filter(|block| block.index != 2).collect();
    node.hear_coordinator(Message::Sealed(Arc::new(Sealed { term: 1, members, ..Sealed::default() })));
    node.restart(99);
    assert!(node.block.participant().is_fenced());
    assert_eq!(sent(&node.receive(0, refuse(stamp(FIRST, 0, 0), &first))), []);
}

#[test]
fn it_asks_the_leader_and_after_a_seal_the_coordinator() {
    let (mut node, first) = holder();
    assert_eq!(sent(&node.on(Event::Remind)), [(0, Message::Ask { record: first })]);
    node.hear_coordinator(Message::Seal { term: 1 });
    assert_eq!(sent(&node.on(Event::Remind)), [(u8::MAX, Message::AskSeal { term: 1 })]);
}

#[test]
fn updates_are_applied_in_order_and_up_to_the_first_unknown_one() {
    let (mut node, _) = holder();
    let (second, third) = (record(0, vec![part(0, 2)]), record(0, vec![part(0, 3)]));
    node.receive(0, prepare(stamp(FIRST, 0, 0), &second));
    node.receive(0, prepare(stamp(FIRST, 0, 1), &third));
    node.receive(0, Message::Commit { stamp: stamp(FIRST, 0, 1), record: third });
    assert_eq!(node.block.participant().frontier(0), 1, "the outcome of the second is unknown");
    node.apply();
    assert_eq!(node.applied, Vector::from([(0, 1)]));
    node.receive(0, Message::Commit { stamp: stamp(FIRST, 0, 1), record: second });
    node.apply();
    assert_eq!(node.applied, Vector::from([(0, 3)]));
    let kept: Vec<u64> = node.block.participant().records.keys().map(|id| id.counter).collect();
    assert_eq!(kept, [2, 3], "above the watermark, a restarted leader asks for them");
}

#[test]
fn after_images_are_copied_again_until_the_sidecar_names_them() {
    let (mut node, first) = holder();
    node.receive(0, Message::Commit { stamp: stamp(FIRST, 0, 1), record: first });
    let actions = node.sync(Event::Apply);
    let [Action::Write(batch)] = &actions[..] else { panic!("{actions:?}") };
    let again = node.restart(99);
    assert_eq!(again, [Action::Write(batch.clone())]);
    assert_eq!(node.sync(Event::Apply), [], "one batch at a time");
    (node.applied, _) = (batch.applied.clone(), node.sync(Event::Written));
    assert_eq!(node.restart(99), []);
}

#[test]
fn reads_at_a_vector_add_and_remove_deltas() {
    let (mut node, first) = holder();
    let span = Span::new(0, 5);
    let numbers = |deltas: &[crate::types::Delta]| deltas.iter().map(|delta| delta.number).collect::<Vec<_>>();
    let read = |node: &Node, count: u64| {
        let read = node.block.participant().read_at(span, &Vector::from([(0, count)]));
        read.map(|read| (numbers(&read.added), numbers(&read.removed)))
    };
    assert_eq!((read(&node, 0), read(&node, 1)), (Ok((vec![], vec![])), Err(NotServed::Stale)), "its outcome is unknown");
    node.receive(0, Message::Commit { stamp: stamp(FIRST, 0, 0), record: first.clone() });
    assert_eq!(read(&node, 1), Ok((vec![1], vec![])));
    node.apply();
    assert_eq!((read(&node, 0), read(&node, 1)), (Ok((vec![], vec![1])), Ok((vec![], vec![]))));
    node.receive(0, Message::Commit { stamp: stamp(FIRST, 0, 1), record: first });
    assert_eq!((read(&node, 0), read(&node, 1)), (Err(NotServed::Stale), Ok((vec![], vec![]))), "the record is trimmed");
}

#[test]
fn an_update_without_room_is_refused_unless_it_is_known() {
    let mut node = Node::new(2);
    let (first, second) = (record(0, vec![part(0, 1)]), record(0, vec![part(0, 2)]));
    node.receive(0, prepare(stamp(FIRST, 0, 0), &first));
    let actions = node.sync(Event::NoRoom(prepare(stamp(FIRST, 0, 0), &first)));
    assert_eq!(sent(&actions), [held(1)]);
    let actions = node.sync(Event::NoRoom(prepare(stamp(FIRST, 0, 0), &second)));
    assert!(matches!(sent(&actions)[..], [(0, Message::Refused { .. })]), "{actions:?}");
}

#[test]
fn a_parity_takes_part_in_updates_of_the_blocks_that_it_depends_on_only() {
    let mut config = config(2);
    config.dependence.partial = Arc::new([(2, [1].into())].into());
    let (mut block, first) = Block::new(config.clone(), 0, blocks());
    let both = record(0, vec![part(0, 1), part(1, 1)]);
    let mut journal = vec![first];
    let received = |message| Event::Received { from: Peer::Block(crate::fixtures::block(0)), message };
    journal.extend(block.on(received(prepare(stamp(FIRST, 0, 0), &both)), 0).into_iter().filter_map(|action| match action {
        Action::Journal(entry) => Some(entry),
        _ => None,
    }));
    block.on(Event::Durable { entries: 1 }, 0);
    block.on(received(Message::Commit { stamp: stamp(FIRST, 0, 1), record: both }), 0);
    let batch = block.on(Event::Apply, 0).into_iter().find_map(|action| match action {
        Action::Journal(Entry::Images(batch)) => Some(batch),
        _ => None,
    });
    let batch = batch.expect("a batch");
    assert_eq!(batch.applied, Vector::from([(1, 1)]));
    assert!(batch.merged.iter().flat_map(|(_, deltas)| deltas).all(|delta| delta.stream == 1), "{batch:?}");
}

#[test]
fn numbers_that_a_batch_under_way_covers_are_reported_after_a_restart() {
    let mut node = Node::new(2);
    node.receive(0, prepare(stamp(FIRST, 0, 0), &record(0, vec![part(0, 1)])));
    // Numbers up to 5 were given, but those above 1 were never prepared.
    node.receive(0, Message::Watermark { stamp: stamp(FIRST, 0, 5) });
    let actions = node.sync(Event::Apply);
    assert!(matches!(&actions[..], [Action::Write(batch)] if batch.applied == Vector::from([(0, 5)])), "{actions:?}");
    // A crash while pages are written: the sidecar has the old counts, the journal the new ones.
    node.restart(node.journal.len());
    let reported = sent(&node.receive(0, Message::Query { stamp: stamp(SECOND, 0, 0) }));
    let [(0, Message::Reported { report, .. })] = &reported[..] else { panic!("{reported:?}") };
    assert_eq!(report.numbers, Vector::from([(0, 5)]), "number 5 must not be given again: it would count as applied");
}
