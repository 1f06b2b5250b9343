//! What nodes report about their own blocks (lost, or corrupt in part), what is found when those of a node that came back are checked, and
//! what of it is recorded.

use weft_types::{BlockId, BlockState, NodeId, Span, StripeRecord};

/// A node's report about one of its blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finding {
    /// The whole block is lost; its new state.
    Lost(BlockState),
    /// These bytes of it are corrupt.
    Corrupt(Vec<Span>),
}

/// Blocks that must all be bad in one answer before their disk is in doubt.
const DOUBTFUL_FROM: usize = 5;

/// Whether so many of the blocks that a node was asked for are bad that its disk is in doubt, and not each of them: it may answer no read for
/// a while, or not be mounted. Nothing is concluded then.
pub fn is_disk_in_doubt(asked: usize, bad: usize) -> bool {
    asked >= DOUBTFUL_FROM && bad == asked
}

/// What a node says about a block that it should have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Seen {
    /// It is there, with the CRC32C of each MiB.
    There(Vec<u32>),
    /// It is on none of the node's disks.
    Absent(String),
    /// It is damaged.
    Damaged(String),
    /// It cannot be said now.
    Unknown(String),
}

impl Seen {
    /// What is wrong with a node's block of this stripe, and why; `None` if it is right, or no longer the stripe's block.
    pub fn finding(&self, stripe: &StripeRecord, node: NodeId, block: BlockId) -> Option<(Finding, String)> {
        let placed = stripe.find(block.index, block.copy).filter(|placed| placed.home.node == node);
        let is_current =
            placed.is_some_and(|placed| placed.generation == block.generation && placed.state == BlockState::Ok) && stripe.ended;
        if !is_current {
            return None;
        }
        match self {
            Self::There(checksums) => {
                let recorded = stripe.checksums.get(usize::from(block.index)).filter(|recorded| !recorded.is_empty());
                let differs = recorded.is_some_and(|recorded| recorded != checksums);
                differs.then(|| (Finding::Lost(BlockState::Corrupt), "its checksums are not those that were recorded".to_owned()))
            }
            Self::Absent(why) => Some((Finding::Lost(BlockState::Missing), why.clone())),
            Self::Damaged(why) => Some((Finding::Lost(BlockState::Corrupt), why.clone())),
            Self::Unknown(_) => None,
        }
    }
}

/// The consequences of a report.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Judged {
    /// The block is avoided for a while.
    pub avoid: bool,
    /// What to record in the metadata.
    pub mark: Option<Finding>,
}

impl Finding {
    /// Decides what to record when a node reports a bad block. `stripe`: its stripe, if it exists. A block whose defect
    /// cannot be recorded is avoided for a while.
    pub fn judged(&self, stripe: Option<&StripeRecord>, node: NodeId, block: BlockId) -> Judged {
        // Only the node that holds the block may report it. Otherwise one node could invalidate other nodes' blocks.
        let holds = |stripe: &&StripeRecord| stripe.find(block.index, block.copy).is_some_and(|it| it.home.node == node);
        let Some(stripe) = stripe.filter(holds).filter(|stripe| stripe.ended) else { return Judged { avoid: true, mark: None } };
        match self {
            Self::Lost(_) => Judged { avoid: false, mark: Some(self.clone()) },
            Self::Corrupt(bytes) => {
                // The last page may extend beyond the block's end.
                let whole = Span::new(0, stripe.layout.block_len(block.index.into()));
                let bytes: Vec<Span> = bytes.iter().map(|span| span.intersect(whole)).filter(|span| !span.is_empty()).collect();
                // If a block has ever more corrupt ranges, those found so far do not tell what can be read.
                let known = stripe.corrupt_of(block.index, block.copy);
                let avoid = !known.is_empty() && bytes.iter().any(|span| !span.subtract(known).is_empty());
                let mark = if bytes.is_empty() { Self::Lost(BlockState::Corrupt) } else { Self::Corrupt(bytes) };
                Judged { avoid, mark: Some(mark) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{BLOCK_LEN, stripe};

    const PAGE: u64 = 4096;

    /// The consequence if node `node` reports block 1, which is on node 2.
    fn judged(stripe: Option<&StripeRecord>, node: u32, finding: Finding) -> Judged {
        let block = BlockId { stripe: crate::fixtures::stripe().id, index: 1, copy: 0, generation: 1 };
        finding.judged(stripe, NodeId(node), block)
    }

    fn corrupt(spans: &[(u64, u64)]) -> Finding {
        Finding::Corrupt(spans.iter().map(|(start, end)| Span::new(*start, *end)).collect())
    }

    #[test]
    fn a_disk_is_in_doubt_if_all_its_blocks_are_bad() {
        assert!(is_disk_in_doubt(5, 5) && is_disk_in_doubt(20, 20));
        assert!(!is_disk_in_doubt(20, 19) && !is_disk_in_doubt(4, 4) && !is_disk_in_doubt(0, 0));
    }

    #[test]
    fn only_a_blocks_home_can_report_it_as_bad() {
        let (stripe, mut coming) = (stripe(), stripe());
        coming.ended = false;
        let lost = || Finding::Lost(BlockState::Missing);
        let avoided = Judged { avoid: true, mark: None };
        for (stripe, node) in [(None, 2), (Some(&stripe), 3), (Some(&coming), 2)] {
            assert_eq!(judged(stripe, node, lost()), avoided, "node {node}");
            assert_eq!(judged(stripe, node, corrupt(&[(0, PAGE)])), avoided, "node {node}");
        }
        assert_eq!(judged(Some(&stripe), 2, lost()), Judged { avoid: false, mark: Some(lost()) });
    }

    #[test]
    fn a_block_that_is_absent_damaged_or_another_is_lost_if_it_is_still_the_stripes() {
        let stripe = stripe();
        let block = |generation| BlockId { stripe: stripe.id, index: 1, copy: 0, generation };
        let found =
            |seen: Seen, node, generation| seen.finding(&stripe, NodeId(node), block(generation)).map(|(finding, _)| finding);
        let (right, absent) = (Seen::There(vec![11]), Seen::Absent("no".into()));
        assert_eq!(found(right, 2, 1), None);
        assert_eq!(found(Seen::There(vec![12]), 2, 1), Some(Finding::Lost(BlockState::Corrupt)));
        assert_eq!(found(absent.clone(), 2, 1), Some(Finding::Lost(BlockState::Missing)));
        assert_eq!(found(Seen::Damaged("its sidecar".into()), 2, 1), Some(Finding::Lost(BlockState::Corrupt)));
        assert_eq!(found(Seen::Unknown("busy".into()), 2, 1), None);
        assert_eq!(
            (found(absent.clone(), 3, 1), found(absent.clone(), 2, 2)),
            (None, None),
            "it was rebuilt elsewhere, or again"
        );
        let mut coming = stripe.clone();
        coming.ended = false;
        assert_eq!(absent.finding(&coming, NodeId(2), block(1)), None);
    }

    #[test]
    fn corrupt_ranges_are_clipped_and_a_block_with_too_many_is_avoided() {
        let (fresh, mut known) = (stripe(), stripe());
        known.corrupt.insert((1, 0), vec![Span::new(0, 2 * PAGE)]);
        let all = || Finding::Lost(BlockState::Corrupt);
        let beyond = BLOCK_LEN + PAGE;
        let cases = [
            (&fresh, corrupt(&[(0, PAGE)]), false, corrupt(&[(0, PAGE)])),
            (&fresh, corrupt(&[(BLOCK_LEN - PAGE, beyond)]), false, corrupt(&[(BLOCK_LEN - PAGE, BLOCK_LEN)])),
            (&fresh, corrupt(&[(BLOCK_LEN, beyond)]), false, all()),
            (&fresh, corrupt(&[]), false, all()),
            (&known, corrupt(&[(PAGE, 2 * PAGE)]), false, corrupt(&[(PAGE, 2 * PAGE)])),
            (&known, corrupt(&[(PAGE, 3 * PAGE)]), true, corrupt(&[(PAGE, 3 * PAGE)])),
            (&known, corrupt(&[(BLOCK_LEN, beyond)]), false, all()),
        ];
        for (stripe, finding, avoid, mark) in cases {
            assert_eq!(judged(Some(stripe), 2, finding.clone()), Judged { avoid, mark: Some(mark) }, "{finding:?}");
        }
    }
}
