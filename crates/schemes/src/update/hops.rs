//! The way of a writer's deltas from node to node.

use super::{Update, Writer};
use std::collections::BTreeMap;
use weft_plan::ChosenPath;
use weft_types::Party;

/// The ways of all writers' deltas.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Routes {
    /// For each writer, in their order: a tree of hops to all homes concerned, in the order in which each sender sends.
    /// A hop comes after the one that reaches its sender. No two trees may pass two homes in opposite order: stages would
    /// wait for each other.
    pub hops: Vec<Vec<Hop>>,
    /// The path that was selected, if any.
    pub path: Option<ChosenPath>,
}

/// A link of the tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hop {
    /// The home that sends, by its number; `None`: the writer.
    pub from: Option<usize>,
    /// The home that receives.
    pub to: usize,
}

/// A chain through these homes, from the writer on.
pub(super) fn chain(homes: impl IntoIterator<Item = usize>, from: Option<usize>) -> Vec<Hop> {
    let mut last = from;
    homes.into_iter().map(|to| Hop { from: last.replace(to), to }).collect()
}

/// The most orders that are compared, over their stops: some ten milliseconds.
const STOPS_MAX: usize = 1 << 16;

/// An order of `count` stops for several writers, whose chains each pass some of them: `order`, or a better one, reached
/// by swapping stops as long as the slowest link gets faster. A single writer's chain passes all stops, so its order needs
/// no change. `hops` gives all writers' hops for an order.
pub(super) fn improved(update: &Update<'_>, mut order: Vec<usize>, hops: impl Fn(&[usize]) -> Vec<Vec<Hop>>) -> Vec<usize> {
    if update.writers.len() < 2 {
        return order;
    }
    let mut least = slowest(update, &hops(&order));
    let swaps = order.len() * order.len().saturating_sub(1) / 2;
    let passes = STOPS_MAX / (swaps * order.len()).max(1);
    for _ in 0..passes {
        let mut better = None;
        for a in 0..order.len() {
            for b in a + 1..order.len() {
                order.swap(a, b);
                let time = slowest(update, &hops(&order));
                if time < least {
                    (least, better) = (time, Some((a, b)));
                }
                order.swap(a, b);
            }
        }
        let Some((a, b)) = better else { break };
        order.swap(a, b);
    }
    order
}

/// The time of the busiest link or line, for one position of every writer's sub-blocks; and the sum over all links.
fn slowest(update: &Update<'_>, hops: &[Vec<Hop>]) -> (f64, f64) {
    let network = update.network();
    let (mut links, mut up, mut down) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
    let party = |writer: &Writer, at: Option<usize>| at.map_or(writer.party, |at| update.homes[at].party);
    for (writer, hops) in update.writers.iter().zip(hops) {
        let width = writer.columns.len() as f64;
        for hop in hops {
            let (from, to) = (party(writer, hop.from), party(writer, Some(hop.to)));
            *links.entry((from, to)).or_insert(0.0) += width;
            *up.entry(from).or_insert(0.0) += width;
            *down.entry(to).or_insert(0.0) += width;
        }
    }
    let times: Vec<f64> =
        links.into_iter().map(|((from, to), width): ((Party, Party), f64)| width / network.between(from, to)).collect();
    let lines = up.into_iter().map(|(party, width): (Party, f64)| width / network.up(party));
    let lines = lines.chain(down.into_iter().map(|(party, width): (Party, f64)| width / network.down(party)));
    (lines.chain(times.iter().copied()).fold(0.0, f64::max), times.iter().sum())
}
