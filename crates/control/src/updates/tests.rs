use super::*;
use crate::fixtures::{home, stripe, view};
use std::sync::Arc;
use weft_types::{PlacedBlock, Seq};
use weft_update::{Claim, Incarnation, Message, Outcome, Part, Record, Report, Sealed, Session, StripeTerm, UpdateId};

fn code() -> SharedCode {
    weft_codes::parse("rs(4,2)").unwrap()
}

fn block(index: u8) -> BlockId {
    BlockId { stripe: stripe().id, index, copy: 0, generation: 1 }
}

fn blocks(indexes: impl IntoIterator<Item = u8>) -> Vec<BlockId> {
    indexes.into_iter().map(block).collect()
}

fn set(indexes: impl IntoIterator<Item = u8>) -> BTreeSet<BlockId> {
    blocks(indexes).into_iter().collect()
}

#[test]
fn good_and_closed_blocks_take_part_if_they_are_one_more_than_the_code_needs() {
    let of = |stripe: &StripeRecord, down: &[u32], unclosed: &[u8]| {
        members(&code(), stripe, &view(6, down), (&set(unclosed.to_vec()), 1))
    };
    assert_eq!(of(&stripe(), &[], &[]).unwrap(), blocks(0..6));
    assert_eq!(of(&stripe(), &[2], &[]).unwrap(), blocks([0, 2, 3, 4, 5]));
    assert_eq!(of(&stripe(), &[], &[5]).unwrap(), blocks(0..5));
    let mut corrupt = stripe();
    corrupt.blocks.get_mut(&3).unwrap().state = BlockState::Corrupt;
    // It could be read elsewhere, but an update may need just these bytes.
    corrupt.corrupt.insert((3, 0), vec![weft_types::Span::new(0, 4096)]);
    assert_eq!(of(&corrupt, &[], &[]).unwrap(), blocks([0, 1, 2, 4, 5]));
    let error = of(&corrupt, &[1], &[]).unwrap_err();
    assert_eq!(error.reaction, weft_types::Reaction::Unavailable);
    assert!(error.message.contains("4 of 6 blocks of stripe 0 can be used, but an update needs at least 5"), "{error}");
}

#[test]
fn the_code_says_whether_the_others_can_be_rebuilt() {
    // Blocks 0 and 1 with parity 4, blocks 2 and 3 with parity 5, and a parity of all.
    let lrc = weft_codes::parse("lrc(4,2,1)").unwrap();
    let mut stripe = stripe();
    stripe.layout.m = 3;
    stripe.blocks.insert(6, PlacedBlock { home: home(7), ..stripe.blocks[&5] });
    let members = blocks(0..7);
    let can = |absent: &[u8]| can_rebuild(&lrc, &stripe, &members, &set(absent.to_vec()));
    assert!(can(&[]) && can(&[0, 2]) && can(&[4, 5]));
    let lost = (0..7).find(|third| *third > 1 && !can(&[0, 1, *third]));
    assert!(lost.is_some(), "two blocks of a group and their parities cannot be lost");
    // Further copies of a block count.
    let copy = BlockId { copy: 1, ..block(0) };
    let members = [blocks(0..4), vec![copy]].concat();
    assert!(can_rebuild(&code(), &self::stripe(), &members, &set([0])));
    assert!(!can_rebuild(&code(), &self::stripe(), &members, &set([1])));
    assert!(!can_rebuild(&code(), &self::stripe(), &members, &members.iter().copied().collect()));
}

fn id(session: u64, ends_at_ms: u64, counter: u64) -> UpdateId {
    UpdateId { session: Session { number: session, ends_at_ms }, counter, lead: 0 }
}

/// A record of block 0 that the blocks of rs(4,2) must hold.
fn record() -> Arc<Record> {
    let incarnation = Incarnation { generation: 1, opened: 0, starts: 1 };
    let part = Part { stream: 0, number: 1, incarnation, span: weft_types::Span::new(0, 8) };
    Arc::new(Record { id: id(1, 900, 1), term: 1, participants: blocks([0, 4, 5]), parts: vec![part] })
}

fn reported(term: u64, holds: bool) -> Option<Message> {
    let held = (record().id, (record(), Claim::Held([(0, 77)].into())));
    let report = Report { records: holds.then_some(held).into_iter().collect(), numbers: [(0, 1)].into(), ..Report::default() };
    Some(Message::SealReported { term, report })
}

fn opened() -> StripeTerm {
    let sealed = Sealed { term: 1, members: blocks(0..6), ..Sealed::default() };
    StripeTerm { term: 1, sealed: Arc::new(sealed), unaware: BTreeSet::new() }
}

/// Seals the stripe, without absent blocks and those that are silent; the others hold the record if they must.
fn seal(absent: &[u8], silent: &[u8]) -> Step {
    let can = |absent: &BTreeSet<BlockId>| can_rebuild(&code(), &stripe(), &blocks(0..6), absent);
    let (mut sealing, step) = Sealing::begin(opened(), &set(absent.to_vec()), &can);
    let raised = StripeTerm { term: 2, ..opened() };
    assert_eq!(step, Step::Save { before: opened(), term: raised.clone() }, "the coordinator saves before it sends");
    let Step::Ask(asked) = sealing.saved(&can) else { panic!("it asks nobody") };
    assert_eq!(
        asked,
        (0..6).filter(|index| !absent.contains(index)).map(|index| (block(index), Message::Seal { term: 2 })).collect::<Vec<_>>()
    );
    let answer = |(block, _): (BlockId, Message)| {
        let is_held = record().participants.contains(&block);
        (block, if silent.contains(&block.index) { None } else { reported(2, is_held) })
    };
    match sealing.answered(asked.into_iter().map(answer).collect(), &can) {
        Step::Save { before, term } => {
            assert_eq!(before, raised);
            assert_eq!(sealing.saved(&can), Step::Done(term.clone()));
            Step::Done(term)
        }
        step => step,
    }
}

#[test]
fn a_block_that_reports_numbers_that_no_update_can_have_stays_away_from_a_seal() {
    let can = |absent: &BTreeSet<BlockId>| can_rebuild(&code(), &stripe(), &blocks(0..6), absent);
    let (mut sealing, _) = Sealing::begin(opened(), &BTreeSet::new(), &can);
    let Step::Ask(asked) = sealing.saved(&can) else { panic!("it asks nobody") };
    let answer = |(to, _): (BlockId, Message)| {
        let number = if to == block(1) { 1 << 62 } else { 3 };
        (to, Some(Message::SealReported { term: 2, report: Report { numbers: [(1, number)].into(), ..Report::default() } }))
    };
    let Step::Save { term, .. } = sealing.answered(asked.into_iter().map(answer).collect(), &can) else { panic!("it waits") };
    assert_eq!((&term.sealed.members, &term.sealed.vector), (&blocks([0, 2, 3, 4, 5]), &[(1, 3)].into()));
}

#[test]
fn a_seal_records_what_its_blocks_decide_without_those_that_do_not_answer() {
    for (absent, silent) in [(&[][..], &[][..]), (&[0][..], &[][..]), (&[], &[5]), (&[1], &[4])] {
        let Step::Done(term) = seal(absent, silent) else { panic!("without {absent:?} and {silent:?}") };
        let gone: Vec<u8> = absent.iter().chain(silent).copied().collect();
        let remaining = blocks((0..6).filter(|index| !gone.contains(index)));
        assert_eq!((term.term, &term.sealed.members), (2, &remaining));
        assert_eq!(term.unaware, remaining.iter().copied().collect());
        assert_eq!((&term.sealed.outcomes, &term.sealed.vector), (&[(record().id, Outcome::Committed)].into(), &[(0, 1)].into()));
    }
    assert_eq!(seal(&[1], &[2, 4]), Step::Stuck, "three blocks of rs(4,2) are lost");
    assert_eq!(seal(&[], &[0, 1, 2, 3, 4, 5]), Step::Stuck);
}

#[test]
fn an_answer_of_another_term_is_none() {
    let can = |_: &BTreeSet<BlockId>| true;
    let (mut sealing, _) = Sealing::begin(opened(), &BTreeSet::new(), &can);
    let Step::Ask(asked) = sealing.saved(&can) else { panic!("it asks nobody") };
    let answers = asked.into_iter().map(|(block, _)| (block, reported(if block.index == 3 { 1 } else { 2 }, false))).collect();
    let Step::Save { term, .. } = sealing.answered(answers, &can) else { panic!("it is not complete") };
    assert_eq!(term.sealed.members, blocks([0, 1, 2, 4, 5]));
}

#[test]
fn a_stripe_is_settled_if_all_members_say_the_same() {
    let stripe = stripe();
    let copy = BlockId { copy: 1, ..block(1) };
    let members: Vec<BlockId> = blocks(0..6).into_iter().chain([copy]).collect();
    let sealed = Sealed { term: 3, members: members.clone(), vector: [(1, 5)].into(), ..Sealed::default() };
    let told = |index: u8| SettledBlock { seq: Seq::new(3, vec![0, 5, 0, 0]), checksums: vec![20 + u32::from(index)] };
    let answers: BTreeMap<BlockId, SettledBlock> = members.iter().map(|block| (*block, told(block.index))).collect();
    let expected: BTreeMap<u8, Vec<u32>> = (0..6).map(|index| (index, vec![20 + u32::from(index)])).collect();
    assert_eq!(agreed(&stripe, &sealed, &answers), Ok(expected));
    let without = |change: &dyn Fn(&mut BTreeMap<BlockId, SettledBlock>)| {
        let mut answers = answers.clone();
        change(&mut answers);
        agreed(&stripe, &sealed, &answers).unwrap_err()
    };
    assert_eq!(without(&|answers| drop(answers.remove(&block(2)))), set([2]));
    assert_eq!(
        without(&|answers| answers.get_mut(&block(4)).unwrap().seq = Seq::new(3, vec![0, 4, 0, 0])),
        set([4]),
        "an older content"
    );
    assert_eq!(
        without(&|answers| answers.get_mut(&block(4)).unwrap().seq = Seq::new(2, vec![0, 5, 0, 0])),
        set([4]),
        "another term"
    );
    assert_eq!(without(&|answers| answers.get_mut(&block(5)).unwrap().checksums.push(1)), set([5]));
    assert_eq!(without(&|answers| answers.get_mut(&copy).unwrap().checksums = vec![9]), [copy].into(), "a copy that differs");
}
