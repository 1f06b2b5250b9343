//! What nodes report about their own blocks (lost, or corrupt in part), what is found when those of a node that came back are checked, and
//! what of it is recorded.

mod check;
mod doubt;

pub use check::{Ask, Check};
pub use doubt::{DOUBTFUL_FROM, Doubt};

use weft_types::{BlockId, BlockState, NodeId, Span, StripeRecord};

/// A node's report about one of its blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finding {
    /// The whole block is lost; its new state.
    Lost(BlockState),
    /// These bytes of it are corrupt.
    Corrupt(Vec<Span>),
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
    /// These bytes of it are damaged.
    DamagedIn(Vec<Span>, String),
    /// It cannot be said now.
    Unknown(String),
}

/// What is to be said of a block after its node was asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It is what was written.
    Right,
    /// What is wrong with it, and why.
    Wrong(Finding, String),
    /// It cannot be said now, and why.
    Unknown(String),
    /// It is not the stripe's block there any more.
    Obsolete,
}

impl Seen {
    /// What is to be said of a node's block. `stripe`: its stripe now, if it exists.
    pub fn verdict(self, stripe: Option<&StripeRecord>, node: NodeId, block: BlockId) -> Verdict {
        let Some(stripe) = stripe.filter(|stripe| is_current(stripe, node, block)) else { return Verdict::Obsolete };
        match self {
            Self::There(checksums) => {
                let recorded = stripe.checksums.get(usize::from(block.index)).filter(|recorded| !recorded.is_empty());
                match recorded {
                    Some(recorded) if *recorded != checksums => {
                        let why = "its checksums are not those that were recorded";
                        Verdict::Wrong(Finding::Lost(BlockState::Corrupt), why.to_owned())
                    }
                    _ => Verdict::Right,
                }
            }
            Self::Absent(why) => Verdict::Wrong(Finding::Lost(BlockState::Missing), why),
            Self::Damaged(why) => Verdict::Wrong(Finding::Lost(BlockState::Corrupt), why),
            Self::DamagedIn(bytes, why) => Verdict::Wrong(Finding::Corrupt(bytes), why),
            Self::Unknown(why) => Verdict::Unknown(why),
        }
    }
}

/// What is to be said of a block of which some bytes were read: these are the checksums of each MiB, from number `first` on.
pub fn of_content(stripe: &StripeRecord, block: BlockId, first: usize, read: &[u32]) -> Verdict {
    let recorded = stripe.checksums.get(usize::from(block.index)).map(Vec::as_slice).unwrap_or_default();
    let differs = recorded.iter().skip(first).zip(read).position(|(recorded, read)| recorded != read);
    match differs {
        None => Verdict::Right,
        Some(at) => {
            let why = format!("its content is not what was recorded, from MiB {} on", first + at);
            Verdict::Wrong(Finding::Lost(BlockState::Corrupt), why)
        }
    }
}

/// Whether a block is the stripe's on a node, as far as is recorded, and not known to be bad.
pub fn is_current(stripe: &StripeRecord, node: NodeId, block: BlockId) -> bool {
    let placed = stripe.find(block.index, block.copy).filter(|placed| placed.home.node == node);
    placed.is_some_and(|placed| placed.generation == block.generation && placed.state == BlockState::Ok) && stripe.ended
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
    fn a_block_that_is_absent_damaged_or_another_is_wrong_if_it_is_still_the_stripes() {
        let stripe = stripe();
        let block = |generation| BlockId { stripe: stripe.id, index: 1, copy: 0, generation };
        let verdict = |seen: Seen, node, generation| seen.verdict(Some(&stripe), NodeId(node), block(generation));
        let wrong = |state, why: &str| Verdict::Wrong(Finding::Lost(state), why.to_owned());
        let absent = Seen::Absent("no".into());
        assert_eq!(verdict(Seen::There(vec![11]), 2, 1), Verdict::Right);
        let differs = wrong(BlockState::Corrupt, "its checksums are not those that were recorded");
        assert_eq!(verdict(Seen::There(vec![12]), 2, 1), differs);
        assert_eq!(verdict(absent.clone(), 2, 1), wrong(BlockState::Missing, "no"));
        assert_eq!(verdict(Seen::Damaged("its sidecar".into()), 2, 1), wrong(BlockState::Corrupt, "its sidecar"));
        let in_part = Finding::Corrupt(vec![Span::new(0, PAGE)]);
        let seen = Seen::DamagedIn(vec![Span::new(0, PAGE)], "a page".into());
        assert_eq!(verdict(seen, 2, 1), Verdict::Wrong(in_part, "a page".into()));
        let content = |first, read: &[u32]| of_content(&stripe, block(1), first, read);
        assert_eq!([content(0, &[11]), content(1, &[5]), content(0, &[])], [const { Verdict::Right }; 3]);
        assert_eq!(content(0, &[10]), wrong(BlockState::Corrupt, "its content is not what was recorded, from MiB 0 on"));
        assert_eq!(verdict(Seen::Unknown("busy".into()), 2, 1), Verdict::Unknown("busy".into()));
        for (node, generation) in [(3, 1), (2, 2)] {
            assert_eq!(verdict(absent.clone(), node, generation), Verdict::Obsolete, "it was rebuilt elsewhere, or again");
        }
        let mut coming = stripe.clone();
        coming.ended = false;
        for stripe in [Some(&coming), None] {
            assert_eq!(absent.clone().verdict(stripe, NodeId(2), block(1)), Verdict::Obsolete);
        }
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
