//! Allocates several stripes of a put in one metadata transaction, before they are sent.

use std::{collections::BTreeMap, mem};
use weft_types::{StripeId, StripeLayout, StripeRecord};

/// The most stripes that are allocated together.
const TOGETHER_MAX: u64 = 16;

/// A put's stripes that are allocated but not opened: no agent knows of them.
#[derive(Debug)]
pub struct Ahead {
    /// The put's size, if known.
    size: Option<u64>,
    /// The most stripes of the next allocation.
    together: u64,
    /// The lowest number that was never allocated.
    next: u64,
    unopened: BTreeMap<u64, StripeRecord>,
}

impl Ahead {
    /// For a put of this size.
    pub fn new(size: Option<u64>) -> Self {
        let together = if size.is_some() { TOGETHER_MAX } else { 1 };
        Self { size, together, next: 0, unopened: BTreeMap::new() }
    }

    /// The stripes after this one to allocate with it; `full` is the layout of a full stripe. For a put of unknown size
    /// the number doubles each time, so at most half of the allocations are unused.
    pub fn following(&self, number: u64, layout: StripeLayout, full: StripeLayout) -> Vec<StripeLayout> {
        // A stripe that is allocated again has failed before; those after it are allocated already.
        let count = if number < self.next { 1 } else { self.together };
        let following = |at: u64| {
            let start = (number + at).saturating_mul(full.data_len);
            let len = self.size.map_or(full.data_len, |size| size.saturating_sub(start).min(full.data_len));
            (len > 0 && layout.data_len == full.data_len).then_some(StripeLayout { data_len: len, ..full })
        };
        (1..count).map_while(following).collect()
    }

    /// Adds stripes that were allocated together.
    pub fn allocated(&mut self, stripes: Vec<StripeRecord>) {
        let Some(last) = stripes.last().map(|stripe| stripe.number) else { return };
        if last >= self.next {
            self.next = last + 1;
            self.together = (2 * self.together).min(TOGETHER_MAX);
        }
        self.unopened.extend(stripes.into_iter().map(|stripe| (stripe.number, stripe)));
    }

    /// Removes a stripe that is now opened or released.
    pub fn take(&mut self, number: u64) -> Option<StripeRecord> {
        self.unopened.remove(&number)
    }

    /// Removes and returns all stripes, so that the caller can release them.
    pub fn take_all(&mut self) -> Vec<StripeId> {
        mem::take(&mut self.unopened).into_values().map(|stripe| stripe.id).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::stripe;

    const FULL: u64 = 100;

    fn layout(data_len: u64) -> StripeLayout {
        StripeLayout { data_len, ..stripe().layout }
    }

    fn lens(ahead: &Ahead, number: u64, len: u64) -> Vec<u64> {
        ahead.following(number, layout(len), layout(FULL)).iter().map(|layout| layout.data_len).collect()
    }

    /// Allocates a stripe and those with it, and opens it. Returns how many were allocated.
    fn allocate(ahead: &mut Ahead, number: u64, len: u64) -> usize {
        let following = ahead.following(number, layout(len), layout(FULL));
        let layouts: Vec<StripeLayout> = std::iter::once(layout(len)).chain(following).collect();
        let count = layouts.len();
        let stripe = |(number, layout)| StripeRecord { id: StripeId(number + 1), number, layout, ..stripe() };
        ahead.allocated((number..).zip(layouts).map(stripe).collect());
        assert_eq!(ahead.take(number).map(|stripe| stripe.number), Some(number));
        count
    }

    #[test]
    fn a_put_of_unknown_size_allocates_more_and_more_at_once() {
        let mut ahead = Ahead::new(None);
        let (mut number, mut counts) = (0, Vec::new());
        while number < 63 {
            if ahead.take(number).is_none() {
                counts.push(allocate(&mut ahead, number, FULL));
            }
            number += 1;
        }
        assert_eq!(counts, [1, 2, 4, 8, 16, 16, 16]);
        assert_eq!(ahead.take_all().len(), 0, "the last 16 end with the 63rd");
    }

    #[test]
    fn a_put_of_known_size_allocates_no_more_than_it_needs() {
        let ahead = Ahead::new(Some(250));
        assert_eq!(lens(&ahead, 0, FULL), [FULL, 50]);
        assert_eq!(lens(&Ahead::new(Some(40)), 0, 40), [0; 0]);
        assert_eq!(lens(&Ahead::new(Some(300)), 0, FULL), [FULL; 2]);
        let mut large = Ahead::new(Some(33 * FULL));
        assert_eq!(allocate(&mut large, 0, FULL), 16);
        assert_eq!(allocate(&mut large, 16, FULL), 16);
        assert_eq!(allocate(&mut large, 32, FULL), 1);
    }

    #[test]
    fn a_stripe_that_is_allocated_again_or_is_short_is_allocated_alone() {
        let mut ahead = Ahead::new(None);
        allocate(&mut ahead, 0, FULL);
        allocate(&mut ahead, 1, FULL);
        assert_eq!(lens(&ahead, 0, FULL), [0; 0], "it failed and is sent again");
        assert_eq!(lens(&ahead, 3, 7), [0; 0], "nothing follows a stripe that is not full");
        assert_eq!(ahead.take_all(), [StripeId(3)]);
        assert_eq!(ahead.take_all(), Vec::<StripeId>::new());
    }
}
