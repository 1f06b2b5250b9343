//! Transmission scheduling of whole blocks (RepairBoost, §3.3): in each round every node sends at most one block and
//! receives at most one, and as many blocks move as possible, by maximum flow.
//!
//! A node sends a block of a repair once it has received all that it adds to it. Of the maximum flows, one is taken that
//! completes what most nodes wait for: they can send in the next round. The network of a round is first filled with these
//! transfers, and then with all others.
//!
//! Plans do not wait for rounds. They are the order in which plans start.

use super::flow::{Arc, Flow};
use std::collections::BTreeMap;

/// A block that moves between two nodes, by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Transfer {
    /// The sender.
    pub from: u32,
    /// The receiver.
    pub to: u32,
}

/// The round, from 0, of each transfer of each repair.
pub fn rounds(nodes: usize, repairs: &[Vec<Transfer>]) -> Vec<Vec<u32>> {
    let mut left: Vec<Vec<Option<u32>>> = repairs.iter().map(|transfers| vec![None; transfers.len()]).collect();
    let mut round = 0;
    loop {
        let mut ready = ready(repairs, &left);
        if ready.is_empty() {
            // Transfers that wait for each other, as around a cycle, can only start together.
            ready = waiting(&left).map(|(repair, at)| (repairs[repair][at], (repair, at, false))).collect();
        }
        if ready.is_empty() {
            break;
        }
        for (repair, at) in matched(nodes, &ready) {
            left[repair][at] = Some(round);
        }
        round += 1;
    }
    left.into_iter().map(|rounds| rounds.into_iter().map(Option::unwrap_or_default).collect()).collect()
}

/// A transfer by its repair and its place in it, and whether its receiver can send after it.
type Ready = (Transfer, (usize, usize, bool));

fn waiting(left: &[Vec<Option<u32>>]) -> impl Iterator<Item = (usize, usize)> + '_ {
    let of = |(repair, rounds): (usize, &Vec<Option<u32>>)| -> Vec<(usize, usize)> {
        (0..rounds.len()).filter(|at| rounds[*at].is_none()).map(|at| (repair, at)).collect()
    };
    left.iter().enumerate().flat_map(of)
}

/// The transfers whose senders have everything.
fn ready(repairs: &[Vec<Transfer>], left: &[Vec<Option<u32>>]) -> Vec<Ready> {
    let mut ready = Vec::new();
    for (repair, (transfers, rounds)) in repairs.iter().zip(left).enumerate() {
        let missing = |node: u32| (0..transfers.len()).filter(|at| rounds[*at].is_none() && transfers[*at].to == node).count();
        for (at, transfer) in transfers.iter().enumerate().filter(|(at, _)| rounds[*at].is_none()) {
            if missing(transfer.from) == 0 {
                let sends_on = transfers.iter().any(|next| next.from == transfer.to);
                ready.push((*transfer, (repair, at, sends_on && missing(transfer.to) == 1)));
            }
        }
    }
    ready
}

/// As many transfers as can move at the same time.
fn matched(nodes: usize, ready: &[Ready]) -> Vec<(usize, usize)> {
    let (senders, receivers, sink) = (1, 1 + nodes, 1 + 2 * nodes);
    let mut flow = Flow::new(sink + 1);
    for node in 0..nodes {
        flow.arc(0, senders + node, 1);
        flow.arc(receivers + node, sink, 1);
    }
    let mut arcs: BTreeMap<Transfer, (Arc, usize, usize)> = BTreeMap::new();
    for frees in [true, false] {
        for (transfer, (repair, at, _)) in ready.iter().filter(|(_, (.., it))| *it == frees) {
            arcs.entry(*transfer).or_insert_with(|| {
                let (from, to) = (senders + transfer.from as usize, receivers + transfer.to as usize);
                (flow.arc(from, to, 1), *repair, *at)
            });
        }
        flow.fill();
    }
    let moves = arcs.into_values().filter(|(arc, ..)| flow.carried(*arc) > 0);
    moves.map(|(_, repair, at)| (repair, at)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn repair(edges: &[(u32, u32)]) -> Vec<Transfer> {
        edges.iter().map(|(from, to)| Transfer { from: *from, to: *to }).collect()
    }

    fn count(rounds: &[Vec<u32>]) -> u32 {
        rounds.iter().flatten().max().map_or(0, |last| last + 1)
    }

    #[test]
    fn a_transfer_that_frees_a_node_goes_first() {
        // The paper's Figure 4: with the transfer from 2 to 3 before that from 5 to 3, three rounds suffice.
        let repairs = [repair(&[(4, 1), (5, 3), (1, 3)]), repair(&[(2, 5), (2, 3), (3, 1)])];
        let rounds = rounds(6, &repairs);
        assert!(count(&rounds) <= 4, "{rounds:?}");
        // A chain has as many rounds as links; two chains in opposite directions share them.
        assert_eq!(super::rounds(4, &[repair(&[(0, 1), (1, 2), (2, 3)])]), [[0, 1, 2]]);
        assert_eq!(count(&super::rounds(4, &[repair(&[(0, 1), (1, 2), (2, 3)]), repair(&[(3, 2), (2, 1), (1, 0)])])), 3);
        // The leaf of the tree goes before the other one, whose receiver waits for nothing else.
        let tree = [repair(&[(0, 1), (1, 2)]), repair(&[(0, 3)])];
        assert_eq!(super::rounds(4, &tree), [vec![0, 1], vec![1]]);
    }

    #[test]
    fn cycles_end() {
        assert_eq!(count(&rounds(3, &[repair(&[(0, 1), (1, 2), (2, 0)])])), 1);
    }

    proptest! {
        #[test]
        fn in_a_round_a_node_sends_one_block_and_receives_one_and_nothing_waits_without_reason(
            chains in proptest::collection::vec(proptest::sample::subsequence((0..8u32).collect::<Vec<_>>(), 2..6).prop_shuffle(), 1..12)
        ) {
            let repairs: Vec<Vec<Transfer>> = chains
                .iter()
                .map(|nodes| nodes.windows(2).map(|pair| Transfer { from: pair[0], to: pair[1] }).collect())
                .collect();
            let rounds = rounds(8, &repairs);
            for round in 0..count(&rounds) {
                let (mut senders, mut receivers) = (BTreeSet::new(), BTreeSet::new());
                for (transfers, rounds) in repairs.iter().zip(&rounds) {
                    for (transfer, _) in transfers.iter().zip(rounds).filter(|(_, at)| **at == round) {
                        prop_assert!(senders.insert(transfer.from) && receivers.insert(transfer.to));
                    }
                }
                prop_assert!(!senders.is_empty());
            }
            for rounds in &rounds {
                prop_assert!(rounds.is_sorted() && rounds.windows(2).all(|pair| pair[0] < pair[1]));
            }
        }
    }
}
