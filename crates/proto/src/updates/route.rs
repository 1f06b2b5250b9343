//! The way of an update's deltas from node to node.

use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use weft_types::{BlockId, Error, Result};
use weft_update::UpdateId;

/// A tree over the blocks of a stripe. Their nodes pass the deltas of an update on, as they receive them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Route {
    /// In the order in which each node sends. A hop comes after the one that reaches its sender; the first sender is the origin.
    pub hops: Vec<Hop>,
    /// Whether a node sends over one link at a time, and only when it has received everything.
    pub in_turn: bool,
    /// The bytes that are sent at once.
    pub slice_len: u32,
}

/// A link of the tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hop {
    /// The block whose node sends.
    pub from: BlockId,
    /// The block whose node receives.
    pub to: BlockId,
}

/// Names the deltas that travel over a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LoadId {
    /// The block from which they come.
    pub from: BlockId,
    /// The update.
    pub id: UpdateId,
    /// Drawn at random each time that they are sent.
    pub attempt: u32,
}

/// What the first slice says of all of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadHead {
    /// The route.
    pub route: Route,
    /// The ranges of the deltas, ascending by data block. The slices carry their bytes in this order.
    pub parts: Vec<LoadPart>,
}

/// The range of a delta.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadPart {
    /// The data block's index.
    pub stream: u8,
    /// The offset of the first byte in the data block.
    pub start: u64,
    /// Its bytes; not 0.
    pub len: u64,
}

impl Route {
    /// The most hops: more blocks than a stripe's parities, with their copies.
    pub const HOPS_MAX: usize = 255;
    /// Slices are at least this long.
    pub const SLICE_LEN_MIN: u32 = 4 << 10;
    /// Slices are at most this long.
    pub const SLICE_LEN_MAX: u32 = 64 << 20;

    /// Checks that it is a tree of blocks of one stripe with this origin, and within bounds.
    pub fn check(&self, origin: BlockId) -> Result<()> {
        let invalid = |what: &str| Err(Error::invalid(format!("the route of an update is not valid: {what}")).block(origin));
        if self.hops.is_empty() || self.hops.len() > Self::HOPS_MAX {
            return invalid("it has no hops, or too many");
        }
        if !(Self::SLICE_LEN_MIN..=Self::SLICE_LEN_MAX).contains(&self.slice_len) {
            return invalid("its slices are too short or too long");
        }
        let mut reached = BTreeSet::from([origin]);
        for Hop { from, to } in &self.hops {
            if to.stripe != origin.stripe || !reached.contains(from) || !reached.insert(*to) {
                return invalid("it is not a tree");
            }
        }
        Ok(())
    }

    /// The blocks to which a block's node sends, in order.
    pub fn onward(&self, from: BlockId) -> impl Iterator<Item = BlockId> + '_ {
        self.hops.iter().filter(move |hop| hop.from == from).map(|hop| hop.to)
    }

    /// All blocks that it reaches.
    pub fn reached(&self) -> impl Iterator<Item = BlockId> + '_ {
        self.hops.iter().map(|hop| hop.to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_types::StripeId;

    fn block(index: u8) -> BlockId {
        BlockId { stripe: StripeId(7), index, copy: 0, generation: 1 }
    }

    fn route(hops: &[(u8, u8)]) -> Route {
        let hop = |(from, to): &(u8, u8)| Hop { from: block(*from), to: block(*to) };
        Route { hops: hops.iter().map(hop).collect(), in_turn: false, slice_len: 64 << 10 }
    }

    #[test]
    fn a_route_is_a_tree_of_one_stripe() {
        assert!(route(&[(0, 4), (4, 5), (0, 6), (5, 7)]).check(block(0)).is_ok());
        for wrong in [&[][..], &[(0, 0)], &[(4, 5)], &[(0, 4), (0, 4)], &[(0, 4), (5, 6), (4, 5)], &[(0, 4), (4, 0)]] {
            assert!(route(wrong).check(block(0)).is_err(), "{wrong:?}");
        }
        assert!(Route { slice_len: 1, ..route(&[(0, 4)]) }.check(block(0)).is_err());
        assert!(Route { slice_len: u32::MAX, ..route(&[(0, 4)]) }.check(block(0)).is_err());
        let mut other = route(&[(0, 4)]);
        other.hops[0].to.stripe = StripeId(8);
        assert!(other.check(block(0)).is_err());
    }

    #[test]
    fn nodes_send_in_the_order_of_the_hops() {
        let route = route(&[(0, 4), (4, 6), (4, 5)]);
        assert_eq!(route.onward(block(4)).map(|to| to.index).collect::<Vec<_>>(), [6, 5]);
        assert_eq!(route.reached().map(|to| to.index).collect::<Vec<_>>(), [4, 6, 5]);
    }
}
