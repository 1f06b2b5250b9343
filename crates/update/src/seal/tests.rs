//! One test for each rule of a seal.

use super::*;
use crate::{
    Claim, Record, Vector,
    fixtures::{block, blocks, crcs, part, record},
};

/// Up to two of the four blocks can be rebuilt.
fn can_rebuild(absent: &BTreeSet<BlockId>) -> bool {
    absent.len() <= 2
}

/// Handles an event, saves what is to be saved, and returns what was sent.
fn on(seal: &mut Seal, event: Event) -> Vec<(u8, Message)> {
    let (mut events, mut sent) = (vec![event], Vec::new());
    while let Some(event) = events.pop() {
        for action in seal.on(event, &can_rebuild) {
            match action {
                Action::Save(_) => events.push(Event::Saved),
                Action::Send { to, message } => sent.push((to.index, message)),
            }
        }
    }
    sent
}

fn begun(absent: &[u8]) -> Seal {
    let mut seal = Seal::new(StripeTerm::new(blocks()));
    on(&mut seal, Event::Begin { absent: absent.iter().map(|at| block(*at)).collect() });
    for at in absent {
        on(&mut seal, Event::LeaseEnded(block(*at)));
    }
    seal
}

fn reports(seal: &mut Seal, from: u8, term: u64, record: Option<(&Arc<Record>, Claim)>) -> Vec<(u8, Message)> {
    let records: BTreeMap<_, _> = record.into_iter().map(|(record, claim)| (record.id, (record.clone(), claim))).collect();
    let numbers: Vector = records.values().map(|(record, _)| (0, record.lead().number)).collect();
    let message = Message::SealReported { term, report: Report { records, numbers, ..Report::default() } };
    on(seal, Event::Received { from: block(from), message })
}

fn held() -> Claim {
    Claim::Held(crcs(1))
}

#[test]
fn nobody_hears_of_a_term_before_it_is_saved() {
    let mut seal = Seal::new(StripeTerm::new(blocks()));
    let actions = seal.on(Event::Begin { absent: [block(0)].into() }, &can_rebuild);
    assert!(matches!(&actions[..], [Action::Save(StripeTerm { term: 1, .. })]), "{actions:?}");
    let sent = seal.on(Event::Saved, &can_rebuild);
    let seals: Vec<Action> = (1..4).map(|at| Action::Send { to: block(at), message: Message::Seal { term: 1 } }).collect();
    assert_eq!(sent, seals);
    // The coordinator restarts with what was saved: another seal gets another term.
    let mut next = Seal::new(seal.stripe().clone());
    assert!(next.stripe().is_open());
    on(&mut next, Event::Begin { absent: BTreeSet::new() });
    assert_eq!(next.stripe().term, 2);
}

#[test]
fn it_decides_when_all_others_have_reported_and_fences_the_absent() {
    let (mut seal, record) = (begun(&[3]), record(0, vec![part(0, 5)]));
    reports(&mut seal, 0, 1, Some((&record, held())));
    reports(&mut seal, 3, 1, None);
    reports(&mut seal, 1, 0, None);
    reports(&mut seal, 2, 1, Some((&record, held())));
    assert!(seal.is_under_way(), "block 1 has not reported in this term");
    let sent = reports(&mut seal, 1, 1, None);
    let sealed = seal.stripe().sealed.clone();
    assert_eq!(sealed.members, [0, 1, 2].map(block));
    assert_eq!((&sealed.outcomes, &sealed.vector), (&[(record.id, Outcome::Committed)].into(), &[(0, 5)].into()));
    assert_eq!(sent, [0, 1, 2].map(|at| (at, Message::Sealed(sealed.clone()))));
}

#[test]
fn it_waits_for_leases_and_for_blocks_that_can_rebuild_the_absent() {
    let mut seal = begun(&[]);
    on(&mut seal, Event::Absent(block(0)));
    for at in 1..4 {
        reports(&mut seal, at, 1, None);
    }
    assert!(seal.is_under_way(), "the absent node may still serve reads");
    on(&mut seal, Event::LeaseEnded(block(0)));
    assert!(!seal.is_under_way());
    let mut seal = begun(&[0, 2, 3]);
    reports(&mut seal, 1, 1, None);
    assert!(seal.is_under_way(), "one block cannot rebuild three");
    // A block that was fenced before does not count again.
    let mut seal = begun(&[0]);
    for at in 1..4 {
        reports(&mut seal, at, 1, None);
    }
    on(&mut seal, Event::Begin { absent: [block(1)].into() });
    on(&mut seal, Event::Absent(block(0)));
    on(&mut seal, Event::LeaseEnded(block(1)));
    for at in 2..4 {
        reports(&mut seal, at, 2, None);
    }
    assert_eq!(seal.stripe().sealed.members, [2, 3].map(block));
}

#[test]
fn a_block_that_reports_and_then_stays_away_stands_for_no_other() {
    let mut seal = begun(&[]);
    for at in [0, 1, 2] {
        reports(&mut seal, at, 1, None);
    }
    for at in [0, 1] {
        on(&mut seal, Event::Absent(block(at)));
        on(&mut seal, Event::LeaseEnded(block(at)));
    }
    assert!(seal.is_under_way(), "block 3 has not reported");
    reports(&mut seal, 3, 1, None);
    assert_eq!(seal.stripe().sealed.members, [2, 3].map(block));
}

#[test]
fn an_outcome_that_was_recorded_stands_and_is_kept_for_the_next_opening() {
    let (mut seal, record) = (begun(&[3]), record(0, vec![part(0, 5)]));
    for (at, claim) in [(0, None), (1, None), (2, Some((&record, held())))] {
        reports(&mut seal, at, 1, claim);
    }
    assert_eq!(seal.outcome(record.id), Some(Outcome::Aborted));
    // Only block 2 remains that knows of it, and it has not heard of the outcome.
    on(&mut seal, Event::Begin { absent: [block(0)].into() });
    on(&mut seal, Event::LeaseEnded(block(0)));
    for (at, claim) in [(1, None), (2, Some((&record, held())))] {
        reports(&mut seal, at, 2, claim);
    }
    assert_eq!(seal.outcome(record.id), Some(Outcome::Aborted));
    let known = |from| Event::Received { from: block(from), message: Message::SealKnown { term: 2 } };
    on(&mut seal, known(1));
    assert!(seal.outcome(record.id).is_some());
    on(&mut seal, known(2));
    assert!(seal.outcome(record.id).is_some() && seal.stripe().unaware.is_empty());
    assert_eq!(seal.stripe().sealed.vector, [(0, 5)].into());
    let mut stripe = seal.stripe().clone();
    Arc::make_mut(&mut stripe.sealed).floors.insert(Session { number: 9, ends_at_ms: 5 }, 1);
    let open = |term, now_ms| StripeTerm::open(Some(&stripe), vec![block(1)], &Seq::new(term, vec![5, 0]), now_ms);
    let again = open(1, 0);
    assert_eq!((again.term, again.sealed.term, again.unaware.len()), (3, 3, 0));
    assert_eq!((&again.sealed.members, again.sealed.outcomes.get(&record.id)), (&vec![block(1)], Some(&Outcome::Aborted)));
    assert_eq!(open(9, 4 + OUTCOMES_KEPT_MS).sealed.floors.len(), 1);
    let later = open(9, 5 + OUTCOMES_KEPT_MS);
    assert_eq!((later.term, later.sealed.floors.len(), later.sealed.outcomes.len()), (10, 0, 1), "one session has ended");
}

#[test]
fn outcomes_are_handed_on_until_their_sessions_are_long_over_and_not_too_many() {
    let id = |number, ends_at_ms, counter| UpdateId { session: Session { number, ends_at_ms }, counter, lead: 0 };
    let open = |sealed: Sealed, now_ms| {
        let before = StripeTerm { term: 1, sealed: Arc::new(sealed), unaware: BTreeSet::new() };
        (*StripeTerm::open(Some(&before), vec![block(1)], &Seq::new(1, vec![0, 7]), now_ms).sealed).clone()
    };
    let none = StripeTerm::open(None, vec![block(1)], &Seq::default(), 5);
    assert_eq!((none.term, &*none.sealed), (1, &Sealed { term: 1, members: vec![block(1)], ..Sealed::default() }));
    let (old, young) = (id(1, 1_000, 1), id(2, 900_000, 1));
    let sealed = Sealed {
        outcomes: [(old, Outcome::Committed), (young, Outcome::Aborted)].into(),
        floors: [(old.session, 3), (young.session, 4)].into(),
        ..Sealed::default()
    };
    let kept = Sealed { term: 2, members: vec![block(1)], vector: [(1, 7)].into(), ..sealed.clone() };
    assert_eq!(open(sealed.clone(), 600_999), kept);
    let later = Sealed { outcomes: [(young, Outcome::Aborted)].into(), floors: [(young.session, 4)].into(), ..kept };
    assert_eq!(open(sealed, 601_000), later);

    let many =
        |session, ends_at_ms, count| (1..=count).map(move |counter| (id(session, ends_at_ms, counter), Outcome::Committed));
    let sealed =
        Sealed { outcomes: many(1, 900, OUTCOMES_MAX as u64 - 96).chain(many(2, 800, 100)).collect(), ..Sealed::default() };
    let Sealed { outcomes, floors, .. } = open(sealed, 5);
    assert_eq!((outcomes.len(), floors), (OUTCOMES_MAX, [(id(2, 800, 1).session, 4)].into()), "of the session that ends first");
    assert!(!outcomes.contains_key(&id(2, 800, 4)) && outcomes.contains_key(&id(2, 800, 5)));
}

#[test]
fn a_seal_admits_a_block_in_place_of_an_absent_one() {
    let mut seal = begun(&[3]);
    let next = BlockId { generation: 2, ..block(3) };
    for join in [next, BlockId { generation: 2, ..block(2) }] {
        on(&mut seal, Event::Join(join));
    }
    for at in 0..3 {
        reports(&mut seal, at, 1, None);
    }
    let members: Vec<BlockId> = (0..3).map(block).chain([next]).collect();
    assert_eq!(seal.stripe().sealed.members, members, "block 2 itself is still there");
    assert!(seal.stripe().unaware.contains(&next));
    // One that stays away, too, is not admitted.
    let mut seal = begun(&[3]);
    on(&mut seal, Event::Join(next));
    on(&mut seal, Event::Absent(next));
    for at in 0..3 {
        reports(&mut seal, at, 1, None);
    }
    assert_eq!(seal.stripe().sealed.members, [0, 1, 2].map(block));
}
