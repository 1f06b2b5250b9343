//! Of the paths through all candidates, the one with the least sum of weights (Held and Karp's table).

use super::weights::Weights;

/// Up to this many candidates: the table has one entry for each set and candidate, and takes well below a millisecond.
const CANDIDATES_MAX: usize = 12;

/// The chain of all candidates with the least sum of weights, none above `most`. `None` if there is none, or if there
/// are too many candidates.
pub(super) fn below(weights: &Weights, most: f64) -> Option<Vec<usize>> {
    least(weights, |weight| if weight <= most { weight } else { f64::INFINITY })
}

/// A chain of all candidates with the slowest link of all and otherwise slow ones.
pub(super) fn worst(weights: &Weights) -> Vec<usize> {
    let count = weights.count();
    let links = (0..count).flat_map(|from| (0..count).filter(move |to| *to != from).map(move |to| (from, Some(to))));
    let of = |(from, to): (usize, Option<usize>)| to.map_or_else(|| weights.end(from), |to| weights.link(from, to));
    let slowest = links.chain((0..count).map(|from| (from, None))).max_by(|a, b| of(*a).total_cmp(&of(*b)));
    let Some((from, to)) = slowest else { return Vec::new() };
    // A chain has at most `count` links, so the slowest link counts more than all others together.
    let slow = of((from, to));
    let price = |weight: f64| if weight >= slow { -slow * (count + 1) as f64 } else { -weight };
    least(weights, price).filter(|_| slow.is_finite()).unwrap_or_else(|| {
        let others = (0..count).filter(|at| *at != from && Some(*at) != to);
        match to {
            Some(to) => [from, to].into_iter().chain(others).collect(),
            None => others.chain([from]).collect(),
        }
    })
}

/// The chain of all candidates with the least sum of prices; of equal ones, the first found.
fn least(weights: &Weights, price: impl Fn(f64) -> f64) -> Option<Vec<usize>> {
    let count = weights.count();
    if count == 0 || count > CANDIDATES_MAX {
        return None;
    }
    let all = (1usize << count) - 1;
    let prices: Vec<f64> = (0..count * count).map(|at| price(weights.link(at / count, at % count))).collect();
    // By set and its first candidate: the sum from there to the requestor.
    let mut sums = vec![f64::INFINITY; (all + 1) * count];
    (0..count).for_each(|last| sums[(1 << last) * count + last] = price(weights.end(last)));
    let step = |sums: &[f64], rest: usize, first: usize, next: usize| sums[rest * count + next] + prices[first * count + next];
    for set in 1..=all {
        for first in (0..count).filter(|first| set & 1 << first != 0) {
            let rest = set & !(1 << first);
            for next in (0..count).filter(|next| rest & 1 << next != 0) {
                let sum = step(&sums, rest, first, next);
                if sum < sums[set * count + first] {
                    sums[set * count + first] = sum;
                }
            }
        }
    }
    let first = (0..count).min_by(|a, b| sums[all * count + a].total_cmp(&sums[all * count + b]))?;
    if sums[all * count + first].is_infinite() {
        return None;
    }
    let (mut order, mut rest) = (vec![first], all & !(1 << first));
    while let Some(last) = order.last().copied().filter(|_| rest != 0) {
        let members = (0..count).filter(|next| rest & 1 << next != 0);
        let next = members.min_by(|a, b| step(&sums, rest, last, *a).total_cmp(&step(&sums, rest, last, *b)))?;
        order.push(next);
        rest &= !(1 << next);
    }
    Some(order)
}
