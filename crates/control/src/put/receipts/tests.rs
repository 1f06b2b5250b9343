use super::*;
use crate::run::Blame;

const LONG_MS: u32 = 2_500;

fn node(id: u32) -> Party {
    Party::Node(NodeId(id))
}

/// A report on failed nodes: the party that each blamed, and the parties that it waited for.
fn report(nodes: &[(u32, Party, &[Party])]) -> Report {
    let mut report = Report::new(nodes.iter().map(|(id, ..)| NodeId(*id)));
    for (id, party, waits) in nodes {
        let told = report.nodes.get_mut(&NodeId(*id)).unwrap();
        told.end = Some(End::Failed(vec![Error::replan("the link broke").party(*party)]));
        told.waiting = waits.iter().map(|party| (*party, LONG_MS)).collect();
    }
    report
}

fn failed(report: &Report, complaints: &[u32]) -> Vec<u32> {
    let complaints = complaints.iter().map(|id| NodeId(*id)).collect();
    who_failed(report, &complaints, LONG_MS).into_iter().map(|node| node.0).collect()
}

#[test]
fn a_node_that_the_writer_blames_has_failed_unless_it_waited_for_another() {
    let writer = Party::Client(1);
    // A link to the writer broke at a node that waited for the writer, as all nodes do at times.
    assert_eq!(failed(&report(&[(1, writer, &[writer]), (2, node(1), &[node(1)])]), &[1]), [1]);
    // Node 3 hangs on its disk, 1 and 2 wait for it, and the writer gives up both.
    let hangs = report(&[(1, writer, &[node(3)]), (2, writer, &[node(3)]), (3, node(1), &[node(3), node(1)])]);
    assert_eq!(failed(&hangs, &[1, 2]), [3]);
    // A short wait does not count.
    let mut moment = report(&[(1, writer, &[])]);
    moment.nodes.get_mut(&NodeId(1)).unwrap().waiting = vec![(node(2), LONG_MS - 1)];
    assert_eq!(failed(&moment, &[1]), [1]);
}

#[test]
fn if_one_node_delayed_the_plan_the_others_have_not_failed() {
    let mut all = report(&[(1, node(1), &[node(3)]), (2, node(2), &[]), (3, node(3), &[])]);
    assert_eq!(failed(&all, &[]), [2, 3], "a node that was cancelled without having waited was late itself");
    let blame = Blame { node: NodeId(3), accuser: Some(NodeId(1)) };
    (all.blame, all.held_up) = (Some(blame), Some((blame, Error::replan("it delays all others"))));
    assert_eq!(failed(&all, &[1, 2]), [3]);
    all.nodes.get_mut(&NodeId(2)).unwrap().end = Some(End::GivenUp);
    assert_eq!(failed(&all, &[]), [2, 3], "a node that gives no answer when it is cancelled is gone too");
}
