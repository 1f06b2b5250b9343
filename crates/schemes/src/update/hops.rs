//! The way of a writer's deltas from node to node.

use weft_plan::ChosenPath;

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
