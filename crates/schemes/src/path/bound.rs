//! Necessary conditions for a chain: if they fail, no search is needed. The helpers of a chain have as many different
//! successors as there are helpers, and all of them reach the requestor. The members of a cycle have different
//! successors among themselves, and all but one of them reach the requestor directly.

use super::{Form, Graph};

/// Whether a graph may contain a chain or cycle of this many helpers.
pub(super) fn allows(graph: &Graph<'_>, helpers: usize) -> bool {
    let count = graph.weights.count();
    let successors: Vec<Vec<usize>> = (0..count).map(|from| (0..count).filter(|to| graph.has(from, *to)).collect()).collect();
    match graph.form {
        Form::Chain => reaching(graph, &successors) >= helpers && matching(graph, &successors, helpers),
        Form::Cycle => matching(graph, &successors, helpers),
    }
}

/// The number of candidates with a path to the requestor.
fn reaching(graph: &Graph<'_>, successors: &[Vec<usize>]) -> usize {
    let mut reach: Vec<bool> = (0..successors.len()).map(|from| graph.has_end(from)).collect();
    loop {
        let more = |(from, next): (usize, &Vec<usize>)| (!reach[from] && next.iter().any(|to| reach[*to])).then_some(from);
        let more: Vec<usize> = successors.iter().enumerate().filter_map(more).collect();
        if more.is_empty() {
            return reach.iter().filter(|reaches| **reaches).count();
        }
        more.into_iter().for_each(|from| reach[from] = true);
    }
}

/// Whether this many candidates have successors that are all different. For a chain the requestor, last in the list,
/// counts as a successor: if it can be one at all, some maximum matching contains it.
fn matching(graph: &Graph<'_>, successors: &[Vec<usize>], helpers: usize) -> bool {
    let count = successors.len();
    let mut of: Vec<Option<usize>> = vec![None; count + 1];
    let ends = |from: usize| graph.form == Form::Chain && graph.has_end(from);
    // Matched candidates stay matched as the matching grows, so the spared member of a cycle comes last.
    let is_spared = |from: &usize| graph.form == Form::Cycle && !graph.has_end(*from);
    let (spared, all): (Vec<usize>, Vec<usize>) = (0..count).partition(is_spared);
    let mut is_matched = |from: usize| augment(from, successors, &ends, &mut of, &mut vec![false; count + 1]);
    let mut size = 0;
    for from in all {
        size += usize::from(is_matched(from));
        if size >= helpers {
            return true;
        }
    }
    size + 1 == helpers && spared.into_iter().any(is_matched)
}

/// Finds a successor for another candidate; it may take that of one that can use a different one.
fn augment(
    from: usize,
    successors: &[Vec<usize>],
    ends: &impl Fn(usize) -> bool,
    of: &mut [Option<usize>],
    seen: &mut [bool],
) -> bool {
    let end = ends(from).then_some(successors.len());
    for to in end.into_iter().chain(successors[from].iter().copied()) {
        if seen[to] {
            continue;
        }
        seen[to] = true;
        if of[to].is_none_or(|other| augment(other, successors, ends, of, seen)) {
            of[to] = Some(from);
            return true;
        }
    }
    false
}
