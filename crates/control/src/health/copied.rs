//! The stripes whose data have further copies, and on how many nodes each is.

use std::collections::BTreeMap;
use weft_types::{StripeId, StripeRecord};

/// The most stripes that are remembered, about 24 MiB; beyond that only those that are on more nodes than all others.
const STRIPES_MAX: usize = 1 << 20;

/// The stripes with copies. Like the tally, it is updated with each change, so a query scans nothing.
#[derive(Debug, Default)]
pub struct Copied {
    stripes: BTreeMap<StripeId, usize>,
    /// How many of them are on so many nodes.
    of_width: BTreeMap<usize, usize>,
}

impl Copied {
    /// On how many nodes a stripe is, or should be, if its data have copies.
    pub fn nodes_of(stripe: &StripeRecord) -> Option<usize> {
        (!stripe.copies.is_empty()).then(|| stripe.all().count())
    }

    /// Records on how many nodes a stripe is; `None`: its data have no copies, or it was removed.
    pub fn set(&mut self, stripe: StripeId, nodes: Option<usize>) {
        if let Some(before) = self.stripes.remove(&stripe)
            && let Some(stripes) = self.of_width.get_mut(&before)
        {
            *stripes -= 1;
            if *stripes == 0 {
                self.of_width.remove(&before);
            }
        }
        let Some(nodes) = nodes else { return };
        if self.stripes.len() < STRIPES_MAX || nodes > self.most_nodes() {
            self.stripes.insert(stripe, nodes);
            *self.of_width.entry(nodes).or_default() += 1;
        }
    }

    /// On how many nodes the widest of them is; 0: there are none.
    pub fn most_nodes(&self) -> usize {
        self.of_width.last_key_value().map_or(0, |(nodes, _)| *nodes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_widest_stripe_with_copies_is_known_as_stripes_change() {
        let mut copied = Copied::default();
        let mut most = |stripe, nodes| {
            copied.set(StripeId(stripe), nodes);
            copied.most_nodes()
        };
        assert_eq!((most(1, None), most(1, Some(6)), most(2, Some(9)), most(3, Some(9))), (0, 6, 9, 9));
        assert_eq!((most(2, Some(6)), most(3, Some(3)), most(1, None), most(2, None), most(3, None)), (9, 6, 6, 3, 0));
    }
}
