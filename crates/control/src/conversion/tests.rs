use super::*;
use crate::fixtures::{home, stripe, view};
use weft_types::{JobProgress, JobState, PlacedBlock, Span, StripeLayout};

fn object() -> ObjectName {
    ObjectName { bucket: "b".into(), key: "k".into() }
}

#[test]
fn a_stripe_has_as_many_copies_as_each_of_its_data_blocks() {
    let with = |copies: &[(u8, u8)]| {
        let mut stripe = stripe();
        stripe.layout = StripeLayout { k: 2, m: 1, ..stripe.layout };
        stripe.blocks.retain(|index, _| *index < 3);
        stripe.copies =
            copies.iter().map(|(index, copy)| (*index, PlacedBlock { copy: *copy, ..stripe.blocks[index] })).collect();
        stripe
    };
    let has = |copies: &[(u8, u8)]| [1, 2, 3].map(|replicas| has_copies(&with(copies), replicas));
    assert_eq!(has(&[]), [true, false, false]);
    assert_eq!(has(&[(0, 1), (1, 1)]), [false, true, false]);
    assert_eq!(has(&[(0, 1), (1, 1), (0, 2)]), [false, false, false], "only half of the copies exist");
}

#[test]
fn removed_objects_need_no_conversion_and_failed_ones_are_left_out() {
    let failed = || (3, Error::unavailable("too many blocks are lost"));
    let outcome = |now| Outcome::of_failed(&object(), now, failed());
    assert_eq!([outcome(Now::Nothing), outcome(Now::Fine)], [Outcome::Gone, Outcome::Gone]);
    assert_eq!(outcome(Now::Same), Outcome::Left { stripe: 3, error: failed().1.object("b/k") });
    let Outcome::Left { error, .. } = outcome(Now::Another) else { panic!("it still needs a conversion") };
    assert_eq!(error.reaction, Reaction::Replan);
    let other = (0, Error::replan("lost").object("b/other"));
    let Outcome::Left { error, .. } = Outcome::of_failed(&object(), Now::Same, other) else { panic!("it is left out") };
    assert_eq!(error.object.as_deref(), Some("b/other"), "a name that the error has stays");
}

#[test]
fn an_object_is_counted_by_its_outcome() {
    let mut job = Job::new(JobState::Running, JobProgress::default(), LEFT_UNSAID);
    let left = |error: Error| Outcome::Left { stripe: 2, error: error.object(object()) };
    let outcomes = [
        (Outcome::Converted, Again::InVain),
        (Outcome::Gone, Again::InVain),
        (Outcome::Stopped, Again::InVain),
        (Outcome::MadeWay, Again::MadeWay),
        (left(Error::unavailable("too many blocks are lost")), Again::InVain),
        (left(Error::retry("no node is up")), Again::Perhaps),
    ];
    for (outcome, again) in outcomes {
        assert_eq!(take(&mut job, &object(), 100, outcome), again);
    }
    let JobProgress { done, left, left_blocks, .. } = job.progress();
    assert_eq!((done.blocks, done.bytes, left.blocks, left.bytes), (1, 100, 2, 200));
    let named = |left: &LeftBlock| (left.object.clone(), left.stripe, left.reason.clone());
    assert_eq!(named(&left_blocks[0]), ("b/k".into(), 2, "too many blocks are lost".into()));
}

#[test]
fn permanent_losses_come_before_blocks_on_nodes_that_are_down() {
    let mut stripe = stripe();
    assert_eq!(Lost::of(&stripe, &view(6, &[])), None);
    let away = Lost::of(&stripe, &view(6, &[5])).unwrap();
    assert_eq!((away.node, away.is_away), (NodeId(5), true));
    stripe.find_mut(5, 0).unwrap().state = BlockState::Missing;
    let lost = Lost::of(&stripe, &view(6, &[2])).unwrap();
    assert_eq!((lost.node, lost.is_away), (NodeId(6), false), "the block is missing, even if all nodes return");
    stripe.find_mut(5, 0).unwrap().state = BlockState::Corrupt;
    stripe.corrupt.insert((5, 0), vec![Span::new(0, 4096)]);
    let lost = Lost::of(&stripe, &view(6, &[])).unwrap();
    assert!(!lost.is_away && lost.error.message.contains("corrupt in part"), "{}", lost.error);
    stripe.find_mut(5, 0).unwrap().home = home(99);
    assert!(Lost::of(&stripe, &view(6, &[2])).is_some_and(|lost| !lost.is_away), "an unknown node does not come back");
}

#[test]
fn a_conversion_waits_for_a_node_that_is_down_for_a_bounded_time() {
    let (stripe, down) = (stripe(), view(6, &[3]));
    let lost = || Lost::of(&stripe, &down).unwrap();
    let gone = || Lost { is_away: false, ..lost() };
    let patience = Duration::from_secs(60);
    let looked = |lost: Vec<(u64, Lost)>, waited| whole(&object(), lost, &down, Duration::from_secs(waited), patience);
    assert_eq!(looked(vec![], 99), Whole::Yes);
    let waits = "node-3, which is down and has new blocks of b/k (stripe 1)".to_owned();
    assert_eq!(looked(vec![(1, lost()), (2, lost())], 59), Whole::WaitsFor(waits));
    assert_eq!(looked(vec![(1, lost()), (2, lost())], 60), Whole::No((1, lost().error)));
    assert_eq!(looked(vec![(1, lost()), (2, gone())], 0), Whole::No((2, gone().error)), "this cannot recover");
}
