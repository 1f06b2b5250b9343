use super::*;
use crate::fixtures::member;
use weft_types::StripeId;

const DOWN_AFTER: Duration = Duration::from_secs(3);
const SUSPECT_FOR: Duration = Duration::from_secs(30);
const START_MS: u64 = 1_000_000;

fn at(seconds: u64) -> Time {
    Time::after(Duration::from_secs(seconds))
}

fn record(id: u32, state: NodeState) -> NodeRecord {
    let disk = DiskRecord {
        number: DiskNumber(id),
        id: "d".into(),
        path: "/d".into(),
        total_bytes: 100,
        failed: false,
        draining: false,
        kept: false,
        retired: false,
        moved_to: None,
    };
    NodeRecord { state, disks: vec![disk], ..member(id, "", None).record }
}

fn told(free_bytes: u64, failed: bool) -> Vec<DiskReport> {
    let (file_system, quarantined) = (7, Quarantined { blocks: 1, bytes: 5 });
    let served = crate::disk_health::Served::default();
    let silent_for = Duration::ZERO;
    vec![DiskReport { id: "d".into(), failed, free_bytes, file_system, quarantined, served, silent_for, bytes_per_s: 300 }]
}

/// Nodes 1 and 2, which were up before; node 1 registers at second 1.
fn members() -> Members {
    let records = vec![record(1, NodeState::Up), record(2, NodeState::Up)];
    let mut members = Members::new(records, DOWN_AFTER, SUSPECT_FOR, at(0), START_MS);
    members.registered(record(1, NodeState::Up), 7, &told(80, false), at(1));
    members
}

#[test]
fn a_node_is_up_from_its_registration_until_it_is_silent_for_too_long() {
    let mut members = members();
    assert!(members.are_coming_back() && members.view(at(1)).coming_back, "node 2 has not registered yet");
    assert_eq!([1, 2].map(|id| members.is_up(NodeId(id), at(4))), [true, false]);
    assert!(members.is_name_up("node-1", at(4)) && !members.is_name_up("node-2", at(4)));
    assert!(!members.is_up(NodeId(1), at(5)), "it is down before any check");
    let down = members.take_down_silent(at(5));
    assert_eq!(down.iter().map(|node| node.id.0).collect::<Vec<_>>(), [1, 2]);
    let down_since_ms = down[0].since_ms;
    assert!(!members.are_coming_back() && members.take_down_silent(at(6)).is_empty());
    members.not_recorded(NodeId(1));
    let again = members.take_down_silent(at(6));
    assert_eq!((again.len(), again[0].id, again[0].since_ms), (1, NodeId(1), down_since_ms));
    assert_eq!(members.heartbeat(NodeId(2), &[], 0, at(7)), None, "it must register first");
    let heard = members.heartbeat(NodeId(1), &told(70, true), 3, at(7));
    assert_eq!(heard, Some(Heartbeat { came_up: Some(START_MS + 7_000), disks: vec![(DiskNumber(1), true)] }));
    let again = members.heartbeat(NodeId(1), &told(70, true), 5, at(8)).unwrap();
    assert_eq!((again.disks, again.came_up), (vec![], Some(START_MS + 8_000)), "it is up when that was recorded");
    members.disk_not_recorded(NodeId(1), DiskNumber(1), true);
    assert_eq!(members.heartbeat(NodeId(1), &told(70, true), 5, at(8)).unwrap().disks, [(DiskNumber(1), true)]);
    members.came_up(NodeId(1), START_MS + 8_000);
    assert_eq!(members.heartbeat(NodeId(1), &told(70, true), 5, at(8)).unwrap().came_up, None);
    assert_eq!(members.view(at(8)).nodes[&NodeId(1)].disks[0].bytes_per_s, 300);
    assert_eq!(members.coding_bytes_per_s(at(8)), BTreeMap::from([(NodeId(1), 7.0)]));
    let fsyncs = |members: &Members| members.statuses(at(8))[0].fsyncs;
    assert_eq!(fsyncs(&members), 5);
    members.registered(record(1, NodeState::Up), 7, &told(70, true), at(8));
    assert_eq!(fsyncs(&members), 0, "a new agent counts from the start");
}

#[test]
fn a_node_that_may_be_recorded_as_down_is_recorded_as_up_when_it_is_heard() {
    let mut members = members();
    members.registered(record(1, NodeState::Up), 7, &told(70, false), at(1));
    assert!(members.take_down_silent(at(9)).iter().any(|node| node.id == NodeId(1)));
    // The call failed, but perhaps only its answer was lost.
    members.not_recorded(NodeId(1));
    let heard = |members: &mut Members, second| members.heartbeat(NodeId(1), &told(70, false), 0, at(second)).unwrap().came_up;
    assert_eq!(heard(&mut members, 10), Some(START_MS + 10_000));
    assert_eq!(heard(&mut members, 11), Some(START_MS + 11_000), "until it is recorded");
    members.came_up(NodeId(1), START_MS + 11_000);
    assert_eq!(heard(&mut members, 12), None);
}

#[test]
fn a_node_is_up_only_when_its_disks_are_open() {
    let mut members = members();
    members.registered(record(3, NodeState::Up), 7, &[], at(1));
    assert!(!members.is_up(NodeId(3), at(1)) && !members.view(at(1)).node(NodeId(3)).unwrap().up);
    assert!(!members.is_name_up("node-3", at(1)));
    members.registered(record(2, NodeState::Up), 7, &told(70, false), at(1));
    assert!(!members.are_coming_back(), "nobody waits for one that cannot open its disks");
    assert_eq!(members.heartbeat(NodeId(3), &[], 0, at(1)).map(|heard| heard.came_up), Some(None));
    assert!(!members.is_up(NodeId(3), at(1)));
    members.registered(record(3, NodeState::Up), 7, &told(70, false), at(2));
    assert!(members.is_up(NodeId(3), at(2)));
}

#[test]
fn a_node_that_was_lost_or_away_for_long_has_come_back_until_it_is_checked() {
    let came_back = |state, since_ms| {
        let record = NodeRecord { state, since_ms, ..record(1, NodeState::Up) };
        let mut members = Members::new(vec![record.clone()], DOWN_AFTER, SUSPECT_FOR, at(0), START_MS);
        // It was only unreachable: it does not register again.
        members.registered(record, 7, &told(80, false), at(1));
        if let Some(since_ms) = members.heartbeat(NodeId(1), &told(80, false), 0, at(2)).unwrap().came_up {
            members.came_up(NodeId(1), since_ms);
        }
        let back = members.statuses(at(2))[0].record.came_back;
        members.checked(NodeId(1));
        assert!(!members.statuses(at(2))[0].record.came_back);
        back
    };
    let long = START_MS + 2_000 - weft_types::LONG_AWAY_MS;
    assert!(came_back(NodeState::Lost, START_MS) && came_back(NodeState::Down, long));
    assert!(!came_back(NodeState::Down, long + 1) && !came_back(NodeState::Up, 0));
}

#[test]
fn free_space_counts_down_until_the_next_heartbeat() {
    let mut members = members();
    members.set_blocks(&[(DiskNumber(1), 4)]);
    let home = Home { node: NodeId(1), disk: DiskNumber(1) };
    members.add_blocks(&[home, home], 30);
    let disk = |members: &Members| members.view(at(2)).disk(home).map(|disk| (disk.free_bytes, disk.blocks));
    assert_eq!(disk(&members), Some((20, 6)));
    members.add_blocks(&[home], 30);
    assert_eq!(disk(&members), Some((0, 7)));
    members.heartbeat(NodeId(1), &told(33, false), 0, at(2));
    assert_eq!(disk(&members), Some((33, 7)));
    members.registered(record(1, NodeState::Up), 7, &told(44, false), at(3));
    assert_eq!(disk(&members), Some((44, 7)), "the metadata's count stays");
    assert_eq!(members.statuses(at(3))[0].disks[&DiskNumber(1)].quarantined, Quarantined { blocks: 1, bytes: 5 });
}

#[test]
fn a_removed_node_and_a_forgotten_disk_are_gone_until_they_are_registered() {
    let mut members = members();
    let home = Home { node: NodeId(1), disk: DiskNumber(1) };
    assert!(members.statuses(at(2))[0].disks[&home.disk].listed);
    let other = DiskReport { id: "other".into(), ..told(70, false).remove(0) };
    members.registered(record(1, NodeState::Up), 7, &[other], at(2));
    assert!(!members.statuses(at(2))[0].disks[&home.disk].listed, "its agent no longer lists it");
    members.forget_disk(home);
    let status = members.statuses(at(2)).remove(0);
    assert!(status.record.disks.is_empty() && status.disks.is_empty());
    members.heartbeat(NodeId(1), &told(70, false), 0, at(2)).unwrap();
    assert!(members.view(at(2)).disk(home).is_none(), "a heartbeat does not bring it back");

    members.forget(NodeId(2));
    assert!(members.has(NodeId(1)) && !members.has(NodeId(2)) && members.count() == 1);
    assert!(!members.are_coming_back(), "it is not waited for");
    assert_eq!(members.heartbeat(NodeId(2), &[], 0, at(3)), None);
    members.registered(record(2, NodeState::Up), 7, &told(70, false), at(3));
    assert!(members.is_up(NodeId(2), at(3)));
}

#[test]
fn a_suspect_node_has_a_reason_and_the_time_since_when() {
    let mut members = members();
    let suspect = |members: &Members, id, second| {
        let status = members.status(NodeId(id), at(second)).unwrap();
        assert_eq!(status.suspect.is_some(), !status.suspect_for.is_zero());
        status.suspect.map(|it| (it.since_ms - members.ms(at(0)), it.why))
    };
    let because = |seconds: u64, why: &str| Some((seconds * 1000, why.to_owned()));
    for node in 1..=3 {
        members.registered(record(node, NodeState::Up), 7, &told(70, false), at(0));
    }
    let up = |members: &mut Members, second| {
        (1..=3).for_each(|node| drop(members.heartbeat(NodeId(node), &told(70, false), 0, at(second))));
    };
    up(&mut members, 10);
    assert_eq!(suspect(&members, 2, 10), None);
    members.suspect(NodeId(2), "it does not answer", at(10));
    assert_eq!(suspect(&members, 2, 10), because(10, "it does not answer"));
    up(&mut members, 20);
    members.suspect(NodeId(2), "", at(20));
    assert_eq!(suspect(&members, 2, 20), because(10, "it does not answer"), "the reason is not forgotten");
    assert_eq!(suspect(&members, 2, 32), None, "a node that is down is not suspect");
    up(&mut members, 49);
    assert_eq!(suspect(&members, 2, 49), because(10, "it does not answer"));
    up(&mut members, 51);
    assert_eq!(suspect(&members, 2, 51), None);
    members.suspect(NodeId(2), &"ä".repeat(300), at(51));
    assert_eq!(suspect(&members, 2, 51), because(51, &"ä".repeat(120)), "a new time with a new reason, which is cut");

    members.suspect(NodeId(1), "a link broke", at(51));
    [2, 3].iter().for_each(|node| members.dispute(NodeId(*node), NodeId(1), at(51)));
    let why = "a link broke; its links with node-2, node-3 failed, and no other node has so many such links";
    assert_eq!(suspect(&members, 1, 51), because(51, why));
    up(&mut members, 100);
    assert_eq!(suspect(&members, 1, 100), because(51, why), "for twice as long");
}

#[test]
fn suspicion_expires_and_a_node_in_several_disputes_is_suspect_longest() {
    let mut members = members();
    let left = |members: &Members, id, second| members.view(at(second)).node(NodeId(id)).unwrap().suspect_for.as_secs();
    members.suspect(NodeId(2), "", at(10));
    assert_eq!((left(&members, 2, 20), left(&members, 2, 40)), (20, 0));
    for (node, second) in [(2, 20), (3, 24)] {
        members.suspect(NodeId(node), "", at(second));
        members.dispute(NodeId(node), NodeId(1), at(second));
    }
    assert_eq!((left(&members, 1, 24), left(&members, 2, 24)), (60, 26));
    members.suspect(NodeId(1), "", at(25));
    assert_eq!(left(&members, 1, 25), 59, "failing again does not shorten it");
    members.registered(record(1, NodeState::Up), 7, &[], at(26));
    assert_eq!(left(&members, 1, 26), 0, "registering clears suspicions");
    members.dispute(NodeId(2), NodeId(1), at(27));
    assert_eq!(left(&members, 1, 27), 0, "and earlier disputes");

    let block = BlockId { stripe: StripeId(7), index: 1, copy: 0, generation: 1 };
    let before = members.view(at(30));
    members.suspect_block(block, at(30));
    let is_suspect = |view: View| view.is_suspect_block(block);
    assert!(!is_suspect(before) && is_suspect(members.view(at(59))) && !is_suspect(members.view(at(60))));
}
