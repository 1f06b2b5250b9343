//! Where the blocks of open stripes are, as the coordinator has told: to send messages there, and to know whose messages count.

use crate::wire;
use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};
use weft_proto::{decode_sealed, v1};
use weft_types::{BlockId, Error, Result, StripeId};
use weft_update::Sealed;

/// The homes of the blocks of the stripes that have open blocks here.
#[derive(Debug, Default)]
pub(crate) struct Homes(Mutex<BTreeMap<StripeId, Stripe>>);

#[derive(Debug)]
struct Stripe {
    term: u64,
    members: BTreeMap<BlockId, Home>,
}

/// The agent that holds a block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Home {
    pub(crate) name: String,
    /// Of its data connections.
    pub(crate) address: String,
}

/// What the coordinator says of an open stripe.
#[derive(Debug)]
pub(crate) struct Told {
    pub(crate) stripe: StripeId,
    pub(crate) sealed: Sealed,
    members: BTreeMap<BlockId, Home>,
}

/// A stripe has at most so many blocks, copies included.
const MEMBERS_MAX: usize = 4096;

impl Told {
    /// Decodes it, and checks that it speaks of one stripe and has a home for each block.
    pub(crate) fn decode(stripe: &v1::OpenStripe) -> Result<Self> {
        let id = StripeId(stripe.stripe);
        let wrong = |what: &str| Error::invalid(format!("what the coordinator says of open stripe {id} is not valid: {what}"));
        if stripe.members.len() > MEMBERS_MAX {
            return Err(wrong("too many blocks"));
        }
        let sealed = decode_sealed(&stripe.sealed)?;
        let mut members = BTreeMap::new();
        for member in &stripe.members {
            let block: BlockId = wire::decode("block", &member.block)?;
            members.insert(block, Home { name: member.name.clone(), address: member.address.clone() });
        }
        if sealed.members.iter().chain(members.keys()).any(|block| block.stripe != id) {
            return Err(wrong("it names blocks of another stripe"));
        }
        if let Some(block) = sealed.members.iter().find(|block| !members.contains_key(block)) {
            return Err(wrong("a block has no home").block(*block));
        }
        Ok(Self { stripe: id, sealed, members })
    }
}

impl Homes {
    /// Keeps what the coordinator says, unless something newer is known.
    pub(crate) fn learn(&self, told: &Told) {
        let mut stripes = self.lock();
        let term = told.sealed.term;
        if stripes.get(&told.stripe).is_none_or(|known| known.term <= term) {
            stripes.insert(told.stripe, Stripe { term, members: told.members.clone() });
        }
    }

    /// Forgets a stripe, unless a block of it is open here. An opening first marks its block and then [learns](Self::learn), so what it
    /// learns stays.
    pub(crate) fn forget_unless(&self, stripe: StripeId, is_open: impl FnOnce() -> bool) {
        let mut stripes = self.lock();
        if !is_open() {
            stripes.remove(&stripe);
        }
    }

    /// Where a block is.
    pub(crate) fn of(&self, block: BlockId) -> Option<Home> {
        self.lock().get(&block.stripe)?.members.get(&block).cloned()
    }

    /// Whether the agent with this name holds a block.
    pub(crate) fn holds(&self, name: &str, block: BlockId) -> bool {
        let stripes = self.lock();
        stripes.get(&block.stripe).and_then(|stripe| stripe.members.get(&block)).is_some_and(|home| home.name == name)
    }

    /// The stripes of which that agent holds a block.
    pub(crate) fn with(&self, name: &str) -> Vec<StripeId> {
        let has = |stripe: &Stripe| stripe.members.values().any(|home| home.name == name);
        self.lock().iter().filter(|(_, stripe)| has(stripe)).map(|(id, _)| *id).collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<StripeId, Stripe>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_proto::encode_sealed;

    fn block(stripe: u64, index: u8) -> BlockId {
        BlockId { stripe: StripeId(stripe), index, copy: 0, generation: 1 }
    }

    fn told(term: u64, sealed: &[BlockId], homes: &[(BlockId, &str)]) -> Result<Told> {
        let sealed = Sealed { term, members: sealed.to_vec(), ..Sealed::default() };
        let member = |(block, name): &(BlockId, &str)| v1::OpenMember {
            block: wire::encode(block),
            node: 1,
            name: (*name).to_owned(),
            address: format!("{name}:1"),
        };
        Told::decode(&v1::OpenStripe { stripe: 1, sealed: encode_sealed(&sealed)?, members: homes.iter().map(member).collect() })
    }

    #[test]
    fn a_message_counts_only_from_the_holder_of_its_block_in_the_newest_term() {
        let (a, b) = (block(1, 0), block(1, 1));
        let homes = Homes::default();
        homes.learn(&told(2, &[a, b], &[(a, "one"), (b, "two")]).unwrap());
        assert!(homes.holds("one", a) && homes.holds("two", b) && !homes.holds("one", b) && !homes.holds("three", a));
        assert!(!homes.holds("one", block(2, 0)));
        homes.learn(&told(1, &[a, b], &[(a, "three"), (b, "two")]).unwrap());
        assert!(!homes.holds("three", a), "an earlier term replaced a later one");
        homes.learn(&told(3, &[a], &[(a, "one")]).unwrap());
        assert!(!homes.holds("two", b), "its block is fenced");
        assert_eq!((homes.with("one"), homes.with("two")), (vec![StripeId(1)], vec![]));
        assert_eq!(homes.of(a), Some(Home { name: "one".into(), address: "one:1".into() }));
        homes.forget_unless(StripeId(1), || true);
        assert!(homes.of(a).is_some());
        homes.forget_unless(StripeId(1), || false);
        assert_eq!(homes.of(a), None);
    }

    #[test]
    fn what_does_not_fit_together_is_refused() {
        let (a, b, other) = (block(1, 0), block(1, 1), block(2, 0));
        assert_eq!(told(1, &[a, b], &[(a, "one")]).unwrap_err().block, Some(b));
        assert!(told(1, &[a, other], &[(a, "one"), (other, "one")]).is_err());
        assert!(told(1, &[a], &[(a, "one"), (other, "one")]).is_err());
        assert!(Told::decode(&v1::OpenStripe { stripe: 1, sealed: vec![9], members: vec![] }).is_err());
    }
}
