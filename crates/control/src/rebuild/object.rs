//! The repair of an object: which blocks an operator may name, which copies are missing, and whether it continues after
//! a failed stripe.

use super::Lost;
use crate::view::View;
use weft_codes::SharedCode;
use weft_types::{Cause, Error, NodeId, REPLICAS_MAX, Reaction, Result, StripeRecord, counted};

/// The index of a named block, if the stripes have it. `first`: the first stripe; no other one has more blocks.
pub fn named_block(code: &SharedCode, first: Option<&StripeRecord>, index: u32) -> Result<u8> {
    let is_stored = |index: u8| first.is_none_or(|stripe| stripe.blocks.contains_key(&index));
    match u8::try_from(index).ok().filter(|index| usize::from(*index) < code.n()) {
        Some(index) if is_stored(index) => Ok(index),
        Some(index) => Err(Error::invalid(format!("block {index} is empty: it is not stored and cannot be lost"))),
        None => Err(Error::invalid(format!("there is no block {index}: {} has blocks 0 to {}", code.spec(), code.n() - 1))),
    }
}

/// Whether the other stripes of an object are still rebuilt after nothing of one stripe could be. They are, in
/// particular, if data is lost for good. Other tasks may be changing the same stripe.
pub fn leaves_others(error: &Error) -> bool {
    matches!(error.reaction, Reaction::Unavailable | Reaction::Replan)
}

/// The data blocks that a stripe has lost, and its missing copies if each data block must have `replicas` copies.
pub fn lacking_copies(stripe: &StripeRecord, mut lost: Vec<Lost>, replicas: u8) -> Vec<Lost> {
    let data = u8::try_from(stripe.dimension()).unwrap_or(u8::MAX);
    lost.retain(|lost| lost.index < data);
    for index in 0..data {
        let has = stripe.all().filter(|(at, _)| *at == index).count();
        let free = (0..REPLICAS_MAX).filter(|copy| stripe.find(index, *copy).is_none());
        lost.extend(free.take(usize::from(replicas).saturating_sub(has)).map(|copy| Lost::of(stripe, index, copy)));
    }
    lost
}

/// Fails before any copy is made if fewer nodes are up than a stripe with its missing copies (`lost`) needs.
pub fn room_for_copies(stripe: &StripeRecord, lost: &[Lost], view: &View, (m, replicas): (usize, u8)) -> Result<()> {
    let is_lost = |index: u8, copy: u8| lost.iter().any(|lost| (lost.index, lost.copy) == (index, copy));
    let kept = stripe.all().filter(|(index, placed)| !is_lost(*index, placed.copy)).map(|(_, placed)| placed.home.node);
    let kept: Vec<NodeId> = kept.collect();
    let free = view.nodes.values().filter(|node| node.up && !kept.contains(&node.id)).count();
    match lost.len() <= free {
        true => Ok(()),
        false => Err(view.lacking_nodes(too_few_for_copies(stripe, m, replicas, kept.len() + lost.len(), view))),
    }
}

/// The error of a stripe that needs more nodes for its copies than are up.
pub(super) fn too_few_for_copies(stripe: &StripeRecord, m: usize, copies: u8, needed: usize, view: &View) -> Error {
    let (k, nodes, up) = (stripe.dimension(), view.nodes.len(), view.up_count());
    let fewer = match up.saturating_sub(m) / k.max(1) {
        0 | 1 => String::new(),
        most => format!(", or request at most {most} copies"),
    };
    let (data, parity) = (counted(k as u64, "data block"), counted(m as u64, "parity block"));
    Error::unavailable(format!(
        "{copies} copies of {data} and {parity} need {needed} nodes, and {up} of {nodes} nodes are up: start or add nodes{fewer}"
    ))
    .cause(Cause::TooFewNodes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{home, stripe, view};
    use weft_types::PlacedBlock;

    #[test]
    fn only_stored_blocks_of_the_code_can_be_named() {
        let (code, mut short) = (weft_codes::parse("rs(4,2)").unwrap(), stripe());
        short.blocks.remove(&3);
        let named = |first, index| named_block(&code, first, index).map_err(|error| error.message);
        assert_eq!([0, 5].map(|index| named(Some(&short), index)), [Ok(0), Ok(5)]);
        assert!(named(Some(&short), 3).unwrap_err().contains("block 3 is empty"));
        assert_eq!(named(None, 3), Ok(3), "an empty object has no lost blocks and no wrong index");
        for index in [6, 256, u32::MAX] {
            assert!(named(Some(&short), index).unwrap_err().contains("rs(4,2) has blocks 0 to 5"), "{index}");
        }
    }

    #[test]
    fn an_error_in_one_stripe_does_not_stop_the_others() {
        let errors =
            [Error::unavailable("lost"), Error::replan("changed"), Error::retry("busy"), Error::invalid("no such scheme")];
        assert_eq!(errors.each_ref().map(leaves_others), [true, true, false, false]);
    }

    #[test]
    fn more_copies_than_nodes_are_refused_before_the_first_one_is_made() {
        let stripe = stripe();
        let room = |view: &View, replicas| {
            let lost = lacking_copies(&stripe, Vec::new(), replicas);
            room_for_copies(&stripe, &lost, view, (2, replicas)).map_err(|error| (error.cause, error.message))
        };
        // Four data and two parity blocks: each further copy of the data takes four more nodes.
        assert_eq!([1, 2].map(|replicas| room(&view(10, &[]), replicas)), [Ok(()), Ok(())]);
        let (cause, message) = room(&view(10, &[]), 3).unwrap_err();
        assert_eq!(cause, Some(Cause::TooFewNodes));
        let says = "3 copies of 4 data blocks and 2 parity blocks need 14 nodes, and 10 of 10 nodes are up: start or add nodes, or \
                    request at most 2 copies";
        assert_eq!(message, says);
        let (_, message) = room(&view(10, &[10]), 2).unwrap_err();
        assert!(message.contains("need 10 nodes, and 9 of 10 nodes are up") && message.ends_with("add nodes"), "{message}");
        assert_eq!(room(&view(11, &[10]), 2), Ok(()));
    }

    #[test]
    fn missing_copies_get_free_numbers() {
        let mut stripe = stripe();
        let lacking = |stripe: &StripeRecord, lost: &[(u8, u8)], replicas| {
            let lost = lost.iter().map(|(index, copy)| Lost::of(stripe, *index, *copy)).collect();
            let lacking = lacking_copies(stripe, lost, replicas);
            lacking.into_iter().map(|lost| (lost.index, lost.copy)).collect::<Vec<_>>()
        };
        assert_eq!(lacking(&stripe, &[], 1), []);
        assert_eq!(lacking(&stripe, &[], 2), [(0, 1), (1, 1), (2, 1), (3, 1)]);
        assert_eq!(lacking(&stripe, &[(1, 0), (5, 0)], 1), [(1, 0)], "parity is left to an ordinary repair");
        let copy = |copy| PlacedBlock { copy, home: home(10 + u32::from(copy)), ..stripe.blocks[&0] };
        stripe.copies = vec![(0, copy(2)), (1, copy(1))];
        assert_eq!(lacking(&stripe, &[], 3), [(0, 1), (1, 2), (2, 1), (2, 2), (3, 1), (3, 2)]);
        assert_eq!(lacking(&stripe, &[(0, 2)], 2), [(0, 2), (2, 1), (3, 1)], "a lost copy keeps its number");
    }
}
