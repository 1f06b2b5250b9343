//! What a settled stripe contains, by the answers of its blocks.

use std::collections::{BTreeMap, BTreeSet};
use weft_types::{BlockId, Seq, StripeRecord};
use weft_update::Sealed;

/// What a block says that it contains once all its updates are applied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SettledBlock {
    /// Its term and counts.
    pub seq: Seq,
    /// The CRC32C of each MiB.
    pub checksums: Vec<u32>,
}

/// The checksums by index, if all members say that they contain what was sealed, and copies of one block contain the same. Otherwise the members
/// that are left out of the next seal: those without a right answer. Of copies that differ, the first counts.
pub fn agreed(
    stripe: &StripeRecord,
    sealed: &Sealed,
    answers: &BTreeMap<BlockId, SettledBlock>,
) -> Result<BTreeMap<u8, Vec<u32>>, BTreeSet<BlockId>> {
    let count = |stream: u8| sealed.vector.get(&stream).copied().unwrap_or(0);
    let seq = Seq::new(sealed.term, (0..=u8::MAX).take(stripe.layout.k as usize).map(count).collect());
    let (mut checksums, mut absent): (BTreeMap<u8, Vec<u32>>, _) = (BTreeMap::new(), BTreeSet::new());
    for block in &sealed.members {
        let units = stripe.layout.checksum_units(block.index.into());
        let right = answers.get(block).filter(|told| told.seq == seq && told.checksums.len() as u64 == units);
        match (right, checksums.get(&block.index)) {
            (Some(told), None) => drop(checksums.insert(block.index, told.checksums.clone())),
            (Some(told), Some(other)) if *other == told.checksums => {}
            _ => drop(absent.insert(*block)),
        }
    }
    if absent.is_empty() { Ok(checksums) } else { Err(absent) }
}
