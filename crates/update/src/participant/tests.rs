//! One test for each rule of a participant.

use super::*;
use crate::{
    Block, Event,
    fixtures::{FIRST, Node, SECOND, blocks, config, crcs, id, id_of_second, part, record, sent, stamp},
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
fn only_the_node_of_a_data_block_speaks_of_its_stream() {
    let (mut node, _) = holder();
    node.receive(1, Message::Watermark { stamp: stamp(FIRST, 0, 1) });
    assert_eq!(outcome(&node, 1), None, "another node decided an update");
    node.receive(0, Message::Watermark { stamp: stamp(FIRST, 0, 1) });
    assert_eq!(outcome(&node, 1), Some(Outcome::Committed));
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
fn a_number_that_another_node_gave_in_an_earlier_life_may_be_given_again() {
    let mut node = Node::new(2);
    // Block 1's node has started again, and nobody held what it had numbered: its next update gets the number 1, too.
    node.receive(1, Message::Query { stamp: Stamp { stream: 1, ..stamp(SECOND, 0, 0) } });
    let both = record(0, vec![part(0, 1), part(1, 1)]);
    assert_eq!(sent(&node.receive(0, prepare(stamp(FIRST, 0, 0), &both))), [refused(1, FIRST)]);
    node.apply();
    let own = Part { incarnation: SECOND, ..part(1, 1) };
    let second = Arc::new(Record { id: id(2), ..(*record(0, vec![own])).clone() });
    let of_second = |watermark| Stamp { stream: 1, ..stamp(SECOND, 0, watermark) };
    node.receive(1, Message::Prepare { stamp: of_second(0), record: second.clone(), crcs: crcs(1) });
    assert_eq!(node.block.participant().frontier(1), 0, "the outcome is unknown");
    node.receive(1, Message::Commit { stamp: of_second(1), record: second });
    node.apply();
    assert_eq!(node.applied.get(&1), Some(&1));
    assert_eq!(node.written, [id(2)], "the pages contain it");
}

#[test]
fn what_is_applied_is_no_watermark_after_a_restart() {
    let (mut node, second) = (Node::new(2), record(0, vec![part(0, 2)]));
    let first = record(0, vec![part(0, 1)]);
    node.receive(0, prepare(stamp(FIRST, 0, 0), &first));
    // The leader gives the first one up, and others have not refused it yet. The second one is committed.
    node.receive(0, refuse(stamp(FIRST, 0, 0), &first));
    node.receive(0, prepare(stamp(FIRST, 0, 0), &second));
    node.receive(0, Message::Commit { stamp: stamp(FIRST, 0, 0), record: second });
    node.apply();
    assert_eq!(node.applied, Vector::from([(0, 2)]));
    node.restart(99);
    node.at(Event::Forget, crate::OUTCOMES_KEPT_MS);
    assert_eq!(sent(&node.receive(0, refuse(stamp(FIRST, 0, 0), &first))), [refused(1, FIRST)], "the leader asks still");
    let reported = sent(&node.receive(0, Message::Query { stamp: stamp(SECOND, 0, 0) }));
    let [(0, Message::Reported { report, .. })] = &reported[..] else { panic!("{reported:?}") };
    assert_eq!(report.watermarks.get(&0).copied().unwrap_or(0), 0, "a leader would believe that the first one is committed");
}

#[test]
fn a_counter_that_a_client_uses_for_two_blocks_names_two_updates() {
    let (mut node, first) = holder();
    let second = Arc::new(Record { id: id_of_second(1), ..(*record(0, vec![part(1, 1)])).clone() });
    let stamp_of_second = Stamp { stream: 1, ..stamp(FIRST, 0, 0) };
    let crcs_of_second = Crcs::from([(1, 9)]);
    let prepare = Message::Prepare { stamp: stamp_of_second, record: second.clone(), crcs: crcs_of_second.clone() };
    let held = Message::Held { id: id_of_second(1), incarnation: FIRST, crcs: crcs_of_second };
    assert_eq!(sent(&node.receive(1, prepare)), [(1, held)], "it holds the second one's delta, not the first one's");
    node.receive(1, Message::Refuse { stamp: stamp_of_second, record: second });
    assert!(node.block.participant().is_undecided(first.id), "nor does it give up the first");
}

#[test]
fn an_update_without_room_is_refused_unless_it_is_known() {
    let mut node = Node::new(2);
    let (first, second) = (record(0, vec![part(0, 1)]), record(0, vec![part(0, 2)]));
    node.receive(0, prepare(stamp(FIRST, 0, 0), &first));
    let no_room = |from, record| {
        let message = prepare(stamp(FIRST, 0, 0), record);
        Event::NoRoom { from: Peer::Block(crate::fixtures::block(from)), message }
    };
    let actions = node.sync(no_room(0, &first));
    assert_eq!(sent(&actions), [held(1)]);
    assert_eq!(sent(&node.sync(no_room(1, &second))), [], "it does not lead this stream");
    let actions = node.sync(no_room(0, &second));
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
fn numbers_that_a_batch_covers_are_in_use_before_the_sidecar_names_them() {
    let (mut node, first) = holder();
    // The numbers up to 5 were given up: only the watermark says so, and it is not in the journal.
    node.receive(0, Message::Commit { stamp: stamp(FIRST, 0, 5), record: first });
    node.sync(Event::Apply);
    node.restart(99);
    let reported = sent(&node.receive(0, Message::Query { stamp: stamp(SECOND, 0, 0) }));
    let [(0, Message::Reported { report, .. })] = &reported[..] else { panic!("{reported:?}") };
    assert_eq!(report.numbers.get(&0), Some(&5), "the batch is written, and then nothing below is applied any more");
}

/// The second generation of block 2, which a seal has admitted at 7 updates of stream 0.
fn joined() -> (Block, Vec<Entry>) {
    let me = BlockId { generation: 2, ..blocks()[2] };
    let (mut block, first) = Block::join(Config { me, ..config(2) });
    let mut members = blocks();
    members[2] = me;
    let sealed = Sealed { term: 3, members, vector: Vector::from([(0, 7)]), ..Sealed::default() };
    let actions = block.on(Event::Received { from: Peer::Coordinator, message: Message::Sealed(Arc::new(sealed)) }, 0);
    let entries = [first].into_iter().chain(actions.into_iter().filter_map(|action| match action {
        Action::Journal(entry) => Some(entry),
        _ => None,
    }));
    let entries = entries.collect();
    block.on(Event::Durable { entries: u64::MAX }, 0);
    (block, entries)
}

#[test]
fn a_block_that_joins_holds_updates_and_serves_none_until_it_is_rebuilt() {
    let (mut block, mut entries) = joined();
    let eighth = record(3, vec![part(0, 8)]);
    for message in [prepare(stamp(FIRST, 3, 7), &eighth), Message::Commit { stamp: stamp(FIRST, 3, 8), record: eighth }] {
        let actions = block.on(Event::Received { from: Peer::Block(blocks()[0]), message }, 0);
        entries.extend(
            actions.into_iter().filter_map(|action| if let Action::Journal(entry) = action { Some(entry) } else { None }),
        );
        block.on(Event::Durable { entries: u64::MAX }, 0);
    }
    let at = |number| Vector::from([(0, number)]);
    assert_eq!(block.on(Event::Apply, 0), []);
    assert_eq!(block.participant().read_at(Span::new(0, 5), &at(7)), Err(NotServed::Stale));
    assert_eq!(block.participant().rebuild_at(), Vector::from([(0, 8), (1, 0)]));
    for (impossible, why) in [(at(6), "the seventh is not held here"), (at(9), "the ninth is not known here")] {
        assert_eq!(block.on(Event::Rebuilt(impossible), 0), [], "{why}");
    }
    let rebuilt = block.on(Event::Rebuilt(at(7)), 0);
    assert_eq!(rebuilt, [Action::Journal(Entry::Rebuilt(at(7)))]);
    entries.push(Entry::Rebuilt(at(7)));
    let (again, _) = Block::restart(block.participant().config.clone(), &entries, Vector::new(), 0);
    for block in [&block, &again] {
        assert!(!block.participant().is_joining());
        let read = block.participant().read_at(Span::new(0, 5), &at(7)).expect("its content");
        assert_eq!((read.added.len(), read.removed.len()), (0, 0));
    }
    assert!(!block.on(Event::Apply, 0).is_empty(), "the eighth");
}

#[test]
fn an_earlier_seal_does_not_fence_a_block_that_joins() {
    let me = BlockId { generation: 2, ..blocks()[2] };
    let (mut block, first) = Block::join(Config { me, ..config(2) });
    block.on(Event::Received { from: Peer::Coordinator, message: seal_of(1, &[]) }, 0);
    assert!(!block.participant().is_fenced() && block.needs(&first));
}
