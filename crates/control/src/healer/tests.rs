//! Judgements by tables, which blocks are rebuilt, and the queue under any order of events.

use super::*;
use crate::{
    Time,
    fixtures::{self, BLOCK_LEN, member as node, stripe, view},
    health::{BadBlocks, FurtherLosses, Tally},
    members::MemberStatus,
};
use proptest::prelude::*;
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};
use weft_types::{Amount, Cause, Error, NodeId, NodeState, StripeId};

const LOST_AFTER: Duration = Duration::from_secs(900);
const ON: Policy = Policy { on: true, lost_after: LOST_AFTER };

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// This many nodes without racks, of which the first are silent for so many seconds.
fn nodes(all: u32, silent_s: &[u64]) -> Vec<MemberStatus> {
    let silent = |id: u32| silent_s.get(id as usize - 1).map(|silent_s| (NodeState::Down, *silent_s));
    (1..=all).map(|id| node(id, "", silent(id))).collect()
}

/// The judgement long after the coordinator's start.
fn judge(nodes: &[MemberStatus], coming_back: bool, policy: Policy) -> Judgement {
    Judge::default().judge(nodes, coming_back, policy, at(1_000_000))
}

fn declared(nodes: &[MemberStatus]) -> Vec<u32> {
    judge(nodes, false, ON).declared.iter().map(|node| node.0).collect()
}

#[test]
fn a_node_is_lost_after_the_grace_and_not_before() {
    assert_eq!([899, 900, 5_000].map(|silent| declared(&nodes(6, &[silent]))), [vec![], vec![1], vec![1]]);
    assert_eq!(declared(&nodes(6, &[899, 1_000])), [2]);
    let one = judge(&nodes(6, &[300]), false, ON);
    assert_eq!((one.scope, one.silent), (Scope::Lost { silent_slack: 0 }, vec![(NodeId(1), seconds(600))]));
    let mut unrecorded = nodes(6, &[]);
    unrecorded[2] = node(3, "", Some((NodeState::Up, 6)));
    assert_eq!(
        judge(&unrecorded, false, ON).silent,
        [(NodeId(3), seconds(894))],
        "it was up for days, and is silent for seconds"
    );
}

#[test]
fn many_silent_nodes_or_a_whole_rack_need_a_person() {
    let guard = |nodes: &[MemberStatus]| {
        let judged = judge(nodes, false, ON);
        assert!(judged.guard.is_none() || judged.declared.is_empty());
        (judged.guard, judged.scope)
    };
    let (lost, urgent) = (|silent_slack| Scope::Lost { silent_slack }, 1);
    let many = |silent, of| Some(Guard::Many { silent, of });
    assert_eq!(guard(&nodes(10, &[999; 2])), (None, lost(0)), "two of ten");
    assert_eq!(guard(&nodes(10, &[999; 3])), (many(3, 10), lost(urgent)));
    assert_eq!(guard(&nodes(10, &[9; 3])), (many(3, 10), lost(0)), "they may be restarting: no repair storm");
    assert_eq!(guard(&nodes(30, &[999; 3])), (None, lost(0)), "a tenth is not more than a tenth");
    assert_eq!(guard(&nodes(29, &[999; 3])), (many(3, 29), lost(urgent)));
    assert_eq!(declared(&nodes(30, &[999; 3])), [1, 2, 3]);

    let racks = |silent: &[(u32, NodeState)], silent_s| {
        let silent = |id: u32| silent.iter().find(|(at, _)| *at == id).map(|(_, state)| (*state, silent_s));
        (1..=12).map(|id| node(id, &format!("r{}", id % 6), silent(id))).collect::<Vec<_>>()
    };
    let (down, was_lost) = (NodeState::Down, NodeState::Lost);
    let whole = Some(Guard::Rack { rack: "r1".into(), nodes: 2 });
    assert_eq!(guard(&racks(&[(1, down), (2, down)], 999)), (None, lost(0)), "of different racks");
    assert_eq!(guard(&racks(&[(1, down), (7, down)], 999)), (whole.clone(), lost(urgent)));
    assert_eq!(guard(&racks(&[(1, was_lost), (7, down)], 999)), (whole, lost(urgent)), "one after the other");
    assert_eq!(guard(&racks(&[(1, was_lost), (7, was_lost)], 999)), (None, lost(0)), "a person decided so");
    let single: Vec<MemberStatus> = (1..=6).map(|id| node(id, &format!("r{id}"), (id == 1).then_some((down, 999)))).collect();
    assert_eq!(declared(&single), [1], "a rack of one node is a node");
    assert_eq!(declared(&nodes(6, &[999, 999])), [1, 2], "nodes without a rack are no rack");
}

#[test]
fn nothing_is_done_when_it_is_off_or_when_the_coordinator_may_be_cut_off() {
    let stop = |nodes: &[MemberStatus], coming_back, policy| match judge(nodes, coming_back, policy) {
        Judgement { scope: Scope::Nothing(stop), declared, .. } if declared.is_empty() => Some(stop),
        Judgement { scope: Scope::Lost { .. }, .. } => None,
        judged => panic!("{judged:?}"),
    };
    let six = nodes(6, &[999]);
    assert_eq!(stop(&six, false, Policy { on: false, ..ON }), Some(Stop::Off));
    assert_eq!(stop(&six, true, ON), Some(Stop::ComingBack));
    assert_eq!(stop(&nodes(6, &[999; 3]), false, ON), None, "it hears half of them");
    assert_eq!(stop(&nodes(6, &[2; 4]), false, ON), Some(Stop::Minority { up: 2, of: 6 }));
    // What was lost earlier is not a sign of being cut off now.
    let mut worn = nodes(6, &[999; 4]);
    worn[..3].iter_mut().for_each(|node| node.record.state = NodeState::Lost);
    assert_eq!((stop(&worn, false, ON), declared(&worn)), (None, vec![4]));
}

#[test]
fn nodes_that_a_person_has_repaired_do_not_count() {
    let mut four = nodes(10, &[999; 4]);
    assert!(declared(&four).is_empty());
    four[..2].iter_mut().for_each(|node| node.record.state = NodeState::Lost);
    assert_eq!(declared(&four), [3, 4]);
}

#[test]
fn no_node_is_lost_in_the_moment_it_comes_back() {
    let at_start = |nodes: &[MemberStatus], second| Judge::default().judge(nodes, false, ON, at(second));
    // Power failed for an hour. The coordinator starts first.
    let (two, four) = (nodes(9, &[3_600; 2]), nodes(9, &[3_600; 4]));
    let early = at_start(&two, 20);
    assert_eq!((early.declared, early.silent[0]), (vec![], (NodeId(1), seconds(40))));
    assert_eq!(at_start(&two, 60).declared, [NodeId(1), NodeId(2)]);
    assert_eq!(at_start(&four, 20).scope, Scope::Lost { silent_slack: 0 }, "what survives a loss is not urgent yet");
    assert_eq!(at_start(&four, 60).scope, Scope::Lost { silent_slack: 1 });

    // Nodes come back one after the other, 30 seconds apart; in the end none is lost but the one that stays away.
    let mut judge = Judge::default();
    let mut declared = |silent: &[u64], second| {
        let all: Vec<MemberStatus> = nodes(9, &silent.iter().map(|_| 3_600).collect::<Vec<_>>());
        judge.judge(&all, false, ON, at(second)).declared
    };
    assert_eq!(declared(&[1; 5], 1_000), []);
    for (silent, second) in [(4, 1_030), (3, 1_060), (2, 1_090), (1, 1_120)] {
        assert_eq!([declared(&vec![1; silent], second), declared(&vec![1; silent], second + 29)].concat(), [], "{silent}");
    }
    assert_eq!([declared(&[1], 1_179), declared(&[1], 1_180)], [vec![], vec![NodeId(1)]]);
}

#[test]
fn a_guard_that_is_lifted_leaves_time_and_a_restarting_node_does_not_delay_others() {
    let mut judge = Judge::default();
    let mut declared = |nodes: &[MemberStatus], second| judge.judge(nodes, false, ON, at(second)).declared;
    let mut four = nodes(10, &[999; 4]);
    assert_eq!(declared(&four, 1_000), []);
    // A person repairs two.
    four[..2].iter_mut().for_each(|node| node.record.state = NodeState::Lost);
    assert_eq!([declared(&four, 1_001), declared(&four, 1_060)], [[]; 2] as [[NodeId; 0]; 2]);
    assert_eq!(declared(&four, 1_061), [NodeId(3), NodeId(4)]);

    let mut judge = Judge::default();
    for second in (1_000..1_100).step_by(10) {
        // Node 2 restarts every 20 seconds.
        let silent = if second % 20 == 0 { nodes(10, &[800 + second - 1_000, 9]) } else { nodes(10, &[800 + second - 1_000]) };
        judge.judge(&silent, false, ON, at(second));
    }
    assert_eq!(judge.judge(&nodes(10, &[900]), false, ON, at(1_100)).declared, [NodeId(1)]);
    let short = Policy { lost_after: seconds(5), ..ON };
    assert_eq!(Judge::default().judge(&nodes(10, &[6]), false, short, at(5)).declared, [NodeId(1)], "short times are for tests");
}

proptest! {
    /// Whatever state nodes are in: nothing is lost early, and nothing by itself if many are silent.
    #[test]
    fn judgements_are_safe(
        states in proptest::collection::vec((0..4u8, 0..2_000u64, 0..4u8), 0..24),
        on in any::<bool>(),
        coming_back in any::<bool>(),
    ) {
        let states: Vec<MemberStatus> = (1..).zip(&states).map(|(id, (state, silent_s, rack))| {
            let silent = [NodeState::Up, NodeState::Down, NodeState::Lost].get(usize::from(*state)).map(|state| (*state, *silent_s));
            node(id, &format!("r{rack}"), silent)
        }).collect();
        let judged = judge(&states, coming_back, Policy { on, ..ON });
        let silent: Vec<&MemberStatus> = states.iter().filter(|it| !it.up && it.record.state != NodeState::Lost).collect();
        let up = states.iter().filter(|it| it.up).count();
        for id in &judged.declared {
            let node = states.iter().find(|it| it.record.id == *id).unwrap();
            prop_assert!(!node.up && node.record.state != NodeState::Lost && node.silent_for >= LOST_AFTER);
            prop_assert!(states.iter().any(|other| other.up && other.record.rack == node.record.rack)
                || states.iter().filter(|other| other.record.rack == node.record.rack).count() == 1);
        }
        if !on || coming_back || up < silent.len() {
            prop_assert!(judged.declared.is_empty() && matches!(judged.scope, Scope::Nothing(_)));
        } else {
            let is_silent_slack_1 = judged.scope == (Scope::Lost { silent_slack: 1 });
            prop_assert!(!is_silent_slack_1 || judged.guard.is_some());
        }
        prop_assert!(silent.len() < 3 || silent.len() * 10 <= silent.len() + up || judged.declared.is_empty());
        prop_assert_eq!(judged.silent.len() + judged.declared.len(), silent.len(), "each silent node is either listed as silent or declared lost");
    }
}

const NONE: [u8; 0] = [];

/// Which blocks of the stripe are rebuilt, by index.
fn rebuilt(stripe: &StripeRecord, view: &View, silent_slack: usize) -> Vec<u8> {
    let code = weft_codes::parse("rs(4,2)").unwrap();
    let condition = Condition::of(stripe, BadBlocks::of(stripe, view), &code, view, &mut FurtherLosses::default());
    let scope = Scope::Lost { silent_slack };
    let wanted = wanted(stripe, &condition, &scope, view);
    assert_eq!(is_due(&condition, &scope), !wanted.is_empty() || condition.blocks.to_rebuild() > 0 && condition.now.is_some());
    assert!(super::wanted(stripe, &condition, &Scope::Nothing(Stop::Off), view).is_empty());
    wanted.into_iter().map(|lost| lost.index).collect()
}

#[test]
fn lost_blocks_are_rebuilt_and_silent_ones_only_if_it_is_urgent() {
    let mut stripe = stripe();
    let mark = |stripe: &mut StripeRecord, index, state| stripe.find_mut(index, 0).unwrap().state = state;
    assert_eq!([rebuilt(&stripe, &view(8, &[]), 0), rebuilt(&stripe, &view(8, &[2]), 0)].concat(), NONE);
    assert_eq!(rebuilt(&stripe, &view(8, &[2]), 1), [1], "a guard holds, and it survives one further loss");
    assert_eq!(rebuilt(&stripe, &view(8, &[2, 5]), 0), [1, 4], "it would not survive a further loss");
    assert_eq!(rebuilt(&stripe, &view(8, &[2, 5, 6]), 1), NONE, "it cannot be read, so it waits for nodes");
    let mut gone = view(8, &[2, 5]);
    gone.nodes.get_mut(&NodeId(2)).unwrap().lost = true;
    gone.nodes.get_mut(&NodeId(5)).unwrap().up = true;
    assert_eq!(rebuilt(&stripe, &gone, 0), [1]);
    gone.nodes.get_mut(&NodeId(3)).unwrap().disks[0].failed = true;
    assert_eq!(rebuilt(&stripe, &gone, 0), [1, 2]);
    mark(&mut stripe, 5, BlockState::Corrupt);
    assert_eq!(rebuilt(&stripe, &view(8, &[]), 0), [5]);
    assert_eq!(rebuilt(&stripe, &view(8, &[1]), 0), [0, 5], "with the corrupt block it would not survive a further loss");
    mark(&mut stripe, 5, BlockState::Missing);
    assert_eq!(rebuilt(&stripe, &view(8, &[]), 0), [5]);
    stripe.incomplete = true;
    assert_eq!(rebuilt(&stripe, &view(8, &[]), 0), NONE, "its put still brings it");
}

/// A condition in which so many further losses are survived.
fn survives(further: Option<usize>) -> Condition {
    let blocks = BadBlocks { missing: 1, ..BadBlocks::default() };
    Condition { code: "rs(4,2)".into(), now: further, with_all_nodes: further, blocks }
}

fn at(seconds: u64) -> Time {
    Time::after(Duration::from_secs(seconds))
}

const WORK: Scope = Scope::Lost { silent_slack: 0 };

#[test]
fn blocks_leave_a_drained_node_while_their_stripe_lacks_none() {
    let lost = Scope::Lost { silent_slack: 0 };
    let mut drained = view(8, &[]);
    drained.nodes.get_mut(&NodeId(2)).unwrap().disks[0].draining = true;
    let wanted_in = |view: &View, scope: &Scope| {
        let (stripe, code) = (stripe(), weft_codes::parse("rs(4,2)").unwrap());
        let condition = Condition::of(&stripe, BadBlocks::of(&stripe, view), &code, view, &mut FurtherLosses::default());
        wanted(&stripe, &condition, scope, view).iter().map(|lost| lost.index).collect::<Vec<u8>>()
    };
    assert_eq!(wanted_in(&drained, &lost), [1]);
    assert_eq!(wanted_in(&drained, &Scope::Nothing(Stop::Off)), [1], "a person asked for it");
    for stop in [Stop::ComingBack, Stop::Minority { up: 2, of: 6 }] {
        assert!(wanted_in(&drained, &Scope::Nothing(stop)).is_empty());
    }
    drained.nodes.get_mut(&NodeId(4)).unwrap().up = false;
    assert!(wanted_in(&drained, &lost).is_empty(), "its node may be back in a moment");
    drained.nodes.get_mut(&NodeId(4)).unwrap().lost = true;
    assert_eq!(wanted_in(&drained, &lost), [3], "what is lost comes first");
    assert!(wanted_in(&drained, &Scope::Nothing(Stop::Off)).is_empty());
    // None can be rebuilt any more: what is left is copied.
    for node in [5, 6] {
        drained.nodes.get_mut(&NodeId(node)).unwrap().up = false;
    }
    assert!(wanted_in(&drained, &lost).is_empty(), "they may be back in a moment");
    for node in [5, 6] {
        drained.nodes.get_mut(&NodeId(node)).unwrap().lost = true;
    }
    assert_eq!([wanted_in(&drained, &lost), wanted_in(&drained, &Scope::Nothing(Stop::Off))], [[1], [1]]);
}

#[test]
fn a_node_that_was_drained_before_it_was_switched_off_is_no_sign() {
    let mut many = nodes(10, &[999; 3]);
    assert!(judge(&many, false, ON).guard.is_some());
    many[0].record.draining = true;
    let judged = judge(&many, false, ON);
    assert_eq!((judged.guard, judged.declared), (None, vec![NodeId(2), NodeId(3)]));
    let disk = crate::members::DiskState { blocks: 1, ..crate::members::DiskState::default() };
    many[0].disks.insert(weft_types::DiskNumber(1), disk);
    assert!(judge(&many, false, ON).guard.is_some(), "it still has a block");
}

#[test]
fn the_most_endangered_come_first_then_the_oldest() {
    let mut tally = Tally::default();
    for (id, further) in [(1, Some(2)), (2, Some(1)), (3, None), (4, Some(0)), (5, Some(1)), (6, Some(0))] {
        tally.set(StripeId(id), Some(survives(further)));
    }
    // In another condition, but survives as much.
    tally.set(StripeId(3), Some(Condition { code: "lrc(4,2,2)".into(), ..survives(Some(1)) }));
    let mut queue = Queue::default();
    let ids = |next: Vec<StripeId>| next.into_iter().map(|id| id.0).collect::<Vec<_>>();
    assert_eq!(ids(queue.next(&tally, &WORK, 3, at(1))), [4, 6, 2]);
    assert_eq!(queue.next(&tally, &WORK, 3, at(1)), [], "three are under way");
    assert_eq!(ids(queue.next(&tally, &WORK, 5, at(1))), [3, 5]);
    assert_eq!(queue.next(&tally, &Scope::Nothing(Stop::Off), 99, at(1)), []);
    let one = Amount { blocks: 1, bytes: BLOCK_LEN };
    queue.ended(StripeId(4), Ended::Rebuilt(one), at(2));
    assert_eq!(ids(queue.next(&tally, &WORK, 5, at(2))), [1], "the tally does not know yet that stripe 4 is complete");
    tally.set(StripeId(4), None);
    assert_eq!((queue.left(&tally, &WORK), queue.progress().done, queue.chosen()), (5, one, 5));
    assert_eq!(queue.progress().remaining(5, at(3)), Some(seconds(10)));
}

#[test]
fn among_equals_what_is_read_most_comes_first() {
    let (mut tally, mut queue) = (Tally::default(), Queue::default());
    for (id, further) in [(1, 2), (2, 1), (3, 1), (4, 1), (5, 0), (6, 1)] {
        tally.set(StripeId(id), Some(survives(Some(further))));
    }
    for (id, reads) in [(1, 99), (4, 1), (6, 5), (7, 50)] {
        (0..reads).for_each(|_| tally.read(StripeId(id), at(1)));
    }
    assert_eq!(
        queue.next(&tally, &WORK, 3, at(1)),
        [5, 6, 4].map(StripeId),
        "the least slack first, however often the others are read"
    );
    (0..7).for_each(|_| tally.read(StripeId(3), at(1)));
    assert_eq!(queue.next(&tally, &WORK, 5, at(1)), [3, 2].map(StripeId));
    // What no longer has bad blocks is forgotten.
    queue.ended(StripeId(3), Ended::Rebuilt(Amount { blocks: 1, bytes: 1 }), at(2));
    tally.set(StripeId(3), None);
    tally.set(StripeId(3), Some(survives(Some(1))));
    assert_eq!([3, 6, 7].map(|id| tally.reads(StripeId(id))), [0, 5, 0]);
}

#[test]
fn a_stripe_that_loses_another_block_right_after_its_rebuild_is_rebuilt_at_once() {
    let (mut tally, mut queue) = (Tally::default(), Queue::default());
    let one = Amount { blocks: 1, bytes: 1 };
    // Stripe 2 only keeps the condition in the tally.
    [1, 2].into_iter().for_each(|id| tally.set(StripeId(id), Some(survives(Some(1)))));
    assert_eq!(queue.next(&tally, &WORK, 2, at(1)).len(), 2);
    queue.ended(StripeId(1), Ended::Rebuilt(one), at(1));
    assert_eq!(queue.next(&tally, &WORK, 9, at(1)), [], "the tally does not know yet that it is complete");
    assert_eq!(queue.left(&tally, &WORK), 1);
    // The tally looks at it again, and finds it in the same condition as before.
    tally.set(StripeId(1), Some(survives(Some(1))));
    assert_eq!(queue.left(&tally, &WORK), 2, "it is not done");
    assert_eq!(queue.next(&tally, &WORK, 9, at(1)), [StripeId(1)]);

    // It loses the block during the rebuild.
    tally.set(StripeId(1), Some(survives(Some(0))));
    queue.ended(StripeId(1), Ended::Rebuilt(one), at(2));
    assert_eq!(queue.next(&tally, &WORK, 9, at(2)), [StripeId(1)]);
    queue.ended(StripeId(1), Ended::Nothing, at(2));
    assert_eq!(queue.next(&tally, &WORK, 9, at(2)), [], "each look costs one attempt");
    assert_eq!(queue.next(&tally, &WORK, 9, at(6)), [StripeId(1)]);
}

#[test]
fn what_waits_is_named_and_tried_again_when_nodes_come() {
    let (mut tally, mut queue) = (Tally::default(), Queue::default());
    (1..=3).for_each(|id| tally.set(StripeId(id), Some(survives(Some(1)))));
    assert_eq!(queue.next(&tally, &WORK, 9, at(1)).len(), 3);
    let lacks = |cause| Error::unavailable("no home").cause(cause);
    queue.ended(StripeId(1), Ended::Left(Amount::default(), lacks(Cause::TooFewNodes)), at(1));
    queue.ended(StripeId(2), Ended::Left(Amount::default(), lacks(Cause::TooFewNodes)), at(1));
    queue.ended(StripeId(3), Ended::Left(Amount { blocks: 1, bytes: 7 }, lacks(Cause::NoSpace)), at(1));
    let waits = |queue: &Queue, tally: &Tally| {
        queue.waiting(tally, &WORK).into_iter().map(|it| (it.wait, it.stripes)).collect::<Vec<_>>()
    };
    assert_eq!(waits(&queue, &tally), [(Wait::Nodes, 2), (Wait::Space, 1)]);
    assert!(queue.waiting(&tally, &WORK)[0].why.contains("no home"));
    assert_eq!(queue.waiting(&tally, &Scope::Nothing(Stop::Off)), [], "turned off, nothing waits");
    assert_eq!((queue.next(&tally, &WORK, 9, at(1)), queue.left(&tally, &WORK)), (vec![], 0));
    queue.try_again();
    assert_eq!(queue.next(&tally, &WORK, 9, at(1)).len(), 3, "a node has come");
    queue.ended(StripeId(1), Ended::Rebuilt(Amount { blocks: 1, bytes: 1 }), at(2));
    tally.set(StripeId(1), None);
    tally.set(StripeId(2), None);
    queue.tidy(&tally, &WORK, at(2));
    assert_eq!(queue.next(&tally, &WORK, 9, at(2)), []);
    assert_eq!(waits(&queue, &tally), [(Wait::Space, 1)], "the object of stripe 2 was removed");
    queue.ended(StripeId(2), Ended::Nothing, at(2));
    queue.ended(StripeId(3), Ended::Left(Amount::default(), Error::retry("busy")), at(2));
    assert_eq!(waits(&queue, &tally), [(Wait::Retry, 1)]);
    assert_eq!(queue.next(&tally, &WORK, 9, at(100)), [StripeId(3)], "it is tried again by and by");
}

#[test]
fn a_stripe_whose_rebuilt_blocks_are_always_wrong_is_tried_seldom_until_it_loses_another_block() {
    let (mut tally, mut queue) = (Tally::default(), Queue::default());
    (1..=20).for_each(|id| tally.set(StripeId(id), Some(survives(Some(1)))));
    let mut tried = 0;
    for second in 0..6 * 3_600 {
        queue.tidy(&tally, &WORK, at(second));
        if second % 600 == 0 {
            queue.try_again();
        }
        for stripe in queue.next(&tally, &WORK, 99, at(second)) {
            tried += 1;
            queue.ended(stripe, Ended::Left(Amount::default(), Error::corrupt("not what was lost")), at(second));
        }
    }
    assert!((20 * 10..20 * 13).contains(&tried), "{tried} times in six hours, although nodes come and go");
    let waiting = queue.waiting(&tally, &WORK);
    assert_eq!((waiting.len(), waiting[0].wait, waiting[0].stripes), (1, Wait::Checksums, 20), "they hold up no others");
    let now = 6 * 3_600;
    tally.set(StripeId(3), Some(survives(Some(0))));
    queue.tidy(&tally, &WORK, at(now));
    assert_eq!(queue.waiting(&tally, &WORK)[0].stripes, 19, "what it waited for is past");
    assert_eq!(queue.next(&tally, &WORK, 99, at(now)), [StripeId(3)]);
    // A move whose blocks are wrong is no other case.
    let (mut tally, mut queue) = (Tally::default(), Queue::default());
    tally.set(StripeId(1), Some(leaving()));
    assert_eq!(queue.next(&tally, &WORK, 99, at(0)), [StripeId(1)]);
    queue.ended(StripeId(1), Ended::Left(Amount::default(), Error::corrupt("not what was there")), at(0));
    queue.try_again();
    assert_eq!(queue.next(&tally, &WORK, 99, at(50)), [], "nodes that come change no checksums");
    assert_eq!(queue.next(&tally, &WORK, 99, at(60)), [StripeId(1)]);
}

/// Stripes of which a block is on a disk that is drained.
fn leaving() -> Condition {
    let blocks = BadBlocks { leaving: 1, ..BadBlocks::default() };
    Condition { code: "rs(4,2)".into(), now: Some(2), with_all_nodes: Some(2), blocks }
}

#[test]
fn moves_that_wait_together_take_no_more_places_than_others() {
    let (mut tally, mut queue) = (Tally::default(), Queue::default());
    (1..=100).for_each(|id| tally.set(StripeId(id), Some(leaving())));
    work(&mut queue, &mut tally, 0, 60, |_| false);
    assert_eq!(queue.waiting(&tally, &WORK)[0].stripes, 100, "they wait together");
    let chosen: usize = (60..120).map(|second| queue.next(&tally, &WORK, 8, at(second)).len()).sum();
    assert_eq!(chosen, 2, "a quarter of the places");
    (101..=200).for_each(|id| tally.set(StripeId(id), Some(survives(Some(1)))));
    assert_eq!(queue.next(&tally, &WORK, 8, at(120)).len(), 6, "the others are for what is lost");
    // The same holds for what is left of stripes that cannot be rebuilt.
    let (mut tally, mut queue) = (Tally::default(), Queue::default());
    let beyond_repair = Condition { now: None, blocks: BadBlocks { leaving: 1, lost: 3, ..BadBlocks::default() }, ..leaving() };
    (1..=100).for_each(|id| tally.set(StripeId(id), Some(beyond_repair.clone())));
    (101..=200).for_each(|id| tally.set(StripeId(id), Some(survives(Some(1)))));
    let next = queue.next(&tally, &WORK, 8, at(1));
    assert!(next.len() == 8 && next.iter().all(|stripe| stripe.0 > 100), "{next:?}");
    assert_eq!((queue.left(&tally, &WORK), queue.left_blocks(&tally, &WORK)), (200, 200));
}

/// Stripes that survive so many further losses, and of which this block is on a silent node.
fn silent_only() -> Condition {
    Condition { blocks: BadBlocks { away: 1, ..BadBlocks::default() }, ..survives(Some(0)) }
}

#[test]
fn the_remaining_time_counts_from_when_there_was_work_again() {
    let (mut tally, mut queue) = (Tally::default(), Queue::default());
    let one = Amount { blocks: 1, bytes: 1 };
    [1, 2].into_iter().for_each(|id| tally.set(StripeId(id), Some(survives(Some(1)))));
    assert_eq!(queue.next(&tally, &WORK, 9, at(1)).len(), 2);
    queue.ended(StripeId(1), Ended::Rebuilt(one), at(2));
    tally.set(StripeId(1), None);
    queue.ended(StripeId(2), Ended::Left(Amount::default(), Error::unavailable("no home").cause(Cause::TooFewNodes)), at(2));
    // It waits for a day.
    queue.tidy(&tally, &WORK, at(86_400));
    assert_eq!(queue.next(&tally, &WORK, 9, at(86_400)), [StripeId(2)], "tried again, which is no work to speak of");
    assert_eq!(queue.progress().stripes, 1);
    (3..=6).for_each(|id| tally.set(StripeId(id), Some(survives(Some(1)))));
    assert_eq!(queue.next(&tally, &WORK, 9, at(86_401)).len(), 4);
    queue.ended(StripeId(3), Ended::Rebuilt(one), at(86_403));
    tally.set(StripeId(3), None);
    assert_eq!(queue.left(&tally, &WORK), 3);
    assert_eq!(queue.progress().remaining(3, at(86_403)), Some(seconds(6)));
    // All are done for a day, and the next work is seen before any of it is chosen.
    for id in 2..=6 {
        queue.ended(StripeId(id), Ended::Rebuilt(one), at(86_410));
        tally.set(StripeId(id), None);
    }
    queue.tidy(&tally, &WORK, at(86_420));
    [7, 8].into_iter().for_each(|id| tally.set(StripeId(id), Some(survives(Some(1)))));
    queue.tidy(&tally, &WORK, at(200_000));
    assert_eq!((queue.progress().stripes, queue.progress().remaining(2, at(200_000))), (0, None));
    assert_eq!(queue.next(&tally, &WORK, 9, at(200_001)).len(), 2);
    queue.ended(StripeId(7), Ended::Rebuilt(one), at(200_003));
    tally.set(StripeId(7), None);
    queue.tidy(&tally, &WORK, at(200_003));
    assert_eq!(queue.progress().remaining(1, at(200_003)), Some(seconds(3)));
}

#[test]
fn what_waits_and_is_no_longer_due_does_not_hide_what_is_left() {
    let (mut tally, mut queue) = (Tally::default(), Queue::default());
    tally.set(StripeId(1), Some(silent_only()));
    assert_eq!(queue.next(&tally, &WORK, 9, at(1)), [StripeId(1)]);
    queue.ended(StripeId(1), Ended::Left(Amount::default(), Error::retry("busy")), at(1));
    // Its silent node is not urgent any more.
    tally.set(StripeId(1), Some(Condition { now: Some(2), ..silent_only() }));
    tally.set(StripeId(2), Some(survives(Some(1))));
    assert_eq!((queue.left(&tally, &WORK), queue.waiting(&tally, &WORK)), (1, vec![]));
}

/// Works for so many seconds, at most eight stripes at a time; `is_placed` says which can be rebuilt. Returns how many attempts failed.
fn work(queue: &mut Queue, tally: &mut Tally, from: u64, seconds: u64, is_placed: impl Fn(StripeId) -> bool) -> usize {
    let mut failed = 0;
    for now in (from..from + seconds).map(at) {
        queue.tidy(tally, &WORK, now);
        for _ in 0..20 {
            for id in queue.next(tally, &WORK, 8, now) {
                if is_placed(id) {
                    queue.ended(id, Ended::Rebuilt(Amount { blocks: 1, bytes: 1 }), now);
                    tally.set(id, None);
                } else {
                    let error = Error::unavailable("no home").cause(Cause::TooFewNodes);
                    queue.ended(id, Ended::Left(Amount::default(), error), now);
                    failed += 1;
                }
            }
        }
    }
    failed
}

#[test]
fn stripes_that_cannot_be_placed_cost_little_and_hold_up_no_others() {
    const ALL: u64 = 100_000;
    let (mut tally, mut queue) = (Tally::default(), Queue::default());
    (1..=ALL).for_each(|id| tally.set(StripeId(id), Some(survives(Some(1)))));
    let failed = work(&mut queue, &mut tally, 0, 300, |_| false);
    assert!(failed < 400, "{failed} attempts within five minutes");
    let waiting = queue.waiting(&tally, &WORK);
    assert_eq!((waiting.len(), waiting[0].wait, waiting[0].stripes, queue.left(&tally, &WORK)), (1, Wait::Nodes, ALL, 0));

    // Others are rebuilt at once, be they more urgent or less.
    for (id, further) in [(ALL + 1, 0), (ALL + 2, 2)] {
        tally.set(StripeId(id), Some(survives(Some(further))));
    }
    work(&mut queue, &mut tally, 300, 1, |id| id.0 > ALL);
    assert!(!tally.has(StripeId(ALL + 1)) && !tally.has(StripeId(ALL + 2)) && tally.has(StripeId(ALL)));

    queue.try_again();
    work(&mut queue, &mut tally, 301, 1, |_| true);
    assert!(ALL - queue.left(&tally, &WORK) >= 160, "all places are used again");
}

#[test]
fn those_that_can_be_placed_are_found_among_those_that_cannot() {
    let (mut tally, mut queue) = (Tally::default(), Queue::default());
    (1..=500).for_each(|id| tally.set(StripeId(id), Some(survives(Some(1)))));
    let is_placed = |id: StripeId| id.0 > 350;
    work(&mut queue, &mut tally, 0, 3_000, is_placed);
    assert_eq!(tally.conditions().map(|(_, stripes)| stripes).sum::<u64>(), 350, "only those are left that cannot be rebuilt");
    let failed = work(&mut queue, &mut tally, 3_000, 300, is_placed);
    assert!(failed < 400, "{failed} attempts within five minutes");
    // Space became free on disks that were there before.
    work(&mut queue, &mut tally, 3_300, 90, |_| true);
    assert_eq!(tally.conditions().count(), 0);
}

#[test]
fn so_many_failures_that_some_are_forgotten_keep_none_from_being_tried() {
    const ALL: u64 = 70_000;
    let (mut tally, mut queue) = (Tally::default(), Queue::default());
    let condition = |id: u64| Condition { code: format!("rs({},2)", id / 8).into(), ..survives(Some(1)) };
    (1..=ALL).for_each(|id| tally.set(StripeId(id), Some(condition(id))));
    for id in queue.next(&tally, &WORK, ALL as usize, at(1)) {
        queue.ended(id, Ended::Left(Amount::default(), Error::retry("busy")), at(1));
    }
    tally.set(StripeId(ALL + 1), Some(survives(Some(0))));
    assert_eq!(queue.next(&tally, &WORK, 1, at(1)), [StripeId(ALL + 1)]);
}

#[test]
fn concurrency_follows_the_nodes_with_disks() {
    let mut nodes = view(6, &[1]);
    assert_eq!(concurrency(&nodes), 20);
    nodes.nodes.get_mut(&NodeId(2)).unwrap().disks[0].failed = true;
    assert_eq!((concurrency(&nodes), concurrency(&fixtures::view(0, &[])), concurrency(&view(500, &[]))), (16, 1, 256));
}

#[derive(Debug, Clone)]
enum Happens {
    Bad { id: u64, further: Option<usize> },
    Good { id: u64 },
    Ends { nth: usize, well: bool },
    Passes { seconds: u64 },
    Come,
    Next { concurrency: usize },
}

fn happens() -> impl Strategy<Value = Happens> {
    prop_oneof![
        4 => (1..30u64, proptest::option::of(0..3usize)).prop_map(|(id, further)| Happens::Bad { id, further }),
        2 => (1..30u64).prop_map(|id| Happens::Good { id }),
        4 => (0..9usize, any::<bool>()).prop_map(|(nth, well)| Happens::Ends { nth, well }),
        2 => (0..90u64).prop_map(|seconds| Happens::Passes { seconds }),
        1 => Just(Happens::Come),
        5 => (0..6usize).prop_map(|concurrency| Happens::Next { concurrency }),
    ]
}

proptest! {
    /// No stripe is rebuilt twice at a time, bounds hold, none jumps ahead of a more endangered one, and in the end all are done.
    #[test]
    fn after_any_order_of_events_everything_is_rebuilt_once_and_in_order(all in proptest::collection::vec(happens(), 0..120)) {
        let (mut tally, mut queue, mut now) = (Tally::default(), Queue::default(), 0);
        let mut bad: BTreeMap<StripeId, Option<usize>> = BTreeMap::new();
        let (mut under_way, mut rested): (BTreeSet<StripeId>, BTreeSet<StripeId>) = (BTreeSet::new(), BTreeSet::new());
        for event in all {
            match event {
                Happens::Bad { id, further } => {
                    bad.insert(StripeId(id), further);
                    tally.set(StripeId(id), Some(survives(further)));
                }
                Happens::Good { id } => {
                    bad.remove(&StripeId(id));
                    tally.set(StripeId(id), None);
                }
                Happens::Ends { nth, well } => {
                    let Some(id) = under_way.iter().nth(nth).copied() else { continue };
                    under_way.remove(&id);
                    rested.insert(id);
                    if well {
                        queue.ended(id, Ended::Rebuilt(Amount { blocks: 1, bytes: 1 }), at(now));
                        bad.remove(&id);
                        tally.set(id, None);
                    } else {
                        queue.ended(id, Ended::Left(Amount::default(), Error::retry("a node failed")), at(now));
                    }
                }
                Happens::Passes { seconds } => now += seconds,
                Happens::Come => {
                    queue.tidy(&tally, &WORK, at(now));
                    queue.try_again();
                }
                Happens::Next { concurrency } => {
                    let next = queue.next(&tally, &WORK, concurrency, at(now));
                    prop_assert!(next.iter().all(|id| under_way.insert(*id)), "twice at a time: {next:?}");
                    prop_assert!(next.is_empty() || under_way.len() <= concurrency);
                    let losses: Vec<usize> = next.iter().map(|id| bad[id].unwrap()).collect();
                    prop_assert!(losses.is_sorted());
                    if let Some(last) = losses.last() {
                        let more = bad.iter().filter(|(id, further)| further.is_some_and(|it| it < *last) && !rested.contains(id));
                        prop_assert!(more.map(|(id, _)| *id).all(|id| under_way.contains(&id)), "a more endangered one was left");
                    }
                }
            }
            prop_assert_eq!(queue.chosen(), under_way.len());
        }
        for _ in 0..200 {
            for id in std::mem::take(&mut under_way) {
                queue.ended(id, Ended::Rebuilt(Amount { blocks: 1, bytes: 1 }), at(now));
                bad.remove(&id);
                tally.set(id, None);
            }
            now += 1;
            queue.tidy(&tally, &WORK, at(now));
            under_way.extend(queue.next(&tally, &WORK, 2, at(now)));
        }
        prop_assert!(bad.values().all(Option::is_none), "left: {bad:?}");
        prop_assert!(queue.waiting(&tally, &WORK).iter().map(|it| it.stripes).sum::<u64>() <= bad.len() as u64);
    }
}
