//! The way of an update's deltas from node to node.

use super::UPDATE_BYTES_MAX;
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
    /// Tells apart the times that they are sent.
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

    /// The block whose node sends to this one.
    pub fn before(&self, to: BlockId) -> Option<BlockId> {
        self.hops.iter().find(|hop| hop.to == to).map(|hop| hop.from)
    }

    /// A block, and all that are reached through it.
    pub fn behind(&self, at: BlockId) -> BTreeSet<BlockId> {
        let mut behind = BTreeSet::from([at]);
        for Hop { from, to } in &self.hops {
            if behind.contains(from) {
                behind.insert(*to);
            }
        }
        behind
    }
}

impl LoadHead {
    /// Checks that the route begins at this origin, and that the parts may travel together.
    pub fn check(&self, origin: BlockId) -> Result<()> {
        self.route.check(origin)?;
        let len = self.parts.iter().fold(0u64, |sum, part| sum.saturating_add(part.len));
        let is_valid = !self.parts.is_empty()
            && self.parts.windows(2).all(|pair| pair[0].stream < pair[1].stream)
            && self.parts.iter().all(|part| part.len > 0 && part.start.checked_add(part.len).is_some())
            && len <= UPDATE_BYTES_MAX as u64;
        if is_valid {
            Ok(())
        } else {
            Err(Error::invalid("the deltas that travel are empty, out of order or too long").block(origin))
        }
    }

    /// The bytes of all parts.
    pub fn bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.len).sum()
    }

    /// The number of slices.
    pub fn slices(&self) -> usize {
        self.bytes().div_ceil(u64::from(self.route.slice_len).max(1)) as usize
    }

    /// The ranges of one slice, counted from 0.
    pub fn slice(&self, number: usize) -> Vec<LoadPart> {
        let len = u64::from(self.route.slice_len);
        let (begin, end) = (number as u64 * len, (number as u64 + 1) * len);
        let (mut at, mut ranges) = (0, Vec::new());
        for part in &self.parts {
            let (from, to) = (begin.max(at), end.min(at + part.len));
            if from < to {
                ranges.push(LoadPart { stream: part.stream, start: part.start + (from - at), len: to - from });
            }
            at += part.len;
        }
        ranges
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
        assert_eq!((route.before(block(6)), route.before(block(0))), (Some(block(4)), None));
        assert_eq!(route.behind(block(4)), BTreeSet::from([block(4), block(5), block(6)]));
        assert_eq!(route.behind(block(5)), BTreeSet::from([block(5)]));
    }

    #[test]
    fn slices_cut_the_parts_in_their_order() {
        let range = |stream, start, len| LoadPart { stream, start, len };
        let parts = vec![range(0, 100, 5000), range(2, 7, 3000), range(3, 0, 300)];
        let head = LoadHead { route: Route { slice_len: 4096, ..route(&[(0, 4)]) }, parts };
        assert!(head.check(block(0)).is_ok());
        assert_eq!((head.bytes(), head.slices()), (8300, 3));
        assert_eq!(head.slice(0), [range(0, 100, 4096)]);
        assert_eq!(head.slice(1), [range(0, 4196, 904), range(2, 7, 3000), range(3, 0, 192)]);
        assert_eq!(head.slice(2), [range(3, 192, 108)]);
        assert_eq!(head.slice(3), []);
        let wrong = [
            vec![],
            vec![range(0, 0, 0)],
            vec![range(1, 0, 1), range(1, 5, 1)],
            vec![range(0, u64::MAX, 1)],
            vec![range(0, 0, UPDATE_BYTES_MAX as u64), range(1, 0, 1)],
        ];
        for parts in wrong {
            assert!(LoadHead { parts, ..head.clone() }.check(block(0)).is_err());
        }
        assert!(head.check(block(4)).is_err(), "the route begins elsewhere");
    }
}
