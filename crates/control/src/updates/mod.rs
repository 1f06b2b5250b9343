//! Updates in place: which blocks of a stripe take part, when a seal is complete, and what the settled stripe contains.

mod behind;
mod clock;
mod growth;
mod sealing;
mod sessions;
mod settling;

pub use behind::{Answers, Found, Inspected, Newer, OpenBlock, Recorded, behind, is_behind};
pub use clock::Clock;
pub use growth::{growth, require_space, room};
pub use sealing::{Sealing, Step};
pub use sessions::{SESSION_MS, Sessions};
pub use settling::{SettledBlock, agreed};

use crate::{
    planning,
    view::{Standing, View},
};
use std::collections::{BTreeMap, BTreeSet};
use weft_codes::SharedCode;
use weft_types::{BlockId, BlockState, Error, Result, StripeRecord};

/// The blocks of a stripe that take part in its updates: all that are good, and closed. Fails if they are too few: there must be `write_min` more than
/// the code needs, or all of the stripe if it has fewer, and all others must be rebuilt from them.
pub fn members(
    code: &SharedCode,
    stripe: &StripeRecord,
    view: &View,
    (unclosed, write_min): (&BTreeSet<BlockId>, u32),
) -> Result<Vec<BlockId>> {
    let good = stripe.all().filter(|(index, placed)| {
        let is_there = !matches!(view.standing_of(stripe, *index, placed), Standing::Lost(_));
        is_there && placed.state == BlockState::Ok
    });
    let members: Vec<BlockId> =
        good.map(|(index, placed)| stripe.id_of(index, placed)).filter(|block| !unclosed.contains(block)).collect();
    let indexes = indexes(&members, &BTreeSet::new());
    let (have, all) = (indexes.len(), stripe.blocks.len());
    let least = (stripe.dimension() + write_min.max(1) as usize).min(all).max(stripe.dimension() + 1);
    if have < least || !can_rebuild(code, stripe, &members, &BTreeSet::new()) {
        let message = format!(
            "{have} of {all} blocks of stripe {} can be used, but an update needs at least {least} from which all others can be rebuilt: k+{} by the \
             setting write_min",
            stripe.number,
            least - stripe.dimension()
        );
        return Err(view.lacking_nodes(Error::unavailable(message)));
    }
    Ok(members)
}

/// Whether the whole stripe can be rebuilt from its members without those that are absent.
pub fn can_rebuild(code: &SharedCode, stripe: &StripeRecord, members: &[BlockId], absent: &BTreeSet<BlockId>) -> bool {
    let available: Vec<u8> = indexes(members, absent).into_iter().collect();
    let others = stripe.blocks.keys().filter(|index| !available.contains(index));
    let wanted: Vec<_> = others.map(|index| (*index, stripe.layout.coded_span())).collect();
    // A member has all of its bytes, whatever is recorded of it.
    let whole = StripeRecord { corrupt: BTreeMap::new(), ..stripe.clone() };
    !available.is_empty() && planning::unrecoverable(code, &whole, &available, &wanted).is_none()
}

fn indexes(members: &[BlockId], absent: &BTreeSet<BlockId>) -> BTreeSet<u8> {
    members.iter().filter(|block| !absent.contains(block)).map(|block| block.index).collect()
}

#[cfg(test)]
mod tests;
