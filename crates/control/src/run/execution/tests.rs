use super::super::activity::Way;
use super::{super::report::End, *};
use proptest::prelude::*;
use std::collections::VecDeque;
use weft_types::{BlockId, Cause, Span, StripeId, TaskTraffic};

const GRACE: Duration = Duration::from_secs(2);
const STALL: Duration = Duration::from_secs(1);
const LINKS: Duration = Duration::from_secs(10);

fn at(ms: u64) -> Time {
    Time::after(Duration::from_millis(ms))
}

fn ids(ids: &[u32]) -> Vec<NodeId> {
    ids.iter().copied().map(NodeId).collect()
}

/// Four tasks, each of which moves 100 bytes.
fn execution(on_failure: OnFailure, policy: Option<StallPolicy>) -> Execution {
    started(on_failure, policy, &[])
}

/// The same with some tasks that could not be started.
fn started(on_failure: OnFailure, policy: Option<StallPolicy>, not_started: &[NodeId]) -> Execution {
    let ends = Ends { receives: 1, sends: 1 };
    let share = |id: u32| (NodeId(id), Share { name: format!("node-{id}"), link_bytes: 100, ends });
    let error = |node: &NodeId| (*node, Error::replan("no answer in time").party(Party::Node(*node)));
    let not_started = not_started.iter().map(error).collect();
    Execution::new((1..=4).map(share).collect(), not_started, on_failure, (GRACE, LINKS), policy, at(0))
}

/// Without any knowledge of other plans.
fn looked(down: BTreeSet<NodeId>) -> Event {
    Event::Looked { down, seen: BTreeMap::new() }
}

fn done() -> TaskEvent {
    TaskEvent::Done { stored: Vec::new(), traffic: TaskTraffic::default(), stages: Vec::new() }
}

fn failed(error: Error, arrived: Vec<(BlockId, Vec<Span>)>) -> TaskEvent {
    let (stored, corrupt, traffic) = (Vec::new(), Vec::new(), TaskTraffic::default());
    TaskEvent::Failed { stored, arrived, corrupt, traffic, errors: vec![error] }
}

fn progress(moved_bytes: u64, waiting: &[(u32, u32)]) -> TaskEvent {
    TaskEvent::Progress {
        moved_bytes,
        received_bytes: moved_bytes / 2,
        waiting: waiting.iter().map(|(id, ms)| (Party::Node(NodeId(*id)), *ms)).collect(),
        held_back: false,
    }
}

fn heard(node: u32, received: bool, sent: bool) -> Action {
    Action::Heard { node: NodeId(node), received, sent }
}

fn end(execution: &Execution, id: u32) -> Option<End> {
    execution.report().nodes[&NodeId(id)].end.clone()
}

#[test]
fn when_one_fails_the_others_have_a_grace_are_cancelled_and_then_given_up() {
    let mut it = execution(OnFailure::EndAll, None);
    assert_eq!(it.wake_at(), None, "no end is set");
    let error = Error::replan("no slice in time").party(Party::Node(NodeId(1)));
    assert_eq!(it.on(Event::Told(NodeId(2), failed(error, Vec::new())), at(100)), [heard(2, false, false), Action::Failing]);
    assert_eq!(it.wake_at(), Some(at(2_100)));
    assert_eq!(
        it.on(Event::Told(NodeId(4), done()), at(200)),
        [heard(4, false, false), Action::Moved(0.25), Action::Ended(NodeId(4))]
    );
    assert_eq!(it.on(Event::Woken, at(2_099)), [], "too early");
    assert_eq!(it.on(Event::Woken, at(2_100)), [Action::CancelAll(ids(&[1, 3]))]);
    assert_eq!(it.wake_at(), None, "they are asked");
    assert_eq!(it.on(Event::Cancelled, at(2_200)), []);
    assert_eq!(it.wake_at(), Some(at(4_200)));
    assert_eq!(it.on(Event::Cancelled, at(3_000)), [], "a repeated answer must not extend the time");
    it.on(Event::Woken, at(4_200));
    assert!(it.has_ended() && end(&it, 1) == Some(End::GivenUp) && end(&it, 4) == Some(End::Done));
    let (report, suspect) = it.finish();
    let blame = Blame { node: NodeId(1), accuser: Some(NodeId(2)) };
    assert_eq!((report.blame, suspect), (Some(blame), Some(NodeId(1))));
}

#[test]
fn a_task_that_could_not_be_started_fails_the_others_without_an_event() {
    let mut it = started(OnFailure::EndAll, None, &[NodeId(3)]);
    assert_eq!(it.wake_at(), Some(at(2_000)));
    assert_eq!(it.on(Event::Woken, at(2_000)), [Action::Failing, Action::CancelAll(ids(&[1, 2, 4]))]);
}

#[test]
fn receivers_of_a_put_continue_without_a_failed_one_until_the_client_is_done() {
    let mut it = execution(OnFailure::GoOn, None);
    let lost = it.on(Event::Lost(NodeId(3), None), at(10));
    assert_eq!(lost, [Action::Suspect(NodeId(3)), Action::SoFar]);
    assert_eq!((it.wake_at(), it.on(Event::Lost(NodeId(3), None), at(20))), (None, vec![]), "it is lost once");
    it.on(Event::ClientDone(Duration::from_secs(9)), at(1_000));
    it.on(Event::ClientDone(Duration::from_secs(1)), at(1_500));
    it.on(Event::ClientDone(Duration::from_secs(9)), at(1_600));
    assert_eq!(it.wake_at(), Some(at(2_500)), "the earliest time counts");
    for id in [1, 2, 4] {
        it.on(Event::Told(NodeId(id), done()), at(2_000));
    }
    assert!(it.has_ended() && it.finish().0.blame.is_some_and(|blame| blame.node == NodeId(3)));
}

#[test]
fn a_node_that_delays_a_plan_may_still_report_what_has_arrived() {
    let block = BlockId { stripe: StripeId(1), index: 2, copy: 0, generation: 1 };
    let stalled = |it: &mut Execution| {
        for id in 1..=4 {
            it.on(Event::Told(NodeId(id), progress(50, &[])), at(0));
        }
        for id in [1, 3, 4] {
            it.on(Event::Told(NodeId(id), progress(60, &[(2, 900)])), at(1_000));
        }
        let down = BTreeSet::new();
        it.on(looked(down), at(1_000))
    };
    let answer =
        |it: &mut Execution, is_spare, now| it.on(Event::Answered { node: NodeId(2), around: Around::Replan, is_spare }, now);
    let asks = [Action::Ask(NodeId(2), Around::Replan)];
    let begin = || execution(OnFailure::EndAll, Some(StallPolicy::of_chain(STALL)));
    let mut it = begin();
    assert_eq!((stalled(&mut it), answer(&mut it, false, at(1_000))), (asks.to_vec(), vec![]), "there is no way around it");
    assert_eq!(answer(&mut it, true, at(1_000)), [], "this was not asked again");
    let mut it = begin();
    assert_eq!(stalled(&mut it), asks);
    it.on(Event::Told(NodeId(2), progress(60, &[])), at(1_100));
    assert_eq!(answer(&mut it, true, at(1_200)), [], "it has moved since");
    for says in [true, false] {
        let (mut it, node) = (begin(), NodeId(2));
        assert_eq!(stalled(&mut it), asks);
        let expected = [Action::Suspect(node), Action::Cancel(node), Action::CancelAll(ids(&[1, 3, 4]))];
        assert_eq!(answer(&mut it, true, at(1_000)), expected);
        assert_eq!(it.on(Event::Cancelled, at(1_100)), [Action::Failing]);
        assert_eq!(it.wake_at(), Some(at(1_400)));
        if says {
            it.on(Event::Told(node, failed(Error::replan("cancelled"), vec![(block, vec![Span::new(0, 9)])])), at(1_200));
        }
        it.on(Event::Woken, at(1_400));
        assert_eq!(matches!(end(&it, 2), Some(End::Failed(_))), says, "otherwise the task is lost");
        assert_eq!(it.report().nodes[&node].arrived.contains_key(&block), says);
        it.on(Event::Woken, at(3_100));
        let (report, _) = it.finish();
        assert_eq!(report.blame.map(|blame| blame.node), Some(node));
        assert!(report.cause().message.starts_with("node-2 delays the whole plan"), "{}", report.cause());
    }
}

#[test]
fn a_blamed_silent_receiver_is_given_up_only_if_no_other_node_waits_for_it() {
    let complaint = |id| Event::Complaint(BTreeSet::from([NodeId(id)]));
    let policy = |one_by_one, failed_max| Some(StallPolicy { one_by_one, failed_max, ..StallPolicy::of_chain(STALL) });
    let mut chained = execution(OnFailure::GoOn, policy(false, 1));
    assert_eq!(chained.on(complaint(2), at(5_000)), []);
    let asks = |id| [Action::Ask(NodeId(id), Around::GoOn)];
    let mut none_may_fail = execution(OnFailure::GoOn, policy(true, 0));
    assert_eq!(none_may_fail.on(complaint(2), at(5_000)), asks(2));
    let answer = |is_spare| Event::Answered { node: NodeId(2), around: Around::GoOn, is_spare };
    assert_eq!(none_may_fail.on(answer(false), at(5_000)), []);
    assert_eq!(none_may_fail.on(complaint(2), at(5_000)), asks(2));
    let actions = none_may_fail.on(answer(true), at(5_000));
    assert!(matches!(&actions[..], [Action::GoOnWithout(..), Action::Suspect(_), Action::Cancel(_), Action::SoFar]));
    let mut it = execution(OnFailure::GoOn, policy(true, 1));
    it.on(Event::Told(NodeId(2), progress(1, &[])), at(4_500));
    assert_eq!(it.on(complaint(2), at(5_000)), [], "it has reported");
    let actions = it.on(complaint(2), at(5_500));
    assert!(matches!(&actions[..], [Action::GoOnWithout(..), Action::Suspect(_), Action::Cancel(_), Action::SoFar]));
    assert_eq!(it.on(complaint(3), at(5_500)), asks(3), "no further node may fail without an alternative");
}

#[test]
fn no_node_is_avoided_for_links_that_are_full() {
    let moves = |links, ms| Way { links, moved_at: Some(at(ms)) };
    let stands = |links| Way { links, moved_at: None };
    let seen = |receives, sends| Seen { heard_at: None, receives, sends };
    // Node 3 misses slices of node 2 from 1,000 ms on, until it gives up. Both have one link in each direction.
    let run = |two: Seen, three: Seen, error: Error, waiting: &[(u32, u32)]| {
        let mut it = execution(OnFailure::EndAll, None);
        it.on(Event::Told(NodeId(2), progress(0, waiting)), at(1_000));
        let seen = BTreeMap::from([(NodeId(2), two), (NodeId(3), three)]);
        it.on(Event::Looked { down: BTreeSet::new(), seen }, at(11_000));
        it.on(Event::Told(NodeId(3), failed(error.party(Party::Node(NodeId(2))), Vec::new())), at(11_100));
        // What happens while the others end tells nothing.
        it.on(looked(BTreeSet::new()), at(12_000));
        for (node, complains_of) in [(1, 2), (2, 2), (4, 3)] {
            let error = Error::replan("ended early").party(Party::Node(NodeId(complains_of)));
            it.on(Event::Told(NodeId(node), failed(error, Vec::new())), at(12_000));
        }
        let (report, suspect) = it.finish();
        assert_eq!(
            (report.blame.map(|blame| blame.node), suspect.is_none()),
            (Some(NodeId(2)), report.starved),
            "the next plan avoids it"
        );
        suspect.is_none()
    };
    let stalled = || Error::replan("nothing moved").cause(Cause::Stalled);
    let starved = |two, three| run(two, three, stalled(), &[]);
    let alone = seen(stands(1), stands(1));
    assert!(!starved(Seen::default(), Seen::default()) && !starved(alone, alone), "no other plan runs");
    assert!(starved(seen(moves(1, 9_000), moves(1, 6_001)), alone), "its other links move in both directions");
    assert!(!starved(seen(moves(1, 6_000), moves(1, 9_000)), alone), "it receives nothing any more, on any link");
    assert!(starved(alone, seen(moves(9, 9_000), stands(1))), "it has no other links, and its accuser has many that move");
    assert!(!starved(alone, seen(moves(2, 9_000), moves(2, 9_000))), "which leave each other enough");
    assert!(!starved(seen(stands(2), stands(1)), seen(moves(9, 9_000), stands(1))), "its other links stand still, too");
    let busy = || seen(moves(9, 9_000), moves(9, 9_000));
    assert!(!run(busy(), busy(), Error::replan("reset"), &[]) && !run(busy(), busy(), Error::corrupt("frame"), &[]), "no stall");
    assert!(!run(busy(), busy(), stalled(), &[(2, 9_000)]), "it waits for its own disk");
}

#[test]
fn a_node_with_full_links_is_silent_only_if_its_heartbeats_stop() {
    let asked = |heard_ms, links| {
        let mut it = execution(OnFailure::EndAll, Some(StallPolicy::of_chain(STALL)));
        (1..=4).for_each(|id| drop(it.on(Event::Told(NodeId(id), progress(50, &[])), at(0))));
        for id in [1, 3, 4] {
            it.on(Event::Told(NodeId(id), progress(60, &[(2, 900)])), at(1_000));
        }
        let full = Way { links, moved_at: Some(at(0)) };
        let two = Seen { heard_at: Some(at(heard_ms)), receives: full, sends: full };
        let seen = BTreeMap::from([(NodeId(2), two)]);
        !it.on(Event::Looked { down: BTreeSet::new(), seen }, at(1_000)).is_empty()
    };
    assert!(!asked(1, 9), "its reports wait behind its data");
    assert!(asked(0, 9) && asked(900, 1));
}

#[test]
fn a_node_that_went_down_has_no_task() {
    let mut it = execution(OnFailure::EndAll, None);
    it.on(Event::Told(NodeId(1), done()), at(0));
    let down = BTreeSet::from([1, 2, 9].map(NodeId));
    assert_eq!(it.on(looked(down), at(250)), [Action::Failing]);
    assert_eq!(end(&it, 1), Some(End::Done));
    assert!(matches!(end(&it, 2), Some(End::Broken(error)) if error.message == "node-2 went down"));
}

/// Any event, in any order, late or repeated.
fn any_event() -> impl Strategy<Value = Event> {
    let node = || (0..=5u32).prop_map(NodeId);
    let waiting = proptest::collection::vec((1..=4u32, 0..3_000u32), 0..3);
    let error = || {
        (1..=4u32, 0..3u8).prop_map(|(id, kind)| {
            let error = if kind == 0 { Error::corrupt("page 3") } else { Error::replan("reset") };
            error.party(if kind == 2 { Party::Client(7) } else { Party::Node(NodeId(id)) })
        })
    };
    prop_oneof![
        4 => (node(), 0..200u64, waiting).prop_map(|(node, bytes, waiting)| Event::Told(node, progress(bytes, &waiting))),
        2 => node().prop_map(|node| Event::Told(node, done())),
        2 => (node(), error()).prop_map(|(node, error)| Event::Told(node, failed(error, Vec::new()))),
        1 => (node(), proptest::option::of(error())).prop_map(|(node, error)| Event::Lost(node, error)),
        1 => (0..5_000u64).prop_map(|ms| Event::ClientDone(Duration::from_millis(ms))),
        1 => proptest::collection::btree_set(node(), 0..3).prop_map(Event::Complaint),
        3 => proptest::collection::btree_set(node(), 0..2).prop_map(looked),
        1 => Just(Event::Cancelled),
        1 => (node(), any::<(bool, bool)>()).prop_map(|(node, (ends, is_spare))| {
            let around = if ends { Around::Replan } else { Around::GoOn };
            Event::Answered { node, around, is_spare }
        }),
        2 => Just(Event::Woken),
    ]
}

proptest! {
    #[test]
    fn under_any_events_it_ends_and_gives_up_only_cancelled_tasks(
        events in proptest::collection::vec((any_event(), 0..1_500u64), 0..60),
        goes_on: bool,
        spare: bool,
        one_by_one: bool,
        to_the_last: bool,
        not_started in proptest::collection::vec((1..=4u32).prop_map(NodeId), 0..2),
    ) {
        let on_failure = if goes_on { OnFailure::GoOn } else { OnFailure::EndAll };
        let policy = StallPolicy { one_by_one, to_the_last, failed_max: 1, ..StallPolicy::of_chain(STALL) };
        let mut it = started(on_failure, Some(policy), &not_started);
        let (mut now, mut cancelled) = (at(0), BTreeSet::new());
        // Questions are answered at once.
        let mut take = |it: &mut Execution, event, now| {
            let mut events = VecDeque::from([event]);
            while let Some(event) = events.pop_front() {
                let before = it.report().clone();
                let actions = it.on(event, now);
                let all = actions.iter().position(|action| matches!(action, Action::CancelAll(_)));
                assert!(all.is_none_or(|at| at + 1 == actions.len()), "it is not the last: {actions:?}");
                for action in actions {
                    match action {
                        Action::Cancel(node) => drop(cancelled.insert(node)),
                        Action::CancelAll(nodes) => {
                            cancelled.extend(nodes);
                            events.push_back(Event::Cancelled);
                        }
                        Action::Ask(node, around) => events.push_back(Event::Answered { node, around, is_spare: spare }),
                        Action::Moved(share) => assert!((0.0..=1.0).contains(&share)),
                        _ => {}
                    }
                }
                for (id, node) in &it.report().nodes {
                    let ended = before.nodes[id].end.is_some();
                    assert!(!ended || before.nodes[id].end == node.end, "a task ends once");
                    assert!(node.end != Some(End::GivenUp) || cancelled.contains(id), "{id} was given up and not cancelled");
                }
            }
        };
        for (event, ms) in events {
            now = now + Duration::from_millis(ms);
            take(&mut it, event, now);
        }
        // From here on there are no reports, but each action is answered. The plan ends by itself if it must, otherwise
        // when the client has finished.
        let bound_to_end = it.report().held_up.is_some() || !goes_on && it.report().any_failed();
        if !bound_to_end {
            take(&mut it, Event::ClientDone(Duration::ZERO), now);
        }
        for _ in 0..8 {
            let Some(wake) = it.wake_at() else { break };
            now = now.max(wake);
            take(&mut it, Event::Woken, now);
        }
        prop_assert!(it.has_ended(), "{:?}", it.report());
        let (report, suspect) = it.finish();
        let blamed = report.blame.map(|blame| blame.node);
        prop_assert_eq!(suspect, blamed.filter(|node| report.nodes[node].bad_blocks(*node).next().is_none()));
    }
}
