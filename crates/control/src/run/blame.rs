//! Finds the node that is to blame when a plan fails.
//!
//! When one party stops, its neighbours fail or stall, and then their neighbours: many parties blame a neighbour. The
//! search follows the blame from party to party; the culprit is the last one, which blames no other. If the culprit was
//! held back by tasks of an earlier class, no node is to blame: the others stopped waiting for data that would have
//! arrived.

use super::report::{Blame, End, NodeReport, Report};
use weft_types::{Cause, NodeId, Party, Reaction};

/// The node to blame. `None` if nothing failed, a client failed, the culprit was held back, or blocks are inconsistent.
pub(super) fn culprit(report: &Report) -> Option<Blame> {
    if let Some((blame, _)) = report.held_up {
        return Some(blame);
    }
    if report.inconsistency().is_some() {
        return None;
    }
    let certain = |node: NodeId| Some(Blame { node, accuser: None });
    // A silent node is to blame without any complaint.
    let broken = report.nodes.iter().find(|(_, node)| matches!(node.end, Some(End::Broken(_))));
    if let Some((id, _)) = broken {
        return certain(*id);
    }
    // Wrong bytes are the fault of the node where they were found.
    let own = report.nodes.iter().find(|(id, node)| fault_of_its_own(**id, node));
    if let Some((id, _)) = own {
        return certain(*id);
    }
    let first = report.nodes.iter().find(|(_, node)| matches!(node.end, Some(End::Failed(_))))?;
    let mut at = Blame { node: *first.0, accuser: None };
    // Each step leads to a new node, so there are at most as many steps as nodes. In a circle, any of its nodes may be
    // the culprit.
    let mut met_held_back = false;
    for _ in 0..report.nodes.len() {
        let node = report.nodes.get(&at.node);
        met_held_back |= node.is_some_and(|node| node.held_back);
        match node.and_then(|node| complains_of(at.node, node)) {
            Some(Party::Node(next)) => at = Blame { node: next, accuser: Some(at.node) },
            Some(Party::Client(_)) => return None,
            None => return Some(at).filter(|_| node.is_none_or(|node| !node.held_back)),
        }
    }
    Some(at).filter(|_| !met_held_back)
}

/// The nodes that complain of this one, if they only say that nothing has moved, and it does not wait for its own disk; otherwise none.
pub(super) fn accusers_of_stall(report: &Report, node: NodeId) -> Vec<NodeId> {
    let complains = |(id, told): &(&NodeId, &NodeReport)| complains_of(**id, told) == Some(Party::Node(node));
    let accusers: Vec<NodeId> = report.nodes.iter().filter(complains).map(|(id, _)| *id).collect();
    let errors = || report.nodes.values().flat_map(NodeReport::errors);
    let is_other = |error: &weft_types::Error| !matches!(error.reaction, Reaction::Replan | Reaction::Retry);
    let waits_for_itself = |told: &NodeReport| told.waiting.iter().any(|(party, _)| *party == Party::Node(node));
    let is_stall = report.held_up.is_none()
        && errors().any(|error| error.cause == Some(Cause::Stalled))
        && !errors().any(is_other)
        && !report.nodes.get(&node).is_some_and(waits_for_itself);
    if is_stall { accusers } else { Vec::new() }
}

/// Its disk failed, or its block is bad or missing.
fn fault_of_its_own(id: NodeId, node: &NodeReport) -> bool {
    let own = |error: &weft_types::Error| {
        error.party == Some(Party::Node(id))
            && matches!(error.reaction, Reaction::Corrupt | Reaction::NotFound | Reaction::Fatal)
            && error.link.is_none()
    };
    matches!(node.end, Some(End::Failed(_))) && node.errors().iter().any(own)
}

/// The party that a node blames: the peer in its first error, or the one that it has waited for longest.
fn complains_of(id: NodeId, node: &NodeReport) -> Option<Party> {
    let others = |party: &Party| *party != Party::Node(id);
    let named = node.first_error().and_then(|error| error.party).filter(others);
    let longest = || node.waiting.iter().filter(|(party, _)| others(party)).max_by_key(|(_, since_ms)| *since_ms);
    let waits_for_itself = node.waiting.iter().any(|(party, _)| !others(party));
    named.or_else(|| longest().map(|(party, _)| *party).filter(|_| !waits_for_itself))
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_types::{Error, StripeId};

    fn node(id: u32) -> Party {
        Party::Node(NodeId(id))
    }

    fn report(ends: &[(u32, Option<End>)]) -> Report {
        let mut report = Report::new(ends.iter().map(|(id, _)| NodeId(*id)));
        for (id, end) in ends {
            report.nodes.get_mut(&NodeId(*id)).unwrap().end = end.clone();
        }
        report
    }

    fn failed(error: Error) -> Option<End> {
        Some(End::Failed(vec![error]))
    }

    #[test]
    fn blame_is_followed_to_its_end() {
        // A chain 1 → 2 → 3 → 4 in which 1 was stopped: each node blames the one before it, and 1 reports nothing.
        let complains = |of: u32| failed(Error::replan("no slice in time").party(node(of)));
        let stopped = report(&[(1, Some(End::GivenUp)), (2, complains(1)), (3, complains(2)), (4, complains(3))]);
        assert_eq!(culprit(&stopped), Some(Blame { node: NodeId(1), accuser: Some(NodeId(2)) }));
        let circle = report(&[(1, complains(2)), (2, complains(1))]);
        let met = culprit(&circle).map(|blame| (blame.node, blame.accuser));
        assert!(
            met == Some((NodeId(1), Some(NodeId(2)))) || met == Some((NodeId(2), Some(NodeId(1)))),
            "both are possible: {met:?}"
        );
    }

    #[test]
    fn no_node_is_to_blame_for_a_check_that_is_not_zero() {
        let wrong = Error { position: Some(4096), ..Error::corrupt("the blocks are inconsistent").party(node(2)) };
        let not_zero = wrong.clone().cause(weft_types::Cause::Inconsistent);
        let ends = [(1, failed(Error::replan("reset").party(node(2)))), (2, failed(not_zero.clone()))];
        let report = report(&ends);
        assert_eq!((report.inconsistency(), culprit(&report)), (Some(&not_zero), None));
        // A frame that was damaged on its way, without a block or a link.
        let report = self::report(&[(1, Some(End::Done)), (2, failed(wrong))]);
        assert_eq!((report.inconsistency(), culprit(&report).map(|it| it.node)), (None, Some(NodeId(2))));
    }

    #[test]
    fn a_node_that_is_gone_or_has_bad_bytes_is_to_blame() {
        let complains = |of: u32| failed(Error::replan("reset").party(node(of)));
        let broken = Some(End::Broken(Error::replan("went down").party(node(3))));
        let certain = |node: u32| Some(Blame { node: NodeId(node), accuser: None });
        assert_eq!(culprit(&report(&[(1, complains(2)), (2, complains(1)), (3, broken)])), certain(3));

        let block = weft_types::BlockId { stripe: StripeId(1), index: 2, copy: 0, generation: 1 };
        let corrupt = failed(Error::corrupt("page 3").party(node(2)).block(block));
        let report = report(&[(1, complains(2)), (2, corrupt), (3, complains(2))]);
        assert_eq!(culprit(&report), certain(2));
        let bad: Vec<_> = report.nodes[&NodeId(2)].bad_blocks(NodeId(2)).map(|(block, state, _)| (block, state)).collect();
        assert_eq!(bad, [(block, weft_types::BlockState::Corrupt)]);
    }

    #[test]
    fn stalls_lead_to_the_node_that_waits_for_no_other() {
        let stalled = |id: u32| failed(Error::replan("stalled").party(node(id)));
        let mut report = report(&[(1, stalled(1)), (2, stalled(2)), (3, stalled(3))]);
        let waits = [(1, vec![(node(1), 900)]), (2, vec![(node(1), 800)]), (3, vec![(node(2), 700), (Party::Client(7), 10)])];
        for (id, waiting) in waits {
            report.nodes.get_mut(&NodeId(id)).unwrap().waiting = waiting;
        }
        assert_eq!(culprit(&report).map(|blame| blame.node), Some(NodeId(1)), "it waits for its own disk");
    }

    #[test]
    fn a_held_back_node_is_not_blamed_if_others_gave_up() {
        let complains = |of: u32| failed(Error::replan("no slice in time").party(node(of)));
        let held_back = |mut report: Report| {
            report.nodes.get_mut(&NodeId(1)).unwrap().held_back = true;
            culprit(&report).map(|blame| blame.node)
        };
        // A chain 1 → 2 → 3 in which 1 was cancelled, or its link was broken by 2.
        assert_eq!(held_back(report(&[(1, Some(End::GivenUp)), (2, complains(1)), (3, complains(2))])), None);
        assert_eq!(held_back(report(&[(1, complains(2)), (2, complains(1)), (3, complains(2))])), None);
        // Node 1's report on others counts, and so does its own failure.
        assert_eq!(
            held_back(report(&[(1, complains(3)), (2, complains(1)), (3, failed(Error::replan("full")))])),
            Some(NodeId(3))
        );
        let corrupt = failed(Error::corrupt("page 3").party(node(1)));
        assert_eq!(held_back(report(&[(1, corrupt), (2, complains(1))])), Some(NodeId(1)));
    }

    #[test]
    fn no_node_is_blamed_for_a_clients_failure_or_without_one() {
        assert_eq!(culprit(&report(&[(1, Some(End::Done)), (2, Some(End::Done))])), None);
        let gone = failed(Error::replan("reset").party(Party::Client(9)));
        assert_eq!(culprit(&report(&[(1, gone.clone()), (2, gone)])), None);
    }
}
