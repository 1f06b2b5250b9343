//! Balanced helpers of which none is a function of the others.
//!
//! Where a code has local groups, not any k blocks suffice. Of a whole group, one block adds nothing to the others: the rebuild leaves its
//! node out and takes another one, which the balance did not count.

use super::super::{Assignment, Candidates, Load, Repair, Speeds, balance, loads};
use std::cmp::Reverse;

/// How often the choice of the nodes that cannot help is improved.
const CHOICES_MAX: usize = 4;

/// [`balance`], with helpers that hold none of these sets of nodes as a whole. `dependent`: the sets of each repair.
///
/// Of each set, one node is left out: one that an assignment without this rule does not need.
pub(super) fn balanced(
    repairs: &[Repair],
    dependent: &[Vec<Vec<u32>>],
    before: &[Load],
    speeds: &Speeds,
) -> Option<Vec<Assignment>> {
    let free = balance(repairs, before, speeds)?;
    let holds_set = |(assignment, sets): (&Assignment, &Vec<Vec<u32>>)| -> bool {
        sets.iter().any(|set| set.iter().all(|node| is_chosen(assignment, *node)))
    };
    if !free.iter().zip(dependent).any(holds_set) {
        return Some(free);
    }
    let least = times(repairs, &free, before, speeds).into_iter().max();
    let mut best: Option<(Option<u64>, Vec<Assignment>)> = None;
    for _ in 0..CHOICES_MAX {
        let guide = best.as_ref().map_or(&free, |(_, assignments)| assignments);
        let busy = times(repairs, guide, before, speeds);
        let all = repairs.iter().zip(guide).zip(dependent);
        let narrowed: Vec<Repair> = all.map(|((repair, chosen), sets)| narrowed(repair, chosen, sets, &busy)).collect();
        let Some(made) = balance(&narrowed, before, speeds) else { break };
        let busiest = times(repairs, &made, before, speeds).into_iter().max();
        if best.as_ref().is_some_and(|(most, _)| busiest >= *most) {
            break;
        }
        best = Some((busiest, made));
        if busiest <= least {
            break;
        }
    }
    Some(best.map_or(free, |(_, made)| made))
}

/// The time of each node's busier link.
pub(super) fn times(repairs: &[Repair], assignments: &[Assignment], before: &[Load], speeds: &Speeds) -> Vec<u64> {
    let mut carried = loads(speeds.nodes(), repairs, assignments);
    carried.iter_mut().zip(before).for_each(|(load, before)| *load += *before);
    carried.iter().enumerate().map(|(node, load)| speeds.busier(node, load)).collect()
}

fn is_chosen(assignment: &Assignment, node: u32) -> bool {
    assignment.iter().flatten().any(|it| *it == node)
}

/// The repair, with a node of each set not among its helpers: the busiest of those that were not chosen, or else of all. Other repairs
/// still decide which of the rest help.
fn narrowed(repair: &Repair, chosen: &Assignment, sets: &[Vec<u32>], busy: &[u64]) -> Repair {
    let mut left_out: Vec<u32> = Vec::with_capacity(sets.len());
    for set in sets {
        let time = |node: u32| busy.get(node as usize).copied().unwrap_or(0);
        if !set.iter().any(|node| left_out.contains(node)) {
            left_out.extend(set.iter().copied().max_by_key(|node| (!is_chosen(chosen, *node), time(*node), Reverse(*node))));
        }
    }
    let mut narrowed = repair.clone();
    let helpers = narrowed.parts.len().saturating_sub(1);
    for part in &mut narrowed.parts[..helpers] {
        let Candidates::These(nodes) = &mut part.candidates else { continue };
        let rest: Vec<u32> = nodes.iter().copied().filter(|node| !left_out.contains(node)).collect();
        if rest.len() >= part.vertices.len() {
            *nodes = rest;
        }
    }
    narrowed
}

#[cfg(test)]
mod tests {
    use super::{
        super::super::{Part, lower_bound},
        *,
    };

    /// Repairs by three of five nodes each, of which the first three must not help together; to a node that holds none of them.
    fn repairs(count: usize) -> (Vec<Repair>, Vec<Vec<Vec<u32>>>) {
        let one = |at: usize| {
            let mut nodes: Vec<u32> = (0..5).map(|step| ((at + step * (1 + at % 3)) % 11) as u32).collect();
            let set = nodes[..3].to_vec();
            nodes.sort_unstable();
            let others = (0..11).filter(|node| !nodes.contains(node)).collect();
            let part = |vertices, nodes| Part { vertices, candidates: Candidates::These(nodes) };
            let parts = vec![
                part(vec![Load { up: 1, down: 0, disk: 0 }; 3], nodes),
                part(vec![Load { up: 0, down: 3, disk: 0 }], others),
            ];
            (Repair { parts, edges: Vec::new() }, vec![set])
        };
        (0..count).map(one).unzip()
    }

    #[test]
    fn no_repair_is_helped_by_a_whole_set_and_the_links_are_as_even_as_without_sets() {
        let (repairs, sets) = repairs(60);
        let (none, speeds) = (vec![Load::default(); 11], Speeds::even(11));
        let made = balanced(&repairs, &sets, &none, &speeds).unwrap();
        for (assignment, sets) in made.iter().zip(&sets) {
            assert!(!sets[0].iter().all(|node| assignment[0].contains(node)), "{assignment:?} holds {sets:?}");
        }
        assert_eq!(times(&repairs, &made, &none, &speeds).into_iter().max(), Some(lower_bound(&repairs, &speeds)));
        assert_eq!(balanced(&repairs, &sets, &none, &speeds), Some(made), "the same input, the same assignment");
        let no_sets: Vec<Vec<Vec<u32>>> = repairs.iter().map(|_| Vec::new()).collect();
        assert_eq!(balanced(&repairs, &no_sets, &none, &speeds), balance(&repairs, &none, &speeds));
    }

    #[test]
    fn too_few_nodes_stay_as_they_are() {
        let (mut repairs, sets) = repairs(1);
        let mut only = sets[0][0].clone();
        only.sort_unstable();
        repairs[0].parts[0].candidates = Candidates::These(only);
        let nothing: Assignment = vec![Vec::new(); 2];
        assert_eq!(narrowed(&repairs[0], &nothing, &sets[0], &[0; 11]), repairs[0]);
        assert!(balanced(&repairs, &sets, &[Load::default(); 11], &Speeds::even(11)).is_some());
    }
}
